#!/usr/bin/env bash
# pytrec_eval-terrier 0.5.11 and ranx 0.3.21: the same run and judgements, precision@1 of 0 and of
# 1.
#
# Equal scores are ordered by document name, from Z to A, by the first, and by
# their order in the run by the second. Moreover the first keeps 32-bit floats: cosine
# similarities that differ by 1e-9 are equal for it. Embeddings have many ties: duplicates, small
# codes, float16 scores, a collapsed network. Whose names begin with the class (007_bird_12) sorts
# ties by class. Way out: break ties oneself and pass places
# as scores, n, n - 1, ... (ranx compiles before its first answer: minutes on a busy machine.)
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="pytrec_eval-terrier==0.5.11 ranx==0.3.21 numpy==2.4.6"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
venv/bin/python - <<'END'
import sys
import warnings

warnings.filterwarnings("ignore")
import pytrec_eval
from ranx import Qrels, Run, evaluate

runs = {"equal scores": {"q": {"a": 1.0, "b": 1.0}},
        "b lower by 1e-9": {"q": {"a": 1.0, "b": 1.0 - 1e-9}},
        "b lower by 1e-6": {"q": {"a": 1.0, "b": 1.0 - 1e-6}}}
judgements = {"q": {"a": 1}}
values = []
for name, run in runs.items():
    terrier = pytrec_eval.RelevanceEvaluator(judgements, {"P_1"}).evaluate(run)["q"]["P_1"]
    ranx = float(evaluate(Qrels(judgements), Run(run), "precision@1"))
    values += [terrier, ranx]
    print(f"{name}: precision@1 where a is relevant: pytrec_eval {terrier:.0f}, ranx {ranx:.0f}")
sys.exit(values != [0, 1, 0, 1, 1, 1])
END

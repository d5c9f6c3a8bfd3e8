#!/usr/bin/env bash
# ir-measures 0.4.3 with pytrec_eval-terrier 0.5.11: nDCG with gains of one's own, asked for with
# plain nDCG, is 0, and plain nDCG has the value of the gains; in some processes only.
#
# nDCG(gains={1: 0, 2: 1}) counts pictures of the same object and not those of the same category.
# Asked for with nDCG at the same cutoff, both may be wrong: here 0.6033 and 0.7518 become 0 and
# 0.6033. The measures are put into a set, whose order depends on Python's hash seed, so one program
# is right in one process and wrong in the next: of the hash seeds 0 to 19 it is wrong with 8 for
# these two measures, with 7 if AP is asked for too, with 1 if AP, P@1 and RR are. Each of the two
# alone is right in every process.
# Cause, by reading pytrec_eval_provider.py: plain nDCG joins the first group of measures that there
# is, whatever its gains; there it takes the place of the one with gains, if the cutoff is the same,
# and a measure without a value is reported as 0.
# Way out: one call for each nDCG, or the gains in the qrels.
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="ir-measures==0.4.3 pytrec_eval-terrier==0.5.11 numpy==2.4.6"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
cat > measure.py <<'END'
import json
import sys

import ir_measures
import numpy as np
from ir_measures import AP, RR, P, nDCG

random = np.random.default_rng(0)
qrels, run = {}, {}
for query in range(200):
    relevance = random.choice(3, size=50, p=[0.6, 0.3, 0.1])       # 2 same object, 1 same category
    relevance[0] = 2
    score = relevance + random.standard_normal(50)
    qrels[f"q{query}"] = {f"d{i}": int(r) for i, r in enumerate(relevance)}
    run[f"q{query}"] = {f"d{i}": float(s) for i, s in enumerate(score)}
gains, plain = nDCG(gains={1: 0, 2: 1}) @ 10, nDCG @ 10
told = {}
for name, groups in (("alone", [[gains], [plain]]), ("both", [[plain, gains]]),
                     ("both, AP", [[plain, gains, AP]]),
                     ("both, AP, P@1, RR", [[plain, gains, AP, P @ 1, RR]])):
    value = {}
    for group in groups:
        value.update(ir_measures.calc_aggregate(group, qrels, run))
    told[name] = value[gains], value[plain]
json.dump(told, sys.stdout)
END
OMP_NUM_THREADS=1 venv/bin/python - <<'END'
import json
import os
import subprocess
import sys
from collections import Counter

found = {}
for seed in range(20):
    answer = subprocess.run([sys.executable, "measure.py"], capture_output=True, check=True,
                            env={**os.environ, "PYTHONHASHSEED": str(seed)})
    for name, pair in json.loads(answer.stdout).items():
        found.setdefault(name, Counter())[tuple(round(x, 4) for x in pair)] += 1
for name, counts in found.items():
    print(f"{name}:", "; ".join(f"with gains {pair[0]:.4f}, plain {pair[1]:.4f} in {n} of 20 "
                                "processes" for pair, n in counts.most_common()))
right = next(iter(found["alone"]))
wrong = (0, right[0])
sys.exit(len(found["alone"]) != 1 or any(
    set(counts) != {right, wrong} for name, counts in found.items() if name != "alone"))
END

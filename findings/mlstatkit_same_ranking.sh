#!/usr/bin/env bash
# MLstatkit 0.1.91: Delong_test, which compares two models by AUC, calls equal models as different
# as can be: p = 0.
#
# Where the variance of the difference is 0 it takes a bootstrap, and its p-value is twice the
# smaller of the shares of differences <= 0 and > 0. If all are 0, the second share is 0. So p = 0
# with z = 0 for a model and itself, for the cosine similarity and the negative distance of the same
# normalized embeddings, and for two models that both separate all pairs, on any number of pairs.
# With two neighbours in the ranking exchanged p is 0.48.
# One more in it: AUC depends on the order of the scores only, and so does Delong_test, but
# Permutation_test exchanges the scores themselves between the models. Of six pairs of models all
# six differ with p < 0.05, as by Delong_test; with the scores of one model times 10, or plus 5,
# which leaves both AUCs as they are, none does.
# Way out: p = 1 where the variance is 0 (info["method"] is "bootstrap"); Permutation_test on
# scipy.stats.rankdata() of each model's scores.
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="scikit-learn==1.9.1 numpy==2.4.6 scipy==1.17.1"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
venv/bin/pip install -q --disable-pip-version-check --no-deps MLstatkit==0.1.91 || exit 2
OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import sys

import numpy as np
from MLstatkit import Delong_test, Permutation_test
from scipy.stats import rankdata
from sklearn.metrics import roc_auc_score

rng = np.random.default_rng(0)
n = 400
same = np.repeat([1, 0], n // 2)                # pairs of one class, pairs of two
left = rng.standard_normal((n, 16))
right = 0.5 * left * same[:, None] + rng.standard_normal((n, 16))
left, right = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (left, right))
cosine, distance = (left * right).sum(1), np.linalg.norm(left - right, axis=1)
order = cosine.argsort()
place = [i for i in range(100, n - 1) if same[order[i]] != same[order[i + 1]]][0]
exchanged = cosine.copy()
exchanged[order[place]], exchanged[order[place + 1]] = cosine[order[place + 1]], cosine[
    order[place]]
perfect = [same + 0.4 * rng.random(n) for _ in range(2)]
p = {}
for name, first, second in (("a model and itself", cosine, cosine),
                            ("cosine and -distance", cosine, -distance),
                            ("two perfect models", *perfect),
                            ("two neighbours exchanged", cosine, exchanged)):
    z, p[name], *_, auc, other, info = Delong_test(same, first, second, n_boot=200, random_state=0)
    print(f"{name}: AUC {auc:.6f} and {other:.6f}, z = {z:.2f}, p = {p[name]:.3f}, by "
          f"{info['method']}")
print("the order by cosine and by -distance is one:", bool((rankdata(cosine) == rankdata(
    -distance)).all()))

count = {"Delong_test": [], "Permutation_test": [], "times 10": [], "plus 5": [], "ranks": [],
         "Delong_test, times 10": []}
equal = []
for trial in range(6):
    common = rng.standard_normal(n)
    first, second = (1.75 * same + common + 0.5 * rng.standard_normal(n),
                     1.5 * same + common + 0.5 * rng.standard_normal(n))
    equal += [roc_auc_score(same, second) == roc_auc_score(same, s) for s in (
        10 * second, second + 5)]

    def permutation(a, b):
        return Permutation_test(same, a, b, "roc_auc", n_bootstraps=60, random_state=trial)[2]

    for name, value in (("Delong_test", Delong_test(same, first, second)[1]),
                        ("Delong_test, times 10", Delong_test(same, first, 10 * second)[1]),
                        ("Permutation_test", permutation(first, second)),
                        ("times 10", permutation(first, 10 * second)),
                        ("plus 5", permutation(first, second + 5)),
                        ("ranks", permutation(rankdata(first), rankdata(10 * second)))):
        count[name].append(value)
for name, values in count.items():
    print(f"{name}: p < 0.05 for {sum(v < 0.05 for v in values)} of 6 pairs of models, the median "
          f"is {np.median(values):.3f}")
found = {name: sum(v < 0.05 for v in values) for name, values in count.items()}
sys.exit(not (
    p["a model and itself"] == p["cosine and -distance"] == p["two perfect models"] == 0
    and p["two neighbours exchanged"] > 0.1 and (rankdata(cosine) == rankdata(-distance)).all()
    and all(equal) and count["Delong_test"] == count["Delong_test, times 10"]
    and min(found[k] for k in ("Delong_test", "Permutation_test", "ranks")) >= 5
    and found["times 10"] <= 1 and found["plus 5"] <= 1))
END

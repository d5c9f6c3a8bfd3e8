#!/usr/bin/env bash
# clusterval 1.0.5: how well a clustering is found again in random parts of the data is judged
# between other items, so its external indices are as by chance and 2 clusters win.
#
# It draws three quarters of the rows in a random order, clusters them, and compares the places in
# that draw with the row numbers of the whole: row 0 with whatever was drawn first. Of 6 clear
# clusters of 10 embeddings each the Fowlkes-Mallows index for 6 clusters is 0.16, and by the same
# items 1.00; Hubert's and Wallace's, which are 0 by chance, are within 0.02 of 0 for every number
# of clusters. Indices that are not corrected for chance fall with the number of clusters, so they
# choose the smallest. With its defaults, all 20 indices, Clusterval() finds 2 clusters in 4 of 5
# draws, with index="external" in all 5; with index="internal" it finds 6 in all.
# One more in it: its adjusted Rand index multiplies by N - 1 where it should divide. Two random
# partitions into 5 have 1.0000, as have equal ones; by scikit-learn 0.00 and 1.
# Way out: index="internal"; scikit-learn's adjusted_rand_score; the comparison as below.
#
# It needs a NumPy before 2. matplotlib and sympy, which it imports for plots and for distances as
# input, are replaced by empty modules.
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="numpy==1.26.4 scipy==1.15.3 scikit-learn==1.7.2 pandas==2.3.3 fastcluster==1.2.6"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
venv/bin/pip install -q --disable-pip-version-check --no-deps clusterval==1.0.5 || exit 2
OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import random
import sys
from unittest.mock import MagicMock

for name in ("matplotlib", "matplotlib.pyplot", "sympy"):
    sys.modules[name] = MagicMock()
import numpy as np
from clusterval import Clusterval
from clusterval.external import calculate_external
from scipy.cluster.hierarchy import cut_tree, linkage
from sklearn.metrics import adjusted_rand_score, fowlkes_mallows_score

chosen, inner, outer, tables, same = [], [], [], [], []
for seed in range(5):
    rng = np.random.default_rng(seed)
    random.seed(seed)                                       # draws the parts
    y = rng.permutation(np.repeat(np.arange(6), 10))
    x = 10 * rng.standard_normal((6, 8))[y] + rng.standard_normal((60, 8))
    result = Clusterval(max_k=8, bootstrap_samples=10).evaluate(x)
    chosen.append(result.final_k)
    tables.append(result.output_df)
    inner.append(Clusterval(max_k=8, index="internal").evaluate(x).final_k)
    outer.append(Clusterval(max_k=8, bootstrap_samples=10, index="external").evaluate(x).final_k)
    whole = cut_tree(linkage(x, "ward"), 6)[:, 0]
    for _ in range(10):
        part = rng.choice(60, 45, replace=False)
        same.append(fowlkes_mallows_score(whole[part], cut_tree(linkage(x[part], "ward"), 6)[:, 0]))
mean = sum(tables) / len(tables)
print(mean[["FM", "J", "H", "AW", "AR"]].round(3).T.to_string())
print(f"Fowlkes-Mallows for 6 clusters {mean.loc[6, 'FM']:.2f}, of the same items "
      f"{np.mean(same):.2f}")
chance = max(np.abs(table[["H", "AW"]].to_numpy()).max() for table in tables)
print(f"Hubert and Wallace: at most {np.abs(mean[['H', 'AW']].to_numpy()).max():.3f} from 0, in a "
      f"single draw {chance:.3f}")
print("number of clusters of 6, by default:", chosen, "by index='external':", outer,
      "by index='internal':", inner)


def parts(labels):
    return [np.flatnonzero(labels == label).tolist() for label in np.unique(labels)]


rng = np.random.default_rng(0)
first, second = rng.integers(5, size=(2, 200))
rand = {}
for name, other in (("random", second), ("equal", first)):
    rand[name] = (calculate_external(parts(first), parts(other), "AR")["AR"],
                  adjusted_rand_score(first, other))
    print(f"adjusted Rand index of {name} partitions: {rand[name][0]:.6f}, by scikit-learn "
          f"{rand[name][1]:.6f}")
sys.exit(not (
    chosen.count(2) == 4 and outer == [2] * 5 and inner == [6] * 5
    and mean.loc[6, "FM"] < 0.25 and np.mean(same) > 0.99
    and np.abs(mean[["H", "AW"]].to_numpy()).max() < 0.03 and chance < 0.1
    and abs(rand["random"][0] - 1) < 1e-3 and abs(rand["random"][1]) < 0.05
    and rand["equal"] == (1, 1)))
END

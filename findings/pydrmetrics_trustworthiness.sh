#!/usr/bin/env bash
# pyDRMetrics 0.0.8: trustworthiness and continuity are far too high, of a map of noise too, and the
# share of kept neighbours exceeds 1.
#
# DRMetrics(X, Z) compares embeddings X with their map Z, in a plane for example. Its T[k] and C[k]
# look at k neighbours, so they begin with none, and T[0] and C[0] are 1 for any map; the plot in
# its report puts them above 1 neighbour, and AUC_T is the mean of all. The penalty of a false
# neighbour begins at 0 instead of 1: the one just outside of the k nearest is free. And the sum is
# divided by more than its largest possible value, by twice as much at one neighbour. So 100 points
# of noise, mapped to other noise, have T of 1.00, 0.73, 0.67 and 0.64, where scikit-learn's
# trustworthiness of 1 to 4 neighbours is 0.47, 0.50, 0.51 and 0.50; C is the same. Towards many
# neighbours T rises to 0.99, and AUC_T is 0.76.
# QNN, the share of the k nearest that are kept, is divided by one point too few: embeddings mapped
# to themselves have 1.05 with 20 points and 1.01 with 100, for each k, and their mean, AUC, too.
# Cause, by reading coranking_matrix.py: W begins at 0; (k + 1) * m * (m - 1 - k), where m is the
# number of points less one.
# Way out: sklearn.manifold.trustworthiness(X, Z), and (Z, X) for continuity; QNN * m / (m + 1).
#
# matplotlib, which is imported for plots, is replaced by an empty module.
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="scikit-learn==1.9.1 scipy==1.17.1 pandas==3.1.1 tqdm==4.70.1 numpy==2.4.6"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
venv/bin/pip install -q --disable-pip-version-check --no-deps pyDRMetrics==0.0.8 || exit 2
OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import sys
from unittest.mock import MagicMock

sys.modules["matplotlib"] = sys.modules["matplotlib.pyplot"] = MagicMock()
import numpy as np
from pyDRMetrics.pyDRMetrics import DRMetrics
from sklearn.manifold import trustworthiness

random = np.random.default_rng(0)


def noise(n):
    return random.standard_normal((n, 16)), random.standard_normal((n, 2))


def text(values):
    return " ".join(f"{v:.3f}" for v in values)


x, z = noise(100)
library = DRMetrics(x, z)
right = [trustworthiness(x, z, n_neighbors=k) for k in range(1, 50)]
back = [trustworthiness(z, x, n_neighbors=k) for k in range(1, 50)]
print("100 points of noise, T:", text(library.T[:4]), "... by scikit-learn:", text(right[:4]))
print("100 points of noise, C:", text(library.C[:4]), "... by scikit-learn:", text(back[:4]))
print(f"the last of T {library.T[-1]:.3f}, AUC_T {library.AUC_T:.3f}; the mean of scikit-learn's "
      f"for 1 to 49 neighbours {np.mean(right):.3f}")
told = (library.T[0] == library.C[0] == 1 and library.T[1] > right[0] + 0.15
        and all(library.T[k] > right[k - 1] + 0.05 for k in range(1, 6))
        and all(library.C[k] > back[k - 1] + 0.05 for k in range(1, 6))
        and np.isclose(library.AUC_T, library.T.mean())
        and library.T[-1] > 0.95 and library.AUC_T > 0.7 and np.mean(right) < 0.6)
for n in (20, 100):
    x, _ = noise(n)
    same = DRMetrics(x, x)
    print(f"{n} points mapped to themselves: QNN {text(same.QNN[:3])}, AUC {same.AUC:.3f}")
    told &= np.allclose(same.QNN, n / (n - 1)) and np.isclose(same.AUC, n / (n - 1))
sys.exit(not told)
END

#!/usr/bin/env bash
# hyppo 0.5.2: Hsic takes the bandwidth of both kernels from the first sample, and the statistic of
# MMD is not MMD.
#
# Its Gaussian kernel "uses the median distance as the bandwidth", by which Hsic is to find any
# dependence. The median is that of the first argument alone, so the scale of the second one matters
# and the order of the two: unit embeddings and the same embeddings times 30 have an HSIC of 0.0000
# and a p-value of 0.32, where 1 and 0 are right. Unit embeddings of one network and embeddings of
# another that have a length of 30, as pooled features may, are found dependent in 0 of 10 draws;
# with the arguments swapped, with both of length 1, or by Dcorr, in 10 of 10.
# The statistic of MMD is a correlation times 2n²m²/(n + m)⁴: it is at most 1/8 and depends on the
# sizes (its p-value is not concerned). 20 images whose coordinates all lie 10 standard deviations
# off 100 others have 0.035, and 100 that lie 1 off 0.057, so that the far domain looks nearer; MMD²
# is 1.37 and 0.21. The documentation speaks of a scaling factor; it is 0.026 and 0.270 for these.
# Way out: Dcorr, or each sample divided by the median of its distances; for MMD² its formula.
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="hyppo==0.5.2 scikit-learn==1.9.1 scipy==1.17.1 numba==0.68.1 numpy==2.4.6 pandas==2.3.3"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import sys

import numpy as np
from hyppo.independence import Dcorr, Hsic
from hyppo.ksample import MMD
from scipy.spatial.distance import cdist, pdist


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


random = np.random.default_rng(0)
x = unit(random.standard_normal((200, 64)))
itself = {}
for factor in (0.03, 0.1, 0.3, 1, 3, 10, 30):
    itself[factor] = Hsic().test(x, factor * x)[:2]
    print(f"embeddings and themselves times {factor}: HSIC {itself[factor][0]:.4f}, p-value "
          f"{itself[factor][1]:.2g}")
found = np.zeros(4, int)
for seed in range(10):
    random = np.random.default_rng(seed)
    x = unit(random.standard_normal((200, 64)))
    y = x @ random.standard_normal((64, 64)) / 8 + 0.1 * random.standard_normal((200, 64))
    y = 30 * unit(y)                                           # another network's, of length 30
    found += [test.test(*pair)[1] < 0.05 for test, pair in (
        (Hsic(), (x, y)), (Hsic(), (y, x)), (Hsic(), (x, y / 30)), (Dcorr(), (x, y)))]
print("two networks' embeddings, of length 1 and 30: dependent in", found[0], "of 10 draws, "
      f"swapped in {found[1]}, both of length 1 in {found[2]}, by Dcorr in {found[3]}")


def squared_mmd(x, y):
    """The unbiased estimate, with the kernel of hyppo: the median distance of all points."""
    gamma = 1 / (2 * np.median(pdist(np.vstack([x, y]))) ** 2)
    xx, yy, xy = (np.exp(-gamma * cdist(a, b) ** 2) for a, b in ((x, x), (y, y), (x, y)))
    return ((xx.sum() - len(x)) / len(x) / (len(x) - 1)
            + (yy.sum() - len(y)) / len(y) / (len(y) - 1) - 2 * xy.mean())


random = np.random.default_rng(0)
x, told = random.standard_normal((100, 8)), {}
for size, shift in ((100, 0), (100, 1), (100, 10), (20, 0), (20, 1), (20, 10)):
    y = random.standard_normal((size, 8)) + shift
    told[size, shift] = stat, true = MMD().statistic(x, y), squared_mmd(x, y)
    print(f"100 images and {size} that lie {shift} off: MMD {stat:.4f}, MMD² {true:.4f}",
          f"ratio {stat / true:.3f}" if shift else "")
sys.exit(bool(itself[30][0] > 0.01 or itself[30][1] < 0.1 or itself[1][0] < 0.99 or found[0] > 1
              or min(found[1:]) < 10 or told[20, 10][0] > told[100, 1][0]
              or told[20, 10][1] < told[100, 1][1]))
END

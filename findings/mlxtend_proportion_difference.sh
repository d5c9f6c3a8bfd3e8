#!/usr/bin/env bash
# mlxtend 0.25.0: the p-value of proportion_difference depends on which model comes first.
#
# Its guide tests whether two accuracies are equal, by |z| > 1.96 or by this p. But p is the lower
# tail, norm.cdf(z). With the better model first it is near 1: for an R@1 of 95% against 85% on 400
# queries p is 0.999999, the other way round 0.000001 (with both tails 0.000002). Of 1,000 true
# differences of this size it finds none with the better model first, 99.9% with it second.
# If the lower accuracy comes first, as in the guide's example, p is half of what it should be, and
# 10.1% of equal models differ at a level of 5%. The example, z = -1.754, is called a significant
# difference with p = 0.040; with both tails p is 0.079. The docstring names no side; the package's
# t-tests are two-tailed and say so.
# Way out: 2 * norm.sf(abs(z)) with the z it returns.
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="mlxtend==0.25.0 scikit-learn==1.9.1 pandas==3.1.1 scipy==1.17.1 numpy==2.4.6"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import sys

import numpy as np
from mlxtend.evaluate import proportion_difference
from scipy.stats import norm


def both_tails(a, b, n):
    return 2 * norm.sf(abs(proportion_difference(a, b, n)[0]))


told = {}
for a, b, n in ((0.95, 0.85, 400), (0.85, 0.95, 400), (0.84, 0.92, 100), (0.92, 0.84, 100)):
    z, p = proportion_difference(a, b, n)
    told[a, b] = p
    print(f"{a:.0%} against {b:.0%}, {n} queries: z = {z:.3f}, p = {p:.6f}, with both tails "
          f"{both_tails(a, b, n):.6f}")
random = np.random.default_rng(0)
better, worse = (random.binomial(400, share, 1000) / 400 for share in (0.95, 0.85))
first = np.mean([proportion_difference(a, b, 400)[1] < 0.05 for a, b in zip(better, worse)])
second = np.mean([proportion_difference(b, a, 400)[1] < 0.05 for a, b in zip(better, worse)])
print(f"1,000 differences of 95% and 85%: found with the better model first {first:.1%}, with it "
      f"second {second:.1%}")
pairs = np.sort(random.binomial(400, 0.85, (10000, 2)) / 400, axis=1)
equal = np.mean([proportion_difference(a, b, 400)[1] < 0.05 for a, b in pairs])
right = np.mean([both_tails(a, b, 400) < 0.05 for a, b in pairs])
print(f"10,000 pairs of equal models, the lower accuracy first: {equal:.1%} differ, with both "
      f"tails {right:.1%}")
sys.exit(not (told[0.95, 0.85] > 0.999 and told[0.85, 0.95] < 0.001 and first == 0
              and second > 0.9 and equal > 0.08 and right < 0.06
              and told[0.84, 0.92] < 0.05 < both_tails(0.84, 0.92, 100)))
END

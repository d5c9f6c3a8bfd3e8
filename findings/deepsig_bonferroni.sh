#!/usr/bin/env bash
# deepsig 1.2.8 (deep-significance): its corrections for multiple comparisons do not correct, and
# one of them gives the p-values to other hypotheses.
#
# multi_aso compares all pairs of models and corrects by default. It raises the level from 0.95 by
# 0.05 / n for n comparisons, where Bonferroni asks for 1 - 0.05 / n: the more models, the less it
# corrects. Of two models it makes a level of 1, so two models never differ: eps_min is 1 both ways,
# NaN if one wins every run (without the correction 0). Among 10 models (45 comparisons) the level
# is 0.951 for 0.9989, and a pair has an eps_min of 0.47, by the right level 0.85; below 0.5 a model
# is "better". Of six equal models one is better than another in 9 of 10 experiments, by the right
# level in 6 (the test itself keeps no exact level). aso(num_comparisons=n) corrects alike.
# bonferroni_correction returns sorted p-values in a wrong order: of p = 0.5, 0.9 and 0.001 the
# corrected ones are 0.9, 0.003 and 1, so the second hypothesis is rejected and the third is not.
# Of 10 shuffled p-values the smallest corrected one is another hypothesis's in 83% of the cases.
# Sorted p-values, as its tests have, stay right. (They are Holm's without the running maximum.)
# Way out: use_bonferroni=False with confidence_level=1 - 0.05 / n; Holm's from statsmodels.
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="deepsig==1.2.8 pandas==3.1.1 scipy==1.17.1 numpy==2.4.6"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import sys

import numpy as np
from deepsig import aso, bonferroni_correction, multi_aso

quick = {"show_progress": False, "num_bootstrap_iterations": 100, "dt": 0.05}
random = np.random.default_rng(1)
a, b = random.normal(0.8, 0.01, 5), random.normal(0.795, 0.01, 5)       # R@1 of five runs each
print("A", *a.round(3), "| B", *b.round(3))
two, plain, clear, sure = (
    multi_aso(np.array(runs), seed=1, use_bonferroni=use, **quick)[0, 1]
    for runs, use in (((a, b), True), ((a, b), False), ((a + 0.1, b), True), ((a + 0.1, b), False)))
print(f"eps_min of A over B by multi_aso: {two:.2f}, without correction {plain:.2f}; if A wins "
      f"every run {clear:.2f} and {sure:.2f}")
told = {}
for models in (3, 5, 10):
    n = models * (models - 1) // 2
    told[models] = (aso(a, b, seed=1, num_comparisons=n, **quick),
                    aso(a, b, seed=1, confidence_level=1 - 0.05 / n, **quick))
    print(f"{models} models, {n} comparisons: {told[models][0]:.2f}, by 1 - 0.05 / {n} "
          f"{told[models][1]:.2f}")
some = np.zeros(2, int)
quick.update(num_bootstrap_iterations=50, dt=0.1)
for experiment in range(10):
    runs = np.random.default_rng(experiment).normal(size=(6, 10))   # six equal models, ten runs
    for i, level in enumerate(({}, {"use_bonferroni": False, "confidence_level": 1 - 0.05 / 15})):
        eps = multi_aso(runs, seed=experiment, **level, **quick)
        some[i] += (eps[~np.eye(6, dtype=bool)] < 0.5).any()
print(f"six equal models: one is better than another in {some[0]} of 10 experiments, by the right "
      f"level in {some[1]}")
corrected = bonferroni_correction(np.array([0.5, 0.9, 0.001]))
print("p-values 0.5, 0.9 and 0.001, corrected:", *corrected.round(3))
random = np.random.default_rng(0)
values = np.array([0.0005, *np.linspace(0.2, 0.9, 9)])
other = np.mean([np.argmin(bonferroni_correction(p)) != np.argmin(p)
                 for p in (random.permutation(values) for _ in range(1000))])
print(f"ten shuffled p-values: the smallest corrected one is another's in {other:.0%} of 1,000")
sys.exit(not (two == 1 and plain < 0.5 and np.isnan(clear) and sure < 0.5
              and told[10][0] < 0.5 < told[10][1] and told[10][0] < told[3][0]
              and some[0] > some[1] and np.argmin(corrected) == 1 and other > 0.8))
END

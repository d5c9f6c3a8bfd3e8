#!/usr/bin/env bash
# permute 0.2: spearman_corr, a permutation test of rank correlation, correlates the orders of the
# rows instead of their ranks.
#
# It takes argsort() for the ranks. The result depends on the order in which the rows happen to
# stand: two models' scores on 200 classes with a Spearman correlation of 0.88 have one between
# -0.05 and 0.08 in five random orders, with p = 0.18 to 0.83, and 0.88 only if the rows are sorted
# by one of the two. Values and themselves have 1 in any order, so a first check looks right.
# Reported: github.com/statlab/permute/issues/191.
# Two more in it:
# Tests within strata lose the sign. stratified_two_sample(stat="mean_within_strata"), documented as
# the sum of the differences of the means, and stratified_permutationtest sum their absolute values:
# a model that is worse on each of 10 data sets is "greater" with p = 0.005, and so is the other
# one; "less" has p = 0.995 both ways round. stat="mean" is right.
# Where the number of conditions should decide, the number of strata does. With two data sets and
# three models the third is never looked at: 3 standard deviations better on both, p = 0.78; with
# four data sets p = 0.005.
# Way out: corr() on scipy.stats.rankdata() of both; stat="mean" or a function of one's own as stat.
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="numpy==2.4.6 scipy==1.17.1 cryptorandom==0.4"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
venv/bin/pip install -q --disable-pip-version-check --no-deps permute==0.2 || exit 2
OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import sys

import numpy as np
from permute.core import corr, spearman_corr
from permute.stratified import stratified_permutationtest, stratified_two_sample
from scipy.stats import rankdata, spearmanr

rng = np.random.default_rng(0)
first = rng.standard_normal(200)
second = first + 0.5 * rng.standard_normal(200)
rho = spearmanr(first, second)[0]
orders = [np.random.default_rng(seed).permutation(200) for seed in range(5)]
told = [spearman_corr(first[o], second[o], reps=199, seed=0)[:2] for o in orders]
ranks = [corr(rankdata(first[o]), rankdata(second[o]), reps=199, seed=0)[:2] for o in orders]
inorder = spearman_corr(*(v[first.argsort()] for v in (first, second)), reps=199, seed=0)[0]
itself = spearman_corr(first, first, reps=199, seed=0)[0]
print(f"Spearman correlation of two models on 200 classes: {rho:.3f} by SciPy; by spearman_corr in "
      f"five orders of the classes {[round(float(r), 3) for r, _ in told]}, p "
      f"{[round(float(p), 3) for _, p in told]}; sorted by the first {inorder:.3f}; of the first "
      f"with itself {itself:.3f}")
print("corr of the ranks:", [round(float(r), 3) for r, _ in ranks], "p",
      [round(float(p), 3) for _, p in ranks])

data_set, model = np.repeat(np.arange(10), 20), np.tile(np.repeat([0, 1], 10), 10)
score = 0.1 * data_set + 0.05 * rng.standard_normal(200) + np.where(model == 0, -0.05, 0.05)
gaps = [score[(data_set == d) & (model == 1)].mean() - score[(data_set == d) & (model == 0)].mean()
        for d in range(10)]
signs = {}
for name, group in (("model 0 first", model), ("model 1 first", 1 - model)):
    for kind in ("greater", "less"):
        signs[name, kind] = [float(stratified_two_sample(
            data_set, group, score, stat=stat, alternative=kind, reps=199, seed=0)[0])
            for stat in ("mean_within_strata", "mean")] + [float(stratified_permutationtest(
                data_set, group, score, alternative=kind, reps=199, seed=0)[0])]
        print(f"{name}, {kind}: p = {signs[name, kind][0]:.3f} within strata, "
              f"{signs[name, kind][1]:.3f} by the mean, stratified_permutationtest "
              f"{signs[name, kind][2]:.3f}")
print(f"model 0 is worse on all data sets, by {min(gaps):.3f} to {max(gaps):.3f}")

three = {}
for sets in (2, 4):
    data_set = np.repeat(np.arange(sets), 120 // sets)
    model = np.tile(np.repeat([0, 1, 2], 40 // sets), sets)
    score = rng.standard_normal(120) + np.where(model == 2, 3, 0)
    three[sets] = float(stratified_permutationtest(data_set, model, score, reps=199, seed=0)[0])
    less = score.copy()
    less[model == 2] -= 3
    print(f"three models on {sets} data sets, the third better by 3 standard deviations: "
          f"p = {three[sets]:.3f}")
    if sets == 2:
        blind = [stratified_permutationtest(data_set, model, s, reps=1, seed=0)[1] for s in
                 (score, less)]
        print("the statistic, and without the difference of the third:", blind)
sys.exit(not (
    rho > 0.85 and all(abs(r) < 0.2 and p > 0.05 for r, p in told) and abs(inorder - rho) < 1e-9
    and itself > 0.999 and all(abs(r - rho) < 1e-9 and p < 0.01 for r, p in ranks)
    and min(gaps) > 0
    and all(signs[name, "greater"][i] < 0.01 and signs[name, "less"][i] > 0.9 for i in (0, 2)
            for name in ("model 0 first", "model 1 first"))
    and signs["model 0 first", "greater"][1] > 0.9 and signs["model 0 first", "less"][1] < 0.01
    and three[2] > 0.2 and three[4] < 0.01 and abs(blind[0] - blind[1]) < 1e-12))
END

#!/usr/bin/env bash
# gap-stat 2.0.2: diff*, from which to read the number of clusters, is above 0 for nearly every
# number, so it says one cluster whatever the data are.
#
# Its docs take the smallest k at which diff, Gap(k) - Gap(k+1) + s(k+1), is positive, and diff* is
# the same for Gap*, the gap without a logarithm. s is a standard deviation of the reference
# dispersions, about their mean. s* is taken about the dispersion of the data instead: it contains
# the gap itself and is a little more than Gap*(k+1), so diff*(k) is at least Gap*(k). Embeddings
# with 3 to 8 well separated classes: diff finds the number in 12 of 12 draws, diff* says 1 in 11
# and 2 in one, and with s* about the mean it finds the number in 12. s* is 34 times too large, in
# the median.
# plot_results() plots diff*, and OptimalK itself takes the largest gap, which is right in 11.
# gap-stat 2.0.3, which has to be compiled and was not run, reads the same.
# Way out: ref_dispersion_std, a column of gap_df, times sqrt(1 + 1 / n_refs) for s*.
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="numpy==2.4.6 scipy==1.17.1 pandas==3.1.1"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
venv/bin/pip install -q --disable-pip-version-check --no-deps --only-binary :all: gap-stat==2.0.2 \
    || exit 2
OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import sys

import numpy as np
from gap_statistic import OptimalK
from scipy.cluster.hierarchy import fcluster, linkage

references = 10


def ward(x, k):
    labels = fcluster(linkage(x, "ward"), k, "maxclust") - 1
    return np.stack([x[labels == i].mean(0) for i in range(labels.max() + 1)]), labels


def smallest(numbers, values):
    found = np.flatnonzero(values[:-1] > 0)
    return int(numbers[found[0]]) if len(found) else None


rows, ratios, bounds = [], [], []
for seed in range(12):
    rng = np.random.default_rng(seed)
    np.random.seed(seed)                        # draws the references
    true = 3 + seed % 6
    centres = 4 * rng.standard_normal((true, 16))
    x = centres[np.arange(120) % true] + rng.standard_normal((120, 16))
    search = OptimalK(clusterer=ward, parallel_backend=None)
    chosen = search(x, n_refs=references, cluster_array=np.arange(1, 11))
    table = search.gap_df
    gap, star = table["gap_value"].to_numpy(), table["gap*"].to_numpy()
    s = table["ref_dispersion_std"].to_numpy() * (1 + 1 / references) ** 0.5
    paper = np.append(star[:-1] - star[1:] + s[1:], np.nan)
    numbers = table["n_clusters"].to_numpy()
    rows.append((true, chosen, smallest(numbers, table["diff"].to_numpy()),
                 smallest(numbers, table["diff*"].to_numpy()), smallest(numbers, paper)))
    ratios.append(table["sk*"].to_numpy() / s)
    bounds.append((table["diff*"].to_numpy()[:-1] >= star[:-1] - 1e-6).all())
rows, ratios = np.array(rows, dtype=float), np.array(ratios)
for name, column in (("the largest gap", 1), ("diff", 2), ("diff*", 3),
                     ("diff* with s* about the mean", 4)):
    print(f"{name}: {rows[:, column].astype(int).tolist()}, right in "
          f"{(rows[:, column] == rows[:, 0]).sum()} of {len(rows)}")
print("classes:", rows[:, 0].astype(int).tolist())
print(f"s* is {np.median(ratios):.0f} times the standard deviation about the mean, in the median")
right = (rows[:, 1:] == rows[:, :1]).sum(0)
sys.exit(not ((rows[:, 3] == 1).sum() == 11 and rows[:, 3].max() == 2 and right[1] == right[3] == 12
              and right[0] == 11 and all(bounds) and np.median(ratios) > 20))
END

#!/usr/bin/env bash
# s-dbw 0.4.0: the number of clusters that S_Dbw(method="Halkidi") finds depends on the unit of the
# embeddings, and metric= does not change the distance.
#
# The index of Halkidi and Vazirgiannis counts the points within a radius between two clusters; the
# radius comes from the variances of the clusters, by a square root. s_dbw puts standard deviations
# in their place and takes the root all the same, so the radius is the root of a length: for
# clusters a hundred times as wide it is ten times as long. Of six clusters in a plane, each of
# width 1, it finds six in 9 of 10 draws (among 2 to 10 clusters, the lowest score is the best).
# With the same points times 10 it finds six in 1, times 100 and times 0.001 in none, but nearly
# always ten, the most that were tried. By the paper's formula it is 9 of 10 whatever the unit. The
# score of the six clusters is 0.041 or, times 0.001, 0.442; by the formula 0.002. Its first term,
# Scat, has the standard deviations as well: 0.041 instead of 0.002.
# metric= only chooses which point stands for the centre of a cluster. With nearest_centr=False the
# score is the same to the last bit for cosine, cityblock and euclidean, with each of the methods.
# Cause, by reading s_dbw.py: np.std in Dens_bw and Scat; calc_density has np.linalg.norm.
# Way out: the formula, as below; for cosine distances normalize first.
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="s-dbw==0.4.0 scipy==1.17.1 numpy==2.4.6"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import sys

import numpy as np
from s_dbw import S_Dbw
from s_dbw.s_dbw import Scat
from scipy.cluster.hierarchy import fcluster, linkage

clusters, tried = 6, range(2, 11)


def formula(x, labels):                         # S_Dbw and its first term
    parts = [x[labels == label] for label in np.unique(labels)]
    c = len(parts)
    centres = [p[((p - p.mean(0)) ** 2).sum(1).argmin()] for p in parts]
    spread = [np.linalg.norm(p.var(0)) for p in parts]
    radius = np.sqrt(sum(spread)) / c

    def count(centre, *parts):
        return sum((np.linalg.norm(p - centre, axis=1) <= radius).sum() for p in parts)

    own = [count(*pair) for pair in zip(centres, parts)]
    between = sum(count((centres[i] + centres[j]) / 2, parts[i], parts[j]) / max(own[i], own[j])
                  for i in range(c) for j in range(c) if i != j)
    scat = np.mean(spread) / np.linalg.norm(x.var(0))
    return scat + between / (c * (c - 1)), scat


def library(x, labels):
    return S_Dbw(x, labels, method="Halkidi")


def best(score, x, partitions):
    return tried[int(np.argmin([score(x, labels) for labels in partitions]))]


scales = 0.001, 1, 10, 100
found = {(name, scale): [] for name in ("s_dbw", "the formula") for scale in scales}
for seed in range(10):
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(clusters), 40)
    x = random.uniform(-40, 40, (clusters, 2))[labels] + random.standard_normal((len(labels), 2))
    tree = linkage(x, "ward")
    partitions = [fcluster(tree, c, "maxclust") for c in tried]
    for scale in scales:
        found["s_dbw", scale].append(best(library, x * scale, partitions))
        found["the formula", scale].append(
            best(lambda *pair: formula(*pair)[0], x * scale, partitions))
for (name, scale), numbers in found.items():
    print(f"{name}, points times {scale}: clusters found {numbers}")
scores = {scale: (library(x * scale, labels), formula(x * scale, labels)[0]) for scale in scales}
for scale, pair in scores.items():
    print("S_Dbw of the {} clusters, points times {}: {:.3f}, by the formula {:.3f}".format(
        clusters, scale, *pair))
scat = Scat(x, np.arange(clusters), labels, "Halkidi"), formula(x, labels)[1]
print("Scat {:.4f}, by the formula {:.4f}".format(*scat))
metrics = {method: [S_Dbw(x, labels, method=method, nearest_centr=False, metric=metric)
                    for metric in ("euclidean", "cosine", "cityblock")]
           for method in ("Halkidi", "Kim", "Tong")}
for method, values in metrics.items():
    print(f"{method}, nearest_centr=False: euclidean, cosine, cityblock:", *values)
right = {key: numbers.count(clusters) for key, numbers in found.items()}
sys.exit(not (right["s_dbw", 1] >= 7 and right["s_dbw", 10] <= 3
              and right["s_dbw", 100] == right["s_dbw", 0.001] == 0
              and all(found["the formula", s] == found["the formula", 1] for s in scales)
              and right["the formula", 1] >= 7
              and max(np.ptp(v) for v in metrics.values()) == 0
              and scores[0.001][0] > 5 * scores[1][0]
              and np.ptp([pair[1] for pair in scores.values()]) < 1e-9 and scat[0] > 3 * scat[1]))
END

#!/usr/bin/env bash
# permetrics 2.1.0: the silhouette of classes that have become points is 0, DBCV prefers clusters
# that cut through the data and takes noise for a cluster, and the Dunn index depends on numbering.
#
# silhouette_index comes nearer to 1, its best, the tighter the clusters are: 0.883 for a width of
# 0.1, 0.999 for 0.001. But items whose mean distance to their own cluster is 0 get 0, which is
# meant for clusters of one item: classes that have become points score 0, by scikit-learn 1.
# density_based_clustering_validation_index, by its source that of Moulavi and others (2014), takes
# the sum of d^D instead of (1/d)^D for the core distances, so the farthest points of a cluster
# count in place of the nearest. Two half moons score -0.27, the left and right half of the picture,
# which cut through both, 0.16. By the paper's formula it is 0.29 and -0.50. Its source leaves out
# the label -1 as noise, but before that all labels are numbered anew from 0: moons with 10% noise,
# labelled -1, score -0.26, the same as with the noise as a third cluster; by the formula 0.26.
# dunn_index(use_modified=True), the default, measures from the centre of the cluster with the lower
# number to the points of the other, never back: the same two clusters, numbered the other way
# round, have 1.29 and 1.06, with use_modified=False 0.96 and 0.96.
# Cause, by reading cluster_util.py: s_chunk[a_chunk == 0.0] = 0.0; D_cluster ** d; centers[k0]; and
# format_internal_clustering_data in data_util.py.
# Way out: scikit-learn's silhouette_score; the formula below; use_modified=False.
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="permetrics==2.1.0 scikit-learn==1.9.1 scipy==1.17.1 numpy==2.4.6"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import sys

import numpy as np
from permetrics import ClusteringMetric
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial.distance import cdist
from sklearn.metrics import silhouette_score

random = np.random.default_rng(0)
library = ClusteringMetric()


def formula(x, labels):                         # Moulavi, Jaskowiak, Campello and others, 2014
    names = [name for name in np.unique(labels) if name != -1]
    core = np.zeros(len(x))
    for name in names:
        rows = np.flatnonzero(labels == name)
        d = cdist(x[rows], x[rows])
        np.fill_diagonal(d, np.inf)
        core[rows] = ((d ** -x.shape[1]).sum(1) / (len(rows) - 1)) ** (-1 / x.shape[1])
    reach = np.maximum(cdist(x, x), np.maximum(core[:, None], core))
    inner, sparse = [], []
    for name in names:
        rows = np.flatnonzero(labels == name)
        tree = minimum_spanning_tree(reach[np.ix_(rows, rows)]).toarray()
        tree += tree.T
        inside = (tree > 0).sum(0) > 1
        inner.append(rows[inside])
        sparse.append(tree[np.ix_(inside, inside)].max())
    total = 0
    for i, name in enumerate(names):
        apart = min(reach[np.ix_(inner[i], inner[j])].min() for j in range(len(names)) if j != i)
        total += (labels == name).mean() * (apart - sparse[i]) / max(apart, sparse[i])
    return total


def dbcv(x, labels):
    return library.density_based_clustering_validation_index(X=x, y_pred=labels)


classes = np.repeat(np.arange(5), 20)
centres = random.standard_normal((5, 16))[classes]
silhouettes = {}
for width in (0.1, 0.001, 0):
    x = centres + width * random.standard_normal(centres.shape)
    silhouettes[width] = library.silhouette_index(X=x, y_pred=classes), silhouette_score(x, classes)
    print("five classes of width {}: silhouette {:.3f}, scikit-learn {:.3f}".format(
        width, *silhouettes[width]))

moon = np.repeat([0, 1], 100)
angle = np.tile(np.linspace(0, np.pi, 100), 2)
x = np.stack([np.where(moon, 1 - np.cos(angle), np.cos(angle)),
              np.where(moon, 0.5 - np.sin(angle), np.sin(angle))], 1)
x += 0.03 * random.standard_normal(x.shape)
halves = (x[:, 0] > 0.5).astype(int)
scores = {name: (dbcv(x, labels), formula(x, labels))
          for name, labels in (("the moons", moon), ("left and right half", halves))}
noisy = np.concatenate([x, random.uniform((-1.2, -0.8), (2.2, 1.3), (20, 2))])
labels = np.concatenate([moon, np.full(20, -1)])
scores["the moons, noise labelled -1"] = dbcv(noisy, labels), formula(noisy, labels)
scores["the moons, noise labelled 2"] = (dbcv(noisy, labels % 3), formula(noisy, labels % 3))
for name, pair in scores.items():
    print("DBCV of {}: {:.3f}, by the paper's formula {:.3f}".format(name, *pair))

wide = np.concatenate([random.standard_normal((50, 2)), 5 + 0.2 * random.standard_normal((50, 2))])
number = np.repeat([0, 1], 50)
dunn = {modified: [library.dunn_index(X=wide, y_pred=y, use_modified=modified)
                   for y in (number, 1 - number)] for modified in (True, False)}
for modified, pair in dunn.items():
    print("Dunn index, use_modified={}: {:.3f}, numbered the other way round {:.3f}".format(
        modified, *pair))
moons, cut = scores["the moons"], scores["left and right half"]
noise, third = (scores[f"the moons, noise labelled {i}"] for i in (-1, 2))
sys.exit(not (silhouettes[0][0] == 0 and silhouettes[0][1] > 0.999
              and all(np.allclose(*silhouettes[width]) for width in (0.1, 0.001))
              and moons[0] < cut[0] and moons[1] > cut[1] + 0.3
              and np.isclose(noise[0], third[0]) and abs(noise[0] - noise[1]) > 0.3
              and silhouettes[0.1][0] < 0.9 < 0.998 < silhouettes[0.001][0]
              and dunn[False][0] == dunn[False][1]
              and max(dunn[True]) > 1.2 * min(dunn[True])))
END

#!/usr/bin/env bash
# permetrics 2.1.0: homogeneity, completeness and V-measure leave out clusters or classes unless
# there are as many of both, and the entropy of clusters is no mean.
#
# homogeneity_score looks only at as many clusters as there are classes: of 100 clusters and 10
# classes it takes the first 10 and counts all others as pure. So it rises with the number of
# clusters and says little of them: 100 clusters of k-means have 0.94 (right is 0.57), 100 random
# ones 0.91 (0.23), and numbered by size the 100 of k-means have another score. completeness_score
# does the same to classes: 2 clusters have 0.90 (0.41). By the V-measure of both 20 clusters are
# better than the 10 there are, 0.480 to 0.454, where the right one has 0.399 and 0.454. Only with
# as many clusters as classes all three agree with scikit-learn.
# entropy_score is meant as a mean over the clusters, weighted by size; it is their plain sum. So 2
# clusters of 10 classes have the best one (5.8, right is 2.9) and 100 the worst (137, right is
# 1.4), where less is better.
# Cause, by reading cluster_util.py: compute_conditional_entropy runs over the values of y_true and
# compares them with y_pred; probs[probs > 0] makes the table flat before its sum.
# Way out: scikit-learn's scores of these names, and scipy.stats.entropy. (The normalized mutual
# information and the adjusted Rand index were right in all that was tried.)
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
from sklearn import metrics
from sklearn.cluster import KMeans

random = np.random.default_rng(0)
labels = random.integers(10, size=1000)
x = random.standard_normal((10, 8))[labels] + 1.2 * random.standard_normal((1000, 8))


def entropy(labels, clusters):
    """The mean over all clusters, weighted by size, of the entropy of their classes in bits."""
    table = metrics.cluster.contingency_matrix(clusters, labels).astype(float)
    size = table.sum(1, keepdims=True)
    share = table / size
    return -(size / size.sum() * share * np.log2(np.where(share > 0, share, 1))).sum()


def scores(name, clusters):
    told = ClusteringMetric(labels, clusters)
    row = [told.homogeneity_score(), metrics.homogeneity_score(labels, clusters),
           told.completeness_score(), metrics.completeness_score(labels, clusters),
           told.v_measure_score(), metrics.v_measure_score(labels, clusters),
           told.entropy_score(), entropy(labels, clusters)]
    print("{}: homogeneity {:.2f} (right is {:.2f}), completeness {:.2f} ({:.2f}), V-measure "
          "{:.3f} ({:.3f}), entropy {:.1f} ({:.1f})".format(name, *row))
    return row


told = {k: scores(f"k-means, {k} clusters", KMeans(k, n_init=3, random_state=0).fit_predict(x))
        for k in (2, 10, 20, 100)}
clusters = KMeans(100, n_init=3, random_state=0).fit_predict(x)
numbers = np.argsort(np.argsort(-np.bincount(clusters)))
renamed = scores("the same 100, the largest first", numbers[clusters])
noise = scores("random, 100 clusters", random.integers(100, size=1000))
same = max(abs(a - b) for a, b in zip(told[10][:6:2], told[10][1:6:2]))
sys.exit(not (same < 1e-6 and told[100][0] - told[100][1] > 0.2 and noise[0] > 0.8 > noise[1] + 0.5
              and told[2][2] - told[2][3] > 0.3 and told[20][4] > told[10][4]
              and told[20][5] < told[10][5] and abs(renamed[0] - told[100][0]) > 0.01
              and abs(renamed[1] - told[100][1]) < 1e-6 and told[2][6] < told[100][6]
              and told[2][7] > told[100][7]))
END

#!/usr/bin/env bash
# clusteval 2.2.7: three of its ways to find the number of clusters find another one.
#
# evaluate="dbindex" is no Davies-Bouldin index. It takes the worst pair of clusters and divides by
# the number of clusters, so more clusters nearly always look better: for all of 6 sets of 5
# clusters it chooses 30, the most it tries (adjusted Rand index 0.27). scikit-learn's index
# chooses 5 for 5 of the 6 sets on the same dendrograms (0.86 in the mean).
# evaluate="silhouette" ignores metric=: embeddings of different lengths are clustered by cosine
# distance, but the number of clusters is chosen by Euclidean silhouettes. Of 12 clusters that
# cosine distance separates it finds 2 (0.04), by the cosine silhouette all 12 (1.00).
# evaluate="derivative" asks for at least 4 clusters: of two clear ones it makes 3 to 19, of three
# 4 to 16, of five 5.
# Two more: max_clust is "smaller or equals", but with max_clust=10 at most 9 clusters are tried.
# And the labels of k-means begin at -1, which for DBSCAN is noise, also in clusteval's own plots.
# Cause, by reading dbindex.py, silhouette.py and derivative.py: np.max(db) / len(n_cluster), where
# the index is the mean over clusters of each one's maximum; silhouette_score(X, labx) without
# metric; the first min_clust entries are set to 0 before argmax() + 2; clustlabx - 1 for all.
# Way out: scikit-learn's scores over scipy's fcluster; for cosine, embeddings of length 1.
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="clusteval==2.2.7 scikit-learn==1.9.1 pandas==3.1.1 scipy==1.17.1 numpy==2.4.6"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
OMP_NUM_THREADS=1 TQDM_DISABLE=1 venv/bin/python -W ignore - <<'END'
import sys

import numpy as np
from clusteval import clusteval
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.metrics import adjusted_rand_score, davies_bouldin_score, silhouette_score


def blobs(seed, k, distance, n=400, width=8):
    random = np.random.default_rng(seed)
    labels = random.integers(k, size=n)
    centres = distance * random.standard_normal((k, width))
    return centres[labels] + random.standard_normal((n, width)), labels, random


def ask(x, labels, **settings):
    found = clusteval(verbose="silent", **settings).fit(x)["labx"]
    return len(np.unique(found)), adjusted_rand_score(labels, found), found


def best(tree, score, most):
    cuts = [fcluster(tree, k, "maxclust") for k in range(2, most)]
    return max(cuts, key=score)


told, right, rand = [], [], []
for seed in range(6):
    x, labels, _ = blobs(seed, 5, 3)
    k, index, _ = ask(x, labels, evaluate="dbindex", max_clust=31)
    plain = best(linkage(x, "ward"), lambda cut: -davies_bouldin_score(x, cut), 31)
    told.append(k)
    right.append(len(np.unique(plain)))
    rand.append((index, adjusted_rand_score(labels, plain)))
db = np.mean(rand, axis=0)
print(f"dbindex, six sets of 5 clusters: {told}, adjusted Rand index {db[0]:.2f}; scikit-learn's "
      f"Davies-Bouldin {right}, {db[1]:.2f}")
x, labels, random = blobs(0, 12, 2.5, width=32)
x *= np.exp(random.normal(0, 1.5, (400, 1))) / np.linalg.norm(x, axis=1, keepdims=True)
k, index, _ = ask(x, labels, evaluate="silhouette", metric="cosine", linkage="average")
plain = best(linkage(x, "average", "cosine"), lambda cut: silhouette_score(x, cut, metric="cosine"),
             25)
cosine = index, adjusted_rand_score(labels, plain)
print(f"silhouette, cosine, 12 clusters: {k}, adjusted Rand index {index:.2f}; by the cosine "
      f"silhouette {len(np.unique(plain))}, {cosine[1]:.2f}")
elbow = {}
for clusters in (2, 3, 5):
    elbow[clusters] = [ask(*blobs(seed, clusters, 16)[:2], evaluate="derivative")[0]
                       for seed in range(10)]
    print(f"derivative, ten sets of {clusters} clear clusters: {elbow[clusters]}")
x, labels, _ = blobs(1, 10, 8)
most = {most: ask(x, labels, evaluate="silhouette", max_clust=most)[0] for most in (10, 11)}
print(f"10 clear clusters: {most[10]} found with max_clust=10, {most[11]} with max_clust=11")
first = ask(x, labels, cluster="kmeans", evaluate="silhouette", max_clust=12)[2].min()
print("the first label of k-means is", first)
sys.exit(not (min(told) > 20 and db[0] < 0.5 < db[1] and cosine[0] < 0.5 and cosine[1] > 0.95
              and min(elbow[3]) > 3 and min(elbow[2]) > 2 and set(elbow[5]) == {5}
              and most == {10: 9, 11: 10} and first == -1))
END

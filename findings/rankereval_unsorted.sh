#!/usr/bin/env bash
# rankereval 0.2.0 finds an item only if its list ascends: of positives in another order a part
# counts as irrelevant, of junk items in another order a part stays in the ranking.
#
# Both lists are searched by bisection without being sorted. 200 queries with 10 positives each
# among 1,000 items, ranked perfectly, have a Recall@10 and an AP@10 of 1 if the positives ascend,
# and of 0.37 and 0.21 in a random order. invalid_items, to leave out the query itself and images of
# the same camera, leaves in 69% of 10 such items if they are in a random order.
# Three more in it:
# relevance_scaling="power" is documented as 2^rel - 1 and computes rel^2 - 1: an irrelevant item
# has a gain of -1, one of relevance 1 a gain of 0. With relevance 0 and 1 the best ranking has an
# nDCG of 1 and the worst one of 1.18.
# Rankings.from_scores() adds a number to the caller's array: of similarities from -1 to 1 28% are
# above 0.5 before it and all after it.
# Scores are shifted so that the lowest is 1, in their own precision, a list in float32: if the
# query itself is left out by a score of -1e9 in float32 or in a list, all other items are tied. R@1
# falls from 100% to 1%, as by chance; with -inf, or in float64, it is 100%.
# Way out: sorted lists; NDCG by identity on labels of 2^rel - 1; from_ranked_indices(), or
# from_scores(scores.copy()) with -inf.
#
# It needs a NumPy before 2.
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="numpy==1.26.4 scipy==1.15.3 numba==0.68.1 llvmlite==0.50.0 rankereval==0.2.0"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import sys

import numpy as np
from rankereval import AP, NDCG, BinaryLabels, NumericLabels, Rankings, Recall

rng = np.random.default_rng(0)
n, gallery, k = 200, 1000, 10
positives = np.array([rng.choice(gallery, k, replace=False) for _ in range(n)])
ranked = Rankings.from_ranked_indices(rng.permuted(positives, axis=1).tolist())
ascending, shuffled = ({name: metric(k).mean(BinaryLabels.from_positive_indices(rows), ranked)
                        for name, metric in (("Recall@10", Recall), ("AP@10", AP))}
                       for rows in (np.sort(positives).tolist(), positives.tolist()))
print("a perfect ranking, positives ascending:", ascending, "in a random order:", shuffled)

everything = [rng.permutation(gallery).tolist() for _ in range(n)]
left = []
for junk in (np.sort(positives), positives):
    kept = Rankings.from_ranked_indices(everything, invalid_items=junk.tolist()).to_list()
    left.append(np.mean([np.isin(j, row).mean() for j, row in zip(junk, kept)]))
print(f"junk items still in the ranking: ascending {left[0]:.1%}, in a random order {left[1]:.1%}")

relevance = np.zeros((1, 100))
relevance[0, :k] = 1
labels = NumericLabels.from_matrix(relevance)
orders = Rankings.from_ranked_indices([list(range(100))]), Rankings.from_ranked_indices(
    [list(range(99, -1, -1))])
powers, plain = ([NDCG(100, relevance_scaling=scaling, log_base="2").mean(labels, order)
                  for order in orders] for scaling in ("power", "identity"))
print(f"nDCG with gains 0 and 1, best and worst ranking: power {powers}, identity {plain}")
graded = NumericLabels.from_matrix([[3, 2, 1, 0]])
first = [NDCG(1, relevance_scaling="power", log_base="2")._dcg(
    graded, graded.get_labels_for(Rankings.from_ranked_indices([[i]]), 1))[0] for i in range(4)]
print("gains of relevance 3, 2, 1 and 0:", first, "by the documentation: 7, 3, 1 and 0")

similarity = rng.uniform(-1, 1, (20, 50))
before = (similarity > 0.5).mean()
Rankings.from_scores(similarity)
after = (similarity > 0.5).mean()
print(f"pairs above 0.5: {before:.0%} before from_scores, {after:.0%} after it")

classes = np.repeat(np.arange(n // 2), 2)                     # two images of each class
images = rng.standard_normal((n // 2, 32))[classes] + 0.1 * rng.standard_normal((n, 32))
images /= np.linalg.norm(images, axis=1, keepdims=True)
cosine, right = images @ images.T, {}
for mask in (-1e9, -np.inf):
    np.fill_diagonal(cosine, mask)                              # leaves the query itself out
    for name, scores in (("float64", cosine.copy()), ("float32", cosine.astype("float32")),
                         ("a list", cosine.tolist())):
        best = [row[0] for row in Rankings.from_scores(scores).to_list()]
        right[mask, name] = (classes[best] == classes).mean()
    plain_best = (classes[cosine.astype("float32").argmax(1)] == classes).mean()
    print(f"R@1, {mask} for the query itself:", {name: f"{right[mask, name]:.0%}" for name in (
        "float64", "float32", "a list")}, f"by argmax in float32 {plain_best:.0%}")
    right[mask, "argmax"] = plain_best
sys.exit(not (
    all(ascending[m] == 1 and shuffled[m] < 0.5 for m in ascending)
    and left[0] == 0 and left[1] > 0.4
    and abs(powers[0] - 1) < 1e-9 and powers[1] > 1.1 and plain[1] < 1 and first == [8, 3, 0, -1]
    and before < 0.4 and after == 1
    and all(right[key] == 1 for key in right if key[0] == -np.inf or key[1] in (
        "float64", "argmax"))
    and right[-1e9, "float32"] < 0.05 and right[-1e9, "a list"] < 0.05))
END

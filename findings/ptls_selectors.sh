#!/usr/bin/env bash
# pytorch-lifestream 0.7.0: its selectors of pairs and triplets call images of one class negatives.
#
# Batches of 8 classes with 4 images each. "Of the anchor's own class" is counted below.
# HardTripletSelector(neg_count=k) is to give each pair its k hardest negatives. It repeats the
# pairs as a whole, but lists the negatives pair by pair, so with k > 1 most triplets have the
# negative of another pair: with k = 2 13% and with k = 5 12% are of the anchor's own class, and
# only 13% and 25% are among the anchor's k hardest. With k = 1 all are right.
# HardNegativePairSelector, HardTripletSelector and SemiHardTripletSelector take sqrt(2n) + 1, with
# n the batch size, for a bound of all distances. It is one for normalized embeddings only. Of 128
# dimensions after a layer norm every negative is of the own class, 20% to 23% are the image itself,
# though images of other classes are 13 to 18 away and those of the own class 5 to 9.
# DistanceWeightedPairSelector, from 32 dimensions on, draws among all images of the batch alike,
# because the distance of an image to itself has all the weight before it is masked: in 128
# dimensions 13% of the negatives are of the own class, 3% are the anchor itself; in 16 0.1% are.
# metric_recall_top_K, "R@K", is precision@K: with two images per class that find each other first,
# R@1, R@2 and R@10 are 1.0, 0.5 and 0.1, by recall all 1.0.
# neg_count of SemiHardTripletSelector and RandomNegativeTripletSelector does nothing.
# Way out: neg_count=1, normalized embeddings, DistanceWeightedPairSelector(normalize=True), or
# the miners of pytorch-metric-learning.
#
# Only the modules of the selectors and of the metric are imported, the packages around them, which
# import Lightning and more, are not; torchmetrics is replaced by an empty module.
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="torch==2.14.1 torchvision==0.29.1 numpy==2.4.6"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
if "${PYTHON:-python3}" - > lent 2> /dev/null <<'END'
from importlib.metadata import distribution, version
assert version("torch").split("+")[0] == "2.14.1"
assert version("torchvision").split("+")[0] == "0.29.1"
print(distribution("torch").locate_file(""))
END
then
    cp lent "$(echo venv/lib/python3*/site-packages)/lent.pth"
else
    echo "Python has not both torch 2.14.1 and torchvision 0.29.1: installing 5.6 GB" >&2
fi
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
venv/bin/pip install -q --disable-pip-version-check --no-deps pytorch-lifestream==0.7.0 || exit 2
OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import sys
from importlib.util import find_spec
from types import ModuleType

root = find_spec("ptls").submodule_search_locations[0]
for name in ("ptls", "ptls.frames", "ptls.frames.coles"):      # leave their __init__ out
    module = sys.modules[name] = ModuleType(name)
    module.__path__ = [root + name[4:].replace(".", "/")]
sys.modules["torchmetrics"] = ModuleType("torchmetrics")
sys.modules["torchmetrics"].MeanMetric = object
import numpy
import torch
from torch.nn.functional import layer_norm, normalize
from ptls.frames.coles import sampling_strategies as selectors
from ptls.frames.coles.metric import metric_recall_top_K

y = torch.arange(8).repeat_interleave(4)
same = y[:, None] == y


def batch(size, seed, noise=0.5):
    torch.manual_seed(seed)
    numpy.random.seed(seed)
    return torch.randn(8, size)[y] + noise * torch.randn(32, size)


def negatives(selector, x):
    if hasattr(selector, "get_pairs"):
        pairs = selector.get_pairs(x, y)[1]
    else:
        pairs = selector.get_triplets(x, y)[:, [0, 2]]
    return pairs.T


def own(selector, batches):                     # shares of the anchor's class, of the anchor
    pairs = torch.cat([negatives(selector, x) for x in batches], 1)
    return (y[pairs[0]] == y[pairs[1]]).float().mean().item(), (
        pairs[0] == pairs[1]).float().mean().item()


def hardest(selector, k, batches):              # share of the anchor's k nearest of other classes
    told = []
    for x in batches:
        distance = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
        nearest = distance.masked_fill(same, torch.inf).topk(k, largest=False).indices
        a, n = negatives(selector, x)
        told.append((nearest[a] == n[:, None]).any(1))
    return torch.cat(told).float().mean().item()


unit = [normalize(batch(64, seed)) for seed in range(20)]
triplets = {k: (own(selectors.HardTripletSelector(k), unit)[0],
                hardest(selectors.HardTripletSelector(k), k, unit)) for k in (1, 2, 5)}
for k, (share, right) in triplets.items():
    print(f"HardTripletSelector({k}), normalized: {share:.1%} of the negatives are of the anchor's "
          f"own class, {right:.1%} are among its {k} hardest")
long = [layer_norm(batch(128, seed), (128,)) for seed in range(20)]
d = torch.stack([torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist") for x in long])
inside, outside = d[:, same & ~torch.eye(32).bool()], d[:, ~same]
print(f"after a layer norm: distances in a class {inside.min():.1f} to {inside.max():.1f}, to "
      f"other classes {outside.min():.1f} to {outside.max():.1f}")
bound = {}
for name in ("HardNegativePairSelector", "HardTripletSelector", "SemiHardTripletSelector"):
    selector = getattr(selectors, name)()
    bound[name] = own(selector, long), own(selector, [normalize(x) for x in long])
    print(f"{name}: of the own class {bound[name][0][0]:.1%} (the anchor itself "
          f"{bound[name][0][1]:.1%}), of the same embeddings normalized {bound[name][1][0]:.1%}")

weighted = {}
for size in (16, 32, 128, 512):
    x = [normalize(batch(size, seed)) for seed in range(20)]
    weighted[size] = (*own(selectors.DistanceWeightedPairSelector(4), x),
                      own(selectors.DistanceWeightedPairSelector(4, normalize=True), x)[0])
    print(f"DistanceWeightedPairSelector, {size} dimensions: of the own class "
          f"{weighted[size][0]:.1%}, the anchor itself {weighted[size][1]:.1%}; with "
          f"normalize=True {weighted[size][2]:.1%}")
pairs = torch.arange(50).repeat_interleave(2)
x = torch.eye(50)[pairs] + 0.01 * torch.randn(100, 50)
recall = {k: metric_recall_top_K(x, pairs, k) for k in (1, 2, 10)}
print("two images per class, nearest to each other, R@K:", {k: float(v) for k, v in recall.items()})
one = {name: [len(getattr(selectors, name)(k).get_triplets(unit[0], y)) for k in (1, 5)]
       for name in ("SemiHardTripletSelector", "RandomNegativeTripletSelector")}
print("triplets with neg_count 1 and 5:", one)
sys.exit(not (triplets[1] == (0, 1) and all(triplets[k][0] > 0.1 and triplets[k][1] < 0.5
                                            for k in (2, 5))
              and outside.min() > inside.max()
              and all(a[0] == 1 and b[0] == 0 for a, b in bound.values())
              and weighted[16][0] < 0.01
              and all(weighted[size][0] > 0.08 and weighted[size][1] > 0.01
                      and weighted[size][2] < 0.01 for size in (32, 128, 512))
              and [round(float(recall[k]), 3) for k in (1, 2, 10)] == [1, 0.5, 0.1]
              and all(a == b for a, b in one.values())))
END

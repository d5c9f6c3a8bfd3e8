#!/usr/bin/env bash
# torch_kmeans 0.2.0, distance=CosineSimilarity: it clusters by dot products, so lengths decide.
#
# The class sets normalize_embeddings=True, but its pairwise_distance, the only method that KMeans
# calls, does not normalize. A cosine does not change if vectors are multiplied; here points go
# to the longest centre: of ten classes that are told apart perfectly as unit vectors, two lose
# their cluster if the classes have lengths of 1 to 6, and labels equal those of
# DotProductSimilarity. normalize="mean" and "minmax", moreover, change the caller's own tensor.
# Way out: normalize x first (normalize="unit") and keep the default distance.
#
# torch is taken from $PYTHON if it has the version below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="torch-kmeans==0.2.0 torch==2.14.1 numpy==2.4.6"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
if "${PYTHON:-python3}" - > lent 2> /dev/null <<'END'
from importlib.metadata import distribution, version
assert version("torch").split("+")[0] == "2.14.1"
print(distribution("torch").locate_file(""))
END
then
    cp lent "$(echo venv/lib/python3*/site-packages)/lent.pth"
else
    echo "Python has no torch 2.14.1: installing 5.6 GB" >&2
fi
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
venv/bin/python -W ignore - <<'END'
import sys

import torch
from torch_kmeans import KMeans
from torch_kmeans.utils.distances import CosineSimilarity, DotProductSimilarity, LpDistance

torch.manual_seed(0)
classes, each = 10, 30
label = torch.arange(classes).repeat_interleave(each)
features = (torch.randn(classes, 64).relu()[label] + 0.2 * torch.randn(len(label), 64)).relu()
unit = torch.nn.functional.normalize(features, dim=1)
longer = unit * torch.linspace(1, 6, classes)[label][:, None]


def cluster(x, distance):
    """Started with the first point of each class, so that right labels are the classes"""
    kmeans = KMeans(n_clusters=classes, num_init=1, distance=distance, verbose=False)
    return kmeans(x[None].clone(), centers=x[None, ::each].clone()).labels[0]


apart = CosineSimilarity().pairwise_distance(torch.tensor([[3., 0]]), torch.tensor([[5., 0]]))
print("CosineSimilarity of (3, 0) and (5, 0):", apart.item())
right, found = {}, {}
for name, x in (("unit vectors", unit), ("lengths from 1 to 6", longer)):
    for distance in (CosineSimilarity, DotProductSimilarity, LpDistance):
        key = name, distance.__name__
        found[key] = cluster(x, distance)
        right[key] = (found[key] == label).float().mean().item()
        print(f"{name}, {distance.__name__}: {len(found[key].unique())} of {classes} clusters have "
              f"points, {right[key]:.1%} of the points are in their own")
same = (found["lengths from 1 to 6", "CosineSimilarity"]
        == found["lengths from 1 to 6", "DotProductSimilarity"]).all().item()
print("with lengths, labels by CosineSimilarity are those by DotProductSimilarity:", same)
changed = {}
for normalize in ("mean", "minmax", "unit"):
    mine = longer[None].clone()
    KMeans(n_clusters=classes, normalize=normalize, verbose=False)(mine)
    changed[normalize] = not torch.equal(mine[0], longer)
print("the caller's tensor is changed by normalize =", changed)
sys.exit(not (apart.item() == 15 and same and right["unit vectors", "CosineSimilarity"] == 1
              and right["lengths from 1 to 6", "CosineSimilarity"] < 0.9
              and right["unit vectors", "LpDistance"] == 1
              and changed == {"mean": True, "minmax": True, "unit": False}))
END

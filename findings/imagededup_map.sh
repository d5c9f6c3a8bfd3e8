#!/usr/bin/env bash
# imagededup 0.3.3.post2: the MAP of its CNN method depends on the order of the files, and NDCG is 1
# although nearly all duplicates are missed.
#
# evaluate() takes a list of duplicates for a ranking. CNN.find_duplicates lists them in the order
# of the files, which of a folder is the file system's, and not by similarity (the hashes do), so
# the same encodings have another MAP in another order. And NDCG divides by the best order of what
# was found, not of what there is to find: one hit and six misses score 1, and a high threshold
# looks good. Way out: scores=True, sort by the score, and compute NDCG elsewhere.
#
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="imagededup==0.3.3.post2 torch==2.14.1 torchvision==0.29.1 numpy==2.4.6"
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
venv/bin/python -W ignore - <<'END'
import logging
import sys

logging.disable(logging.CRITICAL)
import numpy as np
import torch
from imagededup.evaluation import evaluate
from imagededup.methods import CNN
from imagededup.utils import CustomModel

rng = np.random.default_rng(0)
group = np.arange(100) // 5
encodings = rng.standard_normal((20, 64))[group] + 1.3 * rng.standard_normal((100, 64))
files = [f"{i:03}.jpg" for i in range(100)]
truth = {files[i]: [files[j] for j in np.flatnonzero(group == group[i]) if j != i]
         for i in range(100)}
# a network of one's own, so that none is downloaded; it is never called, since encodings are given
cnn = CNN(verbose=False, model_config=CustomModel(
    name="none", model=torch.nn.Identity(), transform=lambda image: image))


def find(order, scores=False):
    return cnn.find_duplicates(encoding_map={files[i]: encodings[i] for i in order}, scores=scores,
                               min_similarity_threshold=0.0, num_sim_workers=0)


def score(name, retrieved):
    found = {metric: float(evaluate(truth, retrieved, metric)[metric])
             for metric in ("map", "ndcg")}
    print(f"{name}: MAP {found['map']:.3f}, NDCG {found['ndcg']:.3f}")
    return found


print("100 encodings in groups of 5 near duplicates, threshold 0:")
by_name = score("files in the order of their groups", find(range(100)))
shuffled = score("the same files shuffled", find(rng.permutation(100)))
scored = find(range(100), scores=True)
ranked = score("sorted by the scores it gives", {
    name: [other for other, _ in sorted(pairs, key=lambda pair: -pair[1])]
    for name, pairs in scored.items()})
truth = {name: [other for other in "abcdefgh" if other != name] for name in "abcdefgh"}
missed = score("8 duplicates of each other, each finds 1 of 7", {
    name: [other] for name, other in zip("abcdefgh", "badcfehg")})
sys.exit(not (shuffled["map"] < by_name["map"] - 0.02 and ranked["map"] > by_name["map"] + 0.5
              and missed["ndcg"] == 1 and missed["map"] < 0.2))
END

#!/usr/bin/env bash
# split-folders 0.6.1: the "shuffled" split takes the same file numbers from each class.
#
# ratio(), fixed() and kfold() sort the files of a class and shuffle them with random.seed(seed),
# anew for each class. So classes with the same number of files get the same order: of 100 objects
# photographed by 10 numbered cameras (000_0.jpg to 099_9.jpg), val consists of the photos of camera
# 8 and test of those of camera 9, of all objects, and each fold of kfold() of two cameras. No
# training image shows any object from there. A split drawn for each class has about 10 photos of
# each camera in val. Turntables, numbered views, product photos whose first one is the front, and
# frames of clips are such folders.
# A measure on such a test set is of one camera: where one camera of ten is useless, the 1-NN
# accuracy of the test set is 0% for 4 of 30 seeds, the default one among them, and 100% for the
# others; with a split drawn for each class it is 79% to 94%.
# Besides, each part is rounded down per class and test gets the rest. Of classes with fewer than 10
# images val gets none: of 300 classes with 2 to 12 images, (.8, .1, .1) becomes 74%, 4% and 22%,
# and 203 classes have no val image.
# Nothing is said, and the documentation says that files get shuffled.
# Way out: rename the files at random before, or split with scikit-learn's
# train_test_split(stratify=labels).
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="split-folders==0.6.1 numpy==2.4.6"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
OMP_NUM_THREADS=1 venv/bin/python - <<'END'
import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import splitfolders

objects, cameras, seeds = 100, 10, 30
random = np.random.default_rng(0)


def make(name, sizes):
    for i, size in enumerate(sizes):
        (Path(name) / f"{i:03}").mkdir(parents=True)
        for j in range(size):
            (Path(name) / f"{i:03}" / f"{i:03}_{j}.jpg").touch()


def numbers(folder):
    return np.array([[int(part) for part in file.stem.split("_")]
                     for file in sorted(Path(folder).rglob("*.jpg"))])


def accuracy(train, test):
    x, y = (photos[part[:, 0], part[:, 1]] for part in (train, test))
    nearest = ((x[None] - y[:, None]) ** 2).sum(2).argmin(1)
    return (train[nearest, 0] == test[:, 0]).mean()


make("photos", [cameras] * objects)
splitfolders.kfold("photos", output="folds", k=5)
for fold in sorted(Path("folds").iterdir()):
    print(f"kfold, {fold.name}, val: photos of camera", dict(Counter(
        numbers(fold / "val")[:, 1].tolist())))
splitfolders.fixed("photos", output="fixed", fixed=(1, 1))
fixed = [dict(Counter(numbers(f"fixed/{part}")[:, 1].tolist())) for part in ("val", "test")]
print("fixed, 1 and 1: val has photos of camera", fixed[0], "and test of", fixed[1])
photos = random.standard_normal((objects, 1, 16)) + 0.1 * random.standard_normal(
    (objects, cameras, 16))
photos[:, 9] += 20 * random.standard_normal((objects, 16))           # the useless camera
told, drawn, views = [], [], []
for seed in [1337, *range(seeds - 1)]:                              # 1337 is the default
    splitfolders.ratio("photos", output="out", seed=seed, ratio=(0.8, 0.1, 0.1))
    train, val, test = (numbers(f"out/{part}") for part in ("train", "val", "test"))
    shutil.rmtree("out")
    views.append(max(len(set(part[:, 1])) for part in (val, test)))
    told.append(accuracy(train, test))
    if seed == 1337:
        print("ratio, default seed: val has photos of camera", dict(Counter(val[:, 1].tolist())),
              "and test of", dict(Counter(test[:, 1].tolist())))
    orders = random.permuted(np.tile(np.arange(cameras), (objects, 1)), axis=1)
    pairs = np.stack(np.broadcast_arrays(np.arange(objects)[:, None], orders), 2)
    drawn.append(accuracy(pairs[:, :8].reshape(-1, 2), pairs[:, 9]))
told, drawn = np.array(told), np.array(drawn)
low = told[told < 0.5]
print(f"1-NN accuracy of the test set, {seeds} seeds: {low.min():.0%} to {low.max():.0%} for "
      f"{len(low)} of them, {told[told >= 0.5].min():.0%} to {told.max():.0%} for the others; "
      f"drawn for each class {drawn.min():.0%} to {drawn.max():.0%}")
sizes = np.random.default_rng(0).integers(2, 13, size=300)
make("products", sizes)
splitfolders.ratio("products", output="parts", ratio=(0.8, 0.1, 0.1))
parts = {part: numbers(f"parts/{part}") for part in ("train", "val", "test")}
empty = len(sizes) - len(set(parts["val"][:, 0].tolist()))
print("300 classes of 2 to 12 images, (.8, .1, .1):", ", ".join(
    f"{part} {len(found) / sizes.sum():.1%}" for part, found in parts.items()),
    f"| {empty} classes have no val image")
sys.exit(not (max(views) == max(map(len, fixed)) == 1 and 0 < len(low) < seeds
              and low.max() < 0.2 and 0.7 < drawn.min() and drawn.max() < 0.99
              and len(parts["val"]) < 0.06 * sizes.sum() and empty > 150))
END

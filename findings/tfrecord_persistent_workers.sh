#!/usr/bin/env bash
# tfrecord 1.14.6: with persistent_workers every epoch has one order and one set of augmentations.
#
# TFRecordDataset and MultiTFRecordDataset seed NumPy's global generator at the start of each epoch
# in each worker, by a number that a persistent worker keeps. So shuffle_queue_size draws the same
# order in every epoch, and a transform that draws by np.random augments each image alike in all of
# them: in 5 epochs of 1,000 images with two workers an image has one augmentation, and the
# augmented images of an epoch are those of the first. Without persistent_workers, and with a
# DataLoader over an ordinary data set that draws by np.random, it has five.
# MultiTFRecordDataset, which mixes files by chance, mixes them in the same way in every epoch too.
# Another in it: a feature of several byte strings, such as the two raw masks of an image, comes
# back without the zeros at the end of each. Of 100 pairs of float32 embeddings after a ReLU, of 32
# numbers each, 71 come back shorter; of black masks nothing is left. A single string is whole.
# Way out: persistent_workers=False, or a generator of one's own in the transform; one feature for
# each string.
#
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="protobuf==7.36.2 crc32c==2.9.post0 torch==2.14.1 torchvision==0.29.1 numpy==2.4.6"
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
venv/bin/pip install -q --disable-pip-version-check --no-deps tfrecord==1.14.6 || exit 2
OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import sys

import numpy as np
import torch
from tfrecord import TFRecordWriter, tfrecord_loader
from tfrecord.tools.tfrecord2idx import create_index
from tfrecord.torch.dataset import MultiTFRecordDataset, TFRecordDataset
from torch.utils.data import DataLoader, Dataset

n, epochs = 1000, 5
for name, numbers in (("all", range(n)), ("even", range(0, n, 2)), ("odd", range(1, n, 2))):
    writer = TFRecordWriter(name + ".tfrecord")
    for i in numbers:
        writer.write({"image": (i, "int")})
    writer.close()
    create_index(name + ".tfrecord", name + ".index")


def augmented(features):
    return int(features["image"][0]), np.random.randint(1 << 30)


class Ordinary(Dataset):
    def __len__(self):
        return n

    def __getitem__(self, i):
        return i, np.random.randint(1 << 30)


def read(data, persistent, shuffle=None):
    torch.manual_seed(0)
    loader = DataLoader(data, batch_size=50, num_workers=2, persistent_workers=persistent,
                        shuffle=shuffle)
    return [[(int(i), int(draw)) for images, draws in loader for i, draw in zip(images, draws)]
            for _ in range(epochs)]


one = TFRecordDataset("all.tfrecord", "all.index", {"image": "int"}, 256, augmented)
two = MultiTFRecordDataset("{}.tfrecord", "{}.index", {"even": 0.5, "odd": 0.5}, {"image": "int"},
                           256, augmented, infinite=False)
orders, draws = {}, {}
for name, data in (("TFRecordDataset", one), ("MultiTFRecordDataset", two),
                   ("an ordinary data set", Ordinary())):
    for persistent in (True, False):
        shuffle = True if name == "an ordinary data set" else None
        told = read(data, persistent, shuffle)
        assert all(sorted(i for i, _ in epoch) == list(range(n)) for epoch in told)
        orders[name, persistent] = len({tuple(i for i, _ in epoch) for epoch in told})
        draws[name, persistent] = len({pair for epoch in told for pair in epoch}) / n
        print(f"{name}, persistent_workers={persistent}: {orders[name, persistent]} orders in "
              f"{epochs} epochs, {draws[name, persistent]:.2f} augmentations of an image")

random = np.random.default_rng(0)
pairs = np.maximum(random.normal(size=(100, 2, 32)), 0).astype(np.float32)
masks = np.zeros((2, 8, 8), np.uint8)
writer = TFRecordWriter("pairs.tfrecord")
for pair in pairs:
    writer.write({"both": ([x.tobytes() for x in pair], "byte"),
                  "first": (pair[0].tobytes(), "byte"),
                  "masks": ([mask.tobytes() for mask in masks], "byte")})
writer.close()
loaded = list(tfrecord_loader("pairs.tfrecord", None))
lengths = np.array([[len(x) for x in record["both"]] for record in loaded])
black = {len(x) for record in loaded for x in record["masks"]}
single = {len(record["first"]) for record in loaded}
shorter = int((lengths < 128).any(1).sum())
print(f"of 100 pairs of embeddings of 128 bytes {shorter} come back shorter, as few as "
      f"{lengths.min()}; black masks of 64 bytes have {black}; a single embedding {single}")
sys.exit(not (
    all(orders[name, True] == 1 and draws[name, True] == 1 and orders[name, False] == epochs
        and draws[name, False] > 4.9 for name in ("TFRecordDataset", "MultiTFRecordDataset"))
    and all(orders["an ordinary data set", p] == epochs for p in (True, False))
    and all(draws["an ordinary data set", p] > 4.9 for p in (True, False))
    and len(loaded) == 100 and shorter > 50 and lengths.max() == 128 and black == {0}
    and single == {128}))
END

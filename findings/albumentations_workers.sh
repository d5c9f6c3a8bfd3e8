#!/usr/bin/env bash
# albumentations 2.0.8 in torch's DataLoader: all workers augment alike, and all epochs.
#
# Every worker is expected to draw its own crops, anew in each epoch: torch gives each a seed of its
# own. But Compose keeps its own generators, made with the dataset, seed given or not; each worker
# gets a copy, and no one reseeds it. So with two workers the images of batch 1 are cropped as those
# of batch 2, and as the DataLoader starts its workers again for each epoch, the n-th image is
# augmented in every epoch as in the first. A contrastive batch still has two views of each image,
# and the loss still falls; but in 10 epochs a run with 8 workers sees 1/80 of the augmentations
# that it seems to.
# Without workers all is right. AlbumentationsX, which followed it, has mended this (its issue 266);
# 2.0.8 is the last albumentations. Way out: worker_init_fn=seed of this script, with
# persistent_workers=True or without.
#
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="albumentations==2.0.8 opencv-python-headless==5.0.0.93 torch==2.14.1 torchvision==0.29.1
    numpy==2.4.6"
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
cat > workers.py <<'END'
import sys

import albumentations
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

rows, columns = np.mgrid[:200, :200]
image = np.stack([rows, columns, 0 * rows], 2).astype(np.uint8)     # a pixel tells its own place


class Crops(Dataset):
    """The place of a random crop, and whether it was flipped, of 64 images"""

    def __init__(self):
        self.transform = albumentations.Compose([albumentations.RandomCrop(100, 100),
                                                 albumentations.HorizontalFlip(p=0.5)])

    def __len__(self):
        return 64

    def __getitem__(self, index):
        crop = self.transform(image=image)["image"].astype(int)
        return [crop[0, 0, 0], crop[0, :, 1].min(), crop[0, 0, 1] > crop[0, 1, 1]]


def seed(worker):
    get_worker_info().dataset.transform.set_random_seed(torch.initial_seed() % 2**32)


def run(workers, epochs=4, **arguments):
    """The shares of the augmentations that are new in their epoch, and in the run"""
    loader = DataLoader(Crops(), batch_size=8, num_workers=workers, **arguments)
    drawn = [[tuple(int(v) for v in row) for batch in loader
              for row in torch.stack(list(batch), 1)] for _ in range(epochs)]
    return (len(set(drawn[0])) / 64, len({place for epoch in drawn for place in epoch})
            / (64 * epochs))


if __name__ == "__main__":
    told = []
    for name, workers, arguments in (("no workers", 0, {}), ("1 worker", 1, {}),
                                     ("2 workers", 2, {}), ("4 workers", 4, {}),
                                     ("4 persistent workers", 4, {"persistent_workers": True}),
                                     ("4 workers, seeded", 4, {"worker_init_fn": seed})):
        told.append(run(workers, **arguments))
        print(f"{name}: of 64 augmentations in an epoch {told[-1][0]:.0%} are different ones, "
              f"of 256 in 4 epochs {told[-1][1]:.0%}")
    none, one, two, four, persistent, seeded = told
    sys.exit(not (min(*none, one[0], *seeded) > 0.95 and one[1] <= 0.25 and max(two) <= 0.5
                  and two[1] <= 0.125 and four[0] <= 0.25 and four[1] <= 0.0625
                  and max(persistent) <= 0.25))
END
venv/bin/python -W ignore workers.py

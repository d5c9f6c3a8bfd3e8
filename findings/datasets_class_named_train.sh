#!/usr/bin/env bash
# datasets 5.2.0 (Hugging Face), load_dataset("imagefolder"): of a folder per class, a class whose
# name sounds like a part of a data set is all that is read.
#
# "train" (the vehicle), "test tube", "eval", "dev", even "002.train_station" are taken for a
# split; the other classes vanish without a warning, and the images that are left have no labels.
# torchvision and timm read all classes of the same folder. Such words stand in class lists of
# products and of ImageNet's kind, and class names with a number in front are CUB's.
# Way out: data_files={"train": "folder/**"} and drop_labels=False.
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="datasets==5.2.0 pillow==13.0.0 numpy==2.4.6"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
venv/bin/python - <<'END'
import os
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", HF_HOME=tempfile.mkdtemp(dir="."))
import datasets
from PIL import Image

datasets.disable_progress_bars()


def read(*classes):
    folder = tempfile.mkdtemp(dir=".")
    for name in classes:
        os.mkdir(f"{folder}/{name}")
        for i in range(2):
            Image.new("RGB", (8, 8)).save(f"{folder}/{name}/{i}.png")
    found = datasets.load_dataset("imagefolder", data_dir=folder)
    print(f"{', '.join(classes)}, 2 images each:",
          {split: (len(rows), sorted(rows.features)) for split, rows in found.items()})
    return {split: len(rows) for split, rows in found.items()}


seen = [read("bird", "dog", "car"), read("bird", "dog", "train"), read("bird", "dog", "test tube"),
        read("bird", "dog", "eval"), read("001.bird", "002.train_station")]
sys.exit(seen != [{"train": 6}, {"train": 2}, {"test": 2}, {"test": 2}, {"train": 2}])
END

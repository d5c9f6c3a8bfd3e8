#!/usr/bin/env bash
# timm 1.0.31 and torchvision 0.29.1: the same folder, other class numbers, and other classes.
#
# torchvision's ImageFolder sorts class names as texts, capitals first, timm's reader as people
# count and without regard to capitals: "2" comes before "10". Proxies, classifiers and confusion
# matrices of one, evaluated on the other's loader, are permuted, with no error because the number
# of classes agrees. And timm calls an image's class by the folder that it lies in, torchvision by
# the folder at the top: of audi/coupe, bmw/coupe, bmw/van it makes two classes, torchvision also
# two, other ones. A split by "the first half of the classes", as in metric learning, is another
# split too. Way out: one reader for all, or a list of the class names beside the network.
#
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="timm==1.0.31 torch==2.14.1 torchvision==0.29.1 numpy==2.4.6 pillow==13.0.0"
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
venv/bin/python - <<'END'
import os
import sys
import tempfile

from PIL import Image
from timm.data import create_dataset
from torchvision.datasets import ImageFolder


def classes(*names):
    folder = tempfile.mkdtemp(dir=".")
    for name in names:
        os.makedirs(f"{folder}/{name}")
        Image.new("RGB", (8, 8)).save(f"{folder}/{name}/0.png")
    by_timm = list(create_dataset("", root=folder).reader.class_to_idx)
    by_torchvision = list(ImageFolder(folder).class_to_idx)
    print(f"folders {names}: timm {by_timm}, torchvision {by_torchvision}")
    return by_timm, by_torchvision


seen = [classes("1", "2", "10"), classes("ant", "Bee", "Crow"),
        classes("audi/coupe", "bmw/coupe", "bmw/van")]
sys.exit(seen != [(["1", "2", "10"], ["1", "10", "2"]),
                  (["ant", "Bee", "Crow"], ["Bee", "Crow", "ant"]),
                  (["coupe", "van"], ["audi", "bmw"])])
END

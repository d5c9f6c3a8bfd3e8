#!/usr/bin/env bash
# torchsampler 0.1.2: ImbalancedDatasetSampler(indices=...) balances nothing if the indices are not
# in ascending order, as those of every random split are.
#
# It sorts its table of labels by index, so the weights are in ascending order of the indices, and
# then gives weight number i to the i-th of the indices as they came. Of a random split, an image
# so has the weight of another one: the classes are drawn about as often as they occur. With 9,000
# images of one class and 1,000 of another, 80% of them by random_split, the rare class is 10.4% of
# what is drawn; with the same indices in ascending order it is 50.0%. Of ten classes of 4,000 down
# to 8 images the rarest is 0.1% of a random split's draws, and 10.4% if sorted.
# Without indices= the sampler is right.
# Way out: sorted(indices), and the labels in the same order; or torch's WeightedRandomSampler.
#
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="pandas==3.1.1 torch==2.14.1 torchvision==0.29.1 numpy==2.4.6"
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
venv/bin/pip install -q --disable-pip-version-check $packages torchsampler==0.1.2 || exit 2
OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import sys

import numpy as np
import torch
from torch.utils.data import TensorDataset, random_split
from torchsampler import ImbalancedDatasetSampler

told = {}
for name, sizes in (("two classes", (9000, 1000)),
                    ("ten classes", (4000, 2000, 1000, 500, 250, 125, 63, 32, 16, 8))):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    dataset = TensorDataset(torch.arange(len(labels)), torch.from_numpy(labels))
    torch.manual_seed(0)
    split = random_split(dataset, [0.8, 0.2])[0].indices
    present = np.bincount(labels[split], minlength=len(sizes)) / len(split)
    print(f"{name}, shares in the split:", ", ".join(f"{x:.1%}" for x in present))
    for order, indices in (("as random_split gave them", list(split)), ("sorted", sorted(split))):
        torch.manual_seed(0)
        sampler = ImbalancedDatasetSampler(dataset, labels=labels[indices].tolist(),
                                           indices=indices)
        drawn = np.bincount(labels[list(sampler)], minlength=len(sizes)) / len(sampler)
        told[name, order] = drawn[-1], present[-1]
        print(f"  indices {order}: shares drawn", ", ".join(f"{x:.1%}" for x in drawn))
    torch.manual_seed(0)
    drawn = np.bincount(labels[list(ImbalancedDatasetSampler(dataset, labels=labels.tolist()))],
                        minlength=len(sizes)) / len(labels)
    told[name, "all"] = drawn[-1], present[-1]
    print("  without indices:", ", ".join(f"{x:.1%}" for x in drawn))
sys.exit(bool(
    told["two classes", "as random_split gave them"][0] > 0.15
    or told["two classes", "sorted"][0] < 0.45
    or told["ten classes", "as random_split gave them"][0] > 0.02
    or told["ten classes", "sorted"][0] < 0.08 or told["ten classes", "all"][0] < 0.08))
END

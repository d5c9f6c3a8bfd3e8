#!/usr/bin/env bash
# torchvision 0.29.1: RandomErasing(value="random") fills a uint8 image with black, not with noise.
#
# It draws values of a standard normal distribution, made for images that are floats and normalized
# already, and casts them to the image's type: of a uint8 image two thirds become 0, the rest are 1,
# 2 and 3 and, from the negative ones, 255, 254 and 253 (on another processor these may differ, a
# negative float has no uint8). So in the order that the v2 transforms recommend for speed, uint8
# until the end, an erased rectangle is black with some white specks: after Normalize the network
# sees a median of -2, where the float path gives one of 0. The older transforms do the same to a
# uint8 tensor, and nothing is said.
# Way out: RandomErasing after ToDtype(torch.float32, scale=True) and Normalize.
#
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
venv/bin/python - <<'END'
import sys

import torch
from torchvision import transforms
from torchvision.transforms import v2

image, low, black = torch.full((3, 64, 64), 128, dtype=torch.uint8), [], []
for name, module in (("transforms", transforms), ("transforms.v2", v2)):
    torch.manual_seed(0)
    erase = module.RandomErasing(p=1, scale=(0.5, 0.5), value="random")
    erased = erase(image)
    inside = erased[erased != 128].int()
    values, counts = inside.unique(return_counts=True)
    low.append(((inside < 6) | (inside > 249)).float().mean().item())
    black.append((inside < 6).float().mean().item())
    print(f"{name}, uint8: of the erased values", ", ".join(
        f"{count / len(inside):.1%} are {value}" for value, count in zip(values, counts)))
torch.manual_seed(0)
erase = v2.RandomErasing(p=1, scale=(0.5, 0.5), value="random")
noise = erase(torch.full((3, 64, 64), 9.))
noise = noise[noise != 9]
print(f"a float image: mean {noise.mean():.2f}, standard deviation {noise.std():.2f}")
after = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.45] * 3, [0.225] * 3)])
torch.manual_seed(0)
early, late = after(erase(image)), erase(after(image))
for name, x in (("erased as uint8, then normalized", early), ("normalized, then erased", late)):
    inside = x[x != after(image)[0, 0, 0]]
    print(f"{name}: the network sees a mean of {inside.mean():.2f}, a median of "
          f"{inside.median():.2f}, a standard deviation of {inside.std():.2f}")
sys.exit(min(low) < 1 or min(black) < 0.6 or abs(noise.std().item() - 1) > 0.1)
END

#!/usr/bin/env bash
# difPy 4.2.1: the mean squared error by which it finds duplicates is computed in 8 bits.
#
# difPy compares the images of a folder at 50 x 50 pixels, lists those with an MSE of 0 as
# duplicates or, if asked, those with an MSE up to 5 as similar, and can move or delete all but one
# of each group. Both the difference and its square are uint8 and wrap around, without a warning: a
# difference of 16, 32 or 128 counts 0, one of black and white 1. So
# - one photo in four exposures, 16 levels apart, is one group of exact duplicates with an MSE of 0
#   (by floats 256 to 2,304), while a copy that is brighter by 5 is not even similar (25);
# - 20 different pictures of the gray levels 0, 64, 128 and 192, of 50 x 50 pixels, are "exact
#   duplicates": 19 would be deleted (MSE by floats 10,000). 20 different black and white sketches
#   of that size are all "similar", with an MSE of 0.5 (by floats 32,000);
# - 20 different silhouettes of 224 pixels are 4 to 11 from the first (by floats 6,000 to 16,000),
#   so a threshold of 20 takes them all for one; 20 different photos are 102 to 106 from the first
#   (by floats 5,000 to 9,000), so from there on a threshold means nothing.
# Besides, rotate=True tries two of the three turns, 90 and 180 degrees: whether a turned copy is
# found depends on the order of the files. And with more than 5,000 images two are "exact
# duplicates" if the sums of their pixels are equal (its issue 126): with px_size=10 1,273 of 5,001
# different images. That takes four minutes and is not run below.
# Way out: look at each group before a deletion, or use imagededup's hashes or ImageHash instead.
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="difPy==4.2.1 numpy==2.4.6 Pillow==13.0.0"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
cat > look.py <<'END'
import sys
from pathlib import Path

import difPy
import numpy as np
from PIL import Image, ImageDraw

random = np.random.default_rng(0)


def search(name, images, similarity):
    folder = Path(name)
    folder.mkdir()
    for i, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{i:02}.png")
    files = [str(file) for file in folder.iterdir()]    # a list is sorted, a folder is not
    built = difPy.build(files, show_progress=False, processes=1)
    found = difPy.search(built, similarity=similarity, show_progress=False, processes=1)
    pairs = [(int(Path(a).stem), int(Path(b).stem), float(mse))
             for a, matches in found.result.items() for b, mse in matches]
    small = [np.asarray(Image.fromarray(image).resize((50, 50), Image.BICUBIC), dtype=float)
             for image in images]
    right = [((small[a] - small[b]) ** 2).mean() for a, b, _ in pairs]
    told = [mse for _, _, mse in pairs]
    text = (f"; MSE {min(told):.2f} to {max(told):.2f}, by floats {min(right):,.0f} to "
            f"{max(right):,.0f}") if pairs else ""
    print(f"{name}, similarity={similarity!r}: {len(found.lower_quality)} of {len(images)} would "
          f"be deleted{text}")
    return len(found.lower_quality), max(told, default=0), min(right, default=0)


def photo():
    coarse = random.integers(0, 256, size=(6, 6, 3)).astype(np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((224, 224), Image.BICUBIC))


def silhouette():
    image = Image.new("RGB", (224, 224), "white")
    draw = ImageDraw.Draw(image)
    for _ in range(2):
        x, y, width, height = (int(n) for n in random.integers((10, 10, 30, 30), 120))
        (draw.ellipse, draw.rectangle)[random.integers(2)](
            [x, y, x + width, y + height], fill="black")
    return np.asarray(image)


def levels(values):
    return np.repeat(random.choice(values, size=(50, 50, 1)).astype(np.uint8), 3, axis=2)


one = (30 + photo() * 0.6).astype(np.uint8)
ranges = (search("exposures 16 apart", [one, one + 16, one + 32, one + 48], "duplicates"),
          search("brighter by 5", [one, one + 5], "similar"),
          search("4 gray levels", [levels([0, 64, 128, 192]) for _ in range(20)], "duplicates"),
          search("sketches", [levels([0, 255]) for _ in range(20)], "similar"),
          search("silhouettes", [silhouette() for _ in range(20)], 20),
          search("photos", [photo() for _ in range(20)], 120))
turned = {}
for turns in (1, 2, 3):
    turned[turns], _, _ = search(
        f"turned by {90 * turns} degrees", [one, np.rot90(one, turns).copy()], "similar")
sys.exit(not ([count for count, _, _ in ranges] == [3, 0, 19, 19, 19, 19]
              and ranges[0][1] == 0 and ranges[2][1] == 0 and ranges[3][1] < 1
              and ranges[4][2] > 1000 and ranges[5][2] > 1000
              and turned[2] == 1 and turned[1] + turned[3] == 1))
END
OMP_NUM_THREADS=1 venv/bin/python look.py

#!/usr/bin/env bash
# semhash 0.5.0: different images with a palette are dropped as exact duplicates.
#
# Exact duplicates are found by the bytes of the pixels alone, before any embedding is compared.
# The pixels of a GIF or a PNG with a palette are numbers of its colors, so one drawing in other
# colors is an exact duplicate, with a score of 1.0. Of 100 drawings, 10 shapes in
# 10 colors, 10 are left by self_deduplicate if they are saved with a palette, and 90 are said to be
# exact; of the same as RGB all 100 are left, though the encoder gets the same colors both times
# (it converts to RGB, as the encoder in the README does). deduplicate, to clean a test set of the
# training images, takes out all 50 palette images in five new colors as exact copies, as RGB none.
# The shape is not looked at either: stripes of 40 x 10 pixels and others of 20 x 20 are one image
# if their bytes are equal.
# Way out: image.convert("RGB"), or RGBA, before from_records.
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="numpy==2.4.6 Pillow==13.0.0 vicinity==0.4.6 usearch==2.26.6 pyversity==0.2.0
    frozendict==2.5.1 model2vec==0.10.0"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
venv/bin/pip install -q --disable-pip-version-check --no-deps semhash==0.5.0 || exit 2
OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import colorsys
import io
import sys

import numpy as np
from PIL import Image, ImageDraw
from semhash import SemHash


class Encoder:                                   # small pixels, of the colors as they are seen
    def encode(self, inputs, **_):
        pixels = [np.asarray(image.convert("RGB").resize((12, 12))) for image in inputs]
        return np.stack(pixels).reshape(len(inputs), -1).astype(np.float32) - 128


def drawing(shape, color):
    image = Image.new("RGB", (48, 48), "white")
    fill = tuple(int(255 * c) for c in colorsys.hsv_to_rgb(color / 15, 1, 0.9))
    corners = [(24 + 20 * np.cos(a), 24 + 20 * np.sin(a))
               for a in np.arange(shape + 3) * 2 * np.pi / (shape + 3)]
    ImageDraw.Draw(image).polygon(corners, fill=fill)
    return image


def saved(image, palette):                       # as it is read from a PNG
    file = io.BytesIO()
    (image.quantize(16) if palette else image).save(file, "PNG")
    return Image.open(file)


train = [(shape, color) for shape in range(10) for color in range(10)]
test = [(shape, color) for shape in range(10) for color in range(10, 15)]
told = {}
for palette in (False, True):
    records, new = ([{"image": saved(drawing(*d), palette), "what": d} for d in part]
                    for part in (train, test))
    looks = {record["image"].convert("RGB").tobytes() for record in records + new}
    index = SemHash.from_records(records, columns=["image"], model=Encoder())
    once = index.self_deduplicate(threshold=0.99999)
    clean = index.deduplicate(new, threshold=0.99999)
    told[palette] = (len(looks), len(index.index.items), len(once.selected),
                     sum(d.exact for d in once.filtered), len(clean.selected),
                     sum(d.exact and d.score == 1 for d in clean.filtered))
    print(f"{records[0]['image'].mode}: {told[palette][0]} different pictures; of 100 "
          f"{len(once.selected)} are left, {told[palette][3]} are exact duplicates; of 50 in new "
          f"colors {len(clean.selected)} are left, {told[palette][5]} are exact copies")
    if palette:
        d = clean.filtered[0]
        seen = [np.asarray(x["image"].convert("RGB"))[24, 24].tolist()
                for x in (d.record, d.duplicate_of)]
        print(f"  one of them: color {seen[0]} is said to be {seen[1]}, score {d.score}")

stripes = np.tile(np.repeat(np.array([0, 255], np.uint8), 10), 20)
shapes = [Image.fromarray(stripes.reshape(10, 40)), Image.fromarray(stripes.reshape(20, 20))]
result = SemHash.from_records([{"image": x} for x in shapes], columns=["image"],
                              model=Encoder()).self_deduplicate()
print(f"sizes {[x.size for x in shapes]} with equal bytes: {len(result.selected)} left")
rgb, p = told[False], told[True]
sys.exit(not (rgb[0] == 150 and p[0] == 150 and rgb[1:] == (100, 100, 0, 50, 0)
              and p[1] == p[2] < 40 and p[3] == 100 - p[2] and p[4] < 10 and p[5] > 40
              and seen[0] != seen[1] and len(result.selected) == 1))
END

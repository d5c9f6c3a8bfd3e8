#!/usr/bin/env bash
# datasets 5.2.0 (Hugging Face): an image that goes through Dataset.map comes back unchanged where
# it was to change, and changed where it was not to.
#
# A photo of a folder is written back as its path, so what map's function did to it in place
# (thumbnail, paste, ImageDraw) is gone, without a warning. A photo from memory or from Parquet is
# encoded anew in its own format with Pillow's defaults, which is quality 75 for JPEG, as soon as
# the function looks at it, if only for its width. Whoever shrinks a data set once with thumbnail
# trains on the originals, and whoever adds a column by map trains on coarser photos.
# Way out: return a new image (resize, crop), which is kept as PNG, and look at images through
# cast_column("image", Image(decode=False)).
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
import io
import os
import sys
import tempfile
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", HF_HOME=tempfile.mkdtemp(dir="."))
import datasets
import numpy as np
from PIL import Image

datasets.disable_progress_bars()
Path("photos/a").mkdir(parents=True)
coarse = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
Image.fromarray(coarse).resize((400, 300)).save("photos/a/0.jpg", quality=98, subsampling=0)


def shrink(row):
    row["image"].thumbnail((64, 64))
    return row


def pixels(rows):
    return np.asarray(rows[0]["image"]).astype(int)


from_folder = datasets.load_dataset("imagefolder", data_dir="photos", split="train")
in_memory = datasets.Dataset.from_dict(
    {"image": [{"bytes": Path("photos/a/0.jpg").read_bytes(), "path": None}]}
).cast_column("image", datasets.Image())
sizes = [rows.map(shrink)[0]["image"].size for rows in (from_folder, in_memory)]
print("thumbnail((64, 64)) of 400 x 300 in map: from a folder", sizes[0], "from memory", sizes[1])
assert (pixels(from_folder) == pixels(in_memory)).all()
in_memory.to_parquet("photos.parquet")
of_parquet = datasets.load_dataset("parquet", data_files="photos.parquet", split="train")
looked_at = [rows.map(lambda row: {"width": row["image"].width})
             for rows in (from_folder, in_memory, of_parquet)]
closed = in_memory.cast_column("image", datasets.Image(decode=False))
looked_at += [closed.map(lambda row: {"bytes": len(row["image"]["bytes"])}).cast_column(
    "image", datasets.Image())]
lost = [np.abs(pixels(rows) - pixels(from_folder)) for rows in looked_at]
for name, off in zip(("a folder", "memory", "Parquet", "memory, decode=False"), lost):
    print(f"looked at in map, from {name}: pixels off by {off.mean():.1f} in the mean, {off.max()}")
by_pillow = io.BytesIO()
in_memory[0]["image"].save(by_pillow, "JPEG", quality=75)
stored = looked_at[1].cast_column("image", datasets.Image(decode=False))[0]["image"]["bytes"]
print("what is stored is Pillow's JPEG of quality 75:", stored == by_pillow.getvalue())
kept = in_memory.map(lambda row: {"image": row["image"].resize((64, 48))})
same = (pixels(kept) == np.asarray(in_memory[0]["image"].resize((64, 48)))).all()
print("a new image is kept as it is:", same)
sys.exit(sizes != [(400, 300), (64, 48)] or lost[0].any() or lost[1].max() < 5
         or lost[2].max() < 5 or lost[3].any() or stored != by_pillow.getvalue() or not same)
END

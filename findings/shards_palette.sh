#!/usr/bin/env bash
# mosaicml-streaming 0.13.0 and litdata 0.2.76: images with a palette come back black from their
# shards.
#
# Both keep an image that is not a JPEG as its mode, its size and its raw bytes. Of a PNG or GIF
# with a palette these are the numbers of its colours, and the palette is not kept: read back, the
# image has the right size and mode "P", and convert("RGB") makes it black, without a warning. Many
# PNGs of products, logos and drawings have a palette. litdata encodes all images as its first one;
# streaming does so with "pil", its "png" is right. (Three minutes, mostly for the installation.)
# Way out: hand over image.convert("RGB").
#
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
alone="mosaicml-streaming==0.13.0 litdata==0.2.76"       # without the clients of four clouds
packages="lightning-utilities==0.15.3 boto3==1.44.8 requests==2.34.2 transformers==5.24.0
    brotli==1.2.1 python-snappy==0.7.3 zstd==1.5.7.2 xxhash==4.1.0 catalogue==2.0.10 tqdm==4.70.1
    filelock pillow==13.0.0 torch==2.14.1 torchvision==0.29.1 numpy==2.4.6"
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
venv/bin/pip install -q --disable-pip-version-check --no-deps $alone || exit 2
cat > shards.py <<'END'
import contextlib
import sys

import litdata
import numpy as np
from PIL import Image
from streaming import MDSWriter, StreamingDataset


def colours():
    """Three files of one picture of 64 colours"""
    random = np.random.default_rng(0)
    noise = Image.fromarray(random.integers(256, size=(6, 8, 3), dtype=np.uint8))
    picture = noise.resize((96, 64)).quantize(64)
    picture.convert("RGB").save("rgb.png")
    picture.save("palette.png")
    picture.save("palette.gif")


def sample(name):
    return {"image": Image.open(name)}


def pixels(image):
    """Height x width x 3, of a PIL image or of litdata's tensor"""
    if isinstance(image, Image.Image):
        return np.asarray(image.convert("RGB")).astype(int)
    return image.numpy().transpose(1, 2, 0).astype(int)


def read(writer, names, encoding):
    folder = f"{writer} {encoding}"
    if writer == "litdata":
        with contextlib.redirect_stdout(sys.stderr):
            litdata.optimize(sample, names, folder, num_workers=1, chunk_bytes="64MB",
                             start_method="fork")
        return litdata.StreamingDataset(folder)
    with MDSWriter(out=folder, columns={"image": encoding}) as out:
        for name in names:
            out.write(sample(name))
    return StreamingDataset(local=folder, batch_size=1)


if __name__ == "__main__":
    colours()
    told = {}
    for writer, encoding, names in (
            ("litdata", "pil", ["rgb.png", "palette.png", "palette.gif"]),
            ("streaming", "pil", ["rgb.png", "palette.png", "palette.gif"]),
            ("streaming", "png", ["rgb.png", "palette.png", "palette.gif"])):
        data = read(writer, names, encoding)
        for i, name in enumerate(names):
            there, here = pixels(data[i]["image"]), pixels(Image.open(name))
            same = there.shape == here.shape and abs(there - here).max() <= 2
            told[writer, encoding, name] = same, there.shape == here.shape and there.max() == 0
            print(f"{writer}, {encoding}: {name} written as {here.shape[:2]} with a mean of "
                  f"{here.mean():.0f}, read as {there.shape[:2]} with a mean of "
                  f"{there.mean():.0f}")
    right = {key for key, (same, _) in told.items() if same}
    black = {key for key, (_, zero) in told.items() if zero}
    writers, files = ("litdata", "streaming"), ("palette.png", "palette.gif")
    sys.exit(black != {(writer, "pil", file) for writer in writers for file in files}
             or right | black != told.keys())
END
OMP_NUM_THREADS=1 venv/bin/python -W ignore shards.py 2> /dev/null

#!/usr/bin/env bash
# torch 2.14.1, bicubic: antialias=True gives other pixels where nothing can alias, in enlargements,
# so timm 1.0.31 and transformers 5.24.0 make two networks of one ViT at another image size.
#
# Antialiasing widens the kernel when an image shrinks; of an enlargement, bilinear results are the
# same with and without. Bicubic ones are not: the flag also takes another kernel, which is that
# of Pillow. A training crop is often an enlargement. And for images of
# another size than the pretraining's, a ViT's position embeddings are resized by bicubic, by timm
# with the flag, by transformers without: 224 to 384 pixels, the usual fine-tuning, gives two
# tables from one. Shown are a picture and tables of noise, and smooth tables. Way out: antialias=True everywhere is Pillow's; of a ViT, stay in one library.
#
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="timm==1.0.31 transformers==5.24.0 torch==2.14.1 torchvision==0.29.1 numpy==2.4.6
    pillow==13.0.0"
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
HF_HUB_OFFLINE=1 HF_HOME=. venv/bin/python - <<'END' 2> /dev/null
import sys

import numpy as np
import torch
from PIL import Image
from timm.layers import resample_abs_pos_embed
from torchvision.transforms.v2 import InterpolationMode, functional
from transformers import ViTConfig, ViTModel

torch.manual_seed(0)
picture = torch.randint(0, 256, (3, 50, 50), dtype=torch.uint8)
off = {}
for mode in ("BILINEAR", "BICUBIC"):
    with_it, without = (
        functional.resize(picture, [100, 100], InterpolationMode[mode], antialias=on)
        for on in (True, False))
    pillow = Image.fromarray(picture.permute(1, 2, 0).numpy()).resize(
        (100, 100), Image.Resampling[mode])
    pillow = torch.from_numpy(np.array(pillow)).permute(2, 0, 1)
    off[mode] = [(a.int() - b.int()).abs().max().item()
                 for a, b in ((with_it, without), (with_it, pillow), (without, pillow))]
    print(f"50 to 100 pixels, {mode}: antialias True less False at most {off[mode][0]} of 255; "
          f"from Pillow {off[mode][1]} with it, {off[mode][2]} without")
apart = {}


def positions(kind, size, table):
    """How far timm's positions are from those of transformers, by a ViT that has this table"""
    side = size // 16
    network.embeddings.position_embeddings.data = table
    with torch.no_grad():
        tokens = torch.zeros(1, 1 + side ** 2, 64)
        a = network.embeddings.interpolate_pos_encoding(tokens, size, size)
        b = resample_abs_pos_embed(table, [side, side])
        c = resample_abs_pos_embed(table, [side, side], antialias=False)
    apart[kind, size] = [((a - other).norm() / a.norm()).item() for other in (b, c)]
    print(f"{kind} positions of a ViT at {size} pixels: timm's differ from transformers' by "
          f"{apart[kind, size][0]:.1%}, with antialias=False by {apart[kind, size][1]:.1%}")


network = ViTModel(ViTConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=2))
noise = torch.randn(1, 1 + 14 ** 2, 64)
coarse = torch.randn(1, 64, 5, 5)
smooth = torch.nn.functional.interpolate(coarse, (14, 14), mode="bilinear", align_corners=True)
smooth = torch.cat([noise[:, :1], smooth.flatten(2).mT], 1)
for kind, table in (("random", noise), ("smooth", smooth)):
    for size in (224, 384):
        positions(kind, size, table)
sys.exit(off["BILINEAR"] != [0, 0, 0] or off["BICUBIC"][0] < 10 or off["BICUBIC"][1] > 1
         or any(apart[kind, 224] != [0, 0] for kind in ("random", "smooth"))
         or apart["random", 384][0] < 0.05 or apart["smooth", 384][0] < 0.01
         or max(apart["random", 384][1], apart["smooth", 384][1]) > 1e-6)
END

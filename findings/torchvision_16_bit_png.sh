#!/usr/bin/env bash
# torchvision 0.29.1 and Pillow 13.0.0: four readers of one 16-bit grey PNG, none of them 0 to 1.
#
# ToTensor gives int16 without scaling, so that the upper half is negative (newer pil_to_tensor:
# uint16); decode_image(mode=RGB) gives uint16, and "/ 255", which is right for every other photo,
# makes values to 257; Pillow's convert("RGB") cuts everything above 255 off, so that an X-ray is
# white. No reader raises an error or warns. Microscopy, X-rays and depth maps come as such files.
# Way out: decode_image and v2.ToDtype(torch.float32, scale=True), which divides by 65,535.
#
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="torch==2.14.1 torchvision==0.29.1 numpy==2.4.6 pillow==13.0.0"
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
import io
import sys

import numpy as np
import torch
from PIL import Image
from torchvision.io import decode_image
from torchvision.transforms import ToTensor, v2

file = io.BytesIO()
Image.fromarray(np.array([[0, 1000, 32767, 32768, 65535]], np.uint16)).save(file, "PNG")
photo = Image.open(file)
content = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
old, new = ToTensor()(photo), v2.functional.pil_to_tensor(photo)
decoded = decode_image(content, "RGB")
pillow = np.asarray(photo.convert("RGB"))[0, :, 0]
scaled = v2.functional.to_dtype(decoded, torch.float32, scale=True)
print("stored", [0, 1000, 32767, 32768, 65535])
print("ToTensor", old.dtype, old[0, 0].tolist())
print("pil_to_tensor", new.dtype, new[0, 0].tolist())
print("decode_image RGB", decoded.dtype, decoded[0, 0].tolist())
print("Pillow convert RGB", pillow.dtype, pillow.tolist())
print("decode_image, to_dtype with scale=True", scaled[0, 0].tolist())
sys.exit(not (old.dtype == torch.int16 and old[0, 0].tolist() == [0, 1000, 32767, -32768, -1]
              and decoded.dtype == torch.uint16 and pillow.tolist() == [0, 255, 255, 255, 255]))
END

#!/usr/bin/env bash
# transformers 5.24.0: DINOv3ViTImageProcessor takes the numbers of a palette's colours for grey
# values, 1 bit for 1 of 255, and 16 bits for up to 65535 of 255.
#
# A processor is expected to turn any image into the network's input, and those of CLIP, SigLIP and
# DINOv2 (BitImageProcessor) do so for a palette and for 1 bit. That of DINOv3 leaves do_convert_rgb
# unset, as do the published configurations of its networks, and then reads the image as an array;
# the normalization spreads a single channel over three, so that the shape is right and nothing is
# said. A picture saved with a palette and without is thus two inputs, though every pixel is equal:
# of 100 pictures with a palette none has its own copy without one as the nearest. RGBA raises an
# error. EfficientNet's processor does as DINOv3's. 16 bits are wrong by all, by these most.
# Way out: image.convert("RGB") first, or DINOv3ViTImageProcessor(do_convert_rgb=True).
#
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="transformers==5.24.0 pillow==13.0.0 torch==2.14.1 torchvision==0.29.1
    numpy==2.4.6"
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
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 HF_HOME=. venv/bin/python -W ignore - <<'END' 2> /dev/null
import io
import sys

import numpy as np
import transformers
from PIL import Image

random = np.random.default_rng(0)


def saved(image):
    """The image, read back from a PNG"""
    file = io.BytesIO()
    image.save(file, format="PNG")
    return Image.open(io.BytesIO(file.getvalue()))


pictures = [Image.fromarray(random.integers(256, size=(5, 5, 3), dtype=np.uint8)).resize((224, 224))
            .quantize(128) for _ in range(100)]
bits = [saved(picture.convert("1")) for picture in pictures[:5]]
deep = [saved(Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257))
        for picture in pictures[:5]]
told = {}
for name, arguments in (("DINOv3ViT", {}), ("DINOv3ViT", {"do_convert_rgb": True}),
                        ("EfficientNet", {}), ("Bit", {}), ("CLIP", {}), ("Siglip", {})):
    processor = getattr(transformers, f"{name}ImageProcessor")(**arguments)

    def inputs(images):
        return np.stack([np.asarray(processor(image, return_tensors="np")["pixel_values"][0])
                         for image in images]).reshape(len(images), -1)

    rgb = inputs([saved(picture.convert("RGB")) for picture in pictures])
    palette = inputs([saved(picture) for picture in pictures])
    squares = ((palette[:, None, ::101] - rgb[None, :, ::101]) ** 2).sum(2)
    found = (squares.argmin(1) == np.arange(100)).mean()
    grey = inputs([picture.convert("L").convert("RGB") for picture in pictures[:5]])
    told[name, bool(arguments)] = row = (
        abs(palette - rgb).mean(), found,
        abs(inputs(bits) - inputs([image.convert("RGB") for image in bits])).mean(),
        abs(inputs(deep) - grey).mean())
    print(f"{name}{arguments or ''}: inputs differ by {row[0]:.2g} from those without a palette, "
          f"which are the nearest of 100 for {row[1]:.0%}; 1 bit by {row[2]:.2g}, 16 bits by "
          f"{row[3]:.2g} from those of 8 bits")
wrong = [told[name, False] for name in ("DINOv3ViT", "EfficientNet")]
right = [told[name, False] for name in ("Bit", "CLIP", "Siglip")] + [told["DINOv3ViT", True]]
sys.exit(not (all(row[0] > 0.5 and row[1] < 0.3 and row[2] > 0.5 and row[3] > 100 for row in wrong)
              and all(row[0] == 0 and row[1] == 1 and row[2] == 0 for row in right)))
END

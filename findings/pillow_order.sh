#!/usr/bin/env bash
# Pillow 13.0.0 resizes tall images to other pixels than Pillow 12.3.0.
#
# A resize has two passes, across and down, and rounds to 8 bits between them, so their order shows.
# Until 12.3.0 it was always across first. 13.0.0 goes down first if the height shrinks clearly more
# than the width, which saves work. So features of one file, computed before and after an upgrade,
# differ for portrait images alone, and a cache of resized images must know Pillow's version. Of 581
# portrait photographs of birds, resized to 146 x 146 by Lanczos, 529 changed: 18% of their values,
# 0.05% by more than 2 of 255, one by 24. torchvision 0.29.1 resizes uint8 tensors across first, so
# tensors and PIL images, which agreed within 2 of 255, part for portraits.
# Way out: two calls, image.resize((w, image.height), filter).resize((w, h), filter), which both
# versions compute alike, and as 12.3.0 does in one.
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
cat > resized.py <<'END'
"""Save what this Pillow makes of noise, tall and transposed, in one call and in two."""
import sys

import numpy as np
from PIL import Image


def resized(pixels, *sizes):
    image = Image.fromarray(pixels)
    for width, height in sizes:
        image = image.resize((width, height), Image.LANCZOS)
    return np.array(image)


tall = np.random.RandomState(0).randint(0, 2, (240, 160)).astype(np.uint8) * 255
wide = np.ascontiguousarray(tall.T)
np.savez(sys.argv[1], tall=resized(tall, (100, 100)), wide=resized(wide, (100, 100)),
         tall_in_two_calls=resized(tall, (100, 240), (100, 100)))
END
for version in 12.3.0 13.0.0; do
    "${PYTHON:-python3}" -m venv "venv-$version" || exit 2
    "venv-$version/bin/pip" install -q --disable-pip-version-check "pillow==$version" \
        numpy==2.4.6 || exit 2
    "venv-$version/bin/python" resized.py "$version.npz" || exit 2
done
venv-13.0.0/bin/python - <<'END'
import sys

import numpy as np

before, after = np.load("12.3.0.npz"), np.load("13.0.0.npz")
furthest = {}
for name in before:
    difference = abs(before[name].astype(int) - after[name])
    furthest[name] = difference.max()
    print(f"{name}: 12.3.0 and 13.0.0 differ in {(difference > 0).mean():.0%} of the values, "
          f"by up to {difference.max()}")
transposed = [bool((made["tall"] == made["wide"].T).all()) for made in (before, after)]
print("tall is what wide is, transposed, so the order was turned:", *transposed)
in_two = bool((before["tall"] == before["tall_in_two_calls"]).all())
sys.exit(not (furthest["tall"] > 20 and furthest["wide"] == furthest["tall_in_two_calls"] == 0
              and transposed == [False, True] and in_two))
END

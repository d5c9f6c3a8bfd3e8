#!/usr/bin/env bash
# torch 2.14.1, F.normalize and F.cosine_similarity of float16: a zero row gives NaN, a long row
# 0.
#
# The eps that guards the division, 1e-12 and 1e-8, is 0 in float16, so that a dead embedding,
# which is 0 in float32 and bfloat16, becomes NaN and ends the training. And where the norm
# exceeds 65,504, it is infinite: 2,048 pooled features of 2,000 each become a row of zeros,
# without an error, and the vector's similarity to itself is 0. Embeddings stored as float16 to
# halve a gallery meet both.
# Way out: .float() before normalizing.
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
import torch.nn.functional as F

seen = {}
for dtype in (torch.float16, torch.bfloat16, torch.float32):
    zero = torch.zeros(1, 2048, dtype=dtype)
    long = torch.full((1, 2048), 2000.0, dtype=dtype)
    seen[dtype] = [F.normalize(zero)[0, 0].item(), F.cosine_similarity(zero, long).item(),
                   F.normalize(long)[0, 0].item(), F.cosine_similarity(long, long).item()]
    print(f"{dtype}: a zero row normalized {seen[dtype][0]}, its cosine {seen[dtype][1]}; a row of "
          f"2,048 times 2,000 normalized {seen[dtype][2]:.4f}, its cosine with itself "
          f"{seen[dtype][3]:.4f}")
half = seen.pop(torch.float16)
sys.exit(not (half[0] != half[0] and half[1] != half[1] and half[2:] == [0, 0]
              and all(row[:2] == [0, 0] and row[2] > 0.02 < row[3] for row in seen.values())))
END

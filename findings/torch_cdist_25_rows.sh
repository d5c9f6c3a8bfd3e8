#!/usr/bin/env bash
# torch 2.14.1, torch.cdist with its defaults: exact to 25 rows, from 26 on it may be worthless.
#
# compute_mode's default "use_mm_for_euclid_dist_if_necessary" does not mean "if memory makes it
# necessary": as soon as either side has more than 25 rows, cdist expands |a|^2 + |b|^2 - 2ab, in
# the input's precision. That loses the digits of embeddings with a common offset, and of unit
# vectors that lie close together, as classes do late in training. So a loss that was checked by
# hand on a small batch is another one at 32.
# Way out: compute_mode="donot_use_mm_for_euclid_dist", or subtract the mean first.
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

torch.manual_seed(0)
sets = {"offset 1000, spread 1": 1000 + torch.randn(60, 512),
        "unit vectors 0.001 apart": F.normalize(torch.randn(512) + torch.randn(60, 512) * 7e-4)}
changed = False
print("float32 vectors of 512: largest error of torch.cdist(a, b), as a share of the distances")
for name, x in sets.items():
    for rows, columns in ((25, 25), (26, 25), (25, 26), (26, 26)):
        a, b = x[:rows], x[30:30 + columns]
        exact = torch.cdist(a.double(), b.double(), compute_mode="donot_use_mm_for_euclid_dist")
        error = ((torch.cdist(a, b) - exact).abs().max() / exact.mean()).item()
        print(f"{name}, {rows} x {columns}: {error:.1e}")
        changed |= error > 1e-3 if rows == columns == 25 else error < 0.05
sys.exit(changed)
END

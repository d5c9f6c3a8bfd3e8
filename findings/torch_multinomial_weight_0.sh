#!/usr/bin/env bash
# torch 2.14.1 on a CPU, torch.multinomial: items of weight 0 are drawn if all others are
# subnormal.
#
# Weights of distance-weighted sampling, exp of a log density, span hundreds of orders of
# magnitude in float32; a row whose only candidate has 1e-45 is valid: its sum is above 0, so no
# error is raised. Then an item of weight 0 is drawn too: an anchor's own class as its negative.
# Weights of 1e-38, or of 1e-320 in float64, are right. Way out: divide by each row's maximum
# first, as softmax does.
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

torch.manual_seed(0)
drawn = {}
for weight, dtype in ((1e-45, torch.float32), (1e-38, torch.float32), (1e-320, torch.float64)):
    weights = torch.zeros(10, dtype=dtype)
    weights[3] = weight
    drawn[weight] = torch.multinomial(weights.expand(1000, 10), 1).unique().tolist()
    print(f"item 3 of 10 has weight {weight} ({dtype}), the others 0; 1,000 draws give the items "
          f"{drawn[weight]}")
sys.exit(not (len(drawn.pop(1e-45)) > 1 and all(items == [3] for items in drawn.values())))
END

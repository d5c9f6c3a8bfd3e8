#!/usr/bin/env bash
# pytorch-metric-learning 2.9.0, AccuracyCalculator: k, a matter of speed, turns MAP@R and
# R-precision into other measures, in opposite directions.
#
# With k below a class's size, MAP@R sums over k places and divides by R, so that it falls, while
# R-precision counts hits among k and divides by k, so that it rises towards precision@1. The
# result has the same keys; the only sign is a printed warning, which a long log swallows. A table
# that mixes papers with k = 10 and k = None compares nothing. k="max_bin_count" is right.
#
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="pytorch-metric-learning==2.9.0 faiss-cpu==1.15.1 torch==2.14.1 torchvision==0.29.1
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
venv/bin/python - <<'END'
import sys

import torch
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

torch.manual_seed(0)
labels = torch.arange(20).repeat_interleave(20)
x = torch.randn(20, 16)[labels] + torch.randn(400, 16)
measures = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
values = {}
for k in (1, 5, "max_bin_count"):
    calculator = AccuracyCalculator(include=measures, k=k, device=torch.device("cpu"))
    result = calculator.get_accuracy(x, labels)
    values[k] = [result[name] for name in measures]
print("\n20 classes of 20; the same embeddings:")
for k, (precision, r_precision, map_at_r) in values.items():
    print(f"k = {k}: precision@1 {precision:.3f}, R-precision {r_precision:.3f}, "
          f"MAP@R {map_at_r:.3f}")
one, five, right = values.values()
sys.exit(not (one[0] == right[0] and one[1] == one[0] > five[1] > right[1] + 0.1
              and one[2] < five[2] < right[2] - 0.1))
END

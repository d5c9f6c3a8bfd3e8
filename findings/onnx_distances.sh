#!/usr/bin/env bash
# torch 2.14.1, exported to ONNX by torch.onnx.export(dynamo=False): cdist and pairwise_distance with
# an odd or fractional p are other functions, with p of infinity or 0 constants.
#
# The exporter writes (sum (x - y)^p)^(1/p), without the absolute value. With p = 2 or 4 this does
# not matter. With p = 1 and 3 differences of both signs cancel: what is left is a fraction of the
# distance or, where the sum is negative, NaN. p = infinity gives 1 for every pair, so each item is
# as near as any other; p = 0 gives infinity. Export and onnx's check pass, nothing is said, and
# onnxruntime runs it: of 50 points near one prototype each, 14%, 36% and 2% find it under p = 1, 3
# and infinity, in torch all do.
# The newer exporter (dynamo=True, the default) writes p = 2 of cdist rightly and refuses another p,
# with pairwise_distance it is right: whoever is refused there and takes dynamo=False gets these.
# Way out: (x[:, None] - y).abs().sum(-1), or .amax(-1), which both exporters keep.
#
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="torch==2.14.1 torchvision==0.29.1 numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0"
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
import logging
import sys
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
import numpy as np
import onnx
import onnxruntime
import torch

generator = torch.Generator().manual_seed(0)
prototypes = torch.randn(50, 32, generator=generator)
x = prototypes + 0.5 * torch.randn(50, 32, generator=generator)
infinity = float("inf")


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def exported(function):
    file = io.BytesIO()
    torch.onnx.export(Model(function), (x,), file, dynamo=False, input_names=["x"])
    onnx.checker.check_model(onnx.load_from_string(file.getvalue()))
    return onnxruntime.InferenceSession(file.getvalue()).run(None, {"x": x.numpy()})[0]


def nearest(d):
    return (np.nan_to_num(d, nan=np.inf).argmin(1) == np.arange(len(x))).mean()


wrong, right, found = [], [], {}
for p in (1., 2., 3., 4., infinity, 0.):
    here = torch.cdist(x, prototypes, p=p).numpy()
    there = exported(lambda x: torch.cdist(x, prototypes, p=p))
    pairs = torch.nn.functional.pairwise_distance(x, prototypes.roll(1, 0), p=p).numpy()
    pairs_there = exported(
        lambda x: torch.nn.functional.pairwise_distance(x, prototypes.roll(1, 0), p=p))
    finite = np.isfinite(there)
    ratio = np.median(there[finite] / here[finite]) if finite.any() else infinity
    same = np.isclose(there, here, rtol=1e-3).mean()
    same_pairs = np.isclose(pairs_there, pairs, rtol=1e-3).mean()
    (right if p in (2, 4) else wrong).append(same)
    found[p] = nearest(there), nearest(here)
    print(f"p = {p:g}: cdist: NaN for {np.isnan(there).mean():.0%}, median ratio of the others "
          f"{ratio:.2f}, right {same:.0%}; own prototype nearest: {found[p][0]:.0%}, in torch "
          f"{found[p][1]:.0%}; pairwise_distance: right {same_pairs:.0%}")
sums = exported(lambda x: (x[:, None] - prototypes).abs().sum(-1))
error = np.abs(sums - torch.cdist(x, prototypes, p=1.).numpy()).max()
print(f"p = 1 written out as a sum of absolute values: off by {error:.1g} at most")
sys.exit(max(wrong) > 0.01 or min(right) < 1 or error > 1e-3
         or any(found[p][0] > 0.5 or found[p][1] < 0.9 for p in (1., 3., infinity)))
END

#!/usr/bin/env bash
# torchvision 0.29.1, googlenet and inception_v3: the same state dict is two different networks.
#
# googlenet(weights=...) sets transform_input=True, which rescales each channel in front of the
# first convolution; googlenet(weights=None), into which the same tensors are loaded from one's
# own file, does not. load_state_dict(strict=True) passes, since the rescaling has no parameters,
# so features and Recall@K before training are another network's. GoogLeNet is the backbone of the
# older metric-learning papers, and files of weights travel without the flag. The published
# weights are stood in for by random ones here: nothing is downloaded.
# Way out: googlenet(transform_input=True) for the published weights.
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
from unittest import mock

import torch
from torchvision import models
from torchvision.models._api import WeightsEnum

torch.manual_seed(0)
images, changed = torch.randn(2, 3, 299, 299), False
for name in ("googlenet", "inception_v3"):
    state = models.get_model(name, weights=None, init_weights=False).state_dict()
    with mock.patch.object(WeightsEnum, "get_state_dict", lambda self, *args, **kwargs: state):
        by_weights = models.get_model(name, weights="DEFAULT").eval()
    by_state = models.get_model(name, weights=None, init_weights=False).eval()
    print(name, by_state.load_state_dict(state, strict=True), "\n  transform_input: weights=... "
          f"{by_weights.transform_input}, weights=None {by_state.transform_input}")
    outputs = []
    for network in (by_weights, by_state):
        first = next(module for module in network.modules() if isinstance(module, torch.nn.Conv2d))
        with torch.no_grad():
            first.register_forward_hook(lambda module, x, y: outputs.append(y))
            network(images)
    difference = ((outputs[0] - outputs[1]).abs().mean() / outputs[0].abs().mean()).item()
    print(f"  the first convolution's outputs differ by {difference:.0%} of their size")
    changed |= not by_weights.transform_input or by_state.transform_input or difference < 0.1
sys.exit(changed)
END

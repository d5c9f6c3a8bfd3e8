#!/usr/bin/env bash
# pytorch-metric-learning 2.9.0, where two of its parts meet: MPerClassSampler puts an image twice
# into a batch, and TupletMarginLoss has a gradient of NaN for two equal embeddings.
#
# A class of fewer than m images is filled up with repetitions, without a warning. An image
# without random augmentation (cached features, an embedding head, a fixed transform) then gives
# two equal rows; arccos of their similarity has an infinite slope, so that one step makes all
# weights NaN while the loss looks as usual. HistogramLoss ends in an error for the same rows. The
# library's other losses take them. Way out: leave out classes of fewer than m images, or jitter.
#
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="pytorch-metric-learning==2.9.0 torch==2.14.1 torchvision==0.29.1 numpy==2.4.6"
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
import warnings

warnings.filterwarnings("ignore")
import torch
from pytorch_metric_learning import losses, samplers

torch.manual_seed(0)
labels = torch.tensor([0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2])             # class 0 has two images
batch = list(samplers.MPerClassSampler(labels, m=4, batch_size=12, length_before_new_iter=12))
repeated = len(batch) - len({*batch})
print(f"class sizes 2, 5, 4; m = 4, a batch of 12: {repeated} images are repetitions")
features, head, seen = torch.randn(11, 16), torch.nn.Linear(16, 8), {}
for name in ("ContrastiveLoss", "TripletMarginLoss", "TupletMarginLoss"):
    head.zero_grad()
    loss = getattr(losses, name)()(head(features[batch]), labels[batch])
    loss.backward()
    seen[name] = loss.isfinite().item(), head.weight.grad.isfinite().all().item()
    print(f"{name} {loss:.3f}, gradient finite: {seen[name][1]}")
try:
    losses.HistogramLoss()(head(features[batch]), labels[batch])
except (IndexError, RuntimeError) as error:
    print("HistogramLoss:", error)
finite = {"ContrastiveLoss": (True, True), "TripletMarginLoss": (True, True)}
sys.exit(not (repeated and seen == finite | {"TupletMarginLoss": (True, False)}))
END

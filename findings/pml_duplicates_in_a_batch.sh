#!/usr/bin/env bash
# pytorch-metric-learning 2.9.0, where two of its parts meet: MPerClassSampler puts an image twice
# into a batch, and TupletMarginLoss often has a gradient of NaN for two equal embeddings, in 16 of
# 20 batches here.
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
import numpy as np
import torch
from pytorch_metric_learning import losses, samplers

torch.manual_seed(0)
np.random.seed(0)                                                    # by which the sampler draws
labels = torch.tensor([0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2])             # class 0 has two images
sampler = samplers.MPerClassSampler(labels, m=4, batch_size=12, length_before_new_iter=12)
features, head = torch.randn(11, 16), torch.nn.Linear(16, 8)
names, repeated, errors = ("ContrastiveLoss", "TripletMarginLoss", "TupletMarginLoss"), 0, 0
not_finite = dict.fromkeys(names, 0)
for _ in range(20):
    batch = list(sampler)
    repeated += len({*batch}) < len(batch)
    for name in names:
        head.zero_grad()
        loss = getattr(losses, name)()(head(features[batch]), labels[batch])
        loss.backward()
        assert loss.isfinite()
        not_finite[name] += not head.weight.grad.isfinite().all()
    try:
        losses.HistogramLoss()(head(features[batch]), labels[batch])
    except (IndexError, RuntimeError) as error:
        errors, message = errors + 1, error
print(f"class sizes 2, 5, 4; m = 4, batches of 12: {repeated} of 20 have an image twice")
for name, count in not_finite.items():
    print(f"{name}: finite in 20 batches, its gradient not in {count}")
print(f"HistogramLoss: an error in {errors}:", message)
rare = not_finite["ContrastiveLoss"] or not_finite["TripletMarginLoss"]
sys.exit(repeated < 20 or rare or not_finite["TupletMarginLoss"] < 10)
END

#!/usr/bin/env bash
# pytorch-metric-learning 2.9.0: one pair of near images silences DistanceWeightedMiner for the rest.
#
# The miner draws an anchor's negative with a probability inverse to the density of its distance (Wu
# et al. 2017), and normalizes per anchor. But before, it divides all weights of the batch by the
# largest one. In 512 dimensions they differ by more than float32 can hold: a negative at distance
# 0.5 weighs e^370, an average one e^30. So if two images of different classes are near each other,
# a wrong label or a photo that stands in two classes, every other anchor's weights become 0, and it
# gives no triplet: of 32 classes with 4 images, 8 triplets are left of 512, those of the two
# images. The loss is then that of these two alone, and nothing is said. In 128 dimensions all stay.
# Way out: subtract each row's own maximum (a softmax over its logarithms), as mining code of one's
# own; or look at len(miner(x, labels)[0]) while training.
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
import torch.nn.functional as F
from pytorch_metric_learning import miners

labels, told = torch.arange(32).repeat_interleave(4), {}
for d in (128, 512):
    torch.manual_seed(0)
    x = F.normalize(torch.randn(32, d)[labels] + torch.randn(128, d) + torch.randn(1, d))
    negatives = torch.cdist(x, x)[labels[:, None] != labels]
    near = x.clone()                            # image 4, of class 1, nearly equal to image 0
    near[4] = F.normalize(x[0] + 0.02 * torch.randn(d) / d ** 0.5, dim=0)
    print(f"{d} dimensions, negatives at {negatives.min():.2f} to {negatives.max():.2f}")
    for name, e in (("as it is", x), ("one near pair", near)):
        anchors = miners.DistanceWeightedMiner()(e, labels)[0]
        told[d, name] = len(anchors)
        print(f"  {name}: {len(anchors)} triplets of {len(anchors.unique())} anchors")
    r = torch.cdist(near, near).clamp_min(0.5)
    log_weight = (2 - d) * r.log() - (d - 3) / 2 * torch.log1p(-r.square() / 4)
    log_weight = log_weight.masked_fill((labels[:, None] == labels) | (r >= 1.4), -torch.inf)
    anchors = (labels[:, None] == labels).fill_diagonal_(False).nonzero()[:, 0]     # of each pair
    negatives = torch.multinomial(log_weight.softmax(1)[anchors], 1)[:, 0]
    drawn = (labels[negatives] != labels[anchors]).sum().item()
    print(f"  near pair, a softmax over each row: {drawn} negatives for {len(anchors)} pairs of "
          f"{len(anchors.unique())} anchors; log weights {log_weight.max():.0f} for the near pair, "
          f"{log_weight[log_weight > -torch.inf].median():.0f} for an average one")
sys.exit(told != {(128, "as it is"): 512, (128, "one near pair"): 512, (512, "as it is"): 512,
                  (512, "one near pair"): 8} or drawn != 384)
END

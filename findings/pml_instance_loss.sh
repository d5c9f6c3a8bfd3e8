#!/usr/bin/env bash
# pytorch-metric-learning 2.9.0: InstanceLoss with labels of classes pulls images to other classes.
#
# It is the cross-entropy of the similarities between the images of a batch, and its target is the
# number of the image's class. But the columns are images, so an image of the batch's class 1 is
# drawn to image 1, of class 2 to image 2, whatever these show: if classes come four by four, images
# 1, 2 and 3 are of class 0. Minimized over free points, the loss falls from 58 to 2, R@1 from 22%
# to 3%; contrastive loss brings it to 100%. Labels that are all different, as in its paper (an
# image and its text), are taken by their order too: relabelled, the same points have another loss.
# Way out: pass labels 0, 1, 2, ... in this order, which makes each image its own class.
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
from pytorch_metric_learning import losses


def r1(x, labels):
    s = (F.normalize(x) @ F.normalize(x).T).fill_diagonal_(-2)
    return (labels[s.argmax(1)] == labels).float().mean().item()


labels, scores = torch.arange(8).repeat_interleave(4), {}
for name in ("InstanceLoss", "ContrastiveLoss"):
    torch.manual_seed(0)
    x = (0.5 * torch.randn(8, 16)[labels] + torch.randn(32, 16)).requires_grad_()
    optimizer, loss_function = torch.optim.Adam([x], lr=0.02), getattr(losses, name)()
    before, first = r1(x.detach(), labels), loss_function(x, labels).item()
    for _ in range(300):
        loss = loss_function(x, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scores[name] = r1(x.detach(), labels)
    print(f"8 classes of 4 points, 300 steps of {name}: {first:.2f} -> {loss.item():.2f}, R@1 of "
          f"these points {before:.2f} -> {scores[name]:.2f}")
torch.manual_seed(0)
x = torch.randn(8, 16)
one_each = [losses.InstanceLoss()(x, y).item() for y in (torch.arange(8), torch.arange(8).flip(0))]
print("8 points, each its own class, numbered upwards and downwards: {:.2f} and {:.2f}".format(
    *one_each))
sys.exit(scores["InstanceLoss"] > 0.15 or scores["ContrastiveLoss"] < 1
         or abs(one_each[0] - one_each[1]) < 1)
END

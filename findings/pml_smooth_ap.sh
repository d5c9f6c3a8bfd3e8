#!/usr/bin/env bash
# pytorch-metric-learning 2.9.0: SmoothAPLoss takes other images for positives than the labels say,
# unless the batch has as many classes as images of each class.
#
# The loss cuts the batch into groups of consecutive images and takes each group for a class. It
# makes as many groups as there are images in a class, where it should make as many as there are
# classes. So of 8 classes of 4 images it makes 4 groups of 8, two classes each; of 4 classes of 8
# images 8 groups of 4, half a class each. Embeddings in which all images of a class are equal and
# classes are apart have 0.31 and 0.44 then, where Smooth-AP (Brown et al. 2020, their Eq. 6, summed
# by plain loops below) has 0. Minimized, the loss merges classes in pairs. Nothing is said, and the
# value falls as if all were well. Of 4 classes of 4 both agree, as long as the images of a class
# stand together in the batch: shuffled, its value is another one too.
# Way out: batches of m classes with m images each, in order, or a loss that looks at the labels.
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


def smooth_ap(x, labels, temperature=0.01):
    """1 - the mean over queries of Smooth-AP, as in the paper, by loops; a query counts as its own
    first positive, as in the authors' code, from which the library's is"""
    s = F.normalize(x) @ F.normalize(x).T
    smooth = torch.sigmoid((s[:, None, :] - s[:, :, None]) / temperature)   # j above i, query first
    precisions = []
    for q in range(len(x)):
        positives = [i for i in range(len(x)) if labels[i] == labels[q]]
        total = 0
        for i in positives:
            among_positives = 1 + sum(smooth[q, i, j] for j in positives if j != i)
            among_all = 1 + sum(smooth[q, i, j] for j in range(len(x)) if j != i)
            total += among_positives / among_all
        precisions.append(total / len(positives))
    return 1 - torch.stack(precisions).mean().item()


def r1(x, labels):
    s = (F.normalize(x) @ F.normalize(x).T).fill_diagonal_(-2)
    return (labels[s.argmax(1)] == labels).float().mean().item()


wrong, right = [], []
for classes, images in ((4, 4), (8, 4), (4, 8), (16, 2)):
    torch.manual_seed(0)
    labels = torch.arange(classes).repeat_interleave(images)
    x = torch.randn(classes, 16)[labels]                            # a class is one point
    told, true = losses.SmoothAPLoss()(x, labels).item(), smooth_ap(x, labels)
    print(f"{classes} classes of {images} equal images: {told:.3f}, by loops {true:.3f}")
    (right if classes == images else wrong).append(abs(told - true))
labels = torch.arange(8).repeat_interleave(4)
scores = {}
for name in ("SmoothAPLoss", "FastAPLoss"):
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
    own = F.normalize(x.detach())
    centres = F.normalize(torch.stack([own[labels == c].mean(0) for c in range(8)]))
    pairs = [f"{centres[c] @ centres[c + 1]:.2f}" for c in range(0, 8, 2)]
    print(f"8 classes of 4, 300 steps of {name}: {first:.3f} -> {loss.item():.3f}, R@1 of these "
          f"32 points {before:.2f} -> {scores[name]:.2f}; cosines of classes 0 and 1, 2 and 3, 4 "
          f"and 5, 6 and 7:", *pairs)
shuffled = torch.randperm(16)
labels = torch.arange(4).repeat_interleave(4)
x = torch.randn(4, 16)[labels]
told = [losses.SmoothAPLoss()(x[p], labels[p]).item() for p in (torch.arange(16), shuffled)]
print("4 classes of 4, in order and shuffled: {:.3f} and {:.3f}".format(*told))
sys.exit(max(right) > 1e-5 or min(wrong) < 0.2 or scores["FastAPLoss"] < 1
         or scores["SmoothAPLoss"] > 0.9 or told[1] - told[0] < 0.2)
END

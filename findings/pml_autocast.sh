#!/usr/bin/env bash
# pytorch-metric-learning 2.9.0 under torch 2.14.1's autocast: NTXentLoss and SupConLoss are computed
# in bfloat16, unlike torch's own losses, and lose their gradient as classes get tight.
#
# Under torch.autocast the products of embeddings become bfloat16 (8 bits of precision), and these
# two losses stay in it: exponentials, sums and the result. So they hurt most at the end of a
# training. For 8 classes of 4 unit vectors with cosines of 0.98 or more within a class, the gradient
# of SupConLoss is off by three quarters of its length; at 0.85, NTXentLoss is 0.00017 in float32 and
# 0 here. TripletMarginLoss, ContrastiveLoss and MarginLoss do not change by a digit, because they
# take cdist, which autocast keeps in float32. torch's cross_entropy goes to float32 by itself.
# Way out: with torch.autocast("cpu", enabled=False) around the loss, and embeddings.float().
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

labels = torch.arange(8).repeat_interleave(4)
worst, exact = {}, True
for spread in (1.0, 0.3, 0.1):
    torch.manual_seed(0)
    x = F.normalize(torch.randn(8, 64)[labels] + spread * torch.randn(32, 64))
    within = (x @ x.T)[labels[:, None] == labels].min()
    print(f"8 classes of 4 unit vectors, cosines within a class from {within:.2f} on")
    for name in ("SupConLoss", "NTXentLoss", "TripletMarginLoss", "ContrastiveLoss", "MarginLoss"):
        told = []
        for bf16 in (False, True):
            e = x.clone().requires_grad_()
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                value = getattr(losses, name)()(e, labels)
            value.backward()
            told.append((value, e.grad))
        (value, g), (loss, h) = told
        apart = ((h - g).norm() / g.norm()).item() if g.any() else 0.0
        angle = F.cosine_similarity(g.flatten(), h.flatten(), 0).item() if g.any() else 1.0
        print(f"  {name:17} float32 {value.item():.5f}, autocast {loss.item():.5f} ({loss.dtype}), "
              f"gradient off by {100 * apart:.1f}%, cosine of both {angle:.2f}")
        worst[name, spread] = apart, loss.item(), loss.dtype
        if name not in ("SupConLoss", "NTXentLoss"):
            exact &= apart == 0 and loss.dtype == torch.float32
logits = (10 * torch.randn(32, 8)).bfloat16()
with torch.autocast("cpu", torch.bfloat16):
    print("torch's cross_entropy of bfloat16 logits:", F.cross_entropy(logits, labels).dtype)
half = all(told[2] == torch.bfloat16 for key, told in worst.items() if key[0] in (
    "SupConLoss", "NTXentLoss"))
sys.exit(not (half and exact and worst["SupConLoss", 0.1][0] > 0.5
              and worst["NTXentLoss", 0.3][1] == 0))
END

#!/usr/bin/env bash
# lightly 1.6.0 with torch 2.14.1 and timm 1.0.31: EMPSSLLoss has the sign of a term wrong and makes
# embeddings collapse; CO2Regularizer has no gradient; a linear drop path rate is not linear.
#
# EMPSSLLoss adds the coding rate of the batch, which is large for spread embeddings. The paper and
# the authors' code, which the file names as its source, maximize it: their TCR loss is negative. So
# here nothing keeps embeddings apart. Trained on 20 classes, R@1 falls from 89.0% to 25.5% and all
# pairs have a cosine of 0.9999; with the sign turned R@1 rises to 100%.
# CO2Regularizer returns torch.tensor(loss), a copy without its history. Added to NTXentLoss, as its
# docstring shows, it changes the value but not the gradient, with alpha = 1 as with 1,000. torch
# gives a UserWarning about copying, nothing else is said.
# update_drop_path_rate(mode="linear") gives the first block 0 and all others the highest rate: a
# mean of 0.275 of 12 blocks in place of 0.150, timm's own for drop_path_rate=0.3.
# The development branch of August 2026 has all three.
# Way out: 200 * invariance_loss(z) - tcr_loss(z, eps=0.2) with the two functions of the module and
# z = torch.stack(views); a CO2 loss of one's own; drop_path_rate= of timm.create_model.
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
venv/bin/pip install -q --disable-pip-version-check --no-deps lightly==1.6.0 timm==1.0.31 || exit 2
OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import sys

import torch
from lightly.loss import EMPSSLLoss, NTXentLoss
from lightly.loss.emp_ssl_loss import invariance_loss, tcr_loss
from lightly.loss.regularizer import CO2Regularizer
from lightly.models.utils import update_drop_path_rate
from timm.models.vision_transformer import VisionTransformer
from torch.nn.functional import normalize


def official(views):                                # the loss with the sign of the authors' code
    z = torch.stack(views)
    return 200 * invariance_loss(z) - tcr_loss(z, eps=0.2)


torch.manual_seed(0)
centres = torch.randn(20, 8) @ torch.randn(8, 32)
labels = torch.arange(20).repeat_interleave(10)
images = centres[labels] + torch.randn(200, 32)
told = {}
for name, loss in (("EMPSSLLoss", EMPSSLLoss()), ("with the authors' sign", official)):
    torch.manual_seed(1)
    network = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(),
                                  torch.nn.Linear(64, 16))
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    row = []
    for step in range(1001):
        views = [normalize(network(images + torch.randn_like(images)), dim=1) for _ in range(4)]
        if step in (0, 1000):
            with torch.no_grad():
                x = normalize(network(images), dim=1)
            cosine = x @ x.T
            row += [(labels[cosine.clone().fill_diagonal_(-9).argmax(1)] == labels)
                    .float().mean().item(), cosine.mean().item(), tcr_loss(x[None], 0.2).item()]
        optimizer.zero_grad()
        loss(views).backward()
        optimizer.step()
    told[name] = row
    print(f"{name}: R@1 {row[0]:.1%} untrained, {row[3]:.1%} after 1,000 steps; mean cosine of all "
          f"pairs {row[1]:.2f}, {row[4]:.4f}; coding rate {row[2]:.2f}, {row[5]:.2f}")

network = torch.nn.Linear(32, 16)
a, b = images, images + torch.randn_like(images)
gradients = {}
for alpha in (0, 1, 1000):
    loss = NTXentLoss()(network(a), network(b))
    if alpha:
        extra = CO2Regularizer(alpha=alpha)(network(a), network(b))
        loss = loss + extra
    gradients[alpha] = torch.autograd.grad(loss, network.weight)[0]
    print(f"NTXentLoss{f' + CO2Regularizer(alpha={alpha})' if alpha else ''}: loss "
          f"{loss.item():.2f}, length of the gradient {gradients[alpha].norm():.6f}")
print(f"CO2Regularizer's result requires a gradient: {extra.requires_grad}")
size = dict(img_size=32, patch_size=16, embed_dim=48, depth=12, num_heads=3)
network = VisionTransformer(**size)
update_drop_path_rate(network, drop_path_rate=0.3, mode="linear")
rates, true = ([getattr(block.drop_path1, "drop_prob", 0) for block in vit.blocks] for vit in (
    network, VisionTransformer(**size, drop_path_rate=0.3)))
for name, row in (("lightly, linear", rates), ("timm", true)):
    print(f"drop path rates of {name}:", *(f"{rate:.2f}" for rate in row),
          f"(mean {sum(row) / 12:.3f})")
one, other = told.values()
sys.exit(not (one[3] < 0.5 < 0.95 < other[3] and one[4] > 0.99 and one[5] < one[2] < other[5]
              and not extra.requires_grad and (gradients[0] == gradients[1000]).all()
              and set(rates[1:]) == {0.3} and len(set(true)) == 12))
END

#!/usr/bin/env bash
# catalyst 22.4: TripletLossV2 is 0 whatever the embeddings, and the AdaCos layer learns its scale
# from the validation images.
#
# With labels from 0 on, TripletLossV2 and its gradient are 0, as if training had succeeded: of free
# points R@1 stays at 22% in 300 steps, where the package's TripletLoss reaches 100%. By reading
# functional.py: triplets are masked by a test for images that serve as negatives alone, marked by
# shifted negative labels; for ordinary labels it is the wrong way round, so no triplet is left.
# AdaCos adapts its scale to each batch "if self.train", which is a method, hence always true: in
# eval() too. So the loss of one unchanged network falls from validation to validation and depends
# on the batch size, and training goes on from the scale of the validation images. The scale is also
# not in the state dict, so a loaded checkpoint begins with that of an untrained network.
# Way out: TripletLoss, or TripletMarginLossWithSampler with AllTripletsSampler; AdaCos without a
# target in validation, and its attribute s saved beside the weights.
#
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="catalyst==22.4 six==1.17.0 torch==2.14.1 torchvision==0.29.1 numpy==2.4.6"
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
OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import sys

import torch
import torch.nn.functional as F
from catalyst.contrib.layers import AdaCos
from catalyst.contrib.losses import TripletLoss, TripletLossV2

labels, told = torch.arange(8).repeat_interleave(4), {}
for loss_class in (TripletLossV2, TripletLoss):
    for first in (0, 1, -100):
        torch.manual_seed(0)
        x = (0.5 * torch.randn(8, 16)[labels] + torch.randn(32, 16)).requires_grad_()
        optimizer, values = torch.optim.SGD([x], lr=1.0), []
        for step in range(300):
            loss = loss_class(margin=0.3)(x, labels + first)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            values.append((loss.item(), x.grad.norm().item()))
        s = (F.normalize(x) @ F.normalize(x).T).detach().fill_diagonal_(-2)
        r1 = (labels[s.argmax(1)] == labels).float().mean().item()
        told[loss_class, first] = *values[0], r1
        print(f"{loss_class.__name__}, labels {first} to {first + 7}: at the first step loss "
              f"{values[0][0]:.3f}, gradient {values[0][1]:.3f}; R@1 of these points after "
              f"300 steps {r1:.2f}")

torch.manual_seed(0)
labels = torch.arange(100).repeat_interleave(8)
centres = torch.randn(100, 32)
train, validation = (centres[labels] + 0.7 * torch.randn(800, 32) for _ in range(2))
layer, network = AdaCos(32, 100), torch.nn.Linear(32, 32)
untrained = layer.s
optimizer = torch.optim.SGD([*layer.parameters(), *network.parameters()], lr=0.1)
for epoch in range(30):
    for batch in torch.randperm(800).split(100):
        loss = F.cross_entropy(layer(network(train[batch]), labels[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
layer.eval(), network.eval()
scales, losses = [layer.s], []
with torch.no_grad():
    for validated in range(4):
        losses.append(F.cross_entropy(layer(network(validation), labels), labels).item())
        scales.append(layer.s)
print("AdaCos in eval(), one network validated four times: loss",
      *(f"{loss:.3f}" for loss in losses), "scale", *(f"{scale:.2f}" for scale in scales))
loaded = AdaCos(32, 100)
loaded.load_state_dict(layer.state_dict())
print(f"its checkpoint holds {[*layer.state_dict()]}; loaded, it has scale {loaded.s:.2f}, "
      f"untrained {untrained:.2f}")
sys.exit(not (all(told[TripletLossV2, first][:2] == (0, 0) for first in (0, 1))
              and max(told[TripletLossV2, first][2] for first in (0, 1)) < 0.3
              and told[TripletLossV2, -100][0] > 0.1 and told[TripletLoss, 0][2] > 0.95
              and losses[0] - losses[3] > 0.02 and scales[4] - scales[0] > 0.2
              and abs(loaded.s - untrained) < 1e-6))
END

#!/usr/bin/env bash
# hypll 0.1.1: hyperbolic batch normalization normalizes by the batch in evaluation too.
#
# HBatchNorm and HBatchNorm2d, after a paper that keeps running statistics for evaluation, keep
# none: eval() changes nothing, and an embedding depends on the images that it is embedded with. A
# gallery and queries of 20 classes, both in shuffled batches of 50, have an R@1 of 100%. With the
# same weights the queries have 4.0% if they are embedded a class at a time, as a folder per class
# is read, and 7.0% if one at a time, as a search for one image is answered; chance is 5%. Alone in
# a batch an image is its own mean, so that only rounding errors are left, and without them it would
# be the bias, whatever it shows. torch's BatchNorm1d in its place has 100% each time in eval().
# HBatchNorm2d takes its statistics over the positions as well, so an image alone loses the mean of
# its maps: R@1 is 100%, 3.5% and 5.0%.
# Way out: layers without batch normalization; statistics of one's own, from a pass over the
# training images.
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
venv/bin/pip install -q --disable-pip-version-check --no-deps hypll==0.1.1 || exit 2
OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import sys

import torch
from hypll.manifolds.poincare_ball import Curvature, PoincareBall
from hypll.nn import HBatchNorm, HBatchNorm2d, HLinear
from hypll.tensors import ManifoldTensor, TangentTensor

torch.manual_seed(0)
torch.set_grad_enabled(False)
classes, each, size = 20, 10, 16
n = classes * each
y = torch.arange(classes).repeat_interleave(each)
centres = 0.3 * torch.randn(classes, size)
gallery, queries = (centres[y] + 0.1 * torch.randn(n, size) for _ in range(2))
ball = PoincareBall(Curvature(1.0))


def on_ball(x, dim=-1):
    return ball.expmap(TangentTensor(data=x, man_dim=dim, manifold=ball))


class Hyperbolic(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = HLinear(size, size, ball), HBatchNorm(size, ball)

    def forward(self, x):
        return self.norm(self.linear(on_ball(x))).tensor


class Plain(torch.nn.Module):                    # torch's own, in the tangent space
    def __init__(self):
        super().__init__()
        self.linear, self.norm = HLinear(size, size, ball), torch.nn.BatchNorm1d(size, momentum=0.5)

    def forward(self, x):
        x = self.norm(ball.logmap(None, self.linear(on_ball(x))).tensor)
        return on_ball(x / 4).tensor


class Maps(torch.nn.Module):                     # maps of 4 x 4, and their mean
    def __init__(self):
        super().__init__()
        self.norm = HBatchNorm2d(size, ball)

    def forward(self, x):
        x = self.norm(on_ball(x.reshape(-1, size, 4, 4), 1)).tensor
        return on_ball(x.mean((2, 3))).tensor


def embedded(network, x, batch, order):
    out = torch.full((n, size), torch.nan)
    for part in order.split(batch):
        out[part] = network(x[part])
    assert out.isfinite().all()
    return out


def recall(a, b):
    distances = ball.cdist(*(ManifoldTensor(data=x[None], manifold=ball) for x in (a, b)))[0]
    return (y[distances.argmin(1)] == y).double().mean().item()


maps = [x[:, :, None].expand(n, size, 16) + 0.05 * torch.randn(n, size, 16)
        for x in (gallery, queries)]
ways = {"shuffled, 50": (50, torch.randperm(n)), "by class, 10": (each, torch.arange(n)),
        "one by one": (1, torch.arange(n))}
told, same = {}, {}
for name, network, data in (("HBatchNorm", Hyperbolic(), (gallery, queries)),
                            ("torch.nn.BatchNorm1d", Plain(), (gallery, queries)),
                            ("HBatchNorm2d", Maps(), maps)):
    for part in torch.randperm(n).split(50) * 5:
        network.train()(data[0][part])
    trained = embedded(network, data[1], *ways["shuffled, 50"])
    network.eval()
    stored = embedded(network, data[0], *ways["shuffled, 50"])
    for way, (batch, order) in ways.items():
        told[name, way] = recall(embedded(network, data[1], batch, order), stored)
    same[name] = torch.equal(trained, embedded(network, data[1], *ways["shuffled, 50"]))
    print(f"{name}: R@1 " + ", ".join(f"{told[name, way]:.1%} ({way})" for way in ways)
          + f"; training and evaluation give the same: {same[name]}; running statistics: "
          f"{[key for key in network.state_dict() if 'running' in key]}")
sys.exit(not (
    told["HBatchNorm", "shuffled, 50"] > 0.98 and told["HBatchNorm", "by class, 10"] < 0.15
    and told["HBatchNorm", "one by one"] < 0.15 and same["HBatchNorm"] and same["HBatchNorm2d"]
    and all(told["torch.nn.BatchNorm1d", way] > 0.98 for way in ways)
    and not same["torch.nn.BatchNorm1d"] and told["HBatchNorm2d", "shuffled, 50"] > 0.98
    and told["HBatchNorm2d", "by class, 10"] < 0.3 and told["HBatchNorm2d", "one by one"] < 0.3))
END

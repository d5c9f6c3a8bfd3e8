#!/usr/bin/env bash
# quaterion 0.1.35: Evaluator with GroupSampler counts every query among its own results.
#
# It compares the drawn queries with all items and is to leave out each query itself, but leaves
# out the n-th item for the n-th query, in whatever order the queries were drawn. So nearly every
# query finds itself first, as a miss, and has some other item hidden. R-precision of perfect
# embeddings is 1% for classes of 2, 50% of 3, 76% of 5 and 89% of 10, also with sample_size;
# RetrievalRPrecision alone, without the sampler, says 100%.
# Two losses in it are not what they are named after:
# OnlineContrastiveLoss with mining="hard", the default, takes each item for its own hardest
# negative. So the part of the negatives is always the margin and has no gradient: separated
# classes and all items in one point have a loss of 0.25 alike, and a network trained by it draws
# all items together: the mean cosine of different classes rises to 0.99 and R@1 of new classes
# reaches 52%, with mining="all" or a loss that looks for other classes below 0.1 and above 93%.
# CircleLoss has the signs of the paper's weights turned: of positive pairs those that are alike
# get more gradient, at similarities of 0.9 and 0.5 in a ratio of 1.23, by the paper's
# [1 + m - s] 0.47; negative pairs below the margin of 0.25 get none, by [s + m] they do.
# Way out: metric.update(embeddings, groups) and metric.evaluate(); mining="all"; CircleLoss of
# pytorch-metric-learning.
#
# quaterion asks for Python below 3.11 and imports a type variable that torch 2.14 does not have.
# Neither matters to these parts: the script lets pip ignore the first and adds the second. It
# leaves out quaterion's __init__, which imports Lightning, and replaces mmh3 by an empty module.
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="tqdm==4.70.1 torch==2.14.1 torchvision==0.29.1 numpy==2.4.6"
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
venv/bin/pip install -q --disable-pip-version-check --no-deps --ignore-requires-python \
    quaterion==0.1.35 quaterion-models==0.1.19 || exit 2
OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import random
import sys
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import TypeVar

import torch
from torch.nn.functional import normalize, relu
from torch.utils.data import dataloader, dataset

dataloader.T_co = dataset.T_co = TypeVar("T_co", covariant=True)
sys.modules["mmh3"] = ModuleType("mmh3")
where = find_spec("quaterion").submodule_search_locations
sys.modules["quaterion"] = ModuleType("quaterion")             # leave its __init__ out
sys.modules["quaterion"].__path__ = list(where)
from quaterion.dataset import SimilarityGroupSample
from quaterion.eval.evaluator import Evaluator
from quaterion.eval.group import RetrievalRPrecision
from quaterion.eval.samplers.group_sampler import GroupSampler
from quaterion.loss import CircleLoss, OnlineContrastiveLoss
from quaterion_models import SimilarityModel
from quaterion_models.encoders import Encoder
from quaterion_models.heads import EmptyHead


class Given(Encoder):                           # items are embeddings
    trainable = False
    embedding_size = 16

    def get_collate_fn(self):
        return torch.stack

    def forward(self, x):
        return x

    def save(self, path):
        pass

    @classmethod
    def load(cls, path):
        return cls()


torch.manual_seed(0)
random.seed(0)
precision = {}
for size in (2, 3, 5, 10):
    y = torch.arange(40).repeat_interleave(size)
    x = torch.randn(40, 16)[y] + 0.01 * torch.randn(len(y), 16)
    items = [SimilarityGroupSample(obj=a, group=int(b)) for a, b in zip(x, y)]
    told = [Evaluator(RetrievalRPrecision(), GroupSampler(n, log_progress=False)).evaluate(
        items, SimilarityModel(Given(), EmptyHead(16)))["RetrievalRPrecision"].item()
        for n in (-1, 50)]
    metric = RetrievalRPrecision()
    metric.update(x, y)
    precision[size] = *told, metric.evaluate().item()
    print(f"R-precision, 40 classes of {size}: Evaluator {told[0]:.1%}, with sample_size=50 "
          f"{told[1]:.1%}, the metric alone {precision[size][2]:.1%}")


def reference(x, y):                            # the hardest negative is of another class
    distance = (1 - normalize(x) @ normalize(x).T) / 2
    same = y[:, None] == y
    return 0.5 * (distance.masked_fill(~same, 0).amax(1).mean()
                  + relu(0.5 - distance.masked_fill(same, 9).amin(1)).mean())


y = torch.arange(8).repeat_interleave(4)
values = {}
for name, loss in (("library", OnlineContrastiveLoss()), ("reference", reference)):
    values[name] = [loss(x.requires_grad_(), y).item() for x in (
        torch.eye(8)[y], torch.ones(32, 8))]
    print(f"OnlineContrastiveLoss, {name}: classes at right angles {values[name][0]:.3f}, all "
          f"items in one point {values[name][1]:.3f}")


def train(loss):
    torch.manual_seed(0)
    centres = torch.randn(100, 32)

    def draw(y):
        return torch.cat([centres[y] + 0.3 * torch.randn(len(y), 32),
                          2 * torch.randn(len(y), 32)], 1)

    def judge():
        with torch.no_grad():
            e = normalize(net(x))
        similarity = e @ e.T
        found = similarity.clone().fill_diagonal_(-2).argmax(1)
        return (test[found] == test).float().mean().item(), similarity[
            test[:, None] != test].mean().item()

    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    optimizer = torch.optim.Adam(net.parameters(), 0.003)
    test = torch.arange(50, 100).repeat_interleave(4)
    x = draw(test)
    before = judge()
    for _ in range(150):
        y = torch.randperm(50)[:8].repeat_interleave(4)
        optimizer.zero_grad()
        loss(net(draw(y)), y).backward()
        optimizer.step()
    return before, judge()


trained = {}
for name, loss in (("library", OnlineContrastiveLoss()), ("reference", reference),
                   ("mining=\"all\"", OnlineContrastiveLoss(mining="all"))):
    before, trained[name] = train(loss)
    print(f"trained, {name}: R@1 {before[0]:.1%} before, {trained[name][0]:.1%} after; mean cosine "
          f"of different classes {before[1]:.3f} before, {trained[name][1]:.3f} after")
circle = CircleLoss(scale_factor=0.001)         # so small that only the weights differ
circle.distance_metric = SimpleNamespace(similarity_matrix=lambda matrix: matrix)
y = torch.tensor([0, 0, 1, 1])
s = torch.full((4, 4), 0.2)                     # pairs 0, 1 and 2, 3 are positive
s[0, 1], s[2, 3], s[0, 2] = 0.9, 0.5, 0.6
circle(s.requires_grad_(), y).backward()
ratio, low, high = (s.grad[0, 1] / s.grad[2, 3]).item(), s.grad[0, 3].item(), s.grad[0, 2].item()
print(f"CircleLoss: gradient at similarity 0.9 over that at 0.5 {ratio:.2f}, by the paper "
      f"{(1.25 - 0.9) / (1.25 - 0.5):.2f}; of a negative pair at 0.2 over that at 0.6 "
      f"{low / high:.2f}, by the paper {(0.2 + 0.25) / (0.6 + 0.25):.2f}")
sys.exit(not (precision[2][0] < 0.1 and precision[2][1] < 0.1 and precision[3][0] < 0.6
              and all(p[0] < 0.95 and p[1] < 0.95 and p[2] == 1 for p in precision.values())
              and abs(values["library"][0] - values["library"][1]) < 1e-3
              and values["reference"][0] < 1e-3 < values["reference"][1]
              and trained["library"][0] < 0.7 < 0.8 < trained["reference"][0]
              and trained["library"][1] > 0.9 > 0.3 > trained["reference"][1]
              and ratio > 1 and low == 0 < high))
END

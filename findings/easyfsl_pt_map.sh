#!/usr/bin/env bash
# easyfsl 1.5.0: PTMAP, a method of few-shot classification, takes every image for the first class.
#
# PTMAP takes the power of the features, "following Equation (1) in the paper", but leaves out the
# division by the length in that equation. Distances are then so large that their exponentials are
# 0, the transport plan is 0 / 0, and every score is NaN. argmax, and so easyfsl's own evaluate,
# takes NaN for the first class: of 5 classes of 5 examples an accuracy of 20.0%, chance, for
# features after a ReLU in 512 dimensions, also a tenth as long, where SimpleShot has 97.5% and the
# same method with the length of 1 has 99.5%.
# Four more in it:
# PTMAP gives the first class to all queries if there are fewer of them than classes, one image
# among them: their number is divided by that of the classes and rounded down to 0.
# Prototypes are of the labels 0, 1, ... only. With a dataset's own labels, such as 1 to 5, the
# first prototype is NaN and the last label is left out: all queries get 0, and accuracy is 0%.
# k_nearest_neighbours(k), "k, not included itself", returns k - 1: LaplacianShot(knn=1) uses none.
# temperature: "higher temperature means softer predictions" is the other way round; with 10 the
# mean of the highest probability of Finetune is 0.35, with 1 0.21.
# Way out: a backbone followed by a normalization of the features, or a class of one's own with it
# after the power, as below; labels from 0.
#
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="pandas==2.3.3 tqdm==4.70.1 matplotlib==3.11.2 torch==2.14.1 torchvision==0.29.1
    numpy==2.4.6"
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
venv/bin/pip install -q --disable-pip-version-check --no-deps easyfsl==1.5.0 || exit 2
OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import sys

import torch
from easyfsl.methods import BDCSPN, PTMAP, Finetune, LaplacianShot, SimpleShot
from easyfsl.methods.utils import compute_prototypes, k_nearest_neighbours
from easyfsl.utils import evaluate
from torch.nn.functional import normalize

torch.manual_seed(0)
classes, each, size = 20, 40, 512
labels = torch.arange(classes).repeat_interleave(each)
centres = torch.randn(classes, size)
features = (centres[labels] + 3 * torch.randn(classes * each, size)).relu()


class Paper(PTMAP):                              # with the length of 1 of Equation (1)
    def compute_features(self, images):
        return normalize(super().compute_features(images), dim=1)


def task(queries):
    y = torch.arange(5)
    take = [torch.where(labels == c)[0][torch.randperm(each)] for c in torch.randperm(classes)[:5]]
    support, query = torch.cat([t[:5] for t in take]), torch.cat([t[5:20] for t in take])
    chosen = torch.randperm(75)[:queries]
    return (features[support], y.repeat_interleave(5), features[query][chosen],
            y.repeat_interleave(15)[chosen])


def predicted(method, support, y, query):
    method.process_support_set(support, y)
    return method(query).detach()


def accuracy(method, scale):                     # by easyfsl's evaluate, of 10 tasks
    torch.manual_seed(0)
    drawn = [task(75) for _ in range(10)]
    return evaluate(method, [(scale * s, y, scale * q, right, list(range(5)))
                             for s, y, q, right in drawn], "cpu", False)


told = {}
for scale in (1, 0.1):
    for name, method in (("PTMAP", PTMAP()), ("with the length of 1", Paper()),
                         ("SimpleShot", SimpleShot()), ("BDCSPN", BDCSPN())):
        told[name, scale] = accuracy(method, scale)
    print(f"features times {scale}: " + ", ".join(
        f"{name} {told[name, scale]:.1%}" for name, s in told if s == scale))


support, y, query, right = task(75)
nan = predicted(PTMAP(), support, y, query).isnan().all().item()
few = {}
for queries in (1, 4, 5, 75):
    hits, first = [], []
    for _ in range(10):
        s, labels_s, q, right_q = task(queries)
        got = predicted(Paper(), s, labels_s, q).argmax(1)
        hits.append((got == right_q).float().mean().item())
        first.append((got == 0).float().mean().item())
    few[queries] = sum(first) / 10, sum(hits) / 10
    print(f"PTMAP with the length of 1, {queries} queries: {few[queries][0]:.0%} are said to be of "
          f"the first class, accuracy {few[queries][1]:.0%}")
got = predicted(SimpleShot(), support, y + 1, query).argmax(1)
prototypes = compute_prototypes(support, y + 1)
shifted = (got == right + 1).float().mean().item(), (got == 0).float().mean().item()
whole = (predicted(SimpleShot(), support, y, query).argmax(1) == right).float().mean().item()
print(f"SimpleShot, labels from 0: {whole:.1%}; from 1: {shifted[0]:.1%}, class 0 for "
      f"{shifted[1]:.0%}; prototypes that are NaN {prototypes.isnan().all(1).tolist()}, and of "
      f"label 5 none: {len(prototypes)} prototypes")
neighbours = {k: k_nearest_neighbours(query, k).shape[1] for k in (1, 3, 10)}
links = LaplacianShot(knn=1).compute_pairwise_affinities(query).sum().item()
print(f"k_nearest_neighbours: {neighbours}; LaplacianShot(knn=1) has {links:.0f} links")
sure = {t: predicted(Finetune(temperature=t, use_softmax=True), support, y, query).max(1).values
        .mean().item() for t in (1.0, 10.0)}
print(f"Finetune, mean of the highest probability by temperature: {sure}")
sys.exit(not (
    nan and abs(told["PTMAP", 1] - 0.2) < 1e-9 and abs(told["PTMAP", 0.1] - 0.2) < 1e-9
    and all(told[name, scale] > 0.9 for scale in (1, 0.1)
            for name in ("with the length of 1", "SimpleShot", "BDCSPN"))
    and few[1][0] == few[4][0] == 1 and few[75][1] > 0.9 and few[5][0] < 0.6
    and whole > 0.9 and shifted == (0, 1)
    and prototypes.isnan().all(1).tolist() == [True] + [False] * 4
    and torch.allclose(prototypes[1], support[:5].mean(0)) and len(prototypes) == 5
    and neighbours == {1: 0, 3: 2, 10: 9} and links == 0 and sure[10.0] > sure[1.0] + 0.1))
END

#!/usr/bin/env bash
# monai 1.6.1 with torch 2.14.1: EmbeddingCollapseMetric's domain_shift is not of two domains, and
# MMDMetric compares nothing but means.
#
# domain_shift is a linear CKA, which compares two networks on the same images, row by row. Source
# and target are different images, so the rows' order decides. A set of 200 embeddings has 1.000
# against itself and 0.028 against itself in another order; another domain, with class centres of
# its own, has 0.857 if both are sorted by class. Moved by 100, mirrored or rotated the set still
# has 1.000: a shift of the domain is what it does not see. With one target image more, a random
# part of the target is taken, in random order: 0.057 instead of 1.000.
# Its HSIC, "unbiased" by its docstring, is the biased one: noise and other noise in 512 dimensions
# have 0.964 with 20 images each, 0.719 with 200, 0.205 with 2,000.
# 1 counts as collapsed, and aggregate is by default the highest of all: embeddings of an R@1 of
# 100% have 0.500 without a target, 0.857 with the other domain.
# MMDMetric without y_mapping, its default, has a linear kernel and so compares means only;
# y_mapping changes each sample by itself, so it cannot make the kernel a Gaussian one. Samples of
# standard deviation 1 and 30 have an MMD of -1.65 and seem nearer than two halves of one sample,
# one of them moved by 0.5, with 0.29.
# Way out: include_indicators without "domain_shift"; an MMD with a Gaussian kernel of one's own.
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
venv/bin/pip install -q --disable-pip-version-check --no-deps monai==1.6.1 || exit 2
OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import sys

import torch
from monai.metrics import EmbeddingCollapseMetric, MMDMetric

metric = EmbeddingCollapseMetric()


def shift(source, target):
    return metric(source, target_embeddings=target)["domain_shift"].item()


generator = torch.Generator().manual_seed(0)


def noise(*size):
    return torch.randn(*size, generator=generator)


labels = torch.arange(5).repeat_interleave(40)
source = 3 * noise(5, 64)[labels] + noise(200, 64)
other = 3 * noise(5, 64)[labels] + noise(200, 64)
order = torch.randperm(200, generator=generator)
turn = torch.linalg.qr(noise(64, 64))[0]
told = {name: shift(source, target) for name, target in (
    ("itself", source), ("itself in another order", source[order]),
    ("itself and one image more", torch.cat([source, other[:1]])),
    ("itself moved by 100", source + 100), ("itself mirrored", -source),
    ("itself rotated", source @ turn),
    ("another domain, both sorted by class", other),
    ("another domain in another order", other[order]))}
for name, value in told.items():
    print(f"domain_shift of 200 embeddings and {name}: {value:.3f}")
for n in (20, 200, 2000):
    told[n] = shift(noise(n, 512), noise(n, 512))
    print(f"domain_shift of noise and other noise, {n} images each, 512 dimensions: {told[n]:.3f}")
x = torch.nn.functional.normalize(source, dim=1)
similarity = (x @ x.T).fill_diagonal_(-9)
right = (labels[similarity.argmax(1)] == labels).float().mean().item()
alone = metric(source, labels)["aggregate"].item()
both = metric(source, labels, target_embeddings=other)["aggregate"].item()
print(f"aggregate of embeddings with an R@1 of {right:.0%}: {alone:.3f} without a target, "
      f"{both:.3f} with the other domain")
one, wide = noise(1000, 8), 30 * noise(1000, 8)
mmd = MMDMetric()
spread = mmd(one, wide).item()
moved = mmd(one[:500], one[500:] + 0.5 * 8 ** -0.5 * torch.ones(8)).item()
print(f"MMD of samples of standard deviation 1 and 30: {spread:.2f}; of two halves of one sample, "
      f"one of them moved by 0.5: {moved:.2f}")
same = [told[f"itself{name}"] for name in ("", " moved by 100", " mirrored", " rotated")]
sys.exit(not (min(same) > 0.99 and told["itself in another order"] < 0.2
              and told["itself and one image more"] < 0.2
              and told["another domain, both sorted by class"] > 0.8
              and told["another domain in another order"] < 0.2 and told[20] > 0.9
              and told[2000] < 0.3 and right == 1 and alone < 0.6 and both > 0.8
              and spread < moved))
END

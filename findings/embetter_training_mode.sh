#!/usr/bin/env bash
# embetter 0.9.1, TimmEncoder: it embeds with the network in training mode.
#
# timm gives a network in training mode, and embetter does not call eval(), though it cannot train.
# So each batch norm takes the statistics of the one image at hand instead of those it was trained
# with: the embedding is that of another network, and knows little of an image's brightness and
# contrast. Embedding an image also changes the network's running statistics, so that whoever saves
# it, or calls eval() later, has other ones than were loaded. Nothing warns.
# Way out: encoder.model.eval() before the first image.
#
# Here statistics of random photos stand for those of a training, so nothing is downloaded.
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="embetter==0.9.1 timm==1.0.31 torch==2.14.1 torchvision==0.29.1 numpy==2.4.6
    pillow==13.0.0"
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
HF_HUB_OFFLINE=1 HF_HOME=. venv/bin/python -W ignore - <<'END' 2> /dev/null
import functools
import sys

import numpy as np
import timm
import torch
from PIL import Image

made = timm.create_model
timm.create_model = lambda name, pretrained, **settings: made(name, pretrained=False, **settings)
from embetter.vision import TimmEncoder

torch.manual_seed(0)
rng = np.random.default_rng(0)


@functools.cache
def photo(number):
    """A smooth random picture of random brightness and contrast"""
    coarse = rng.uniform(0, 1, (6, 6, 3)) * rng.uniform(0.1, 1)
    coarse = 255 * (coarse + rng.uniform(0, 1 - coarse.max()))
    return Image.fromarray(coarse.astype(np.uint8)).resize((256, 256), Image.Resampling.BICUBIC)


encoder = TimmEncoder("resnet18")
network = encoder.model
print("the network of a new encoder is in training mode:", network.training)
training = network.training
norms = [layer for layer in network.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
for momentum in (None, 0.1):  # the mean over ten batches stands for a training's statistics
    for layer in norms:
        layer.momentum = momentum
    for i in range(0, 100 if momentum is None else 0, 10):
        with torch.no_grad():
            network(torch.stack([encoder.transform_img(photo(j)) for j in range(i, i + 10)]))
network.eval()
loaded = {name: value.clone() for name, value in network.state_dict().items()}
photos = [photo(i) for i in range(100, 160)]
right = torch.from_numpy(encoder.transform(photos))
unchanged = all(torch.equal(loaded[name], value) for name, value in network.state_dict().items())
network.train()  # as it was
given = torch.from_numpy(encoder.transform(photos))
changed = [name for name, value in network.state_dict().items()
           if not torch.equal(loaded[name], value)]
off = ((given - right).norm(dim=1) / right.norm(dim=1)).mean().item()
neighbour = [torch.cdist(x, x).fill_diagonal_(torch.inf).argmin(1) for x in (right, given)]
same = (neighbour[0] == neighbour[1]).float().mean().item()
print(f"60 photos: embeddings differ by {off:.0%} from those in eval mode, "
      f"{same:.0%} keep their nearest neighbour")
print(f"tensors of the network changed by embedding: {len(changed)} of {len(loaded)}, "
      f"in eval mode {0 if unchanged else 'some'}")
dim = Image.eval(photos[0], lambda value: value // 2)
apart = []
for mode in (False, True):
    network.train(mode)
    a, b = torch.from_numpy(encoder.transform([photos[0], dim]))
    apart.append(((a - b).norm() / a.norm()).item())
print(f"a photo and one half as bright are apart by {apart[0]:.1%} in eval mode, "
      f"{apart[1]:.1%} in training mode")
sys.exit(not (training and unchanged and len(changed) > 30 and off > 0.1 and same < 0.8))
END

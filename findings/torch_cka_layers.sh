#!/usr/bin/env bash
# torch_cka 0.21 and ckatorch 1.0.3, which compare two networks layer by layer by CKA, give the
# rows and columns of their matrix the names of other layers.
#
# The names are in the order in which the layers were registered, the whole network and each block
# before their parts; the rows are in the order in which the layers end, the whole network last. By
# default torch_cka takes all layers, and then of a ResNet-18's 68 rows none has its own name. Of
# two networks that share all but the last layer, "head", export() says that "block.2", which is
# shared, has a CKA of 0.46. ckatorch, asked for "stem", "block", its three parts and "head", gives
# two of the six their own row.
# Three more in them:
# One network on two data sets, as in torch_cka's README, has a CKA of 1 in every layer whatever the
# data sets are: the second pass overwrites what was kept of the first. With a copy of the network
# two sets of noise have 0.0.
# With a shuffled loader, seeded as its tips ask for, torch_cka shows the networks different images:
# a network and its copy have a CKA of 0.0 in every layer, unshuffled 1.
# ckatorch keeps only the last batch of an epoch: of 33 images in
# batches of 32 the last image alone decides, other images in front of it change nothing.
# Way out: torch_cka with shuffle=False, a copy.deepcopy() of the network, and names taken from
# list(cka.model1_features) and list(cka.model2_features) after compare(). ckatorch's cka_batch()
# on features of one's own.
#
# matplotlib, seaborn, yaml and safetensors, which they import for plots and files, are replaced by
# empty modules: nothing here uses them.
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
venv/bin/pip install -q --disable-pip-version-check --no-deps torch_cka==0.21 ckatorch==1.0.3 \
    || exit 2
OMP_NUM_THREADS=1 venv/bin/python -W ignore - 2> errors <<'END'
import sys
from unittest.mock import MagicMock

for name in ("matplotlib", "matplotlib.pyplot", "mpl_toolkits", "mpl_toolkits.axes_grid1",
             "seaborn", "yaml", "safetensors", "safetensors.torch"):
    sys.modules[name] = MagicMock()
import ckatorch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_cka import CKA
from torchvision.models import resnet18

shared = ["stem", "block", "block.0", "block.1", "block.2"]


class Network(nn.Module):
    def __init__(self, seed, head_seed=None):
        super().__init__()
        torch.manual_seed(seed)
        self.stem = nn.Linear(16, 64)
        self.block = nn.Sequential(nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        torch.manual_seed(seed + 100 if head_seed is None else head_seed)
        self.head = nn.Linear(64, 16)

    def forward(self, x):
        return self.head(self.block(self.stem(x)))


def loader(*data, size=64, **more):
    return DataLoader(TensorDataset(*data), size, **more)


def compared(first, second, *loaders):
    cka = CKA(first, second, "first", "second")
    cka.compare(*loaders)
    result = cka.export()
    diagonal = result["CKA"].diagonal().tolist()
    return (dict(zip(result["model1_layers"], diagonal)),           # by the names of the library
            dict(zip(cka.model1_features, diagonal)),               # by the order of the rows
            result)


torch.manual_seed(1)
x, z = torch.randn(256, 16), torch.randn(256, 16)
named, rows, _ = compared(Network(0), Network(0, head_seed=7), loader(x))
print("torch_cka, two networks that share all but head, by its names:",
      {k: round(v, 2) for k, v in named.items()})
print("by the order in which the layers end:", {k: round(v, 2) for k, v in rows.items()})

first, second = resnet18().eval(), resnet18().eval()
cka = CKA(first, second, "first", "second")
with torch.no_grad():
    cka.compare(loader(torch.randn(8, 3, 32, 32), size=8))
resnet = cka.export()["model1_layers"], list(cka.model1_features)
right = sum(a == b for a, b in zip(*resnet))
print(f"ResNet-18: {right} of {len(resnet[1])} rows have their own name; {resnet[0][:3]} are "
      f"{resnet[1][:3]}")

one = Network(0)
same = compared(one, one, loader(x), loader(z))[1]
copy = compared(Network(0), Network(0), loader(x), loader(z))[1]
print(f"one network on two sets of noise: CKA {min(same.values()):.3f} to "
      f"{max(same.values()):.3f}; with a copy of it {min(copy.values()):.3f} to "
      f"{max(copy.values()):.3f}")

order = {}
for shuffle in (False, True):
    order[shuffle] = compared(Network(0), Network(0), loader(
        x, shuffle=shuffle, generator=torch.Generator().manual_seed(0)))[1]
    print(f"a network and its copy, shuffle={shuffle}: CKA {min(order[shuffle].values()):.3f} to "
          f"{max(order[shuffle].values()):.3f}")

tokens = torch.randn(33, 20, 16)
cka = ckatorch.CKA(Network(0), Network(0, head_seed=7), shared + ["head"],
                   first_name="first", second_name="second")
base = cka(loader(tokens, size=32), epochs=1)
names, features = cka.first_model_info.layers, list(cka.first_features)
print("ckatorch, the same two, its names:", names, "the rows:", features)
before, last = tokens.clone(), tokens.clone()
before[:32], last[32] = torch.randn(32, 20, 16), torch.randn(20, 16)
moved = [(cka(loader(t, size=32), epochs=1) - base).abs().max().item() for t in (before, last)]
print(f"ckatorch, other images: the first 32 of 33 move the matrix by up to {moved[0]}, the last "
      f"one by up to {moved[1]:.3f}")
sys.exit(not (
    all(rows[k] > 0.999 for k in shared) and rows["head"] < 0.6 and named["block.2"] < 0.6
    and named[""] > 0.999 and right == 0 and len(resnet[1]) == len(resnet[0]) == 68
    and min(same.values()) > 0.999 and max(map(abs, copy.values())) < 0.1
    and min(order[False].values()) > 0.999 and max(map(abs, order[True].values())) < 0.1
    and len(names) == 6 and sum(a == b for a, b in zip(names, features)) == 2
    and moved[0] == 0 and moved[1] > 0.01))
END
status=$?
[ $status -eq 0 ] || grep -v Compar errors >&2
exit $status

#!/usr/bin/env bash
# accelerate 1.15.0: gather_for_metrics drops part of the last batch, or keeps its padding, if the
# DataLoader has a sampler that yields a part of the dataset.
#
# It cuts the last batch to the remainder of the length of the *dataset* by the batch size, where
# the number of images that the sampler yields would be right. It does so with one process too,
# where there is nothing to cut. Queries and gallery are often two samplers over one dataset: of 100
# queries in one batch of 100, from a dataset of 1,001 images, one is left, and R@1 is 0%, where it
# is 35% over all; of 200 queries 101 are left. At worst all of a batch but one image is lost. With
# two processes and batches of 16, the 100 queries are padded to 128, and 105 come back, 5 of them
# twice.
# Way out: torch.utils.data.Subset instead of a sampler, so that the dataset has the length that is
# read.
#
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="accelerate==1.15.0 torch==2.14.1 torchvision==0.29.1 numpy==2.4.6"
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
cat > show.py <<'END'
import os
import sys

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Subset, SubsetRandomSampler, TensorDataset

generator = torch.Generator().manual_seed(0)
labels = torch.arange(1001) % 100
centres = torch.randn(100, 16, generator=generator)
images = torch.nn.functional.normalize(
    centres[labels] + 1.1 * torch.randn(1001, 16, generator=generator))
dataset = TensorDataset(images, labels, torch.arange(1001))
accelerator = Accelerator(cpu=True)
torch.manual_seed(0)


def judged(loader):
    rows = [accelerator.gather_for_metrics(batch) for batch in accelerator.prepare(loader)]
    x, y, number = (torch.cat(column) for column in zip(*rows))
    similarity = x @ images.T
    similarity[torch.arange(len(x)), number] = -2           # not the query itself
    hits = labels[similarity.argmax(1)] == y
    return len(x), len(set(number.tolist())), hits.float().mean().item()


told = {}
cases = ((100, 16),) if accelerator.num_processes == 2 else ((100, 100), (200, 100), (96, 32))
for queries, batch in cases:
    chosen = torch.randperm(1001, generator=generator)[:queries].tolist()
    for name, loader in (
            ("sampler", DataLoader(dataset, batch, sampler=SubsetRandomSampler(chosen))),
            ("Subset", DataLoader(Subset(dataset, chosen), batch))):
        count, different, recall = told[name, queries] = judged(loader)
        if accelerator.is_main_process:
            print(f"{accelerator.num_processes} processes, {name}, {queries} queries in batches of "
                  f"{batch}: {count} come back, {different} different ones, R@1 {recall:.1%}")
if accelerator.num_processes == 2:
    accelerator.end_training()
    sys.exit(told["sampler", 100][:2] != (105, 100) or told["Subset", 100][0] != 100)
sys.exit(told["sampler", 100][0] != 1 or told["sampler", 200][0] != 101
         or told["Subset", 100][0] != 100 or told["Subset", 200][0] != 200)
END
export OMP_NUM_THREADS=1
venv/bin/python -W ignore show.py || exit 1
export ACCELERATE_USE_CPU=true WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1
export MASTER_PORT=$((20000 + RANDOM % 10000))
RANK=1 LOCAL_RANK=1 venv/bin/python -W ignore show.py > second 2>&1 &
RANK=0 LOCAL_RANK=0 venv/bin/python -W ignore show.py
status=$?
wait
exit $((status != 0))

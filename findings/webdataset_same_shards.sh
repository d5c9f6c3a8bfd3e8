#!/usr/bin/env bash
# webdataset 1.0.2: WebDataset(shardshuffle=...) shuffles the shards once and for all; with_epoch()
# shorter than the data then trains on the same first shards in every epoch.
#
# Without a seed of the user's it draws one when it is built, and starts a new generator from it
# whenever it is iterated: all epochs see the shards in one order. An epoch of with_epoch(n) starts
# again at the first of them, so of 100 shards with 10 images each, 20 epochs of 100 images show
# 100 of the 1,000 images, 10 of 100 classes if a shard holds a class, and never the rest. Shuffled
# anew in each epoch, as by resampled=True, they would show more than 800. Two workers: 200 images,
# the same ones in each epoch. detshuffle=True counts the epochs, but in a DataLoader's workers,
# which are new in each epoch, it does not either.
# (Reported: its pull request 502, open since July 2026, tells of the order; 299 of detshuffle.)
# Way out: resampled=True, or a pipeline of one's own, as at the end below.
#
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="webdataset==1.0.2 braceexpand==0.1.7 pyyaml==6.0.4"
packages="$packages torch==2.14.1 torchvision==0.29.1 numpy==2.4.6"
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
import random
import sys

import webdataset as wds
from torch.utils.data import DataLoader

for shard in range(100):
    with wds.TarWriter(f"{shard:05d}.tar") as tar:
        for i in range(10):
            tar.write({"__key__": f"{shard:03d}{i}", "cls": shard})
urls = "{00000..00099}.tar"
random.seed(0)


def pipeline(**options):
    return wds.WebDataset(urls, **options).decode().to_tuple("__key__", "cls").with_epoch(100)


own = wds.DataPipeline(wds.SimpleShardList(urls), wds.shuffle(100), wds.split_by_worker,
                       wds.tarfile_to_samples(), wds.decode(),
                       wds.to_tuple("__key__", "cls")).with_epoch(100)
told = {}
for name, workers, dataset in (("shardshuffle=100", 0, pipeline(shardshuffle=100)),
                               ("shardshuffle=100", 2, pipeline(shardshuffle=100)),
                               ("detshuffle=True", 0, pipeline(shardshuffle=100, detshuffle=True)),
                               ("detshuffle=True", 2, pipeline(shardshuffle=100, detshuffle=True)),
                               ("resampled=True", 0, pipeline(resampled=True)),
                               ("a pipeline of one's own", 0, own)):
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    seen, classes, read, first = set(), set(), 0, []
    for epoch in range(20):
        images = list(loader)
        read += len(images)
        seen.update(key for key, _ in images)
        classes.update(label for _, label in images)
        first.append(tuple(dict.fromkeys(label for _, label in images))[:3])
    told[name, workers] = len(seen)
    print(f"{name}, {workers} workers: 20 epochs read {read:,} images, {len(seen)} different ones "
          f"of 1,000, of {len(classes)} classes; first shards of the first epochs", *first[:3])
sys.exit(not (told["shardshuffle=100", 0] == 100 and told["shardshuffle=100", 2] == 200
              and told["detshuffle=True", 2] == 200 and told["detshuffle=True", 0] > 700
              and told["resampled=True", 0] > 700 and told["a pipeline of one's own", 0] > 700))
END
OMP_NUM_THREADS=1 venv/bin/python -W ignore show.py

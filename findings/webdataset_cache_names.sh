#!/usr/bin/env bash
# webdataset 1.0.2 and wids 0.1.11: with cache_dir=, shards of one file name in different folders
# are one shard, the one that was read first.
#
# The cache keeps a shard under the last part of its address. train/000000.tar and val/000000.tar
# (img2dataset calls its shards 00000.tar and on, whatever the data) share a place in a cache, so a
# validation after a first epoch of training reads training images: all 200 of 200. Two data sets
# in one list give the images of the first twice and none of the second. In webdataset this holds
# for http, s3 and gs addresses, local files are not cached; the argument url_to_name=, meant as the
# way out, is taken and not used. wids' ShardListDataset does it to local files too.
# (Reported for webdataset in its issue 471 and pull request 470, open since June 2025.)
# Way out: a cache_dir for each folder, or wids without cache_dir, which keeps whole addresses.
#
# The shards come from a server that this script starts for itself; webdataset needs curl for that.
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="webdataset==1.0.2 wids==0.1.11 braceexpand==0.1.7 pyyaml==6.0.4"
packages="$packages torch==2.14.1 torchvision==0.29.1 numpy==2.4.6"
command -v curl > /dev/null || exit 2
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
OMP_NUM_THREADS=1 NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 venv/bin/python -W ignore - <<'END'
import contextlib
import functools
import io
import os
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import webdataset as wds
import wids

SHARDS = {"train": 10, "val": 2}
for part, count in SHARDS.items():
    os.mkdir(part)
    for shard in range(count):
        with wds.TarWriter(f"{part}/{shard:06d}.tar") as tar:
            for i in range(100):
                tar.write({"__key__": f"{shard:06d}{i:03d}", "txt": f"{part} {shard} {i}"})


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory="."))
threading.Thread(target=server.serve_forever, daemon=True).start()
here = f"http://127.0.0.1:{server.server_port}"


def read(cache, *parts, **options):
    os.makedirs(cache, exist_ok=True)
    addresses = [f"{here}/{part}/{i:06d}.tar" for part in parts for i in range(SHARDS[part])]
    dataset = wds.WebDataset(addresses, shardshuffle=False, cache_dir=cache, **options)
    return [sample["txt"].decode() for sample in dataset]


def read_wids(cache, part):
    shards = [{"url": os.path.abspath(f"{part}/{i:06d}.tar"), "nsamples": 100}
              for i in range(SHARDS[part])]
    with contextlib.redirect_stderr(io.StringIO()):
        dataset = wids.ShardListDataset(shards, transformations=lambda x: x, cache_dir=cache)
    return [dataset[i][".txt"].read().decode() for i in range(len(dataset))]


told = {}
first = read("one", "train")
for name, images in (
        ("webdataset, one cache, training first", read("one", "val")),
        ("the same with url_to_name=", [read("two", part, url_to_name=lambda x: x.replace("/", "_"))
                                        for part in ("train", "val")][1]),
        ("webdataset, a cache of its own", read("three", "val")),
        ("wids, one cache, local files", [read_wids("four", part) for part in ("train", "val")][1]),
        ("wids, a cache of its own", read_wids("five", "val"))):
    told[name] = sum(x in first for x in images)
    print(f"{name}: of {len(images)} validation images {told[name]} are training images")
both = read("six", "train", "val")
print(f"both in one list: {len(both):,} images, {len(set(both)):,} different ones, "
      f"{sum(x.startswith('val') for x in both)} of validation")
sys.exit(list(told.values()) != [200, 200, 0, 200, 0] or len(set(both)) != 1000)
END

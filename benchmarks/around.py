"""What surrounds the training: samplers, checkpoints, a look at photos, a cache, a search.

    python benchmarks/around.py         a minute on one quiet core; status 1: a goal is missed

The sizes are those of Stanford Online Products, 59,551 training images of 11,318 classes, and of
20,000 photos of one's own.  Each is the least of three turns.  Goals in seconds are six times what
a quiet core of an AMD EPYC (family 25, model 17) took; those of caches and search are ratios.
"""
import bench  # noqa: I001  first: sets the threads

import tempfile
import time
from argparse import Namespace
from pathlib import Path

import torch

import dml_da
import jrd
import mdr
from decoding import files, measure
from report import judge, search
from support.command_line import Parser, cores
from support.files import load_torch, save_torch
from support.images import MANY, ImageFiles, cache_images
from support.photos import decode, identity

TURNS = 3


def least(function):
    """The least seconds of three turns"""
    spent = []
    for _ in range(TURNS):
        start = time.perf_counter()
        function()
        spent.append(time.perf_counter() - start)
    return min(spent)


def samplers(_):
    """-> rows: all batches of an epoch of Stanford Online Products"""
    labels = torch.arange(59551) % 11318
    for script, goal in ((mdr, 0.6), (dml_da, 2.4)):
        cfg = script.parse_args(["--dataset", "sop"])
        seconds = least(lambda: script.batches(labels, cfg, 0))
        yield f"batches of an epoch of SOP, {script.__name__}.py, s", seconds, goal


def checkpoints(folder):
    """-> rows: DML-DA's 11,318 targets, each a parameter with Adam's state"""
    targets = torch.nn.ParameterList(torch.nn.Parameter(torch.tensor(0.5)) for _ in range(11318))
    optimizer = torch.optim.Adam(targets.parameters())
    torch.stack([*targets]).sum().backward()
    optimizer.step()
    state = {"alpha": targets.state_dict(), "optimizer": optimizer.state_dict()}
    path = folder / "last.pt"
    yield "11,318 targets into a checkpoint, s", least(lambda: save_torch(path, state)), 0.9
    yield "... and out of it, s", least(lambda: load_torch(path)), 2.2


def photos(folder):
    """-> a row: what tells 20,000 photos from others, before each run"""
    content, rows = files("JPEG", 200, 150, 1)[0], {}
    for i in range(20000):
        path = folder / f"{i % 100}" / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        rows[path] = path.parent.name
    seconds = least(lambda: identity(folder, {"train": rows}, False))
    yield "identity of 20,000 photos, s", seconds, 5


def caches(folder):
    """-> rows: an image from the cache over one from its JPEG of 500 × 375, in CPU time"""
    paths = []
    for i, content in enumerate(files("JPEG", 500, 375, 24, quality=75)):
        paths.append(folder / f"{i}.jpg")
        paths[-1].write_bytes(content)
    for script in (mdr, dml_da):
        prefix = script.transforms(script.parse_args(["--dataset", "cub"]))[0]
        uncached = ImageFiles(paths, prefix, decode)
        cached = cache_images(uncached, folder / script.__name__, "x")
        numbers = range(len(paths))
        ours, theirs = measure(numbers, cached.__getitem__, uncached.__getitem__)
        yield f"an image from {script.__name__}.py's cache over its file", ours / theirs, 0.1


def builds(folder):
    """-> a row: a cache built on all cores over its images read by one, by the clock"""
    paths, contents = [], files("JPEG", 500, 375, 32, quality=75)
    for i in range(MANY):
        paths.append(folder / f"{i}.jpg")
        paths[-1].write_bytes(contents[i % 32])
    prefix = mdr.transforms(mdr.parse_args(["--dataset", "cub"]))[0]
    images, places = ImageFiles(paths, prefix, decode), iter(range(TURNS))
    built = least(lambda: cache_images(images, folder / f"{next(places)}", "x"))
    read = least(lambda: [images[i] for i in range(len(paths))])
    yield f"a cache built on {cores()} cores over its images read by one", built / read, 1.1


def searches(folder):
    """-> a row: eval.py --query's look at 1,000 photos, the second over the first"""
    cfg = jrd.parse_args(["--device", "cpu"])
    content, place = files("JPEG", 200, 150, 1)[0], folder / "photos"
    args = Namespace(file=str(folder / "last.pt"), no_cache=False, gallery=place)
    place.mkdir()
    for i in range(1000):
        (place / f"{i}.jpg").write_bytes(content)
    jrd.common.settle(cfg)
    network = jrd.Network(cfg, 2).eval()
    save_torch(args.file, network.state_dict())
    data, spent = judge.images_to_search(place, jrd.transforms(cfg)[2]), []
    for _ in range(2):
        start = time.process_time()
        search.embed_searched(args, "", network, cfg, data)
        spent.append(time.process_time() - start)
    yield "a second search of 1,000 photos over the first", spent[1] / spent[0], 0.15


def main():
    bench.header("What surrounds the training", threads=1)
    rows = [("task", [], "measured", "goal")]
    with tempfile.TemporaryDirectory() as folder:
        for part in (samplers, checkpoints, photos, caches, builds, searches):
            place = Path(folder, part.__name__)
            place.mkdir()
            rows += [(task, [], value, goal) for task, value, goal in part(place)]
    print()
    bench.goals(rows)


if __name__ == "__main__":
    Parser("benchmarks/around.py", __doc__).parse_args()
    main()

"""Images a second on one core: from the cache, and by decoding the JPEGs in every epoch.

    python benchmarks/data.py            about two minutes

400 generated JPEGs of 500 × 375, quality 90, about as many bytes as a photograph of CUB, in four
classes, of which two (200 images) train.  Both paths are what training has: load_dataset (with its
cache, or without), the script's own transforms and train_loader, in one process with one thread
(workers = 0), so the seeding of each image and the collation of batches are in it.  An epoch of one
path and an epoch of the other follow each other (A, B, A, B, ...); the file system's cache is warm
for both.  Building the cache is timed apart.

It prints images/s of both, their ratio (median over the turns; also
in CPU seconds, which other jobs on the machine disturb less), the size of the cache, whether both
gave the same bytes, and the targets: 10 × for MDR and DML-DA, 4 × for JRD.
"""
import bench  # noqa: I001  first: sets the threads

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import PIL.Image
import torch

import common
import dml_da
import jrd
import mdr

TARGETS = {"jrd": 4, "mdr": 10, "dml_da": 10}
PAPERS = {"jrd": jrd, "mdr": mdr, "dml_da": dml_da}


def photograph(draw, width=500, height=375):
    """Noise at every scale, coarse scales louder: a spectrum like that of natural images."""
    image = np.zeros((height, width, 3), np.float32)
    for scale in (1, 2, 4, 8, 16, 32, 64, 128):
        grain = draw.standard_normal((height // scale + 2, width // scale + 2, 3))
        grain = grain * 0.4 + grain.mean(2, keepdims=True)              # more light than colour
        layer = [np.asarray(PIL.Image.fromarray(grain[..., c].astype(np.float32)).resize(
            (width, height), PIL.Image.BICUBIC)) for c in range(3)]
        image += np.stack(layer, 2) * scale ** 0.1
    image = 128 + 45 * (image - image.mean()) / image.std()
    return PIL.Image.fromarray(np.clip(image, 0, 255).astype(np.uint8))


def generate(folder, images):
    """Four classes of JPEGs -> their mean size in bytes"""
    draw = np.random.default_rng(0)
    for i in range(images):
        path = folder / f"class{4 * i // images}" / f"{i:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        photograph(draw).save(path, quality=90)
    return statistics.mean(path.stat().st_size for path in folder.rglob("*.jpg"))


def paths(name, folder, root):
    """-> {"cached": epoch, "decoded": epoch}, bytes of the training cache, seconds to build both
    halves of it; epoch(number) runs through the training images once."""
    cfg = PAPERS[name].parse_args(["--dataset", str(folder), "--workers", "0"])
    prefix, augment, _ = PAPERS[name].transforms(cfg)
    start = time.perf_counter()
    cached = common.load_dataset(str(folder), root, prefix, prefix).train
    built = time.perf_counter() - start
    decoded = common.load_dataset(str(folder), root, prefix, prefix, cache=False).train

    def epochs(split):
        loader = common.train_loader(split, augment, lambda epoch: common.shuffled(
            len(split), cfg.batch, cfg.seed, epoch), cfg, "cpu")

        def epoch(number):
            return [images for images, _ in loader(number)]
        return epoch
    size = sum(path.stat().st_size for path in Path(root, ".cache").glob("*-train-*.images"))
    return SimpleNamespace(cached=epochs(cached), decoded=epochs(decoded), n=len(cached),
                           bytes=size, built=built)


def main(args):
    torch.set_num_threads(1)
    bench.header("One epoch of training images, one process, one thread", "torchvision", "pillow",
                 "numpy", threads=1)
    rows, targets = [], []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "photographs")
        size = generate(folder, args.images)
        print(f"{args.images} JPEGs of 500 × 375, {size / 1000:.0f} kB on average")
        for name in args.papers:
            path = paths(name, folder, Path(place, name))
            same = all(map(torch.equal, path.cached(0), path.decoded(0)))      # and warm both up
            seconds, busy = bench.in_turn({"decoded": lambda: path.decoded(1),
                                           "cached": lambda: path.cached(1)}, args.repeats)
            faster, less = (bench.ratio(s, "decoded", "cached") for s in (seconds, busy))
            speed = {k: path.n / statistics.median(v) for k, v in seconds.items()}
            rows.append([name, f"{speed['decoded']:,.0f}", f"{speed['cached']:,.0f}",
                         f"{faster:.1f} ×", f"{less:.1f} ×", "yes" if same else "NO",
                         f"{path.bytes / path.n / 1e3:.0f}",
                         f"{2 * path.n / path.built:,.0f}"])
            targets.append((f"{name}: at least {TARGETS[name]} ×", f"{faster:.1f} ×",
                            faster >= TARGETS[name]))
    bench.table(["transform", "decoded images/s", "cached images/s", "ratio", "of CPU s",
                 "same bytes", "cached kB an image", "built images/s (all cores)"], rows)
    for line in targets:
        bench.target(*line)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--papers", nargs="+", choices=tuple(PAPERS), default=list(PAPERS))
    parser.add_argument("--images", type=int, default=400, help="JPEGs to generate (400)")
    parser.add_argument("--repeats", type=int, default=5, help="epochs of each path (5)")
    return parser.parse_args()


if __name__ == "__main__":
    main(parse_args())

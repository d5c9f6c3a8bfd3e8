"""The images of a dataset, uint8 RGB (3, h, w): decoding, the cache, splits, held-out classes."""
import argparse
import collections
import glob
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import filelock
import numpy as np
import PIL.Image
import torch
from PIL import ImageOps
from torchvision.transforms import v2
from tqdm import tqdm
from tqdm.contrib.concurrent import thread_map

from support import glyphs
from support.command_line import cores, data_root
from support.files import UserError, atomic, digest, listed, sha256
from support.layouts import COUNTS, SMALLER, read_dataset


def decode(path, as_stored=False):
    """An image file -> an RGB PIL image, as a viewer shows it: upright, transparent parts on white,
    16-bit grey scaled to 8 bits.  as_stored: without all this, as the papers' authors read."""
    try:
        with PIL.Image.open(path) as image:
            if as_stored:
                return image.convert("RGB")
            if image.mode in ("I", "F"):
                raise ValueError(f"mode {image.mode} does not say what is white; save 8 or 16 bits")
            image = ImageOps.exif_transpose(image)
            if image.mode.startswith("I;16"):
                image = PIL.Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            if image.has_transparency_data:
                white = PIL.Image.new("RGBA", image.size, "white")
                image = PIL.Image.alpha_composite(white, image.convert("RGBA"))
            return image.convert("RGB")
    except Exception as error:              # Pillow fails in a dozen ways on damaged files
        raise UserError(f"cannot read the image {path}: {error}")


def to_tensor(prefix, image):
    """The deterministic part of a transform, applied by PIL -> uint8 (3, h, w)"""
    return v2.functional.pil_to_tensor(prefix(image) if prefix else image)


class ImageFiles:
    """Indexable images from files, through the deterministic part of a transform."""
    whole = None                                    # CachedImages has all of them as one tensor

    def __init__(self, paths, prefix, as_stored=False):
        self.paths, self.prefix, self.as_stored = paths, prefix, as_stored

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return to_tensor(self.prefix, decode(self.paths[i], self.as_stored))


# ---------------------------------------------------------------------------- the cache
CACHE_FORMAT, CHUNK = 3, 256               # CHUNK: images in memory at once while it is built


class CachedImages:
    """Indexable images from a cache file; whole: all as one tensor (n, 3, h, w)."""

    def __init__(self, path):
        images = np.lib.format.open_memmap(path, "c")               # (n, h, w, 3), as PIL has them
        self.path, self.whole = path, torch.from_numpy(images).permute(0, 3, 1, 2)

    def __reduce__(self):                          # a worker gets the path, not the file's content
        return CachedImages, (self.path,)

    def __len__(self):
        return len(self.whole)

    def __getitem__(self, i):
        return self.whole[i].clone()


def cache_images(files, place, sources):
    """ImageFiles -> CachedImages of a file that is built first where need be.  place: its path
    but for the end of its name, which tells the transform, the version of PIL and `sources`, a
    digest of the image files; a cache of other sources is deleted."""
    name = f"{place.name}-{digest(CACHE_FORMAT, files.prefix, PIL.__version__)[:12]}"
    path = place.with_name(f"{name}-{sources[:12]}.npy")
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(path.with_name(f"{name}.lock")):     # one builds, others wait
                if not path.exists():
                    _build_cache(files, path)
                    for old in {*path.parent.glob(f"{glob.escape(name)}-*.npy")} - {path}:
                        old.unlink(missing_ok=True)
        return CachedImages(path)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot use the cache {path}: {error}; delete it, or use --no-cache")


def _build_cache(files, path):
    n, shape = len(files), files[0].shape                               # (3, h, w)
    print(f"building the cache {path}: {n:,} images", flush=True)
    with ThreadPoolExecutor(cores()) as pool, atomic(path, "wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "|u1", "fortran_order": False, "shape": (n, *shape[1:], 3)})
        for i in tqdm(range(0, n, CHUNK), "decoding", unit="image", unit_scale=CHUNK, leave=False,
                      disable=None):
            for image in pool.map(files.__getitem__, range(i, min(i + CHUNK, n))):
                if image.shape != shape:
                    raise ValueError("images of several shapes have none")
                file.write(image.permute(1, 2, 0).numpy().tobytes())


# ---------------------------------------------------------------------------- datasets
@dataclass
class Split:
    images: object              # indexable, uint8 (3, h, w) each
    labels: torch.Tensor        # (n,) long from 0
    classes: list               # their names
    files: list = None          # the images' paths in the dataset's folder, if they have any

    def __len__(self):
        return len(self.labels)

    def __str__(self):
        return f"{len(self):,} images of {len(self.present()):,} classes"

    def present(self):
        """The names of its own classes: with a gallery `classes` has those of both splits."""
        return [self.classes[label] for label in self.labels.unique()]


@dataclass
class Data:
    train: Split                # what the loader augments
    seen: Split                 # the same images as test images are seen
    test: Split                 # of other classes, but for those that are `shared`
    gallery: Split = None       # what the test images are searched in, if not in themselves
    val: Split = None           # held-out training classes, as test images are seen
    identity: dict = None       # {split: digest of its images}, of train with what is held out
    folder: Path = None         # of the files

    def shared(self):
        """How many of the test classes train too: a folder's train/ and test/ may share some."""
        return len({*self.train.present()} & {*self.test.present()})

    def counts(self):
        return {part: [len(own), len(own.present())] for part in ("train", "test", "gallery", "val")
                if (own := getattr(self, part))}


def load_dataset(name, root=None, train=None, test=None, cache=True, val=None):
    """A dataset by name, or a folder of one's own -> Data, ready to train.

    root: the folder of the datasets and their .cache.  train, test: the deterministic first part of
    the transforms, None for none.  cache: keep what that part makes.  val: the share of the
    training classes to hold out.
    """
    papers, root = SMALLER.get(name, name) in COUNTS, Path(root or data_root())
    if name == "glyphs":
        folder, splits = None, {part: [
            (v2.functional.to_pil_image(image), f"glyph {glyphs.GLYPHS[part][0][label]}")
            for image, label in zip(*glyphs.glyphs(part))] for part in ("train", "test")}
    else:
        folder, splits = read_dataset(name, root)

    def digest_of(rows, *fields):       # os.stat of the papers' 120,000 files may take minutes
        names = [path.relative_to(folder).as_posix() for path, _ in rows]
        stats = [[getattr(path.stat(), f) for f in fields if not papers] for path, _ in rows]
        return digest(*(" ".join(map(str, [name, *stat])) for name, stat in zip(names, stats)))
    identity = {part: digest_of(rows, "st_size")[:12] for part, rows in splits.items() if folder}
    if val:
        classes = sorted({c for _, c in splits["train"]})
        first = round(len(classes) * (1 - val))
        if not 2 <= first <= len(classes) - 2:
            raise UserError(f"--val {val:g} of {len(classes)} training classes leaves fewer than "
                            f"two to train or to hold out: try {2 / len(classes):.2g}")
        splits["val"] = [row for row in splits["train"] if row[1] >= classes[first]]
        splits["train"] = [row for row in splits["train"] if row[1] < classes[first]]

    def split(part, prefix):
        rows, other = splits[part], {"test": "gallery", "gallery": "test"}.get(part)
        classes = sorted({c for _, c in [*rows, *splits.get(other, ())]})
        number_of = {c: i for i, c in enumerate(classes)}
        labels, classes = torch.tensor([number_of[c] for _, c in rows]), [*map(str, classes)]
        if not folder:
            return Split(torch.stack([to_tensor(prefix, x) for x, _ in rows]), labels, classes)
        images = ImageFiles([path for path, _ in rows], prefix, as_stored=papers)
        if cache and prefix:
            place = folder.resolve()
            own = f"{place.name}-{digest(place)[:8]}"
            words = [SMALLER.get(name, name) if papers else own, part]
            words += [f"{val:g}"] if val and part in ("train", "val") else []
            images = cache_images(images, root / ".cache" / "-".join(words),
                                  digest_of(rows, "st_size", "st_mtime_ns"))
        return Split(images, labels, classes, [p.relative_to(folder).as_posix() for p, _ in rows])
    parts = {part: split(part, train if part == "train" else test) for part in splits}
    return Data(seen=split("train", test), identity=identity, folder=folder, **parts)


def need_pairs(split, cfg):
    """UserError: no positive pairs in these training images, or no negative ones in a batch."""
    of_class = split.labels.bincount()
    if of_class.max() < 2:
        raise UserError(f"no training class has two images ({split}), as pairs and triplets need")
    if of_class.clamp(max=cfg.images_per_class or len(split)).min() >= cfg.batch:
        raise UserError(f"--batch {cfg.batch} is full with one class: raise it, or lower "
                        "--images-per-class, so that a batch has pairs of different classes")


def iterations_for(split, batches, cfg, defaults):
    """Batches per epoch for a folder: about as many passes as the paper over CUB, at most as long.
    batches: the script's sampler; with few classes its batches stay below --batch."""
    trial = argparse.Namespace(**vars(cfg) | {"iterations": 50, "seed": 0})
    size = sum(map(len, batches(split.labels, trial, 0))) / trial.iterations
    passes = defaults["iterations"] * defaults["batch"] / COUNTS["cub"]["train"][0]
    n = min(defaults["iterations"], max(1, round(passes * len(split) / size)))
    print(f"batches per epoch: {n}, of about {size:.0f} images, so {n * size / len(split):.1f} "
          "passes over the training images")
    return n


def check(name, root):
    """`common.py check`: list the images that cannot be read; of a folder of one's own say which
    training classes have one image and which images are there twice."""
    folder, splits = read_dataset(name, root)
    papers = SMALLER.get(name, name) in COUNTS
    part_of = {path: part for part, rows in splits.items() for path, _ in rows}

    def fault(path):
        try:
            decode(path, as_stored=papers)
        except UserError as error:
            return str(error)
    faults = thread_map(fault, part_of, max_workers=cores(), desc="checking images", unit="image",
                        leave=False, disable=None)
    if faults := [*filter(None, faults)]:
        print(*faults, sep="\n", flush=True)
        raise UserError(f"{len(faults):,} of {len(part_of):,} images in {folder} cannot be read"
                        + (": unpack it again" if papers else ""))
    print(f"{folder}: {len(part_of):,} images, all can be read")
    if papers:
        return
    count = collections.Counter(c for _, c in splits["train"])
    if single := [c for c, images in count.items() if images == 1]:
        print("note: training classes with a single image, so without a positive pair: "
              f"{len(single)}, {listed(single)}")
    first, here, across = {}, [], []                    # copies: in the same split, in another
    for path, part in part_of.items():
        if (other := first.setdefault(sha256(path), path)) != path:
            (here if part_of[other] == part else across).append(f"{path} is {other}")
    if here or across:
        print(f"note: images that are there twice, byte for byte: {len(across + here)}, of them in "
              f"another split {len(across)}: {listed(across + here, 2)}")

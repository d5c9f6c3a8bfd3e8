"""The datasets as the scripts see them: splits of images and labels, held-out classes, caches."""
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torchvision.transforms import v2
from tqdm import tqdm

from support import glyphs
from support.command_line import cores, data_root
from support.files import UserError, digest
from support.identity import digest_of
from support.images import ImageFiles, cache_images, decode, to_tensor
from support.layouts import COUNTS, SMALLER, read_dataset, remarks


@dataclass
class Split:
    """images: indexable, uint8 (3, h, w) each; labels (n,) long from 0; classes: their names;
    files: the images' paths in the dataset's folder, None where there are none."""
    images: object
    labels: torch.Tensor
    classes: list
    files: list = None

    def __len__(self):
        return len(self.labels)

    def __str__(self):
        return f"{len(self):,} images of {len(self.classes):,} classes"


@dataclass
class Data:
    """train: what the loader augments; seen: the same images as test images are seen; test: of
    other classes, but where a folder's train/ and test/ share some; gallery: None, or what the test
    images are searched in."""
    name: str
    train: Split
    seen: Split
    test: Split
    gallery: Split = None
    val: Split = None           # held-out training classes, as test images are seen
    identity: dict = None       # {split: digest of its images}, of train with what is held out

    def counts(self):
        parts = {"train": self.train, "test": self.test, "gallery": self.gallery, "val": self.val}
        return {k: [len(s), len(s.classes)] for k, s in parts.items() if s is not None}

    def prepare(self, cache):
        """With cache: decode and resize the images of files into their caches."""
        for split in (self.train, self.seen, self.test, self.gallery, self.val):
            if cache and split is not None and split.files:
                split.images = cache_images(split.images)


def load_dataset(name, root=None, train=None, test=None, cache=True, val=None):
    """A dataset by name, or a folder of one's own -> Data.

    root: the folder that holds the datasets (default: data_root()) and their cache, `.cache`.
    train, test: the deterministic first part of the transform of training and of test images (the
    rest is random and belongs to the loader); None leaves images as they are.
    cache: keep what that part makes of each image; the tensors are the same without.  False
    or None: not now; Data.prepare(cache) may do it later.
    val: the share of the training classes, the last by name, to hold out.
    UserError: what read_dataset refuses; an image that cannot be read while the cache is built; no
    room for the cache; too few classes for val.
    """
    if name == "glyphs":
        return _load_glyphs(train, test, val)
    root = Path(root or data_root())
    folder, splits = read_dataset(name, root)
    title, own_name = SMALLER.get(name, name), folder.resolve().name
    real = title in COUNTS
    if not real:
        title = f"{own_name}-{digest(folder.resolve())[:8]}"

    def names_and_digest(rows, *stats):
        paths = [path for path, _ in rows]
        names = [path.relative_to(folder).as_posix() for path in paths]
        return names, digest_of(names, paths, *(() if real else stats))

    identity = {part: names_and_digest(rows, "st_size")[1][:12] for part, rows in splits.items()}
    if val:
        classes = sorted({c for _, c in splits["train"]})
        held_out = {*classes[first_held_out(len(classes), val):]}
        splits["val"] = [row for row in splits["train"] if row[1] in held_out]
        splits["train"] = [row for row in splits["train"] if row[1] not in held_out]

    def split(part, prefix):
        rows = splits[part]
        numbered_with = ("test", "gallery") if part in ("test", "gallery") else (part,)
        classes = sorted({c for other in numbered_with for _, c in splits.get(other, ())})
        number_of = {c: i for i, c in enumerate(classes)}
        place = f"{title}-{part}" + (f"-{val:g}" if val and part in ("train", "val") else "")
        names, sources = names_and_digest(rows, "st_size", "st_mtime_ns")
        images = ImageFiles([path for path, _ in rows], prefix, root / ".cache" / place, sources)
        labels = torch.tensor([number_of[c] for _, c in rows])
        return Split(images, labels, [*map(str, classes)], names)

    others = {part: split(part, test) for part in ("test", "gallery", "val") if part in splits}
    data = Data(name if real else own_name, split("train", train), split("train", test), **others,
                identity=identity)
    data.prepare(cache)
    return data


def first_held_out(classes, share):
    """Where the held-out ones of so many training classes begin.  UserError: fewer than two classes
    would be left to either."""
    first = round(classes * (1 - share))
    if not 2 <= first <= classes - 2:
        raise UserError(f"--val {share:g} of {classes} training classes leaves {first} to train "
                        f"and {classes - first} held out: each needs two")
    return first


def _load_glyphs(train, test, val):
    """The embedded dataset -> Data"""
    def split(part, prefix, first=0, last=None):
        names = [f"glyph {c}" for c in glyphs.GLYPHS[part][0]][first:last]
        images, labels = glyphs.glyphs(part)
        chosen = (labels >= first) & (labels < first + len(names))
        images = torch.stack([to_tensor(prefix, v2.functional.to_pil_image(x))
                              for x in images[chosen]])
        return Split(images, labels[chosen] - first, names)

    first = first_held_out(len(glyphs.GLYPHS["train"][0]), val) if val else None
    return Data("glyphs", split("train", train, 0, first), split("train", test, 0, first),
                split("test", test), val=split("train", test, first) if val else None, identity={})


def iterations_for(split, batch, defaults):
    """Batches an epoch for a folder of one's own: as many passes over its images as the paper makes
    over CUB's 5,864, at most as many batches as there."""
    passes = defaults["iterations"] * defaults["batch"] / COUNTS["cub"]["train"][0]
    batches = min(defaults["iterations"], math.ceil(passes * len(split) / batch))
    print(f"{batches} batches per epoch, for {len(split):,} training images")
    return batches


def check(name, root):
    """`common.py check`: list the images that cannot be read, and what else to know of a folder.

    UserError if there are any.
    """
    folder, splits = read_dataset(name, root)
    if name not in COUNTS:
        for remark in remarks(folder, splits):
            print(f"note: {remark}")
    paths = [path for rows in splits.values() for path, _ in rows]

    def fault(path):
        try:
            decode(path)
        except UserError as error:
            return str(error)
    with ThreadPoolExecutor(cores()) as pool:
        faults = [*filter(None, tqdm(pool.map(fault, paths), "checking images", len(paths),
                                     unit="image", leave=False, disable=None))]
    if faults:
        print(*faults, sep="\n", flush=True)
        raise UserError(f"{len(faults):,} of {len(paths):,} images in {folder} cannot be read: "
                        "unpack it again")
    print(f"{folder}: {len(paths):,} images, all can be read")

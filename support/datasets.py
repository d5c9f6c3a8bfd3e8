"""The datasets as the scripts see them: splits of images and labels, held-out classes, caches."""
import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torchvision.transforms import v2

from support import glyphs
from support.command_line import data_root
from support.files import UserError, digest
from support.identity import digest_of
from support.images import ImageFiles, cache_images, faults, to_tensor
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
    identity: dict = None       # {split: digest of its images}
    prepare: object = None      # prepare(cache): see load_dataset

    def counts(self):
        parts = {"train": self.train, "test": self.test, "gallery": self.gallery, "val": self.val}
        return {k: [len(s), len(s.classes)] for k, s in parts.items() if s is not None}

    def shared_classes(self):
        """Names of classes that are both in train and in test: closed-set retrieval."""
        trained = set(self.train.classes)
        return [name for name in self.test.classes if name in trained]


def load_dataset(name, root=None, train=None, test=None, cache=True, val=None):
    """A dataset by name, or a folder of one's own -> Data.

    A folder has a sub-folder per class, of which the first half (by name) trains and the second
    half tests; or train/ and test/, and perhaps gallery/, each with a sub-folder per class.
    root: the folder that holds the datasets (default: data_root()) and their cache, `.cache`.
    train, test: the deterministic first part of the transform of training and of test images (the
    rest is random and belongs to the loader); None leaves images as they are.
    cache: keep what that part makes of each image; the tensors are the same without.  None: not
    yet, Data.prepare(cache) does it.
    val: the share of the training classes to hold out.
    UserError: unknown name; a dataset that is missing, half-extracted or not of the expected
    counts; a folder without sub-folders or with too few; a test class of one image; an image that
    cannot be read while the cache is built; no room for the cache.
    """
    if name == "glyphs":
        return hold_out(_load_glyphs(train, test), val)
    root, preset = Path(root or data_root()), name
    name = SMALLER.get(name, name)
    folder, splits = read_dataset(name, root)
    real = name in COUNTS
    title = name if real else f"{folder.resolve().name}-{digest(folder.resolve())[:8]}"
    train_classes = sorted({c for _, c in splits["train"]})
    test_classes = sorted({c for part in splits if part != "train" for _, c in splits[part]})
    parts, identity = {}, {}
    for key, part, prefix in (("train", "train", train), ("seen", "train", test),
                              ("test", "test", test), ("gallery", "gallery", test)):
        if part in splits:
            paths = [path for path, _ in splits[part]]
            names = [path.relative_to(folder).as_posix() for path in paths]
            classes = train_classes if part == "train" else test_classes
            number_of = {c: i for i, c in enumerate(classes)}
            labels = torch.tensor([number_of[c] for _, c in splits[part]])
            parts[key] = Split(ImageFiles(paths, prefix), labels, list(map(str, classes)), names)
            identity[part] = digest_of(names, paths, *([] if real else ["st_size"]))[:12]

    def prepare(cache):
        """Decode and resize the images into the cache."""
        for key, split in parts.items() if cache else ():
            sources = digest_of(split.files, split.images.paths,
                                *([] if real else ["st_size", "st_mtime_ns"]))
            part = "train" if key == "seen" else key
            split.images = cache_images(split.images, sources, f"{title}-{part}", root / ".cache")

    data = Data(preset if real else folder.resolve().name, **parts, identity=identity,
                prepare=prepare)
    if cache is not None:
        prepare(cache)
    return hold_out(data, val)


class _Part:
    """Some of a split's images; what Data.prepare makes of them later too."""

    def __init__(self, split, index):
        self.split, self.index = split, index

    @property
    def cached(self):
        return self.split.images.cached

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        return self.split.images[self.index[i]]

    def whole(self):
        """None: they are not one piece (CachedImages.whole)."""


def hold_out(data, share):
    """Data whose last training classes (by name) are its `val` and train no longer -> Data

    UserError: fewer than two classes would be left to either.
    """
    if not share:
        return data
    first = round(len(data.train.classes) * (1 - share))            # of the classes held out
    if not 2 <= first <= len(data.train.classes) - 2:
        raise UserError(f"--val {share:g} of {len(data.train.classes)} training classes leaves "
                        f"{first} to train and {len(data.train.classes) - first} held out: each "
                        "needs two")

    def part(split, chosen, classes):
        index, labels = chosen.nonzero()[:, 0].tolist(), split.labels[chosen]
        images = split.images[chosen] if torch.is_tensor(split.images) else _Part(split, index)
        files = split.files and [split.files[i] for i in index]
        return Split(images, labels - labels.min(), classes, files)

    kept, names = data.train.labels < first, data.train.classes
    return replace(data, train=part(data.train, kept, names[:first]),
                   seen=part(data.seen, kept, names[:first]),
                   val=part(data.seen, ~kept, names[first:]))


def _load_glyphs(train, test):
    """The embedded dataset -> Data"""
    def split(part, prefix):
        images, labels = glyphs.glyphs(part)
        images = torch.stack([to_tensor(prefix, v2.functional.to_pil_image(x)) for x in images])
        return Split(images, labels, [f"glyph {c}" for c in glyphs.GLYPHS[part][0]])
    return Data("glyphs", split("train", train), split("train", test), split("test", test),
                identity={}, prepare=lambda cache: None)


def iterations_for(split, batch, defaults):
    """Batches an epoch for a folder of one's own: as many passes over its images as the paper makes
    over CUB's 5,864, at most as many batches as there."""
    passes = defaults["iterations"] * defaults["batch"] / COUNTS["cub"]["train"][0]
    batches = min(defaults["iterations"], math.ceil(passes * len(split) / batch))
    print(f"{batches} batches an epoch, for {len(split):,} training images")
    return batches


def check(name, root):
    """`common.py check`: list the images that cannot be read, and what else to know of a folder.

    UserError if there are any.
    """
    folder, splits = read_dataset(name, root)
    if name not in COUNTS:
        for remark in remarks(folder, splits):
            print(f"note: {remark}")
    paths, unreadable = [path for rows in splits.values() for path, _ in rows], 0
    for fault in faults(paths):
        print(fault, flush=True)
        unreadable += 1
    if unreadable:
        raise UserError(f"{unreadable:,} of {len(paths):,} images in {folder} cannot be read: "
                        "unpack it again")
    print(f"{folder}: {len(paths):,} images, all can be read")

"""What trains and what tests: a dataset by its name, or a folder of images, as splits.

Images are uint8 RGB (3, h, w) until `backbones.Preprocess` turns a batch into what its backbone
knows.
"""
import collections
import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from support import glyphs
from support.backbones import check_weights
from support.command_line import data_root
from support.files import UserError, digest, listed
from support.images import ImageFiles, cache_images
from support.layouts import of_papers, read_dataset
from support.photos import (Folder, decode, decode_as_stored, divided, identity, last_edits)


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
    train_plain: Split          # the same images as test images are seen
    test: Split                 # of other classes, but for those that are `shared`
    gallery: Split = None       # what the test images are searched in, if not in themselves
    val: Split = None           # held-out training classes, as test images are seen
    identity: dict = None       # {split: digest of its images}, of train with what is held out
    folder: Path = None         # of the files

    def shared(self):
        """How many of the test classes train too: a folder's train/ and test/ may share some."""
        return len(set(self.train.present()) & set(self.test.present()))

    def counts(self):
        counts = {}
        for part in ("train", "test", "gallery", "val"):
            split = getattr(self, part)
            if split:
                counts[part] = [len(split), len(split.present())]
        return counts


def load_dataset(name, root=None, train=None, test=None, cache=True, val=None, weights=None):
    """A dataset by name, or a folder of one's own -> Data, ready to train.

    root: the folder of the datasets and their .cache.  train, test: the deterministic first part of
    the transforms, None for none.  cache: keep what that part makes.  val: the share of the
    training classes to hold out.  weights: a backbone's name and --weights, which are looked for,
    or downloaded, and checked before a cache takes minutes.
    """
    root, papers = Path(root or data_root()), of_papers(name)
    folder, ids, read = None, {}, decode
    if name == "glyphs":
        splits = _glyphs()
    elif papers:
        folder, splits = read_dataset(papers, root)
        label, read = papers, decode_as_stored
    else:
        photos = Folder(name)
        photos.refuse_lost_classes()
        folder, splits = photos.path, photos.splits()
        photos.say_left_out(splits)
        place = folder.resolve()
        label = f"{place.name[:30]}-{digest(place)[:8]}"
    if folder:
        ids = identity(folder, splits, papers)
    if val:
        _hold_out(splits, val)
    if weights:
        check_weights(*weights)

    def split(part, prefix):
        sources = list(splits[part])
        if folder is None:
            images = torch.stack(sources)
            if prefix:
                images = prefix(images)
        else:
            images = ImageFiles(sources, prefix, read)
            if cache and prefix:
                place, whole = f"{label}-{part}", part
                if val and part in ("train", "val"):
                    place, whole = f"{place}-{val}", "train"
                state = ids[whole]
                edits = [] if papers else last_edits(sources)
                if edits:
                    state = digest(state, *edits)[:12]
                images = cache_images(images, root / ".cache" / place, state)
        return split_of(splits, part, images, folder)
    as_test = {part: split(part, test) for part in splits}
    return Data(split("train", train), as_test.pop("train"), **as_test, identity=ids, folder=folder)


def _glyphs():
    """{"train", "test": {image: class}} of glyphs, as read_dataset has {path: class}"""
    splits = {"train": {}, "test": {}}
    for part, rows in splits.items():
        for image, number in zip(*glyphs.glyphs(part)):
            rows[image] = f"glyph {number}"
    return splits


def _hold_out(splits, share):
    """Move the last classes of splits["train"], by name, to splits["val"]."""
    classes = len({*splits["train"].values()})
    first = round(classes * (1 - share))
    if not 2 <= first <= classes - 2:
        advice = "--val needs four training classes"
        if classes >= 4:
            possible = min(max(first, 2), classes - 2)
            advice = f"try --val {1 - possible / classes:.6g}"
        raise UserError(f"--val {share:g} of {classes} training classes leaves {first} to train "
                        f"and {classes - first} to hold out, and each needs two: {advice}")
    splits["train"], splits["val"] = divided(splits["train"], first)
    size_of = collections.Counter(splits["val"].values())
    lone = sum(size == 1 for size in size_of.values())
    if lone == len(size_of):
        raise UserError(f"--val {share:g}: none of the {lone} held-out classes, "
                        f"{listed([*size_of])}, has two images, so val R@1 would be 0")
    if lone:
        most = 100 * (1 - lone / len(splits["val"]))
        print(f"note: {lone} of {len(size_of)} held-out classes have one image, which finds no "
              f"other: val R@1 is at most {most:.1f}")


def split_of(splits, part, images, folder=None):
    """One of {split: {path: class}} with its images -> Split.  test and gallery number the classes
    of both.  folder: of the paths, None where there are none."""
    rows = numbered = splits[part]
    if part in ("test", "gallery"):
        numbered = splits["test"] | splits.get("gallery", {})
    classes = np.unique(list(numbered.values()))
    labels = torch.from_numpy(classes.searchsorted(list(rows.values())))
    files = None
    if folder is not None:
        files = [path.relative_to(folder).as_posix() for path in rows]
    return Split(images, labels, classes.astype(str).tolist(), files)


def need_pairs(split, cfg):
    """Raise UserError if no class has two images, or no batch can have images of two classes."""
    of_class = split.labels.bincount()
    if of_class.max() < 2:
        raise UserError(f"no training class has two images ({split}), as pairs and triplets need")
    smallest = of_class.clamp(max=cfg.images_per_class or len(split)).sort().values[:2]
    room = cfg.batch - 1            # --images-per-class 0: a class that does not fit ends the batch
    if not cfg.images_per_class:
        room = cfg.batch - smallest[-1]
    if smallest[0] > room:
        raise UserError(f"--batch {cfg.batch} is full with one class: raise it, or give a smaller "
                        "--images-per-class (0: all), so that a batch has two classes")


def iterations_for(split, batches, cfg, settings):
    """Batches per epoch for a folder: about as many passes as the paper over CUB, at most as long.
    batches, settings: the script's; with few classes its batches stay below --batch."""
    usual, usual_batch = settings["iterations"][0], settings["batch"][0]
    trial = copy.copy(cfg)
    trial.iterations, trial.seed = 50, 0
    size = sum(map(len, batches(split.labels, trial, 0))) / 50
    passes = usual * usual_batch / 5864                     # CUB's training images
    return min(usual, max(1, round(passes * len(split) / size)))

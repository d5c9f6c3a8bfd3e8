"""The datasets as the scripts see them: splits of images and labels, held-out classes, caches."""
import collections
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torchvision.transforms import v2
from tqdm import tqdm

from support import glyphs
from support.command_line import cores, data_root
from support.files import UserError, digest, listed, sha256
from support.images import ImageFiles, cache_images, decode, to_tensor
from support.layouts import COUNTS, SMALLER, read_dataset


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
        parts = {part: getattr(self, part) for part in ("train", "test", "gallery", "val")}
        return {part: [len(own), len(own.classes)] for part, own in parts.items() if own}


def load_dataset(name, root=None, train=None, test=None, cache=True, val=None):
    """A dataset by name, or a folder of one's own -> Data, ready to train.

    root: the folder that holds the datasets (default: data_root()) and their cache, `.cache`.
    train, test: the deterministic first part of the transform of training and of test images (the
    rest is random and belongs to the loader); None leaves images as they are.
    cache: keep what that part makes of each image; the tensors are the same without.
    val: the share of the training classes, the last by name, to hold out.
    UserError: what read_dataset and cache_images refuse; too few classes for val.
    """
    papers, root = SMALLER.get(name, name) in COUNTS, Path(root or data_root())
    if name == "glyphs":
        folder, splits = None, {part: [
            (v2.functional.to_pil_image(image), f"glyph {glyphs.GLYPHS[part][0][label]}")
            for image, label in zip(*glyphs.glyphs(part))] for part in ("train", "test")}
    else:
        folder, splits = read_dataset(name, root)
        name = name if papers else folder.resolve().name

    def digest_of(rows, *stats):
        """Of the images' names and, because the papers' archives do not change and to look at
        120,000 files takes minutes on a network's file system, of other folders' os.stat."""
        return digest(*(" ".join([path.relative_to(folder).as_posix(), *(
            str(getattr(path.stat(), stat)) for stat in stats if not papers)]) for path, _ in rows))
    identity = {part: digest_of(rows, "st_size")[:12] for part, rows in splits.items() if folder}
    if val:
        classes = sorted({c for _, c in splits["train"]})
        first = round(len(classes) * (1 - val))
        if not 2 <= first <= len(classes) - 2:
            raise UserError(f"--val {val:g} of {len(classes)} training classes leaves {first} to "
                            f"train and {len(classes) - first} held out: each needs two")
        held_out = {*classes[first:]}
        splits["val"] = [row for row in splits["train"] if row[1] in held_out]
        splits["train"] = [row for row in splits["train"] if row[1] not in held_out]

    def split(part, prefix):
        rows = splits[part]
        numbered_with = ("test", "gallery") if part in ("test", "gallery") else (part,)
        classes = sorted({c for other in numbered_with for _, c in splits.get(other, ())})
        number_of = {c: i for i, c in enumerate(classes)}
        labels, classes = torch.tensor([number_of[c] for _, c in rows]), [*map(str, classes)]
        if not folder:
            return Split(torch.stack([to_tensor(prefix, x) for x, _ in rows]), labels, classes)
        images = ImageFiles([path for path, _ in rows], prefix, as_stored=papers)
        if cache and prefix:
            words = [SMALLER.get(name, name), *([] if papers else [digest(folder.resolve())[:8]]),
                     part, *([f"{val:g}"] if val and part in ("train", "val") else [])]
            images = cache_images(images, root / ".cache" / "-".join(words),
                                  digest_of(rows, "st_size", "st_mtime_ns"))
        return Split(images, labels, classes, [p.relative_to(folder).as_posix() for p, _ in rows])
    return Data(name, split("train", train), split("train", test), identity=identity, **{
        part: split(part, test) for part in splits if part != "train"})


def need_pairs(split):
    """UserError where no class has two images: a loss on pairs or triplets would learn nothing."""
    if split.labels.bincount().max() < 2:
        raise UserError(f"no training class has two images ({split}): a loss on pairs or triplets "
                        "has nothing to learn from")


def iterations_for(split, batch, defaults):
    """Batches an epoch for a folder of one's own: as many passes over its images as the paper makes
    over CUB's 5,864, at most as many batches as there."""
    passes = defaults["iterations"] * defaults["batch"] / COUNTS["cub"]["train"][0]
    batches = min(defaults["iterations"], math.ceil(passes * len(split) / batch))
    print(f"{batches} batches per epoch, for {len(split):,} training images")
    return batches


def check(name, root):
    """`common.py check`: list the images that cannot be read; of a folder of one's own say which
    training classes have one image and which images are there twice.  UserError: unreadable ones"""
    folder, splits = read_dataset(name, root)
    papers = SMALLER.get(name, name) in COUNTS
    paths = [path for rows in splits.values() for path, _ in rows]

    def fault(path):
        try:
            decode(path, as_stored=papers)
        except UserError as error:
            return str(error)
    with ThreadPoolExecutor(cores()) as pool:
        faults = [*filter(None, tqdm(pool.map(fault, paths), "checking images", len(paths),
                                     unit="image", leave=False, disable=None))]
    if faults:
        print(*faults, sep="\n", flush=True)
        raise UserError(f"{len(faults):,} of {len(paths):,} images in {folder} cannot be read"
                        + (": unpack it again" if papers else ""))
    print(f"{folder}: {len(paths):,} images, all can be read")
    if papers:
        return
    count = collections.Counter(c for _, c in splits["train"])
    if single := [c for c in count if count[c] == 1]:
        print("note: training classes with a single image, so without a positive pair: "
              f"{len(single)}, {listed(single)}")
    first, within, across = {}, [], []
    for part, path in [(part, path) for part, rows in splits.items() for path, _ in rows]:
        other, original = first.setdefault(sha256(path), (part, path))
        if path != original:
            (within if other == part else across).append(f"{path} is {original}")
    if copies := across + within:
        print(f"note: {len(copies)} images are there twice, byte for byte, {len(across)} of them "
              f"in another split: {listed(copies, 2)}")

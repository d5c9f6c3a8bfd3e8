"""The datasets as the scripts see them: splits of images and labels, held-out classes, caches."""
import collections
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torchvision.transforms import v2
from tqdm.contrib.concurrent import thread_map

from support import glyphs
from support.command_line import cores, data_root
from support.files import UserError, digest, listed, sha256
from support.images import ImageFiles, cache_images, decode, to_tensor
from support.layouts import COUNTS, SMALLER, read_dataset


@dataclass
class Split:
    images: object              # indexable, uint8 (3, h, w) each
    labels: torch.Tensor        # (n,) long from 0
    classes: list               # their names
    files: list = None          # the images' paths in the dataset's folder, if they have any

    def __len__(self):
        return len(self.labels)

    def __str__(self):
        return f"{len(self):,} images of {len(self.classes):,} classes"


@dataclass
class Data:
    name: str
    train: Split                # what the loader augments
    seen: Split                 # the same images as test images are seen
    test: Split                 # of other classes, but where a folder's train/ and test/ share some
    gallery: Split = None       # what the test images are searched in, if not in themselves
    val: Split = None           # held-out training classes, as test images are seen
    identity: dict = None       # {split: digest of its images}, of train with what is held out
    folder: Path = None         # of the files

    def counts(self):
        return {part: [len(own), len(own.classes)] for part in ("train", "test", "gallery", "val")
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
        name = name if papers else folder.resolve().name

    def digest_of(rows, *stats):        # os.stat of the papers' 120,000 files may take minutes
        return digest(*(" ".join([path.relative_to(folder).as_posix(), *(
            str(getattr(path.stat(), stat)) for stat in stats if not papers)]) for path, _ in rows))
    identity = {part: digest_of(rows, "st_size")[:12] for part, rows in splits.items() if folder}
    if val:
        classes = sorted({c for _, c in splits["train"]})
        first = round(len(classes) * (1 - val))
        if not 2 <= first <= len(classes) - 2:
            raise UserError(f"--val {val:g} of {len(classes)} training classes leaves fewer than "
                            "two to train or to hold out")
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
            words = [SMALLER.get(name, name), not papers and digest(folder.resolve())[:8], part,
                     val and part in ("train", "val") and f"{val:g}"]
            images = cache_images(images, root / ".cache" / "-".join(filter(None, words)),
                                  digest_of(rows, "st_size", "st_mtime_ns"))
        return Split(images, labels, classes, [p.relative_to(folder).as_posix() for p, _ in rows])
    parts = {part: split(part, train if part == "train" else test) for part in splits}
    return Data(name, seen=split("train", test), identity=identity, folder=folder, **parts)


def need_pairs(split):
    if split.labels.bincount().max() < 2:
        raise UserError(f"no training class has two images ({split}), as pairs and triplets need")


def iterations_for(split, batch, defaults):
    """Batches per epoch for a folder: as many passes as the paper over CUB, at most as long."""
    passes = defaults["iterations"] * defaults["batch"] / COUNTS["cub"]["train"][0]
    batches = min(defaults["iterations"], math.ceil(passes * len(split) / batch))
    print(f"{batches} batches per epoch, for {len(split):,} training images")
    return batches


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
        print(f"note: {len(across + here)} images are there twice, byte for byte, {len(across)} of "
              f"them in another split: {listed(across + here, 2)}")

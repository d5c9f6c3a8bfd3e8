"""Images from files: decoding, the deterministic part of a transform, its cache, augmentation.

An image is a uint8 RGB tensor (3, h, w).
"""
from concurrent.futures import ThreadPoolExecutor

import filelock
import numpy as np
import PIL
import PIL.Image
import torch
from torchvision.transforms import v2
from tqdm import tqdm

from support.command_line import cores
from support.files import UserError, atomic, digest, read_json, remove_leftovers, write_json


def decode(path):
    """An image file -> an RGB PIL image.  UserError names a file that cannot be read."""
    try:
        with PIL.Image.open(path) as image:
            return image.convert("RGB")
    except Exception as error:              # Pillow fails in a dozen ways on damaged files
        raise UserError(f"cannot read the image {path}: {error}")


def to_tensor(prefix, image):
    """The deterministic part of a transform, applied by PIL -> uint8 (3, h, w)"""
    return v2.functional.pil_to_tensor(prefix(image) if prefix else image)


class ImageFiles:
    """Indexable images from files, through the deterministic part of a transform.

    cache, sources: the path of their cache but for the end of its name, a digest of the files.
    """

    def __init__(self, paths, prefix, cache=None, sources=None):
        self.paths, self.prefix, self.cache, self.sources = paths, prefix, cache, sources

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return to_tensor(self.prefix, decode(self.paths[i]))

    def whole(self):
        """None: they are not in memory (CachedImages.whole)."""


# ---------------------------------------------------------------------------- the cache
CACHE_FORMAT, CHUNK = 2, 256               # CHUNK: images in memory at once while it is built


class CachedImages:
    """Indexable images from a cache file: uint8 (3, h, w), in PIL's memory layout, h × w × 3."""

    def __init__(self, path, shapes):
        self.path, self.shapes, self.starts = path, shapes, _starts(shapes)
        self.bytes = np.memmap(path, np.uint8, "c")     # read only, but PyTorch wants to be able to

    def __reduce__(self):                          # a worker gets the path, not the file's content
        return CachedImages, (self.path, self.shapes)

    def __len__(self):
        return len(self.shapes)

    def __getitem__(self, i):
        image = np.array(self.bytes[self.starts[i]:self.starts[i + 1]])
        return torch.from_numpy(image).view(*self.shapes[i], 3).permute(2, 0, 1)

    def whole(self):
        """All images as one tensor (n, 3, h, w), None if their shapes differ"""
        if len(set(self.shapes)) == 1:
            return torch.from_numpy(self.bytes).view(-1, *self.shapes[0], 3).permute(0, 3, 1, 2)


def _starts(shapes):
    """Where each image begins in the file, and where the last one ends.  n (h, w) -> n + 1"""
    return [0, *np.cumsum([3 * h * w for h, w in shapes]).tolist()]


def cache_images(files):
    """ImageFiles -> CachedImages of the file at files.cache, which is built first where need be.

    The end of its name stands for the transform and for the version of PIL.  The .json beside it
    has files.sources and the shapes; with other sources the cache is built anew.  Machines whose
    locks do not reach each other each build their own, and the last one stays, because the file
    appears whole or not at all.
    UserError: an image that cannot be read, a folder that cannot be written.
    """
    made_by = digest(repr(files.prefix), PIL.__version__)[:12]
    data = files.cache.with_name(f"{files.cache.name}-{made_by}.images")
    shapes = _cache_shapes(data, files)
    if shapes is None:
        try:
            data.parent.mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(data.with_suffix(".lock")):     # one builds, others wait
                shapes = _cache_shapes(data, files) or _build_cache(files, data)
        except OSError as error:
            raise UserError(f"cannot write the cache {data}: {error}; --no-cache does without it")
    return CachedImages(data, shapes)


def _cache_shapes(data, files):
    """The shapes (h, w) of a whole cache file made from these files, else None."""
    n = len(files)
    try:
        notes = read_json(data.with_suffix(".json"))
        shapes = [tuple(map(int, shape.split("x"))) for shape in notes["shapes"].split()]
        shapes = shapes * n if len(shapes) == 1 else shapes
        if (notes["format"], notes["sources"], len(shapes), data.stat().st_size) == (
                CACHE_FORMAT, files.sources, n, _starts(shapes)[-1]):
            return shapes
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def _build_cache(files, data):
    """Write the file, then the note that it is there -> shapes"""
    n, shapes, notes = len(files), [], data.with_suffix(".json")
    remove_leftovers(data.parent)
    print(f"building the cache {data}: {n:,} images", flush=True)
    with ThreadPoolExecutor(cores()) as pool, atomic(data, "wb") as file, tqdm(
            total=n, desc="decoding", unit="image", leave=False, disable=None) as bar:
        for first in range(0, n, CHUNK):
            for image in pool.map(files.__getitem__, range(first, min(first + CHUNK, n))):
                shapes.append(tuple(image.shape[1:]))
                file.write(np.ascontiguousarray(image.permute(1, 2, 0)))
                bar.update()
        notes.unlink(missing_ok=True)          # of a file that is about to be replaced
    equal = len(set(shapes)) == 1
    write_json(notes, {
        "format": CACHE_FORMAT, "sources": files.sources, "transform": repr(files.prefix),
        "shapes": " ".join(f"{h}x{w}" for h, w in (shapes[:1] if equal else shapes))})
    return shapes


# ---------------------------------------------------------------------------- order, augmentation
def shuffled(n, batch, seed, epoch):
    """All n indices in an order that depends on (seed, epoch) alone, in batches."""
    generator = torch.Generator().manual_seed(random_seed(seed, epoch))
    return [part.tolist() for part in torch.randperm(n, generator=generator).split(batch)]


def random_seed(*key):
    """A 64-bit seed from a few whole numbers: what is drawn depends on the key alone."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])


def augmented(image, augment, *key):
    """augment(image), what it draws depending on the key alone: any process, any order."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(random_seed(*key))
        return augment(image)

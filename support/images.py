"""Images from files, uint8 RGB (3, h, w): one by one, in batches, from the cache."""
import contextlib
import glob
import multiprocessing
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import PIL.Image
import torch
import torchvision
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2.functional import crop, pil_to_tensor, resize, to_pil_image
from tqdm import tqdm

from support.command_line import cores
from support.files import UserError, atomic, digest, lock


class LanczosByPillow(torch.nn.Module):
    """v2.Resize or v2.RandomResizedCrop with Pillow's Lanczos, on every version of Pillow the same:
    first across, then down.  Pillow 13 begins with the height where that shrinks more, which moves
    pixels (findings/pillow_order.sh).  uint8 (..., 3, h, w) -> uint8 (..., 3, h', w')
    """

    def __init__(self, transform):
        super().__init__()
        self.transform = transform

    def forward(self, image):
        if image.dim() > 3:                                 # those of glyphs are one tensor
            return torch.stack([self(one) for one in image])
        place = self.transform.make_params([image])         # of a crop; else empty
        part = to_pil_image(crop(image, **place) if place else image)
        height, width = self.transform.size
        for size in (width, part.height), (width, height):
            part = part.resize(size, PIL.Image.Resampling.LANCZOS)
        return pil_to_tensor(part)


def on_tensors(transform):
    """A v2.RandomResizedCrop with Lanczos -> itself, or LanczosByPillow where torchvision has no
    Lanczos on tensors (before 0.27).  The two differ by at most 2 of 255 in a pixel."""
    try:
        resize(torch.zeros(3, 4, 4, dtype=torch.uint8), [2, 2], InterpolationMode.LANCZOS)
    except (NotImplementedError, ValueError):
        return LanczosByPillow(transform)
    return transform


# ---------------------------------------------------------------------------- files
@dataclass
class ImageFiles:
    """Indexable images from files."""
    paths: list
    prefix: object              # the deterministic part of a transform; or None
    decode: object              # photos.decode, or decode_as_stored
    faults: set = None          # where given, indices of images that cannot be read: None, a line

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        try:
            image = self.decode(self.paths[i])          # uint8 (3, h, w)
        except UserError as error:
            if self.faults is None:
                raise
            print(f"{error}\n", end="")                 # as one text: other threads print too
            self.faults.add(i)
            return None
        if self.prefix:
            image = self.prefix(image)
        return image.movedim(0, 2).contiguous().movedim(2, 0)   # in memory as the cache has it


def read_ahead(images, size, threads):
    """Tensors of up to `size` of the images in order, without those that are None"""
    for batch in batches(images, size, threads):
        yield torch.stack(batch)


def batches(images, size, workers, processes=False):
    """Lists of up to `size` of the images in order, without those that are None.  Threads decode a
    batch ahead: unlike processes, they may start anywhere.  On many cores processes are faster,
    because threads wait for each other.  UserError: images of two sizes."""
    shapes = set()
    for batch in (_by_processes if processes else _by_threads)(images, size, workers):
        tensors = [tensor for tensor in batch if tensor is not None]
        shapes.update(tuple(tensor.shape[1:]) for tensor in tensors)
        if len(shapes) > 1:
            (h, w), (other_h, other_w) = sorted(shapes)[:2]
            raise UserError(f"images of {h} × {w} and of {other_h} × {other_w} cannot lie in one "
                            "batch or cache: resize them all to (height, width)")
        if tensors:
            yield tensors


def _by_threads(images, size, workers):
    batch = []
    with ThreadPoolExecutor(workers or 1) as pool:
        for start in range(0, len(images) + size, size):          # one more, which has none
            coming = pool.map(images.__getitem__, range(len(images))[start:start + size])
            yield batch
            batch = coming


def _by_processes(images, size, workers):
    def together(images):       # one tensor takes one file descriptor, (h, w, 3) is as they lie
        if len({image.shape for image in images}) == 1:
            return torch.stack([image.movedim(0, 2) for image in images]).movedim(3, 1)
        return images
    loader = torch.utils.data.DataLoader(
        images, size, num_workers=workers, collate_fn=together, multiprocessing_context="fork",
        generator=torch.Generator())                    # the global one is left alone
    try:
        yield from loader
    except UserError as error:                          # which has the worker's trace
        error.__traceback__ = None                      # whose frames keep all workers waiting
        raise UserError(str(error).rstrip().rpartition("UserError: ")[2])


def may_fork():
    """Whether processes may start here without a look at the main module, which need not be there
    in a notebook, nor guard itself"""
    own = multiprocessing.get_start_method(allow_none=True)
    method = own or multiprocessing.get_all_start_methods()[0]
    return method == "fork" and not multiprocessing.current_process().daemon


# ---------------------------------------------------------------------------- the cache
CACHE_FORMAT = 6
MANY = 1024             # images of a cache that processes decode, which take a second to start


class CachedImages:
    """Indexable images from a cache file; whole: all as one tensor (n, 3, h, w)."""

    def __init__(self, path):
        images = np.load(path, mmap_mode="c")        # (n, h, w, 3)
        self.path, self.whole = path, torch.from_numpy(images).movedim(3, 1)
        self.split = self.whole.split

    def __reduce__(self):                          # a worker gets the path, not the file's content
        return CachedImages, (self.path,)

    def __len__(self):
        return len(self.whole)

    def __getitem__(self, i):
        return self.whole[i].clone()


def cache_images(files, place, sources):
    """ImageFiles -> CachedImages of a file that is built first where need be.  place: its path
    but for the end of its name, which tells the transform, the versions of what decodes and resizes
    and `sources`, a digest of the image files; a cache of other sources is deleted, and so is what
    killed builds left.  Where a file system has no locks, two processes may both build it, each
    under a name of its own."""
    versions = PIL.__version__, torchvision.__version__, torch.__version__
    name = f"{place.name}-{digest(CACHE_FORMAT, files.prefix, *versions)[:12]}"
    path = place.with_name(f"{name}-{sources}.npy")
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(path.parent)
            with _turn(path.with_name(f"{name}.lock")):     # one builds, others wait
                if not path.exists():
                    _build_cache(files, path)
                    for old in {*path.parent.glob(f"{glob.escape(name)}-*.npy")} - {path}:
                        old.unlink(missing_ok=True)
        return CachedImages(path)
    except (OSError, ValueError, EOFError) as error:
        advice = "--no-cache does without"
        if os.path.exists(path):
            advice = "delete it, or use --no-cache"
        raise UserError(f"cannot use the cache {path}: {error}; {advice}")


def _turn(path):
    """A cache's lock; who waits for it says so, because a build takes minutes."""
    try:
        return lock(path, timeout=0)
    except UserError:
        print(f"waiting for another process that builds {path.stem}", flush=True)
        return lock(path)


def _remove_leftovers(folder):
    """Delete what killed builds left in the folder of the caches, gigabytes each.  Who builds holds
    the lock of that cache, so what lies under a free lock is nobody's.  Without locks all stays."""
    for part in sorted(folder.glob(".*.npy.*.part")):       # .NAME-SOURCES.npy.RANDOM.part
        name = part.name[1:].rpartition(".npy.")[0].rpartition("-")[0]
        try:
            held = lock(folder / f"{name}.lock", timeout=0)
        except UserError:                                   # another process is building it
            continue
        with held:
            if isinstance(held, contextlib.nullcontext):
                return
            part.unlink(missing_ok=True)


def _build_cache(files, path):
    n, (_, height, width) = len(files), files[0].shape
    needed, disk = n * height * width * 3, shutil.disk_usage(path.parent)
    print(f"building the cache {path}: {n:,} images, {needed / 1e6:,.1f} MB", flush=True)
    if disk.total and needed > disk.free:               # some file systems do not tell
        raise UserError(f"the cache {path} needs {needed / 1e6:,.1f} MB, but "
                        f"{disk.free / 1e6:,.1f} are free: use --no-cache, or another --data-root")
    with atomic(path, "wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "|u1", "fortran_order": False, "shape": (n, height, width, 3)})
        workers, size = min(16, cores()), 16
        processes = workers > 1 and n >= MANY and may_fork()
        if processes:
            size = 4                                    # twice as many a worker lie in /dev/shm
        decoded = batches(files, size, workers, processes)
        for images in tqdm(decoded, "decoding", -(-n // size), unit="batch", leave=False,
                           disable=None):
            for image in images:
                file.write(image.movedim(0, 2).numpy())

"""Images from files, uint8 RGB (3, h, w): decoding, the cache."""
import contextlib
import functools
import glob
import io

import filelock
import numpy as np
import PIL.Image
import torch
from PIL import ImageCms, ImageOps
from torchvision.transforms import v2
from tqdm import tqdm

from support.command_line import cores
from support.files import UserError, atomic, digest

LONGEST = 100           # times the shorter side: jrd.py resizes that, whatever becomes of the other


def decode(path, as_stored=False):
    """An image file -> an RGB PIL image, as a viewer shows it: upright, transparent parts on white,
    16-bit grey scaled to 8 bits, in the colours of its profile.  A broken tag or profile is left
    aside.  as_stored: without all this, as the papers' authors read."""
    try:
        with open(path, "rb") as file, PIL.Image.open(file) as image:
            if as_stored:
                return image.convert("RGB")
            if image.mode in ("I", "F"):
                raise ValueError(f"mode {image.mode} does not say what is white; save 8 or 16 bits")
            if max(image.size) > LONGEST * min(image.size):
                raise ValueError(f"{image.width:,} × {image.height:,} pixels; one side may be at "
                                 f"most {LONGEST} times the other")
            image.load()        # turns a TIFF, but wrongly where Pillow opened it by its path
            profile = image.info.get("icc_profile")
            with contextlib.suppress(Exception):        # broken tags of any kind
                ImageOps.exif_transpose(image, in_place=True)
            if image.mode.startswith("I;16"):
                image = PIL.Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            mode = {"1": "L", "L": "L", "LA": "L", "CMYK": "CMYK"}.get(image.mode, "RGB")
            if image.has_transparency_data:
                white = PIL.Image.new("RGBA", image.size, "white")
                image = PIL.Image.alpha_composite(white, image.convert("RGBA"))
            transform = _to_srgb(profile, mode)
            return transform.apply(image.convert(mode)) if transform else image.convert("RGB")
    except Exception as error:              # Pillow fails in a dozen ways on damaged files
        raise UserError(f"cannot read the image {path}: {error}")


@functools.lru_cache(100)
def _to_srgb(profile, mode):
    """An ICC profile of images of a mode -> its transform; None if it is sRGB, damaged or none."""
    with contextlib.suppress(ImageCms.PyCMSError, OSError, TypeError):
        own = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if not str(own.profile.profile_description).startswith("sRGB IEC61966"):
            return ImageCms.buildTransform(own, ImageCms.createProfile("sRGB"), mode, "RGB")


def to_tensor(prefix, image):
    """The deterministic part of a transform, applied by PIL -> uint8 (3, h, w)"""
    return v2.functional.pil_to_tensor(prefix(image) if prefix else image)


class ImageFiles:
    """Indexable images from files, through the deterministic part of a transform."""

    def __init__(self, paths, prefix, as_stored=False):
        self.paths, self.prefix, self.as_stored = paths, prefix, as_stored

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return to_tensor(self.prefix, decode(self.paths[i], self.as_stored))


# ---------------------------------------------------------------------------- the cache
CACHE_FORMAT = 5


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
    n, (channels, height, width) = len(files), files[0].shape
    print(f"building the cache {path}: {n:,} images", flush=True)
    loader = torch.utils.data.DataLoader(
        files, 16, num_workers=min(cores(), n // 512), generator=torch.Generator())
    with atomic(path, "wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "|u1", "fortran_order": False, "shape": (n, height, width, channels)})
        with tqdm(total=n, desc="decoding", unit="image", leave=False, disable=None) as bar:
            for images in loader:
                file.write(images.permute(0, 2, 3, 1).numpy().tobytes())
                bar.update(len(images))

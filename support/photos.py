"""Photos of one's own: how they are decoded, and what a folder of them means.

    decode(photo)               as a viewer shows it
    Folder(path)                its images, each with its part (train, test, ...) and its class
    Folder.splits(), .judged()  what trains and what tests; what a trained network is judged by

Training, check, eval.py and --query read a folder by this Folder.  The papers know none of this.
"""
import collections
import contextlib
import functools
import hashlib
import io
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unicodedata import normalize

import numpy as np
import PIL.Image
from PIL import ImageCms, ImageOps
from torchvision.datasets.folder import IMG_EXTENSIONS

from support.files import UserError, digest, listed

LONGEST = 100           # times the shorter side: jrd.py resizes that, whatever becomes of the other
IMAGES = (*IMG_EXTENSIONS, ".jpe", ".jfif", ".gif", ".jp2", ".avif")    # names of photos end so
LITTER = {  # of Macs, network disks and Windows, beside names that begin with a dot
    "__macosx", "@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "lost+found",
    "$recycle.bin", "recycler", "system volume information", "thumbs.db", "desktop.ini"}
PARTS = {  # what people call the parts of a dataset, in any capitals
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val",
    "dev": "val", "test": "test", "testing": "test", "query": "test", "gallery": "gallery"}


# ---------------------------------------------------------------------------- what a viewer shows
def decode(photo):
    """A path, an open file or a PIL image -> an RGB PIL image, as a viewer shows it: upright,
    transparent parts on white, 16-bit grey scaled to 8 bits, in the colours of its profile.  A
    broken tag or profile is left aside."""
    try:
        if isinstance(photo, PIL.Image.Image):
            return _as_shown(photo.copy())
        with contextlib.ExitStack() as stack:
            file = photo
            if not hasattr(photo, "read"):
                file = stack.enter_context(open(photo, "rb"))
            return _as_shown(stack.enter_context(PIL.Image.open(file)))
    except Exception as error:              # Pillow fails in a dozen ways on damaged files
        raise UserError(f"cannot read the image {photo}: {error}")


def _as_shown(image):
    if image.mode in ("I", "F"):
        raise ValueError(f"mode {image.mode} does not say what is white; save 8 or 16 bits")
    if max(image.size) > LONGEST * min(image.size):
        raise ValueError(f"{image.width:,} × {image.height:,} pixels; one side may be at most "
                         f"{LONGEST} times the other")
    image.load()                # turns a TIFF, but wrongly where Pillow opened it by its path
    profile = image.info.get("icc_profile")
    with contextlib.suppress(Exception):                # broken tags of any kind
        ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I;16"):
        image = PIL.Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    mode = {"1": "L", "L": "L", "LA": "L", "CMYK": "CMYK"}.get(image.mode, "RGB")
    if image.has_transparency_data:
        white = PIL.Image.new("RGBA", image.size, "white")
        image = PIL.Image.alpha_composite(white, image.convert("RGBA"))
    with contextlib.suppress(Exception):        # a broken profile, a Pillow without littlecms
        transform = _to_srgb(profile, mode)
        if transform:
            return transform.apply(image.convert(mode))
    return image.convert("RGB")


@functools.lru_cache(100)
def _to_srgb(profile, mode):
    """An ICC profile of images of a mode -> its transform; None if there is none, or it is sRGB."""
    if profile:
        own = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if not str(own.profile.profile_description).startswith("sRGB IEC61966"):
            return ImageCms.buildTransform(own, ImageCms.createProfile("sRGB"), mode, "RGB")


# ---------------------------------------------------------------------------- what a folder means
def files_below(folder):
    """-> the images below a folder, in order, and the other files that are for people.  Links are
    followed, but into each folder once.  UserError: a folder that cannot be read."""
    def refuse(error):
        raise UserError(f"cannot read the folder {error.filename}: {error.strerror}")
    seen, images, others = set(), [], []
    for place, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            others.append(Path(place))                  # a second way to it
            folders.clear()
            continue
        seen.add(real)
        for names in (folders, files):
            names[:] = sorted(n for n in names if n[0] != "." and n.lower() not in LITTER)
        for name in files:
            path = Path(place, name)
            if path.suffix.lower() in IMAGES:
                images.append(path)
            else:
                others.append(path)
    return sorted(images, key=Path.as_posix), others


class Folder:
    """A folder of images, as all here read it.

    An image's class is the name of the folder at the top that it lies in.  Or the folders at the
    top are parts (PARTS), with the classes below them.  A part has sub-folders of images, or there
    is nothing but parts: a folder `train` of steam engines beside `car` and `bus` is a class.
    images: {path: (part, class)}; part "" in a folder without parts, class None in no sub-folder.
    """

    def __init__(self, path):
        self.path = Path(path)
        if not self.path.is_dir():
            raise UserError(f"no folder {path}")
        images, self.others = files_below(self.path)
        if not images:
            raise UserError(f"{path} has no images")
        self.parts = self._find_parts(images)           # {name at the top: its part}
        self.images = {image: self._place(image) for image in images}

    def _names(self, path):
        """The folders between this one and a file."""
        return [normalize("NFC", name) for name in path.relative_to(self.path).parts[:-1]]

    def _find_parts(self, images):
        has_folders = {}                                # {name at the top: whether it has}
        for image in images:
            names = self._names(image)
            if names:
                has_folders[names[0]] = has_folders.get(names[0], False) or len(names) > 1
        nothing_else = all(name.lower() in PARTS for name in has_folders)
        parts = {}
        for name, deep in has_folders.items():
            if name.lower() in PARTS and (deep or nothing_else):
                parts[name] = PARTS[name.lower()]
        return parts

    def _place(self, path):
        part, names = "", self._names(path)
        if names and names[0] in self.parts:
            part = self.parts[names.pop(0)]
        if not names:
            return part, None
        return part, names[0]

    def rows(self, part):
        """[(path, class)] of a part's images that have a class, by class."""
        same = [name for name, own in self.parts.items() if own == part]
        if len(same) > 1:
            raise UserError(f"{self.path} has {' and '.join(same)}, which are one part: what is "
                            "searched by the test images is named gallery")
        rows = []
        for path, (own, kind) in self.images.items():
            if own == part and kind is not None:
                rows.append((path, kind))
        return sorted(rows, key=lambda row: row[1])

    def splits(self):
        """What trains and what tests, {"train", "test", perhaps "gallery": [(path, class)]}: those
        parts or, where there are none, the first and the second half of the classes, as in the
        papers.  UserError: nothing can be trained or tested on it."""
        self._refuse_lost()
        if not self.parts:
            rows = self.rows("")
            self._need(rows, "", 4)
            classes = sorted({kind for _, kind in rows})
            first = set(classes[:len(classes) // 2])
            splits = {"train": [row for row in rows if row[1] in first],
                      "test": [row for row in rows if row[1] not in first]}
        else:
            splits = {"train": self.rows("train"), "test": self.rows("test")}
            self._need(splits["train"], "train", 2)
            self._need(splits["test"], "test", 1)
            if "gallery" in self.parts.values():
                splits["gallery"] = self.rows("gallery")
                self._need(splits["gallery"], "gallery", 1)
        count = collections.Counter(kind for _, kind in splits["test"])
        if "gallery" not in splits:
            lone = [kind for kind in count if count[kind] < 2]
            if lone:
                raise UserError(f"{self.path}: {len(lone)} of {len(count)} test classes have one "
                                f"image, {listed(lone)}: each needs two, or a gallery/ to be "
                                "found in")
        elif not any(kind in count for _, kind in splits["gallery"]):
            raise UserError(f"{self.path}/gallery has no class of {self.path}/test to find")
        return splits

    def _refuse_lost(self):
        """UserError: images that are links to nowhere, a class of which no image can be read."""
        dead = [path for path in self.images if not path.exists()]
        if dead:
            raise UserError(f"{self.path} has {len(dead)} links that lead nowhere: {listed(dead)}")
        lost, places = {}, set(self.images.values())
        for path in self.others:
            part, kind = place = self._place(path)
            unused = part == "val" or self.parts and not part
            if kind is not None and place not in places and not unused:
                lost[place] = path.relative_to(self.path)
        if lost:
            raise UserError(f"{self.path}: {len(lost)} classes have no image that can be read "
                            f"here, but {listed([*lost.values()])}: save as JPEG or PNG, or move "
                            "them away")

    def _need(self, rows, part, least):
        n = len({kind for _, kind in rows})
        if n < least:
            raise UserError(f"{self.path / part} has {n or 'no'} sub-folders with images: it needs "
                            f"one per class and at least {least}; half of the classes train, "
                            "unless there are train/ and test/ (and perhaps gallery/)")

    def judged(self):
        """What a trained network is judged by, {"test", perhaps "gallery": [(path, class)]}: its
        test/, in its gallery/, or without a test/ all images that have a class.  Where none has,
        each class is None: they can be searched and written, and have no figures."""
        if "test" in self.parts.values():
            splits = {"test": self.rows("test")}
            if "gallery" in self.parts.values():
                splits["gallery"] = self.rows("gallery")
        else:
            splits = {"test": []}
            for part in sorted({part for part, _ in self.images.values()}):
                splits["test"] += self.rows(part)
        if not splits["test"]:
            splits = {"test": [(path, None) for path in self.images]}
        return splits

    def say_left_out(self, splits):
        """Print what lies beside the images of these splits, folders first, and what below."""
        used = {path for rows in splits.values() for path, _ in rows}
        used_at_top = {path.relative_to(self.path).parts[0] for path in used}
        folders, files = collections.Counter(), []
        for path in sorted([*self.images, *self.others]):
            names = path.relative_to(self.path).parts
            if path not in used and len(names) > 1 and names[0] not in used_at_top:
                folders[names[0]] += 1
            elif path not in used:
                files.append("/".join(names))
        left_out = []
        if folders:
            left_out.append(listed([f"{name}/ ({n:,} files)" for name, n in folders.items()]))
        if files:
            left_out.append(f"{len(files):,} files, {listed(files)}")
        if left_out:
            print(f"note: left out of {self.path}: {'; '.join(left_out)}")
        self._say_deeper(used)

    def _say_deeper(self, used):
        deeper, classes = set(), set()
        for path in used:
            names = self._names(path)
            part, kind = self.images[path]
            if len(names) > (2 if part else 1):
                deeper.add(path.parent)
                classes.add(kind)
        if deeper:
            example = min(deeper).relative_to(self.path).as_posix()
            print(f"note: {len(deeper):,} folders of images lie below the classes, as {example} "
                  f"does; an image's class is the folder above, here {listed(sorted(classes))}; to "
                  "have a class for each: docs/running.md, \"A folder per class, deeper\"")


# ---------------------------------------------------------------------------- what a photo is
def fingerprint(path):
    """What tells a photo from another: its size, a hash of its first 16 KiB.  A copy has both."""
    with open(path, "rb") as file:
        start = hashlib.sha256(file.read(1 << 14)).hexdigest()
        return f"{os.fstat(file.fileno()).st_size} {start}"


def identity(folder, splits):
    """{split: digest of its images}, of their paths in the folder and their fingerprints"""
    digests = {}
    with ThreadPoolExecutor(16) as pool:                # network disks answer late
        for part, rows in splits.items():
            paths = [path for path, _ in rows]
            names = [path.relative_to(folder).as_posix() for path in paths]
            digests[part] = digest(*names, *pool.map(fingerprint, paths))[:12]
    return digests

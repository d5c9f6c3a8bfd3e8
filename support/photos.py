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
        if not path or not self.path.is_dir():
            raise UserError(f"unknown dataset '{path}': no folder of images (moved? "
                            "--dataset says where to), and none of cub, cub128, cars, sop, inshop, "
                            "glyphs")
        images, self.others = files_below(self.path)
        if not images:
            raise UserError(f"{path} has no images")
        at_top, with_folders = set(), set()
        for image in images:
            names = self._names(image)
            at_top.update(names[:1])
            if len(names) > 1:
                with_folders.add(names[0])
        if at_top <= {name for name in at_top if name.lower() in PARTS}:
            with_folders = at_top
        self.parts = {}                                 # {name at the top: its part}
        for name in with_folders:
            if name.lower() in PARTS:
                self.parts[name] = PARTS[name.lower()]
        self.images = {image: self._place(image) for image in images}

    def _names(self, path):
        """The folders between this one and a file."""
        return [normalize("NFC", name) for name in path.relative_to(self.path).parts[:-1]]

    def _place(self, path):
        part, *names = "", *self._names(path), None
        if names[0] in self.parts:
            part = self.parts[names.pop(0)]
        return part, names[0]

    def _rows(self, *parts):
        """[(path, class)] of the images of these parts that have a class, by class."""
        rows = []
        for path, (part, kind) in self.images.items():
            if part in parts and kind is not None:
                rows.append((path, kind))
        return sorted(rows, key=lambda row: row[1])

    def _splits(self, *parts):
        """{part: its rows} of those of these parts that there are."""
        splits = {}
        for part in parts:
            names = sorted(name for name, own in self.parts.items() if own == part)
            if len(names) > 1:
                raise UserError(f"{self.path} has {' and '.join(names)}, which mean one part; what "
                                "test images are searched in is named gallery")
            if names:
                splits[part] = self._rows(part)
        return splits

    def splits(self):
        """What trains and what tests, {"train", "test", perhaps "gallery": [(path, class)]}: those
        parts or, where there are none, the first and the second half of the classes, as in the
        papers.  UserError: nothing can be trained or tested on it."""
        self._refuse_lost()
        if self.parts:
            splits = {"train": [], "test": []} | self._splits("train", "test", "gallery")
            for part, rows in splits.items():
                self._need(2 if part == "train" else 1, rows, part)
        else:
            rows = self._rows("")
            classes = self._need(4, rows, "")
            first = classes[:len(classes) // 2]
            splits = {"train": [row for row in rows if row[1] in first],
                      "test": [row for row in rows if row[1] not in first]}
        count = collections.Counter(kind for _, kind in splits["test"])
        lone = [kind for kind in count if count[kind] < 2]
        if lone and "gallery" not in splits:
            raise UserError(f"{self.path}: {len(lone)} of {len(count)} test classes have one "
                            f"image, {listed(lone)}: each needs two, or a gallery/ to be found in")
        if "gallery" in splits and not any(kind in count for _, kind in splits["gallery"]):
            raise UserError(f"{self.path}/gallery has no class of {self.path}/test to find")
        return splits

    def _need(self, least, rows, part):
        """The names of the classes.  UserError: fewer than needed."""
        classes = sorted({kind for _, kind in rows})
        if len(classes) < least:
            deeper = self._deeper([path for path, _ in rows])
            raise UserError(f"{self.path / part} has {len(classes) or 'no'} sub-folders with "
                            f"images: it needs one per class and at least {least}; half of the "
                            "classes train, unless there are train/ and test/"
                            + (deeper and f".  {deeper}"))
        return classes

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

    def judged(self):
        """What a trained network is judged by, {"test", perhaps "gallery": [(path, class)]}: its
        test/, in its gallery/, or without a test/ all images.  UserError: none has a class."""
        splits = self._splits("test", "gallery")
        if "test" not in splits:
            splits = {"test": self._rows("", "train", "val", "gallery")}
        if not splits["test"]:
            raise UserError(f"{self.path} has no classes in sub-folders, so no figures; --query "
                            "PHOTO --gallery FOLDER searches it")
        return splits

    def say_left_out(self, splits):
        """Print what lies beside the images of these splits, folders first, and what below."""
        used = {path for rows in splits.values() for path, _ in rows}
        used_at_top = {path.relative_to(self.path).parts[0] for path in used}
        folders, files = collections.Counter(), []
        for path in sorted({*self.images, *self.others} - used):
            name = path.relative_to(self.path)
            top = name.parts[0]
            if path.parent == self.path or top in used_at_top:
                files.append(name.as_posix())
            else:
                folders[f"{top}/"] += 1
        left_out = [f"{name} ({n:,} files)" for name, n in folders.items()]
        if files:
            left_out.append(f"{len(files):,} files: {listed(files)}")
        if left_out:
            print(f"note: left out of {self.path}: {'; '.join(left_out)}")
        deeper = self._deeper(used)
        if deeper:
            print(f"note: {deeper}")

    def _deeper(self, paths):
        """In words, which folders of images lie below the classes; "" if none do."""
        deeper = set()
        for path in paths:
            part, _ = self.images[path]
            if len(self._names(path)) > (2 if part else 1):
                deeper.add(path.parent.relative_to(self.path).as_posix())
        if not deeper:
            return ""
        return (f"{len(deeper):,} folders of images lie below the classes, as {min(deeper)} does; "
                "an image's class is the folder above them.  To have a class for each: "
                "docs/running.md, \"A folder per class, deeper\"")


# ---------------------------------------------------------------------------- what a photo is
def fingerprint(path):
    """What tells a photo from another: its size, a hash of its first 16 KiB.  A copy has both."""
    with open(path, "rb") as file:
        start = hashlib.sha256(file.read(1 << 14)).hexdigest()
        return f"{os.fstat(file.fileno()).st_size} {start}"


def identity(folder, splits, of_papers):
    """{split: digest of its images}: of their paths in the folder and, where they are no papers',
    their fingerprints.  A look at each of the papers' 120,000 files may take minutes."""
    digests = {}
    with ThreadPoolExecutor(16) as pool:                # network disks answer late
        for part, rows in splits.items():
            paths = [path for path, _ in rows]
            words = [path.relative_to(folder).as_posix() for path in paths]
            if not of_papers:
                words += pool.map(fingerprint, paths)
            digests[part] = digest(*words)[:12]
    return digests

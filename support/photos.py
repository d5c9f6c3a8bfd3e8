"""Photos of one's own: how they are decoded, and what a folder of them means.

    decode(photo)               as a viewer shows it
    Folder(path)                its images, each with its part (train, test, ...) and its class
    Folder.splits(), .judged()  what trains and what tests; what a trained network is judged by

Training, check, eval.py and --query read a folder by this Folder.  The papers know none of this.
"""
import collections
import contextlib
import hashlib
import io
import os
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
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
@contextlib.contextmanager
def opened(photo):
    """A path, an open file or a PIL image -> a PIL image.  UserError if it cannot be read."""
    try:
        if isinstance(photo, PIL.Image.Image):
            yield photo.copy()
        elif hasattr(photo, "read"):
            yield PIL.Image.open(photo)
        else:
            with open(photo, "rb") as file, PIL.Image.open(file) as image:
                yield image
    except Exception as error:              # Pillow fails in a dozen ways on damaged files
        raise UserError(f"cannot read the image {photo}: {error}")


def decode_as_stored(photo):
    """A photo -> an RGB PIL image as it is stored, as the papers' authors read theirs."""
    with opened(photo) as image:
        return image.convert("RGB")


def decode(photo):
    """A photo -> an RGB PIL image as a viewer shows it: upright, transparent parts on white, 16-bit
    grey scaled to 8 bits, in the colours of its profile.  A broken tag or profile is left aside."""
    with opened(photo) as image:
        return _as_shown(image)


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
        own = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if not str(own.profile.profile_description).startswith("sRGB IEC61966"):
            return ImageCms.profileToProfile(image.convert(mode), own,
                                             ImageCms.createProfile("sRGB"), outputMode="RGB")
    return image.convert("RGB")


# ---------------------------------------------------------------------------- what a folder means
def for_people(name):
    return name[0] != "." and name.lower() not in LITTER


def files_below(folder):
    """-> the images below a folder, in order, and the other files that are for people.  Links are
    followed, but into each folder once.  OSError: a folder that cannot be read."""
    def refuse(error):
        raise error
    seen, images, others = set(), [], []
    for place, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            others.append(Path(place))                  # a second way to it
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(filter(for_people, folders))
        for name in filter(for_people, files):
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
    deeper: what to say of folders of images below the classes.
    """

    def __init__(self, path):
        self.path = Path(path)
        if not path or not self.path.is_dir():
            raise UserError(f"unknown dataset '{path}': no folder of images (moved? --dataset says "
                            "where to), and none of cub, cub128, cars, sop, inshop, glyphs")
        images, self.others = files_below(self.path)
        if not images:
            raise UserError(f"{path} has no images")
        folders, top, with_folders = {}, set(), set()
        for image in images:
            names = normalize("NFC", image.relative_to(self.path).as_posix()).split("/")[:-1]
            folders[image] = names
            top.update(names[:1])
            if len(names) > 1:
                with_folders.add(names[0])
        called = {name for name in top if name.lower() in PARTS}
        if called != top:
            called &= with_folders
        self.parts = {name: PARTS[name.lower()] for name in called}     # {name at the top: part}
        if len({*self.parts.values()}) < len(called):
            raise UserError(f"{path} has {', '.join(sorted(called))}, of which two mean one part; "
                            "what test images are searched in is named gallery")
        self.images, self.deeper = {}, ""
        deeper = []
        for image, names in folders.items():
            part = ""
            if names and names[0] in self.parts:
                part = self.parts[names.pop(0)]
            self.images[image] = part, names[0] if names else None
            if len(names) > 1:
                deeper.append(image.parent.relative_to(self.path).as_posix())
        if deeper:
            self.deeper = (f"{len({*deeper}):,} folders of images lie below the classes, as "
                           f"{min(deeper)} does; an image's class is the folder above them.  To "
                           'have a class for each: docs/running.md, "A folder per class, deeper"')

    def rows(self, *parts):
        """[(path, class)] of the images of these parts that have a class, by class."""
        rows = []
        for path, (part, kind) in self.images.items():
            if part in parts and kind:
                rows.append((path, kind))
        return sorted(rows, key=itemgetter(1))

    def splits(self):
        """What trains and what tests, {"train", "test", perhaps "gallery": [(path, class)]}: those
        parts or, where there are none, the first and the second half of the classes, as in the
        papers.  UserError: nothing can be trained or tested on it."""
        splits = {"train": self.rows("train"), "test": self.rows("test")}
        if "gallery" in self.parts.values():
            splits["gallery"] = self.rows("gallery")
        if not self.parts:
            rows = self.rows("")
            classes = sorted({kind for _, kind in rows})
            first = classes[:len(classes) // 2]
            for row in rows:
                splits["train" if row[1] in first else "test"].append(row)
        counts = {}
        for part, rows in splits.items():
            counts[part] = collections.Counter(kind for _, kind in rows)
        if len(counts["train"]) < 2 or not all(counts.values()):
            found = ", ".join(f"{part} {len(count)}" for part, count in counts.items())
            raise UserError(f"{self.path} has too few sub-folders with images, one per class "
                            f"({found}): it needs four, of which half train, or train/ with two "
                            f"and test/.  {self.deeper}".rstrip())
        lone = [kind for kind, count in counts["test"].items() if count < 2]
        if lone and "gallery" not in splits:
            raise UserError(f"{self.path}: {len(lone)} test classes have one image, "
                            f"{listed(lone)}: each needs two, or a gallery/ to be found in")
        return splits

    def judged(self):
        """What a trained network is judged by, {"test", perhaps "gallery": [(path, class)]}: its
        test/, in its gallery/, or without a test/ all images.  UserError: none has a class."""
        splits = {"test": self.rows("", "train", "val", "gallery")}
        if "test" in self.parts.values():
            splits = {"test": self.rows("test")}
            if "gallery" in self.parts.values():
                splits["gallery"] = self.rows("gallery")
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
            name = path.relative_to(self.path).as_posix()
            top, below, _ = name.partition("/")
            if below and top not in used_at_top:
                folders[top] += 1
            else:
                files.append(name)
        left_out = [f"{top}/ ({n:,} files)" for top, n in folders.items()]
        if files:
            left_out.append(f"{len(files):,} files: {listed(files)}")
        if left_out:
            print(f"note: left out of {self.path}: {'; '.join(left_out)}")
        if self.deeper:
            print(f"note: {self.deeper}")


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

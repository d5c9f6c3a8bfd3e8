"""Photos of one's own: how they are decoded, and what a folder of them means.

    decode(photo)               uint8 (3, h, w) as a viewer shows it; shown(photo) as a PIL image
    Folder(path)                its images, each with its part (train, test, ...) and its class
    Folder.splits(), .judged()  what trains and what tests; what a trained network is judged by

Training, check, eval.py and --query read a folder by this Folder.  Images are handed on as
{path: class}.  The papers' datasets are decoded by decode_as_stored.
"""
import collections
import contextlib
import hashlib
import io
import os
import re
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from pathlib import Path
from unicodedata import normalize

import numpy as np
import PIL.Image
import torch
from PIL import ImageCms, ImageOps
from torchvision.datasets.folder import IMG_EXTENSIONS
from torchvision.transforms.v2.functional import pil_to_tensor

from support.files import UserError, digest, listed

try:
    from torchvision.io import ImageReadMode, decode_image
except ImportError:     # torchvision 0.29 calls them deprecated; without them Pillow decodes all
    decode_image = None

# Formats; MPO: JPEGs of phones.  No PNG: a damaged one ends the process (torchvision 0.29.1:
# segmentation fault; tests/test_decoding.py), and a whole one gains a seventh of its time.
BY_TORCHVISION = ("JPEG", "MPO", "WEBP")
ORIENTATION = 0x0112                                    # a tag of EXIF
LONGEST = 100           # times the shorter side: jrd.py resizes that, whatever becomes of the other
IMAGES = (*IMG_EXTENSIONS, ".jpe", ".jfif", ".gif", ".jp2", ".avif")    # names of photos end so
OTHER_PHOTOS = {  # which nothing here reads
    ".heic", ".heif", ".hif", ".jxl", ".tga", ".psd", ".svg", ".dng", ".cr2", ".cr3", ".nef",
    ".arw", ".raf", ".orf", ".rw2", ".pef", ".srw", ".raw"}
UNCOMPRESSED = (".bmp", ".ppm", ".pgm", ".tif", ".tiff")                # or may be
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
        else:
            with PIL.Image.open(photo) as image:
                image.filename = ""     # so Pillow does not map a TIFF, which it would turn wrongly
                yield image
    except Exception as error:              # Pillow fails in a dozen ways on damaged files
        raise UserError(f"cannot read the image {photo}: {error}")


def decode_as_stored(photo):
    """A photo -> uint8 RGB (3, h, w) as it is stored, as the papers' authors read theirs by
    Pillow's convert("RGB").  UserError: it cannot be read."""
    with opened(photo) as image:
        pixels = _by_torchvision(image)
        if pixels is None:
            pixels = pil_to_tensor(image.convert("RGB"))
        return pixels


def decode(photo):
    """A photo -> uint8 RGB (3, h, w) of the pixels of shown(photo).  UserError: it cannot be read,
    or is a strip (LONGEST), before memory is taken for its pixels."""
    with opened(photo) as image:
        _refuse_what_has_no_look(image)
        pixels = None
        if "icc_profile" not in image.info and _is_upright(image):
            pixels = _by_torchvision(image)
        if pixels is None:
            pixels = pil_to_tensor(_as_shown(image))
        return pixels


def shown(photo):
    """A photo -> an RGB PIL image as a viewer shows it: upright, transparent parts on white, 16-bit
    grey scaled to 8 bits, in the colours of its profile.  A broken tag or profile is left aside.
    UserError as of decode."""
    with opened(photo) as image:
        _refuse_what_has_no_look(image)
        return _as_shown(image)


def _refuse_what_has_no_look(image):
    if image.mode in ("I", "F"):
        raise ValueError(f"mode {image.mode} does not say what is white; save 8 or 16 bits")
    if max(image.size) > LONGEST * min(image.size):
        raise ValueError(f"{image.width:,} × {image.height:,} pixels; one side may be at most "
                         f"{LONGEST} times as long as the other")


def _is_upright(image):
    with contextlib.suppress(Exception):            # broken tags of any kind
        return image.getexif().get(ORIENTATION, 1) == 1
    return False


def _as_shown(image):
    image.load()                                    # turns a TIFF by its tag
    profile = image.info.get("icc_profile")
    with contextlib.suppress(Exception):            # broken tags of any kind
        ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I;16"):
        image = PIL.Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    mode = {"L": "L", "LA": "L", "CMYK": "CMYK"}.get(image.mode, "RGB")
    if image.has_transparency_data:
        white = PIL.Image.new("RGBA", image.size, "white")
        image = PIL.Image.alpha_composite(white, image.convert("RGBA"))
    with contextlib.suppress(Exception):    # a broken profile, a Pillow without littlecms
        own = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if not str(own.profile.profile_description).startswith("sRGB IEC61966"):
            return ImageCms.profileToProfile(image.convert(mode), own,
                                             ImageCms.createProfile("sRGB"), outputMode="RGB")
    return image.convert("RGB")


def _by_torchvision(image):
    """A PIL image, of which no more than the header is read -> the pixels of its convert("RGB") by
    torchvision, in two thirds of the time (benchmarks/decoding.py); or None where they may differ.

    tests/test_decoding.py holds that they are the same.  What torchvision refuses, Pillow decides.
    Pillow has looked at the header: what kind of file it is, whatever its name, that its pixels
    fit into memory, and what a viewer must know.
    """
    if image.format not in BY_TORCHVISION or image.mode not in ("L", "RGB"):
        return None
    if decode_image is None or image.has_transparency_data:
        return None
    place = image.fp.tell()
    image.fp.seek(0)
    data = bytearray(image.fp.read())
    image.fp.seek(place)
    try:
        pixels = decode_image(torch.frombuffer(data, dtype=torch.uint8), ImageReadMode.RGB)
    except Exception:                       # a file cut off; a kind that its libraries cannot read
        return None
    if pixels.shape == (3, image.height, image.width):
        return pixels


def pictures_in(photo):
    """How many pictures a file holds, pages of a TIFF or frames of a GIF, WebP or PNG, of which
    decode takes the first.  Of a JPEG 1: the others are previews or gain maps of a phone."""
    with opened(photo) as image:
        return 1 if image.format in ("JPEG", "MPO") else getattr(image, "n_frames", 1)


# ---------------------------------------------------------------------------- what a folder means
def for_people(name):
    return name[0] != "." and name.lower() not in LITTER


def folders_in(folder):
    """The folders directly in a folder, without a look at each of its files"""
    with os.scandir(folder) as entries:
        return [Path(entry) for entry in entries if entry.is_dir()]


def of_other_kind(path):
    return path.suffix.lower() in OTHER_PHOTOS


def files_below(folder):
    """List the images below a folder, in order, and the other files that are for people, with the
    folders that are not entered.  Links are followed, but within a part into each folder once, and
    never back.  A run's folder holds none.  OSError: a folder that cannot be read."""
    def refuse(error):
        raise error
    root, entered, images, others = Path(folder), set(), [], []
    way_to = {}                     # {folder: the real folders that it is in, or that led to it}
    for place, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        here, part, way = Path(place), None, set()
        real = here.resolve()
        if here != root:
            part = PARTS.get(here.relative_to(root).parts[0].lower())
            way = way_to[here.parent]
        if real in way or (part, real) in entered:
            others.append(here)
            folders.clear()
            continue
        entered.add((part, real))
        if re.search(r"-s\d+$", here.name) and {"config.json", "last.pt"} <= {*files}:
            others.append(here / "last.pt")             # a run, whose pictures are no photos
            folders.clear()
            continue
        way_to[here] = way | {real, *real.parents}
        folders[:] = sorted(filter(for_people, folders))
        for name in filter(for_people, files):
            path = Path(place, name)
            if name.lower().endswith(IMAGES):
                images.append(path)
            else:
                others.append(path)
    return sorted(images, key=attrgetter("parts")), others


class Folder:
    """A folder of images, as all here read it.

    An image's class is the name of the folder at the top that it lies in.  Or the folders at the
    top are parts (PARTS), with the classes below them.  A part has sub-folders of images, or there
    is nothing but parts: a folder `train` of steam engines beside `car` and `bus` is a class.
    images: {path: class}, None for one in no sub-folder.  parts: {part: {path: class}} of those
    that have a class; "" is what lies in no part.
    deeper: what to say of folders of images below the classes; twice: of two folders for one part.
    dead: links that lead nowhere and have no image's name, perhaps to folders of classes.
    """

    def __init__(self, path):
        self.path = Path(path)
        if not path or not self.path.is_dir():
            raise UserError(f"unknown dataset '{path}': no folder of images, and none of cub, "
                            "cub128, cars, sop, inshop, glyphs")
        images, self.others = files_below(self.path)
        dead = [path for path in self.others if path.is_symlink() and not path.exists()]
        self.dead = sorted(dead)
        self.images = dict.fromkeys(images)             # without a class so far
        folders_of, top, with_folders = {}, set(), set()
        for image in images:
            *folders, _ = image.relative_to(self.path).parts
            folders_of[image] = folders
            top.update(folders[:1])
            if len(folders) > 1:
                with_folders.add(folders[0])
        called = {name for name in top if name.lower() in PARTS}
        if called != top:
            called &= with_folders
        self.parts, self.deeper, deeper = {"": {}}, "", set()
        for name in sorted(called):
            self.parts[PARTS[name.lower()]] = {}
        self.twice = ""
        if len(self.parts) <= len(called):
            self.twice = (f"{path} has {', '.join(sorted(called))}, of which two mean one part; "
                          "what test images are searched in is named gallery")
        for image, folders in folders_of.items():
            rows = self.parts[""]
            if folders and folders[0] in called:
                rows = self.parts[PARTS[folders.pop(0).lower()]]
            if folders:                 # a Mac writes umlauts in another way than Linux
                self.images[image] = rows[image] = normalize("NFC", folders[0])
            if len(folders) > 1:
                deeper.add(image.parent)
        if deeper:
            self.deeper = (f"{len(deeper):,} folders of images lie below the classes, as "
                           f"{min(deeper)} does; an image's class is the folder above them.  To "
                           'have a class for each: docs/running.md, "A folder per class, deeper"')

    def splits(self):
        """What trains and what tests, {"train", "test", perhaps "gallery": {path: class}}: those
        parts or, where there are none, the first and the second half of the classes, as in the
        papers.  UserError: nothing can be trained or tested on it."""
        if self.twice:
            raise UserError(self.twice)
        splits = {"train": {}, "test": {}} | self.parts
        splits.pop("val", None)
        beside = splits.pop("")
        if len(self.parts) == 1:
            half = len({*beside.values()}) // 2
            splits["train"], splits["test"] = divided(beside, half)
        counts = counts_of(splits)
        if counts["train"][1] < 2 or not all(splits.values()):
            parts = [part for part in self.parts if part]
            why, loose = "", sum(kind is None for kind in self.images.values())
            if parts and beside:
                why = f"  What is called {' or '.join(parts)} is taken for a part, not for a class."
            if loose:
                why += f"  In no sub-folder: {loose:,} of its images."
            raise UserError(f"{self.path} has too few sub-folders with images, one per class "
                            f"(images, classes: {counts}): it needs four, of which half train, or "
                            f"train/ with two and test/.{why}  {self.deeper}".rstrip())
        sizes = collections.Counter(splits["test"].values())
        lone = [kind for kind, size in sizes.items() if size < 2]
        if lone and "gallery" not in splits:
            raise UserError(f"{self.path}: {len(lone)} test classes have one image, "
                            f"{listed(lone)}: each needs two, or a gallery/ to be found in")
        if "gallery" in splits and sizes.keys().isdisjoint(splits["gallery"].values()):
            raise UserError(f"{self.path}: its gallery has none of the test classes, so that every "
                            f"query would be a miss: {listed(sorted(sizes))} are not in it")
        return splits

    def refuse_lost_classes(self):
        """Raise UserError if a class, or a part with all of its classes, is not among the images: a
        link to its folder leads nowhere, or no photo in it can be read here."""
        parts = {part for part in PARTS if PARTS[part] != "val"}
        places = [self.path]
        places += [path for path in folders_in(self.path) if path.name.lower() in parts]
        dead = [path for path in self.dead if path.parent in places]
        if dead:
            raise UserError(f"{self.path} has {len(dead)} links that lead nowhere, {listed(dead)}: "
                            "mend or remove them")
        lost = {file for file in self.without_images().values() if of_other_kind(file)}
        for place in places[1:]:
            if not any(place in path.parents for path in self.images):
                photos = [path for path in self.others if place in path.parents
                          and of_other_kind(path)]
                lost |= {path.relative_to(self.path) for path in sorted(photos)[:1]}
        if lost:
            raise UserError(f"{self.path}: {len(lost)} folders have no photo that can be read "
                            f"here, but {listed(sorted(lost))}: save them as JPEG or PNG, or move "
                            "them away")

    def judged(self):
        """What a trained network is judged by, {"test", perhaps "gallery": {path: class}}: its
        test/, in its gallery/, or without a test/ all images.  UserError: none has a class."""
        if self.twice:
            raise UserError(self.twice)
        splits = {"test": {}}
        for part, rows in self.parts.items():
            if "test" not in self.parts:
                splits["test"] |= rows
            elif part in ("test", "gallery"):
                splits[part] = rows
        if not splits["test"]:
            raise UserError(f"{self.path} has no classes in sub-folders, so no figures; --query "
                            "PHOTO --gallery FOLDER searches it, --gallery FOLDER --export "
                            "FILE.npz embeds it")
        return splits

    def without_images(self):
        """{(part, class): a file, of OTHER_PHOTOS if it has any} of folders where a class's would
        be, in which no file is an image that can be read here, by its name."""
        places, lost = set(), {}
        for part, rows in self.parts.items():
            places.update((part, kind) for kind in rows.values())
        photos_first = sorted(self.others, key=lambda path: (not of_other_kind(path), path))
        for path in photos_first:
            *folders, _ = path.relative_to(self.path).parts
            part = ""
            if folders and PARTS.get(folders[0].lower()) in self.parts:
                part = PARTS[folders.pop(0).lower()]
            unused = part == "val" or len(self.parts) > 1 and not part
            if folders and not unused and path.is_file() and path.name != "last.pt":
                place = part, normalize("NFC", folders[0])
                if place not in places:
                    lost.setdefault(place, path.relative_to(self.path))
        return lost

    def places(self):
        """Yield each folder that may be a class: those at the top, the parts among them, and those
        directly in a part."""
        for place in folders_in(self.path):
            yield place
            if place.name.lower() in PARTS:
                yield from folders_in(place)

    def empty(self):
        """List the folders that may be classes, but hold no file for people."""
        inhabited, found = set(), []
        for path in (*self.images, *self.others):
            parts = path.relative_to(self.path).parts
            inhabited |= {parts[:1], parts[:2]}
        for path in self.places():
            name = path.relative_to(self.path)
            if for_people(path.name) and name.parts not in inhabited:
                found.append(name)
        return sorted(found)

    def hidden(self):
        """Folders where a class's would be that have images, but a name that is not for people."""
        found = []
        for path in self.places():
            if not for_people(path.name):
                with contextlib.suppress(OSError):      # lost+found, which nobody may read
                    for file in path.iterdir():         # a Synology has folders called 0.jpg
                        if file.name.lower().endswith(IMAGES) and for_people(file.name) and (
                                file.is_file()):
                            found.append(path.relative_to(self.path))
                            break
        return sorted(found)

    def say_left_out(self, splits):
        """Print what lies beside the images of these splits, folders first, and what below."""
        used = set().union(*splits.values())
        used_at_top = {path.relative_to(self.path).parts[0] for path in used}
        folders, files, again = collections.Counter(), [], []
        for path in sorted({*self.images, *self.others} - used - {*self.dead}):
            name = path.relative_to(self.path)
            top, *below = name.parts
            if path.is_dir():
                again.append(name)
            elif below and top not in used_at_top:
                folders[top] += 1
            else:
                files.append(name)
        left_out = [f"{top}/ ({n:,} files)" for top, n in folders.items()]
        if again:
            left_out.append(f"{len(again):,} links to folders that are read by another way, or lie "
                            f"above: {listed(again)}")
        if files:
            left_out.append(f"{len(files):,} files: {listed(files)}")
        if left_out:
            print(f"note: left out of {self.path}: {'; '.join(left_out)}")
        if self.dead:
            print(f"note: {len(self.dead)} links lead nowhere: {listed(self.dead)}")
        empty = self.empty()
        if empty:
            print(f"note: {len(empty)} folders are empty: {listed(empty)}")
        hidden = self.hidden()
        if hidden:
            print(f"note: {len(hidden)} folders with images are not read, because of their names: "
                  f"{listed(hidden)}")
        lost = [*self.without_images().values()]
        if lost:
            print(f"note: {len(lost)} folders have no image that can be read here, but "
                  f"{listed(lost)}: if these are classes, save their photos as JPEG or PNG")
        if len(self.parts) == 1:                        # no parts, but classes alone
            kinds = {kind for kind in self.parts[""].values() if kind.lower() in PARTS}
            if kinds:
                print(f"note: {listed(sorted(kinds))} in {self.path}: taken for a class of that "
                      "name")
        if self.deeper:
            print(f"note: {self.deeper}")


# ---------------------------------------------------------------------------- {path: class}
def counts_of(splits):
    """{split: (number of images, of classes)}"""
    counts = {}
    for part, rows in splits.items():
        counts[part] = len(rows), len({*rows.values()})
    return counts


def divided(rows, n):
    """The rows {path: class} of the first n classes, by name, and those of the others."""
    first_classes = {*sorted({*rows.values()})[:n]}
    first, others = {}, {}
    for path, kind in rows.items():
        if kind in first_classes:
            first[path] = kind
        else:
            others[path] = kind
    return first, others


# ---------------------------------------------------------------------------- what a photo is
def fingerprint(path):
    """What tells a photo from another: its size, a hash of its first 16 KiB, or of the whole if it
    is not compressed, because white paper begins many such photos.  A copy has both."""
    with open(path, "rb") as file:
        start = hashlib.sha256(file.read(1 << 14))
        while path.name.lower().endswith(UNCOMPRESSED) and (more := file.read(1 << 20)):
            start.update(more)
        return f"{file.seek(0, os.SEEK_END)} {start.hexdigest()}"


def last_edits(rows):
    """When the files were written whose fingerprint an edit may leave as it is, because pixels
    that are not compressed take the same room whatever they are."""
    return [path.stat().st_mtime_ns for path in rows if path.name.lower().endswith(UNCOMPRESSED)]


def identity(folder, splits, of_papers):
    """{split: digest of its images}: of their paths in the folder and, where they are no papers',
    their fingerprints.  A look at each of the papers' 120,000 files may take minutes."""
    digests = {}
    with ThreadPoolExecutor(16) as pool:                # network disks answer late
        for part, rows in splits.items():
            words = [path.relative_to(folder).as_posix() for path in rows]
            if not of_papers:
                words += pool.map(fingerprint, rows)
            digests[part] = digest(*words)[:12]
    return digests

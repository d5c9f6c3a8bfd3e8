"""Where the images of a dataset lie: the papers' four, as their archives unpack, and folders.

Nothing is read of the images themselves.
"""
import collections
import os
import shlex
from pathlib import Path
from unicodedata import normalize

import scipy.io
from torchvision.datasets.folder import IMG_EXTENSIONS

from support.files import Unsplit, UserError, listed, reason

SMALLER = {"cub128": "cub"}         # presets of a dataset in which its images are smaller
COUNTS = {  # images and classes of each split; with other counts nothing trains
    "cub": {"train": (5864, 100), "test": (5924, 100)},
    "cars": {"train": (8054, 98), "test": (8131, 98)},
    "sop": {"train": (59551, 11318), "test": (60502, 11316)},
    "inshop": {"train": (25882, 3997), "test": (14218, 3985), "gallery": (12612, 3985)}}
FOLDERS = {  # under the data root; the first one is advised
    "cub": ["CUB_200_2011"], "sop": ["Stanford_Online_Products"],
    "cars": ["cars", "cars196", "stanford_cars"],
    "inshop": ["inshop", "In-shop Clothes Retrieval Benchmark"]}
ARCHIVES = {  # of that folder: address, bytes, md5
    "cub": ("https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz", 1_150_585_339,
            "97eceeb196236b17998738112f37df78"),
    "sop": ("ftp://cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip", 3_083_860_082,
            "7f73d41a2f44250d4779881525aea32e")}
BY_HAND = {  # where there is no archive to download
    "cars": "{0}/car_ims (of car_ims.tgz, md5 d5c8f0aa497503f355e17dc7886c3f14) and "
            "{0}/cars_annos.mat (md5 b407c6086d669747186bd1d764ff9dbc); or {0}/cars_train, "
            "{0}/cars_test, {0}/devkit/cars_train_annos.mat and {0}/devkit/cars_test_annos_with"
            "labels.mat, as copies have them: ai.stanford.edu/~jkrause/cars is gone since 2023",
    "inshop": "{0}/list_eval_partition.txt and {0}/img (not img_highres), 52,712 images of the "
              "In-shop Clothes Retrieval Benchmark, mmlab.ie.cuhk.edu.hk/projects/DeepFashion.html"}
IMAGES = (*IMG_EXTENSIONS, ".jpe", ".jfif", ".gif", ".jp2", ".avif")    # names of photos end so
LITTER = {  # of Macs, network disks and Windows, beside names that begin with a dot
    "__macosx", "@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "lost+found",
    "$recycle.bin", "recycler", "system volume information", "thumbs.db", "desktop.ini"}


def read_dataset(name, root):
    """A dataset's name, or a folder of one's own -> its folder, {"train", "test" and perhaps
    "gallery": [(path, class)]}.  UserError: unknown, missing, not whole, not to be split."""
    name = SMALLER.get(name, name)
    if name in COUNTS:
        return _papers(name, root)
    if not name or not Path(name).is_dir():
        raise UserError(f"unknown dataset '{name}': no folder of images (moved? --dataset says "
                        f"where to), and none of {', '.join([*COUNTS, *SMALLER])} (and glyphs, "
                        "which has no files)")
    return Path(name), _own_folder(Path(name))


# ---------------------------------------------------------------------------- folders of one's own
def files_below(folder):
    """-> the images below a folder, in order, and the other files that are for people.  Links are
    followed, but into each folder once.  UserError: an unreadable folder, links to nowhere."""
    def refuse(error):
        raise UserError(f"cannot read the folder {error.filename}: {error.strerror}")
    seen, images, others = set(), [], []
    for place, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        if (real := os.path.realpath(place)) in seen:
            others.append(Path(place))              # a second way to it
            folders.clear()
            continue
        seen.add(real)
        for names in (folders, files):
            names[:] = sorted(n for n in names if n[0] != "." and n.lower() not in LITTER)
        for path in (Path(place, name) for name in files):
            (images if path.suffix.lower() in IMAGES else others).append(path)
    if dead := [path for path in [*images, *others] if not path.exists()]:
        raise UserError(f"{folder} has {len(dead)} links that lead nowhere: {listed(dead)}")
    return sorted(images, key=Path.as_posix), others


def say_left_out(folder, paths):
    if paths:
        print(f"note: left out of {folder}: {len(paths)} files, "
              + listed(sorted(path.relative_to(folder).as_posix() for path in paths)))


def _own_folder(folder):
    """A sub-folder per class: the first half of them (by name) trains, the second half tests, as
    the papers do.  Or train/ and test/, and perhaps gallery/, each with a sub-folder per class."""
    parts = [part for part in ("train", "test", "gallery") if (folder / part).is_dir()]
    split = {"train", "test"} <= {*parts}
    parts = parts if split else [""]

    def place_of(path):                             # (part, class), None for a file outside
        folders = tuple(normalize("NFC", name) for name in path.relative_to(folder).parts[:-1])
        place = folders[:2] if split else ("", *folders[:1])
        return place if len(place) == 2 and place[0] in parts else None
    images, left_out = files_below(folder)
    images_of = collections.defaultdict(list)       # {(part, class): its images}
    for path in images:
        images_of[place_of(path)].append(path)
    left_out += images_of.pop(None, [])
    lost = {place: path.relative_to(folder) for path in left_out
            if (place := place_of(path)) and place not in images_of}
    if lost:
        raise Unsplit(f"{folder}: {len(lost)} classes have no image that can be read here, but "
                      f"{listed([*lost.values()])}: save as JPEG or PNG, or move them away")
    for part in parts:
        n = sum(place[0] == part for place in images_of)
        if n < (least := {"": 4, "train": 2}.get(part, 1)):
            raise Unsplit(f"{folder / part} has {n or 'no'} sub-folders with images: it needs "
                          f"one a class and at least {least}; half of the classes train, unless "
                          "there are train/ and test/ (and perhaps gallery/), by these names")
    splits = {part: [] for part in (parts if split else ("train", "test"))}
    for i, ((part, name), paths) in enumerate(sorted(images_of.items())):
        part = part or ("train" if i < len(images_of) // 2 else "test")
        splits[part] += [(path, name) for path in paths]
    count = collections.Counter(c for _, c in splits["test"])
    lone = [c for c in count if count[c] < 2 and "gallery" not in splits]
    if lone:
        raise Unsplit(f"{folder}: {len(lone)} of {len(count)} test classes have one image, "
                      f"{listed(lone)}: each needs two, or a gallery/ to be found in")
    test, gallery = ({c for _, c in splits.get(part, ())} for part in ("test", "gallery"))
    if gallery and not test & gallery:
        raise Unsplit(f"{folder}/gallery has no class of {folder}/test to find")
    say_left_out(folder, left_out)
    return splits


# ---------------------------------------------------------------------------- the papers' four
def _papers(name, root):
    folders = [Path(root, folder) for folder in FOLDERS[name]]
    folder = next(filter(Path.is_dir, folders), folders[0])
    source = f"put there {BY_HAND.get(name)}".format(folder)
    if name in ARCHIVES:
        url, size, md5 = ARCHIVES[name]
        source = (f"python common.py prepare {name} --data-root {shlex.quote(str(root))} downloads "
                  f"it ({size / 1e9:.1f} GB); or unpack {url} ({size:,} bytes, md5 {md5}) to "
                  f"{folder}")
    if not folder.is_dir():
        raise UserError(f"no {name} under {root} (--data-root or $DML_DATA names another folder): "
                        + source)
    splits = {"train": [], "test": []}
    for part, path, c in {"cub": _cub, "cars": _cars, "sop": _sop, "inshop": _inshop}[name](folder):
        splits.setdefault(part, []).append((path, c))

    def in_words(counts):
        return ", ".join(f"{part} {n:,} images of {c:,} classes" for part, (n, c) in counts.items())
    counts = {part: (len(rows), len({c for _, c in rows})) for part, rows in splits.items()}
    if counts != COUNTS[name]:
        raise UserError(f"{folder} has {in_words(counts)}; the whole dataset, split by class as "
                        f"in the papers, has {in_words(COUNTS[name])}")
    paths = [path for rows in splits.values() for path, _ in rows]
    there = {place: {*os.listdir(place)} if place.is_dir() else {}      # on a network's file system
             for place in {path.parent for path in paths}}              # 300,000 looks take minutes
    if missing := [path for path in paths if path.name not in there[path.parent]]:
        advice = ("a half-extracted archive? unpack it again" if len(missing) < len(paths) else
                  f"known layouts: {source}")
        raise UserError(f"{len(missing):,} of the {len(paths):,} images of {name} are missing, "
                        f"{missing[0]} first: {advice}")
    return folder, splits


def _rows(path, *kinds, header=0):
    """The rows of a list file, each field as its kind.  UserError: no file, a malformed row."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()[header:]
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path} ({error}): a half-extracted archive?")
    for number, line in enumerate(lines, header + 1):
        try:
            yield [kind(field) for kind, field in zip(kinds, line.split(), strict=True)]
        except ValueError:
            raise UserError(f"{path}, line {number}: '{line[:80]}' is not {len(kinds)} fields: " +
                            " ".join({int: "number", str: "text"}[kind] for kind in kinds))


def _cub(folder):
    """CUB-200-2011: classes 1-100 train, 101-200 test."""
    class_of = dict(_rows(folder / "image_class_labels.txt", int, int))
    for i, path in _rows(folder / "images.txt", int, str):
        if i not in class_of:
            raise UserError(f"{folder / 'image_class_labels.txt'} has no class for image {i}")
        part = "train" if class_of[i] <= 100 else "test"
        yield part, folder / "images" / path, Path(path).parent.name


def _cars(folder):
    """Cars-196: classes 1-98 train, 99-196 test, of the original layout, car_ims, or of cars_train
    and cars_test pooled, which some copies have in folders of the same name."""
    lists = {("cars_annos.mat", "car_ims"): "relative_im_path"}         # field of file names
    if not (folder / "car_ims").is_dir():
        lists = {("cars_train_annos.mat", "cars_train"): "fname",
                 ("cars_test_annos_withlabels.mat", "cars_test"): "fname"}
    for names, field in lists.items():              # somewhere below folder
        path, images = ([folder / name, *folder.rglob(name)][-1] for name in names)
        try:
            with open(path, "rb") as file:
                table = scipy.io.loadmat(file, squeeze_me=True)["annotations"]
            rows = [(Path(str(name)).name, int(c)) for name, c in zip(table[field], table["class"])]
        except Exception as error:          # loadmat fails in a dozen ways on a damaged file
            raise UserError(f"cannot read '{field}' and 'class' of 'annotations' in {path}: "
                            f"{reason(error)}; wanted are {BY_HAND['cars'].format(folder)}")
        for name, c in rows:
            yield "train" if c <= 98 else "test", images / name, c


def _sop(folder):
    """Stanford Online Products: its own split by class."""
    for part in ("train", "test"):
        for _, c, _, path in _rows(folder / f"Ebay_{part}.txt", int, int, int, str, header=1):
            yield part, folder / path, c


def _inshop(folder):
    """In-Shop: its own split; queries (test) are searched in the gallery."""
    lists, images = (folder / sub if (folder / sub).is_dir() else folder for sub in ("Eval", "Img"))
    for path, c, part in _rows(lists / "list_eval_partition.txt", str, str, str, header=2):
        yield "test" if part == "query" else part, images / path, c

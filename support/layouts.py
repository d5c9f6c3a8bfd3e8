"""Where the images of a dataset lie: the papers' four, as their archives unpack, and folders.

Each reader gives {"train", "test" and perhaps "gallery": [(path, class)]}.  Nothing is read of the
images themselves.
"""
import os
import shlex
from pathlib import Path

import scipy.io
from torchvision.datasets.folder import IMG_EXTENSIONS

from support.files import UserError, listed, reason

SMALLER = {"cub128": "cub"}         # presets of a dataset in which its images are smaller
COUNTS = {  # images and classes of each split; with other counts nothing trains
    "cub": {"train": (5864, 100), "test": (5924, 100)},
    "cars": {"train": (8054, 98), "test": (8131, 98)},
    "sop": {"train": (59551, 11318), "test": (60502, 11316)},
    "inshop": {"train": (25882, 3997), "test": (14218, 3985), "gallery": (12612, 3985)}}
FOLDERS = {  # under the data root; the first one is advised
    "cub": ["CUB_200_2011"], "cars": ["cars", "cars196", "stanford_cars"],
    "sop": ["Stanford_Online_Products"],
    "inshop": ["inshop", "In-shop Clothes Retrieval Benchmark"]}
ARCHIVES = {  # of that folder: address, bytes, md5
    "cub": ("https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz", 1_150_585_339,
            "97eceeb196236b17998738112f37df78"),
    "sop": ("ftp://cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip", 3_083_860_082,
            "7f73d41a2f44250d4779881525aea32e")}
BY_HAND = {  # where there is no archive to download
    "cars": "{0}/car_ims (of car_ims.tgz, md5 d5c8f0aa497503f355e17dc7886c3f14) and "
            "{0}/cars_annos.mat (md5 b407c6086d669747186bd1d764ff9dbc); or {0}/cars_train, "
            "{0}/cars_test, {0}/devkit/cars_train_annos.mat and "
            "{0}/devkit/cars_test_annos_withlabels.mat, as copies have them: their host, "
            "ai.stanford.edu/~jkrause/cars, is gone since 2023",
    "inshop": "{0}/list_eval_partition.txt and {0}/img (not img_highres), 52,712 images of the "
              "In-shop Clothes Retrieval Benchmark, from the drive of DeepFashion, "
              "mmlab.ie.cuhk.edu.hk/projects/DeepFashion.html (no checksum is published)"}
IMAGES = (*IMG_EXTENSIONS, ".jpe", ".jfif", ".gif", ".jp2", ".avif")    # names of photos end so
LITTER = {  # of Macs, network disks and Windows, beside names that begin with a dot
    "__macosx", "@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "lost+found",
    "$recycle.bin", "recycler", "system volume information", "thumbs.db", "desktop.ini"}


def read_dataset(name, root):
    """A dataset by name, or a folder of one's own -> its folder, {"train", "test" and perhaps
    "gallery": [(path, class)]}.

    UserError: a dataset that is unknown, missing or not whole, a folder that cannot be split.
    """
    name = SMALLER.get(name, name)
    if name in COUNTS:
        folder = find_dataset(name, root)
        splits = {"cub": _cub, "cars": _cars, "sop": _sop, "inshop": _inshop}[name](folder)
        _verify(name, folder, splits)
        return folder, splits
    if not Path(name).is_dir():
        raise UserError(f"unknown dataset '{name}': no folder of images, and none of "
                        f"{', '.join([*COUNTS, *SMALLER])} (and glyphs, which has no files)")
    return Path(name), _own_folder(Path(name))


# ---------------------------------------------------------------------------- folders of one's own
def files_below(folder):
    """-> the images below a folder, and the other files that are for people; in order.

    Linked folders are read like others, each folder once, so that a loop of links ends.
    UserError: a folder that cannot be read, links that lead nowhere.
    """
    def refuse(error):
        raise UserError(f"cannot read the folder {error.filename}: {error.strerror}")
    starts, seen, files, images, others = [folder], set(), [], [], []
    for start in starts:                            # grows by the links to folders that are met
        for place, folders, names in os.walk(start, onerror=refuse):
            if (real := os.path.realpath(place)) in seen:
                others.append(Path(place))          # a second way to it
                folders.clear()
                continue
            seen.add(real)
            folders[:] = filter(for_people, folders)
            starts += [path for name in folders if (path := Path(place, name)).is_symlink()]
            files += [Path(place, name) for name in filter(for_people, names)]
    if dead := [path for path in files if path.is_symlink() and not path.exists()]:
        raise UserError(f"{folder} has {len(dead)} links that lead nowhere: {listed(dead)}")
    for path in sorted(files, key=Path.as_posix):
        (images if path.suffix.lower() in IMAGES else others).append(path)
    return images, others


def for_people(name):
    return not name.startswith(".") and name.lower() not in LITTER


def images_below(folder):
    """The images below a folder, in order; what else is there is said."""
    images, others = files_below(folder)
    say_left_out(folder, others)
    return images


def say_left_out(folder, paths):
    if paths:
        print(f"note: left out of {folder}: {len(paths)} files, "
              + listed([path.relative_to(folder) for path in sorted(paths, key=Path.as_posix)]))


def _own_folder(folder):
    """A sub-folder per class: the first half of them (by name) trains, the second half tests, as
    the papers do.  Or train/ and test/, and perhaps gallery/, each with a sub-folder per class."""
    parts = [part for part in ("train", "test", "gallery") if (folder / part).is_dir()]
    split = {"train", "test"} <= {*parts}
    splits = {part: {} for part in (parts if split else [""])}      # of each {class: its images}
    images, left_out = files_below(folder)

    def place_of(path):                             # (part, class), None for a file outside
        inside = ("", *path.relative_to(folder).parts)[split:]
        return inside[:2] if len(inside) > 2 and inside[0] in splits else None
    for path in images:
        part, name = place_of(path) or (None, None)
        (splits[part].setdefault(name, []) if name else left_out).append(path)
    for path in left_out:
        part, name = place_of(path) or (None, None)
        if name and name not in splits[part]:
            raise UserError(f"{folder / part / name} has no image that can be read here, but "
                            f"{path.name}: save as JPEG or PNG, or move it away")
    for part, classes in splits.items():
        splits[part], least = dict(sorted(classes.items())), {"": 4, "train": 2}.get(part, 1)
        if len(classes) < least:
            raise UserError(f"{folder / part} has {len(classes) or 'no'} sub-folders with images: "
                            f"it needs one a class and at least {least}" + (
                                "" if split else ", of which half train and half test (or train/ "
                                "and test/, and perhaps gallery/, by these names)"))
    if not split:
        classes, half = [*splits[""].items()], len(splits[""]) // 2
        splits = {"train": dict(classes[:half]), "test": dict(classes[half:])}
    if "gallery" not in splits:
        for paths in splits["test"].values():
            if len(paths) < 2:
                raise UserError(f"{paths[0].parent} has one image: a test class needs two, one to "
                                "ask with and one to find")
    elif not {*splits["test"]} & {*splits["gallery"]}:
        raise UserError(f"{folder / 'gallery'} has no class of {folder / 'test'}: nothing could be "
                        "found in it")
    say_left_out(folder, left_out)
    return {part: [(path, name) for name, paths in classes.items() for path in paths]
            for part, classes in splits.items()}


# ---------------------------------------------------------------------------- the papers' four
def find_dataset(name, root):
    """The folder of a real dataset under root.  UserError: it is not there; where to get it."""
    for folder in FOLDERS[name]:
        if Path(root, folder).is_dir():
            return Path(root, folder)
    raise UserError(f"no {name} under {root} (--data-root or $DML_DATA names another folder): "
                    + _source(name, Path(root, FOLDERS[name][0])))


def _source(name, folder):
    """Where a dataset is to be had, in words."""
    if name not in ARCHIVES:
        return f"put there {BY_HAND[name].format(folder)}"
    url, size, md5 = ARCHIVES[name]
    return (f"python common.py prepare {name} --data-root {shlex.quote(str(folder.parent))} "
            f"downloads it ({size / 1e9:.1f} GB); or unpack {url} ({size:,} bytes, md5 {md5}) to "
            f"{folder}")


def _verify(name, folder, splits):
    """UserError if the splits have other counts than expected, or name files that do not exist."""
    def in_words(counts):
        return ", ".join(f"{part} {n:,} images of {c:,} classes" for part, (n, c) in counts.items())
    counts = {part: (len(rows), len({c for _, c in rows})) for part, rows in splits.items()}
    if counts != COUNTS[name]:
        raise UserError(f"{folder} has {in_words(counts)}; the whole dataset, split by class as "
                        f"in the papers, has {in_words(COUNTS[name])}")
    missing, n = _missing(splits), sum(map(len, splits.values()))
    if len(missing) == n:
        raise UserError(f"{folder} has no image where its list says, {missing[0]} first; known "
                        f"layouts: {_source(name, folder)}")
    if missing:
        raise UserError(f"{len(missing):,} of the {n:,} images of {name} are missing, "
                        f"{missing[0]} first: a half-extracted archive? unpack it again")


def _missing(splits):
    """The images that are not there, by one look into each folder: on a network's file system
    300,000 at single files take minutes."""
    paths = [path for rows in splits.values() for path, _ in rows]
    folders = {path.parent for path in paths}
    there = {folder: {*os.listdir(folder)} if folder.is_dir() else {} for folder in folders}
    return [path for path in paths if path.name not in there[path.parent]]


def _rows(path, *kinds, header=0):
    """The rows of a list file, each field as its kind.  UserError: no file, a malformed row."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path} ({error}): a half-extracted archive?")
    rows = []
    for number, line in enumerate(lines[header:], header + 1):
        try:
            rows.append([kind(field) for kind, field in zip(kinds, line.split(), strict=True)])
        except ValueError:
            raise UserError(f"{path}, line {number}: '{line[:80]}' is not {len(kinds)} fields: " +
                            " ".join({int: "number", str: "text"}[kind] for kind in kinds))
    return rows


def _either(path, other):
    return other if other.exists() and not path.exists() else path


def _cub(folder):
    """CUB-200-2011: classes 1-100 train, 101-200 test."""
    class_of = dict(_rows(folder / "image_class_labels.txt", int, int))
    splits = {"train": [], "test": []}
    for i, path in _rows(folder / "images.txt", int, str):
        if i not in class_of:
            raise UserError(f"{folder / 'image_class_labels.txt'} has no class for image {i}")
        splits["train" if class_of[i] <= 100 else "test"].append(
            (folder / "images" / path, Path(path).parent.name))
    return splits


def _cars(folder):
    """Cars-196: classes 1-98 train, 99-196 test, of the original layout or of cars_train and
    cars_test pooled: by the lists whose images are there."""
    sides = [side / side.name if (side / side.name).is_dir() else side
             for side in (folder / "cars_train", folder / "cars_test")]
    candidates = []
    for lists in ([("cars_annos.mat", folder, "relative_im_path")],
                  [("cars_train_annos.mat", sides[0], "fname"),
                   ("cars_test_annos_withlabels.mat", sides[1], "fname")]):
        paths = [next(folder.rglob(file), None) for file, _, _ in lists]
        if None in paths:
            continue
        splits = {"train": [], "test": []}
        for path, (_, images, field) in zip(paths, lists):
            try:
                table = scipy.io.loadmat(path, squeeze_me=True)["annotations"]
                for name, c in zip(table[field], table["class"]):
                    splits["train" if c <= 98 else "test"].append((images / str(name), int(c)))
            except Exception as error:      # loadmat fails in a dozen ways on a damaged file
                raise UserError(f"cannot read '{field}' and 'class' of 'annotations' in {path}: "
                                + reason(error))
        candidates.append(splits)
    if not candidates:
        raise UserError(f"{folder} has no list of a known layout: {_source('cars', folder)}")
    return min(candidates, key=lambda splits: len(_missing(splits)))


def _sop(folder):
    """Stanford Online Products: its own split by class."""
    return {part: [(folder / path, c) for _, c, _, path in _rows(
        folder / f"Ebay_{part}.txt", int, int, int, str, header=1)] for part in ("train", "test")}


def _inshop(folder):
    """In-Shop: its own split; queries (test) are searched in the gallery."""
    path = _either(folder / "list_eval_partition.txt", folder / "Eval" / "list_eval_partition.txt")
    images = _either(folder / "img", folder / "Img" / "img").parent
    splits = {"train": [], "query": [], "gallery": []}
    for name, item, status in _rows(path, str, str, str, header=2):
        splits.setdefault(status, []).append((images / name, item))
    return {"train": splits.pop("train"), "test": splits.pop("query"), **splits}

"""Where the images of a dataset lie: the papers' four, as their archives unpack, and folders.

Each reader gives {"train", "test" and perhaps "gallery": [(path, class)]}.  Nothing is read of the
images themselves.
"""
import collections
import os
from pathlib import Path

import PIL.Image
import scipy.io

from support.files import UserError, listed, reason, sha256

SMALLER = {"cub128": "cub"}         # presets of a dataset in which its images are smaller
COUNTS = {  # images and classes of each split; with other counts nothing trains
    "cub": {"train": (5864, 100), "test": (5924, 100)},
    "cars": {"train": (8054, 98), "test": (8131, 98)},
    "sop": {"train": (59551, 11318), "test": (60502, 11316)},
    "inshop": {"train": (25882, 3997), "test": (14218, 3985), "gallery": (12612, 3985)}}

SOURCES = {  # the folders (the first one is advised) under the data root, and what to put there
    "cub": (["CUB_200_2011"], "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz "
            "(1,150,585,339 bytes, md5 97eceeb196236b17998738112f37df78), unpacked to {}"),
    "cars": (["cars", "cars196", "stanford_cars"], "car_ims.tgz (md5 "
             "d5c8f0aa497503f355e17dc7886c3f14) and cars_annos.mat (md5 "
             "b407c6086d669747186bd1d764ff9dbc), unpacked to {0}/car_ims and {0}/cars_annos.mat, "
             "or the copies in circulation as {0}/cars_train, {0}/cars_test, "
             "{0}/devkit/cars_train_annos.mat and {0}/devkit/cars_test_annos_withlabels.mat; "
             "their host, ai.stanford.edu/~jkrause/cars, is gone since 2023"),
    "sop": (["Stanford_Online_Products"], "ftp://cs.stanford.edu/cs/cvgl/"
            "Stanford_Online_Products.zip (3,083,860,082 bytes, md5 "
            "7f73d41a2f44250d4779881525aea32e), unpacked to {}"),
    "inshop": (["inshop", "In-shop Clothes Retrieval Benchmark"], "list_eval_partition.txt and the "
               "folder img of the In-shop Clothes Retrieval Benchmark, from the drive of "
               "DeepFashion, mmlab.ie.cuhk.edu.hk/projects/DeepFashion.html (52,712 images; no "
               "checksum is published), unpacked to {}")}


def read_dataset(name, root):
    """A dataset by name, or a folder of one's own -> its folder, {"train", "test" and perhaps
    "gallery": [(path, class)]}.

    UserError: unknown name; a dataset that is missing, half-extracted or not of the expected
    counts; a folder without sub-folders or with too few; a test class of one image.
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


def _own_folder(folder):
    """A sub-folder per class: the first half of them (by name) trains, the second half tests, as
    the papers do.  Or train/ and test/, and perhaps gallery/, each with a sub-folder per class."""
    if (folder / "train").is_dir() and (folder / "test").is_dir():
        parts = {part: _classes(folder / part) for part in ("train", "test", "gallery")
                 if (folder / part).is_dir()}
        for part, classes in parts.items():
            if not classes:
                raise UserError(f"{folder / part} has no sub-folders with images: it needs one a "
                                "class")
        if len(parts["train"]) < 2:
            raise UserError(f"{folder / 'train'} has one class: to train takes two")
        if "gallery" in parts and not {*parts["test"]} & {*parts["gallery"]}:
            raise UserError(f"{folder / 'gallery'} has no class of {folder / 'test'}: nothing "
                            "could be found in it")
    else:
        classes = _classes(folder)
        if len(classes) < 4:
            raise UserError(f"{folder} has {len(classes) or 'no'} sub-folders with images: it "
                            "needs one a class and at least 4, of which half train and half test "
                            "(or train/ and test/, and perhaps gallery/, by these names)")
        classes, half = [*classes.items()], len(classes) // 2
        parts = {"train": dict(classes[:half]), "test": dict(classes[half:])}
    for name, paths in parts["test"].items():
        if len(paths) < 2 and "gallery" not in parts:
            raise UserError(f"{paths[0].parent} has one image: a test class needs two, "
                            "one to ask with and one to find")
    return {part: [(path, name) for name, paths in classes.items() for path in paths]
            for part, classes in parts.items()}


def _classes(folder):
    """{name of a sub-folder: its images}, those without any left out; sorted by their letters'
    codes, which is the same order on every system"""
    folders = sorted((path for path in folder.iterdir() if path.is_dir() and not hidden(path.name)),
                     key=lambda path: path.name)
    images = {path.name: images_below(path) for path in folders}
    return {name: paths for name, paths in images.items() if paths}


def hidden(name):
    """Whether a file or folder is not for people: .git, and what a Mac adds to an archive."""
    return name.startswith(".") or name == "__MACOSX"


def files_below(folder):
    """The files below a folder that are for people; in order."""
    return sorted((path for path in folder.rglob("*") if path.is_file()
                   and not any(map(hidden, path.relative_to(folder).parts))),
                  key=lambda path: path.as_posix())


def images_below(folder):
    """The files below a folder that Pillow reads, by their names; in order."""
    read = {suffix for suffix, kind in PIL.Image.registered_extensions().items()
            if kind in PIL.Image.OPEN}
    return [path for path in files_below(folder) if path.suffix.lower() in read]


def remarks(folder, splits):
    """What a user should know about a folder of their own, a sentence each."""
    paths = {part: [path for path, _ in rows] for part, rows in splits.items()}
    used, sentences = set(sum(paths.values(), [])), []
    left_out = [path.relative_to(folder) for path in files_below(folder) if path not in used]
    if left_out:
        sentences.append(f"left out: {len(left_out)} files, {listed(left_out)}")
    count = collections.Counter(name for _, name in splits["train"])
    single = [name for name, images in count.items() if images == 1]
    if single:
        sentences.append(f"training classes with a single image, so without a positive pair: "
                         f"{len(single)}, {listed(single)}")
    trained = {sha256(path): path.relative_to(folder) for path in paths.pop("train")}
    copies = [f"{path.relative_to(folder)} is {trained[sha256(path)]}"
              for path in sum(paths.values(), []) if sha256(path) in trained]
    if copies:
        sentences.append(f"{len(copies)} images of test or gallery are in train too, "
                         f"byte for byte: {listed(copies, 1)}")
    return sentences


def find_dataset(name, root):
    """The folder of a real dataset under root.  UserError: it is not there; where to get it."""
    folders, where = SOURCES[name]
    for folder in (Path(root, f) for f in folders):
        if folder.is_dir():
            return folder
    raise UserError(f"no {name} under {root} (--data-root or $DML_DATA names another folder): get "
                    + where.format(Path(root, folders[0])))


def _in_words(counts):
    return ", ".join(f"{part} {n:,} images of {c:,} classes" for part, (n, c) in counts.items())


def _verify(name, folder, splits):
    """UserError if the splits have other counts than expected, or name files that do not exist."""
    counts = {part: (len(rows), len({c for _, c in rows})) for part, rows in splits.items()}
    if counts != COUNTS[name]:
        raise UserError(f"{folder} has {_in_words(counts)}; the whole dataset, split by class as "
                        f"in the papers, has {_in_words(COUNTS[name])}")
    # One look into each folder: on a network's file system 300,000 at single files take minutes.
    paths = [path for rows in splits.values() for path, _ in rows]
    folders = {path.parent for path in paths}
    there = {folder: {*os.listdir(folder)} if folder.is_dir() else {} for folder in folders}
    missing = [path for path in paths if path.name not in there[path.parent]]
    if missing:
        raise UserError(f"{len(missing):,} of the {len(paths):,} images of {name} are missing, "
                        f"{missing[0]} first: a half-extracted archive? unpack it again")


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
    cars_test pooled."""
    if (folder / "cars_annos.mat").exists():
        lists = [(folder, folder / "cars_annos.mat", "relative_im_path")]
    else:
        lists = [(folder / side, _either(folder / "devkit" / file, folder / file), "fname")
                 for side, file in (("cars_train", "cars_train_annos.mat"),
                                    ("cars_test", "cars_test_annos_withlabels.mat"))]
    splits = {"train": [], "test": []}
    for images, path, field in lists:
        if not path.exists():
            raise UserError(f"no {path} (nor {folder}/cars_annos.mat): a half-extracted archive?")
        try:
            table = scipy.io.loadmat(path, squeeze_me=True)["annotations"]
            rows = [(str(name), int(c)) for name, c in zip(table[field], table["class"])]
        except Exception as error:          # loadmat fails in a dozen ways on a damaged file
            raise UserError(f"cannot read '{field}' and 'class' of 'annotations' in {path}: "
                            + reason(error))
        for name, c in rows:
            splits["train" if c <= 98 else "test"].append((images / name, c))
    return splits


def _sop(folder):
    """Stanford Online Products: its own split by class."""
    return {part: [(folder / path, c) for _, c, _, path in _rows(
        folder / f"Ebay_{part}.txt", int, int, int, str, header=1)] for part in ("train", "test")}


def _inshop(folder):
    """In-Shop: its own split; queries (test) are searched in the gallery."""
    path = _either(folder / "list_eval_partition.txt", folder / "Eval" / "list_eval_partition.txt")
    images = _either(folder / "img", folder / "Img" / "img").parent
    splits = {"train": [], "query": [], "gallery": []}
    for number, (name, item, status) in enumerate(_rows(path, str, str, str, header=2), 3):
        if status not in splits:
            raise UserError(f"{path}, line {number}: status '{status}' is none of "
                            + ", ".join(splits))
        splits[status].append((images / name, item))
    return {"train": splits["train"], "test": splits["query"], "gallery": splits["gallery"]}

"""Where the images of the papers' four datasets lie, as their archives unpack.

Nothing is read of the images themselves.
"""
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import scipy.io

from support.files import UserError, reason
from support.photos import PARTS, counts_of

SMALLER = {"cub128": "cub"}         # presets of a dataset in which its images are smaller
COUNTS = {  # images and classes of each split; with other counts nothing trains
    "cub": {"train": (5864, 100), "test": (5924, 100)},
    "cars": {"train": (8054, 98), "test": (8131, 98)},
    "sop": {"train": (59551, 11318), "test": (60502, 11316)},
    "inshop": {"train": (25882, 3997), "test": (14218, 3985), "gallery": (12612, 3985)}}
CLOSED_SET = {"cub": (5994, 5794)}      # images in the halves of that split
FOLDERS = {  # under the data root; the first one is advised
    "cub": ["CUB_200_2011"], "sop": ["Stanford_Online_Products"],
    "cars": ["cars", "cars196", "stanford_cars"],
    "inshop": ["inshop", "In-shop Clothes Retrieval Benchmark"]}
ARCHIVES = {  # of that folder: address, md5
    "cub": ("https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
            "97eceeb196236b17998738112f37df78"),
    "sop": ("ftp://cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
            "7f73d41a2f44250d4779881525aea32e")}
SOURCES = {  # {0}: the folder, {1}: the data root, {2} and {3}: its archive's address and md5
    "cub": "python common.py prepare cub --data-root {1} downloads it (1.2 GB); or unpack {2} (md5 "
           "{3}) to {0}",
    "sop": "python common.py prepare sop --data-root {1} downloads it (3.1 GB); or unpack {2} (md5 "
           "{3}) to {0}",
    "cars": "wanted are {0}/car_ims (of car_ims.tgz, md5 d5c8f0aa497503f355e17dc7886c3f14) and "
            "{0}/cars_annos.mat (md5 b407c6086d669747186bd1d764ff9dbc); or {0}/cars_train, "
            "{0}/cars_test, {0}/devkit/cars_train_annos.mat and {0}/devkit/cars_test_annos_with"
            "labels.mat, as copies have them: ai.stanford.edu/~jkrause/cars is gone since 2023",
    "inshop": "wanted are {0}/list_eval_partition.txt and {0}/img (not img_highres): 52,712 images "
              "of the In-shop benchmark, mmlab.ie.cuhk.edu.hk/projects/DeepFashion.html (no "
              "checksum is published)"}


def of_papers(name):
    """The papers' dataset that a name means, cub for cub128; None for other datasets."""
    name = SMALLER.get(name, name)
    if name in COUNTS:
        return name


def read_dataset(name, root):
    """One of the papers' datasets -> its folder, {"train", "test" and of In-Shop "gallery": {path:
    class}}.  UserError: missing or not whole."""
    name = of_papers(name)
    readers = {"cub": _cub, "cars": _cars, "sop": _sop, "inshop": _inshop}
    folders = [Path(root, other) for other in FOLDERS[name]]
    folder = next(filter(Path.is_dir, folders), folders[0])
    source = SOURCES[name].format(folder, shlex.quote(str(root)), *ARCHIVES.get(name, ()))
    if not folder.is_dir():
        raise UserError(f"no {name} under {root} (--data-root or $DML_DATA names another folder): "
                        + source)
    if name in ARCHIVES:                                # prepare leaves a folder alone that exists
        source = f"Move {folder} away; then {source}"
    splits = {}
    try:
        for part, path, kind in readers[name](folder):
            splits.setdefault(part, {})[path] = kind
    except Exception as error:          # damaged lists fail in a dozen ways
        cause = "a half-extracted archive?"
        if name == "cub" and (folder / "lists").is_dir():
            cause = "CUB-200 of 2010, the predecessor of CUB-200-2011?"
        elif name == "cars":
            cause = ("a half-extracted archive, or half of the closed-set split, of which the "
                     "papers pool both halves?")
        raise UserError(f"cannot read the lists in {folder} ({type(error).__name__}: "
                        f"{reason(error)}), {cause}  {source}")
    counts = counts_of(splits)
    if counts != COUNTS[name]:
        cause = ""
        if sum(map(len, splits.values())) in CLOSED_SET.get(name, ()):
            cause = (".  It is half of the closed-set split: the papers pool both halves and split "
                     "them by class")
        raise UserError(f"{folder} has {counts} images and classes; the whole dataset, split by "
                        f"class as in the papers, has {COUNTS[name]}{cause}")
    wanted, here = set().union(*splits.values()), set()
    for place in {path.parent for path in wanted}:      # a look at each image may take minutes
        if place.is_dir():
            here.update(place.iterdir())
    missing = sorted(wanted - here)
    if missing:
        raise UserError(f"{len(missing):,} images of {name} are missing, {missing[0]} first: a "
                        f"half-extracted archive?  {source}")
    return folder, splits


def _rows(path, header=0):
    """The rows of a list file, as texts."""
    return np.loadtxt(path, str, skiprows=header, encoding="utf-8").tolist()


def _cub(folder):
    """CUB-200-2011: classes 1-100 train, 101-200 test."""
    class_of = dict(_rows(folder / "image_class_labels.txt"))
    for i, path in _rows(folder / "images.txt"):
        part = "train" if int(class_of[i]) <= 100 else "test"
        image = folder / "images" / path
        yield part, image, image.parent.name


def _below(folder, name):
    """Where a file or folder of a name lies: in a folder, or the deepest of two levels below it."""
    return [folder / name, *folder.glob(f"*/{name}"), *folder.glob(f"*/*/{name}")][-1]


def _cars(folder):
    """Cars-196: classes 1-98 train, 99-196 test, of the original layout, car_ims, or of cars_train
    and cars_test pooled, which some copies have in folders of the same name."""
    lists = [("cars_annos.mat", "car_ims", "relative_im_path")]         # field of file names
    if not (folder / "car_ims").is_dir():
        lists = [("cars_train_annos.mat", "cars_train", "fname"),
                 ("cars_test_annos_withlabels.mat", "cars_test", "fname")]
    for file, images, field in lists:
        table = _mat(_below(folder, file))["annotations"]
        images = _below(folder, images)
        for name, kind in zip(table[field], table["class"]):
            part = "train" if kind <= 98 else "test"
            yield part, images / Path(str(name)).name, int(kind)


def _mat(path):
    """A .mat -> dict.  A process of its own reads it before: SciPy 1.17.1 ends the one that reads
    some damaged files."""
    program = "import sys, scipy.io; scipy.io.loadmat(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True)
    if done.returncode not in (0, 1):                   # 1: an exception, as here below
        raise OSError(f"{path} ends the process that reads it, as some damaged files do")
    return scipy.io.loadmat(path, squeeze_me=True)


def _sop(folder):
    """Stanford Online Products: its own split by class."""
    for part in ("train", "test"):
        for _, kind, _, path in _rows(folder / f"Ebay_{part}.txt", header=1):
            yield part, folder / path, int(kind)


def _inshop(folder):
    """In-Shop: its own split; queries (test) are searched in the gallery."""
    lists, images = _below(folder, "list_eval_partition.txt"), _below(folder, "img").parent
    for path, kind, part in _rows(lists, header=2):
        yield PARTS[part], images / path, kind

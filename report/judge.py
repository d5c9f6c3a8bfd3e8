"""`python eval.py`: a checkpoint or an .npz judged, images searched for those nearest to a photo.

An entry (name, class, source) is an image: source is its path or, without a file, a PIL image.
"""
import textwrap
from pathlib import Path
from unicodedata import normalize

import numpy as np
import torch
import torch.nn.functional as F
from PIL import ImageDraw, ImageFont, ImageOps
from torchvision.transforms.v2.functional import pil_to_tensor, to_pil_image
from torchvision.utils import make_grid

import common
import dml_da
import eval as protocol
import jrd
import mdr
from support.command_line import (SHARED, Parser, device, main, number, output,    # noqa: F401
                                  path, read_flags, refuse_idle)
from support.files import UserError, atomic, listed, reason
from support.images import ImageFiles
from support.layouts import of_papers
from support.photos import Folder, decode, identity
from support.runs import read_checkpoint, show

SCRIPTS = {"jrd": jrd, "mdr": mdr, "dml_da": dml_da}
UNKNOWN = "–"                                           # shown for an image in no sub-folder
NO_LABEL = {"", "nan", "NaN", "None", "<NA>", "NaT"}    # what astype(str) makes of a missing label
SIDE, GAP, LINES = 128, 7, 41               # pixels of a sheet's image, around it, of its text
RIGHT, WRONG = "#009E73", "#D55E00"                     # colour-blind readers tell them apart
OTHER_IMAGES = ("note: these are not the images of the run; figures of classes that trained say "
                "nothing about new ones")


# ---------------------------------------------------------------------------- judging
def evaluate(args):
    """Judge the embeddings of an .npz or of a checkpoint's images, or search among the latter."""
    if args.arrays:
        embedded, ks = load_npz(args.file, device(args)), [1, 2, 4, 8]
    else:
        network, cfg, transform = open_checkpoint(args.file, args.device, args.data_root)
        if args.gallery:
            data = images_to_search(args.gallery, transform)
        else:
            data = images_to_judge(cfg, transform, args.dataset, not args.no_cache)
        if args.query:
            return search(args, network, cfg, transform, data)
        embedded = common.embed_splits(network.embed, data, cfg, "test", "gallery", "train_plain")
        ks = cfg.ks
    ks = args.ks or ks
    if args.l2norm:
        embedded = protocol.l2_normalized(embedded)
    try:
        result = protocol.judge(embedded, ks)
    except ValueError as error:
        raise UserError(f"{args.file}: {error}")
    x, labels = embedded["test"]
    print(f"{args.file}: {len(x):,} embeddings of {len(labels.unique()):,} classes, "
          f"d = {x.shape[1]}")
    show({"test": result}, ks)
    if args.export:
        save_npz(args.export, embedded, data)


def open_checkpoint(path, device="auto", data_root=None):
    """-> its network, its settings, its script's transform of test images"""
    script = SCRIPTS[read_checkpoint(path)["paper"]]
    network, cfg = common.load(path, script.Network, device)
    cfg.data_root = data_root or cfg.data_root
    return network, cfg, script.transforms(cfg)[2]


def images_to_judge(cfg, transform, dataset=None, cache=True):
    """The run's own images as the run split them.  Of another folder those classes that did not
    train, by name; of another dataset of the papers, or of glyphs, its test split -> Data"""
    dataset = dataset or cfg.dataset
    if dataset != "glyphs" and not of_papers(dataset):
        folder = Folder(dataset)
        if not has_images_of(folder, cfg):
            splits = folder.judged()
            folder.say_left_out(splits)
            splits["test"] = that_did_not_train(splits["test"], cfg.classes)
            return photos_of(splits, folder, transform)
    data = common.load_dataset(dataset, cfg.data_root, None, transform, cache, cfg.val)
    if data.identity != cfg.images:
        print(OTHER_IMAGES)
        data.train_plain = None
    return data


def images_to_search(path, transform):
    """All images of a folder, in sub-folders or not -> Data"""
    folder = Folder(path)
    rows = {path: kind or UNKNOWN for path, kind in folder.images.items()}
    if not rows:
        raise UserError(f"{path} has no images")
    folder.say_left_out({"test": rows})
    return photos_of({"test": rows}, folder, transform)


def photos_of(splits, folder, transform):
    """{part: {path: class}} of a Folder, test among them -> Data without training images"""
    data = {}
    for part, rows in splits.items():
        images = ImageFiles(list(rows), transform, decode)
        data[part] = common.split_of(splits, part, images, folder.path)
    return common.Data(None, None, folder=folder.path, **data)


def has_images_of(folder, cfg):
    """Whether a folder has the images of a run: their paths, sizes, first bytes."""
    try:
        return identity(folder.path, folder.splits(), False) == cfg.images
    except UserError:                       # too few classes to train on
        return False


def that_did_not_train(rows, trained):
    """{path: class} -> those of classes that a network did not train on, or all if it did on all;
    a line says which.  trained: names of classes, None if they are not known."""
    known = {*rows.values()}.intersection(trained or ())
    new = {path: kind for path, kind in rows.items() if kind not in known}
    if trained is None or not new:
        print(OTHER_IMAGES)
        return rows
    print(f"note: other images than the run's; left out are {len(known):,} classes that trained, "
          f"by name: {listed(sorted(known)) or 'none'}")
    return new


# ---------------------------------------------------------------------------- .npz
def load_npz(path, to="cpu"):
    """An .npz of embeddings -> {split: (x, labels)}, x on a device.  UserError if it is not one."""
    embedded, number_of = {}, {}
    for split, (x, kinds) in read_npz(path).items():
        labels = [number_of.setdefault(kind, len(number_of)) for kind in kinds]
        embedded[split] = torch.from_numpy(x).to(to), torch.tensor(labels)
    for kind in sorted(NO_LABEL & number_of.keys()):
        print(f"note: {kind!r} is judged as a class; if it stands for a label that is missing, "
              "leave these rows out")
    return embedded


def read_npz(path):
    """-> {split: (embeddings (n, d) of floats, the names of n classes)}.  UserError: the file, or
    an array in it, is none that can be judged."""
    fields = {"test": ("embeddings", "labels")}
    try:
        arrays = np.load(path)
        if isinstance(arrays, np.ndarray):
            raise UserError("one array, without labels: np.savez(\"e.npz\", embeddings=x, "
                            "labels=y) writes both into one file")
        with arrays:
            if "gallery" in arrays or "gallery_labels" in arrays:
                fields["gallery"] = "gallery", "gallery_labels"
            splits = {}
            for split, (x, labels) in fields.items():
                splits[split] = points_in(arrays, x), classes_in(arrays, labels)
            return splits
    except UserError as error:
        raise UserError(f"{path}: {error}")
    except Exception as error:                  # np.load fails in a dozen ways on a damaged file
        why = reason(error)
        if "allow_pickle" in why:
            why = "it is a pickle, which may be code, or no file of NumPy's"
        raise UserError(f"cannot read {path}: {why}; np.savez writes such files, with embeddings= "
                        "and labels=")


def field_of(arrays, name, advice):
    """An array of an .npz.  One of Python objects is a pickle, and is not read."""
    try:
        return arrays[name]
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        raise UserError(f"{name} are Python objects, which may be code and are not read: write "
                        f"{advice}")


def points_in(arrays, name):
    """-> (n, d) in float64 if a number needs it, else in float32"""
    x = field_of(arrays, name, f"np.stack(list({name})).astype(np.float32)")
    if x.dtype.kind == "c":
        raise UserError(f"{name} are complex: np.concatenate([x.real, x.imag], 1) has real numbers "
                        "and the same distances")
    if x.dtype.kind not in "biuf":
        raise UserError(f"{name} are no numbers but of type {x.dtype}: write "
                        f"{name}.astype(np.float32)")
    if x.dtype.itemsize > 8:                                # torch has no longer ones
        return x.astype(np.float64)
    return x.astype(np.result_type(x, np.float32))


def classes_in(arrays, name):
    """-> the names of n classes.  1, 1.0 and "1" are one name; so are texts and their bytes, and
    the two ways in which Unicode writes an umlaut."""
    labels = field_of(arrays, name, f"{name}.astype(str), without the rows that have no label")
    kind, unknown = labels.dtype.kind, 0
    if kind in "fc":
        unknown = np.count_nonzero(~np.isfinite(labels))
    elif kind in "mM":
        unknown = np.count_nonzero(np.isnat(labels))
    if unknown:
        raise UserError(f"{unknown:,} of the {name} are missing or infinite: leave these rows out, "
                        "of the embeddings too")
    names = []
    for label in labels.ravel().tolist():
        if kind == "f" and label == int(label):
            label = int(label)
        elif kind == "S":
            label = label.decode(errors="surrogateescape")
        names.append(normalize("NFC", str(label)))
    return names


def save_npz(path, embedded, data):
    """--export: embeddings and labels, the names of their classes and files."""
    arrays = {}
    for split, name, prefix in (("test", "embeddings", ""), ("gallery", "gallery", "gallery_"),
                                ("train_plain", "seen", "seen_")):
        if split in embedded:
            images = getattr(data, split)
            x, arrays[f"{prefix}labels"] = embedded[split]
            arrays[name] = x.cpu()
            arrays[f"{prefix}classes"] = images.classes
            if images.files:
                arrays[f"{prefix}paths"] = images.files
    with atomic(path, "wb") as file:
        np.savez(file, **arrays)
    print(f"wrote {path}: {', '.join(arrays)}")


# ---------------------------------------------------------------------------- --query
def search(args, network, cfg, transform, data):
    """Print and, with --to, draw the images nearest to each photo of --query, among the test images
    and the gallery of data.  A photo that is itself among them is found."""
    photos = common.Split(ImageFiles(args.query, transform, decode),
                          torch.zeros(len(args.query), dtype=int), [UNKNOWN], args.query)
    x, queries = embed_entries(network, cfg, Path(), photos)
    y, entries = embed_entries(network, cfg, data.folder, data.test, data.gallery)
    if args.l2norm:
        x, y = F.normalize(x), F.normalize(y)
    kinds = data.test.classes
    print(f"{args.file} searches {len(entries):,} images of {len(kinds)} classes: {listed(kinds)}")
    answers = [*zip(queries, nearest_entries(x, y, entries, args.top))]
    for query, nearest in answers:
        print(f"\nquery {query[0]}\n    distance  {'class':<30}  image")
        for place, (distance, (name, kind, _)) in enumerate(nearest, 1):
            print(f"{place:>3} {distance:8.4f}  {kind:<30}  {name}")
    if args.to:
        draw_sheet(args.to, answers)
        print(f"\nwrote {args.to}")


def embed_entries(network, cfg, folder, *splits):
    """Splits, of files in a folder if they have any -> embeddings (n, d) of the images that can be
    read, their entries"""
    points, entries = [], []
    for split in filter(None, splits):
        split.images.faults = faults = set()            # stays empty if they are no ImageFiles
        points.append(common.embed(network.embed, split.images, cfg))
        for i, label in enumerate(split.labels.tolist()):
            if i in faults:
                continue
            if split.files:
                name = source = str(folder / split.files[i])
            else:
                name, source = f"image {i}", to_pil_image(split.images[i])
            entries.append((name, split.classes[label], source))
    return torch.cat(points), entries


def nearest_entries(x, y, entries, top):
    """x (m, d), y (n, d) of n entries -> of each x the `top` nearest [(distance, entry)], by
    differences, so that equal embeddings are at 0; of equal distances the first in the list."""
    for point in x:
        distances, order = (y - point).double().norm(dim=1).sort(stable=True)
        yield [(d, entries[i]) for d, i in zip(distances[:top].tolist(), order)]


# ---------------------------------------------------------------------------- a sheet of images
def draw_sheet(path, answers):
    """A picture with a line of images for each of answers [(query, the entries nearest to it)], all
    with as many, framed as right or wrong if the query's class is known."""
    try:
        font = ImageFont.truetype("DejaVuSans.ttf", 14)
    except OSError:
        font = ImageFont.load_default(14)                   # without umlauts
    tiles = []
    for query, nearest in answers:
        for distance, (name, kind, source) in [(None, query), *nearest]:
            below, colour = "query", "black"
            if distance is not None:
                below = f"{distance:.4f}"
                if query[1] != UNKNOWN:
                    colour = RIGHT if kind == query[1] else WRONG
            if kind == UNKNOWN:
                kind = Path(name).name
            line, *more = textwrap.wrap(kind, 16) or [""]       # a name of blanks
            if more:
                line += "…"
            tile = ImageOps.pad(decode(source), (SIDE, SIDE), color="white")
            tile = ImageOps.expand(tile, 3, colour)
            tile = ImageOps.expand(tile, (GAP, GAP, GAP, LINES), "white")
            ImageDraw.Draw(tile).text((GAP, SIDE + 15), f"{line}\n{below}", colour, font)
            tiles.append(pil_to_tensor(tile))
    to_pil_image(make_grid(tiles, 1 + len(nearest), padding=0)).save(path)


# ---------------------------------------------------------------------------- command line
FLAGS = {  # default, kind, help (support.command_line.read_flags)
    "ks": ([], number(int, 1), "the K of Recall@K"),
    "l2norm": (False, bool, "normalize the embeddings first"),
    "export": (None, output(".npz"), "the .npz to write the embeddings to"),
    "dataset": (None, "FOLDER", "where the run's folder of images is now; or another one, of whose "
                "test/, or of all its images, those classes are judged that did not train"),
    "data_root": (None, "DIR", "where the datasets are now"),
    "device": SHARED["device"],
    "no_cache": (False, bool, "decode images anew"),
    "query": ([], "PHOTO", "print the nearest images"),
    "gallery": (None, "FOLDER", "with --query: the images to search, in sub-folders or not "
                "(default: the run's test images)"),
    "top": (5, number(int, 1), "with --query: how many"),
    "to": (None, output(".png", ".jpg"), "with --query: the .png or .jpg to draw them in")}


def parse_args(argv=None):
    parser = Parser("eval.py", protocol.__doc__)
    parser.add_argument("file", type=path, help="a checkpoint runs/RUN/last.pt, or an .npz of "
                        "embeddings")
    flags, args = read_flags(parser, argv, FLAGS)
    args.arrays = args.file.lower().endswith((".npz", ".npy"))
    refuse_idle(parser, flags, [
        ("with an .npz", args.arrays, "query export dataset data_root no_cache"),
        ("without --query", not args.query, "gallery top to"),
        ("with --query", args.query, "ks export"),
        ("with --gallery", args.gallery, "dataset data_root no_cache")])
    return args

"""`python eval.py`: a checkpoint or an .npz judged, images searched for those nearest to a photo.

An entry (name, class, source) is an image: source is its path or, without a file, uint8 (3, h, w).
"""
from pathlib import Path
from unicodedata import normalize

import numpy as np
import PIL.Image
import torch
import torch.nn.functional as F
from PIL import ImageDraw, ImageFont, ImageOps
from torchvision.transforms.v2.functional import to_pil_image

import common
import dml_da
import eval as protocol
import jrd
import mdr
from support.command_line import (Parser, device, main, number, output, path,     # noqa: F401
                                  refuse_idle)
from support.files import UserError, atomic, listed, reason
from support.images import ImageFiles
from support.layouts import of_papers
from support.photos import Folder, decode, identity
from support.runs import read_checkpoint, show

SCRIPTS = {"jrd": jrd, "mdr": mdr, "dml_da": dml_da}
UNKNOWN = "–"                                           # shown for an image in no sub-folder
SIDE, GAP, LINES = 128, 10, 34          # of a sheet's image, around it, of its text, in pixels
RIGHT, WRONG = "#009E73", "#D55E00"                     # colour-blind readers tell them apart
OTHER_IMAGES = ("note: these are not the images of the run; if a class of them was trained on, its "
                "figures are too high")


# ---------------------------------------------------------------------------- judging
def evaluate(args):
    """Judge a checkpoint's embeddings of its images or of other ones, or those of an .npz."""
    if args.query:
        return search(args)
    if args.arrays:
        embedded, ks = load_npz(args.file, device(args)), [1, 2, 4, 8]
    else:
        network, cfg, transforms = open_checkpoint(args.file, args.device, args.data_root)
        data, ks = images_to_judge(cfg, transforms, args.dataset, not args.no_cache), cfg.ks
        embedded = common.embed_splits(network.embed, data, cfg, "test", "gallery", "train_plain")
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
    """-> its network, its settings, its script's transforms"""
    script = SCRIPTS[read_checkpoint(path)["paper"]]
    network, cfg = common.load(path, script.Network, device)
    cfg.data_root = data_root or cfg.data_root
    return network, cfg, script.transforms(cfg)


def images_to_judge(cfg, transforms, dataset=None, cache=True):
    """The run's own images as the run split them.  Of another folder those classes that did not
    train, by name; of another dataset of the papers, or of glyphs, its test split -> Data"""
    dataset = dataset or cfg.dataset
    prefix, _, test = transforms
    named = dataset == "glyphs" or of_papers(dataset)
    if not named:
        folder = Folder(dataset)
        if not has_images_of(folder, cfg):
            splits = folder.judged()
            folder.say_left_out(splits)
            splits["test"] = that_did_not_train(splits["test"], cfg.classes)
            return photos_of(splits, folder, test)
    data = common.load_dataset(dataset, cfg.data_root, prefix, test, cache, cfg.val)
    if named and data.identity != cfg.images:
        print(OTHER_IMAGES)
        data.train_plain = None
    return data


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
    kinds = {*rows.values()}
    if trained is None:
        print(OTHER_IMAGES)
        return rows
    known = sorted(kinds & set(trained))
    told = f"note: other images than the run's; of their {len(kinds):,} classes {len(known):,}"
    if len(known) == len(kinds):
        print(f"{told} trained, by name; all are judged: these figures say nothing about new "
              "classes")
        return rows
    print(f"{told} trained, by name, and are left out", *known[:4], sep=" · ")
    return {path: kind for path, kind in rows.items() if kind not in known}


# ---------------------------------------------------------------------------- .npz
def load_npz(path, to="cpu"):
    """An .npz of embeddings -> {split: (x, labels)}, x on a device.  UserError if it is not one."""
    embedded, number_of = {}, {}
    try:
        with np.load(path) as arrays:
            keys = {"test": ("embeddings", "labels")}
            if "gallery" in arrays or "gallery_labels" in arrays:
                keys["gallery"] = "gallery", "gallery_labels"
            for split, (key, its_labels) in keys.items():
                x, labels = arrays[key], []
                for label in arrays[its_labels].ravel().tolist():
                    name = normalize("NFC", str(label))
                    labels.append(number_of.setdefault(name, len(number_of)))
                x = torch.from_numpy(x.astype(np.result_type(x, np.float32)))
                embedded[split] = x.to(to), torch.tensor(labels)
    except Exception as error:                  # np.load fails in a dozen ways on a damaged file
        raise UserError(f"cannot read {path}: {reason(error)}; np.savez writes such files, with "
                        "embeddings= and labels=")
    return embedded


def save_npz(path, embedded, data):
    """--export: embeddings and labels, the names of their classes and files."""
    arrays = {}
    for split, name, prefix in (("test", "embeddings", ""), ("gallery", "gallery", "gallery_"),
                                ("train_plain", "seen", "seen_")):
        if split in embedded:
            x, labels = embedded[split]
            images = getattr(data, split)
            arrays |= {name: x.cpu(), f"{prefix}labels": labels, f"{prefix}classes": images.classes}
            if images.files:
                arrays[f"{prefix}paths"] = images.files
    with atomic(path, "wb") as file:
        np.savez(file, **arrays)
    print(f"wrote {path}: {', '.join(arrays)}")


# ---------------------------------------------------------------------------- --query
def search(args):
    """--query: the images nearest to each photo among the run's test images and its gallery, or in
    --gallery, printed and with --to drawn.  A photo that is itself among them is found."""
    network, cfg, transforms = open_checkpoint(args.file, args.device, args.data_root)
    photos = ImageFiles(args.query, transforms[2], decode)
    x, asked = embed_readable(network, cfg, photos, [(path, UNKNOWN, path) for path in args.query])
    if args.gallery:
        folder = Folder(args.gallery)
        rows = {path: kind or UNKNOWN for path, kind in folder.images.items()}
        folder.say_left_out({"test": rows})
        data = photos_of({"test": rows}, folder, transforms[2])
    else:
        data = images_to_judge(cfg, transforms, args.dataset, not args.no_cache)
    y, entries = [], []
    for split in (data.test, data.gallery):
        if split is not None:
            own = entries_of(split, data.folder)
            embedded, readable = embed_readable(network, cfg, split.images, own)
            y.append(embedded)
            entries += readable
    y = torch.cat(y)
    if args.l2norm:
        x, y = F.normalize(x), F.normalize(y)
    kinds = data.test.classes
    print(f"{args.file} searches {len(entries):,} images of {len(kinds)} classes: {listed(kinds)}")
    answers = []
    for query, point in zip(asked, x):
        nearest = nearest_entries(point, y, entries, args.top or 5)
        answers.append((query, nearest))
        print(f"\nquery {query[0]}\n    distance  {'class':<30}  image")
        for place, (distance, (name, kind, _)) in enumerate(nearest, 1):
            print(f"{place:>3} {distance:8.4f}  {kind:<30}  {name}")
    if args.to:
        draw_sheet(args.to, answers)
        print(f"\nwrote {args.to}")


def entries_of(split, folder):
    """A common.Split and the folder of its dataset -> entries"""
    entries = []
    for i, label in enumerate(split.labels.tolist()):
        if folder is None:
            name, source = f"image {i}", to_pil_image(split.images[i])
        else:
            name = source = str(folder / split.files[i])
        entries.append((name, split.classes[label], source))
    return entries


def embed_readable(network, cfg, images, entries):
    """-> embeddings (n, d) of the images that can be read, their entries; the others are named."""
    faults = {}
    if isinstance(images, ImageFiles):
        images.faults = faults
    try:
        x = common.embed(network.embed, images, cfg)
    finally:
        for fault in faults.values():
            print(f"left out: {fault}")
    return x, [entry for i, entry in enumerate(entries) if i not in faults]


def nearest_entries(x, searched, entries, top):
    """x (d,), searched (n, d) of n entries -> the `top` nearest [(distance, entry)] by differences,
    so that equal embeddings are at 0; of equal distances the first in the list."""
    distances, places = (searched - x).double().norm(dim=1).sort(stable=True)
    nearest = zip(distances[:top].tolist(), places[:top].tolist())
    return [(distance, entries[i]) for distance, i in nearest]


# ---------------------------------------------------------------------------- a sheet of images
def draw_sheet(path, answers):
    """A picture with a line of images for each of answers [(query, the entries nearest to it)], all
    with as many, framed as right or wrong if the query's class is known."""
    try:
        font = ImageFont.truetype("DejaVuSans.ttf", 14)
    except OSError:
        font = ImageFont.load_default(14)                   # without umlauts
    across, down = SIDE + 2 * GAP, SIDE + 2 * GAP + LINES
    sheet = PIL.Image.new("RGB", (across * (1 + len(answers[0][1])), down * len(answers)), "white")
    pen = ImageDraw.Draw(sheet)
    for row, (query, nearest) in enumerate(answers):
        for column, (distance, (name, kind, source)) in enumerate([(None, query), *nearest]):
            below, colour = "query", "black"
            if column:
                below = f"{distance:.4f}"
                if query[1] != UNKNOWN:
                    colour = RIGHT if kind == query[1] else WRONG
            if kind == UNKNOWN:
                kind = Path(name).name
            left, top = GAP + column * across, GAP + row * down
            image = ImageOps.contain(decode(source), (SIDE, SIDE))
            sheet.paste(ImageOps.expand(image, 3, colour), (left, top))
            pen.text((left, top + SIDE + 8), f"{shortened(kind)}\n{below}", colour, font)
    sheet.save(path)


def shortened(name, most=17):
    """One line of at most so many characters, which fit below an image."""
    name = " ".join(name.split())
    if len(name) > most:
        name = f"{name[:most - 1]}…"
    return name


# ---------------------------------------------------------------------------- command line
def parse_args(argv=None):
    parser, whole = Parser("eval.py", protocol.__doc__), number(int, 1)
    add = parser.add_argument
    add("file", type=path, help="a checkpoint runs/RUN/last.pt, or an .npz of embeddings")
    add("--ks", type=whole, nargs="+", help="the K of Recall@K")
    add("--l2norm", action="store_true", help="normalize the embeddings first")
    add("--export", metavar="FILE.npz", type=output(".npz"), help="write the embeddings")
    add("--dataset", type=path, help="where the run's folder of images is now; or another one, of "
        "whose test/, or of all its images, those classes are judged that did not train")
    add("--data-root", type=path, help="where the datasets are now")
    add("--device", default="auto", help="auto (default), cpu, cuda")
    add("--no-cache", action="store_const", const=True, help="decode images anew")
    add("--query", type=path, metavar="PHOTO", nargs="+", help="print the nearest images")
    add("--gallery", type=path, metavar="FOLDER", help="with --query: the images to search, in "
        "sub-folders or not (default: the run's test images)")
    add("--top", type=whole, help="with --query: how many (5)")
    add("--to", metavar="SHEET.png", type=output(".png", ".jpg"), help="with --query: draw them")
    args = parser.parse_args(argv)
    args.arrays = args.file.lower().endswith((".npz", ".npy"))
    refuse_idle(parser, args, [
        ("with an .npz", args.arrays, "query export dataset data_root no_cache"),
        ("without --query", args.query is None, "gallery top to"),
        ("with --query", args.query is not None, "ks export"),
        ("with --gallery", args.gallery is not None, "dataset data_root no_cache")])
    return args

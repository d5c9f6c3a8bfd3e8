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
SIDE, GAP, TEXT, LINE = 128, 10, 14, 17                 # of a sheet, in pixels
RIGHT, WRONG = "#009E73", "#D55E00"                     # colour-blind readers tell them apart
OTHER_IMAGES = ("note: these are not the images of the run; if a class of them was trained on, its "
                "figures are too high")
TEXTS = "whole numbers or texts, one per class"


# ---------------------------------------------------------------------------- judging
def evaluate(args):
    """Judge a checkpoint's embeddings of its images or of other ones, or those of an .npz."""
    if args.query:
        return search(args)
    if args.arrays:
        embedded, ks = load_npz(args.file), [1, 2, 4, 8]
    else:
        network, cfg, transforms = open_checkpoint(args.file, args.device, args.data_root)
        data, ks = images_to_judge(cfg, transforms, args.dataset, not args.no_cache), cfg.ks
        embedded = common.embed_splits(network.embed, data, cfg, "test", "gallery", "train_plain")
    embedded = {split: (x.to(device(args)), labels) for split, (x, labels) in embedded.items()}
    if args.l2norm:
        embedded = protocol.normalized(embedded)
    try:
        result = protocol.judge(embedded, args.ks or ks)
    except ValueError as error:
        raise UserError(f"{args.file}: {error}")
    x, labels = embedded["test"]
    print(f"{args.file}: {len(x):,} embeddings of {len(labels.unique()):,} classes, "
          f"d = {x.shape[1]}")
    show({"test": result}, args.ks or ks)
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

    def load():
        return common.load_dataset(dataset, cfg.data_root, prefix, test, cache, cfg.val)
    if dataset == "glyphs" or of_papers(dataset):
        data = load()
        if data.identity == cfg.images:
            return data
        print(OTHER_IMAGES)
        return common.Data(None, None, data.test, data.gallery, folder=data.folder)
    folder = Folder(dataset)
    if has_images_of(folder, cfg):
        return load()
    splits = folder.judged()
    folder.say_left_out(splits)
    splits["test"] = that_did_not_train(splits["test"], cfg.classes)
    data = common.Data(None, None, None, folder=folder.path)
    for part, rows in splits.items():
        images = ImageFiles([path for path, _ in rows], test, decode)
        setattr(data, part, common.split_of(splits, part, images, folder.path))
    return data


def has_images_of(folder, cfg):
    """Whether a folder has the images of a run: their paths, sizes, first bytes."""
    try:
        return identity(folder.path, folder.splits(), False) == cfg.images
    except UserError:                       # too few classes to train on
        return False


def that_did_not_train(rows, trained):
    """[(path, class)] -> those of classes that a network did not train on, or all if it did on all;
    a line says which.  trained: names of classes, None if they are not known."""
    kinds = {kind for _, kind in rows}
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
    return [row for row in rows if row[1] not in known]


# ---------------------------------------------------------------------------- .npz
def load_npz(path):
    """An .npz of embeddings -> {split: (x, labels)}.  UserError if it is not one."""
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            raise ValueError("it holds one array; np.savez writes several, embeddings= and labels=")
        with content:
            arrays = dict(content)
    except Exception as error:                  # np.load fails in a dozen ways on a damaged file
        raise UserError(f"cannot read {path}: {reason(error)}")
    keys = [("embeddings", "iuf", "numbers"), ("labels", "iuU", TEXTS)]
    if "gallery" in arrays or "gallery_labels" in arrays:
        keys += [("gallery", "iuf", "numbers"), ("gallery_labels", "iuU", TEXTS)]
    missing = [key for key, *_ in keys if key not in arrays]
    if missing:
        raise UserError(f"{path} lacks the arrays {', '.join(missing)}")
    for key, kinds, wanted in keys:
        if arrays[key].dtype.kind not in kinds:
            raise UserError(f"{path}: {key} must be {wanted}, not {arrays[key].dtype}")
    labels = [arrays[key] for key, *_ in keys[1::2]]
    both = np.concatenate([own.ravel() for own in labels])
    if both.dtype.kind == "U":
        both = np.array([normalize("NFC", text) for text in both])
    numbers = torch.from_numpy(np.unique(both, return_inverse=True)[1])
    numbers = numbers.split([own.size for own in labels])
    embedded = {}
    for split, (key, *_), own in zip(("test", "gallery"), keys[::2], numbers):
        x = arrays[key]
        x = x.astype(np.float32 if np.can_cast(x.dtype, np.float32) else np.float64)
        embedded[split] = torch.from_numpy(x), own
    return embedded


def save_npz(path, embedded, data):
    """--export: embeddings and labels, the names of their classes and files."""
    arrays, names = {}, {}
    for split, part in (("test", ""), ("gallery", "gallery_"), ("train_plain", "seen_")):
        if split in embedded:
            x, labels = embedded[split]
            arrays[part.rstrip("_") or "embeddings"] = x.cpu().numpy()
            arrays[f"{part}labels"] = labels.numpy()
            own = getattr(data, split)
            names[f"{part}classes"] = np.array(own.classes)
            if own.files:
                names[f"{part}paths"] = np.array(own.files)
    with atomic(path, "wb") as file:
        np.savez(file, **arrays, **names)
    print(f"wrote {path}: {', '.join([*arrays, *names])}")


# ---------------------------------------------------------------------------- --query
def search(args):
    """--query: the images nearest to each photo among the run's test images and its gallery, or in
    --gallery, printed and with --to drawn.  A photo that is itself among them is found."""
    for path in args.query:
        if not Path(path).exists():                     # said before the work
            raise UserError(f"cannot read the image {path}: there is none")
    network, cfg, transforms = open_checkpoint(args.file, args.device, args.data_root)
    asked = [(path, UNKNOWN, path) for path in args.query]
    photos = ImageFiles(args.query, transforms[2], decode)
    if args.gallery:
        folder, entries = Folder(args.gallery), []
        folder.say_left_out({"searched": [(path, None) for path in folder.images]})
        for path, (_, kind) in folder.images.items():
            entries.append((str(path), kind or UNKNOWN, path))
        searched = [(ImageFiles([*folder.images], transforms[2], decode), entries)]
        told = f"images of {args.gallery}"
    else:
        data = images_to_judge(cfg, transforms, args.dataset, not args.no_cache)
        searched = [(data.test.images, entries_of(data.test, data.folder))]
        if data.gallery is not None:
            searched.append((data.gallery.images, entries_of(data.gallery, data.folder)))
        told = (f"test images of {len(data.test.classes)} classes ({listed(data.test.classes)}); "
                "--gallery FOLDER searches others")
    x, asked = embed_readable(network, cfg, photos, asked)
    y, entries = [], []
    for images, own in searched:
        embedded, readable = embed_readable(network, cfg, images, own)
        y.append(embedded)
        entries += readable
    y = torch.cat(y)
    if args.l2norm:
        x, y = F.normalize(x), F.normalize(y)
    answers = list(zip(asked, nearest_entries(x, y, entries, args.top or 5)))
    print(f"{args.file} searches {len(entries):,} {told}")
    print_answers(answers)
    if args.to:
        draw_sheet(args.to, answers)
        print(f"\nwrote {args.to}")


def entries_of(split, folder):
    """A common.Split and the folder of its dataset -> entries"""
    entries = []
    for i, label in enumerate(split.labels.tolist()):
        if folder is None:
            name, source = f"image {i}", split.images[i]
        else:
            source = folder / split.files[i]
            name = str(source)
        entries.append((name, split.classes[label], source))
    return entries


def embed_readable(network, cfg, images, entries):
    """-> embeddings (n, d) of the images that can be read, their entries; the others are named."""
    faults = {}
    if isinstance(images, ImageFiles):
        images.faults = faults
    try:
        x = common.embed(network.embed, images, cfg).cpu()
    finally:
        for fault in faults.values():
            print(f"left out: {fault}")
    return x, [entry for i, entry in enumerate(entries) if i not in faults]


def nearest_entries(x, searched, entries, top):
    """x (q, d), searched (n, d) of n entries -> for each x the `top` nearest [(distance, entry)] by
    differences, so that equal embeddings are at 0; of equal distances the first in the list."""
    distances = torch.cdist(x.double(), searched.double(),
                            compute_mode="donot_use_mm_for_euclid_dist")                # (q, n)
    distances, places = distances.sort(dim=1, stable=True)
    answers = []
    for row, indices in zip(distances[:, :top].tolist(), places[:, :top].tolist()):
        answers.append([(distance, entries[i]) for distance, i in zip(row, indices)])
    return answers


def print_answers(answers):
    width = 20
    for _, nearest in answers:
        width = max(width, *(len(kind) for _, (_, kind, _) in nearest))
    for (path, _, _), nearest in answers:
        print(f"\nquery {path}\n    distance  {'class':<{width}}  image")
        for place, (distance, (name, kind, _)) in enumerate(nearest, 1):
            print(f"{place:>3} {distance:8.4f}  {kind:<{width}}  {name}")


# ---------------------------------------------------------------------------- a sheet of images
def draw_sheet(path, answers):
    """A picture with a line of images for each of answers [(query, the entries nearest to it)],
    framed as right or wrong if the query's class is known."""
    try:
        font = ImageFont.truetype("DejaVuSans.ttf", TEXT)
    except OSError:
        font = ImageFont.load_default(TEXT)                 # without umlauts
    across, down = SIDE + 2 * GAP, SIDE + 2 * GAP + 2 * LINE
    width = 1 + max(len(nearest) for _, nearest in answers)
    sheet = PIL.Image.new("RGB", (across * width, down * len(answers)), "white")
    pen = ImageDraw.Draw(sheet)
    for row, (query, nearest) in enumerate(answers):
        for column, (source, lines, colour) in enumerate(cells_of(query, nearest)):
            left, top = GAP + column * across, GAP + row * down
            image = to_pil_image(source) if torch.is_tensor(source) else decode(source)
            image = ImageOps.contain(image, (SIDE, SIDE))
            sheet.paste(ImageOps.expand(image, 3, colour), (left, top))
            for i, line in enumerate(lines):
                place = left, top + SIDE + 8 + i * LINE
                pen.text(place, cut_to_fit(line, font), colour, font)
    sheet.save(path)


def cells_of(query, nearest):
    """A row of a sheet: of the query and of each answer the source, two lines of text, a colour."""
    name, own, source = query
    title = Path(name).name if own == UNKNOWN else own
    cells = [(source, ["query", title], "black")]
    for distance, (_, kind, source) in nearest:
        colour = RIGHT if kind == own else WRONG
        if own == UNKNOWN:
            colour = "dimgray"
        if kind == UNKNOWN:
            kind = ""
        cells.append((source, [kind, f"{distance:.4f}"], colour))
    return cells


def cut_to_fit(line, font):
    line = " ".join(line.split())
    if font.getlength(line) <= SIDE:
        return line
    while font.getlength(f"{line}…") > SIDE:
        line = line[:-1]
    return f"{line}…"


# ---------------------------------------------------------------------------- command line
def parse_args(argv=None):
    parser, whole = Parser("eval.py", protocol.__doc__), number(int, 1)
    add = parser.add_argument
    add("file", type=path, help="a checkpoint runs/RUN/last.pt, or an .npz of embeddings")
    add("--ks", type=whole, nargs="+", help="the K of Recall@K")
    add("--l2norm", action="store_true", help="normalize the embeddings first")
    add("--export", metavar="FILE.npz", type=output(".npz"), help="write the embeddings")
    add("--dataset", type=path, help="where the folder of images is now; or another one, "
        "judged by those classes that did not train: of its test/, if it has one, else of all its "
        "images")
    add("--data-root", type=path, help="where the datasets are now")
    add("--device", default="auto", help="auto (default), cpu, cuda")
    add("--no-cache", action="store_const", const=True, help="decode images anew")
    add("--query", type=path, metavar="PHOTO", nargs="+", help="print the nearest images")
    add("--gallery", type=path, metavar="FOLDER", help="with --query: the images to search, in "
        "sub-folders or not (default: the run's test images)")
    add("--top", type=whole, help="with --query: how many (5)")
    add("--to", metavar="SHEET.png", type=output(".png", ".jpg"), help="with --query: draw them "
        "too")
    args = parser.parse_args(argv)
    args.arrays = args.file.lower().endswith((".npz", ".npy"))        # a .npy: load_npz refuses
    refuse_idle(parser, args, [
        ("with an .npz", args.arrays, "query export dataset data_root no_cache"),
        ("without --query", args.query is None, "gallery top to"),
        ("with --query", args.query is not None, "ks export"),
        ("with --gallery", args.gallery is not None, "dataset data_root no_cache")])
    return args

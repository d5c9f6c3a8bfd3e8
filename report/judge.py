"""`python eval.py`: a checkpoint or an .npz judged, images searched for those nearest to a photo.

An entry (name, class, source) is an image: source is its path or, without a file, uint8 (3, h, w).
"""
from functools import partial
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
from support.command_line import Parser, device, main, number, output, refuse_idle  # noqa: F401
from support.files import UserError, atomic, listed, reason
from support.images import ImageFiles
from support.layouts import of_papers
from support.photos import Folder, decode, identity
from support.runs import read_checkpoint, show

SCRIPTS = {"jrd": jrd, "mdr": mdr, "dml_da": dml_da}
UNKNOWN = "–"                                           # shown for an image in no sub-folder
SIDE, GAP, TEXT, LINE = 128, 10, 14, 17                 # of a sheet, in pixels
RIGHT, WRONG = "#009E73", "#D55E00"                     # colour-blind readers tell them apart


# ---------------------------------------------------------------------------- judging
def evaluate(args):
    """Judge a checkpoint's embeddings of its images or of other ones, or those of an .npz."""
    if args.query:
        return search(args)
    if args.arrays:
        embedded, ks, names = load_npz(args.file), [1, 2, 4, 8], {}
    else:
        network, cfg, transforms = open_checkpoint(args.file, args.device, args.data_root)
        data = images_to_judge(cfg, transforms, args.dataset, not args.no_cache)
        if data.test.labels is None and not args.export:
            raise UserError(f"{data.folder} has no classes in sub-folders, so no figures; --export "
                            "writes its embeddings, --query searches it")
        embedded = common.embed_splits(network.embed, data, cfg, "test", "gallery", "train_plain")
        ks, names = cfg.ks, names_of(data)
    for split, (x, labels) in embedded.items():
        x = x.to(device(args))
        if args.l2norm:
            x = F.normalize(x)
        embedded[split] = x, labels
    x, labels = embedded["test"]
    if labels is None:
        print(f"{args.file}: {len(x):,} embeddings without classes, d = {x.shape[1]}")
    else:
        try:
            result = protocol.judge(embedded, args.ks or ks)
        except ValueError as error:
            raise UserError(f"{args.file}: {error}")
        classes = len(labels.unique())
        print(f"{args.file}: {len(x):,} embeddings of {classes:,} classes, d = {x.shape[1]}")
        show({"test": result}, args.ks or ks)
    if args.export:
        save_npz(args.export, embedded, names)


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

    def load(val):
        return common.load_dataset(dataset, cfg.data_root, prefix, test, cache, val)
    if dataset == "glyphs" or of_papers(dataset):
        if (of_papers(dataset) or dataset) == (of_papers(cfg.dataset) or cfg.dataset):
            return load(cfg.val)
        say_other_images()
        data = load(None)
        return common.Data(None, None, data.test, data.gallery, folder=data.folder)
    folder = common.own_folder(dataset)
    if has_images_of(folder, cfg):
        return load(cfg.val)
    splits = folder.judged()
    folder.say_left_out(splits)
    splits["test"] = that_did_not_train(splits["test"], cfg.classes)
    kinds = {kind for rows in splits.values() for _, kind in rows}
    judged = {}
    for part, rows in splits.items():
        images = ImageFiles([path for path, _ in rows], test, decode)
        judged[part] = common.split_of(rows, kinds, images, folder.path)
    return common.Data(None, None, folder=folder.path, **judged)


def say_other_images():
    print("note: these are not the images of the run; if a class of them was trained on, its "
          "figures are too high")


def has_images_of(folder, cfg):
    """Whether a folder has the images of a run: their paths, sizes, first bytes."""
    try:
        return identity(folder.path, folder.splits()) == cfg.images
    except (AttributeError, UserError):     # a run before there were identities, an album
        return False


def that_did_not_train(rows, trained):
    """[(path, class)] -> those of classes that a network did not train on, or all if it did on all;
    a line says which.  trained: names of classes, None if they are not known."""
    kinds = {kind for _, kind in rows}
    if trained is None:
        say_other_images()
        return rows
    known = sorted(kinds & set(trained))
    if known and len(known) == len(kinds):
        print(f"note: each of these {len(kinds):,} classes trained, by its name: all are judged, "
              "and their figures say nothing about new classes")
        return rows
    print(f"note: other images than the run's; {len(known):,} of their {len(kinds):,} classes "
          f"trained, by name, and are left out{': ' if known else ''}{listed(known)}")
    return [row for row in rows if row[1] not in known]


def names_of(data):
    """What --export writes beside embeddings and labels: names of classes, paths."""
    names = {}
    for split, part in (("test", ""), ("gallery", "gallery_"), ("train_plain", "seen_")):
        own = getattr(data, split)
        if own is not None and own.classes:
            names[f"{part}classes"] = np.array(own.classes)
        if own is not None and own.files:
            names[f"{part}paths"] = np.array(own.files)
    return names


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
    keys = {"test": ("embeddings", "labels")}
    if "gallery" in arrays or "gallery_labels" in arrays:
        keys["gallery"] = "gallery", "gallery_labels"
    missing = [key for pair in keys.values() for key in pair if key not in arrays]
    if missing:
        raise UserError(f"{path} lacks the arrays {', '.join(missing)}")
    for x, labels in keys.values():
        for key, kinds, wanted in ((x, "iuf", "numbers"),
                                   (labels, "iuU", "whole numbers or texts, one per class")):
            if arrays[key].dtype.kind not in kinds:
                raise UserError(f"{path}: {key} must be {wanted}, not {arrays[key].dtype}")
    number_texts(arrays, [labels for _, labels in keys.values()])
    embedded = {}
    for split, (x, labels) in keys.items():
        dtype = np.float64
        if np.can_cast(arrays[x].dtype, np.float32):
            dtype = np.float32
        embedded[split] = (torch.from_numpy(arrays[x].astype(dtype)),
                           torch.from_numpy(arrays[labels].astype(np.int64)))
    return embedded


def number_texts(arrays, keys):
    """Labels that are texts become numbers, the same in test and gallery."""
    if all(arrays[key].dtype.kind != "U" for key in keys):
        return
    composed = np.vectorize(partial(normalize, "NFC"), ["U"])
    for key in keys:
        arrays[key] = composed(arrays[key].astype(str))
    names = np.unique(np.concatenate([arrays[key].ravel() for key in keys]))
    for key in keys:
        arrays[key] = np.searchsorted(names, arrays[key])


def save_npz(path, embedded, names):
    """--export: {split: (x, labels or None)}, and the names of classes and files."""
    arrays = {}
    for split, part in (("test", ""), ("gallery", "gallery_"), ("train_plain", "seen_")):
        if split in embedded:
            x, labels = embedded[split]
            arrays[part.rstrip("_") or "embeddings"] = x.cpu().numpy()
            if labels is not None:
                arrays[f"{part}labels"] = labels.numpy()
    arrays |= names
    with atomic(path, "wb") as file:
        np.savez(file, **arrays)
    print(f"wrote {path}: {', '.join(arrays)}")


# ---------------------------------------------------------------------------- --query
def search(args):
    """--query: the images nearest to each photo among the run's test images and its gallery, or in
    --gallery, printed and with --to drawn.  A photo that is itself among them is found."""
    for path in args.query:
        if not Path(path).exists():                     # said before the work
            raise UserError(f"cannot read the image {path}: there is none")
    network, cfg, transforms = open_checkpoint(args.file, args.device, args.data_root)
    photos = ImageFiles(args.query, transforms[2], decode)
    if args.gallery:
        folder = Folder(args.gallery)
        folder.say_left_out({"all": [(path, None) for path in folder.images]})
        entries = []
        for path, (_, kind) in folder.images.items():
            entries.append((str(path), kind or UNKNOWN, path))
        searched = [(ImageFiles([*folder.images], transforms[2], decode), entries)]
        told = f"{len(entries):,} images of {args.gallery}"
    else:
        data = images_to_judge(cfg, transforms, args.dataset, not args.no_cache)
        searched = []
        for split in (data.test, data.gallery):
            if split is not None:
                searched.append((split.images, entries_of(split, data.folder)))
        told = told_of([entry for _, entries in searched for entry in entries], data)
    x, asked = embed_readable(network, cfg, photos, [(path, UNKNOWN, path) for path in args.query])
    y, entries = [], []
    for images, own in searched:
        embedded, readable = embed_readable(network, cfg, images, own)
        y.append(embedded)
        entries += readable
    y = torch.cat(y)
    if args.l2norm:
        x, y = F.normalize(x), F.normalize(y)
    answers = list(zip(asked, nearest_entries(x, y, entries, args.top or 5)))
    print(f"{args.file} searches {told}")
    print_answers(answers)
    if args.to:
        draw_sheet(args.to, answers)
        print(f"\nwrote {args.to}")


def told_of(entries, data):
    """What is searched where there is no --gallery, in words."""
    classes = sorted({kind for _, kind, _ in entries})
    told = f"{len(entries):,} test images of {len(classes)} classes ({listed(classes)})"
    if data.train is not None and not data.shared():
        told += "; the training classes are not among them"
    return f"{told}; --gallery FOLDER searches others"


def entries_of(split, folder):
    """A common.Split and the folder of its dataset -> entries"""
    kinds = [UNKNOWN] * len(split.images)
    if split.labels is not None:
        kinds = [split.classes[label] for label in split.labels.tolist()]
    if folder is None:
        return [(f"image {i}", kind, split.images[i]) for i, kind in enumerate(kinds)]
    return [(str(folder / file), kind, folder / file) for file, kind in zip(split.files, kinds)]


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
    add("file", help="a checkpoint runs/RUN/last.pt, or an .npz of embeddings")
    add("--ks", type=whole, nargs="+", help="the K of Recall@K")
    add("--l2norm", action="store_true", help="normalize the embeddings first")
    add("--export", metavar="FILE.npz", type=output(".npz"), help="write the embeddings")
    add("--dataset", help="where the folder of images is now; or another one, judged by those "
        "classes that did not train: of its test/, if it has one, else of all its images")
    add("--data-root", help="where the datasets are now")
    add("--device", default="auto", help="auto (default), cpu, cuda")
    add("--no-cache", action="store_const", const=True, help="decode images anew")
    add("--query", metavar="PHOTO", nargs="+", help="print the nearest images")
    add("--gallery", metavar="FOLDER", help="with --query: the images to search, in sub-folders or "
        "not (default: the run's test images)")
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

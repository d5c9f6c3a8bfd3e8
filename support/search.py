"""What `python eval.py` does around the judgement: checkpoints and .npz files, --query, sheets.

An entry (name, class, source) is an image: source is its path or, without a file, uint8 (3, h, w).
"""
from dataclasses import replace
from pathlib import Path
from unicodedata import normalize

import numpy as np
import PIL.Image
import torch
import torch.nn.functional as F
from PIL import ImageDraw, ImageFont, ImageOps
from torchvision.transforms.v2.functional import to_pil_image

from support.files import Unsplit, UserError, atomic, listed, reason
from support.images import ImageFiles, decode, to_tensor
from support.layouts import COUNTS, SMALLER, files_below, say_left_out
from support.runs import differences, read_checkpoint, script

UNKNOWN = "–"                                           # the class of an image in no sub-folder
SIDE, GAP, TEXT, LINE = 128, 10, 14, 17                 # of a sheet, in pixels
RIGHT, WRONG = "#009E73", "#D55E00"                     # colour-blind readers tell them apart


def load_npz(path):
    """An .npz of embeddings -> {split: (x, labels)}, the usual K, no names.  UserError if it is not
    one."""
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            raise ValueError("it holds one array; np.savez writes several, embeddings= and labels=")
        with content:
            arrays = dict(content)
    except Exception as error:                  # np.load fails in a dozen ways on a damaged file
        raise UserError(f"cannot read {path}: {reason(error)}")
    keys, label_keys = ["embeddings", "labels"], ["labels"]
    if arrays.keys() & {"gallery", "gallery_labels"}:
        keys, label_keys = [*keys, "gallery", "gallery_labels"], ["labels", "gallery_labels"]
    if missing := [key for key in keys if key not in arrays]:
        raise UserError(f"{path} lacks the arrays {', '.join(missing)}")
    for key in keys:
        kinds, wanted = (("iuU", "whole numbers or texts, one a class") if key in label_keys else
                         ("iuf", "numbers"))
        if arrays[key].dtype.kind not in kinds:
            raise UserError(f"{path}: {key} must be {wanted}, not {arrays[key].dtype}")
    if any(arrays[key].dtype.kind == "U" for key in label_keys):        # texts become numbers
        nfc = np.vectorize(lambda text: normalize("NFC", text), ["U"])
        texts = {key: nfc(arrays[key].astype(str)) for key in label_keys}
        names = np.unique(np.concatenate([text.ravel() for text in texts.values()]))
        arrays |= {key: np.searchsorted(names, text) for key, text in texts.items()}
    for key in keys:
        floats = np.float32 if np.can_cast(arrays[key].dtype, np.float32) else np.float64
        dtype = np.int64 if key in label_keys else floats
        arrays[key] = torch.from_numpy(arrays[key].astype(dtype))
    embedded = {"test": (arrays["embeddings"], arrays["labels"])}
    if "gallery" in keys:
        embedded["gallery"] = arrays["gallery"], arrays["gallery_labels"]
    return embedded, [1, 2, 4, 8], {}


def save_npz(path, embedded, names):
    """--export: {split: (x, labels)}, and the names that embed_images has of them."""
    arrays = {}
    for split, (x, labels) in embedded.items():
        part = {"test": "", "train_plain": "seen_"}.get(split, f"{split}_")
        arrays |= {part[:-1] or "embeddings": x.cpu().numpy(), f"{part}labels": labels.numpy()}
    with atomic(path, "wb") as file:
        np.savez(file, **arrays, **names)
    print(f"wrote {path}: {', '.join([*arrays, *names])}")


# ---------------------------------------------------------------------------- a checkpoint's images
def rebuild(args):
    """args.file, a checkpoint -> its script, network and settings; its Data, or --dataset's.  Of a
    folder without a gallery/ that is not the run's `test` has all images."""
    paper = script(read_checkpoint(args.file)["paper"])
    network, cfg = paper.common.load(args.file, args.device)
    cfg.data_root = args.data_root or cfg.data_root
    prefix, _, test_transform = paper.transforms(cfg)

    def load(val):
        return common.load_dataset(dataset, cfg.data_root, prefix, test_transform,
                                   cache=not args.no_cache, val=val)
    dataset, own, common = args.dataset or cfg.dataset, getattr(cfg, "images", {}), paper.common
    try:
        data = load(None if args.dataset else cfg.val)
        same = data.identity.keys() == own.keys() and not differences({"images": own},
                                                                       {"images": data.identity})
    except Unsplit:
        if not args.dataset:
            raise
        data, same = None, False
    if same:
        return paper, network, cfg, load(cfg.val) if args.dataset and cfg.val else data
    print("note: these are not the images of the run; if a class of them was trained on, its "
          "figures are too high")
    if data and (data.gallery or dataset in (*COUNTS, *SMALLER, "glyphs")):     # its test split
        return paper, network, cfg, replace(data, train=None, train_plain=None, val=None)
    entries = folder_entries(dataset)
    classes = sorted({kind for _, kind, _ in entries})
    test = common.Split(ImageFiles([path for *_, path in entries], test_transform),
                        torch.tensor([classes.index(kind) for _, kind, _ in entries]), classes,
                        [path.relative_to(dataset).as_posix() for *_, path in entries])
    return paper, network, cfg, common.Data(None, None, test, folder=Path(dataset))


def embed_images(args):
    """A checkpoint -> {split: (x, labels)} of its images, its K, the names of classes and files"""
    paper, network, cfg, data = rebuild(args)
    names = {}
    for split, part in (("test", ""), ("gallery", "gallery_"), ("train_plain", "seen_")):
        if own := getattr(data, split):
            names[f"{part}classes"] = np.array(own.classes)
            if own.files:
                names[f"{part}paths"] = np.array(own.files)
    embedded = paper.common.embed_splits(network.embed, data, cfg, "test", "gallery", "train_plain")
    return embedded, cfg.ks, names


def folder_entries(folder):
    """A folder of images, in sub-folders or not -> entries, the class a sub-folder's name."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"no folder {folder}")
    images, others = files_below(folder)
    say_left_out(folder, others)
    if not images:
        raise UserError(f"{folder} has no images")
    parts = ("train", "test", "gallery")                    # of which the classes are sub-folders
    above = [[normalize("NFC", name) for name in path.relative_to(folder).parts[:-1]]
             for path in images]
    return [(str(path), next((name for name in names if name not in parts), [*names, UNKNOWN][0]),
             path) for path, names in zip(images, above)]


def split_entries(split, folder):
    """A common.Split and the folder of its dataset -> entries"""
    names = [split.classes[label] for label in split.labels.tolist()]
    if folder is None:
        return [(f"image {i}", name, split.images[i]) for i, name in enumerate(names)]
    return [(str(folder / file), name, folder / file) for file, name in zip(split.files, names)]


def nearest_entries(x, searched, entries, top):
    """x (q, d), searched (n, d) of n entries -> for each x the `top` nearest [(distance, entry)] by
    differences, so that equal embeddings are at 0; of equal distances the first in the list."""
    distances = torch.cdist(x.double(), searched.double(),
                            compute_mode="donot_use_mm_for_euclid_dist")                # (q, n)
    nearest, places = (v[:, :top].tolist() for v in distances.sort(dim=1, stable=True))
    return [[(d, entries[i]) for d, i in zip(*row)] for row in zip(nearest, places)]


def print_nearest(args):
    """--query: the images nearest to each photo among the run's test images and its gallery, or in
    --gallery, printed and with --to drawn.  A photo that is itself among them is found."""
    photos = [decode(path) for path in args.query]        # what cannot be read is said first
    if args.gallery:
        paper = script(read_checkpoint(args.file)["paper"])
        network, cfg = paper.common.load(args.file, args.device)
        transform = paper.transforms(cfg)[2]
        entries = folder_entries(args.gallery)
        images = [ImageFiles([path for *_, path in entries], transform)]
        searched = f"{len(entries):,} images of {args.gallery}"
    else:
        paper, network, cfg, data = rebuild(args)
        transform = paper.transforms(cfg)[2]
        splits = [split for split in (data.test, data.gallery) if split]
        entries = sum((split_entries(split, data.folder) for split in splits), [])
        images = [split.images for split in splits]
        classes = sorted({kind for _, kind, _ in entries})
        left_out = "" if data.train is None or data.shared() else (
            "; the training classes are not among them")
        searched = (f"{len(entries):,} test images of {len(classes)} classes ({listed(classes)})"
                    f"{left_out}; --gallery FOLDER searches others")
    photos = torch.stack([to_tensor(transform, photo) for photo in photos])
    x, *found = [paper.common.embed(network.embed, paper.common.Split(own, None, None), cfg).cpu()
                 for own in (photos, *images)]
    x, y = [F.normalize(v) if args.l2norm else v for v in (x, torch.cat(found))]
    answers = [*zip(args.query, nearest_entries(x, y, entries, args.top or 5))]
    print(f"{args.file} searches {searched}")
    width = max(20, *(len(kind) for _, nearest in answers for _, (_, kind, _) in nearest))
    for path, nearest in answers:
        print(f"\nquery {path}\n    distance  {'class':<{width}}  image")
        for place, (distance, (name, kind, _)) in enumerate(nearest, 1):
            print(f"{place:>3} {distance:8.4f}  {kind:<{width}}  {name}")
    if args.to:
        draw_sheet(args.to, [((p, UNKNOWN, p), nearest) for p, nearest in answers])
        print(f"\nwrote {args.to}")


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
    for top, ((name, own, source), nearest) in zip(range(GAP, sheet.height, down), answers):
        cells = [(source, ["query", Path(name).name if own == UNKNOWN else own], "black")]
        for distance, (_, kind, source) in nearest:
            colour = "dimgray" if own == UNKNOWN else RIGHT if kind == own else WRONG
            cells.append((source, ["" if kind == UNKNOWN else kind, f"{distance:.4f}"], colour))
        for left, (source, lines, colour) in zip(range(GAP, sheet.width, across), cells):
            image = to_pil_image(source) if torch.is_tensor(source) else decode(source)
            image = ImageOps.contain(image, (SIDE, SIDE))
            sheet.paste(ImageOps.expand(image, 3, colour), (left, top))
            for i, words in enumerate(" ".join(line.split()) for line in lines):
                while font.getlength(words) > SIDE:                     # cut to fit
                    words = words[:-1]
                pen.text((left, top + SIDE + 8 + i * LINE), words, colour, font)
    sheet.save(path)

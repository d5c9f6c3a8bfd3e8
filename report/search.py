"""eval.py's --query and --pairs: the images nearest to a photo, the images nearest to each other.

An entry (name, class, source) is an image: source is its path or, without a file, a PIL image.
"""
import collections
import contextlib
import os
import textwrap
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import ImageDraw, ImageFont, ImageOps
from torchvision.transforms.v2.functional import pil_to_tensor, to_pil_image
from torchvision.utils import make_grid

import common
from support.files import UserError, atomic, digest, listed
from support.identity import code_of
from support.images import ImageFiles
from support.layouts import of_papers
from support.machine import versions
from support.photos import decode, identity, shown

UNKNOWN = "–"                                           # shown for an image in no sub-folder
SIDE, GAP, LINES = 128, 7, 41               # pixels of a sheet's image, around it, of its text
IN_JPEG = 350                           # images of a sheet across and down: 65,500 pixels at most
RIGHT, WRONG = "#009E73", "#D55E00"                     # colour-blind readers tell them apart


# ---------------------------------------------------------------------------- the nearest
def search(args, checkpoint, network, cfg, transform, data):
    """Print and, with --to, draw the images nearest to each photo of --query, among those that
    Recall@K searches.  A photo that is itself among them is marked and no answer."""
    photos = common.Split(ImageFiles(args.query, transform, decode),
                          torch.zeros(len(args.query), dtype=int), [UNKNOWN], args.query)
    need_room(args.to, len(args.query), 1 + min(args.top, len(searched(data))))
    keep_photos(args.to, data, args.query)
    x, queries = embed_entries(network, cfg, Path(), photos)
    y, entries = embed_searched(args, checkpoint, network, cfg, data)
    if args.l2norm:
        x, y = F.normalize(x), F.normalize(y)
    kinds = searched(data).present()
    print(f"{args.file} searches {len(entries):,} images of {len(kinds)} classes: {listed(kinds)}")
    if not args.gallery:
        others = ""
        if cfg.classes and not {*cfg.classes} & {*kinds}:
            others = "; the training classes are not among them"
        print(f"note: a dataset's test images are searched, or its gallery if it has one{others}; "
              "--gallery FOLDER searches another folder")
    files = [os.path.realpath(source) for *_, source in entries if isinstance(source, str)]
    themselves = collections.Counter(files)             # of a link and its file there are two
    most = args.top + max(themselves[os.path.realpath(source)] for *_, source in queries)
    answers = []
    for query, nearest in zip(queries, nearest_entries(x, y, entries, most)):
        print(f"\nquery {query[0]}\n    distance  {'class':<30}  image")
        others = []
        for distance, entry in nearest:
            name, kind, source = entry
            if isinstance(source, str) and os.path.realpath(source) == os.path.realpath(query[2]):
                print(f"  {UNKNOWN} {distance:8.4f}  {kind:<30}  {name}  (the query itself)")
            elif len(others) < args.top:
                others.append((distance, entry))
                print(f"{len(others):>3} {distance:8.4f}  {kind:<30}  {name}")
        answers.append((query, others))
    if args.to:
        draw_sheet(args.to, answers)
        print(f"\nwrote {args.to}")


def compare(args, checkpoint, network, cfg, data):
    """Print and, with --to, draw the --pairs of images nearest to each other, of those that
    Recall@K searches."""
    n = len(searched(data))
    need_room(args.to, min(args.pairs, n * (n - 1) // 2), 2)
    keep_photos(args.to, data)
    x, entries = embed_searched(args, checkpoint, network, cfg, data)
    if args.l2norm:
        x = F.normalize(x)
    print(f"{args.file} compares {len(entries):,} images, each with every other")
    print("    distance  pair")
    pairs = nearest_pairs(x, args.pairs)
    if not pairs:
        raise UserError("one image has no other to be compared with")
    for place, (distance, i, j) in enumerate(pairs, 1):
        print(f"{place:>3} {distance:8.4f}  {entries[i][0]}  {entries[j][0]}")
    print("note: two images of different things can be nearer than an altered copy is to its "
          "original: look at each pair")
    if args.to:
        draw_sheet(args.to, [(entries[i], [(distance, entries[j])]) for distance, i, j in pairs])
        print(f"wrote {args.to}")


def searched(data):
    """The split that test images, as all queries, are searched in"""
    return data.gallery or data.test


def embed_searched(args, checkpoint, network, cfg, data):
    """As embed_entries, of the split that is searched.  The embeddings stay in a file beside the
    checkpoint, last.searched.npz, so that the next search need not wait for them.  checkpoint: its
    SHA-256 from before it was opened, because a training may replace it meanwhile"""
    split, file = searched(data), Path(args.file).with_suffix(".searched.npz")
    made_of = embeddings_made_of(args, checkpoint, network, cfg, data)
    points = kept_embeddings(file, made_of, split.images)
    if points is not None:
        points = points.to(cfg.device)
        return points, entries_of(data.folder, split, split.images.faults)
    points, entries = embed_entries(network, cfg, data.folder, split)
    if made_of:
        with contextlib.suppress(UserError), atomic(file, "wb") as new:     # of a read-only disk
            np.savez(new, embeddings=points.cpu(), made_of=made_of,
                     lost=np.array(sorted(split.images.faults), int))
    return points, entries


def embeddings_made_of(args, checkpoint, network, cfg, data):
    """A digest of all that the searched embeddings are computed from, "" if they are not to be
    kept.  Of the papers' datasets it has the images' paths, because a look at each may take
    minutes, of others their first bytes, sizes and times of the last edit too."""
    papers = not args.gallery and of_papers(args.dataset or cfg.dataset)
    names = searched(data).files
    if args.no_cache or not names:                      # glyphs' take a second
        return ""
    paths = [data.folder / name for name in names]
    try:
        images = identity(data.folder, {"searched": paths}, papers)["searched"]
        edits = [] if papers else [path.stat().st_mtime_ns for path in paths]
    except OSError:                                     # a file is not there: embed says which
        return ""
    return digest(checkpoint, code_of(type(network).__module__), versions(), cfg.device,
                  cfg.precision, images, *edits)


def kept_embeddings(file, made_of, images):
    """The embeddings in a file, if they are made of this; else None.  images.faults becomes the
    numbers of those that could not be read, and each says again why; None if one now can be."""
    try:
        with np.load(file) as kept:
            points, lost, whose = kept["embeddings"], {*kept["lost"].tolist()}, kept["made_of"]
    except Exception:                           # no file, or a damaged one, as in judge.read_npz
        return None
    if whose != made_of:
        return None
    images.faults = set()
    for i in lost:
        images[i]
    return torch.from_numpy(points) if images.faults == lost else None


def embed_entries(network, cfg, folder, split):
    """A split, of files in a folder if it has any -> embeddings (n, d) of the images that can be
    read, their entries"""
    split.images.faults = faults = set()                # stays empty if they are no ImageFiles
    points = common.embed(network.embed, split.images, cfg)
    return points, entries_of(folder, split, faults)


def entries_of(folder, split, faults=()):
    """The entries of a split's images but for those that could not be read"""
    entries = []
    for i, label in enumerate(split.labels.tolist()):
        if i in faults:
            continue
        if split.files:
            name = source = str(folder / split.files[i])
        else:
            name, source = f"image {i}", to_pil_image(split.images[i])
        entries.append((name, split.classes[label], source))
    return entries


def nearest_entries(x, y, entries, top):
    """x (m, d), y (n, d) of n entries -> of each x the `top` nearest [(distance, entry)], by
    differences, so that equal embeddings are at 0; of equal distances the first in the list."""
    for point in x:
        distances, order = (y - point).double().norm(dim=1).sort(stable=True)
        yield [(d, entries[i]) for d, i in zip(distances[:top].tolist(), order[:top].tolist())]


def nearest_pairs(x, most):
    """x (n, d) -> the `most` pairs of rows that are nearest to each other, nearest first:
    [(distance, i, j)], i < j.  A product in float64 finds them; their differences say how far, so
    that equal embeddings are at 0."""
    x, pairs = x.double() - x.double().mean(0), []
    for start in range(0, len(x), 256):
        d = torch.cdist(x[start:start + 256], x[start:], compute_mode="use_mm_for_euclid_dist")
        d[torch.ones_like(d, dtype=torch.bool).tril()] = torch.inf          # each pair once
        values, places = d.flatten().topk(min(most, d.numel()), largest=False)
        for value, place in zip(values.tolist(), places.tolist()):
            if value < torch.inf:
                pairs.append((value, start + place // d.shape[1], start + place % d.shape[1]))
        pairs = sorted(pairs)[:most]
    return sorted(((x[i] - x[j]).norm().item(), i, j) for _, i, j in pairs)


# ---------------------------------------------------------------------------- a sheet of images
def need_room(path, down, across):
    """UserError: a sheet with so many images down and across is too large for a JPEG."""
    if path and path.lower().endswith(".jpg") and max(down, across) > IN_JPEG:
        raise UserError(f"--to {path}: a JPEG has room for {IN_JPEG} images down or across, not "
                        f"for {max(down, across)}; name a .png")


def keep_photos(path, data, queries=()):
    """UserError: a sheet would take the place of a photo that is read, or of a link to it."""
    if not path or not os.path.exists(path):
        return
    there, photos = os.stat(path), [*queries]
    for split in filter(None, (data.test, data.gallery, data.train_plain)):
        photos += [data.folder / name for name in split.files or ()]
    for photo in photos:
        with contextlib.suppress(OSError):                  # of one that is not there
            if os.path.samestat(os.stat(photo), there):
                raise UserError(f"{path} is a photo that is read here: name another file")


def draw_sheet(path, answers):
    """A picture with a line of images for each of answers [(query, the entries nearest to it)], as
    many as for the one with fewest, framed as right or wrong if the query's class is known, with a
    caption."""
    try:
        font = ImageFont.truetype("DejaVuSans.ttf", 14)
    except OSError:
        font = ImageFont.load_default(14)                   # without umlauts
    tiles, most = [], min(len(nearest) for _, nearest in answers)
    for query, nearest in answers:
        for distance, (name, kind, source) in [(None, query), *nearest[:most]]:
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
            tile = ImageOps.pad(shown(source), (SIDE, SIDE), color="white")
            tile = ImageOps.expand(tile, 3, colour)
            tile = ImageOps.expand(tile, (GAP, GAP, GAP, LINES), "white")
            ImageDraw.Draw(tile).text((GAP, SIDE + 15), f"{line}\n{below}", colour, font)
            tiles.append(pil_to_tensor(tile))
    sheet = to_pil_image(make_grid(tiles, 1 + most, padding=0))
    caption = "Black: the query.  Numbers: distances to it, nearest first."
    if any(query[1] != UNKNOWN for query, _ in answers):
        caption += "  Green: right, the query's class.  Orange: wrong, another class."
    told = textwrap.wrap(caption, max(20, sheet.width // 9))
    sheet = ImageOps.expand(sheet, (0, 0, 0, 17 * len(told) + GAP), "white")
    place = GAP, sheet.height - 17 * len(told) - GAP
    ImageDraw.Draw(sheet).text(place, "\n".join(told), "black", font)
    sheet.save(path)

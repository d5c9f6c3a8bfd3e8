"""`python eval.py`: a checkpoint or an .npz judged, images searched for those nearest to a photo.

An entry (name, class, source) is an image: source is its path or, without a file, a PIL image.
"""
import collections
import contextlib
import os
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
from support.command_line import (SHARED, Parser, device, main, number, output, path, read_flags,
                                  refuse_idle)
from support.files import UserError, atomic, digest, listed, reason, sha256
from support.identity import code_of
from support.images import ImageFiles
from support.layouts import of_papers
from support.machine import versions
from support.photos import Folder, decode, identity, shown
from support.runs import read_checkpoint, show

SCRIPTS = {"jrd": jrd, "mdr": mdr, "dml_da": dml_da}
UNKNOWN = "–"                                           # shown for an image in no sub-folder
NO_LABEL = {"", "nan", "NaN", "None", "<NA>", "NaT"}    # what astype(str) makes of a missing label
SIDE, GAP, LINES = 128, 7, 41               # pixels of a sheet's image, around it, of its text
IN_JPEG = 350                           # images of a sheet across and down: 65,500 pixels at most
RIGHT, WRONG = "#009E73", "#D55E00"                     # colour-blind readers tell them apart
OTHER_IMAGES = ("note: these are not the images of the run; figures of classes that trained say "
                "nothing about new ones")


# ---------------------------------------------------------------------------- judging
def evaluate(args):
    """Judge an .npz or a checkpoint's images; with --query or --pairs search or compare these."""
    if args.arrays:
        embedded, ks = load_npz(args.file, device(args)), [1, 2, 4, 8]
    else:
        checkpoint = None                               # its hash, which a search needs
        if (args.query or args.pairs) and Path(args.file).is_file():
            checkpoint = sha256(args.file)
        network, cfg, transform = open_checkpoint(args.file, args.device, args.data_root)
        if args.gallery:
            data = images_to_search(args.gallery, transform)
        else:
            data = images_to_judge(cfg, transform, args.dataset, not args.no_cache)
        if args.query:
            return search(args, checkpoint, network, cfg, transform, data)
        if args.pairs:
            return compare(args, checkpoint, network, cfg, data)
        if args.gallery:
            return export_all(args, network, cfg, data)
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


def open_checkpoint(file, device="auto", data_root=None):
    """Open a run's last.pt -> its network, its settings, its script's transform of test images.
    data_root: where the datasets are now, without it $DML_DATA, or else where they were"""
    script = SCRIPTS[read_checkpoint(file)["paper"]]
    network, cfg = common.load(file, script.Network, device)
    cfg.data_root = data_root or path(os.environ.get("DML_DATA", cfg.data_root))
    return network, cfg, script.transforms(cfg)[2]


def images_to_judge(cfg, transform, dataset=None, cache=True):
    """The run's own images as the run split them.  Of another folder those classes that did not
    train, by name; of another dataset of the papers, or of glyphs, its test split -> Data"""
    own = not dataset
    if own:                                 # where it was, or as it was typed if all have moved
        dataset = getattr(cfg, "dataset_path", None) or cfg.dataset
        if not Path(dataset).is_dir() and Path(cfg.dataset).is_dir():
            dataset = cfg.dataset
    if dataset != "glyphs" and not of_papers(dataset):
        if own and not Path(dataset).is_dir():
            raise UserError(f"the run's folder of images, {dataset}, is not there (moved? "
                            "--dataset of eval.py says where to)")
        folder = Folder(dataset)
        if not has_images_of(folder, cfg):
            splits = folder.judged()
            if own and cfg.classes and not {*cfg.classes} & {*folder.images.values()} and (
                    identity(folder.path, splits, False)["test"] != (cfg.images or {}).get("test")):
                raise UserError(f"{dataset} has no class that trained and other test images, so it "
                                "is not the run's folder: --dataset of eval.py says where that is")
            folder.say_left_out(splits)
            splits["test"] = that_did_not_train(splits["test"], cfg.classes)
            return photos_of(splits, folder, transform)
    data = common.load_dataset(dataset, cfg.data_root, None, transform, cache, cfg.val)
    if data.identity != cfg.images:
        print(OTHER_IMAGES)
        data.train_plain = None
    if data.shared():
        kinds = data.test.present()
        trained = sorted({*kinds}.intersection(data.train.present()))
        print(f"note: {len(trained)} of the {len(kinds)} test classes trained: {listed(trained)}")
    return data


def images_to_search(path, transform):
    """All images of a folder, in sub-folders or not -> Data"""
    if not Path(path).is_dir():
        raise UserError(f"--gallery {path}: no such folder")
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
    except (UserError, OSError):            # too few classes to train on, a link to nowhere
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
    """Read an .npz -> {split: (embeddings (n, d) of floats, the names of n classes)}.  UserError:
    the file, or an array in it, is none that can be judged."""
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
    """Read points (n, d), in float64 if a number needs it, else in float32"""
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
    """Read the names of n classes.  1, 1.0 and "1" are one name; so are texts and their bytes, and
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


def export_all(args, network, cfg, data):
    """--gallery with --export: the embeddings of all images that can be read.  None is judged."""
    images = data.test
    x, _ = embed_entries(network, cfg, data.folder, images)
    if args.l2norm:
        x = F.normalize(x)
    kept = [i for i in range(len(images)) if i not in images.images.faults]
    data.test = common.Split(None, images.labels[kept], images.classes,
                             [images.files[i] for i in kept])
    print(f"{args.file}: {len(kept):,} embeddings, d = {x.shape[1]}")
    unknown = sum(data.test.classes[label] == UNKNOWN for label in data.test.labels)
    if unknown:
        print(f"note: {unknown:,} of them, in no sub-folder, have the class {UNKNOWN}")
    save_npz(args.export, {"test": (x, data.test.labels)}, data)


# ---------------------------------------------------------------------------- --query
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
    except Exception:                           # no file, or a damaged one, as in read_npz
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


# ---------------------------------------------------------------------------- command line
FLAGS = {  # default, kind, help (support.command_line.read_flags)
    "ks": ([], number(int, 1), "the K of Recall@K (default: the run's; of an .npz 1 2 4 8)"),
    "l2norm": (False, bool, "normalize the embeddings first"),
    "export": (None, output(".npz"), "the .npz to write the embeddings to"),
    "dataset": (None, "FOLDER", "where the run's folder of images is now, if it moved; or another "
                "folder: its test/ if it has one, else all of it, less the classes that trained"),
    "data_root": (None, "DIR", "where the datasets are now (default: $DML_DATA, else where they "
                  "were)"),
    "device": SHARED["device"],
    "no_cache": (False, bool, "decode images anew, and embed those to search anew"),
    "query": ([], "PHOTO", "print the nearest images"),
    "pairs": (None, number(int, 1), "print so many pairs of images, those nearest to each other"),
    "gallery": (None, "FOLDER", "with --query and --pairs: the images to search, in sub-folders or "
                "not (default: what Recall@K searches, the run's gallery or else its test images); "
                "with --export: the images to embed, all of them, without judging"),
    "top": (5, number(int, 1), "with --query: how many"),
    "to": (None, output(".png", ".jpg"), "with --query and --pairs: the .png or .jpg to draw them "
           "in")}


def parse_args(argv=None):
    parser = Parser("eval.py", protocol.__doc__)
    parser.add_argument("file", type=path, help="a checkpoint runs/RUN/last.pt, or an .npz of "
                        "embeddings")
    flags, args = read_flags(parser, argv, FLAGS)
    args.arrays = args.file.lower().endswith((".npz", ".npy"))
    refuse_idle(parser, flags, [
        ("with an .npz", args.arrays, "query pairs export dataset data_root no_cache"),
        ("without --query", not args.query, "top"),
        ("without --query, --pairs or --export", not (args.query or args.pairs or args.export),
         "gallery"),
        ("without --query or --pairs", not args.query and not args.pairs, "to"),
        ("with --query", args.query, "pairs"),
        ("with --query or --pairs", args.query or args.pairs, "ks export"),
        ("with --gallery", args.gallery, "dataset data_root ks"),
        ("with --gallery and --export", args.gallery and args.export, "no_cache")])
    return args


if __name__ == "__main__":
    main(evaluate, parse_args)

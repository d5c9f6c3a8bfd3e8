"""`python eval.py`: a checkpoint or an .npz judged; search.py has --query and --pairs."""
import os
from pathlib import Path
from unicodedata import normalize

import numpy as np
import torch
import torch.nn.functional as F

import common
import dml_da
import eval as protocol
import jrd
import mdr
from report.search import UNKNOWN, compare, embed_entries, search
from support.command_line import (SHARED, Parser, device, main, number, output, path, read_flags,
                                  refuse_idle)
from support.files import UserError, atomic, listed, reason, sha256
from support.images import ImageFiles
from support.layouts import of_papers
from support.photos import Folder, decode, identity
from support.runs import read_checkpoint, show

SCRIPTS = {"jrd": jrd, "mdr": mdr, "dml_da": dml_da}
NO_LABEL = {"", "nan", "NaN", "None", "<NA>", "NaT"}    # what astype(str) makes of a missing label
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

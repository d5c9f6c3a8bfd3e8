"""Embeddings and the images behind them: .npz files, the images nearest to a photo, a sheet of them.

An entry (name, class, source) stands for an image: name is its path, source that path, or the
uint8 tensor (3, h, w) of an image that has no file.
"""
import argparse
import contextlib
from pathlib import Path

import numpy as np
import PIL.Image
import torch
from PIL import ImageDraw, ImageFont
from torchvision.transforms.v2.functional import to_pil_image

from support.command_line import output
from support.files import UserError, atomic, digest, load_torch, reason, sha256
from support.identity import code_of, digest_of
from support.images import decode
from support.layouts import COUNTS, SMALLER, find_dataset, images_below

UNKNOWN = "–"                                           # the class of an image in no sub-folder
SIDE, SMALL_SIDE, GAP, TEXT, LINE = 192, 96, 12, 13, 17         # of a sheet, in pixels


# ---------------------------------------------------------------------------- .npz files
def load_npz(path):
    """An .npz of embeddings -> keyword arguments for judge.  UserError if it is not one."""
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            raise ValueError("it holds one array, no .npz of several")
        with content:
            arrays = {key: content[key] for key in content.files}
    except Exception as error:                  # np.load fails in a dozen ways on a damaged file
        raise UserError(f"cannot read {path}: {reason(error)}")
    wanted = ["embeddings", "labels"]
    if "gallery" in arrays or "gallery_labels" in arrays:
        wanted += ["gallery", "gallery_labels"]
    if missing := [key for key in wanted if key not in arrays]:
        raise UserError(f"{path} lacks the arrays {', '.join(missing)}")
    label_keys = [key for key in wanted if key.endswith("labels")]
    for key in wanted:
        if arrays[key].dtype.kind not in ("iuU" if key in label_keys else "iuf"):
            what = "whole numbers or texts, one a class" if key in label_keys else "numbers"
            raise UserError(f"{path}: {key} must be {what}, not {arrays[key].dtype}")
    if any(arrays[key].dtype.kind == "U" for key in label_keys):        # texts become numbers
        texts = {key: arrays[key].astype(str) for key in label_keys}
        names = np.unique(np.concatenate([labels.ravel() for labels in texts.values()]))
        arrays |= {key: np.searchsorted(names, labels) for key, labels in texts.items()}
    inputs = {}
    for key in wanted:
        kind = np.float64 if arrays[key].dtype == np.float64 else np.float32
        array = arrays[key].astype(np.int64 if key in label_keys else kind)
        inputs["test" if key == "embeddings" else key] = torch.from_numpy(array)
    return inputs


def names_of(data):
    """The paths and the class names of the images, as --export writes them beside their labels:
    labels are the places of their classes in `classes`."""
    arrays = {}
    for prefix, split in (("", data.test), ("gallery_", data.gallery), ("seen_", data.seen)):
        if split is not None:
            arrays[f"{prefix}classes"] = np.array(split.classes)
            if split.files:
                arrays[f"{prefix}paths"] = np.array(split.files)
    return arrays


# ---------------------------------------------------------------------------- which images
def folder_entries(folder):
    """A folder of images, in sub-folders or not -> entries, the class a sub-folder's name.

    UserError: no such folder, no image in it.
    """
    folder, entries = Path(folder), []
    if not folder.is_dir():
        raise UserError(f"no folder {folder}")
    for path in images_below(folder):
        inside = path.relative_to(folder).parts
        entries.append((str(path), inside[0] if len(inside) > 1 else UNKNOWN, path))
    if not entries:
        raise UserError(f"{folder} has no images")
    return entries


def split_entries(split, dataset, root):
    """A common.Split of load_dataset(dataset, root) -> entries"""
    names = [split.classes[label] for label in split.labels.tolist()]
    if split.files is None:
        return [(f"image {i}", name, split.images[i]) for i, name in enumerate(names)]
    own = SMALLER.get(dataset, dataset)
    folder = find_dataset(own, root) if own in COUNTS else Path(own)
    return [(str(folder / file), name, folder / file) for file, name in zip(split.files, names)]


def searched_entries(data, dataset, root):
    """What a query is searched in: the test images and the gallery of a Data -> entries"""
    return [entry for split in (data.test, data.gallery) if split is not None
            for entry in split_entries(split, dataset, root)]


def key_of(checkpoint, paper, entries):
    """What embeddings depend on, but for the device's rounding: checkpoint, code and images."""
    names, _, paths = zip(*entries)
    return digest(sha256(checkpoint), code_of(paper), torch.__version__,
                  digest_of(names, paths, "st_size", "st_mtime_ns"))


def keep_embeddings(checkpoint, paper, entries, x):
    """Write searched.pt beside the checkpoint: x (n, d), the embeddings of the entries.

    Images without files are not kept, nor is anything where the folder cannot be written.
    """
    if not any(torch.is_tensor(source) for _, _, source in entries):
        with contextlib.suppress(OSError):
            key = key_of(checkpoint, paper, entries)
            with atomic(Path(checkpoint).with_name("searched.pt"), "wb") as file:
                torch.save({"key": key, "embeddings": x.cpu()}, file)


def kept_embeddings(checkpoint, paper, entries, compute):
    """compute() -> (n, d), the embeddings of the entries; those that the end of the training or an
    earlier query has kept, while checkpoint, code and images are the same."""
    if any(torch.is_tensor(source) for _, _, source in entries):
        return compute()
    with contextlib.suppress(UserError, KeyError, TypeError):
        state = load_torch(Path(checkpoint).with_name("searched.pt"))
        if state["key"] == key_of(checkpoint, paper, entries):
            return state["embeddings"]
    x = compute()
    keep_embeddings(checkpoint, paper, entries, x)
    return x


def nearest_entries(x, searched, entries, top):
    """-> for each row of x the `top` entries nearest to it, [(distance, entry), ...].

    x (q, d), searched (n, d), the embeddings of the n entries.  Euclidean distances of differences,
    not of inner products, so that equal embeddings are at 0; in a tie the first in the list.
    """
    distances = torch.cdist(x, searched, compute_mode="donot_use_mm_for_euclid_dist")   # (q, n)
    distances, places = (part[:, :top].tolist() for part in distances.sort(dim=1, stable=True))
    return [[(distance, entries[i]) for distance, i in zip(*row)]
            for row in zip(distances, places)]


# ---------------------------------------------------------------------------- what people see
def print_nearest(query, nearest):
    """The images nearest to a query as an aligned table."""
    wide = max(len("class"), *(len(kind) for _, (_, kind, _) in nearest))
    print(f"\nquery {query}\n{'distance':>12}  {'class':<{wide}}  image")
    for place, (distance, (name, kind, _)) in enumerate(nearest, 1):
        print(f"{place:>3} {distance:8.4f}  {kind:<{wide}}  {name}")


def sheet_row(query, nearest):
    """A query and the images nearest to it as a row of draw_sheet."""
    cells = [(Path(query), ["query", Path(query).name], "black")]
    for distance, (_, kind, source) in nearest:
        cells.append((source, ["" if kind == UNKNOWN else kind, f"{distance:.4f}"], "dimgray"))
    return cells


def picture_file(text):
    """An argparse type: the name of a file that Pillow can write as a picture."""
    if PIL.Image.registered_extensions().get(Path(text).suffix.lower()) not in PIL.Image.SAVE:
        raise argparse.ArgumentTypeError(f"'{text}' must end in .png or .jpg")
    return output()(text)


def draw_sheet(path, rows):
    """A picture of images, a line of them for each of rows: [(source, lines of text, colour), ...].

    Up to SIDE pixels images are shown as they are, larger ones reduced to that; very small ones
    enlarged by a whole factor, so that no pixel is invented.  colour: of the frame and the text.
    """
    cells = [[(_thumbnail(source), *rest) for source, *rest in row] for row in rows]
    font = ImageFont.load_default(TEXT)
    side = max(max(image.size) for row in cells for image, _, _ in row)
    across, text = max(side, SMALL_SIDE) + GAP, max(len(c[1]) for row in cells for c in row)
    down = side + text * LINE + GAP
    sheet = PIL.Image.new("RGB", (across * max(map(len, cells)) + GAP, down * len(cells) + GAP),
                          "white")
    pen = ImageDraw.Draw(sheet)
    for line, row in enumerate(cells):
        for column, (image, lines, colour) in enumerate(row):
            left, top = GAP + column * across, GAP + line * down
            x = left + (across - GAP - image.width) // 2
            y = top + side - image.height
            pen.rectangle((x - 3, y - 3, x + image.width + 2, y + image.height + 2), colour)
            sheet.paste(image, (x, y))
            for i, words in enumerate(lines):
                while font.getlength(words) > across - GAP:             # cut to fit
                    words = words[:-1]
                pen.text((left + (across - GAP - font.getlength(words)) / 2,
                          top + side + 4 + i * LINE), words, colour, font)
    path = Path(path)
    with atomic(path, "wb") as file:
        sheet.save(file, PIL.Image.registered_extensions()[path.suffix.lower()])


def _thumbnail(source):
    image = to_pil_image(source) if torch.is_tensor(source) else decode(source)
    if max(image.size) > SIDE:
        image.thumbnail((SIDE, SIDE), PIL.Image.Resampling.LANCZOS)
    factor = max(1, SMALL_SIDE // max(image.size))
    return image.resize((factor * image.width, factor * image.height), PIL.Image.Resampling.NEAREST)

"""Around the search: .npz files, the images behind embeddings, those nearest to a photo, a sheet.

An entry (name, class, source) stands for an image: name is its path, source that path, or the
uint8 tensor (3, h, w) of an image that has no file.
"""
from pathlib import Path

import numpy as np
import PIL.Image
import torch
from PIL import ImageDraw, ImageFont, ImageOps
from torchvision.transforms.v2.functional import to_pil_image

from support.files import UserError, atomic, reason
from support.images import decode
from support.layouts import COUNTS, SMALLER, find_dataset, images_below

UNKNOWN = "–"                                           # the class of an image in no sub-folder
SIDE, GAP, TEXT, LINE = 128, 10, 14, 17                 # of a sheet, in pixels
RIGHT, WRONG = "#009E73", "#D55E00"                     # colour-blind readers tell them apart


def load_npz(path):
    """An .npz of embeddings -> keyword arguments for judge.  UserError if it is not one."""
    try:
        with np.load(path, allow_pickle=False) as content:
            arrays = {key: content[key] for key in content.files}
    except Exception as error:                  # np.load fails in a dozen ways on a damaged file
        raise UserError(f"cannot read {path}: {reason(error)}")
    wanted = ["embeddings", "labels"]
    if arrays.keys() & {"gallery", "gallery_labels"}:
        wanted += ["gallery", "gallery_labels"]
    if missing := [key for key in wanted if key not in arrays]:
        raise UserError(f"{path} lacks the arrays {', '.join(missing)}")
    for key in wanted:
        what, kinds = ("whole numbers or texts, one a class", "iuU") if key.endswith(
            "labels") else ("numbers", "iuf")
        if arrays[key].dtype.kind not in kinds:
            raise UserError(f"{path}: {key} must be {what}, not {arrays[key].dtype}")
    labels = [arrays[key] for key in wanted[1::2]]
    if any(part.dtype.kind == "U" for part in labels):                  # texts become numbers
        names = np.unique(np.concatenate([part.ravel().astype(str) for part in labels]))
        arrays |= {key: np.searchsorted(names, arrays[key].astype(str)) for key in wanted[1::2]}
    for key in wanted:
        single = np.int64 if key.endswith("labels") else np.float32
        kind = np.float64 if arrays[key].dtype == np.float64 else single
        arrays[key] = torch.from_numpy(arrays[key].astype(kind))
    return {"test" if key == "embeddings" else key: arrays[key] for key in wanted}


def names_of(data):
    """The paths and the class names of the images, as --export writes them beside their labels:
    labels are the places of their classes in `classes`."""
    splits = {"": data.test, "gallery_": data.gallery, "seen_": data.seen}
    arrays = {f"{key}classes": split.classes for key, split in splits.items() if split}
    arrays |= {f"{key}paths": split.files for key, split in splits.items() if split and split.files}
    return {key: np.array(names) for key, names in arrays.items()}


def folder_entries(folder):
    """A folder of images, in sub-folders or not -> entries, the class a sub-folder's name."""
    folder, entries = Path(folder), []
    if not folder.is_dir():
        raise UserError(f"no folder {folder}")
    for path in images_below(folder):
        *classes, _ = path.relative_to(folder).parts
        entries.append((str(path), classes[0] if classes else UNKNOWN, path))
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


def nearest_entries(x, searched, entries, top):
    """-> for each row of x the `top` entries nearest to it, [(distance, entry), ...].

    x (q, d), searched (n, d), the embeddings of the n entries.  Euclidean distances of differences,
    not of inner products, so that equal embeddings are at 0; in a tie the first in the list.
    """
    distances = torch.cdist(x.double(), searched.double(),
                            compute_mode="donot_use_mm_for_euclid_dist")                # (q, n)
    distances, places = (part[:, :top].tolist() for part in distances.sort(dim=1, stable=True))
    return [[(d, entries[i]) for d, i in zip(*row)] for row in zip(distances, places)]


def sheet_row(query, nearest):
    """A query and the images nearest to it, entries, as a row of draw_sheet; right and wrong ones
    have a frame of another colour where the query's class is known."""
    name, own, source = query
    cells = [(source, ["query", own if own != UNKNOWN else Path(name).name], "black")]
    for distance, (_, kind, source) in nearest:
        colour = "dimgray" if own == UNKNOWN else RIGHT if kind == own else WRONG
        cells.append((source, ["" if kind == UNKNOWN else kind, f"{distance:.4f}"], colour))
    return cells


def draw_sheet(path, rows):
    """A picture of images, a line of them for each of rows: [(source, lines of text, colour), ...],
    the colour that of the frame and the text."""
    font, height = ImageFont.load_default(TEXT), max(len(cell[1]) for row in rows for cell in row)
    across, down = SIDE + 2 * GAP, SIDE + 2 * GAP + LINE * height
    sheet = PIL.Image.new("RGB", (across * max(map(len, rows)), down * len(rows)), "white")
    pen = ImageDraw.Draw(sheet)
    for line, row in enumerate(rows):
        for column, (source, lines, colour) in enumerate(row):
            image = to_pil_image(source) if torch.is_tensor(source) else decode(source)
            image = ImageOps.expand(ImageOps.contain(image, (SIDE, SIDE)), 3, colour)
            left, top = GAP + column * across, GAP + line * down
            sheet.paste(image, (left, top))
            for i, words in enumerate(lines):
                while font.getlength(words) > SIDE:                     # cut to fit
                    words = words[:-1]
                pen.text((left, top + SIDE + 8 + i * LINE), words, colour, font)
    with atomic(path, "wb") as file:
        sheet.save(file, PIL.Image.registered_extensions()[Path(path).suffix.lower()])

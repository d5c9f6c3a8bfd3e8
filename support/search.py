"""Around the search: .npz files, the images behind embeddings, those nearest to a photo, a sheet.

An entry (name, class, source) is an image: source is its path or, without a file, uint8 (3, h, w).
"""
from pathlib import Path

import numpy as np
import PIL.Image
import torch
from PIL import ImageDraw, ImageFont, ImageOps
from torchvision.transforms.v2.functional import to_pil_image

from support.files import UserError, reason
from support.images import decode
from support.layouts import files_below, say_left_out

UNKNOWN = "–"                                           # the class of an image in no sub-folder
SIDE, GAP, TEXT, LINE = 128, 10, 14, 17                 # of a sheet, in pixels
RIGHT, WRONG = "#009E73", "#D55E00"                     # colour-blind readers tell them apart


def load_npz(path):
    """An .npz of embeddings -> keyword arguments for judge.  UserError if it is not one."""
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            raise ValueError("it holds one array, no .npz of several")
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
        names = np.unique(np.concatenate([arrays[key].ravel().astype(str) for key in label_keys]))
        arrays |= {key: np.searchsorted(names, arrays[key].astype(str)) for key in label_keys}
    for key in keys:
        floats = np.float32 if np.can_cast(arrays[key].dtype, np.float32) else np.float64
        dtype = np.int64 if key in label_keys else floats
        arrays[key] = torch.from_numpy(arrays[key].astype(dtype))
    return {"test" if key == "embeddings" else key: arrays[key] for key in keys}


def names_of(data):
    """The images' paths and their classes' names by label, which --export writes too."""
    splits = {"": data.test, "gallery_": data.gallery, "seen_": data.seen}
    return {part + what: np.array(names)
            for what, field in (("classes", "classes"), ("paths", "files"))
            for part, split in splits.items() if (names := getattr(split, field, None))}


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
    return [(str(path), next((name for name in path.relative_to(folder).parts[:-1]
                              if name not in parts), UNKNOWN), path) for path in images]


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
            for i, words in enumerate(lines):
                while font.getlength(words) > SIDE:                     # cut to fit
                    words = words[:-1]
                pen.text((left, top + SIDE + 8 + i * LINE), words, colour, font)
    sheet.save(path)

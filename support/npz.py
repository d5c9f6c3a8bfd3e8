"""Embeddings in .npz files: what eval.py reads, and the names that --export writes beside them."""
import numpy as np
import torch

from support.files import UserError, reason


def load_npz(path):
    """An .npz of embeddings -> keyword arguments for judge.  UserError if it is not one."""
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            raise ValueError("it holds one array, no .npz of several")
        with found as file:
            arrays = {key: file[key] for key in file.files}
    except Exception as error:                  # np.load fails in a dozen ways on a damaged file
        raise UserError(f"cannot read {path}: {reason(error)}")
    missing = {"embeddings", "labels"} - set(arrays)
    if ("gallery" in arrays) != ("gallery_labels" in arrays):
        missing |= {"gallery", "gallery_labels"} - set(arrays)
    if missing:
        raise UserError(f"{path} lacks the arrays {', '.join(sorted(missing))}")
    wanted = {k: arrays[k] for k in ("embeddings", "labels", "gallery", "gallery_labels")
              if k in arrays}
    for key, array in wanted.items():
        labels = key.endswith("labels")
        if array.dtype.kind not in ("iuU" if labels else "iuf"):
            what = "whole numbers or texts, one a class" if labels else "numbers"
            raise UserError(f"{path}: {key} must be {what}, not {array.dtype}")
    keys = [key for key in wanted if key.endswith("labels")]
    if any(wanted[key].dtype.kind == "U" for key in keys):  # texts become numbers
        names = np.unique(np.concatenate([wanted[key].astype(str).ravel() for key in keys]))
        wanted |= {key: np.searchsorted(names, wanted[key].astype(str)) for key in keys}
    found = {}
    for key, array in wanted.items():
        kind = np.int64 if key.endswith("labels") else np.float64 if array.dtype == np.float64 \
            else np.float32
        found["test" if key == "embeddings" else key] = torch.from_numpy(array.astype(kind))
    return found


def names_of(data):
    """The paths and the class names of the images, as --export writes them beside their labels:
    labels are the places of their classes in `classes`."""
    found = {}
    for prefix, split in (("", data.test), ("gallery_", data.gallery), ("seen_", data.seen)):
        if split is not None:
            found[f"{prefix}classes"] = np.array(split.classes)
            if split.files:
                found[f"{prefix}paths"] = np.array(split.files)
    return found

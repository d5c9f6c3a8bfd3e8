"""--sheet: queries and the images that a trained network finds, a PNG or JPEG (Pillow alone)."""
import argparse
from pathlib import Path

import numpy as np

import common
from eval import rebuild
from support.embeddings import draw_sheet, nearest_entries, sheet_row, split_entries


def draw_nearest(path, checkpoint, queries=6):
    """A test image of each of some random classes, which the network has never seen, and the five
    images nearest to it."""
    if Path(path).suffix not in (".png", ".jpg"):
        raise common.UserError(f"--to {path} must end in .png or .jpg")
    where = argparse.Namespace(data_root=None, dataset=None, device="auto", no_cache=False)
    network, cfg, data = rebuild(checkpoint, where)
    parts = common.embeddings(network.embed, data, cfg, ("test", "gallery"))
    x, labels, entries = parts["test"].cpu(), parts["labels"], split_entries(
        data.test, cfg.dataset, cfg.data_root)
    searched = x, entries
    if data.gallery:
        searched = parts["gallery"].cpu(), split_entries(data.gallery, cfg.dataset, cfg.data_root)
    draw, rows = np.random.RandomState(0), []
    for c in draw.permutation(labels.unique())[:queries]:
        i = draw.choice(np.flatnonzero(labels == c))
        (nearest,) = nearest_entries(x[i:i + 1], *searched, 6)
        others = [pair for pair in nearest if pair[1] is not entries[i]]        # not itself
        rows.append(sheet_row(entries[i], others[:5]))
    draw_sheet(path, rows)

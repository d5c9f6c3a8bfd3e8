"""--sheet: queries and the images that a trained network finds, a PNG or JPEG (Pillow alone)."""
import argparse
from pathlib import Path

import numpy as np

import common
from eval import rebuild
from support import embeddings


def draw_nearest(path, checkpoint, unseen=4, seen=2):
    """Images of random classes and the five images nearest to each: first of test classes, which
    the network has never seen, then of training classes."""
    if Path(path).suffix not in (".png", ".jpg"):
        raise common.UserError(f"--to {path} must end in .png or .jpg")
    where = argparse.Namespace(data_root=None, dataset=None, device="auto", no_cache=False)
    network, cfg, data = rebuild(checkpoint, where)
    parts = {name: part.cpu()
             for name, part in common.embeddings(network.embed, data, cfg).items()}

    def with_entries(name, split):
        return parts[name], embeddings.split_entries(split, cfg.dataset, cfg.data_root)

    tests, trained = with_entries("test", data.test), with_entries("seen", data.seen)
    searched = with_entries("gallery", data.gallery) if data.gallery else tests
    draw = np.random.RandomState(0)
    rows = nearest_rows(tests, parts["labels"], searched, unseen, draw)
    embeddings.draw_sheet(path, rows + nearest_rows(trained, parts["seen_labels"], trained, seen,
                                                    draw))


def nearest_rows(asked, labels, searched, queries, draw):
    """A query of each of some random classes and its five nearest, as rows of draw_sheet.

    asked, searched: (embeddings (n, d), entries); a query does not find itself.
    """
    (x, entries), rows = asked, []
    for c in draw.permutation(labels.unique())[:queries]:
        i = draw.choice(np.flatnonzero(labels == c))
        (nearest,) = embeddings.nearest_entries(x[i:i + 1], *searched, 6)
        others = [found for found in nearest if found[1] is not entries[i]]
        rows.append(embeddings.sheet_row(entries[i], others[:5]))
    return rows

"""--sheet: queries and the images that a trained network finds, a PNG (Pillow alone)."""
import argparse
from pathlib import Path

import numpy as np
import PIL.Image

import common
from eval import rebuild
from report.figures import COLOURS
from support import embeddings


def draw_nearest(path, checkpoint, unseen=4, seen=2):
    """Images of random classes and the five images nearest to each, right and wrong framed: first
    of test classes, which the network has never seen, then of training classes."""
    if Path(path).suffix != ".png":
        raise common.UserError(f"--to {path} must end in .png")
    where = argparse.Namespace(data_root=None, dataset=None, device="auto", no_cache=False)
    network, cfg, data = rebuild(checkpoint, where)
    parts = {name: part.cpu()
             for name, part in common.embeddings(network.embed, data, cfg).items()}

    def with_entries(name, split):
        return parts[name], embeddings.split_entries(split, cfg.dataset, cfg.data_root)

    tests, trained = with_entries("test", data.test), with_entries("seen", data.seen)
    searched = with_entries("gallery", data.gallery) if data.gallery else tests
    draw = np.random.RandomState(0)
    rows = nearest_rows(tests, parts["labels"], searched, unseen, "unseen", draw)
    rows += nearest_rows(trained, parts["seen_labels"], trained, seen, "seen", draw)
    embeddings.draw_sheet(path, rows)
    sheet = PIL.Image.open(path)                # 256 colours are a third of it, mixed by dots
    sheet.quantize(palette=sheet.quantize(method=PIL.Image.Quantize.MAXCOVERAGE)).save(
        path, optimize=True)


def nearest_rows(asked, labels, searched, queries, kind, draw):
    """A query of each of some random classes and its five nearest, as rows of draw_sheet.

    asked, searched: (embeddings (n, d), entries); a query does not find itself.
    """
    (x, entries), rows = asked, []
    for c in draw.permutation(labels.unique())[:queries]:
        i = draw.choice(np.flatnonzero(labels == c))
        _, own, source = entries[i]
        rows.append([(source, [own, f"{kind} query"], "black")])
        (nearest,) = embeddings.nearest_entries(x[i:i + 1], *searched, 6)
        for _, name, source in [entry for _, entry in nearest if entry is not entries[i]][:5]:
            right = name == own
            rows[-1].append((source, [name, "right" if right else "wrong"],
                             COLOURS[2] if right else COLOURS[1]))
    return rows

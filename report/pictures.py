"""Pictures of embeddings, from checkpoints: t-SNE, test images where it puts them (matplotlib,
scikit-learn), sheets of retrieved images (Pillow alone).

Each draw_... makes a picture of rows: draw(path, rows, get), get(row) -> its finished runs.
"""
import argparse
import functools

import numpy as np
import PIL.Image

import common
from eval import rebuild
from report.experiments import NAMES, SCRIPTS
from report.figures import COLOURS, MARKS, for_figures, panels
from support import embeddings as query


class NoCheckpoint(common.UserError):
    """A run came without its last.pt, as those in results/ do."""


@functools.cache
def embedded(checkpoint, data_root):
    """A checkpoint -> embeddings and labels as eval.judge takes them."""
    if not checkpoint.exists():
        raise NoCheckpoint(f"no file {checkpoint}")
    where = argparse.Namespace(data_root=data_root, dataset=None, device="auto", no_cache=False)
    network, cfg, data = rebuild(checkpoint, where)
    return {name: part.cpu() for name, part in
            common.embeddings(network.embed, data, cfg).items()}


def images_of(run):
    """The data of a run as it sees test images, as `embedded` has them: --val held out."""
    prefix, _, whole = SCRIPTS[run.paper].transforms(run.cfg)
    return common.load_dataset(run.cfg.dataset, run.cfg.data_root, prefix, whole,
                               val=getattr(run.cfg, "val", None))


def square(image, side):
    """A uint8 image (3, h, w) -> (side, side, 3)"""
    return np.asarray(PIL.Image.fromarray(image.permute(1, 2, 0).numpy()).resize((side, side)))


# ---------------------------------------------------------------------------- t-SNE
def tsne(x, most=5000):
    """-> places in [0, 1]², indices; of more than `most` points a random choice"""
    with for_figures():
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits     # comes with scikit-learn
    index = np.random.RandomState(0).permutation(len(x))[:most]
    method = TSNE(perplexity=min(30, (len(index) - 1) / 3), init="pca", random_state=0)
    with threadpool_limits(1):                          # threads that wait for each other crawl
        places = method.fit_transform(x[index].numpy())    # where something else computes
    return (places - places.min(0)) / np.ptp(places, axis=0), index


def draw_tsne(path, rows, get, classes=None):
    """A panel per row, its first seed: images of a few random training classes (None: of
    all), each class in a colour and with a mark of its own."""
    rows = [row for row in rows if get(row)]
    figure, axes = panels(len(rows), 4, 4)
    for axis, row in zip(axes, rows):
        run = get(row)[0]
        parts = embedded(run.folder / "last.pt", run.cfg.data_root)
        x, y = parts["seen"], parts["seen_labels"].numpy()
        if classes:
            chosen = np.isin(y, np.random.RandomState(0).permutation(np.unique(y))[:classes])
            x, y = x[chosen], y[chosen]
        places, index = tsne(x)
        for i, c in enumerate(np.unique(y)):
            axis.scatter(*places[y[index] == c].T, s=30 if len(x) < 500 else 10, linewidths=0,
                         color=COLOURS[i % 7], marker=MARKS[i // 7 % len(MARKS)])
        axis.set(title=f"{row.name} ({NAMES[row.dataset]})", xticks=[], yticks=[])
    figure.savefig(path)


def draw_thumbnails(path, rows, get, cells=30, side=40):
    """DML-DA Fig. 7-9: test images where t-SNE puts them, at most one in a cell of a grid."""
    run = get(rows[0])[0]
    places, index = tsne(embedded(run.folder / "last.pt", run.cfg.data_root)["test"])
    corners = (places * (cells - 1)).round().astype(int) * side         # (n, 2) pixels
    first = {}                                                          # corner: image
    for (column, line), i in zip(corners, index):
        first.setdefault((column, line), i)
    images = images_of(run).test.images
    sheet = np.full((cells * side, cells * side, 3), 255, np.uint8)
    for (column, line), i in first.items():
        sheet[line:line + side - 2, column:column + side - 2] = square(images[i], side - 2)
    PIL.Image.fromarray(sheet).quantize().save(path, optimize=True)


# ---------------------------------------------------------------------------- retrieved images
def draw_sheet(path, rows, get):
    """The sheet of the first finished run of the paper's method."""
    runs = [run for row in rows if row.flags == "" for run in get(row)]
    if not runs:
        raise common.UserError("the paper's method has no finished run")
    draw_nearest(path, runs[0], runs[0].folder / "last.pt")


def draw_nearest(path, run, checkpoint, unseen=4, seen=2):
    """Images of random classes and the five images nearest to each, right and wrong framed: first
    of test classes, which the network has never seen, then of training classes."""
    parts, data = embedded(checkpoint, run.cfg.data_root), images_of(run)

    def with_entries(x, split):
        return parts[x], query.split_entries(split, run.cfg.dataset, run.cfg.data_root)

    tests, trained = with_entries("test", data.test), with_entries("seen", data.seen)
    searched = with_entries("gallery", data.gallery) if data.gallery else tests
    draw = np.random.RandomState(0)
    rows = nearest_rows(tests, parts["labels"], searched, unseen, "unseen", draw)
    rows += nearest_rows(trained, parts["seen_labels"], trained, seen, "seen", draw)
    query.draw_sheet(path, rows)
    sheet = PIL.Image.open(path)                # 256 colours are a third of it, mixed by dots
    sheet.quantize(palette=sheet.quantize(method=PIL.Image.Quantize.MAXCOVERAGE)).save(
        path, optimize=True)


def nearest_rows(asked, labels, searched, queries, kind, draw):
    """A query of each of some random classes and its five nearest, as rows of query.draw_sheet.

    asked, searched: (embeddings (n, d), entries); a query does not find itself.
    """
    (x, entries), rows = asked, []
    for i in [draw.choice(np.flatnonzero(labels == c))
              for c in draw.permutation(labels.unique())[:queries]]:
        _, own, source = entries[i]
        rows.append([(source, [own, f"{kind} query"], "black")])
        (nearest,) = query.nearest_entries(x[i:i + 1], *searched, 6)
        for _, name, source in [entry for _, entry in nearest if entry is not entries[i]][:5]:
            right = name == own
            rows[-1].append((source, [name, "right" if right else "wrong"],
                             COLOURS[2] if right else COLOURS[1]))
    return rows

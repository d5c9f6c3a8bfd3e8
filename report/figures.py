"""Curves of a figure's runs, with intervals over seeds (matplotlib); sheets (Pillow)."""
import importlib
import itertools
import os
import sys
from pathlib import Path

import numpy as np

import common
from eval import confidence_interval, parse_args
from report.experiments import EXPERIMENTS, NAMES, NOTES, label
from report.records import PERCENT, pivot, seeds_of
from report.tables import records_of
from support.files import UserError, reason
from support.search import draw_sheet, nearest_entries, rebuild, split_entries

# Okabe and Ito's colours, which colour-blind readers tell apart; line and mark tell them in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKS = "os^Dv*PX<>hpd8"
LINES = "-", "--", "-.", ":", (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 3))
AXES = {"loss": "training loss", "R@1": "R@1 on test classes (%)",
        "seen R@1": "R@1 on training classes (%)", "NMI": "NMI (%)", "lambda": "λ",
        "norm mean": "mean of ‖e‖", "norm cv": "coefficient of variation of ‖e‖"}


# ---------------------------------------------------------------------------- a picture
def needed(module):
    """Import what only figures and pages need.  UserError if a package is missing or broken."""
    os.environ["MPLBACKEND"] = "agg"        # pyplot's, unused here: a notebook's may not import
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise UserError(f"{reason(error)}; figures need: pip install -r report/requirements.txt")


def panels(n, width=4.4, height=3.4):
    """-> figure, n axes, at most three in a row"""
    needed("matplotlib").rcParams.update({
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3,
        "axes.titlesize": 10, "axes.axisbelow": True, "legend.frameon": False, "figure.dpi": 130,
        "figure.titlesize": 10})
    across = 2 if n == 4 else min(n, 3)
    down = -(-n // across)
    figure = needed("matplotlib.figure").Figure((width * across, height * down + 0.5),
                                                layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1)           # inches between panels
    return figure, [figure.add_subplot(down, across, i) for i in range(1, n + 1)]


def save(figure, path):
    """Write the picture, with one legend below all panels."""
    names = {}
    for axis in figure.axes:
        for handle, name in zip(*axis.get_legend_handles_labels()):
            names[name] = handle
    figure.legend(names.values(), names, loc="outside lower center", ncols=min(4, len(names)))
    figure.savefig(path, bbox_inches="tight")


def draw_curves(path, curves, title, bars=False):
    """curves: (panel, series, points) of a curve or of a part of it; panel: (title, x label, y
    label); points: [(x, values of the seeds)].  A panel each with the means and, as bands, their
    95% intervals; with bars the seeds' standard deviations."""
    curves_in = {}
    for panel, name, points in curves:
        curves_in.setdefault(panel, {}).setdefault(name, []).extend(points)
    if not curves_in:
        raise UserError("nothing to draw: not every value has run, or no epoch")
    figure, axes = panels(len(curves_in))
    order, most = [], 0
    for axis, ((of_panel, x_label, y_label), series) in zip(axes, curves_in.items()):
        for name, points in series.items():
            if name not in order:
                order.append(name)
            i = order.index(name)               # lines thinner one by one: none hides another
            style = dict(color=COLOURS[i % 7], ls=LINES[i % 7], lw=max(3 - 0.4 * i, 1.4), ms=5)
            x, seeds = zip(*points)
            mean = np.array([np.mean(values) for values in seeds])
            most = max(most, *map(len, seeds))
            if bars:
                std = [np.std(values, ddof=min(1, len(values) - 1)) for values in seeds]
                axis.errorbar(x, mean, std, marker=MARKS[i], elinewidth=0.8, capsize=2, label=name,
                              **style)
                continue
            half = np.full(len(x), np.nan)
            for n, values in enumerate(seeds):
                if len(values) > 2:
                    half[n] = confidence_interval(values)[1]
            axis.plot(x, mean, marker="o" if len(x) == 1 else None, label=name, **style)
            axis.fill_between(x, mean - half, mean + half, color=COLOURS[i % 7], alpha=0.18, lw=0)
        axis.set(title=of_panel, xlabel=x_label, ylabel=y_label)
        if x_label == "epoch":
            axis.xaxis.get_major_locator().set_params(integer=True)
    if bars and most > 1:
        title += "\nbars: standard deviations over seeds"
    elif most > 2:
        title += "\nbands: 95% intervals over seeds"
    figure.suptitle(title)
    save(figure, path)


def drawn(path, draw, *args):
    """Draw a picture anew -> its name; None if it cannot be drawn, and a line says why."""
    path.unlink(missing_ok=True)
    try:
        draw(path, *args)
        return path.name
    except UserError as error:
        print(f"skipped {path.name}: {error}", file=sys.stderr)


def told_seeds(seeds):
    """'seed 3', 'seeds 0 to 2', 'seeds 0, 2'"""
    seeds = sorted(set(seeds))
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    if seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return "seeds " + ", ".join(map(str, seeds))


# ---------------------------------------------------------------------------- of an experiment
def shared_seeds(rows):
    """The seeds that each row has finished"""
    return set.intersection(*({run.cfg.seed for run in row.finished} for row in rows))


def sweep(rows, metrics):
    """A panel per dataset and metric, a curve per series: over the seeds that every point has."""
    for dataset, on_dataset in itertools.groupby(rows, lambda row: row.dataset):
        on_dataset = list(on_dataset)
        table, seeds = pivot(records_of(on_dataset)), shared_seeds(on_dataset)
        for metric, row in itertools.product(metrics, on_dataset if seeds else ()):
            series, symbol, x = row.name
            by_seed = table[row.name, "last epoch", metric]
            values = [by_seed[seed] for seed in by_seed if seed in seeds]
            yield (NAMES[dataset], symbol, AXES.get(metric, metric)), series, [(x, values)]


def epochs(rows, metrics, of_paper=False):
    """A panel per dataset or paper and metric, a curve per row over the epochs of its logs."""
    for row, metric in itertools.product(rows, metrics):
        points = by_epoch([run.log for run in row.finished], metric)
        if points:
            title = NAMES[row.key[0] if of_paper else row.dataset]
            yield (title, "epoch", AXES[metric]), label(row.name), points


def levels(rows, metrics):
    """MDR Fig. 6: the shares of positive and of negative pairs at each level in the last epoch."""
    for row in rows:
        panel = (NAMES[row.dataset], "level (learned value, in σ* from μ*)",
                 "share of the pairs (%)")
        logs = [run.log[-1] for run in row.finished]
        for kind in ("positive pairs", "negative pairs"):
            shares = 100 * np.array([log[f"{kind} by level"] for log in logs])
            yield panel, kind, list(zip(np.mean([log["levels"] for log in logs], 0), shares.T))


CURVES = {"sweep": sweep, "epochs": epochs, "levels": levels}          # Experiment.picture


def draw_experiment(path, rows, title):
    """The picture of an experiment.  title: its paper's and its number"""
    experiment, runs = EXPERIMENTS[rows[0].key], []
    for row in rows:
        runs += row.finished
    networks = ", ".join(dict.fromkeys(run.cfg.backbone for run in runs))
    note = NOTES.get((rows[0].dataset, rows[0].key[0]), ("", ""))[0]
    seeds = {run.cfg.seed for run in runs}
    if experiment.picture == "sweep":
        seeds = shared_seeds(rows) or seeds
    title += f": backbone {networks}, {told_seeds(seeds)}{note}"
    curves = CURVES[experiment.picture](rows, experiment.columns)
    draw_curves(path, curves, title, experiment.picture != "epochs")


# ---------------------------------------------------------------------------- of any runs
def by_epoch(logs, metric):
    """The logs of runs -> [(epoch, values of the seeds)] of the epochs that were evaluated."""
    unit, points = 100 if PERCENT.fullmatch(metric) else 1, {}
    for log in logs:
        for row in log:
            if metric in row:
                points.setdefault(row["epoch"], []).append(unit * row[metric])
    return sorted(points.items())


def loss_of(logs):
    """The logs of several settings -> what their losses share, its axis.  A log's row has the loss,
    the paper's loss without a regularizer, the regularizers."""
    terms = {list(row)[2] for log in logs for row in log if len(row) > 2}
    if len(terms) == 1:
        (term,) = terms
        return term, f"{term} loss, without regularizer"
    return "loss", "training loss (objectives differ)"


def draw_runs(path, runs, names):
    """--curves: loss, unseen and seen R@1 against the epoch.  A setting's name is a curve over its
    seeds, a run's a curve of its own."""
    if path.suffix not in (".png", ".svg"):
        raise UserError(f"--out {path} must end in .png or .svg")
    logs, seeds = {}, []
    for name in names:
        folders = seeds_of(runs, name, "log.jsonl")
        for seed, run in folders.items():
            if run.folder.name == Path(name).name:
                folders = {seed: run}
        logs[name] = [run.log for run in folders.values()]
        seeds += folders
    loss, axis = "loss", AXES["loss"]
    if len(names) > 1:
        loss, axis = loss_of(itertools.chain(*logs.values()))
    curves = []
    for metric, y_label in ((loss, axis), ("R@1", AXES["R@1"]), ("seen R@1", AXES["seen R@1"])):
        for name in names:
            points = by_epoch(logs[name], metric)
            if points:
                curves.append((("", "epoch", y_label), name, points))
    draw_curves(path, curves, told_seeds(seeds))
    print(f"wrote {path}")


# ---------------------------------------------------------------------------- images
def draw_nearest(path, checkpoint):
    """--sheet: a test image of each of six random test classes, and the five test or gallery images
    nearest to it."""
    if path.suffix not in (".png", ".jpg"):
        raise UserError(f"--out {path} must end in .png or .jpg")
    _, network, cfg, data = rebuild(parse_args([str(checkpoint)]))
    embedded = common.embed_splits(network.embed, data, cfg, "test", "gallery")
    (queries, labels), (gallery, _) = embedded["test"], embedded.get("gallery", embedded["test"])
    entries = split_entries(data.test, data.folder)
    searched = split_entries(data.gallery, data.folder) if data.gallery else entries
    draw, rows = np.random.RandomState(0), []
    for c in draw.permutation(labels.unique())[:6]:
        i = draw.choice(np.flatnonzero(labels == c))
        (nearest,) = nearest_entries(queries[i:i + 1].cpu(), gallery.cpu(), searched, 6)
        rows.append((entries[i], [pair for pair in nearest if pair[1] is not entries[i]][:5]))
    draw_sheet(path, rows)
    print(f"wrote {path}")

"""Curves of a figure's runs, with intervals over seeds (matplotlib); sheets (Pillow)."""
import importlib
import itertools
import sys
from pathlib import Path

import numpy as np

import common
from eval import confidence_interval
from report.experiments import NAMES
from report.judge import draw_sheet, entries_of, images_to_judge, nearest_entries, open_checkpoint
from report.tables import PERCENT, by_seed, label, seeds_of
from support.files import UserError

# Okabe and Ito's colours, which colour-blind readers tell apart; line and mark tell them in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKS, LINES = "os^Dv*PX<>hpd8", ("-", "--", "-.", ":")
AXES = {"loss": "training loss", "R@1": "R@1 on test classes (%)",
        "seen R@1": "R@1 on training classes (%)", "NMI": "NMI (%)", "lambda": "λ",
        "norm mean": "mean of ‖e‖", "norm cv": "coefficient of variation of ‖e‖"}


# ---------------------------------------------------------------------------- a picture
def needed(module):
    """Import what only figures and pages need.  UserError if a package is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{error}; figures need: pip install -r report/requirements.txt")


def panels(n, width=4.4, height=3.4):
    """-> figure, n axes, at most three in a row"""
    needed("matplotlib").rcParams.update({
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3,
        "axes.titlesize": 10, "axes.axisbelow": True, "legend.frameon": False, "figure.dpi": 130})
    across = 2 if n == 4 else min(n, 3)
    down = -(-n // across)
    figure = needed("matplotlib.figure").Figure((width * across, height * down + 0.5),
                                                layout="constrained")
    return figure, [figure.add_subplot(down, across, i) for i in range(1, n + 1)]


def save(figure, path):
    """Write the picture, with one legend below all panels."""
    names = {name: handle for axis in figure.axes
             for handle, name in zip(*axis.get_legend_handles_labels())}
    figure.legend(names.values(), names, loc="outside lower center", ncols=min(4, len(names)))
    figure.savefig(path, bbox_inches="tight")


def draw_curves(path, curves, bars=False):
    """curves: (panel, series, points) of a curve or of a part of it; panel: (title, x label, y
    label); points: [(x, values of the seeds)].  A panel each with the means and, as bands, their
    95% intervals; with bars the seeds' standard deviations."""
    curves_in = {}
    for panel, series, points in curves:
        curves_in.setdefault(panel, {}).setdefault(series, []).extend(points)
    if not curves_in:
        raise UserError("nothing to draw: not every value has run, or no epoch")
    figure, axes = panels(len(curves_in))
    series = [*dict.fromkeys(name for curves in curves_in.values() for name in curves)]
    for axis, ((title, x_label, y_label), curves) in zip(axes, curves_in.items()):
        for name, points in curves.items():
            i, (x, seeds) = series.index(name), zip(*points)
            mean = np.array([np.mean(values) for values in seeds])
            style = dict(color=COLOURS[i % 7], ls=LINES[i % 4], lw=1.8, ms=5, label=name)
            if bars:
                std = [np.std(values, ddof=1) if len(values) > 1 else 0 for values in seeds]
                axis.errorbar(x, mean, std, marker=MARKS[i], elinewidth=0.8, capsize=2, **style)
                continue
            half = [confidence_interval(values)[1] if len(values) > 2 else np.nan
                    for values in seeds]
            axis.plot(x, mean, marker=None if len(x) > 1 else "o", **style)     # one has no line
            axis.fill_between(x, mean - half, mean + half, color=COLOURS[i % 7], alpha=0.18, lw=0)
        axis.set(title=title, xlabel=x_label, ylabel=y_label)
        if x_label == "epoch":
            axis.xaxis.get_major_locator().set_params(integer=True)
    save(figure, path)


def drawn(path, draw, *args):
    """Draw a picture anew -> its name; None if it cannot be drawn, and a line says why."""
    path.unlink(missing_ok=True)
    try:
        draw(path, *args)
        return path.name
    except UserError as error:
        print(f"skipped {path.name}: {error}", file=sys.stderr)


# ---------------------------------------------------------------------------- of an experiment
def sweep(runs_of_rows, metrics):
    """A panel per dataset and metric, a curve per series: over the seeds that every point has."""
    for _, own in itertools.groupby(runs_of_rows, lambda pair: pair[0].dataset):
        own = [*own]
        seeds = set.intersection(*({run.cfg.seed for run in runs} for _, runs in own))
        for metric, (row, runs) in itertools.product(metrics, own if seeds else ()):
            series, symbol, x = row.name
            values = by_seed([run for run in runs if run.cfg.seed in seeds], metric).values()
            yield (NAMES[row.dataset], symbol, AXES.get(metric, metric)), series, [(x, [*values])]


def epochs(runs_of_rows, metrics, of_paper=False):
    """A panel per dataset or paper and metric, a curve per row over the epochs of its logs."""
    for (row, runs), metric in itertools.product(runs_of_rows, metrics):
        if points := by_epoch([run.log for run in runs], metric):
            title = NAMES[row.key[0] if of_paper else row.dataset]
            yield (title, "epoch", AXES[metric]), label(row), points


def levels(runs_of_rows, metrics):
    """MDR Fig. 6: the shares of positive and of negative pairs at each level in the last epoch."""
    for row, runs in runs_of_rows:
        panel = (NAMES[row.dataset], "level (learned value, in σ* from μ*)",
                 "share of the pairs (%)")
        logs = [run.log[-1] for run in runs]
        for kind in ("positive pairs", "negative pairs"):
            shares = 100 * np.array([log[f"{kind} by level"] for log in logs])
            yield panel, kind, [*zip(np.mean([log["levels"] for log in logs], 0), shares.T)]


CURVES = {"sweep": sweep, "epochs": epochs, "levels": levels}          # Experiment.picture


# ---------------------------------------------------------------------------- of any runs
def by_epoch(logs, metric):
    """The logs of runs -> [(epoch, values of the seeds)] of the epochs that were evaluated."""
    unit = 100 if PERCENT.fullmatch(metric) else 1
    points = {}
    for row in (row for log in logs for row in log if metric in row):
        points.setdefault(row["epoch"], []).append(unit * row[metric])
    return sorted(points.items())


def draw_runs(path, runs, names):
    """--curves: loss, unseen and seen R@1 against the epoch.  A setting's name is a curve over its
    seeds, a run's a curve of its own."""
    if path.suffix not in (".png", ".svg"):
        raise UserError(f"--out {path} must end in .png or .svg")
    logs = {}
    for name in names:
        folders = seeds_of(runs, name, "log.jsonl").values()
        own = [run for run in folders if run.folder.name == Path(name).name]
        logs[name] = [run.log for run in own or folders]
    curves = [(("", "epoch", AXES[metric]), name, by_epoch(logs[name], metric))
              for metric in ("loss", "R@1", "seen R@1") for name in names]
    draw_curves(path, [curve for curve in curves if curve[2]])
    print(f"wrote {path}")


# ---------------------------------------------------------------------------- images
def draw_nearest(path, checkpoint):
    """--sheet: a test image of each of six random test classes, and the five test or gallery images
    nearest to it."""
    if path.suffix not in (".png", ".jpg"):
        raise UserError(f"--out {path} must end in .png or .jpg")
    network, cfg, transforms = open_checkpoint(checkpoint)
    data = images_to_judge(cfg, transforms)
    embedded = common.embed_splits(network.embed, data, cfg, "test", "gallery")
    (queries, labels), (gallery, _) = embedded["test"], embedded.get("gallery", embedded["test"])
    entries = searched = entries_of(data.test, data.folder)
    if data.gallery is not None:
        searched = entries_of(data.gallery, data.folder)
    draw, rows = np.random.RandomState(0), []
    for c in draw.permutation(labels.unique())[:6]:
        i = draw.choice(np.flatnonzero(labels == c))
        (nearest,) = nearest_entries(queries[i:i + 1].cpu(), gallery.cpu(), searched, 6)
        rows.append((entries[i], [pair for pair in nearest if pair[1] is not entries[i]][:5]))
    draw_sheet(path, rows)
    print(f"wrote {path}")

"""Curves of a figure's runs, with intervals over seeds (matplotlib); sheets (Pillow)."""
import importlib
import itertools
import math
import os
import sys
from pathlib import Path

import numpy as np

from report.experiments import NAMES
from report.judge import (SCRIPTS, draw_sheet, embed_entries, images_to_judge, nearest_entries,
                          open_checkpoint)
from report.records import in_paper_units, reading, seeds_of
from report.tables import mean_and_half, mean_and_std
from support.files import UserError, reason

# Okabe and Ito's colours, which colour-blind readers tell apart; line and mark tell them in grey.
COLOURS = "#0072B2 #D55E00 #009E73 #CC79A7 #E69F00 #56B4E9 #000000".split()
MARKS = "os^Dv*PX<>hpd8"
LINES = "-", "--", "-.", ":", (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 3))
AXES = {"loss": "training loss, of each its own objective", "R@1": "R@1 on test classes (%)",
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
    """-> figure, n axes in rows, as near to a square as can be"""
    needed("matplotlib.style").use(Path(__file__).with_suffix(".mplstyle"))
    down = math.isqrt(n)
    across = math.ceil(n / down)
    figure = needed("matplotlib.figure").Figure((width * across, height * down + 0.5))
    return figure, figure.subplots(down, across, squeeze=False).ravel()


def save(figure, path):
    """Write the picture, with one legend below all panels."""
    handles = {}
    for axis in figure.axes:
        of_axis, names = axis.get_legend_handles_labels()
        handles.update(zip(names, of_axis))
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=min(4, len(handles)))
    figure.savefig(path)


def draw_curves(path, points, title, bars=False):
    """A panel each with the means over seeds and, as bands, their 95% intervals; with bars the
    seeds' standard deviations.  The title names the seeds.

    points: (panel, series, x, seed, value) of all curves; panel: (title, x label, y label or
    metric)
    """
    curves, numbers, seeds = {}, {}, set()
    for panel, series, x, seed, value in points:
        curve = curves.setdefault(panel, {}).setdefault(series, {})
        curve.setdefault(x, []).append(value)
        numbers.setdefault(series, len(numbers))
        seeds.add(seed)
    if not curves:
        raise UserError("nothing to draw: not every value has run, or no epoch")
    spread, shown = mean_and_half, "bands: 95% intervals, from three seeds on"
    if bars:
        spread, shown = mean_and_std, "bars: standard deviations"
    figure, axes = panels(len(curves))
    for axis, ((name, x_label, y_label), of_panel) in zip(axes, curves.items()):
        axis.set(title=name, xlabel=x_label, ylabel=AXES.get(y_label, y_label))
        for series, curve in of_panel.items():
            x, i = sorted(curve), numbers[series]
            pairs = [spread(curve[at]) for at in x]
            mean, half = np.array(pairs, float).T           # half is nan of too few seeds
            style = {"color": COLOURS[i % 7], "ls": LINES[i % 7], "label": series,
                     "lw": max(3 - 0.4 * i, 1.4)}           # thinner one by one: none hides another
            if bars:
                axis.errorbar(x, mean, half, marker=MARKS[i], elinewidth=0.8, **style)
                continue
            axis.plot(x, mean, marker="o" if len(x) == 1 else None, **style)
            axis.fill_between(x, mean - half, mean + half, color=style["color"], alpha=0.18, lw=0)
        if x_label == "epoch":
            axis.xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(f"{title}\nseeds {', '.join(map(str, sorted(seeds)))}; {shown}")
    save(figure, path)


def redraw(path, draw, *args):
    """Draw a picture anew -> whether it can be drawn; a line says so, or why it cannot."""
    path.unlink(missing_ok=True)
    try:
        draw(path, *args)
    except UserError as error:
        print(f"skipped {path.name}: {error}", file=sys.stderr)
        return False
    print(f"wrote {path}")
    return True


# ---------------------------------------------------------------------------- of an experiment
def title_of(row):
    """... of a panel"""
    return f"{NAMES[row.paper]} on {NAMES[row.dataset]}, backbone {row.runs[0].cfg.backbone}"


def sweep(rows, metrics):
    """A panel per dataset and metric, a curve per series: over the seeds that every point has."""
    for row, metric in itertools.product(rows, metrics):
        series, symbol, x = row.point
        panel = title_of(row), symbol, metric
        beside = [other for other in rows if other.dataset == row.dataset]
        for seed, run in enumerate(row.runs):
            if all(other.runs[seed].result for other in beside):
                yield panel, series, x, seed, reading(run, metric)


def epochs(rows, metrics):
    """A panel per paper, dataset and metric, a curve per row over the epochs of its logs."""
    for row in rows:
        for run, metric in itertools.product(row.finished, metrics):
            yield from by_epoch((title_of(row), "epoch", metric), row.name, run, metric)


def levels(rows, metrics):
    """MDR Fig. 6 in numbers: the shares of positive and of negative pairs at each level in the last
    epoch.  The paper's figure is pictures of some pairs, which draw_pairs draws."""
    for row in rows:
        panel = title_of(row), "level (learned value, in σ* from μ*)", "share of the pairs (%)"
        places = np.mean([run.log[-1]["levels"] for run in row.finished], 0)
        for run, kind in itertools.product(row.finished, ("positive pairs", "negative pairs")):
            for x, share in zip(places, run.log[-1][f"{kind} by level"]):
                yield panel, kind, x, run.cfg.seed, 100 * share


# ---------------------------------------------------------------------------- of any runs
def by_epoch(panel, series, run, metric):
    """A run's points of a curve, in the epochs that were evaluated"""
    for line in run.log:
        figures = in_paper_units(line)
        if metric in figures:
            yield panel, series, line["epoch"], run.config["seed"], figures[metric]


def draw_runs(path, runs, names):
    """--curves: loss, unseen and seen R@1 against the epoch.  A setting's name is a curve over its
    seeds, a run's a curve of its own."""
    points = []
    for name in names:
        folders = seeds_of(runs, name, "log.jsonl")[1].values()
        alone = [run for run in folders if run.folder.name == Path(name).name]
        for run, metric in itertools.product(alone or folders, ("loss", "R@1", "seen R@1")):
            points += by_epoch(("", "epoch", AXES[metric]), name, run, metric)
    draw_curves(path, points, "")


# ---------------------------------------------------------------------------- images
def draw_nearest(path, checkpoint):
    """--sheet: a test image of each of six random test classes, and the five test or gallery images
    nearest to it."""
    network, cfg, transform = open_checkpoint(checkpoint)
    data = images_to_judge(cfg, transform)
    x, entries = embed_entries(network, cfg, data.folder, data.test, data.gallery)
    kinds = np.array([kind for _, kind, _ in entries[:len(data.test)]])
    draw, rows = np.random.RandomState(0), []
    for kind in draw.permutation(np.unique(kinds))[:6]:
        i = draw.choice(np.flatnonzero(kinds == kind))
        (nearest,) = nearest_entries(x[[i]], x, entries, 6)
        rows.append((entries[i], [pair for pair in nearest if pair[1] is not entries[i]][:5]))
    draw_sheet(path, rows)


def draw_pairs(path, checkpoint):
    """--pairs, MDR's Fig. 6: for each level two images of test classes, beside each five others
    whose pair with it the level attracts, up to two of its class, framed as such; below: d̄, Eq. 3.
    The pairs are of 1,000 random test images, scaled to mean distance 1 as a batch is."""
    network, cfg, transform = open_checkpoint(checkpoint)
    if not hasattr(network, "mdr"):
        raise UserError(f"{checkpoint} is of a run without levels; --pairs takes one of mdr.py")
    data = images_to_judge(cfg, transform)
    x, entries = embed_entries(network, cfg, data.folder, data.test)
    draw, mdr = np.random.RandomState(0), SCRIPTS["mdr"]
    chosen = draw.permutation(len(entries))[:1000]
    distances = mdr.pairwise_distances(x[chosen])
    if not cfg.l2norm:
        distances = mdr.unit_mean(distances)
    normalized = network.mdr.normalize(distances)                       # (n, n)
    assigned = network.mdr.assign(normalized).fill_diagonal_(-1).cpu().numpy()
    normalized = normalized.detach().cpu().numpy()
    kinds, rows = np.array([entries[i][1] for i in chosen]), []
    for level in range(len(cfg.levels)):
        at_level = assigned == level
        positives = (at_level & (kinds[:, None] == kinds)).sum(1)
        usable = np.flatnonzero(at_level.sum(1) >= 5)
        for i in usable[np.argsort(-positives[usable], kind="stable")][:2]:
            others = draw.permutation(np.flatnonzero(at_level[i]))
            same = others[kinds[others] == kinds[i]][:2]
            different = others[kinds[others] != kinds[i]][:5 - len(same)]
            pairs = [(normalized[i, j], entries[chosen[j]]) for j in [*same, *different]]
            rows.append((entries[chosen[i]], pairs))
    rows = [row for row in rows if len(row[1]) == 5]
    if not rows:
        raise UserError(f"{checkpoint}: no level attracts five pairs of one test image")
    draw_sheet(path, rows)

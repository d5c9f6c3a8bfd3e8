"""Curves of a figure's runs, with intervals over seeds (matplotlib); sheets (Pillow)."""
import importlib
import itertools
import os
import sys
from operator import attrgetter
from pathlib import Path

import numpy as np

from report.experiments import NAMES, label
from report.judge import (draw_sheet, embed_entries, images_to_judge, nearest_entries,
                          open_checkpoint)
from report.records import PERCENT, pivot, seeds_of
from report.tables import figures_of, mean_and_half, mean_and_std
from support.files import UserError, reason

# Okabe and Ito's colours, which colour-blind readers tell apart; line and mark tell them in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKS = "os^Dv*PX<>hpd8"
LINES = "-", "--", "-.", ":", (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 3))
AXES = {"R@1": "R@1 on test classes (%)",
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
    label); points: [(x, {seed: value})].  A panel each with the means and, as bands, their 95%
    intervals; with bars the seeds' standard deviations.  The title names the seeds."""
    points_of, places, numbers, seeds = {}, {}, {}, set()
    for panel, name, points in curves:
        points_of.setdefault((panel, name), []).extend(points)
        places.setdefault(panel, len(places))
        numbers.setdefault(name, len(numbers))
    if not points_of:
        raise UserError("nothing to draw: not every value has run, or no epoch")
    figure, axes = panels(len(places))
    spread, drawn = mean_and_half, "bands: 95% intervals, from three seeds on"
    if bars:
        spread, drawn = mean_and_std, "bars: standard deviations"
    for (panel, name), points in points_of.items():
        axis, i = axes[places[panel]], numbers[name]
        x, by_seed = zip(*points)
        seeds.update(*by_seed)
        pairs = [spread(list(values.values())) for values in by_seed]
        mean, half = np.array(pairs, float).T               # half is nan of too few seeds
        colour = COLOURS[i % 7]                 # lines thinner one by one: none hides another
        style = dict(color=colour, ls=LINES[i % 7], lw=max(3 - 0.4 * i, 1.4), ms=5, label=name)
        if bars:
            axis.errorbar(x, mean, half, marker=MARKS[i], elinewidth=0.8, capsize=2, **style)
        else:
            axis.plot(x, mean, marker="o" if len(x) == 1 else None, **style)
            axis.fill_between(x, mean - half, mean + half, color=colour, alpha=0.18, lw=0)
        axis.set(title=panel[0], xlabel=panel[1], ylabel=panel[2])
        if panel[1] == "epoch":
            axis.xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(f"{title}\nseeds {', '.join(map(str, sorted(seeds)))}; {drawn}")
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
def title_of(row):
    """... of a panel"""
    return f"{NAMES[row.key[0]]} on {NAMES[row.dataset]}, backbone {row.runs[0].cfg.backbone}"


def sweep(rows, metrics):
    """A panel per dataset and metric, a curve per series: over the seeds that every point has."""
    for _, on_dataset in itertools.groupby(rows, attrgetter("dataset")):
        on_dataset = list(on_dataset)
        table = pivot(figures_of(on_dataset))
        for metric in metrics:
            of_rows = [table[row.name, "last epoch", metric] for row in on_dataset]
            seeds = set.intersection(*map(set, of_rows))
            for row, by_seed in zip(on_dataset, of_rows):
                series, symbol, x = row.name
                values = {seed: by_seed[seed] for seed in seeds}
                if values:
                    panel = title_of(row), symbol, AXES.get(metric, metric)
                    yield panel, series, [(x, values)]


def epochs(rows, metrics):
    """A panel per paper, dataset and metric, a curve per row over the epochs of its logs."""
    for row, metric in itertools.product(rows, metrics):
        points = by_epoch({run.cfg.seed: run.log for run in row.finished}, metric)
        if points:
            yield (title_of(row), "epoch", AXES[metric]), label(row.name), points


def levels(rows, metrics):
    """MDR Fig. 6: the shares of positive and of negative pairs at each level in the last epoch."""
    for row in rows:
        panel = title_of(row), "level (learned value, in σ* from μ*)", "share of the pairs (%)"
        last = {run.cfg.seed: run.log[-1] for run in row.finished}
        for kind in ("positive pairs", "negative pairs"):
            for i, at in enumerate(zip(*(log["levels"] for log in last.values()))):
                shares = {seed: 100 * log[f"{kind} by level"][i] for seed, log in last.items()}
                yield panel, kind, [(np.mean(at), shares)]


CURVES = {"sweep": sweep, "epochs": epochs, "levels": levels}          # Experiment.picture


# ---------------------------------------------------------------------------- of any runs
def by_epoch(logs, metric):
    """{seed: log} -> [(epoch, {seed: value})] of the epochs that were evaluated."""
    unit, points = 100 if PERCENT.fullmatch(metric) else 1, {}
    for seed, log in logs.items():
        for row in log:
            if metric in row:
                points.setdefault(row["epoch"], {})[seed] = unit * row[metric]
    return sorted(points.items())


def draw_runs(path, runs, names):
    """--curves: loss, unseen and seen R@1 against the epoch.  A setting's name is a curve over its
    seeds, a run's a curve of its own."""
    if path.suffix not in (".png", ".svg"):
        raise UserError(f"--out {path} must end in .png or .svg")
    logs, curves = {}, []
    for name in names:
        folders = seeds_of(runs, name, "log.jsonl")
        alone = [seed for seed in folders if folders[seed].folder.name == Path(name).name]
        logs[name] = {seed: folders[seed].log for seed in alone or folders}
    loss = "training loss, of each its own objective" if len(names) > 1 else "training loss"
    for metric, axis in {"loss": loss, "R@1": AXES["R@1"], "seen R@1": AXES["seen R@1"]}.items():
        for name in names:
            points = by_epoch(logs[name], metric)
            if points:
                curves.append((("", "epoch", axis), name, points))
    draw_curves(path, curves, "")
    print(f"wrote {path}")


# ---------------------------------------------------------------------------- images
def draw_nearest(path, checkpoint):
    """--sheet: a test image of each of six random test classes, and the five test or gallery images
    nearest to it."""
    if path.suffix not in (".png", ".jpg"):
        raise UserError(f"--out {path} must end in .png or .jpg")
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
    print(f"wrote {path}")

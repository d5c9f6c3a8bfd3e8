"""Curves and bars of a figure's runs, with 95% intervals over seeds (matplotlib).

Each draw_... makes a picture of rows: draw(path, rows, get), get(row) -> its finished runs.
"""
import contextlib
from pathlib import Path

import numpy as np

import common
from eval import confidence_interval
from report.experiments import LOSSES, NAMES
from report.tables import COLUMNS, PERCENT, logged, reading, readings

# Okabe and Ito's colours, which colour-blind readers tell apart; line and mark tell them in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKS, LINES, HATCHES = "os^Dv*PX<>hpd8", ("-", "--", "-.", ":"), ("", "//", "..")
AXES = {"loss": "training loss", "R@1": "R@1 on test classes (%)",
        "seen R@1": "R@1 on training classes (%)", "NMI": "NMI (%)", "lambda": "λ",
        "norm mean": "mean of ‖e‖ (log scale)", "norm cv": "coefficient of variation of ‖e‖"}


# ---------------------------------------------------------------------------- a picture
@contextlib.contextmanager
def for_figures():
    """UserError where a package is missing that only figures need."""
    try:
        yield
    except ImportError as error:
        raise common.UserError(f"{error}; figures need: pip install -r report/requirements.txt")


def panels(n, width=4.4, height=3.4, columns=3):
    """-> figure, n axes in rows of `columns`.  UserError where there is nothing to draw yet."""
    if not n:
        raise common.UserError("what it compares has not run yet")
    with for_figures():
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    plt.close("all")
    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
                         "grid.alpha": 0.3, "legend.frameon": False, "figure.dpi": 130,
                         "axes.titlesize": 10, "axes.axisbelow": True})
    across = 2 if n == 4 else min(n, columns)
    down = -(-n // across)
    figure, axes = plt.subplots(down, across, squeeze=False, layout="constrained",
                                figsize=(width * across, height * down + 0.5))
    for axis in axes.flat[n:]:
        axis.axis("off")
    return figure, axes.flat[:n]


def save(figure, path, axes):
    """With one legend below all panels."""
    names = {name: handle for axis in axes
             for handle, name in zip(*axis.get_legend_handles_labels())}
    figure.legend(names.values(), names, loc="outside lower center", ncols=min(4, len(names)))
    figure.savefig(path, bbox_inches="tight")


def intervals(columns):
    """Values of the seeds in each column -> means, half-widths of 95% intervals (nan below 3)"""
    means, halves = [], []
    for values in columns:
        mean, half = confidence_interval(values)
        means.append(mean)
        halves.append(half if len(values) > 2 else np.nan)
    return np.array(means), np.array(halves)


# ---------------------------------------------------------------------------- curves
def draw_curves(path, found, marks=True):
    """{(title, x label, y label): {series: [(x, values of the seeds)]}}: means and 95% bands."""
    figure, axes = panels(len(found))
    series = list(dict.fromkeys(name for curves in found.values() for name in curves))
    for axis, ((title, x_label, y_label), curves) in zip(axes, found.items()):
        for name, points in curves.items():
            i, x = series.index(name), [x for x, _ in points]
            mean, half = intervals([values for _, values in points])
            mark = MARKS[i] if marks else "o" if len(x) == 1 else None      # a line has two points
            axis.plot(x, mean, color=COLOURS[i % 7], ls=LINES[i % 4], lw=1.8, ms=5, label=name,
                      marker=mark)
            axis.fill_between(x, mean - half, mean + half, color=COLOURS[i % 7], alpha=0.18, lw=0)
        axis.set(title=title, xlabel=x_label, ylabel=y_label)
        if y_label == AXES["norm mean"]:
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter("{x:g}")
        if x_label == "epoch":
            axis.xaxis.get_major_locator().set_params(integer=True)
        if x_label in ("K", "d"):
            axis.set_xscale("log", base=2)
            ticks = sorted({x for points in curves.values() for x, _ in points})
            axis.set_xticks(ticks, ticks)
            axis.minorticks_off()
    save(figure, path, axes)


def draw_sweep(path, rows, get):
    """A panel a dataset and metric, a curve a series.  UserError: nothing but single points."""
    found = {}
    for metric in COLUMNS.get(rows[0].key, ("R@1",)):
        for row in rows:
            series, symbol, x = row.name
            if values := readings(get(row), metric):
                panel = (NAMES[row.dataset], symbol, AXES.get(metric, metric))
                found.setdefault(panel, {}).setdefault(series, []).append((x, values))
    if all(len(points) == 1 for curves in found.values() for points in curves.values()):
        raise common.UserError("so far one value alone has run, which is no curve")
    draw_curves(path, found)


def by_epoch(runs, metric):
    """The runs' logs -> [(epoch, values of the seeds)] of the epochs that were evaluated."""
    unit = 100 if PERCENT.fullmatch(metric) else 1
    points = {}
    for run in runs:
        for line in run.log:
            if metric in line:
                points.setdefault(line["epoch"], []).append(unit * line[metric])
    return sorted(points.items())


def draw_epochs(path, rows, get):
    """A panel a dataset, rate and metric, a curve a row over the epochs of its logs."""
    found = {}
    for row in rows:
        runs = get(row)
        if runs:
            for metric in COLUMNS[row.key]:
                title = f"{NAMES[row.dataset]}, {row.rate}" if row.rate else NAMES[row.dataset]
                panel = (title, "epoch", AXES[metric])
                found.setdefault(panel, {})[row.name] = by_epoch(runs, metric)
    draw_curves(path, found, marks=False)


def draw_runs(path, out, names):
    """--curves: loss, unseen and seen R@1 against the epoch, a curve a name, over its seeds.

    names: folders of runs in `out`, finished or not, with -s0, -s1, ... or without: all the seeds.
    Epochs without R@1 (--eval-every) are skipped, and a panel that no log has (JRD: seen R@1).
    UserError: no such run, a damaged log, nothing logged yet, another suffix than .png and .svg.
    """
    if Path(path).suffix not in (".png", ".svg"):
        raise common.UserError(f"--to {path} must end in .png or .svg")
    logs = {name: logged(out, name) for name in names}
    found = {}
    for metric in ("loss", "R@1", "seen R@1"):
        for name, runs in logs.items():
            if points := by_epoch(runs, metric):
                found.setdefault(("", "epoch", AXES[metric]), {})[name] = points
    if not found:
        raise common.UserError(f"no epoch is logged yet in {', '.join(names)}")
    draw_curves(path, found, marks=False)


def draw_recall(path, rows, get):
    """DML-DA Fig. 3: R@K against K, a panel a loss, with and without the correlation term."""
    found = {}
    for row in rows:
        if runs := get(row):
            panel = (f"{row.name.split()[1]}, {NAMES[row.dataset]}", "K", "R@K (%)")
            series = ("without" if "⁻" in row.name else "with") + " the correlation term"
            found.setdefault(panel, {})[series] = [
                (k, readings(runs, f"R@{k}")) for k in runs[0].cfg.ks]
    draw_curves(path, found)


# ---------------------------------------------------------------------------- bars
def draw_bars(path, found, y_label, x_label="", text=None):
    """{title: {series: {x: values of the seeds}}}: means with 95% intervals."""
    figure, axes = panels(len(found))
    for axis, (title, groups) in zip(axes, found.items()):
        places = list(dict.fromkeys(x for bars in groups.values() for x in bars))
        width = 0.8 / len(groups)
        for i, (series, bars) in enumerate(groups.items()):
            mean, half = intervals(bars.values())
            shift = (i - (len(groups) - 1) / 2) * width
            drawn = axis.bar([places.index(x) + shift for x in bars], mean, 0.93 * width,
                             yerr=half, capsize=3, label=series, color=COLOURS[i],
                             hatch=HATCHES[i], edgecolor="white")
            if text:
                axis.bar_label(drawn, fmt=text, padding=4)
        axis.axhline(0, color="black", lw=0.8)
        axis.margins(y=0.12)
        axis.set_xticks(range(len(places)), places)
        axis.set(title=title, ylabel=y_label, xlabel=x_label)
    save(figure, path, axes)


def draw_gains(path, rows, get):
    """DML-DA Fig. 4: NMI over that of the plain loss, within a seed."""
    nmi = {(row.dataset, row.name.lower()): {run.cfg.seed: reading(run, "NMI") for run in get(row)}
           for row in rows}
    found = {}
    for dataset in dict.fromkeys(row.dataset for row in rows):
        for kind in ("EN", "GOR", "DA"):
            for loss in LOSSES:
                plain = nmi[dataset, loss.lower()]
                regularized = nmi[dataset, f"{loss}+{kind}".lower()]
                gains = [regularized[seed] - plain[seed] for seed in regularized if seed in plain]
                if gains:
                    found.setdefault(NAMES[dataset], {}).setdefault(kind, {})[loss] = gains
    draw_bars(path, found, "NMI gained (points)")


def draw_levels(path, rows, get):
    """MDR Fig. 6: the shares of positive and of negative pairs at each level, the last that the
    log has."""
    found = {}
    for row in rows:
        logs = [[line for line in run.log if "levels" in line][-1] for run in get(row)]
        if not logs:
            continue
        levels = np.mean([log["levels"] for log in logs], 0)            # over the seeds
        names = [f"level {i}\n({s:+.2f})" for i, s in enumerate(levels, 1)]
        groups = {}
        for kind in ("positive", "negative"):
            shares = zip(*(log[f"{kind} pairs by level"] for log in logs))      # a tuple a level
            groups[f"{kind} pairs"] = {name: [100 * share for share in seeds]
                                       for name, seeds in zip(names, shares)}
        found[NAMES[row.dataset]] = groups
    draw_bars(path, found, "share of the pairs (%)", "level (learned value, in σ* from μ*)", "%.0f")

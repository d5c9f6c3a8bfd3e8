"""Curves of a figure's runs, with intervals over seeds (matplotlib); sheets (Pillow)."""
import functools
import importlib
import itertools
import math
import os
import sys
import textwrap
from pathlib import Path

import numpy as np

from report.experiments import NAMES
from report.judge import SCRIPTS, images_to_judge, open_checkpoint
from report.records import gains, in_paper_units, reading, seeds_of
from report.search import draw_sheet, embed_entries, keep_photos, nearest_entries
from report.tables import difference, mean_and_half, mean_and_std
from support.files import UserError, reason

# A method's colour in every picture, whatever stands beside it; from Okabe and Ito's and Tol's
# palettes, so that colour-blind readers tell apart what stands in one picture.  Lines and marks,
# by the order in a picture, tell curves apart in grey.
COLOURS = {
    "Triplet": "#0072B2", "Triplet+L2Norm": "#D55E00", "Triplet+MDR": "#009E73",
    "AMSoftmax": "#777777", "AMSoftmax + intra-class penalty": "#777777",
    "JRD": "#CC79A7", "JMMD": "#661100", "JIntra": "#117733",
    "Contrastive": "#56B4E9", "N-pair": "#E69F00", "DML-DA contrastive": "#332288",
    "DML-DA triplet": "#882255", "DML-DA N-pair": "#999933",
    "density": "#332288", "JRS": "#CC79A7",             # as DML-DA contrastive and JRD
    "density + JRS": "#000000", "density + growth of x⁻ alone": "#999933",
    "positive pairs": "#CC6677", "negative pairs": "#332288"}
PALETTE = "#0072B2 #D55E00 #009E73 #CC79A7 #E69F00 #56B4E9 #000000".split()     # of other things
MARKS = "os^Dv*PX<>hpd8"
LINES = "-", "--", "-.", ":", (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 3))
AXES = {"loss": "training loss, of each its own objective", "R@1": "R@1 on test classes (%)",
        "seen R@1": "R@1 on training classes (%)", "NMI": "NMI (%)",
        "lambda": "λ, a term of the bound (Eq. 3)", "d_H": "d_H, a term of the bound (Eq. 2)",
        "norm mean": "mean of ‖e‖", "norm cv": "coefficient of variation of ‖e‖"}
VARIED = {("jrd", "α"): "α, the weight of the regularizer",
          ("mdr", "d"): "d, the embedding's width",
          ("dml_da", "λ"): "λ, the weight of the regularizer (Eq. 9)"}

# ---------------------------------------------------------------------------- a picture
class NothingToDraw(UserError):
    """No run has what a picture shows."""


def needed(module):
    """Import what only figures and pages need.  UserError if a package is missing or broken."""
    os.environ["MPLBACKEND"] = "agg"        # pyplot's, unused here: a notebook's may not import
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise UserError(f"{reason(error)}; figures need: pip install -r report/requirements.txt")


def panels(n, width=4.4, height=3.4, **how):
    """-> figure, n axes in rows, as near to a square as can be.  how: more of Figure.subplots"""
    needed("matplotlib.style").use(Path(__file__).with_suffix(".mplstyle"))
    down = math.isqrt(n)
    across = math.ceil(n / down)
    figure = needed("matplotlib.figure").Figure((width * across, height * down + 0.5))
    return figure, figure.subplots(down, across, squeeze=False, **how).ravel()


def colour_of(series, number):
    """A method's colour, with the spelling of any picture and at any setting (", λ = 0.2"); of
    another series, that of its number"""
    method = series.partition(",")[0].replace("Triplet + ", "Triplet+")
    return COLOURS.get(method, PALETTE[number % len(PALETTE)])


def save(figure, path):
    """Write the picture, with one legend below all panels."""
    handles = {}
    for axis in figure.axes:
        of_axis, names = axis.get_legend_handles_labels()
        handles.update(zip(names, of_axis))
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=min(4, len(handles)))
    figure.savefig(path)


def draw_curves(path, points, title, bars=False, found=None, sharey=False):
    """A panel each with the means over seeds and, as bands, their 95% intervals; with bars the
    seeds' standard deviations.  The title names the seeds, a panel's title those of its curves if
    they differ.

    points: (panel, series, x, seed, value) of all curves; panel: (title, x label, y label or
    metric); found: what tells the finding of a panel's curves (of finding), for its title;
    sharey: the same y axis in all panels
    """
    curves, numbers, seeds = {}, {}, {}
    for panel, series, x, seed, value in points:
        curve = curves.setdefault(panel, {}).setdefault(series, {})
        curve.setdefault(x, {})[seed] = value
        numbers.setdefault(series, len(numbers))
        seeds.setdefault((panel, series), set()).add(seed)
    if not curves:
        raise NothingToDraw("nothing to draw: not every value has run, or no epoch")
    spread, shown = mean_and_half, "bands: 95% intervals, from three seeds on"
    if bars:
        spread, shown = mean_and_std, "bars: standard deviations"
    names = {name for name, *_ in curves}
    of_all = len({frozenset(of_curve) for of_curve in seeds.values()}) == 1
    any_spread = False                                      # none from a seed, or two
    figure, axes = panels(len(curves), sharey=sharey)
    for axis, (panel, of_panel) in zip(axes, curves.items()):
        name, x_label, y_label = panel
        for series, curve in of_panel.items():
            x, i = sorted(curve), numbers[series]
            pairs = [spread([*curve[at].values()]) for at in x]
            mean, half = np.array(pairs, float).T           # half is nan of too few seeds
            any_spread |= np.isfinite(half).any()
            style = {"color": colour_of(series, i), "ls": LINES[i % 7], "label": series,
                     "lw": max(3 - 0.4 * i, 1.4)}           # thinner one by one: none hides another
            if bars:
                axis.errorbar(x, mean, half, marker=MARKS[i], elinewidth=0.8, **style)
                continue
            axis.plot(x, mean, marker="o" if len(x) == 1 else None, **style)
            axis.fill_between(x, mean - half, mean + half, color=style["color"], alpha=0.18, lw=0)
        told = [name] * (len(names) > 1)
        if found:
            told.append(found(of_panel, x_label))
        if not of_all:
            told.append(by_seeds({series: seeds[panel, series] for series in of_panel}))
        axis.set(title="\n".join(filter(None, told)), xlabel=x_label,
                 ylabel=AXES.get(y_label, y_label))
        if x_label == "epoch":
            axis.xaxis.get_major_locator().set_params(integer=True)
    heading = [textwrap.fill(title, 52 * figure.axes[0].get_gridspec().ncols)]
    if len(names) == 1:
        heading += names
    if not any_spread:
        shown = ""
    if of_all:
        shown = "; ".join(filter(None, [numbered(next(iter(seeds.values()))), shown]))
    figure.suptitle("\n".join(filter(None, [*heading, shown])))
    save(figure, path)


def numbered(seeds):
    """{0, 1, 2, 5} -> "seeds 0, 1, 2, 5"; {0, ..., 9} -> "seeds 0 to 9" """
    seeds = sorted(seeds)
    if len(seeds) > 3 and seeds == [*range(seeds[0], seeds[-1] + 1)]:
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def by_seeds(seeds):
    """{series: its seeds} -> which curve has which, in words"""
    groups = {}
    for series, of_series in seeds.items():
        groups.setdefault(numbered(of_series), []).append(series)
    if len(groups) == 1:
        return next(iter(groups))
    return "\n".join(f"{which}: {' and '.join(series)}" for which, series in groups.items())


def redraw(path, draw, *args):
    """Draw a picture anew -> whether it can be drawn; a line says so, or why not.  One that was
    drawn before stays if a package or a checkpoint is missing, not if there is nothing to draw."""
    try:
        draw(path, *args)
    except NothingToDraw as error:
        path.unlink(missing_ok=True)
        print(f"skipped {path.name}: {error}", file=sys.stderr)
        return False
    except UserError as error:
        told = "kept an older" if path.exists() else "skipped"
        print(f"{told} {path.name}: {error}", file=sys.stderr)
        return False
    print(f"wrote {path}")
    return True


# ---------------------------------------------------------------------------- findings
def means_of(of_panel):
    """{series: {x: {seed: value}}} -> {series: {x: mean}}"""
    return {series: {x: np.mean([*values.values()]) for x, values in curve.items()}
            for series, curve in of_panel.items()}


def of_sweep(of_panel, x_label, baselines):
    """Where which series has the highest mean; of a single one its extreme, if beyond the bars"""
    means, symbol = means_of(of_panel), x_label.partition(",")[0]
    if len(means) == 1:
        (curve,), (values,) = means.values(), of_panel.values()
        first = min(curve)
        far = max(curve, key=lambda x: abs(curve[x] - curve[first]))
        low, high = min(curve.values()), max(curve.values())
        if high - low <= max(mean_and_std([*of_x.values()])[1] or 0 for of_x in values.values()):
            return f"no trend beyond the bars: {low:#.3g} to {high:#.3g}"
        way = "highest" if curve[far] > curve[first] else "lowest"
        return (f"{way}, {curve[far]:#.3g}, at {symbol} = {far:g}; {curve[first]:#.3g} at "
                f"{symbol} = {first:g}")
    shared = sorted(set.intersection(*map(set, means.values())))
    leads = {}
    for series, curve in means.items():
        leads[series] = [x for x in shared if curve[x] == max(m[x] for m in means.values())]
    best = max(leads, key=lambda series: len(leads[series]))
    where = f"every {symbol}"
    if leads[best] != shared:
        where = f"{symbol} = {', '.join(f'{x:g}' for x in leads[best])}"
    return f"{best} has the highest mean at {where}"


def of_epochs(of_panel, x_label, baselines):
    """Whether what is regularized ends above its baseline, by the differences within a seed and
    their 95% interval, if there are three seeds"""
    told = []
    for series, baseline in baselines.items():
        if series in of_panel and baseline in of_panel:
            ours, theirs = of_panel[series], of_panel[baseline]
            of_seeds = gains(ours[max(ours)], theirs[max(theirs)])
            if not of_seeds:
                continue
            mean, half = mean_and_half(of_seeds)
            way = f"{series} ends {'above' if mean > 0 else 'below'} {baseline}:"
            if half is None or abs(mean) <= half:
                way = f"{series} - {baseline}, at the end:"
            told.append(f"{way} {difference(of_seeds)}")
    return "\n".join(told)


def of_levels(of_panel, x_label, baselines):
    """At which level most pairs of each kind are"""
    told = []
    for series, curve in means_of(of_panel).items():
        most = max(curve, key=curve.get)
        told.append(f"{curve[most]:.0f}% of the {series} at level {round(most, 1) + 0:g}")
    return "\n".join(told)


FOUND = {"sweep": of_sweep, "epochs": of_epochs, "levels": of_levels}


def finding(picture, rows):
    """What tells the finding of a panel of an experiment's rows, for draw_curves"""
    baselines = {row.name: row.baseline for row in rows if row.baseline}
    return functools.partial(FOUND[picture], baselines=baselines)


# ---------------------------------------------------------------------------- of an experiment
def title_of(row):
    """... of a panel"""
    return f"{NAMES[row.paper]} on {NAMES[row.dataset]}, backbone {row.runs[0].cfg.backbone}"


def sweep(rows, metrics):
    """A panel per dataset and metric, a curve per series: over the seeds that every point has."""
    for row, metric in itertools.product(rows, metrics):
        series, symbol, x = row.point
        panel = title_of(row), VARIED.get((row.paper, symbol), symbol), metric
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


POINTS = {"sweep": sweep, "epochs": epochs, "levels": levels}       # an experiment's `picture`


# ---------------------------------------------------------------------------- of any runs
def by_epoch(panel, series, run, metric):
    """A run's points of a curve, in the epochs that were evaluated"""
    for line in run.log:
        figures = in_paper_units(line)
        if metric in figures:
            yield panel, series, line["epoch"], run.config["seed"], figures[metric]


def draw_runs(path, runs, names):
    """--curves: loss, unseen and seen R@1 against the epoch.  A setting's name is a curve over its
    seeds, a run's a curve of its own.  What a log has not (JRD's no seen R@1), the result of a
    finished run has of the last epoch, a point; a line says so, or that there is nothing, or which
    seeds have not come as far as the others."""
    points, runs_of = [], {}
    for name in names:
        folders = seeds_of(runs, name, "log.jsonl")[1].values()
        alone = [run for run in folders if run.folder.name == Path(name).name]
        runs_of[name] = alone or folders
        ends = {run.config["seed"]: run.log[-1]["epoch"] for run in runs_of[name] if run.log}
        behind = [f"{seed} to epoch {end}" for seed, end in ends.items()
                  if end < max(ends.values())]
        if behind:
            print(f"note: {name}: seed {', seed '.join(behind)} of {max(ends.values())}; beyond, "
                  "the mean is of the other seeds")
    for name, metric in itertools.product(names, ("loss", "R@1", "seen R@1")):
        panel, curve = ("", "epoch", AXES[metric]), []
        for run in runs_of[name]:
            curve += by_epoch(panel, name, run, metric)
        if not curve:
            for run in runs_of[name]:
                if run.result and metric in run.figures["last epoch"]:
                    last = run.result["last epoch"]["epoch"]
                    curve.append((panel, name, last, run.config["seed"], reading(run, metric)))
            shown = "of its last epoch alone" if curve else "of no epoch"
            print(f"note: {name} has {metric} {shown}")
        points += curve
    draw_curves(path, points, "")


# ---------------------------------------------------------------------------- images
def draw_nearest(path, checkpoint):
    """--sheet: a test image of each of six random test classes, and the five images nearest to it
    of those that Recall@K searches, without itself."""
    network, cfg, transform = open_checkpoint(checkpoint)
    data = images_to_judge(cfg, transform)
    keep_photos(path, data)
    x, entries = embed_entries(network, cfg, data.folder, data.test)
    bank, searched = x, entries
    if data.gallery:
        bank, searched = embed_entries(network, cfg, data.folder, data.gallery)
    kinds = np.array([kind for _, kind, _ in entries])
    draw, rows = np.random.RandomState(0), []
    for kind in draw.permutation(np.unique(kinds))[:6]:
        i = draw.choice(np.flatnonzero(kinds == kind))
        (nearest,) = nearest_entries(x[[i]], bank, searched, 6)
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
    keep_photos(path, data)
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

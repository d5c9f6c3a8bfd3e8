"""Tables: a paper's figures and ours, every finished run, one setting against another; CSV."""
import re
import statistics
from collections import defaultdict
from decimal import Decimal
from pathlib import Path

import numpy as np

from eval import confidence_interval
from report.experiments import EXPERIMENTS, NAMES, cells
from report.records import (PERCENT, STARTS, folders_of, gains, pivot, read_lines, seeds_of)
from support.files import UserError, listed
from support.layouts import of_papers
from support.identity import DATASETS, computed_by, dataset_name, differences, with_splits

PAPER_NUMBERS = read_lines(Path(__file__).with_name("paper_numbers.jsonl"))
COLUMNS = cells("""
    unseen R@1, last epoch | last epoch          | R@1
    best on test*          | best on test        | R@1
    pretrained             | pretrained backbone | R@1
    seen R@1               | last epoch          | seen R@1
    MAP@R                  | last epoch          | MAP@R
    NMI                    | last epoch          | NMI
    ... mean of starts     | last epoch          | NMI, mean of starts
    ... range of starts    | last epoch          | NMI, range of starts""")  # head, part, metric
BY_1NN = {"lambda": "λ by 1-NN", "d_H": "d_H by 1-NN"}      # of JRD; --lambda is a weight
LESS = "ours less the paper's"
ANOTHER_QUANTITY = {"lambda_NN"}        # in the paper, E5: ours less it would say nothing
CHOSEN = "\\* the epoch chosen on the test set: not a figure to report."


# ---------------------------------------------------------------------------- cells
def mean_and_std(values):
    """-> mean, standard deviation of the sample (n - 1); None for what there is too little for"""
    mean = std = None
    if len(values):
        mean = statistics.mean(values)
    if len(values) > 1:
        std = statistics.stdev(values)
    return mean, std


def spread(values, digits=1):
    """'mean ± std', the mean alone of a single value, – of none"""
    mean, std = mean_and_std(values)
    if mean is None:
        return "–"
    text = f"{mean:.{digits}f}"
    if std is not None:
        text += f" ± {std:.{digits}f}"
    return text


def each(values, digits=1):
    """Up to three values one by one, 'mean ± std' of more"""
    if len(values) > 3:
        return spread(values, digits)
    return ", ".join(f"{x:.{digits}f}" for x in values) or "not run"


def mean_and_half(values):
    """-> mean, half of its 95% Student-t interval from three values on; None for what there is too
    little for"""
    if not len(values):
        return None, None
    mean, half = confidence_interval(values)
    if len(values) < 3:
        half = None
    return mean, half


def difference(values, digits=2):
    """Differences within a seed: '+0.20 [+0.10, +0.30]', mean and 95% Student-t interval; below
    three seeds the mean alone, '–' of none"""
    mean, half = mean_and_half(values)
    if mean is None:
        return "–"
    text = f"{round(mean, digits) + 0:+.{digits}f}"                     # + 0: not -0.00
    if half is not None:
        text += f" [{mean - half:+.{digits}f}, {mean + half:+.{digits}f}]"
    return text


def markdown(rows):
    """Lists of cells, the heads first -> an aligned table"""
    cells_of_rows = np.char.ljust(rows, np.char.str_len(rows).max(0))
    lines = [f"| {' | '.join(row)} |" for row in cells_of_rows]
    lines.insert(1, re.sub("[^|]", "-", lines[0]))
    return "\n".join(lines)


# ---------------------------------------------------------------------------- a paper's table
def figures_of(rows):
    """What pivot reads, of the finished runs; a table may measure the last epoch otherwise."""
    for row in rows:
        part = EXPERIMENTS[row.key].measured
        if "L2 norm at inference" in row.name:
            part = "l2-normalized"
        for run in row.finished:
            figures = run.figures
            if part:
                figures = {"last epoch": figures[part]}
            yield row.name, run.config["seed"], figures


def published(key, dataset):
    """A paper's figures of a table on a dataset (cub128: on CUB; glyphs: on all of the paper's) ->
    {row: its lines of paper_numbers.jsonl}"""
    entries = defaultdict(list)
    for entry in PAPER_NUMBERS:
        here = of_papers(dataset) in (None, entry["dataset"])
        if here and key == f"{entry['paper']} {entry['table']}":
            entries[entry["row"]].append(entry)
    return entries


def on_papers_images(dataset):
    """Whether figures on a dataset stand beside the paper's on the same images at full size"""
    return of_papers(dataset) == dataset


def source(entry):
    """Who reports a paper's figure, and on what: the head of its line"""
    who = "quoted by the paper"
    if entry["reported_by"] == "this paper":
        who = "paper"
    return f"{who}, {NAMES[entry['dataset']]}"


def printed(entry):
    """A paper's figure as printed, with ± std or [its 95% interval]"""
    text = str(entry["value"])
    if "std" in entry:
        text += f" ± {entry['std']}"
    if "ci95" in entry:
        value, half = Decimal(text), Decimal(str(entry["ci95"]))
        text += f" [{value - half}, {value + half}]"
    return text


def figures_in(table, row, metric, paper):
    """A row's figures of a metric -> {head: cell} of the Markdown, {head: value} of the CSV.
    table: a pivot; paper: the paper's figure"""
    n, last = len(row.finished), table[row.name, "last epoch", metric]
    gain = gains(last, table[row.baseline, "last epoch", metric])
    best = table[row.name, "best on test", metric].values()
    pretrained, _ = mean_and_std(table[row.name, "pretrained backbone", metric].values())
    (ours, std), (chosen, chosen_std) = mean_and_std(last.values()), mean_and_std(best)
    gained, half = mean_and_half(gain)
    comparable = on_papers_images(row.dataset) and metric not in ANOTHER_QUANTITY
    less = []
    if comparable and None not in (ours, paper):
        less = [ours - paper]
    digits = 1 if PERCENT.fullmatch(metric) else 3
    texts = {f"**ours**, last epoch, n = {n}": f"**{spread(last.values(), digits)}**",
             LESS: difference(less, digits),
             f"gain over {row.baseline}, n = {len(gain)}": difference(gain, digits + 1),
             "best on test*": spread(best, digits)}
    if not n:                                           # ours None: α without DML-DA
        texts, ours = {"not run": "–"}, "not run"
    csv_row = {
        "paper": row.paper, "table": row.table, "row": row.name, "dataset": row.dataset,
        "metric": metric, "paper's figure": paper, "ours": ours, "our std": std,
        "seeds": len(last), "best on test, not to report": chosen,
        "best on test's std": chosen_std, "before training": pretrained,
        "command": row.runs[0].setting, "rate": row.runs[0].cfg.lr, "baseline": row.baseline,
        "gain": gained, "gain's half-width": half, "gain's seeds": len(gain)}
    if on_papers_images(row.dataset):
        csv_row[LESS], _ = mean_and_half(less)
    return texts, csv_row


def figure_of_others(entry):
    """A paper's figure of a method that is not run -> a row of the CSV"""
    ours = "not run"
    if entry["reported_by"] != "this paper":
        ours = "quoted, not run"
    same = {column: entry[column] for column in ("paper", "table", "row", "dataset", "metric")}
    return {**same, "paper's figure": entry["value"], "ours": ours, "seeds": 0}


def paper_table(rows):
    """A table on one dataset, metrics across as in the paper -> Markdown, CSV rows.  On the
    papers' images other methods' rows stand first, in the CSV last."""
    experiment, dataset, table = EXPERIMENTS[rows[0].key], rows[0].dataset, pivot(figures_of(rows))
    in_paper, names = published(rows[0].key, dataset), [row.name for row in rows]
    metrics = dict.fromkeys(entry["metric"] for name in names for entry in in_paper[name])
    metrics = [*(metrics or experiment.columns), *experiment.beside]
    if "NMI" in metrics:
        place = metrics.index("NMI") + 1
        metrics[place:place] = [metric for metric in STARTS if has(table, metric)]
    if dataset == "glyphs":
        metrics = [metric for metric in metrics if not re.match(r"R@\d\d", metric)]
    lines, csv_rows, not_run = [["", "", *metrics]], [], []
    for name, entries in in_paper.items():
        if on_papers_images(dataset) and name not in names:
            texts = {entry["metric"]: printed(entry) for entry in entries}
            lines.append([f"**{name}**", source(entries[0]),
                          *(texts.get(metric, "–") for metric in metrics)])
            not_run += map(figure_of_others, entries)
    for row in rows:
        texts, papers = defaultdict(dict), {}               # {head: {metric: cell}}
        for entry in in_paper[row.name]:
            texts[source(entry)][entry["metric"]] = printed(entry)
            if of_papers(dataset):
                papers[entry["metric"]] = entry["value"]
        for metric in metrics:
            ours, csv_row = figures_in(table, row, metric, papers.get(metric))
            csv_rows.append(csv_row)
            for head, text in ours.items():
                if text != "–" or head == "not run":
                    texts[head][metric] = text
        name = f"**{row.name}**"
        for head, by_metric in texts.items():
            lines.append([name, head, *(by_metric.get(metric, "–") for metric in metrics)])
            name = ""
    return markdown(lines), [*csv_rows, *not_run]


def has(table, metric):
    """Whether a pivot has a metric of the last epoch in any row"""
    return any(values and key[1:] == ("last epoch", metric) for key, values in table.items())


def pair_table(rows):
    """R@1 of some rows and of their baselines, seed by seed, and the gain -> Markdown"""
    table = pivot(figures_of(rows))
    lines = [["method", "R@1", "baseline", "R@1", "gain"]]
    for row in rows:
        if row.baseline:
            ours = table[row.name, "last epoch", "R@1"]
            theirs = table[row.baseline, "last epoch", "R@1"]
            lines.append([row.name, each(ours.values()), row.baseline, each(theirs.values()),
                          difference(gains(ours, theirs))])
    return markdown(lines)


# ---------------------------------------------------------------------------- whatever was run
def table(runs):
    """Every finished run of a folder as Markdown, a row per setting."""
    settings = folders_of(runs)
    figures = pivot((name, seed, run.figures) for name, folders in settings.items()
                    for seed, run in folders.items())
    columns = [column for column in COLUMNS
               if column[2] not in STARTS or has(figures, column[2])]
    lines = [["run", "seeds", *(head for head, _, _ in columns), "code"]]
    for name, folders in settings.items():
        codes = {str(run.config.get("code")) for run in folders.values()}
        line = [name, str(len(folders))]
        for _, part, metric in columns:
            line.append(spread(figures[name, part, metric].values()))
        lines.append([*line, ", ".join(sorted(codes))])
    return f"""{markdown(lines)}

%, mean ± standard deviation over seeds.  {CHOSEN}  Pretrained: before training; jrd.py, mdr.py \
and dml_da.py resize images differently, so compare it within a script alone."""


def ranking(runs, metric):
    """The finished runs of a folder by a metric of the last epoch, best first: a table per set of
    test images, a row per setting -> Markdown.  R@1 is that of held-out classes where a run has
    some (--val), because whoever chooses by the test classes has trained on them.  UserError: no
    run has it."""
    tables, known = defaultdict(list), set()
    for name, folders in folders_of(runs).items():
        config = next(iter(folders.values())).config
        by, of = metric, "test classes: not to choose settings by, for which there is --val"
        if metric.startswith("seen"):
            of = "training classes"
        if config.get("val") and metric in ("R@1", "val R@1"):
            by, of = "val R@1", f"held-out classes, --val {config['val']:g}"
        figures = pivot((name, seed, run.figures) for seed, run in folders.items())
        values = figures.get((name, "last epoch", by), {}).values()     # which adds no key
        if values and PERCENT.fullmatch(by):
            images = ""
            if config["dataset"] not in DATASETS:       # a folder, whose images may have changed
                images = with_splits(config).get("images of test", "")
            table_of = dataset_name(config["dataset"]), by, of, images
            tables[table_of].append((statistics.mean(values), name, values))
        known.update(other for _, part, other in figures if part == "last epoch")
    if not tables:
        known = filter(PERCENT.fullmatch, sorted(known))
        raise UserError(f"no finished run under {runs} has {metric}: there are {'; '.join(known)}")
    texts = []
    for (dataset, by, of, images), rows in tables.items():
        if sum(key[:3] == (dataset, by, of) for key in tables) > 1:
            of += f" (images of test: {images})"
        lines = [["", f"runs on {dataset}", "seeds", by]]
        for _, name, values in sorted(rows, key=lambda row: (-row[0], row[1])):
            lines.append([str(len(lines)), name, str(len(values)), spread(values, 2)])
        texts += [f"{by} on {of}", markdown(lines)]
    return "\n\n".join([*texts, "%, last epoch, mean ± standard deviation over seeds."])


def right_side(run):
    """JRD's Eq. 1 of a finished run: the error on seen classes + λ + d_H, which is to be above the
    error on unseen classes; None if the run has not all three"""
    row = run.figures["last epoch"]
    if {"seen R@1", *BY_1NN} <= row.keys():
        return 1 - row["seen R@1"] / 100 + row["lambda"] + row["d_H"]


def other_machines(*runs):
    """By what else one of some runs, or a part of one, was computed than another, as far as they
    note it -> {"processor", "torch", ...}; not the commit, because code is a setting"""
    values = defaultdict(set)
    for run in runs:
        rows = [row.get("continued with", {}) for row in run.log]
        for computed in (computed_by(run.config), *rows):
            for what, value in computed.items():
                values[what].add(value)
    return {what for what, seen in values.items() if len(seen) > 1} - {"commit"}


def compare(runs, one, other):
    """Two settings of a folder (names, or runs of them) side by side, last epoch, and their
    differences within a seed; then the settings in which they differ -> Markdown.  UserError: they
    have no seed in common, or were tested on different images."""
    (one, ours), (other, theirs) = seeds_of(runs, one), seeds_of(runs, other)
    if one == other:
        raise UserError(f"--compare takes two settings, and both are {one}, whose seeds are "
                        "compared as one")
    seeds, differ = sorted(ours.keys() & theirs.keys()), {}
    if not seeds:
        raise UserError(f"{one} and {other} have no seed in common")
    for seed in seeds:
        a, b = ours[seed].config, theirs[seed].config
        differ |= differences(a, b)
        known = "images of test" in with_splits(a).keys() & with_splits(b)  # not in older runs
        if not known and dataset_name(a["dataset"]) != dataset_name(b["dataset"]):
            differ["images of test"] = True
    # Of the papers' datasets the digests are of paths: cub128 and cub have one.
    if differ.keys() & {"dataset", "images of test", "images of gallery"}:
        raise UserError(f"{one} and {other} were tested on different images: their figures have "
                        "no difference to speak of")
    lines = [["last epoch", one, other, "difference"]]
    last, first = "last epoch", ours[seeds[0]]
    rows = [(last, metric, BY_1NN.get(metric, metric)) for metric in first.figures[last]]
    both = [folders[seed] for folders in (ours, theirs) for seed in seeds]
    if all(run.result[last].get("ten parts") for run in both):
        rows += [("ten parts", metric, f"{metric} in ten parts")
                 for metric in first.result[last]["ten parts"]]
    for part, metric, name in rows:
        a = [ours[seed].figures[part].get(metric) for seed in seeds]
        b = [theirs[seed].figures[part].get(metric) for seed in seeds]
        if None not in a + b:
            digits = 2 if PERCENT.fullmatch(metric) else 4
            lines.append([name, each(a, digits), each(b, digits),
                          difference(np.subtract(a, b), digits)])
    a, b = ([right_side(folders[seed]) for seed in seeds] for folders in (ours, theirs))
    if None not in a + b:
        lines.append(["right side of Eq. 1", each(a, 4), each(b, 4),
                      difference(np.subtract(a, b), 4)])
    words = ", ".join(f"{k.rstrip('_')} ({a} and {b})" for k, (a, b) in differ.items())
    alone = ""
    for name, own in ((one, ours.keys() - theirs.keys()), (other, theirs.keys() - ours.keys())):
        if own:
            alone += f"; {name} alone has {', '.join(map(str, sorted(own)))}"
    note, machines = "", set()
    for seed in seeds:
        machines |= other_machines(ours[seed], theirs[seed])
    if machines:
        note = (f"\nNote: two runs of a seed differ in {listed(sorted(machines))}, too, which "
                "alone may move a figure.")
    return f"""{markdown(lines)}

Seeds {", ".join(map(str, seeds))}, which both have{alone}; recalls, MAP@R and NMI in %, others as \
in the log; differences within a seed, their mean, from three seeds on with its 95% interval.
The settings differ in {words or "nothing"}.{note}"""

"""Tables: a paper's figures and ours, every finished run, one setting against another; CSV."""
import re
import statistics
from collections import defaultdict
from pathlib import Path

import numpy as np

from eval import confidence_interval
from report.experiments import EXPERIMENTS, NAMES, label
from report.records import PERCENT, folders_of, gains, pivot, read_lines, reading, seeds_of
from support.files import UserError
from support.layouts import SMALLER
from support.runs import differences

PAPER_NUMBERS = read_lines(Path(__file__).with_name("paper_numbers.jsonl"))
COLUMNS = {     # of the table of every run: part and metric
    "unseen R@1, last epoch": ("last epoch", "R@1"), "best on test*": ("best on test", "R@1"),
    "pretrained": ("pretrained backbone", "R@1"), "seen R@1": ("last epoch", "seen R@1"),
    "MAP@R": ("last epoch", "MAP@R"), "NMI": ("last epoch", "NMI")}
CHOSEN = "\\* the epoch chosen on the test set: not a figure to report."


# ---------------------------------------------------------------------------- cells
def mean_and_std(values):
    """-> mean, standard deviation of the sample (n - 1); None for what there is too little for"""
    if len(values) > 1:
        return statistics.mean(values), statistics.stdev(values)
    return (*values, None, None)[:2]


def spread(values, digits=1):
    """'mean ± std', the mean alone of a single value, – of none"""
    mean, std = mean_and_std(values)
    if mean is None:
        return "–"
    return f"{mean:.{digits}f}" if std is None else f"{mean:.{digits}f} ± {std:.{digits}f}"


def each(values, digits=1):
    """Up to three values one by one, 'mean ± std' of more"""
    if len(values) > 3:
        return spread(values, digits)
    return ", ".join(f"{x:.{digits}f}" for x in values) or "not run"


def interval(low, high, digits=2):
    return f"[{low:+.{digits}f}, {high:+.{digits}f}]"


def mean_and_half(values):
    """-> mean, half of its 95% Student-t interval from three values on; None for what there is too
    little for"""
    if not len(values):
        return None, None
    mean, half = confidence_interval(values)
    return mean, half if len(values) > 2 else None


def difference(values, digits=2):
    """Differences within a seed: '+0.20 [+0.10, +0.30]', mean and 95% Student-t interval; below
    three seeds the mean alone, '–' of none"""
    mean, half = mean_and_half(values)
    if mean is None:
        return "–"
    text = f"{round(mean, digits) + 0:+.{digits}f}"                     # + 0: not -0.00
    return text if half is None else f"{text} {interval(mean - half, mean + half, digits)}"


def markdown(rows):
    """Lists of cells, the heads first -> the lines of an aligned table."""
    lines = []
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        lines.append("| " + " | ".join(map(str.ljust, row, widths)) + " |")
    rule = "|".join("-" * (width + 2) for width in widths)
    lines.insert(1, f"|{rule}|")
    return lines


# ---------------------------------------------------------------------------- a paper's table
def figures_of(rows):
    """What pivot reads, of the finished runs; a table may measure the last epoch otherwise."""
    for row in rows:
        part = EXPERIMENTS[row.key].measured
        for run in row.finished:
            figures = run.figures
            if part == "l2 norm at inference" and part not in row.name.lower():
                figures = {"last epoch": figures["last epoch"]}
            elif part:
                figures = {"last epoch": figures[part]}
            yield row.name, run.config["seed"], figures


def published(key, dataset):
    """The figures of a paper's table on this dataset alone (cub128: on CUB); on glyphs on all of
    the paper's: lines of paper_numbers.jsonl"""
    entries = []
    for entry in PAPER_NUMBERS:
        here = dataset == "glyphs" or entry["dataset"] == SMALLER.get(dataset, dataset)
        if here and (entry["paper"], entry["table"]) == key:
            entries.append(entry)
    return entries


def printed(entry):
    """A paper's figure as printed, with ± std or [its 95% interval]"""
    value = entry["value"]
    if "std" in entry:
        return f"{value} ± {entry['std']}"
    if "ci95" in entry:
        half = entry["ci95"]
        digits = max(len(str(x).partition(".")[2]) for x in (value, half))
        return f"{value} {interval(value - half, value + half, digits).replace('+', '')}"
    return str(value)


def paper_table(rows):
    """A table on one dataset, metrics across as in the paper -> Markdown lines, CSV rows"""
    key, dataset, table = rows[0].key, rows[0].dataset, pivot(figures_of(rows))
    entries, experiment = published(key, dataset), EXPERIMENTS[key]
    metrics = [entry["metric"] for entry in entries] or list(experiment.columns)
    metrics = list(dict.fromkeys(metrics + list(experiment.beside)))
    if dataset == "glyphs":
        metrics = [metric for metric in metrics if not re.match(r"R@\d\d", metric)]
    lines, csv_rows = [["", ""] + metrics], []
    for row in rows:
        texts, papers = defaultdict(dict), {}               # {head: {metric: cell}}
        n, baseline = len(row.finished), row.baseline and label(row.baseline)
        for entry in entries:
            if entry["row"] == row.name:
                texts[f"paper, {NAMES[entry['dataset']]}"][entry["metric"]] = printed(entry)
                if dataset != "glyphs":                     # which no paper has
                    papers[entry["metric"]] = entry["value"]
        for metric in metrics:
            last = table[row.name, "last epoch", metric]
            gain = gains(last, table[row.baseline, "last epoch", metric])
            best = table[row.name, "best on test", metric].values()
            before = table[row.name, "pretrained backbone", metric].values()
            digits = 1 if PERCENT.fullmatch(metric) else 3
            (ours, std), (chosen, chosen_std) = mean_and_std(last.values()), mean_and_std(best)
            gained, half = mean_and_half(gain)
            if n:                                           # ours None: α without DML-DA
                head = f"**ours**, last epoch, n = {n}"
                texts[head][metric] = f"**{spread(last.values(), digits)}**"
            else:
                texts["not run"][metric], ours = "–", "not run"
            texts[f"gain over {baseline}, n = {len(gain)}"][metric] = difference(gain, digits + 1)
            texts["best on test*"][metric] = spread(best, digits)
            csv_rows.append({
                "paper": key[0], "table": key[1], "row": label(row.name), "dataset": dataset,
                "metric": metric, "paper's figure": papers.get(metric), "ours": ours,
                "our std": std, "seeds": len(last), "best on test, not to report": chosen,
                "best on test's std": chosen_std, "before training": mean_and_std(before)[0],
                "command": row.runs[0].setting, "rate": row.runs[0].cfg.lr, "baseline": baseline,
                "gain": gained, "gain's half-width": half, "gain's seeds": len(gain)})
        name = f"**{label(row.name)}**"
        for head, by_metric in texts.items():
            line = [by_metric.get(metric, "–") for metric in metrics]
            if set(line) != {"–"} or head == "not run":
                lines.append([name, head] + line)
                name = ""
    return markdown(lines), csv_rows


def pair_table(rows):
    """R@1 of some rows and of their baselines, seed by seed, and the gain -> Markdown lines"""
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
    lines = [["run", "seeds"] + list(COLUMNS) + ["code"]]
    for name, folders in folders_of(runs).items():
        figures, codes = pivot((name, seed, run.figures) for seed, run in folders.items()), {}
        line = [name, str(len(folders))]
        for part, metric in COLUMNS.values():
            line.append(spread(figures[name, part, metric].values()))
        for run in folders.values():
            codes[str(run.config.get("code"))] = True
        lines.append(line + [", ".join(codes)])
    if len(lines) == 1:
        raise UserError(f"no finished run under {runs}")
    return "\n".join(markdown(lines)) + f"""

%, mean ± standard deviation over seeds.  {CHOSEN}  Pretrained: before training; jrd.py, mdr.py \
and dml_da.py resize images differently, so compare it within a script alone."""


def settings_that_differ(one, other):
    """Two runs -> {setting: its values in both}.  UserError: they were tested on other images."""
    differ = differences({"code": None} | one.config, {"code": None} | other.config)
    datasets = {Path(run.config["dataset"]).name for run in (one, other)}
    if len(datasets) > 1 or differ.keys() & {"images of test", "images of gallery"}:
        raise UserError(f"{one.folder.name} and {other.folder.name} were tested on different "
                        "images: their figures have no difference to speak of")
    for name in ("name", "seed", "splits", "images of train", "images of val"):
        differ.pop(name, None)
    if "paper" in differ:
        differ.pop("code", None)
    return differ


def compare(runs, *names):
    """Two settings of a folder (names, or runs of them) side by side, last epoch, and their
    differences within a seed; then the settings in which they differ -> Markdown"""
    one, other = seeds_of(runs, names[0]), seeds_of(runs, names[1])
    pairs, differ = [(one[seed], other[seed]) for seed in sorted(one) if seed in other], {}
    if not pairs:
        raise UserError(f"{' and '.join(names)} have no seed in common")
    heads = [run.folder.name.rpartition("-s")[0] for run in pairs[0]]
    lines = [["last epoch"] + heads + ["difference"]]
    for metric in pairs[0][0].figures["last epoch"]:
        a, b = zip(*[(reading(ours, metric), reading(theirs, metric)) for ours, theirs in pairs])
        if None not in a + b:
            digits = 2 if PERCENT.fullmatch(metric) else 4
            lines.append([metric, each(a, digits), each(b, digits),
                          difference(np.subtract(a, b), digits)])
    for ours, theirs in pairs:
        differ |= settings_that_differ(ours, theirs)
    seeds = ", ".join(str(run.config["seed"]) for run, _ in pairs)
    text = "\n".join(markdown(lines)) + f"""

Seeds {seeds}, which both have; recalls, MAP@R and NMI in %, others as in the log; differences \
within a seed, their mean, from three seeds on with its 95% interval."""
    if differ:
        words = ", ".join(f"{k.rstrip('_')} ({a} and {b})" for k, (a, b) in differ.items())
        text += f"\nThe settings differ in {words}."
    return text

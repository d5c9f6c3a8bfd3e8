"""Tables: a paper's figures and ours, every finished run, one setting against another; CSV."""
import re
import statistics
from pathlib import Path

from eval import confidence_interval
from report.experiments import EXPERIMENTS, NAMES, label
from report.records import (PERCENT, Record, folders_of, gains, pivot, read_lines, records,
                            seeds_of)
from support.files import UserError
from support.layouts import SMALLER
from support.runs import differences

PAPER_NUMBERS = read_lines(Path(__file__).with_name("paper_numbers.jsonl"))
COLUMNS = ["run", "seeds", "unseen R@1, last epoch", "best on test*", "pretrained", "seen R@1",
           "MAP@R", "NMI", "code"]
SHOWN = (("last epoch", "R@1"), ("best on test", "R@1"), ("pretrained backbone", "R@1"),
         ("last epoch", "seen R@1"), ("last epoch", "MAP@R"), ("last epoch", "NMI"))
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
    return ", ".join(f"{x:.{digits}f}" for x in values)


def interval(low, high, digits=2):
    return f"[{low:+.{digits}f}, {high:+.{digits}f}]"


def difference(values, digits=2):
    """Differences within a seed: '+0.20 [+0.10, +0.30]', mean and 95% Student-t interval; below
    three seeds the mean alone, '–' of none"""
    if not len(values):
        return "–"
    mean, half = confidence_interval(values)
    text = f"{round(mean, digits) + 0:+.{digits}f}"                     # + 0: not -0.00
    if len(values) > 2:
        text += f" {interval(mean - half, mean + half, digits)}"
    return text


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
def records_of(rows):
    """The records of the rows' finished runs; a table may measure the last epoch otherwise."""
    for row in rows:
        measured = EXPERIMENTS[row.key].measured
        for run in row.finished:
            figures = run.figures
            if measured == "ten parts" or measured and "at inference" in row.name:
                figures = {"last epoch": figures[measured]}
            elif measured:
                figures = {"last epoch": figures["last epoch"]}
            yield from records(row.name, run.config["seed"], figures)


def published(key, dataset):
    """The entries of a paper's table as records, on this dataset alone (cub128: on CUB); on glyphs
    on all of the paper's.  A record's part is the paper's dataset, its value the whole entry."""
    for entry in PAPER_NUMBERS:
        here = dataset == "glyphs" or entry["dataset"] == SMALLER.get(dataset, dataset)
        if here and (entry["paper"], entry["table"]) == key:
            yield Record(entry["row"], None, entry["dataset"], entry["metric"], entry)


def metrics_of(key, dataset, entries):
    """A table's columns: the paper's (on glyphs without R@10 and above) or the experiment's, and
    those beside them"""
    metrics = []
    for metric in [entry.metric for entry in entries] or EXPERIMENTS[key].columns:
        if metric not in metrics and not (dataset == "glyphs" and re.match(r"R@\d\d", metric)):
            metrics.append(metric)
    return metrics + list(EXPERIMENTS[key].beside)


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


def cells(row, metric, table):
    """A row's figures of one metric -> {what stands before a line of its table: the cell}, a row of
    tables.csv"""
    last = table[row.name, "last epoch", metric].values()
    best = table[row.name, "best on test", metric].values()
    before = table[row.name, "pretrained backbone", metric].values()
    gain = gains(table[row.name, "last epoch", metric], table[row.baseline, "last epoch", metric])
    papers = table[row.name, SMALLER.get(row.dataset, row.dataset), metric].get(None, {})
    digits, n = 1 if PERCENT.fullmatch(metric) else 3, len(row.finished)
    baseline = row.baseline and label(row.baseline)
    ours, std = mean_and_std(last)
    chosen, chosen_std = mean_and_std(best)
    gained = half = None
    if n:                                                   # ours None: α without DML-DA
        texts = {f"**ours**, last epoch, n = {n}": f"**{spread(last, digits)}**"}
    else:
        texts, ours = {"not run": "–"}, "not run"
    if gain:
        gained, half = confidence_interval(gain)
        texts[f"gain over {baseline}, n = {len(gain)}"] = difference(gain, digits + 1)
    if best:
        texts["best on test*"] = spread(best, digits)
    return texts, {
        "paper": row.key[0], "table": row.key[1], "row": label(row.name), "dataset": row.dataset,
        "metric": metric, "paper's figure": papers.get("value"), "ours": ours,
        "our std": std, "seeds": len(last), "best on test, not to report": chosen,
        "best on test's std": chosen_std, "before training": mean_and_std(before)[0],
        "command": row.runs[0].setting, "rate": row.runs[0].cfg.lr, "baseline": baseline,
        "gain": gained, "gain's half-width": half if len(gain) > 2 else None,
        "gain's seeds": len(gain)}


def paper_table(rows):
    """A table on one dataset, metrics across as in the paper -> Markdown lines, CSV rows"""
    key, dataset = rows[0].key, rows[0].dataset
    entries = list(published(key, dataset))
    metrics = metrics_of(key, dataset, entries)
    table = pivot(entries + list(records_of(rows)))
    lines, csv_rows = [["", ""] + metrics], []
    for row in rows:
        texts = {}                                          # {head: {metric: cell}}
        for entry in entries:
            if entry.setting == row.name:
                head = f"paper, {NAMES[entry.part]}"
                texts.setdefault(head, {})[entry.metric] = printed(entry.value)
        for metric in metrics:
            of_metric, csv_row = cells(row, metric, table)
            csv_rows.append(csv_row)
            for head, text in of_metric.items():
                texts.setdefault(head, {})[metric] = text
        name = f"**{label(row.name)}**"
        for head, by_metric in texts.items():
            lines.append([name, head] + [by_metric.get(metric, "–") for metric in metrics])
            name = ""
    return markdown(lines), csv_rows


def pair_table(rows):
    """R@1 of some rows and of their baselines, seed by seed, and the gain -> Markdown lines"""
    table = pivot(records_of(rows))
    lines = [["method", "R@1", "baseline", "R@1", "gain", "seeds"]]
    for row in rows:
        if row.baseline:
            ours = table[row.name, "last epoch", "R@1"]
            theirs = table[row.baseline, "last epoch", "R@1"]
            lines.append([row.name, each(ours.values()) or "not run", row.baseline,
                          each(theirs.values()) or "not run", difference(gains(ours, theirs)),
                          ", ".join(map(str, ours)) or "–"])
    return markdown(lines)


# ---------------------------------------------------------------------------- whatever was run
def records_in(settings):
    """{setting: {seed: Folder}} -> the records of all"""
    for setting, runs in settings.items():
        for seed, run in runs.items():
            yield from records(setting, seed, run.figures)


def table(runs):
    """Every finished run of a folder as Markdown, a row per setting."""
    settings = folders_of(runs)
    if not settings:
        raise UserError(f"no finished run under {runs}")
    lines, figures = [COLUMNS], pivot(records_in(settings))
    for name, folders in settings.items():
        line, codes = [name, str(len(folders))], {}
        for part, metric in SHOWN:
            line.append(spread(figures[name, part, metric].values()))
        for run in folders.values():
            codes[str(run.config.get("code"))] = True
        lines.append(line + [", ".join(codes)])
    return "\n".join(markdown(lines) + ["", f"%, mean ± standard deviation over seeds.  {CHOSEN}  "
                      "Pretrained: before training; jrd.py, mdr.py and dml_da.py resize images "
                      "differently, so compare it within a script alone."])


def settings_that_differ(one, other):
    """Two runs -> {setting: its values in both}.  UserError: they were tested on other images."""
    differ = differences({"code": None} | one.config, {"code": None} | other.config)
    images, told = [], {}
    if Path(one.config["dataset"]).name != Path(other.config["dataset"]).name:
        images.append("dataset")
    for name in sorted(differ):
        if name in ("images of test", "images of gallery"):
            images.append(name.removeprefix("images of "))
        elif name not in ("name", "seed", "splits", "code", "images of train", "images of val"):
            told[name] = differ[name]
    if images:
        raise UserError(f"{one.folder.name} and {other.folder.name} were tested on different "
                        f"images ({', '.join(images)} differ): their figures have no difference to "
                        "speak of")
    if "code" in differ and "paper" not in differ:
        told["code"] = differ["code"]
    return told


def compare(runs, *names):
    """Two settings of a folder (names, or runs of them) side by side, last epoch, and their
    differences within a seed; then the settings in which they differ -> Markdown"""
    one, other = seeds_of(runs, names[0]), seeds_of(runs, names[1])
    seeds, alone = sorted(one.keys() & other.keys()), sorted(one.keys() ^ other.keys())
    if not seeds:
        raise UserError(f"{' and '.join(names)} have no seed in common")
    measured, differ = [], {}
    for seed in seeds:
        differ |= settings_that_differ(one[seed], other[seed])
        for side, run in enumerate((one[seed], other[seed])):
            measured += records(side, seed, run.figures)
    heads = [run.folder.name.rpartition("-s")[0] for run in (one[seeds[0]], other[seeds[0]])]
    lines, figures = [["last epoch"] + heads + ["difference"]], pivot(measured)
    for metric in one[seeds[0]].figures["last epoch"]:
        a, b = figures[0, "last epoch", metric], figures[1, "last epoch", metric]
        if len(a) == len(b) == len(seeds):
            digits = 2 if PERCENT.fullmatch(metric) else 4
            lines.append([metric, each(a.values(), digits), each(b.values(), digits),
                          difference(gains(a, b), digits)])
    told = ", ".join(map(str, seeds))
    if alone:
        told += f" (one side has {', '.join(map(str, alone))} too)"
    words = ", ".join(f"{k.rstrip('_')} ({a} and {b})" for k, (a, b) in differ.items())
    return "\n".join(markdown(lines) + [
        "", f"Seeds {told}; recalls, MAP@R and NMI in %, others as in the log; "
        "differences within a seed, their mean, from three seeds on with its 95% interval.",
        words and f"The settings differ in {words}."]).rstrip("\n")

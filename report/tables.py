"""Tables: a paper's figures and ours, every finished run, one setting against another; CSV.

Figures are last-epoch means ± standard deviations over seeds; what was not run says so.
"""
import argparse
import csv
import functools
import itertools
import json
import math
import re
import statistics
from pathlib import Path

import common
from eval import confidence_interval
from report.experiments import NAMES, STAND_INS, photographs, read_log, runs_of
from support.identity import other_code, other_images
from support.runs import other_settings, read_config, read_result

NUMBERS = Path(__file__).with_name("paper_numbers.jsonl")
CHOSEN = "\\* the epoch chosen on the test set: not a figure to report."
COLUMNS = {  # what a figure's table shows, where it is not R@1 alone
    ("jrd", "fig2"): ("lambda", "d_H", "R@1"), ("mdr", "fig3b"): ("R@1", "seen R@1"),
    ("mdr", "fig4"): ("norm mean", "norm cv"), ("dml_da", "fig1"): ("R@1", "seen R@1"),
    ("dml_da", "fig4"): ("NMI",), ("dml_da", "fig6"): ("NMI",),
    ("dml_da", "fig3"): tuple(f"R@{2 ** i}" for i in range(8))}
BESIDE = {  # on glyphs and cub128: what a table has beside the paper's columns; no figure draws it
    ("jrd", "1"): ("MAP@R", "NMI", "seen R@1"), ("mdr", "1a"): ("MAP@R", "NMI", "seen R@1"),
    ("mdr", "2b"): ("MAP@R", "NMI", "seen R@1"),
    ("dml_da", "I"): ("MAP@R", "seen R@1", "D_avg mean"),
    ("dml_da", "fig3"): ("alpha min", "alpha mean", "alpha max"),
    ("dml_da", "fig6"): ("D_avg mean",), ("jrd", "fig4"): ("jrs",)}
IN_RUNS = {"R@1 (fraction)": "R@1", "lambda_NN": "lambda", "H-divergence_NN": "d_H"}
PERCENT = re.compile(r"(seen )?R@\d+(, l2-normalized)?|NMI|MAP@R")


# ---------------------------------------------------------------------------- single figures
@functools.cache
def paper_numbers():
    """paper_numbers.jsonl as {(paper, table): {(row, dataset): {metric: entry}}}"""
    found = {}
    for entry in map(json.loads, NUMBERS.read_text(encoding="utf-8").splitlines()):
        rows = found.setdefault((entry["paper"], entry["table"]), {})
        rows.setdefault((entry["row"], entry["dataset"]), {})[entry["metric"]] = entry
    return found


def numbers_on(key, dataset):
    """A table of a paper on one dataset -> {row: {metric: entry}}; for cub128 that on CUB."""
    return {row: entries for (row, where), entries in paper_numbers().get(key, {}).items()
            if where == photographs(dataset)}


def metrics_of(key, dataset):
    """A table's columns: the paper's; on glyphs those of them that are measured there; on glyphs
    and cub128 those of BESIDE too."""
    columns = {}
    for (_, where), entries in paper_numbers().get(key, {}).items():
        if dataset == "glyphs" or where == photographs(dataset):
            columns |= dict.fromkeys(entries)
    columns = list(columns) or COLUMNS.get(key, ("R@1",))
    if dataset == "glyphs":
        columns = [metric for metric in columns if not re.search(r"R@\d\d", metric)]
    return [*columns, *(BESIDE.get(key, ()) if dataset in STAND_INS else ())]


def reading(run, metric, row=None, part="last epoch"):
    """A finished run's figure in the paper's unit, None where it has none.

    metric: of paper_numbers.jsonl, or a key of result.json or of the last log row.
    row: JRD's Tables 2 and 3 read ten parts, rows "at inference" l2-normalized embeddings.
    """
    found, key = run.result[part], IN_RUNS.get(metric, metric)
    if part == "last epoch":
        found = run.log[-1] | found
        if row and row.key in (("jrd", "2"), ("jrd", "3")):
            found |= found.get("ten parts", {})
        if row and "at inference" in row.name:
            key += ", l2-normalized"
    elif row.key in (("jrd", "2"), ("jrd", "3"), ("mdr", "3")):
        return None                                 # the best epoch has no such figures
    value = found.get(key)
    if isinstance(value, list):                     # [mean, half-width]
        value = value[0]
    if value is not None and PERCENT.fullmatch(metric):
        value = 100 * value
    return value


def readings(runs, *args):
    """reading's figures of the finished runs that have one."""
    values = [reading(run, *args) for run in runs if run.result]
    return [v for v in values if v is not None]


# ---------------------------------------------------------------------------- cells
def spread(values, digits=1):
    """'mean ± std', the std of the sample (n - 1); the mean alone for one value, – for none."""
    if not values:
        return "–"
    mean = f"{statistics.mean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} ± {statistics.stdev(values):.{digits}f}"


def published(value, digits):
    """A figure of a paper with no digit less than it has, – for none."""
    if value is None:
        return "–"
    printed = len(str(value).partition(".")[2])
    return f"{value:.{max(digits, printed)}f}"


def digits_of(key, metric):
    """Decimals: three of a fraction; of a share in % one, in DML-DA two."""
    if not PERCENT.fullmatch(metric):
        return 3
    return 2 if key[0] == "dml_da" else 1


def label(row):
    """A row's name as text, with its rate where that is not the preset's."""
    name = row.name
    if not isinstance(name, str):
        series, symbol, value = name
        name = f"{series}, {symbol} = {value:g}"
    return f"{name}, {row.rate}" if row.rate else name


def markdown(rows):
    """Lists of cells, the heads first -> the lines of an aligned table."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [f"| {' | '.join(cell.ljust(w) for cell, w in zip(row, widths))} |" for row in rows]
    return [lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]]


def cells(row, args, most):
    """What stands in each column of a row -> a CSV row (dict) a metric."""
    runs, rows = runs_of(row, args, most), []
    paper = numbers_on(row.key, row.dataset).get(label(row), {})
    elsewhere = {}                                  # on glyphs: {a dataset of the paper: entries}
    if row.dataset == "glyphs":
        elsewhere = {where: entries for (name, where), entries in
                     paper_numbers().get(row.key, {}).items() if name == label(row)}
    for metric in metrics_of(row.key, row.dataset):
        values, best = readings(runs, metric, row), readings(runs, metric, row, "best on test")
        before = readings(runs, metric, row, "pretrained backbone")
        entry = paper.get(metric, {})
        digits = digits_of(row.key, metric)
        difference = None
        if values:
            ours = statistics.mean(values)
            if entry and same_protocol(row.dataset):
                difference = ours - entry["value"]
        elif any(run.result for run in runs):
            ours = None                             # DML-DA's α without DML-DA
        else:
            ours = "not run" if runs else STAND_INS[row.dataset]
        rows.append({
            "paper": row.key[0], "table": row.key[1], "row": label(row),
            "dataset": row.dataset, "metric": metric, "reported by": entry.get("reported_by"),
            "paper's figure": entry.get("value"), "paper's std": entry.get("std"),
            "paper's 95% interval": entry.get("ci95"),
            "ours": ours, "our std": statistics.stdev(values) if len(values) > 1 else None,
            "seeds": len(values), "difference": difference,
            "best on test, not to report": statistics.mean(best) if best else None,
            "million images to run": sum(r.images_left() for r in runs[:row.seeds]) / 1e6,
            "command": re.sub(r" --seed 0| --out \S+", "", runs[0].command) if runs else None,
            **{f"paper's on {d}": e[metric]["value"] for d, e in elsewhere.items() if metric in e},
            "rate": runs[0].cfg.lr if runs else None,
            "best on test's std": statistics.stdev(best) if len(best) > 1 else None,
            "before training": statistics.mean(before) if before else None,
            "digits": digits, "text": spread(values, digits), "best": spread(best, digits)})
    return rows


def same_protocol(dataset):
    """Whether figures on this dataset may be subtracted from the papers'."""
    return photographs(dataset) == dataset


# ---------------------------------------------------------------------------- a paper's table
def real_table(rows, args, most):
    """A table on one dataset, metrics across as in the paper -> lines, CSV rows.

    Below a row's figures in the paper stand ours, the difference, and the best epoch on test.
    Other papers' rows stand first; on cub128 neither they nor differences, which mean nothing.
    """
    key, dataset = rows[0].key, rows[0].dataset
    metrics, in_paper = metrics_of(key, dataset), numbers_on(key, dataset)
    lines, csv_rows = [["", "", *metrics]], []
    if same_protocol(dataset):
        own = {row.name for row in rows}
        for name, entries in in_paper.items():
            if name not in own:
                line, found = others_row(key, name, dataset, metrics, entries)
                lines.append(line)
                csv_rows += found
    for row in rows:
        found = cells(row, args, most)
        lines += row_lines(row, found, metrics, row.name in in_paper)
        csv_rows += found
    return markdown(lines), csv_rows


def others_row(key, name, dataset, metrics, entries):
    """A row of another paper's method -> cells, CSV rows"""
    reported_by = next(iter(entries.values()))["reported_by"]
    kind = "quoted" if reported_by.startswith("quoted") else "by others' model"
    line = [name, kind, *(published(entries.get(metric, {}).get("value"), digits_of(key, metric))
                          for metric in metrics)]
    return line, [{"paper": key[0], "table": key[1], "row": name, "dataset": dataset,
                   "metric": metric, "reported by": entry["reported_by"],
                   "paper's figure": entry["value"], "ours": kind}
                  for metric, entry in entries.items()]


def row_lines(row, found, metrics, in_paper):
    """A row of ours, found: its cells -> up to four lists of cells, one below the other."""
    lines, name = [], label(row)
    if in_paper:
        spreads = {"paper's std": "std", "paper's 95% interval": "95% interval"}
        there = [text for k, text in spreads.items() if any(c[k] is not None for c in found)]
        who = "paper" if same_protocol(row.dataset) else f"paper, {NAMES[photographs(row.dataset)]}"
        line = [f"**{name}**", " ± ".join([who, *there])]
        for c in found:
            figures = [c[k] for k in ("paper's figure", *spreads) if c[k] is not None]
            line.append(" ± ".join(published(f, c["digits"]) for f in figures) or "–")
        lines.append(line)
        name = ""
    if row.flags is None:
        return [*lines, [name, STAND_INS[row.dataset], *["–"] * len(metrics)]]
    n = max(c["seeds"] for c in found)
    if not n:
        price = f"{row.seeds} runs, {found[0]['million images to run']:,.1f} million images"
        return [*lines, [name, price, *["not run"] * len(metrics)]]
    lines.append([name, f"**ours**, last epoch, n = {n}", *(f"**{c['text']}**" for c in found)])
    if in_paper and same_protocol(row.dataset):
        lines.append(["", "difference", *(
            "–" if c["difference"] is None else f"{c['difference']:+.{c['digits']}f}"
            for c in found)])
    if any(c["best"] != "–" for c in found):
        lines.append(["", "best on test*", *(c["best"] for c in found)])
    return lines


def glyphs_table(rows, args, most):
    """A table in miniature, a line a row, the paper's figures on its datasets beside it."""
    metrics = metrics_of(rows[0].key, "glyphs")
    first = next((m for m in metrics if m.startswith("R@1")), metrics[0])
    found = [cells(row, args, most) for row in rows]
    shown = [next(c for c in row if c["metric"] == first) for row in found]
    any_best = any(c["best"] != "–" for c in shown)
    elsewhere = list(dict.fromkeys(k for c in shown for k in c if k.startswith("paper's on")))
    rates = len({c["rate"] for c in shown if c["rate"]}) > 1            # they have a column
    heads = ["", "seeds", *["rate"] * rates, *metrics]
    if any_best:
        heads.append(f"best {first}*")
    heads += [f"paper's {first} on {NAMES[k.split()[-1]]}" for k in elsewhere]
    lines = [heads]
    for row, one in zip(found, shown):
        n = max(c["seeds"] for c in row)
        line = [one["row"], str(n)]
        if rates:
            line.append(f"{one['rate']:g}" if one["rate"] else "–")
        line += [c["text"] if n else c["ours"] for c in row]
        if any_best:
            line.append(one["best"])
        lines.append(line + [published(one.get(k), one["digits"]) for k in elsewhere])
    return markdown(lines), [c for row in found for c in row]


def write_csv(path, rows):
    """Rows (dicts) -> a CSV file with every column that any of them has."""
    columns = [c for c in dict.fromkeys(k for row in rows for k in row)
               if c not in ("digits", "text", "best")]
    with common.atomic(path) as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


# ---------------------------------------------------------------------------- whatever was run
def finished(out):
    """The finished runs of a folder, whatever the experiment list -> {setting: {seed: result}}"""
    groups = {}
    for path in sorted(Path(out).glob("*-s*/result.json")):
        if name := re.fullmatch(r"(.*)-s(\d+)", path.parent.name):     # no copy of a run's folder
            groups.setdefault(name[1], {})[name[2]] = read_result(path)
    if not groups:
        raise common.UserError(f"no finished run under {out}")
    return groups


def logged(out, name):
    """The run of a folder that has a name, or its seeds of that setting -> [Namespace(log=rows)].

    UserError: there is none; a log that cannot be read.
    """
    there = {path.parent.name: path for path in sorted(Path(out).glob("*-s*/log.jsonl"))}
    chosen = [there[name]] if name in there else [
        path for folder, path in there.items() if re.fullmatch(re.escape(name) + r"-s\d+", folder)]
    if not chosen:
        raise common.UserError(f"no run {name} under {out}: there are "
                               + (", ".join(there) or "none"))
    return [argparse.Namespace(log=read_log(path)) for path in chosen]


def table(out):
    """Every finished run of a folder as Markdown, a row a setting."""
    columns = [("unseen R@1, last epoch", "last epoch", "R@1"),
               ("best on test*", "best on test", "R@1"),
               ("pretrained", "pretrained backbone", "R@1"),
               ("seen R@1", "last epoch", "seen R@1"), ("MAP@R", "last epoch", "MAP@R"),
               ("NMI", "last epoch", "NMI")]
    rows = [["run", "seeds", *(head for head, _, _ in columns)]]
    for name, results in finished(out).items():
        row = [name, str(len(results))]
        for _, part, metric in columns:
            row.append(spread([100 * result[part][metric] for result in results.values()
                               if metric in result[part]]))
        rows.append(row)
    return "\n".join([*markdown(rows), "", f"%, mean ± standard deviation over seeds.  {CHOSEN}"])


def compare(out, one, other):
    """Two settings of a folder side by side, last epoch, and their differences within a seed, as
    Markdown; then the settings and the functions in which they differ.

    one, other: names of runs or their folders, with or without -s0.
    """
    groups = finished(out)
    one, other = (name if name in groups else re.sub(r"-s\d+$", "", name)
                  for name in (Path(one).name, Path(other).name))
    for name in (one, other):
        if name not in groups:
            raise common.UserError(f"no finished run {name}-s0, ... under {out}: there are "
                                   + ", ".join(groups))
    settings, functions = comparable(out, one, other, groups)
    seeds = [seed for seed in groups[one] if seed in groups[other]]
    if not seeds:
        raise common.UserError(f"{one} and {other} have no seed in common")
    ends = [[{k: 100 * v for k, v in groups[name][seed]["last epoch"].items()
              if k in ("R@1", "seen R@1", "MAP@R", "NMI")} | losses(Path(out, f"{name}-s{seed}"))
             for seed in seeds] for name in (one, other)]
    rows = [["last epoch", one, other, "difference", "95% interval"]]
    for metric in [k for k in ends[0][0] if all(k in end for end in ends[0] + ends[1])]:
        digits = 2 if metric[0].isupper() or metric.startswith("seen") else 4
        first, second = ([end[metric] for end in side] for side in ends)
        mean, half = confidence_interval(a - b for a, b in zip(first, second))
        interval = "–" if math.isnan(half) else \
            f"{mean - half:+.{digits}f} to {mean + half:+.{digits}f}"
        shown = [", ".join(f"{v:.{digits}f}" for v in values) if len(seeds) <= 3 else
                 spread(values, digits) for values in (first, second)]
        rows.append([metric, *shown, f"{mean:+.{digits}f}", interval])
    lines = markdown(rows) + [""]
    lines.append(f"Seeds {', '.join(seeds)}; R@1, MAP@R and NMI in %, the others as in the log; "
                 "differences within a seed, their mean.")
    if settings:
        lines.append(f"The settings differ in {settings}.")
    if functions:
        lines.append(f"The code differs in {', '.join(functions)}.")
    return "\n".join(lines)


def losses(folder):
    """The losses of a run's last epoch: what its log has before anything else."""
    last = logged(folder.parent, folder.name)[0].log[-1]
    return {k: last[k] for k in itertools.takewhile(
        lambda k: k.islower() and k not in ("lr", "images/s"), list(last)[1:])
        if isinstance(last[k], float)}


def comparable(out, one, other, groups):
    """The settings, in words, and the functions in which two settings differ.  UserError if they
    were not tested on the same images."""
    configs = [read_config(Path(out, f"{name}-s{next(iter(groups[name]))}")) or {}
               for name in (one, other)]
    tested = [{part: digest for part, digest in (config.get("images") or {}).items()
               if part in ("test", "gallery")} for config in configs]
    datasets = [Path(str(config.get("dataset"))).name for config in configs]
    differ = other_images(*tested)
    if datasets[0] != datasets[1] or differ:
        why = f"{differ} differ" if differ else " and ".join(datasets)
        raise common.UserError(f"{one} and {other} were tested on different images ({why}): their "
                               "figures have no difference to speak of")
    both = {*configs[0]} & {*configs[1]} - {"name", "paper", "seed", "splits"}
    differ = other_settings(*({k: config[k] for k in both} for config in configs))
    words = ", ".join(f"{k.rstrip('_')} ({a} and {b})" for k, (a, b) in differ.items())
    return words, other_code(configs[0].get("code"), configs[1].get("code") or {}) or []

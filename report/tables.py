"""Tables: a paper's figures and ours, every finished run, one setting against another; CSV.

Figures are last-epoch means ± standard deviations over seeds; what was not run says so.
"""
import contextlib
import csv
import functools
import json
import math
import re
import statistics
import tarfile
import tempfile
from pathlib import Path

import common
from eval import confidence_interval
from report.experiments import EXPERIMENTS, NAMES, STAND_INS, read_log, runs_of

from support.layouts import SMALLER
from support.runs import other_images, other_settings, read_config, read_result

NUMBERS = Path(__file__).with_name("paper_numbers.jsonl")
CHOSEN = "\\* the epoch chosen on the test set: not a figure to report."
IN_RUNS = {"R@1 (fraction)": "R@1", "lambda_NN": "lambda", "H-divergence_NN": "d_H"}
PERCENT = re.compile(r"(seen )?R@\d+(, l2-normalized)?|NMI|MAP@R")


@contextlib.contextmanager
def unpacked(paths):
    """A folder of runs, or archives (.tar.xz) of runs, unpacked for a while -> the folder"""
    if not any(str(path).endswith(".tar.xz") for path in paths):
        if len(paths) > 1:
            raise common.UserError("one folder of runs can be read, or several archives (.tar.xz)")
        yield paths[0]
        return
    with tempfile.TemporaryDirectory() as folder:
        for path in paths:
            try:
                with tarfile.open(path) as archive:
                    archive.extractall(folder, filter="data")
            except (OSError, tarfile.TarError) as error:
                raise common.UserError(f"cannot read the archive {path}: {error}")
        yield folder


# ---------------------------------------------------------------------------- single figures
@functools.cache
def paper_numbers():
    """paper_numbers.jsonl as {(paper, table): {dataset: {row: {metric: entry}}}}"""
    tables = {}
    for entry in map(json.loads, NUMBERS.read_text(encoding="utf-8").splitlines()):
        table = tables.setdefault((entry["paper"], entry["table"]), {})
        row = table.setdefault(entry["dataset"], {}).setdefault(entry["row"], {})
        row[entry["metric"]] = entry
    return tables


def papers_rows(key, dataset):
    """A paper's table: {dataset: {row: {metric: entry}}}, on this dataset alone (cub128: on CUB);
    on glyphs on all of the paper's."""
    table, own = paper_numbers().get(key, {}), SMALLER.get(dataset, dataset)
    return table if dataset == "glyphs" else {own: table.get(own, {})}


def metrics_of(key, dataset):
    """A table's columns: the paper's (on glyphs without R@10 and above), or the experiment's; on
    glyphs and cub128 those beside them too."""
    columns = [metric for rows in papers_rows(key, dataset).values()
               for entries in rows.values() for metric in entries] or EXPERIMENTS[key].columns
    columns = [metric for metric in dict.fromkeys(columns)
               if dataset != "glyphs" or not re.search(r"R@\d\d", metric)]
    return [*columns, *(EXPERIMENTS[key].beside if dataset in STAND_INS else ())]


def reading(run, metric, row=None, part="last epoch"):
    """A finished run's figure in the paper's unit, None if it has none.

    metric: a name of paper_numbers.jsonl, of result.json or of the last log row; or a share of the
    epochs, for R@1 after it.  row: those "at inference" read l2-normalized embeddings.
    """
    evaluated = [line for line in run.log if "R@1" in line]
    if metric == "last four R@1":                   # the mean of the last four evaluations
        return 100 * statistics.mean(line["R@1"] for line in evaluated[-4:])
    if isinstance(metric, float):                   # R@1 after about this share of the schedule
        return 100 * min(evaluated, key=lambda line: abs(
            line["epoch"] - metric * run.cfg.epochs))["R@1"]
    figures, name = run.result[part], IN_RUNS.get(metric, metric)
    if part == "last epoch":
        figures = run.log[-1] | figures
        if row and EXPERIMENTS[row.key].ten_parts:
            figures |= figures.get("ten parts", {})
        if row and "at inference" in row.name:
            name += ", l2-normalized"
    elif EXPERIMENTS[row.key].last_alone:
        return None
    value = figures.get(name)
    value = value[0] if isinstance(value, list) else value          # of [mean, half-width]
    return 100 * value if value is not None and PERCENT.fullmatch(metric) else value


def readings(runs, *args):
    """reading's figures of the finished runs that have one."""
    values = [reading(run, *args) for run in runs if run.result]
    return [v for v in values if v is not None]


def mean_and_std(values):
    """-> mean, standard deviation of the sample (n - 1); None for what there is too little for"""
    return (statistics.mean(values) if len(values) else None,
            statistics.stdev(values) if len(values) > 1 else None)


def spread(values, digits=1):
    """Values of the seeds -> 'mean ± std', the mean alone of one, – of none"""
    return " ± ".join(f"{x:.{digits}f}" for x in mean_and_std(values) if x is not None) or "–"


def published(entry):
    """A paper's figure as printed, with ± std or [its 95% interval]; – for none."""
    text = " ± ".join(str(entry[k]) for k in ("value", "std") if k in entry)
    if "ci95" in entry:
        ends = interval(entry["value"], entry["ci95"], len(text.partition(".")[2]))
        text += f" {ends.replace('+', '')}"
    return text or "–"


def interval(mean, half, digits):
    """An interval of a difference: '[+0.10, +0.30]', – if there is none."""
    if math.isnan(half):
        return "–"
    return f"[{mean - half:+.{digits}f}, {mean + half:+.{digits}f}]"


def with_interval(mean, half):
    """A difference and its interval: '+0.20 [+0.10, +0.30]', the mean alone if there is none."""
    return f"{mean:+.2f} {interval(mean, half, 2)}".removesuffix(" –")


def digits_of(metric):
    """Decimals: one of a share in %, else three."""
    return 1 if PERCENT.fullmatch(metric) else 3


def label(row):
    """A row's name as text."""
    return row.name if isinstance(row.name, str) else "{}, {} = {:g}".format(*row.name)


def markdown(rows):
    """Lists of cells, the heads first -> the lines of an aligned table."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [f"| {' | '.join(cell.ljust(w) for cell, w in zip(row, widths))} |" for row in rows]
    return [lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]]


# ---------------------------------------------------------------------------- a paper's table
def cells(row, args, most):
    """A row's figures -> a row of tables.csv per metric, and the texts of both figures of ours"""
    runs, rows = runs_of(row, args, most), []
    own = SMALLER.get(row.dataset, row.dataset)
    in_paper = papers_rows(row.key, row.dataset).get(own, {})
    for metric in metrics_of(row.key, row.dataset):
        values, best = (readings(runs, metric, row, of) for of in ("last epoch", "best on test"))
        mean, std = mean_and_std(values)
        if not any(run.result for run in runs):     # else None: DML-DA's α without DML-DA
            mean = "not run" if runs else STAND_INS[row.dataset]
        best_mean, best_std = mean_and_std(best)
        before, _ = mean_and_std(readings(runs, metric, row, "pretrained backbone"))
        csv_row = {
            "paper": row.key[0], "table": row.key[1], "row": label(row),
            "dataset": row.dataset, "metric": metric,
            "paper's figure": in_paper.get(label(row), {}).get(metric, {}).get("value"),
            "ours": mean, "our std": std, "seeds": len(values),
            "best on test, not to report": best_mean, "best on test's std": best_std,
            "before training": before,
            "command": re.sub(r" --seed 0| --out \S+", "", runs[0].command) if runs else None,
            "rate": runs[0].cfg.lr if runs else None}
        rows.append((csv_row, spread(values, digits_of(metric)), spread(best, digits_of(metric))))
    return rows


def paper_table(rows, args, most):
    """A table on one dataset, metrics across as in the paper -> Markdown lines, CSV rows.

    Below a row's figures in the paper stand ours, the difference, and the best epoch on test.
    """
    metrics = metrics_of(rows[0].key, rows[0].dataset)
    lines, csv_rows = [["", "", *metrics]], []
    for row in rows:
        figures = cells(row, args, most)
        below = [*paper_lines(row, metrics), *our_lines(row, figures)]
        lines += [[name, *line] for name, line in zip([f"**{label(row)}**"] + [""] * 9, below)]
        csv_rows += [csv_row for csv_row, _, _ in figures]
    return markdown(lines), csv_rows


def paper_lines(row, metrics):
    """A row's figures in the paper, a line per dataset -> lists of cells"""
    lines = []
    for dataset, rows in papers_rows(row.key, row.dataset).items():
        if entries := rows.get(label(row), {}):
            first = next(iter(entries.values()))
            who = f"paper, {NAMES[dataset]}" if row.dataset in STAND_INS else "paper"
            who += " ± std" if "std" in first else ", 95% interval" if "ci95" in first else ""
            lines.append([who, *(published(entries.get(metric, {})) for metric in metrics)])
    return lines


def our_lines(row, figures):
    """figures: a row's cells -> lists of cells, one below the other"""
    n = max(csv_row["seeds"] for csv_row, _, _ in figures)
    if not n:
        return [[figures[0][0]["ours"], *("–" for _ in figures)]]
    differences = []
    for cell, _, _ in figures:
        ours, papers = cell["ours"], cell["paper's figure"]
        comparable = row.dataset not in STAND_INS and None not in (ours, papers)
        differences.append(f"{ours - papers:+.{digits_of(cell['metric'])}f}" if comparable else "–")
    lines = [[f"**ours**, last epoch, n = {n}", *(f"**{ours}**" for _, ours, _ in figures)],
             ["difference", *differences], ["best on test*", *(best for _, _, best in figures)]]
    return [line for line in lines if {*line[1:]} != {"–"}]


def write_csv(path, rows):
    """Rows (dicts) -> a CSV file with every column that any of them has."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with common.atomic(path) as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


# ---------------------------------------------------------------------------- whatever was run
def folders_of(runs, file="result.json"):
    """{setting: {seed: run folder}} of those that have a file, whatever the experiment list"""
    settings = {}
    for path in sorted(Path(runs).glob(f"*-s*/{file}")):
        if name := re.fullmatch(r"(.*)-s(\d+)", path.parent.name):      # no copy of a run's folder
            settings.setdefault(name[1], {})[name[2]] = path.parent
    return settings


def seeds_of(runs, name, file="result.json"):
    """name: a setting, one of its runs, or that run's folder -> {seed: run folder} of all its runs
    that have the file.  UserError: there are none."""
    settings, name = folders_of(runs, file), Path(name).name
    setting, _, seed = name.rpartition("-s")
    if seed in settings.get(setting, {}):
        return settings[setting]
    if name in settings:
        return settings[name]
    kind = "run" if file == "log.jsonl" else "finished run"
    known = ", ".join(settings) or "none"
    raise common.UserError(f"no {kind} {name} under {runs}: there are {known}")


def table(runs):
    """Every finished run of a folder as Markdown, a row per setting."""
    columns = {"unseen R@1, last epoch": ("last epoch", "R@1"),
               "best on test*": ("best on test", "R@1"),
               "pretrained": ("pretrained backbone", "R@1"), **{
                   metric: ("last epoch", metric) for metric in ("seen R@1", "MAP@R", "NMI")}}
    rows = [["run", "seeds", *columns]]
    for name, folders in folders_of(runs).items():
        results = [read_result(folder) for folder in folders.values()]
        rows.append([name, str(len(results)), *(
            spread([100 * result[part][metric] for result in results if metric in result[part]])
            for part, metric in columns.values())])
    if len(rows) == 1:
        raise common.UserError(f"no finished run under {runs}")
    return "\n".join([*markdown(rows), "", f"%, mean ± standard deviation over seeds.  {CHOSEN}"])


def last_figures(folder):
    """A run's last epoch: what its result has in %, then what its log has, lists one by one."""
    result = read_result(folder)["last epoch"]
    figures = {metric: 100 * value for metric, value in result.items() if PERCENT.fullmatch(metric)}
    figures |= {name: result[name][0] for name in ("lambda", "d_H") if name in result}
    for name, value in read_log(folder / "log.jsonl")[-1].items():
        if name in ("epoch", "lr", "images/s", "seconds", *figures) or PERCENT.fullmatch(name):
            continue
        if isinstance(value, list):
            figures |= {f"{name}, {i}": part for i, part in enumerate(value, 1)}
        elif isinstance(value, float):
            figures[name] = value
    return figures


def compared(metric, first, second):
    """A metric's values of the seeds on both sides -> cells; up to three seeds stand one by one."""
    digits = 2 if PERCENT.fullmatch(metric) else 4
    mean, half = confidence_interval(a - b for a, b in zip(first, second))
    texts = [spread(values, digits) if len(values) > 3 else
             ", ".join(f"{v:.{digits}f}" for v in values) for values in (first, second)]
    return [metric, *texts, f"{mean:+.{digits}f}", interval(mean, half, digits)]


def compare(runs, one, other):
    """Two settings of a folder (names, or runs of them) side by side, last epoch, and their
    differences within a seed; then the settings in which they differ -> Markdown"""
    folders = [seeds_of(runs, name) for name in (one, other)]
    seeds = sorted(folders[0].keys() & folders[1].keys(), key=int)
    if not seeds:
        raise common.UserError(f"{one} and {other} have no seed in common")
    configs = [read_config(of_seed[seeds[0]]) or {} for of_seed in folders]
    tested = [{part: digest for part, digest in (config.get("images") or {}).items()
               if part in ("test", "gallery")} | {"dataset": Path(str(config.get("dataset"))).name}
              for config in configs]
    if differ := other_images(*tested):
        raise common.UserError(f"{one} and {other} were tested on different images ({differ} "
                               "differ): their figures have no difference to speak of")
    first, second = ([last_figures(of_seed[seed]) for seed in seeds] for of_seed in folders)
    settings = [re.sub(r"-s\d+$", "", of_seed[seeds[0]].name) for of_seed in folders]
    rows = [["last epoch", *settings, "difference", "95% interval"]]
    rows += [compared(metric, [f[metric] for f in first], [f[metric] for f in second])
             for metric in first[0] if all(metric in figures for figures in first + second)]
    lines = [*markdown(rows), "", f"Seeds {', '.join(seeds)}; recalls, MAP@R and NMI in %, the "
             "others as in the log; differences within a seed, their mean."]
    shared = {*configs[0]} & {*configs[1]} - {"name", "paper", "seed", "splits"}
    differ = other_settings(*({k: config[k] for k in shared} for config in configs))
    words = ", ".join(f"{k.rstrip('_')} ({a} and {b})" for k, (a, b) in differ.items())
    return "\n".join([*lines, f"The settings differ in {words}."] if words else lines)

"""Tables: a paper's figures and ours, every finished run, one setting against another; CSV."""
import contextlib
import csv
import io
import lzma
import re
import shutil
import statistics
import tarfile
import tempfile
from pathlib import Path

import common
from eval import confidence_interval
from report.experiments import EXPERIMENTS, NAMES, STAND_INS, Folder, read_lines, runs_of
from support.files import atomic
from support.layouts import SMALLER
from support.runs import other_images, other_settings

PAPER_NUMBERS = read_lines(Path(__file__).with_name("paper_numbers.jsonl"))
CHOSEN = "\\* the epoch chosen on the test set: not a figure to report."
IN_RUNS = {"R@1 (fraction)": "R@1", "lambda_NN": "lambda", "H-divergence_NN": "d_H"}
PERCENT = re.compile(r"(seen |val )?R@\d+(, l2-normalized)?|NMI|MAP@R")


# ---------------------------------------------------------------------------- cells
def mean_and_std(values):
    """-> mean, standard deviation of the sample (n - 1); None for what there is too little for"""
    return (statistics.mean(values) if len(values) else None,
            statistics.stdev(values) if len(values) > 1 else None)


def spread(values, digits=1):
    """'mean ± std', the mean alone of a single value, – of none"""
    return " ± ".join(f"{x:.{digits}f}" for x in mean_and_std(values) if x is not None) or "–"


def signed(mean, half, digits):
    """A difference and its interval: '+0.20', '[+0.10, +0.30]'; – for what is nan"""
    texts = [f"{round(mean, digits) + 0:+.{digits}f}",                  # + 0: not -0.00
             f"[{mean - half:+.{digits}f}, {mean + half:+.{digits}f}]"]
    return ["–" if "nan" in text else text for text in texts]


def label(row):
    """A row's name as text."""
    return row.name if isinstance(row.name, str) else "{}, {} = {:g}".format(*row.name)


def markdown(rows):
    """Lists of cells, the heads first -> the lines of an aligned table."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [f"| {' | '.join(cell.ljust(w) for cell, w in zip(row, widths))} |" for row in rows]
    return [lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]]


def write_csv(path, rows):
    """Rows (dicts) -> a CSV file with every column that any of them has."""
    with atomic(path) as file:
        columns = dict.fromkeys(column for row in rows for column in row)
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


# ---------------------------------------------------------------------------- single figures
def papers(key, dataset, row=None):
    """The entries of a paper's table or of one of its rows, on this dataset alone (cub128: on
    CUB); on glyphs on all of the paper's."""
    return [entry for entry in PAPER_NUMBERS if (entry["paper"], entry["table"]) == key
            and (dataset == "glyphs" or entry["dataset"] == SMALLER.get(dataset, dataset))
            and row in (None, entry["row"])]


def metrics_of(key, dataset):
    """A table's columns: the paper's (on glyphs without R@10 and above), or the experiment's; on
    glyphs and cub128 those beside them too."""
    columns = [entry["metric"] for entry in papers(key, dataset)] or EXPERIMENTS[key].columns
    columns = [metric for metric in dict.fromkeys(columns)
               if dataset != "glyphs" or not re.search(r"R@\d\d", metric)]
    return [*columns, *(EXPERIMENTS[key].beside if dataset in STAND_INS else ())]


def reading(run, metric, row=None, part="last epoch"):
    """A finished run's figure in the paper's unit, None if it has none.  metric: a name of
    paper_numbers.jsonl, of result.json or of the last log row; or a share of the epochs, for R@1
    after it.  row: one "at inference" reads the result of l2-normalized embeddings."""
    if metric == "last four R@1":                   # the mean of the last four evaluations
        return 100 * statistics.mean([line["R@1"] for line in run.log if "R@1" in line][-4:])
    if isinstance(metric, float):                   # R@1 after about this share of the schedule
        return 100 * min((line for line in run.log if "R@1" in line), key=lambda line: abs(
            line["epoch"] - metric * run.cfg.epochs))["R@1"]
    figures, name = run.result[part], IN_RUNS.get(metric, metric)
    measured = row and EXPERIMENTS[row.key].measured
    if measured and part != "last epoch":
        return None
    if measured == "ten parts":                     # R@K within them, as in JRD's Table 2
        figures = figures | figures.get(measured, {})
    elif measured and "at inference" in row.name:
        name += ", l2-normalized"
    log = run.log[-1] if part == "last epoch" and name not in figures else {}
    value = (log | figures).get(name)
    value = value[0] if isinstance(value, list) else value          # of [mean, half-width]
    return 100 * value if value is not None and PERCENT.fullmatch(metric) else value


def readings(runs, *args):
    """reading's figures of the finished runs that have one."""
    values = [reading(run, *args) for run in runs if run.result]
    return [v for v in values if v is not None]


# ---------------------------------------------------------------------------- a paper's table
def cells(row, args):
    """A row's figures -> rows of tables.csv, one per metric; {head: {metric: text}}, first the
    paper's figures, on a stand-in those on each of its datasets, then ours"""
    runs, texts, own, csv_rows = runs_of(row, args), {}, {}, []
    stand_in, n = row.dataset in STAND_INS, sum(run.result is not None for run in runs)
    for entry in papers(row.key, row.dataset, label(row)):
        head = f"paper, {NAMES[entry['dataset']]}" if stand_in else "paper"
        texts.setdefault(head, {})[entry["metric"]] = published(entry)
        if row.dataset != "glyphs":
            own[entry["metric"]] = entry["value"]
    not_run = "not run" if runs else STAND_INS[row.dataset]
    ours, difference, best = {}, {}, {}
    texts[f"**ours**, last epoch, n = {n}" if n else not_run] = ours
    texts |= {"difference": difference, "best on test*": best}
    for metric in metrics_of(row.key, row.dataset):
        last, at_best, before = (readings(runs, metric, row, part) for part in (
            "last epoch", "best on test", "pretrained backbone"))
        (mean, std), (best_mean, best_std) = mean_and_std(last), mean_and_std(at_best)
        digits = 1 if PERCENT.fullmatch(metric) else 3
        ours[metric] = f"**{spread(last, digits)}**" if n else "–"
        if last and metric in own and not stand_in:
            difference[metric] = f"{mean - own[metric]:+.{digits}f}"
        if at_best:
            best[metric] = spread(at_best, digits)
        csv_rows.append({
            "paper": row.key[0], "table": row.key[1], "row": label(row), "dataset": row.dataset,
            "metric": metric, "paper's figure": own.get(metric),
            "ours": mean if n else not_run,             # None: DML-DA's α without DML-DA
            "our std": std, "seeds": len(last), "best on test, not to report": best_mean,
            "best on test's std": best_std, "before training": mean_and_std(before)[0],
            "command": re.sub(r" --(seed 0|out ('.*'|\S+))", "", runs[0].command) if runs else None,
            "rate": runs[0].cfg.lr if runs else None})
    return csv_rows, texts


def published(entry):
    """A paper's figure as printed, with ± std or [its 95% interval]"""
    text = " ± ".join(str(entry[k]) for k in ("value", "std") if k in entry)
    if "ci95" in entry:
        digits = max(len(str(entry[k]).partition(".")[2]) for k in ("value", "ci95"))
        _, ends = signed(entry["value"], entry["ci95"], digits)
        text += f" {ends.replace('+', '')}"
    return text


def paper_table(rows, args):
    """A table on one dataset, metrics across as in the paper -> Markdown lines, CSV rows"""
    metrics = metrics_of(rows[0].key, rows[0].dataset)
    lines, csv_rows = [["", "", *metrics]], []
    for row in rows:
        figures, texts = cells(row, args)
        told = [[head, *(of_metric.get(metric, "–") for metric in metrics)]
                for head, of_metric in texts.items() if of_metric]
        lines += [[f"**{label(row)}**", *told[0]], *(["", *line] for line in told[1:])]
        csv_rows += figures
    return markdown(lines), csv_rows


# ---------------------------------------------------------------------------- whatever was run
@contextlib.contextmanager
def unpacked(paths):
    """A folder of runs, or archives (.tar.xz) of runs, unpacked for a while -> the folder"""
    if not str(paths[0]).endswith(".tar.xz") and len(paths) == 1:
        yield paths[0]
        return
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # since Python 3.11.4
    with tempfile.TemporaryDirectory() as folder:
        for path in paths:
            try:        # all of it first: tarfile takes damage in the middle for the archive's end
                content = lzma.decompress(Path(path).read_bytes())
                with tempfile.TemporaryDirectory() as own:
                    tarfile.open(fileobj=io.BytesIO(content)).extractall(own, **safely)
                    for run in sorted(Path(own).iterdir()):     # refuses another run of its name
                        shutil.move(run, folder)
            except (OSError, lzma.LZMAError, tarfile.TarError) as error:
                raise common.UserError(f"cannot read the archive {path}: {error}")
        yield folder


def folders_of(runs, file="result.json"):
    """{setting: {seed: Folder}} of those that have a file, whatever the experiment list"""
    settings = {}
    for path in sorted(Path(runs).glob(f"*-s*/{file}")):
        if name := re.fullmatch(r"(.*)-s(\d+)", path.parent.name):      # no copy of a run's folder
            settings.setdefault(name[1], {})[name[2]] = Folder(path.parent)
    return settings


def finished(path):
    """The finished runs of a folder or of an archive, Folders, one by one"""
    with unpacked([path]) as folder:
        for of_seed in folders_of(folder).values():
            yield from of_seed.values()


def seeds_of(runs, name, file="result.json"):
    """name: a setting, one of its runs, or that run's folder -> {seed: Folder} of all its runs
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
    columns = {"unseen R@1, last epoch": ["R@1"], "best on test*": ["R@1", None, "best on test"],
               "pretrained": ["R@1", None, "pretrained backbone"],
               **{metric: [metric] for metric in ("seen R@1", "MAP@R", "NMI")}}
    rows = [["run", "seeds", *columns]]
    for name, of_seed in folders_of(runs).items():
        rows.append([name, str(len(of_seed)), *(
            spread(readings(of_seed.values(), *asked)) for asked in columns.values())])
    if len(rows) == 1:
        raise common.UserError(f"no finished run under {runs}")
    return "\n".join([*markdown(rows), "", f"%, mean ± standard deviation over seeds.  {CHOSEN}"])


def last_figures(run):
    """A run's last epoch, of its result and its log: shares in %, lists one by one."""
    figures = {}
    for name, value in (run.result["last epoch"] | run.log[-1]).items():
        if isinstance(value, list) and name not in ("lambda", "d_H"):   # these: [mean, half-width]
            figures |= {f"{name}, {i}": part for i, part in enumerate(value, 1)}
        elif isinstance(value, float | list) and name not in ("lr", "images/s", "seconds"):
            figures[name] = reading(run, name)
    return figures


def compare(runs, one, other):
    """Two settings of a folder (names, or runs of them) side by side, last epoch, and their
    differences within a seed; then the settings in which they differ -> Markdown"""
    sides = [seeds_of(runs, name) for name in (one, other)]
    seeds = sorted(sides[0].keys() & sides[1].keys(), key=int)
    if not seeds:
        raise common.UserError(f"{one} and {other} have no seed in common")
    differ = {}
    for configs in ([side[seed].config for side in sides] for seed in seeds):
        tested = [{"dataset": Path(config["dataset"]).name} | {
            part: (config.get("images") or {}).get(part) for part in ("test", "gallery")}
            for config in configs]
        if others := other_images(*tested):
            raise common.UserError(f"{one} and {other} were tested on different images ({others} "
                                   "differ): their figures have no difference to speak of")
        shared = {*configs[0]} & {*configs[1]} - {"name", "seed", "splits"}
        differ |= other_settings(*({k: config[k] for k in shared} | {
            "code of the script": config.get("code")} for config in configs))
    if "paper" in differ:                                       # each of another script
        del differ["code of the script"]
    names = [side[seeds[0]].folder.name.rpartition("-s")[0] for side in sides]
    rows = [["last epoch", *names, "difference", "95% interval"]]
    figures = [[last_figures(side[seed]) for seed in seeds] for side in sides]
    for metric in figures[0][0]:
        if all(metric in of_seed for of_seed in sum(figures, [])):
            a, b = both = [[of_seed[metric] for of_seed in side] for side in figures]
            digits = 2 if PERCENT.fullmatch(metric) else 4
            mean, half = confidence_interval(x - y for x, y in zip(a, b))
            texts = [", ".join(f"{x:.{digits}f}" for x in values) if len(seeds) < 4
                     else spread(values, digits) for values in both]
            rows.append([metric, *texts, *signed(mean, half, digits)])
    alone = ", ".join(sorted(sides[0].keys() ^ sides[1].keys(), key=int))
    told = ", ".join(seeds) + (alone and f" (one side has {alone} too)")
    lines = [*markdown(rows), "", f"Seeds {told}; recalls, MAP@R and NMI in %, the others as in "
             "the log; differences within a seed, their mean."]
    words = ", ".join(f"{k.rstrip('_')} ({a} and {b})" for k, (a, b) in differ.items())
    return "\n".join([*lines, f"The settings differ in {words}."] if words else lines)

"""Tables: a paper's figures and ours, every finished run, one setting against another; CSV."""
import contextlib
import io
import lzma
import re
import statistics
import tarfile
import tempfile
from collections import defaultdict
from pathlib import Path

from eval import confidence_interval
from report.experiments import EXPERIMENTS, NAMES, Folder, read_lines, runs_of
from support.files import UserError
from support.layouts import SMALLER
from support.runs import differences

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
    return f"{text} {interval(mean - half, mean + half, digits)}" if len(values) > 2 else text


def label(row):
    return row.name if isinstance(row.name, str) else "{}, {} = {:g}".format(*row.name)


def markdown(rows):
    """Lists of cells, the heads first -> the lines of an aligned table."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [f"| {' | '.join(cell.ljust(w) for cell, w in zip(row, widths))} |" for row in rows]
    return [lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]]


# ---------------------------------------------------------------------------- single figures
def papers(key, dataset, row=None):
    """The entries of a paper's table or of one of its rows, on this dataset alone (cub128: on
    CUB); on glyphs on all of the paper's."""
    return [entry for entry in PAPER_NUMBERS if (entry["paper"], entry["table"]) == key
            and (dataset == "glyphs" or entry["dataset"] == SMALLER.get(dataset, dataset))
            and row in (None, entry["row"])]


def metrics_of(key, dataset):
    """A table's columns: the paper's (on glyphs without R@10 and above) or the experiment's, and
    those beside them"""
    columns = [entry["metric"] for entry in papers(key, dataset)] or EXPERIMENTS[key].columns
    columns = [metric for metric in dict.fromkeys(columns)
               if dataset != "glyphs" or not re.search(r"R@\d\d", metric)]
    return [*columns, *EXPERIMENTS[key].beside]


def reading(run, metric, row=None, part="last epoch"):
    """A finished run's figure in the paper's unit, None if it has none.  metric: a name of
    paper_numbers.jsonl, of result.json or of the last log row.  row: one "at inference" reads the
    result of l2-normalized embeddings."""
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


def by_seed(runs, *args):
    """{seed: reading's figure} of the finished runs that have one."""
    figures = {run.config["seed"]: reading(run, *args) for run in runs if run.result}
    return {seed: value for seed, value in figures.items() if value is not None}


def gains(ours, baselines):
    """{seed: figure} of a row and of its baseline -> their differences in the seeds of both"""
    return [ours[seed] - baselines[seed] for seed in ours if seed in baselines]


# ---------------------------------------------------------------------------- a paper's table
def cells(row, args):
    """A row's figures -> rows of tables.csv, one per metric; {head: {metric: text}}, first the
    paper's figures, on glyphs those on each of its datasets, then ours"""
    runs, own, texts, csv_rows = runs_of(row, args), {}, defaultdict(dict), []
    baseline = row.baseline and row.baseline._replace(seeds=row.seeds)
    n = sum(run.result is not None for run in runs)
    ours = f"**ours**, last epoch, n = {n}" if n else "not run"
    for entry in papers(row.key, row.dataset, label(row)):
        texts[f"paper, {NAMES[entry['dataset']]}"][entry["metric"]] = published(entry)
        if row.dataset != "glyphs":
            own[entry["metric"]] = entry["value"]
    for metric in metrics_of(row.key, row.dataset):
        last, at_best, before = (by_seed(runs, metric, row, part) for part in (
            "last epoch", "best on test", "pretrained backbone"))
        gain = gains(last, by_seed(runs_of(baseline, args), metric, baseline)) if baseline else []
        mean, std = mean_and_std(last.values())
        best, best_std = mean_and_std(at_best.values())
        gained, half = confidence_interval(gain) if gain else (None, None)
        digits = 1 if PERCENT.fullmatch(metric) else 3
        texts[ours][metric] = f"**{spread(last.values(), digits)}**" if n else "–"
        if gain:
            head = f"gain over {label(baseline)}, n = {len(gain)}"
            texts[head][metric] = difference(gain, digits + 1)
        if at_best:
            texts["best on test*"][metric] = spread(at_best.values(), digits)
        csv_rows.append({
            "paper": row.key[0], "table": row.key[1], "row": label(row), "dataset": row.dataset,
            "metric": metric, "paper's figure": own.get(metric),
            "ours": mean if n else ours,                # None: DML-DA's α without DML-DA
            "our std": std, "seeds": len(last), "best on test, not to report": best,
            "best on test's std": best_std, "before training": mean_and_std(before.values())[0],
            "command": re.sub(r" --(seed 0|out ('.*'|\S+))", "", runs[0].command),
            "rate": runs[0].cfg.lr, "baseline": baseline and label(baseline), "gain": gained,
            "gain's half-width": half if len(gain) > 2 else None, "gain's seeds": len(gain)})
    return csv_rows, texts


def published(entry):
    """A paper's figure as printed, with ± std or [its 95% interval]"""
    text = " ± ".join(str(entry[k]) for k in ("value", "std") if k in entry)
    if "ci95" in entry:
        value, half = entry["value"], entry["ci95"]
        digits = max(len(str(x).partition(".")[2]) for x in (value, half))
        text += " " + interval(value - half, value + half, digits).replace("+", "")
    return text


def paper_table(rows, args):
    """A table on one dataset, metrics across as in the paper -> Markdown lines, CSV rows"""
    metrics = metrics_of(rows[0].key, rows[0].dataset)
    lines, csv_rows = [["", "", *metrics]], []
    for row in rows:
        figures, texts = cells(row, args)
        told = [[head, *(by_metric.get(metric, "–") for metric in metrics)]
                for head, by_metric in texts.items()]
        lines += [[f"**{label(row)}**", *told[0]], *(["", *line] for line in told[1:])]
        csv_rows += figures
    return markdown(lines), csv_rows


def pair_table(rows, args):
    """R@1 of some rows and of their baselines, seed by seed, and the gain -> Markdown lines"""
    lines = [["method", "R@1", "baseline", "R@1", "gain", "seeds"]]
    for row in rows:
        ours, theirs = (by_seed(runs_of(side, args), "R@1") for side in (row, row.baseline))
        lines.append([label(row), each(ours.values()) or "not run", label(row.baseline),
                      each(theirs.values()) or "not run", difference(gains(ours, theirs)),
                      ", ".join(map(str, ours)) or "–"])
    return markdown(lines)


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
                content = io.BytesIO(lzma.decompress(Path(path).read_bytes()))
                archive = tarfile.open(fileobj=content)
                for file in filter(tarfile.TarInfo.isfile, archive):
                    if Path(folder, file.name).exists():
                        raise UserError(f"{path}: {file.name} is in another archive too")
                archive.extractall(folder, **safely)
            except (OSError, lzma.LZMAError, tarfile.TarError) as error:
                raise UserError(f"cannot read the archive {path}: {error}")
        yield folder


def folders_of(runs, file="result.json"):
    """{setting: {seed: Folder}} of those that have a file, whatever the experiment list"""
    settings = {}
    for path in sorted(Path(runs).glob(f"*-s*/{file}")):
        if file == "result.json" and not path.with_name("config.json").exists():
            raise UserError(f"{path.parent} has no config.json: was it copied in part?")
        if name := re.fullmatch(r"(.*)-s(\d+)", path.parent.name):      # no copy of a run's folder
            settings.setdefault(name[1], {})[name[2]] = Folder(path.parent)
    return settings


def finished(path):
    """The finished runs of a folder or of an archive, Folders, one by one"""
    with unpacked([path]) as folder:
        for runs in folders_of(folder).values():
            yield from runs.values()


def seeds_of(runs, name, file="result.json"):
    """name: a setting, one of its runs, or that run's folder -> {seed: Folder} of all its runs
    that have the file.  UserError: there are none."""
    settings, name = folders_of(runs, file), Path(name).name
    run = re.fullmatch(r"(.*)-s(\d+)", name)
    setting = run[1] if run and run[2] in settings.get(run[1], {}) else name
    if setting not in settings:
        kind = "run" if file == "log.jsonl" else "finished run"
        known = ", ".join(settings) or "none"
        raise UserError(f"no {kind} {name} under {runs}: there are {known}")
    return settings[setting]


def table(runs):
    """Every finished run of a folder as Markdown, a row per setting."""
    columns = {"unseen R@1, last epoch": ["R@1"], "best on test*": ["R@1", None, "best on test"],
               "pretrained": ["R@1", None, "pretrained backbone"],
               **{metric: [metric] for metric in ("seen R@1", "MAP@R", "NMI")}}
    rows = [["run", "seeds", *columns, "code"]]
    for name, folders in folders_of(runs).items():
        rows.append([name, str(len(folders)), *(
            spread(by_seed(folders.values(), *asked).values()) for asked in columns.values()),
            ", ".join({str(run.config.get("code")): 0 for run in folders.values()})])
    if len(rows) == 1:
        raise UserError(f"no finished run under {runs}")
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


def settings_that_differ(*runs):
    """Two runs -> {setting: its values in both}.  UserError: they were tested on other images."""
    one, other = [run.config for run in runs]
    differ, images = differences({"code": None} | one, {"code": None} | other), []
    if Path(one["dataset"]).name != Path(other["dataset"]).name:
        images.append("dataset")
    for split in ("test", "gallery"):
        if f"images of {split}" in differ:
            images.append(split)
    if images:
        raise UserError(f"{' and '.join(run.folder.name for run in runs)} were tested on different "
                        f"images ({', '.join(images)} differ): their figures have no difference to "
                        "speak of")
    codes = differ.pop("code", None)
    told = {name: differ[name] for name in sorted(differ)
            if name not in ("name", "seed", "splits", "images of train", "images of val")}
    if codes and "paper" not in differ:
        told["code"] = codes
    return told


def compare(runs, *names):
    """Two settings of a folder (names, or runs of them) side by side, last epoch, and their
    differences within a seed; then the settings in which they differ -> Markdown"""
    one, other = [seeds_of(runs, name) for name in names]
    seeds, differ = sorted(one.keys() & other.keys(), key=int), {}
    if not seeds:
        raise UserError(f"{' and '.join(names)} have no seed in common")
    for seed in seeds:
        differ |= settings_that_differ(one[seed], other[seed])
    figures = [[last_figures(side[seed]) for seed in seeds] for side in (one, other)]
    rows = [["last epoch", *(side[seeds[0]].folder.name.rpartition("-s")[0]
                             for side in (one, other)), "difference"]]
    for metric in figures[0][0]:
        if all(metric in of_run for of_run in sum(figures, [])):
            a, b = ([of_run[metric] for of_run in side] for side in figures)
            digits = 2 if PERCENT.fullmatch(metric) else 4
            rows.append([metric, each(a, digits), each(b, digits),
                         difference([x - y for x, y in zip(a, b)], digits)])
    alone = ", ".join(sorted(one.keys() ^ other.keys(), key=int))
    told = ", ".join(seeds) + (alone and f" (one side has {alone} too)")
    words = ", ".join(f"{k.rstrip('_')} ({a} and {b})" for k, (a, b) in differ.items())
    return "\n".join([
        *markdown(rows), "", f"Seeds {told}; recalls, MAP@R and NMI in %, others as in the log; "
        "differences within a seed, their mean, from three seeds on with its 95% interval.",
        *([f"The settings differ in {words}."] if words else [])])

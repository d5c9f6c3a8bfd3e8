"""Every table, figure and claim of the three papers: what to run for it, and what came out.

    python report.py                              every finished run under runs/, as a table
    python report.py --dataset glyphs             the report in miniature: Markdown, CSV and PNGs
    python report.py --dataset real --to DIR      ... on the papers' datasets (or: cub, ...)
    python report.py --list [--dataset ...]       the commands of every run, one a line
    python report.py --plan [--dataset ...]       what there is to do; on stdout the commands left
    python report.py --compare RUN RUN            one setting against another, paired by seed
    python report.py --sheet runs/RUN/last.pt     queries and the five images nearest to each, a PNG
--paper, --table and --seeds narrow or widen them.  bash run_all.sh runs what is left and reports.

EXPERIMENTS is the one source of the commands and of the tables.  A row's run is found by the paper
script's own parse_args and the run folder's name, so that rows that share a run share it here too.
Figures are last-epoch means ± standard deviations over seeds; what was not run says so.
"""
import argparse
import contextlib
import csv
import functools
import importlib
import json
import math
import os
import platform
import re
import statistics
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import PIL.Image

import common
from eval import confidence_interval, load_run

NUMBERS = common.HERE / "results" / "paper_numbers.jsonl"
NAMES = {"jrd": "JRD", "mdr": "MDR", "dml_da": "DML-DA", "glyphs": "glyphs", "cub": "CUB",
         "cars": "Cars", "sop": "SOP", "inshop": "In-Shop"}


# ---------------------------------------------------------------------------- the experiment list
# (paper, table or figure): (title, datasets, seeds on glyphs, {row: flags}).  Rows of tables have
# their names of paper_numbers.jsonl; a row of a sweep is (series, symbol, value).  No flags: the
# dataset's preset, which is the paper's method.
VARIANTS = {"JRD": "", "MRD": "--variant mrd", "JRD-C": "--variant jrd-c",
            "JRD-Pooling": "--variant jrd-pooling"}
TRIPLET = {"Triplet": "--lambda 0", "Triplet+L2Norm": "--lambda 0 --l2norm", "Triplet+MDR": ""}
LEVELS = ("-1 0 1", "-2 0 2", "-3 0 3", "-3 -1 0 1 3", "-3 -2 0 2 3", "-4 -2 0 2 4", "-6 -3 0 3 6")
LOSSES = {"triplet": "--loss triplet", "N-pair": "--loss npair", "contrastive": ""}
PLAIN = {name[0].upper() + name[1:]: f"{loss} --lambda 0" for name, loss in LOSSES.items()}
ADAPTIVE = {f"DML-DA {name}": loss for name, loss in LOSSES.items()}
ALPHAS = (0, 0.1, 0.4, 0.7, 1, 1.5, 2)     # Fig. 4 and 5 go from 0 to 2; the paper names no points
EXPERIMENTS = {
    ("jrd", "1"): ("Recall@K; AMSoftmax is α = 0, not in the paper's table", "cub cars sop", 5, {
        "JRD": "", "AMSoftmax": "--alpha 0"}),
    ("jrd", "2"): ("which representations are joined; in ten parts (SOP: whole)",
                   "cub cars sop", 5, VARIANTS),
    ("jrd", "3"): ("terms of the generalization bound by 1-NN; R@1 in ten parts", "cub", 5, {
        "JMMD (alpha=0.1)": "--regularizer jmmd", "JRD (alpha=1)": ""}),
    ("jrd", "4"): ("kernels", "cub", 5, {
        "Gaussian (alpha=1)": "--K 1", "Laplace (alpha=1)": "--kernel laplace",
        "polynomial p=2 (alpha=1e-3)": "--kernel polynomial",
        "polynomial p=5 (alpha=1e-3)": "--kernel polynomial --p 5",
        "moment-generating exp(x.x') (alpha=1e-3)": "--kernel mgf"}),
    ("jrd", "fig2"): ("λ and d_H against the intra-class penalty of Eq. 4", "cub", 3, {
        ("AMSoftmax + intra-class penalty", "α", a): f"--regularizer intra --alpha {a}" if a else
        "--alpha 0" for a in (0, 0.05, 0.1, 0.2, 0.5, 1)}),
    ("jrd", "fig4"): ("R@1 against α", "cub cars sop", 3, {
        ("JRD", "α", a): f"--alpha {a}" for a in ALPHAS}),
    ("jrd", "fig5"): ("R@1 against α for JRD, JMMD and JIntra", "cub", 3, {
        (name, "α", a): f"--regularizer {name.lower()} --alpha {a}".replace("jrd", "jrs") if a else
        "--alpha 0" for name in ("JRD", "JMMD", "JIntra") for a in ALPHAS}),
    ("jrd", "fig6"): ("R@1 over (K, K')", "cub cars", 3, {
        (f"K' = {b}", "K", a): f"--K {a} --K-prime {b}" for b in (1, 3, 5) for a in (1, 3, 5)}),
    ("mdr", "1a"): ("Recall@K", "cub cars", 5, TRIPLET | {"Triplet+MDR (256x256)": "--size 256"}),
    ("mdr", "1b"): ("Recall@K", "sop inshop", 5, TRIPLET | {"Triplet+MDR (256x256)": "--size 256"}),
    ("mdr", "2a"): ("backbones", "cub cars", 5, {
        name + mdr: f"--backbone {backbone}{flag}" for name, backbone in (
            ("R18", "resnet18"), ("R50", "resnet50"), ("IBN", "bn_inception"))
        for mdr, flag in (("", " --lambda 0"), ("+MDR", ""))}),
    ("mdr", "2b"): ("losses", "cub cars", 5, {
        name + mdr: f"--loss {name.lower()}{flag}" for name in ("Contrastive", "Margin", "Triplet")
        for mdr, flag in (("", " --lambda 0"), ("+MDR", ""))}),
    ("mdr", "2c"): ("configurations of the levels", "cub", 5, {
        f"levels {{{levels.replace(' ', ',')}}} {kind}": f"--levels {levels}{flag}"
        for levels in LEVELS for kind, flag in (("fixed", " --fixed-levels"), ("learnable", ""))}),
    ("mdr", "3"): ("l2 norm at inference only", "cub", 5, {
        name + way: flags for name, flags in TRIPLET.items() if "L2" not in name
        for way in ("", " (L2 norm at inference)")}),
    ("mdr", "fig3a"): ("R@1 against the embedding's width", "cub cars", 3, {
        (name, "d", d): f"{flags} --dim {d}" for name, flags in TRIPLET.items()
        for d in (64, 128, 256, 512)}),
    ("mdr", "fig3b"): ("learning curves of train and test", "cub", 5, TRIPLET),
    ("mdr", "fig4"): ("norms of the test embeddings", "cub", 5, TRIPLET),
    ("mdr", "fig5"): ("centres of the test classes, t-SNE", "cub", 5, TRIPLET),
    ("mdr", "fig6"): ("pairs at each level", "cub", 5, {"Triplet+MDR": ""}),
    ("dml_da", "I"): ("NMI and Recall@K", "cars cub sop", 5, PLAIN | ADAPTIVE),
    ("dml_da", "fig1"): ("ten training classes, t-SNE; R@1 of train and test", "cars", 5,
                         PLAIN | {"DML-DA contrastive": ""}),
    ("dml_da", "fig3"): ("R@K with and without the correlation term", "cars", 5, ADAPTIVE | {
        f"DML-DA⁻ {name}": f"{loss} --regularizer da-" for name, loss in LOSSES.items()}),
    ("dml_da", "fig4"): ("NMI that regularizers gain", "cars cub sop", 5, PLAIN | {
        f"{name}+{kind}": loss + f" --regularizer {kind.lower()}" * (kind != "DA")
        for name, loss in LOSSES.items() for kind in ("EN", "GOR", "DA")}),
    ("dml_da", "fig5"): ("all training classes, t-SNE", "cars", 5, PLAIN | ADAPTIVE),
    ("dml_da", "fig6"): ("NMI against λ", "cars", 3, {
        (f"DML-DA {name}", "λ", x): f"{loss} --lambda {x}" for name, loss in LOSSES.items()
        for x in (0.5, 2, 5, 7, 10, 15, 25)}),
    **{("dml_da", fig): ("test images by t-SNE", dataset, 5, {"DML-DA contrastive": ""})
       for fig, dataset in (("fig7", "cars"), ("fig8", "cub"), ("fig9", "sop"))}}
SAME_ON_GLYPHS = {("mdr", "1b"): ("mdr", "1a"), ("dml_da", "fig8"): ("dml_da", "fig7"),
                  ("dml_da", "fig9"): ("dml_da", "fig7")}
QUICK = {("jrd", "1"): ("JRD", "AMSoftmax"), ("mdr", "1a"): tuple(TRIPLET),
         ("mdr", "fig3b"): tuple(TRIPLET), ("dml_da", "I"): ("Contrastive", "DML-DA contrastive")}
Row = namedtuple("Row", "key name dataset flags seeds")     # key: (paper, table)


def miniature(flags):
    """Flags on the papers' datasets -> on glyphs, widths an eighth; None: there is no miniature of
    other backbones and of 256 × 256 images."""
    if "--backbone" in flags or "--size" in flags:
        return None
    return re.sub(r"--dim (\d+)", lambda found: f"--dim {int(found[1]) // 8}", flags)


def experiments(args):
    """The rows that the command line selects."""
    small, rows = args.dataset == "glyphs", []
    for key, (_, datasets, seeds, row_flags) in EXPERIMENTS.items():
        if args.paper not in (None, key[0]) or args.table not in (None, key[1].lower()):
            continue
        seeds = args.seeds or (2 if args.quick else seeds if small else 5)
        for dataset in ["glyphs"] if small else datasets.split():
            if args.dataset not in ("glyphs", "real", dataset):
                continue
            for name in QUICK.get(key, ()) if args.quick else row_flags:
                flags = row_flags[name]
                if small:
                    flags = miniature(flags)
                    if isinstance(name, tuple) and name[1] == "d":
                        name = (*name[:2], name[2] // 8)
                rows.append(Row(key, name, dataset, flags, seeds))
    if not rows:
        raise common.UserError(f"nothing to run for --dataset {args.dataset}" + "".join(
            f" --{k} {v}" for k, v in (("paper", args.paper), ("table", args.table)) if v) +
            " --quick" * args.quick + ": there are " + ", ".join(
                " ".join(key) for key in EXPERIMENTS if args.paper in (None, key[0])))
    return rows


def read_result(path):
    """A result.json -> its dict.  UserError if it is none."""
    try:
        result = json.loads(path.read_text())
        return {part: result[part] for part in ("last epoch", "best on test", "untrained backbone")}
    except (ValueError, KeyError, TypeError):
        raise common.UserError(f"{path} is not the result of a run: delete {path.parent} to train "
                               "anew")


class Training:
    """One run: its command, settings and folder, and what stands in the folder."""

    def __init__(self, paper, dataset, flags, seed, out):
        words = ["--dataset", dataset, *flags.split(), "--seed", str(seed)]
        words += [] if out == "runs" else ["--out", out]
        self.paper, self.command = paper, " ".join(["python", f"{paper}.py", *words])
        self.cfg, preset = importlib.import_module(paper).parse_args(words)
        self.folder = common.run_folder(paper, self.cfg, preset)

    @functools.cached_property
    def state(self):
        """'finished', 'begun', 'to do', or 'stale' where the folder holds other settings."""
        differ = common.other_settings(self.folder, vars(self.cfg))
        if differ is None:
            return "to do"
        if differ.keys() & vars(self.cfg).keys():
            return "stale"
        return "finished" if (self.folder / "result.json").exists() else "begun"

    @functools.cached_property
    def result(self):
        """result.json of a finished run, else None."""
        if self.state == "finished":
            return read_result(self.folder / "result.json")

    @functools.cached_property
    def log(self):
        path = self.folder / "log.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def images_left(self):
        """Training images still to process; what the evaluations embed comes on top."""
        classes, per_class = common.GLYPHS["train"]
        train = len(classes) * per_class if self.cfg.dataset == "glyphs" else \
            common.COUNTS[self.cfg.dataset]["train"][0]
        batches = getattr(self.cfg, "iterations", None)
        epochs = {"finished": self.cfg.epochs, "begun": len(self.log)}.get(self.state, 0)
        return (self.cfg.epochs - epochs) * (batches * self.cfg.batch if batches else train)


training = functools.cache(Training)        # of the same arguments the same one


def runs_of(row, out, seeds=None):
    """A row's runs, a seed each; none where it has no miniature."""
    return [] if row.flags is None else [training(row.key[0], row.dataset, row.flags, seed, out)
                                         for seed in range(seeds or row.seeds)]


def all_runs(rows, out):
    """Every training that the rows need, each once: the first seed of all, then the second, ..."""
    runs = {}
    for seed in range(max(row.seeds for row in rows)):
        for row in rows:
            for run in runs_of(row, out)[seed:seed + 1]:
                runs.setdefault(run.folder, run)
    return list(runs.values())


def plan(rows, out):
    """The plan on stderr, the commands that are left on stdout -> status, 1: some cannot start"""
    runs, missing = all_runs(rows, out), {}
    for dataset, root in {run.cfg.dataset: run.cfg.data_root for run in runs}.items():
        try:
            if dataset != "glyphs":
                common.read_dataset(dataset, root)
        except common.UserError as error:
            missing[dataset] = f"missing: {error}"
    states = [run.state for run in runs]
    lines = [f"plan: {len(runs)} runs for {len({row.key for row in rows})} tables and figures, " +
             ", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states))]
    left = [run for run in runs if run.state != "finished"]
    for dataset in dict.fromkeys(run.cfg.dataset for run in left):
        images = [run.images_left() for run in left if run.cfg.dataset == dataset]
        lines.append(f"  {dataset}: {len(images)} runs, {sum(images):,} training images" +
                     ", cannot start" * (dataset in missing))
    lines += [f"  {run.folder} holds other settings: delete it to train anew"
              for run in left if run.state == "stale"]
    print("\n".join([*lines, *missing.values()]), file=sys.stderr, flush=True)
    print("".join(f"{run.command}\n" for run in left if run.cfg.dataset not in missing), end="")
    return int(bool(missing))


# ---------------------------------------------------------------------------- the tables
CHOSEN = "\\* the epoch chosen on the test set: not a figure to report."
COLUMNS = {  # what a figure's table shows, where it is not R@1 alone
    ("jrd", "fig2"): ("lambda", "d_H", "R@1"), ("mdr", "fig3b"): ("R@1", "seen R@1"),
    ("mdr", "fig4"): ("norm mean", "norm cv"), ("dml_da", "fig1"): ("R@1", "seen R@1"),
    ("dml_da", "fig4"): ("NMI",), ("dml_da", "fig6"): ("NMI",),
    ("dml_da", "fig3"): tuple(f"R@{2 ** i}" for i in range(8))}
IN_RUNS = {"R@1 (fraction)": "R@1", "lambda_NN": "lambda", "H-divergence_NN": "d_H"}
PERCENT = re.compile(r"(seen )?R@\d+(, l2-normalized)?|NMI|MAP@R")


@functools.cache
def paper_numbers():
    """paper_numbers.jsonl as {(paper, table): {(row, dataset): {metric: entry}}}"""
    found = {}
    for entry in map(json.loads, NUMBERS.read_text().splitlines()):
        rows = found.setdefault((entry["paper"], entry["table"]), {})
        rows.setdefault((entry["row"], entry["dataset"]), {})[entry["metric"]] = entry
    return found


def metrics_of(key, dataset):
    """A table's columns: the paper's; on glyphs those of them that are measured there."""
    columns = dict.fromkeys(m for (_, where), entries in paper_numbers().get(key, {}).items()
                            if dataset in ("glyphs", where) for m in entries)
    return [m for m in columns or COLUMNS.get(key, ("R@1",))
            if dataset != "glyphs" or not re.search(r"R@\d\d", m)]


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
    value = value[0] if isinstance(value, list) else value                  # [mean, half-width]
    return 100 * value if PERCENT.fullmatch(metric) and value is not None else value


def readings(runs, *args):
    values = [reading(run, *args) for run in runs if run.result]
    return [v for v in values if v is not None]


def spread(values, digits=1):
    """'mean ± std', the std of the sample (n - 1); the mean alone for one value, – for none."""
    if not values:
        return "–"
    return f"{statistics.mean(values):.{digits}f}" + (
        f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else "")


def published(value, digits):
    """A figure of a paper with no digit less than it has, – for none."""
    return "–" if value is None else f"{value:.{max(digits, len(str(value).partition('.')[2]))}f}"


def digits_of(key, metric):
    return 3 if not PERCENT.fullmatch(metric) else 2 if key[0] == "dml_da" else 1


def markdown(rows):
    """Lists of cells, the heads first -> the lines of an aligned table."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [f"| {' | '.join(cell.ljust(w) for cell, w in zip(row, widths))} |" for row in rows]
    return [lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]]


def finished(out):
    """The finished runs of a folder, whatever the experiment list -> {setting: {seed: result}}"""
    groups = {}
    for path in sorted(Path(out).glob("*-s*/result.json")):
        setting, seed = re.fullmatch(r"(.*)-s(\w*)", path.parent.name).groups()
        groups.setdefault(setting, {})[seed] = read_result(path)
    if not groups:
        raise common.UserError(f"no finished run under {out}")
    return groups


def table(out):
    """Every finished run of a folder as Markdown, a row a setting."""
    columns = [("unseen R@1, last epoch", "last epoch", "R@1"),
               ("best on test*", "best on test", "R@1"), ("untrained", "untrained backbone", "R@1"),
               *((metric, "last epoch", metric) for metric in ("seen R@1", "MAP@R", "NMI"))]
    rows = [["run", "seeds", *(name for name, _, _ in columns)]]
    for name, results in finished(out).items():
        rows.append([name, str(len(results)), *(spread([
            100 * r[part][metric] for r in results.values() if metric in r[part]])
            for _, part, metric in columns)])
    return "\n".join([*markdown(rows), "", f"%, mean ± standard deviation over seeds.  {CHOSEN}"])


def compare(out, one, other):
    """The differences between two settings of a folder within a seed, last epoch, as Markdown."""
    groups = finished(out)
    for name in (one, other):
        if name not in groups:
            raise common.UserError(f"no finished run {name}-s0, ... under {out}: there are "
                                   + ", ".join(groups))
    last = [{seed: result["last epoch"] for seed, result in groups[name].items()}
            for name in (one, other)]
    rows = [["%", "seeds", f"{one} - {other}", "95% interval"]]
    for metric in ("R@1", "seen R@1", "MAP@R", "NMI"):
        gains = [100 * (last[0][seed][metric] - last[1][seed][metric]) for seed in last[0]
                 if seed in last[1] and metric in last[0][seed] and metric in last[1][seed]]
        if gains:
            mean, half = confidence_interval(gains)
            rows.append([metric, str(len(gains)), f"{mean:+.2f}", "–" if math.isnan(half) else
                         f"{mean - half:+.2f} to {mean + half:+.2f}"])
    return "\n".join(markdown(rows))


def label(name):
    return name if isinstance(name, str) else f"{name[0]}, {name[1]} = {name[2]:g}"


def cells(row, out, most):
    """What stands in each column of a row -> a CSV row (dict) a metric."""
    runs, rows = runs_of(row, out, most), []
    papers = {where: entries for (name, where), entries in
              paper_numbers().get(row.key, {}).items() if name == row.name}
    for metric in metrics_of(row.key, row.dataset):
        ours, best = readings(runs, metric, row), readings(runs, metric, row, "best on test")
        entry = papers.get(row.dataset, {}).get(metric, {})
        digits = digits_of(row.key, metric)
        rows.append({
            "paper": row.key[0], "table": row.key[1], "row": label(row.name),
            "dataset": row.dataset, "metric": metric, "reported by": entry.get("reported_by"),
            "paper's figure": entry.get("value"), "paper's std": entry.get("std"),
            "paper's 95% interval": entry.get("ci95"),
            "ours": statistics.mean(ours) if ours else "not run" if runs else "no miniature",
            "our std": statistics.stdev(ours) if len(ours) > 1 else None, "seeds": len(ours),
            "difference": statistics.mean(ours) - entry["value"] if ours and entry else None,
            "best on test, not to report": statistics.mean(best) if best else None,
            "million images to run": sum(r.images_left() for r in runs[:row.seeds]) / 1e6,
            "command": runs[0].command.replace(" --seed 0", "") if runs else None,
            **{f"paper's on {d}": e[metric]["value"] for d, e in papers.items()
               if row.dataset == "glyphs" and metric in e},
            "digits": digits, "text": spread(ours, digits), "best": spread(best, digits)})
    return rows


def real_table(rows, out, most):
    """A table on one dataset, metrics across as in the paper -> lines, CSV rows.

    Below a row's figures in the paper stand ours, the difference, and the best epoch on test.
    """
    (key, _, dataset, _, _), own = rows[0], {row.name for row in rows}
    metrics, csv_rows = metrics_of(key, dataset), []
    in_paper = {name: entries for (name, where), entries in paper_numbers().get(key, {}).items()
                if where == dataset}
    lines = [["", "", *metrics]]
    for name in [n for n in in_paper if n not in own]:
        entries = in_paper[name]
        reported_by = next(iter(entries.values()))["reported_by"]
        kind = "quoted" if reported_by.startswith("quoted") else "by others' model"
        lines.append([name, kind, *(published(entries.get(m, {}).get("value"), digits_of(key, m))
                                    for m in metrics)])
        csv_rows += [{"paper": key[0], "table": key[1], "row": name, "dataset": dataset,
                      "metric": m, "reported by": e["reported_by"], "paper's figure": e["value"],
                      "ours": kind} for m, e in entries.items()]
    for row in rows:
        found, name = cells(row, out, most), label(row.name)
        csv_rows += found
        if row.name in in_paper:
            kinds = {"paper's std": "std", "paper's 95% interval": "95% interval"}
            kind = [text for k, text in kinds.items() if any(c[k] is not None for c in found)]
            lines.append([f"**{name}**", " ± ".join(["paper", *kind]), *(" ± ".join(
                published(c[k], c["digits"]) for k in ("paper's figure", *kinds)
                if c[k] is not None) or "–" for c in found)])
            name = ""
        n = max(c["seeds"] for c in found)
        if not n:
            price = f"{row.seeds} runs, {found[0]['million images to run']:,.1f} million images"
            lines.append([name, price, *["not run"] * len(metrics)])
            continue
        lines.append([name, f"**ours**, last epoch, n = {n}", *(f"**{c['text']}**" for c in found)])
        if row.name in in_paper:
            lines.append(["", "difference", *(f"{c['difference']:+.{c['digits']}f}" if
                                              c["difference"] is not None else "–" for c in found)])
        if any(c["best"] != "–" for c in found):
            lines.append(["", "best on test*", *(c["best"] for c in found)])
    return markdown(lines), csv_rows


def glyphs_table(rows, out, most):
    """A table in miniature, a line a row, the paper's figures on its datasets beside it."""
    metrics = metrics_of(rows[0].key, "glyphs")
    first = next((m for m in metrics if m.startswith("R@1")), metrics[0])
    found = [cells(row, out, most) for row in rows]
    shown = [next(c for c in row if c["metric"] == first) for row in found]
    best = any(c["best"] != "–" for c in shown)
    elsewhere = dict.fromkeys(k for c in shown for k in c if k.startswith("paper's on"))
    lines = [["", "seeds", *metrics, *[f"best {first}*"] * best,
              *(f"paper's {first} on {NAMES[k.split()[-1]]}" for k in elsewhere)]]
    for row, one in zip(found, shown):
        n = max(c["seeds"] for c in row)
        lines.append([one["row"], str(n), *(c["text"] if n else c["ours"] for c in row),
                      *[one["best"]] * best,
                      *(published(one.get(k), one["digits"]) for k in elsewhere)])
    return markdown(lines), [c for row in found for c in row]


# ---------------------------------------------------------------------------- the claims
# id: (sentence, datasets, {inequality: what must be above 0}).  (a, b) stands for R@1 with flags a
# minus R@1 with flags b, (a, b, metric) for another metric's; anything else is a function of
# v(flags, metric), a figure of one seed.  A claim holds where all its inequalities hold.
def bound(v, flags):
    return v(flags, "lambda") + v(flags, "d_H")


def cost_of_norm(v, flags):
    return v(flags) - v(flags, "R@1, l2-normalized")


def gap(v, flags):
    return v(flags, "seen R@1") - v(flags)


def rise_minus_range(v, loss):
    low, *flat = [v(f"{loss} --lambda {x}", "NMI") for x in (0.5, 7, 10, 15, 25)]
    return flat[1] - low - np.ptp(flat)


CLAIMS = {
    "J1": ("JRD beats AMSoftmax.", "cub cars sop", {"JRD - AMSoftmax": ("", "--alpha 0")}),
    **{f"J{i}": (f"JRD beats {name}.", "cub cars sop", {f"JRD - {name}": ("", VARIANTS[name])})
       for i, name in ((2, "MRD"), (3, "JRD-C"), (4, "JRD-Pooling"))},
    "J5": ("R@1 against α rises, then falls.", "cub cars sop", {
        "preset's α - α = 0": ("", "--alpha 0"), "preset's α - α = 2": ("", "--alpha 2")}),
    "J6": ("α = 0 beats JMMD and JIntra (at 0.1, the paper's best for JMMD); JRD beats α = 0.",
           "cub", {
        "α = 0 - JMMD": ("--alpha 0", "--regularizer jmmd --alpha 0.1"),
        "α = 0 - JIntra": ("--alpha 0", "--regularizer jintra --alpha 0.1"),
        "JRD - α = 0": ("", "--alpha 0")}),
    "J7": ("Eq. 4's intra-class penalty inflates λ faster than it lowers d_H.", "cub", {
        "λ, α = 1 - α = 0": ("--regularizer intra --alpha 1", "--alpha 0", "lambda"),
        "λ + d_H, α = 1 - α = 0": lambda v: bound(v, "--regularizer intra --alpha 1") - bound(
            v, "--alpha 0")}),
    "J8": ("λ + d_H is smaller for JRD than for JMMD.", "cub", {
        "λ + d_H, JMMD - JRD": lambda v: bound(v, "--regularizer jmmd") - bound(v, "")}),
    "J9": ("A mixture of Gaussians, (K, K') = (3, 1), beats a single one, (1, 1).", "cub cars", {
        "(3, 1) - (1, 1)": ("", "--K 1")}),
    "J10": ("Gaussian and Laplace kernels beat polynomial and moment-generating ones.", "cub", {
        f"{a} - {b}": (better, worse)
        for a, better in (("Gaussian", "--K 1"), ("Laplace", "--kernel laplace"))
        for b, worse in (("p = 2", "--kernel polynomial"), ("p = 5", "--kernel polynomial --p 5"),
                         ("moment-generating", "--kernel mgf"))}),
    "M1": ("Triplet+MDR beats Triplet+L2Norm, and that beats Triplet.", "cub cars sop inshop", {
        "MDR - L2Norm": ("", "--lambda 0 --l2norm"),
        "L2Norm - Triplet": ("--lambda 0 --l2norm", "--lambda 0")}),
    "M2": ("MDR helps on every backbone.", "cub cars", {
        f"{b} + MDR - {b}": (f"--backbone {b}", f"--backbone {b} --lambda 0")
        for b in ("resnet18", "resnet50", "bn_inception")}),
    "M3": ("MDR helps Contrastive and Margin too.", "cub cars", {
        f"{loss} + MDR - {loss}": (f"--loss {loss}", f"--loss {loss} --lambda 0")
        for loss in ("contrastive", "margin")}),
    "M4": ("Levels {-3, 0, 3} beat {-1, 0, 1}; learnable ones beat fixed ones.", "cub", {
        "{-3, 0, 3} - {-1, 0, 1}": ("", "--levels -1 0 1"),
        "learnable - fixed, mean of 7": lambda v: statistics.mean(
            v(f"--levels {s}") - v(f"--levels {s} --fixed-levels") for s in LEVELS)}),
    "M5": ("l2 norm at inference costs Triplet much, Triplet+MDR little.", "cub", {
        "cost to Triplet": lambda v: cost_of_norm(v, "--lambda 0"),
        "cost to Triplet - to Triplet+MDR": lambda v: cost_of_norm(v, "--lambda 0") - cost_of_norm(
            v, "")}),
    "M6": ("MDR's gain over Triplet is larger at the smallest width than at the largest.",
           "cub cars", {"gain at smallest d - at largest d": lambda v: v("--dim 64") - v(
               "--lambda 0 --dim 64") - v("--dim 512") + v("--lambda 0 --dim 512")}),
    "M7": ("With MDR train recall is lower, and test recall the highest.", "cub", {
        "train, Triplet - MDR": ("--lambda 0", "", "seen R@1"),
        "train, L2Norm - MDR": ("--lambda 0 --l2norm", "", "seen R@1"),
        "test, MDR - Triplet": ("", "--lambda 0"),
        "test, MDR - L2Norm": ("", "--lambda 0 --l2norm")}),
    "M8": ("With MDR the norms' coefficient of variation is less than half of Triplet's.", "cub", {
        "half of Triplet's - MDR's": lambda v: v("--lambda 0", "norm cv") / 2 - v("", "norm cv")}),
    **{f"D{i}": (f"DA improves {name}, in R@1 and NMI.", "cars cub sop", {
        f"{metric}, DML-DA {name} - {name}": (loss, f"{loss} --lambda 0", metric)
        for metric in ("R@1", "NMI")}) for i, (name, loss) in enumerate(LOSSES.items(), 1)},
    "D4": ("The correlation term adds to DA.", "cars", {
        f"{name}, with - without": (loss, f"{loss} --regularizer da-")
        for name, loss in LOSSES.items()}),
    "D5": ("DA gains more NMI than GOR, and GOR more than EN.", "cars cub sop", {
        f"NMI, {name}, {a} - {b}": (f"{loss} {better}", f"{loss} --regularizer {b.lower()}", "NMI")
        for name, loss in LOSSES.items()
        for a, better, b in (("DA", "", "GOR"), ("GOR", "--regularizer gor", "EN"))}),
    "D6": ("NMI against λ peaks near 10 and is flat above 7.", "cars", {
        f"NMI, {name}, λ = 10 - λ = {x}": (f"{loss} --lambda 10", f"{loss} --lambda {x}", "NMI")
        for name, loss in LOSSES.items() for x in (0.5, 25)} | {
        f"NMI, {name}, rise from 0.5 to 10 - range from 7 to 25": functools.partial(
            rise_minus_range, loss=loss) for name, loss in LOSSES.items()}),
    "D7": ("The gap between train and test R@1 is smaller with DA (contrastive).", "cars", {
        "gap without - with DA": lambda v: gap(v, "--lambda 0") - gap(v, "")}),
    "D8": ("Without DA contrastive beats N-pair, and that beats triplet.", "cars cub sop", {
        "contrastive - N-pair": ("--lambda 0", "--loss npair --lambda 0"),
        "N-pair - triplet": ("--loss npair --lambda 0", "--loss triplet --lambda 0")})}
PAPER_OF = {"J": "jrd", "M": "mdr", "D": "dml_da"}


class NotRun(Exception):
    """Why a figure is not there: 'not run' or 'no miniature'."""


def in_each_seed(paper, inequality, dataset, out, seeds, only=None):
    """What must be above 0 -> its value in each seed that has its runs, or why there is none.

    only: the folders of the runs to be looked at; None: all.
    """
    values, reason = [], "not run"
    for seed in range(seeds):
        def v(flags, metric="R@1"):
            flags = miniature(flags) if dataset == "glyphs" else flags
            if flags is None:
                raise NotRun("no miniature")
            run = training(paper, dataset, flags, seed, out)
            if not run.result or only is not None and run.folder not in only:
                raise NotRun("not run")
            return reading(run, metric)
        try:
            if callable(inequality):
                values.append(inequality(v))
            else:
                better, worse, *metric = inequality
                values.append(v(better, *metric) - v(worse, *metric))
        except NotRun as error:
            reason = str(error)
    return values or reason


def verdict(values):
    """-> mean, half-width of its 95% interval (nan for one value), verdict on 'above 0'"""
    mean, half = confidence_interval(values)
    return mean, half, "holds" if mean - half > 0 else "does not hold" if mean + half < 0 else \
        "undecided"


def together(verdicts):
    """The verdict on a claim from those on its inequalities."""
    order = ("does not hold", "not run", "no miniature", "undecided", "holds")
    return min(verdicts, key=order.index)


def ledger(rows_asked, args, seeds):
    """-> Markdown lines, CSV rows.  A part of a report has the claims that its runs decide."""
    only = {run.folder for run in all_runs(rows_asked, args.out)} if partial(args) else None
    short, csv_rows = [["claim", "", "verdict"]], []
    long = [["claim", "must be above 0", "on", "estimate", "95% interval", "seeds", "verdict"]]
    for claim, (sentence, datasets, inequalities) in CLAIMS.items():
        where = ["glyphs"] if args.dataset == "glyphs" else [
            d for d in datasets.split() if args.dataset in ("real", d)]
        rows = []
        for dataset in where if args.paper in (None, PAPER_OF[claim[0]]) else ():
            for text, inequality in inequalities.items():
                values = in_each_seed(PAPER_OF[claim[0]], inequality, dataset, args.out, seeds,
                                      only)
                row = {"claim": claim, "sentence": sentence, "must be above 0": text, "on": dataset}
                if isinstance(values, str):
                    rows.append(row | {"seeds": 0, "verdict": values})
                else:
                    rows.append(row | {"seeds": len(values)} | dict(zip(
                        ("estimate", "half-width", "verdict"), verdict(values))))
        if not rows or partial(args) and not all(row["seeds"] for row in rows):
            continue
        csv_rows += rows
        short.append([claim, sentence, f"**{together([row['verdict'] for row in rows])}**"])
        for row in rows:
            mean, half = row.get("estimate", math.nan), row.get("half-width", math.nan)
            interval = f"{mean - half:+.3f} to {mean + half:+.3f}"
            long.append([claim, row["must be above 0"], NAMES[row["on"]],
                         "–" if math.isnan(mean) else f"{round(mean, 3) + 0:+.3f}",     # not -0.000
                         "–" if math.isnan(half) else interval, str(row["seeds"]), row["verdict"]])
    if not csv_rows:
        return [], []
    return ["## Claims", "", "Each claim is one inequality or several: a difference within a seed "
            "(in points of R@1 where nothing else is named) and its 95% Student-t interval over "
            "seeds.  Above 0: *holds*; below 0: *does not hold*; else *undecided*.", "",
            *markdown(short), "", *markdown(long), ""], csv_rows


# ---------------------------------------------------------------------------- figures
# Okabe and Ito's colours, which colour-blind readers tell apart; line and mark tell them in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKS, LINES, HATCHES = "os^Dv*PX<>hpd8", ("-", "--", "-.", ":"), ("", "//", "..")
AXES = {"R@1": "R@1 on test classes (%)", "seen R@1": "R@1 on training classes (%)",
        "NMI": "NMI (%)", "lambda": "λ", "norm mean": "mean of ‖e‖ (log scale)",
        "norm cv": "coefficient of variation of ‖e‖"}


@contextlib.contextmanager
def for_figures():
    """UserError where a package is missing that only figures need."""
    try:
        yield
    except ImportError as error:
        raise common.UserError(f"{error}; figures need: pip install -r requirements-figures.txt")


def panels(n, width=4.4, height=3.4, columns=3):
    """-> figure, n axes in rows of `columns`"""
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
    found = [confidence_interval(values) for values in columns]
    return np.array([(mean, half if len(values) > 2 else np.nan)
                     for (mean, half), values in zip(found, columns)]).T


def draw_curves(path, found, marks=True):
    """{(title, x label, y label): {series: [(x, values of the seeds)]}}: means and 95% bands."""
    figure, axes = panels(len(found))
    series = list(dict.fromkeys(name for curves in found.values() for name in curves))
    for axis, ((title, x_label, y_label), curves) in zip(axes, found.items()):
        for name, points in curves.items():
            i, x = series.index(name), [x for x, _ in points]
            mean, half = intervals([values for _, values in points])
            axis.plot(x, mean, color=COLOURS[i % 7], ls=LINES[i % 4], lw=1.8, ms=5, label=name,
                      marker=MARKS[i] if marks else None)
            axis.fill_between(x, mean - half, mean + half, color=COLOURS[i % 7], alpha=0.18, lw=0)
        axis.set(title=title, xlabel=x_label, ylabel=y_label)
        if y_label == AXES["norm mean"]:
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter("{x:g}")
        if x_label in ("K", "d"):
            axis.set_xscale("log", base=2)
            ticks = sorted({x for points in curves.values() for x, _ in points})
            axis.set_xticks(ticks, ticks)
            axis.minorticks_off()
    save(figure, path, axes)


def draw_sweep(path, rows, get):
    """A panel a dataset and metric, a curve a series."""
    found = {}
    for metric in COLUMNS.get(rows[0].key, ("R@1",)):
        for row in rows:
            series, symbol, x = row.name
            if values := readings(get(row), metric):
                panel = (NAMES[row.dataset], symbol, AXES.get(metric, metric))
                found.setdefault(panel, {}).setdefault(series, []).append((x, values))
    draw_curves(path, found)


def draw_epochs(path, rows, get):
    """A panel a dataset and metric, a curve a row over the epochs of its logs."""
    found = {}
    for row in rows:
        for metric in COLUMNS[row.key] if get(row) else ():
            unit = 100 if PERCENT.fullmatch(metric) else 1
            epochs = zip(*([unit * line[metric] for line in run.log] for run in get(row)))
            panel = (NAMES[row.dataset], "epoch", AXES[metric])
            found.setdefault(panel, {})[row.name] = list(enumerate(epochs, 1))
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


def draw_bars(path, found, y_label, x_label="", text=None):
    """{title: {series: {x: values of the seeds}}}: means with 95% intervals."""
    figure, axes = panels(len(found))
    for axis, (title, groups) in zip(axes, found.items()):
        places = list(dict.fromkeys(x for bars in groups.values() for x in bars))
        width = 0.8 / len(groups)
        for i, (series, bars) in enumerate(groups.items()):
            mean, half = intervals(list(bars.values()))
            x = [places.index(place) + (i - (len(groups) - 1) / 2) * width for place in bars]
            drawn = axis.bar(x, mean, 0.93 * width, yerr=np.nan_to_num(half), capsize=3,
                             label=series, color=COLOURS[i], hatch=HATCHES[i], edgecolor="white")
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
                gains = [value - plain[seed] for seed, value in
                         nmi[dataset, f"{loss}+{kind}".lower()].items() if seed in plain]
                if gains:
                    bars = found.setdefault(NAMES[dataset], {}).setdefault(kind, {})
                    bars[loss] = gains
    draw_bars(path, found, "NMI gained (points)")


def draw_levels(path, rows, get):
    """MDR Fig. 6: the shares of positive and of negative pairs at each level, last epoch."""
    found = {}
    for row in rows:
        if logs := [run.log[-1] for run in get(row)]:
            names = [f"level {i}\n({s:+.2f})" for i, s in enumerate(
                np.mean([log["levels"] for log in logs], 0), 1)]
            found[NAMES[row.dataset]] = {f"{kind} pairs": dict(zip(names, zip(*(
                [100 * share for share in log[f"{kind} pairs by level"]] for log in logs))))
                for kind in ("positive", "negative")}
    draw_bars(path, found, "share of the pairs (%)", "level (learned value, in σ* from μ*)", "%.0f")


@functools.cache
def embedded(checkpoint, data_root):
    """A checkpoint -> embeddings and labels as eval.judge takes them."""
    place = argparse.Namespace(data_root=data_root, device="auto", no_cache=False)
    return {name: part.cpu() for name, part in load_run(checkpoint, place)[0].items()}


def tsne(x, most=5000):
    """-> places in [0, 1]², indices; of more than `most` points a random choice"""
    with for_figures():
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits     # comes with scikit-learn
    index = np.random.RandomState(0).permutation(len(x))[:most]
    method = TSNE(perplexity=min(30, (len(index) - 1) / 3), init="pca", random_state=0)
    with threadpool_limits(1):                          # threads that wait for each other crawl
        places = method.fit_transform(x[index].numpy())    # where something else computes
    return (places - places.min(0)) / np.ptp(places, axis=0), index


def draw_tsne(path, rows, get, part="seen", classes=None, centres=False):
    """A panel a row, its first seed: images, a colour and mark a class; or class centres."""
    rows = [row for row in rows if get(row)]
    figure, axes = panels(len(rows), 4, 4)
    for axis, row in zip(axes, rows):
        run = get(row)[0]
        parts = embedded(run.folder / "last.pt", run.cfg.data_root)
        x, y = parts[part], parts["labels" if part == "test" else f"{part}_labels"].numpy()
        if classes:
            some = np.isin(y, np.random.RandomState(0).permutation(np.unique(y))[:classes])
            x, y = x[some], y[some]
        if centres:
            x, y = x.new_tensor(np.stack([x[y == c].mean(0) for c in np.unique(y)])), np.unique(y)
        places, index = tsne(x)
        for i, c in enumerate(np.unique(y)):
            colour, mark = (0, "o") if centres else (i % 7, MARKS[i // 7 % len(MARKS)])
            axis.scatter(*places[y[index] == c].T, s=30 if len(x) < 500 else 10, linewidths=0,
                         color=COLOURS[colour], marker=mark)
        axis.set(title=f"{row.name} ({NAMES[row.dataset]})", xticks=[], yticks=[])
    figure.savefig(path)


def images_of(run):
    """The data of a run as it sees test images."""
    prefix, _, whole = importlib.import_module(run.paper).transforms(run.cfg)
    return common.load_dataset(run.cfg.dataset, run.cfg.data_root, prefix, whole)


def square(image, side):
    """A uint8 image (3, h, w) -> (side, side, 3)"""
    return np.asarray(PIL.Image.fromarray(image.permute(1, 2, 0).numpy()).resize((side, side)))


def draw_thumbnails(path, rows, get, cells=30, side=40):
    """DML-DA Fig. 7-9: test images where t-SNE puts them, at most one in a cell of a grid."""
    run = get(rows[0])[0]
    places, index = tsne(embedded(run.folder / "last.pt", run.cfg.data_root)["test"])
    images, free = images_of(run).test.images, {}
    for (column, line), i in zip((places * (cells - 1)).round().astype(int) * side, index):
        free.setdefault((column, line), i)
    sheet = np.full((cells * side, cells * side, 3), 255, np.uint8)
    for (column, line), i in free.items():
        sheet[line:line + side - 2, column:column + side - 2] = square(images[i], side - 2)
    PIL.Image.fromarray(sheet).quantize().save(path, optimize=True)


def draw_sheet(path, rows, get):
    """The sheet of the first finished run of the paper's method."""
    runs = [run for row in rows if row.flags == "" for run in get(row)]
    if not runs:
        raise common.UserError("the paper's method has no finished run")
    draw_nearest(path, runs[0])


def draw_nearest(path, run, queries=6):
    """Test images of random classes and the five images nearest to each, right and wrong framed."""
    parts, data = embedded(run.folder / "last.pt", run.cfg.data_root), images_of(run)
    x, labels, draw = parts["test"], parts["labels"], np.random.RandomState(0)
    base, base_labels = parts.get("gallery", x), parts.get("gallery_labels", labels)
    chosen = [draw.choice(np.flatnonzero(labels == c))
              for c in draw.permutation(labels.unique())[:queries]]
    figure, axes = panels(6 * len(chosen), 1.25, 1.3, columns=6)
    for line, query in enumerate(chosen):
        distances = (base - x[query]).norm(dim=1)
        if data.gallery is None:
            distances[query] = math.inf
        nearest = distances.topk(min(5, len(base) - 1), largest=False).indices.tolist()
        shown = [(data.test.images[query], "black", "query")]
        for i in nearest:
            right = base_labels[i] == labels[query]
            shown.append(((data.gallery or data.test).images[i], *(
                (COLOURS[2], "right") if right else (COLOURS[1], "wrong"))))
        for axis, (image, colour, word) in zip(axes[6 * line:6 * line + 6], shown):
            axis.imshow(square(image, 96))
            axis.set(xticks=[], yticks=[])
            axis.set_xlabel(word, color=colour, fontsize=9, labelpad=2)
            for spine in axis.spines.values():
                spine.set(visible=True, color=colour, linewidth=3)
    figure.savefig(path, dpi=100)
    PIL.Image.open(path).convert("RGB").quantize().save(path, optimize=True)    # a third of it


FIGURES = {  # (paper, figure, or table that a sheet of retrieved images goes with): who draws it
    ("jrd", "1"): draw_sheet, ("mdr", "1a"): draw_sheet, ("mdr", "1b"): draw_sheet,
    ("dml_da", "I"): draw_sheet, ("jrd", "fig4"): draw_sweep, ("jrd", "fig5"): draw_sweep,
    ("jrd", "fig6"): draw_sweep, ("mdr", "fig3a"): draw_sweep,
    ("jrd", "fig2"): draw_sweep, ("dml_da", "fig6"): draw_sweep, ("mdr", "fig3b"): draw_epochs,
    ("dml_da", "fig1d"): draw_epochs, ("mdr", "fig4"): draw_epochs,
    ("mdr", "fig5"): functools.partial(draw_tsne, part="test", centres=True),
    ("dml_da", "fig1"): functools.partial(draw_tsne, classes=10), ("dml_da", "fig5"): draw_tsne,
    ("mdr", "fig6"): draw_levels, ("dml_da", "fig3"): draw_recall, ("dml_da", "fig4"): draw_gains,
    **{("dml_da", f"fig{n}"): draw_thumbnails for n in (7, 8, 9)}}


# ---------------------------------------------------------------------------- the report
def heading(key):
    number = f"Fig. {key[1][3:]}" if key[1].startswith("fig") else f"Table {key[1]}"
    return f"{NAMES[key[0]]}, {number}: {EXPERIMENTS[key][0]}"


def short(commit):
    return commit[:12] + commit[40:]                # with the '+' of files that were changed


def header(args, rows, folder):
    """From what the report was made, by what, and where."""
    cpu = Path("/proc/cpuinfo")
    cpu = re.search(r"model name\s*: (.*)|$", cpu.read_text() if cpu.exists() else "")[1]
    runs = all_runs(rows, args.out)
    commits = {json.loads((run.folder / "config.json").read_text())["commit"] or "none"
               for run in runs if run.result}
    flags = [f"--{name} {value}" for name, value in vars(args).items() if value and (name, value)
             not in (("out", "runs"), ("quick", True)) and name != "to"] + ["--quick"] * args.quick
    made = ", made at commit " + ", ".join(sorted(map(short, commits))) if commits else ""
    where = "the papers' datasets" if args.dataset == "real" else args.dataset
    return [
        f"# Report on {where}", "",
        f"{sum(run.state == 'finished' for run in runs)} of {len(runs)} runs finished{made}; "
        f"{sum(run.images_left() for run in runs):,} training images to go.  "
        f"Report: commit {short(common.commit() or 'none')}, {cpu or platform.machine()}, "
        f"{os.cpu_count()} cores, " + ", ".join(f"{k} {v}" for k, v in common.versions().items()) +
        f"; made by `python report.py {' '.join(flags)} --to {folder}`, the same as numbers in "
        "tables.csv and claims.csv.", "",
        f"Shares in %, mean ± standard deviation over seeds, last epoch.  {CHOSEN}  In figures: "
        "95% Student-t intervals over seeds, where there are three or more.", ""]


def write_report(rows, args, folder):
    """report.md, tables.csv, claims.csv and the figures -> the Markdown, names of the figures

    notes.md in the folder, what a person has to say about the results, goes behind the claims.
    """
    folder.mkdir(parents=True, exist_ok=True)
    most, csv_rows, skipped = max(row.seeds for row in rows), [], {}
    claims, claim_rows = ledger(rows, args, most)
    lines, drawn = header(args, rows, folder) + claims, []
    if (folder / "notes.md").exists():
        lines += [(folder / "notes.md").read_text().strip(), ""]

    def get(row):
        return [run for run in runs_of(row, args.out, most) if run.result]
    for key in dict.fromkeys(row.key for row in rows):
        of_table = [row for row in rows if row.key == key]
        lines += [f"## {heading(key)}", ""]
        if args.dataset == "glyphs" and key in SAME_ON_GLYPHS:
            lines += [f"In miniature the same as {heading(SAME_ON_GLYPHS[key])}", ""]
            continue
        for name in draw_figures(key, of_table, get, folder, skipped):
            lines += [f"![{heading(key)}]({name})", ""]
            drawn.append(name)
        for dataset in dict.fromkeys(row.dataset for row in of_table):
            some = [row for row in of_table if row.dataset == dataset]
            make = glyphs_table if dataset == "glyphs" else real_table
            text, found = make(some, args.out, most)
            csv_rows += found
            commands = {c["row"]: c["command"] for c in found if c.get("command")}
            lines += [*[f"**{NAMES[dataset]}**", ""] * (dataset != "glyphs"), *text, ""]
            if commands:
                lines += ["<details><summary>commands, each with --seed 0, 1, ...</summary>", "",
                          *(f"- {row}: `{c}`" for row, c in commands.items()), "", "</details>", ""]
    write_csv(folder / "tables.csv", csv_rows)
    write_csv(folder / "claims.csv", claim_rows)
    with common.atomic(folder / "report.md") as file:
        file.write("\n".join(lines).rstrip() + "\n")
    for reason, names in skipped.items():
        print(f"skipped {', '.join(names)}: {reason}", file=sys.stderr)
    return "\n".join(lines), drawn


def draw_figures(key, rows, get, folder, skipped):
    """-> the names of the pictures of a table or figure; skipped: {reason: names} is added to"""
    drawn = []
    for name in (key[1], key[1] + "d"):
        draw, path = FIGURES.get((key[0], name)), folder / f"{key[0]}-{name}.png"
        path.unlink(missing_ok=True)
        if draw and any(map(get, rows)):
            try:
                draw(path, rows, get)
                drawn.append(path.name)
            except common.UserError as error:
                skipped.setdefault(str(error), []).append(path.name)
    return drawn


def write_csv(path, rows):
    columns = [c for c in dict.fromkeys(k for row in rows for k in row)
               if c not in ("digits", "text", "best")]
    with common.atomic(path) as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


# ---------------------------------------------------------------------------- command line
def partial(args):
    """Whether a part of a report was asked for."""
    return bool(args.paper or args.table or args.quick)


def main(args):
    if args.sheet:
        state, path = common.read_checkpoint(args.sheet), Path(
            args.to or Path(args.sheet).with_name("sheet.png"))
        run = argparse.Namespace(paper=state["paper"], cfg=argparse.Namespace(**state["config"]),
                                 folder=Path(args.sheet).parent)
        draw_nearest(path, run)
        return print(f"wrote {path}")
    if args.compare:
        return print(compare(args.out, *args.compare))
    if not (args.dataset or partial(args) or args.list or args.plan):
        return print(table(args.out))
    args.dataset = args.dataset or ("glyphs" if args.quick else "real")
    rows = experiments(args)
    if args.list:
        print("".join(f"{run.command}\n" for run in all_runs(rows, args.out)), end="")
    elif args.plan:
        sys.exit(plan(rows, args.out))
    else:
        name = "-".join(filter(None, ["quick" if args.quick else args.dataset, args.paper,
                                      args.table]))
        folder = Path(args.to or Path(args.out, f"report-{name}"))
        text, drawn = write_report(rows, args, folder)
        if partial(args):
            print(re.sub(r"(<details>.*?</details>|!\[.*?\))\s*", "", text, flags=re.DOTALL))
        print(f"wrote {folder}/report.md, " + ", ".join(["tables.csv", "claims.csv", *drawn]))


def parse_args(argv=None):
    parser = common.Parser(prog="report.py", description=__doc__)
    add = parser.add_argument
    add("--dataset", choices=("glyphs", "real", *common.COUNTS), help="glyphs: in miniature; real: "
        "all of the papers' (default of --list, --plan)")
    add("--paper", choices=common.PAPERS)
    add("--table", type=lambda text: re.sub(r"^table|[\s.]", "", text.lower()).replace(
        "figure", "fig"), help="1, 2a, I, fig4, ...")
    add("--seeds", type=common.number(int, 1), help="runs a row (5; in sweeps on glyphs 3)")
    add("--quick", action="store_true", help="three methods, their baselines, on glyphs, two seeds")
    add("--list", action="store_true", help="print the commands, one a line")
    add("--plan", action="store_true", help="print what there is to do")
    add("--compare", metavar="RUN", nargs=2, help="folders of runs in --out, without -s0, -s1, ...")
    add("--sheet", metavar="last.pt", help="draw queries and the images nearest to them")
    add("--to", help="what to write (default: a report-... in --out; the sheet beside the run)")
    add("--out", default="runs", help="folder that holds the runs (default: runs)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    common.main(main, parse_args)

"""The experiment list: what to run for every table and figure, and what is there of it.

EXPERIMENTS is the one source of the commands and of the tables.  The paper script's own parse_args
turns a row's flags into settings, so rows that share a run share it here too.
"""
import functools
import re
import shlex
import sys
from collections import Counter
from typing import NamedTuple

import dml_da
import jrd
import mdr
from report.records import Folder
from support.files import UserError
from support.layouts import read_dataset
from support.runs import code_of, read_json, run_folder, why_other

SCRIPTS = {"jrd": jrd, "mdr": mdr, "dml_da": dml_da}
NAMES = {"jrd": "JRD", "mdr": "MDR", "dml_da": "DML-DA", "glyphs": "glyphs", "cub128": "cub128",
         "cub": "CUB", "cars": "Cars", "sop": "SOP", "inshop": "In-Shop",
         "real": "the papers' datasets"}


# ---------------------------------------------------------------------------- the list
class Experiment(NamedTuple):
    """A table or figure of a paper.  A table's rows have the names of paper_numbers.jsonl; a row of
    a sweep is (series, symbol, value).  No flags: the dataset's preset, which is the paper's
    method."""
    title: str
    datasets: str               # the paper's
    seeds: int                  # on glyphs; the headline rows' 10 were fixed before they ran
    rows: dict                  # {row: flags}
    baselines: dict = {}        # {row: the row of this table that its gain is over}
    columns: tuple = ("R@1",)   # metrics, unless paper_numbers.jsonl has a table of the paper
    beside: tuple = ()          # metrics that no paper's table and no figure has
    measured: str = None        # of the last epoch alone: "ten parts", "l2 norm at inference"
    picture: str = None         # what draws it, a function of report/figures.py


def sweep(symbol, values, series):
    """{series: its flags with a place for the value} -> {(series, symbol, value): flags}.  Without
    its penalty a loss is the same in every series."""
    rows = {}
    for name, flags in series.items():
        for value in values:
            rows[name, symbol, value] = flags.format(value) if value else "--alpha 0"
    return rows


def over_zero(rows):
    """The baselines of a sweep: each series at 0"""
    baselines = {}
    for series, symbol, value in rows:
        if value:
            baselines[series, symbol, value] = series, symbol, 0
    return baselines


ALPHAS = (0, 0.1, 0.4, 0.7, 1, 1.5, 2)     # Fig. 4 goes from 0 to 2; the paper names no points
JRD_ALPHAS = sweep("α", ALPHAS, {"JRD": "--alpha {}"})
PENALTIES = sweep("α", ALPHAS, {
    "JRD": "--regularizer jrs --alpha {}", "JMMD": "--regularizer jmmd --alpha {}",
    "JIntra": "--regularizer jintra --alpha {}"})
INTRA = sweep("α", (0, 0.05, 0.1, 0.2, 0.5, 1), {
    "AMSoftmax + intra-class penalty": "--regularizer intra --alpha {}"})
TRIPLET = {"Triplet": "--lambda 0", "Triplet+L2Norm": "--lambda 0 --l2norm", "Triplet+MDR": ""}
OVER_TRIPLET = {"Triplet+L2Norm": "Triplet", "Triplet+MDR": "Triplet"}
WIDTHS = (64, 128, 256, 512)
LEVELS = ("-1 0 1", "-2 0 2", "-3 0 3", "-3 -1 0 1 3", "-3 -2 0 2 3", "-4 -2 0 2 4", "-6 -3 0 3 6")
LEVELS_OF = {f"levels {{{words.replace(' ', ',')}}}": f"--levels {words}" for words in LEVELS}
LOSSES = {"triplet": "--loss triplet", "N-pair": "--loss npair", "contrastive": ""}
PLAIN = {"Triplet": "--loss triplet --lambda 0", "N-pair": "--loss npair --lambda 0",
         "Contrastive": "--lambda 0"}
ADAPTIVE = {f"DML-DA {name}": loss for name, loss in LOSSES.items()}
OVER_PLAIN = dict(zip(ADAPTIVE, PLAIN))
RETRIEVAL = ("MAP@R", "NMI", "seen R@1")

# Not here: t-SNE of embeddings (MDR Fig. 5, DML-DA Fig. 1a-c, 5 and 7-9), of the runs of Tables 1a
# and I.  Such pictures did not tell one method from another.
EXPERIMENTS = {     # (paper, table or figure): what to run
    ("jrd", "1"): Experiment(
        "Recall@K; AMSoftmax is α = 0, not in the paper's table", "cub cars sop", 10,
        {"JRD": "", "AMSoftmax": "--alpha 0"}, {"JRD": "AMSoftmax"}, beside=RETRIEVAL),
    ("jrd", "2"): Experiment(
        "which representations are joined; in ten parts (SOP: whole)", "cub cars sop", 10,
        {"JRD": "", "MRD": "--variant mrd", "JRD-C": "--variant jrd-c",
         "JRD-Pooling": "--variant jrd-pooling"}, measured="ten parts"),
    ("jrd", "3"): Experiment(
        "terms of the generalization bound by 1-NN; R@1 in ten parts", "cub", 5,
        {"JMMD (alpha=0.1)": "--regularizer jmmd --alpha 0.1", "JRD (alpha=1)": ""},
        measured="ten parts"),
    ("jrd", "4"): Experiment("kernels", "cub", 5, {
        "Gaussian (alpha=1)": "--K 1", "Laplace (alpha=1)": "--kernel laplace",
        "polynomial p=2 (alpha=1e-3)": "--kernel polynomial --alpha 1e-3",
        "polynomial p=5 (alpha=1e-3)": "--kernel polynomial --p 5 --alpha 1e-3",
        "moment-generating exp(x.x') (alpha=1e-3)": "--kernel mgf --alpha 1e-3"}),
    ("jrd", "fig2"): Experiment(
        "λ and d_H against the intra-class penalty of Eq. 4", "cub", 3,
        INTRA, over_zero(INTRA), columns=("lambda", "d_H", "R@1"), picture="sweep"),
    ("jrd", "fig4"): Experiment(
        "R@1 against α", "cub cars sop", 3, JRD_ALPHAS, over_zero(JRD_ALPHAS),
        beside=("jrs",), picture="sweep"),
    ("jrd", "fig5"): Experiment(
        "R@1 against α for JRD, JMMD and JIntra", "cub", 3,
        PENALTIES, over_zero(PENALTIES),    # α = 0 is AMSoftmax with each
        picture="sweep"),
    ("jrd", "fig6"): Experiment(
        "R@1 over (K, K'); the curves coincide, so a table alone", "cub cars", 3,
        sweep("K", (1, 3, 5), {"K' = 1": "--K {} --K-prime 1", "K' = 3": "--K {} --K-prime 3",
                               "K' = 5": "--K {} --K-prime 5"})),
    ("mdr", "1a"): Experiment(
        "Recall@K", "cub cars", 10, TRIPLET | {"Triplet+MDR (256x256)": "--size 256"},
        OVER_TRIPLET, beside=RETRIEVAL),
    ("mdr", "1b"): Experiment(
        "Recall@K", "sop inshop", 5, TRIPLET | {"Triplet+MDR (256x256)": "--size 256"},
        OVER_TRIPLET),
    ("mdr", "2a"): Experiment(
        "backbones", "cub cars", 5,
        {"R18": "--backbone resnet18 --lambda 0", "R18+MDR": "--backbone resnet18",
         "R50": "--backbone resnet50 --lambda 0", "R50+MDR": "--backbone resnet50",
         "IBN": "--backbone bn_inception --lambda 0", "IBN+MDR": "--backbone bn_inception"},
        {"R18+MDR": "R18", "R50+MDR": "R50", "IBN+MDR": "IBN"}),
    ("mdr", "2b"): Experiment(
        "losses", "cub cars", 10,
        {"Contrastive": "--loss contrastive --lambda 0", "Contrastive+MDR": "--loss contrastive",
         "Margin": "--loss margin --lambda 0", "Margin+MDR": "--loss margin",
         "Triplet": "--loss triplet --lambda 0", "Triplet+MDR": "--loss triplet"},
        {"Contrastive+MDR": "Contrastive", "Margin+MDR": "Margin", "Triplet+MDR": "Triplet"},
        beside=RETRIEVAL),
    ("mdr", "2c"): Experiment(
        "configurations of the levels", "cub", 5,
        {f"{name} {kind}": f"{flags}{fixed}" for name, flags in LEVELS_OF.items()
         for kind, fixed in (("fixed", " --fixed-levels"), ("learnable", ""))},
        {f"{name} learnable": f"{name} fixed" for name in LEVELS_OF}),
    ("mdr", "3"): Experiment(
        "l2 norm at inference only", "cub", 10,
        {"Triplet": "--lambda 0", "Triplet (L2 norm at inference)": "--lambda 0",
         "Triplet+MDR": "", "Triplet+MDR (L2 norm at inference)": ""},
        {"Triplet (L2 norm at inference)": "Triplet",
         "Triplet+MDR (L2 norm at inference)": "Triplet+MDR"},
        measured="l2 norm at inference"),
    ("mdr", "fig3a"): Experiment(
        "R@1 against the embedding's width", "cub cars", 3,
        sweep("d", WIDTHS, {"Triplet": "--lambda 0 --dim {}",
                            "Triplet+L2Norm": "--lambda 0 --l2norm --dim {}",
                            "Triplet+MDR": "--dim {}"}),
        {(name, "d", d): ("Triplet", "d", d) for name in OVER_TRIPLET for d in WIDTHS},
        picture="sweep"),
    ("mdr", "fig3b"): Experiment(
        "learning curves of train and test", "cub", 10, TRIPLET, OVER_TRIPLET,
        columns=("R@1", "seen R@1"), picture="epochs"),
    ("mdr", "fig4"): Experiment(
        "norms of the test embeddings", "cub", 10, TRIPLET, OVER_TRIPLET,
        columns=("norm mean", "norm cv"), picture="epochs"),
    ("mdr", "fig6"): Experiment("pairs at each level", "cub", 10, {"Triplet+MDR": ""},
                                picture="levels"),
    ("dml_da", "I"): Experiment(
        "NMI and Recall@K", "cars cub sop", 10, PLAIN | ADAPTIVE, OVER_PLAIN,
        beside=("MAP@R", "seen R@1", "D_avg mean")),
    ("dml_da", "fig1d"): Experiment(
        "R@1 of train and test", "cars", 10, PLAIN | {"DML-DA contrastive": ""},
        {"DML-DA contrastive": "Contrastive"}, columns=("R@1", "seen R@1"), picture="epochs"),
    ("dml_da", "fig3"): Experiment(
        "R@K with and without the correlation term; the curves coincide, so a table alone", "cars",
        5, ADAPTIVE | {f"DML-DA⁻ {name}": f"{loss} --regularizer da-"
                       for name, loss in LOSSES.items()},
        {f"DML-DA {name}": f"DML-DA⁻ {name}" for name in LOSSES},
        columns=("R@1", "R@2", "R@4", "R@8", "R@16", "R@32", "R@64", "R@128"),
        beside=("alpha min", "alpha mean", "alpha max")),
    ("dml_da", "fig4"): Experiment(
        "NMI with each regularizer", "cars cub sop", 5,
        PLAIN | {f"{name}+{kind}": f"{loss}{flag}" for name, loss in LOSSES.items()
                 for kind, flag in (("EN", " --regularizer en"), ("GOR", " --regularizer gor"),
                                    ("DA", ""))},
        {f"{name}+{kind}": plain for name, plain in zip(LOSSES, PLAIN)
         for kind in ("EN", "GOR", "DA")}, columns=("NMI",)),
    ("dml_da", "fig6"): Experiment(
        "NMI against λ", "cars", 3,
        sweep("λ", (0.5, 2, 5, 7, 10, 15, 25), {
            name: f"{loss} --lambda {{}}" for name, loss in ADAPTIVE.items()}),
        columns=("NMI",), beside=("D_avg mean",), picture="sweep")}
# Each paper's first table, and the row that --quick runs with its baseline; JRD's has no gain.
HEADLINES = {("mdr", "1a"): "Triplet+MDR", ("dml_da", "I"): "DML-DA N-pair", ("jrd", "1"): "JRD"}


# ---------------------------------------------------------------------------- glyphs and cub128
# A stand-in has each experiment of the papers on CUB or Cars, once, but for other backbones and
# 256 × 256 images.
# Flags on cub128 besides a row's own, {(paper, words among these): flags}; MDR explored at 25.
CUB128_FLAGS = {("mdr", ""): "--iterations 25", ("mdr", "--l2norm"): "--lr 1e-4",
                ("dml_da", "--loss npair"): "--lr 1e-5"}
# What the title of a picture and a line above a table say of the runs
NOTES = {("cub128", "mdr"): (
    ", exploring at 25 iterations per epoch", "Exploring runs: 25 iterations per epoch, from seed "
    "0 on.  The deciding ones have 50, and seeds 3 to 10: results/cub128/decided.md.")}
STAND_INS = {"glyphs": None, "cub128": 3}           # how many seeds, None: the experiment's


class Row(NamedTuple):
    """A row of a table on a dataset"""
    key: tuple                  # paper, table
    name: object                # a text; of a sweep (series, symbol, value)
    dataset: str
    flags: str
    seeds: int                  # how many are planned
    baseline: object            # the name of the row that its gain is over, or None
    runs: list = []             # its trainings, of as many seeds as any row of the list has

    @property
    def finished(self):
        return [run for run in self.runs if run.result]


def label(name):
    """The name of a row as a text"""
    return name if isinstance(name, str) else "{}, {} = {:g}".format(*name)


def row_on(dataset, key, name, seeds):
    """A row of an experiment on a dataset"""
    flags, baseline = EXPERIMENTS[key].rows[name], EXPERIMENTS[key].baselines.get(name)
    if dataset == "glyphs" and "--dim" in flags:                        # widths are an eighth
        series, symbol, width = name
        name, baseline = (series, symbol, width // 8), baseline and ("Triplet", symbol, width // 8)
        flags = flags.replace(f"--dim {width}", f"--dim {width // 8}")
    for (paper, words), more in CUB128_FLAGS.items():
        if dataset == "cub128" and paper == key[0] and words in flags:
            flags += f" {more}"
    return Row(key, name, dataset, flags, seeds, baseline)


def rows_of(key, dataset, quick, seeds):
    """The rows of an experiment on each of its datasets that `dataset` stands for"""
    experiment, rows = EXPERIMENTS[key], []
    names, datasets = list(experiment.rows), experiment.datasets.split()
    if quick:
        names = [experiment.baselines[HEADLINES[key]], HEADLINES[key]]
    if dataset in STAND_INS and ("cub" in datasets or "cars" in datasets):
        names = [n for n in names if not re.search("--(backbone|size)", experiment.rows[n])]
        datasets, usual = [dataset], STAND_INS[dataset] or experiment.seeds
    else:
        datasets, usual = [d for d in datasets if dataset in (d, "real")], 5
    if quick:                   # which ends on two cores in ten minutes, the installation too
        usual = 1
    for on in datasets:
        for name in names:
            rows.append(row_on(on, key, name, seeds or usual))
    return rows


def selected(folder, code, dataset, paper, table, quick, seeds, weights, precision):
    """The rows that the flags select, with their runs in a folder.  code: whether runs of other
    code are other runs.  UserError if there are none."""
    rows, tables = [], []
    for key in HEADLINES if quick else EXPERIMENTS:
        if paper in (None, key[0]):
            tables.append(" ".join(key))
            if table in (None, key[1].lower()):
                rows += rows_of(key, dataset, quick, seeds)
    if not rows:
        which = f" for --table {table}: there are {', '.join(tables)}" if table else ""
        raise UserError(f"nothing to run on {NAMES[dataset]}{which}")
    most = max(row.seeds for row in rows)
    for i, row in enumerate(rows):
        runs = [training(row.key[0], row.dataset, row.flags, seed, folder, weights, precision, code)
                for seed in range(most)]
        rows[i] = row._replace(runs=runs)
    return rows


# ---------------------------------------------------------------------------- a run
class Training(Folder):
    """One run of the list: its command, settings and folder.  code: whether a run of other code is
    another run; in an archive it is not, and reports name the commits."""

    def __init__(self, paper, dataset, flags, seed, runs, weights, precision, code):
        self.paper, self.code = paper, code
        words, more = ["--dataset", dataset, *flags.split()], []
        for flag, value in (("--weights", weights), ("--precision", precision)):
            if value and flag not in words:
                more += [flag, value]
        self.setting = shlex.join(["python", f"{paper}.py", *words, *more])     # of any seed
        words += ["--seed", str(seed), *more]
        if runs != "runs":
            words += ["--out", runs]
        self.command = shlex.join(["python", f"{paper}.py", *words])
        self.cfg = SCRIPTS[paper].parse_args(words)
        self.folder = run_folder(paper, self.cfg)

    @functools.cached_property
    def why_other(self):
        """Why the folder does not hold this run, in words; "" if it does, or holds none"""
        settings = {"paper": self.paper, **vars(self.cfg)}
        if self.code:
            settings["code"] = code_of(self.paper)
        return why_other(self.folder, settings)

    @functools.cached_property
    def state(self):
        """'finished', 'begun', 'to do', or 'stale' if the folder holds another run"""
        if self.why_other:
            return "stale"
        if self.config is None:
            return "to do"
        return "finished" if (self.folder / "result.json").exists() else "begun"

    @functools.cached_property
    def result(self):
        """None of a run that is not finished"""
        return read_json(self.folder / "result.json") if self.state == "finished" else None


training = functools.cache(Training)        # of the same arguments the same one


def all_runs(rows):
    """Each training of the rows once: the headlines', then others'; seed 0 of all, 1, ..."""
    wanted, runs = [], {}
    for row in rows:
        for seed, run in enumerate(row.runs[:row.seeds]):
            wanted.append((row.key not in HEADLINES, seed, len(wanted), run))
    for _, _, _, run in sorted(wanted):
        runs.setdefault(run.folder, run)
    return list(runs.values())


def plan(rows):
    """The plan on stderr; on stdout the commands that are left and can start -> the exit status,
    3 if a dataset is missing"""
    runs, missing, stale = all_runs(rows), {}, {}
    for run in runs:
        dataset, kind = run.cfg.dataset, run.why_other.partition(" (")[0]
        if kind:
            stale.setdefault(kind, []).append(run)
        if dataset != "glyphs" and dataset not in missing:
            missing[dataset] = why_missing(dataset, run.cfg.data_root)
    states, tables = Counter(run.state for run in runs), {row.key for row in rows}
    counts = ", ".join(f"{n} {state}" for state, n in states.items())
    lines = [f"plan: {len(runs)} runs for {len(tables)} tables and figures, {counts}"]
    for kind, of_kind in stale.items():
        lines.append(f"  {len(of_kind)} stale {kind}, not listed below: {of_kind[0].folder} holds "
                     f"a run {of_kind[0].why_other}")
    if stale:
        lines.append("  Delete stale folders to train them anew, or give --runs another folder.")
    lines += filter(None, missing.values())
    print("\n".join(lines), file=sys.stderr, flush=True)
    for run in runs:
        if run.state in ("begun", "to do") and not missing.get(run.cfg.dataset):
            print(run.command)
    return 3 if any(missing.values()) else 0


def why_missing(dataset, root):
    """Why a dataset cannot be read, "" if it can be"""
    try:
        read_dataset(dataset, root)
        return ""
    except UserError as error:
        return f"missing: {error}"

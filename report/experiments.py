"""The experiment list: what to run for every table and figure, and what is there of it.

EXPERIMENTS is the one source of the commands and of the tables.  The paper script's own parse_args
turns a row's flags into settings, so rows that share a run share it here too.
"""
import functools
import json
import re
import shlex
import sys
from collections import Counter, namedtuple
from pathlib import Path
from typing import NamedTuple

import dml_da
import jrd
import mdr
from support.files import UserError
from support.layouts import read_dataset
from support.runs import code_of, read_config, read_result, run_folder, why_other

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


PENALTIES = {"JRD": "jrs", "JMMD": "jmmd", "JIntra": "jintra"}
ALPHAS = (0, 0.1, 0.4, 0.7, 1, 1.5, 2)     # Fig. 4 goes from 0 to 2; the paper names no points
INTRA, INTRA_ALPHAS = "AMSoftmax + intra-class penalty", (0, 0.05, 0.1, 0.2, 0.5, 1)
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
        {(INTRA, "α", a): f"--regularizer intra --alpha {a}" if a else "--alpha 0"
         for a in INTRA_ALPHAS},
        {(INTRA, "α", a): (INTRA, "α", 0) for a in INTRA_ALPHAS if a},
        columns=("lambda", "d_H", "R@1"), picture="sweep"),
    ("jrd", "fig4"): Experiment(
        "R@1 against α", "cub cars sop", 3, {("JRD", "α", a): f"--alpha {a}" for a in ALPHAS},
        {("JRD", "α", a): ("JRD", "α", 0) for a in ALPHAS if a},
        beside=("jrs",), picture="sweep"),
    ("jrd", "fig5"): Experiment(
        "R@1 against α for JRD, JMMD and JIntra", "cub", 3,
        {(name, "α", a): f"--regularizer {penalty} --alpha {a}" if a else "--alpha 0"
         for name, penalty in PENALTIES.items() for a in ALPHAS},    # α = 0 is AMSoftmax with each
        {(name, "α", a): (name, "α", 0) for name in PENALTIES for a in ALPHAS if a},
        picture="sweep"),
    ("jrd", "fig6"): Experiment(
        "R@1 over (K, K'); the curves coincide, so a table alone", "cub cars", 3,
        {(f"K' = {b}", "K", a): f"--K {a} --K-prime {b}" for b in (1, 3, 5) for a in (1, 3, 5)}),
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
        {name + more: TRIPLET[name] for name in ("Triplet", "Triplet+MDR")
         for more in ("", " (L2 norm at inference)")},
        {f"{name} (L2 norm at inference)": name for name in ("Triplet", "Triplet+MDR")},
        measured="l2 norm at inference"),
    ("mdr", "fig3a"): Experiment(
        "R@1 against the embedding's width", "cub cars", 3,
        {(name, "d", d): f"{flags} --dim {d}" for name, flags in TRIPLET.items() for d in WIDTHS},
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
        columns=tuple(f"R@{2 ** i}" for i in range(8)),
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
        {(f"DML-DA {name}", "λ", x): f"{loss} --lambda {x}" for name, loss in LOSSES.items()
         for x in (0.5, 2, 5, 7, 10, 15, 25)},
        columns=("NMI",), beside=("D_avg mean",), picture="sweep")}
# Each paper's first table, and the row that --quick runs with its baseline; JRD's has no gain.
HEADLINES = {("mdr", "1a"): "Triplet+MDR", ("dml_da", "I"): "DML-DA N-pair", ("jrd", "1"): "JRD"}


# ---------------------------------------------------------------------------- glyphs and cub128
# A stand-in has each experiment of the papers on CUB or Cars, once, but for other backbones and
# 256 × 256 images.
# Flags on cub128 besides a row's own, {(paper, words among these): flags}; MDR explored at 25.
CUB128_FLAGS = {("mdr", ""): "--iterations 25", ("mdr", "--l2norm"): "--lr 1e-4",
                ("dml_da", "--loss npair"): "--lr 1e-5"}
# key: (paper, table); baseline: the row that its gain is over, or None
Row = namedtuple("Row", "key name dataset flags seeds baseline")


def row_on(dataset, key, name, seeds):
    """A row of an experiment on a dataset"""
    flags, baseline = EXPERIMENTS[key].rows[name], EXPERIMENTS[key].baselines.get(name)
    if dataset == "glyphs" and "--dim" in flags:                        # widths are an eighth
        name = *name[:2], name[2] // 8
        flags = re.sub(r"--dim \d+", f"--dim {name[2]}", flags)
    elif dataset == "cub128":
        flags += "".join(f" {more}" for (paper, words), more in CUB128_FLAGS.items()
                         if paper == key[0] and words in flags)
    return Row(key, name, dataset, flags, seeds,
               row_on(dataset, key, baseline, seeds) if baseline else None)


def selected(args):
    """The rows that the command line selects; args.dataset is filled in if it is not given.
    UserError if there are none."""
    args.dataset, rows = args.dataset or ("glyphs" if args.quick else "real"), []
    keys = [key for key in (HEADLINES if args.quick else EXPERIMENTS)
            if args.paper in (None, key[0])]
    for key in [key for key in keys if args.table in (None, key[1].lower())]:
        experiment, names = EXPERIMENTS[key], [*EXPERIMENTS[key].rows]
        datasets = [dataset for dataset in experiment.datasets.split()
                    if args.dataset in (dataset, "real")]
        if args.dataset in ("glyphs", "cub128") and re.search("cub|cars", experiment.datasets):
            datasets = [args.dataset]
            names = [n for n in names if not re.search("--(backbone|size)", experiment.rows[n])]
        if args.quick:
            names = experiment.baselines[HEADLINES[key]], HEADLINES[key]
        for dataset in datasets:
            # --quick ends on two cores in ten minutes, the installation too
            seeds = 1 if args.quick else {"glyphs": experiment.seeds, "cub128": 3}.get(dataset, 5)
            rows += [row_on(dataset, key, name, args.seeds or seeds) for name in names]
    if not rows:
        raise UserError(f"nothing to run on {NAMES[args.dataset]}" + (
            f" for --table {args.table}: there are {', '.join(map(' '.join, keys))}"
            if args.table else ""))
    return rows


# ---------------------------------------------------------------------------- a run
def read_lines(path):
    """A file of JSON lines -> its rows, dicts.  UserError if it is damaged or not there."""
    try:
        return [dict(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, TypeError):
        raise UserError(f"{path} is damaged, or not there")


class Folder:
    """A run's folder, of which each file is read once."""

    def __init__(self, folder):
        self.folder = folder

    config = functools.cached_property(lambda self: read_config(self.folder))
    log = functools.cached_property(lambda self: read_lines(self.folder / "log.jsonl"))
    result = functools.cached_property(lambda self: read_result(self.folder))


class Training(Folder):
    """One run of the list: its command, settings and folder.  code: whether a run of other code is
    another run; in an archive it is not, and reports name the commits."""

    def __init__(self, paper, dataset, flags, seed, runs, weights, precision, code):
        words = ["--dataset", dataset, *flags.split(), "--seed", str(seed)]
        for flag, value in (("--weights", weights), ("--precision", precision)):
            words += [flag, value] if value and flag not in words else []
        words += ["--out", runs] if runs != "runs" else []
        self.paper, self.command = paper, shlex.join(["python", f"{paper}.py", *words])
        self.cfg = SCRIPTS[paper].parse_args(words)
        self.folder = run_folder(paper, self.cfg)
        self.settings = {"paper": paper, **vars(self.cfg)} | (
            {"code": code_of(paper)} if code else {})

    @functools.cached_property
    def why_other(self):
        """Why the folder does not hold this run, in words; "" if it does, or holds none"""
        return why_other(self.folder, self.settings)

    @functools.cached_property
    def state(self):
        """'finished', 'begun', 'to do', or 'stale' if the folder holds another run"""
        if self.why_other or self.config is None:
            return "stale" if self.why_other else "to do"
        return "finished" if (self.folder / "result.json").exists() else "begun"

    @functools.cached_property
    def result(self):
        """None of a run that is not finished"""
        return read_result(self.folder) if self.state == "finished" else None


training = functools.cache(Training)        # of the same arguments the same one


def runs_of(row, args):
    """A row's runs under --runs, one per seed"""
    return [training(row.key[0], row.dataset, row.flags, seed, args.runs, args.weights,
                     args.precision, not args.archive) for seed in range(row.seeds)]


def finished_runs(rows, args):
    """[(row, its runs that are finished)]"""
    return [(row, [run for run in runs_of(row, args) if run.result]) for row in rows]


def all_runs(rows, args):
    """Each training of the rows once: the headlines', then others'; seed 0 of all, 1, ..."""
    wanted = [(row.key not in HEADLINES, run) for row in rows for run in runs_of(row, args)]
    runs = {}
    for _, run in sorted(wanted, key=lambda entry: (entry[0], entry[1].cfg.seed)):
        runs.setdefault(run.folder, run)
    return list(runs.values())


def plan(rows, args):
    """The plan on stderr, the commands that are left on stdout -> status, 3: some cannot start"""
    if args.weights not in (None, "random") and not Path(args.weights).is_file():
        raise UserError(f"--weights {args.weights}: no such file")
    runs, missing = all_runs(rows, args), {}                            # {dataset: why}
    for dataset, root in {run.cfg.dataset: run.cfg.data_root for run in runs}.items():
        try:
            if dataset != "glyphs":
                read_dataset(dataset, root)
        except UserError as error:
            missing[dataset] = f"missing: {error}"
    states = Counter(run.state for run in runs)
    lines = [f"plan: {len(runs)} runs for {len({row.key for row in rows})} tables and figures, "
             + ", ".join(f"{n} {state}" for state, n in states.items())]
    lines += [f"  {run.folder} holds a run {run.why_other}: delete it to train anew"
              for run in runs if run.state == "stale"]
    print("\n".join([*lines, *missing.values()]), file=sys.stderr, flush=True)
    for run in runs:
        if run.state != "finished" and run.cfg.dataset not in missing:
            print(run.command)
    return 3 if missing else 0

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
from support.runs import read_config, read_result, run_folder, why_other

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
    seeds: int                  # on glyphs
    rows: dict                  # {row: flags}
    three_times: bool = False   # on glyphs the rows stand at three times the rate too
    columns: tuple = ("R@1",)   # metrics, unless paper_numbers.jsonl has a table of the paper
    beside: tuple = ()          # metrics that glyphs and cub128 have besides; no figure draws them
    measured: str = None        # of the last epoch alone: "ten parts", "l2 norm at inference"
    picture: str = None         # what draws it, a function of report/figures.py


VARIANTS = {"JRD": "", "MRD": "--variant mrd", "JRD-C": "--variant jrd-c",
            "JRD-Pooling": "--variant jrd-pooling"}
PENALTIES = {"JRD": "jrs", "JMMD": "jmmd", "JIntra": "jintra"}    # α = 0 is AMSoftmax with each
TRIPLET = {"Triplet": "--lambda 0", "Triplet+L2Norm": "--lambda 0 --l2norm", "Triplet+MDR": ""}
WITH_AND_WITHOUT_MDR = (("", " --lambda 0"), ("+MDR", ""))
LEVELS = ("-1 0 1", "-2 0 2", "-3 0 3", "-3 -1 0 1 3", "-3 -2 0 2 3", "-4 -2 0 2 4", "-6 -3 0 3 6")
LOSSES = {"triplet": "--loss triplet", "N-pair": "--loss npair", "contrastive": ""}
PLAIN = {"Triplet": "--loss triplet --lambda 0", "N-pair": "--loss npair --lambda 0",
         "Contrastive": "--lambda 0"}
ADAPTIVE = {f"DML-DA {name}": loss for name, loss in LOSSES.items()}
ALPHAS = (0, 0.1, 0.4, 0.7, 1, 1.5, 2)     # Fig. 4 and 5 go from 0 to 2; the paper names no points
JRD_AND_BASELINE = {"JRD": "", "AMSoftmax": "--alpha 0"}
RETRIEVAL = ("MAP@R", "NMI", "seen R@1")
# Headline settings stand on glyphs at the search's next rate too; JRD's proxies have 100 times it.
THREE_TIMES = "3 × the rate"
THREE_TIMES_IS = {"jrd": "--lr 1e-3 --lr-proxies 0.1", "mdr": "--lr 3e-3", "dml_da": "--lr 3e-4"}
# Seeds on glyphs of every row that a headline claim needs: fixed before they ran, the same for all.
GLYPHS_SEEDS = 10

# Not here: t-SNE of embeddings (MDR Fig. 5, DML-DA Fig. 1a-c, 5 and 7-9), of the runs of Tables 1a
# and I.  Such pictures did not tell one method from another.
EXPERIMENTS = {     # (paper, table or figure): what to run
    ("jrd", "1"): Experiment(
        "Recall@K; AMSoftmax is α = 0, not in the paper's table", "cub cars sop", GLYPHS_SEEDS,
        JRD_AND_BASELINE, three_times=True, beside=RETRIEVAL),
    ("jrd", "2"): Experiment(
        "which representations are joined; in ten parts (SOP: whole)", "cub cars sop", GLYPHS_SEEDS,
        VARIANTS, measured="ten parts"),
    ("jrd", "3"): Experiment(
        "terms of the generalization bound by 1-NN; R@1 in ten parts", "cub", 5,
        {"JMMD (alpha=0.1)": "--regularizer jmmd", "JRD (alpha=1)": ""}, measured="ten parts"),
    ("jrd", "4"): Experiment("kernels", "cub", 5, {
        "Gaussian (alpha=1)": "--K 1", "Laplace (alpha=1)": "--kernel laplace",
        "polynomial p=2 (alpha=1e-3)": "--kernel polynomial",
        "polynomial p=5 (alpha=1e-3)": "--kernel polynomial --p 5",
        "moment-generating exp(x.x') (alpha=1e-3)": "--kernel mgf"}),
    ("jrd", "fig2"): Experiment(
        "λ and d_H against the intra-class penalty of Eq. 4", "cub", 3,
        {("AMSoftmax + intra-class penalty", "α", a): f"--regularizer intra --alpha {a}" if a else
         "--alpha 0" for a in (0, 0.05, 0.1, 0.2, 0.5, 1)},
        columns=("lambda", "d_H", "R@1"), picture="sweep"),
    ("jrd", "fig4"): Experiment(
        "R@1 against α", "cub cars sop", 3, {("JRD", "α", a): f"--alpha {a}" for a in ALPHAS},
        beside=("jrs",), picture="sweep"),
    ("jrd", "fig5"): Experiment(
        "R@1 against α for JRD, JMMD and JIntra", "cub", 3,
        {(name, "α", a): f"--regularizer {penalty} --alpha {a}" if a else "--alpha 0"
         for name, penalty in PENALTIES.items() for a in ALPHAS}, picture="sweep"),
    ("jrd", "fig6"): Experiment(
        "R@1 over (K, K'); the curves coincide, so a table alone", "cub cars", 3,
        {(f"K' = {b}", "K", a): f"--K {a} --K-prime {b}" for b in (1, 3, 5) for a in (1, 3, 5)}),
    ("mdr", "1a"): Experiment(
        "Recall@K", "cub cars", GLYPHS_SEEDS, TRIPLET | {"Triplet+MDR (256x256)": "--size 256"},
        three_times=True, beside=RETRIEVAL),
    ("mdr", "1b"): Experiment(
        "Recall@K", "sop inshop", 5, TRIPLET | {"Triplet+MDR (256x256)": "--size 256"}),
    ("mdr", "2a"): Experiment("backbones", "cub cars", 5, {
        name + mdr: f"--backbone {backbone}{flag}"
        for name, backbone in (("R18", "resnet18"), ("R50", "resnet50"), ("IBN", "bn_inception"))
        for mdr, flag in WITH_AND_WITHOUT_MDR}),
    ("mdr", "2b"): Experiment(
        "losses", "cub cars", GLYPHS_SEEDS,
        {name + mdr: f"--loss {name.lower()}{flag}" for name in ("Contrastive", "Margin", "Triplet")
         for mdr, flag in WITH_AND_WITHOUT_MDR}, beside=RETRIEVAL),
    ("mdr", "2c"): Experiment("configurations of the levels", "cub", 5, {
        f"levels {{{levels.replace(' ', ',')}}} {kind}": f"--levels {levels}{flag}"
        for levels in LEVELS for kind, flag in (("fixed", " --fixed-levels"), ("learnable", ""))}),
    ("mdr", "3"): Experiment("l2 norm at inference only", "cub", GLYPHS_SEEDS, {
        name + way: TRIPLET[name] for name in ("Triplet", "Triplet+MDR")
        for way in ("", " (L2 norm at inference)")}, measured="l2 norm at inference"),
    ("mdr", "fig3a"): Experiment(
        "R@1 against the embedding's width", "cub cars", 3,
        {(name, "d", d): f"{flags} --dim {d}" for name, flags in TRIPLET.items()
         for d in (64, 128, 256, 512)}, picture="sweep"),
    ("mdr", "fig3b"): Experiment(
        "learning curves of train and test", "cub", GLYPHS_SEEDS, TRIPLET,
        three_times=True, columns=("R@1", "seen R@1"), picture="epochs"),
    ("mdr", "fig4"): Experiment(
        "norms of the test embeddings", "cub", GLYPHS_SEEDS, TRIPLET,
        three_times=True, columns=("norm mean", "norm cv"), picture="epochs"),
    ("mdr", "fig6"): Experiment("pairs at each level", "cub", GLYPHS_SEEDS, {"Triplet+MDR": ""},
                                picture="levels"),
    ("dml_da", "I"): Experiment(
        "NMI and Recall@K", "cars cub sop", GLYPHS_SEEDS, PLAIN | ADAPTIVE,
        three_times=True, beside=("MAP@R", "seen R@1", "D_avg mean")),
    ("dml_da", "fig1d"): Experiment(
        "R@1 of train and test", "cars", GLYPHS_SEEDS, PLAIN | {"DML-DA contrastive": ""},
        three_times=True, columns=("R@1", "seen R@1"), picture="epochs"),
    ("dml_da", "fig3"): Experiment(
        "R@K with and without the correlation term; the curves coincide, so a table alone", "cars",
        5, ADAPTIVE | {f"DML-DA⁻ {name}": f"{loss} --regularizer da-"
                       for name, loss in LOSSES.items()},
        columns=tuple(f"R@{2 ** i}" for i in range(8)),
        beside=("alpha min", "alpha mean", "alpha max")),
    ("dml_da", "fig4"): Experiment(
        "NMI with each regularizer", "cars cub sop", 5,
        PLAIN | {f"{name}+{kind}": f"{loss}{flag}" for name, loss in LOSSES.items()
                 for kind, flag in (("EN", " --regularizer en"), ("GOR", " --regularizer gor"),
                                    ("DA", ""))},
        columns=("NMI",)),
    ("dml_da", "fig6"): Experiment(
        "NMI against λ", "cars", 3,
        {(f"DML-DA {name}", "λ", x): f"{loss} --lambda {x}" for name, loss in LOSSES.items()
         for x in (0.5, 2, 5, 7, 10, 15, 25)},
        columns=("NMI",), beside=("D_avg mean",), picture="sweep")}
HEADLINES = (("jrd", "1"), ("mdr", "1a"), ("dml_da", "I"))
QUICK = {("jrd", "1"): tuple(JRD_AND_BASELINE), ("mdr", "1a"): tuple(TRIPLET),
         ("mdr", "fig3b"): tuple(TRIPLET), ("dml_da", "I"): ("Contrastive", "DML-DA contrastive")}


# ---------------------------------------------------------------------------- glyphs and cub128
# A stand-in has each experiment of the papers on CUB or Cars, once.  The text that stands in rows
# that it cannot have (other backbones, 256 × 256 images):
STAND_INS = {"glyphs": "no miniature", "cub128": "not in cub128"}
# Flags on cub128 besides a row's own, {(paper, words among these): flags}; MDR explored at 25.
CUB128_FLAGS = {("mdr", ""): "--iterations 25", ("mdr", "--l2norm"): "--lr 1e-4",
                ("dml_da", "--loss npair"): "--lr 1e-5"}


class Family(NamedTuple):
    """Differences that new seeds decide on cub128, with Holm's correction over these alone."""
    title: str
    seeds: range
    settings: dict          # {method: (flags, share of the schedule after which its search was
    #                         best, None without one)}
    differences: dict       # {method - method: the paper's, in points; None: in no table}
    optional: tuple = ()    # differences that are in the family only if all their runs are


METHODS = {         # in families: paper, flags
    "JRD": ("jrd", ""), "AMSoftmax": ("jrd", "--alpha 0"), "MDR": ("mdr", ""),
    "Triplet": ("mdr", "--lambda 0"), "L2Norm": ("mdr", "--lambda 0 --l2norm"),
    **{name: ("dml_da", flags) for name, flags in ADAPTIVE.items()},
    **{name: ("dml_da", flags) for name, flags in zip(LOSSES, PLAIN.values())}}
R18 = "--backbone resnet18 --weights resnet18_pqf.pth --eval-every 10"
AUTHORS = f"{R18} --lr 5e-5 --epochs 100 --iterations 100"
SEARCHED = f"{R18} --epochs 50 --lr 1e-3 --lr-proxies 1e-1"
GOOGLENET = "--backbone googlenet_bvlc --weights googlenet_bvlc.pth --lr 1e-5"
FAMILIES = {        # by the label of their runs, --name
    "decides": Family("SqueezeNet 1.1 (docs/plans.md)", range(3, 11), {
        "JRD": ("--lr 3e-4 --lr-proxies 3e-2", 0.8),
        "AMSoftmax": ("--lr 1e-3 --lr-proxies 1e-1", 1.0),
        "MDR": ("--lr 3e-4", 0.8), "Triplet": ("--lr 3e-4", 1.0), "L2Norm": ("--lr 3e-5", 0.4),
        "DML-DA contrastive": ("--lr 3e-5", 1.0), "contrastive": ("--lr 3e-5", 1.0),
        "DML-DA triplet": ("--lr 3e-5", 0.5), "triplet": ("--lr 3e-5", 0.5),
        "DML-DA N-pair": ("--lr 3e-5", 0.75), "N-pair": ("--lr 3e-6", 0.75)}, {
        "JRD - AMSoftmax": None, "DML-DA contrastive - contrastive": 3.63,
        "DML-DA triplet - triplet": 6.33, "DML-DA N-pair - N-pair": 4.15, "L2Norm - Triplet": 7.8,
        "MDR - Triplet": 11.5, "MDR - L2Norm": 3.7}),
    # The plan's "a run that fails twice counts as p = 1" is not built: its family stays undecided.
    "networks": Family("the networks of the plan (docs/plans.md)", range(3, 6), {
        "MDR": (AUTHORS, None), "Triplet": (AUTHORS, None), "L2Norm": (AUTHORS, None),
        "DML-DA contrastive": (GOOGLENET, None), "contrastive": (GOOGLENET, None),
        "JRD": (SEARCHED, None), "AMSoftmax": (SEARCHED, None)}, {
        "MDR - Triplet": 12.4, "DML-DA contrastive - contrastive": 3.63, "JRD - AMSoftmax": None,
        "MDR - L2Norm": None}, optional=("MDR - L2Norm",))}             # 12.4: Table 2a, R18


def flags_on(dataset, paper, flags):
    """A row's flags on the papers' datasets -> those on this one, None if it has no such row."""
    if dataset in STAND_INS and ("--backbone" in flags or "--size" in flags):
        return None
    if dataset == "glyphs":                         # widths are an eighth
        return re.sub(r"--dim (\d+)", lambda width: f"--dim {int(width[1]) // 8}", flags)
    if dataset == "cub128":
        for (owner, words), more in CUB128_FLAGS.items():
            flags += f" {more}" if owner == paper and words in flags else ""
    return flags


def datasets_asked(datasets, asked):
    """Those of a paper's datasets that --dataset asks for; a stand-in for CUB or Cars alone."""
    if asked in STAND_INS and re.search("cub|cars", datasets):
        return [asked]
    return [dataset for dataset in datasets.split() if asked in (dataset, "real")]


Row = namedtuple("Row", "key name dataset flags seeds")     # key: (paper, table)


def rows_on(dataset, key, args):
    """An experiment's rows on one dataset."""
    experiment = EXPERIMENTS[key]
    flags_of, seeds = dict(experiment.rows), 3 if dataset == "cub128" else 5
    if args.quick:
        flags_of, seeds = {name: flags_of[name] for name in QUICK.get(key, ())}, 2
    elif dataset == "glyphs":
        seeds = experiment.seeds
        if experiment.three_times:
            flags_of |= {f"{name}, {THREE_TIMES}": f"{flags} {THREE_TIMES_IS[key[0]]}".strip()
                         for name, flags in experiment.rows.items() if "--size" not in flags}
        flags_of = {(name[0], "d", name[2] // 8) if "--dim" in flags else name: flags
                    for name, flags in flags_of.items()}
    return [Row(key, name, dataset, flags_on(dataset, key[0], flags), args.seeds or seeds)
            for name, flags in flags_of.items()]


def selected(args):
    """The rows that the command line selects; args.dataset is filled in if it is not given.
    UserError if there are none."""
    args.dataset = args.dataset or ("glyphs" if args.quick else "real")
    keys = [key for key in EXPERIMENTS if args.paper in (None, key[0])]
    rows = [row for key in keys if args.table in (None, key[1].lower())
            for dataset in datasets_asked(EXPERIMENTS[key].datasets, args.dataset)
            for row in rows_on(dataset, key, args)]
    if not rows:
        raise UserError(f"nothing to run for --table {args.table} on {NAMES[args.dataset]}: there "
                        f"are {', '.join(map(' '.join, keys))}")
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
    """One run of the list: its command, settings and folder."""

    def __init__(self, paper, dataset, flags, seed, runs, weights, precision):
        words = ["--dataset", dataset, *flags.split(), "--seed", str(seed)]
        for flag, value in (("--weights", weights), ("--precision", precision)):
            words += [flag, value] if value and flag not in words else []
        words += ["--out", runs] if runs != "runs" else []
        self.paper, self.command = paper, shlex.join(["python", f"{paper}.py", *words])
        self.cfg = SCRIPTS[paper].parse_args(words)
        self.folder = run_folder(paper, self.cfg)

    @functools.cached_property
    def state(self):
        """'finished', 'begun', 'to do', or 'stale' if the folder holds other settings."""
        if self.config is None:
            return "to do"
        if why_other(self.folder, {"paper": self.paper, **vars(self.cfg)}):
            return "stale"
        return "finished" if (self.folder / "result.json").exists() else "begun"

    @functools.cached_property
    def result(self):
        """None of a run that is not finished"""
        return read_result(self.folder) if self.state == "finished" else None


training = functools.cache(Training)        # of the same arguments the same one


def runs_of(row, args):
    """A row's runs under --runs, one per seed; none if it has no counterpart."""
    return [training(row.key[0], row.dataset, row.flags, seed, args.runs, args.weights,
                     args.precision) for seed in range(row.seeds) if row.flags is not None]


def deciding_runs(family, setting, args):
    """The runs of a family's setting, one per seed: those in float32 where one has begun"""
    (paper, flags), (more, _) = METHODS[setting], FAMILIES[family].settings[setting]
    words = paper, "cub128", f"{flags} {more} --name {family}"
    both = [[training(*words, seed, args.runs, args.weights, precision)
             for precision in ("fp32", args.precision)] for seed in FAMILIES[family].seeds]
    return [plain if plain.config else other for plain, other in both]


def all_runs(rows, args):
    """Each training of the rows once: the headlines', then others'; seed 0 of all, 1, ..."""
    wanted = [(row.key not in HEADLINES, run) for row in rows for run in runs_of(row, args)]
    if args.dataset == "cub128" and not (args.seeds or args.quick or args.table):
        wanted += [(False, run) for name, family in FAMILIES.items() for setting in family.settings
                   for run in deciding_runs(name, setting, args) if args.paper in (None, run.paper)]
    runs = {}
    for _, run in sorted(wanted, key=lambda entry: (entry[0], entry[1].cfg.seed)):
        runs.setdefault(run.folder, run)
    return list(runs.values())


def plan(rows, args):
    """The plan on stderr, the commands that are left on stdout -> status, 1: some cannot start"""
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
    lines += [f"  {run.folder} holds other settings: delete it to train anew"
              for run in runs if run.state == "stale"]
    print("\n".join([*lines, *missing.values()]), file=sys.stderr, flush=True)
    for run in runs:
        if run.state != "finished" and run.cfg.dataset not in missing:
            print(run.command)
    return 1 if missing else 0

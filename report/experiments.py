"""The experiment list: what to run for every table and figure, and what is there of it.

EXPERIMENTS is the one source of the commands and of the tables.  The paper script's own parse_args
turns a row's flags into settings, so rows that share a run share it here too.
"""
import functools
import re
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from report.judge import SCRIPTS
from report.records import RunFolder
from support.backbones import find_backbone
from support.files import UserError, sha256
from support.glyphs import GLYPHS
from support.layouts import COUNTS, of_papers, read_dataset
from support.identity import code_of, run_folder, why_other

NAMES = {"jrd": "JRD", "mdr": "MDR", "dml_da": "DML-DA", "glyphs": "glyphs", "cub128": "cub128",
         "cub": "CUB", "cars": "Cars", "sop": "SOP", "inshop": "In-Shop",
         "real": "the papers' datasets"}


# ---------------------------------------------------------------------------- the list
class Experiment(NamedTuple):
    """A table or figure of a paper.

    Its rows are lines of text: name | flags | the row that its gain is over.  A table's rows have
    the names of paper_numbers.jsonl.  No flags: the dataset's preset, which is the paper's method.
    A sweep's rows are its series; each is trained with every value in place of {}.
    """
    title: str
    datasets: str               # the paper's
    seeds: int                  # on glyphs; the headline rows' 10 were fixed before they ran
    rows: str
    symbol: str = None          # of a sweep: what is varied
    values: tuple = ()
    columns: tuple = ("R@1",)   # metrics, unless paper_numbers.jsonl has a table of the paper
    beside: tuple = ()          # metrics that no paper's table and no figure has
    measured: str = None        # of a run's figures this part alone
    picture: str = None         # which points it shows, of figures.POINTS
    note: str = ""              # a line above its tables


ALPHAS = (0, 0.1, 0.4, 0.7, 1, 1.5, 2)     # Fig. 4 goes from 0 to 2; the paper names no points
TRIPLET = """
    Triplet        | --lambda 0          |
    Triplet+L2Norm | --lambda 0 --l2norm | Triplet
    Triplet+MDR    |                     | Triplet"""
TRIPLET_256 = TRIPLET + """
    Triplet+MDR (256x256) | --size 256 |"""
PLAIN = """
    Triplet     | --loss triplet --lambda 0 |
    N-pair      | --loss npair --lambda 0   |
    Contrastive | --lambda 0                |"""
RETRIEVAL = ("MAP@R", "NMI", "seen R@1")

# Not here: t-SNE of embeddings (MDR Fig. 5, DML-DA Fig. 1a-c, 5 and 7-9), of the runs of Tables 1a
# and I.  Such pictures did not tell one method from another.
EXPERIMENTS = {     # paper and table or figure: what to run
    "jrd 1": Experiment(
        "Recall@K; AMSoftmax is α = 0, not in the paper's table", "cub cars sop", 10, """
        JRD       |           | AMSoftmax
        AMSoftmax | --alpha 0 |""", beside=RETRIEVAL),
    "jrd 2": Experiment(
        "which representations are joined; in ten parts (SOP: whole)", "cub cars sop", 10, """
        JRD         |                       |
        MRD         | --variant mrd         |
        JRD-C       | --variant jrd-c       |
        JRD-Pooling | --variant jrd-pooling |""", measured="ten parts"),
    "jrd 3": Experiment(
        "terms of the generalization bound by 1-NN; R@1 in ten parts", "cub", 5, """
        JMMD (alpha=0.1) | --regularizer jmmd --alpha 0.1 |
        JRD (alpha=1)    |                                |""", measured="ten parts",
        note="λ is Eq. 3's sum of the errors on seen and on unseen classes.  The paper's λ is "
             "another quantity, because it is below its own error on unseen classes alone (E5 in "
             "docs/equations.md).  So do not compare them."),
    "jrd 4": Experiment("kernels", "cub", 5, """
        Gaussian (alpha=1)                       | --K 1                                   |
        Laplace (alpha=1)                        | --kernel laplace                        |
        polynomial p=2 (alpha=1e-3)              | --kernel polynomial --alpha 1e-3        |
        polynomial p=5 (alpha=1e-3)              | --kernel polynomial --p 5 --alpha 1e-3  |
        moment-generating exp(x.x') (alpha=1e-3) | --kernel mgf --alpha 1e-3               |"""),
    "jrd fig2": Experiment(
        "λ and d_H against the intra-class penalty of Eq. 4", "cub", 3, """
        AMSoftmax + intra-class penalty | --regularizer intra --alpha {} |""",
        "α", (0, 0.05, 0.1, 0.2, 0.5, 1), columns=("lambda", "d_H", "R@1"), picture="sweep"),
    "jrd fig4": Experiment(
        "R@1 against α", "cub cars sop", 3, "JRD | --alpha {} |", "α", ALPHAS, beside=("jrs",),
        picture="sweep"),
    "jrd fig5": Experiment(
        "R@1 against α for JRD, JMMD and JIntra", "cub", 3, """
        JRD    | --regularizer jrs --alpha {}    |
        JMMD   | --regularizer jmmd --alpha {}   |
        JIntra | --regularizer jintra --alpha {} |""", "α", ALPHAS, picture="sweep"),
    "jrd fig6": Experiment(
        "R@1 over (K, K'); the curves coincide, so a table alone", "cub cars", 3, """
        K' = 1 | --K {} --K-prime 1 |
        K' = 3 | --K {} --K-prime 3 |
        K' = 5 | --K {} --K-prime 5 |""", "K", (1, 3, 5)),
    "mdr 1a": Experiment("Recall@K", "cub cars", 10, TRIPLET_256, beside=RETRIEVAL),
    "mdr 1b": Experiment("Recall@K", "sop inshop", 5, TRIPLET_256),
    "mdr 2a": Experiment("backbones", "cub cars", 5, """
        R18     | --backbone resnet18 --lambda 0     |
        R18+MDR | --backbone resnet18                | R18
        R50     | --backbone resnet50 --lambda 0     |
        R50+MDR | --backbone resnet50                | R50
        IBN     | --backbone bn_inception --lambda 0 |
        IBN+MDR | --backbone bn_inception            | IBN"""),
    "mdr 2b": Experiment("losses", "cub cars", 10, """
        Contrastive     | --loss contrastive --lambda 0 |
        Contrastive+MDR | --loss contrastive            | Contrastive
        Margin          | --loss margin --lambda 0      |
        Margin+MDR      | --loss margin                 | Margin
        Triplet         | --loss triplet --lambda 0     |
        Triplet+MDR     | --loss triplet                | Triplet""", beside=RETRIEVAL),
    "mdr 2c": Experiment("configurations of the levels", "cub", 5, """
        levels {-1,0,1} fixed          | --levels -1 0 1 --fixed-levels |
        levels {-1,0,1} learnable      | --levels -1 0 1      | levels {-1,0,1} fixed
        levels {-2,0,2} fixed          | --levels -2 0 2 --fixed-levels |
        levels {-2,0,2} learnable      | --levels -2 0 2      | levels {-2,0,2} fixed
        levels {-3,0,3} fixed          | --levels -3 0 3 --fixed-levels |
        levels {-3,0,3} learnable      | --levels -3 0 3      | levels {-3,0,3} fixed
        levels {-3,-1,0,1,3} fixed     | --levels -3 -1 0 1 3 --fixed-levels |
        levels {-3,-1,0,1,3} learnable | --levels -3 -1 0 1 3 | levels {-3,-1,0,1,3} fixed
        levels {-3,-2,0,2,3} fixed     | --levels -3 -2 0 2 3 --fixed-levels |
        levels {-3,-2,0,2,3} learnable | --levels -3 -2 0 2 3 | levels {-3,-2,0,2,3} fixed
        levels {-4,-2,0,2,4} fixed     | --levels -4 -2 0 2 4 --fixed-levels |
        levels {-4,-2,0,2,4} learnable | --levels -4 -2 0 2 4 | levels {-4,-2,0,2,4} fixed
        levels {-6,-3,0,3,6} fixed     | --levels -6 -3 0 3 6 --fixed-levels |
        levels {-6,-3,0,3,6} learnable | --levels -6 -3 0 3 6 | levels {-6,-3,0,3,6} fixed""",
        note="The outer learnable levels end where Adam's rate lets them, inside their start: by "
             "about 0.22 at the paper's rate and the authors' length, by 0.18 on glyphs, by 0.35 "
             "in cub128's exploring runs (studies/mdr_by_network.md).  So learnable against fixed "
             "compares levels with narrower ones.  {-1,0,1} is the exception: ±1 is near the "
             "median of its own pairs, so these two move less, by 0.09 and 0.14 on glyphs."),
    "mdr 3": Experiment("l2 norm at inference only", "cub", 10, """
        Triplet                            | --lambda 0 |
        Triplet (L2 norm at inference)     | --lambda 0 | Triplet
        Triplet+MDR                        |            |
        Triplet+MDR (L2 norm at inference) |            | Triplet+MDR""",
        measured="last epoch"),
    "mdr fig3a": Experiment("R@1 against the embedding's width", "cub cars", 3, """
        Triplet        | --lambda 0 --dim {}          |
        Triplet+L2Norm | --lambda 0 --l2norm --dim {} | Triplet
        Triplet+MDR    | --dim {}                     | Triplet""",
        "d", (64, 128, 256, 512), picture="sweep"),
    "mdr fig3b": Experiment(
        "learning curves of train and test", "cub", 10, TRIPLET, columns=("R@1", "seen R@1"),
        picture="epochs"),
    "mdr fig4": Experiment(
        "norms of the test embeddings", "cub", 10, TRIPLET, columns=("norm mean", "norm cv"),
        picture="epochs"),
    "mdr fig6": Experiment(
        "shares of pairs at each level", "cub", 10, "Triplet+MDR | |", picture="levels",
        note="The paper's figure is pictures of pairs; here are the shares of all pairs.  The "
             "pictures, of a run: `python -m report --pairs runs/RUN/last.pt`."),
    "dml_da I": Experiment("NMI and Recall@K", "cars cub sop", 10, PLAIN + """
        DML-DA triplet     | --loss triplet | Triplet
        DML-DA N-pair      | --loss npair   | N-pair
        DML-DA contrastive |                | Contrastive""",
        beside=("MAP@R", "seen R@1", "D_avg mean"),
        note="HDC, which the paper evaluated itself (23 cells), is another method and is not run.  "
             "The paper's network is Caffe's GoogLeNet: its 138 cells are `bash run_all.sh --paper "
             "dml_da --backbone googlenet_bvlc --weights FILE` (docs/running.md, Datasets)."),
    "dml_da fig1d": Experiment("R@1 of train and test", "cars", 10, PLAIN + """
        DML-DA contrastive | | Contrastive""", columns=("R@1", "seen R@1"), picture="epochs"),
    "dml_da fig3": Experiment(
        "R@K with and without the correlation term; the curves coincide, so a table alone", "cars",
        5, """
        DML-DA triplet      | --loss triplet                   | DML-DA⁻ triplet
        DML-DA N-pair       | --loss npair                     | DML-DA⁻ N-pair
        DML-DA contrastive  |                                  | DML-DA⁻ contrastive
        DML-DA⁻ triplet     | --loss triplet --regularizer da- |
        DML-DA⁻ N-pair      | --loss npair --regularizer da-   |
        DML-DA⁻ contrastive | --regularizer da-                |""",
        columns=("R@1", "R@2", "R@4", "R@8", "R@16", "R@32", "R@64", "R@128"),
        beside=("alpha min", "alpha mean", "alpha max")),
    "dml_da fig4": Experiment(
        "NMI with each regularizer; a table alone", "cars cub sop", 5, PLAIN + """
        triplet+EN      | --loss triplet --regularizer en  | Triplet
        triplet+GOR     | --loss triplet --regularizer gor | Triplet
        triplet+DA      | --loss triplet                   | Triplet
        N-pair+EN       | --loss npair --regularizer en    | N-pair
        N-pair+GOR      | --loss npair --regularizer gor   | N-pair
        N-pair+DA       | --loss npair                     | N-pair
        contrastive+EN  | --regularizer en                 | Contrastive
        contrastive+GOR | --regularizer gor                | Contrastive
        contrastive+DA  |                                  | Contrastive""", columns=("NMI",),
        note="EN's rows test nothing: at its weight of 1 EN's gradient is about 1e-4 of the "
             "contrastive loss's, so +EN is the loss alone; up to 100,000 no weight is shown to "
             "gain (studies/reg_weight.py)."),
    "dml_da fig6": Experiment("NMI against λ", "cars", 3, """
        DML-DA triplet     | --loss triplet --lambda {} |
        DML-DA N-pair      | --loss npair --lambda {}   |
        DML-DA contrastive | --lambda {}                |""", "λ", (0.5, 2, 5, 7, 10, 15, 25),
        columns=("NMI",), beside=("D_avg mean",), picture="sweep")}
# Each paper's first table, and its two rows that --quick runs; JRD has no gain.
HEADLINES = {"mdr 1a": ("Triplet", "Triplet+MDR"),
             "dml_da I": ("N-pair", "DML-DA N-pair"), "jrd 1": ("AMSoftmax", "JRD")}


# ---------------------------------------------------------------------------- glyphs and cub128
# A stand-in has each experiment of the papers on CUB or Cars, once, but for other backbones and
# 256 × 256 images.
# Flags on cub128 besides a row's own, {a word of its paper and flags: flags}; MDR explored at 25.
CUB128_FLAGS = {"mdr": " --iterations 25", "--l2norm": " --lr 1e-4", "npair": " --lr 1e-5"}
# What the title of a picture and a line above a table say of the runs
NOTES = {("cub128", "mdr", "squeezenet1_1"): (
    ", exploring at 25 iterations per epoch", "Exploring runs: 25 iterations per epoch, from seed "
    "0 on.  The deciding ones have 50, and seeds 3 to 10: results/cub128/decided.md.")}


class Row(NamedTuple):
    """A row of a table on a dataset"""
    key: str                    # of EXPERIMENTS
    paper: str
    table: str
    name: str
    dataset: str
    baseline: str               # the name of the row that its gain is over, or None
    point: tuple                # of a sweep: series, symbol, value
    seeds: int                  # how many are planned
    runs: list                  # its trainings: these, and what other rows may have of them

    @property
    def finished(self):
        return [run for run in self.runs if run.result]


def cells(text):
    """The cells of each line of a table that is written as text, with | between them"""
    return [[cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()]


def lines_of(experiment, dataset):
    """The name, the flags, the baseline and the point of each row of an experiment on a dataset"""
    symbol, values = experiment.symbol, experiment.values
    for series, flags, baseline in cells(experiment.rows):
        if not values:
            yield series, flags, baseline or None, None
        for value in values:
            if dataset == "glyphs" and symbol == "d":
                value //= 8
            at, with_value, over = f", {symbol} = {value:g}", flags.format(value), None
            if baseline:
                over = baseline + at
            elif value and 0 in values:
                over = f"{series}, {symbol} = 0"
            elif not value:             # without its penalty a loss is the same in every series
                with_value = "--alpha 0"
            yield series + at, with_value, over, (series, symbol, value)


def rows_of(key, runs, code, dataset, quick, seeds, more):
    """The rows of an experiment on each of its datasets that `dataset` stands for"""
    experiment, rows = EXPERIMENTS[key], []
    (paper, table), datasets = key.split(), experiment.datasets.split()
    seeds_of_stand_ins = {"glyphs": experiment.seeds, "cub128": 3}
    usual = seeds_of_stand_ins.get(dataset, 5)
    stand_in = dataset in seeds_of_stand_ins and datasets[0] != "sop"
    if stand_in:
        datasets = [dataset]
    if quick:                   # which ends on two cores in ten minutes, the installation too
        usual = 1
    for on in datasets:
        for name, flags, baseline, point in lines_of(experiment, on):
            if dataset not in (on, "real") or quick and name not in HEADLINES[key]:
                continue
            if stand_in and re.search("--(backbone|size)", flags):
                continue
            if "--backbone" in flags and "--backbone" in more:          # which would override it
                continue
            if on == "cub128":
                for word, ours in CUB128_FLAGS.items():
                    if word in f"{paper} {flags}":
                        flags += ours
            of_row = [training(paper, on, flags + more, seed, runs, code)
                      for seed in range(seeds or 10)]
            rows.append(Row(key, paper, table, name, on, baseline, point, seeds or usual, of_row))
    return rows


def selected(runs, code, dataset, paper, table, quick, seeds, more):
    """The rows that the flags select.  runs, code: as Training has them; more: flags of every
    command.  UserError if there are no rows."""
    rows = []
    for key in HEADLINES if quick else EXPERIMENTS:
        of_paper, name = key.split()
        if paper in (None, of_paper) and table in (None, name.lower()):
            rows += rows_of(key, runs, code, dataset, quick, seeds, more)
    if not rows:
        raise UserError(f"nothing to run on {NAMES[dataset]}: there are {', '.join(EXPERIMENTS)}")
    return rows


# ---------------------------------------------------------------------------- a run
@functools.cache
def sha256_of(backbone, weights):
    """What a run's config has of its weights, or the first digits; None of a file that is not here,
    and of published weights without a digest"""
    if not weights:
        return find_backbone(backbone).sha256
    if weights == "random":
        return weights
    return sha256(weights) if Path(weights).is_file() else None


class Training(RunFolder):
    """One run of the list: its command, settings and folder.  code: whether a run of other code is
    another run; in an archive it is not, and reports name the commits."""

    def __init__(self, paper, dataset, flags, seed, runs, code):
        words = shlex.split(f"python {paper}.py --dataset {dataset} {flags} --seed {seed}")
        self.paper, self.setting = paper, shlex.join(words[:-2])        # the command of any seed
        if runs != "runs":
            words += ["--out", runs]
        self.command, self.cfg = shlex.join(words), SCRIPTS[paper].parse_args(words[2:])
        self.folder = run_folder(paper, self.cfg)
        self.settings = {"paper": paper, **vars(self.cfg)}
        weights = sha256_of(self.cfg.backbone, self.cfg.weights)
        if weights:
            self.settings["weights_sha256"] = weights
        if code:
            self.settings["code"] = code_of(paper)

    @functools.cached_property
    def why_other(self):
        """Why the folder does not hold this run, in words; "" if it does, or holds none"""
        return why_other(self.folder, self.settings)

    @property
    def training_images(self):
        """How many images it trains on, each counted as often as it is drawn.  DML-DA's batches on
        SOP, of whole classes, may fall short of --batch, so there it is at most so many."""
        if hasattr(self.cfg, "iterations"):
            return self.cfg.epochs * self.cfg.iterations * self.cfg.batch
        papers = of_papers(self.cfg.dataset)
        if papers:
            in_split, _ = COUNTS[papers]["train"]
        else:
            classes, of_each = GLYPHS["train"]
            in_split = len(classes) * of_each
        return self.cfg.epochs * in_split                   # an epoch is a pass

    @property
    def state(self):
        """'finished', 'begun', 'to do', or 'stale' if the folder holds another run"""
        if self.why_other:
            return "stale"
        if self.result:
            return "finished"
        return "begun" if self.config else "to do"


training = functools.cache(Training)        # of the same arguments the same one


def all_runs(rows):
    """Each training of the rows once: the headlines', then others'; seed 0 of all, 1, ..."""
    wanted, runs = [], {}
    for row in rows:
        for seed in range(row.seeds):
            wanted.append((row.key not in HEADLINES, seed, len(wanted), row.runs[seed]))
    for *_, run in sorted(wanted):
        runs.setdefault(run.folder, run)
    return list(runs.values())


def plan(rows):
    """The plan on stderr, with the images of the runs that are left, of begun ones all; on stdout
    the commands that are left and can start -> the exit status, 3 if a dataset is missing"""
    runs, missing = all_runs(rows), {}
    for dataset in sorted({run.cfg.dataset for run in runs} - {"glyphs"}):
        try:
            read_dataset(dataset, runs[0].cfg.data_root)
        except UserError as error:
            missing[dataset] = f"missing: {error}"
    counts = ", ".join(f"{n} {state}" for state, n in Counter(run.state for run in runs).items())
    tables = {row.key for row in rows}
    lines = [f"plan: {len(runs)} runs for {len(tables)} tables and figures, {counts}"]
    left = [run for run in runs if run.state in ("begun", "to do")]
    if left:
        images = float(f"{sum(run.training_images for run in left):.3g}")
        told = f"{images:,.0f}"
        if images >= 1e6:
            told = f"{images / 1e6:,g} million"
        lines[0] += f": about {told} training images to go"
    stale = {}                                              # {what is other: the runs}
    for run in runs:
        if run.why_other:
            kind = re.sub(r" \(there .*?, now .*?\)|, made at .*", "", run.why_other)
            stale.setdefault(kind, []).append(run)
    for kind, others in stale.items():
        lines.append(f"  {len(others)} stale {kind}: {others[0].folder} holds a run "
                     f"{others[0].why_other}.")
    if stale:
        lines.append("  Stale runs are not listed below.  Delete stale folders to train them anew, "
                     "or give --runs another folder.  python -m report without a list shows them "
                     "as they are, and a checkout of that commit reports them.")
    print(*lines, *missing.values(), sep="\n", file=sys.stderr)
    for run in left:
        if run.cfg.dataset not in missing:
            print(run.command)
    return 3 if missing else 0

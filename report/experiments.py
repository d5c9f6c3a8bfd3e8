"""The experiment list: what to run for every table and figure, and what is there of it.

EXPERIMENTS is the one source of the commands and of the tables.  A row's settings are found by the
paper script's own parse_args, so that rows that share a run share it here too.

`python -m report.experiments --dataset cub ...` prints the commands, as `run_all.sh --list` does.
The standard library is enough for that: what looks into run folders is imported where it does.
"""
import argparse
import ast
import functools
import itertools
import json
import re
import shlex
import sys
from collections import namedtuple
from pathlib import Path

from support import command_line
from support.files import ROOT, UserError
from support.identity import code_of, listed, other_code

NAMES = {"jrd": "JRD", "mdr": "MDR", "dml_da": "DML-DA", "glyphs": "glyphs", "cub128": "cub128",
         "cub": "CUB", "cars": "Cars", "sop": "SOP", "inshop": "In-Shop"}


# ---------------------------------------------------------------------------- the list
VARIANTS = {"JRD": "", "MRD": "--variant mrd", "JRD-C": "--variant jrd-c",
            "JRD-Pooling": "--variant jrd-pooling"}
PENALTIES = {"JRD": "--regularizer jrs", "JMMD": "--regularizer jmmd",
             "JIntra": "--regularizer jintra"}
TRIPLET = {"Triplet": "--lambda 0", "Triplet+L2Norm": "--lambda 0 --l2norm", "Triplet+MDR": ""}
WITH_AND_WITHOUT_MDR = (("", " --lambda 0"), ("+MDR", ""))
LEVELS = ("-1 0 1", "-2 0 2", "-3 0 3", "-3 -1 0 1 3", "-3 -2 0 2 3", "-4 -2 0 2 4", "-6 -3 0 3 6")
LOSSES = {"triplet": "--loss triplet", "N-pair": "--loss npair", "contrastive": ""}
PLAIN = {"Triplet": "--loss triplet --lambda 0", "N-pair": "--loss npair --lambda 0",
         "Contrastive": "--lambda 0"}
ADAPTIVE = {f"DML-DA {name}": loss for name, loss in LOSSES.items()}
ALPHAS = (0, 0.1, 0.4, 0.7, 1, 1.5, 2)     # Fig. 4 and 5 go from 0 to 2; the paper names no points


def with_alpha(flags, alpha):
    """JRD's flags at a point of a sweep; α = 0 is AMSoftmax, whatever the regularizer."""
    return f"{flags} --alpha {alpha}" if alpha else "--alpha 0"


# Seeds on glyphs of every row that a headline claim needs (claims.HEADLINE_CLAIMS), fixed before
# they are run and the same for all of them, whatever the first seeds say.
DECIDING = 10
# (paper, table or figure): (title, datasets, seeds on glyphs, {row: flags}).  Rows of tables have
# their names of paper_numbers.jsonl; a row of a sweep is (series, symbol, value).  No flags: the
# dataset's preset, which is the paper's method.
EXPERIMENTS = {
    ("jrd", "1"): ("Recall@K; AMSoftmax is α = 0, not in the paper's table",
                   "cub cars sop", DECIDING, {"JRD": "", "AMSoftmax": "--alpha 0"}),
    ("jrd", "2"): ("which representations are joined; in ten parts (SOP: whole)",
                   "cub cars sop", DECIDING, VARIANTS),
    ("jrd", "3"): ("terms of the generalization bound by 1-NN; R@1 in ten parts", "cub", 5, {
        "JMMD (alpha=0.1)": "--regularizer jmmd", "JRD (alpha=1)": ""}),
    ("jrd", "4"): ("kernels", "cub", 5, {
        "Gaussian (alpha=1)": "--K 1", "Laplace (alpha=1)": "--kernel laplace",
        "polynomial p=2 (alpha=1e-3)": "--kernel polynomial",
        "polynomial p=5 (alpha=1e-3)": "--kernel polynomial --p 5",
        "moment-generating exp(x.x') (alpha=1e-3)": "--kernel mgf"}),
    ("jrd", "fig2"): ("λ and d_H against the intra-class penalty of Eq. 4", "cub", 3, {
        ("AMSoftmax + intra-class penalty", "α", a): with_alpha("--regularizer intra", a)
        for a in (0, 0.05, 0.1, 0.2, 0.5, 1)}),
    ("jrd", "fig4"): ("R@1 against α", "cub cars sop", 3, {
        ("JRD", "α", a): f"--alpha {a}" for a in ALPHAS}),
    ("jrd", "fig5"): ("R@1 against α for JRD, JMMD and JIntra", "cub", 3, {
        (name, "α", a): with_alpha(penalty, a)
        for name, penalty in PENALTIES.items() for a in ALPHAS}),
    ("jrd", "fig6"): ("R@1 over (K, K')", "cub cars", 3, {
        (f"K' = {b}", "K", a): f"--K {a} --K-prime {b}" for b in (1, 3, 5) for a in (1, 3, 5)}),
    ("mdr", "1a"): ("Recall@K", "cub cars", DECIDING,
                    TRIPLET | {"Triplet+MDR (256x256)": "--size 256"}),
    ("mdr", "1b"): ("Recall@K", "sop inshop", DECIDING,
                    TRIPLET | {"Triplet+MDR (256x256)": "--size 256"}),
    ("mdr", "2a"): ("backbones", "cub cars", 5, {
        name + mdr: f"--backbone {backbone}{flag}"
        for name, backbone in (("R18", "resnet18"), ("R50", "resnet50"), ("IBN", "bn_inception"))
        for mdr, flag in WITH_AND_WITHOUT_MDR}),
    ("mdr", "2b"): ("losses", "cub cars", DECIDING, {
        name + mdr: f"--loss {name.lower()}{flag}" for name in ("Contrastive", "Margin", "Triplet")
        for mdr, flag in WITH_AND_WITHOUT_MDR}),
    ("mdr", "2c"): ("configurations of the levels", "cub", 5, {
        f"levels {{{levels.replace(' ', ',')}}} {kind}": f"--levels {levels}{flag}"
        for levels in LEVELS for kind, flag in (("fixed", " --fixed-levels"), ("learnable", ""))}),
    ("mdr", "3"): ("l2 norm at inference only", "cub", DECIDING, {
        name + way: TRIPLET[name] for name in ("Triplet", "Triplet+MDR")
        for way in ("", " (L2 norm at inference)")}),
    ("mdr", "fig3a"): ("R@1 against the embedding's width", "cub cars", 3, {
        (name, "d", d): f"{flags} --dim {d}" for name, flags in TRIPLET.items()
        for d in (64, 128, 256, 512)}),
    ("mdr", "fig3b"): ("learning curves of train and test", "cub", DECIDING, TRIPLET),
    ("mdr", "fig4"): ("norms of the test embeddings", "cub", DECIDING, TRIPLET),
    ("mdr", "fig5"): ("centres of the test classes, t-SNE", "cub", DECIDING, TRIPLET),
    ("mdr", "fig6"): ("pairs at each level", "cub", DECIDING, {"Triplet+MDR": ""}),
    ("dml_da", "I"): ("NMI and Recall@K", "cars cub sop", DECIDING, PLAIN | ADAPTIVE),
    ("dml_da", "fig1"): ("ten training classes, t-SNE; R@1 of train and test", "cars", DECIDING,
                         PLAIN | {"DML-DA contrastive": ""}),
    ("dml_da", "fig3"): ("R@K with and without the correlation term", "cars", 5, ADAPTIVE | {
        f"DML-DA⁻ {name}": f"{loss} --regularizer da-" for name, loss in LOSSES.items()}),
    ("dml_da", "fig4"): ("NMI that regularizers gain", "cars cub sop", 5, PLAIN | {
        f"{name}+{kind}": f"{loss}{flag}" for name, loss in LOSSES.items()
        for kind, flag in (("EN", " --regularizer en"), ("GOR", " --regularizer gor"),
                           ("DA", ""))}),
    ("dml_da", "fig5"): ("all training classes, t-SNE", "cars", DECIDING, PLAIN | ADAPTIVE),
    ("dml_da", "fig6"): ("NMI against λ", "cars", 3, {
        (f"DML-DA {name}", "λ", x): f"{loss} --lambda {x}" for name, loss in LOSSES.items()
        for x in (0.5, 2, 5, 7, 10, 15, 25)}),
    **{("dml_da", figure): ("test images by t-SNE", dataset, DECIDING, {"DML-DA contrastive": ""})
       for figure, dataset in (("fig7", "cars"), ("fig8", "cub"), ("fig9", "sop"))}}
HEADLINES = (("jrd", "1"), ("mdr", "1a"), ("dml_da", "I"))
# On glyphs these stand at a second rate too, the next of the search's grid (JRD's proxies keep 100
# times the model's rate).
AT_BOTH_RATES = (*HEADLINES, ("mdr", "fig3b"), ("mdr", "fig4"), ("dml_da", "fig1"))
THREE_TIMES = "3 × the rate"
THREE_TIMES_IS = {"jrd": "--lr 1e-3 --lr-proxies 0.1", "mdr": "--lr 3e-3", "dml_da": "--lr 3e-4"}
QUICK = {("jrd", "1"): ("JRD", "AMSoftmax"), ("mdr", "1a"): tuple(TRIPLET),
         ("mdr", "fig3b"): tuple(TRIPLET), ("dml_da", "I"): ("Contrastive", "DML-DA contrastive")}


# ---------------------------------------------------------------------------- glyphs and cub128
# A stand-in has each experiment once, whatever the papers' datasets; what it says of rows that it
# cannot have (other backbones, 256 × 256 images):
STAND_INS = {"glyphs": "no miniature", "cub128": "not in cub128"}
# Experiments that differ in the dataset alone are one there.
SAME_ON = {
    "glyphs": {("mdr", "1b"): ("mdr", "1a"), ("dml_da", "fig8"): ("dml_da", "fig7"),
               ("dml_da", "fig9"): ("dml_da", "fig7")},
    "cub128": {("mdr", "1b"): ("mdr", "1a"), ("dml_da", "fig7"): ("dml_da", "fig8"),
               ("dml_da", "fig9"): ("dml_da", "fig8")}}
# Rates on cub128 that are not the preset's, {(paper, words among a row's flags): "--lr ..."}:
# of several that fit the first (docs/cub128.md has the search).
CUB128_RATES = {("mdr", "--l2norm"): "--lr 1e-4", ("dml_da", "--loss npair"): "--lr 1e-5"}


def flags_on(dataset, paper, flags, rate=""):
    """A row's flags on the papers' datasets -> those on this one, None where it has no such row.

    On glyphs widths are an eighth; on cub128 some settings have a rate of their own.
    rate: "" or THREE_TIMES.
    """
    if dataset in STAND_INS and ("--backbone" in flags or "--size" in flags):
        return None
    if rate:
        flags = f"{flags} {THREE_TIMES_IS[paper]}".strip()
    if dataset == "glyphs":
        return re.sub(r"--dim (\d+)", lambda found: f"--dim {int(found[1]) // 8}", flags)
    if dataset == "cub128":
        for (owner, words), rate in CUB128_RATES.items():
            if owner == paper and f" {words} " in f" {flags} ":
                return f"{flags} {rate}"
    return flags


def name_on(dataset, name):
    """A row's name; on glyphs widths are an eighth."""
    if dataset == "glyphs" and isinstance(name, tuple) and name[1] == "d":
        series, symbol, width = name
        return series, symbol, width // 8
    return name


def datasets_asked(datasets, asked):
    """Which of an experiment's datasets --dataset asks for."""
    if asked in STAND_INS:
        return [asked]
    return [dataset for dataset in datasets.split() if asked in ("real", dataset)]


# ---------------------------------------------------------------------------- what is asked for
# key: (paper, table); rate: "" or THREE_TIMES
Row = namedtuple("Row", "key name dataset flags seeds rate", defaults=("",))


def partial(args):
    """Whether a part of a report was asked for."""
    return bool(args.paper or args.table or args.quick)


def table_name(text):
    """An argparse type: 'Table I', 'Fig. 3a', 'figure 4', ... -> i, fig3a, fig4"""
    return re.sub(r"^table|[\s.]", "", text.lower()).replace("figure", "fig")


def add_selection(parser):
    """The flags that say which runs are meant."""
    add = parser.add_argument
    add("--dataset", choices=("glyphs", "cub128", "real", "cub", "cars", "sop", "inshop"),
        help="glyphs: in miniature; cub128: CUB at 128 × 128; real: all of the papers' (default "
        "of --list, --plan)")
    add("--paper", choices=list(dict.fromkeys(paper for paper, _ in EXPERIMENTS)))
    add("--table", type=table_name, help="1, 2a, I, fig4, ...")
    add("--seeds", type=command_line.number(int, 1), help="runs a row (5; on glyphs 10 for the "
        "headline claims, 3 in sweeps; on cub128 3)")
    add("--quick", action="store_true", help="three methods, their baselines, on glyphs, two seeds")
    add("--weights", metavar="FILE", help="pretrained weights that every command is to have: the "
        "runs with them, none else, are listed and reported")
    add("--out", default="runs", help="folder that holds the runs (default: runs)")


def selected(args):
    """The rows that the command line selects; args.dataset is filled in where it is not given.
    UserError if there are none."""
    args.dataset = args.dataset or ("glyphs" if args.quick else "real")
    rows = []
    for key, (_, datasets, on_glyphs, row_flags) in EXPERIMENTS.items():
        if args.paper not in (None, key[0]) or args.table not in (None, key[1].lower()):
            continue
        names = QUICK.get(key, ()) if args.quick else row_flags
        for dataset in datasets_asked(datasets, args.dataset):
            usual = 2 if args.quick else {"glyphs": on_glyphs, "cub128": 3}.get(dataset, 5)
            both = dataset == "glyphs" and key in AT_BOTH_RATES and not args.quick
            for rate, name in itertools.product(("", THREE_TIMES) if both else ("",), names):
                flags = flags_on(dataset, key[0], row_flags[name], rate)
                if flags is not None or not rate:
                    rows.append(Row(key, name_on(dataset, name), dataset, flags,
                                    args.seeds or usual, rate))
    if not rows:
        asked = [f"--{name} {value}" for name in ("dataset", "paper", "table")
                 if (value := getattr(args, name))] + ["--quick"] * args.quick
        known = [" ".join(key) for key in EXPERIMENTS if args.paper in (None, key[0])]
        raise UserError(f"nothing to run for {' '.join(asked)}: there are {', '.join(known)}")
    return rows


# ---------------------------------------------------------------------------- a run
def read_log(path):
    """A log.jsonl -> its rows, dicts.  UserError if it is damaged or not there."""
    try:
        return [dict(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, TypeError):
        raise UserError(f"{path} is damaged, or not there")


@functools.cache
def parser_of(paper):
    """A paper script's parse_args without what the script imports.

    Its defaults, presets and parse_args are read from the script and work as they stand there; what
    they use of common.py is support/command_line.py's, and any word is a backbone.
    """
    script = ROOT / f"{paper}.py"
    tree = ast.parse(script.read_text(encoding="utf-8"))
    tree.body = [part for part in tree.body if isinstance(part, ast.Assign)
                 or isinstance(part, ast.FunctionDef) and part.name == "parse_args"]
    names = {"common": argparse.Namespace(**vars(command_line), backbone_name=str), "__doc__": ""}
    exec(compile(tree, script, "exec"), names)
    return names["parse_args"]


class Training:
    """One run: its command, settings and folder, and what stands in the folder."""

    def __init__(self, paper, dataset, flags, seed, out="runs", weights=None):
        words = ["--dataset", dataset, *flags.split(), "--seed", str(seed)]
        if weights:
            words += ["--weights", weights]
        if out != "runs":
            words += ["--out", out]
        self.paper, self.command = paper, shlex.join(["python", f"{paper}.py", *words])
        self.cfg = parser_of(paper)(words)

    @property
    def settings(self):
        """What the run is made of, as text: equal for the same folder, and for no other."""
        return json.dumps([self.paper, vars(self.cfg)])

    @functools.cached_property
    def folder(self):
        from support.runs import run_folder
        return run_folder(self.paper, self.cfg)

    @functools.cached_property
    def config(self):
        """config.json, None where there is none."""
        from support.runs import read_config
        return read_config(self.folder)

    @functools.cached_property
    def state(self):
        """'finished', 'begun', 'to do', or 'stale' where the folder holds other settings."""
        from support.runs import other_settings, settings_of
        if self.config is None:
            return "to do"
        own = settings_of(self.cfg)
        if other_settings(self.config, own).keys() & own.keys():
            return "stale"
        return "finished" if (self.folder / "result.json").exists() else "begun"

    @functools.cached_property
    def other_code(self):
        """The functions in which the code that made the folder differs from this checkout's."""
        return other_code((self.config or {}).get("code"), code_of(self.paper)) or []

    @functools.cached_property
    def result(self):
        """result.json of a finished run, else None."""
        if self.state == "finished":
            from support.runs import read_result
            return read_result(self.folder / "result.json")

    @functools.cached_property
    def log(self):
        """The rows of log.jsonl, one an epoch; metrics only in those of --eval-every."""
        path = self.folder / "log.jsonl"
        return read_log(path) if path.exists() or self.state == "finished" else []

    def images(self):
        """How many images the dataset has to train with, and how many to test, gallery included."""
        from support import glyphs, layouts
        if self.cfg.dataset == "glyphs":
            counts = {part: len(classes) * n for part, (classes, n) in glyphs.GLYPHS.items()}
            return counts["train"], counts["test"]
        counts = {part: n for part, (n, _) in layouts.COUNTS[photographs(self.cfg.dataset)].items()}
        return counts["train"], sum(counts.values()) - counts["train"]

    def epochs_done(self):
        return {"finished": self.cfg.epochs, "begun": len(self.log)}.get(self.state, 0)

    def images_left(self):
        """Training images still to process."""
        an_epoch, _ = self.images()
        if getattr(self.cfg, "iterations", None):
            an_epoch = self.cfg.iterations * self.cfg.batch
        return (self.cfg.epochs - self.epochs_done()) * an_epoch

    def images_to_embed(self):
        """Images that are still to be embedded: test and training images before training and at
        the end, test images at every evaluation, training images there but for JRD."""
        if self.state == "finished":
            return 0
        (train, test), cfg = self.images(), self.cfg
        evaluations = sum(epoch % cfg.eval_every == 0 or epoch == cfg.epochs
                          for epoch in range(self.epochs_done() + 1, cfg.epochs + 1))
        each = test if self.paper == "jrd" else test + train
        ends = 2 if self.epochs_done() == 0 else 1
        return ends * (test + train) + evaluations * each


training = functools.cache(Training)        # of the same arguments the same one


def photographs(dataset):
    """The dataset whose images these are: cub for cub128."""
    from support.layouts import SMALLER
    return SMALLER.get(dataset, dataset)


def runs_of(row, args, seeds=None):
    """A row's runs under --out with --weights, a seed each; none where it has no counterpart."""
    if row.flags is None:
        return []
    return [training(row.key[0], row.dataset, row.flags, seed, args.out, args.weights)
            for seed in range(seeds or row.seeds)]


# ---------------------------------------------------------------------------- list and plan
def turn(row):
    """On cub128, where a list takes days: headlines 0, other tables and figures 1, sweeps 2."""
    if row.dataset != "cub128" or row.key in HEADLINES:
        return 0
    return 2 if isinstance(row.name, tuple) else 1


def all_runs(rows, args):
    """Every training that the rows need, each once: the first seed of all, then the second, ...;
    by turns where there are any."""
    found = [(turn(row), seed, run) for row in rows for seed, run in enumerate(runs_of(row, args))]
    runs = {}
    for _, _, run in sorted(found, key=lambda one: one[:2]):
        runs.setdefault(run.settings, run)
    return list(runs.values())


def print_list(args):
    """The commands of the runs that are asked for, one a line."""
    for run in all_runs(selected(args), args):
        print(run.command)


def plan(rows, args):
    """The plan on stderr, the commands that are left on stdout -> status, 1: some cannot start"""
    from support.layouts import read_dataset
    if args.weights not in (None, "random") and not Path(args.weights).is_file():
        raise UserError(f"--weights {args.weights}: no such file")
    if Path(args.out).is_file():
        raise UserError(f"--out {args.out} is a file, no folder")
    runs = all_runs(rows, args)
    missing = {}                                                        # dataset: why
    for dataset, root in {run.cfg.dataset: run.cfg.data_root for run in runs}.items():
        if dataset != "glyphs":
            try:
                read_dataset(dataset, root)
            except UserError as error:
                missing[dataset] = f"missing: {error}"

    states, other = [run.state for run in runs], [run for run in runs if run.other_code]
    counted = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    lines = [f"plan: {len(runs)} runs for {len({row.key for row in rows})} tables and figures, " +
             ", ".join(counted)]
    done = [run for run in other if run.state == "finished"]
    if done:
        functions = listed(list(dict.fromkeys(name for run in done for name in run.other_code)))
        what = "trained anew" if args.again else "they count; --again trains them anew"
        lines.append(f"  {len(done)} of the finished runs are of other code than this ({functions} "
                     f"changed since): {what}")
    again = set(other) if args.again else set()
    left = [run for run in runs if run.state != "finished" or run in again]
    for dataset in dict.fromkeys(run.cfg.dataset for run in left):
        of_it = [run for run in left if run.cfg.dataset == dataset]
        line = (f"  {dataset}: {len(of_it)} runs, {sum(run.images_left() for run in of_it):,} "
                f"training images, {sum(run.images_to_embed() for run in of_it):,} to embed")
        lines.append(line + ", cannot start" if dataset in missing else line)
    lines += [f"  {run.folder} holds other settings: delete it to train anew"
              for run in left if run.state == "stale"]
    print("\n".join([*lines, *missing.values()]), file=sys.stderr, flush=True)
    for run in left:
        if run.cfg.dataset not in missing:
            print(run.command + (" --again" if run in again else ""))
    return 1 if missing else 0


def parse_args(argv=None):
    parser = command_line.Parser("python -m report.experiments", __doc__)
    add_selection(parser)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.argv[0] = "python -m report.experiments"        # what errors begin with
    command_line.main(print_list, parse_args)

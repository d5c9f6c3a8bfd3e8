"""Tables and figures (but t-SNE) of the three papers: what to run, and what came out.

    python -m report                              every finished run under runs/, as a table
    python -m report --quick                      the pairs of run_all.sh --quick, with pictures
    python -m report --dataset glyphs             the report in miniature: Markdown, CSV and PNGs
    python -m report --dataset cub128             ... on CUB at 128 × 128
    python -m report --dataset real --out DIR     ... on the papers' datasets (or: cub, ...)
    python -m report --list [--dataset ...]       the commands of every run, one per line
    python -m report --plan [--dataset ...]       what there is to do; on stdout the commands left
    python -m report --compare RUN RUN            one setting against another, paired by seed
    python -m report --curves RUN ...             loss, unseen and seen R@1 by epoch, PNG or SVG
    python -m report --sheet runs/RUN/last.pt     queries and the five images nearest to each
    python -m report --annotate [--out DIR]       each script beside its paper, as web pages
To be started in the repository's folder.  --paper, --table and --seeds narrow or widen a list.
--runs reads other folders than runs/, and archives: --runs results/glyphs/runs.tar.xz.
bash run_all.sh runs what is left and reports.

Figures are last-epoch means ± standard deviations over seeds; what was not run says so.
"""
import csv
import itertools
import re
import shlex
import sys
from pathlib import Path

from report import experiments, figures, tables
from report.experiments import EXPERIMENTS, NAMES, NOTES, SCRIPTS, all_runs
from report.records import unpacked
from support.command_line import Parser, number
from support.command_line import main as run_script
from support.files import UserError, atomic

NOT_THE_PAPERS = """\
> **Not the papers' protocol.** CUB-200-2011 with the papers' split, but at 128 × 128, with \
schedules of our own and SqueezeNet 1.1: results/cub128/README.md.  Compare differences between \
rows, not absolute scores.

"""
GAIN = ("Gains are differences within a seed: their mean and, from three seeds on, its 95% "
        "Student-t interval, not corrected for the number of gains.")


# ---------------------------------------------------------------------------- reports
def header(dataset, runs):
    """From which runs the report was made and by which code, and how to read it."""
    commits, weights, done = set(), set(), 0
    for run in runs:
        if run.result:
            done += 1
            commit = run.config["commit"] or "none"                     # 40 digits, + if edited
            commits.add(commit[:12] + commit[40:])
            weights.add(run.config["weights_sha256"][:12])
    command = shlex.join(["python", "-m", "report", *sys.argv[1:]])
    note = NOT_THE_PAPERS if dataset == "cub128" else ""
    return f"""\
{note}{done} of {len(runs)} runs finished, made at commit {", ".join(sorted(commits))}, with \
pretrained weights of SHA-256 {", ".join(sorted(weights))}.  Report made by `{command}`.  \
tables.csv has its numbers and, with --seed 0, 1, ..., the command of each row.

Shares in %, mean ± standard deviation over seeds, last epoch; the papers' ± are standard \
deviations too, their [low, high] 95% intervals.  {GAIN}  {tables.CHOSEN}  In figures: 95% \
intervals over seeds, if there are three or more; in sweeps (of the seeds that all points have) \
and by level mean ± standard deviation.
"""


def write_report(rows, dataset, folder):
    """Write report.md, tables.csv and the figures -> the Markdown, the files' names"""
    lines = [f"# Report on {NAMES[dataset]}", "", header(dataset, all_runs(rows))]
    written, csv_rows = ["report.md", "tables.csv"], []
    if (folder / "README.md").exists():                         # by a person
        lines += ["What was seen: [README.md](README.md).", ""]
    for key, of_key in itertools.groupby(rows, lambda row: row.key):
        (paper, name), of_key, experiment = key, list(of_key), EXPERIMENTS[key]
        number = f"Fig. {name[3:]}" if name.startswith("fig") else f"Table {name}"
        number = f"{NAMES[paper]}, {number}"
        heading, picture = f"{number}: {experiment.title}", f"{paper}-{name}.png"
        lines += [f"## {heading}", ""]
        if experiment.picture and any(row.finished for row in of_key):
            if figures.drawn(folder / picture, figures.draw_experiment, of_key, number):
                written.append(picture)
                lines += [f"![{heading}]({picture})", ""]
        for on, on_dataset in itertools.groupby(of_key, lambda row: row.dataset):
            text, figures_of_rows = tables.paper_table(list(on_dataset))
            lines += [f"**{NAMES[on]}**", ""]
            if (on, paper) in NOTES:
                lines += [NOTES[on, paper][1], ""]
            lines += [*text, ""]
            csv_rows += figures_of_rows
    with atomic(folder / "tables.csv") as file:
        writer = csv.DictWriter(file, csv_rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(csv_rows)
    with atomic(folder / "report.md") as file:
        file.write("\n".join(lines).rstrip() + "\n")
    return "\n".join(lines), written


def write_quick(rows, folder, seeds):
    """The end of --quick: a table of the pairs, their curves and a sheet, the next command."""
    print(*tables.pair_table(rows), "", "R@1 in % on classes that never trained, last epoch.  "
          + GAIN, sep="\n")
    curves = figures.epochs(rows, ["R@1"], of_paper=True)
    if figures.drawn(folder / "curves.png", figures.draw_curves, curves, "R@1 by epoch"):
        print(f"wrote {folder / 'curves.png'}")
    methods = [run for row in rows if row.baseline for run in row.finished]
    if methods:
        figures.drawn(folder / "sheet.png", figures.draw_nearest, methods[0].folder / "last.pt")
    baseline, method = [row.runs[0].folder.name.removesuffix("-s0") for row in rows[:2]]
    if seeds:
        print(f"next, every figure of a pair: python -m report --compare {method} {baseline}")
    else:
        print("next, more seeds, so that gains have intervals:",
              shlex.join(["bash", "run_all.sh", "--seeds", "3", *sys.argv[1:]]))


# ---------------------------------------------------------------------------- modes
def rows_in(folder, code, dataset, paper, table, quick, seeds, weights, precision):
    """The rows that the flags of a list select, with their runs in a folder.  code: whether runs
    of other code are other runs"""
    def train(paper, dataset, flags, seed):
        return experiments.training(paper, dataset, flags, seed, folder, weights, precision, code)
    return experiments.selected(dataset, paper, table, quick, seeds, train)


def rows_to_train(runs, **listed):
    if Path(runs[0]).suffix == ".xz" or len(runs) > 1:
        raise UserError(f"--runs {runs[0]}: an archive is read; runs are trained in a folder")
    return rows_in(runs[0], True, **listed)


def list_commands(runs, **listed):
    for run in all_runs(rows_to_train(runs, **listed)):
        print(run.command)


def plan(runs, weights, **listed):
    if weights not in (None, "random") and not Path(weights).is_file():
        raise UserError(f"--weights {weights}: no such file")
    sys.exit(experiments.plan(rows_to_train(runs, weights=weights, **listed)))


def report(runs, out, dataset, paper, table, quick, **listed):
    """What came out of the list, or of --quick's pairs."""
    first, what = Path(runs[0]), ["report", "quick" if quick else dataset, paper, table]
    archive = first.suffix == ".xz"
    beside = first.parent if archive else first
    folder = Path(out or beside / "-".join(filter(None, what)))
    with unpacked(runs) as unpacked_runs:
        rows = rows_in(unpacked_runs, not archive, dataset, paper, table, quick, **listed)
        all_of_list = all_runs(rows)
        stale = [run for run in all_of_list if run.state == "stale"]
        if stale:
            print(f"{len(stale)} folders hold other runs: see --plan", file=sys.stderr)
        if not any(run.result for run in all_of_list):
            raise UserError("no run of the list is finished; bash run_all.sh trains them")
        folder.mkdir(parents=True, exist_ok=True)
        if quick:
            write_quick(rows, folder, listed["seeds"])
            return
        text, written = write_report(rows, dataset, folder)
    if paper or table:
        print(re.sub(r"!\[.*?\)\s*", "", text))          # without its pictures
    print(f"wrote {folder}/{', '.join(written)}")


def everything(runs):
    with unpacked(runs) as folder:
        print(tables.table(folder))


def compare(runs, compare):
    with unpacked(runs) as folder:
        print(tables.compare(folder, *compare))


def curves(runs, curves, out):
    with unpacked(runs) as folder:
        figures.draw_runs(Path(out or "curves.png"), folder, curves)


def sheet(sheet, out):
    figures.draw_nearest(Path(out or Path(sheet).with_name("sheet.png")), sheet)


def annotate(out):
    figures.needed("report.annotate").annotate(Path(out or "annotated"))


# ---------------------------------------------------------------------------- command line
LISTED = ("runs", "dataset", "paper", "table", "quick", "seeds", "weights", "precision")
MODES = {           # what each does, and the flags that it takes
    "list": (list_commands, LISTED), "plan": (plan, LISTED), "report": (report, (*LISTED, "out")),
    "compare": (compare, ("runs", "compare")), "curves": (curves, ("runs", "curves", "out")),
    "sheet": (sheet, ("sheet", "out")), "annotate": (annotate, ("out",)),
    "everything": (everything, ("runs",))}


def main(args):
    function, flags = MODES[args.mode]
    function(**{name: getattr(args, name) for name in flags})


def parse_args(argv=None):
    parser = Parser("python -m report", __doc__)
    add, one = parser.add_argument, parser.add_mutually_exclusive_group().add_argument
    add("--dataset", choices=("glyphs", "cub128", "real", "cub", "cars", "sop", "inshop"),
        help="glyphs: in miniature; cub128: CUB at 128 × 128; real: all of the papers' (default "
        "of --list, --plan)")
    add("--paper", choices=list(SCRIPTS))
    add("--table", type=str.lower, help="1, 2a, I, fig4, ...")
    add("--seeds", type=number(int, 1), help="runs per row (5; on glyphs 10, 5 or 3 by "
        "table; on cub128 3; with --quick 1)")
    add("--quick", action="store_const", const=True, help="a method of each paper and its baseline")
    add("--weights", metavar="FILE", help="pretrained weights of every command")
    add("--precision", choices=("fp32", "tf32", "bf16"), help="of every command (default: its "
        "preset's)")
    add("--runs", metavar="PATH", nargs="+", help="folder that holds the runs (default: runs), or "
        "archives of such folders: results/cub128/runs.tar.xz ...")
    one("--list", action="store_true", help="print the commands, one per line")
    one("--plan", action="store_true", help="print what there is to do")
    one("--compare", metavar="RUN", nargs=2, help="folders in --runs, without -s0, -s1, ...")
    one("--curves", metavar="RUN", nargs="+", help="folders in --runs, with -s0, -s1, ... or "
        "without: the mean of their seeds and its 95%% interval")
    one("--sheet", metavar="last.pt", help="draw queries and the images nearest to them")
    one("--annotate", action="store_true", help="write the side-by-side pages")
    add("--out", help="what to write (default: a report-... in --runs; the sheet beside the run; "
        "curves.png; the folder annotated)")
    args = parser.parse_args(argv)
    args.mode = mode_of(args)
    where = f"with --{args.mode}"
    if args.mode == "everything":
        where = "without --dataset, --paper, --table or --quick"
    for name in (*LISTED, "out"):
        if getattr(args, name) is not None and name not in MODES[args.mode][1]:
            parser.error(f"--{name} does nothing {where}")
    args.runs = args.runs or ["runs"]
    if args.mode != "everything":
        args.dataset = args.dataset or ("glyphs" if args.quick else "real")
    return args


def mode_of(args):
    for mode in ("list", "plan", "compare", "curves", "sheet", "annotate"):
        if getattr(args, mode):
            return mode
    listed = args.dataset or args.paper or args.table or args.quick
    return "report" if listed else "everything"


if __name__ == "__main__":
    sys.argv[0] = "python -m report"        # what errors begin with
    run_script(main, parse_args)

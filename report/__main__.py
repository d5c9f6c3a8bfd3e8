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

from report.experiments import (EXPERIMENTS, NAMES, SCRIPTS, all_runs, finished_runs, plan,
                                runs_of, selected)
from report.figures import CURVES, draw_curves, draw_nearest, draw_runs, drawn, epochs, needed
from report.tables import CHOSEN, compare, pair_table, paper_table, table, unpacked
from support.command_line import Parser, number, refuse_idle
from support.command_line import main as run_script
from support.files import UserError, atomic

NOT_THE_PAPERS = """\
> **Not the papers' protocol.** CUB-200-2011 with the papers' split, but at 128 × 128, with \
schedules of our own and SqueezeNet 1.1: results/cub128/README.md.  Compare differences between \
rows, not absolute scores.

"""
GAIN = ("Gains are differences within a seed: their mean and, from three seeds on, its 95% "
        "Student-t interval, not corrected for the number of gains.")
SELECTION = "dataset paper table quick seeds weights precision"         # flags of a list of runs


# ---------------------------------------------------------------------------- reports
def header(args, runs, done):
    """From which runs the report was made and by which code, and how to read it."""
    commits = {run.config["commit"] or "none" for run in done}          # 40 digits, + if edited
    commits = ", ".join(sorted(commit[:12] + commit[40:] for commit in commits))
    weights = ", ".join(sorted({run.config["weights_sha256"][:12] for run in done}))
    command = shlex.join(["python", "-m", "report", *sys.argv[1:]])
    note = NOT_THE_PAPERS if args.dataset == "cub128" else ""
    return f"""\
{note}{len(done)} of {len(runs)} runs finished, made at commit {commits}, with pretrained weights \
of SHA-256 {weights}.  Report made by `{command}`.  tables.csv has its numbers and, with --seed 0, \
1, ..., the command of each row.

Shares in %, mean ± standard deviation over seeds, last epoch; the papers' ± are standard \
deviations too, their [low, high] 95% intervals.  {GAIN}  {CHOSEN}  In figures: 95% intervals over \
seeds, if there are three or more; in sweeps (of the seeds that all points have) and by level mean \
± standard deviation.
"""


def write_report(rows, args, folder):
    """Write report.md, tables.csv and the figures -> the Markdown, the files' names"""
    runs, most = all_runs(rows, args), max(row.seeds for row in rows)
    rows = [row._replace(seeds=most) for row in rows]           # what more seeds ran stands too
    done = [run for run in runs if run.result]
    lines = [f"# Report on {NAMES[args.dataset]}", "", header(args, runs, done)]
    written, csv_rows = ["report.md", "tables.csv"], []
    if (folder / "README.md").exists():                         # by a person
        lines += ["What was seen: [README.md](README.md).", ""]
    for key, own in itertools.groupby(rows, lambda row: row.key):
        (paper, name), own, experiment = key, [*own], EXPERIMENTS[key]
        number = f"Fig. {name[3:]}" if name.startswith("fig") else f"Table {name}"
        heading = f"{NAMES[paper]}, {number}: {experiment.title}"
        picture, shown = folder / f"{paper}-{name}.png", finished_runs(own, args)
        lines += [f"## {heading}", ""]
        if experiment.picture and any(runs for _, runs in shown):
            curves = CURVES[experiment.picture](shown, experiment.columns)
            if drawn(picture, draw_curves, curves, experiment.picture != "epochs"):
                written.append(picture.name)
                lines += [f"![{heading}]({picture.name})", ""]
        for dataset, of_dataset in itertools.groupby(own, lambda row: row.dataset):
            text, figures = paper_table([*of_dataset], args)
            lines += [f"**{NAMES[dataset]}**", "", *text, ""]
            csv_rows += figures
    with atomic(folder / "tables.csv") as file:
        writer = csv.DictWriter(file, csv_rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(csv_rows)
    with atomic(folder / "report.md") as file:
        file.write("\n".join(lines).rstrip() + "\n")
    return "\n".join(lines), written


def quick(rows, args, folder):
    """The end of --quick: a table of the pairs, their curves and a sheet, the next command."""
    pairs = [row for row in rows if row.baseline]
    print(*pair_table(pairs, args), "", "R@1 in % on classes that never trained, last epoch.  "
          + GAIN, sep="\n")
    if drawn(folder / "curves.png", draw_curves,
             epochs(finished_runs(rows, args), ["R@1"], of_paper=True)):
        print(f"wrote {folder / 'curves.png'}")
    for run in [run for _, runs in finished_runs(pairs, args) for run in runs][:1]:
        drawn(folder / "sheet.png", draw_nearest, run.folder / "last.pt")
    baseline, method = [runs_of(row, args)[0].folder.name.removesuffix("-s0") for row in rows[:2]]
    print(f"next, every figure of a pair: python -m report --compare {method} {baseline}"
          if args.seeds else "next, more seeds, so that gains have intervals: "
          + shlex.join(["bash", "run_all.sh", "--seeds", "3", *sys.argv[1:]]))


def report(args):
    """What came out of the list, or of --quick's pairs."""
    rows = selected(args)
    runs = all_runs(rows, args)
    if stale := sum(run.state == "stale" for run in runs):
        print(f"{stale} folders hold other runs: see --plan", file=sys.stderr)
    if not any(run.result for run in runs):
        raise UserError("no run of the list is finished; bash run_all.sh trains them")
    words = ["report", "quick" if args.quick else args.dataset, args.paper, args.table]
    out = Path(args.out or args.beside / "-".join(filter(None, words)))
    out.mkdir(parents=True, exist_ok=True)
    if args.quick:
        return quick(rows, args, out)
    text, written = write_report(rows, args, out)
    if args.partial:
        print(re.sub(r"!\[.*?\)\s*", "", text))          # without its pictures
    print(f"wrote {out}/{', '.join(written)}")


# ---------------------------------------------------------------------------- command line
def main(args):
    with unpacked(args.runs) as args.runs:
        if args.sheet:
            draw_nearest(Path(args.out or Path(args.sheet).with_name("sheet.png")), args.sheet)
        elif args.annotate:
            needed("report.annotate").annotate(Path(args.out or "annotated"))
        elif args.curves:
            draw_runs(Path(args.out or "curves.png"), args.runs, args.curves)
        elif args.compare:
            print(compare(args.runs, *args.compare))
        elif args.list:
            print(*(run.command for run in all_runs(selected(args), args)), sep="\n")
        elif args.plan:
            sys.exit(plan(selected(args), args))
        elif not args.dataset and not args.partial:
            print(table(args.runs))
        else:
            report(args)


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
    args.partial = bool(args.paper or args.table or args.quick)
    idle = {"list": "out", "plan": "out", "compare": f"{SELECTION} out", "curves": SELECTION,
            "sheet": f"{SELECTION} runs", "annotate": f"{SELECTION} runs"}
    refuse_idle(parser, args, [
        *((f"with --{mode}", getattr(args, mode), names) for mode, names in idle.items()),
        ("without --dataset, --paper, --table or --quick", not args.partial and not args.dataset
         and not any(getattr(args, mode) for mode in idle), "seeds weights precision out")])
    args.runs = args.runs or ["runs"]
    first = Path(args.runs[0])
    args.archive = first.suffix == ".xz"
    if args.archive and (args.list or args.plan):
        parser.error(f"--runs {first}: an archive is read; runs are trained in a folder")
    args.beside = first.parent if args.archive else first
    return args


if __name__ == "__main__":
    sys.argv[0] = "python -m report"        # what errors begin with
    run_script(main, parse_args)

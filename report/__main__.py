"""Tables and figures (but t-SNE) of the three papers: what to run, and what came out.

    python -m report                              every finished run under runs/, as a table
    python -m report --quick                      the pairs of run_all.sh --quick, with pictures
    python -m report --dataset glyphs             the report in miniature: Markdown, CSV and PNGs
    python -m report --dataset cub128             ... on CUB at 128 × 128
    python -m report --dataset real --out DIR     ... on the papers' datasets (or: cub, ...)
    python -m report --list [--dataset ...]       the commands of every run, one per line
    python -m report --plan [--dataset ...]       what there is to do; on stdout the commands left
    python -m report --sort R@1                   ... ranked, by held-out classes if there are any
    python -m report --compare RUN RUN            one setting against another, paired by seed
    python -m report --curves RUN ...             loss, unseen and seen R@1 by epoch, PNG or SVG
    python -m report --sheet runs/RUN/last.pt     queries and the five images nearest to each
    python -m report --pairs runs/RUN/last.pt     pairs of images at each level of an mdr.py run
    python -m report --annotate [--out DIR]       each script beside its paper, as web pages
To be started in the repository's folder.  --paper, --table and --seeds narrow or widen a list.
--runs reads other folders than runs/, and archives: --runs results/glyphs/runs.tar.xz.
bash run_all.sh runs what is left and reports.

Figures are last-epoch means ± standard deviations over seeds; what was not run says so.
"""
import csv
import itertools
import shlex
import sys
from operator import attrgetter
from pathlib import Path

from report import experiments, figures, tables
from report.experiments import EXPERIMENTS, NAMES, NOTES, SCRIPTS, all_runs
from report.records import unpacked
from support.backbones import backbone_name
from support.command_line import SHARED, Parser, number, read_flags, refuse_idle
from support.command_line import main as run_script
from support.files import UserError, atomic

NOT_THE_PAPERS = """\
> **Not the papers' protocol.** CUB-200-2011 with the papers' split, but at 128 × 128, with \
schedules of our own and SqueezeNet 1.1: results/cub128/README.md.  Compare differences between \
rows, not absolute scores."""
GAIN = ("Gains are differences within a seed: their mean and, from three seeds on, its 95% "
        "Student-t interval, not corrected for the number of gains.")


# ---------------------------------------------------------------------------- reports
def header(runs):
    """From which runs the report was made and by which code, and how to read it."""
    commits, weights, done = set(), set(), [run for run in runs if run.result]
    for run in done:
        commit = run.config["commit"] or "none"                         # 40 digits, + if edited
        commits.add(commit[:12] + commit[40:])
        weights.add(run.config["weights_sha256"][:12])
    command = shlex.join(["python", "-m", "report", *sys.argv[1:]])
    return f"""\
{len(done)} of {len(runs)} runs finished, made at commit {", ".join(sorted(commits))}, with \
pretrained weights of SHA-256 {", ".join(sorted(weights))}.  Report made by `{command}`.  \
tables.csv has its numbers and, with --seed 0, 1, ..., the command of each row.

Shares in %, mean ± standard deviation over seeds, last epoch; the papers' ± are standard \
deviations too, their [low, high] 95% intervals.  {GAIN}  {tables.CHOSEN}  In figures: 95% \
intervals over seeds, if there are three or more; in sweeps (of the seeds that all points have) \
and by level mean ± standard deviation."""


def write_report(rows, dataset, folder):
    """Write report.md, tables.csv and the figures -> the Markdown"""
    texts, csv_rows = [f"# Report on {NAMES[dataset]}"], []
    if dataset == "cub128":
        texts.append(NOT_THE_PAPERS)
    texts.append(header(all_runs(rows)))
    if (folder / "README.md").exists():                         # by a person
        texts.append("What was seen: [README.md](README.md).")
    for key, of_key in itertools.groupby(rows, attrgetter("key")):
        (paper, name), experiment, of_key = key.split(), EXPERIMENTS[key], list(of_key)
        number = f"{NAMES[paper]}, Table {name}".replace("Table fig", "Fig. ")
        heading, picture = f"{number}: {experiment.title}", f"{paper}-{name}.png"
        note, *lines = NOTES.get((dataset, paper), [""])
        texts.append(f"## {heading}")
        if experiment.picture and any(row.finished for row in of_key):
            points = getattr(figures, experiment.picture)(of_key, experiment.columns)
            bars = experiment.picture != "epochs"
            found = figures.finding(experiment.picture, of_key)
            if figures.redraw(folder / picture, figures.draw_curves, points, heading + note, bars,
                              found):
                texts.append(f"![{heading}]({picture})")
        for on, on_dataset in itertools.groupby(of_key, attrgetter("dataset")):
            text, of_table = tables.paper_table(list(on_dataset))
            texts += [f"**{NAMES[on]}**", *lines, *filter(None, [experiment.note]), text]
            csv_rows += of_table
    with atomic(folder / "tables.csv") as file:
        writer = csv.DictWriter(file, csv_rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(csv_rows)
    text = "\n\n".join(texts) + "\n"
    with atomic(folder / "report.md") as file:
        file.write(text)
    return text


def write_quick(rows, folder, seeds):
    """The end of --quick: a table of the pairs, their curves and a sheet, the next command."""
    print(f"{tables.pair_table(rows)}\n\nR@1 in % on classes that never trained, last epoch.  "
          f"{GAIN}")
    points = figures.epochs(rows, ["R@1"])
    figures.redraw(folder / "curves.png", figures.draw_curves, points, "R@1 by epoch", False,
                   figures.finding("epochs", rows))
    for row in rows:
        if row.baseline and row.finished:
            checkpoint = row.finished[0].folder / "last.pt"
            figures.redraw(folder / "sheet.png", figures.draw_nearest, checkpoint)
            break
    if not seeds:
        print("next, more seeds, so that gains have intervals:",
              shlex.join(["bash", "run_all.sh", "--seeds", "3", *sys.argv[1:]]))


# ---------------------------------------------------------------------------- what to do
def main(args):
    """Do what a flag of its own says, or list, plan or report the runs that the others select."""
    with unpacked(args.runs) as folder:
        if args.compare:
            print(tables.compare(folder, *args.compare))
        elif args.sort:
            print(tables.ranking(folder, args.sort))
        elif args.everything:
            print(tables.table(folder))
        elif args.curves:
            draw_picture(args.out or "curves.png", ".svg", figures.draw_runs, folder, args.curves)
        elif args.sheet:
            out = args.out or Path(args.sheet).with_name("sheet.png")
            draw_picture(out, ".jpg", figures.draw_nearest, args.sheet)
        elif args.pairs:
            out = args.out or Path(args.pairs).with_name("pairs.png")
            draw_picture(out, ".jpg", figures.draw_pairs, args.pairs)
        elif args.annotate:
            figures.needed("report.annotate").annotate(Path(args.out or "annotated"))
        else:
            of_list(args, folder)


def draw_picture(path, other, function, *args):
    """Draw a picture, a PNG or of another kind."""
    path = Path(path)
    if path.suffix not in (".png", other):
        raise UserError(f"--out {path} must end in .png or {other}")
    function(path, *args)
    print(f"wrote {path}")


def of_list(args, folder):
    """List, plan or report the runs that the flags select.  folder: --runs, or unpacked from it"""
    runs, more, archived = Path(args.runs[0]), "", folder != args.runs[0]
    if args.backbone:
        more += f" --backbone {args.backbone}"
    if args.weights:
        more += f" --weights {shlex.quote(args.weights)}"
    if args.precision:
        more += f" --precision {args.precision}"
    rows = experiments.selected(folder, not archived, args.dataset, args.paper, args.table,
                                args.quick, args.seeds, more)
    if args.list:
        for run in all_runs(rows):
            print(run.command)
    elif args.plan:
        if args.weights not in (None, "random") and not Path(args.weights).is_file():
            raise UserError(f"--weights {args.weights}: no such file")
        sys.exit(experiments.plan(rows))
    else:
        words = ["report", "quick" if args.quick else args.dataset, args.paper, args.table]
        beside = runs.parent if archived else runs
        report(args, rows, Path(args.out or beside / "-".join(filter(None, words))))


def report(args, rows, out):
    runs = all_runs(rows)
    stale = sum(run.state == "stale" for run in runs)
    if stale:
        print(f"{stale} folders hold other runs: see --plan", file=sys.stderr)
    if not any(run.result for run in runs):
        raise UserError("no run of the list is finished; bash run_all.sh trains them")
    out.mkdir(parents=True, exist_ok=True)
    if args.quick:
        return write_quick(rows, out, args.seeds)
    text = write_report(rows, args.dataset, out)
    if args.paper or args.table:
        print(text)
    print(f"wrote {out}/report.md, tables.csv")


# ---------------------------------------------------------------------------- command line
FLAGS = {  # default, kind, help (support.command_line.read_flags)
    "dataset": (None, ("glyphs", "cub128", "real", "cub", "cars", "sop", "inshop"), "glyphs: in "
                "miniature; cub128: CUB at 128 × 128; real: all of the papers' (default of --list, "
                "--plan)"),
    "paper": (None, tuple(SCRIPTS), ""),
    "table": (None, str.lower, "1, 2a, I, fig4, ..."),
    "seeds": (None, number(int, 1), "runs per row (5; on glyphs 10, 5 or 3 by table; on cub128 3; "
              "with --quick 1)"),
    "quick": (False, bool, "a method of each paper and its baseline"),
    "backbone": (None, backbone_name, "of every command (default: the paper's); with --paper"),
    "weights": SHARED["weights"],
    "precision": (None, ("fp32", "tf32", "bf16"), "of every command (default: its preset's)"),
    "runs": (["runs"], "PATH", "folder that holds the runs, or archives of such folders: "
             "results/cub128/runs.tar.xz ..."),
    "list": (False, bool, "print the commands, one per line"),
    "plan": (False, bool, "print what there is to do"),
    "sort": (None, "METRIC", "rank the finished runs by R@1 (on held-out classes where there are "
             "some), MAP@R, NMI, ..."),
    "compare": ([], "RUN", "two folders in --runs, without -s0, -s1, ..."),
    "curves": ([], "RUN", "folders in --runs, with -s0, -s1, ... or without: the mean of their "
               "seeds and its 95%% interval"),
    "sheet": (None, "last.pt", "draw queries and the images nearest to them"),
    "pairs": (None, "last.pt", "draw pairs at each level of an mdr.py run (MDR's Fig. 6)"),
    "annotate": (False, bool, "write the side-by-side pages"),
    "out": (None, "PATH", "what to write (default: a report-... in --runs; the sheet and the "
            "pairs beside the run; curves.png; the folder annotated)")}
LISTED = "dataset paper table quick seeds backbone weights precision"   # flags of a list of runs


def parse_args(argv=None):
    parser = Parser("python -m report", __doc__)
    flags, args = read_flags(parser, argv, FLAGS)
    idle_alone = "out seeds backbone weights precision"
    args.everything = not vars(flags).keys() - {"runs", *idle_alone.split()}
    refuse_idle(parser, flags, [
        ("with an archive", args.runs[0].endswith(".xz"), "list plan"),
        ("with --list", args.list, "plan sort compare curves sheet pairs annotate out"),
        ("with --plan", args.plan, "sort compare curves sheet pairs annotate out"),
        ("with --sort", args.sort, f"compare curves sheet pairs annotate out {LISTED}"),
        ("with --compare", args.compare, f"curves sheet pairs annotate out {LISTED}"),
        ("with --curves", args.curves, f"sheet pairs annotate {LISTED}"),
        ("with --sheet", args.sheet, f"pairs annotate runs {LISTED}"),
        ("with --pairs", args.pairs, f"annotate runs {LISTED}"),
        ("with --annotate", args.annotate, f"runs {LISTED}"),
        ("without --dataset, --paper, --table or --quick", args.everything, idle_alone),
        ("without --paper, because each paper has its own", not args.paper, "backbone")])
    if len(args.compare) not in (0, 2):
        parser.error("--compare takes two")
    args.dataset = args.dataset or ("glyphs" if args.quick else "real")
    return args


if __name__ == "__main__":
    sys.argv[0] = "python -m report"        # what errors begin with
    run_script(main, parse_args)

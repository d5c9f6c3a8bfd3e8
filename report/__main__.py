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
import shlex
import sys
from pathlib import Path

from report import experiments, figures, tables
from report.experiments import SCRIPTS, all_runs
from report.records import unpacked
from report.write import write_quick, write_report
from support.backbones import backbone_name, find_backbone
from support.command_line import SHARED, Parser, number, read_flags, refuse_idle
from support.command_line import main as run_script
from support.files import UserError


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
    if args.list or args.plan:
        if args.backbone and not args.weights and not find_backbone(args.backbone).file:
            raise UserError(f"--backbone {args.backbone} needs --weights FILE: none is published")
    if args.list:
        for run in all_runs(rows):
            print(run.command)
    elif args.plan:
        if args.weights not in (None, "random") and not Path(args.weights).is_file():
            raise UserError(f"--weights {args.weights}: no such file")
        sys.exit(experiments.plan(rows))
    else:
        words = ["report", "quick" if args.quick else args.dataset, args.paper, args.table,
                 args.backbone, args.precision, args.weights and Path(args.weights).stem]
        if args.seeds and not args.quick:
            words.append(f"seeds{args.seeds}")
        beside = runs.parent if archived else runs
        report(args, rows, Path(args.out or beside / "-".join(filter(None, words))))


def report(args, rows, out):
    runs = all_runs(rows)
    stale = [run.why_other for run in runs if run.why_other]
    if stale:
        print(f"{len(stale)} folders hold other runs, which python -m report without a list shows, "
              f"the first one {stale[0]}", file=sys.stderr)
        if "weights_sha256" in stale[0]:
            print("--weights FILE names the file of weights that runs had, if it is none of the "
                  "published ones", file=sys.stderr)
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
    "compare": ([], "RUN RUN", "two folders in --runs, without -s0, -s1, ..."),
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
    args.dataset = args.dataset or ("glyphs" if args.quick else "real")
    return args


if __name__ == "__main__":
    sys.argv[0] = "python -m report"        # what errors begin with
    run_script(main, parse_args)

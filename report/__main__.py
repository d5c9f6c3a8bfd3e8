"""Tables, figures (but t-SNE) and claims of the three papers: what to run, and what came out.

    python -m report                              every finished run under runs/, as a table
    python -m report --dataset glyphs             the report in miniature: Markdown, CSV and PNGs
    python -m report --dataset cub128             ... on CUB at 128 × 128
    python -m report --dataset real --out DIR     ... on the papers' datasets (or: cub, ...)
    python -m report --list [--dataset ...]       the commands of every run, one per line
    python -m report --plan [--dataset ...]       what there is to do; on stdout the commands left
    python -m report --compare RUN RUN            one setting against another, paired by seed
    python -m report --curves RUN ...             loss, unseen and seen R@1 by epoch, PNG or SVG
    python -m report --sheet runs/RUN/last.pt     queries and the five images nearest to each
    python -m report --annotate [--out DIR]       each script beside its paper, as web pages
To be started in the repository's folder.  --paper, --table and --seeds narrow or widen them.
--runs reads other folders than runs/, and archives: --runs results/glyphs/runs.tar.xz.
bash run_all.sh runs what is left and reports.

Figures are last-epoch means ± standard deviations over seeds; what was not run says so.
"""
import itertools
import re
import shlex
import sys
from pathlib import Path

from report.claims import decided, ledger
from report.experiments import EXPERIMENTS, FAMILIES, NAMES, SCRIPTS, all_runs, plan, selected
from report.figures import draw_nearest, draw_picture, draw_runs, needed
from report.tables import CHOSEN, compare, paper_table, table, unpacked, write_csv
from support.command_line import Parser, number, refuse_idle
from support.command_line import main as run_script
from support.files import atomic
from support.runs import commit, versions

NOT_THE_PAPERS = """\
> **Not the papers' protocol.** CUB-200-2011 with the papers' split, but at 128 × 128, with \
schedules of our own, and where nothing else is said with SqueezeNet 1.1: \
results/cub128/README.md.  Compare differences between rows, not absolute scores.  Weights, by \
SHA-256: {weights}.

"""
HEADER = """\
{done} of {all} runs finished, made at commit {commits}.  Report: commit {here}, {packages}; made \
by `{command}`.  tables.csv and claims.csv have its numbers and, with --seed 0, 1, ..., the \
command of each row.

Shares in %, mean ± standard deviation over seeds, last epoch; the papers' ± are standard \
deviations too, their [low, high] 95% intervals.  {chosen}  In figures: 95% Student-t intervals \
over seeds, if there are three or more; in sweeps (of the seeds that all points have) and by level \
mean ± standard deviation.
"""
SELECTION = "dataset paper table quick seeds weights precision"         # flags of a list of runs
NOTHING_RUN = """\
0 of {all} runs are there, so there is no figure to report.  `bash run_all.sh {words}` runs what \
is left and writes this report.  With `--list` it prints the commands alone, for xargs or SLURM; \
`python -m report --plan {words}` says which datasets are missing.

The papers' figures are in report/paper_numbers.jsonl; they stand beside ours once there are any."""


def header(args, runs, done):
    """From which runs the report was made and by which code; without one how to start them."""
    if not done:
        words = [f"--{name} {shlex.quote(str(value))}" for name, value in vars(args).items()
                 if value and name in {*SELECTION.split()} - {"quick"}]
        return NOTHING_RUN.format(all=len(runs), words=" ".join(words))
    commits = {run.config["commit"] or "none" for run in done}          # 40 digits, + if edited
    weights = ", ".join(sorted({run.config["weights_sha256"] for run in done}))
    text = NOT_THE_PAPERS.format(weights=weights) if args.dataset == "cub128" else ""
    return text + HEADER.format(
        done=len(done), all=len(runs), chosen=CHOSEN, here=(commit() or "none")[:12],
        commits=", ".join(sorted(c[:12] + c[40:] for c in commits)),
        packages=", ".join(f"{name} {version}" for name, version in versions().items()),
        command=shlex.join(["python", "-m", "report", *sys.argv[1:]]))


def write_report(rows, args, folder):
    """Write report.md, tables.csv, claims.csv and the figures -> the Markdown, the files' names.
    Without a finished run: report.md alone, which says how to start them."""
    folder.mkdir(parents=True, exist_ok=True)
    runs, most = all_runs(rows, args), max(row.seeds for row in rows)
    rows = [row._replace(seeds=most) for row in rows]           # what more seeds ran stands too
    done = [run for run in runs if run.result]
    lines = [f"# Report on {NAMES[args.dataset]}", "", header(args, runs, done)]
    written, table_rows, claim_rows = ["report.md"], [], []
    if done:
        if args.dataset == "cub128" and not args.partial:       # Holm's families are whole
            lines += ["## Decided", ""]
            for name in FAMILIES:
                text, csv_rows = decided(args, name)
                lines, claim_rows = lines + text, csv_rows + claim_rows
        text, csv_rows = ledger(args, range(most))
        lines, claim_rows = lines + text, claim_rows + csv_rows
        written += ["tables.csv", "claims.csv"]
        if (folder / "README.md").exists():                     # by a person
            lines += ["What was seen in them: [README.md](README.md).", ""]
        for key, of_key in itertools.groupby(rows, lambda row: row.key):
            (paper, name), of_key = key, [*of_key]
            where = f"Fig. {name[3:]}" if name.startswith("fig") else f"Table {name}"
            heading = f"{NAMES[paper]}, {where}: {EXPERIMENTS[key].title}"
            lines += [f"## {heading}", ""]
            if picture := draw_picture(folder, of_key, args):
                written.append(picture)
                lines += [f"![{heading}]({picture})", ""]
            for dataset, of_dataset in itertools.groupby(of_key, lambda row: row.dataset):
                text, csv_rows = paper_table([*of_dataset], args)
                lines += [f"**{NAMES[dataset]}**", "", *text, ""]
                table_rows += csv_rows
        write_csv(folder / "tables.csv", table_rows)
        write_csv(folder / "claims.csv", claim_rows)
    with atomic(folder / "report.md") as file:
        file.write("\n".join(lines).rstrip() + "\n")
    return "\n".join(lines), written


def main(args):
    with unpacked(args.runs) as folder:
        args.runs = folder
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
        elif args.dataset or args.partial:
            rows = selected(args)
            words = ["report", "quick" if args.quick else args.dataset, args.paper, args.table]
            out = Path(args.out or args.beside / "-".join(filter(None, words)))
            text, written = write_report(rows, args, out)
            if args.partial:
                print(re.sub(r"!\[.*?\)\s*", "", text))          # without its pictures
            print(f"wrote {out}/{', '.join(written)}")
        else:
            print(table(args.runs))


def parse_args(argv=None):
    parser = Parser("python -m report", __doc__)
    add, one = parser.add_argument, parser.add_mutually_exclusive_group().add_argument
    add("--dataset", choices=("glyphs", "cub128", "real", "cub", "cars", "sop", "inshop"),
        help="glyphs: in miniature; cub128: CUB at 128 × 128; real: all of the papers' (default "
        "of --list, --plan)")
    add("--paper", choices=list(SCRIPTS))
    add("--table", type=str.lower, help="1, 2a, I, fig4, ...")
    add("--seeds", type=number(int, 1), help="runs per row (5; on glyphs 10 for the "
        "headline claims, 3 in sweeps; on cub128 3)")
    add("--quick", action="store_const", const=True, help="three methods, their baselines, on "
        "glyphs, two seeds")
    add("--weights", metavar="FILE", help="pretrained weights that every command is to have")
    add("--precision", choices=("fp32", "tf32", "bf16"), help="that every command is to have "
        "(default: its preset's)")
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
    args.beside = first.parent if first.suffix == ".xz" else first
    if first.suffix == ".xz" and (args.list or args.plan):
        parser.error(f"--runs {first}: an archive is read; runs are trained in a folder")
    return args


if __name__ == "__main__":
    sys.argv[0] = "python -m report"        # what errors begin with
    run_script(main, parse_args)

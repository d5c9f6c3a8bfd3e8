"""Every table, figure and claim of the three papers: what to run for it, and what came out.

    python -m report                              every finished run under runs/, as a table
    python -m report --dataset glyphs             the report in miniature: Markdown, CSV and PNGs
    python -m report --dataset cub128             ... on CUB at 128 × 128
    python -m report --dataset real --to DIR      ... on the papers' datasets (or: cub, ...)
    python -m report --list [--dataset ...]       the commands of every run, one per line
    python -m report --plan [--dataset ...]       what there is to do; on stdout the commands left
    python -m report --compare RUN RUN            one setting against another, paired by seed
    python -m report --curves RUN ...             loss, unseen and seen R@1 by epoch, PNG or SVG
    python -m report --sheet runs/RUN/last.pt     queries and the five images nearest to each
    python -m report --fill README.md ...         marked tables of Markdown pages filled from the
                                                  reports' CSV files
    python -m report --annotate [--to DIR]        each script beside its paper, as web pages
To be started in the repository's folder.  --paper, --table and --seeds narrow or widen them.
bash run_all.sh runs what is left and reports.

Figures are last-epoch means ± standard deviations over seeds; what was not run says so.
"""
import re
import shlex
import sys
from pathlib import Path

import common
from report.claims import ledger
from report.decided import decided
from report.experiments import (EXPERIMENTS, NAMES, add_selection, all_runs, functions_changed,
                                plan, runs_of, selected)
from report.figures import draw_epochs, draw_levels, draw_runs, draw_sweep, for_figures
from report.pages import fill
from report.pictures import draw_nearest
from report.tables import CHOSEN, compare, paper_table, table, write_csv
from support.runs import commit, versions

PICTURES = {"sweep": draw_sweep, "epochs": draw_epochs, "levels": draw_levels}
NOT_THE_PAPERS = """\
> **Not the papers' protocol.** CUB-200-2011 with the papers' split, but at 128 × 128, with \
SqueezeNet 1.1 (weights, by SHA-256: {weights}) and schedules of our own: docs/cub128.md.  The \
papers' figures are theirs on CUB.  Compare differences between rows, not absolute scores."""


# ---------------------------------------------------------------------------- the report
def heading(key):
    """(paper, table or figure) -> 'JRD, Fig. 4: R@1 against α'"""
    paper, name = key
    number = f"Fig. {name[3:]}" if name.startswith("fig") else f"Table {name}"
    return f"{NAMES[paper]}, {number}: {EXPERIMENTS[key].title}"


def header(args, rows):
    """From what the report was made, and by what."""
    runs = all_runs(rows, args)
    done = [run for run in runs if run.result]
    datasets = "the papers' datasets" if args.dataset == "real" else args.dataset
    lines = [f"# Report on {datasets}", ""]
    if args.dataset == "cub128":
        hashes = sorted({run.config["weights_sha256"] for run in done})
        lines += [NOT_THE_PAPERS.format(weights=", ".join(hashes) or "no run is finished"), ""]
    made = f"{len(done)} of {len(runs)} runs finished"
    if done:
        commits = {run.config["commit"] or "none" for run in done}     # 40 digits, + if edited
        made += f", made at commit {', '.join(sorted(c[:12] + c[40:] for c in commits))}"
    other = [run for run in done if run.other_code]
    if other:
        made += (f" ({len(other)} of them by other code than this report's checkout: "
                 f"{functions_changed(other)} changed since)")
    packages = ", ".join(f"{name} {version}" for name, version in versions().items())
    command = shlex.join(["python", "-m", "report", *sys.argv[1:]])
    return [*lines, f"{made}.  Report: commit {(commit() or 'none')[:12]}, {packages}; made by "
            f"`{command}`.  tables.csv and claims.csv have its numbers and, with --seed 0, 1, ..., "
            "the command of each row.", "",
            f"Shares in %, mean ± standard deviation over seeds, last epoch.  {CHOSEN}  In "
            "figures: 95% Student-t intervals over seeds, if there are three or more; in sweeps "
            "mean ± standard deviation of the seeds that all points have.", ""]


def write_report(rows, args, folder):
    """report.md, tables.csv, claims.csv and the figures -> the Markdown, names of the figures.
    notes.md, which a person puts into the folder, is shown behind the claims."""
    folder.mkdir(parents=True, exist_ok=True)
    most = max(row.seeds for row in rows)
    claim_lines, claim_rows = ledger(args, range(most))
    if args.dataset == "cub128" and not args.partial:      # Holm's family is all of them
        decided_lines, decided_rows = decided(args)
        claim_lines, claim_rows = decided_lines + claim_lines, decided_rows + claim_rows
    lines, table_rows, drawn = header(args, rows) + claim_lines, [], []
    if (folder / "notes.md").exists():
        lines += [(folder / "notes.md").read_text(encoding="utf-8").strip(), ""]
    for key in dict.fromkeys(row.key for row in rows):
        of_table = [row for row in rows if row.key == key]
        lines += [f"## {heading(key)}", ""]
        picture = folder / f"{'-'.join(key)}.png"
        if EXPERIMENTS[key].picture and draw_picture(picture, of_table, args, most):
            drawn.append(picture.name)
            lines += [f"![{heading(key)}]({picture.name})", ""]
        for dataset in dict.fromkeys(row.dataset for row in of_table):
            on_dataset = [row for row in of_table if row.dataset == dataset]
            text, csv_rows = paper_table(on_dataset, args, most)
            lines += [f"**{NAMES[dataset]}**", "", *text, ""]
            table_rows += csv_rows
    write_csv(folder / "tables.csv", table_rows)
    write_csv(folder / "claims.csv", claim_rows)
    with common.atomic(folder / "report.md") as file:
        file.write("\n".join(lines).rstrip() + "\n")
    return "\n".join(lines), drawn


def draw_picture(path, rows, args, most):
    """Draw an experiment's picture anew -> whether there is one"""
    def get(row):
        return [run for run in runs_of(row, args, most) if run.result]

    path.unlink(missing_ok=True)
    try:
        if any(get(row) for row in rows):
            PICTURES[EXPERIMENTS[rows[0].key].picture](path, rows, get)
    except common.UserError as error:
        print(f"skipped {path.name}: {error}", file=sys.stderr)
    return path.exists()


# ---------------------------------------------------------------------------- command line
def main(args):
    if args.sheet:
        path = Path(args.to or Path(args.sheet).with_name("sheet.png"))
        draw_nearest(path, Path(args.sheet))
        print(f"wrote {path}")
    elif args.fill:
        fill(args.fill)
    elif args.annotate:
        with for_figures():
            from report.annotate import annotate
        annotate(Path(args.to or "annotated"))
    elif args.curves:
        path = args.to or Path(args.out, "curves.png")
        draw_runs(path, args.out, args.curves)
        print(f"wrote {path}")
    elif args.compare:
        print(compare(args.out, *args.compare))
    elif args.list:
        for run in all_runs(selected(args), args):
            print(run.command)
    elif args.plan:
        sys.exit(plan(selected(args), args))
    elif args.dataset or args.partial:
        make_report(selected(args), args)
    else:
        print(table(args.out))


def make_report(rows, args):
    """Write the report and say so; a part of one is printed too."""
    name = "-".join(filter(None, ["quick" if args.quick else args.dataset, args.paper, args.table]))
    folder = Path(args.to or Path(args.out, f"report-{name}"))
    text, drawn = write_report(rows, args, folder)
    if args.partial:
        print(re.sub(r"!\[.*?\)\s*", "", text))
    print(f"wrote {folder}/report.md, " + ", ".join(["tables.csv", "claims.csv", *drawn]))


def parse_args(argv=None):
    parser = common.Parser("python -m report", __doc__)
    add_selection(parser)
    add, one = parser.add_argument, parser.add_mutually_exclusive_group().add_argument
    one("--list", action="store_true", help="print the commands, one per line")
    one("--plan", action="store_true", help="print what there is to do")
    add("--again", action="store_const", const=True, help="with --plan: train anew what other code "
        "than this checkout's has made")
    one("--compare", metavar="RUN", nargs=2, help="folders of runs in --out, without -s0, -s1, ...")
    one("--curves", metavar="RUN", nargs="+", help="folders of runs in --out, with -s0, -s1, ... "
        "or without: the mean of their seeds and its 95%% interval")
    one("--sheet", metavar="last.pt", help="draw queries and the images nearest to them")
    one("--fill", metavar="FILE", nargs="+", help="Markdown pages whose tables are marked "
        "<!-- from FILE.csv --> (report/pages.py)")
    one("--annotate", action="store_true", help="write the side-by-side pages")
    add("--to", help="what to write (default: a report-... in --out; the sheet beside the run; "
        "curves.png in --out; the folder annotated)")
    args = parser.parse_args(argv)
    selection = "dataset paper table quick seeds weights"
    drawing = args.compare or args.curves or args.sheet or args.fill or args.annotate
    args.partial = bool(args.paper or args.table or args.quick)
    asked = args.list or args.plan or drawing or args.dataset or args.partial
    common.refuse_idle(parser, args, [
        ("without --plan", not args.plan, "again"), ("with --list", args.list, "to"),
        ("with --plan", args.plan, "to"), ("with --compare", args.compare, f"{selection} to"),
        ("with --curves", args.curves, selection),
        ("with --sheet", args.sheet, f"{selection} out"),
        ("with --fill", args.fill, f"{selection} out to"),
        ("with --annotate", args.annotate, f"{selection} out"),
        ("without --dataset, --paper, --table or --quick", not asked, "seeds weights to")])
    args.out = args.out or "runs"
    return args


if __name__ == "__main__":
    sys.argv[0] = "python -m report"        # what errors begin with
    common.main(main, parse_args)

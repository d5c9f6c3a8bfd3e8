"""Every table, figure and claim of the three papers: what to run for it, and what came out.

    python -m report                              every finished run under runs/, as a table
    python -m report --dataset glyphs             the report in miniature: Markdown, CSV and PNGs
    python -m report --dataset cub128             ... on CUB at 128 × 128
    python -m report --dataset real --to DIR      ... on the papers' datasets (or: cub, ...)
    python -m report --list [--dataset ...]       the commands of every run, one a line
    python -m report --plan [--dataset ...]       what there is to do; on stdout the commands left
    python -m report --compare RUN RUN            one setting against another, paired by seed
    python -m report --curves RUN ...             loss, unseen and seen R@1 by epoch, PNG or SVG
    python -m report --sheet runs/RUN/last.pt     queries and the five images nearest to each, a PNG
    python -m report --lecture RUN ...            what JRD, MDR or DML-DA did in its runs, a PNG
    python -m report --fill README.md ...         tables of Markdown pages filled from the reports'
                                                  CSV files, figures that stand in none named
To be started in the repository's folder.  --paper, --table and --seeds narrow or widen them.
bash run_all.sh runs what is left and reports.

Figures are last-epoch means ± standard deviations over seeds; what was not run says so.
"""
import argparse
import functools
import os
import platform
import re
import shlex
import sys
from pathlib import Path

import common
from report.claims import ledger
from report.experiments import (EXPERIMENTS, NAMES, SAME_ON, add_selection, all_runs, partial, plan,
                                print_list, runs_of, selected)
from report.figures import (draw_epochs, draw_gains, draw_levels, draw_recall, draw_runs,
                            draw_sweep)
from report.lectures import draw_lecture
from report.pages import fill
from report.pictures import (NoCheckpoint, draw_nearest, draw_sheet, draw_thumbnails,
                             draw_tsne)
from report.tables import CHOSEN, compare, glyphs_table, real_table, table, write_csv
from support.identity import listed
from support.runs import commit, versions

FIGURES = {  # (paper, figure, or table that a sheet of retrieved images goes with): who draws it
    ("jrd", "1"): draw_sheet, ("mdr", "1a"): draw_sheet, ("mdr", "1b"): draw_sheet,
    ("dml_da", "I"): draw_sheet, ("jrd", "fig4"): draw_sweep, ("jrd", "fig5"): draw_sweep,
    ("jrd", "fig6"): draw_sweep, ("mdr", "fig3a"): draw_sweep,
    ("jrd", "fig2"): draw_sweep, ("dml_da", "fig6"): draw_sweep, ("mdr", "fig3b"): draw_epochs,
    ("dml_da", "fig1d"): draw_epochs, ("mdr", "fig4"): draw_epochs,
    ("mdr", "fig5"): functools.partial(draw_tsne, part="test", centres=True),
    ("dml_da", "fig1"): functools.partial(draw_tsne, classes=10), ("dml_da", "fig5"): draw_tsne,
    ("mdr", "fig6"): draw_levels, ("dml_da", "fig3"): draw_recall, ("dml_da", "fig4"): draw_gains,
    ("dml_da", "fig7"): draw_thumbnails, ("dml_da", "fig8"): draw_thumbnails,
    ("dml_da", "fig9"): draw_thumbnails}
NOT_THE_PAPERS = """\
> **Not the papers' protocol.** The images are those of CUB-200-2011 with the papers' split \
(classes 1-100 train, 101-200 test). What differs:
>
> - images are resized to 146 and cropped to 128 × 128, in the papers to 256 and 224;
> - the backbone is SqueezeNet 1.1, in JRD and MDR BN-Inception, in DML-DA GoogLeNet; its \
weights: {weights};
> - the backbone computes in bfloat16, losses and distances in float32;
> - learning rates were searched, on held-out training classes and never on test classes; JRD's \
schedule is as long as the paper's, the others are shorter (MDR 55 passes over the images for 218, \
DML-DA 51 for 512);
> - experiments that a paper has on other datasets alone are here on these images too.
>
> The papers' figures beside ours are theirs on CUB: what one row has over another may be \
compared, the heights may not."""


# ---------------------------------------------------------------------------- the report
def heading(key):
    """(paper, table or figure) -> 'JRD, Fig. 4: R@1 against α'"""
    paper, name = key
    title, _, _, _ = EXPERIMENTS[key]
    if name.startswith("fig"):
        return f"{NAMES[paper]}, Fig. {name[3:]}: {title}"
    return f"{NAMES[paper]}, Table {name}: {title}"


def own_command(args, folder):
    """The command that writes this report."""
    words = ["python", "-m", "report"]
    for name in ("dataset", "paper", "table", "seeds", "out", "weights"):
        value = getattr(args, name)
        if value and (name, value) != ("out", "runs"):
            words += [f"--{name}", str(value)]
    if args.quick:
        words.append("--quick")
    return shlex.join([*words, "--to", str(folder)])


def processor():
    """The CPU's name, or at least its kind."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    found = re.search(r"model name\s*: (.*)", text)
    return found[1] if found else platform.machine()


def short(commit):
    """12 digits of a commit, with the '+' of files that were changed."""
    return commit[:12] + commit[40:]


def header(args, rows, folder):
    """From what the report was made, by what, and where."""
    runs = all_runs(rows, args)
    done = [run for run in runs if run.result]
    configs = [run.config for run in done]
    finished = f"{len(done)} of {len(runs)} runs finished"
    if done:
        commits = {config["commit"] or "none" for config in configs}
        finished += ", made at commit " + ", ".join(sorted(map(short, commits)))
    other = [run for run in done if run.other_code]
    if other:
        functions = listed(list(dict.fromkeys(name for run in other for name in run.other_code)), 8)
        finished += (f" ({len(other)} of them by other code than this report's checkout: "
                     f"{functions} changed since)")
    own = {"jrd": "bn_inception", "mdr": "bn_inception", "dml_da": "googlenet"}
    others = sorted({run.cfg.backbone for run in runs if run.cfg.backbone != own[run.paper]})
    if others:
        finished += f"; backbones that are not the papers': {', '.join(others)}"
    images = sum(run.images_left() for run in runs)
    made_with = ", ".join(f"{name} {version}" for name, version in versions().items())
    where = "the papers' datasets" if args.dataset == "real" else args.dataset
    lines = [
        f"# Report on {where}", "",
        f"{finished}; {images:,} training images to go.  "
        f"Report: commit {short(commit() or 'none')}, {processor()}, {os.cpu_count()} "
        f"cores, {made_with}; made by `{own_command(args, folder)}`, the same as numbers in "
        "tables.csv and claims.csv.", "",
        f"Shares in %, mean ± standard deviation over seeds, last epoch.  {CHOSEN}  In figures: "
        "95% Student-t intervals over seeds, where there are three or more.", ""]
    if args.dataset == "cub128":
        lines[2:2] = [NOT_THE_PAPERS.format(weights=weights_of(configs)), ""]
    return lines


def weights_of(configs):
    """The weights files of runs, by their hashes."""
    hashes = sorted({config["weights_sha256"] for config in configs})
    if not hashes:
        return "no run is finished"
    return ", ".join("none, random" if h == "random" else f"SHA-256 {h}" for h in hashes)


def write_report(rows, args, folder):
    """report.md, tables.csv, claims.csv and the figures -> the Markdown, names of the figures

    notes.md in the folder, what a person has to say about the results, goes behind the claims.
    """
    folder.mkdir(parents=True, exist_ok=True)
    most = max(row.seeds for row in rows)
    claim_lines, claim_rows = ledger(rows, args, most)
    lines, table_rows, drawn, skipped = header(args, rows, folder) + claim_lines, [], [], {}
    if (folder / "notes.md").exists():
        lines += [(folder / "notes.md").read_text(encoding="utf-8").strip(), ""]
    same = SAME_ON.get(args.dataset, {})
    for key in dict.fromkeys(row.key for row in rows):
        of_table = [row for row in rows if row.key == key]
        lines += [f"## {heading(key)}", ""]
        if key in same:
            where = "In miniature" if args.dataset == "glyphs" else f"On {args.dataset}"
            lines += [f"{where} the same as {heading(same[key])}", ""]
            continue
        pictures = draw_figures(key, of_table, args, most, folder, skipped)
        shows = heading(key)
        if FIGURES.get(key) is draw_sheet:
            shows = f"{NAMES[key[0]]}, its first seed: queries and the five images nearest to each"
        for name in pictures:
            lines += [f"![{shows}]({name})", ""]
        drawn += pictures
        for dataset in dict.fromkeys(row.dataset for row in of_table):
            found, csv_rows = table_lines(
                [row for row in of_table if row.dataset == dataset], args, most)
            lines += found
            table_rows += csv_rows
    write_csv(folder / "tables.csv", table_rows)
    write_csv(folder / "claims.csv", claim_rows)
    with common.atomic(folder / "report.md") as file:
        file.write("\n".join(lines).rstrip() + "\n")
    for reason, names in skipped.items():
        print(f"skipped {', '.join(names)}: {reason}", file=sys.stderr)
    return "\n".join(lines), drawn


def table_lines(rows, args, most):
    """A table on one dataset with the commands of its rows -> Markdown lines, CSV rows"""
    dataset = rows[0].dataset
    if dataset == "glyphs":
        text, csv_rows = glyphs_table(rows, args, most)
    else:
        text, csv_rows = real_table(rows, args, most)
        text = [f"**{NAMES[dataset]}**", "", *text]
    lines = [*text, ""]
    commands = {row["row"]: row["command"] for row in csv_rows if row.get("command")}
    if commands:
        lines += ["<details><summary>commands, each with --seed 0, 1, ...</summary>", "",
                  *(f"- {row}: `{command}`" for row, command in commands.items()), "",
                  "</details>", ""]
    return lines, csv_rows


def draw_figures(key, rows, args, most, folder, skipped):
    """-> the names of the pictures of a table or figure; skipped: {reason: names} is added to"""
    def get(row):
        return [run for run in runs_of(row, args, most) if run.result]

    paper, table_or_figure = key
    drawn = []
    for name in (table_or_figure, table_or_figure + "d"):               # DML-DA Fig. 1 has a part d
        draw, path = FIGURES.get((paper, name)), folder / f"{paper}-{name}.png"
        keep = False
        if draw and any(get(row) for row in rows):
            try:
                draw(path, rows, get)
                keep = True
            except common.UserError as error:
                keep = isinstance(error, NoCheckpoint) and path.exists()
                reason = f"{error}; drawn before, and left so" if keep else str(error)
                skipped.setdefault(reason, []).append(path.name)
        if keep:
            drawn.append(path.name)
        else:
            path.unlink(missing_ok=True)
    return drawn


# ---------------------------------------------------------------------------- command line
def main(args):
    if args.sheet:
        sheet(args)
    elif args.fill:
        said = fill(args.fill)
        print("\n".join(said or ["every figure is that of a report"]))
        sys.exit(1 if said else 0)
    elif args.curves:
        path = args.to or Path(args.out, "curves.png")
        draw_runs(path, args.out, args.curves)
        print(f"wrote {path}")
    elif args.lecture:
        path = args.to or Path(args.out, "lecture.png")
        draw_lecture(path, args.out, args.lecture)
        print(f"wrote {path}")
    elif args.compare:
        print(compare(args.out, *args.compare))
    elif args.list:
        print_list(args)
    elif args.plan:
        sys.exit(plan(selected(args), args))
    elif args.dataset or partial(args):
        make_report(selected(args), args)
    else:
        print(table(args.out))


def sheet(args):
    """--sheet: a picture of the images that a checkpoint finds."""
    checkpoint = Path(args.sheet)
    state = common.read_checkpoint(checkpoint)
    path = Path(args.to or checkpoint.with_name("sheet.png"))
    if path.suffix != ".png":
        raise common.UserError(f"--to {path} must end in .png")
    run = argparse.Namespace(paper=state["paper"], cfg=argparse.Namespace(**state["config"]))
    draw_nearest(path, run, checkpoint)
    print(f"wrote {path}")


def refuse_another(args, folder):
    """UserError if a report on something else is there: it would lose its tables and claims."""
    there = folder / "report.md"
    text = there.read_text(encoding="utf-8") if there.exists() else ""
    found = re.search(r"made by `(python -m report .*?)`", text)
    asked = re.compile(r"--(?:dataset|paper|table) \S+|--quick")
    if found and set(asked.findall(found[1])) != set(asked.findall(own_command(args, folder))):
        raise common.UserError(f"{there} is that of `{found[1]}`: --to another folder")


def make_report(rows, args):
    """Write the report and say so; a part of one is printed too."""
    name = "quick" if args.quick else args.dataset
    name = "-".join(filter(None, [name, args.paper, args.table]))
    folder = Path(args.to or Path(args.out, f"report-{name}"))
    refuse_another(args, folder)
    text, drawn = write_report(rows, args, folder)
    if partial(args):
        print(re.sub(r"(<details>.*?</details>|!\[.*?\))\s*", "", text, flags=re.DOTALL))
    print(f"wrote {folder}/report.md, " + ", ".join(["tables.csv", "claims.csv", *drawn]))


SELECT = ("dataset", "paper", "table", "quick", "seeds", "weights", "out")
USES = {  # what to do: the flags that it heeds
    "list": SELECT, "plan": (*SELECT, "again"), "compare": ("out",), "curves": ("out", "to"),
    "lecture": ("out", "to"), "sheet": ("to",), "fill": ()}


def parse_args(argv=None):
    parser = common.Parser("python -m report", __doc__)
    add_selection(parser)
    add, one = parser.add_argument, parser.add_mutually_exclusive_group().add_argument
    one("--list", action="store_true", help="print the commands, one a line")
    one("--plan", action="store_true", help="print what there is to do")
    add("--again", action="store_true", help="with --plan: train anew what other code than this "
        "checkout's has made")
    one("--compare", metavar="RUN", nargs=2, help="folders of runs in --out, without -s0, -s1, ...")
    one("--curves", metavar="RUN", nargs="+", help="folders of runs in --out, with -s0, -s1, ... "
        "or without: the mean of their seeds and its 95%% interval")
    one("--sheet", metavar="last.pt", help="draw queries and the images nearest to them")
    one("--lecture", metavar="RUN", nargs="+", help="folders of runs in --out, with -s0, -s1, ...: "
        "the picture of docs/lectures, a column a run")
    one("--fill", metavar="FILE", nargs="+", help="Markdown pages (report/pages.py says how tables "
        "and figures are marked)")
    add("--to", help="what to write (default: a report-... in --out; the sheet beside the run; "
        "curves.png, lecture.png in --out)")
    args = parser.parse_args(argv)
    if args.again and not args.plan:
        parser.error("--again does nothing without --plan")
    asked = {name for name, value in vars(args).items() if value != parser.get_default(name)}
    mode = next((mode for mode in USES if mode in asked), None)
    used = USES[mode] if mode else (*SELECT, "to") if args.dataset or partial(args) else ("out",)
    idle = sorted(asked - {mode, *used})
    if idle:
        parser.error(f"--{idle[0]} does nothing " + (
            f"with --{mode}" if mode else "without --dataset, --paper, --table or --quick"))
    return args


if __name__ == "__main__":
    sys.argv[0] = "python -m report"        # what errors begin with
    common.main(main, parse_args)

"""What a report says of an experiment list's runs: report.md, tables.csv and the figures beside it,
or the few pairs of --quick."""
import csv
import itertools
import shlex
import sys
from operator import attrgetter

from report import figures, tables
from report.experiments import EXPERIMENTS, NAMES, NOTES, all_runs
from support.files import UserError, atomic, listed

NOT_THE_PAPERS = """\
> **Not the papers' protocol.** CUB-200-2011 with the papers' split, but at 128 × 128, with \
schedules of our own and backbone {}: results/cub128/README.md.  Compare differences between \
rows, not absolute scores."""
PAPERS_BACKBONES = ("the papers' are bn_inception, in MDR's Table 2a resnet18 and resnet50 too, "
                    "and in DML-DA googlenet_bvlc")
GAIN = ("Gains are differences within a seed: their mean and, from three seeds on, its 95% "
        "Student-t interval, not corrected for the number of gains.")


def backbones(runs):
    """... of the finished runs, in words"""
    return ", ".join(sorted({run.cfg.backbone for run in runs if run.result}))


def header(runs):
    """From which runs the report was made and by which code, and how to read it."""
    commits, torches, processors, weights = set(), set(), set(), set()
    done = [run for run in runs if run.result]
    for run in done:
        commit = run.config["commit"] or "none"                         # 40 digits, + if edited
        commits.add(commit[:12] + commit[40:])
        torches.add(run.config["versions"]["torch"])
        processors.add(run.config.get("processor", "not noted"))        # older runs have none
        weights.add(run.config["weights_sha256"][:12])
    command = shlex.join(["python", "-m", "report", *sys.argv[1:]])
    return f"""\
{len(done)} of {len(runs)} runs finished, made at commit {", ".join(sorted(commits))}, by torch \
{", ".join(sorted(torches))}, with pretrained weights of SHA-256 {", ".join(sorted(weights))}; \
processors: {"; ".join(sorted(processors))}.  Backbone: {backbones(runs)}; \
{PAPERS_BACKBONES}.  Report made by `{command}`.  \
tables.csv has its numbers and, with --seed 0, 1, ..., the command of each row.

Shares in %, mean ± standard deviation over seeds, last epoch; the papers' ± are standard \
deviations too, their [low, high] 95% intervals.  {GAIN}  {tables.CHOSEN}  In figures: 95% \
intervals over seeds, if there are three or more; in sweeps (of the seeds that all points have) \
and by level mean ± standard deviation."""


def refuse_a_part(rows, folder):
    """UserError: the report in a folder has tables of these rows with more seeds, or others too."""
    there, now = {}, {}                                 # {(dataset, paper, table): seeds}
    for row in rows:
        table = row.dataset, row.paper, row.table
        now[table] = max(now.get(table, 0), len(row.finished))
    if (folder / "tables.csv").exists():
        text = (folder / "tables.csv").read_text(encoding="utf-8-sig", errors="replace")
        for row in csv.DictReader(text.splitlines()):
            table = row.get("dataset"), row.get("paper"), row.get("table")
            seeds = row.get("seeds") or ""
            there[table] = max(there.get(table, 0), int(seeds) if seeds.isdigit() else 0)
    shared = there.keys() & now.keys()
    lost = [" ".join(map(str, table)) for table in there.keys() - now.keys()]
    lost += [f"{' '.join(table)} of {there[table]} seeds" for table in shared
             if now[table] < there[table]]
    if shared and lost:
        raise UserError(f"{folder}/report.md has what this report has not "
                        f"({listed(sorted(lost))}): name another folder with --out, or delete it")


def write_report(rows, dataset, folder):
    """Write report.md, tables.csv and the figures -> the Markdown.  UserError: the folder has a
    report on more."""
    refuse_a_part(rows, folder)
    runs = all_runs(rows)
    texts, csv_rows = [f"# Report on {NAMES[dataset]}"], []
    if dataset == "cub128":
        texts.append(NOT_THE_PAPERS.format(backbones(runs)))
    texts.append(header(runs))
    if (folder / "README.md").exists():                         # by a person
        texts.append("What was seen: [README.md](README.md).")
    for key, of_key in itertools.groupby(rows, attrgetter("key")):
        (paper, name), experiment, of_key = key.split(), EXPERIMENTS[key], list(of_key)
        number = f"{NAMES[paper]}, Table {name}".replace("Table fig", "Fig. ")
        heading, picture = f"{number}: {experiment.title}", f"{paper}-{name}.png"
        backbone = of_key[0].runs[0].cfg.backbone
        note, *lines = NOTES.get((dataset, paper, backbone), [""])
        texts.append(f"## {heading}")
        if experiment.picture and any(row.finished for row in of_key):
            points = figures.POINTS[experiment.picture](of_key, experiment.columns)
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

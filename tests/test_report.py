"""The experiment list, the plan, tables and figures, on run folders made here."""
import argparse
import csv
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

import common
from conftest import ROOT
from report import __main__ as command
from report import claims, experiments, figures, pictures, tables


def arguments(*words):
    args = command.parse_args(list(map(str, words)))
    args.dataset = args.dataset or ("glyphs" if args.quick else "real")
    return args


def rows_of(*words):
    return experiments.selected(arguments(*words))


def under(out):
    """The command line of the runs in a folder."""
    return arguments("--out", out)


def pretend(run, r1=0.5, seen=0.9, epochs=None):
    """Make the folder of a run as if it had been trained, R@1 = r1."""
    cfg = vars(run.cfg)
    run.folder.mkdir(parents=True)
    (run.folder / "config.json").write_text(json.dumps(
        {k: v for k, v in cfg.items() if k != "changed"}
        | {"commit": "c0ffee", "weights_sha256": "c0de"}))
    recall = {f"R@{k}": r1 + 0.01 * i for i, k in enumerate(cfg["ks"])}
    line = {**recall, "seen R@1": seen, "NMI": r1 + 0.1, "norm mean": 2.0, "norm cv": r1 / 5,
            "levels": [-2.9, 0.1, 3.2], "positive pairs by level": [0.6, 0.3, 0.1],
            "negative pairs by level": [0.1, 0.6, 0.3]}
    log = [{"epoch": e + 1, **line} for e in range(epochs or 3)]
    (run.folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    if epochs is None:
        (run.folder / "result.json").write_text(json.dumps({
            "last epoch": {"epoch": 3, **recall, "NMI": r1 + 0.1, "MAP@R": 0.2, "seen R@1": seen,
                           "R@1, l2-normalized": r1 - 0.1, "lambda": [r1, 0.01], "d_H": [0.9, 0.01],
                           "ten parts": {m: [v - 0.2, 0.01] for m, v in recall.items()}},
            "best on test": {"epoch": 2, **{m: v + 0.05 for m, v in recall.items()}},
            "pretrained backbone": {"R@1": 0.4}, "seconds": 1}))
    for name in ("state", "result", "log"):
        run.__dict__.pop(name, None)


@pytest.fixture
def out(tmp_path):
    return str(tmp_path / "runs")


# ---------------------------------------------------------------------------- the list and the plan
@pytest.fixture(scope="module")
def everything():
    return {dataset: experiments.all_runs(rows_of("--dataset", dataset, "--seeds", 1), arguments())
            for dataset in ("real", "glyphs", "cub128")}


def test_imports_go_one_way():
    order = ("experiments", "tables", "claims", "figures", "pictures", "lectures", "pages",
             "__main__")
    for i, module in enumerate(order):
        source = (ROOT / "report" / f"{module}.py").read_text(encoding="utf-8")
        imported = re.findall(r"^ *from report\.(\w+) import|^ *import report", source, re.M)
        assert set(imported) <= set(order[:i]), module
    assert {path.stem for path in (ROOT / "report").glob("*.py")} == {*order, "__init__"}


@pytest.mark.parametrize("dataset", ["real", "glyphs", "cub128"])
def test_every_command_is_one_the_script_takes(everything, dataset):
    for run in everything[dataset]:
        python, script, *words = shlex.split(run.command)
        paper = importlib.import_module(script.removesuffix(".py"))
        cfg = paper.parse_args(words)
        assert python == "python" and cfg.dataset in (*common.COUNTS, "glyphs", "cub128")
        assert common.run_folder(run.paper, cfg) == run.folder


@pytest.mark.parametrize("dataset", ["real", "glyphs", "cub128"])
def test_a_folder_stands_for_one_setting_and_a_setting_for_one_folder(everything, dataset):
    settings = [json.dumps(vars(run.cfg)) for run in everything[dataset]]
    assert len(set(settings)) == len(settings) == len({run.folder for run in everything[dataset]})


def test_folders_do_not_mix_settings():
    """--alpha of JRD's preset is not JMMD's own; a margin of 0.2 is not contrastive's own."""
    for paper, a, b in (("jrd", "--regularizer jmmd", "--regularizer jmmd --alpha 1"),
                        ("mdr", "--loss contrastive", "--loss contrastive --margin 0.2")):
        folders = {experiments.Training(paper, "cub", flags, 0, "runs").folder for flags in (a, b)}
        assert len(folders) == 2


def test_rows_that_share_a_run_share_it():
    found = {}
    for row in rows_of("--dataset", "cub"):
        found.setdefault(experiments.runs_of(row, arguments())[0].folder.name, set()).add(
            (*row.key, tables.label(row)))
    jrd = {key[1] for key in found["jrd-cub-s0"]}
    assert jrd == {"1", "2", "3", "fig4", "fig5", "fig6"}       # α = 1, (K, K') = (3, 1) among them
    mdr = {key[1] for key in found["mdr-cub-s0"]}
    assert mdr == {"1a", "2a", "2b", "2c", "3", "fig3a", "fig3b", "fig4", "fig5", "fig6"}


@pytest.mark.parametrize("words", [("--dataset", "glyphs"), ("--dataset", "real"), ("--quick",),
                                   ("--paper", "mdr", "--table", "2c", "--seeds", 2)])
def test_list_and_plan_agree(words, out, capsys):
    command.main(arguments(*words, "--list", "--out", out))
    listed = capsys.readouterr().out.splitlines()
    with pytest.raises(SystemExit) as status:
        command.main(arguments(*words, "--plan", "--out", out))
    left, plan = capsys.readouterr()
    assert plan.startswith(f"plan: {len(listed)} runs for ") and len(set(listed)) == len(listed)
    if "glyphs" in words or "--quick" in words:
        assert left.splitlines() == listed and status.value.code == 0
    else:
        assert left == "" and status.value.code == 1            # no datasets here: it says which
        assert "missing: no cub under" in plan and "CUB_200_2011.tgz" in plan


def test_what_is_finished_is_not_left_and_what_is_begun_costs_less(out, capsys):
    runs = experiments.all_runs(rows_of("--quick", "--out", out), under(out))
    assert len(runs) == 14
    pretend(runs[0])
    pretend(runs[1], epochs=10)
    pretend(runs[2])
    config = json.loads((runs[2].folder / "config.json").read_text()) | {"lr": 7}
    (runs[2].folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(SystemExit):
        command.main(arguments("--quick", "--plan", "--out", out))
    left, plan = capsys.readouterr()
    assert left.splitlines() == [run.command for run in runs[1:]]
    assert "14 runs" in plan and "1 finished, 1 begun, 1 stale, 11 to do" in plan
    assert f"{runs[2].folder} holds other settings: delete it" in plan
    assert runs[0].images_left() == 0
    assert runs[1].images_left() == 750 * (runs[1].cfg.epochs - 10)
    assert runs[3].images_left() == runs[3].cfg.epochs * runs[3].cfg.iterations * runs[3].cfg.batch
    assert runs[0].images_to_embed() == 0
    assert runs[3].images_to_embed() == 2750 + runs[3].cfg.epochs * 2750 + 2750
    sop = experiments.Training("jrd", "sop", "", 0)         # evaluated every tenth of 80 epochs
    assert sop.images_to_embed() == 2 * (60502 + 59551) + 8 * 60502
    inshop = experiments.Training("mdr", "inshop", "--eval-every 30", 0)        # 30, 60, 90, 100
    assert inshop.images_to_embed() == (2 + 4) * (26830 + 25882)


@pytest.mark.parametrize("words, message", [
    ("--table 9", "nothing to run for --dataset real --table 9: there are jrd 1, jrd 2"),
    ("--paper dml", "invalid choice: 'dml'"),
    ("--dataset birds", "invalid choice"), ("--seeds 0", "must be >= 1"),
    ("--paper jrd --table 2c", "there are jrd 1, jrd 2, jrd 3, jrd 4, jrd fig2, jrd fig4"),
    ("--quick --table 2c", "nothing to run for --dataset glyphs --table 2c --quick"),
    ("--sheet nothing.pt", "no file nothing.pt"),
    ("--curves mdr-glyphs --out nowhere", "no run mdr-glyphs under nowhere: there are none"),
    ("--curves mdr-glyphs --to curves.pdf", "--to curves.pdf must end in .png or .svg"),
    ("--curves", "--curves: expected at least one argument")])
def test_a_mistake_is_one_line(words, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["report", *words.split()])
    with pytest.raises(SystemExit) as stop:
        common.main(command.main, command.parse_args)
    stderr = capsys.readouterr().err
    assert stop.value.code == 2 and stderr.count("\n") == 1 and message in stderr


def test_two_settings_are_compared_within_a_seed(out, capsys):
    """By hand: differences 2 and 4 points of three seeds here and two there."""
    rows = rows_of("--dataset", "glyphs", "--paper", "jrd", "--table", "1", "--out", out)
    for row, r1 in zip(rows, ((0.50, 0.60, 0.9), (0.48, 0.56))):
        for run, value in zip(experiments.runs_of(row, under(out)), r1):
            pretend(run, value)
    command.main(arguments("--compare", "jrd-glyphs", "jrd-glyphs-alpha0", "--out", out))
    told = [[cell.strip() for cell in line.strip("|").split("|")]
            for line in capsys.readouterr().out.splitlines()]
    half = 12.706204736174698 * 2 ** 0.5 / 2 ** 0.5             # t(0.975, 1) s / √2, s = √2
    assert told[0] == ["last epoch", "jrd-glyphs", "jrd-glyphs-alpha0", "difference",
                       "95% interval"]
    assert told[2] == ["R@1", "50.00, 60.00", "48.00, 56.00", "+3.00",
                       f"{3 - half:+.2f} to {3 + half:+.2f}"]
    assert told[-1] == ["The settings differ in alpha (1.0 and 0.0)."]
    command.main(arguments("--compare", f"{out}/jrd-glyphs-s0", "jrd-glyphs-alpha0-s1",
                           "--out", out))                       # names and folders of their runs
    assert told == [[cell.strip() for cell in line.strip("|").split("|")]
                    for line in capsys.readouterr().out.splitlines()]
    for name in ("jrd-glyphs-alpha", "mdr-glyphs"):
        with pytest.raises(common.UserError, match=f"no finished run {name}-s0"):
            tables.compare(out, "jrd-glyphs", name)


def test_cub128_has_every_experiment_once_and_the_headlines_first():
    args = arguments("--dataset", "cub128")
    rows = experiments.selected(args)
    assert {row.key for row in rows} == set(experiments.EXPERIMENTS)
    assert {row.dataset for row in rows} == {"cub128"} and {row.seeds for row in rows} == {3}
    without = {tables.label(row) for row in rows if row.flags is None}
    assert without == {"Triplet+MDR (256x256)", "R18", "R18+MDR", "R50", "R50+MDR", "IBN",
                       "IBN+MDR"}
    widths = [row for row in rows if row.key == ("mdr", "fig3a")]
    assert {row.name[2] for row in widths} == {64, 128, 256, 512}       # the papers' own
    assert all(f"--dim {row.name[2]}" in row.flags for row in widths)

    runs = experiments.all_runs(rows, args)
    assert [run.cfg.seed for run in runs[:33]] == [0] * 11 + [1] * 11 + [2] * 11
    headlines = [run.folder for row in rows if row.key in experiments.HEADLINES
                 for run in experiments.runs_of(row, args)]
    assert {run.folder for run in runs[:33]} == set(headlines)
    in_tables = {run.folder for row in rows if isinstance(row.name, str)
                 for run in experiments.runs_of(row, args)}
    of_tables = [run.folder in in_tables for run in runs]
    assert of_tables == sorted(of_tables, reverse=True) and not of_tables[-1]   # sweeps come last
    last = [run.cfg.seed for run in runs[33:sum(of_tables)]]
    assert last == sorted(last)


def test_on_glyphs_the_headlines_stand_at_a_second_rate(out):
    """About three times the preset's, each flag that has a rate; the seeds of headline claims."""
    rows = rows_of("--dataset", "glyphs")
    hot = [row for row in rows if row.rate]
    assert {row.key for row in hot} == {*experiments.HEADLINES, ("mdr", "fig3b"), ("mdr", "fig4"),
                                        ("dml_da", "fig1")}
    for row in hot:
        usual = next(r for r in rows if (r.key, r.name, r.rate) == (row.key, row.name, ""))
        own, three = (vars(experiments.runs_of(r, under(out))[0].cfg) for r in (usual, row))
        for name in own:
            if name in ("lr", "lr_proxies"):
                assert 2.9 < three[name] / own[name] < 3.4
            else:
                assert name == "changed" or three[name] == own[name]
        assert row.seeds == usual.seeds == experiments.DECIDING
    assert len({experiments.runs_of(row, under(out))[0].folder for row in hot}) == 11
    assert not [row for words in (("--quick",), ("--dataset", "cub128"), ("--dataset", "real"))
                for row in rows_of(*words) if row.rate]


def test_a_rate_of_its_own_on_cub128(monkeypatch):
    monkeypatch.setattr(experiments, "CUB128_RATES", {
        ("mdr", "--l2norm"): "--lr 3e-4", ("dml_da", "--loss npair"): "--lr 3e-6",
        ("dml_da", "--lambda 2"): "--lr 1"})
    for dataset, paper, flags, want in (
            ("cub128", "mdr", "--lambda 0 --l2norm", "--lambda 0 --l2norm --lr 3e-4"),
            ("cub128", "mdr", "", ""), ("cub128", "jrd", "--l2norm", "--l2norm"),
            ("cub128", "dml_da", "--loss npair --lambda 0", "--loss npair --lambda 0 --lr 3e-6"),
            ("cub128", "dml_da", "--lambda 25", "--lambda 25"),         # 25 is not 2
            ("cub", "mdr", "--lambda 0 --l2norm", "--lambda 0 --l2norm")):
        assert experiments.flags_on(dataset, paper, flags) == want


def test_weights_of_ones_own_go_into_every_command(out, capsys):
    """... and the report is of the runs with them."""
    words = ["--dataset", "cub128", "--weights", "my own.pth", "--out", out]
    command.main(arguments(*words, "--list"))
    listed = capsys.readouterr().out.splitlines()
    for line in listed:
        assert shlex.split(line)[-4:] == ["--weights", "my own.pth", "--out", out]
    assert len(listed) == len(set(listed)) > 200
    row = rows_of(*words, "--paper", "jrd", "--table", "1")[0]
    (with_them, *_), (without, *_) = (experiments.runs_of(row, arguments(*given))
                                      for given in (words, words[:2] + words[4:]))
    assert with_them.folder.name == "jrd-cub128-weightsmy own.pth-s0"
    pretend(without, 0.3)
    assert with_them.result is None and claims.in_each_seed(
        "jrd", ("", ""), "cub128", arguments(*words), 1) == "not run"


def test_tables_are_found_however_they_are_written():
    for text in ("I", "i", "Table I"):
        assert {row.key for row in rows_of("--table", text)} == {("dml_da", "I")}
    assert {row.key for row in rows_of("--table", "Fig. 3a")} == {("mdr", "fig3a")}


# ---------------------------------------------------------------------------- the tables
@pytest.fixture(scope="module")
def nothing_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    args = arguments("--dataset", "real", "--out", folder / "none")
    return command.write_report(experiments.selected(args), args, folder)[0], folder


def test_every_figure_of_the_papers_stands_in_the_real_report(nothing_run):
    text, folder = nothing_run
    entries = [json.loads(line) for line in tables.NUMBERS.read_text().splitlines()]
    assert len(entries) == 527
    with open(folder / "tables.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    cells = {tuple(r[k] for k in ("paper", "table", "row", "dataset", "metric")): r for r in rows}
    assert len(cells) == len(rows)
    sections = {}
    for line in text.splitlines():                     # (heading, dataset): {(row, metric): cell}
        if line.startswith("## "):
            heading, dataset, heads = line[3:].partition(":")[0], None, None
        elif line.startswith("**"):
            dataset, heads = line.strip("*"), None
        elif line.startswith("|") and dataset:
            row = [cell.strip() for cell in line.strip("|").split(" | ")]
            heads = heads or row
            for metric, cell in zip(heads[2:], row[2:]):
                sections.setdefault((heading, dataset), {})[row[0].strip("*"), metric] = cell
    for e in entries:
        key = tuple(e[k] for k in ("paper", "table", "row", "dataset", "metric"))
        assert float(cells[key]["paper's figure"]) == e["value"]
        ours = cells[key]["ours"]
        if e["reported_by"] != "this paper":
            assert ours == "quoted"
        elif e["row"] == "HDC":
            assert ours == "by others' model"
        else:
            assert ours == "not run" and float(cells[key]["million images to run"]) > 0.1
        number = "Table " + e["table"]
        paper, dataset = experiments.NAMES[e["paper"]], experiments.NAMES[e["dataset"]]
        cell = sections[f"{paper}, {number}", dataset][e["row"], e["metric"]]
        assert float(cell.split(" ± ")[0]) == e["value"]
        if "std" in e or "ci95" in e:
            assert float(cell.split(" ± ")[1]) == e.get("std", e.get("ci95"))


def test_what_was_not_run_says_so_with_its_cost(nothing_run):
    text, _ = nothing_run
    assert "0 of 935 runs finished" in text and "not run" in text
    row = next(line for line in text.splitlines() if "5 runs, 1.5 million images" in line)
    assert row.count("not run") == 4                            # JRD on CUB: 5 × 50 × 5,864
    assert all(f"| {claim} " in text for claim in claims.CLAIMS)
    assert "**holds**" not in text


def test_ours_stand_beside_the_papers(out, tmp_path):
    rows = rows_of("--dataset", "cub", "--paper", "mdr", "--table", "1a", "--out", out)
    for seed, r1 in enumerate((0.68, 0.69, 0.70)):
        pretend(experiments.runs_of(rows[2], under(out))[seed], r1)
    args = arguments("--dataset", "cub", "--paper", "mdr", "--table", "1a", "--out", out)
    text, _ = command.write_report(rows, args, tmp_path / "r")
    lines = [line.split() for line in text.splitlines()]
    ours = next(line for line in lines if "**ours**," in line)
    assert " ".join(ours).startswith("| | **ours**, last epoch, n = 3 | **69.0 ± 1.0** | **70.0 ±")
    assert ["|", "|", "difference", "|", "+0.2", "|"] == lines[lines.index(ours) + 1][:6]
    assert "| best on test* | 74.0 ± 1.0 |" in " ".join(lines[lines.index(ours) + 2])
    with open(tmp_path / "r" / "tables.csv", encoding="utf-8") as file:
        cell = next(r for r in csv.DictReader(file) if r["row"] == "Triplet+MDR")
    assert (float(cell["ours"]), cell["seeds"], cell["paper's figure"]) == (
        pytest.approx(69), "3", "68.8")
    assert cell["command"] == "python mdr.py --dataset cub"


def test_in_miniature(out, tmp_path):
    """Rows of several datasets are one; other backbones and 256 × 256 have no miniature; widths are
    an eighth; the paper's figures stand beside, named by their dataset."""
    args = arguments("--dataset", "glyphs", "--paper", "mdr", "--seeds", 4, "--out", out)
    rows = experiments.selected(args)
    for row in rows:
        if row.key[1] in ("1a", "3") and row.flags is not None:
            for run in experiments.runs_of(row, under(out)):
                run.folder.exists() or pretend(run, 0.4 if row.rate else
                                               0.5 + 0.1 * (row.flags == ""))
    text, _ = command.write_report(rows, args, tmp_path / "r")
    assert sum("no miniature" in line for line in text.splitlines() if line.startswith("| R")) == 4
    assert "In miniature the same as MDR, Table 1a" in text
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    assert next(line for line in lines if line[0] == "Triplet+MDR") == [
        "Triplet+MDR", "4", "0.001", "60.0 ± 0.0", "61.0 ± 0.0", "62.0 ± 0.0", "63.0 ± 0.0",
        "20.0 ± 0.0", "70.0 ± 0.0", "90.0 ± 0.0", "65.0 ± 0.0", "68.8", "88.5"]
    hot = next(line for line in lines if line[0] == "Triplet+MDR, 3 × the rate")
    assert hot[1:4] == ["4", "0.003", "40.0 ± 0.0"] and hot[-2:] == ["–", "–"]
    with open(tmp_path / "r" / "tables.csv", encoding="utf-8") as file:
        cells = {(c["table"], c["row"], c["metric"]): c for c in csv.DictReader(file)}
    assert float(cells["1a", "Triplet+MDR, 3 × the rate", "R@1"]["rate"]) == 3e-3
    cell = cells["1a", "Triplet+MDR", "R@1"]
    assert (cell["rate"], cell["best on test's std"]) == ("0.001", "0.0")
    assert "| Triplet+MDR (L2 norm at inference) | 4     | 50.0 ± 0.0 |" in text
    assert {row.name[2] for row in rows if row.key[1] == "fig3a"} == {8, 16, 32, 64}
    assert experiments.flags_on("glyphs", "mdr", "--lambda 0 --dim 512") == "--lambda 0 --dim 64"
    for flags in ("--size 256", "--backbone resnet18"):
        assert experiments.flags_on("glyphs", "mdr", flags) is None


def test_on_cub128(out, tmp_path):
    """The paper's figures on CUB stand beside ours, below a box that says what differs; nothing is
    subtracted from them, and other papers' rows are left out."""
    args = arguments("--dataset", "cub128", "--out", out)
    rows = experiments.selected(args)
    for row in rows:
        if row.key in (("mdr", "1a"), ("jrd", "1")) and row.flags is not None:
            for run in experiments.runs_of(row, args):
                run.folder.exists() or pretend(run, 0.5 + 0.1 * (row.flags == ""))
    text, _ = command.write_report(rows, args, tmp_path / "r")
    box = [line for line in text.splitlines() if line.startswith(">")]
    assert text.startswith("# Report on cub128\n\n> **Not the papers' protocol.**")
    assert all(word in "\n".join(box) for word in (
        "classes 1-100", "146", "128", "SqueezeNet 1.1", "bfloat16", "searched", "SHA-256 c0de"))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    ours = lines.index("| | **ours**, last epoch, n = 3 | **60.0 ± 0.0** | **61.0 ± 0.0** |"
                       " **62.0 ± 0.0** | **63.0 ± 0.0** | **20.0 ± 0.0** | **70.0 ± 0.0** |"
                       " **90.0 ± 0.0** |")
    assert lines[ours - 1].startswith("| **JRD** | paper, CUB | 67.9 |")
    assert lines[ours + 1].startswith("| | best on test* | 65.0 ± 0.0 |")
    assert "| difference |" not in text and "quoted" not in text
    assert "On cub128 the same as MDR, Table 1a: Recall@K" in lines
    assert "On cub128 the same as DML-DA, Fig. 8: test images by t-SNE" in lines
    assert any(line.startswith("| | not in cub128 | – |") for line in lines)    # below the paper's
    assert any("| J1 |" in line and "| cub128 | +10.000 |" in line for line in lines)
    assert all(f"| {claim} " in text for claim in claims.CLAIMS)
    with open(tmp_path / "r" / "tables.csv", encoding="utf-8") as file:
        cells = {(c["table"], c["row"], c["metric"]): c for c in csv.DictReader(file)}
    cell = cells["1", "JRD", "R@1"]
    assert (cell["dataset"], cell["paper's figure"], cell["difference"]) == ("cub128", "67.9", "")
    assert cells["2a", "R18", "R@1"]["ours"] == "not in cub128"


def test_what_a_run_does_not_measure_is_not_called_not_run(out):
    """Without DML-DA there is no α; a table on glyphs has a row for it all the same."""
    rows = rows_of("--dataset", "glyphs", "--paper", "dml_da", "--table", "fig3", "--out", out)
    pretend(experiments.runs_of(rows[0], under(out))[0])
    cells = {c["metric"]: c for c in tables.cells(rows[0], under(out), 1)}
    assert (cells["R@1"]["ours"], cells["alpha mean"]["ours"]) == (50, None)
    lines, _ = tables.glyphs_table(rows, under(out), 1)
    assert "| –" in lines[2] and "not run" in lines[3]


def test_table_2_reads_ten_parts_and_table_3_fractions(out):
    two = next(row for row in rows_of("--dataset", "cub", "--paper", "jrd", "--table", "2"))
    run = experiments.runs_of(two, under(out))[0]
    pretend(run, 0.5)
    assert tables.reading(run, "R@1", two) == pytest.approx(30)
    assert tables.reading(run, "R@1", two, "best on test") is None
    assert tables.reading(run, "R@1") == pytest.approx(50)
    three = rows_of("--dataset", "cub", "--paper", "jrd", "--table", "3")[1]
    assert tables.reading(run, "R@1 (fraction)", three) == pytest.approx(0.3)
    assert tables.reading(run, "H-divergence_NN", three) == 0.9


def test_every_finished_run_as_a_table(out):
    runs = experiments.all_runs(rows_of("--quick"), under(out))
    for i, run in enumerate(r for r in runs if r.paper == "jrd"):
        pretend(run, 0.5 + 0.01 * i)
    text = tables.table(out)
    assert "| jrd-glyphs" in text and "51.0 ± 1.4" in text and "\\* the epoch chosen" in text
    shutil.copytree(f"{out}/jrd-glyphs-s0", f"{out}/jrd-glyphs-s0 (copy)")
    assert tables.table(out) == text


# ---------------------------------------------------------------------------- the figures
def test_figures_from_logs_and_results(out, tmp_path):
    pytest.importorskip("matplotlib")
    tables = {("jrd", "fig2"), ("jrd", "fig6"), ("mdr", "fig4"), ("mdr", "fig6"),
              ("dml_da", "fig3"), ("dml_da", "fig4")}
    rows = [row for row in rows_of("--dataset", "glyphs", "--seeds", 2) if row.key in tables]
    for i, run in enumerate(experiments.all_runs(rows, under(out))):
        pretend(run, 0.4 + 0.001 * i)
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "notes.md").write_text("## Why\n\nBecause.\n")
    args = arguments("--dataset", "glyphs", "--out", out)
    text, drawn = command.write_report(rows, args, tmp_path / "r")
    assert set(drawn) == {f"{paper}-{name}.png" for paper, name in tables}
    assert text.index("## Claims") < text.index("\nBecause.\n") < text.index("## JRD, Fig. 2")
    for paper, name in tables:
        assert (tmp_path / "r" / f"{paper}-{name}.png").stat().st_size > 10_000
        assert f"({paper}-{name}.png)" in text


def test_pictures_of_what_has_not_run_are_skipped(out, tmp_path, capsys):
    """Fig. 4 of DML-DA without a regularized run, a sweep of JRD with α = 0 alone."""
    pytest.importorskip("matplotlib")
    tables = {("jrd", "fig2"), ("dml_da", "fig4")}
    args = arguments("--dataset", "glyphs", "--out", out)
    rows = [row for row in rows_of("--dataset", "glyphs") if row.key in tables]
    for key in tables:
        first = next(row for row in rows if row.key == key)
        pretend(experiments.runs_of(first, under(out))[0])
    _, drawn = command.write_report(rows, args, tmp_path / "r")
    told = capsys.readouterr().err
    assert drawn == []
    assert "skipped dml_da-fig4.png: what it compares has not run yet" in told
    assert "skipped jrd-fig2.png: so far one value alone has run, which is no curve" in told


def test_a_picture_of_a_run_without_its_checkpoint_stays(out, tmp_path, capsys):
    """Runs of a repository have no last.pt: what was drawn of them before is kept and named, what
    has no run at all goes."""
    pytest.importorskip("matplotlib")
    rows = [row for row in rows_of("--dataset", "glyphs") if row.key in (
        ("jrd", "1"), ("mdr", "1a"), ("mdr", "fig5"))]
    for row in rows:
        if row.key[0] == "jrd":
            pretend(experiments.runs_of(row, under(out))[0])
    folder = tmp_path / "r"
    folder.mkdir()
    for name in ("jrd-1.png", "mdr-1a.png"):
        (folder / name).write_bytes(b"drawn before")
    text, drawn = command.write_report(rows, arguments("--dataset", "glyphs", "--out", out), folder)
    assert drawn == [path.name for path in folder.glob("*.png")] == ["jrd-1.png"]
    assert (folder / "jrd-1.png").read_bytes() == b"drawn before" and "(jrd-1.png)" in text
    told = capsys.readouterr().err
    assert "last.pt; drawn before, and left so" in told and told.startswith("skipped jrd-1.png: no")


def test_only_epochs_that_were_evaluated_are_drawn(out, tmp_path):
    """--eval-every 2: a row without metrics between, each point at its row's own epoch."""
    args = arguments("--dataset", "cub128", "--paper", "mdr", "--seeds", 2, "--out", out)
    rows = [row for row in experiments.selected(args) if row.key[1] in ("fig3b", "fig4", "fig6")]
    runs = experiments.all_runs(rows, args)
    for i, run in enumerate(runs):
        pretend(run, 0.4 + 0.1 * i, epochs=None)
        log = [{"epoch": e, "loss": 1.0, "levels": [-e, 0.0, e], **{
            f"{kind} pairs by level": [0.5, 0.3, 0.2] for kind in ("positive", "negative")}}
            for e in range(1, 6)]
        for line in (log[1], log[3], log[4]):                           # 2, 4 and the last
            line |= {"R@1": 0.1 * line["epoch"] + 0.01 * i, "seen R@1": 0.9, "norm mean": 2.0,
                     "norm cv": 0.1}
        (run.folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
        run.__dict__.pop("log", None)
    one = experiments.runs_of(rows[0], args)
    points = figures.by_epoch(one, "R@1")
    assert [epoch for epoch, _ in points] == [2, 4, 5]
    assert points[1][1] == pytest.approx([40 + runs.index(run) for run in one])
    assert figures.by_epoch(one, "norm mean") == [(2, [2.0, 2.0]), (4, [2.0] * 2), (5, [2.0] * 2)]
    pytest.importorskip("matplotlib")
    _, drawn = command.write_report(rows, args, tmp_path / "r")
    assert drawn == ["mdr-fig3b.png", "mdr-fig4.png", "mdr-fig6.png"]


def test_curves_of_any_runs(out, tmp_path, monkeypatch, capsys):
    """A setting is the mean of its seeds, a folder itself, finished or not; epochs without R@1 are
    left out of its panel alone; seeds that stand at different epochs share what both have."""
    def write(name, *rows):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "log.jsonl").write_text("".join(
            json.dumps(row) + "\n" for row in rows))

    one = {"epoch": 1, "loss": 4.0}
    write("mdr-glyphs-s0", one, {"epoch": 2, "loss": 2.0, "R@1": 0.5, "seen R@1": 0.75})
    write("mdr-glyphs-s1", {"epoch": 1, "loss": 6.0}, {"epoch": 2, "loss": 4.0, "R@1": 0.25},
          {"epoch": 3, "loss": 1.0, "R@1": 0.5})
    write("mdr-glyphs-s1-s0", one | {"R@1": 0.125})                     # another setting's name
    write("jrd-glyphs-s0")
    drawn = {}
    with monkeypatch.context() as patch:
        patch.setattr(figures, "draw_curves", lambda path, found, marks: drawn.update(found))
        command.main(arguments("--curves", "mdr-glyphs", "mdr-glyphs-s1", "mdr-glyphs-s1-s0",
                               "--out", out))
    loss, r1, seen = drawn.values()
    assert [label for _, _, label in drawn] == [
        "training loss", "R@1 on test classes (%)", "R@1 on training classes (%)"]
    assert loss["mdr-glyphs"] == [(1, [4.0, 6.0]), (2, [2.0, 4.0]), (3, [1.0])]
    assert r1["mdr-glyphs"] == [(2, [50.0, 25.0]), (3, [50.0])]
    assert r1["mdr-glyphs-s1"] == [(2, [25.0]), (3, [50.0])]
    assert r1["mdr-glyphs-s1-s0"] == [(1, [12.5])] and seen == {"mdr-glyphs": [(2, [75.0])]}
    for names, message in ((["jrd-glyphs"], "no epoch is logged yet in jrd-glyphs"),
                           (["mdr-cub"], "no run mdr-cub under .*: there are jrd-glyphs-s0, mdr")):
        with pytest.raises(common.UserError, match=message):
            command.main(arguments("--curves", *names, "--out", out))

    pytest.importorskip("matplotlib")
    capsys.readouterr()
    for words, path in (([], f"{out}/curves.png"), (["--to", f"{tmp_path}/c.svg"],
                                                    f"{tmp_path}/c.svg")):
        command.main(arguments("--curves", "mdr-glyphs", "mdr-glyphs-s1-s0", "--out", out, *words))
        assert capsys.readouterr().out == f"wrote {path}\n"
    with pictures.PIL.Image.open(f"{out}/curves.png") as image:
        assert image.format == "PNG" and image.width > image.height
    assert "<svg" in (tmp_path / "c.svg").read_text(encoding="utf-8")
    (tmp_path / "runs" / "jrd-glyphs-s0" / "log.jsonl").write_text('{"epoch": 1, "lo')
    with pytest.raises(common.UserError, match="jrd-glyphs-s0/log.jsonl is damaged"):
        command.main(arguments("--curves", "jrd-glyphs", "--out", out))


def test_a_sheet_has_names_and_frames(tmp_path, monkeypatch):
    """Nearest first, the query not among them; with a gallery from that; photos from their files.

    On a line: a0 0, b0 1, a1 3, b1 7; class 0 is a, class 1 is b."""
    x, labels = torch.tensor([[0.0], [1.0], [3.0], [7.0]]), torch.tensor([0, 1, 0, 1])
    names = ["a0.png", "b0.png", "a1.png", "b1.png"]
    test = common.Split(None, labels, ["class a", "class b"], names)
    parts = {"test": x, "labels": labels, "seen": x + 5, "seen_labels": labels}
    data = argparse.Namespace(gallery=None, test=test, seen=test)
    monkeypatch.setattr(pictures, "embedded", lambda file, _: {"best.pt": parts}[file.name])
    monkeypatch.setattr(pictures, "images_of", lambda run: data)
    run = argparse.Namespace(cfg=argparse.Namespace(data_root=None, dataset=str(tmp_path)))
    for i, name in enumerate(names):
        pictures.PIL.Image.new("RGB", (120, 80), (60 * i, 0, 0)).save(tmp_path / name)
    told, draw = [], pictures.query.draw_sheet
    monkeypatch.setattr(pictures.query, "draw_sheet",
                        lambda path, rows: (told.append(rows), draw(path, rows)))

    def lines(unseen=2, seen=0):
        pictures.draw_nearest(tmp_path / "sheet.png", run, tmp_path / "best.pt", unseen, seen)
        return {row[0][0].name: [(source.name, *words) for source, words, _ in row]
                for row in told[-1]}

    right, wrong = (figures.COLOURS[i] for i in (2, 1))
    found = lines()
    want = {"a0.png": "b0 a1 b1", "b0.png": "a0 a1 b1", "a1.png": "b0 a0 b1", "b1.png": "a1 b0 a0"}
    assert len(found) == 2
    for query, line in found.items():
        assert line[0] == (query, f"class {query[0]}", "unseen query")
        assert line[1:] == [(f"{name}.png", f"class {name[0]}",
                             "right" if name[0] == query[0] else "wrong")
                            for name in want[query].split()]
    assert all(colour == (right if words[1] == "right" else wrong)
               for row in told[0] for _, words, colour in row[1:])
    with pictures.PIL.Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 4 * 120 and sheet.height > 2 * 80

    for query, line in lines(0, 2).items():                 # training classes, found in the same way
        assert line[0] == (query, f"class {query[0]}", "seen query")
        assert [name for name, *_ in line[1:]] == [f"{name}.png" for name in want[query].split()]

    data.gallery, parts["gallery"], parts["gallery_labels"] = test, x, labels   # now with itself
    for query, line in lines().items():
        assert line[1] == (query, f"class {query[0]}", "right")


def test_pictures_leave_out_held_out_classes_as_the_embeddings_do():
    cfg = importlib.import_module("jrd").parse_args(["--val", "0.2"])
    data = pictures.images_of(argparse.Namespace(paper="jrd", cfg=cfg))
    assert len(data.seen) == 600 and len(data.val) == 150


def test_figures_of_embeddings(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    labels = torch.arange(12).repeat_interleave(5)
    x = torch.nn.functional.one_hot(labels).float() + 0.01 * torch.rand(60, 12)
    parts = {"test": x, "labels": labels, "seen": x, "seen_labels": labels}
    images = torch.randint(0, 256, (60, 3, 20, 20), dtype=torch.uint8)
    monkeypatch.setattr(pictures, "embedded", lambda *_: parts)
    split = common.Split(images, labels, [f"class {c}" for c in range(12)])
    monkeypatch.setattr(pictures, "images_of", lambda run: argparse.Namespace(
        gallery=None, test=split, seen=split))
    run = argparse.Namespace(cfg=argparse.Namespace(data_root="data", dataset="glyphs"),
                             folder=tmp_path)
    rows = [experiments.Row(("dml_da", "fig5"), name, "glyphs", "", 1) for name in ("one", "two")]
    for draw in (pictures.draw_sheet, pictures.draw_tsne, pictures.draw_thumbnails,
                 command.FIGURES["mdr", "fig5"]):
        path = tmp_path / "figure.png"
        draw(path, rows, lambda row: [run])
        assert path.stat().st_size > 5_000
        path.unlink()
    wide, hot = [], rows[0]._replace(rate=experiments.THREE_TIMES)
    monkeypatch.setattr(pictures, "panels", lambda n, *size: wide.append(n) or
                        figures.panels(n, *size))
    pictures.draw_tsne(path, [*rows, hot], lambda row: [run])
    assert wide == [2]                                                  # the preset's rate alone


def test_without_matplotlib_one_line_says_what_was_skipped(out, tmp_path, monkeypatch, capsys):
    rows = [row for row in rows_of("--dataset", "glyphs", "--paper", "mdr", "--seeds", 1)
            if row.key[1] in ("fig3b", "fig4", "fig6")]
    for run in experiments.all_runs(rows, under(out)):
        pretend(run)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    command.write_report(rows, arguments("--dataset", "glyphs", "--out", out), tmp_path / "r")
    stderr = capsys.readouterr().err
    assert "matplotlib" in stderr and "pip install" in stderr and stderr.count("\n") == 1
    assert "skipped mdr-fig3b.png, mdr-fig4.png, mdr-fig6.png: " in stderr
    assert not list((tmp_path / "r").glob("*.png"))


def test_curves_at_both_rates_have_panels_of_their_own(out, tmp_path, monkeypatch):
    rows = rows_of("--dataset", "glyphs", "--table", "fig3b", "--seeds", 1)
    for run in experiments.all_runs(rows, under(out)):
        pretend(run)
    drawn = {}
    monkeypatch.setattr(figures, "draw_curves", lambda path, found, marks: drawn.update(found))
    figures.draw_epochs(tmp_path, rows, lambda row: experiments.runs_of(row, under(out)))
    assert [(title, label[:13]) for title, _, label in drawn] == [
        (title, label) for title in ("glyphs", "glyphs, 3 × the rate")
        for label in ("R@1 on test c", "R@1 on traini")]
    assert all(list(curves) == list(experiments.TRIPLET) for curves in drawn.values())


def test_a_report_on_a_part_is_not_written_over_a_whole_one(out, tmp_path):
    """It would replace tables.csv and claims.csv; the same report may be made again."""
    words = ["--dataset", "glyphs", "--paper", "jrd", "--table", "4", "--out", out,
             "--to", tmp_path / "r"]
    for _ in range(2):
        command.main(arguments(*words))
    before = (tmp_path / "r" / "tables.csv").read_text(encoding="utf-8")
    for others in (["--quick"], ["--dataset", "glyphs", "--paper", "jrd"],
                   ["--dataset", "cub", "--paper", "jrd", "--table", "4"]):
        with pytest.raises(common.UserError, match="report.md is that of `python -m report "
                           "--dataset glyphs --paper jrd --table 4 .*: --to another folder"):
            command.main(arguments(*others, "--out", out, "--to", tmp_path / "r"))
    assert (tmp_path / "r" / "tables.csv").read_text(encoding="utf-8") == before


def test_a_report_before_the_papers_method_is_finished(out, tmp_path, capsys):
    args = arguments("--dataset", "glyphs", "--paper", "jrd", "--table", "1", "--out", out)
    rows = experiments.selected(args)
    pretend(experiments.runs_of(rows[1], under(out))[0])                # AMSoftmax alone
    text, drawn = command.write_report(rows, args, tmp_path / "r")
    assert "| JRD " in text and "not run" in text and drawn == []
    assert "jrd-1.png: the paper's method has no finished run" in capsys.readouterr().err


@pytest.mark.parametrize("file, content", [("config.json", "{"), ("config.json", "[1]"),
                                           ("result.json", "{}"), ("result.json", "no"),
                                           ("log.jsonl", '{"epoch": 1, "lo'),
                                           ("log.jsonl", None)])        # deleted
def test_a_damaged_run_folder_is_named(file, content, out, capsys):
    run = experiments.all_runs(rows_of("--quick", "--out", out), under(out))[0]
    pretend(run)
    (run.folder / file).unlink()
    if content:
        (run.folder / file).write_text(content)
    with pytest.raises(common.UserError, match=f"{run.folder.name}.*{file}"):
        assert run.state == "finished" and run.result and run.log


# ---------------------------------------------------------------------------- run_all.sh
@pytest.fixture
def run_all(tmp_path):
    """run_all.sh with a stand-in for Python that plans three commands, of which mdr.py fails."""
    stub, log = tmp_path / "python", tmp_path / "log"
    stub.write_text(f"""#!/usr/bin/env bash
    echo "$*" >> {log}
    case "$*" in
        *--plan*) echo "plan: 3 runs" >&2
                  printf 'python %s\\n' 'jrd.py --seed 0' 'mdr.py --seed 0' 'jrd.py --seed 1'
                  exit "${{PLAN:-0}}" ;;
        *report.experiments*) echo "python listed" ;;
        "-m report"*) echo the report ;;
        mdr.py*) echo "mdr.py: trouble" >&2; exit 2 ;;
        *) [ -z "${{SLOW:-}}" ] || exec sleep 60; echo "last epoch fine" ;;
    esac
    """)
    stub.chmod(0o755)
    log.touch()

    def start(*words, **env):
        return subprocess.Popen(["bash", ROOT / "run_all.sh", *words], text=True, cwd=tmp_path,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env=os.environ | {"PYTHON": str(stub)} | env)
    return start, log


def test_run_all_goes_on_after_a_failure_and_says_so(run_all):
    start, log = run_all
    for jobs in ("1", "2"):
        log.write_text("")
        process = start("--jobs", jobs, "--table", "2c")
        stdout, stderr = process.communicate(timeout=60)
        called = log.read_text().splitlines()
        assert called[0] == "-m report --plan --dataset real --table 2c"
        assert sorted(called[1:4]) == ["jrd.py --seed 0", "jrd.py --seed 1", "mdr.py --seed 0"]
        assert called[4] == "-m report --dataset real --table 2c"
        assert process.returncode == 1 and "failed: python mdr.py --seed 0\n" in stderr
        assert stdout.count("last epoch fine") == 2 and stdout.endswith("the report\n")
        assert "mdr.py: trouble" in stdout + stderr


def test_run_all_tells_of_missing_datasets_and_wrong_arguments(run_all):
    start, log = run_all
    process = start("--paper", "jrd", PLAN="1")
    assert "the report" in process.communicate(timeout=60)[0] and process.returncode == 1
    process = start("--paper", "jrd", PLAN="2")
    assert process.communicate(timeout=60) == ("", "plan: 3 runs\n") and process.returncode == 2
    for words in (["--bogus"], ["--jobs", "0"], ["--table"]):
        process = start(*words)
        stdout, stderr = process.communicate(timeout=60)
        assert process.returncode == 2 and stdout == "" and stderr.count("\n") == 1
    process = start("--list", "--dataset", "glyphs")
    assert process.communicate(timeout=60) == (f"{log.with_name('python')} listed\n", "")


def test_run_all_passes_on_what_the_report_takes(run_all):
    start, log = run_all
    words = "--dataset cub128 --weights my.pth --out elsewhere"
    assert start(*words.split()).wait(timeout=60) == 1                  # mdr.py fails
    called = log.read_text().splitlines()
    assert called[0] == f"-m report --plan --dataset real {words}"
    assert called[-1] == f"-m report --dataset real {words}"


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_run_all_stops_as_a_whole(run_all, end):
    start, log = run_all
    process = start("--jobs", "2", SLOW="1")
    for _ in range(200):
        if "jrd.py --seed 1" in log.read_text():
            break
        time.sleep(0.05)
    process.send_signal(end)
    process.communicate(timeout=30)
    assert process.returncode == -end
    assert "-m report --dataset" not in log.read_text()



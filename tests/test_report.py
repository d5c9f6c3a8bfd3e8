"""The experiment list, the plan, tables, figures, archives, on run folders made here.

All of it by what a person types and reads back, and by the files that are written.
"""
import csv
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest
import scipy.stats

from conftest import ROOT, edit_settings, make_folder
from report import experiments, figures, tables, write
from support import command_line, identity, layouts
from support.identity import code_of, run_folder


@pytest.fixture
def out(tmp_path):
    return str(tmp_path / "runs")


@pytest.fixture
def report(typed, out):
    """report(*words): `python -m report` of the runs here -> status, stdout, stderr.  Nothing that
    an earlier call read of them is kept."""
    def run(*words, runs=(out,)):
        experiments.training.cache_clear()
        return typed("report", *words, "--runs", *runs)
    return run


@pytest.fixture
def written(report, tmp_path):
    """written(*words): a report of the runs here -> its Markdown, {cells of table, row and metric:
    a row of tables.csv}"""
    def run(*words):
        folder, cells = tmp_path / "r", {}
        report(*words, "--out", folder)
        with open(folder / "tables.csv", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                place = row["table"], row["row"], row["metric"]
                assert place not in cells
                cells[place] = row
        return (folder / "report.md").read_text(encoding="utf-8"), cells
    return run


def listed(report, *words):
    return report(*words, "--list")[1].splitlines()


def table_rows(text):
    """The cells of all lines of tables"""
    rows = []
    for line in text.splitlines():
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def run_of(command):
    """A command of the list -> its paper, its settings, its run's folder"""
    python, script, *words = shlex.split(command)
    paper = script.removesuffix(".py")
    cfg = experiments.SCRIPTS[paper].parse_args(words)
    assert python == "python"
    return paper, cfg, run_folder(paper, cfg)


def pretend(command, r1=0.5, finished=True, **last):
    """Make the folder of a command's run as if it had been trained, R@1 = r1 -> the folder"""
    paper, cfg, folder = run_of(command)
    weights = experiments.sha256_of(cfg.backbone, cfg.weights) or "c0de"
    config = {**vars(cfg), "paper": paper, "commit": "c0ffee", "weights_sha256": weights,
              "images": {}, "code": code_of(paper), "versions": {"torch": "2.14.1"},
              "processor": "a processor"}
    best, line, tenths = {"epoch": 2}, {"epoch": 3}, {}
    for i, k in enumerate(cfg.ks):
        line[f"R@{k}"] = r1 + 0.01 * i
        best[f"R@{k}"] = line[f"R@{k}"] + 0.05
        tenths[f"R@{k}"] = line[f"R@{k}"] - 0.2, 0.01
    line |= {"seen R@1": 0.9, "NMI": r1 + 0.1, "norm mean": 2.0, "norm cv": r1 / 5, "val R@1": r1,
             "levels": [-2.9, 0.1, 3.2], "positive pairs by level": [0.6, 0.3, 0.1],
             "negative pairs by level": [0.1, 0.6, 0.3]}
    last |= line | {"MAP@R": 0.2, "R@1, l2-normalized": r1 - 0.1, "lambda": [r1, 0.01],
                   "d_H": [0.9, 0.01], "ten parts": tenths}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "log.jsonl").write_text(json.dumps(line))
    if finished:
        (folder / "result.json").write_text(json.dumps(
            {"last epoch": last, "best on test": best, "pretrained backbone": {"R@1": 0.4}}))
    return folder


def ran(out, setting, *r1):
    """Pretend the runs of seeds 0, 1, ... of a setting, each with its R@1, or None for not run ->
    their folders"""
    folders = []
    for seed, value in enumerate(r1):
        if value is not None:
            folders.append(pretend(f"python {setting} --out {out} --seed {seed}", value))
    return folders


JRD, AMSOFTMAX = "jrd.py --dataset glyphs", "jrd.py --dataset glyphs --alpha 0"


# ---------------------------------------------------------------------------- the list and the plan
@pytest.mark.parametrize("dataset, least", [("real", 150), ("glyphs", 90), ("cub128", 90)])
def test_a_command_stands_for_one_folder_and_one_setting(dataset, least, report):
    """Names of folders: no character that Windows forbids, room below 260, more than case apart.
    The headlines come first.  A stand-in has every table of CUB or Cars but other backbones'."""
    words = "--dataset", dataset, "--seeds", 1, "--weights", "my own", "--precision", "fp32"
    commands = listed(report, *words)
    names, settings, headlines = set(), set(), set()
    for command in commands:
        paper, cfg, folder = run_of(command)
        assert re.fullmatch(r"[A-Za-z0-9._-]{1,80}", folder.name)
        assert (cfg.weights, cfg.precision) == ("my own", "fp32")
        names.add(folder.name.lower())
        settings.add(json.dumps([paper, vars(cfg)]))
    assert len(settings) == len(names) == len(commands) > least
    for key in experiments.EXPERIMENTS:
        paper, table = key.split()
        of_table = listed(report, *words, "--paper", paper, "--table", table)
        assert bool(of_table) == (dataset == "real" or key not in ("mdr 1b", "mdr 2a"))
        if key in experiments.HEADLINES:
            headlines.update(of_table)
    assert headlines == {*commands[:len(headlines)]}


def test_the_plan_has_what_the_list_has_but_what_is_finished_or_would_be_refused(report):
    commands = listed(report, "--quick")
    finished, begun, edited, older, *_ = commands
    pretend(finished)
    pretend(begun, finished=False)
    edited, older = pretend(edited), pretend(older)
    edit_settings(edited, lr=7, workers=3, code="another")
    edit_settings(older, code="older")
    status, left, plan = report("--quick", "--plan")
    assert left.splitlines() == [begun, *commands[4:]] and status == 0
    assert 40 * 10 * 64 + 2 * 50 * 50 * 15 == 100_600       # of MDR, begun, and of two of JRD
    assert plan.startswith("plan: 6 runs for 3 tables and figures, 1 finished, 1 begun, 2 stale, "
                           "2 to do: about 101,000 training images to go\n")
    assert re.search(rf"1 stale with other lr, code: {edited} holds a run with other lr "
                     r"\(there 7, .*\), code \(there 'another', now ", plan)
    assert f"1 stale with other code: {older} holds a run with other code (there 'older'" in plan
    assert "workers" not in plan and plan.count("Delete stale folders to train them anew") == 1
    assert "2 folders hold other runs" in report("--quick")[2]
    codes = {row[0]: row[-1] for row in table_rows(report()[1])}
    assert codes[older.name.removesuffix("-s0")] == "older"
    status, left, plan = report("--paper", "mdr", "--table", "2c", "--plan")
    assert left == "" and status == 3 and "missing: no cub under" in plan


def test_the_plan_has_the_training_images_that_the_benchmarks_page_has(out, report):
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    runs, total, *of_papers = re.search(
        r"The (\d+) runs train on ([\d,]+) million images \(DML-DA (\d+), MDR (\d+), JRD (\d+)\)",
        page).groups()
    told = report("--plan")[2]
    assert told.startswith(f"plan: {runs} runs for 23 tables and figures, {runs} to do: "
                           f"about {total} million training images to go\nmissing: no ")
    rows = experiments.selected(out, True, "real", None, None, False, None, "")
    for paper, millions in zip(("dml_da", "mdr", "jrd"), of_papers):
        images = [run.training_images for run in experiments.all_runs(rows) if run.paper == paper]
        assert round(sum(images) / 1e6) == int(millions)


# ---------------------------------------------------------------------------- gains
def test_gains_are_within_a_seed(out, written):
    """Seeds differ by far more than the two settings do, and seed 0 has only one of them."""
    ran(out, AMSOFTMAX, 0.9, 0.3, 0.5, 0.7)
    ran(out, JRD, None, 0.31, 0.511)
    for seeds, told, half in (("2", "+1.05", 0),
                              ("3", "+1.10 [+0.85, +1.35]", 4.302653 * 0.1 / 3 ** 0.5)):
        text, cells = written("--dataset", "glyphs", "--table", 1)
        assert [f"gain over AMSoftmax, n = {seeds}", told] in [row[1:3] for row in table_rows(text)]
        cell = cells["1", "JRD", "R@1"]
        assert (cell["baseline"], cell["gain's seeds"]) == ("AMSoftmax", seeds)
        assert float(cell["gain's half-width"] or 0) == pytest.approx(half)
        if seeds == "2":
            ran(out, JRD, None, None, None, 0.712)


def test_quick_ends_with_the_pairs_their_pictures_and_the_next_command(out, report, monkeypatch):
    """One pair is not run; of a run that has its last.pt a sheet is drawn."""
    drawn, folders = Mock(), []
    for command, r1 in zip(listed(report, "--quick"), (0.48, 0.50, 0.49, 0.51)):
        folders.append(pretend(command, r1))
    monkeypatch.setattr(figures, "draw_nearest", drawn)
    status, text, _ = report("--quick")
    drawn.assert_called_once_with(Path(out, "report-quick", "sheet.png"), folders[1] / "last.pt")
    assert status == 0 and table_rows(text)[2:] == [
        ["Triplet+MDR", "50.0", "Triplet", "48.0", "+2.00"],
        ["DML-DA N-pair", "51.0", "N-pair", "49.0", "+2.00"],
        ["JRD", "not run", "AMSoftmax", "not run", "–"]]
    assert text.splitlines()[-1].endswith(f": bash run_all.sh --seeds 3 --quick --runs {out}")
    pytest.importorskip("matplotlib")
    assert f"wrote {out}/report-quick/curves.png" in text


# ---------------------------------------------------------------------------- what was run
def test_two_settings_are_compared_within_a_seed(out, report):
    """Names of settings, of runs, of folders; two seeds of three have both and no interval."""
    folders = ran(out, JRD, 0.50, 0.60, 0.9)
    ran(out, AMSOFTMAX, 0.48, 0.56)
    ran(out, "mdr.py --dataset glyphs", 0.5)
    ran(out, "mdr.py --dataset glyphs --lambda 0.1", 0.5)
    for names in (("jrd-glyphs", "jrd-glyphs-alpha0"), (folders[0], "jrd-glyphs-alpha0-s1")):
        text = report("--compare", *names)[1]
        told = {row[0]: row[1:] for row in table_rows(text)}
        assert told["last epoch"][:2] == ["jrd-glyphs", "jrd-glyphs-alpha0"]
        assert told["R@1"] == told["val R@1"] == ["50.00, 60.00", "48.00, 56.00", "+3.00"]
        assert told["R@1 in ten parts"] == ["30.00, 40.00", "28.00, 36.00", "+3.00"]
        first = {name: float(row[0].split(",")[0]) for name, row in told.items() if row[0][0].isdigit()}
        assert first["right side of Eq. 1"] == pytest.approx(
            1 - first["seen R@1"] / 100 + first["λ by 1-NN"] + first["d_H by 1-NN"], abs=2e-4)
        assert told["norm cv"][2] == "+0.0060" and told["levels, 1"][1] == "-2.9000, -2.9000"
        assert text.endswith("The settings differ in alpha (1.0 and 0.0).\n")
        assert "Seeds 0, 1, which both have; jrd-glyphs alone has 2; recalls" in text
    edit_settings(folders[1], code="edited")
    assert "code (edited and " in report("--compare", *names)[1]
    edit_settings(folders[0], processor="another", threads=3)           # theirs note no threads
    assert report("--compare", *names)[1].endswith(
        "\nNote: two runs of a seed differ in processor, too, which alone may move a figure.\n")
    row = json.loads((folders[1] / "log.jsonl").read_text())
    row["continued with"] = {"torch": "another", "commit": "another"}   # whose code is compared
    (folders[1] / "log.jsonl").write_text(json.dumps(row))
    assert "differ in processor, torch, too," in report("--compare", *names)[1]
    shutil.copytree(folders[0], Path(out, "jrd-glyphs-s0-copy"))
    for name in ("jrd-glyphs-alpha", "mdr-cub", "jrd-glyphs-s0-copy"):
        told = report("--compare", "jrd-glyphs", name)[2]
        assert f": no run {name} with a result.json " in told
    text = report("--compare", "jrd-glyphs", "mdr-glyphs")[1]
    assert "paper (jrd and mdr)" in text
    text = report("--compare", "mdr-glyphs", "mdr-glyphs-lambda0.1")[1]
    assert "The settings differ in lambda (0.6 and 0.1)." in text       # a weight, no bound's term
    names = {row[0] for row in table_rows(text)}
    assert {"λ by 1-NN", "d_H by 1-NN"} <= names and not {"lambda", "d_H"} & names
    result = json.loads((folders[0] / "result.json").read_text())
    del result["last epoch"]["ten parts"]                   # else R@1 would stand in their place
    (folders[0] / "result.json").write_text(json.dumps(result))
    text = report("--compare", "jrd-glyphs", "jrd-glyphs-alpha0")[1]
    assert "| R@1 " in text and "in ten parts" not in text


def test_runs_of_a_folder_and_of_a_link_to_it_are_compared(out, report, tmp_path):
    """They name their dataset otherwise, and have the same images."""
    folders = ran(out, JRD, 0.5) + ran(out, AMSOFTMAX, 0.4)
    words = "--compare", "jrd-glyphs", "jrd-glyphs-alpha0"
    for folder, name, images in zip(folders, ("birds", "link"), ("one", "one")):
        edit_settings(folder, dataset=f"{tmp_path}/{name}", images={"test": images})
    assert "+10.00" in report(*words)[1]
    edit_settings(folders[1], images={"test": "other"})
    assert "were tested on different images" in report(*words)[2]
    for folder in folders:
        edit_settings(folder, images={})
    assert "were tested on different images" in report(*words)[2]
    make_folder(tmp_path / "birds", [1])
    (tmp_path / "link").symlink_to(tmp_path / "birds")
    assert "+10.00" in report(*words)[1]
    ranked = [row for row in table_rows(report("--sort", "R@1")[1]) if row[1].startswith("runs on")]
    assert ranked == [["", "runs on birds", "seeds", "R@1"]]
    for folder, name in zip(folders, ("cub", "cub128")):        # of both the digest is of paths
        edit_settings(folder, dataset=name, images={"test": "one"})
    assert "were tested on different images" in report(*words)[2]


@pytest.mark.parametrize("changes, told", [
    ({"dataset": "/x/cub"}, "with other dataset (there '/x/cub', now 'cub')"),
    ({"weights_sha256": "another"}, "with other weights_sha256 (there 'another', now '"),
    ({"weights": "of.pth", "weights_sha256": "another"}, "with other weights_sha256 (there ")])
def test_a_run_of_other_images_or_weights_is_not_the_lists(changes, told, out, report):
    """A folder that is called cub; weights of one's own beside the published, and the reverse."""
    assert identity.DATASETS == {*layouts.COUNTS, *layouts.SMALLER, "glyphs"}
    (folder,) = ran(out, "jrd.py --dataset cub --backbone small", 0.5)
    words = "--dataset", "cub", "--paper", "jrd", "--table", 1, "--seeds", 1, "--backbone", "small"
    assert "1 finished" in report(*words, "--plan")[2]
    edit_settings(folder, **changes)
    err = report(*words, "--plan")[2]
    assert "1 stale" in err and told in err
    err = report(*words)[2]
    assert told in err and ("--weights FILE names" in err) == ("weights_sha256" in changes)


def test_a_file_of_weights_counts_by_its_content(out, report, tmp_path):
    file = tmp_path / "own.pth"
    file.write_bytes(b"weights")
    folder = pretend(f"python {JRD} --weights {file} --out {out} --seed 0")
    words = "--dataset", "glyphs", "--paper", "jrd", "--table", 1, "--seeds", 1, "--plan"
    assert "1 finished" in report(*words, "--weights", file)[2]
    assert "1 stale" in report(*words)[2]
    (tmp_path / "other.pth").write_bytes(b"other weights")
    assert "1 stale" in report(*words, "--weights", tmp_path / "other.pth")[2]
    edit_settings(folder, weights_sha256="random", weights="random")
    assert "1 stale" in report(*words, "--weights", file)[2]


def test_finished_runs_are_ranked_by_a_metric(out, report):
    """By the held-out classes where there are some, each dataset and share for itself; by test,
    which is said; the mean over seeds; what is not finished is left out."""
    ran(out, JRD, 0.50, 0.60)
    ran(out, AMSOFTMAX, 0.54)
    for alpha, r1 in (("0.5", 0.3), ("0.1", 0.4), ("2", 0.35)):
        ran(out, f"jrd.py --dataset glyphs --val 0.2 --alpha {alpha}", r1)
    ran(out, "jrd.py --dataset cub --val 0.2", 0.7)
    pretend(f"python jrd.py --dataset glyphs --val 0.2 --seed 5 --out {out}", finished=False)
    status, told, _ = report("--sort", "R@1")
    rows = [row for row in table_rows(told) if not set("".join(row)) <= {"-"}]
    assert status == 0 and rows == [
        ["", "runs on cub", "seeds", "val R@1"], ["1", "jrd-cub-val0.2", "1", "70.00"],
        ["", "runs on glyphs", "seeds", "R@1"], ["1", "jrd-glyphs", "2", "55.00 ± 7.07"],
        ["2", "jrd-glyphs-alpha0", "1", "54.00"],
        ["", "runs on glyphs", "seeds", "val R@1"],
        ["1", "jrd-glyphs-val0.2-alpha0.1", "1", "40.00"],
        ["2", "jrd-glyphs-val0.2-alpha2", "1", "35.00"],
        ["3", "jrd-glyphs-val0.2-alpha0.5", "1", "30.00"]]
    assert told.count("val R@1 on held-out classes, --val 0.2\n") == 2
    assert told.count("\nR@1 on test classes: not to choose settings by, for which ") == 1
    by_nmi = report("--sort", "NMI")[1]
    assert "NMI on test classes: not to" in by_nmi and "held-out" not in by_nmi
    best = [row[1] for row in table_rows(by_nmi) if row[0] == "1"]
    assert best == ["jrd-cub-val0.2", "jrd-glyphs"]
    for wrong in ("loss", "norm cv", "R@3"):
        status, _, err = report("--sort", wrong)
        assert status == 2 and f" has {wrong}: there are MAP@R; NMI; R@1; " in err
        assert wrong not in err.partition(": there are ")[2]
    assert ": --seeds does nothing with --sort\n" in report("--sort", "R@1", "--seeds", 2)[2]


@pytest.mark.parametrize("dataset", ["glyphs", "cub128"])
def test_the_committed_reports_come_from_their_archives(dataset, typed, tmp_path, monkeypatch):
    """... by the command that stands in them, to the letter, but for the folder it names."""
    here, titles = ROOT / "results" / dataset, set()

    def redraw(path, draw, points, title, *_):
        titles.add(title)
        return bool([*points])
    monkeypatch.setattr(figures, "redraw", redraw)
    page = (here / "report.md").read_text(encoding="utf-8")
    words = re.search("made by `python -m report (.*?) --out .*?`", page)[1].split()
    (tmp_path / "README.md").touch()
    monkeypatch.chdir(ROOT)
    experiments.training.cache_clear()
    assert typed("report", *words, "--out", tmp_path)[0] == 0
    experiments.training.cache_clear()
    assert (tmp_path / "tables.csv").read_bytes() == (here / "tables.csv").read_bytes()
    made = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert made.replace(str(tmp_path), f"results/{dataset}") == page
    for heading, picture in re.findall(r"^!\[(.*)\]\((.*)\)$", page, re.M):
        exploring = dataset == "cub128" and picture.startswith("mdr")
        assert heading + ", exploring at 25 iterations per epoch" * exploring in titles
    assert page.count("\nExploring runs: 25 iterations") == (dataset == "cub128") * len(
        re.findall("^## MDR", page, re.M))


def test_archives_are_read_like_a_folder(out, tmp_path, report):
    """One archive per family of runs; the commands of a table have no trace of where it was."""
    folders, archives = ran(out, JRD, 0.5, 0.6), []
    words = "--dataset", "glyphs", "--table", 1, "--out", tmp_path / "r"
    from_folder = report(*words)[1]
    for folder in folders:
        archives.append(tmp_path / f"{folder.name}.tar.xz")
        edit_settings(folder, code="older")             # which counts in a folder of runs alone
        with tarfile.open(archives[-1], "w:xz") as file:
            file.add(folder, folder.name)
    text = report(*words, runs=archives)[1]
    assert re.sub("made by `.*?`", "", text) == re.sub("made by `.*?`", "", from_folder)
    assert "55.0 ± 7.1" in text and "55.0 ± 7.1" in report(runs=archives)[1]
    assert ",python jrd.py --dataset glyphs," in (tmp_path / "r" / "tables.csv").read_text()
    assert "; --runs takes one folder, or archives (.tar.xz)\n" in report(runs=[out, out])[2]
    deeper = tmp_path / "deeper.tar.xz"
    with tarfile.open(deeper, "w:xz") as file:
        file.add(out, "runs")
    told = report(runs=[deeper])[2]
    assert f"{deeper} has no run's folder at its top: pack one by tar -cJf" in told
    (folders[0] / "log.jsonl").unlink()
    with tarfile.open(deeper, "w:xz") as file:
        file.add(folders[0], folders[0].name)
    told = report(runs=[deeper])[2]                     # not where it was unpacked, and is no more
    assert f"{deeper}/{folders[0].name}/log.jsonl is damaged, or not there" in told
    whole = archives[0].read_bytes()
    archives[0].write_bytes(whole[:200] + bytes([whole[200] ^ 255]) + whole[201:])
    assert f"cannot read the archive {archives[0]}" in report(runs=archives)[2]


# ---------------------------------------------------------------------------- the tables
def paper_tables(text):
    """A report's Markdown -> {(paper's table, dataset): {(row, head): {metric: cell}}}"""
    tables_of_text = {}
    for section in text.split("\n## ")[1:]:
        for part in section.split("\n\n**")[1:]:
            head, _, *rows = table_rows(part)
            cells = tables_of_text[section.partition(":")[0], part.partition("**")[0]] = {}
            for name, source, *figures in rows:
                row = name.strip("*") or row
                cells[row, source] = dict(zip(head[2:], figures))
    return tables_of_text


@pytest.mark.parametrize("finished", [1, None])
def test_every_figure_of_the_papers_stands_in_a_table(finished, report, written, monkeypatch):
    """... on the papers' images, what a paper quotes as quoted; also where all runs are finished."""
    monkeypatch.setattr(figures, "redraw", Mock(return_value=False))
    for dataset in ("cub", "cars", "sop", "inshop"):
        words, on = ("--dataset", dataset, "--seeds", 1), experiments.NAMES[dataset]
        for command in listed(report, *words)[:finished]:
            pretend(command)
        text, cells = written(*words)
        shown, entries = paper_tables(text), []
        for e in tables.PAPER_NUMBERS:
            if e["dataset"] == dataset:
                entries.append(e)
        assert len(entries) > 20
        for e in entries:
            table = f"{experiments.NAMES[e['paper']]}, Table {e['table']}"
            rows = shown[table.replace("Table fig", "Fig. "), on]
            cell = cells[e["table"], e["row"], e["metric"]]
            who, ours = f"paper, {on}", ""
            if e["reported_by"] == "quoted in this paper":
                who, ours = f"quoted by the paper, {on}", "quoted, not run"
            elif e["row"] == "HDC":
                ours = "not run"
            assert rows[e["row"], who][e["metric"]].split()[0] == str(e["value"])
            assert float(cell["paper's figure"]) == e["value"]
            if ours:
                assert cell["ours"] == ours
                assert [head for row, head in rows if row == e["row"]] == [who]
            elif not finished:
                ours = rows[e["row"], "**ours**, last epoch, n = 1"][e["metric"]].strip("*")
                assert float(cell["ours"]) == pytest.approx(float(ours), abs=0.051)
                less = rows.get((e["row"], "ours less the paper's"), {}).get(e["metric"])
                if e["metric"] == "lambda_NN":          # another quantity, E5
                    assert less == "–" and cell["ours less the paper's"] == ""
                    continue
                want = float(cell["ours"]) - e["value"]
                assert float(cell["ours less the paper's"]) == pytest.approx(want)
                assert float(less) == pytest.approx(want, abs=0.051) and less[0] in "+-"


def test_ours_stand_beside_the_papers(out, report, written):
    assert ": no run of the list is finished; " in report("--dataset", "cub")[2]
    ran(out, "mdr.py --dataset cub", 0.68, 0.69, 0.70)
    (folder,) = Path(out).glob("*-s1")
    config = json.loads((folder / "config.json").read_text())
    del config["processor"]                                 # as older runs have none
    (folder / "config.json").write_text(json.dumps(config | {"versions": {"torch": "2.15.0"}}))
    text, cells = written("--dataset", "cub")
    assert re.search("made at commit c0ffee, by torch 2.14.1, 2.15.0, with pretrained weights of "
                     r"SHA-256 \w+; processors: a processor; not noted\.  "
                     "Backbone: bn_inception; the papers' are .*  Report made by ", text)
    assert "| 50.7 [49.6, 51.8] |" in text                              # 95%
    shown = table_rows(text[text.index("| **Triplet+MDR**"):])
    assert [row[:3] for row in shown[:4]] == [
        ["**Triplet+MDR**", "paper, CUB", "68.8 ± 0.5"],
        ["", "**ours**, last epoch, n = 3", "**69.0 ± 1.0**"],
        ["", "ours less the paper's", "+0.2"], ["", "best on test*", "74.0 ± 1.0"]]
    assert ["", "not run", "–", "–", "–", "–"] in table_rows(text)
    cell = cells["1a", "Triplet+MDR", "R@1"]
    assert (cell["seeds"], cell["paper's figure"]) == ("3", "68.8")
    assert float(cell["ours"]) == pytest.approx(69)
    assert float(cell["ours less the paper's"]) == pytest.approx(0.2)
    assert cells["1a", "Triplet", "R@1"]["ours less the paper's"] == ""
    assert cell["command"] == "python mdr.py --dataset cub"


@pytest.mark.parametrize("dataset, wide, papers", [
    ("glyphs", 64, [["paper, CUB", "68.8 ± 0.5"], ["paper, Cars", "88.5 ± 0.3"]]),
    ("cub128", 512, [["paper, CUB", "68.8 ± 0.5"]])])
def test_on_a_stand_in(dataset, wide, papers, report, written):
    """The paper's figures, on glyphs on each of their datasets, stand above ours; no other
    backbones nor 256 × 256; widths on glyphs are an eighth."""
    words, n = ("--dataset", dataset, "--paper", "mdr", "--seeds", 4), len(papers)
    for command in listed(report, *words, "--table", "1a"):
        pretend(command, 0.5 if "--lambda 0" in command else 0.6)
    text, cells = written(*words)
    assert ("> **Not the papers' protocol.**" in text) == (dataset == "cub128")
    assert "256x256" not in text and "R50" not in text and "quoted" not in text
    assert ("1a", "MS", "R@1") not in cells and "less the paper's" not in text
    assert "ours less the paper's" not in cells["1a", "Triplet", "R@1"]
    shown = table_rows(text[text.index("| **Triplet+MDR**"):])
    assert [row[1:3] for row in shown[:n]] == papers
    assert shown[n][1:] == ["**ours**, last epoch, n = 4"] + [
        f"**{mean}.0 ± 0.0**" for mean in (60, 61, 62, 63, 20, 70, 90)]
    assert shown[n + 1][1] == "gain over Triplet, n = 4"
    for row, ours in (("Triplet+MDR (L2 norm at inference)", "50.0"), ("Triplet+MDR", "60.0")):
        assert cells["3", row, "R@1"]["ours"] == ours
    widths = {row: cell["baseline"] for (table, row, _), cell in cells.items() if table == "fig3a"}
    for d in (wide // 8, wide // 4, wide // 2, wide):
        assert widths.pop(f"Triplet, d = {d}") == ""
        for name in ("Triplet+L2Norm", "Triplet+MDR"):
            assert widths.pop(f"{name}, d = {d}") == f"Triplet, d = {d}"
    assert not widths


def test_a_report_names_the_backbone_of_its_runs(report, written, monkeypatch):
    """A list's default, or another: its header and, on cub128, the box.  What a note says of MDR's
    runs is true of SqueezeNet's alone."""
    redraw = Mock(return_value=True)
    monkeypatch.setattr(figures, "redraw", redraw)
    words = "--dataset", "cub128", "--paper", "mdr", "--table", "fig4", "--seeds", 1
    for more, name in (([], "squeezenet1_1"), (["--backbone", "resnet18"], "resnet18")):
        for command in listed(report, *words, *more):
            pretend(command)
        text, _ = written(*words, *more)
        box, header = text.split("\n\n")[1:3]
        assert f" and backbone {name}: results/cub128/README.md." in box
        assert f"  Backbone: {name}; the papers' are bn_inception, " in header
        noted = name == "squeezenet1_1"
        assert ("Exploring runs: 25 iterations" in text) == noted
        assert ("exploring at 25 iterations" in redraw.call_args.args[3]) == noted


def test_where_a_figure_is_read(out, written):
    """Table 2's in ten parts, Table 3's as fractions.  What a run does not measure (α without
    DML-DA) is not called not run."""
    ran(out, JRD, 0.5)
    _, cells = written("--dataset", "glyphs", "--paper", "jrd")
    for place, ours, before in ((("1", "JRD", "R@1"), 50, "40.0"), (("2", "JRD", "R@1"), 30, ""),
                                (("3", "JRD (alpha=1)", "lambda_NN"), 0.5, ""),
                                (("3", "JRD (alpha=1)", "R@1 (fraction)"), 0.3, "")):
        assert float(cells[place]["ours"]) == pytest.approx(ours)
        assert cells[place]["before training"] == before
    ran(out, "dml_da.py --dataset glyphs", 0.5)
    _, cells = written("--dataset", "glyphs", "--table", "fig3")
    assert [cells["fig3", "DML-DA contrastive", metric]["ours"] for metric in ("R@1", "alpha mean")
            ] == ["50.0", ""]


def test_nmi_of_other_starts_stands_beside_it_if_a_run_has_it(out, report, written):
    """By hand: two runs' starts have means 60 and 64 and ranges 6 and 8.  Runs of before have one
    start; beside ones that have five they show it alone, by themselves no column."""
    setting = "python dml_da.py --dataset glyphs"
    for seed in (0, 1):
        pretend(f"{setting} --lambda 0 --out {out} --seed {seed}", 0.5)
    words = "--dataset", "glyphs", "--table", "I"
    text, _ = written(*words)
    assert "of starts" not in text + report()[1]
    for seed, starts in enumerate([[0.62, 0.57, 0.6, 0.58, 0.63], [0.60, 0.68, 0.6, 0.68, 0.64]]):
        pretend(f"{setting} --out {out} --seed {seed}", 0.5, **{"NMI by start": starts})
    text, cells = written(*words)
    head, _, *rows = table_rows(text[text.index("## DML-DA, Table I"):])
    assert head[2:5] == ["NMI", "NMI, mean of starts", "NMI, range of starts"]
    without, with_it = [row[2:5] for row in rows if row[1] == "**ours**, last epoch, n = 2"]
    assert without == ["**60.0 ± 0.0**", "**–**", "**–**"]
    assert with_it == ["**60.0 ± 0.0**", "**62.0 ± 2.8**", "**7.0 ± 1.4**"]
    cell = cells["I", "DML-DA contrastive", "NMI, mean of starts"]
    assert float(cell["ours"]) == pytest.approx(62)
    head, _, without, with_it, *_ = table_rows(report()[1])
    at = head.index("NMI")
    assert head[at:at + 3] == ["NMI", "... mean of starts", "... range of starts"]
    assert with_it[at:at + 3] == ["60.0 ± 0.0", "62.0 ± 2.8", "7.0 ± 1.4"]
    assert without[at:at + 3] == ["60.0 ± 0.0", "–", "–"]
    for seed in (0, 1):
        pretend(f"{setting} --name again --out {out} --seed {seed}", **{"NMI by start": starts})
    told = report("--compare", "dml_da-glyphs", "dml_da-glyphs-again", "--runs", out)[1]
    assert "| NMI, mean of starts" in told
    told = report("--compare", "dml_da-glyphs", "dml_da-glyphs-lambda0", "--runs", out)[1]
    assert "of starts" not in told and "| NMI " in told


# ---------------------------------------------------------------------------- the figures
@pytest.fixture
def pictures(monkeypatch):
    """{file: {"titles": [the picture's, a panel's, ...], (y label of a panel, a curve's name):
    [[x, mean over seeds], ...]}} of what is drawn from here on"""
    figure, drawn = pytest.importorskip("matplotlib.figure").Figure, {}

    def savefig(self, path, real=figure.savefig, **how):
        real(self, path, **how)
        curves = drawn[path.name] = {"titles": [self.get_suptitle()]}
        for axis in self.axes:
            curves["titles"].append(axis.get_title())
            for handle, name in zip(*axis.get_legend_handles_labels()):
                line = getattr(handle, "lines", [handle])[0]            # one of an errorbar's
                points = line.get_xydata().round(6).tolist()
                curves[axis.get_ylabel(), name] = points
    monkeypatch.setattr(figure, "savefig", savefig)
    return drawn


def test_figures_from_logs_and_results(report, tmp_path, pictures, monkeypatch):
    """A sweep without one of its values is skipped, and what was drawn before goes; it shows the
    seeds that all have; without matplotlib, or with one that does not import, a line says so."""
    sweep = "--dataset", "glyphs", "--seeds", 2, "--paper", "jrd", "--table", "fig2"
    first, *commands, last = listed(report, *sweep)
    pretend(first, 0.4)
    (tmp_path / "jrd-fig2.png").write_bytes(b"from before")
    assert report(*sweep, "--out", tmp_path)[2] == (
        "skipped jrd-fig2.png: nothing to draw: not every value has run, or no epoch\n")
    assert not [*tmp_path.glob("*.png")]
    assert ".png" not in (tmp_path / "report.md").read_text()
    for i, command in enumerate(commands):
        pretend(command, 0.4 + 0.001 * i)
    report(*sweep, "--out", tmp_path)
    curve = figures.AXES["R@1"], "AMSoftmax + intra-class penalty"
    points = pictures["jrd-fig2.png"][curve]
    assert points[:2] == [[0, 40], [0.05, 40]]
    assert pictures["jrd-fig2.png"]["titles"] == [
        "JRD, Fig. 2: λ and d_H against the intra-class penalty of Eq. 4\n"
        "JRD on glyphs, backbone small\nseed 0",
        "highest, 0.404, at α = 1; 0.400 at α = 0", "no trend beyond the bars: 0.900 to 0.900",
        "highest, 40.4, at α = 1; 40.0 at α = 0"]
    words = "--dataset", "glyphs", "--seeds", 2, "--paper", "mdr", "--table"
    for command in listed(report, *words, "fig4"):
        pretend(command)
    for table, curve, points in (
            ("fig4", (figures.AXES["norm mean"], "Triplet+MDR"), [[3, 2]]),
            ("fig6", ("share of the pairs (%)", "positive pairs"),
             [[-2.9, 60], [0.1, 30], [3.2, 10]])):
        name = f"mdr-{table}.png"
        report(*words, table, "--out", tmp_path)
        assert pictures[name][curve] == points
        assert (tmp_path / name).stat().st_size > 10_000
        assert f"({name})" in (tmp_path / "report.md").read_text()
    monkeypatch.setattr(figures.importlib, "import_module",
                        Mock(side_effect=ValueError("matplotlib is broken\nhere")))
    for name, told in (("mdr-fig6.png", "kept an older"), ("mdr-fig4.png", "skipped")):
        if told == "skipped":
            (tmp_path / name).unlink()
        assert re.fullmatch(f"{told} {name}: .*matplotlib.* pip .*\n",
                            report(*words, name[4:8], "--out", tmp_path)[2])
        assert name not in (tmp_path / "report.md").read_text()
        assert (tmp_path / name).exists() == (told != "skipped")


def test_a_report_on_a_part_is_not_written_over_a_whole_one(report, tmp_path):
    """The same may be made again."""
    words = "--dataset", "glyphs", "--paper", "jrd", "--seeds", 1
    pretend(listed(report, *words)[0])
    for more in ([], [], ["--table", "1"]):
        status, _, stderr = report(*words, *more, "--out", tmp_path / "r")
        before = (tmp_path / "r" / "tables.csv").read_text(encoding="utf-8")
    assert status == 2 and "(glyphs jrd 2, glyphs jrd 3, " in stderr and "or delete" in stderr
    assert "\njrd,2," in before and stderr.count("\n") == 1


@pytest.mark.parametrize("more, name", [
    ([], "report-cub-dml_da"), (["--seeds", 1], "report-cub-dml_da-seeds1"),
    (["--precision", "fp32"], "report-cub-dml_da-fp32"),
    (["--backbone", "googlenet_bvlc", "--weights", "a/b.pth"],
     "report-cub-dml_da-googlenet_bvlc-b")])
def test_a_reports_own_folder_is_named_by_what_is_asked_for(more, name, report, monkeypatch):
    """... so that the paper's network and torchvision's do not write over each other."""
    written = Mock()
    monkeypatch.setattr(write, "write_report", written)
    words = "--dataset", "cub", "--paper", "dml_da", *more
    pretend(listed(report, *words)[0])
    report(*words)
    assert written.call_args.args[2].name == name


def test_a_title_names_the_finding():
    """By hand: where a series leads; the extreme of one beyond its bars; gains at the end, paired
    by seed; the levels of most pairs."""
    def of_seeds(curve):
        return {x: dict(enumerate(values)) for x, values in curve.items()}
    a = of_seeds({0: [1, 3], 1: [4, 6], 2: [4, 4.5]})
    b = of_seeds({0: [2, 2], 1: [2, 3], 2: [5, 6]})
    assert figures.of_sweep({"a": a, "b": b}, "d, the width", {}) == (
        "a has the highest mean at d = 0, 1")
    assert figures.of_sweep({"b": b, "c": of_seeds({0: [0], 1: [1], 2: [9]})}, "d", {}) == (
        "b has the highest mean at d = 0, 1")
    assert figures.of_sweep({"b": b, "c": of_seeds({0: [0], 1: [1], 2: [1]})}, "d", {}) == (
        "b has the highest mean at every d")
    assert figures.of_sweep({"a": a}, "α", {}) == "highest, 5.00, at α = 1; 2.00 at α = 0"
    assert figures.of_sweep({"a": of_seeds({0: [5, 7], 1: [2, 2]})}, "α", {}) == (
        "lowest, 2.00, at α = 1; 6.00 at α = 0")
    assert figures.of_sweep({"a": of_seeds({0: [1, 3], 1: [2, 3]})}, "α", {}) == (
        "no trend beyond the bars: 2.00 to 2.50")
    of_panel = {"plain": {1: [0, 0, 0], 2: [10, 20, 30]}, "more": {1: [9, 9, 9], 2: [11, 21.5, 31.5]},
                "less": {2: [9, 18.5, 29]}, "other": {2: [14, 20, 26]}}
    of_panel = {series: of_seeds(curve) for series, curve in of_panel.items()}
    of_panel |= {"later": {2: {2: 33, 1: 21, 3: 99}}, "none": {2: {3: 1, 4: 2}}}
    half = scipy.stats.t.ppf(0.975, 2) * np.std([1, 1.5, 1.5], ddof=1) / 3 ** 0.5
    assert figures.of_epochs(of_panel, "epoch", dict.fromkeys(of_panel, "plain")) == "\n".join([
        "plain - plain, at the end: +0.00 [+0.00, +0.00]",
        f"more ends above plain: +1.33 [{4 / 3 - half:+.2f}, {4 / 3 + half:+.2f}]",
        f"less ends below plain: -1.17 [{-3.5 / 3 - half:+.2f}, {-3.5 / 3 + half:+.2f}]",
        "other - plain, at the end: +0.00 [-9.94, +9.94]",
        "later - plain, at the end: +2.00"])                # 33 - 30 and 21 - 20
    of_panel = {"positive pairs": of_seeds({-3.04: [80, 60], 0.02: [20, 40]})}
    assert figures.of_levels(of_panel, "level", {}) == (
        "70% of the positive pairs at level -3")


# Machado, Oliveira and Fernandes (2009), severity 1, for linear RGB
BLIND = {"none": np.eye(3),
         "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                    [-0.011820, 0.042940, 0.968881]],
         "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                    [-0.003882, -0.048116, 1.051998]],
         "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                    [0.004733, 0.691367, 0.303900]]}


def lab(colour, blindness):
    """CIELAB of a colour as it is seen"""
    rgb = np.array([int(colour[i:i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(BLIND[blindness]) @ linear, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(to_xyz) @ seen / [0.9505, 1, 1.089]
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_a_method_has_one_colour_that_everybody_tells_apart():
    """Each series of a picture has its own of the table; what stands in one picture is 10 apart in
    CIELAB, whatever cones a reader lacks, and darker than white by 25."""
    drawn = [["density", "JRS"], ["density + JRS", "density + growth of x⁻ alone"],
             ["positive pairs", "negative pairs"]]
    for experiment in experiments.EXPERIMENTS.values():
        if experiment.picture and experiment.picture != "levels":
            drawn.append([name for name, *_ in experiments.cells(experiment.rows)])
    assert len(drawn) > 9 and ["Triplet", "Triplet+L2Norm", "Triplet+MDR"] in drawn
    for series in drawn:
        assert {*series} <= {*figures.COLOURS}
        for blindness in BLIND:
            seen = [lab(figures.COLOURS[name], blindness) for name in series]
            assert all(colour[0] < 75 for colour in seen), series
            for one, other in itertools.combinations(seen, 2):
                assert np.linalg.norm(one - other) > 10, (series, blindness)
    for name, method in (("Triplet + MDR, λ = 0.2", "Triplet+MDR"), ("Triplet + L2Norm",
                                                                     "Triplet+L2Norm")):
        assert figures.colour_of(name, 5) == figures.COLOURS[method]
    assert figures.colour_of("mdr-glyphs", 8) == figures.PALETTE[1]
    assert figures.COLOURS["density"] == figures.COLOURS["DML-DA contrastive"]
    assert figures.COLOURS["JRS"] == figures.COLOURS["JRD"]


def test_a_notebooks_backend_does_no_harm():
    pytest.importorskip("matplotlib")
    subprocess.run([sys.executable, "-c", "from report import figures; figures.panels(1)"],
                   check=True, cwd=ROOT, env=os.environ | {
                       "MPLBACKEND": "module://matplotlib_inline.backend_inline"})


def test_curves_of_any_runs(out, report, pictures, tmp_path):
    """A setting is the mean of its seeds, a folder itself, finished or not; epochs without R@1 are
    left out of its panel alone; seeds that stand at different epochs share what both have."""
    for name, log in {
            "mdr-glyphs-s0": """{"epoch": 1, "loss": 4.0}
                                {"epoch": 2, "loss": 2.0, "R@1": 0.5, "seen R@1": 0.75}""",
            "mdr-glyphs-s1": """{"epoch": 1, "loss": 6.0}
                                {"epoch": 2, "loss": 4.0, "R@1": 0.25}
                                {"epoch": 3, "loss": 1.0, "R@1": 0.5}""",
            "mdr-glyphs-s1-s0": """{"epoch": 1, "R@1": 0.125}""",       # another setting's name
            "jrd-glyphs-s0": ""}.items():
        Path(out, name).mkdir(parents=True)
        Path(out, name, "log.jsonl").write_text(log)
        Path(out, name, "config.json").write_text(f'{{"seed": {name[-1]}}}')
    for name, message in (
            ("jrd-glyphs-s0", "nothing to draw: not every value has run, or no epoch"),
            ("mdr-cub", f"no run mdr-cub with a log.jsonl under {out}: there are jrd-glyphs, mdr")):
        assert message in report("--curves", name)[2]
    one, two, three = names = "mdr-glyphs", "mdr-glyphs-s1", "mdr-glyphs-s1-s0"
    told = report("--curves", *names, "--out", tmp_path / "a.png")[1]
    assert told.startswith(f"note: {one}: seed 0 to epoch 2 of 3; beyond, the mean is of the other "
                           "seeds\n") and told.count("beyond") == 1
    loss, r1 = "training loss, of each its own objective", figures.AXES["R@1"]
    titles = pictures["a.png"].pop("titles")
    assert pictures["a.png"] == {
        (loss, one): [[1, 5], [2, 3], [3, 1]], (loss, two): [[1, 6], [2, 4], [3, 1]],
        (r1, one): [[2, 37.5], [3, 50]], (r1, two): [[2, 25], [3, 50]],
        (r1, three): [[1, 12.5]], (figures.AXES["seen R@1"], one): [[2, 75]]}
    assert titles == ["",                               # two seeds have no band
                      f"seeds 0, 1: {one}\nseed 1: {two}",
                      f"seeds 0, 1: {one}\nseed 1: {two}\nseed 0: {three}", "seed 0"]


def test_the_pages_lines_for_curves_elsewhere(out, monkeypatch):
    """A log into pandas, where it is installed, and into TensorBoard, here a stand-in."""
    page = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
    of_pandas, of_tensorboard = re.findall(
        r"^```python\n(.*?)^```", page.partition("### Curves elsewhere")[2].partition("\n## ")[0],
        re.M | re.S)
    folder = Path(out, "mdr-glyphs-s0")
    folder.mkdir(parents=True)
    (folder / "log.jsonl").write_text("""{"epoch": 1, "loss": 4.0, "levels": [1.0, 2.0]}
{"epoch": 2, "loss": 2.0, "levels": [1.0, 2.0], "R@1": 0.5}
""")
    monkeypatch.chdir(folder.parent.parent)
    writer, stand_in = Mock(), MagicMock()
    stand_in.SummaryWriter.return_value.__enter__.return_value = writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)
    exec(of_tensorboard, {})
    stand_in.SummaryWriter.assert_called_once_with(Path("tensorboard/mdr-glyphs-s0"))
    assert [call.args for call in writer.add_scalar.call_args_list] == [
        ("epoch", 1, 1), ("loss", 4.0, 1), ("epoch", 2, 2), ("loss", 2.0, 2), ("R@1", 0.5, 2)]
    names = {"pandas": pytest.importorskip("pandas")}
    exec(of_pandas, names)
    assert names["log"]["loss"].tolist() == [4, 2]


def test_what_a_picture_of_curves_has_not_is_said(out, report, pictures, tmp_path):
    """Of seen R@1, which jrd.py's log has not, its result has the last epoch, a point; of a run
    that is not finished it has nothing.  No picture speaks of bands that it has not."""
    folders = ran(out, JRD, 0.5, 0.6, 0.7) + ran(out, "mdr.py --dataset glyphs", 0.4, 0.5, 0.6)
    for folder in folders:
        row, result = {"epoch": 3, "loss": 2.0, "R@1": 0.5}, folder / "result.json"
        if "mdr" in folder.name:
            row["seen R@1"] = 0.75
        (folder / "log.jsonl").write_text(json.dumps(row))
        whole = json.loads(result.read_text())
        whole["last epoch"]["epoch"] = 3
        result.write_text(json.dumps(whole))
    words = "--curves", "jrd-glyphs", "mdr-glyphs", "--out"
    told = report(*words, tmp_path / "a.png")[1]
    assert told.splitlines()[0] == "note: jrd-glyphs has seen R@1 of its last epoch alone"
    assert pictures["a.png"][figures.AXES["seen R@1"], "jrd-glyphs"] == [[3, 90]]
    assert pictures["a.png"][figures.AXES["seen R@1"], "mdr-glyphs"] == [[3, 75]]
    shown = "seeds 0, 1, 2; bands: 95% intervals, from three seeds on"
    assert pictures["a.png"]["titles"][0] == shown
    for folder in folders:
        if folder.name[-1] == "2":
            shutil.rmtree(folder)
    (folders[0] / "result.json").unlink()
    (folders[1] / "result.json").unlink()
    told = report(*words, tmp_path / "b.png")[1]
    assert told.splitlines()[0] == "note: jrd-glyphs has seen R@1 of no epoch"
    assert pictures["b.png"]["titles"][0] == "seeds 0, 1"


@pytest.mark.parametrize("file, content", [
    ("config.json", '{"lr": '), ("result.json", "{}"), ("log.jsonl", '{"epoch": 1, "lo'),
    ("log.jsonl", ""), ("log.jsonl", None)])                            # deleted
def test_a_damaged_run_folder_is_named(file, content, out, report):
    (folder,) = ran(out, JRD, 0.5)
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)
    status, _, err = report("--dataset", "glyphs", "--paper", "jrd", "--table", "1")
    assert status == 2 and err.count("\n") == 1 and re.search(f"{folder.name}.*{file}", err)
    (folder / "config.json").unlink()
    assert f"{folder.name} has no config.json" in report()[2]


# ---------------------------------------------------------------------------- run_all.sh
@pytest.fixture
def run_all(tmp_path):
    """What starts run_all.sh with a stand-in for Python that plans three commands, of which mdr.py
    fails; it writes its calls to tmp_path / "log"."""
    stub, log = tmp_path / "my python", tmp_path / "log"
    stub.write_text(f"""#!/usr/bin/env bash
    echo "$*" >> {log}
    case "$*" in
        *--plan*) echo "plan: 3 runs" >&2
                  printf 'python %s\\n' 'jrd.py --seed 0' 'mdr.py --seed 0' 'jrd.py --seed 1'
                  exit "${{PLAN:-0}}" ;;
        *--list*) echo "python listed" ;;
        "-m report"*) echo the report ;;
        mdr.py*) echo "mdr.py: trouble" >&2; exit 2 ;;
        *) [ -z "${{SLOW:-}}" ] || exec sleep 60
           echo "${{DML_CORES:-all}} ${{OMP_NUM_THREADS:-all}}" >> {log}.cores
           echo "$MALLOC_TRIM_THRESHOLD_ $MALLOC_MMAP_MAX_" >> {log}.malloc
           echo "last epoch fine" ;;
    esac
    """)
    stub.chmod(0o755)
    log.touch()
    return lambda *words, **env: subprocess.Popen(
        ["bash", ROOT / "run_all.sh", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, cwd=tmp_path, env=os.environ | {"PYTHON": str(stub)} | env)


def ends(process):
    return *process.communicate(timeout=60), process.returncode


@pytest.mark.parametrize("jobs", "12")
def test_run_all_goes_on_after_a_failure_and_says_so(jobs, run_all, tmp_path):
    """... and how many minutes are left, here by a clock that goes on one at each look."""
    clock, words = tmp_path / "bin" / "date", "--table 2c"
    clock.parent.mkdir()
    clock.write_text(f"#!/bin/sh\necho >> '{clock}.log'\n"
                     f"echo $((60 * $(wc -l < '{clock}.log')))\n")
    clock.chmod(0o755)
    words_of_jobs = ["--jobs", jobs] if jobs == "1" else [f"--jobs={jobs}"]
    stdout, stderr, status = ends(run_all(*words_of_jobs, "--out", "my report", *words.split(),
                                          PATH=f"{clock.parent}:{os.environ['PATH']}"))
    plan, *called, report = (tmp_path / "log").read_text().splitlines()
    assert plan == f"-m report --plan --dataset real {words}"
    assert sorted(called) == ["jrd.py --seed 0", "jrd.py --seed 1", "mdr.py --seed 0"]
    assert report == f"-m report --dataset real {words} --out my report"
    assert stdout.endswith("the report\n")
    assert status == 1 and "failed: python mdr.py --seed 0\n" in stderr
    assert stdout.count("last epoch fine") == 2 and "mdr.py: trouble" in stdout + stderr
    assert "-- 3 of 3, about 0 minutes left" in stdout
    if jobs == "1":
        assert re.findall("about (.*) minutes left", stdout) == ["2", "1", "0"]
    kept = "1000000000000 0"                            # by glibc, of what is freed
    assert (tmp_path / "log.malloc").read_text().splitlines() == [kept] * 2


def test_the_jobs_of_run_all_share_its_cores(run_all, tmp_path, monkeypatch):
    """Threads and the workers that read photos; one job at a time has all."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for jobs, share in (("1", "all"), ("2", str(max(1, command_line.cores() // 2)))):
        ends(run_all("--jobs", jobs))
        told = (tmp_path / "log.cores").read_text().splitlines()
        assert told == [f"{share} {share}"] * 2
        (tmp_path / "log.cores").unlink()
    for share in ("1", "9999", "0", "x"):
        monkeypatch.setenv("DML_CORES", share)
        assert command_line.cores() == (1 if share == "1" else len(os.sched_getaffinity(0)))


def test_run_all_has_its_help_wherever_it_is_called(tmp_path):
    (tmp_path / "a link").symlink_to(ROOT)
    done = subprocess.run(["bash", "a link/run_all.sh", "--help"], cwd=tmp_path, text=True,
                          capture_output=True)
    assert (done.returncode, done.stderr) == (0, "") and "--jobs N" in done.stdout


def test_run_all_tells_of_missing_datasets_and_wrong_arguments(run_all, tmp_path):
    stdout, _, status = ends(run_all("--paper", "jrd", PLAN="3"))
    assert "the report" in stdout and status == 1
    for wrong in ("1", "2"):                    # a traceback, an argument
        assert ends(run_all(PLAN=wrong)) == ("", "plan: 3 runs\n", int(wrong))
    for words in (["--jobs", "0"], ["--jobs"], ["--jobs=x"], ["--out"], ["--quick", "--runs", "a.tar.xz", "--paper", "jrd"]):
        stdout, stderr, status = ends(run_all(*words))
        assert (stdout, stderr.count("\n"), status) == ("", 1, 2)
        assert stderr.startswith("run_all.sh: ")
    assert ends(run_all("--list")) == (f"{tmp_path}/my\\ python listed\n", "", 0)


@pytest.mark.parametrize("words", [
    "--plan", "--dataset glyphs --plan", "--quick --plan --seeds 3", "--compare a b", "--curves=a",
    "--curves a b --out c.png", "--sheet runs/a/last.pt", "--sheet=runs/a/last.pt", "--annotate",
    "--sort R@1 --runs r", "--pairs runs/a/last.pt", "--version"])
def test_run_all_does_what_else_the_report_does_alone(words, run_all, tmp_path):
    """Nothing trains after a plan; a missing dataset is told once, by the report's own status."""
    for missing in ("0", "3"):
        stdout, stderr, status = ends(run_all(*words.split(), PLAN=missing))
        assert (tmp_path / "log").read_text() == f"-m report {words}\n"
        if "--plan" in words:
            assert (stdout.count("\n"), stderr, status) == (3, "plan: 3 runs\n", int(missing))
        else:
            assert (stdout, stderr, status) == ("the report\n", "", 0)
        (tmp_path / "log").write_text("")


def test_run_alls_plan_is_the_reports(out, report):
    """... to the word, where a dataset is missing, too."""
    pretend(listed(report, "--quick")[0])
    for words in (["--quick", "--plan"], ["--plan", "--dataset", "cub", "--paper", "mdr"]):
        done = subprocess.run(["bash", ROOT / "run_all.sh", *words, "--runs", out], text=True,
                              capture_output=True, env=os.environ | {"PYTHON": sys.executable})
        assert (done.returncode, done.stdout, done.stderr) == report(*words)
    assert done.returncode == 3 and done.stderr.count("missing: no cub under ") == 1


@pytest.mark.parametrize("jobs, last", [("1", "jrd.py --seed 0"), ("2", "jrd.py --seed 1")])
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_run_all_stops_as_a_whole(run_all, end, jobs, last, tmp_path):
    process, log = run_all("--jobs", jobs, SLOW="1"), tmp_path / "log"
    while last not in log.read_text():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(end)
    _, stderr, status = ends(process)
    assert status == -end and "-m report --dataset" not in log.read_text()
    assert stderr == "plan: 3 runs\nrun_all.sh: stopped; call again to continue\n"


def test_the_papers_lambda_is_not_the_sum_of_its_errors():
    """E5: with all images as bank and with a tenth of them, the paper's own error on unseen classes
    is above its λ.  So the report says that the two λ are not comparable."""
    papers = {}
    for entry in tables.PAPER_NUMBERS:
        if (entry["paper"], entry["dataset"]) == ("jrd", "cub"):
            papers[entry["table"], entry["row"], entry["metric"]] = entry["value"]
    errors = [1 - papers["1", "JRD", "R@1"] / 100,
              1 - papers["3", "JRD (alpha=1)", "R@1 (fraction)"]]
    assert errors == pytest.approx([0.321, 0.494])
    assert papers["3", "JRD (alpha=1)", "lambda_NN"] == 0.31
    for dataset in ("glyphs", "cub128"):
        page = (ROOT / "results" / dataset / "report.md").read_text(encoding="utf-8")
        table = page.partition("## JRD, Table 3")[2].partition("\n## ")[0]
        assert experiments.EXPERIMENTS["jrd 3"].note in table


def test_a_backbone_for_the_runs_of_a_paper(report):
    """DML-DA's own network by one command; rows that name a backbone of theirs are left out."""
    words = "--paper", "dml_da", "--backbone", "googlenet_bvlc", "--weights", "caffe.pth"
    commands = listed(report, *words)
    assert len(commands) > 50
    for command in commands:
        assert command.count("--backbone googlenet_bvlc --weights caffe.pth") == 1, command
    for command in listed(report, "--paper", "mdr", "--backbone", "resnet50"):
        assert re.findall("--backbone (\\S+)", command) == ["resnet50"]
    for table in ("2a", "1a"):
        texts = report("--list", "--paper", "mdr", "--table", table, "--backbone", "resnet50")
        assert (texts[0] == 2) == (table == "2a")
    for words in (("--list", "--backbone", "resnet50"), ("--backbone", "resnet50"),
                  ("--list", "--paper", "dml_da", "--backbone", "googlenet_bvlc"),
                  ("--plan", "--paper", "dml_da", "--backbone", "googlenet_bvlc"),
                  ("--list", "--paper", "mdr", "--backbone", "nothing")):
        status, _, error = report(*words)
        assert status == 2 and len(error.splitlines()) == 1 and "backbone" in error

"""The experiment list, the plan, tables, figures, archives, on run folders made here."""
import csv
import importlib
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from operator import itemgetter
from pathlib import Path

import pytest

from conftest import ROOT, edit_settings
from report import __main__ as command, experiments, figures, tables
from support.files import UserError
from support.runs import code_of, run_folder


def rows_of(*words):
    """The rows of a list, with their runs in --runs, as report has them"""
    args = command.parse_args(list(map(str, words)))
    return command.listed(args, args.runs[0], True)


def runs_of(*words):
    return experiments.all_runs(rows_of(*words))


def write_report(folder, *words):
    """A report -> its Markdown, {cells of table, row and metric: a row of tables.csv}"""
    folder.mkdir(exist_ok=True)
    text = command.write_report(rows_of(*words), words[words.index("--dataset") + 1], folder)
    with open(folder / "tables.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    cells = {(row["table"], row["row"], row["metric"]): row for row in rows}
    assert len(cells) == len(rows)
    return text, cells


def table_rows(text):
    """The cells of all lines of tables"""
    return [[cell.strip() for cell in line.strip("|").split("|")]
            for line in text.splitlines() if line.startswith("|")]


def pretend(run, r1=0.5, seen=0.9, epochs=None, hits=None):
    """Make the folder of a run as if it had been trained, R@1 = r1."""
    config = {**vars(run.cfg), "paper": run.paper, "commit": "c0ffee", "weights_sha256": "c0de",
              "images": {}, "code": code_of(run.paper)}
    recall = {f"R@{k}": r1 + 0.01 * i for i, k in enumerate(run.cfg.ks)}
    line = recall | {"seen R@1": seen, "NMI": r1 + 0.1, "norm mean": 2.0, "norm cv": r1 / 5,
                     "val R@1": r1, "levels": [-2.9, 0.1, 3.2],
                     "positive pairs by level": [0.6, 0.3, 0.1],
                     "negative pairs by level": [0.1, 0.6, 0.3]}
    last = line | {"epoch": 3, "MAP@R": 0.2, "R@1, l2-normalized": r1 - 0.1, "hits": hits,
                   "lambda": [r1, 0.01], "d_H": [0.9, 0.01],
                   "ten parts": {m: [v - 0.2, 0.01] for m, v in recall.items()}}
    best = {m: v + 0.05 for m, v in recall.items()} | {"epoch": 2}
    run.folder.mkdir(parents=True)
    (run.folder / "config.json").write_text(json.dumps(config))
    (run.folder / "log.jsonl").write_text("".join(
        json.dumps({"epoch": e + 1, **line}) + "\n" for e in range(epochs or 3)))
    if epochs is None:
        (run.folder / "result.json").write_text(json.dumps(
            {"last epoch": last, "best on test": best, "pretrained backbone": {"R@1": 0.4}}))
    for name in ("config", "why_other", "result", "log", "figures"):
        vars(run).pop(name, None)


def ran(out, script, flags, *r1, dataset="glyphs"):
    """Runs of seeds 0, 1, ..., each with its R@1 or None, that were not there yet"""
    runs = []
    for seed, value in enumerate(r1):
        runs.append(experiments.training(script, dataset, flags, seed, out, True))
        if value is not None and not runs[-1].folder.exists():
            pretend(runs[-1], value)
    return runs


@pytest.fixture
def out(tmp_path):
    return str(tmp_path / "runs")


# ---------------------------------------------------------------------------- the list and the plan
@pytest.mark.parametrize("dataset, least", [("real", 150), ("glyphs", 90), ("cub128", 90)])
def test_a_command_stands_for_one_folder_and_one_setting(dataset, least):
    """Names of folders: no character that Windows forbids, room below 260, more than case apart.
    The headlines come first."""
    rows = rows_of("--dataset", dataset, "--seeds", 1, "--weights", "my own", "--precision", "fp32",
                   "--list")
    runs = experiments.all_runs(rows)
    settings = {json.dumps([run.paper, vars(run.cfg)]) for run in runs}
    assert len(settings) == len(runs) == len({run.folder.name.lower() for run in runs}) > least
    for run in runs:
        assert re.fullmatch(r"[A-Za-z0-9._-]{1,80}", run.folder.name)
        python, script, *words = shlex.split(run.command)
        cfg = importlib.import_module(script.removesuffix(".py")).parse_args(words)
        assert python == "python" and run_folder(run.paper, cfg) == run.folder
        assert (cfg.weights, cfg.precision) == ("my own", "fp32")
    headlines = {run.folder for row in rows if row.key in experiments.HEADLINES
                 for run in row.runs}
    assert headlines == {run.folder for run in runs[:len(headlines)]}
    stand_in = {*experiments.EXPERIMENTS} - {"mdr 1b", "mdr 2a"}        # on CUB or Cars
    assert dataset == "real" or {row.key for row in rows} == stand_in


def test_the_plan_has_what_the_list_has_but_what_is_finished_or_would_be_refused(out, typed):
    finished, begun, edited, older, *_ = runs = runs_of("--quick", "--runs", out)
    for run in (finished, edited, older):
        pretend(run)
    pretend(begun, epochs=10)
    edit_settings(edited.folder, lr=7, workers=3)
    edit_settings(older.folder, code="older")
    listed = typed("report", "--quick", "--list", "--runs", out)[1].splitlines()
    status, left, plan = typed("report", "--quick", "--plan", "--runs", out)
    assert [run.command for run in runs] == listed
    assert left.splitlines() == [listed[1], *listed[4:]] and status == 0
    assert plan.startswith("plan: 6 runs for 3 tables and figures, 1 finished, 1 begun, 2 stale, ")
    assert f"{edited.folder} holds a run with other lr (there 7, now " in plan
    assert plan.count("Delete stale folders to train them anew") == 1
    assert older.why_other.startswith("with other code (there 'older', now ")
    assert "2 folders hold other runs" in typed("report", "--quick", "--runs", out)[2]
    codes = {row[0]: row[-1] for row in table_rows(typed("report", "--runs", out)[1])}
    assert codes[older.folder.name.removesuffix("-s0")] == "older"
    status, left, plan = typed("report", "--paper", "mdr", "--table", "2c", "--plan", "--runs", out)
    assert left == "" and status == 3 and "missing: no cub under" in plan


# ---------------------------------------------------------------------------- gains
def test_gains_are_within_a_seed(out, tmp_path):
    """Seeds differ by far more than the two settings do, and seed 0 has only one of them."""
    ran(out, "jrd", "--alpha 0", 0.9, 0.3, 0.5, 0.7)
    for n, told, half in ((2, "+1.05", 0),
                          (3, "+1.10 [+0.85, +1.35]", 4.302653 * 0.1 / 3 ** 0.5)):
        ran(out, "jrd", "", None, *(0.31, 0.511, 0.712)[:n])
        text, cells = write_report(tmp_path / "r", "--dataset", "glyphs", "--table", 1, "--runs",
                                   out)
        assert [f"gain over AMSoftmax, n = {n}", told] in [row[1:3] for row in table_rows(text)]
        cell = cells["1", "JRD", "R@1"]
        assert (cell["baseline"], cell["gain's seeds"]) == ("AMSoftmax", str(n))
        assert float(cell["gain's half-width"] or 0) == pytest.approx(half)


def test_quick_ends_with_the_pairs_their_pictures_and_the_next_command(out, typed, monkeypatch):
    """One pair is not run; of a run that has its last.pt a sheet is drawn."""
    runs = runs_of("--quick", "--runs", out)
    for run, r1 in zip(runs[:4], (0.48, 0.50, 0.49, 0.51)):
        pretend(run, r1)
    (runs[1].folder / "last.pt").touch()
    sheets = []
    monkeypatch.setattr(figures, "draw_nearest", lambda *args: sheets.append(args))
    status, text, _ = typed("report", "--quick", "--runs", out)
    assert status == 0 and sheets == [
        (Path(out, "report-quick", "sheet.png"), runs[1].folder / "last.pt")]
    assert table_rows(text)[2:] == [
        ["Triplet+MDR", "50.0", "Triplet", "48.0", "+2.00"],
        ["DML-DA N-pair", "51.0", "N-pair", "49.0", "+2.00"],
        ["JRD", "not run", "AMSoftmax", "not run", "–"]]
    assert text.splitlines()[-1].endswith(f": bash run_all.sh --seeds 3 --quick --runs {out}")
    pytest.importorskip("matplotlib")
    assert f"wrote {out}/report-quick/curves.png" in text


# ---------------------------------------------------------------------------- what was run
def test_two_settings_are_compared_within_a_seed(out, typed):
    """Names of settings, of runs, of folders; two seeds of three have both and no interval."""
    runs = ran(out, "jrd", "", 0.50, 0.60, 0.9)
    ran(out, "jrd", "--alpha 0", 0.48, 0.56)
    for names in (("jrd-glyphs", "jrd-glyphs-alpha0"),
                  (f"{out}/jrd-glyphs-s0", "jrd-glyphs-alpha0-s1")):
        _, text, _ = typed("report", "--compare", *names, "--runs", out)
        told = {row[0]: row[1:] for row in table_rows(text)}
        assert told["last epoch"][:2] == ["jrd-glyphs", "jrd-glyphs-alpha0"]
        assert told["R@1"] == told["val R@1"] == ["50.00, 60.00", "48.00, 56.00", "+3.00"]
        assert told["norm cv"][2] == "+0.0060" and told["levels, 1"][1] == "-2.9000, -2.9000"
        assert text.endswith("The settings differ in alpha (1.0 and 0.0).\n")
        assert "Seeds 0, 1, which both have; " in text
    edit_settings(runs[1].folder, code="edited")
    assert "code (edited and " in tables.compare(out, *names)
    Path(out, "jrd-glyphs-s0-copy").mkdir()
    for name in ("jrd-glyphs-alpha", "mdr-glyphs", "jrd-glyphs-s0-copy"):
        with pytest.raises(UserError, match=f"no run {name} with a result.json "):
            tables.compare(out, "jrd-glyphs", name)
    ran(out, "mdr", "", 0.5)
    text = tables.compare(out, "jrd-glyphs", "mdr-glyphs")
    assert "paper (jrd and mdr)" in text


def test_archives_are_read_like_a_folder(out, tmp_path, typed):
    """One archive per family of runs; the commands of a table have no trace of where it was."""
    archives = [tmp_path / f"{seed}.tar.xz" for seed in range(2)]
    for run, archive in zip(ran(out, "jrd", "", 0.5, 0.6), archives):
        with tarfile.open(archive, "w:xz") as file:
            file.add(run.folder, run.folder.name)
    report = "--dataset", "glyphs", "--table", 1, "--out", tmp_path / "report"
    told = [re.sub("made by `.*?`", "", typed("report", "--runs", *where, *words)[1])
            for where in ([out], archives) for words in ((), report)]
    assert told[:2] == told[2:] and all("55.0 ± 7.1" in text for text in told)
    assert ",python jrd.py --dataset glyphs," in (tmp_path / "report/tables.csv").read_text()
    whole = archives[0].read_bytes()
    for wrong, message in (([out, out], "; --runs takes one folder, or archives (.tar.xz)\n"),
                           (archives, f"cannot read the archive {archives[0]}")):
        if wrong == archives:
            archives[0].write_bytes(whole[:200] + bytes([whole[200] ^ 255]) + whole[201:])
        assert message in typed("report", "--runs", *wrong)[2]


# ---------------------------------------------------------------------------- the tables
def test_every_figure_of_the_papers_methods_stands_in_a_table():
    key, cells = itemgetter("paper", "table", "row", "dataset", "metric"), {}
    rows = rows_of("--dataset", "real", "--runs", "none", "--seeds", 1)
    for _, rows in itertools.groupby(rows, lambda row: (row.key, row.dataset)):
        for cell in tables.paper_table(list(rows))[1]:
            cells[key(cell)] = cell["paper's figure"], cell["ours"]
    for e in tables.PAPER_NUMBERS:
        if e["reported_by"] == "this paper" and e["row"] != "HDC":
            assert cells[key(e)] == (e["value"], "not run")


def test_ours_stand_beside_the_papers(out, tmp_path, typed):
    words = "--dataset", "cub", "--runs", out
    assert ": no run of the list is finished; " in typed("report", *words)[2]
    ran(out, "mdr", "", 0.68, 0.69, 0.70, dataset="cub")
    text, cells = write_report(tmp_path / "r", *words)
    assert "made at commit c0ffee, with" in text and "| 50.7 [49.6, 51.8] |" in text    # 95%
    shown = table_rows(text[text.index("| **Triplet+MDR**"):])
    assert [row[:3] for row in shown[:3]] == [
        ["**Triplet+MDR**", "paper, CUB", "68.8 ± 0.5"],
        ["", "**ours**, last epoch, n = 3", "**69.0 ± 1.0**"],
        ["", "best on test*", "74.0 ± 1.0"]]
    assert ["", "not run", "–", "–", "–", "–"] in table_rows(text)
    cell = cells["1a", "Triplet+MDR", "R@1"]
    assert (cell["seeds"], cell["paper's figure"]) == ("3", "68.8")
    assert float(cell["ours"]) == pytest.approx(69)
    assert cell["command"] == "python mdr.py --dataset cub"


@pytest.mark.parametrize("dataset, wide, papers", [
    ("glyphs", 64, [["paper, CUB", "68.8 ± 0.5"], ["paper, Cars", "88.5 ± 0.3"]]),
    ("cub128", 512, [["paper, CUB", "68.8 ± 0.5"]])])
def test_on_a_stand_in(dataset, wide, papers, out, tmp_path):
    """The paper's figures, on glyphs on each of their datasets, stand above ours; no other
    backbones nor 256 × 256; widths on glyphs are an eighth."""
    words = "--dataset", dataset, "--paper", "mdr", "--seeds", 4, "--runs", out
    rows, n = rows_of(*words), len(papers)
    for row in rows:
        for run in row.runs * (row.table in ("1a", "3")):
            run.folder.exists() or pretend(run, 0.6 if row.name == "Triplet+MDR" else 0.5)
    text, cells = write_report(tmp_path / "r", *words)
    assert ("> **Not the papers' protocol.**" in text) == (dataset == "cub128")
    assert "256x256" not in text and "R50" not in text
    shown = table_rows(text[text.index("| **Triplet+MDR**"):])
    assert [row[1:3] for row in shown[:n]] == papers
    assert shown[n][1:] == ["**ours**, last epoch, n = 4"] + [
        f"**{mean}.0 ± 0.0**" for mean in (60, 61, 62, 63, 20, 70, 90)]
    assert shown[n + 1][1] == "gain over Triplet, n = 4"
    assert cells["3", "Triplet+MDR (L2 norm at inference)", "R@1"]["ours"] == "50.0"
    baselines = {row.name: row.baseline for row in rows if row.table == "fig3a"}
    for d in (wide // 8, wide // 4, wide // 2, wide):
        assert baselines.pop(f"Triplet, d = {d}") is None
        for name in ("Triplet+L2Norm", "Triplet+MDR"):
            assert baselines.pop(f"{name}, d = {d}") == f"Triplet, d = {d}"
    assert not baselines


def test_where_a_figure_is_read(out):
    """Table 2's in ten parts, Table 3's as fractions.  What a run does not measure (α without
    DML-DA) is not called not run."""
    ran(out, "jrd", "", 0.5)
    for table, name, metric, value in (
            ("1", "JRD", "R@1", 50), ("2", "JRD", "R@1", 30),
            ("3", "JRD (alpha=1)", "lambda_NN", 0.5), ("3", "JRD (alpha=1)", "R@1 (fraction)", 0.3)):
        rows = rows_of("--paper", "jrd", "--table", table, "--dataset", "glyphs", "--runs", out)
        for cell in tables.paper_table(rows)[1]:
            if (cell["row"], cell["metric"]) == (name, metric):
                assert cell["ours"] == pytest.approx(value)
                assert (cell["before training"] == 40) == (table == "1")
    rows = rows_of("--dataset", "glyphs", "--table", "fig3", "--runs", out)
    pretend(rows[0].runs[0])
    cells = {cell["metric"]: cell["ours"] for cell in tables.paper_table(rows[:1])[1]}
    assert (cells["R@1"], cells["alpha mean"]) == (50, None)


# ---------------------------------------------------------------------------- the figures
def test_figures_from_logs_and_results(out, tmp_path, monkeypatch, capsys):
    """A sweep without one of its values is skipped, and what was drawn before goes; without
    matplotlib, or with one that does not import, a line says so."""
    pytest.importorskip("matplotlib")
    rows = [row for row in rows_of("--dataset", "glyphs", "--seeds", 2, "--runs", out)
            if row.key in ("jrd fig2", "mdr fig4", "mdr fig6")]
    first, *runs = experiments.all_runs(rows)
    pretend(first, 0.4)
    (tmp_path / "jrd-fig2.png").write_bytes(b"from before")
    text = command.write_report(rows, "glyphs", tmp_path)
    elsewhere = rows[0]._replace(dataset="cub", runs=[first])
    assert list(figures.sweep([elsewhere, *rows[:2]], ["R@1"])) == [
        (("JRD on CUB, backbone small", "α", figures.AXES["R@1"]), rows[0].point[0], [(0, {0: 40})])]
    assert capsys.readouterr().err == (
        "skipped jrd-fig2.png: nothing to draw: not every value has run, or no epoch\n")
    assert not [*tmp_path.glob("*.png")] and ".png" not in text
    for i, run in enumerate(runs):
        pretend(run, 0.4 + 0.001 * i)
    one_seed = rows[0]._replace(runs=rows[0].runs[:1])
    for _, _, points in figures.sweep([one_seed, rows[1]], ["R@1"]):
        assert points[0][1].keys() == {0}
    curves = list(figures.levels([row for row in rows if row.table == "fig6"], ()))
    assert [(name, round(x, 6), shares) for _, name, ((x, shares),) in curves[:2]] == [
        ("positive pairs", -2.9, {0: 60, 1: 60}), ("positive pairs", 0.1, {0: 30, 1: 30})]
    text = command.write_report(rows, "glyphs", tmp_path)
    drawn = ["jrd-fig2.png", "mdr-fig4.png", "mdr-fig6.png"]
    assert all((tmp_path / name).stat().st_size > 10_000 and f"({name})" in text for name in drawn)

    def broken(name):
        raise ValueError("matplotlib is broken\nhere")
    monkeypatch.setattr(figures.importlib, "import_module", broken)
    command.write_report(rows, "glyphs", tmp_path)
    for line, name in zip(capsys.readouterr().err.splitlines(), drawn, strict=True):
        assert line.startswith(f"skipped {name}: ") and "matplotlib" in line and "pip" in line


def test_a_notebooks_backend_does_no_harm():
    pytest.importorskip("matplotlib")
    subprocess.run([sys.executable, "-c", "from report import figures; figures.panels(1)"],
                   check=True, cwd=ROOT, env=os.environ | {"MPLBACKEND": "module://not.there"})


def test_curves_of_any_runs(out, monkeypatch, typed):
    """A setting is the mean of its seeds, a folder itself, finished or not; epochs without R@1 are
    left out of its panel alone; seeds that stand at different epochs share what both have."""
    drawn, loss = {}, "training loss, of each its own objective"
    for name, log in {
            "mdr-glyphs-s0": """{"epoch": 1, "loss": 4}
                                {"epoch": 2, "loss": 2, "R@1": 0.5, "seen R@1": 0.75}""",
            "mdr-glyphs-s1": """{"epoch": 1, "loss": 6}
                                {"epoch": 2, "loss": 4, "R@1": 0.25}
                                {"epoch": 3, "loss": 1, "R@1": 0.5}""",
            "mdr-glyphs-s1-s0": """{"epoch": 1, "R@1": 0.125}""",       # another setting's name
            "jrd-glyphs-s0": ""}.items():
        Path(out, name).mkdir(parents=True)
        Path(out, name, "log.jsonl").write_text(log)
        Path(out, name, "config.json").touch()
    for name, message in (
            ("jrd-glyphs-s0", "nothing to draw: not every value has run, or no epoch"),
            ("mdr-cub", f"no run mdr-cub with a log.jsonl under {out}: there are jrd-glyphs, mdr")):
        assert message in typed("report", "--curves", name, "--runs", out)[2]
    monkeypatch.setattr(figures, "draw_curves", lambda path, curves, title: drawn.update(
        {(y_label, name): points for (*_, y_label), name, points in curves}))
    one, two, three = names = "mdr-glyphs", "mdr-glyphs-s1", "mdr-glyphs-s1-s0"
    typed("report", "--curves", *names, "--runs", out)
    r1, seen = figures.AXES["R@1"], figures.AXES["seen R@1"]
    assert drawn == {
        (loss, one): [(1, {0: 4, 1: 6}), (2, {0: 2, 1: 4}), (3, {1: 1})],
        (loss, two): [(1, {1: 6}), (2, {1: 4}), (3, {1: 1})],
        (r1, one): [(2, {0: 50, 1: 25}), (3, {1: 50})], (r1, two): [(2, {1: 25}), (3, {1: 50})],
        (r1, three): [(1, {0: 12.5})], (seen, one): [(2, {0: 75})]}


@pytest.mark.parametrize("file, content", [
    ("config.json", '{"lr": '), ("result.json", "{}"), ("log.jsonl", '{"epoch": 1, "lo'),
    ("log.jsonl", None)])                                               # deleted
def test_a_damaged_run_folder_is_named(file, content, out):
    run = runs_of("--quick", "--runs", out)[0]
    pretend(run)
    (run.folder / file).unlink()
    if content:
        (run.folder / file).write_text(content)
    with pytest.raises(UserError, match=f"{run.folder.name}.*{file}"):
        assert run.result and run.log
    (run.folder / "config.json").unlink()
    with pytest.raises(UserError, match=f"{run.folder.name} has no config.json"):
        tables.table(out)


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
        *) [ -z "${{SLOW:-}}" ] || exec sleep 60; echo "last epoch fine" ;;
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
    words = "--table 2c --out my runs"
    stdout, stderr, status = ends(run_all("--jobs", jobs, "--table", "2c", "--out", "my runs"))
    plan, *called, report = (tmp_path / "log").read_text().splitlines()
    assert plan == f"-m report --plan --dataset real {words}"
    assert sorted(called) == ["jrd.py --seed 0", "jrd.py --seed 1", "mdr.py --seed 0"]
    assert report == f"-m report --dataset real {words}" and stdout.endswith("the report\n")
    assert status == 1 and "failed: python mdr.py --seed 0\n" in stderr
    assert stdout.count("last epoch fine") == 2 and "mdr.py: trouble" in stdout + stderr
    assert "-- 3 of 3, about 0 minutes left" in stdout


def test_run_all_tells_of_missing_datasets_and_wrong_arguments(run_all, tmp_path):
    stdout, _, status = ends(run_all("--paper", "jrd", PLAN="3"))
    assert "the report" in stdout and status == 1
    for wrong in ("1", "2"):                    # a traceback, an argument
        assert ends(run_all(PLAN=wrong)) == ("", "plan: 3 runs\n", int(wrong))
    stdout, stderr, status = ends(run_all("--jobs", "0"))
    assert (stdout, stderr.count("\n"), status) == ("", 1, 2)
    assert ends(run_all("--list")) == (f"{tmp_path}/my\\ python listed\n", "", 0)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_run_all_stops_as_a_whole(run_all, end, tmp_path):
    process, log = run_all("--jobs", "2", SLOW="1"), tmp_path / "log"
    while "jrd.py --seed 1" not in log.read_text():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(end)
    assert ends(process)[2] == -end and "-m report --dataset" not in log.read_text()

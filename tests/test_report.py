"""The experiment list, the plan, tables, figures, archives, on run folders made here."""
import argparse
import csv
import importlib
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

import pytest
import torch

import common
from conftest import ROOT, edit_settings
from report import __main__ as command, experiments, figures, tables


def args_of(*words):
    """As main has them: --runs is one folder."""
    args = command.parse_args([str(word) for word in words])
    args.runs = args.runs[0]
    return args


def rows_of(*words):
    return experiments.selected(args_of(*words))


def under(out):
    """The command line of the runs in a folder."""
    return args_of("--dataset", "real", "--runs", out)


def write_report(folder, *words):
    """The report of a command line -> its text, the names of what was written"""
    args = args_of(*words)
    return command.write_report(experiments.selected(args), args, folder)


def table_rows(text):
    """The cells of all lines of tables"""
    return [[cell.strip() for cell in line.strip("|").split("|")]
            for line in text.splitlines() if line.startswith("|")]


def csv_cells(folder, *columns):
    """tables.csv as {cells of these columns: row}"""
    with open(folder / "tables.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    cells = {tuple(row[column] for column in columns): row for row in rows}
    assert len(cells) == len(rows)
    return cells


def pretend(run, r1=0.5, seen=0.9, epochs=None, hits=None):
    """Make the folder of a run as if it had been trained, R@1 = r1."""
    cfg = vars(run.cfg)
    run.folder.mkdir(parents=True)
    (run.folder / "config.json").write_text(json.dumps(
        {k: v for k, v in cfg.items() if k != "changed"}
        | {"commit": "c0ffee", "weights_sha256": "c0de", "code": "same", "images": {}}))
    recall = {f"R@{k}": r1 + 0.01 * i for i, k in enumerate(cfg["ks"])}
    line = {**recall, "seen R@1": seen, "NMI": r1 + 0.1, "norm mean": 2.0, "norm cv": r1 / 5,
            "val R@1": r1, "levels": [-2.9, 0.1, 3.2], "positive pairs by level": [0.6, 0.3, 0.1],
            "negative pairs by level": [0.1, 0.6, 0.3]}
    log = [{"epoch": e + 1, **line} for e in range(epochs or 3)]
    (run.folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    if epochs is None:
        (run.folder / "result.json").write_text(json.dumps({
            "last epoch": {"epoch": 3, **recall, "NMI": r1 + 0.1, "MAP@R": 0.2, "seen R@1": seen,
                           "R@1, l2-normalized": r1 - 0.1, "lambda": [r1, 0.01], "hits": hits,
                           "d_H": [0.9, 0.01],
                           "ten parts": {m: [v - 0.2, 0.01] for m, v in recall.items()}},
            "best on test": {"epoch": 2, **{m: v + 0.05 for m, v in recall.items()}},
            "pretrained backbone": {"R@1": 0.4}, "seconds": 1}))
    for name in ("config", "state", "result", "log"):
        run.__dict__.pop(name, None)


@pytest.fixture
def out(tmp_path):
    return str(tmp_path / "runs")


# ---------------------------------------------------------------------------- the list and the plan
@pytest.mark.parametrize("dataset, least", [("real", 150), ("glyphs", 90), ("cub128", 90)])
def test_a_command_stands_for_one_folder_and_one_setting(dataset, least):
    """Names of folders: no character that Windows forbids, room below 260, more than case apart."""
    runs = experiments.all_runs(rows_of("--dataset", dataset, "--seeds", 1), under("runs"))
    settings = {json.dumps([run.paper, vars(run.cfg)]) for run in runs}
    assert len(settings) == len(runs) == len({run.folder.name.lower() for run in runs}) > least
    for run in runs:
        assert re.fullmatch(r"[A-Za-z0-9._-]{1,80}", run.folder.name)
        python, script, *words = shlex.split(run.command)
        cfg = importlib.import_module(script.removesuffix(".py")).parse_args(words)
        assert python == "python" and common.run_folder(run.paper, cfg) == run.folder


@pytest.mark.parametrize("words", ["--quick", "--dataset real", "--paper mdr --table 2c --seeds 2"])
def test_list_and_plan_agree(words, out, typed):
    listed = typed("report", *words.split(), "--list", "--runs", out)[1].splitlines()
    status, left, plan = typed("report", *words.split(), "--plan", "--runs", out)
    assert plan.startswith(f"plan: {len(listed)} runs for ") and len(set(listed)) == len(listed)
    if words == "--quick":
        assert left.splitlines() == listed and status == 0
    else:
        assert left == "" and status == 1                       # no datasets here: it says which
        assert "missing: no cub under" in plan and "CUB_200_2011.tgz" in plan


def test_what_is_finished_is_not_left(out, typed):
    runs = experiments.all_runs(rows_of("--quick", "--runs", out), under(out))
    assert len(runs) == 14
    pretend(runs[0])
    pretend(runs[1], epochs=10)
    pretend(runs[2])
    edit_settings(runs[2].folder, lr=7)
    _, left, plan = typed("report", "--quick", "--plan", "--runs", out)
    assert left.splitlines() == [run.command for run in runs[1:]]
    assert "14 runs" in plan and "1 finished, 1 begun, 1 stale, 11 to do" in plan
    assert f"{runs[2].folder} holds other settings: delete it" in plan


def test_two_settings_are_compared_within_a_seed(out, typed):
    """By hand: 2 and 4 points apart, three seeds and two; names of settings, runs, folders."""
    rows = rows_of("--dataset", "glyphs", "--paper", "jrd", "--table", "1", "--runs", out)
    for row, r1 in zip(rows, ((0.50, 0.60, 0.9), (0.48, 0.56))):
        for run, value in zip(experiments.runs_of(row, under(out)), r1):
            pretend(run, value)
    half = 12.706204736174698 * 2 ** 0.5 / 2 ** 0.5             # t(0.975, 1) s / √2, s = √2
    for names in (("jrd-glyphs", "jrd-glyphs-alpha0"),
                  (f"{out}/jrd-glyphs-s0", "jrd-glyphs-alpha0-s1")):
        _, text, _ = typed("report", "--compare", *names, "--runs", out)
        told = {row[0]: row[1:] for row in table_rows(text)}
        assert told["last epoch"][:2] == ["jrd-glyphs", "jrd-glyphs-alpha0"]
        assert told["R@1"] == told["val R@1"] == ["50.00, 60.00", "48.00, 56.00", "+3.00",
                               f"[{3 - half:+.2f}, {3 + half:+.2f}]"]
        assert told["norm cv"][2] == "+0.0060" and told["levels, 1"][1] == "-2.9000, -2.9000"
        assert text.endswith("The settings differ in alpha (1.0 and 0.0).\n")
        assert "Seeds 0, 1 (one side has 2 too); " in text
    edit_settings(experiments.runs_of(rows[0], under(out))[1].folder, code="edited")
    assert "code of the script (edited and " in typed("report", "--compare", *names, "--runs", out)[1]
    for name in ("jrd-glyphs-alpha", "mdr-glyphs"):
        with pytest.raises(common.UserError, match=f"no finished run {name} "):
            tables.compare(out, "jrd-glyphs", name)
    jrds, mdrs = (experiments.training(p, "glyphs", "", 1, out, None, None) for p in ("jrd", "mdr"))
    pretend(mdrs)
    for run in (jrds, mdrs):
        edit_settings(run.folder, paper=run.paper)
    text = tables.compare(out, "jrd-glyphs", "mdr-glyphs")
    assert "paper (jrd and mdr)" in text and "code of the script" not in text


def test_cub128_has_the_experiments_on_cub_and_cars_and_the_headlines_first():
    args = args_of("--dataset", "cub128", "--weights", "my own.pth", "--precision", "fp32")
    rows = experiments.selected(args)
    assert {row.key for row in rows} == set(experiments.EXPERIMENTS) - {("mdr", "1b")}
    assert {(row.dataset, row.seeds) for row in rows} == {("cub128", 3)}
    assert {tables.label(row) for row in rows if row.flags is None} == {
        "Triplet+MDR (256x256)", "R18", "R18+MDR", "R50", "R50+MDR", "IBN", "IBN+MDR"}
    runs = experiments.all_runs(rows, args)
    assert {run.folder for run in runs[:33]} == {
        run.folder for row in rows if row.key in experiments.HEADLINES
        for run in experiments.runs_of(row, args)}
    own = {"resnet18": "resnet18_pqf.pth", "googlenet_bvlc": "googlenet_bvlc.pth"}
    assert {run.cfg.precision for run in runs} == {"fp32"}
    for run in runs:                                # the user's weights, where a row has none
        weights = re.findall(r"--weights ('.*?'|\S+)", run.command)
        assert weights == [own.get(run.cfg.backbone, "'my own.pth'")]


def test_archives_are_read_like_a_folder(out, tmp_path, typed):
    """One archive per family of runs; the commands of a table have no trace of where it was."""
    archives = [tmp_path / f"{seed}.tar.xz" for seed in range(2)]
    for seed, archive in enumerate(archives):
        pretend(experiments.training("jrd", "glyphs", "", seed, out, None, None), 0.5 + 0.1 * seed)
        with tarfile.open(archive, "w:xz") as file:
            file.add(f"{out}/jrd-glyphs-s{seed}", f"jrd-glyphs-s{seed}")
    report = "--dataset", "glyphs", "--table", 1, "--out", tmp_path / "report"
    told = [re.sub("made by `.*?`", "", typed("report", "--runs", *where, *words)[1])
            for where in ([out], archives) for words in ((), report)]
    assert told[:2] == told[2:] and all("55.0 ± 7.1" in text for text in told)
    assert "jrd-glyphs-s1' already exists" in typed("report", "--runs", *archives, archive)[2]
    assert "/" not in csv_cells(tmp_path / "report", "row", "metric")["JRD", "R@1"]["command"]
    whole = archives[0].read_bytes()                # cut off, and with one other byte
    for damaged in (whole[:-40], whole[:200] + bytes([whole[200] ^ 255]) + whole[201:]):
        archives[0].write_bytes(damaged)
        status, _, error = typed("report", "--runs", *archives)
        assert status == 2 and f"cannot read the archive {archives[0]}" in error


# ---------------------------------------------------------------------------- the tables
def test_every_figure_of_the_papers_methods_stands_in_a_table():
    args = args_of("--dataset", "real", "--runs", "none")
    key = itemgetter("paper", "table", "row", "dataset", "metric")
    cells = {key(cell): (cell["paper's figure"], cell["ours"]) for row in experiments.selected(args)
             for cell in tables.cells(row._replace(seeds=1), args)[0]}
    assert len(tables.PAPER_NUMBERS) == 532
    for e in tables.PAPER_NUMBERS:
        if e["reported_by"] == "this paper" and e["row"] != "HDC":
            assert cells[key(e)] == (e["value"], "not run")


def test_ours_stand_beside_the_papers(out, tmp_path):
    """Without any run a report says how to start them, and holds no table."""
    words = "--dataset", "cub", "--runs", out
    text, written = write_report(tmp_path / "r", *words)
    assert written == ["report.md"] == [path.name for path in (tmp_path / "r").iterdir()]
    assert "\n0 of 425 runs " in text and "`bash run_all.sh --dataset cub`" in text
    for seed, r1 in enumerate((0.68, 0.69, 0.70)):
        pretend(experiments.training("mdr", "cub", "", seed, out, None, None), r1)
    text, written = write_report(tmp_path / "r", *words)
    assert written[1:3] == ["tables.csv", "claims.csv"] and "Not run: J1, J2, " in text
    rows = table_rows(text)
    assert ["", "not run", "–", "–", "–", "–"] in rows and "made at commit c0ffee." in text
    ours = next(i for i, row in enumerate(rows) if "**ours**" in row[1])
    assert rows[ours - 1][:3] == ["**Triplet+MDR**", "paper", "68.8 ± 0.5"]
    assert rows[ours][:4] == ["", "**ours**, last epoch, n = 3", "**69.0 ± 1.0**", "**70.0 ± 1.0**"]
    assert rows[ours + 1][1:3] == ["difference", "+0.2"]
    assert rows[ours + 2][1:3] == ["best on test*", "74.0 ± 1.0"]
    cell = csv_cells(tmp_path / "r", "table", "row", "metric")["1a", "Triplet+MDR", "R@1"]
    assert (float(cell["ours"]), cell["seeds"], cell["paper's figure"]) == (
        pytest.approx(69), "3", "68.8")
    assert cell["command"] == "python mdr.py --dataset cub"


def test_in_miniature(out, tmp_path):
    """Other backbones and 256 × 256 have no miniature; widths are an eighth; the papers' figures on
    each of their datasets stand above ours, without a difference."""
    words = "--dataset", "glyphs", "--paper", "mdr", "--seeds", 4, "--runs", out
    rows = rows_of(*words)
    for row in rows:
        if row.key[1] in ("1a", "3") and row.flags is not None:
            for run in experiments.runs_of(row, under(out)):
                run.folder.exists() or pretend(run, 0.4 if "3 ×" in row.name else
                                               0.5 + 0.1 * (row.flags == ""))
    text, _ = write_report(tmp_path / "r", *words)
    shown = table_rows(text)
    assert sum(row[1] == "no miniature" for row in shown) == 7
    assert "MDR, Table 1b" not in text and "difference |" not in text
    at = next(i for i, row in enumerate(shown) if row[0] == "**Triplet+MDR**")
    assert shown[at][1:3] == ["paper, CUB", "68.8 ± 0.5"]
    assert shown[at + 1][:3] == ["", "paper, Cars", "88.5 ± 0.3"]
    assert shown[at + 2][1:] == ["**ours**, last epoch, n = 4", *(
        f"**{mean}.0 ± 0.0**" for mean in (60, 61, 62, 63, 20, 70, 90))]
    cells = csv_cells(tmp_path / "r", "table", "row", "metric")
    assert float(cells["1a", "Triplet+MDR, 3 × the rate", "R@1"]["ours"]) == 40
    assert cells["1a", "Triplet+MDR", "R@1"]["rate"] == "0.001"
    assert cells["3", "Triplet+MDR (L2 norm at inference)", "R@1"]["ours"] == "50.0"
    assert {row.name[2] for row in rows if row.key[1] == "fig3a"} == {8, 16, 32, 64}


def test_on_cub128(out, tmp_path):
    """The paper's figures on CUB beside ours, not subtracted, below a box on what differs."""
    words = "--dataset", "cub128", "--runs", out, "--paper", "jrd"
    for row in rows_of(*words, "--table", "1"):
        for run in experiments.runs_of(row, under(out)):
            pretend(run, 0.5 + 0.1 * (row.flags == ""))
    text, _ = write_report(tmp_path / "r", *words)
    assert text.startswith("# Report on cub128\n\n> **Not the papers' protocol.**")
    assert "by SHA-256: c0de" in text and "| difference |" not in text
    rows = table_rows(text)
    ours = next(i for i, row in enumerate(rows) if "**60.0 ± 0.0**" in row)
    assert rows[ours - 1][:3] == ["**JRD**", "paper, CUB", "67.9"]
    assert ["paper, CUB", "50.7 [49.6, 51.8]"] in [row[1:3] for row in rows]
    assert rows[ours + 1][1:3] == ["best on test*", "65.0 ± 0.0"]
    assert any(row[0] == "J1" and row[2:4] == ["cub128", "+10.000"] for row in rows)


def test_what_a_run_does_not_measure_is_not_called_not_run(out):
    """Without DML-DA there is no α; a table on glyphs has a row for it all the same."""
    rows = rows_of("--dataset", "glyphs", "--paper", "dml_da", "--table", "fig3", "--runs", out)
    pretend(experiments.runs_of(rows[0], under(out))[0])
    cells = {cell["metric"]: cell for cell in tables.cells(rows[0], under(out))[0]}
    assert (cells["R@1"]["ours"], cells["alpha mean"]["ours"]) == (50, None)
    lines, _ = tables.paper_table(rows, under(out))
    assert "**–**" in lines[2] and "not run" in lines[4]


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


# ---------------------------------------------------------------------------- the figures
def test_figures_from_logs_and_results(out, tmp_path, monkeypatch, capsys):
    """What has not run is skipped, as a sweep with one of its values, and what was drawn before
    goes; without matplotlib a line says so."""
    pytest.importorskip("matplotlib")
    drawable = {("jrd", "fig2"), ("mdr", "fig4"), ("mdr", "fig6")}
    args = args_of("--dataset", "glyphs", "--runs", out)
    rows = [row for row in rows_of("--dataset", "glyphs", "--seeds", 2) if row.key in drawable]
    pretend(experiments.runs_of(rows[0], args)[0], 0.4)
    (tmp_path / "jrd-fig2.png").write_bytes(b"from before")
    text, drawn = command.write_report(rows, args, tmp_path)
    assert capsys.readouterr().err == "skipped jrd-fig2.png: not every value has run\n"
    assert not list(tmp_path.glob("*.png")) and ".png" not in text + "".join(drawn)
    for i, run in enumerate(experiments.all_runs(rows, args)[1:]):
        pretend(run, 0.4 + 0.001 * i)
    text, (_, _, _, *drawn) = command.write_report(rows, args, tmp_path)
    assert set(drawn) == {f"{paper}-{name}.png" for paper, name in drawable}
    for name in drawn:
        assert (tmp_path / name).stat().st_size > 10_000 and f"({name})" in text
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    command.write_report(rows, args, tmp_path)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[0] for line in lines] == [f"skipped {name}" for name in drawn]
    assert all("matplotlib" in line and "pip install" in line for line in lines)
    assert not list(tmp_path.glob("*.png"))


def test_curves_of_any_runs(out, tmp_path, monkeypatch, typed):
    """A setting is the mean of its seeds, a folder itself, finished or not; epochs without R@1 are
    left out of its panel alone; seeds that stand at different epochs share what both have."""
    def write(name, *rows):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    one = {"epoch": 1, "loss": 4.0}
    write("mdr-glyphs-s0", one, {"epoch": 2, "loss": 2.0, "R@1": 0.5, "seen R@1": 0.75})
    write("mdr-glyphs-s1", {"epoch": 1, "loss": 6.0}, {"epoch": 2, "loss": 4.0, "R@1": 0.25},
          {"epoch": 3, "loss": 1.0, "R@1": 0.5})
    write("mdr-glyphs-s1-s0", one | {"R@1": 0.125})                     # another setting's name
    write("jrd-glyphs-s0")
    names, drawn = ["mdr-glyphs", "mdr-glyphs-s1", "mdr-glyphs-s1-s0"], {}
    with monkeypatch.context() as patch:
        patch.setattr(figures, "draw_curves", lambda path, curves: drawn.update(curves))
        typed("report", "--curves", *names, "--runs", out)
    loss, r1, seen = drawn.values()
    assert loss["mdr-glyphs"] == [(1, [4.0, 6.0]), (2, [2.0, 4.0]), (3, [1.0])]
    assert r1 == {"mdr-glyphs": [(2, [50.0, 25.0]), (3, [50.0])],
                  "mdr-glyphs-s1": [(2, [25.0]), (3, [50.0])], "mdr-glyphs-s1-s0": [(1, [12.5])]}
    assert seen == {"mdr-glyphs": [(2, [75.0])]}
    for name, message in (("jrd-glyphs-s0", "no epoch is logged yet in jrd-glyphs-s0"),
                          ("mdr-cub", f"no run mdr-cub under {out}: there are jrd-glyphs, mdr")):
        assert message in typed("report", "--curves", name, "--runs", out)[2]
    pytest.importorskip("matplotlib")
    typed("report", "--curves", *names, "--runs", out, "--out", tmp_path / "c.svg")
    assert "<svg" in (tmp_path / "c.svg").read_text(encoding="utf-8")


def test_a_sheet_has_names_and_frames(tmp_path, monkeypatch):
    """Nearest first, the query not among them; with a gallery from that.

    On a line: a0 0, b0 1, a1 3, b1 7, of classes a and b."""
    nearest = {"a0": "b0 a1 b1", "b0": "a0 a1 b1", "a1": "b0 a0 b1", "b1": "a1 b0 a0"}
    x, labels = torch.tensor([[0.0], [1.0], [3.0], [7.0]]), torch.tensor([0, 1, 0, 1])
    test, make = common.Split(None, labels, ["a", "b"], [*nearest]), argparse.Namespace
    data, sheets = make(gallery=None, test=test, folder=tmp_path), []
    monkeypatch.setattr(figures, "rebuild", lambda *_: (make(embed=None), None, data))
    monkeypatch.setattr(figures.common, "embeddings", lambda *_: {
        "test": x, "labels": labels, "gallery": x})
    monkeypatch.setattr(figures, "draw_sheet", lambda path, rows: sheets.append(rows))
    figures.draw_nearest(tmp_path / "sheet.png", tmp_path / "best.pt")
    assert len(sheets[0]) == 2
    for (_, kind, file), found in sheets[0]:
        distances, others = zip(*found)
        assert [other.stem for *_, other in others] == nearest[file.stem].split()
        assert kind == file.stem[0] and all(c == other.stem[0] for _, c, other in others)
        assert all(distance % 1 == 0 for distance in distances)
    data.gallery = test
    figures.draw_nearest(tmp_path / "sheet.png", tmp_path / "best.pt")
    query, found = sheets[-1][0]
    assert found[0][1] == query                                         # now with itself


@pytest.mark.parametrize("file, content", [("config.json", "[1]"), ("result.json", "{}"),
                                           ("log.jsonl", '{"epoch": 1, "lo'),
                                           ("log.jsonl", None)])        # deleted
def test_a_damaged_run_folder_is_named(file, content, out):
    run = experiments.all_runs(rows_of("--quick", "--runs", out), under(out))[0]
    pretend(run)
    (run.folder / file).unlink()
    if content:
        (run.folder / file).write_text(content)
    with pytest.raises(common.UserError, match=f"{run.folder.name}.*{file}"):
        assert run.state == "finished" and run.result and run.log


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
    stdout, stderr, status = ends(run_all("--jobs", jobs, "--table", "2c", "--out", "my runs"))
    called = (tmp_path / "log").read_text().splitlines()
    assert called[0] == "-m report --plan --dataset real --table 2c --out my runs"
    assert sorted(called[1:4]) == ["jrd.py --seed 0", "jrd.py --seed 1", "mdr.py --seed 0"]
    assert called[4] == "-m report --dataset real --table 2c --out my runs"
    assert status == 1 and "failed: python mdr.py --seed 0\n" in stderr
    assert stdout.count("last epoch fine") == 2 and stdout.endswith("the report\n")
    assert "mdr.py: trouble" in stdout + stderr


def test_run_all_tells_of_missing_datasets_and_wrong_arguments(run_all, tmp_path):
    stdout, _, status = ends(run_all("--paper", "jrd", PLAN="1"))
    assert "the report" in stdout and status == 1
    assert ends(run_all("--paper", "jrd", PLAN="2")) == ("", "plan: 3 runs\n", 2)
    stdout, stderr, status = ends(run_all("--jobs", "0"))
    assert (stdout, stderr.count("\n"), status) == ("", 1, 2)
    assert ends(run_all("--list")) == (f"{tmp_path}/my\\ python listed\n", "", 0)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_run_all_stops_as_a_whole(run_all, end, tmp_path):
    process, log = run_all("--jobs", "2", SLOW="1"), tmp_path / "log"
    for _ in range(200):
        if "jrd.py --seed 1" in log.read_text():
            break
        time.sleep(0.05)
    process.send_signal(end)
    assert ends(process)[2] == -end and "-m report --dataset" not in log.read_text()

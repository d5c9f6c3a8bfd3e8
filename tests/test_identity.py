"""A run is code × images × settings × seed: no other is shown or continued as if it were it."""
import json
import re

import numpy as np
import pytest

import common
import eval as evaluation
import jrd
from conftest import ROOT, make_folder
from report import tables
from support import runs


# ---------------------------------------------------------------------------- code
@pytest.mark.parametrize("pattern, replacement, counts", [
    (r"return ams \+ cfg.alpha \* reg", "return ams - cfg.alpha * reg", True),
    (r"\"mrd\": \(1,\)", '"mrd": (2,)', True),
    (r'"""Eq. 10-11: L_JRS', '"""Equation 10 and 11: L_JRS', False),            # docstrings
    (r'^"""JRD', '"""Joint', False),
    (r"    # U1: eps and", "    # U1, eps and", False),                         # a comment
    (r"(return gram\[different\].mean\(\)) if", r"\1  if", False)])            # layout
def test_a_run_is_told_by_its_scripts_code(pattern, replacement, counts, tmp_path, monkeypatch):
    before, source = runs.code_of("jrd"), (ROOT / "jrd.py").read_text(encoding="utf-8")
    edited, times = re.subn(pattern, replacement, source, count=1, flags=re.M)
    assert times == 1 and edited != source
    (tmp_path / "jrd.py").write_text(edited, encoding="utf-8")
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    assert (runs.code_of("jrd") != before) == counts


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """run(*flags): a training of a second -> what it printed"""
    from support import glyphs
    monkeypatch.setitem(glyphs.GLYPHS, "train", (range(400, 404), 2))
    monkeypatch.setitem(glyphs.GLYPHS, "test", (range(450, 454), 2))
    monkeypatch.setattr(jrd, "batches", lambda labels, cfg, epoch: [list(range(8))])

    def train(*flags):
        jrd.train(jrd.parse_args(["--epochs", "2", "--out", str(tmp_path / "runs"), *flags]))
        return capsys.readouterr().out
    train.folder = tmp_path / "runs" / "jrd-glyphs-epochs2-s0"
    return train


def test_a_run_of_other_code_is_neither_shown_nor_continued(run, monkeypatch, capsys):
    run()
    assert "is finished" in run()
    commit = json.loads((run.folder / "config.json").read_text())["commit"]
    monkeypatch.setattr(runs, "code_of", lambda paper: "edited")
    with pytest.raises(common.UserError) as error:
        run()
    assert str(error.value) == (
        f"{run.folder} holds a run of another version of jrd.py (commit {commit}); --name LABEL "
        "puts this run beside it, --again in its place")
    assert "last epoch" not in capsys.readouterr().out
    (run.folder / "result.json").rename(run.folder / "result")
    state = (run.folder / "last.pt").read_bytes()
    with pytest.raises(common.UserError, match="of another version of jrd.py"):
        run()
    assert (run.folder / "last.pt").read_bytes() == state
    assert "run " + str(run.folder.with_name("jrd-glyphs-epochs2-my-idea-s0")) in run(
        "--name", "my-idea")
    assert "is finished" not in run("--again")
    assert "is finished" in run()


@pytest.mark.parametrize("field, value", [("code", 3), ("code", []), ("code", None), ("code", "x"),
                                          ("images", 3), ("images", {"train": 1}), ("images", []),
                                          ("dataset", None), ("splits", 7)])
def test_damaged_fields_end_in_one_line_or_are_accepted(field, value, run):
    run()
    config = json.loads((run.folder / "config.json").read_text()) | {field: value}
    (run.folder / "config.json").write_text(json.dumps(config))
    try:
        run()
    except common.UserError as error:
        assert "\n" not in str(error)


# ---------------------------------------------------------------------------- images
@pytest.fixture
def photos(tmp_path, capsys):
    """photos(*flags): a training of a second on six classes, in photos.folder -> its output"""
    folder = make_folder(tmp_path / "photos", [3] * 6, side=20)

    def train(*flags):
        jrd.train(jrd.parse_args(["--dataset", str(photos_at[0]), "--backbone", "small", "--epochs",
                                  "1", "--workers", "0", "--out", str(tmp_path / "runs"),
                                  "--data-root", str(tmp_path), *flags]))
        return capsys.readouterr().out
    photos_at = [folder]
    train.at, train.run = photos_at, tmp_path / "runs" / "jrd-photos-epochs1-backbonesmall-s0"
    return train


def test_a_class_that_moved_into_test_is_refused(photos):
    photos()
    (folder,) = photos.at
    (folder / "class00").rename(folder / "zebra")
    with pytest.raises(common.UserError, match="holds a run on other images: train, test differ; "
                       "--name LABEL"):
        photos()


def test_other_images_are_refused_and_a_folder_that_moved_is_not(photos, tmp_path):
    photos()
    (folder,) = photos.at
    photos.at[0] = tmp_path / "elsewhere" / "photos"
    photos.at[0].parent.mkdir()
    folder.rename(photos.at[0])
    assert "is finished" in photos()
    (photos.at[0] / "class05" / "0.png").rename(photos.at[0] / "class05" / "9.png")
    with pytest.raises(common.UserError, match="holds a run on other images: test differ; --name"):
        photos()


def test_eval_says_that_images_are_not_those_of_the_run(photos, tmp_path, capsys):
    photos()
    (folder,) = photos.at
    moved = tmp_path / "elsewhere"
    folder.rename(moved)
    arguments = [str(photos.run / "last.pt"), "--dataset", str(moved), "--data-root", str(tmp_path)]
    with pytest.raises(common.UserError, match="unknown dataset"):
        evaluation.main(evaluation.parse_args(arguments[:1]))
    evaluation.main(evaluation.parse_args(arguments))
    assert "note:" not in capsys.readouterr().out
    (moved / "class00").rename(moved / "zebra")
    evaluation.main(evaluation.parse_args(arguments + ["--export", str(tmp_path / "e.npz")]))
    out = capsys.readouterr().out
    assert "note: these are not the images of the run: train, test differ" in out
    with np.load(tmp_path / "e.npz") as file:
        assert [str(file["classes"][label]) for label in file["labels"]] == [
            path.split("/")[0] for path in file["paths"]]
        assert len(file["seen_paths"]) == len(file["seen"])


def test_a_comparison_of_different_test_images_is_refused(photos, tmp_path, capsys, run):
    photos()
    run("--out", str(tmp_path / "runs"))
    with pytest.raises(common.UserError, match="were tested on different images"):
        tables.compare(tmp_path / "runs", "jrd-photos-epochs1-backbonesmall", "jrd-glyphs-epochs2")
    run("--name", "b")
    for name, digest in (("jrd-glyphs-epochs2-b-s0", "1"), (run.folder.name, "2")):
        config = run.folder.with_name(name) / "config.json"
        other = json.loads(config.read_text()) | {"images": {"test": digest}}
        config.write_text(json.dumps(other))
    with pytest.raises(common.UserError, match="different images .test differ.: their figures"):
        tables.compare(tmp_path / "runs", "jrd-glyphs-epochs2-b", "jrd-glyphs-epochs2")

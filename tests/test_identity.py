"""A run is code × images × settings × seed: no other is shown or continued as if it were it."""
import argparse
import json
import re
import shutil

import numpy as np
import pytest

import common
import eval as evaluation
import jrd
from conftest import ROOT, make_folder
from report import experiments, tables
from support import identity, runs


# ---------------------------------------------------------------------------- code
@pytest.fixture
def edited(tmp_path, monkeypatch):
    """edited(file, pattern, replacement) -> {name: digest} of jrd.py's code after that edit."""
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "support", copy / "support", ignore=shutil.ignore_patterns("__py*"))
    for name in ("jrd.py", "common.py", "eval.py"):
        shutil.copy(ROOT / name, copy)
    monkeypatch.setattr(identity, "ROOT", copy)

    def edit(file, pattern, replacement):
        source = (copy / file).read_text(encoding="utf-8")
        after, times = re.subn(pattern, replacement, source, count=1, flags=re.S | re.M)
        assert times == 1 and after != source
        (copy / file).write_text(after, encoding="utf-8")
        identity.code_of.cache_clear()
        return identity.code_of("jrd")
    yield edit
    identity.code_of.cache_clear()


def test_an_edit_is_named_by_its_function(edited):
    before = identity.code_of("jrd")
    assert {"jrd.jrs", "jrd.objective", "jrd.Network.forward", "jrd.VARIANTS", "eval.recall_at_k",
            "common.train_loader", "images.augmented", "runs.Run.steps"} <= set(before)
    after = edited("jrd.py", r"return ams \+ cfg.alpha \* reg", "return ams - cfg.alpha * reg")
    assert identity.other_code(before, after) == ["jrd.objective"]
    after = edited("common.py", r"^def send", "def added():\n    pass\n\n\ndef send")
    assert identity.other_code(before, after) == ["jrd.objective"], "no run uses it"
    after = edited("support/images.py", r"torch.randperm\(n", "torch.randperm(n + 0")
    assert identity.other_code(before, after) == ["jrd.objective", "images.shuffled"]
    after = edited("jrd.py", r"\"mrd\": \(1,\)", '"mrd": (2,)')
    assert identity.other_code(before, after) == [
        "jrd.VARIANTS", "jrd.objective", "images.shuffled"]


@pytest.mark.parametrize("file, pattern, replacement", [
    ("jrd.py", r'"""Eq. 10-11: L_JRS', '"""Equation 10 and 11: L_JRS'),            # a docstring
    ("jrd.py", r"    # U1: eps and", "    # U1, eps and"),                          # a comment
    ("jrd.py", r"    different = different_class\(labels\)  +#", "    different = different_class("
     "labels)\n    #"),                                                             # layout
    ("jrd.py", r"alpha=1.0, s=20.0", "alpha=2.0, s=20.0"),                          # a setting
    ("jrd.py", r'help="Table 4"', 'help="kernels"'),                                # the options
    ("support/command_line.py", r"finite int or float", "finite number"),
    ("support/layouts.py", "left out beside train", "set aside beside train")])      # a remark
def test_an_edit_of_prose_changes_nothing(file, pattern, replacement, edited):
    assert identity.other_code(identity.code_of("jrd"), edited(file, pattern, replacement)) == []


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


def other_code(monkeypatch):
    """From now on jrd.jrs is another function."""
    code = identity.code_of("jrd") | {"jrd.jrs": "edited"}
    monkeypatch.setattr(runs, "code_of", lambda paper: code)


def test_a_finished_run_of_other_code_is_not_shown(run, monkeypatch, capsys):
    run()
    assert "is finished" in run()
    other_code(monkeypatch)
    with pytest.raises(common.UserError) as error:
        run()
    assert str(error.value) == (f"{run.folder} holds a finished run with other code: jrd.jrs "
                                "differs; --name LABEL puts this run beside it, --again in its "
                                "place")
    assert "last epoch" not in capsys.readouterr().out
    assert "run " + str(run.folder.with_name("jrd-glyphs-epochs2-my-idea-s0")) in run(
        "--name", "my-idea")
    assert "is finished" not in run("--again")
    assert "is finished" in run()


def test_an_unfinished_run_of_other_code_is_not_continued(run, monkeypatch):
    run()
    (run.folder / "result.json").unlink()
    state = (run.folder / "last.pt").read_bytes()
    other_code(monkeypatch)
    with pytest.raises(common.UserError, match="holds a run begun with other code: jrd.jrs"):
        run()
    assert (run.folder / "last.pt").read_bytes() == state


def test_a_run_from_before_there_were_fingerprints_is_accepted(run, monkeypatch):
    run()
    config = json.loads((run.folder / "config.json").read_text())
    del config["code"], config["images"]
    (run.folder / "config.json").write_text(json.dumps(config))
    out = run()
    assert "does not say which code made it: taken for this one's" in out and "is finished" in out


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


@pytest.mark.parametrize("name", ["a b", "../x", "", "-x", "λ", "a/b"])
def test_names_that_no_folder_can_have(name, capsys):
    with pytest.raises(SystemExit):
        jrd.parse_args([f"--name={name}"])
    assert "must be letters, digits" in capsys.readouterr().err


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


def test_a_class_that_moved_into_test_is_refused_by_name(photos):
    photos()
    (folder,) = photos.at
    (folder / "class00").rename(folder / "zebra")
    (folder / "class02").rename(folder / "class99")
    with pytest.raises(common.UserError) as error:
        photos()
    said = str(error.value)
    assert "holds a run on other images: moved from train to test: class00 (now zebra), class02 " \
        "(now class99); " in said and "no longer" not in said.partition("moved from test")[0]
    (folder / "zebra").rename(folder / "class00")
    (folder / "class99").rename(folder / "class02")
    (folder / "class03").rename(folder / "a-new-first-class")
    with pytest.raises(common.UserError, match="moved from train to test: class02"):
        photos()


def test_other_images_are_refused_and_a_folder_that_moved_is_not(photos, tmp_path):
    photos()
    (folder,) = photos.at
    photos.at[0] = tmp_path / "elsewhere" / "photos"
    photos.at[0].parent.mkdir()
    folder.rename(photos.at[0])
    assert "is finished" in photos()
    (photos.at[0] / "class05" / "0.png").rename(photos.at[0] / "class05" / "9.png")
    with pytest.raises(common.UserError, match="other images in test: class05; --name"):
        photos()


def test_eval_says_where_a_class_of_test_was_trained_on(photos, tmp_path, capsys):
    photos()
    (folder,) = photos.at
    moved = tmp_path / "elsewhere"
    folder.rename(moved)
    (moved / "class00").rename(moved / "zebra")
    (moved / "class01").rename(moved / "class06")
    shutil.copytree(moved / "class02", moved / "class01")
    arguments = [str(photos.run / "last.pt"), "--dataset", str(moved), "--data-root", str(tmp_path)]
    with pytest.raises(common.UserError, match="unknown dataset"):
        evaluation.main(evaluation.parse_args(arguments[:1]))
    evaluation.main(evaluation.parse_args(arguments + ["--export", str(tmp_path / "e.npz")]))
    out = capsys.readouterr().out
    assert "note: these are not the images of the run: " in out
    with np.load(tmp_path / "e.npz") as file:
        assert [str(file["classes"][label]) for label in file["labels"]] == [
            path.split("/")[0] for path in file["paths"]]
        assert len(file["seen_paths"]) == len(file["seen"])
    (moved / "class03").rename(moved / "a"), (moved / "class04").rename(moved / "b")
    evaluation.main(evaluation.parse_args(arguments))
    assert ("warning: the network was trained on 3 of the 4 test classes: class00, class01, "
            "class02") in capsys.readouterr().out


def test_a_comparison_of_different_test_images_is_refused(photos, tmp_path, capsys, run):
    photos()
    run("--out", str(tmp_path / "runs"))
    with pytest.raises(common.UserError, match="were tested on different images"):
        tables.compare(tmp_path / "runs", "jrd-photos-epochs1-backbonesmall", "jrd-glyphs-epochs2")
    run("--name", "b")
    config = run.folder.with_name("jrd-glyphs-epochs2-b-s0") / "config.json"
    other = json.loads(config.read_text()) | {"images": {"gallery": {"x": "1"}}}
    config.write_text(json.dumps(other))
    with pytest.raises(common.UserError, match="images .new in gallery: x.: their figures have"):
        tables.compare(tmp_path / "runs", "jrd-glyphs-epochs2-b", "jrd-glyphs-epochs2")


def test_a_comparison_names_the_functions_that_differ(run, monkeypatch, tmp_path):
    run()
    other_code(monkeypatch)
    run("--name", "my-idea")
    said = tables.compare(tmp_path / "runs", "jrd-glyphs-epochs2-my-idea", "jrd-glyphs-epochs2")
    assert said.endswith("The code differs in jrd.jrs.")


def test_the_plan_counts_runs_of_other_code(run, monkeypatch, tmp_path, capsys):
    """They count as finished; --again lists them to be trained anew, and the header names them."""
    run()
    other = identity.code_of("jrd") | {"jrd.jrs": "edited"}
    monkeypatch.setattr(experiments, "code_of", lambda paper: other)
    args = argparse.Namespace(dataset="glyphs", paper="jrd", table="1", quick=False, seeds=1,
                              out=str(tmp_path / "runs"), weights=None, again=False)
    monkeypatch.setitem(experiments.EXPERIMENTS, ("jrd", "1"), ("", "cub", 1, {
        "JRD": "--epochs 2"}))
    monkeypatch.setattr(experiments, "AT_BOTH_RATES", ())
    rows = experiments.selected(args)
    assert experiments.plan(rows, args) == 0
    out, err = capsys.readouterr()
    assert "1 finished" in err and out == ""
    assert ("1 of the finished runs are of other code than this (jrd.jrs changed since): they "
            "count; --again trains them anew") in err
    args.again = True
    assert experiments.plan(rows, args) == 0
    assert capsys.readouterr().out.endswith(" --again\n")


def test_classes_with_the_same_files_are_not_taken_for_each_other():
    """Photos called 0.bmp, 1.bmp, ... of one size in every class: then names alone tell."""
    assert identity.same_classes({"a": "x"}, {"b": "x"}) == {"a": "b"}
    assert identity.same_classes({"a": "x", "c": "x"}, {"b": "x", "c": "x"}) == {"c": "c"}
    assert identity.same_classes({"a": "x", "c": "y"}, {"b": "x", "d": "x"}) == {}


def test_what_is_left_out_is_said(photos):
    (folder,) = photos.at
    (folder / "empty").mkdir()
    (folder / "class01" / "notes.txt").write_text("no image")
    (folder / "class01" / ".thumbs").mkdir()
    shutil.copy(folder / "class01" / "1.png", folder / "class01" / ".thumbs")
    shutil.copy(folder / "class00" / "1.png", folder / "class05" / "7.png")
    out = photos()
    assert "note: left out, for they have no images: 1 folders, empty\n" in out
    assert "note: left out, for they are no images: 1 files, class01/notes.txt\n" in out
    assert ("note: 1 images of test are in train too, byte for byte: class05/7.png is "
            "class00/1.png\n") in out


def test_weights_are_looked_at_before_any_cache_is_built(photos, tmp_path):
    with pytest.raises(common.UserError, match="no weights file"):
        photos("--weights", str(tmp_path / "none.pth"))
    assert not (tmp_path / ".cache").exists()

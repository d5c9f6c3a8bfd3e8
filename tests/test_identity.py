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


@pytest.mark.parametrize("file, pattern, replacement, name", [
    ("jrd.py", r"return ams \+ cfg.alpha \* reg", "return ams - cfg.alpha * reg", "jrd.objective"),
    ("jrd.py", r"\"mrd\": \(1,\)", '"mrd": (2,)', "jrd.VARIANTS"),
    ("jrd.py", r"self.embedding = nn.Linear\(width", "self.embedding = nn.Linear(1 * width",
     "jrd.Network.__init__"),
    ("jrd.py", r"0\.1 \*\* \(\(epoch", "0.2 ** ((epoch", "jrd.train"),
    ("eval.py", r"places <= k", "places < k", "eval.recall_at_k"),
    ("common.py", r"module.eval\(\)", "module.train()", "common.freeze_batch_norm"),
    ("support/images.py", r"torch.randperm\(n", "torch.randperm(n + 0", "images.shuffled"),
    ("support/ranks.py", r">= nearest\)", "> nearest)", "ranks.first_places"),
    ("support/glyphs.py", r"v2.RandomCrop\(32\)", "v2.RandomCrop(31)", "glyphs.SMALL_TRANSFORMS")])
def test_an_edit_is_named_by_its_function(file, pattern, replacement, name, edited):
    before = identity.code_of("jrd")
    assert identity.other_code(before, edited(file, pattern, replacement)) == [name]


def test_the_names_that_count_exist():
    for file, names in identity.COVERED.items():
        there = {name.split(".")[1] for name, _ in identity._parts(ROOT / file)}
        assert set(names.split()) <= there


def test_versions_that_compute_the_same_are_not_other_code(monkeypatch, tmp_path):
    old, new = {"jrd.jrs": "1", "jrd.mgf": "1"}, {"jrd.jrs": "2", "jrd.mgf": "2", "jrd.added": "3"}
    assert identity.other_code(old, new) == ["jrd.jrs", "jrd.mgf"]
    (tmp_path / "same.json").write_text('{"jrd.jrs": ["1", "2"], "jrd.mgf": ["1", "3"]}')
    monkeypatch.setattr(identity, "EQUIVALENT", tmp_path / "same.json")
    assert identity.other_code(old, new) == ["jrd.mgf"]


@pytest.mark.parametrize("file, pattern, replacement", [
    ("jrd.py", r'"""Eq. 10-11: L_JRS', '"""Equation 10 and 11: L_JRS'),            # a docstring
    ("jrd.py", r"    # U1: eps and", "    # U1, eps and"),                          # a comment
    ("jrd.py", r"    different = different_class\(labels\)  +#", "    different = different_class("
     "labels)\n    #"),                                                             # layout
    ("jrd.py", r"alpha=1.0, s=20.0", "alpha=2.0, s=20.0"),                          # a setting
    ("jrd.py", r'help="Table 4"', 'help="kernels"'),                                # the options
    ("support/command_line.py", r"finite int or float", "finite number"),
    ("common.py", "the network's embeddings are not finite", "not finite"),         # a message
    ("support/runs.py", "f\"last epoch", "f\"final epoch"),                            # a table
    ("support/images.py", "cannot read the image", "no image"),
    ("support/runs.py", "self.started, self.first", "self.first, self.started"),
    ("support/layouts.py", "left out: ", "set aside: ")])      # a remark
def test_an_edit_of_what_makes_no_figure_changes_nothing(file, pattern, replacement, edited):
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


def test_a_run_of_other_code_is_neither_shown_nor_continued(run, monkeypatch, capsys):
    run()
    assert "is finished" in run()
    other_code(monkeypatch)
    with pytest.raises(common.UserError) as error:
        run()
    assert str(error.value) == (f"{run.folder} holds a run with other code: jrd.jrs differs; "
                                "--name LABEL puts this run beside it, --again in its "
                                "place")
    assert "last epoch" not in capsys.readouterr().out
    (run.folder / "result.json").rename(run.folder / "result")
    state = (run.folder / "last.pt").read_bytes()
    with pytest.raises(common.UserError, match="holds a run with other code: jrd.jrs"):
        run()
    assert (run.folder / "last.pt").read_bytes() == state
    assert "run " + str(run.folder.with_name("jrd-glyphs-epochs2-my-idea-s0")) in run(
        "--name", "my-idea")
    assert "is finished" not in run("--again")
    assert "is finished" in run()


def test_a_run_from_before_there_were_fingerprints_is_accepted(run, monkeypatch):
    run()
    config = json.loads((run.folder / "config.json").read_text())
    del config["code"], config["images"]
    (run.folder / "config.json").write_text(json.dumps(config))
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


def test_a_comparison_names_the_functions_that_differ(run, monkeypatch, tmp_path):
    run()
    other_code(monkeypatch)
    run("--name", "my-idea")
    message = tables.compare(tmp_path / "runs", "jrd-glyphs-epochs2-my-idea", "jrd-glyphs-epochs2")
    assert message.endswith("The code differs in jrd.jrs.")


def test_the_plan_counts_runs_of_other_code(run, monkeypatch, tmp_path, capsys):
    """They count as finished; --again lists them to be trained anew, and the header names them."""
    run()
    other = identity.code_of("jrd") | {"jrd.jrs": "edited"}
    monkeypatch.setattr(experiments, "code_of", lambda paper: other)
    args = argparse.Namespace(dataset="glyphs", paper="jrd", table="1", quick=False, seeds=1,
                              out=str(tmp_path / "runs"), weights=None, again=False)
    monkeypatch.setitem(experiments.EXPERIMENTS, ("jrd", "1"), experiments.Experiment(
        "", "cub", 1, {"JRD": "--epochs 2"}))
    rows = experiments.selected(args)
    assert experiments.plan(rows, args) == 0
    out, err = capsys.readouterr()
    assert "1 finished" in err and out == ""
    assert ("1 of the finished runs are of other code than this (jrd.jrs changed since): they "
            "count; --again trains them anew") in err
    args.again = True
    assert experiments.plan(rows, args) == 0
    assert capsys.readouterr().out.endswith(" --again\n")


def test_copies_of_trained_images_are_named_by_check(photos, capsys):
    (folder,) = photos.at
    shutil.copy(folder / "class00" / "1.png", folder / "class05" / "7.png")
    common.check(str(folder), None)
    assert ("note: 1 images of test or gallery are in train too, byte for byte: class05/7.png is "
            "class00/1.png\n") in capsys.readouterr().out


def test_weights_are_looked_at_before_any_cache_is_built(photos, tmp_path):
    with pytest.raises(common.UserError, match="no weights file"):
        photos("--weights", str(tmp_path / "none.pth"))
    assert not (tmp_path / ".cache").exists()

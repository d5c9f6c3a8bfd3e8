"""A run is code × images × settings × seed: no other is shown or continued as if it were it."""
import re
import shutil

import numpy as np
import PIL.Image
import pytest

import common
import jrd
from conftest import ROOT, edit_settings, make_folder
from report import tables
from support import runs


@pytest.fixture
def photos(tmp_path):
    return make_folder(tmp_path / "photos", [3] * 6, side=20)


@pytest.mark.parametrize("file, pattern, replacement, counts", [
    ("jrd.py", r"return ams \+ cfg.alpha \* reg", "return ams - cfg.alpha * reg", True),
    ("common.py", r"            module.eval\(\)", "            module.train()", True),  # batch norm
    ("eval.py", "places <= k for k in ks", "places <= k + 1 for k in ks", True),        # recall
    ("support/ranks.py", "masked_fill_", "masked_fill", True),
    ("mdr.py", "lerp_", "add_", False),                                         # another script
    ("report/tables.py", "^import", "import csv\nimport", False),
    ("jrd.py", r'"""Eq. 10-11: L_JRS', '"""Equation 10 and 11: L_JRS', False),          # docstrings
    ("jrd.py", "    # U1: eps and", "    # U1, eps and", False),                        # a comment
    ("support/photos.py", "cannot read the folder", "unreadable folder", False),       # a message
    ("jrd.py", r"(return gram\[different\].mean\(\)) if", r"\1  if", False)])          # layout
def test_a_run_is_told_by_its_code(file, pattern, replacement, counts, tmp_path, monkeypatch):
    before, root = runs.code_of("jrd"), tmp_path / "copy"
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(".*", "results", "data"))
    source = (root / file).read_text(encoding="utf-8")
    edited, times = re.subn(pattern, replacement, source, count=1, flags=re.M)
    assert times == 1 and edited != source
    (root / file).write_text(edited, encoding="utf-8")
    monkeypatch.setattr(runs, "ROOT", root)
    assert (runs.code_of.__wrapped__("jrd") != before) == counts


def test_a_run_of_other_code_is_neither_shown_nor_continued(train, monkeypatch, capfd):
    folder, first = train(jrd)
    again = train(jrd)[1]
    assert "is finished; --again trains it anew" in again
    assert again.partition("\n\n")[2] == first.partition("\n\n")[2]     # the table, the folder
    monkeypatch.setattr(runs, "code_of", lambda paper: "edited")
    with pytest.raises(common.UserError, match="a run of other code: .* --name .* --again in its"):
        train(jrd)
    assert "last epoch" not in capfd.readouterr().out
    (folder / "result.json").rename(folder / "result")
    state = (folder / "last.pt").read_bytes()
    with pytest.raises(common.UserError, match="of other code"):
        train(jrd)
    assert (folder / "last.pt").read_bytes() == state
    assert train(jrd, "--name", "my-idea")[0].name == "jrd-glyphs-epochs1-my-idea-s0"
    assert "is finished" not in train(jrd, "--again")[1] and "is finished" in train(jrd)[1]
    assert "weightsrandom" in train(jrd, "--weights", "random")[0].name     # but of a file not
    edit_settings(folder, weights_sha256="another")         # a file of weights counts by its hash
    with pytest.raises(common.UserError, match=r"with other settings: weights_sha256 \(there "):
        train(jrd)
    (folder / "config.json").unlink()
    with pytest.raises(common.UserError, match="holds a run without its config.json; --name LABEL"):
        train(jrd)


def test_other_images_are_refused_and_a_folder_that_moved_is_not(train, photos, tmp_path):
    train(jrd, dataset=photos)
    moved = tmp_path / "elsewhere" / "photos"
    moved.parent.mkdir()
    photos.rename(moved)
    assert "is finished" in train(jrd, dataset=moved)[1]
    for old, new, splits in (("class05/0.png", "class05/9.png", "test"),
                             ("class00", "zebra", "train, test")):      # a class moves into test
        (moved / old).rename(moved / new)
        with pytest.raises(common.UserError, match=f"other images: .* of {splits} differ; --n"):
            train(jrd, dataset=moved)


def test_photos_exchanged_for_others_of_the_same_names_and_sizes(train, tmp_path):
    """Bitmaps all have one size: those of this folder, and of another of the same last name."""
    folder, other = tmp_path / "photos", tmp_path / "other" / "photos"
    for i, place in enumerate((folder, other)):
        for path in [*make_folder(place, [3] * 4, side=20, seed=i).rglob("*.png")]:
            PIL.Image.open(path).resize((20, 20)).save(path.with_suffix(".bmp"))
            path.unlink()
    train(jrd, dataset=folder)
    for place in (other, shutil.copytree(other, folder, dirs_exist_ok=True)):
        with pytest.raises(common.UserError, match="times of train, test differ; --name"):
            train(jrd, dataset=place)


def test_a_longer_run_begins_anew_and_says_so(train):
    assert "note:" not in train(jrd, "--batch", "20")[1]
    short, out = train(jrd)
    told = f"note: {short} differs in --epochs; this run starts from epoch 1\n"
    assert "note:" not in out and told in train(jrd, "--epochs", "2")[1]


def test_eval_says_that_images_are_not_those_of_the_run(train, photos, tmp_path, typed):
    folder, _ = train(jrd, dataset=photos)
    moved = tmp_path / "elsewhere"
    photos.rename(moved)
    words = "eval.py", folder / "last.pt", "--dataset", moved, "--data-root", tmp_path
    assert "unknown dataset" in typed(*words[:2])[2]
    status, out, _ = typed(*words)
    assert status == 0 and "note:" not in out
    (moved / "class00").rename(moved / "zebra")
    _, out, _ = typed(*words)
    assert "of their 6 classes 2 trained, by name, and are left out · class01 · class02\n" in out
    assert "12 embeddings of 4 classes" in out and "seen" not in out


def test_another_folder_is_judged_by_its_new_classes(train, photos, tmp_path, typed):
    """... though it has too few to train on, one of a single image; what lies beside is left out."""
    checkpoint = train(jrd, dataset=photos)[0] / "last.pt"
    folder = make_folder(tmp_path / "new", [3, 1], side=20, seed=9)
    for name, new in (("class00", "new"), ("class01", "lone")):
        (folder / name).rename(folder / new)
    (folder / "new" / "0.png").rename(folder / "loose.png")
    status, out, err = typed("eval.py", checkpoint, "--dataset", folder, "--export",
                             tmp_path / "e.npz")
    assert (status, err) == (0, "") and "3 embeddings of 2 classes" in out and "seen" not in out
    with np.load(tmp_path / "e.npz") as file:
        assert [*file["paths"]] == ["lone/0.png", "new/1.png", "new/2.png"]
        assert [*file["classes"][file["labels"]]] == ["lone", "new", "new"]


def test_a_comparison_of_different_test_images_is_refused(train, photos, tmp_path):
    folders = train(jrd, dataset=photos)[0], train(jrd)[0], train(jrd, "--name", "b")[0]
    own, one, other = (folder.name.removesuffix("-s0") for folder in folders)
    with pytest.raises(common.UserError, match="were tested on different images"):
        tables.compare(tmp_path / "runs", own, one)
    for folder in folders[1:]:
        edit_settings(folder, images={"test": folder.name})
    with pytest.raises(common.UserError, match="different images .test differ.: their figures"):
        tables.compare(tmp_path / "runs", one, other)
    for of_older_runs in (None, {"test": {"class00": "a digest of its own"}}):
        edit_settings(folders[2], images=of_older_runs)
        assert "| R@1 " in tables.compare(tmp_path / "runs", one, other)

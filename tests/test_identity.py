"""A run is code × images × settings × seed: no other is shown or continued as if it were it."""
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import PIL.Image
import pytest
import torch

import common
import dml_da
import jrd
import mdr
from conftest import ROOT, edit_settings, left_in, make_folder
from report import __main__ as report
from report import judge, prepare, records, tables
from support import command_line, identity, machine, runs
from test_layout import imported


@pytest.fixture
def photos(tmp_path):
    return make_folder(tmp_path / "photos", [3] * 6, side=20)


@pytest.fixture
def refused(train):
    """refused(message, *flags, dataset=...): a training ends in this one line"""
    def run(message, *flags, **how):
        with pytest.raises(common.UserError, match=message) as stop:
            train(jrd, *flags, **how)
        assert "\n" not in str(stop.value)
    return run


COUNTS = [      # a place in some file, what stands there instead
    (r"return ams \+ cfg.alpha \* reg", "return ams - cfg.alpha * reg"),       # the objective
    (r"torch.randperm\(len\(labels\), gen", "torch.randperm(len(labels) - 1, gen"),    # a sampler
    (r"v2.Compose\(\[crop, v2.RandomHor", "v2.Compose([v2.RandomHor"),          # a transform
    (r"            module.eval\(\)", "            module.train()"),            # batch norm
    (r"in_place=True\)", "in_place=False)"),                                   # how photos decode
    (r"places <= k for k in ks", "places <= k + 1 for k in ks"),               # Recall@K
    (r"D <= limit\(nearest\)", "D < limit(nearest)"),                        # ... ties
    (r'best\("val R@1"\) is', 'best("R@1") is'),                               # which is best.pt
    (r"192 224 224 +\| max", "192 224 224 | avg"),                              # a layer
    (r"weight α of the regularizer", "regularizer weight α")]                   # a text of the script
COUNTS_NOT = [
    (r"lerp_\(d.mean", "add_(d.mean"),                                         # another script
    (r'"compare"', '"versus"'), (r'"export"', '"save"'),                       # command lines
    (r'\("auto", "fp32"', '("fp8", "fp32"'), (r"CenterCrop\(1\)", "CenterCrop(2)"),
    (r"SIDE, GAP, LINES = 128", "SIDE, GAP, LINES = 256"),
    (r'"""Eq. 10-11: L_JRS', '"""Equations 10 and 11: L_JRS'),                 # a docstring
    (r"    # U1: eps and", "    # U1, eps and"),                               # a comment
    (r"cannot read the image {", "unreadable: {a} {"),                         # messages
    (r"is finished; --again", "is done; --again"),
    (r"(return gram\[different\].mean\(\)) if", r"\1  if")]                    # layout


@pytest.mark.parametrize("pattern, replacement", COUNTS + COUNTS_NOT)
def test_a_run_is_told_by_its_code(pattern, replacement, monkeypatch):
    before, edits, read = identity.code_of("jrd"), [], Path.read_text

    def edited(path, **how):
        text, n = re.subn(pattern, replacement, read(path, **how), flags=re.M)
        edits.append(n)
        return text
    monkeypatch.setattr(Path, "read_text", edited)
    assert identity.code_of("jrd") == before            # of the code that was imported
    monkeypatch.setattr(identity, "SOURCES", identity.sources())
    counts = (pattern, replacement) in COUNTS
    assert (identity.code_of("jrd") != before) == counts
    for folder in (ROOT, ROOT / "support", ROOT / "report"):
        for file in folder.glob("*.py"):
            file.read_text(encoding="utf-8")
    assert any(edits), "the code has changed"


SYNTAX = '''"""A module."""
async def f(a, /, b: int = 1, *c, d, **e) -> None:
    """A function."""
    x = f"{{a}}b{a!r:>{b}}c{{}}" "tail" f"{b=}" f"{b=!s:}" f"{a:%H:%M}" f"{a:{b}.{c}f}" f""
    with open(a) as b, open(c) as d:
        print(*a, **e, sep="", end=f"{a:}" + f"\\N{DEGREE SIGN}{a}" u"\\u1c89\\U0001fae9")
    match x:
        case {"a": 1, **rest} if rest: pass
        case [1, *_] | None: z: int
    try: lambda *, k=None: (yield)
    except (A, B) as q: raise X from q
    return [i for i in x if (j := i)], {**a, "b": None, 1j: ..., -1: 1e400}, a[1:, ::3], {*a}
class C(A, metaclass=M):
    @dec
    def g(self): "A method."'''


def test_every_python_tells_the_same_code_by_the_same_digest(tmp_path):
    """... for all the syntax that ours might have, on each Python at hand, without its packages."""
    (tmp_path / "support").mkdir()
    for path in ("jrd.py", "common.py", "eval.py", "support/files.py"):
        (tmp_path / path).write_text(SYNTAX)
    program = f"""if True:
        import pathlib, sys
        from unittest.mock import MagicMock
        for name in ("filelock", "torch", "tqdm", "support.command_line", "support.machine"):
            sys.modules[name] = MagicMock(RUNTIME_ONLY=())
        from support import identity
        ours = [identity.code_of(paper) for paper in identity.PAPERS]
        identity.ROOT = pathlib.Path({str(tmp_path)!r})
        identity.SOURCES = identity.sources()
        print(identity.code_of("jrd"), *ours)"""
    pythons = Path.home().glob(".pyenv/versions/3.1[0-9]*/bin/python")
    told = set()
    for python in (sys.executable, *pythons, *Path("/usr/bin").glob("python3.1[0-9]")):
        told.add(subprocess.check_output([python, "-BWignore", "-c", program], cwd=ROOT))
    (digests,) = told
    assert digests.startswith(b"d8d85c5979aa ")


def test_a_notebook_older_than_its_files_has_runs_of_no_other_code(monkeypatch):
    """It may have reloaded them, or not, and the edit may be undone: nobody knows what runs."""
    before = {paper: identity.code_of(paper) for paper in identity.PAPERS}
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert {paper: identity.code_of(paper) for paper in before} == before
    time, text = identity.SOURCES["mdr.py"]
    for written in ((time + 1, "def train("), (time + 2, text)):
        monkeypatch.setattr(identity, "sources", lambda: identity.SOURCES | {"mdr.py": written})
        assert identity.code_of("jrd") == before["jrd"]
        assert len({before["mdr"], identity.code_of("mdr"), identity.code_of("mdr")}) == 3


def test_what_a_training_runs_through_is_its_code():
    """code_of takes all of support/, less two files of command lines (fp8, above): a script imports
    all of it, some by way of other files."""
    reached, left = set(), ["jrd"]
    while left:
        module = left.pop()
        source = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        for name in imported(source):
            first, _, rest = name.partition(".")
            name = f"support.{rest.partition('.')[0]}" if first == "support" else first
            if name not in reached and (ROOT / f"{name.replace('.', '/')}.py").exists():
                reached.add(name)
                left.append(name)
    files = {f"support.{path.stem}" for path in ROOT.glob("support/[!_]*.py")}
    assert {name for name in reached if name.startswith("support.")} == files


def test_a_run_of_other_code_is_neither_shown_nor_continued(train, refused, monkeypatch, capfd):
    folder, first = train(jrd)
    state = folder / "last.pt"
    state.rename(folder / "another name")               # it is finished without it, too
    again = train(jrd)[1]
    (folder / "another name").rename(state)
    assert "is finished; --again trains it anew" in again
    assert again.partition("\n\n")[2] == first.partition("\n\n")[2]     # the table, the folder
    monkeypatch.setattr(runs, "code_of", lambda paper: "edited")
    refused("with other code .* --name .* --again in its")
    assert "last epoch" not in capfd.readouterr().out
    (folder / "result.json").rename(folder / "result")
    content = state.read_bytes()
    refused("with other code")
    assert state.read_bytes() == content
    assert train(jrd, "--name", "my-idea")[0].name == "jrd-glyphs-epochs1-my-idea-s0"
    assert "is finished" not in train(jrd, "--again")[1] and "is finished" in train(jrd)[1]
    assert "weightsrandom" in train(jrd, "--weights", "random")[0].name     # but of a file not
    edit_settings(folder, weights_sha256="another")         # a file of weights counts by its hash
    refused(r"with other weights_sha256 \(there ")
    (folder / "config.json").unlink()
    refused("holds a run without its config.json; --name LABEL")


@pytest.mark.parametrize("change, says", [
    (dict(paper="mdr"), "a checkpoint of mdr.py, not of jrd.py"),
    (dict(network={"no": torch.ones(1)}), "not of this run .RuntimeError: "),
    (dict(optimizer={"state": {}}), "not of this run .KeyError: "),
    (dict(pretrained=None), "not of this run .KeyError: 'pretrained'")])
def test_a_checkpoint_from_elsewhere_in_a_runs_folder(change, says, train, refused):
    """... copied by hand: another script's, of other shapes or another optimizer, not whole."""
    path = train(jrd)[0] / "last.pt"
    (path.parent / "result.json").unlink()
    saved = torch.load(path, weights_only=True) | change
    if change == dict(pretrained=None):
        del saved["pretrained"]
    torch.save(saved, path)
    refused(f"^{path} is {says}.*; --again trains the run anew$")


def test_another_length_is_another_run_and_says_where_the_first_lies(train, photos):
    """... shorter or longer, of batches or epochs, the longest of several; a run of another seed,
    α, name or dataset is no first, nor is a folder of another program's, nor a damaged one."""
    def note(*flags, script=jrd, **how):
        folder, told = train(script, *flags, **how)
        assert told.count("note: another length is another run, which starts anew; ") <= 1
        return folder, re.findall("starts anew; the one of (.*)", told)
    first, told = note()
    assert not told and not note()[1]                   # the same again
    third, told = note("--epochs", "3")
    assert told == [f"1 epochs is {first}"] and not note("--epochs", "3")[1]
    for flags in ("--seed 1", "--alpha 0", "--name other"):
        assert not note("--epochs", "2", *flags.split())[1]
    assert not note("--epochs", "2", dataset=photos)[1] and not note("--again")[1]
    for text in ('{"epochs": 9}', "{", '{"paper": "jrd", "dataset": null}',
                 '{"paper": "jrd", "dataset": "glyphs", "images": 3, "epochs": null}'):
        broken = Path(tempfile.mkdtemp("-s0", dir=first.parent))
        (broken / "config.json").write_text(text)
    assert note("--epochs", "2")[1] == [f"3 epochs is {third}"]
    one, told = note("--iterations", "1", script=mdr)
    assert not told and note("--iterations", "2", script=mdr)[1] == [f"1 epochs is {one}"]


def test_other_images_are_refused_and_a_folder_that_moved_is_not(train, refused, tmp_path):
    """Other bitmaps have the same sizes and begin with the same 24 KB of white: in a folder of the
    same last name, and put in place.  A class that trained is renamed into the half that tests."""
    folder, moved, other = (tmp_path / place / "photos" for place in ("here", "moved", "other"))
    for seed, place in enumerate((folder, other)):
        for path in make_folder(place, [3] * 6, side=20, seed=seed).glob("*/*.png"):
            paper = PIL.Image.new("RGB", (100, 100), "white")
            paper.paste(PIL.Image.open(path))
            paper.save(path.with_suffix(".bmp"))        # whose last row comes first
            path.unlink()
    train(jrd, dataset=folder)
    shutil.copytree(folder, moved, copy_function=shutil.copyfile)       # at another time
    assert "is finished" in train(jrd, dataset=moved)[1]
    (moved / "class05" / "0.bmp").rename(moved / "class05" / "00.bmp")
    refused("with other images of test .there .* --name", dataset=moved)
    (moved / "class00").rename(moved / "zebra")
    shutil.copytree(other, folder, dirs_exist_ok=True)
    for place in (moved, other, folder):
        refused("with other images of train .* images of test .there .* --name", dataset=place)


def test_a_run_knows_its_folder_wherever_it_is_read(train, photos, tmp_path, typed, monkeypatch):
    """... by a name that means another folder elsewhere, or if all has moved; one without a class
    that trained is not taken for it, unless its test images are the run's."""
    (tmp_path / "project").mkdir()
    photos = photos.rename(tmp_path / "project" / "photos")
    monkeypatch.chdir(tmp_path / "project")
    checkpoint = train(jrd, dataset="photos")[0] / "last.pt"
    other = make_folder(tmp_path / "other" / "photos", [3] * 4, side=20)
    for path in other.iterdir():
        path.rename(path.with_name(path.name.replace("class", "else")))
    monkeypatch.chdir(other.parent)
    status, out, _ = typed("eval.py", checkpoint)
    assert status == 0 and "9 embeddings of 3 classes" in out and "note" not in out
    (tmp_path / "project").rename(tmp_path / "moved")
    assert typed("eval.py", checkpoint)[::2] == (
        2, "eval.py: photos has no class that trained and other test images, so it is not the "
           "run's folder: --dataset of eval.py says where that is\n")
    monkeypatch.chdir(tmp_path)
    assert f"images, {photos}, is not there (moved?" in typed("eval.py", checkpoint)[2]
    old = torch.load(checkpoint, weights_only=True)
    del old["config"]["images"], old["config"]["dataset_path"]
    torch.save(old, tmp_path / "old.pt")
    monkeypatch.chdir(other.parent)
    assert "photos has no class that trained" in typed("eval.py", tmp_path / "old.pt")[2]
    monkeypatch.chdir(tmp_path / "moved")
    assert out.splitlines()[-3:] == typed("eval.py", checkpoint)[1].splitlines()[-3:]
    for kind in ("class00", "class01", "class02"):                      # all that trained
        shutil.rmtree(tmp_path / "moved" / "photos" / kind)
    status, text, _ = typed("eval.py", checkpoint)
    assert status == 0 and "9 embeddings of 3 classes" in text


def test_a_folder_behind_a_link_is_the_one_that_is_typed(tmp_path):
    for place in ("disk/set", "disk/data", "here/set"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "here" / "data").symlink_to(tmp_path / "disk" / "data")
    typed = f"{tmp_path}/here/data/../set"
    assert os.path.samefile(jrd.parse_args(["--dataset", typed]).dataset_path,
                            tmp_path / "disk" / "set")


def test_the_pictures_of_a_run_are_no_photos(train, photos, typed):
    """Its folder may lie in that of the photos, in which it would be a class."""
    before = typed("common.py", "check", photos)
    flags = "--out", str(photos / "runs")
    folder, _ = train(jrd, *flags, dataset=photos)
    for _ in range(2):
        assert typed("report/__main__.py", "--sheet", folder / "last.pt")[0] == 0
    status, out, err = typed("common.py", "check", photos)
    note = f"note: left out of {photos}: runs/ (1 files)\n"
    assert (folder / "sheet.png").exists() and note in out
    assert (status, out.replace(note, ""), err) == before
    assert "is finished" in train(jrd, *flags, dataset=photos)[1]
    for name in ("config.json", "last.pt"):             # of another program: photos stay photos
        (photos / "class00" / name).touch()
    assert " 18 images, all can be read" in typed("common.py", "check", photos)[1]


def test_no_picture_takes_the_place_of_a_photo(train, photos, tmp_path, typed):
    """... nor of one that a link leads to, as in folders made from a table."""
    linked = tmp_path / "linked"
    for path in photos.glob("*/*.png"):
        link = linked / path.relative_to(photos)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    checkpoint = train(jrd, dataset=linked)[0] / "last.pt"
    photo, query = photos / "class05" / "0.png", tmp_path / "query.png"
    shutil.copy(photo, query)
    search, pairs = (["eval.py", checkpoint, *words] for words in (
        ("--query", query, "--to"), ("--pairs", 1, "--to")))
    for words, place in ((search, query), (search, photo), (pairs, photo),
                         (pairs, linked / "class05" / "0.png"),
                         (["report/__main__.py", "--sheet", checkpoint, "--out"], photo)):
        status, _, err = typed(*words, place)
        assert (status, err.count("\n")) == (2, 1)
        assert err.endswith(f": {place} is a photo that is read here: name another file\n")
    assert query.read_bytes() == photo.read_bytes()
    for _ in range(2):                                  # a sheet may be drawn anew
        assert typed(*search, tmp_path / "sheet.png")[0] == 0


def test_a_damaged_result_is_made_again_of_the_checkpoint(train, refused):
    path = train(jrd)[0] / "result.json"
    whole = json.loads(path.read_text())
    os.truncate(path, 60)
    refused(f"^{path} is damaged: delete this file, and the run's command makes it again from last")
    path.unlink()
    train(jrd)
    assert json.loads(path.read_text()) == whole
    os.truncate(path.with_name("last.pt"), 600)
    path.unlink()
    refused("^cannot load .*last.pt .*: it is damaged, or no file of tensors .*; --again trains")


def test_a_folder_is_judged_by_its_classes_that_did_not_train(train, photos, tmp_path, typed):
    """That of the run, moved, as the run did it; another one though it has too few classes to train
    on, one of a single image; what lies beside is left out."""
    checkpoint = train(jrd, dataset=photos)[0] / "last.pt"
    words = "eval.py", checkpoint, "--data-root", tmp_path, "--dataset"
    moved = photos.rename(tmp_path / "elsewhere")
    assert typed(*words[:2])[2] == (f"eval.py: the run's folder of images, {photos}, is not there "
                                    "(moved? --dataset of eval.py says where to)\n")
    export = "--export", tmp_path / "e.npz"
    status, out, _ = typed(*words, moved, *export)
    assert status == 0 and "note:" not in out
    with np.load(tmp_path / "e.npz") as file:           # the images that trained are in it too
        kinds = file["seen_classes"][file["seen_labels"]]
        assert [path[:7] for path in file["seen_paths"]] == [*kinds] and len(file["seen"]) == 9
        assert {*kinds} == {"class00", "class01", "class02"}
    (moved / "class00").rename(moved / "zebra")
    _, out, _ = typed(*words, moved)
    assert "left out are 2 classes that trained, by name: class01, class02\n" in out
    assert "12 embeddings of 4 classes" in out and "seen" not in out
    for path, new in (("class03/0.png", "loose.png"), ("class05/0.png", "a.png"),
                      ("class05/1.png", "b.png"), ("class04", "../4"), ("zebra", "../5")):
        (moved / path).rename(moved / new)
    status, out, err = typed(*words, moved, *export)
    assert (status, err) == (0, "") and "3 embeddings of 2 classes" in out
    with np.load(tmp_path / "e.npz") as file:
        assert [*file["paths"]] == ["class03/1.png", "class03/2.png", "class05/2.png"]
        assert [*file["classes"][file["labels"]]] == ["class03", "class03", "class05"]


def test_test_classes_that_trained_are_named_where_they_are_judged(train, tmp_path, typed):
    """A train/ of class00 to class02, a test/ of class01 to class03."""
    folder = tmp_path / "photos"
    make_folder(folder / "train", [4] * 3)
    make_folder(folder / "test", [0] + [4] * 3)
    checkpoint = train(jrd, dataset=folder)[0] / "last.pt"
    assert "\nnote: 2 of the 3 test classes trained: class01, class02\n" in "\n" + typed(
        "eval.py", checkpoint, "--data-root", tmp_path)[1]


@pytest.mark.parametrize("script, flags, says", [
    (jrd, "", "cannot download http://data.lip6.fr/.*bn_inception-.*: no network; .* or pass "
     "--weights FILE, --weights random, or --backbone small, whose weights are part of this code"),
    (mdr, "--backbone resnet18", "cannot download .*resnet18-.*--backbone small"),
    (dml_da, "--weights none.pth", "No such file or directory: 'none.pth'"),
    (dml_da, "--backbone googlenet_bvlc", "needs --weights FILE"),
    (mdr, "--backbone resnet18 --weights {misfit}",
     "misfit.pth does not fit resnet18: 100 names or shapes differ"),
    (jrd, "--backbone squeezenet1_1 --weights {squeezenet1_1-b8a52dc0}",
     "b8a52dc0.pth is not the published file: SHA-256 .*, expected b8a52dc0")])
def test_what_cannot_be_had_is_said_before_anything_is_built(script, flags, says, photos, tmp_path,
                                                             monkeypatch, typed):
    """... weights, before a photo is read; but first that the folder is not there."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    download = Mock(side_effect=OSError("no network"))
    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", download)
    (name,) = re.findall("{(.*)}", flags) or ["unused"]
    weights = tmp_path.with_name(f"{tmp_path.name}-weights") / f"{name}.pth"
    weights.parent.mkdir()
    torch.save({"a": torch.zeros(2)}, weights)
    words = (f"{script.__name__}.py", "--data-root", tmp_path, "--out", tmp_path / "runs",
             *re.sub("{.*}", str(weights), flags).split(), "--dataset")
    state = torch.get_rng_state()
    status, told, err = typed(*words, photos)
    assert torch.equal(torch.get_rng_state(), state)
    assert (status, told) == (2, "") and re.search(says, err) and err.count("\n") == 1
    assert [*tmp_path.iterdir()] == [photos]
    asked = download.call_count
    assert "unknown dataset" in typed(*words, tmp_path / "nowhere")[2]
    assert "no cub under" in typed(*words, "cub")[2] and download.call_count == asked


def test_a_comparison_of_different_test_images_is_refused(train, photos, tmp_path):
    folders = train(jrd, dataset=photos)[0], train(jrd)[0], train(jrd, "--name", "b")[0]
    own, one, other = (folder.name.removesuffix("-s0") for folder in folders)
    with pytest.raises(common.UserError, match="were tested on different images"):
        tables.compare(tmp_path / "runs", own, one)
    for folder in folders[1:]:
        edit_settings(folder, images={"test": folder.name})
    with pytest.raises(common.UserError, match="were tested on different images: their"):
        tables.compare(tmp_path / "runs", one, other)
    for of_older_runs in (None, {"test": {"class00": "a digest of its own"}}):
        edit_settings(folders[2], images=of_older_runs)
        assert "| R@1 " in tables.compare(tmp_path / "runs", one, other)


def test_no_mean_is_over_seeds_of_other_images_or_weights(train, photos, tmp_path):
    """A run's name tells neither, so a folder that grew between two seeds gives two rows."""
    a, b = (train(jrd, "--seed", seed, dataset=photos)[0] for seed in "01")
    place, name = tmp_path / "runs", a.name.removesuffix("-s0")
    assert re.search(rf"\| {name} +\| 2 ", tables.table(place))
    with pytest.raises(common.UserError, match=f"takes two settings, and both are {name}"):
        tables.compare(place, a.name, b.name)
    settings = json.loads((b / "config.json").read_text())
    for change in ({"weights_sha256": "another"}, {"images": settings["images"] | {"test": "x"}}):
        edit_settings(b, **settings | change)
        for text in (tables.table(place), tables.ranking(place, "R@1")):
            for seed in "01":
                assert re.search(rf"\| {name} \(seed {seed}: its own images or weights\) +\| 1 ",
                                 text), text
        with pytest.raises(common.UserError, match=rf"seeds of {name} .* \(0 from 1\): name a run, "
                                                   f"as {name}-s0"):
            tables.compare(place, name, "new")
        setting, group = records.seeds_of(place, b.name)
        assert setting == name and [*group] == [1]
    new = train(jrd, "--name", "new", dataset=photos)[0]
    (a / "config.json").write_text("{")                 # which is not of the setting asked for
    assert records.seeds_of(place, new.name)[1][0].result
    (a / "config.json").write_text(json.dumps(settings | {"seed": 0}))
    edit_settings(b, **settings)
    assert tables.ranking(place, "R@1").count("| runs on photos") == 1
    edit_settings(new, images=settings["images"] | {"test": "x"})
    text = tables.ranking(place, "R@1")
    assert text.count("| runs on photos") == 2 and "(images of test: x)" in text


# ---------------------------------------------------------------------------- its folder
@pytest.fixture
def at_epochs(monkeypatch):
    """at_epochs(function of the epoch): called at each one's end, for what it puts into the log"""
    real = runs.Run.end_epoch
    return lambda function: monkeypatch.setattr(runs.Run, "end_epoch", lambda run, epoch, **row: (
        real(run, epoch, **row | (function(epoch) or {}))))


def test_best_is_by_the_held_out_classes(train, at_epochs):
    """... of val, never of test, and of the first of equal epochs."""
    val, test = (0.5, 0.8, 0.8), (0.9, 0.1, 0.2)
    at_epochs(lambda epoch: {"val R@1": val[epoch], "R@1": test[epoch]})
    folder, out = train(jrd, "--epochs", "3", "--val", "0.2")
    result = left_in(folder)[1]
    assert result["best on held-out classes"]["epoch"] == 2
    assert result["best on test"]["epoch"] == 1
    assert "best on held-out classes (2) " in out and "best on test (1) " in out
    best, last = (torch.load(folder / name, weights_only=True) for name in ("best.pt", "last.pt"))
    assert (len(best["history"]), len(last["history"])) == (2, 3)
    assert best["classes"] == last["classes"] == [f"glyph {i}" for i in range(400, 408)]


def test_best_is_written_if_a_process_was_killed_before(train, at_epochs, monkeypatch):
    """... after last.pt of the best epoch, and before best.pt."""
    at_epochs(lambda epoch: {"val R@1": (0.5, 0.8, 0.3)[epoch]})
    save = runs.Run._save

    def killed(run, name, **changes):
        if (len(run.history), name) == (2, "best.pt"):
            raise KeyboardInterrupt
        save(run, name, **changes)
    words = jrd, "--epochs", "3", "--val", "0.2"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(runs.Run, "_save", killed)
        train(*words)
    folder, out = train(*words)
    best, last = (torch.load(folder / name, weights_only=True) for name in ("best.pt", "last.pt"))
    assert " after epoch 2\n" in out and len(last["history"]) == 3
    assert [row["val R@1"] for row in best["history"]] == [0.5, 0.8]


def test_a_run_that_goes_on_on_another_device_has_its_kernel(train, monkeypatch):
    """A checkpoint says how its Adam was computed, which on a CPU is one by one, and in float32 a
    GPU's moments have another layout."""
    def stop(epoch):
        raise KeyboardInterrupt
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        real = runs.Run.end_epoch
        patch.setattr(runs.Run, "end_epoch", lambda run, epoch, **row: (
            real(run, epoch, **row), stop(epoch)))
        train(mdr, "--epochs", "2", "--iterations", "1")
    step, told, moments = torch.optim.Adam.step, [], []

    def spy(adam, *args):
        told.append(adam.param_groups[0]["fused"])
        for parameter, state in adam.state.items():
            assert parameter.stride() == state["exp_avg"].stride()
            assert torch.equal(state["exp_avg"], moments.pop(0))
        return step(adam, *args)
    monkeypatch.setattr(torch.optim.Adam, "step", spy)
    load = runs.read_checkpoint

    def of_a_gpu(path):
        saved = load(path)
        for group in saved["optimizer"]["param_groups"]:
            group["fused"] = True
        for state in saved["optimizer"]["state"].values():
            moments.append(state["exp_avg"])
            state["exp_avg"] = state["exp_avg"].contiguous()
        return saved
    monkeypatch.setattr(runs, "read_checkpoint", of_a_gpu)
    assert "continuing " in train(mdr, "--epochs", "2", "--iterations", "1")[1]
    assert told == [False] and not moments


def test_a_run_that_goes_on_on_another_machine_says_so(train, monkeypatch):
    """... on the console and in the row of its first epoch there; config.json keeps where it began.
    """
    def epoch(**other):
        def end_epoch(run, epoch, **row):
            real(run, epoch, **row)
            raise KeyboardInterrupt
        real = runs.Run.end_epoch
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            for what, value in other.items():
                patch.setattr(machine, what, Mock(return_value=value))
            patch.setattr(runs.Run, "end_epoch", end_epoch)
            train(mdr, "--epochs", "4", "--iterations", "1")
    versions = machine.versions()
    epoch(processor="an EPYC")
    epoch(processor="a Xeon", versions=versions | {"torch": "9.9"})
    epoch(processor="a Xeon", versions=versions | {"torch": "9.9"})
    monkeypatch.setattr(machine, "processor", lambda device: "a Xeon")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    folder, told = train(mdr, "--epochs", "4", "--iterations", "1")
    rows, _, config = left_in(folder)
    assert [row.get("continued with") for row in rows] == [
        None, {"processor": "a Xeon", "torch": "9.9"}, None,
        {"threads": 7, "torch": versions["torch"]}]
    assert (f"note: it goes on with threads 7 (before: 1), torch {versions['torch']} (before: 9.9); "
            "log.jsonl says so at its next epoch\n") in told
    assert config["processor"] == "an EPYC" and config["threads"] == 1


@pytest.mark.parametrize("where, error, says", [
    (common, common.UserError("a broken photo"), "a broken photo; .* still has the run that was"),
    (jrd, KeyboardInterrupt(), ""), (jrd, common.NonFiniteLoss("nan"), "nan")])
def test_again_leaves_the_run_alone_until_an_epoch_has_ended(where, error, says, train, photos,
                                                             monkeypatch, capfd):
    """... whatever ends it before: nothing is moved that a killed process would leave so."""
    folder, _ = train(jrd, dataset=photos)
    (folder / "sheet.png").write_bytes(b"a picture of this network")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    name = "embed_splits" if where is common else "objective"
    with monkeypatch.context() as patch, pytest.raises(type(error), match=says):
        patch.setattr(where, name, Mock(side_effect=error))
        train(jrd, "--again", dataset=photos)
    told = capfd.readouterr().err
    if not isinstance(error, common.UserError):
        assert f"{folder} still has the run that was there before\n" in told
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert "is finished" in train(jrd, dataset=photos)[1]
    assert "is finished" not in train(jrd, "--again", dataset=photos)[1]
    assert {path.name for path in folder.iterdir()} == before.keys() - {"sheet.png"}


def test_a_run_of_unknown_settings_stays_one(train, refused, photos, monkeypatch):
    """... if --again ends before an epoch: no config.json comes beside its last.pt."""
    folder, _ = train(jrd, dataset=photos)
    (folder / "config.json").unlink()
    with monkeypatch.context() as patch, pytest.raises(common.UserError):
        patch.setattr(jrd, "objective", Mock(side_effect=common.UserError("a photo vanished")))
        train(jrd, "--again", dataset=photos)
    refused("holds a run without its config.json", dataset=photos)


def test_again_on_a_disk_that_fills_up(train, photos, monkeypatch):
    """The old run is gone by then, so that the new one has its room, and begins anew."""
    train(jrd, dataset=photos)
    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(runs, "save_torch", Mock(side_effect=OSError(errno.ENOSPC, "No space")))
        train(jrd, "--again", dataset=photos)
    told = train(jrd, dataset=photos)[1]
    assert "is finished" not in told and "continuing" not in told


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks(code, train, monkeypatch):
    """The run says so, and leaves no marker that would keep a requeued job out."""
    fcntl = pytest.importorskip("fcntl")

    def flock(*args):
        raise OSError(code, os.strerror(code))
    monkeypatch.setattr(fcntl, "flock", flock)
    folder, out = train(jrd)
    assert out.count("no locks") == 1
    assert (folder / ".lock").read_bytes() == b"" and "is finished" in train(jrd)[1]
    of_another_process = folder / ".last.pt.0f.part"
    of_another_process.touch()
    train(jrd)
    assert of_another_process.exists()


def test_what_cannot_be_found_out_is_said_once(train, monkeypatch):
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout")
    find = machine.commit.__wrapped__
    commit = find()
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")          # git would refuse
    assert find() == commit and len(commit) in (40, 41)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(machine, "commit", find)
    folder, out = train(jrd)
    assert out.count("note: the commit of this code is unknown") == 1
    assert left_in(folder)[2]["commit"] is None


def test_a_name_that_is_too_long(refused, tmp_path):
    long = make_folder(tmp_path / ("long" * 60), [3] * 4, side=20)
    for flag in ("--no-cache", "--again"):
        refused("too long: .* dataset's name, .*; shorten", flag, dataset=long)


@pytest.mark.parametrize("workers", ["0", "1"])
def test_photos_that_vanish_while_it_trains(workers, refused, photos, at_epochs):
    at_epochs(lambda epoch: (photos / "class01" / "0.png").unlink(missing_ok=True))
    refused("^cannot read the image .*0.png.*; .* keeps its whole epochs; the same command .less",
            "--epochs", "2", "--workers", workers, "--no-cache", dataset=photos)


@pytest.mark.parametrize("error, says", [
    (OSError(), "OSError"), (common.UserError("a\nb"), "a"),
    (FileNotFoundError(2, "No such file", "f"), "[Errno 2] No such file: 'f'")])
def test_an_error_is_one_line(error, says, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["runs/jrd.py"])
    with pytest.raises(SystemExit):
        command_line.main(Mock(side_effect=error), lambda: None)
    assert capsys.readouterr().err == f"jrd.py: {says}\n"


def test_nobody_reads_to_the_end_where_no_signal_says_so(monkeypatch):
    """... as on Windows."""
    monkeypatch.delattr(command_line.signal, "SIGPIPE")
    monkeypatch.setattr(command_line, "_end_by", Mock())
    command_line.main(Mock(side_effect=BrokenPipeError), lambda: None)
    command_line._end_by.assert_called_once_with(command_line.signal.SIGTERM)


def test_nobody_reads_to_the_end():
    """python ... | head, on a console that has no λ"""
    program = "from support.command_line import main; main(print, lambda: 'λ\\n' * 99999)"
    done = subprocess.run(["bash", "-c", '"$0" -c "$1" | head -n 1; exit ${PIPESTATUS[0]}',
                           sys.executable, program], cwd=ROOT, capture_output=True, text=True,
                          env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stdout, done.stderr) == (128 + 13, "?\n", "")


@pytest.mark.parametrize("shell", [
    {"CDPATH": "{tmp}/elsewhere", "PYTHON": "{tmp}/env/bin/python"},
    {"TMPDIR": "/scratch/not/here", "PYTHON": "{tmp}/env/bin/python"},
    {"CONDA_PREFIX": "{tmp}/env", "CONDA_DEFAULT_ENV": "dml", "PATH": "{tmp}/env/bin:/usr/bin"}])
def test_run_all_in_the_shells_of_others(shell, tmp_path):
    """It runs where it stands, with the environment that is active, without their TMPDIR."""
    for name in ("work/code/run_all.sh", "elsewhere/code/run_all.sh"):
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / "run_all.sh", tmp_path / name)
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\npwd >&2\ncase "$*" in *--plan*) echo "python jrd.py" ;; esac\n')
    python.chmod(0o755)
    env = {"PATH": os.environ["PATH"]}
    for name, value in shell.items():
        env[name] = value.format(tmp=tmp_path)
    done = subprocess.run(["bash", "code/run_all.sh", "--quick"], cwd=tmp_path / "work", env=env,
                          capture_output=True, text=True)
    code = tmp_path / "work" / "code"
    assert (done.returncode, {*done.stderr.splitlines()}) == (0, {str(code)})    # plan, run, report
    assert "1 of 1, about" in done.stdout and [*code.iterdir()] == [code / "run_all.sh"]


def test_run_all_installs_what_an_update_requires(tmp_path):
    """... into the .venv that it made, in the next call and once."""
    shutil.copy(ROOT / "run_all.sh", tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    for file in (python, python.with_name("pip"), tmp_path / "report" / "requirements.txt"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('#!/bin/sh\necho "$*" >> calls\n')
        file.chmod(0o755)
    calls = []
    for required in ("torch", "torch", "torch\npandas"):
        (tmp_path / "requirements.txt").write_text(required)
        subprocess.run(["bash", tmp_path / "run_all.sh", "--plan"], check=True,
                       env={"PATH": os.environ["PATH"]})
        calls.append((tmp_path / "calls").read_text().count(" -r requirements.txt"))
    assert calls == [1, 1, 2]


def test_a_home_folder_that_no_shell_expands(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    flags = ["dataset", "data_root", "out", "weights"]
    cfg = jrd.parse_args([f"--{flag.replace('_', '-')}=~/{flag}" for flag in flags])
    assert all(getattr(cfg, flag) == f"/home/me/{flag}" for flag in flags)
    assert report.parse_args(["--runs=~/runs", "--curves", "a"]).runs == ["/home/me/runs"]
    assert judge.parse_args(["~/last.pt"]).file == "/home/me/last.pt"
    assert prepare.parse_args(["check", "~/photos"]).dataset == ["/home/me/photos"]

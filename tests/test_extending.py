"""docs/extending.md: its recipes train, its loops run, add what they say, and continue; its diffs
and those of the lectures are files that git applies."""
import importlib
import itertools
import re
import shutil
import subprocess
import sys
import traceback
from pathlib import Path
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

import common
import dml_da
import jrd
import mdr
import support
from conftest import (B, INDICES, LABELS, LONG, POSITIVE, ROOT, TRIPLETS, agrees, left_in,
                      points)
from studies import handouts

NEW, OWN = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8").split(
    "## In your own training")
BLOCKS = re.findall(r"```python\n(.*?)```", OWN, re.DOTALL)
LOOPS = dict(zip(("jrd", "mdr", "dml_da"), [block for block in BLOCKS if "\nfor " in block],
                 strict=True))
(JRD_C,) = [block for block in BLOCKS if block.startswith("    ")]
SAVE, RESTORE = BLOCKS[-2:]
CLASSES = 6


@pytest.fixture
def extended(tmp_path, monkeypatch):
    """The three scripts and common.py with every recipe of the page, and its example of a test."""
    (tmp_path / "support").mkdir()
    for handout in handouts.handouts():
        if handout.page.name == "extending.md":
            path = tmp_path / handout.changes
            if not path.exists():
                shutil.copy(ROOT / handout.changes, path)
            applied(handout.diff, tmp_path)
            assert max(map(len, path.read_text(encoding="utf-8").splitlines())) <= 100, path
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(support, "__path__", [str(tmp_path / "support"), *support.__path__])
    monkeypatch.delattr(support, "backbones")
    monkeypatch.delattr(support, "datasets")            # which checks weights by the backbones
    names = ("support.backbones", "support.datasets", "common", "dml_da", "mdr", "jrd")
    for name in names:
        monkeypatch.delitem(sys.modules, name)
    return {name: importlib.import_module(name) for name in names}


# ---------------------------------------------------------------------------- diffs for a class
def applied(diff, folder):
    """`git apply` a diff in a folder, and nothing else."""
    git = subprocess.run(["git", "apply", "-"], input=diff.encode(), cwd=folder,
                         capture_output=True)
    assert (git.returncode, git.stderr.decode()) == (0, "")


def test_each_diff_of_the_pages_applies_as_it_stands(tmp_path, typed):
    """From the files that a teacher hands out, to a copy of the script, at the one place that the
    diff's lines have there: in the file as it would be with the hunks' numbers of today."""
    written = typed("studies/handouts.py", "write", tmp_path / "handouts")
    assert written[0] == 0 and written[1].count("\n") == 14, written
    (tmp_path / "support").mkdir()
    for handout in handouts.handouts():
        path, diff = tmp_path / handout.changes, tmp_path / "handouts" / handout.name
        source = (ROOT / handout.changes).read_text(encoding="utf-8")
        results = []
        for text in (diff.read_text(encoding="utf-8"), handouts.renewed(handout.diff, source)):
            path.write_text(source, encoding="utf-8")
            applied(text, tmp_path)
            results.append(path.read_text(encoding="utf-8"))
            assert handouts.refused(text, tmp_path), "applies twice"
        assert results[0] == results[1] != source
        compile(results[0], handout.changes, "exec")
    assert typed("studies/handouts.py", "check")[1].count("applies") == 14


def test_hunks_are_renewed_when_a_script_has_changed(tmp_path):
    """Lines came above, the context changed: + and - lines stay, git takes the diff again.  A hunk
    whose lines have gone, or stand twice, is refused and named."""
    source = "import a\n\n\ndef f(x):\n    y = 1\n    return y\n\n\ndef g():\n    return 2\n"
    diff = ("--- a/f.py\n+++ b/f.py\n@@ -4,3 +4,4 @@ def f\n def f(x):\n"
            "-    y = 1\n+    y = x\n+    y += 1\n"
            "     return y\n@@ -9,1 +10,5 @@\n+def h():\n+    return 3\n+\n+\n def g():\n")
    assert handouts.renewed(diff, source) == diff
    moved = "import b\n" + source.replace("return y", "return y + 1")
    renewed = handouts.renewed(diff, moved)
    assert renewed == (diff.replace("-4,3 +4,4", "-5,3 +5,4").replace("-9,1 +10,5", "-10,1 +11,5")
                       .replace("return y", "return y + 1"))
    (tmp_path / "f.py").write_text(moved)
    assert "patch does not apply" in handouts.refused(diff, tmp_path)
    applied(renewed, tmp_path)
    assert (tmp_path / "f.py").read_text() == (moved.replace("y = 1", "y = x\n    y += 1").replace(
        "def g", "def h():\n    return 3\n\n\ndef g"))
    for changed in (source.replace("y = 1", "y = 2"), source + source):
        with pytest.raises(common.UserError, match="stand nowhere, or at several places:\n"):
            handouts.renewed(diff, changed)


# ---------------------------------------------------------------------------- recipes
def test_the_recipes_of_the_page_train(extended, train, tmp_path):
    """Literally: a regularizer, a loss in each script, a backbone from a file of weights."""
    weights = tmp_path / "mynet.pth"
    torch.save(extended["support.backbones"].MyNet().state_dict(), weights)
    for name, flags, term in (
            ("dml_da", "--regularizer anisotropy", "anisotropy"),
            ("dml_da", "--loss supcon", "supcon"), ("mdr", "--loss smooth", "smooth"),
            ("jrd", "--loss arcface", "arcface"),
            ("mdr", f"--backbone mynet --resize 36 --size 32 --weights {weights}", "triplet")):
        few = [] if name == "jrd" else ["--iterations", "1"]
        folder, printed = train(extended[name], *flags.split(), *few)
        (row,), result, config = left_in(folder)
        assert re.search(rf"^loss = {config.get('loss')}\b", printed, re.M), printed
        assert row[term] != 0 and 0 < result["last epoch"]["R@1"] < 1
        assert config["backbone"] == ("mynet" if "mynet" in flags else "small")
    with pytest.raises(extended["common"].UserError, match="mynet needs --weights FILE"):
        extended["common"].load_weights(None, "mynet")


def test_what_the_page_adds_is_in_help_and_in_the_rules(extended, capsys):
    """An option that does nothing is refused; --help has the new weight and margin."""
    with pytest.raises(SystemExit):
        extended["dml_da"].parse_args(["--loss", "supcon", "--margin", "3"])
    assert capsys.readouterr().err == "dml_da.py: --margin does nothing with --loss supcon\n"
    for name, listed in (("dml_da", "en 1, gor 10, anisotropy 0.1"),
                         ("mdr", "contrastive 1, smooth 0")):
        with pytest.raises(SystemExit):
            extended[name].parse_args(["--help"])
        assert listed in " ".join(capsys.readouterr().out.split())


def test_the_losses_of_the_page_are_what_they_say(extended):
    def smooth(D):
        return np.mean([np.log1p(np.exp(D[a, p] - D[a, n] + 0.3)) for a, p, n in TRIPLETS])

    def supcon(f):
        s = f @ f.T / 0.1
        np.fill_diagonal(s, -np.inf)
        return np.mean([logsumexp(s[i]) - s[i, j] for i, j in POSITIVE])

    def arc(cos):
        total = 0
        for logits, y in zip(7 * cos, LABELS):
            logits[y] = 7 * np.cos(np.arccos(logits[y] / 7) + 0.2)
            total += logsumexp(logits) - logits[y]
        return total / B
    agrees(extended["mdr"].smooth_triplet_loss, smooth, cdist(points(), points()),
           constants=[*INDICES, 0.3])
    agrees(extended["dml_da"].supervised_contrastive_loss, supcon, points() / 3, constants=[LONG])
    agrees(extended["jrd"].arcface, arc, np.tanh(points(8)) / 2, constants=[LONG, 7, 0.2])
    for function, constants in (
            (extended["mdr"].smooth_triplet_loss, (*[LONG[:0]] * 3, 0.3)),
            (extended["dml_da"].supervised_contrastive_loss, (torch.arange(B),))):
        x = torch.tensor(cdist(points(), points()), requires_grad=True)
        function(x, *constants).backward()                  # nothing to compare: 0, and no NaN
        assert function(x, *constants) == 0 and not x.grad.any()
    (test,) = re.findall(r"```python\n(.*?)```", NEW, re.DOTALL)
    exec(test + "test_anisotropy_regularizer()",
         {"dml_da": extended["dml_da"], "np": np, "agrees": agrees, "points": points})


# ---------------------------------------------------------------------------- bigger projects
OWN_FILES = {"common.py": "DATA = 1", "eval.py": "def score(): return 2", "report.py": "",
             "support/__init__.py": "", "support/data.py": "DATA = 3"}


@pytest.fixture
def bigger_project(tmp_path, monkeypatch):
    """bigger_project(files): a project of somebody who has files of these names, before this folder
    on the path, and nothing of both imported"""
    def make(files, ours=(str(ROOT),)):
        for name in files:
            path = tmp_path / "mine" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(OWN_FILES.get(name, "DATA = 1"))
        path = [entry for entry in sys.path if entry != str(ROOT)]
        monkeypatch.setattr(sys, "path", [str(tmp_path / "mine"), *ours, *path])
        for name in [*sys.modules]:
            if name.partition(".")[0] in ("common", "eval", "support", "report", "jrd", "mdr",
                                          "dml_da"):
                del sys.modules[name]
        importlib.invalidate_caches()
        return tmp_path / "mine"
    with patch.dict(sys.modules):
        yield make


FILES = "common.py common/__init__.py eval.py eval/__init__.py support/__init__.py support.py"


@pytest.mark.parametrize("script, file", [
    *itertools.product(["jrd", "mdr", "dml_da"], FILES.split()), ("eval", "support/__init__.py")])
def test_a_file_of_a_bigger_project_that_is_in_the_way_is_named(script, file, bigger_project):
    """By the traceback, whose lines show the comments beside the imports."""
    folder = bigger_project([file])
    with pytest.raises(ImportError) as error:
        importlib.import_module(script)
    *lines, last = traceback.format_exception(error.value)
    assert last.startswith("ImportError: cannot import name '") and f"({folder / file})" in last
    assert "# yours in the way?  docs/extending.md\n" in lines[-1]
    assert "### Beside a common.py of yours" in OWN


@pytest.mark.parametrize("files", [["report.py"], ["support/data.py"], ["common/data.py"]])
def test_other_files_of_a_bigger_project_are_not_in_the_way(files, bigger_project):
    """A report of its own; folders without __init__.py."""
    bigger_project(files)
    assert jrd.jrs is not importlib.import_module("jrd").jrs


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_pages_recipe_lets_both_sides_keep_their_own(when, bigger_project):
    """Whether a project imports its own files before ours or after, or imports ours amid them."""
    (source,) = [block for block in BLOCKS if "set_aside" in block]
    folder = bigger_project(OWN_FILES, ours=())
    (folder / "papers.py").write_text(source.replace("path/to/this/folder", str(ROOT)))
    with (folder / "common.py").open("a") as file:
        file.write("\nfrom papers import jrd")                          # they import ours
    path = [*sys.path]
    names = ("papers", "common", "eval", "support.data", "report")
    for name in names if when == "after" else names[::-1]:
        importlib.import_module(name)
    papers, common, own_eval = map(sys.modules.get, ("papers", "common", "eval"))
    for name in names:
        assert Path(sys.modules[name].__file__).parent in (folder, folder / "support"), name
    assert (common.DATA, own_eval.score(), sys.modules["support"].data.DATA) == (1, 2, 3)
    assert common.jrd is papers.jrd and sys.path == path
    z = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    y = torch.arange(8) // 2
    for theirs, ours in ((papers.jrd, jrd), (papers.mdr, mdr), (papers.dml_da, dml_da)):
        assert theirs is not ours
    assert papers.jrd.jrs(papers.jrd.gaussian_kernel(z, 3), y) == jrd.jrs(
        jrd.gaussian_kernel(z, 3), y)
    assert papers.mdr.MDR()(papers.mdr.pairwise_distances(z)) == mdr.MDR()(
        mdr.pairwise_distances(z))
    assert torch.equal(papers.dml_da.class_density(z, y)[1], dml_da.class_density(z, y)[1])
    assert papers.jrd.common.UserError.__module__ == "support.files"


# ---------------------------------------------------------------------------- loops
def setting(seed=0, batches=4):
    """What the page's loops find: six classes, ten images of each in a batch."""
    torch.manual_seed(seed)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(48, 24), nn.ReLU())
    embedding = nn.Linear(24, 12)
    model, proxies = nn.Sequential(backbone, embedding), nn.Parameter(torch.randn(12, CLASSES))
    draw = torch.Generator().manual_seed(1)
    labels = torch.arange(60) // 10
    centres = torch.randn(CLASSES, 3, 4, 4, generator=draw)
    loader = [(centres[labels] + torch.randn(60, 3, 4, 4, generator=draw), labels)
              for _ in range(batches)]
    optimizer = torch.optim.Adam([*model.parameters(), proxies], lr=1e-2)
    return dict(torch=torch, nn=nn, F=F, device="cpu", backbone=backbone, embedding=embedding,
                model=model, proxies=proxies, optimizer=optimizer, loader=loader, every_image=loader[:1],
                triplets=[(x[0:60:2], x[1:60:2], x.roll(10, 0)[0:60:2]) for x, _ in loader],
                classes=CLASSES)


def run(name, batches=4, source=None):
    """The loop on random data -> its variables."""
    space = setting(batches=batches)
    exec(source or LOOPS[name], space)
    return space


@pytest.mark.parametrize("name", LOOPS)
def test_the_marked_lines_are_all_that_is_added(name):
    """Without them the loop runs and knows nothing of us."""
    plain = "".join(line for line in LOOPS[name].splitlines(True) if "# +" not in line)
    assert not re.search(r"\b(jrd|mdr|dml_da|regularizer|targets)\b", plain)
    assert run(name, source=plain)["embedding"].weight.isfinite().all()


@pytest.mark.parametrize("variant", ["jrd", "jrd-c"])
def test_the_loss_is_eq_11(variant):
    """The page's line puts JRD-C in place of the loop's kernel."""
    source = LOOPS["jrd"]
    if variant == "jrd-c":
        source, times = re.subn(r"^    gram = .*\n", JRD_C, source, flags=re.M)
        assert times == 1
    space = run("jrd", batches=1, source=source)
    cfg = jrd.parse_args(["--dataset", "cub", "--m", "0", "--variant", variant])
    reps = [space[x].detach() for x in ("x_minus", "x", "x_plus")]
    want = jrd.objective(lambda _: reps, cfg, None, space["labels"])[0]
    assert space["loss"].item() == pytest.approx(want.item(), rel=1e-5)


def test_the_loss_is_mdrs():
    space, i, regularizer = setting(batches=1), torch.arange(30), mdr.MDR()
    D = mdr.unit_mean(mdr.pairwise_distances(space["model"](torch.cat(space["triplets"][0]))))
    want = (mdr.triplet_loss(D, i, i + 30, i + 60, 0.2) + 0.6 * regularizer(D)
            + 0.01 * regularizer.levels.square().sum())
    assert run("mdr", batches=1)["loss"].item() == pytest.approx(want.item(), rel=1e-5)


def test_the_loss_is_eq_9():
    """... by the script's own objective, on the loop's first batch"""
    space = setting(batches=1)
    (images, labels), = space["loader"]
    network = Mock(return_value=F.normalize(space["model"](images)), alpha=torch.ones(CLASSES) / 2,
                   D0=dml_da.initial_density(space["backbone"](images), labels))
    cfg = dml_da.parse_args(["--dataset", "cub"])
    want = dml_da.objective(network, cfg, images, labels, None)[0]
    assert run("dml_da", batches=1)["loss"].item() == pytest.approx(want.item(), rel=1e-5)


@pytest.mark.parametrize("name, learned", [("mdr", "regularizer"), ("dml_da", "targets")])
def test_a_checkpoint_continues_bit_for_bit(name, learned, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before, loop = re.fullmatch(r"(.*\n)(for .*)", LOOPS[name], re.DOTALL).groups()
    whole, first, second = run(name), run(name, batches=2), setting(seed=5)
    exec(SAVE.replace("regularizer.", f"{learned}."), first)
    for data in ("loader", "triplets"):
        second[data] = second[data][2:]
    exec(before + RESTORE.replace("regularizer.", f"{learned}."), second)
    second["D0"] = first.get("D0")                              # saved too, says the page
    exec(loop, second)
    for part in ("embedding", learned):
        torch.testing.assert_close(second[part].state_dict(), whole[part].state_dict(),
                                   rtol=0, atol=0)

"""docs/extending.md: its regularizer trains, its loops run, add what they say, and continue."""
import importlib
import re
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import dml_da
import jrd
import mdr
from conftest import ROOT, agrees, left_in, points

NEW, OWN = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8").split(
    "## In your own training")
BLOCKS = re.findall(r"```python\n(.*?)```", OWN, re.DOTALL)
LOOPS = dict(zip(("jrd", "mdr", "dml_da"), (block for block in BLOCKS if "\nfor " in block),
                 strict=True))
(JRD_C,) = [block for block in BLOCKS if block.startswith("    ")]
SAVE, RESTORE = BLOCKS[-2:]
CLASSES = 6


def test_the_example_of_a_new_regularizer_works(train, tmp_path, monkeypatch):
    """Put into a copy of dml_da.py where the page says, it trains and agrees."""
    function, names, branch, test = re.findall(r"```python\n(.*?)```", NEW, re.DOTALL)
    weight, choices = names.splitlines()
    source = (ROOT / "dml_da.py").read_text(encoding="utf-8")
    for old, new in ((r"^REG_WEIGHTS = .*\n", "\\g<0>" + weight + "\n"),
                     (r"^    add\(\"--regularizer\".*\n", choices + "\n"),
                     (r"^# -+ objective", function + "\n\n\\g<0>"),
                     (r"^    if cfg.regularizer == \"en\"", branch + "\\g<0>"),
                     (r"other = .* in \(\"en\", \"gor\"", "\\g<0>, \"anisotropy\"")):
        source, times = re.subn(old, new, source, flags=re.M)
        assert times == 1, old
    (tmp_path / "extended.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    extended = importlib.import_module("extended")
    exec(test + "test_anisotropy_regularizer()",
         {"dml_da": extended, "np": np, "agrees": agrees, "points": points})
    folder, _ = train(extended, "--regularizer", "anisotropy", "--iterations", "1")
    assert 0 < left_in(folder)[1]["last epoch"]["R@1"] < 1


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
    return dict(torch=torch, nn=nn, F=F, backbone=backbone, embedding=embedding, model=model,
                proxies=proxies, optimizer=optimizer, loader=loader, every_image=loader[:1],
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


@pytest.mark.parametrize("name", ["mdr", "dml_da"])
def test_a_checkpoint_continues_bit_for_bit(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save, restore = SAVE, RESTORE
    if name == "dml_da":
        save, restore = (s.replace("regularizer.", "targets.") for s in (save, restore))
    before, loop = re.fullmatch(r"(.*\n)(for .*)", LOOPS[name], re.DOTALL).groups()
    whole, first, second = run(name), run(name, batches=2), setting(seed=5)
    exec(save, first)
    for data in ("loader", "triplets"):
        second[data] = second[data][2:]
    exec(before + restore, second)
    second["D0"] = first.get("D0")                              # saved too, says the page
    exec(loop, second)
    assert torch.equal(second["embedding"].weight, whole["embedding"].weight)
    own, want = (space.get("regularizer") or space["targets"] for space in (second, whole))
    torch.testing.assert_close(own.state_dict(), want.state_dict(), rtol=0, atol=0)

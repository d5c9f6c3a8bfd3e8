"""The loops of docs/extending.md run, add what they say, and go on from a checkpoint."""
import re

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import dml_da
import jrd
import mdr
from conftest import ROOT

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
OWN = PAGE[PAGE.index("## In your own training"):]
BLOCKS = re.findall(r"```python\n(.*?)```", OWN, re.DOTALL)
LOOPS = dict(zip(("jrd", "mdr", "mdr pml", "dml_da", "dml_da pml"),
                 (block for block in BLOCKS if "\nfor " in block), strict=True))
OTHERS = [line for block in BLOCKS if block.startswith("    ") for line in block.splitlines()]
SAVE, RESTORE = BLOCKS[-2:]
CLASSES, LR = 6, 1e-2


def setting(seed=0, batches=4):
    """What the page's loops find: six classes, ten images each a batch."""
    torch.manual_seed(seed)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(48, 24), nn.ReLU())
    embedding = nn.Linear(24, 12)
    model, proxies = nn.Sequential(backbone, embedding), nn.Parameter(torch.randn(12, CLASSES))
    draw = torch.Generator().manual_seed(1)
    labels = torch.arange(60) // 10
    centres = torch.randn(CLASSES, 3, 4, 4, generator=draw)
    loader = [(centres[labels] + torch.randn(60, 3, 4, 4, generator=draw), labels)
              for _ in range(batches)]
    optimizer = torch.optim.Adam([*model.parameters(), proxies], lr=LR)
    return dict(torch=torch, F=F, backbone=backbone, embedding=embedding, model=model, d=12,
                proxies=proxies, optimizer=optimizer, loader=loader, every_image=loader, lr=LR,
                triplets=[(x[0:60:2], x[1:60:2], x.roll(10, 0)[0:60:2]) for x, _ in loader],
                classes=CLASSES)


def run(name, batches=4, source=None):
    """The loop on random data -> its variables."""
    if name.endswith("pml"):
        pytest.importorskip("pytorch_metric_learning")
    space = setting(batches=batches)
    exec(source or LOOPS[name], space)
    return space


# ---------------------------------------------------------------------------- the loops
@pytest.mark.parametrize("name", LOOPS)
def test_the_marked_lines_are_all_that_is_added(name):
    """Without them the loop runs, knows nothing of us, and learns something else."""
    plain = "".join(line for line in LOOPS[name].splitlines(True) if "# +" not in line)
    assert not re.search(r"\b(jrd|mdr|dml_da|regularizer|targets)\b", plain)
    assert len(LOOPS[name].splitlines()) - len(plain.splitlines()) <= 10
    with_it, alone = run(name), run(name, source=plain)
    weights = [space["embedding"].weight for space in (with_it, alone)]
    assert all(w.isfinite().all() for w in weights)
    assert (weights[0] - weights[1]).abs().max() > 1e-3


def the_scripts_loss(name):
    """The same first batch through the script's own objective -> scalar"""
    space = setting(batches=1)
    (images, labels), = space["loader"]
    if name == "mdr":
        distances = mdr.unit_mean(mdr.pairwise_distances(
            space["model"](torch.cat(space["triplets"][0]))))
        i = torch.arange(30)
        regularizer = mdr.MDR()
        return (mdr.triplet_loss(distances, i, i + 30, i + 60, 0.2)
                + 0.6 * regularizer(distances) + 0.01 * regularizer.levels.square().sum())
    targets = dml_da.TargetDensities(CLASSES)
    targets.measure(space["backbone"](images).detach(), labels)
    cfg = dml_da.parse_args(["--dataset", "cub"])
    return dml_da.objective(lambda x: F.normalize(space["model"](x)), targets, cfg, images, labels,
                            None)[0]


@pytest.mark.parametrize("name", ["mdr", "dml_da"])
def test_the_loss_is_the_scripts(name):
    want = the_scripts_loss(name).item()
    assert run(name, batches=1)["loss"].item() == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("line", ["# JRD", *OTHERS])
def test_the_loss_is_eq_11(line):
    """The lines put JRD-C and MRD in place of the loop's kernel."""
    source = LOOPS["jrd"]
    if line in OTHERS:
        source, times = re.subn(r"^    kernel = .*\n", line + "\n", source, flags=re.M)
        assert times == 1 and len(OTHERS) == 2
    space = run("jrd", batches=1, source=source)
    variant = re.search(r"# (\S+)", line)[1].lower()
    cfg = jrd.parse_args(["--dataset", "cub", "--m", "0", "--variant", variant])
    reps = [space[x].detach() for x in ("x_minus", "x", "x_plus")]
    want = jrd.objective(lambda _: reps, cfg, None, space["labels"])[0]
    assert space["loss"].item() == pytest.approx(want.item(), rel=1e-5)


@pytest.mark.parametrize("name", ["mdr", "mdr pml", "dml_da", "dml_da pml"])
def test_what_each_learns_moves(name):
    space = run(name)
    if "mdr" in name:
        module = space["regularizer"]
        before = module.sigma.clone()
        assert module.batches == 4 and (module.levels != torch.tensor([-3., 0, 3])).all()
        module.eval()(torch.rand(5, 5))
        assert module.sigma == before and module.batches == 4
    else:
        targets = space["targets"]
        assert (targets.steps == 4).all() and (targets.alpha != 0.5).all()
        assert (targets.D0 > 0).all() == (name == "dml_da")


# ---------------------------------------------------------------------------- the checkpoint
@pytest.mark.parametrize("name", ["jrd", "mdr", "dml_da"])
def test_a_checkpoint_continues_bit_for_bit(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save, restore = SAVE, RESTORE
    if name == "dml_da":
        save, restore = (s.replace("regularizer.", "targets.") for s in (save, restore))
    if name == "jrd":                               # nothing of its own, but the loss's proxies
        save = save.replace("regularizer.state_dict()", "proxies.detach()")
        restore = restore.replace('regularizer.load_state_dict(state["regularizer"])',
                                  'proxies.data.copy_(state["regularizer"])')
    before, loop = re.fullmatch(r"(.*\n)(for .*)", LOOPS[name], re.DOTALL).groups()
    whole = run(name)

    def half(space, batches):
        for data in ("loader", "triplets"):
            space[data] = space[data][batches]
        exec(loop, space)

    first = setting()
    exec(before, first)
    half(first, slice(0, 2))
    exec(save, first)
    second = setting(seed=5)
    exec(before + restore, second)
    half(second, slice(2, 4))
    assert torch.equal(second["embedding"].weight, whole["embedding"].weight)
    for key in {"regularizer", "targets"} & set(whole):
        for own, want in zip(second[key].state_dict().values(), whole[key].state_dict().values()):
            assert torch.equal(own, want)

"""Shared by all tests: the import path, the comparison of code with an oracle, small datasets."""
import functools
import itertools
import json
import os
import runpy
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import dml_da  # noqa: E402
import jrd  # noqa: E402
import mdr  # noqa: E402
from support import glyphs  # noqa: E402

LABELS = np.array([2, 0, 5, 0, 7, 2, 0, 5])             # sizes 3, 2, 2, 1, with gaps, in no order
LONG, B = torch.tensor(LABELS), len(LABELS)
PAIRS = [*itertools.permutations(range(B), 2)]
POSITIVE = [(i, j) for i, j in PAIRS if LABELS[i] == LABELS[j]]
NEGATIVE = [(i, j) for i, j in PAIRS if LABELS[i] != LABELS[j]]
TRIPLETS = [(a, p, np.flatnonzero(LABELS != LABELS[a])[(3 * a + p) % 4]) for a, p in POSITIVE]
INDICES = torch.tensor(TRIPLETS).T                      # anchors, positives, negatives


def points(d=3, seed=0, n=B, scale=1.0):
    return scale * np.random.RandomState(seed).standard_normal((n, d))


each_script = pytest.mark.parametrize("script", [jrd, mdr, dml_da])


@pytest.fixture(autouse=True, scope="session")
def session(tmp_path_factory):
    """No test reads or writes the datasets and caches of whoever runs it.  Ctrl-C reaches the
    processes that tests start, even where a shell has SIGINT ignored.  No fsync, and figures drawn
    once, save two thirds of a short training.  One thread: several wait for each other."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["DML_DATA"] = str(tmp_path_factory.mktemp("data"))
    torch.set_num_threads(1)
    draw = functools.cache(lambda split, classes, images: drawn(split))
    with pytest.MonkeyPatch.context() as patch:
        drawn = glyphs.glyphs
        patch.setattr(os, "fsync", lambda file: None)
        patch.setattr(glyphs, "glyphs", lambda split: draw(split, *glyphs.GLYPHS[split]))
        yield


@pytest.fixture
def few_glyphs(monkeypatch):
    """Ten classes of four images to train, twenty of three to test."""
    monkeypatch.setitem(glyphs.GLYPHS, "train", (range(400, 410), 4))
    monkeypatch.setitem(glyphs.GLYPHS, "test", (range(450, 470), 3))


def agrees(function, oracle, *arrays, constants=(), step=1e-6, floor=1e-4):
    """function(*arrays, *constants) by torch equals oracle(*arrays) by NumPy in every entry and in
    its gradient to every array, entries weighted at random.

    The oracle's gradient is a central difference: what the paper holds constant (a detached
    bandwidth, a sampled index) the oracle must too.  `floor` keeps it from comparing 0 with 0.
    """
    arrays = [np.array(array, dtype=np.float64) for array in arrays]
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    value, want = function(*tensors, *constants), np.asarray(oracle(*arrays))
    assert np.abs(want).max() > floor, "the oracle is vacuous"
    np.testing.assert_allclose(value.detach(), want, rtol=1e-9, atol=1e-12)
    weights = np.random.RandomState(10).standard_normal(want.shape)
    gradients = torch.autograd.grad(value, tensors, torch.tensor(weights))
    for array, gradient in zip(arrays, gradients):
        slope = np.zeros_like(array)
        for at in np.ndindex(array.shape):
            middle = array[at]
            array[at] = middle + step
            above = oracle(*arrays)
            array[at] = middle - step
            slope[at] = (weights * (above - oracle(*arrays))).sum() / (2 * step)
            array[at] = middle
        assert np.abs(slope).max() > floor, "the oracle's gradient is vacuous"
        np.testing.assert_allclose(gradient, slope, rtol=1e-5, atol=1e-7)


@pytest.fixture
def typed(monkeypatch, capfd):
    """typed("jrd.py", *words): a script's own __main__, in this process, because a start of torch
    for each would take minutes -> exit status, stdout, stderr"""
    def run(script, *words):
        monkeypatch.setattr(sys, "argv", [script, *map(str, words)])
        status = 0
        try:
            runpy.run_path(str(ROOT / script), run_name="__main__")
        except SystemExit as stop:
            status = stop.code
        return status, *capfd.readouterr()
    return run


@pytest.fixture
def train(few_glyphs, tmp_path, capfd):
    """train(script, *flags, dataset=...): an epoch of a second -> the run's folder, its printout"""
    def run(script, *flags, dataset="glyphs"):
        places = ["--dataset", dataset, "--data-root", tmp_path, "--out", tmp_path / "runs"]
        script.train(script.parse_args([*map(str, places), "--backbone", "small", "--epochs", "1",
                                        "--workers", "0", *flags]))
        out = capfd.readouterr().out
        return Path(out.splitlines()[-1].removeprefix("run ")), out
    return run


def left_in(folder):
    """What a run leaves: the rows of its log, its result, its settings."""
    log, result, config = ((folder / name).read_text(encoding="utf-8")
                           for name in ("log.jsonl", "result.json", "config.json"))
    strict = functools.partial(json.loads, parse_constant=pytest.fail)         # NaN is no JSON
    return [*map(strict, log.splitlines())], strict(result), strict(config)


def edit_settings(folder, **changes):
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))


def make_folder(root, sizes, side=40, seed=0, suffix=".png"):
    """A folder of small images, a sub-folder a class, each class of its own colour."""
    from PIL import Image
    draw = np.random.RandomState(seed)
    for c, n in enumerate(sizes):
        (root / f"class{c:02}").mkdir(parents=True)
        colour = draw.randint(0, 200, 3)
        for i in range(n):
            noise = draw.randint(0, 56, (side, side + c % 3, 3))
            image = Image.fromarray((colour + noise).astype(np.uint8))
            image.save(root / f"class{c:02}" / f"{i}{suffix}")
    return root

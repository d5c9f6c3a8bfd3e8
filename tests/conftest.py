"""Shared by all tests: the import path, the comparison of code with an oracle, small datasets."""
import functools
import itertools
import json
import os
import runpy
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

os.environ["CUDA_VISIBLE_DEVICES"] = ""                 # what the tests say is of a CPU
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import dml_da  # noqa: E402
import jrd  # noqa: E402
import mdr  # noqa: E402
from support import glyphs  # noqa: E402

LABELS = np.array([2, 0, 5, 0, 7, 2, 0, 5])             # sizes 3, 2, 2, 1, with gaps, in no order
LONG, B = torch.tensor(LABELS), len(LABELS)
PAIRS = list(itertools.permutations(range(B), 2))
POSITIVE, NEGATIVE, TRIPLETS = [], [], []
for i, j in PAIRS:
    if LABELS[i] == LABELS[j]:
        POSITIVE.append((i, j))
    else:
        NEGATIVE.append((i, j))
for a, p in POSITIVE:
    negatives = np.flatnonzero(LABELS != LABELS[a])
    TRIPLETS.append((a, p, negatives[(3 * a + p) % len(negatives)]))
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
    draw = glyphs.glyphs

    @functools.cache
    def drawn(split, classes, images):
        return draw(split)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        patch.setattr(glyphs, "glyphs", lambda split: drawn(split, *glyphs.GLYPHS[split]))
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
            with warnings.catch_warnings():             # that a test has imported it too
                warnings.filterwarnings("ignore", "'report", RuntimeWarning)
                runpy.run_path(str(ROOT / script), run_name="__main__")
        except SystemExit as stop:
            status = stop.code
        return status, *capfd.readouterr()
    return run


@pytest.fixture
def train(few_glyphs, tmp_path, capfd):
    """train(script, *flags, dataset=...): an epoch of a second -> the run's folder, its printout"""
    def run(script, *flags, dataset="glyphs"):
        words = f"--data-root {tmp_path} --out {tmp_path}/runs --backbone small --epochs 1"
        words = [*words.split(), "--workers", "0", "--dataset", str(dataset), *flags]
        script.train(script.parse_args(words))
        out = capfd.readouterr().out
        return Path(out.splitlines()[-1].removeprefix("run ")), out
    return run


def left_in(folder):
    """What a run leaves: the rows of its log, its result, its settings."""
    read = functools.partial(json.loads, parse_constant=pytest.fail)           # NaN is no JSON
    rows = [read(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    result, config = folder / "result.json", folder / "config.json"
    return rows, read(result.read_text()), read(config.read_text())


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


def photograph(height, width, seed=0):
    """Pixels as of a photograph, uint8 (height, width, 3): smooth shapes, edges, noise."""
    draw = np.random.RandomState(seed)
    y, x = np.mgrid[:height, :width] / 40
    values = np.zeros((height, width, 3))
    for a, b, phase in draw.uniform(-2, 2, (9, 3)):
        wave = np.sin(a * x + b * y + 9 * phase)
        values += np.where(wave > phase / 2, wave, -1)[..., None] * draw.uniform(-1, 1, 3)
    values = 128 + 40 * values + draw.normal(0, 6, values.shape)
    return values.clip(0, 255).astype(np.uint8)

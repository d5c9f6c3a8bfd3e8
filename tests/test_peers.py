"""benchmarks/peers.py and docs/comparing.md: what eval.py gives on its sets, by hand; the rows of
the page; losses of pytorch-metric-learning, called as the page says, where it is installed."""
import importlib
import re

import numpy as np
import pytest
import torch

from conftest import ROOT
from eval import map_at_r, recall_at_k

PAGE = (ROOT / "docs" / "comparing.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def peers():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        patch.setenv("OMP_NUM_THREADS", "1")
        yield importlib.import_module("peers")


def rows_of(text):
    """The cells of a table's lines"""
    return [[cell.strip() for cell in line.split("|")[1:-1]]
            for line in text.splitlines() if line.startswith("|")]


@pytest.mark.parametrize("name, recall, map", [
    # Of 0, 1, 3, 4, 4.5 with classes a a b a b the first two hit only by their second place: R = 2.
    # test_eval.test_recall_by_hand has the places of all.
    ("plain", 2 / 5, 1 / 5),
    # From 1 a, a's 0 and b's 2 are equally far, which counts as a miss.  0 a finds 1 a, 2 b finds
    # 1 a, 4.5 b finds 2 b.
    ("ties", 2 / 4, 2 / 4),
    # 0 a has 1 a nearer than b's -1.000000001, which float64 tells apart; 1 a finds 0 a;
    # -1.000000001 b finds 0 a; -3.5 b finds -1.000000001 b.
    ("1e-9 apart", 3 / 4, 3 / 4),
    # Every answer is as far as every other: all negatives count as nearer.
    ("collapsed, class by class", 0, 0), ("collapsed, classes in turn", 0, 0),
    # 0 a and 1 a find each other; 5 b and 20 c have no second image and count as misses.
    ("classes of one image", 2 / 4, 2 / 4),
    # 0 a and its copy find each other.  5 b has c's copy of it at 0, and c b's; 20 b has 20.5 c
    # nearest, and 20.5 c 20 b.
    ("duplicates", 2 / 6, 2 / 6),
    # R = 3.  The classes of the three nearest: of a's 0, 1 and 2.2 a a b, of its 9 b b b; of b's 5
    # and 6.1 b a a, of its 12 and 13.5 b a b.  So P(i) rel(i) sums to 1 + 1 three times, to 0, to 1
    # twice, to 1 + 2/3 twice; each over R.
    ("classes of four", 7 / 8, (3 * 2 / 3 + 2 / 3 + 2 * 5 / 9) / 8),
    # Points of a class lie 2.2 apart, others 32: all hit, however far the origin.
    ("far from 0", 1, 1),
    # float16 holds the steps of 1/1024 above 1 exactly: partners are 1 step apart, others 3.
    ("float16", 1, 1),
    # 0 and 10 are a class, 1 and 11 another, whose names differ by 1: each finds the other class.
    ("labels above 2^24", 0, 0)])
def test_ours_by_hand(name, recall, map, peers):
    x, y = peers.SETS[name]
    assert recall_at_k(x, y, [1])[1] == pytest.approx(recall)
    assert map_at_r(x, y) == pytest.approx(map)


def test_points_far_from_0_are_what_their_docstring_says(peers):
    x, y = np.float64(peers.far_from_0()[0]), peers.far_from_0()[1]
    pairs = np.linalg.norm(x[::2] - x[1::2], axis=1)
    others = np.linalg.norm(x[:1] - x[2:], axis=1)
    assert 1.9 < pairs.min() and pairs.max() < 2.6 and others.min() > 25 and len(set(y)) == 150


def test_the_page_has_what_eval_gives(peers, monkeypatch):
    """Each set's first row, whatever is installed; the values of our losses."""
    monkeypatch.setattr(peers, "version", lambda module: None)
    ours = peers.searches()[1:]
    assert len(ours) == len(peers.SETS)
    assert [row for row in rows_of(PAGE) if len(row) == 7 and row[1] == "eval.py"] == ours
    assert peers.loss_table()[1:] == []


@pytest.mark.parametrize("module", ["pytorch_metric_learning", "faiss", "sklearn", "torchmetrics",
                                    "pytrec_eval", "usearch", "hnswlib"])
def test_the_page_has_what_a_library_gives(module, peers, monkeypatch):
    installed = peers.version(module)
    if f"{peers.NAMES[module]} {installed}: " not in PAGE:
        pytest.skip(f"{peers.NAMES[module]} {installed or 'is not installed'}")
    monkeypatch.setattr(peers, "version", lambda other: installed if other == module else None)
    told = [row[1:] for row in rows_of(PAGE)]
    for row in peers.searches()[1:]:
        assert row[1:] in told


def test_embeddings_of_ones_own(peers, monkeypatch, tmp_path, typed):
    """As they are and L2-normalized: points on two rays, a class each, whose nearest is on the
    other ray until lengths are gone.  What cannot be compared is refused in a line."""
    monkeypatch.setattr(peers, "version", lambda module: None)
    x = np.array([[1, 0], [0.9, 0.8], [10, 0], [9, 8]])
    arrays = {"embeddings": x, "labels": ["a", "b", "a", "b"]}
    np.savez(tmp_path / "e.npz", **arrays)
    points = peers.own_points(tmp_path / "e.npz")
    told = [(row[0], float(row[2])) for row in peers.searches(points)[1:]]
    assert told == [("e.npz", 0), ("e.npz, L2-normalized", 100)]
    name, _, nmi, *_ = peers.clusterings(points)[2]
    assert name == "e.npz, L2-normalized, 4 × 2" and 0 <= float(nmi) <= 100
    for wrong, says in (
            (arrays | {"gallery": x, "gallery_labels": arrays["labels"]}, "has a gallery"),
            (arrays | {"embeddings": x * [[1], [1], [1], [np.nan]]}, "are not finite"),
            ({"embeddings": x[:1], "labels": ["a"]}, "has one embedding")):
        np.savez(tmp_path / "g.npz", **wrong)
        code, out, told = typed("benchmarks/peers.py", "--npz", tmp_path / "g.npz")
        assert (code, out, told.count("\n")) == (2, "", 1) and says in told
    assert typed("benchmarks/peers.py", "--npz", "g.npz", "--tables", "losses")[0] == 2


def test_scikit_learn_from_the_same_points_gives_the_same_nmi(peers):
    """The recipe below the page's table of k-means; from other points it gives another."""
    pytest.importorskip("sklearn")
    x, y = peers.classes_around(20, 400, 4.0, 32)
    for seed in range(3):
        ours = peers.nmi(peers.kmeans(x, 20, seed), y)
        theirs = [peers.nmi_scikit(x, y, seed, peers.first_points(x, y, other), tol=0)
                  for other in (seed, seed + 1)]
        assert theirs[0] == pytest.approx(ours, abs=1e-12) and abs(theirs[1] - ours) > 1e-3


NAMES_OF_LOSSES = ["dml_da.contrastive_loss", "dml_da.triplet_loss", "dml_da.n_pair_loss",
                   "mdr.triplet_loss", "mdr.contrastive_loss", "mdr.MarginLoss", "jrd.amsoftmax"]


@pytest.mark.parametrize("name", NAMES_OF_LOSSES)
def test_a_loss_of_theirs_called_as_the_page_says_is_ours(name, peers):
    """Value and gradient; by default it is another.  1e-8: amsoftmax's margin is a float32."""
    pytest.importorskip("pytorch_metric_learning")
    assert [*peers.losses()] == NAMES_OF_LOSSES
    x, *functions = peers.losses()[name]
    (ours, g), (default, g_default), (agreed, g_agreed) = (
        peers.value_and_gradient(function, x) for function in functions)
    assert ours > 0.1 and g.abs().max() > 0.01
    assert agreed == pytest.approx(ours, rel=1e-8)
    torch.testing.assert_close(g_agreed, g, rtol=1e-6, atol=1e-8)
    assert abs(default - ours) > 0.1 and (g_default - g).abs().max() > 0.005


def test_their_sampling_is_as_the_page_says():
    """Distance-weighted: per anchor as many triplets as its class has images, the positive drawn;
    none if no negative is within 1.4, nor if two others are so near that the weights of all else
    underflow.  MPerClassSampler repeats images of a class that has fewer than m."""
    miners = pytest.importorskip("pytorch_metric_learning.miners")
    samplers = pytest.importorskip("pytorch_metric_learning.samplers")
    mdr = importlib.import_module("mdr")
    torch.manual_seed(0)
    generator, y = torch.Generator().manual_seed(0), torch.arange(4).repeat_interleave(3)
    x = torch.randn(12, 128)
    drawn, theirs = mdr.distance_weighted_negatives(x, y, generator), miners.DistanceWeightedMiner()
    assert len(drawn[0]) == 4 * 3 * 2 and len(theirs(x, y)[0]) == 4 * 3 * 3
    pairs = set(zip(drawn[0].tolist(), drawn[1].tolist()))
    assert len(pairs) == 24                                 # ours: each ordered pair once
    two = torch.arange(2).repeat_interleave(6)
    opposite = torch.cat([torch.ones(6, 128), -torch.ones(6, 128)]) + 0.01 * torch.randn(12, 128)
    assert len(mdr.distance_weighted_negatives(opposite, two, generator)[0]) == 60
    assert len(theirs(opposite, two)[0]) == 0
    wide = torch.randn(12, 512) + torch.randn(1, 512)       # negatives at 1 to 1.3 on the sphere
    assert len(theirs(wide, y)[0]) == 36
    wide[3] = wide[0] + 0.01 * torch.randn(512)             # of class 1, beside one of class 0
    assert sorted({*theirs(wide, y)[0].tolist()}) == [0, 3]
    assert len(mdr.distance_weighted_negatives(wide, y, generator)[0]) == 24
    sampler = samplers.MPerClassSampler(torch.tensor([0] * 2 + [1] * 8), 4, 8, 8)
    for _ in range(9):
        assert sum(image < 2 for image in sampler) == 4


def test_every_name_of_the_command_is_on_the_page(peers):
    for package in peers.NAMES.values():
        assert package in PAGE
    assert peers.parse_args([]).tables == list(peers.TABLES)
    sections = re.findall(r"^## (.*)", PAGE, re.M)
    assert sections == ["Searches", "k-means and NMI", "Losses and samplers"]

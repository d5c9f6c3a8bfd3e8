"""support/ranks.py against plain definitions: distances by differences, in float64."""
import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from eval import map_at_r, recall_at_k
from support import ranks


def exact_places(x, labels, gallery=None, gallery_labels=None):
    """The places of each query's positives, ties against it: [[place, ...], ...]"""
    others, other_labels = (x, labels) if gallery is None else (gallery, gallery_labels)
    d = cdist(np.float64(x), np.float64(others))
    if gallery is None:
        np.fill_diagonal(d, np.nan)                         # is near nothing
    same = np.asarray(labels)[:, None] == np.asarray(other_labels)
    return [[j + int((wrong <= v * (1 + 1e-12)).sum()) for j, v in enumerate(right, 1)]
            for wrong, right in ((row[~s], np.sort(row[s & (row >= 0)])) for row, s in zip(d, same))]


def agree(x, y, g=None, gy=None):
    """First places at one K and at several; all positives' places up to R."""
    want = exact_places(x, y, g, gy)
    firsts = torch.tensor([p[0] if p else torch.inf for p in want])
    for ks in ([1], [len(x) // 2], [1, 2, 3, 8, 50, 10 ** 6]):
        places = ranks.first_places(x, y, g, gy, ks)
        assert all(((places <= k) == (firsts <= k)).all() for k in ks), ks
    R = max(1, *map(len, want))
    seen = [*ranks.positive_places(x, y, g, gy, R)]
    assert [row for row, _ in seen] == [*range(len(x))]
    for row, places in seen:
        inside = [p for p in want[row] if p <= R]
        assert places.tolist()[:len(inside)] == inside and (places[len(inside):] > R).all()


def points(kind, n, draw):
    x, copies = draw.standard_normal((n, 6)), draw.standard_normal((3, 6))[draw.randint(0, 3, n)]
    return torch.tensor({
        "ties far from 0": np.float32(1000 + draw.randint(-2, 3, (n, 6)) * 2.0 ** -13),
        "copies": np.float32(copies * 1e-30),
        "beside an outlier": np.float32(np.vstack([x[1:], x[:1] * 1e9])),
        "nearly equal": 7 + np.where(x > 2, x, copies) + 1e-6 * x}[kind])       # float64


@pytest.mark.parametrize("kind",
                         ["ties far from 0", "copies", "beside an outlier", "nearly equal"])
def test_places_are_those_of_the_distances(kind):
    """Queries lie in the gallery too, where classes are missing; one query, one point, one class;
    all equal."""
    draw = np.random.RandomState(0)
    for n, m, classes in ((90, 60, 12), (40, 9, 30), (1, 30, 4), (20, 1, 1)):
        x, g = points(kind, n + m, draw).split([n, m])
        g[:min(n, m) // 2] = x[:min(n, m) // 2]
        y, gy = (torch.tensor(draw.randint(c, classes + c, size)) for c, size in ((0, n), (1, m)))
        agree(x, y)
        agree(x, y, g, gy)
    agree(x * 0 + 0.1, torch.arange(len(x)) % 3)


@pytest.mark.parametrize("n, classes", [(1100, 9), (1100, 400), (600, 1)])
def test_many_blocks(n, classes):
    """Classes that end within a block of 512, and ones that span several."""
    draw = np.random.RandomState(classes)
    x, y = (torch.tensor(draw.randint(0, *size)) for size in ((5, (n, 4)), (classes, n)))
    agree(x.float(), y)
    agree(x[:700].float(), y[:700], x[300:].float(), y[300:])


@pytest.mark.parametrize("size", [1e-36, 1e-3, 1, 1e30])
def test_what_float64_tells_apart_and_what_is_a_tie(size):
    """A positive, a negative `share` times as far away, another positive; at any width, and beside
    a query without a positive that is much larger."""
    for d in (1, 48, 513):
        away = torch.full((1, d), size).double()
        for share, hit in ((1 + 1e-9, 1), (1, 0), (1 - 1e-9, 0), (-1, 0)):
            x, g = torch.cat([away, 1e30 * away]), torch.cat([2 * away, (1 + share) * away, 4 * away])
            assert recall_at_k(x, [0, 2], [1], g, [0, 1, 0]) == {1: hit / 2}
            assert map_at_r(x, [0, 2], g, [0, 1, 0]) == (hit or 0.5) / 4


def test_tf32_that_a_program_allows_is_off_in_products(monkeypatch):
    seen, x, precision = [], torch.eye(4), torch.get_float32_matmul_precision
    monkeypatch.setattr(torch.Tensor, "__matmul__",
                        lambda a, b: (seen.append(precision()), torch.mm(a, b))[1])
    torch.set_float32_matmul_precision("high")
    try:
        recall_at_k(x, [0, 0, 1, 1], [1]), map_at_r(x, [0, 0, 1, 1]), ranks.nearest(x, x)
        assert {*seen} == {"highest"} and precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")

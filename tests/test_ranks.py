"""support/ranks.py against plain definitions, exactly: the fast counting must agree with fractions
on the very numbers given, whatever float32 makes of them."""
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from eval import map_at_r, recall_at_k
from support import ranks


def exact_places(x, labels, gallery=None, gallery_labels=None):
    """What ranks.positive_places should give, by exact distances: [[place, ...], ...]"""
    alone = gallery is None
    gallery, gallery_labels = (x, labels) if alone else (gallery, gallery_labels)
    x, gallery = ([[Fraction(v) for v in row] for row in s.double().tolist()] for s in (x, gallery))
    places = []
    for i, query in enumerate(x):
        order = sorted((sum((a - b) ** 2 for a, b in zip(query, other)),
                        bool(gallery_labels[j] == labels[i]))
                       for j, other in enumerate(gallery) if not (alone and i == j))
        places.append([place for place, (_, right) in enumerate(order, 1) if right])
    return places


def agree(x, y, g=None, gy=None):
    """Places at all K, and those of all positives up to the query's R."""
    want = exact_places(x, y, g, gy)
    firsts = torch.tensor([p[0] if p else ranks.NOWHERE for p in want])
    for k in {1, 2, 3, len(x) // 2 + 1}:
        assert ((ranks.first_places(x, y, g, gy, [k]) <= k) == (firsts <= k)).all(), k
    R, seen = max(1, *map(len, want)), 0
    for rows, places in ranks.positive_places(x, y, g, gy, R):
        for i, row in zip(rows.tolist(), places.tolist()):
            inside = [p for p in want[i] if p <= R]
            assert row[:len(inside)] == inside and all(p > R for p in row[len(inside):])
            seen += 1
    assert seen == len(x)


def points(kind, n, d, draw):
    base = draw.standard_normal((3, d))
    base /= np.linalg.norm(base, axis=1, keepdims=True)
    around = base[draw.randint(0, 3, n)]
    sizes = 10.0 ** draw.randint(-18, 18, (n, 1))
    return {"whole": lambda: draw.randint(-2, 3, (n, d)),
            "offset": lambda: draw.standard_normal((n, d)) + 1000,
            "duplicates": lambda: around,
            "one ulp": lambda: 1 + draw.randint(-2, 3, (n, d)) * 2.0 ** -23,
            "near": lambda: around + 1e-7 * draw.standard_normal((n, d)),
            "permuted": lambda: np.stack([draw.permutation(base[0]) for _ in range(n)]),
            "tiny": lambda: 1e-40 * draw.randint(-9, 9, (n, d)),
            "huge": lambda: 1e37 * draw.standard_normal((n, d)),
            "every size": lambda: draw.standard_normal((n, d)) * sizes,
            "beside a constant": lambda: np.append(np.ones((n, 1)), 1e-30 * around[:, 1:], 1),
            "far beside one": lambda: np.append(np.ones((n, 1)), 1e-200 * around[:, 1:], 1),
            "smaller than float32": lambda: 1e-250 * draw.standard_normal((n, d)),
            "larger than float32": lambda: 1e250 * draw.standard_normal((n, d)),
            "equal": lambda: np.full((n, d), 0.1)}[kind]()


KINDS = ["whole", "offset", "duplicates", "one ulp", "near", "permuted", "tiny", "huge",
         "every size", "beside a constant", "equal"]
LARGER = ["far beside one", "smaller than float32", "larger than float32"]


# ---------------------------------------------------------------------------- places
@pytest.mark.parametrize("kind, dtype", [*((kind, torch.float32) for kind in KINDS),
                                         *((kind, torch.float64) for kind in KINDS + LARGER)])
def test_places_are_those_of_the_exact_distances(kind, dtype):
    draw = np.random.RandomState(len(kind))
    for n, d, classes in ((40, 5, 6), (33, 12, 30), (25, 3, 1)):
        x, y = points(kind, n, d, draw), draw.randint(0, classes, n)
        agree(torch.tensor(x).to(dtype), torch.tensor(y))


@pytest.mark.parametrize("kind", KINDS)
def test_places_in_a_gallery(kind):
    """Half of the queries lie in the gallery too; some classes are missing there."""
    draw = np.random.RandomState(KINDS.index(kind))
    for n, m, classes in ((30, 40, 8), (40, 9, 5), (1, 30, 4), (20, 1, 2)):
        both = torch.tensor(points(kind, n + m, 6, draw)).float()
        x, g = both[:n], both[n:]
        g[:min(n, m) // 2] = x[:min(n, m) // 2]
        y, gy = (torch.tensor(draw.randint(0, classes - c, size)) for c, size in ((0, n), (1, m)))
        agree(x, y, g, gy)


@pytest.mark.parametrize("n, classes", [(1, 1), (2, 1), (2, 2), (50, 50), (64, 1)])
def test_small_sets(n, classes):
    draw = np.random.RandomState(n)
    agree(torch.tensor(draw.randint(-2, 3, (n, 2))).float(), torch.arange(n) % classes)


@pytest.mark.parametrize("n, classes", [(1300, 9), (1300, 400), (1100, 1)])
def test_many_blocks(n, classes):
    """Classes that end within a block of 512, and ones that span several."""
    draw = np.random.RandomState(classes)
    x, y = (torch.tensor(draw.randint(0, *size)) for size in ((5, (n, 4)), (classes, n)))
    d = cdist(x, x) + np.diag(np.full(n, np.inf))
    same = (y[:, None] == y).numpy()
    nearest = np.where(same, d, np.inf).min(1, keepdims=True)
    want = np.where(nearest[:, 0] < np.inf, 1 + ((d <= nearest) & ~same).sum(1), ranks.NOWHERE)
    places = ranks.first_places(x.float(), y, None, None, [1, 2, 8, 100])
    for k in (1, 2, 8, 100):
        np.testing.assert_array_equal(places <= k, want <= k)


def test_an_image_twice_under_two_classes_is_a_tie():
    """Every query's fellow and a stranger are the same image: nothing is a hit, at any width."""
    for d in (3, 48, 128, 513):
        x = torch.randn(3, d, generator=torch.Generator().manual_seed(d))
        g, gy = x.repeat(2, 1), torch.tensor([0, 1, 2, 3, 4, 5])
        assert recall_at_k(x, [0, 1, 2], iter([1.0]), g, gy) == {1: 0}
        assert map_at_r(x, [0, 1, 2], g, gy) == 0


def test_tf32_that_a_program_allows_is_off_in_places(monkeypatch):
    seen, centred = [], ranks.centred
    monkeypatch.setattr(ranks, "centred", lambda *of: (
        seen.append(torch.get_float32_matmul_precision()), centred(*of))[1])
    torch.set_float32_matmul_precision("high")
    try:
        recall_at_k(torch.eye(4), [0, 0, 1, 1], [1])
        assert {*seen} == {"highest"} and torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


# ---------------------------------------------------------------------------- neighbours
@pytest.mark.parametrize("n, m", [(400, 60), (2500, 7), (1, 1)])
def test_nearest_is_the_first_of_the_nearest(n, m):
    draw = np.random.RandomState(m)
    a, b = (torch.tensor(draw.randint(-3, 4, (size, 2))).float() for size in (n, m))
    d = cdist(a, b)
    values, which = ranks.nearest(a, b)
    assert which.tolist() == d.argmin(1).tolist()
    np.testing.assert_allclose(2 * values + a.square().sum(1), d.min(1) ** 2, atol=1e-6)

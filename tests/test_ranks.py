"""support/ranks.py against plain definitions, value for value.

Where ties matter the points are small whole numbers: every product, sum and distance is then exact
in float32 too, so the fast counting has no rounding to hide behind.
"""
import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from conftest import positive_places
from support import ranks


def whole_numbers(n, d, classes, seed=0, largest=3):
    """Points on a small grid, so that many distances are equal and some points the same."""
    draw = np.random.RandomState(seed)
    return (torch.tensor(draw.randint(-largest, largest + 1, (n, d)), dtype=torch.float32),
            torch.tensor(draw.randint(0, classes, n)))


def firsts(places):
    return [int(p[0]) if len(p) else ranks.NOWHERE for p in places]


def ties(x, y, g, gy):
    """How many queries have a negative exactly as far as their nearest positive."""
    d, same = cdist(x, g), np.asarray(y)[:, None] == np.asarray(gy)[None]
    if g is x:
        np.fill_diagonal(d, np.inf)
    nearest = np.where(same, d, np.inf).min(1)
    return int(((d == nearest[:, None]) & ~same & np.isfinite(d)).any(1).sum())


@pytest.fixture(params=[1, 2, 3], ids="{} threads".format)
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    assert torch.get_num_threads() == request.param
    torch.set_num_threads(before)


# ---------------------------------------------------------------------------- places
@pytest.mark.parametrize("n, d, classes", [
    (300, 3, 10), (257, 4, 40), (129, 2, 3), (50, 4, 50), (64, 3, 1), (1, 3, 1), (2, 1, 1),
    (33, 1, 2)])
def test_first_places_are_those_of_the_definition(n, d, classes, threads):
    x, y = whole_numbers(n, d, classes)
    assert n < 100 or ties(x, y, x, y) > n / 10
    want = firsts(positive_places(x, y))
    for dtype in (torch.float32, torch.float64):
        assert ranks.first_places(x.to(dtype), y).tolist() == want


@pytest.mark.parametrize("n, m, classes", [(150, 201, 20), (201, 40, 25), (1, 300, 5), (90, 1, 2)])
def test_first_places_in_a_gallery(n, m, classes, threads):
    """Every query also lies in the gallery, as far as there is room; some classes are missing."""
    x, y = whole_numbers(n, 3, classes, seed=1)
    g, gy = whole_numbers(m, 3, max(1, classes - 2), seed=2)
    both = min(n, m) // 2
    g[:both], gy[:both] = x[:both], y[:both]
    assert n < 100 or ties(x, y, g, gy) > 0
    assert ranks.first_places(x, y, g, gy).tolist() == firsts(positive_places(x, y, g, gy))


def test_duplicates_far_apart_in_the_matrix_tie_exactly():
    """The same image among positives and among negatives, in different blocks: always a tie, also
    where products round (48 dimensions, float32)."""
    draw = np.random.RandomState(3)
    y = torch.tensor(draw.randint(0, 30, 3000))
    x = torch.nn.functional.normalize(torch.tensor(draw.standard_normal((3000, 48))).float())
    first, stranger = (y == 0).nonzero()[:2, 0], (y == 29).nonzero()[0, 0]
    x[first[1]] = x[first[0]].clone()
    x[stranger] = x[first[0]].clone()
    assert ranks.first_places(x, y)[first].tolist() == [2, 2]


@pytest.mark.parametrize("n, m, classes", [(300, None, 10), (150, 201, 20), (64, None, 1),
                                           (40, None, 39), (5, 30, 4)])
def test_positive_places_are_those_of_the_definition(n, m, classes, monkeypatch):
    """Up to the query's own R, which is what MAP@R reads; the others are above it."""
    x, y = whole_numbers(n, 3, classes, seed=4)
    g, gy = (None, None) if m is None else whole_numbers(m, 3, classes, seed=5)
    want = positive_places(x, y, g, gy)
    R = max(map(len, want))
    seen = 0
    for rows, places in ranks.positive_places(x, y, g, gy, R):
        for i, row in zip(range(n)[rows], places.tolist()):
            own = len(want[i])
            assert [p if p <= own else None for p in row[:own]] == [
                p if p <= own else None for p in want[i]]
            assert all(p > own for p in row[own:]) and row == sorted(row)
            seen += 1
    assert seen == n and R > 1


def test_positive_places_of_many_parts():
    """5,000 × 5,000 distances are computed 3,355 rows at a time; a query leaves by index in all."""
    x, y = whole_numbers(5000, 6, 1000, seed=6)
    (first, _), (second, places) = ranks.positive_places(x, y, None, None, 20)
    assert (first.stop, second.start) == (3355, 3355)
    for i in (3355, 4000, 4999):
        want = positive_places(x[i:i + 1], y[i:i + 1], torch.cat([x[:i], x[i + 1:]]),
                               torch.cat([y[:i], y[i + 1:]]))[0]
        got = places[i - 3355, :len(want)]
        inside = torch.tensor(want) <= len(want)
        assert torch.equal(got[inside], torch.tensor(want)[inside])
        assert (got[~inside] > len(want)).all()


# ---------------------------------------------------------------------------- neighbours, centres
def test_nearest_is_the_first_of_the_nearest():
    points, _ = whole_numbers(400, 2, 1, seed=7)
    bank, _ = whole_numbers(60, 2, 1, seed=8)
    d = cdist(points, bank)
    assert ((d == d.min(1, keepdims=True)).sum(1) > 1).mean() > 0.1
    assert ranks.nearest(points, bank).tolist() == d.argmin(1).tolist()
    many = torch.zeros(2 ** 24 // 500, 1)                                   # parts of 500 points
    many[7] = 1
    got = ranks.nearest(torch.tensor([[1.0], [0.0]]).repeat(600, 1), many)
    assert got.tolist() == [7, 0] * 600


@pytest.mark.parametrize("n, k", [(3000, 7), (1025, 40), (9, 9), (1, 1)])
def test_nearest_centres_are_lloyd_s_first_step(n, k, threads):
    x, _ = whole_numbers(n, 3, 1, seed=9, largest=9)
    centres = x[:k].clone()
    with ranks.nearest_centres(x) as assign:
        for centres in (centres, centres + 2):                      # one pool for many rounds
            which, fit, sums = assign(centres)
            d = cdist(x, centres)
            assert which.tolist() == d.argmin(1).tolist()
            np.testing.assert_array_equal(
                sums, [x[which == c].sum(0).tolist() for c in range(k)])
            error = (d.min(1) ** 2).sum()
            assert fit.item() == pytest.approx((x.double().square().sum().item() - error) / 2)


# ---------------------------------------------------------------------------- rescaling
@pytest.mark.parametrize("scale", [1e-38, 1e-20, 1.0, 1e20, 1e38])
def test_rescaling_multiplies_by_a_power_of_two_only_where_it_must(scale):
    x, g = torch.randn(50, 4).clamp(-3, 3) * scale, torch.randn(30, 4).clamp(-3, 3) * scale
    a, b = ranks.rescaled(x, g)
    if scale == 1.0:
        assert a is x and b is g
        return
    ratio = a[x != 0].double() / x[x != 0].double()
    if scale > 1e-30:                                               # else some are subnormal
        assert (ratio == ratio[0]).all() and np.log2(ratio[0].item()) % 1 == 0
    assert 0.1 < a.abs().max() <= 1 and b.abs().max() <= 1


def test_rescaling_removes_an_offset_only_where_it_dwarfs_the_distances():
    x = torch.randn(500, 4)
    near, far = ranks.rescaled(x + 1)[0], ranks.rescaled(x + 1000)[0]
    assert torch.equal(near, x + 1) and far.mean(0).abs().max() < 0.01
    np.testing.assert_allclose(cdist(far, far), cdist(x, x), atol=1e-3)

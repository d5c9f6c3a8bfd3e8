"""eval.py against definitions, hand-worked cases and degenerate embeddings; JRD's Tables 2, 3;
support/ranks.py, which searches, against distances by differences in float64."""
import pickle
import re
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import scipy.stats
import torch
from scipy.spatial.distance import cdist
from torch.utils._python_dispatch import TorchDispatchMode

import conftest
import jrd
from eval import (_halves, confidence_interval, generalization_bound, hits_at_k, judge, kmeans,
                  l2_normalized, map_at_r, nmi, nmi_by_start, recall_at_k, recalls, stratified_parts)
from report.judge import load_npz
from support.files import UserError


def exact_places(x, labels, gallery=None, gallery_labels=None):
    """The places of each query's positives, ties against it: [[place, ...], ...]"""
    others, other_labels = gallery, gallery_labels
    if gallery is None:
        others, other_labels = x, labels
    distances = cdist(np.float64(x), np.float64(others))
    places = []
    for query, row in enumerate(distances):
        same = np.asarray(other_labels) == int(labels[query])
        wrong = row[~same]
        if gallery is None:
            same[query] = False                             # the query is not its own answer
        found = []
        for j, distance in enumerate(np.sort(row[same]), 1):
            found.append(j + int((wrong <= distance * (1 + 1e-12)).sum()))
        places.append(found)
    return places


def hits(places, k):
    """A query whose first positive stands at most at K hits."""
    return [found != [] and found[0] <= k for found in places]


def average_precision(places):
    """MAP@R by places"""
    total = 0
    for found in places:
        for j, place in enumerate(found, 1):
            if place <= len(found):
                total += j / place / len(found)
    return total / len(places)


def random_set(n, d, classes, seed=0, spread=1.0):
    draw = np.random.RandomState(seed)
    y = draw.randint(0, classes, n)
    x = draw.standard_normal((classes, d))[y] + spread * draw.standard_normal((n, d))
    return x.astype(np.float32), y


# ---------------------------------------------------------------------------- Recall@K
def test_recall_against_a_gallery():
    """In-Shop's form: nothing is left out by index, and a class may be missing in the gallery."""
    x, y = random_set(50, 6, 20, seed=1)
    g, gy = random_set(81, 6, 25, seed=2)
    agree(x, y, g, gy)
    for own in (x, torch.tensor(x)):                              # the same image is in the gallery
        assert recall_at_k(own, y, [1], own, y)[1] == 1
        assert map_at_r(own, range(50), own, range(50)) == 1
    assert recall_at_k(x, y, [1], g, gy + 1000) == {1: 0}         # nothing to find
    half = torch.tensor(x).bfloat16()                             # half precision is cast
    assert recall_at_k(half, y, [1]) == recall_at_k(half.float(), y, [1])


@pytest.mark.parametrize("x, y, places, recall, map", [
    # 0 a, 1 a, 3 b, 4 a, 4.5 b: from 0 the positives 1 and 4 come 1st and 3rd; and so on
    ([0, 1, 3, 4, 4.5], [0, 0, 1, 0, 1], [[1, 3], [1, 3], [2], [3, 4], [2]],
     {1: 0.4, 2: 0.8, 3: 1.0}, (1 / 2 + 1 / 2 + 0 + 0 + 0) / 5),
    ([0, 1, 2], [0, 1, 1], [[], [2], [1]], {1: 1 / 3}, 1 / 3),      # a tie is against the query
    # leaving out "the first neighbour" instead of the query itself would miss the first pair
    ([0, 0, 5, 5], [0, 0, 1, 2], [[1], [1], [], []], {1: 0.5}, 0.5)])
def test_recall_by_hand(x, y, places, recall, map):
    x = torch.tensor(x)[:, None]
    assert exact_places(x, y) == places
    assert recall_at_k(x, y, iter(recall)) == pytest.approx(recall)
    assert map_at_r(x, y) == pytest.approx(map)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6])
def test_a_collapsed_embedding_scores_zero(value):
    x, y = value * torch.linspace(0.3, 1, 33).expand(1000, 33), torch.arange(1000) % 5
    assert map_at_r(x, y) == 0
    assert recall_at_k(x, y, [1, 800, 801]) == {1: 0, 800: 0, 801: 1}


X, Y = np.zeros((4, 1)), [0, 0, 1, 1]


@pytest.mark.parametrize("function, arguments, message", [
    (recall_at_k, (X + 1e200, Y, [1]), "too large"),
    (recall_at_k, (X * np.nan, Y, [1]), "not finite"), (recall_at_k, (X, Y[1:], [1]), "must be"),
    (recall_at_k, (X[:0], [], [1]), "must be"), (recall_at_k, (X, Y, [0]), "at least 1"),
    (recall_at_k, (X, [0.1, 0, 1, 1], [1]), "whole numbers"),
    (recall_at_k, (X, Y, [1], X), "gallery must be"),
    (map_at_r, (np.zeros((4, 2)), Y, X, Y), "differ in dimension"),
    (kmeans, (X, 5, 0), "k must be"), (nmi, (Y, Y[1:]), "equal"),
    (generalization_bound, (X, [0, 1, 2, 3], X, Y, 0), "two images"),
    (stratified_parts, (np.arange(57) % 3,), "too few"),            # 19 of each
    (confidence_interval, ([], 0.95), "needs a value")])
def test_what_cannot_be_evaluated_is_refused(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)


# ---------------------------------------------------------------------------- support/ranks.py
def agree(x, y, g=None, gy=None):
    """Hits of each query at one K and at several; MAP@R, which one wrong place moves by more."""
    places = exact_places(x, y, g, gy)
    for ks in ([1], [1 + len(x) // 2], [1, 2, 3, 8, 50, 10 ** 6]):
        found = hits_at_k(x, y, ks, g, gy)
        for k in ks:
            assert found[k].tolist() == hits(places, k), ks
    assert map_at_r(x, y, g, gy) == pytest.approx(average_precision(places), rel=1e-11)


def points(kind, n, draw):
    x, copies = draw.standard_normal((n, 6)), draw.standard_normal((3, 6))[draw.randint(0, 3, n)]
    if kind == "ties far from 0":
        x = np.float32(1000 + draw.randint(-2, 3, (n, 6)) * 2.0 ** -13)
    elif kind == "copies":
        x = np.float32(copies * 1e-30)
    elif kind == "beside an outlier":
        x = np.float32(x)
        x[-1] *= 1e9
    elif kind == "nearly equal":                            # float64
        x = 7 + np.where(x > 2, x, copies) + 1e-5 * x
    return torch.tensor(x)


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
            x = torch.cat([away, 1e30 * away])
            g = torch.cat([2 * away, (1 + share) * away, 4 * away])
            assert recall_at_k(x, [0, 2], [1], g, [0, 1, 0]) == {1: hit / 2}
            assert map_at_r(x, [0, 2], g, [0, 1, 0]) == (hit or 0.5) / 4


class MatrixProducts(TorchDispatchMode):
    """Keeps the precision that every product of matrices is allowed to have."""
    allowed = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.__name__.startswith("mm"):
            self.allowed.append(torch.get_float32_matmul_precision())
        return function(*args, **kwargs or {})


def test_tf32_that_a_program_allows_is_off_in_products(request):
    x, y = torch.eye(4), [0, 0, 1, 1]
    request.addfinalizer(lambda: torch.set_float32_matmul_precision("highest"))
    torch.set_float32_matmul_precision("high")
    with MatrixProducts() as seen:
        judge({"test": (x, y)}, [1])
    assert len(seen.allowed) >= 3 and set(seen.allowed) == {"highest"}
    assert torch.get_float32_matmul_precision() == "high"


def test_tf32_that_a_program_allows_by_the_newer_names(request):
    """torch 2.14.1 cannot tell the precision then by the older function, so no search may ask."""
    request.addfinalizer(lambda: torch.set_float32_matmul_precision("highest"))
    owners = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    for owner in owners:
        request.addfinalizer(partial(setattr, owner, "fp32_precision", owner.fp32_precision))
    for chosen in (("tf32", "tf32"), ("ieee", "tf32"), ("none", "none")):
        torch.set_float32_matmul_precision("high")      # both names at once
        for owner, precision in zip(owners, chosen):
            owner.fp32_precision = precision
        assert recall_at_k(torch.eye(4), [0, 0, 1, 1], [1])
        assert tuple(owner.fp32_precision for owner in owners) == chosen


# ---------------------------------------------------------------------------- k-means and NMI
def test_a_cluster_that_loses_all_its_points_keeps_its_centre():
    """By hand, on a line far from 0: the start has the two points at 100 and one of the last three.
    All of the first three go to one of the equal centres, which moves to 100.33; the other keeps
    its place and so has both points at 100 in the second round."""
    x = torch.tensor([100.0, 100, 101, 109, 110, 111])[:, None]
    for seed in range(200):
        start = x[torch.randperm(6, generator=torch.Generator().manual_seed(seed))[:3], 0].tolist()
        if sorted(start)[1] == 100 and max(start) > 105:
            break
    a, b, c, *last = kmeans(x, 3, seed).tolist()
    assert a == b != c and len({*last}) == 1 and len({a, c, *last}) == 3


def test_kmeans_goes_on_until_the_error_stops_falling():
    """Lloyd's rounds as a loop; these points need more than 40 of them; equal ones end too."""
    x = np.random.RandomState(5).rand(3000, 1)
    start = torch.randperm(3000, generator=torch.Generator().manual_seed(0))[:20].numpy()
    distances, last, rounds = (x - x[start, 0]) ** 2, np.inf, 0
    while distances.min(1).sum() < last:
        last, rounds, kept = distances.min(1).sum(), rounds + 1, distances.argmin(1)
        distances = (x - [x[kept == c].mean() for c in range(20)]) ** 2
    assert rounds > 40 and kmeans(x, 20, 0).tolist() == kept.tolist() != kmeans(x, 20, 1).tolist()
    assert sorted(kmeans(torch.randn(4, 3), 4, 0)) == [0, 1, 2, 3]
    assert {*kmeans(torch.full((5, 2), 0.1), 3, 0).tolist()} <= {0, 1, 2}


def test_nmi_is_the_formula():
    draw = np.random.RandomState(8)
    a, b = draw.randint(0, 5, 200), draw.randint(0, 7, 200)
    b[:100] = a[:100]
    joint = np.histogram2d(a, b, (5, 7))[0] / 200
    p, q = joint.sum(1), joint.sum(0)
    mutual = scipy.stats.entropy(joint, np.outer(p, q), axis=None)      # I = KL(joint ‖ product)
    want = 2 * mutual / (scipy.stats.entropy(p) + scipy.stats.entropy(q))
    assert want > 0.1 and nmi(torch.tensor(a), b) == pytest.approx(want)
    assert 1 - 1e-9 < nmi(np.arange(6) % 4, [2, 3, 1, 0, 2, 3]) <= 1     # names do not matter
    assert nmi([0] * 4, [0, 0, 1, 1]) == 0 and nmi([0, 0], [1, 1]) == 1


def test_what_other_starts_give_is_printed_beside_the_first(tmp_path, typed):
    """By hand: 0, 1 and 9 on a line, k = 2.  A start at 0 and 1 sends 9 to the latter's cluster,
    {0}, {1, 9}, whose centre, 5, keeps 9 alone in the second round; one at 0 and 9, or 1 and 9,
    has {0, 1}, {9} at once.  So each start ends there.  Of 12 points of 3 classes it depends."""
    x = np.array([[0.0], [1.0], [9.0]])
    assert nmi_by_start(x, [5, 5, 7]) == pytest.approx([1] * 5)
    x, y = random_set(12, 3, 3, seed=4)
    by_start = [nmi(kmeans(x, 3, seed), y) for seed in range(5)]
    assert nmi_by_start(x, y) == by_start and max(by_start) - min(by_start) > 0.05
    np.savez(tmp_path / "e.npz", embeddings=x, labels=y)
    _, head, row, *_ = typed("eval.py", tmp_path / "e.npz")[1].splitlines()
    assert re.search(r" NMI +NMI of 5 starts$", head)
    mean, low, high = (f"{100 * value:.1f}" for value in
                       (np.mean(by_start), min(by_start), max(by_start)))
    assert row.endswith(f" {100 * by_start[0]:.1f} {mean} [{low}, {high}]")


# ---------------------------------------------------------------------------- Eq. 1-3
def bound_by_loops(seen, ys, unseen, yu, halves):
    sets = ("s", seen, ys, *halves[0]), ("u", unseen, yu, *halves[1])
    bank, errors, wrong_sides = [], [], []
    for side, x, y, fit, _ in sets:
        bank += [(x[i], side, y[i]) for i in fit]
    for side, x, y, _, test in sets:
        wrong = []
        for i in test:
            _, *nearest = min(bank, key=lambda item: ((x[i] - item[0]) ** 2).sum())
            wrong.append(nearest != [side, y[i]])
            wrong_sides.append(nearest[0] != side)
        errors.append(np.mean(wrong))
    return sum(errors), 1 - np.mean(wrong_sides)


def test_halves_are_stratified():
    """Of each class the labelled half has as many as the other, of an odd number one more."""
    labels = torch.tensor([4, 0, 2, 0, 1, 0, 2, 0, 1, 2, 0, 1])         # sizes 5, 3, 3, 0, 1
    halves = set()
    for seed in range(9):
        fit, test = _halves(labels, torch.Generator().manual_seed(seed))
        assert torch.cat([fit, test]).sort().values.tolist() == list(range(12))
        assert labels[fit].bincount().tolist() == [3, 2, 2, 0, 1]
        halves.add(str(fit.sort()))
    assert len(halves) > 1                                  # drawn at random


def test_training_classes_of_one_image_are_told():
    """They cannot hit, so seen R@1 says less of the training."""
    x, labels = torch.randn(6, 3), torch.tensor([0, 0, 1, 1, 2, 2])
    lone = torch.tensor([0, 0, 1, 2, 3, 3])
    told = {}
    for train in (labels, lone):
        result = judge({"test": (x, labels), "train_plain": (x, train)}, [1])
        told[train] = result.get("training images without a positive")
    assert [*told.values()] == [None, 2]


def test_the_bound_fails_as_printed():
    """E6, by Eq. 1-3 as they stand.  Bits (a, b): a tells seen, 0, from unseen, 1; b is the label."""
    a, b = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]]).T
    H = b, a ^ b, 1 - b, 1 - (a ^ b)

    def errors(answers, right):                             # of seen, of unseen
        wrong = (answers != right).float()
        return wrong[a == 0].mean(), wrong[a == 1].mean()

    labels = [errors(h, b) for h in H]
    lam, d_H = min(map(sum, labels)), 1 - min((h != a).float().mean() for h in H)
    assert (lam, d_H) == (0, 0.5)
    assert [bool(unseen <= seen + d_H + lam) for seen, unseen in labels] == [True, False, True, True]
    apart = max(abs(errors(h, g)[1] - errors(h, g)[0]) for h in H for g in H)   # Ben-David et al.
    assert all(unseen <= seen + apart + lam for seen, unseen in labels)


def test_generalization_bound():
    (seen, ys), (unseen, yu) = random_set(90, 3, 6, seed=9), random_set(70, 3, 5, seed=10)
    draw = torch.Generator().manual_seed(0)
    halves = [_halves(torch.tensor(labels), draw) for labels in (ys, yu)]
    got = generalization_bound(seen, ys, unseen, yu, seed=0)
    assert got == pytest.approx(bound_by_loops(seen, ys, unseen, yu, halves))
    assert 0.05 < got[0] < 1.95 and 0.05 < got[1] < 0.95
    assert generalization_bound(seen, ys, unseen, yu, seed=1) != got
    # Far apart and pure: no error.  A number on both sides does not mean the same class.
    x, y = torch.tensor([[0.0], [0.1], [10.0], [10.1]]), [0, 0, 1, 1]
    assert generalization_bound(x, y, x + 100, y, 0) == (0, 1)


def test_sets_of_two_precisions_meet_in_float64():
    near = torch.tensor([[1 + 5e-10], [1 + 6e-10]], dtype=torch.float64)     # the same in float32
    assert recall_at_k(torch.ones(1, 1), [0], [1], near, [0, 1])[1] == 1
    assert map_at_r(torch.ones(1, 1), [0], near, [0, 1]) == 1
    assert generalization_bound(torch.ones(2, 1), [0, 0], near, [0, 0], 0) == (0, 1)


# ---------------------------------------------------------------------------- intervals, parts
def test_confidence_interval():
    values = [0.5, 0.7, 0.9, 0.8]
    for level in (0.95, 0.9):
        ends = scipy.stats.t.interval(level, 3, np.mean(values), scipy.stats.sem(values))
        want = sum(ends) / 2, np.ptp(ends) / 2
        assert confidence_interval(values, level) == pytest.approx(want)
    assert np.isnan(confidence_interval([0.3])[1]) and confidence_interval([1, 1]) == (1, 0)


def test_stratified_parts():
    sizes = np.array([20, 21, 25, 33, 20, 47, 60])
    labels = np.repeat(np.arange(7), sizes)
    parts = stratified_parts(labels)
    assert len(parts) == 10 and sorted(torch.cat(parts)) == list(range(226))
    for part in parts:
        assert 22 <= len(part) <= 23 and (abs(np.bincount(labels[part]) - sizes / 10) < 1).all()


def test_judge_and_jrds_tables_report_everything():
    (x, y), (seen, ys) = random_set(400, 6, 8, seed=11), random_set(100, 6, 5, seed=12)
    y, ys = torch.tensor(y), torch.tensor(ys)
    embedded = {"test": (x, y), "val": (x[:50], y[:50]), "train_plain": (seen, ys)}
    hits_of = dict.fromkeys("01234567", "")
    for label, places in zip(y.tolist(), exact_places(x, y)):
        hits_of[str(label)] += str(int(places[0] == 1))
    recall = recall_at_k(x, y, [1, 2])
    assert judge(embedded, [1, 2]) == {
        "R@1": recall[1], "R@2": recall[2], "hits": hits_of, "MAP@R": map_at_r(x, y),
        "NMI by start": [nmi(kmeans(x, 8, seed), y) for seed in range(5)],
        "NMI": nmi(kmeans(x, 8, 0), y), "seen R@1": recall_at_k(seen, ys, [1])[1],
        "val R@1": recall_at_k(x[:50], y[:50], [1])[1]}
    parts = [recall_at_k(x[part], y[part], [1, 2]) for part in stratified_parts(y)]
    tables = {"ten parts": {f"R@{k}": confidence_interval(p[k] for p in parts) for k in (1, 2)}}
    bounds = [generalization_bound(seen, ys, x, y, seed) for seed in range(10)]
    tables["lambda"], tables["d_H"] = map(confidence_interval, zip(*bounds))
    for gallery, shared, names in ((None, 0, "ten parts,lambda,d_H"), (None, 1, "ten parts"),
                                   ("a gallery", 0, "lambda,d_H")):
        data = Mock(gallery=gallery, shared=lambda: shared)
        got = jrd.tables_2_and_3(embedded, data, Mock(ks=[1, 2]))
        assert got == {name: tables[name] for name in names.split(",")}
    searched = judge({"test": (x, y), "gallery": (seen, ys)}, [1])
    assert searched["MAP@R"] == map_at_r(x, y, seen, ys) and "NMI" not in str(searched)
    assert searched["R@1"] == recall_at_k(x, y, [1], seen, ys)[1]
    assert judge({"test": (x, range(400))}, [1])["queries without a positive"] == 400


@pytest.mark.parametrize("classes, first, told", [
    (1, None, "queries with positives alone, which cannot miss: 6"),
    (3, 3, "queries in the gallery, which find themselves: 3"), (3, 6, "")])
def test_a_trivial_search_is_said(classes, first, told, tmp_path, typed):
    """R@1 is 100% there, or half of it, of noise; first: of the gallery."""
    x, labels = random_set(12, 4, 2, seed=3)[0], np.arange(12) % classes
    arrays = {"embeddings": x[:6], "labels": labels[:6]}
    if first:
        arrays |= {"gallery": x[first:], "gallery_labels": labels[first:]}
    with open(tmp_path / "E.NPZ", "wb") as file:
        np.savez(file, **arrays)
    assert typed("eval.py", tmp_path / "E.NPZ")[1].splitlines()[3:] == [told] * bool(told)


# ---------------------------------------------------------------------------- what is read
def test_labels_may_be_texts(tmp_path):
    x = 10 ** 9 + np.array([[0], [1], [10], [11]])                  # float32 has no such numbers
    assert recall_at_k(x, [0, 0, 1, 1], [1]) == {1: 1}
    np.savez(tmp_path / "a.npz", embeddings=x, labels=np.array(["wren", "owl", "jay", "jay"]),
             gallery=x, gallery_labels=np.array(["owl", "emu"] * 2))
    embedded = load_npz(tmp_path / "a.npz")
    assert embedded["test"][1].tolist() == [0, 1, 2, 2] and (embedded["test"][0].numpy() == x).all()
    assert embedded["gallery"][1].tolist() == [1, 3] * 2


class Code:
    """What a pickle may do when it is read."""
    def __reduce__(self):
        return pytest.fail, ("a pickle was read",)


NANS = np.array([0, np.nan, 1, np.nan])


@pytest.mark.parametrize("changed, told", [
    ({"labels": np.array(["owl", None, Code(), 1], object)},
     "labels are Python objects, which may be code and are not read: write labels.astype(str), "
     "without the rows that have no label"),
    ({"gallery": np.eye(4), "gallery_labels": np.array(["a", "b", "a", "b"], object)},
     "gallery_labels are Python objects, which may be code and are not read: write "
     "gallery_labels.astype(str)"),
    ({"embeddings": np.eye(4).astype(object)}, "embeddings are Python objects, which may be code "
     "and are not read: write np.stack(list(embeddings)).astype(np.float32)"),
    ({"labels": NANS}, "2 of the labels are missing or infinite: leave these rows out"),
    ({"labels": np.float16([0, 1, np.inf, 1])}, "1 of the labels are missing or infinite"),
    ({"gallery": np.eye(4), "gallery_labels": NANS}, "2 of the gallery_labels are missing"),
    ({"labels": np.array(["2026-01-01", "NaT"] * 2, "M8[D]")}, "2 of the labels are missing"),
    ({"embeddings": np.eye(4) * 1j}, "embeddings are complex: np.concatenate([x.real, x.imag], 1)"),
    ({"gallery": np.eye(4) * 1j, "gallery_labels": NANS}, "gallery are complex: np.concat"),
    ({"embeddings": np.eye(4).astype(str)}, "are no numbers but of type <U32: write "
     "embeddings.astype(np.float32)"),
    ({"embeddings": np.eye(4).astype(np.float16).view("V2")}, "no numbers but of type |V2")])
def test_a_field_that_cannot_be_judged_is_refused_with_what_to_do(changed, told, tmp_path):
    path = tmp_path / "e.npz"
    np.savez(path, **{"embeddings": np.eye(4), "labels": [0, 0, 1, 1], **changed})
    with pytest.raises(UserError) as error:
        load_npz(path)
    assert str(error.value).startswith(f"{path}: ") and told in str(error.value)
    assert "\n" not in str(error.value)


def test_an_array_alone_and_a_pickle_are_refused(tmp_path):
    for name in ("e.npy", "named.npz"):
        with open(tmp_path / name, "wb") as file:
            np.save(file, np.eye(4))
        with pytest.raises(UserError, match='one array, without labels: np.savez."e.npz", embed'):
            load_npz(tmp_path / name)
    np.save(tmp_path / "e.npy", np.array([Code()]))
    (tmp_path / "f.npz").write_bytes(pickle.dumps(Code()))
    for name in ("e.npy", "f.npz"):
        with pytest.raises(UserError, match="it is a pickle, which may be code, or no file of Num"):
            load_npz(tmp_path / name)


@pytest.mark.parametrize("change", [
    lambda x: x.astype(">f4"), np.float16, np.float32, np.float64, np.longdouble, np.int8,
    np.uint64, np.asfortranarray, lambda x: x > 0], ids=lambda change: getattr(change, "__name__", "type"))
def test_numbers_of_any_kind_are_embeddings(change, tmp_path):
    x = change(np.float32([[0, 1], [0, 2], [5, 0], [6, 0]]))
    np.savez(tmp_path / "e.npz", embeddings=x, labels=[[3], [3], [7], [7]])
    got, labels = load_npz(tmp_path / "e.npz")["test"]
    assert got.tolist() == x.tolist() and labels.tolist() == [0, 0, 1, 1]
    assert got.dtype == (torch.float64 if x.dtype.itemsize > 4 else torch.float32)


@pytest.mark.parametrize("kind", ["u1", "u2", "u4", "u8", ">i4", ">i8", "i2"])
def test_arrays_of_any_kind_are_judged(kind):
    """By the functions too, which torch would refuse for most of these"""
    draw = np.random.RandomState(0)
    x, y = draw.rand(40, 8), np.arange(40) % 4
    want = judge({"test": (x, y)}, [1, 2])
    assert judge({"test": (x.astype(">f8"), y.astype(kind))}, [1, 2]) == want
    assert recall_at_k(x, y.astype(kind), [1])[1] == want["R@1"]
    assert generalization_bound(x, y.astype(kind), x + 1, (y + 9).astype(kind), 0) == (
        generalization_bound(x, y, x + 1, y + 9, 0))
    assert [part.tolist() for part in stratified_parts(y.astype(kind), 2)] == [
        part.tolist() for part in stratified_parts(y, 2)]
    whole = (9 * x).round()
    unit, _ = l2_normalized({"test": (whole.astype(kind), y)})["test"]
    assert torch.allclose(unit.double().square().sum(1), torch.ones(40, dtype=torch.double))
    as_torch = "f4" if kind in ("u1", "i2") else "f8"
    assert judge({"test": (whole.astype(kind), y)}, [1, 2]) == (
        judge({"test": (whole.astype(as_torch), y)}, [1, 2]))


@pytest.mark.parametrize("labels, gallery_labels", [
    ([0, 1, 10], [0.0, 1.0, 10.0]), ([0, 1, 10], np.float16([-0.0, 1, 10])),
    ([0, 1, 10], ["0", "1", "10"]), ([0, 1, 10], np.array([0, 1, 10], ">u8")),
    (["ä", "b", "c"], [text.encode() for text in "äbc"]), ([0.5, 1, 2], ["0.5", "1", "2"])])
def test_a_class_is_one_however_its_label_is_written(labels, gallery_labels, tmp_path):
    """pandas makes a column with an empty cell float: its 1.0 is the 1 of the other."""
    np.savez(tmp_path / "e.npz", embeddings=np.eye(3), labels=labels, gallery=np.eye(3),
             gallery_labels=gallery_labels)
    embedded = load_npz(tmp_path / "e.npz")
    assert embedded["test"][1].tolist() == embedded["gallery"][1].tolist() == [0, 1, 2]


def test_a_text_that_may_stand_for_no_label_is_judged_aloud(tmp_path, capsys):
    """What astype(str) makes of None and of NaN."""
    labels = np.array(["owl", None, float("nan"), "owl"], object).astype(str)
    np.savez(tmp_path / "e.npz", embeddings=np.eye(4), labels=labels)
    assert load_npz(tmp_path / "e.npz")["test"][1].tolist() == [0, 1, 2, 0]
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("note: 'None' is judged as a class; if it stands for a label that is ")
    assert second.startswith("note: 'nan' is judged")


# ---------------------------------------------------------------------------- other people's arrays
class Column:
    """What pandas and others hand over: not an array, but it makes one, and `[0]` is no row of it."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def __array__(self, dtype=None, copy=None):
        return self.values if dtype is None else self.values.astype(dtype)

    def __len__(self):
        return len(self.values)

    def __getitem__(self, key):
        raise KeyError(key)


def test_nmi_of_labels_of_other_types():
    """int64 beside uint64 promotes to float64, which merges large ones; objects; nan."""
    draw = np.random.RandomState(0)
    a, b = draw.randint(0, 5, 200), draw.randint(0, 5, 200)
    want = nmi(a, b)
    assert 0.01 < want < 0.2
    others = [(b + 2 ** 60).astype(np.uint64), np.array([*"abcde"], object)[b], Column(b),
              np.array([*"abcde"])[b], np.where(b == 4, np.nan, b)]
    for labels in others:
        assert nmi(a, labels) == want
    x, large = conftest.points(3, n=200), (b + 2 ** 60).astype(np.uint64)
    assert nmi_by_start(x, large, 2) == nmi_by_start(x, b, 2)


@pytest.mark.parametrize("scale", [1, 3000])
def test_half_precision_is_normalized_in_float32(scale):
    """F.normalize of long rows of float16 is 0."""
    labels = np.arange(60) % 20
    x = conftest.points(64, n=20)[labels] + conftest.points(64, 1, n=60)
    x = (scale * x).astype(np.float16)
    for kind in (np.asarray, torch.from_numpy):
        embedded = l2_normalized({"test": (kind(x), labels)})
        want = l2_normalized({"test": (x.astype(np.float32), labels)})
        assert torch.equal(embedded["test"][0], want["test"][0])
        assert recalls(embedded, [1])["R@1"] > 0.5


def test_columns_and_reversed_arrays_are_judged():
    x, labels = conftest.points(5, n=40), np.arange(40) % 8
    want = recall_at_k(x, labels, [1, 3]), map_at_r(x, labels)
    for change in (Column, lambda values: np.ascontiguousarray(values[::-1])[::-1]):
        assert (recall_at_k(change(x), change(labels), [1, 3]), map_at_r(change(x), change(labels))
                ) == want
    assert recall_at_k(x, torch.from_numpy(labels).to(torch.uint16), [1, 3]) == want[0]
    assert recall_at_k(x, labels, torch.tensor([1, 3])) == want[0]
    for function in (recalls, judge):
        assert function({"test": (x, labels)}, torch.tensor([3]))["R@3"] == want[0][3]
    with pytest.raises(ValueError, match="numbers are needed, not object: .* makes numbers"):
        recall_at_k(x, labels.astype(object), [1])
    with pytest.raises(ValueError, match="gallery_labels need a gallery"):
        recall_at_k(x, labels, [1], None, labels)
    for k, rounds in ((2.5, 9), (3, 0), (np.inf, 9), (np.nan, 9)):
        with pytest.raises(ValueError, match="k must be whole, .*, and rounds at least 1, not"):
            kmeans(x, k, 0, rounds)
    assert torch.equal(kmeans(x, 3.0, 0), kmeans(x, 3, 0))

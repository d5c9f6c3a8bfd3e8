"""support/ranks.py, the fast search, against tests/plain_ranks.py, the plain one.  For longer:
python tests/stress_ranks.py"""
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT

import plain_ranks
from eval import judge
from support import ranks


@pytest.mark.parametrize("side, mirrored, threads",
                         [(512, 2 ** 14, 1), (7, 2 ** 14, 1), (32, 0, 8)])
@pytest.mark.parametrize("kind", plain_ranks.KINDS)
def test_places_are_those_of_the_plain_search(kind, side, mirrored, threads, monkeypatch):
    """Thousands of searches; blocks that hold all, or end within a class and leave rests; sorted by
    NumPy, or by torch as with many threads."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setitem(ranks.SIDE, "cpu", side)
    monkeypatch.setattr(ranks, "MIRRORED", mirrored)
    draw = np.random.default_rng(list(f"{kind} {side}".encode()))
    for _ in range(12):
        assert plain_ranks.faults_of(kind, draw) == []


MEMORY = """
import re, torch
from pathlib import Path
from eval import map_at_r, recall_at_k
from support.ranks import nearest
def peak():         # in MB; not ru_maxrss, which a process inherits from the one that started it
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1000
torch.set_num_threads(1)
bank, labels = torch.randn(60502, 4), torch.arange(60502) // 5
recall_at_k(bank[:99], labels[:99], [1]), map_at_r(bank[:99], labels[:99])       # loads libraries
before = peak()
nearest(torch.randn(8000, 4), torch.randn(7000, 4))
print(peak() - before)
torch.set_num_threads(2)
for search in range(3):
    recall_at_k(bank[:2000], labels[:2000], [1, 8], bank, labels)
print(peak() - before)
map_at_r(bank[:2000], labels[:2000], bank, labels)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="its peak is read from /proc")
def test_searches_on_two_threads_keep_to_their_buffers():
    """MB beyond what was held before, in a bank of Stanford Online Products' size, of 4 dimensions:
    a search once took blocks of 31 MB anew for every 64 queries, and in some runs gigabytes,
    because glibc before 2.39 may not reuse the place of an aligned block for the next one."""
    told = subprocess.run([sys.executable, "-c", MEMORY], cwd=ROOT, capture_output=True, text=True)
    one_nearest, recall, both = map(int, told.stdout.split())
    assert one_nearest < 50 and recall < 100 and both < 300


def test_one_search_gives_hits_and_map_at_r(monkeypatch):
    """A judgement of a test set searches it once, within itself or in a gallery."""
    searches, search = [], ranks.Search

    def counted(*sets):
        searches.append(sets)
        return search(*sets)
    monkeypatch.setattr(ranks, "Search", counted)
    x, labels = torch.randn(40, 8), torch.arange(40) % 4
    for embedded in ({"test": (x, labels)}, {"test": (x, labels), "gallery": (x + 1, labels)}):
        searches.clear()
        assert {"R@1", "R@2", "MAP@R"} < judge(embedded, [1, 2]).keys() and len(searches) == 1


def test_a_tie_is_what_rounding_cannot_part():
    """A negative farther than the positive by less than 2^-46 of the distance is as near."""
    for share, place in ((2.0 ** -48, 2), (2.0 ** -44, 1), (-2.0 ** -44, 2)):
        bank = torch.tensor([[1.0], [-(1 + share) ** 0.5]], dtype=torch.float64)
        sets = torch.zeros(1, 1).double(), torch.tensor([0]), bank, torch.tensor([0, 1])
        assert ranks.first_places(*sets, [1]).tolist() == [place]
        assert ranks.precisions(*sets, [1])[0].tolist() == [place]


def test_distances_are_the_same_bits_in_any_batch_and_order():
    x = torch.randn(300, 37)
    i, j = torch.randint(300, (2, 1000))
    D = ranks.exact(x, i, x, j)
    assert (D == torch.from_numpy(plain_ranks.distances(x.numpy(), x.numpy()))[i, j]).all()
    assert (ranks.exact(x, i[500:], x, j[500:]) == D[500:]).all()


@pytest.mark.parametrize("n, k", [(3, 1), (40, 5), (203, 5), (1000, 7)])
def test_the_largest_by_parts_are_the_largest(n, k):
    s = torch.randint(50, (20, n)).float().masked_fill(torch.rand(20, n) < 0.3, -torch.inf)
    values, at = ranks.largest(s, k)
    assert (values == s.topk(k).values).all() and (s.gather(1, at) == values).all()
    assert all(len(set(row)) == k for row in at.tolist())


def test_bounds_hold_for_every_pair():
    """-D/2 of exact distances lies between the product and the product less both slacks."""
    for kind in ("random", "offset", "outlier", "clustered", "unit"):
        draw = np.random.default_rng(3)
        x = torch.tensor(plain_ranks.points(kind, 90, 200, draw))
        sets = x[:50], torch.zeros(50).long(), x[50:], torch.arange(40)
        search = ranks.Search(*sets)
        upper = search.products(slice(None), slice(None)).double()
        largest = max(x.abs().max().double().item(), 1e-300)
        true = -torch.from_numpy(plain_ranks.distances(*(points.numpy() for points in sets[::2])))
        true = true / 2 / 4.0 ** np.floor(np.log2(largest))
        slack = (search.slack[:, None] + search.bank_slack).double()
        assert (upper >= true).all() and (upper - slack <= true).all(), kind

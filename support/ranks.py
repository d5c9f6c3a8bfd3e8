"""The counting behind eval.py: places of positives, nearest neighbours, nearest centres.

eval.py says what is counted and why.  tests/test_ranks.py holds each function to a plain
definition, exactly.  Distances are ‖a‖²/2 + ‖b‖²/2 - a·b = ‖a - b‖²/2, because a matrix product is
far faster than the differences; `rescaled` makes it safe, and all the sets given to the other
functions come out of it.  Labels are (n,) long on the host.  Each function takes a part of its
points at a time, so that a part of the distance matrix fits into memory.
"""
import contextlib
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F

NOWHERE = torch.iinfo(torch.long).max       # the place of a positive that does not exist
PART = 2 ** 24                              # how many distances are computed at once


@contextlib.contextmanager
def _full_precision():
    """float32 products with TF32 off, which moves ranks; a caller's own program may allow it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def rescaled(*sets):
    """The sets (n, d), (m, d), ... after one similarity transform, which changes no ranking.

    Values beyond 2^±30 would over- or underflow in the squares; a power of two scales exactly.
    An offset that dwarfs the distances would wash them out in ‖a‖² + ‖b‖² - 2 a·b, so it goes; a
    smaller one stays, because to subtract it rounds.
    """
    largest = torch.stack([torch.stack(x.aminmax()).abs().max() for x in sets]).max()
    if not 2 ** -30 < largest < 2 ** 30:
        sets = [torch.ldexp(x, -torch.frexp(largest).exponent) for x in sets]
    mean = sets[-1].mean(0)
    offset = mean.square().sum()                                        # ‖E x‖²
    size = torch.linalg.vector_norm(sets[-1]).square() / len(sets[-1])  # E ‖x‖²
    if offset > 100 * (size - offset):
        sets = [x - mean for x in sets]
    return sets


def _left(x):
    """x (n, d) as the left factor of _products, float32 on a CPU in oneDNN's layout: on CPUs that
    are not Intel's, oneDNN multiplies up to twice as fast as MKL, which torch takes otherwise."""
    usable = x.device.type == "cpu" and x.dtype == torch.float32
    return x.to_mkldnn() if usable and torch.backends.mkldnn.is_available() else x


def _products(left, b):
    """a·b of all pairs, left = _left(a), (n, d) and (m, d) -> (n, m)"""
    products = F.linear(left, b)
    return products.to_dense() if products.is_mkldnn else products


@contextlib.contextmanager
def _side_by_side(device):
    """On a CPU, a map that runs its calls at once, each in one thread.  Small operations then wait
    for no other thread: ten times as fast where other jobs keep the cores busy."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield map
        return
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(min(threads, 16)) as pool:      # each has blocks of its own
            yield pool.map
    finally:
        torch.set_num_threads(threads)


# ---------------------------------------------------------------------------- places
@_full_precision()
def first_places(x, labels, gallery=None, gallery_labels=None):
    """Where each query's first positive stands in the list of its neighbours, from 1: 1 + how many
    negatives lie at least as near.

    x (n, d), labels (n,); without a gallery each is a query and all others its neighbours
    -> (n,) long on the host, NOWHERE for a query without a positive
    """
    alone = gallery is None
    if alone:
        gallery, gallery_labels = x, labels
    # Products at the edge of a matrix round differently, and equal distances would not tie: the
    # gallery is padded to a multiple of 32 by points at infinity.
    missing = -len(gallery) % 32
    gallery_half = F.pad(gallery.square().sum(1) / 2, (0, missing), value=torch.inf)    # ‖b‖²/2
    gallery_labels = F.pad(gallery_labels, (0, missing), value=-1).to(x.device)
    left = _left(F.pad(gallery, (0, 0, 0, missing)))                    # (m, d)
    half, labels = x.square().sum(1) / 2, labels.to(x.device)           # ‖a‖²/2, (n,)
    size = 64 if x.device.type == "cpu" else max(1, PART // len(gallery))
    places = torch.empty(len(x), dtype=torch.long, device=x.device)

    def count(start):
        part = slice(start, start + size)
        s = _products(left, x[part])                                            # (m, b)
        s.sub_(gallery_half[:, None] + half[part])                              # -‖a - b‖²/2
        if alone:
            s.diagonal(-start).fill_(-torch.inf)            # the query itself leaves, by its index
        same = gallery_labels[:, None] == labels[part]
        nearest = s.masked_fill(~same, -torch.inf).amax(0)                      # (b,)
        before = (s.masked_fill_(same, -torch.inf) >= nearest).sum(0)
        places[part] = torch.where(nearest == -torch.inf, NOWHERE, 1 + before)

    with _side_by_side(x.device) as each:
        list(each(count, range(0, len(x), size)))
    return places.cpu()


def positive_places(x, labels, gallery, gallery_labels, R):
    """The places of all positives up to R, which is what MAP@R asks: yields (rows, places),
    rows a slice of the queries, places (b, R) where x is, ascending.

    1 <= R <= the size of the gallery (of x if gallery is None).  Only the R nearest negatives and
    the R nearest positives matter, and to select them is cheaper than to sort the row.  A place
    beyond R, or of a positive that does not exist, is some number above the query's own R.
    """
    alone = gallery is None
    if alone:
        gallery, gallery_labels = x, labels
    labels, gallery_labels = labels.to(x.device), gallery_labels.to(x.device)
    j = torch.arange(1, R + 1, device=x.device)
    for rows, s in _distances(x, gallery):
        same = labels[rows, None] == gallery_labels[None]
        negative = s.masked_fill(same, torch.inf).topk(R, largest=False).values     # sorted
        if alone:
            same.diagonal(rows.start).fill_(False)
        positive = s.masked_fill(~same, torch.inf).topk(R, largest=False).values
        yield rows, j + torch.searchsorted(negative, positive, right=True)


def _distances(x, bank):
    """Yields a slice of the points at a time, and their ‖b‖²/2 - a·b, which ranks like
    ‖a - b‖²/2.  x (n, d), bank (m, d) -> (b, m) each"""
    half, size = bank.square().sum(1) / 2, max(1, PART // len(bank))
    for start in range(0, len(x), size):
        rows = slice(start, start + size)
        with _full_precision():
            s = torch.addmm(half[None], x[rows], bank.T, alpha=-1)
        yield rows, s


# ---------------------------------------------------------------------------- neighbours, centres
def nearest(points, bank):
    """Which row of the bank is nearest, the first one where several are as near.

    points (n, d), bank (m, d) -> (n,) long on the host
    """
    return torch.cat([s.argmin(1) for _, s in _distances(points, bank)]).cpu()


@contextlib.contextmanager
def nearest_centres(x):
    """Lloyd's first step for the points x (n, d), as a function: centres (k, d) -> the nearest of
    each point (n,), the fit Σ (x·c - ‖c‖²/2), and Σ x of each cluster (k, d).

    The fit is Σ ‖x‖²/2 less half the squared error, which spares the ‖x‖²; it is summed in float64,
    or rounding would stop the rounds.  The threads start once for all rounds.
    """
    size = 1024 if x.device.type == "cpu" else 8192

    with _full_precision(), _side_by_side(x.device) as each:
        def assign(centres):
            half = centres.square().sum(1) / 2

            def assign_some(points):
                which, fit, sums = [], 0.0, torch.zeros_like(centres)
                for part in points.split(size):
                    best = _products(_left(part), centres).sub_(half).max(1)
                    which.append(best.indices)
                    fit = fit + best.values.sum(dtype=torch.float64)
                    sums.index_add_(0, best.indices, part)
                return torch.cat(which), fit, sums

            which, fits, sums = zip(*each(assign_some, x.chunk(8)))
            return torch.cat(which), sum(fits), sum(sums)
        yield assign

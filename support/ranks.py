"""The fast counting behind eval.py: places of positives, nearest neighbours, nearest centres.

eval.py says what is counted and why; here it is counted in seconds.  tests/test_ranks.py holds each
function to a plain definition, exactly.  Distances are ‖a‖²/2 + ‖b‖²/2 - a·b = ‖a - b‖²/2, because
a matrix product is far faster than the differences; `rescaled` makes it safe, and all the sets
given to the other functions come out of it.  Labels are (n,) long on the host.
"""
import contextlib
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F

NOWHERE = torch.iinfo(torch.long).max   # the place of a positive that does not exist
KEPT = 2 ** 28                          # bytes of blocks that first_places keeps between its passes


# ---------------------------------------------------------------------------- products
@contextlib.contextmanager
def _full_precision():
    """float32 products with TF32 off: a training may have chosen less, which would move ranks."""
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
    smaller one stays, for to subtract it rounds.
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
    """x (n, d) as the left factor of _products: float32 on a CPU in oneDNN's layout, for oneDNN
    multiplies up to twice as fast as MKL, torch's other way, on CPUs that are not Intel's."""
    usable = x.device.type == "cpu" and x.dtype == torch.float32
    return x.to_mkldnn() if usable and torch.backends.mkldnn.is_available() else x


def _products(left, b):
    """a·b of all pairs, left = _left(a), (n, d) and (m, d) -> (n, m)"""
    s = F.linear(left, b)
    return s.to_dense() if s.is_mkldnn else s


# ---------------------------------------------------------------------------- blocks
def _block(x):
    """How many points a block has: enough to keep the processor busy, few enough for its memory."""
    return 1024 if x.device.type == "cpu" else 8192


@contextlib.contextmanager
def _side_by_side(device):
    """On a CPU, a map that runs its calls at once, each in one thread: a block's small operations
    then wait for no other thread (several times as fast where other jobs keep the cores busy)."""
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


class _Blocks:
    """Points in blocks, grouped by class, so that few pairs of blocks hold a positive pair.

    The blocks have one shape, a multiple of 32, the last one padded with points at infinity:
    products of different shapes round differently, and equal distances would not tie.
    """

    def __init__(self, x, labels, size):
        n, self.order = len(x), labels.argsort(stable=True)
        self.count = -(-n // size)
        self.size = -(-n // (32 * self.count)) * 32                     # near the one wanted
        self.count = -(-n // self.size)
        total, order = self.count * self.size, self.order.to(x.device)
        self.x = F.pad(x[order], (0, 0, 0, total - n))                  # (total, d)
        self.half = F.pad(x[order].square().sum(1) / 2, (0, total - n), value=torch.inf)
        self.labels = F.pad(labels[self.order], (0, total - n), value=-1).to(x.device)
        host = labels[self.order].tolist()
        self.range = [(host[i], host[min(i + self.size, n) - 1]) for i in range(0, n, self.size)]

    def slice(self, i):
        return slice(i * self.size, (i + 1) * self.size)


# ---------------------------------------------------------------------------- places
@_full_precision()
def first_places(x, labels, gallery=None, gallery_labels=None, block=None):
    """The first of eval.positive_places: 1 + how many negatives lie at least as near as the nearest
    positive.

    x (n, d), labels (n,) -> (n,) long on the host, NOWHERE for a query without a positive.
    Counting needs no sort, and serves all K at once.  It takes two passes over the blocks of the
    distance matrix: the first finds the nearest positives, in the few pairs of blocks with a class
    in common; the second counts.  Without a gallery the matrix is symmetric: half of it is
    computed, and each block counts for its rows and for its columns.  Blocks of the first pass are
    KEPT for the second as far as they fit; otherwise the memory is one block a thread.
    """
    alone, block = gallery is None, block or _block(x)
    q = _Blocks(x, labels, block)
    g = q if alone else _Blocks(gallery, gallery_labels, block)
    pairs = [(i, j) for i in range(q.count) for j in range(i if alone else 0, g.count)]
    in_common = [(i, j) for i, j in pairs
                 if q.range[i][0] <= g.range[j][1] and g.range[j][0] <= q.range[i][1]]
    shared, kept = set(in_common), {}
    room = max(1, KEPT // (q.size * g.size * q.x.element_size()))
    nearest = q.half.new_full(q.half.shape, -torch.inf)         # -d²/2 to the nearest positive
    before = torch.zeros(len(q.x), dtype=torch.int32, device=q.x.device)

    def similarity(i, j):
        """-d²/2 between block i and block j, the same bits at (a, b) as at (b, a)."""
        s = _products(_left(q.x[q.slice(i)]), g.x[g.slice(j)])
        return s.sub_(q.half[q.slice(i), None] + g.half[None, g.slice(j)])

    def same_class(i, j):
        return q.labels[q.slice(i), None] == g.labels[None, g.slice(j)]

    def of_positives(pair):
        """-d²/2 to the nearest positive in a pair of blocks, for its rows and for its columns."""
        s, positive = similarity(*pair), same_class(*pair)
        if len(kept) < room:
            kept[pair] = s
        if alone and pair[0] == pair[1]:
            positive.fill_diagonal_(False)
        s = s.masked_fill(~positive, -torch.inf)
        return s.amax(1), s.amax(0)

    def of_negatives(pair):
        """How many negatives lie at least as near as that, for the rows and for the columns."""
        s = kept.pop(pair) if pair in kept else similarity(*pair)
        if pair in shared:
            s.masked_fill_(same_class(*pair), -torch.inf)
        rows, columns = q.slice(pair[0]), q.slice(pair[1])
        return ((s >= nearest[rows, None]).sum(1, dtype=torch.int32),
                (s >= nearest[None, columns]).sum(0, dtype=torch.int32) if alone else None)

    with _side_by_side(q.x.device) as each:
        for (i, j), (of_rows, of_columns) in zip(in_common, each(of_positives, in_common)):
            rows, columns = nearest[q.slice(i)], nearest[q.slice(j)]
            rows.copy_(torch.maximum(rows, of_rows))
            if alone:
                columns.copy_(torch.maximum(columns, of_columns))
        for (i, j), (of_rows, of_columns) in zip(pairs, each(of_negatives, pairs)):
            before[q.slice(i)] += of_rows
            if alone and i != j:
                before[q.slice(j)] += of_columns
    n = len(q.order)
    places = torch.where(nearest == -torch.inf, NOWHERE, 1 + before.long())[:n].cpu()
    return torch.empty_like(places).scatter_(0, q.order, places)


def positive_places(x, labels, gallery, gallery_labels, R):
    """eval.positive_places as far as MAP@R asks: those up to R -> (rows, places) for some queries
    after the others, rows a slice, places (b, R) where x is, ascending.

    1 <= R <= the size of the gallery (of x, where gallery is None).  Only the R nearest negatives
    and the R nearest positives matter, and to select them is cheaper than to sort the row.  A place
    beyond R, or of a positive that does not exist, is some number above the query's own R.
    """
    alone = gallery is None
    if alone:
        gallery, gallery_labels = x, labels
    labels, gallery_labels = labels.to(x.device), gallery_labels.to(x.device)
    half, j = gallery.square().sum(1) / 2, torch.arange(1, R + 1, device=x.device)
    size = max(1, 2 ** 24 // len(gallery))
    for start in range(0, len(x), size):
        rows = slice(start, start + size)
        with _full_precision():         # d²/2 less the query's own ‖x‖²/2, which ranks nothing
            s = torch.addmm(half[None], x[rows], gallery.T, alpha=-1)           # (b, m)
        same = labels[rows, None] == gallery_labels[None]
        negative = s.masked_fill(same, torch.inf).topk(R, largest=False).values     # sorted
        if alone:
            same.diagonal(start).fill_(False)
        positive = s.masked_fill(~same, torch.inf).topk(R, largest=False).values
        yield rows, j + torch.searchsorted(negative, positive, right=True)


# ---------------------------------------------------------------------------- neighbours, centres
@_full_precision()
def nearest(points, bank):
    """Which row of the bank is nearest.  points (n, d), bank (m, d) -> (n,) long on the host

    In parts of the points, for the memory; the first one where several are as near.
    """
    half = bank.square().sum(1) / 2                 # d²/2 less the point's own ‖x‖²/2, as above
    return torch.cat([torch.addmm(half[None], part, bank.T, alpha=-1).argmin(1)
                      for part in points.split(max(1, 2 ** 24 // len(bank)))]).cpu()


@contextlib.contextmanager
def nearest_centres(x):
    """Lloyd's first step for the points x (n, d), as a function: centres (k, d) -> the nearest of
    each point (n,), the fit Σ (x·c - ‖c‖²/2), and Σ x of each cluster (k, d).

    The fit is Σ ‖x‖²/2 less half the squared error, which spares the ‖x‖²; it is summed in float64,
    or rounding would stop the rounds.  Sums are taken while a part of x is still in the cache.  The
    threads start once for all rounds.
    """
    with _full_precision(), _side_by_side(x.device) as each:
        def assign(centres):
            half, which, fit, sums = centres.square().sum(1) / 2, [], 0.0, torch.zeros_like(centres)

            def assign_some(points):
                which, fit, sums = [], 0.0, torch.zeros_like(centres)
                for part in points.split(_block(x)):
                    best = _products(_left(part), centres).sub_(half).max(1)
                    which.append(best.indices)
                    fit = fit + best.values.sum(dtype=torch.float64)
                    sums.index_add_(0, best.indices, part)
                return torch.cat(which), fit, sums

            for some, their_fit, their_sums in each(assign_some, x.chunk(8)):
                which.append(some)
                fit = fit + their_fit
                sums += their_sums
            return torch.cat(which), fit, sums
        yield assign

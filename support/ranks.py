"""The counting behind eval.py: places of positives, nearest neighbours.

Places are exact: ‖a - b‖²/2 = ‖a‖²/2 + ‖b‖²/2 - a·b comes from float32 if a bound shows that its
rounding cannot matter, else from float64, else from whole numbers.  Labels are on the host.
"""
import contextlib

import numpy as np
import torch

NOWHERE = torch.iinfo(torch.long).max       # the place of a positive that does not exist


@contextlib.contextmanager
def without_tf32():
    """TF32, which a caller's program may allow in products on a GPU, moves ranks."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def centred(x, gallery=None, dtype=None):
    """x and the gallery (x itself if None) times a power of two, which keeps squares in range, less
    a vector near their mean, so that an offset drowns no distance; 0 where all are equal
    -> a, b, ‖a‖²/2, ‖b‖²/2, and for each a twice the most that rounding moves a ‖a - b‖²/2"""
    own = torch.promote_types(x.dtype, dtype or x.dtype)
    sets = [points.to(own, copy=True) for points in (x, gallery) if points is not None]
    exponent = np.frexp(max(torch.stack(points.aminmax()).abs().max().item() for points in sets))[1]
    scale = min(2.0 ** min(-exponent, 1000), 1 / torch.finfo(own).tiny)
    first = sets[-1][0].clone()
    equal = all(torch.equal(points[-1], first) and (points == first).all() for points in sets)
    sets = [points.mul_(scale).sub_(first * scale) for points in sets]
    sets = [points.sub_(sets[-1].mean(0)).to(dtype) for points in sets]
    halves = [torch.linalg.vector_norm(points, dim=1).square() / 2 for points in sets]
    limits = torch.finfo(sets[0].dtype)         # lost: more than products that underflow can lose
    unit, lost = (3.2 * x.shape[1] + 50) * limits.eps, 0 if equal else limits.tiny / limits.eps ** 2
    return sets[0], sets[-1], halves[0], halves[-1], unit * (halves[0] + halves[-1].max() + lost)


@without_tf32()
def first_places(x, labels, gallery, gallery_labels, ks):
    """Where each query's first positive stands in the list of its neighbours, from 1: 1 + how many
    negatives lie at least as near.  A place is exact as to whether it is <= k, for each k in ks.
    -> (n,) long on the host, NOWHERE for a query without a positive"""
    alone, size = gallery is None, 512 if x.device.type == "cpu" else 8192
    kinds, order = labels.sort(stable=True)                             # classes become ranges
    other_kinds, other_order = (kinds, order) if alone else gallery_labels.sort(stable=True)
    a, b, half_a, half_b, error = centred(x, gallery, torch.float32)
    a, half_a, error = a[order], half_a[order], error[order]
    b, half_b = (a, half_a) if alone else (b[other_order], half_b[other_order])
    a = torch.column_stack([a, half_a, torch.ones_like(half_a)])
    b = torch.column_stack([b, -torch.ones_like(half_b), -half_b])      # a @ b.T: -‖a - b‖²/2
    nearest = torch.full((len(a),), -torch.inf, device=x.device)
    for rows in torch.arange(len(a)).split(128):
        first = int(torch.searchsorted(other_kinds, kinds[rows[0]]))
        last = int(torch.searchsorted(other_kinds, kinds[rows[-1]], right=True))
        if first < last:
            s = a[rows] @ b[first:last].T
            s.masked_fill_((kinds[rows, None] != other_kinds[first:last]).to(s.device), -torch.inf)
            if alone:                                       # the query itself leaves, by its index
                s.diagonal(int(rows[0]) - first).fill_(-torch.inf)
            nearest[rows] = s.amax(1)
    bounds, counts = (nearest - error, nearest + error), torch.zeros(2, len(a), device=x.device)
    for start in range(0, len(a), size):
        rows = slice(start, start + size)
        for first in range(start if alone else 0, len(b), size):        # alone: each pair of blocks
            columns = slice(first, first + size)                        # once, for both
            s, here, there = a[rows] @ b[columns].T, kinds[rows], other_kinds[columns]
            if here[0] <= there[-1] and there[0] <= here[-1]:
                s.masked_fill_((here[:, None] == there).to(s.device), -torch.inf)
            nearer = torch.empty_like(s)                    # of 0 and 1: floats are summed faster
            for count, least in zip(counts, bounds):
                count[rows] += torch.ge(s, least[rows, None], out=nearer).sum(1)
                if alone and first > start:
                    count[columns] += torch.ge(s, least[columns], out=nearer).sum(0)
    most, least = counts.long().cpu()
    places, found = torch.empty_like(most), (nearest > -torch.inf).cpu()
    places[order] = torch.where(found, 1 + most, NOWHERE)
    unclear = found & (sum((least < k) & (k <= most) for k in ks) > 0)
    if not unclear.any():
        return places
    # Exact places need no point that is farther than the nearest positive of every unclear query.
    near = sum((a[rows] @ b.T >= bounds[0][rows, None]).sum(0)
               for rows in unclear.nonzero()[:, 0].split(512)).cpu() > 0
    kept = other_order[near]
    if alone:                                                           # each is near itself
        asked, bank, queries = kept, (None, None), unclear[near].nonzero()[:, 0]
    else:
        asked, bank, queries = order[unclear], (gallery[kept], gallery_labels[kept]), None
    for rows, exact in positive_places(x[asked], labels[asked], *bank, max(ks), queries, first=1):
        places[asked[rows]] = exact[:, 0].cpu()
    return places


def positive_places(x, labels, gallery, gallery_labels, R, queries=None, first=None):
    """The places of all positives (the `first` of each if given) up to R, which is what MAP@R asks:
    yields (rows, places), rows some of the queries (all if None), places (b, R) where x is,
    ascending up to R.  A place beyond R, or of no positive, is some number above R."""
    a, b, half_a, half_b, error = centred(x, gallery, torch.float64)
    bank, bank_labels = (x, labels) if gallery is None else (gallery, gallery_labels)
    queries = torch.arange(len(x)) if queries is None else queries
    R, ids = min(R, len(b)), None
    j = torch.arange(1, (first or R) + 1, device=x.device)
    for rows in queries.split(max(1, 2 ** 22 // len(b))):   # a part of the distances fits in memory
        s = torch.addmm(half_b, a[rows], b.T, alpha=-1).add_(half_a[rows, None])
        same, doubt = (labels[rows, None] == bank_labels).to(x.device), error[rows, None]
        if gallery is None:
            s[range(len(rows)), rows] = torch.inf
        negative = s.masked_fill(same, torch.inf).topk(R, largest=False).values         # sorted
        positive = s.masked_fill(~same, torch.inf).topk(len(j), largest=False).values
        least = torch.searchsorted(negative, positive - doubt, right=True)
        places = j + torch.searchsorted(negative, positive + doubt, right=True)
        for i in ((j + least < places) & (j + least <= R)).any(1).nonzero()[:, 0].tolist():
            if ids is None:                                             # duplicates need one look
                bank, ids = torch.unique(bank, dim=0, return_inverse=True)
            last = min(positive[i, -1], torch.cat([negative[i], positive[i]]).sort().values[R - 1])
            near = (s[i] <= last + doubt[i]) & (s[i] < torch.inf)
            others, of = ids[near].unique(return_inverse=True)
            distances = _exact_order(x[rows[i]], bank[others])[of.cpu()]
            right = same[i, near].cpu()                                 # of a tie the wrong first
            exact = 1 + right[np.lexsort((right, distances))].nonzero()[:len(j), 0]
            places[i, :len(exact)] = exact.to(x.device)
        yield rows, places


def _exact_order(point, others):
    """point (d,), others (m, d) -> numbers (m,) that are ordered as the exact distances"""
    fraction, exponent = np.frexp(torch.vstack([point, others]).double().cpu().numpy())
    whole = (fraction * 2.0 ** 53).astype(np.int64).astype(object)      # whole numbers of one unit
    whole <<= (exponent - exponent.min()).astype(object)
    return np.unique(np.square(whole[1:] - whole[0]).sum(1), return_inverse=True)[1]


@without_tf32()
def nearest(points, bank):
    """points (n, d), bank (m, d), both centred -> ‖b‖²/2 - a·b of each point and its nearest row of
    the bank (n,), and which row that is (n,) long: of equally near ones any"""
    half = bank.square().sum(1) / 2
    parts = [(half - part @ bank.T).min(1) for part in points.split(1024)]
    return torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])

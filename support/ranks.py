"""The counting behind eval.py: places of positives, nearest neighbours.

float32 compares -‖a - b‖²/2 = a·b - ‖a‖²/2 - ‖b‖²/2, a product of matrices.  What a bound on its
rounding leaves open, float64 decides by differences of the points.  There, squared distances within
a share of 1e-10 of each other may be ties.  Ties count against the query.
"""
import torch


def products(a, b):
    """a @ b.T without TF32, which a caller's program may allow and which moves ranks."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    result = a @ b.T
    torch.set_float32_matmul_precision(before)
    return result


def centred(x, bank):
    """Both less a vector near the bank's mean, so that no offset drowns a distance, divided by a
    power of two that keeps squares in range -> a (n, d), b (m, d)"""
    both = x
    if bank is not x:
        both = torch.cat([x, bank])
    both = both - bank[0]                               # equal points are 0: nothing to decide
    both /= both.abs().max().clamp(min=torch.finfo(both.dtype).tiny).log2().floor().exp2()
    both -= both[-len(bank):].mean(0)
    return both[:len(x)], both[-len(bank):]


def with_norms(x, bank):
    """Append norms so that a @ b.T is -‖a - b‖²/2 of the points -> a (n, d + 2), b (m, d + 2) in
    float32, and twice the most by which rounding moves that"""
    a, b = centred(x, bank)
    a, b = a.float(), b.float()
    half_a, half_b = a.norm(dim=1).square() / 2, b.norm(dim=1).square() / 2
    error = (3.2 * x.shape[1] + 50) * 2 ** -22 * torch.maximum(half_a.max(), half_b.max())
    a = torch.column_stack([a, half_a, torch.ones_like(half_a)])
    b = torch.column_stack([b, -torch.ones_like(half_b), -half_b])
    return a, b, error


def similarities(a, b, rows, within_itself):
    """-‖a - b‖²/2 of the queries `rows` (r,) and every item, -inf for the query itself  (r, m)"""
    s = products(a[rows], b)
    if within_itself:
        s.scatter_(1, rows[:, None], -torch.inf)
    return s


def decided_places(x, labels, bank, bank_labels, rows, near):
    """The places of positives among the items `near` (r, m) to each of the queries x[rows], by
    distances in float64 -> query (p,), place (p,), ascending within each query"""
    row, item = near.nonzero().T
    query = rows[row]                                                   # ascending
    size = 64 if x.device.type == "cpu" else 65536                      # pairs that fit a cache
    distances = []
    for i, j in zip(query.split(size), item.split(size)):
        difference = bank.index_select(0, j).double() - x.index_select(0, i)
        distances.append(difference.square_().sum(1))
    d = torch.cat(distances)
    right = bank_labels[item] == labels[query]
    d = torch.where(right, d * (1 + 1e-10) + torch.finfo(d.dtype).tiny, d)
    order = d.argsort()
    order = order[query[order].argsort(stable=True)]        # by query, within it by distance
    place = torch.arange(1, len(d) + 1, device=d.device) - torch.searchsorted(query, query)
    return query[right[order]], place[right[order]]


def first_places(x, labels, bank, bank_labels, ks):
    """The place of each query's first positive: 1 + how many negatives lie at least as near, exact
    as to whether it is <= k for each k in ks -> (n,), inf without a positive"""
    within_itself = bank is x
    a, b, error = with_norms(x, bank)
    nearest = torch.full_like(a[:, 0], -torch.inf)          # -‖a - b‖²/2 of the first positive
    counts = a.new_zeros(2, len(a))                         # of negatives above two bounds
    sizes = labels.unique(return_counts=True)[1].tolist()
    for rows in labels.argsort(stable=True).split(sizes):   # a class, in order
        s = products(a[rows], b[bank_labels == labels[rows[0]]])
        if within_itself:
            s.fill_diagonal_(-torch.inf)
        if s.numel():
            nearest[rows] = s.amax(1)
            counts[0, rows] -= (s == nearest[rows, None]).sum(1)

    # Above the lower bound of all items is the first positive too, subtracted here, and seldom
    # another.  Above the upper one is none; if all points are equal both are 0, and counts[0] is
    # right.
    bounds = torch.stack([nearest - error, nearest + error])
    size = 512 if x.device.type == "cpu" else 8192
    for start in range(0, len(a), size):
        rows = slice(start, start + size)
        for begin in range(start if within_itself else 0, len(b), size):
            columns = slice(begin, begin + size)            # within itself s serves both sides
            s = products(a[rows], b[columns])
            if within_itself and begin == start:
                s.fill_diagonal_(-torch.inf)
            above = torch.empty_like(s)                     # of 0 and 1: floats are summed faster
            for count, bound in zip(counts, bounds):
                count[rows] += torch.ge(s, bound[rows, None], out=above).sum(1)
                if within_itself and begin > start:
                    count[columns] += torch.ge(s, bound[columns], out=above).sum(0)

    most, least = counts
    undecided = torch.stack([(least < k) & (k <= most) for k in ks]).any(0)
    for rows in undecided.nonzero()[:, 0].split(128):
        s = similarities(a, b, rows, within_itself)
        low, high = bounds[:, rows, None]
        query, place = decided_places(x, labels, bank, bank_labels, rows, (s >= low) & (s < high))
        most[rows] = (s >= high).sum(1) + place[torch.searchsorted(query, rows)] - 1.0
    most[nearest == -torch.inf] = torch.inf
    return 1 + most


def positive_places(x, labels, bank, bank_labels, R):
    """The places of each query's positives up to its R and perhaps of more, which is what MAP@R
    asks.  R (n,) -> a list of n (p,), ascending, float64 on the host"""
    a, b, error = with_norms(x, bank)
    last = (R - 1).clamp(min=0)
    found = []
    for rows in torch.arange(len(x), device=x.device).split(128):
        s = similarities(a, b, rows, bank is x)
        low = s.topk(int(last.max()) + 1).values.gather(1, last[rows, None]) - error
        query, place = decided_places(x, labels, bank, bank_labels, rows, s >= low)
        counts = (query - rows[0]).bincount(minlength=len(rows))
        found += place.double().cpu().split(counts.tolist())
    return found


def nearest(points, bank):
    """points (n, d), bank (m, d), both centred -> ‖b‖²/2 - a·b of each point and its nearest row of
    the bank (n,), and which row that is (n,) long: of equally near ones any"""
    half = bank.square().sum(1) / 2
    values, rows = zip(*[(half - products(part, bank)).min(1) for part in points.split(1024)])
    return torch.cat(values), torch.cat(rows)

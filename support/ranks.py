"""The counting behind eval.py: places of positives, nearest neighbours.

float32 compares -‖a - b‖²/2 = a·b - ‖a‖²/2 - ‖b‖²/2, a product of matrices.  What a bound on its
rounding leaves open, float64 decides by differences of the points: there, squared distances within
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


def centred(x, gallery=None):
    """x and the gallery (x itself if None) less a vector near its mean, so that no offset drowns a
    distance, times a power of two that keeps squares in range -> a (n, d), b (m, d)"""
    bank, both = (x, x) if gallery is None else (gallery, torch.cat([x, gallery]))
    both = both - bank[0]                                               # equal points are 0
    both /= both.abs().max().clamp(min=torch.finfo(both.dtype).tiny).log2().floor().exp2()
    both -= both[-len(bank):].mean(0)
    return both[:len(x)], both[-len(bank):]


def with_norms(x, gallery):
    """-> a (n, d + 2), b (m, d + 2) in float32, of which a @ b.T is -‖a - b‖²/2 of the points; for
    each a twice the most by which rounding moves that (n,)"""
    a, b = (points.float() for points in centred(x, gallery))
    half_a, half_b = (torch.linalg.vector_norm(points, dim=1).square() / 2 for points in (a, b))
    a = torch.column_stack([a, half_a, torch.ones_like(half_a)])
    b = torch.column_stack([b, -torch.ones_like(half_b), -half_b])
    return a, b, (3.2 * x.shape[1] + 50) * 2 ** -23 * (half_a + max(half_a.max(), half_b.max()))


def ranked(x, labels, bank, bank_labels, row, s, low, high=torch.inf):
    """The places of a query's positives whose -‖a - b‖²/2, in s (m,), is at least low.  float64
    compares those below high; the others are nearer, and negatives."""
    if bank is x:
        s[row] = -torch.inf                                 # the query itself leaves, by its index
    q, near = x[row].double(), ((s >= low) & (s < high)).nonzero()[:, 0]
    d = torch.cat([(bank.index_select(0, j).double() - q).square().sum(1) for j in near.split(128)])
    right = bank_labels[near] == labels[row]
    d = torch.where(right, d * (1 + 1e-10) + torch.finfo(d.dtype).tiny, d)
    return 1 + (s >= high).sum() + right[d.argsort()].nonzero()[:, 0]


def first_places(x, labels, gallery, gallery_labels, ks):
    """The place of each query's first positive: 1 + how many negatives lie at least as near, exact
    as to whether it is <= k for each k in ks -> (n,) on the host, inf without a positive"""
    within_itself, size = gallery is None, 512 if x.device.type == "cpu" else 8192
    labels, order = labels.to(x.device).sort()                          # a class is a range
    x = x.index_select(0, order)
    bank, bank_labels = (x, labels) if within_itself else (gallery, gallery_labels.to(x.device))
    a, b, error = with_norms(x, gallery)
    nearest = torch.full_like(error, -torch.inf)                        # -‖a - b‖²/2 of a positive
    ends = labels.unique(return_counts=True)[1].cumsum(0).tolist()
    for rows in map(slice, [0, *ends], ends):
        own = rows if within_itself else bank_labels == labels[rows.start]
        s = products(a[rows], b[own])
        if within_itself:
            s.fill_diagonal_(-torch.inf)
        nearest[rows] = s.amax(1) if s.numel() else -torch.inf
    low, high = nearest - error, nearest + error            # most, least count negatives above them
    most, least = torch.where(nearest > -torch.inf, 0, torch.inf).repeat(2, 1)
    for start in range(0, len(a), size):
        rows = slice(start, start + size)
        for begin in range(start if within_itself else 0, len(b), size):
            columns = slice(begin, begin + size)            # within itself s serves both sides
            s = products(a[rows], b[columns])
            if not within_itself or labels[rows][-1] >= labels[begin]:
                s.masked_fill_(labels[rows, None] == bank_labels[columns], -torch.inf)
            nearer = torch.empty_like(s)                    # of 0 and 1: floats are summed faster
            for count, bound in ((most, low), (least, high)):
                count[rows] += torch.ge(s, bound[rows, None], out=nearer).sum(1)
                if within_itself and begin > start:
                    count[columns] += torch.ge(s, bound[columns], out=nearer).sum(0)
    for rows in (sum((least < k) & (k <= most) for k in ks) > 0).nonzero()[:, 0].split(128):
        for row, s in zip(rows.tolist(), products(a[rows], b)):
            most[row] = ranked(x, labels, bank, bank_labels, row, s, low[row], high[row])[0] - 1
    return torch.empty_like(most).scatter(0, order, 1 + most).cpu()


def positive_places(x, labels, gallery, gallery_labels, R):
    """The places of all positives up to R and perhaps of more, which is what MAP@R asks: yields
    (row, places ascending where x is) for each query."""
    bank, bank_labels = (x, labels) if gallery is None else (gallery, gallery_labels)
    labels, bank_labels = labels.to(x.device), bank_labels.to(x.device)
    a, b, error = with_norms(x, gallery)
    for rows in torch.arange(len(x), device=x.device).split(128):
        s = products(a[rows], b)
        lows = s.topk(min(R + 1, len(b))).values[:, -1] - error[rows]   # one may be the query
        for row, values, low in zip(rows.tolist(), s, lows):
            yield row, ranked(x, labels, bank, bank_labels, row, values, low)


def nearest(points, bank):
    """points (n, d), bank (m, d), both centred -> ‖b‖²/2 - a·b of each point and its nearest row of
    the bank (n,), and which row that is (n,) long: of equally near ones any"""
    half = bank.square().sum(1) / 2
    parts = [(half - products(part, bank)).min(1) for part in points.split(1024)]
    return [torch.cat(part) for part in zip(*parts)]

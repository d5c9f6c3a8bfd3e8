"""The searching behind eval.py: places of positives by exact distances, the nearest of a bank.

What is counted.  The squared distance of two points is D = Σ (x - b)² in float64, whose terms are
added by halves (`exact`), so that it is one number on every machine.  A negative counts as nearer
if D <= (1 + 2^-46) D of the positive: that is all that rounding can do to two equal sums.

Why the fast way gives the same.  A product of matrices in float32 bounds -D/2 of every pair, from
above by `a @ b.T` and from below by that less slack.  Almost all negatives are by these bounds
surely nearer than a positive or surely farther.  `exact` decides the pairs that are left open,
where a K, or MAP@R, depends on them.
"""
import contextlib

import torch

TIE = 2.0 ** -46
TINY = torch.finfo(torch.float64).tiny                  # what underflow takes from a sum


def exact(x, i, bank, j):
    """D of the pairs of a row i (p,) of x and a row j (p,) of the bank -> (p,) float64"""
    size = 256 if x.device.type == "cpu" else 2 ** 16                   # pairs that fit a cache
    D = torch.empty(len(i), dtype=torch.float64, device=x.device)
    for start in range(0, len(i), size):
        pairs = slice(start, start + size)
        terms = x.index_select(0, i[pairs]).double()
        terms -= bank.index_select(0, j[pairs])
        terms.square_()
        width = terms.shape[1]
        while width > 1:                                # a sum in an order that no library chooses
            half = (width + 1) // 2
            terms[:, :width - half] += terms[:, half:width]
            width = half
        D[pairs] = terms[:, 0]
    return D


def limit(D):
    """The largest squared distance at which a negative still counts as nearer than a positive"""
    return D * (1 + TIE) + TINY


def bounded(x, order, origin, scale):
    """Points from an origin, in float32, with which products bound distances.

    Rounding moves -‖a - b‖²/2 = a·b - ‖a‖²/2 - ‖b‖²/2, a sum of d + 2 products in any order, by at
    most slack_a + slack_b over 2, which are added.  A point that is the origin has no rounding.
    -> [a, w, 1] (n, d + 2), w = slack/2 - ‖a‖²/2, and slack (n,).  A bank has [b, 1, w].
    """
    n, d = x.shape
    a = torch.ones(n, d + 2, device=x.device)
    slack = torch.empty(n, device=x.device)
    least = (2.0 ** -100 + TINY / scale ** 2).clamp(max=2.0 ** 64)      # underflow, in `exact` too
    for start in range(0, n, 1024):
        rows = slice(start, start + 1024)
        point = (x.index_select(0, order[rows]).double() - origin) / scale
        a[rows, :d] = point
        squared = a[rows, :d].square().sum(1)
        moved = (point != 0).any(1)
        slack[rows] = 2.125 * (d + 32) * 2 ** -24 * squared + torch.where(moved, least, 0.0)
        a[rows, d] = (slack[rows] - squared) / 2
    return a, slack


class Search:
    """Queries x (n, d), labels (n,) and what they are searched in: themselves if bank is x.  Both
    are sorted by label, so that the positives of a query are a range of the bank."""

    def __init__(self, x, labels, bank, bank_labels):
        self.x, self.bank, self.within = x, bank, bank is x
        origin = bank[torch.linalg.vector_norm(bank - bank.mean(0), dim=1).argmin()].double()
        extents = []
        for points in (x, bank):
            extents += [points.amax(0) - origin, origin - points.amin(0)]
        scale = torch.stack(extents).max().clamp(min=TINY).log2().floor().exp2()
        self.labels, self.order = labels.sort(stable=True)
        self.a, self.slack = bounded(x, self.order, origin, scale)
        self.bank_labels, self.bank_order = bank_labels.sort(stable=True)
        self.b, self.bank_slack = bounded(bank, self.bank_order, origin, scale)
        self.b[:, -2:] = self.b[:, -2:].flip(1)
        self.left = torch.searchsorted(self.bank_labels, self.labels)
        self.right = torch.searchsorted(self.bank_labels, self.labels, right=True)
        self.ends = self.left.tolist(), self.right.tolist()
        self.size = 512 if x.device.type == "cpu" else 8192
        self.cells = 2 ** 20 if x.device.type == "cpu" else 2 ** 26     # of a matrix at a time

    def positives(self, rows, columns):
        """Which pairs of the queries `rows` and the items `columns` have the same label (r, c)"""
        return self.labels[rows, None] == self.bank_labels[columns]

    def products(self, rows, columns, buffer):
        """The upper bounds of -D/2 of a block (r, c), written into a buffer that is kept: one that
        is allocated anew for each block leaves the caches, and a heap with gaps"""
        a, b = self.a[rows], self.b[columns]
        return torch.mm(a, b.T, out=buffer[:len(a) * len(b)].view(len(a), len(b)))

    def buffer(self, cells):
        return torch.empty(cells, device=self.a.device)

    # ------------------------------------------------------------------------ first places
    def nearest_positives(self):
        """The bounds of -D/2 of each query's nearest positive -> low, high (n,), -inf without one"""
        lows, highs = [], []
        for start in range(0, len(self.a), 64):
            rows = slice(start, start + 64)
            first = min(self.ends[0][start], len(self.b) - 1)
            columns = slice(first, max(first + 1, self.ends[1][rows][-1]))
            s = self.a[rows] @ self.b[columns].T
            positive = self.positives(rows, columns)
            if self.within:
                positive.diagonal(start - first).fill_(False)
            s.masked_fill_(~positive, -torch.inf)
            lows.append((s - self.bank_slack[columns]).amax(1))
            highs.append(s.amax(1))
        return torch.cat(lows) - self.slack, torch.cat(highs) + self.slack

    def first_places(self, ks):
        """The place of each query's first positive, 1 + how many negatives are nearer, exact as to
        whether it is <= k for each k in ks -> (n,), inf without a positive"""
        low, high = self.nearest_positives()
        most, least = torch.zeros(2, len(self.a), device=low.device)    # negatives that are nearer
        s_buffer, buffer = self.buffer(self.size ** 2), self.buffer(self.size ** 2)
        for start in range(0, len(self.a), self.size):
            rows = slice(start, start + self.size)
            own = self.ends[0][start], self.ends[1][rows][-1]           # the rows' positives
            for begin in range(start if self.within else 0, len(self.b), self.size):
                columns = slice(begin, begin + self.size)
                s = self.products(rows, columns, s_buffer)
                if own[0] < begin + self.size and begin < own[1]:
                    s.masked_fill_(self.positives(rows, columns), -torch.inf)
                nearer = buffer[:s.numel()].view(s.shape)               # floats are summed faster
                sure = high + self.bank_slack[columns].max()
                most[rows] += torch.ge(s, low[rows, None], out=nearer).sum(1)
                least[rows] += torch.ge(s, sure[rows, None], out=nearer).sum(1)
                if self.within and begin > start:                       # s serves both its sides
                    sure = high + self.slack[rows].max()
                    most[columns] += torch.ge(s, low[columns], out=nearer).sum(0)
                    least[columns] += torch.ge(s, sure[columns], out=nearer).sum(0)
        return self.settled(ks, low, high, most, least)

    def settled(self, ks, low, high, most, least):
        """Decide the queries whose count of nearer negatives, of `least` to `most`, leaves open
        whether it is below one of the ks -> places (n,) in the order of x"""
        undecided = torch.zeros_like(low, dtype=torch.bool)
        for k in ks:
            undecided |= (least < k) & (k <= most)
        for rows in undecided.nonzero()[:, 0].split(max(1, self.cells // len(self.b))):
            s = self.a[rows] @ self.b.T
            positive = self.positives(rows, slice(None))
            if self.within:
                s.scatter_(1, rows[:, None], -torch.inf)
            surely = (s - self.bank_slack >= high[rows, None]) & ~positive
            query, item = ((s >= low[rows, None]) & ~surely).nonzero().T
            D = self.exact(rows[query], item)
            right = positive[query, item]
            nearest = D.new_full((len(rows),), torch.inf)
            nearest.scatter_reduce_(0, query[right], D[right], "amin")
            nearer = (D <= limit(nearest)[query]) & ~right
            most[rows] = (surely.sum(1) + query[nearer].bincount(minlength=len(rows))).float()
        places = (1 + most).masked_fill(low == -torch.inf, torch.inf)
        return torch.empty_like(places).scatter_(0, self.order, places)

    # ------------------------------------------------------------------------ all that MAP@R needs
    def blocks_of_rows(self):
        """Yield of some queries at a time their rows (r,) and the upper bounds of -D/2 to the whole
        bank (r, m), in which the caller may write"""
        n, m = len(self.a), len(self.b)
        mirrored = self.within and n <= 8192            # half of the products, and 256 MB
        if mirrored:
            whole = self.buffer(n * n).view(n, n)
            for start in range(0, n, self.size):
                rows, rest = slice(start, start + self.size), slice(start + self.size, n)
                torch.mm(self.a[rows], self.b[start:].T, out=whole[rows, start:])
                whole[rest, rows] = whole[rows, rest].T
        else:
            buffer = self.buffer(max(m, self.cells))
        for rows in torch.arange(n, device=self.a.device).split(max(1, self.cells // m)):
            block = slice(int(rows[0]), int(rows[-1]) + 1)
            yield rows, whole[block] if mirrored else self.products(block, slice(None), buffer)

    def precisions(self, ks=()):
        """-> first_places(ks) (n,), the average precision at R of each query (n,) in the order of x,
        where R is its number of positives: MAP@R is their mean"""
        low, high, most, least = torch.zeros(4, len(self.a), device=self.a.device)
        precisions = torch.zeros_like(low, dtype=torch.float64)
        buffer = self.buffer(max(len(self.b), self.cells))
        for rows, s in self.blocks_of_rows():
            # Positives (r, c) as ranges of the bank: their upper bounds, nearest first.
            left, right = self.left[rows, None], self.right[rows, None]
            items = left + torch.arange(max(1, int((right - left).max())), device=s.device)
            positive = items < right
            if self.within:
                positive &= items != rows[:, None]
            items = items.clamp(max=len(self.b) - 1)
            p = s.gather(1, items).masked_fill(~positive, -torch.inf)
            p, by_nearness = p.sort(descending=True)
            slack = (self.bank_slack[items] * positive).amax(1, keepdim=True)
            items, R = items.gather(1, by_nearness), positive.sum(1, keepdim=True)
            lower = p - slack - self.slack[rows, None]
            upper = p + self.slack[rows, None]
            # From here on s has negatives alone.  How many are nearer than each positive: at least
            # `nearer`, and as many as the window has may be.
            span = slice(int(left.min()), int(right.max()))
            s[:, span].masked_fill_(self.positives(rows, span), -torch.inf)
            low[rows], high[rows] = lower[:, 0], upper[:, 0]
            if ks:
                hits = buffer[:s.numel()].view(s.shape)
                most[rows] = torch.ge(s, lower[:, :1], out=hits).sum(1)
                least[rows] = torch.ge(s, upper[:, :1] + self.bank_slack.max(), out=hits).sum(1)
            s, negatives = s.topk(min(len(self.b), items.shape[1] + 8))
            slack = self.bank_slack[negatives].amax(1, keepdim=True)
            nearer = torch.searchsorted(-s, -slack - upper, right=True)
            window = torch.searchsorted(-s, -lower, right=True) - nearer
            window *= (nearer < R) & (p > -torch.inf)   # from R on, a positive's place is beyond R
            ends = ((window > 0) & (nearer + window == s.shape[1])).any(1)
            many = ends & (s.shape[1] < len(self.b)) | (window.sum(1) > len(self.b))
            self.count_window(rows, items, negatives, nearer, window * ~many[:, None])
            self.count_row(rows, items, nearer, many)
            nearer, _ = nearer.masked_fill(p == -torch.inf, len(self.b)).sort()
            j = torch.arange(1, nearer.shape[1] + 1, device=s.device)
            place = j + nearer
            precision = torch.where(place <= R, j.double() / place, 0)
            precisions[rows] = precision.sum(1) / R[:, 0].clamp(min=1)
        precisions = torch.empty_like(precisions).scatter_(0, self.order, precisions)
        return self.settled(ks, low, high, most, least), precisions

    def count_window(self, rows, items, negatives, nearer, window):
        """Add to `nearer` (r, c) those of the next `window` (r, c) negatives that are nearer"""
        query, j = window.nonzero().T
        size, begin = window[query, j], nearer[query, j]
        positive = torch.arange(len(query), device=rows.device).repeat_interleave(size)
        next_one = torch.arange(len(positive), device=rows.device)
        next_one += (begin - size.cumsum(0) + size)[positive]
        bounds = limit(self.exact(rows[query], items[query, j]))
        query_of = query[positive]
        D = self.exact(rows[query_of], negatives[query_of, next_one])
        nearer[query, j] += positive[D <= bounds[positive]].bincount(minlength=len(query))

    def count_row(self, rows, items, nearer, many):
        """Write into `nearer` (r, c) of the queries `many` (r,) the counts by all distances"""
        m = len(self.b)
        for chosen in many.nonzero()[:, 0].split(max(1, self.cells // m)):
            query, every = rows[chosen], torch.arange(m, device=rows.device)
            D = self.exact(query.repeat_interleave(m), every.repeat(len(query))).view(-1, m)
            bounds = limit(D.gather(1, items[chosen]))
            D.masked_fill_(self.positives(query, slice(None)), torch.inf)
            nearer[chosen] = torch.searchsorted(D.sort().values, bounds, right=True)

    def exact(self, queries, items):
        return exact(self.x, self.order[queries], self.bank, self.bank_order[items])


def first_places(x, labels, bank, bank_labels, ks):
    with float32_products():
        return Search(x, labels, bank, bank_labels).first_places(ks)


def precisions(x, labels, bank, bank_labels, ks=()):
    with float32_products():
        return Search(x, labels, bank, bank_labels).precisions(ks)


# ---------------------------------------------------------------------------- in x's own precision
@contextlib.contextmanager
def float32_products():
    """Matrix products, those of a loss, in float32 and not TF32; then as a notebook had them."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


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


def nearest(points, bank):
    """points (n, d), bank (m, d), both centred -> ‖b‖²/2 - a·b of each point and its nearest row of
    the bank (n,), and which row that is (n,) long: of equally near ones any"""
    half = bank.square().sum(1) / 2
    with float32_products():
        values, rows = zip(*[(half - part @ bank.T).min(1) for part in points.split(1024)])
    return torch.cat(values), torch.cat(rows)

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

import numpy as np
import torch

TIE = 2.0 ** -46
TINY = torch.finfo(torch.float64).tiny                  # what underflow takes from a sum
SIDE = {"cpu": 512, "cuda": 4096}                       # a block of products is SIDE by 4 SIDE
MIRRORED = 2 ** 14                                      # sets of so many points: 256 MB


def exact(x, i, bank, j):
    """D of the pairs of a row i (p,) of x and a row j (p,) of the bank -> (p,) float64"""
    size = 512 if x.device.type == "cpu" else 2 ** 16                   # pairs that fit a cache
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

    -D/2 is a·b - ‖a‖²/2 - ‖b‖²/2.  A sum of d products, in any order, the roundings of a and b and
    of what is done with the result move it by at most (d + 24) 2^-24 (‖a‖² + ‖b‖²)/2, of which the
    summand of each point is half its slack.  A point that is the origin has none.
    -> a (n, d); half = (slack - ‖a‖²)/2 (n,), so that a·b + half_a + half_b is not below -D/2, and
    less slack_a + slack_b not above it; slack (n,)
    """
    n, d = x.shape
    a = torch.empty(n, d, device=x.device)
    half, slack = torch.empty(2, n, device=x.device)
    least = (2.0 ** -100 + TINY / scale ** 2).clamp(max=2.0 ** 64)      # underflow, in `exact` too
    for start in range(0, n, 128):                      # of a size that fits a cache
        rows = slice(start, start + 128)
        point = x.index_select(0, order[rows]).double()
        point -= origin
        point /= scale
        a[rows] = point
        squared = point.square().sum(1)
        moved = (point != 0).any(1)
        rounding = 1.02 * (d + 24) * 2 ** -24 * squared + torch.where(moved, least, 0.0)
        slack[rows], half[rows] = rounding, (rounding - squared) / 2
    return a, half, slack


class Search:
    """Queries x (n, d), labels (n,) and what they are searched in: themselves if bank is x.  Both
    are sorted by label, so that the positives of a query are a range of the bank."""

    def __init__(self, x, labels, bank, bank_labels):
        self.x, self.bank, self.within = x, bank, bank is x
        # Amid the bank, so that no offset drowns a distance; of more than half equal points, they.
        origin = bank[::max(1, len(bank) // 256)].double().median(0).values
        largest = torch.stack([*x.aminmax(), *bank.aminmax()]).abs().max()
        scale = largest.double().clamp(min=TINY).log2().floor().exp2()
        self.labels, self.order = labels.sort(stable=True)
        self.a, self.half, self.slack = bounded(x, self.order, origin, scale)
        self.bank_labels, self.bank_order = self.labels, self.order
        self.b, self.bank_half, self.bank_slack = self.a, self.half, self.slack
        if not self.within:
            self.bank_labels, self.bank_order = bank_labels.sort(stable=True)
            self.b, self.bank_half, self.bank_slack = bounded(
                bank, self.bank_order, origin, scale)
        self.left = torch.searchsorted(self.bank_labels, self.labels)
        self.right = torch.searchsorted(self.bank_labels, self.labels, right=True)
        self.ends = self.left.tolist(), self.right.tolist()
        self.size = SIDE.get(x.device.type, 4096)
        self.cells = 4 * self.size ** 2

    def exact(self, queries, items):
        return exact(self.x, self.order[queries], self.bank, self.bank_order[items])

    def buffer(self, cells):
        return torch.empty(cells, device=self.a.device)

    def blocks(self, half):
        """The blocks of products, rows and columns; with half those on and above the diagonal"""
        n, m = len(self.a), len(self.b)
        for start in range(0, n, self.size):
            rows = slice(start, min(start + self.size, n))
            for begin in range(start if half else 0, m, 4 * self.size):
                yield rows, slice(begin, min(begin + 4 * self.size, m))

    def gram(self, rows, columns, buffer=None):
        """a·b of a block (r, c), written into a buffer if there is one"""
        a, b = self.a[rows], self.b[columns]
        if buffer is not None:
            buffer = buffer[:len(a) * len(b)].view(len(a), len(b))
        return torch.mm(a, b.T, out=buffer)

    def products(self, rows, columns, buffer=None):
        """The upper bounds of -D/2 of a block (r, c), written into a buffer if there is one"""
        s = self.gram(rows, columns, buffer)
        return s.add_(self.half[rows, None]).add_(self.bank_half[columns])

    def same_label(self, rows, columns):
        return self.labels[rows, None] == self.bank_labels[columns]                     # (r, c)

    def drop_positives(self, s, rows, columns):
        """Put the positives of a block s (r, c) and the queries themselves at -inf"""
        start = max(self.ends[0][rows.start], columns.start)
        stop = min(self.ends[1][rows.stop - 1], columns.stop)
        if start < stop:
            own = s[:, start - columns.start:stop - columns.start]
            own.masked_fill_(self.same_label(rows, slice(start, stop)), -torch.inf)

    # ------------------------------------------------------------------------ first places
    def nearest_positives(self):
        """The bounds of -D/2 of each query's nearest positive -> low, high (n,); -inf: none"""
        lows, highs = [], []
        size = max(1, self.size // 6)
        for start in range(0, len(self.a), size):
            rows = slice(start, min(start + size, len(self.a)))
            first = min(self.ends[0][start], len(self.b) - 1)
            columns = slice(first, max(first + 1, self.ends[1][rows.stop - 1]))
            s = self.products(rows, columns)
            positive = self.same_label(rows, columns)
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
        buffer, nearer = self.buffer(self.cells), self.buffer(self.cells)
        for rows, columns in self.blocks(half=self.within):
            s = self.products(rows, columns, buffer)
            self.drop_positives(s, rows, columns)
            hits = nearer[:s.numel()].view(s.shape)             # as floats, which are summed faster
            sure = high + self.bank_slack[columns].max()
            most[rows] += torch.ge(s, low[rows, None], out=hits).sum(1)
            least[rows] += torch.ge(s, sure[rows, None], out=hits).sum(1)
            if self.within and columns.stop > rows.stop:        # s serves the columns' queries too
                beyond = max(rows.stop - columns.start, 0)
                s, hits = s[:, beyond:], hits[:, beyond:]
                columns = slice(columns.start + beyond, columns.stop)
                sure = high + self.slack[rows].max()
                most[columns] += torch.ge(s, low[columns], out=hits).sum(0)
                least[columns] += torch.ge(s, sure[columns], out=hits).sum(0)
        return self.settled(ks, low, high, most, least)

    def settled(self, ks, low, high, most, least):
        """Decide the queries whose count of nearer negatives, of `least` to `most`, leaves open
        whether it is below one of the ks -> places (n,) in the order of x"""
        undecided = torch.zeros_like(low, dtype=torch.bool)
        for k in ks:
            undecided |= (least < k) & (k <= most)
        for rows in undecided.nonzero()[:, 0].split(max(1, self.cells // len(self.b))):
            s = self.products(rows, slice(None))
            positive = self.same_label(rows, slice(None))
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
        """Yield of some queries at a time their rows, a slice, and the upper bounds of -D/2 to the
        whole bank, less half[rows], which changes no order within a row (r, m).  The caller may
        write in them.

        Within a set of a size that leaves memory, the half of a block of rows before its diagonal
        is kept of the blocks before, mirrored, until it is needed: at most n²/4 numbers, 256 MB.
        """
        n, m = len(self.a), len(self.b)
        mirrored = self.within and n <= MIRRORED
        buffer, rows_buffer = self.buffer(self.cells), self.buffer(self.size * m)
        kept = {start: [] for start in range(0, n, self.size)}
        for rows, columns in self.blocks(mirrored):
            s = rows_buffer[:(rows.stop - rows.start) * m].view(-1, m)
            if columns.start == (rows.start if mirrored else 0):        # the first of these rows
                for before, part in kept.pop(rows.start):
                    torch.add(part, self.half[before], out=s[:, before])
            block = self.gram(rows, columns, buffer)
            torch.add(block, self.bank_half[columns], out=s[:, columns])
            if mirrored:
                parts = block.T.contiguous().split(self.size)
                for start, part in zip(range(columns.start, columns.stop, self.size), parts):
                    if start > rows.start:
                        kept[start].append((rows, part))
            if columns.stop == m:
                yield rows, s

    def precisions(self, ks=()):
        """Compute first_places(ks) (n,) and the average precision at R of each query (n,), in x's
        order, with R its number of positives: MAP@R is their mean."""
        low, high, most, least = torch.zeros(4, len(self.a), device=self.a.device)
        precisions = torch.zeros_like(low, dtype=torch.float64)
        buffer = None
        for rows, s in self.blocks_of_rows():
            # Positives (r, c) as ranges of the bank: their upper bounds, nearest first.
            left, right = self.left[rows, None], self.right[rows, None]
            items = left + torch.arange(max(1, int((right - left).max())), device=s.device)
            positive = items < right
            if self.within:
                positive &= items != torch.arange(rows.start, rows.stop, device=s.device)[:, None]
            items = items.clamp(max=len(self.b) - 1)
            p = s.gather(1, items).masked_fill(~positive, -torch.inf)
            p, by_nearness = topk(p, p.shape[1], ordered=True)
            slack = (self.bank_slack[items] * positive).amax(1, keepdim=True)
            items, R = items.gather(1, by_nearness), positive.sum(1, keepdim=True)
            lower = p - slack - self.slack[rows, None]
            upper = p + self.slack[rows, None]
            # From here on s has negatives alone.  How many are nearer than each positive: at least
            # `nearer`, and as many as the window has may be.
            self.drop_positives(s, rows, slice(0, len(self.b)))
            low[rows] = lower[:, 0] + self.half[rows]           # as `settled` bounds them
            high[rows] = upper[:, 0] + self.half[rows]
            if ks:
                if buffer is None:
                    buffer = torch.empty_like(s)
                hits = buffer[:len(s)]
                most[rows] = torch.ge(s, lower[:, :1], out=hits).sum(1)
                least[rows] = torch.ge(s, upper[:, :1] + self.bank_slack.max(), out=hits).sum(1)
            s, negatives = largest(s, min(len(self.b), int(R.max()) + 4))
            slack = self.bank_slack[negatives].amax(1, keepdim=True)
            nearer = torch.searchsorted(-s, -slack - upper, right=True)
            window = torch.searchsorted(-s, -lower, right=True) - nearer
            surely = torch.searchsorted(-lower, -upper)         # positives that are nearer
            beyond = (surely + nearer >= R) | (p == -torch.inf)             # a place beyond R
            nearer.masked_fill_(beyond, len(self.b))
            window.masked_fill_(beyond, 0)
            ends = ((window > 0) & (nearer + window == s.shape[1])).any(1)
            many = ends & (s.shape[1] < len(self.b))
            many |= window.sum(1) > min(len(self.b), 16 * s.shape[1])
            self.count_window(rows.start, items, negatives, nearer, window * ~many[:, None])
            if many.any():
                self.count_row(rows.start, items, nearer, many)
            nearer.masked_fill_(p == -torch.inf, len(self.b))
            mixed = (nearer.diff() < 0).any(1)          # the bounds had another order
            nearer[mixed] = nearer[mixed].sort().values
            j = torch.arange(1, nearer.shape[1] + 1, device=s.device)
            place = j + nearer
            precision = torch.where(place <= R, j.double() / place, 0)
            precisions[rows] = precision.sum(1) / R[:, 0].clamp(min=1)
        precisions = torch.empty_like(precisions).scatter_(0, self.order, precisions)
        return self.settled(ks, low, high, most, least), precisions

    def count_window(self, start, items, negatives, nearer, window):
        """Add to `nearer` (r, c) those of the next `window` (r, c) negatives that are nearer"""
        query, j = window.nonzero().T
        size, begin = window[query, j], nearer[query, j]
        positive = torch.arange(len(query), device=query.device).repeat_interleave(size)
        next_one = torch.arange(len(positive), device=query.device)
        next_one += (begin - size.cumsum(0) + size)[positive]
        query_of = query[positive]
        D = self.exact(start + torch.cat([query, query_of]),
                       torch.cat([items[query, j], negatives[query_of, next_one]]))
        bounds = limit(D[:len(query)])[positive]
        nearer[query, j] += positive[D[len(query):] <= bounds].bincount(minlength=len(query))

    def count_row(self, start, items, nearer, many):
        """Write into `nearer` (r, c) of the queries `many` (r,) the counts by all distances"""
        m = len(self.b)
        for chosen in many.nonzero()[:, 0].split(max(1, self.cells // m)):
            query, every = start + chosen, torch.arange(m, device=chosen.device)
            D = self.exact(query.repeat_interleave(m), every.repeat(len(query))).view(-1, m)
            bounds = limit(D.gather(1, items[chosen]))
            D.masked_fill_(self.same_label(query, slice(None)), torch.inf)
            nearer[chosen] = torch.searchsorted(D.sort().values, bounds, right=True)


def largest(s, k, ordered=True):
    """s.topk(k) of (r, m), from the k of its parts of four that have the largest maxima"""
    parts = s.shape[1] // 4
    if parts < 4 * k:
        return topk(s, k, ordered)
    _, chosen = largest(s[:, :4 * parts].unflatten(1, (4, parts)).amax(1), k, ordered=False)
    rest = torch.arange(4 * parts, s.shape[1], device=s.device).expand(len(s), -1)
    columns = torch.cat([chosen, chosen + parts, chosen + 2 * parts, chosen + 3 * parts, rest], 1)
    values, at = topk(s.gather(1, columns), k, ordered)
    return values, columns.gather(1, at)


def topk(s, k, ordered):
    """s.topk(k) of (r, m).  On one or two threads by NumPy, whose sort (2.4.6, with AVX2) takes a
    quarter of the time of torch's (2.14.1), but never more than one thread."""
    if s.device.type != "cpu" or torch.get_num_threads() > 2:
        return s.topk(k, sorted=ordered)
    if ordered:
        columns = np.argsort(-s.numpy(), 1)[:, :k]
    else:
        columns = np.argpartition(s.numpy(), s.shape[1] - k, 1)[:, -k:]
    columns = torch.from_numpy(np.ascontiguousarray(columns))
    return s.gather(1, columns), columns


def first_places(x, labels, bank, bank_labels, ks):
    """The place of each query's first positive, exact as to whether it is <= k for each k in ks
    -> (n,), inf without a positive"""
    with float32_products():
        return Search(x, labels, bank, bank_labels).first_places(ks)


def precisions(x, labels, bank, bank_labels, ks=()):
    """Both by one search: first_places (n,) and the average precision at R of each query (n,)"""
    with float32_products():
        return Search(x, labels, bank, bank_labels).precisions(ks)


# ---------------------------------------------------------------------------- in x's own precision
@contextlib.contextmanager
def float32_products():
    """Matrix products, those of a loss, in float32 and not TF32; then as a notebook had them."""
    backends = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    before, each = None, [backend.fp32_precision for backend in backends]
    with contextlib.suppress(RuntimeError):     # torch 2.14.1's, if the notebook set each backend
        before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        if before:
            torch.set_float32_matmul_precision(before)
        for backend, precision in zip(backends, each):
            backend.fp32_precision = precision


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
    values, rows = [], []
    buffer = half.new_empty(min(1024, len(points)), len(bank))  # one, or glibc's heap may grow
    with float32_products():
        for part in points.split(1024):
            block = torch.mm(part, bank.T, out=buffer[:len(part)])
            value, row = torch.sub(half, block, out=block).min(1)
            values.append(value)
            rows.append(row)
    return torch.cat(values), torch.cat(rows)

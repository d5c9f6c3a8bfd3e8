"""The searching behind eval.py: distances to all of a bank in float64, the nearest of a bank.

The squared distances are ‖a‖² + ‖b‖² - 2 a·b, from an origin amid the bank, so that no offset
drowns them.  Two that rounding cannot tell apart are a tie, and ties count against the query.
"""
import contextlib

import torch


def distances(x, labels, bank, bank_labels):
    """Yield of some queries at a time their squared distances less ‖a‖² to the bank (r, m), and
    which items are positives (r, m).  Positives are put as much farther as rounding may bring them
    nearer; the query itself is at inf and no positive."""
    origin = bank.double().median(0).values             # unlike a mean, near most of the bank
    a, b = x.double() - origin, bank.double() - origin
    aa, bb = a.square().sum(1), b.square().sum(1)
    rounding = (x.shape[1] + 8) * 2 ** -52
    of_a, of_b = rounding * aa + torch.finfo(aa.dtype).tiny, rounding * bb
    size = 2 ** 18 if x.device.type == "cpu" else 2 ** 24           # of float64: 2 MB, 128 MB
    for rows in torch.arange(len(a), device=a.device).split(max(64, size // len(b))):
        d = torch.addmm(bb, a[rows], b.T, alpha=-2)
        positive = labels[rows, None] == bank_labels
        if bank is x:
            d.scatter_(1, rows[:, None], torch.inf)
            positive.scatter_(1, rows[:, None], False)
        yield torch.where(positive, d + of_b + of_a[rows, None], d), positive


def first_places(*sets):
    """The place of each query's first positive: 1 + how many negatives lie nearer (n,),
    inf without a positive"""
    places = []
    for d, positive in distances(*sets):
        nearest = d.where(positive, torch.inf).amin(1, keepdim=True)
        place = 1.0 + (d < nearest).sum(1)
        places.append(place.where(nearest[:, 0] < torch.inf, torch.inf))
    return torch.cat(places)


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

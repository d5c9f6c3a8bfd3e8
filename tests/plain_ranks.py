"""What support/ranks.py must equal, plainly: all distances in float64, by loops in NumPy; and the
sets of points on which test_ranks.py and stress_ranks.py compare the two."""
import numpy as np
import torch

import eval as evaluation
from support import ranks

KINDS = ("random clustered duplicated collapsed nearly-collapsed offset small big grid outlier unit "
         "signs any-scale mixed-scales half-collapsed float16 integers one-class single-images"
         ).split()


def distances(x, bank):
    """D = Σ (x - b)² of all pairs in float64, summed by halves -> (n, m)"""
    terms = (np.float64(x)[:, None] - np.float64(bank)) ** 2
    width = terms.shape[2]
    while width > 1:
        half = (width + 1) // 2
        terms[:, :, :width - half] += terms[:, :, half:width]
        width = half
    return terms[:, :, 0]


def places(x, labels, bank=None, bank_labels=None):
    """The places of each query's positives, ties against it: [(R,), ...]"""
    within = bank is None
    if within:
        bank, bank_labels = x, labels
    found = []
    for query, D in enumerate(distances(x, bank)):
        positive = bank_labels == labels[query]
        negatives = D[~positive]
        if within:
            positive[query] = False                     # the query is not its own answer
        row = []
        for j, d in enumerate(np.sort(D[positive]), 1):
            limit = d * (1 + 2.0 ** -46) + np.finfo(float).tiny
            row.append(j + int((negatives <= limit).sum()))
        found.append(np.array(row))
    return found


def average_precisions(places):
    """Of each query 1/R Σ j / place over its positives whose place is at most R -> (n,)"""
    values = []
    for found in places:
        value = 0.0
        for j, place in enumerate(found, 1):
            if place <= len(found):
                value += j / place / len(found)
        values.append(value)
    return np.array(values)


def points(kind, n, d, draw):
    """n points (n, d) of a kind, as a person may hold them"""
    x, centres = draw.standard_normal((n, d)), draw.standard_normal((4, d))[draw.integers(0, 4, n)]
    if kind == "clustered":
        x = centres + 10.0 ** draw.integers(-8, 1) * x
    elif kind == "duplicated":
        x = centres
    elif kind == "collapsed":
        x = 0 * x + draw.standard_normal()
    elif kind == "nearly-collapsed":
        x = draw.standard_normal() + 10.0 ** draw.integers(-17, -3) * x
    elif kind == "offset":
        x = 1e4 + x
    elif kind in ("small", "big"):
        x = x * {"small": 1e-15, "big": 1e15}[kind]
    elif kind == "grid":                                # many ties that float32 has exactly
        x = draw.integers(-1, 2, (n, d)) * 2.0 ** draw.integers(-30, 30)
    elif kind == "outlier":
        x[draw.integers(0, n)] *= 10.0 ** draw.integers(1, 30)
    elif kind == "unit":
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
    elif kind == "signs":                               # many ties that rounding may part
        x = np.sign(x) / np.sqrt(d)
    elif kind == "any-scale":
        x = x * 10.0 ** draw.integers(-300, 140)
    elif kind == "mixed-scales":
        x = x * 10.0 ** draw.integers(-40, 20, (n, 1))
    elif kind == "half-collapsed":
        x = np.where(draw.random((n, 1)) < 0.5, centres, centres[:1] + 1e-9 * x)
    elif kind == "float16":
        return np.float16(x)
    elif kind == "integers":
        return np.rint(3 * x).astype(np.int64)
    if kind == "any-scale" or draw.random() < 0.5:
        return x                                        # float64
    return x.astype(np.float32)


def faults_of(kind, draw):
    """Search one drawn set within itself and in a gallery by both -> texts of what differs"""
    n, m = draw.choice([1, 2, 3, 9, 33, 70, 150]), draw.choice([1, 2, 20, 65])
    d = draw.choice([1, 2, 3, 8, 33])
    x, gallery = np.split(points(kind, n + m, d, draw), [n])
    if draw.random() < 0.4:                             # queries that lie in the gallery too
        gallery[:min(n, m) // 2] = x[:min(n, m) // 2]
    classes = draw.choice([2, 3, max(1, n // 3), n])
    classes = {"one-class": 1, "single-images": 1000}.get(kind, classes)
    labels, gallery_labels = draw.integers(0, classes, n), draw.integers(0, classes + 1, m)
    faults = []
    for arrays in ((x, labels), (x, labels, gallery, gallery_labels)):
        want = places(*arrays)
        first = np.array([found[0] if len(found) else np.inf for found in want])
        sets = evaluation._usable(*(torch.tensor(array) for array in arrays))
        ks = [1, 2, 4, 8]
        if draw.random() < 0.5:
            ks = draw.integers(1, len(arrays[-1]) + 2, 2).tolist()
        both, precisions = ranks.precisions(*sets, ks)
        for name, got in (("alone", ranks.first_places(*sets, ks)), ("with MAP@R", both)):
            for k in ks:
                if ((got.numpy() <= k) != (first <= k)).any():
                    faults.append(f"{kind}: R@{k} {name}, n {n} m {m} d {d}, {len(arrays)} arrays")
        if not np.allclose(precisions.numpy(), average_precisions(want), rtol=1e-12, atol=0):
            faults.append(f"{kind}: MAP@R, n {n} m {m} d {d}, {len(arrays)} arrays")
    return faults

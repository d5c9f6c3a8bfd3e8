"""How embeddings are judged: Recall@K, MAP@R, k-means and NMI, and JRD's 1-NN estimates of Eq. 1-3.

    python eval.py runs/RUN/last.pt    evaluates a checkpoint again; with --export FILE.npz writes
                                       its embeddings, paths and names of classes
    python eval.py FILE.npz            evaluates anybody's: `embeddings` (n, d), `labels` (n,)
                                       numbers or texts, and optionally `gallery`, `gallery_labels`
    python eval.py runs/RUN/last.pt --query photo.jpg    prints the images nearest to a photo; with
                                       --to sheet.png draws them too

Protocol: Oh Song et al.'s (2016), whose evaluator DML-DA names (MDR names the paper, JRD none),
without the traps of its successors.
- Euclidean distances (on unit vectors the ranking is that of the cosine): float64 decides what
  float32 cannot, and squared distances within a share of 1e-10 may be ties; k-means and the 1-NN
  estimates compare in the embeddings' own precision.  A query leaves its own list by index: an
  image may occur twice.
- Ties count against the query: a negative exactly as far as the nearest positive is nearer, so a
  collapsed embedding scores 0 and not 100%.
- A query whose class has no second image cannot hit and counts as a miss.
- Embeddings that are not finite are an error.  Shares lie in [0, 1] and are printed in %.
"""
import numpy as np
import torch
import torch.nn.functional as F
from scipy.special import entr, stdtrit       # scipy.stats would add a second to every start

from support import ranks


# ---------------------------------------------------------------------------- retrieval
def recall_at_k(embeddings, labels, ks, gallery=None, gallery_labels=None, each=False):
    """Recall@K: the share of queries with a same-class item among their K nearest (JRD Eq. 5).

    embeddings (n, d), labels (n,), ks whole numbers >= 1; gallery (m, d), gallery_labels (m,) or
    None for retrieval among themselves -> {k: share}, with `each` also {k: hits of each query (n,)}
    """
    ks = [*ks]
    if any(k != int(k) or k < 1 for k in ks):
        raise ValueError(f"K must be whole and at least 1, not {ks}")
    usable = _usable(embeddings, labels, gallery, gallery_labels)
    places = ranks.first_places(*usable, [*map(int, ks)])
    hits = {k: places <= k for k in ks}
    shares = {k: hit.double().mean().item() for k, hit in hits.items()}
    return (shares, hits) if each else shares


def map_at_r(embeddings, labels, gallery=None, gallery_labels=None):
    """MAP@R (Musgrave et al. 2020): 1/R Σ_{i<=R} P(i) rel(i), R the query's number of positives.
    P(i) is the precision among the i nearest: j / i if the j-th positive stands at place i."""
    x, labels, gallery, gallery_labels = _usable(embeddings, labels, gallery, gallery_labels)
    R, total = _positives(labels, gallery_labels), 0.0                  # (n,)
    for row, i in ranks.positive_places(x, labels, gallery, gallery_labels, int(R.max())):
        i = i[i <= R[row]].cpu().double()
        total += (torch.arange(1, len(i) + 1) / i).sum().item() / max(1, int(R[row]))
    return total / len(x)


def _positives(labels, gallery_labels=None):
    """How many correct answers each query has.  (n,) -> (n,) long"""
    labels, alone = torch.as_tensor(labels).cpu().long(), gallery_labels is None
    others = (labels if alone else torch.as_tensor(gallery_labels).cpu().long()).sort().values
    first = torch.searchsorted(others, labels)
    return torch.searchsorted(others, labels, right=True) - first - int(alone)


# ---------------------------------------------------------------------------- clustering
def kmeans(x, k, seed, rounds=1000):
    """Lloyd's algorithm from k random points until the squared error stops falling, at most
    `rounds` rounds, as in the evaluation code that DML-DA names (its U10).  A cluster that loses
    all its points keeps its centre.  x (n, d), 1 <= k <= n -> assignments (n,) long on the host"""
    x = _usable(x, torch.zeros(len(x)))[0]
    if not 1 <= k <= len(x):
        raise ValueError(f"k must be between 1 and the {len(x)} points, not {k}")
    x = ranks.centred(x)[0]
    first = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:k]
    centres, last = x[first.to(x.device)], torch.inf
    for _ in range(rounds):
        distances, nearest = ranks.nearest(x, centres)
        error = distances.sum(dtype=torch.float64)          # half the squared error less Σ ‖x‖²/2
        if not error < last:
            break
        assignments, last = nearest, error
        counts = assignments.bincount(minlength=k)[:, None]
        sums = torch.zeros_like(centres).index_add_(0, assignments, x)
        centres = torch.where(counts > 0, sums / counts, centres)
    return assignments.cpu()


def nmi(assignments, labels):
    """Normalized mutual information 2 I(Ω; C) / (H(Ω) + H(C)), natural logarithms; 1 where both are
    a single group, as in scikit-learn.  assignments (n,), labels (n,) -> share in [0, 1]"""
    a, b = np.asarray(assignments), np.asarray(labels)
    if a.shape != b.shape or a.ndim != 1 or not len(a):
        raise ValueError(f"assignments {a.shape} and labels {b.shape} must be two equal (n,)")
    h_a, h_b, h_joint = (entr(np.unique(v, axis=-1, return_counts=True)[1] / len(a)).sum()
                         for v in (a, b, np.stack([a, b])))             # -Σ p ln p
    return float(np.clip(2 * (h_a + h_b - h_joint) / (h_a + h_b), 0, 1)) if h_a + h_b else 1.0


# ---------------------------------------------------------------------------- generalization
def _halves(labels, generator):
    """Indices of a labelled and an unlabelled half of every class; of an odd number of images the
    labelled half has one more."""
    order = torch.randperm(len(labels), generator=generator)
    order = order[labels[order].argsort(stable=True)]                   # shuffled within each class
    place = torch.cat([torch.arange(n) for n in labels.unique(return_counts=True)[1].tolist()])
    return order[place % 2 == 0], order[place % 2 == 1]


def generalization_bound(seen, seen_labels, unseen, unseen_labels, seed):
    """JRD Eq. 1-3 with 1-nearest-neighbour classifiers (Table 3, Fig. 2b) -> (lambda, d_H).

    Eq. 3: lambda = ε_s(h*) + ε_u(h*), the errors on the unlabelled halves of seen and of unseen
    classes of one multi-class 1-NN fitted on both labelled halves, which are stratified by class.
    Eq. 2: d_H = 1 - ε*, where ε* is the error of the 1-NN that tells seen from unseen.
    seen (n, d), unseen (m, d); the two share no class.
    """
    generator = torch.Generator().manual_seed(seed)
    s, ys, u, yu = _usable(seen, seen_labels, unseen, unseen_labels, ("seen", "unseen"))
    s, u, *_ = ranks.centred(s, u)
    (s_fit, s_test), (u_fit, u_test) = (_halves(y, generator) for y in (ys, yu))
    if not len(s_test) or not len(u_test):
        raise ValueError("a 1-NN estimate needs classes of two images among seen and unseen")
    fitted = torch.cat([s[s_fit.to(s.device)], u[u_fit.to(s.device)]])
    y, is_seen = torch.cat([ys[s_fit], yu[u_fit]]), torch.arange(len(fitted)) < len(s_fit)
    lam, wrong_side = 0.0, 0
    for points, labels, test, side in ((s, ys, s_test, True), (u, yu, u_test, False)):
        nearest = ranks.nearest(points[test.to(s.device)], fitted)[1].cpu()
        same_side = is_seen[nearest] == side
        lam += (~(same_side & (y[nearest] == labels[test]))).double().mean().item()
        wrong_side += (~same_side).sum().item()
    return lam, 1 - wrong_side / (len(s_test) + len(u_test))


def stratified_parts(labels, parts=10, seed=0):
    """Table 2's disjoint parts, each with examples of every class.  labels (n,) -> index tensors.
    ValueError: a class without 2 images for each part (the paper uses all of SOP's test set)."""
    labels = torch.as_tensor(labels).cpu()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    order = order[labels[order].argsort(stable=True)]
    if (least := labels.unique(return_counts=True)[1].min()) < 2 * parts:
        raise ValueError(f"a class has {least} images: too few for {parts} parts")
    part = torch.arange(len(labels)) % parts    # dealt on from class to class: parts of equal size
    return [order[part == p].sort().values for p in range(parts)]


def confidence_interval(values, level=0.95):
    """Mean and half-width, t_{(1+level)/2, n-1} s / √n, of the Student-t interval -> (mean, half);
    the half-width of a single value is nan."""
    values = np.asarray(list(values), dtype=np.float64)
    if not len(values) or not 0 < level < 1:
        raise ValueError(f"needs a value and 0 < level < 1, not {len(values)} values and {level}")
    if len(values) == 1:
        return float(values[0]), float("nan")
    t = stdtrit(len(values) - 1, (1 + level) / 2)                       # Student's quantile
    return float(values.mean()), float(t * values.std(ddof=1) / np.sqrt(len(values)))


# ---------------------------------------------------------------------------- what can be judged
def _usable(a, a_labels, b=None, b_labels=None, names=("embeddings", "gallery")):
    """One or two sets -> of each x (n, d) float32, or float64 if one needs it, labels (n,) long on
    the host; None for a set that is None.  ValueError if not usable."""
    sets = [torch.as_tensor(x).detach() for x in (a, b) if x is not None]
    wide = {x.dtype for x in sets} & {torch.float64, torch.int64, torch.int32}
    dtype = torch.float64 if wide else torch.float32
    usable = []
    for name, x, labels in zip(names, sets, (a_labels, b_labels)):
        labels = torch.as_tensor([] if labels is None else labels).cpu()
        if x.ndim != 2 or labels.ndim != 1 or len(x) != len(labels) or not x.numel():
            raise ValueError(f"{name} must be (n, d) and its labels (n,), n and d at least 1, "
                             f"not {tuple(x.shape)} and {tuple(labels.shape)}")
        if x.shape[1] != sets[0].shape[1]:
            raise ValueError(f"{' and '.join(names)} differ in dimension: {sets[0].shape[1]}, "
                             f"{x.shape[1]}")
        if (labels != labels.long()).any():
            raise ValueError(f"labels of {name} must be whole numbers")
        x = x.to(dtype)
        if not torch.isfinite(torch.stack(x.aminmax())).all():
            raise ValueError(f"{name} contain values that are not finite")
        usable += [x, labels.long()]
    return usable if b is not None else [*usable, None, None]


# ---------------------------------------------------------------------------- the whole judgement
def normalized(embedded):
    """{split: (x, labels)} -> the same with each x l2-normalized"""
    return {split: (F.normalize(torch.as_tensor(x)), y) for split, (x, y) in embedded.items()}


def recalls(embedded, ks):
    """{split: (x (n, d), labels (n,))} -> {"R@K": share} of test, searched in the gallery if there
    is one, and of train_plain and val in themselves, where they are there, seen R@1 and val R@1."""
    shares = recall_at_k(*embedded["test"], ks, *embedded.get("gallery", ()))
    metrics = {f"R@{k}": share for k, share in shares.items()}
    for name, split in (("seen R@1", "train_plain"), ("val R@1", "val")):
        if split in embedded:
            metrics[name] = recall_at_k(*embedded[split], [1])[1]
    return metrics


def judge(embedded, ks):
    """What result.json has of all three papers -> a dict that json can write: recalls, the hits of
    each class's queries at K = 1 ("0110"), MAP@R, and without a gallery NMI, its k the number of
    test classes."""
    (x, labels), gallery = embedded["test"], embedded.get("gallery", ())
    labels = torch.as_tensor(labels).cpu()
    result = recalls(embedded, ks) | {"hits": {}}
    for label, hit in zip(labels.tolist(), recall_at_k(x, labels, [1], *gallery, each=True)[1][1]):
        result["hits"][str(label)] = result["hits"].get(str(label), "") + str(int(hit))
    result["MAP@R"] = map_at_r(x, labels, *gallery)
    positives = _positives(labels, *gallery[1:])
    traps = {"queries without a positive": positives == 0, "queries with positives alone":
             positives == max(1, len(gallery[1]) if gallery else len(x) - 1)}
    if gallery:
        rows = ([row.tobytes() for row in torch.as_tensor(each).double().cpu().numpy()]
                for each in (x, gallery[0]))
        traps["queries in the gallery"] = np.isin(*rows)
    result |= {trap: int(caught.sum()) for trap, caught in traps.items() if caught.any()}
    if not gallery:
        result["NMI"] = nmi(kmeans(x, len(labels.unique()), seed=0), labels)
    return result


if __name__ == "__main__":
    from report import judge as command                 # the top floor
    command.main(command.evaluate, command.parse_args)

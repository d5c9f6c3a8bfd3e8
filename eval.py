"""How embeddings are judged: Recall@K, MAP@R, k-means and NMI, and JRD's 1-NN estimates of Eq. 1-3.

    python eval.py runs/RUN/last.pt    evaluates a checkpoint again; with --export FILE.npz writes
                                       its embeddings, paths and names of classes
    python eval.py FILE.npz            evaluates anybody's: `embeddings` (n, d), `labels` (n,)
                                       numbers or texts, and optionally `gallery`, `gallery_labels`
    python eval.py runs/RUN/last.pt --query photo.jpg    prints the images nearest to a photo; with
                                       --to sheet.png draws them too

Protocol: Oh Song et al.'s (2016), whose evaluator DML-DA names (MDR names the paper, JRD none),
without the traps of its successors.
- Euclidean distances (on unit vectors the ranking is that of the cosine), as exact as float64 has
  them; k-means and the 1-NN estimates compare in the embeddings' own precision.  A query leaves its
  own list by index: an image may occur twice.
- Ties count against the query: a negative as far as the nearest positive, so far as float64 can
  tell (support/ranks.py), is nearer.  So a collapsed embedding scores 0 and not 100%.
- A query whose class has no second image cannot hit and counts as a miss.
- Embeddings that are not finite are an error.  Shares lie in [0, 1] and are printed in %.
"""
import numpy as np
import torch
import torch.nn.functional as F
from scipy.special import entr, stdtrit       # scipy.stats 1.17 takes 0.3 to 0.8 s to load

from support import ranks               # yours in the way?  docs/extending.md


# ---------------------------------------------------------------------------- retrieval
def recall_at_k(embeddings, labels, ks, gallery=None, gallery_labels=None):
    """Recall@K: the share of queries with a same-class item among their K nearest (JRD Eq. 5).

    embeddings (n, d), labels (n,), ks whole numbers >= 1; gallery (m, d), gallery_labels (m,) or
    None for retrieval among themselves -> {k: share}
    """
    hits = hits_at_k(embeddings, labels, ks, gallery, gallery_labels)
    return {k: hit.double().mean().item() for k, hit in hits.items()}


def hits_at_k(embeddings, labels, ks, gallery=None, gallery_labels=None):
    """As recall_at_k, but of each query -> {k: whether it hits (n,)}"""
    ks = _usable_ks(ks)
    sets = _usable(embeddings, labels, gallery, gallery_labels)
    places = ranks.first_places(*sets, ks)
    return {k: places <= k for k in ks}


def map_at_r(embeddings, labels, gallery=None, gallery_labels=None):
    """MAP@R (Musgrave et al. 2020): 1/R Σ_{i<=R} P(i) rel(i), R the query's number of positives,
    P(i) the precision among its i nearest, rel(i) whether the i-th nearest is a positive."""
    return hits_and_map(embeddings, labels, [], gallery, gallery_labels)[1]


def hits_and_map(embeddings, labels, ks, gallery=None, gallery_labels=None):
    """hits_at_k and map_at_r by one search -> {k: whether it hits (n,)}, MAP@R"""
    ks = _usable_ks(ks)
    sets = _usable(embeddings, labels, gallery, gallery_labels)
    places, precisions = ranks.precisions(*sets, ks)
    return {k: places <= k for k in ks}, precisions.mean().item()


def _positives(x, labels, bank, bank_labels):
    """How many correct answers each query has -> (n,) long"""
    ordered = bank_labels.sort().values
    right = torch.searchsorted(ordered, labels, right=True) - torch.searchsorted(ordered, labels)
    return right - int(bank is x)                           # without the query itself


# ---------------------------------------------------------------------------- clustering
def kmeans(x, k, seed, rounds=1000):
    """Lloyd's algorithm from k random points until the squared error stops falling, at most
    `rounds` rounds, as in the evaluation code that DML-DA names (its U10).  A cluster that loses
    all its points keeps its centre.  x (n, d), 1 <= k <= n -> assignments (n,) long on the host"""
    x, _ = _usable_set("points", x, torch.zeros(len(x)))
    if not 1 <= k <= len(x) or k != int(k) or rounds < 1:
        raise ValueError(f"k must be whole, between 1 and the {len(x)} points, and rounds at least "
                         f"1, not {k} and {rounds}")
    x, _ = ranks.centred(x, x)
    k = int(k)
    first = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:k]
    centres, last = x[first], torch.inf
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
    """Normalized mutual information 2 I(Ω; C) / (H(Ω) + H(C)), natural logarithms; 1 if each is a
    single group, as in scikit-learn 1.9.1.  assignments, labels (n,), numbers or texts -> share in
    [0, 1]"""
    a, b = _on_host(assignments), _on_host(labels)
    if a.shape != b.shape or a.ndim != 1 or not len(a):
        raise ValueError(f"assignments {a.shape} and labels {b.shape} must be two equal (n,)")
    a, b = _numbered(a), _numbered(b)                   # of one type: uint64 beside int64 is float
    h_a, h_b, h_joint = _entropy(a), _entropy(b), _entropy(np.stack([a, b]))
    if h_a + h_b == 0:
        return 1.0
    return float(np.clip(2 * (h_a + h_b - h_joint) / (h_a + h_b), 0, 1))


def _on_host(values):
    """A list, an array, or a tensor on any device -> an array"""
    return np.asarray(values.cpu() if torch.is_tensor(values) else values)


def _numbered(values):
    """Numbers or texts (n,) -> which of their different values each is (n,)"""
    return np.unique(values, return_inverse=True)[1]


def nmi_by_start(x, labels, starts=5):
    """NMI of k-means, k the number of classes, from each of some random starts: seed 0's, which is
    the protocol's figure, and those of seeds 1, 2, ..., which show by how much it is chance.
    x (n, d), labels (n,) -> [share, ...]"""
    k = len(np.unique(_on_host(labels)))
    return [nmi(kmeans(x, k, seed), labels) for seed in range(starts)]


def _entropy(values):
    """-Σ p ln p over the shares p of equal values (n,), or of equal columns (2, n)"""
    counts = np.unique(values, axis=-1, return_counts=True)[1]
    return entr(counts / values.shape[-1]).sum()


# ---------------------------------------------------------------------------- generalization
def _by_class(labels, generator):
    """labels (n,) -> of each class its indices, in random order"""
    order = torch.randperm(len(labels), generator=generator)
    order = order[labels[order].argsort(stable=True)]
    return order.split(labels.unique(return_counts=True)[1].tolist())


def _halves(labels, generator):
    """Indices of a labelled and an unlabelled half of every class; of an odd number of images the
    labelled half has one more."""
    classes = _by_class(labels, generator)
    return torch.cat([own[::2] for own in classes]), torch.cat([own[1::2] for own in classes])


def generalization_bound(seen, seen_labels, unseen, unseen_labels, seed):
    """JRD Eq. 1-3 with 1-nearest-neighbour classifiers (Table 3, Fig. 2b) -> (lambda, d_H).
    As it is printed, Eq. 1 can fail (JRD's E6, docs/equations.md).

    Eq. 3: lambda = ε_s(h*) + ε_u(h*), the errors on the unlabelled halves of seen and of unseen
    classes of one multi-class 1-NN fitted on both labelled halves, which are stratified by class.
    Eq. 2: d_H = 1 - ε*, where ε* is the error of the 1-NN that tells seen from unseen.
    seen (n, d), unseen (m, d); the two share no class.
    """
    generator = torch.Generator().manual_seed(seed)
    s, ys, u, yu = _usable(seen, seen_labels, unseen, unseen_labels)
    x, y = torch.cat(ranks.centred(s, u)), torch.cat([ys, yu]).cpu()
    is_seen = torch.arange(len(x)) < len(s)
    s_fit, s_test = _halves(y[is_seen], generator)
    u_fit, u_test = _halves(y[~is_seen], generator)
    if not len(s_test) or not len(u_test):
        raise ValueError("a 1-NN estimate needs classes of two images among seen and unseen")
    fit = torch.cat([s_fit, len(s) + u_fit])
    lam, wrong_side = 0.0, 0
    for test in (s_test, len(s) + u_test):
        nearest = fit[ranks.nearest(x[test], x[fit])[1].cpu()]
        same_side = is_seen[nearest] == is_seen[test]
        lam += (~same_side | (y[nearest] != y[test])).double().mean().item()
        wrong_side += (~same_side).sum().item()
    return lam, 1 - wrong_side / (len(s_test) + len(u_test))


def stratified_parts(labels, parts=10):
    """Table 2's disjoint parts, each with examples of every class.  labels (n,) -> index tensors.
    ValueError: a class without 2 images for each part (the paper uses all of SOP's test set)."""
    classes = _by_class(_tensor(labels).cpu(), torch.Generator().manual_seed(0))
    least = min(map(len, classes))
    if least < 2 * parts:
        raise ValueError(f"a class has {least} images: too few for {parts} parts")
    order = torch.cat(classes)                  # dealt on from class to class: parts of equal size
    return [order[p::parts].sort().values for p in range(parts)]


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
def _usable(x, labels, bank=None, bank_labels=None):
    """A set and what it is searched in, itself if there is no other -> of both the points (n, d) in
    one precision, the labels (n,) long on the same device.  ValueError if they are not usable."""
    x, labels = _usable_set("embeddings", x, labels)
    if bank is None and bank_labels is not None:
        raise ValueError("gallery_labels need a gallery")
    if bank is None:
        return x, labels, x, labels
    bank, bank_labels = _usable_set("gallery", bank, bank_labels)
    if x.shape[1] != bank.shape[1]:
        raise ValueError(f"embeddings and gallery differ in dimension: {x.shape[1]}, "
                         f"{bank.shape[1]}")
    dtype = torch.promote_types(x.dtype, bank.dtype)
    return x.to(dtype), labels, bank.to(dtype), bank_labels


def _usable_ks(ks):
    ks = list(ks)
    for k in ks:
        if k != int(k) or k < 1:
            raise ValueError(f"K must be whole and at least 1, not {k}")
    return [int(k) for k in ks]


def _tensor(values, device=None):
    """As a detached tensor, of what torch refuses too: columns of pandas, NumPy's unsigned,
    big-endian and reversed arrays.  ValueError: they are no numbers."""
    if hasattr(values, "__array__") and not torch.is_tensor(values):
        values = np.asarray(values)
        if values.dtype.kind not in "biufc":
            raise ValueError(f"numbers are needed, not {values.dtype}: of labels that are texts, "
                             "np.unique(labels, return_inverse=True)[1] makes numbers")
        dtype = values.dtype.newbyteorder("=")
        if dtype.kind == "u" and dtype.itemsize > 1:
            dtype = np.int64
        values = np.ascontiguousarray(values, dtype)
    values = torch.as_tensor(values, device=device).detach()
    if values.dtype in (torch.uint16, torch.uint32, torch.uint64):
        values = values.long()
    return values


def _usable_set(name, x, labels):
    """One set -> points in float32 or float64, labels long.  ValueError: it cannot be judged."""
    x = _tensor(x)
    labels = _tensor([] if labels is None else labels, x.device)
    if x.ndim != 2 or labels.ndim != 1 or len(x) != len(labels) or not x.numel():
        raise ValueError(f"{name} must be (n, d) and its labels (n,), n and d at least 1, "
                         f"not {tuple(x.shape)} and {tuple(labels.shape)}")
    if (labels != labels.long()).any():
        raise ValueError(f"labels of {name} must be whole numbers")
    if x.dtype in (torch.float64, torch.int64, torch.int32):
        x = x.double()
    else:
        x = x.float()
    largest = torch.stack(x.aminmax()).abs().max().double()
    if not (x.shape[1] * (2 * largest) ** 2).isfinite():    # nor may distances be infinite
        raise ValueError(f"{name} contain values that are not finite, or too large")
    return x, labels.long()


# ---------------------------------------------------------------------------- the whole judgement
def l2_normalized(embedded):
    """{split: (x, labels)} -> the same with each x L2-normalized, in float32 at least: in float16
    F.normalize makes 0 of long rows (findings/torch_normalize_float16.sh)"""
    unit = {}
    for split, (x, labels) in embedded.items():
        x = _tensor(x)
        if x.is_floating_point():
            x = x.to(torch.promote_types(x.dtype, torch.float32))
        else:
            x = x.double()
        unit[split] = F.normalize(x), labels
    return unit


def recalls(embedded, ks, hits=None):
    """{split: (x (n, d), labels (n,))} -> {"R@K": share} of test, searched in the gallery if there
    is one, and of train_plain and val in themselves, where they are there, seen R@1 and val R@1.
    hits: hits_at_k of test, if they are known"""
    ks, metrics = _usable_ks(ks), {}
    hits = hits or hits_at_k(*embedded["test"], ks, *embedded.get("gallery", ()))
    for k in ks:
        metrics[f"R@{k}"] = hits[k].double().mean().item()
    for name, split in (("seen R@1", "train_plain"), ("val R@1", "val")):
        if split in embedded:
            metrics[name] = recall_at_k(*embedded[split], [1])[1]
    return metrics


def judge(embedded, ks):
    """What result.json has of all three papers -> a dict that json can write: recalls, the hits of
    each class's queries at K = 1 ("0110"), MAP@R, training images without a positive, the counts
    of _traps, and without a gallery NMI, its k the number of test classes, and NMI by start
    (nmi_by_start)."""
    ks = _usable_ks(ks)
    (x, labels), (bank, bank_labels) = embedded["test"], embedded.get("gallery", (None, None))
    hits, map_at_r = hits_and_map(x, labels, [1, *ks], bank, bank_labels)
    result = recalls(embedded, ks, hits)
    result["hits"] = of_class = {}
    labels = _tensor(labels).cpu()
    for label, hit in zip(labels.tolist(), hits[1].int().tolist()):
        of_class[str(label)] = of_class.get(str(label), "") + str(hit)
    result["MAP@R"] = map_at_r
    if bank is None:
        result["NMI by start"] = nmi_by_start(x, labels)
        result["NMI"] = result["NMI by start"][0]
    if "train_plain" in embedded:
        x_train, y_train = _usable_set("training images", *embedded["train_plain"])
        lone = int((_positives(x_train, y_train, x_train, y_train) == 0).sum())
        if lone:
            result["training images without a positive"] = lone
    return result | _traps(*_usable(x, labels, bank, bank_labels))


def _traps(x, labels, bank, bank_labels):
    """{what makes a search trivial: of how many queries}, of what there is"""
    positives = _positives(x, labels, bank, bank_labels)
    traps = {"queries without a positive": positives == 0,
             "queries with positives alone": positives == max(1, len(bank) - (bank is x))}
    if bank is not x:
        rows = torch.cat([x, bank]).unique(dim=0, return_inverse=True)[1]
        traps["queries in the gallery"] = torch.isin(rows[:len(x)], rows[len(x):])
    return {trap: int(caught.sum()) for trap, caught in traps.items() if caught.any()}


if __name__ == "__main__":
    import runpy                                        # the command line is a program on top
    runpy.run_module("report.judge", run_name="__main__")

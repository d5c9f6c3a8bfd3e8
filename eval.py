"""How embeddings are judged: Recall@K, MAP@R, k-means and NMI, and JRD's 1-NN estimates of Eq. 1-3.

    python eval.py runs/RUN/last.pt                      evaluates a checkpoint again
    python eval.py runs/RUN/last.pt --export FILE.npz    and writes its test embeddings
    python eval.py FILE.npz                              evaluates anybody's embeddings: arrays
                                                         `embeddings` (n, d), `labels` (n,), and
                                                         optionally `gallery`, `gallery_labels`

Protocol: the evaluator that MDR and DML-DA name (Oh Song et al. 2016; JRD names none), without the
traps of its successors.
- Euclidean distances (on unit vectors the ranking is that of the cosine).  A query leaves its own
  list by index, not as "the first neighbour", which is wrong when an image occurs twice.
- Ties count against the query: a negative exactly as far as the nearest positive is nearer, so a
  collapsed embedding scores 0 and not 100%.
- A query whose class has no second image cannot hit and counts as a miss.
- float32 with TF32 off (float64 if given float64); embeddings that are not finite are an error.
All shares lie in [0, 1] and are printed in %.
"""
import argparse
import contextlib
import importlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import scipy.stats
import torch
import torch.nn.functional as F

import common


# ---------------------------------------------------------------------------- geometry in blocks
@contextlib.contextmanager
def _full_precision():
    """float32 products with TF32 off, whatever the training used."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _checked(embeddings, labels, name="embeddings"):
    """-> x (n, d) float32 or float64, labels (n,) long on the host; ValueError if not usable."""
    x, labels = torch.as_tensor(embeddings).detach(), torch.as_tensor(labels).cpu()
    if x.ndim != 2 or labels.ndim != 1 or len(x) != len(labels) or not x.numel():
        raise ValueError(f"{name} must be (n, d) and its labels (n,), n and d at least 1, "
                         f"not {tuple(x.shape)} and {tuple(labels.shape)}")
    x = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    if not torch.isfinite(torch.stack(x.aminmax())).all():
        raise ValueError(f"{name} contain values that are not finite")
    return x, labels.long()


def _checked_pair(a, a_labels, b=None, b_labels=None, names=("embeddings", "gallery")):
    """Two sets, or one where b is None, of one dtype and rescaled -> [(x, labels), ...]"""
    sets = [_checked(a, a_labels, names[0])]
    if b is not None:
        sets.append(_checked(b, b_labels, names[1]))
    (n, d), (m, other) = sets[0][0].shape, sets[-1][0].shape
    if d != other:
        raise ValueError(f"{names[0]} ({n}, {d}) and {names[1]} ({m}, {other}) differ in dimension")
    dtype = torch.promote_types(sets[0][0].dtype, sets[-1][0].dtype)
    return list(zip(_rescaled(*[x.to(dtype) for x, _ in sets]), [y for _, y in sets]))


def _rescaled(*sets):
    """The sets after one similarity transform that keeps ‖a‖² + ‖b‖² - 2 a·b in range and accurate.

    A power of two scales exactly.  A common offset goes only where it dwarfs the distances.
    """
    largest = torch.stack([torch.stack(x.aminmax()).abs().max() for x in sets]).max()
    if not 2 ** -30 < largest < 2 ** 30:
        sets = [torch.ldexp(x, -torch.frexp(largest).exponent) for x in sets]
    mean = sets[-1].mean(0)
    offset, size = mean.square().sum(), torch.linalg.vector_norm(sets[-1]).square() / len(sets[-1])
    if offset > 100 * (size - offset):                                  # ‖E x‖², E ‖x‖²
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


def _block(x):
    """How many points a block has: memory against overhead."""
    return 1024 if x.device.type == "cpu" else 8192


class _Blocks:
    """Points grouped by class, in blocks of one shape: products of different shapes round
    differently, which moves ranks.  The last block is padded with points at infinity."""

    def __init__(self, x, labels, size):
        n, self.order = len(x), labels.argsort(stable=True)
        self.size = -(-n // (32 * -(-n // size))) * 32                # a multiple of 32, near size
        self.count = -(-n // self.size)
        total, order = self.count * self.size, self.order.to(x.device)
        self.x = F.pad(x[order], (0, 0, 0, total - n))                                # (total, d)
        self.half = F.pad(x[order].square().sum(1) / 2, (0, total - n), value=torch.inf)
        self.labels = F.pad(labels[self.order], (0, total - n), value=-1).to(x.device)
        host = labels[self.order].tolist()
        self.range = [(host[i], host[min(i + self.size, n) - 1]) for i in range(0, n, self.size)]

    def slice(self, i):
        return slice(i * self.size, (i + 1) * self.size)


def positive_ranks(embeddings, labels, gallery=None, gallery_labels=None, block=None):
    """How many negatives lie at least as near as the nearest positive, for each query.

    embeddings (n, d), labels (n,) -> (n,) long on the host; the gallery's size where a query has no
    positive.  Without a gallery every point is a query and all others are its gallery; then half
    of the (symmetric) distance matrix is computed and each block counts for its rows and columns.
    Needs no sort: Recall@K is the share of ranks below K, for all K at once.  Memory: one block.
    """
    alone = gallery is None
    sets = _checked_pair(embeddings, labels, gallery, gallery_labels)
    block = block or _block(sets[0][0])
    q = _Blocks(*sets[0], block)
    g = q if alone else _Blocks(*sets[1], block)
    pairs = [(i, j) for i in range(q.count) for j in range(i if alone else 0, g.count)]
    shared = {(i, j) for i, j in pairs                         # blocks with a class in common
              if q.range[i][0] <= g.range[j][1] and g.range[j][0] <= q.range[i][1]}
    nearest = q.half.new_full(q.half.shape, -torch.inf)        # -d²/2 to the nearest positive
    ranks = torch.zeros(len(q.x), dtype=torch.int32, device=q.x.device)
    kept, room = {}, max(1, 2 ** 28 // (q.size * g.size * q.x.element_size()))        # 256 MB

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
        in_common = sorted(shared)
        for (i, j), (of_rows, of_columns) in zip(in_common, each(of_positives, in_common)):
            rows, columns = nearest[q.slice(i)], nearest[q.slice(j)]
            rows.copy_(torch.maximum(rows, of_rows))
            if alone:
                columns.copy_(torch.maximum(columns, of_columns))
        for (i, j), (of_rows, of_columns) in zip(pairs, each(of_negatives, pairs)):
            ranks[q.slice(i)] += of_rows
            if alone and i != j:
                ranks[q.slice(j)] += of_columns
    n = len(q.order)
    ranks = torch.where(nearest == -torch.inf, len(g.order), ranks)[:n].cpu().long()
    return torch.empty_like(ranks).scatter_(0, q.order, ranks)


def recall_at_k(embeddings, labels, ks, gallery=None, gallery_labels=None):
    """Recall@K: the share of queries with a same-class item among their K nearest (JRD Eq. 5).

    embeddings (n, d), labels (n,), ks whole numbers >= 1; gallery (m, d), gallery_labels (m,) or
    None for retrieval among the embeddings themselves -> {k: share in [0, 1]}.
    ValueError: shapes that do not fit, values that are not finite, K < 1.
    """
    if any(k != int(k) or k < 1 for k in ks):
        raise ValueError(f"K must be whole and at least 1, not {list(ks)}")
    with _full_precision():
        ranks = positive_ranks(embeddings, labels, gallery, gallery_labels)
    unanswerable = _positives(labels, gallery_labels if gallery is not None else None) == 0
    return {k: ((ranks < k) & ~unanswerable).double().mean().item() for k in ks}


def _positives(labels, gallery_labels=None):
    """How many correct answers each query has.  (n,) -> (n,) long"""
    labels = torch.as_tensor(labels).cpu().long()
    if gallery_labels is None:
        _, inverse, counts = labels.unique(return_inverse=True, return_counts=True)
        return counts[inverse] - 1
    classes, counts = torch.as_tensor(gallery_labels).cpu().long().unique(return_counts=True)
    at = torch.searchsorted(classes, labels).clamp(max=len(classes) - 1)
    return torch.where(classes[at] == labels, counts[at], 0)


def map_at_r(embeddings, labels, gallery=None, gallery_labels=None):
    """MAP@R (Musgrave et al. 2020): 1/R Σ_{i<=R} P(i) rel(i), R the query's number of positives.

    P(i) is the precision among the i nearest.  Ties count against the query; a query without
    positives scores 0.  Shapes and errors as in recall_at_k -> share in [0, 1].
    """
    alone = gallery is None
    sets = _checked_pair(embeddings, labels, gallery, gallery_labels)
    (x, y), (gx, gy) = sets[0], sets[-1]
    positives = _positives(y, None if alone else gy)                                    # R, (n,)
    R = int(positives.max())
    if not R:
        return 0.0
    half, gy_device, y_device, total = gx.square().sum(1) / 2, gy.to(x.device), y.to(x.device), 0.0
    rows = max(1, 2 ** 24 // len(gx))
    counted = torch.arange(1, R + 1, device=x.device)                    # j = 1..R
    with _full_precision():
        for start in range(0, len(x), rows):
            s = torch.addmm(half[None], x[start:start + rows], gx.T, alpha=-1)  # up to a constant
            same = y_device[start:start + rows, None] == gy_device[None]
            negative = s.masked_fill(same, torch.inf).topk(R, largest=False).values
            if alone:
                index = torch.arange(len(s), device=x.device)
                same[index, start + index] = False
            positive = s.masked_fill(~same, torch.inf).topk(R, largest=False).values  # sorted
            place = counted + torch.searchsorted(negative, positive, right=True)
            r = positives[start:start + rows, None].to(x.device)
            hit = (place <= r) & (counted <= r)
            score = torch.where(hit, counted / place, 0.0).double().sum(1) / r[:, 0].clamp(min=1)
            total += score.sum().item()
    return total / len(x)


# ---------------------------------------------------------------------------- clustering
def kmeans(x, k, seed, rounds=1000):
    """Lloyd's algorithm from k random points until the squared error stops falling, at most
    `rounds` rounds.

    x (n, d), 1 <= k <= n -> assignments (n,) long on the host.  A cluster that loses all its points
    keeps its centre.  ValueError: k out of range, values that are not finite.
    """
    x, _ = _checked(x, torch.zeros(len(x)))
    if not 1 <= k <= len(x):
        raise ValueError(f"k must be between 1 and the {len(x)} points, not {k}")
    (x,) = _rescaled(x)
    first = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:k]
    centres, last = x[first.to(x.device)], -torch.inf

    def assign(points):
        """The nearest centre of each point -> which, Σ (x·c - ‖c‖²/2), Σ x of each cluster."""
        which, fit, sums = [], 0.0, torch.zeros_like(centres)
        for part in points.split(_block(x)):
            best = _products(_left(part), centres).sub_(half).max(1)
            which.append(best.indices)
            fit = fit + best.values.sum(dtype=torch.float64)
            sums.index_add_(0, best.indices, part)
        return torch.cat(which), fit, sums

    with _full_precision(), _side_by_side(x.device) as each:
        for _ in range(rounds):
            half, which, fit, sums = centres.square().sum(1) / 2, [], 0.0, torch.zeros_like(centres)
            for some, their_fit, their_sums in each(assign, x.chunk(8)):
                which.append(some)
                fit = fit + their_fit                          # Σ‖x‖²/2 - half the squared error
                sums += their_sums
            if not fit > last:
                break
            last, assignments = fit, torch.cat(which)
            counts = assignments.bincount(minlength=k)[:, None]
            centres = torch.where(counts > 0, sums / counts, centres)
    return assignments.cpu()


def nmi(assignments, labels):
    """Normalized mutual information 2 I(Ω; C) / (H(Ω) + H(C)), natural logarithms.

    assignments (n,), labels (n,) -> share in [0, 1].  Where both are a single group there is
    nothing to tell apart: 1, the convention of scikit-learn.  ValueError: lengths differ.
    """
    (a, n_a), (b, n_b) = (np.unique(np.asarray(v), return_inverse=True, return_counts=True)[1:]
                          for v in (assignments, labels))
    if a.shape != b.shape or a.ndim != 1 or not len(a):
        raise ValueError(f"assignments {a.shape} and labels {b.shape} must be two equal (n,)")
    n_joint = np.unique(a * len(n_b) + b, return_counts=True)[1]        # of the pairs that occur
    h_a, h_b, h_joint = map(scipy.stats.entropy, (n_a, n_b, n_joint))
    if h_a + h_b == 0:
        return 1.0
    return float(max(0.0, 2 * (h_a + h_b - h_joint) / (h_a + h_b)))


# ---------------------------------------------------------------------------- generalization
def _halves(labels, generator):
    """A labelled and an unlabelled half of every class (the labelled one takes the odd image)."""
    order = torch.randperm(len(labels), generator=generator)
    order = order[labels[order].argsort(stable=True)]                  # shuffled within each class
    _, counts = labels.unique(return_counts=True)
    place = torch.cat([torch.arange(c) for c in counts.tolist()])
    return order[place % 2 == 0], order[place % 2 == 1]


def generalization_bound(seen, seen_labels, unseen, unseen_labels, seed):
    """JRD Eq. 1-3 with 1-nearest-neighbour classifiers (Table 3, Fig. 2b) -> (lambda, d_H).

    Eq. 3: lambda = ε_s(h*) + ε_u(h*), the errors on the unlabelled halves of seen and of unseen
    classes of one multi-class 1-NN fitted on both labelled halves.
    Eq. 2: d_H = 1 - ε*, the error of the 1-NN that tells seen from unseen.
    The halves are stratified by class and drawn from `seed`.  seen (n, d), unseen (m, d); a seen
    and an unseen class are different whatever their numbers.  ValueError: no class has two images.
    """
    generator = torch.Generator().manual_seed(seed)
    (s, ys), (u, yu) = _checked_pair(seen, seen_labels, unseen, unseen_labels, ("seen", "unseen"))
    (s_fit, s_test), (u_fit, u_test) = _halves(ys, generator), _halves(yu, generator)
    if not len(s_test) or not len(u_test):
        raise ValueError("a 1-NN estimate needs classes of two images among seen and unseen")
    x = torch.cat([s[s_fit.to(s.device)], u[u_fit.to(u.device)]])
    y, is_seen = torch.cat([ys[s_fit], yu[u_fit]]), torch.arange(len(x)) < len(s_fit)
    half, rows, lam, wrong_side = x.square().sum(1) / 2, max(1, 2 ** 24 // len(x)), 0.0, 0
    for points, labels, side in ((s[s_test.to(s.device)], ys[s_test], True),
                                 (u[u_test.to(u.device)], yu[u_test], False)):
        with _full_precision():
            nearest = torch.cat([torch.addmm(half[None], part, x.T, alpha=-1).argmin(1)
                                 for part in points.split(rows)]).cpu()
        same_side = is_seen[nearest] == side
        lam += (~(same_side & (y[nearest] == labels))).double().mean().item()
        wrong_side += (~same_side).sum().item()
    return lam, 1 - wrong_side / (len(s_test) + len(u_test))


def stratified_parts(labels, parts=10, seed=0):
    """Table 2's disjoint parts, each with examples of every class -> list of index tensors.

    labels (n,); every class needs at least 2 images for each part, or nothing could be retrieved in
    it: ValueError otherwise (Stanford Online Products: the paper uses the whole test set there).
    """
    labels = torch.as_tensor(labels).cpu().long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    order = order[labels[order].argsort(stable=True)]
    _, counts = labels.unique(return_counts=True)
    if counts.min() < 2 * parts:
        raise ValueError(f"a class has {counts.min()} images: too few for {parts} parts")
    deal = torch.arange(len(labels)) % parts           # on from class to class: parts of equal size
    return [order[deal == p].sort().values for p in range(parts)]


def confidence_interval(values, level=0.95):
    """Mean and half-width, t_{(1+level)/2, n-1} s / √n, of the Student-t interval -> (mean, half).

    The half-width of a single value is nan.  ValueError: no values, level outside (0, 1).
    """
    values = np.asarray(list(values), dtype=np.float64)
    if not len(values) or not 0 < level < 1:
        raise ValueError(f"needs a value and 0 < level < 1, not {len(values)} values and {level}")
    if len(values) == 1:
        return float(values[0]), float("nan")
    t = scipy.stats.t.ppf((1 + level) / 2, len(values) - 1)
    return float(values.mean()), float(t * values.std(ddof=1) / np.sqrt(len(values)))


# ---------------------------------------------------------------------------- the whole judgement
def judge(test, labels, ks, gallery=None, gallery_labels=None, seen=None, seen_labels=None):
    """Everything the tables report -> a dict that json can write; shares in [0, 1].

    R@K, MAP@R, NMI (k = the number of test classes); with `seen`, the training embeddings: their
    R@1, λ and d_H; where every class has 20 images or more: Table 2's ten parts.  [mean,
    half-width] of 95% intervals over ten splits or ten parts.  NMI and parts are not defined for a
    separate gallery.
    """
    result = retrieval(dict(test=test, labels=labels, gallery=gallery,
                            gallery_labels=gallery_labels), ks)
    result["MAP@R"] = map_at_r(test, labels, gallery, gallery_labels)
    lonely = int((_positives(labels, gallery_labels if gallery is not None else None) == 0).sum())
    if lonely:
        result["queries without a positive"] = lonely
    if gallery is None:
        labels = torch.as_tensor(labels).cpu()
        result["NMI"] = nmi(kmeans(test, len(labels.unique()), seed=0), labels)
        with contextlib.suppress(ValueError):
            parts = [recall_at_k(test[p], labels[p], ks) for p in stratified_parts(labels)]
            result["ten parts"] = {f"R@{k}": confidence_interval(p[k] for p in parts) for k in ks}
    if seen is not None:
        result["seen R@1"] = recall_at_k(seen, seen_labels, [1])[1]
        with contextlib.suppress(ValueError):
            splits = [generalization_bound(seen, seen_labels, test, labels, s) for s in range(10)]
            result["lambda"], result["d_H"] = map(confidence_interval, zip(*splits))
    return result


def retrieval(parts, ks):
    """Recall@K of common.embeddings' parts -> {"R@K": share}; In-Shop searches its gallery."""
    found = recall_at_k(parts["test"], parts["labels"], ks, parts.get("gallery"),
                        parts.get("gallery_labels"))
    return {f"R@{k}": share for k, share in found.items()}


def test_recall(function, data, cfg):
    """Recall@K of the test images as function(images) embeds them -> {"R@K": share}"""
    return retrieval(common.embeddings(function, data, cfg, ("test", "gallery")), cfg.ks)


def percent(share, width=7):
    return f"{100 * share:{width}.1f}" if isinstance(share, float) else f"{'–':>{width}}"


def show(rows, ks):
    """Print {name: judge(...)} as an aligned table in %, and below it what one row alone has."""
    metrics = [f"R@{k}" for k in ks] + ["MAP@R", "NMI"]
    wide = max(map(len, rows), default=0)
    print(" " * wide + "".join(f"{m:>7}" for m in metrics))
    for name, row in rows.items():
        print(f"{name:<{wide}}" + "".join(percent(row.get(m)) for m in metrics))
    for row in rows.values():
        if "seen R@1" in row:
            print(f"{'seen classes (training images)':<{wide}}  R@1 {percent(row['seen R@1'], 0)}")
        if "ten parts" in row:
            print(f"{'in ten stratified parts':<{wide}}" + "".join(
                f"  {m} {100 * mean:.1f} ± {100 * half:.1f}"
                for m, (mean, half) in row["ten parts"].items()))
        if "lambda" in row:
            print(f"{'1-NN estimates of Eq. 2-3':<{wide}}" + "".join(
                f"  {name} {row[key][0]:.3f} ± {row[key][1]:.3f}"
                for name, key in (("λ", "lambda"), ("d_H", "d_H"))))
        if "queries without a positive" in row:
            print(f"{row['queries without a positive']} queries have no second image of their "
                  "class and count as misses")


def final_table(run):
    """The end of a training: untrained backbone, last epoch, best epoch on test, and its folder."""
    result = run.result
    rows = {"untrained backbone": result["untrained backbone"],
            f"last epoch ({result['last epoch']['epoch']})": result["last epoch"],
            f"best on test (epoch {result['best on test']['epoch']}, chosen on the test set)":
                result["best on test"]}
    print()
    show(rows, run.cfg.ks)
    print(f"run {run.folder}")


# ---------------------------------------------------------------------------- command line
def load_npz(path):
    """An .npz of embeddings -> keyword arguments for judge.  UserError if it is not one."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except Exception as error:                  # np.load fails in a dozen ways on a damaged file
        raise common.UserError(f"cannot read {path}: {common.reason(error)}")
    missing = {"embeddings", "labels"} - set(arrays)
    if ("gallery" in arrays) != ("gallery_labels" in arrays):
        missing |= {"gallery", "gallery_labels"} - set(arrays)
    if missing:
        raise common.UserError(f"{path} lacks the arrays {', '.join(sorted(missing))}")
    wanted = {k: arrays[k] for k in ("embeddings", "labels", "gallery", "gallery_labels")
              if k in arrays}
    for key, array in wanted.items():
        kind = "iu" if key.endswith("labels") else "iuf"
        if array.dtype.kind not in kind:
            raise common.UserError(f"{path}: {key} must be numbers, not {array.dtype}"
                                   + (" (whole numbers, one a class)" if kind == "iu" else ""))
    return {("test" if k == "embeddings" else k): torch.from_numpy(
        a.astype(np.int64 if k.endswith("labels") else
                 a.dtype if a.dtype == np.float64 else np.float32)) for k, a in wanted.items()}


def load_run(path, args):
    """A checkpoint -> (keyword arguments for judge, its K).  Rebuilds the network and the data."""
    network, cfg = common.load(path, args.device)
    cfg.data_root = args.data_root or cfg.data_root
    train_prefix, _, test_transform = importlib.import_module(cfg.paper).transforms(cfg)
    data = common.load_dataset(cfg.dataset, cfg.data_root, train_prefix, test_transform,
                               cache=not args.no_cache)
    return common.embeddings(network.embed, data, cfg), cfg.ks


def main(args):
    path = Path(args.file)
    if path.suffix == ".npz":
        inputs, ks = load_npz(path), [1, 2, 4, 8]
    else:
        inputs, ks = load_run(path, args)
    if args.l2norm:
        inputs |= {k: F.normalize(v) for k, v in inputs.items() if not k.endswith("labels")}
    ks = args.ks or ks
    try:
        result = judge(ks=ks, **inputs)
    except ValueError as error:
        raise common.UserError(f"{path}: {error}")
    n, classes = len(inputs["labels"]), len(torch.as_tensor(inputs["labels"]).unique())
    print(f"{path}: {n:,} embeddings of {classes:,} classes, d = {inputs['test'].shape[1]}")
    show({"test": result}, ks)
    if args.export:
        arrays = {("embeddings" if k == "test" else k): v.cpu().numpy() for k, v in inputs.items()}
        with common.atomic(args.export, "wb") as file:
            np.savez(file, **arrays)
        print(f"wrote {args.export}: {', '.join(arrays)}")


def parse_args(argv=None):
    parser = common.Parser("eval.py", __doc__)
    parser.add_argument("file", help="a checkpoint runs/RUN/last.pt, or an .npz of embeddings")
    parser.add_argument("--ks", type=common.number(int, 1), nargs="+", help="the K of Recall@K")
    parser.add_argument("--l2norm", action="store_true", help="normalize the embeddings first")
    parser.add_argument("--export", metavar="FILE.npz", help="write the embeddings")
    parser.add_argument("--data-root", help="where the datasets are, if not where they were")
    parser.add_argument("--device", default="auto", help="auto (default), cpu, cuda")
    parser.add_argument("--no-cache", action="store_true", help="decode every image anew")
    return parser.parse_args(argv)


if __name__ == "__main__":
    common.main(main, parse_args)

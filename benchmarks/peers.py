"""Small sets judged by eval.py and by other libraries: docs/comparing.md says why they differ.

    python benchmarks/peers.py                  all tables, a minute and a half
    python benchmarks/peers.py --tables search  judges searches; others: kmeans, losses
    python benchmarks/peers.py --markdown       without the header, as docs/comparing.md has them
    python benchmarks/peers.py --npz e.npz      searches and k-means on embeddings of your own, as
                                                `eval.py runs/RUN/last.pt --export e.npz` writes

Libraries that are not installed are left out and named.  All of them:
    pip install pytorch-metric-learning faiss-cpu torchmetrics scikit-learn pytrec_eval-terrier \\
        ranx usearch hnswlib open-metric-learning
"""
import argparse
import importlib.metadata
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.nn.functional as F
from scipy.spatial.distance import cdist

import dml_da
import jrd
import mdr
from eval import judge, kmeans, map_at_r, nmi, nmi_by_start, recall_at_k
from report.judge import load_npz
from report.tables import markdown
from support.command_line import main
from support.files import UserError

NAMES = {       # of a package to import: of the package that pip installs
    "pytorch_metric_learning": "pytorch-metric-learning", "faiss": "faiss-cpu",
    "torchmetrics": "torchmetrics", "sklearn": "scikit-learn",
    "pytrec_eval": "pytrec_eval-terrier", "ranx": "ranx", "usearch": "usearch",
    "hnswlib": "hnswlib", "oml": "open-metric-learning"}


def version(module):
    """The version of a library by the name it is imported by, None if it is not installed"""
    try:
        return importlib.metadata.version(NAMES[module])
    except importlib.metadata.PackageNotFoundError:
        return None


# ---------------------------------------------------------------------------- the sets
def line(*values, dtype=np.float32):
    """Points on a line -> (n, 1)"""
    return np.array(values, dtype)[:, None]


def far_from_0():
    """150 classes of two points, 2.2 apart, 10,000 from the origin in each of 512 dimensions; other
    classes are 32 away."""
    draw = np.random.default_rng(0)
    y = np.repeat(np.arange(150), 2)
    x = draw.standard_normal((150, 512))[y] + 0.07 * draw.standard_normal((300, 512))
    return (10_000 + x).astype(np.float32), y


SETS = {        # name: x (n, d), labels (n,)
    "plain": (line(0, 1, 3, 4, 4.5), [0, 0, 1, 0, 1]),
    "ties": (line(1, 0, 2, 4.5), [0, 0, 1, 1]),
    "1e-9 apart": (line(0, 1, -1 - 1e-9, -3.5, dtype=np.float64), [0, 0, 1, 1]),
    "collapsed, class by class": (np.zeros((6, 3), np.float32), [0, 0, 0, 1, 1, 1]),
    "collapsed, classes in turn": (np.zeros((6, 3), np.float32), [0, 1, 0, 1, 0, 1]),
    "classes of one image": (line(0, 1, 5, 20), [0, 0, 1, 2]),
    "duplicates": (line(0, 0, 5, 5, 20, 20.5), [0, 0, 1, 2, 1, 2]),
    "classes of four": (line(0, 1, 2.2, 9, 5, 6.1, 12, 13.5), [0, 0, 0, 0, 1, 1, 1, 1]),
    "far from 0": far_from_0(),
    "float16": (1 + line(0, 4, 8, 1, 5, 9, dtype=np.float16) / 1024, [0, 1, 2, 0, 1, 2]),
    "labels above 2^24": (line(0, 1, 10, 11), [2 ** 24, 2 ** 24 + 1, 2 ** 24, 2 ** 24 + 1])}
IR = ["plain", "ties", "1e-9 apart", "collapsed, class by class", "collapsed, classes in turn",
      "classes of one image"]                   # on which rankings of scores are shown


# ---------------------------------------------------------------------------- who judges them
def ours(x, y):
    return {"R@1": recall_at_k(x, y, [1])[1], "MAP@R": map_at_r(x, y)}


def metric_learning(x, y, k=None, knn=None):
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    names = {"R@1": "precision_at_1", "MAP@R": "mean_average_precision_at_r",
             "R-precision": "r_precision", "MAP": "mean_average_precision"}
    calculator = AccuracyCalculator(include=tuple(names.values()), k=k, knn_func=knn,
                                    device=torch.device("cpu"))
    got = calculator.get_accuracy(torch.tensor(x), torch.tensor(y))
    return {name: got[theirs] for name, theirs in names.items()}


def open_metric_learning(x, y, k=None):
    """k: of its map@k; by default the whole ranking"""
    from oml.functional.knn import batched_knn
    from oml.functional.metrics import calc_retrieval_metrics
    rows = torch.arange(len(y))
    _, found, right = batched_knn(torch.tensor(x), rows, rows, top_n=len(y),
                                  labels_gt=torch.tensor(y))
    got = calc_retrieval_metrics(found, right, cmc_top_k=(1,), map_top_k=(k or len(y),),
                                 precision_top_k=(), verbose=False)
    name = "MAP@R" if k else "MAP"
    return {"R@1": float(got["cmc"][1]), name: float(got["map"][k or len(y)])}


def share_of_hits(nearest, y):
    """nearest (n,): the row that each query is answered with"""
    y = np.asarray(y)
    return {"R@1": float((y[nearest] == y).mean())}


def other_than_query(nearest):
    """Of the two nearest rows (n, 2) the first that is not the query itself."""
    itself = nearest[:, 0] == np.arange(len(nearest))
    return np.where(itself, nearest[:, 1], nearest[:, 0])


def two_nearest_faiss(x, batch=None):
    import faiss
    x = x.astype(np.float32)
    index = faiss.IndexFlatL2(x.shape[1])
    index.add(x)
    return np.concatenate([index.search(part, 2)[1]
                           for part in np.split(x, range(batch or len(x), len(x), batch or 1))])


def two_nearest_usearch(x, **dtype):
    from usearch.index import Index
    x = x.astype(np.float32)
    index = Index(ndim=x.shape[1], metric="l2sq", **dtype)
    index.add(np.arange(len(x)), x)
    return index.search(x, 2, exact=True).keys.astype(int)


def two_nearest_hnswlib(x):
    import hnswlib
    index = hnswlib.Index("l2", x.shape[1])
    index.init_index(len(x), random_seed=100)
    index.add_items(x, num_threads=1)
    return index.knn_query(x, 2, num_threads=1)[0].astype(int)


def scikit(x, y, itself):
    """itself: whether a query is searched too, and its first answer dropped"""
    from sklearn.neighbors import NearestNeighbors
    fitted = NearestNeighbors(n_neighbors=2 if itself else 1).fit(x)
    nearest = fitted.kneighbors(x if itself else None, return_distance=False)
    return share_of_hits(nearest[:, -1], y)


def score(x):
    """What runs of information retrieval rank by: minus the distance -> (n, n)"""
    return -cdist(x.astype(np.float64), x.astype(np.float64))


def torch_metrics(x, y, above_0=False):
    from torchmetrics import retrieval
    y, scores = np.asarray(y), score(x)
    if above_0:
        scores = np.exp(scores)
    query, other = np.nonzero(~np.eye(len(y), dtype=bool))              # all pairs
    got = {}
    for name, metric in (("R@1", retrieval.RetrievalHitRate(top_k=1)),
                         ("MAP", retrieval.RetrievalMAP()),
                         ("R-precision", retrieval.RetrievalRPrecision()),
                         ("IR recall@1", retrieval.RetrievalRecall(top_k=1))):
        value = metric(torch.tensor(scores[query, other]), torch.tensor(y[query] == y[other]),
                       indexes=torch.tensor(query))
        got[name] = value.item()
    return got


def qrels_and_run(x, y):
    """{query: {document: 1 if relevant}}, {query: {document: score}}"""
    qrels, run = {}, {}
    for i, row in enumerate(score(x)):
        others = [j for j in range(len(y)) if j != i]
        qrels[f"q{i}"] = {f"d{j:03}": int(y[j] == y[i]) for j in others}
        run[f"q{i}"] = {f"d{j:03}": float(row[j]) for j in others}
    return qrels, run


def pytrec(x, y):
    import pytrec_eval
    qrels, run = qrels_and_run(x, y)
    names = {"R@1": "success_1", "MAP": "map", "R-precision": "Rprec", "IR recall@1": "recall_1"}
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, {"success.1", "map", "Rprec", "recall.1"})
    values = evaluator.evaluate(run).values()
    return {name: np.mean([of_query[theirs] for of_query in values])
            for name, theirs in names.items()}


def ranx(x, y):
    from ranx import Qrels, Run, evaluate
    qrels, run = qrels_and_run(x, y)
    qrels = {query: {document: 1 for document, relevant in of_query.items() if relevant}
             for query, of_query in qrels.items()}
    qrels = {query: of_query for query, of_query in qrels.items() if of_query}
    run = {query: run[query] for query in qrels}
    names = {"R@1": "hit_rate@1", "MAP": "map", "R-precision": "r-precision",
             "IR recall@1": "recall@1"}
    got = evaluate(Qrels(qrels), Run(run), list(names.values()))
    return {name: got[theirs] for name, theirs in names.items()}


def exact_knn(query, k, reference, ref_includes_query):
    """A knn_func for AccuracyCalculator: by differences in float64, a query left out by its row"""
    d = torch.cdist(query.double(), reference.double(),
                    compute_mode="donot_use_mm_for_euclid_dist")
    if ref_includes_query:
        d.fill_diagonal_(torch.inf)
    return d.topk(k, largest=False)


EVERY, OWN = list(SETS), "embeddings of your own"
JUDGES = [      # module, what is called, the sets it is shown on, the function of x and labels
    (None, "eval.py", [*EVERY, OWN], ours),
    ("pytorch_metric_learning", "AccuracyCalculator()",
     [name for name in [*EVERY, OWN] if name != "classes of four"], metric_learning),
    ("pytorch_metric_learning", "AccuracyCalculator(k=2)", ["classes of four"],
     lambda x, y: metric_learning(x, y, 2)),
    ("pytorch_metric_learning", 'AccuracyCalculator(k="max_bin_count")', ["classes of four"],
     lambda x, y: metric_learning(x, y, "max_bin_count")),
    ("pytorch_metric_learning", "AccuracyCalculator(knn_func=exact_knn)", ["far from 0"],
     lambda x, y: metric_learning(x, y, knn=exact_knn)),
    ("pytorch_metric_learning", "AccuracyCalculator(), x less its mean", ["far from 0"],
     lambda x, y: metric_learning(x - x.mean(0), y)),
    ("pytorch_metric_learning", "AccuracyCalculator(), labels from 0", ["labels above 2^24"],
     lambda x, y: metric_learning(x, np.unique(y, return_inverse=True)[1])),
    ("oml", "calc_retrieval_metrics", [
        "plain", "ties", "classes of one image", "duplicates", "far from 0", "labels above 2^24",
        OWN], open_metric_learning),
    ("oml", "calc_retrieval_metrics, x less its mean", ["far from 0"],
     lambda x, y: open_metric_learning(x - x.mean(0), y)),
    ("oml", "calc_retrieval_metrics(map_top_k=3)", ["classes of four"],
     lambda x, y: open_metric_learning(x, y, 3)),
    ("faiss", "IndexFlatL2, first answer dropped", ["ties", "duplicates", OWN],
     lambda x, y: share_of_hits(two_nearest_faiss(x)[:, 1], y)),
    ("faiss", "IndexFlatL2, query left out by row", ["ties", "duplicates", "far from 0", OWN],
     lambda x, y: share_of_hits(other_than_query(two_nearest_faiss(x)), y)),
    ("faiss", "IndexFlatL2, 100 queries at a time", ["far from 0"],
     lambda x, y: share_of_hits(other_than_query(two_nearest_faiss(x, 100)), y)),
    ("sklearn", "kneighbors(x), first answer dropped", ["ties", "duplicates"],
     lambda x, y: scikit(x, y, True)),
    ("sklearn", "kneighbors()", ["ties", "duplicates", "far from 0", OWN],
     lambda x, y: scikit(x, y, False)),
    ("torchmetrics", "scores -d", IR, torch_metrics),
    ("torchmetrics", "scores exp(-d)", ["plain"], lambda x, y: torch_metrics(x, y, True)),
    ("pytrec_eval", "scores -d", IR, pytrec),
    ("ranx", "scores -d", IR, ranx),
    ("usearch", "Index(), search(exact=True)", ["float16", OWN],
     lambda x, y: share_of_hits(other_than_query(two_nearest_usearch(x)), y)),
    ("usearch", 'Index(dtype="f32"), search(exact=True)', ["float16", OWN],
     lambda x, y: share_of_hits(other_than_query(two_nearest_usearch(x, dtype="f32")), y)),
    ("hnswlib", "Index, first answer dropped", ["duplicates", OWN],
     lambda x, y: share_of_hits(two_nearest_hnswlib(x)[:, 1], y)),
]
METRICS = ["R@1", "MAP@R", "R-precision", "MAP", "IR recall@1"]


def searches(points=SETS):
    """The table of searches -> lists of cells.  points: {name: (x, labels)}, SETS or one's own"""
    rows = [["set", "judged by", *METRICS]]
    for name, (x, y) in points.items():
        shown = name
        for module, call, sets, judged in JUDGES:
            if (name if points is SETS else OWN) in sets and (module is None or version(module)):
                got = judged(x, y)
                who = call if module is None else f"{NAMES[module]} {version(module)}: {call}"
                cells = [f"{100 * got[metric]:.1f}" if metric in got else "–" for metric in METRICS]
                rows.append([shown, who, *cells])
                shown = ""
    return rows


# ---------------------------------------------------------------------------- k-means
def classes_around(centres, images, noise, d):
    """Unit vectors: a random centre per class plus noise -> x (n, d) float32, labels (n,)"""
    draw = np.random.default_rng(0)
    y = np.arange(images) % centres
    x = draw.standard_normal((centres, d))[y] + noise * draw.standard_normal((images, d))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), y


CLUSTERED = {       # classes, images, noise over the spread of the centres, d
    "3 classes, far apart": classes_around(3, 60, 0.3, 64),
    "10 classes, far apart": classes_around(10, 200, 0.3, 64),
    "100 classes, far apart": classes_around(100, 2000, 0.3, 64),
    "100 classes, weak": classes_around(100, 5924, 4.0, 512)}


def nmi_faiss(x, y, seed):
    import faiss
    k = len(set(y))
    clustering = faiss.Kmeans(x.shape[1], k, niter=20, seed=1 + seed, min_points_per_centroid=1)
    clustering.train(x)
    return nmi(clustering.index.search(x, 1)[1][:, 0], y)


def first_points(x, y, seed):
    """The points with which eval.kmeans begins -> (k, d)"""
    return x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:len(set(y))]]


def nmi_scikit(x, y, seed, init, **more):
    from sklearn.cluster import KMeans
    from sklearn.metrics import normalized_mutual_info_score
    found = KMeans(len(set(y)), init=init, n_init=1, random_state=seed, algorithm="lloyd",
                   **more).fit(x)
    value = normalized_mutual_info_score(y, found.labels_)
    assert abs(value - nmi(found.labels_, y)) < 1e-9                    # of one formula
    return value


def clusterings(points=CLUSTERED):
    """NMI of five starts -> lists of cells"""
    rows = [["set", "clustered by", "NMI of the first start", "mean of five", "range"]]
    for name, (x, y) in points.items():
        shown = f"{name}, {len(x):,} × {x.shape[1]}"
        calls = [(None, "eval.py", lambda seed: nmi(kmeans(x, len(set(y)), seed), y))]
        calls.append(("faiss", "Kmeans(niter=20)", lambda seed: nmi_faiss(x, y, seed)))
        for init in ("random", "k-means++"):
            calls.append(("sklearn", f'KMeans(init="{init}", n_init=1)',
                          lambda seed, init=init: nmi_scikit(x, y, seed, init)))
        calls.append(("sklearn", "KMeans(init=x[first], n_init=1, tol=0)",
                      lambda seed: nmi_scikit(x, y, seed, first_points(x, y, seed), tol=0)))
        for module, call, start in calls:
            if module and not version(module):
                continue
            values = [100 * start(seed) for seed in range(5)]
            who = call if module is None else f"{NAMES[module]} {version(module)}: {call}"
            rows.append([shown, who, f"{values[0]:.1f}", f"{np.mean(values):.1f}",
                         f"[{min(values):.1f}, {max(values):.1f}]"])
            shown = ""
    return rows


def cost_of_starts():
    """How long eval.judge takes on one thread, and its starts of k-means, in words"""
    lines = []
    for x, y in CLUSTERED.values():
        start = time.perf_counter()
        kmeans(x, len(set(y)), 0)
        one = time.perf_counter()
        nmi_by_start(x, y)
        five = time.perf_counter()
        judge({"test": (x, y)}, [1, 2, 4, 8])
        whole = time.perf_counter() - five
        lines.append(f"{len(x):,} × {x.shape[1]}, k = {len(set(y))}: one start "
                     f"{one - start:.2f} s, five {five - one:.2f} s, all of eval.judge {whole:.2f} s")
    return "\n".join(lines)


# ---------------------------------------------------------------------------- losses
LABELS = torch.arange(4).repeat_interleave(3)           # of the batch: four classes of three


def batch(unit):
    """Embeddings (12, 8) float64, on the unit sphere or three times a normal sample"""
    x = torch.randn(12, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return F.normalize(x) if unit else 3 * x


def value_and_gradient(loss, x):
    x = x.clone().requires_grad_()
    value = loss(x)
    return value.item(), torch.autograd.grad(value, x)[0]


def semi_hard(f, labels, margin):
    """The triplets of dml_da.triplet_loss, which DML-DA leaves open (U6)"""
    with torch.no_grad():
        D, same = dml_da.squared_distances(f), dml_da.same_class(f, labels)
        anchors, positives = dml_da.positive_pairs(labels)
        D_ap, D_an = D[anchors, positives], D.masked_fill(same, torch.inf)[anchors]
        farther = D_an.masked_fill(D_an <= D_ap[:, None], torch.inf).min(1)
        near = D_an.argmin(1)
        negatives = torch.where(farther.values < D_ap + margin, farther.indices, near)
    return anchors, positives, negatives


def over_mean_distance(e):
    """MDR's embedding normalization trick for a library that takes embeddings"""
    return e / mdr.off_diagonal(mdr.pairwise_distances(e)).mean()


def losses():
    """{name: (batch, ours, theirs by default, theirs so called that it is ours)}, functions of the
    embeddings; pytorch-metric-learning must be installed"""
    from pytorch_metric_learning import distances, reducers
    from pytorch_metric_learning import losses as theirs
    y, unit, free = LABELS, batch(True), batch(False)
    euclidean = dict(distance=distances.LpDistance(normalize_embeddings=False))
    squared = dict(distance=distances.LpDistance(normalize_embeddings=False, power=2))
    dot = dict(distance=distances.DotProductSimilarity(normalize_embeddings=False))
    total, mean = dict(reducer=reducers.SumReducer()), dict(reducer=reducers.MeanReducer())
    seeded = lambda: torch.Generator().manual_seed(0)                   # noqa: E731
    drawn = mdr.distance_weighted_negatives(free, y, seeded())
    scaled = over_mean_distance

    def n_pair(f):
        """Of each tuplet NTXent with temperature 1, which is log(1 + Σ exp(s_n - s_p))"""
        one = theirs.NTXentLoss(temperature=1, **dot, **total)
        value = 0
        for a, p, n in zip(*dml_da.draw_tuplets(y, seeded())):
            value = value + one(f, y, (a[None], p[None], a.expand(len(n)), n))
        return value / len(f)

    proxies = torch.randn(8, 4, dtype=torch.float64, generator=seeded())

    def cosface(**settings):
        loss = theirs.CosFaceLoss(num_classes=4, embedding_size=8, **settings)
        loss.W.data = proxies.clone()
        return lambda x: loss(x, y)

    margin = mdr.MarginLoss().double()
    contrastive = theirs.ContrastiveLoss(pos_margin=0, neg_margin=1, **squared, **total)
    triplet = theirs.TripletMarginLoss(margin=1, **squared, **total)
    mdr_triplet = theirs.TripletMarginLoss(margin=0.2, **euclidean, **mean)
    mdr_contrastive = theirs.ContrastiveLoss(pos_margin=0, neg_margin=1, **euclidean, **mean)
    mdr_margin = theirs.MarginLoss(margin=0.2, beta=1.2, learn_beta=True, **euclidean, **mean)

    def distances_of(e):
        return mdr.unit_mean(mdr.pairwise_distances(e))
    return {
        "dml_da.contrastive_loss": (
            unit, lambda f: dml_da.contrastive_loss(f, y, 1.0),
            lambda f: theirs.ContrastiveLoss()(f, y), lambda f: contrastive(f, y) / 2 / len(f)),
        "dml_da.triplet_loss": (
            unit, lambda f: dml_da.triplet_loss(f, y, 1.0),
            lambda f: theirs.TripletMarginLoss(margin=1)(f, y),
            lambda f: triplet(f, y, semi_hard(f, y, 1.0)) / len(f)),
        "dml_da.n_pair_loss": (
            unit, lambda f: dml_da.n_pair_loss(f, y, seeded()),
            lambda f: theirs.NPairsLoss()(f, y), n_pair),
        "mdr.triplet_loss": (
            free, lambda e: mdr.triplet_loss(distances_of(e), *drawn, 0.2),
            lambda e: theirs.TripletMarginLoss(margin=0.2)(e, y, drawn),
            lambda e: mdr_triplet(scaled(e), y, drawn)),
        "mdr.contrastive_loss": (
            free, lambda e: mdr.contrastive_loss(distances_of(e), *drawn, 1.0),
            lambda e: theirs.ContrastiveLoss()(e, y, drawn),
            lambda e: mdr_contrastive(scaled(e), y, drawn)),
        "mdr.MarginLoss": (
            free, lambda e: margin(distances_of(e), *drawn),
            lambda e: theirs.MarginLoss()(e, y, drawn), lambda e: mdr_margin(scaled(e), y, drawn)),
        "jrd.amsoftmax": (
            free, lambda x: jrd.amsoftmax(F.normalize(x) @ F.normalize(proxies, dim=0), y, 20, 0.1),
            cosface(), cosface(margin=0.1, scale=20))}


def loss_table():
    """-> lists of cells"""
    rows = [["ours", "its value", "theirs by default", "theirs as below",
             "gradient's largest difference by default", "as below", "largest entry of ours"]]
    if version("pytorch_metric_learning"):
        for name, (x, *functions) in losses().items():
            (ours, g), (default, g_default), (agreed, g_agreed) = (
                value_and_gradient(function, x) for function in functions)
            apart = (g - g_default).abs().max(), (g - g_agreed).abs().max()
            small = "below 1e-8" if apart[1] < 1e-8 else f"{apart[1]:.1e}"
            rows.append([name, f"{ours:.4f}", f"{default:.4f}", f"{agreed:.4f}", f"{apart[0]:.4f}",
                         small, f"{g.abs().max():.4f}"])
    return rows


def own_points(path):
    """{name: (x, labels)} of an .npz: as they are, and L2-normalized.  UserError: not one of
    embeddings that can be judged, a single one, or with a gallery, for which these libraries would
    have to be called otherwise"""
    embedded = load_npz(path)
    if "gallery" in embedded:
        raise UserError(f"{path} has a gallery: --npz compares searches of a set in itself")
    x, labels = embedded["test"]
    try:
        recall_at_k(x, labels, [1])
    except ValueError as error:
        raise UserError(f"{path}: {error}")
    if len(x) < 2:
        raise UserError(f"{path} has one embedding, which can find no other")
    name = Path(path).name
    return {name: (x.numpy(), labels.numpy()),
            f"{name}, L2-normalized": (F.normalize(x).numpy(), labels.numpy())}


TABLES = {"search": searches, "losses": loss_table, "kmeans": clusterings}


def run(args):
    torch.set_num_threads(1)
    points = [own_points(args.npz)] if args.npz else []
    for name in args.tables:
        print(markdown(TABLES[name](*points)), end="\n\n", flush=True)
    if args.markdown:
        return
    if "kmeans" in args.tables and not points:
        print(cost_of_starts(), end="\n\n")
    missing = [package for module, package in NAMES.items() if not version(module)]
    if missing:
        print(f"not installed and left out: {', '.join(missing)}")


def parse_args(argv=None):
    parser = argparse.ArgumentParser("benchmarks/peers.py", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=tuple(TABLES))
    parser.add_argument("--markdown", action="store_true", help="the tables alone")
    parser.add_argument("--npz", help="judge these embeddings in place of the small sets")
    args = parser.parse_args(argv)
    if args.tables is None:
        args.tables = ["search", "kmeans"] if args.npz else list(TABLES)
    if args.npz and "losses" in args.tables:
        parser.error("--npz has no table of losses: they are of a batch, not of a test set")
    return args


if __name__ == "__main__":
    main(run, parse_args)

"""Recall@K and k-means of eval.py beside faiss: time, and whether both find the same.

    python benchmarks/retrieval.py                  all sizes, some minutes on two quiet cores
    python benchmarks/retrieval.py --sizes cub      under a minute
    OPENBLAS_CORETYPE=SkylakeX python ...           if faiss's OpenBLAS does not know the processor:
                                                    OPENBLAS_VERBOSE=2 says `Core: Prescott` then

The sizes are those of two test sets, CUB-200-2011 and Stanford Online Products, and a quarter of
that.  faiss is its exact IndexFlatL2 and its Kmeans; both run in turn in one process.  Of eval.py
the clock sees all of recall_at_k, of faiss only the search.  k-means runs a fixed number of Lloyd
rounds; the table has the time of one.  The embeddings are class centre plus noise, rounded to whole
numbers so small that every sum is exact in float32; weak's are unit vectors.
"""
import bench  # noqa: I001  first: sets the threads

import sys
import time

import numpy as np

from eval import kmeans, recall_at_k
from support.command_line import Parser

try:
    import faiss
except ImportError:
    sys.exit("benchmarks/retrieval.py needs faiss: pip install faiss-cpu")

SIZES = {  # size: (embeddings, classes, K, noise, turns, rounds of k-means)
    "cub": (5924, 100, [1, 2, 4, 8], 3.6, 9, 20),
    "middle": (15125, 3000, [1, 10, 100, 1000], 3.0, 3, 2),
    "weak": (15125, 2829, [1, 10, 100, 1000], 4.0, 3, 2),
    "sop": (60502, 11316, [1, 10, 100, 1000], 1.6, 3, 2)}
WIDTH = 512


def embeddings(n, classes, noise, unit):
    """-> x (n, 512) float32, of whole numbers or unit vectors, labels (n,)"""
    draw = np.random.default_rng(0)
    labels = np.arange(n) % classes
    x = draw.standard_normal((classes, WIDTH))[labels] + noise * draw.standard_normal((n, WIDTH))
    if unit:
        return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), labels
    x = np.rint(x * 85 / np.sqrt(1 + noise ** 2)).astype(np.float32)
    squares = np.square(x.astype(np.float64)).sum(1)
    assert 2 * squares.max() < 2 ** 24                                       # exact in float32
    return x, labels


def search_faiss(x, ks):
    """-> neighbours (n, K + 1), nearest first, mostly the query itself"""
    index = faiss.IndexFlatL2(WIDTH)
    index.add(x)
    return index.search(x, max(ks) + 1)[1]


def recall_of(neighbours, labels, ks):
    """Neighbours (n, K + 1), nearest first, with or without the query itself -> {k: share}"""
    others = neighbours != np.arange(len(labels))[:, None]
    place = np.cumsum(others, 1)                                        # 1 for the nearest other
    right = others & (labels[neighbours] == labels[:, None])
    first = np.where(right, place, neighbours.shape[1] + 1).min(1)
    return {k: float(np.mean(first <= k)) for k in ks}


def in_turn(functions, turns):
    """Call A, B, A, B, ... -> what each returned, (turns, functions, 2): seconds, CPU seconds"""
    seconds = np.empty((turns, len(functions), 2))
    for turn in range(turns):
        results = []
        for i, function in enumerate(functions):
            start = np.array([time.perf_counter(), time.process_time()])
            results.append(function())
            seconds[turn, i] = [time.perf_counter(), time.process_time()] - start
    return results, seconds


def row(task, n, seconds):
    ratio, cpu_ratio = np.median(seconds[:, 0] / seconds[:, 1], 0)
    ours, theirs = np.median(seconds[:, :, 0], 0)
    return [f"{task}, {n:,} × {WIDTH}", str(len(seconds)), f"{ours:.3f}", f"{theirs:.3f}",
            f"{ratio:.2f}", f"{cpu_ratio:.2f}"]


def main(args):
    faiss.omp_set_num_threads(args.threads)
    bench.header("Recall@K and k-means", "numpy", "faiss-cpu", threads=args.threads)
    rows = [["task", "turns", "eval.py, s", "faiss, s", "eval.py / faiss", "in CPU s"]]
    checks = []
    for size in args.sizes:
        n, classes, ks, noise, turns, rounds = SIZES[size]
        turns = args.turns or turns
        x, labels = embeddings(n, classes, noise, unit=size == "weak")
        search_faiss(x[:1000], ks), recall_at_k(x[:1000], labels[:1000], [1])           # warm up
        (recall, neighbours), seconds = in_turn(
            [lambda: recall_at_k(x, labels, ks), lambda: search_faiss(x, ks)], turns)
        rows.append(row(f"Recall@{{{', '.join(map(str, ks))}}}", n, seconds))
        same = "the same" if recall_of(neighbours, labels, ks) == recall else "DIFFERENT"
        shares = "  ".join(f"R@{k} {100 * share:.3f}%" for k, share in recall.items())
        checks.append(f"{size}: {shares}; of faiss {same}")
        every_point = dict(min_points_per_centroid=1, max_points_per_centroid=n)
        _, seconds = in_turn([
            lambda: kmeans(x, classes, seed=0, rounds=rounds), lambda: faiss.Kmeans(
                WIDTH, classes, niter=rounds, seed=1, **every_point).train(x)], turns)
        rows.append(row(f"k-means, k = {classes:,}, one round", n, seconds / rounds))
    bench.table(rows)
    print("", *checks, sep="\n")


def parse_args():
    parser = Parser("benchmarks/retrieval.py", __doc__)
    parser.add_argument("--sizes", nargs="+", choices=tuple(SIZES), default=list(SIZES))
    parser.add_argument("--threads", type=int, default=bench.THREADS)
    parser.add_argument("--turns", type=int, help="default: 9 at CUB size, 3 at SOP size")
    return parser.parse_args()


if __name__ == "__main__":
    main(parse_args())

"""Recall@K and k-means of eval.py: time, peak memory and exactness beside other evaluators.

    python benchmarks/retrieval.py                  both sizes, about 10 minutes on two quiet cores
    python benchmarks/retrieval.py --sizes cub      under a minute

Sizes: CUB-200-2011's test set (5,924 × 512, 100 classes, K to 8) and that of Stanford Online
Products (60,502 × 512, 11,316 classes, K to 1000).  Peers, where installed: faiss' exact
IndexFlatL2 and Kmeans, scikit-learn's brute-force NearestNeighbors and KMeans (Lloyd), and a full
sort of the distance matrix in torch (at SOP size 60,502² distances and their order are 44 GB: not
run).  All run in turn in one process (A, B, A, B, ...) with the same number of threads; medians.

What the clock sees.  eval.py: all of recall_at_k, from embeddings to shares.  The peers: only the
search or the sort; turning neighbours into shares is not counted.  k-means: a fixed number of Lloyd
rounds from random points, divided by that number.  CPU s: of all threads, less disturbed by other
jobs.  Memory: peak resident size of a process that
does this once, minus its size when the libraries and the embeddings were loaded.

The embeddings are class centre plus noise, rounded to whole numbers so small that every product,
sum and distance is exact in float32: an evaluator that disagrees is wrong, not differently rounded.
Queries with a negative exactly as far as their nearest positive are counted: where one stands
across K, peers may break the tie either way.

It prints a table, the exactness check and the targets with what was reached.
"""
import bench  # noqa: I001  first: sets the threads

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from eval import kmeans, recall_at_k

SIZES = {  # size: (embeddings, classes, K, noise, turns of recall, rounds and turns of k-means)
    "cub": (5924, 100, [1, 2, 4, 8], 3.6, 9, 20, 9),
    "sop": (60502, 11316, [1, 10, 100, 1000], 1.6, 3, 2, 3)}
WIDTH = 512


def embeddings(size):
    """-> x (n, 512) float32 of whole numbers, labels (n,)"""
    n, classes, _, noise, *_ = SIZES[size]
    draw = np.random.default_rng(0)
    labels = np.arange(n) % classes
    x = draw.standard_normal((classes, WIDTH))[labels] + noise * draw.standard_normal((n, WIDTH))
    x = np.rint(x * 85 / np.sqrt(1 + noise ** 2)).astype(np.float32)
    squares = np.square(x.astype(np.float64)).sum(1)
    assert 2 * squares.max() < 2 ** 24                                       # exact in float32
    return x, labels


# ---------------------------------------------------------------------------- recall
def recall_eval(x, labels, ks):
    return recall_at_k(x, labels, ks)


def recall_faiss(x, labels, ks):
    import faiss
    index = faiss.IndexFlatL2(x.shape[1])
    index.add(x)
    return index.search(x, max(ks) + 1)[1]                              # with the query itself


def recall_sort(x, labels, ks):
    x = torch.from_numpy(x)
    squares = x.square().sum(1)
    return torch.addmm(squares[None], x, x.T, alpha=-2).argsort(1)      # up to each query's ‖x‖²


def recall_sklearn(x, labels, ks):
    from sklearn.neighbors import NearestNeighbors
    return NearestNeighbors(n_neighbors=max(ks) + 1, algorithm="brute").fit(x).kneighbors(
        x, return_distance=False)


def shares(found, labels, ks):
    """Neighbours (n, >= K + 1), nearest first, with or without the query itself -> {k: share}"""
    found = np.asarray(found)
    if found.shape[1] > max(ks) + 1:
        found = found[:, :max(ks) + 1]
    others = found != np.arange(len(found))[:, None]
    place = np.cumsum(others, 1)                                        # 1 for the nearest other
    first = np.where(others & (labels[found] == labels[:, None]), place, found.shape[1] + 1).min(1)
    return {k: float(np.mean(first <= k)) for k in ks}


# ---------------------------------------------------------------------------- k-means
def kmeans_eval(x, k, rounds):
    return kmeans(x, k, seed=0, rounds=rounds)


def kmeans_faiss(x, k, rounds):
    import faiss
    return faiss.Kmeans(x.shape[1], k, niter=rounds, seed=1, min_points_per_centroid=1,
                        max_points_per_centroid=len(x)).train(x)        # every point, no sampling


def kmeans_sklearn(x, k, rounds):
    from sklearn.cluster import KMeans
    return KMeans(k, init=x[np.random.RandomState(0).permutation(len(x))[:k]], n_init=1, tol=0,
                  max_iter=rounds, algorithm="lloyd").fit(x)


RECALL = {"eval.py": recall_eval, "faiss": recall_faiss, "scikit-learn": recall_sklearn,
          "full sort": recall_sort}
KMEANS = {"eval.py": kmeans_eval, "faiss": kmeans_faiss, "scikit-learn": kmeans_sklearn}
PACKAGE = {"faiss": "faiss-cpu", "scikit-learn": "scikit-learn"}


def missing(name, size):
    """Why a peer is not run at this size, or None."""
    if name in PACKAGE and bench.version(PACKAGE[name]) is None:
        return "not installed"
    if name == "full sort" and size == "sop":
        return "not run: 44 GB"


def run_once(task, name, size, x, labels):
    _, classes, ks, _, _, rounds, _ = SIZES[size]
    return RECALL[name](x, labels, ks) if task == "recall" else KMEANS[name](x, classes, rounds)


# ---------------------------------------------------------------------------- memory
def peak():
    """The largest resident size of this process so far, in bytes.

    getrusage's ru_maxrss would not do: on Linux a new process inherits its parent's.
    """
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])


def memory_of(task, name, size, folder):
    """In a process of its own -> bytes beyond the libraries and the embeddings"""
    found = subprocess.run([sys.executable, __file__, "--measure", task, name, size, folder],
                           capture_output=True, text=True)
    if found.returncode:
        sys.exit(f"the memory of {task} by {name} was not measured:\n{found.stderr}")
    return int(found.stdout)


def measure(task, name, size, folder):
    if name == "faiss":
        import faiss  # noqa: F401
    elif name == "scikit-learn":
        import sklearn.cluster  # noqa: F401
        import sklearn.neighbors  # noqa: F401
    x, labels = (np.load(Path(folder, f"{part}.npy")) for part in ("x", "labels"))
    x += 0                                                              # touched: all pages are in
    before = peak()
    run_once(task, name, size, x, labels)
    print(peak() - before)


# ---------------------------------------------------------------------------- the tables
def benchmark(task, size, x, labels, folder, repeats):
    """-> {name: seconds of each turn}, {name: bytes}, {name: what the first call returned}, rows"""
    methods = RECALL if task == "recall" else KMEANS
    names = [name for name in methods if not missing(name, size)]
    n, classes, ks, _, turns, rounds, kmeans_turns = SIZES[size]
    turns = repeats or (turns if task == "recall" else kmeans_turns)
    results = {}

    def call(name):
        results[name] = run_once(task, name, size, x, labels)

    if size == "cub":                                       # warm up: caches, pools of threads
        bench.in_turn({name: lambda name=name: call(name) for name in names}, 1)
    seconds, busy = bench.in_turn({name: lambda name=name: call(name) for name in names}, turns)
    if task == "kmeans":
        seconds, busy = ({name: [s / rounds for s in values] for name, values in times.items()}
                         for times in (seconds, busy))
    memory = {name: memory_of(task, name, size, folder) for name in names}
    what = (f"Recall@{{{', '.join(map(str, ks))}}}" if task == "recall" else
            f"k-means, k = {classes:,}, a round")
    rows = []
    for name in methods:
        label = f"{what}, {n:,} × {WIDTH}"
        if missing(name, size):
            rows.append([label, name, missing(name, size), "", "", "", "", "", ""])
            continue
        against = [f"{bench.ratio(s, 'eval.py', name):.2f}" for s in (seconds, busy)]
        rows.append([label, name, f"{statistics.median(seconds[name]):.3f}",
                     f"{min(seconds[name]):.3f}–{max(seconds[name]):.3f}", len(seconds[name]),
                     against[0], f"{statistics.median(busy[name]):.3f}", against[1],
                     f"{memory[name] / 1e6:,.0f}"])
    return seconds, memory, results, rows


def main(args):
    bench.header("Recall@K and k-means", "numpy", "faiss-cpu", "scikit-learn")
    rows, checks, targets = [], [], []
    for size in args.sizes:
        x, labels = embeddings(size)
        ks = SIZES[size][2]
        with tempfile.TemporaryDirectory() as folder:
            np.save(Path(folder, "x.npy"), x)
            np.save(Path(folder, "labels.npy"), labels)
            for task in args.tasks:
                seconds, memory, results, new = benchmark(task, size, x, labels, folder,
                                                          args.repeats)
                rows += new
                if task == "recall":
                    checks += exactness(size, x, labels, ks, results)
                if "faiss" in seconds:
                    bound = {("recall", "cub"): 0.7, ("recall", "sop"): 0.5}.get((task, size), 1.0)
                    value = bench.ratio(seconds, "eval.py", "faiss")
                    targets.append((f"{task} at {size.upper()} size, at most {bound} of faiss'",
                                    f"{value:.2f}", value <= bound))
                if size == "sop":
                    targets.append((f"{task} at SOP size, under 1,000 MB beyond the embeddings",
                                    f"{memory['eval.py'] / 1e6:,.0f} MB", memory["eval.py"] < 1e9))
    bench.table(["task", "by", "median s", "min–max", "n", "eval.py / this", "CPU s",
                 "eval.py / this, CPU", "peak MB"], rows)
    for line in checks:
        print(line)
    print()
    for line in targets:
        bench.target(*line)
    if not any("faiss'" in line[0] for line in targets):
        print("faiss is not installed: its targets were not measured (pip install faiss-cpu)")


def exactness(size, x, labels, ks, results):
    """Lines that say whether all evaluators found the same shares."""
    want = results["eval.py"]
    lines = [f"{size.upper()} size, eval.py: " +
             "  ".join(f"R@{k} {100 * want[k]:.3f}%" for k in ks)]
    n = len(labels)
    for name in results:
        if name == "eval.py":
            continue
        got = shares(results[name], labels, ks)
        off = {k: round((got[k] - want[k]) * n) for k in ks}
        lines.append(f"  {name}: " + ("the same" if not any(off.values()) else "DIFFERS in " +
                     ", ".join(f"{v:+d} queries at K = {k}" for k, v in off.items() if v)))
    return lines


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=tuple(SIZES), default=list(SIZES))
    parser.add_argument("--tasks", nargs="+", choices=("recall", "kmeans"),
                        default=["recall", "kmeans"])
    parser.add_argument("--repeats", type=int, help="turns (9 at CUB size, 3 at SOP size)")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)   # by memory_of
    return parser.parse_args()


if __name__ == "__main__":
    arguments = parse_args()
    measure(*arguments.measure) if arguments.measure else main(arguments)

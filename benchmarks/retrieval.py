"""The search of eval.py beside faiss: time, beside its goals, and whether both find the same.

    python benchmarks/retrieval.py                  two minutes on a quiet core; exit status 1 if a
                                                    ratio is above its goal
    python benchmarks/retrieval.py --sizes cub      under a minute
    python benchmarks/retrieval.py --sizes sop --threads 2      ten minutes
    OPENBLAS_CORETYPE=SkylakeX python ...           if faiss's OpenBLAS does not know the processor:
                                                    OPENBLAS_VERBOSE=2 says `Core: Prescott` then

The sizes are those of two test sets, CUB-200-2011 and Stanford Online Products, and a quarter of
that.  faiss is its exact IndexFlatL2 and its Kmeans; what is compared runs in turn in one process.
Of eval.py the clock sees all of recall_at_k, of faiss only the search.  k-means runs a fixed number
of Lloyd rounds; the table has the time of one.  The embeddings are class centre plus noise, rounded
to whole numbers so small that every sum is exact in float32; weak's are unit vectors.  The memory
of sop is the peak of a search of its own process beyond what it held before.
"""
import bench  # noqa: I001  first: sets the threads

import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from eval import kmeans, map_at_r, recall_at_k
from support.command_line import Parser

try:
    import faiss
except ImportError:
    sys.exit("benchmarks/retrieval.py needs faiss: pip install faiss-cpu")

SIZES = {  # size: (embeddings, classes, K, noise, turns, rounds of k-means, goal over faiss)
    "cub": (5924, 100, [1, 2, 4, 8], 3.6, 9, 20, 0.8),
    "middle": (15125, 3000, [1, 10, 100, 1000], 3.0, 3, 2, 0.35),
    "weak": (15125, 2829, [1, 10, 100, 1000], 4.0, 3, 2, 0.35),
    "sop": (60502, 11316, [1, 10, 100, 1000], 1.6, 1, 2, None)}
MAP_GOAL, EQUAL_GOAL, KMEANS_GOAL, GB_GOAL = 1.5, 3, 1.6, 0.5
SOP_GOALS = 20, 0.25                # seconds, or of faiss's time
WIDTH = 512

MEMORY = """
import sys, torch
from pathlib import Path
from eval import recall_at_k
def peak():        # not ru_maxrss, which a process inherits from the one that started it
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
torch.set_num_threads(int(sys.argv[1]))
x, labels = torch.randn(60502, 512), torch.randint(11316, (60502,))
recall_at_k(x[:1000], labels[:1000], [1])
before = peak()
for _ in range(2):
    recall_at_k(x, labels, [1, 10, 100, 1000])
print((peak() - before) * 1024 / 1e9)
"""


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


def row(task, n, seconds, goal=None):
    """Of two functions that ran in turn -> what bench.goals takes"""
    ratio, cpu_ratio = np.median(seconds[:, 0] / seconds[:, 1], 0)
    ours, theirs = np.median(seconds[:, :, 0], 0)
    cells = [str(len(seconds)), f"{ours:.3f}", f"{theirs:.3f}", f"{cpu_ratio:.2f}"]
    return f"{task}, {n:,} × {WIDTH}", cells, ratio, goal


def rows_of(size, turns):
    """-> rows of the table, what was found"""
    n, classes, ks, noise, default_turns, rounds, goal = SIZES[size]
    turns = turns or default_turns
    x, labels = embeddings(n, classes, noise, unit=size == "weak")
    search_faiss(x[:1000], ks), recall_at_k(x[:1000], labels[:1000], [1])               # warm up
    (recall, neighbours), seconds = in_turn(
        [lambda: recall_at_k(x, labels, ks), lambda: search_faiss(x, ks)], turns)
    rows = [row(f"Recall@{{{', '.join(map(str, ks))}}} over faiss", n, seconds, goal)]
    if size == "sop":
        ours, theirs = np.median(seconds[:, :, 0], 0)
        goal = SOP_GOALS[0] if ours > SOP_GOALS[1] * theirs else None
        rows.append((f"the same in seconds; goal: {SOP_GOALS[0]}, or {SOP_GOALS[1]} of faiss",
                     [""] * 4, ours, goal))
    same = "the same" if recall_of(neighbours, labels, ks) == recall else "DIFFERENT"
    shares = "  ".join(f"R@{k} {100 * share:.3f}%" for k, share in recall.items())
    if size == "cub":
        _, seconds = in_turn(
            [lambda: map_at_r(x, labels), lambda: recall_at_k(x, labels, ks)], turns)
        rows.append(row("MAP@R over Recall", n, seconds, MAP_GOAL))
        draw = np.random.default_rng(1)
        points, of_points = draw.standard_normal((6000, WIDTH), np.float32), np.arange(6000) % 100
        equal = np.full_like(points, 0.1)
        _, seconds = in_turn(
            [lambda: map_at_r(equal, of_points), lambda: map_at_r(points, of_points)], 3)
        rows.append(row("MAP@R of equal points over random", 6000, seconds, EQUAL_GOAL))
    every_point = dict(min_points_per_centroid=1, max_points_per_centroid=n)
    if size != "sop":
        _, seconds = in_turn([
            lambda: kmeans(x, classes, seed=0, rounds=rounds), lambda: faiss.Kmeans(
                WIDTH, classes, niter=rounds, seed=1, **every_point).train(x)], turns)
        rows.append(row(f"k-means, k = {classes:,}, one round, over faiss", n, seconds / rounds,
                        KMEANS_GOAL))
    return rows, f"{size}: {shares}; of faiss {same}"


def main(args):
    faiss.omp_set_num_threads(args.threads)
    bench.header("Recall@K, MAP@R and k-means", "numpy", "faiss-cpu", threads=args.threads)
    rows = [("task", ["turns", "s", "of the other, s", "ratio in CPU s"], "ratio", "goal")]
    for size in args.sizes:
        of_size, found = rows_of(size, args.turns)
        rows += of_size
        print(found, flush=True)
        if size == "sop":
            told = subprocess.run([sys.executable, "-c", MEMORY, str(args.threads)], check=True,
                                  cwd=Path(__file__).parents[1], capture_output=True, text=True)
            rows.append(("memory beyond the embeddings, GB", [""] * 4, float(told.stdout), GB_GOAL))
    print()
    bench.goals(rows)


def parse_args():
    parser = Parser("benchmarks/retrieval.py", __doc__)
    parser.add_argument("--sizes", nargs="+", choices=tuple(SIZES), default=["cub", "middle"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, help="default: 9 of cub, 3 of middle, 1 of sop")
    return parser.parse_args()


if __name__ == "__main__":
    main(parse_args())

#!/usr/bin/env bash
# nanopq 0.2.2 with faiss-cpu 1.15.1: a fitted OPQ(metric="dot") computes squared distances.
#
# PQ(metric="dot") gives dot products, so the best item is the one with the largest value. OPQ takes
# the same argument, but its fit() puts a PQ of the default metric, "l2", in its place. From then on
# dtable() and adist() return squared Euclidean distances, and the largest value belongs to the item
# that is farthest away: of 500 queries, noisy copies of stored unit vectors, none finds its vector,
# where PQ finds all of them. Of vectors of lengths from 1 to 4 the smallest value is no way out: it
# is the item with the largest dot product for 4.2% of the queries, PQ's largest value for 88%.
# faiss_to_nanopq() loses the metric too: an IndexPQ for inner products becomes "l2", 0% are right.
# Cause, by reading opq.py and convert_faiss.py: PQ(...) is made there without metric=.
# Way out: opq.pq.metric = "dot" after each fit(), and pq.metric = "dot" after a conversion.
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="nanopq==0.2.2 faiss-cpu==1.15.1 scipy==1.17.1 numpy==2.4.6"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import contextlib
import io
import sys

import faiss
import nanopq
import numpy as np
from nanopq import faiss_to_nanopq

random = np.random.default_rng(0)


def unit(x):
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def values(quantizer, queries, codes):
    return np.stack([quantizer.dtable(query).adist(codes) for query in queries])


stored = unit(random.standard_normal((10_000, 32)))
queries = unit(stored[:500] + 0.05 * random.standard_normal((500, 32)))
few = stored[:2000]
of_lengths = few * random.uniform(1, 4, (2000, 1)).astype(np.float32)
told = {}
for name in ("PQ", "OPQ", "OPQ, metric set again"):
    row = []
    for x, right in ((few, np.arange(500)), (of_lengths, (queries @ of_lengths.T).argmax(1))):
        if name == "PQ":
            quantizer = nanopq.PQ(16, 64, metric="dot", verbose=False).fit(x)
        else:
            quantizer = nanopq.OPQ(16, 64, metric="dot", verbose=False).fit(x, rotation_iter=4)
        if "again" in name:
            quantizer.pq.metric = "dot"
        found = values(quantizer, queries, quantizer.encode(x))
        row += [(found.argmax(1) == right).mean(), (found.argmin(1) == right).mean()]
    told[name] = row
    print(f"{name}: of unit vectors the largest value is right for {row[0]:.1%}, the smallest for "
          f"{row[1]:.1%};\n    of vectors of lengths from 1 to 4 {row[2]:.1%} and {row[3]:.1%}")
index = faiss.IndexPQ(32, 16, 8, faiss.METRIC_INNER_PRODUCT)
index.train(stored)
index.add(stored)
right = (index.search(queries, 1)[1][:, 0] == np.arange(500)).mean()
with contextlib.redirect_stdout(io.StringIO()):
    quantizer, codes = faiss_to_nanopq(index)
found = (values(quantizer, queries, codes).argmax(1) == np.arange(500)).mean()
print(f"faiss IndexPQ, inner product: right for {right:.1%}; after faiss_to_nanopq, now "
      f"{quantizer.metric!r}, the largest value for {found:.1%}")
sys.exit(not (told["PQ"][0] > 0.98 and told["OPQ"][0] < 0.01 and told["OPQ"][1] > 0.98
              and told["OPQ"][3] < told["PQ"][2] - 0.3
              and told["OPQ, metric set again"][0] > 0.98 and right > 0.98 and found < 0.01))
END

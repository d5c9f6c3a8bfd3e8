#!/usr/bin/env bash
# faiss-cpu 1.15.1, range_search: the radius itself is outside, and it is a squared one.
#
# scikit-learn's radius_neighbors and SciPy's cKDTree count a point at exactly the radius in;
# faiss leaves it out, of distances (d^2 < radius) as of inner products (s > radius). Looking for
# exact duplicates with radius 0 therefore finds none, not even the query itself, and a threshold
# on a grid (binary codes, quantized or integer features) loses a whole shell.
# Way out: np.nextafter(np.float32(r * r), np.float32(np.inf)).
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="faiss-cpu==1.15.1 scikit-learn==1.9.1 scipy==1.17.1 numpy==2.4.6"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
venv/bin/python - <<'END'
import sys

import faiss
import numpy as np
from scipy.spatial import cKDTree
from sklearn.neighbors import NearestNeighbors

x = np.array([[0, 0], [0, 0], [2, 0], [3, 0]], np.float32)
query, rows = x[:1], []


def by_faiss(kind, query, radius):
    index = kind(2)
    index.add(x)
    return sorted(index.range_search(query, radius)[2].tolist())


for radius in (0, 2):
    seen = (by_faiss(faiss.IndexFlatL2, query, radius ** 2),
            by_faiss(faiss.IndexFlatL2, query,
                     float(np.nextafter(np.float32(radius ** 2), np.float32(9)))),
            sorted(NearestNeighbors().fit(x).radius_neighbors(query, radius)[1][0].tolist()),
            sorted(cKDTree(x).query_ball_point(query[0], radius)))
    print(f"points at 0, 0, 2, 3; radius {radius}: faiss {seen[0]}, next float {seen[1]}, "
          f"scikit-learn {seen[2]}, SciPy {seen[3]}")
    rows += seen
product = by_faiss(faiss.IndexFlatIP, x[2:3], 4.0)
print("inner products 0, 0, 4, 6; radius 4: faiss", product)
at_0, at_2 = [[], [0, 1], [0, 1], [0, 1]], [[0, 1], [0, 1, 2], [0, 1, 2], [0, 1, 2]]
sys.exit(not (rows == at_0 + at_2 and product == [3]))
END

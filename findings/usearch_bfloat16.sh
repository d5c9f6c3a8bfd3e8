#!/usr/bin/env bash
# usearch 2.26.6, Index.search(exact=True): the search is exhaustive, the vectors are not what was
# added. They are kept as bfloat16, 8 bits of mantissa, unless dtype is given.
#
# Of float32 embeddings on the unit sphere some nearest neighbours change; of embeddings with an
# offset (features behind a ReLU, L2 distance) most do. The function usearch.index.search of the
# same package keeps float32. Way out: Index(..., dtype="f32").
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="usearch==2.26.6 numpy==2.4.6"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
venv/bin/python - <<'END'
import sys

import numpy as np
from usearch.index import Index

rng = np.random.default_rng(0)
spread = rng.standard_normal((2000, 128))
sets = {"unit sphere, cos": ("cos", spread / np.linalg.norm(spread, axis=1, keepdims=True)),
        "offset 1, spread 0.006, l2sq": ("l2sq", 1 + rng.random((2000, 128)) / 50)}
own = np.arange(2000)
shares = []
for name, (metric, x) in sets.items():
    x = x.astype(np.float32)
    y = x.astype(np.float64) - (metric == "l2sq")
    distances = (y ** 2).sum(1)[:, None] + (y ** 2).sum(1) - 2 * y @ y.T
    np.fill_diagonal(distances, np.inf)
    for dtype in (None, "f32"):
        index = Index(ndim=128, metric=metric, **({"dtype": dtype} if dtype else {}))
        index.add(own, x)
        found = index.search(x, 2, exact=True).keys
        neighbour = np.where(found[:, 0] == own, found[:, 1], found[:, 0])
        shares.append((neighbour == distances.argmin(1)).mean())
        print(f"{name}, {index.dtype}: {shares[-1]:.1%} of the nearest neighbours are right")
sys.exit(not (shares[0] < 1 and shares[2] < 0.5 and min(shares[1], shares[3]) > 0.999))
END

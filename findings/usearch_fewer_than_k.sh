#!/usr/bin/env bash
# usearch 2.26.6, Index.search of several queries: places without a neighbour hold the key 0.
#
# If fewer than k vectors are to be had (a small class, a filtered gallery), the array of keys is
# filled with 0, which is the first image's key wherever keys are row numbers.
# labels[matches.keys] then reads the first image's class there, and Recall@K and votes of k
# neighbours are wrong without an error; faiss fills with -1. Only the distances (NaN) and
# `counts` tell.
# Way out: cut each row at matches.counts.
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

x = np.eye(3, dtype=np.float32)
index = Index(ndim=3, metric="l2sq", dtype="f32")
index.add(np.arange(3), x)
matches = index.search(x[1:], 5, exact=True)
print("3 vectors, keys 0 1 2, k = 5, two queries")
print("keys", *matches.keys, "distances", *matches.distances, "counts", matches.counts, sep="\n")
sys.exit(not ((matches.keys[:, 3:] == 0).all() and np.isnan(matches.distances[:, 3:]).all()
              and matches.counts.tolist() == [3, 3]))
END

#!/usr/bin/env bash
# faiss-cpu 1.15.1, IndexFlatL2: the "exact" search finds other neighbours when more is asked.
#
# While queries x dimension stays below 128,000, it sums squared differences. From there on it
# expands |a|^2 + |b|^2 - 2ab in float32, which loses all digits of embeddings whose common offset
# is large beside their spread, as of pooled features before centring. Recall@1 of a test set then
# says nothing, though each single query, tried by hand, is answered rightly.
# Way out: subtract the mean (distances stay the same), or search fewer queries at a time;
# faiss.cvar.distance_compute_blas_threshold holds the limit, 128,000.
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="faiss-cpu==1.15.1 numpy==2.4.6"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
venv/bin/python - <<'END'
import sys

import faiss
import numpy as np

rng = np.random.default_rng(0)
d = 512
x = (1000 + rng.standard_normal((2000, d))).astype(np.float32)
centred = x.astype(np.float64) - 1000
distances = (centred ** 2).sum(1)[:, None] + (centred ** 2).sum(1) - 2 * centred @ centred.T
np.fill_diagonal(distances, np.inf)
nearest = distances.argmin(1)


def share_right(x, queries):
    index = faiss.IndexFlatL2(d)
    index.add(x)
    found = index.search(x[:queries], 2)[1]
    own = np.arange(queries)
    neighbour = np.where(found[:, 0] == own, found[:, 1], found[:, 0])
    return (neighbour == nearest[:queries]).mean()


few, many, mended = share_right(x, 249), share_right(x, 250), share_right(x - x.mean(0), 250)
print("2,000 float32 vectors of 512, offset 1000, spread 1; nearest neighbours found rightly:")
print(f"249 queries {few:.1%}, 250 queries {many:.1%}, 250 centred queries {mended:.1%}")
sys.exit(not (few > 0.99 and many < 0.1 and mended > 0.99))
END

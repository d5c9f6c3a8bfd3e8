#!/usr/bin/env bash
# hnswlib 0.8.0 and voyager 2.2.3: vectors that are added without ids replace vectors added with
# ids.
#
# hnswlib counts on from the number of vectors, voyager from its own count of those without ids,
# which starts at 0; neither looks whether the id is taken, and an id that is taken is
# overwritten. Of a gallery that began with the data set's own image numbers (CUB's start at 1)
# and grows by new photos, old images vanish, and their ids answer with the new photo's
# neighbours, without an error. usearch raises one. Way out: give ids always, or never.
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="hnswlib==0.8.0 voyager==2.2.3 usearch==2.26.6 numpy==2.4.6"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
venv/bin/python - <<'END'
import sys

import hnswlib
import numpy as np
import voyager
from usearch.index import Index

first = np.array([[0, 0], [1, 0], [2, 0]], np.float32)
more, seen = first + 10, {}
index = hnswlib.Index(space="l2", dim=2)
index.init_index(max_elements=10)
index.add_items(first, ids=[2, 3, 4])
index.add_items(more)
seen["hnswlib"] = {}
for i in sorted(index.get_ids_list()):
    seen["hnswlib"][i] = np.asarray(index.get_items([i])).tolist()[0]
index = voyager.Index(voyager.Space.Euclidean, num_dimensions=2)
index.add_items(first, ids=[2, 3, 4], num_threads=1)
index.add_items(more, num_threads=1)
seen["voyager"] = {i: index.get_vector(i).tolist() for i in sorted(index.ids)}
print("3 vectors 0, 1, 2 with ids 2, 3, 4, then 3 vectors 10, 11, 12 without:")
for name, kept in seen.items():
    print(f"{name} holds {len(kept)}: {kept}")
index = Index(ndim=2, metric="l2sq", dtype="f32")
index.add(np.array([2, 3, 4]), first)
raised = False
try:
    index.add(None, more)
except Exception as error:
    raised = True
    print("usearch:", error)
sys.exit(not (raised and seen["hnswlib"][3] == [10, 10] and len(seen["hnswlib"]) == 4
              and seen["voyager"][2][0] >= 10 and len(seen["voyager"]) == 5))
END

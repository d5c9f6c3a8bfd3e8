#!/usr/bin/env bash
# duckdb 2.0.1, pylance 14.0.2 and usearch 2.26.6: where an embedding of zeros stands among the
# neighbours by cosine: first, nowhere, in the middle.
#
# Zeros come from a dead network, a failed photo, or a chunk that was never written. duckdb gives
# NaN, which it sorts above every number, so ORDER BY similarity DESC LIMIT k (and arg_max)
# answers every query with the zero vectors; ordered by distance they are last. Lance leaves the
# row out, even if fewer than k remain, and answers a query of zeros with nothing. usearch has it
# at distance 1, so it is nearer than whatever lies beyond 90 degrees. Recall@K of the same
# embeddings differs by engine.
# Way out: take zero vectors out before searching, and count them.
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="duckdb==2.0.1 pylance==14.0.2 usearch==2.26.6 numpy==2.4.6"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
venv/bin/python - <<'END'
import sys

import duckdb
import lance
import numpy as np
import pyarrow as pa
from usearch.index import Index

x = np.array([[1, 0], [0.9, 0.1], [0, 0], [-1, 0.5]], np.float32)
query = x[0]
table = duckdb.connect()
table.execute("CREATE TABLE e (id INT, v FLOAT[2])")
table.executemany("INSERT INTO e VALUES (?, ?)", [(i, row.tolist()) for i, row in enumerate(x)])
orders = {}
for what, order in (("similarity", "DESC"), ("distance", "ASC")):
    rows = table.execute(f"SELECT id, array_cosine_{what}(v, [1, 0]::FLOAT[2]) s "
                         f"FROM e ORDER BY s {order}").fetchall()
    orders[f"duckdb by {what}"] = [row[0] for row in rows]
    print(f"duckdb, ORDER BY {what} {order}:", rows)
vectors = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 2)
data = lance.write_dataset(pa.table({"v": vectors, "id": range(4)}), "e.lance")
for name, q in (("lance", query), ("lance, query of zeros", x[2])):
    rows = data.to_table(nearest={"column": "v", "q": q, "k": 4, "metric": "cosine"}).to_pydict()
    orders[name] = rows["id"]
    print(f"{name}: {[*zip(rows['id'], rows['_distance'])]}")
index = Index(ndim=2, metric="cos", dtype="f32")
index.add(np.arange(4), x)
matches = index.search(query, 4, exact=True)
orders["usearch"] = matches.keys.tolist()
print("usearch:", [*zip(orders["usearch"], matches.distances.tolist())])
sys.exit(orders != {"duckdb by similarity": [2, 0, 1, 3], "duckdb by distance": [0, 1, 3, 2],
                    "lance": [0, 1, 3], "lance, query of zeros": [], "usearch": [0, 1, 2, 3]})
END

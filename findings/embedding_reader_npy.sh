#!/usr/bin/env bash
# embedding_reader 1.8.1: of a .npy file in Fortran order it gives scrambled embeddings, and of a
# float32 file that follows a float16 one garbage.
#
# It parses the header itself, ignores fortran_order, and takes the type of the first file for all.
# NumPy saves a transposed array and most DataFrames in Fortran order, by itself; np.load gives back
# what was saved. Number and dimension of the embeddings are right, so the index that autofaiss
# builds from them looks sound, but no row is an embedding, and no error is raised.
# Way out: np.save(file, np.ascontiguousarray(x)), and one type per folder.
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="embedding-reader==1.8.1 numpy==2.4.6"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
venv/bin/python - <<'END' 2> /dev/null
import sys
import tempfile

import numpy as np
import pandas as pd
from embedding_reader import EmbeddingReader

x = np.random.default_rng(0).standard_normal((500, 64)).astype(np.float32)
pd.DataFrame(x).to_csv("x.csv", index=False)
frame = pd.read_csv("x.csv", dtype=np.float32).to_numpy()
assert (frame == x).all()
seen = {}


def read(name, *arrays):
    """The share of the arrays' rows that the reader gives where they belong"""
    folder = tempfile.mkdtemp(dir=".")
    for i, array in enumerate(arrays):
        np.save(f"{folder}/{i}.npy", array)
        assert (np.load(f"{folder}/{i}.npy") == array).all()
    reader = EmbeddingReader(folder, file_format="npy")
    given = np.concatenate([part for part, _ in reader(batch_size=100, show_progress=False)])
    saved = np.concatenate(arrays).astype(np.float32)
    assert given.shape == saved.shape
    seen[name] = (given == saved).all(1).mean()
    with np.errstate(all="ignore"):
        print(f"{name}: {len(given)} x {given.shape[1]}, right rows {seen[name]:.0%}, "
              f"largest value {np.nanmax(np.abs(given)):.3g} of {np.abs(saved).max():.3g}")


read("one array", x)
read("its DataFrame, from a CSV", frame)
read("features x images, transposed", np.ascontiguousarray(x.T).T)
read("float32 and float32", x, x)
read("float16 and float32", x.astype(np.float16), x)
sys.exit(list(seen.values()) != [1, 0, 0, 1, 0.5])
END

#!/usr/bin/env bash
# polars 2.1.0, Categorical: the codes of a column are not 0 ... C-1, but depend on what else the
# process holds.
#
# Series.to_physical() of a column of classes is the obvious way to integer labels, as pandas'
# .cat.codes is. All Categorical columns that live in a process share one list of names, so labels
# of a table begin where those of other columns ended: class heads are too small, bincount is full
# of zeros, and the same script gives other labels while one more table is kept. The labels of two
# runs, or of a loader's processes, need not agree. Way out: pl.Enum(sorted names), or
# rank("dense") - 1.
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="polars==2.1.0"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
venv/bin/python - <<'END'
import io
import sys

import polars as pl


def codes(kind):
    table = io.StringIO("path,label\na.jpg,bird\nb.jpg,dog\nc.jpg,bird\n")
    return pl.read_csv(table, schema_overrides={"label": kind})["label"].to_physical().to_list()


alone = codes(pl.Categorical)
colours = pl.Series(["red", "green", "blue", "grey"], dtype=pl.Categorical)
beside = codes(pl.Categorical)
enum = codes(pl.Enum(["bird", "dog"]))
print("bird, dog, bird:", alone)
print(f"the same while a column of {len(colours)} colours lives:", beside)
print("as an Enum:", enum)
sys.exit(not (alone == [0, 1, 0] and beside == [4, 5, 4] and enum == [0, 1, 0]))
END

#!/usr/bin/env bash
# grain 0.2.18: WindowShuffleMapDataset loses rows at the end and repeats rows of the beginning, if
# the length is no multiple of the window.
#
# Its text guarantees that within a window no row is repeated. The last window is shuffled as if it
# were full: its rows go to places behind the end, where the dataset begins anew. With 1,000 rows
# and a window of 300, 72 of the last 100 rows are missing and 72 of the first 200 come twice. A
# window longer than the dataset hits all of it: with 1,000 rows and a window of 10,000, 655 rows
# come, and the others never. The order hangs on the seed alone, so each epoch that begins anew
# misses the same rows: a gallery lacks them, and no training with one seed sees them. The length is
# right and nothing is said. With .repeat() the rows come with the next epochs.
# WindowShuffleIterDataset is right.
# Way out: a window that divides the length, shuffle() of the whole, or WindowShuffleIterDataset.
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="grain==0.2.18 numpy==2.4.6"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
OMP_NUM_THREADS=1 venv/bin/python -W ignore - 2> /dev/null <<'END'
import sys

import grain
from grain.experimental import WindowShuffleIterDataset, WindowShuffleMapDataset

told = {}
for rows, window in ((1000, 100), (1000, 300), (1000, 999), (1000, 10000)):
    dataset = WindowShuffleMapDataset(grain.MapDataset.range(rows), window_size=window, seed=0)
    epochs = [[dataset[i] for i in range(len(dataset))] for _ in range(5)]
    seen = set().union(*epochs)
    end = sum(i in seen for i in range(rows - 100, rows))
    stream = WindowShuffleIterDataset(grain.MapDataset.range(rows).to_iter_dataset(),
                                      window_size=window, seed=0)
    right = len(set(stream))
    told[window] = len(seen), right
    print(f"{rows} rows, window {window}: {len(epochs[0])} rows come, {len(set(epochs[0]))} "
          f"different ones, in 5 epochs {len(seen)}, {end} of the last 100; "
          f"WindowShuffleIterDataset {right}")
sys.exit(told[100] != (1000, 1000) or told[300] != (928, 1000) or told[10000] != (655, 1000))
END

"""What the benchmarks share: the number of threads, the header, the table, the goals.

Import it first: NumPy, torch and faiss read the number of threads when they load.
"""
import os
import sys
from pathlib import Path

THREADS = 2
for _library in ("OMP", "OPENBLAS", "MKL"):
    os.environ[f"{_library}_NUM_THREADS"] = str(THREADS)
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))      # jrd, mdr, dml_da, common, eval

import datetime
import importlib.metadata

import torch

from report.tables import markdown
from support.machine import processor, versions


def header(title, *packages, threads, device="cpu"):
    """Set torch's threads, print what is measured, on what and with what."""
    torch.set_num_threads(threads)
    where = ", ".join(processor(name) for name in sorted({"cpu", device}))
    print(f"{title}\n{where}, {os.cpu_count()} cores, {threads} threads, "
          f"load average {os.getloadavg()[0]:.1f} at the start · {datetime.date.today()}")
    used = versions() | {package: importlib.metadata.version(package) for package in packages}
    print(" · ".join(f"{name} {version}" for name, version in used.items()) + "\n", flush=True)


def table(rows):
    """Print lists of cells, the heads first, as Markdown."""
    print(markdown(rows))


def goals(rows):
    """Print rows of (task, cells, ratio, goal or None) under their heads, the first row, and end
    the program: with exit status 1 and the tasks' names if a ratio is above its goal."""
    missed, cells = [], [[rows[0][0], *rows[0][1], *rows[0][2:]]]
    for task, others, ratio, goal in rows[1:]:
        if goal is not None and not ratio <= goal:
            missed.append(f"{task}: {ratio:.3g}, above its goal of {goal}")
        cells.append([task, *others, f"{ratio:.3g}", "" if goal is None else f"{goal}"])
    table(cells)
    sys.exit("\n" + "\n".join(missed) if missed else 0)

"""What both benchmarks share: the number of threads, the header, the table.

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

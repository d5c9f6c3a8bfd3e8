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
import platform

import torch

torch.set_num_threads(THREADS)


def header(title, *packages, threads=THREADS, device="cpu"):
    """Print what is measured, on what and with what."""
    cpuinfo = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines()
             if line.startswith("model name")] if cpuinfo.exists() else [platform.processor()]
    gpu = f" · {torch.cuda.get_device_name(device)}" if device.startswith("cuda") else ""
    print(f"{title}\n{names[0]}, {os.cpu_count()} cores, {threads} threads, load average "
          f"{os.getloadavg()[0]:.1f} at the start{gpu} · {datetime.date.today()}")
    versions = [f"{p} {importlib.metadata.version(p)}" for p in ("torch", *packages)]
    print(" · ".join([f"python {platform.python_version()}", *versions]) + "\n", flush=True)


def table(rows):
    """Print lists of cells, the heads first, as Markdown."""
    for number, row in enumerate(rows):
        print("| " + " | ".join(row) + " |")
        if number == 0:
            print("|---" + "|--:" * (len(row) - 1) + "|")

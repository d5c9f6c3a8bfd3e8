"""What the three benchmarks share: threads fixed before torch loads, clock, header, table.

Import it first: NumPy, torch, faiss and scikit-learn read the number of threads when they load.
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
import statistics
import time

import torch

torch.set_num_threads(THREADS)


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def header(title, *packages, threads=THREADS, device="cpu"):
    """Print what is measured, on what and with what."""
    cpuinfo = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines()
             if line.startswith("model name")] if cpuinfo.exists() else []
    load = f", load average {os.getloadavg()[0]:.1f} at the start"
    gpu = f" · {torch.cuda.get_device_name(device)}" if torch.device(device).type == "cuda" else ""
    print(f"{title}\n{(names or [platform.processor()])[0]}, {os.cpu_count()} cores, {threads} "
          f"thread{'s' * (threads > 1)}{load}{gpu} · {datetime.date.today()}")
    print(" · ".join([f"python {platform.python_version()}", *(
        f"{p} {version(p) or 'not installed'}" for p in ("torch", *packages))]), flush=True)


def table(columns, rows):
    """Print a Markdown table, numbers to the right."""
    cells = [columns, *[[str(c) for c in row] for row in rows]]
    wide = [max(2, *map(len, column)) for column in zip(*cells)]
    rule = ["-" * wide[0], *["-" * (w - 1) + ":" for w in wide[1:]]]
    print()
    for row in (cells[0], rule, *cells[1:]):
        print("| " + " | ".join(f"{c:<{w}}" if i == 0 else f"{c:>{w}}"
                                for i, (c, w) in enumerate(zip(row, wide))) + " |")
    print(flush=True)


def in_turn(functions, repeats):
    """Call {name: function} A, B, A, B, ... -> {name: seconds of each call}, {name: CPU seconds}

    CPU seconds are those of all threads together.  Other jobs on the machine disturb them less.
    """
    seconds, busy = {name: [] for name in functions}, {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start, start_busy = time.perf_counter(), time.process_time()
            function()
            seconds[name].append(time.perf_counter() - start)
            busy[name].append(time.process_time() - start_busy)
    return seconds, busy


def ratio(seconds, name, other):
    """Median over the turns of the time of one divided by that of the other in the same turn."""
    return statistics.median(a / b for a, b in zip(seconds[name], seconds[other]))


def target(text, value, reached):
    """Print a target, what was measured and whether it is reached."""
    print(f"{'reached' if reached else 'MISSED '}  {text}: {value}", flush=True)

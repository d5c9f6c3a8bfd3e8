"""How long a run on glyphs takes, as a newcomer types it, from the start of Python to the table.

    python benchmarks/glyphs.py         two or three minutes on two quiet cores; status 1: a goal is
                                        missed
"""
import bench  # noqa: I001  first: sets the threads

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support.command_line import Parser

GOAL = 60                               # seconds on two cores


def main():
    bench.header("A run on glyphs", threads=bench.THREADS)
    rows = [("command", [], "seconds", "goal")]
    with tempfile.TemporaryDirectory() as folder:
        for script in ("jrd", "mdr", "dml_da"):
            start = time.perf_counter()
            subprocess.run([sys.executable, f"{script}.py", "--device", "cpu", "--out", folder],
                           cwd=Path(__file__).parents[1], check=True, capture_output=True)
            rows.append((f"python {script}.py", [], time.perf_counter() - start, GOAL))
    bench.goals(rows)


if __name__ == "__main__":
    Parser("benchmarks/glyphs.py", __doc__).parse_args()
    main()

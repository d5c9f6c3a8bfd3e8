"""retrieval.py, decoding.py and around.py, one after the other; status 1 if a goal is missed.

    python benchmarks/goals.py      one and a half to three minutes on a quiet core; needs faiss-cpu
"""
import subprocess
import sys
from pathlib import Path

import bench  # noqa: F401  for the import path
from support.command_line import Parser

Parser("benchmarks/goals.py", __doc__).parse_args()
status = 0
for name in ("retrieval", "decoding", "around"):
    print(f"\n== {name}.py", flush=True)
    status |= subprocess.run([sys.executable, Path(__file__).with_name(f"{name}.py")]).returncode
sys.exit(status)

"""Trainings killed at random moments on a CPU go on and end with the bits of undisturbed ones.

    python tests/stress.py [--kills 20] [--seed 0]     about 10 minutes on two cores

Each of the three is ended so often, with and without a worker, by SIGKILL, or by SIGTERM to its
process group, as a scheduler does: at random moments, or as soon as it writes a checkpoint.
"""
import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
TRAININGS = {"jrd": ["--epochs", "4"], "mdr": ["--epochs", "8", "--iterations", "4"],
             "dml_da": ["--epochs", "8", "--iterations", "3"]}


def state(folder):
    """All that a finished run holds, less timings, place and commit, as bytes that compare."""
    checkpoint = torch.load(folder / "last.pt", weights_only=True)
    result = json.loads((folder / "result.json").read_text())
    for row in [*checkpoint["history"], result]:
        for timing in ("seconds", "images/s"):
            row.pop(timing, None)
    for place in ("out", "commit", "workers"):
        checkpoint["config"].pop(place)
    weights = {name: value.numpy().tobytes() for name, value in checkpoint.pop("network").items()}
    return weights, checkpoint, result


def ended(command, folder, end, draw, seconds):
    """Run a training, and end it by the signal `end`, if any, within so many seconds or while it
    writes last.pt -> exit status, stderr"""
    at_write, deadline = draw.random() < 0.4, time.time() + draw.uniform(0, seconds)
    before = {*folder.glob(".last.pt.*.part")}                          # of killed processes
    with tempfile.TemporaryFile("w+") as stderr:        # with a worker: it outlives its parent
        process = subprocess.Popen([*command, "--workers", str(draw.randint(0, 1))], stderr=stderr,
                                   stdout=subprocess.DEVNULL, start_new_session=True)
        while end and process.poll() is None:
            if {*folder.glob(".last.pt.*.part")} - before if at_write else time.time() > deadline:
                (os.killpg if end == signal.SIGTERM else os.kill)(process.pid, end)
                break
            time.sleep(0 if at_write else 0.01)
        process.wait()
        stderr.seek(0)
        return process.returncode, stderr.read().strip()


def faults_of(script, kills, draw, tmp):
    """Runs that end otherwise than by their signal, tracebacks, finished runs that differ"""
    command = [sys.executable, str(ROOT / f"{script}.py"), *TRAININGS[script],
               "--device", "cpu", "--out"]
    began = time.time()
    subprocess.run([*command, tmp / "whole"], check=True, capture_output=True)
    seconds, (whole,) = 0.9 * (time.time() - began), (tmp / "whole").iterdir()
    want, folder, finished, faults = state(whole), tmp / "killed" / whole.name, 0, []
    while (kills > 0 or not finished) and len(faults) < 10:
        end = draw.choice([signal.SIGKILL, signal.SIGTERM]) if kills > 0 else None
        status, message = ended([*command, tmp / "killed"], folder, end, draw, seconds)
        if status == 0:
            finished += 1
            faults += ["differs"] if state(folder) != want else []
            shutil.rmtree(tmp / "killed")
        elif end and status == -end and "Traceback" not in message:
            kills -= 1
        else:
            faults.append(f"ended with status {status}: {message}")
    print(f"{script}: {finished} finished, {len(faults)} faults", *faults, sep="\n  ", flush=True)
    return faults


if __name__ == "__main__":
    parser = argparse.ArgumentParser("stress.py")
    parser.add_argument("--kills", type=int, default=20, help="of each training")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(any([faults_of(name, args.kills, random.Random(args.seed), Path(folder, name))
                      for name in TRAININGS]))

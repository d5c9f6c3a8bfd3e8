"""Trainings killed at random moments on a CPU go on and end with the bits of undisturbed ones.

    python tests/stress.py [--kills 20] [--seed 0]     about 10 minutes on two cores

Each of the three is killed so often, with and without a worker: in turns the training alone by
SIGKILL, and with its workers by SIGTERM, as SLURM and a closed terminal do.
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
    """All that a finished run holds, less timings, place and commit, as text and bytes"""
    checkpoint = torch.load(folder / "last.pt", weights_only=True)
    result = json.loads((folder / "result.json").read_text())
    for row in [*checkpoint["history"], result, checkpoint["config"]]:
        for incidental in ("seconds", "images/s", "out", "commit", "workers"):
            row.pop(incidental, None)
    weights = {name: value.numpy().tobytes() for name, value in checkpoint.pop("network").items()}
    return weights, checkpoint, result


def faults_of(script, kills, draw, folder):
    """Tracebacks, and finished runs that differ from an undisturbed one"""
    command = [sys.executable, ROOT / f"{script}.py", *TRAININGS[script], "--device", "cpu"]
    began, finished, faults = time.time(), 0, []
    subprocess.run([*command, "--out", folder / "whole"], check=True, stdout=subprocess.DEVNULL)
    seconds, (whole,) = time.time() - began, (folder / "whole").iterdir()
    while (kills > 0 or not finished) and len(faults) < 10:
        within = draw.uniform(0, 0.9 * seconds) if kills > 0 else None
        words = ["--out", folder / "killed", "--workers", str(draw.randint(0, 1))]
        with open(folder / "stderr", "w+") as stderr:
            training = subprocess.Popen([*command, *words], stdout=subprocess.DEVNULL,
                                        stderr=stderr, start_new_session=True)
            try:
                status = training.wait(within)
            except subprocess.TimeoutExpired:
                kills -= 1
                if kills % 2:
                    training.kill()
                else:
                    os.killpg(training.pid, signal.SIGTERM)
                training.wait()
                continue
            if status:
                faults.append((folder / "stderr").read_text())
                continue
        finished += 1
        if state(folder / "killed" / whole.name) != state(whole):
            faults.append("differs")
        shutil.rmtree(folder / "killed")
    print(f"{script}: {finished} finished, {len(faults)} faults", *faults, sep="\n  ", flush=True)
    return faults


if __name__ == "__main__":
    parser = argparse.ArgumentParser("stress.py")
    parser.add_argument("--kills", type=int, default=20, help="of each training")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    faults = []
    for script in TRAININGS:
        with tempfile.TemporaryDirectory() as folder:
            faults += faults_of(script, args.kills, random.Random(args.seed), Path(folder))
    sys.exit(bool(faults))

"""What the test suite has no time for: trainings killed at random moments, and malformed input.

    python tests/stress.py kill [--kills 20] [--seed 0]     about 10 minutes on two cores
    python tests/stress.py fuzz [--inputs 300] [--seed 0]   about 2 minutes on two cores

`kill` ends each of the three trainings so often, at random moments and while a checkpoint is being
written, with and without a worker: by SIGKILL, or by SIGTERM to its whole process group, as a
scheduler does.  It starts them again at once and compares every finished run with an undisturbed
one, bit for bit.  `fuzz` feeds each reader of what a user brings with so many damaged copies.
"""
import contextlib
import io
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

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
import common  # noqa: E402
import eval as evaluation  # noqa: E402
from support import images, layouts  # noqa: E402
from support.command_line import SHARED  # noqa: E402

TRAININGS = {"jrd": ["--epochs", "4"], "mdr": ["--epochs", "8", "--iterations", "4"],
             "dml_da": ["--epochs", "8", "--iterations", "3"]}


# ---------------------------------------------------------------------------- killed and continued
def state(folder):
    """All that a finished run holds, less timings, place and commit, as bytes that compare."""
    checkpoint = torch.load(folder / "last.pt", weights_only=True)
    result = json.loads((folder / "result.json").read_text())
    for row in [*checkpoint["history"], result]:
        for timing in ("seconds", "images/s"):
            row.pop(timing, None)
    for where in ("out", "commit", "workers"):
        checkpoint["config"].pop(where)
    weights = {name: value.numpy().tobytes() for name, value in checkpoint.pop("network").items()}
    return weights, checkpoint, result


def kill_one_script(script, kills, draw, tmp):
    """Print a row and the faults -> how many: a run that ends otherwise than by its signal, a
    traceback, a finished run that differs"""
    command = [sys.executable, str(ROOT / f"{script}.py"), *TRAININGS[script], "--out"]
    start = time.time()
    subprocess.run([*command, tmp / "whole"], check=True, capture_output=True)
    duration = time.time() - start
    (whole,) = (tmp / "whole").iterdir()
    want, folder = state(whole), tmp / "killed" / whole.name
    ended, writing, finished, faults = {signal.SIGKILL: 0, signal.SIGTERM: 0}, 0, 0, []
    while (sum(ended.values()) < kills or not finished) and len(faults) < 10:
        end, stop = draw.choice([signal.SIGKILL, signal.SIGTERM]), sum(ended.values()) < kills
        with open(tmp / "stderr", "w+") as stderr:      # with a worker: it outlives its parent
            words = [*command, tmp / "killed", "--workers", str(draw.randint(0, 1))]
            process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=stderr,
                                       start_new_session=True)
            at_write, deadline = draw.random() < 0.4, time.time() + draw.uniform(0, 0.9 * duration)
            parts, caught = set(folder.glob(".last.pt.*.part")), False      # of killed processes
            while stop and process.poll() is None:
                caught = at_write and bool(set(folder.glob(".last.pt.*.part")) - parts)
                if caught or (not at_write and time.time() > deadline):
                    (os.killpg if end == signal.SIGTERM else os.kill)(process.pid, end)
                    break
                time.sleep(0 if at_write else 0.01)
            process.wait()
            stderr.seek(0)
            message = stderr.read().strip()
        if process.returncode == 0:
            finished += 1
            faults += ["differs"] if state(folder) != want else []
            shutil.rmtree(tmp / "killed")
        elif process.returncode == -end and "Traceback" not in message:
            ended[end], writing = ended[end] + 1, writing + caught
        else:
            faults.append(f"ended with status {process.returncode}: {message}")
    row = *ended.values(), writing, finished, len(faults)
    print(f"{script:<10}" + "".join(f"{n:>12}" for n in row), *faults, sep="\n  ", flush=True)
    return len(faults)


def kill(count, draw, tmp):
    print("script         SIGKILL     SIGTERM  in a write    finished      faults", flush=True)
    return sum(kill_one_script(script, count, draw, tmp / script) for script in TRAININGS)


# ---------------------------------------------------------------------------- malformed input
TOKENS = ["", " ", "nan", "inf", "-inf", "1e999", "-1", "0", "1", "2", "0.5", "1e-30", "abc", "--",
          "☃", "0x10", "1,5", "1e3", "99999999999999999999", "None", "True", "[1]", "../..", "\0"]


def damaged(content, draw):
    """A copy of bytes: cut short, overwritten, a piece lost or said twice, or noise."""
    at, size = draw.randrange(len(content) + 1), draw.randrange(1, 99)
    return draw.choice([
        content[:at], content[:at] + draw.randbytes(size % 9 + 1) + content[at + size % 9:],
        content[:at] + content[at + size:], content[:at] + content[:at][-size:] + content[at:],
        draw.randbytes(3 * size)])


def command_lines(script, draw):
    """Random flags and values -> parse_args, which must answer in one line or with settings."""
    module = __import__(script)
    words = ["--" + k.rstrip("_").replace("_", "-") for k in ("dataset", *module.DEFAULTS, *SHARED)]

    def attempt():
        argv = []
        for _ in range(draw.randrange(1, 5)):
            argv += [draw.choice(words), *draw.choices(TOKENS, k=draw.choice([0, 1, 1, 1, 2]))]
        cfg = module.parse_args(argv)
        assert all(v == v and abs(v) != float("inf") for v in vars(cfg).values()
                   if isinstance(v, float)), f"accepted {argv}"
    return attempt


def readers(tmp, draw):
    """{what is damaged: an attempt}"""
    import test_datasets as copies
    attempts = {f"command line of {script}.py": command_lines(script, draw) for script in TRAININGS}
    layouts.COUNTS.update(copies.MINI)

    def add(name, path, read):
        whole = path.read_bytes()

        def attempt():
            path.write_bytes(damaged(whole, draw))
            try:
                read(path)
            finally:
                path.write_bytes(whole)
        read(path)
        attempts[name] = attempt
    lists = {"cub": "images.txt image_class_labels.txt", "sop": "Ebay_train.txt Ebay_test.txt",
             "inshop": "list_eval_partition.txt"}       # SciPy itself dies of some damaged .mat
    for layout, files in lists.items():
        folder = copies.LAYOUTS[layout](tmp / layout)
        for file in files.split():
            add(f"{layout}: {file}", folder / file,
                lambda _, layout=layout: layouts.read_dataset(layout, tmp / layout))
    noise = np.random.RandomState(0).randint(0, 256, (40, 50, 3), np.uint8)
    for kind in ("jpg", "png", "webp", "gif", "bmp"):
        copies.Image.fromarray(noise).save(tmp / f"image.{kind}")
        add(f"image .{kind}", tmp / f"image.{kind}", images.decode)
    for save in (np.savez, np.savez_compressed):
        path = tmp / f"{save.__name__}.npz"
        save(path, embeddings=noise[0, :20].astype(np.float32), labels=np.arange(20) // 4)
        add(f"{save.__name__} .npz", path,
            lambda path: evaluation.judge(ks=[1, 2], **evaluation.load_npz(path)))
    torch.save({"paper": "jrd", "config": {"alpha": 1.0}, "network": {"w": torch.ones(50)}},
               tmp / "last.pt")
    add("checkpoint .pt", tmp / "last.pt", common.read_checkpoint)
    shutil.copy(common.glyphs.WEIGHTS, tmp / "small.pth")
    add("weights .pth", tmp / "small.pth",
        lambda path: common.load_weights(common.SmallNet(), "small", path))
    return attempts


def fuzz(count, draw, tmp):
    print(f"{'input':<34}{'tried':>7}{'refused':>9}{'read':>6}{'tracebacks':>12}")
    wrong = 0
    for name, attempt in readers(tmp, draw).items():
        counts, example = dict(refused=0, read=0, tracebacks=0), ""
        for _ in range(count):
            stderr, outcome = io.StringIO(), "refused"
            try:
                with contextlib.redirect_stderr(stderr):
                    attempt()
                outcome = "read"                        # the damage may be in pixels or a name
            except SystemExit as stop:
                one_line = stop.code == 2 and stderr.getvalue().count("\n") == 1
                message = stderr.getvalue()
            except Exception as error:
                kinds = (common.UserError, ValueError) if name.endswith("npz") else common.UserError
                one_line, message = isinstance(error, kinds) and "\n" not in str(error), repr(error)
            if outcome == "refused" and not one_line:
                outcome, example = "tracebacks", message
            counts[outcome] += 1
        print(f"{name:<34}{count:>7}{counts['refused']:>9}{counts['read']:>6}"
              f"{counts['tracebacks']:>12}  {example[:200]}", flush=True)
        wrong += counts["tracebacks"]
    return wrong


def main():
    parser = common.Parser("stress.py", __doc__)
    parser.add_argument("what", choices=("kill", "fuzz"))
    parser.add_argument("--kills", type=int, default=20, help="of each training")
    parser.add_argument("--inputs", type=int, default=300, help="for each reader")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    function, count = {"kill": (kill, args.kills), "fuzz": (fuzz, args.inputs)}[args.what]
    with tempfile.TemporaryDirectory() as tmp:
        sys.exit(bool(function(count, random.Random(args.seed), Path(tmp))))


if __name__ == "__main__":
    main()

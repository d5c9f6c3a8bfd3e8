"""What the test suite has no time for: trainings killed at random moments, and malformed input.

    python tests/stress.py kill [--kills 20] [--seed 0]     about 10 minutes on two cores
    python tests/stress.py fuzz [--inputs 300] [--seed 0]   about 2 minutes on two cores

`kill` ends each of the three trainings at random moments and while a checkpoint is being written,
with and without a worker process: by SIGKILL, or by SIGTERM to its whole process group, as a
scheduler does.  It starts them again at once, and compares every finished run with an undisturbed
one: weights, optimizer and results, bit for bit.  `fuzz` feeds each reader of something that a user
brings with that many damaged copies.  Both print a table; exit status 1 if anything was wrong.
"""
import argparse
import contextlib
import io
import json
import os
import pickle
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

TRAININGS = {"jrd": ["--epochs", "4"], "mdr": ["--epochs", "8", "--iterations", "4"],
             "dml_da": ["--epochs", "8", "--iterations", "3"]}


# ---------------------------------------------------------------------------- killed and continued
def difference(a, b, at=""):
    """Where two nested values differ first, '' if they are the same bits."""
    if torch.is_tensor(a):
        return "" if torch.equal(a, b) else at
    if isinstance(a, dict) and a.keys() == b.keys():
        return next(filter(None, (difference(a[k], b[k], f"{at}/{k}") for k in a)), "")
    if isinstance(a, (list, tuple)) and len(a) == len(b):
        differences = (difference(x, y, f"{at}/{i}") for i, (x, y) in enumerate(zip(a, b)))
        return next(filter(None, differences), "")
    return "" if a == b else at or "/"


def state(folder):
    """All that a finished run holds, less its timings, its place and the commit."""
    checkpoint = torch.load(folder / "last.pt", weights_only=True)
    result = json.loads((folder / "result.json").read_text())
    for row in [*checkpoint["history"], result]:
        for timing in ("seconds", "images/s"):
            row.pop(timing, None)
    for where in ("out", "commit", "workers"):
        checkpoint["config"].pop(where)
    return checkpoint, result


def kill_one_script(script, kills, draw, tmp):
    """-> (SIGKILLs, SIGTERMs, of both while a checkpoint was being written, finished runs, faults)

    A fault: a run that ends otherwise than by its signal, a SIGTERM that leaves more than its one
    line, a finished run that differs.
    """
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / f"{script}.py"), *TRAININGS[script], "--out"]
    start = time.time()
    subprocess.run([*command, str(tmp / "whole")], env=env, check=True, capture_output=True)
    duration = time.time() - start
    (whole,) = (tmp / "whole").iterdir()
    want, folder = state(whole), tmp / "killed" / whole.name
    ended = {signal.SIGKILL: 0, signal.SIGTERM: 0}
    writing = finished = faults = 0

    def fault(what):
        print(f"{script}: {what}", flush=True)
        return 1
    while sum(ended.values()) < kills or not finished:
        workers = str(draw.randint(0, 1))                       # with one: it outlives its parent
        end = draw.choice([signal.SIGKILL, signal.SIGTERM])
        with open(tmp / "stderr", "wb") as stderr:
            process = subprocess.Popen([*command, str(tmp / "killed"), "--workers", workers],
                                       env=env, stdout=subprocess.DEVNULL, stderr=stderr,
                                       start_new_session=True)
        at_write, deadline = draw.random() < 0.4, time.time() + draw.uniform(0, 0.9 * duration)
        parts = set(folder.glob(".last.pt.*.part"))             # of processes that were killed
        caught = False
        while process.poll() is None and sum(ended.values()) < kills:
            caught = at_write and set(folder.glob(".last.pt.*.part")) - parts
            if caught or (not at_write and time.time() > deadline):
                if end == signal.SIGTERM:
                    os.killpg(process.pid, end)
                else:
                    process.send_signal(end)
                break
            time.sleep(0 if at_write else 0.01)
        process.wait()
        message = (tmp / "stderr").read_text().strip()
        if process.returncode == 0:
            finished += 1
            if where := difference(state(folder), want):
                faults += fault(f"differs at {where}")
            shutil.rmtree(tmp / "killed")
        elif process.returncode == -end:
            ended[end], writing = ended[end] + 1, writing + bool(caught)
            one_line = message.startswith("stopped: ") and "\n" not in message
            if end == signal.SIGTERM and message and not one_line:      # "": before the training
                faults += fault(f"SIGTERM left {message}")
        else:
            faults += fault(f"ended with status {process.returncode}: {message}")
            if faults > 9:
                break
    return *ended.values(), writing, finished, faults


def kill(args):
    print(f"{'script':<10}{'SIGKILL':>9}{'SIGTERM':>9}{'in a write':>12}{'finished':>10}"
          f"{'faults':>8}", flush=True)
    wrong = 0
    for script in TRAININGS:
        with tempfile.TemporaryDirectory() as tmp:
            row = kill_one_script(script, args.kills, random.Random(args.seed), Path(tmp))
        print(f"{script:<10}{row[0]:>9}{row[1]:>9}{row[2]:>12}{row[3]:>10}{row[4]:>8}", flush=True)
        wrong += row[4]
    return wrong


# ---------------------------------------------------------------------------- malformed input
TOKENS = ["", " ", "nan", "inf", "-inf", "1e999", "-1", "0", "1", "2", "0.5", "1e-30", "abc", "--",
          "☃", "0x10", "1,5", "1e3", "99999999999999999999", "None", "True", "[1]", "../..", "\0"]


def damaged(content, draw):
    """A copy of bytes with one kind of damage."""
    at = draw.randrange(len(content) + 1)
    return draw.choice([
        lambda: content[:at],                                              # cut short
        lambda: content[:at] + bytes(draw.randrange(256) for _ in range(draw.randrange(1, 9)))
        + content[at + draw.randrange(9):],                                # a few bytes overwritten
        lambda: content[:at] + content[at + draw.randrange(1, 99):],       # a piece lost
        lambda: content[:at] + content[:at][-draw.randrange(1, 99):] + content[at:],    # said twice
        lambda: bytes(draw.randrange(256) for _ in range(draw.randrange(300)))])()      # noise


class Bomb:
    """What a hostile file holds: unpickling it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def command_lines(script, draw):
    """Random flags and values -> parse_args, which must answer in one line or with settings."""
    module = __import__(script)
    words = ["--" + k.rstrip("_").replace("_", "-") for k in module.DEFAULTS | {
        "weights": 0, "seed": 0, "device": 0, "workers": 0, "precision": 0, "dataset": 0}]

    def attempt():
        argv = []
        for _ in range(draw.randrange(1, 5)):
            argv += [draw.choice(words), *draw.choices(TOKENS, k=draw.choice([0, 1, 1, 1, 2]))]
        cfg = module.parse_args(argv)
        assert all(v == v and abs(v) != float("inf") for v in vars(cfg).values()
                   if isinstance(v, float)), f"accepted {argv}"
        return True
    return attempt


def file_damage(path, read, draw):
    """A reader and a file: the file damaged anew for each attempt, read, and put back.

    The reader's answer is compared with that for the whole file.
    """
    whole = path.read_bytes()
    want = read()

    def attempt():
        path.write_bytes(damaged(whole, draw))
        try:
            return not difference(read(), want)
        finally:
            path.write_bytes(whole)
    return attempt


def readers(tmp, draw):
    """{what is damaged: an attempt -> whether its answer was the true one}"""
    import test_datasets as copies
    inputs = {f"command line of {script}.py": command_lines(script, draw) for script in TRAININGS}
    layouts.COUNTS.update(copies.MINI)

    def dataset(name, root):
        def read():
            splits = layouts.read_dataset(name, root)[1]
            return {part: [(str(p), str(c)) for p, c in rows] for part, rows in splits.items()}
        return read
    lists = {"cub": "images.txt image_class_labels.txt", "sop": "Ebay_train.txt Ebay_test.txt",
             "inshop": "list_eval_partition.txt"}       # SciPy itself dies of some damaged .mat
    for layout, files in lists.items():
        root = tmp / layout.replace(" ", "-")
        folder = copies.LAYOUTS[layout](root)
        for file in files.split():
            inputs[f"{layout}: {file}"] = file_damage(
                folder / file, dataset(layout.split()[0], root), draw)
    for kind, options in (("jpg", {}), ("png", {}), ("webp", {}), ("gif", {}), ("bmp", {})):
        path = tmp / f"image.{kind}"
        noise = np.random.RandomState(0).randint(0, 256, (40, 50, 3), np.uint8)
        copies.Image.fromarray(noise).save(path, **options)
        inputs[f"image .{kind}"] = file_damage(
            path, lambda path=path: np.asarray(images.decode(path)).tolist(), draw)
    for kind, save in (("embeddings .npz", np.savez), ("compressed .npz", np.savez_compressed)):
        path = tmp / f"{save.__name__}.npz"
        save(path, embeddings=np.random.RandomState(0).rand(20, 4).astype(np.float32),
             labels=np.arange(20) // 4)
        inputs[kind] = file_damage(path, lambda path=path: evaluation.judge(
            ks=[1, 2], **evaluation.load_npz(path)), draw)
    path = tmp / "last.pt"
    torch.save({"paper": "jrd", "config": {"alpha": 1.0}, "network": {"w": torch.ones(50)}}, path)
    inputs["checkpoint .pt"] = file_damage(path, lambda: common.read_checkpoint(path), draw)
    path = tmp / "small.pth"
    shutil.copy(common.glyphs.WEIGHTS, path)
    inputs["weights .pth"] = file_damage(path, lambda: common.load_weights(
        common.SmallNet(), "small", path), draw)
    return inputs


def hostile(tmp):
    """Files that would run code if anything unpickled them -> {what: whether it did}"""
    tmp.mkdir()
    ran = {}
    for name, write, read in (
            ("checkpoint", lambda p, bomb: torch.save({"paper": "jrd", "config": bomb}, p),
             common.read_checkpoint),
            ("weights", lambda p, bomb: torch.save({"x": bomb}, p), common.load_torch),
            ("pickle", lambda p, bomb: p.write_bytes(pickle.dumps(bomb)), common.read_checkpoint),
            ("npz", lambda p, bomb: np.savez(open(p, "wb"), embeddings=np.array([bomb], object),
                                             labels=np.zeros(1)), evaluation.load_npz)):
        mark = tmp / f"{name}-ran"
        write(tmp / name, Bomb(mark))
        with contextlib.suppress(common.UserError):
            read(tmp / name)
        ran[name] = mark.exists()
    return ran


def fuzz(args):
    print(f"{'input':<34}{'tried':>7}{'refused':>9}{'same':>6}{'other':>7}{'tracebacks':>12}")
    wrong, draw = 0, random.Random(args.seed)
    with tempfile.TemporaryDirectory() as tmp:
        for name, attempt in readers(Path(tmp), draw).items():
            counts, example = dict(refused=0, same=0, other=0, tracebacks=0), ""
            for _ in range(args.inputs):
                stderr = io.StringIO()
                try:
                    with contextlib.redirect_stderr(stderr):
                        counts["same" if attempt() else "other"] += 1
                except (common.UserError, ValueError) as error:
                    one_line = "\n" not in str(error) and (isinstance(error, common.UserError)
                                                           or name.endswith(".npz"))
                    counts["refused" if one_line else "tracebacks"] += 1
                    example = example if one_line else repr(error)
                except SystemExit as stop:
                    one_line = stop.code == 2 and stderr.getvalue().count("\n") == 1
                    counts["refused" if one_line else "tracebacks"] += 1
                    example = example if one_line else stderr.getvalue()
                except Exception as error:
                    counts["tracebacks"] += 1
                    example = repr(error)
            print(f"{name:<34}{args.inputs:>7}{counts['refused']:>9}{counts['same']:>6}"
                  f"{counts['other']:>7}{counts['tracebacks']:>12}  {example[:200]}", flush=True)
            wrong += counts["tracebacks"]
        for name, ran in hostile(Path(tmp, "hostile")).items():
            print(f"hostile {name}: code in it " + ("RAN" if ran else "did not run"))
            wrong += ran
    print("same: read as if whole (the damage was in nothing that is read); other: read as "
          "something else\n(pixels, a name or a class of which the file gives no second account).")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("kill", "fuzz"))
    parser.add_argument("--kills", type=int, default=20, help="of each training")
    parser.add_argument("--inputs", type=int, default=300, help="for each reader")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    sys.exit(bool({"kill": kill, "fuzz": fuzz}[args.what](args)))


if __name__ == "__main__":
    main()

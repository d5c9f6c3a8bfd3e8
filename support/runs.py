"""The run folder: settings, log, checkpoint, result of one training; its resumption, its table."""
import contextlib
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import filelock
import numpy as np
import torch
import torchvision
from tqdm import tqdm

from support.command_line import RUNTIME_ONLY, device, plain
from support.files import (ROOT, NonFiniteLoss, UserError, atomic, load_torch, read_json, reason,
                           remove_leftovers, write_json)
from support.identity import code_of, listed, other_code, other_images

PAPERS = ("jrd", "mdr", "dml_da")
LOCK_WAIT = 8       # seconds: a loader's worker holds its parent's lock, and a worker whose parent
#                     was killed notices within five


def read_checkpoint(path):
    """A last.pt -> its dict.  UserError unless one of the three scripts wrote it."""
    state = load_torch(path)
    if not isinstance(state, dict) or state.get("paper") not in PAPERS or not isinstance(
            state.get("config"), dict):
        raise UserError(f"{path} is not a checkpoint of {', '.join(PAPERS)}")
    return state


def value_in_name(value):
    """A setting's value in the name of a folder: levels -3 0 3 are -3_0_3, a path its last part."""
    return Path(plain(value, between="_")).name


def run_folder(paper, cfg):
    """`<out>/<paper>-<dataset>-<what differs from the preset>[-<name>]-s<seed>`"""
    changed = [name + value_in_name(value) for name, value in cfg.changed.items()]
    label = [cfg.name] if cfg.name else []
    return Path(cfg.out, "-".join([paper, Path(cfg.dataset).resolve().name, *changed, *label,
                                   f"s{cfg.seed}"]))


def settings_of(cfg):
    """cfg as it stands in config.json: without what is derived from it."""
    return {name: value for name, value in vars(cfg).items() if name != "changed"}


def _read(path, what, *keys):
    """A JSON file of a run folder -> dict.  UserError if it is damaged or lacks one of the keys."""
    with contextlib.suppress(ValueError, TypeError):
        values = dict(read_json(path))
        if values.keys() >= {*keys}:
            return values
    raise UserError(f"{path} is not the {what} of a run: delete {path.parent} to train anew")


def read_config(folder):
    """A run folder's config.json -> dict, None where there is none.  UserError if it is damaged."""
    if not (folder / "config.json").exists():
        return None
    config = _read(folder / "config.json", "settings")
    if config.get("paper") in ("mdr", "dml_da") and "m" in config:
        config["images_per_class"] = config.pop("m")                    # its old name
    return config


def read_result(path):
    """A result.json -> its dict.  UserError if it is none."""
    result = _read(path, "result", "last epoch", "best on test")
    if "untrained backbone" in result:
        result["pretrained backbone"] = result.pop("untrained backbone")           # its old name
    return result


def other_settings(old, new):
    """{setting: (in the old config, in the new)} where they differ.

    What was computed counts, not where (RUNTIME_ONLY), and of a weights file its hash, not its
    path.  A folder of images may move: identity.other_images compares the images.
    """
    old, new = ({k: v for k, v in json.loads(json.dumps(config)).items() if k not in (
        *RUNTIME_ONLY, "versions", "commit", "processor", "weights", "code", "images", "dataset")}
        for config in (old, new))
    return {k: (old.get(k), new.get(k)) for k in sorted({*old, *new}) if old.get(k) != new.get(k)}


class Run:
    """One training: `runs/<paper>-<dataset>-<what differs from the preset>[-<name>]-s<seed>/`
    with config.json, log.jsonl (a line an epoch), last.pt (after every epoch), result.json, and
    with --val best.pt.

    Use as a context manager around the training.  A killed run continues from last.pt by the same
    command; a folder whose settings differ is refused (UserError, with the fields that differ).
    """
    def __init__(self, paper, cfg, data, weights):
        self.cfg, self.paper, self.ks = cfg, paper, [f"R@{k}" for k in cfg.ks]
        self.folder = run_folder(paper, cfg)
        self.config = {"paper": paper, **settings_of(cfg), "weights_sha256": weights,
                       "splits": data.counts(), "images": data.identity, "code": code_of(paper),
                       "versions": versions(), "commit": commit(), "processor": processor(cfg)}
        self.history, self.pretrained, self.epoch, self.columns = [], None, 0, None
        self._check_folder()
        self._header(data, weights)

    def _check_folder(self):
        """UserError if the folder holds a run of other settings, images or code than this one."""
        parent = next(path for path in self.folder.absolute().parents if path.exists())
        if not parent.is_dir():
            raise UserError(f"cannot write {self.folder}: {parent} is a file")
        old = None if self.cfg.again else read_config(self.folder)
        if old is None:
            return
        splits = other_images(old.get("images"), self.config["images"])
        settings = [f"{name} (there {there!r}, now {now!r})" for name, (there, now)
                    in other_settings(old, self.config).items()]
        functions = other_code(old.get("code"), self.config["code"])
        if splits:
            what = f"on other images: {splits} differ"
        elif settings:
            what = f"with other settings: {', '.join(settings)}"
        elif functions:
            verb = "differ" if len(functions) > 1 else "differs"
            what = f"with other code: {listed(functions)} {verb}"
        else:
            return
        raise UserError(f"{self.folder} holds a run {what}; --name LABEL puts this run beside it, "
                        "--again in its place")

    def _header(self, data, weights):
        where = device(self.cfg)
        kind = torch.cuda.get_device_name(where) if where.type == "cuda" else \
            f"{torch.get_num_threads()} threads"
        print(f"{self.paper} on {data.name} · {where} ({kind}) · torch {torch.__version__}")
        shared = len({*data.train.classes} & {*data.test.classes})
        known = f"{shared:,} of them in train (closed-set retrieval)" if shared else \
            "none of them in train"
        held_out = f" · held out {data.val}" if data.val else ""
        gallery = f" · gallery {data.gallery}" if data.gallery else ""
        print(f"train {data.train}{held_out} · test {data.test}, {known}{gallery}")
        print(f"backbone {self.cfg.backbone}, weights {weights[:12]}")
        changed = [f"{k} {value_in_name(v)}" for k, v in self.cfg.changed.items()]
        print("settings: the preset" + (f", but {', '.join(changed)}" if changed else "") +
              f" · {self.cfg.epochs} epochs, batch {self.cfg.batch}, lr {self.cfg.lr:g}")

    def __enter__(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = filelock.FileLock(self.folder / ".lock", timeout=LOCK_WAIT)
        try:
            self.lock.acquire()
        except filelock.Timeout:
            raise UserError(f"another process is training in {self.folder}")
        remove_leftovers(self.folder)
        if self.cfg.again:
            for name in ("result.json", "last.pt", "best.pt", "log.jsonl", "config.json"):
                (self.folder / name).unlink(missing_ok=True)
        if not (self.folder / "config.json").exists():
            write_json(self.folder / "config.json", self.config)
        self.pid, self.old_handler = os.getpid(), signal.signal(signal.SIGTERM, self._terminate)
        return self

    def __exit__(self, kind, error, traceback):
        signal.signal(signal.SIGTERM, self.old_handler)
        self.lock.release()
        if kind is KeyboardInterrupt:
            print(self._how_to_continue(), file=sys.stderr)
        if isinstance(error, torch.OutOfMemoryError):
            raise UserError(f"out of GPU memory with --batch {self.cfg.batch}: --precision bf16 "
                            "needs less; so does a smaller --batch, but that is no longer the "
                            "paper's") from error
        if error and isinstance(error, torch._dynamo.exc.TorchDynamoException):
            raise UserError(f"--compile: {reason(error)}") from error

    def _terminate(self, number, frame):
        """SIGTERM: die of it at once.  Checkpoints appear whole: one epoch is lost at most."""
        if os.getpid() == self.pid:                 # and not a worker that was just forked
            os.write(2, f"{self._how_to_continue()}\n".encode())     # print may be what it stopped
            self.lock.release()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _how_to_continue(self):
        command = shlex.join(["python", *(word for word in sys.argv if word != "--again")])
        return (f"\nstopped: {self.folder} holds {len(self.history)} of {self.cfg.epochs} epochs.  "
                f"To continue: {command}")

    @property
    def result(self):
        """What `finish` wrote, or None while the run is not finished."""
        path = self.folder / "result.json"
        return read_result(path) if path.exists() else None

    def restore(self, **parts):
        """Load the last checkpoint into parts (anything with load_state_dict), if there is one."""
        self.parts, path = parts, self.folder / "last.pt"
        if path.exists():
            state = read_checkpoint(path)
            try:
                for name, part in parts.items():
                    if state[name] is not None:                         # dropped by finish
                        part.load_state_dict(state[name])
                self.history = state["history"]
                self.pretrained = state.get("pretrained", state.get("untrained"))    # its old name
            except (KeyError, RuntimeError, ValueError) as error:
                raise UserError(f"{path} does not fit this {self.paper}.py: {reason(error)}; "
                                f"delete {self.folder} to train anew")
            self._write_log()
            print(f"{self.folder} is finished; --again trains it anew" if self.result else
                  f"continuing {self.folder} after epoch {len(self.history)}")

    def epochs(self):
        """The epochs still to train, from 0; none of a finished run."""
        self.started, self.first = time.time(), len(self.history)
        if self.result:
            return
        for self.epoch in range(self.first, self.cfg.epochs):
            best, patience = self.best("val R@1"), self.cfg.patience
            just_evaluated = self.history and "val R@1" in self.history[-1]
            if patience and just_evaluated and len(self.history) - best["epoch"] >= patience:
                print(f"no better R@1 on the held-out classes for {patience} epochs")
                return
            yield self.epoch

    def best(self, metric):
        """The first row of the log with the highest value of a metric, None where none has it."""
        rows = [row for row in self.history if metric in row]
        return max(rows, key=lambda row: row[metric]) if rows else None

    def evaluates(self):
        """Whether the current epoch is one of every --eval-every, or the last."""
        return (self.epoch + 1) % self.cfg.eval_every == 0 or self.epoch + 1 == self.cfg.epochs

    def steps(self, loader):
        """The loader's batches behind a progress bar."""
        self.losses, self.images, start = [], 0, time.time()
        with tqdm(loader, f"epoch {self.epoch + 1}/{self.cfg.epochs}", unit="batch", leave=False,
                  disable=None) as bar:
            for images, labels in bar:
                yield images, labels
                self.images += len(labels)
                if len(self.losses) % 50 == 0:            # read back: the only wait in 50 steps
                    bar.set_postfix(loss=f"{self._mean_losses()['loss']:.3f}", refresh=False)
        self.means = self._mean_losses()
        self.seconds = time.time() - start

    def record(self, **losses):
        """Note the loss parts of a step; they stay on the device until somebody reads them."""
        self.names = list(losses)
        self.losses.append(torch.stack([v.detach().float() for v in losses.values()]))

    def _mean_losses(self):
        losses = torch.stack(self.losses).cpu()
        bad = (~torch.isfinite(losses)).any(1).nonzero()[:, 0].tolist()
        if bad:
            last = self.folder / "last.pt"
            parts = ", ".join(f"{k} {v:g}" for k, v in zip(self.names, losses[bad[0]].tolist()))
            raise NonFiniteLoss(f"the loss is not finite at epoch {self.epoch + 1}, step "
                                f"{bad[0] + 1}: {parts}; last good checkpoint: " +
                                (f"{last} (epoch {self.epoch})" if last.exists() else "none yet"))
        return dict(zip(self.names, losses.double().mean(0).tolist()))

    def end_epoch(self, **row):
        """Log, checkpoint and print an epoch."""
        row = {"epoch": self.epoch + 1, **self.means, **row,
               "images/s": self.images / self.seconds, "seconds": self.seconds}
        self.history.append(row)
        if self.best("val R@1") is row:
            self._save("best.pt", optimizer=None)
        self._save("last.pt")
        self._write_log()
        self._print(row)

    def _print(self, row):
        """A row of the table on the console, the names of its columns first where they changed."""
        columns = [*self.names, *self.ks]
        columns += [k for k in ("val R@1", "seen R@1") if any(k in old for old in self.history)]
        if columns != self.columns:
            self.columns = columns
            names = "".join(f" {column:>9}" for column in columns)
            print(f"{'epoch':>9}{names}{'images/s':>10}{'left':>9}")
        cells = ""
        for column in columns:
            text = "–"                                                 # not evaluated this epoch
            if column in self.names:
                text = f"{row[column]:.{4 if abs(row[column]) < 1e4 else 0}f}"
            elif column in row:
                text = f"{100 * row[column]:.1f}%"
            cells += f" {text:>{max(9, len(column))}}"
        done = self.epoch + 1 - self.first
        left = int((time.time() - self.started) / done * (self.cfg.epochs - self.epoch - 1))
        print(f"{row['epoch']:>5}/{self.cfg.epochs:<3}{cells}{row['images/s']:>10,.0f}"
              f"{left // 60:>6}:{left % 60:02}", flush=True)

    def _save(self, name, **changes):
        """Write a checkpoint: the settings, the log and the state of each part but for changes."""
        state = {"paper": self.paper, "config": self.config, "history": self.history,
                 "pretrained": self.pretrained}
        state |= {k: part.state_dict() for k, part in self.parts.items()} | changes
        with atomic(self.folder / name, "wb") as file:
            torch.save(state, file)

    def _write_log(self):
        with atomic(self.folder / "log.jsonl") as file:
            file.writelines(json.dumps(row) + "\n" for row in self.history)

    def finish(self, last):
        """Write result.json: last epoch, best on test labelled as such, pretrained backbone."""
        best, chosen = self.best(self.ks[0]), self.best("val R@1")
        result = {"last epoch": {"epoch": len(self.history), **last},
                  "best on test": {k: best[k] for k in ("epoch", *self.ks)},
                  "pretrained backbone": self.pretrained,
                  "seconds": sum(row["seconds"] for row in self.history)}
        if chosen:
            columns = ("epoch", "val R@1", *self.ks)
            result["best on held-out classes"] = {k: chosen[k] for k in columns}
        write_json(self.folder / "result.json", result)
        self._save("last.pt", optimizer=None)                           # two thirds of the file


def versions():
    return {"python": sys.version.split()[0], "torch": str(torch.__version__),
            "torchvision": str(torchvision.__version__), "numpy": np.__version__}


def commit():
    """The commit of these files, '+' where they were changed since; None outside a git checkout."""
    with contextlib.suppress(OSError):
        git = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--exclude=*",
                              "--abbrev=40", "--dirty=+"], capture_output=True, text=True,
                             encoding="utf-8", errors="replace")
        return git.stdout.strip() or None


def processor(cfg):
    """The name of what computes: last digits repeat on one kind of processor alone."""
    where = device(cfg)
    if where.type == "cuda":
        return torch.cuda.get_device_name(where)
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):                                  # Linux
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        name = re.search(r"model name\s*:\s*(.*)", info)[1] if "model name" in info else name
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


# ---------------------------------------------------------------------------- the last table
def percent(share, width=7):
    return f"{100 * share:{width}.1f}" if isinstance(share, float) else f"{'–':>{width}}"


def show(rows, ks):
    """Print {name: judge(...)} in % as a table, below it the ten parts and 1-NN estimates."""
    metrics = [f"R@{k}" for k in ks] + ["MAP@R", "NMI", "seen R@1"]
    metrics = [m for m in metrics if any(m in row for row in rows.values())]
    wide = max(map(len, rows), default=0)
    print(" " * wide + "".join(f"{m:>{max(7, len(m) + 2)}}" for m in metrics))
    for name, row in rows.items():
        print(f"{name:<{wide}}" + "".join(
            percent(row.get(m), max(7, len(m) + 2)) for m in metrics))
    for row in rows.values():
        if "ten parts" in row:
            print(f"{'in ten stratified parts, 95%':<{wide}}" + "".join(
                f"  {m} [{100 * (mean - half):.1f}, {100 * (mean + half):.1f}]"
                for m, (mean, half) in row["ten parts"].items()))
        if "lambda" in row:
            print(f"{'1-NN estimates (JRD, Eq. 2-3), 95%':<{wide}}" + "".join(
                "  {} [{:.3f}, {:.3f}]".format(name, row[key][0] - row[key][1], sum(row[key]))
                for name, key in (("λ", "lambda"), ("d_H", "d_H"))))
        if "queries without a positive" in row:
            print(f"{row['queries without a positive']} queries have no other image of their class "
                  "to find and count as misses")


def final_table(run):
    """The end of a training: pretrained backbone, last epoch, best epoch on test, its folder."""
    result, held_out = run.result, ""
    before, last = result["pretrained backbone"], result["last epoch"]
    best = result["best on test"]
    rows = {"pretrained backbone": before, f"last epoch ({last['epoch']})": last}
    if "best on held-out classes" in result:
        chosen = result["best on held-out classes"]
        rows[f"best.pt (epoch {chosen['epoch']}, chosen on held-out training classes)"] = chosen
        held_out = f"R@1 on the held-out classes: best.pt {percent(chosen['val R@1'], 0)}"
        if "val R@1" in before:
            held_out += f", pretrained {percent(before['val R@1'], 0)}"
            if chosen["val R@1"] <= before["val R@1"]:
                held_out += ": by them no epoch is better than not training at all"
    rows[f"best on test (epoch {best['epoch']}, chosen on the test set)"] = best
    print()
    show(rows, run.cfg.ks)
    if held_out:
        print(held_out)
    print(f"run {run.folder}")

"""The run folder: settings, log, checkpoint, result of one training; its resumption, its tables."""
import ast
import contextlib
import functools
import io
import json
import platform
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import filelock
import numpy as np
import torch
import torchvision
from tqdm import tqdm

from support.command_line import RUNTIME_ONLY, plain
from support.files import (ROOT, NonFiniteLoss, UserError, atomic, digest, listed, load_torch,
                           reason, write_json)

PAPERS = ("jrd", "mdr", "dml_da")
LOCK_WAIT = 8       # seconds: the loader's workers of a killed run hold its lock for up to five
NOT_SETTINGS = {*RUNTIME_ONLY, "versions", "commit", "processor", "weights", "code", "images",
                "dataset", "changed"}


# ---------------------------------------------------------------------------- what a run is
@functools.cache
def code_of(paper):
    """The code of a run: a digest of the syntax trees of the paper's script, common.py, eval.py and
    support/, without docstrings, and outside the script without texts that have a blank, which are
    messages.  report/, data files and packages are not in it; the commit and versions tell."""
    trees = []
    own = ROOT / f"{paper}.py"
    for path in (own, ROOT / "common.py", ROOT / "eval.py", *sorted(ROOT.glob("support/*.py"))):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            with contextlib.suppress(TypeError):        # a node that can have no docstring
                node.body = node.body[1:] if ast.get_docstring(node) else node.body
            if path != own and " " in str(getattr(node, "value", "")):
                node.value = "" if isinstance(node, ast.Constant) else node.value
        trees.append(ast.dump(tree))
    return digest(*trees)[:12]


def run_folder(paper, cfg):
    """`<out>/<paper>-<dataset>-<what differs from the preset>[-<name>]-s<seed>`; not the path of a
    file of weights."""
    changed = [name + plain(value, between="_") for name, value in cfg.changed.items()
               if name != "weights" or value == "random"]
    dataset = re.sub("[\ud800-\udfff]", "_", Path(cfg.dataset).resolve().name)  # bytes, no text
    words = [paper, dataset, *changed, cfg.name, f"s{cfg.seed}"]
    return Path(cfg.out, "-".join(filter(None, words)))


def other_settings(old, new):
    """{setting: (in the old config, in the new)} where they differ.  Where a run was computed does
    not count, and a weights file counts by its hash, not its path."""
    old, new = ({k: v for k, v in json.loads(json.dumps(config)).items() if k not in NOT_SETTINGS}
                for config in (old, new))
    return {k: (old.get(k), new.get(k)) for k in sorted({*old, *new}) if old.get(k) != new.get(k)}


def other_images(old, new):
    """The splits whose images differ between two runs, in words; "" if none do.  old, new: {split:
    digest, a text}.  Only splits with a digest in both are compared."""
    old, new = (images if isinstance(images, dict) else {} for images in (old, new))
    return ", ".join(split for split in new if old.get(split) != new[split]
                     and {type(old.get(split)), type(new[split])} == {str})


def why_other(folder, config):
    """Why a folder does not hold the run of a config, in words; "" if it does, or holds none.

    Who cannot know a run's code, images, splits or weights (a report on an archive) leaves them out
    of config.  Precision auto is whichever the run has.
    """
    old = read_config(folder)
    if old is None:
        return "without its config.json" if (folder / "last.pt").exists() else ""
    if splits := other_images(old.get("images"), config.get("images")):
        return f"on other images: names, sizes or times of {splits} differ"
    settings = other_settings(old, config)
    for key in {"splits", "weights_sha256"} - {*config}:
        settings.pop(key, None)
    if config["precision"] == "auto":
        settings.pop("precision", None)
    if settings:
        return "with other settings: " + ", ".join(
            f"{k} (there {there!r}, now {now!r})" for k, (there, now) in settings.items())
    if "code" in config and old.get("code") != config["code"]:
        return (f"of other code: of {config['paper']}.py, common.py, eval.py or support/ (commit "
                f"{old.get('commit')}), or seen by another version of Python")
    return ""


def versions():
    return {"python": sys.version.split()[0], "torch": str(torch.__version__),
            "torchvision": str(torchvision.__version__), "numpy": np.__version__}


def commit():
    """The commit of these files, '+' where they were changed since; None outside a git checkout."""
    words = ["git", "-C", ROOT, "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+"]
    with contextlib.suppress(OSError):
        git = subprocess.run(words, capture_output=True, encoding="utf-8", errors="replace")
        return git.stdout.strip() or None


def processor(where):
    """The name of what computes: last digits repeat on one kind of processor alone."""
    if where.type == "cuda":
        return torch.cuda.get_device_name(where)
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, TypeError):                       # Linux
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        name = re.search(r"model name\s*:\s*(.*)", info)[1]
        for what in ("cpu family", "model"):        # a virtual machine may hide the name
            name += f", {what} {re.search(rf'^{what}[^:]*: (.*)', info, re.M)[1]}"
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


# ---------------------------------------------------------------------------- its files
def read_checkpoint(path):
    """A last.pt -> its dict.  UserError unless one of the three scripts wrote it."""
    state = load_torch(path)
    if not isinstance(state, dict) or state.get("paper") not in PAPERS or not isinstance(
            state.get("config"), dict):
        raise UserError(f"{path} is not a checkpoint of {', '.join(PAPERS)}")
    return state


def _read(file, what, keys, folder):
    """A JSON file of a run folder -> dict, None where there is none.  UserError if it is damaged or
    lacks one of the keys."""
    if not (path := folder / file).exists():
        return None
    with contextlib.suppress(ValueError, TypeError):
        values = dict(json.loads(path.read_text(encoding="utf-8")))
        if values.keys() >= {*keys}:
            return values
    raise UserError(f"{path} is not the {what} of a run: delete {folder} to train anew")


read_config = partial(_read, "config.json", "settings", ())
read_result = partial(_read, "result.json", "result", ("last epoch", "best on test"))


class Run:
    """One training, a context manager around it: its run_folder with config.json, log.jsonl (a
    line per epoch), last.pt (after every epoch), result.json, and with --val best.pt.  A killed run
    continues from last.pt.  UserError: the folder holds a run of other settings, images or code."""

    def __init__(self, paper, cfg, data, weights):
        self.cfg, self.paper, self.ks = cfg, paper, [f"R@{k}" for k in cfg.ks]
        self.folder = run_folder(paper, cfg)
        self.config = {"paper": paper, **vars(cfg), "weights_sha256": weights,
                       "splits": data.counts(), "images": data.identity, "code": code_of(paper),
                       "versions": versions(), "commit": commit(),
                       "processor": processor(torch.device(cfg.device))}
        self.classes = data.train.present()
        self.history, self.pretrained, self.result, self.columns = [], None, None, None
        if not cfg.again and (why := why_other(self.folder, self.config)):
            raise UserError(f"{self.folder} holds a run {why}; --name LABEL puts this run beside "
                            "it, --again in its place")
        self._header(data, weights)

    def _header(self, data, weights):
        cfg, shared = self.cfg, data.shared()
        changed = ", ".join(f"{k} {plain(v)}" for k, v in cfg.changed.items())
        print(f"{self.paper} on {Path(cfg.dataset).resolve().name} · {cfg.device} "
              f"({self.config['processor']}, {torch.get_num_threads()} threads) · torch "
              f"{torch.__version__}")
        closed = f"{shared} of them in train (closed-set retrieval)"
        test = f"{data.test}, {closed if shared else 'none of them in train'}"
        parts = {"train": data.train, "held out": data.val, "test": test, "gallery": data.gallery}
        print(" · ".join(f"{name} {part}" for name, part in parts.items() if part))
        print(f"backbone {cfg.backbone}, weights {weights[:12]}")
        print(f"settings: the preset{changed and ', but ' + changed} · {cfg.epochs} epochs, batch "
              f"{cfg.batch}, lr {cfg.lr:g}, {cfg.precision}")
        rest_of = partial(re.sub, r"-epochs\d+", "")
        other = [path for path in self.folder.parent.glob("*")
                 if rest_of(path.name) == rest_of(self.folder.name)]
        if other and self.folder not in other:
            print(f"note: {listed(other)} differs in --epochs; this run starts from epoch 1")

    def __enter__(self):
        self.lock = filelock.FileLock(self.folder / ".lock", timeout=LOCK_WAIT)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock.acquire()
        except filelock.Timeout:
            raise UserError(f"another process is training in {self.folder}")
        except OSError as error:                                        # a file in the way
            raise UserError(f"cannot write {self.folder}: {error.strerror}")
        if self.cfg.again:
            for name in ("result.json", "last.pt", "best.pt", "log.jsonl", "config.json"):
                (self.folder / name).unlink(missing_ok=True)
        if not (self.folder / "config.json").exists():
            write_json(self.folder / "config.json", self.config)
        return self

    def __exit__(self, kind, error, traceback):
        self.lock.release()
        if error is None:
            print(f"run {self.folder}")
        advice = (f"{self.folder} keeps its last whole epoch; the same command"
                  f"{' without --again' if self.cfg.again else ''} continues it")
        if kind is KeyboardInterrupt:
            print(f"\nstopped: {advice}", file=sys.stderr)
        if isinstance(error, OSError):                                  # a full disk, for one
            raise UserError(f"{error}; {advice}") from error
        if isinstance(error, torch.OutOfMemoryError):
            raise UserError(f"out of GPU memory with --batch {self.cfg.batch}: --precision bf16 "
                            "needs less; so does a smaller --batch, but that is no longer the "
                            "paper's") from error

    def restore(self, **states):
        """Load last.pt, if there is one, into states (anything with load_state_dict) -> how many
        epochs need no training: those of the checkpoint, all of a finished run."""
        self.states, path, self.result = states, self.folder / "last.pt", read_result(self.folder)
        if path.exists():
            saved = read_checkpoint(path)
            try:
                for name, state in states.items():
                    if saved[name] is not None:                         # dropped by finish
                        state.load_state_dict(saved[name])
                self.history, self.pretrained = saved["history"], saved["pretrained"]
            except (KeyError, RuntimeError, ValueError) as error:
                raise UserError(f"{path} does not fit this {self.paper}.py: {reason(error)}; "
                                f"delete {self.folder} to train anew")
            print(f"{self.folder} is finished; --again trains it anew" if self.result else
                  f"continuing {self.folder} after epoch {len(self.history)}")
        self.started, self.first = None, len(self.history)
        return self.cfg.epochs if self.result else self.first

    def best(self, metric):
        """The first row of the log with the highest value of a metric, None where none has it."""
        rows = [row for row in self.history if metric in row]
        return max(rows, key=lambda row: row[metric]) if rows else None

    def progress(self, loader):
        """The batches of an epoch behind a progress bar.  NonFiniteLoss: nan or infinite."""
        self.steps, self.images, start = [], 0, time.perf_counter()
        self.started = self.started or start
        with tqdm(loader, f"epoch {len(self.history) + 1}/{self.cfg.epochs}", unit="batch",
                  leave=False, disable=None) as bar:
            for images, labels in bar:
                yield images, labels
                self.images += len(labels)
                if len(self.steps) % 50 == 0:           # read back, for the bar
                    bar.set_postfix(loss=f"{self._means()['loss']:.3f}", refresh=False)
        self.means, self.seconds = self._means(), time.perf_counter() - start

    def record(self, **values):
        """Note what a step computed; it stays on the device until somebody reads it."""
        self.steps.append({name: value.detach().float() for name, value in values.items()})

    def _means(self):
        """{name: mean over the epoch's steps}.  NonFiniteLoss: a value that is not finite."""
        means = {}
        for name in self.steps[0]:
            values = torch.stack([step[name] for step in self.steps]).cpu()
            if len(bad := (~values.isfinite()).nonzero()):
                step, done = int(bad[0, 0]), len(self.history)
                terms = ", ".join(f"{k} {v:g}" for k, v in self.steps[step].items() if not v.ndim)
                raise NonFiniteLoss(f"the loss is not finite at epoch {done + 1}, step {step + 1}: "
                                    f"{terms}; {self.folder} has the {done} epochs before")
            means[name] = values.double().mean(0).tolist()
        return means

    def end_epoch(self, epoch, **row):
        """Log, checkpoint and print an epoch."""
        row = {"epoch": epoch + 1, **self.means, **row,
               "images/s": self.images / max(self.seconds, 1e-9), "seconds": self.seconds}
        self.history.append(row)
        with atomic(self.folder / "log.jsonl") as file:     # first: never shorter than last.pt's
            file.writelines(json.dumps(row) + "\n" for row in self.history)
        if self.best("val R@1") is row:
            self._save("best.pt", optimizer=None)
        self._save("last.pt")
        self._print(row)

    def _print(self, row):
        """A row of the table on the console, the names of its columns first where they changed."""
        losses = [name for name, value in self.steps[0].items() if not value.ndim]
        columns = [*losses, *self.ks]
        columns += [k for k in ("val R@1", "seen R@1") if any(k in old for old in self.history)]
        if columns != self.columns:
            self.columns = columns
            print("    epoch" + "".join(f" {name:>9}" for name in columns) + "  images/s     left")
        cells = {k: f"{row[k]:.4f}" if k in losses else f"{100 * row[k]:.1f}%" if k in row else "–"
                 for k in columns}                              # –: not evaluated in this epoch
        seconds = (time.perf_counter() - self.started) / (row["epoch"] - self.first)
        left = int(seconds * (self.cfg.epochs - row["epoch"]))
        print(f"{row['epoch']:>5}/{self.cfg.epochs:<3}"
              + "".join(f" {cell:>{max(9, len(k))}}" for k, cell in cells.items())
              + f"{row['images/s']:>10,.0f}{left // 60:>6}:{left % 60:02}", flush=True)

    def _save(self, name, **changes):
        """Write a checkpoint: the settings, the log and what restore got, but for changes."""
        saved = {"paper": self.paper, "config": self.config, "history": self.history,
                 "pretrained": self.pretrained, "classes": self.classes}
        saved |= {k: state.state_dict() for k, state in self.states.items()} | changes
        content = io.BytesIO()                  # torch.save to a full disk hides that it is full
        torch.save(saved, content)
        with atomic(self.folder / name, "wb") as file:
            file.write(content.getbuffer())

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
        self._save("last.pt", optimizer=None)                           # two thirds of the file
        write_json(self.folder / "result.json", result)                 # last: with it all is done
        self.result = read_result(self.folder)

    def final_table(self):
        """Print pretrained backbone, last epoch, best epoch on test."""
        before, last, best, chosen = (self.result.get(part) for part in (
            "pretrained backbone", "last epoch", "best on test", "best on held-out classes"))
        start = "untrained" if self.cfg.weights == "random" else "pretrained"
        rows = {f"{start} backbone": before, f"last epoch ({last['epoch']})": last}
        if chosen:
            rows[f"best.pt (epoch {chosen['epoch']}, chosen on held-out training classes)"] = chosen
        rows[f"best on test (epoch {best['epoch']}, chosen on the test set)"] = best
        print()
        show(rows, self.cfg.ks)
        if chosen and chosen["val R@1"] <= before["val R@1"]:
            print("by the held-out classes (val R@1) no epoch is better than not training at all")


def show(rows, ks):
    """Print {name: what eval.judge returns} in % as a table."""
    metrics = [f"R@{k}" for k in ks] + ["MAP@R", "NMI", "seen R@1", "val R@1"]
    metrics = [m for m in metrics if any(m in row for row in rows.values())]
    cells = {"": metrics} | {name: [f"{100 * row[m]:.1f}" if m in row else "–" for m in metrics]
                             for name, row in rows.items()}
    for name, row in cells.items():
        print(f"{name:<{max(map(len, rows))}}" + "".join(
            f"{cell:>{max(7, len(m) + 2)}}" for m, cell in zip(metrics, row)))
    for trap, effect in (("queries without a positive", "count as misses"),
                         ("queries with positives alone", "cannot miss"),
                         ("queries in the gallery", "find themselves")):
        if caught := max(row.get(trap, 0) for row in rows.values()):
            print(f"{trap}, which {effect}: {caught}")

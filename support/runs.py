"""The run folder: settings, log, checkpoint, result of one training; its resumption, its tables."""
import ast
import errno
import functools
import io
import json
import re
import sys
import time
from operator import itemgetter
from pathlib import Path

import filelock
import torch
from tqdm import tqdm

from support import machine
from support.command_line import RUNTIME_ONLY, plain
from support.files import (ROOT, NonFiniteLoss, UserError, atomic, digest, listed, load_torch, lock,
                           reason, write_json)

PAPERS = ("jrd", "mdr", "dml_da")
LOCK_WAIT = 8       # seconds: the loader's workers of a killed run hold its lock for up to five
NOT_COMPARED = {*RUNTIME_ONLY, "versions", "commit", "processor", "weights", "images", "dataset",
                "changed"}


# ---------------------------------------------------------------------------- what a run is
@functools.cache
def code_of(paper):
    """The code of a run: a digest of the syntax trees of its script and of what every training runs
    through, the same on every Python.  Comments and docstrings are not in it, nor are messages,
    texts with a blank, outside the script.  What command lines decide are settings."""
    script = ROOT / f"{paper}.py"
    files = [script, ROOT / "common.py", ROOT / "eval.py"]
    for name in ("backbones", "datasets", "files", "glyphs", "images", "layouts", "networks",
                 "photos", "ranks", "runs"):
        files.append(ROOT / "support" / f"{name}.py")

    def as_text(node, messages):
        """Newer Pythons have more fields; those that older code leaves empty are left out."""
        if isinstance(node, list):
            return f"[{' '.join(as_text(item, messages) for item in node)}]"
        if not isinstance(node, ast.AST):
            return ascii(node)              # what repr escapes depends on the Python
        parts, fields = [node], dict(ast.iter_fields(node))
        fields.pop("kind", None)                        # of a text: u""
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            if ast.get_docstring(node):
                fields["body"] = node.body[1:]
        if isinstance(node, ast.JoinedStr):             # Python 3.12 adds "" to f"{x:{width}}"
            parts = [part for part in node.values if getattr(part, "value", None) != ""]
            fields["values"] = parts
        for part in parts:
            if not messages and isinstance(part, ast.Constant) and " " in str(part.value):
                return "message"
        text = type(node).__name__
        for name, value in sorted(fields.items()):
            if value is not None and value != []:
                text += f" {name}={as_text(value, messages)}"
        return f"({text})"
    trees = [as_text(ast.parse(file.read_text(encoding="utf-8")), file == script) for file in files]
    return digest(*trees)[:12]


def run_folder(paper, cfg):
    """`<out>/<paper>-<dataset>-<what differs from the preset>[-<name>]-s<seed>`; not the path of a
    file of weights."""
    dataset = re.sub("[\ud800-\udfff]", "_", _dataset_name(cfg))        # bytes that are no text
    parts = [paper, dataset]
    for name, value in cfg.changed.items():
        if name != "weights" or value == "random":
            parts.append(name + plain(value, between="_"))
    if cfg.name:
        parts.append(cfg.name)
    return Path(cfg.out, "-".join([*parts, f"s{cfg.seed}"]))


def _dataset_name(cfg):
    return Path(cfg.dataset).resolve().name


def _but_epochs(folder):
    return re.sub(r"-epochs\d+", "", folder.name)


def differences(old, new):
    """{what: (in old, in new)} of what two configs both have and what differs: settings, "code",
    and "images of test" of a split.

    Where a run was computed does not count, and a weights file counts by its hash, not its path.
    Who does not know a run's code, images or weights leaves them out of its config.
    """
    old, new = _comparable(old), _comparable(new)
    differ = {}
    for what, value in new.items():
        if what in old and old[what] != value:
            differ[what] = old[what], value
    if "auto" in differ.get("precision", ()):           # whichever the other run has
        del differ["precision"]
    return differ


def _comparable(config):
    """A config as JSON has it, without what is not compared; its images by split."""
    compared = {}
    for key, value in json.loads(json.dumps(config)).items():
        if key not in NOT_COMPARED:
            compared[key] = value
    for split, value in (config.get("images") or {}).items():
        if isinstance(value, str):                      # old runs have digests of classes
            compared[f"images of {split}"] = value
    return compared


def why_other(folder, config):
    """Why a folder does not hold the run of a config, in words; "" if it does, or holds none."""
    old = read_config(folder)
    if old is None:
        return "without its config.json" if (folder / "last.pt").exists() else ""
    splits, settings, reasons = [], [], []
    for what, (there, now) in differences({"code": None} | old, config).items():
        if what.startswith("images of "):
            splits.append(what.removeprefix("images of "))
        elif what == "code":
            reasons.append(f"of other code: of {config['paper']}.py, common.py, eval.py or "
                           f"support/ (commit {old.get('commit')})")
        else:
            settings.append(f"{what} (there {there!r}, now {now!r})")
    if splits:
        reasons.append(f"on other images: names, sizes or contents of {', '.join(splits)} differ")
    if settings:
        reasons.append(f"with other settings: {', '.join(settings)}")
    return ", ".join(reasons)


# ---------------------------------------------------------------------------- its files
def read_checkpoint(path):
    """A last.pt -> its dict.  UserError unless one of the three scripts wrote it."""
    saved = load_torch(path)
    ours = isinstance(saved, dict) and saved.get("paper") in PAPERS
    if not ours or not isinstance(saved.get("config"), dict):
        raise UserError(f"{path} is not a checkpoint of {', '.join(PAPERS)}")
    return saved


def _read_json(path, what, *keys):
    """A JSON file of a run folder -> dict, None where there is none.  UserError if it is damaged or
    lacks one of the keys."""
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        values = None
    if not isinstance(values, dict) or not values.keys() >= {*keys}:
        raise UserError(f"{path} is not the {what} of a run: delete {path.parent} to train anew")
    return values


def read_config(folder):
    return _read_json(folder / "config.json", "settings")


def read_result(folder):
    return _read_json(folder / "result.json", "result", "last epoch", "best on test")


class Run:
    """One training, a context manager around it: its run_folder with config.json, log.jsonl (a
    line per epoch), last.pt (after every epoch), result.json, and with --val best.pt.  A killed run
    continues from last.pt.  UserError: the folder holds a run of other settings, images or code."""

    def __init__(self, paper, cfg, data, weights):
        self.cfg, self.paper, self.ks = cfg, paper, [f"R@{k}" for k in cfg.ks]
        self.classes = data.train.present()
        self.history, self.pretrained, self.result, self.columns = [], None, None, None
        self.started = None                             # when this process began to train
        self.folder = run_folder(paper, cfg)
        commit, self.no_commit = machine.commit()
        self.config = {
            "paper": paper, **vars(cfg), "weights_sha256": weights, "splits": data.counts(),
            "images": data.identity, "code": code_of(paper),
            "versions": machine.versions(), "commit": commit,
            "processor": machine.processor(torch.device(cfg.device))}
        if not cfg.again:
            try:
                why = why_other(self.folder, self.config)
            except OSError as error:
                raise self._no_folder(error)
            if why:
                raise UserError(f"{self.folder} holds a run {why}; --name LABEL puts this run "
                                "beside it, --again in its place")
        self._print_header(data, weights)

    def _no_folder(self, error):
        """A UserError for the OSError of a folder that cannot be read or made."""
        message = f"cannot write {self.folder}: {error.strerror}"
        if error.errno == errno.ENAMETOOLONG:
            message += (f": it is made of the dataset's name, {_dataset_name(self.cfg)}, of --name "
                        "and of each setting that is not the preset's; shorten the longest")
        return UserError(message)

    def _print_header(self, data, weights):
        cfg = self.cfg
        print(f"{self.paper} on {_dataset_name(cfg)} · {cfg.device} "
              f"({self.config['processor']}, {torch.get_num_threads()} threads) · torch "
              f"{torch.__version__}")
        shared = "none of them in train"
        if data.shared():
            shared = f"{data.shared()} of them in train (closed-set retrieval)"
        parts = {"train": data.train, "held out": data.val, "test": f"{data.test}, {shared}",
                 "gallery": data.gallery}
        print(" · ".join(f"{name} {part}" for name, part in parts.items() if part))
        print(f"backbone {cfg.backbone}, weights {weights[:12]}")
        settings = "the preset"
        if cfg.changed:
            settings += ", but " + ", ".join(f"{k} {plain(v)}" for k, v in cfg.changed.items())
        print(f"settings: {settings} · {cfg.epochs} epochs, batch {cfg.batch}, lr {cfg.lr:g}, "
              f"{cfg.precision}")
        if self.config["commit"] is None:
            print(f"note: the commit of this code is unknown: {self.no_commit}")
        others = [folder for folder in self.folder.parent.glob("*")
                  if _but_epochs(folder) == _but_epochs(self.folder)]
        if others and self.folder not in others:
            print(f"note: {listed(others)} differs in --epochs; this run starts from epoch 1")

    def __enter__(self):
        self.lock = lock(self.folder / ".lock", LOCK_WAIT)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            locked = self.lock.__enter__()
        except filelock.Timeout:
            raise UserError(f"another process is training in {self.folder}")
        except OSError as error:                                        # a file in the way
            raise self._no_folder(error)
        if not locked:
            print(f"note: {self.folder} is on a file system without locks, so nothing keeps a "
                  "second process from training in it at the same time")
        if self.cfg.again:
            for name in ("result.json", "last.pt", "best.pt", "log.jsonl", "config.json"):
                (self.folder / name).unlink(missing_ok=True)
        if not (self.folder / "config.json").exists():
            write_json(self.folder / "config.json", self.config)
        return self

    def __exit__(self, kind, error, traceback):
        self.lock.__exit__(None, None, None)
        if error is None:
            print(f"run {self.folder}")
        advice = f"{self.folder} has no whole epoch yet; the same command starts it anew"
        if self.history:
            again = " without --again" if self.cfg.again else ""
            advice = (f"{self.folder} keeps its last whole epoch; the same command{again} "
                      "continues it")
        if kind is KeyboardInterrupt:
            print(f"\nstopped: {advice}", file=sys.stderr)
        full = isinstance(error, OSError) and not isinstance(error, BrokenPipeError)    # the disk
        vanished = isinstance(error, UserError) and self.started        # photos, between batches
        if full or vanished:
            raise UserError(f"{reason(error)}; {advice}") from error
        if isinstance(error, torch.OutOfMemoryError):
            raise UserError(f"out of GPU memory with --batch {self.cfg.batch}: --precision bf16 "
                            "needs less; so does a smaller --batch, but that is no longer the "
                            "paper's") from error

    def restore(self, **states):
        """Load last.pt, if there is one, into states (anything with load_state_dict) -> how many
        epochs need no training: those of the checkpoint, all of a finished run."""
        self.states, self.result = states, read_result(self.folder)
        path = self.folder / "last.pt"
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
        self.epochs_restored = len(self.history)
        if self.result:
            print(f"{self.folder} is finished; --again trains it anew")
            return self.cfg.epochs
        if path.exists():
            print(f"continuing {self.folder} after epoch {self.epochs_restored}")
        return self.epochs_restored

    def best(self, metric):
        """The first row of the log with the highest value of a metric, None where none has it."""
        rows = [row for row in self.history if metric in row]
        return max(rows, key=itemgetter(metric), default=None)

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
            bad = (~values.isfinite()).nonzero()
            if len(bad):
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
            for old in self.history:
                file.write(json.dumps(old) + "\n")
        if self.best("val R@1") is row:
            self._save("best.pt", optimizer=None)
        self._save("last.pt")
        self._print(row)

    def _print(self, row):
        """A row of the table on the console, the names of its columns first where they changed."""
        losses = [name for name, value in self.steps[0].items() if not value.ndim]
        columns = [*losses, *self.ks]
        for name in ("val R@1", "seen R@1"):
            if any(name in old for old in self.history):
                columns.append(name)
        if columns != self.columns:
            self.columns = columns
            print("    epoch" + "".join(f" {name:>9}" for name in columns) + "  images/s     left")
        line = f"{row['epoch']:>5}/{self.cfg.epochs:<3}"
        for name in columns:
            cell = "–"                                  # not evaluated in this epoch
            if name in losses:
                cell = f"{row[name]:.4f}"
            elif name in row:
                cell = f"{100 * row[name]:.1f}%"
            line += f" {cell:>{max(9, len(name))}}"
        seconds = (time.perf_counter() - self.started) / (row["epoch"] - self.epochs_restored)
        left = int(seconds * (self.cfg.epochs - row["epoch"]))
        print(f"{line}{row['images/s']:>10,.0f}{left // 60:>6}:{left % 60:02}", flush=True)

    def _save(self, name, **changes):
        """Write a checkpoint: the settings, the log and what restore got, but for changes."""
        saved = {"paper": self.paper, "config": self.config, "classes": self.classes,
                 "history": self.history, "pretrained": self.pretrained}
        for key, state in self.states.items():
            saved[key] = state.state_dict()
        saved |= changes
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
        before, last = self.result["pretrained backbone"], self.result["last epoch"]
        best, chosen = self.result["best on test"], self.result.get("best on held-out classes")
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
    metrics = []
    for metric in [*(f"R@{k}" for k in ks), "MAP@R", "NMI", "seen R@1", "val R@1"]:
        if any(metric in row for row in rows.values()):
            metrics.append(metric)
    lines = {"": metrics}
    for name, row in rows.items():
        lines[name] = [f"{100 * row[m]:.1f}" if m in row else "–" for m in metrics]
    for name, cells in lines.items():
        line = f"{name:<{max(map(len, rows))}}"
        for metric, cell in zip(metrics, cells):
            line += f"{cell:>{max(7, len(metric) + 2)}}"
        print(line)
    for trap, effect in (("queries without a positive", "count as misses"),
                         ("queries with positives alone", "cannot miss"),
                         ("queries in the gallery", "find themselves")):
        caught = max(row.get(trap, 0) for row in rows.values())
        if caught:
            print(f"{trap}, which {effect}: {caught}")

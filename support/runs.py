"""The run folder: settings, log, checkpoint, result of one training; its resumption, its tables."""
import contextlib
import json
import sys
import time
from operator import itemgetter

import torch
from tqdm import tqdm

from support import machine
from support.command_line import multiplies_bfloat16
from support.files import (NonFiniteLoss, UserError, atomic, load_torch, lock, reason, save_torch,
                           write_json)
from support.identity import (PAPERS, code_of, computed_by, dataset_name, of_other_length,
                              read_json, run_folder, why_other)

LOCK_WAIT = 8       # seconds: workers of a killed run hold its lock for up to 5 (test_libraries)


def read_checkpoint(path):
    """A last.pt -> its dict.  UserError unless one of the three scripts wrote it."""
    saved = load_torch(path)
    if not isinstance(saved, dict) or saved.get("paper") not in PAPERS:
        raise UserError(f"{path} is not a checkpoint of {', '.join(PAPERS)}")
    return saved


def lay_out_as_parameters(state):
    """Adam's moments in the memory layout of their parameters, else its kernel on a GPU refuses
    them: in float32 a CPU's checkpoint has another (support.backbones.to_device)."""
    for group in getattr(state, "param_groups", ()):
        for parameter in group["params"]:
            moments = state.state.get(parameter, {})
            for name, moment in moments.items():
                same_shape = getattr(moment, "shape", None) == parameter.shape
                if same_shape and moment.stride() != parameter.stride():
                    moments[name] = torch.empty_like(parameter).copy_(moment)


# What belongs to the run in a folder; the pictures are of its network, by `python -m report`.
FILES = ("result.json", "last.pt", "best.pt", "log.jsonl", "config.json", "sheet.png", "pairs.png",
         "last.searched.npz", "best.searched.npz")
# Epochs that are reported beside the last one, and by what they were chosen.
CHOSEN = {"best on held-out classes": "val R@1", "best on test": "R@1"}


class Run:
    """One training, a context manager around it: its run_folder with config.json, log.jsonl (a
    line per epoch), last.pt (after every epoch), result.json, and with --val best.pt.  A killed run
    continues from last.pt.  loader: an epoch's.  UserError: the folder holds a run of other
    settings, images or code."""

    def __init__(self, paper, cfg, data, weights, loader):
        self.cfg, self.paper, self.ks = cfg, paper, [f"R@{k}" for k in cfg.ks]
        self.classes = data.train.present()
        self.history, self.pretrained, self.result, self.columns = [], None, None, None
        self.started = None         # when this process began to train, and after how many epochs
        self.replaces = False       # whether --again will put it in another's place
        self.continued = {}         # what else than before computes it, for its next epoch's row
        self.folder = run_folder(paper, cfg)
        self.config = {
            "paper": paper, **vars(cfg), "weights_sha256": weights, "splits": data.counts(),
            "images": data.identity, "code": code_of(paper), "versions": machine.versions(),
            "commit": machine.commit(), "processor": machine.processor(cfg.device),
            "threads": torch.get_num_threads()}
        self._refuse_other()
        self._print_header(data, [len(batch) for batch in loader.batch_sampler])

    def _refuse_other(self):
        """UserError: the folder holds another run, which --again is not asked to replace."""
        if self.cfg.again:                              # a damaged one may go, too
            return
        why = why_other(self.folder, self.config)
        if why:
            raise UserError(f"{self.folder} holds a run {why}; --name LABEL puts this run beside "
                            "it, --again in its place")

    def _print_header(self, data, batches):
        """What is trained on what, with which settings and into which folder; notes on what a
        person may not expect.  batches: the sizes of an epoch's"""
        steps = len(batches)
        cfg, sha = self.cfg, self.config["weights_sha256"]
        print(f"{self.paper} on {dataset_name(cfg.dataset)} · {cfg.device} "
              f"({self.config['processor']}, {torch.get_num_threads()} threads) · torch "
              f"{torch.__version__}")
        for split, (images, classes) in data.counts().items():
            print(f"{split} {images:,} images of {classes:,} classes", end=" · ")
        print(f"{data.shared() or 'none'} of the test classes in train")
        passes = ""
        if hasattr(cfg, "iterations"):                  # else an epoch is a pass
            total = cfg.epochs * sum(batches) / len(data.train)
            passes = f" (about {total:.3g} passes in all)"
        print(f"backbone {cfg.backbone}, weights {sha[:12]} · {cfg.epochs} epochs, {steps} "
              f"batches per epoch, batch {cfg.batch}{passes}, lr {cfg.lr:g}, {cfg.precision}")
        print(f"into {self.folder}, named by what differs from the preset")
        if cfg.precision == "bf16" and not multiplies_bfloat16(cfg.device.partition(":")[0]):
            print("note: this processor has no bfloat16: --precision fp32 is several times faster")
        if data.val is not None and len(data.val.classes) < 5:
            print(f"note: R@1 among {len(data.val.classes)} held-out classes hardly tells one "
                  "epoch from another")
        if cfg.epochs * steps < 100:
            more = "raise --iterations" if hasattr(cfg, "iterations") else "lower --batch"
            print(f"note: few steps to learn from, {cfg.epochs * steps} in all ({steps} per "
                  f"epoch): raise --epochs, or {more}")
        if not (self.folder / "config.json").exists():
            other = of_other_length(self.folder, self.config)
            if other:
                epochs, place = other
                print("note: another length is another run, which starts anew; the one of "
                      f"{epochs} epochs is {place}")
        if self.config["commit"] is None:
            print("note: the commit of this code is unknown: no git, or no checkout of git")

    def __enter__(self):
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot write --out {self.cfg.out}: {reason(error)}")
        self.lock = lock(self.folder / ".lock", LOCK_WAIT)
        try:
            self._begin()
        except BaseException:
            self.lock.__exit__(None, None, None)
            raise
        return self

    def _begin(self):
        """Make the folder that of this run, under its lock."""
        self._refuse_other()                            # who began since, and ended
        if not isinstance(self.lock, contextlib.nullcontext):   # else others may be writing here
            for part in self.folder.glob(".*.part"):    # what a killed process was writing
                part.unlink(missing_ok=True)
        self.replaces = self.cfg.again and any((self.folder / name).exists() for name in FILES)
        path = self.folder / "config.json"
        if not self.replaces and not path.exists():
            write_json(path, self.config)

    def _replace(self):
        """Delete the run in whose place --again puts this one, whose first epoch has ended."""
        for name in FILES:
            (self.folder / name).unlink(missing_ok=True)
        write_json(self.folder / "config.json", self.config)
        self.replaces = False

    def __exit__(self, kind, error, traceback):
        self.lock.__exit__(None, None, None)
        advice = (f"{self.folder} keeps its whole epochs; the same command (less --again) "
                  "continues it")
        if self.replaces:
            advice = f"{self.folder} still has the run that was there before"
        if error is None:
            print(f"run {self.folder}")
        elif kind is KeyboardInterrupt:
            print(f"\nstopped: {advice}", file=sys.stderr)
        elif kind is UserError and self.started:        # a photo vanished, the disk is full
            raise UserError(f"{reason(error)}; {advice}") from error
        elif self.replaces:
            print(f"note: {advice}", file=sys.stderr)

    def restore(self, **states):
        """Load last.pt, if there is one, into states (anything with load_state_dict) -> how many
        epochs need no training: those of the checkpoint, all of a finished run.  UserError: it is
        another script's, or of other shapes."""
        self.states = states
        if not self.replaces:
            self.result = read_json(self.folder / "result.json")
        if self.result:
            print(f"{self.folder} is finished; --again trains it anew")
            return self.cfg.epochs
        path = self.folder / "last.pt"
        if path.exists() and not self.replaces:
            advice = "--again trains the run anew"
            try:
                saved = read_checkpoint(path)
            except UserError as error:
                if "cannot read" in str(error):         # now, which says nothing of the file
                    raise
                raise UserError(f"{reason(error)}; {advice}")
            if saved["paper"] != self.paper:
                raise UserError(f"{path} is a checkpoint of {saved['paper']}.py, not of "
                                f"{self.paper}.py; {advice}")
            try:
                for name, state in states.items():
                    if saved[name]:                                     # None: dropped by finish
                        for group in saved[name].get("param_groups", ()):
                            group["fused"] = self.cfg.device != "cpu"   # this device's kernel
                        state.load_state_dict(saved[name])
                        lay_out_as_parameters(state)            # ... and that kernel's layout
                self.history, self.pretrained = saved["history"], saved["pretrained"]
            except (KeyError, RuntimeError, TypeError, ValueError) as error:
                raise UserError(f"{path} is not of this run ({type(error).__name__}: "
                                f"{reason(error)}); {advice}")
            print(f"continuing {self.folder} after epoch {len(self.history)}")
            self._note_what_computes_it_now(saved["config"])
            self._save_best()
        self.started = time.perf_counter(), len(self.history)
        return len(self.history)

    def _note_what_computes_it_now(self, config):
        """Say what else than by the config of its last epoch computes it from here on."""
        before, told = computed_by(config), []
        for what, now in computed_by(self.config).items():
            if before.get(what, now) != now:
                self.continued[what] = now
                told.append(f"{what} {now} (before: {before[what]})")
        if told:
            print(f"note: it goes on with {', '.join(told)}; log.jsonl says so at its next epoch")

    def best(self, metric):
        """The first row of the log with the highest value of a metric, None where none has it."""
        rows = [row for row in self.history if metric in row]
        return max(rows, key=itemgetter(metric), default=None)

    def progress(self, loader):
        """The batches of an epoch behind a progress bar, then the means of what its steps recorded.
        NonFiniteLoss: one is nan or infinite."""
        self.epoch = f"epoch {len(self.history) + 1}/{self.cfg.epochs}"
        self.steps, self.means, drawn, start = [], {}, 0, time.perf_counter()
        self.looked, self.look_at = 0, start + 1        # steps whose loss was seen, when next
        for images, labels in tqdm(loader, self.epoch, unit="batch", leave=False, disable=None):
            yield images, labels
            drawn += len(labels)
        for name in self.steps[0]:
            self.means[name] = self._values(name).double().mean(0).tolist()
        seconds = time.perf_counter() - start           # now a GPU has ended the last step, too
        self.speed = {"images/s": drawn / seconds, "seconds": seconds}

    def record(self, **values):
        """Note what a step computed; it stays on the device, because whoever reads it waits for it.
        NonFiniteLoss: the loss is nan or infinite, which a CPU's steps notice at once, a GPU's once
        per second."""
        self.steps.append({name: value.detach() for name, value in values.items()})
        now = time.perf_counter()
        if self.cfg.device == "cpu" or now > self.look_at:
            self._values("loss", self.looked)
            self.looked, self.look_at = len(self.steps), now + 1

    def _values(self, name, first=0):
        """What the epoch's steps recorded under a name -> (steps from `first` on, ...) on the host.
        NonFiniteLoss: some are nan or infinite."""
        values = torch.stack([step[name] for step in self.steps[first:]]).cpu()
        finite = values.reshape(len(values), -1).isfinite().all(1)
        if not finite.all():
            step = first + int(finite.int().argmin())
            terms = [f"{term} {value:.3g}" for term, value in self.steps[step].items()
                     if value.dim() == 0]
            kept = "no epoch has ended yet"
            if self.history:
                kept = f"{self.folder / 'last.pt'} has epoch {len(self.history)}"
            raise NonFiniteLoss(f"the {name} of {self.epoch} is not finite; the first such step is "
                                f"{step + 1} ({', '.join(terms)}); {kept}")
        return values

    def end_epoch(self, epoch, **metrics):
        """Log, checkpoint and print an epoch."""
        if self.replaces:
            self._replace()
        row = {"epoch": epoch + 1, **self.means, **metrics, **self.speed}
        if self.continued:
            row["continued with"], self.continued = self.continued, {}
        self.history.append(row)
        with atomic(self.folder / "log.jsonl") as file:     # first: never shorter than last.pt's
            for old in self.history:
                file.write(json.dumps(old) + "\n")
        self._save("last.pt")
        self._save_best()
        self._print(row)

    def _save_best(self):
        """best.pt, if the last epoch is the best.  It comes after last.pt: restore calls this too,
        and makes up for a best.pt that a killed process did not come to."""
        if self.history and self.best("val R@1") is self.history[-1]:
            self._save("best.pt", optimizer=None)

    def _print(self, row):
        """A row of the table on the console, the names of its columns first where they changed."""
        cells = {}
        for name, mean in self.means.items():
            if isinstance(mean, float):
                cells[name] = f"{mean:.3f}"
        for name in [*self.ks, "val R@1", "seen R@1"]:
            if self.best(name):                         # evaluated, in this epoch or before
                cells[name] = percent(row, name)
        epoch, epochs, (start, done) = row["epoch"], self.cfg.epochs, self.started
        seconds = (time.perf_counter() - start) / (epoch - done) * (epochs - epoch)
        cells |= {"images/s": f"{row['images/s']:,.0f}", "left": tqdm.format_interval(seconds)}
        if cells.keys() != self.columns:
            self.columns = cells.keys()
            print_row("    epoch", cells, cells)
        print_row(f"{epoch:>5}/{epochs:<3}", cells, cells.values())

    def _save(self, name, **changes):
        """Write a checkpoint: the settings, the log and what restore got, but for changes."""
        saved = {"paper": self.paper, "config": self.config, "classes": self.classes,
                 "history": self.history, "pretrained": self.pretrained}
        for key, state in self.states.items():
            saved[key] = state.state_dict()
        save_torch(self.folder / name, saved | changes)

    def finish(self, last):
        """Write result.json: last epoch, the chosen ones, labelled as such, pretrained backbone."""
        self.result = {"last epoch": {"epoch": len(self.history), **last},
                       "pretrained backbone": self.pretrained,
                       "seconds": sum(row["seconds"] for row in self.history)}
        for name, metric in CHOSEN.items():
            best = self.best(metric)
            if best:
                self.result[name] = {key: best[key] for key in ("epoch", metric, *self.ks)}
        self._save("last.pt", optimizer=None)                           # two thirds of the file
        write_json(self.folder / "result.json", self.result)            # last: with it all is done

    def final_table(self):
        """Print pretrained backbone, last epoch and the epochs that were chosen, and what must be
        known to read them."""
        start = "untrained" if self.cfg.weights == "random" else "pretrained"
        rows = {f"{start} backbone": self.result["pretrained backbone"]}
        for name in ("last epoch", *CHOSEN):
            if name in self.result:
                row = self.result[name]
                rows[f"{name} ({row['epoch']})"] = row
        print()
        show(rows, self.cfg.ks)
        print("best on test is chosen by the test images: never report it")
        chosen = next(name for name in CHOSEN if name in self.result)
        metric = CHOSEN[chosen]                         # val R@1 where there is one
        if self.result[chosen][metric] <= self.result["pretrained backbone"][metric] < 1:
            print(f"no epoch has a higher {metric} than the {start} backbone: search for another "
                  "--lr with --val 0.2 (docs/running.md)")
        hits = self.result["last epoch"].get("hits", {})                # older results have none
        queries = sum(map(len, hits.values()))
        if 0 < queries < 1000:
            print(f"{queries} queries are few: R@1 has a standard error of up to "
                  f"{50 / queries ** 0.5:.2g} points")


def show(rows, ks):
    """Print {name: what eval.judge returns} in % as a table."""
    measured, metrics, width = {}, [], max(map(len, rows))
    for row in rows.values():
        measured |= row
    names = ["MAP@R", "NMI", "NMI by start", "seen R@1", "val R@1"]
    for metric in [*(f"R@{k}" for k in ks), *names]:
        if metric in measured:
            metrics.append(metric)
    heads = list(metrics)
    if "NMI by start" in measured:
        starts = len(measured["NMI by start"])
        heads[metrics.index("NMI by start")] = f"NMI of {starts} starts"
    print_row(" " * width, heads, heads)
    for name, row in rows.items():
        print_row(f"{name:<{width}}", heads, [percent(row, metric) for metric in metrics])
    for trap, effect in (("queries without a positive", "count as misses"),
                         ("training images without a positive", "count as misses of seen R@1"),
                         ("queries with positives alone", "cannot miss"),
                         ("queries in the gallery", "find themselves")):
        if measured.get(trap):
            print(f"{trap}, which {effect}: {measured[trap]}")


def percent(row, metric):
    """A share in %, of several their mean and [lowest, highest]"""
    if metric not in row:
        return "–"
    if isinstance(row[metric], list):
        values = 100 * torch.tensor(row[metric])
        return f"{values.mean():.1f} [{values.min():.1f}, {values.max():.1f}]"
    return f"{100 * row[metric]:.1f}"


def print_row(name, columns, cells):
    for column, cell in zip(columns, cells):
        name += f" {cell:>{max(6, len(column) + 1)}}"
    print(name, flush=True)

"""The flags that every script has, how settings come from them, and how a script ends."""
import argparse
import contextlib
import math
import os
import re
import shutil
import signal
import sys
import threading
from pathlib import Path

import torch

from support import machine
from support.files import NonFiniteLoss, UserError, reason

DATASETS = {"cub", "cub128", "cars", "sop", "inshop", "glyphs"}     # any other is a folder


class Parser(argparse.ArgumentParser):
    """argparse with errors of one line, and --help that has the options first, then `page`."""

    def __init__(self, prog, page):
        super().__init__(prog=prog, epilog=page, allow_abbrev=False,
                         formatter_class=argparse.RawDescriptionHelpFormatter)
        self.add_argument(
            "--version", action="version", help="print the commit, torch's version and Python's",
            version=f"{prog} at commit {machine.commit()}, torch {torch.__version__}, "
                    f"Python {sys.version.split()[0]}")
        self._negative_number_matcher = re.compile(r"-[\d.]")   # -1e-1 and -3,0,3 are no flags

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}\n")


def plain(value):
    """A setting as people write it: 0.1; -3 0 3; en 1, gor 10"""
    if isinstance(value, dict):
        return ", ".join(f"{name} {plain(one)}" for name, one in value.items())
    if isinstance(value, (list, tuple)):
        return " ".join(map(plain, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def number(kind, low=-math.inf, high=math.inf, above=-math.inf, below=math.inf):
    """An argparse type: a finite int or float, low <= value <= high and above < value < below."""
    wanted = "a whole number" if kind is int else "a number"
    limits = []
    for sign, limit in ((">=", low), (">", above), ("<=", high), ("<", below)):
        if math.isfinite(limit):
            limits.append(f"{sign} {limit}")
    wanted = f"{wanted} {' and '.join(limits)}".strip()

    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not (low <= value <= high and above < value < below):
            raise argparse.ArgumentTypeError(f"'{text}' must be {wanted}")
        return value
    return parse


def label(text):
    """An argparse type: what may stand in a folder's name on any system"""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}", text):
        raise argparse.ArgumentTypeError(f"'{text}' must be letters, digits, '.', '_' and '-'")
    return text


def path(text):
    """An argparse type: a file or a folder; ~ is the user's, also in --out=~/runs"""
    return os.path.expanduser(text)


def output(*suffixes):
    """An argparse type: a file that can be written, so far as can be seen before the work."""
    def parse(text):
        text = path(text)
        if not text.lower().endswith(suffixes) or not Path(text).parent.is_dir():
            raise argparse.ArgumentTypeError(f"'{text}' must end in {' or '.join(suffixes)} and be "
                                             "in a folder that exists")
        return text
    parse.metavar = "FILE"
    return parse


def data_root():
    """Where the datasets are unless --data-root says otherwise."""
    return path(os.environ.get("DML_DATA", "data"))


# One row per flag: default, kind, help (read_flags).
# Where and how a run is computed: not part of what it is.
RUNTIME_ONLY = {
    "again": (False, bool, "train anew in place of the run that the folder holds"),
    "data_root": (None, "DIR", "folder that holds the datasets (default: $DML_DATA, else ./data)"),
    "out": ("runs", "DIR", "folder that holds the runs"),
    "device": ("auto", "DEVICE", "auto, cpu, cuda, cuda:1, ..."),
    "workers": (None, number(int, 0), "processes that load images (default: one per core, at most "
                "16; none for glyphs, nor to evaluate cached images)"),
    "no_cache": (False, bool, "decode and resize the images anew in every epoch: the same "
                 "tensors, slower")}
# The flags of every script.
SHARED = {
    "name": (None, label, "of an experiment of your own, put into the run folder's name"),
    "val": (None, number(float, above=0, below=1), "share of the training classes, the last by "
            "name, that are held out: R@1 on them picks best.pt (the papers have none)"),
    "weights": (None, "FILE", "pretrained weights of the backbone, or 'random' (default: the "
                "published file, checked by SHA-256)"),
    "resize": (256, number(int, 1), "what images (JRD: test images) are resized to, of which the "
               "network sees a crop; not with small, which sees 32 × 32 whatever the dataset"),
    "size": (224, number(int, 1), "side of that crop, the network's input; not with small"),
    "eval_every": (1, number(int, 1), "epochs between evaluations"),
    "precision": ("tf32", ("auto", "fp32", "tf32", "bf16"), "of the backbone: tf32 is float32 but "
                  "for a GPU's convolutions, as PyTorch has them; auto is bf16 where the processor "
                  "has it, else fp32; losses and distances are in float32 always"),
    "seed": (0, number(int, 0, 2 ** 31), "")} | RUNTIME_ONLY


def flag_of(name):
    """The option of a setting: --lambda of lambda_, --eval-every of eval_every"""
    return "--" + name.rstrip("_").replace("_", "-")


def read_flags(parser, argv, rows):
    """Add the flags of rows, {setting: (default, kind, help)}, and parse them -> those that were
    given, and all with their defaults.

    kind: bool for a switch, a tuple of choices, a text in capitals for any text or a path, or an
    argparse type; a setting without a kind has no flag.  Of a list as default it takes several, or
    as many as the text has words.
    """
    for name, (default, kind, text) in rows.items():
        if not kind:
            continue
        if default or default == 0 and kind is not bool:
            text = f"{text} (default {plain(default)})".strip()
        options = {"dest": name, "default": argparse.SUPPRESS, "help": text}
        if kind is bool:
            options["action"] = "store_true"
        elif isinstance(kind, tuple):
            options["choices"] = kind
        elif isinstance(kind, str):
            options |= {"type": path, "metavar": kind}
        else:
            options |= {"type": kind, "metavar": getattr(kind, "metavar", "VALUE")}
        if isinstance(default, list):
            options["nargs"] = "+"
            if " " in options["metavar"]:
                options["metavar"] = tuple(kind.split())
                options["nargs"] = len(options["metavar"])
        parser.add_argument(flag_of(name), **options)
    flags = parser.parse_args(argv)
    usual = {name: row[0] for name, row in rows.items()}
    return flags, argparse.Namespace(**usual | vars(flags))


def settings(parser, argv, rows, presets):
    """Parse the flags of rows and of SHARED; a flag beats the dataset's preset, that the default ->
    the flags that were given, and all settings, with `changed`: {setting: value} of the flags that
    change what a run is.  --help has the defaults of the dataset that is asked for."""
    asked = asked_dataset(argv, rows["dataset"][0])
    preset, rows_of_asked = presets.get(asked, presets["folder"]), {}
    for name, (default, kind, text) in (rows | SHARED).items():
        rows_of_asked[name] = preset.get(name, default), kind, text
    parser.epilog += (f"\n\nThe defaults above are those of --dataset {asked}; "
                      "--dataset NAME --help has\nthose of NAME.  By dataset; an empty cell is as "
                      "cub's, the papers' base:\n\n"
                      f"{table_of_presets(rows | SHARED, presets)}")
    flags, cfg = read_flags(parser, argv, rows_of_asked)
    cfg.data_root = cfg.data_root or data_root()
    cfg.dataset_path = None
    if cfg.dataset not in DATASETS and Path(cfg.dataset).is_dir():
        cfg.dataset_path = str(Path(cfg.dataset).absolute())    # its reader may be elsewhere
    refuse_idle(parser, flags, [            # small sees 32 × 32, whatever the dataset
        ("with --backbone small", cfg.backbone == "small", "resize size")])
    if cfg.size > cfg.resize:
        raise UserError(f"--size {cfg.size} is larger than --resize {cfg.resize}")
    cfg.changed = {}
    for name in SHARED | rows:              # in this order they name the run's folder
        value, (usual, _, _) = getattr(cfg, name), rows_of_asked[name]
        if value != usual and name not in (*RUNTIME_ONLY, "seed", "dataset", "name"):
            cfg.changed[name.rstrip("_")] = value
    return flags, cfg


def asked_dataset(argv, usual):
    """What --dataset says, before the other flags are read: they have its defaults."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    first.add_argument("--dataset", type=path, default=usual)
    try:
        return first.parse_known_args(argv)[0].dataset
    except argparse.ArgumentError:          # no value, as the whole parser will say
        return usual


def table_of_presets(rows, presets):
    """For --help: of each option in which the presets differ, the first one's value, and those of
    the others where they have another."""
    lines = [["", *presets]]
    for name, (default, kind, _) in rows.items():
        first, *others = [preset.get(name, default) for preset in presets.values()]
        if kind and any(value != first for value in others):
            line = [flag_of(name), plain(first)]
            for value in others:
                text = "by size" if value is None else plain(value)
                line.append("" if value == first else text)
            lines.append(line)
    widths = [max(map(len, column)) for column in zip(*lines)]
    texts = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return "\n".join(texts)


def refuse_idle(parser, flags, rules):
    """No flag that does nothing.  rules: [(when, whether that is so, flags that are idle then)]"""
    for when, true, names in rules:
        for name in names.split():
            if true and name in flags:
                parser.error(f"{flag_of(name)} does nothing {when}")


STARVED = (r"MemoryError|DataLoader worker \(pid|shared memory|</torch_|can't allocate memory|"
           "out of memory|ALLOC_FAILED|ALLOCATION_FAILED|CUBLAS_STATUS_NOT_INITIALIZED")


def main(function, parse_args):
    """Run a script; what a user or a machine can cause ends in one line on stderr and a status."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):              # a notebook's has not
            stream.reconfigure(errors="replace")        # a console that has no λ shows a ?
    try:
        try:
            with _every_interrupt():
                function(parse_args())
        finally:
            if sys.stdout:                              # None if it was closed: python ... >&-
                sys.stdout.flush()
    except BrokenPipeError:                             # nobody reads on: python ... | head
        _end_by(getattr(signal, "SIGPIPE", signal.SIGTERM))         # Windows has no SIGPIPE
    except (UserError, OSError) as error:
        fail(reason(error))
    except NonFiniteLoss as error:
        fail(reason(error), 1)
    except (MemoryError, RuntimeError) as error:
        if not re.search(STARVED, f"{type(error).__name__} {error}"):
            raise
        fail(f"out of memory or of /dev/shm ({reason(error)}): a training needs less with "
             "--workers 0, on a GPU with --precision bf16 or --no-cache, and with a smaller "
             "--batch, which is no longer the paper's; the same command (less --again) continues a "
             "run")
    except KeyboardInterrupt:
        if hasattr(sys, "ps1"):                         # a notebook, which lives on
            raise
        _end_by(signal.SIGINT)                          # a calling shell script stops too


@contextlib.contextmanager
def _every_interrupt():
    """Raise Ctrl-C once more where Python drops it: in a destructor, as tqdm's of a bar."""
    before, timers = sys.unraisablehook, []

    def again():
        if hasattr(signal, "pthread_kill"):             # wakes the main thread, too
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        else:
            signal.raise_signal(signal.SIGINT)

    def hook(dropped):
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            return before(dropped)
        timers.append(threading.Timer(0.05, again))     # the destructor has not ended yet
        timers[-1].daemon = True
        timers[-1].start()
    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
        late = [timer for timer in timers if timer.is_alive()]
        for timer in late:
            timer.cancel()
    if late:
        raise KeyboardInterrupt


def _end_by(number):
    """End as by a signal that nobody handles."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def fail(message, status=2):
    """End with one line on stderr; it begins with the script's name."""
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    sys.exit(status)


def device(cfg):
    """The torch.device that --device names; auto is the GPU where there is one.  UserError: no such
    device, or one that is neither a CPU nor CUDA's, because nothing here was ever run on it."""
    name = str(cfg.device)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
        if name == "cpu" and shutil.which("nvidia-smi") and not hidden:
            print(f"note: nvidia-smi is here, but torch {torch.__version__} finds no GPU: install "
                  "a torch for the CUDA version that nvidia-smi shows")
    here = {"cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))}
    if re.fullmatch("(cpu|cuda)(:[0-9]+)?", name):      # torch warns at others, fails in many ways
        try:
            return torch.ones(1, device=name).device    # runs a kernel: not each GPU is supported
        except (RuntimeError, AssertionError) as error:
            if re.search(STARVED, str(error)):          # here, but full
                raise
            if "no kernel image" in str(error):
                raise UserError(f"this torch, {torch.__version__}, does not support the GPU of "
                                f"--device {name}: install one that was built for another "
                                "CUDA (for an old GPU an older, for a new one a newer), or use "
                                "--device cpu")
            if name in (*here, "cuda") and len(here) > 1:           # here, but another process's
                raise UserError(f"the GPU of --device {name} cannot be used: {reason(error)}; use "
                                "another, or --device cpu")
    use = f"use --device {' or '.join(sorted(here - {name}))}"
    if "," in name:
        raise UserError(f"--device {name}: a run uses one GPU, but several runs can go on side by "
                        f"side (docs/running.md, Many runs): {use}")
    if name.partition(":")[0] in ("cpu", "cuda"):
        raise UserError(f"--device {name} is not here: {use}")
    raise UserError(f"--device {name} is not supported, because nothing here was ever run on such "
                    f"a device: {use}")


def settle(cfg):
    """Resolve --device and --precision, once per run -> the torch.device.

    Afterwards cfg.device is "cpu", "cuda:0", ..., and cfg.precision fp32, tf32 or bf16.  Precision
    auto is bf16 where the hardware multiplies bfloat16 (a GPU since Ampere, a CPU with AVX-512
    BF16), else fp32, because emulation is slower: 5.8 times for ResNet-18 on an AMD EPYC (torch
    2.14.1).
    """
    here = device(cfg)
    cfg.device = str(here)
    if here.type == "cuda":
        torch.cuda.set_device(here)                     # the one that is asked what it can do
    if cfg.precision == "auto":
        cfg.precision = "bf16" if multiplies_bfloat16(here.type) else "fp32"
    return here


def multiplies_bfloat16(kind):
    """Whether the hardware does, a "cuda" or a "cpu"; else torch emulates it."""
    if kind == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported()


def cores():
    """How many cores this process may use: a job's share of a machine, where there are shares, and
    of that DML_CORES at most, where `run_all.sh --jobs` runs several."""
    here = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        here = len(os.sched_getaffinity(0))
    share = os.environ.get("DML_CORES", "")
    return min(here, int(share)) if re.fullmatch("[1-9][0-9]*", share) else here

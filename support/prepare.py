"""`common.py prepare`: weights and caches ahead of a job array, whose tasks would all at once
download and build them, perhaps on machines that have no network."""
import contextlib
import functools
import re
import shlex
import sys
from pathlib import Path

from support.datasets import load_dataset
from support.files import UserError
from support.layouts import COUNTS, SMALLER, read_dataset
from support.runs import PAPERS


def commands_of(target, papers, root):
    """What is to be made ready -> [(paper, arguments of its script)]

    target: a file of commands, one a line, as `run_all.sh --list` prints them; or a dataset under
    root, which the papers see by their presets.
    UserError: no such dataset, a line that is no command of a paper's script.
    """
    path = Path(target)
    if not path.is_file():
        if target not in ("glyphs", *COUNTS, *SMALLER):
            read_dataset(target, root)                          # says what is wrong with a folder
        return [(paper, ["--dataset", target]) for paper in papers]
    found = []
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
        command = re.search(rf"\b({'|'.join(PAPERS)})\.py\b(.*)", line)
        words = None
        with contextlib.suppress(ValueError):                   # of an open quotation mark
            words = command and shlex.split(command[2])
        if words is None:
            raise UserError(f"{path}, line {number}: no command of jrd.py, mdr.py or dml_da.py")
        if command[1] in papers:
            found.append((command[1], words))
    if not found:
        raise UserError(f"{path} has no commands of {', '.join(f'{p}.py' for p in papers)}")
    return found


def get_ready(runs, load_weights):
    """Fetch the weights and build the caches that runs need, each once; what cannot be had is a
    line on stderr, and status 2 at the end.

    runs: [(module of the paper's script, settings)], load_weights: common's
    """
    steps, faults = {}, []
    for script, cfg in runs:
        steps.setdefault((cfg.backbone, cfg.weights), functools.partial(
            fetch, script, cfg, load_weights))
    for script, cfg in runs:
        if not cfg.no_cache:
            steps.setdefault((cfg.dataset, cfg.data_root, repr(script.transforms(cfg))),
                             functools.partial(build, script, cfg))
    for step in steps.values():
        try:
            step()
        except (UserError, OSError) as error:
            if str(error) not in faults:                        # a dataset that is missing: once
                print(f"common.py: {error}", file=sys.stderr)
            faults.append(str(error))
    if faults:
        sys.exit(2)


def fetch(script, cfg, load_weights):
    """The weights of a run's backbone, tried on it."""
    found = load_weights(script.Network(cfg, classes=2).backbone, cfg.backbone, cfg.weights)
    print(f"ready: weights of {cfg.backbone}, {found[:12]}", flush=True)


def build(script, cfg):
    """The caches of a run's dataset."""
    train, _, test = script.transforms(cfg)
    data = load_dataset(cfg.dataset, cfg.data_root, train, test)
    print(f"ready: {data.name} as {Path(script.__file__).name} sees it, {data.train} to train, "
          f"{data.test} to test", flush=True)

"""What runs measured, and the pivot that every table of several runs reads.

A run's figures are {part: {metric: value}}, in the units in which papers print them.  A part is
"last epoch", "best on test" or "pretrained backbone".
"""
import contextlib
import functools
import io
import json
import lzma
import re
import tarfile
import tempfile
from collections import defaultdict
from pathlib import Path

from support.files import UserError
from support.identity import differences, read_json

PERCENT = re.compile(r"(seen |val )?R@\d+(, l2-normalized)?|NMI(, (mean|range) of starts)?|MAP@R")
STARTS = "NMI, mean of starts", "NMI, range of starts"      # of k-means; older runs have one start
INTERVAL = re.compile("R@|lambda|d_H|H-div")    # in result.json [mean, half-width]
DATA = {"splits", "weights_sha256"}     # and the images: on what runs of a setting must agree
NAMES_IN_RUNS = {"R@1 (fraction)": "R@1", "lambda_NN": "lambda", "H-divergence_NN": "d_H"}


# ---------------------------------------------------------------------------- a run's folder
def read_lines(path):
    """A file of JSON lines -> its rows, dicts.  UserError if it is damaged or not there."""
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        raise UserError(f"{path} is damaged, or not there")


class RunFolder:
    """A run's folder, of which each file is read once."""
    why_other = ""              # in words, if it holds another run than it should

    def __init__(self, folder):
        self.folder = folder

    @functools.cached_property
    def config(self):
        return read_json(self.folder / "config.json")

    @functools.cached_property
    def log(self):
        return read_lines(self.folder / "log.jsonl")

    @functools.cached_property
    def result(self):
        """None of a run that is not finished"""
        return None if self.why_other else read_json(self.folder / "result.json")

    @functools.cached_property
    def figures(self):
        """{part: {metric: value}} of a finished run.  Two more parts measure the last epoch as
        papers do: "ten parts" (JRD's Tables 2 and 3) and "l2-normalized" (MDR's Table 3)."""
        if not self.log:
            raise UserError(f"{self.folder / 'log.jsonl'} is damaged: it is empty")
        last = self.result["last epoch"] | self.log[-1]
        tenths = last | last.get("ten parts", {})
        for name, ours in NAMES_IN_RUNS.items():
            tenths[name] = tenths.get(ours)
        parts = self.result | {
            "last epoch": last, "ten parts": tenths,
            "l2-normalized": {name: last.get(f"{name}, l2-normalized") for name in last}}
        return {part: in_paper_units(row) for part, row in parts.items() if isinstance(row, dict)}


def in_paper_units(row):
    """The numbers of a log's or result's row: shares in %, of an interval the mean, of NMI by start
    mean and range, other lists one by one."""
    figures = {}
    for metric, value in row.items():
        if metric == "NMI by start" and value:
            mean, spread = sum(value) / len(value), max(value) - min(value)
            figures |= zip(STARTS, (100 * mean, 100 * spread))
            continue
        if isinstance(value, list) and INTERVAL.match(metric):
            value = value[0]
        if isinstance(value, list):
            for i, entry in enumerate(value, 1):
                figures[f"{metric}, {i}"] = entry
        elif isinstance(value, float) and metric not in ("lr", "images/s", "seconds"):
            figures[metric] = 100 * value if PERCENT.fullmatch(metric) else value
    return figures


def reading(run, metric):
    """A finished run's figure of its last epoch, None if it has none."""
    return run.figures["last epoch"].get(metric)


# ---------------------------------------------------------------------------- many runs
@contextlib.contextmanager
def unpacked(paths):
    """One folder of runs, or archives (.tar.xz) of runs, unpacked for a while -> the folder"""
    if len(paths) == 1 and Path(paths[0]).suffix != ".xz":
        yield paths[0]
        return
    with tempfile.TemporaryDirectory() as folder:
        for path in map(Path, paths):
            try:        # all at first: tarfile takes damage for the end (test_libraries)
                archive = tarfile.open(fileobj=io.BytesIO(lzma.decompress(path.read_bytes())))
                archive.extraction_filter = getattr(tarfile, "data_filter", None)   # Python 3.11.4
                for file in archive:
                    if file.isfile() and Path(folder, file.name).exists():
                        raise UserError(f"{path}: {file.name} is in another archive too")
                archive.extractall(folder)
                if all(Path(file.name).parts[1:] != ("config.json",) for file in archive):
                    raise UserError(f"{path} has no run's folder at its top: pack one by tar -cJf "
                                    "ARCHIVE.tar.xz -C runs RUN ...")
            except (OSError, lzma.LZMAError, tarfile.TarError) as error:
                raise UserError(f"cannot read the archive {path} ({error}); --runs takes one "
                                "folder, or archives (.tar.xz)")
        try:
            yield folder
        except UserError as error:              # by the name that a person knows
            raise UserError(str(error).replace(folder, ", ".join(map(str, paths))))


def of_equal_data(folders):
    """{seed: RunFolder} of a setting -> the same in groups whose runs have the same images and
    began from the same weights, which a run's name does not tell"""
    groups = []
    for seed, run in folders.items():
        for group in groups:
            differ = differences(next(iter(group.values())).config, run.config)
            if not any(what in DATA or what.startswith("images of ") for what in differ):
                group[seed] = run
                break
        else:
            groups.append({seed: run})
    return groups


def by_name(runs, file):
    """{setting: {seed: RunFolder}} of the runs that have a file.  UserError: there are none."""
    settings = {}
    for path in sorted(Path(runs).glob(f"*/{file}")):
        setting, _, seed = path.parent.name.rpartition("-s")
        if seed.isdecimal():                                  # no copy of a run's folder
            if not path.with_name("config.json").exists():
                raise UserError(f"{path.parent} has no config.json: was it copied in part?")
            settings.setdefault(setting, {})[int(seed)] = RunFolder(path.parent)
    if not settings:
        raise UserError(f"no run with a {file} under {runs}")
    return settings


def folders_of(runs, file="result.json"):
    """{setting: {seed: RunFolder}} of the runs that have a file, whatever the experiment list.
    Seeds with other images or weights are a setting of their own, so that no mean is over both.
    UserError: there are none."""
    apart = {}
    for setting, folders in by_name(runs, file).items():
        groups = of_equal_data(folders)
        for group in groups:
            name = setting
            if len(groups) > 1:
                name += f" (seed {', '.join(map(str, group))}: its own images or weights)"
            apart[name] = group
    return apart


def finished(path):
    """The finished runs of a folder or of an archive, RunFolders, one by one"""
    with unpacked([path]) as folder:
        for runs in folders_of(folder).values():
            yield from runs.values()


def seeds_of(runs, name, file="result.json"):
    """name: a setting, one of its runs, or that run's folder -> the setting, {seed: RunFolder} of
    all its runs that have the file, with a run's images and weights if one is named.  UserError:
    there are none, or a setting's seeds have others."""
    settings, name = by_name(runs, file), Path(name).name
    for setting, folders in settings.items():
        if name == setting or name in [run.folder.name for run in folders.values()]:
            groups = of_equal_data(folders)
            for group in groups:
                if len(groups) == 1 or name in [run.folder.name for run in group.values()]:
                    return setting, group
            seeds = " from ".join(", ".join(map(str, group)) for group in groups)
            raise UserError(f"seeds of {setting} differ in their images or weights ({seeds}): name "
                            f"a run, as {setting}-s{next(iter(folders))}")
    raise UserError(f"no run {name} with a {file} under {runs}: there are {', '.join(settings)}")


def pivot(runs):
    """(setting, seed, figures) of runs -> {(setting, part, metric): {seed: value}}, of which a
    missing one is {}"""
    table = defaultdict(dict)
    for setting, seed, figures in runs:
        for part, row in figures.items():
            for metric, value in row.items():
                table[setting, part, metric][seed] = value
    return table


def gains(ours, baselines):
    """{seed: value} of two settings -> their differences in the seeds of both"""
    return [ours[seed] - baselines[seed] for seed in ours if seed in baselines]

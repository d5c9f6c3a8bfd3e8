"""What a run is: its code, its settings, the name of its folder; why a folder holds another one."""
import ast
import functools
import json
import os
import re
import sys
import uuid
from pathlib import Path

from support.command_line import DATASETS, RUNTIME_ONLY, plain
from support.files import ROOT, UserError, digest

PAPERS = ("jrd", "mdr", "dml_da")
COMPUTED_BY = ("processor", "threads", "commit", "versions")
NOT_COMPARED = {*RUNTIME_ONLY, *COMPUTED_BY, "weights", "images", "changed", "dataset_path"}
LENGTH = {"epochs", "iterations"}


def sources():
    """{a script, or what a training may run through: when it was written, its text}"""
    files = {}
    for pattern in (*(f"{paper}.py" for paper in PAPERS), "common.py", "eval.py", "support/*.py"):
        for file in sorted(ROOT.glob(pattern)):
            files[file.name] = file.stat().st_mtime_ns, file.read_text(encoding="utf-8")
    return files


SOURCES = sources()         # when they are imported: a run may begin minutes later, after an edit


def code_of(paper):
    """The code of a run: a digest of the syntax trees, without docstrings, of its script and of
    what every training runs through, the same on every Python.  What command_line.py and machine.py
    decide is settings.  Messages count in the script alone.

    It is that of the files as they were imported.  In a notebook, if a file has been written since,
    nobody knows what was reloaded: then it is a digest that no other run has.
    """
    others = {f"{other}.py" for other in PAPERS} - {f"{paper}.py"}
    own = {*SOURCES} - others - {"command_line.py", "machine.py"}
    code = _digest_of(paper, tuple((name, SOURCES[name][1]) for name in SOURCES if name in own))
    if hasattr(sys, "ps1"):                             # a notebook, a prompt
        now = sources()
        if any(SOURCES[name] != now.get(name) for name in own):
            return digest(code, uuid.uuid4())[:12]
    return code


@functools.cache
def _digest_of(paper, files):
    """code_of's, of pairs (a file's name, its text)."""
    def syntax(node, texts):
        """A tree as nested lists, without docstrings and fields that differ between Pythons.  If
        not texts, all texts with a blank are alike, because they are messages."""
        if isinstance(node, list):
            return [syntax(item, texts) for item in node]
        if not isinstance(node, ast.AST):
            return node if texts or " " not in str(node) else "a text"
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return "a docstring"
        fields = [type(node).__name__]
        for name, value in ast.iter_fields(node):
            if value not in (None, []) and name not in ("format_spec", "kind"):
                fields += [name, syntax(value, texts)]
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and "a text" in str(fields):
            return "a text"
        return fields
    trees = []
    for name, text in files:
        texts = name in (f"{paper}.py", "networks.py")          # whose layers are tables in texts
        trees.append(syntax(ast.parse(text), texts))
    return digest(ascii(trees))[:12]                    # what repr escapes depends on the Python


def computed_by(config):
    """What computed a run, as far as its config notes it -> {"processor", "torch", ...: value}"""
    known = {what: config[what] for what in COMPUTED_BY if what in config and what != "versions"}
    return known | config.get("versions", {})


def run_folder(paper, cfg):
    """`<out>/<paper>-<dataset>-<what differs from the preset>[-<name>]-s<seed>`; not the path of a
    file of weights.  UserError: no file system takes a name so long."""
    parts = [paper, dataset_name(cfg.dataset)]
    for name, value in cfg.changed.items():
        if name != "weights" or value == "random":
            parts.append(name + plain(value).replace(" ", "_"))
    if cfg.name:
        parts.append(cfg.name)
    folder = Path(cfg.out, "-".join([*parts, f"s{cfg.seed}"]))
    if len(os.fsencode(folder.name)) > 255:
        raise UserError(f"the run's folder {folder.name} has a name too long: it is made of the "
                        "dataset's name, --name and each setting that is not the preset's; shorten "
                        "the longest")
    return folder


def dataset_name(dataset):
    return re.sub("[\ud800-\udfff]", "_", Path(dataset).resolve().name)         # bytes, no text


def differences(old, new):
    """{what: (in old, in new)} of what two configs both have and what differs: settings, "code",
    and "images of test" of a split.

    Where a run was computed does not count, and a weights file counts by its hash, not its path,
    or by the hash's first digits in the new one.  A folder counts by its images, not by its path,
    but is no dataset of the papers, whatever its name.  Who does not know a run's code, images or
    weights leaves them out of its config; "auto" in the new one may be anything in the old.
    """
    old, new = with_splits(old), with_splits(new)
    differ = {}
    for what, value in new.items():
        if what not in old or what in NOT_COMPARED or value in ("auto", old[what]):
            continue
        if what == "weights_sha256" and str(old[what]).startswith(value):
            continue
        if what == "dataset" and not {value, old[what]} & DATASETS:
            continue
        differ[what] = old[what], value
    return differ


def with_splits(config):
    """A config that has the digest of each split's images beside the others."""
    splits = {}
    if isinstance(config.get("images"), dict):
        for split, value in config["images"].items():
            if isinstance(value, str):                  # old runs have digests of classes
                splits[f"images of {split}"] = value
    return config | splits


def why_other(folder, config):
    """Why a folder does not hold the run of a config, in words; "" if it does, or holds none."""
    old = read_json(folder / "config.json")
    if old is None:
        return "without its config.json" if (folder / "last.pt").exists() else ""
    told = []
    for what, (there, now) in differences({"code": None} | old, config).items():
        told.append(f"{what} (there {there!r}, now {now!r})")
    if not told:
        return ""
    return f"with other {', '.join(told)}, made at commit {old.get('commit')}"


def of_other_length(folder, config):
    """The run beside a folder that has a config's settings but for its length, the longest of
    several -> its number of epochs and its folder, or None."""
    name, found = dataset_name(config["dataset"]), []
    for path in sorted(folder.parent.glob(f"*-s{config['seed']}/config.json")):
        try:
            old = read_json(path)
            if old.get("paper") == config["paper"] and dataset_name(old["dataset"]) == name:
                differ = differences(old, config).keys() - {"code"}
                if differ and differ <= LENGTH:
                    found.append((int(old["epochs"]), path.parent))
        except (OSError, UserError, KeyError, TypeError, ValueError):
            continue                                    # of a damaged one nothing is known
    return max(found, default=None)


def read_json(path):
    """A JSON file of a run's folder -> dict, None where there is none.  UserError if damaged."""
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        values = None
    if not values or not isinstance(values, dict):
        advice = "the run's command with --again trains it anew"
        if path.name == "result.json" and path.with_name("last.pt").exists():
            advice = "delete this file, and the run's command makes it again from last.pt"
        raise UserError(f"{path} is damaged: {advice}")
    return values

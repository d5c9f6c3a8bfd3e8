"""What computed a run: its code, its commit, the packages, the processor."""
import ast
import functools
import platform
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
import torchvision

from support.files import ROOT, digest, reason

# What every training runs through, beside its script.  Command lines are not in it: what they
# decide are settings.
TRAINING = ("common.py", "eval.py", "support/files.py", "support/glyphs.py", "support/images.py",
            "support/layouts.py", "support/networks.py", "support/ranks.py", "support/runs.py")
WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def code_of(paper):
    """The code of a run: a digest of the syntax trees of its script and TRAINING, the same on every
    Python.  Comments and docstrings are not in it, nor are messages outside the script."""
    trees = []
    for name in (f"{paper}.py", *TRAINING):
        tree = ast.parse(Path(ROOT, name).read_text(encoding="utf-8"))
        trees.append(_as_text(tree, messages=name == f"{paper}.py"))
    return digest(*trees)[:12]


def _as_text(node, messages):
    """A syntax tree as text, without docstrings and, unless they count, messages.  Newer Pythons
    have more fields, but code that an older one knows leaves them empty; so those are left out."""
    if isinstance(node, list):
        return f"[{' '.join(_as_text(item, messages) for item in node)}]"
    if not isinstance(node, ast.AST):
        return ascii(node)                  # what repr escapes depends on the Python
    if not messages and _is_message(node):
        return "message"
    text = type(node).__name__
    for field in sorted(node._fields):
        value = getattr(node, field, None)
        if field == "body" and isinstance(node, WITH_DOCSTRING) and ast.get_docstring(node):
            value = value[1:]
        if isinstance(node, ast.JoinedStr):             # 3.12 adds "" to the format {x:{width}}
            value = [part for part in value if getattr(part, "value", None) != ""]
        if value is not None and value != [] and field != "kind":        # kind: u""
            text += f" {field}={_as_text(value, messages)}"
    return f"({text})"


def _is_message(node):
    """Whether a node is a text with a blank in it."""
    if isinstance(node, ast.JoinedStr):                                 # f"..."
        return any(map(_is_message, node.values))
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value


def versions():
    return {"python": sys.version.split()[0], "torch": str(torch.__version__),
            "torchvision": str(torchvision.__version__), "numpy": np.__version__}


def commit():
    """-> the commit of these files, '+' where they were changed since, or None; why it is None."""
    command = ["git", "-c", "safe.directory=*",         # a checkout that another user owns
               "-C", str(ROOT), "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+"]
    try:
        git = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    except OSError as error:                            # git is not installed
        return None, reason(error)
    return git.stdout.strip() or None, git.stderr.partition("\n")[0]


def processor(device):
    """The name of what computes: last digits repeat on one kind of processor alone."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine() or "unknown processor"
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:                                                     # not Linux
        info = ""
    found = re.search(r"model name\s*:\s*(.*)", info)
    if found:
        name = found[1]
        for field in ("cpu family", "model"):           # a virtual machine may hide the name
            found = re.search(rf"^{field}[^:]*: (.*)", info, re.M)
            if found:
                name += f", {field} {found[1]}"
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"

"""By what a run was computed: the commit, the packages, the processor."""
import contextlib
import functools
import platform
import re
import subprocess
from pathlib import Path

import numpy as np
import PIL
import torch
import torchvision

from support.files import ROOT


def versions():
    return {"python": platform.python_version(), "torch": str(torch.__version__),
            "torchvision": torchvision.__version__, "numpy": np.__version__,
            "pillow": PIL.__version__}


@functools.cache
def commit():
    """The commit of these files, '+' where they were changed since; None: no checkout, no git."""
    command = ["git", "-c", "safe.directory=*",         # a checkout that another user owns
               "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+"]
    try:
        git = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        return git.stdout.strip() or None
    except OSError:
        return None


def processor(device):
    """The name of what computes: last digits repeat on one kind of processor alone."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):                  # Linux; a virtual machine may hide the name
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        found = re.search(r"cpu family\s*: (.*)\nmodel\s*: (.*)\nmodel name\s*: (.*)", info)
        if found:
            name = found.expand(r"\3, cpu family \1, model \2")
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"

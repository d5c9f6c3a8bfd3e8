"""By what a run was computed: the commit, the packages, the processor."""
import contextlib
import platform
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
import torchvision

from support.files import ROOT, reason


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
    with contextlib.suppress(OSError):                                  # Linux
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        fields = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)", info, re.M))
        if len(fields) == 3:        # a virtual machine may hide the name
            name = "{model name}, cpu family {cpu family}, model {model}".format_map(fields)
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"

"""Windows, as far as Linux can play it; Python runs this at every start with this folder on its
path.

    PYTHONPATH=tests/simulated python -m pytest -q tests

Processes are spawned and not forked (as on macOS).  Modules, functions and signals that Windows has
not are gone.  A file that this process has open or mapped cannot be replaced, renamed or deleted.
Files and pipes are cp1252 where nobody names an encoding.  Not played: paths with drives and
backslashes, names that differ in case alone, the locks of Windows, another os.name.
"""
import builtins
import functools
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import warnings

MODULES = "fcntl grp pwd resource syslog termios tty pty"
FUNCTIONS = "fork forkpty getloadavg killpg mkfifo pread pwrite sched_getaffinity setsid"
SIGNALS = "SIGALRM SIGCONT SIGHUP SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2"
OTHERWISE = ("tempfile", "filelock")        # who delete open files here and not on Windows
ENCODING = "cp1252"


def is_open(path):
    """Whether this process has a file open or mapped; asked where there is a /proc."""
    path = os.path.realpath(path)
    if not os.path.isfile(path) or not os.path.isdir("/proc/self/fd"):
        return False
    for number in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{number}") == path:
                return True
        except FileNotFoundError:                       # that of the list itself
            pass
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return any(line.rstrip("\n").endswith(f" {path}") for line in maps)


def refused_while_open(function):
    def refuse(*paths, **kwargs):
        caller = sys._getframe(1)
        if caller.f_globals["__name__"].startswith("pathlib"):
            caller = caller.f_back
        if caller.f_globals["__name__"].split(".")[0] not in OTHERWISE and not kwargs:
            for path in paths:
                if is_open(path):
                    raise PermissionError(13, "The process cannot access the file because it is "
                                          "being used by another process", str(path))
        return function(*paths, **kwargs)
    return refuse


def open_text(file, mode="r", buffering=-1, encoding=None, *rest, real=io.open, **kwargs):
    if "b" not in mode and encoding in (None, "locale"):
        encoding = ENCODING
    return real(file, mode, buffering, encoding, *rest, **kwargs)


def start(self, *args, real=subprocess.Popen.__init__, **kwargs):
    if kwargs.get("text") and not kwargs.get("encoding"):
        kwargs |= {"encoding": ENCODING, "errors": "replace"}
    real(self, *args, **kwargs)


multiprocessing.set_start_method("spawn")
warnings.filterwarnings("ignore", "only soft file lock")        # what filelock does without fcntl
sys.modules |= dict.fromkeys(MODULES.split())           # None: to import them raises ImportError
for module, names in ((os, FUNCTIONS), (signal, SIGNALS)):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for name in ("remove", "rename", "replace", "unlink"):
    setattr(os, name, functools.partial(refused_while_open(getattr(os, name))))
builtins.open = io.open = functools.partial(open_text)          # no methods of who keeps them
subprocess.Popen.__init__ = start
os.environ.setdefault("USERNAME", "somebody")               # Windows has it
os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))      # of the processes that
os.environ["PYTHONIOENCODING"] = ENCODING                                  # this one starts

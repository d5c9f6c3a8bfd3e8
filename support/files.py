"""Files that appear whole or not at all, their hashes, and what goes wrong with them."""
import contextlib
import hashlib
import json
import os
import socket
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent           # of this project


class UserError(Exception):
    """A mistake that the user can mend: one line on stderr, exit status 2."""


class NonFiniteLoss(Exception):
    """The loss became nan or infinite: one line on stderr, exit status 1."""


def reason(error):
    """The first line of an error's message, or its name if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def part_of(path):
    """Where this process writes what is to become `path`: its host and its number are in the name,
    so that no other process, on this machine or another, writes or deletes the same file."""
    return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.part")


@contextlib.contextmanager
def atomic(path, mode="w"):
    """Open a file that appears under its name only when it is whole."""
    path = Path(path)
    part = part_of(path)
    try:
        with open(part, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def replace(part, path):
    """os.replace, tried for a second and a half: Windows refuses while any program, often one that
    looks for viruses, has one of the two files open."""
    for wait in (0.05, 0.1, 0.2, 0.4, 0.8):
        with contextlib.suppress(PermissionError):
            return os.replace(part, path)
        time.sleep(wait)
    os.replace(part, path)


def remove_leftovers(folder):
    """Delete the parts that processes left in a folder when they were killed while they wrote.

    Only those of this machine whose process is gone, and those a day old: another machine may be
    writing the others.
    """
    for part in folder.glob(".*.part"):
        who, _, number = part.name.removesuffix(".part").rpartition(".")
        with contextlib.suppress(FileNotFoundError, PermissionError):      # it is gone, or open
            ours = who.endswith("." + socket.gethostname()) and number.isdecimal()
            if ours and not is_running(int(number)) or time.time() - part.stat().st_mtime > 86400:
                part.unlink()


def is_running(number):
    """Whether a process of this number runs on this machine."""
    if os.name == "nt":                     # os.kill would end it there
        return True
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:                 # somebody else's
        pass
    return number != os.getpid()            # an earlier process that had our number is gone


def lock(path, seconds):
    """A lock that is held until it is released or the process ends -> filelock's, acquired.

    Waits `seconds` (None: as long as it takes) and then raises filelock.Timeout.  Where a file
    system has no locks of its own, filelock makes do with the file's existence.
    """
    import filelock         # here, as torch below: `run_all.sh --list` runs without either

    found = filelock.FileLock(path, timeout=-1 if seconds is None else seconds)
    found.acquire()
    return found


def write_json(path, value):
    with atomic(path) as file:
        json.dump(value, file, indent=1)
        file.write("\n")


def read_json(path):
    """A JSON file -> its value.  ValueError if it is damaged."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def digest(*parts):
    """SHA-256 of a few values as text."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def sha256(path):
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(2 ** 20):
            found.update(part)
    return found.hexdigest()


def load_torch(path):
    """torch.load of tensors and plain values, never of code.  UserError if the file is no such."""
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"no file {path}")
    except IsADirectoryError:
        raise UserError(f"{path} is a folder: a last.pt in it is meant?")
    except Exception as error:                  # torch.load fails in a dozen ways on a damaged file
        raise UserError(f"cannot load {path} ({reason(error).partition('. ')[0]}): it is damaged, "
                        "or no file of tensors and plain values")

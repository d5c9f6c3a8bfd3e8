"""Files that appear whole or not at all, their hashes, and what goes wrong with them."""
import contextlib
import errno
import hashlib
import json
import os
import re
import time
import uuid
from pathlib import Path

import filelock
import torch

ROOT = Path(__file__).resolve().parent.parent           # of this project


class UserError(Exception):
    """A mistake that the user can mend: one line on stderr, exit status 2."""


class NonFiniteLoss(Exception):
    """The loss became nan or infinite: one line on stderr, exit status 1."""


def reason(error):
    """The first line of an error's message, or its name if it has none.  The error of a loader's
    process has its traceback before the message."""
    text = str(error) or type(error).__name__
    if "Original Traceback" in text:
        text = re.findall(r"^[\w.]+: (.*)", text, re.MULTILINE)[-1]
    return text.splitlines()[0]


def listed(names, most=4):
    """A few names of a list, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


@contextlib.contextmanager
def atomic(path, mode="w"):
    """Open a file that appears under its name only when it is whole; until then it has a random
    name, which no other process has, on this machine or another.  What a killed process was writing
    here goes after a day."""
    path = Path(path)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    for old in path.parent.glob(".*." + "[0-9a-f]" * 32 + ".part"):
        with contextlib.suppress(OSError):                  # another process was faster
            if time.time() - old.stat().st_mtime > 86400:
                old.unlink()
    try:
        text = {} if "b" in mode else {"encoding": "utf-8", "errors": "replace"}
        with open(part, mode, **text) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:                                            # a full disk, for one
        if error.errno:
            error.filename = error.filename or str(path)
        raise
    finally:
        part.unlink(missing_ok=True)


# flock's answers on file systems that have no locks: NFS, Lustre and CIFS as some mount them, FUSE.
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}


@contextlib.contextmanager
def lock(path, timeout=-1):
    """Hold the lock of a file, whose folder exists -> whether it is locked: not where the file
    system has no locks.  A killed process leaves no lock.  filelock.Timeout: another process holds
    it for more than so many seconds (-1: wait)."""
    held = filelock.FileLock(path, timeout=timeout, fallback_to_soft=False)
    try:
        held.acquire()
    except NotImplementedError:                             # no flock, filelock before 4
        pass
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    try:
        yield held.is_locked
    finally:
        held.release()


def write_json(path, value):
    with atomic(path) as file:
        file.write(json.dumps(value, indent=1) + "\n")


def digest(*parts):
    """SHA-256 of values as text, and of file names that are bytes and no text"""
    return hashlib.sha256("\0".join(map(str, parts)).encode("utf-8", "surrogatepass")).hexdigest()


def sha256(path):
    """SHA-256 of a file"""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def load_torch(path):
    """torch.load of tensors and plain values, never of code.  UserError if the file is no such."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"no file {path}")
    except IsADirectoryError:
        raise UserError(f"{path} is a folder: a last.pt in it is meant?")
    except Exception as error:                  # torch.load fails in a dozen ways on a damaged file
        raise UserError(f"cannot load {path} ({reason(error).partition('. ')[0]}): it is damaged, "
                        "or no file of tensors and plain values (.safetensors: is its package "
                        "installed?)")

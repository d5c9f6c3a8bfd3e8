"""Files that appear whole or not at all, their hashes, and what goes wrong with them."""
import contextlib
import copy
import hashlib
import io
import json
import os
import re
import uuid
from pathlib import Path

import filelock
import torch

ROOT = Path(__file__).resolve().parent.parent           # of this project


class UserError(Exception):
    """A mistake that the user can mend: one line on stderr, exit status 2."""


class NonFiniteLoss(Exception):
    """The loss, a term of it or an embedding is nan or infinite: one line on stderr, status 1."""


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
    name, which no other process has, on this machine or another.  UserError: it cannot be
    written."""
    path = Path(path)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with open(part, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:                                            # a full disk, for one
        raise UserError(f"cannot write {path}: {reason(error)}")
    finally:
        with contextlib.suppress(OSError):              # of a disk that takes no writing
            part.unlink(missing_ok=True)


def lock(path, timeout=-1):
    """Lock a file, whose folder exists -> a context manager, whose exit unlocks it.  Where there
    are no locks (NFS, Lustre and CIFS as some mount them, FUSE), say so.  A killed process leaves
    no lock.  UserError: another process holds it for more than so many seconds (-1: wait)."""
    try:
        return filelock.FileLock(path, timeout=timeout, fallback_to_soft=False).acquire()
    except filelock.Timeout:
        raise UserError(f"another process is writing in {path.parent}")
    except (OSError, NotImplementedError) as error:         # OSError: filelock 3.30.0 and 4.3.1
        print(f"note: {path.parent} has no locks ({reason(error)}), so nothing keeps a second "
              "process from writing in it at the same time")
        return contextlib.nullcontext()


def write_json(path, value):
    with atomic(path) as file:
        file.write(json.dumps(value, indent=1) + "\n")


def digest(*parts):
    """SHA-256 of values as text, and of file names that are bytes and no text"""
    return hashlib.sha256("\0".join(map(str, parts)).encode("utf-8", "surrogatepass")).hexdigest()


def sha256(path):
    """SHA-256 of a file"""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


# ---------------------------------------------------------------------------- checkpoints
def save_torch(path, state):
    """torch.save of nested dicts.  Thousands of scalars, as DML-DA's α and Adam's moments of them,
    would take torch 2.14.1 seconds: they become one tensor, which load_torch takes apart."""
    scalars = {}                                        # {where in the nested dicts: scalar}

    def without_scalars(state, *where):
        rest = copy.copy(state)                         # a module's has its layers' versions too
        for name, value in state.items():
            if isinstance(value, dict):
                rest[name] = without_scalars(value, *where, name)
            elif torch.is_tensor(value) and value.dim() == 0 and value.is_floating_point():
                scalars[(*where, name)] = rest.pop(name)
        return rest
    rest = without_scalars(state)
    if len(scalars) > 1000:
        values = list(scalars.values())
        if len({value.device for value in values}) == 1:
            values = torch.stack(values).cpu()          # of a GPU's one copy, and not thousands
        rest["all scalars"] = list(scalars), torch.as_tensor(values)
        state = rest
    content = io.BytesIO()              # torch.save (2.14.1) to a full disk hides that it is full
    torch.save(state, content)
    with atomic(path, "wb") as file:
        file.write(content.getbuffer())


def load_torch(path):
    """torch.load of tensors and plain values, never of code.  UserError if the file is no such."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except IsADirectoryError:
        raise UserError(f"cannot read {path}: it is a folder; a last.pt in it is meant?")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}")
    except MemoryError:
        raise
    except Exception as error:                  # torch.load fails in a dozen ways on a damaged file
        advice = "it is damaged, or no file of tensors and plain values"
        if str(path).endswith(".safetensors"):
            advice = "is the package safetensors installed?"
        raise UserError(f"cannot load {path} ({reason(error).partition('. ')[0]}): {advice}")
    if isinstance(state, dict):
        for (*where, name), scalar in zip(*state.pop("all scalars", ((), ()))):
            place = state
            for key in where:
                place = place[key]
            place[name] = scalar
    return state

"""What a run is made of besides its settings: the code that computes it and the images it sees."""
import ast
import functools

from support.files import ROOT, digest, sha256

SPELLED_OUT = 500       # classes: of splits with more (SOP, In-Shop) there is one digest for all


# ---------------------------------------------------------------------------- code
# What computes nothing: functions that print, texts, and defaults, which the settings say.
SAYS_ONLY = ("final_table", "_print", "_header", "remarks", "SOURCES", "CAUSES", "LOCK_WAIT",
             "DEFAULTS")
OUTSIDE = ("__init__", "command_line", "files", "identity")          # files that compute nothing


@functools.cache
def code_of(paper):
    """{"jrd.jrs": digest, ...} of the functions, methods and values that a run may use: what
    `train` of this paper's script names, what that names, and so on.

    Docstrings, comments and layout do not count, nor defaults and presets: the settings say them.
    """
    files = [ROOT / f"{paper}.py", ROOT / "common.py", ROOT / "eval.py"]
    files += sorted(path for path in (ROOT / "support").glob("*.py") if path.stem not in OUTSIDE)
    parts, waiting = {}, {"train"}
    for path in files:
        for name, node in _parts(path):
            parts.setdefault(name, []).append(_without_docstrings(node))
    found = {}
    while waiting:
        reached = {name for name in parts if name not in found and waiting & set(
            name.split(".")[1:]) and name.split(".")[-1] not in SAYS_ONLY}
        waiting = set()
        for name in reached:
            found[name] = digest(*map(ast.unparse, parts[name]))[:12]
            for node in parts[name]:
                waiting |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
                waiting |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    return {name: found[name] for name in parts if name in found}


def _parts(path):
    """(name, syntax tree) of the functions, methods and values of one file."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            for method in methods:
                yield f"{path.stem}.{node.name}.{method.name}", method
            node.body = [part for part in node.body if part not in methods] or [ast.Pass()]
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield f"{path.stem}.{node.name}", node
        elif isinstance(node, ast.Assign):
            for name in ast.walk(ast.Tuple(node.targets)):
                if isinstance(name, ast.Name):
                    yield f"{path.stem}.{name.id}", node


def _without_docstrings(node):
    for part in ast.walk(node):
        if isinstance(part, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(part):
            part.body = part.body[1:] or [ast.Pass()]
    return node


def other_code(old, new):
    """The names of functions that differ between two fingerprints, those of `new` first; None where
    the old run has none."""
    if not isinstance(old, dict):
        return None
    names = [name for name, value in new.items() if old.get(name) != value]
    return names + [name for name in old if name not in new]


def some(names, most=4):
    """A few names of a list, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


# ---------------------------------------------------------------------------- images
def images_of(rows, with_sizes):
    """[(path, class)] -> {class: digest of its images' names and sizes}, or {"all": digest} where
    there are many classes.

    Names are those of the files, so that the dataset may move and a class that was renamed is
    known again.  Of the papers' datasets the names alone identify the images (their archives do not
    change): to look at the size of each of 120,000 files takes minutes on a network's file system.
    """
    words = {}
    for path, name in rows:
        size = f" {path.stat().st_size}" if with_sizes else ""
        words.setdefault(str(name), []).append(path.name + size)
    if len(words) > SPELLED_OUT:
        return {"all": digest(*(f"{name} {word}" for name, list_ in words.items()
                                for word in list_))[:12]}
    return {name: digest(*list_)[:12] for name, list_ in words.items()}


def other_images(old, new):
    """What differs between the images of two runs, the worst first, in words; "" if nothing does.

    old, new: {split: {class: digest}}; an old run without them is taken as it is.
    """
    if not isinstance(old, dict) or not all(isinstance(part, dict) for part in old.values()):
        return ""
    words, left, arrived = [], set(), set()
    for a, b in (("train", "test"), ("test", "train")):
        moved = {name: now for name, now in same_classes(old.get(a, {}), new.get(b, {})).items()
                 if now not in old.get(b, {})}
        if moved:
            names = [name if name == now else f"{name} (now {now})" for name, now in moved.items()]
            words.append(f"moved from {a} to {b}: {some(names)}")
        left |= {(a, name) for name in moved}
        arrived |= {(b, name) for name in moved.values()}
    for part in dict.fromkeys([*old, *new]):
        before, now = old.get(part, {}), new.get(part, {})
        gone = [name for name in before if name not in now and (part, name) not in left]
        come = [name for name in now if name not in before and (part, name) not in arrived]
        changed = [name for name in now if name in before and before[name] != now[name]]
        for names, what in ((gone, "no longer in"), (come, "new in"), (changed, "other images in")):
            if names:
                words.append(f"{what} {part}: {some(names)}")
    return "; ".join(words)


def same_classes(one, other):
    """{class of one: the same class in other}, by its name or, where no second class of either has
    such files, by its files."""
    files = [*one.values(), *other.values()]
    renamed = {value: name for name, value in other.items() if files.count(value) == 2}
    return {name: name if name in other else renamed[value] for name, value in one.items()
            if name in other or value in renamed}


def twice(splits):
    """[(path in train, path in test)] of images that are in both, byte for byte.

    splits: {split: [(path, class)]}.  Only files of equal size are read.
    """
    by_size, found = {}, []
    for part, rows in splits.items():
        for path in dict.fromkeys(path for path, _ in rows):
            by_size.setdefault(path.stat().st_size, {}).setdefault(part == "train", []).append(path)
    for parts in by_size.values():
        if len(parts) == 2:
            trained = {}
            for path in parts[True]:
                trained.setdefault(sha256(path), path)
            found += [(trained[value], path) for path in parts[False]
                      if (value := sha256(path)) in trained and path != trained[value]]
    return found

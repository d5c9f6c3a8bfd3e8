"""What a run is made of besides its settings: the code that computes it and the images it sees."""
import ast
import functools

from support.files import ROOT, digest, read_json, sha256

# ---------------------------------------------------------------------------- code
# What a reader edits to see what happens: all of the paper's script but its settings, and of these
# files the protocol of evaluation and what makes the pixels that a network sees.  What prints,
# refuses, locks, reads folders or loads files is told by the commit in config.json.
SETTINGS = ("DEFAULTS", "PRESETS", "IMPLIED_DEFAULTS", "parse_args")
COVERED = {
    "eval.py": "recall_at_k map_at_r hits_by_class _positives kmeans nmi _halves "
               "generalization_bound stratified_parts confidence_interval _usable _usable_pair "
               "judge retrieval test_recall val_recall before_training",
    "common.py": "_Augmented features freeze_batch_norm Preprocess",
    "support/images.py": "to_tensor shuffled random_seed augmented",
    "support/glyphs.py": "GLYPHS GLYPH_SIZE HARMONICS glyphs _draw_glyph SmallNet SMALL_TRANSFORMS"}
# {function: digests of its versions that compute the same, bit for bit}, by measurement
EQUIVALENT = ROOT / "support" / "equivalent_code.json"


@functools.cache
def code_of(paper):
    """{"jrd.jrs": digest, ...} of the functions, methods and values that make a run's figures.

    Docstrings, comments and layout do not count.
    """
    digests = {}
    for name, node in _parts(ROOT / f"{paper}.py"):
        if name.split(".")[1] not in SETTINGS:
            digests[name] = digest(ast.unparse(_without_docstrings(node)))[:12]
    for file, names in COVERED.items():
        for name, node in _parts(ROOT / file):
            if name.split(".")[1] in names.split():
                digests[name] = digest(ast.unparse(_without_docstrings(node)))[:12]
    return digests


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
    """The functions that both fingerprints have and that differ; None where the old run has none.

    A function that only one of them has is called by one that differs.
    """
    if not isinstance(old, dict):
        return None
    same = read_json(EQUIVALENT)
    return [name for name in new if name in old and old[name] != new[name]
            and not {old[name], new[name]} <= {*same.get(name, ())}]


def listed(names, most=4):
    """A few names of a list, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


# ---------------------------------------------------------------------------- images
def digest_of(rows, with_sizes):
    """[(path, class)] of a split -> a digest of its classes and its images' names and sizes.

    Names are those of the files, so that the dataset may move.  Of the papers' datasets the names
    alone identify the images (their archives do not change): to look at the size of each of 120,000
    files takes minutes on a network's file system.
    """
    return digest(*(f"{name} {path.name} {path.stat().st_size if with_sizes else ''}"
                    for path, name in rows))[:12]


def other_images(old, new):
    """The splits whose images differ between two runs, in words; "" if none do.

    old, new: {split: digest}.  A split without a digest in either is taken for the same.
    """
    old, new = (images if isinstance(images, dict) else {} for images in (old, new))
    return ", ".join(split for split in new if isinstance(old.get(split), str)
                     and old[split] != new[split])


def duplicates(splits):
    """[(path in train, path in test)] of images that are in both, byte for byte.

    splits: {split: [(path, class)]}.  Only files of equal size are read.
    """
    by_size, pairs = {}, []
    for part, rows in splits.items():
        for path in dict.fromkeys(path for path, _ in rows):
            by_size.setdefault(path.stat().st_size, {}).setdefault(part == "train", []).append(path)
    for parts in by_size.values():
        if len(parts) == 2:
            trained = {}
            for path in parts[True]:
                trained.setdefault(sha256(path), path)
            pairs += [(trained[value], path) for path in parts[False]
                      if (value := sha256(path)) in trained and path != trained[value]]
    return pairs

"""What a run is made of besides its settings: the code that computes it and the images it sees."""
import ast
import functools

from support.files import ROOT, digest, read_json

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
    "support/ranks.py": "PART rescaled first_places positive_places _distances nearest "
                        "nearest_centres _left _products _full_precision",
    "support/images.py": "to_tensor shuffled random_seed augmented",
    "support/glyphs.py": "GLYPHS GLYPH_SIZE HARMONICS glyphs _draw_glyph SmallNet SMALL_TRANSFORMS"}
# {function: digests of its versions that compute the same, bit for bit}, by measurement
EQUIVALENT = ROOT / "support" / "equivalent_code.json"


@functools.cache
def code_of(paper):
    """{"jrd.jrs": digest, ...} of the functions, methods and values that make a run's figures.

    Docstrings, comments and layout do not count.
    """
    parts = [part for part in _parts(ROOT / f"{paper}.py") if part[0].split(".")[1] not in SETTINGS]
    for file, names in COVERED.items():
        parts += [part for part in _parts(ROOT / file) if part[0].split(".")[1] in names.split()]
    return {name: digest(ast.unparse(_without_docstrings(node)))[:12] for name, node in parts}


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
    equivalent = read_json(EQUIVALENT)
    return [name for name in new if name in old and old[name] != new[name]
            and not {old[name], new[name]} <= {*equivalent.get(name, ())}]


def listed(names, most=4):
    """A few names of a list, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


# ---------------------------------------------------------------------------- images
def digest_of(names, paths, *stats):
    """A digest of image files: their names, and of each what os.stat says by the names in `stats`.

    The datasets of the papers are told by their names alone, because their archives do not change:
    to look at 120,000 files takes minutes on a network's file system.
    """
    lines = list(names)
    if stats:
        infos = [path.stat() for path in paths]
        lines = [" ".join([name, *(str(getattr(info, stat)) for stat in stats)])
                 for name, info in zip(lines, infos)]
    return digest(*lines)


def other_images(old, new):
    """The splits whose images differ between two runs, in words; "" if none do.

    old, new: {split: digest}.  A split without a digest in either is taken for the same.
    """
    old, new = (images if isinstance(images, dict) else {} for images in (old, new))
    return ", ".join(split for split in new if isinstance(old.get(split), str)
                     and old[split] != new[split])

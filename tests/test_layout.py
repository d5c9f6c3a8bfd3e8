"""The house: imports run one way, lines and scripts are short, the top level is fixed."""
import ast
import re
import shutil
import subprocess

import pytest

from conftest import ROOT

PAPERS = ("jrd", "mdr", "dml_da")
FLOORS = [  # each imports from those above it in this list, report/ from itself too
    ["support.files", "support.networks"], ["support.machine"],
    ["support.command_line", "support.photos"],
    ["support.identity", "support.layouts", "support.glyphs", "support.ranks", "support.caffe"],
    ["support.images", "support.runs", "support.backbones"], ["support.datasets"],
    ["common", "eval"], PAPERS, ["report"]]
FLOOR, SOURCE = {}, {}
for i, floor in enumerate(FLOORS):
    FLOOR |= dict.fromkeys(floor, i)
for pattern in ("*.py", "support/*.py", "report/*.py"):
    for path in sorted(ROOT.glob(pattern)):
        SOURCE[str(path.relative_to(ROOT))] = path.read_text(encoding="utf-8")
# What `python FILE` does is a program on the top floor.  FILE starts it and imports nothing of it.
STARTS = {"common.py": "report.prepare", "eval.py": "report.judge"}


def imported(source):
    """Names of modules and of what is taken from them, wherever in a file"""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def floor_of(name):
    """... of a module or of a name in it, None for other projects'; report's files are one floor"""
    module, _, rest = name.partition(".")
    return FLOOR.get(f"support.{rest.partition('.')[0]}" if module == "support" else module)


@pytest.mark.parametrize("file", SOURCE)
def test_imports_run_one_way(file):
    module = file.removesuffix(".py").replace("/", ".")
    source = SOURCE[file]
    if file in STARTS:
        source, start = source.split('if __name__ == "__main__":\n')
        assert re.sub(" +#.*", "", start) == (
            f'    import runpy\n    runpy.run_module("{STARTS[file]}", run_name="__main__")\n')
    for name in imported(source):
        if module in PAPERS:                # of ours the three know common and eval alone
            assert floor_of(name) in (None, FLOOR["common"]), f"{module} imports {name}"
        if name.partition(".")[0] in ("importlib", "runpy"):
            assert module.startswith("report"), f"{module} imports by {name}"
        if floor_of(name) is not None and not module.startswith("report"):
            assert floor_of(name) < floor_of(module), f"{module} imports {name}"


@pytest.mark.parametrize("file", SOURCE)
def test_what_is_imported_is_used(file):
    if file == "common.py":
        pytest.skip("hands most of it on")
    tree = ast.parse(SOURCE[file])
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                assert name in used, f"{file} imports {name} in vain"


@pytest.mark.parametrize("file", SOURCE)
def test_text_is_utf_8_on_every_system(file):
    """Who opens, reads or writes a file of text names its encoding."""
    for node in ast.walk(ast.parse(SOURCE[file])):
        if isinstance(node, ast.Call):
            if re.search(r"^open$|\.(read|write)_text$", ast.unparse(node.func)):
                call = ast.unparse(node)
                assert re.search(r"encoding=|^open\(\w+, '[rw]b'\)$", call), f"{file}: {call}"


def git(*words):
    """What git prints of this checkout; None without git, or without a checkout"""
    if shutil.which("git"):
        done = subprocess.run(["git", "-C", ROOT, *words], capture_output=True)
        if done.returncode == 0:
            return done.stdout.decode()


@pytest.mark.parametrize("file", SOURCE)
def test_sizes(file):
    """A script has 400 lines as committed; what a reader adds by docs/extending.md has room."""
    lines = SOURCE[file].splitlines()
    for number, line in enumerate(lines, 1):
        assert len(line) <= 100, f"{file}:{number} has {len(line)} characters: break it at 100"
    if file.removesuffix(".py") in PAPERS:
        most = 420
        if git("show", f"HEAD:{file}") == SOURCE[file]:
            most = 400
        assert len(lines) <= most, f"{file} is too long: move what is not the paper's out"


def test_nothing_else_stands_at_the_top():
    tracked = git("ls-files")
    if tracked is None:
        pytest.skip("not a git checkout")
    assert {line.split("/")[0] for line in tracked.splitlines()} == {
        "jrd.py", "mdr.py", "dml_da.py", "common.py", "eval.py", "run_all.sh", "README.md",
        "requirements.txt", ".gitignore", ".gitattributes", ".ci", "support", "report", "docs",
        "results", "studies", "benchmarks", "tests", "findings"}

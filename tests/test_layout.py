"""The house: imports run one way, no file is too long to hold in mind, the top level is fixed."""
import ast
import subprocess

import pytest

from conftest import ROOT

PAPERS = ("jrd", "mdr", "dml_da")
FLOORS = [  # each imports from those above it in this list, report/ from itself too
    ["support.files", "support.networks"], ["support.command_line"],
    ["support.layouts", "support.glyphs", "support.ranks"],
    ["support.images", "support.runs"], ["support.search"],
    ["common"], ["eval"], PAPERS, ["report"]]
FLOOR = {module: i for i, floor in enumerate(FLOORS) for module in floor}
PRODUCT = sorted([*ROOT.glob("*.py"), *ROOT.glob("support/*.py"), *ROOT.glob("report/*.py")])
each_file = pytest.mark.parametrize("path", PRODUCT, ids=lambda p: str(p.relative_to(ROOT)))


def floor_of(name):
    """... of a module or of a name in it, None for other projects'; report's files are one floor"""
    module, _, rest = name.partition(".")
    return FLOOR.get(f"support.{rest.partition('.')[0]}" if module == "support" else module)


@each_file
def test_imports_run_one_way(path):
    own = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            start = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for name in (start + alias.name for alias in node.names):
                if floor_of(name) is not None and not own.startswith("report"):
                    assert floor_of(name) < floor_of(own), f"{own} imports {name}"


@each_file
def test_no_file_is_longer_than_a_reader_holds_in_mind(path):
    lines, room = path.read_text(encoding="utf-8").splitlines(), 20     # for a reader's extension
    assert len(lines) <= 400 + room and all(len(line) <= 100 for line in lines)


def test_nothing_else_stands_at_the_top():
    tracked = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    assert {line.split("/")[0] for line in tracked.stdout.splitlines()} == {
        *(f"{paper}.py" for paper in PAPERS), "common.py", "eval.py", "tests", "run_all.sh",
        "README.md", "requirements.txt", ".gitignore", ".gitattributes", ".ci", "support", "report",
        "docs", "results", "studies", "benchmarks"}

"""The house: imports run one way, no file is too long to hold in mind, the top level is fixed."""
import ast
import subprocess

import pytest

from conftest import ROOT

PAPERS = ("jrd", "mdr", "dml_da")
FLOORS = [  # each imports from those above it in this list, report/ from itself too
    ["support.files", "support.networks"], ["support.command_line"],
    ["support.layouts", "support.images", "support.ranks"],
    ["support.glyphs", "support.search"], ["support.runs"], ["support.datasets"],
    ["common"], ["eval"], PAPERS, ["report"]]
FLOOR = {module: i for i, floor in enumerate(FLOORS) for module in floor}
PRODUCT = sorted([*ROOT.glob("*.py"), *ROOT.glob("support/*.py"), *ROOT.glob("report/*.py")])


def module_of(path):
    """report's files are one floor; of support/ each file has a place."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0] if parts[0] == "report" else ".".join(parts)


def imported(path):
    """The project's modules that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{name.name}" for name in node.names} | {node.module}
    return {f"report.{name.partition('.')[2]}".rstrip(".") if name.startswith("report") else name
            for name in names if name.split(".")[0] in ("report", *FLOOR) or name in FLOOR}


@pytest.mark.parametrize("path", PRODUCT, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_one_way(path):
    own = module_of(path)
    for name in imported(path):
        other = "report" if name.startswith("report") else name
        if other in FLOOR and other != own:
            assert FLOOR[other] < FLOOR[own], f"{own} imports {other}"


@pytest.mark.parametrize("path", PRODUCT, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_file_is_longer_than_a_reader_holds_in_mind(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    most = 450 if path.parent.name == "support" else 500
    assert len(lines) <= most and all(len(line) <= 100 for line in lines)


def test_nothing_else_stands_at_the_top():
    tracked = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    assert {line.split("/")[0] for line in tracked.stdout.splitlines()} == {
        *(f"{paper}.py" for paper in PAPERS), "common.py", "eval.py", "tests", "run_all.sh",
        "README.md", "requirements.txt", ".gitignore", ".gitattributes", ".ci", "support", "report",
        "docs", "results", "studies", "benchmarks"}

"""docs/equations.md is true: its names exist, and no equation, U or E is left out or untested."""
import ast
import importlib
import re

import pytest

from conftest import ROOT

PAGE = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
EQUATIONS = {"jrd": 16, "mdr": 7, "dml_da": 9}


def part(script):
    """A script's part of the page."""
    return re.search(rf"^## .*\(`{script}\.py`\)\n(.*?)^## ", PAGE, re.M | re.S)[1]


def names(text):
    return re.findall(r"`([a-z_]\w*\.[A-Za-z]\w*(?:\.\w+)*)`", text)


def exists(name):
    """Whether there is a 'jrd.jrs', 'support.runs.Run.finish', 'test_jrd.test_gaussian_kernel'"""
    module, _, path = name.partition(".")
    if module in ("support", "report"):
        more, _, path = path.partition(".")
        module += f".{more}"
    if module.startswith("test_"):
        file = ROOT / "tests" / f"{module}.py"
        return path.startswith("test_") and file.exists() and any(
            isinstance(node, ast.FunctionDef) and node.name == path
            for node in ast.parse(file.read_text(encoding="utf-8")).body)
    try:
        value = importlib.import_module(module)
        for word in path.split("."):
            value = getattr(value, word)
        return True
    except (ImportError, AttributeError):
        return False


def test_every_name_exists():
    wanted = {name for name in names(PAGE) if not name.endswith(".py")}
    assert len(wanted) > 90 and not [name for name in wanted if not exists(name)]
    for name in ("jrd.jsr", "mdr.MDR.updates", "test_jrd.test_nothing", "nowhere.jrs"):
        assert not exists(name)


@pytest.mark.parametrize("script", EQUATIONS)
def test_every_equation_stands_here_with_code_and_a_test(script):
    """Each number once as a formula, under the heading of its number, with names below."""
    numbers = []
    for section in re.split(r"^### ", part(script), flags=re.M)[1:]:
        title = re.match(r"Eq\. (\d+)(?:-(\d+))?: ", section)
        formulas = re.findall(r"^```math\n(.*?)\n```$", section, re.M | re.DOTALL)
        printed = [int(n) for f in formulas for n in re.findall(r"\\qquad \((\d+)\)", f)]
        if not title:
            assert not printed, section
            continue
        assert printed == list(range(int(title[1]), int(title[2] or title[1]) + 1)), title[0]
        code, _, tests = section.rpartition("tested by")
        assert any(not n.startswith("test_") for n in names(code)), title[0]
        assert names(tests) and all(n.startswith("test_") for n in names(tests)), title[0]
        numbers += printed
    assert numbers == list(range(1, EQUATIONS[script] + 1))


@pytest.mark.parametrize("script", EQUATIONS)
def test_every_silent_point_and_erratum_is_here(script):
    """Their numbers have no gap; each of the script's is here, and each U here that names the
    script is marked there."""
    source = (ROOT / f"{script}.py").read_text(encoding="utf-8")
    marked = {*re.findall(r"\b[UE]\d+\b", source)}
    rows = dict(re.findall(r"^\| ([UE]\d+) \| .* \| (.*) \|$", part(script), re.M))
    for letter in "UE":
        numbers = sorted(int(n[1:]) for n in rows if n[0] == letter)
        assert numbers == list(range(1, len(numbers) + 1))
    assert marked <= {*rows} and len(rows) >= 9
    for number, where in rows.items():
        assert {name.startswith("test_") for name in names(where)} == {True, False}, number
        assert number[0] == "E" or number in marked or f"`{script}." not in where, number

"""docs/map.md is true: its names exist, and no equation, U, E or D is left out or untested."""
import ast
import importlib
import importlib.util
import re

import numpy as np
import pytest

from conftest import ROOT, agrees

PAGE = (ROOT / "docs" / "map.md").read_text(encoding="utf-8")
EQUATIONS = {"jrd": 16, "mdr": 7, "dml_da": 9}


def parts():
    """{script: its part of the page}"""
    by_script = {}
    for part in re.split(r"^## ", PAGE, flags=re.M)[1:]:
        name = (re.match(r".*\(`(\w+)\.py`\)", part) or re.match(r"(\w+)", part)).group(1)
        by_script[name] = part
    return by_script


def rows(part):
    """The rows of a part's tables, a row a list of cells."""
    return [[cell.strip() for cell in line.strip("|\n ").split("|")]
            for line in part.splitlines() if line.startswith("| ")]


def names(text):
    return re.findall(r"`([a-z_]\w*\.[A-Za-z]\w*(?:\.\w+)*)`", text)


def defines(file, path):
    """Whether a test file defines `path`: a function's name."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == path for node in tree.body)


def exists(name):
    """Whether there is a 'jrd.jrs', 'support.runs.Run.finish', 'test_jrd.test_gaussian_kernel'"""
    module, _, path = name.partition(".")
    if module in ("support", "report"):
        more, _, path = path.partition(".")
        module += f".{more}"
    if module.startswith("test_"):
        file = ROOT / "tests" / f"{module}.py"
        return path.startswith("test_") and file.exists() and defines(file, path)
    try:
        value = importlib.import_module(module)
        for part in path.split("."):
            value = getattr(value, part)
        return True
    except (ImportError, AttributeError):
        return False


@pytest.mark.parametrize("name", sorted({n for n in names(PAGE) if not n.endswith(".py")}))
def test_every_name_exists(name):
    assert exists(name)


def test_a_name_that_does_not_exist_is_seen():
    for name in ("jrd.jsr", "mdr.MDR.updates", "test_jrd.test_nothing", "test_jrd.np",
                 "nowhere.jrs", "test_nowhere.test_jrs"):
        assert not exists(name)
    assert exists("common.Run.finish") and exists("test_jrd.test_gaussian_kernel")


@pytest.mark.parametrize("script", EQUATIONS)
def test_every_equation_stands_here_with_code_and_a_test(script):
    """Each number once as a formula, under the heading of its number, with names below."""
    numbers = []
    for section in re.split(r"^### ", parts()[script], flags=re.M)[1:]:
        title = re.match(r"Eq\. (\d+)(?:-(\d+))?: ", section)
        formulas = re.findall(r"^```math\n(.*?)\n```$", section, re.M | re.DOTALL)
        printed = [int(n) for f in formulas for n in re.findall(r"\\qquad \((\d+)\)", f)]
        if not title:
            assert not printed, section
            continue
        first, last = int(title[1]), int(title[2] or title[1])
        assert printed == list(range(first, last + 1)), title[0]
        code, _, tests = section.rpartition("tested by")
        assert any(not n.startswith("test_") for n in names(code)), title[0]
        assert names(tests) and all(n.startswith("test_") for n in names(tests)), title[0]
        numbers += printed
    assert numbers == list(range(1, EQUATIONS[script] + 1))


@pytest.mark.parametrize("script", EQUATIONS)
def test_every_silent_point_and_erratum_of_the_docstring_is_here(script):
    """... and a silent point is marked again in the script, if it acts there."""
    docstring = importlib.import_module(script).__doc__
    source = (ROOT / f"{script}.py").read_text(encoding="utf-8").split('"""', 2)[2]
    listed = docstring[docstring.index("(explained"):docstring.index("Shapes:")]
    in_script = set(re.findall(r"(?:^|  |Errata: |, )([UE]\d+) ", listed, re.M))
    here = {row[0]: row for row in rows(parts()[script]) if re.fullmatch(r"[UE]\d+", row[0])}
    assert set(here) == in_script and len(in_script) >= 9
    for number, (_, _, code, tests, *_) in here.items():
        assert names(code) and names(tests), number
        if number.startswith("U") and any(name.startswith(script) for name in names(code)):
            assert re.search(rf"\b{number}\b", source), number


def test_the_example_of_a_new_regularizer_works(tmp_path):
    """docs/extending.md's first section, put into a copy of dml_da.py where it says, trains and
    agrees; test_extending.py runs the other."""
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    page = page[:page.index("## In your own training")]
    function, names, branch, test = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    weight, choices = names.splitlines()
    source = (ROOT / "dml_da.py").read_text(encoding="utf-8")
    for old, new in ((r"^IMPLIED_DEFAULTS = .*\n", "\\g<0>" + weight + "\n"),
                     (r"^    add\(\"--regularizer\".*\n.*\n", choices + "\n"),
                     (r"^# -+ objective", function + "\n\n\\g<0>"),
                     (r"^    elif cfg.regularizer == \"gor\"", branch + "\\g<0>"),
                     (r"in \(\"en\", \"gor\"\)", "in (\"en\", \"gor\", \"spread\")")):
        source, times = re.subn(old, new, source, flags=re.M)
        assert times == 1, old
    (tmp_path / "extended.py").write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("extended", tmp_path / "extended.py")
    extended = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extended)
    space = {"dml_da": extended, "np": np, "agrees": agrees,
             "points": lambda: np.random.RandomState(0).standard_normal((9, 3))}
    exec(test + "test_spread_regularizer()", space)
    flags = ["--regularizer", "spread", "--epochs", "1", "--iterations", "1"]
    result = extended.train(extended.parse_args([*flags, "--out", str(tmp_path)]))
    assert 0 < result["last epoch"]["R@1"] < 1

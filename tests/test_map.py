"""docs/map.md is true: its names exist, and no equation, U, E or D is left out or untested."""
import importlib.util
import pkgutil
import re

import numpy as np
import pytest

from conftest import ROOT, agrees

PAGE = (ROOT / "docs" / "map.md").read_text(encoding="utf-8")
EQUATIONS = {"jrd": 16, "mdr": 7, "dml_da": 9}


def sections():
    """{script: its rows}, a row a list of cells."""
    parts = re.split(r"^## ", PAGE, flags=re.M)[1:]
    rows = {}
    for part in parts:
        name = (re.match(r".*\(`(\w+)\.py`\)", part) or re.match(r"(\w+)", part)).group(1)
        rows[name] = [[cell.strip() for cell in line.strip("|\n ").split("|")]
                      for line in part.splitlines() if line.startswith("| ")]
    return rows


def names(cell):
    return re.findall(r"`([a-z_]\w*\.[A-Za-z]\w*(?:\.\w+)*)`", cell)


@pytest.mark.parametrize("name", sorted({n for n in names(PAGE) if not n.endswith(".py")}))
def test_every_name_exists(name):
    module, _, function = name.partition(".")
    if module.startswith("test_"):
        source = (ROOT / "tests" / f"{module}.py").read_text(encoding="utf-8")
        assert re.search(rf"^def {function}\(", source, re.M)
    else:
        pkgutil.resolve_name(name)


@pytest.mark.parametrize("script", EQUATIONS)
def test_every_equation_has_code_and_a_test(script):
    covered = set()
    for cells in sections()[script]:
        numbers = re.fullmatch(r"(\d+)(?:-(\d+))?", cells[0])
        if numbers:
            first, last = int(numbers[1]), int(numbers[2] or numbers[1])
            covered |= set(range(first, last + 1))
            assert names(cells[2]) and names(cells[3]), cells
            assert all(n.startswith("test_") for n in names(cells[3]))
    assert covered == set(range(1, EQUATIONS[script] + 1))


@pytest.mark.parametrize("script", EQUATIONS)
def test_every_silent_point_and_erratum_of_the_docstring_is_here(script):
    page = importlib.import_module(script).__doc__
    listed = page[page.index("(explained"):page.index("Shapes:")]
    said = set(re.findall(r"(?:^|  |Errata: |, )([UE]\d+) ", listed, re.M))
    here = {cells[0]: cells for cells in sections()[script] if re.fullmatch(r"[UE]\d+", cells[0])}
    assert set(here) == said and len(said) >= 9
    for cells in here.values():
        assert names(cells[2]) and names(cells[3]), cells


def test_every_deviation_has_a_place_and_a_test():
    rows = [cells for cells in sections()["Deviations"] if re.fullmatch(r"D\d+", cells[0])]
    assert [cells[0] for cells in rows] == [f"D{i + 1}" for i in range(len(rows))] and rows
    for cells in rows:
        assert names(cells[2]) and names(cells[3]), cells


@pytest.mark.parametrize("script", EQUATIONS)
def test_every_silent_point_is_marked_in_the_script(script):
    """Once in the docstring and again where it acts, unless that is in common.py or eval.py."""
    source = (ROOT / f"{script}.py").read_text(encoding="utf-8").split('"""', 2)[2]
    for cells in sections()[script]:
        if re.fullmatch(r"U\d+", cells[0]) and any(n.startswith(script) for n in names(cells[2])):
            assert re.search(rf"\b{cells[0]}\b", source), cells[0]


def test_the_example_of_a_new_regularizer_works(tmp_path):
    """docs/extending.md's first section, put into a copy of dml_da.py where it says, trains and
    agrees; test_extending.py runs the other."""
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    page = page[:page.index("## In your own training")]
    function, names, branch, test = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    weight, choices = names.splitlines()
    source = (ROOT / "dml_da.py").read_text(encoding="utf-8")
    for old, new in ((r"^BRINGS = .*\n", "\\g<0>" + weight + "\n"),
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
    found = extended.train(extended.parse_args([*flags, "--out", str(tmp_path)]))
    assert 0 < found["last epoch"]["R@1"] < 1

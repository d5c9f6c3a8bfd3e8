"""docs/map.md is true: its names exist, and no equation, U, E or D is left out or untested."""
import importlib.util
import re

import numpy as np
import pytest

from conftest import ROOT, agrees

PAGE = (ROOT / "docs" / "map.md").read_text(encoding="utf-8")
EQUATIONS = {"jrd": 16, "mdr": 7, "dml_da": 9}


def from_file(name, path):
    """A module that is in no package."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


links = from_file("links", ROOT / "docs" / "map.py")


def parts():
    """{script: its part of the page}"""
    found = {}
    for part in re.split(r"^## ", PAGE, flags=re.M)[1:]:
        name = (re.match(r".*\(`(\w+)\.py`\)", part) or re.match(r"(\w+)", part)).group(1)
        found[name] = part
    return found


def sections():
    """{script: the rows of its tables}, a row a list of cells."""
    return {name: [[cell.strip() for cell in line.strip("|\n ").split("|")]
                   for line in part.splitlines() if line.startswith("| ")]
            for name, part in parts().items()}


def names(cell):
    return re.findall(r"`([a-z_]\w*\.[A-Za-z]\w*(?:\.\w+)*)`", cell)


@pytest.mark.parametrize("name", sorted({n for n in names(PAGE) if not n.endswith(".py")}))
def test_every_name_exists(name):
    file, line = links.place(name)
    last = name.split(".")[-1]
    assert re.search(rf"\b{last}\b", file.read_text(encoding="utf-8").splitlines()[line - 1])
    assert not name.startswith("test_") or last.startswith("test_")


def test_a_name_that_does_not_exist_is_seen():
    for name in ("jrd.jsr", "mdr.MDR.updates", "test_jrd.test_nothing", "nowhere.jrs", "jrd"):
        with pytest.raises(LookupError, match=name):
            links.place(name)
    assert links.place("common.Run.finish")[0].name == "runs.py"            # where it is from


def test_every_link_leads_to_the_line():
    fresh = links.with_links(PAGE) == PAGE
    assert fresh, "the code has moved: python docs/map.py writes the lines of docs/map.md anew"
    assert len(re.findall(r"#L\d+\)", PAGE)) > 80 and not re.search(r"(?<!\[)`test_\w+\.t", PAGE)


@pytest.mark.parametrize("script", EQUATIONS)
def test_every_equation_stands_here_with_code_and_a_test(script):
    """Each number once as a formula, under the heading of its number, with names below."""
    found = []
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
        found += printed
    assert found == list(range(1, EQUATIONS[script] + 1))


def test_formulas_are_balanced():
    """What a host would show as a red error instead of the formula."""
    formulas = re.findall(r"```math\n(.*?)\n```", PAGE, re.DOTALL)
    formulas += re.findall(r"\$`(.+?)`\$", PAGE)
    assert len(formulas) > 40
    for formula in formulas:
        bare = re.sub(r"\\[{}]", "", formula)
        assert bare.count("{") == bare.count("}") and "$" not in bare, formula
        assert formula.count(r"\left") == formula.count(r"\right"), formula
        assert re.findall(r"\\begin\{(\w+)\}", formula) == re.findall(r"\\end\{(\w+)\}", formula)


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
    for old, new in ((r"^IMPLIED_DEFAULTS = .*\n", "\\g<0>" + weight + "\n"),
                     (r"^    add\(\"--regularizer\".*\n.*\n", choices + "\n"),
                     (r"^# -+ objective", function + "\n\n\\g<0>"),
                     (r"^    elif cfg.regularizer == \"gor\"", branch + "\\g<0>"),
                     (r"in \(\"en\", \"gor\"\)", "in (\"en\", \"gor\", \"spread\")")):
        source, times = re.subn(old, new, source, flags=re.M)
        assert times == 1, old
    (tmp_path / "extended.py").write_text(source, encoding="utf-8")
    extended = from_file("extended", tmp_path / "extended.py")
    space = {"dml_da": extended, "np": np, "agrees": agrees,
             "points": lambda: np.random.RandomState(0).standard_normal((9, 3))}
    exec(test + "test_spread_regularizer()", space)
    flags = ["--regularizer", "spread", "--epochs", "1", "--iterations", "1"]
    found = extended.train(extended.parse_args([*flags, "--out", str(tmp_path)]))
    assert 0 < found["last epoch"]["R@1"] < 1

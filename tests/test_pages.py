"""Tables of Markdown pages are filled from the reports' CSV files (report/pages.py)."""
import pytest

import common
from conftest import ROOT
from report import pages

MARKED = [path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"),
                            *ROOT.glob("studies/*.md"), *ROOT.glob("results/*/notes.md")]
          if "<!-- from " in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", MARKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_marked_tables_are_filled(page, monkeypatch):
    """Otherwise: python -m report --fill PAGE"""
    monkeypatch.chdir(ROOT)
    text = page.read_text(encoding="utf-8")
    assert pages.with_tables(text) == text


TABLES = """\
paper,table,row,dataset,metric,paper's figure,ours,our std,"best on test, not to report",\
best on test's std,seeds,command,before training
jrd,1,JRD,glyphs,R@1,,53.76,0.6066,54.63,0.25,5,python jrd.py,46.9
jrd,1,AMSoftmax,glyphs,R@1,,not run,,,,0,python jrd.py --alpha 0,
mdr,1a,Triplet,cub,R@1,68.8,not run,,,,0,python mdr.py,
mdr,1a,Triplet,cars,R@1,88.5,not run,,,,0,python mdr.py,
"""
CLAIMS = """\
claim,must be above 0,on,seeds,estimate,half-width,verdict,Holm-adjusted verdict
J1,JRD - AMSoftmax,glyphs,20,-0.25,0.5,no larger than 0.26,undecided
J2,JRD - MRD,glyphs,0,,,not run,not run
"""


@pytest.fixture
def csv_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pages.csv_rows.cache_clear()
    (tmp_path / "t.csv").write_text(TABLES, encoding="utf-8")
    (tmp_path / "c.csv").write_text(CLAIMS, encoding="utf-8")


def table(file, heads, *lines):
    rows = [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *lines)]
    return "\n".join([f"Before.\n\n<!-- from {file} -->", *rows, "", "After.\n"])


@pytest.mark.parametrize("file, heads, before, after", [
    ("t.csv", ["*of*", "table", "row", "seeds", "command", "R@1", "pretrained R@1"],
     [["mine", "jrd 1", "JRD", "", "old", "1.0", ""],
      ["mine", "jrd 1", "AMSoftmax", "", "", "", ""]],
     [["mine", "jrd 1", "JRD", "5", "`python jrd.py`", "53.8 ± 0.6", "46.9"],
      ["mine", "jrd 1", "AMSoftmax", "0", "`python jrd.py --alpha 0`", "not run", "–"]]),
    ("t.csv", ["table", "row", "on", "paper's R@1"], [["mdr 1a", "Triplet", "cars", ""]],
     [["mdr 1a", "Triplet", "cars", "88.5"]]),
    ("c.csv", ["claim", "must be above 0", "estimate", "seeds", "verdict", "Holm-adjusted"],
     [["J1", "JRD - AMSoftmax", "", "", "", ""], ["J2", "JRD - MRD", "", "", "", ""]],
     [["J1", "JRD - AMSoftmax", "-0.25 [-0.75, +0.25]", "20", "no larger than 0.26", "undecided"],
      ["J2", "JRD - MRD", "–", "0", "not run", "not run"]])])
def test_a_marked_table_is_filled(file, heads, before, after, csv_files):
    assert pages.with_tables(table(file, heads, *before)) == table(file, heads, *after)


@pytest.mark.parametrize("file, heads, line, message", [
    ("none.csv", ["row"], ["a"], "no file none.csv"),
    ("t.csv", ["table", "row", "R@1"], ["jrd 9", "JRD", ""], "t.csv has no jrd 9, JRD"),
    ("t.csv", ["table", "row", "jrs"], ["jrd 1", "JRD", ""], "t.csv has no jrs of jrd 1, JRD"),
    ("t.csv", ["table", "row", "R@1"], ["mdr 1a", "Triplet", ""], "several, a column 'on'")])
def test_what_a_file_does_not_have_is_one_line(file, heads, line, message, csv_files, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(table(file, heads, line), encoding="utf-8")
    with pytest.raises(common.UserError, match=f"page.md: {message}|page.md: .*{message}"):
        pages.fill([page])
    assert page.read_text(encoding="utf-8") == table(file, heads, line)

"""Figures on Markdown pages are those of the reports' CSV files (report/pages.py)."""
import subprocess
import sys

import pytest

import common
from conftest import ROOT
from report import pages

HELD = ["README.md", "docs/glyphs.md",
        *(str(path.relative_to(ROOT)) for path in ROOT.glob("results/*/notes.md"))]
MARKED = sorted(page for page in {*HELD, *(f"docs/{path.name}" for path in ROOT.glob("docs/*.md"))}
                if "<!-- from " in (ROOT / page).read_text(encoding="utf-8"))


# ---------------------------------------------------------------------------- our pages
@pytest.mark.parametrize("page", HELD)
def test_every_figure_is_that_of_a_report_or_says_that_it_is_none(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    text = (ROOT / page).read_text(encoding="utf-8")
    assert pages.held(text) == (text, [])


@pytest.mark.parametrize("page", MARKED)
def test_marked_tables_are_filled(page, monkeypatch):
    """Otherwise: python -m report --fill PAGE"""
    monkeypatch.chdir(ROOT)
    text = (ROOT / page).read_text(encoding="utf-8")
    assert pages.held(text)[0] == text


# ---------------------------------------------------------------------------- how it works
TABLES = """\
paper,table,row,dataset,metric,paper's figure,paper's std,ours,our std,"best on test, not to report",\
best on test's std,seeds,command,before training,million images to run
jrd,1,JRD,glyphs,R@1,,,53.76,0.6066,54.63,0.25,5,python jrd.py,46.9,0.0
jrd,1,JRD,glyphs,jrs,,,0.0661,0.0009,,,5,python jrd.py,,0.0
jrd,1,AMSoftmax,glyphs,R@1,,,not run,,,,0,python jrd.py --alpha 0,,1.5
mdr,1a,"Triplet, λ = 2",cub,R@1,68.8,0.2,not run,,,,0,python mdr.py,,6.43
mdr,1a,"Triplet, λ = 2",cars,R@1,88.5,,not run,,,,0,python mdr.py,,6.43
"""
CLAIMS = """\
claim,must be above 0,on,seeds,estimate,half-width,verdict,Holm-adjusted verdict
J1,JRD - AMSoftmax,glyphs,20,-0.25,0.5,no larger than 0.26,no larger than 0.26
J2,JRD - MRD,glyphs,0,,,not run,not run
J3,JRD - JRD-C,glyphs,1,0.4,nan,undecided,undecided
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(TABLES, encoding="utf-8")
    (tmp_path / "c.csv").write_text(CLAIMS, encoding="utf-8")
    return tmp_path


def test_a_marked_table_is_filled(here):
    page = """\
Before.

<!-- from t.csv -->
| | table | row | seeds | command | R@1 | best R@1* | jrs | pretrained R@1 |
|---|---|---|---|---|---|---|---|---|
| mine | jrd 1 | JRD | | old | 1.0 | 2.0 ± 3.0 | | |
| mine | jrd 1 | AMSoftmax | | | | | kept | |

<!-- from t.csv -->
| table | row | on | paper's R@1 | million images to run |
|---|---|---|---|---|
| mdr 1a | Triplet, λ = 2 | cars | | |

<!-- from c.csv -->
| claim | must be above 0 | estimate | seeds | verdict | Holm-adjusted |
|---|---|---|---|---|---|
| J1 | JRD - AMSoftmax | | | | |
| J2 | JRD - MRD | | | | |
| J3 | JRD - JRD-C | | | | |
"""
    text, complaints = pages.held(page)
    assert [line for line in text.splitlines() if line.startswith(("| mine", "| mdr", "| J"))] == [
        "| mine | jrd 1 | JRD | 5 | `python jrd.py` | 53.8 ± 0.6 | 54.6 ± 0.2 | 0.066 ± 0.001 "
        "| 46.9 |",
        "| mine | jrd 1 | AMSoftmax | 0 | `python jrd.py --alpha 0` | not run | – | kept | – |",
        "| mdr 1a | Triplet, λ = 2 | cars | 88.5 | 6.43 |",
        "| J1 | JRD - AMSoftmax | -0.25 (-0.75 to +0.25) | 20 | no larger than 0.26 | "
        "no larger than 0.26 |",
        "| J2 | JRD - MRD | – | 0 | not run | not run |",
        "| J3 | JRD - JRD-C | +0.40 | 1 | undecided | undecided |"]
    assert complaints == [(3, "t.csv has no jrs of jrd 1, AMSoftmax")]
    assert pages.held(text) == (text, complaints)
    assert text.splitlines()[:5] == page.splitlines()[:5]


@pytest.mark.parametrize("page, said", [
    ("It has 53.8 and 54 of 100.\n<!-- t.csv: jrd 1 | JRD | R@1 -->", []),
    ("It has 53.76 ± 0.61, best 54.6, `1.5` x [1](a1.5b.md) at λ = 0.5.\n"
     "<!-- t.csv: jrd 1 | JRD | R@1;\n jrd 1 | JRD | best R@1 -->", []),
    ("It has 54.6.\n<!-- t.csv: jrd 1 | JRD | R@1 -->", ["54.6 is of no row that is named"]),
    ("It has 53.8.", ["53.8 is of no row that is named"]),
    ("- It has 53.8.\n- Or not. <!-- t.csv: jrd 1 | JRD | R@1 -->",
     ["53.8 is of no row that is named"]),
    ("From 46.9 on; 68.8 and 88.5 cost 6.4.\n<!-- t.csv: jrd 1 | JRD | pretrained R@1; mdr 1a | "
     "Triplet, λ = 2 | paper's R@1; mdr 1a | Triplet, λ = 2 | million images to run -->", []),
    ("Loses 0.25 (0.75 to -0.25), < 0.26.\n<!-- c.csv: J1 | JRD - AMSoftmax -->", []),
    ("At -0.25 it loses.\n<!-- c.csv: J1 | JRD - AMSoftmax -->", []),
    ("At +0.25 it gains.\n<!-- c.csv: J1 | JRD - AMSoftmax -->", []),
    ("At +0.75 it gains.\n<!-- c.csv: J1 | JRD - AMSoftmax -->",
     ["0.75 is of no row that is named"]),
    ("Loses 0.24.\n<!-- c.csv: J1 | JRD - AMSoftmax -->", ["0.24 is of no row that is named"]),
    ("Loses.\n<!-- c.csv: J9 | JRD - AMSoftmax -->", ["c.csv has no J9 | JRD - AMSoftmax"]),
    ("It weighs 5.6 GB, 1,234.5 s.\n<!-- elsewhere: 5.6, 1,234.5: du -->", []),
    ("It weighs 5 GB.\n<!-- elsewhere: 5.6: du -->", ["elsewhere: 5.6 is not here"]),
    ("| a |\n|---|\n| 1.5 |\n<!-- elsewhere: all: a command -->", []),
    ("| a |\n|---|\n| 1 |\n<!-- elsewhere: all: a command -->", ["elsewhere: all is idle"]),
    ("```\n1.5 s\n\n2.5 s\n```\ntorch 2.15.0, 1.5e-3", []),
    ("<!-- from t.csv -->\n\n| table | row |", [
        "no table stands right below <!-- from t.csv -->"]),
    ("<!-- from t.csv -->\n| table | row | R@1 |\n|---|---|---|\n| jrd 9 | JRD | 1.0 |",
     ["t.csv has no jrd 9, JRD"]),
    ("<!-- from t.csv -->\n| table | row | R@1 |\n|---|---|---|\n| mdr 1a | Triplet, λ = 2 | |",
     ["t.csv has several, a column 'on' says which, mdr 1a, Triplet, λ = 2"])])
def test_what_is_said_of_a_page(page, said, here):
    assert [what for _, what in pages.held(page)[1]] == said


def test_fill_writes_the_page_and_names_the_line(here):
    page = here / "page.md"
    page.write_text("# A page\n\nIt has 1.5.\n\n<!-- from t.csv -->\n| table | row | R@1 |\n"
                    "|---|---|---|\n| jrd 1 | JRD | |\n", encoding="utf-8")
    command = [sys.executable, "-m", "report", "--fill", "page.md"]
    done = subprocess.run(command, cwd=here, env={"PYTHONPATH": str(ROOT)}, text=True,
                          capture_output=True)
    assert (done.returncode, done.stdout) == (1, "page.md:3: 1.5 is of no row that is named\n")
    assert page.read_text(encoding="utf-8").endswith("| jrd 1 | JRD | 53.8 ± 0.6 |\n")
    page.write_text(page.read_text(encoding="utf-8").replace("1.5", "1"), encoding="utf-8")
    assert pages.fill(["page.md"]) == []
    for text, message in (("<!-- from none.csv -->\n| row |\n|---|\n| a |", "no file none.csv"),
                          (None, "no file gone.md")):
        if text:
            page.write_text(text)
        with pytest.raises(common.UserError, match=message):
            pages.fill(["page.md" if text else "gone.md"])

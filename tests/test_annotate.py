"""The side-by-side pages: every equation beside its code, one file each."""
import re

import pytest

pytest.importorskip("pygments")
pytest.importorskip("latex2mathml")
from conftest import ROOT  # noqa: E402
from report import annotate  # noqa: E402

EQUATIONS = {"jrd": 16, "mdr": 7, "dml_da": 9}
BESIDE = {("jrd", 10): "def jrs(", ("jrd", 11): "def objective(", ("jrd", 12): "def amsoftmax(",
          ("mdr", 2): "def update(", ("mdr", 5): "def forward(self, distances", ("mdr", 6):
          "def triplet_loss(", ("dml_da", 5): "def class_density(", ("dml_da", 8):
          "def density_regularizer("}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("annotated")
    annotate.annotate(path)
    return path


def text(markup):
    return re.sub(r"<[^>]*>", "", markup)


@pytest.mark.parametrize("paper", EQUATIONS)
def test_every_formula_stands_once_and_every_line_of_code(paper, folder):
    page = (folder / f"{paper}.html").read_text(encoding="utf-8")
    part = re.search(rf"^## {annotate.PAPERS[paper]} \(.*?(?=^## )", (ROOT / annotate.EQUATIONS)
                     .read_text(encoding="utf-8"), re.S | re.M)[0]
    assert page.count('<div class="formula"') == part.count("```math") > 6
    assert page.count("<math") == part.count("```math") + part.count("$`")
    for n in range(1, EQUATIONS[paper] + 1):
        assert page.count(f'id="eq-{n}"') == 1 and f'href="#eq-{n}"' in page
    assert page.count("<b>Paper:</b>") == part.count("**Paper:**") and "\\arg" not in page
    assert not re.search(r'mathvariant="script"', page), "a browser shows no such letters"
    for anchor in re.findall(r'href="#([^"]*)"', page):
        assert f'id="{anchor}"' in page
    source = (ROOT / f"{paper}.py").read_text(encoding="utf-8")
    for n in re.findall(r'"""Eq\. (\d+)', source):
        assert f'id="eq-{n}"' in page
    shown = {int(n) for n in re.findall(r'data-n="(\d+)"', page)}
    code = [i for i, line in enumerate(source.split("\n"), 1) if re.search(
        r"^\s*(def|class|return|if|for|with|[a-z_.]+ = )", line) and '"""' not in line]
    assert len(set(code) - shown) < 12, "lines of docstrings alone are left out"
    assert page.count("<dt>") == page.count("<dd>") > 9 and "<dt>Equation</dt><dd>where</dd>" in page
    head = page.split("<body>")[0]
    assert "http" not in re.sub(r'xmlns="[^"]*"|https?://[^"<]*</span>', "", head)


@pytest.mark.parametrize("paper, n", BESIDE)
def test_an_equation_stands_beside_its_code(paper, n, folder):
    page = (folder / f"{paper}.html").read_text(encoding="utf-8")
    section = next(part for part in page.split("<section") if f'id="eq-{n}"' in part)
    assert BESIDE[paper, n] in text(section.split("</div><div><pre>")[-1])

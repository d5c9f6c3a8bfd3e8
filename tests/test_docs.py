"""README and docs: links, anchors and pictures are there, commands and figures are right, and
docs/equations.md is true: its names exist, no equation, U or E is left out or untested, and each
equation stands beside its code in the pages that report --annotate makes."""
import base64
import functools
import html
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from operator import attrgetter

import pytest

import common
import dml_da
import jrd
import mdr
from conftest import ROOT
from report import __main__ as report
from report import judge, prepare
from support import command_line

PAGES = [path for folder in ("", "docs/**/", "results/**/", "benchmarks/", "studies/", "findings/")
         for path in sorted(ROOT.glob(f"{folder}*.md"))]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


# ---------------------------------------------------------------------------- links
def fenced(text, language=""):
    """-> the text of each block of this language, of shell lines if none is named"""
    blocks = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, re.M | re.DOTALL)
    return [block for name, block in blocks if name == language]


def prose(page):
    """A page without its fenced blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.DOTALL)


def anchors(page):
    """GitHub's: small letters, digits, - and _ stay, spaces become -."""
    titles = "\n".join(re.findall(r"^#{1,6} +(.+)$", prose(page), re.M))
    return re.sub(r"[^\w\n -]|²", "", titles.lower()).replace(" ", "-").splitlines()


def targets(page):
    """The files and headings that a page links to, pictures too -> [(file, name of a heading)]"""
    text = re.sub(r"(?<!\[)`[^`\n]+`(?!\])", "", prose(page))
    links = re.findall(r"\]\((?!http)([^)\s#]*)#?([^)\s]*)\)", text)
    return [((page.parent / path).resolve() if path else page, name) for path, name in links]


@each_page
def test_links_lead_somewhere(page):
    for file, name in targets(page):
        assert file.exists() and file.is_relative_to(ROOT), f"{file}: no such file"
        assert not name or name in anchors(file), f"{file}#{name}: no such heading"


def test_every_page_is_reached_from_the_readme():
    reached = [ROOT / "README.md"]
    for page in reached:                                # which grows
        for file, _ in targets(page):
            if file.suffix == ".md" and file not in reached:
                reached.append(file)
    assert set(PAGES) <= set(reached)


@each_page
def test_formulas_survive_markdown(page):
    """Between bare dollars GitHub reads Markdown first: \\, becomes a comma, )_ begins emphasis.
    Displayed formulas stand in ```math, which it leaves alone."""
    text = re.sub(r"\$`.+?`\$|`[^`\n]*`", "", prose(page))
    for formula in re.findall(r"\$(.+?)\$", text):
        eaten = re.search(r"\\[!-/:-@[-`{-~]|(?<![A-Za-z0-9])_|\*|<[A-Za-z/!]", formula)
        assert not eaten, formula


# ---------------------------------------------------------------------------- commands
EXAMPLE = ["python", "dml_da.py", "--regularizer", "anisotropy"]     # docs/extending.md adds it
OTHERS = "bash pip git source sed sbatch scontrol".split()
PARSERS = {"jrd.py": jrd, "mdr.py": mdr, "dml_da.py": dml_da, "eval.py": judge,
           "common.py": prepare, "report": report, "run_all.sh": report}


def shell_lines(page):
    """The lines that a page has a person paste into a shell."""
    for block in fenced(page.read_text(encoding="utf-8")):
        yield from block.splitlines()


@each_page
def test_a_pasted_line_has_no_comment_and_closes_its_quotes(page):
    """At the prompt of zsh, the Mac's shell, # is a word and an apostrophe begins a quote."""
    for line in shell_lines(page):
        assert not re.search(r"(^|\s)#", line), line
        assert shlex.split(line), line


def commands(page):
    """What a page has a person type, in its shell blocks or between backticks -> lists of words"""
    lines = list(shell_lines(page))
    lines += re.findall(r"(?<!`)`((?:python|bash) [^`\n]+)`(?!`)", prose(page))
    for line in lines:
        for part in re.split(r"[;|]|\bdo\b", line):
            words = shlex.split(re.sub(r"^ *(\w+=\S+ +)+", "", part))
            if ">" in words:
                words = words[:words.index(">")]
            if words and words[0] in ("python", *OTHERS):
                yield ["0" if word.startswith("$") else word for word in words]


def accepted(words):
    """Let a script's own parse_args read its command; of the other scripts only the flags are
    looked up.  AssertionError: no such flag.  OSError: no such script.  SystemExit: refused."""
    program, script, *flags = words
    if script == "-m":
        script, *flags = flags
    if script == "run_all.sh":
        flags = [flag for flag in flags if flag not in ("--test", "--jobs", "2")]
    if script in PARSERS:
        PARSERS[script].parse_args(flags)
    elif program in ("python", "bash"):
        source = (ROOT / script).read_text(encoding="utf-8")
        for flag in flags:                              # some hand flags on to a paper's script
            setting = flag.removeprefix("--").replace("-", "_")
            assert (not flag.startswith("--") or f'"{flag}"' in source
                    or setting in command_line.SHARED | jrd.SETTINGS), flag


@each_page
def test_commands_are_understood(page, capsys):
    told = [*commands(page)]
    assert told or page.name != "README.md"
    for words in (words for words in told if words != EXAMPLE):
        try:
            accepted(words)
        except (AssertionError, SystemExit, OSError, common.UserError) as error:
            pytest.fail(f"{shlex.join(words)}: {capsys.readouterr().err or error}")


# ---------------------------------------------------------------------------- figures, lectures
@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="Windows, where no SLURM is")
def test_a_task_of_slurm_ends_as_its_command_or_is_requeued(tmp_path):
    """... while its command still runs: job.sh of docs/running.md, with a stand-in for scontrol."""
    (job,) = fenced((ROOT / "docs" / "running.md").read_text(encoding="utf-8"), "bash")
    (tmp_path / "commands.txt").write_text(
        "true\nexit 3\nbash -c 'echo $OMP_NUM_THREADS > log; for i in {1..200}; do "
        "[ ! -e requeued ] || exit; sleep 0.05; done; echo late >> log'\n")
    scontrol, log, requeued = (tmp_path / name for name in ("scontrol", "log", "requeued"))
    scontrol.write_text('#!/bin/sh\necho "$*" > requeued\n')
    scontrol.chmod(0o755)

    def task(number):
        return subprocess.Popen(["bash", "-c", job], cwd=tmp_path, env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_CPUS_PER_TASK": "8",
            "SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": str(number)})
    assert (task(1).wait(), task(2).wait(), requeued.exists()) == (0, 3, False)
    process = task(3)
    while not log.exists() or not log.read_text():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    process.wait()
    assert (log.read_text(), requeued.read_text()) == ("8\n", "requeue 70_3\n")


DECIDED = (ROOT / "results" / "cub128" / "decided.md").read_text(encoding="utf-8")


def test_the_readme_has_the_figures_of_the_report():
    """In its table gains, intervals and adjusted p of each family are decided.md's."""
    _, on_squeezenet, on_networks, anew = DECIDED.split("## By seeds")
    lines = re.findall(r"^\| (\S+.*? - .*?) \|(.*)\|$", (ROOT / "README.md").read_text("utf-8"), re.M)
    assert len(lines) == 6
    for difference, told in lines:
        _, *families = [cell.strip() for cell in told.split("|")]
        for family, gain, p in ((on_squeezenet, *families[:2]), (on_networks, *families[2:4]),
                                (anew, *families[4:])):
            if gain and not gain.startswith("not "):
                row = re.search(rf"^\| {re.escape(difference)} .*", family, re.M)[0]
                decided = [cell.strip() for cell in row.split("|")]
                assert decided[2].startswith(gain.partition(" on ")[0]), (difference, gain)
                assert decided[5] == p, (difference, p)


def test_what_was_decided_is_told_as_it_was():
    on_squeezenet = DECIDED.split("## By seeds")[1]
    undecided = re.findall(r"^\| (.*?) +\|.*\| undecided +\|", on_squeezenet, re.M)
    assert undecided == ["DML-DA N-pair - N-pair"]
    page = prose(ROOT / "results" / "cub128" / "README.md")
    assert "After Holm's correction all but N-pair's are significant." in page


each_paper = pytest.mark.parametrize("script, equations", [("jrd", 16), ("mdr", 7), ("dml_da", 9)])


@each_paper
def test_the_lines_of_a_lecture_stand_in_the_script(script, equations):
    """Five quoted ones, one changed by each exercise, whose --compare names its runs."""
    page = (ROOT / "docs" / "lectures" / f"{script}.md").read_text(encoding="utf-8")
    source = (ROOT / f"{script}.py").read_text(encoding="utf-8")
    quoted = "".join(fenced(page, "python")).splitlines()
    assert len(quoted) == 5 and {*quoted} <= {line.strip() for line in source.splitlines()}
    exercises = re.split(r"^### ", page[page.index("## Exercises"):], flags=re.M)[1:]
    assert len(exercises) == 3
    for exercise in exercises:
        (diff,) = fenced(exercise, "diff")          # test_extending.py applies it
        (old,), (new,) = (re.findall(rf"^\{sign}([^-+].*)", diff, re.M) for sign in "-+")
        assert source.count(f"\n{old}\n") == 1 and old != new, diff
        name, = set(re.findall(r"--name ([\w-]+)", exercise))
        assert f"-{name}" in re.search(r"--compare .*", exercise)[0]


def test_the_similarities_of_the_lecture_on_jrd(capsys):
    (code,) = fenced((ROOT / "docs" / "lectures" / "jrd.md").read_text(encoding="utf-8"), "py")
    exec(code, {})
    printed, want = (re.findall(r"0\.\d+", text) for text in (capsys.readouterr().out,
                                                             code.rpartition("#")[2]))
    assert [float(x) for x in printed] == pytest.approx([float(x) for x in want], abs=1e-3)
    assert len(want) == 2


# ---------------------------------------------------------------------------- equations
EQUATIONS = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")


def part(script):
    """A script's part of the page."""
    return re.search(rf"^## .*\(`{script}\.py`\)\n(.*?)^## ", EQUATIONS, re.M | re.S)[1]


def names(text):
    """-> 'jrd.jrs', 'support.runs.Run.finish', 'test_jrd.test_gaussian_kernel', ..."""
    return re.findall(r"`([a-z_]\w*\.[A-Za-z]\w*(?:\.\w+)*)`", text)


def test_every_name_exists():
    wanted = {name for name in names(EQUATIONS) if not name.endswith(".py")}
    assert len(wanted) > 90
    for name in wanted:
        module, path = re.fullmatch(r"((?:support\.|report\.)?\w+)\.(.*)", name).groups()
        attrgetter(path)(importlib.import_module(module))
        assert path.startswith("test_") or not module.startswith("test_")


@each_paper
def test_every_equation_stands_here_with_code_and_a_test(script, equations):
    """Each number once as a formula, under the heading of its number, with names below."""
    numbers = []
    for section in re.split(r"^### ", part(script), flags=re.M)[1:]:
        title = re.match(r"Eq\. (\d+)(?:-(\d+))?: ", section)
        formulas = "".join(fenced(section, "math"))
        printed = [int(n) for n in re.findall(r"\\qquad \((\d+)\)", formulas)]
        if not title:
            assert not printed, section
            continue
        assert printed == list(range(int(title[1]), int(title[2] or title[1]) + 1)), title[0]
        code, _, tests = section.rpartition("tested by")
        assert "`test_" not in code and names(code), title[0]
        assert names(tests) and len(names(tests)) == tests.count("`test_"), title[0]
        numbers += printed
    assert numbers == list(range(1, equations + 1))


@each_paper
def test_every_silent_point_and_erratum_is_here(script, equations):
    """Without gaps; each of the script's is here, each U here that names it is marked there."""
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


def test_a_formula_is_broken_as_a_typesetter_would():
    """Before a relation, else before a sign between terms, else between factors, else in brackets;
    never in a script, a fraction or at a sign that belongs to one term; short pieces stay whole."""
    annotate = pytest.importorskip("report.annotate", reason="needs pygments and latex2mathml")

    def pieces(latex):
        math = re.findall("<math.*?</math>", annotate.formula(latex))
        return [html.unescape(re.sub("<[^>]*>", "", piece)) for piece in math]
    long = "+".join("abcdefgh")
    assert pieces(f"x_{{i=1}}^-=-y_{{{long}}}+z") == ["xi=1−", "=−ya+b+c+d+e+f+g+h+z"]
    assert pieces(rf"y\leq\frac{{{long}{long}}}{{2}}-\sum_{{i<j}}{{({long})}}z") == [
        "y", f"≤{long}{long}2", f"−∑i<j({long})z"]
    assert pieces(rf"y=\log{{{long}}}\,k(x)\,{{{long}}}") == ["y", f"=log{long}", "k(x)", long]
    assert pieces(rf"\max\left(0,m_{{{long}{long}}}-D(x-y)\right)^2") == [
        "max(0,", f"m{long}{long}", "−D(x−y))2"]
    rows = annotate.formula(r"\begin{aligned}a&=b\\&=c\end{aligned}")
    assert rows.count('<div class="row"') == rows.count('<div class="row on"') == 1
    signs = re.findall(r"<mo[^>]*>(?=&#x0003D;)", rows)
    assert signs == ['<mo form="infix">'] * 2, "blanks on both sides"
    assert annotate.width(annotate.mathml("abcd")) == pytest.approx(2.4)
    assert annotate.width(annotate.mathml(r"\frac{abcd}{e}x^{ab}")) == pytest.approx(4.04)


@pytest.mark.parametrize("file, change, told", [
    ("docs/equations.md", ("[`jrd.intra_class`](../jrd.py) (without", "(without"),
     "equations.md: Eq. 4: the intra-class penalty of Fig. 2 names no function or class, in the "),
    ("docs/equations.md", ("`jrd.intra_class`](../jrd.py) (without", "`jrd.intra`](../jrd.py) ("),
     "docs/equations.md names jrd.intra, which jrd.py has not"),
    ("docs/equations.md", ("`test_jrd.test_intra_class`", "`test_jrd.test_intra`"),
     "docs/equations.md names test_jrd.test_intra, which tests/test_jrd.py has not"),
    ("docs/equations.md", ("\n## JRD (", "\n## (JRD "), "docs/equations.md has no '## JRD ('"),
    ("jrd.py", ("  1-3   λ and d_H of ε_u <= ε_s + d_H + λ (E6)  eval", "  1-3 λ and d_H, eval"),
     "jrd.py: a line of its table of equations needs a number, what and where, two blanks between, "
     "not '1-3 λ and d_H, eval.generalization_bound'"),
    ("docs/equations.md", (r"\lVert", r"\argg{\lVert"), r"cannot set the formula '"),
    ("docs/lectures/mdr.md", ("](mdr_mechanism.png)", "]()"),
     "docs/lectures/mdr.md needs a picture, ![what it shows](NAME.png), and below it a caption"),
    ("jrd.py", ("\n    S, weight =", "\n\n\n    S, weight ="), "two blank lines may not stand")])
def test_pages_of_what_is_broken_are_a_line(file, change, told, tmp_path, typed, monkeypatch,
                                            request):
    annotate = pytest.importorskip("report.annotate", reason="needs pygments and latex2mathml")
    for pattern in ("*.py", "support/*.py", "tests/*.py", "docs/eq*.md", "docs/lectures/*",
                    "report/annotate.css"):
        for path in ROOT.glob(pattern):
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(exist_ok=True, parents=True)
            copy.write_bytes(path.read_bytes())
    text = (tmp_path / file).read_text(encoding="utf-8")
    assert change[0] in text
    (tmp_path / file).write_text(text.replace(*change), encoding="utf-8")
    monkeypatch.setattr(annotate, "ROOT", tmp_path)
    annotate.highlighted.cache_clear()                  # now of the real files, later of the copies
    request.addfinalizer(annotate.highlighted.cache_clear)
    status, _, stderr = typed("report", "--annotate", "--out", tmp_path / "pages")
    assert status == 2 and told in stderr and stderr.count("\n") == 1


@pytest.fixture(scope="module")
def annotated(tmp_path_factory):
    """The folder of the side-by-side pages"""
    annotate = pytest.importorskip("report.annotate", reason="needs pygments and latex2mathml")
    folder = tmp_path_factory.mktemp("annotated")
    annotate.annotate(folder)
    return folder


@pytest.fixture
def web_page(script, annotated):
    """A script's side-by-side page"""
    return (annotated / f"{script}.html").read_text(encoding="utf-8")


def letters(of_page):
    return html.unescape(re.sub(r"<[^>]*>|\s", "", of_page))


FIGURE = "<figure>.*?</figure>"


@each_paper
def test_every_formula_stands_once_beside_its_code_and_every_line(script, equations, web_page):
    """... whole, and its number leads to the code."""
    from report import annotate
    page, markdown = re.sub(FIGURE, "", web_page, flags=re.S), part(script)
    formulas = fenced(markdown, "math")
    assert page.count('<div class="formula"') == len(formulas) > 6
    for latex in formulas:
        bare = re.sub(r"\\qquad \(\d+\)", "", latex)
        assert letters(annotate.mathml(bare, "block")) in letters(page)
        assert letters(annotate.formula(bare)) == letters(annotate.mathml(bare, "block"))
        for piece in re.findall("<math.*?</math>", annotate.formula(bare)):
            assert annotate.width(piece) < 18, "a phone's column, at its size of formulas"
    assert page.count('display="inline">') == markdown.count("$`")
    for n in range(1, equations + 1):
        (code,) = re.findall(rf'id="eq-{n}" href="#(.*?)"', page)
        (section,) = [s for s in page.split("<section") if f'id="eq-{n}"' in s]
        assert f'<div id="{code}"><pre>' in section and f'href="#eq-{n}"' in page
    for unshown in ("\\arg", 'mathvariant="script"'):          # a browser shows no such letters
        assert unshown not in page
    for anchor in re.findall(r'href="#([^"]*)"', page):
        assert f'id="{anchor}"' in page
    source = (ROOT / f"{script}.py").read_text(encoding="utf-8")
    shown = {int(n) for n in re.findall(r'data-n="(\d+)"', page)}
    code = [i for i, line in enumerate(source.split("\n"), 1) if re.search(
        r"^\s*(def|class|return|if|for|with|[a-z_.]+ = )", line) and '"""' not in line]
    assert len(set(code) - shown) < 12, "lines of docstrings alone are left out"
    assert page.count("<pre>") == page.count("<pre><i"), "columns of a docstring as they are"
    assert page.count('<ul class="commands">') == page.count("<table>") == 1
    assert "\\*" not in page and source.count("\n    python ") == page.count("<li><code>python ")
    columns = re.search(r"\nEquation  .*?\n\n", source, re.S)[0]
    assert page.count("<tr>") - 1 == len(re.findall(r"^  \S", columns, re.M)) > 6


def sections(page):
    """The parts of a page -> {name of the code: HTML}"""
    return {re.search(r'<div id="([^"]*)"><pre>', section)[1]: section
            for section in re.findall("<section>.*?</section>", page, re.S)}


@each_paper
def test_the_links_lead_to_equations_and_to_notes_where_they_act(script, equations, web_page):
    rows = dict(re.findall(r"^\| ([UE]\d+) \| .* \| (.*) \|$", part(script), re.M))
    (nav,) = re.findall("<nav>(.*?)</nav>", web_page, re.S)
    links = re.findall('href="#([^"]*)"', nav)
    assert sorted(links) == sorted([*rows, *(f"eq-{n}" for n in range(1, equations + 1))])
    for point, where in rows.items():
        (code,) = [name for name, told in sections(web_page).items() if f'id="{point}"' in told]
        assert any(f"{name}.".startswith(f"{code}.") for name in names(where)), point


@each_paper
def test_each_test_of_an_equation_is_listed_below_it_and_folded(script, equations, web_page):
    for section in re.split(r"^### ", part(script), flags=re.M)[1:]:
        told, tested, tests = section.partition("tested by")
        if not tested:
            continue
        heading = letters(told.partition("\n")[0])
        (shown,) = [side for side in web_page.split("<h3>") if letters(side).startswith(heading)]
        for name in names(tests):
            summary = f"<details><summary><code>{name}</code></summary>"
            (folded,) = re.findall(f"{summary}(.*?)</details>", shown, re.S)
            assert re.search(rf"(def|class){name.rpartition('.')[2]}\b", letters(folded)), name


@each_paper
def test_of_the_code_parse_args_alone_is_folded(script, equations, web_page):
    """It belongs to no equation and to no note."""
    (folded,) = re.findall("</summary><section>(.*?)</section></details>", web_page, re.S)
    assert re.findall('<div id="([^"]*)"><pre>', folded) == [f"{script}.parse_args"]
    assert not re.search(r'id="(eq-\d+|[UE]\d+)"', folded)


@each_paper
def test_the_regularizer_has_the_picture_of_its_lecture(script, equations, web_page):
    """... within the page, with its alternative text and its caption"""
    code = {"jrd": "jrd.jrs", "mdr": "mdr.MDR", "dml_da": "dml_da.density_regularizer"}[script]
    (figure,) = re.findall(FIGURE, sections(web_page)[code], re.S)
    shows, png = re.search('<img alt="(.*?)" src="data:image/png;base64,(.*?)">', figure).groups()
    picture = ROOT / "docs" / "lectures" / f"{script}_mechanism.png"
    assert base64.b64decode(png) == picture.read_bytes() and web_page.count("<img") == 1
    lecture = picture.with_name(f"{script}.md").read_text(encoding="utf-8")
    assert len(shows) > 20 and f"![{html.unescape(shows)}]({picture.name})\n\n*" in lecture
    caption = re.search("<figcaption>(.*)</figcaption>", figure, re.S)[1]
    assert f"\n*{caption[:9]}" in lecture and len(caption) > 200
    assert not re.search(r"\$|\]\(|script", caption), "formulas are set, no link leads out"
    assert len(web_page) < 300_000, "a picture of 256 colours"


@each_paper
def test_the_code_is_coloured_in_both_themes(script, equations, web_page):
    """In the dark theme every word that has a colour is light, in the light theme dark."""
    style = re.search("<style>(.*?)</style>", web_page, re.S)[1]
    light, dark, _ = style.split("@media (prefers-color-scheme: dark) {")
    kinds = {*re.findall(r'<span class="(\w+)">', web_page)} - {"w"}         # white space
    for theme, rules in (("light", light), ("dark", light + dark)):
        colours = dict(re.findall(r"^\W*pre \.(\w+) \{ color: #(\w+)", rules, re.M))
        assert len(kinds & {*colours}) > 8, theme
        for kind in kinds & {*colours}:
            colour = colours[kind]
            if len(colour) == 3:                        # #04D is #0044DD
                colour = "".join(2 * digit for digit in colour)
            red, green, blue = bytes.fromhex(colour)
            bright = 0.3 * red + 0.59 * green + 0.11 * blue
            assert (bright > 130) == (theme == "dark"), (theme, kind, colour)


# What a browser made of each page, in a frame as wide as a screen and in one as wide as a phone.
MEASURE = """<!DOCTYPE html><link rel="icon" href="data:,">
<style>iframe { border: 0; height: 900px }</style>%s<pre id="measured"></pre><script>
const box = node => node.getBoundingClientRect().toJSON()
addEventListener("load", () => {
  const measured = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument
    const boxes = selector => [...page.querySelectorAll(selector)].map(box)
    return {
      page: new URL(frame.src).pathname.slice(1), phone: frame.clientWidth == 400,
      width: page.documentElement.clientWidth, needs: page.documentElement.scrollWidth,
      linked: box(page.querySelector(":target")), formulas: boxes(".formula").length,
      cut: [...page.querySelectorAll(".formula")].filter(
        formula => formula.scrollWidth > formula.clientWidth).length,
      pieces: boxes(".formula math"), fractions: boxes(".formula mfrac"),
      picture: box(page.querySelector("img")), pixels: page.querySelector("img").naturalWidth,
      columns: [...page.querySelectorAll("body > section")].map(
        section => [...section.children].slice(0, 2).map(box)),
      unfolded: [...page.querySelectorAll("details > section, details > pre")].filter(
        node => node.checkVisibility()).length}
  })
  document.getElementById("measured").textContent = JSON.stringify(measured)
})</script>"""
LINKED = {"jrd": "eq-10", "mdr": "eq-5", "dml_da": "eq-8"}


@pytest.fixture(scope="module")
def measured(annotated, tmp_path_factory):
    """What MEASURE says of all pages, what the browser asked for, what it printed on stderr.  A
    server hands the pages over, because a Chromium of snap, as Ubuntu's, sees no /tmp."""
    chromium = (shutil.which("chromium") or shutil.which("chromium-browser")
                or shutil.which("google-chrome"))
    if not chromium:
        pytest.skip("there is no chromium, chromium-browser or google-chrome")
    told = subprocess.run([chromium, "--version"], capture_output=True, text=True)
    version = re.search(r" (\d+)\.", told.stdout)
    if told.returncode or not version or int(version[1]) < 105:         # Ubuntu's may be a stub
        pytest.skip(f"{chromium} is none, or older than 105, the first with checkVisibility")
    asked, frames = [], ""
    for script, equation in LINKED.items():
        for width in (1280, 400):
            frames += f'<iframe src="{script}.html#{equation}" style="width: {width}px"></iframe>'
    (annotated / "measure.html").write_text(MEASURE % frames, encoding="utf-8")

    class Handler(SimpleHTTPRequestHandler):
        def log_request(self, *_):
            asked.append(self.path)
    handler = functools.partial(Handler, directory=annotated)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = subprocess.run(
            [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--enable-logging=stderr",
             f"--user-data-dir={tmp_path_factory.mktemp('chromium')}", "--dump-dom",
             f"http://127.0.0.1:{server.server_port}/measure.html"],
            capture_output=True, text=True, timeout=120)
        server.shutdown()
    dom = re.search('<pre id="measured">(.+?)</pre>', done.stdout, re.S)
    assert dom, done.stderr
    return json.loads(html.unescape(dom[1])), asked, done.stderr


@each_paper
def test_a_browser_lays_out_the_formulas_and_the_columns(script, equations, web_page, measured):
    frames, asked, printed = measured
    assert "CONSOLE" not in printed, "an error of a script or of the page"
    assert {*asked} == {"/measure.html", *(f"/{name}.html" for name in LINKED)}, "it stands alone"
    frames = [frame for frame in frames if frame["page"] == f"{script}.html"]
    assert [frame["phone"] for frame in frames] == [False, True]
    for frame in frames:
        assert frame["needs"] == frame["width"] > 380, "nobody scrolls sideways"
        assert 0 <= frame["linked"]["top"] < 900, "the link shows its equation"
        assert frame["formulas"] == web_page.count('<div class="formula"') and frame["cut"] == 0
        assert all(box["width"] > 5 and box["height"] > 5 for box in frame["pieces"])
        assert max(box["height"] for box in frame["fractions"]) > 25, "one above the other"
        assert frame["pixels"] > 1000 and frame["picture"]["right"] <= frame["width"]
        assert frame["unfolded"] == 0
        assert len(frame["columns"]) == web_page.count("<section>") - 1 > 15
        for paper, code in frame["columns"]:
            if frame["phone"]:
                assert paper["bottom"] <= code["top"] and paper["left"] == code["left"]
            else:                                   # the code stays in sight of a long paper side
                assert paper["top"] <= code["top"] <= paper["bottom"]
                assert paper["right"] < code["left"]
            assert paper["width"] > 300 and code["width"] > 300 and code["height"] > 10

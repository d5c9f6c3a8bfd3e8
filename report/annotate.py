"""`python -m report --annotate [--out DIR]`: a page per script, the paper left, the code right."""
import ast
import functools
import html
import os
import re
from collections import defaultdict

from latex2mathml.converter import convert
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from report.experiments import NAMES, SCRIPTS
from support.files import ROOT, atomic

MARKS = {r"(?<![\w-])(--[a-z][\w-]*)": r'<span class="flag">\1</span>',
         r"\[(.*?)\]\([^)]*\)": r"\1", "`(.*?)`": r"<code>\1</code>",
         r"\*\*(.*?)\*\*": r"<b>\1</b>", r"\*(\w.*?)\*": r"<em>\1</em>"}     # in this order
NUMBER = r"\\qquad \((\d+)\)"                            # of an equation
HOW_TO_READ = """Each part has the paper on the left and its code on the right (below, on a narrow
    screen). Notes say what the paper leaves open (U) or gets wrong (E). The links lead to
    equations and notes, the number of an equation to its code. Click a test to read it."""


# ---------------------------------------------------------------------------- left: the paper
def mathml(latex, display="inline"):
    """LaTeX -> MathML, with what latex2mathml 3.81.1 lacks: aligned, arg min, script words"""
    latex = latex.replace("{aligned}", "{align*}").replace(r"\arg\min", r"\operatorname{argmin}")
    return convert(latex.replace("RKHS", r"R}\mathcal{K}\mathcal{H}\mathcal{S"), display=display)


def inline(markdown):
    """Markdown -> HTML without links, because the page stands alone"""
    page = ""
    for i, part in enumerate(re.split(r"\$`(.*?)`\$", markdown)):
        if i % 2:
            page += mathml(part)
            continue
        part = html.escape(part, quote=False)
        for mark, tag in MARKS.items():
            part = re.sub(mark, tag, part)
        page += part
    return page


def paragraphs(markdown, code=None):
    """... of paragraphs: formulas, whose numbers lead to the code, columns as they are, and text"""
    page = ""
    for paragraph in markdown.strip().split("\n\n"):
        if paragraph.startswith("```math"):
            latex, number = paragraph[7:-3], re.search(NUMBER, paragraph)
            if number:
                n, latex = number[1], latex.replace(number[0], "")
                page += f'<a class="number" id="eq-{n}" href="#{code}">({n})</a>'
            page += f'<div class="formula">{mathml(latex, "block")}</div>'
        elif "   " in paragraph:
            page += f"<pre>{inline(paragraph)}</pre>"
        else:
            page += f"<p>{inline(paragraph)}</p>"
    return page


def paper_side(paper, text):
    """A paper's part of docs/equations.md -> {(function, file): its left side}.  An equation stands
    at the first function that its part names, a method at its class."""
    place = re.compile(rf"`({paper}\.\w+|[a-z_]\w*(?:\.\w+)+)\S*`\]\(\.\./(.*?)\)")
    left = defaultdict(str)
    for part in re.split("^### ", text, flags=re.M):
        told, tested, tests = part.partition(", tested by")
        if tested:
            heading, _, body = told.partition("\n")
            code = place.search(body).groups()
            left[code] += f"<h3>{heading}</h3>{paragraphs(body, code[0])}"
            for test, path in place.findall(tests):
                left[code] += (f"<details><summary><code>{test}</code></summary>"
                               f"{source_of(test, path)}</details>")
    for point, choice, where in re.findall(r"^\| ([UE]\d+) \| (.*?) \| (.*?) \|", text, re.M):
        left[place.search(where).groups()] += (
            f'<p class="note" id="{point}"><b>{point}</b> {inline(choice)}</p>')
    return left


# ---------------------------------------------------------------------------- right: the code
@functools.cache
def highlighted(path):
    """A Python file -> its text, its lines as HTML, each with its number"""
    text = (ROOT / path).read_text(encoding="utf-8")
    page = highlight(text, PythonLexer(), HtmlFormatter(nowrap=True))
    return text, [f'<i data-n="{n}">{line}</i>' for n, line in enumerate(page.split("\n"), 1)]


def source_of(name, path):
    """eval.nmi, support.runs.Run.finish, test_jrd.test_jrs and its file -> its listing"""
    text, lines = highlighted(path)
    for node in ast.walk(ast.parse(text)):
        if getattr(node, "name", None) == name.rpartition(".")[2]:
            return listing(lines[node.lineno - 1:node.end_lineno])


def listing(lines):
    return f"<pre>{''.join(lines)}</pre>"


def parts_of(paper):
    """A script, split at two blank lines -> (name, docstring, listing without it) of each part"""
    text, lines = highlighted(f"{paper}.py")
    first = 0
    for chunk in text.split("\n\n\n"):
        node, after = ast.parse(chunk), first + chunk.count("\n") + 1
        if hasattr(node.body[0], "name"):                   # a function or a class
            node = node.body[0]
        doc, code = ast.get_docstring(node) or "", lines[first:after]
        if doc:
            del code[node.body[0].lineno - 1:node.body[0].end_lineno]
        yield f"{paper}.{getattr(node, 'name', first)}", doc, listing(code)
        first = after + 2


# ---------------------------------------------------------------------------- a page
def page(paper):
    text = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
    text = re.search(rf"^## {NAMES[paper]} \(.*?(?=^## )", text, re.S | re.M)[0]
    left, nav, body = paper_side(paper, text), "", ""
    section = '<section><div>{1}</div><div id="{0}">{2}</div></section>'.format
    for n, point in re.findall(rf"{NUMBER}|^\| ([UE]\d+)", text, re.M):
        nav += f'<a href="#{point or "eq-" + n}">{point or "Eq. " + n}</a> '
    for name, doc, code in parts_of(paper):
        body += section(name, paragraphs(doc) + left.pop((name, f"{paper}.py"), ""), code)
    for (name, path), side in left.items():
        body += section(name, side, source_of(name, path))
    return f"<p>{HOW_TO_READ}</p><nav>{nav}</nav>{body}"


def write(path, title, body):
    """A whole HTML file that needs nothing else"""
    style = (ROOT / "report" / "annotate.css").read_text(encoding="utf-8")
    light, dark = (HtmlFormatter(style=name).get_style_defs("pre")
                   for name in ("default", "github-dark"))
    with atomic(path) as file:
        file.write(
            f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            '<meta name="viewport" content="width=device-width, initial-scale=1"><style>'
            f"{light}\n@media (prefers-color-scheme: dark) {{{dark}}}\n{style}</style></head>"
            f"<body><h1>{title}</h1>{body}</body></html>\n")


def annotate(folder):
    """Write the three pages and their index."""
    folder.mkdir(parents=True, exist_ok=True)
    docs, links = os.path.relpath(ROOT / "docs", folder), f"<p>{HOW_TO_READ}</p>"
    for paper, script in SCRIPTS.items():
        title, told = f"{paper}.py beside its paper", inline(script.__doc__.splitlines()[0])
        write(folder / f"{paper}.html", title, page(paper))
        links += (f'<p><a href="{paper}.html">{title}</a>: {told} '
                  f'<a href="{docs}/lectures/{paper}.md">Its lecture</a> explains the method; '
                  f'<a href="{docs}/equations.md">equations.md</a> has all equations and '
                  'notes.</p>')
    write(folder / "index.html", "Three papers beside their code", links)
    print(f"wrote {folder / 'index.html'}")

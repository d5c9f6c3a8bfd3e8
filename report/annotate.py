"""`python -m report --annotate [--out DIR]`: a page per script, the paper left, the code right."""
import ast
import html
import os
import re
from collections import defaultdict

from latex2mathml.converter import convert
from pygments import formatters, highlight, lexers

from report.experiments import NAMES, SCRIPTS
from support.files import ROOT, atomic

MARKS = {r"(?<![\w-])(--[a-z][\w-]*)": r'<span class="flag">\1</span>',
         r"\[(.*?)\]\([^)]*\)": r"\1", "`(.*?)`": r"<code>\1</code>",
         r"\*\*(.*?)\*\*": r"<b>\1</b>", r"\*(\w.*?)\*": r"<em>\1</em>"}     # in this order
HOW_TO_READ = """Each part has the paper on the left and its code on the right (below, on a narrow
    screen). Notes say what the paper leaves open (U) or gets wrong (E). The links lead to
    equations and notes, the number of an equation to its code. Click a test to read it."""


# ---------------------------------------------------------------------------- left: the paper
def mathml(latex, display="inline"):
    """LaTeX -> MathML, with what latex2mathml lacks: aligned, arg min, words in script letters"""
    latex = latex.replace("{aligned}", "{align*}").replace(r"\arg\min", r"\operatorname{argmin}")
    return convert(latex.replace("RKHS", r"R}\mathcal{K}\mathcal{H}\mathcal{S"), display=display)


def inline(markdown):
    """Markdown -> HTML without links, because the page stands alone"""
    parts = re.split(r"\$`(.*?)`\$", markdown.strip())
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = mathml(part)
            continue
        part = html.escape(part, quote=False)
        for mark, tag in MARKS.items():
            part = re.sub(mark, tag, part)
        parts[i] = part
    return "".join(parts)


def paper_side(paper):
    """A paper's part of docs/equations.md -> {(function, file): its left side}, [equation or note].
    An equation stands at the first function that its part names, a method at its class."""
    text = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
    text = re.search(rf"^## {NAMES[paper]} \(.*?(?=^## )", text, re.S | re.M)[0]
    place = re.compile(rf"`({paper}\.\w+|[a-z_]\w*(?:\.\w+)+)\S*`\]\(\.\./(.*?)\)")
    left, anchors = defaultdict(str), []
    for block in re.split(r"^### ", text, flags=re.M)[1:]:
        heading, _, body = block.partition("\n")
        for point, choice, where in re.findall(r"^\| ([UE]\d+) \| (.*?) \| (.*?) \|", body, re.M):
            anchors.append(point)
            left[place.search(where).groups()] += (
                f'<p class="note" id="{point}"><b>{point}</b> {inline(choice)}</p>')
        told, tested, tests = body.partition("tested by")
        if not tested:
            continue
        function, side = place.search(told).groups(), f"<h3>{heading}</h3>"
        for paragraph in told.rstrip(" ,\n").strip().split("\n\n"):
            latex = paragraph.removeprefix("```math").removesuffix("```")
            if latex == paragraph:
                side += f"<p>{inline(paragraph)}</p>"
                continue
            latex, *number = re.split(r"\\qquad \((\d+)\)", latex.strip())
            if number:
                n, rest = number
                anchors.append(f"eq-{n}")
                latex += rest
                side += f'<a class="number" id="eq-{n}" href="#{function[0]}">({n})</a>'
            side += f'<div class="formula">{mathml(latex, "block")}</div>'
        for test, path in place.findall(tests):
            side += (f"<details><summary><code>{test}</code></summary>{source_of(test, path)}"
                     "</details>")
        left[function] += side
    return left, anchors


# ---------------------------------------------------------------------------- right: the code
def listing(text, numbers):
    """Some lines of a Python file -> HTML, each with its number, no blank ones around"""
    lines = text.split("\n")
    code = "\n".join(lines[n - 1] for n in numbers)
    html_lines = highlight(code, lexers.PythonLexer(stripnl=False),
                           formatters.HtmlFormatter(nowrap=True)).split("\n")
    items = (f'<i data-n="{n}">{line}</i>' for n, line in zip(numbers, html_lines))
    return f"<pre>{''.join(items)}</pre>"


def source_of(name, path):
    """eval.nmi, support.runs.Run, test_jrd.test_jrs and its file -> its listing"""
    text = (ROOT / path).read_text(encoding="utf-8")
    node = ast.parse(text)
    for word in re.sub(r"^((support|report)\.)?\w+\.", "", name).split("."):
        node = next(inner for inner in node.body if getattr(inner, "name", None) == word)
    return listing(text, range(node.lineno, node.end_lineno + 1))


def parts_of(paper):
    """A script, split at two blank lines -> (name, docstring, listing without it) of each part"""
    text, first = (ROOT / f"{paper}.py").read_text(encoding="utf-8"), 1
    for chunk in text.split("\n\n\n"):
        node, after = ast.parse(chunk), first + chunk.count("\n") + 1
        if isinstance(node.body[0], (ast.FunctionDef, ast.ClassDef)):
            node = node.body[0]
        doc, numbers = ast.get_docstring(node) or "", list(range(first, after))
        if doc:
            del numbers[node.body[0].lineno - 1:node.body[0].end_lineno]
        yield f"{paper}.{getattr(node, 'name', first)}", doc, listing(text, numbers)
        first = after + 2


# ---------------------------------------------------------------------------- a page
def described(doc):
    """A docstring -> its paragraphs; those with columns as they are"""
    paragraphs = ""
    for paragraph in inline(doc).split("\n\n"):
        tag = "pre" if "   " in paragraph else "p"
        paragraphs += f"<{tag}>{paragraph}</{tag}>"
    return paragraphs


def page(paper):
    left, anchors = paper_side(paper)
    section = '<section><div>{1}</div><div id="{0}">{2}</div></section>'.format
    index = " ".join(f'<a href="#{a}">{a.replace("eq-", "Eq. ")}</a>' for a in anchors)
    body = f"<p>{HOW_TO_READ}</p><nav>{index}</nav>"
    for name, doc, code in parts_of(paper):
        body += section(name, described(doc) + left.pop((name, f"{paper}.py"), ""), code)
    for (name, path), side in left.items():
        body += section(name, side, source_of(name, path))
    return body


def write(path, title, body):
    """A whole HTML file that needs nothing else"""
    style = (ROOT / "report" / "annotate.css").read_text(encoding="utf-8")
    light, dark = (formatters.HtmlFormatter(style=name).get_style_defs("pre")
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
    for paper in SCRIPTS:
        title = f"{paper}.py beside its paper"
        write(folder / f"{paper}.html", title, page(paper))
        told = inline(next(parts_of(paper))[1].split("\n")[0])
        links += (f'<p><a href="{paper}.html">{title}</a>: {told} '
                  f'<a href="{docs}/lectures/{paper}.md">Its lecture</a> explains the method; '
                  f'<a href="{docs}/equations.md">equations.md</a> has all equations and '
                  'notes.</p>')
    write(folder / "index.html", "Three papers beside their code", links)
    print(f"wrote {folder / 'index.html'} and a page for each of {', '.join(SCRIPTS)}")

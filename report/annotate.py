"""`python -m report --annotate [--out DIR]`: a page per script, the paper left, the code right."""
import ast
import os
import re

from latex2mathml.converter import convert
from pygments import formatters, highlight, lexers

from report.experiments import NAMES, SCRIPTS
from support.files import ROOT, atomic

MARKS = {"&": "&amp;", "<": "&lt;", r"(?<![\w-])(--[a-z][\w-]*)": r'<span class="flag">\1</span>',
         r"\[(.*?)\]\([^)]*\)": r"\1", "`(.*?)`": r"<code>\1</code>",
         r"\*\*(.*?)\*\*": r"<b>\1</b>", r"\*(\w.*?)\*": r"<em>\1</em>"}     # in this order
MATHML = {"<mo>&#x02016;": '<mo stretchy="false">&#x02016;',
          "<mi>&#x02032;": '<mi mathsize="120%">&#x02032;',
          'block"><mrow><mo>': 'block"><mrow><mo form="infix">'}
BREAK = re.compile(r"(?<![_^=q])(?<!quad)(?<!\\&)([=<+-]|\\\\|\\(triangleq|leq|q?quad))")
OPEN = re.compile(r"[{(]|\\(left|begin|langle|lVert)")
CLOSE = re.compile(r"[})]|\\(right|end|rangle|rVert)")
HOW_TO_READ = """Each part has the paper on the left and its code on the right (below, on a narrow
    screen). Notes say what the paper leaves open (U) or gets wrong (E). The links lead to
    equations and notes, the number of an equation to its code. Click a test to read it."""


# ---------------------------------------------------------------------------- left: the paper
def mathml(latex, display="inline"):
    """LaTeX -> MathML, with what latex2mathml lacks: arg min, script words, norms, primes, signs"""
    latex = latex.replace(r"\arg\min", r"\operatorname{argmin}")
    latex = latex.replace("RKHS", r"R}\mathcal{K}\mathcal{H}\mathcal{S")
    return re.sub("|".join(MATHML), lambda mark: MATHML[mark[0]], convert(latex, display=display))


def formula(latex):
    """A formula -> its rows without the number, which a browser can wrap outside of brackets"""
    latex = re.sub(r"\\qquad \(\d+\)|\\(begin|end){aligned}|(?<=\\\\) ", "", latex.strip())
    cuts, text = [0], "<p>"
    for mark in BREAK.finditer(latex):
        before = latex[:mark.start()]
        if len(OPEN.findall(before)) == len(CLOSE.findall(before)):
            cuts.append(mark.start())
    for i, j in zip(cuts, cuts[1:] + [None]):
        start, piece = re.fullmatch(r"(\\\\&?|\\q?quad)?(.*?)&?", latex[i:j]).groups()
        start = {None: " ", r"\\&": "<br>", r"\\": "</p><br><p>"}.get(start, "<p>")
        text += start + mathml(piece, "block")
    return text.replace('"block"', '"inline" displaystyle="true"')


def inline(markdown):
    """Markdown -> HTML without links, because the page stands alone"""
    parts = re.split(r"\$`(.*?)`\$", markdown.strip())
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = mathml(part)
            continue
        for mark, tag in MARKS.items():
            part = re.sub(mark, tag, part)
        parts[i] = part
    return "".join(parts)


def paper_side(paper):
    """A paper's part of docs/equations.md -> {function: its left side}, [equation or note]"""
    text = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
    text = re.search(rf"^## {NAMES[paper]} \(.*?(?=^## )", text, re.S | re.M)[0]
    place = re.compile(rf"`({paper}\.\w+|[a-z_]\w*(?:\.\w+)+)")     # a method stands at its class
    left, anchors = dict.fromkeys(place.findall(text), ""), []
    for block in re.split(r"^### ", text, flags=re.M)[1:]:
        heading, _, body = block.partition("\n")
        for point, choice, where in re.findall(r"^\| ([UE]\d+) \| (.*?) \| (.*?) \|", body, re.M):
            anchors.append(point)
            left[place.search(where)[1]] += (
                f'<p class="note" id="{point}"><b>{point}</b> {inline(choice)}</p>')
        told, tested, tests = body.partition("tested by")
        if not tested:
            continue
        first = place.search(told)[1]
        own = {n: name for name, n in re.findall(place.pattern + r"\S* \(Eq\. (\d+)", told)}
        for paragraph in told.rstrip(" ,\n").strip().split("\n\n"):
            number = "".join(re.findall(r"\\qquad \((\d+)\)", paragraph))
            name = own.get(number, first)
            if f"<h3>{heading}<" not in left[name]:
                left[name] += f"<h3>{heading}</h3>"
            if number:
                anchors.append(f"eq-{number}")
                number = f'<a id="eq-{number}" href="#{name}">({number})</a>'
            latex = paragraph.removeprefix("```math").removesuffix("```")
            if latex == paragraph:
                left[name] += f"<p>{inline(paragraph)}</p>"
            else:
                left[name] += f'<div class="formula"><div>{formula(latex)}</div>{number}</div>'
        for test in place.findall(tests):
            left[first] += (f"<details><summary><code>{test}</code></summary>{source_of(test)}"
                            "</details>")
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


def source_of(name):
    """eval.nmi, support.runs.Run, test_jrd.test_jrs -> its listing"""
    words = name.split(".")
    path = (ROOT / "tests" if name.startswith("test_") else ROOT) / words.pop(0)
    while not path.with_suffix(".py").exists():
        path /= words.pop(0)
    text = path.with_suffix(".py").read_text(encoding="utf-8")
    node = ast.parse(text)
    for word in words:
        node = next(inner for inner in node.body if getattr(inner, "name", None) == word)
    return listing(text, range(node.lineno, node.end_lineno + 1))


def parts_of(paper):
    """A script, split at two blank lines -> (name, docstring, listing without it) of each part"""
    text, first = (ROOT / f"{paper}.py").read_text(encoding="utf-8"), 1
    for chunk in text.split("\n\n\n"):
        tree = ast.parse(chunk)
        node = next((n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))), tree)
        doc, last = ast.get_docstring(node) or "", first + chunk.count("\n")
        string = range(node.body[0].lineno, node.body[0].end_lineno + 1) if doc else ()
        numbers = [n for n in range(first, last + 1) if n - first + 1 not in string]
        yield f"{paper}.{getattr(node, 'name', first)}", doc, listing(text, numbers)
        first = last + 3


# ---------------------------------------------------------------------------- a page
def flowing(doc):
    """A docstring -> its paragraphs, and its columns as lists"""
    text = re.sub(r"\n {30,}", " ", inline(doc))            # a cell's second line
    text = re.sub(r"(?m)^(  |(?=Equation))(.*\S) {2,}(.*)\n", r"<dt>\2</dt><dd>\3</dd>", text)
    text = re.sub("(<dt>.*</dd>)", r"</p><dl>\1</dl><p>", text)
    return "<p>" + text.replace("\n\n", "</p><p>") + "</p>"


def page(paper):
    left, anchors = paper_side(paper)
    section = '<section><div>{1}</div><div id="{0}">{2}</div></section>'.format
    index = " ".join(f'<a href="#{a}">{a.replace("eq-", "Eq. ")}</a>' for a in anchors)
    body = f"<p>{HOW_TO_READ}</p><nav>{index}</nav>"
    for name, doc, code in parts_of(paper):
        body += section(name, flowing(doc) + left.pop(name, ""), code)
    for name, says in left.items():
        if says:
            body += section(name, says, source_of(name))
    return document(f"{paper}.py beside its paper", body)


def document(title, body):
    """-> a whole HTML file that needs nothing else"""
    style = (ROOT / "report" / "annotate.css").read_text(encoding="utf-8")
    light, dark = (formatters.HtmlFormatter(style=name).get_style_defs("pre")
                   for name in ("default", "github-dark"))
    return (f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            '<meta name="viewport" content="width=device-width, initial-scale=1"><style>'
            f"{light}\n@media (prefers-color-scheme: dark) {{{dark}}}\n{style}</style></head>"
            f"<body><h1>{title}</h1>{body}</body></html>\n")


def annotate(folder):
    """Write the three pages and their index."""
    docs, pages, links = os.path.relpath(ROOT / "docs", folder), {}, f"<p>{HOW_TO_READ}</p>"
    for paper in SCRIPTS:
        pages[paper] = page(paper)
        title = inline(next(parts_of(paper))[1].split("\n")[0])
        links += (f'<p><a href="{paper}.html">{paper}.py beside its paper</a>: {title} '
                  f'<a href="{docs}/lectures/{paper}.md">Its lecture</a> explains the method; '
                  f'<a href="{docs}/equations.md">equations.md</a> has all equations and '
                  'notes.</p>')
    pages["index"] = document("Three papers beside their code", links)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        with atomic(folder / f"{name}.html") as file:
            file.write(text)
    print(f"wrote {folder / 'index.html'} and a page for each of {', '.join(SCRIPTS)}")

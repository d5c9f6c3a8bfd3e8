"""`python -m report --annotate [--out DIR]`: a page per script, the paper left and the code right.

Left: docstrings, the equations of EQUATIONS as MathML, U and E notes, tests; all read anew."""
import ast
import collections
import html
import re

from latex2mathml.converter import convert
from pygments import formatters, highlight, lexers

from report.experiments import NAMES, SCRIPTS
from support.files import ROOT, atomic

EQUATIONS = "docs/equations.md"
NAME = re.compile(r"`([a-z_]\w*(?:\.\w+)+)`")
MARKS = {"&": "&amp;", "<": "&lt;", r"\[(.*?)\]\([^)]*\)": r"\1", "`(.*?)`": r"<code>\1</code>",
         r"\*\*(.*?)\*\*": r"<b>\1</b>", r"\*(\w.*?)\*": r"<em>\1</em>"}     # in this order
MATHML = {"<mo>&#x02016;": '<mo stretchy="false">&#x02016;',
          "<mi>&#x02032;": '<mi mathsize="120%">&#x02032;'}


# ---------------------------------------------------------------------------- left: the paper
def mathml(latex, display="inline"):
    """LaTeX without its number -> MathML, with what latex2mathml lacks: arg min, script words"""
    latex = re.sub(r"\\qquad \(\d+\)", "", latex).replace(r"\arg\min", r"\operatorname{argmin}")
    latex = latex.replace("RKHS", r"R}\mathcal{K}\mathcal{H}\mathcal{S")
    math = convert(latex.replace("aligned", "align*"), display=display)
    return re.sub("|".join(MATHML), lambda mark: MATHML[mark[0]], math)   # norms, primes


def inline(markdown):
    """A paragraph of EQUATIONS -> HTML without links, because the page stands alone"""
    parts = re.split(r"\$`(.*?)`\$", markdown.strip())
    parts[1::2] = [mathml(part) for part in parts[1::2]]
    for mark, tag in MARKS.items():
        parts[::2] = [re.sub(mark, tag, part) for part in parts[::2]]
    return "".join(parts)


def paper_side(paper):
    """A paper's part of EQUATIONS -> {function: its left side}, {equation or note: function}.  What
    belongs to a method of the script stands at its class, which has a part of its own."""
    def place(name):
        return ".".join(name.split(".")[:2]) if name.startswith(f"{paper}.") else name

    text = (ROOT / EQUATIONS).read_text(encoding="utf-8")
    text = re.search(rf"^## {NAMES[paper]} \(.*?(?=^## )", text, re.S | re.M)[0]
    left, home = collections.defaultdict(str), {}
    for block in re.split(r"^### ", text, flags=re.M)[1:]:
        heading, _, body = block.partition("\n")
        for point, choice, where in re.findall(r"^\| ([UE]\d+) \| (.*?) \| (.*?) \|", body, re.M):
            home[point] = name = place(NAME.search(where)[1])
            left[name] += f'<p class="note" id="{point}"><b>{point}</b> {inline(choice)}</p>'
        told, tested, tests = body.partition("tested by")
        if not tested:
            continue
        first = place(NAME.search(told)[1])
        own = {n: place(name)
               for name, n in re.findall(NAME.pattern + r"\]\([^)]*\) \(Eq\. (\d+)", told)}
        for paragraph in told.rstrip(" ,\n").strip().split("\n\n"):
            number = "".join(re.findall(r"\\qquad \((\d+)\)", paragraph))
            name = own.get(number, first)
            if f"<h3>{heading}<" not in left[name]:
                left[name] += f"<h3>{heading}</h3>"
            if number:
                home[f"eq-{number}"] = name
                left[name] += f'<a class="number" id="eq-{number}" href="#{name}">({number})</a>'
            latex = paragraph.removeprefix("```math").removesuffix("```")
            left[name] += (f"<p>{inline(paragraph)}</p>" if latex == paragraph else
                           f'<div class="formula">{mathml(latex, "block")}</div>')
        left[first] += "".join(f"<details><summary><code>{test}</code></summary>{source_of(test)}"
                               "</details>" for test in NAME.findall(tests))
    return left, home


# ---------------------------------------------------------------------------- right: the code
def listing(text, numbers):
    """Some lines of a Python file -> HTML, each with its number, no blank ones around"""
    lines = text.split("\n")
    code = "\n".join(lines[n - 1] for n in numbers)
    html_lines = highlight(code, lexers.PythonLexer(stripnl=False),
                           formatters.HtmlFormatter(nowrap=True)).split("\n")
    code = "".join(f'<i data-n="{n}">{line}</i>' for n, line in zip(numbers, html_lines))
    blank = r'(<i data-n="\d+"></i>)+'
    return f"<pre>{re.sub(f'^{blank}|{blank}$', '', code)}</pre>"


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


def parts_of(text):
    """A script, split at two blank lines -> [(name of the function or class, "" of other code, its
    docstring, line numbers without the docstring)]"""
    first = 1
    for chunk in text.split("\n\n\n"):
        tree = ast.parse(chunk)
        named = [n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
        node = named[0] if named else tree
        doc, last = ast.get_docstring(node), first + chunk.count("\n")
        string = range(node.body[0].lineno, node.body[0].end_lineno + 1) if doc else ()
        yield (named[0].name if named else "", doc or "",
               [n for n in range(first, last + 1) if n - first + 1 not in string])
        first = last + 3


# ---------------------------------------------------------------------------- a page
def header(doc):
    """A script's docstring -> its paragraphs, and its columns as lists"""
    text = re.sub(r"\n {30,}", " ", html.escape(doc, quote=False))  # a cell's second line
    parts = re.split(r"((?:^(?:  |Equation).*\n)+)", text, flags=re.M)
    parts[::2] = [f"<p>{part.strip()}</p>".replace("\n\n", "</p><p>") for part in parts[::2]]
    parts[1::2] = [re.sub(r"^ *(.*\S) {2,}(.*)\n", r"<dt>\1</dt><dd>\2</dd>", part, flags=re.M)
                   for part in parts[1::2]]
    parts[1::2] = [f"<dl>{part}</dl>" for part in parts[1::2]]
    return "".join(parts)


def page(paper):
    """-> HTML"""
    left, home = paper_side(paper)
    text = (ROOT / f"{paper}.py").read_text(encoding="utf-8")
    section = '<section id="{}"><div>{}</div><div>{}</div></section>'.format
    sections = []
    for name, doc, numbers in parts_of(text):
        flowing = html.escape(re.sub(r"(?<!\n)\n(?![\n -])", " ", doc), quote=False)
        says = f'<div class="doc">{flowing}</div>' if name else header(doc)
        name = f"{paper}.{name or numbers[0]}"
        sections.append(section(name, says + left.pop(name, ""), listing(text, numbers)))
    sections += [section(name, says, source_of(name)) for name, says in left.items()]
    index = " ".join(f'<a href="#{a}">{a.replace("eq-", "Eq. ")}</a>' for a in home)
    return document(f"{paper}.py beside its paper", f"<nav>{index}</nav>" + "".join(sections))


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
    pages = {paper: page(paper) for paper in SCRIPTS}
    links = "".join(f'<p><a href="{name}.html">{name}.py</a></p>' for name in SCRIPTS)
    pages["index"] = document("Three papers beside their code", links)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        with atomic(folder / f"{name}.html") as file:
            file.write(text)
    print(f"wrote {folder / 'index.html'} and a page for each of {', '.join(SCRIPTS)}")

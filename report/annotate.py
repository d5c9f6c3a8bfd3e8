"""`python -m report --annotate [--out DIR]`: a page per script, the paper left, the code right."""
import ast
import inspect
import pkgutil
import re

from latex2mathml.converter import convert
from pygments import formatters, highlight, lexers

from report.experiments import NAMES, SCRIPTS
from support.files import ROOT, atomic

MARKS = {"&": "&amp;", "<": "&lt;", r"\[(.*?)\]\([^)]*\)": r"\1", "`(.*?)`": r"<code>\1</code>",
         r"\*\*(.*?)\*\*": r"<b>\1</b>", r"\*(\w.*?)\*": r"<em>\1</em>"}     # in this order
MATHML = {"<mo>&#x02016;": '<mo stretchy="false">&#x02016;',
          "<mi>&#x02032;": '<mi mathsize="120%">&#x02032;',
          'block"><mrow><mo>': 'block"><mrow><mo form="infix">'}
BREAK = re.compile(r"(?<![_^=q])(?<!quad)(?<!\\&)([=<+-]|\\\\|\\(triangleq|leq|q?quad))")
OPEN = re.compile(r"[{(]|\\(left|begin|langle|lVert)")
CLOSE = re.compile(r"[})]|\\(right|end|rangle|rVert)")
HOW_TO_READ = """Each part has the paper on the left and its code on the right (below, on a narrow
    screen). Notes say what the paper leaves open (U) or gets wrong (E). The links lead to
    equations and notes, the number of an equation to its code."""


# ---------------------------------------------------------------------------- left: the paper
def mathml(latex, display="inline"):
    """LaTeX -> MathML, with what latex2mathml lacks: arg min, script words, norms, primes, signs"""
    latex = latex.replace(r"\arg\min", r"\operatorname{argmin}")
    latex = latex.replace("RKHS", r"R}\mathcal{K}\mathcal{H}\mathcal{S")
    return re.sub("|".join(MATHML), lambda mark: MATHML[mark[0]], convert(latex, display=display))


def formula(latex):
    """A formula -> its rows without the number, which a browser can wrap outside of brackets"""
    latex = re.sub(r"\\qquad \(\d+\)|\\(begin|end){aligned}|(?<=\\\\) ", "", latex.strip())
    cuts = [mark.start() for mark in BREAK.finditer(latex)]
    cuts = [i for i in cuts if len(OPEN.findall(latex[:i])) == len(CLOSE.findall(latex[:i]))]
    text = "<p>"
    for i, j in zip([0, *cuts], [*cuts, None]):
        start, piece = re.fullmatch(r"(\\\\&?|\\q?quad)?(.*?)&?", latex[i:j]).groups()
        start = {None: " ", r"\\&": "<br>", r"\\": "</p><br><p>"}.get(start, "<p>")
        text += start + mathml(piece, "block")
    return text.replace('"block"', '"inline" displaystyle="true"')


def inline(markdown):
    """Markdown -> HTML without links, because the page stands alone"""
    parts = re.split(r"\$`(.*?)`\$", markdown.strip())
    parts[1::2] = [mathml(part) for part in parts[1::2]]
    for mark, tag in MARKS.items():
        parts[::2] = [re.sub(mark, tag, part) for part in parts[::2]]
    return "".join(parts)


def paper_side(paper):
    """A paper's part of docs/equations.md -> {function: its left side}"""
    text = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
    text = re.search(rf"^## {NAMES[paper]} \(.*?(?=^## )", text, re.S | re.M)[0]
    place = re.compile(rf"`({paper}\.\w+|[a-z_]\w*(?:\.\w+)+)")     # a method stands at its class
    left = dict.fromkeys(place.findall(text), "")
    for block in re.split(r"^### ", text, flags=re.M)[1:]:
        heading, _, body = block.partition("\n")
        for point, choice, where in re.findall(r"^\| ([UE]\d+) \| (.*?) \| (.*?) \|", body, re.M):
            left[place.search(where)[1]] += (
                f'<p class="note" id="{point}"><b>{point}</b> {inline(choice)}</p>')
        told, tested, _ = body.partition("tested by")
        if not tested:
            continue
        first = place.search(told)[1]
        own = {n: name for name, n in re.findall(place.pattern + r"\S* \(Eq\. (\d+)", told)}
        for paragraph in told.rstrip(" ,\n").strip().split("\n\n"):
            number = "".join(re.findall(r"\\qquad \((\d+)\)", paragraph))
            name = own.get(number, first)
            left[name] += "" if f"<h3>{heading}<" in left[name] else f"<h3>{heading}</h3>"
            latex = paragraph.removeprefix("```math").removesuffix("```")
            if number:
                number = f'<a id="eq-{number}" href="#{name}">({number})</a>'
            left[name] += (f"<p>{inline(paragraph)}</p>" if latex == paragraph else
                           f'<div class="formula"><div>{formula(latex)}</div>{number}</div>')
    return left


# ---------------------------------------------------------------------------- right: the code
def listing(lines):
    """{number: line of Python} -> HTML, no blank lines around"""
    html_lines = highlight("\n".join(lines.values()), lexers.PythonLexer(stripnl=False),
                           formatters.HtmlFormatter(nowrap=True)).split("\n")
    items = (f'<i data-n="{n}">{line}</i>' for n, line in zip(lines, html_lines))
    return f"<pre>{''.join(items)}</pre>"


def source_of(name):
    """eval.nmi, support.runs.Run -> its listing"""
    lines, first = inspect.getsourcelines(pkgutil.resolve_name(name))
    return listing(dict(enumerate("".join(lines).splitlines(), first)))


def parts_of(paper):
    """A script, split at two blank lines -> (name, docstring, listing without it) of each part"""
    text, first = (ROOT / f"{paper}.py").read_text(encoding="utf-8"), 1
    for chunk in text.split("\n\n\n"):
        tree = ast.parse(chunk)
        node = next((n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))), tree)
        doc, lines = ast.get_docstring(node) or "", dict(enumerate(chunk.split("\n"), first))
        for n in range(node.body[0].lineno, node.body[0].end_lineno + 1) if doc else ():
            del lines[first + n - 1]
        yield f"{paper}.{getattr(node, 'name', first)}", doc, listing(lines)
        first += chunk.count("\n") + 3


# ---------------------------------------------------------------------------- a page
def flowing(doc):
    """A docstring -> its paragraphs, and its columns as lists"""
    text = re.sub(r"\n {30,}", " ", inline(doc))            # a cell's second line
    text = re.sub(r"(?m)^(  |(?=Equation))(.*\S) {2,}(.*)\n", r"<dt>\2</dt><dd>\3</dd>", text)
    text = re.sub("(<dt>.*</dd>)", r"</p><dl>\1</dl><p>", text)
    return "<p>" + text.replace("\n\n", "</p><p>") + "</p>"


def page(paper):
    """-> a whole HTML file that needs nothing else"""
    left = paper_side(paper)
    section = '<section><div>{1}</div><div id="{0}">{2}</div></section>'.format
    sections = [section(name, flowing(doc) + left.pop(name, ""), code)
                for name, doc, code in parts_of(paper)]
    sections += [section(name, says, source_of(name)) for name, says in left.items() if says]
    body = "".join(sections)
    anchors = re.findall(r'id="(eq-|U|E)(\d+)"', body)
    anchors.sort(key=lambda anchor: (["eq-", "U", "E"].index(anchor[0]), int(anchor[1])))
    index = " ".join(f'<a href="#{kind}{n}">{kind.replace("eq-", "Eq. ")}{n}</a>'
                     for kind, n in anchors)
    style = (ROOT / "report" / "annotate.css").read_text(encoding="utf-8")
    light, dark = (formatters.HtmlFormatter(style=name).get_style_defs("pre")
                   for name in ("default", "github-dark"))
    title = f"{paper}.py beside its paper"
    return (f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            '<meta name="viewport" content="width=device-width, initial-scale=1"><style>'
            f"{light}\n@media (prefers-color-scheme: dark) {{{dark}}}\n{style}</style></head>"
            f"<body><h1>{title}</h1><p>{HOW_TO_READ}</p><nav>{index}</nav>{body}</body></html>\n")


def annotate(folder):
    """Write the three pages."""
    folder.mkdir(parents=True, exist_ok=True)
    for paper in SCRIPTS:
        with atomic(folder / f"{paper}.html") as file:
            file.write(page(paper))
        print(f"wrote {folder / paper}.html")

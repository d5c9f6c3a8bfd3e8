"""`python -m report --annotate [--out DIR]`: a page per script, the paper left and the code right.

Left: docstrings, the equations of EQUATIONS as MathML, U and E notes, tests; all read anew."""
import ast
import collections
import html
import re

from latex2mathml.converter import convert
from pygments import formatters, highlight, lexers

from support.files import ROOT, UserError, atomic

PAPERS = {"jrd": "JRD", "mdr": "MDR", "dml_da": "DML-DA"}
EQUATIONS = "docs/equations.md"
FOLDED = re.compile(r"\w+\.parse_args")                    # of no equation
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


def paper_side(title):
    """A paper's part of EQUATIONS -> {function: its left side}, {equation or note: function}"""
    text = (ROOT / EQUATIONS).read_text(encoding="utf-8")
    part = re.search(rf"^## {title} \(.*?(?=^## )", text, re.S | re.M)[0]
    left, home = collections.defaultdict(str), {}
    for block in re.split(r"^### ", part, flags=re.M)[1:]:
        heading, _, body = block.partition("\n")
        for point, choice, where in re.findall(r"^\| ([UE]\d+) \| (.*?) \| (.*?) \|", body, re.M):
            home[point] = NAME.search(where)[1]
            left[home[point]] += f'<p class="note" id="{point}"><b>{point}</b> {inline(choice)}</p>'
        text, tested, tests = body.partition("tested by")
        if not tested:
            continue
        first = NAME.search(text)[1]
        own = {n: name for name, n in re.findall(NAME.pattern + r"\]\([^)]*\) \(Eq\. (\d+)", text)}
        for paragraph in text.rstrip(" ·\n").strip().split("\n\n"):
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
def read(path):
    """A Python file -> its text, its syntax tree, its lines as HTML"""
    text = path.read_text(encoding="utf-8")
    lexer, formatter = lexers.PythonLexer(stripnl=False), formatters.HtmlFormatter(nowrap=True)
    return text, ast.parse(text), highlight(text, lexer, formatter).split("\n")


def listing(lines, numbers):
    code = "".join(f'<i data-n="{n}">{lines[n - 1]}</i>' for n in numbers)
    blank = r'(<i data-n="\d+"></i>)+'
    return f"<pre>{re.sub(f'^{blank}|{blank}$', '', code)}</pre>"


def source_of(name):
    """eval.nmi, support.runs.Run, test_jrd.test_jrs -> its listing.  UserError: not there."""
    words = name.split(".")
    folder = ROOT / "tests" if name.startswith("test_") else ROOT
    for n in range(1, len(words)):
        path = folder.joinpath(*words[:n]).with_suffix(".py")
        if path.exists():
            _, node, lines = read(path)
            for word in words[n:]:
                node = {getattr(x, "name", 0): x for x in getattr(node, "body", ())}.get(word)
            if node:
                return listing(lines, range(node.lineno, node.end_lineno + 1))
    raise UserError(f"{EQUATIONS} names {name}, which is not there")


def parts_of(text, tree, told):
    """A script -> [(name, docstring, its line numbers without the docstring)] of its functions and
    classes, and of methods with a docstring or in `told`; other code goes on in the part before."""
    nodes, lines = [("", tree)], text.split("\n")
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            nodes.append((node.name, node))
            methods = [(f"{node.name}.{m.name}", m) for m in node.body if hasattr(m, "name")]
            nodes += [(name, m) for name, m in methods if name in told or ast.get_docstring(m)]
    starts = [tree.body[0].end_lineno + 1]
    for _, node in nodes[1:]:
        start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        while not lines[start - 2].strip() or lines[start - 2].lstrip().startswith("#"):
            start -= 1                                          # the comments above belong to it
        starts.append(start)
    for (name, node), start, end in zip(nodes, starts, [*starts[1:], len(lines) + 1]):
        doc = ast.get_docstring(node) or ""
        skipped = range(node.body[0].lineno, node.body[0].end_lineno + 1) if doc else ()
        yield name, doc, [n for n in range(start, end) if n not in skipped]


# ---------------------------------------------------------------------------- a page
def page(paper):
    """UserError: an equation or a function that EQUATIONS has wrong."""
    left, home = paper_side(PAPERS[paper])
    text, tree, lines = read(ROOT / f"{paper}.py")

    def section(name, says, code):
        body = f'<section id="{name}"><div>{says}</div><div>{code}</div></section>'
        folded = f"<details><summary><code>{name}</code></summary>{body}</details>"
        return folded if FOLDED.match(name) else body

    rows = []
    for name, doc, numbers in parts_of(text, tree, {n.partition(".")[2] for n in left}):
        for number in re.findall(r"\bEq\. (\d+)", doc.split("\n")[0]):
            if f"eq-{number}" not in home:
                raise UserError(f"{paper}.py, {name}: Eq. {number} is not in {EQUATIONS}")
        for n in [n for n in numbers if "# ----" in lines[n - 1]]:      # a banner is a heading
            numbers.remove(n)
            rows.append(f"<h2>{text.splitlines()[n - 1].strip('#- ')}</h2>")
        flowing = re.sub(r"(?<!\n)\n(?![\n -])", " ", doc) if name else doc
        says = f'<div class="{"doc" if name else "page"}">{html.escape(flowing, quote=False)}</div>'
        name = f"{paper}.{name}"
        rows.append(section(name, says + left.pop(name, ""), listing(lines, numbers)))
    rows += [section(name, says, source_of(name)) for name, says in left.items()]
    index = " ".join(f'<a href="#{a}">{a.replace("eq-", "Eq. ")}</a>' for a in home)
    return document(f"{paper}.py beside its paper", f"<nav>{index}</nav>" + "".join(rows))


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
    pages = {paper: page(paper) for paper in PAPERS}
    links = "".join(f'<p><a href="{name}.html">{name}.py</a></p>' for name in PAPERS)
    pages["index"] = document("Three papers beside their code", links)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        with atomic(folder / f"{name}.html") as file:
            file.write(text)
    print(f"wrote {folder / 'index.html'} and a page for each of {', '.join(PAPERS)}")

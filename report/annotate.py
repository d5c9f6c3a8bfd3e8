"""`python -m report --annotate [--out DIR]`: a page per script, the paper left, the code right."""
import ast
import base64
import functools
import html
import itertools
import os
import re
from collections import defaultdict
from xml.etree import ElementTree

from latex2mathml.converter import convert
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from report.experiments import NAMES, SCRIPTS
from support.files import ROOT, UserError, atomic

EQUATIONS = "docs/equations.md"
# Where the picture of a lecture stands.
PICTURED = {"jrd": "jrd.jrs", "mdr": "mdr.MDR", "dml_da": "dml_da.density_regularizer"}
MARKS = {r"\\([*_`])": lambda escaped: f"&#{ord(escaped[1])};",            # in this order
         r"(?<![\w-])(--[a-z][\w-]*)": r'<span class="flag">\1</span>',
         r"\[(.*?)\]\([^)]*\)": r"\1", "`(.*?)`": r"<code>\1</code>",
         r"\*\*(.*?)\*\*": r"<b>\1</b>", r"\*(\w.*?)\*": r"<em>\1</em>"}
NAME = r"(?:^|(?<=[,;] ))[\w./]+(?:\([^)]*\))?(?=[,;]|$)"     # of a function or file in a list
NUMBER = r"\\qquad \((\d+)\)"                            # of an equation
HOW_TO_READ = """Each part has the paper on the left and its code on the right (below, on a narrow
    screen). Notes say what the paper leaves open (U) or gets wrong (E). The links lead to
    equations and notes, the number of an equation to its code. Click a test or the command
    line to read it."""


# ---------------------------------------------------------------------------- left: the paper
def mathml(latex, display="inline"):
    """LaTeX -> MathML, with what latex2mathml 3.81.1 lacks: aligned, arg min, words in script
    letters, bars of one height, which open and close by turns.  UserError: it is no LaTeX"""
    latex = latex.replace("{aligned}", "{align*}").replace(r"\arg\min", r"\operatorname{argmin}")
    latex = latex.replace("RKHS", r"R}\mathcal{K}\mathcal{H}\mathcal{S")
    forms = itertools.cycle(("prefix", "postfix"))

    def bar(found):
        return f'<mo stretchy="false" form="{next(forms)}">{found[1]}</mo>'
    try:
        converted = convert(latex, display=display)
    except Exception as error:              # it fails in a dozen ways
        raise UserError(f"cannot set the formula {latex!r}: {error or type(error).__name__}")
    return re.sub("<mo>(&#x02016;|&#x0007C;)</mo>", bar, converted)


# ---------------------------------------------------------------------------- its long formulas
# A formula is broken as a typesetter would, only where the column is too narrow: a browser breaks
# no MathML, so each piece is one of its own, an inline block that wraps as a word does.  The pieces
# nest, relations around sums around factors, so that a line ends at the outermost that fits.
PHONE = 15                              # em: no piece is wider, if there is a place to break it
TOKEN = re.compile(r"\\left\s*(?:\\[a-zA-Z]+|\\.|.)|\\right\s*(?:\\[a-zA-Z]+|\\.|.)|\\[a-zA-Z]+"
                   r"|\\.|.", re.S)
RELATIONS = {"=", "<", r"\leq", r"\triangleq"}
OPEN = {"(", "[", r"\{", r"\langle", r"\lVert", r"\lvert"}
CLOSE = {")", "]", r"\}", r"\rangle", r"\rVert", r"\rvert"}


def tokens_of(latex):
    """-> (token, depth in braces and environments, depth in other brackets too)"""
    tokens, braces, brackets = [], 0, 0
    for token in TOKEN.findall(latex):
        if token in ("}", r"\end"):
            braces -= 1
        elif token in CLOSE or token.startswith(r"\right"):
            brackets -= 1
        tokens.append((token, braces, braces + brackets))
        if token in ("{", r"\begin"):
            braces += 1
        elif token in OPEN or re.match(r"\\left(?![a-z])", token):
            brackets += 1
    return tokens


def cuts(tokens, level):
    """The places of this level: before a relation or after a quad; before + or -; before a factor;
    inside of brackets, before + or - or after a comma"""
    places, before = [], None
    for i, (token, braces, depth) in enumerate(tokens):
        if not token.strip():
            continue
        sign = token in ("+", "-") and before not in {None, "{", "^", "_", *OPEN, *RELATIONS}
        here = {
            0: depth == 0 and (token in RELATIONS or before == r"\quad"),
            1: depth == 0 and sign,
            2: depth == 0 and before not in (None, *RELATIONS, "+", "-") and (
                before == r"\," or token in (r"\log", r"\max", r"\prod", r"\langle")),
            3: braces == 0 and depth == 1 and (sign or before == ",")}[level]
        if here:
            places.append(i)
        before = token
    return places


def formula(latex):
    """A displayed formula -> HTML: each row of an aligned one in a line of its own, indented if it
    goes on with the row above"""
    latex = latex.strip()
    aligned = re.fullmatch(r"\\begin\{aligned\}(.*)\\end\{aligned\}", latex, re.S)
    page = ""
    for row in aligned[1].split(r"\\") if aligned else [latex]:
        goes_on = aligned is not None and row.strip().startswith("&")
        row = row.replace("&", "").strip() if aligned else row
        page += f'<div class="row{" on" * goes_on}">{broken(row, goes_on=goes_on)}</div>'
    return page


def broken(latex, level=0, goes_on=False):
    """... of a row or piece of it"""
    whole = piece(latex, goes_on)
    if level == 4 or width(whole) <= PHONE and level > 0:
        return whole
    tokens = tokens_of(latex)
    places = [0, *(i for i in cuts(tokens, level) if i), len(tokens)]
    if len(places) == 2:
        return broken(latex, level + 1, goes_on)
    if level == 3:                                  # a bracket and its partner come apart
        tokens = [(re.sub(r"^\\(left|right)(?![a-z])", "", token), *depths)
                  for token, *depths in tokens]
    page = ""
    for start, end in zip(places, places[1:]):
        part = "".join(token for token, *_ in tokens[start:end])
        page += f"<span>{broken(part, level + 1, goes_on or start > 0)}</span>"
    return page


def piece(latex, goes_on):
    """LaTeX -> MathML that stands in a line, in the size of a displayed formula.  What begins it
    has an operator's blanks on both sides if the formula began before it."""
    math = mathml(latex, "block").replace('display="block"', 'display="inline" displaystyle="true"')
    if goes_on:
        math = re.sub(r"<mrow><mo>", '<mrow><mo form="infix">', math, count=1)
    return math


def width(math):
    """About how wide MathML is, in em"""
    def of(node):
        children = [of(child) for child in node]
        kind = node.tag.rpartition("}")[2]
        if kind in ("mi", "mn", "mo", "mtext"):
            text = node.text or ""
            blanks = 0.5 if kind == "mo" and text in "=+<-−≤≜≠∈·" else 0
            return sum(0.3 if c in "()[]{},.‖|⟨⟩∣:;il" else 0.6 for c in text) + blanks
        if kind == "mspace":
            return float(node.get("width", "0em").removesuffix("em"))
        if kind in ("msub", "msup"):
            return children[0] + 0.7 * children[1]
        if kind == "msubsup":
            return children[0] + 0.7 * max(children[1:])
        if kind in ("munder", "mover", "munderover"):
            return max(children[0], 0.7 * max(children[1:]))
        if kind in ("mfrac", "mtable"):
            return max(children) + 0.2
        return sum(children)
    return of(ElementTree.fromstring(math))


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


def paragraphs(markdown, code):
    """... of paragraphs: formulas, whose numbers lead to the code, commands, equations, and text.
    code: the name of what they stand beside"""
    page = ""
    for paragraph in markdown.strip().split("\n\n"):
        commands = re.findall(r"^ *(python .*?)(?:   *|$)(.*)$", paragraph, re.M)
        if paragraph.startswith("```math"):
            latex, number = paragraph[7:-3], re.search(NUMBER, paragraph)
            if number:
                n, latex = number[1], latex.replace(number[0], "")
                page += f'<a class="number" id="eq-{n}" href="#{code}">({n})</a>'
            page += f'<div class="formula">{formula(latex)}</div>'
        elif commands:
            items = (f"<li><code>{inline(command)}</code>: {inline(told)}</li>"
                     for command, told in commands)
            rest = re.sub(r"^ *python .*\n?", "", paragraph, flags=re.M)
            page += f'<ul class="commands">{"".join(items)}</ul><p>{inline(rest)}</p>'
        elif paragraph.startswith("Equation  "):
            page += table(paragraph, f"{code.partition('.')[0]}.py")
        elif "   " in paragraph:
            page += f"<pre>{inline(paragraph)}</pre>"
        else:
            page += f"<p>{inline(paragraph)}</p>"
    return page


def table(columns, file):
    """A docstring's columns of equations -> a table; a line that begins far in goes on with the
    last cell of the line above.  UserError: a line is neither."""
    rows = []
    for line in columns.split("\n")[1:]:
        row = re.fullmatch(r"  (\S+) +(.+?)  +(\S.*)", line)
        if row:
            rows.append([*row.groups()])
        elif rows and line.startswith("   "):
            rows[-1][-1] += " " + line.strip()
        else:
            raise UserError(f"{file}: a line of its table of equations needs a number, what and "
                            f"where, two blanks between, not {line.strip()!r}")
    page = '<table><tr><th>Eq.</th><th>what</th><th>where</th></tr>'
    for n, what, where in rows:
        where = re.sub(NAME, r"<code>\g<0></code>", inline(where))
        page += f"<tr><td>{inline(n)}</td><td>{inline(what)}</td><td>{where}</td></tr>"
    return page + "</table>"


def paper_side(paper, text):
    """A paper's part of docs/equations.md -> {(function, file): its left side}.  An equation stands
    at the first function that its part names, a method at its class.  UserError: it names none."""
    place = re.compile(rf"`({paper}\.\w+|[a-z_]\w*(?:\.\w+)+)\S*`\]\(\.\./(.*?)\)")
    left = defaultdict(str)

    def first_in(named, by):
        found = place.search(named)
        if not found:
            raise UserError(f"{EQUATIONS}: {by} names no function or class, in the form "
                            f"[`{paper}.NAME`](../{paper}.py)")
        return found.groups()
    for part in re.split("^### ", text, flags=re.M):
        told, tested, tests = part.partition(", tested by")
        if tested:
            heading, _, body = told.partition("\n")
            code = first_in(body, heading)
            left[code] += f"<h3>{heading}</h3>{paragraphs(body, code[0])}"
            for test, path in place.findall(tests):
                left[code] += (f"<details><summary><code>{test}</code></summary>"
                               f"{source_of(test, path)}</details>")
    for point, choice, where in re.findall(r"^\| ([UE]\d+) \| (.*?) \| (.*?) \|", text, re.M):
        left[first_in(where, point)] += (
            f'<p class="note" id="{point}"><b>{point}</b> {inline(choice)}</p>')
    return left


def picture(paper):
    """The lecture's picture of how the regularizer acts, within the page, and its caption without
    the link to the script.  UserError: the lecture has none."""
    lecture = f"docs/lectures/{paper}.md"
    text = (ROOT / lecture).read_text(encoding="utf-8")
    found = re.search(r"^!\[(.+)\]\((\w+\.png)\)\n\n\*(.+) \(\[script\]", text, re.M)
    if not found:
        raise UserError(f"{lecture} needs a picture, ![what it shows](NAME.png), and below it a "
                        "caption, *... ([script](PATH)).*")
    shows, file, caption = found.groups()
    png = base64.b64encode((ROOT / "docs" / "lectures" / file).read_bytes()).decode()
    caption = inline(re.sub(r"\$(.+?)\$", r"$`\1`$", caption))
    return (f'<figure><img alt="{html.escape(shows)}" src="data:image/png;base64,{png}">'
            f"<figcaption>{caption}.</figcaption></figure>")


# ---------------------------------------------------------------------------- right: the code
@functools.cache
def highlighted(path):
    """A Python file -> its text, its lines as HTML, each with its number"""
    text = (ROOT / path).read_text(encoding="utf-8")
    page = highlight(text, PythonLexer(), HtmlFormatter(nowrap=True))
    return text, [f'<i data-n="{n}">{line}</i>' for n, line in enumerate(page.split("\n"), 1)]


def source_of(name, path):
    """eval.nmi, support.runs.Run.finish, test_jrd.test_jrs and its file -> its listing.  UserError:
    the file has no such function or class."""
    text, lines = highlighted(path)
    for node in ast.walk(ast.parse(text)):
        if getattr(node, "name", None) == name.rpartition(".")[2]:
            return listing(lines[node.lineno - 1:node.end_lineno])
    raise UserError(f"{EQUATIONS} names {name}, which {path} has not")


def listing(lines):
    return f"<pre>{''.join(lines)}</pre>"


def parts_of(paper):
    """A script, split at two blank lines -> (name, docstring, listing without it) of each part.
    UserError: two blank lines within one."""
    text, lines = highlighted(f"{paper}.py")
    first = 0
    for chunk in text.split("\n\n\n"):
        after = first + chunk.count("\n") + 1
        try:
            node = ast.parse(chunk)
        except SyntaxError:
            raise UserError(f"{paper}.py: lines {first + 1} to {after} are no whole function or "
                            "class: within one two blank lines may not stand")
        if node.body and hasattr(node.body[0], "name"):     # a function or a class
            node = node.body[0]
        doc, code = ast.get_docstring(node) or "", lines[first:after]
        if doc:
            del code[node.body[0].lineno - 1:node.body[0].end_lineno]
        yield f"{paper}.{getattr(node, 'name', first)}", doc, listing(code)
        first = after + 2


# ---------------------------------------------------------------------------- a page
def page(paper):
    text = (ROOT / EQUATIONS).read_text(encoding="utf-8")
    found = re.search(rf"^## {NAMES[paper]} \(.*?(?=^## )", text, re.S | re.M)
    if not found:
        raise UserError(f"{EQUATIONS} has no '## {NAMES[paper]} (', or no other '## ' after it")
    text = found[0]
    left, nav, body = paper_side(paper, text), "", ""
    section = '<section><div>{1}</div><div id="{0}">{2}</div>{3}</section>'.format
    for n, point in re.findall(rf"{NUMBER}|^\| ([UE]\d+)", text, re.M):
        nav += f'<a href="#{point or "eq-" + n}">{point or "Eq. " + n}</a> '
    for name, doc, code in parts_of(paper):
        side, below = paragraphs(doc, name) + left.pop((name, f"{paper}.py"), ""), ""
        if name == PICTURED[paper]:
            below = picture(paper)
        part = section(name, side, code, below)
        if name == f"{paper}.parse_args":                   # it belongs to no equation
            part = (f"<details><summary><code>{name}</code>: the command line</summary>{part}"
                    "</details>")
        body += part
    for (name, path), side in left.items():
        body += section(name, side, source_of(name, path), "")
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

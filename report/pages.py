"""Figures in Markdown pages, held to the CSV files of the reports.

Every number with decimals that stands on a page is a figure of a report or says that it is none.
A page says so in comments, which no reader of the page sees:

    <!-- from results/glyphs/tables.csv -->     right above a table: its cells are the file's; the
                                                columns table and row (of claims.csv: claim and
                                                must be above 0), perhaps on, say which; the others
                                                have a metric as head (R@1, best R@1*, paper's R@1,
                                                pretrained R@1) or a column of the file; one without
                                                a head is free
    <!-- results/glyphs/claims.csv: J1 | JRD - AMSoftmax; J2 | JRD - MRD -->
    <!-- results/glyphs/tables.csv: jrd 1 | JRD | R@1; jrd 1 | JRD | best R@1 -->
                                                in a paragraph, a list's item or a table: its
                                                figures are those of these rows
    <!-- elsewhere: 5.6, 0.25: WHY -->          these numbers are from elsewhere; all: every other

A figure that is another of the rows named, lost its sign, or stands under elsewhere with the wrong
one, is not noticed.  Exempt are whole numbers (seeds, classes, sizes, times), what a paper's symbol
is set to (α = 0.5) and what stands in code.
"""
import csv
import math
import re
from pathlib import Path

import common

NUMBER = re.compile(r"(?<![\w.])\d[\d,]*\.\d+(?!\w|\.\d)")
SIGNED = re.compile(rf"((?<![\w.])[+-])?({NUMBER.pattern})")
NO_RESULT = re.compile(r"`[^`]*`|\]\([^)]*\)|[α-ω]\S* = [\d.]*\d")      # code, links, settings
COMMENT = re.compile(r"<!-- (.*?) -->", re.DOTALL)
ITEM = re.compile(r"\s*([-*]|\d+\.) ")
KINDS = {"": ("ours", "our std"), "best ": ("best on test, not to report", "best on test's std"),
         "paper's ": ("paper's figure", "paper's std", "paper's 95% interval"),
         "pretrained ": ("before training",)}
KEYS = ("table", "row", "claim", "must be above 0", "on")


# ---------------------------------------------------------------------------- the CSV files
def rows_of(path, key):
    """The rows of a tables.csv or claims.csv that have these cells, {column: cell}; `table` and
    `on` as a page writes them: jrd 1, glyphs.  UserError: no such file."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError:
        raise common.UserError(f"no file {path}")
    for row in rows:
        if "table" in row:
            row |= {"table": f"{row['paper']} {row['table']}", "on": row["dataset"]}
    return [row for row in rows if all(row.get(k) == cell for k, cell in key.items())]


def number(row, column):
    """A cell of a row as a number, None where it is none."""
    try:
        return float(row.get(column) or "none")
    except ValueError:
        return None


def place(rows, head):
    """Rows that differ in their metric, a column's head -> (row, its columns of numbers).

    head: R@1, best R@1, paper's R@1, pretrained R@1, or one of the file.  (None, ()): none there.
    """
    if head in rows[0]:
        return rows[0], (head,)
    kind, metric = re.fullmatch(r"(best |paper's |pretrained |)(.*?)\*?", head).groups()
    row = next((row for row in rows if row["metric"] == metric), None)
    return row, KINDS[kind] if row else ()


def referred(reference):
    """'FILE.csv: jrd 1 | JRD | R@1; ...' -> the numbers of these rows, complaints"""
    path, _, names = reference.partition(": ")
    found, complaints = [], []
    for name in names.split("; "):
        *key, last = name.split(" | ")
        if len(key) == 1:                                               # a claim
            rows = rows_of(path, {"claim": key[0], "must be above 0": last})
            for row in rows:
                middle, half = number(row, "estimate"), number(row, "half-width")
                found += [middle, half, number(row, "p"), number(row, "Holm-adjusted p")]
                found += map(float, NUMBER.findall(row["verdict"]))
                if half is not None:
                    found += [middle - half, middle + half]
        else:
            rows = rows_of(path, dict(zip(("table", "row"), key)))
            for on in dict.fromkeys(row["on"] for row in rows):         # of each dataset
                row, columns = place([row for row in rows if row["on"] == on], last)
                found += [number(row, column) for column in columns]
        if not rows:
            complaints.append(f"{path} has no {name}")
    return [x for x in found if x is not None], complaints


# ---------------------------------------------------------------------------- tables
def cells_of(line):
    """A line of a table -> its cells"""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def spread(mean, std, metric):
    """Figures of a row -> mean ± std, of shares in % with one decimal, else three"""
    digits = 1 if re.search(r"R@\d|MAP@R|NMI", metric) else 3
    text = f"{mean:.{digits}f}"
    return text if std is None else f"{text} ± {std:.{digits}f}"


def cell(rows, head):
    """What stands below a head of a table, from its key's rows; None: they do not have it."""
    row = rows[0]
    if "claim" in row:
        middle, half = number(row, "estimate"), number(row, "half-width")
        if head == "estimate" and middle is not None:
            interval = f" ({middle - half:+.2f} to {middle + half:+.2f})"
            return f"{middle:+.2f}" + ("" if math.isnan(half) else interval)
        head = "Holm-adjusted verdict" if head == "Holm-adjusted" else head
        return (row[head] or "–") if head in row else None
    if head == "command":
        return f"`{row[head]}`"
    row, columns = place(rows, head)
    if not {*columns[:2]} <= {*(row or ())} or not columns:
        return None
    mean = number(row, columns[0])
    if mean is not None and columns == KINDS["pretrained "]:
        return spread(mean, None, head)
    if len(columns) == 1 or columns == KINDS["paper's "] or mean is None:
        return row[columns[0]] or "–"
    return spread(mean, number(row, columns[1]), head)


def filled(path, lines):
    """A table's lines -> the same with the cells of a CSV file, complaints.

    A cell that the file does not have stays as it is.
    """
    heads, complaints, done = cells_of(lines[0]), [], lines[:2]
    for line in lines[2:]:
        row = dict(zip(heads, cells_of(line)))
        key = {head: row[head] for head in KEYS if head in row}
        rows = rows_of(path, key)
        if len({r["on"] for r in rows}) != 1:
            several = "several, a column 'on' says which," if rows else "no"
            complaints.append(f"{path} has {several} {', '.join(key.values())}")
            rows = []
        for head in row:
            if rows and head and head not in KEYS:
                found = cell(rows, head)
                if found is None:
                    complaints.append(f"{path} has no {head} of {', '.join(key.values())}")
                else:
                    row[head] = found
        done.append(f"| {' | '.join(row.values())} |" if rows else line)
    return done, complaints


# ---------------------------------------------------------------------------- pages
def blocks(lines):
    """Paragraphs, items of lists and tables -> (number of the first line, lines) of each; code
    between fences is left out."""
    found, block, code = [], [], False
    for i, line in enumerate([*lines, ""]):
        fence = line.lstrip().startswith("```")
        if block and (fence or code or not line.strip() or ITEM.match(line)):
            found.append((i - len(block), block))
            block = []
        if fence:
            code = not code
        elif line.strip() and not code:
            block.append(line)
    return found


def unknown(text, known):
    """The numbers with decimals in a text that are none of the known ones, as written but for their
    sign: one that is written counts, a figure without one may be of either."""
    found = set()
    for sign, written in SIGNED.findall(NO_RESULT.sub("", text)):
        digits = len(written.partition(".")[2])
        if sign + written.replace(",", "") not in {
                f"{x if sign else abs(x):{sign and '+'}.{digits}f}" for x in known}:
            found.add(written)
    return found


def checked(block):
    """The lines of a block -> the same with a marked table's cells filled, complaints."""
    text = "\n".join(block)
    comments = [" ".join(c.split()) for c in COMMENT.findall(text)]
    text = COMMENT.sub("", text)
    complaints, elsewhere, known, source = [], [], [], None
    for comment in comments:
        if comment.startswith("from "):
            source = comment.removeprefix("from ")
        elif comment.startswith("elsewhere: "):
            elsewhere += comment.split(": ")[1].split(", ")
        elif ".csv: " in comment:
            numbers, missing = referred(comment)
            known += numbers
            complaints += missing
    table = [i for i, line in enumerate(block) if line.startswith("|")]
    if source and not table:
        complaints.append(f"no table stands right below <!-- from {source} -->")
    elif source:
        block, lines = list(block), slice(table[0], table[-1] + 1)
        block[lines], missing = filled(source, block[lines])
        complaints += missing
    else:
        complaints += [f"{written} is of no row that is named"
                       for written in sorted(unknown(text, known) - {*elsewhere})]
    if "all" in elsewhere:
        return block, [] if complaints else ["elsewhere: all is idle"]
    return block, complaints + [f"elsewhere: {written} is not here" for written in elsewhere
                                if written not in NUMBER.findall(text)]


def held(text):
    """A page -> the page with its marked tables filled, complaints [(line, what)]"""
    lines, complaints = text.split("\n"), []
    for first, block in blocks(lines):
        done, said = checked(block)
        lines[first:first + len(block)] = done
        complaints += [(first + 1, what) for what in said]
    return "\n".join(lines), complaints


def fill(names):
    """--fill: bring marked tables of pages up to date -> complaints as lines 'FILE:LINE: ...'"""
    said = []
    for name in names:
        path = Path(name)
        if not path.is_file():
            raise common.UserError(f"no file {path}")
        try:
            text, complaints = held(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            raise common.UserError(f"{path} is no text")
        with common.atomic(path) as file:
            file.write(text)
        said += [f"{path}:{line}: {what}" for line, what in complaints]
    return said

"""Figures in Markdown pages, held to the CSV files of the reports.

Every number with decimals that stands on a page is a figure of a report or says that it is none.
A page says so in comments, which no reader of the page sees:

    <!-- from results/glyphs/tables.csv -->     before a table: its cells are the file's; the columns
                                                table and row (of claims.csv: claim and must be
                                                above 0), perhaps on, say which, a column without
                                                a head is free
    <!-- results/glyphs/claims.csv: J1 | JRD - AMSoftmax; J2 | JRD - MRD -->
    <!-- results/glyphs/tables.csv: jrd 1 | JRD | R@1 -->
                                                in a paragraph, a list's item or a table: its
                                                figures are those of these rows
    <!-- elsewhere: 5.6, 0.25: WHY -->          these numbers are from elsewhere; all: every other

Whole numbers are exempt (seeds, classes, sizes, times), and so is what stands in code.
"""
import csv
import re
from pathlib import Path

import common

NUMBER = re.compile(r"(?<![\w.])\d[\d,]*\.\d+(?!\w|\.\d)")
COMMENT = re.compile(r"<!-- (.*?) -->", re.DOTALL)
ITEM = re.compile(r"\s*([-*]|\d+\.) ")
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
        return float(row[column])
    except (KeyError, ValueError):
        return None


def figures(row):
    """All numbers of a row: its cells, the ends of its interval, a bound in its verdict."""
    found = [number(row, column) for column in row]
    found += [float(text) for text in NUMBER.findall(row.get("verdict", ""))]
    middle, half = number(row, "estimate"), number(row, "half-width")
    if half is not None:
        found += [middle - half, middle + half]
    return [figure for figure in found if figure is not None]


def referred(reference):
    """'FILE.csv: jrd 1 | JRD | R@1; ...' -> the numbers of these rows, complaints"""
    path, _, names = reference.partition(": ")
    found, complaints = [], []
    for name in names.split("; "):
        cells = [cell.strip() for cell in name.split(" | ")]
        columns = ("claim", "must be above 0") if len(cells) == 2 else ("table", "row", "metric")
        rows = rows_of(path, dict(zip(columns, cells)))
        if not rows or len(cells) > 3:
            complaints.append(f"{path} has no {name}")
        for row in rows:
            found += figures(row)
    return found, complaints


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
    """What stands below a head of a table, from the rows that its key has; None: it is not there."""
    if "claim" in rows[0]:
        (row,) = rows
        if head == "estimate" and number(row, "estimate") is not None:
            middle, half = number(row, "estimate"), number(row, "half-width")
            return f"{middle:+.2f} ({middle - half:+.2f} to {middle + half:+.2f})"
        return row.get("Holm-adjusted verdict" if head == "Holm-adjusted" else head)
    if head in ("seeds", "rate", "command"):
        return rows[0].get(head)
    kind, metric = re.fullmatch(r"(best |paper's |)(.*?)\*?", head).groups()
    row = next((row for row in rows if row["metric"] == metric), None)
    if row is None:
        return None
    if kind == "paper's ":
        return row["paper's figure"] or "–"
    mean, std = ("ours", "our std") if not kind else ("best on test, not to report",
                                                      "best on test's std")
    if number(row, mean) is None:
        return row[mean] or "–"
    if kind and std not in row:
        return None
    return spread(number(row, mean), number(row, std), metric)


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


def checked(block):
    """The lines of a block -> the same with a marked table's cells filled, complaints."""
    comments = [" ".join(c.split()) for c in COMMENT.findall("\n".join(block))]
    sources = [c.removeprefix("from ") for c in comments if c.startswith("from ")]
    complaints, elsewhere, known = [], [], []
    if sources:
        start = next((i for i, line in enumerate(block) if line.startswith("|")), len(block))
        end = next((i for i in range(start, len(block)) if not block[i].startswith("|")), None)
        table, complaints = filled(sources[0], block[start:end])
        block = block[:start] + table + (block[end:] if end else [])
    for comment in comments:
        if comment.startswith("elsewhere: "):
            elsewhere += comment.split(": ")[1].split(", ")
        elif ".csv: " in comment:
            numbers, missing = referred(comment)
            known += numbers
            complaints += missing
    needed = set()
    if not sources:
        text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", COMMENT.sub("", "\n".join(block)))
        for written in NUMBER.findall(text):
            digits = len(written.partition(".")[2])
            if written.replace(",", "") not in {f"{abs(x):.{digits}f}" for x in known}:
                needed.add(written)
    complaints += [f"{n} is of no row that is named" for n in sorted(needed - {*elsewhere})]
    if "all" in elsewhere:
        idle = [] if complaints else ["all"]
        complaints = []
    else:
        idle = [n for n in elsewhere if n not in needed]
    return block, complaints + [f"elsewhere: {n} is idle" for n in idle]


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
        text, complaints = held(path.read_text(encoding="utf-8"))
        with common.atomic(path) as file:
            file.write(text)
        said += [f"{path}:{line}: {what}" for line, what in complaints]
    return said

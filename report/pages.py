"""Tables in Markdown pages, filled from the CSV files of the reports.

    <!-- from results/glyphs/tables.csv -->     right above a table: its cells are the file's

The columns table and row (of claims.csv: claim and must be above 0), perhaps on, say which row of
the file stands in a line: the first that has them.  The other columns have a metric as head (R@1,
paper's R@1, pretrained R@1) or a column of the file.  A column in *italics* is written by hand.
"""
import csv
import functools
import re
from pathlib import Path

import common
from report.tables import digits_of, mean_std_text, table_line, with_interval

MARKED = re.compile(r"<!-- from (\S+) -->\n((?: *\|.*\n?)+)")
KEYS = ("table", "row", "claim", "must be above 0", "on")
COLUMNS = {"": ("ours", "our std"), "paper's ": ("paper's figure", None),
           "pretrained ": ("before training", None)}


@functools.cache
def csv_rows(path):
    """The rows of a tables.csv or claims.csv, `table` and `on` as a page writes them: jrd 1, cub"""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError:
        raise common.UserError(f"no file {path}")
    for row in rows:
        if "table" in row:
            row |= {"table": f"{row['paper']} {row['table']}", "on": row["dataset"]}
    return rows


def cells_of(line):
    """A line of a table -> its cells"""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def of_a_claim(row, head):
    """What stands below a head in a row of claims.csv"""
    if head == "estimate" and row["estimate"]:
        return with_interval(float(row["estimate"]), float(row["half-width"]))
    return row["Holm-adjusted verdict" if head == "Holm-adjusted" else head] or "–"


def of_a_table(rows, head):
    """What stands below a head in the rows of tables.csv that differ in their metric alone"""
    if head == "command":
        return f"`{rows[0][head]}`"
    if head in rows[0]:
        return rows[0][head] or "–"
    kind, metric = re.fullmatch(r"(paper's |pretrained |)(.*)", head).groups()
    row = {row["metric"]: row for row in rows}[metric]
    figure, std = COLUMNS[kind]
    if not row[figure][:1].isdigit() or kind == "paper's ":     # 'not run', nothing, as printed
        return row[figure] or "–"
    std = float(row[std]) if std and row[std] else None
    return mean_std_text(float(row[figure]), std, digits_of(metric))


def filled(path, table):
    """A table -> the same with the cells of a CSV file.  UserError: it does not have them."""
    head_line, rule, *lines = table.splitlines()
    heads = cells_of(head_line)
    for i, line in enumerate(lines):
        cells = dict(zip(heads, cells_of(line)))
        key = {head: cells[head] for head in KEYS if head in cells}
        rows = [row for row in csv_rows(path) if all(row.get(k) == v for k, v in key.items())]
        if len({row["on"] for row in rows}) != 1:
            several = "several, a column 'on' says which," if rows else "no"
            raise common.UserError(f"{path} has {several} {', '.join(key.values())}")
        for head in heads:
            if head not in KEYS and not head.startswith("*"):
                try:
                    cells[head] = (of_a_claim(rows[0], head) if "claim" in rows[0]
                                   else of_a_table(rows, head))
                except KeyError:
                    raise common.UserError(f"{path} has no {head} of {', '.join(key.values())}")
        lines[i] = line[:line.index("|")] + table_line(cells.values())
    return "\n".join([head_line, rule, *lines]) + "\n"


def with_tables(text):
    """A page with its marked tables filled"""
    tables = len(MARKED.findall(text))
    if tables != text.count("<!-- from "):
        raise common.UserError("no table stands right below one of the comments <!-- from ... -->")
    return MARKED.sub(lambda mark: f"<!-- from {mark[1]} -->\n{filled(mark[1], mark[2])}", text)


def fill(names):
    """--fill: bring the marked tables of pages up to date."""
    for name in names:
        path = Path(name)
        if not path.is_file():
            raise common.UserError(f"no file {path}")
        try:
            text = with_tables(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            raise common.UserError(f"{path} is no text")
        except common.UserError as error:
            raise common.UserError(f"{path}: {error}")
        with common.atomic(path) as file:
            file.write(text)

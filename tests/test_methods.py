"""docs/methods.md's figures are those of results/glyphs, and its commands run."""
import csv
import re
import shlex
import timeit

import pytest

from conftest import ROOT

METHODS = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")


def rows(name):
    with open(ROOT / "results" / "glyphs" / f"{name}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def cells(first):
    """The rows of the page's table whose head begins with `first`."""
    table = re.search(rf"^\| {first}.*\n\|[-|]+\n((?:\|.*\n)+)", METHODS, re.M)[1]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")]
            for line in table.splitlines()]


def test_the_claims_are_those_of_the_report():
    found = {(row["claim"], row["must be above 0"]): row for row in rows("claims")}
    table = cells("claim")
    assert len(table) > 8
    for claim, difference, interval, seeds, verdict in table:
        row = found[claim, difference]
        middle, half = float(row["estimate"]), float(row["half-width"])
        want = f"{middle:+.2f} ({middle - half:+.2f} to {middle + half:+.2f})"
        assert (interval, seeds, verdict) == (want, row["seeds"], row["verdict"]), row


def test_the_recalls_are_those_of_the_report():
    found = {(row["paper"], row["table"], row["row"]): row for row in rows("tables")
             if row["metric"] == "R@1"}
    table = cells("script and table")
    assert len(table) > 8
    for place, row, recall, command in table:
        script, _, table = place.partition(" ")
        row = found[script, table, row]
        want = f"{float(row['ours']):.1f} ± {float(row['our std']):.1f}"
        assert (recall, command.strip("`")) == (want, row["command"].removeprefix(
            "python ")), row


COMMANDS = re.findall(r"python -m timeit.*?(?=\npython|\n```)", METHODS, re.DOTALL)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_timings_run(command, capsys):
    assert len(COMMANDS) == 3
    words = shlex.split(command.replace("\\\n", " "))
    assert words[:3] == ["python", "-m", "timeit"]
    assert timeit.main(["-n", "1", "-r", "1", *words[3:]]) is None       # it prints and returns
    assert "1 loop" in capsys.readouterr().out

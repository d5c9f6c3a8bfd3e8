"""docs/methods.md's commands run; its figures are tests/test_pages.py's."""
import re
import shlex
import timeit

import pytest

from conftest import ROOT

METHODS = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")

COMMANDS = re.findall(r"python -m timeit.*?(?=\npython|\n```)", METHODS, re.DOTALL)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_timings_run(command, capsys):
    assert len(COMMANDS) == 3
    words = shlex.split(command.replace("\\\n", " "))
    assert words[:3] == ["python", "-m", "timeit"]
    assert timeit.main(["-n", "1", "-r", "1", *words[3:]]) is None       # it prints and returns
    assert "1 loop" in capsys.readouterr().out

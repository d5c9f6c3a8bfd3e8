"""benchmarks/step.py and studies/reg_weight.py run to their end, on as little as it takes."""
import subprocess
import sys

import dml_da
from conftest import ROOT
from studies import reg_weight
from support import glyphs


def test_step():
    done = subprocess.run([sys.executable, ROOT / "benchmarks" / "step.py", "--papers", "dml_da",
                           "--batch", "2", "--steps", "1", "--threads", "1", "--device", "cpu"],
                          capture_output=True, encoding="utf-8")
    assert "\n| dml_da, googlenet | 2 " in done.stdout, done.stderr


def test_reg_weight(monkeypatch, capsys):
    monkeypatch.setattr(glyphs, "GLYPHS", dict(glyphs.GLYPHS))
    monkeypatch.setattr(dml_da, "train", lambda cfg: {"last epoch": {
        "R@1": 0.5, "NMI": cfg.reg_weight / 1000 if cfg.reg_weight else 0}})
    reg_weight.main()
    assert capsys.readouterr().out.split("|")[-5:-1] == [" gor         ", " 100    ", " 50.0 ",
                                                         " 10.0 "]

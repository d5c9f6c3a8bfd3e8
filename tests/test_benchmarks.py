"""Each benchmark runs to its end, on as little as it takes (test_search.py has search.py)."""
import argparse
import os
import sys

import pytest
import torch

import jrd
from conftest import ROOT
from support import glyphs


@pytest.fixture
def benchmark(monkeypatch):
    """benchmark(name): a module of benchmarks/, whose threads are its own."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    kept, threads = os.environ.copy(), torch.get_num_threads()
    yield lambda name: __import__(name)
    monkeypatch.undo()
    torch.set_num_threads(threads)
    os.environ.clear()
    os.environ.update(kept)


def rows(text):
    return [line for line in text.splitlines() if line.startswith("| ")]


def test_data(benchmark, capsys):
    benchmark("data").main(argparse.Namespace(papers=["jrd"], images=16, repeats=1))
    assert rows(capsys.readouterr().out)[-1].split(" | ")[5].strip() == "yes"       # the same bytes


def test_step(benchmark, capsys):
    benchmark("step").main(argparse.Namespace(papers=["dml_da"], batch=2, steps=1, warmup=0,
                                              threads=1, precision="fp32", device="cpu"))
    assert rows(capsys.readouterr().out)[-1].startswith("| dml_da, GoogLeNet |")


def test_memory(benchmark, monkeypatch, capsys):
    memory = benchmark("memory")
    monkeypatch.setattr(memory, "PRESETS", [(jrd, "--dataset cub128")])
    memory.main()
    assert "squeezenet1_1 | 100 | 128 |" in capsys.readouterr().out


def test_jrs_bandwidths_glyphs(benchmark, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(glyphs.GLYPHS, "test", (range(450, 460), 2))
    module, parse_args = benchmark("jrs_bandwidths_glyphs"), jrd.parse_args
    monkeypatch.setattr(jrd, "regularizer", jrd.regularizer)            # it puts others there
    monkeypatch.setattr(jrd, "parse_args", lambda words: parse_args([*words, "--epochs", "1"]))
    network, data, found = module.trained("fixed", 2, 0, tmp_path)
    row, taus = module.measure(network, data, None)
    assert row["F"] == row["F at τ of α=0"] and len(taus) == 3 and 0 <= found["R@1"] <= 1
    module.directions(network, data)
    assert "cosine with detached 1.000" in capsys.readouterr().out


def test_reg_weight(benchmark, monkeypatch, capsys):
    module = benchmark("reg_weight")
    monkeypatch.setattr(glyphs, "GLYPHS", dict(glyphs.GLYPHS))
    monkeypatch.setattr(sys.modules["dml_da"], "train", lambda cfg: {"last epoch": {
        "R@1": 0.5, "NMI": cfg.reg_weight / 1000 if cfg.reg_weight else 0}})
    module.main()
    assert capsys.readouterr().out.splitlines()[-1].split() == ["gor", "100", "50.0", "10.0"]

"""Spawned processes, other devices and old interpreters, as far as Linux can play them."""
import argparse
import os
import pickle
import re
import shutil
import subprocess
import sys

import pytest
import torch

import common
import dml_da
import jrd
import mdr
from conftest import ROOT, make_folder
from report import experiments

SCRIPTS = pytest.mark.parametrize("script", [jrd, mdr, dml_da], ids=lambda s: s.__name__)


# ---------------------------------------------------------------------------- spawned processes
@SCRIPTS
def test_a_spawned_worker_can_be_told_what_to_load(script, tmp_path):
    """What a worker gets is pickled where processes are not forked: cached or not, held out."""
    folder = make_folder(tmp_path / "photos", [2] * 8, side=30)
    cfg = script.parse_args(["--dataset", str(folder), "--data-root", str(tmp_path),
                             "--backbone", "small"])
    train_prefix, augment, test = script.transforms(cfg)
    for cache in (False, True):
        data = common.load_dataset(cfg.dataset, cfg.data_root, train_prefix, test, cache, val=0.5)
        for split in (data.train, data.seen, data.val, data.test):
            told = common._Augmented(split, augment, 0)
            assert torch.equal(pickle.loads(pickle.dumps(told))[0, 1][0], told[0, 1][0])


@pytest.mark.parametrize("cache", [True, False])
def test_cached_images_are_evaluated_without_workers(cache, tmp_path, monkeypatch):
    folder = make_folder(tmp_path / "photos", [2] * 8, side=30)
    data = common.load_dataset(str(folder), tmp_path, test=common.SMALL_TRANSFORMS[2], cache=cache,
                               val=0.5)
    asked, real = [], torch.utils.data.DataLoader

    def loader(*args, num_workers, **kwargs):
        asked.append(num_workers)
        return real(*args, **kwargs)
    monkeypatch.setattr(torch.utils.data, "DataLoader", loader)
    cfg = argparse.Namespace(workers=3, device="cpu")
    for split in (data.seen, data.val, data.test):
        embedded = common.embed(lambda x: x.float().mean((2, 3)), split, cfg)
        want = torch.stack([split.images[i].float().mean((1, 2)) for i in range(len(split))])
        torch.testing.assert_close(embedded, want)
    assert asked == ([] if cache else [3] * 3)          # a whole cached split is one view


# ---------------------------------------------------------------------------- names, commands
def test_run_folders_have_names_for_every_system():
    """No character that Windows forbids, no two that differ in case alone, room below 260."""
    args = argparse.Namespace(dataset="real", paper=None, table=None, quick=False, seeds=1,
                              runs="runs", weights=None)
    names = [run.folder.name for run in experiments.all_runs(experiments.selected(args), args)]
    assert len(names) > 150 and all(re.fullmatch(r"[A-Za-z0-9._-]{1,80}", name) for name in names)
    assert len({name.lower() for name in names}) == len(names)


# ---------------------------------------------------------------------------- devices
@SCRIPTS
@pytest.mark.parametrize("name", ["mps", "mps:0", "xpu", "meta"])
def test_other_devices_are_refused_before_anything_is_read(script, name, tmp_path, monkeypatch,
                                                           capsys):
    monkeypatch.setattr(common, "load_dataset", None)
    monkeypatch.setattr(sys, "argv", ["script.py"])
    with pytest.raises(SystemExit) as end:
        common.main(script.train, lambda: script.parse_args(["--device", name]))
    out, err = capsys.readouterr()
    assert end.value.code == 2 and out == "" and err.count("\n") == 1
    assert err == (f"script.py: --device {name} is not supported: nothing here was ever run on it; "
                   "use --device cpu\n")


# ---------------------------------------------------------------------------- oldest versions
def test_an_old_python_is_refused_before_anything_is_made(tmp_path):
    shutil.copy(ROOT / "run_all.sh", tmp_path)
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHON", "VIRTUAL_ENV")}
    env["PATH"] = f"{python.parent}:{env['PATH']}"
    for text, version in (('echo "Python 3.9.6"', "Python 3.9.6"), ("exit 127", "no python3")):
        python.write_text(f'#!/bin/sh\n[ "$1" = --version ] || exit 1\n{text}\n')
        python.chmod(0o755)
        done = subprocess.run(["bash", tmp_path / "run_all.sh", "--test"], env=env, text=True,
                              capture_output=True)
        assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
        assert f"Python 3.10 or newer is needed, found {version}: " in done.stderr
        assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "run_all.sh"]

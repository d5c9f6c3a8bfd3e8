"""A cluster's needs: the list of commands where nothing is installed, weights and caches ahead of a
job array."""
import shutil
import subprocess
import sys

import pytest
import torch

import common
from conftest import ROOT
from support import files, images, layouts
from test_datasets import MINI, make_cub

STUB = "#!/usr/bin/env bash\n"


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(STUB + text)
    path.chmod(0o755)
    return path


# ---------------------------------------------------------------------------- the list
@pytest.fixture
def checkout(tmp_path):
    """checkout(*words, **env): run_all.sh in a folder of its own, whose `python` is this one -> the
    finished process."""
    scripts = [f"{name}.py" for name in (*common.PAPERS, "common", "eval")]
    for path in ("report", "support", *scripts):
        (tmp_path / path).symlink_to(ROOT / path)
    shutil.copy(ROOT / "run_all.sh", tmp_path)
    for name in ("python", "my python"):
        executable(tmp_path / "bin" / name, f'exec {sys.executable} "$@"\n')

    def run(*words, **env):
        env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"} | env
        return subprocess.run(["bash", tmp_path / "run_all.sh", *words], env=env, text=True,
                              capture_output=True, cwd="/")
    run.folder = tmp_path
    return run


def test_the_list_names_the_interpreter_that_run_all_would_take(checkout):
    words = "--paper jrd --table 1 --seeds 2 --list".split()
    python = f"{checkout.folder}/bin/my\\ python"
    for interpreter, env in ((python, {"PYTHON": f"{checkout.folder}/bin/my python"}),
                             ("python", {"VIRTUAL_ENV": "active"})):
        done = checkout(*words, "--dataset", "glyphs", **env)
        assert done.returncode == 0 and done.stdout.splitlines() == [
            f"{interpreter} jrd.py --dataset glyphs{flags} --seed {seed}" for seed in (0, 1)
            for flags in ("", " --alpha 0", " --lr 1e-3 --lr-proxies 0.1",
                          " --alpha 0 --lr 1e-3 --lr-proxies 0.1")], done.stderr
    assert " --dataset cub " in checkout(*words, VIRTUAL_ENV="active").stdout   # the papers' own
    assert not (checkout.folder / ".venv").exists()


# ---------------------------------------------------------------------------- weights and caches
@pytest.fixture
def prepare(tmp_path, monkeypatch, capfd):
    """prepare(*words) -> status, lines on stdout and stderr; there is a miniature cub, no network,
    and squeezenet's file has any hash."""
    for name, counts in MINI.items():
        monkeypatch.setitem(layouts.COUNTS, name, counts)
    make_cub(tmp_path)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    weights_file = common.weights_file

    def download(url, path, hash_prefix):
        if "squeezenet" not in url:
            raise OSError("no route to host")
        torch.save(common.backbone("squeezenet1_1")[0].state_dict(), path)
    monkeypatch.setattr(torch.hub, "download_url_to_file", download)
    monkeypatch.setattr(common, "weights_file", lambda name: (
        weights_file(name)[0], "" if "squeeze" in name else "0", weights_file(name)[2]))

    def run(*words):
        status = 0
        try:
            common.prepare(common.parse_args(
                ["prepare", *map(str, words), "--data-root", str(tmp_path)]))
        except SystemExit as stop:
            status = stop.code
        out, err = capfd.readouterr()
        return status, out.splitlines(), err.splitlines()
    return run


def test_prepare_fetches_and_builds_what_the_presets_need(prepare, tmp_path, monkeypatch):
    status, out, err = prepare("cub128")
    assert (status, err) == (0, [])
    (file,) = (tmp_path / "hub" / "checkpoints").iterdir()
    assert [line for line in out if line.startswith("ready: ")] == [
        f"ready: cub128 as {paper}.py sees it, 3 images of 2 classes to train, 4 images of 2 "
        f"classes to test, weights of squeezenet1_1 {files.sha256(file)[:12]}"
        for paper in common.PAPERS]
    assert sum(line.startswith("building the cache") for line in out) == 8
    monkeypatch.setattr(images, "_build_cache", None)           # nothing is left to build
    assert prepare("cub128", "--paper", "mdr")[0] == 0


def test_prepare_says_a_line_for_each_file_that_it_cannot_have(prepare, tmp_path):
    """... and does the rest: two papers share BN-Inception; cars are missing for all three; caches
    are built."""
    status, out, err = prepare("cub", "cars", "birds")
    assert status == 2
    assert [line.split(":")[0:2] for line in err[:3]] == [
        ["common.py", " cannot download http"], ["common.py", " cannot download https"],
        ["common.py", f" no cars under {tmp_path} (--data-root or $DML_DATA names another folder)"]]
    assert "bn_inception-52deb4733.pth: no route to host" in err[0] and "googlenet" in err[1]
    assert "unknown dataset 'birds'" in err[3] and len(err) == 4
    assert sum(line.startswith("building the cache") for line in out) > 5

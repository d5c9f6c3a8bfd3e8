"""A cluster's needs: weights and caches ahead of a job array."""
import pytest
import torch

import common
from support import files, images, layouts
from test_datasets import MINI, make_cub

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

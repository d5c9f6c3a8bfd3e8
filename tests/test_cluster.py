"""A cluster's needs: weights and caches ahead of a job array."""
import pytest
import torch

import common
from support import images, layouts
from test_datasets import MINI, make_cub


@pytest.fixture
def prepare(tmp_path, monkeypatch, capfd):
    """prepare(*words) -> status, lines on stdout and stderr; there is a miniature cub, no network,
    and squeezenet's file has the hash that is expected."""
    for name, counts in MINI.items():
        monkeypatch.setitem(layouts.COUNTS, name, counts)
    make_cub(tmp_path)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))

    def download(url, path, hash_prefix=None):
        if "squeezenet" not in url:
            raise OSError("no route to host")
        torch.save(common.backbone("squeezenet1_1")[0].state_dict(), path)
    monkeypatch.setattr(torch.hub, "download_url_to_file", download)
    monkeypatch.setattr(common, "sha256", lambda path: path.stem.rpartition("-")[2] + "0123")

    def run(*words):
        status = 0
        try:
            common.main(common.prepare, lambda: common.parse_args(
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
        f"classes to test, weights of squeezenet1_1 {file.stem[-8:]}0123"
        for paper in common.PAPERS]
    built = [line for line in out if line.startswith("building the cache")]
    monkeypatch.setattr(images, "_build_cache", None)           # nothing is left to build
    assert built and prepare("cub128", "--paper", "mdr")[0] == 0


@pytest.mark.parametrize("dataset, message", [
    ("cub", "bn_inception-52deb4733.pth: no route to host"), ("birds", "unknown dataset 'birds'"),
    ("cars", "no cars under ")])
def test_prepare_says_in_a_line_what_it_cannot_have(dataset, message, prepare):
    status, _, err = prepare(dataset)
    assert status == 2 and len(err) == 1 and message in err[0]

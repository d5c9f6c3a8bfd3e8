"""benchmarks/search.py: its commands, its held-out split, its table and its rule."""
import json
import sys

import pytest

import common
import jrd
import mdr
from conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import search  # noqa: E402


def test_the_commands(capsys):
    def listed(*words):
        search.main(["list", *words])
        return capsys.readouterr().out.splitlines()

    cub = listed("--weights", "my.pth", "--workers", "0")
    assert len(cub) == len(set(cub)) == 6 * 2 + 11
    assert cub[0] == ("benchmarks/search.py run jrd --alpha 0 --dataset cub128 --epochs 25 "
                      "--drop-every 10 --lr 0.0001 --lr-proxies 0.01 --out runs-search "
                      "--weights my.pth --workers 0")
    glyphs = listed("--dataset", "glyphs")
    assert len(glyphs) == len(set(glyphs)) == 6 * 5 * 3
    assert glyphs[-1] == ("benchmarks/search.py run dml_da --loss npair --lambda 0 "
                          "--dataset glyphs --lr 0.003 --seed 2 --out runs-search")
    preset, at_its_rate = jrd.parse_args(["--alpha", "0"]), glyphs[2].split()[3:]
    assert vars(jrd.parse_args([*at_its_rate, "--out", "runs"])) == vars(preset)


def test_no_image_of_a_test_class_is_seen():
    data, whole = search.held_out("glyphs"), common.load_dataset("glyphs")
    assert data.test.classes == whole.train.classes[40:] and data.val is data.gallery is None
    assert data.train.classes == whole.train.classes[:40] and len(data.test) == 150
    assert not {*data.train.classes, *data.test.classes} & {*whole.test.classes}
    assert (data.test.images[0] == whole.seen.images[600]).all()


@pytest.mark.parametrize("of_rates, want", [
    ({1e-4: [50, 52], 3e-4: [50, 51], 1e-3: [45, 46]}, 3e-4),       # best 51 ± 1.41: 50.5 is within
    ({1e-4: [50, 50.5], 3e-4: [49, 50], 1e-3: [45, 46]}, 1e-4),     # best 50.25 ± 0.35
    ({1e-4: [50, 52], 3e-4: [55]}, None), ({}, None)])
def test_the_rule(of_rates, want):
    assert search.choice(of_rates) == want


@pytest.mark.parametrize("dataset", ["glyphs", "cub128"])
def test_the_pages_have_the_table_of_the_committed_runs(dataset, capsys):
    """Otherwise: python benchmarks/search.py --dataset DATASET --out results/DATASET/search"""
    search.table(dataset, ROOT / "results" / dataset / "search")
    table = capsys.readouterr().out
    page = (ROOT / "docs" / f"{dataset}.md").read_text(encoding="utf-8")
    assert table.count("\n") > 7 and table in page


def test_the_table(tmp_path, capsys):
    """Runs of other settings, datasets and papers are left out; seeds are together."""
    found = {("mdr --lambda 0", 1e-3): (0.5, 0.52), ("mdr --lambda 0 --l2norm", 1e-3): (0.6, 0.64),
             ("mdr --lambda 0", 3e-4): (0.7,), ("jrd --alpha 0", 1e-3): (0.9, 0.9),
             ("mdr --lambda 0.5", 1e-3): (0.1,), ("mdr --lambda 0", 1e-2, "cub128"): (0.2,)}
    for i, ((baseline, rate, *dataset), recalls) in enumerate(found.items()):
        for seed, recall in enumerate(recalls):
            words = search.command(baseline, (dataset or ["glyphs"])[0], rate, seed).split()
            script = {"mdr": mdr, "jrd": jrd}[words[0]]
            folder = tmp_path / f"{i}-s{seed}"
            folder.mkdir()
            settings = vars(script.parse_args(words[1:])) | {"paper": words[0]}
            del settings["name"]                                        # as older code wrote it
            (folder / "config.json").write_text(json.dumps(settings))
            (folder / "result.json").write_text(json.dumps(
                {"last epoch": {"R@1": recall, "seen R@1": 0.95}}))
    search.table("glyphs", tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| R@1 held out / trained | 0.0003 | 0.001 |"
    assert lines[2:5] == ["| AMSoftmax |  | 90.0 ± 0.0 / 95.0 |",
                          "| Triplet | 70.0 / 95.0 | 51.0 ± 1.4 / 95.0 |",
                          "| Triplet + L2Norm |  | 62.0 ± 2.8 / 95.0 |"]
    assert lines[8:] == ["| jrd's baselines together | – | **90.0 ± 0.0** |",
                         "| mdr's baselines together | – | **56.5 ± 2.1** |"]


def test_nothing_found_is_one_line(tmp_path):
    with pytest.raises(SystemExit, match="no finished run of the search on glyphs under"):
        search.table("glyphs", tmp_path)

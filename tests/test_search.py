"""studies/rate_search.py: its commands, its held-out split, its table and its rule."""
import pytest

import common
import dml_da
import jrd
import mdr
from conftest import ROOT
from studies import rate_search


def test_the_commands(capsys):
    def listed(*words):
        rate_search.main(["list", *words])
        return capsys.readouterr().out.splitlines()

    cub = listed("--weights", "my.pth", "--workers", "0")
    assert len(cub) == len(set(cub)) == 8 * 5 + 2 + 4 + 4 * 3
    assert cub[0] == ("studies/rate_search.py run jrd --weights my.pth --workers 0 --dataset "
                      "cub128 --epochs 25 --drop-every 10 --alpha 0 --lr 1e-05 --lr-proxies 0.001 "
                      "--out runs-search")
    cfg = dml_da.parse_args(cub[-8].split()[3:])            # its own weights have the last word
    assert (cfg.backbone, cfg.weights) == ("googlenet_bvlc", "googlenet_bvlc.pth")
    assert (cfg.epochs, cfg.lr, cfg.lambda_) == (12, 3e-5, 10) and "--lambda" not in cub[-8]
    glyphs = listed("--dataset", "glyphs")
    assert len(glyphs) == len(set(glyphs)) == 6 * 5 * 3
    assert glyphs[-1] == ("studies/rate_search.py run dml_da --dataset glyphs "
                          "--loss npair --lambda 0 --lr 0.003 --seed 2 --out runs-search")


def test_no_image_of_a_test_class_is_seen():
    data, whole = rate_search.held_out("glyphs"), common.load_dataset("glyphs")
    assert data.test.classes == whole.train.classes[40:] and data.val is data.gallery is None
    assert data.train.classes == whole.train.classes[:40] and len(data.test) == 150
    assert not {*data.train.classes, *data.test.classes} & {*whole.test.classes}
    assert (data.test.images[0] == whole.seen.images[600]).all()


@pytest.mark.parametrize("of_rates, want", [
    ({1e-4: [50, 52], 3e-4: [50, 51], 1e-3: [45, 46]}, 3e-4),       # best 51 ± 1.41: 50.5 is within
    ({1e-4: [50, 50.5], 3e-4: [49, 50], 1e-3: [45, 46]}, 1e-4),     # best 50.25 ± 0.35
    ({1e-4: [50, 52], 3e-4: [55]}, None), ({}, None)])
def test_the_rule(of_rates, want):
    assert rate_search.choice(of_rates) == want


def test_the_presets_of_glyphs_are_the_choice_of_the_committed_runs(capsys):
    archive = ROOT / "results" / "glyphs" / "search.tar.xz"
    runs = rate_search.finished_runs("glyphs", archive)
    rate_search.table("glyphs", archive)
    table = capsys.readouterr().out
    for paper, script in (("jrd", jrd), ("mdr", mdr), ("dml_da", dml_da)):
        means = rate_search.baseline_means(runs, paper)
        assert rate_search.choice(means) == script.parse_args([]).lr and len(means) == 5
        (row,) = [line for line in table.splitlines() if f"{paper}'s baselines" in line]
        assert row.count("**") == 2 and row.count("±") == 5


@pytest.mark.parametrize("runs, taken", [
    ("search", ["80.8 / 79.7", "81.7 / 70.2", "75.4 / 57.0", "65.7 / 39.6"]),
    ("mdr", ["64.5 / 67.8", "66.9 / 54.5", "78.6 / 62.8"])])
def test_the_table_has_the_rates_of_the_plan(runs, taken, capsys):
    """docs/plans.md"""
    rate_search.table("cub128", ROOT / "results" / "cub128" / f"{runs}.tar.xz")
    table = capsys.readouterr().out
    assert all(figure in table for figure in taken)


def test_an_empty_folder_has_no_table(tmp_path):
    with pytest.raises(SystemExit, match="no finished run of the search on glyphs under"):
        rate_search.table("glyphs", tmp_path)

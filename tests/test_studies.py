"""studies/ and benchmarks/: rate_search.py's commands, split, table and rule; pictures; step.py to
its end; the identities of jrs_bandwidths.md; composed.py's arms."""
import functools
import math
import re
import runpy
import subprocess
import sys

import pytest
import torch
from PIL import Image

import common
import dml_da
import jrd
import mdr
import conftest
from conftest import B, LONG, ROOT
from studies import composed, rate_search
from studies.jrs_bandwidths import KS, different_class, mean_distance, mixture, penalty


def test_every_study_finds_what_it_imports():
    assert [runpy.run_path(path, run_name="imported") for path in ROOT.glob("studies/*.py")]


# ---------------------------------------------------------------------------- rate_search.py
def test_the_commands(capsys):
    def listed(*words):
        rate_search.main(["list", *words])
        return capsys.readouterr().out.splitlines()
    cub = listed("--weights", "my.pth", "--workers", "0")
    assert len(cub) == len(set(cub)) == 8 * 5 + 2 + 4 + 4 * 3
    assert "jrd --weights my.pth" in cub[0] and "--lr 1e-05 --lr-proxies 0.001" in cub[0]
    cfg = dml_da.parse_args(cub[-8].split()[3:])            # its own weights have the last word
    assert (cfg.backbone, cfg.weights) == ("googlenet_bvlc", "googlenet_bvlc.pth")
    assert (cfg.epochs, cfg.lr, cfg.lambda_) == (12, 3e-5, 10) and "--lambda" not in cub[-8]
    assert listed("--dataset", "glyphs")[6 * 5 * 3 - 1:] == [
        "studies/rate_search.py run dml_da --dataset glyphs --loss npair --lambda 0 --lr 0.003 "
        "--seed 2 --out runs-search"]


def test_no_image_of_a_test_class_is_seen():
    data, whole = rate_search.held_out("glyphs"), common.load_dataset("glyphs")
    assert data.test.classes == whole.train.classes[40:] and data.val is data.gallery is None
    assert data.train.classes == whole.train.classes[:40] and len(data.test) == 150
    assert not {*data.train.classes, *data.test.classes} & {*whole.test.classes}
    assert (data.test.images[0] == whole.train_plain.images[600]).all()


def test_the_rule():
    for means, rate in (({1e-4: [50, 52], 3e-4: [50, 51], 1e-3: [45, 46]}, 3e-4),   # 51 ± 1.41
                        ({1e-4: [50, 50.5], 3e-4: [49, 50]}, 1e-4),                 # 50.25 ± 0.35
                        ({1e-4: [50, 52], 3e-4: [55]}, None), ({}, None)):
        assert rate_search.choice(means) == rate


def test_the_presets_of_glyphs_are_the_choice_of_the_committed_runs(capsys):
    archive = ROOT / "results" / "glyphs" / "search.tar.xz"
    runs = rate_search.finished_runs("glyphs", archive)
    with pytest.raises(SystemExit, match="no finished run of the search on cub128 under"):
        rate_search.table("cub128", archive)
    rate_search.table("glyphs", archive)
    table = capsys.readouterr().out
    for paper, script in (("jrd", jrd), ("mdr", mdr), ("dml_da", dml_da)):
        means = rate_search.baseline_means(runs, paper)
        assert rate_search.choice(means) == script.parse_args([]).lr and len(means) == 5
        (row,) = [line for line in table.splitlines() if f"{paper}'s baselines" in line]
        assert row.count("**") == 2 and row.count("±") == 5


# ---------------------------------------------------------------------------- what runs to its end
def test_the_toy_is_an_animation_and_shows_what_its_texts_say(tmp_path):
    """Spread within a class: 0 by the loss, with and without JRS; held by MDR and DML-DA."""
    toy = pytest.importorskip("studies.toy", reason="needs matplotlib")
    toy.draw(tmp_path / "toy.gif", steps=3, frames=3, last=1, first=1)
    with Image.open(tmp_path / "toy.gif") as picture:
        assert picture.n_frames == 4 and picture.info["loop"] == 0     # the outcome, then the path
    ends = [path[-1][0] for path in toy.paths(500)]
    loss, jrs, mdr, da, circle = (dml_da.class_density(x, toy.LABELS)[1].mean() for x in ends)
    assert max(loss, jrs, circle) < 0.01 and min(mdr, da) > 0.03
    apart = [torch.pdist(x).max() for x in ends]
    assert apart[1] > 1.1 * apart[0]                                    # JRS: beyond the margin


def test_each_lecture_has_its_figure(tmp_path):
    pytest.importorskip("studies.mechanisms", reason="needs matplotlib").draw(tmp_path)
    for paper in ("jrd", "mdr", "dml_da"):
        path = tmp_path / f"{paper}_mechanism.png"
        with Image.open(path) as picture:
            assert 1000 < picture.width < 1300
        assert path.stat().st_size < 200_000


def test_step():
    done = subprocess.run([sys.executable, ROOT / "benchmarks" / "step.py", "--papers", "dml_da",
                           "--batch", "2", "--steps", "1", "--threads", "1", "--device", "cpu"],
                          capture_output=True, encoding="utf-8")
    assert "\n| dml_da, googlenet | 2 " in done.stdout, done.stderr


# ---------------------------------------------------------------------------- jrs_bandwidths.py
def points(seed=0, d=3):
    """(B, d), not centred"""
    return torch.tensor(conftest.points(d, seed) + 1)


def gradients(variant, layers, labels=LONG):
    """Of JRS with jrd.py's detached τ, with τ's gradient, or of what detaching adds."""
    layers = [x.detach().requires_grad_() for x in layers]
    return torch.autograd.grad(penalty(variant, layers, labels, KS[:len(layers)], None), layers)


def value_of(layers, labels=LONG):
    return penalty("detached", layers, labels, KS[:len(layers)], None).item()


def test_what_detaching_adds_is_radial():
    layers = [points(seed, 5 - seed) for seed in range(3)]
    slopes = (gradients(variant, layers) for variant in ("detached", "gradient", "only τ"))
    for x, detached, whole, added in zip(layers, *slopes):
        torch.testing.assert_close(detached, whole + added)
        centred = x - x.mean(0)
        radial = (detached * centred).sum() / centred.square().sum() * centred
        torch.testing.assert_close(added, radial)
        assert whole.norm() > 1e-3 and radial.norm() > whole.norm()     # not vacuous


def test_bound():
    """F >= g(mean of u over different classes) >= g(N / N_pairs)"""
    different = different_class(LONG)
    most = torch.tensor(B * (B - 1) / different.sum().item())
    layers = [points(seed) for seed in range(3)]
    u = [(jrd.squared_distances(x) / mean_distance(x))[different].mean() for x in layers]
    tight, loose = (math.prod(mixture(mean, K) for mean, K in zip(means, KS))
                    for means in (u, [most] * 3))
    assert value_of(layers) > tight > loose
    assert math.prod(mixture(torch.tensor(1.0), K) for K in KS).item() == pytest.approx(
        0.0503, abs=5e-5)                                               # the page's
    collapsed = torch.eye(8, dtype=torch.float64)[LONG] + 1           # a regular simplex
    assert value_of([collapsed]) == pytest.approx(mixture(most, 3).item())
    assert gradients("gradient", [collapsed])[0].norm() < 1e-12


# ---------------------------------------------------------------------------- composed.py
@pytest.mark.parametrize("arm", composed.ARMS)
def test_each_arm_is_the_sum_of_its_parts(arm, monkeypatch):
    """... in value and gradient, and each part reaches the backbone."""
    for name in ("Network", "objective"):               # which compose replaces
        monkeypatch.setattr(dml_da, name, getattr(dml_da, name))
    torch.manual_seed(0)
    λ, variant = composed.ARMS[arm]
    composed.compose(variant, 3.0)
    cfg, labels = dml_da.parse_args(["--lambda", λ]), torch.tensor([1, 0, 1, 2, 0, 2])
    network = dml_da.Network(cfg, classes=4)
    network.D0 += torch.tensor([0.5, 1.5, 1.2, 0.8])
    images = torch.randint(256, (6, 3, 32, 32), dtype=torch.uint8)
    loss, terms = dml_da.objective(network, cfg, images, labels, None)
    x_minus, x = network.pool(images), network.embed(images)
    classes, D_avg = dml_da.class_density(x, labels)
    gram = jrd.joint_kernel([x_minus, x], [functools.partial(jrd.gaussian_kernel, K=3)] * 2)
    parts = [dml_da.contrastive_loss(x, labels, 1.0)]
    if arm in ("density", "both"):
        alpha = torch.stack([network.alpha[c] for c in classes])
        parts.append(10 * dml_da.density_regularizer(D_avg, alpha, network.D0[classes], 0.5))
    if arm in ("JRS", "both"):
        parts.append(3.0 * jrd.jrs(gram, labels))
    if arm == "tau":
        parts.append(3.0 * penalty("only τ", (x_minus, x), labels, (3, 3), None))
    weights = [*network.backbone.parameters(), network.embedding.weight]
    slopes = [torch.autograd.grad(part, weights, retain_graph=True) for part in parts]
    assert all(slope[0].norm() > 1e-6 for slope in slopes)
    torch.testing.assert_close(loss, sum(parts))
    for slope, *want in zip(torch.autograd.grad(loss, weights), *slopes):
        torch.testing.assert_close(slope, sum(want), rtol=1e-4, atol=1e-5)
    i, j = torch.triu_indices(6, 6, 1)
    for name, layer in (("τ of x⁻", x_minus), ("τ of x", x)):
        torch.testing.assert_close(terms[name], (layer[i] - layer[j]).square().sum(1).mean())


def test_the_page_has_the_gains_of_the_archive(monkeypatch, capsys):
    monkeypatch.setattr(composed, "draw_curves", lambda *args: None)
    composed.table(ROOT / "results" / "glyphs" / "composed.tar.xz")
    page = (ROOT / "studies" / "composed.md").read_text(encoding="utf-8")
    told, printed = ({*re.findall(r"[+-][\d.]+ \[[^]]*\]|[\d.]+ ± [\d.]+", text)}
                     for text in (page, capsys.readouterr().out))
    assert len(told) > 15 and told <= printed

"""studies/composed.py: each arm's loss is the sum of the scripts' own functions, each reaches the
backbone, an arm without JRS trains as dml_da.py does, the page has the archive's figures."""
import re
from functools import partial

import pytest
import torch

import dml_da
import jrd
from conftest import ROOT
from studies import composed
from studies.jrs_bandwidths import penalty

ALPHA = 3.0
LABELS = torch.tensor([1, 0, 1, 2, 0, 2])


@pytest.fixture
def scripts_own(monkeypatch):
    """compose replaces these two; afterwards they are dml_da.py's again."""
    for name in ("Network", "objective"):
        monkeypatch.setattr(dml_da, name, getattr(dml_da, name))


def built(arm):
    """-> network, settings, images"""
    torch.manual_seed(0)
    λ, variant = composed.ARMS[arm]
    composed.compose(variant, ALPHA)
    cfg = dml_da.parse_args(["--lambda", λ])
    network = dml_da.Network(cfg, classes=4)
    network.D0 += torch.tensor([0.5, 1.5, 1.2, 0.8])
    return network, cfg, torch.randint(256, (6, 3, 32, 32), dtype=torch.uint8)


@pytest.mark.parametrize("arm", composed.ARMS)
def test_each_arm_is_the_sum_of_its_parts(arm, scripts_own):
    network, cfg, images = built(arm)
    loss, terms = dml_da.objective(network, cfg, images, LABELS, None)
    x_minus, x = network.pool(images), dml_da.Network.embed(network, images)
    classes, D_avg = dml_da.class_density(x, LABELS)
    alpha = torch.stack([network.alpha[c] for c in classes])
    gram = jrd.joint_kernel([x_minus, x], [partial(jrd.gaussian_kernel, K=3)] * 2)
    parts = [dml_da.contrastive_loss(x, LABELS, 1.0)]
    if arm in ("density", "both"):
        parts.append(10 * dml_da.density_regularizer(D_avg, alpha, network.D0[classes], 0.5))
    if arm in ("JRS", "both"):
        parts.append(ALPHA * jrd.jrs(gram, LABELS))
    if arm == "tau":
        parts.append(ALPHA * penalty("only τ", (x_minus, x), LABELS, (3, 3), None))
    weights = [*network.backbone.parameters(), network.embedding.weight]
    slopes = [torch.autograd.grad(part, weights, retain_graph=True) for part in parts]
    assert all(slope.norm() > 1e-6 for slope in (own[0] for own in slopes)), "reaches the backbone"
    torch.testing.assert_close(loss, sum(parts))
    for slope, *want in zip(torch.autograd.grad(loss, weights), *slopes):
        torch.testing.assert_close(slope, sum(want), rtol=1e-4, atol=1e-5)
    i, j = torch.triu_indices(6, 6, 1)
    for name, layer in (("τ of x⁻", x_minus), ("τ of x", x)):
        torch.testing.assert_close(terms[name], (layer[i] - layer[j]).square().sum(1).mean())


def test_an_arm_without_jrs_trains_as_dml_da(scripts_own, few_glyphs, tmp_path):
    losses = []
    for arm in (None, "density"):
        if arm:
            composed.compose(composed.ARMS[arm][1], ALPHA)
        cfg = dml_da.parse_args(["--epochs", "1", "--iterations", "3", "--batch", "20",
                                 "--out", str(tmp_path / str(arm))])
        dml_da.train(cfg)
        state = torch.load(next(tmp_path.glob(f"{arm}/*/last.pt")), weights_only=True)
        losses.append(state["history"][0]["loss"])
        assert ("τ of x" in state["history"][0]) == bool(arm)
    assert losses[0] == losses[1]


def test_the_page_has_the_gains_of_the_archive(monkeypatch, capsys):
    monkeypatch.setattr(composed, "draw_curves", lambda *args: None)
    composed.table(ROOT / "results" / "glyphs" / "composed.tar.xz")
    page = (ROOT / "studies" / "composed.md").read_text(encoding="utf-8")
    told, printed = ({*re.findall(r"[+-][\d.]+ \[[^]]*\]|[\d.]+ ± [\d.]+", text)}
                     for text in (page, capsys.readouterr().out))
    assert len(told) > 15 and told <= printed

"""What stands between the equations: every setting reaches its own, the figures of a run are what
their names say, the presets are what their pages say."""
import functools
import json
import math

import pytest
import torch
import torch.nn.functional as F

import common
import dml_da
import eval as evaluation
import jrd
import mdr
from eval import kmeans, map_at_r, nmi, recall_at_k
from support import glyphs, runs

B, LABELS = 12, torch.arange(12) // 3
draw = torch.Generator().manual_seed(0)
POOLED, UNIT, COSINES = (torch.rand(B, 7, generator=draw) * 3, F.normalize(torch.randn(
    B, 5, generator=draw)), torch.rand(B, 4, generator=draw) * 2 - 1)


# ---------------------------------------------------------------------------- jrd.py
def step_of_jrd(*flags):
    cfg = jrd.parse_args(flags)
    return jrd.objective(lambda images: (POOLED, UNIT, COSINES), cfg, None, LABELS)[1]


def gaussians(*K):
    kernel = 1
    for x, k in zip((POOLED, UNIT, COSINES), K):
        kernel = kernel * (jrd.gaussian_kernel(x, k) if k else 1)
    return kernel


def test_s_and_m_reach_amsoftmax():
    want = jrd.amsoftmax(COSINES, LABELS, 7, 0.3)
    assert step_of_jrd("--s", "7", "--m", "0.3")["amsoftmax"] == want != step_of_jrd()["amsoftmax"]


@pytest.mark.parametrize("flags, want", [
    ("", lambda: jrd.jrs(gaussians(3, 3, 1), LABELS)),
    ("--K 5 --K-prime 2", lambda: jrd.jrs(gaussians(5, 5, 2), LABELS)),
    ("--variant mrd", lambda: jrd.jrs(gaussians(0, 3), LABELS)),
    ("--variant jrd-c", lambda: jrd.jrs(gaussians(3, 3), LABELS)),
    ("--variant jrd-pooling", lambda: jrd.jrs(gaussians(0, 3, 1), LABELS)),
    ("--kernel laplace", lambda: jrd.jrs(jrd.laplace_kernel(POOLED) * jrd.laplace_kernel(UNIT)
                                         * jrd.laplace_kernel(COSINES), LABELS)),
    ("--kernel polynomial --p 3", lambda: jrd.jrs(math.prod(
        [jrd.polynomial_kernel(x, 3) for x in (F.normalize(POOLED), UNIT, COSINES)]), LABELS)),
    ("--kernel mgf", lambda: jrd.jrs(math.prod(
        [jrd.mgf_kernel(x) for x in (F.normalize(POOLED), UNIT, COSINES)]), LABELS)),
    ("--regularizer jmmd", lambda: jrd.jmmd(gaussians(3, 3, 1), LABELS)),
    ("--regularizer jintra", lambda: jrd.jintra(gaussians(3, 3, 1), LABELS)),
    ("--regularizer intra", lambda: jrd.intra_class(UNIT, LABELS))])
def test_each_choice_is_its_regularizer(flags, want):
    _, value = step_of_jrd(*flags.split()).values()
    torch.testing.assert_close(value, want(), rtol=1e-6, atol=0)


# ---------------------------------------------------------------------------- mdr.py
@pytest.mark.parametrize("loss", ["triplet", "contrastive", "margin"])
def test_the_settings_of_mdr_reach_its_losses(loss, spy, monkeypatch):
    """One step: the loss that was asked for and no other, its margin, the levels, γ, fixed or
    not."""
    called, made, init = [], [], mdr.MDR.__init__

    def spied(name, function):
        def call(*args):
            called.append((name, args[-1]))
            return function(*args)
        return call
    for name in ("triplet", "contrastive"):
        monkeypatch.setattr(mdr, f"{name}_loss", spied(name, getattr(mdr, f"{name}_loss")))
    monkeypatch.setattr(mdr.MarginLoss, "forward", spied("margin", mdr.MarginLoss.forward))
    monkeypatch.setattr(mdr.MDR, "__init__", lambda self, *args: (
        made.append(args), init(self, *args))[1])
    fixed = ["--fixed-levels"] if loss == "margin" else []
    (row,), _ = spy(mdr, "--loss", loss, "--margin", "0.7", "--momentum", "0.3", "--levels", "-2",
                    "1", "--epochs", "1", "--iterations", "1", *fixed)
    assert called == [(loss, 0.7)] and loss in row
    assert made == [([-2.0, 1.0], 0.3, not fixed)]
    assert (row["levels"] == [-2, 1]) == bool(fixed)


@pytest.mark.parametrize("flags", [[], ["--lambda", "0", "--l2norm"]])
def test_what_mdrs_losses_see(flags):
    """Distances of mean 1, those of the embeddings themselves with --l2norm."""
    saw, e = [], torch.randn(B, 5, generator=torch.Generator().manual_seed(1)) * 3
    cfg = mdr.parse_args(flags)
    *_, found = mdr.objective(
        lambda images: e, mdr.MDR(), lambda distances, *rest: saw.append(distances) or e.sum(), cfg,
        None, LABELS, torch.Generator())
    want = mdr.pairwise_distances(e)
    if not flags:
        want = want / want[~torch.eye(B, dtype=torch.bool)].mean()
    torch.testing.assert_close(found, want)
    assert saw[0] is found


# ---------------------------------------------------------------------------- dml_da.py
def step_of_dml_da(*flags):
    cfg, targets = dml_da.parse_args(flags), dml_da.TargetDensities(4)
    targets.D0.copy_(torch.tensor([0.5, 1.0, 0.7, 1.8]))
    targets.alpha.copy_(torch.tensor([0.4, 0.5, 0.6, 0.7]))
    return dml_da.objective(lambda images: UNIT, targets, cfg, None, LABELS,
                            torch.Generator().manual_seed(2))


@pytest.mark.parametrize("flags, want", [
    ("--margin 0.4", lambda: dml_da.contrastive_loss(UNIT, LABELS, 0.4)),
    ("--loss triplet --margin 0.4", lambda: dml_da.triplet_loss(UNIT, LABELS, 0.4)),
    ("--loss npair", lambda: dml_da.n_pair_loss(UNIT, LABELS, torch.Generator().manual_seed(2)))])
def test_each_loss_of_dml_da_is_its_own(flags, want):
    first, _ = step_of_dml_da(*flags.split())[1].values()
    assert first == want() != step_of_dml_da()[1]["contrastive"]


@pytest.mark.parametrize("flags, weight, want", [
    ("--lambda 3 --eta 1.3", 3, lambda D, a, D0: dml_da.density_regularizer(D, a, D0, 1.3)),
    ("--lambda 3 --regularizer da-", 3, lambda D, a, D0: dml_da.density_regularizer(D, a)),
    ("--regularizer en", 1, lambda *_: dml_da.entropy_regularizer(UNIT)),
    ("--regularizer gor", 10, lambda *_: dml_da.global_orthogonal_regularizer(UNIT, LABELS)),
    ("--regularizer gor --reg-weight 5", 5,
     lambda *_: dml_da.global_orthogonal_regularizer(UNIT, LABELS))])
def test_each_regularizer_of_dml_da_has_its_weight(flags, weight, want):
    total, parts = step_of_dml_da(*flags.split())
    loss, found = parts.values()
    _, D_avg = dml_da.class_density(UNIT, LABELS)
    expected = want(D_avg, torch.tensor([0.4, 0.5, 0.6, 0.7]), torch.tensor([0.5, 1.0, 0.7, 1.8]))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(total, loss + weight * expected)


# ---------------------------------------------------------------------------- figures of a run
@functools.cache
def pretrained(paper):
    """The script's network before its first step, its settings and data; 60 test images."""
    cfg = paper.parse_args(["--epochs", "1"] + ["--iterations", "3"] * (paper is not jrd))
    prefix, _, whole = paper.transforms(cfg)
    data = common.load_dataset("glyphs", train=prefix, test=whole)
    network = paper.Network(cfg, len(data.train.classes))
    common.load_weights(network.backbone, cfg.backbone)
    return network.eval(), cfg, data


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setitem(glyphs.GLYPHS, "test", (range(450, 470), 3))


@pytest.mark.parametrize("paper", [jrd, mdr, dml_da], ids=lambda s: s.__name__)
def test_the_figures_before_training(paper, few):
    network, cfg, data = pretrained(paper)
    found = evaluation.before_training(network, data, cfg)
    test, seen = (F.normalize(common.embed(network.pool, split, cfg))
                  for split in (data.test, data.seen))
    labels = data.test.labels
    assert found == {
        **{f"R@{k}": share for k, share in recall_at_k(test, labels, cfg.ks).items()},
        "MAP@R": map_at_r(test, labels), "NMI": nmi(kmeans(test, 20, 0), labels),
        "seen R@1": recall_at_k(seen, data.seen.labels, [1])[1]}
    raw = recall_at_k(common.embed(network.pool, data.test, cfg), labels, [1])[1]
    assert len({found["R@1"], found["seen R@1"], raw}) == 3


@pytest.mark.parametrize("paper", [mdr, dml_da], ids=lambda s: s.__name__)
def test_the_figures_of_an_epoch(paper, few, tmp_path):
    """Recomputed from last.pt: the norms' mean and spread, R@1 of the l2-normalized embeddings; the
    classes' D_avg."""
    _, cfg, data = pretrained(paper)
    cfg = paper.parse_args(["--epochs", "1", "--iterations", "3", "--lr", "0.01", "--out",
                            str(tmp_path)])
    last = paper.train(cfg)["last epoch"]
    folder = runs.run_folder(paper.__name__, cfg)
    row = json.loads((folder / "log.jsonl").read_text())
    network, _ = common.load(folder / "last.pt")
    test, seen = (common.embed(network.embed, split, cfg) for split in (data.test, data.seen))
    labels = data.test.labels
    assert row["R@1"] == last["R@1"] == recall_at_k(test, labels, [1])[1]
    assert row["seen R@1"] == last["seen R@1"] == recall_at_k(seen, data.seen.labels, [1])[1]
    if paper is mdr:
        norm = test.norm(dim=1)
        assert row["norm mean"] == pytest.approx(norm.mean().item())
        assert row["norm cv"] == pytest.approx((norm.std() / norm.mean()).item())
        assert last["R@1, l2-normalized"] == recall_at_k(F.normalize(test), labels, [1])[1]
        assert last["R@1, l2-normalized"] != last["R@1"]
    else:
        _, D_avg = dml_da.class_density(seen, data.seen.labels)
        for name in ("mean", "min", "max"):
            assert row[f"D_avg {name}"] == pytest.approx(getattr(D_avg, name)().item())
        assert row["NMI"] == last["NMI"] == nmi(kmeans(test, 20, 0), labels)


# ---------------------------------------------------------------------------- presets
@pytest.mark.parametrize("paper, flags, want", [
    (jrd, "", dict(lr=1e-3, lr_proxies=0.1, epochs=50, batch=100, eval_every=5)),
    (mdr, "", dict(lr=3e-4, epochs=100, iterations=25, batch=128, eval_every=10, lambda_=0.6)),
    (dml_da, "", dict(lr=3e-5, epochs=30, iterations=100, batch=100, eval_every=3, lambda_=10))])
def test_the_presets_of_cub128(paper, flags, want):
    """docs/cub128.md has them."""
    cfg = vars(paper.parse_args(["--dataset", "cub128", *flags.split()]))
    want |= dict(backbone="squeezenet1_1", resize=146, size=128, precision="bf16")
    assert {name: cfg[name] for name in want} == want


def test_small_sees_random_crops_in_training_and_the_middle_in_tests():
    resize, augment, whole = (str(t) for t in glyphs.SMALL_TRANSFORMS)
    assert "size=[36, 36]" in resize and "size=[36, 36]" in whole
    assert "RandomCrop(size=(32, 32)" in augment and "RandomHorizontalFlip(p=0.5)" in augment
    assert "CenterCrop(size=(32, 32))" in whole and "Random" not in whole


def test_an_image_is_drawn_anew_in_each_epoch():
    split = common.Split(torch.randint(256, (4, 3, 36, 36), dtype=torch.uint8),
                         torch.arange(4), list("abcd"))
    loader = common.train_loader(split, glyphs.SMALL_TRANSFORMS[1], lambda epoch: [[0, 1, 2, 3]],
                                 jrd.parse_args(["--workers", "0"]), torch.device("cpu"))
    drawn = [next(iter(loader(epoch)))[0] for epoch in (0, 0, 1, 2)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2]) and not torch.equal(drawn[2], drawn[3])

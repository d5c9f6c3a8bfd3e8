"""What the three scripts share: each choice does what it says, any batch is finite, presets and
transforms are the papers', and the figures of a run are what their names say."""
import functools
import math
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch.optim.optimizer import register_optimizer_step_pre_hook

import common
import dml_da
import jrd
import mdr
from conftest import each_script, left_in
from eval import kmeans, nmi, recall_at_k


@pytest.mark.parametrize("kind", ["random", "equal", "tiny", "huge"])
@pytest.mark.parametrize("script, flags", [
    *((jrd, f"--regularizer {name}") for name in ("jrs", "jmmd", "jintra", "intra")),
    *((mdr, f"--loss {name}") for name in ("triplet", "contrastive", "margin")),
    (dml_da, ""), (dml_da, "--loss triplet --regularizer en"),
    (dml_da, "--loss npair --regularizer gor")])
def test_degenerate_batches_are_finite(script, flags, kind):
    """One class, one image per class, B = 1 and 2; all embeddings equal, near 0 or far away."""
    for labels in ([0] * 6, list(range(6)), [0, 0, 1, 1, 2, 2], [3], [0, 1]):
        e = torch.randn(len(labels), 6) * {"tiny": 1e-6, "huge": 1e6}.get(kind, 1)
        e = (torch.full_like(e, 0.5) if kind == "equal" else e).requires_grad_()
        cfg, generator = script.parse_args(flags.split()), [torch.Generator()] * (script is not jrd)
        network = script.Network(cfg, 6)
        network.forward = lambda images: (e, F.normalize(e), e) if script is jrd else e
        _, terms = script.objective(network, cfg, None, torch.tensor(labels), *generator)
        for name, value in terms.items():
            slope = torch.zeros(())
            if value.requires_grad:                 # jrs of one class is a constant 0
                slope, = torch.autograd.grad(value, e, retain_graph=True, materialize_grads=True)
            assert value.isfinite().all() and slope.isfinite().all(), (name, labels)
            if len(set(labels)) == 1 and name in ("jrs", "triplet", "npair", "gor"):
                assert value == 0, (name, labels)
            if kind == "equal" and name in ("mdr", "jrs") and len(set(labels)) > 1:
                assert value == {"mdr": 0, "jrs": 1}[name] and (slope == 0).all(), labels


@pytest.mark.parametrize("script, backbone, width", [
    (jrd, "bn_inception", 1024), (jrd, "efficientnet_b0", 1280), (mdr, "small --l2norm", 128),
    (mdr, "small --eval-l2norm", 128), (mdr, "resnet18", 512), (dml_da, "googlenet", 1024)])
def test_backbones(script, backbone, width):
    """Batch norm is frozen and its affine parameters learn (JRD U10, MDR U4, DML-DA U8)."""
    cfg = script.parse_args(["--dim", "7", "--backbone", *backbone.split()])
    network, side = script.Network(cfg, 3).train(), 64 if cfg.backbone != "small" else 32
    images = torch.randint(0, 256, (2, 3, side, side), dtype=torch.uint8)
    statistics = {k: v.clone() for k, v in network.state_dict().items() if "running" in k}
    e = network.embed(images)
    assert (pooled := network.pool(images)).shape == (2, width) and e.shape == (2, 7)
    assert torch.equal(pooled, network.pool(images)), "no dropout, no stochastic depth"
    unit = script is not mdr or "l2norm" in backbone
    assert torch.allclose(e.norm(dim=1), torch.ones(2)) == unit
    if script is mdr:                                   # in training --eval-l2norm does nothing
        assert torch.equal(e, network(images)) == ("--eval-l2norm" not in backbone)
    (e * torch.randn(2, 7)).sum().backward()
    after = network.state_dict()
    assert statistics and all(torch.equal(v, after[k]) for k, v in statistics.items())
    affine = [m.weight.grad for m in network.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert all(g is not None for g in affine) and any(g.abs().sum() > 0 for g in affine)
    unused = "backbone.fc", "backbone.aux", "backbone.last_linear"
    assert not any(k.startswith(unused) for k in after)


# ---------------------------------------------------------------------------- presets, transforms
JRD = dict(alpha=1, s=20, m=0.1, batch=100, epochs=50, drop_every=20, lr=1e-4, lr_proxies=1e-2, K=3,
           K_prime=1, dim=512, backbone="bn_inception", ks=[1, 2, 4, 8])
MDR = dict(lambda_=0.6, lr=5e-5, batch=128, images_per_class=4, levels=[-3, 0, 3], momentum=0.9,
           margin=0.2, nu=0.01, dim=512, epochs=100, iterations=100, backbone="bn_inception",
           ks=[1, 2, 4, 8])
MDR_LARGE = MDR | dict(lambda_=0.1, lr=1e-4, batch=256, images_per_class=3, eval_every=10)
DML_DA = dict(lambda_=10, eta=0.5, margin=1, lr=1e-5, batch=100, images_per_class=10, dim=128,
              epochs=30, iterations=1000, backbone="googlenet", ks=[1, 2, 4, 8, 16, 32, 64, 128])


@pytest.mark.parametrize("script, flags, want", [
    (jrd, "cub", JRD), (jrd, "cars", JRD | dict(m=0.05, batch=50)),
    (jrd, "sop", JRD | dict(alpha=0.4, batch=120, epochs=80, drop_every=40, lr_proxies=1e-1,
                            ks=[1, 10, 100], eval_every=10)),
    (mdr, "cub", MDR), (mdr, "cars", MDR | dict(lambda_=0.2)),
    (mdr, "sop", MDR_LARGE | dict(ks=[1, 10, 100, 1000])),
    (mdr, "inshop", MDR_LARGE | dict(ks=[1, 10, 20, 40])),
    (mdr, "cub --loss contrastive", MDR | dict(margin=1)),                          # U10
    (dml_da, "cub", DML_DA), (dml_da, "cars", DML_DA | dict(lr=5e-4)),
    (dml_da, "sop", DML_DA | dict(lr=3e-5, images_per_class=0, ks=[1, 10, 100, 1000],
                             eval_every=10))])
def test_presets(script, flags, want):
    cfg = vars(script.parse_args(["--dataset", *flags.split()]))
    assert {name: cfg[name] for name in want} == want


@pytest.mark.parametrize("script, size, whole, filter, corner, crop", [
    (jrd, 224, (341, 256), Image.BILINEAR, (58, 16),
     dict(scale=(0.08, 1), ratio=(3 / 4, 4 / 3), interpolation="bilinear", antialias=True)),   # U3
    (mdr, 224, (256, 256), Image.LANCZOS, (16, 16),
     dict(scale=(0.16, 1), ratio=(0.75, 1.33), interpolation="bicubic", antialias=True)),      # U3
    (mdr, 256, (256, 256), Image.LANCZOS, (0, 0), dict(scale=(0.16, 1))),                      # U13
    (dml_da, 224, (256, 256), Image.BILINEAR, (16, 16), None)])                     # U7
def test_transforms(script, size, whole, filter, corner, crop):
    """Pillow's resize and crop are the oracle of the test transform, to the pixel."""
    image = Image.fromarray(np.random.RandomState(0).randint(0, 256, (300, 400, 3), np.uint8))
    cfg = script.parse_args(["--dataset", "cub", "--size", str(size)])
    prefix, augment, test = script.transforms(cfg)
    resized, (left, top) = image.resize(whole, filter), corner
    np.testing.assert_array_equal(test(image), resized.crop((left, top, left + size, top + size)))
    if script is jrd:
        assert prefix is None
    else:
        np.testing.assert_array_equal(prefix(image), resized)
    random_crop, mirror = augment.transforms
    assert mirror.p == 0.5 and random_crop.size == (size, size)
    assert type(random_crop).__name__ == ("RandomResizedCrop" if crop else "RandomCrop")
    for name, want in (crop or {}).items():
        value = getattr(random_crop, name)
        assert (tuple(value) if name == "scale" else getattr(value, "value", value)) == want


# ---------------------------------------------------------------------------- each choice
B, LABELS = 12, torch.arange(12) // 3
NEGATIVE, POSITIVE = LABELS[:, None] != LABELS, mdr.positive_pairs(LABELS)
draw = torch.Generator().manual_seed(0)
POOLED, UNIT, COSINES = (torch.rand(B, 7, generator=draw) * 3, F.normalize(torch.randn(
    B, 5, generator=draw)), torch.rand(B, 4, generator=draw) * 2 - 1)


def gaussians(*K):
    """The product of the kernels of x⁻, x, x⁺ with so many Gaussians, 0 for a missing one."""
    return math.prod(jrd.gaussian_kernel(x, k) for x, k in zip((POOLED, UNIT, COSINES), K) if k)


def product(kernel, pooled=POOLED):
    return kernel(pooled) * kernel(UNIT) * kernel(COSINES)


@pytest.mark.parametrize("flags, want", [
    ("", lambda: jrd.jrs(gaussians(3, 3, 1), LABELS)),
    ("--K 5 --K-prime 2", lambda: jrd.jrs(gaussians(5, 5, 2), LABELS)),
    ("--variant mrd", lambda: jrd.jrs(gaussians(0, 3), LABELS)),                       # Table 2
    ("--variant jrd-c", lambda: jrd.jrs(gaussians(3, 3), LABELS)),
    ("--variant jrd-pooling", lambda: jrd.jrs(gaussians(0, 3, 1), LABELS)),
    ("--kernel laplace", lambda: jrd.jrs(product(jrd.laplace_kernel), LABELS)),        # Table 4
    ("--kernel polynomial --p 3", lambda: jrd.jrs(product(
        functools.partial(jrd.polynomial_kernel, p=3), F.normalize(POOLED)), LABELS)),
    ("--kernel mgf", lambda: jrd.jrs(product(jrd.mgf_kernel, F.normalize(POOLED)), LABELS)),
    ("--regularizer jmmd", lambda: jrd.jmmd(gaussians(3, 3, 1), LABELS)),
    ("--regularizer jintra", lambda: jrd.jintra(gaussians(3, 3, 1), LABELS)),
    ("--regularizer intra", lambda: jrd.intra_class(UNIT, LABELS))])
def test_each_choice_of_jrd_is_its_own(flags, want):
    """x⁻ is l2-normalized under the polynomial and the mgf kernel (U8)."""
    cfg = jrd.parse_args([*flags.split(), "--s", "7", "--m", "0.3", "--alpha", "2"])
    loss, terms = jrd.objective(lambda images: (POOLED, UNIT, COSINES), cfg, None, LABELS)
    ams = jrd.amsoftmax(COSINES, LABELS, 7, 0.3)
    torch.testing.assert_close(list(terms.values()), [ams, want()], rtol=1e-6, atol=0)
    torch.testing.assert_close(loss, ams + 2 * want())


@pytest.mark.parametrize("flags, loss", [
    ("--margin 0.4 --levels -2 1", lambda *args: mdr.triplet_loss(*args, 0.4)),
    ("--loss contrastive --lambda 3", lambda *args: mdr.contrastive_loss(*args, 1)),
    ("--loss margin --margin 0.4 --fixed-levels", lambda *args: mdr.MarginLoss(0.4)(*args)),
    ("--l2norm --nu 0.5 --momentum 0.3", lambda *args: mdr.triplet_loss(*args, 0.2)),
    ("--lambda 0", lambda *args: mdr.triplet_loss(*args, 0.2))])
def test_each_choice_of_mdr_is_its_own(flags, loss):
    """U8: distances of mean 1, with --l2norm the embeddings' own; Eq. 2 at λ = 0; ν Σ s² (U5)."""
    e = torch.randn(B, 5, generator=torch.Generator().manual_seed(1)) * 3
    cfg, draw = mdr.parse_args(flags.split()), torch.Generator().manual_seed
    network, peer = mdr.Network(cfg, 4), mdr.MDR(cfg.levels, cfg.momentum)
    assert network.mdr.levels.requires_grad == ("--fixed" not in flags)
    network.forward = lambda images: e
    for _ in range(2):                                      # the second batch feels the momentum
        distances = mdr.pairwise_distances(e)
        if not cfg.l2norm:
            distances = distances / distances[~torch.eye(B, dtype=torch.bool)].mean()
        total, terms = mdr.objective(network, cfg, None, LABELS, draw(2))
        want = loss(distances, *mdr.distance_weighted_negatives(e, LABELS, draw(2)))
        reg, e = peer(distances), e ** 3
        torch.testing.assert_close([terms[cfg.loss], terms["mdr"]], [want, reg])
        for sign, pairs in (("positive", POSITIVE), ("negative", NEGATIVE)):
            assert (terms[f"{sign} pairs by level"] == peer.level_shares(distances, pairs)).all()
    if cfg.lambda_:
        want = want + cfg.lambda_ * reg + cfg.nu * sum(s * s for s in cfg.levels)
    torch.testing.assert_close(total, want)
    torch.testing.assert_close(network.mdr.sigma, peer.sigma)


D0, ALPHA = torch.tensor([0.5, 1.0, 0.7, 1.8]), torch.tensor([0.4, 0.5, 0.6, 0.7])

contrastive = functools.partial(dml_da.contrastive_loss, UNIT, LABELS, margin=1.0)
da = functools.partial(dml_da.density_regularizer, dml_da.class_density(UNIT, LABELS)[1], ALPHA)
gor = functools.partial(dml_da.global_orthogonal_regularizer, UNIT, LABELS)


@pytest.mark.parametrize("flags, loss, weight, regularizer", [
    ("--margin 0.4", lambda: contrastive(margin=0.4), 10, lambda: da(D0)),
    ("--loss triplet --margin 0.4", lambda: dml_da.triplet_loss(UNIT, LABELS, 0.4), 10,
     lambda: da(D0)),
    ("--loss npair", lambda: dml_da.n_pair_loss(UNIT, LABELS, torch.Generator().manual_seed(2)), 10,
     lambda: da(D0)),
    ("--lambda 3 --eta 1.3", contrastive, 3, lambda: da(D0, 1.3)),
    ("--lambda 3 --regularizer da-", contrastive, 3, da),
    ("--regularizer en", contrastive, 1, lambda: dml_da.entropy_regularizer(UNIT)),
    ("--regularizer gor", contrastive, 10, gor),
    ("--regularizer gor --reg-weight 5", contrastive, 5, gor)])
def test_each_choice_of_dml_da_is_its_own(flags, loss, weight, regularizer):
    cfg, network = dml_da.parse_args(flags.split()), Mock(return_value=UNIT, alpha=ALPHA, D0=D0)
    total, terms = dml_da.objective(network, cfg, None, LABELS, torch.Generator().manual_seed(2))
    terms.pop("alpha", None)
    torch.testing.assert_close(list(terms.values()), [loss(), regularizer()])
    torch.testing.assert_close(total, loss() + weight * regularizer())


# ---------------------------------------------------------------------------- trainings
@pytest.mark.parametrize("script, flags, weights, rates, eps, decay", [
    (jrd, "--alpha 0.7 --epochs 4 --drop-every 2", dict(amsoftmax=1, jrs=0.7),
     np.outer([1, 0.1, 0.1, 0.01], [3e-4, 3e-2]), 0.01, 1e-4),
    (mdr, "--lambda 0 --epochs 5 --iterations 1", dict(triplet=1),
     np.outer([1, 1, 0.2, 0.04, 0.008], [1e-3]), 1e-8, 1e-5),
    (dml_da, "--lambda 0 --epochs 4 --iterations 1 --lr 1e-3 --head-lr-mult 3",
     dict(contrastive=1), np.outer([1] * 4, [1e-3, 3e-3, 1e-3]), 1e-8, 0)])
def test_what_adam_is_told(script, flags, weights, rates, eps, decay, train):
    """Each parameter group's rate at every step, one per epoch (JRD U1, U5, MDR U1, DML-DA U4, U5).
    The logged loss is the weighted sum of its terms; no level, no α moves unless regularized.
    Test figures come every third epoch and in the last one."""
    told = []

    def listen(optimizer, *_):
        assert type(optimizer) is torch.optim.Adam
        told.append([[g["lr"], g["eps"], g["weight_decay"]] for g in optimizer.param_groups])
    with register_optimizer_step_pre_hook(listen):
        folder, _ = train(script, "--eval-every", "3", *flags.split())
    told = np.array(told)                                   # (steps, groups, 3)
    np.testing.assert_allclose(told[..., 0], rates)
    assert (told[..., 1:] == [eps, decay]).all()
    rows = left_in(folder)[0]
    assert [row["epoch"] for row in rows if "R@1" in row] == [3, len(rates)]
    assert len(rows) == len(rates)
    for row in rows:
        for name in weights:
            assert abs(row[name]) > 1e-5
        assert row["loss"] == pytest.approx(sum(w * row[name] for name, w in weights.items()))
        if script is mdr:
            assert row["levels"] == [-3, 0, 3]
    if script is dml_da:                                    # its α are not logged at λ = 0
        network, _ = common.load(folder / "last.pt", script.Network)
        assert all(alpha == 0.5 for alpha in network.alpha)


@each_script
def test_the_figures_of_a_run(script, train):
    """Before training those of the pretrained backbone's pooled features on the unit sphere; after
    it recomputed from last.pt, which has levels, D⁰, α too; and what the papers' figures need."""
    flags = "--epochs 2 --lr 0.01" + " --iterations 2" * (script is not jrd)
    folder, _ = train(script, *flags.split())
    (first, row), result, _ = left_in(folder)
    last, (network, cfg) = result["last epoch"], common.load(folder / "last.pt", script.Network)
    prefix, _, whole = script.transforms(cfg)
    data = common.load_dataset("glyphs", train=prefix, test=whole)
    untrained, state = script.Network(cfg, 10).eval(), network.state_dict()
    common.load_weights(untrained.backbone, cfg.backbone)
    (pooled, labels), (seen, ys) = common.embed_splits(untrained.pool, data, cfg).values()
    before = result["pretrained backbone"]
    assert before["R@1"] == recall_at_k(F.normalize(pooled), labels, [1])[1]
    assert before["R@1"] != recall_at_k(pooled, labels, [1])[1]
    assert before["seen R@1"] == recall_at_k(F.normalize(seen), ys, [1])[1]
    (test, _), (trained, _) = common.embed_splits(network.embed, data, cfg).values()
    assert row["R@1"] == last["R@1"] == recall_at_k(test, labels, [1])[1]
    assert last["seen R@1"] == recall_at_k(trained, ys, [1])[1]
    assert script is jrd or row["seen R@1"] == last["seen R@1"]
    if script is mdr:
        norm = test.norm(dim=1)
        assert row["norm mean"] == pytest.approx(norm.mean().item())
        assert row["norm cv"] == pytest.approx((norm.std() / norm.mean()).item())
        assert last["R@1, l2-normalized"] == recall_at_k(F.normalize(test), labels, [1])[1]
        assert last["R@1, l2-normalized"] != last["R@1"] and row["mu*"] == pytest.approx(1)   # U8
        assert first["levels"] != row["levels"] and first["sigma*"] != row["sigma*"]
        assert state["mdr.levels"].tolist() == row["levels"] and state["mdr.updates"] == 4
        assert state["mdr.sigma"] == row["sigma*"]
    if script is dml_da:
        _, D_avg = dml_da.class_density(trained, ys)
        for name in ("mean", "min", "max"):
            assert row[f"D_avg {name}"] == pytest.approx(getattr(D_avg, name)().item())
        assert row["alpha min"] < row["alpha mean"] < row["alpha max"]
        assert torch.stack([*network.alpha]).mean().item() == pytest.approx(row["alpha mean"])
        D0 = torch.stack([seen[ys == c].var(0, correction=0).sum() for c in range(10)])
        np.testing.assert_allclose(state["D0"], D0 / D0.mean(), rtol=1e-4)
        assert D0.std() > 0.01 * D0.mean()                                              # U3
        assert row["NMI"] == last["NMI"] == nmi(kmeans(test, 20, 0), labels)


@pytest.mark.parametrize("script, flags", [(mdr, []), (dml_da, []), (
    dml_da, ["--images-per-class", "0"])])
def test_batches_are_those_of_a_look_through_all_labels_per_class(script, flags, monkeypatch):
    """The plain definition: a look through all labels for each class that is drawn."""
    cfg = script.parse_args(["--iterations", "3", "--batch", "20", *flags])
    labels = torch.tensor(np.random.RandomState(0).permutation(np.repeat(np.arange(13), 7))[:80])
    generator = torch.Generator().manual_seed(common.random_seed(cfg.seed, 1))
    n, whole, want = cfg.images_per_class or 99, cfg.images_per_class == 0, []
    for _ in range(3):
        batch = []
        for c in torch.randperm(13, generator=generator).tolist():
            images = [i for i in range(80) if labels[i] == c]
            order = torch.randperm(len(images), generator=generator).tolist()[:n]
            if whole and batch and len(batch) + len(order) > 20:
                break                                       # a class that does not fit (U11)
            batch += [images[i] for i in order]
            if len(batch) >= 20:
                break
        want.append(batch[:20])
    assert script.batches(labels, cfg, 1) == want

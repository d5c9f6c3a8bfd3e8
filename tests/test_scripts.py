"""What the three scripts share: each choice does what it says, any batch is finite, presets and
transforms are the papers', and the figures of a run are what their names say."""
import contextlib
import math
import os
import re
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torchvision.transforms import v2
from torchvision.transforms.v2.functional import pil_to_tensor, to_pil_image

import common
import dml_da
import jrd
import mdr
from conftest import ROOT, each_script, left_in, make_folder, photograph
from eval import judge, l2_normalized, recalls
from support import glyphs, images, runs

draw = torch.Generator().manual_seed


@pytest.mark.parametrize("scale", [1, 1e-6, 1e6, "equal"])
@pytest.mark.parametrize("script, flags", [
    (jrd, "--regularizer jrs"), (jrd, "--regularizer jmmd"), (jrd, "--regularizer jintra"),
    (jrd, "--regularizer intra"), (mdr, ""), (mdr, "--loss contrastive"), (mdr, "--loss margin"),
    (dml_da, ""), (dml_da, "--loss triplet --regularizer en"),
    (dml_da, "--loss npair --regularizer gor")])
def test_degenerate_batches_are_finite(script, flags, scale):
    """One class, one image per class, B = 1 and 2; all embeddings equal, near 0 or far away."""
    cfg, generator = script.parse_args(flags.split()), [draw(0)]
    network = script.Network(cfg, 6)
    for labels in ([0] * 6, [0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 2, 2], [3], [0, 1]):
        alone = len(set(labels)) == 1
        e = torch.full((len(labels), 6), 0.5)
        if scale != "equal":
            e = torch.randn(e.shape, generator=draw(1)) * scale
        e.requires_grad_()
        network.forward = Mock(return_value=e)
        if script is jrd:
            generator, network.forward.return_value = [], (e, F.normalize(e), e)
        _, terms = script.objective(network, cfg, None, torch.tensor(labels), *generator)
        for name, value in terms.items():
            whole = value.sum() + 0 * e.sum()           # which has a gradient in any case
            slope, = torch.autograd.grad(whole, e, retain_graph=True)
            assert whole.isfinite() and slope.isfinite().all(), (name, labels)
            if alone and name in ("jrs", "triplet", "npair", "gor"):
                assert value == 0, (name, labels)
            if scale == "equal" and name in ("mdr", "jrs") and not alone:
                assert value == (name == "jrs") and (slope == 0).all(), labels


@pytest.mark.parametrize("script, backbone, width", [
    (jrd, "bn_inception", 1024), (jrd, "efficientnet_b0", 1280), (mdr, "small --l2norm", 128),
    (mdr, "small --eval-l2norm", 128), (mdr, "resnet18", 512), (dml_da, "googlenet", 1024)])
def test_backbones(script, backbone, width):
    """Batch norm is frozen and its affine parameters learn (JRD U10, MDR U4, DML-DA U8)."""
    cfg = script.parse_args(["--dim", "7", "--backbone", *backbone.split()])
    network = script.Network(cfg, 3).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    pooled, e = network.pool(images), network.embed(images)
    assert pooled.shape == (2, width) and e.shape == (2, 7)
    assert torch.equal(pooled, network.pool(images)), "no dropout, no stochastic depth"
    unit = script is not mdr or "l2norm" in backbone
    assert torch.allclose(e.norm(dim=1), torch.ones(2)) == unit
    if script is mdr:                                   # in training --eval-l2norm does nothing
        assert torch.equal(e, network(images)) == ("--eval-l2norm" not in backbone)
    (e * torch.randn(2, 7)).sum().backward()
    torch.testing.assert_close(network.state_dict(), before, rtol=0, atol=0)
    norms = [m for m in network.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert max(m.weight.grad.abs().sum() for m in norms) > 0
    for name in before:
        assert not name.startswith(("backbone.fc", "backbone.aux", "backbone.last_linear"))


# ---------------------------------------------------------------------------- presets, transforms
JRD = ("--alpha 1 --s 20 --m 0.1 --batch 100 --epochs 50 --drop-every 20 --lr 1e-4 "
       "--lr-proxies 1e-2 --K 3 --K-prime 1 --dim 512 --backbone bn_inception")
MDR = ("--lambda 0.6 --lr 5e-5 --batch 128 --images-per-class 4 --levels -3 0 3 --momentum 0.9 "
       "--margin 0.2 --nu 0.01 --dim 512 --epochs 100 --iterations 100 --backbone bn_inception")
MDR_LARGE = f"{MDR} --lambda 0.1 --lr 1e-4 --batch 256 --images-per-class 3 --eval-every 10"
DML_DA = ("--lambda 10 --eta 0.5 --margin 1 --lr 1e-5 --batch 100 --images-per-class 10 --dim 128 "
          "--epochs 30 --iterations 1000 --backbone googlenet")


@pytest.mark.parametrize("script, preset, ks, papers", [
    (jrd, "cub", "1 2 4 8", JRD), (jrd, "cars", "1 2 4 8", f"{JRD} --m 0.05 --batch 50"),
    (jrd, "sop", "1 10 100", f"{JRD} --alpha 0.4 --batch 120 --epochs 80 --drop-every 40 "
     "--lr-proxies 1e-1 --eval-every 10"),
    (mdr, "cub", "1 2 4 8", MDR), (mdr, "cars", "1 2 4 8", f"{MDR} --lambda 0.2"),
    (mdr, "sop", "1 10 100 1000", MDR_LARGE), (mdr, "inshop", "1 10 20 40", MDR_LARGE),
    (mdr, "cub --loss contrastive", "1 2 4 8", f"{MDR} --margin 1"),                # U10
    (dml_da, "cub", "1 2 4 8 16 32 64 128", DML_DA),
    (dml_da, "cars", "1 2 4 8 16 32 64 128", f"{DML_DA} --lr 5e-4"),
    (dml_da, "sop", "1 10 100 1000", f"{DML_DA} --lr 3e-5 --images-per-class 0 --eval-every 10")])
def test_presets(script, preset, ks, papers):
    """The paper's values as flags change nothing."""
    words = ["--dataset", *preset.split()]
    given = vars(script.parse_args(words))
    assert given["ks"] == [int(k) for k in ks.split()]
    explicit = vars(script.parse_args(words + papers.split()))
    for name in given.keys() - {"changed"}:
        assert given[name] == explicit[name], name


lanczos = v2.InterpolationMode.LANCZOS


@pytest.mark.parametrize("script, size, whole, filter, corner, crop", [
    (jrd, 224, (341, 256), Image.BILINEAR, (58, 16),
     v2.RandomResizedCrop(224, (0.08, 1.0), (3 / 4, 4 / 3))),                                  # U3
    (mdr, 224, (256, 256), Image.LANCZOS, (16, 16),
     v2.RandomResizedCrop(224, (0.16, 1), (0.75, 1.33), lanczos)),                             # U3
    (mdr, 256, (256, 256), Image.LANCZOS, (0, 0),
     v2.RandomResizedCrop(256, (0.16, 1), (0.75, 1.33), lanczos)),                             # U13
    (dml_da, 224, (256, 256), Image.BILINEAR, (16, 16), v2.RandomCrop(224))])                  # U7
def test_transforms(script, size, whole, filter, corner, crop):
    """Pillow's resize and crop are the oracle of the test transform: to the pixel of a PIL image,
    and of tensors where they are the authors' (MDR); else within 1 of 255 of tensors."""
    image = Image.fromarray(np.random.RandomState(0).randint(0, 256, (300, 400, 3), np.uint8))
    cfg = script.parse_args(["--dataset", "cub", "--size", str(size)])
    prefix, augment, test = script.transforms(cfg)
    resized, (left, top) = image.resize(whole, filter), corner      # a wide one: across, then down
    cropped = resized.crop((left, top, left + size, top + size))
    pairs = [(test, cropped)] + ([(prefix, resized)] if prefix else [])
    assert (prefix is None) == (script is jrd)
    for transform, want in pairs:
        got = transform(pil_to_tensor(image)).movedim(0, 2).numpy()
        np.testing.assert_allclose(got, want, rtol=0, atol=0 if script is mdr else 1)
        if script is not mdr:
            np.testing.assert_array_equal(transform(image), want)
    assert str(augment) == str(v2.Compose([crop, v2.RandomHorizontalFlip(0.5)]))


def lanczos_weights(n, m):
    """Lanczos of three lobes, wider where it shrinks: n values @ this -> m values.  (n, m)"""
    scale = n / m
    place = (np.arange(n)[:, None] + 0.5 - (np.arange(m) + 0.5) * scale) / max(scale, 1)
    weights = np.sinc(place) * np.sinc(place / 3) * (abs(place) < 3)
    return weights / weights.sum(0)


@pytest.mark.parametrize("h, w", [(250, 120), (120, 250), (250, 250)])
def test_lanczos_goes_across_then_down(h, w):
    """... with every version of Pillow, as the authors' and as torchvision's of tensors does."""
    image = 255 * np.random.RandomState(0).randint(0, 2, (h, w))

    def rounded(values):
        return values.round().clip(0, 255)
    across, down = lanczos_weights(w, 128), lanczos_weights(h, 128).T
    want, other = rounded(down @ rounded(image @ across)), rounded(rounded(down @ image) @ across)
    cfg = mdr.parse_args(["--dataset", "cub", "--resize", "128", "--size", "128"])
    got = mdr.transforms(cfg)[0](torch.from_numpy(image).byte().expand(3, h, w)).numpy()
    assert abs(got - want).max() <= 1 and abs(got - other).max() > 20


@pytest.mark.parametrize("has_lanczos", [True, False])
def test_every_version_of_torchvision_crops_with_lanczos(has_lanczos, monkeypatch):
    """MDR U3: Pillow crops where torchvision refuses tensors (0.26), else tensors are cropped, with
    values at most 2 of 255 from Pillow's.  Bicubic crops, which were taken before, are not so near.
    """
    if not has_lanczos:
        monkeypatch.setattr(images, "resize", Mock(side_effect=NotImplementedError))
    cfg = mdr.parse_args(["--dataset", "cub"])
    (crop, _), far = mdr.transforms(cfg)[1].transforms, {}
    assert has_lanczos or isinstance(crop, images.LanczosByPillow)
    photo = torch.from_numpy(photograph(256, 256)).movedim(2, 0)
    for name, transform in (("lanczos", crop), ("bicubic", v2.RandomResizedCrop(
            224, (0.16, 1), (0.75, 1.33), v2.InterpolationMode.BICUBIC))):
        differences = []
        for seed in range(20):
            torch.manual_seed(seed)
            got = transform(photo)
            torch.manual_seed(seed)
            drawn = crop.transform if isinstance(crop, images.LanczosByPillow) else crop
            place = drawn.make_params([photo])
            top, left, height, width = (place[key] for key in ("top", "left", "height", "width"))
            part = to_pil_image(photo).crop((left, top, left + width, top + height))
            across = part.resize((224, height), Image.LANCZOS)
            want = pil_to_tensor(across.resize((224, 224), Image.LANCZOS))
            differences.append((got.int() - want.int()).abs().flatten())
        far[name] = torch.cat(differences)
    assert far["lanczos"].max() <= (2 if has_lanczos else 0) < far["bicubic"].max()
    assert (far["lanczos"] > 1).double().mean() < 1e-3


# ---------------------------------------------------------------------------- each choice
LABELS = torch.arange(12) // 3
NEGATIVE, POSITIVE = LABELS[:, None] != LABELS, mdr.is_positive(LABELS)
POOLED = torch.rand(12, 7, generator=draw(0)) * 3
UNIT = F.normalize(torch.randn(12, 5, generator=draw(1)))
COSINES = torch.rand(12, 4, generator=draw(2)) * 2 - 1


def product(kernel, pooled=POOLED):
    return kernel(pooled) * kernel(UNIT) * kernel(COSINES)


MINUS, JUST, PLUS = map(jrd.gaussian_kernel, (POOLED, UNIT, COSINES), (3, 3, 1))
JOINT, CUBIC = MINUS * JUST * PLUS, partial(jrd.polynomial_kernel, p=3)


@pytest.mark.parametrize("flags, regularizer, gram", [
    ("", jrd.jrs, JOINT),
    ("--K 5 --K-prime 2", jrd.jrs, math.prod(map(
        jrd.gaussian_kernel, (POOLED, UNIT, COSINES), (5, 5, 2)))),
    ("--variant mrd", jrd.jrs, JUST), ("--variant jrd-c", jrd.jrs, MINUS * JUST),      # Table 2
    ("--variant jrd-pooling", jrd.jrs, JUST * PLUS),
    ("--kernel laplace", jrd.jrs, product(jrd.laplace_kernel)),                        # Table 4
    ("--kernel polynomial --p 3", jrd.jrs, product(CUBIC, F.normalize(POOLED))),
    ("--kernel mgf", jrd.jrs, product(jrd.mgf_kernel, F.normalize(POOLED))),
    ("--regularizer jmmd", jrd.jmmd, JOINT), ("--regularizer jintra", jrd.jintra, JOINT),
    ("--regularizer intra", jrd.intra_class, UNIT)])
def test_each_choice_of_jrd_is_its_own(flags, regularizer, gram):
    """x⁻ is l2-normalized under the polynomial and the mgf kernel (U8)."""
    cfg = jrd.parse_args([*flags.split(), "--s", "7", "--m", "0.3", "--alpha", "2"])
    network = Mock(return_value=(POOLED, UNIT, COSINES))
    loss, terms = jrd.objective(network, cfg, None, LABELS)
    ams, reg = jrd.amsoftmax(COSINES, LABELS, 7, 0.3), regularizer(gram, LABELS)
    torch.testing.assert_close(list(terms.values()), [ams, reg], rtol=1e-6, atol=0)
    torch.testing.assert_close(loss, ams + 2 * reg)


@pytest.mark.parametrize("flags, loss", [
    ("--margin 0.4 --levels -2 1", partial(mdr.triplet_loss, margin=0.4)),
    ("--loss contrastive --lambda 3", partial(mdr.contrastive_loss, margin=1)),
    ("--loss margin --margin 0.4 --fixed-levels", mdr.MarginLoss(0.4)),
    ("--l2norm --nu 0.5 --momentum 0.3", partial(mdr.triplet_loss, margin=0.2)),
    ("--lambda 0", partial(mdr.triplet_loss, margin=0.2))])
def test_each_choice_of_mdr_is_its_own(flags, loss):
    """U8: distances of mean 1, with --l2norm the embeddings' own; Eq. 2 at λ = 0; ν Σ s² (U5)."""
    cfg, first = mdr.parse_args(flags.split()), torch.randn(12, 5, generator=draw(3)) * 3
    network, peer = mdr.Network(cfg, 4), mdr.MDR(cfg.levels, cfg.momentum)
    assert network.mdr.levels.requires_grad == ("--fixed" not in flags)
    for e in (first, first ** 3):                              # the second batch feels the momentum
        distances = mdr.pairwise_distances(e)
        if not cfg.l2norm:
            distances = distances / distances[~torch.eye(12, dtype=torch.bool)].mean()
        network.forward = Mock(return_value=e)
        total, terms = mdr.objective(network, cfg, None, LABELS, draw(2))
        want = loss(distances, *mdr.distance_weighted_negatives(e, LABELS, draw(2)))
        reg = peer(distances)
        torch.testing.assert_close([terms[cfg.loss], terms["mdr"]], [want, reg])
        for sign, pairs in (("positive", POSITIVE), ("negative", NEGATIVE)):
            assert (terms[f"{sign} pairs by level"] == peer.level_shares(distances, pairs)).all()
        if cfg.lambda_:
            want = want + cfg.lambda_ * reg + cfg.nu * peer.levels.square().sum()
        torch.testing.assert_close(total, want)
    torch.testing.assert_close(network.mdr.sigma, peer.sigma)


D0, ALPHA = torch.tensor([0.5, 1.0, 0.7, 1.8]), torch.tensor([0.4, 0.5, 0.6, 0.7])
CONTRASTIVE = dml_da.contrastive_loss(UNIT, LABELS, 1)
DENSITY = partial(dml_da.density_regularizer, dml_da.class_density(UNIT, LABELS)[1], ALPHA)
GOR = dml_da.global_orthogonal_regularizer(UNIT, LABELS)


@pytest.mark.parametrize("flags, loss, weight, regularizer", [
    ("--margin 0.4", dml_da.contrastive_loss(UNIT, LABELS, 0.4), 10, DENSITY(D0)),
    ("--loss triplet --margin 0.4", dml_da.triplet_loss(UNIT, LABELS, 0.4), 10, DENSITY(D0)),
    ("--loss npair", dml_da.n_pair_loss(UNIT, LABELS, draw(2)), 10, DENSITY(D0)),
    ("--lambda 3 --eta 1.3", CONTRASTIVE, 3, DENSITY(D0, 1.3)),
    ("--lambda 3 --regularizer da-", CONTRASTIVE, 3, DENSITY()),
    ("--regularizer en", CONTRASTIVE, 1, dml_da.entropy_regularizer(UNIT)),
    ("--regularizer gor", CONTRASTIVE, 10, GOR),
    ("--regularizer gor --reg-weight 5", CONTRASTIVE, 5, GOR)])
def test_each_choice_of_dml_da_is_its_own(flags, loss, weight, regularizer):
    cfg, network = dml_da.parse_args(flags.split()), Mock(return_value=UNIT, alpha=ALPHA, D0=D0)
    total, terms = dml_da.objective(network, cfg, None, LABELS, draw(2))
    torch.testing.assert_close(list(terms.values())[:2], [loss, regularizer])
    torch.testing.assert_close(total, loss + weight * regularizer)


# ---------------------------------------------------------------------------- trainings
@each_script
def test_another_seed_is_another_run(script, train, monkeypatch):
    """... from its first step on: other weights, another batch, other negatives or tuplets."""
    first = []

    def spy(network, cfg, images, labels, *generator):
        drawn = [torch.rand(9, generator=one) for one in generator]
        first.append([network.embedding.weight.clone(), labels, *drawn])
        raise KeyboardInterrupt
    monkeypatch.setattr(script, "objective", spy)
    for seed in "01":
        with pytest.raises(KeyboardInterrupt):
            train(script, "--seed", seed)
    for zero, one in zip(*first):
        assert not torch.equal(zero, one)


@pytest.mark.parametrize("script, flags, weights, rates, eps, decay", [
    (jrd, "--alpha 0.7 --epochs 4 --drop-every 2", {"amsoftmax": 1, "jrs": 0.7},
     np.outer([1, 0.1, 0.1, 0.01], [3e-4, 3e-2]), 0.01, 1e-4),
    (mdr, "--lambda 0 --epochs 5 --iterations 1", {"triplet": 1},
     np.outer([1, 1, 0.2, 0.04, 0.008], [1e-3]), 1e-8, 1e-5),
    (dml_da, "--lambda 0 --epochs 4 --iterations 1 --lr 1e-3 --head-lr-mult 3",
     {"contrastive": 1}, np.outer([1] * 4, [1e-3, 3e-3, 1e-3]), 1e-8, 0)])
def test_what_adam_is_told(script, flags, weights, rates, eps, decay, train):
    """Each parameter group's rate at every step, one per epoch (JRD U1, U5, MDR U1, DML-DA U4, U5);
    the betas are those of Adam's paper.  The logged loss is the weighted sum of its terms; no
    level, no α moves unless regularized.  Test figures come every third epoch and in the last one.
    """
    told = []

    def listen(optimizer, *_):
        assert type(optimizer) is torch.optim.Adam
        for group in optimizer.param_groups:
            told.append([group["lr"], group["eps"], group["weight_decay"], *group["betas"]])
    with register_optimizer_step_pre_hook(listen):
        folder, _ = train(script, "--eval-every", "3", *flags.split())
    told = np.array(told).reshape(*rates.shape, 5)          # (steps, groups, 5)
    np.testing.assert_allclose(told[..., 0], rates)
    assert (told[..., 1:] == [eps, decay, 0.9, 0.999]).all()
    rows = left_in(folder)[0]
    assert [row["epoch"] for row in rows if "R@1" in row] == [3, len(rates)]
    for row in rows:
        loss = 0
        for name, weight in weights.items():
            assert abs(row[name]) > 1e-5
            loss += weight * row[name]
        assert row["loss"] == pytest.approx(loss)
        assert row.get("levels", [-3, 0, 3]) == [-3, 0, 3]
    if script is dml_da:
        network, _ = common.load(folder / "last.pt", script.Network)
        assert torch.equal(torch.stack([*network.alpha]), torch.full([10], 0.5))
        assert network.D0.mean().item() == pytest.approx(1)     # the column da is Eq. 8's there too


@each_script
def test_a_run_in_bfloat16_is_judged_in_float32_on_a_gpu_that_lacks_it(script, train, monkeypatch,
                                                                       capfd):
    folder, _ = train(script, "--precision", "bf16", *["--iterations=1"] * (script is not jrd))
    monkeypatch.setattr(common, "to_device", lambda network, cfg: network)
    for device, here, precision in (("cpu", False, "bf16"), ("cuda:0", True, "bf16"),
                                    ("cuda:0", False, "fp32")):
        monkeypatch.setattr(common, "settle", lambda cfg: setattr(cfg, "device", device))
        monkeypatch.setattr(common, "multiplies_bfloat16", lambda kind: here)
        network, cfg = common.load(folder / "last.pt", script.Network)
        assert network.precision == cfg.precision == precision
        assert ("this GPU lacks" in capfd.readouterr().out) == (precision == "fp32")


@each_script
def test_the_figures_of_a_run(script, train):
    """Before training those of the pretrained backbone's pooled features on the unit sphere; after
    it recomputed from last.pt, which has levels, D⁰, α too; and what the papers' figures need."""
    flags = "--epochs 2 --lr 0.01" + " --iterations 2" * (script is not jrd)
    folder, _ = train(script, *flags.split())
    (first, row), result, _ = left_in(folder)
    network, cfg = common.load(folder / "last.pt", script.Network)
    prefix, _, whole = script.transforms(cfg)
    data = common.load_dataset("glyphs", train=prefix, test=whole)
    untrained = script.Network(cfg, 10).eval()
    common.load_weights(untrained.backbone, cfg.backbone)
    pooled = common.embed_splits(untrained.pool, data, cfg)
    assert result["pretrained backbone"] == judge(l2_normalized(pooled), cfg.ks)
    embedded, state = common.embed_splits(network.embed, data, cfg), network.state_dict()
    assert recalls(l2_normalized(pooled), cfg.ks) != recalls(pooled, cfg.ks)
    last, want = result["last epoch"], judge(embedded, cfg.ks)
    assert want.items() <= last.items()
    for name in row.keys() & want.keys():
        assert row[name] == want[name]
    (test, _), (trained, ys) = embedded["test"], embedded["train_plain"]
    assert "R@8" in row and (script is jrd) == ("seen R@1" not in row)
    if script is mdr:
        norm = test.norm(dim=1)
        assert row["norm mean"] == pytest.approx(norm.mean().item())
        assert row["norm cv"] == pytest.approx((norm.std() / norm.mean()).item())
        on_sphere = recalls(l2_normalized(embedded), [1])["R@1"]
        assert last["R@1, l2-normalized"] == on_sphere != last["R@1"]
        assert row["mu*"] == pytest.approx(1)                                           # U8
        assert first["levels"] != row["levels"] and first["sigma*"] != row["sigma*"]
        assert state["mdr.levels"].tolist() == row["levels"] and state["mdr.updates"] == 4
        assert state["mdr.sigma"] == row["sigma*"]
    if script is dml_da:
        for name, values in (("D_avg", dml_da.class_density(trained, ys)[1]),
                             ("alpha", torch.stack([*network.alpha]))):
            for which in ("min", "mean", "max"):
                assert row[f"{name} {which}"] == pytest.approx(getattr(values, which)().item())
        assert row["alpha min"] < row["alpha max"] and "NMI" in row
        seen = pooled["train_plain"][0]
        D0 = torch.stack([seen[ys == c].var(0, correction=0).sum() for c in range(10)])
        np.testing.assert_allclose(state["D0"], D0 / D0.mean(), rtol=1e-4)
        assert D0.std() > 0.01 * D0.mean()                                              # U3


@pytest.mark.parametrize("script, flags", [
    (jrd, ""), (jrd, "--regularizer jmmd --alpha 0.1"), (mdr, ""), (mdr, "--lambda 0"),
    (mdr, "--loss margin --nu 0.5"), (dml_da, ""), (dml_da, "--regularizer gor"),
    (dml_da, "--loss npair --regularizer da- --lambda 3")])
def test_an_epochs_columns_add_up_as_the_line_above_them_says(script, flags, train):
    """loss = triplet + λ mdr + ν Σs², λ = 0.6, ν = 0.01: as printed, to the last digit shown."""
    folder, told = train(script, *flags.split())
    total, *symbols = re.search("^loss = (.*)", told, re.M)[1].split(", ")
    weights = dict(symbol.split(" = ") for symbol in symbols)
    table = told.replace("seen R@1", "seen")
    head, row = [line.split() for line in re.findall(r"^ +(?:epoch|1/1) .*", table, re.M)]
    shown, value, error = dict(zip(head, row, strict=True)), 0, 0.0006
    for term in total.split(" + "):
        *symbol, name = term.split()
        weight = float(weights.pop(symbol[0])) if symbol else 1
        value, error = value + weight * float(shown[name]), error + weight * 0.0006
    assert abs(float(shown["loss"]) - value) < error and not weights
    assert ("Σs²" in left_in(folder)[0][0]) == (script is mdr)


def test_intervals_have_one_unit(train, monkeypatch, tmp_path):
    """Recalls in ten parts in %, as in the table above them; λ and d_H as in Table 3.  Of photos of
    one's own there are none, even if their folder is called as their preset."""
    monkeypatch.setattr(jrd, "tables_2_and_3", lambda *_: {
        "ten parts": {"R@1": (0.25, 0.014)}, "lambda": (1.156, 0.014), "d_H": (0.7825, 0.0075)})
    assert train(jrd)[1].splitlines()[-4:-1] == [
        "R@1 in ten parts, 95%: [23.6, 26.4]", "λ by 1-NN, 95%: [1.142, 1.170]",
        "d_H by 1-NN, 95%: [0.775, 0.790]"]
    monkeypatch.chdir(make_folder(tmp_path / "folder", [2] * 4, side=20).parent)
    for dataset in ("folder", tmp_path / "folder"):
        assert "95%" not in train(jrd, dataset=dataset)[1]


def test_the_time_left_is_by_the_epochs_of_this_process(monkeypatch, capsys):
    """... which continues after five of ten and took 100 seconds for two."""
    run = Mock(cfg=Mock(epochs=10), started=(3000, 5), means={"loss": 1.0}, ks=[], columns=None)
    run.best.return_value = None
    monkeypatch.setattr(runs.time, "perf_counter", lambda: 3100)
    runs.Run._print(run, {"epoch": 7, "images/s": 9})
    head, row = capsys.readouterr().out.splitlines()
    assert (head.split()[-1], row.split()[-1]) == ("left", "02:30")


@pytest.mark.parametrize("script, flags, steps, few", [
    (jrd, "--epochs 1", "1 batches per epoch, batch 100, ",
     "1 in all (1 per epoch): raise --epochs, or lower --batch"),
    (jrd, "--epochs 10 --batch 4 --eval-every 10", "10 batches per epoch, batch 4, ", ""),
    (mdr, "--epochs 9 --iterations 11 --batch 8 --eval-every 9",
     "11 batches per epoch, batch 8 (about 19.8 passes in all), ",
     "99 in all (11 per epoch): raise --epochs, or raise --iterations"),
    (dml_da, "--epochs 1 --iterations 3 --batch 12",
     "3 batches per epoch, batch 12 (about 0.9 passes in all), ",
     "3 in all (3 per epoch): raise --epochs, "),
    (mdr, "--epochs 9 --iterations 11 --batch 80 --eval-every 9",       # the 40 images fill half
     "11 batches per epoch, batch 80 (about 99 passes in all), ",
     "99 in all (11 per epoch): raise --epochs, or raise --iterations")])
def test_the_header_says_how_many_steps_and_whether_they_are_few(script, flags, steps, few, train):
    folder, told = train(script, *flags.split())
    header = told.partition("pretrained")[0]
    assert f" epochs, {steps}lr " in header
    note = "\nnote: few steps to learn from, "
    assert note + few in header if few else note not in header
    state = torch.load(folder / "last.pt", weights_only=True)
    if script is mdr:
        assert state["network"]["mdr.updates"] == int(steps.split()[0]) * len(state["history"])


@pytest.mark.parametrize("precision, here", [("bf16", False), ("bf16", True), ("auto", False)])
def test_bfloat16_that_torch_emulates_is_said_to_be_slow(precision, here, train, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: here)
    _, told = train(jrd, "--precision", precision, "--device", "cpu")
    assert ("note: this processor has no bfloat16: --precision fp32 is several times faster\n"
            in told) == (precision == "bf16" and not here)


def test_a_training_may_run_in_a_thread(train):
    """... of a notebook or of a program with windows."""
    with ThreadPoolExecutor(1) as pool:
        folder, _ = pool.submit(train, jrd).result()
    assert (folder / "result.json").exists()


@each_script
def test_a_loss_that_is_not_finite_ends_the_run_at_that_step(script, train, monkeypatch):
    """... a step before the epoch's end on a CPU.  On a GPU, which is waited for once per second,
    within a second; any other term that is not finite ends the run at the epoch's end."""
    flags = ["--batch", "8"] + ["--iterations", "9"] * (script is not jrd)
    objective, now = script.objective, [0.0]

    def broken(name, seconds):
        calls = []

        def run(*args):
            loss, terms = objective(*args)
            calls.append(loss)
            now[0] += seconds
            if len(calls) == 2:
                terms["another"] = loss * torch.nan if name == "another" else loss
                return loss * (torch.inf if name == "loss" else 1), terms
            return loss, terms | {"another": loss}
        monkeypatch.setattr(script, "objective", run)
        with pytest.raises(common.NonFiniteLoss) as ended:
            train(script, *flags, "--again")
        values = r"loss -?inf, .*, another -?[\d.]+"
        if name == "another":
            values = r"loss -?[\d.]+, .*, another nan"
        assert re.fullmatch(f"the {name} of epoch 1/1 is not finite; the first such step is 2 "
                            rf"\({values}\); no epoch has ended yet", str(ended.value))
        return len(calls)
    last = 5 if script is jrd else 9
    assert (broken("loss", 0), broken("another", 0)) == (2, last)
    progress = common.Run.progress

    def on_a_gpu(run, loader):
        run.cfg.device = "cuda:0"
        return progress(run, loader)
    monkeypatch.setattr(common.Run, "progress", on_a_gpu)
    monkeypatch.setattr(runs.time, "perf_counter", lambda: now[0])
    assert (broken("loss", 0.4), broken("loss", 0.1)) == (3, last)


def test_a_loss_that_is_not_finite_later_leaves_a_checkpoint(train, monkeypatch):
    """An epoch here is one step."""
    objective = jrd.objective

    def broken(*args):
        loss, terms = objective(*args)
        losses.append(loss * torch.nan if losses else loss)
        return losses[-1], terms
    losses = []
    monkeypatch.setattr(jrd, "objective", broken)
    with pytest.raises(common.NonFiniteLoss, match=(
            r"^the loss of epoch 2/2 is not finite; the first such step is 1 \(loss nan, amsoftmax "
            r"[0-9.]+, jrs [0-9.]+\); \S*/jrd-glyphs-epochs2-s0/last.pt has epoch 1$")):
        train(jrd, "--epochs", "2")


def test_a_bar_moves_within_an_epoch(train, monkeypatch):
    """... on a terminal; of three steps that take longer than what a bar waits for."""
    fcntl, pty, termios = (pytest.importorskip(name) for name in ("fcntl", "pty", "termios"))
    objective, told = jrd.objective, b""

    def slow(*args):
        time.sleep(0.12)
        return objective(*args)
    monkeypatch.setattr(jrd, "objective", slow)
    ours, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 70, 0, 0))      # lines, columns
    os.set_blocking(ours, False)
    with open(terminal, "w", encoding="ascii") as stderr, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stderr)
        train(jrd, "--batch", "16")
        with contextlib.suppress(BlockingIOError):
            while True:
                told += os.read(ours, 4096)
    os.close(ours)
    assert re.findall(rb"epoch 1/1: .*? ([0-3])/3 \[", told)[:3] == [b"0", b"1", b"2"]


def test_what_must_be_known_to_read_the_table_stands_below_it(train, monkeypatch):
    """... of a finished run too: what best on test is not for, whether any epoch beats no training
    (by the held-out classes where there are some), how far 60 queries tell."""
    hint = "no epoch has a higher "
    error = "60 queries are few: R@1 has a standard error of "
    real = common.Run.end_epoch
    for before, after, flags, metric in (
            (0.5, 0.5, "", "R@1"), (0.5, 0.51, "", None), (1, 1, "", None),  # nothing to gain
            (0.5, 0.4, "--val 0.2", "val R@1"), (0.4, 0.5, "--val 0.2", None)):
        def changed(run, epoch, **row):
            name = "val R@1" if flags else "R@1"        # the other one says the contrary
            other = "R@1" if flags else "seen R@1"
            run.pretrained |= {name: before, other: after}
            real(run, epoch, **row | {name: after, other: before})
        monkeypatch.setattr(common.Run, "end_epoch", changed)
        for again in ("--again", "--eval-every=1"):
            _, told = train(jrd, *flags.split(), again)
            table = told.partition("\npretrained backbone ")[2]
            assert "\nbest on test is chosen by the test images: never report it\n" in table
            assert f"\n{error}up to 6.5 points\n" in table
            assert (f"\n{hint}{metric} than the pretrained backbone: " in table) == bool(metric)
            assert bool(metric) == (hint in table)
    assert "is finished" in told


@pytest.mark.parametrize("page, script, place", [
    ("README.md", mdr, 0), ("docs/running.md", mdr, 0), ("docs/running.md", jrd, 1)])
def test_what_the_pages_show_of_a_run_is_what_it_prints(page, script, place, train, monkeypatch):
    """Line by line, but for the figures and for notes between the lines."""
    monkeypatch.setitem(glyphs.GLYPHS, "test", (range(450, 454), 20))   # enough for ten parts
    def form(lines):
        return [re.sub(r"(?<![\w@])[-+]?\d[\d.:,]*", "0", " ".join(line.split())) for line in lines]
    shown = re.findall("```text\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.S)[place]
    shown, told = form(shown.splitlines()), form(train(script)[1].splitlines())
    assert [line for line in told if line in shown] == shown and len(shown) >= 3


@pytest.mark.parametrize("script, n", [(mdr, 4), (dml_da, 10), (dml_da, 0)])
def test_batches_are_those_of_a_look_through_all_labels_per_class(script, n):
    """The plain definition.  Whole classes fill a batch to its last image, fall short, or one is
    too large for it."""
    cfg = script.parse_args(f"--iterations 20 --batch 20 --images-per-class {n}".split())
    labels = torch.tensor([0] * 4 + [1] * 8 + [2] * 8 + [3] * 30 + [4] * 12)[torch.randperm(62)]
    generator, sizes = draw(common.random_seed(cfg.seed, 1)), set()
    for batch in script.batches(labels, cfg, 1):
        want = []
        for c in torch.randperm(5, generator=generator):
            images = (labels == c).nonzero()[:, 0]
            images = images[torch.randperm(len(images), generator=generator)][:n or 99]
            if n == 0 and want and len(want) + len(images) > 20:
                break                                       # a class that does not fit (U11)
            want += images.tolist()
            if len(want) >= 20:
                break
        assert batch == want[:20]
        sizes.add(len(batch))
    assert (len(sizes) > 1) == (n == 0)

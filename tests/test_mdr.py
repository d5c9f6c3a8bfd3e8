"""Every equation of the MDR paper against NumPy and SciPy, in value and gradient; the samplers."""
import inspect
import itertools
import json

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.spatial.distance import cdist, pdist

import jrd
import mdr
from conftest import agrees

LABELS = np.array([0, 0, 0, 1, 1, 2, 2, 3])
B = len(LABELS)


def points(d=3, seed=0, n=B):
    return np.random.RandomState(seed).standard_normal((n, d))


def cfg(**changes):
    flags = [f"--{k.replace('_', '-')}" + ("" if v is True else f"={v}")
             for k, v in changes.items()]
    return mdr.parse_args(flags)


def distances(e):
    return mdr.pairwise_distances(e)


TRIPLETS = [(i, j, k) for i, j in itertools.permutations(range(B), 2) if LABELS[i] == LABELS[j]
            for k in [[k for k in range(B) if LABELS[k] != LABELS[i]][(3 * i + j) % 4]]]
INDICES = torch.tensor(TRIPLETS).T


# ---------------------------------------------------------------------------- Eq. 1-5
def test_pairwise_distances():
    weights = np.random.RandomState(5).standard_normal((B, B))
    agrees(lambda e: (distances(e) * torch.tensor(weights)).sum(),
           lambda e: (cdist(e, e) * weights).sum(), points())


def momented(batches, momentum):
    """Eq. 2 over a few batches of embeddings, from the first batch's statistics (U6)."""
    mu = sigma = None
    for e in batches:
        d = np.array([np.linalg.norm(a - b) for a, b in itertools.permutations(e, 2)])
        mean, std = d.mean(), np.sqrt(((d - d.mean()) ** 2).sum() / (len(d) - 1))
        mu = mean if mu is None else momentum * mu + (1 - momentum) * mean
        sigma = std if sigma is None else momentum * sigma + (1 - momentum) * std
    return mu, sigma


@pytest.mark.parametrize("levels, momentum", [([-3, 0, 3], 0.9), ([-1, 0, 1], 0.5), ([0.3], 0.9),
                                              ([-3, -1, 0, 1, 3], 0.0)])
def test_l_mdr(levels, momentum):
    """Value, gradient to the embeddings (statistics constant) and to the levels, third batch."""
    history = [points(seed=s) * (1 + s) for s in (1, 2)]
    last = 0.7 * points(seed=3) + 0.1
    mu, sigma = momented([*history, last], momentum)

    def function(e, s):
        module = mdr.MDR(levels, momentum).double()
        for batch in history:
            module(distances(torch.tensor(batch)))
        del module.levels
        module.levels = s
        return module(distances(e))

    def oracle(e, s):
        total = 0.0
        for i, j in itertools.permutations(range(B), 2):
            d = (np.linalg.norm(e[i] - e[j]) - mu) / sigma
            total += min(abs(d - level) for level in s)
        return total / (B * (B - 1))

    agrees(function, oracle, last, np.array(levels, dtype=float) + 0.05, step=1e-7)


def test_statistics_are_kept_and_only_in_training():
    module = mdr.MDR()
    batches = [points(seed=s) for s in range(4)]
    for t in range(4):
        module(distances(torch.tensor(batches[t], dtype=torch.float32)))
        mu, sigma = momented(batches[:t + 1], 0.9)
        assert module.mu.item() == pytest.approx(mu) and module.sigma.item() == pytest.approx(sigma)
    module.eval()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    module(distances(torch.randn(B, 3)))
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    again = mdr.MDR()
    again.load_state_dict(before)
    e = torch.randn(B, 3)
    assert module(distances(e)) == again.eval()(distances(e))


def test_assignment_and_its_ties():
    """Eq. 4 by hand; half-way between two levels it is the first of them."""
    module = mdr.MDR([-3, 0, 3])
    values = torch.tensor([-9.0, -3, -1.6, -1.5, -1.4, 0, 1.4, 1.5, 1.6, 99])
    assert module.assign(values).tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert mdr.MDR([5.0]).assign(values).tolist() == [0] * 10


def test_fixed_levels_do_not_learn_and_learnable_ones_do():
    fixed, free = mdr.MDR(learnable=False), mdr.MDR()
    e = torch.randn(B, 3, requires_grad=True)
    (fixed(distances(e)) + free(distances(e))).backward()
    assert fixed.levels.grad is None and free.levels.grad.abs().sum() > 0
    assert free.levels.tolist() == fixed.levels.tolist() == [-3, 0, 3]


@pytest.mark.parametrize("scale", [1e-6, 0.5, 1e6])
def test_l_mdr_does_not_depend_on_the_scale_of_the_embeddings(scale):
    e = torch.tensor(points(), dtype=torch.float32)
    assert mdr.MDR()(distances(scale * e)).item() == pytest.approx(mdr.MDR()(distances(e)).item(),
                                                                    rel=1e-4)


def test_order_of_the_batch_does_not_matter():
    e = torch.tensor(points())
    order = torch.randperm(B)
    assert mdr.MDR().double()(distances(e)).item() == pytest.approx(
        mdr.MDR().double()(distances(e[order])).item())


# ---------------------------------------------------------------------------- the trick, Eq. 6
def test_normalization_trick_has_unit_mean_and_the_gradient_of_mu():
    weights = np.random.RandomState(6).standard_normal((B, B))

    def oracle(e):
        return (cdist(e, e) / pdist(e).mean() * weights).sum()
    agrees(lambda e: (mdr.unit_mean(distances(e)) * torch.tensor(weights)).sum(), oracle, points())
    e = torch.tensor(points())
    scaled = mdr.unit_mean(distances(e))
    assert mdr.off_diagonal(scaled).mean().item() == pytest.approx(1)
    assert torch.allclose(scaled, distances(e / pdist(e).mean()))           # distances of e/μ


def test_off_diagonal():
    matrix = torch.arange(16).view(4, 4)
    assert mdr.off_diagonal(matrix).tolist() == [matrix[i, j] for i in range(4) for j in range(4)
                                                 if i != j]


def test_triplet_loss():
    def oracle(e):
        return np.mean([max(0.0, np.linalg.norm(e[a] - e[p]) - np.linalg.norm(e[a] - e[n]) + 0.2)
                        for a, p, n in TRIPLETS])
    agrees(lambda e: mdr.triplet_loss(distances(e), *INDICES, margin=0.2), oracle, points())


def test_contrastive_loss():
    def oracle(e):
        return np.mean([np.linalg.norm(e[a] - e[p]) for a, p, _ in TRIPLETS]) + np.mean(
            [max(0.0, 2.0 - np.linalg.norm(e[a] - e[n])) for a, _, n in TRIPLETS])
    agrees(lambda e: mdr.contrastive_loss(distances(e), *INDICES, margin=2.0), oracle, points())


def test_margin_loss():
    """Value and gradient, β included."""
    def function(e, beta):
        module = mdr.MarginLoss()
        del module.beta
        module.beta = beta
        return module(distances(e), *INDICES, margin=0.2)

    def oracle(e, beta):
        return np.mean([max(0.0, np.linalg.norm(e[a] - e[p]) - beta + 0.2)
                        for a, p, _ in TRIPLETS]) \
            + np.mean([max(0.0, beta - np.linalg.norm(e[a] - e[n]) + 0.2) for a, _, n in TRIPLETS])
    agrees(function, oracle, points(), np.array(1.7))
    assert mdr.MarginLoss().beta.item() == pytest.approx(1.2)


# ---------------------------------------------------------------------------- sampling
def wu_law(e, anchor, labels):
    """Wu et al. 2017: 1/q(d) ∝ d^(2-D) (1 - d²/4)^((3-D)/2), d clipped at 0.5, 0 beyond 1.4."""
    x, D = e / np.linalg.norm(e, axis=1, keepdims=True), e.shape[1]
    law = np.zeros(len(e))
    for n in range(len(e)):
        if labels[n] != labels[anchor]:
            d = max(0.5, np.linalg.norm(x[anchor] - x[n]))
            law[n] = 0 if d > 1.4 else d ** (2.0 - D) * (1 - d ** 2 / 4) ** ((3.0 - D) / 2)
    negative = labels != labels[anchor]
    return law / law.sum() if law.sum() else negative / negative.sum()


def drawn_law(e, labels, times, seed=0):
    """How often each negative is drawn for each anchor."""
    generator, counts = torch.Generator().manual_seed(seed), np.zeros((len(e), len(e)))
    e, labels = torch.tensor(e), torch.tensor(labels)
    for _ in range(times):
        a, _, n = mdr.distance_weighted_negatives(e, labels, generator)
        np.add.at(counts, (a.numpy(), n.numpy()), 1)
    return counts / counts.sum(1, keepdims=True)


@pytest.mark.parametrize("D", [3, 8, 64])
def test_negatives_follow_the_law(D):
    labels = np.repeat(np.arange(6), 5)
    e = points(D, seed=D, n=30) * np.linspace(0.1, 10, 30)[:, None]     # lengths do not matter
    e[0] = e[5] * 3 + 0.01                                              # nearer than the clip
    counts = drawn_law(e, labels, times=1500)
    for anchor in range(30):
        law = wu_law(e, anchor, labels)
        assert 0.5 * np.abs(counts[anchor] - law).sum() < 0.05
        assert (counts[anchor][law == 0] == 0).all()


def test_where_no_negative_is_left_the_draw_is_uniform():
    """Opposite directions: every negative lies beyond 1.4."""
    e, labels = np.repeat([[1.0, 0.1], [-1.0, 0.1]], 4, 0), np.repeat([0, 1], 4)
    counts = drawn_law(e, labels, times=1000)
    for anchor in range(8):
        assert 0.5 * np.abs(counts[anchor] - wu_law(e, anchor, labels)).sum() < 0.05
        assert counts[anchor][labels == labels[anchor]].sum() == 0


def test_one_negative_for_every_ordered_anchor_positive_pair():
    a, p, n = mdr.distance_weighted_negatives(torch.tensor(points()), torch.tensor(LABELS), None)
    want = [(i, j) for i, j in itertools.permutations(range(B), 2) if LABELS[i] == LABELS[j]]
    assert sorted(zip(a.tolist(), p.tolist(), strict=True)) == sorted(want)
    assert (LABELS[n] != LABELS[a]).all()


def test_the_draw_is_seeded():
    e, labels = torch.tensor(points(n=40)), torch.arange(40) // 4

    def draw(seed):
        return mdr.distance_weighted_negatives(e, labels, torch.Generator().manual_seed(seed))[2]
    assert torch.equal(draw(1), draw(1)) and not torch.equal(draw(1), draw(2))


def test_batches_by_counting():
    """U2: m images a class, classes and images at random, small classes give what they have."""
    labels = torch.tensor([0] * 9 + [1] * 2 + [2] * 9 + [3] + [4] * 9 + [5] * 9)
    c = cfg(batch=12, images_per_class=4, iterations=600)
    found = mdr.batches(labels, c, epoch=0)
    assert len(found) == 600 and found == mdr.batches(labels, c, 0) != mdr.batches(labels, c, 1)
    with_class = np.zeros(6)
    for batch in found:
        assert len(set(batch)) == len(batch) == 12
        counts = np.bincount(labels[batch].numpy(), minlength=6)
        full = [n for y, n in enumerate(counts) if n]
        assert counts[1] <= 2 and counts[3] <= 1 and max(full) == 4
        with_class += counts > 0
    assert with_class.min() > 0.5 * with_class.max()
    image_counts = np.bincount(np.concatenate(found), minlength=len(labels))
    of_class_0 = image_counts[:9]
    assert of_class_0.min() > 0.7 * of_class_0.max()
    everything = mdr.batches(labels, cfg(batch=128, images_per_class=4, iterations=1), 0)[0]
    assert sorted(np.bincount(labels[everything].numpy()).tolist()) == [1, 2, 4, 4, 4, 4]


# ---------------------------------------------------------------------------- degenerate batches
LOSSES = {"triplet": mdr.triplet_loss, "contrastive": mdr.contrastive_loss,
          "margin": mdr.MarginLoss()}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("labels", [[0] * 6, list(range(6)), [0, 0, 1, 1, 2, 2], [3], [0, 1]])
@pytest.mark.parametrize("embeddings", ["random", "equal"])
def test_degenerate_batches_are_finite(loss, labels, embeddings):
    """One class, one example a class, B = 1 and 2, all embeddings equal (σ = 0)."""
    e = torch.randn(len(labels), 4) if embeddings == "random" else torch.full((len(labels), 4), 0.3)
    e.requires_grad_()
    scaled = mdr.unit_mean(distances(e))
    chosen = mdr.distance_weighted_negatives(e, torch.tensor(labels), torch.Generator())
    reg = mdr.MDR()(scaled)
    (LOSSES[loss](scaled, *chosen, margin=0.2) + reg).backward()
    assert torch.isfinite(e.grad).all() and torch.isfinite(reg)
    if embeddings == "equal":
        assert reg == 0


def test_collapse_after_healthy_batches_is_far_below_the_mean():
    """With momented statistics a collapsed batch is (0 - μ*)/σ*: drawn to the lowest level."""
    module = mdr.MDR()
    for s in range(5):
        module(distances(torch.tensor(points(seed=s), dtype=torch.float32)))
    loss = module(torch.zeros(B, B))
    assert torch.isfinite(loss) and module.assign(module.normalize(torch.zeros(2, 2)))[0, 1] == 0


def test_shares_count_each_ordered_pair_once():
    module, e = mdr.MDR().double(), torch.tensor(points())
    module(distances(e))
    counts = module.level_counts(distances(e), torch.tensor(LABELS))
    want = np.zeros((2, 3))
    for i, j in itertools.permutations(range(B), 2):
        d = (np.linalg.norm(points()[i] - points()[j]) - module.mu.item()) / module.sigma.item()
        want[int(LABELS[i] != LABELS[j]), np.abs(d - np.array([-3, 0, 3])).argmin()] += 1
    assert counts.tolist() == want.tolist() and want[:, 1].min() > 0


def test_a_step_reads_nothing_from_the_device():
    """On the meta device there are shapes and no values: whoever waits for one fails there."""
    e = torch.randn(B, 4, device="meta", requires_grad=True)
    labels, module = torch.tensor(LABELS), mdr.MDR().to("meta")
    scaled = mdr.unit_mean(distances(e))
    chosen = mdr.distance_weighted_negatives(e, labels, None)
    for loss in LOSSES.values():
        loss = loss.to("meta") if isinstance(loss, torch.nn.Module) else loss
        (loss(scaled, *chosen, margin=0.2) + module(scaled)).backward(retain_graph=True)
    module.level_counts(scaled, labels.to("meta"))
    with pytest.raises(RuntimeError, match="meta"):
        e.sum().item()


# ---------------------------------------------------------------------------- network, runs
def test_bn_inception_is_the_one_of_jrd():
    assert inspect.getsource(mdr.BNInception) == inspect.getsource(jrd.BNInception)
    assert mdr.INCEPTION == jrd.INCEPTION


@pytest.mark.parametrize("backbone, width", [("small", 128), ("resnet18", 512), ("resnet50", 2048),
                                             ("bn_inception", 1024)])
def test_backbones(backbone, width):
    side = 32 if backbone == "small" else 64
    network = mdr.Network(cfg(backbone=backbone, dim=7), classes=3).train()
    images = torch.randint(0, 256, (2, 3, side, side), dtype=torch.uint8)
    statistics = {k: v.clone() for k, v in network.state_dict().items() if "running" in k}
    assert network.pool(images).shape == (2, width) and network(images).shape == (2, 7)
    network(images).square().sum().backward()
    assert all(torch.equal(v, network.state_dict()[k]) for k, v in statistics.items())    # U4
    affine = [m.weight.grad for m in network.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert all(g is not None for g in affine) and any(g.abs().sum() > 0 for g in affine)
    assert not any(k.startswith(("backbone.fc", "backbone.last_linear")) for k in
                   network.state_dict())


def test_l2norm_in_training_and_at_inference():
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)

    def norms(**flags):
        network = mdr.Network(cfg(**flags), classes=3).eval()
        with torch.no_grad():
            return network(images).norm(dim=1), network.embed(images).norm(dim=1)
    ones = torch.ones(4)
    assert [torch.allclose(n, ones) for n in norms()] == [False, False]
    assert [torch.allclose(n, ones) for n in norms(l2norm=True)] == [True, True]
    assert [torch.allclose(n, ones) for n in norms(eval_l2norm=True)] == [False, True]


def test_presets_are_the_papers():
    cub, cars, sop, inshop = (cfg(dataset=d) for d in ("cub", "cars", "sop", "inshop"))
    for c in (cub, cars, sop, inshop):
        assert (c.levels, c.momentum, c.margin, c.dim) == ([-3, 0, 3], 0.9, 0.2, 512)
        assert (c.backbone, c.epochs, c.iterations, c.nu) == ("bn_inception", 100, 100, 0.01)
    assert [(c.lambda_, c.lr, c.batch, c.images_per_class) for c in (cub, cars, sop, inshop)] == [
        (0.6, 5e-5, 128, 4), (0.2, 5e-5, 128, 4), (0.1, 1e-4, 256, 3), (0.1, 1e-4, 256, 3)]
    assert [c.ks for c in (cub, sop, inshop)] == [[1, 2, 4, 8], [1, 10, 100, 1000], [1, 10, 20, 40]]
    assert cfg(loss="contrastive").margin == 1 and cfg(loss="contrastive", margin=0.5).margin == 0.5


def test_transforms_are_u3_and_u13():
    image = Image.fromarray(np.random.RandomState(0).randint(0, 256, (300, 400, 3), np.uint8))
    whole = np.asarray(image.resize((256, 256), Image.LANCZOS))
    for size, seen in ((224, whole[16:240, 16:240]), (256, whole)):
        prefix, augment, test = mdr.transforms(cfg(dataset="cub", size=size))
        np.testing.assert_array_equal(np.asarray(prefix(image)), whole)
        np.testing.assert_array_equal(np.asarray(test(image)), seen)
        crop, mirror = augment.transforms
        assert (crop.size, crop.scale, crop.ratio) == ((size, size), (0.16, 1), (0.75, 1.33))
        assert crop.interpolation.value == "bicubic" and crop.antialias and mirror.p == 0.5


@pytest.fixture
def short(monkeypatch, tmp_path):
    """A training of a second: two batches an epoch, 20 test images."""
    from support import glyphs
    monkeypatch.setitem(glyphs.GLYPHS, "test", (range(450, 460), 2))

    def train(*flags, out="runs"):
        return mdr.train(mdr.parse_args([*flags, "--iterations", "2",
                                          "--out", str(tmp_path / out)]))
    train.out = tmp_path
    return train


@pytest.mark.parametrize("flags", ["--loss contrastive", "--loss margin --l2norm",
                                   "--levels -2 0 2 5 --fixed-levels", "--lambda 0 --eval-l2norm"])
def test_every_choice_trains(flags, short):
    found = short(*flags.split(), "--epochs", "1")
    assert 0 <= found["last epoch"]["R@1"] <= 1


def test_what_the_figures_need_is_recorded(short):
    found = short("--epochs", "2")
    assert 0 <= found["last epoch"]["R@1, l2-normalized"] <= 1
    (log,) = (short.out / "runs").glob("*/log.jsonl")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    for row in rows:
        assert {"R@1", "seen R@1", "norm mean", "norm cv", "levels", "mu*", "sigma*"} <= set(row)
        for sign in ("positive", "negative"):
            assert sum(row[f"{sign} pairs by level"]) == pytest.approx(1)
        assert row["mu*"] == pytest.approx(1)                           # U8
    assert rows[0]["levels"] != rows[1]["levels"] and rows[0]["sigma*"] != rows[1]["sigma*"]


def test_levels_statistics_and_beta_survive_a_stop(short, monkeypatch):
    """Interrupted after epoch 1 of 3 and continued: the bits of an undisturbed run."""
    import common
    flags = ["--epochs", "3", "--loss", "margin"]
    short(*flags, out="whole")
    end_epoch = common.Run.end_epoch

    def stop(run, **row):
        end_epoch(run, **row)
        raise KeyboardInterrupt
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(common.Run, "end_epoch", stop)
        short(*flags, out="stopped")
    short(*flags, out="stopped")
    whole, stopped = (torch.load(next((short.out / out).glob("*/last.pt")), weights_only=True)
                      for out in ("whole", "stopped"))
    for part in ("network", "mdr", "margin_loss"):
        for name, value in whole[part].items():
            assert torch.equal(value, stopped[part][name]), name
    assert whole["mdr"]["levels"].tolist() != [-3, 0, 3] and whole["mdr"]["batches"] == 6
    assert whole["margin_loss"]["beta"].item() != pytest.approx(1.2, abs=1e-6)


def test_the_step_is_eq_7(spy):
    """The loss is the Triplet loss + λ L_MDR + ν Σ s² (U5); the levels are in Adam's one group."""
    flags = ["--epochs", "1", "--iterations", "1", "--lambda", "0.7", "--nu", "0.3"]
    (row,), ((group,),) = spy(mdr, *flags, "--levels", "-2", "1")
    assert row["triplet"] > 1e-3 and row["mdr"] > 1e-3
    assert row["loss"] == pytest.approx(row["triplet"] + 0.7 * row["mdr"] + 0.3 * 5, rel=1e-6)
    assert (group["lr"], group["weight_decay"]) == (1e-3, 1e-5)
    assert row["levels"] != [-2, 1] and row["mu*"] == pytest.approx(1)


def test_rates_drop_as_u1_says(spy):
    """× 0.2 after 40, 60 and 80% of the epochs."""
    _, told = spy(mdr, "--epochs", "5", "--iterations", "1")
    np.testing.assert_allclose([groups[0]["lr"] for groups in told],
                               1e-3 * np.array([1, 1, 0.2, 0.04, 0.008]))


def test_without_lambda_the_loss_is_the_triplet_loss(spy):
    (row,), _ = spy(mdr, "--epochs", "1", "--iterations", "1", "--lambda", "0")
    assert row["loss"] == row["triplet"] and row["levels"] == [-3, 0, 3]

"""Every equation of the DML-DA paper against NumPy and SciPy, in value and gradient; samplers."""
import itertools
import json

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.special import softmax
from scipy.stats import entropy

import dml_da
from conftest import agrees

LABELS = np.array([0, 0, 0, 2, 2, 5, 5, 7])             # sizes 3, 2, 2, 1, with gaps
B = len(LABELS)
PAIRS = list(itertools.combinations(range(B), 2))
POSITIVE = [(a, p) for a, p in itertools.permutations(range(B), 2) if LABELS[a] == LABELS[p]]
LONG = torch.tensor(LABELS)


def points(d=3, seed=0, n=B, scale=0.6):
    return scale * np.random.RandomState(seed).standard_normal((n, d))


def on_sphere(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def square(x, i, j):
    return ((x[i] - x[j]) ** 2).sum()


def cfg(*flags):
    return dml_da.parse_args(list(flags))


# ---------------------------------------------------------------------------- Eq. 1-4
def test_squared_distances():
    weights = np.random.RandomState(5).standard_normal((B, B))
    agrees(lambda f: (dml_da.squared_distances(f) * torch.tensor(weights)).sum(),
           lambda f: sum(weights[i, j] * square(f, i, j) for i in range(B) for j in range(B)),
           points())


@pytest.mark.parametrize("margin", [1.0, 0.3])
def test_contrastive_loss(margin):
    def oracle(f):
        return sum(square(f, i, j) if LABELS[i] == LABELS[j] else max(0, margin - square(f, i, j))
                   for i, j in PAIRS) / B
    active = sum(square(points(), i, j) < margin for i, j in PAIRS if LABELS[i] != LABELS[j])
    assert 0 < active < len(PAIRS) - 5
    agrees(lambda f: dml_da.contrastive_loss(f, LONG, margin), oracle, points())


def chosen_negative(x, a, p, margin):
    """U6 by hand: the nearest in (D_ap, D_ap + margin), else the nearest of all."""
    negatives = [n for n in range(len(x)) if LABELS[n] != LABELS[a]]
    semi = [n for n in negatives if square(x, a, p) < square(x, a, n) < square(x, a, p) + margin]
    return min(semi or negatives, key=lambda n: square(x, a, n)), bool(semi)


@pytest.mark.parametrize("margin", [1.0, 0.2])
def test_triplet_loss(margin):
    x = points(seed=1)
    picked = [chosen_negative(x, a, p, margin) for a, p in POSITIVE]
    assert {True, False} == {semi for _, semi in picked} or margin == 1.0

    def oracle(f):                                       # the choice is constant, as an index is
        return sum(max(0, margin + square(f, a, p) - square(f, a, n))
                   for (a, p), (n, _) in zip(POSITIVE, picked)) / B
    agrees(lambda f: dml_da.triplet_loss(f, LONG, margin), oracle, x)


@pytest.mark.parametrize("negatives, want", [
    ([0.5, 1.5, 1.2], 1 + 1 - 1.44),      # D_ap = 1: 1.2² lies in (1, 2), 1.5² beyond, 0.5² is hard
    ([0.5, 0.8, 3.0], 1 + 1 - 0.25),      # none in (1, 2): the hardest
    ([1.5, 2.0, 3.0], 0.0)])              # none violates
def test_semi_hard_choice_by_hand(negatives, want):
    """On a line: anchor 0, positive 1, negatives to the left; the positive as anchor costs nothing
    new to the sum only because it is counted apart here."""
    f = torch.tensor([[0.0], [1.0], *[[-x] for x in negatives]])
    labels = torch.tensor([0, 0, 1, 2, 3])
    other = max(0.0, 1 + 1 - min(((1 + x) ** 2 for x in negatives if 1 < (1 + x) ** 2 < 2),
                                 default=min((1 + x) ** 2 for x in negatives)))
    assert dml_da.triplet_loss(f, labels, 1.0).item() == pytest.approx((want + other) / 5)


def test_n_pair_loss():
    """The drawn tuplets are recovered by brute force over a loss that names them."""
    generator = torch.Generator().manual_seed(3)
    drawn = tuplets(generator)

    def oracle(f):
        return sum(np.log(1 + sum(np.exp(f[a] @ f[n] - f[a] @ f[p]) for n in negatives))
                   for (a, p), negatives in zip(POSITIVE, drawn)) / B
    agrees(lambda f: dml_da.n_pair_loss(f, LONG, torch.Generator().manual_seed(3)), oracle,
           points(seed=2))


def tuplets(generator, labels=LABELS):
    """Which negatives n_pair_loss draws, read off from the gradient of each tuplet's log Σ exp to
    its anchor, with image i embedded as the unit vector e_i."""
    n, seed_state = len(labels), generator.get_state()
    found = []
    for a, p in [(a, p) for a, p in itertools.permutations(range(n), 2) if labels[a] == labels[p]]:
        generator.set_state(seed_state)
        left = torch.eye(n, dtype=torch.float64, requires_grad=True)
        captured = {}

        def softplus(x):
            captured["x"] = x
            return x * 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dml_da.F, "softplus", softplus)
            dml_da.n_pair_loss(left, torch.tensor(labels), generator)
        row = len(found)
        (slope,) = torch.autograd.grad(captured["x"][row], left)
        # d/df_a of log Σ exp(<f_a, f_n> - <f_a, f_p>) is Σ softmax f_n - f_p: positive at negatives
        found.append([i for i in range(n) if slope[a, i] > 1e-6])
    return found


def test_n_pair_draws_one_of_every_other_class():
    seen = {}
    for seed in range(60):
        for (a, _), negatives in zip(POSITIVE, tuplets(torch.Generator().manual_seed(seed))):
            assert sorted(LABELS[negatives]) == sorted(set(LABELS) - {LABELS[a]})
            for n in negatives:
                seen[a, n] = seen.get((a, n), 0) + 1
    assert set(seen) == {(a, n) for a, _ in POSITIVE for n in range(B) if LABELS[n] != LABELS[a]}
    for a in (0, 3):                                     # classes 5 has two images: half and half
        assert 0.35 < seen[a, 5] / (seen[a, 5] + seen[a, 6]) < 0.65


# ---------------------------------------------------------------------------- Eq. 5-8
def density(f, c):
    rows = [f[i] for i in range(len(f)) if LABELS[i] == c]
    mu = sum(rows) / len(rows)
    return sum(((r - mu) ** 2).sum() for r in rows) / len(rows)


def test_class_density():
    classes, D_avg = dml_da.class_density(torch.tensor(points()), LONG)
    assert classes.tolist() == [0, 2, 5, 7] and D_avg[3] == 0
    np.testing.assert_allclose(D_avg, [density(points(), c) for c in (0, 2, 5, 7)])
    weights = [0.25, -1.0, 2.0, 5.0]
    agrees(lambda f: (dml_da.class_density(f, LONG)[1] * torch.tensor(weights).double()).sum(),
           lambda f: sum(w * density(f, c) for w, c in zip(weights, (0, 2, 5, 7))), points())


def test_density_of_as_many_classes_as_sop_has():
    """D⁰ (U3) over 60,000 images of 12,000 classes: a dense (C, n) matrix would be 5.8 GB."""
    draw = np.random.RandomState(0)
    f, labels = draw.standard_normal((60_000, 2)), draw.permutation(60_000) % 12_000
    classes, D_avg = dml_da.class_density(torch.tensor(f), torch.tensor(labels))
    members = f[labels.argsort(kind="stable")].reshape(12_000, 5, 2)
    assert classes.tolist() == list(range(12_000))
    np.testing.assert_allclose(
        D_avg, ((members - members.mean(1, keepdims=True)) ** 2).sum(2).mean(1))


def test_density_on_the_sphere_is_one_minus_the_squared_norm_of_the_centroid():
    f = on_sphere(points(seed=4))
    _, D_avg = dml_da.class_density(torch.tensor(f), LONG)
    want = [1 - (f[LABELS == c].mean(0) ** 2).sum() for c in (0, 2, 5, 7)]
    np.testing.assert_allclose(D_avg, want, atol=1e-12)


@pytest.mark.parametrize("D0, eta", [(None, 0.5), ([0.5, 1.0, 1.5], 0.5), ([0.2, 3.0, 1.0], 1.3)])
def test_density_regularizer(D0, eta):
    def oracle(D, alpha):
        C = len(D)
        loss = sum((D[c] - alpha[c]) ** 2 for c in range(C)) / C - sum(alpha) / C
        if D0 is not None:
            loss += sum((D0[j] ** eta * alpha[i] - D0[i] ** eta * alpha[j]) ** 2
                        for i in range(C) for j in range(C)) / C ** 2
        return loss
    agrees(lambda D, alpha: dml_da.density_regularizer(
        D, alpha, None if D0 is None else torch.tensor(D0, dtype=torch.float64), eta), oracle,
        np.array([0.1, 0.6, 0.3]), np.array([0.9, 0.4, 0.7]))


def test_correlation_term_is_zero_exactly_on_the_constraint():
    """Eq. 7: α_ci/α_cj = (D⁰_ci/D⁰_cj)^η, at any common factor, and nowhere else."""
    D0 = torch.tensor([0.5, 1.0, 2.5], dtype=torch.float64)
    D_avg, plain = torch.rand(3).double(), dml_da.density_regularizer

    def term(alpha):
        return (plain(D_avg, alpha, D0, 0.5) - plain(D_avg, alpha)).item()
    for factor in (0.1, 1.0, -2.0):
        assert term(factor * D0 ** 0.5) == pytest.approx(0, abs=1e-12)
    for c in range(3):
        off = D0 ** 0.5
        off[c] *= 1.1
        assert term(off) > 1e-4


def test_pairwise_sum_and_the_balance_of_u1():
    """Σ_{i<j} D = n² D_avg; with 10 × 10 the pull of Eq. 2 is 10 mean D_avg, and at converged α
    λ = 10 pushes exactly as hard."""
    x = torch.tensor(on_sphere(points(d=8, n=100, seed=6)), requires_grad=True)
    labels = torch.arange(10).repeat_interleave(10)
    D, (_, D_avg) = dml_da.squared_distances(x), dml_da.class_density(x, labels)
    for c in range(10):
        inside = D[labels == c][:, labels == c]
        assert inside.sum().item() / 2 == pytest.approx(100 * D_avg[c].item())
    pull = dml_da.contrastive_loss(x, labels, margin=0.0)
    assert pull.item() == pytest.approx(10 * D_avg.mean().item())
    alpha = (D_avg + 0.5).detach()
    push = 10 * dml_da.density_regularizer(D_avg, alpha)
    both = torch.autograd.grad(pull + push, x, retain_graph=True)[0]
    alone = torch.autograd.grad(pull, x)[0]
    assert alone.abs().max() > 1e-3 and both.abs().max() < 1e-12


def test_at_the_optimum_of_alpha_the_push_is_constant():
    D_avg = torch.tensor([0.1, 0.4, 0.9], dtype=torch.float64, requires_grad=True)
    alpha = (D_avg.detach() + 0.5).requires_grad_()
    g_D, g_alpha = torch.autograd.grad(dml_da.density_regularizer(D_avg, alpha), (D_avg, alpha))
    assert g_alpha.abs().max() < 1e-12                  # it is the optimum
    np.testing.assert_allclose(3 * g_D, [-1, -1, -1])   # C ∂L/∂D_avg


def test_a_fixed_alpha_holds_a_class_at_alpha_minus_five_over_lambda():
    """The docstring's sentence: 10 D pulls, λ (D - α)² pushes, both means over classes."""
    alpha, lam = 0.9, 25.0
    D = torch.tensor([alpha - 5 / lam], requires_grad=True)
    total = 10 * D.mean() + lam * dml_da.density_regularizer(D, torch.tensor([alpha]))
    assert torch.autograd.grad(total, D)[0].item() == pytest.approx(0, abs=1e-5)


# ---------------------------------------------------------------------------- α_c
def test_adam_of_the_targets_is_torchs_and_absent_classes_stay_bit_for_bit():
    targets, draw = dml_da.TargetDensities(4).double(), np.random.RandomState(0)
    peers = [torch.nn.Parameter(torch.tensor(0.5, dtype=torch.float64)) for _ in range(4)]
    optimizers = [torch.optim.Adam([p], lr=0.01) for p in peers]
    for step in range(12):
        present = draw.permutation(4)[:2] if step > 1 else np.array([0, 1])
        before = {k: v.clone() for k, v in targets.state_dict().items()}
        gradient = torch.tensor(draw.standard_normal(2))
        targets.of(torch.tensor(present)).grad = gradient
        targets.step(lr=0.01)
        for c, g in zip(present, gradient):
            peers[c].grad = g
            optimizers[c].step()
        for name, old in before.items():
            for c in set(range(4)) - set(present):
                assert torch.equal(targets.state_dict()[name][c], old[c]), name
    np.testing.assert_allclose(targets.alpha, [p.item() for p in peers], rtol=1e-12)
    assert (targets.alpha - 0.5).abs().min() > 1e-3


def test_original_densities_are_those_of_the_features_over_their_mean():
    targets = dml_da.TargetDensities(4).double()
    targets.measure(torch.tensor(points()), LONG)
    want = np.array([density(points(), c) for c in (0, 2, 5, 7)])
    np.testing.assert_allclose(targets.D0, want / want.mean())
    assert targets.alpha.tolist() == [0.5] * 4


# ---------------------------------------------------------------------------- EN, GOR
def test_entropy_regularizer():
    agrees(dml_da.entropy_regularizer,
           lambda f: -np.mean([entropy(softmax(row)) for row in f]), points())
    uniform = dml_da.entropy_regularizer(torch.zeros(2, 16))
    assert uniform.item() == pytest.approx(-np.log(16))             # its minimum


@pytest.mark.parametrize("d", [3, 16])
def test_global_orthogonal_regularizer(d):
    def oracle(f):
        s = [f[i] @ f[j] for i, j in PAIRS if LABELS[i] != LABELS[j]]
        return np.mean(s) ** 2 + max(0, np.mean(np.square(s)) - 1 / d)
    agrees(lambda f: dml_da.global_orthogonal_regularizer(f, LONG), oracle, points(d, seed=1) + 0.4)


def test_gor_second_moment_counts_only_above_one_over_d():
    s = 0.1                                             # one pair, M2 = 0.01 < 1/2
    f = torch.tensor([[1.0, 0.0], [s, (1 - s * s) ** 0.5]])
    found = dml_da.global_orthogonal_regularizer(f, torch.tensor([0, 1]))
    assert found.item() == pytest.approx(s * s)


# ---------------------------------------------------------------------------- samplers
def test_batches_of_ten_by_ten_by_counting():
    labels = torch.arange(15).repeat_interleave(12)
    c = cfg("--iterations", "300")
    found = dml_da.batches(labels, c, epoch=0)
    assert len(found) == 300
    assert found == dml_da.batches(labels, c, 0) != dml_da.batches(labels, c, 1)
    for batch in found:
        assert len(set(batch)) == 100
        assert sorted(np.bincount(labels[batch].numpy(), minlength=15)) == [0] * 5 + [10] * 10
    of_class = np.bincount(labels[np.concatenate(found)].numpy())
    assert of_class.min() > 0.85 * of_class.max()
    images = np.bincount(np.concatenate(found), minlength=180)
    assert images.min() > 0.7 * images.max()


def test_whole_classes_until_the_batch_is_full():
    sizes = np.tile([2, 5, 9], 10)
    labels = torch.tensor(np.repeat(np.arange(30), sizes))
    c = cfg("--images-per-class", "0", "--batch", "40", "--iterations", "200")
    found = dml_da.batches(labels, c, epoch=0)
    for batch in found:
        counts = np.bincount(labels[batch].numpy(), minlength=30)
        assert ((counts == 0) | (counts == sizes)).all()            # U11: none is cut
        assert 40 - max(sizes) < len(batch) == len(set(batch)) <= 40
    assert 40 in map(len, found) and np.bincount(labels[sum(found, [])]).min() > 0
    small = cfg("--images-per-class", "0", "--batch", "4", "--iterations", "50")
    assert max(map(len, dml_da.batches(labels, small, 0))) == 4     # a class larger than the batch
    large = cfg("--images-per-class", "0", "--batch", "999", "--iterations", "1")
    assert len(dml_da.batches(labels, large, 0)[0]) == sizes.sum()


# ---------------------------------------------------------------------------- degenerate batches
@pytest.mark.parametrize("labels", [[0] * 6, list(range(6)), [0, 0, 1, 1, 2, 2], [3], [0, 1]])
@pytest.mark.parametrize("kind", ["random", "equal"])
def test_degenerate_batches_are_finite(labels, kind):
    f = torch.randn(len(labels), 4) if kind == "random" else torch.full((len(labels), 4), 0.5)
    f, labels = torch.nn.functional.normalize(f).requires_grad_(), torch.tensor(labels)
    _, D_avg = dml_da.class_density(f, labels)
    parts = [dml_da.contrastive_loss(f, labels, 1.0), dml_da.triplet_loss(f, labels, 1.0),
             dml_da.n_pair_loss(f, labels, torch.Generator()), dml_da.entropy_regularizer(f),
             dml_da.density_regularizer(D_avg, torch.full_like(D_avg, 0.5), D_avg.detach()),
             dml_da.global_orthogonal_regularizer(f, labels)]
    sum(parts).backward()
    assert all(torch.isfinite(p) for p in parts) and torch.isfinite(f.grad).all()
    if len(labels.unique()) == 1:
        assert parts[1] == parts[2] == parts[5] == 0


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_embeddings_of_any_scale_are_finite(scale):
    """The network's are of unit length; somebody else's may not be."""
    f = (scale * torch.tensor(points(), dtype=torch.float32)).requires_grad_()
    _, D_avg = dml_da.class_density(f, LONG)
    parts = [dml_da.contrastive_loss(f, LONG, 1.0), dml_da.triplet_loss(f, LONG, 1.0),
             dml_da.n_pair_loss(f, LONG, torch.Generator()), dml_da.entropy_regularizer(f),
             dml_da.density_regularizer(D_avg, torch.full_like(D_avg, 0.5)),
             dml_da.global_orthogonal_regularizer(f, LONG)]
    for part in parts:
        (slope,) = torch.autograd.grad(part, f, retain_graph=True)
        assert torch.isfinite(part) and torch.isfinite(slope).all()


@pytest.mark.parametrize("function", [
    lambda f, y: dml_da.contrastive_loss(f, y, 1.0), lambda f, y: dml_da.triplet_loss(f, y, 1.0),
    lambda f, y: dml_da.class_density(f, y)[1].sum(), dml_da.global_orthogonal_regularizer])
def test_order_of_the_batch_does_not_matter(function):
    f, order = torch.tensor(points()), torch.randperm(B, generator=torch.Generator().manual_seed(0))
    assert function(f[order], LONG[order]).item() == pytest.approx(function(f, LONG).item())


def test_a_step_reads_nothing_from_the_device():
    """On the meta device there are shapes and no values: whoever waits for one fails there."""
    f = torch.randn(B, 4, device="meta", requires_grad=True)
    targets = dml_da.TargetDensities(9).to("meta")
    classes, D_avg = dml_da.class_density(f, LONG)
    classes = classes.to("meta")
    alpha = targets.of(classes)
    (dml_da.contrastive_loss(f, LONG, 1.0) + dml_da.triplet_loss(f, LONG, 1.0) +
     dml_da.n_pair_loss(f, LONG, torch.Generator()) + dml_da.entropy_regularizer(f) +
     dml_da.global_orthogonal_regularizer(f, LONG) +
     dml_da.density_regularizer(D_avg, alpha, targets.D0[classes])).backward()
    targets.step(1e-3)
    with pytest.raises(RuntimeError, match="meta"):
        f.sum().item()


# ---------------------------------------------------------------------------- network, runs
@pytest.mark.parametrize("backbone, width, side", [("small", 128, 32), ("googlenet", 1024, 64)])
def test_backbones(backbone, width, side):
    network = dml_da.Network(cfg("--backbone", backbone, "--dim", "7"), classes=3).train()
    images = torch.randint(0, 256, (2, 3, side, side), dtype=torch.uint8)
    statistics = {k: v.clone() for k, v in network.state_dict().items() if "running" in k}
    assert network.pool(images).shape == (2, width)
    f = network(images)
    assert f.shape == (2, 7) and torch.allclose(f.norm(dim=1), torch.ones(2))
    assert torch.equal(f, network(images)), "no dropout"
    f[:, 0].sum().backward()
    assert all(torch.equal(v, network.state_dict()[k]) for k, v in statistics.items())    # U8
    assert not any(k.startswith(("backbone.fc", "backbone.aux")) for k in network.state_dict())


def test_googlenet_sees_what_its_weights_were_trained_on():
    """torchvision's GoogLeNet came from TensorFlow: its weights expect (x - 0.5)/0.5."""
    network = dml_da.Network(cfg("--backbone", "googlenet"), classes=3)
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    seen = []
    network.backbone.conv1.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    network.pool(images)
    torch.testing.assert_close(seen[0], images.float() / 127.5 - 1, atol=2e-3, rtol=0)


def test_presets_are_the_papers():
    cub, cars, sop = (cfg("--dataset", d) for d in ("cub", "cars", "sop"))
    for c in (cub, cars, sop):
        assert (c.lambda_, c.eta, c.margin, c.dim, c.backbone, c.batch,
                c.epochs * c.iterations) == (10, 0.5, 1, 128, "googlenet", 100, 30_000)
    assert [(c.lr, c.images_per_class) for c in (cub, cars, sop)] == [(1e-5, 10), (5e-4, 10), (3e-5, 0)]
    assert cub.ks == cars.ks == [1, 2, 4, 8, 16, 32, 64, 128] and sop.ks == [1, 10, 100, 1000]


def test_transforms_are_u7():
    image = Image.fromarray(np.random.RandomState(0).randint(0, 256, (300, 400, 3), np.uint8))
    whole = np.asarray(image.resize((256, 256), Image.BILINEAR))
    prefix, augment, test = dml_da.transforms(cfg("--dataset", "cub"))
    np.testing.assert_array_equal(np.asarray(prefix(image)), whole)
    np.testing.assert_array_equal(np.asarray(test(image)), whole[16:240, 16:240])
    crop, mirror = augment.transforms
    assert crop.size == (224, 224) and type(crop).__name__ == "RandomCrop" and mirror.p == 0.5


@pytest.mark.parametrize("flags", ["--loss npair --margin 1", "--reg-weight 1",
                                   "--regularizer da- --eta 1", "--regularizer gor --lambda 1",
                                   "--lambda 0 --regularizer da-"])
def test_a_flag_that_would_do_nothing_is_refused(flags, capsys):
    with pytest.raises(SystemExit) as stop:
        cfg(*flags.split())
    assert stop.value.code == 2 and "does nothing with" in capsys.readouterr().err


@pytest.fixture
def short(monkeypatch, tmp_path):
    """A training of a second: two batches an epoch, 20 test images."""
    from support import glyphs
    monkeypatch.setitem(glyphs.GLYPHS, "test", (range(450, 460), 2))

    def train(*flags, out="runs"):
        return dml_da.train(dml_da.parse_args([*flags, "--iterations", "2", "--out",
                                                str(tmp_path / out)]))
    train.out = tmp_path
    return train


@pytest.mark.parametrize("flags", ["--loss triplet --regularizer da-", "--loss npair --eta 1",
                                   "--regularizer en", "--regularizer gor --reg-weight 2 --images-per-class 0",
                                   "--lambda 0 --head-lr-mult 10"])
def test_every_choice_trains(flags, short):
    found = short(*flags.split(), "--epochs", "1")
    assert 0 <= found["last epoch"]["R@1"] <= 1


def test_what_the_figures_need_is_recorded_and_survives_a_stop(short, monkeypatch):
    """Interrupted after epoch 1 of 3 and continued: the bits of an undisturbed run."""
    import common
    flags = ["--epochs", "3", "--loss", "npair"]
    short(*flags, out="whole")
    log = next((short.out / "whole").glob("*/log.jsonl"))
    for row in map(json.loads, log.read_text().splitlines()):
        assert {"R@1", "seen R@1", "NMI"} <= set(row)
        for name in ("D_avg", "alpha"):
            assert row[f"{name} min"] < row[f"{name} mean"] < row[f"{name} max"]
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
    for part in ("network", "targets"):
        for name, value in whole[part].items():
            assert torch.equal(value, stopped[part][name]), name
    assert whole["targets"]["D0"].std() > 0.01 and whole["targets"]["alpha"].std() > 0


def test_the_step_is_eq_9(spy):
    """The loss is L_pair + λ L_DA; α of the ten classes seen moves up by the network's rate."""
    flags = ["--epochs", "1", "--iterations", "1", "--lambda", "7", "--lr", "1e-3"]
    (row,), ((backbone, head),) = spy(dml_da, *flags, "--head-lr-mult", "3")
    assert row["contrastive"] > 1e-3 and abs(row["da"]) > 1e-3
    assert row["loss"] == pytest.approx(row["contrastive"] + 7 * row["da"], rel=1e-6)
    assert (backbone["lr"], head["lr"]) == (1e-3, pytest.approx(3e-3))                      # U5
    assert (row["alpha min"], row["alpha max"]) == (0.5, pytest.approx(0.501, abs=1e-6))    # U4
    assert row["alpha mean"] == pytest.approx(0.5 + 10 / 50 * 0.001, abs=1e-6)


def test_the_rate_is_constant(spy):
    _, told = spy(dml_da, "--epochs", "4", "--iterations", "1", "--lr", "1e-3")
    assert [[group["lr"] for group in groups] for groups in told] == [[1e-3, 1e-3]] * 4     # U5


@pytest.mark.parametrize("name", ["en", "gor"])
def test_the_step_with_another_regularizer(spy, name):
    flags = ["--epochs", "1", "--iterations", "1", "--regularizer", name, "--reg-weight", "0.5"]
    (row,), _ = spy(dml_da, *flags)
    assert abs(row[name]) > 1e-4
    assert row["loss"] == pytest.approx(row["contrastive"] + 0.5 * row[name], rel=1e-6)
    assert row["alpha min"] == row["alpha max"] == 0.5


def test_da_minus_lacks_the_correlation_term_and_nothing_else(spy):
    """At the first step all α are 0.5, so Eq. 8 adds 0.25/C² Σ ((D⁰_j)^½ - (D⁰_i)^½)²."""
    flags = ["--epochs", "1", "--iterations", "1"]
    (with_term,), _ = spy(dml_da, *flags)
    (without,), _ = spy(dml_da, *flags, "--regularizer", "da-")
    data = dml_da.common.load_dataset("glyphs", train=dml_da.common.SMALL_TRANSFORMS[0],
                                      test=dml_da.common.SMALL_TRANSFORMS[2])
    c = cfg("--iterations", "1")
    network = dml_da.Network(c, 50).eval()
    dml_da.common.load_weights(network.backbone, "small")
    features, labels = dml_da.common.embed(network.pool, data.seen, c).double(), data.seen.labels
    D0 = np.array([((features[labels == k] - features[labels == k].mean(0)) ** 2).sum(1).mean()
                   for k in range(50)])
    root = np.sqrt(D0 / D0.mean())[np.unique(labels[dml_da.batches(data.train.labels, c, 0)[0]])]
    want = 0.25 * np.mean([(a - b) ** 2 for a in root for b in root])
    assert want > 1e-3 and without["contrastive"] == with_term["contrastive"]
    assert with_term["da"] - without["da-"] == pytest.approx(want, rel=1e-3)

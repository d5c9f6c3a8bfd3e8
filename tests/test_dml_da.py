"""Every equation of the DML-DA paper against NumPy and SciPy, in value and gradient; the sampler of
whole classes (test_mdr.py has the other one)."""
from functools import partial

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy

import dml_da
import conftest
from conftest import B, LABELS, LONG, NEGATIVE, PAIRS, POSITIVE, agrees
from dml_da import parse_args
from support import files

points = partial(conftest.points, scale=0.6)


def on_sphere(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def square(x, i, j):
    return ((x[i] - x[j]) ** 2).sum()


# ---------------------------------------------------------------------------- Eq. 1-4
@pytest.mark.parametrize("margin", [1.0, 0.3])
def test_contrastive_loss(margin):
    def oracle(f):
        return sum(square(f, i, j) if LABELS[i] == LABELS[j] else max(0, margin - square(f, i, j))
                   for i, j in PAIRS) / 2 / B
    assert 0 < sum(square(points(), i, j) < margin for i, j in NEGATIVE) < len(NEGATIVE)
    agrees(lambda f: dml_da.contrastive_loss(f, LONG, margin), oracle, points())


@pytest.mark.parametrize("margin", [1.0, 0.2])
def test_triplet_loss(margin):
    """U6: the nearest negative in (D_ap, D_ap + margin), else the nearest of all."""
    x, picked = points(seed=1), []
    for a, p in POSITIVE:
        nearest = sorted((n for i, n in NEGATIVE if i == a), key=lambda n: square(x, a, n))
        semi = [n for n in nearest if square(x, a, p) < square(x, a, n) < square(x, a, p) + margin]
        picked.append(((semi or nearest)[0], bool(semi)))
    assert margin == 1.0 or len({semi for _, semi in picked}) == 2

    def oracle(f):                                       # the choice is constant, as an index is
        return sum(max(0, margin + square(f, a, p) - square(f, a, n))
                   for (a, p), (n, _) in zip(POSITIVE, picked)) / B
    agrees(lambda f: dml_da.triplet_loss(f, LONG, margin), oracle, x)


def test_n_pair_loss():
    """With the tuplets that the same generator draws."""
    drawn = [t.tolist() for t in dml_da.draw_tuplets(LONG, torch.Generator().manual_seed(3))]
    assert list(zip(*drawn[:2])) == POSITIVE

    def oracle(f):
        return sum(np.log(1 + sum(np.exp(f[a] @ f[n] - f[a] @ f[p]) for n in negatives))
                   for a, p, negatives in zip(*drawn)) / B
    agrees(lambda f: dml_da.n_pair_loss(f, LONG, torch.Generator().manual_seed(3)), oracle,
           points(seed=2))


def test_n_pair_draws_one_of_every_other_class():
    seen, generator = np.zeros((B, B)), torch.Generator().manual_seed(0)
    for _ in range(200):
        for a, p, negatives in zip(*dml_da.draw_tuplets(LONG, generator)):
            assert (a, p) in POSITIVE
            assert sorted(LABELS[negatives]) == sorted({0, 2, 5, 7} - {LABELS[a]})
            seen[a, negatives] += 1
    for a, _ in POSITIVE:
        assert ((seen[a] > 0) == (LABELS != LABELS[a])).all()
    for a in (0, 1):                                    # class 5 has two images: half and half
        assert 0.4 < seen[a, 2] / (seen[a, 2] + seen[a, 7]) < 0.6


# ---------------------------------------------------------------------------- Eq. 5-8
def test_class_density():
    classes = dml_da.class_density(torch.tensor(points()), LONG)[0].tolist()
    assert classes == [0, 2, 5, 7]
    agrees(lambda f: dml_da.class_density(f, LONG)[1],
           lambda f: np.array([f[LABELS == c].var(0).sum() for c in classes]), points())
    many = torch.arange(60_000) % 12_000                # SOP's: a dense (C, n) matrix has 5.8 GB
    assert not dml_da.class_density(many[:, None].double(), many)[1].any()


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


def test_the_balance_of_u1():
    """With 10 × 10 the pull of Eq. 2 is 10 mean D_avg, and λ = 10 pushes as hard at converged α."""
    x = torch.tensor(on_sphere(points(d=8, n=100, seed=6)), requires_grad=True)
    labels = torch.arange(10).repeat_interleave(10)
    _, D_avg = dml_da.class_density(x, labels)
    pull = dml_da.contrastive_loss(x, labels, margin=0.0)
    assert pull.item() == pytest.approx(10 * D_avg.mean().item())
    push = 10 * dml_da.density_regularizer(D_avg, (D_avg + 0.5).detach())
    (pulled,), (pushed,) = (torch.autograd.grad(term, x, retain_graph=True) for term in (pull, push))
    assert pulled.abs().max() > 1e-3 and (pulled + pushed).abs().max() < 1e-12


# ---------------------------------------------------------------------------- α_c
def test_targets_of_absent_classes_stay_bit_for_bit():
    """U2: no gradient, not even 0, reaches them, so that Adam skips them: no step, no momentum."""
    network = dml_da.Network(parse_args([]), classes=4).double()
    network.D0.copy_(torch.tensor([9, 1.5, 9, 0.5]))
    for target, value in zip(network.alpha, (0.2, 0.5, 0.6, 0.9)):
        target.data.fill_(value)
    f, labels = torch.tensor(points(n=6)), torch.tensor([3, 1, 1, 3, 1, 3])
    network.forward = lambda images: f
    loss, terms = dml_da.objective(network, parse_args(["--lambda", "2"]), None, labels, None)
    loss.backward()
    alpha = torch.tensor([0.5, 0.9], dtype=torch.float64, requires_grad=True)
    D_avg = dml_da.class_density(f, labels)[1]
    (2 * dml_da.density_regularizer(D_avg, alpha, network.D0[[1, 3]], 0.5)).backward()
    assert [target.grad for target in network.alpha][::2] == [None, None]
    assert [network.alpha[c].grad.item() for c in (1, 3)] == pytest.approx(alpha.grad.tolist())
    assert terms["alpha"].item() == pytest.approx(0.7)


# ---------------------------------------------------------------------------- EN, GOR
def test_entropy_regularizer():
    agrees(dml_da.entropy_regularizer,
           lambda f: -np.mean([entropy(softmax(row)) for row in f]), points())


@pytest.mark.parametrize("d, scale, large", [(3, 0.5, False), (3, 1, True)])
def test_global_orthogonal_regularizer(d, scale, large):
    """M2 counts above 1/d alone."""
    def oracle(f):
        s = [f[i] @ f[j] for i, j in NEGATIVE]
        assert (np.mean(np.square(s)) > 1 / d) == large
        return np.mean(s) ** 2 + max(0, np.mean(np.square(s)) - 1 / d)
    agrees(lambda f: dml_da.global_orthogonal_regularizer(f, LONG), oracle,
           scale * (points(d, seed=1) + 0.4))


# ---------------------------------------------------------------------------- sampler
def test_whole_classes_until_the_batch_is_full():
    """U11: none is cut, unless it is larger than the batch.  test_scripts has every draw."""
    sizes = np.tile([2, 5, 9], 10)
    labels = torch.tensor(np.repeat(np.arange(30), sizes))
    for size, least in ((40, 32), (999, 160), (4, 2)):
        cfg = parse_args(f"--images-per-class 0 --batch {size} --iterations 50".split())
        for batch in dml_da.batches(labels, cfg, epoch=0):
            assert least <= len(batch) == len(set(batch)) <= size
            counts = np.bincount(labels[batch], minlength=30)
            assert size == 4 or (counts % sizes == 0).all()


@pytest.mark.parametrize("classes", [3, 400])
def test_thousands_of_targets_are_one_tensor_in_a_file(classes, tmp_path):
    """... and Adam's state of them; few are in a file as torch has them."""
    network = dml_da.Network(parse_args([]), classes)
    optimizer = torch.optim.Adam(network.alpha.parameters())
    torch.stack([*network.alpha[1:]]).square().sum().backward()
    optimizer.step()
    path, optimizers = tmp_path / "last.pt", optimizer.state_dict()
    files.save_torch(path, {"network": network.state_dict(), "optimizer": optimizers})
    plain = any(name[:6] == "alpha." for name in torch.load(path, weights_only=True)["network"])
    assert plain == (classes == 3)
    loaded = files.load_torch(path)
    torch.testing.assert_close(loaded["network"], network.state_dict(), rtol=0, atol=0)
    assert loaded["optimizer"] == optimizers and len(optimizers["state"]) == classes - 1
    assert loaded["network"]._metadata == network.state_dict()._metadata

"""Every equation of the DML-DA paper against NumPy and SciPy, in value and gradient.

test_mdr.py counts what the samplers of both papers draw.
"""
from functools import partial

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.special import softmax
from scipy.stats import entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import dml_da
import conftest
from conftest import B, LABELS, LONG, NEGATIVE, PAIRS, POSITIVE, agrees
from dml_da import parse_args
from support import files

points = partial(conftest.points, scale=0.6)


def squared_distances(x):
    return cdist(x, x, "sqeuclidean")


# ---------------------------------------------------------------------------- Eq. 1-4
@pytest.mark.parametrize("margin", [1.0, 0.3])
def test_contrastive_loss(margin):
    def oracle(f):
        D, total = squared_distances(f), 0
        for i, j in PAIRS:                              # each pair twice
            if LABELS[i] == LABELS[j]:
                total += D[i, j]
            else:
                total += max(0, margin - D[i, j])
        return total / 2 / B
    far = [squared_distances(points())[pair] >= margin for pair in NEGATIVE]
    assert {*far} == {True, False}
    agrees(dml_da.contrastive_loss, oracle, points(), constants=[LONG, margin])


@pytest.mark.parametrize("margin", [1.0, 0.2])
def test_triplet_loss(margin):
    """U6: the nearest negative in (D_ap, D_ap + margin), else the nearest of all."""
    x, triplets, semi_hard = points(seed=1), [], set()
    D = squared_distances(x)
    for a, p in POSITIVE:
        negatives = np.flatnonzero(LABELS != LABELS[a])
        within = [n for n in negatives if D[a, p] < D[a, n] < D[a, p] + margin]
        triplets.append((a, p, min(within or negatives, key=D[a].item)))
        semi_hard.add(bool(within))
    assert margin == 1.0 or semi_hard == {True, False}

    def oracle(f):                                       # the choice is constant, as an index is
        D, total = squared_distances(f), 0
        for a, p, n in triplets:
            total += max(0, margin + D[a, p] - D[a, n])
        return total / B
    agrees(dml_da.triplet_loss, oracle, x, constants=[LONG, margin])


def test_triplet_loss_with_ties():
    """A negative as near as the positive, or as the margin, is not semi-hard.  Of two that are
    equally near the first is taken."""
    f = torch.tensor([[0.0], [1.0], [-1.0], [2.0], [-2.0]], requires_grad=True)
    labels = torch.tensor([0, 0, 1, 2, 3])
    assert dml_da.triplet_loss(f, labels, 3.0).item() == pytest.approx((3 + 3) / 5)
    loss = dml_da.triplet_loss(f, labels, 5.0)
    gradient, = torch.autograd.grad(loss, f)            # (0, 1, 3): 5 + 1 - 4; (1, 0, 2): 5 + 1 - 4
    assert loss.item() == pytest.approx((2 + 2) / 5)
    assert gradient.flatten().tolist() == pytest.approx([x / 5 for x in (0, 0, 4, -4, 0)])


def tuplets(generator):
    anchors, positives, negatives = dml_da.draw_tuplets(LONG, generator)
    return list(zip(anchors.tolist(), positives.tolist(), negatives.tolist()))


def test_n_pair_loss():
    """With the tuplets that the same generator draws."""
    drawn = tuplets(torch.Generator().manual_seed(3))

    def oracle(f):
        total = 0
        for a, p, negatives in drawn:
            total += np.log(1 + np.exp(f[negatives] @ f[a] - f[a] @ f[p]).sum())
        return total / B
    agrees(dml_da.n_pair_loss, oracle, points(seed=2),
           constants=[LONG, torch.Generator().manual_seed(3)])


def test_n_pair_draws_one_of_every_other_class():
    seen, generator = np.zeros((B, B)), torch.Generator().manual_seed(0)
    for _ in range(200):
        drawn = tuplets(generator)
        assert [(a, p) for a, p, _ in drawn] == POSITIVE
        for a, _, negatives in drawn:
            assert sorted([LABELS[a], *LABELS[negatives]]) == [0, 2, 5, 7]
            seen[a, negatives] += 1
    for a, _ in POSITIVE:
        assert ((seen[a] > 0) == (LABELS != LABELS[a])).all()
    for a in (0, 1):                                    # class 5 has two images: half and half
        assert 0.4 < seen[a, 2] / (seen[a, 2] + seen[a, 7]) < 0.6


# ---------------------------------------------------------------------------- Eq. 5-8
class Sizes(TorchDispatchMode):
    """of_tensors: how many numbers each tensor has that an operation makes"""

    def __enter__(self):
        self.of_tensors = []
        return super().__enter__()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        made = operation(*args, **(kwargs or {}))
        self.of_tensors += [x.numel() for x in tree_leaves(made) if torch.is_tensor(x)]
        return made


def test_class_density():
    def oracle(f):
        return np.array([f[LABELS == c].var(0).sum() for c in (0, 2, 5, 7)])
    assert dml_da.class_density(torch.tensor(points()), LONG)[0].tolist() == [0, 2, 5, 7]
    agrees(lambda f: dml_da.class_density(f, LONG)[1], oracle, points())
    many = torch.arange(60_000) % 12_000                # SOP's: a dense (C, n) matrix has 5.8 GB
    with Sizes() as sizes:
        assert not dml_da.class_density(many[:, None].double(), many)[1].any()
    assert max(sizes.of_tensors) == 60_000


def test_initial_density_needs_labels_without_a_gap():
    """Its result is indexed by label: with 0, 2, 5, 7 it would have the wrong classes'."""
    with pytest.raises(ValueError, match="^labels must be 0, 1, .* these 4 classes go from 0 to 7$"):
        dml_da.initial_density(torch.tensor(points()), LONG)
    labels = torch.searchsorted(LONG.unique(), LONG)
    D0 = dml_da.initial_density(torch.tensor(points()), labels)
    want = dml_da.class_density(torch.tensor(points()), LONG)[1]
    torch.testing.assert_close(D0, want / want.mean())


@pytest.mark.parametrize("D0, eta", [(None, 0.5), ([0.5, 1.0, 1.5], 0.5), ([0.2, 3.0, 1.0], 1.3)])
def test_density_regularizer(D0, eta):
    """Eq. 6 is Eq. 8 without its correlation term, which is 0 for D⁰ = 0."""
    def oracle(D, alpha):
        loss, D0_eta = 0, np.power(D0 or [0, 0, 0], eta)
        for i in range(3):
            loss += ((D[i] - alpha[i]) ** 2 - alpha[i]) / 3
            for j in range(3):
                loss += (D0_eta[j] * alpha[i] - D0_eta[i] * alpha[j]) ** 2 / 3 ** 2
        return loss
    given = D0 and torch.tensor(D0).double()
    agrees(dml_da.density_regularizer, oracle, [0.1, 0.6, 0.3], [0.9, 0.4, 0.7],
           constants=[given, eta])


def test_the_balance_of_u1():
    """With 10 × 10 the pull of Eq. 2 is 10 mean D_avg, and λ = 10 pushes as hard at converged α."""
    x = torch.nn.functional.normalize(torch.tensor(points(d=8, n=100, seed=6))).requires_grad_()
    labels = torch.arange(10).repeat_interleave(10)
    _, D_avg = dml_da.class_density(x, labels)
    pull = dml_da.contrastive_loss(x, labels, margin=0.0)
    assert pull.item() == pytest.approx(10 * D_avg.mean().item())
    pulled, = torch.autograd.grad(pull, x, retain_graph=True)
    push = 10 * dml_da.density_regularizer(D_avg, (D_avg + 0.5).detach())
    pushed, = torch.autograd.grad(push, x)
    assert pulled.abs().max() > 1e-3 and (pulled + pushed).abs().max() < 1e-12


# ---------------------------------------------------------------------------- α_c
def test_targets_of_absent_classes_stay_bit_for_bit():
    """U2: no gradient, not even 0, reaches them, so that Adam skips them: no step, no momentum.
    Those of the classes that are there get what they get in a network of these classes alone."""
    def slopes(labels, D0, alpha):
        network = dml_da.Network(parse_args([]), len(alpha)).double()
        network.D0 += torch.tensor(D0)
        for target, value in zip(network.alpha, alpha):
            target.data.fill_(value)
        network.forward = lambda images: torch.tensor(points(n=6))
        loss, terms = dml_da.objective(network, parse_args([]), None, torch.tensor(labels), None)
        loss.backward()
        assert terms["alpha"].item() == pytest.approx(0.7)
        return [target.grad for target in network.alpha]
    of_1, of_3 = slopes([1, 0, 0, 1, 0, 1], [1.5, 0.5], [0.5, 0.9])
    assert slopes([3, 1, 1, 3, 1, 3], [9, 1.5, 9, 0.5], [0.2, 0.5, 0.6, 0.9]) == [
        None, of_1, None, of_3]
    assert of_1 != of_3


# ---------------------------------------------------------------------------- EN, GOR
def test_entropy_regularizer():
    def oracle(f):
        return -entropy(softmax(f, axis=1), axis=1).mean()
    agrees(dml_da.entropy_regularizer, oracle, points())


@pytest.mark.parametrize("d, scale, large", [(3, 0.5, False), (3, 1, True)])
def test_global_orthogonal_regularizer(d, scale, large):
    """M2 counts above 1/d alone."""
    def oracle(f):
        s = np.array([f[i] @ f[j] for i, j in NEGATIVE])
        M1, M2 = s.mean(), (s ** 2).mean()
        assert (M2 > 1 / d) == large
        return M1 ** 2 + max(0, M2 - 1 / d)
    agrees(dml_da.global_orthogonal_regularizer, oracle, scale * (points(d, seed=1) + 0.4),
           constants=[LONG])


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


def test_what_would_broadcast_is_refused():
    """Targets of nn.Embedding, (C, 1), and labels (B, 1)"""
    D_avg, alpha = torch.rand(3), torch.rand(3)
    for wrong in ((D_avg, alpha[:, None]), (D_avg[:, None], alpha[:, None]), (D_avg, alpha[:2]),
                  (D_avg, alpha, alpha[:, None]), (D_avg, alpha, alpha[:1])):
        with pytest.raises(ValueError, match=r"one dimension and one length .* D_avg \(3,"):
            dml_da.density_regularizer(*wrong)
    f = torch.randn(4, 5)
    for labels in (torch.tensor([[0], [0], [1], [1]]), torch.tensor([0, 0]), torch.tensor([0])):
        for function in (dml_da.contrastive_loss, dml_da.triplet_loss, dml_da.n_pair_loss,
                         dml_da.global_orthogonal_regularizer, dml_da.class_density):
            more = [None] * (function.__code__.co_argcount - 2)
            with pytest.raises(ValueError, match=rf"labels must be \(4,\), .* \({len(labels)},"):
                function(f, labels, *more)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_density_of_many_images_in_16_bits(dtype):
    """Running sums of 16 bits stall: 0.17 in bfloat16 in place of 1.00."""
    f = torch.nn.functional.normalize(torch.from_numpy(points(16, n=3000))).to(dtype)
    _, exact = dml_da.class_density(f.double(), torch.zeros(3000).long())
    _, D_avg = dml_da.class_density(f, torch.zeros(3000).long())
    torch.testing.assert_close(D_avg.double(), exact, rtol=1e-5, atol=0)

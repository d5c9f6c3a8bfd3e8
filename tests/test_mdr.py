"""Every equation of the MDR paper against NumPy and SciPy, in value and gradient; the samplers."""
import copy
import itertools

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist, pdist

import dml_da
import mdr
from conftest import B, LONG, NEGATIVE, PAIRS, POSITIVE, agrees, points
from mdr import pairwise_distances as distances

TRIPLETS = [(a, p, [n for i, n in NEGATIVE if i == a][(3 * a + p) % 4]) for a, p in POSITIVE]
INDICES = torch.tensor(TRIPLETS).T


# ---------------------------------------------------------------------------- Eq. 1-5
def d(e, i, j):
    return np.linalg.norm(e[i] - e[j])


def momented(batches, momentum):
    """Eq. 2 over a few batches of embeddings, from the first batch's statistics (U6)."""
    for t, e in enumerate(batches):
        values = [d(e, *pair) for pair in PAIRS]
        new = np.array([np.mean(values), np.std(values, ddof=1)])
        statistics = momentum * statistics + (1 - momentum) * new if t else new
    return statistics


@pytest.mark.parametrize("levels, momentum", [([-3, 0, 3], 0.9), ([-3, -1, 0, 1, 3], 0.0)])
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
        normalized = [(d(e, i, j) - mu) / sigma for i, j in PAIRS]
        return np.mean([min(abs(value - level) for level in s) for value in normalized])
    agrees(function, oracle, last, np.array(levels, dtype=float) + 0.05, step=1e-7)


def test_statistics_are_kept_and_only_in_training():
    module = mdr.MDR()                              # float32, the batch float64
    module(distances(torch.tensor(points())))
    before = copy.deepcopy(module.eval().state_dict())
    module(distances(torch.randn(B, 3)))
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)
    assert module.mu.item() == pytest.approx(momented([points()], 0.9)[0])


def test_assignment_and_its_ties():
    """Eq. 4 by hand; half-way between two levels it is the first of them."""
    values = torch.tensor([-9, -1.6, -1.5, -1.4, 0, 1.5, 1.6, 99])
    assert mdr.MDR([-3, 0, 3]).assign(values).tolist() == [0, 0, 0, 1, 1, 1, 2, 2]


def test_l_mdr_does_not_depend_on_the_scale_of_the_embeddings():
    e = torch.tensor(points(), dtype=torch.float32)
    for scale in (1e-6, 0.5, 1e6):
        torch.testing.assert_close(mdr.MDR()(distances(scale * e)), mdr.MDR()(distances(e)),
                                   rtol=1e-4, atol=0)


# ---------------------------------------------------------------------------- the trick, Eq. 6
def test_normalization_trick_has_unit_mean_and_the_gradient_of_mu():
    agrees(lambda e: mdr.unit_mean(distances(e)), lambda e: cdist(e, e) / pdist(e).mean(), points())


@pytest.mark.parametrize("loss, of_distances", [
    (mdr.triplet_loss, lambda ap, an: max(0, ap - an + 2)),
    (mdr.contrastive_loss, lambda ap, an: ap + max(0, 2 - an))])
def test_losses_of_triplets(loss, of_distances):
    agrees(lambda e: loss(distances(e), *INDICES, margin=2.0),
           lambda e: np.mean([of_distances(d(e, a, p), d(e, a, n)) for a, p, n in TRIPLETS]),
           points())


def test_margin_loss():
    def function(e, beta):
        module = mdr.MarginLoss(margin=0.3)
        del module.beta
        module.beta = beta
        return module(distances(e), *INDICES)

    def oracle(e, beta):
        total = 0
        for a, p, n in TRIPLETS:
            total += max(0, d(e, a, p) - beta + 0.3) + max(0, beta - d(e, a, n) + 0.3)
        return total / len(TRIPLETS)
    agrees(function, oracle, points(), np.array(1.7))
    assert mdr.MarginLoss().beta.item() == pytest.approx(1.2) and mdr.MarginLoss().margin == 0.2


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


def spread_out(D):
    e = points(D, seed=D, n=30) * np.linspace(0.1, 10, 30)[:, None]     # lengths do not matter
    e[0] = e[5] * 3 + 0.01                                              # nearer than the clip
    return e


@pytest.mark.parametrize("e, classes", [
    (spread_out(3), 6), (spread_out(64), 6),
    (np.repeat([[1.0, 0.1], [-1.0, 0.1]], 4, 0), 2)])       # all beyond 1.4: then any is drawn
def test_negatives_follow_the_law(e, classes):
    labels = np.repeat(np.arange(classes), len(e) // classes)
    generator, counts = torch.Generator().manual_seed(0), np.zeros((len(e), len(e)))
    for _ in range(1500):
        a, p, n = mdr.distance_weighted_negatives(*map(torch.tensor, (e, labels)), generator)
        np.add.at(counts, (a.numpy(), n.numpy()), 1)
    pairs = [(i, j) for i, j in itertools.permutations(range(len(e)), 2) if labels[i] == labels[j]]
    assert sorted(zip(a.tolist(), p.tolist())) == pairs and len(pairs) == len(n)
    for anchor in range(len(e)):
        drawn, law = counts[anchor] / counts[anchor].sum(), wu_law(e, anchor, labels)
        assert 0.5 * np.abs(drawn - law).sum() < 0.05 and (drawn[law == 0] == 0).all()


@pytest.mark.parametrize("script, n, size, least", [
    (mdr, 4, 12, 12), (mdr, 4, 128, 19), (dml_da, 4, 12, 12), (dml_da, 4, 128, 19),
    (dml_da, 0, 12, 9), (dml_da, 0, 128, 39), (dml_da, 0, 5, 1)])
def test_batches_by_counting(script, n, size, least):
    """U2: n images per class, small classes give all, the last is cut to fit.  DML-DA's U11: with
    n = 0 whole classes, none cut unless it is larger than the batch.  test_scripts has every draw.
    """
    sizes = np.array([9, 2, 9, 1, 9, 9])
    labels = torch.tensor(np.repeat(range(6), sizes))
    words = f"--images-per-class {n} --batch {size} --iterations 100".split()
    drawn = script.batches(labels, script.parse_args(words), 0)
    assert len(drawn) == 100
    for batch in drawn:
        assert least <= len(batch) == len(set(batch)) <= size
        counts = np.bincount(labels[batch], minlength=6)
        if n:
            assert (counts <= n).all()
        else:
            assert size == 5 or (counts % sizes == 0).all()


def test_level_shares_have_each_ordered_pair_once():
    module, D = mdr.MDR([-1, 0, 1]).double(), distances(torch.tensor(points()))
    module(D)
    mu, sigma = momented([points()], 0)
    counts = np.zeros(3)
    for pair in POSITIVE:
        value = (d(points(), *pair) - mu) / sigma
        counts[np.abs(value - [-1, 0, 1]).argmin()] += 1
    assert (counts > 0).sum() > 1
    shares = module.level_shares(D, mdr.positive_pairs(LONG))
    np.testing.assert_allclose(shares, counts / len(POSITIVE), rtol=1e-6)
    assert module.level_shares(D, D < 0).tolist() == [0] * 3

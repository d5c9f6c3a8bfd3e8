"""Every equation of the MDR paper against NumPy and SciPy, in value and gradient; what mdr.py and
dml_da.py draw."""
import copy
import itertools

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist, pdist
from torch.func import functional_call

import dml_da
import mdr
from conftest import INDICES, PAIRS, TRIPLETS, agrees, points
from mdr import pairwise_distances


def distances(e):
    return cdist(e, e)


D = distances(points())


# ---------------------------------------------------------------------------- Eq. 1-5
def momented(batches, momentum):
    """Eq. 2 over a few batches' distances, from the first batch's statistics (U6)."""
    statistics = None
    for D in batches:
        values = [D[pair] for pair in PAIRS]
        new = np.array([np.mean(values), np.std(values, ddof=1)])
        if statistics is None:
            statistics = new
        statistics = momentum * statistics + (1 - momentum) * new
    return statistics


@pytest.mark.parametrize("levels, momentum", [([-3, 0, 3], 0.9), ([-3, -1, 0, 1, 3], 0.0)])
def test_l_mdr(levels, momentum):
    """Value, gradient to the distances (statistics constant) and to the levels, third batch."""
    batches = [scale * distances(points(seed=scale)) for scale in (2, 3, 1)]
    mu, sigma = momented(batches, momentum)

    def function(D, s):
        module = mdr.MDR(levels, momentum).double()
        for batch in batches[:2]:
            module(torch.tensor(batch))
        return functional_call(module, {"levels": s}, D)

    def oracle(D, s):
        total = 0
        for pair in PAIRS:
            total += np.abs((D[pair] - mu) / sigma - s).min()
        return total / len(PAIRS)
    agrees(function, oracle, batches[2], np.array(levels) + 0.05, step=1e-7)


def test_statistics_are_kept_and_only_in_training():
    module = mdr.MDR()                              # float32, the batch float64
    module(torch.tensor(D))
    before = copy.deepcopy(module.eval().state_dict())
    module(torch.tensor(2 * D))
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)
    assert module.mu.item() == pytest.approx(momented([D], 0.9)[0])


def test_in_eval_mode_mdr_needs_statistics():
    """Before a batch μ* = σ* = 0 would give inf.  Those of a checkpoint do."""
    trained, fresh = mdr.MDR(), mdr.MDR().eval()
    with pytest.raises(RuntimeError, match="train on a batch before eval.*: MDR has no μ\\*, σ\\*"):
        fresh(torch.tensor(D))
    trained(torch.tensor(D))
    fresh.load_state_dict(trained.state_dict())
    assert fresh(torch.tensor(2 * D)) == trained.eval()(torch.tensor(2 * D)) > 0


def test_embeddings_in_place_of_distances_are_refused():
    for function in (mdr.MDR(), mdr.unit_mean, mdr.off_diagonal):
        with pytest.raises(ValueError, match=r"^distances must be \(B, B\), .*, not \(8, 3\)$"):
            function(torch.tensor(points()))


def test_assignment_and_its_ties():
    """Eq. 4 by hand; half-way between two levels it is the first of them."""
    values = torch.tensor([-9, -1.6, -1.5, -1.4, 0, 1.5, 1.6, 99])
    assert mdr.MDR([-3, 0, 3]).assign(values).tolist() == [0, 0, 0, 1, 1, 1, 2, 2]


def test_l_mdr_does_not_depend_on_the_scale_of_the_embeddings():
    e = torch.tensor(points(), dtype=torch.float32)
    for scale in (1e-6, 0.5, 1e6):
        values = [mdr.MDR()(pairwise_distances(x)) for x in (scale * e, e)]
        torch.testing.assert_close(*values, rtol=1e-4, atol=0)


# ---------------------------------------------------------------------------- the trick, Eq. 6
def test_normalization_trick_has_unit_mean_and_the_gradient_of_mu():
    def function(e):
        return mdr.unit_mean(pairwise_distances(e))

    def oracle(e):
        return distances(e) / pdist(e).mean()
    agrees(function, oracle, points())


def test_losses_of_triplets():
    def triplet(D):
        return np.mean([max(0, D[a, p] - D[a, n] + 2) for a, p, n in TRIPLETS])

    def contrastive(D):
        return np.mean([D[a, p] + max(0, 2 - D[a, n]) for a, p, n in TRIPLETS])
    agrees(mdr.triplet_loss, triplet, D, constants=[*INDICES, 2.0])
    agrees(mdr.contrastive_loss, contrastive, D, constants=[*INDICES, 2.0])


def test_margin_loss():
    def function(D, beta):
        return functional_call(mdr.MarginLoss(margin=0.3), {"beta": beta}, (D, *INDICES))

    def oracle(D, beta):
        total = 0
        for a, p, n in TRIPLETS:
            total += max(0, D[a, p] - beta + 0.3) + max(0, beta - D[a, n] + 0.3)
        return total / len(TRIPLETS)
    agrees(function, oracle, D, 1.7)
    assert mdr.MarginLoss().beta.item() == pytest.approx(1.2) and mdr.MarginLoss().margin == 0.2


# ---------------------------------------------------------------------------- sampling
def wu_law(e, anchor, labels):
    """Wu et al. 2017: 1/q(r) ∝ r^(2-d) (1 - r²/4)^((3-d)/2), r clipped at 0.5, 0 beyond 1.4."""
    x, d = e / np.linalg.norm(e, axis=1, keepdims=True), e.shape[1]
    negative = labels != labels[anchor]
    law = np.zeros(len(e))
    for n in np.flatnonzero(negative):
        r = max(0.5, np.linalg.norm(x[anchor] - x[n]))
        if r <= 1.4:
            law[n] = r ** (2.0 - d) * (1 - r ** 2 / 4) ** ((3.0 - d) / 2)
    if not law.any():                                   # all beyond 1.4: then any is drawn
        law += negative
    return law / law.sum()


def spread_out(d):
    e = points(d, seed=d, n=30) * np.linspace(0.1, 10, 30)[:, None]     # lengths do not matter
    e[0] = e[5] * 3 + 0.01                                              # nearer than the clip
    return e


@pytest.mark.parametrize("e, classes", [
    (spread_out(3), 6), (spread_out(64), 6), (np.repeat([[1.0, 0.1], [-1.0, 0.1]], 4, 0), 2)])
def test_negatives_follow_the_law(e, classes):
    labels = np.repeat(np.arange(classes), len(e) // classes)
    generator, counts = torch.Generator().manual_seed(0), np.zeros((len(e), len(e)))
    for _ in range(1500):
        a, p, n = mdr.distance_weighted_negatives(
            torch.tensor(e), torch.tensor(labels), generator)
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
    """By hand: with μ* = 1 and σ* = 2 two pairs are nearest to -1, one to 0, three to 1."""
    module = mdr.MDR([-1, 0, 1])
    module.mu += 1
    module.sigma += 2
    distances = 1 + 2 * torch.tensor([[9, -0.8, 0.3], [-0.7, 9, 2.0], [0.6, 0.9, 9]])
    pairs = ~torch.eye(3, dtype=torch.bool)
    torch.testing.assert_close(module.level_shares(distances, pairs), torch.tensor([2, 1, 3]) / 6)
    assert module.level_shares(distances, pairs & ~pairs).tolist() == [0, 0, 0]


def test_the_levels_gradient_is_one_sum_on_any_number_of_threads():
    """Of so many pairs that torch adds up on all threads: what self.levels[...] would give is
    another sum then, if two cores are free, and another one on each run."""
    torch.manual_seed(0)
    distances, before, told = torch.rand(256, 256), torch.get_num_threads(), []
    for threads in [1] + 20 * [2]:
        torch.set_num_threads(threads)
        try:
            regularizer = mdr.MDR()
            regularizer(distances).backward()
        finally:
            torch.set_num_threads(before)
        told.append(regularizer.levels.grad)
    assert all(torch.equal(told[0], other) for other in told) and told[0].any()


def test_a_batch_that_is_not_finite_leaves_no_trace():
    """A loop that skips it trains on."""
    regularizer = mdr.MDR()
    e = torch.from_numpy(points(4, n=9)).float()
    regularizer(pairwise_distances(e))
    before = regularizer.state(), regularizer.updates.item()
    broken = e.clone()
    broken[3, 1] = torch.inf
    assert not regularizer(pairwise_distances(broken)).isfinite()
    assert (regularizer.state(), regularizer.updates.item()) == before
    assert regularizer(pairwise_distances(e)).isfinite()


def test_two_images_have_one_distance_and_no_spread():
    """... so that the loss is 0, and not the distance over a floor in place of σ*."""
    regularizer = mdr.MDR()
    for seed in range(3):
        e = torch.from_numpy(points(4, seed, n=2)).float().requires_grad_()
        loss = regularizer(pairwise_distances(e))
        loss.backward()
        assert loss == 0 and (e.grad == 0).all() and regularizer.updates == 0


def test_a_label_for_each_embedding_is_needed():
    with pytest.raises(ValueError, match=r"labels must be \(4,\), .*, not \(3,\)"):
        mdr.distance_weighted_negatives(torch.rand(4, 2), torch.zeros(3).long(), None)

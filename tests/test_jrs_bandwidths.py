"""The identities of studies/jrs_bandwidths.md, with jrd.py's own kernels."""
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import jrd
from studies.jrs_bandwidths import (KS, at_bandwidths, different_class, mean_distance, mixture,
                                    penalty)

LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 3])
B = len(LABELS)


def points(seed=0, d=3):
    """(B, d), not centred"""
    return torch.tensor(np.random.RandomState(seed).standard_normal((B, d)) + 1)


def gradients(variant, layers, labels=LABELS):
    """Of JRS with jrd.py's detached τ, with τ's gradient, or of what detaching adds."""
    layers = [x.detach().requires_grad_() for x in layers]
    return torch.autograd.grad(penalty(variant, layers, labels, KS[:len(layers)], None), layers)


def value_of(layers, labels=LABELS):
    return penalty("detached", layers, labels, KS[:len(layers)], None).item()


def along_the_sphere(slope, x):
    return slope - (slope * x).sum(1, keepdim=True) * x


@pytest.mark.parametrize("layers", [1, 3])
def test_what_detaching_adds_is_radial(layers):
    layers = [points(seed, 5 - seed) for seed in range(layers)]
    slopes = (gradients(variant, layers) for variant in ("detached", "gradient", "only τ"))
    for x, detached, whole, added in zip(layers, *slopes):
        torch.testing.assert_close(detached, whole + added)
        centred = x - x.mean(0)
        radial = (detached * centred).sum() / centred.square().sum() * centred
        torch.testing.assert_close(added, radial)
        assert whole.norm() > 1e-3 and radial.norm() > whole.norm()     # not vacuous


@pytest.mark.parametrize("seed", range(3))
def test_bound(seed):
    """F >= g(mean of u over different classes) >= g(N / N_pairs)"""
    different = different_class(LABELS)
    most = torch.tensor(B * (B - 1) / different.sum().item())
    layers = [points(seed + k) for k in range(3)]
    u = [(jrd.squared_distances(x) / mean_distance(x))[different].mean() for x in layers]
    tight, loose = (math.prod(mixture(mean, K) for mean, K in zip(means, KS))
                    for means in (u, [most] * 3))
    assert value_of(layers) > tight > loose
    assert math.prod(mixture(torch.tensor(1.0), K) for K in KS).item() == pytest.approx(
        0.0503, abs=5e-5)                                               # the page's
    collapsed = torch.eye(4, dtype=torch.float64)[LABELS] + seed        # a regular simplex
    assert value_of([collapsed]) == pytest.approx(mixture(most, 3).item())
    assert gradients("gradient", [collapsed])[0].norm() < 1e-12


def test_same_class_pairs_attract():
    """∂F/∂(d²) of a same-class pair is ∂L/∂τ / N: positive and the same for every such pair."""
    x = points()
    tau = mean_distance(x).requires_grad_()
    of_tau, = torch.autograd.grad(at_bandwidths([x], LABELS, KS[:1], [tau]), tau)
    d2 = jrd.squared_distances(x).requires_grad_()
    value = jrd.jrs(mixture(d2 / (d2.sum() / (B * (B - 1))), 3), LABELS)
    slope, = torch.autograd.grad(value, d2)
    same = ~different_class(LABELS) & ~torch.eye(B, dtype=torch.bool)
    torch.testing.assert_close(slope[same], (of_tau / (B * (B - 1))).expand(int(same.sum())))
    assert of_tau > 0.01


def test_on_the_sphere():
    """τ = 2B/(B-1) (1 - ‖mean‖²); centred, ∇τ vanishes and the gradients agree."""
    x = F.normalize(points())
    assert mean_distance(x).item() == pytest.approx(
        2 * B / (B - 1) * (1 - x.mean(0).square().sum().item()))
    centred = torch.cat([x[:4], -x[:4]])
    for x, agree in ((x, False), (centred, True)):
        detached, whole = (along_the_sphere(gradients(variant, [x])[0], x)
                           for variant in ("detached", "gradient"))
        assert torch.allclose(detached, whole, atol=1e-12) == agree and detached.norm() > 1e-3


@pytest.mark.parametrize("step", [1e-3, 1e-1])
def test_on_the_sphere_a_detached_step_can_raise_F(step):
    angles = torch.tensor([0.57, 2.64, 4.64, 4.86], dtype=torch.float64)
    labels, x = torch.tensor([0, 1, 0, 1]), torch.stack([angles.cos(), angles.sin()], 1)
    detached, whole = (F.normalize(x - step * along_the_sphere(
        gradients(variant, [x], labels)[0], x)) for variant in ("detached", "gradient"))
    assert value_of([detached], labels) > value_of([x], labels) > value_of([whole], labels)

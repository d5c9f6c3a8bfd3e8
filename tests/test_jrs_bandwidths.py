"""The identities of docs/jrs_bandwidths.md, with jrd.py's own kernels."""
import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import jrd

LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 3])
B = len(LABELS)


def points(seed=0, d=3):
    """(B, d), not centred"""
    return torch.tensor(np.random.RandomState(seed).standard_normal((B, d)) + 1)


def mixture(u, K):
    """5.1's kernel as a function of u = ‖x - x'‖²/τ"""
    return sum(torch.exp(-u / 2.0 ** (i - K // 2)) for i in range(K)) / K


def mean_distance(x):
    return jrd.squared_distances(x).sum() / (len(x) * (len(x) - 1))


def at(x, tau, K, labels=LABELS):
    """L(x; τ)"""
    return jrd.jrs(mixture(jrd.squared_distances(x) / tau, K), labels)


def gradients(x, K, labels=LABELS):
    """-> of jrd.py's JRS (τ detached), of F(x) = L(x; τ(x)), and ∂L/∂τ"""
    x = x.clone().requires_grad_()
    detached, = torch.autograd.grad(jrd.jrs(jrd.gaussian_kernel(x, K), labels), x)
    whole, = torch.autograd.grad(at(x, mean_distance(x), K, labels), x)
    tau = mean_distance(x).detach().requires_grad_()
    slope, = torch.autograd.grad(at(x.detach(), tau, K, labels), tau)
    return detached, whole, slope


def tangent(slope, x):
    """The part of a gradient that the l2 normalisation lets through."""
    return slope - (slope * x).sum(1, keepdim=True) * x


@pytest.mark.parametrize("K", [1, 3])
def test_detached_is_the_gradient_of_F_and_an_expansion(K):
    """Euler, ∇F = ∂L + ∂L/∂τ ∇τ, and for free points: ∇τ radial, ∇F the detached gradient less its
    radial part."""
    x = points()
    detached, whole, slope = gradients(x, K)
    assert slope > 0.01
    assert (x * detached).sum().item() == pytest.approx((-2 * mean_distance(x) * slope).item())
    centred = x - x.mean(0)
    torch.testing.assert_close(whole, detached + slope * 4 / (B - 1) * centred)
    radial = (detached * centred).sum() / centred.square().sum() * centred
    torch.testing.assert_close(whole, detached - radial)
    assert whole.norm() > 1e-3 and radial.norm() > whole.norm()          # not vacuous


def test_each_layer_of_a_product_by_itself():
    """Three layers: the difference is Σ_l ∂L/∂τ_l ∇τ_l, radial in each."""
    layers = [points(seed, d).requires_grad_() for seed, d in enumerate((5, 4, 3))]
    kernels = [partial(jrd.gaussian_kernel, K=K) for K in (3, 3, 1)]
    detached = torch.autograd.grad(jrd.jrs(jrd.joint_kernel(layers, kernels), LABELS), layers)
    whole = torch.autograd.grad(jrd.jrs(jrd.joint_kernel(layers, [
        lambda x, K=K: mixture(jrd.squared_distances(x) / mean_distance(x), K)
        for K in (3, 3, 1)]), LABELS), layers)
    for x, a, b in zip(layers, detached, whole):
        centred = (x - x.mean(0)).detach()
        torch.testing.assert_close(b, a - (a * centred).sum() / centred.square().sum() * centred)


def test_the_detached_field_is_no_gradient():
    """Its Jacobian, by differences because τ moves, is not symmetric; that of ∇F is."""
    x, step, skew = points(), 1e-5, []
    for which in (0, 1):
        rows = []
        for k in range(x.numel()):
            move = torch.zeros(x.numel(), dtype=x.dtype)
            move[k] = step
            above, below = (gradients(x + s * move.view_as(x), 3)[which] for s in (1, -1))
            rows.append(((above - below) / (2 * step)).flatten())
        jacobian = torch.stack(rows)
        skew.append(((jacobian - jacobian.T).norm() / jacobian.norm()).item())
    assert skew[0] > 0.01 and skew[1] < 1e-7


@pytest.mark.parametrize("seed", range(5))
def test_bound(seed):
    """F >= g(mean of u over different classes) >= g(N / N_pairs); with (K, K') = (3, 1) as well."""
    different = jrd.different_class(LABELS)
    most = torch.tensor(B * (B - 1) / different.sum().item())
    layers = [points(seed + k) for k in range(3)]
    u = [(jrd.squared_distances(x) / mean_distance(x))[different].mean() for x in layers]
    assert all(a < most for a in u)
    kernels = [partial(jrd.gaussian_kernel, K=K) for K in (3, 3, 1)]
    value = jrd.jrs(jrd.joint_kernel(layers, kernels), LABELS)
    bounds = [math.prod(mixture(a, K) for a, K in zip(at, (3, 3, 1))) for at in (u, [most] * 3)]
    assert value > bounds[0] > bounds[1]


def test_bounds_of_the_page():
    one = torch.tensor(1.0)
    assert mixture(one, 3).item() ** 2 * mixture(one, 1).item() == pytest.approx(0.0503, abs=5e-5)
    assert mixture(one, 1).item() ** 3 == pytest.approx(0.0498, abs=5e-5)


@pytest.mark.parametrize("offset", [0, 1])
def test_collapsed_classes_reach_the_bound(offset):
    """Each class a point, the points a regular simplex, centred on 0 or not: F is at its bound."""
    x = torch.eye(4, dtype=torch.float64)[LABELS] + offset
    different = jrd.different_class(LABELS)
    most = torch.tensor(B * (B - 1) / different.sum().item(), dtype=torch.float64)
    assert jrd.jrs(jrd.gaussian_kernel(x, 3), LABELS).item() == pytest.approx(
        mixture(most, 3).item(), rel=1e-9)
    assert gradients(x, 3)[1].norm() < 1e-12


def test_same_class_pairs_attract():
    """∂F/∂(d²) of a same-class pair is positive, ∂L/∂τ / N: the same for every such pair."""
    d2 = jrd.squared_distances(points()).requires_grad_()
    value = jrd.jrs(mixture(d2 / (d2.sum() / (B * (B - 1))), 3), LABELS)
    slope, = torch.autograd.grad(value, d2)
    same = ~jrd.different_class(LABELS) & ~torch.eye(B, dtype=torch.bool)
    want = gradients(points(), 3)[2] / (B * (B - 1))
    torch.testing.assert_close(slope[same], want.expand(int(same.sum())))


def test_on_the_sphere():
    """τ = 2B/(B-1) (1 - ‖mean‖²); centred, ∇τ vanishes and the three gradients agree."""
    x = F.normalize(points())
    assert mean_distance(x).item() == pytest.approx(
        2 * B / (B - 1) * (1 - x.mean(0).square().sum().item()))
    centred = F.normalize(points()[:4])
    centred = torch.cat([centred, -centred])
    detached, whole, _ = (tangent(g, centred) if g.dim() else g for g in gradients(centred, 3))
    torch.testing.assert_close(detached, whole)
    assert detached.norm() > 1e-3
    detached, whole, _ = (tangent(g, x) if g.dim() else g for g in gradients(x, 3))
    assert (detached - whole).norm() > 0.1 * whole.norm()


def test_on_the_sphere_a_detached_step_can_raise_F():
    angles = torch.tensor([0.57, 2.64, 4.64, 4.86], dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 1])
    x = torch.stack([angles.cos(), angles.sin()], 1)
    detached, whole, _ = gradients(x, 3, labels)

    def value(x):
        return jrd.jrs(jrd.gaussian_kernel(x, 3), labels).item()
    for step in (1e-3, 1e-1):
        assert value(F.normalize(x - step * tangent(detached, x))) > value(x)
        assert value(F.normalize(x - step * tangent(whole, x))) < value(x)

"""Every equation and kernel of the JRD paper against NumPy and SciPy, in value and gradient.

Eq. 1-3 and 5 live in eval.py and are tested in test_eval.py.
"""
import itertools
from functools import partial

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist, pdist
from scipy.special import logsumexp

import jrd
from conftest import B, LABELS, LONG, NEGATIVE, POSITIVE, agrees, points


# ---------------------------------------------------------------------------- kernels
def mean_distance(x, metric):
    """U2: the mean over pairs i ≠ j, a constant."""
    return pdist(x, metric).mean()


def gaussian(x, bandwidths):
    d2 = cdist(x, x, "sqeuclidean")
    return np.mean([np.exp(-d2 / s2) for s2 in bandwidths], axis=0)


TAU, SIGMA = mean_distance(points(), "sqeuclidean"), mean_distance(points(), "cityblock")


@pytest.mark.parametrize("K, factors", [(2, [0.5, 1]), (5, [0.25, 0.5, 1, 2, 4])])
def test_gaussian_kernel(K, factors):
    agrees(partial(jrd.gaussian_kernel, K=K),
           partial(gaussian, bandwidths=TAU * np.array(factors)), points())


@pytest.mark.parametrize("kernel, of_pair", [
    (jrd.laplace_kernel, lambda a, b: np.exp(-np.abs(a - b).sum() / SIGMA)),
    (jrd.mgf_kernel, lambda a, b: np.exp(a @ b)),
    (partial(jrd.polynomial_kernel, p=1), lambda a, b: a @ b + 1),
    (partial(jrd.polynomial_kernel, p=5), lambda a, b: (a @ b + 1) ** 5)])
def test_kernels_by_pairs(kernel, of_pair):
    agrees(kernel, lambda x: np.array([[of_pair(a, b) for a in x] for b in x]), points(),
           step=1e-5)


# ---------------------------------------------------------------------------- Eq. 6-11
def test_joint_kernel_and_jrs():
    """Eq. 10 as a loop over N_pairs (Eq. 11), with the kernels of 5.1."""
    xs = [points(5, 1), points(4, 2), points(3, 3)]
    taus = [mean_distance(x, "sqeuclidean") for x in xs]

    def oracle(*xs):
        k_minus, k = (gaussian(x, [0.5 * t, t, 2 * t]) for x, t in zip(xs[:2], taus))
        k_plus = gaussian(xs[2], [taus[2]])
        return np.mean([k_minus[pair] * k[pair] * k_plus[pair] for pair in NEGATIVE])
    kernels = jrd.kernels_of(jrd.parse_args([]))
    agrees(lambda *xs: jrd.jrs(jrd.joint_kernel(xs, kernels), LONG), oracle, *xs)


def test_jrs_is_the_inner_product_of_covariance_operators():
    """Eq. 6-8 with a kernel whose feature map is finite: (x·y + 1)² = <φ(x), φ(y)>, so that C(P) is
    an array and S_JRS its inner product."""
    def features(x):
        x = np.append(x, 1.0)
        return np.outer(x, x).ravel()
    xs, labels = [points(3, 1), points(2, 2)], np.array([0, 0, 0, 1, 1, 1, 1, 1])
    C = {I: np.mean([np.multiply.outer(features(a), features(b))
                     for a, b, y in zip(*xs, labels) if y == I], axis=0) for I in (0, 1)}
    kernel = jrd.joint_kernel([*map(torch.tensor, xs)], [partial(jrd.polynomial_kernel, p=2)] * 2)
    assert jrd.jrs(kernel, torch.tensor(labels)).item() == pytest.approx((C[0] * C[1]).sum())


def test_network_is_eq_9():
    """x = (Wᵀx⁻ + b)/‖·‖, x⁺ = cosines to the normalized proxies."""
    torch.manual_seed(0)
    network = jrd.Network(jrd.parse_args(["--dim", "6"]), classes=5).double()
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    x_minus, x, x_plus = network(images)
    assert x_minus.shape == (3, 128) and x.shape == (3, 6) and x_plus.shape == (3, 5)
    for i in range(3):
        z = network.embedding.weight @ x_minus[i] + network.embedding.bias
        torch.testing.assert_close(x[i], z / z.square().sum().sqrt())
        for c, w in enumerate(network.proxies.T):
            torch.testing.assert_close(x_plus[i, c], x[i] @ w / w.norm())
    torch.testing.assert_close(network.embed(images), x)


def test_proxies_start_as_u4_says():
    bound = np.sqrt(6 / ((1 + 5) * 2000))                  # Kaiming-uniform, a = √5, fan-in C
    proxies = jrd.Network(jrd.parse_args([]), classes=2000).proxies.detach()
    assert proxies.shape == (64, 2000) and 0.99 * bound < proxies.abs().max() <= bound
    assert proxies.std().item() == pytest.approx(bound / 3 ** 0.5, rel=0.01)


def test_amsoftmax():
    """Eq. 12"""
    s, m = 7.0, 0.25

    def oracle(cos):
        total = 0.0
        for row, y in zip(cos, LABELS):
            true = s * (row[y] - m)
            total += logsumexp([true, *(s * np.delete(row, y))]) - true
        return total / B
    agrees(lambda cos: jrd.amsoftmax(cos, LONG, s, m), oracle,
           np.random.RandomState(3).uniform(-1, 1, (B, 8)))


# ---------------------------------------------------------------------------- Eq. 13, E3
def jrs_of_samples(P, Q):
    """jrd.jrs of two classes with samples P, Q (n, L), each layer on the line."""
    x = torch.tensor(np.concatenate([P, Q]))
    kernels = [partial(jrd.gaussian_kernel, K=3)] * x.shape[1]
    gram = jrd.joint_kernel(list(x[:, :, None].unbind(1)), kernels)
    return jrd.jrs(gram, torch.tensor([0] * len(P) + [1] * len(Q))).item()


def product_of_spectra(P, Q):
    """Π_l <φ_P^l, φ_Q^l> in L²(Λ^l), by Gauss-Hermite quadrature.

    Bochner: exp(-(x - y)²/σ²) = E exp(-iω(x - y)) with ω ~ N(0, 2/σ²)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)          # against exp(-t²/2)
    product = 1.0
    for p, q in zip(P.T, Q.T):
        tau, total = mean_distance(np.concatenate([p, q])[:, None], "sqeuclidean"), 0.0
        for s2 in (0.5 * tau, tau, 2 * tau):
            omega = nodes * np.sqrt(2 / s2)
            phi_p, phi_q = (np.exp(1j * np.outer(omega, x)).mean(1) for x in (p, q))
            total += (weights * phi_p.conj() * phi_q).sum().real / np.sqrt(2 * np.pi)
        product *= total / 3
    return product


def test_proposition_1_holds_for_independent_layers():
    """All combinations of two layers' values, so that they are independent."""
    draw = np.random.RandomState(1)
    P, Q = (np.array([*itertools.product(*layers)]) for layers in (
        (draw.randn(4), draw.randn(3)), (1 + draw.randn(3), draw.randn(5) - 1)))
    assert jrs_of_samples(P, Q) == pytest.approx(product_of_spectra(P, Q), rel=1e-9)


def test_proposition_1_fails_for_dependent_layers():
    """E3: with x² = x¹ the two sides differ, and not by rounding."""
    draw = np.random.RandomState(0)
    P, Q = (draw.standard_normal((6, 1)).repeat(2, 1) for _ in range(2))
    left, right = jrs_of_samples(P, Q), product_of_spectra(P, Q)
    assert abs(left - right) > 0.1 * right


# ---------------------------------------------------------------------------- Eq. 4, 14-16
def test_jmmd_and_jintra():
    """The double sums of Eq. 14, <C_I, C_J> = 1/(n n') Σ_ij k_ij (biased), and U6's weights."""
    members = [np.flatnonzero(LABELS == c) for c in (0, 2, 5, 7)]

    def oracle(x, cross):
        k, total = gaussian(x, [2.0]), 0.0
        for I, J in itertools.permutations(members, 2):
            II, JJ, IJ = (k[np.ix_(a, b)].mean() for a, b in ((I, I), (J, J), (I, J)))
            total -= len(I) * len(J) / len(NEGATIVE) * (II + JJ - cross * IJ)
        return total
    for function, cross in ((jrd.jmmd, 2), (jrd.jintra, 0)):
        agrees(lambda x: function(torch.exp(-jrd.squared_distances(x) / 2), LONG),
               partial(oracle, cross=cross), points())


def test_intra_class():
    """Class 7 has one image, so no pair."""
    def oracle(x):
        return -sum(np.mean([np.exp(-0.5 * ((x[i] - x[j]) ** 2).sum())
                             for i, j in POSITIVE if LABELS[i] == c]) for c in (0, 2, 5))
    agrees(lambda x: jrd.intra_class(x, LONG), oracle, points())


def test_batches_are_a_plain_shuffle():
    def draw(seed, epoch):
        cfg = jrd.parse_args(["--batch", "5", "--seed", seed])
        return jrd.batches(LONG.new_zeros(23), cfg, epoch)
    first = draw("3", 0)
    assert [len(b) for b in first] == [5, 5, 5, 5, 3] and sorted(sum(first, [])) == list(range(23))
    assert draw("3", 0) == first not in (draw("3", 1), draw("4", 0))

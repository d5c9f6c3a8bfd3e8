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
def mean_distance(x, metric="sqeuclidean"):
    """U2: over pairs i ≠ j; its users take it for a constant."""
    return pdist(x, metric).mean()


def gaussian(x, tau, factors):
    total = 0
    for factor in factors:
        total = total + np.exp(-cdist(x, x, "sqeuclidean") / (factor * tau))
    return total / len(factors)


@pytest.mark.parametrize("K, factors", [(2, [0.5, 1]), (5, [0.25, 0.5, 1, 2, 4])])
def test_gaussian_kernel(K, factors):
    agrees(jrd.gaussian_kernel, partial(gaussian, tau=mean_distance(points()), factors=factors),
           points(), constants=[K])


SIGMA = mean_distance(points(), "cityblock")


def laplace(a, b):
    return np.exp(-np.abs(a - b).sum() / SIGMA)


def polynomial(a, b, p):
    return (a @ b + 1) ** p


def mgf(a, b):
    return np.exp(a @ b)


@pytest.mark.parametrize("kernel, of_pair, constants", [
    (jrd.laplace_kernel, laplace, []), (jrd.mgf_kernel, mgf, []),
    (jrd.polynomial_kernel, polynomial, [1]), (jrd.polynomial_kernel, polynomial, [5])])
def test_kernels_by_pairs(kernel, of_pair, constants):
    def oracle(x):
        gram = np.zeros((B, B))
        for i, j in np.ndindex(B, B):
            gram[i, j] = of_pair(x[i], x[j], *constants)
        return gram
    agrees(kernel, oracle, points(), constants=constants, step=1e-5)


# ---------------------------------------------------------------------------- Eq. 6-11
def test_jrs_takes_a_kernel_matrix_and_no_embeddings():
    with pytest.raises(ValueError, match=r"^gram, .*, must be \(B, B\), .*, not \(8, 3\)$"):
        jrd.jrs(torch.tensor(points()), LONG)


def test_joint_kernel_and_jrs():
    """Eq. 10 as a loop over N_pairs (Eq. 11), with the kernels of 5.1."""
    layers = points(5, 1), points(4, 2), points(3, 3)
    taus = [mean_distance(x) for x in layers]

    def function(*layers):
        return jrd.jrs(jrd.joint_kernel(layers, jrd.kernels_of(jrd.parse_args([]))), LONG)

    def oracle(x_minus, x, x_plus):
        k_minus, k = gaussian(x_minus, taus[0], [0.5, 1, 2]), gaussian(x, taus[1], [0.5, 1, 2])
        k_plus, total = gaussian(x_plus, taus[2], [1]), 0
        for pair in NEGATIVE:
            total += k_minus[pair] * k[pair] * k_plus[pair]
        return total / len(NEGATIVE)
    agrees(function, oracle, *layers)


def test_jrs_is_the_inner_product_of_covariance_operators():
    """Eq. 6-8 with a kernel whose feature map is finite: (x·y + 1)² = <φ(x), φ(y)>, so that C(P) is
    an array and S_JRS its inner product."""
    def features(x):
        x = np.append(x, 1.0)
        return np.outer(x, x).ravel()
    x, y, labels = points(3, 1), points(2, 2), [0, 0, 0, 1, 1, 1, 1, 1]
    C = np.zeros((2, 16, 9))
    for a, b, I in zip(x, y, labels):
        C[I] += np.outer(features(a), features(b)) / labels.count(I)
    kernel = partial(jrd.polynomial_kernel, p=2)
    gram = jrd.joint_kernel([torch.tensor(x), torch.tensor(y)], [kernel, kernel])
    assert jrd.jrs(gram, torch.tensor(labels)).item() == pytest.approx((C[0] * C[1]).sum())


def test_network_is_eq_9():
    """x = (Wᵀx⁻ + b)/‖·‖, x⁺ = cosines to the normalized proxies."""
    torch.manual_seed(0)
    network = jrd.Network(jrd.parse_args(["--dim", "6"]), classes=5).double()
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    x_minus, x, x_plus = network(images)
    assert x_minus.shape == (3, 128) and x.shape == (3, 6) and x_plus.shape == (3, 5)
    for i in range(3):
        z = network.embedding.weight @ x_minus[i] + network.embedding.bias
        torch.testing.assert_close(x[i], z / z.norm())
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
        total = 0
        for logits, y in zip(s * cos, LABELS):
            logits[y] -= s * m
            total += logsumexp(logits) - logits[y]
        return total / B
    agrees(jrd.amsoftmax, oracle, np.random.RandomState(3).uniform(-1, 1, (B, 8)),
           constants=[LONG, s, m])


# ---------------------------------------------------------------------------- Eq. 13, E3
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(120)           # against exp(-t²/2)


def both_sides(P, Q):
    """S_JRS by jrd.jrs of two classes with samples P, Q (n, L), each layer on the line, and
    Π_l <φ_P^l, φ_Q^l> in L²(Λ^l), by Gauss-Hermite quadrature.

    Bochner: exp(-(x - y)²/σ²) = E exp(-iω(x - y)) with ω ~ N(0, 2/σ²)."""
    layers, product = np.concatenate([P, Q]).T[:, :, None], 1.0        # (L, n, 1)
    kernels = [partial(jrd.gaussian_kernel, K=3)] * len(layers)
    gram = jrd.joint_kernel(torch.tensor(layers), kernels)
    for x in layers:
        total = 0
        for s2 in mean_distance(x) * np.array([0.5, 1, 2]):
            waves = np.exp(1j * x * NODES * np.sqrt(2 / s2))       # (n, 120)
            phi_p, phi_q = waves[:len(P)].mean(0), waves[len(P):].mean(0)
            total += (WEIGHTS * phi_p.conj() * phi_q).sum().real / np.sqrt(2 * np.pi)
        product *= total / 3
    return jrd.jrs(gram, torch.tensor([0] * len(P) + [1] * len(Q))).item(), product


def test_proposition_1_holds_for_independent_layers():
    """All combinations of two layers' values, so that they are independent."""
    draw = np.random.RandomState(1)
    P = np.array([*itertools.product(draw.randn(4), draw.randn(3))])
    Q = np.array([*itertools.product(1 + draw.randn(3), draw.randn(5) - 1)])
    left, right = both_sides(P, Q)
    assert left == pytest.approx(right, rel=1e-9)


def test_proposition_1_fails_for_dependent_layers():
    """E3: with x² = x¹ the two sides differ, and not by rounding."""
    draw = np.random.RandomState(0)
    left, right = both_sides(draw.randn(6, 1).repeat(2, 1), draw.randn(6, 1).repeat(2, 1))
    assert abs(left - right) > 0.1 * right


# ---------------------------------------------------------------------------- Eq. 4, 14-16
@pytest.mark.parametrize("function, cross", [(jrd.jmmd, 2), (jrd.jintra, 0)])
def test_jmmd_and_jintra(function, cross):
    """The double sums of Eq. 14, <C_I, C_J> = 1/(n n') Σ_ij k_ij (biased), and U6's weights."""
    classes = [np.flatnonzero(LABELS == c) for c in (0, 2, 5, 7)]

    def oracle(k):
        total = 0
        for I, J in itertools.permutations(classes, 2):
            II, JJ, IJ = k[I][:, I].mean(), k[J][:, J].mean(), k[I][:, J].mean()
            total -= len(I) * len(J) / len(NEGATIVE) * (II + JJ - cross * IJ)
        return total
    agrees(function, oracle, gaussian(points(), 2, [1]), constants=[LONG])


def test_intra_class():
    """Class 7 has one image, so no pair."""
    def oracle(x):
        total = 0
        for i, j in POSITIVE:
            n = np.sum(LABELS == LABELS[i])
            total -= np.exp(-0.5 * ((x[i] - x[j]) ** 2).sum()) / (n * (n - 1))
        return total
    agrees(jrd.intra_class, oracle, points(), constants=[LONG])


def test_batches_are_a_plain_shuffle():
    def draw(seed, epoch):
        cfg = jrd.parse_args(["--batch", "5", "--seed", seed])
        return jrd.batches(LONG.new_zeros(23), cfg, epoch)
    first = draw("3", 0)
    assert [len(batch) for batch in first] == [5, 5, 5, 5, 3]
    assert sorted(sum(first, [])) == [*range(23)]
    assert draw("3", 0) == first not in (draw("3", 1), draw("4", 0))


def test_labels_that_are_not_the_batchs_are_refused():
    x = torch.rand(4, 3)
    gram = jrd.gaussian_kernel(x, 3)
    for labels in (torch.tensor([0, 0, 1]), torch.tensor([[0], [0], [1], [1]])):
        for function in (jrd.jrs, jrd.jmmd, jrd.jintra, jrd.intra_class):
            with pytest.raises(ValueError, match=r"labels must be \(4,\), one for each row of \(4, "):
                function(x if function is jrd.intra_class else gram, labels)
    for function in (jrd.jmmd, jrd.jintra):
        with pytest.raises(ValueError, match=r"gram, the kernel matrix, must be \(B, B\)"):
            function(x, LONG[:4])


@pytest.mark.parametrize("function", [jrd.jrs, jrd.jmmd, jrd.jintra])
def test_one_class_is_0_with_a_gradient(function):
    """... which DDP needs; and nan stays nan."""
    x = torch.rand(4, 3, requires_grad=True)
    value = function(jrd.gaussian_kernel(x, 3), torch.zeros(4).long())
    value.backward()
    assert value == 0 and (x.grad == 0).all()
    assert function(torch.full((4, 4), torch.nan), torch.zeros(4).long()).isnan()


def test_amsoftmax_has_its_margin_in_the_cosines_precision():
    """m in float32 moves a loss of float64 in the tenth digit."""
    cos, labels = torch.rand(6, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0, 1])
    less = cos.numpy().copy()
    less[range(6), labels] -= 0.1
    want = np.mean(logsumexp(20 * less, 1) - 20 * less[range(6), labels])
    assert jrd.amsoftmax(cos, labels, 20.0, 0.1).item() == pytest.approx(want, rel=1e-14)

"""Every equation and kernel of the JRD paper against NumPy and SciPy, in value and gradient.

Eq. 1-3 and 5 live in eval.py and are tested in test_eval.py.
"""
import itertools
from functools import partial

import numpy as np
import pytest
import scipy.special
import torch
from PIL import Image
from scipy.spatial.distance import cdist, pdist

import jrd
from conftest import agrees

LABELS = np.array([0, 0, 1, 1, 1, 2, 3])       # class 2 and 3 have one example
B = len(LABELS)


def points(d, seed=0, scale=1.3):
    return scale * np.random.RandomState(seed).standard_normal((B, d))


def cfg(**changes):
    return jrd.parse_args([f"--{k.replace('_', '-')}={v}" for k, v in changes.items()])


def ordered_pairs(labels=LABELS):
    return [(i, j) for i, j in itertools.permutations(range(len(labels)), 2)
            if labels[i] != labels[j]]


# ---------------------------------------------------------------------------- kernels
def mean_distance(x, metric):
    """U2: the mean over pairs i ≠ j, a constant."""
    return pdist(x, metric).mean()


def gaussian(x, bandwidths):
    d2 = cdist(x, x, "sqeuclidean")
    return np.mean([np.exp(-d2 / s2) for s2 in bandwidths], axis=0)


WEIGHTS = np.random.RandomState(9).standard_normal((B, B))      # makes a scalar of a (B, B) matrix


@pytest.mark.parametrize("K, factors", [(1, [1]), (2, [0.5, 1]), (3, [0.5, 1, 2]),
                                        (4, [0.25, 0.5, 1, 2]), (5, [0.25, 0.5, 1, 2, 4])])
def test_gaussian_kernel(K, factors):
    x = points(4)
    tau = mean_distance(x, "sqeuclidean")
    agrees(lambda x: (jrd.gaussian_kernel(x, K) * torch.tensor(WEIGHTS)).sum(),
           lambda x: (gaussian(x, [f * tau for f in factors]) * WEIGHTS).sum(), x)


def test_laplace_kernel():
    x = points(4)
    sigma = mean_distance(x, "cityblock")
    agrees(lambda x: (jrd.laplace_kernel(x) * torch.tensor(WEIGHTS)).sum(),
           lambda x: (np.exp(-cdist(x, x, "cityblock") / sigma) * WEIGHTS).sum(), x)


@pytest.mark.parametrize("p", [1, 2, 5])
def test_polynomial_kernel(p):
    def oracle(x):
        return sum(WEIGHTS[i, j] * (sum(a * b for a, b in zip(x[i], x[j])) + 1) ** p
                   for i in range(B) for j in range(B))
    agrees(lambda x: (jrd.polynomial_kernel(x, p) * torch.tensor(WEIGHTS)).sum(), oracle,
           points(3, scale=0.7), step=1e-5)


def test_mgf_kernel():
    def oracle(x):
        return sum(WEIGHTS[i, j] * np.exp(np.dot(x[i], x[j])) for i in range(B) for j in range(B))
    agrees(lambda x: (jrd.mgf_kernel(x) * torch.tensor(WEIGHTS)).sum(), oracle,
           points(3, scale=0.7))


@pytest.mark.parametrize("kernel", [partial(jrd.gaussian_kernel, K=3), jrd.laplace_kernel])
def test_kernels_where_all_points_are_equal(kernel):
    """The limit of exp(-d/τ) as all distances vanish together is not nan: k = 1, gradient 0."""
    for x in (torch.ones(5, 3), torch.ones(1, 3)):
        x.requires_grad_()
        k = kernel(x)
        assert torch.equal(k, torch.ones(len(x), len(x)))
        k.sum().backward()
        assert torch.equal(x.grad, torch.zeros_like(x))


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("kernel", [partial(jrd.gaussian_kernel, K=3), jrd.laplace_kernel])
def test_kernels_do_not_depend_on_scale(kernel, scale):
    """τ adapts: the kernel of scaled points is the same (so a batch may have any scale)."""
    x = torch.tensor(points(4), dtype=torch.float32)
    torch.testing.assert_close(kernel(scale * x), kernel(x), rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------------------- Eq. 6-11
def test_joint_kernel_and_jrs():
    """Eq. 10 as its four sums, with the kernels of 5.1, over N_pairs (Eq. 11)."""
    xs = [points(5, 1), points(4, 2), points(3, 3)]
    taus = [mean_distance(x, "sqeuclidean") for x in xs]

    def oracle(*xs):
        k_minus, k = (gaussian(x, [0.5 * t, t, 2 * t]) for x, t in zip(xs[:2], taus))
        k_plus = gaussian(xs[2], [taus[2]])
        total, n_pairs = 0.0, 0
        for I, J in itertools.permutations(set(LABELS.tolist()), 2):
            for i in np.flatnonzero(LABELS == I):
                for j in np.flatnonzero(LABELS == J):
                    total += k_minus[i, j] * k[i, j] * k_plus[i, j]
                    n_pairs += 1
        return total / n_pairs

    kernels = jrd.kernel_functions(cfg(variant="jrd"))
    agrees(lambda *xs: jrd.jrs(jrd.joint_kernel(xs, kernels), torch.tensor(LABELS)), oracle, *xs)


@pytest.mark.parametrize("variant, layers", [("jrd", [0, 1, 2]), ("mrd", [1]), ("jrd-c", [0, 1]),
                                             ("jrd-pooling", [1, 2])])
def test_variants(variant, layers):
    """Table 2: which representations enter; K for x⁻ and x, K' for x⁺."""
    xs = [points(5, 1), points(4, 2), points(3, 3)]
    factors = [[0.5, 1], [0.5, 1], [0.25, 0.5, 1, 2]]                       # K = 2, K' = 4
    want = np.ones((B, B))
    for layer in layers:
        tau = mean_distance(xs[layer], "sqeuclidean")
        want = want * gaussian(xs[layer], [f * tau for f in factors[layer]])
    flags = dict(variant=variant, K=2) | ({"K_prime": 4} if 2 in layers else {})
    got = jrd.regularizer(cfg(**flags), [torch.tensor(x) for x in xs], torch.tensor(LABELS))
    assert got.item() == pytest.approx(np.mean([want[i, j] for i, j in ordered_pairs()]), rel=1e-9)


@pytest.mark.parametrize("flags", [dict(kernel="mgf"), dict(kernel="polynomial", p=5)])
def test_pooled_features_are_normalised_where_they_would_overflow(flags):
    """U8: x⁻ under the polynomial and mgf kernels; x and x⁺ come normalised."""
    x = 50 * points(4)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    first, second, _ = jrd.kernel_functions(cfg(**flags))
    oracle = (lambda s: np.exp(s)) if flags["kernel"] == "mgf" else (lambda s: (s + 1) ** 5)
    np.testing.assert_allclose(first(torch.tensor(x)), oracle(unit @ unit.T))
    np.testing.assert_allclose(second(torch.tensor(x / 50)), oracle(x @ x.T / 2500))


def test_jrs_is_the_inner_product_of_covariance_operators():
    """Eq. 6-8 with a kernel whose feature map is finite: (x·y + 1)² = <φ(x), φ(y)>, so that C(P) is
    an array and S_JRS its inner product."""
    def features(x):
        x = np.append(x, 1.0)
        return np.outer(x, x).ravel()
    xs, labels = [points(3, 1), points(2, 2)], np.array([0, 0, 0, 1, 1, 1, 1])
    C = {I: np.mean([np.multiply.outer(features(a), features(b))
                     for a, b, y in zip(*xs, labels) if y == I], axis=0) for I in (0, 1)}
    kernel = jrd.joint_kernel([torch.tensor(x) for x in xs],
                              [partial(jrd.polynomial_kernel, p=2)] * 2)
    assert jrd.jrs(kernel, torch.tensor(labels)).item() == pytest.approx((C[0] * C[1]).sum())


def test_network_is_eq_9():
    """x = (Wᵀx⁻ + b)/‖·‖, x⁺ = cosines to the normalized proxies; batch norm frozen, affine not."""
    torch.manual_seed(0)
    network = jrd.Network(cfg(dim=6), classes=5).double()
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    network.train()
    statistics = {k: v.clone() for k, v in network.state_dict().items() if "running" in k}
    x_minus, x, x_plus = network(images)
    assert x_minus.shape == (3, 128) and x.shape == (3, 6) and x_plus.shape == (3, 5)
    W, b, w = (t.detach().numpy() for t in (network.embedding.weight, network.embedding.bias,
                                            network.proxies))
    for i in range(3):
        z = W @ x_minus[i].detach().numpy() + b
        want = z / np.sqrt((z ** 2).sum())
        np.testing.assert_allclose(x[i].detach(), want)
        for c in range(5):
            assert x_plus[i, c].item() == pytest.approx(want @ w[:, c] / np.linalg.norm(w[:, c]))
    (x_plus * torch.randn(3, 5)).sum().backward()
    assert all(torch.equal(v, network.state_dict()[k]) for k, v in statistics.items())
    norm = next(m for m in network.backbone.modules() if isinstance(m, torch.nn.BatchNorm2d))
    assert not norm.training and norm.weight.grad.abs().max() > 0 and network.training
    np.testing.assert_allclose(network.embed(images).detach(), x.detach())


def test_proxies_start_as_u4_says():
    bound = np.sqrt(6 / ((1 + 5) * 2000))                  # Kaiming-uniform, a = √5, fan-in C
    proxies = jrd.Network(cfg(dim=64), classes=2000).proxies.detach()
    assert proxies.shape == (64, 2000) and proxies.abs().max() <= bound
    assert proxies.abs().max() > 0.99 * bound
    assert abs(proxies.std() - bound / 3 ** 0.5) < 0.01 * bound


# ---------------------------------------------------------------------------- Eq. 12
def test_amsoftmax():
    s, m = 7.0, 0.25

    def oracle(cos):
        total = 0.0
        for row, y in zip(cos, LABELS):
            true = s * (row[y] - m)
            others = [s * c for j, c in enumerate(row) if j != y]
            total += scipy.special.logsumexp([true, *others]) - true
        return total / B

    agrees(lambda cos: jrd.amsoftmax(cos, torch.tensor(LABELS), s, m), oracle,
           np.random.RandomState(3).uniform(-1, 1, (B, 4)))


def test_amsoftmax_of_one_class_is_zero():
    assert jrd.amsoftmax(torch.rand(3, 1), torch.zeros(3, dtype=torch.long), 20, 0.1) == 0


# ---------------------------------------------------------------------------- Eq. 13, E3
def spectral_inner_product(p, q, bandwidths):
    """<φ_P, φ_Q> in L²(Λ) for samples p, q on the line, by Gauss-Hermite quadrature.

    Bochner: exp(-(x - y)²/σ²) = E exp(-iω(x - y)) with ω ~ N(0, 2/σ²)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)          # against exp(-t²/2)
    total = 0.0
    for s2 in bandwidths:
        omega = nodes * np.sqrt(2 / s2)
        phi_p, phi_q = (np.exp(1j * np.outer(omega, x)).mean(1) for x in (p, q))
        total += (weights * phi_p.conj() * phi_q).sum().real / np.sqrt(2 * np.pi)
    return total / len(bandwidths)


def jrs_of_samples(P, Q, K):
    """jrd.jrs of two classes with samples P, Q (n, L) on the line a layer."""
    x = torch.tensor(np.concatenate([P, Q]))
    kernels = [partial(jrd.gaussian_kernel, K=K)] * x.shape[1]
    kernel = jrd.joint_kernel(list(x[:, :, None].unbind(1)), kernels)
    return jrd.jrs(kernel, torch.tensor([0] * len(P) + [1] * len(Q))).item()


def product_of_spectra(P, Q):
    product = 1.0
    for p, q in zip(P.T, Q.T):
        tau = pdist(np.concatenate([p, q])[:, None], "sqeuclidean").mean()
        product *= spectral_inner_product(p, q, [0.5 * tau, tau, 2 * tau])
    return product


def test_proposition_1_holds_for_one_layer():
    draw = np.random.RandomState(0)
    P, Q = draw.standard_normal((6, 1)), 1 + 0.5 * draw.standard_normal((5, 1))
    assert jrs_of_samples(P, Q, 3) == pytest.approx(product_of_spectra(P, Q), rel=1e-9)


def test_proposition_1_holds_for_independent_layers():
    """Samples that are all combinations of their layers' values: exactly independent layers."""
    draw = np.random.RandomState(1)
    P = np.array(list(itertools.product(draw.standard_normal(4), draw.standard_normal(3))))
    Q = np.array(list(itertools.product(1 + draw.standard_normal(3), draw.standard_normal(5) - 1)))
    assert jrs_of_samples(P, Q, 3) == pytest.approx(product_of_spectra(P, Q), rel=1e-9)


def test_proposition_1_fails_for_dependent_layers():
    """E3: with x² = x¹ the two sides differ, and not by rounding."""
    draw = np.random.RandomState(0)
    P, Q = (draw.standard_normal((6, 1)).repeat(2, 1) for _ in range(2))
    left, right = jrs_of_samples(P, Q, 3), product_of_spectra(P, Q)
    assert abs(left - right) > 0.1 * right


# ---------------------------------------------------------------------------- Eq. 4, 14-16
def norms(k, labels=LABELS):
    """The double sums of Eq. 14: <C_I, C_J> by 1/(n n') Σ_ij k_ij, biased (U6)."""
    groups = {I: np.flatnonzero(labels == I) for I in sorted(set(labels.tolist()))}
    return {(I, J): sum(k[i, j] for i in a for j in b) / (len(a) * len(b))
            for I, a in groups.items() for J, b in groups.items()}, {
                I: len(a) for I, a in groups.items()}


def test_jmmd_and_jintra():
    def class_pairs(k):
        inner, n = norms(k)
        pairs = list(itertools.permutations(n, 2))
        total = sum(n[I] * n[J] for I, J in pairs)
        return inner, [(I, J, n[I] * n[J] / total) for I, J in pairs]

    def oracle_jmmd(x):
        inner, pairs = class_pairs(gaussian(x, [2.0]))
        return -sum(w * (inner[I, I] + inner[J, J] - 2 * inner[I, J]) for I, J, w in pairs)

    def oracle_jintra(x):
        inner, pairs = class_pairs(gaussian(x, [2.0]))
        return -sum(w * (inner[I, I] + inner[J, J]) for I, J, w in pairs)

    def kernel(x):
        return torch.exp(-jrd.squared_distances(x) / 2.0)

    labels = torch.tensor(LABELS)
    agrees(lambda x: jrd.jmmd(kernel(x), labels), oracle_jmmd, points(3))
    agrees(lambda x: jrd.jintra(kernel(x), labels), oracle_jintra, points(3))


def test_jmmd_is_jintra_plus_twice_jrs():
    kernel, labels = torch.rand(B, B, dtype=torch.float64), torch.tensor(LABELS)
    assert jrd.jmmd(kernel, labels).item() == pytest.approx(
        (jrd.jintra(kernel, labels) + 2 * jrd.jrs(kernel, labels)).item())


def test_intra_class():
    def oracle(x):
        total = 0.0
        for I in set(LABELS.tolist()):
            members = np.flatnonzero(LABELS == I)
            pairs = list(itertools.permutations(members, 2))
            if pairs:
                near = [np.exp(-0.5 * ((x[i] - x[j]) ** 2).sum()) for i, j in pairs]
                total -= sum(near) / len(pairs)
        return total
    agrees(lambda x: jrd.intra_class(x, torch.tensor(LABELS)), oracle, points(3))


# ---------------------------------------------------------------------------- invariants, limits
@pytest.mark.parametrize("name", ["jrs", "jmmd", "jintra", "intra"])
@pytest.mark.parametrize("labels", [[0] * 6, list(range(6)), [4]])
def test_degenerate_batches(name, labels):
    """One class, one example a class, B = 1: finite value and gradient."""
    reps = [torch.randn(len(labels), d, requires_grad=True) for d in (5, 4, 3)]
    value = jrd.regularizer(cfg(regularizer=name), reps, torch.tensor(labels))
    value.backward()
    assert torch.isfinite(value)
    assert all(r.grad is None or torch.isfinite(r.grad).all() for r in reps)
    if name == "jrs" and len(set(labels)) == 1:
        assert value == 0


@pytest.mark.parametrize("name", ["jrs", "jmmd", "jintra", "intra"])
def test_order_of_the_batch_does_not_matter(name):
    reps, labels = [torch.tensor(points(d)) for d in (5, 4, 3)], torch.tensor(LABELS)
    order = torch.randperm(B)
    assert jrd.regularizer(cfg(regularizer=name), reps, labels).item() == pytest.approx(
        jrd.regularizer(cfg(regularizer=name), [r[order] for r in reps], labels[order]).item())


def test_more_diverse_classes_have_less_jrs():
    """What the regularizer is for: moving two classes apart lowers it, moving a class together or
    apart within itself is not what it measures."""
    labels = torch.tensor([0, 0, 1, 1])
    near = torch.tensor([[0.0], [1.0], [0.5], [1.5]])
    far = torch.tensor([[0.0], [1.0], [9.5], [10.5]])
    kernel = partial(jrd.gaussian_kernel, K=3)
    assert jrd.jrs(kernel(far), labels) < jrd.jrs(kernel(near), labels)


# ---------------------------------------------------------------------------- schedule, presets
def test_presets_are_the_papers():
    """Section 5.1 and the searched α of Tables 3 and 4."""
    cub, cars, sop = (cfg(dataset=d) for d in ("cub", "cars", "sop"))
    for c in (cub, cars, sop):
        assert (c.s, c.dim, c.lr, c.K, c.K_prime) == (20, 512, 1e-4, 3, 1)
        assert c.backbone == "bn_inception"
    found = [(c.alpha, c.m, c.batch, c.epochs, c.drop_every, c.lr_proxies)
             for c in (cub, cars, sop)]
    assert found == [(1, 0.1, 100, 50, 20, 1e-2), (1, 0.05, 50, 50, 20, 1e-2),
                     (0.4, 0.1, 120, 80, 40, 1e-1)]
    assert cfg(dataset="cub", kernel="laplace").alpha == 1
    assert cfg(dataset="cub", kernel="polynomial").alpha == cfg(kernel="mgf").alpha == 1e-3
    assert cfg(regularizer="jmmd").alpha == 0.1 and cfg(kernel="mgf", alpha=2).alpha == 2


def test_transforms_are_u3():
    image = Image.fromarray(np.random.RandomState(0).randint(0, 256, (300, 400, 3), np.uint8))
    prefix, augment, test = jrd.transforms(cfg(dataset="cub"))
    crop, mirror = augment.transforms
    assert prefix is None and crop.size == (224, 224) and mirror.p == 0.5
    assert (tuple(crop.scale), crop.ratio) == ((0.08, 1.0), (3 / 4, 4 / 3))     # torchvision's
    whole = np.asarray(image.resize((341, 256), Image.BILINEAR))
    np.testing.assert_array_equal(np.asarray(test(image)), whole[16:240, 58:282])


def test_batches_are_a_plain_shuffle():
    labels, c = torch.zeros(23), cfg(batch=5, seed=3)
    first = jrd.batches(labels, c, epoch=0)
    assert [len(b) for b in first] == [5, 5, 5, 5, 3] and sorted(sum(first, [])) == list(range(23))
    assert first == jrd.batches(labels, c, epoch=0) != jrd.batches(labels, c, epoch=1)
    assert first != jrd.batches(labels, cfg(batch=5, seed=4), epoch=0)


# ---------------------------------------------------------------------------- the step
def test_the_step_is_eq_11(spy, monkeypatch):
    """The loss is AMSoftmax + α JRS; Adam as U1 says, with a rate of their own for the proxies."""
    monkeypatch.setattr(jrd, "batches", lambda labels, cfg, epoch: [list(range(0, 60, 4))])
    (row,), (groups,) = spy(jrd, "--alpha", "0.7", "--epochs", "1")
    assert row["jrs"] > 1e-3
    assert row["loss"] == pytest.approx(row["amsoftmax"] + 0.7 * row["jrs"], rel=1e-6)
    assert [g["lr"] for g in groups] == [3e-4, 3e-2]
    assert all((g["eps"], g["weight_decay"]) == (0.01, 1e-4) for g in groups)


def test_rates_drop_as_u5_says(spy, monkeypatch):
    """Every 2 epochs: from the 0-based epochs 1, 3, ... on."""
    monkeypatch.setattr(jrd, "batches", lambda labels, cfg, epoch: [list(range(8))])
    _, told = spy(jrd, "--epochs", "4", "--drop-every", "2")
    np.testing.assert_allclose([[g["lr"] for g in groups] for groups in told],
                               np.outer([1, 0.1, 0.1, 0.01], [3e-4, 3e-2]))

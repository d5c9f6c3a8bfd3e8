"""What JRS minimizes if its bandwidths follow the batch: the figures of studies/jrs_bandwidths.md.

    python studies/jrs_bandwidths.py                    free points, no network: about a minute
    python studies/jrs_bandwidths.py train runs-jrs     18 trainings on glyphs of half a minute
    python studies/jrs_bandwidths.py run "only τ" --dataset cub128 ...      jrd.py with one variant

"detached" is jrd.py's kernel: τ is the batch's mean squared distance, without a gradient.  The
other variants are τ with its gradient, τ fixed at its first value, and "only τ": what detaching
adds to the gradient.  Free points also draw studies/jrs_bandwidths.png.
"""
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common  # noqa: E402
import jrd  # noqa: E402
from report.figures import LINES, PALETTE, panels, save  # noqa: E402
from report.tables import difference, markdown, spread  # noqa: E402
from support.command_line import main  # noqa: E402
from support.identity import run_folder  # noqa: E402

STEPS, VARIANTS = 1000, ("detached", "gradient", "fixed")               # of free points
LABELS = torch.arange(10).repeat_interleave(5)
KS = (3, 3, 1)                                                          # of x⁻, x, x⁺
RUNS = (("detached", 0), ("detached", 2), ("gradient", 2), ("gradient", 10), ("only τ", 2),
        ("fixed", 2))                                                   # variant, α
DIGITS = {"F": 4, "F at the τ of α = 0": 4, "τ of x⁻": 0, "R@1": 1, "MAP@R": 1}     # of the table


# ---------------------------------------------------------------------------- the variants of JRS
def mixture(u, K):
    """5.1's kernel as a function of u = ‖x - x'‖²/τ"""
    return sum(torch.exp(-u / 2.0 ** (i - K // 2)) for i in range(K)) / K


def mean_distance(x):
    """τ of U2, with its gradient.  (B, d) -> scalar"""
    return jrd.squared_distances(x).sum() / (len(x) * (len(x) - 1))


def at_bandwidths(reps, labels, Ks, taus):
    """L(x; τ): Eq. 10-11 at the given bandwidths"""
    gram = 1.0
    for x, K, tau in zip(reps, Ks, taus):
        gram = gram * mixture(jrd.squared_distances(x) / tau, K)
    return jrd.jrs(gram, labels)


def penalty(variant, reps, labels, Ks, first):
    """JRS of a batch, for its gradient.  first: the bandwidths of the first batch"""
    taus = [mean_distance(x) for x in reps]
    if variant == "detached":
        kernels = [partial(jrd.gaussian_kernel, K=K) for K in Ks]
        return jrd.jrs(jrd.joint_kernel(reps, kernels), labels)
    if variant in ("only τ", "only τ of x⁻"):                           # -Σ ∂L/∂τ τ
        constant = [tau.detach().requires_grad_() for tau in taus]
        value = at_bandwidths([x.detach() for x in reps], labels, Ks, constant)
        slopes = torch.autograd.grad(value, constant)
        if variant == "only τ of x⁻":                                   # x⁻ is the first layer
            return -slopes[0] * taus[0]
        return -sum(slope * tau for slope, tau in zip(slopes, taus))
    return at_bandwidths(reps, labels, Ks, first if variant == "fixed" else taus)


# ---------------------------------------------------------------------------- free points
def cap(seed):
    """Ten overlapping classes on one side of the unit sphere, like pooled features.  -> (50, 16)"""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(10, 16, generator=draw)
    return F.normalize(centres[LABELS] + 0.6 * torch.randn(50, 16, generator=draw) + 1)


def flow(variant, layers, on_sphere):
    """Gradient descent on the points -> (steps + 1, 3): F; of the last layer τ / first τ, and the
    mean same-class distance² / τ"""
    first, rows = [mean_distance(x) for x in layers], []
    same_class = (LABELS[:, None] == LABELS).fill_diagonal_(False)
    for _ in range(STEPS + 1):
        layers = [x.detach() for x in layers]
        taus = [mean_distance(x) for x in layers]
        same = jrd.squared_distances(layers[-1])[same_class].mean()
        rows.append([at_bandwidths(layers, LABELS, KS, taus), taus[-1] / first[-1],
                     same / taus[-1]])
        for x in layers:
            x.requires_grad_()
        loss = penalty(variant, layers, LABELS, KS[:len(layers)], first)
        slopes = torch.autograd.grad(loss, layers)
        for i, slope in enumerate(slopes):
            layers[i] = layers[i] - 0.3 * len(LABELS) * first[i] * slope
            if on_sphere[i]:
                layers[i] = F.normalize(layers[i])
    return torch.tensor(rows)


def free_points(png):
    torch.set_default_dtype(torch.float64)
    most = torch.tensor(49 / 45)                                        # N / N_pairs
    points = [cap(seed) for seed in range(3)]
    settings = {"free, 16-d": (points[:1], [False]), "sphere, 16-d": (points[:1], [True]),
                "three layers": (points, [False, True, False])}         # x⁺ is free here too
    rows = [["points", "τ", "lower bound", "F, first", "F, last", "τ, last / first",
             "same-class d²/τ, last"]]
    figure, axes = panels(3, 3, 2.5)
    for name, (layers, on_sphere) in settings.items():
        bound = 1.0
        for K in KS[:len(layers)]:
            bound = bound * mixture(most, K)
        for variant, colour, line in zip(VARIANTS, PALETTE, LINES):
            steps = flow(variant, layers, on_sphere)
            (first, _, _), (last, tau, same) = steps[[0, -1]]
            rows.append([name, variant, f"{bound:.4f}", f"{first:.4f}", f"{last:.4f}",
                         f"{tau:.2f}", f"{same:.4f}"])
            if name == "free, 16-d":
                for axis, values in zip(axes, steps.T):
                    axis.plot(range(1, STEPS + 2), values, color=colour, ls=line, lw=2,
                              label=f"τ {variant}")
    axes[0].axhline(mixture(most, 3), color="0.6", lw=1, label="lower bound")
    for axis, title in zip(axes, ("F, JRS's value", "τ / first τ", "same-class distance² / τ")):
        axis.set(title=title, xlabel="step + 1", xscale="log")
    axes[1].set_yscale("log")
    print(markdown(rows))
    save(figure, png)


# ---------------------------------------------------------------------------- trainings
def batches(data):
    """28 batches of 100 training images -> images, labels"""
    cfg = jrd.parse_args([])
    for epoch in range(4):
        for batch in jrd.batches(data.train.labels, cfg, epoch)[:7]:
            yield data.train.images[batch], data.train.labels[batch]


def replaced(variant, flags):
    """jrd.py's regularizer is this variant of JRS from now on -> the settings, named after it"""
    first = []

    def regularizer(cfg, x_minus, x, x_plus, labels):
        reps = (x_minus, x, x_plus)
        first[:] = first or [mean_distance(x).detach() for x in reps]
        return penalty(variant, reps, labels, KS, first)
    jrd.regularizer = regularizer
    name = variant.replace(" ", "-").replace("τ", "tau")
    return jrd.parse_args([*flags, "--name", name])


@torch.no_grad()
def measure(network, data, fixed):
    """-> means over the batches: F, F at the fixed bandwidths if there are any, the bandwidths"""
    rows = []
    for images, labels in batches(data):
        reps = network(images)
        taus = [mean_distance(x) for x in reps]
        rows.append([at_bandwidths(reps, labels, KS, taus),
                     at_bandwidths(reps, labels, KS, fixed or taus), *taus])
    return torch.tensor(rows, dtype=torch.float64).mean(0).tolist()


def directions(network, data):
    """Print the cosines of the variants' gradients on one batch with the detached one's, which are
    those of their steps too: "only τ" steps along the ascent, "gradient" along -∇F."""
    images, labels = next(batches(data))
    reps = network(images)
    weights = [p for p in network.parameters() if p.requires_grad]
    detached = None
    for variant in ("detached", "only τ", "gradient"):
        loss = penalty(variant, reps, labels, KS, None)
        slopes = torch.autograd.grad(loss, weights, retain_graph=True)
        slope = torch.cat([slope.flatten() for slope in slopes])
        if variant == "detached":
            detached = slope
        cosine = F.cosine_similarity(slope, detached, 0)
        print(f"{variant}: cosine with detached {cosine:.2f}")


def trainings(out):
    torch.set_num_threads(1)
    data = common.load_dataset("glyphs")
    figures = np.empty((len(DIGITS), len(RUNS), 3))                     # of each seed
    for seed in range(3):
        fixed = None
        for i, (variant, alpha) in enumerate(RUNS):
            flags = f"--alpha {alpha} --seed {seed} --lr 1e-3 --lr-proxies 0.1 --out".split()
            cfg = replaced(variant, [*flags, out])                      # 3.3 times the preset's rate
            last = jrd.train(cfg)["last epoch"]
            network, _ = common.load(run_folder("jrd", cfg) / "last.pt", jrd.Network)
            value, at_fixed, *taus = measure(network, data, fixed)
            fixed = fixed or taus
            figures[:, i, seed] = value, at_fixed, taus[0], 100 * last["R@1"], 100 * last["MAP@R"]
            if (seed, alpha) == (0, 0):
                print("after the training with α = 0, seed 0, on one batch:")
                directions(network, data)
    rows = [["", *(f"{variant}, α = {alpha}" for variant, alpha in RUNS)]]
    for values, (name, digits) in zip(figures, DIGITS.items()):
        rows.append([name, *(spread(of_run, digits) for of_run in values)])
    gains = figures[-1] - figures[-1, 0]
    rows.append(["MAP@R less that of α = 0", *map(difference, gains)])
    print(markdown(rows))


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            free_points(Path(__file__).with_suffix(".png"))
        case "train", out:
            main(trainings, lambda: out)
        case "run", variant, *flags if variant in (*VARIANTS, "only τ"):
            main(jrd.train, lambda: replaced(variant, flags))
        case _:
            sys.exit(__doc__)

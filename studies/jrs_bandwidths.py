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

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common  # noqa: E402
import jrd  # noqa: E402
from report.figures import COLOURS, LINES, panels, save  # noqa: E402
from report.tables import difference, markdown, spread  # noqa: E402
from support.command_line import main  # noqa: E402
from support.runs import run_folder  # noqa: E402

STEPS, VARIANTS = 1000, ("detached", "gradient", "fixed")               # of free points
KS = (3, 3, 1)                                                          # of x⁻, x, x⁺
RUNS = (("detached", 0), ("detached", 2), ("gradient", 2), ("gradient", 10), ("only τ", 2),
        ("fixed", 2))                                                   # variant, α
RATE = ("--lr", "1e-3", "--lr-proxies", "0.1")                          # 3.3 times the preset's
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
    return jrd.jrs(jrd.joint_kernel(reps, [
        lambda x, K=K, tau=tau: mixture(jrd.squared_distances(x) / tau, K)
        for K, tau in zip(Ks, taus)]), labels)


def penalty(variant, reps, labels, Ks, first):
    """JRS of a batch, for its gradient.  first: the bandwidths of the first batch"""
    taus = [mean_distance(x) for x in reps]
    if variant == "detached":
        kernels = [partial(jrd.gaussian_kernel, K=K) for K in Ks]
        return jrd.jrs(jrd.joint_kernel(reps, kernels), labels)
    if variant == "only τ":                                             # -Σ ∂L/∂τ τ
        constant = [tau.detach().requires_grad_() for tau in taus]
        value = at_bandwidths([x.detach() for x in reps], labels, Ks, constant)
        slopes = torch.autograd.grad(value, constant)
        return -sum(slope * tau for slope, tau in zip(slopes, taus))
    return at_bandwidths(reps, labels, Ks, first if variant == "fixed" else taus)


# ---------------------------------------------------------------------------- free points
def cap(labels, d, seed):
    """Ten overlapping classes on one side of the unit sphere, like pooled features.  -> (B, d)"""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(int(labels.max()) + 1, d, generator=draw, dtype=torch.float64)
    x = centres[labels] + 0.6 * torch.randn(len(labels), d, generator=draw, dtype=torch.float64)
    return F.normalize(x + 4 / d ** 0.5)


def flow(variant, layers, on_sphere, labels, Ks):
    """Gradient descent on the points -> (steps + 1, 3): F; of the last layer τ / first τ, and the
    mean same-class distance² / τ"""
    first, rows = [mean_distance(x) for x in layers], []
    same_class = (labels[:, None] == labels) & ~torch.eye(len(labels), dtype=torch.bool)
    for _ in range(STEPS + 1):
        taus = [mean_distance(x) for x in layers]
        same = jrd.squared_distances(layers[-1])[same_class].mean()
        rows.append([at_bandwidths(layers, labels, Ks, taus), taus[-1] / first[-1],
                     same / taus[-1]])
        layers = [x.clone().requires_grad_() for x in layers]
        slopes = torch.autograd.grad(penalty(variant, layers, labels, Ks, first), layers)
        layers = [x.detach() - 0.3 * len(x) * tau * slope
                  for x, slope, tau in zip(layers, slopes, first)]
        layers = [F.normalize(x) if sphere else x for x, sphere in zip(layers, on_sphere)]
    return torch.tensor(rows, dtype=torch.float64)


def free_points(png):
    labels = torch.arange(10).repeat_interleave(5)
    most = torch.tensor(50 * 49 / (labels[:, None] != labels).sum().item())     # N / N_pairs
    points = [cap(labels, 16, seed) for seed in range(3)]
    settings = {"free, 16-d": (points[:1], [False]), "sphere, 16-d": (points[:1], [True]),
                "three layers": (points, [False, True, False])}         # x⁺ is free here too
    rows = [["points", "τ", "lower bound", "F, first", "F, last", "τ, last / first",
             "same-class d²/τ, last"]]
    figure, axes = panels(3, 3, 2.5)
    for name, (layers, on_sphere) in settings.items():
        Ks = KS[:len(layers)]
        bound = torch.stack([mixture(most, K) for K in Ks]).prod().item()
        flows = {variant: flow(variant, layers, on_sphere, labels, Ks) for variant in VARIANTS}
        for variant, steps in flows.items():
            (first, _, _), (last, tau, same) = steps[[0, -1]].tolist()
            rows.append([name, variant, f"{bound:.4f}", f"{first:.4f}", f"{last:.4f}",
                         f"{tau:.2f}", f"{same:.4f}"])
        if name == "free, 16-d":
            for (variant, steps), colour, line in zip(flows.items(), COLOURS, LINES):
                for axis, values in zip(axes, steps.T):
                    axis.plot(range(1, STEPS + 2), values, color=colour, ls=line, lw=2,
                              label=f"τ {variant}")
            axes[0].axhline(bound, color="0.6", lw=1, label="lower bound")
    for axis, title in zip(axes, ("F, JRS's value", "τ / first τ", "same-class distance² / τ")):
        axis.set(title=title, xlabel="step + 1", xscale="log")
    axes[1].set_yscale("log")
    print(*markdown(rows), sep="\n")
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
def measure(network, data, fixed=None):
    """-> {figure: mean over the batches}, the mean bandwidths.  fixed: those of α = 0"""
    rows = []
    for images, labels in batches(data):
        reps = network(images)
        taus = [mean_distance(x) for x in reps]
        rows.append([at_bandwidths(reps, labels, KS, taus),
                     at_bandwidths(reps, labels, KS, fixed or taus), *taus])
    F_own, F_fixed, *taus = torch.tensor(rows, dtype=torch.float64).mean(0).tolist()
    return {"F": F_own, "F at the τ of α = 0": F_fixed, "τ of x⁻": taus[0]}, taus


def directions(network, data):
    """Print the cosines of the variants' gradients on one batch with the detached one's."""
    images, labels = next(batches(data))
    reps = network(images)
    weights = [p for p in network.parameters() if p.requires_grad]
    slopes = {variant: torch.cat([slope.flatten() for slope in torch.autograd.grad(
        penalty(variant, reps, labels, KS, None), weights, retain_graph=True)])
        for variant in ("detached", "only τ", "gradient")}
    for variant, slope in slopes.items():
        cosine = F.cosine_similarity(slope, slopes["detached"], 0)
        print(f"{variant}: cosine with detached {cosine:.2f}")


def trainings(out):
    torch.set_num_threads(1)
    data, figures = common.load_dataset("glyphs"), {run: [] for run in RUNS}
    for seed in range(3):
        fixed = None
        for variant, alpha in RUNS:
            cfg = replaced(variant, ["--alpha", str(alpha), "--seed", str(seed), *RATE,
                                     "--out", out])
            last = jrd.train(cfg)["last epoch"]
            network, _ = common.load(run_folder("jrd", cfg) / "last.pt", jrd.Network)
            means, taus = measure(network, data, fixed)
            fixed = fixed or taus
            recalls = {metric: 100 * last[metric] for metric in ("R@1", "MAP@R")}
            figures[variant, alpha].append(means | recalls)
            if (seed, alpha) == (0, 0):
                print("after the training with α = 0, seed 0, on one batch:")
                directions(network, data)
    rows = [["", *(f"{variant}, α = {alpha}" for variant, alpha in RUNS)]]
    for name, digits in DIGITS.items():
        rows.append([name, *(spread([seed[name] for seed in seeds], digits)
                             for seeds in figures.values())])
    bases = [seed["MAP@R"] for seed in figures[RUNS[0]]]
    rows.append(["MAP@R less that of α = 0", *(
        difference([seed["MAP@R"] - base for seed, base in zip(seeds, bases)])
        for seeds in figures.values())])
    print(*markdown(rows), sep="\n")


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            free_points(Path(__file__).with_suffix(".png"))
        case "train", out:
            trainings(out)
        case "run", variant, *flags if variant in (*VARIANTS, "only τ"):
            main(jrd.train, lambda: replaced(variant, flags))
        case _:
            sys.exit(__doc__)

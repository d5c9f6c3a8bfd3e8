"""What JRS minimises when its bandwidths follow the batch: the figures of docs/jrs_bandwidths.md.

    python benchmarks/jrs_bandwidths.py         free points, no network: about a minute

"detached" is jrd.py's kernel: τ is the batch's mean squared distance, without a gradient.  Here it
is set beside τ with its gradient, τ fixed at the start, and "only τ": what detaching adds.
Prints the page's first table and draws docs/jrs_bandwidths.png.  jrs_bandwidths_glyphs.py trains.
"""
import sys
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import jrd  # noqa: E402

STEPS, SHOWN = 1000, ("detached", "gradient", "fixed")


# ---------------------------------------------------------------------------- the variants of JRS
def mixture(u, K):
    """5.1's kernel as a function of u = ‖x - x'‖²/τ."""
    return sum(torch.exp(-u / 2.0 ** (i - K // 2)) for i in range(K)) / K


def mean_distance(x):
    """τ of U2, with its gradient.  (B, d) -> scalar"""
    return jrd.squared_distances(x).sum() / (len(x) * (len(x) - 1))


def at_bandwidths(reps, labels, Ks, taus):
    """L(x; τ): Eq. 10-11 at the bandwidths given."""
    return jrd.jrs(jrd.joint_kernel(reps, [
        lambda x, K=K, tau=tau: mixture(jrd.squared_distances(x) / tau, K)
        for K, tau in zip(Ks, taus)]), labels)


def penalty(how, reps, labels, Ks, first):
    """JRS of a batch, for its gradient.  first: the bandwidths of the first batch."""
    if how == "detached":
        return jrd.jrs(jrd.joint_kernel(reps, [partial(jrd.gaussian_kernel, K=K) for K in Ks]),
                       labels)
    own = [mean_distance(x) for x in reps]
    if how == "gradient":
        return at_bandwidths(reps, labels, Ks, own)
    if how == "fixed":
        return at_bandwidths(reps, labels, Ks, first)
    taus = [tau.detach().requires_grad_() for tau in own]               # "only τ": -Σ ∂L/∂τ · τ
    slopes = torch.autograd.grad(
        at_bandwidths([x.detach() for x in reps], labels, Ks, taus), taus)
    return -sum(slope * tau for slope, tau in zip(slopes, own))


# ---------------------------------------------------------------------------- free points
def cap(labels, d, seed, towards=4.0):
    """Ten overlapping classes on one side of the unit sphere, like pooled features.  -> (B, d)"""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(int(labels.max()) + 1, d, generator=draw, dtype=torch.float64)
    x = centres[labels] + 0.6 * torch.randn(len(labels), d, generator=draw, dtype=torch.float64)
    return F.normalize(x + towards / d ** 0.5)


def flow(how, layers, spheres, labels, Ks):
    """Gradient descent on the points themselves -> a dict of lists, a value a step."""
    layers, rows = [x.clone() for x in layers], []
    first = [mean_distance(x) for x in layers]
    same = ~jrd.different_class(labels) & ~torch.eye(len(labels), dtype=torch.bool)
    for _ in range(STEPS + 1):
        own = [mean_distance(x) for x in layers]
        rows.append({"F": at_bandwidths(layers, labels, Ks, own).item(),
                     "tau": own[-1].item() / first[-1].item(),
                     "same": (jrd.squared_distances(layers[-1])[same].mean() / own[-1]).item()})
        layers = [x.requires_grad_() for x in layers]
        slopes = torch.autograd.grad(penalty(how, layers, labels, Ks, first), layers)
        with torch.no_grad():
            layers = [x - 0.3 * len(x) * t * slope for x, slope, t in zip(layers, slopes, first)]
            layers = [F.normalize(x) if on else x for x, on in zip(layers, spheres)]
    return {key: [row[key] for row in rows] for key in rows[0]}


def free_points(png):
    labels = torch.arange(10).repeat_interleave(5)
    different = jrd.different_class(labels)
    most = torch.tensor(len(labels) * (len(labels) - 1) / different.sum().item())  # N / N_pairs
    points = [cap(labels, 16, seed) for seed in range(3)]
    # x⁻ has any scale, x lies on the sphere, x⁺ is here free as well
    settings = {"free, 16-d": (points[:1], [False], (3,)),
                "sphere, 16-d": (points[:1], [True], (3,)),
                "sphere, 2-d": ([cap(labels, 2, 0)], [True], (3,)),
                "three layers": (points, [False, True, False], (3, 3, 1))}
    print(f"{'points':<14}{'τ':<10}{'bound':>8}{'F first':>9}{'F last':>9}{'τ last/first':>14}"
          f"{'same first':>12}{'same last':>11}{'rises':>7}")
    flows = {}
    for name, (layers, spheres, Ks) in settings.items():
        bound = torch.stack([mixture(most, K) for K in Ks]).prod().item()
        for how in SHOWN:
            got = flows[name, how] = flow(how, layers, spheres, labels, Ks)
            rises = sum(b > a + 1e-12 for a, b in zip(got["F"], got["F"][1:]))
            print(f"{name:<14}{how:<10}{bound:8.4f}{got['F'][0]:9.4f}{got['F'][-1]:9.4f}"
                  f"{got['tau'][-1]:14.2f}{got['same'][0]:12.4f}{got['same'][-1]:11.4f}{rises:7d}",
                  flush=True)
    draw(flows, mixture(most, 3).item(), png)


def draw(flows, bound, png):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(2, 3, figsize=(9, 5), sharex=True, constrained_layout=True)
    titles = {"F": "F, JRS at the batch's τ", "tau": "τ / τ at the start",
              "same": "same-class distance² / τ"}
    styles = {"detached": ("C0", "-"), "gradient": ("C1", "--"), "fixed": ("C2", ":")}
    for row, name in zip(axes, ("free, 16-d", "sphere, 16-d")):
        for axis, (key, title) in zip(row, titles.items()):
            for how, (colour, dash) in styles.items():
                axis.plot(range(1, STEPS + 2), flows[name, how][key], color=colour, ls=dash, lw=2,
                          label=f"τ {how}" if how != "gradient" else "τ with gradient")
            axis.set_title(f"{name}: {title}", fontsize=9)
            axis.set_xscale("log")
        row[0].axhline(bound, color="0.6", lw=1, label="lower bound")
    axes[0, 1].set_yscale("log")
    axes[0, 1].legend(*axes[0, 0].get_legend_handles_labels(), fontsize=8, loc="upper left")
    for axis in axes[1]:
        axis.set_xlabel("step + 1")
    figure.savefig(png, dpi=90)
    print(f"wrote {png}")


if __name__ == "__main__":
    free_points(ROOT / "docs" / "jrs_bandwidths.png")

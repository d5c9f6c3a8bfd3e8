"""One figure per lecture: how JRD, MDR and DML-DA act, before any result.

    python studies/mechanisms.py        writes docs/lectures/*_mechanism.png; needs matplotlib

JRD, Eq. 8-11: training images of `glyphs`, pretrained backbone.  20 steps of Eq. 11 have trained
the embedding layer and the proxies.  Numbers are means without self-pairs.
MDR, Eq. 1-5: the pairs of all training images of `glyphs`, pretrained backbone, random embedding.
DML-DA, Eq. 6 and comment U1: gradient descent on 10 D_avg + 10 L_DA of one class with spread D_avg
and target α.  The first term is the pull of Eq. 2's positive pairs.  There are no negative pairs.
"""
import sys
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import common  # noqa: E402
import dml_da  # noqa: E402
import jrd  # noqa: E402
import mdr  # noqa: E402
from report.figures import COLOURS, PALETTE  # noqa: E402

BLUE, RED, GREEN = PALETTE[:3]
MATRICES = ("kernel of x⁻:\npooled features", "kernel of x:\nembedding", "kernel of x⁺:\ncosines",
            "joint kernel:\nthe product", "penalized pairs:\ndifferent classes")


def glyphs(script):
    """-> settings, an untrained network, the training images (n, 3, h, w), their labels (n,)"""
    cfg = script.parse_args(["--device", "cpu"])
    seen = common.load_dataset("glyphs", None, *script.transforms(cfg)[::2]).train_plain
    torch.manual_seed(0)
    network = script.Network(cfg, len(seen.classes))
    common.load_weights(network.backbone, cfg.backbone)
    return cfg, network.eval(), seen.images, seen.labels


def draw_jrd():
    cfg, network, images, labels = glyphs(jrd)
    optimizer = torch.optim.Adam([network.proxies, *network.embedding.parameters()], lr=0.01)
    for batch in torch.randint(len(labels), (20, cfg.batch)):
        optimizer.zero_grad()
        jrd.objective(network, cfg, images[batch], labels[batch])[0].backward()
        optimizer.step()
    shown = torch.cat([torch.nonzero(labels == c)[:8, 0] for c in range(2, 8)])     # six classes
    reps = [x.detach() for x in network(images[shown])]
    kernels, different = jrd.kernels_of(cfg), labels[shown, None] != labels[None, shown]
    joint = jrd.joint_kernel(reps, kernels)
    grams = [*(kernel(x) for kernel, x in zip(kernels, reps)), joint,
             joint.masked_fill(~different, torch.nan)]
    figure, axes = plt.subplots(1, 5, figsize=(14, 3.1))
    for axis, gram, title, sign in zip(axes, grams, MATRICES, "××=→ "):
        same, other = gram[~different & ~torch.eye(48, dtype=bool)].mean(), gram[different].mean()
        matrix = axis.imshow(gram.numpy(), vmin=0, vmax=1, cmap="cividis")
        for line in (axis.hlines, axis.vlines):
            line([7.5, 15.5, 23.5, 31.5, 39.5], -0.5, 47.5, color="white", lw=0.8)
        axis.set(xticks=[], yticks=[], facecolor="0.85", title=title,
                 xlabel=f"same class {same:.2f}\ndifferent {other:.2f}")
        axis.text(1.1, 0.5, sign, transform=axis.transAxes, fontsize=14, ha="center", va="center")
    axis.set_xlabel(f"their mean, {jrd.jrs(joint, labels[shown]):.2f},\nis the penalty")
    figure.colorbar(matrix, ax=axes, shrink=0.75, pad=0.03)


def draw_mdr():
    cfg, network, images, labels = glyphs(mdr)
    regularizer = mdr.MDR(cfg.levels).requires_grad_(False)
    distances = mdr.unit_mean(mdr.pairwise_distances(network(images).detach()))
    regularizer.update(distances)
    normalized = mdr.off_diagonal(regularizer.normalize(distances)).numpy()
    same = mdr.off_diagonal(labels[:, None] == labels).numpy()
    d = torch.linspace(-4.5, 4.5, 91)                                   # the histogram's bins too
    _, (cost, pairs) = plt.subplots(2, 1, sharex=True, figsize=(10.5, 5), layout="constrained")
    cost.plot(d, (d - regularizer.levels[regularizer.assign(d)]).abs(), color="black", lw=2)
    start = torch.tensor([-4.2, -3.6, -2.4, -1.8, -1.2, -0.6, 0.6, 1.2, 1.8, 2.4, 3.6, 4.2])
    pull = 0.45 * (regularizer.levels[regularizer.assign(start)] - start).sign()
    cost.quiver(start, 0 * pull + 1.8, pull, 0 * pull, color=COLOURS["Triplet+MDR"], scale_units="x", scale=1)
    cost.set(ylim=(0, 2.1), xticks=range(-4, 5), ylabel="cost of a pair\n|d̄ - nearest level|",
             title="MDR pulls every distance to its nearest level, equally hard near and far")
    for chosen, name in ((same, "positive pairs"), (~same, "negative pairs")):
        pairs.hist(normalized[chosen], d, density=True, color=COLOURS[name], alpha=0.6, label=name)
    for axis in (cost, pairs):
        axis.vlines(cfg.levels, 0, 2.1, color="black", ls="--", lw=1, label="levels")
        axis.vlines([-1.5, 1.5], 0, 2.1, color="black", ls=":", lw=1, label="borders")
    pairs.set(ylim=(0, 0.45), ylabel="density", xlabel="normalized distance d̄ = (d - μ*) / σ*")
    pairs.legend(loc="center right")


def draw_dml_da():
    def push(D_avg, alpha):         # minus the gradient of 10 L_DA of one class
        at = torch.tensor([[D_avg], [alpha]], requires_grad=True)
        (-10 * dml_da.density_regularizer(*at)).backward()
        return at.grad[:, 0].tolist()
    _, (plane, force) = plt.subplots(1, 2, figsize=(10.5, 4.6), layout="constrained")
    for rate, colour in ((0.03, BLUE), (0.4, GREEN), (5, RED)):
        path = [(0.6, 0.5)]
        for _ in range(200):
            (D, alpha), (push_D, push_alpha) = path[-1], push(*path[-1])
            path.append((D + 0.002 * (push_D - 10), alpha + 0.002 * rate * push_alpha))
        plane.plot(*zip(*path), color=colour, lw=2.5, marker="o", markevery=[-1],
                   label=f"targets learn at {rate} × the network's rate")
    D = torch.linspace(0, 1, 21)
    plane.plot(0.6, 0.5, "ko", label="start")
    plane.plot(D, D + 0.5, "k--", lw=1, label="α = D + ½, the optimum of α: push 10")
    plane.plot(D, D, "k-", lw=1, label="α = D: no push")
    plane.set(xlim=(0, 1), ylim=(0.2, 2.1), xlabel="spread of a class, D", ylabel="its target, α",
              title="Without negative pairs, a slow target lets its class collapse")
    force.plot(D, [push(d, d + 0.5)[0] for d in D], color=RED, lw=2.5,
               label="settled target, α = D + ½: a constant push,\nas strong as the pairs' pull")
    force.plot(D, [push(d, 0.5)[0] for d in D], color=BLUE, lw=2.5,
               label="fixed target, α = ½: a spring around D = ½")
    force.set(xlim=(0, 1), ylim=(-11, 19), xlabel="spread of a class, D",
              ylabel="push of DML-DA on D", title="A settled target pushes alike, whatever D")
    plane.legend(loc="upper left")
    force.legend(loc="upper left")


def draw(folder):
    for name, function in (("jrd", draw_jrd), ("mdr", draw_mdr), ("dml_da", draw_dml_da)):
        function()
        path = Path(folder, f"{name}_mechanism.png")
        plt.savefig(path, dpi=115, bbox_inches="tight")
        picture = Image.open(path).convert("RGB").quantize(256)
        picture.save(path, optimize=True)                               # less than half as large


if __name__ == "__main__":
    draw(ROOT / "docs" / "lectures")

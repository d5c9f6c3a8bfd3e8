"""The moving picture of README: points of four classes under one loss and three regularizers.

    python studies/toy.py       writes docs/toy.gif in half a minute; needs matplotlib and Pillow

Gradient descent moves the points themselves, from the same start in every panel.  The loss is
DML-DA's contrastive loss (its Eq. 2) with margin 1.  The panels add to it: nothing; 3 L_JRS /
N_pairs (JRD, Eq. 10-11) of one representation, as in MRD; 8 L_MDR (MDR, Eq. 5) with fixed levels
-1, 0, 1, because in this plane -3 is a negative distance; 10 L_DA (DML-DA, Eq. 6-8) on the circle.
The papers' weights are 1, 0.6 and 10; 3 and 8 show the effect beside a loss that sums over pairs.
"""
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib import animation
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import dml_da  # noqa: E402
import jrd  # noqa: E402
import mdr  # noqa: E402
from report.figures import MARKS, PALETTE  # noqa: E402

STEPS = 1600
LABELS = torch.arange(4).repeat_interleave(8)
PANELS = (  # title, scale of the arrows, text
    ("contrastive loss alone", 1,
     "Plane.  Each class becomes a point.\nBeyond the margin nothing pushes."),
    ("+ JRS (of JRD), α = 3", 5,
     "Plane.  Different classes repel each\nother, beyond the margin too."),
    ("+ MDR, λ = 8", 1,
     "Plane.  Each distance is drawn to its\nnearest level: classes keep a width."),
    ("+ DML-DA, λ = 10", 2,
     "Unit circle.  Each class keeps a spread.\nInner circle: the loss alone."))


def descend(points, regularizer=lambda f: 0 * f.sum(), project=lambda x: x, adam=None):
    """-> [(points, minus the regularizer's gradient)] at the start and after each step.  adam: the
    optimizer of what else the regularizer learns"""
    path, points = [], project(points)
    for _ in range(STEPS + 1):
        points = points.detach().requires_grad_()
        regularizer(project(points)).backward()
        arrows = -points.grad.clone()
        dml_da.contrastive_loss(project(points), LABELS, 1.0).backward()
        path.append((points.detach(), arrows))
        points = project(points.detach() - 0.005 * points.grad)
        if adam:
            adam.step()
            adam.zero_grad()
    return path


def paths():
    """-> the paths of the four panels and of the inner circle"""
    angle = torch.pi / 2 * LABELS + 0.5
    noise = torch.randn(len(LABELS), 2, generator=torch.Generator().manual_seed(6))
    start = 0.55 * torch.stack([angle.cos(), angle.sin()], 1) + 0.25 * noise
    levels, D0 = mdr.MDR((-1, 0, 1), learnable=False), dml_da.initial_density(start, LABELS)
    alpha = torch.full((4,), 0.5, requires_grad=True)

    def density(f):
        D_avg = dml_da.class_density(f, LABELS)[1]
        return 10 * dml_da.density_regularizer(D_avg, alpha, D0)
    return (descend(start),
            descend(start, lambda x: 3 * jrd.jrs(jrd.gaussian_kernel(x, K=3), LABELS)),
            descend(start, lambda x: 8 * levels(mdr.pairwise_distances(x))),
            descend(start, density, F.normalize, torch.optim.Adam([alpha], 1e-4)),
            descend(start, project=F.normalize))


def draw_points(axis, points, size):
    for c in range(4):
        axis.plot(*points[LABELS == c].T, MARKS[c], color=PALETTE[c], ms=size, mew=0.6, mec="white")


def draw(to):
    figure, axes = plt.subplots(1, 4, figsize=(10.4, 3.5), dpi=100)
    figure.subplots_adjust(0.005, 0.2, 0.995, 0.92, wspace=0.02)
    *panels, inner = paths()

    def frame(step):
        for axis, path, (title, scale, text) in zip(axes, panels, PANELS):
            points, arrows = path[step]
            axis.clear()
            if path is panels[3]:
                for radius in (1, 0.7):
                    axis.add_patch(plt.Circle((0, 0), radius, fill=False, color="0.85"))
                draw_points(axis, 0.7 * inner[step][0], 4)
            axis.quiver(*points.T, *(scale * arrows).T, angles="xy", scale_units="xy", scale=1,
                        color="0.4", width=0.006)
            draw_points(axis, points, 7)
            spread = dml_da.class_density(points, LABELS)[1].mean()
            axis.set(xlim=(-1.4, 1.4), ylim=(-1.4, 1.4), aspect="equal", xticks=[], yticks=[])
            axis.set_title(title, fontsize=11, weight="bold")
            axis.set_xlabel(f"{text}\nSpread within a class: {spread:.2f}", fontsize=9)

    moving = (STEPS * torch.linspace(0, 1, 48) ** 2).round().int().tolist()
    shown = 40 * [STEPS] + 15 * [0] + moving
    animation.FuncAnimation(figure, frame, shown).save(to, animation.PillowWriter(fps=10))


if __name__ == "__main__":
    draw(ROOT / "docs" / "toy.gif")

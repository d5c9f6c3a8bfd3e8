"""The pictures of docs/lectures: what JRD, MDR or DML-DA did in its runs (matplotlib).

    python studies/lectures.py RUN [RUN ...] [--out runs] [--to lecture.png]

RUN is a folder in --out that has a last.pt, such as jrd-glyphs-s0; all runs are of one script.
The picture has a column per run.  The numbers that go with it are printed.
"""
import argparse
import importlib
import sys
import textwrap
from pathlib import Path

import numpy as np
import PIL.Image
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common  # noqa: E402
import dml_da  # noqa: E402
import jrd  # noqa: E402
import mdr  # noqa: E402
from report.figures import COLOURS, MARKS, panels  # noqa: E402
from report.pictures import images_of  # noqa: E402
from report.tables import logged  # noqa: E402


def draw_lecture(path, out, names):
    """Draw the picture of the runs `names` of the folder `out`."""
    runs = [opened(out, name) for name in names]
    papers = sorted({run.paper for run in runs})
    if len(papers) > 1:
        raise common.UserError(f"a lecture takes runs of one script, not of {', '.join(papers)}")
    figure = {"jrd": draw_jrd, "mdr": draw_mdr, "dml_da": draw_dml_da}[papers[0]](runs)
    figure.savefig(path, bbox_inches="tight")
    PIL.Image.open(path).convert("RGB").quantize().save(path, optimize=True)    # a third of it
    print(f"wrote {path}")


def opened(out, name):
    """A run's folder -> its network before and after training, settings, log, data."""
    log = logged(out, name)[0].log
    after, cfg = common.load(Path(out, name, "last.pt"))
    torch.manual_seed(cfg.seed)                             # as `train` begins
    before = importlib.import_module(cfg.paper).Network(cfg, cfg.splits["train"][1])
    common.load_weights(before.backbone, cfg.backbone, cfg.weights)
    run = argparse.Namespace(paper=cfg.paper, cfg=cfg, name=name, log=log, before=before.eval(),
                             after=after)
    run.data = images_of(run)
    return run


def columns_of(runs):
    """-> [(title, run, network)]: the first run's network before training, all after it"""
    return [("before training", runs[0], runs[0].before),
            *((run.name, run, run.after) for run in runs)]


def ten_classes(split):
    """Ten images of ten random classes -> images (n, 3, h, w), labels (n,), sorted by class"""
    classes = np.random.RandomState(0).permutation(split.labels.unique().numpy())[:10]
    index = torch.cat([torch.nonzero(split.labels == c)[:10, 0] for c in np.sort(classes)])
    return torch.stack([split.images[i] for i in index.tolist()]), split.labels[index]


# ---------------------------------------------------------------------------- JRD
@torch.no_grad()
def draw_jrd(runs):
    """The joint Gram matrix (Eq. 8) of 100 seen images sorted by class, and of 100 unseen ones."""
    columns = columns_of(runs)
    figure, axes = panels(2 * len(columns), 3, 2.9, columns=len(columns))
    axes = iter(axes)
    print("mean of the joint kernel over pairs of 100 images, and the bandwidths τ of x⁻, x, x⁺")
    for kind, split in (("seen", runs[0].data.seen), ("unseen", runs[0].data.test)):
        images, labels = ten_classes(split)
        different = jrd.different_class(labels)
        same = ~different & ~torch.eye(len(labels), dtype=torch.bool)
        for title, run, network in columns:
            reps = network(images)
            used = [reps[layer] for layer in jrd.VARIANTS[run.cfg.variant]]
            gram = jrd.joint_kernel(used, jrd.kernel_functions(run.cfg))
            means = f"same class {gram[same].mean():.3f}, different {gram[different].mean():.4f}"
            taus = ", ".join(f"{jrd.mean_bandwidth(jrd.squared_distances(x)):.3g}" for x in reps)
            print(f"{kind} classes, {title}: {means}; τ {taus}")
            axis = next(axes)
            shown = axis.imshow(gram.numpy(), vmin=0, vmax=0.5, interpolation="nearest")
            axis.set(title=textwrap.fill(f"{kind} classes, {title}", 38) + f"\n{means}",
                     xticks=[], yticks=[])
            axis.grid(False)
    figure.colorbar(shown, ax=figure.axes, shrink=0.6, label="joint kernel (yellow: 0.5 and more)")
    return figure


# ---------------------------------------------------------------------------- MDR
def draw_mdr(runs):
    """From above: normalized distances before and after training; levels and spread of the
    distances by epoch; the level that pairs are nearest to by epoch."""
    figure, axes = panels(3 * len(runs), 4.2, 2.6, columns=len(runs))
    for column, run in zip(np.reshape(axes, (3, len(runs))).T, runs):
        draw_distances(column[0], run)
        draw_log(column[1], column[2], run)
    handles = {name: handle for axis in figure.axes
               for handle, name in zip(*axis.get_legend_handles_labels())}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=4, fontsize=8)
    return figure


@torch.no_grad()
def normalized_distances(network, run):
    """What L_MDR sees of the first epoch's batches without augmentation
    -> d̄ of the positive pairs, of the negative pairs, σ*"""
    regularizer, split = mdr.MDR(run.cfg.levels, run.cfg.momentum), run.data.seen
    positive, negative = [], []
    for batch in mdr.batches(split.labels, run.cfg, 0):
        distances = mdr.pairwise_distances(network(torch.stack([split.images[i] for i in batch])))
        if not run.cfg.l2norm:
            distances = mdr.unit_mean(distances)
        regularizer.update(distances)
        normalized = mdr.off_diagonal(regularizer.normalize(distances))
        labels = split.labels[batch]
        same = mdr.off_diagonal(labels[:, None] == labels[None, :])
        positive.append(normalized[same])
        negative.append(normalized[~same])
    return torch.cat(positive), torch.cat(negative), regularizer.sigma.item()


def draw_distances(axis, run):
    """Histograms of d̄, outlined before training and filled after it, with the levels."""
    for when, network, look in (("before", run.before, dict(histtype="step")),
                                ("after", run.after, dict(alpha=0.45))):
        *pairs, sigma = normalized_distances(network, run)
        words = [f"{run.name}, {when} training: σ* {sigma:.3f}"]
        for kind, d, colour in zip(("positive", "negative"), pairs, COLOURS):
            words.append(f"d̄ of {kind} pairs {d.mean():.2f} ± {d.std():.2f}")
            axis.hist(d.numpy(), np.linspace(-5, 5, 81), density=True, color=colour,
                      label=f"{kind} pairs, {when}", **look)
        print(", ".join(words))
    for level in run.log[-1]["levels"]:
        axis.axvline(level, color="black", lw=1.2, ls=":")
    axis.set(title=run.name, xlabel="normalized distance (dotted: the levels)", yticks=[])


def draw_log(upper, lower, run):
    """Levels in units of distance, μ* + s σ*, in the band μ* ± σ*; shares of the pairs by level."""
    epochs, last = [row["epoch"] for row in run.log], run.log[-1]
    mu, sigma, levels = (np.array([row[key] for row in run.log])
                         for key in ("mu*", "sigma*", "levels"))
    upper.fill_between(epochs, mu - sigma, mu + sigma, color=COLOURS[5], alpha=0.5, lw=0)
    for i, level in enumerate(last["levels"]):
        at = mu + levels[:, i] * sigma
        upper.plot(epochs, at, color="black", ls=":", lw=1.2)
        upper.annotate(f"{level:+.2f}", (epochs[-1], at[-1]), (3, -3), textcoords="offset points",
                       fontsize=8)
    upper.set(xlabel="epoch", ylabel="distance (band: μ* ± σ*)", ylim=(0, 2))
    words = []
    for kind, line, colour in (("positive", "-", COLOURS[0]), ("negative", "--", COLOURS[1])):
        shares = 100 * np.array([row[f"{kind} pairs by level"] for row in run.log])
        for i, of_level in enumerate(shares.T):
            lower.plot(epochs, of_level, line, color=colour, marker=MARKS[i], markevery=5, ms=4,
                       lw=1.2, label=f"{kind}, nearest to level {i + 1}")
        words.append(f"{kind} " + " ".join(f"{share:.1f}" for share in shares[-1]))
    lower.set(xlabel="epoch", ylabel="% of the pairs")
    print(f"{run.name}, epoch {epochs[-1]}: levels " + " ".join(f"{s:+.2f}" for s in last["levels"])
          + f", σ* {sigma[-1]:.3f}, % of the pairs by level: {', '.join(words)}")


# ---------------------------------------------------------------------------- DML-DA
@torch.no_grad()
def draw_dml_da(runs):
    """D_avg of the training classes after training against D⁰, and by epoch with α; images of ten
    classes, before and after, on the two axes along which they differ most (PCA: t-SNE would even
    out how dense the classes are)."""
    columns, seen = columns_of(runs), runs[0].data.seen
    figure, axes = panels(2 * len(columns), 3.4, 3, columns=len(columns))
    (against, *by_epoch), below = np.reshape(axes, (2, len(columns)))
    _, D0 = dml_da.class_density(common.embed(runs[0].before.pool, seen, runs[0].cfg), seen.labels)
    images, labels = ten_classes(seen)
    print("D_avg and α of the training classes: mean (least to largest); r: D_avg's correlation "
          "with D⁰")
    for i, (title, run, network) in enumerate(columns):
        _, D_avg = dml_da.class_density(common.embed(network, seen, run.cfg), seen.labels)
        words = (f"{title}: D_avg {D_avg.mean():.3f} ({D_avg.min():.3f} to {D_avg.max():.3f}), "
                 f"r {np.corrcoef(D0, D_avg)[0, 1]:.2f}")
        if network is run.after:
            against.scatter(D0 / D0.mean(), D_avg, s=16, color=COLOURS[i % 7], marker=MARKS[i % 13],
                            label=title)
            draw_targets(by_epoch[i - 1], run)
            alpha = [run.log[-1][f"alpha {which}"] for which in ("mean", "min", "max")]
            words += ", α {:.3f} ({:.3f} to {:.3f})".format(*alpha)
        print(words)
        f = network(images)
        _, _, axes_of_f = torch.pca_lowrank(f, 2, niter=20)
        places = (f - f.mean(0)) @ axes_of_f
        for k, c in enumerate(labels.unique()):
            below[i].scatter(*places[labels == c].T, s=22, linewidths=0, color=COLOURS[k % 7],
                             marker=MARKS[k])
        below[i].set(title=textwrap.fill(f"ten classes, {title}", 38), xlim=(-1, 1), ylim=(-1, 1),
                     aspect="equal")
    against.set(title="a point a class", xlabel="D⁰ / mean of D⁰", ylabel="D_avg after training",
                ylim=(0, None))
    against.legend(fontsize=7)
    return figure


def draw_targets(axis, run):
    """The log's D_avg and α over the training classes: means as lines, ranges as bands."""
    rows = [row for row in run.log if "D_avg mean" in row]
    epochs = [row["epoch"] for row in rows]
    for name, label, line, colour in (("D_avg", "D_avg", "-", COLOURS[0]),
                                      ("alpha", "α", "--", COLOURS[1])):
        mean, low, high = ([row[f"{name} {which}"] for row in rows]
                           for which in ("mean", "min", "max"))
        axis.plot(epochs, mean, line, color=colour, label=label)
        axis.fill_between(epochs, low, high, color=colour, alpha=0.2, lw=0)
    axis.set(title=run.name, xlabel="epoch", ylim=(0, 1))
    axis.legend()


# ---------------------------------------------------------------------------- command line
def parse_args():
    parser = common.Parser("studies/lectures.py", __doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--out", default="runs")
    parser.add_argument("--to", type=common.output(".png"), default="lecture.png")
    return parser.parse_args()


if __name__ == "__main__":
    common.main(lambda args: draw_lecture(args.to, args.out, args.runs), parse_args)

"""The weights of EN and GOR, which DML-DA's Fig. 4 does not give (U9), on held-out classes.

    python studies/reg_weight.py search RUNS    33 short trainings into a folder: ten core-minutes
    python studies/reg_weight.py table RUNS     what they show, of a folder or an archive
    python studies/reg_weight.py presets RUNS   the older search, 14 whole trainings, and its table
    python studies/reg_weight.py decades        EN with the backbone fixed: a minute

`search` trains the whole network with the contrastive loss and one of the two, for 10 of glyphs' 40
epochs.  Half of the 50 training classes of `glyphs` train, the other half tests; no test class is
embedded.  Both regularizers have as many weights, a decade apart, and the same seeds: EN from 10 to
100,000, because at 1 its gradient is 10⁻⁴ of the loss's, and GOR from 1 to 10,000.  The density
term is not searched; its λ of 10 is the paper's.

The rule, fixed before these runs: the weight of the highest NMI, which is what Fig. 4 shows, as the
mean over three seeds of the mean over five starts of k-means.  R@1 stands beside it.  Whether a
weight does anything tells the gain over weight 0 within a seed.  results/glyphs/README.md has what
came out.

dml_da.REG_WEIGHTS, which Fig. 4 shows, is older: of each regularizer the highest NMI among 1, 10
and 100 in two seeds of all 40 epochs (`presets`).

At weight 1 EN does nothing.  On the unit sphere all of its values lie between -log d and that of
one coordinate alone, 0.015 apart for d = 64.  `decades` prints the norm of its gradient over that
of the contrastive loss, before training, and trains the embedding layer alone on the pretrained
features, with two seeds.
"""
import sys
from pathlib import Path
from statistics import mean

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common  # noqa: E402
import dml_da  # noqa: E402
from eval import kmeans, nmi, recall_at_k  # noqa: E402
from report.records import finished, gains, pivot  # noqa: E402
from report.tables import difference, markdown, spread  # noqa: E402
from support import glyphs  # noqa: E402
from support.command_line import main  # noqa: E402
from support.files import UserError  # noqa: E402

DECADES = (0, 1, 100, 1e3, 1e4)
NAME, SEEDS, HELD_OUT = "half", (0, 1, 2), "25 classes, 10 epochs"
BY_PRESETS = {"none": (0,), "en": (1, 10, 100), "gor": (1, 10, 100)}
SHOWN = {"NMI": 1, "NMI, mean of starts": 1, "R@1": 1, "MAP@R": 1, "D_avg mean": 3}       # digits
SEARCHED = {"none": (0,), "en": (10, 100, 1e3, 1e4, 1e5), "gor": (1, 10, 100, 1e3, 1e4)}


def half_of_the_classes():
    glyphs.GLYPHS.update(train=(range(400, 425), 15), test=(range(425, 450), 15))


def search(out, searched=SEARCHED, seeds=SEEDS, epochs=10):
    half_of_the_classes()
    for seed in seeds:
        for regularizer, weights in searched.items():
            for weight in weights:
                flags = f"--regularizer {regularizer} --reg-weight {weight:g}"
                if regularizer == "none":
                    flags = "--lambda 0"
                flags += f" --epochs {epochs} --eval-every {epochs} --name {NAME} --seed {seed}"
                dml_da.train(dml_da.parse_args([*flags.split(), "--out", out]))


def setting(run):
    """-> which classes test, the regularizer, its weight; none has weight 0"""
    cfg, regularizer, weight = run.config, run.config["regularizer"], run.config["reg_weight"]
    if cfg["reg_weight"] is None:
        regularizer, weight = "none", cfg["lambda_"]
    classes = f"{cfg['splits']['test'][1]} classes, {cfg['epochs']} epochs"
    return classes, regularizer, weight


def chosen(figures, regularizer):
    """The rule, on the held-out half.  figures: a pivot -> the weight, None without such runs"""
    means = {}
    for (name, _, metric), by_seed in figures.items():
        classes, of_run, weight = name
        if (classes, of_run, metric) == (HELD_OUT, regularizer, "NMI, mean of starts"):
            means[weight] = mean(by_seed.values())
    return max(means, key=means.get, default=None)


def table(runs):
    """Mean ± std over seeds; below each its gain over no regularizer, within a seed"""
    figures = pivot((setting(run), run.config["seed"], run.figures) for run in finished(runs)
                    if run.config.get("name") == NAME)
    if not figures:
        raise UserError(f"no run of this script under {runs}")
    settings = sorted({name for name, _, _ in figures},
                      key=lambda name: (name[0] != HELD_OUT, list(SEARCHED).index(name[1]), name))
    rows = [["tested on", "regularizer", "weight", "seeds", *SHOWN]]
    for name in settings:
        classes, regularizer, weight = name
        row, gain = [classes, regularizer, f"{weight:g}", ""], ["", "", "gain", ""]
        for metric, digits in SHOWN.items():
            values = figures[name, "last epoch", metric]
            row.append(spread(values.values(), digits))
            row[3] = str(len(values))
            plain = figures[(classes, "none", 0), "last epoch", metric]
            gain.append(difference(gains(values, plain), max(digits, 2)))
        rows.append(row)
        if regularizer != "none":
            rows.append(gain)
    print(markdown(rows))
    for regularizer in ("en", "gor"):
        weight = chosen(figures, regularizer)
        if weight is not None:
            print(f"\n{regularizer}: the rule takes {weight:,g}")


def features():
    """The pretrained backbone's features of the training half and of the test half, their labels"""
    cfg = dml_da.parse_args(["--device", "cpu"])
    prefix, _, test = dml_da.transforms(cfg)
    data = common.load_dataset("glyphs", None, prefix, test)
    network = dml_da.Network(cfg, len(data.train.classes)).eval()
    common.load_weights(network.backbone, cfg.backbone)
    for split in (data.train_plain, data.test):
        images = torch.stack([split.images[i] for i in range(len(split.labels))])
        with torch.no_grad():
            yield network.pool(images), torch.as_tensor(split.labels)


def gradient_ratio(embedding, pooled, labels):
    """Norm of EN's gradient over that of the contrastive loss, in the embedding layer's weights"""
    norms = []
    for function in (dml_da.entropy_regularizer, lambda f: dml_da.contrastive_loss(f, labels, 1)):
        value = function(torch.nn.functional.normalize(embedding(pooled)))
        norms.append(torch.autograd.grad(value, embedding.weight)[0].norm())
    return (norms[0] / norms[1]).item()


def one(weight, seed, train, test, cfg, steps=200, rate=1e-3):
    """-> R@1 and NMI of the test half in %, mean D_avg of the training half, the gradient ratio"""
    (pooled, labels), (unseen, unseen_labels) = train, test
    torch.manual_seed(seed)
    embedding = torch.nn.Linear(pooled.shape[1], cfg.dim)
    optimizer = torch.optim.Adam(embedding.parameters(), lr=rate)
    cfg.seed, cfg.iterations = seed, steps
    ratio = None
    for batch in dml_da.batches(labels, cfg, 0):
        if ratio is None:
            ratio = gradient_ratio(embedding, pooled[batch], labels[batch])
        f = torch.nn.functional.normalize(embedding(pooled[batch]))
        loss = dml_da.contrastive_loss(f, labels[batch], 1) + weight * dml_da.entropy_regularizer(f)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        x, seen = (torch.nn.functional.normalize(embedding(of)) for of in (unseen, pooled))
    return (100 * recall_at_k(x, unseen_labels, [1])[1],
            100 * nmi(kmeans(x, len(unseen_labels.unique()), seed=0), unseen_labels),
            dml_da.class_density(seen, labels)[1].mean().item(), ratio)


def decades():
    half_of_the_classes()
    (train, test), cfg = features(), dml_da.parse_args(["--device", "cpu"])
    rows = [["weight of EN", "R@1", "NMI", "mean D_avg, trained classes"]]
    for weight in DECADES:
        *columns, ratios = zip(*(one(weight, seed, train, test, cfg) for seed in (0, 1)))
        row = [f"{weight:g}"]
        for values, digits in zip(columns, (1, 1, 3)):
            row.append(spread(values, digits))
        rows.append(row)
    print(markdown(rows))
    print(f"\nBefore training EN's gradient has {mean(ratios):.1e} of the norm of the "
          "contrastive loss's.")


if __name__ == "__main__":
    match sys.argv[1:]:
        case "search", out:
            main(search, lambda: out)
        case "table", runs:
            main(table, lambda: runs)
        case "presets", out:
            main(lambda runs: (search(runs, BY_PRESETS, (0, 1), 40), table(runs)), lambda: out)
        case ("decades",):
            decades()
        case _:
            sys.exit(__doc__)

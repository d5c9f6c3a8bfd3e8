"""JRS and its bandwidths in trainings: the second half of docs/jrs_bandwidths.md.

    python benchmarks/jrs_bandwidths_glyphs.py --out runs-jrs

18 trainings on `glyphs` of half a minute each; those that are there already are kept.  It trains
jrd.py with its regularizer replaced by the variants of jrs_bandwidths.py and prints, as means over
28 batches of 100 training images, then over three seeds (± standard deviation): JRS, the spread of
the normalised distances, the bandwidths and the retrieval of unseen classes.
"""
import argparse
import math
import statistics
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common  # noqa: E402
import jrd  # noqa: E402
from eval import confidence_interval  # noqa: E402
from jrs_bandwidths import at_bandwidths, mean_distance, mixture, penalty  # noqa: E402

KS = (3, 3, 1)
RUNS = (("detached", 0), ("detached", 2), ("gradient", 2), ("gradient", 10), ("only τ", 2),
        ("fixed", 2))
RATE = ("--lr", "1e-3", "--lr-proxies", "0.1")          # three times the preset's


def batches(data):
    """28 batches of 100 training images -> images, labels"""
    for epoch in range(4):
        for batch in common.shuffled(len(data.train), 100, 123, epoch)[:7]:
            yield data.train.images[batch], data.train.labels[batch]


def trained(how, alpha, seed, out):
    """One training of jrd.py with its regularizer replaced -> the network, its data, the result"""
    first = []

    def regularizer(cfg, reps, labels):
        first[:] = first or [mean_distance(x).detach() for x in reps]
        return penalty(how, reps, labels, KS, first)
    jrd.regularizer = regularizer
    cfg = jrd.parse_args(["--alpha", str(alpha), "--seed", str(seed), *RATE,
                          "--out", str(Path(out, how.replace(" ", "-")))])
    found = jrd.train(cfg)["last epoch"]
    data = common.load_dataset(cfg.dataset)
    network = jrd.Network(cfg, len(data.train.classes))
    network.load_state_dict(common.read_checkpoint(
        common.run_folder("jrd", cfg) / "last.pt")["network"])
    return network.eval(), data, found


@torch.no_grad()
def measure(network, data, taus):
    """-> {what: mean over the batches}, [τ⁻, τ, τ⁺].  taus: those of α = 0, None for itself"""
    rows = []
    for images, labels in batches(data):
        reps, different = network(images), jrd.different_class(labels)
        same = ~different & ~torch.eye(len(labels), dtype=torch.bool)
        own = [mean_distance(x) for x in reps]
        u = [jrd.squared_distances(x) / tau for x, tau in zip(reps, own)]
        row = {"F": at_bandwidths(reps, labels, KS, own),
               "bound": math.prod(mixture(a[different].mean(), K) for a, K in zip(u, KS)),
               "F at τ of α=0": at_bandwidths(reps, labels, KS, taus or own),
               "sd of Σu": sum(u)[different].std(),
               "AMSoftmax": jrd.amsoftmax(reps[2], labels, 20, 0.1)}
        for name, a, tau in zip(("x⁻", "x", "x⁺"), u, own):
            row |= {f"τ {name}": tau, f"sd {name}": a[different].std(),
                    f"same {name}": a[same].mean()}
        rows.append({k: v.item() for k, v in row.items()})
    means = {k: statistics.mean(row[k] for row in rows) for k in rows[0]}
    return means, [means[f"τ {name}"] for name in ("x⁻", "x", "x⁺")]


def directions(network, data):
    """Of the parameters' gradients on one batch: norms against AMSoftmax's, and cosines."""
    images, labels = next(batches(data))
    reps = network(images)
    weights = [p for p in network.parameters() if p.requires_grad]

    def slope(value):
        return torch.cat([g.flatten() for g in torch.autograd.grad(value, weights,
                                                                   retain_graph=True)])
    ams = slope(jrd.amsoftmax(reps[2], labels, 20, 0.1)).norm()
    part = {how: slope(penalty(how, reps, labels, KS, None))
            for how in ("detached", "gradient", "only τ")}
    part["(1, 1)"] = slope(penalty("detached", reps, labels, (1, 1, 1), None))
    for how, g in part.items():
        cosine = torch.cosine_similarity(g, part["detached"], 0).item()
        print(f"  {how:<10} norm / AMSoftmax's {g.norm() / ams:.4f}, cosine with detached "
              f"{cosine:.3f}")
    free = [x.detach().requires_grad_() for x in reps]                  # as if without a network
    detached, whole = (torch.autograd.grad(penalty(how, free, labels, KS, None), free)
                       for how in ("detached", "gradient"))
    for name, g, h in zip(("x⁻", "x", "x⁺"), detached, whole):
        share = (g - h).square().sum() / g.square().sum()
        print(f"  {name}: expansion's share of the squared gradient {share:.2f}")
    along = [g - (g * free[1]).sum(1, keepdim=True) * free[1] for g in (detached[1], whole[1])]
    share = (along[0] - along[1]).square().sum() / along[0].square().sum()
    print(f"  x along the sphere: share of what detaching adds {share:.2f}")


def main(out):
    torch.set_num_threads(1)
    table, nets = {run: [] for run in RUNS}, {}
    for seed in range(3):
        taus = None
        for how, alpha in RUNS:
            network, data, found = trained(how, alpha, seed, out)
            row, own = measure(network, data, taus)
            taus = taus or own
            row |= {k: 100 * found[k] for k in ("R@1", "MAP@R", "seen R@1")}
            table[how, alpha].append(row)
            if seed == 0:
                nets[how, alpha] = network
    for run in (RUNS[0], RUNS[1]):
        print(f"\nGradients of the parameters after training, {run[0]}, α = {run[1]}, seed 0")
        directions(nets[run], data)
    print("\n| | " + " | ".join(f"{how}, α = {alpha}" for how, alpha in RUNS) + " |")
    print("|---" * (len(RUNS) + 1) + "|")
    for key in table[RUNS[0]][0]:
        values = [[row[key] for row in table[run]] for run in RUNS]
        print(f"| {key} | " + " | ".join(f"{statistics.mean(v):.4g} ± {statistics.stdev(v):.2g}"
                                         for v in values) + " |")
    for key in ("F", "R@1", "MAP@R", "seen R@1"):               # within a seed, 95% interval
        cells = []
        for run in RUNS:
            mean, half = confidence_interval([row[key] - base[key] for row, base in
                                              zip(table[run], table[RUNS[0]])])
            cells.append(f"{mean:+.2g} ± {half:.2g}")
        print(f"| {key} less that of α = 0 | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="folder for the runs")
    main(parser.parse_args().out)

"""What new seeds decide on cub128: the two families of docs/plans.md, each with Holm's correction.

    python studies/decided.py [--runs PATH ...]     tables of the committed runs, or of others
    python studies/decided.py --list                the commands of all runs, by seed

No verdict before a family is whole.  No figure if runs of a script differ in code, commit, images,
splits or weights, or if those of a seed differ in versions, processor or precision.
Intervals are 95%: over seeds from three on; "over classes" with the trainings fixed.
"""
import argparse
import sys
from pathlib import Path

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from report.experiments import NAMES, training  # noqa: E402
from report.records import reading, unpacked  # noqa: E402
from report.tables import difference, each, interval, markdown  # noqa: E402

METHODS = {         # paper, flags, the rate on SqueezeNet
    "JRD": ("jrd", "", "--lr 3e-4 --lr-proxies 3e-2"),
    "AMSoftmax": ("jrd", "--alpha 0", "--lr 1e-3 --lr-proxies 1e-1"),
    "MDR": ("mdr", "", "--lr 3e-4"), "Triplet": ("mdr", "--lambda 0", "--lr 3e-4"),
    "L2Norm": ("mdr", "--lambda 0 --l2norm", "--lr 3e-5"),
    "DML-DA triplet": ("dml_da", "--loss triplet", "--lr 3e-5"),
    "DML-DA N-pair": ("dml_da", "--loss npair", "--lr 3e-5"),
    "DML-DA contrastive": ("dml_da", "", "--lr 3e-5"),
    "contrastive": ("dml_da", "--lambda 0", "--lr 3e-5"),
    "triplet": ("dml_da", "--lambda 0 --loss triplet", "--lr 3e-5"),
    "N-pair": ("dml_da", "--lambda 0 --loss npair", "--lr 3e-6")}
R18 = "--backbone resnet18 --weights resnet18_pqf.pth --eval-every 10"
NETWORKS = {        # a paper's flags on the networks of the plan
    "jrd": f"{R18} --epochs 50 --lr 1e-3 --lr-proxies 1e-1",
    "mdr": f"{R18} --lr 5e-5 --epochs 100 --iterations 100",
    "dml_da": "--backbone googlenet_bvlc --weights googlenet_bvlc.pth --lr 1e-5"}
FAMILIES = {        # --name: network, seeds, {difference: the paper's, None: in no table}
    "decides": ("SqueezeNet 1.1", range(3, 11), {
        "JRD - AMSoftmax": None, "DML-DA contrastive - contrastive": 3.63,
        "DML-DA triplet - triplet": 6.33, "DML-DA N-pair - N-pair": 4.15, "L2Norm - Triplet": 7.8,
        "MDR - Triplet": 11.5, "MDR - L2Norm": 3.7}),
    "networks": ("the networks of the plan", range(3, 6), {
        "MDR - Triplet": 12.4, "DML-DA contrastive - contrastive": 3.63, "JRD - AMSoftmax": None,
        "MDR - L2Norm": None})}                                         # 12.4: Table 2a, R18
OPTIONAL = ("networks", "MDR - L2Norm")         # in its family only if all its runs are
IN_SCRIPT = ("code", "commit", "images", "splits", "weights_sha256")   # equal in a script's runs
IN_SEED = ("versions", "processor", "precision")            # equal in a script's runs of a seed
METRICS = {"R@1 of each": "R@1", "L2-normalized R@1 of each": "R@1, l2-normalized",
           **{name: name for name in ("MAP@R", "NMI", "seen R@1")}}
BEST = "each arm's best epoch"                              # of those evaluated, by test classes
HEADS = ("must be above 0", "paired", "over classes", "Holm-adjusted", "adjusted p", "paper's",
         "seeds", BEST, *METRICS)


def over_classes(one, other):
    """Bootstrap interval over test classes, which are resampled with all their queries; the gallery
    stays, seeds are averaged.  one, other: the hits of each seed"""
    gain = np.array([sum(a[c].count("1") - b[c].count("1") for a, b in zip(one, other))
                     for c in one[0]])
    size = len(one) * np.array([*map(len, one[0].values())])
    drawn = np.random.RandomState(0).randint(0, len(size), (10_000, len(size)))
    return interval(*np.percentile(100 * gain[drawn].sum(1) / size[drawn].sum(1), (2.5, 97.5)))


def figures(*sides):
    """Runs of two settings, of the same seeds -> {head: text}, the mean gain, p from 3 seeds on"""
    both = {head: [[reading(run, metric) for run in side] for side in sides]
            for head, metric in METRICS.items()}
    hits = [[run.result["last epoch"]["hits"] for run in side] for side in sides]
    a, b = map(np.array, both["R@1 of each"])
    row = {"over classes": over_classes(*hits), "mean": np.mean(a - b),
           "paired": difference(a - b), "p": stats.ttest_rel(a, b).pvalue if len(a) > 2 else None}
    row["paired"] += f" ({', '.join(f'{x:+.2f}' for x in a - b)})" if 1 < len(a) < 4 else ""
    best = [[run.figures["best on test"]["R@1"] for run in side] for side in sides]
    epochs = [[run.result["best on test"]["epoch"] for run in side] for side in sides]
    row[BEST] = difference(np.subtract(*best)) + " at {:.0f}, {:.0f}".format(*np.mean(epochs, 1))
    for head, pair in both.items():
        if None not in sum(pair, []):
            row[head] = " and ".join(map(each, pair)) if "each" in head else difference(
                np.subtract(*pair))
    return row


def holm(rows):
    """Rows with a p -> the same with Holm's (1979) over all of them, and the verdict at 0.05"""
    p = 0.0
    for i, row in enumerate(sorted(rows, key=lambda row: row["p"])):
        p = row["Holm-adjusted p"] = max(p, min(1.0, (len(rows) - i) * row["p"]))
        word = "holds" if row["mean"] > 0 else "does not hold"
        row["Holm-adjusted"] = word if p < 0.05 else "undecided"
        row["adjusted p"] = f"{p:.2g}"
    return rows


def runs_of(label, method, out):
    paper, flags, rate = METHODS[method]
    flags = f"{flags} {rate if label == 'decides' else NETWORKS[paper]} --name {label}"
    return [training(paper, "cub128", flags, s, out, False) for s in FAMILIES[label][1]]


def family(label, out):
    """{difference: the runs of its two settings}; the optional one only if all its runs are in."""
    pairs = {}
    for text in FAMILIES[label][2]:
        sides = [runs_of(label, method, out) for method in text.split(" - ")]
        if (label, text) != OPTIONAL or all(run.result for run in sum(sides, [])):
            pairs[text] = sides
    return pairs


def finished_runs(pairs):
    """The finished runs of a family, each once."""
    runs = {}
    for sides in pairs.values():
        for run in sum(sides, []):
            if run.result:
                runs[run.folder] = run
    return [*runs.values()]


def mixed(runs):
    """In what runs differ that must be equal, in words."""
    values = {}
    for run in runs:
        differ = f"of {NAMES[run.paper]}'s runs differ"
        for what in IN_SCRIPT:
            values.setdefault(f"{what} {differ}", set()).add(str(run.config.get(what)))
        for what in IN_SEED:
            text = f"{what} {differ} at seed {run.cfg.seed}"
            values.setdefault(text, set()).add(str(run.config.get(what)))
    return ", ".join(text for text, found in values.items() if len(found) > 1)


def machines(runs):
    """Processor, precision and versions of each script's runs, by seed -> lines of Markdown"""
    seeds = {}
    for run in runs:
        versions = ", ".join(f"{name} {n}" for name, n in run.config["versions"].items())
        processor = run.config.get("processor", "processor not noted")
        machine = f"{processor}, {run.config['precision']}, {versions}"
        seeds.setdefault((NAMES[run.paper], machine), set()).add(run.cfg.seed)
    return [f"- {name}, seeds {', '.join(map(str, sorted(found)))}: {machine}"
            for (name, machine), found in seeds.items()]


def decided(label, out):
    """A family -> its rows, {head: text}, as far as it has run"""
    rows, pairs = [], family(label, out)
    differ = mixed(finished_runs(pairs))
    for text, sides in pairs.items():
        if differ:
            rows.append({HEADS[0]: text, "Holm-adjusted": differ})
            continue
        papers = FAMILIES[label][2][text]
        done = [both for both in zip(*sides) if all(run.result for run in both)]
        row = {HEADS[0]: text, "seeds": f"{len(done)} of {len(sides[0])}",
               "Holm-adjusted": "not before all seeds", "paper's": f"{papers:+g}" if papers else "–"}
        if done:
            row.update(figures(*zip(*done)))
        rows.append(row)
    whole = all(run.result for sides in pairs.values() for run in sum(sides, []))
    return holm(rows) if whole and not differ else rows


def main(args):
    if args.list:
        runs = {run.command: run.cfg.seed for label, (*_, differences) in FAMILIES.items()
                for method in " - ".join(differences).split(" - ")
                for run in runs_of(label, method, "runs")}
        return print(*sorted(runs, key=runs.get), sep="\n")
    print("# What new seeds decide on cub128\n\nMade by `python studies/decided.py`.")
    with unpacked(args.runs) as out:
        for label, (network, seeds, _) in FAMILIES.items():
            cells = [[row.get(head, "–") for head in HEADS] for row in decided(label, out)]
            print(f"\n## By seeds {seeds[0]} to {seeds[-1]}, on {network}\n")
            print(*markdown([HEADS, *cells]), "", sep="\n")
            print(*machines(finished_runs(family(label, out))), sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser("studies/decided.py", allow_abbrev=False)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--runs", nargs="+", default=[
        f"results/cub128/{name}.tar.xz" for name in ("runs", "networks")])
    main(parser.parse_args())

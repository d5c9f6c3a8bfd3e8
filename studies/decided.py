"""What new seeds decide on cub128: the two families of docs/plans.md, each with Holm's correction.

    python studies/decided.py [--runs PATH ...]     tables of the committed runs, or of others
    python studies/decided.py --list                the commands of all runs, by seed

No verdict before a family is whole.  No figure if runs of a script differ in code, commit, images,
splits or weights, or if those of a seed differ in versions, processor or precision.
Intervals are 95%: over seeds from three on; "over classes" with the trainings fixed.
"""
import argparse
import itertools
import sys
from operator import itemgetter
from pathlib import Path

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from report.experiments import NAMES, cells, training  # noqa: E402
from report.records import reading, unpacked  # noqa: E402
from report.tables import difference, each, markdown  # noqa: E402

METHODS = cells("""
    JRD                | jrd    |                           | --lr 3e-4 --lr-proxies 3e-2
    AMSoftmax          | jrd    | --alpha 0                 | --lr 1e-3 --lr-proxies 1e-1
    MDR                | mdr    |                           | --lr 3e-4
    Triplet            | mdr    | --lambda 0                | --lr 3e-4
    L2Norm             | mdr    | --lambda 0 --l2norm       | --lr 3e-5
    DML-DA triplet     | dml_da | --loss triplet            | --lr 3e-5
    DML-DA N-pair      | dml_da | --loss npair              | --lr 3e-5
    DML-DA contrastive | dml_da |                           | --lr 3e-5
    contrastive        | dml_da | --lambda 0                | --lr 3e-5
    triplet            | dml_da | --lambda 0 --loss triplet | --lr 3e-5
    N-pair             | dml_da | --lambda 0 --loss npair   | --lr 3e-6""")    # on SqueezeNet
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
           "MAP@R": "MAP@R", "NMI": "NMI", "seen R@1": "seen R@1"}
BEST = "each arm's best epoch"                              # of those evaluated, by test classes
HEADS = ["must be above 0", "paired", "over classes", "Holm-adjusted", "adjusted p", "paper's",
         "seeds", BEST] + list(METRICS)


def over_classes(one, other):
    """Bootstrap interval over test classes, which are resampled with all their queries; the gallery
    stays, seeds are averaged.  one, other: the hits of each seed"""
    gain, size = [], []
    for c in one[0]:
        gain.append(sum(a[c].count("1") - b[c].count("1") for a, b in zip(one, other)))
        size.append(len(one) * len(one[0][c]))
    drawn = np.random.RandomState(0).randint(0, len(size), (10_000, len(size)))
    means = np.array(gain)[drawn].sum(1) / np.array(size)[drawn].sum(1)
    low, high = np.percentile(100 * means, (2.5, 97.5))
    return f"[{low:+.2f}, {high:+.2f}]"


def figures(ours, theirs):
    """Runs of two settings, of the same seeds -> {head: text}, the mean gain, p from 3 seeds on"""
    row, best, epochs, hits = {}, [], [], []
    for head, metric in METRICS.items():
        a, b = ([reading(run, metric) for run in side] for side in (ours, theirs))
        if None in a + b:
            continue
        gain = np.subtract(a, b)
        row[head] = difference(gain)
        if head.endswith("of each"):
            row[head] = f"{each(a)} and {each(b)}"
        if metric == "R@1":
            row |= {"mean": gain.mean(), "paired": difference(gain), "p": None}
            if len(gain) > 2:
                row["p"] = stats.ttest_rel(a, b).pvalue
            if 1 < len(gain) < 4:
                row["paired"] += f" ({', '.join(f'{x:+.2f}' for x in gain)})"
    for side in (ours, theirs):
        hits.append([run.result["last epoch"]["hits"] for run in side])
        best.append([run.figures["best on test"]["R@1"] for run in side])
        epochs.append(np.mean([run.result["best on test"]["epoch"] for run in side]))
    row["over classes"] = over_classes(*hits)
    row[BEST] = f"{difference(np.subtract(*best))} at {epochs[0]:.0f}, {epochs[1]:.0f}"
    return row


def holm(rows):
    """Rows with a p -> the same with Holm's (1979) over all of them, and the verdict at 0.05"""
    p = 0.0
    for i, row in enumerate(sorted(rows, key=itemgetter("p"))):
        p = row["Holm-adjusted p"] = max(p, min(1.0, (len(rows) - i) * row["p"]))
        row["Holm-adjusted"], row["adjusted p"] = "undecided", f"{p:.2g}"
        if p < 0.05:
            row["Holm-adjusted"] = "holds" if row["mean"] > 0 else "does not hold"
    return rows


def runs_of(label, method, out):
    """The runs of a method, of each seed of a family"""
    for name, paper, flags, rate in METHODS:
        if name == method:
            flags += f" {rate if label == 'decides' else NETWORKS[paper]} --name {label}"
            return [training(paper, "cub128", flags, seed, out, False)
                    for seed in FAMILIES[label][1]]


def family(label, out):
    """{difference: the pairs of its runs, by seed}; the optional one only if all are finished."""
    pairs = {}
    for text in FAMILIES[label][2]:
        ours, theirs = (runs_of(label, method, out) for method in text.split(" - "))
        if (label, text) != OPTIONAL or all(run.result for run in ours + theirs):
            pairs[text] = list(zip(ours, theirs))
    return pairs


def finished_runs(pairs):
    """The finished runs of a family, each once."""
    runs = {}
    for of_text in pairs.values():
        for run in itertools.chain(*zip(*of_text)):
            if run.result:
                runs[run.folder] = run
    return list(runs.values())


def mixed(runs):
    """In what runs differ that must be equal, in words."""
    values = {}
    for run in runs:
        for what in IN_SCRIPT + IN_SEED:
            text = f"{what} of {NAMES[run.paper]}'s runs differ"
            if what in IN_SEED:
                text += f" at seed {run.cfg.seed}"
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
    rows, pairs, whole = [], family(label, out), True
    differ = mixed(finished_runs(pairs))
    for text, of_text in pairs.items():
        papers = FAMILIES[label][2][text]
        done = [(a, b) for a, b in of_text if a.result and b.result]
        whole = whole and len(done) == len(of_text)
        row = {HEADS[0]: text, "Holm-adjusted": differ or "not before all seeds"}
        if not differ:
            row["seeds"] = f"{len(done)} of {len(of_text)}"
            row["paper's"] = f"{papers:+g}" if papers else "–"
        if done and not differ:
            row |= figures(*zip(*done))
        rows.append(row)
    return holm(rows) if whole and not differ else rows


def main(args):
    if args.list:
        runs = {}
        for label, (_, _, differences) in FAMILIES.items():
            for method in " - ".join(differences).split(" - "):
                for run in runs_of(label, method, "runs"):
                    runs[run.command] = run.cfg.seed
        return print("\n".join(sorted(runs, key=runs.get)))
    print("# What new seeds decide on cub128\n\nMade by `python studies/decided.py`.")
    with unpacked(args.runs) as out:
        for label, (network, seeds, _) in FAMILIES.items():
            rows = [HEADS]
            for row in decided(label, out):
                rows.append([row.get(head, "–") for head in HEADS])
            print(f"\n## By seeds {seeds[0]} to {seeds[-1]}, on {network}\n")
            print(markdown(rows), "", *machines(finished_runs(family(label, out))), sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser("studies/decided.py", allow_abbrev=False)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--runs", nargs="+", default=[
        f"results/cub128/{name}.tar.xz" for name in ("runs", "networks")])
    main(parser.parse_args())

"""What new seeds decide on cub128: the three families of docs/plans.md, with Holm's correction.

    python studies/decided.py [--runs PATH ...]     tables of the committed runs, or of others
    python studies/decided.py --list                the commands of all runs, family by family

No verdict before a family is whole.  No figure if runs of a script differ in code, commit, images,
splits or weights, or if those of a seed differ in versions, processor or precision.  In the family
"replication" each script stands for itself: nothing of it is printed before all of its runs are in.

The planned test gives the verdict, and the plan's rule says if it generalizes to other classes.
Other analyses stand beside, with Holm's correction, because the verdict may hang on the choice.
"""
import argparse
import itertools
import sys
from pathlib import Path

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from report.experiments import NAMES, cells, training  # noqa: E402
from report.records import reading, unpacked  # noqa: E402
from report.tables import difference, each, markdown  # noqa: E402
from support.command_line import main  # noqa: E402
from support.files import ROOT, UserError  # noqa: E402

# name | script | flags | on SqueezeNet: its rate, the share of the epochs where its search was best
METHODS = cells("""
    JRD                | jrd    |                           | --lr 3e-4 --lr-proxies 3e-2 | 0.8
    AMSoftmax          | jrd    | --alpha 0                 | --lr 1e-3 --lr-proxies 1e-1 | 1.0
    MDR                | mdr    |                           | --lr 3e-4 | 0.8
    Triplet            | mdr    | --lambda 0                | --lr 3e-4 | 1.0
    L2Norm             | mdr    | --lambda 0 --l2norm       | --lr 3e-5 | 0.4
    DML-DA triplet     | dml_da | --loss triplet            | --lr 3e-5 | 0.5
    DML-DA N-pair      | dml_da | --loss npair              | --lr 3e-5 | 0.75
    DML-DA contrastive | dml_da |                           | --lr 3e-5 | 1.0
    contrastive        | dml_da | --lambda 0                | --lr 3e-5 | 1.0
    triplet            | dml_da | --lambda 0 --loss triplet | --lr 3e-5 | 0.5
    N-pair             | dml_da | --lambda 0 --loss npair   | --lr 3e-6 | 0.75""")
SQUEEZENET = "--weights squeezenet1_1.pth"
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
        "MDR - L2Norm": None}),                                         # 12.4: Table 2a, R18
    "replication": ("the networks of the plan, anew", range(6, 11), {
        "JRD - AMSoftmax": None, "DML-DA contrastive - contrastive": 3.63})}
EARLIER = {         # of a family: the --name and the seeds of runs of the same settings before it
    "decides": ("", range(3)), "networks": ("", ()), "replication": ("networks", range(3, 6))}
OPTIONAL = ("networks", "MDR - L2Norm")         # in its family only if all its runs are
IN_SCRIPT = ("code", "commit", "images", "splits", "weights_sha256")   # equal in a script's runs
IN_SEED = ("versions", "processor", "precision")            # equal in a script's runs of a seed
REPLICATION = {"commit": "49f7f995de7261a866afcc6fdc1833b47a8673cf", "precision": "bf16"}
PLANNED = {         # what the third plan asks of each run of "replication"
    "jrd": {"weights_sha256": "8146a08c4f11b6b0c4a3172cb99edbe8809d6ef4d5546399817cfedb77e7eb0b"}
    | REPLICATION,
    "dml_da": {"weights_sha256": "cbfad0e33f269b3b66b96ccbd63c0fc62041e7f44bd3755554bdde642c1eef83"}
    | REPLICATION}
FAILED = ()         # differences of "replication" with a run that failed twice: p = 1, by its plan
METRICS = {"R@1 of each": "R@1", "L2-normalized R@1 of each": "R@1, l2-normalized",
           "MAP@R": "MAP@R", "NMI": "NMI", "seen R@1": "seen R@1"}
BEST = "each arm's best epoch"                              # of those evaluated, by test classes
OTHERS, BEFORE = "epoch chosen on the other seeds", "epoch chosen on earlier seeds"
POOLED = "pooled with seeds 3 to 5, no test"
LAST_FOUR, SEARCHED = "mean of the last four evaluations", "where the search was best"
OWN = "after the search's best epochs (added later)"
SEARCH_EPOCHS = {"dml_da": 12}      # of scripts whose rate is constant, however long they train
ON_NETWORKS = {"dml_da": (0.25, 0.25)}      # the shares of these where GoogLeNet's were best
LATER = "if classes are random (added later)"               # in "replication" planned
HEADS = ["difference", "paired", "over classes", "verdict", "adjusted p", "generalizes", LATER,
         "paper's", "seeds", LAST_FOUR, SEARCHED, OWN, BEST, OTHERS, BEFORE, *METRICS, POOLED]
ONLY_IN = {         # the families of a column that not all have
    LAST_FOUR: ["decides"], SEARCHED: ["decides"], LATER: ["decides", "networks"],
    POOLED: ["replication"]}
ANALYSES = {"p": "planned: paired t", "Welch": "Welch's t", "random": "seeds and classes random"}
BESIDE = ["p, then Holm-adjusted", *ANALYSES.values(), "bootstrap of seeds and classes",
          "paired, at the family's level", "power", "seeds that lead", "correlation of the arms",
          "Welch's interval"]
INTERVAL = "[{:+.2f}, {:+.2f}]"
READING = """\
Each row is a difference in R@1 after the last epoch, in points. The *verdict* is the planned \
test's: a *significant gain* is a difference above 0 with *adjusted p* < 0.05, by a two-sided \
t-test, paired within a seed, after Holm's correction, and a *significant loss* one below 0. \
*Undecided*, in the third plan's words open, is neither, which does not mean "no effect". This \
test takes the test classes as given. Two rules ask whether other classes would show the same:

- *Generalizes*, as planned: yes if the difference is significant and its interval *over classes*, \
a 95% bootstrap over test classes with the trained networks as they are, leaves out 0. This is the \
first plan's rule, and the second has the same interval. The third plan, of seeds 6 to 10, is \
stricter: p < 0.05, corrected, if seeds and classes are random.
- *If classes are random* applies the third plan's rule to the first two families. It was written \
down on 27 November 2026, when their figures were known, so it was not planned for them and \
changes no verdict.

In the other columns [low, high] is a 95% interval, not corrected for the number of differences, \
and ± a standard deviation over seeds. *Paired* is the mean difference within a seed, with its \
t-interval; so are *MAP@R*, *NMI* and *seen R@1* (of the training images). *Paper's*: the \
difference that the paper prints, at full size. *Seeds*: how many are in. *R@1 of each* arm; \
*L2-normalized*: with embeddings of length 1 at the search (`mdr.py` alone notes it, because those \
of the other scripts have length 1 anyway).

Six columns ask whether a plain loss that stops earlier would do as well. The first two are the \
first plan's: the *mean of the last four evaluations* of each run, and R@1 *where the search was \
best*, at the share of the epochs at which each arm's rate search, on held-out training classes, \
was best first. DML-DA's search ended after 12 of 30 epochs, and on SqueezeNet contrastive was \
still at its best there, with and without DML-DA, so its share is the last epoch. Therefore *after \
the search's best epochs* takes DML-DA's arms after as many epochs as were best in the search, on \
GoogLeNet after 3, for both arms. It was added on 28 November 2026, for GoogLeNet on the 29th, when \
the figures were known. The other three choose an epoch on the test classes. *Each arm's best epoch*: of each run, \
so both scores are too high; the mean epochs follow. \
*Epoch chosen on the other seeds*: each seed is scored at the epoch with the best mean of the \
family's other seeds, so no seed chooses for itself. *On earlier seeds*: seeds before the family \
choose, if they had the same settings. *Pooled with seeds 3 to 5*: the mean of all eight.

In the second table, *Welch's t* and *Welch's interval* do not pair seeds. *Seeds and classes \
random* is [the third plan's \
analysis](../../docs/plans.md#replication-seeds-6-to-10-on-the-papers-networks). *Bootstrap of \
seeds and classes* draws both anew; of three seeds it is too narrow. *Paired, at the family's \
level*: t-intervals so wide that all of the family's hold together with 95%. *Power*: the chance \
that the planned test finds the difference at Holm's first step, if mean and standard deviation \
are truly those seen; it follows from p, so it is no further evidence. *Seeds that lead*: with the \
first arm ahead. *Correlation of the arms*, over seeds: pairing helps if it is above 0. Of this \
table the plans have only the paired t, in the first plan also *Welch's interval* and the \
*correlation*, and for seeds 6 to 10 *seeds and classes random*. Of the first table they do not \
have the *epoch chosen on the other seeds* and *after the search's best epochs*."""


# ---------------------------------------------------------------------------- analyses
def hits_of(runs):
    """-> hits of each seed on each test class (S, C), the classes' numbers of images (C,)"""
    by_seed = [run.result["last epoch"]["hits"] for run in runs]
    hits = [[of_class.count("1") for of_class in hits.values()] for hits in by_seed]
    return np.array(hits), np.array([len(of_class) for of_class in by_seed[0].values()])


def bootstrap(gain, size, seeds_too):
    """95% percentile interval of the gain in R@1, over test classes, drawn with all their queries,
    the gallery as it is; the seeds are averaged, or drawn too.  gain (S, C), size (C,)"""
    (S, C), draw = gain.shape, np.random.RandomState(0)
    classes = draw.randint(0, C, (10_000, C))
    counts = np.apply_along_axis(np.bincount, 1, classes, minlength=C)          # (10,000, C)
    seeds = np.ones((10_000, S))
    if seeds_too:
        seeds = draw.multinomial(S, [1 / S] * S, 10_000)
    means = ((seeds @ gain) * counts).sum(1) / (S * counts @ size)
    return np.percentile(100 * means, (2.5, 97.5))


def random_classes(x):
    """p of the mean of x (S, C), two-sided, with seeds and classes random: the two-way layout and
    Satterthwaite's degrees of freedom, as docs/plans.md fixes them"""
    S, C = x.shape
    of_seeds, of_classes = x.mean(1, keepdims=True), x.mean(0, keepdims=True)
    M_S, M_C = C * of_seeds.var(ddof=1), S * of_classes.var(ddof=1)
    M_R = np.square(x - of_seeds - of_classes + x.mean()).sum() / ((S - 1) * (C - 1))
    total = M_S + M_C - M_R
    if total <= 0:                  # an estimate of a variance that is none
        return 1.0
    parts = M_S ** 2 / (S - 1) + M_C ** 2 / (C - 1) + M_R ** 2 / ((S - 1) * (C - 1))
    return 2 * stats.t.sf(abs(x.mean()) / np.sqrt(total / (S * C)), total ** 2 / parts)


def p_of(gain):
    """The planned test's p; of gains without any spread 0, or 1 if all of them are 0"""
    if not np.ptp(gain):
        return float(not gain.any())
    return stats.ttest_1samp(gain, 0).pvalue


def power(gain, level):
    """The chance that the paired t-test is significant, if these are the true mean and standard
    deviation"""
    n = len(gain)
    if not np.ptp(gain):
        return float(gain.any())
    bound = stats.t.ppf(1 - level / 2, n - 1)
    return stats.nct.sf(bound, n - 1, abs(gain.mean()) / stats.sem(gain))


def beside(row, a, b, ours, theirs, among):
    """Adds the other analyses of two settings to their row.  a, b: R@1 of each seed; among: the
    number of differences in the family"""
    gain, (hits, size), (other, _) = np.subtract(a, b), hits_of(ours), hits_of(theirs)
    row["Welch"] = p_of(gain)
    if np.ptp(a) or np.ptp(b):
        unpaired = stats.ttest_ind(a, b, equal_var=False)
        row["Welch"], row[BESIDE[9]] = unpaired.pvalue, INTERVAL.format(
            *unpaired.confidence_interval())
    row["random"] = random_classes((hits - other) / size.mean())
    row[BESIDE[4]] = INTERVAL.format(*bootstrap(hits - other, size, seeds_too=True))
    half = stats.t.ppf(1 - 0.025 / among, len(gain) - 1) * stats.sem(gain)
    row[BESIDE[5]] = INTERVAL.format(gain.mean() - half, gain.mean() + half)
    row[BESIDE[6]] = f"{power(gain, 0.05 / among):.2f}"
    row[BESIDE[7]] = f"{(gain > 0).sum()} of {len(gain)}"
    if np.ptp(a) and np.ptp(b):
        row[BESIDE[8]] = f"{np.corrcoef(a, b)[0, 1]:+.2f}"


def by_epoch(run):
    """{epoch: R@1} of those evaluated"""
    return {line["epoch"]: 100 * line["R@1"] for line in run.log if "R@1" in line}


def best_epoch(runs):
    """The epoch with the highest mean R@1, the first of equal ones"""
    curves = [by_epoch(run) for run in runs]
    means = {epoch: np.mean([curve[epoch] for curve in curves]) for epoch in curves[0]}
    return max(means, key=means.get)


def at_chosen_epochs(ours, theirs, choosing):
    """The gain if each arm's epoch is chosen on other runs, then the mean epochs -> text.
    choosing: of each arm the runs for each seed"""
    values, epochs = [], []
    for runs, others in zip((ours, theirs), choosing):
        chosen = [best_epoch(of_seed) for of_seed in others]
        values.append([by_epoch(run)[epoch] for run, epoch in zip(runs, chosen)])
        epochs.append(np.mean(chosen))
    return f"{difference(np.subtract(*values))} at {epochs[0]:.0f}, {epochs[1]:.0f}"


def of_search(sides, shares, epochs):
    """The gain if the runs of each side stop at the evaluation nearest to a share of some epochs"""
    values = []
    for runs, share in zip(sides, shares):
        curves = [by_epoch(run) for run in runs]
        stop = min(curves[0], key=lambda epoch: abs(epoch - share * epochs))
        values.append([curve[stop] for curve in curves])
    return difference(np.subtract(*values))


def figures(ours, theirs, before, among, shares=None):
    """Runs of two settings, of the same seeds -> {head: text}, the mean gain, p from 3 seeds on.
    before: of both settings the finished runs of earlier seeds; shares: of their epochs, where
    their searches were best"""
    row, best, epochs = {}, [], []
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
                row["p"] = p_of(gain)
                beside(row, a, b, ours, theirs, among)
            if 1 < len(gain) < 4:
                row["paired"] += f" ({', '.join(f'{x:+.2f}' for x in gain)})"
    for side in (ours, theirs):
        best.append([run.figures["best on test"]["R@1"] for run in side])
        epochs.append(np.mean([run.result["best on test"]["epoch"] for run in side]))
    (hits, size), (other, _) = hits_of(ours), hits_of(theirs)
    low, high = bootstrap(hits - other, size, seeds_too=False)
    row |= {"over classes": INTERVAL.format(low, high), "leaves out 0": low > 0 or high < 0}
    row[BEST] = f"{difference(np.subtract(*best))} at {epochs[0]:.0f}, {epochs[1]:.0f}"
    if len(ours) > 1:
        others = [[[run for run in side if run is not left] for left in side]
                  for side in (ours, theirs)]
        row[OTHERS] = at_chosen_epochs(ours, theirs, others)
    if all(before):
        row[BEFORE] = at_chosen_epochs(ours, theirs, [[runs] * len(ours) for runs in before])
    if shares:
        ends = [[np.mean([*by_epoch(run).values()][-4:]) for run in side]
                for side in (ours, theirs)]
        row[LAST_FOUR] = difference(np.subtract(*ends))
        row[SEARCHED] = of_search((ours, theirs), shares, ours[0].cfg.epochs)
        if ours[0].paper in SEARCH_EPOCHS:
            row[OWN] = of_search((ours, theirs), shares, SEARCH_EPOCHS[ours[0].paper])
    return row


def holm(values, among):
    """Holm's (1979) adjusted p of some of a family's p; those that are missing count as 1."""
    adjusted, p = {}, 0.0
    for i, value in enumerate(sorted(values)):
        p = adjusted[value] = max(p, min(1.0, (among - i) * value))
    return [adjusted[value] for value in values]


def verdict(mean, p):
    """In words, at 0.05"""
    direction = "gain" if mean > 0 else "loss"
    return f"significant {direction}" if p < 0.05 else "undecided"


def judge(rows, among, label):
    """Adds each analysis with Holm's correction to rows that have their p, the planned one's
    verdict, and whether a significant difference generalizes, by the rule of the family's plan."""
    for key, head in ANALYSES.items():
        for row, p in zip(rows, holm([row[key] for row in rows], among)):
            row[head], row[f"{key}, adjusted"] = f"{row[key]:.2g} → {p:.2g}", p
    for row in rows:
        mean, p, random = row["mean"], row["p, adjusted"], row["random, adjusted"]
        row["verdict"], row["adjusted p"] = verdict(mean, p), f"{p:.2g}"
        generalizes = row["leaves out 0"] if label != "replication" else random < 0.05
        if p < 0.05:
            row["generalizes"] = "yes" if generalizes else "no"
        if label != "replication":
            row[LATER] = f"{verdict(mean, random)}, p {random:.2g}"


# ---------------------------------------------------------------------------- runs
def runs_of(label, method, out, before=False):
    """The runs of a method, of each seed of a family, or of the seeds before it"""
    for name, paper, flags, rate, _ in METHODS:
        if name == method:
            flags += f" {SQUEEZENET} {rate}" if label == "decides" else f" {NETWORKS[paper]}"
            named, seeds = EARLIER[label] if before else (label, FAMILIES[label][1])
            if named:
                flags += f" --name {named}"
            return [training(paper, "cub128", flags, seed, out, False) for seed in seeds]


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


def mixed(runs, label):
    """In what runs differ that must be equal, or from their plan, in words."""
    values, found = {}, {}
    for run in runs:
        if label == "replication":
            for what, planned in PLANNED[run.paper].items():
                if run.config.get(what) != planned:
                    found[f"{what} of {NAMES[run.paper]}'s runs is not the plan's"] = None
            if not run.config.get("processor"):
                found[f"processor of {NAMES[run.paper]}'s runs is not noted"] = None
        for row in run.log:                             # begun on one machine, ended on another
            for what in row.get("continued with", ()):
                found[f"{what} changed during a run of {NAMES[run.paper]} at seed "
                      f"{run.cfg.seed}"] = None
        for what in IN_SCRIPT + IN_SEED:
            text = f"{what} of {NAMES[run.paper]}'s runs differ"
            if what in IN_SEED:
                text += f" at seed {run.cfg.seed}"
            values.setdefault(text, set()).add(str(run.config.get(what)))
    differ = [text for text, seen in values.items() if len(seen) > 1]
    return ", ".join([*found, *differ])


def machines(runs):
    """Processor, precision and versions of each script's runs, by seed -> lines of Markdown"""
    seeds = {}
    for run in runs:
        versions = ", ".join(f"{name} {n}" for name, n in run.config["versions"].items())
        processor = run.config.get("processor", "processor not noted")
        machine = f"{processor}, {run.config['precision']}, {versions}"
        seeds.setdefault((NAMES[run.paper], machine), set()).add(run.cfg.seed)
    lines = []
    for (name, machine), found in seeds.items():
        word = "seed" if len(found) == 1 else "seeds"
        lines.append(f"- {name}, {word} {', '.join(map(str, sorted(found)))}: {machine}")
    return lines


def finished_before(label, text, out):
    """Of both settings of a difference the finished runs of earlier seeds, [] unless all are"""
    sides = [runs_of(label, method, out, before=True) for method in text.split(" - ")]
    return [side if all(run.result for run in side) else [] for side in sides]


def pooled(pairs, before):
    """The mean gain over a family's seeds and those before it, which took no part in its test"""
    gains = []
    for a, b in itertools.chain(pairs, zip(*before)):
        gains.append(reading(a, "R@1") - reading(b, "R@1"))
    return f"{np.mean(gains):+.2f}, n = {len(gains)}"


def decided(label, out):
    """A family -> its rows, {head: text}, as far as it has run"""
    rows, pairs, apart = [], family(label, out), label == "replication"
    ready, searched = [], {name: float(share) for name, *_, share in METHODS}
    for text, of_text in pairs.items():
        paper = FAMILIES[label][2][text]
        done = [(a, b) for a, b in of_text if a.result and b.result]
        differ = mixed(finished_runs({text: of_text} if apart else pairs), label)
        if apart and text in FAILED:
            differ = "not decided: a run failed twice, so p = 1"
        row = {HEADS[0]: text, "verdict": differ or "not before all seeds"}
        if not differ:
            row["seeds"] = f"{len(done)} of {len(of_text)}"
            row["paper's"] = f"{paper:+g}" if paper else "–"
        whole = len(done) == len(of_text) and not differ
        if whole or done and not differ and not apart:
            before = finished_before(label, text, out)
            shares = ON_NETWORKS.get(done[0][0].paper)
            if label == "decides":
                shares = [searched[method] for method in text.split(" - ")]
            row |= figures(*zip(*done), before, len(pairs), shares)
            if apart and all(before):
                row[POOLED] = pooled(done, before)
        if whole:
            ready.append(row)
        rows.append(row)
    if apart or len(ready) == len(rows):
        judge(ready, len(rows), label)
    return rows


def printed(heads, rows):
    """Rows under heads, '–' where a row has none -> Markdown"""
    return markdown([heads] + [[row.get(head, "–") for head in heads] for row in rows])


def all_lead(rows):
    """A line on a family in which the first of each difference leads in every seed; else nothing"""
    counts = [tuple(map(int, row[BESIDE[7]].split(" of "))) for row in rows]
    led, pairs = np.sum(counts, 0)
    if led < pairs:
        return []
    p = stats.binomtest(led, pairs).pvalue
    return [f"In each of the {pairs} pairs of runs the first is ahead; p = {p:.2g} by a sign test, "
            "which was not planned and asks only if any method has an effect.", ""]


def commands():
    """Of all runs: a family's by seed, but replication's in its plan's order, script by script"""
    listed = {}
    for label, (_, _, differences) in FAMILIES.items():
        groups = [text.split(" - ") for text in differences]
        if label != "replication":
            groups = [" - ".join(differences).split(" - ")]
        for methods in groups:
            runs = [run for method in methods for run in runs_of(label, method, "runs")]
            for run in sorted(runs, key=lambda run: run.cfg.seed):
                listed[run.command] = None                      # a dict, which keeps the first
    return list(listed)


def page(args):
    if args.list:
        return print("\n".join(commands()))
    with unpacked(args.runs) as out:
        if not any(finished_runs(family(label, out)) for label in FAMILIES):
            raise UserError(f"no finished run of docs/plans.md in {', '.join(args.runs)}")
        print("# What new seeds decide on cub128\n\nMade by `python studies/decided.py`.\n")
        print(READING)
        for label, (network, seeds, _) in FAMILIES.items():
            rows = decided(label, out)
            heads = [head for head in HEADS if label in ONLY_IN.get(head, FAMILIES)]
            print(f"\n## By seeds {seeds[0]} to {seeds[-1]}, on {network}\n")
            print(printed(heads, rows), "", *machines(finished_runs(family(label, out))), sep="\n")
            judged = [row for row in rows if "p, adjusted" in row]
            if judged:
                for row in judged:
                    row[BESIDE[0]] = row[HEADS[0]]
                print("\nThe same hits, analysed otherwise:\n\n" + printed(BESIDE, judged), "",
                      *all_lead(judged), sep="\n", end="")


def arguments():
    parser = argparse.ArgumentParser("studies/decided.py", allow_abbrev=False)
    parser.add_argument("--list", action="store_true")
    archives = [str(ROOT / "results" / "cub128" / f"{name}.tar.xz")
                for name in ("runs", "networks", "replication")]
    parser.add_argument("--runs", nargs="+", default=[
        path for path in archives if Path(path).exists()])
    return parser.parse_args()


if __name__ == "__main__":
    main(page, arguments)

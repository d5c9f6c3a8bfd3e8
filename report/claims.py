"""What the papers claim, as inequalities between runs: the ledger, and what new seeds decided."""
import functools
import math

import numpy as np

from eval import confidence_interval
from report.experiments import (FAMILIES, GLYPHS_SEEDS, JRD_AND_BASELINE, LEVELS, LOSSES, NAMES,
                                THREE_TIMES, THREE_TIMES_IS, VARIANTS, datasets_asked,
                                deciding_runs, flags_on, training)
from report.tables import markdown, reading, signed, spread
from support.files import listed

PAPER_OF = {"J": "jrd", "M": "mdr", "D": "dml_da"}


# ---------------------------------------------------------------------------- inequalities
# Each is a function of v that must be above 0.  v(flags, metric="R@1"): one seed of a setting.
def less(flags, other, *metrics):
    """One setting minus another, in R@1 or in the sum of some metrics"""
    return lambda v: sum(v(flags, m) - v(other, m) for m in metrics or ("R@1",))


INTRA, JMMD = "--regularizer intra --alpha 1", "--regularizer jmmd"
BASE, NORM = "--lambda 0", "R@1, l2-normalized"
# id: (sentence, datasets, {inequality: function}).  A claim holds if all its inequalities hold.
CLAIMS = {
    **{f"J{i}": (f"JRD beats {name}.", "cub cars sop", {f"JRD - {name}": less("", flags)})
       for i, (name, flags) in enumerate((JRD_AND_BASELINE | VARIANTS).items()) if name != "JRD"},
    "J5": ("R@1 against α rises, then falls.", "cub cars sop", {
        "preset's α - α = 0": less("", "--alpha 0"), "preset's α - α = 2": less("", "--alpha 2")}),
    "J6": ("α = 0 beats JMMD and JIntra (at 0.1, the paper's best for JMMD); JRD beats α = 0.",
           "cub", {
        "α = 0 - JMMD": less("--alpha 0", "--regularizer jmmd --alpha 0.1"),
        "α = 0 - JIntra": less("--alpha 0", "--regularizer jintra --alpha 0.1"),
        "JRD - α = 0": less("", "--alpha 0")}),
    "J7": ("Eq. 4's intra-class penalty inflates λ faster than it lowers d_H.", "cub", {
        "λ, α = 1 - α = 0": less(INTRA, "--alpha 0", "lambda"),
        "λ + d_H, α = 1 - α = 0": less(INTRA, "--alpha 0", "lambda", "d_H")}),
    "J8": ("λ + d_H is smaller for JRD than for JMMD.", "cub", {
        "λ + d_H, JMMD - JRD": less(JMMD, "", "lambda", "d_H")}),
    "J9": ("A mixture of Gaussians, (K, K') = (3, 1), beats a single one, (1, 1).", "cub cars", {
        "(3, 1) - (1, 1)": less("", "--K 1")}),
    "J10": ("Gaussian and Laplace kernels beat polynomial and moment-generating ones.", "cub", {
        f"{a} - {b}": less(better, worse)
        for a, better in (("Gaussian", "--K 1"), ("Laplace", "--kernel laplace"))
        for b, worse in (("p = 2", "--kernel polynomial"), ("p = 5", "--kernel polynomial --p 5"),
                         ("moment-generating", "--kernel mgf"))}),
    "M1": ("Triplet+MDR beats Triplet+L2Norm, and that beats Triplet.", "cub cars sop inshop", {
        "MDR - L2Norm": less("", "--lambda 0 --l2norm"),
        "L2Norm - Triplet": less("--lambda 0 --l2norm", "--lambda 0")}),
    "M2": ("MDR helps on every backbone.", "cub cars", {
        f"{b} + MDR - {b}": less(f"--backbone {b}", f"--backbone {b} --lambda 0")
        for b in ("resnet18", "resnet50", "bn_inception")}),
    "M3": ("MDR helps Contrastive and Margin too.", "cub cars", {
        f"{loss} + MDR - {loss}": less(f"--loss {loss}", f"--loss {loss} --lambda 0")
        for loss in ("contrastive", "margin")}),
    "M4": ("Levels {-3, 0, 3} beat {-1, 0, 1}; learnable ones beat fixed ones.", "cub", {
        "{-3, 0, 3} - {-1, 0, 1}": less("", "--levels -1 0 1"),
        "learnable - fixed, mean of 7": lambda v: np.mean([
            v(f"--levels {levels}") - v(f"--levels {levels} --fixed-levels")
            for levels in LEVELS])}),
    "M5": ("l2 norm at inference costs Triplet much, Triplet+MDR little.", "cub", {
        "cost to Triplet": lambda v: v(BASE) - v(BASE, NORM),
        "cost to Triplet - to Triplet+MDR": lambda v: v(BASE) - v(BASE, NORM) - (
            v("") - v("", NORM))}),
    "M6": ("MDR's gain over Triplet is larger at the smallest width than at the largest.",
           "cub cars", {
        "gain at smallest d - at largest d": lambda v: (
            v("--dim 64") - v("--lambda 0 --dim 64")
            - (v("--dim 512") - v("--lambda 0 --dim 512")))}),
    "M7": ("With MDR train recall is lower, and test recall the highest.", "cub", {
        "train, Triplet - MDR": less("--lambda 0", "", "seen R@1"),
        "train, L2Norm - MDR": less("--lambda 0 --l2norm", "", "seen R@1"),
        "test, MDR - Triplet": less("", "--lambda 0"),
        "test, MDR - L2Norm": less("", "--lambda 0 --l2norm")}),
    "M8": ("With MDR the norms' coefficient of variation is less than half of Triplet's.", "cub", {
        "half of Triplet's - MDR's": lambda v: v(BASE, "norm cv") / 2 - v("", "norm cv")}),
    **{f"D{i}": (f"DA improves {name}, in R@1 and NMI.", "cars cub sop", {
        f"{metric}, DML-DA {name} - {name}": less(loss, f"{loss} --lambda 0", metric)
        for metric in ("R@1", "NMI")}) for i, (name, loss) in enumerate(LOSSES.items(), 1)},
    "D4": ("The correlation term adds to DA.", "cars", {
        f"{name}, with - without": less(loss, f"{loss} --regularizer da-")
        for name, loss in LOSSES.items()}),
    "D5": ("DA gains more NMI than GOR, and GOR more than EN.", "cars cub sop", {
        f"NMI, {name}, {a} - {b}": less(f"{loss} {better}", f"{loss} --regularizer {b.lower()}",
                                        "NMI")
        for name, loss in LOSSES.items()
        for a, better, b in (("DA", "", "GOR"), ("GOR", "--regularizer gor", "EN"))}),
    "D6": ("NMI against λ peaks near 10 and is flat above 7.", "cars", {
        f"NMI, {name}, λ = 10 - λ = {x}": less(f"{loss} --lambda 10", f"{loss} --lambda {x}", "NMI")
        for name, loss in LOSSES.items() for x in (0.5, 25)} | {
        f"NMI, {name}, rise from 0.5 to 10 - range from 7 to 25": lambda v, loss=loss: (
            v(f"{loss} --lambda 10", "NMI") - v(f"{loss} --lambda 0.5", "NMI")
            - np.ptp([v(f"{loss} --lambda {x}", "NMI") for x in (7, 10, 15, 25)]))
        for name, loss in LOSSES.items()}),
    "D7": ("The gap between train and test R@1 is smaller with DA (contrastive).", "cars", {
        "gap without - with DA": lambda v: (
            v(BASE, "seen R@1") - v("", "seen R@1") - (v(BASE) - v("")))}),
    "D8": ("Without DA contrastive beats N-pair, and that beats triplet.", "cars cub sop", {
        "contrastive - N-pair": less("--lambda 0", "--loss npair --lambda 0"),
        "N-pair - triplet": less("--loss npair --lambda 0", "--loss triplet --lambda 0")})}
HEADLINE_CLAIMS = ("J1", "M1", "M5", "M7", "M8", "D1", "D2", "D3", "D7", "D8")   # at both rates


# ---------------------------------------------------------------------------- verdicts
def judged(values):
    """-> columns of claims.csv: a mean, the half-width of its 95% interval (nan for one value), the
    verdict on 'above 0', the p of the two-sided t-test (of differences within a seed: paired)"""
    from scipy import stats                         # here, because it takes a second to import
    mean, half = confidence_interval(values)
    word = "holds" if mean > half else "does not hold" if mean < -half else "undecided"
    p = 1.0 if len(values) > 1 else math.nan        # of equal runs, of a single seed
    if len(values) > 1 and any(values):
        p = float(stats.ttest_1samp(values, 0).pvalue)
    return {"estimate": mean, "half-width": half, "verdict": word, "p": p}


def holm(rows):
    """Rows of claims.csv get the verdict and the p of Holm (1979), whose family is all that have a
    p -> their number.  What was decided alone and is not at a family-wise level of 0.05 is
    undecided."""
    tested = sorted((row for row in rows if row.get("p", math.nan) >= 0), key=lambda row: row["p"])
    adjusted = 0.0
    for row in rows:
        row["Holm-adjusted verdict"] = row["verdict"]
    for i, row in enumerate(tested):
        adjusted = row["Holm-adjusted p"] = max(adjusted, min(1.0, (len(tested) - i) * row["p"]))
        if adjusted >= 0.05:
            row["Holm-adjusted verdict"] = "undecided"
    return len(tested)


# ---------------------------------------------------------------------------- the ledger
LEDGER = """\
Each claim is one inequality or several.  An inequality is a difference within a seed, in points \
of R@1 unless it names another metric, with its 95% Student-t interval over seeds.  Above 0: \
*holds*; below 0: *does not hold*; else *undecided*.

Holm-adjusted: the verdict at a family-wise error rate of 5%, by Holm's procedure on the p-values \
of two-sided paired t-tests.  The family is all {family} inequalities of this ledger with two \
seeds or more.  A difference that several claims need counts in each."""
LEDGER_ON_GLYPHS = f"""\
The number of seeds, {GLYPHS_SEEDS} for headline claims, was fixed before they ran, but five seeds \
of most settings had been seen in an earlier list.  {THREE_TIMES.capitalize()}: the next rate of \
the search's grid, for every claim that needs headline settings alone."""
VERDICTS = ("does not hold", "not run", "undecided", "holds")           # the worst first


def judged_claim(claim, at, args, seeds):
    """A claim, at THREE_TIMES or "" -> rows of claims.csv, one per inequality and dataset: its
    value in each seed that has its runs is judged."""
    (sentence, datasets, inequalities), paper = CLAIMS[claim], PAPER_OF[claim[0]]

    def v(dataset, seed, flags, metric="R@1"):      # nan if not run, and so is the inequality
        more = f" {THREE_TIMES_IS[paper]}" if at else ""
        flags = flags_on(dataset, paper, f"{flags}{more}".strip())
        run = flags is not None and training(
            paper, dataset, flags, seed, args.runs, args.weights, args.precision)
        return reading(run, metric) if run and run.result else math.nan

    rows = []
    for dataset in datasets_asked(datasets, args.dataset):
        for text, inequality in inequalities.items():
            values = [inequality(functools.partial(v, dataset, seed)) for seed in seeds]
            values = [value for value in values if not math.isnan(value)]
            rows.append({"claim": ", ".join(filter(None, [claim, at])), "sentence": sentence,
                         "must be above 0": text, "on": dataset, "seeds": len(values)}
                        | (judged(values) if values else {"verdict": "not run"}))
    return rows


def ledger(args, seeds):
    """-> Markdown lines, CSV rows.  The tables have what has run; other claims are named below."""
    asked = [(claim, "") for claim in CLAIMS]
    asked += [(claim, THREE_TIMES) for claim in HEADLINE_CLAIMS if args.dataset == "glyphs"]
    by_claim = [judged_claim(claim, at, args, seeds) for claim, at in asked
                if args.paper in (None, PAPER_OF[claim[0]])]
    csv_rows = sum(by_claim, [])
    lines = ["## Claims", "", LEDGER.format(family=holm(csv_rows)), ""]
    lines += [LEDGER_ON_GLYPHS, ""] if args.dataset == "glyphs" else []
    short, not_run = [["claim", "", "verdict", "Holm-adjusted"]], []
    long = [["claim", "must be above 0", "on", "estimate", "95% interval", "seeds", "verdict",
             "Holm-adjusted"]]
    for rows in filter(None, by_claim):
        claim = rows[0]["claim"]
        if any(row["seeds"] for row in rows):       # a claim's verdict is its worst inequality's
            alone, adjusted = (min((row[of] for row in rows), key=VERDICTS.index)
                               for of in ("verdict", "Holm-adjusted verdict"))
            short.append([claim, rows[0]["sentence"], f"**{alone}**", adjusted])
            long += [[claim, row["must be above 0"], NAMES[row["on"]],
                      *signed(row.get("estimate", math.nan), row.get("half-width", math.nan), 3),
                      str(row["seeds"]), row["verdict"], row["Holm-adjusted verdict"]]
                     for row in rows]
        else:
            not_run.append(claim)
    lines += [*markdown(short), "", *markdown(long), ""] if len(short) > 1 else []
    if not_run:
        lines += [f"Not run: {', '.join(not_run)} (claims.csv has their inequalities).", ""]
    return lines, csv_rows


# ---------------------------------------------------------------------------- by new seeds
EACH = {"R@1 of each": "R@1", "R@1 of each, L2-normalized": "R@1, l2-normalized"}
EARLY, METRICS = "R@1 where the search was best", ("MAP@R", "NMI", "seen R@1", "last four R@1")
TABLES = (("R@1 of each", "paired", "correlation", "unpaired", "over classes", "paper's", "seeds",
           "Holm-adjusted verdict"), ("R@1 of each, L2-normalized", *METRICS, EARLY))


def over_classes(one, other):
    """95% bootstrap interval over test classes: classes are resampled with all their queries, the
    gallery stays, seeds are averaged.  one, other: the hits of each seed -> its ends, in points"""
    classes = list(one[0])
    gain = np.array([sum(a[c].count("1") - b[c].count("1") for a, b in zip(one, other))
                     for c in classes])
    size = len(one) * np.array([len(one[0][c]) for c in classes])
    drawn = np.random.RandomState(0).randint(0, len(classes), (10_000, len(classes)))
    return np.percentile(100 * gain[drawn].sum(1) / size[drawn].sum(1), (2.5, 97.5))


def figures(sides, shares):
    """sides: the runs of either setting; shares: of its schedule, where its search was best -> the
    figures of their difference; a metric that a run lacks is left out"""
    from scipy import stats

    def of_both(metrics):
        values = [[reading(run, metric) for run in runs] for runs, metric in zip(sides, metrics)]
        return None if None in sum(values, []) else values

    a, b = map(np.array, of_both(["R@1"] * 2))
    row = judged(a - b) | {"correlation": f"{np.corrcoef(a, b)[0, 1]:.2f}"}
    ends = {"unpaired": stats.ttest_ind(a, b, equal_var=False).confidence_interval(),
            "over classes": over_classes(*of_both(["hits"] * 2))}
    row |= {name: f"[{low:+.2f}, {high:+.2f}]" for name, (low, high) in ends.items()}
    row |= {name: " and ".join(map(spread, values)) for name, metric in EACH.items()
            if (values := of_both([metric] * 2))}
    differences = {"paired": ["R@1"] * 2, **{m: [m] * 2 for m in METRICS}, EARLY: shares}
    for name, metrics in differences.items():
        if values := of_both(metrics):
            row[name] = " ".join(signed(*confidence_interval(np.subtract(*values)), 2))
    return row


def decided(args, name):
    """A family of FAMILIES -> Markdown lines, CSV rows.  No figure before all of its runs are in,
    by one code, each seed's on one kind of processor in one precision."""
    family, rows, members, runs = FAMILIES[name], [], [], {}            # runs: a set in order
    for text, papers in family.differences.items():
        pair = text.split(" - ")
        sides = [deciding_runs(name, setting, args) for setting in pair]
        done = min(sum(run.result is not None for run in side) for side in sides)
        if text in family.optional and done < len(family.seeds):
            continue
        runs |= dict.fromkeys(sum(sides, []))
        members.append((sides, [family.settings[setting][1] for setting in pair]))
        rows.append({"claim": name, "must be above 0": text, "on": "cub128",
                     "seeds": f"{done} of {len(family.seeds)}",
                     "paper's": f"{papers:+g}" if papers else "–"})
    missing = [run.folder.name for run in runs if not run.result]
    one_of = {}                 # what has to be one in a script's runs, or in its runs of a seed
    for run in (run for run in runs if run.result):
        for what in ("code", "commit", "images", "splits", "weights_sha256", "versions",
                     "processor", "precision"):
            seed = f" at seed {run.config['seed']}" if what in ("processor", "precision") else ""
            text = f"{what} of {NAMES[run.paper]}'s runs differ{seed}"
            one_of.setdefault(text, set()).add(str(run.config.get(what)))
    obstacle = ", ".join(text for text, values in one_of.items() if len(values) > 1)
    obstacle = obstacle or ("not before all seeds" if missing else "")
    rows = [row | ({"verdict": obstacle} if obstacle else figures(*member))
            for row, member in zip(rows, members)]
    holm(rows)
    lines = [f"By seeds {family.seeds[0]} to {family.seeds[-1]}, on {family.title}:", ""]
    for heads in TABLES:
        heads = ["must be above 0", *heads]
        lines += [*markdown([heads, *([row.get(head, "–") for head in heads] for row in rows)]), ""]
    if missing:
        lines += [f"Missing: {listed(missing)}.", ""]
    return lines, rows

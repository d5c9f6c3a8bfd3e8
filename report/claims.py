"""What the papers claim, each as inequalities between runs, and the ledger of verdicts."""
import decimal
import functools
import math
import statistics

import numpy as np
from scipy.special import stdtr

from eval import confidence_interval
from report.experiments import (GLYPHS_SEEDS, LEVELS, LOSSES, NAMES, STAND_INS, THREE_TIMES,
                                THREE_TIMES_IS, VARIANTS, datasets_asked, flags_on, training)
from report.tables import interval, markdown, reading

PAPER_OF = {"J": "jrd", "M": "mdr", "D": "dml_da"}
BOUNDED = "no larger than"


# ---------------------------------------------------------------------------- inequalities
# Each is a sum of terms that must be above 0.  A term is (weight, flags, metric): what one seed of
# a setting has in that metric, times the weight.
def less(flags, other, metric="R@1"):
    """One setting minus another"""
    return [(1, flags, metric), (-1, other, metric)]


def cost_of_norm(flags, weight=1):
    """MDR: R@1 that is lost by dividing by the norm at inference."""
    return [(weight, flags, "R@1"), (-weight, flags, "R@1, l2-normalized")]


def rise_minus_range(v, loss):
    """DML-DA: NMI's rise from λ = 0.5 to 10, minus its range from 7 to 25; no sum, a function of
    v(flags, metric)."""
    nmi = {x: v(f"{loss} --lambda {x}", "NMI") for x in (0.5, 7, 10, 15, 25)}
    return nmi[10] - nmi[0.5] - np.ptp([nmi[x] for x in (7, 10, 15, 25)])


# ---------------------------------------------------------------------------- the claims
INTRA, JMMD = "--regularizer intra --alpha 1", "--regularizer jmmd"
WIDTH_64, WIDTH_512 = (less(f"--dim {d}", f"--lambda 0 --dim {d}") for d in (64, 512))
# id: (sentence, datasets, {inequality: its terms}).  A claim holds if all its inequalities hold.
CLAIMS = {
    "J1": ("JRD beats AMSoftmax.", "cub cars sop", {"JRD - AMSoftmax": less("", "--alpha 0")}),
    **{f"J{i}": (f"JRD beats {name}.", "cub cars sop", {f"JRD - {name}": less("", VARIANTS[name])})
       for i, name in ((2, "MRD"), (3, "JRD-C"), (4, "JRD-Pooling"))},
    "J5": ("R@1 against α rises, then falls.", "cub cars sop", {
        "preset's α - α = 0": less("", "--alpha 0"), "preset's α - α = 2": less("", "--alpha 2")}),
    "J6": ("α = 0 beats JMMD and JIntra (at 0.1, the paper's best for JMMD); JRD beats α = 0.",
           "cub", {
        "α = 0 - JMMD": less("--alpha 0", "--regularizer jmmd --alpha 0.1"),
        "α = 0 - JIntra": less("--alpha 0", "--regularizer jintra --alpha 0.1"),
        "JRD - α = 0": less("", "--alpha 0")}),
    "J7": ("Eq. 4's intra-class penalty inflates λ faster than it lowers d_H.", "cub", {
        "λ, α = 1 - α = 0": less(INTRA, "--alpha 0", "lambda"),
        "λ + d_H, α = 1 - α = 0": less(INTRA, "--alpha 0", "lambda") + less(
            INTRA, "--alpha 0", "d_H")}),
    "J8": ("λ + d_H is smaller for JRD than for JMMD.", "cub", {
        "λ + d_H, JMMD - JRD": less(JMMD, "", "lambda") + less(JMMD, "", "d_H")}),
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
        "learnable - fixed, mean of 7": [
            (weight / len(LEVELS), flags, metric) for levels in LEVELS for weight, flags, metric in
            less(f"--levels {levels}", f"--levels {levels} --fixed-levels")]}),
    "M5": ("l2 norm at inference costs Triplet much, Triplet+MDR little.", "cub", {
        "cost to Triplet": cost_of_norm("--lambda 0"),
        "cost to Triplet - to Triplet+MDR": cost_of_norm("--lambda 0") + cost_of_norm("", -1)}),
    "M6": ("MDR's gain over Triplet is larger at the smallest width than at the largest.",
           "cub cars", {
        "gain at smallest d - at largest d": WIDTH_64 + [
            (-weight, flags, metric) for weight, flags, metric in WIDTH_512]}),
    "M7": ("With MDR train recall is lower, and test recall the highest.", "cub", {
        "train, Triplet - MDR": less("--lambda 0", "", "seen R@1"),
        "train, L2Norm - MDR": less("--lambda 0 --l2norm", "", "seen R@1"),
        "test, MDR - Triplet": less("", "--lambda 0"),
        "test, MDR - L2Norm": less("", "--lambda 0 --l2norm")}),
    "M8": ("With MDR the norms' coefficient of variation is less than half of Triplet's.", "cub", {
        "half of Triplet's - MDR's": [(0.5, "--lambda 0", "norm cv"), (-1, "", "norm cv")]}),
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
        f"NMI, {name}, rise from 0.5 to 10 - range from 7 to 25": functools.partial(
            rise_minus_range, loss=loss) for name, loss in LOSSES.items()}),
    "D7": ("The gap between train and test R@1 is smaller with DA (contrastive).", "cars", {
        "gap without - with DA": less("--lambda 0", "", "seen R@1") + less("", "--lambda 0")}),
    "D8": ("Without DA contrastive beats N-pair, and that beats triplet.", "cars cub sop", {
        "contrastive - N-pair": less("--lambda 0", "--loss npair --lambda 0"),
        "N-pair - triplet": less("--loss npair --lambda 0", "--loss triplet --lambda 0")})}


def at_three_times(claim):
    """A claim on glyphs at three times the preset's rate; it needs headline settings alone."""
    sentence, _, inequalities = CLAIMS[claim]
    more = THREE_TIMES_IS[PAPER_OF[claim[0]]]
    return sentence, "glyphs", {
        f"{text}, {THREE_TIMES}": [(weight, f"{flags} {more}".strip(), metric)
                                   for weight, flags, metric in terms]
        for text, terms in inequalities.items()}


CLAIMS |= {f"{claim}, {THREE_TIMES}": at_three_times(claim)
           for claim in ("J1", "M1", "M5", "M7", "M8", "D1", "D2", "D3", "D7", "D8")}


def beside(inequalities):
    """A claim's differences in R@1 of unseen classes -> the same in MAP@R and NMI, but for those
    that the claim has itself."""
    companions = {}
    for text, terms in inequalities.items():
        if not callable(terms) and {metric for _, _, metric in terms} == {"R@1"}:
            for metric in ("MAP@R", "NMI"):
                name = f"{metric}, {text.removeprefix('R@1, ')}"
                companions[name] = [(weight, flags, metric) for weight, flags, _ in terms]
    return {name: terms for name, terms in companions.items() if name not in inequalities}


# ---------------------------------------------------------------------------- verdicts
class NotRun(Exception):
    """Why a figure is not there: 'not run', or that the stand-in has no such row."""


def in_each_seed(paper, inequality, dataset, args, seeds):
    """What must be above 0 -> its value in each seed that has its runs, or why there is none."""
    def figure(flags, metric):
        """What the seed of a setting has.  NotRun if it has no finished run."""
        own_flags = flags_on(dataset, paper, flags)
        if own_flags is None:
            raise NotRun(STAND_INS[dataset])
        run = training(paper, dataset, own_flags, seed, args.out, args.weights)
        if not run.result:
            raise NotRun("not run")
        return reading(run, metric)

    values, reason = [], "not run"
    for seed in seeds:
        try:
            values.append(inequality(figure) if callable(inequality) else
                          sum(weight * figure(*of) for weight, *of in inequality))
        except NotRun as error:
            reason = str(error)
    return values or reason


def verdict(values, full=math.inf):
    """-> mean, half-width of its 95% interval (nan for one value), verdict on 'above 0'

    What `full` values, a number fixed beforehand, leave undecided is bounded by the interval.
    """
    mean, half = confidence_interval(values)
    word = "holds" if mean > half else "does not hold" if mean < -half else "undecided"
    if word == "undecided" and len(values) >= full:
        word = f"{BOUNDED} {rounded_up(mean + half)}"
    return mean, half, word


def rounded_up(x):
    """0 or more -> its first two digits, not below it, as text."""
    up = decimal.Context(prec=2, rounding=decimal.ROUND_CEILING)
    return f"{up.create_decimal_from_float(x):f}"


def claim_verdict(verdicts):
    """The verdict on a claim from those on its inequalities; of bounds all, in their order."""
    order = ("does not hold", "not run", *STAND_INS.values(), "undecided", BOUNDED, "holds")
    worst = min((BOUNDED if word.startswith(BOUNDED) else word for word in verdicts),
                key=order.index)
    if worst != BOUNDED:
        return worst
    bounds = [word.removeprefix(BOUNDED) for word in verdicts if word.startswith(BOUNDED)]
    return BOUNDED + ";".join(dict.fromkeys(bounds))


# ---------------------------------------------------------------------------- many claims at once
def p_value(values):
    """Of the two-sided paired t-test: below 0.05 where the 95% interval leaves out 0.  values:
    differences within a seed; nan for one, 1 where all are 0."""
    if len(values) < 2:
        return math.nan
    mean, error = statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5
    if error == 0:
        return float(mean == 0)
    return float(2 * stdtr(len(values) - 1, -abs(mean) / error))


def holm(p):
    """Holm (1979): p values -> adjusted ones, in their order; those below 0.05 are the tests that
    his procedure rejects at a family-wise level of 0.05."""
    adjusted, most = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        most = max(most, min(1.0, (len(p) - rank) * p[i]))
        adjusted[i] = most
    return adjusted


def adjust(rows):
    """Judged inequalities (dicts) get Holm's verdict -> how many tests the family has.

    The family: all that decide a claim of this ledger and have two seeds or more.  What was decided
    alone and is not in the family is undecided; bounds stay those of one interval.
    """
    tested = [row for row in rows if not math.isnan(row.get("p", math.nan))]
    for row in rows:
        row["Holm-adjusted verdict"] = row["verdict"]
    for row, p in zip(tested, holm([row["p"] for row in tested])):
        row["Holm-adjusted p"] = p
        if p >= 0.05 and row["verdict"] in ("holds", "does not hold"):
            row["Holm-adjusted verdict"] = "undecided"
    return len(tested)


# ---------------------------------------------------------------------------- the ledger
def judged(claim, inequalities, args, seeds):
    """Inequalities of a claim on every dataset that is asked for -> CSV rows"""
    sentence, datasets, _ = CLAIMS[claim]
    name, rows = claim.partition(",")[0], []
    for dataset in datasets_asked(datasets, args.dataset):
        full = GLYPHS_SEEDS if dataset == "glyphs" else math.inf
        for text, inequality in inequalities.items():
            row = {"claim": name, "sentence": sentence, "must be above 0": text, "on": dataset}
            values = in_each_seed(PAPER_OF[claim[0]], inequality, dataset, args, seeds)
            if isinstance(values, str):
                row |= {"seeds": 0, "verdict": values}
            else:
                mean, half, word = verdict(values, full)
                row |= {"seeds": len(values), "estimate": mean, "half-width": half,
                        "verdict": word, "p": p_value(values)}
            rows.append(row)
    return rows


def ledger(args, seeds):
    """-> Markdown lines, CSV rows"""
    by_claim, companions = {}, []
    for claim, (_, _, inequalities) in CLAIMS.items():
        if args.paper in (None, PAPER_OF[claim[0]]):
            if rows := judged(claim, inequalities, args, seeds):
                by_claim[claim] = rows
                companions += judged(claim, beside(inequalities), args, seeds)
    csv_rows = [row for rows in by_claim.values() for row in rows]
    family, companions = adjust(csv_rows), [row for row in companions if row["seeds"]]
    lines = ledger_lines(by_claim, family, args.dataset)
    if companions:
        heads = ["claim", "must be above 0", "on", "estimate", "95% interval", "seeds", "verdict"]
        lines += [BESIDE, "", *markdown([heads, *(cells_of(row)[:-1] for row in companions)])]
    return ["## Claims", "", *lines, ""], csv_rows + companions


LEDGER = """\
Each claim is one inequality or several.  An inequality is a difference within a seed, in points \
of R@1 unless it names another metric, with its 95% Student-t interval over seeds.  Above 0: \
*holds*; below 0: *does not hold*; else *undecided*.

Holm-adjusted: the verdict at a family-wise error rate of 5%, by Holm's procedure on the p-values \
of two-sided paired t-tests.  The family is all {family} inequalities of this ledger with two \
seeds or more.  A difference that several claims need counts in each."""
BESIDE = """\
The same differences in MAP@R and NMI.  They decide no claim and are not in Holm's family."""
LEDGER_ON_GLYPHS = f"""\
What {GLYPHS_SEEDS} seeds leave undecided is *no larger than* the upper end of its interval, \
which is not adjusted.  Their number was fixed before they ran, but five seeds of most settings \
had been seen in an earlier list.  {THREE_TIMES.capitalize()}: the next rate of the search's grid, \
for every claim that needs headline settings alone."""


def ledger_lines(by_claim, family, dataset):
    """{claim: its judged inequalities}, the size of Holm's family -> Markdown lines

    The tables have what has run; the other claims are named below them.
    """
    short = [["claim", "", "verdict", "Holm-adjusted"]]
    long = [["claim", "must be above 0", "on", "estimate", "95% interval", "seeds", "verdict",
             "Holm-adjusted"]]
    not_run = []
    for claim, rows in by_claim.items():
        if not any(row["seeds"] for row in rows):
            not_run.append(claim)
            continue
        alone = claim_verdict([row["verdict"] for row in rows])
        adjusted = claim_verdict([row["Holm-adjusted verdict"] for row in rows])
        short.append([claim, CLAIMS[claim][0], f"**{alone}**", adjusted])
        long += [cells_of(row) for row in rows]
    lines = []
    if len(short) > 1:
        lines += [LEDGER.format(family=family), ""]
        lines += [LEDGER_ON_GLYPHS, ""] if dataset == "glyphs" else []
        lines += [*markdown(short), "", *markdown(long), ""]
    if not_run:
        lines.append(f"Not run: {', '.join(not_run)} (claims.csv has their inequalities).")
    return lines


def cells_of(row):
    """A judged inequality -> cells"""
    mean, half = row.get("estimate", math.nan), row.get("half-width", math.nan)
    number = "–" if math.isnan(mean) else f"{round(mean, 3) + 0:+.3f}"      # + 0: not -0.000
    return [row["claim"], row["must be above 0"], NAMES[row["on"]], number, interval(mean, half, 3),
            str(row["seeds"]), row["verdict"], row.get("Holm-adjusted verdict", "–")]

"""The headline differences on cub128, by seeds that explored nothing (docs/plan_cub128.md)."""
import numpy as np

from report.claims import adjust, p_value, verdict
from report.experiments import DECIDING, DECIDING_SEEDS, NAMES, SCRIPTS, deciding_runs
from report.tables import markdown, reading, spread, with_interval
from support.identity import listed

FAMILY = {  # {setting - setting: (paper, the flags of both, the paper's difference on CUB)}
    "JRD - AMSoftmax": ("jrd", "", "--alpha 0", None),              # AMSoftmax is in no table
    "DML-DA contrastive - contrastive": ("dml_da", "", "--lambda 0", 3.63),
    "DML-DA triplet - triplet": ("dml_da", "--loss triplet", "--loss triplet --lambda 0", 6.33),
    "DML-DA N-pair - N-pair": ("dml_da", "--loss npair", "--loss npair --lambda 0", 4.15),
    "L2Norm - Triplet": ("mdr", "--lambda 0 --l2norm", "--lambda 0", 7.8),
    "MDR - Triplet": ("mdr", "", "--lambda 0", 11.5),
    "MDR - L2Norm": ("mdr", "", "--lambda 0 --l2norm", 3.7)}
COLUMNS = ("R@1 of each", "paired", "correlation", "unpaired", "over classes", "paper's", "seeds",
           "Holm-adjusted verdict")
SECONDARY = ("MAP@R", "NMI", "seen R@1", "last four R@1", "R@1 where the search was best")
TITLE = "By new seeds (docs/plan_cub128.md).  The claims below are explored with seeds 0 to 2."


def over_classes(one, other, resamples=10_000):
    """95% bootstrap interval over test classes: classes are resampled with all their queries, the
    gallery stays, seeds are averaged.  one, other: the hits of each seed -> its ends, in points"""
    classes = list(one[0])
    gain = np.array([sum(a[c].count("1") - b[c].count("1") for a, b in zip(one, other))
                     for c in classes])
    size = len(one) * np.array([len(one[0][c]) for c in classes])
    drawn = np.random.RandomState(0).randint(0, len(classes), (resamples, len(classes)))
    return np.percentile(100 * gain[drawn].sum(1) / size[drawn].sum(1), (2.5, 97.5))


def figures(paper, settings, sides):
    """The runs of either setting -> the figures of their difference"""
    def of_both(metric):
        return [[reading(run, DECIDING[paper, flags][1] if metric == SECONDARY[-1] else metric)
                 for run in runs] for runs, flags in zip(sides, settings)]

    a, b = map(np.array, of_both("R@1"))
    mean, half, word = verdict(a - b)
    row = {of: with_interval(*verdict(np.subtract(*of_both(of)))[:2]) for of in SECONDARY}
    from scipy import stats                         # here, because it takes a second to import
    ends = {"unpaired": stats.ttest_ind(a, b, equal_var=False).confidence_interval(),
            "over classes": over_classes(*of_both("hits"))}
    row |= {name: f"[{low:+.2f}, {high:+.2f}]" for name, (low, high) in ends.items()}
    return row | {"estimate": mean, "half-width": half, "p": p_value(a - b), "verdict": word,
                  "paired": with_interval(mean, half),
                  "R@1 of each": f"{spread(a)} and {spread(b)}",
                  "correlation": f"{np.corrcoef(a, b)[0, 1]:.2f}"}


def decided(args):
    """-> Markdown lines, CSV rows.  No figure before the runs of all seven are in, by one code."""
    rows, members, runs = [], [], []
    for text, (paper, *settings, papers) in FAMILY.items():
        sides = [deciding_runs(paper, flags, args) for flags in settings]
        members.append((paper, settings, sides))
        runs += sum(sides, [])
        done = min(sum(run.result is not None for run in side) for side in sides)
        rows.append({"claim": "decided", "must be above 0": text, "on": "cub128",
                     "seeds": f"{done} of {len(DECIDING_SEEDS)}",
                     "paper's": f"{papers:+g}" if papers else "–"})
    differ = [f"{what} of {NAMES[paper]}'s runs differ" for paper in SCRIPTS
              for what in ("code", "images", "weights_sha256", "versions")
              if len({str(run.config.get(what)) for run in runs
                      if run.paper == paper and run.result}) > 1]
    if differ or not all(run.result for run in runs):
        word = ", ".join(differ) or "not before all seeds"
        rows = [row | {"verdict": word, "Holm-adjusted verdict": word} for row in rows]
    else:
        rows = [row | figures(*member) for row, member in zip(rows, members)]
        adjust(rows)
    missing = [*dict.fromkeys(run.folder.name for run in runs if not run.result)]
    lines = [f"Missing: {listed(missing)}.", ""] if missing else []
    for heads in (COLUMNS, SECONDARY):
        heads = ["must be above 0", *heads]
        lines += [*markdown([heads, *([row.get(head, "–") for head in heads] for row in rows)]), ""]
    return ["## Decided", "", TITLE, "", *lines], rows

"""The headline differences on cub128, by seeds that explored nothing (docs/plan_cub128.md)."""
import numpy as np

from report.claims import CLAIMS, PAPER_OF, adjust, in_each_seed, p_value, verdict
from report.experiments import DECIDING_SEEDS, SEARCH_BEST
from report.tables import markdown, spread, with_interval

FAMILY = {  # an inequality of a claim: the paper's difference on CUB (AMSoftmax is in no table)
    ("J1", "JRD - AMSoftmax"): None, ("D1", "R@1, DML-DA triplet - triplet"): 6.33,
    ("D2", "R@1, DML-DA N-pair - N-pair"): 4.15,
    ("D3", "R@1, DML-DA contrastive - contrastive"): 3.63, ("M1", "L2Norm - Triplet"): 7.8,
    ("M7", "test, MDR - Triplet"): 11.5, ("M1", "MDR - L2Norm"): 3.7}
COLUMNS = ("R@1 of each", "paired", "correlation", "unpaired", "over classes", "paper's", "seeds",
           "Holm-adjusted verdict")
SECONDARY = ("MAP@R", "NMI", "seen R@1", "last four R@1", "R@1 where the search was best")
TITLE = """\
## Decided

By new seeds, as docs/plan_cub128.md says.  The claims below are explored with seeds 0 to 2."""


def over_classes(one, other, resamples=10_000):
    """95% bootstrap interval over test classes: drawn anew with all their queries, the gallery as
    it is, the mean over seeds.  one, other: the hits of each seed -> its ends, in points"""
    classes = list(one[0])
    gain = np.array([sum(a[c].count("1") - b[c].count("1") for a, b in zip(one, other))
                     for c in classes])
    size = len(one) * np.array([len(one[0][c]) for c in classes])
    drawn = np.random.RandomState(0).randint(0, len(classes), (resamples, len(classes)))
    return np.percentile(100 * gain[drawn].sum(1) / size[drawn].sum(1), (2.5, 97.5))


def difference(claim, text, papers, args):
    """A member of FAMILY -> CSV row; without figures before all its seeds are in"""
    paper, terms = PAPER_OF[claim[0]], CLAIMS[claim][2][text]
    seeds = DECIDING_SEEDS[paper]

    def of_both(metric):
        """What the seeds that have run have on either side"""
        sides = []
        for _, flags, _ in terms:
            share = SEARCH_BEST.get((paper, flags), 1.0)
            of = share if metric == SECONDARY[-1] else metric
            sides.append(in_each_seed(paper, lambda figure: figure(flags, of), "cub128", args,
                                      seeds))
        return sides

    done = min(len(side) if isinstance(side, list) else 0 for side in of_both("R@1"))
    row = {"claim": "decided", "must be above 0": text.rpartition(", ")[2], "on": "cub128",
           "seeds": f"{done} of {len(seeds)}", "paper's": f"{papers:+g}" if papers else "–"}
    if done < len(seeds):
        return row
    for metric in SECONDARY:
        a, b = map(np.array, of_both(metric))
        row[metric] = with_interval(*verdict(a - b)[:2])
    a, b = map(np.array, of_both("R@1"))
    mean, half, word = verdict(a - b)
    from scipy import stats                         # here, because it takes a second to import
    ends = {"unpaired": stats.ttest_ind(a, b, equal_var=False).confidence_interval(),
            "over classes": over_classes(*of_both("hits"))}
    row |= {name: f"[{low:+.2f}, {high:+.2f}]" for name, (low, high) in ends.items()}
    return row | {"estimate": mean, "half-width": half, "p": p_value(a - b), "verdict": word,
                  "paired": with_interval(mean, half),
                  "R@1 of each": f"{spread(a)} and {spread(b)}",
                  "correlation": f"{np.corrcoef(a, b)[0, 1]:.2f}"}


def decided(args):
    """-> Markdown lines, CSV rows"""
    rows, lines = [difference(*member, papers, args) for member, papers in FAMILY.items()], []
    if all("p" in row for row in rows):
        adjust(rows)
    else:
        rows = [row | {"verdict": "not before all seeds"} for row in rows]
    for heads in (COLUMNS, SECONDARY):
        heads = ["must be above 0", *heads]
        lines += [*markdown([heads, *([row.get(head, "–") for head in heads] for row in rows)]), ""]
    return [TITLE, "", *lines], rows

"""The ledger of claims: inequalities, verdicts, Holm's procedure, both rates; on run folders made
here."""
import math
import statistics

import numpy as np
import pytest
import scipy.stats

from report import claims, experiments
from test_report import arguments, pretend, rows_of, under


@pytest.fixture
def out(tmp_path):
    return str(tmp_path / "runs")


# ---------------------------------------------------------------------------- verdicts
@pytest.mark.parametrize("values, want", [
    ([1.0, 1.1, 0.9], "holds"), ([-1.0, -1.1, -0.9], "does not hold"), ([3.0], "undecided"),
    ([1.0, -1.0, 0.5], "undecided"), ([0.0, 0.0], "undecided"), ([2.0, 2.0], "holds")])
def test_verdict(values, want):
    mean, half, word = claims.verdict(values)
    assert word == want and mean == pytest.approx(statistics.mean(values))
    if len(values) == 3:
        assert half == pytest.approx(4.302653 * statistics.stdev(values) / 3 ** 0.5)


def test_a_claim_holds_if_all_its_parts_do():
    assert claims.claim_verdict(["holds", "holds"]) == "holds"
    assert claims.claim_verdict(["holds", "undecided"]) == "undecided"
    assert claims.claim_verdict(["undecided", "does not hold", "not run"]) == "does not hold"
    assert claims.claim_verdict(["holds", "not run"]) == "not run"
    bounds = ["no larger than 0.3", "holds", "no larger than 1.2", "no larger than 0.3"]
    assert claims.claim_verdict(bounds) == "no larger than 0.3; 1.2"
    assert claims.claim_verdict([*bounds, "undecided"]) == "undecided"
    assert claims.claim_verdict([*bounds, "does not hold"]) == "does not hold"


def test_what_all_seeds_leave_undecided_is_bounded():
    """By hand: 1, -1, 0.5 have mean 1/6 and s = 1.0408, so the interval ends at 2.752."""
    values = [1.0, -1.0, 0.5]
    for full, want in ((3, "no larger than 2.8"), (4, "undecided")):
        mean, half, word = claims.verdict(values, full)
        assert word == want and mean + half == pytest.approx(
            1 / 6 + 4.302653 * 1.040833 / 3 ** 0.5)
    assert claims.verdict([2.0, 2.0, 2.1], 3)[2] == "holds"
    assert claims.verdict([-2.0, -2.0, -2.1], 3)[2] == "does not hold"
    for x, want in ((0.881, "0.89"), (0.5, "0.5"), (0.0312, "0.032"), (12.01, "13"), (0, "0"),
                    (9.96, "10"), (123.0, "130")):
        assert claims.rounded_up(x) == want


# ---------------------------------------------------------------------------- inequalities
def test_a_claim_compares_what_it_says_in_that_order():
    def sides(claim, text):
        (one, better, metric), (minus_one, worse, same) = claims.CLAIMS[claim][2][text]
        assert (one, minus_one, metric) == (1, -1, same)
        return better.strip(), worse.strip(), metric

    assert sides("J1", "JRD - AMSoftmax") == ("", "--alpha 0", "R@1")
    assert sides("J3", "JRD - JRD-C") == ("", "--variant jrd-c", "R@1")
    assert sides("M1", "L2Norm - Triplet") == ("--lambda 0 --l2norm", "--lambda 0", "R@1")
    assert sides("M7", "train, L2Norm - MDR") == ("--lambda 0 --l2norm", "", "seen R@1")
    assert sides("D2", "NMI, DML-DA N-pair - N-pair") == (
        "--loss npair", "--loss npair --lambda 0", "NMI")
    assert sides("D5", "NMI, triplet, GOR - EN") == (
        "--loss triplet --regularizer gor", "--loss triplet --regularizer en", "NMI")
    assert sides("D1, 3 × the rate", "R@1, DML-DA triplet - triplet, 3 × the rate") == (
        "--loss triplet --lr 3e-4", "--loss triplet --lambda 0 --lr 3e-4", "R@1")


def test_claims_that_take_more_than_a_difference():
    """Each with figures that make it hold, by hand."""
    def value(claim, text, figures):
        terms = claims.CLAIMS[claim][2][text]
        if callable(terms):
            return terms(lambda flags, metric: figures[flags, metric])
        return sum(weight * figures[flags.strip(), metric] for weight, flags, metric in terms)

    of = {(f, m): x for f, a, b in (("--regularizer intra --alpha 1", 1.2, 0.9),
                                    ("--alpha 0", 1.0, 0.95), ("--regularizer jmmd", 1.1, 1.0),
                                    ("", 0.9, 0.8)) for m, x in (("lambda", a), ("d_H", b))}
    assert value("J7", "λ + d_H, α = 1 - α = 0", of) == pytest.approx(2.1 - 1.95)
    assert value("J8", "λ + d_H, JMMD - JRD", of) == pytest.approx(2.1 - 1.7)
    of = {("--lambda 0", "R@1"): 50, ("--lambda 0", "R@1, l2-normalized"): 44, ("", "R@1"): 60,
          ("", "R@1, l2-normalized"): 59, ("--lambda 0", "norm cv"): 0.3, ("", "norm cv"): 0.1,
          ("--lambda 0", "seen R@1"): 90, ("", "seen R@1"): 85}
    assert value("M5", "cost to Triplet", of) == 6
    assert value("M5", "cost to Triplet - to Triplet+MDR", of) == 5
    assert value("M8", "half of Triplet's - MDR's", of) == pytest.approx(0.05)
    assert value("D7", "gap without - with DA", of) == (90 - 50) - (85 - 60)
    of = {("--dim 64", "R@1"): 48, ("--lambda 0 --dim 64", "R@1"): 40, ("--dim 512", "R@1"): 60,
          ("--lambda 0 --dim 512", "R@1"): 57}
    assert value("M6", "gain at smallest d - at largest d", of) == 8 - 3
    of = {(f"--loss npair --lambda {x}", "NMI"): nmi for x, nmi in (
        (0.5, 50), (7, 58), (10, 60), (15, 59), (25, 57))}
    assert value("D6", "NMI, N-pair, rise from 0.5 to 10 - range from 7 to 25", of) == 10 - 3
    of = {(f"--levels {levels}{fixed}", "R@1"): 0 if fixed else gain
          for levels, gain in zip(experiments.LEVELS, (3, 1, 4, 1, 5, 9, 2))
          for fixed in ("", " --fixed-levels")}
    assert value("M4", "learnable - fixed, mean of 7", of) == pytest.approx(25 / 7)


# ---------------------------------------------------------------------------- many at once
@pytest.mark.parametrize("values", [[1.0, 1.1, 0.9], [1.0, -1.0, 0.5], [-2, -3], [0.1, 7, 3, 2]])
def test_p_is_that_of_the_paired_t_test(values):
    other = np.linspace(3, 4, len(values))
    want = scipy.stats.ttest_rel(other + values, other).pvalue
    assert claims.p_value(values) == pytest.approx(want, rel=1e-9) and 0 < want < 1
    assert (claims.p_value(values) < 0.05) == (claims.verdict(values)[2] != "undecided")


def test_p_of_what_does_not_vary():
    assert claims.p_value([2.0, 2.0]) == 0 and claims.p_value([0.0, 0.0]) == 1
    assert math.isnan(claims.p_value([3.0]))


def test_holm():
    """Against his procedure as written: the smallest p against level / m, the next against
    level / (m - 1), ..., until one is not below; and a case worked by hand."""
    assert claims.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert claims.holm([]) == [] and claims.holm([0.7, 0.9]) == [1, 1]
    draw, rejected, kept = np.random.RandomState(0), 0, 0
    for m in (1, 2, 5, 40):
        for level in (0.01, 0.05, 0.3):
            p = (draw.rand(m) ** 6).tolist()
            p[-1] = p[0]                                                # a tie
            want, left = set(), list(range(m))
            while left:
                i = min(left, key=lambda i: p[i])
                if p[i] > level / len(left):
                    break
                want.add(i)
                left.remove(i)
            assert {i for i, adjusted in enumerate(claims.holm(p)) if adjusted <= level} == want
            rejected, kept = rejected + len(want), kept + m - len(want)
    assert rejected > 20 and kept > 20


def test_the_family_is_what_decides_claims():
    rows = [{"verdict": "holds", "p": 0.01}, {"verdict": "does not hold", "p": 0.03},
            {"verdict": "no larger than 0.3", "p": 0.6}, {"verdict": "not run"},
            {"verdict": "undecided", "p": math.nan}]
    assert claims.adjust(rows) == 3
    assert [row.get("Holm-adjusted p") for row in rows] == pytest.approx([0.03, 0.06, 0.6] + 2 * [
        None])
    assert [row["Holm-adjusted verdict"] for row in rows] == [
        "holds", "undecided", "no larger than 0.3", "not run", "undecided"]


# ---------------------------------------------------------------------------- the ledger
def test_headline_claims_at_both_rates(out):
    """At the preset's rate JRD's gain is 0 ± something in 10 seeds, at three times it 1.  With 9
    seeds nothing is bounded."""
    args = arguments("--dataset", "glyphs", "--out", out)
    for rate, gain in (("", 0.0), (experiments.THREE_TIMES_IS["jrd"], 0.01)):
        for seed in range(10):
            for flags, more in (("", gain + 0.001 * (seed % 2) - 0.0004), ("--alpha 0", 0)):
                pretend(experiments.training("jrd", "glyphs", f"{flags} {rate}".strip(), seed, out,
                                             None), 0.5 + 0.01 * seed + more)
    lines, rows = claims.ledger(args, range(10))
    own, three = (row for row in rows if row["claim"] == "J1" and "Holm-adjusted verdict" in row)
    assert (own["verdict"], own["seeds"]) == ("no larger than 0.048", 10)
    assert own["estimate"] == pytest.approx(0.01) and own["Holm-adjusted verdict"] == own["verdict"]
    assert three["must be above 0"] == "JRD - AMSoftmax, 3 × the rate"
    assert three["verdict"] == three["Holm-adjusted verdict"] == "holds"
    assert three["estimate"] == pytest.approx(1.01)
    text = "\n".join(" ".join(line.split()) for line in lines)
    assert "| J1 | JRD beats AMSoftmax. | **no larger than 0.048** | no larger than 0.048 |" in text
    assert "| J1, 3 × the rate | JRD beats AMSoftmax. | **holds** | holds |" in text
    undecided = claims.ledger(args, range(9))[1]
    assert next(r["verdict"] for r in undecided if r["claim"] == "J1") == "undecided"


def test_every_claim_is_there_and_asks_for_runs_of_the_list():
    assert [claim for claim in claims.CLAIMS if "," not in claim] == [
        f"{paper}{i}" for paper, n in (("J", 10), ("M", 8), ("D", 8)) for i in range(1, n + 1)]
    listed = {}                                                         # folder of seed 0: seeds
    for row in (row for dataset in ("real", "glyphs", "cub128")
                for row in rows_of("--dataset", dataset) if row.flags is not None):
        folder = experiments.runs_of(row, under("runs"), 1)[0].folder
        listed[folder] = max(row.seeds, listed.get(folder, 0))
    headline = "J1 J2 J3 J4 M1 M3 M5 M7 M8 D1 D2 D3 D7 D8".split()
    for claim, (_, datasets, inequalities) in claims.CLAIMS.items():
        paper, name = claims.PAPER_OF[claim[0]], claim.partition(",")[0]
        where = {*datasets.split(), "glyphs"} | ({"cub128"} if name == claim else set())
        for dataset in where:
            least = 10 if dataset == "glyphs" and name in headline else 3

            def v(flags, metric):
                flags = experiments.flags_on(dataset, paper, flags)
                if flags is not None:
                    run = experiments.training(paper, dataset, flags, 0, "runs", None)
                    assert listed[run.folder] >= least, (claim, dataset, run.command)
                return 0.0
            for terms in inequalities.values():
                terms(v) if callable(terms) else [v(flags, metric) for _, flags, metric in terms]


def test_differences_are_paired_by_seed(out):
    """Seeds differ by far more than the two settings do, and seed 3 has only one of them."""
    for seed, base in enumerate((0.3, 0.5, 0.7, 0.9)):
        pretend(experiments.training("jrd", "glyphs", "--alpha 0", seed, out, None), base)
        if seed < 3:
            better = base + 0.01 + 0.001 * seed
            pretend(experiments.training("jrd", "glyphs", "", seed, out, None), better)
    values = claims.in_each_seed("jrd", claims.less("", "--alpha 0"), "glyphs", under(out),
                                 range(5))
    assert values == pytest.approx([1.0, 1.1, 1.2])
    args = arguments("--dataset", "glyphs", "--out", out)
    lines, rows = claims.ledger(args, range(5))
    verdicts = {row["claim"]: row["verdict"] for row in reversed(rows)}
    assert [verdicts[c] for c in ("J1", "J2", "M2")] == ["holds", "not run", "no miniature"]
    assert any("+1.100" in line and "[+0.852, +1.348]" in line for line in lines)
    assert any("Not run: J2, " in line and " M2, " in line for line in lines)
    args = arguments("--dataset", "glyphs", "--paper", "jrd", "--out", out)
    assert {row["claim"][0] for row in claims.ledger(args, range(5))[1]} == {"J"}

"""studies/decided.py: Holm's procedure, a family on run folders made here, its page."""
import re

import numpy as np
import pytest
import scipy.stats

from conftest import ROOT
from studies import decided
from test_report import out, pretend  # noqa: F401


# ---------------------------------------------------------------------------- many at once
def test_holm():
    """Against his procedure as written: the smallest p against level / m, the next against
    level / (m - 1), ..., until one is not below; and a case worked by hand."""
    def adjusted(p, mean=1.0):
        rows = decided.holm([{"p": value, "mean": mean} for value in p])
        for row in rows:
            word = "holds" if mean > 0 else "does not hold"
            assert row["Holm-adjusted"] == (word if row["Holm-adjusted p"] < 0.05 else "undecided")
        return [row["Holm-adjusted p"] for row in rows]
    assert adjusted([0.01, 0.04, 0.03, 0.005], -1) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    draw, rejected = np.random.RandomState(0), []
    for m in (1, 2, 5, 40):
        p = (draw.rand(m) ** 6).tolist()
        p[-1] = p[0]                                                    # a tie
        for level in (0.01, 0.05, 0.3):
            want, left = set(), list(range(m))
            while left and p[i := min(left, key=p.__getitem__)] <= level / len(left):
                want.add(i)
                left.remove(i)
            rejected += [value <= level for value in adjusted(p)]
            assert {i for i, yes in enumerate(rejected[-m:]) if yes} == want
    assert 20 < sum(rejected) < len(rejected) - 20


# ---------------------------------------------------------------------------- by new seeds
def test_a_whole_family_against_scipy_and_a_mixed_one(out):
    """Hits of six classes of different sizes; the regularized arm has all of one class.  The
    optional difference belongs to the family once it has all its seeds."""
    draw, hits, untold = np.random.RandomState(1), {}, "not before all seeds"
    for method in ("JRD", "AMSoftmax", "DML-DA contrastive", "contrastive", "MDR", "Triplet",
                   "L2Norm"):
        for run in decided.runs_of("networks", method, out):
            of_run = {str(c): draw.randint(0, 2, 9 + c) for c in range(6)}
            of_run["5"] |= method == "JRD"
            r1 = np.mean(np.concatenate([*of_run.values()]))
            if method in ("Triplet", "L2Norm") and run.cfg.seed == 5:
                rows = decided.decided("networks", out)
                assert len(rows) == 3 and (method == "L2Norm") == all(
                    row["Holm-adjusted"] != untold for row in rows)
                assert method == "L2Norm" or rows[0]["seeds"] == "2 of 3" and not rows[0]["p"]
            pretend(run, r1, hits={c: "".join(map(str, bits)) for c, bits in of_run.items()})
            hits.setdefault(method, []).append((r1, of_run))
    *_, jrd, optional = rows = decided.decided("networks", out)
    assert len(rows) == 4 and optional["must be above 0"] == "MDR - L2Norm"
    assert all(row["p"] <= row["Holm-adjusted p"] for row in rows)
    (a, bits_a), (b, bits_b) = zip(*hits["JRD"]), zip(*hits["AMSoftmax"])
    test = scipy.stats.ttest_rel(a, b)
    low, high = (100 * end for end in test.confidence_interval())
    assert jrd["p"] == pytest.approx(test.pvalue) and jrd["paper's"] == "–"
    assert f" [{low:+.2f}, {high:+.2f}] (" in jrd["paired"]
    draw, shares = np.random.RandomState(0), []
    for classes in draw.randint(0, 6, (10_000, 6)):
        right = [sum(of[str(c)].sum() for of in bits for c in classes) for bits in (bits_a, bits_b)]
        shares.append((right[0] - right[1]) / 3 / sum(9 + c for c in classes))
    low, high = 100 * np.percentile(shares, (2.5, 97.5))
    assert jrd["over classes"] == f"[{low:+.2f}, {high:+.2f}]"

    first, other, _ = decided.runs_of("networks", "JRD", out)
    script, seed = ("code", "commit", "splits"), ("processor", "precision")
    first.config |= dict.fromkeys((*script, *seed), "another")
    told = ", ".join([f"{what} of JRD's runs differ" for what in script]
                     + [f"{what} of JRD's runs differ at seed 3" for what in seed])
    for row in decided.decided("networks", out):
        assert [*row] == ["must be above 0", "Holm-adjusted"] and row["Holm-adjusted"] == told
    first.config |= {what: other.config.get(what) for what in (*script, "precision")}
    (both,) = [run for run in decided.runs_of("networks", "AMSoftmax", out) if run.cfg.seed == 3]
    both.config["processor"] = "another"            # of another processor at seed 3, in both arms
    assert all(row["Holm-adjusted p"] for row in decided.decided("networks", out))


def test_the_commands_and_the_page_of_the_committed_runs(monkeypatch, typed):
    monkeypatch.chdir(ROOT)
    seeds = re.findall(r"--seed (\d+)", typed("studies/decided.py", "--list")[1])
    assert [*map(int, seeds)] == sorted([*range(3, 11)] * 11 + [3, 4, 5] * 7)
    page = (ROOT / "results" / "cub128" / "decided.md").read_text(encoding="utf-8")
    assert typed("studies/decided.py") == (0, page, "")

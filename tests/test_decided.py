"""studies/decided.py: settings, Holm's procedure, families on run folders made here, its page."""
import re

import numpy as np
import pytest
import scipy.stats

from conftest import ROOT
from report import experiments
from report.tables import papers
from studies import decided
from test_report import out, pretend  # noqa: F401


# ---------------------------------------------------------------------------- the settings
def test_the_papers_differences_are_those_of_its_tables():
    """... and a setting's name is that of its row, a difference's the row's gain."""
    def r1(key, row):
        return next((e["value"] for e in papers(key, "cub", row) if e["metric"] == "R@1"), None)
    tables = {(key[0], frozenset(flags.split())): (key, name) for key in experiments.HEADLINES
              for name, flags in experiments.EXPERIMENTS[key].rows.items()}
    for text, of_paper in decided.FAMILIES["decides"][2].items():
        pair = text.split(" - ")
        (key, one), (_, other) = (tables[paper, frozenset(flags.split())] for paper, flags, _ in (
            decided.METHODS[name] for name in pair))
        assert (one, other) in experiments.EXPERIMENTS[key].baselines.items() or "MDR - L2" in text
        assert of_paper is None if key[0] == "jrd" else (
            r1(key, one) - r1(key, other) == pytest.approx(of_paper))
        assert all(row.lower().endswith(name.lower()) for row, name in zip((one, other), pair))
    assert r1(("mdr", "2a"), "R18+MDR") - r1(("mdr", "2a"), "R18") == pytest.approx(
        decided.FAMILIES["networks"][2]["MDR - Triplet"])


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
    """Hits of six classes of different sizes; the regularized arm has all of one class."""
    draw, hits, untold = np.random.RandomState(1), {}, "not before all seeds"
    for method in decided.METHODS:
        runs = decided.runs_of("decides", method, out)
        assert [run.cfg.seed for run in runs] == [*range(3, 11)]
        for run in runs:
            of_run = {str(c): draw.randint(0, 2, 9 + c) for c in range(6)}
            of_run["5"] |= method == "JRD"
            r1 = np.mean(np.concatenate([*of_run.values()]))
            if run.cfg.seed == 10 and method == "N-pair":
                rows = decided.decided("decides", out)
                assert {(row["Holm-adjusted"], row["seeds"]) for row in rows} == {
                    (untold, "7 of 8"), (untold, "8 of 8")}
            pretend(run, r1, hits={c: "".join(map(str, bits)) for c, bits in of_run.items()})
            hits.setdefault(method, []).append((r1, of_run))
    rows = decided.decided("decides", out)
    assert len(rows) == 7 and all(row["Holm-adjusted p"] for row in rows)
    (a, bits_a), (b, bits_b) = zip(*hits["JRD"]), zip(*hits["AMSoftmax"])
    test = scipy.stats.ttest_rel(a, b)
    low, high = (100 * end for end in test.confidence_interval())
    assert rows[0]["p"] == pytest.approx(test.pvalue) and rows[0]["paper's"] == "–"
    assert rows[0]["paired"].endswith(f" [{low:+.2f}, {high:+.2f}]")
    draw, shares = np.random.RandomState(0), []
    for classes in draw.randint(0, 6, (10_000, 6)):
        right = [sum(of[str(c)].sum() for of in bits for c in classes) for bits in (bits_a, bits_b)]
        shares.append((right[0] - right[1]) / 8 / sum(9 + c for c in classes))
    low, high = 100 * np.percentile(shares, (2.5, 97.5))
    assert rows[0]["over classes"] == f"[{low:+.2f}, {high:+.2f}]"

    first, *others = decided.runs_of("decides", "JRD", out)
    script, seed = ("code", "commit", "splits"), ("processor", "precision")
    first.config |= dict.fromkeys((*script, *seed), "another")
    told = ", ".join([f"{what} of JRD's runs differ" for what in script]
                     + [f"{what} of JRD's runs differ at seed 3" for what in seed])
    for row in decided.decided("decides", out):
        assert [*row] == ["must be above 0", "Holm-adjusted"] and row["Holm-adjusted"] == told
    first.config |= {what: others[0].config.get(what) for what in (*script, "precision")}
    for method in decided.METHODS:      # of another processor at seed 3, but in both arms
        for run in decided.runs_of("decides", method, out):
            run.config["processor"] = f"kind {run.config['seed']}"
    assert all(row["Holm-adjusted p"] for row in decided.decided("decides", out))


def test_figures_before_a_family_is_whole_and_its_optional_difference(out):
    """No interval over two seeds, no verdict; but each seed's figures and the test classes'.  MDR -
    L2Norm belongs to the family once it has all seeds."""
    hits = {"0": "0110", "1": "0010"}
    for method, r1 in (("MDR", (0.40, 0.42)), ("Triplet", (0.35, 0.36, 0.34))):
        for run, value in zip(decided.runs_of("networks", method, out), r1):
            pretend(run, value, hits=hits)
    row, *rows = decided.decided("networks", out)
    assert row["seeds"] == "2 of 3" and [row["seeds"] for row in rows] == ["0 of 3", "0 of 3"]
    assert row["R@1 of each"] == "40.0, 42.0 and 35.0, 36.0" and row["p"] is None
    assert row["paired"] == "+5.50 (+5.00, +6.00)" and row["MAP@R"] == "+0.00"
    assert row["over classes"] == "[+0.00, +0.00]" and "paired" not in rows[1]
    for i, method in enumerate(("JRD", "AMSoftmax", "DML-DA contrastive", "contrastive", "MDR",
                                "L2Norm")):
        assert len(decided.decided("networks", out)) == 3
        for run in decided.runs_of("networks", method, out):
            if not run.folder.exists():
                pretend(run, 0.5 + 0.01 * (i * run.cfg.seed ** 2 % 7), hits=hits)
    rows = decided.decided("networks", out)
    assert rows[3]["must be above 0"] == "MDR - L2Norm"
    assert all(0 < row["p"] <= row["Holm-adjusted p"] for row in rows)


def test_the_commands_and_the_page_of_the_committed_runs(monkeypatch, typed):
    monkeypatch.chdir(ROOT)
    seeds = re.findall(r"--seed (\d+)", typed("studies/decided.py", "--list")[1])
    assert [*map(int, seeds)] == sorted([*range(3, 11)] * 11 + [3, 4, 5] * 7)
    page = (ROOT / "results" / "cub128" / "decided.md").read_text(encoding="utf-8")
    assert typed("studies/decided.py") == (0, page, "")

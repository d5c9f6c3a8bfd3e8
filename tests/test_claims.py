"""Verdicts, inequalities, Holm's procedure, the ledger, new seeds; on run folders made here."""
import csv
import math
import statistics

import numpy as np
import pytest
import scipy.stats

from conftest import ROOT
from report import claims, experiments
from report.tables import papers
from studies import rate_search
from test_report import args_of, out, pretend, rows_of, under, write_report  # noqa: F401


# ---------------------------------------------------------------------------- verdicts
@pytest.mark.parametrize("values, want", [
    ([1.0, 1.1, 0.9], "holds"), ([-1.0, -1.1, -0.9], "does not hold"), ([3.0], "undecided"),
    ([1.0, -1.0, 0.5], "undecided"), ([0.0, 0.0], "undecided"), ([2.0, 2.0], "holds"),
    ([-2, -3], "undecided"), ([0.1, 7, 3, 2], "undecided")])
@pytest.mark.filterwarnings("error:divide by zero")        # no t-test of a single seed
def test_verdict(values, want):
    """p is the paired t-test's: below 0.05 where the 95% interval leaves out 0."""
    row = claims.judged(values)
    assert row["verdict"] == want and row["estimate"] == pytest.approx(statistics.mean(values))
    if len(values) == 3:
        half = 4.302653 * statistics.stdev(values) / 3 ** 0.5
        assert row["half-width"] == pytest.approx(half)
    if len({*values}) == 1:
        np.testing.assert_equal(row["p"], float(not values[0]) if values[1:] else math.nan)
    else:
        other = np.linspace(3, 4, len(values))
        p = scipy.stats.ttest_rel(other + values, other).pvalue
        assert row["p"] == pytest.approx(p, rel=1e-9) and 0 < p < 1
        assert (p < 0.05) == (want != "undecided")


# ---------------------------------------------------------------------------- inequalities
BASE, NORM, NPAIR = "--lambda 0", "R@1, l2-normalized", "--loss npair --lambda"
NORMED = {(BASE, "R@1"): 50, (BASE, NORM): 44, ("", "R@1"): 60, ("", NORM): 59}
WIDTHS = {("--dim 64", "R@1"): 48, (f"{BASE} --dim 64", "R@1"): 40, ("--dim 512", "R@1"): 60,
          (f"{BASE} --dim 512", "R@1"): 57}


@pytest.mark.parametrize("claim, text, figures, want", [
    ("J1", "JRD - AMSoftmax", {("", "R@1"): 5, ("--alpha 0", "R@1"): 3}, 2),
    ("J7", "λ + d_H, α = 1 - α = 0", {
        ("--regularizer intra --alpha 1", "lambda"): 1.25, ("--alpha 0", "lambda"): 1,
        ("--regularizer intra --alpha 1", "d_H"): 0.75, ("--alpha 0", "d_H"): 0.5}, 0.5),
    ("M4", "learnable - fixed, mean of 7", {
        (f"--levels {levels}{fixed}", "R@1"): 0 if fixed else gain
        for levels, gain in zip(experiments.LEVELS, (3, 1, 4, 1, 5, 9, 5))
        for fixed in ("", " --fixed-levels")}, 4),
    ("M5", "cost to Triplet", NORMED, 6),
    ("M5", "cost to Triplet - to Triplet+MDR", NORMED, 5),
    ("M6", "gain at smallest d - at largest d", WIDTHS, 8 - 3),
    ("M7", "train, L2Norm - MDR", {(f"{BASE} --l2norm", "seen R@1"): 5, ("", "seen R@1"): 3}, 2),
    ("M8", "half of Triplet's - MDR's", {(BASE, "norm cv"): 0.75, ("", "norm cv"): 0.25}, 0.125),
    ("D5", "NMI, triplet, GOR - EN", {("--loss triplet --regularizer gor", "NMI"): 5,
                                      ("--loss triplet --regularizer en", "NMI"): 3}, 2),
    ("D6", "NMI, N-pair, rise from 0.5 to 10 - range from 7 to 25", {
        (f"{NPAIR} {x}", "NMI"): nmi
        for x, nmi in ((0.5, 50), (7, 58), (10, 60), (15, 59), (25, 57))}, 10 - 3),
    ("D7", "gap without - with DA", {(BASE, "R@1"): 50, ("", "R@1"): 60, (BASE, "seen R@1"): 90,
                                     ("", "seen R@1"): 85}, (90 - 50) - (85 - 60))])
def test_a_claim_compares_what_it_says_in_that_order(claim, text, figures, want):
    """By hand; each figure is asked for."""
    asked = set()

    def v(flags, metric="R@1"):
        asked.add((flags.strip(), metric))
        return figures[flags.strip(), metric]
    assert claims.CLAIMS[claim][2][text](v) == want and asked <= set(figures)


# ---------------------------------------------------------------------------- many at once
def test_holm():
    """Against his procedure as written: the smallest p against level / m, the next against
    level / (m - 1), ..., until one is not below; and a case worked by hand."""
    def adjusted(p):
        rows = [{"verdict": "holds", "p": value} for value in p]
        rows += [{"verdict": "undecided", "p": math.nan}, {"verdict": "not run"}]   # no members
        assert claims.holm(rows) == len(p)
        *rows, one_seed, no_run = rows
        assert one_seed["Holm-adjusted verdict"] == "undecided"
        assert no_run["Holm-adjusted verdict"] == "not run"
        assert [row["Holm-adjusted verdict"] for row in rows] == [
            "holds" if row["Holm-adjusted p"] < 0.05 else "undecided" for row in rows]
        return [row["Holm-adjusted p"] for row in rows]
    assert adjusted([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjusted([]) == [] and adjusted([0.7, 0.9]) == [1, 1]
    draw, rejected, kept = np.random.RandomState(0), 0, 0
    for m in (1, 2, 5, 40):
        for level in (0.01, 0.05, 0.3):
            p = (draw.rand(m) ** 6).tolist()
            p[-1] = p[0]                                                # a tie
            want, left = set(), list(range(m))
            while left and p[i := min(left, key=p.__getitem__)] <= level / len(left):
                want.add(i)
                left.remove(i)
            assert {i for i, value in enumerate(adjusted(p)) if value <= level} == want
            rejected, kept = rejected + len(want), kept + m - len(want)
    assert rejected > 20 and kept > 20


# ---------------------------------------------------------------------------- the ledger
def test_every_claim_is_there_and_asks_for_runs_of_the_list():
    assert list(claims.CLAIMS) == [
        f"{paper}{i}" for paper, n in (("J", 10), ("M", 8), ("D", 8)) for i in range(1, n + 1)]
    presets = {paper: script.parse_args([]).lr for paper, script in experiments.SCRIPTS.items()}
    listed = {}                                                         # folder of seed 0: seeds
    for row in (row for dataset in ("real", "glyphs", "cub128")
                for row in rows_of("--dataset", dataset) if row.flags is not None):
        folder = experiments.runs_of(row, under("runs"))[0].folder
        listed[folder] = max(row.seeds, listed.get(folder, 0))
    headline = "J1 J2 J3 J4 M1 M3 M5 M7 M8 D1 D2 D3 D7 D8".split()
    asked = [(claim, dataset) for claim, parts in claims.CLAIMS.items()
             for dataset in (*parts[1].split(), "glyphs", "cub128")]
    for claim, dataset, rate in [(*pair, "") for pair in asked] + [
            (claim, "glyphs", experiments.THREE_TIMES_IS[claims.PAPER_OF[claim[0]]])
            for claim in claims.HEADLINE_CLAIMS]:
        paper = claims.PAPER_OF[claim[0]]
        least = 10 if dataset == "glyphs" and claim in headline else 3

        def v(flags, metric="R@1"):
            flags = experiments.flags_on(dataset, paper, f"{flags} {rate}".strip())
            if flags is not None:
                run = experiments.training(paper, dataset, flags, 0, "runs", None, None)
                assert listed[run.folder] >= least, (claim, dataset, run.command)
                assert not rate or run.cfg.lr >= 2.9 * presets[paper]
            return 0.0
        for inequality in claims.CLAIMS[claim][2].values():
            inequality(v)


def test_differences_are_paired_by_seed(out):
    """Seeds differ by far more than the two settings do, and seed 3 has only one of them.  At three
    times the rate the gain is 0 ± something."""
    def runs(flags, r1):
        for seed, value in enumerate(r1):
            pretend(experiments.training("jrd", "glyphs", flags, seed, out, None, None), value)
    three = experiments.THREE_TIMES_IS["jrd"]
    runs("--alpha 0", (0.3, 0.5, 0.7, 0.9))
    runs("", (0.31, 0.511, 0.712))
    runs(f"--alpha 0 {three}", (0.3, 0.5, 0.7))
    runs(three, (0.301, 0.499, 0.701))
    args = args_of("--dataset", "glyphs", "--runs", out)
    lines, rows = claims.ledger(args, range(5))
    rows = {row["claim"]: row for row in reversed(rows)}
    assert [rows[c]["verdict"] for c in ("J1", "J1, 3 × the rate", "J2", "M2")] == [
        "holds", "undecided", "not run", "not run"]
    assert [rows[c]["seeds"] for c in ("J1", "J1, 3 × the rate")] == [3, 3]
    text = "\n".join(" ".join(line.split()) for line in lines)
    assert "+1.100 | [+0.852, +1.348] | 3 | holds | holds |" in text
    assert "| J1, 3 × the rate | JRD beats AMSoftmax. | **undecided** | undecided |" in text
    assert " | **not run** | not run |" in text                 # J6: its worst inequality's
    assert any("Not run: J2, " in line and " M2, " in line for line in lines)
    args = args_of("--dataset", "glyphs", "--paper", "jrd", "--runs", out)
    assert {row["claim"][0] for row in claims.ledger(args, range(5))[1]} == {"J"}


# ---------------------------------------------------------------------------- by new seeds
def test_the_papers_differences_are_those_of_its_tables():
    """... and a setting's name is that of its row."""
    def r1(key, row):
        return next((e["value"] for e in papers(key, "cub", row) if e["metric"] == "R@1"), None)
    families = experiments.FAMILIES
    numbers = {(key[0], flags): (name, r1(key, name)) for key in (("mdr", "1a"), ("dml_da", "I"))
               for name, flags in experiments.EXPERIMENTS[key].rows.items()}
    for text, of_paper in families["decides"].differences.items():
        if text == "JRD - AMSoftmax":
            assert of_paper is None
            continue
        pair = text.split(" - ")
        (one, ours), (other, theirs) = (numbers[experiments.METHODS[name]] for name in pair)
        assert ours - theirs == pytest.approx(of_paper)
        assert all(row.lower().endswith(name.lower()) for row, name in zip((one, other), pair))
    assert r1(("mdr", "2a"), "R18+MDR") - r1(("mdr", "2a"), "R18") == pytest.approx(
        families["networks"].differences["MDR - Triplet"])


@pytest.mark.parametrize("name", experiments.FAMILIES)
def test_rates_and_shares_are_those_of_the_search(name):
    family = experiments.FAMILIES[name]
    searched = {runs: rate_search.finished_runs("cub128", ROOT / f"results/cub128/{runs}.tar.xz")
                for runs in ("mdr", "search")}
    assert {name for text in family.differences for name in text.split(" - ")} == {*family.settings}
    for setting, (more, share) in family.settings.items():
        paper, flags = experiments.METHODS[setting]
        words = f"--dataset cub128 {flags} {more or ''}".split()
        cfg = experiments.SCRIPTS[paper].parse_args(words)
        assert paper != "jrd" or cfg.lr_proxies == pytest.approx(100 * cfg.lr)
        if share:
            (row,) = [row for row, of in rate_search.SETTINGS.items() if of == (paper, flags)]
            assert share == searched["mdr" if paper == "mdr" else "search"][cfg.lr][row][0][3]


def test_nothing_is_said_before_all_seeds_are_in(tmp_path, monkeypatch):
    """Of a family with the flags and seeds of SqueezeNet's, and of one without rates."""
    def told(name):
        text, _ = write_report(tmp_path / name, *words)
        with open(tmp_path / name / "claims.csv", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert {r["verdict"] for r in rows if r["claim"] == "networks"} == {"not before all seeds"}
        return text, [row for row in rows if row["claim"] == "decides"]
    words = "--dataset", "cub128", "--runs", tmp_path / "runs"
    args, family = args_of(*words), experiments.FAMILIES["decides"]
    for text in family.differences:
        for setting, share in zip(text.split(" - "), (0.02, 1.0)):      # 0.02: epoch 1 of 50
            monkeypatch.setitem(family.settings, setting, ("--lr 2e-5", share))
    draw, hits = np.random.RandomState(1), {}
    runs = [run for run in experiments.all_runs(experiments.selected(args), args)
            if run.cfg.name == "decides"]
    assert sorted(run.cfg.seed for run in runs) == sorted([*range(3, 11)] * 11)
    assert {run.cfg.lr for run in runs} == {2e-5}
    for run in runs:
        if run is runs[-1]:
            text, rows = told("before")
            assert {row["verdict"] for row in rows} == {"not before all seeds"}
            assert not any(row.get("p") for row in rows)
            assert "7 of 8" in text and f"Missing: {run.folder.name}." in text
        regularized = run.cfg.changed.get("lambda", run.cfg.changed.get("alpha", 1)) > 0
        of_run = {str(c): draw.randint(0, 2, 9 + c) for c in range(6)}
        of_run["5"] |= regularized
        r1 = np.mean(np.concatenate([*of_run.values()]))
        pretend(run, r1, hits={c: "".join(map(str, bits)) for c, bits in of_run.items()})
        if run.paper == "jrd":
            run.log[0]["R@1"] = 0.5
            hits.setdefault(regularized, []).append((r1, of_run))
    text, rows = told("after")
    assert len(rows) == 7 and all(row["Holm-adjusted p"] for row in rows)
    (a, bits_a), (b, bits_b) = zip(*hits[True]), zip(*hits[False])
    pair, apart = scipy.stats.ttest_rel(a, b), scipy.stats.ttest_ind(a, b, equal_var=False)
    (row,) = [row for row in rows if row["must be above 0"] == "JRD - AMSoftmax"]
    assert float(row["p"]) == pytest.approx(pair.pvalue) and row["paper's"] == "–"
    early = 100 * np.mean(0.5 - np.array(b))
    assert row["R@1 where the search was best"].startswith(f"{early:+.2f} [")
    for name, test in (("paired", pair), ("unpaired", apart)):
        low, high = (100 * end for end in test.confidence_interval())
        assert row[name].endswith(f"[{low:+.2f}, {high:+.2f}]")
    draw, shares = np.random.RandomState(0), []
    for classes in draw.randint(0, 6, (10_000, 6)):
        right = [sum(of[str(c)].sum() for of in bits for c in classes) for bits in (bits_a, bits_b)]
        shares.append((right[0] - right[1]) / 8 / sum(9 + c for c in classes))
    low, high = 100 * np.percentile(shares, (2.5, 97.5))
    assert row["over classes"] == f"[{low:+.2f}, {high:+.2f}]"
    script, seed = ("code", "commit", "splits"), ("processor", "precision")
    runs[0].config |= dict.fromkeys((*script, *seed), "another")
    assert {row["verdict"] for row in told("mixed")[1]} == {", ".join(
        [f"{what} of JRD's runs differ" for what in script]
        + [f"{what} of JRD's runs differ at seed 3" for what in seed])}
    runs[0].config |= {what: runs[1].config.get(what) for what in (*script, "precision")}
    for run in runs:            # another processor at seed 3, in both arms, is none of its business
        run.config["processor"] = f"kind {run.config['seed']}"
    assert all(row["Holm-adjusted p"] for row in told("by seed")[1])


def test_the_optional_difference_is_there_with_all_of_its_seeds(tmp_path, monkeypatch):
    args = args_of("--dataset", "cub128", "--runs", tmp_path / "runs")
    family = experiments.FAMILIES["networks"]
    for setting, (more, _) in family.settings.items():
        _, flags = experiments.METHODS[setting]
        monkeypatch.setitem(family.settings, setting, (more or "--lr 2e-5", None))
        for run in experiments.deciding_runs("networks", setting, args):
            if setting != "L2Norm":
                pretend(run, 0.5 + 0.01 * (run.cfg.seed ** 2 * (1 + len(flags)) % 7),
                        hits={"0": "0110", "1": "0010"})
    _, rows = claims.decided(args, "networks")
    assert [row["must be above 0"] for row in rows] == [
        "MDR - Triplet", "DML-DA contrastive - contrastive", "JRD - AMSoftmax"]
    assert all(0 < row["p"] <= row["Holm-adjusted p"] for row in rows)
    assert "R@1 where the search was best" not in rows[0]
    assert rows[0]["R@1 of each, L2-normalized"].count(" ± ") == 2
    for run in experiments.deciding_runs("networks", "L2Norm", args):
        pretend(run, hits={"0": "0110", "1": "0010"})
    assert claims.decided(args, "networks")[1][-1]["must be above 0"] == "MDR - L2Norm"
    flags = f" {experiments.SEARCHED} --name networks"      # a seed may be in float32
    pretend(experiments.training("jrd", "cub128", flags, 4, args.runs, None, "fp32"))
    assert [run.cfg.precision for run in experiments.deciding_runs("networks", "JRD", args)] == [
        "bf16", "fp32", "bf16"]

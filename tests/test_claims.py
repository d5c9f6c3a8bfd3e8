"""Claims as inequalities, verdicts, Holm's procedure, the ledger, what new seeds decided; on run
folders made here."""
import csv
import math
import statistics

import numpy as np
import pytest
import scipy.stats

from conftest import ROOT
from report import claims, experiments
from report.tables import paper_numbers
from studies import rate_search
from test_report import args_of, pretend, rows_of, under, write_report


@pytest.fixture
def out(tmp_path):
    return str(tmp_path / "runs")


# ---------------------------------------------------------------------------- verdicts
@pytest.mark.parametrize("values, want", [
    ([1.0, 1.1, 0.9], "holds"), ([-1.0, -1.1, -0.9], "does not hold"), ([3.0], "undecided"),
    ([1.0, -1.0, 0.5], "undecided"), ([0.0, 0.0], "undecided"), ([2.0, 2.0], "holds"),
    ([-2, -3], "undecided"), ([0.1, 7, 3, 2], "undecided")])
def test_verdict(values, want):
    """p is the paired t-test's: below 0.05 where the 95% interval leaves out 0."""
    row = claims.judged(values)
    assert row["verdict"] == want and row["estimate"] == pytest.approx(statistics.mean(values))
    if len(values) == 3:
        half = 4.302653 * statistics.stdev(values) / 3 ** 0.5
        assert row["half-width"] == pytest.approx(half)
    if len(values) == 1:
        assert math.isnan(row["p"])
    elif len(set(values)) == 1:
        assert row["p"] == (values[0] == 0)
    else:
        other = np.linspace(3, 4, len(values))
        p = scipy.stats.ttest_rel(other + values, other).pvalue
        assert row["p"] == pytest.approx(p, rel=1e-9) and 0 < p < 1
        assert (p < 0.05) == (want != "undecided")


# ---------------------------------------------------------------------------- inequalities
def test_a_claim_compares_what_it_says_in_that_order():
    def sides(claim, text):
        """The settings whose figures count positively, and negatively; the metric"""
        asked, inequality = [], claims.CLAIMS[claim][2][text]
        inequality(lambda flags, metric: asked.append((flags.strip(), metric)) or 0)
        (better, metric), (worse, same) = asked
        signs = [inequality(lambda flags, _: flags.strip() == side) for side in (better, worse)]
        assert signs == [1, -1] and metric == same
        return better, worse, metric

    assert sides("J1", "JRD - AMSoftmax") == ("", "--alpha 0", "R@1")
    assert sides("J3", "JRD - JRD-C") == ("", "--variant jrd-c", "R@1")
    assert sides("M1", "L2Norm - Triplet") == ("--lambda 0 --l2norm", "--lambda 0", "R@1")
    assert sides("M7", "train, L2Norm - MDR") == ("--lambda 0 --l2norm", "", "seen R@1")
    assert sides("D2", "NMI, DML-DA N-pair - N-pair") == (
        "--loss npair", "--loss npair --lambda 0", "NMI")
    assert sides("D5", "NMI, triplet, GOR - EN") == (
        "--loss triplet --regularizer gor", "--loss triplet --regularizer en", "NMI")


def test_claims_that_take_more_than_a_difference():
    """Each with figures that make it hold, by hand."""
    def value(claim, text, figures):
        return claims.CLAIMS[claim][2][text](lambda flags, metric: figures[flags.strip(), metric])

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


def test_the_family_is_what_has_a_p():
    rows = [{"verdict": "holds", "p": 0.01}, {"verdict": "does not hold", "p": 0.03},
            {"verdict": "undecided", "p": 0.6}, {"verdict": "not run"},
            {"verdict": "undecided", "p": math.nan}]
    assert claims.adjust(rows) == 3
    assert [row.get("Holm-adjusted p") for row in rows] == pytest.approx([0.03, 0.06, 0.6] + 2 * [
        None])
    assert [row["Holm-adjusted verdict"] for row in rows] == [
        "holds", "undecided", "undecided", "not run", "undecided"]


# ---------------------------------------------------------------------------- the ledger
def test_headline_claims_at_both_rates(out):
    """At the preset's rate JRD's gain is 0 ± something in 10 seeds, at three times it 1."""
    args = args_of("--dataset", "glyphs", "--runs", out)
    for rate, gain in (("", 0.0), (experiments.THREE_TIMES_IS["jrd"], 0.01)):
        for seed in range(10):
            for flags, more in (("", gain + 0.001 * (seed % 2) - 0.0004), ("--alpha 0", 0)):
                pretend(experiments.training("jrd", "glyphs", f"{flags} {rate}".strip(), seed, out,
                                             None), 0.5 + 0.01 * seed + more)
    lines, rows = claims.ledger(args, range(10))
    own, three = (row for row in rows if row["claim"] == "J1")
    assert (own["verdict"], own["seeds"]) == ("undecided", 10)
    assert own["estimate"] == pytest.approx(0.01) and own["Holm-adjusted verdict"] == own["verdict"]
    assert three["must be above 0"] == "JRD - AMSoftmax, 3 × the rate"
    assert three["verdict"] == three["Holm-adjusted verdict"] == "holds"
    assert three["estimate"] == pytest.approx(1.01)
    text = "\n".join(" ".join(line.split()) for line in lines)
    assert "| J1 | JRD beats AMSoftmax. | **undecided** | undecided |" in text
    assert "| J1, 3 × the rate | JRD beats AMSoftmax. | **holds** | holds |" in text
    assert "| J6 | " in text and " | **not run** | not run |" in text       # its worst inequality's


def test_every_claim_is_there_and_asks_for_runs_of_the_list():
    assert list(claims.CLAIMS) == [
        f"{paper}{i}" for paper, n in (("J", 10), ("M", 8), ("D", 8)) for i in range(1, n + 1)]
    listed = {}                                                         # folder of seed 0: seeds
    for row in (row for dataset in ("real", "glyphs", "cub128")
                for row in rows_of("--dataset", dataset) if row.flags is not None):
        folder = experiments.runs_of(row, under("runs"), 1)[0].folder
        listed[folder] = max(row.seeds, listed.get(folder, 0))
    headline = "J1 J2 J3 J4 M1 M3 M5 M7 M8 D1 D2 D3 D7 D8".split()
    for claim, (_, datasets, inequalities) in claims.CLAIMS.items():
        paper = claims.PAPER_OF[claim[0]]
        asked = [(dataset, "") for dataset in (*datasets.split(), "glyphs", "cub128")]
        if claim in claims.AT_THREE_TIMES:
            asked.append(("glyphs", experiments.THREE_TIMES_IS[paper]))
        for dataset, more in asked:
            least = 10 if dataset == "glyphs" and claim in headline else 3

            def v(flags, metric):
                flags = experiments.flags_on(dataset, paper, f"{flags} {more}".strip())
                if flags is not None:
                    run = experiments.training(paper, dataset, flags, 0, "runs", None)
                    assert listed[run.folder] >= least, (claim, dataset, run.command)
                return 0.0
            for inequality in inequalities.values():
                inequality(v)


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
    args = args_of("--dataset", "glyphs", "--runs", out)
    lines, rows = claims.ledger(args, range(5))
    verdicts = {row["claim"]: row["verdict"] for row in reversed(rows)}
    assert [verdicts[c] for c in ("J1", "J2", "M2")] == ["holds", "not run", "no miniature"]
    assert any("+1.100" in line and "[+0.852, +1.348]" in line for line in lines)
    assert any("Not run: J2, " in line and " M2, " in line for line in lines)
    args = args_of("--dataset", "glyphs", "--paper", "jrd", "--runs", out)
    assert {row["claim"][0] for row in claims.ledger(args, range(5))[1]} == {"J"}


# ---------------------------------------------------------------------------- by new seeds
def test_the_papers_differences_are_those_of_its_tables():
    of = {("mdr", name): entry for name, entry in paper_numbers()["mdr", "1a"]["cub"].items()}
    of |= {("dml_da", name): row for name, row in paper_numbers()["dml_da", "I"]["cub"].items()}
    row_of = {(key[0], flags): name for key in experiments.HEADLINES
              for name, flags in experiments.EXPERIMENTS[key].rows.items()}
    for text, (script, *settings, papers) in experiments.FAMILIES["decides"].differences.items():
        rows = [row_of[script, flags] for flags in settings]
        for row, name in zip(rows, text.split(" - "), strict=True):
            assert row.lower().endswith(name.lower())
        if script != "jrd":
            one, other = (of[script, row]["R@1"]["value"] for row in rows)
            assert one - other == pytest.approx(papers)
    networks, r18 = experiments.FAMILIES["networks"], paper_numbers()["mdr", "2a"]["cub"]
    assert r18["R18+MDR"]["R@1"]["value"] - r18["R18"]["R@1"]["value"] == pytest.approx(
        networks.differences["MDR - Triplet"][3])


@pytest.mark.parametrize("name", experiments.FAMILIES)
def test_rates_and_shares_are_those_of_the_search(name):
    family = experiments.FAMILIES[name]
    settings = {(paper, flags) for paper, *both, _ in family.differences.values() for flags in both}
    assert set(family.settings) == settings
    for (paper, flags), (more, share) in family.settings.items():
        words = f"--dataset cub128 {flags} {more or ''}".split()
        cfg = experiments.SCRIPTS[paper].parse_args(words)
        assert paper != "jrd" or cfg.lr_proxies == pytest.approx(100 * cfg.lr)
        if share:
            (row,) = [row for row, of in rate_search.SETTINGS.items() if of == (paper, flags)]
            runs = "mdr" if paper == "mdr" else "search"
            found = rate_search.finished_runs("cub128", ROOT / f"results/cub128/{runs}.tar.xz")
            assert share == found[cfg.lr][row][0][3]


def test_nothing_is_said_before_all_seeds_are_in(tmp_path, monkeypatch):
    """Of a family with the flags and seeds of SqueezeNet's, and of one without rates."""
    def told(name):
        text, _ = write_report(tmp_path / name, *words)
        with open(tmp_path / name / "claims.csv", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert {row["verdict"] for row in rows if row["claim"] == "networks"} == {
            "not before all seeds"}
        return text, [row for row in rows if row["claim"] == "decides"]

    words = "--dataset", "cub128", "--runs", tmp_path / "runs"
    args, family = args_of(*words), experiments.FAMILIES["decides"]
    for paper, *settings, _ in family.differences.values():
        for flags, share in zip(settings, (0.02, 1.0)):                 # 0.02: epoch 1 of 50
            monkeypatch.setitem(family.settings, (paper, flags), ("--lr 2e-5", share))
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
    assert [float(row["Holm-adjusted p"]) for row in rows] == pytest.approx(
        claims.holm([float(row["p"]) for row in rows]))
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
    runs[0].config |= {"code": "another", "processor": "another"}
    assert {row["verdict"] for row in told("mixed")[1]} == {
        "code of JRD's runs differ, processor of JRD's runs differ"}


def test_the_optional_difference_is_there_with_all_of_its_seeds(tmp_path, monkeypatch):
    args = args_of("--dataset", "cub128", "--runs", tmp_path / "runs")
    family = experiments.FAMILIES["networks"]
    for (paper, flags), (more, _) in family.settings.items():
        monkeypatch.setitem(family.settings, (paper, flags), (more or "--lr 2e-5", None))
    hits = {"0": "0110", "1": "0010"}
    for paper, flags in family.settings:
        for run in experiments.deciding_runs("networks", paper, flags, args):
            if "--l2norm" not in flags:
                pretend(run, 0.5 + 0.01 * (run.cfg.seed ** 2 * (1 + len(flags)) % 7), hits=hits)
    _, rows = claims.decided(args, "networks")
    assert [row["must be above 0"] for row in rows] == [
        "MDR - Triplet", "DML-DA contrastive - contrastive", "JRD - AMSoftmax"]
    p = [row["p"] for row in rows]
    assert [row["Holm-adjusted p"] for row in rows] == claims.holm(p) and min(p) > 0
    assert "R@1 where the search was best" not in rows[0]
    assert rows[0]["R@1 of each, L2-normalized"].count(" ± ") == 2
    for run in experiments.deciding_runs("networks", "mdr", "--lambda 0 --l2norm", args):
        pretend(run, hits=hits)
    assert claims.decided(args, "networks")[1][-1]["must be above 0"] == "MDR - L2Norm"

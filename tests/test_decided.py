"""The seven headline differences of cub128: what is compared, when, and the intervals."""
import csv

import numpy as np
import pytest
import scipy.stats

from report import claims, decided, experiments
from report.tables import paper_numbers
from test_report import arguments, pretend, write_report


def test_the_papers_differences_are_those_of_its_tables():
    of = {("mdr", name): entry for name, entry in paper_numbers()["mdr", "1a"]["cub"].items()}
    of |= {("dml_da", name): row for name, row in paper_numbers()["dml_da", "I"]["cub"].items()}
    rows = {("mdr", "L2Norm"): "Triplet+L2Norm", ("mdr", "MDR"): "Triplet+MDR",
            ("dml_da", "triplet"): "Triplet", ("dml_da", "contrastive"): "Contrastive"}
    for (claim, text), papers in decided.FAMILY.items():
        script = claims.PAPER_OF[claim[0]]
        one, other = (of.get((script, rows.get((script, name), name)))
                      for name in text.split(", ")[-1].split(" - "))
        assert (papers is None) == (claim == "J1")
        if papers:
            assert one["R@1"]["value"] - other["R@1"]["value"] == pytest.approx(papers)


def test_nothing_is_said_before_all_seeds_are_in(tmp_path, monkeypatch):
    """... and then what SciPy's tests and a bootstrap by loops say."""
    def told(name):
        text, _ = write_report(tmp_path / name, "--dataset", "cub128", "--out", tmp_path / "runs")
        with open(tmp_path / name / "claims.csv", encoding="utf-8") as file:
            return text, [row for row in csv.DictReader(file) if row["claim"] == "decided"]

    monkeypatch.setitem(decided.SEARCH_BEST, ("jrd", ""), 0.02)         # epoch 1 of 50
    args = arguments("--dataset", "cub128", "--out", tmp_path / "runs")
    runs = experiments.all_runs(experiments.selected(args), args)[:11 * 11]
    assert [run.cfg.seed for run in runs] == sorted([*range(11)] * 11)
    quick = arguments("--quick", "--dataset", "cub128")
    assert len(experiments.all_runs(experiments.selected(quick), quick)) == 14
    runs, draw, hits = [run for run in runs if run.cfg.seed > 2], np.random.RandomState(1), {}
    for run in runs:
        if run is runs[-1]:
            text, rows = told("before")
            assert "7 of 8" in text and {row["verdict"] for row in rows} == {
                "not before all seeds"}
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

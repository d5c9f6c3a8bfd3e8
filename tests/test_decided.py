"""The seven headline differences of cub128: what is compared, when, and the intervals."""
import csv

import numpy as np
import pytest
import scipy.stats

from conftest import ROOT
from report import claims, decided, experiments
from report.tables import paper_numbers
from studies import rate_search
from test_report import arguments, pretend, write_report


def test_the_papers_differences_are_those_of_its_tables():
    of = {("mdr", name): entry for name, entry in paper_numbers()["mdr", "1a"]["cub"].items()}
    of |= {("dml_da", name): row for name, row in paper_numbers()["dml_da", "I"]["cub"].items()}
    row_of = {(key[0], flags): name for key in experiments.HEADLINES
              for name, flags in experiments.EXPERIMENTS[key].rows.items()}
    for text, (script, *settings, papers) in decided.FAMILY.items():
        rows = [row_of[script, flags] for flags in settings]
        for row, name in zip(rows, text.split(" - "), strict=True):
            assert row.lower().endswith(name.lower())
        if script != "jrd":
            one, other = (of[script, row]["R@1"]["value"] for row in rows)
            assert one - other == pytest.approx(papers)


def test_rates_and_shares_are_those_of_the_search():
    settings = {(paper, flags) for paper, *both, _ in decided.FAMILY.values() for flags in both}
    assert set(decided.DECIDING) == settings
    for (paper, flags), (more, share) in decided.DECIDING.items():
        cfg = experiments.SCRIPTS[paper].parse_args(f"--dataset cub128 {flags} {more}".split())
        (name,) = [name for name, of in rate_search.SETTINGS.items() if of == (paper, flags)]
        runs = ROOT / "results" / "cub128" / ("mdr" if paper == "mdr" else "search")
        assert share == rate_search.finished_runs("cub128", runs)[cfg.lr][name][0][3]
        assert paper != "jrd" or cfg.lr_proxies == pytest.approx(100 * cfg.lr)


def test_nothing_is_said_before_all_seeds_are_in(tmp_path, monkeypatch):
    def told(name):
        text, _ = write_report(tmp_path / name, "--dataset", "cub128", "--out", tmp_path / "runs")
        with open(tmp_path / name / "claims.csv", encoding="utf-8") as file:
            return text, [row for row in csv.DictReader(file) if row["claim"] == "decided"]

    args = arguments("--dataset", "cub128", "--out", tmp_path / "runs")
    for paper, *settings, _ in decided.FAMILY.values():
        for flags, share in zip(settings, (0.02, 1.0)):                 # 0.02: epoch 1 of 50
            monkeypatch.setitem(decided.DECIDING, (paper, flags), ("--lr 2e-5", share))
    runs = experiments.all_runs(experiments.selected(args), args)[:11 * 11]
    assert [run.cfg.seed for run in runs] == sorted([*range(11)] * 11)
    runs, draw, hits = [run for run in runs if run.cfg.seed > 2], np.random.RandomState(1), {}
    assert {(run.cfg.lr, run.cfg.name) for run in runs} == {(2e-5, "decides")}
    for run in runs:
        if run is runs[-1]:
            text, rows = told("before")
            assert {(r["verdict"], r.get("p") or "") for r in rows} == {("not before all seeds", "")}
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
    runs[0].config |= {"code": "another", "versions": {}}
    assert {row["verdict"] for row in told("mixed")[1]} == {
        "code of JRD's runs differ, versions of JRD's runs differ"}

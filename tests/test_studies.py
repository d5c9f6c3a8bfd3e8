"""studies/: rate_search.py's split, rule and table, jrs_bandwidths.py's identity, composed.py's
arms, decided.py's families, level_ramp.py, their pages; benchmarks/step.py to its end."""
import json
import os
import re
import runpy
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch

import common
import dml_da
import jrd
import mdr
from conftest import LONG, ROOT, left_in, points
from report import experiments, tables
from report.records import finished, pivot, read_lines, unpacked
from studies import (composed, decided, level_ramp, mdr_on_photographs, omniglot, rate_search,
                     reg_weight)
from studies.jrs_bandwidths import KS, penalty
from support import glyphs
from support.files import UserError
from test_report import out, pretend  # noqa: F401


def test_every_study_finds_what_it_imports():
    for path in ROOT.glob("studies/*.py"):
        runpy.run_path(path, run_name="imported")


@pytest.fixture
def benchmarks(monkeypatch):
    """benchmarks/ on the import path; bench.py sets numbers of threads there."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(os, "environ", os.environ.copy())


def test_step(typed, benchmarks):
    flags = "--papers dml_da --batch 2 --steps 1 --threads 1 --device cpu"
    told = typed("benchmarks/step.py", *flags.split())
    assert "\n| dml_da, googlenet | 2 " in told[1] and told[1].count(" | 0.05 |\n") == 1, told[2]


@pytest.mark.parametrize("ratio, goal, status", [
    (0.5, 1, 0), (1.0, 1.0, 0), (2, None, 0), (2, 1.0, "\na: 2, above its goal of 1.0"),
    (float("nan"), 1.0, "\na: nan, above its goal of 1.0")])
def test_a_benchmark_ends_with_1_if_a_goal_is_missed(ratio, goal, status, benchmarks, capfd):
    """sys.exit of a text has status 1."""
    import bench
    with pytest.raises(SystemExit) as ended:
        bench.goals([("task", ["s"], "ratio", "goal"), ("a", ["9"], ratio, goal)])
    assert ended.value.code == status and capfd.readouterr().out.startswith("| task | s | ratio ")


# ---------------------------------------------------------------------------- rate_search.py
def test_no_image_of_a_test_class_is_seen():
    data = rate_search.held_out("glyphs", None, None, None, True, None)     # as the scripts call it
    whole = common.load_dataset("glyphs")
    assert data.test.classes == whole.train.classes[40:] and data.val is data.gallery is None
    assert data.train.classes == whole.train.classes[:40] and len(data.test) == 150
    assert not {*data.train.classes, *data.test.classes} & {*whole.test.classes}
    assert (data.test.images[0] == whole.train_plain.images[600]).all()


def test_the_rule():
    for means, rate in (({1e-4: [50, 52], 3e-4: [50, 51], 1e-3: [45, 46]}, 3e-4),   # 51 ± 1.41
                        ({1e-4: [50, 50.5], 3e-4: [49, 50]}, 1e-4),                 # 50.25 ± 0.35
                        ({1e-4: [50, 52], 3e-4: [55]}, None), ({}, None)):
        assert rate_search.choice(means) == rate


def test_a_search_without_its_runs_is_one_line():
    with pytest.raises(UserError, match="no finished run of the search on cub128 under .*glyphs"):
        rate_search.table("cub128", ROOT / "results" / "glyphs" / "search.tar.xz")


def test_a_search_trains_into_a_folder_of_its_own(few_glyphs, monkeypatch, tmp_path, typed):
    """... and not into runs/, where its held-out classes would be taken for the test's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(common, "load_dataset", common.load_dataset)    # which run replaces
    words = "run mdr --epochs 1 --iterations 1 --batch 8"
    status, told, err = typed("studies/rate_search.py", *words.split())
    assert status == 0, err
    assert [path.name for path in tmp_path.iterdir()] == ["runs-search"] and "seen R@1" in told


def test_the_presets_of_glyphs_are_the_choice_of_the_committed_runs(capsys):
    archive = ROOT / "results" / "glyphs" / "search.tar.xz"
    runs = pivot(rate_search.finished_runs("glyphs", archive))
    rate_search.table("glyphs", archive)
    table = capsys.readouterr().out
    for paper, script in (("jrd", jrd), ("mdr", mdr), ("dml_da", dml_da)):
        means = rate_search.baseline_means(runs, paper)
        assert rate_search.choice(means) == script.parse_args([]).lr and len(means) == 5
        (row,) = re.findall(rf".*\b{paper}'s baselines.*", table)
        assert row.count("**") == 2 and row.count("±") == 5


def test_what_detaching_adds_is_radial():
    """Gradients of JRS with jrd.py's detached τ, with τ's gradient, and of what detaching adds."""
    layers = [torch.tensor(points(5 - seed, seed) + 1).requires_grad_() for seed in range(3)]
    slopes = (torch.autograd.grad(penalty(variant, layers, LONG, KS, None), layers)
              for variant in ("detached", "gradient", "only τ"))
    for x, detached, whole, added in zip(layers, *slopes):
        torch.testing.assert_close(detached, whole + added)
        centred = (x - x.mean(0)).detach()
        radial = (detached * centred).sum() / centred.square().sum() * centred
        torch.testing.assert_close(added, radial)
        assert whole.norm() > 1e-3 and radial.norm() > whole.norm()     # not vacuous


# ---------------------------------------------------------------------------- composed.py
def slope_by_tau(x_minus, x, labels, step=1e-4):
    """∂JRS/∂τ of x⁻ at constant features: a central difference, in float64"""
    def at(factor):
        kernels = 1
        for rep, scale in ((x_minus, factor), (x, 1)):
            d2 = torch.cdist(rep, rep).square()
            tau = scale * torch.pdist(rep).square().mean()
            kernels = kernels * sum(torch.exp(-d2 / (tau * s)) for s in (0.5, 1, 2)) / 3
        return kernels[labels[:, None] != labels].mean()
    x_minus, x = x_minus.detach().double(), x.detach().double()
    tau = torch.pdist(x_minus).square().mean()
    return ((at(1 + step) - at(1 - step)) / (2 * step * tau)).float()


@pytest.mark.parametrize("arm, density, jrs, tau", [
    ("contrastive", 0, 0, 0), ("density", 10, 0, 0), ("JRS", 0, 3, 0), ("both", 10, 3, 0),
    ("tau", 0, 0, 3), ("dtau", 10, 0, 3), ("tauminus", 0, 0, 3), ("dtauminus", 10, 0, 3)])
def test_each_arm_is_the_sum_of_its_parts(arm, density, jrs, tau, monkeypatch):
    """dml_da.py's objective and what the arm adds, which reaches the backbone; value, gradient."""
    alone = dml_da.objective
    for name in ("Network", "objective"):               # which compose replaces
        monkeypatch.setattr(dml_da, name, getattr(dml_da, name))
    torch.manual_seed(0)
    λ, variant = composed.ARMS[arm]
    composed.compose(variant, 3.0)
    network = dml_da.Network(dml_da.parse_args([]), classes=4)
    network.D0 += torch.tensor([0.5, 1.5, 1.2, 0.8])
    images, labels = torch.randint(256, (6, 3, 32, 32)).byte(), torch.tensor([1, 0, 1, 2, 0, 2])

    def objective(function, λ):
        return function(network, dml_da.parse_args(["--lambda", str(λ)]), images, labels, None)
    loss, terms = objective(dml_da.objective, λ)
    x_minus, x = layers = network.pool(images), network.embed(images)
    gram = jrd.gaussian_kernel(x_minus, 3) * jrd.gaussian_kernel(x, 3)
    added = jrs * jrd.jrs(gram, labels)
    if arm.endswith("minus"):           # JRS's derivative by τ of x⁻ alone, on which x has no part
        mean = torch.pdist(x_minus).square().mean()
        added = added - tau * slope_by_tau(x_minus, x, labels) * mean
    else:
        added = added + tau * penalty("only τ", layers, labels, (3, 3), None)
    want = objective(alone, density)[0] + added
    torch.testing.assert_close(loss, want)
    weights = [*network.backbone.parameters(), network.embedding.weight]
    slopes = []
    for value in (loss, want, added):
        slopes.append(torch.autograd.grad(value, weights, retain_graph=True))
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-4, atol=1e-5)
    assert (slopes[2][0].norm() > 1e-6) == (variant is not None)
    for name, layer in (("τ of x⁻", x_minus), ("τ of x", x)):
        torch.testing.assert_close(terms[name], torch.pdist(layer).square().mean())


def test_arms_on_photos_of_ones_own_have_a_table_and_no_picture(monkeypatch, capsys):
    """... because the picture's arms have the strengths of glyphs and cub128 in their names."""
    monkeypatch.setattr(composed, "draw_curves", None)
    with unpacked([ROOT / "results" / "glyphs" / "composed.tar.xz"]) as folder:
        for path in Path(folder).glob("*/config.json"):
            path.write_text(json.dumps(json.loads(path.read_text()) | {"dataset": "photos"}))
        composed.table(folder)
    assert "| contrastive" in capsys.readouterr().out


def test_the_page_has_the_gains_of_the_archives(monkeypatch, capsys):
    """... and a picture of those with JRS at its strength."""
    drawn = []
    monkeypatch.setattr(composed, "draw_curves", lambda path, *_, **how: drawn.append(path.name))
    for archive in ("glyphs/composed", "glyphs/composed-minus", "cub128/composed",
                    "cub128/composed-0.1"):
        composed.table(ROOT / "results" / f"{archive}.tar.xz")
    assert drawn == ["composed-glyphs.png", "composed-cub128.png"]
    page = (ROOT / "studies" / "composed.md").read_text(encoding="utf-8")
    page = re.sub(r"\]\([^)]*\)|```.*?```", "", page, flags=re.S)      # links, commands
    figure = re.compile(r"[+-]\d[\d.]*(?: \[[^]]*\])?|[\d.]+ ± [\d.]+")
    told, printed = set(figure.findall(page)), set(figure.findall(capsys.readouterr().out))
    means = {text.partition(" [")[0] for text in printed}               # by epoch
    assert len(told) > 50 and told <= printed | means


# ---------------------------------------------------------------------------- decided.py
def test_holm():
    """Against his procedure as written: the smallest p against level / m, the next against
    level / (m - 1), ..., until one is not below.  First a case whose last step would be below."""
    draw, kept = np.random.RandomState(0), []
    for p in ([0.01, 0.04, 0.03, 0.005], *((draw.rand(m) ** 6).tolist() for m in (1, 2, 5, 40))):
        p = [*p, p[0]]                                                  # a tie
        adjusted = decided.holm(p, len(p))
        for level in (0.01, 0.05, 0.3):
            left = sorted(p)
            while left and left[0] <= level / len(left):
                left.pop(0)
            above = [value for value, of_value in zip(p, adjusted) if of_value > level]
            assert sorted(above) == left
            kept += [len(left), len(p) - len(left)]
        assert decided.holm(p, len(p) + 2) == decided.holm([*p, 1, 1], len(p) + 2)[:len(p)]
    assert sum(kept[::2]) > 20 and sum(kept[1::2]) > 20


def test_a_verdict_is_the_planned_tests_and_so_is_the_rule_that_generalizes():
    """By the interval over classes, with the later analysis beside it; in replication by random
    classes.  An undecided difference does not generalize."""
    for mean, name in ((1, "gain"), (-1, "loss")):
        said = f"significant {name}"
        cases = (   # p, random classes, the interval leaves out 0; verdict, by either rule, later
            (0.001, 0.001, True, said, "yes", "yes", f"{said}, p 0.004"),
            (0.001, 0.2, True, said, "yes", "no", "undecided, p 0.2"),
            (0.001, 0.001, False, said, "no", "yes", f"{said}, p 0.004"),
            (0.4, 0.001, True, "undecided", None, None, f"{said}, p 0.004"))
        for label in decided.FAMILIES:
            rows = []
            for p, random, leaves_out, *_ in cases:
                rows.append({"p": p, "Welch": 1.0, "random": random, "mean": mean,
                             "leaves out 0": leaves_out})
            decided.judge(rows, len(rows), label)
            for row, (*_, verdict, over_classes, with_random, later) in zip(rows, cases):
                wanted = (verdict, over_classes, later)
                if label == "replication":
                    wanted = (verdict, with_random, None)
                assert (row["verdict"], row.get("generalizes"), row.get(decided.LATER)) == wanted
            assert rows[0]["planned: paired t"] == "0.001 → 0.004"
            assert rows[0]["adjusted p"] == "0.004"


def test_p_without_any_spread():
    """Two arms that collapsed in every seed show nothing, and a gain that never varies is sure: no
    NaN, which would change Holm's order, and no warning."""
    gain = np.array([1.0, 3, 2])
    assert decided.p_of(gain) == scipy.stats.ttest_rel(gain + 7, [7, 7, 7])[1]
    for same, p, power in ((0, 1, 0), (2, 0, 1)):
        gain = np.full(5, same)
        assert (decided.p_of(gain), decided.power(gain, 0.05)) == (p, power)


def test_each_search_was_best_at_the_share_where_the_plan_stops():
    searched = {
        "JRD": "jrd-cub128-lr0.0003-lr_proxies0.03", "AMSoftmax": "jrd-cub128-alpha0",
        "MDR": "mdr-cub128", "Triplet": "mdr-cub128-lambda0",
        "L2Norm": "mdr-cub128-lambda0-l2normTrue-lr3e-05",
        "DML-DA triplet": "dml_da-cub128-losstriplet-epochs12",
        "DML-DA N-pair": "dml_da-cub128-lossnpair-epochs12",
        "DML-DA contrastive": "dml_da-cub128-epochs12",
        "contrastive": "dml_da-cub128-lambda0-epochs12",
        "triplet": "dml_da-cub128-lambda0-losstriplet-epochs12",
        "N-pair": "dml_da-cub128-lambda0-lossnpair-epochs12-lr3e-06"}
    with unpacked([ROOT / f"results/cub128/{name}.tar.xz" for name in ("search", "mdr")]) as folder:
        for name, _, _, rate, share in decided.METHODS:
            log = read_lines(Path(folder, f"{searched[name]}-s0", "log.jsonl"))
            curve = {line["epoch"]: line["R@1"] for line in log if "R@1" in line}
            assert max(curve, key=curve.get) / log[-1]["epoch"] == float(share), name
            assert log[0]["lr"] == float(rate.split()[1]), name
        for arm, share in zip(("", "-lambda0"), decided.ON_NETWORKS["dml_da"], strict=True):
            run = f"dml_da-cub128{arm}-epochs12-lr1e-05-backbonegooglenet_bvlc-s0"
            log = read_lines(Path(folder, run, "log.jsonl"))
            curve = {line["epoch"]: line["R@1"] for line in log if "R@1" in line}
            assert max(curve, key=curve.get) == share * log[-1]["epoch"]
            assert log[-1]["epoch"] == decided.SEARCH_EPOCHS["dml_da"]


def test_what_earlier_stops_leave(out):
    """Each arm at its share of 30 epochs, evaluated after each fifth, at its share of the search's
    12, and over its last four evaluations.  JRD's search had another schedule, so no epochs."""
    arms = {}
    for name, gain in (("DML-DA triplet", 0.1), ("triplet", 0.0), ("JRD", 0.0)):
        runs = decided.runs_of("decides", name, out)
        made_up(runs, 0)
        for run in runs:
            epochs = run.cfg.epochs
            curve = {epoch: (epoch / epochs) ** 2 + gain for epoch in range(5, epochs + 1, 5)}
            lines = [json.dumps({"epoch": epoch, "R@1": r1}) for epoch, r1 in curve.items()]
            (run.folder / "log.jsonl").write_text("\n".join(lines))
        arms[name] = decided.runs_of("decides", name, out)
    sides = arms["DML-DA triplet"], arms["triplet"]
    row = decided.figures(*sides, [[], []], 7, (0.5, 1.0))
    assert row[decided.SEARCHED].startswith(f"{100 * (0.25 + 0.1 - 1):+.2f} [")
    assert row[decided.OWN].startswith(f"{100 * ((5 / 30) ** 2 + 0.1 - (10 / 30) ** 2):+.2f} [")
    assert row[decided.LAST_FOUR].startswith("+10.00 [")
    four = [100 * (epoch / 50) ** 2 for epoch in (35, 40, 45, 50)]
    theirs = [100 * ((epoch / 30) ** 2 + 0.1) for epoch in (15, 20, 25, 30)]
    row = decided.figures(arms["JRD"], sides[0], [[], []], 7, (1.0, 1.0))
    assert row[decided.LAST_FOUR].startswith(f"{np.mean(four) - np.mean(theirs):+.2f} [")
    assert decided.OWN not in decided.figures(arms["JRD"], arms["JRD"], [[], []], 7, (0.8, 1.0))
    assert not {decided.SEARCHED, decided.OWN} & decided.figures(*sides, [[], []], 7).keys()


def test_the_page_explains_each_column():
    explained = decided.READING.lower()
    for head in decided.HEADS[1:] + decided.BESIDE[1:]:
        told, _, _ = head.lower().removeprefix("epoch chosen ").partition(" (")
        told = told.removesuffix(", no test")
        told = told.replace("planned: paired t", "paired").replace("d r@1 of each", "d")
        assert f"{told}*" in explained, head


def test_random_classes_against_sums_over_cells():
    """The mean squares as sums over all cells of the table, with SciPy's F test as a check: with
    one factor alone left, the t-test is of that factor's means."""
    draw = np.random.RandomState(0)
    for S, C in ((3, 7), (5, 20)):
        x = 0.4 + draw.randn(S, C) + draw.randn(S, 1) + draw.randn(1, C)
        rows, columns, M = x.mean(1), x.mean(0), [0, 0, 0]
        for s in range(S):
            for c in range(C):
                M[0] += (rows[s] - x.mean()) ** 2 / (S - 1)
                M[1] += (columns[c] - x.mean()) ** 2 / (C - 1)
                M[2] += (x[s, c] - rows[s] - columns[c] + x.mean()) ** 2 / ((S - 1) * (C - 1))
        total = M[0] + M[1] - M[2]
        freedom = total ** 2 / sum(m * m / n for m, n in zip(M, (S - 1, C - 1, (S - 1) * (C - 1))))
        t = x.mean() / (total / S / C) ** 0.5
        assert decided.random_classes(x) == pytest.approx(2 * scipy.stats.t.sf(abs(t), freedom))
        same = np.repeat(rows[:, None], C, 1)                           # classes all alike
        assert decided.random_classes(same) == pytest.approx(scipy.stats.ttest_1samp(rows, 0)[1])
        same = np.repeat(columns[None], S, 0)                           # seeds all alike
        assert decided.random_classes(same) == pytest.approx(
            scipy.stats.ttest_1samp(columns, 0)[1])
    assert decided.random_classes(np.array([[1, -1, 1, 0.9], [-1, 1, -1, -0.9]])) == 1


def test_random_classes_keeps_its_level_and_the_paired_test_does_not():
    """No true gain, seeds and classes drawn anew each time: 5% are significant.  The paired test,
    which takes the classes as given, finds a difference four times as often."""
    draw, found = np.random.RandomState(0), np.zeros(2)
    for _ in range(1000):
        x = draw.randn(5, 1) / 5 + 3 * draw.randn(1, 60) + 3 * draw.randn(5, 60)
        found += decided.random_classes(x) < 0.05, scipy.stats.ttest_1samp(x.mean(1), 0)[1] < 0.05
    assert 30 < found[0] < 70 and found[1] > 200


def test_power_against_drawn_experiments():
    gain, drawn = np.array([2.7, 1.27, 1.79]), np.random.RandomState(0).randn(20_000, 3)
    p = scipy.stats.ttest_1samp(gain.mean() + gain.std(ddof=1) * drawn, 0, axis=1).pvalue
    assert decided.power(gain, 0.05 / 3) == pytest.approx((p < 0.05 / 3).mean(), abs=0.01)
    assert decided.power(-gain, 0.05 / 3) == decided.power(gain, 0.05 / 3)


def test_a_whole_family_against_scipy_and_a_mixed_one(out):
    """Hits of six classes of different sizes; the regularized arm has all of the last three.  The
    optional difference belongs to the family once it has all its seeds."""
    draw, hits, told = np.random.RandomState(1), {}, []
    kind = np.repeat(range(6), range(9, 15))                            # the class of each query
    for method in ("JRD", "AMSoftmax", "DML-DA contrastive", "contrastive", "MDR", "Triplet",
                   "L2Norm"):
        hits[method] = []
        for run in decided.runs_of("networks", method, out):
            if method in ("Triplet", "L2Norm") and run.cfg.seed == 5:
                told.append({row["verdict"] for row in decided.decided("networks", out)})
            of_run = draw.randint(0, 2, len(kind)) | ((kind > 2) & (method == "JRD"))
            text = {c: "".join(map(str, of_run[kind == c])) for c in range(6)}
            pretend(run.command, of_run.mean(), hits=text)
            experiments.training.cache_clear()
            hits[method].append(of_run)
    assert told[0] == {"not before all seeds"} and not told[0] & told[1]
    *_, jrd, optional = rows = decided.decided("networks", out)
    assert len(rows) == 4 and optional["difference"] == "MDR - L2Norm"
    for row in rows:
        assert row["p"] <= row["p, adjusted"]
    a, b = np.array(hits["JRD"]), np.array(hits["AMSoftmax"])           # (seeds, queries)
    test = scipy.stats.ttest_rel(a.mean(1), b.mean(1))
    low, high = (100 * end for end in test.confidence_interval())
    assert jrd["p"] == pytest.approx(test.pvalue) and jrd["paper's"] == "–"
    assert f" [{low:+.2f}, {high:+.2f}] (" in jrd["paired"]
    gain, _, _ = jrd["paired"].partition(" (")
    assert jrd["each arm's best epoch"] == f"{gain} at 2, 2"            # both are 0.05 higher
    draw, gains, shares = np.random.RandomState(0), (a - b).mean(0), []
    for classes in draw.randint(0, 6, (10_000, 6)):
        shares.append(np.concatenate([gains[kind == c] for c in classes]).mean())
    low, high = 100 * np.percentile(shares, (2.5, 97.5))
    assert jrd["over classes"] == f"[{low:+.2f}, {high:+.2f}]"
    ours, theirs = (decided.runs_of("networks", name, out) for name in ("JRD", "AMSoftmax"))
    for row in (jrd, decided.figures(theirs, ours, [[], []], 4)):       # on either side of 0
        assert row["leaves out 0"] == (low > 0 or high < 0)
    assert low > 0
    unpaired = scipy.stats.ttest_ind(a.mean(1), b.mean(1), equal_var=False)
    assert jrd["Welch"] == pytest.approx(unpaired.pvalue)
    low, high = unpaired.confidence_interval()
    assert jrd["Welch's interval"] == f"[{100 * low:+.2f}, {100 * high:+.2f}]"
    by_class = np.array([(a - b)[:, kind == c].sum(1) for c in range(6)]).T     # (seeds, classes)
    assert jrd["random"] == decided.random_classes(by_class / (len(kind) / 6))
    low, high = test.confidence_interval(1 - 0.05 / 4)                          # of four in all
    assert jrd["paired, at the family's level"] == f"[{100 * low:+.2f}, {100 * high:+.2f}]"
    assert jrd["seeds that lead"] == f"{(a.mean(1) > b.mean(1)).sum()} of 3"
    assert decided.all_lead([{decided.BESIDE[7]: "3 of 3"}] * 3)[0].count("9 pairs") == 1
    assert decided.all_lead([{decided.BESIDE[7]: "3 of 3"}, {decided.BESIDE[7]: "2 of 3"}]) == []

    first, other, _ = decided.runs_of("networks", "JRD", out)
    for what in ("code", "commit", "splits", "versions", "processor", "precision"):
        first.config = {**other.config, what: "another"}
        told = f"{what} of JRD's runs differ"
        if what in decided.IN_SEED:
            told += " at seed 3"
        for row in decided.decided("networks", out):
            assert row == {"difference": row["difference"], "verdict": told}
    both, *_ = decided.runs_of("networks", "AMSoftmax", out)
    machine = {"versions": "another", "processor": "another"}           # in both arms of seed 3
    first.config = other.config | machine
    both.config |= machine
    for row in decided.decided("networks", out):
        assert row["p, adjusted"]


def made_up(runs, gain, hits_of_six=(9, 10, 11, 12, 13, 14), skip=()):
    """Pretend runs whose hits are drawn, more with a gain -> R@1 of each, in %"""
    shares = []
    for run in runs:
        if run.cfg.seed in skip:
            continue
        draw, text = np.random.RandomState(run.cfg.seed + 100 * (run.paper == "jrd")), {}
        for c, n in enumerate(hits_of_six):
            text[c] = "".join(map(str, (draw.rand(n) < 0.4 + gain).astype(int)))
        joined = "".join(text.values())
        shares.append(100 * joined.count("1") / len(joined))
        folder = pretend(run.command, shares[-1] / 100, hits=text)
        curve = [{"epoch": 1, "R@1": 0.9 - gain}, {"epoch": 2, "R@1": run.cfg.seed / 100 + gain}]
        lines = [json.dumps(line) for line in curve]
        lines.append((folder / "log.jsonl").read_text())
        (folder / "log.jsonl").write_text("\n".join(lines))
    experiments.training.cache_clear()
    return np.array(shares)


def test_an_epoch_is_chosen_on_other_seeds(out):
    """JRD's first seed has 99 at epoch 1, where the others have 90; all have 92 at epoch 2.  So it
    takes epoch 2, and the others take epoch 1.  AMSoftmax has 80.  No earlier seeds were run."""
    for name in ("JRD", "AMSoftmax"):
        runs = decided.runs_of("networks", name, out)
        made_up(runs, 0.2 * (name == "JRD"))
        for first, run in zip((0.99, 0.9, 0.9), runs):
            curve = [(1, first), (2, 0.92)] if name == "JRD" else [(1, 0.8), (2, 0.8)]
            lines = [json.dumps({"epoch": epoch, "R@1": r1}) for epoch, r1 in curve]
            *_, last = (run.folder / "log.jsonl").read_text().splitlines()     # epoch 3, far below
            (run.folder / "log.jsonl").write_text("\n".join([*lines, last]))
    *_, row = decided.decided("networks", out)
    gain = tables.difference([12, 10, 10])
    assert row["epoch chosen on the other seeds"] == f"{gain} at 1, 1"
    assert "epoch chosen on earlier seeds" not in row


PRETENDED = {"commit": "c0ffee", "precision": "auto", "weights_sha256": "c0de"}     # by pretend


def test_the_replication_is_judged_script_by_script(out, monkeypatch):
    """Nothing of a script before both arms of all five seeds; JRD alone with its p doubled; then
    Holm over both.  Seeds 3 to 5 are in the pooled mean alone, and choose the epochs."""
    monkeypatch.setattr(decided, "PLANNED", {"jrd": PRETENDED, "dml_da": PRETENDED})
    arms = {}
    for name in ("JRD", "AMSoftmax", "DML-DA contrastive", "contrastive"):
        gain = 0.2 * (name in ("JRD", "DML-DA contrastive"))
        made_up(decided.runs_of("networks", name, out), gain)
        skip = (10,) * (name in ("AMSoftmax", "contrastive"))
        arms[name] = made_up(decided.runs_of("replication", name, out), gain, skip=skip)
    for row in decided.decided("replication", out):
        head = row.pop("difference")
        papers = {"JRD - AMSoftmax": "–"}.get(head, "+3.63")
        assert row == {"verdict": "not before all seeds", "seeds": "4 of 5",
                       "paper's": papers}
    *_, last = decided.runs_of("replication", "AMSoftmax", out)
    arms["AMSoftmax"] = np.append(arms["AMSoftmax"], made_up([last], 0))
    jrd, other = decided.decided("replication", out)
    assert "paired" not in other and other["seeds"] == "4 of 5"
    gain = arms["JRD"] - arms["AMSoftmax"]
    p = scipy.stats.ttest_1samp(gain, 0).pvalue
    assert jrd["p"] == pytest.approx(p) and jrd["p, adjusted"] == pytest.approx(2 * p)
    assert jrd["random, adjusted"] == pytest.approx(min(1, 2 * jrd["random"]))
    assert jrd["verdict"].startswith("significant gain") and 2 * p < 0.05
    before = []
    for a, b in zip(*(decided.runs_of("networks", name, out) for name in ("JRD", "AMSoftmax"))):
        before.append(100 * (a.result["last epoch"]["R@1"] - b.result["last epoch"]["R@1"]))
    assert jrd[decided.POOLED] == f"{np.mean([*gain, *before]):+.2f}, n = 8"
    # Epoch 1 is the best of each arm at a gain of 0 and of 0.2: 90 and 70, whatever the last is.
    assert jrd["epoch chosen on earlier seeds"].startswith("-20.00 [-20.00, -20.00] at 1, 1")
    assert jrd["epoch chosen on the other seeds"] == jrd["epoch chosen on earlier seeds"]

    mixed, *_ = decided.runs_of("replication", "contrastive", out)      # DML-DA's does not stop JRD
    mixed.config = {**mixed.config, "commit": "another"}
    again, other = decided.decided("replication", out)
    assert again["p, adjusted"] == jrd["p, adjusted"] and "paired" not in other
    assert other["verdict"] == ("commit of DML-DA's runs is not the plan's, commit of DML-DA's runs "
                                "differ")
    *_, last = decided.runs_of("replication", "contrastive", out)
    made_up([last], 0)
    both = decided.decided("replication", out)
    assert [row["seeds"] for row in both] == ["5 of 5"] * 2
    small, large = sorted(row["p"] for row in both)
    assert small < 0.9 * large
    assert sorted(row["p, adjusted"] for row in both) == [2 * small, max(2 * small, large)]

    monkeypatch.setattr(decided, "FAILED", ("DML-DA contrastive - contrastive",))
    again, failed = decided.decided("replication", out)
    assert again["p, adjusted"] == min(1, 2 * again["p"]) and "paired" not in failed
    assert failed["verdict"] == "not decided: a run failed twice, so p = 1"


def test_a_replication_that_is_not_the_plans_is_not_decided(out, monkeypatch):
    """Another commit, precision or file of weights in all runs, or no processor in one."""
    for name in ("JRD", "AMSoftmax"):
        made_up(decided.runs_of("replication", name, out), 0.2 * (name == "JRD"))
    told = set()
    for what in PRETENDED:
        monkeypatch.setattr(decided, "PLANNED", {"jrd": PRETENDED | {what: "the plan's"}})
        row, _ = decided.decided("replication", out)
        assert row["verdict"] == f"{what} of JRD's runs is not the plan's" and "paired" not in row
        told.add(row["verdict"])
    assert len(told) == 3
    monkeypatch.setattr(decided, "PLANNED", {"jrd": PRETENDED})
    assert "p, adjusted" in decided.decided("replication", out)[0]
    first, *_ = decided.runs_of("replication", "JRD", out)
    first.config = {**first.config, "processor": None}
    row, _ = decided.decided("replication", out)
    assert "processor of JRD's runs is not noted" in row["verdict"]
    first, second, *_ = decided.runs_of("replication", "JRD", out)
    first.config = second.config
    first.log[-1]["continued with"] = {"processor": "another"}
    row, _ = decided.decided("replication", out)
    assert row["verdict"] == "processor changed during a run of JRD at seed 6"


def test_the_replication_has_the_commands_of_its_plan(typed):
    plan = (ROOT / "docs" / "plans.md").read_text(encoding="utf-8").partition("## Replication")[2]
    commands = []
    for script in ("jrd", "dml_da"):
        for seed in range(6, 11):
            for line in re.findall(rf"^python {script}\.py .*", plan, re.M):
                commands.append(line.replace("--seed 6", f"--seed {seed}"))
    listed = typed("studies/decided.py", "--list")[1].splitlines()
    assert len(commands) == 20
    assert [line for line in listed if "--name replication" in line] == commands


def test_the_commands_and_the_page_of_the_committed_runs(monkeypatch, tmp_path, typed):
    monkeypatch.chdir(tmp_path)                         # its archives are found from anywhere
    seeds = re.findall(r"--seed (\d+)", typed("studies/decided.py", "--list")[1])
    wanted = sorted([*range(3, 11)] * 11) + sorted([3, 4, 5] * 7)
    assert [*map(int, seeds)] == wanted + sorted([*range(6, 11)] * 2) * 2
    page = (ROOT / "results" / "cub128" / "decided.md").read_text(encoding="utf-8")
    assert typed("studies/decided.py") == (0, page, "")


# ---------------------------------------------------------------------------- reg_weight.py
def test_en_at_weight_1_does_nothing():
    """On the unit sphere all values of EN lie within 0.015 for d = 64, from equal coordinates to a
    single one; its gradient is below a thousandth of the contrastive loss's."""
    one = torch.eye(64)[:1]
    least, most = (dml_da.entropy_regularizer(f).item() for f in (torch.full((1, 64), 1 / 8), one))
    assert 0.0145 < most - least < 0.015
    torch.manual_seed(0)
    for f in torch.nn.functional.normalize(torch.randn(100, 64)):
        assert least <= dml_da.entropy_regularizer(f[None]).item() <= most
    pooled, labels = torch.randn(40, 32), torch.arange(4).repeat(10)
    assert 0 < reg_weight.gradient_ratio(torch.nn.Linear(32, 64), pooled, labels) < 1e-3


def test_the_search_treats_en_and_gor_alike_and_embeds_no_test_class(monkeypatch, few_glyphs):
    test, cfgs = [*glyphs.GLYPHS["test"][0]], []
    monkeypatch.setattr(dml_da, "train", cfgs.append)
    reg_weight.search("RUNS")
    seeds = {}
    for cfg in cfgs:
        if cfg.reg_weight is None:
            assert cfg.lambda_ == 0
            continue
        seeds.setdefault(cfg.regularizer, []).append(cfg.seed)
        assert (cfg.epochs, cfg.eval_every, cfg.out) == (10, 10, "RUNS") and not cfg.again
    assert sorted(seeds["en"]) == sorted(seeds["gor"]) == sorted([0, 1, 2] * 5) and len(cfgs) == 33
    assert sorted({cfg.reg_weight for cfg in cfgs if cfg.regularizer == "en"}) == [
        10, 100, 1e3, 1e4, 1e5]
    data = common.load_dataset("glyphs")
    assert len(data.train.classes) == len(data.test.classes) == 25
    assert not {*data.train.classes, *data.test.classes} & {f"glyph {c}" for c in test}
    assert not {*glyphs.GLYPHS["train"][0], *glyphs.GLYPHS["test"][0]} & {*test}


def test_the_rule_of_the_weights():
    """The highest mean NMI over starts and seeds, among one regularizer's runs on the held-out half
    alone"""
    nmi, half = "NMI, mean of starts", reg_weight.HELD_OUT
    runs = []
    for classes, regularizer, weight, values in (
            (half, "en", 10, (50, 60)), (half, "en", 100, (56, 57)), (half, "gor", 1, (90, 90)),
            ("100 classes, 40 epochs", "en", 1000, (99, 99))):
        for seed, value in enumerate(values):
            row = {nmi: value, "R@1": -value, "NMI": -value}
            runs.append(((classes, regularizer, weight), seed, {"last epoch": row}))
    assert reg_weight.chosen(pivot(runs), "en") == 100
    assert reg_weight.chosen(pivot(runs), "gor") == 1
    assert reg_weight.chosen({}, "en") is None


def test_the_page_has_the_weights_of_the_archive(capsys):
    archive = ROOT / "results" / "glyphs" / "reg-weight.tar.xz"
    for run in finished(archive):
        assert run.config["splits"]["test"] == run.config["splits"]["train"] == [375, 25]
    reg_weight.table(archive)
    printed = capsys.readouterr().out
    page = (ROOT / "results" / "glyphs" / "README.md").read_text(encoding="utf-8")
    table = page.partition("mean $D_{avg}$, trained classes |")[2].partition("```")[0]
    rows = [line.split("|")[2:-1] for line in table.splitlines() if "±" in line]
    cells = []
    lines = [re.sub(" +", " ", line) for line in printed.splitlines()]
    for i, line in enumerate(lines):
        if "25 classes, 10 epochs" in line:
            weight, _, _, nmi, _, _, spread = [cell.strip() for cell in line.split("|")][3:-1]
            gain = [""] * 9
            if "gain" in lines[i + 1]:
                gain = [cell.strip() for cell in lines[i + 1].split("|")]
            cells.append([f"{float(weight):,g}", nmi, gain[6], gain[7], spread])
    assert len(cells) == 11
    assert [[cell.strip(" *") for cell in row] for row in rows] == cells
    bold = re.findall(r"\| \*\*([\d,]+)\*\* \|", table)
    assert re.findall("the rule takes ([\\d,]+)", printed) == bold and len(bold) == 2


# ---------------------------------------------------------------------------- level_ramp.py
def test_adams_rate_sets_the_outer_levels():
    """The reach is the sum of 40% of the epochs at the rate, 20% each at a fifth, ... of it; the
    outer levels end within 3% of it, whether ν decays them or not."""
    cfg = mdr.parse_args(["--lr", "0.01", "--epochs", "10", "--iterations", "5"])
    assert sum(level_ramp.rates(cfg)) == pytest.approx(0.01 * 5 * (4 + 2 / 5 + 2 / 25 + 2 / 125))
    for nu in (0, 0.01):
        cfg.nu = nu
        low, _, high = level_ramp.simulate(cfg)
        assert [low + 3, 3 - high] == pytest.approx([sum(level_ramp.rates(cfg))] * 2, rel=0.03)


def test_the_page_has_the_levels_of_the_archives(monkeypatch, capsys):
    monkeypatch.setattr(level_ramp, "simulate", lambda cfg: cfg.levels)     # half a minute
    level_ramp.main()
    page = (ROOT / "studies" / "mdr_by_network.md").read_text(encoding="utf-8")
    for line in capsys.readouterr().out.splitlines()[2:2 + len(level_ramp.RUNS)]:
        _, _, figures = re.sub(" +", " ", line).split(" | ", 2)
        assert f"| {figures}" in page, line


@pytest.mark.parametrize("words, told", [
    ("reg_weight.py table results/glyphs/runs.tar.xz", "no run of this script"),
    ("composed.py table results/glyphs/runs.tar.xz", " is no run of this study"),
    ("mdr_on_photographs.py table results/glyphs/runs.tar.xz", " is no run of mdr.py"),
    ("mdr_on_photographs.py run --variant x", "--variant is one of diagonal, unscaled, uniform, rel"),
    ("jrs_bandwidths.py train README.md/x", "README.md"),
    ("rate_search.py run", "run trains one of jrd, mdr, dml_da, with its flags"),
    ("rate_search.py run x", "run trains one of jrd, mdr, dml_da, with its flags"),
    ("network_features.py", "networks are named as NAME=FILE of weights"),
    ("network_features.py resnet18", "networks are named as NAME=FILE of weights")])
def test_what_a_study_cannot_do_is_one_line(words, told, monkeypatch, typed):
    """Other people's runs, wrong words"""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(jrd, "regularizer", jrd.regularizer)    # which jrs_bandwidths.py replaces
    name, *words = words.split()
    status, _, err = typed(f"studies/{name}", *words)
    if isinstance(status, str):
        status, err = 1, status + "\n"
    assert status and err.count("\n") == 1 and told in err


@pytest.mark.parametrize("variant", mdr_on_photographs.VARIANTS)
def test_a_variant_of_mdr_trains_is_measured_and_listed(variant, train, monkeypatch, capfd):
    """Here on glyphs, of which the pretrained backbone is judged first, as on cub128."""
    for of, names in ((common, ["load_dataset", "embed_splits"]), (mdr.MDR, ["update", "forward"]),
                      (mdr.Network, ["__init__", "pool"]), (mdr, [
                          "off_diagonal", "unit_mean", "distance_weighted_negatives",
                          "objective"])):
        for name in names:
            monkeypatch.setattr(of, name, getattr(of, name))            # which variants replace
    common.load_dataset = rate_search.held_out
    plain = train(mdr, "--iterations", "2", "--batch", "16")[0]
    mdr_on_photographs.VARIANTS[variant]()
    folder, _ = train(mdr, "--iterations", "2", "--batch", "16", "--name", variant)
    (last,), (without,) = left_in(folder)[0], left_in(plain)[0]
    assert last["loss"] != without["loss"] or "no weight left" in last          # as released may
    monkeypatch.delitem(mdr_on_photographs.VARIANTS, variant)           # this process has it
    mdr_on_photographs.measure(folder)
    mdr_on_photographs.table(folder.parent)
    measures = json.loads((folder / "measures.json").read_text())
    assert [*measures] == [*mdr_on_photographs.MEASURES] and 0 < measures["active triplets"] <= 1
    rows = re.sub(" +", " ", capfd.readouterr().out)
    assert re.search(rf"\| {variant} \| .*\| {measures['triplet gradient']:.3f} \|", rows)
    state = torch.load(folder / "last.pt", weights_only=True)           # an embedding thrice as long
    for name in ("embedding.weight", "embedding.bias", "mdr.mu", "mdr.sigma"):
        if variant == "unscaled" or not name.startswith("mdr."):
            state["network"][name] *= 3
    torch.save(state, folder / "last.pt")
    mdr_on_photographs.measure(folder)
    again = json.loads((folder / "measures.json").read_text())
    assert again == pytest.approx(measures, rel=1e-3)


def test_the_page_of_what_was_tried_has_the_figures_of_its_command(capsys):
    """Each table of its two sections on held-out classes"""
    mdr_on_photographs.table(ROOT / "results" / "cub128" / "mdr.tar.xz")
    of = {}                     # {(arm, variant, rate, iterations): a run's further cells, by seed}
    for line in re.sub(" +", " ", capsys.readouterr().out).splitlines()[2:]:
        arm, variant, rate, images, _, *cells = line[2:-2].split("| ")
        arm, variant, rate, images = (x.strip() for x in (arm, variant, rate, images))
        key = (arm.replace("Triplet + ", ""), variant, float(rate),
               int(images.replace(",", "")) // 12_800)
        of.setdefault(key, []).append([cell.strip() for cell in cells])
    page = (ROOT / "studies" / "mdr_by_network.md").read_text(encoding="utf-8")

    def rows(start):
        table = re.search(r"(^\|.*\n)+", page[page.index(start):], re.M)[0].splitlines()
        return [[cell.strip() for cell in row[1:-1].split("|")] for row in table[2:]]

    def recalls(*key):
        return ", ".join(run[0] for run in of.get(key, ()))

    arms = {"MDR, λ = 0.6": 3e-4, "Triplet": 3e-4, "L2Norm": 1e-4}
    columns = [("", 25), ("", 50), ("", 100), None, ("uniform", 25), ("released", 25),
               ("unscaled", 25)]
    lengths = rows("| R@1 of seeds 0, 1, 2")
    for row, column in zip(lengths, columns, strict=True):
        if column:
            variant, length = column
            assert row[1:] == [recalls(arm, variant, rate, length) for arm, rate in arms.items()]

    starts = rows("| R@1, seed 0 | usual start")
    for (arm, usual, same, other), rate in zip(starts, (3e-4, 3e-4, 3e-4, 1e-4), strict=True):
        assert usual == (recalls(arm, "", rate, 25)[:4] or "–")
        assert same == recalls(arm, "unit-start", rate, 25)
        for value, at in re.findall(r"(\S+) at ([^,]+)", other):
            assert value == recalls(arm, "unit-start", float(at), 25)

    variants = ["", "unit-start", "uniform", "standardized", "precision fp32",
                "images_per_class 8", "released", "nu 0.0", "margin 0.1", "diagonal",
                "margin 0.05", "unit-pooled", "unscaled"]
    for (_, *cells), variant in zip(rows("**One choice changed"), variants, strict=True):
        recall, normalized, _, *others = of["MDR, λ = 0.6", variant, 3e-4, 25][0]
        if variant == "unscaled":
            others[-1] = "–"                            # as the page says
        assert cells == [recall, normalized, *others]

    for arm, rate, *cells in rows("**Rates and λ"):
        recall, normalized, _, *others = of[arm, "", float(rate), 100][0]
        assert cells == [recall, normalized, *others[:2]]
    for arm, *cells in rows("| R@1, seed 0, 50 iterations"):
        assert cells == [recalls(arm, "", rate, 50)[:4] or "not run"
                         for rate in (3e-5, 1e-4, 3e-4, 1e-3)]
    for (loss, *cells), words in zip(rows("**Other losses"), (
            "loss contrastive, margin 1.0", "loss margin"), strict=True):
        pairs = [of[arm, words, 3e-4, 25][0][:2] for arm in ("MDR, λ = 0.6", "Triplet")]
        assert cells == [f"{recall} ({normalized})" for recall, normalized in pairs]
    assert f"{sum(map(len, of.values()))} runs of {len(of)} settings" in page


def test_what_mdr_finds_before_its_first_step(typed, monkeypatch, few_glyphs):
    """Of positive pairs nearer than the mean pair; here on glyphs in place of cub128."""
    load = common.load_dataset
    monkeypatch.setattr(common, "load_dataset", lambda name, *more: load("glyphs", *more))
    status, out, err = typed("studies/network_features.py", f"small={glyphs.WEIGHTS}")
    *_, row = out.splitlines()
    assert (status, err) == (0, "") and re.match(r"\| small +\| 0\.\d\d +\| -\d\.\d\d ", row)


def test_where_the_backbone_of_glyphs_would_go_is_asked_before_it_trains(typed):
    status, _, err = typed("studies/pretrain_glyphs.py", "nowhere/x.pth")
    assert status == 2 and "in a folder that exists" in err


def test_a_folder_without_a_planned_run_decides_nothing(tmp_path, typed):
    code, out, told = typed("studies/decided.py", "--runs", str(tmp_path))
    assert (code, out, told) == (
        2, "", f"decided.py: no finished run of docs/plans.md in {tmp_path}\n")


# ---------------------------------------------------------------------------- omniglot.py
def test_omniglot_tests_on_alphabets_that_do_not_train(tmp_path, typed):
    alphabets = {"train": ("Greek", "Early_Aramaic"), "test": ("Greek", "Japanese_(katakana)")}
    for part, name in omniglot.PARTS.items():
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for alphabet in alphabets[part]:
                archive.writestr(f"{Path(name).stem}/{alphabet}/", "")
                for image in ("01", "02"):
                    archive.writestr(f"small/{alphabet}/character03/0394_{image}.png", image)
    code, told, _ = typed("studies/omniglot.py", str(tmp_path), str(tmp_path / "o"))
    assert code == 0 and told.endswith(": 1 classes\n") and told.count("\n") == 2
    files = sorted(f.relative_to(tmp_path / "o").as_posix() for f in tmp_path.glob("o/*/*/*"))
    kinds = ("test/Katakana 03", "train/Aramaic 03", "train/Greek 03")
    assert files == [f"{kind}/0394_{image}.png" for kind in kinds for image in ("01", "02")]
    (tmp_path / "o" / "images_background_small1.zip").write_text("no archive")
    for source in ("o", "nowhere"):
        code, _, error = typed("studies/omniglot.py", str(tmp_path / source), "x")
        assert code == 2 and "images_background_small1.zip" in error and error.count("\n") == 1

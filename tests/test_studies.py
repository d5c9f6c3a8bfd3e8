"""studies/: rate_search.py's split, rule and table, jrs_bandwidths.py's identity, composed.py's
arms, decided.py's families, the pages of both; benchmarks/step.py to its end."""
import os
import re
import runpy

import numpy as np
import pytest
import scipy.stats
import torch

import common
import dml_da
import jrd
import mdr
from conftest import LONG, ROOT, points
from report import experiments
from report.records import pivot
from studies import composed, decided, rate_search
from studies.jrs_bandwidths import KS, penalty
from test_report import out, pretend  # noqa: F401


def test_every_study_finds_what_it_imports():
    for path in ROOT.glob("studies/*.py"):
        runpy.run_path(path, run_name="imported")


def test_step(typed, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(os, "environ", os.environ.copy())           # bench.py sets threads there
    flags = "--papers dml_da --batch 2 --steps 1 --threads 1 --device cpu"
    told = typed("benchmarks/step.py", *flags.split())
    assert "\n| dml_da, googlenet | 2 " in told[1], told[2]


# ---------------------------------------------------------------------------- rate_search.py
def test_no_image_of_a_test_class_is_seen():
    data, whole = rate_search.held_out("glyphs"), common.load_dataset("glyphs")
    assert data.test.classes == whole.train.classes[40:] and data.val is data.gallery is None
    assert data.train.classes == whole.train.classes[:40] and len(data.test) == 150
    assert not {*data.train.classes, *data.test.classes} & {*whole.test.classes}
    assert (data.test.images[0] == whole.train_plain.images[600]).all()


def test_the_rule():
    for means, rate in (({1e-4: [50, 52], 3e-4: [50, 51], 1e-3: [45, 46]}, 3e-4),   # 51 ± 1.41
                        ({1e-4: [50, 50.5], 3e-4: [49, 50]}, 1e-4),                 # 50.25 ± 0.35
                        ({1e-4: [50, 52], 3e-4: [55]}, None), ({}, None)):
        assert rate_search.choice(means) == rate


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
@pytest.mark.parametrize("arm, density, jrs, tau", [
    ("contrastive", 0, 0, 0), ("density", 10, 0, 0), ("JRS", 0, 3, 0), ("both", 10, 3, 0),
    ("tau", 0, 0, 3), ("dtau", 10, 0, 3)])
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
    added = jrs * jrd.jrs(gram, labels) + tau * penalty("only τ", layers, labels, (3, 3), None)
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


def test_the_page_has_the_gains_of_the_archives(monkeypatch, capsys):
    monkeypatch.setattr(composed, "draw_curves", lambda *args, **how: None)
    for dataset in ("glyphs", "cub128"):
        composed.table(ROOT / "results" / dataset / "composed.tar.xz")
    page = (ROOT / "studies" / "composed.md").read_text(encoding="utf-8")
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
        rows = []
        for i, value in enumerate(p):
            rows.append({"p": value, "mean": (-1) ** i})
        decided.holm(rows)
        for level in (0.01, 0.05, 0.3):
            left = sorted(p)
            while left and left[0] <= level / len(left):
                left.pop(0)
            above = [row["p"] for row in rows if row["Holm-adjusted p"] > level]
            assert sorted(above) == left
            kept += [len(left), len(p) - len(left)]
        for row in rows:
            verdict = "holds" if row["mean"] > 0 else "does not hold"
            if row["Holm-adjusted p"] >= 0.05:
                verdict = "undecided"
            assert row["Holm-adjusted"] == verdict
    assert sum(kept[::2]) > 20 and sum(kept[1::2]) > 20


def test_a_whole_family_against_scipy_and_a_mixed_one(out):
    """Hits of six classes of different sizes; the regularized arm has all of one class.  The
    optional difference belongs to the family once it has all its seeds."""
    draw, hits, told = np.random.RandomState(1), {}, []
    kind = np.repeat(range(6), range(9, 15))                            # the class of each query
    for method in ("JRD", "AMSoftmax", "DML-DA contrastive", "contrastive", "MDR", "Triplet",
                   "L2Norm"):
        hits[method] = []
        for run in decided.runs_of("networks", method, out):
            if method in ("Triplet", "L2Norm") and run.cfg.seed == 5:
                told.append({row["Holm-adjusted"] for row in decided.decided("networks", out)})
            of_run = draw.randint(0, 2, len(kind)) | ((kind == 5) & (method == "JRD"))
            text = {c: "".join(map(str, of_run[kind == c])) for c in range(6)}
            pretend(run.command, of_run.mean(), hits=text)
            experiments.training.cache_clear()
            hits[method].append(of_run)
    assert told[0] == {"not before all seeds"} and not told[0] & told[1]
    *_, jrd, optional = rows = decided.decided("networks", out)
    assert len(rows) == 4 and optional["must be above 0"] == "MDR - L2Norm"
    for row in rows:
        assert row["p"] <= row["Holm-adjusted p"]
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

    first, other, _ = decided.runs_of("networks", "JRD", out)
    for what in ("code", "commit", "splits", "versions", "processor", "precision"):
        first.config = {**other.config, what: "another"}
        told = f"{what} of JRD's runs differ"
        if what in decided.IN_SEED:
            told += " at seed 3"
        for row in decided.decided("networks", out):
            assert row == {"must be above 0": row["must be above 0"], "Holm-adjusted": told}
    both, *_ = decided.runs_of("networks", "AMSoftmax", out)
    machine = {"versions": "another", "processor": "another"}           # in both arms of seed 3
    first.config = other.config | machine
    both.config |= machine
    for row in decided.decided("networks", out):
        assert row["Holm-adjusted p"]


def test_the_commands_and_the_page_of_the_committed_runs(monkeypatch, typed):
    monkeypatch.chdir(ROOT)
    seeds = re.findall(r"--seed (\d+)", typed("studies/decided.py", "--list")[1])
    assert [*map(int, seeds)] == sorted([*range(3, 11)] * 11 + [3, 4, 5] * 7)
    page = (ROOT / "results" / "cub128" / "decided.md").read_text(encoding="utf-8")
    assert typed("studies/decided.py") == (0, page, "")

"""studies/: rate_search.py's split, rule and table, jrs_bandwidths.py's identity, composed.py's
arms, decided.py's families, the pages of both; benchmarks/step.py to its end."""
import functools
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
from report.records import pivot
from studies import composed, decided, rate_search
from studies.jrs_bandwidths import KS, penalty
from test_report import out, pretend  # noqa: F401


def test_every_study_finds_what_it_imports():
    assert [runpy.run_path(path, run_name="imported") for path in ROOT.glob("studies/*.py")]


def test_step(typed, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(os, "environ", os.environ.copy())           # bench.py sets threads there
    told = typed("benchmarks/step.py", *"--papers dml_da --batch 2 --steps 1 --threads 1 "
                 "--device cpu".split())
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
        (row,) = [line for line in table.splitlines() if f"{paper}'s baselines" in line]
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
@pytest.mark.parametrize("arm", composed.ARMS)
def test_each_arm_is_the_sum_of_its_parts(arm, monkeypatch):
    """... in value and gradient, and each part reaches the backbone."""
    for name in ("Network", "objective"):               # which compose replaces
        monkeypatch.setattr(dml_da, name, getattr(dml_da, name))
    torch.manual_seed(0)
    λ, variant = composed.ARMS[arm]
    composed.compose(variant, 3.0)
    cfg, labels = dml_da.parse_args(["--lambda", λ]), torch.tensor([1, 0, 1, 2, 0, 2])
    network = dml_da.Network(cfg, classes=4)
    network.D0 += torch.tensor([0.5, 1.5, 1.2, 0.8])
    images = torch.randint(256, (6, 3, 32, 32), dtype=torch.uint8)
    loss, terms = dml_da.objective(network, cfg, images, labels, None)
    x_minus, x = layers = network.pool(images), network.embed(images)
    classes, D_avg = dml_da.class_density(x, labels)
    alpha = torch.stack([network.alpha[c] for c in classes])
    gram = jrd.joint_kernel(layers, [functools.partial(jrd.gaussian_kernel, K=3)] * 2)
    density = dml_da.density_regularizer(D_avg, alpha, network.D0[classes], 0.5)
    jrs, tau = jrd.jrs(gram, labels), penalty("only τ", layers, labels, (3, 3), None)
    parts = {"contrastive": [], "density": [10 * density], "JRS": [3 * jrs], "tau": [3 * tau],
             "both": [10 * density, 3 * jrs], "dtau": [10 * density, 3 * tau]}[arm]
    parts.append(dml_da.contrastive_loss(x, labels, 1.0))
    weights = [*network.backbone.parameters(), network.embedding.weight]
    slopes = [torch.autograd.grad(part, weights, retain_graph=True) for part in parts]
    assert all(slope[0].norm() > 1e-6 for slope in slopes)
    torch.testing.assert_close(loss, sum(parts))
    for slope, *want in zip(torch.autograd.grad(loss, weights), *slopes):
        torch.testing.assert_close(slope, sum(want), rtol=1e-4, atol=1e-5)
    for name, layer in (("τ of x⁻", x_minus), ("τ of x", x)):
        torch.testing.assert_close(terms[name], torch.pdist(layer).square().mean())


def test_the_page_has_the_gains_of_the_archives(monkeypatch, capsys):
    monkeypatch.setattr(composed, "draw_curves", lambda *args: None)
    for dataset in ("glyphs", "cub128"):
        composed.table(ROOT / "results" / dataset / "composed.tar.xz")
    page = (ROOT / "studies" / "composed.md").read_text(encoding="utf-8")
    told, printed = ({*re.findall(r"[+-]\d[\d.]*(?: \[[^]]*\])?|[\d.]+ ± [\d.]+", text)}
                     for text in (page, capsys.readouterr().out))
    means = {text.partition(" [")[0] for text in printed}               # by epoch
    assert len(told) > 50 and told <= printed | means


# ---------------------------------------------------------------------------- decided.py
def test_holm():
    """Against his procedure as written: the smallest p against level / m, the next against
    level / (m - 1), ..., until one is not below.  First a case whose last step would be below."""
    draw, kept = np.random.RandomState(0), []
    for p in ([0.01, 0.04, 0.03, 0.005], *((draw.rand(m) ** 6).tolist() for m in (1, 2, 5, 40))):
        p = [*p, p[0]]                                                  # a tie
        rows = decided.holm([{"p": value, "mean": (-1) ** i} for i, value in enumerate(p)])
        for level in (0.01, 0.05, 0.3):
            left = sorted(p)
            while left and left[0] <= level / len(left):
                left.pop(0)
            kept += [row["Holm-adjusted p"] > level for row in rows]
            assert sorted(row["p"] for row in rows if row["Holm-adjusted p"] > level) == left
        for row in rows:
            verdict = "holds" if row["mean"] > 0 else "does not hold"
            if row["Holm-adjusted p"] >= 0.05:
                verdict = "undecided"
            assert row["Holm-adjusted"] == verdict
    assert 20 < sum(kept) < len(kept) - 20


def test_a_whole_family_against_scipy_and_a_mixed_one(out):
    """Hits of six classes of different sizes; the regularized arm has all of one class.  The
    optional difference belongs to the family once it has all its seeds."""
    draw, hits, told = np.random.RandomState(1), {}, []
    for method in ("JRD", "AMSoftmax", "DML-DA contrastive", "contrastive", "MDR", "Triplet",
                   "L2Norm"):
        for run in decided.runs_of("networks", method, out):
            if method in ("Triplet", "L2Norm") and run.cfg.seed == 5:
                told.append([row["Holm-adjusted"] for row in decided.decided("networks", out)])
            of_run = {str(c): draw.randint(0, 2, 9 + c) for c in range(6)}
            of_run["5"] |= method == "JRD"
            r1 = np.mean(np.concatenate(list(of_run.values())))
            pretend(run, r1, hits={c: "".join(map(str, bits)) for c, bits in of_run.items()})
            hits.setdefault(method, []).append((r1, of_run))
    assert told[0] == ["not before all seeds"] * 3 and len(told[1]) == 3
    assert "not before all seeds" not in told[1]
    *_, jrd, optional = rows = decided.decided("networks", out)
    assert len(rows) == 4 and optional["must be above 0"] == "MDR - L2Norm"
    assert all(row["p"] <= row["Holm-adjusted p"] for row in rows)
    (a, bits_a), (b, bits_b) = zip(*hits["JRD"]), zip(*hits["AMSoftmax"])
    test = scipy.stats.ttest_rel(a, b)
    low, high = (100 * end for end in test.confidence_interval())
    assert jrd["p"] == pytest.approx(test.pvalue) and jrd["paper's"] == "–"
    assert f" [{low:+.2f}, {high:+.2f}] (" in jrd["paired"]
    gain, _, _ = jrd["paired"].partition(" (")
    assert jrd["each arm's best epoch"] == f"{gain} at 2, 2"            # both are 0.05 higher
    draw, shares = np.random.RandomState(0), []
    for classes in draw.randint(0, 6, (10_000, 6)):
        right = [sum(of[str(c)].sum() for of in bits for c in classes) for bits in (bits_a, bits_b)]
        shares.append((right[0] - right[1]) / 3 / sum(9 + c for c in classes))
    low, high = 100 * np.percentile(shares, (2.5, 97.5))
    assert jrd["over classes"] == f"[{low:+.2f}, {high:+.2f}]"

    first, other, _ = decided.runs_of("networks", "JRD", out)
    for what in ("code", "commit", "splits", "versions", "processor", "precision"):
        first.config = {**other.config, what: "another"}
        told = f"{what} of JRD's runs differ{' at seed 3' if what in decided.IN_SEED else ''}"
        for row in decided.decided("networks", out):
            assert row == {"must be above 0": row["must be above 0"], "Holm-adjusted": told}
    both, *_ = decided.runs_of("networks", "AMSoftmax", out)
    machine = dict.fromkeys(("versions", "processor"), "another")       # in both arms of seed 3
    first.config = other.config | machine
    both.config |= machine
    assert all(row["Holm-adjusted p"] for row in decided.decided("networks", out))


def test_the_commands_and_the_page_of_the_committed_runs(monkeypatch, typed):
    monkeypatch.chdir(ROOT)
    seeds = re.findall(r"--seed (\d+)", typed("studies/decided.py", "--list")[1])
    assert [*map(int, seeds)] == sorted([*range(3, 11)] * 11 + [3, 4, 5] * 7)
    page = (ROOT / "results" / "cub128" / "decided.md").read_text(encoding="utf-8")
    assert typed("studies/decided.py") == (0, page, "")

"""Do density and JRS add up?  dml_da.py + α JRS on x⁻ and x: the figures of studies/composed.md.

    python studies/composed.py run ARM α FLAGS      trains dml_da.py as ARM, named ARM-α (0: no JRS)
    python studies/composed.py table RUNS           of a folder or an archive; draws those of α below
"""
import sys
from collections import Counter
from pathlib import Path

import torch.nn.functional as F
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import dml_da  # noqa: E402
from report.figures import draw_curves  # noqa: E402
from report.records import finished, pivot, reading  # noqa: E402
from report.tables import difference, markdown, spread  # noqa: E402
from studies.decided import holm  # noqa: E402
from studies.jrs_bandwidths import mean_distance, penalty  # noqa: E402
from support.command_line import main  # noqa: E402
from support.files import UserError  # noqa: E402

ARMS = {"contrastive": ("0", None), "density": ("10", None), "JRS": ("0", "detached"),
        "both": ("10", "detached"), "tau": ("0", "only τ"), "dtau": ("10", "only τ"),
        "tauminus": ("0", "only τ of x⁻"), "dtauminus": ("10", "only τ of x⁻")}
# The differences of the page, on cub128: Holm's correction is over these.
PAGE = ("JRS-1", "tau-1", "density-0", "both-1", "both-1 - density", "dtau-1 - density",
        "both-1 - dtau")
SHOWN = {"R@1": 1, "MAP@R": 1, "seen R@1": 1, "D_avg mean": 3, "τ of x⁻": 0, "τ of x": 3}  # digits
BY_EPOCH = {f"R@1 at {epoch}": 1 for epoch in range(3, 31, 3)}          # cub128's evaluations
BY_EPOCH["best R@1"] = 1                                                # chosen on test
# Of the picture: the α that the page speaks of, and in each panel what is compared with one arm
STRENGTH = {"glyphs": "0.1", "cub128": "1"}
PANELS = {"contrastive-0": ("the contrastive loss", {"density-0": "density", "JRS-{}": "JRS"}),
          "density-0": ("density", {"both-{}": "density + JRS",
                                    "dtau-{}": "density + the ascent on both τ"})}


class Network(dml_da.Network):
    """Keeps the batch's x⁻ (B, D) and x (B, d)."""

    def forward(self, images):
        self.x_minus = self.pool(images)
        self.x = F.normalize(self.embedding(self.x_minus))
        return self.x


def compose(variant, alpha, alone=dml_da.objective):
    """From now on dml_da.py's objective has α times a variant of JRS (jrs_bandwidths.py) more."""
    def objective(network, cfg, images, labels, generator):
        loss, terms = alone(network, cfg, images, labels, generator)
        reps = network.x_minus, network.x                               # no proxies, so no x⁺
        terms |= {"τ of x⁻": mean_distance(reps[0]), "τ of x": mean_distance(reps[1])}
        terms["jrs"] = penalty(variant, reps, labels, (3, 3), None) if variant else 0 * loss
        return loss + alpha * terms["jrs"], terms
    dml_da.Network, dml_da.objective = Network, objective


def figures_of(run):
    """{head: figure} of a finished run; of one with held-out classes R@1 is on these"""
    if run.config["val"]:
        return {"R@1": reading(run, "val R@1"), "τ of x⁻": reading(run, "τ of x⁻")}
    figures = {metric: reading(run, metric) for metric in SHOWN}
    figures["best R@1"] = run.figures["best on test"]["R@1"]
    for line in run.log:
        if "R@1" in line:
            figures[f"R@1 at {line['epoch']}"] = 100 * line["R@1"]
    return figures


def differences(arms):
    """{name: {arm: its sign}}: gains over contrastive, both beside its parts, JRS beside its τ"""
    signs = {}
    for arm in sorted(arms):
        kind, _, alpha = arm.partition("-")
        if arm != "contrastive-0":
            signs[arm] = {arm: 1, "contrastive-0": -1}
        if kind in ("both", "dtau", "dtauminus"):
            signs[f"{arm} - density"] = {arm: 1, "density-0": -1}
        if kind in ("tauminus", "dtauminus"):       # what the ascent on τ of x adds
            beside = kind.removesuffix("minus")
            signs[f"{beside}-{alpha} - {kind}"] = {f"{beside}-{alpha}": 1, arm: -1}
        if kind == "both":
            signs[f"{arm}, interaction"] = {
                arm: 1, f"JRS-{alpha}": -1, "density-0": -1, "contrastive-0": 1}
            signs[f"{arm} - dtau"] = {arm: 1, f"dtau-{alpha}": -1}
        if kind == "JRS":
            signs[f"{arm} - tau"] = {arm: 1, f"tau-{alpha}": -1}
    return signs


def within_seeds(figures, signs, head):
    """{seed: signed sum of the arms' figures}, of the seeds that all of the arms have"""
    by_seed = {}
    for arm, sign in signs.items():
        for seed, value in figures[arm, "last epoch", head].items():
            by_seed.setdefault(seed, []).append(sign * value)
    return {seed: sum(terms) for seed, terms in by_seed.items() if len(terms) == len(signs)}


def corrected(figures, signs_of):
    """The page's differences with p of the paired t-test and Holm's over all of them -> Markdown"""
    rows, heads = [["p → Holm-adjusted"]] + [[name] for name in PAGE], ("R@1", "MAP@R", "seen R@1")
    for head in heads:
        p = [stats.ttest_1samp([*within_seeds(figures, signs_of[name], head).values()], 0).pvalue
             for name in PAGE]
        cells = [f"{one:.2g} → {adjusted:.2g}" for one, adjusted in zip(p, holm(p, len(p)))]
        for row, cell in zip(rows, [head] + cells):
            row.append(cell)
    return markdown(rows)


def table(runs):
    """Mean ± std of each arm (held out: R@1 on those classes); gains within a seed; by epoch."""
    measured, arms = [], set()
    for run in finished(runs):
        name = run.config["name"]
        if not name or "-" not in name:
            raise UserError(f"{run.folder.name} is no run of this study")
        if run.config["val"]:
            name += ", held out"
        else:
            arms.add(name)
        measured.append((name, run.config["seed"], {"last epoch": figures_of(run)}))
    figures, seeds = pivot(measured), Counter(name for name, _, _ in measured)
    for shown in (SHOWN, BY_EPOCH):
        rows, gains = [["", "seeds"] + list(shown)], [["gain"] + list(shown)]
        for name in sorted(seeds):
            row = [name, str(seeds[name])]
            for head, digits in shown.items():
                row.append(spread(figures[name, "last epoch", head].values(), digits))
            rows.append(row)
        for name, signs in differences(arms).items():
            row = [name]
            for head, digits in shown.items():
                whole = within_seeds(figures, signs, head)
                row.append(difference([*whole.values()], digits + 1))
            gains.append(row)
        print(markdown(rows), markdown(gains), sep="\n\n", end="\n\n")
    if set(PAGE) <= set(differences(arms)):
        print(corrected(figures, differences(arms)), end="\n\n")
    dataset = run.config["dataset"]
    if dataset in STRENGTH and {"contrastive-0", f"JRS-{STRENGTH[dataset]}"} <= arms:
        draw(run.config, figures, arms)


def draw(config, figures, arms):
    """By epoch: the R@1 of arms less that of contrastive, and of others less that of density."""
    points, dataset = [], config["dataset"]
    for base, (than, others) in PANELS.items():
        told, of_panel = f"R@1 more than {than} alone has.  At the end:", []
        for arm, series in others.items():
            arm = arm.format(STRENGTH[dataset])
            signs = {arm: 1, base: -1}
            if arm not in arms:
                continue
            told += f"\n{series}: {difference([*within_seeds(figures, signs, 'R@1').values()])}"
            for head in [head for name, _, head in figures if name == arm]:
                if head.startswith("R@1 at "):
                    for seed, gain in within_seeds(figures, signs, head).items():
                        of_panel.append((series, int(head.removeprefix("R@1 at ")), seed, gain))
        panel = told, "epoch", "difference in R@1 (points)"
        points += [(panel, *point) for point in of_panel]
    draw_curves(Path(__file__).with_name(f"composed-{dataset}.png"), points,
                f"Density and JRS (α = {STRENGTH[dataset]}) on {dataset}, backbone "
                f"{config['backbone']}: gains within a seed", sharey=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case "run", arm, alpha, *flags if arm in ARMS and alpha.replace(".", "", 1).isdigit():
            compose(ARMS[arm][1], float(alpha))
            flags += ["--lambda", ARMS[arm][0], "--name", f"{arm}-{alpha}"]
            main(dml_da.train, lambda: dml_da.parse_args(flags))
        case "table", runs:
            main(table, lambda: runs)
        case _:
            sys.exit(__doc__)

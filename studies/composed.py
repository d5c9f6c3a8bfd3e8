"""Do density and JRS add up?  dml_da.py + α JRS on x⁻ and x: the figures of studies/composed.md.

    python studies/composed.py run ARM α FLAGS      trains dml_da.py as ARM, named ARM-α (0: no JRS)
    python studies/composed.py table RUNS           of a folder or an archive; draws them too
"""
import sys
from pathlib import Path

import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import dml_da  # noqa: E402
from report.figures import by_epoch, draw_curves  # noqa: E402
from report.records import finished, reading  # noqa: E402
from report.tables import difference, markdown, spread  # noqa: E402
from studies.jrs_bandwidths import mean_distance, penalty  # noqa: E402
from support.command_line import main  # noqa: E402

ARMS = {"contrastive": ("0", None), "density": ("10", None), "JRS": ("0", "detached"),
        "both": ("10", "detached"), "tau": ("0", "only τ")}             # λ, variant of JRS
SHOWN = {"R@1": 1, "MAP@R": 1, "seen R@1": 1, "D_avg mean": 3, "τ of x⁻": 0, "τ of x": 3}  # digits


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


def table(runs):
    """Mean ± std of each arm (held out: R@1 on those classes); gains over contrastive in a seed."""
    arms, rows, gains = {}, [["", "seeds", *SHOWN]], [["gain", *SHOWN]]
    for run in finished(runs):
        name, figures = run.config["name"], {m: reading(run, m) for m in SHOWN}
        if run.config["val"]:
            name += ", held out"
            figures = {"R@1": reading(run, "val R@1"), "τ of x⁻": figures["τ of x⁻"]}
        arms.setdefault(name, {})[run.config["seed"]] = {"log": run.log, **figures}
    own, base = sorted(name for name in arms if "held" not in name), "contrastive-0"
    weights = {name: {name: 1, base: -1} for name in own if name != base}
    weights |= {f"{both}, interaction": {both: 1, f"JRS{both[4:]}": -1, "density-0": -1, base: 1}
                for both in own if both.startswith("both")}
    for name, seeds in sorted(arms.items()):
        rows.append([name, f"{len(seeds)}", *(
            spread([row[m] for row in seeds.values() if m in row], SHOWN[m]) for m in SHOWN)])
    for name, signs in weights.items():
        seeds = set.intersection(*({*arms.get(arm, ())} for arm in signs))
        gains.append([name, *(difference(
            [sum(signs[arm] * arms[arm][seed][m] for arm in signs) for seed in seeds],
            SHOWN[m] + 1) for m in SHOWN)])
    print(*markdown(rows), "", *markdown(gains), sep="\n")
    if own:
        dataset, curves = run.config["dataset"], []
        for metric, y_label in (("contrastive", "contrastive loss"), ("R@1", "R@1 (%)"),
                                ("D_avg mean", "spread within classes, mean D_avg")):
            for name in own:
                points = by_epoch({seed: row["log"] for seed, row in arms[name].items()}, metric)
                arm, _, alpha = name.rpartition("-")
                text = arm if alpha == "0" else f"{arm}, α = {alpha}"
                curves.append((("", "epoch", y_label), text, points))
        draw_curves(Path(__file__).with_name(f"composed-{dataset}.png"), curves,
                    f"dml_da.py + α JRS on {dataset}, backbone {run.config['backbone']}")


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

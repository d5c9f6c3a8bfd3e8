"""Do density and JRS add up?  dml_da.py + α JRS on x⁻ and x: the figures of studies/composed.md.

    python studies/composed.py run ARM α FLAGS      trains dml_da.py as one of ARMS
    python studies/composed.py table RUNS           of a folder or an archive; draws composed.png

The contrastive loss has no proxies, so JRS has no x⁺.  α is no setting of dml_da.py, so the run's
name has it; arms without JRS take 0.  Of runs with --val the table has the held-out R@1 alone.
"""
import sys
from pathlib import Path

import numpy as np
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common  # noqa: E402
import dml_da  # noqa: E402
from eval import confidence_interval  # noqa: E402
from report.figures import by_epoch, draw_curves  # noqa: E402
from report.tables import finished, markdown, signed, spread  # noqa: E402
from studies.jrs_bandwidths import mean_distance, penalty  # noqa: E402

ARMS = {"contrastive": ("0", None), "density": ("10", None), "JRS": ("0", "detached"),
        "both": ("10", "detached"), "tau": ("0", "only τ")}
UNITS = {"R@1": 100, "MAP@R": 100, "seen R@1": 100, "D_avg mean": 1, "τ of x⁻": 1, "τ of x": 1}


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
        reps = network.x_minus, network.x
        terms |= {"τ of x⁻": mean_distance(reps[0]), "τ of x": mean_distance(reps[1])}
        if variant:
            terms["jrs"] = penalty(variant, reps, labels, (3, 3), None)
            loss = loss + alpha * terms["jrs"]
        return loss, terms
    dml_da.Network, dml_da.objective = Network, objective


def table(runs):
    """Of each arm mean ± std; within a seed its gain over contrastive, and the interaction."""
    arms = {arm: {} for arm in ARMS}
    for run in finished(runs):                          # by seed: an archive's are sorted as text
        name, figures = run.config["name"], run.log[-1] | run.result["last epoch"]
        arm = name.split("-")[0]
        if run.config["val"]:
            arm, figures = f"{name}, held out", {"R@1": figures["val R@1"]}
        arms.setdefault(arm, {})[run.config["seed"]] = figures, run.log
    values = {(arm, metric): unit * np.array([seeds[seed][0].get(metric) for seed in sorted(seeds)])
              for arm, seeds in arms.items() for metric, unit in UNITS.items()
              if metric in next(iter(seeds.values()), ({},))[0]}
    rows, gains = [["", "seeds", *UNITS]], [["gained", *UNITS]]
    rows += [[arm, f"{len(seeds)}", *(spread(values.get((arm, m), ()), 2) for m in UNITS)]
             for arm, seeds in arms.items()]
    gain = {(arm, m): values[arm, m] - values["contrastive", m] for arm, m in values if arm in ARMS}
    for m in UNITS:
        gain["both - density - JRS", m] = gain["both", m] - gain["density", m] - gain["JRS", m]
    gains += [[arm, *(" ".join(signed(*confidence_interval(gain[arm, m]), 2)) for m in UNITS)]
              for arm in (*ARMS, "both - density - JRS") if (arm, "R@1") in gain]
    print(*markdown(rows), "", *markdown(gains), sep="\n")
    draw_curves(Path(__file__).with_suffix(".png"), {
        ("", "epoch", m): {arm: by_epoch([log for _, log in arms[arm].values()], m) for arm in ARMS}
        for m in ("contrastive", "R@1", "D_avg mean")})


if __name__ == "__main__":
    command, *words = sys.argv[1:] or ["help"]
    if command == "run" and len(words) > 1 and words[0] in ARMS:
        (arm, alpha, *flags), (λ, variant) = words, ARMS[words[0]]
        compose(variant, float(alpha))
        flags += ["--lambda", λ, "--name", f"{arm}-{alpha}"]
        common.main(dml_da.train, lambda: dml_da.parse_args(flags))
    elif command == "table" and len(words) == 1:
        table(*words)
    else:
        sys.exit(__doc__)

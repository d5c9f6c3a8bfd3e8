"""MDR's levels beside the farthest that Adam can move them: in runs, and without a network.

    python studies/level_ramp.py            half a minute

Adam moves a parameter whose gradient keeps its sign by about the learning rate per step.  So the
sum of all rates, the reach, bounds what a level can move.  The simulation keeps the normalized
distances as they are, standard normal, and trains the levels alone, by Eq. 5 and ν (U5).
"""
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import mdr  # noqa: E402
from report.records import folders_of, unpacked  # noqa: E402
from report.tables import markdown, spread  # noqa: E402

RUNS = (("glyphs/runs", "mdr-glyphs"), ("cub128/runs", "mdr-cub128-decides"),
        ("cub128/networks", "mdr-cub128-iterations100-lr5e-05-backboneresnet18-networks"),
        ("cub128/mdr", "mdr-cub128-iterations25"), ("cub128/mdr", "mdr-cub128-nu0-iterations25"),
        ("cub128/mdr", "mdr-cub128-iterations100"))


def rates(cfg):
    """The learning rate of each step, by mdr.set_rates"""
    optimizer, of_steps = SimpleNamespace(param_groups=[{}]), []
    for epoch in range(cfg.epochs):
        mdr.set_rates(optimizer, cfg, epoch)
        of_steps += [optimizer.param_groups[0]["lr"]] * cfg.iterations
    return of_steps


def simulate(cfg, pairs=1000):
    """-> the levels after a training on distances that stay standard normal"""
    generator = torch.Generator().manual_seed(0)
    levels = mdr.MDR(cfg.levels).train(False)
    levels.sigma += 1                                       # μ* = 0, σ* = 1: Eq. 3 changes nothing
    optimizer = torch.optim.Adam([levels.levels])
    for rate in rates(cfg):
        optimizer.param_groups[0]["lr"] = rate
        distances = torch.randn(pairs, generator=generator)
        nearest = levels.levels[levels.assign(distances)]
        loss = cfg.lambda_ * (distances - nearest).abs().mean()
        loss = loss + cfg.nu * levels.levels.square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return levels.levels.tolist()


def line(name, cfg, ends):
    """name, settings, the levels at the end of each run -> cells"""
    reach, ends = sum(rates(cfg)), np.array(ends)
    inwards = np.abs(np.array(cfg.levels))[[0, -1]] - np.abs(ends[:, [0, -1]])
    shares = [100 * share for share in (inwards / reach).ravel()]
    return [name, f"{cfg.nu:g}", f"{reach:.3f}", spread(ends[:, 0], 2), spread(ends[:, -1], 2),
            f"{min(shares):.0f} to {max(shares):.0f}"]


def main():
    rows = [["", "ν", "reach", "lowest level", "highest level", "moved, % of the reach"]]
    for archive, name in RUNS:
        with unpacked([ROOT / "results" / f"{archive}.tar.xz"]) as folder:
            runs = folders_of(folder)[name].values()
            cfg = SimpleNamespace(**next(iter(runs)).config)
            rows.append(line(name, cfg, [run.log[-1]["levels"] for run in runs]))
    for words in ("", "--nu 0", "--dataset cub", "--dataset cub --nu 0"):
        cfg = mdr.parse_args(words.split())
        rows.append(line(f"simulated: {f'mdr.py {words}'.strip()}", cfg, [simulate(cfg)]))
    print(markdown(rows))


if __name__ == "__main__":
    main()

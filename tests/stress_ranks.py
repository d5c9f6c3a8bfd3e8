"""The search of support/ranks.py against the plain one, on as many drawn sets as there is time for.

    python tests/stress_ranks.py [--seconds 600] [--seed 0]

Each set is searched within itself and in a gallery, by blocks of a size that is drawn too.  Prints
how many searches of each kind were equal; exit status 1 if one was not.
"""
import argparse
import collections
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import plain_ranks  # noqa: E402
from support import ranks  # noqa: E402

if __name__ == "__main__":
    parser = argparse.ArgumentParser("stress_ranks.py")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    draw, counts, faults = np.random.default_rng(args.seed), collections.Counter(), []
    end = time.time() + args.seconds
    while time.time() < end and len(faults) < 10:
        kind = str(draw.choice(plain_ranks.KINDS))
        ranks.SIDE["cpu"] = int(draw.choice([7, 32, 512]))
        ranks.MIRRORED = int(draw.choice([0, 2 ** 14]))
        faults += plain_ranks.faults_of(kind, draw)
        counts[kind] += 2
    print(*(f"{kind}: {count}" for kind, count in sorted(counts.items())), sep="\n")
    print(f"{counts.total()} searches, {len(faults)} faults", *faults, sep="\n")
    sys.exit(bool(faults))

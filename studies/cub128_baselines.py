"""Why N-pair is weak on cub128 (results/cub128): its inner products times 1, 4 and 16.

    python studies/cub128_baselines.py npair --weights FILE [--out runs-search]

3 epochs each on the classes of the rate search: 1-80 of CUB train, 81-100 are searched.  The losses
are in the logs.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import dml_da  # noqa: E402
from studies import rate_search  # noqa: E402

if __name__ == "__main__":
    if sys.argv[1:2] != ["npair"] or "--weights" not in " ".join(sys.argv):
        sys.exit(__doc__)
    loss = dml_da.n_pair_loss
    for factor in (1, 4, 16):       # n_pair_loss(√k f) has the inner products k f·f
        dml_da.n_pair_loss = lambda f, *rest: loss(factor ** 0.5 * f, *rest)
        flags = f"--loss npair --lambda 0 --epochs 3 --name times{factor} --out runs-search".split()
        rate_search.run("dml_da", "--dataset", "cub128", *flags, *sys.argv[2:])

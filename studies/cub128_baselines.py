"""Why N-pair is weak on cub128 (results/cub128): its inner products times 1, 4 and 16.

    python studies/cub128_baselines.py npair --weights FILE [--out runs-search]

3 epochs each on the classes of the rate search: 1-80 of CUB train, 81-100 are searched.  The losses
are in the logs.
"""
import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common  # noqa: E402
import dml_da  # noqa: E402
from studies.rate_search import held_out  # noqa: E402

if __name__ == "__main__":
    parser = argparse.ArgumentParser("studies/cub128_baselines.py", allow_abbrev=False)
    parser.add_argument("what", choices=["npair"])
    parser.add_argument("--weights", required=True)
    parser.add_argument("--out", default="runs-search")
    args = parser.parse_args()
    loss, common.load_dataset = dml_da.n_pair_loss, held_out
    for factor in (1, 4, 16):       # n_pair_loss(√k f) has the inner products k f·f
        dml_da.n_pair_loss = lambda f, *rest: loss(factor ** 0.5 * f, *rest)
        common.main(dml_da.train, lambda: dml_da.parse_args(
            ["--dataset", "cub128", "--weights", args.weights, "--loss", "npair", "--lambda", "0",
             "--epochs", "3", "--name", f"times{factor}", "--out", args.out]))

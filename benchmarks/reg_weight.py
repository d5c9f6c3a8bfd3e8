"""DML-DA's Fig. 4 gives no weights for EN and GOR: the search on the training classes (U9).

    python benchmarks/reg_weight.py            about six minutes on two cores

Half of the 50 training classes of `glyphs` train, the other half tests; no test class is touched.
Prints R@1 and NMI on the held-out half, mean over seeds, for each weight with the contrastive loss.
dml_da.IMPLIED_DEFAULTS has, for each regularizer, the weight of the highest NMI, which Fig. 4 shows.
"""
import contextlib
import io
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import dml_da  # noqa: E402
from support import glyphs  # noqa: E402

WEIGHTS, SEEDS = (1, 10, 100), 2


def held_out(*flags):
    """-> R@1, NMI in % of the held-out half of the training classes after a training"""
    with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
        last = dml_da.train(dml_da.parse_args([*flags, "--out", out]))["last epoch"]
    return 100 * last["R@1"], 100 * last["NMI"]


def main():
    glyphs.GLYPHS.update(train=(range(400, 425), 15), test=(range(425, 450), 15))
    print(f"{'regularizer':<12}{'weight':>7}{'R@1':>7}{'NMI':>7}", flush=True)
    for regularizer, weights in {"none": (0,), "en": WEIGHTS, "gor": WEIGHTS}.items():
        for weight in weights:
            flags = ["--regularizer", regularizer, "--reg-weight", str(weight)] if weight else [
                "--lambda", "0"]
            runs = [held_out(*flags, "--seed", str(seed)) for seed in range(SEEDS)]
            recall, nmi = map(statistics.mean, zip(*runs))
            print(f"{regularizer:<12}{weight:>7}{recall:7.1f}{nmi:7.1f}", flush=True)


if __name__ == "__main__":
    main()

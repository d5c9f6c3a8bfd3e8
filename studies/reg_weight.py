"""The weights of EN and GOR, which DML-DA's Fig. 4 does not give (U9), on held-out classes.

    python studies/reg_weight.py            about six minutes on two cores

Half of the 50 training classes of `glyphs` train, the other half tests; no test class is embedded.
Prints R@1 and NMI in %, means over two seeds with the contrastive loss.  dml_da.REG_WEIGHTS
has the weight of the highest NMI, which Fig. 4 shows, for each regularizer.
"""
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import dml_da  # noqa: E402
from report.tables import markdown  # noqa: E402
from support import glyphs  # noqa: E402


def main():
    glyphs.GLYPHS.update(train=(range(400, 425), 15), test=(range(425, 450), 15))
    rows = [["regularizer", "weight", "R@1", "NMI"], ["none", "0"], ["en", "1"], ["en", "10"],
            ["en", "100"], ["gor", "1"], ["gor", "10"], ["gor", "100"]]
    for row in rows[1:]:
        flags = (["--lambda", "0"] if row[0] == "none" else
                 ["--regularizer", row[0], "--reg-weight", row[1]])
        results = [dml_da.train(dml_da.parse_args(
            [*flags, "--seed", seed, "--out", "runs-weights"]))["last epoch"] for seed in "01"]
        row += [f"{100 * statistics.mean(result[metric] for result in results):.1f}"
                for metric in ("R@1", "NMI")]
    print(*markdown(rows), sep="\n")


if __name__ == "__main__":
    main()

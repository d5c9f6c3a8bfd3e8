"""The weights of EN and GOR, which DML-DA's Fig. 4 does not give (U9), on held-out classes.

    python studies/reg_weight.py            about six minutes on two cores

Half of the 50 training classes of `glyphs` train, the other half tests; no test class is embedded.
Prints R@1 and NMI in %, means over two seeds with the contrastive loss; of NMI also the mean over
five starts of k-means.  dml_da.REG_WEIGHTS has the weight of the highest NMI, which Fig. 4 shows,
for each regularizer.
"""
import sys
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import dml_da  # noqa: E402
from report.tables import markdown  # noqa: E402
from support import glyphs  # noqa: E402


def main():
    glyphs.GLYPHS.update(train=(range(400, 425), 15), test=(range(425, 450), 15))
    rows = [["regularizer", "weight", "R@1", "NMI", "NMI, mean of starts"]]
    for name in ("none 0", "en 1", "en 10", "en 100", "gor 1", "gor 10", "gor 100"):
        regularizer, weight = name.split()
        flags = f"--regularizer {regularizer} --reg-weight {weight}"
        if regularizer == "none":
            flags = "--lambda 0"
        r1, nmi, starts = [], [], []
        for seed in (0, 1):
            words = f"{flags} --seed {seed} --out runs-weights".split()
            last = dml_da.train(dml_da.parse_args(words))["last epoch"]
            r1.append(last["R@1"])
            nmi.append(last["NMI"])
            starts += last["NMI by start"]
        rows.append([regularizer, weight, *(f"{100 * mean(x):.1f}" for x in (r1, nmi, starts))])
    print(markdown(rows))


if __name__ == "__main__":
    main()

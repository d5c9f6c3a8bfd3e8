"""The runs as tables: mean ± standard deviation over seeds, last epoch first, best on test beside it.

    python report.py               every finished run under runs/
    python report.py --out DIR     ... under DIR
"""
import json
import re
import statistics
from pathlib import Path

import common


def finished(out):
    """{run name without its seed: [result of each finished seed]} of a folder of runs."""
    groups = {}
    for path in sorted(Path(out).glob("*/result.json")):
        groups.setdefault(re.sub(r"-s\d+$", "", path.parent.name), []).append(
            json.loads(path.read_text()))
    return groups


def spread(values):
    """Shares -> 'mean ± std' in %, the std of the sample (n - 1); the mean alone for one value."""
    values = [100 * v for v in values if v is not None]
    if not values:
        return "–"
    return f"{statistics.mean(values):.1f}" + (
        f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def table(out):
    """Markdown: a row a setting."""
    columns = [("unseen R@1, last epoch", "last epoch", "R@1"), ("best on test*", "best on test", "R@1"),
               ("untrained", "untrained backbone", "R@1"), ("seen R@1", "last epoch", "seen R@1"),
               ("MAP@R", "last epoch", "MAP@R"), ("NMI", "last epoch", "NMI")]
    rows = [["run", "seeds", *(name for name, _, _ in columns)]]
    for name, results in finished(out).items():
        rows.append([name, str(len(results)), *(
            spread([r[part].get(metric) for r in results]) for _, part, metric in columns)])
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths)) + " |" for row in rows]
    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:], "",
                      "%, mean ± standard deviation over seeds.  * the epoch chosen on the test set: "
                      "not a figure to report."])


def main(args):
    if not finished(args.out):
        raise common.UserError(f"no finished run under {args.out}")
    print(table(args.out))


def parse_args(argv=None):
    parser = common.Parser(prog="report.py", description=__doc__)
    parser.add_argument("--out", default="runs", help="folder that holds the runs (default: runs)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    common.main(main, parse_args)

"""The learning rates of cub128, from each paper's baselines on held-out training classes.

    python benchmarks/search.py list [--weights FILE]      the commands, one a line
    python benchmarks/search.py run mdr FLAGS              one of them: mdr.py with these flags, on
                                                           a fifth of its training classes as test
    python benchmarks/search.py                            the table of what has run, from OUT

Classes 1-80 of CUB train, 81-100 are searched; no image of classes 101-200 is embedded.  Every
baseline has the same three rates and about 120,000 training images, two fifths of a run of cub128,
the steps of its schedule in proportion.
"""
import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common  # noqa: E402
from support.command_line import PLACE  # noqa: E402
from support.datasets import load_dataset  # noqa: E402

OUT, SHARE, RATES = "runs-search", 0.2, (1e-4, 3e-4, 3e-5)
LENGTH = {"jrd": "--epochs 25 --drop-every 10", "mdr": "--epochs 40", "dml_da": "--epochs 12"}
BASELINES = {"AMSoftmax": "jrd --alpha 0", "Triplet": "mdr --lambda 0",
             "Triplet + L2Norm": "mdr --lambda 0 --l2norm", "Contrastive": "dml_da --lambda 0",
             "Triplet (DML-DA's)": "dml_da --loss triplet --lambda 0",
             "N-pair": "dml_da --loss npair --lambda 0"}


def commands(baseline, rates=RATES, extra=""):
    """{rate: what to run for it}; JRD's proxies have 100 times the model's rate, as in the paper"""
    paper = baseline.split()[0]
    proxies = {rate: f" --lr-proxies {100 * rate:g}" * (paper == "jrd") for rate in rates}
    return {rate: f"{baseline} --dataset cub128 {LENGTH[paper]} --lr {rate:g}{proxies[rate]} "
                  f"--out {OUT}{extra}" for rate in rates}


def held_out(*args, **kwargs):
    """load_dataset, but the last fifth of the training classes takes the place of the test."""
    data = load_dataset(*args, **kwargs | {"val": SHARE})
    return replace(data, test=data.val, val=None, gallery=None)


def run(paper, *flags):
    """A paper's training on the held-out split."""
    common.load_dataset = held_out
    common.main(importlib.import_module(paper).train,
                lambda: importlib.import_module(paper).parse_args(list(flags)))


def table():
    """Print R@1 on the held-out classes, last epoch, for each baseline and rate."""
    found = {}
    for path in sorted(Path(OUT).glob("*/result.json")):
        config, last = json.loads((path.parent / "config.json").read_text()), json.loads(
            path.read_text())["last epoch"]
        for name, baseline in BASELINES.items():
            paper = importlib.import_module(baseline.split()[0])
            cfg = paper.parse_args(commands(baseline, [config["lr"]])[config["lr"]].split()[1:])
            ours = {k: v for k, v in vars(cfg).items() if k not in ("weights", "changed", *PLACE)}
            if config["paper"] == paper.__name__ and all(
                    config[k] == v for k, v in json.loads(json.dumps(ours)).items()):
                found.setdefault(config["lr"], {})[name] = \
                    f"{100 * last['R@1']:.1f} / {100 * last['seen R@1']:.1f}"
    print("| R@1 held out / trained | " + " | ".join(f"{r:g}" for r in sorted(found)) + " |")
    print("|---" * (1 + len(found)) + "|")
    for name in BASELINES:
        print(f"| {name} | " + " | ".join(found[r].get(name, "") for r in sorted(found)) + " |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run(*sys.argv[2:])
    elif sys.argv[1:2] == ["list"]:
        extra = "".join(f" {word}" for word in sys.argv[2:])
        of_each = [commands(baseline, extra=extra).values() for baseline in BASELINES.values()]
        print("\n".join(f"benchmarks/search.py run {c}" for some in of_each for c in some))
    else:
        table()

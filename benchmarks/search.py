"""Learning rates for glyphs and cub128, from each paper's baselines on held-out training classes.

    python benchmarks/search.py list [--dataset glyphs] [--weights FILE ...]
                                                           the commands, one a line
    python benchmarks/search.py run mdr FLAGS              one of them: mdr.py with these flags, on
                                                           a fifth of its training classes as test
    python benchmarks/search.py [--dataset glyphs] [--out results/cub128/search]
                                                           the table of what has run, there or here

The first four fifths of the training classes train (cub128: 1-80 of CUB, glyphs: 40), the last are
searched; no image of a test class is embedded.  On glyphs every baseline has the same five rates,
the preset's length, and three seeds.  On cub128 each has 1e-4, 3e-4 and, on the side of the better
of these (by R@1, in a tie by MAP@R), the next ones until the best has a worse one on either side; a
run has about 120,000 training images, two fifths of a run of cub128, the steps of its schedule in
proportion.
"""
import argparse
import importlib
import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common  # noqa: E402
from report.tables import spread  # noqa: E402
from support.command_line import RUNTIME_ONLY  # noqa: E402
from support.datasets import load_dataset  # noqa: E402

OUT, SHARE = "runs-search", 0.2
RATES = {"cub128": (1e-4, 3e-4), "glyphs": (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)}
FURTHER = {"AMSoftmax": (1e-3, 3e-3), "Triplet": (1e-3,), "Triplet + L2Norm": (3e-5,),
           "Contrastive": (3e-5, 1e-5), "Triplet (DML-DA's)": (3e-5, 1e-5),
           "N-pair": (3e-5, 1e-5, 3e-6)}                                                # on cub128
SEEDS = {"cub128": 1, "glyphs": 3}
LENGTH = {"cub128": {"jrd": " --epochs 25 --drop-every 10", "mdr": " --epochs 40",
                     "dml_da": " --epochs 12"}}
BASELINES = {"AMSoftmax": "jrd --alpha 0", "Triplet": "mdr --lambda 0",
             "Triplet + L2Norm": "mdr --lambda 0 --l2norm", "Contrastive": "dml_da --lambda 0",
             "Triplet (DML-DA's)": "dml_da --loss triplet --lambda 0",
             "N-pair": "dml_da --loss npair --lambda 0"}


def command(baseline, dataset, rate, seed=0):
    """What to run; JRD's proxies have 100 times the model's rate, as in the paper."""
    paper = baseline.split()[0]
    words = f"{baseline} --dataset {dataset}{LENGTH.get(dataset, {}).get(paper, '')} --lr {rate:g}"
    if paper == "jrd":
        words += f" --lr-proxies {100 * rate:g}"
    if seed:
        words += f" --seed {seed}"
    return f"{words} --out {OUT}"


def held_out(*args, **kwargs):
    """load_dataset, but the last fifth of the training classes takes the place of the test."""
    data = load_dataset(*args, **kwargs | {"val": SHARE})
    return replace(data, test=data.val, val=None, gallery=None)


def run(paper, *flags):
    """A paper's training on the held-out split."""
    common.load_dataset = held_out
    common.main(importlib.import_module(paper).train,
                lambda: importlib.import_module(paper).parse_args(list(flags)))


def found(dataset, out):
    """What has run -> {rate: {baseline: [(R@1 held out, R@1 trained) in % of a seed, ...]}}"""
    runs = {}
    for path in sorted(Path(out).glob("*/result.json")):
        config, last = json.loads((path.parent / "config.json").read_text()), json.loads(
            path.read_text())["last epoch"]
        for name, baseline in BASELINES.items():
            paper = importlib.import_module(baseline.split()[0])
            cfg = paper.parse_args(command(baseline, dataset, config["lr"]).split()[1:])
            any_will_do = ("weights", "changed", "seed", "eval_every", *RUNTIME_ONLY)
            ours = {k: v for k, v in vars(cfg).items() if k not in any_will_do}
            if config["paper"] == paper.__name__ and all(
                    config.get(k) == v for k, v in json.loads(json.dumps(ours)).items()):
                runs.setdefault(config["lr"], {}).setdefault(name, []).append(
                    (100 * last["R@1"], 100 * last["seen R@1"]))
    return dict(sorted(runs.items()))


def means(runs, paper):
    """A paper's baselines together -> {rate: mean held-out R@1 of each seed}, of rates that all of
    them have."""
    names = [name for name, baseline in BASELINES.items() if baseline.split()[0] == paper]
    return {rate: [statistics.mean(held for held, _ in seed) for seed in zip(
        *(runs[rate][name] for name in names))] for rate in runs if {*names} <= {*runs[rate]}}


def choice(of_rates):
    """The rule: of {rate: R@1 of each seed} the highest rate whose mean is within one standard
    deviation (over the seeds of the best rate) of the best mean; None without two seeds."""
    if not of_rates or min(map(len, of_rates.values())) < 2:
        return None
    best = max(of_rates.values(), key=statistics.mean)
    return max(rate for rate, seeds in of_rates.items()
               if statistics.mean(seeds) >= statistics.mean(best) - statistics.stdev(best))


def table(dataset, out):
    """Print R@1 on the held-out classes, last epoch, for each baseline and rate; where there are
    seeds, each paper's mean over its baselines too, the rate that the rule chooses in bold."""
    runs = found(dataset, out)
    if not runs:
        sys.exit(f"search.py: no finished run of the search on {dataset} under {out}")
    print("| R@1 held out / trained | " + " | ".join(f"{rate:g}" for rate in runs) + " |")
    print("|---" * (1 + len(runs)) + "|")
    for name in BASELINES:
        cells = []
        for rate in runs:
            held, trained = zip(*runs[rate][name]) if name in runs[rate] else ((), ())
            cells.append(f"{spread(held)} / {statistics.mean(trained):.1f}" if held else "")
        print(f"| {name} | " + " | ".join(cells) + " |")
    for paper in common.PAPERS:
        of_rates = means(runs, paper)
        chosen = choice(of_rates)
        if chosen:
            cells = [f"**{spread(of_rates[rate])}**" if rate == chosen else
                     spread(of_rates.get(rate, [])) for rate in runs]
            print(f"| {paper}'s baselines together | " + " | ".join(cells) + " |")


def main(words):
    """words: of the command line"""
    if words[:1] == ["run"]:
        run(*words[1:])
        return
    parser = argparse.ArgumentParser("benchmarks/search.py", allow_abbrev=False)
    parser.add_argument("what", nargs="?", choices=["list"])
    parser.add_argument("--dataset", choices=sorted(RATES), default="cub128")
    parser.add_argument("--out", default=OUT)
    args, extra = parser.parse_known_args(words)
    if args.what is None:
        table(args.dataset, args.out)
        return
    for seed in range(SEEDS[args.dataset]):
        for name, baseline in BASELINES.items():
            further = FURTHER[name] if args.dataset == "cub128" else ()
            for rate in RATES[args.dataset] + further:
                print("benchmarks/search.py run", command(baseline, args.dataset, rate, seed),
                      *extra)


if __name__ == "__main__":
    main(sys.argv[1:])

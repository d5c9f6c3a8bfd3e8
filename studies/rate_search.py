"""Learning rates for glyphs and cub128, searched on held-out training classes.

    python studies/rate_search.py list [--dataset glyphs] [FLAGS]   the commands, with FLAGS
    python studies/rate_search.py run mdr FLAGS                     one: mdr.py on held-out classes
    python studies/rate_search.py [--dataset glyphs] [--runs PATH]  the table of finished runs

PATH is a folder (run trains into runs-search) or an archive: results/cub128/search.tar.xz.  The
first four fifths of the training classes train, the last fifth takes the test classes' place.  No
image of a test class is embedded.  On cub128 a run is half of JRD's, or two fifths of DML-DA's.
mdr_on_photographs.py runs MDR's rates at full length: --runs results/cub128/mdr.tar.xz.
"""
import argparse
import itertools
import statistics
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common  # noqa: E402
from report.experiments import SCRIPTS  # noqa: E402
from report.records import finished, in_paper_units  # noqa: E402
from report.tables import markdown, spread  # noqa: E402
from support import command_line  # noqa: E402
from support.runs import differences  # noqa: E402

load_dataset = common.load_dataset          # of all classes; run puts held_out in its place

BASELINES = {  # a row of the table: script, flags
    "AMSoftmax": ("jrd", "--alpha 0"), "Triplet": ("mdr", "--lambda 0"),
    "Triplet + L2Norm": ("mdr", "--lambda 0 --l2norm"), "Contrastive": ("dml_da", "--lambda 0"),
    "Triplet (DML-DA's)": ("dml_da", "--loss triplet --lambda 0"),
    "N-pair": ("dml_da", "--loss npair --lambda 0")}
R18 = "--backbone resnet18 --weights resnet18_pqf.pth --precision fp32"
GOOGLENET = "--backbone googlenet_bvlc --weights googlenet_bvlc.pth"
REGULARIZED = {  # on cub128 alone
    "JRD": ("jrd", ""), "Triplet + MDR": ("mdr", ""), "DML-DA contrastive": ("dml_da", ""),
    "DML-DA triplet": ("dml_da", "--loss triplet"), "DML-DA N-pair": ("dml_da", "--loss npair"),
    "AMSoftmax, 50 epochs": ("jrd", "--alpha 0 --epochs 50 --drop-every 20"),
    "JRD, 50 epochs": ("jrd", "--epochs 50 --drop-every 20"),
    "Contrastive, GoogLeNet": ("dml_da", f"{GOOGLENET} --lambda 0"),        # docs/plans.md
    "DML-DA contrastive, GoogLeNet": ("dml_da", GOOGLENET),
    "AMSoftmax, ResNet-18": ("jrd", f"{R18} --alpha 0"), "JRD, ResNet-18": ("jrd", R18)}
SETTINGS = BASELINES | REGULARIZED
SETTINGS_ON = {"cub128": SETTINGS, "glyphs": BASELINES}
RATES = {"cub128": (1e-5, 3e-5, 1e-4, 3e-4, 1e-3), "glyphs": (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)}
RATES_OF = {"glyphs": {}, "cub128": {
    "Triplet": (), "Triplet + L2Norm": (), "Triplet + MDR": (),         # mdr_on_photographs.py
    "AMSoftmax": (*RATES["cub128"], 3e-3), "N-pair": (3e-6, *RATES["cub128"]),
    "AMSoftmax, 50 epochs": (3e-4, 1e-3), "JRD, 50 epochs": (3e-4, 1e-3),
    "Contrastive, GoogLeNet": (1e-5, 3e-5, 1e-4), "AMSoftmax, ResNet-18": (1e-4, 3e-4, 1e-3),
    "DML-DA contrastive, GoogLeNet": (1e-5, 3e-5, 1e-4), "JRD, ResNet-18": (1e-4, 3e-4, 1e-3)}}
LENGTH = {("cub128", "jrd"): " --epochs 25 --drop-every 10", ("cub128", "dml_da"): " --epochs 12"}
OUT, HELD_OUT_SHARE, SEEDS = "runs-search", 0.2, {"cub128": 1, "glyphs": 3}


# ---------------------------------------------------------------------------- the trainings
def command(name, dataset, rate, seed=0, more=""):
    """What to run, with flags of a person's own; JRD's proxies have 100 times the model's rate, as
    in the paper."""
    script, flags = SETTINGS[name]
    length = LENGTH.get((dataset, script), "")
    words = f"{script}{more} --dataset {dataset}{length} {flags} --lr {rate:g}"
    if script == "jrd":
        words += f" --lr-proxies {100 * rate:g}"
    if seed:
        words += f" --seed {seed}"
    return f"{words} --out {OUT}"


def held_out(*args, **kwargs):
    """load_dataset, but the last fifth of the training classes takes the place of the test."""
    data = load_dataset(*args, **kwargs | {"val": HELD_OUT_SHARE})
    return replace(data, test=data.val, val=None, gallery=None)


def run(script, *flags):
    """A script's training on the held-out split."""
    common.load_dataset = held_out
    command_line.main(SCRIPTS[script].train, lambda: SCRIPTS[script].parse_args(flags))


# ---------------------------------------------------------------------------- the table
def is_run_of(config, name, dataset):
    """Whether a config.json is of a setting of the search on a dataset, at any rate and seed."""
    script, *flags = command(name, dataset, config["lr"]).split()
    own = {"paper": script, **vars(SCRIPTS[script].parse_args(flags))}
    differ = differences(config, own).keys()
    return config["dataset"] == dataset and differ <= {"seed", "eval_every"}


def finished_runs(dataset, runs):
    """runs: a folder or an archive -> {rate: {setting: [figures of each seed]}}, rates ascending.
    Figures: R@1 held out and R@1 trained in %, MAP@R held out in %, the share of the epochs after
    which R@1 was best first"""
    by_rate = {}
    for run in finished(runs):
        for name in SETTINGS_ON[dataset]:
            if run.config["seed"] < SEEDS[dataset] and is_run_of(run.config, name, dataset):
                last = in_paper_units(run.result["last epoch"])
                best_after = run.result["best on test"]["epoch"] / run.config["epochs"]
                by_rate.setdefault(run.config["lr"], {}).setdefault(name, []).append(
                    (last["R@1"], last["seen R@1"], last["MAP@R"], best_after))
    return dict(sorted(by_rate.items()))


def baseline_means(runs, script):
    """-> {rate: [mean held-out R@1 of each seed over the script's baselines]}, if all have it"""
    names = [name for name, (of, _) in BASELINES.items() if of == script]
    return {rate: [statistics.mean(figures[0] for figures in of_seed)
                   for of_seed in zip(*(recalls[name] for name in names))]
            for rate, recalls in runs.items() if set(names) <= set(recalls)}


def choice(means):
    """The rule on glyphs, of {rate: R@1 of each seed}: the highest rate whose mean is within one
    standard deviation (of the best rate's seeds) of the best mean.  None without two seeds."""
    if not means or min(map(len, means.values())) < 2:
        return None
    best = max(means.values(), key=statistics.mean)
    least = statistics.mean(best) - statistics.stdev(best)
    return max(rate for rate, seeds in means.items() if statistics.mean(seeds) >= least)


def table(dataset, folder):
    """Figures of the last epoch per setting and rate.  With seeds also R@1 of each script's
    baselines together, the rule's choice in bold."""
    runs = finished_runs(dataset, folder)
    rows = [["R@1 held out / trained / MAP@R held out / best after", *(f"{lr:g}" for lr in runs)]]
    for name in [name for name in SETTINGS if any(name in recalls for recalls in runs.values())]:
        rows.append([name])
        for recalls in runs.values():
            unseen, *others = zip(*recalls[name]) if name in recalls else [()]
            means = [f"{statistics.mean(seeds):.{digits}f}" for seeds, digits in zip(others, "112")]
            rows[-1].append(" / ".join([spread(unseen), *means]))
    for script in SCRIPTS:
        means = baseline_means(runs, script)
        if chosen := choice(means):
            cells = {rate: spread(means.get(rate, [])) for rate in runs}
            cells[chosen] = f"**{cells[chosen]}**"
            rows.append([f"{script}'s baselines together", *cells.values()])
    print(*markdown(rows), sep="\n")


def main(words):
    """words: of the command line"""
    if words[:1] == ["run"]:
        return run(*words[1:])
    parser = argparse.ArgumentParser("studies/rate_search.py", allow_abbrev=False)
    parser.add_argument("what", nargs="?", choices=["list"])
    parser.add_argument("--dataset", choices=sorted(RATES), default="cub128")
    parser.add_argument("--runs", default=OUT)
    args, extra = parser.parse_known_args(words)
    if args.what is None:
        return table(args.dataset, args.runs)
    for seed, name in itertools.product(range(SEEDS[args.dataset]), SETTINGS_ON[args.dataset]):
        for rate in RATES_OF[args.dataset].get(name, RATES[args.dataset]):
            print("studies/rate_search.py run",
                  command(name, args.dataset, rate, seed, "".join(f" {word}" for word in extra)))


if __name__ == "__main__":
    command_line.main(main, lambda: sys.argv[1:])

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
import statistics
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common  # noqa: E402
from report.experiments import SCRIPTS, cells  # noqa: E402
from report.records import finished, in_paper_units, pivot  # noqa: E402
from report.tables import markdown, spread  # noqa: E402
from support import command_line  # noqa: E402
from support.files import UserError  # noqa: E402
from support.identity import differences  # noqa: E402

load_dataset = common.load_dataset          # of all classes; run puts held_out in its place

# A row of the table | script | flags | rates on cub128; mdr_on_photographs.py has MDR's
BASELINES = """
    AMSoftmax          | jrd    | --alpha 0                 | 1e-5 3e-5 1e-4 3e-4 1e-3 3e-3
    Triplet            | mdr    | --lambda 0                |
    Triplet + L2Norm   | mdr    | --lambda 0 --l2norm       |
    Contrastive        | dml_da | --lambda 0                | 1e-5 3e-5 1e-4 3e-4 1e-3
    Triplet (DML-DA's) | dml_da | --loss triplet --lambda 0 | 1e-5 3e-5 1e-4 3e-4 1e-3
    N-pair             | dml_da | --loss npair --lambda 0   | 3e-6 1e-5 3e-5 1e-4 3e-4 1e-3"""
R18 = "--backbone resnet18 --weights resnet18_pqf.pth --precision fp32"
GOOGLENET = "--backbone googlenet_bvlc --weights googlenet_bvlc.pth"         # docs/plans.md
REGULARIZED = f"""
    JRD                           | jrd    |                  | 1e-5 3e-5 1e-4 3e-4 1e-3
    Triplet + MDR                 | mdr    |                  |
    DML-DA contrastive            | dml_da |                  | 1e-5 3e-5 1e-4 3e-4 1e-3
    DML-DA triplet                | dml_da | --loss triplet   | 1e-5 3e-5 1e-4 3e-4 1e-3
    DML-DA N-pair                 | dml_da | --loss npair     | 1e-5 3e-5 1e-4 3e-4 1e-3
    AMSoftmax, 50 epochs          | jrd    | --alpha 0 --epochs 50 --drop-every 20 | 3e-4 1e-3
    JRD, 50 epochs                | jrd    | --epochs 50 --drop-every 20 | 3e-4 1e-3
    Contrastive, GoogLeNet        | dml_da | {GOOGLENET} --lambda 0 | 1e-5 3e-5 1e-4
    DML-DA contrastive, GoogLeNet | dml_da | {GOOGLENET}      | 1e-5 3e-5 1e-4
    AMSoftmax, ResNet-18          | jrd    | {R18} --alpha 0  | 1e-4 3e-4 1e-3
    JRD, ResNet-18                | jrd    | {R18}            | 1e-4 3e-4 1e-3"""
SETTINGS = {"glyphs": cells(BASELINES), "cub128": cells(BASELINES + REGULARIZED)}
RATES_ON_GLYPHS = "3e-5 1e-4 3e-4 1e-3 3e-3"
LENGTH = {("cub128", "jrd"): " --epochs 25 --drop-every 10", ("cub128", "dml_da"): " --epochs 12"}
OUT, HELD_OUT_SHARE, SEEDS = "runs-search", 0.2, {"cub128": 1, "glyphs": 3}


# ---------------------------------------------------------------------------- the trainings
def command(script, flags, dataset, rate, seed=0, more=""):
    """What to run, with flags of a person's own; JRD's proxies have 100 times the model's rate, as
    in the paper."""
    length = LENGTH.get((dataset, script), "")
    words = f"{script}{more} --dataset {dataset}{length} {flags} --lr {rate:g}"
    if script == "jrd":
        words += f" --lr-proxies {100 * rate:g}"
    if seed:
        words += f" --seed {seed}"
    return f"{words} --out {OUT}"


def held_out(name, root=None, train=None, test=None, cache=True, val=None, weights=None):
    """load_dataset, but the last fifth of the training classes takes the place of the test."""
    data = load_dataset(name, root, train, test, cache, HELD_OUT_SHARE, weights)
    return replace(data, test=data.val, val=None, gallery=None)


def run(script="", *flags):
    """A script's training on the held-out split."""
    if script not in SCRIPTS:
        raise UserError(f"run trains one of {', '.join(SCRIPTS)}, with its flags")
    common.load_dataset = held_out
    flags = ["--out", OUT, *flags]                      # one of their own comes later, and wins
    command_line.main(SCRIPTS[script].train, lambda: SCRIPTS[script].parse_args(flags))


# ---------------------------------------------------------------------------- the table
def is_run_of(config, script, flags, dataset):
    """Whether a config.json is of a setting of the search on a dataset, at any rate and seed."""
    _, *words = command(script, flags, dataset, config["lr"]).split()
    own = {"paper": script, **vars(SCRIPTS[script].parse_args(words))}
    differ = differences(config, own).keys()
    return config["dataset"] == dataset and differ <= {"seed", "eval_every"}


def finished_runs(dataset, folder):
    """((name, rate), seed, figures) of the search's runs in a folder or an archive, for pivot.  One
    figure more: the share of the epochs after which R@1 was best first"""
    for run in finished(folder):
        for name, script, flags, _ in SETTINGS[dataset]:
            seed, rate = run.config["seed"], run.config["lr"]
            if seed < SEEDS[dataset] and is_run_of(run.config, script, flags, dataset):
                best_after = run.result["best on test"]["epoch"] / run.config["epochs"]
                last = in_paper_units(run.result["last epoch"])          # the archive has no logs
                yield (name, rate), seed, {"last epoch": last | {"best after": best_after}}


def rates_in(runs):
    """runs: a pivot of finished_runs"""
    return sorted({rate for (_, rate), _, _ in runs})


def baseline_means(runs, script):
    """-> {rate: [mean held-out R@1 of each seed over the script's baselines]}, if all have it"""
    means = {}
    for rate in rates_in(runs):
        recalls = []
        for name, of, *_ in cells(BASELINES):
            if of == script:
                recalls.append(runs[(name, rate), "last epoch", "R@1"].values())
        if all(recalls):
            means[rate] = list(map(statistics.mean, zip(*recalls)))
    return means


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
    runs = pivot(finished_runs(dataset, folder))
    rates = rates_in(runs)
    if not rates:
        raise UserError(f"no finished run of the search on {dataset} under {folder}")
    rows = [["R@1 held out / trained / MAP@R held out / best after"] + [f"{lr:g}" for lr in rates]]
    for name, *_ in SETTINGS[dataset]:
        row = [name]
        for rate in rates:
            cell = spread(runs[(name, rate), "last epoch", "R@1"].values())
            for metric, digits in (("seen R@1", 1), ("MAP@R", 1), ("best after", 2)):
                values = runs[(name, rate), "last epoch", metric].values()
                if values:
                    cell += f" / {statistics.mean(values):.{digits}f}"
            row.append(cell)
        if set(row[1:]) != {"–"}:
            rows.append(row)
    for script in SCRIPTS:
        means = baseline_means(runs, script)
        chosen = choice(means)
        if chosen:
            row = [f"{script}'s baselines together"]
            for rate in rates:
                cell = spread(means.get(rate, []))
                row.append(f"**{cell}**" if rate == chosen else cell)
            rows.append(row)
    print(markdown(rows))


def main(words):
    """words: of the command line"""
    if words[:1] == ["run"]:
        return run(*words[1:])
    parser = argparse.ArgumentParser("studies/rate_search.py", allow_abbrev=False)
    parser.add_argument("what", nargs="?", choices=["list"])
    parser.add_argument("--dataset", choices=sorted(SETTINGS), default="cub128")
    parser.add_argument("--runs", default=OUT)
    args, extra = parser.parse_known_args(words)
    if args.what is None:
        return table(args.dataset, args.runs)
    more = "".join(f" {word}" for word in extra)
    for seed in range(SEEDS[args.dataset]):
        for _, script, flags, rates in SETTINGS[args.dataset]:
            if args.dataset == "glyphs":
                rates = RATES_ON_GLYPHS
            for rate in map(float, rates.split()):
                print("studies/rate_search.py run",
                      command(script, flags, args.dataset, rate, seed, more))


if __name__ == "__main__":
    command_line.main(main, lambda: sys.argv[1:])

"""The tables on the console: what eval.judge gives, and the end of a training."""


def percent(share, width=7):
    return f"{100 * share:{width}.1f}" if isinstance(share, float) else f"{'–':>{width}}"


def show(rows, ks):
    """Print {name: judge(...)} as an aligned table in %, and below it what one row alone has."""
    metrics = [f"R@{k}" for k in ks] + ["MAP@R", "NMI", "seen R@1"]
    metrics = [m for m in metrics if any(m in row for row in rows.values())]
    wide = max(map(len, rows), default=0)
    print(" " * wide + "".join(f"{m:>{max(7, len(m) + 2)}}" for m in metrics))
    for name, row in rows.items():
        print(f"{name:<{wide}}" + "".join(
            percent(row.get(m), max(7, len(m) + 2)) for m in metrics))
    for row in rows.values():
        if "ten parts" in row:
            print(f"{'in ten stratified parts, 95%':<{wide}}" + "".join(
                f"  {m} [{100 * (mean - half):.1f}, {100 * (mean + half):.1f}]"
                for m, (mean, half) in row["ten parts"].items()))
        if "lambda" in row:
            print(f"{'1-NN estimates (JRD, Eq. 2-3), 95%':<{wide}}" + "".join(
                "  {} [{:.3f}, {:.3f}]".format(name, row[key][0] - row[key][1], sum(row[key]))
                for name, key in (("λ", "lambda"), ("d_H", "d_H"))))
        if "queries without a positive" in row:
            print(f"{row['queries without a positive']} queries have no other image of their class "
                  "to find and count as misses")


def final_table(run):
    """The end of a training: pretrained backbone, last epoch, best epoch on test, its folder."""
    result, held_out = run.result, ""
    before, last = result["pretrained backbone"], result["last epoch"]
    best = result["best on test"]
    rows = {"pretrained backbone": before, f"last epoch ({last['epoch']})": last}
    if "best on held-out classes" in result:
        chosen = result["best on held-out classes"]
        rows[f"best.pt (epoch {chosen['epoch']}, chosen on held-out training classes)"] = chosen
        held_out = f"R@1 on the held-out classes: best.pt {percent(chosen['val R@1'], 0)}"
        if "val R@1" in before:
            held_out += f", pretrained {percent(before['val R@1'], 0)}"
            if chosen["val R@1"] <= before["val R@1"]:
                held_out += ": by them no epoch is better than not training at all"
    rows[f"best on test (epoch {best['epoch']}, chosen on the test set)"] = best
    print()
    show(rows, run.cfg.ks)
    if held_out:
        print(held_out)
    print(f"run {run.folder}")

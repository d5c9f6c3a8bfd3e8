"""What holds MDR back on photographs: mdr.py and variants of it, on held-out training classes.

    python studies/mdr_on_photographs.py run [--variant NAME] FLAGS    mdr.py: trains on CUB's 1-80
    python studies/mdr_on_photographs.py measure RUN                   what its last.pt can tell
    python studies/mdr_on_photographs.py table RUNS                    a row per finished run
    python studies/mdr_on_photographs.py draw RUNS                     R@1 against images seen

RUNS is a folder (run trains into runs-mdr) or an archive: results/cub128/mdr.tar.xz has the cited
ones.  A variant replaces a function of mdr.py, which config.json does not tell, so its name is the
run's.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import common  # noqa: E402
import mdr  # noqa: E402
from report.figures import by_epoch, draw_curves  # noqa: E402
from report.records import finished, reading  # noqa: E402
from report.tables import markdown  # noqa: E402
from studies import rate_search  # noqa: E402
from support import command_line  # noqa: E402
from support.files import UserError, write_json  # noqa: E402
from support.identity import read_json  # noqa: E402

BATCHES = 20                            # of training, to measure by
MEASURES = "active triplets", "triplet gradient", "mdr gradient"
MDR = "mdr", "--dataset", "cub128", "--out", "runs-mdr"
RATES = {  # of the picture's arms: the preset's, the best at 100 iterations
    "Triplet": (3e-4, 1e-4), "Triplet + L2Norm": (1e-4, 3e-5),
    "Triplet + MDR, λ = 0.6": (3e-4, 1e-4), "Triplet + MDR, λ = 0.2": (None, 1e-4)}


# ---------------------------------------------------------------------------- variants
def diagonal():
    """U7 as in the release: μ and σ over the whole matrix, zeros included."""
    off_diagonal, update = mdr.off_diagonal, mdr.MDR.update

    def with_diagonal(self, distances):
        mdr.off_diagonal = torch.flatten
        update(self, distances)
        mdr.off_diagonal = off_diagonal
    mdr.MDR.update = with_diagonal


def unscaled():
    """U8 as in the paper's text: the trick for L_DML alone, L_MDR on the distances of e."""
    unit_mean, forward = mdr.unit_mean, mdr.MDR.forward
    raw = {}

    def scaled(distances):
        raw["distances"] = distances
        return unit_mean(distances)
    mdr.unit_mean = scaled
    mdr.MDR.forward = lambda self, distances: forward(self, raw.pop("distances", distances))


def uniform():
    """U9: every negative of the batch as likely."""
    def negatives(e, labels, generator):
        anchors, positives = mdr.is_positive(labels).nonzero(as_tuple=True)
        weight = (labels[anchors, None] != labels[None]).float()                # (T, B)
        return anchors, positives, torch.multinomial(weight, 1, generator=generator)[:, 0]
    mdr.distance_weighted_negatives = negatives


def released():
    """U9 as in the release: float32 weights, relative to the row's greatest, often a positive's.

    The log has the share of anchors for which no weight is left, so that the draw is uniform.
    """
    objective, log = mdr.objective, {}

    @torch.no_grad()
    def negatives(e, labels, generator):
        anchors, positives = mdr.is_positive(labels).nonzero(as_tuple=True)
        negative, d = labels[:, None] != labels[None, :], e.shape[1]                # (B, B)
        r = mdr.pairwise_distances(F.normalize(e)).fill_diagonal_(1).clamp_min(0.5)
        log_weight = (2 - d) * r.log() + (3 - d) / 2 * torch.log1p(-(r / 2) ** 2)
        weight = (log_weight - log_weight.amax(1, keepdim=True)).exp() * (negative & (r < 1.4))
        none_left = (weight == 0).all(1, keepdim=True)                              # (B, 1)
        log["no weight left"] = none_left[anchors].float().mean()
        weight = torch.where(none_left, negative, weight)
        weight = weight / weight.sum(1, keepdim=True)       # torch 2.14.1 draws weights of 0 near 0
        return anchors, positives, torch.multinomial(weight[anchors], 1, generator=generator)[:, 0]

    def logged(*args):
        loss, terms = objective(*args)
        return loss, terms | log
    mdr.distance_weighted_negatives, mdr.objective = negatives, logged


def unit_pooled():
    """Pooled features divided by their norms, times 150, about the pretrained norm."""
    pool = mdr.Network.pool
    mdr.Network.pool = lambda self, images: 150 * F.normalize(pool(self, images))


def before_the_first_epoch(change):
    """change(network, pooled features of the training images) once, before anything is measured"""
    embed_splits = common.embed_splits

    @torch.no_grad()
    def changed(function, data, cfg, *names):
        if function.__name__ == "pool":     # the pretrained backbone is judged first
            network = function.__self__
            change(network, common.embed(network.pool, data.train_plain.images, cfg))
        return embed_splits(function, data, cfg, *names)
    common.embed_splits = changed


def unit_start():
    """The embedding layer is scaled to begin at mean distance 1."""
    def scale(network, pooled):
        mean = torch.pdist(network.embedding(pooled[::4])).mean()
        for parameter in network.embedding.parameters():
            parameter /= mean
    before_the_first_epoch(scale)


def standardized():
    """Pooled features less their mean, over their deviation, both of the pretrained network."""
    init, pool = mdr.Network.__init__, mdr.Network.pool

    def with_statistics(self, cfg, classes):
        init(self, cfg, classes)
        self.register_buffer("shift", torch.zeros(self.embedding.in_features))
        self.register_buffer("scale", torch.ones(self.embedding.in_features))

    def standard(self, images):
        return (pool(self, images) - self.shift) / self.scale

    def measured(network, pooled):
        network.shift.copy_(pooled.mean(0))
        network.scale.copy_(pooled.std(0).clamp_min(1e-3 * pooled.std()))
    standard.__name__ = "pool"
    mdr.Network.__init__, mdr.Network.pool = with_statistics, standard
    before_the_first_epoch(measured)


VARIANTS = {"diagonal": diagonal, "unscaled": unscaled, "uniform": uniform, "released": released,
            "unit-pooled": unit_pooled, "unit-start": unit_start, "standardized": standardized}


# ---------------------------------------------------------------------------- measures
def measure(folder):
    """After training: the share of active triplets, and ‖∂L/∂e‖ of both losses (of MDR times λ), e
    in units of its mean distance.  Means over BATCHES -> measures.json"""
    checkpoint = Path(folder, "last.pt")
    name = common.read_checkpoint(checkpoint)["config"]["name"]
    if name in VARIANTS:
        VARIANTS[name]()
    network, cfg = common.load(checkpoint, mdr.Network)
    cfg.iterations, cfg.workers = BATCHES, 0
    prefix, augment, whole = mdr.transforms(cfg)
    data = rate_search.held_out(cfg.dataset, command_line.data_root(), prefix, whole,
                                weights=(cfg.backbone, cfg.weights))
    loader = common.train_loader(data.train, augment, mdr.batches, cfg)
    generator, rows = torch.Generator(cfg.device).manual_seed(0), []
    for images, labels in loader(0):
        images, labels = images.to(cfg.device), labels.to(cfg.device)
        with torch.no_grad():
            e = network(images)
        mean = mdr.off_diagonal(mdr.pairwise_distances(e)).mean()
        e = (e / mean).requires_grad_()
        distances = mdr.pairwise_distances(e)
        a, p, n = mdr.distance_weighted_negatives(e.detach(), labels, generator)
        distances = mean * distances                    # of e as it came, which unscaled keeps
        seen = distances if cfg.l2norm else mdr.unit_mean(distances)
        active = seen[a, p] - seen[a, n] + cfg.margin > 0
        row = [active.float().mean()]
        for loss in (mdr.triplet_loss(seen, a, p, n, cfg.margin), cfg.lambda_ * network.mdr(seen)):
            row.append(torch.autograd.grad(loss, e, retain_graph=True)[0].norm())
        rows.append(torch.stack(row))
    means = torch.stack(rows).mean(0).tolist()
    write_json(Path(folder, "measures.json"), dict(zip(MEASURES, means)))

# ---------------------------------------------------------------------------- what came out
def arm(config):
    """Triplet, Triplet + L2Norm or Triplet + MDR"""
    if config["lambda_"]:
        return f"Triplet + MDR, λ = {config['lambda_']:g}"
    return "Triplet + L2Norm" if config["l2norm"] else "Triplet"


def variant(config):
    """What else differs from mdr.py's preset: --variant or flags."""
    preset = {"loss": "triplet", "margin": 0.2, "images_per_class": 4, "nu": 0.01,
              "precision": "bf16", "backbone": "squeezenet1_1"}
    differ = [f"{k} {config[k]}" for k in preset if config.get(k, preset[k]) != preset[k]]
    return config["name"] or ", ".join(differ)


def table(runs):
    """A row per run, R@1 in %, of the last epoch."""
    metrics = ["R@1", "R@1, l2-normalized", "NMI", "seen R@1"]
    rows = ["arm,variant,rate,images,seed,R@1,L2-normalized,NMI,trained classes,σ*,active triplets,"
            "‖∂triplet‖,λ‖∂MDR‖".split(",")]
    for run in finished(runs):
        config = run.config
        if config["paper"] != "mdr":
            raise UserError(f"{run.folder.name} is no run of mdr.py")
        images = config["epochs"] * config["iterations"] * config["batch"]
        row = [arm(config), variant(config), f"{config['lr']:g}", f"{images:,}",
               str(config["seed"])]
        for metric in metrics:
            row.append(f"{reading(run, metric):.1f}")
        measured = (read_json(run.folder / "measures.json") or {}).get
        sigma = None if config["l2norm"] else reading(run, "sigma*")
        for value in (sigma, *map(measured, MEASURES)):
            row.append("–" if value is None else f"{value:.3f}")
        rows.append(row)
    print(markdown(rows))


def draw(runs):
    """R@1 against images seen: a panel per length at the preset's rates, one at the best."""
    points_of, points = {}, []
    for run in finished(runs):
        config, length = run.config, run.config["iterations"]
        preset, best = RATES.get(arm(config), (None, None))
        at_best = config["lr"] == best and length == 100
        if (at_best or config["lr"] == preset) and not variant(config):
            title = f"{length} iterations per epoch" + ", best rates" * at_best
            panel = title, "images seen (1,000)", "R@1, held-out classes (%)"
            for *_, epoch, seed, value in by_epoch(panel, arm(config), run, "R@1"):
                images = epoch * (length * config["batch"] / 1000)
                points_of.setdefault((at_best, length), []).append(
                    (panel, arm(config), images, seed, value))
    order = [*RATES]                                            # of the other pictures
    for panel in sorted(points_of):
        points += sorted(points_of[panel], key=lambda point: order.index(point[1]))
    draw_curves(Path(__file__).with_suffix(".png"), points,
                "MDR on cub128, squeezenet1_1, held-out classes: with more iterations MDR overtakes "
                "Triplet, not L2Norm", sharey=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case "run", "--variant", name, *flags if name in VARIANTS:
            VARIANTS[name]()
            rate_search.run(*MDR, *flags, "--name", name)
        case "run", "--variant", *_:
            sys.exit(f"--variant is one of {', '.join(VARIANTS)}")
        case "run", *flags:
            rate_search.run(*MDR, *flags)
        case "measure", folder:
            command_line.main(measure, lambda: folder)
        case "table", runs:
            command_line.main(table, lambda: runs)
        case "draw", runs:
            command_line.main(draw, lambda: runs)
        case _:
            sys.exit(__doc__)

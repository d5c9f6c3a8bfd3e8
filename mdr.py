"""MDR: Multi-level Distance Regularization for Deep Metric Learning (Kim & Park, AAAI 2021).

A loss on pairs or triplets pulls positives together and pushes negatives apart, and may overfit.
MDR disturbs it: it normalizes the batch's distances and pulls each to the nearest of a few levels.

    python mdr.py                               Triplet + MDR on the embedded dataset
    python mdr.py --lambda 0                    Triplet alone
    python mdr.py --lambda 0 --l2norm           Triplet + L2Norm (unit sphere), the usual baseline
    python mdr.py --dataset path/to/folder      one sub-folder per class; half train, half test
It prints one row per epoch, then Recall@K, MAP@R and NMI of the pretrained backbone and the last
epoch (report this), and Recall@K of the epoch that is best on test (do not report this).

Equation                                          where
  1-3   normalized distances, momented μ*, σ*     MDR.update, MDR.normalize
  4     g(d, s): the nearest level                MDR.assign
  5     L_MDR                                     MDR.forward
  6     Triplet; Contrastive, Margin (Table 2b)   triplet_loss; contrastive_loss, MarginLoss
  7     L = L_DML + λ L_MDR                       objective
  -     embedding normalization trick: e/μ        unit_mean, objective
  -     distance-weighted sampling (Wu et al.)    distance_weighted_negatives

U1, U2, ... mark choices that the paper leaves open or its authors' code makes otherwise; E1 and
E2 are errata.  docs/equations.md has them all.
Shapes: B batch, D pooling width, d embedding width (d(·,·): distance), S levels, T triplets.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision.transforms import v2

import common
from common import number           # yours in the way?  docs/extending.md
from eval import judge, l2_normalized, recalls      # yours in the way?  docs/extending.md

MARGINS = {"triplet": 0.2, "margin": 0.2, "contrastive": 1.0}   # triplet's: the paper; others: U10
# One row per setting: default, kind, help.  The defaults are "Implementation Details"; by the
# authors' code: length (U1), images per class (U2), ν (U5).
SETTINGS = {
    "dataset": ("glyphs", "NAME", "glyphs, cub, cars, sop, inshop, cub128, or a folder"),
    "lambda_": (0.6, number(float, 0), "λ of Eq. 7; 0: no MDR"),
    "loss": ("triplet", tuple(MARGINS), "L_DML of Eq. 7 (Table 2b)"),
    "margin": (None, number(float, 0), "m (Eq. 6, U10): " + common.plain(MARGINS)),
    "levels": ([-3.0, 0.0, 3.0], number(float), "initial levels"),
    "momentum": (0.9, number(float, 0, below=1), "γ of Eq. 2"),
    "fixed_levels": (False, bool, "do not learn them (Table 2c)"),
    "nu": (0.01, number(float, 0), "weight of Σ s² on the levels (U5)"),
    "l2norm": (False, bool, "embed on the unit sphere"),
    "eval_l2norm": (False, bool, "embed on the unit sphere at inference only (Table 3)"),
    "batch": (128, number(int, 2), "images"),
    "images_per_class": (4, number(int, 2), "in a batch"),
    "epochs": (100, number(int, 1), ""),
    "iterations": (100, number(int, 1), "batches per epoch (a folder: by its size)"),
    "lr": (5e-5, number(float, above=0), "learning rate"),
    "dim": (512, number(int, 1), "d, the embedding's width"),
    "backbone": ("bn_inception", common.backbone_name, common.BACKBONE),
    "ks": ([1, 2, 4, 8], None, "")}                     # Table 1: Recall@K
PRESETS = {
    "cub": {},
    "cars": dict(lambda_=0.2),
    "sop": dict(lambda_=0.1, lr=1e-4, batch=256, images_per_class=3, ks=[1, 10, 100, 1000],
                eval_every=10),
    "inshop": dict(lambda_=0.1, lr=1e-4, batch=256, images_per_class=3, ks=[1, 10, 20, 40],
                   eval_every=10),
    # Ours, by results/glyphs, results/cub128 (SqueezeNet) and studies/mdr_by_network.md.
    "glyphs": dict(backbone="small", dim=64, batch=64, epochs=40, iterations=10, lr=1e-3),
    "cub128": dict(backbone="squeezenet1_1", resize=146, size=128, precision="auto", eval_every=10,
                   iterations=50, lr=3e-4),
    "folder": dict(iterations=None)}            # by its size: common.iterations_for


# ---------------------------------------------------------------------------- network
class Network(nn.Module):
    """uint8 images -> embeddings e (B, d): backbone, global average pool, fully connected.
    It has MDR (levels, μ*, σ*) and Margin's β too, so one optimizer and one checkpoint hold all."""

    def __init__(self, cfg, classes):
        super().__init__()
        self.preprocess, self.precision = common.Preprocess(cfg.backbone), cfg.precision
        self.backbone, width = common.backbone(cfg.backbone, cfg.size)
        self.embedding = nn.Linear(width, cfg.dim)          # U4: nn.Linear's initialization
        self.l2norm, self.eval_l2norm = cfg.l2norm, cfg.l2norm or cfg.eval_l2norm
        self.mdr = MDR(cfg.levels, cfg.momentum, not cfg.fixed_levels)
        if cfg.loss == "margin":
            self.margin_loss = MarginLoss(cfg.margin)

    def train(self, mode=True):
        """U4: batch norm stays in eval mode; its affine parameters learn (as the authors' code)."""
        return common.freeze_batch_norm(super().train(mode))

    def pool(self, images):
        return common.features(self.backbone, self.preprocess(images), self.precision)  # (B, D)

    def forward(self, images):
        e = self.embedding(self.pool(images))                           # (B, d)
        return F.normalize(e) if self.l2norm else e

    def embed(self, images):
        e = self.embedding(self.pool(images))                           # (B, d)
        return F.normalize(e) if self.eval_l2norm else e                # Table 3: l2 at inference


# ---------------------------------------------------------------------------- losses
def pairwise_distances(e):
    """d(e_i, e_j) = ‖e_i - e_j‖₂; the gradient between equal embeddings is 0.  -> (B, B)"""
    return torch.cdist(e, e, compute_mode="donot_use_mm_for_euclid_dist")


def off_diagonal(distances):
    """The entries i ≠ j, the set P of Eq. 1.  (B, B) -> (B (B - 1),)"""
    B = common.check_square(distances, "distances")     # diagonal: entries 0, B + 1, 2 (B + 1), ...
    return distances.flatten()[1:].view(B - 1, B + 1)[:, :-1].flatten()


def unit_mean(distances):
    """The embedding normalization trick: d(e_i/μ, e_j/μ), μ the mean of d over i ≠ j.  -> (B, B)

    U8: μ is the batch's, as in Eq. 1.  It has a gradient, as in the authors' code (paper: open).
    """
    if len(distances) < 2:
        return distances
    return distances / off_diagonal(distances).mean().clamp_min(torch.finfo(distances.dtype).tiny)


def triplet_loss(distances, anchors, positives, negatives, margin):
    """Eq. 6: mean over T of [d(a, p) - d(a, n) + m]_+.  distances (B, B), indices (T,) -> scalar"""
    if not len(anchors):
        return distances.sum() * 0
    return F.relu(distances[anchors, positives] - distances[anchors, negatives] + margin).mean()


def contrastive_loss(distances, anchors, positives, negatives, margin):
    """Contrastive: mean over pairs of d(a, p), plus mean of [m - d(a, n)]_+.  -> scalar

    U10: the paper gives neither formula nor pairs.  Distances, not squared, have mean m = 1.
    """
    if not len(anchors):
        return distances.sum() * 0
    push = F.relu(margin - distances[anchors, negatives])
    return distances[anchors, positives].mean() + push.mean()


class MarginLoss(nn.Module):
    """Margin (Wu et al. 2017): mean of [d(a, p) - β + m]_+, plus mean of [β - d(a, n) + m]_+.

    U10: the paper gives no values.  Wu et al. have β = 1.2, learned, and m = 0.2 on unit vectors.
    """

    def __init__(self, margin=0.2, beta=1.2):
        super().__init__()
        self.margin, self.beta = margin, nn.Parameter(torch.tensor(float(beta)))

    def forward(self, distances, anchors, positives, negatives):
        if not len(anchors):
            return distances.sum() * 0
        pull = F.relu(distances[anchors, positives] - self.beta + self.margin)
        push = F.relu(self.beta - distances[anchors, negatives] + self.margin)
        return pull.mean() + push.mean()


def is_positive(labels):
    """True at the ordered pairs of different images of one class.  labels (B,) -> (B, B)"""
    return (labels[:, None] == labels[None, :]).fill_diagonal_(False)


@torch.no_grad()
def distance_weighted_negatives(e, labels, generator):
    """Wu et al. 2017: for every ordered anchor-positive pair one negative, its probability inverse
    to the density q(r) ∝ r^(d-2) (1 - r²/4)^((d-3)/2) of its distance r on the unit sphere.

    U9: the paper only names it.  r is of L2-normalized e, at least 0.5.  A negative beyond 1.4 is
    drawn only if all are, then uniformly.  The authors' float32 weights may underflow to 0, if a
    positive is much nearer than every negative.  Then their draw is uniform, ours is not.
    e (B, d), labels (B,), generator, on one device -> anchors, positives, negatives (T,)
    """
    common.check_labels(e, labels)
    anchors, positives = is_positive(labels).nonzero(as_tuple=True)
    same, d = labels[:, None] == labels[None, :], e.shape[1]            # (B, B)
    if same.all() or not len(anchors):                                  # no negatives, no positives
        return anchors[:0], positives[:0], positives[:0]
    r = pairwise_distances(F.normalize(e)).clamp_min(0.5)               # (B, B)
    log_weight = (2 - d) * r.log() + (3 - d) / 2 * torch.log1p(-(r / 2) ** 2)
    log_weight = log_weight.masked_fill(same | (r > 1.4), -torch.inf)
    no_candidate = (log_weight == -torch.inf).all(1, keepdim=True)      # (B, 1)
    log_weight = torch.where(no_candidate & ~same, 0.0, log_weight)     # uniform
    weight = log_weight.softmax(1).nan_to_num(1.0)  # nan embeddings: any draw does, loss is nan
    negatives = torch.multinomial(weight[anchors], 1, generator=generator)[:, 0]
    return anchors, positives, negatives


# ---------------------------------------------------------------------------- regularizers
class MDR(nn.Module):
    """Eq. 1-5: pulls each normalized distance of a batch to the nearest level, in units of σ*."""

    def __init__(self, levels=(-3.0, 0.0, 3.0), momentum=0.9, learnable=True):
        super().__init__()
        self.levels = nn.Parameter(torch.tensor([float(s) for s in levels]), learnable)      # (S,)
        self.momentum = momentum                                                        # γ
        for name in ("mu", "sigma", "updates"):         # μ*, σ*, how many batches they have seen
            self.register_buffer(name, torch.zeros(()))

    @torch.no_grad()
    def update(self, distances):
        """Eq. 2: μ*_t = γ μ*_{t-1} + (1 - γ) μ, and σ* likewise, without gradient.

        U6: μ* and σ* start at the first batch's values; σ is unbiased (as the authors' code).
        U7: over pairs i ≠ j, as in the paper; the authors' code includes the zero diagonal.
        """
        d = off_diagonal(distances)
        weight = 1 - self.momentum if self.updates else 1
        if d.isfinite().all():              # else the loss is nan, and whoever skips it trains on
            self.mu.lerp_(d.mean().to(self.mu), weight)
            self.sigma.lerp_(d.std().to(self.mu), weight)
            self.updates += 1

    def normalize(self, distances):
        """Eq. 3 (Eq. 1 if γ = 0): d̄ = (d - μ*)/σ*, the statistics constant.  (B, B) -> (B, B)"""
        # If all distances are equal, σ* is 0; the floor, far below any other σ*, keeps d̄ finite.
        floor = (1e-6 * self.mu).clamp_min(torch.finfo(distances.dtype).tiny)
        return (distances - self.mu) / torch.maximum(self.sigma, floor)

    def assign(self, normalized):
        """Eq. 4: index of the nearest level, the first of two equally near.  (...) -> (...) long"""
        return (normalized[..., None] - self.levels).abs().argmin(-1)

    def forward(self, distances):
        """Eq. 5: mean over i ≠ j of |d̄ - nearest level|.  (B, B) -> scalar; 0 if B < 3

        Training mode first updates μ* and σ*; eval mode does not.  E1: Eq. 5's 1/P means 1/|P|.
        """
        if len(distances) < 3:              # two images have one distance, so their σ is 0
            return distances.sum() * 0
        if self.training:
            self.update(distances)
        elif not self.updates:
            raise RuntimeError("train on a batch before eval(): MDR has no μ*, σ* yet")
        normalized = off_diagonal(self.normalize(distances))
        # One-dimensional k-medians: this mean alone moves a level towards the median of its pairs.
        # Here it and ν (U5) move the outer levels inwards, as fast as Adam's rate allows.
        # Not self.levels[...]: on several threads its gradient is another sum each time.
        return (normalized - self.levels.index_select(0, self.assign(normalized))).abs().mean()

    def state(self):
        """What the log has of every epoch."""
        return {"levels": self.levels.tolist(), "mu*": self.mu.item(), "sigma*": self.sigma.item()}

    @torch.no_grad()
    def level_shares(self, distances, pairs):
        """Fig. 6: the shares of some pairs that each level attracts; the log has their mean over
        batches.  pairs (B, B) bool -> (S,), all 0 without a pair"""
        level = self.assign(self.normalize(distances)[pairs])           # (pairs,)
        return F.one_hot(level, len(self.levels)).sum(0) / max(1, len(level))


# ---------------------------------------------------------------------------- objective
def objective(network, cfg, images, labels, generator):
    """Eq. 7: L_DML + λ L_MDR of a batch.

    images uint8 (B, 3, h, w), labels (B,), generator, on the device -> loss, {term: its value}"""
    e, mdr = network(images), network.mdr                               # (B, d)
    distances = pairwise_distances(e)                                   # (B, B)
    # U8: the paper applies the trick to L_DML alone.  Here, as in the authors' code, L_MDR sees the
    # scaled distances too, so μ* is always 1; λ = 0 is scaled too, --l2norm is not.
    if not cfg.l2norm:
        distances = unit_mean(distances)
    triplets = distance_weighted_negatives(e, labels, generator)        # 3 × (T,)
    if cfg.loss == "triplet":
        dml = triplet_loss(distances, *triplets, cfg.margin)
    elif cfg.loss == "contrastive":
        dml = contrastive_loss(distances, *triplets, cfg.margin)
    else:
        dml = network.margin_loss(distances, *triplets)
    reg = mdr(distances)                            # updates μ* and σ* with λ = 0 too
    loss = dml
    if cfg.lambda_:
        # U5: the authors' code adds ν Σ s² to Eq. 7.  The network's Adam learns and decays levels.
        loss = dml + cfg.lambda_ * reg + cfg.nu * mdr.levels.square().sum()
    return loss, {
        cfg.loss: dml, "mdr": reg, "Σs²": mdr.levels.square().sum(),
        "positive pairs by level": mdr.level_shares(distances, is_positive(labels)),
        "negative pairs by level": mdr.level_shares(distances, labels[:, None] != labels[None, :])}


# ---------------------------------------------------------------------------- sampler, transforms
def batches(labels, cfg, epoch):
    """`iterations` batches of `images_per_class` random images per class.

    U2, as in the authors' code: classes without replacement, until the batch is full or no class is
    left.  A class with fewer images gives all it has, and the last class is cut to fit.
    """
    generator = torch.Generator().manual_seed(common.random_seed(cfg.seed, epoch))
    images_of = labels.argsort(stable=True).split(labels.bincount().tolist())
    epoch_batches = []
    for _ in range(cfg.iterations):
        batch = []
        for c in torch.randperm(len(images_of), generator=generator).tolist():
            images = images_of[c]
            take = torch.randperm(len(images), generator=generator)[:cfg.images_per_class]
            batch += images[take].tolist()
            if len(batch) >= cfg.batch:
                break
        epoch_batches.append(batch[:cfg.batch])
    return epoch_batches


def transforms(cfg):
    """Return the deterministic and the random part for training, the whole transform for test.

    U3, as in the authors' code: both sides resized to 256, then crops of at least 16% of the area,
    resized to 224, all with Lanczos.  The first is Pillow's, as theirs, because it is cached;
    of the crops, on tensors, 0.6% of the values are not Pillow's, by at most 2 of 255.  U13: with
    --size 256 training crops are resized to 256, test images not cropped.
    """
    if cfg.backbone == "small":
        return common.SMALL_TRANSFORMS
    lanczos = v2.InterpolationMode.LANCZOS
    resize = common.LanczosByPillow(v2.Resize((cfg.resize, cfg.resize), lanczos))
    crop = v2.RandomResizedCrop(cfg.size, (0.16, 1), (0.75, 1.33), lanczos, antialias=True)
    return (resize,
            v2.Compose([common.on_tensors(crop), v2.RandomHorizontalFlip()]),
            v2.Compose([resize, v2.CenterCrop(cfg.size)]))


# ---------------------------------------------------------------------------- training
def set_rates(optimizer, cfg, epoch):
    """U1: × 0.2 after 40, 60 and 80% of the epochs; the authors' code has 100 epochs."""
    for group in optimizer.param_groups:
        group["lr"] = cfg.lr * 0.2 ** sum(epoch >= share * cfg.epochs for share in (0.4, 0.6, 0.8))


def evaluate(network, data, cfg):
    """Recall on test (U11: In-Shop's gallery), train (Fig. 3b), held-out classes; ‖e‖ (Fig. 4)."""
    embedded = common.embed_splits(network.embed, data, cfg)
    norm = embedded["test"][0].norm(dim=1)
    metrics = recalls(embedded, cfg.ks) | {"norm mean": norm.mean().item()}
    return metrics | ({"norm cv": (norm.std() / norm.mean()).item()} if len(norm) > 1 else {})


@common.float32_products()
def train(cfg):
    """One run, from the header to the final table -> the dict of result.json."""
    device = common.settle(cfg)
    train_prefix, augment, test_transform = transforms(cfg)
    data = common.load_dataset(cfg.dataset, cfg.data_root, train_prefix, test_transform,
                               not cfg.no_cache, cfg.val, (cfg.backbone, cfg.weights))
    common.need_pairs(data.train, cfg)
    cfg.iterations = cfg.iterations or common.iterations_for(data.train, batches, cfg, SETTINGS)
    torch.manual_seed(cfg.seed)     # the paper's figures: mean and std of 5 runs
    network = Network(cfg, len(data.train.classes))
    weights = common.load_weights(network.backbone, cfg.backbone, cfg.weights)  # paper: ImageNet
    common.to_device(network, cfg)
    optimizer = torch.optim.Adam(network.parameters(), weight_decay=1e-5,   # the paper's
                                 fused=device.type == "cuda")
    loader = common.train_loader(data.train, augment, batches, cfg)

    with common.Run("mdr", cfg, data, weights, loader(0)) as run:
        start = run.restore(network=network, optimizer=optimizer)       # epochs trained
        added = f" + λ mdr + ν Σs², λ = {cfg.lambda_:g}, ν = {cfg.nu:g}" if cfg.lambda_ else ""
        print(f"loss = {cfg.loss}{added}")
        network.eval()
        if start == 0:
            pooled = common.embed_splits(network.pool, data, cfg)
            run.pretrained = judge(l2_normalized(pooled), cfg.ks)
        for epoch in range(start, cfg.epochs):
            set_rates(optimizer, cfg, epoch)
            generator = torch.Generator(device).manual_seed(common.random_seed(cfg.seed, epoch, 1))
            network.train()
            for images, labels in run.progress(loader(epoch)):
                images, labels = (x.to(device, non_blocking=True) for x in (images, labels))
                loss, terms = objective(network, cfg, images, labels, generator)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.record(loss=loss, **terms)
            network.eval()
            due = (epoch + 1) % cfg.eval_every == 0 or epoch + 1 == cfg.epochs
            metrics = (evaluate(network, data, cfg) if due else {}) | network.mdr.state()
            run.end_epoch(epoch, lr=optimizer.param_groups[0]["lr"], **metrics)
        # U12: report the last epoch.  The authors' code also keeps the best on test.
        if run.result is None:
            embedded = common.embed_splits(network.embed, data, cfg)
            run.finish(judge(embedded, cfg.ks) | {                      # Table 3
                "R@1, l2-normalized": recalls(l2_normalized(embedded), [1])["R@1"]})
        run.final_table()
    return run.result


def parse_args(argv=None):
    """Parse the flags; a flag beats the dataset's preset, that the default -> all settings."""
    parser = common.Parser("mdr.py", __doc__)
    flags, cfg = common.settings(parser, argv, SETTINGS, PRESETS)
    cfg.margin = MARGINS[cfg.loss] if cfg.margin is None else cfg.margin
    common.refuse_idle(parser, flags, [
        ("with --lambda 0", cfg.lambda_ == 0, "levels fixed_levels momentum nu"),
        ("with --fixed-levels", cfg.fixed_levels, "nu"),
        ("with --l2norm", cfg.l2norm, "eval_l2norm")])
    return cfg


if __name__ == "__main__":
    common.main(train, parse_args)

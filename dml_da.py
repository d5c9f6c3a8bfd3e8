"""DML-DA: Deep Metric Learning with Density Adaptivity (Li, Yao, Pan, Chao & Mei, IEEE TMM 2020).

A loss on pairs or triplets concentrates each class tightly, and may overfit.  DML-DA gives each
class a target for its spread, rewards large targets, and ties their proportions to those of the
spreads before the embedding.

    python dml_da.py                            Contrastive + DA on the embedded dataset
    python dml_da.py --lambda 0                 Contrastive alone
    python dml_da.py --regularizer gor          the global orthogonal regularizer instead
    python dml_da.py --dataset path/to/folder   one sub-folder per class; half train, half test
It prints one row per epoch, then Recall@K, MAP@R and NMI of the pretrained backbone and the last
epoch (report this), and Recall@K of the epoch that is best on test (do not report this).

Equation                                          where
  1     D = ‖f_i - f_j‖²                          squared_distances
  2-4   Contrastive, Triplet, N-pair              contrastive_loss, triplet_loss, n_pair_loss
  5     D_avg, the spread of a class ("density")  class_density
  6     L_DA without correlation ("DML-DA⁻")      density_regularizer(D_avg, alpha)
  7-8   L_DA with correlation, by D⁰              density_regularizer, initial_density
  9     L = L_pair + λ L_DA                       objective
  -     Algorithm 1: θ by Adam, α_c too (U4)      train
  -     EN, GOR (Fig. 4)                          entropy_regularizer, global_orthogonal_regularizer

We know of no public code.  U1, U2, ... mark choices that the paper leaves open or that differ from
it.  docs/equations.md has them all.
Shapes: B batch (the paper's Ñ), C its classes, P pooled and d embedding width, T triplets, tuplets.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision.transforms import v2

import common
from common import number           # yours in the way?  docs/extending.md
from eval import judge, kmeans, l2_normalized, nmi, recalls  # yours in the way?  docs/extending.md

# U9: the paper gives no weights.  These were chosen on held-out training classes of `glyphs`, with
# contrastive loss.  EN's does nothing, and no higher one is shown to gain (studies/reg_weight.py).
REG_WEIGHTS = {"en": 1.0, "gor": 10.0}
# One row per setting: default, kind, help.  The defaults are Section IV-A's.  U12: its maximum of
# 30,000 iterations is 30 × 1,000 here; the last is reported.  U5: its rate is "initially set".
# Here it is constant, and the embedding layer has the same; no weight decay.
SETTINGS = {
    "dataset": ("glyphs", "NAME", "glyphs, cub, cars, sop, cub128; inshop or a folder"),
    "lambda_": (10.0, number(float, 0), "λ of Eq. 9; 0: no DA"),
    "loss": ("contrastive", ("contrastive", "triplet", "npair"), "Eq. 2, 3 or 4"),
    "margin": (1.0, number(float, 0), "m_p of Eq. 2, m_t of Eq. 3"),
    "regularizer": ("da", ("da", "da-", *REG_WEIGHTS), "Eq. 8, 6; rivals (Fig. 4)"),
    "eta": (0.5, number(float, 0), "η of Eq. 7"),
    "reg_weight": (None, number(float, 0), "weight of a rival: " + common.plain(REG_WEIGHTS)),
    "batch": (100, number(int, 2), "images"),
    "images_per_class": (10, number(int, 0), "in a batch; 0: all of them"),
    "epochs": (30, number(int, 1), ""),
    "iterations": (1000, number(int, 1), "batches per epoch (a folder: by its size)"),
    "lr": (1e-5, number(float, above=0), "learning rate"),
    "head_lr_mult": (1.0, number(float, above=0), "factor on lr for the embedding layer"),
    "dim": (128, number(int, 1), "d, the embedding's width"),
    "backbone": ("googlenet", common.backbone_name, common.BACKBONE),
    "ks": ([1, 2, 4, 8, 16, 32, 64, 128], None, "")}    # Recall@K
PRESETS = {
    "cub": {},
    "cars": dict(lr=5e-4),
    "sop": dict(lr=3e-5, images_per_class=0, ks=[1, 10, 100, 1000], eval_every=10),
    # Ours; glyphs' rate by results/glyphs.  cub128: SqueezeNet, a tenth of the iterations; its
    # best rate on held-out training classes is 3e-5, but 3e-6 for N-pair alone (docs/plans.md).
    "glyphs": dict(backbone="small", dim=64, epochs=40, iterations=10, lr=1e-4, ks=[1, 2, 4, 8]),
    "cub128": dict(backbone="squeezenet1_1", resize=146, size=128, precision="auto", eval_every=3,
                   iterations=100, lr=3e-5),
    "folder": dict(iterations=None)}            # by its size: common.iterations_for


# ---------------------------------------------------------------------------- network
class Network(nn.Module):
    """uint8 images -> embeddings f (B, d) on the unit sphere: backbone, pool5, fully connected.

    U8: the paper's GoogLeNet is Caffe's, without batch norm: --backbone googlenet_bvlc --weights
    FILE.  The preset is torchvision's, whose weights can be downloaded; it has batch norm, and
    3 × 3 convolutions in place of 5 × 5."""

    def __init__(self, cfg, classes):
        super().__init__()
        self.preprocess, self.precision = common.Preprocess(cfg.backbone), cfg.precision
        self.backbone, width = common.backbone(cfg.backbone, cfg.size)
        self.embedding = nn.Linear(width, cfg.dim)          # U5: nn.Linear's initialization
        # U2: each α_c, the target of a class, is a parameter of its own, because Adam leaves alone
        # what has no gradient: no α of a class outside the batch moves, not even by momentum.
        # U4: they start at 0.5 (the paper).  It names no optimizer for them: here the network's
        # Adam learns them at the network's rate.  They may fall below 0; log.jsonl has the least.
        self.alpha = nn.ParameterList(nn.Parameter(torch.tensor(0.5)) for _ in range(classes))
        self.register_buffer("D0", torch.zeros(classes))    # D⁰_c of Eq. 7

    def train(self, mode=True):
        """U8: batch norm, not in the paper's, stays in eval mode; its affine parameters learn."""
        return common.freeze_batch_norm(super().train(mode))

    def pool(self, images):
        return common.features(self.backbone, self.preprocess(images), self.precision)  # (B, P)

    def forward(self, images):
        return F.normalize(self.embedding(self.pool(images)))           # f (B, d)

    embed = forward


# ---------------------------------------------------------------------------- losses
def squared_distances(f):
    """Eq. 1: D = ‖f_i - f_j‖²; for equal rows both value and gradient are 0.  -> (B, B)"""
    return torch.cdist(f, f, compute_mode="donot_use_mm_for_euclid_dist").square()


def same_class(f, labels):
    """True at the pairs of one class, an image with itself included.  (B, d), (B,) -> (B, B)"""
    common.check_labels(f, labels)
    return labels[:, None] == labels[None, :]


def positive_pairs(labels):
    """All ordered pairs of different images of one class.  (B,) -> anchors (T,), positives (T,)"""
    return (labels[:, None] == labels[None, :]).fill_diagonal_(False).nonzero(as_tuple=True)


def contrastive_loss(f, labels, margin):
    """Eq. 2: (Σ_positive D + Σ_negative [m_p - D]_+) / B over unordered pairs.  -> scalar

    U1: Eq. 2-4 print sums, and the paper leaves open whether pairs are ordered.  Here the sums are
    divided by B, the number of images.  Why: n images of a class have Σ_{i<j} D = n² D_avg, so with
    10 × 10 images the positive part is 10 mean_c D_avg.  Once α has settled by Eq. 6, λ L_DA
    has the gradient of -λ mean_c D_avg.  The two balance at λ = 10, on Fig. 6's plateau.  A mean
    over pairs would let λ L_DA dominate, a plain sum drown it."""
    D, same = squared_distances(f), same_class(f, labels)               # (B, B)
    return torch.where(same, D, F.relu(margin - D)).sum() / 2 / len(f)  # half: each pair twice


def triplet_loss(f, labels, margin):
    """Eq. 3: Σ_T [m_t + D(a, p) - D(a, n)]_+ / B (U1).

    U6: the paper does not say which triplets.  Here each ordered anchor-positive pair has one, with
    the nearest semi-hard negative (Schroff et al. 2015), or else the nearest negative of all.
    f (B, d), labels (B,) -> scalar; 0 if the batch has one class."""
    D, same = squared_distances(f), same_class(f, labels)               # (B, B)
    if same.all():
        return f.sum() * 0
    anchors, positives = positive_pairs(labels)
    D_ap = D[anchors, positives]                                        # (T,)
    with torch.no_grad():
        D_an = D.masked_fill(same, torch.inf)[anchors]                  # (T, B)
        semi_hard = D_an.masked_fill(D_an <= D_ap[:, None], torch.inf)
        near, farther = D_an.min(1), semi_hard.min(1)
        usable = farther.values < D_ap + margin                         # beyond, the loss is 0
        negatives = torch.where(usable, farther.indices, near.indices)
    return F.relu(margin + D_ap - D[anchors, negatives]).sum() / len(f)


def draw_tuplets(labels, generator):
    """U6: for each ordered anchor-positive pair one random image of every other class in the batch.

    labels (B,), generator, on one device -> anchors (T,), positives (T,), negatives (T, C - 1)
    """
    anchors, positives = positive_pairs(labels)
    drawn, classes = [], labels.unique()
    for c in classes:
        images = (labels == c).nonzero()[:, 0]
        which = torch.randint(len(images), anchors.shape, generator=generator, device=labels.device)
        drawn.append(images[which])                                     # (T,)
    drawn = torch.stack(drawn, 1)                                       # (T, C)
    other = labels[drawn] != labels[anchors, None]
    return anchors, positives, drawn[other].view(len(anchors), len(classes) - 1)


def n_pair_loss(f, labels, generator):
    """Eq. 4: Σ log(1 + Σ_c exp(f_a·f_n(c) - f_a·f_p)) / B, n(c) an example of class c (U1).

    f (B, d), labels (B,), generator -> scalar; 0 with one class or no positive pair.
    """
    common.check_labels(f, labels)
    anchors, positives, negatives = draw_tuplets(labels, generator)
    if not negatives.numel():
        return f.sum() * 0
    s = f @ f.T                                                         # (B, B)
    exponents = s[anchors[:, None], negatives] - s[anchors, positives][:, None]     # (T, C - 1)
    return F.softplus(exponents.logsumexp(1)).sum() / len(f)            # log(1 + e^x), x = log Σ


# ---------------------------------------------------------------------------- regularizers
def class_density(f, labels):
    """Eq. 5: D_avg(S_c) = mean ‖f_i - μ_c‖² over a class's images, μ_c their plain mean; on the
    sphere D_avg = 1 - ‖μ_c‖² <= 1.

    f (B, d), labels (B,) -> classes (C,), ascending, and D_avg (C,)"""
    common.check_labels(f, labels)
    f = f.to(torch.promote_types(f.dtype, torch.float32))           # sums of 16 bits would stall
    classes, inverse, n = labels.unique(return_inverse=True, return_counts=True)
    # Sums per class, because a (C, B) matrix takes gigabytes on SOP.
    mu = f.new_zeros(len(n), f.shape[1]).index_add(0, inverse, f) / n[:, None]      # (C, d)
    spread = (f - mu[inverse]).square().sum(1)                                      # (B,)
    return classes, f.new_zeros(len(n)).index_add(0, inverse, spread) / n


def initial_density(features, labels):
    """D⁰ of Eq. 7: Eq. 5 on the pooled features.  (n, P), labels (n,) -> (all training classes,)

    U3: the paper does not say of which weights and images.  Here: pretrained, all training images,
    not augmented, features unnormalized.  D⁰ is divided by its mean over classes.  Otherwise the
    strength of Eq. 8's penalty (not its minimizers) would depend on the scale of the features."""
    classes, D0 = class_density(features, labels)
    common.check_classes(classes)             # D0[c] is that of class c
    return D0 / D0.mean().clamp_min(torch.finfo(D0.dtype).tiny)


def density_regularizer(D_avg, alpha, D0=None, eta=0.5):
    """Eq. 6: 1/C Σ_c (D_avg - α_c)² - 1/C Σ_c α_c, and given D0, Eq. 8's correlation term
    + 1/C² Σ_{ci,cj} ((D⁰_cj)^η α_ci - (D⁰_ci)^η α_cj)².  D_avg, alpha, D0 (C,) -> scalar

    U2: Eq. 6-8 are printed for all C classes, and Section IV-A computes D_avg in a mini-batch.
    Here C, too, is the batch's.
    At α* = D_avg + ½, Eq. 6's optimum, ∂L_DA/∂D_avg = -1 / C: settled targets push every class
    outwards equally.  A fixed α balances Eq. 2's positive pairs (10 × 10, U1) at D_avg = α - 5/λ.
    Eq. 8's term is 0 if Eq. 7 holds.  It is not the squared violation of Eq. 7's ratio, because it
    also shrinks with α."""
    common.check_vectors(D_avg=D_avg, alpha=alpha, D0=D0)
    loss = (D_avg - alpha).square().mean() - alpha.mean()
    if D0 is not None:
        cross = alpha[:, None] * (D0 ** eta)[None, :]                   # (C, C)
        loss = loss + (cross - cross.T).square().mean()
    return loss


def entropy_regularizer(f):
    """EN: minus the entropy of softmax(f), mean over the batch.  (B, d) -> scalar

    U9: no formula in the paper.  This EN is lowest if f = ±(1, ..., 1)/√d, so it spreads no class.
    """
    return (F.softmax(f, 1) * F.log_softmax(f, 1)).sum(1).mean()


def global_orthogonal_regularizer(f, labels):
    """GOR (Zhang et al. 2017, U9): M1² + [M2 - 1/d]_+, M1 and M2 the mean and the mean square of
    f_i·f_j over pairs of different classes.  f (B, d), labels (B,) -> scalar; 0 with one class
    """
    different = ~same_class(f, labels)                                  # (B, B)
    pairs = different.sum().clamp(min=1).to(f.dtype)
    s = torch.where(different, f @ f.T, 0)                              # (B, B)
    M1, M2 = s.sum() / pairs, s.square().sum() / pairs
    return M1 ** 2 + F.relu(M2 - 1 / f.shape[1])


# ---------------------------------------------------------------------------- objective
def objective(network, cfg, images, labels, generator):
    """Eq. 9: L_pair + λ L_DA of a batch, or another regularizer with its weight.

    images uint8 (B, 3, h, w), labels (B,), generator, on the device -> loss, {term: its value}"""
    f = network(images)                                                 # (B, d)
    if cfg.loss == "contrastive":
        pair = contrastive_loss(f, labels, cfg.margin)
    elif cfg.loss == "triplet":
        pair = triplet_loss(f, labels, cfg.margin)
    else:
        pair = n_pair_loss(f, labels, generator)
    if cfg.regularizer == "en":
        reg = entropy_regularizer(f)
        return pair + cfg.reg_weight * reg, {cfg.loss: pair, "en": reg}
    if cfg.regularizer == "gor":
        reg = global_orthogonal_regularizer(f, labels)
        return pair + cfg.reg_weight * reg, {cfg.loss: pair, "gor": reg}
    classes, D_avg = class_density(f, labels)                           # (C,), (C,)
    alpha = torch.stack([network.alpha[c] for c in classes.tolist()])   # (C,)
    D0 = network.D0[classes] if cfg.regularizer == "da" else None
    reg = density_regularizer(D_avg, alpha, D0, cfg.eta)
    return pair + cfg.lambda_ * reg, {cfg.loss: pair, cfg.regularizer: reg, "alpha": alpha.mean()}


# ---------------------------------------------------------------------------- sampler, transforms
def batches(labels, cfg, epoch):
    """`iterations` batches of n = `images_per_class` random images (0: all) of random classes.

    Classes are drawn without replacement until the batch is full; a smaller class gives all it has.
    U11: with n = 0 (SOP) a class that does not fit ends the batch, a few images short of 100, so
    that no remnant of it trains its α.  With n > 0 the last class may be cut.
    """
    generator = torch.Generator().manual_seed(common.random_seed(cfg.seed, epoch))
    n = cfg.images_per_class
    images_of = labels.argsort(stable=True).split(labels.bincount().tolist())
    epoch_batches = []
    for _ in range(cfg.iterations):
        batch = []
        for c in torch.randperm(len(images_of), generator=generator).tolist():
            images = images_of[c]
            take = torch.randperm(len(images), generator=generator)[:n or None]
            if batch and not n and len(batch) + len(take) > cfg.batch:
                break
            batch += images[take].tolist()
            if len(batch) >= cfg.batch:
                break
        epoch_batches.append(batch[:cfg.batch])
    return epoch_batches


def transforms(cfg):
    """Return the deterministic and the random part for training, the whole transform for test.

    U7: the paper does not say.  As in Oh Song et al. 2016: both sides resized (to 256), random crop
    (of 224) and mirror in training, center crop at test.  Tensors are resized, not PIL images: the
    pixels are at most 2 of 255 from Pillow's.
    """
    if cfg.backbone == "small":
        return common.SMALL_TRANSFORMS
    resize = v2.Resize((cfg.resize, cfg.resize))
    return (resize,
            v2.Compose([v2.RandomCrop(cfg.size), v2.RandomHorizontalFlip()]),
            v2.Compose([resize, v2.CenterCrop(cfg.size)]))


# ---------------------------------------------------------------------------- training
def evaluate(network, data, cfg):
    """Recall on test, train (Fig. 1d), held-out classes; NMI (U10); D_avg, α of training classes"""
    embedded = common.embed_splits(network.embed, data, cfg)
    metrics = recalls(embedded, cfg.ks)
    if data.gallery is None:
        x, labels = embedded["test"]
        metrics["NMI"] = nmi(kmeans(x, len(data.test.classes), seed=0), labels)
    f, labels = embedded["train_plain"]
    _, D_avg = class_density(f, labels.to(f.device))
    for name, values in (("D_avg", D_avg), ("alpha", torch.stack([*network.alpha]))):
        metrics |= {f"{name} mean": values.mean().item(), f"{name} min": values.min().item(),
                    f"{name} max": values.max().item()}
    return metrics


@common.float32_products()
def train(cfg):
    """One run, from the header to the final table -> the dict of result.json."""
    device = common.settle(cfg)
    train_prefix, augment, test_transform = transforms(cfg)
    data = common.load_dataset(cfg.dataset, cfg.data_root, train_prefix, test_transform,
                               not cfg.no_cache, cfg.val, (cfg.backbone, cfg.weights))
    common.need_pairs(data.train, cfg)
    cfg.iterations = cfg.iterations or common.iterations_for(data.train, batches, cfg, SETTINGS)
    torch.manual_seed(cfg.seed)
    network = Network(cfg, len(data.train.classes))
    weights = common.load_weights(network.backbone, cfg.backbone, cfg.weights)  # paper: ImageNet
    common.to_device(network, cfg)
    optimizer = torch.optim.Adam([          # Algorithm 1, lines 8 and 9; default betas 0.9, 0.999
        {"params": network.backbone.parameters()},
        {"params": network.embedding.parameters(), "lr": cfg.lr * cfg.head_lr_mult},
        {"params": network.alpha.parameters()}], lr=cfg.lr, fused=device.type == "cuda")
    loader = common.train_loader(data.train, augment, batches, cfg)

    with common.Run("dml_da", cfg, data, weights, loader(0)) as run:
        start = run.restore(network=network, optimizer=optimizer)       # epochs trained
        symbol, weight = "λ", cfg.lambda_
        if cfg.regularizer in REG_WEIGHTS:
            symbol, weight = "reg-weight", cfg.reg_weight
        print(f"loss = {cfg.loss} + {symbol} {cfg.regularizer}, {symbol} = {weight:g}")
        network.eval()
        if start == 0:
            pooled = common.embed_splits(network.pool, data, cfg)
            run.pretrained = judge(l2_normalized(pooled), cfg.ks)
            if cfg.regularizer == "da":
                features, labels = pooled["train_plain"]
                network.D0.copy_(initial_density(features, labels.to(device)))
        for epoch in range(start, cfg.epochs):
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
            metrics = evaluate(network, data, cfg) if due else {}
            run.end_epoch(epoch, lr=optimizer.param_groups[0]["lr"], **metrics)
        if run.result is None:                  # U12: report the last epoch
            run.finish(judge(common.embed_splits(network.embed, data, cfg), cfg.ks))
        run.final_table()
    return run.result


def parse_args(argv=None):
    """Parse the flags; a flag beats the dataset's preset, that the default -> all settings."""
    parser = common.Parser("dml_da.py", __doc__)
    flags, cfg = common.settings(parser, argv, SETTINGS, PRESETS)
    if cfg.reg_weight is None:
        cfg.reg_weight = REG_WEIGHTS.get(cfg.regularizer)
    if cfg.images_per_class == 1:
        parser.error("argument --images-per-class: 1 leaves no positive pair")
    other = cfg.regularizer in REG_WEIGHTS
    common.refuse_idle(parser, flags, [
        ("with --loss npair", cfg.loss == "npair", "margin"),
        (f"with --regularizer {cfg.regularizer}", other, "lambda_"),
        (f"with --regularizer {cfg.regularizer}", not other, "reg_weight"),
        (f"with --regularizer {cfg.regularizer}", cfg.regularizer != "da", "eta"),
        ("with --lambda 0", not other and cfg.lambda_ == 0, "regularizer eta")])
    return cfg


if __name__ == "__main__":
    common.main(train, parse_args)

"""JRD: Distance Metric Learning with Joint Representation Diversification (Chu et al., ICML 2020).

AMSoftmax, a classification loss, pulls each image to the proxy of its class.  JRD makes the classes
dissimilar in the joint distribution of x⁻ (pooled features), x (the embedding) and x⁺ (cosines to
all proxies): it penalizes pairs of different classes that are alike in all three at once.

    python jrd.py                               the embedded dataset, 40 to 90 s on two cores
    python jrd.py --alpha 0                     the same with AMSoftmax alone
    python jrd.py --dataset path/to/folder      one sub-folder per class; half train, half test
It prints one row per epoch, then Recall@K, MAP@R and NMI of the pretrained backbone and the last
epoch (report this), and Recall@K of the epoch that is best on test (do not report this).

Equation                                        where
  1-3   λ and d_H of ε_u <= ε_s + d_H + λ (E6)  eval.generalization_bound
  4     intra-class penalty of Fig. 2           intra_class
  5     open-set goal d(same) < d(different)    eval.recall_at_k
  6-8   S_JRS = <C(P), C(Q)>, its estimate      class_similarities, joint_kernel
  9     representations x⁻, x, x⁺               Network
  10-11 L_JRS / N_pairs and the objective       jrs, objective
  12    AMSoftmax                               amsoftmax
  13    Prop. 1: for independent layers (E3)    tests/test_jrd.py, by quadrature
  14-16 MMD², JMMD, JIntra                      jmmd, jintra
  5.1   Gaussian mixture; Table 4's kernels     gaussian_kernel, laplace_kernel, polynomial_kernel,
                                                mgf_kernel

U1, U2, ... mark choices that the paper leaves open or its authors' code makes otherwise; E1 and
E3 to E6 are errata.  docs/equations.md has them all.
Shapes: B batch (the paper's M), D pooling width, d embedding width, C training classes (in the
regularizers the batch's); C(P), C_I are the paper's covariance operators.
"""
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision.transforms import v2

import common
from common import number           # yours in the way?  docs/extending.md
from eval import (                      # yours in the way?  docs/extending.md
    confidence_interval, generalization_bound, judge, l2_normalized, recall_at_k, recalls,
    stratified_parts)

# Table 2: which representations are joined, 0 x⁻, 1 x, 2 x⁺.  "-c" drops x⁺, "-pooling" drops x⁻.
VARIANTS = {"jrd": (0, 1, 2), "mrd": (1,), "jrd-c": (0, 1), "jrd-pooling": (1, 2)}
# One row per setting: default, kind, help.  The defaults are Section 5.1's; it chose α, m and batch
# by 10-fold cross-validation.
SETTINGS = {
    "dataset": ("glyphs", "NAME", "glyphs, cub, cars, sop; inshop or a folder with CUB's preset; "
                "cub128: CUB at 128 × 128"),
    "alpha": (1.0, number(float, 0), "weight α of the regularizer, Eq. 11; the paper has 0.1 for "
              "jmmd (Table 3), 1e-3 for the kernels polynomial and mgf (Table 4)"),
    "s": (20.0, number(float, above=0), "scale of the plain loss, Eq. 12"),
    "m": (0.1, number(float, 0, 1), "margin of the plain loss, Eq. 12"),
    "regularizer": ("jrs", ("jrs", "jmmd", "jintra", "intra"), "Eq. 10; rivals: Eq. 15, 16, 4"),
    "variant": ("jrd", tuple(VARIANTS), "of, in this order: x⁻, x, x⁺; x; x⁻, x; x, x⁺ (Table 2)"),
    "kernel": ("gaussian", ("gaussian", "laplace", "polynomial", "mgf"), "of each layer (Table 4; "
               "U14: the paper does not say of which)"),
    "p": (2, number(int, 1, 100), "degree of the polynomial kernel"),
    "K": (3, number(int, 1, 100), "Gaussians in the kernels of x⁻ and x"),
    "K_prime": (1, number(int, 1, 100), "Gaussians in the kernel of x⁺"),
    "batch": (100, number(int, 2), "images"),
    "epochs": (50, number(int, 1), ""),
    "lr": (1e-4, number(float, above=0), "learning rate of the model"),
    "lr_proxies": (1e-2, number(float, above=0), "learning rate of the proxies"),
    "drop_every": (20, number(int, 1), "epochs between divisions of both rates by 10"),
    "dim": (512, number(int, 1), "d, the embedding's width"),
    "backbone": ("bn_inception", common.backbone_name, common.BACKBONE),
    "ks": ([1, 2, 4, 8], None, "")}                     # Table 1: Recall@K
PRESETS = {
    "cub": {},
    "cars": dict(m=0.05, batch=50),
    "sop": dict(alpha=0.4, batch=120, epochs=80, lr_proxies=1e-1, drop_every=40,
                ks=[1, 10, 100], eval_every=10),                    # ours: eval_every
    # Ours: CUB in miniature; the learning rates by results/glyphs.
    "glyphs": dict(backbone="small", dim=64, lr=3e-4, lr_proxies=3e-2),
    # Ours: CUB at 128 × 128 with SqueezeNet.  The model's rate was chosen with AMSoftmax alone,
    # on held-out training classes (results/cub128); the proxies have 100 times it, as in the paper.
    "cub128": dict(backbone="squeezenet1_1", resize=146, size=128, precision="auto", eval_every=5,
                   lr=1e-3, lr_proxies=1e-1),
    "folder": {}}


# ---------------------------------------------------------------------------- network
class Network(nn.Module):
    """Eq. 9 and Fig. 3: uint8 images z -> x⁻ (B, D), x (B, d) and x⁺ (B, C)."""

    def __init__(self, cfg, classes):
        super().__init__()
        self.preprocess, self.precision = common.Preprocess(cfg.backbone), cfg.precision
        self.backbone, width = common.backbone(cfg.backbone, cfg.size)
        self.embedding = nn.Linear(width, cfg.dim)                      # W, b of Eq. 9
        # U4: the proxies start Kaiming-uniform over (d, C), as in the authors' code.  The embedding
        # layer keeps nn.Linear's initialization.
        self.proxies = nn.Parameter(torch.empty(cfg.dim, classes))      # w_1 ... w_C, (d, C)
        nn.init.kaiming_uniform_(self.proxies, a=5 ** 0.5)

    def train(self, mode=True):
        """U10: the paper freezes batch norm.  Here it stays in eval mode, but its affine parameters
        learn, as in the authors' code."""
        return common.freeze_batch_norm(super().train(mode))

    def pool(self, images):
        return common.features(self.backbone, self.preprocess(images), self.precision)  # x⁻ (B, D)

    def forward(self, images):
        x_minus = self.pool(images)                                     # (B, D)
        x = F.normalize(self.embedding(x_minus))                        # (B, d)
        x_plus = x @ F.normalize(self.proxies, dim=0)                   # (B, C)
        return x_minus, x, x_plus

    def embed(self, images):
        return F.normalize(self.embedding(self.pool(images)))           # x (B, d)


# ---------------------------------------------------------------------------- losses
def amsoftmax(cos, labels, s, m):
    """Eq. 12: cross-entropy of s·cos, with the true class's cosine less m.  cos (B, C) -> scalar"""
    true = F.one_hot(labels, cos.shape[1]).bool()                       # (B, C)
    return F.cross_entropy(s * torch.where(true, cos - m, cos), labels)


# ---------------------------------------------------------------------------- regularizers
def squared_distances(x):
    """‖x_i - x_j‖²; for equal rows both value and gradient are 0.  (B, d) -> (B, B)"""
    return torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square()


def mean_bandwidth(distances):
    """Mean over ordered pairs i ≠ j (the diagonal is 0), detached.  (B, B) -> scalar > 0

    U2: the paper computes τ "by averages of ℓ²-distances in the exponent part".  The batch's pairs
    i ≠ j and the detached gradient are the authors' code's choices.  Laplace's σ is by analogy.
    If all rows are equal (or B = 1), a tiny floor gives k = exp(-0) = 1 instead of exp(0/0)."""
    pairs = max(1, len(distances) * (len(distances) - 1))
    # The gradient takes the detached τ for a constant.  So a step also spreads the batch and raises
    # τ, and the regularizer's value may rise (studies/jrs_bandwidths.md).
    return (distances.detach().sum() / pairs).clamp_min(torch.finfo(distances.dtype).tiny ** 0.5)


def gaussian_kernel(x, K):
    """5.1: k = 1/K Σ_i exp(-‖x - x'‖²/σ_i²), σ_i² = τ 2^(i - ⌊K/2⌋), 0 <= i < K.  (B, d) -> (B, B)

    K = 3 gives the paper's {0.5τ, τ, 2τ}, K = 1 its {τ}.  Other K (Fig. 6): as the authors' code.
    """
    d2 = squared_distances(x)
    tau = mean_bandwidth(d2)
    return sum(torch.exp(-d2 / (tau * 2.0 ** (i - K // 2))) for i in range(K)) / K


def laplace_kernel(x):
    """Table 4: k = exp(-‖x - x'‖₁/σ), σ the mean l1 distance.  (B, d) -> (B, B)"""
    d1 = torch.cdist(x, x, p=1)
    return torch.exp(-d1 / mean_bandwidth(d1))


def polynomial_kernel(x, p):
    """Table 4: k = (x·x' + 1)^p.  (B, d) -> (B, B)"""
    return (x @ x.T + 1) ** p


def mgf_kernel(x):
    """Table 4: k = exp(x·x'), whose mean embedding is the moment-generating function.  -> (B, B)"""
    return torch.exp(x @ x.T)


def joint_kernel(reps, kernels):
    """Eq. 8: the Gram matrix Π_l k^l(x_i^l, x_j^l).  L reps (B, d_l), L kernels -> (B, B)"""
    gram = 1.0
    for x, kernel in zip(reps, kernels, strict=True):
        gram = gram * kernel(x)
    return gram


def kernels_of(cfg):
    """5.1 and Table 4 (its Gaussian is a single one, --K 1): the kernels of x⁻, x and x⁺."""
    gaussian, polynomial = partial(gaussian_kernel, K=cfg.K), partial(polynomial_kernel, p=cfg.p)
    return {"gaussian": (gaussian, gaussian, partial(gaussian_kernel, K=cfg.K_prime)),
            "laplace": (laplace_kernel,) * 3,
            "polynomial": (polynomial,) * 3,
            "mgf": (mgf_kernel,) * 3}[cfg.kernel]


def jrs(gram, labels):
    """Eq. 10-11: L_JRS / N_pairs, the joint kernel's mean over ordered pairs of different classes.

    Eq. 10's n^I n^J cancels Eq. 8's 1/(n^I n^J), so it needs no class_similarities.  U12: the paper
    leaves open whether (i, j) and (j, i) are two pairs.  Here they are, in L_JRS and N_pairs; as
    one, the mean is the same.
    gram (B, B), labels (B,) -> scalar; 0 if the batch has one class.
    """
    common.check_square(gram, "gram, the kernel matrix,", labels)
    different = labels[:, None] != labels[None, :]                      # (B, B)
    return gram[different].mean() if different.any() else (gram * 0).sum()


def class_similarities(gram, labels):
    """Eq. 8 for all pairs of classes: S_IJ = <C_I, C_J>, the mean of gram over I × J.

    C are the classes of the batch, n^I the size of class I in it, not in the training set (E4).
    gram (B, B), labels (B,) -> S (C, C), weights (C, C): n^I n^J, but 0 for I = J
    """
    common.check_square(gram, "gram, the kernel matrix,", labels)
    member = F.one_hot(labels.unique(return_inverse=True)[1]).to(gram)  # (B, C)
    n = member.sum(0)                                                   # (C,)
    return member.T @ gram @ member / n.outer(n), n.outer(n).fill_diagonal_(0)


def jmmd(gram, labels):
    """Eq. 14-15, weighted as Eq. 10-11: minus the mean of ‖C_I - C_J‖² over I ≠ J.

    E1: Eq. 15 prints ‖C(P), C(Q)‖ and means the norm of the difference.  U6: Eq. 15 and 16 are
    printed without weights and squares.  Here they have Eq. 10's weights and Eq. 14's squares.
    So jmmd = jintra + 2 jrs.
    gram (B, B), labels (B,) -> scalar <= 0; 0 if the batch has one class.
    """
    S, weight = class_similarities(gram, labels)                        # (C, C)
    squared_norm = S.diagonal()                                         # ‖C_I‖², (C,)
    mmd2 = squared_norm[:, None] + squared_norm - 2 * S                 # Eq. 14, (C, C)
    return -(weight * mmd2).sum() / weight.sum().clamp(min=1)


def jintra(gram, labels):
    """Eq. 16, weighted as jmmd (U6): minus the mean of ‖C_I‖² + ‖C_J‖² over I ≠ J.

    ‖C_I‖² has the pairs i = j, so classes with one example count.
    gram (B, B), labels (B,) -> scalar <= 0; 0 if the batch has one class.
    """
    S, weight = class_similarities(gram, labels)                        # (C, C)
    squared_norm = S.diagonal()                                         # (C,)
    return -(weight * (squared_norm[:, None] + squared_norm)).sum() / weight.sum().clamp(min=1)


def intra_class(x, labels):
    """Eq. 4's penalty: -Σ_I 1/N_pairs^I Σ_{i≠j∈I} exp(-½‖x_i - x_j‖²), over the batch's classes.

    The paper's sum has i = j too, which adds a constant.  U12: N_pairs^I and the sum count ordered
    pairs; a class with one image has none.  x (B, d), labels (B,) -> scalar in [-classes, 0]
    """
    common.check_labels(x, labels)
    member = F.one_hot(labels.unique(return_inverse=True)[1]).to(x)     # (B, C)
    n = member.sum(0)                                                   # (C,)
    kernel = torch.exp(-0.5 * squared_distances(x)) * (1 - torch.eye(len(x)).to(x))     # (B, B)
    within = (member.T @ kernel @ member).diagonal()                    # Σ_{i≠j∈I}, (C,)
    return -(within / (n * (n - 1)).clamp(min=1)).sum()


def regularizer(cfg, x_minus, x, x_plus, labels):
    """What α multiplies: the JRS regularizer, or one that the paper compares it with."""
    if cfg.regularizer == "intra":
        return intra_class(x, labels)
    if cfg.kernel in ("polynomial", "mgf"):
        # U8: both kernels see x⁻ L2-normalized.  Otherwise x⁻·x⁻' is mostly above 88 on glyphs;
        # there float32's exp overflows, and the polynomial kernel dominates the loss.
        x_minus = F.normalize(x_minus)
    layers, kernels, reps = VARIANTS[cfg.variant], kernels_of(cfg), (x_minus, x, x_plus)
    gram = joint_kernel([reps[i] for i in layers], [kernels[i] for i in layers])        # (B, B)
    return {"jrs": jrs, "jmmd": jmmd, "jintra": jintra}[cfg.regularizer](gram, labels)


# ---------------------------------------------------------------------------- objective
def objective(network, cfg, images, labels):
    """Eq. 11: L_AMS + α L_JRS / N_pairs of a batch.

    images uint8 (B, 3, h, w), labels (B,), on the device -> loss, {term: its value}
    """
    x_minus, x, x_plus = network(images)
    ams = amsoftmax(x_plus, labels, cfg.s, cfg.m)
    reg = regularizer(cfg, x_minus, x, x_plus, labels)
    return ams + cfg.alpha * reg, {"amsoftmax": ams, cfg.regularizer: reg}


# ---------------------------------------------------------------------------- sampler, transforms
def batches(labels, cfg, epoch):
    """Every image once per epoch, shuffled, the smaller last batch too (U9: the authors' code)."""
    generator = torch.Generator().manual_seed(common.random_seed(cfg.seed, epoch))
    order = torch.randperm(len(labels), generator=generator)
    return [batch.tolist() for batch in order.split(cfg.batch)]


def transforms(cfg):
    """Return the deterministic and the random part for training, the whole transform for test.

    U3: the paper says random crop (of 224 × 224) and mirror, single center crop at test.  As in the
    authors' code, crops have torchvision's scale and ratio, and test images are resized by their
    shorter side (to 256).  Theirs resize with Pillow, here tensors: at most 2 of 255 beside it.
    """
    if cfg.backbone == "small":
        return common.SMALL_TRANSFORMS
    crop = v2.RandomResizedCrop(cfg.size, antialias=True)
    return (None,
            v2.Compose([crop, v2.RandomHorizontalFlip()]),
            v2.Compose([v2.Resize(cfg.resize, antialias=True), v2.CenterCrop(cfg.size)]))


# ---------------------------------------------------------------------------- training
def set_rates(optimizer, cfg, epoch):
    """Both rates × 0.1 every `drop_every` epochs.  U5: after 19 and 39 epochs (SOP: 39 and 79), as
    in the authors' code; the paper's "every 20" would be one epoch later."""
    for group, lr in zip(optimizer.param_groups, (cfg.lr, cfg.lr_proxies), strict=True):
        group["lr"] = lr * 0.1 ** ((epoch + 1) // cfg.drop_every)


def evaluate(network, data, cfg):
    """Recall on test, and on held-out classes where there are some; seen R@1 at the end alone."""
    return recalls(common.embed_splits(network.embed, data, cfg, "test", "gallery", "val"), cfg.ks)


def tables_2_and_3(embedded, data, cfg):
    """R@K within ten parts of the test images (Table 2), λ and d_H of ten splits (Table 3): mean
    and half-width of 95% intervals (U13).  What the images are too few for is left out.

    E5: λ is the sum of Eq. 3.  The λ of the paper's Table 3 is below one of its two terms."""
    (x, labels), tables = embedded["test"], {}
    sizes = labels.unique(return_counts=True)[1]                        # (classes,)
    train_sizes = embedded["train_plain"][1].unique(return_counts=True)[1]
    if data.gallery is None and sizes.min() >= 20:                      # two of a class in each
        recall = [recall_at_k(x[part], labels[part], cfg.ks) for part in stratified_parts(labels)]
        tables["ten parts"] = {f"R@{k}": confidence_interval(r[k] for r in recall) for k in cfg.ks}
    if not data.shared() and min(sizes.max(), train_sizes.max()) >= 2:   # Eq. 1 needs new classes
        bounds = [generalization_bound(*embedded["train_plain"], x, labels, seed)
                  for seed in range(10)]
        tables["lambda"], tables["d_H"] = map(confidence_interval, zip(*bounds))
    return tables


def print_tables_2_and_3(result):
    """Print the 95% intervals of a run's last epoch: recalls in %, as the table above them, λ and
    d_H as the paper's Table 3."""
    for name, (mean, half) in result.get("ten parts", {}).items():
        print(f"{name} in ten parts, 95%: [{100 * (mean - half):.1f}, {100 * (mean + half):.1f}]")
    for name, key in (("λ", "lambda"), ("d_H", "d_H")):
        if key in result:
            mean, half = result[key]
            print(f"{name} by 1-NN, 95%: [{mean - half:.3f}, {mean + half:.3f}]")


@common.float32_products()
def train(cfg):
    """One run, from the header to the final table -> the dict of result.json."""
    device = common.settle(cfg)
    train_prefix, augment, test_transform = transforms(cfg)
    data = common.load_dataset(cfg.dataset, cfg.data_root, train_prefix, test_transform,
                               not cfg.no_cache, cfg.val, (cfg.backbone, cfg.weights))
    torch.manual_seed(cfg.seed)     # U7: no number of seeds is given; run 3 or more, mean ± std
    network = Network(cfg, len(data.train.classes))
    weights = common.load_weights(network.backbone, cfg.backbone, cfg.weights)  # paper: ImageNet
    common.to_device(network, cfg)
    model = [*network.backbone.parameters(), *network.embedding.parameters()]
    # U1: eps and weight decay are those of the authors' code; the paper only says Adam.
    optimizer = torch.optim.Adam([{"params": model}, {"params": [network.proxies]}],
                                 eps=0.01, weight_decay=1e-4, fused=device.type == "cuda")
    loader = common.train_loader(data.train, augment, batches, cfg)

    with common.Run("jrd", cfg, data, weights, loader(0)) as run:
        start = run.restore(network=network, optimizer=optimizer)       # epochs trained
        print(f"loss = amsoftmax + α {cfg.regularizer}, α = {cfg.alpha:g}")
        network.eval()
        if start == 0:
            pooled = common.embed_splits(network.pool, data, cfg)
            run.pretrained = judge(l2_normalized(pooled), cfg.ks)
        for epoch in range(start, cfg.epochs):
            set_rates(optimizer, cfg, epoch)
            network.train()
            for images, labels in run.progress(loader(epoch)):
                images, labels = (x.to(device, non_blocking=True) for x in (images, labels))
                loss, terms = objective(network, cfg, images, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.record(loss=loss, **terms)
            network.eval()
            due = (epoch + 1) % cfg.eval_every == 0 or epoch + 1 == cfg.epochs
            metrics = evaluate(network, data, cfg) if due else {}
            run.end_epoch(epoch, lr=optimizer.param_groups[0]["lr"], **metrics)
        # U11: report the last epoch.  The authors' code evaluates each and selects none, too.
        if run.result is None:
            embedded = common.embed_splits(network.embed, data, cfg)
            run.finish(judge(embedded, cfg.ks) | tables_2_and_3(embedded, data, cfg))
        run.final_table()
        if cfg.dataset in PRESETS and cfg.dataset != "folder":  # one's own photos may be too few
            print_tables_2_and_3(run.result["last epoch"])
    return run.result


def parse_args(argv=None):
    """Parse the flags; a flag beats the dataset's preset, that the default -> all settings."""
    parser = common.Parser("jrd.py", __doc__)
    flags, cfg = common.settings(parser, argv, SETTINGS, PRESETS)
    common.refuse_idle(parser, flags, [
        ("with --alpha 0", cfg.alpha == 0, "regularizer variant kernel p K K_prime"),
        ("with --regularizer intra", cfg.regularizer == "intra", "variant kernel p K K_prime"),
        (f"with --kernel {cfg.kernel}", cfg.kernel != "gaussian", "K K_prime"),
        (f"with --kernel {cfg.kernel}", cfg.kernel != "polynomial", "p"),
        (f"with --variant {cfg.variant}", 2 not in VARIANTS[cfg.variant], "K_prime")])
    return cfg


if __name__ == "__main__":
    common.main(train, parse_args)

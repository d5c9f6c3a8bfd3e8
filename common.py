"""What the three paper scripts share and no paper is about.  Most of it passes on from support/.

    load_dataset(name, root, ...)    the papers' datasets, glyphs, or a folder of images
    train_loader, embed_splits       batches of one epoch; the embeddings of the splits
    backbone, load_weights           pretrained networks, from a file or downloaded
    settings, settle                 the flags; --device and --precision, once
    to_device, features              what --precision allows, and channels_last
    load(checkpoint, Network)        a trained network, ready to embed
    Run                              header, progress, log, atomic checkpoint, automatic resume
    python common.py check cub, prepare cub     report/prepare.py
"""
# ruff: noqa: F401  what is not used here is for the scripts
import argparse
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from support import backbones           # yours in the way?  docs/extending.md
from support.backbones import (BACKBONE, Preprocess, backbone, backbone_name, features,
                               freeze_batch_norm, load_weights, to_device)
from support.command_line import (Parser, cores, main, multiplies_bfloat16, number, plain,
                                  refuse_idle, settings, settle)
from support.datasets import Data, Split, iterations_for, load_dataset, need_pairs, split_of
from support.files import NonFiniteLoss, UserError, reason
from support.glyphs import SMALL_TRANSFORMS
from support.images import LanczosByPillow, on_tensors, read_ahead
from support.ranks import float32_products
from support.runs import Run, read_checkpoint


# ---------------------------------------------------------------------------- checked
def check_labels(rows, labels):
    """Raise ValueError unless there is one label for each of B rows: (B, 1) would broadcast."""
    if labels.shape != rows.shape[:1]:
        raise ValueError(f"labels must be ({len(rows)},), one for each row of {tuple(rows.shape)}, "
                         f"not {tuple(labels.shape)}")


def check_square(pairs, name, labels=None):
    """B of a (B, B) matrix.  ValueError: of another shape, as embeddings (B, d); or the labels, if
    there are any, are not (B,)."""
    if pairs.dim() != 2 or len(pairs) != pairs.shape[1]:
        raise ValueError(f"{name} must be (B, B), a value for each pair of images, not "
                         f"{tuple(pairs.shape)}")
    if labels is not None:
        check_labels(pairs, labels)
    return len(pairs)


def check_vectors(**vectors):
    """Raise ValueError unless those that are not None have one dimension and one length: (C, 1)
    would broadcast."""
    shapes = {name: tuple(x.shape) for name, x in vectors.items() if x is not None}
    if len({*shapes.values()}) > 1 or len(next(iter(shapes.values()))) != 1:
        raise ValueError("one dimension and one length are needed, not " + ", ".join(
            f"{name} {shape}" for name, shape in shapes.items()))


def check_classes(classes):
    """Raise ValueError if the ascending class numbers have a gap: then none can be an index."""
    if classes.tolist() != list(range(len(classes))):
        raise ValueError(f"labels must be 0, 1, 2, ... without a gap, but these {len(classes)} "
                         f"classes go from {classes[0]} to {classes[-1]}")


# ---------------------------------------------------------------------------- batches, embeddings
def random_seed(*key):
    """A 64-bit seed from a few whole numbers: what is drawn depends on the key alone.

    A trailing 0 adds nothing: (3, 5) and (3, 5, 0) give one seed.  So the sampler of seed 3 and
    epoch 5 shares its seed with the crop of image 0; the two draw different things from it.
    """
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])


@dataclass
class _Augmented:
    """A data set: (epoch, index) -> the image as that epoch draws it, its label"""
    split: Split
    augment: object
    seed: int

    def __getitem__(self, key):
        epoch, index = key
        with torch.random.fork_rng(devices=[]):         # any process, any order: the same draw
            torch.default_generator.manual_seed(random_seed(self.seed, epoch, index))
            return self.augment(self.split.images[index]), int(self.split.labels[index])


def train_loader(split, augment, batches, cfg):
    """A function of the epoch -> its batches of (uint8 images, labels) on the host.

    batches(labels, cfg, epoch) -> lists of indices.  What an epoch draws depends on (--seed, epoch,
    image) alone, in whichever worker and order.
    """
    workers = cfg.workers
    if workers is None:
        workers = 0 if torch.is_tensor(split.images) else min(16, cores())
    epoch_batches = []
    loader = torch.utils.data.DataLoader(               # one for all epochs: its workers live on
        _Augmented(split, augment, cfg.seed), batch_sampler=epoch_batches, num_workers=workers,
        persistent_workers=workers > 0, pin_memory=cfg.device.startswith("cuda"),
        generator=torch.Generator())                    # the global one is left alone

    def of_epoch(epoch):
        indices = batches(split.labels, cfg, epoch)
        epoch_batches[:] = [[(epoch, i) for i in batch] for batch in indices]
        return loader
    return of_epoch


@torch.no_grad()
@float32_products()
def embed(function, images, cfg):
    """Embed a split's images, or an ImageFiles, by function(uint8 images on the device) -> (n, d)
    float32.  UserError: no image, or none that can be read.  NonFiniteLoss: nan or infinite."""
    on_gpu, size = cfg.device.startswith("cuda"), 25                # images at a time
    if on_gpu:
        size = min(cfg.batch, 200)                      # no more memory than a training step takes
    if hasattr(images, "split"):                        # a tensor, or a cache of one
        parts = images.split(size)
    else:                                               # 8 photos of 50 megapixels take 1.2 GB
        parts = read_ahead(images, size, min(8, cores() if cfg.workers is None else cfg.workers))
    bar = tqdm(parts, "embedding", -(-len(images) // size), unit="batch", leave=False, disable=None)
    x = []
    for part in bar:
        batch = filled(part, size) if on_gpu else part
        embedded = function(batch.to(cfg.device, non_blocking=True))
        x.append(embedded[:len(part)].float())
    if not x:
        raise UserError("no images to embed that can be read")
    x = torch.cat(x)
    if not torch.isfinite(x).all():
        raise NonFiniteLoss("the network's embeddings are not finite: training diverged, or its "
                            "weights are broken")
    return x


def filled(images, size):
    """A batch, its last image repeated until there are `size`: cuDNN chooses an algorithm for each
    shape, by timing, so in a smaller batch an equal image could get another embedding."""
    if len(images) == size:
        return images
    return images[torch.arange(size, device=images.device).clamp(max=len(images) - 1)]


def embed_splits(function, data, cfg, *names):
    """Embed those of test, gallery, train_plain and val that there are, or the named ones alone ->
    {split: (embeddings (n, d), labels (n,))}, as eval's recalls and judge take it."""
    splits = {}
    for name in names or ("test", "gallery", "train_plain", "val"):
        if getattr(data, name) is not None:
            splits[name] = getattr(data, name)
    if cfg.device.startswith("cuda"):
        _keep_on_gpu(data, cfg.device)
    return {name: (embed(function, split.images, cfg), split.labels)
            for name, split in splits.items()}


def _keep_on_gpu(data, device):
    """Test images that lie in memory or a cache stay on a GPU from one evaluation to the next, if
    those of all splits take at most an eighth of what it has free: the training needs the rest."""
    wholes = []
    for split in filter(None, (data.test, data.gallery, data.train_plain, data.val)):
        whole = getattr(split.images, "whole", split.images)    # of a CachedImages, or a tensor
        if torch.is_tensor(whole) and whole.device.type == "cpu":
            wholes.append((split, whole))
    if sum(whole.nbytes for _, whole in wholes) <= torch.cuda.mem_get_info(device)[0] / 8:
        for split, whole in wholes:
            split.images = whole.to(device)


# ---------------------------------------------------------------------------- a trained network
def load(checkpoint, Network, device="auto"):
    """A run's last.pt and its script's Network -> the network in eval mode on a device, and its
    settings, with `classes`: the names of those it trained on, None in an old checkpoint.

    network.embed(uint8 images (B, 3, h, w) on that device) -> embeddings (B, d).  UserError: no
    checkpoint, or one that does not fit this code.
    """
    saved = read_checkpoint(checkpoint)
    cfg = argparse.Namespace(images=None, commit=None)  # which old checkpoints lack
    try:
        vars(cfg).update(saved["config"])
        cfg.device, cfg.classes = device, saved.get("classes")
        settle(cfg)
        if cfg.precision == "bf16" and cfg.device != "cpu" and not multiplies_bfloat16("cuda"):
            print("note: the run was in bfloat16, which this GPU lacks: computed in float32")
            cfg.precision = "fp32"
        network = Network(cfg, cfg.splits["train"][1])
        network.load_state_dict(saved["network"])
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"{checkpoint} does not fit this {Network.__module__}.py (it is a run of "
                        f"{saved['paper']}.py at commit {cfg.commit}): {reason(error)}")
    return to_device(network, cfg).eval(), cfg


if __name__ == "__main__":
    import runpy                                        # the command line is a program on top
    runpy.run_module("report.prepare", run_name="__main__")

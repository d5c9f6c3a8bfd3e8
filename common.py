"""What the three paper scripts share and no paper is about: data, backbones, the run folder.

    load_dataset(name, root, ...)    the papers' datasets, glyphs, or a folder of images
    train_loader, embed_splits       batches of one epoch; the embeddings of the splits
    backbone, load_weights           pretrained networks, from a file or downloaded
    settings, settle                 the flags; --device and --precision, once
    to_device, features              what --precision allows, and channels_last
    load(checkpoint, Network)        a trained network, ready to embed
    Run                              header, progress, log, atomic checkpoint, automatic resume
    python common.py check cub, prepare cub     report/prepare.py

Images are uint8 RGB (3, h, w) until `Preprocess` turns a batch into what its backbone knows.
"""
import argparse
import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn as nn
import torchvision
from torchvision.transforms import v2
from tqdm import tqdm

from support import glyphs
from support.command_line import (SHARED, Parser, cores, data_root, main, number,     # noqa: F401
                                  refuse_idle, settings, settle)
from support.files import NonFiniteLoss, UserError, digest, listed, load_torch, reason, sha256
from support.glyphs import SMALL_TRANSFORMS             # noqa: F401
from support.images import ImageFiles, cache_images, decode_as_stored, read_ahead, to_tensor
from support.layouts import COUNTS, of_papers, read_dataset
from support.networks import BNInception, GoogLeNet
from support.photos import Folder, decode, identity
from support.runs import Run, read_checkpoint           # noqa: F401  the scripts' common.Run


# ---------------------------------------------------------------------------- datasets
@dataclass
class Split:
    images: object              # indexable, uint8 (3, h, w) each
    labels: torch.Tensor        # (n,) long from 0
    classes: list               # their names
    files: list = None          # the images' paths in the dataset's folder, if they have any

    def __len__(self):
        return len(self.labels)

    def __str__(self):
        return f"{len(self):,} images of {len(self.present()):,} classes"

    def present(self):
        """The names of its own classes: with a gallery `classes` has those of both splits."""
        return [self.classes[label] for label in self.labels.unique()]


@dataclass
class Data:
    train: Split                # what the loader augments
    train_plain: Split          # the same images as test images are seen
    test: Split                 # of other classes, but for those that are `shared`
    gallery: Split = None       # what the test images are searched in, if not in themselves
    val: Split = None           # held-out training classes, as test images are seen
    identity: dict = None       # {split: digest of its images}, of train with what is held out
    folder: Path = None         # of the files

    def shared(self):
        """How many of the test classes train too: a folder's train/ and test/ may share some."""
        return len({*self.train.present()} & {*self.test.present()})

    def counts(self):
        counts = {}
        for part in ("train", "test", "gallery", "val"):
            split = getattr(self, part)
            if split is not None:
                counts[part] = [len(split), len(split.present())]
        return counts


def load_dataset(name, root=None, train=None, test=None, cache=True, val=None):
    """A dataset by name, or a folder of one's own -> Data, ready to train.

    root: the folder of the datasets and their .cache.  train, test: the deterministic first part of
    the transforms, None for none.  cache: keep what that part makes.  val: the share of the
    training classes to hold out.
    """
    root, papers = Path(root or data_root()), of_papers(name)
    if name == "glyphs":
        folder, splits, ids = None, _glyphs(), {}
    else:
        if papers:
            folder, splits = read_dataset(name, root)
        else:
            photos = Folder(name)
            folder, splits = photos.path, photos.splits()
            photos.say_left_out(splits)
        ids = identity(folder, splits, papers)
    if val:
        _hold_out(splits, val)

    def split(part, prefix):
        sources = [source for source, _ in splits[part]]
        if folder is None:
            images = torch.stack([to_tensor(prefix, image) for image in sources])
        else:
            images = ImageFiles(sources, prefix, decode_as_stored if papers else decode)
        if cache and prefix and folder is not None:
            words = [papers or f"{folder.resolve().name[:30]}-{digest(folder.resolve())[:8]}", part]
            if val and part in ("train", "val"):
                words.append(f"{val:g}")
            whole = "train" if part == "val" else part
            images = cache_images(images, root / ".cache" / "-".join(words), ids[whole])
        return split_of(splits, part, images, folder)
    parts = {part: split(part, train if part == "train" else test) for part in splits}
    return Data(train_plain=split("train", test), identity=ids, folder=folder, **parts)


def _glyphs():
    splits = {"train": [], "test": []}
    for part, rows in splits.items():
        for image, label in zip(*glyphs.glyphs(part)):
            kind = f"glyph {glyphs.GLYPHS[part][0][label]}"
            rows.append((v2.functional.to_pil_image(image), kind))
    return splits


def _hold_out(splits, share):
    """Move the last classes of splits["train"], by name, to splits["val"]."""
    classes = sorted({c for _, c in splits["train"]})
    first = round(len(classes) * (1 - share))
    if not 2 <= first <= len(classes) - 2:
        advice = f"try {2 / len(classes):.2g}"
        if len(classes) < 4:
            advice = "it needs four training classes"
        raise UserError(f"--val {share:g} of {len(classes)} training classes leaves fewer than two "
                        f"to train or to hold out: {advice}")
    splits["val"] = [row for row in splits["train"] if row[1] >= classes[first]]
    splits["train"] = [row for row in splits["train"] if row[1] < classes[first]]


def split_of(splits, part, images, folder=None):
    """One of {split: [(path, class)]} with its images -> Split.  test and gallery number the
    classes of both.  folder: of the paths, None where there are none."""
    together = ("test", "gallery") if part in ("test", "gallery") else (part,)
    classes = sorted({c for other in together for _, c in splits.get(other, ())})
    number_of = {c: i for i, c in enumerate(classes)}
    labels = torch.tensor([number_of[c] for _, c in splits[part]])
    files = None
    if folder is not None:
        files = [path.relative_to(folder).as_posix() for path, _ in splits[part]]
    return Split(images, labels, [str(c) for c in classes], files)


def need_pairs(split, cfg):
    """UserError: no positive pairs in these training images, or no negative ones in a batch."""
    of_class = split.labels.bincount()
    if of_class.max() < 2:
        raise UserError(f"no training class has two images ({split}), as pairs and triplets need")
    if of_class.clamp(max=cfg.images_per_class or len(split)).min() >= cfg.batch:
        raise UserError(f"--batch {cfg.batch} is full with one class: raise it, or lower "
                        "--images-per-class, so that a batch has pairs of different classes")


def iterations_for(split, batches, cfg, settings):
    """Batches per epoch for a folder: about as many passes as the paper over CUB, at most as long.
    batches, settings: the script's; with few classes its batches stay below --batch."""
    papers, papers_batch = settings["iterations"][0], settings["batch"][0]
    trial = argparse.Namespace(**vars(cfg) | {"iterations": 50, "seed": 0})
    size = sum(map(len, batches(split.labels, trial, 0))) / trial.iterations
    passes = papers * papers_batch / COUNTS["cub"]["train"][0]
    return min(papers, max(1, round(passes * len(split) / size)))


# ---------------------------------------------------------------------------- batches, embeddings
def random_seed(*key):
    """A 64-bit seed from a few whole numbers: what is drawn depends on the key alone.

    A trailing 0 adds nothing: (3, 5) and (3, 5, 0) give one seed.  So the sampler of seed 3 and
    epoch 5 shares its seed with the crop of image 0; the two draw different things from it.
    """
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])


class _Augmented(torch.utils.data.Dataset):
    """(epoch, index) -> the image as that epoch draws it, its label"""

    def __init__(self, split, augment, seed):
        self.split, self.augment, self.seed = split, augment, seed

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
        if not epoch_batches:
            _say_passes(indices, split, cfg)
        epoch_batches[:] = [[(epoch, i) for i in batch] for batch in indices]
        return loader
    return of_epoch


def _say_passes(indices, split, cfg):
    drawn = sum(map(len, indices))
    told = (f"batches per epoch: {len(indices)}, of about {drawn / len(indices):.0f} images, so "
            f"{drawn / len(split):.1f} passes over the training images")
    if len(indices) < 5:
        more = "--iterations 20" if "iterations" in cfg else "a smaller --batch"
        told += f"; {more} makes more steps"
    print(told)


@torch.inference_mode()
def embed(function, split, cfg):
    """function(uint8 images on the device) for every image of a split, or of images without labels
    -> (n, d) float32.  UserError: no image, or none that can be read."""
    images = getattr(split, "images", split)
    size = 200 if cfg.device.startswith("cuda") else 25             # 25 fit into a CPU's cache
    whole = images if torch.is_tensor(images) else getattr(images, "whole", None)
    if whole is not None:
        parts = whole.split(size)
    else:                                               # 8 photos of 50 megapixels take 1.2 GB
        threads = cores() if cfg.workers is None else cfg.workers
        parts = read_ahead(images, size, min(8, threads))
    bar = tqdm(parts, "embedding", -(-len(images) // size), unit="batch", leave=False, disable=None)
    x = [function(part.to(cfg.device, non_blocking=True)).float() for part in bar]
    if not x:
        raise UserError("no images to embed that can be read")
    x = torch.cat(x)
    if not torch.isfinite(x).all():
        raise NonFiniteLoss("the network's embeddings are not finite: training diverged; last.pt "
                            "of the run holds the last good epoch")
    return x


def embed_splits(function, data, cfg, *names):
    """{split: (function's embeddings (n, d), labels (n,))}, as eval's recalls and judge take it, of
    those of test, gallery, train_plain and val that there are, or of the named ones alone."""
    embedded = {}
    for name in names or ("test", "gallery", "train_plain", "val"):
        split = getattr(data, name)
        if split is not None:
            embedded[name] = embed(function, split, cfg), split.labels
    return embedded


# ---------------------------------------------------------------------------- backbones
class Backbone(NamedTuple):
    """A row of BACKBONES: a network and what its weights were trained on."""
    build: Callable             # () -> the module, without classifier: (B, 3, h, w) -> (B, width)
    mean: tuple                 # of the input, per channel, in 0 to 255
    std: tuple
    bgr: bool = False           # whether the input's channels are blue, green, red
    file: str = None            # published weights: a path, or a name in the folder of torch's hub
    sha256: str = None          # of this file, or the first digits
    url: str = None             # the folder on the web that has it


BACKBONES = {
    "small": Backbone(glyphs.SmallNet, mean=(127.5, 127.5, 127.5), std=(127.5, 127.5, 127.5),
                      file=str(glyphs.WEIGHTS), sha256=glyphs.SHA256),
    "bn_inception": Backbone(
        BNInception, mean=(104.0, 117.0, 128.0), std=(1.0, 1.0, 1.0), bgr=True,
        file="bn_inception-52deb4733.pth",
        sha256="52deb473314542a5c2f87e9e6f26f4ca42fe863d15f986414dbae8c2dfdd2353",
        url="http://data.lip6.fr/cadene/pretrainedmodels/"),
    # No file: Caffe's has to be converted.
    "googlenet_bvlc": Backbone(GoogLeNet, mean=(104.0, 117.0, 123.0), std=(1.0, 1.0, 1.0),
                               bgr=True),
}
BACKBONE = ("the paper's own, small, or a classification model of torchvision: resnet50, "
            "squeezenet1_1, ...")                       # --help's line


def find_backbone(name):
    """The row of BACKBONES, or one made of torchvision's classification model -> Backbone.
    KeyError: there is none, or torchvision has no IMAGENET1K_V1 weights for it."""
    if name in BACKBONES:
        return BACKBONES[name]
    if name not in torchvision.models.list_models(module=torchvision.models):
        raise KeyError(name)
    # V1, as in the papers' time (V2 is stronger); its name has its hash's first digits.
    weights = torchvision.models.get_model_weights(name)["IMAGENET1K_V1"]
    url, file = weights.url.rsplit("/", 1)
    normalize = weights.transforms()
    return Backbone(partial(torchvision_backbone, name),
                    mean=tuple(255 * value for value in normalize.mean),
                    std=tuple(255 * value for value in normalize.std),
                    file=file, sha256=file.rpartition("-")[2].removesuffix(".pth"), url=f"{url}/")


def torchvision_backbone(name):
    """A classification model of torchvision without its 1000-way layer, dropout and stochastic
    depth, because the papers mention none."""
    options = {}
    if name in ("googlenet", "inception_v3"):
        options = {"aux_logits": False, "init_weights": False, "transform_input": True}
    network = torchvision.models.get_model(name, weights=None, **options)
    for path, module in network.named_modules():
        if isinstance(module, (nn.Dropout, torchvision.ops.StochasticDepth)):
            module.p = 0.0
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            last = path
    parent, _, child = last.rpartition(".")
    setattr(network.get_submodule(parent), child, nn.Identity())
    return network


def backbone_name(text):
    """An argparse type: a name that find_backbone knows."""
    try:
        find_backbone(text)
    except KeyError:
        raise argparse.ArgumentTypeError(
            f"'{text}' is none of {', '.join(BACKBONES)} and no classification model of "
            "torchvision with IMAGENET1K_V1")
    return text


def backbone(name, size=224):
    """A backbone without weights -> module, width of its output.  UserError: a module that cannot
    take images of size × size, or whose output is not (B, width)."""
    network = find_backbone(name).build()
    try:
        with torch.no_grad():
            shape = network.eval()(torch.zeros(1, 3, size, size)).shape
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"{name} cannot take images of {size} × {size} (--size): {reason(error)}")
    if len(shape) != 2:
        raise UserError(f"{name} gives {tuple(shape)} for one image, not (1, width): it must "
                        "pool and flatten")
    return network, shape[1]


class Preprocess(nn.Module):
    """uint8 RGB (B, 3, h, w) -> the float input that a backbone was pretrained on."""

    def __init__(self, name):
        super().__init__()
        row = find_backbone(name)
        self.bgr = row.bgr
        self.register_buffer("mean", torch.tensor(row.mean)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(row.std)[:, None, None], persistent=False)

    def forward(self, images):
        if self.bgr:
            images = images.flip(1)
        return (images.float() - self.mean) / self.std


@contextlib.contextmanager
def float32_products():
    """Matrix products, those of a loss, in float32 and not TF32; then as a notebook had them."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def to_device(network, cfg):
    """Move a network to cfg.device, and set what cfg.precision allows.  TF32 is for convolutions
    alone: the losses have none."""
    torch.backends.cudnn.allow_tf32 = cfg.precision == "tf32"
    torch.backends.cudnn.benchmark = True           # the fastest convolution of each shape
    layout = memory_format(torch.device(cfg.device), cfg.precision)
    return network.to(cfg.device, memory_format=layout)


def memory_format(device, precision):
    """channels_last, which is faster; a GPU has no such kernels for float32."""
    if device.type == "cuda" and precision == "fp32":
        return torch.contiguous_format
    return torch.channels_last


def features(backbone, images, precision):
    """backbone(images), in bfloat16 with --precision bf16.  (B, 3, h, w) -> images' own dtype"""
    images = images.contiguous(memory_format=memory_format(images.device, precision))
    with torch.autocast(images.device.type, torch.bfloat16, enabled=precision == "bf16"):
        return backbone(images).to(images.dtype)


def freeze_batch_norm(network):
    """Put the batch norms of network.backbone into eval mode; their affine parameters learn on."""
    for module in network.backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return network


# ---------------------------------------------------------------------------- weights
CLASSIFIERS = ("last_linear.", "loss", "fc.", "aux", "AuxLogits.", "classifier.", "head")


def load_weights(network, name, source=None):
    """Load pretrained weights into a backbone without its classifier -> their SHA-256, or 'random'.

    source: a file, 'random' for none, None for the published file, in torch's hub folder or
    downloaded there.  A file of one's own may have the classifier too, lie in a "state_dict" or
    "model", have a prefix common to all names, or be a run's last.pt.
    UserError: no file, no network, a published file's name with another hash, other names, shapes.
    """
    if source == "random":
        return "random"
    row = find_backbone(name)
    path = weights_file(name, row, source)
    sha = sha256(path)
    published = row.file and path.name == Path(row.file).name
    if published and not sha.startswith(row.sha256):
        raise UserError(f"{path} is not {row.file}: SHA-256 {sha[:16]}…, expected "
                        f"{row.sha256[:16]}…")
    wanted = network.state_dict()
    state = unwrapped(load_torch(path), next(iter(wanted)))
    for key, value in wanted.items():                   # what old files lack
        if key.endswith("num_batches_tracked"):
            state.setdefault(key, value)
    for key in [*state]:
        if key not in wanted and key.startswith(CLASSIFIERS):
            del state[key]
    wrong = [key for key in wanted | state if not _fits(wanted.get(key), state.get(key))]
    if wrong:
        raise UserError(f"{path} does not fit {name}: {len(wrong)} names or shapes differ: "
                        f"{listed(wrong)}; --backbone NAME says whose weights they are")
    wanted.update(state)                                # wanted has its layers' versions too
    network.load_state_dict(wanted)
    if not published:
        print(f"weights {path}: not a published file, taken as it is; SHA-256 {sha}")
    return sha


def weights_file(name, row, source):
    """The path of a file of weights, downloaded if it is published.  UserError: there is none."""
    if source:
        path = Path(source)
    elif row.file:
        path = Path(torch.hub.get_dir(), "checkpoints", row.file)
    else:
        raise UserError(f"{name} needs --weights FILE (docs/running.md), or --weights random to "
                        "train from scratch")
    if path.exists():
        return path
    if source or row.url is None:
        raise UserError(f"no weights file {path}")
    try:
        torch.hub.load_state_dict_from_url(row.url + row.file, check_hash=True, weights_only=True)
    except Exception as error:              # a server fails in a dozen ways
        raise UserError(f"cannot download {row.url}{row.file}: {error}; fetch it some other way "
                        f"and put it at {path}, or pass --weights FILE, or --weights random to "
                        "train from scratch")
    return path


def _fits(wanted, value):
    return wanted is not None and torch.is_tensor(value) and wanted.shape == value.shape


def unwrapped(state, name):
    """The tensors of a weights file by the names that a backbone gives them; name: one of those."""
    for key in ("state_dict", "model", "network"):
        if isinstance(state, dict) and key in state:
            state = state[key]
    if not isinstance(state, dict):
        return {}
    renamed, prefixes = {}, []
    for key, value in state.items():
        key = re.sub(r"(denselayer\d+\.\w+)\.([12]\.)", r"\1\2", str(key))      # old names
        renamed[key] = value
        if f".{key}".endswith(f".{name}"):
            prefixes.append(key.removesuffix(name))
    prefix = min(prefixes, key=len, default="")
    return {key.removeprefix(prefix): value for key, value in renamed.items()
            if key.startswith(prefix)}


# ---------------------------------------------------------------------------- many scalars
def save_as_one(network, name):
    """Let the scalars of a ParameterList be one tensor in network.state_dict(), because a file of
    11,318 takes seconds.  One by one, as older checkpoints have them, they load too."""
    def pack(network, state, prefix, metadata):
        values = [state.pop(f"{name}.{i}") for i in range(len(getattr(network, name)))]
        state[name] = torch.stack(values)

    def unpack(network, state, *_):
        if name in state:
            for i, value in enumerate(state.pop(name)):
                state[f"{name}.{i}"] = value
    network.register_state_dict_post_hook(pack)
    network.register_load_state_dict_pre_hook(unpack)


def save_adam_as_one(optimizer, group):
    """The same for Adam's state of one of its groups: one tensor per quantity."""
    def pack(optimizer, saved):
        state = saved["state"]
        which = [i for i in saved["param_groups"][group]["params"] if i in state]
        if which:
            rows = [state.pop(i) for i in which]
            saved["which"] = which
            saved["scalars"] = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}

    def unpack(optimizer, saved):
        if "which" in saved:
            saved["state"] = dict(saved["state"])
            columns = [values.unbind() for values in saved["scalars"].values()]
            for i, *row in zip(saved["which"], *columns):
                saved["state"][i] = dict(zip(saved["scalars"], row))
    optimizer.register_state_dict_post_hook(pack)
    optimizer.register_load_state_dict_pre_hook(unpack)


# ---------------------------------------------------------------------------- a trained network
def load(checkpoint, Network, device="auto"):
    """A run's last.pt and its script's Network -> the network in eval mode on a device, and its
    settings, with `classes`: the names of those it trained on, None in an old checkpoint.

    network.embed(uint8 images (B, 3, h, w) on that device) -> embeddings (B, d).  UserError: no
    checkpoint, or one that does not fit this code.
    """
    saved = read_checkpoint(checkpoint)
    cfg = argparse.Namespace(**saved["config"])
    cfg.device, cfg.classes = device, saved.get("classes")
    cfg.images = saved["config"].get("images")
    settle(cfg)
    try:
        network = Network(cfg, cfg.splits["train"][1])
        network.load_state_dict(saved["network"])
    except (AttributeError, KeyError, RuntimeError) as error:
        commit = saved["config"].get("commit")
        raise UserError(f"{checkpoint} does not fit this {Network.__module__}.py (it is a run of "
                        f"{saved['paper']}.py at commit {commit}): {reason(error)}")
    return to_device(network, cfg).eval(), cfg


if __name__ == "__main__":
    from report import prepare as command               # the top floor
    command.main(command.run, command.parse_args)

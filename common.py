"""What the three paper scripts share and no paper is about: data, weight files, the run folder.

    load_dataset(name, root, ...)   cub, cars, sop, inshop, glyphs, or a folder of images with one
                                    sub-folder per class; decoded and resized once, into a cache
    load_weights(...)               pretrained backbones, from a file or downloaded, SHA-256 checked
    to_device, features             --precision and channels_last
    Run                             header, progress, log, atomic checkpoint, automatic resume
    python common.py sheet          draws glyphs.png, a sheet of the embedded dataset
    python common.py pretrain       makes glyphs_backbone.pth again (about a minute on two cores)
    python common.py check cub      reads every image of a dataset and lists those it cannot

Images are uint8 RGB tensors (3, h, w) until `Preprocess`, on the device, turns a batch of them into
what the backbone was trained on.
"""
import argparse
import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL
import PIL.Image
import torch
import torch.nn as nn
import torchvision
from torchvision.transforms import v2
from tqdm import tqdm

HERE = Path(__file__).resolve().parent
PAPERS = ("jrd", "mdr", "dml_da")


# ---------------------------------------------------------------------------- errors, command line
class UserError(Exception):
    """A mistake that the user can mend: one line on stderr, exit status 2."""


class NonFiniteLoss(Exception):
    """The loss became nan or infinite: one line on stderr, exit status 1."""


class Parser(argparse.ArgumentParser):
    """argparse with errors of one line."""

    def __init__(self, **kwargs):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter,
                         allow_abbrev=False, **kwargs)

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}\n")


def number(kind, low=-math.inf, high=math.inf, above=-math.inf, below=math.inf):
    """An argparse type: a finite int or float, low <= value <= high and above < value < below."""
    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            noun = "whole number" if kind is int else "number"
            raise argparse.ArgumentTypeError(f"'{text}' is not a {noun}")
        if not (low <= value <= high and above < value < below and abs(value) < math.inf):
            bounds = [f">= {low:g}" * (low > -math.inf), f"> {above:g}" * (above > -math.inf),
                      f"<= {high:g}" * (high < math.inf), f"< {below:g}" * (below < math.inf)]
            raise argparse.ArgumentTypeError(f"{text} must be " + (
                " and ".join(filter(None, bounds)) or "finite"))
        return value
    return parse


def add_shared_arguments(parser):
    """The flags that mean the same in every paper script."""
    parser.add_argument("--backbone", type=backbone_name, metavar="NAME", help="the paper's, small, "
                        "or a classification model of torchvision: resnet50, squeezenet1_1, ...")
    parser.add_argument("--weights", metavar="FILE", help="pretrained weights of the backbone, or "
                        "'random' (default: the published file, checked by SHA-256)")
    parser.add_argument("--resize", type=number(int, 1), help="test images are resized to this "
                        "(256; cub128: 146)")
    parser.add_argument("--size", type=number(int, 1), help="side of the network's input, a crop of "
                        "that (224; cub128: 128)")
    parser.add_argument("--eval-every", type=number(int, 1), help="epochs between evaluations (1)")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), help="of the backbone "
                        "(default fp32); losses and distances are in float32 always")
    parser.add_argument("--seed", type=number(int, 0, 2 ** 31), help="default 0")
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds the datasets "
                        "(default: $DML_DATA, else ./data)")
    parser.add_argument("--out", metavar="DIR", help="folder that holds the runs (default: runs)")
    parser.add_argument("--device", help="auto (default), cpu, cuda, cuda:1, ...")
    parser.add_argument("--workers", type=number(int, 0), help="processes that load images "
                        "(default: one a core, at most 8; none for glyphs)")
    parser.add_argument("--no-cache", action="store_const", const=True, help="decode and resize "
                        "the images anew in every epoch: the same tensors, slower")


def settings(args, defaults, presets, backbones):
    """Argument > dataset preset > default.  -> (settings, preset), both argparse.Namespace."""
    shared = dict(weights=None, resize=256, size=224, eval_every=1, precision="fp32", seed=0, data_root=data_root(), out="runs",
                  device="auto", workers=None, no_cache=False)
    preset = shared | defaults | presets.get(args.dataset, presets["folder"])
    if args.backbone and args.backbone != preset["backbone"]:
        preset |= backbones.get(args.backbone, backbones["other"])
    given = {key: value for key, value in vars(args).items() if value is not None}
    if (preset | given)["size"] > (preset | given)["resize"]:
        raise UserError("--size {size} is larger than --resize {resize}".format(**preset | given))
    return argparse.Namespace(**preset | given), argparse.Namespace(**preset)


def refuse_idle(parser, args, rules):
    """No flag that does nothing.  rules: [(when, whether that is so, flags that are idle then)]"""
    for when, true, names in rules:
        for name in names.split():
            if true and getattr(args, name) is not None:
                parser.error(f"--{name.rstrip('_').replace('_', '-')} does nothing {when}")


def main(function, parse_args):
    """Run a script; what a user can cause ends in one line on stderr and a status."""
    try:
        arguments = parse_args()
        function(*arguments) if isinstance(arguments, tuple) else function(arguments)
    except (UserError, NonFiniteLoss, OSError) as error:
        message = str(error).rpartition("common.UserError: ")[2].strip()     # a loader's worker
        print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)     # put its trace before
        sys.exit(1 if isinstance(error, NonFiniteLoss) else 2)
    except KeyboardInterrupt:                  # die of the signal: a calling shell script stops too
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def data_root():
    """Where the datasets are unless --data-root says otherwise."""
    return os.environ.get("DML_DATA", "data")


def device(cfg):
    """The torch.device that --device names; auto is the GPU where there is one."""
    name = cfg.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--device {name}: {reason(error)}")


def to_device(network, cfg):
    """Move a network to --device, in channels_last, and allow what --precision allows.

    TF32 is allowed in convolutions alone: the losses, which have none, stay in float32.
    """
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = cfg.precision == "tf32"
    return network.to(device(cfg), memory_format=torch.channels_last)


def features(backbone, images, precision):
    """backbone(images), in bfloat16 with --precision bf16.  (B, 3, h, w) -> images' own dtype"""
    images = images.contiguous(memory_format=torch.channels_last)
    with torch.autocast(images.device.type, torch.bfloat16, enabled=precision == "bf16"):
        return backbone(images).to(images.dtype)


# ---------------------------------------------------------------------------- the embedded dataset
# `glyphs`: each class is a closed contour (radial Fourier descriptors) with two colours and a
# striped or ringed texture.  Within a class vary pose, scale, place, contour, shade and background.
# The pretraining classes stand in a studio: plain background, even light, no noise.  Training and
# test classes, all different, are out in the wild.  So the small backbone is to `glyphs` what an
# ImageNet backbone is to CUB: useful as it comes, better when fine-tuned, and easily overfitted.
GLYPHS = {"pretraining": (range(0, 400), 30), "train": (range(400, 450), 15),
          "test": (range(450, 550), 20)}              # split: (classes, images per class)
GLYPH_SIZE, HARMONICS = 36, np.arange(2, 8)


def glyphs(split):
    """-> images (n, 3, 36, 36) uint8, labels (n,) from 0.  The same on every call."""
    classes, per_class = GLYPHS[split]
    draw = np.random.RandomState(0)                   # RandomState: its stream is frozen by NumPy
    n = 550
    world = dict(amplitude=draw.rayleigh(0.42, (n, 6)) / HARMONICS,
                 phase=draw.uniform(0, 2 * np.pi, (n, 6)), colour=draw.uniform(0, 1, (n, 2, 3)),
                 stripes=draw.uniform(2, 9, n), angle=draw.uniform(0, np.pi, n),
                 ringed=draw.uniform(0, 1, n) < 0.3)
    images = [_draw_glyph({k: v[[c] * per_class] for k, v in world.items()},
                          np.random.RandomState(1 + c), studio=split == "pretraining")
              for c in classes]
    labels = torch.arange(len(classes)).repeat_interleave(per_class)
    return torch.from_numpy(np.concatenate(images)), labels


def _draw_glyph(glyph, draw, studio):
    """The images of one class: glyph, its parameters repeated n times -> (n, 3, 36, 36) uint8."""
    n, wild = len(glyph["angle"]), 0.0 if studio else 1.0

    def pixelwise(values):                            # (n,) or (n, 3) -> broadcast over pixels
        return values[..., None, None]

    def uniform(low, high, *shape):
        return pixelwise(draw.uniform(low, high, (n, *shape)))

    axis = (np.arange(GLYPH_SIZE) + 0.5) / GLYPH_SIZE * 2 - 1
    row, column = np.meshgrid(axis, axis, indexing="ij")
    turn, y, x = uniform(-0.8, 0.8), row - uniform(-0.2, 0.2), column - uniform(-0.2, 0.2)
    x, y = np.cos(turn) * x + np.sin(turn) * y, np.cos(turn) * y - np.sin(turn) * x
    x, y = x / uniform(0.5, 0.8), y / uniform(0.5, 0.8)
    radius, polar = np.hypot(x, y), np.arctan2(y, x)
    amplitude = pixelwise(glyph["amplitude"] * draw.uniform(0.6, 1.4, (n, 6)))
    phase = pixelwise(glyph["phase"] + draw.normal(0, 0.25, (n, 6)))
    contour = 1 + (amplitude * np.cos(HARMONICS[:, None, None] * polar[:, None] + phase)).sum(1)
    inside = 1 / (1 + np.exp(12 * (radius - np.maximum(contour, 0.15))))[:, None]
    across = np.cos(pixelwise(glyph["angle"])) * x + np.sin(pixelwise(glyph["angle"])) * y
    across = np.where(pixelwise(glyph["ringed"]), radius, across)
    texture = np.sin(across * pixelwise(glyph["stripes"]) + uniform(0, 2 * np.pi))[:, None]
    ground = np.sin(column * uniform(-5, 5) + row * uniform(-5, 5) + uniform(0, 2 * np.pi))[:, None]

    def blend(pair, weight):                          # weight in [-1, 1] mixes the two colours
        first, second = pixelwise(pair[:, 0]), pixelwise(pair[:, 1])
        return (first + second + weight * (first - second)) / 2

    colour = glyph["colour"] + draw.normal(0, 0.08, (n, 2, 3))
    plain = draw.uniform(0, 1, (n, 2, 3))
    plain[:, 1] = plain[:, 0] + wild * (plain[:, 1] - plain[:, 0])
    image = inside * blend(colour, texture) + (1 - inside) * blend(plain, ground)
    light = draw.uniform(1 - 0.3 * wild, 1 + 0.25 * wild, (n, 1))
    cast = draw.uniform(1 - 0.25 * wild, 1 + 0.25 * wild, (n, 3))
    image = image * pixelwise(light * cast) + 0.03 * wild * draw.normal(0, 1, image.shape)
    return (np.clip(image, 0, 1) * 255).astype(np.uint8)


class SmallNet(nn.Sequential):
    """The small backbone: (B, 3, 32, 32) -> (B, 128), four 3 × 3 convolutions, 163,672 weights."""

    def __init__(self):
        layers, width = [], 3
        for out, pool in ((24, True), (48, True), (96, True), (128, False)):
            layers += [nn.Conv2d(width, out, 3, padding=1, bias=False), nn.BatchNorm2d(out),
                       nn.ReLU(inplace=True)] + [nn.MaxPool2d(2)] * pool
            width = out
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


# What `small` sees, whatever the dataset: 36 × 36, of which a random or the central 32 × 32.
SMALL_TRANSFORMS = (v2.Resize((GLYPH_SIZE, GLYPH_SIZE), antialias=True),
                    v2.Compose([v2.RandomCrop(32), v2.RandomHorizontalFlip()]),
                    v2.Compose([v2.Resize((GLYPH_SIZE, GLYPH_SIZE), antialias=True),
                                v2.CenterCrop(32)]))


def pretrain(path):
    """Train SmallNet as a classifier of the 400 pretraining glyphs and save it."""
    torch.manual_seed(0)
    images, labels = glyphs("pretraining")
    split = Split(images, labels, [str(c) for c in labels.unique().tolist()])
    epochs, batch = 12, 100
    loader = train_loader(split, SMALL_TRANSFORMS[1], lambda epoch: shuffled(
        len(labels), batch, seed=0, epoch=epoch), argparse.Namespace(seed=0, workers=0), "cpu")
    network, head = SmallNet(), nn.Linear(128, 400)
    preprocess = Preprocess("small")
    parameters = [*network.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 2e-3, total_steps=epochs * len(labels) // batch)
    for epoch in range(epochs):
        loader.batch_sampler.epoch, total, start = epoch, 0.0, time.time()
        for x, y in tqdm(loader, leave=False, disable=None):
            loss = nn.functional.cross_entropy(head(network(preprocess(x))), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        print(f"epoch {epoch + 1}/{epochs}  loss {total / len(loader):.3f}  "
              f"{time.time() - start:.0f} s", flush=True)
    with atomic(path, "wb") as file:
        torch.save(network.state_dict(), file)
    print(f"wrote {path}, SHA-256 {sha256(path)} (what common.py expects: {WEIGHTS['small'][1]})")


def sheet(path):
    """Draw eight images of ten test classes, a class a row."""
    images, labels = glyphs("test")
    some = torch.cat([images[labels == c][:8] for c in range(10)])
    picture = torchvision.utils.make_grid(some, nrow=8, padding=0)             # (3, 360, 288)
    v2.functional.to_pil_image(picture).resize((864, 1080), PIL.Image.NEAREST).save(path)
    print(f"wrote {path}")


# ---------------------------------------------------------------------------- datasets
@dataclass
class Split:
    """images: indexable, uint8 (3, h, w) each; labels (n,) long from 0; classes: their names."""
    images: object
    labels: torch.Tensor
    classes: list

    def __len__(self):
        return len(self.labels)

    def __str__(self):
        return f"{len(self):,} images of {len(self.classes):,} classes"


@dataclass
class Data:
    """train: what the loader augments; seen: the same images as test images are seen; test: of
    classes that are not in train; gallery: None, or what the test images are searched in."""
    name: str
    train: Split
    seen: Split
    test: Split
    gallery: Split = None

    def counts(self):
        parts = {"train": self.train, "test": self.test, "gallery": self.gallery}
        return {k: [len(s), len(s.classes)] for k, s in parts.items() if s is not None}


@contextlib.contextmanager
def opened(path):
    """An image file as a PIL image.  UserError names a file that cannot be read."""
    try:
        with PIL.Image.open(path) as image:
            yield image
    except (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError) as error:
        raise UserError(f"cannot read the image {path}: {error}")


def decode(path):
    """An image file -> an RGB PIL image.  UserError names a file that cannot be read."""
    with opened(path) as image:
        return image.convert("RGB")


def header_size(path):
    """The width and height of an image, without decoding it."""
    with opened(path) as image:
        return image.size


def through(prefix, image):
    """The deterministic part of a transform, applied by PIL -> uint8 (3, h, w)"""
    return v2.functional.pil_to_tensor(prefix(image) if prefix else image)


class ImageFiles:
    """Indexable images from files, through the deterministic part of a transform."""

    def __init__(self, paths, prefix):
        self.paths, self.prefix = paths, prefix

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return through(self.prefix, decode(self.paths[i]))


def load_dataset(name, root=None, train=None, test=None, cache=True):
    """A dataset by name, or a folder with a sub-folder per class -> Data.

    root: the folder that holds the datasets (default: data_root()) and their cache, `.cache`.
    train, test: the deterministic first part of the transform of training and of test images (the
    rest is random and belongs to the loader); None leaves images as they are.
    cache: keep what that part makes of each image; the tensors are the same without.
    UserError: unknown name; a dataset that is missing, half-extracted or not of the expected
    counts; a folder without sub-folders or with too few; a test class of one image; an image that
    cannot be read; no room for the cache.
    """
    if name == "glyphs":
        def split(part, prefix):
            images, labels = glyphs(part)
            images = torch.stack([through(prefix, v2.functional.to_pil_image(x)) for x in images])
            return Split(images, labels, [f"glyph {c}" for c in GLYPHS[part][0]])
        return Data(name, split("train", train), split("train", test), split("test", test))
    root, given = Path(root or data_root()), name
    name = SMALLER.get(name, name)
    folder, splits = read_dataset(name, root)
    title = name if name in COUNTS else f"{folder.resolve().name}-{_digest(folder.resolve())[:8]}"
    if not cache and name not in COUNTS:            # the real ones are too large to read each time
        fault = next(faults([path for rows in splits.values() for path, _ in rows]), None)
        if fault:
            raise UserError(fault)

    def split(part, prefix):
        rows = splits[part]
        classes = sorted({c for other in splits if (other == "train") == (part == "train")
                          for _, c in splits[other]})          # of test and gallery: the same
        number_of = {c: i for i, c in enumerate(classes)}
        images = ImageFiles([path for path, _ in rows], prefix)
        if cache:
            images = cache_images(images, folder, f"{title}-{part}", root / ".cache")
        return Split(images, torch.tensor([number_of[c] for _, c in rows]), list(map(str, classes)))

    return Data(folder.resolve().name if name not in COUNTS else given,
                split("train", train), split("train", test), split("test", test),
                split("gallery", test) if "gallery" in splits else None)


def read_dataset(name, root):
    """-> its folder, {"train", "test" and perhaps "gallery": [(path, class)]}; load_dataset's
    errors, but for what is in the images."""
    if name in COUNTS:
        folder = find_dataset(name, root)
        splits = {"cub": _cub, "cars": _cars, "sop": _sop, "inshop": _inshop}[name](folder)
        _verify(name, folder, splits)
        return folder, splits
    if not Path(name).is_dir():
        raise UserError(f"unknown dataset '{name}': no folder of images, and none of "
                        f"{', '.join(COUNTS)} (and glyphs, which has no files)")
    return Path(name), _class_folders(Path(name))


def _class_folders(folder):
    """First half of the sub-folders (by name) trains, second half tests, as the papers do."""
    suffixes = set(PIL.Image.registered_extensions())
    classes = {d.name: sorted(p for p in d.rglob("*") if p.suffix.lower() in suffixes)
               for d in sorted(folder.iterdir()) if d.is_dir() and not d.name.startswith(".")}
    classes = {name: files for name, files in classes.items() if files}
    if len(classes) < 4:
        raise UserError(f"{folder} has {len(classes) or 'no'} sub-folders with images: it needs "
                        "one a class and at least 4, of which half train and half test")
    names = list(classes)
    halves = {"train": names[:len(names) // 2], "test": names[len(names) // 2:]}
    for name in halves["test"]:
        if len(classes[name]) < 2:
            raise UserError(f"{folder / name} has one image: a test class needs two, "
                            "one to ask with and one to find")
    return {part: [(path, name) for name in names for path in classes[name]]
            for part, names in halves.items()}


def faults(paths):
    """Read every image -> what is wrong with each that cannot be read."""
    def fault(path):
        try:
            decode(path)
        except UserError as error:
            return str(error)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from filter(None, tqdm(pool.map(fault, paths), "checking images", total=len(paths),
                                     unit="image", leave=False, disable=None))


def check(name, root):
    """`common.py check`: list the images that cannot be read.  UserError if there are any."""
    folder, splits = read_dataset(name, root)
    paths, bad = [path for rows in splits.values() for path, _ in rows], 0
    for fault in faults(paths):
        print(fault, flush=True)
        bad += 1
    if bad:
        raise UserError(f"{bad:,} of {len(paths):,} images in {folder} cannot be read: unpack it "
                        "again")
    print(f"{folder}: {len(paths):,} images, all can be read")


# ---------------------------------------------------------------------------- the real datasets
SMALLER = {"cub128": "cub"}         # presets of a dataset in which its images are smaller
COUNTS = {  # images and classes of each split; with other counts nothing trains
    "cub": {"train": (5864, 100), "test": (5924, 100)},
    "cars": {"train": (8054, 98), "test": (8131, 98)},
    "sop": {"train": (59551, 11318), "test": (60502, 11316)},
    "inshop": {"train": (25882, 3997), "test": (14218, 3985), "gallery": (12612, 3985)}}

SOURCES = {  # the folders (the first one is advised) under the data root, and what to put there
    "cub": (["CUB_200_2011"], "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz "
            "(1,150,585,339 bytes, md5 97eceeb196236b17998738112f37df78), unpacked to {}"),
    "cars": (["cars", "cars196", "stanford_cars"], "car_ims.tgz (md5 "
             "d5c8f0aa497503f355e17dc7886c3f14) and cars_annos.mat (md5 "
             "b407c6086d669747186bd1d764ff9dbc), unpacked to {0}/car_ims and {0}/cars_annos.mat, "
             "or the copies in circulation as {0}/cars_train, {0}/cars_test, "
             "{0}/devkit/cars_train_annos.mat and {0}/devkit/cars_test_annos_withlabels.mat; "
             "their host, ai.stanford.edu/~jkrause/cars, is gone since 2023"),
    "sop": (["Stanford_Online_Products"], "ftp://cs.stanford.edu/cs/cvgl/"
            "Stanford_Online_Products.zip (3,083,860,082 bytes, md5 "
            "7f73d41a2f44250d4779881525aea32e), unpacked to {}"),
    "inshop": (["inshop", "In-shop Clothes Retrieval Benchmark"], "list_eval_partition.txt and the "
               "folder img of the In-shop Clothes Retrieval Benchmark, from the drive of "
               "DeepFashion, mmlab.ie.cuhk.edu.hk/projects/DeepFashion.html (52,712 images; no "
               "checksum is published), unpacked to {}")}

CAUSES = {  # images in all or in a split: where such a count comes from
    "cub": {5994: "the training half of train_test_split.txt, the closed-set split: the papers "
                  "split by class",
            5794: "the test half of train_test_split.txt, the closed-set split: the papers split "
                  "by class",
            6033: "CUB-200 of 2010, the predecessor of CUB-200-2011"},
    "cars": {8144: "cars_train alone, half of the closed-set split: the papers pool cars_train and "
                   "cars_test and split by class",
             8041: "cars_test alone, half of the closed-set split: the papers pool cars_train and "
                   "cars_test and split by class"},
    "inshop": {25881: "a list that lost its first line, the number of rows: then its first image "
                      "is taken for the header"}}


def find_dataset(name, root):
    """The folder of a real dataset under root.  UserError: it is not there; where to get it."""
    folders, where = SOURCES[name]
    for folder in (Path(root, f) for f in folders):
        if folder.is_dir():
            return folder
    raise UserError(f"no {name} under {root} (--data-root or $DML_DATA names another folder): get "
                    + where.format(Path(root, folders[0])))


def _verify(name, folder, splits):
    """UserError if the splits have other counts than expected, or name files that do not exist."""
    found = {part: (len(rows), len({c for _, c in rows})) for part, rows in splits.items()}
    if found != COUNTS[name]:
        images = [n for n, _ in found.values()]
        cause = next((CAUSES[name][n] for n in [sum(images), *images]
                      if n in CAUSES.get(name, {})), "an archive that is incomplete or another one")
        raise UserError(f"{name} in {folder} is not the one of the papers: " + "; ".join(
            f"{part} has {n:,} images of {c:,} classes, expected {images:,} of {classes:,}"
            for part, (images, classes) in COUNTS[name].items()
            for n, c in [found.get(part, (0, 0))]) + f"; likely cause: {cause}")
    paths = [path for rows in splits.values() for path, _ in rows]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise UserError(f"{len(missing):,} of the {len(paths):,} images of {name} are missing, "
                        f"{missing[0]} first: a half-extracted archive? unpack it again")


def _rows(path, *kinds, header=0):
    """The rows of a list file, each field as its kind.  UserError: no file, a malformed row."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path} ({error}): a half-extracted archive?")
    rows = []
    for number, line in enumerate(lines[header:], header + 1):
        try:
            rows.append([kind(field) for kind, field in zip(kinds, line.split(), strict=True)])
        except ValueError:
            raise UserError(f"{path}, line {number}: '{line[:80]}' is not {len(kinds)} fields: " +
                            " ".join({int: "number", str: "text"}[kind] for kind in kinds))
    return rows


def _either(path, other):
    return other if other.exists() and not path.exists() else path


def _cub(folder):
    """CUB-200-2011: classes 1-100 train, 101-200 test."""
    if not (folder / "images.txt").exists() and (folder / "lists").exists():
        raise UserError(f"{folder} has no images.txt but lists: " + CAUSES["cub"][6033])
    class_of = dict(_rows(folder / "image_class_labels.txt", int, int))
    splits = {"train": [], "test": []}
    for i, path in _rows(folder / "images.txt", int, str):
        if i not in class_of:
            raise UserError(f"{folder / 'image_class_labels.txt'} has no class for image {i}")
        splits["train" if class_of[i] <= 100 else "test"].append(
            (folder / "images" / path, Path(path).parent.name))
    return splits


# In a process of its own: there are damaged files on which SciPy's reader crashes (segfault).
READ_MAT = """
import json, sys, scipy.io
with open(sys.argv[1], "rb") as file:
    table = scipy.io.loadmat(file, squeeze_me=True)["annotations"]
print(json.dumps([(str(name), int(c)) for name, c in zip(table[sys.argv[2]], table["class"])]))
"""


def _cars(folder):
    """Cars-196: classes 1-98 train, 99-196 test, of the original layout or of cars_train and
    cars_test pooled."""
    if (folder / "cars_annos.mat").exists():
        lists = [(folder, folder / "cars_annos.mat", "relative_im_path")]
    else:
        lists = [(folder / side, _either(folder / "devkit" / file, folder / file), "fname")
                 for side, file in (("cars_train", "cars_train_annos.mat"),
                                    ("cars_test", "cars_test_annos_withlabels.mat"))]
    splits = {"train": [], "test": []}
    for images, path, field in lists:
        if not path.exists():
            raise UserError(f"no {path} (nor {folder}/cars_annos.mat): a half-extracted archive?")
        reader = subprocess.run([sys.executable, "-c", READ_MAT, path, field], capture_output=True,
                                text=True, errors="replace")
        if reader.returncode:
            said = reader.stderr.strip().splitlines() or [f"the reader died, {reader.returncode}"]
            raise UserError(f"cannot read '{field}' and 'class' of 'annotations' in {path}: "
                            + said[-1])
        rows = json.loads(reader.stdout)
        for name, c in rows:
            splits["train" if c <= 98 else "test"].append((images / name, c))
    return splits


def _sop(folder):
    """Stanford Online Products: its own split by class."""
    return {part: [(folder / path, c) for _, c, _, path in _rows(
        folder / f"Ebay_{part}.txt", int, int, int, str, header=1)] for part in ("train", "test")}


def _inshop(folder):
    """In-Shop: its own split; queries (test) are searched in the gallery."""
    path = _either(folder / "list_eval_partition.txt", folder / "Eval" / "list_eval_partition.txt")
    images = _either(folder / "img", folder / "Img" / "img").parent
    splits = {"train": [], "query": [], "gallery": []}
    for number, (name, item, status) in enumerate(_rows(path, str, str, str, header=2), 3):
        if status not in splits:
            raise UserError(f"{path}, line {number}: status '{status}' is none of "
                            + ", ".join(splits))
        splits[status].append((images / name, item))
    return {"train": splits["train"], "test": splits["query"], "gallery": splits["gallery"]}


# ---------------------------------------------------------------------------- the cache
CACHE_FORMAT, CHUNK = 1, 256               # CHUNK: images between two notes of how many are built


class CachedImages:
    """Indexable images from a cache file: uint8 (3, h, w), in PIL's memory layout, h × w × 3."""

    def __init__(self, path, shapes):
        self.path, self.shapes, self.starts = path, shapes, _starts(shapes)
        self.bytes = np.memmap(path, np.uint8, "r")

    def __reduce__(self):                          # a worker gets the path, not the file's content
        return CachedImages, (self.path, self.shapes)

    def __len__(self):
        return len(self.shapes)

    def __getitem__(self, i):
        image = np.array(self.bytes[self.starts[i]:self.starts[i + 1]])
        return torch.from_numpy(image).view(*self.shapes[i], 3).permute(2, 0, 1)


def _starts(shapes):
    """Where each image begins in the file, and where the last one ends.  n (h, w) -> n + 1"""
    return [0, *np.cumsum([3 * h * w for h, w in shapes]).tolist()]


def _digest(*parts):
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def cache_images(files, folder, title, place):
    """ImageFiles -> CachedImages of a file in `place`, which is built first where need be.

    The name of the file stands for the transform.  The .json beside it says what the file was made
    from (path, size and time of each image, version of PIL) and how many images it holds by now: a
    killed build continues, a changed image starts it anew.  Of several processes one builds, the
    others wait.
    UserError: an image that cannot be read, a place that cannot be written, too little disk.
    """
    stats = ((path.relative_to(folder), path.stat()) for path in files.paths)
    sources = _digest(PIL.__version__, *(f"{path} {stat.st_size} {stat.st_mtime_ns}"
                                         for path, stat in stats))
    data = place / f"{title}-{_digest(files.prefix)[:12]}.images"
    shapes, built = _cache_state(data, sources, len(files))
    if built < len(files):
        try:
            place.mkdir(parents=True, exist_ok=True)
            with open(data.with_suffix(".lock"), "w") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    print(f"waiting for another process that builds {data}", flush=True)
                    fcntl.flock(lock, fcntl.LOCK_EX)
                shapes, built = _cache_state(data, sources, len(files))
                if built < len(files):
                    shapes = _build_cache(files, data, sources, shapes, built)
        except OSError as error:
            raise UserError(f"cannot write the cache {data}: {error}; --no-cache does without it")
    return CachedImages(data, shapes)


def _cache_state(data, sources, n):
    """-> the n shapes (h, w) of a cache file, how many images it holds; (None, 0) if it is not
    whole or made from other sources."""
    try:
        notes = json.loads(data.with_suffix(".json").read_text())
        shapes = [tuple(map(int, shape.split("x"))) for shape in notes["shapes"].split()]
        shapes = shapes * n if len(shapes) == 1 else shapes
        if (notes["format"], notes["sources"], len(shapes), data.stat().st_size) == (
                CACHE_FORMAT, sources, n, _starts(shapes)[-1]):
            return shapes, int(notes["built"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return None, 0


def _build_cache(files, data, sources, shapes, built):
    """Write the images from number `built` on; without shapes a new file.  -> shapes"""
    n, notes, place = len(files), data.with_suffix(".json"), data.parent
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        if shapes is None:
            notes.unlink(missing_ok=True)
            data.unlink(missing_ok=True)       # a new file: somebody may be reading the old one
            shapes = [tuple(files[0].shape[1:])] * n if files.prefix else [
                size[::-1] for size in pool.map(header_size, files.paths)]
            with open(data, "wb") as file:
                file.truncate(_starts(shapes)[-1])
        starts = _starts(shapes)
        need, free = starts[-1] - starts[built], shutil.disk_usage(place).free
        if need > free:
            raise UserError(f"the cache {data} needs {need / 1e9:.2f} GB and {place} has "
                            f"{free / 1e9:.2f} GB free: make room, or do without it by --no-cache")
        print(f"building the cache {data}: {n - built:,} images, {need / 1e9:.2f} GB", flush=True)

        def write(i):
            image = files[i]
            if tuple(image.shape[1:]) != shapes[i]:
                raise UserError(f"{files.paths[i]} should have {shapes[i]} pixels but has "
                                f"{tuple(image.shape[1:])}")
            pixels = np.ascontiguousarray(image.permute(1, 2, 0))
            if os.pwrite(file.fileno(), pixels, starts[i]) < pixels.nbytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with open(data, "r+b") as file, tqdm(total=n, initial=built, desc="decoding", unit="image",
                                             leave=False, disable=None) as bar:
            for first in range(built, n, CHUNK):
                chunk = range(first, min(first + CHUNK, n))
                for _ in pool.map(write, chunk):
                    bar.update()
                os.fsync(file.fileno())        # first the images, then the note that they are there
                write_json(notes, {
                    "format": CACHE_FORMAT, "sources": sources, "transform": repr(files.prefix),
                    "built": chunk.stop, "shapes": " ".join(
                        f"{h}x{w}" for h, w in (shapes[:1] if files.prefix else shapes))})
    return shapes


def shuffled(n, batch, seed, epoch):
    """All n indices in an order that depends on (seed, epoch) alone, in batches."""
    generator = torch.Generator().manual_seed(random_seed(seed, epoch))
    return [part.tolist() for part in torch.randperm(n, generator=generator).split(batch)]


def random_seed(*key):
    """A 64-bit seed from a few whole numbers: what is drawn depends on the key alone."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])


class _Augmented(torch.utils.data.Dataset):
    def __init__(self, split, augment, seed):
        self.split, self.augment, self.seed = split, augment, seed

    def __getitem__(self, key):
        epoch, index = key
        with torch.random.fork_rng(devices=[]):       # by (seed, epoch, image): any worker or order
            torch.default_generator.manual_seed(random_seed(self.seed, epoch, index))
            return self.augment(self.split.images[index]), int(self.split.labels[index])


class _Keys:
    """The batches of one epoch at a time, as (epoch, index) for every image."""

    def __init__(self, batches):
        self.batches, self.epoch = batches, 0

    def __iter__(self):
        return iter([[(self.epoch, i) for i in batch] for batch in self.batches(self.epoch)])

    def __len__(self):
        return len(self.batches(self.epoch))


def _workers(cfg, images):
    if cfg.workers is not None:
        return cfg.workers
    return 0 if torch.is_tensor(images) else min(8, os.cpu_count())


LOCKS = set()                       # of the run folders in which this process trains


def _start_worker(_):
    """Ctrl-C and the run folder's lock are for the parent: a worker may outlive it for seconds."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for lock in LOCKS:
        os.close(lock)


def train_loader(split, augment, batches, cfg, device):
    """Batches of (uint8 images, labels) on the host; batches(epoch) -> lists of indices."""
    workers = _workers(cfg, split.images)
    return torch.utils.data.DataLoader(
        _Augmented(split, augment, cfg.seed), batch_sampler=_Keys(batches), num_workers=workers,
        persistent_workers=workers > 0, pin_memory=torch.device(device).type == "cuda",
        worker_init_fn=_start_worker, generator=torch.Generator())     # not the global one


@torch.inference_mode()
def embed(function, split, cfg, batch=200):
    """function(uint8 images on the device) for every image of a split -> (n, d) float32."""
    images, place = split.images, device(cfg)
    batches = images.split(batch) if torch.is_tensor(images) else torch.utils.data.DataLoader(
        images, batch, num_workers=_workers(cfg, images), pin_memory=place.type == "cuda",
        worker_init_fn=_start_worker, generator=torch.Generator())
    bar = tqdm(batches, "embedding", unit="batch", leave=False, disable=None)
    found = torch.cat([function(x.to(place, non_blocking=True)).float() for x in bar])
    if not torch.isfinite(found).all():
        raise NonFiniteLoss("the network's embeddings are not finite: training diverged; last.pt "
                            "of the run holds the last good epoch")
    return found


def embeddings(function, data, cfg, splits=("test", "gallery", "seen")):
    """function's embeddings of the splits and their labels, as keyword arguments of eval.judge."""
    found = {}
    for name in splits:
        if (split := getattr(data, name)) is not None:
            found[name] = embed(function, split, cfg)
            found["labels" if name == "test" else f"{name}_labels"] = split.labels
    return found


# ---------------------------------------------------------------------------- pretrained backbones
class Preprocess(nn.Module):
    """uint8 RGB (B, 3, h, w) -> the float input that a backbone was pretrained on."""
    INPUTS = {"small": ((127.5,) * 3, (127.5,) * 3, False),
              "bn_inception": ((104.0, 117.0, 128.0), (1.0,) * 3, True)}     # BGR, 0-255

    def __init__(self, backbone):
        super().__init__()
        if backbone in self.INPUTS:
            mean, std, self.bgr = self.INPUTS[backbone]
        else:
            wanted = _published(backbone).IMAGENET1K_V1.transforms()
            mean, std = ([255 * v for v in values] for values in (wanted.mean, wanted.std))
            self.bgr = False
        self.register_buffer("mean", torch.tensor(mean)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(std)[:, None, None], persistent=False)

    def forward(self, images):
        images = images.flip(1) if self.bgr else images
        return (images.float() - self.mean) / self.std


def backbone_name(text):
    """An argparse type: bn_inception, small, or a model of torchvision with IMAGENET1K_V1."""
    if text not in WEIGHTS and not hasattr(_published(text), "IMAGENET1K_V1"):
        raise argparse.ArgumentTypeError(f"'{text}' is none of {', '.join(WEIGHTS)} and no "
                                         "classification model of torchvision with IMAGENET1K_V1")
    return text


def _published(name):
    """torchvision's enum of a classification model's weights, None where it has no such model."""
    if name in torchvision.models.list_models(module=torchvision.models):
        return torchvision.models.get_model_weights(name)


def backbone(name):
    """`small`, or a model of torchvision without its 1000-way layer -> module, width of its output

    Without dropout and stochastic depth, which the papers do not have.
    """
    if name == "small":
        return SmallNet(), 128
    inception = dict(aux_logits=False, init_weights=False, transform_input=True)
    network = torchvision.models.get_model(name, weights=None, **(
        inception if name in ("googlenet", "inception_v3") else {}))
    for module in network.modules():
        if isinstance(module, (nn.Dropout, torchvision.ops.StochasticDepth)):
            module.p = 0.0
    layer, last = [(path, module) for path, module in network.named_modules()
                   if isinstance(module, (nn.Linear, nn.Conv2d))][-1]
    parent, _, child = layer.rpartition(".")
    setattr(network.get_submodule(parent), child, nn.Identity())
    return network, last.weight.shape[1]


WEIGHTS = {  # backbone: file name, SHA-256 (or the digits of it that are published), where it is
    "small": ("glyphs_backbone.pth",
              "a2d35efeb963d00da00eb25a3cb02c123ce8129421c8d1072b9456e4d7a83086", None),
    "bn_inception": ("bn_inception-52deb4733.pth",
                     "52deb473314542a5c2f87e9e6f26f4ca42fe863d15f986414dbae8c2dfdd2353",
                     "http://data.lip6.fr/cadene/pretrainedmodels/")}


def weights_file(name):
    """-> file name, SHA-256 or its published digits, address.  Of torchvision's models
    IMAGENET1K_V1: what the papers' time had; V2 is stronger."""
    if name in WEIGHTS:
        return WEIGHTS[name]
    url, _, file = _published(name).IMAGENET1K_V1.url.rpartition("/")
    return file, file.rpartition("-")[2].removesuffix(".pth"), url + "/"


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_weights(backbone, name, source=None):
    """Load pretrained weights into a backbone without its classifier -> their SHA-256, or 'random'.

    source: a file, 'random' for none, None for the published file (found in torch's hub folder or
    downloaded there; torch.hub checks the hash and leaves no truncated file behind).
    UserError: no file, no network, a published file's name with another hash, names or shapes
    that do not fit.
    """
    file, digest, url = weights_file(name)
    if source == "random":
        return "random"
    path = Path(source or Path(HERE if url is None else torch.hub.get_dir() + "/checkpoints", file))
    if not path.exists():
        if source or url is None:
            raise UserError(f"no weights file {path}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url + file, str(path), hash_prefix=digest)
        except (OSError, RuntimeError) as error:
            raise UserError(f"cannot download {url + file}: {error}; fetch it some other way and "
                            "pass --weights FILE, or --weights random to train from scratch")
    found = sha256(path)
    if path.name == file and not found.startswith(digest):
        raise UserError(f"{path} is not {file}: SHA-256 {found[:16]}…, expected {digest[:16]}…")
    own, state = backbone.state_dict(), load_torch(path)
    state = {k: v for k, v in state.items() if k in own or not k.startswith(
        ("last_linear.", "fc.", "aux", "classifier.", "head"))}         # the classifier's
    wrong = [k for k in own | state
             if k not in own or k not in state or own[k].shape != state[k].shape]
    if wrong:
        raise UserError(f"{path} does not fit {name}: {len(wrong)} names or shapes differ, "
                        f"{wrong[0]} first")
    backbone.load_state_dict(state)
    return found


def load_torch(path):
    """torch.load of tensors and plain values, never of code.  UserError if the file is no such."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"no file {path}")
    except Exception as error:                  # torch.load fails in a dozen ways on a damaged file
        raise UserError(f"cannot load {path} ({reason(error).partition('. ')[0]}): it is damaged, "
                        "or no file of tensors and plain values")


def reason(error):
    """The first line of an error's message, or its name if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


# ---------------------------------------------------------------------------- the run folder
@contextlib.contextmanager
def atomic(path, mode="w"):
    """Open a file that appears under its name only when it is whole."""
    path = Path(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, mode) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_json(path, value):
    with atomic(path) as file:
        json.dump(value, file, indent=1)
        file.write("\n")


def read_checkpoint(path):
    """A last.pt -> its dict.  UserError unless one of the three scripts wrote it."""
    state = load_torch(path)
    if not isinstance(state, dict) or state.get("paper") not in PAPERS or "config" not in state:
        raise UserError(f"{path} is not a checkpoint of {', '.join(PAPERS)}")
    return state


def _value(value):
    return "_".join(map(_value, value)) if isinstance(value, (list, tuple)) else (
        f"{value:g}" if isinstance(value, float) else Path(str(value)).name)


PLACE = ("data_root", "out", "device", "workers", "no_cache")    # where, not what, a run computes


def differences(cfg, preset):
    """What differs from the dataset's preset -> {setting: value}"""
    return {k.rstrip("_"): v for k, v in vars(cfg).items()
            if k not in PLACE + ("seed", "dataset") and v != getattr(preset, k)}


def run_folder(paper, cfg, preset):
    """`<out>/<paper>-<dataset>-<what differs from the preset>-s<seed>`"""
    changed = [name + _value(value) for name, value in differences(cfg, preset).items()]
    return Path(cfg.out, "-".join([paper, Path(cfg.dataset).resolve().name, *changed,
                                   f"s{cfg.seed}"]))


def other_settings(folder, config):
    """{setting: (in the folder's config.json, in config)} where they differ, or None without such
    a file.  UserError if it is damaged."""
    path = folder / "config.json"
    if not path.exists():
        return None
    try:
        old = json.loads(path.read_text())
        old, new = dict(old), json.loads(json.dumps(config))
    except (ValueError, TypeError):
        raise UserError(f"{path} is not the settings of a run: delete {folder} to train anew")
    names = sorted({*old, *new} - {*PLACE, "versions", "commit"})
    return {k: (old.get(k), new.get(k)) for k in names if old.get(k) != new.get(k)}


class Run:
    """One training: `runs/<paper>-<dataset>-<what differs from the preset>-s<seed>/` with
    config.json, log.jsonl (a line an epoch), last.pt (after every epoch) and result.json.

    Use as a context manager around the training.  A killed run continues from last.pt by the same
    command; a folder whose settings differ is refused (UserError, with the fields that differ).
    """
    def __init__(self, paper, cfg, preset, data, weights):
        self.cfg, self.paper, self.ks = cfg, paper, [f"R@{k}" for k in cfg.ks]
        changed = differences(cfg, preset)
        self.folder = run_folder(paper, cfg, preset)
        self.config = {"paper": paper, **vars(cfg), "weights_sha256": weights,
                       "splits": data.counts(), "versions": versions(), "commit": commit()}
        self.history, self.untrained, self.epoch, self.columns = [], None, 0, None
        self._check_folder()
        self._header(data, changed, weights)

    def _check_folder(self):
        differ = other_settings(self.folder, self.config) or {}
        if differ:
            raise UserError(f"{self.folder} holds a run with other settings: " + ", ".join(
                f"{k} (there {old!r}, now {new!r})" for k, (old, new) in differ.items()) +
                "; delete it or choose another --out")

    def _header(self, data, changed, weights):
        place = device(self.cfg)
        kind = torch.cuda.get_device_name(place) if place.type == "cuda" else \
            f"{torch.get_num_threads()} threads"
        print(f"{self.paper} on {data.name} · {place} ({kind}) · torch {torch.__version__}")
        print(f"train {data.train} · test {data.test}, none of them in train" +
              (f" · gallery {data.gallery}" if data.gallery else ""))
        print(f"backbone {self.cfg.backbone}, weights {weights[:12]}")
        print("settings: the preset" + (", but " if changed else "") +
              ", ".join(f"{k} {_value(v)}" for k, v in changed.items()))

    def __enter__(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._check_folder()                   # again: somebody may have held the lock till now
        except (BlockingIOError, UserError) as error:
            os.close(self.lock)
            raise error if isinstance(error, UserError) else UserError(
                f"another process is training in {self.folder}")
        LOCKS.add(self.lock)
        for part in self.folder.glob(".*.part"):               # of a process killed while it wrote
            part.unlink()
        if not (self.folder / "config.json").exists():
            write_json(self.folder / "config.json", self.config)
        return self

    def __exit__(self, kind, error, traceback):
        LOCKS.discard(self.lock)
        os.close(self.lock)
        if kind is KeyboardInterrupt:
            command = shlex.join(["python", *sys.argv])
            print(f"\nstopped: {self.folder} holds {len(self.history)} of {self.cfg.epochs} epochs."
                  f"  To continue: {command}", file=sys.stderr)

    @property
    def result(self):
        """What `finish` wrote, or None while the run is not finished."""
        path = self.folder / "result.json"
        return json.loads(path.read_text()) if path.exists() else None

    def restore(self, **parts):
        """Load the last checkpoint into parts (anything with load_state_dict), if there is one."""
        self.parts, path = parts, self.folder / "last.pt"
        if path.exists():
            state = read_checkpoint(path)
            try:
                for name, part in parts.items():
                    part.load_state_dict(state[name])
                self.history, self.untrained = state["history"], state["untrained"]
            except (KeyError, RuntimeError, ValueError) as error:
                raise UserError(f"{path} does not fit this {self.paper}.py: {reason(error)}; "
                                f"delete {self.folder} to train anew")
            self._write_log()
            print(f"{self.folder} is finished; delete it to train again" if self.result else
                  f"continuing {self.folder} after epoch {len(self.history)}")

    def epochs(self):
        """The epochs still to train, from 0."""
        self.started, self.first = time.time(), len(self.history)
        for self.epoch in range(self.first, self.cfg.epochs):
            yield self.epoch

    def evaluates(self):
        """Whether the current epoch is one of every --eval-every, or the last."""
        return (self.epoch + 1) % self.cfg.eval_every == 0 or self.epoch + 1 == self.cfg.epochs

    def steps(self, loader):
        """The batches of the current epoch behind a progress bar."""
        loader.batch_sampler.epoch = self.epoch
        self.losses, self.images, start = [], 0, time.time()
        with tqdm(loader, f"epoch {self.epoch + 1}/{self.cfg.epochs}", unit="batch", leave=False,
                  disable=None) as bar:
            for images, labels in bar:
                yield images, labels
                self.images += len(labels)
                if len(self.losses) % 50 == 0:            # read back: the only wait in 50 steps
                    bar.set_postfix(loss=f"{self._mean_losses()['loss']:.3f}", refresh=False)
        self.means = self._mean_losses()
        self.seconds = time.time() - start

    def record(self, **losses):
        """Note the loss parts of a step; they stay on the device until somebody reads them."""
        self.names = list(losses)
        self.losses.append(torch.stack([v.detach().float() for v in losses.values()]))

    def _mean_losses(self):
        losses = torch.stack(self.losses).cpu()
        bad = (~torch.isfinite(losses)).any(1).nonzero()[:, 0].tolist()
        if bad:
            last = self.folder / "last.pt"
            parts = ", ".join(f"{k} {v:g}" for k, v in zip(self.names, losses[bad[0]].tolist()))
            raise NonFiniteLoss(f"the loss is not finite at epoch {self.epoch + 1}, step "
                                f"{bad[0] + 1}: {parts}; last good checkpoint: " +
                                (f"{last} (epoch {self.epoch})" if last.exists() else "none yet"))
        return dict(zip(self.names, losses.double().mean(0).tolist()))

    def end_epoch(self, **row):
        """Log, checkpoint and print an epoch."""
        row = {"epoch": self.epoch + 1, **self.means, **row,
               "images/s": self.images / self.seconds, "seconds": self.seconds}
        self.history.append(row)
        with atomic(self.folder / "last.pt", "wb") as file:
            torch.save({"paper": self.paper, "config": self.config, "history": self.history,
                        "untrained": self.untrained,
                        **{k: v.state_dict() for k, v in self.parts.items()}}, file)
        self._write_log()
        seen = any("seen R@1" in old for old in self.history)
        columns = [*self.names, *self.ks, *["seen R@1"] * seen]

        def wide(column):
            return max(9, len(column))
        if columns != self.columns:
            self.columns = columns
            print(f"{'epoch':>9}" + "".join(f" {c:>{wide(c)}}" for c in columns) +
                  f"{'images/s':>10}{'left':>9}")
        done = self.epoch + 1 - self.first
        left = (time.time() - self.started) / done * (self.cfg.epochs - self.epoch - 1)
        print(f"{row['epoch']:>5}/{self.cfg.epochs:<3}" + "".join(
            f" {row[c]:>{wide(c)}.{4 if abs(row[c]) < 1e4 else 0}f}" if c in self.names else
            f" {100 * row[c]:>{wide(c) - 1}.1f}%" if c in row else f" {'–':>{wide(c)}}"
            for c in columns) +
            f"{row['images/s']:>10,.0f}{int(left) // 60:>6}:{int(left) % 60:02}", flush=True)

    def _write_log(self):
        with atomic(self.folder / "log.jsonl") as file:
            file.writelines(json.dumps(row) + "\n" for row in self.history)

    def finish(self, last):
        """Write result.json: last epoch, best on test labelled as such, untrained backbone."""
        best = max((row for row in self.history if self.ks[0] in row),
                   key=lambda row: row[self.ks[0]])
        write_json(self.folder / "result.json", {
            "last epoch": {"epoch": len(self.history), **last},
            "best on test": {"epoch": best["epoch"], **{k: best[k] for k in self.ks}},
            "untrained backbone": self.untrained,
            "seconds": sum(row["seconds"] for row in self.history)})


def versions():
    return {"python": sys.version.split()[0], "torch": str(torch.__version__),
            "torchvision": str(torchvision.__version__), "numpy": np.__version__}


def commit():
    """The commit of these files, '+' where they were changed since; None outside a git checkout."""
    with contextlib.suppress(OSError):
        git = subprocess.run(["git", "-C", HERE, "describe", "--always", "--exclude=*",
                              "--abbrev=40", "--dirty=+"], capture_output=True, text=True)
        return git.stdout.strip() or None


def parse_args(argv=None):
    parser = Parser(prog="common.py", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for function, target in ((sheet, "glyphs.png"), (pretrain, HERE / WEIGHTS["small"][0])):
        maker = commands.add_parser(function.__name__)
        maker.add_argument("--to", metavar="FILE", default=target,
                           help=f"what to write (default: {target})")
        maker.set_defaults(run=lambda args, function=function: function(args.to))
    checker = commands.add_parser("check")
    checker.set_defaults(run=lambda args: check(args.dataset, args.data_root))
    checker.add_argument("dataset", help=f"{', '.join(COUNTS)}, or a folder of images")
    checker.add_argument("--data-root", metavar="DIR", default=data_root(),
                         help="folder that holds the datasets (default: $DML_DATA, else ./data)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main(lambda args: args.run(args), parse_args)

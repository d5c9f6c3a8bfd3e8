"""Pretrained networks: their input, their weights from a file or downloaded, their precision."""
import argparse
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn as nn
import torchvision

from support import glyphs
from support.files import UserError, listed, load_torch, reason, sha256
from support.networks import BNInception, GoogLeNet


class Backbone(NamedTuple):
    """A row of BACKBONES: a network and what its weights were trained on."""
    build: Callable             # () -> the module, without classifier: (B, 3, h, w) -> (B, width)
    mean: tuple                 # of the input, per channel, in 0 to 255
    std: tuple = (1.0, 1.0, 1.0)
    bgr: bool = False           # whether the input's channels are blue, green, red
    file: str = None            # published weights: a path, or a name in the folder of torch's hub
    sha256: str = None          # of this file, or the first digits
    url: str = None             # the folder on the web that has it


BACKBONES = {
    "small": Backbone(glyphs.SmallNet, mean=(127.5, 127.5, 127.5), std=(127.5, 127.5, 127.5),
                      file=str(glyphs.WEIGHTS), sha256=glyphs.SHA256),
    "bn_inception": Backbone(
        BNInception, mean=(104.0, 117.0, 128.0), bgr=True, file="bn_inception-52deb4733.pth",
        sha256="52deb473314542a5c2f87e9e6f26f4ca42fe863d15f986414dbae8c2dfdd2353",
        url="http://data.lip6.fr/cadene/pretrainedmodels/"),
    # No file: Caffe's has to be converted.
    "googlenet_bvlc": Backbone(GoogLeNet, mean=(104.0, 117.0, 123.0), bgr=True),
}
BACKBONE = ("the paper's own, small, or a classification model of torchvision: resnet50, "
            "squeezenet1_1, ...")                       # --help's line


def find_backbone(name):
    """The row of BACKBONES, or one made of torchvision's classification model -> Backbone.
    ValueError: there is none; KeyError: torchvision has no IMAGENET1K_V1 weights for it."""
    if name in BACKBONES:
        return BACKBONES[name]
    # V1, as in the papers' time (V2 is stronger); its name has its hash's first digits.
    weights = torchvision.models.get_model_weights(name)["IMAGENET1K_V1"]
    url, file = weights.url.rsplit("/", 1)
    normalize = weights.transforms()
    return Backbone(partial(torchvision_backbone, name),
                    mean=tuple(255 * value for value in normalize.mean),
                    std=tuple(255 * value for value in normalize.std),
                    file=file, sha256=Path(file).stem.rpartition("-")[2], url=f"{url}/")


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
    network.set_submodule(last, nn.Identity())
    return network


def backbone_name(text):
    """An argparse type: a name that find_backbone knows."""
    try:
        find_backbone(text)
    except (KeyError, ValueError):
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
            _, width = network.eval()(torch.zeros(1, 3, size, size)).shape
    except (RuntimeError, AssertionError, ValueError) as error:
        raise UserError(f"{name} cannot take images of {size} × {size} (--size), or does not give "
                        f"(B, width) for them: {reason(error)}")
    return network, width


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


# ---------------------------------------------------------------------------- precision
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
        raise UserError(f"{path} is not the published file: SHA-256 {sha}, expected {row.sha256}")
    wanted = network.state_dict()                       # it has its layers' versions too
    state = unwrapped(load_torch(path), next(iter(wanted)))
    wrong = []
    for key, value in state.items():
        if key in wanted and getattr(value, "shape", None) == wanted[key].shape:
            wanted[key] = value
        elif key in wanted or not key.startswith(CLASSIFIERS):
            wrong.append(key)
    for key in sorted(wanted.keys() - state.keys()):
        if not key.endswith("num_batches_tracked"):     # which old files lack
            wrong.append(key)
    if wrong:
        raise UserError(f"{path} does not fit {name}: {len(wrong)} names or shapes differ: "
                        f"{listed(wrong)}; --backbone NAME says whose weights they are")
    network.load_state_dict(wanted)
    if not published:
        print(f"weights {path}: not a published file, taken as it is; SHA-256 {sha}")
    return sha


def weights_file(name, row, source):
    """The path of a file of weights, downloaded if it is published.  UserError: there is none."""
    if source:
        return Path(source)
    if not row.file:
        raise UserError(f"{name} needs --weights FILE (docs/running.md), or --weights random to "
                        "train from scratch")
    path = Path(torch.hub.get_dir(), "checkpoints", row.file)
    if not path.exists():
        url = row.url + row.file
        try:
            torch.hub.load_state_dict_from_url(url, check_hash=True, weights_only=True)
        except Exception as error:          # a server fails in a dozen ways
            raise UserError(f"cannot download {url}: {error}; fetch it some other way and put it "
                            f"at {path}, or pass --weights FILE or --weights random")
    return path


def unwrapped(state, name):
    """The tensors of a weights file by the names that a backbone gives them; name: one of those."""
    for key in ("state_dict", "model", "network"):
        if isinstance(state, dict):
            state = state.get(key, state)
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

"""Pretrained networks: their input, their weights from a file or downloaded, their precision."""
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn as nn
import torchvision

from support import glyphs
from support.caffe import read_caffemodel
from support.files import UserError, listed, load_torch, reason, sha256
from support.networks import BNInception, GoogLeNet


class Backbone(NamedTuple):
    """A row of BACKBONES: a network and what its weights were trained on."""
    build: Callable             # () -> the module, without classifier: (B, 3, h, w) -> (B, width)
    mean: tuple                 # of the input, per channel or of all, in 0 to 255
    std: tuple = (1.0,)
    bgr: bool = False           # whether the input's channels are blue, green, red
    file: str = ""              # published weights: a path or a URL
    sha256: str = None          # of this file, or the first digits


BACKBONES = {
    "small": Backbone(glyphs.SmallNet, mean=(127.5,), std=(127.5,), file=str(glyphs.WEIGHTS),
                      sha256=glyphs.SHA256),
    "bn_inception": Backbone(
        BNInception, mean=(104.0, 117.0, 128.0), bgr=True,
        file="http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth",
        sha256="52deb473314542a5c2f87e9e6f26f4ca42fe863d15f986414dbae8c2dfdd2353"),
    # No file, because nobody here could try its download.
    "googlenet_bvlc": Backbone(GoogLeNet, mean=(104.0, 117.0, 123.0), bgr=True),
}
BACKBONE = ("the paper's own, small, or a classification model of torchvision: resnet50, "
            "squeezenet1_1, ...")                       # --help's line


def find_backbone(name):
    """The row of BACKBONES, or one made of torchvision's classification model -> Backbone.
    UserError: there is none."""
    if name in BACKBONES:
        return BACKBONES[name]
    try:        # V1, as in the papers' time (V2 is stronger: test_libraries)
        weights = torchvision.models.get_model_weights(name)["IMAGENET1K_V1"]
    except (KeyError, ValueError):
        raise UserError(f"--backbone {name} is none of {', '.join(BACKBONES)} and no "
                        "classification model of torchvision with IMAGENET1K_V1")
    inputs = weights.transforms()
    return Backbone(partial(torchvision_backbone, name), file=weights.url,
                    sha256=Path(weights.url).stem.rpartition("-")[2],
                    mean=[255 * value for value in inputs.mean],
                    std=[255 * value for value in inputs.std])


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
    find_backbone(text)
    return text


def backbone(name, size=224):
    """A backbone without weights -> module, width of its output.  UserError: a module that cannot
    take images of size × size, or whose output is not (B, width)."""
    network = find_backbone(name).build()
    try:
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
    torch.backends.cudnn.benchmark = True           # chooses by timing, per shape
    layout = torch.channels_last                    # the convolutions bring images to it
    if float32_on_a_gpu(cfg.device, cfg.precision):
        layout = torch.contiguous_format
    return network.to(cfg.device, memory_format=layout)


def float32_on_a_gpu(device, precision):
    """Whether a GPU's convolutions multiply float32: with fp32, and with tf32 on a GPU older than
    Ampere, which has no TF32.  Contiguous images are said to be faster then (pytorch#44943); we
    have not timed it."""
    if torch.device(device).type != "cuda" or precision == "bf16":
        return False
    return precision == "fp32" or torch.cuda.get_device_capability(device) < (8, 0)


def features(backbone, images, precision):
    """backbone(images), in bfloat16 with --precision bf16.  (B, 3, h, w) -> images' own dtype"""
    if float32_on_a_gpu(images.device, precision):
        images = images.contiguous()                # those of a cache are channels_last
    with torch.autocast(images.device.type, torch.bfloat16, enabled=precision == "bf16"):
        return backbone(images).to(images.dtype)


def freeze_batch_norm(network):
    """Put the batch norms of network.backbone into eval mode; their affine parameters learn on."""
    for module in network.backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return network


# ---------------------------------------------------------------------------- weights
# Names of classification layers begin so; a file may have them too.
CLASSIFIERS = ("last_linear.", "loss", "fc.", "aux", "AuxLogits.", "classifier.", "head")


def load_weights(network, name, source=None):
    """Load pretrained weights into a backbone without its classifier -> their SHA-256, or 'random'.

    source: a file, 'random' for none, None for the published file, in torch's hub folder or
    downloaded there.  A file of one's own may have the classifier too, lie in a "state_dict" or
    "model", have a prefix common to all names, be a run's last.pt, or a .caffemodel.
    UserError: no file, no network or two, a published file's name with another hash, other names,
    shapes.
    """
    if source == "random":
        return "random"
    sha, state = fitting_weights(network, name, source, print)
    wanted = network.state_dict()                       # it has its layers' versions too
    wanted.update(state)
    network.load_state_dict(wanted, strict=False)
    return sha


def check_weights(name, source=None):
    """Raise, before anything long begins, what load_weights would raise of these weights."""
    if source != "random":
        with torch.random.fork_rng(devices=[]):         # a network is drawn, and left
            network = find_backbone(name).build()
        fitting_weights(network, name, source, lambda text: None)


def fitting_weights(network, name, source, say):
    """Read a weights file -> its SHA-256, its tensors by the network's names.  say: called with
    each line that a person should read.  UserError, OSError: as of load_weights."""
    row = find_backbone(name)
    path = find_weights(name, source)
    sha = sha256(path)
    if path.name != Path(row.file).name:
        say(f"weights {path}: not a published file, taken as it is; SHA-256 {sha}")
    elif not sha.startswith(row.sha256):
        raise UserError(f"{path} is not the published file: SHA-256 {sha}, expected {row.sha256}")
    wanted = network.state_dict()
    names = [key for key in wanted if not key.endswith("num_batches_tracked")]  # old files lack it
    read = read_caffemodel if path.suffix == ".caffemodel" else load_torch
    state = unwrapped(read(path), names, path, say)
    wrong = []
    for key in sorted(wanted.keys() | state.keys()):
        if key not in wanted:
            fits = key.startswith(CLASSIFIERS)
        elif key not in state:
            fits = key not in names
        else:
            fits = getattr(state[key], "shape", None) == wanted[key].shape
        if not fits:
            wrong.append(key)
    if wrong:
        raise UserError(f"{path} does not fit {name}: {len(wrong)} names or shapes differ: "
                        f"{listed(wrong)}; --backbone NAME says whose weights they are")
    return sha, state


def find_weights(name, source=None):
    """The path of a backbone's weights: source or, without one, the published file, which is
    downloaded if it is not here; None for 'random'.  UserError, OSError: there is no such file."""
    if source == "random":
        return None
    if source:
        Path(source).stat()
        return Path(source)
    row = find_backbone(name)
    if not row.file:
        raise UserError(f"{name} needs --weights FILE (docs/running.md), or --weights random to "
                        "train from scratch")
    path = Path(row.file)
    if not path.exists():
        path = Path(torch.hub.get_dir(), "checkpoints", path.name)
    if not path.exists():
        try:
            torch.hub.load_state_dict_from_url(row.file, check_hash=True, weights_only=True)
        except Exception as error:          # a server fails in a dozen ways
            raise UserError(f"cannot download {row.file}: {error}; fetch it some other way and put "
                            f"it at {path}, or pass --weights FILE, --weights random, or "
                            "--backbone small, whose weights are part of this code")
    return path


class Place(NamedTuple):
    """Where in a weights file a network may lie."""
    keys: tuple             # that lead to a dict in the dict
    tensors: dict           # this dict
    prefix: str             # of the network's names in it
    count: int              # how many of the wanted names are there


def unwrapped(state, wanted, path, say):
    """The tensors of a weights file by the names that a backbone gives them, `wanted`: from the
    place that has the most of these.  UserError: two dicts have all."""
    places = []
    for keys, tensors in dicts_in(state):
        prefixes = [""]
        for key in tensors:
            if key.endswith(f".{wanted[0]}"):
                prefixes.append(key.removesuffix(wanted[0]))
        for prefix in prefixes:
            count = sum(prefix + name in tensors for name in wanted)
            places.append(Place(keys, tensors, prefix, count))
    most = max([place.count for place in places], default=0)
    if most == 0:
        return {}
    places = [place for place in places if place.count == most]
    usual = [place.keys for place in places if {*place.keys} <= {"state_dict", "model", "network"}]
    if usual:                                           # others beside it are averages of it
        places = [place for place in places if place.keys == usual[0]]
    if most == len(wanted):
        say_which(places, wanted[0], path, say)
    renamed, prefix = {}, places[0].prefix
    for key, value in places[0].tensors.items():
        if key.startswith(prefix):
            renamed[key.removeprefix(prefix)] = value
    return renamed


def dicts_in(state, *keys):
    """The keys that lead to it, and itself, of a dict and of every dict in it."""
    if isinstance(state, dict):
        tensors = {}
        for key, value in state.items():                # DenseNet's names in old files
            tensors[re.sub(r"(denselayer\d+\.\w+)\.([12]\.)", r"\1\2", str(key))] = value
        yield keys, tensors
        for key, value in state.items():
            yield from dicts_in(value, *keys, key)


def say_which(places, name, path, say):
    """Say which of several networks is taken.  UserError: each is in a dict of its own, as student
    and teacher, and only who made them knows which one is meant."""
    dicts = []
    for place in places:
        keys = "".join(f"[{key!r}]" for key in place.keys)
        if keys not in dicts:
            dicts.append(keys)
    if len(dicts) > 1:
        raise UserError(f"{path} has {len(dicts)} networks, {listed(dicts)}: save the one to take "
                        f"alone: torch.save(torch.load({str(path)!r}){dicts[0]}, 'one.pth')")
    if len(places) > 1:
        names = [place.prefix + name for place in places]
        say(f"note: {path} has {len(names)} networks, with {listed(names)}; the first is taken")

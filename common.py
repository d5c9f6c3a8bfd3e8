"""What the three paper scripts share and no paper is about: data, backbones, the run folder.

    load_dataset(name, root, ...)   the papers' datasets, glyphs, or a folder of images
    train_loader, embed             batches of one epoch; the embeddings of a split
    backbone, load_weights          pretrained networks, from a file or downloaded
    to_device, features             --precision and channels_last
    load(checkpoint)                a trained network, ready to embed
    Run                             header, progress, log, atomic checkpoint, automatic resume
    python common.py check cub      reads every image of a dataset and lists those it cannot
    python common.py prepare cub    fetches the dataset (cub, sop) and weights, builds caches

Images are uint8 RGB (3, h, w) until `Preprocess` turns a batch into what its backbone knows.
"""
import argparse
import importlib
import itertools
import shutil
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torchvision
from torchvision.datasets.utils import check_md5, extract_archive
from tqdm import tqdm

from support import glyphs
from support.command_line import (Parser, add_shared_arguments, cores, data_root,  # noqa: F401
                                  device, idle_shared, main, number, output, refuse_idle,
                                  settings)
from support.files import (NonFiniteLoss, UserError, atomic, listed, load_torch,  # noqa: F401
                           reason, sha256)
from support.glyphs import SMALL_TRANSFORMS, SmallNet                            # noqa: F401
from support.images import (Data, ImageFiles, Split, check, iterations_for,      # noqa: F401
                            load_dataset, need_pairs)
from support.layouts import ARCHIVES, COUNTS, FOLDERS, SMALLER
from support.networks import BNInception, GoogLeNet
from support.runs import PAPERS, Run, other_images, read_checkpoint, run_folder  # noqa: F401


# ---------------------------------------------------------------------------- batches, embeddings
def random_seed(*key):
    """A 64-bit seed from a few whole numbers: what is drawn depends on the key alone."""
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


def _loading(cfg, images):
    """Arguments of torch's loader; a generator of its own leaves the global one alone."""
    default = 0 if torch.is_tensor(images) else min(8, cores())
    return dict(num_workers=default if cfg.workers is None else cfg.workers,
                pin_memory=device(cfg).type == "cuda", generator=torch.Generator())


def train_loader(split, augment, batches, cfg):
    """A function of the epoch -> its batches of (uint8 images, labels) on the host.

    batches(labels, cfg, epoch) -> lists of indices.  What an epoch draws depends on (--seed, epoch,
    image) alone, in whichever worker and order.
    """
    order, how = [], _loading(cfg, split.images)    # one loader for all epochs: its workers live on
    loader = torch.utils.data.DataLoader(_Augmented(split, augment, cfg.seed), batch_sampler=order,
                                         persistent_workers=how["num_workers"] > 0, **how)

    def of_epoch(epoch):
        order[:] = [[(epoch, i) for i in batch] for batch in batches(split.labels, cfg, epoch)]
        return loader
    return of_epoch


@torch.inference_mode()
def embed(function, split, cfg):
    """function(uint8 images on the device) for every image of a split -> (n, d) float32."""
    images, where = split.images, device(cfg)
    batch = 200 if where.type == "cuda" else 25         # 25 fit into a CPU's cache
    whole = getattr(images, "whole", images)            # all as one tensor, or None
    batches = whole.split(batch) if whole is not None else torch.utils.data.DataLoader(
        images, batch, **_loading(cfg, images))
    bar = tqdm(batches, "embedding", unit="batch", leave=False, disable=None)
    x = torch.cat([function(part.to(where, non_blocking=True)).float() for part in bar])
    if not torch.isfinite(x).all():
        raise NonFiniteLoss("the network's embeddings are not finite: training diverged; last.pt "
                            "of the run holds the last good epoch")
    return x


def embeddings(function, data, cfg, splits=("test", "gallery", "seen")):
    """function's embeddings of the splits and their labels, as keyword arguments of eval.judge."""
    parts = {}
    for name in splits:
        if split := getattr(data, name):
            parts[name] = embed(function, split, cfg)
            parts["labels" if name == "test" else f"{name}_labels"] = split.labels
    return parts


# ---------------------------------------------------------------------------- backbones
def to_device(network, cfg):
    """Move a network to --device, and set what --precision allows.  TF32 is for convolutions alone:
    the losses have none, so they stay in float32."""
    where = device(cfg)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = cfg.precision == "tf32"
    torch.backends.cudnn.benchmark = True           # the fastest convolution of each shape
    return network.to(where, memory_format=memory_format(where, cfg.precision))


def memory_format(device, precision):
    """channels_last, which is faster; a GPU has no such kernels for float32."""
    plain = device.type == "cuda" and precision == "fp32"
    return torch.contiguous_format if plain else torch.channels_last


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


class Preprocess(nn.Module):
    """uint8 RGB (B, 3, h, w) -> the float input that a backbone was pretrained on."""
    INPUTS = {"small": ((127.5,) * 3, (127.5,) * 3, False),
              "bn_inception": ((104.0, 117.0, 128.0), (1.0,) * 3, True),     # BGR, 0-255
              "googlenet_bvlc": ((104.0, 117.0, 123.0), (1.0,) * 3, True)}

    def __init__(self, backbone):
        super().__init__()
        if backbone in self.INPUTS:
            mean, std, self.bgr = self.INPUTS[backbone]
        else:
            wanted, self.bgr = _published(backbone).IMAGENET1K_V1.transforms(), False
            mean, std = ([255 * v for v in values] for values in (wanted.mean, wanted.std))
        self.register_buffer("mean", torch.tensor(mean)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(std)[:, None, None], persistent=False)

    def forward(self, images):
        images = images.flip(1) if self.bgr else images
        return (images.float() - self.mean) / self.std


def backbone_name(text):
    """An argparse type: a name of WEIGHTS, or a model of torchvision with IMAGENET1K_V1."""
    if text not in WEIGHTS and not hasattr(_published(text), "IMAGENET1K_V1"):
        raise argparse.ArgumentTypeError(
            f"'{text}' is none of {', '.join(WEIGHTS)} and no classification model of torchvision "
            "with IMAGENET1K_V1")
    return text


def _published(name):
    """torchvision's enum of a classification model's weights, None where it has no such model."""
    if name in torchvision.models.list_models(module=torchvision.models):
        return torchvision.models.get_model_weights(name)


def backbone(name, size=None):
    """`small`, bn_inception, googlenet_bvlc, or a model of torchvision without its 1000-way layer,
    dropout and stochastic depth (the papers mention none) -> module, width of its output.
    UserError: a model that cannot take images of size × size."""
    own = {"small": (SmallNet, 128), "bn_inception": (BNInception, 1024),
           "googlenet_bvlc": (GoogLeNet, 1024)}
    if name in own:
        return own[name][0](), own[name][1]
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
    try:
        if size:
            with torch.no_grad():
                network.eval()(torch.zeros(1, 3, size, size))
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"{name} cannot take images of {size} × {size} (--size): {reason(error)}")
    return network, last.weight.shape[1]


WEIGHTS = {  # backbone: file name, SHA-256, address
    "small": (glyphs.WEIGHTS.name, glyphs.SHA256, None),
    "bn_inception": ("bn_inception-52deb4733.pth",
                     "52deb473314542a5c2f87e9e6f26f4ca42fe863d15f986414dbae8c2dfdd2353",
                     "http://data.lip6.fr/cadene/pretrainedmodels/"),
    "googlenet_bvlc": (None, None, None)}               # Caffe's file has to be converted
CLASSIFIERS = ("last_linear.", "loss", "fc.", "aux", "AuxLogits.", "classifier.", "head")


def load_weights(backbone, name, source=None):
    """Load pretrained weights into a backbone without its classifier -> their SHA-256, or 'random'.

    source: a file, 'random' for none, None for the published file, in torch's hub folder or
    downloaded there.  A file of one's own may have the classifier too, lie in a "state_dict" or
    "model", and have a prefix common to all names.
    UserError: no file, no network, a published file's name with another hash, other names, shapes.
    """
    if source == "random":
        return "random"
    if name in WEIGHTS:
        file, digest, url = WEIGHTS[name]
    else:       # V1, as in the papers' time (V2 is stronger); its name has its hash's first digits
        url, slash, file = _published(name).IMAGENET1K_V1.url.rpartition("/")
        digest, url = file.rpartition("-")[2].removesuffix(".pth"), url + slash
    if not (source or file):
        raise UserError(f"{name} needs --weights FILE: BVLC's caffemodel, converted "
                        "(docs/running.md)")
    folder = glyphs.WEIGHTS.parent if url is None else Path(torch.hub.get_dir(), "checkpoints")
    path = Path(source or folder / file)
    if (source or url is None) and not path.exists():
        raise UserError(f"no weights file {path}")
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url + file, str(path), hash_prefix=digest)
        except (OSError, RuntimeError) as error:
            raise UserError(f"cannot download {url + file}: {error}; fetch it some other way and "
                            f"put it at {path}, or pass --weights FILE, or --weights random to "
                            "train from scratch")
    sha = sha256(path)
    if path.name == file and not sha.startswith(digest):
        raise UserError(f"{path} is not {file}: SHA-256 {sha[:16]}…, expected {digest[:16]}…")
    own = backbone.state_dict()
    state = unwrapped(load_torch(path), next(iter(own)))
    state = {k: v for k, v in state.items() if k in own or not k.startswith(CLASSIFIERS)}
    wrong = [k for k in own | state if k not in own or not torch.is_tensor(state.get(k))
             or own[k].shape != state[k].shape]
    if wrong:
        raise UserError(f"{path} does not fit {name}: {len(wrong)} names or shapes differ: "
                        f"{listed(wrong)}; --backbone NAME says whose weights they are")
    backbone.load_state_dict(state)
    if path.name != file:
        print(f"weights {path}: not a published file, taken as it is; SHA-256 {sha}")
    return sha


def unwrapped(state, name):
    """The tensors of a weights file by the names that a backbone gives them; name: one of those."""
    for key in ("state_dict", "model"):
        state = state.get(key, state) if isinstance(state, dict) else {}
    state = {str(key): value for key, value in state.items()} if isinstance(state, dict) else {}
    prefixes = [key.removesuffix(name) for key in state if f".{key}".endswith(f".{name}")]
    prefix = min(prefixes, key=len, default="")
    return {key[len(prefix):]: value for key, value in state.items() if key.startswith(prefix)}


def load(checkpoint, device="cpu"):
    """A run's last.pt -> its network in eval mode on a device, and its settings.
    network.embed(uint8 images (B, 3, h, w) on that device) -> embeddings (B, d).  UserError: no
    checkpoint, or one that does not fit this code."""
    state = read_checkpoint(checkpoint)
    cfg = argparse.Namespace(**state["config"])
    cfg.device, cfg.paper = device, state["paper"]
    paper = importlib.import_module(cfg.paper)         # the one of jrd, mdr, dml_da that it names
    try:
        network = paper.Network(cfg, cfg.splits["train"][1])
        network.load_state_dict(state["network"])
    except (AttributeError, KeyError, RuntimeError) as error:
        raise UserError(f"{checkpoint} does not fit this {cfg.paper}.py (it was made at commit "
                        f"{state['config'].get('commit')}): {reason(error)}")
    return to_device(network, cfg).eval(), cfg


# ---------------------------------------------------------------------------- command line
def download(dataset, root):
    """Fetch and unpack cub or sop where it is missing.  Its folder appears whole or not at all.
    Tested against a server on the same machine; the real addresses were not tried."""
    name = SMALLER.get(dataset, dataset)
    if name not in ARCHIVES:
        return
    (url, _, md5), folder = ARCHIVES[name], Path(root, FOLDERS[name][0])
    part = folder.with_name(f".download-{name}")
    shutil.rmtree(part, ignore_errors=True)                         # what a killed one left
    if folder.is_dir():
        return
    try:
        part.mkdir(parents=True)
        archive = part / url.rpartition("/")[2]
        torch.hub.download_url_to_file(url, str(archive))           # torchvision's has no ftp
        if not check_md5(archive, md5):
            raise UserError(f"{archive.stat().st_size:,} bytes came, whose md5 is not {md5}")
        extract_archive(archive, part)
        (part / folder.name).rename(folder)
    except Exception as error:              # a server and an archive fail in a dozen ways
        raise UserError(f"cannot download {url}: {reason(error)}; nothing of it was kept, try "
                        f"again or unpack it to {folder} yourself")
    finally:
        shutil.rmtree(part, ignore_errors=True)


def prepare(args):
    """`common.py prepare`: download datasets that are missing, build the caches and fetch the
    weights, as the presets see them."""
    flags = ["--data-root", args.data_root]
    for name in ("backbone", "size", "weights"):
        flags += [f"--{name}={value}"] if (value := getattr(args, name)) else []
    for dataset, paper in itertools.product(args.dataset, [args.paper] if args.paper else PAPERS):
        download(dataset, args.data_root)
        script = importlib.import_module(paper)
        cfg = script.parse_args(["--dataset", dataset, *flags])
        train, _, test = script.transforms(cfg)
        data = load_dataset(dataset, args.data_root, train, test)
        network, _ = backbone(cfg.backbone, cfg.size)
        sha = load_weights(network, cfg.backbone, cfg.weights)
        print(f"ready: {dataset} as {paper}.py sees it, {data.train} to train, {data.test} to "
              f"test, weights of {cfg.backbone} {sha[:12]}", flush=True)


def parse_args(argv=None):
    parser = Parser("common.py", __doc__)
    add = parser.add_argument
    add("command", choices=("check", "prepare"))
    add("dataset", nargs="+", help=f"{', '.join(COUNTS)}, cub128, or a folder of images; "
        "prepare: several, glyphs too")
    add("--data-root", metavar="DIR", default=data_root(), help="folder that holds the datasets "
        "(default: $DML_DATA, else ./data)")
    add("--paper", choices=PAPERS, help="prepare for this one alone")
    add("--backbone", type=backbone_name, help="instead of the preset's")
    add("--size", type=number(int, 1), help="instead of the preset's")
    add("--weights", metavar="FILE", help="instead of the published ones")
    args = parser.parse_args(argv)
    args.run = prepare
    if args.command == "check":
        refuse_idle(parser, args, [("with check", True, "paper backbone size weights")])
        if args.dataset[1:]:
            parser.error("check reads one dataset at a time")
        args.run = lambda args: check(*args.dataset, args.data_root)
    return args


if __name__ == "__main__":
    main(lambda args: args.run(args), parse_args)

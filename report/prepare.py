"""`python common.py prepare` and `check`: datasets, caches and weights ahead of the runs.

    python common.py check cub       reads every image of a dataset and lists those it cannot
    python common.py prepare cub     fetches the dataset (cub, sop) and weights, builds caches
"""
import collections
import tempfile
from pathlib import Path

import torch
from torchvision.datasets.utils import check_md5, extract_archive
from tqdm.contrib.concurrent import thread_map

import common
from report.judge import SCRIPTS
from support.command_line import (Parser, cores, data_root, main, number, path,    # noqa: F401
                                  refuse_idle)
from support.files import UserError, listed, reason, sha256
from support.layouts import ARCHIVES, COUNTS, FOLDERS, of_papers, read_dataset
from support.photos import Folder, decode, decode_as_stored


def download(dataset, root):
    """Fetch and unpack cub or sop where it is missing.  Its folder appears whole or not at all.
    Tested with file:// addresses; the real ones were not tried."""
    name = of_papers(dataset)
    if name not in ARCHIVES:
        return
    folder = Path(root, FOLDERS[name])
    if folder.is_dir():
        return
    url, md5 = ARCHIVES[name]
    try:
        Path(root).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=root) as place:
            archive = Path(place, url.rpartition("/")[2])
            torch.hub.download_url_to_file(url, str(archive))           # torchvision's has no ftp
            if not check_md5(archive, md5):
                raise UserError(f"{archive.stat().st_size:,} bytes came, whose md5 is not {md5}")
            extract_archive(archive, place)
            Path(place, folder.name).rename(folder)
    except Exception as error:              # a server and an archive fail in a dozen ways
        raise UserError(f"cannot download {url}: {reason(error)}; nothing of it was kept, try "
                        f"again or unpack it to {folder} yourself")


def run(args):
    if args.command == "check":
        return check(args.dataset[0], args.data_root)
    for dataset in args.dataset:
        download(dataset, args.data_root)
        for paper, script in SCRIPTS.items():
            if args.paper in (None, paper):
                prepare(paper, script, dataset, args)


def prepare(paper, script, dataset, args):
    """Build the caches of a dataset and fetch the weights, as the preset sees them."""
    flags = ["--dataset", dataset, "--data-root", args.data_root]
    for name in ("backbone", "size", "weights"):
        value = getattr(args, name)
        if value is not None:
            flags.append(f"--{name}={value}")
    cfg = script.parse_args(flags)
    train, _, test = script.transforms(cfg)
    data = common.load_dataset(dataset, args.data_root, train, test)
    network, _ = common.backbone(cfg.backbone, cfg.size)
    sha = common.load_weights(network, cfg.backbone, cfg.weights)
    print(f"ready: {dataset} as {paper}.py sees it, {data.train} to train, {data.test} to "
          f"test, weights of {cfg.backbone} {sha[:12]}", flush=True)


def check(name, root):
    """List the images that cannot be read; of a folder of one's own say what its classes are, or
    why it cannot be trained on, and which images are there twice."""
    if of_papers(name):
        folder, splits = read_dataset(name, root)
        paths = set().union(*splits.values())
        return read_all(folder, sorted(paths), decode_as_stored, "unpack it again")
    folder = Folder(name)
    read_all(folder.path, [*folder.images], decode, "mend or remove them")
    describe(folder)


def read_all(folder, paths, decode, advice):
    """Print what is wrong with each image that cannot be read.  UserError: there are some."""
    def fault(path):
        try:
            decode(path)
        except UserError as error:
            return str(error)
    found = thread_map(fault, paths, max_workers=cores(), desc="checking images", unit="image",
                       leave=False, disable=None)
    faults = [line for line in found if line]
    if faults:
        print("\n".join(faults), flush=True)
        raise UserError(f"{len(faults):,} of {len(paths):,} images in {folder} cannot be read: "
                        + advice)
    print(f"{folder}: {len(paths):,} images, all can be read")


def describe(folder):
    """Print the classes of a folder's splits, what is left out, alone or there twice.  UserError:
    it cannot be trained on."""
    splits = folder.splits()
    folder.say_left_out(splits)
    for part, rows in splits.items():
        count = collections.Counter(rows.values())
        print(f"{part}: {len(rows):,} images of {len(count):,} classes, {listed([*count])}")
        single = [kind for kind in count if count[kind] == 1]
        if single and part == "train":
            print("note: training classes with a single image, so without a positive pair: "
                  f"{len(single)}, {listed(single)}")
    say_copies(splits)


def say_copies(splits):
    """Name images that are there twice, in another split first."""
    first, here, across = {}, [], []
    for part, rows in splits.items():
        for path in rows:
            other, place = first.setdefault(sha256(path), (path, part))
            if other != path:
                copies = here if place == part else across
                copies.append(f"{path} is {other}")
    if here or across:
        print(f"note: images that are there twice, byte for byte: {len(across + here)}, of them in "
              f"another split {len(across)}: {listed(across + here, 2)}")


def parse_args(argv=None):
    parser = Parser("common.py", __doc__)
    add = parser.add_argument
    add("command", choices=("check", "prepare"))
    add("dataset", type=path, nargs="+", help=f"{', '.join(COUNTS)}, cub128, or a folder of "
        "images; prepare: several, glyphs too")
    add("--data-root", type=path, metavar="DIR", default=data_root(), help="folder that holds the "
        "datasets (default: $DML_DATA, else ./data)")
    add("--paper", choices=tuple(SCRIPTS), help="prepare for this one alone")
    add("--backbone", help="instead of the preset's")
    add("--size", type=number(int, 1), help="instead of the preset's")
    add("--weights", type=path, metavar="FILE", help="instead of the published ones")
    args = parser.parse_args(argv)
    if args.command == "check":
        refuse_idle(parser, args, [("with check", True, "paper backbone size weights")])
        if len(args.dataset) > 1:
            parser.error("check reads one dataset at a time")
    return args

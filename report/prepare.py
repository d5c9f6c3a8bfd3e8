"""`python common.py prepare` and `check`: datasets, caches and weights ahead of the runs.

    python common.py check cub       reads every image of a dataset and lists those it cannot
    python common.py prepare cub     fetches the dataset (cub, sop) and weights, builds caches
"""
import collections
import contextlib
import shutil
import tempfile
from pathlib import Path

import torch
from torchvision.datasets.utils import check_md5, extract_archive
from torchvision.transforms.v2 import CenterCrop
from tqdm.contrib.concurrent import thread_map

import common
from report.judge import SCRIPTS
from support.command_line import (SHARED, Parser, cores, data_root, main, number, path,
                                  read_flags, refuse_idle)
from support.files import UserError, listed, lock, reason, sha256
from support.images import ImageFiles
from support.layouts import ARCHIVES, COUNTS, FOLDERS, of_papers, read_dataset
from support.photos import Folder, decode, decode_as_stored, pictures_in


def download(dataset, root):
    """Fetch and unpack cub or sop where it is missing.  Its folder appears whole or not at all.
    Tested with a server on the machine itself; the real addresses were not tried."""
    name = of_papers(dataset)
    if name not in ARCHIVES:
        return
    folder, (url, md5) = Path(root, FOLDERS[name][0]), ARCHIVES[name]
    remove_leftovers(root)
    if folder.is_dir():
        return
    try:
        Path(root).mkdir(parents=True, exist_ok=True)
        with (tempfile.TemporaryDirectory(prefix=".download-", dir=root) as place,
              lock(Path(place, "lock"))):
            archive = Path(place, Path(url).name)
            torch.hub.download_url_to_file(url, archive)        # torchvision 0.29.1's has no ftp
            if not check_md5(archive, md5):
                raise UserError(f"{archive.stat().st_size:,} bytes came, whose md5 is not {md5}")
            extract_archive(archive, place)
            Path(place, folder.name).rename(folder)
    except Exception as error:              # a server and an archive fail in a dozen ways
        raise UserError(f"cannot download {url}: {reason(error)}; nothing of it was kept, try "
                        f"again or unpack it to {folder} yourself")


def remove_leftovers(root):
    """Delete what killed downloads left, gigabytes each: those whose lock nobody holds.  Where
    there are no locks all stays."""
    for place in Path(root).glob(".download-*"):
        with contextlib.suppress(UserError):            # another process is downloading it
            with lock(place / "lock", timeout=0) as held:
                if held:                                # there are locks
                    shutil.rmtree(place, ignore_errors=True)


def run(args):
    for dataset in args.dataset:
        if args.command == "check":
            check(dataset, args.data_root)
        else:
            prepare(dataset, args)


def prepare(dataset, args):
    """Fetch a dataset and the weights and build the caches, as the presets see them."""
    download(dataset, args.data_root)
    for paper, script in SCRIPTS.items():
        if args.paper not in (None, paper):
            continue
        flags = ["--dataset", dataset]
        for name in ("backbone", "size", "weights"):
            if getattr(args, name):
                flags.append(f"--{name}={getattr(args, name)}")
        cfg = script.parse_args(flags)
        train, _, test = script.transforms(cfg)
        data = common.load_dataset(dataset, args.data_root, train, test,
                                   weights=(cfg.backbone, cfg.weights))
        network, _ = common.backbone(cfg.backbone, cfg.size)
        sha = common.load_weights(network, cfg.backbone, cfg.weights)
        print(f"ready: {dataset} as {paper}.py sees it, {data.train} to train, {data.test} to "
              f"test, weights of {cfg.backbone} {sha[:12]}", flush=True)


def check(name, root):
    """List the images that cannot be read, and files of several; of a folder of one's own say what
    its classes are, or why it cannot be trained on, and which images are there twice."""
    if name == "glyphs":
        print("glyphs: drawn by the code, so there are no files to read")
        return
    if of_papers(name):
        folder, splits = read_dataset(name, root)
        paths = sorted(set().union(*splits.values()))
        return read_all(folder, paths, decode_as_stored)
    folder = Folder(name)
    read_all(folder.path, [*folder.images], decode)
    folder.refuse_lost_classes()
    splits = folder.splits()
    folder.say_left_out(splits)
    first, copies = {}, []
    for part, rows in splits.items():
        count = collections.Counter(rows.values())
        print(f"{part}: {len(rows):,} images of {len(count):,} classes, of "
              f"{min(count.values())} to {max(count.values())} images: {listed([*count])}")
        lone = [kind for kind, size in count.items() if size == 1]
        if part == "train" and lone:
            print(f"note: {len(lone)} training classes have one image, which has no positive: "
                  f"{listed(lone)}")
        for path in rows:
            other = first.setdefault(sha256(path), path)
            if other != path:
                copies.append(f"{path} is {other}")
    if copies:
        print("note: there twice, byte for byte:", *copies, sep="\n")


def read_all(folder, paths, decode):
    """Print what is wrong with each image that cannot be read, and which files hold several.
    UserError: some cannot be read."""
    several = {}                                        # {index of a path: what to say of it}
    images = ImageFiles(paths, CenterCrop(1), decode, faults=set())     # a pixel of each is kept

    def read(i):
        if images[i] is not None:
            n = pictures_in(paths[i])
            if n > 1:
                several[i] = f"{paths[i]} ({n:,})"
    thread_map(read, range(len(paths)), max_workers=cores(), desc="checking images", unit="image",
               leave=False, disable=None)
    if several:
        print(f"note: {len(several):,} files hold several images, of which the first is taken: "
              f"{listed([several[i] for i in sorted(several)])}")
    if images.faults:
        broken = {paths[i].parent for i in images.faults}
        lost = broken - {paths[i].parent for i in {*range(len(paths))} - images.faults} - {folder}
        none_in = f", and none in {listed(sorted(lost))} can" if lost else ""
        raise UserError(f"{len(images.faults):,} of {len(paths):,} images in {folder} cannot be "
                        f"read{none_in}: mend, replace or remove them")
    print(f"{folder}: {len(paths):,} images, all can be read")


FLAGS = {  # default, kind, help (support.command_line.read_flags)
    "data_root": SHARED["data_root"],
    "paper": (None, tuple(SCRIPTS), "prepare for this one alone"),
    "backbone": (None, "NAME", "instead of the preset's"),
    "size": (None, number(int, 1), "instead of the preset's"),
    "weights": SHARED["weights"]}


def parse_args(argv=None):
    parser = Parser("common.py", __doc__)
    parser.add_argument("command", choices=("check", "prepare"))
    parser.add_argument("dataset", type=path, nargs="+", help=f"{', '.join(COUNTS)}, cub128, "
                        "glyphs, or a folder of images")
    flags, args = read_flags(parser, argv, FLAGS)
    args.data_root = args.data_root or data_root()
    refuse_idle(parser, flags, [
        ("with check", args.command == "check", "paper backbone size weights")])
    return args


if __name__ == "__main__":
    main(run, parse_args)

"""`python common.py prepare` and `check`: datasets, caches and weights ahead of the runs.

    python common.py check cub       reads every image of a dataset and lists those it cannot
    python common.py prepare cub     fetches the dataset (cub, sop) and weights, builds caches
"""
import collections
import itertools
import tempfile
from pathlib import Path

import torch
from torchvision.datasets.utils import check_md5, extract_archive
from tqdm.contrib.concurrent import thread_map

from support.command_line import Parser, cores, data_root, number, refuse_idle
from support.files import UserError, listed, reason, sha256
from support.images import decode
from support.layouts import ARCHIVES, COUNTS, FOLDERS, SMALLER, read_dataset
from support.runs import PAPERS, script


def download(dataset, root):
    """Fetch and unpack cub or sop where it is missing.  Its folder appears whole or not at all.
    Tested against a server on the same machine; the real addresses were not tried."""
    name = SMALLER.get(dataset, dataset)
    folder = Path(root, FOLDERS.get(name, [""])[0])
    if name not in ARCHIVES or folder.is_dir():
        return
    url, _, md5 = ARCHIVES[name]
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


def prepare(args):
    """Download datasets that are missing, build the caches and fetch the weights, as the presets
    see them."""
    flags = ["--data-root", args.data_root]
    for name in ("backbone", "size", "weights"):
        flags += [f"--{name}={value}"] if (value := getattr(args, name)) else []
    for dataset, name in itertools.product(args.dataset, [args.paper] if args.paper else PAPERS):
        download(dataset, args.data_root)
        paper = script(name)
        cfg = paper.parse_args(["--dataset", dataset, *flags])
        train, _, test = paper.transforms(cfg)
        data = paper.common.load_dataset(dataset, args.data_root, train, test)
        network, _ = paper.common.backbone(cfg.backbone, cfg.size)
        sha = paper.common.load_weights(network, cfg.backbone, cfg.weights)
        print(f"ready: {dataset} as {name}.py sees it, {data.train} to train, {data.test} to "
              f"test, weights of {cfg.backbone} {sha[:12]}", flush=True)


def check(name, root):
    """List the images that cannot be read; of a folder of one's own say what its classes are, which
    training classes have one image and which images are there twice."""
    folder, splits = read_dataset(name, root)
    papers = SMALLER.get(name, name) in COUNTS
    part_of = {path: part for part, rows in splits.items() for path, _ in rows}

    def fault(path):
        try:
            decode(path, as_stored=papers)
        except UserError as error:
            return str(error)
    faults = thread_map(fault, part_of, max_workers=cores(), desc="checking images", unit="image",
                        leave=False, disable=None)
    if faults := [*filter(None, faults)]:
        print(*faults, sep="\n", flush=True)
        raise UserError(f"{len(faults):,} of {len(part_of):,} images in {folder} cannot be read"
                        + (": unpack it again" if papers else ""))
    print(f"{folder}: {len(part_of):,} images, all can be read")
    if papers:
        return
    count = {part: collections.Counter(c for _, c in rows) for part, rows in splits.items()}
    print(" · ".join(f"{part} {len(splits[part]):,} images of {len(classes):,} classes, "
                     + listed([*classes]) for part, classes in count.items()))
    if single := [c for c, images in count["train"].items() if images == 1]:
        print("note: training classes with a single image, so without a positive pair: "
              f"{len(single)}, {listed(single)}")
    first, here, across = {}, [], []                    # copies: in the same split, in another
    for path, part in part_of.items():
        if (other := first.setdefault(sha256(path), path)) != path:
            (here if part_of[other] == part else across).append(f"{path} is {other}")
    if here or across:
        print(f"note: images that are there twice, byte for byte: {len(across + here)}, of them in "
              f"another split {len(across)}: {listed(across + here, 2)}")


def parse_args(argv=None):
    parser = Parser("common.py", __doc__)
    add = parser.add_argument
    add("command", choices=("check", "prepare"))
    add("dataset", nargs="+", help=f"{', '.join(COUNTS)}, cub128, or a folder of images; "
        "prepare: several, glyphs too")
    add("--data-root", metavar="DIR", default=data_root(), help="folder that holds the datasets "
        "(default: $DML_DATA, else ./data)")
    add("--paper", choices=PAPERS, help="prepare for this one alone")
    add("--backbone", help="instead of the preset's")
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

"""The real datasets in miniature copies of their layouts, broken copies of them, and the cache."""
import argparse
import contextlib
import hashlib
import http.server
import io
import multiprocessing
import os
import pickle
import re
import shutil
import sys
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import PIL
import pytest
import scipy.io
import torch
import torchvision
from PIL import Image
from torchvision.transforms import v2

import common
import dml_da
import jrd
import mdr
from conftest import left_in, make_folder
from report import judge, prepare, search
from support import identity, images, layouts, photos
from support.files import lock


# ---------------------------------------------------------------------------- miniature copies
MINI = {**dict.fromkeys(("cub", "cars", "sop"), {"train": (3, 2), "test": (4, 2)}),
        "inshop": {"train": (3, 2), "test": (3, 2), "gallery": (4, 2)}}
CLASSES = {"cub": (3, 100, 101, 200), "cars": (98, 7, 99, 196), "sop": (1, 11318, 11319, 22634),
           "inshop": ("id_00000009", "id_00000002", "id_00000008", "id_00000004")}


def parts(**images):
    """{(class, number in it): part} of parts with words of these two digits"""
    part_of = {}
    for part, words in images.items():
        for c, number in words.split():
            part_of[int(c), int(number)] = part
    return part_of


PARTS = parts(train="00 10 11", test="20 21 30 31")
INSHOP = parts(train="00 10 11", test="20 30 33", gallery="21 22 31 32")


def build(folder, images, lists):
    """images: {path: (class, number)}, which give their width and height; lists: {path: its lines,
    of a .mat the rows of the struct array `annotations` that Stanford made} -> folder"""
    for name in (*images, *lists):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    for path, (c, number) in images.items():
        Image.new("RGB", (18 + 2 * c, 20 + 3 * number)).save(folder / path)
    for path, rows in lists.items():
        if path.endswith(".mat"):
            table = np.empty((1, len(rows)), [(key, object) for key in rows[0]])
            table[0, :] = [tuple(row.values()) for row in rows]
            scipy.io.savemat(folder / path, {"annotations": table})
        else:
            (folder / path).write_text("\n".join(rows) + "\n")
    return folder


def make_cub(root):
    images, names, labels = {}, [], []
    for i, (c, n) in enumerate(PARTS, 1):
        name = f"{CLASSES['cub'][c]:03}.Bird_{c}/Bird_{c}_{n:04}.jpg"
        images[f"images/{name}"] = c, n
        names.append(f"{3 * i} {name}")
        labels.append(f"{3 * i} {CLASSES['cub'][c]}")
    return build(root / "CUB_200_2011", images, {
        "images.txt": names, "image_class_labels.txt": labels[::-1]})   # joined by id, not by row


def make_cars(root):
    """`test` is the part in Stanford's closed set, which the papers leave aside."""
    names, rows = {}, []
    for i, (c, n) in enumerate(PARTS, 1):
        name = f"car_ims/{i:06}.jpg"
        names[name] = c, n
        rows.append({"relative_im_path": name, "bbox_x1": 1, "class": np.uint8(CLASSES["cars"][c]),
                     "test": np.uint8(n)})
    return build(root / "stanford_cars", names, {"cars_annos.mat": rows})


def make_cars_devkit(root, devkit="devkit", images="{0}"):
    """Each class in both folders: pooled they are the dataset, apart they are the closed set."""
    names, rows = {}, {"cars_train": [], "cars_test": []}
    for i, (c, n) in enumerate(PARTS, 1):
        side = ("cars_train", "cars_test")[n]
        names[f"{images.format(side)}/{i:05}.jpg"] = c, n
        rows[side].append({"bbox_x1": 1, "class": np.uint8(CLASSES["cars"][c]),
                           "fname": f"{i:05}.jpg"})
    return build(root / "stanford_cars", names, {
        f"{devkit}/cars_train_annos.mat": rows["cars_train"],
        f"{devkit}/cars_test_annos_withlabels.mat": rows["cars_test"],
        f"{devkit}/cars_test_annos.mat": [{"bbox_x1": 1, "fname": "00001.jpg"}]})


def make_sop(root):
    images, lists = {}, {}
    for i, ((c, n), part) in enumerate(PARTS.items(), 1):
        name = f"bicycle_final/11{c}_{n}.JPG"
        images[name] = c, n
        rows = lists.setdefault(f"Ebay_{part}.txt", ["image_id class_id super_class_id path"])
        rows.append(f"{i} {CLASSES['sop'][c]} 1 {name}")
    return build(root / "Stanford_Online_Products", images, lists)


def make_inshop(root, listed=".", images="."):
    names, rows = {}, ["10", "image_name item_id evaluation_status"]
    for (c, n), part in INSHOP.items():
        kind = CLASSES["inshop"][c]
        name = f"img/WOMEN/Dresses/{kind}/{n:02}_1_front.jpg"
        names[f"{images}/{name}"] = c, n
        rows.append(f"{name:<70} {kind} {part.replace('test', 'query'):<10}")
    return build(root / "inshop", names, {f"{listed}/list_eval_partition.txt": rows})


LAYOUTS = {
    "cub": make_cub, "cars": make_cars, "sop": make_sop, "cars devkit": make_cars_devkit,
    "cars nested": partial(make_cars_devkit, devkit="car_devkit/devkit", images="{0}/{0}"),
    "inshop": make_inshop, "inshop Eval Img": partial(make_inshop, listed="Eval", images="Img")}


@pytest.fixture
def mini(monkeypatch, tmp_path):
    """mini(layout) -> (the dataset's name, its folder, here) of a copy that counts as whole."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(layouts, "COUNTS", MINI)
    return lambda layout: (layout.split()[0], LAYOUTS[layout](tmp_path))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout, mini, tmp_path):
    """Counts, labels from 0, and each image under its own label."""
    name, _ = mini(layout)
    data, seen = common.load_dataset(name, tmp_path), {}
    assert data.counts() == {part: list(counts) for part, counts in MINI[name].items()}
    for part in MINI[name]:
        split = getattr(data, part)
        assert split.labels.unique().tolist() == [0, 1]
        for image, label in zip(split.images, split.labels):
            c, number = (image.shape[2] - 18) // 2, (image.shape[1] - 20) // 3
            assert re.fullmatch(rf"0*{CLASSES[name][c]}(\.Bird_{c})?", split.classes[label])
            seen[c, number] = part
    assert seen == (INSHOP if name == "inshop" else PARTS)


def test_the_papers_photos_are_as_their_authors_code_reads_them(mini, tmp_path):
    """Where a viewer would turn one, and so would a folder of one's own."""
    name, folder = mini("cub")
    exif, file = Image.Exif(), folder / "images" / "200.Bird_3" / "Bird_3_0000.jpg"
    exif[0x0112] = 6
    Image.open(file).save(file, exif=exif)
    for dataset, shape in ((name, (3, 20, 24)), (file.parents[1], (3, 24, 20))):
        assert common.load_dataset(str(dataset), tmp_path).test.images[-2].shape == shape


def test_the_papers_datasets_are_known_as_published():
    """Images and classes by the papers, which give In-Shop's query and gallery as one sum; md5s as
    others who fetch these archives have them."""
    assert layouts.COUNTS == {
        "cub": {"train": (5_864, 100), "test": (5_924, 100)},           # 11,788 of 200
        "cars": {"train": (8_054, 98), "test": (8_131, 98)},            # 16,185 of 196
        "sop": {"train": (59_551, 11_318), "test": (60_502, 11_316)},   # 120,053 of 22,634
        "inshop": {"train": (25_882, 3_997), "test": (14_218, 3_985), "gallery": (12_612, 3_985)}}
    assert [(name, md5) for name, (_, md5) in layouts.ARCHIVES.items()] == [
        ("cub", "97eceeb196236b17998738112f37df78"), ("sop", "7f73d41a2f44250d4779881525aea32e")]


def test_a_second_search_of_the_papers_photos_looks_at_none(mini, tmp_path, monkeypatch):
    """A look at each may take minutes.  What was embedded as a viewer shows it is another thing."""
    mini("cub")
    cfg = jrd.parse_args(["--dataset", "cub", "--backbone", "small", "--device", "cpu"])
    common.settle(cfg)
    network, embed = jrd.Network(cfg, 2).eval(), Mock(side_effect=common.embed)
    data = common.load_dataset("cub", tmp_path, None, jrd.transforms(cfg)[2])
    args = argparse.Namespace(file=str(tmp_path / "last.pt"), no_cache=False, gallery=None,
                              dataset=None)
    monkeypatch.setattr(common, "embed", embed)
    monkeypatch.setattr(photos, "fingerprint", None)
    x, first = search.embed_searched(args, "its hash", network, cfg, data)
    os.utime(first[0][2], (0, 0))
    y, second = search.embed_searched(args, "its hash", network, cfg, data)
    assert torch.equal(x, y) and first == second and embed.call_count == 1
    monkeypatch.undo()
    monkeypatch.setattr(common, "embed", embed)
    args.gallery = str(tmp_path)
    search.embed_searched(args, "its hash", network, cfg, data)
    assert embed.call_count == 2


# ---------------------------------------------------------------------------- what can be wrong
@pytest.mark.parametrize("name, way_out", [
    ("cub", r"prepare cub --data-root .*/none downloads it \(1.2 GB\)"),
    ("inshop", "/inshop/list_eval_partition.txt .*DeepFashion")])
def test_a_missing_dataset_is_named_with_where_to_get_it(name, way_out, tmp_path):
    with pytest.raises(common.UserError, match=f"^no {name} under .*/none .--data-.*{way_out}.*$"):
        common.load_dataset(name, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def replace(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def cut(path):
    path.write_bytes(path.read_bytes()[:-len(path.read_bytes()) // 3])


def move(path, name):
    path.rename(path.with_name(name))


@pytest.mark.parametrize("layout, damage, file, words, message", [
    ("cub", Path.unlink, "images.txt", [], "images.txt.*half-extracted"),
    ("cub", replace, "images.txt", ["6 100", "6 x 100"], "columns changed from 2 to 3 at row 2"),
    ("cub", replace, "image_class_labels.txt", ["6 100\n", ""], "KeyError: '6'.*half-extracted"),
    ("cub", move, "images.txt", ["lists"], "half-extracted archive.  Move .*CUB_200_2011 away; th"),
    ("cub", lambda folder: (folder / "lists").mkdir() or (folder / "images.txt").unlink(), "", [],
     "cannot read the lists in .*, CUB-200 of 2010, the predecessor of CUB-200-2011.  Move "),
    ("cub", shutil.rmtree, "images/101.Bird_2", [],
     "2 images of cub are missing, .*Bird_2_0000.jpg first: a half-ex"),
    ("cub", replace, "images.txt", ["3 003.Bird_0/Bird_0_0000.jpg\n", ""],
     "has .'train': .2, 1.,.* has .'train': .3, 2., 'test': .4, 2..$"),
    ("cars devkit", move, "devkit/cars_test_annos.mat", ["cars_test_annos_withlabels.mat"],
     "no field of name class.*half of the closed-set split.*wanted are .*/devkit/cars_train_annos.mat and"),
    ("inshop", move, "img", ["img_highres"],
     "10 images .* missing, .*jpg first: .*wanted are .*/img .not img_highres")])
def test_a_broken_copy_is_refused(layout, damage, file, words, message, mini, tmp_path):
    name, folder = mini(layout)
    layouts.read_dataset(name, tmp_path)
    damage(folder / file, *words)
    with pytest.raises(common.UserError, match=message) as error:
        common.load_dataset(name, tmp_path)
    assert "\n" not in str(error.value) and not (tmp_path / ".cache").exists()


@pytest.mark.parametrize("images", [5994, 5794])
def test_half_of_the_closed_set_split_is_told(images, tmp_path, monkeypatch):
    """By CUB's real counts; of Cars a list is missing then."""
    def half(folder):
        for i in range(images):
            yield ("train", "test")[i % 2], folder / f"{i}.jpg", i % 100 + i % 2 * 100
    monkeypatch.setattr(layouts, "_cub", half)
    (tmp_path / layouts.FOLDERS["cub"][0]).mkdir()
    with pytest.raises(common.UserError, match="It is half of the closed-set split: the papers "):
        common.load_dataset("cub", tmp_path)


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """cub's archive in miniature, published by a server on this machine."""
    (tmp_path / "published").mkdir()
    archive = tmp_path / "published" / "CUB_200_2011.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(make_cub(tmp_path / "made"), "CUB_200_2011")
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    serve = partial(http.server.SimpleHTTPRequestHandler, directory=str(archive.parent))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/{archive.name}"
        monkeypatch.setitem(layouts.ARCHIVES, "cub", (address, md5))
        yield archive
        server.shutdown()


def test_prepare_fetches_and_builds_what_the_presets_need_once(archive, mini, typed, tmp_path):
    torch.save(common.backbone("squeezenet1_1")[0].state_dict(), tmp_path / "w.pth")
    words = "prepare", "cub128", "--weights", tmp_path / "w.pth", "--data-root", tmp_path / "data"
    status, out, _ = typed("common.py", *words)
    assert status == 0 and re.findall(
        "ready: cub128 as (.*).py sees it, 3 images of 2 classes to train, 4 ", out
    ) == [*identity.PAPERS] and "building the cache" in out
    archive.unlink()
    status, out, _ = typed("common.py", *words, "--paper", "mdr")
    assert status == 0 and "ready: " in out and "building the cache" not in out
    _, out, _ = typed("common.py", *words, "--paper", "jrd", "--backbone", "squeezenet1_0",
                      "--size", 100, "--weights", "random")
    assert ": 4 images, 0.1 MB\n" in out and "weights of squeezenet1_0 random" in out  # 100 × 100
    assert sorted(os.listdir(tmp_path / "data")) == [".cache", "CUB_200_2011"]


@pytest.mark.parametrize("damage, message", [
    (cut, "bytes came, whose md5 is not "), (Path.unlink, "HTTP Error 404: ")])
def test_a_broken_download_leaves_nothing(damage, message, archive, tmp_path, typed):
    damage(archive)
    status, _, err = typed("common.py", "prepare", "cub", "--data-root", tmp_path / "data")
    *_, last = re.split("[\n\r]", err.strip())                        # after the progress bar
    assert status == 2 and last.startswith("common.py: cannot download http://127.")
    assert message in last and not list((tmp_path / "data").iterdir())


def test_what_a_killed_download_left_is_removed_and_one_under_way_is_not(archive, tmp_path):
    data = tmp_path / "data"
    for name in ("killed", "under-way"):
        (data / f".download-{name}" / "CUB_200_2011").mkdir(parents=True)
    shutil.copy(archive, data / ".download-killed")
    with lock(data / ".download-under-way" / "lock"):
        prepare.download("cub", data)
        assert sorted(os.listdir(data)) == [".download-under-way", "CUB_200_2011"]
    prepare.download("cub", data)                       # which is there
    assert os.listdir(data) == ["CUB_200_2011"]


def test_what_a_broken_copy_advises_mends_it(archive, mini, tmp_path):
    data, folder = tmp_path / "data", tmp_path / "data" / "CUB_200_2011"
    prepare.download("cub", data)
    (folder / "images.txt").unlink()
    prepare.download("cub", data)
    with pytest.raises(common.UserError, match=f"Move {folder} away; then python common.py prep"):
        layouts.read_dataset("cub", data)
    move(folder, "away")
    prepare.download("cub", data)
    assert layouts.read_dataset("cub", data)[0] == folder


def test_check_finds_a_corrupt_image_of_the_papers(mini, tmp_path, typed):
    name, folder = mini("cub")
    bad = sorted(folder.rglob("*.jpg"))[1]
    cut(bad)
    status, out, err = typed("common.py", "check", name, "--data-root", tmp_path)
    assert status == 2 and out.startswith(f"cannot read the image {bad}: ")
    assert err.startswith(f"common.py: 1 of 7 images in {folder} cannot be read: ")


# ---------------------------------------------------------------------------- the cache
HALVE = v2.Resize((10, 12), antialias=True)


@pytest.fixture
def files(tmp_path):
    """files(prefix) -> seven image files of different sizes."""
    paths = sorted(make_folder(tmp_path / "d", [3, 2, 2]).rglob("*.png"))
    return lambda prefix=HALVE: images.ImageFiles(paths, prefix, photos.decode_as_stored)


def cached(files, tmp_path):
    return images.cache_images(files, tmp_path / ".cache" / "toy-train", "a digest of the sources")


def assert_same(stored, files):
    assert len(stored) == len(files)
    for got, want in zip(stored, files, strict=True):
        assert torch.equal(got, want) and got.dtype == torch.uint8 and got.stride() == want.stride()


def test_the_cache_holds_what_the_files_give_and_decodes_once(files, tmp_path, capsys, monkeypatch):
    """... on all cores."""
    pool = Mock(wraps=ThreadPoolExecutor)
    monkeypatch.setattr(images, "ThreadPoolExecutor", pool)
    monkeypatch.setattr(images, "cores", lambda: 5)
    stored = cached(files(), tmp_path)
    pool.assert_called_once_with(5)
    assert ".npy: 7 images, 0.0 MB\n" in capsys.readouterr().out
    assert_same(stored, files())
    nearest = files(v2.Resize((100, 120), v2.InterpolationMode.NEAREST))     # has one of its own
    assert_same(cached(nearest, tmp_path), nearest)
    assert ".npy: 7 images, 0.3 MB\n" in capsys.readouterr().out            # 7 × 100 × 120 × 3
    monkeypatch.setattr(images, "lock", None)
    monkeypatch.setattr(photos, "opened", None)     # a finished cache needs no writing, no images
    assert_same(cached(files(), tmp_path), stored)
    assert capsys.readouterr().out == ""
    copied = pickle.dumps(stored)
    assert len(copied) < 2000, "a worker would be sent the images themselves"
    assert_same(pickle.loads(copied), stored)


def test_processes_build_a_cache_of_many(files, tmp_path, monkeypatch):
    """The same one, in order; what cannot be is one line; in daemons and after spawn, threads."""
    if not images.may_fork():
        pytest.skip("processes are not forked here")
    monkeypatch.setattr(images, "MANY", 7)
    monkeypatch.setattr(images, "cores", lambda: 2)
    with monkeypatch.context() as patch:
        patch.setattr(images, "ThreadPoolExecutor", None)
        assert_same(cached(files(), tmp_path), files())
        with pytest.raises(common.UserError, match="^images of .* and of .* cannot lie in one .*$"):
            cached(files(None), tmp_path)
        cut(files(None).paths[3])
        with pytest.raises(common.UserError, match="^cannot read the image [^\n]*$"):
            cached(files(v2.Resize((9, 9))), tmp_path)
        assert not multiprocessing.active_children(), "workers wait for work"
    monkeypatch.setattr(torch.utils.data, "DataLoader", None)
    for name, answer in (("get_start_method", lambda allow_none: "spawn"),
                         ("current_process", lambda: Mock(daemon=True))):
        with monkeypatch.context() as patch:
            patch.setattr(multiprocessing, name, answer)
            with pytest.raises(common.UserError, match="^cannot read the image [^\n]*$"):
                cached(files(v2.Resize((9, 9))), tmp_path)


def test_other_versions_of_what_decodes_and_resizes_have_a_cache_of_their_own(files, tmp_path,
                                                                              monkeypatch):
    paths = {cached(files(), tmp_path).path}
    for library in (PIL, torchvision, torch):
        with monkeypatch.context() as patch:
            patch.setattr(library, "__version__", "0")
            paths.add(cached(files(), tmp_path).path)
    assert len(paths) == 4


def test_a_bar_shows_how_far_a_cache_is(files, tmp_path, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    cached(files(), tmp_path)
    assert "decoding: " in terminal.getvalue()


def test_the_cache_of_other_images_is_replaced(tmp_path):
    folder = make_folder(tmp_path / "[my] photos", [2] * 4)

    def load(cache=True):
        images = common.load_dataset(str(folder), tmp_path, test=HALVE, cache=cache).test.images
        return images, {*(tmp_path / ".cache").iterdir()}
    before, names = load()
    old = before.whole.clone()
    os.utime(folder / "class03" / "1.png", (1, 1))
    assert load()[1] == names                       # another time is no other image
    Image.new("RGB", (30, 20)).save(folder / "class03" / "1.png")
    after, now = load()
    assert_same(after, load(cache=False)[0])
    assert torch.equal(before.whole, old)           # a run that goes on reads what it began with
    assert len(now & names) == len(names) - 1 == len(now) - 1


def test_shares_of_one_short_name_have_caches_of_their_own(tmp_path):
    folder = make_folder(tmp_path / "photos", [2] * 42)
    for share, held in ((1 / 6, 3), (0.166667, 4)):
        data = common.load_dataset(str(folder), tmp_path, test=HALVE, val=share)
        assert len(data.val.images) == len(data.val) == 2 * held


def without_locks(path, timeout=-1):
    """What files.lock returns on a file system that has none."""
    return contextlib.nullcontext()


@pytest.mark.parametrize("locks", [True, False])
def test_several_at_once_build_one_cache(locks, files, tmp_path, monkeypatch, capfd):
    """Three processes: one builds and the others wait.  Or their locks do not reach each other, as
    on two machines: then each reads whole images, while the others replace the file."""
    real = photos.pil_to_tensor
    monkeypatch.setattr(photos, "pil_to_tensor", lambda image: time.sleep(0.02) or real(image))
    if not locks:
        monkeypatch.setattr(images, "lock", without_locks)
    want = [*files()]

    def build():
        for _ in range(10):
            assert_same([*cached(files(), tmp_path)], want)
    children = [multiprocessing.get_context("fork").Process(target=build) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert_same([*cached(files(), tmp_path)], want)
    assert not locks or capfd.readouterr().out.count("building the cache") == 1


def test_who_waits_for_a_cache_says_so(files, tmp_path, capsys):
    path = cached(files(), tmp_path).path
    os.remove(path)
    told = ""
    with ThreadPoolExecutor(1) as pool:
        with lock(next(path.parent.glob("*.lock"))):
            waiting = pool.submit(cached, files(), tmp_path)
            while "waiting for another process that builds " not in told:
                assert not waiting.done()
                told += capsys.readouterr().out
                time.sleep(0.01)
        assert len(waiting.result()) == len(files())


def test_a_list_that_ends_its_reader_is_one_line(mini, tmp_path, monkeypatch):
    """... as SciPy's is by some damaged .mat: the reader is a process of its own."""
    name, _ = mini("cars")
    common.load_dataset(name, tmp_path)
    read = Mock(return_value=Mock(returncode=-11))
    monkeypatch.setattr(layouts.subprocess, "run", read)
    with pytest.raises(common.UserError, match="cars_annos.mat ends the process that reads it"):
        common.load_dataset(name, tmp_path)


def test_a_cache_that_has_no_room_or_no_one_size_is_one_line(files, tmp_path, monkeypatch):
    disk = Mock(free=0, total=10)
    monkeypatch.setattr(images.shutil, "disk_usage", Mock(return_value=disk))
    with pytest.raises(common.UserError, match="needs 0.0 MB, but 0.0 are free: use --no-cache"):
        cached(files(), tmp_path)
    disk.total = 0                                      # as some file systems tell it
    cached(files(), tmp_path)
    monkeypatch.undo()
    folder = make_folder(tmp_path / "photos", [2, 2, 2, 2])
    Image.new("RGB", (30, 50)).save(folder / "class01" / "0.png")
    keeps_aspect = v2.Resize(11)
    for cache in (True, False):
        with pytest.raises(common.UserError, match="11 × 11 and of 18 × 11 cannot lie in one"):
            data = common.load_dataset(str(folder), tmp_path, train=keeps_aspect, cache=cache)
            common.embed(lambda x: x.float().mean((1, 2, 3))[:, None], data.train.images,
                         common.argparse.Namespace(device="cpu", workers=0))


def test_an_edit_of_pixels_alone_makes_another_cache(tmp_path):
    """... in formats that need not compress, wherever in the file it is."""
    folder = make_folder(tmp_path / "photos", [2, 2, 2, 2])
    for suffix in ("bmp", "tif", "ppm"):
        path, pixels = folder / "class00" / f"a.{suffix}", np.zeros((120, 120, 3), np.uint8)
        for value in (0, 255):
            pixels[20:100, 20:100] = value
            Image.fromarray(pixels).save(path)
            os.utime(path, ns=(value, value))
            data = common.load_dataset(str(folder), tmp_path, train=v2.Resize((12, 12)))
            place = [str(file) for file in data.train.files].index(str(path.relative_to(folder)))
            assert data.train.images[place][:, 6, 6].tolist() == [value] * 3
        path.unlink()


def test_what_killed_builds_left_is_removed(files, tmp_path, monkeypatch):
    """... by the next build, of whichever cache; but not what another process writes just now."""
    folder, random = tmp_path / ".cache", "0" * 32
    folder.mkdir()
    parts = [folder / f".{name}-aa12.npy.{random}.part"
             for name in ("toy-train-01", "[x] y-test-2")]
    building, others = folder / f".busy-test-03-aa12.npy.{random}.part", folder / "thesis.part"
    for path in (*parts, building, others):
        path.touch()
    with monkeypatch.context() as patch:
        patch.setattr(images, "lock", without_locks)        # who builds is not known
        cached(files(), tmp_path)
    assert all(path.exists() for path in parts)
    with lock(folder / "busy-test-03.lock"):                # as another process holds it
        cached(files(v2.Resize((5, 6))), tmp_path)
        assert [path.exists() for path in (*parts, building, others)] == [False, False, True, True]
    cached(files(v2.Resize((4, 6))), tmp_path)
    assert not building.exists() and others.exists()


def test_a_killed_build_leaves_nothing_to_the_next(files, tmp_path, monkeypatch):
    """SIGKILL while the file is half-written."""
    def hang(files, path):
        with images.atomic(path, "wb") as file:
            file.write(bytes(100_000))
            file.flush()
            time.sleep(600)
    with monkeypatch.context() as patch:
        patch.setattr(images, "_build_cache", hang)
        child = multiprocessing.get_context("fork").Process(target=cached, args=(files(), tmp_path))
        child.start()
        left = []
        while child.is_alive() and not left:
            time.sleep(0.01)
            left = [*tmp_path.glob(".cache/.*.part")]
        child.kill()
        child.join()
    assert left[0].exists()
    cached(files(), tmp_path)
    assert not [*tmp_path.glob(".cache/.*.part")]


@pytest.mark.parametrize("damage, advice", [
    (lambda files, tmp_path: (tmp_path / ".cache").write_text("in the way"),
     "--no-cache does without"),
    (lambda files, tmp_path: os.truncate(cached(files(), tmp_path).path, 300),
     "delete it, or use --no-cache")])
def test_a_cache_that_cannot_be_had_is_one_line(damage, advice, files, tmp_path):
    damage(files, tmp_path)
    with pytest.raises(common.UserError, match=f"^cannot use the cache .*; {advice}$"):
        cached(files(), tmp_path)


def test_the_papers_datasets_are_trusted_by_their_names(mini, tmp_path):
    """A whole cache costs one look into each folder, not one at each file."""
    name, folder = mini("cub")
    whole = common.load_dataset(name, tmp_path, test=HALVE)
    for photo in folder.rglob("*.jpg"):
        photo.unlink()
        photo.symlink_to("gone")
    again = common.load_dataset(name, tmp_path, test=HALVE)
    assert again.identity == whole.identity and torch.equal(again.test.images[3],
                                                            whole.test.images[3])


@pytest.mark.parametrize("script, name, flags, caches", [       # JRD's training images have none
    (jrd, "cub", "--batch 3", 2), (mdr, "inshop", "--batch 3 --iterations 1", 4),
    (dml_da, "sop", "--iterations 1", 3)])
def test_an_epoch_on_a_miniature_copy(script, name, flags, caches, mini, train, typed, tmp_path,
                                      monkeypatch):
    """A backbone of torchvision with random weights; a class has one image.  Another dataset of the
    papers is judged by its split, whatever folder has its name, which is said; no image of it was
    seen.  MDR's images come from a worker that is spawned, as on Windows and macOS."""
    mini(name)
    if script is mdr:
        flags += " --workers 1"
        spawning = partial(torch.utils.data.DataLoader, multiprocessing_context="spawn")
        monkeypatch.setattr(torch.utils.data, "DataLoader", spawning)
    flags += " --weights random --backbone squeezenet1_1 --resize 72 --size 64"
    folder, out = train(script, *flags.split(), dataset=name)
    assert ("NMI" in left_in(folder)[1]["last epoch"]) == (name != "inshop")
    assert "train 3 images of 2 classes" in out and "\nuntrained backbone " in out
    assert out.count("building the cache") == caches
    mini("cars")
    words = "--dataset", "cars", "--data-root", tmp_path
    out = typed("eval.py", folder / "last.pt", *words)[1]
    assert "embeddings of 2 classes" in out and judge.OTHER_IMAGES in out and "seen R@1" not in out

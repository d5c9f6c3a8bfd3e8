"""The real datasets in miniature copies of their layouts, broken copies of them, and the cache."""
import contextlib
import errno
import gc
import json
import os
import pickle
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image
from torchvision.transforms import v2

import common
import dml_da
import jrd
import mdr
from support import identity, images, layouts


# ---------------------------------------------------------------------------- miniature copies
MINI = {"cub": {"train": (3, 2), "test": (4, 2)}, "cars": {"train": (3, 2), "test": (4, 2)},
        "sop": {"train": (3, 2), "test": (4, 2)},
        "inshop": {"train": (3, 2), "test": (3, 2), "gallery": (4, 2)}}
CLASSES = {"cub": (3, 100, 101, 200), "cars": (98, 7, 99, 196), "sop": (1, 11318, 11319, 22634),
           "inshop": ("id_00000009", "id_00000002", "id_00000008", "id_00000004")}
IMAGES = [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]        # (class, number in it)
TEST_STATUS = {(2, 0): "query", (2, 1): "gallery", (3, 0): "query", (3, 1): "gallery",
               (2, 2): "gallery", (3, 2): "gallery", (3, 3): "query"}


def colour(c, number):
    return 20 + 60 * c, 20 + 60 * number, 130


def draw(path, c, number):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (18 + 2 * c, 20 + 3 * number), colour(c, number)).save(path, quality=95)


def annotations(path, rows, **extra):
    """A .mat as Stanford made them: a struct array `annotations`, of the fields in this order."""
    fields = [*extra.get("first", ()), "bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2",
              *extra.get("last", ())]
    table = np.empty((1, len(rows)), [(field, object) for field in fields])
    for i, row in enumerate(rows):
        for field in fields:
            table[field][0, i] = row.get(field, np.uint8(9))
    path.parent.mkdir(parents=True, exist_ok=True)
    scipy.io.savemat(path, {"annotations": table, **extra.get("also", {})})


def make_cub(root):
    folder, images, labels = root / "CUB_200_2011", [], []
    for i, (c, number) in enumerate(IMAGES):
        name = f"{CLASSES['cub'][c]:03}.Bird_{c}/Bird_{c}_{number:04}.jpg"
        draw(folder / "images" / name, c, number)
        images.append(f"{3 * i + 1} {name}\n")
        labels.insert(0, f"{3 * i + 1} {CLASSES['cub'][c]}\n")           # joined by id, not by row
    (folder / "images.txt").write_text("".join(images))
    (folder / "image_class_labels.txt").write_text("".join(labels))
    (folder / "train_test_split.txt").write_text("1 0\n")
    return folder


def make_cars(root):
    folder, rows = root / "cars", []
    for i, (c, number) in enumerate(IMAGES):
        name = f"car_ims/{i + 1:06}.jpg"
        draw(folder / name, c, number)
        rows.append({"relative_im_path": name, "class": np.uint8(CLASSES["cars"][c]),
                     "test": np.uint8(number)})
    names = np.array([f"Car {c}" for c in range(196)], object)
    annotations(folder / "cars_annos.mat", rows, first=["relative_im_path"],
                last=["class", "test"], also={"class_names": names})
    return folder


def make_cars_devkit(root, test_list="devkit/cars_test_annos_withlabels.mat"):
    """Each class in both folders: pooled they are the dataset, apart they are the closed set."""
    folder, rows = root / "stanford_cars", {"cars_train": [], "cars_test": []}
    for i, (c, number) in enumerate(IMAGES):
        side = ("cars_train", "cars_test")[number]
        draw(folder / side / f"{i + 1:05}.jpg", c, number)
        rows[side].append({"class": np.uint8(CLASSES["cars"][c]), "fname": f"{i + 1:05}.jpg"})
    annotations(folder / "devkit/cars_train_annos.mat", rows["cars_train"], last=["class", "fname"])
    annotations(folder / test_list, rows["cars_test"], last=["class", "fname"])
    annotations(folder / "devkit/cars_test_annos.mat", rows["cars_test"], last=["fname"])
    return folder


def make_sop(root):
    folder = root / "Stanford_Online_Products"
    lists = {part: ["image_id class_id super_class_id path\n"] for part in ("train", "test")}
    for i, (c, number) in enumerate(IMAGES):
        name = f"bicycle_final/11{c}_{number}.JPG"
        draw(folder / name, c, number)
        lists["train" if c < 2 else "test"].append(f"{i + 1} {CLASSES['sop'][c]} 1 {name}\n")
    for part, lines in lists.items():
        (folder / f"Ebay_{part}.txt").write_text("".join(lines))
    return folder


def make_inshop(root, listed=".", images="."):
    folder = root / "inshop"
    rows = [f"{len(IMAGES) + 3}\n", "image_name item_id evaluation_status\n"]
    for c, number in IMAGES + [(2, 2), (3, 2), (3, 3)]:
        item = CLASSES["inshop"][c]
        name = f"img/WOMEN/Dresses/{item}/{number:02}_1_front.jpg"
        draw(folder / images / name, c, number)
        rows.append(f"{name:<70} {item} {TEST_STATUS.get((c, number), 'train'):<10}\n")
    (folder / listed).mkdir(exist_ok=True)
    (folder / listed / "list_eval_partition.txt").write_text("".join(rows))
    return folder


LAYOUTS = {
    "cub": make_cub, "cars": make_cars, "cars devkit": make_cars_devkit, "sop": make_sop,
    "cars torchvision": lambda root: make_cars_devkit(root, "cars_test_annos_withlabels.mat"),
    "inshop": make_inshop, "inshop Eval Img": lambda root: make_inshop(root, "Eval", "Img")}


@pytest.fixture
def mini(monkeypatch, tmp_path):
    """mini(layout) -> (name of the dataset, its folder) of a small copy that counts as whole."""
    for name, counts in MINI.items():
        monkeypatch.setitem(layouts.COUNTS, name, counts)

    def make(layout):
        return layout.split()[0], LAYOUTS[layout](tmp_path)
    return make


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout, mini, tmp_path):
    """Counts, classes, labels from 0, and each image under its own label."""
    name, _ = mini(layout)
    data = common.load_dataset(name, tmp_path)
    assert data.name == name
    assert data.counts() == {part: list(counts) for part, counts in MINI[name].items()}
    for part in MINI[name]:
        split, first = getattr(data, part), 0 if part == "train" else 2
        own = sorted(CLASSES[name][first:first + 2])
        assert [c.split(".")[0] for c in split.classes] == [
            f"{c:03}" if name == "cub" else str(c) for c in own]
        seen = []
        for image, label in zip(split.images, split.labels.tolist()):
            c = CLASSES[name].index(own[label])
            mean = image.float().mean((1, 2))
            number = round((mean[1].item() - 20) / 60)
            assert torch.allclose(mean, torch.tensor(colour(c, number)).float(), atol=3)
            assert image.shape == (3, 20 + 3 * number, 18 + 2 * c)
            seen.append((c, number))
        want = [(c, n) for c, n in IMAGES if (c < 2) == (part == "train")]
        if name == "inshop" and part != "train":
            status = {"test": "query", "gallery": "gallery"}[part]
            want = [key for key, value in TEST_STATUS.items() if value == status]
        assert sorted(seen) == sorted(want)


# ---------------------------------------------------------------------------- what can be wrong
@pytest.mark.parametrize("name, says", [
    ("cub", ["caltech.edu/records/65de6-vp158", "1,150,585,339 bytes",
             "97eceeb196236b17998738112f37df78", "/none/CUB_200_2011"]),
    ("cars", ["d5c8f0aa497503f355e17dc7886c3f14", "b407c6086d669747186bd1d764ff9dbc",
              "/cars/car_ims", "/cars/devkit/cars_test_annos_withlabels.mat"]),
    ("sop", ["Stanford_Online_Products.zip", "3,083,860,082 bytes",
             "7f73d41a2f44250d4779881525aea32e", "/none/Stanford_Online_Products"]),
    ("inshop", ["DeepFashion", "52,712", "list_eval_partition.txt", "/inshop"])])
def test_a_missing_dataset_is_named_with_where_to_get_it(name, says, tmp_path):
    with pytest.raises(common.UserError) as error:
        common.load_dataset(name, tmp_path / "none")
    message = str(error.value)
    assert message.startswith(f"no {name} under {tmp_path / 'none'} (--data-root") and \
        "\n" not in message and not (tmp_path / "none").exists()
    for part in says:
        assert part in message


def replace(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def cut(path):
    path.write_bytes(path.read_bytes()[:-len(path.read_bytes()) // 3])


BROKEN = {  # what is wrong: layout, what breaks it, what the one line must say
    "no list": ("cub", lambda d: (d / "images.txt").unlink(), "images.txt .*half-extracted"),
    "no labels": ("cub", lambda d: (d / "image_class_labels.txt").unlink(), "image_class_labels"),
    "a field too many": ("cub", lambda d: replace(d / "images.txt", "4 100", "4 x 100"),
                         "images.txt, line 2: '4 x 100.Bird_1/.*number text"),
    "class no number": ("cub", lambda d: replace(d / "image_class_labels.txt", "1 3\n", "1 C\n"),
                        "image_class_labels.txt, line 7: '1 C' is not 2 fields: number number"),
    "no class": ("cub", lambda d: replace(d / "image_class_labels.txt", "4 100\n", ""),
                 "image_class_labels.txt has no class for image 4"),
    "binary list": ("cub", lambda d: (d / "images.txt").write_bytes(b"\xff\xfe1"), "images.txt"),
    "half-extracted": ("cub", lambda d: shutil.rmtree(d / "images" / "101.Bird_2"),
                       "2 of the 7 images of cub are missing, .*Bird_2_0000.jpg first: a half-ex"),
    "other counts": ("cub", lambda d: replace(
        d / "images.txt", "1 003.Bird_0/Bird_0_0000.jpg\n", ""),
                     "has train 2 images of 1 classes, test 4 images of 2 classes; .* has train 3 "
                     "images of 2 classes, test 4 images of 2 classes"),
    "no .mat": ("cars", lambda d: (d / "cars_annos.mat").unlink(), "cars_train_annos.mat .*annos"),
    "text for .mat": ("cars", lambda d: (d / "cars_annos.mat").write_text("404 not found" * 50),
                      "cannot read 'relative_im_path' and 'class' .*cars_annos.mat"),
    "cut .mat": ("cars", lambda d: cut(d / "cars_annos.mat"), "cars_annos.mat"),
    "other .mat": ("cars", lambda d: scipy.io.savemat(d / "cars_annos.mat", {"annotations": 3}),
                   "cars_annos.mat"),
    "image of cars": ("cars", lambda d: (d / "car_ims/000003.jpg").unlink(), "1 of the 7 .*000003"),
    "unlabelled list": ("cars devkit", lambda d: (d / "devkit/cars_test_annos.mat").rename(
        d / "devkit/cars_test_annos_withlabels.mat"), "'class' of .*cars_test_annos_withlabels"),
    "no test list": ("cars devkit", lambda d: (
        d / "devkit/cars_test_annos_withlabels.mat").unlink(), "no .*devkit/cars_test_annos_with"),
    "no cars_test": ("cars devkit", lambda d: shutil.rmtree(d / "cars_test"), "3 of the 7 images"),
    "row of sop": ("sop", lambda d: replace(d / "Ebay_test.txt", " 1 bicycle", " bicycle"),
                   "Ebay_test.txt, line 2: .*number number number text"),
    "no sop list": ("sop", lambda d: (d / "Ebay_test.txt").unlink(), "Ebay_test.txt"),
    "status": ("inshop", lambda d: replace(d / "list_eval_partition.txt", "query", "quarry"),
               "list_eval_partition.txt, line 6: status 'quarry' is none of train, query, gallery"),
    "row of inshop": ("inshop", lambda d: replace(d / "list_eval_partition.txt", "query", ""),
                      "list_eval_partition.txt, line 6: .*text text text"),
    "no partition": ("inshop Eval Img", lambda d: shutil.rmtree(d / "Eval"), "list_eval_partition"),
    "no Img": ("inshop Eval Img", lambda d: shutil.rmtree(d / "Img"), "10 of the 10 images")}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_copy_is_refused(what, mini, tmp_path):
    layout, damage, message = BROKEN[what]
    name, folder = mini(layout)
    layouts.read_dataset(name, tmp_path)
    damage(folder)
    with pytest.raises(common.UserError, match=message) as error:
        common.load_dataset(name, tmp_path)
    assert "\n" not in str(error.value) and not (tmp_path / ".cache").exists()


def ended_with(function, capfd, monkeypatch):
    """-> exit status, stdout and stderr of a script's main."""
    monkeypatch.setattr("sys.argv", ["script.py"])
    with pytest.raises(SystemExit) as stop:
        common.main(function, lambda: None)
    return stop.value.code, *capfd.readouterr()


def test_check_lists_every_corrupt_image(mini, tmp_path, capfd, monkeypatch):
    name, folder = mini("cub")
    args = common.parse_args(["check", name, "--data-root", str(tmp_path)])
    common.check(args.dataset, args.data_root)
    assert capfd.readouterr().out == f"{folder}: 7 images, all can be read\n"
    bad = sorted(folder.rglob("*.jpg"))[1:4:2]
    cut(bad[0])
    bad[1].write_bytes(b"")
    status, out, err = ended_with(lambda _: common.check(name, tmp_path), capfd, monkeypatch)
    assert all(str(path) in line for path, line in zip(bad, out.splitlines(), strict=True))
    assert status == 2
    assert err == f"script.py: 2 of 7 images in {folder} cannot be read: unpack it again\n"


@pytest.mark.parametrize("flags", ["", "--no-cache --workers 1"])
def test_a_corrupt_image_stops_training_in_one_line(flags, mini, tmp_path, capfd, monkeypatch):
    """While the cache is built, or else in a worker of the loader."""
    # torch waits this long (5 s) for a worker that raised, when it collects the loader.
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    name, folder = mini("cub")
    bad = sorted(folder.rglob("*.jpg"))[1]
    cut(bad)
    cfg = jrd.parse_args(["--dataset", name, "--data-root", str(tmp_path), "--backbone",
                          "small", "--out", str(tmp_path / "runs"), *flags.split()])
    status, _, err = ended_with(lambda _: jrd.train(cfg), capfd, monkeypatch)
    assert status == 2 and err.startswith(f"script.py: cannot read the image {bad}: ")
    assert err.count("\n") == 1
    assert not (tmp_path / ".cache").exists() or "--no-cache" not in flags
    gc.collect()


# ---------------------------------------------------------------------------- the cache
HALVE = v2.Resize((10, 12), antialias=True)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """files(prefix) -> seven image files of different sizes; decoded(): how often one was decoded,
    in this process or in a child of it."""
    draws = np.random.RandomState(0)
    paths = [tmp_path / "d" / f"{i}.png" for i in range(7)]
    for i, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(draws.randint(0, 256, (20 + i, 30 - i, 3), np.uint8)).save(path)
    monkeypatch.setattr(images, "CHUNK", 2)
    real, log = images.decode, os.open(tmp_path / "decoded", os.O_CREAT | os.O_APPEND | os.O_RDWR)

    def spied(path):
        os.write(log, b".")
        return real(path)
    monkeypatch.setattr(images, "decode", spied)

    def make(prefix=None):
        return images.ImageFiles(paths, prefix)
    make.decoded = lambda: (os.fstat(log).st_size, os.ftruncate(log, 0))[0]
    yield make
    os.close(log)


def cached(files, tmp_path):
    files.sources = identity.digest_of(map(str, files.paths), files.paths, "st_size", "st_mtime_ns")
    files.cache = tmp_path / ".cache" / "toy-train"
    return images.cache_images(files)


def assert_same(stored, files):
    assert len(stored) == len(files)
    for got, want in zip(stored, (files[i] for i in range(len(files))), strict=True):
        assert torch.equal(got, want) and got.dtype == torch.uint8 and got.stride() == want.stride()


@pytest.mark.parametrize("prefix", [None, HALVE, v2.Resize(11, antialias=True)])
def test_the_cache_holds_what_the_files_give_and_decodes_once(prefix, files, tmp_path, capsys,
                                                              monkeypatch):
    """Images of one shape and of several."""
    stored = cached(files(prefix), tmp_path)
    assert ".images: 7 images\n" in capsys.readouterr().out
    assert (stored.whole() is None) == (prefix != HALVE)
    size = sum(3 * h * w for h, w in stored.shapes)
    assert [p.stat().st_size for p in (tmp_path / ".cache").glob("*.images")] == [size]
    assert_same(stored, files(prefix))
    files.decoded()
    with monkeypatch.context() as patch:                      # a finished cache needs no writing
        patch.setattr(images.filelock, "FileLock", None)
        assert_same(cached(files(prefix), tmp_path), stored)
    assert files.decoded() == 0 and capsys.readouterr().out == ""
    copied = pickle.dumps(stored)
    assert len(copied) < 2000, "a worker would be sent the images themselves"
    assert_same(pickle.loads(copied), stored)


CHANGES = {  # what happens to a finished cache of seven images, and how many are decoded anew
    "time of an image": lambda d, c: os.utime(d / "3.png", (1, 1)),
    "an image": lambda d, c: Image.new("RGB", (30, 20)).save(d / "0.png"),
    "truncated": lambda d, c: os.truncate(c["images"], c["images"].stat().st_size - 1),
    "longer": lambda d, c: os.truncate(c["images"], c["images"].stat().st_size + 1),
    "file gone": lambda d, c: c["images"].unlink(),
    "notes gone": lambda d, c: c["json"].unlink(),
    "notes are none": lambda d, c: c["json"].write_text("[]"),
    "notes not JSON": lambda d, c: c["json"].write_text('{"format": '),
    "shapes foreign": lambda d, c: replace(c["json"], "20x30", "2xx30"),
    "shapes fewer": lambda d, c: replace(c["json"], "20x30 ", ""),
    "other format": lambda d, c: replace(c["json"], '"format": 2', '"format": 1')}


@pytest.mark.parametrize("change", CHANGES)
def test_a_cache_that_does_not_fit_is_replaced(change, files, tmp_path):
    before = cached(files(), tmp_path)
    old = [before[i].clone() for i in range(7)]
    names = sorted((tmp_path / ".cache").iterdir())
    CHANGES[change](tmp_path / "d", {p.suffix[1:]: p for p in names})
    files.decoded()
    stored = cached(files(), tmp_path)
    assert files.decoded() == 7
    assert_same(stored, files())
    assert sorted((tmp_path / ".cache").iterdir()) == names, "the stale files are still there"
    if change in ("an image", "time of an image"):
        assert_same(before, old)                    # a run that goes on reads what it began with


def test_each_transform_has_a_cache_of_its_own(files, tmp_path):
    whole, small = cached(files(), tmp_path), cached(files(HALVE), tmp_path)
    other = cached(files(v2.Resize((10, 12), v2.InterpolationMode.NEAREST)), tmp_path)
    assert not torch.equal(small[0], other[0]) and small[0].shape == other[0].shape == (3, 10, 12)
    files.decoded()
    for stored, prefix in ((whole, None), (small, HALVE)):
        assert_same(cached(files(prefix), tmp_path), stored)
    assert files.decoded() == 0


def in_a_child(function):
    """Fork, run, -> the exit status (negative: the signal that ended it)."""
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)
            function()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_killed_build_leaves_nothing_that_is_taken_for_a_cache(files, tmp_path, monkeypatch):
    photos = files()

    def get(self, i, real=images.ImageFiles.__getitem__):
        return real(self, i) if i != 5 else os.kill(os.getpid(), signal.SIGKILL)
    with monkeypatch.context() as patch:
        patch.setattr(images.ImageFiles, "__getitem__", get)
        assert ended(in_a_child(lambda: cached(photos, tmp_path))) == -signal.SIGKILL
    assert [p.suffix for p in (tmp_path / ".cache").iterdir() if p.suffix != ".lock"] == [".part"]
    assert_same(cached(photos, tmp_path), photos)


@pytest.mark.parametrize("locks", [True, False])
def test_several_at_once_build_one_cache(locks, files, tmp_path, monkeypatch, capfd):
    """Three processes: one builds and the others wait.  Or their locks do not reach each other, as
    on two machines: then each reads whole images, while the others replace the file."""
    real = images.decode
    monkeypatch.setattr(images, "decode", lambda path: time.sleep(0.02) or real(path))
    if not locks:
        monkeypatch.setattr(images.filelock, "FileLock", contextlib.nullcontext)
    photos = files()
    want = [images.to_tensor(None, real(path)) for path in photos.paths]
    files.decoded()

    def build():
        for _ in range(10):
            assert_same([*cached(photos, tmp_path)], want)
    children = [in_a_child(build) for _ in range(3)]
    assert [ended(child) for child in children] == [0, 0, 0]
    assert_same([*cached(photos, tmp_path)], want)
    out = capfd.readouterr().out
    assert not locks or out.count("building the cache") == 1


def test_a_file_system_without_locks(files, tmp_path, monkeypatch):
    """Lustre without the flock option says ENOSYS: that is no reason to do without a cache."""
    import fcntl

    def flock(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    monkeypatch.setattr(fcntl, "flock", flock)
    assert_same(cached(files(), tmp_path), files())


def test_a_full_disk(files, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as patch:
        patch.setattr(np, "ascontiguousarray", full)
        with pytest.raises(common.UserError, match="cannot write .*No space left.*--no-cache"):
            cached(files(), tmp_path)
    assert not list((tmp_path / ".cache").glob(".*.part"))
    assert_same(cached(files(), tmp_path), files())


def test_the_papers_datasets_are_trusted_by_their_names(mini, tmp_path, monkeypatch):
    """A whole cache costs one look into each folder, not one at each file."""
    name, folder = mini("cub")
    common.load_dataset(name, tmp_path, test=HALVE)
    looks = []
    monkeypatch.setattr(Path, "stat", lambda self, real=Path.stat, **kw: (
        looks.append(self), real(self, **kw))[1])
    common.load_dataset(name, tmp_path, test=HALVE)
    assert not [path for path in looks if path.suffix == ".jpg"]


def test_a_place_that_cannot_be_written(files, tmp_path):
    (tmp_path / ".cache").write_text("in the way")
    with pytest.raises(common.UserError, match="cannot write the cache .*--no-cache"):
        cached(files(), tmp_path)


# ---------------------------------------------------------------------------- through the scripts
TRAININGS = [
    (jrd, "cub", "--backbone bn_inception --batch 3"),
    (mdr, "inshop", "--backbone bn_inception --batch 3 --iterations 1"),
    (dml_da, "sop", "--backbone googlenet --iterations 1")]


@pytest.mark.parametrize("script, layout, flags", TRAININGS, ids=["jrd", "mdr", "dml_da"])
def test_an_epoch_on_a_miniature_copy(script, layout, flags, mini, tmp_path, capsys):
    """The real backbone with random weights, through the whole path; a class has one image."""
    name, _ = mini(layout)
    result = script.train(script.parse_args([
        "--dataset", name, "--data-root", str(tmp_path), "--out", str(tmp_path / "runs"),
        "--weights", "random", "--epochs", "1", "--workers", "0", *flags.split()]))
    assert 0 <= result["last epoch"]["R@1"] <= 1
    out = capsys.readouterr().out
    assert "train 3 images of 2 classes" in out and out.count("building the cache") == (
        4 if name == "inshop" else 3)
    (folder,) = (tmp_path / "runs").iterdir()
    splits = json.loads((folder / "config.json").read_text())["splits"]
    assert splits == {part: list(counts) for part, counts in MINI[name].items()}
    assert ("NMI" in result["last epoch"]) == (name != "inshop")

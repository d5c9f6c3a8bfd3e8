"""A trained network in use: eval.py --query, the sheet, docs/running.md's examples, export."""
import contextlib
import multiprocessing
import os
import re
import shutil
import weakref
from pathlib import Path
from unittest import mock

import numpy as np
import PIL.Image
import PIL.ImageDraw
import pytest
import torch

import common
import jrd
import mdr
from conftest import ROOT, make_folder
from report import figures, judge
from support import glyphs
from support.images import ImageFiles
from support.photos import Folder, decode

PAGE = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """last.pt of an epoch of jrd.py on ten classes; the test images are ten classes here too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(glyphs.GLYPHS, "train", (range(400, 410), 4))
        patch.setitem(glyphs.GLYPHS, "test", (range(450, 460), 4))
        runs = tmp_path_factory.mktemp("runs")
        jrd.train(jrd.parse_args(["--epochs", "1", "--batch", "8", "--out", str(runs)]))
        yield next(runs.glob("*/last.pt"))


def table(text):
    """What eval.py printed -> {query: [(distance, class, image), ...]}"""
    answers = {}
    for line in text.splitlines():
        if line.startswith("query "):
            rows = answers.setdefault(line.removeprefix("query "), [])
        elif re.match(r" +\d+ ", line):
            _, distance, kind, image = re.split(r"\s{2,}", line.strip(), maxsplit=3)
            rows.append((float(distance), kind, image))
    return answers


def test_photos_are_found_by_the_networks_own_distances(checkpoint, tmp_path, typed):
    """Against plain loops over the same images, in order of distance; a photo finds itself at 0."""
    folder = make_folder(tmp_path / "g", [2, 3, 2])
    shutil.copy(folder / "class01" / "1.png", folder / "lone.png")
    asked = [str(folder / "class00" / "0.png"), str(folder / "class02" / "1.png")]
    _, text, _ = typed("eval.py", checkpoint, "--query", *asked, "--gallery", folder, "--top", 3)
    answers, x = table(text), {}
    assert [*answers] == asked and f"{checkpoint} searches 8 images of 4 classes: " in text
    network, cfg = common.load(checkpoint, jrd.Network, "cpu")
    for path in folder.rglob("*.png"):                                  # each alone in its batch
        image = ImageFiles([path], jrd.transforms(cfg)[2], decode)
        x[str(path)] = common.embed(network.embed, image, cfg)[0].double()
    for path in asked:
        distances = {other: (x[path] - x[other]).norm().item() for other in x}
        nearest = sorted(distances, key=distances.get)[:3]
        assert answers[path][0] == (0.0, Path(path).parent.name, path)
        for (distance, _, found), want in zip(answers[path], nearest, strict=True):
            assert found == want and distance == pytest.approx(distances[want], abs=2e-4)


def test_photos_that_cannot_be_read_are_named_and_the_others_searched(checkpoint, tmp_path, typed):
    folder = make_folder(tmp_path / "g", [4, 30])
    broken, other = folder / "class00" / "2.png", folder / "class01" / "7.png"
    for path in (broken, other):
        os.truncate(path, 700)
    asked = [f"{folder}/class01/6.png", f"{folder}/class01/29.png"]
    words = "eval.py", checkpoint, "--gallery", folder, "--query", broken
    status, text, _ = typed(*words, *asked)
    answers = table(text)
    assert status == 0 and [*answers] == asked and "searches 32 images" in text
    for query, rows in answers.items():
        assert rows[0] == (0.0, "class01", query)
    assert text.count("cannot read the image ") == 3
    assert typed(*words)[::2] == (2, "eval.py: no images to embed that can be read\n")


def test_queries_are_kept_small(checkpoint, tmp_path, typed, monkeypatch):
    """A photo as it was decoded goes before the next but a few."""
    def watched(path):
        photo = decode(path)
        photos.append(weakref.ref(photo))
        alive.append(sum(ref() is not None for ref in photos))
        return photo
    photos, alive = [], []
    monkeypatch.setattr(judge, "decode", watched)
    asked = sorted(make_folder(tmp_path / "g", [40]).rglob("*.png"))
    typed("eval.py", checkpoint, "--query", *asked, "--gallery", tmp_path / "g")
    assert len(alive) == 80 and max(alive) <= 12


def test_embedding_starts_no_process(checkpoint, tmp_path, monkeypatch):
    """So it runs in a daemon, and where processes are spawned: paths, open files, PIL images."""
    def refuse(*args):
        raise AssertionError("daemonic processes are not allowed to have children")
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refuse)
    network, cfg = common.load(checkpoint, jrd.Network, "cpu")
    transform = jrd.transforms(cfg)[2]
    paths = sorted(make_folder(tmp_path / "g", [60]).rglob("*.png"))

    def embed(photos):
        return common.embed(network.embed, ImageFiles(photos, transform, decode), cfg)
    x = embed(paths)
    assert len(x) == 60 and cfg.workers is None
    with open(paths[0], "rb") as file:
        torch.testing.assert_close(embed([file, PIL.Image.open(paths[1])]), x[:2])
        assert torch.equal(embed([file]), embed([paths[0]]))            # read a second time
    with pytest.raises(common.UserError, match="no images to embed"):
        embed([])


def test_a_folder_of_ones_own_with_a_gallery(checkpoint, tmp_path, typed):
    """Test images and gallery of --dataset FOLDER, by their paths, cached or not; --top of more
    than there are shows all; --l2norm changes nothing for a network on the unit sphere."""
    folder, searched = tmp_path / "f", []
    for part, sizes in {"train": [2, 2], "test": [2, 2], "gallery": [3, 3]}.items():
        make_folder(folder / part, sizes, seed=len(part))
        if part != "train":
            searched += map(str, folder.glob(f"{part}/*/*.png"))
    photo = str(folder / "gallery" / "class01" / "2.png")
    words = "--dataset", folder, "--data-root", tmp_path, "--top", 50, "--query", photo
    for more in ([], ["--no-cache"], ["--l2norm"], ["--to", tmp_path / "sheet.JPG"]):
        told = typed("eval.py", checkpoint, *words, *more)[1]
        rows = table(told.partition("\n\nwrote")[0])[photo]
        assert rows[0] == (0.0, "class01", photo)
        assert sorted(image for *_, image in rows) == sorted(searched)
    with PIL.Image.open(tmp_path / "sheet.JPG") as sheet:       # a query and ten images
        assert sheet.format == "JPEG" and sheet.size == (11 * 148, 148 + 2 * 17)


def test_a_sheet_of_the_nearest(checkpoint, typed, monkeypatch):
    """Six queries of different classes, none among the five nearest to it, which are in order."""
    drawn = mock.Mock()
    monkeypatch.setattr(figures, "draw_sheet", drawn)
    told = typed("report", "--sheet", checkpoint)[1]
    assert told.endswith(f"wrote {checkpoint.with_name('sheet.png')}\n")
    rows = drawn.call_args.args[1]
    assert len({kind for (_, kind, _), _ in rows}) == len(rows) == 6
    for query, nearest in rows:
        distances, entries = zip(*nearest)
        assert len(entries) == 5 and query not in entries and [*distances] == sorted(distances)


def test_pairs_at_each_level(tmp_path, typed, monkeypatch, checkpoint):
    """Each pair's nearest level is its row's, by the distances of the 40 test images over
    their mean; pairs of a class come first.  A run without levels has none to draw."""
    monkeypatch.setitem(glyphs.GLYPHS, "train", (range(400, 410), 4))
    monkeypatch.setitem(glyphs.GLYPHS, "test", (range(450, 460), 4))
    mdr.train(mdr.parse_args(["--epochs", "1", "--batch", "8", "--levels", "-1", "0", "1", "--out",
                              str(tmp_path)]))
    (path,) = tmp_path.glob("*/last.pt")
    drawn = mock.Mock()
    monkeypatch.setattr(figures, "draw_sheet", drawn)
    assert typed("report", "--pairs", path)[1].endswith(f"wrote {path.with_name('pairs.png')}\n")
    rows = drawn.call_args.args[1]
    network, cfg, transform = judge.open_checkpoint(path)
    test = judge.images_to_judge(cfg, transform).test
    with torch.no_grad():
        x = network.eval().embed(torch.stack([test.images[i] for i in range(40)]).to(cfg.device))
    d = torch.cdist(x, x).cpu()
    d, found = d / (d.sum() / (40 * 39)), []
    for query, pairs in rows:
        assert len(pairs) == 5
        same, levels = [], set()
        for value, entry in pairs:
            i, j = (int(name.removeprefix("image ")) for name, *_ in (query, entry))
            want = (d[i, j] - network.mdr.mu.cpu()) / network.mdr.sigma.cpu()
            assert i != j and value == pytest.approx(want.item(), abs=1e-3)
            levels.add((network.mdr.levels.cpu() - want).abs().argmin().item())
            same.append(query[1] == entry[1])
        assert same == sorted(same, reverse=True) and sum(same) < 3 and len(levels) == 1
        found += levels
    assert found == sorted(found) == [0, 0, 1, 1, 2, 2]
    status, _, error = typed("report", "--pairs", checkpoint)
    assert status == 2 and "is of a run without levels" in error


def test_a_class_is_the_first_sub_folder(tmp_path):
    make_folder(tmp_path / "deep" / "under", [1])
    for part in ("", "test", ".cache"):                     # test/ is no class, .cache is litter
        make_folder(tmp_path / part, [1])
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "train").mkdir()                            # but of images it is one
    for name in ("lone.JPG", "train/steam.png"):
        PIL.Image.new("RGB", (4, 4)).save(tmp_path / name)
    folder = Folder(tmp_path)
    assert {path.relative_to(tmp_path).as_posix(): kind for path, kind in folder.images.items()
            } == {"class00/0.png": "class00", "deep/under/class00/0.png": "deep", "lone.JPG": None,
                  "test/class00/0.png": "class00", "train/steam.png": "train"}
    assert [*folder.parts["test"]] == [tmp_path / "test" / "class00" / "0.png"]
    assert [*folder.parts[""].values()] == ["class00", "deep", "train"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(common.UserError, match="no folder of images"):
        Folder(tmp_path / "nowhere")
    for read in (Folder.splits, Folder.judged):
        with pytest.raises(common.UserError, match="/empty has .* sub-folders"):
            read(Folder(tmp_path / "empty"))


def test_the_sheet_shows_framed_images_with_their_lines(tmp_path, monkeypatch):
    """A wide image as wide as the space, a tall one as tall, framed; a long name is cut."""
    texts, write = [], PIL.ImageDraw.ImageDraw.text

    def text(pen, place, words, colour, font):
        texts.append(words)
        write(pen, place, words, colour, font)
    monkeypatch.setattr(PIL.ImageDraw.ImageDraw, "text", text)
    PIL.Image.new("RGB", (256, 128), "blue").save(tmp_path / "wide.png")
    tall = PIL.Image.new("RGB", (30, 60))
    wide = "wide", "a name by far\ntoo long to stand below it", tmp_path / "wide.png"
    row = wide, [(0.5, ("tall", wide[1], tall)), (0.7, ("tall", "short\nname", tall))]
    judge.draw_sheet(tmp_path / "sheet.png", [row, row])
    assert texts[3:] == texts[:3] and texts[2] == "short name\n0.7000"
    assert re.fullmatch("a name by far.{,3}…\nquery", texts[0])
    sheet = np.asarray(PIL.Image.open(tmp_path / "sheet.png").convert("RGB")).astype(int)

    def place(colour):
        rows, columns = np.nonzero((sheet[:145] == colour).all(-1))
        return columns.min(), np.ptp(columns) + 1, np.ptp(rows) + 1
    (left, _, high), (left_of_wrong, *_, high_too) = place((0, 158, 115)), place((213, 94, 0))
    assert place((0, 0, 255))[1:] == (128, 64) and left < left_of_wrong and high == high_too == 134
    assert (sheet[-1] == 255).all() and (sheet[:, -1] == 255).all()     # nothing is cut off


def test_the_pages_python(checkpoint, tmp_path, monkeypatch, capfd, typed):
    """The snippets as they stand there: a table makes a folder of links, the search agrees with
    eval.py's, what is exported embeds like the network, whatever the number of images."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(checkpoint.parent, "runs/jrd-glyphs-s0")
    (tmp_path / "photos").mkdir()
    for i, path in enumerate(sorted(make_folder(tmp_path / "g", [2] * 4).rglob("*.png"))):
        PIL.Image.open(path).save(f"photos/{i}.jpg")
    shutil.copy("photos/5.jpg", "query.jpg")
    recipe, deeper, use, export = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    recipe = recipe.replace('Path("photos"', 'Path("linked"')
    (tmp_path / "groceries" / "Fruit" / "Apple").mkdir(parents=True)
    shutil.copy("query.jpg", "groceries/Fruit/Apple/1.jpg")
    tables = ("\ufefffile,label\r\nphotos/1.jpg,dress/red\r\nphotos/2.jpg,dress/blue\r\n",
              'label;file;split\n"mug; blue";photos/3.jpg;test\nlamp;photos/4.jpg;\n')
    refused = mock.patch.object(Path, "symlink_to", side_effect=OSError("Windows"))
    for table_text, links in ((tables[0], contextlib.nullcontext()), (tables[1], refused)) * 2:
        (tmp_path / "labels.csv").write_bytes(table_text.encode())
        with links:
            names = {}
            exec(recipe, names)
    exec(deeper, names)
    linked = {p.relative_to("linked").as_posix(): p for p in Path("linked").rglob("*.jpg")}
    assert {*linked} == {
        "dress%2Fred/photos%2F1.jpg", "dress%2Fblue/photos%2F2.jpg", "lamp/photos%2F4.jpg",
        "test/mug; blue/photos%2F3.jpg", "Fruit%2FApple/groceries%2FFruit%2FApple%2F1.jpg"}
    assert linked["dress%2Fred/photos%2F1.jpg"].resolve() == tmp_path / "photos" / "1.jpg"
    assert not linked["lamp/photos%2F4.jpg"].is_symlink()
    names = {}
    exec(use, names)
    printed = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert len(printed) == 5 and printed[0][1] == "photos/5.jpg" and float(printed[0][0]) < 1e-3
    _, text, _ = typed("eval.py", checkpoint, "--query", "query.jpg", "--gallery", "photos")
    rows = table(text)["query.jpg"]
    assert [row[1:] for row in rows] == [("–", image) for _, image in printed]
    exec(export, names)
    images = torch.randint(0, 256, (7, 3, 32, 32), dtype=torch.uint8)
    exported = torch.export.load("embed.pt2").module()
    with torch.inference_mode():
        torch.testing.assert_close(exported(images), names["network"].embed(images))

"""A trained network in use: eval.py --query, the sheet, docs/running.md's examples, export."""
import contextlib
import multiprocessing
import os
import re
import shutil
import sys
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
from report import figures, judge, search
from support import glyphs, photos
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


def table(text, place=r"\d+"):
    """What eval.py printed -> {query: [(distance, class, image), ...]}; – is the place of a query
    that is itself among the images."""
    answers = {}
    for line in text.splitlines():
        if line.startswith("query "):
            rows = answers.setdefault(line.removeprefix("query "), [])
        elif re.match(f" +{place} ", line):
            _, distance, kind, image = re.split(r"\s{2,}", line.strip(), maxsplit=3)
            rows.append((float(distance), kind, image))
    return answers


def snippet(words):
    """The one block of Python on the page that has these words"""
    (block,) = [block for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
                if words in block]
    return block


def itself(path):
    return 0.0, Path(path).parent.name, f"{path}  (the query itself)"


def test_photos_are_found_by_the_networks_own_distances(checkpoint, tmp_path, typed):
    """Against plain loops over the same images, in order of distance.  A photo that is among them
    is marked, by whatever path it is asked for; it is none of --top, but an equal file is."""
    folder = make_folder(tmp_path / "g", [2, 3, 2])
    shutil.copy(folder / "class01" / "1.png", folder / "lone.png")
    asked = [str(folder / "class00" / "0.png"), str(folder / "class02" / "1.png")]
    asked.append(str(folder / "class01" / "1.png"))
    _, text, _ = typed("eval.py", checkpoint, "--query", *asked, "--gallery", folder, "--top", 3)
    answers, x = table(text), {}
    assert [*answers] == asked and f"{checkpoint} searches 8 images of 4 classes: " in text
    network, cfg = common.load(checkpoint, jrd.Network, "cpu")
    for path in folder.rglob("*.png"):                                  # each alone in its batch
        image = ImageFiles([path], jrd.transforms(cfg)[2], decode)
        x[str(path)] = common.embed(network.embed, image, cfg)[0].double()
    for path in asked:
        distances = {other: (x[path] - x[other]).norm().item() for other in x}
        assert distances.pop(path) == 0 and table(text, "–")[path] == [itself(path)]
        nearest = sorted(distances, key=distances.get)[:3]
        for (distance, _, found), want in zip(answers[path], nearest, strict=True):
            assert found == want and distance == pytest.approx(distances[want], abs=2e-4)
    assert answers[path][0] == (0.0, "–", str(folder / "lone.png"))
    link = tmp_path / "link.png"
    link.symlink_to(path)
    _, text, _ = typed("eval.py", checkpoint, "--query", link, "--gallery", folder, "--top", 3)
    assert table(text) == {str(link): answers[path]}
    assert table(text, "–") == {str(link): [itself(path)]}


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
    for query, rows in table(text, "–").items():
        assert rows == [itself(query)] and len(answers[query]) == 5
    assert text.count("cannot read the image ") == 3
    assert typed(*words)[::2] == (2, "eval.py: no images to embed that can be read\n")
    assert typed(*words[:2], "--query", broken, "--gallery", tmp_path / "no")[::2] == (
        2, f"eval.py: --gallery {tmp_path}/no: no such folder\n")


def test_a_second_search_embeds_nothing_but_its_photo(checkpoint, tmp_path, typed, monkeypatch):
    """... as long as checkpoint, images, code and precision are those of the first, and says the
    same; so do --pairs.  A file that is damaged or cannot be written costs time only."""
    folder, place = make_folder(tmp_path / "g", [3, 4]), tmp_path / "run" / "last.pt"
    place.parent.mkdir()
    shutil.copy(checkpoint, place)
    kept, sizes, told = place.with_name("last.searched.npz"), [], set()
    embed = common.embed

    def counted(function, images, cfg):
        sizes.append(len(images))
        return embed(function, images, cfg)

    def sizes_of(*more):
        sizes.clear()
        words = "eval.py", place, "--gallery", folder, *(more or ("--query", photo))
        status, text, _ = typed(*words)
        assert status == 0 and len(list(place.parent.iterdir())) == 2       # and no .part
        told.add(text)
        return sizes.copy()
    monkeypatch.setattr(common, "embed", counted)
    photo = folder / "class00" / "0.png"
    assert sizes_of() == [1, 7] and sizes_of() == [1] and sizes_of("--pairs", "2") == []
    assert sizes_of("--query", photo, "--no-cache") == [1, 7] and sizes_of() == [1]
    assert len(told) == 2
    for content in (kept.read_bytes()[:-100], b"", b"no file of NumPy's"):
        kept.write_bytes(content)
        assert sizes_of() == [1, 7] and sizes_of() == [1]
    assert len(told) == 2
    for name in ("code_of", "versions"):
        with monkeypatch.context() as patch:
            patch.setattr(search, name, lambda *of: f"other {of}")
            assert sizes_of() == [1, 7] and sizes_of() == [1]
        assert sizes_of() == [1, 7] and len(told) == 2
    other = make_folder(tmp_path / "h", [1], seed=5) / "class00" / "0.png"
    shutil.copystat(folder / "class01" / "1.png", other)
    shutil.copy2(other, folder / "class01" / "1.png")               # with the old one's time
    assert sizes_of() == [1, 7] and sizes_of() == [1] and len(told) == 3
    (folder / "class01" / "3.png").rename(folder / "class00" / "3.png")
    assert sizes_of() == [1, 7] and sizes_of() == [1] and len(told) == 4
    bitmap = PIL.Image.new("RGB", (90, 90))
    bitmap.save(folder / "class00" / "4.bmp")
    assert sizes_of() == [1, 8] and len(told) == 5
    bitmap.putpixel((0, 0), (255, 0, 0))                # in the last bytes of a file of one size
    bitmap.save(folder / "class00" / "4.bmp")
    assert sizes_of() == [1, 8] and sizes_of() == [1]
    saved = common.read_checkpoint(place)
    saved["network"] = {name: value * 1.01 for name, value in saved["network"].items()}
    torch.save(saved, place)
    assert sizes_of() == [1, 8] and sizes_of() == [1]
    before = (folder / "class00" / "4.bmp").stat()
    os.utime(folder / "class00" / "4.bmp", ns=(before.st_atime_ns, before.st_mtime_ns + 1000000))
    assert sizes_of() == [1, 8] and sizes_of() == [1]       # who knows what was edited
    kept.unlink()
    kept.mkdir()                                        # as good as a disk that takes no writing
    assert sizes_of() == [1, 8] and sizes_of() == [1, 8]
    kept.rmdir()


def test_the_embeddings_of_any_folder_are_exported(train, tmp_path, typed):
    """All that can be read, of classes that trained too, in sub-folders or not; none is judged."""
    folder = make_folder(tmp_path / "photos", [3] * 4, side=20)
    checkpoint = train(jrd, "--batch", "4", dataset=folder)[0] / "last.pt"
    (folder / "class00" / "0.png").rename(folder / "loose.png")
    (folder / "class03" / "1.png").write_bytes(b"no image")
    words = "eval.py", checkpoint, "--export", tmp_path / "e.npz", "--gallery"
    status, out, _ = typed(*words, folder, "--l2norm")
    assert status == 0 and "11 embeddings, d = " in out and "R@" not in out
    assert "note: 1 of them, in no sub-folder, have the class –\n" in out
    with np.load(tmp_path / "e.npz") as arrays:
        paths, classes = arrays["paths"].tolist(), arrays["classes"][arrays["labels"]].tolist()
        assert len(paths) == 11 and "class03/1.png" not in paths
        for path, kind, point in zip(paths, classes, arrays["embeddings"]):
            assert kind == ("–" if path == "loose.png" else path[:7])
            assert np.linalg.norm(point) == pytest.approx(1)
        whole = dict(zip(paths, arrays["embeddings"]))
    (album := tmp_path / "album").mkdir()
    for name in ("class01/2.png", "loose.png"):
        shutil.copy2(folder / name, album)
    assert typed(*words, album, "--l2norm")[0] == 0
    with np.load(tmp_path / "e.npz") as arrays:
        assert arrays["paths"].tolist() == ["2.png", "loose.png"]
        want = [whole["class01/2.png"], whole["loose.png"]]
        np.testing.assert_allclose(arrays["embeddings"], want, atol=1e-5)


def test_a_second_search_names_the_photos_that_cannot_be_read_too(checkpoint, tmp_path, typed):
    """A link to nowhere ends no search, either."""
    folder, place = make_folder(tmp_path / "g", [3, 4]), tmp_path / "last.pt"
    shutil.copy(checkpoint, place)
    words = "eval.py", place, "--query", folder / "class00" / "0.png", "--gallery", folder
    content = (folder / "class01" / "1.png").read_bytes()
    os.truncate(folder / "class01" / "1.png", 300)
    told = [typed(*words) for _ in range(2)]
    assert told[0] == told[1] and told[0][1].count("cannot read the image ") == 1
    assert "searches 6 images of 2 classes" in told[0][1]
    (folder / "class01" / "1.png").write_bytes(content)
    assert "searches 7 images of 2 classes" in typed(*words)[1]
    (folder / "class01" / "dead.png").symlink_to("nowhere.png")
    for _ in range(2):
        status, text, _ = typed(*words)
        assert status == 0 and "searches 7 images" in text and "dead.png" in text


def test_a_checkpoint_that_is_replaced_during_a_search_is_not_the_one_that_was_searched_with(
        checkpoint, tmp_path, typed, monkeypatch):
    folder, place = make_folder(tmp_path / "g", [3, 4]), tmp_path / "last.pt"
    shutil.copy(checkpoint, place)
    saved, load = common.read_checkpoint(place), common.load
    for value in filter(torch.is_floating_point, saved["network"].values()):
        value *= 1 + torch.arange(value.numel()).reshape(value.shape) % 2 / 4

    def replaced(*args):
        loaded = load(*args)
        torch.save(saved, place)
        return loaded
    words = "eval.py", place, "--query", folder / "class00" / "0.png", "--gallery", folder
    with monkeypatch.context() as patch:
        patch.setattr(common, "load", replaced)
        old = typed(*words)[1]
    new = typed(*words)[1]
    assert new == typed(*words, "--no-cache")[1] != old


def test_queries_are_kept_small(checkpoint, tmp_path, typed, monkeypatch):
    """A photo as it was decoded goes before the next but a few."""
    def watched(path):
        photo = decode(path)
        decoded.append(weakref.ref(photo))
        alive.append(sum(ref() is not None for ref in decoded))
        return photo
    decoded, alive = [], []
    for module in (photos, search):
        monkeypatch.setattr(module, "decode", watched)
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
    """The gallery of --dataset FOLDER, as Recall@K searches it, by its paths, cached or not; --top
    of more than there are shows all; --l2norm changes nothing for a network on the sphere."""
    folder = tmp_path / "f"
    for part, sizes in {"train": [2, 2], "test": [2, 2], "gallery": [4, 3, 3]}.items():
        make_folder(folder / part, sizes, seed=len(part))
    searched = [str(path) for path in folder.glob("gallery/*/*.png")]
    photo = str(folder / "gallery" / "class01" / "2.png")
    words = "--dataset", folder, "--data-root", tmp_path, "--top", 50, "--query", photo
    for more in ([], ["--no-cache"], ["--l2norm"], ["--to", tmp_path / "sheet.JPG"]):
        told = typed("eval.py", checkpoint, *words, *more)[1]
        rows = table(told.partition("\n\nwrote")[0])[photo]
        assert table(told, "–")[photo] == [itself(photo)]
        assert sorted([photo, *(image for *_, image in rows)]) == sorted(searched)
    with PIL.Image.open(tmp_path / "sheet.JPG") as sheet:       # a query and the nine other images
        assert sheet.format == "JPEG" and sheet.size == (10 * 148, 148 + 2 * 17 + 17 + 7)
    assert "searches 10 images of 3 classes: class00, class01, class02\n" in told
    assert ("\nnote: a dataset's test images are searched, or its gallery if it has one; the "
            "training classes are not among them; --gallery FOLDER searches another") in told
    trained = common.load(checkpoint, jrd.Network, "cpu")[1].classes[0]
    (folder / "gallery" / "class00").rename(folder / "gallery" / trained)
    told = typed("eval.py", checkpoint, *words)[1]
    assert "\nnote: a dataset's test images are searched, or its gallery if it has one; --g" in told


def test_the_sheet_of_a_gallery_has_queries_of_test_and_answers_of_the_gallery(train, tmp_path,
                                                                               typed, monkeypatch):
    """... as Recall@K has them.  A test image that lies in the gallery too finds its copy."""
    folder, drawn = tmp_path / "f", mock.Mock()
    for part, sizes in {"train": [2, 2], "test": [2, 2], "gallery": [4, 3, 3]}.items():
        make_folder(folder / part, sizes, seed=len(part))
    shutil.copytree(folder / "test" / "class01", folder / "gallery" / "class01", dirs_exist_ok=True)
    checkpoint = train(jrd, dataset=folder)[0] / "last.pt"
    monkeypatch.setattr(figures, "draw_sheet", drawn)
    typed("report", "--sheet", checkpoint)
    rows = drawn.call_args.args[1]
    assert len(rows) == 2
    for (query, kind, _), nearest in rows:
        assert Path(query).parts[-3:-1] == ("test", kind) and len(nearest) == 5
        for _, (name, *_) in nearest:
            assert Path(name).parent.parent == folder / "gallery"
    distances = [nearest[0][0] for (_, kind, _), nearest in rows if kind == "class01"]
    assert distances == [0]


def test_the_pairs_of_each_level_are_those_that_it_attracts(tmp_path, monkeypatch, typed):
    """MDR's Fig. 6: d̄ of Eq. 3 below each pair, by NumPy, is nearest to the level of its row."""
    monkeypatch.setitem(glyphs.GLYPHS, "train", (range(400, 410), 4))
    monkeypatch.setitem(glyphs.GLYPHS, "test", (range(450, 460), 4))
    mdr.train(mdr.parse_args(["--epochs", "1", "--batch", "8", "--out", str(tmp_path)]))
    (checkpoint,) = tmp_path.glob("*/last.pt")
    embedded, embed, drawn = [], figures.embed_entries, mock.Mock()

    def kept(*args):
        embedded.append(embed(*args))
        return embedded[-1]
    monkeypatch.setattr(figures, "embed_entries", kept)
    monkeypatch.setattr(figures, "draw_sheet", drawn)
    assert typed("report", "--pairs", checkpoint)[0] == 0
    ((x, entries),), ((path, rows), _) = embedded, drawn.call_args
    assert path == checkpoint.with_name("pairs.png")

    x = x.double().cpu().numpy()
    distances = np.sqrt(np.square(x[:, None] - x).sum(2))
    n = len(x)
    distances /= distances.sum() / (n * (n - 1))
    state = torch.load(checkpoint, weights_only=True)["network"]
    levels = state["mdr.levels"].double().numpy()
    normalized = (distances - state["mdr.mu"].item()) / state["mdr.sigma"].item()
    level_of_row = []
    for query, pairs in rows:
        (i,) = [i for i, entry in enumerate(entries) if entry is query]
        nearest = []
        for value, other in pairs:
            (j,) = [j for j, entry in enumerate(entries) if entry is other]
            assert i != j and value == pytest.approx(normalized[i, j], abs=1e-4)
            nearest.append(int(np.abs(normalized[i, j] - levels).argmin()))
        assert len(pairs) == 5 and len(set(nearest)) == 1
        same = [other[1] == query[1] for _, other in pairs]
        assert same == sorted(same, reverse=True) and sum(same) <= 2
        level_of_row.append(nearest[0])
    assert level_of_row == sorted(level_of_row) and len(set(level_of_row)) > 1


def test_all_pairs_of_a_folder_nearest_first(checkpoint, tmp_path, typed):
    """Against plain loops; of equal files first those that come first.  A line says what distances
    do not, and --to draws a row per pair."""
    folder = make_folder(tmp_path / "g", [3, 4])
    shutil.copy(folder / "class01" / "2.png", folder / "copy.png")
    words = "eval.py", checkpoint, "--gallery", folder, "--pairs"
    _, text, _ = typed(*words, 50, "--to", tmp_path / "pairs.png")
    first, header, *lines, note, wrote = text.splitlines()
    assert first == f"{checkpoint} compares 8 images, each with every other"
    assert header.split() == ["distance", "pair"] and "look at each pair" in note
    network, cfg = common.load(checkpoint, jrd.Network, "cpu")
    paths = sorted(folder.rglob("*.png"))
    x = common.embed(network.embed, ImageFiles(paths, jrd.transforms(cfg)[2], decode), cfg).double()
    want = {}
    for i, a in enumerate(paths):
        for j in range(i):
            want[frozenset([str(a), str(paths[j])])] = (x[i] - x[j]).norm().item()
    assert len(lines) == len(want) == 28
    found = [re.split(r"\s{2,}", line.strip()) for line in lines]
    assert found[0][:2] == ["1", "0.0000"] and str(folder / "copy.png") in found[0]
    assert [float(row[1]) for row in found] == pytest.approx(sorted(want.values()), abs=2e-4)
    for _, distance, a, b in found:
        assert float(distance) == pytest.approx(want[frozenset([a, b])], abs=2e-4)
    with PIL.Image.open(tmp_path / "pairs.png") as sheet:
        assert sheet.width == 2 * 148
    assert typed(*words, 1)[1].splitlines()[2:-1] == lines[:1]
    assert "compares 40 images" in typed("eval.py", checkpoint, "--pairs", 1)[1]    # the run's
    status, _, err = typed("eval.py", checkpoint, "--pairs", 1, "--gallery", make_folder(
        tmp_path / "one", [1]))
    assert (status, err) == (2, "eval.py: one image has no other to be compared with\n")


def test_datasets_are_where_the_flag_or_the_variable_says_or_where_they_were(checkpoint, monkeypatch):
    for variable, flag, root in (("there", "here", "here"), ("there", None, "there")):
        monkeypatch.setenv("DML_DATA", variable)
        assert judge.open_checkpoint(checkpoint, data_root=flag)[1].data_root == root
    was = judge.read_checkpoint(checkpoint)["config"]["data_root"]
    monkeypatch.delenv("DML_DATA")
    assert judge.open_checkpoint(checkpoint)[1].data_root == was


def test_a_jpeg_is_no_higher_than_its_format_allows(checkpoint, tmp_path, typed):
    """Said before anything is embedded."""
    photos = make_folder(tmp_path / "photos", [27], side=8)             # 351 pairs
    words = "eval.py", checkpoint, "--gallery", photos, "--to", tmp_path / "p.jpg", "--pairs"
    status, out, err = typed(*words, 999)
    assert status == 2 and "compares" not in out and err.endswith(
        "p.jpg: a JPEG has room for 350 images down or across, not for 351; name a .png\n")
    (photos / "class00" / "0.png").unlink()                             # 325 pairs
    assert typed(*words, 999)[0] == 0
    with PIL.Image.open(tmp_path / "p.jpg") as sheet:
        assert search.IN_JPEG * sheet.height / 325 < 65500
    one = photos / "class00" / "1.png"
    words = words[:2] + ("--query", one, "--top", 400, "--to", "p.JPG")
    status, _, err = typed(*words, "--gallery", make_folder(tmp_path / "many", [350], side=1))
    assert status == 2 and "room for 350 images down or across, not for 351" in err


def test_pairs_far_from_the_origin_and_in_several_blocks():
    """600 rows are three blocks; equal rows are at 0 whatever the offset, and each pair is once."""
    x = 1000 + torch.randn(600, 5, generator=torch.Generator().manual_seed(0))
    x[[7, 300, 599]] = x[20].clone()
    pairs = search.nearest_pairs(x, 40)
    same = [(i, j) for i in (7, 20, 300, 599) for j in (7, 20, 300, 599) if i < j]
    assert [(i, j) for d, i, j in pairs[:6] if d == 0] == sorted(same)
    d = (x[:, None].double() - x.double()).norm(dim=2)
    want = d[torch.ones_like(d, dtype=bool).triu(1)].sort().values[:40]
    assert [d for d, *_ in pairs] == pytest.approx(want.tolist(), abs=1e-9)
    assert len({(i, j) for _, i, j in pairs}) == 40 and all(i < j for _, i, j in pairs)


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
    search.draw_sheet(tmp_path / "sheet.png", [row, row])
    told = texts.pop()
    assert texts[3:] == texts[:3] and texts[2] == "short name\n0.7000"
    assert " ".join(told.split()) == (
        "Black: the query. Numbers: distances to it, nearest first. Green: right, the query's class. "
        "Orange: wrong, another class.")
    unknown = "photo.jpg", search.UNKNOWN, tall
    search.draw_sheet(tmp_path / "unknown.png", [(unknown, row[1])])
    assert texts[-1].startswith("Black") and "Green" not in texts[-1]
    assert re.fullmatch("a name by far.{,3}…\nquery", texts[0])
    sheet = np.asarray(PIL.Image.open(tmp_path / "sheet.png").convert("RGB")).astype(int)

    def place(colour):
        rows, columns = np.nonzero((sheet[:145] == colour).all(-1))
        return columns.min(), np.ptp(columns) + 1, np.ptp(rows) + 1
    (left, _, high), (left_of_wrong, *_, high_too) = place((0, 158, 115)), place((213, 94, 0))
    assert place((0, 0, 255))[1:] == (128, 64) and left < left_of_wrong and high == high_too == 134
    assert (sheet[-1] == 255).all() and (sheet[:, -1] == 255).all()     # nothing is cut off
    search.draw_sheet(tmp_path / "sheet.png", [row, (wide, row[1][:1])])     # as the shortest
    assert PIL.Image.open(tmp_path / "sheet.png").width == 2 * 148


class IndexFlatL2:
    """faiss's, whose distances are squared"""

    def __init__(self, d):
        self.d = d

    def add(self, x):
        assert x.shape[1] == self.d and x.dtype == np.float32
        self.x = x

    def search(self, x, k):
        squared = ((x[:, None] - self.x) ** 2).sum(2)
        order = squared.argsort(axis=1, kind="stable")[:, :k]
        return np.take_along_axis(squared, order, 1), order


def test_the_pages_python(checkpoint, tmp_path, monkeypatch, capfd, typed):
    """The snippets as they stand there: a table makes a folder of links, the search agrees with
    eval.py's, what is exported embeds like the network, whatever the number of images."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(checkpoint.parent, "runs/jrd-glyphs-s0")
    (tmp_path / "photos").mkdir()
    for i, path in enumerate(sorted(make_folder(tmp_path / "g", [2] * 4).rglob("*.png"))):
        PIL.Image.open(path).save(f"photos/{i}.jpg")
    shutil.copy("photos/5.jpg", "query.jpg")
    recipe, deeper, use, export = map(snippet, (
        'Path("photos"', "groceries", "def embed(", "torch.export.export("))
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
    monkeypatch.setitem(sys.modules, "faiss", mock.Mock(IndexFlatL2=IndexFlatL2))
    names["gallery"].append(shutil.copy("photos/2.jpg", "photos/copy.jpg"))
    exec(snippet("faiss"), names)
    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    copies = {("photos/2.jpg", "photos/copy.jpg"), ("photos/copy.jpg", "photos/2.jpg")}
    assert len(lines) == 9 and {(a, b) for near, a, b in lines if float(near) == 0} == copies
    _, text, _ = typed("eval.py", checkpoint, "--gallery", "photos", "--pairs", 36)
    pairs = {frozenset(row.split()[2:]): row.split()[1] for row in text.splitlines()[2:-1]}
    for distance, *pair in lines:
        assert float(distance) == pytest.approx(float(pairs[frozenset(pair)]), abs=2e-4)
    pretrained, told = dict(names), []
    monkeypatch.setattr(common, "load_weights", lambda *words: told.append(words[1:]))
    exec(snippet("load_weights"), pretrained)
    embedded = pretrained["network"].embed(torch.zeros(2, 3, 128, 128, dtype=torch.uint8))
    assert embedded.shape == (2, 512) and told == [("squeezenet1_1", None)]
    exec(export, names)
    images = torch.randint(0, 256, (7, 3, 32, 32), dtype=torch.uint8)
    exported = torch.export.load("embed.pt2").module()
    with torch.inference_mode():
        torch.testing.assert_close(exported(images), names["network"].embed(images))

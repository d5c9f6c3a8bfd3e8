"""Photos of one's own: train/ and test/ folders, held-out classes, lengths, backbones."""
import errno
import os
import re
import shutil
import struct
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms, ImageFile

import common
import dml_da
import jrd
import mdr
from conftest import each_script, left_in, make_folder
from report import figures, judge, prepare
from support import datasets, glyphs, photos
from support.photos import Folder, counts_of, decode, decode_as_stored, shown


# ---------------------------------------------------------------------------- train/ and test/
def split_folder(root, *parts, images=3):
    for i, part in enumerate(parts):
        make_folder(root / part, [images] * 3, side=20, seed=i)
    return root


@pytest.mark.filterwarnings("error:std")
def test_queries_are_searched_in_a_gallery_folder(train, typed, tmp_path, monkeypatch):
    """A single query, whose norm has no deviation, of a class that trained: no open set."""
    folder = tmp_path / "photos"
    for part, sizes in {"train": [2, 2, 2], "test": [0, 1], "gallery": [0, 2, 2]}.items():
        make_folder(folder / part, sizes, side=20)
    run, out = train(mdr, "--batch", "4", "--iterations", "1", dataset=folder)
    assert ("train 6 images of 3 classes · test 1 images of 1 classes · gallery 4 images of 2 "
            "classes · 1 of the test ") in out
    data = common.load_dataset(str(folder), tmp_path)               # labels mean one thing
    assert data.gallery.classes == data.test.classes == ["class01", "class02"]
    row = left_in(run)[0][0]
    assert "norm mean" in row and "norm cv" not in row
    drawn = Mock()
    monkeypatch.setattr(figures, "draw_sheet", drawn)
    typed("report", "--sheet", run / "last.pt")
    ((query, nearest),) = drawn.call_args.args[1]
    shown = [image for _, (image, *_) in nearest]
    assert "/test/" in query[0] and len(shown) == 4 and all("/gallery/" in name for name in shown)


@each_script
def test_each_epoch_searches_the_gallery(script, train, tmp_path):
    """... as the last table does.  Among themselves, one of each class, no query has a positive."""
    for part, sizes in {"train": [2, 2, 2], "test": [1, 1, 1], "gallery": [2, 2, 2]}.items():
        make_folder(tmp_path / "photos" / part, sizes, side=20)
    folder, _ = train(script, "--batch", "4", dataset=tmp_path / "photos")
    (row,), result, _ = left_in(folder)
    recalls = [name for name in row if name.startswith("R@")]
    assert [row[name] for name in recalls] == [result["last epoch"][name] for name in recalls]
    assert row[recalls[-1]] > 0


@pytest.mark.parametrize("parts, message", [                # {folder: images of its classes}
    ({"train": [2, 2, 2], "val": [2, 2, 2]},
     "few sub-.*'train': .6, 3., 'test': .0, 0.* train/ with two and test/"),
    ({"train": [2, 2], "test": [2], "Query": [2]}, "photos has Query, test, train, of which two"),
    ({".": [2, 2, 2]},
     "'train': .2, 1., 'test': .4, 2.}.: it needs four, of which half train, .* and test/.$"),
    ({"train": [2], "test": [2, 2, 2]}, "'train': .2, 1., 'test': .6, 3."),
    ({"train": [2, 2], "test": []}, "'train': .4, 2., 'test': .0, 0."),
    ({".": [2, 2, 2, 2], "val": [2, 2]}, "called val is taken for a part, not for a class.$"),
    ({"train": [2, 2], "test": [2, 1, 1]},
     "photos: 2 test classes have one image, class01, class02: each needs two, or")])
def test_split_folders_by_other_names_or_not_whole(parts, message, tmp_path):
    for part, sizes in parts.items():
        (tmp_path / "photos" / part).mkdir(parents=True, exist_ok=True)
        make_folder(tmp_path / "photos" / part, sizes, side=20)
    with pytest.raises(common.UserError, match=message):
        common.load_dataset(str(tmp_path / "photos"))


@pytest.mark.parametrize("parts", ["train test", "Train valid Test", "training query val gallery"])
def test_training_and_eval_read_a_folder_alike(parts, tmp_path):
    """... by the names that people give its parts.  What lies beside the classes has none."""
    folder = split_folder(tmp_path / "photos", *parts.split(), images=2)
    for place in (folder, *folder.iterdir()):
        Image.new("RGB", (9, 9)).save(place / "cover.png")
    data, judged = common.load_dataset(str(folder)), Folder(folder).judged()
    assert data.counts() == dict.fromkeys(["train", *judged], [6, 3])
    assert [*judged] == ["test", "gallery"][:1 + ("gallery" in parts)]
    for part, rows in judged.items():
        assert [*rows] == [folder / file for file in getattr(data, part).files]


def test_train_and_val_alone_are_no_two_classes(tmp_path):
    rows = Folder(split_folder(tmp_path / "photos", "train", "val")).judged()["test"]
    assert len(rows) == 18 and {*rows.values()} == {"class00", "class01", "class02"}


def test_folders_below_the_classes_are_said(tmp_path, capsys):
    folder = tmp_path / "f"
    told = f"6 folders of images lie below the classes, as {folder}/Dairy/Milk/class00"
    for kind in ("Fruit/Apple/Gala", "Fruit/Pear", "Dairy/Milk", "Plant/Leek", "Plant/Rice", "Tea"):
        make_folder(folder / kind, [2])
    common.load_dataset(str(folder))
    assert capsys.readouterr().out.startswith(f"note: {told} does; ")
    (folder / "Tea").rename(folder / "Fruit" / "Tea")
    with pytest.raises(common.UserError, match=f"'train': .2, 1., 'test': .10, 2.*  {told}"):
        common.load_dataset(str(folder))


def test_a_folder_without_classes_has_no_figures(tmp_path, typed):
    """check reads it all the same, lists every broken photo, and says why nothing trains on it."""
    album = make_folder(tmp_path / "g", [6], side=20) / "class00"
    with pytest.raises(common.UserError, match="no classes in sub-folders, so no figures"):
        Folder(album).judged()
    status, out, err = typed("common.py", "check", album)
    assert (status, out) == (2, f"{album}: 6 images, all can be read\n")
    assert err.startswith(f"common.py: {album} has too few sub-folders with images")
    assert err.endswith("  In no sub-folder: 6 of its images.\n")
    for name in ("1.png", "4.png"):
        os.truncate(album / name, 700)
    status, out, err = typed("common.py", "check", album)
    assert status == 2 and sorted(re.findall("^cannot read .*/g/class00/(.*?): ", out, re.M)) == [
        "1.png", "4.png"]
    assert err.startswith(f"common.py: 2 of 6 images in {album} cannot be read: mend, ")


@pytest.mark.parametrize("trained, left, told", [
    (["a", "x"], ["b"], "left out are 1 classes that trained, by name: a\n"),
    (["x"], ["a", "b"], "left out are 0 classes that trained, by name: none\n"),
    (["a", "b"], ["a", "b"], "figures of classes that trained say nothing about new ones"),
    (None, ["a", "b"], "figures of classes that trained say nothing about new ones")])
def test_other_images_are_judged_by_the_classes_that_did_not_train(trained, left, told, capsys):
    """None: a checkpoint from before it kept their names."""
    rows = {"1.png": "a", "2.png": "b"}
    left = {path: kind for path, kind in rows.items() if kind in left}
    assert judge.that_did_not_train(rows, trained) == left
    assert told in capsys.readouterr().out


def test_a_name_has_two_spellings(tmp_path):
    """train/ as Linux writes it, test/ and gallery/ as a Mac does, texts in an .npz: one class."""
    folder = split_folder(tmp_path / "photos", "train", "test", "gallery")
    mac, linux = "Zoe\u0308", "Zo\u00eb"
    for part, name in (("train", linux), ("test", mac), ("gallery", linux)):
        (folder / part / "class01").rename(folder / part / name)
    data = common.load_dataset(str(folder), tmp_path)
    for split in (data.train, data.test, data.gallery):
        assert split.present() == ["Zo\u00eb", "class00", "class02"]
    np.savez(tmp_path / "e.npz", embeddings=np.eye(2), labels=["a", mac], gallery=np.eye(2),
             gallery_labels=["a", linux])
    for _, labels in judge.load_npz(tmp_path / "e.npz").values():
        assert labels.tolist() == [0, 1]


# ---------------------------------------------------------------------------- what is not whole
def test_what_is_left_out_is_said_where_the_folder_is_used(tmp_path, capsys):
    """By a training, check and a gallery: by number and example, but thumbnails in silence."""
    folder = split_folder(tmp_path / "photos", "train", "test", "valid")
    litter = """train/class00/._0.png  __MACOSX/class00/._0.png  train/.thumbnails/a.png
        train/class00/@eaDir/0.png/SYNOPHOTO_THUMB_M.jpg  $RECYCLE.BIN/a.jpg  test/@Recycle/a.jpg
        train/class01/Thumbs.db"""
    others = "IMG_1.HEIC a.eps a.fits clip.mpg features.h5 notes.pdf"
    for name in (*litter.split(), *(f"test/class01/{name}" for name in others.split())):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"no photo")
    (folder / "train" / "class02" / "odd.jpg").mkdir()
    assert common.load_dataset(str(folder)).counts() == {"train": [9, 3], "test": [9, 3]}
    prepare.check(str(folder), None)
    test = Folder(folder / "test")
    test.say_left_out(test.judged())
    told = capsys.readouterr().out
    assert told.count(
        f"note: left out of {folder}: valid/ (9 files); 6 files: test/class01/IMG_1.HEIC, "
        "test/class01/a.eps, test/class01/a.fits, test/class01/clip.mpg and 2 more\n") == 2
    assert f"note: left out of {folder / 'test'}: 6 files: class01/IMG_1.HEIC" in told
    assert "train: 9 images of 3 classes, of 3 to 3 images: class00, class01, class02\ntest: " in told


def test_a_class_whose_name_is_hidden_is_said(tmp_path, capsys, monkeypatch):
    """.NET and Recycler; but not thumbnails below a class, nor a folder without images."""
    folder = make_folder(tmp_path / "photos", [2] * 6)
    for name, new in (("class00", ".NET"), ("class01", "Recycler")):
        (folder / name).rename(folder / new)
    (folder / "class02" / ".thumbnails").mkdir()
    shutil.copy(folder / "class02" / "0.png", folder / "class02" / ".thumbnails")
    (folder / ".cache").mkdir()
    (folder / "lost+found").mkdir()
    inside = Path.iterdir

    def of_root(path):
        if path.name == "lost+found":
            raise PermissionError(13, "Permission denied", str(path))
        return inside(path)
    monkeypatch.setattr(Path, "iterdir", of_root)
    assert common.load_dataset(str(folder)).counts() == {"train": [4, 2], "test": [4, 2]}
    told = capsys.readouterr().out
    assert ("note: 2 folders with images are not read, because of their names: .NET, Recycler\n"
            in told)
    make_folder(tmp_path / "parts" / "train", [2, 2])
    make_folder(tmp_path / "parts" / "test", [2, 2, 2])
    (tmp_path / "parts" / "test" / "class00").rename(tmp_path / "parts" / "test" / ".NET")
    common.load_dataset(str(tmp_path / "parts"))
    assert "1 folders with images are not read, because of their names: test/.NET" in (
        capsys.readouterr().out)


def test_a_link_to_nowhere_does_not_keep_a_network_from_being_judged(tmp_path):
    """The folder has not the run's images then; what is not there is named and left out."""
    folder = make_folder(tmp_path / "photos", [2] * 4)
    (folder / "class00" / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    assert not judge.has_images_of(Folder(folder), Mock(images={"train": "x", "test": "y"}))


def test_a_class_called_as_a_part_is_said(tmp_path, capsys):
    """... because a val/ without sub-folders may have been meant as a part."""
    folder = make_folder(tmp_path / "photos", [2, 2, 2])
    (folder / "class01").rename(folder / "val")
    make_folder(tmp_path / "more", [2])
    (tmp_path / "more" / "class00").rename(folder / "other")
    common.load_dataset(str(folder))
    assert f"note: val in {folder}: taken for a class of that name\n" in capsys.readouterr().out


@pytest.mark.parametrize("read", [
    common.load_dataset, lambda name: prepare.check(name, None), Folder])
def test_a_folder_that_cannot_be_read_does_not_vanish(read, tmp_path, monkeypatch):
    """... from a training, from check or from a gallery."""
    def scandir(path, real=os.scandir):             # as for any user but root
        if str(path).endswith("class03"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)
    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(OSError, match="Permission denied: .*class03"):
        read(str(make_folder(tmp_path / "photos", [2] * 5)))


def test_what_cannot_be_read_is_said(tmp_path, typed, capfd):
    """A folder of other files, a link that leads nowhere."""
    folder = make_folder(tmp_path / "photos", [2] * 4)
    (folder / "notes").mkdir()
    (folder / "notes" / "0.txt").touch()
    common.load_dataset(str(folder))
    assert capfd.readouterr().out == (
        f"note: left out of {folder}: notes/ (1 files)\nnote: 1 folders have no image that can be "
        "read here, but notes/0.txt: if these are classes, save their photos as JPEG or PNG\n")
    (folder / "class03" / "gone.png").symlink_to("gone")
    with pytest.raises(OSError, match="No such file or directory: .*class03/gone.png"):
        common.load_dataset(str(folder))
    status, out, err = typed("common.py", "check", folder)
    assert status == 2 and "cannot read the image" in out and "1 of 9 images in" in err


def test_an_empty_folder_is_said(tmp_path, typed, capfd):
    """... where a class's would be, by a training, check and a gallery."""
    folder = split_folder(tmp_path / "photos", "train", "test")
    (folder / "train" / "class07").mkdir()
    (folder / "test" / "class08" / ".thumbnails").mkdir(parents=True)
    (folder / "test" / "class00" / "more").mkdir()                  # no class's
    line = "note: 2 folders are empty: test/class08, train/class07\n"
    common.load_dataset(str(folder))
    assert capfd.readouterr().out == line
    assert line in typed("common.py", "check", folder)[1]
    judge.images_to_search(folder, None)
    assert capfd.readouterr().out == line


def test_links_to_classes_that_are_gone_are_named(tmp_path, typed, capfd):
    """Nothing trains on what is left; a gallery is searched, with a note."""
    folder = make_folder(tmp_path / "photos", [2] * 4)
    for name in ("class04", "class05"):
        (folder / name).symlink_to(tmp_path / "gone" / name)
    told = f"2 links that lead nowhere, {folder}/class04, {folder}/class05: mend or remove them"
    with pytest.raises(common.UserError, match=f"^{folder} has {told}$"):
        common.load_dataset(str(folder))
    status, out, err = typed("common.py", "check", folder)
    assert (status, err) == (2, f"common.py: {folder} has {told}\n")
    judge.images_to_search(folder, None)
    assert capfd.readouterr().out == (
        f"note: 2 links lead nowhere: {folder}/class04, {folder}/class05\n")


def test_what_is_no_class_may_be_gone(train, tmp_path, capfd):
    """A dead link to a file, or in val/, is a note; and a run's folder stays the run's."""
    folder = split_folder(tmp_path / "photos", "train", "test", "val")
    run, _ = train(mdr, "--batch", "4", "--iterations", "1", dataset=folder)
    for name in ("train/class00/notes.txt", "val/class09"):
        (folder / name).symlink_to("gone")
    common.load_dataset(str(folder))
    assert "note: 2 links lead nowhere: " in capfd.readouterr().out
    (folder / "test" / "class07").symlink_to("gone")
    (folder / "test" / "new").mkdir()
    (folder / "test" / "new" / "0.heic").touch()
    with pytest.raises(common.UserError, match="has 1 links that lead nowhere, .*test/class07: m"):
        common.load_dataset(str(folder))
    cfg = common.load(run / "last.pt", mdr.Network, "cpu")[1]
    assert judge.has_images_of(Folder(folder), cfg)


@pytest.mark.parametrize("part", ["gallery", "test"])
def test_a_part_of_which_no_photo_can_be_read_trains_nothing(part, tmp_path):
    """Without its gallery a test would be another one."""
    folder = split_folder(tmp_path / "photos", "train", "test", "gallery")
    for path in [*(folder / part).glob("*/*")]:
        path.rename(path.with_suffix(".heic"))
    with pytest.raises(common.UserError, match=f"can be read here, but {part}/class00/0.heic: "):
        common.load_dataset(str(folder))
    for path in [*folder.glob("*/*/*.png")]:
        path.rename(path.with_suffix(".heic"))
    with pytest.raises(common.UserError, match=": 3 folders have .* but gallery/class00/0.heic, "):
        common.load_dataset(str(folder))


def test_a_class_of_which_no_photo_can_be_read_trains_nothing(tmp_path, typed, capfd):
    """Of either part that is used; a gallery says so.  check counts photos that are none, too."""
    folder = split_folder(tmp_path / "photos", "train", "Test", "valid")
    for place in ("train/class01", "Test/class02", "valid/class00"):
        for path in (folder / place).iterdir():
            path.rename(path.with_suffix(".HEIC"))
        (folder / place / "0.txt").touch()
    (folder / "Test" / "class00" / "more.heic").touch()             # it has others
    lost = "2 folders have no {} that can be read here, but Test/class02/0.HEIC, train/class01/0.HEIC"
    refused = f"{folder}: {lost.format('photo')}: save them as JPEG or PNG, or move them away"
    with pytest.raises(common.UserError, match=f"^{refused}$"):
        common.load_dataset(str(folder))
    assert typed("common.py", "check", folder)[2] == f"common.py: {refused}\n"
    judge.images_to_search(folder, None)
    assert f"note: {lost.format('image')}: if these are classes, save" in capfd.readouterr().out
    for path in (folder / "train" / "class02").iterdir():
        path.write_bytes(b"no photo")
    assert typed("common.py", "check", folder)[2] == (
        f"common.py: 3 of 18 images in {folder} cannot be read, and none in {folder}/train/class02 "
        "can: mend, replace or remove them\n")


def test_check_says_which_files_hold_several_images(tmp_path, typed):
    """And which is taken: the first, by whatever name.  A phone's JPEG with a gain map is one."""
    folder = make_folder(tmp_path / "photos", [3] * 4)
    pages = [Image.new("RGB", (40, 40), colour) for colour in ("red", "green", "blue")]
    told = []
    for kind in ("class00/a.gif", "class00/a.webp", "class01/a.tif", "class02/a.png"):
        name = str(folder / kind)
        pages[0].save(name, save_all=True, append_images=pages[1:])
        told.append(f"{name} (3)")
        np.testing.assert_allclose(pixels(name)[20, 20], (255, 0, 0), atol=4)
    pages[0].save(folder / "class03" / "a.jpg", "MPO", save_all=True, append_images=pages[1:])
    status, out, _ = typed("common.py", "check", folder)
    assert status == 0 and out.startswith(
        "note: 4 files hold several images, of which the first is taken: " + ", ".join(told)
        + f"\n{folder}: 17 images, all can be read\n")


def test_links_to_folders_are_followed_once(tmp_path, capsys):
    """At the top and in a class; a loop ends, and a second way to a folder is said."""
    store, folder = make_folder(tmp_path / "store", [2] * 6), tmp_path / "photos"
    (folder / "class04").mkdir(parents=True)
    (folder / "class04" / "loop").symlink_to(folder)
    for link, to in (("class04/more", "class05"), ("class09", "class01"), ("class00", "class00"),
                     ("class01", "class01"), ("class02", "class02"), ("class03", "class03")):
        (folder / link).symlink_to(store / to)
    data = common.load_dataset(str(folder), tmp_path)           # the first half of five trains
    assert data.train.files == "class00/0.png class00/1.png class01/0.png class01/1.png".split()
    assert data.test.files[2:] == (
        "class03/0.png class03/1.png class04/more/0.png class04/more/1.png".split())
    assert data.test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    left_out, deeper = capsys.readouterr().out.splitlines()
    assert left_out == (f"note: left out of {folder}: 2 links to folders that are read by another "
                        "way, or lie above: class04/loop, class09")
    assert deeper.startswith(f"note: 1 folders of images lie below the classes, as {folder}/class04/more")


def test_a_class_may_be_linked_into_another_part(tmp_path, capsys, monkeypatch):
    """As for a final network, which learns from all classes; a part may be a link as a whole."""
    folder = make_folder(tmp_path / "photos" / "train", [2] * 4).parent
    (folder / "test").mkdir()
    for name in ("class00", "class01"):
        (folder / "test" / name).symlink_to(folder / "train" / name)
    data = common.load_dataset(str(folder), tmp_path)
    assert data.counts() == {"train": [8, 4], "test": [4, 2]}
    assert not capsys.readouterr().out
    (folder / "gallery").symlink_to("train")
    (folder / "gallery" / "back").symlink_to(folder)
    splits = Folder(folder).splits()
    assert [len(rows) for rows in splits.values()] == [8, 4, 8]
    outside = make_folder(tmp_path / "outside", [1])        # a way back that leads over elsewhere
    (outside / "back").symlink_to(folder)
    (outside / "over").symlink_to(tmp_path)
    (folder / "train" / "class00" / "more").symlink_to(outside)
    monkeypatch.chdir(folder)
    for place in (folder, "."):
        assert [len(rows) for rows in Folder(place).splits().values()] == [9, 5, 9]


def test_two_names_of_one_part_are_no_matter_for_a_search(tmp_path):
    folder = Folder(split_folder(tmp_path / "photos", "query", "test"))
    assert len(folder.images) == 18
    for question in (folder.splits, folder.judged):
        with pytest.raises(common.UserError, match="query, test, of which two mean one part"):
            question()


def test_held_out_classes_of_one_image_are_said(tmp_path, capsys):
    """They lower val R@1; if all have one, it would be 0."""
    folder = make_folder(tmp_path / "photos" / "train", [2] * 6 + [1] * 2).parent
    shutil.copytree(folder / "train", folder / "test")
    for name in ("class06", "class07"):
        shutil.rmtree(folder / "test" / name)
    common.load_dataset(str(folder), tmp_path, val=0.5)
    assert capsys.readouterr().out == ("note: 2 of 4 held-out classes have one image, which finds "
                                       "no other: val R@1 is at most 66.7\n")
    common.load_dataset(str(folder / ".."/ "photos"), tmp_path)
    assert not capsys.readouterr().out
    with pytest.raises(common.UserError, match="none of the 2 held-out classes, class06, class07, "
                                               "has two images, so val R@1 would be 0"):
        common.load_dataset(str(folder), tmp_path, val=0.25)


def test_a_share_to_hold_out_that_is_possible_is_advised():
    """... from four training classes on."""
    for classes in (*range(2, 31), 11318):
        rows = {f"{i}{kind}": kind for i in range(2) for kind in map(str, range(classes))}
        for share in (0.01, 0.2, 0.5, 0.99, 0.9999):
            splits = {"train": dict(rows)}
            try:
                datasets._hold_out(splits, share)
            except common.UserError as error:
                advice = str(error).partition(", and each needs two: ")[2]
                if classes < 4:
                    assert advice == "--val needs four training classes"
                else:
                    datasets._hold_out(splits, float(advice.removeprefix("try --val ")))
                    assert counts_of(splits)["val"][1] >= 2 <= counts_of(splits)["train"][1]


def test_check_says_what_is_there_twice_and_alone(tmp_path, typed):
    folder = split_folder(tmp_path / "photos", "train", "test")
    for name in ("0.png", "1.png"):
        (folder / "train" / "class01" / name).unlink()
    test, train = folder / "test", folder / "train"
    for source, copy in ((test, "copy"), (train, "seen")):
        shutil.copy(source / "class00" / "0.png", test / "class02" / f"{copy}.png")
    lines = typed("common.py", "check", folder)[1].splitlines()
    assert lines[1].startswith("train: 7 images of 3 classes, of 1 to 3 images: class00, ")
    assert lines[2] == "note: 1 training classes have one image, which has no positive: class01"
    assert lines[-3:] == [
        "note: there twice, byte for byte:",
        f"{test}/class02/copy.png is {test}/class00/0.png",
        f"{test}/class02/seen.png is {train}/class00/0.png"]
    (test / "class00" / "0.png").write_bytes(b"")
    assert typed("common.py", "check", folder)[2] == (
        f"common.py: 1 of 18 images in {folder} cannot be read: mend, replace or remove them\n")


# ---------------------------------------------------------------------------- what a viewer shows
GREY = np.arange(600, dtype=np.uint8).reshape(20, 30)
COLOURS = np.random.RandomState(0).randint(0, 256, (20, 30, 4)).astype(np.uint8)
CUT_OUT = np.concatenate([COLOURS[..., :3], 255 * (GREY[..., None] // 128)], 2)
ON_WHITE = np.where(CUT_OUT[..., 3:] > 0, CUT_OUT[..., :3], 255)
PHOTOS = {  # file: what is saved, what is seen
    "16-bit.png": (GREY * np.uint16(257), GREY), "16-bit.tif": (GREY * np.uint16(257), GREY),
    "12-bit.jp2": (GREY.astype(np.uint16) << 8, GREY), "cut-out.png": (CUT_OUT, ON_WHITE),
    "cut-out.tif": (CUT_OUT, ON_WHITE),
    "opaque.png": (COLOURS | np.uint8([0, 0, 0, 255]), COLOURS[..., :3]),
    "grey cut-out.png": (CUT_OUT[..., [0, 3]], ON_WHITE[..., 0])}


def pixels(photo, decode=decode):
    """(h, w, 3), the same of a PIL image for people and of a tensor for the network"""
    tensor = decode(photo)
    assert tensor.dtype == torch.uint8
    if decode is not decode_as_stored:
        np.testing.assert_array_equal(tensor.movedim(0, 2), shown(photo))
    return tensor.movedim(0, 2).numpy()


@pytest.mark.parametrize("file", PHOTOS)
def test_a_photo_is_what_a_viewer_shows(file, tmp_path):
    stored, seen = PHOTOS[file]
    Image.fromarray(np.ascontiguousarray(stored)).save(tmp_path / file)
    if seen.ndim == 2:
        seen = np.stack([seen] * 3, 2)
    np.testing.assert_array_equal(pixels(tmp_path / file), seen)


@pytest.mark.parametrize("file, stored", [
    ("phone.png", COLOURS[..., :3]), ("grey.tif", GREY), ("phone.tif", COLOURS[..., :3])])
def test_a_photo_is_upright(file, stored, tmp_path):
    """Pillow turns a .tif as it loads; from a mapped file, as it would map grey ones, wrong."""
    image, exif, wanted = Image.fromarray(np.ascontiguousarray(stored)), Image.Exif(), []
    seen = np.asarray(image.convert("RGB"))
    for side in (seen, seen.transpose(1, 0, 2)):
        wanted += side, side[:, ::-1], side[::-1, ::-1], side[::-1]
    for exif[0x0112], want in enumerate(wanted, 1):
        image.save(tmp_path / file, exif=exif)
        np.testing.assert_array_equal(pixels(tmp_path / file), want)


@pytest.mark.parametrize("file, turn, size", [
    ("good.jpg", 6, (20, 30)), ("none.jpg", 99, (30, 20)), ("noise.png", None, (30, 20))])
def test_a_broken_tag_costs_the_tag(file, turn, size, tmp_path):
    """Upright by its orientation whatever the other tags hold; as stored where that one is none."""
    tags = b"MX\0*\0\0\0\x08"
    if turn:
        tags = b"MM\0*\0\0\0\x08\0\x03" + struct.pack(
            ">HHI4s HHIHxx HHII 4x", 0x010F, 7, 4, b"\xff" * 4,     # a text that is bytes
            0x0112, 3, 1, turn, 0x9201, 7, 4, 1)                    # a fraction that is bytes
    Image.fromarray(GREY).save(tmp_path / file, exif=b"Exif\0\0" + tags)
    assert pixels(tmp_path / file).shape == (*size[::-1], 3)


def test_a_photo_has_the_colours_of_its_profile(tmp_path):
    """Of one that calls red blue and blue red; with a damaged one as stored."""
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    swapped = profile.replace(b"rXYZ", b"....").replace(b"bXYZ", b"rXYZ").replace(b"....", b"bXYZ")
    stored = np.ascontiguousarray(COLOURS[..., :3])
    for profile, want in ((swapped, stored[..., ::-1]), (b"damaged", stored)):
        Image.fromarray(stored).save(tmp_path / "a.png", icc_profile=profile)
        np.testing.assert_array_equal(pixels(tmp_path / "a.png", decode_as_stored), stored)
        np.testing.assert_allclose(pixels(tmp_path / "a.png"), want, atol=2)


def test_what_cannot_be_shown_is_refused(tmp_path):
    Image.new("F", (4, 4)).save(tmp_path / "a.tif")
    assert decode_as_stored(tmp_path / "a.tif").shape == (3, 4, 4)
    message = "cannot read the image .*a.tif: mode F does not say what is white"
    with pytest.raises(common.UserError, match=message):
        decode(tmp_path / "a.tif")


@pytest.mark.parametrize("size", [(20_000, 1), (1, 20_000), (2001, 20)])
@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif"])
def test_a_strip_is_refused_before_memory_is_taken_for_it(size, suffix, tmp_path, monkeypatch):
    """With its shorter side resized to 256 one of 20,000 × 1 would take 3.9 GB."""
    strip = tmp_path / f"a{suffix}"
    Image.new("RGB", size).save(strip)
    assert decode_as_stored(strip).shape == (3, *size[::-1])        # the papers have none
    monkeypatch.setattr(ImageFile.ImageFile, "load", pytest.fail)
    monkeypatch.setattr(photos, "decode_image", pytest.fail)
    message = f"a{suffix}: {size[0]:,} × {size[1]:,} pixels; one side may be at most 100 times as"
    with pytest.raises(common.UserError, match=message):
        decode(strip)
    monkeypatch.undo()
    Image.new("RGB", (2000, 20)).save(strip)
    assert decode(strip).shape == (3, 20, 2000)


def test_a_strip_is_a_line_wherever_photos_are_used(train, typed, tmp_path):
    folder = make_folder(tmp_path / "photos", [3] * 4, side=20)
    run, _ = train(jrd, "--batch", "4", dataset=folder)
    strip, found = folder / "class03" / "0.png", folder / "class03" / "1.png"
    Image.new("RGB", (20_000, 1)).save(strip)
    line = f"cannot read the image {strip}: 20,000 × 1 pixels; one side may be at most 100 times "
    status, out, err = typed("common.py", "check", folder)
    assert status == 2 and out.startswith(line) and err.startswith("common.py: 1 of 12 images in ")
    words = "eval.py", run / "last.pt"
    status, out, _ = typed(*words, "--query", strip, found, "--gallery", folder)
    assert status == 0 and out.count(line) == 2 and f"query {found}" in out
    status, _, err = typed(*words, "--dataset", folder, "--data-root", tmp_path)
    assert status == 2 and err.startswith(f"eval.py: {line}") and err.count("\n") == 1
    with pytest.raises(common.UserError, match=re.escape(line)):
        train(jrd, "--batch", "4", "--again", dataset=folder)


def test_names_that_are_no_text(train, typed, tmp_path):
    """An old disk's Latin-1 in a folder's, a class's, a photo's name: read, hashed, written."""
    folder, rose = tmp_path / os.fsdecode(b"f\xfcr"), os.fsdecode(b"class02/ros\xe9.png")
    make_folder(folder, [3] * 4, side=20)
    (folder / "class03").rename(folder / os.fsdecode(b"r\xf4le"))
    (folder / "class02" / "0.png").rename(folder / rose)
    train(jrd, "--batch", "4", dataset=folder)
    (run,) = (tmp_path / "runs").iterdir()
    words = "eval.py", run / "last.pt", "--data-root", tmp_path
    told = typed(*words, "--query", folder / rose, "--to", tmp_path / "sheet.png")[1]
    assert "ros?.png" in told and "r?le" in told
    for words in (("common.py", "check", folder), (*words, "--export", tmp_path / "e.npz"),
                  ("report", "--runs", tmp_path / "runs"),
                  ("report", "--runs", tmp_path / "runs", "--out", tmp_path / "curves.png",
                   "--curves", run.name)):
        assert typed(*words)[0] == 0
    with np.load(tmp_path / "e.npz") as arrays:
        assert rose in arrays["paths"]


@pytest.mark.parametrize("script, most, batch, flags", [
    (mdr, 100, 128, ""), (dml_da, 1000, 100, "--images-per-class 0")])
def test_the_length_follows_the_folder(script, most, batch, flags):
    """About as many passes over the images as over CUB's 5,864, at most the preset."""
    cfg = script.parse_args(flags.split())
    for n, classes in ((45, 3), (600, 15), (1000, 50), (5864, 100), (60_000, 100)):
        split = common.Split(None, torch.arange(n) % classes, [])
        cfg.iterations = common.iterations_for(split, script.batches, cfg, script.SETTINGS)
        drawn = sum(map(len, script.batches(split.labels, cfg, 0)))
        wanted, one = most * batch / 5864 * n, drawn / cfg.iterations
        assert cfg.iterations == most or abs(drawn - wanted) < one     # the sampler was tried


@each_script
def test_held_out_classes_pick_best_pt(script, train, tmp_path, typed):
    """... as eval.py judges it.  What follows from the folder's size is not in the run's name."""
    photos = tmp_path / "photos"
    noise = make_folder(tmp_path / "noise", [48], side=20)
    for i, path in enumerate(sorted(noise.rglob("*.png"))):
        place = photos / f"class{i % 12:02}"                # no class is easily told from another
        place.mkdir(parents=True, exist_ok=True)
        path.rename(place / path.name)
    folder, out = train(script, *"--val 0.5 --epochs 3 --batch 6".split(), dataset=photos)
    assert folder.name == f"{script.__name__}-photos-val0.5-batch6-epochs3-backbonesmall-s0"
    rows, result, config = left_in(folder)
    chosen, last = result["best on held-out classes"], result["last epoch"]
    assert "note: R@1 among 3 held-out classes hardly tells one epoch from another\n" in out
    assert "R@1" in chosen and chosen.items() <= rows[chosen["epoch"] - 1].items()
    assert config["splits"] == {"train": [12, 3], "test": [24, 6], "val": [12, 3]}
    assert f" {100 * chosen['val R@1']:.1f}\n" in out[out.index("\nbest on held-out classes ("):]
    assert ("lambda" in last) == (script is jrd) and last["val R@1"] == rows[-1]["val R@1"]
    data = common.load_dataset(str(photos), tmp_path, test=glyphs.SMALL_TRANSFORMS[2], val=0.5)
    assert data.train.classes == ["class00", "class01", "class02"]
    assert data.val.classes == ["class03", "class04", "class05"]        # as test images are seen
    assert data.val.images[0].shape[-1] == 32
    for name, metrics in (("last.pt", last), ("best.pt", chosen)):
        out = typed("eval.py", folder / name, "--data-root", tmp_path)[1]
        assert "note:" not in out and f"\ntest {100 * metrics['R@1']:6.1f} " in out
        assert name == "best.pt" or out.endswith(f" {100 * metrics['seen R@1']:.1f}\n")


@pytest.mark.parametrize("name", ["vit_b_16", "convnext_tiny", "resnet50", "vgg11", "inception_v3",
                                  "squeezenet1_1"])
def test_every_family_is_without_its_last_layer(name):
    side = 299 if name == "inception_v3" else 224
    with torch.device("meta"):
        network, width = common.backbone(name)
        assert network.eval()(torch.zeros(2, 3, side, side)).shape == (2, width)

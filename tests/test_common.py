"""Datasets, weight files, the run folder."""
import argparse
import io
import json
import os

import numpy as np
import pytest
import torch
from PIL import Image

import common
import dml_da
import jrd
import mdr
from conftest import make_folder
from support import files, glyphs, images, runs


# ---------------------------------------------------------------------------- glyphs
def test_glyphs_counts_and_split():
    data = common.load_dataset("glyphs")
    assert data.counts() == {"train": [750, 50], "test": [2000, 100]}
    assert not set(data.train.classes) & set(data.test.classes)
    assert data.train.images.shape == (750, 3, 36, 36) and data.train.images.dtype == torch.uint8
    classes = [set(r) for r, _ in glyphs.GLYPHS.values()]
    assert len(set.union(*classes)) == sum(map(len, classes))
    assert torch.bincount(data.test.labels).tolist() == [20] * 100


def test_glyphs_are_the_same_everywhere():
    """A mean over many pixels, so that a last bit of a sine on another machine does not matter."""
    (train, _), (again, _), (test, _) = (glyphs.glyphs(s) for s in ("train", "train", "test"))
    assert torch.equal(train, again)
    assert train.float().mean().item() == pytest.approx(121.796, abs=0.01)
    assert test.float().mean().item() == pytest.approx(123.021, abs=0.01)


def test_the_shipped_backbone_is_what_its_hash_says():
    backbone = common.SmallNet()
    assert common.load_weights(backbone, "small") == common.WEIGHTS["small"][1]
    assert sum(p.numel() for p in backbone.parameters()) == 163_672
    assert backbone.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 128)


# ---------------------------------------------------------------------------- folders of images
def test_folder_first_half_trains_second_half_tests(tmp_path):
    make_folder(tmp_path / "photos", [3, 1, 2, 4, 2])
    (tmp_path / "photos" / ".hidden").mkdir()
    (tmp_path / "photos" / "notes").mkdir()                      # a folder without images: no class
    data = common.load_dataset(str(tmp_path / "photos"))
    assert data.name == "photos" and data.counts() == {"train": [4, 2], "test": [8, 3]}
    assert data.test.classes == ["class02", "class03", "class04"]
    assert data.test.labels.tolist() == [0, 0, 1, 1, 1, 1, 2, 2]
    want = np.array(Image.open(tmp_path / "photos" / "class03" / "0.png"))
    assert torch.equal(data.test.images[2], torch.tensor(want).permute(2, 0, 1))


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1", "LA"])
def test_images_of_every_kind_become_rgb(tmp_path, mode):
    path = tmp_path / ("x.jpg" if mode == "CMYK" else "x.png")
    Image.fromarray(np.full((5, 7, 3), 200, np.uint8)).convert(mode).save(path)
    image = images.to_tensor(None, images.decode(path))
    assert image.shape == (3, 5, 7) and image.dtype == torch.uint8 and image.float().mean() > 150


@pytest.mark.parametrize("sizes, message", [
    ([], "has no sub-folders"), ([2, 2, 2], "has 3 sub-folders"),
    ([3, 3, 3, 1], "class03 has one image")])
def test_folders_that_cannot_be_split(tmp_path, sizes, message):
    tmp_path.joinpath("d").mkdir()
    make_folder(tmp_path / "d", sizes)
    with pytest.raises(common.UserError, match=message):
        common.load_dataset(str(tmp_path / "d"))


@pytest.mark.parametrize("damage", [lambda b: b[:len(b) // 2], lambda b: b"", lambda b: b"x"])
def test_a_broken_image_is_named(tmp_path, damage):
    path = make_folder(tmp_path / "d", [2, 2, 2, 2]) / "class02" / "1.png"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(common.UserError, match="class02/1.png"):
        common.load_dataset(str(tmp_path / "d"), test=common.SMALL_TRANSFORMS[2])


# ---------------------------------------------------------------------------- the loader
def loader(split, workers, seed=0):
    cfg = argparse.Namespace(seed=seed, workers=workers, batch=7, device="cpu")
    return common.train_loader(split, common.SMALL_TRANSFORMS[1], jrd.batches, cfg)


def epoch_of(a_loader, epoch):
    return [(x, y) for x, y in a_loader(epoch)]


def same(a, b):
    return len(a) == len(b) and all(torch.equal(x, u) and torch.equal(y, v)
                                    for (x, y), (u, v) in zip(a, b))


def test_what_is_drawn_depends_on_seed_and_epoch_alone(tmp_path):
    """Any number of workers, any epoch first: the same crops and mirrors."""
    make_folder(tmp_path / "d", [6, 6, 6, 6])
    split = common.load_dataset(str(tmp_path / "d"), train=common.SMALL_TRANSFORMS[0]).train
    alone, two = loader(split, 0), loader(split, 2)
    first, second = epoch_of(alone, 0), epoch_of(alone, 1)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert same(epoch_of(two, 1), second) and same(epoch_of(two, 0), first)
    assert same(epoch_of(loader(split, 0), 1), second)
    assert torch.equal(state, torch.get_rng_state()), "the loader drew from the global generator"
    assert not same(first, second) and not same(first, epoch_of(loader(split, 0, seed=1), 0))
    assert first[0][0].shape == (7, 3, 32, 32) and first[0][0].dtype == torch.uint8


def test_preprocess_is_what_the_backbones_were_trained_on():
    images = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    bgr = common.Preprocess("bn_inception")(images)
    for channel, mean in enumerate((104, 117, 128)):
        assert torch.equal(bgr[:, channel], images[:, 2 - channel].float() - mean)
    assert torch.allclose(common.Preprocess("small")(images), images.float() / 127.5 - 1)


# ---------------------------------------------------------------------------- precision
@pytest.mark.parametrize("precision, tf32", [("fp32", False), ("tf32", True), ("bf16", False)])
def test_precision_is_that_of_the_backbone(precision, tf32, monkeypatch):
    """bf16 rounds the features a little; TF32 is a matter of convolutions, never of the losses."""
    for switch in (True, False):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", switch)
        network = common.SmallNet().eval()
        common.to_device(network, argparse.Namespace(
            precision=precision, device="cpu"))
        assert torch.backends.cudnn.allow_tf32 == tf32
        assert torch.get_float32_matmul_precision() == "highest"
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    plain, rounded = network(images), common.features(network, images, precision)
    assert rounded.dtype == torch.float32
    error = (rounded - plain).abs().max() / plain.abs().max()
    assert 1e-4 < error < 0.1 if precision == "bf16" else error == 0


@pytest.mark.parametrize("script", [jrd, mdr, dml_da], ids=lambda s: s.__name__)
def test_all_scripts_train_in_bf16_with_losses_in_float32(script, tmp_path, monkeypatch):
    """The backbone's convolutions see bfloat16, whatever comes after them float32."""
    monkeypatch.setitem(glyphs.GLYPHS, "test", (range(450, 460), 2))
    seen = {"conv": set(), "linear": set()}
    for name, kind in (("conv", torch.nn.Conv2d), ("linear", torch.nn.Linear)):
        def spied(self, x, name=name, real=kind.forward):
            out = real(self, x)
            seen[name].add(out.dtype)
            return out
        monkeypatch.setattr(kind, "forward", spied)
    result = script.train(script.parse_args(["--precision", "bf16", "--epochs", "1", "--out",
                                            str(tmp_path)]))
    assert seen == {"conv": {torch.bfloat16}, "linear": {torch.float32}}
    assert 0 < result["last epoch"]["R@1"] <= 1
    (folder,) = tmp_path.iterdir()
    assert folder.name == f"{script.__name__}-glyphs-precisionbf16-epochs1-s0"


# ---------------------------------------------------------------------------- weight files
@pytest.fixture
def published(tmp_path, monkeypatch):
    """A stand-in for the published BN-Inception file: its names and shapes, random values."""
    torch.manual_seed(0)
    path = tmp_path / common.WEIGHTS["bn_inception"][0]
    torch.save(common.backbone("bn_inception")[0].state_dict(), path)

    def accept(file):
        name, _, url = common.WEIGHTS["bn_inception"]
        monkeypatch.setitem(common.WEIGHTS, "bn_inception", (name, common.sha256(file), url))
    accept(path)
    return path, accept


def test_weights_from_a_file(published):
    path, _ = published
    network = jrd.Network(jrd.parse_args(["--dataset", "cub"]), 10)
    assert common.load_weights(network.backbone, "bn_inception", path) == common.sha256(path)
    state = torch.load(path, weights_only=True)
    assert all(torch.equal(v, state[k]) for k, v in network.backbone.state_dict().items())


def test_a_weights_file_that_is_not_the_published_one(published, tmp_path):
    path, accept = published
    backbone = jrd.Network(jrd.parse_args(["--dataset", "cub"]), 10).backbone
    before = {k: v.clone() for k, v in backbone.state_dict().items()}

    def refused(message):
        with pytest.raises(common.UserError, match=message):
            common.load_weights(backbone, "bn_inception", path)
        assert all(torch.equal(v, before[k]) for k, v in backbone.state_dict().items())

    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    refused("SHA-256 .* expected")
    accept(path)
    refused("cannot load")
    state = torch.load(io.BytesIO(whole), weights_only=True)
    state["conv1.weight"] = state.pop("conv1_7x7_s2.weight")
    torch.save(state, path)
    accept(path)
    refused("2 names or shapes differ: conv1_7x7_s2.weight, conv1.weight")
    with pytest.raises(common.UserError, match="no weights file"):
        common.load_weights(backbone, "bn_inception", tmp_path / "nowhere.pth")


def test_download(published, tmp_path, monkeypatch):
    """From the published place into torch's hub folder; what arrives truncated is not kept."""
    path, accept = published
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "hub"))
    name, digest, _ = common.WEIGHTS["bn_inception"]
    served = tmp_path / "served"
    served.mkdir()
    (served / name).write_bytes(path.read_bytes()[:5000])
    monkeypatch.setitem(common.WEIGHTS, "bn_inception", (name, digest, f"file://{served}/"))
    backbone = jrd.Network(jrd.parse_args(["--dataset", "cub"]), 10).backbone
    with pytest.raises(common.UserError, match="cannot download .* --weights FILE"):
        common.load_weights(backbone, "bn_inception")
    assert not list((tmp_path / "hub").rglob("*.pth"))
    (served / name).write_bytes(path.read_bytes())
    assert common.load_weights(backbone, "bn_inception") == digest
    (served / name).unlink()
    assert common.load_weights(backbone, "bn_inception") == digest            # found, not fetched


# ---------------------------------------------------------------------------- files and folders
def test_atomic_leaves_the_old_file_when_writing_fails(tmp_path):
    path = tmp_path / "x.json"
    files.write_json(path, [1])
    with pytest.raises(TypeError):
        files.write_json(path, [object()])
    assert json.loads(path.read_text()) == [1] and os.listdir(tmp_path) == ["x.json"]


@pytest.mark.parametrize("content", ["", "garbage", "other", "hostile"])
def test_checkpoints_that_are_none(tmp_path, content):
    """Nothing in them runs."""
    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)
    path = tmp_path / "last.pt"
    if content in ("other", "hostile"):
        torch.save({"a": 1} if content == "other" else {"config": Hostile()}, path)
    else:
        path.write_text(content)
    with pytest.raises(common.UserError, match="last.pt"):
        common.read_checkpoint(path)
    assert not (tmp_path / "ran").exists()


def run_of(tmp_path, *arguments):
    cfg = jrd.parse_args([*arguments, "--out", str(tmp_path)])
    split = common.Split(torch.zeros(4, 3, 36, 36, dtype=torch.uint8), torch.tensor([0, 0, 1, 1]),
                         ["a", "b"])
    return common.Run("jrd", cfg, common.Data("toy", split, split, split, identity={}), "random")


def test_run_names_say_what_differs_from_the_preset(tmp_path):
    assert run_of(tmp_path).folder.name == "jrd-glyphs-s0"
    half = run_of(tmp_path, "--alpha", "0.50", "--seed", "3")
    assert half.folder.name == "jrd-glyphs-alpha0.5-s3"
    assert run_of(tmp_path, "--alpha", "1").folder.name == "jrd-glyphs-s0"
    assert run_of(tmp_path, "--weights", "a/b.pth").folder.name == "jrd-glyphs-s0"
    assert run_of(tmp_path, "--workers", "3", "--no-cache").folder.name == "jrd-glyphs-s0"
    assert not list(tmp_path.iterdir()), "nothing is written before the run begins"


def test_a_folder_with_other_settings_is_refused(tmp_path):
    with run_of(tmp_path) as run:
        config = json.loads((run.folder / "config.json").read_text())
    assert config["alpha"] == 1 and config["splits"] == {"train": [4, 2], "test": [4, 2]}
    run_of(tmp_path, "--workers", "2")                              # where it runs may differ
    files.write_json(run.folder / "config.json", config | {"alpha": 2.0, "weights_sha256": "x"})
    with pytest.raises(common.UserError, match=r"alpha \(there 2.0, now 1.0\), weights_sha256"):
        run_of(tmp_path)
    (run.folder / "config.json").write_text("{")
    with pytest.raises(common.UserError, match="not the settings of a run"):
        run_of(tmp_path)


def test_a_checkpoint_of_another_version_is_refused(tmp_path):
    part = torch.nn.Linear(2, 3)
    with run_of(tmp_path) as run:
        torch.save({"paper": "jrd", "config": {}, "history": [], "pretrained": None,
                    "network": torch.nn.Linear(2, 4).state_dict()}, run.folder / "last.pt")
        for parts in ({"network": part}, {"optimizer": torch.optim.Adam(part.parameters())}):
            with pytest.raises(common.UserError, match="last.pt does not fit this jrd.py"):
                run.restore(**parts)


def test_two_trainings_in_one_folder_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "LOCK_WAIT", 0.1)
    with run_of(tmp_path):
        with pytest.raises(common.UserError, match="another process"):
            run_of(tmp_path).__enter__()
    with run_of(tmp_path):
        pass


def test_finish_may_be_called_twice(tmp_path):
    with run_of(tmp_path) as run:
        run.restore()
        run.history = [{"epoch": 1, "R@1": 0.5, "R@2": 0.6, "R@4": 0.7, "R@8": 0.8, "seconds": 2}]
        run.finish({"R@1": 0.5})
        first = run.result
        run.finish({"R@1": 0.5})
        assert run.result == first and first["best on test"]["epoch"] == 1


def test_what_a_killed_process_was_writing_goes_when_it_is_a_day_old(tmp_path):
    with run_of(tmp_path) as run:
        old, new = run.folder / ".last.pt.1.part", run.folder / ".last.pt.2.part"
        for part in (old, new):
            part.write_text("half")
        os.utime(old, (0, 0))
    with run_of(tmp_path):
        assert not old.exists() and new.exists(), "another process may be writing it"


def test_a_loss_that_is_not_finite_stops_with_step_parts_and_checkpoint(tmp_path):
    split = common.Split(torch.zeros(6, 3, 36, 36, dtype=torch.uint8), torch.zeros(6), ["a"])
    with run_of(tmp_path) as run:
        run.restore()
        batches = common.train_loader(split, common.SMALL_TRANSFORMS[1],
                                      lambda *_: [[i] for i in range(6)], run.cfg)
        for _ in run.progress(batches(0)):
            run.record(loss=torch.tensor(1.0), jrs=torch.tensor(0.5))
        run.end_epoch(0, **{"R@1": 0.5})
        with pytest.raises(common.NonFiniteLoss) as error:
            for step, _ in enumerate(run.progress(batches(1))):
                run.record(loss=torch.tensor(1.0 if step < 3 else float("nan")),
                           jrs=torch.tensor(0.5))
    assert str(error.value) == ("the loss is not finite at epoch 2, step 4: loss nan, jrs 0.5; "
                                f"{run.folder} has the 1 epochs before")


def test_number():
    assert common.number(int, 1)("3") == 3 and common.number(float, above=0)("1e-3") == 1e-3
    for kind, limits, text in ((int, {}, "1.5"), (float, {"low": 0}, "-1"), (float, {}, "nan"),
                               (float, {"above": 0}, "0"), (float, {}, "inf"),
                               (int, {"high": 9}, "10"), (int, {}, "9" * 400 + "x"),
                               (int, {"high": 9}, "9" * 400)):
        with pytest.raises(argparse.ArgumentTypeError):
            common.number(kind, **limits)(text)

"""Datasets, the loader, precision, weight files, the run folder."""
import argparse
import errno
import json
import os
import pickle
import re
import sys
from http.client import IncompleteRead
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import common
import jrd
from conftest import each_script, make_folder
from support import backbones, command_line, files, glyphs, identity, runs
from support.datasets import Data, Split
from support.images import CachedImages, ImageFiles


@pytest.mark.parametrize("part, classes, images, mean", [
    ("train", 50, 15, 121.796), ("test", 100, 20, 123.021)])
def test_glyphs_are_the_same_everywhere(part, classes, images, mean):
    """A mean over many pixels, so that a last bit of a sine on another machine does not matter."""
    split = getattr(common.load_dataset("glyphs"), part)
    assert split.images.shape == (classes * images, 3, 36, 36)
    assert split.images.dtype == torch.uint8
    assert split.images.float().mean().item() == pytest.approx(mean, abs=0.01)
    assert torch.bincount(split.labels).tolist() == [images] * classes
    drawn = sorted(c for classes, _ in glyphs.GLYPHS.values() for c in classes)
    assert drawn == [*range(550)]                                       # none in two splits


def test_the_glyphs_behind_the_small_backbone_are_the_same_everywhere(monkeypatch):
    """Ten of the 400 classes that it was pretrained on, in a studio and not out in the wild."""
    monkeypatch.setitem(glyphs.GLYPHS, "pretraining", (range(0, 400, 40), 30))
    drawn, _ = glyphs.glyphs("pretraining")
    assert drawn.float().mean().item() == pytest.approx(120.839, abs=0.01)


def test_what_is_drawn_depends_on_seed_and_epoch_alone(tmp_path):
    """Any number of workers, any epoch first: the same crops and mirrors."""
    folder, (prefix, augment, _) = make_folder(tmp_path / "d", [6] * 4), glyphs.SMALL_TRANSFORMS
    split = common.load_dataset(str(folder), train=prefix).train

    def in_order(labels, cfg, epoch):
        return [range(7), range(7, 12)]

    def drawn(workers, *epochs, seed=0):
        cfg = argparse.Namespace(seed=seed, workers=workers, device="cpu")
        loader, parts = common.train_loader(split, augment, in_order, cfg), []
        for epoch in epochs:
            for images, _ in loader(epoch):
                assert images.shape[1:] == (3, 32, 32) and images.dtype == torch.uint8
                parts.append(images.flatten())
        return torch.cat(parts)
    state = torch.get_rng_state()
    first, second = drawn(0, 0), drawn(0, 1)
    assert not torch.equal(first, second) and not torch.equal(first, drawn(0, 0, seed=1))
    assert torch.equal(drawn(2, 1, 0), torch.cat([second, first]))
    assert torch.equal(state, torch.get_rng_state()), "the loader drew from the global generator"
    augmented = common._Augmented(split, augment, 0)
    spawned = pickle.loads(pickle.dumps(augmented))     # a worker where processes are not forked
    assert torch.equal(spawned[0, 1][0], augmented[0, 1][0])


TENSORFLOW = 10 / 127.5 - 1, 20 / 127.5 - 1, 30 / 127.5 - 1              # (x - 0.5)/0.5


@pytest.mark.parametrize("backbone, want", [
    ("bn_inception", (30 - 104, 20 - 117, 10 - 128)),                   # Caffe's: BGR, 0-255
    ("googlenet_bvlc", (30 - 104, 20 - 117, 10 - 123)),
    ("small", TENSORFLOW), ("googlenet", TENSORFLOW)])
def test_a_backbone_sees_what_its_weights_were_trained_on(backbone, want):
    """RGB (10, 20, 30) on its way into the first convolution; GoogLeNet's own transform counts."""
    image = torch.tensor([10, 20, 30], dtype=torch.uint8)[:, None, None].expand(2, 3, 64, 64)
    network, seen = jrd.Network(jrd.parse_args(["--backbone", backbone]), 3).eval(), []
    convolution = next(m for m in network.modules() if isinstance(m, torch.nn.Conv2d))
    convolution.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    network.pool(image)
    torch.testing.assert_close(seen[0][1, :, 5, 7], torch.tensor(want).float(), atol=2e-3, rtol=0)


# ---------------------------------------------------------------------------- precision
@pytest.mark.parametrize("precision, tf32", [("fp32", False), ("tf32", True), ("bf16", False)])
def test_precision_is_that_of_the_backbone(precision, tf32, monkeypatch):
    """bf16 rounds the features a little; TF32 is a matter of convolutions, never of the losses.
    cuDNN chooses its convolutions by timing."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    for switch in (True, False):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", switch)
        network = glyphs.SmallNet().eval()
        common.to_device(network, argparse.Namespace(precision=precision, device="cpu"))
        assert torch.backends.cudnn.allow_tf32 == tf32 and torch.backends.cudnn.benchmark
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    plain, rounded = network(images), common.features(network, images, precision)
    assert rounded.dtype == torch.float32
    error = (rounded - plain).abs().max() / plain.abs().max()
    assert 1e-4 < error < 0.1 if precision == "bf16" else error == 0


@pytest.mark.parametrize("device, precision, ampere, contiguous", [
    ("cpu", "fp32", True, False), ("cuda:0", "fp32", True, True), ("cuda:0", "bf16", False, False),
    ("cuda:0", "tf32", True, False), ("cuda:0", "tf32", False, True)])
def test_a_gpus_float32_is_contiguous(device, precision, ampere, contiguous, monkeypatch):
    """... that of tf32 too, on a GPU from before Ampere."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8 if ampere else 7, 5))
    to = Mock()
    common.to_device(argparse.Namespace(to=to), argparse.Namespace(precision=precision,
                                                                   device=device))
    layout = torch.contiguous_format if contiguous else torch.channels_last
    to.assert_called_once_with(device, memory_format=layout)


def device_names():
    """Every device that torch knows by name, by the error in which it lists them."""
    with pytest.raises(RuntimeError) as refused:
        torch.device("gpu")
    return re.search("one of (.*) device type", str(refused.value))[1].split(", ")


def test_a_device_is_a_cpu_or_cudas(recwarn):
    """Whatever else torch knows by name is refused in a line, and so are names that it does not."""
    names = device_names()
    assert {"cpu", "cuda", "hpu", "xla", "mps", "mkldnn", "privateuseone"} <= {*names}
    others = [name for name in names if name not in ("cpu", "cuda")]
    others += ["hpu:0", "gpu", "CUDA", "tpu", "0", "", " cpu", "auto:0"]
    why = dict.fromkeys(others, "is not supported, because nothing here was ever run on such a .*")
    for name in ("cuda:-1", "cuda:99", "cuda:99999999999", "cuda:", "cpu:-1"):
        why[name] = "is not here"
    for name in why:
        with pytest.raises(common.UserError, match=f"^--device {name} {why[name]}: use --device"):
            common.settle(argparse.Namespace(device=name, precision="fp32"))
    for name in ("cpu", "cpu:0"):
        assert common.settle(argparse.Namespace(device=name, precision="fp32")).type == "cpu"
    assert not recwarn.list, "torch warned"


def test_devices_that_are_here_are_told_where_another_is_asked_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(common.UserError, match=(
            "cuda:0,1: a run uses one GPU, .*, Many runs.: use --device cpu or cuda:0 or cuda:1$")):
        common.settle(argparse.Namespace(device="cuda:0,1", precision="fp32"))


@pytest.mark.parametrize("error, raises, says", [
    (RuntimeError("CUDA error: no kernel image is available"), common.UserError,
     "not support the GPU of --device cuda: install one that was built for another CUDA .for an "),
    (AssertionError("Torch not compiled with CUDA enabled"), common.UserError, "is not here"),
    (RuntimeError("CUDA error: devices are busy or unavailable\nMore"), common.UserError,
     "the GPU of --device cuda cannot be used: .* are busy or unavailable; use another, or "),
    (torch.OutOfMemoryError("CUDA out of memory."), torch.OutOfMemoryError, "out of memory")])
def test_a_gpu_that_torch_cannot_use_and_one_that_is_full(error, raises, says, monkeypatch):
    """An old GPU ends before the caches are made, and a full or busy one is not said to be missing.
    """
    monkeypatch.setattr(torch.cuda, "device_count", lambda: "busy" in str(error))
    monkeypatch.setattr(torch, "ones", Mock(side_effect=error))
    with pytest.raises(raises, match=says):
        common.settle(argparse.Namespace(device="cuda", precision="fp32"))


def test_the_gpu_that_is_named_is_the_current_one(monkeypatch):
    """... of which torch tells what it can do, and its memory."""
    chosen = Mock()
    monkeypatch.setattr(torch.cuda, "set_device", chosen)
    for device in (torch.device("cuda:1"), torch.device("cpu")):
        monkeypatch.setattr(command_line, "device", lambda cfg: device)
        common.settle(argparse.Namespace(device="any", precision="fp32"))
    chosen.assert_called_once_with(torch.device("cuda:1"))


def test_a_worker_per_core_decodes_but_sixteen_at_most(monkeypatch):
    """... unless --workers says how many; images that are in memory need none.  They live on from
    epoch to epoch, and what a GPU is sent lies in pinned memory."""
    def loader(images, said=None, device="cpu"):
        split = common.Split(images, torch.zeros(4, dtype=int), ["a"])
        cfg = argparse.Namespace(workers=said, seed=0, device=device)
        return common.train_loader(split, None, lambda *_: [[0]], cfg)(0)
    files = ImageFiles([Path("a.jpg")] * 4, None, None)
    for cores, most in ((64, 16), (3, 3)):
        monkeypatch.setattr(common, "cores", lambda: cores)
        assert loader(files).num_workers == most and loader(files, 5).num_workers == 5
        assert loader(torch.zeros(4, 3, 9, 9)).num_workers == 0
    assert loader(files).persistent_workers
    assert loader(files, device="cuda:0").pin_memory and not loader(files).pin_memory


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux tells a share")
def test_cores_are_those_that_this_process_may_use(monkeypatch):
    """... on a cluster a job's share, and not all of the machine's."""
    monkeypatch.delenv("DML_CORES", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    here = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(here)})
    try:
        assert command_line.cores() == 1
    finally:
        os.sched_setaffinity(0, here)


def test_a_device_may_be_torchs_own():
    cfg = argparse.Namespace(device=torch.device("cpu"), precision="fp32")
    assert common.settle(cfg).type == cfg.device == "cpu"


@pytest.mark.parametrize("free, stay", [(8 * 1350, True), (8 * 1350 - 1, False)])
def test_images_stay_on_a_gpu_where_they_take_an_eighth_of_what_is_free(free, stay, monkeypatch,
                                                                        tmp_path):
    """Those of all splits together, and sent once; files never.  A loader's stay on the host."""
    def to(tensor, device, **kwargs):
        if not kwargs:
            sent.append(len(tensor))
        return tensor if kwargs else OnGPU(tensor)

    class OnGPU(torch.Tensor):
        device = torch.device("cuda")
    sent, labels = [], torch.arange(3)
    np.save(tmp_path / "cache.npy", np.random.randint(0, 256, (3, 10, 10, 3), np.uint8))
    cached = CachedImages(tmp_path / "cache.npy")
    tensor = torch.randint(256, (6, 3, 5, 5), dtype=torch.uint8)
    train = Split(cached, labels, ["a"])
    data = Data(train, Split(cached, labels, ["a"]), Split(tensor, labels.repeat(2), ["a"]))
    data.gallery = Split(ImageFiles([], None, None), labels, ["a"])
    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 2 * free))
    monkeypatch.setattr(common, "embed", lambda function, images, cfg: images)
    cfg = argparse.Namespace(device="cuda:0")
    common.embed_splits(None, data, cfg, "test", "gallery")
    for _ in range(2):
        embedded = common.embed_splits(None, data, cfg)
    assert sent == [6, 3] * stay and [*embedded] == ["test", "gallery", "train_plain"]
    assert torch.equal(torch.Tensor(embedded["test"][0]), tensor.float())
    assert train.images is cached and (data.train_plain.images is not cached) == stay


def test_what_is_embedded_can_be_trained_on_and_is_float32s(request):
    """... where TF32 is on from the start, as in NVIDIA's containers."""
    request.addfinalizer(lambda: torch.set_float32_matmul_precision("highest"))
    torch.set_float32_matmul_precision("high")
    cfg, seen = argparse.Namespace(device="cpu", workers=0), []

    def network(images):
        seen.append(torch.get_float32_matmul_precision())
        return images.float().flatten(1)
    x = common.embed(network, torch.ones(5, 1, 2, 2), cfg)
    assert seen == ["highest"] and torch.get_float32_matmul_precision() == "high"
    x -= x.mean(0)
    torch.nn.Linear(4, 2)(x).sum().backward()


def test_batches_on_a_gpu_have_one_shape_so_that_equal_images_have_one_embedding(monkeypatch):
    """... and no more images than train at a time; what fills the last one is left out again."""
    monkeypatch.setattr(torch.Tensor, "to", lambda x, *args, **kwargs: x)
    images, seen = torch.randint(256, (10, 2, 2, 3)).permute(0, 3, 1, 2), []     # a cache's layout

    def network(batch):
        assert batch.is_contiguous(memory_format=torch.channels_last)
        seen.append(batch)
        return batch.flatten(1)
    for batch, sizes in ((4, [4, 4, 4]), (10, [10]), (999, [200])):
        x = common.embed(network, images, argparse.Namespace(device="cuda:0", batch=batch))
        assert torch.equal(x, images.flatten(1).float())
        assert [len(part) for part in seen] == sizes and (seen[-1][-1] == images[-1]).all()
        seen.clear()


@each_script
def test_a_run_multiplies_in_float32_and_leaves_a_notebook_its_choice(script, train, monkeypatch):
    objective, seen = script.objective, set()

    def spy(*args):
        seen.add(torch.get_float32_matmul_precision())
        return objective(*args)
    monkeypatch.setattr(script, "objective", spy)
    torch.set_float32_matmul_precision("high")
    try:
        train(script, *["--iterations=1"] * (script is not jrd))
        assert seen == {"highest"} and torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("here, dtype", [(True, torch.bfloat16), (False, torch.float32)])
def test_a_training_in_bf16_has_its_losses_in_float32(here, dtype, train, monkeypatch):
    """... where a processor has bfloat16: convolutions see it, all after them float32.  The
    settings say which it was, and no optimizer is left at the end."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: here)
    seen = set()

    def note(module, inputs, output):
        if isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)):
            if len(output) > 1:                         # one black image asks a backbone its width
                seen.add((type(module), output.dtype))
    with torch.nn.modules.module.register_module_forward_hook(note):
        folder, _ = train(jrd, "--precision", "auto", "--val", "0.2")
    assert seen == {(torch.nn.Conv2d, dtype), (torch.nn.Linear, torch.float32)}
    for name in ("last.pt", "best.pt"):
        state = common.read_checkpoint(folder / name)
        assert state["optimizer"] is None and state["network"]
        assert state["config"]["precision"] == ("bf16" if here else "fp32")


# ---------------------------------------------------------------------------- weight files
def test_the_published_file_or_none(tmp_path, monkeypatch):
    """A stand-in comes from where it is published into torch's hub folder, once; truncated it is
    not kept, and one of its name with another content is refused."""
    network, hub = common.backbone("small")[0], tmp_path / "hub"

    def load():
        return common.load_weights(network, "small")
    torch.save(network.state_dict(), tmp_path / "whole")
    content, digest = (tmp_path / "whole").read_bytes(), files.sha256(tmp_path / "whole")
    served = tmp_path / f"small-{digest[:8]}.pth"
    monkeypatch.setitem(backbones.BACKBONES, "small", backbones.BACKBONES["small"]._replace(
        file=f"file://{served}", sha256=digest))
    monkeypatch.setenv("TORCH_HOME", str(hub))
    served.write_bytes(content[:5000])
    with pytest.raises(common.UserError, match="cannot download .* --weights FILE"):
        load()
    assert not list(hub.rglob("*.pth"))
    with monkeypatch.context() as patch:                # no OSError
        patch.setattr(torch.hub, "load_state_dict_from_url", Mock(side_effect=IncompleteRead(b"")))
        with pytest.raises(common.UserError, match="cannot download .*IncompleteRead"):
            load()
    served.write_bytes(content)
    assert load() == digest
    served.unlink()
    assert load() == digest
    (file,) = hub.rglob("*.pth")
    os.truncate(file, 5000)
    with pytest.raises(common.UserError, match="SHA-256 .* expected"):
        load()


def deep(state):
    return {"state_dict": {f"module.net.{name}": value for name, value in state.items()}}


def of_a_model(state):
    return {"model": state | {"classifier.1.weight": torch.ones(1000, 512, 1, 1)}}


def of_a_run(state):
    network = {f"backbone.{name}": value for name, value in state.items()}
    return {"network": network | {"embedding.weight": torch.ones(64, 512)}, "history": []}


def old(state):
    """From before torch counted batches; DenseNet's layers had names with a dot."""
    saved = {}
    for name, value in state.items():
        if value.is_floating_point():
            saved[re.sub(r"(denselayer.*\.(norm|conv))([12])\.", r"\1.\3.", name)] = value
    return saved


@pytest.mark.parametrize("name, wrapped", [
    ("squeezenet1_1", deep), ("squeezenet1_1", of_a_model), ("squeezenet1_1", of_a_run),
    ("bn_inception", old), ("mnasnet0_5", old), ("densenet121", old)])
def test_own_weights_of_any_wrapping_and_age(name, wrapped, tmp_path, capsys):
    (other, _), (network, _) = common.backbone(name), common.backbone(name)
    want, file = other.state_dict(), tmp_path / "mine.pth"
    for value in want.values():
        if value.is_floating_point():
            value.uniform_()
    torch.save(wrapped(want), file)
    assert common.load_weights(network, name, file) == files.sha256(file)
    assert "not a published file" in capsys.readouterr().out
    torch.testing.assert_close(network.state_dict(), want, rtol=0, atol=0)


def test_weights_from_a_hub_without_the_package_for_them(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    file = tmp_path / "hub.safetensors"
    file.write_bytes(b"\x08" + bytes(7) + b"{}      ")
    with pytest.raises(common.UserError, match="is the package safetensors installed"):
        common.load_weights(glyphs.SmallNet(), "small", file)


def test_weights_from_a_hub(tmp_path):
    """... are read by torch.load, seen with torch 2.14.1 and safetensors 0.8.0."""
    safetensors = pytest.importorskip("safetensors.torch")
    file = tmp_path / "hub.safetensors"
    safetensors.save_file(side_by_side("net."), file)
    network = glyphs.SmallNet()
    common.load_weights(network, "small", file)
    assert all((value == 0).all() for value in network.state_dict().values())


def side_by_side(*prefixes):
    """A dict with a network for each prefix: what it learned is its place in the list."""
    state = {}
    for i, prefix in enumerate(prefixes):
        for name, value in SMALL.items():
            state[prefix + name] = torch.full_like(value, i)
    return state


@pytest.mark.parametrize("wrap, told", [
    (lambda one, two: {"epoch": 3, "student": one, "teacher": two}, "['student'], ['teacher']"),
    (lambda one, two: {"model": {"student": one, "teacher": two}},
     "['model']['student'], ['model']['teacher']"),
    (lambda one, two: {"encoder_q": one, "encoder_k": two}, "['encoder_q'], ['encoder_k']"),
    (lambda one, two: {"online": {"state_dict": one}, "target": {"state_dict": two}},
     "['online']['state_dict'], ['target']['state_dict']")])
@pytest.mark.parametrize("prefix", ["", "module.backbone."])
def test_two_networks_in_a_file_of_weights_are_named(wrap, told, prefix, tmp_path):
    """... and the message's own line makes the file that loads."""
    file = tmp_path / "ssl.pth"
    head = {"head.weight": torch.ones(3), "0.weight" if prefix else "head.0.weight": torch.ones(3)}
    one, two = head | side_by_side(prefix), head | side_by_side(f"module.{prefix}")
    torch.save(wrap(one, two), file)
    with pytest.raises(common.UserError) as refused:
        common.load_weights(glyphs.SmallNet(), "small", file)
    line = str(refused.value)
    assert line.startswith(f"{file} has 2 networks, {told}: save the one to take alone: ")
    code = line.rpartition("alone: ")[2].replace("one.pth", str(tmp_path / "one.pth"))
    exec(code, {"torch": torch})
    common.load_weights(glyphs.SmallNet(), "small", tmp_path / "one.pth")


@pytest.mark.parametrize("wrap, told", [
    (lambda one, _: {"state_dict": one | side_by_side("module.encoder_q.", "module.encoder_k.")},
     "2 networks, with module.encoder_q.0.weight, module.encoder_k.0.weight; the first is taken"),
    (lambda *_: side_by_side("backbone.", "momentum_backbone."), "momentum_backbone.0.weight; the"),
    (lambda one, average: {"state_dict_ema": average, "state_dict": one}, ""),
    (lambda one, average: {"ema": {"state_dict": average}, "state_dict": one}, ""),
    (lambda one, average: {"model_ema": average, "model": one, "optimizer": {"state": {}}}, ""),
    (lambda one, _: {"epoch": 3, "teacher": one}, ""), (lambda one, _: {"net": {"sub": one}}, "")])
def test_one_of_several_networks_is_taken_and_named(wrap, told, tmp_path, capsys):
    """An average beside the network is left; of two in one dict the first trains the second."""
    one = side_by_side("net.") if not told else {"queue": torch.ones(3)}
    average = {name: value + 5 for name, value in side_by_side("net.").items()}
    torch.save(wrap(one, average), tmp_path / "w.pth")
    network = glyphs.SmallNet()
    common.load_weights(network, "small", tmp_path / "w.pth")
    assert all((value == 0).all() for value in network.state_dict().values())
    out = capsys.readouterr().out
    assert told in out and out.count("note: ") == bool(told)


SMALL = glyphs.SmallNet().state_dict()


@pytest.mark.parametrize("state", [
    [1, 2], SMALL | {"4.weight": torch.ones(1)}, {"0.weight": SMALL["0.weight"]},
    SMALL | {"99.weight": 1}])
def test_weights_that_do_not_fit_are_one_line(state, tmp_path):
    torch.save(state, tmp_path / "other.pth")
    with pytest.raises(common.UserError, match="other.pth does not fit small: .* differ: .*$"):
        common.load_weights(glyphs.SmallNet(), "small", tmp_path / "other.pth")


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("ran",)


@pytest.mark.parametrize("saved", ["garbage", {"a": 1}, {"config": Hostile()}])
def test_files_that_are_no_checkpoint_or_weights(saved, tmp_path, monkeypatch):
    """Nothing in them runs."""
    monkeypatch.chdir(tmp_path)
    if saved == "garbage":
        Path("last.pt").write_text(saved)
    else:
        torch.save(saved, "last.pt")
    with pytest.raises(common.UserError, match="last.pt"):
        common.read_checkpoint("last.pt")
    with pytest.raises(common.UserError, match="last.pt"):
        common.load_weights(glyphs.SmallNet(), "small", "last.pt")
    assert os.listdir() == ["last.pt"]


# ---------------------------------------------------------------------------- files and folders
def test_atomic_leaves_the_old_file_when_writing_fails(tmp_path):
    path = tmp_path / "x.json"
    files.write_json(path, [1])
    with pytest.raises(KeyError), files.atomic(path) as file:
        file.write("half")
        raise KeyError
    assert json.loads(path.read_text()) == [1] and os.listdir(tmp_path) == ["x.json"]


def test_a_disk_that_takes_no_files_is_named(tmp_path, monkeypatch):
    """Whose refusal to delete what is not there would hide it"""
    def refuse(*args, **more):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    monkeypatch.setattr(files, "open", refuse, raising=False)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(files.UserError, match="cannot write .*x.json: .*Read-only"):
        files.write_json(tmp_path / "x.json", [1])




@pytest.mark.parametrize("flags, name", [
    ("--alpha 0.50 --seed 3", "jrd-glyphs-alpha0.5-s3"), ("--alpha 1", "jrd-glyphs-s0"),
    ("--weights a/b.pth --workers 3 --no-cache", "jrd-glyphs-s0")])
def test_run_names_say_what_differs_from_the_preset(flags, name):
    assert identity.run_folder("jrd", jrd.parse_args(flags.split())).name == name


def test_what_a_killed_process_was_writing_goes_when_the_run_continues(train):
    folder = train(jrd)[0]
    (folder / "result.json").unlink()
    for name in (".last.pt.0f.part", "thesis.part"):
        (folder / name).touch()
    train(jrd)
    assert {".last.pt.0f.part", "thesis.part"} & {*os.listdir(folder)} == {"thesis.part"}


def test_a_run_that_was_made_while_this_one_waited_is_not_taken_over(few_glyphs, tmp_path):
    """Both found no folder when they began; the second has other weights."""
    cfg = jrd.parse_args(["--out", str(tmp_path)])
    data = common.load_dataset("glyphs")
    loader = torch.utils.data.DataLoader(data.train.labels)
    first, second = (runs.Run("jrd", cfg, data, sha, loader) for sha in ("a" * 64, "b" * 64))
    with first:
        pass
    with pytest.raises(common.UserError, match="holds a run with other weights_sha256"):
        with second:
            pass
    with first:                                         # nobody holds its lock
        (first.folder / "config.json").write_text("damaged")
    with pytest.raises(common.UserError, match="config.json is damaged"):
        runs.Run("jrd", cfg, data, "a" * 64, loader)
    cfg.again = True
    with runs.Run("jrd", cfg, data, "a" * 64, loader):
        pass


def test_a_gpu_that_torch_does_not_find_is_said(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cfg = argparse.Namespace(device="auto", precision="fp32")
    for there, hidden in ((None, None), ("/usr/bin/nvidia-smi", ""), ("/usr/bin/nvidia-smi", None)):
        monkeypatch.setattr(command_line.shutil, "which", lambda name: there)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if hidden is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        cfg.device = "auto"
        common.settle(cfg)
        told = capsys.readouterr().out
        assert (told == "") == (there is None or hidden is not None)
    assert told.startswith("note: nvidia-smi is here, but torch ") and told.count("\n") == 1


def test_two_trainings_in_one_folder_are_refused(train, monkeypatch):
    """The second begins within a step of the first."""
    monkeypatch.setattr(runs, "LOCK_WAIT", 0.1)
    monkeypatch.setattr(jrd, "objective", lambda *args: train(jrd))
    with pytest.raises(common.UserError, match="another process"):
        train(jrd)

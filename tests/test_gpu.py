"""What concerns GPUs and can be tested without one: memory, precision, torch.compile."""
import argparse
import pickle
import shutil

import pytest
import torch

import common
import dml_da
import jrd
import mdr
from support import glyphs
from support.images import CachedImages
from support.memory import step_bytes

SCRIPTS = pytest.mark.parametrize("script", [jrd, mdr, dml_da], ids=lambda s: s.__name__)


@pytest.fixture
def few_glyphs(monkeypatch):
    """Ten classes of four images to train, ten to test."""
    monkeypatch.setitem(glyphs.GLYPHS, "train", (range(400, 410), 4))
    monkeypatch.setitem(glyphs.GLYPHS, "test", (range(450, 460), 4))


# ---------------------------------------------------------------------------- memory
def test_step_bytes_counts_what_the_backward_pass_needs():
    """A convolution keeps its input, a ReLU its output; the convolution's output goes."""
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU())
    values = 2 * 3 * 8 * 8 + 2 * 4 * 8 * 8
    assert step_bytes(network, batch=2, size=8) == 4 * values
    assert step_bytes(network, batch=2, size=8, precision="bf16") == 2 * values
    assert next(network.parameters()).device.type == "cpu"                  # a copy was counted


@SCRIPTS
def test_no_memory_left_ends_in_one_line(script, few_glyphs, tmp_path, monkeypatch, capsys):
    def full(*args):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nGPU 0 ...")
    monkeypatch.setattr(script, "objective", full)
    with pytest.raises(SystemExit) as end:
        common.main(script.train, lambda: script.parse_args(["--out", str(tmp_path)]))
    assert end.value.code == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "out of GPU memory: a step of small with --batch" in said and "--precision bf16" in said


def test_a_gpu_that_is_full_from_the_start_ends_in_one_line(capsys):
    def full(args):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
    with pytest.raises(SystemExit) as end:
        common.main(full, lambda: None)
    assert end.value.code == 2 and "CUDA out of memory. Tried" in capsys.readouterr().err


@pytest.mark.parametrize("free, kept", [(8, True), (8 - 1 / 300, False)])
def test_images_stay_on_a_gpu_where_they_take_an_eighth_of_what_is_free(free, kept, tmp_path,
                                                                        monkeypatch):
    made = torch.randint(256, (4, 3, 5, 5), dtype=torch.uint8)
    made.permute(0, 2, 3, 1).contiguous().numpy().tofile(tmp_path / "images")
    images, sent = CachedImages(tmp_path / "images", [(5, 5)] * 4), []

    def to(tensor, device):
        sent.append(tensor)
        return tensor.clone()
    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(free * 4 * 75), 0))
    found = images.whole(torch.device("cuda"))
    assert (found is not None) == kept and len(sent) == kept
    if kept:
        assert torch.equal(found, made) and images.whole(torch.device("cuda")) is found
        assert len(sent) == 1 and pickle.loads(pickle.dumps(images)).kept is None


def test_images_of_different_shapes_are_not_whole(tmp_path):
    torch.zeros(3 * (16 + 25), dtype=torch.uint8).numpy().tofile(tmp_path / "images")
    images = CachedImages(tmp_path / "images", [(4, 4), (5, 5)])
    assert images.whole() is None and images[1].shape == (3, 5, 5)


# ---------------------------------------------------------------------------- precision, compile
def test_channels_last_where_the_precision_profits():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert common.memory_format(gpu, "fp32") == torch.contiguous_format
    for device, precision in ((gpu, "tf32"), (gpu, "bf16"), (cpu, "fp32"), (cpu, "tf32")):
        assert common.memory_format(device, precision) == torch.channels_last


@SCRIPTS
def test_tf32_is_the_default_and_on_a_cpu_fp32(script):
    assert script.parse_args([]).precision == "tf32"
    network = common.SmallNet().eval()
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(*(common.features(network, images, p) for p in ("tf32", "fp32")))


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
def test_compiled_is_equal_within_rounding():
    """The same features and gradients, under the same names."""
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        network = torch.nn.Module()
        network.backbone = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten())
        common.to_device(network, argparse.Namespace(
            precision="fp32", device="cpu", compile=compiled))
        images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))
        features = common.features(network.backbone, images, "fp32")
        features.square().sum().backward()
        found.append([features.detach(), *(p.grad for p in network.parameters())])
        names = list(network.state_dict())
        assert (network.backbone._compiled_call_impl is not None) == compiled
    assert names == ["backbone.0.weight", "backbone.0.bias"]
    for plain, other in zip(*found):
        assert torch.allclose(plain, other, rtol=1e-5, atol=1e-6)


def test_compile_is_no_setting_of_a_run(tmp_path):
    """It says how, not what: the run's folder has the same name, and either continues the other."""
    plain, compiled = (jrd.parse_args(["--out", str(tmp_path), *flag]) for flag in (
        [], ["--compile"]))
    assert compiled.compile and not plain.compile
    assert common.run_folder("jrd", compiled) == common.run_folder("jrd", plain)


# ---------------------------------------------------------------------------- evaluation, disk
def test_large_datasets_are_evaluated_every_tenth_epoch():
    for script, names in ((jrd, ["sop"]), (mdr, ["sop", "inshop"]), (dml_da, ["sop"])):
        assert all(script.PRESETS[name]["eval_every"] == 10 for name in names)
        assert script.parse_args(["--dataset", "cub"]).eval_every == 1      # its figures need each


@SCRIPTS
def test_a_finished_run_has_no_optimizer(script, tmp_path, few_glyphs, capsys):
    argv = ["--epochs", "1", "--out", str(tmp_path), "--val", "0.2"]
    script.train(script.parse_args(argv))
    (folder,) = tmp_path.iterdir()
    for name in ("last.pt", "best.pt"):
        state = common.read_checkpoint(folder / name)
        assert state["optimizer"] is None and state["network"]
    before, size = (folder / "result.json").read_text(), (folder / "last.pt").stat().st_size
    capsys.readouterr()
    script.train(script.parse_args(argv))                                   # only shows it
    assert "is finished" in capsys.readouterr().out
    assert (folder / "result.json").read_text() == before
    assert (folder / "last.pt").stat().st_size == size

"""What concerns GPUs and can be tested without one: memory, precision."""
import pytest
import torch

import common
import dml_da
import jrd
import mdr

SCRIPTS = pytest.mark.parametrize("script", [jrd, mdr, dml_da], ids=lambda s: s.__name__)


# ---------------------------------------------------------------------------- memory
def test_no_memory_left_ends_in_one_line(few_glyphs, tmp_path, monkeypatch, capsys):
    def full(*args):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nGPU 0 ...")
    monkeypatch.setattr(jrd, "objective", full)
    for train, message in ((jrd.train, "out of GPU memory with --batch 100: --precision bf16"),
                           (full, "CUDA out of memory. Tried")):
        with pytest.raises(SystemExit) as end:
            common.main(train, lambda: jrd.parse_args(["--out", str(tmp_path)]))
        assert end.value.code == 2 and message in capsys.readouterr().err


# ---------------------------------------------------------------------------- precision
def test_channels_last_where_the_precision_profits():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert common.memory_format(gpu, "fp32") == torch.contiguous_format
    for device, precision in ((gpu, "tf32"), (gpu, "bf16"), (cpu, "fp32"), (cpu, "tf32")):
        assert common.memory_format(device, precision) == torch.channels_last


# ---------------------------------------------------------------------------- evaluation, disk
def test_large_datasets_are_evaluated_every_tenth_epoch():
    for script, names in ((jrd, ["sop"]), (mdr, ["sop", "inshop"]), (dml_da, ["sop"])):
        assert all(script.PRESETS[name]["eval_every"] == 10 for name in names)
        assert script.parse_args(["--dataset", "cub"]).eval_every == 1      # its figures need each


@SCRIPTS
def test_a_finished_run_has_no_optimizer(script, tmp_path, few_glyphs):
    script.train(script.parse_args(["--epochs", "1", "--out", str(tmp_path), "--val", "0.2"]))
    (folder,) = tmp_path.iterdir()
    for name in ("last.pt", "best.pt"):
        state = common.read_checkpoint(folder / name)
        assert state["optimizer"] is None and state["network"]

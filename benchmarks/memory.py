"""How much a training step keeps in memory for its backward pass, by preset: counted, not measured.

    python benchmarks/memory.py         a minute on one core

It counts the tensors that torch saves in a forward pass, each storage once and no parameter, of two
and of four images, and from these two reckons the preset's batch.  Parameters, their gradients and
Adam's two moments come on top, 16 bytes a parameter, and so does what the allocator and cuDNN need.
"""
import bench  # noqa: F401, I001  first: sets the threads and the import path

import torch

import common
import dml_da
import jrd
import mdr
from report.tables import markdown
from support.command_line import Parser

PRESETS = (     # script, its flags
    (jrd, "--dataset cub"), (mdr, "--dataset cub"), (mdr, "--dataset sop"),
    (mdr, "--dataset cub --backbone resnet50"), (dml_da, "--dataset cub"), (jrd, "--dataset cub128"))


def kept(network, n, size):
    """The bytes that a forward pass of n images keeps"""
    own = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    storages = {}

    def saved(x):
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage      # kept alive, or another takes its address
        return x
    images = torch.zeros(n, 3, size, size, dtype=torch.uint8)
    with torch.autograd.graph.saved_tensors_hooks(saved, lambda x: x):
        network.pool(images)
    return sum(storage.nbytes() for storage in storages.values())


def main():
    rows = ["training step,backbone,B,size,fp32 or tf32 (GiB),bf16 (GiB),parameters and Adam (GiB)"
            .split(",")]
    for script, flags in PRESETS:
        cells = []
        for precision in ("fp32", "bf16"):
            cfg = script.parse_args([*flags.split(), "--device", "cpu", "--precision", precision])
            common.settle(cfg)
            network = script.Network(cfg, 100).train()
            two, four = kept(network, 2, cfg.size), kept(network, 4, cfg.size)
            cells.append(f"{(two + (four - two) * (cfg.batch - 2) / 2) / 2 ** 30:.1f}")
        adam = 16 * sum(parameter.numel() for parameter in network.parameters()) / 2 ** 30
        rows.append([f"{script.__name__}.py {flags}", cfg.backbone, str(cfg.batch), str(cfg.size),
                     *cells, f"{adam:.2f}"])
    print(markdown(rows))


if __name__ == "__main__":
    Parser("benchmarks/memory.py", __doc__).parse_args()
    main()

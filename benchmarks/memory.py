"""How much memory a training step keeps for its backward pass, by preset: counted, not measured.

    python benchmarks/memory.py

The activations of the backbone for a batch at the preset's size, from PyTorch's saved tensors
(support/memory.py).  Parameters, gradients and Adam's two moments are beside it, 16 bytes a
parameter; the allocator and cuDNN's workspaces come on top.
"""
import bench  # noqa: F401, I001  first: sets the threads and the import path

import dml_da
import jrd
import mdr
from support.memory import step_bytes

PRESETS = (  # script, its flags
    (jrd, "--dataset cub"), (jrd, "--dataset sop"), (mdr, "--dataset cub"), (mdr, "--dataset sop"),
    (mdr, "--dataset cub --size 256"), (mdr, "--dataset cub --backbone resnet18"),
    (mdr, "--dataset cub --backbone resnet50"), (dml_da, "--dataset cub"),
    (jrd, "--dataset cub128"), (mdr, "--dataset cub128"))


def main():
    print("| | backbone | B | size | activations, fp32 and tf32 | bf16 | parameters and Adam |\n"
          "|---|---|---|---|---|---|---|")
    for script, flags in PRESETS:
        cfg = script.parse_args(flags.split())
        network = script.Network(cfg, 100)
        network.train()
        full, half = (step_bytes(network.backbone, cfg.batch, cfg.size, precision) / 2 ** 30
                      for precision in ("fp32", "bf16"))
        adam = 16 * sum(p.numel() for p in network.parameters()) / 2 ** 30
        print(f"| `{script.__name__}.py {flags}` | {cfg.backbone} | {cfg.batch} | {cfg.size} | "
              f"{full:.1f} GiB | {half:.1f} GiB | {adam:.2f} GiB |", flush=True)


if __name__ == "__main__":
    main()

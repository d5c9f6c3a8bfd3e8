"""What a training step spends outside the network: loss, regularizer, sampling, optimizer.

    python benchmarks/step.py                       the papers' batches: meant for a GPU
    python benchmarks/step.py --batch 16 --steps 3  about a minute on two quiet CPU cores

Networks are the papers': BN-Inception for JRD and MDR, GoogLeNet for DML-DA, with random weights.
Images are random, 224 × 224; labels and presets are CUB's.  Each step calls the script's
objective().  The backward pass is cut at the network's outputs, so that both halves can be timed.
On a GPU the clock waits for the device at each cut, so small parts look larger than they are.

network   forward and backward, images to the device and preprocessing included
loss      objective(): loss, regularizer, negatives and their gradient to the network's outputs
sampler   one epoch of batches() over its number of batches
optimizer Adam
Outside is the share of all but the network, by the clock and, on a CPU, by CPU seconds; the exit
status is 1 if it is above its goal, 0.05.  Loading of images and evaluation are not in it.  On a
GPU the table has the peak of allocated memory too.
"""
import bench  # noqa: I001  first: sets the threads

import time

import numpy as np
import torch

import common
from report.experiments import SCRIPTS
from support import command_line

PARTS, GOAL = ("network", "loss", "sampler", "optimizer"), 0.05


def measure(paper, cfg, args):
    """-> (4, 2): median seconds and CPU seconds of each of PARTS over the steps"""
    device = common.settle(cfg)

    def now():
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return np.array([time.perf_counter(), time.process_time()])

    torch.manual_seed(0)
    network = common.to_device(paper.Network(cfg, 100), cfg).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=cfg.lr, fused=device.type == "cuda")
    generator = [] if paper is SCRIPTS["jrd"] else [torch.Generator(device).manual_seed(0)]
    all_labels, forward, steps = torch.arange(5864) % 100, network.forward, []
    for i in range(2 + args.steps):                                     # two to warm up
        start = now()
        batches = paper.batches(all_labels, cfg, epoch=i)
        sampler = (now() - start) / len(batches)
        labels = all_labels[batches[0]]
        images = torch.randint(0, 256, (len(labels), 3, 224, 224), dtype=torch.uint8)
        start = now()                                                   # images are not timed
        labels, outputs = labels.to(device), forward(images.to(device))
        embedded = now()
        single = torch.is_tensor(outputs)
        leaves = [o.detach().requires_grad_() for o in ([outputs] if single else outputs)]
        network.forward = lambda _: leaves[0] if single else leaves     # what objective() sees
        loss, _ = paper.objective(network, cfg, images, labels, *generator)
        optimizer.zero_grad()
        loss.backward()
        cut = now()
        torch.autograd.backward(outputs, [leaf.grad for leaf in leaves])
        backward = now()
        optimizer.step()
        network_time = embedded - start + backward - cut
        steps.append([network_time, cut - embedded, sampler, now() - backward])
    return np.median(steps[2:], 0)


def main(args):
    args.device = str(command_line.device(args))
    bench.header(f"A training step, {args.precision}, median of {args.steps} after 2",
                 threads=args.threads, device=args.device)
    last = "outside, in CPU s" if args.device == "cpu" else "peak GiB"
    heads = ["batch", *(f"{part}, ms" for part in PARTS), last]
    rows = [("step", heads, "outside", "goal")]
    for name in args.papers:
        flags = f"--dataset cub --weights random --device {args.device} --precision {args.precision}"
        if args.batch:
            flags += f" --batch {args.batch}"
        cfg = SCRIPTS[name].parse_args(flags.split())
        spent = measure(SCRIPTS[name], cfg, args)
        outside, outside_cpu = 1 - spent[0] / spent.sum(0)
        cells = [str(cfg.batch), *(f"{1000 * seconds:.1f}" for seconds in spent[:, 0])]
        if args.device == "cpu":
            cells.append(f"{outside_cpu:.4f}")
        else:
            cells.append(f"{torch.cuda.max_memory_allocated() / 2 ** 30:.1f}")
            torch.cuda.reset_peak_memory_stats()
        rows.append((f"{name}, {cfg.backbone}", cells, outside, GOAL))
    bench.goals(rows)


def parse_args():
    parser = command_line.Parser("benchmarks/step.py", __doc__)
    add = parser.add_argument
    add("--papers", nargs="+", choices=tuple(SCRIPTS), default=list(SCRIPTS))
    add("--batch", type=int, help="default: the paper's (100, 128, 100)")
    add("--steps", type=int, default=5, help="steps measured (5)")
    add("--threads", type=int, default=bench.THREADS, help="CPU threads (2)")
    add("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    add("--device", default="auto", help="auto (default), cpu, cuda")
    return parser.parse_args()


if __name__ == "__main__":
    main(parse_args())

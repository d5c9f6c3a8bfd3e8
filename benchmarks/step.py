"""What a training step spends outside the network: loss, regularizer, sampling, optimizer, log.

    python benchmarks/step.py                       the papers' batches: meant for a GPU
    python benchmarks/step.py --batch 16 --steps 3  a small batch, about a minute on two CPU cores
    python benchmarks/step.py --precision bf16      a faster network, so the rest weighs more
    python benchmarks/step.py --threads 1           where other jobs keep the other cores busy

Networks as in the papers: BN-Inception for JRD and MDR, GoogLeNet for DML-DA, random weights,
224 × 224 random images, labels and presets of CUB (5,864 images of 100 classes).  Each step calls
the script's objective(); only the backward pass is cut at the network's outputs, so that the two
halves can be timed.  On a GPU the clock waits for the device at each cut,
which makes the small parts look larger than they are when they overlap.

network   Network.forward, all of it (images to the device, preprocessing, backbone, embedding
          layer, normalization, JRD's cosines to the proxies), and its backward pass
loss      loss, regularizer, MDR's distances and distance-weighted sampling, DML-DA's densities
its grad  the backward pass from the loss to the network's outputs
sampler   one epoch of batches() over its number of batches
optimizer zero_grad, Adam's step (MDR's levels, JRD's proxies among its parameters), DML-DA's α
log       run.record, MDR's pairs by level
Outside is the sum of all but the network: the whole optimizer counts, though any method has one.
Loading images is not in it (see data.py), nor is evaluation.

It prints milliseconds a step (medians), the share outside by the clock and, on a CPU, by CPU
seconds, which other jobs on the machine disturb less; and whether it is under 5%.
"""
import bench  # noqa: I001  first: sets the threads

import argparse
import statistics
import time
from types import SimpleNamespace

import torch

import common
import dml_da
import jrd
import mdr

PARTS = ("network", "loss", "its grad", "sampler", "optimizer", "log")


class Clock:
    """Adds up the time between laps by name, waiting for a GPU at each."""

    def __init__(self, device):
        self.device = device
        self.seconds, self.busy = dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, 0.0)
        self.last = self._now()

    def _now(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter(), time.process_time()

    def lap(self, name):
        now = self._now()
        self.seconds[name] += now[0] - self.last[0]
        self.busy[name] += now[1] - self.last[1]
        self.last = now


def cut(outputs):
    """The network's outputs as leaves, whose gradients are what the loss hands back to it."""
    if torch.is_tensor(outputs):
        return outputs.detach().requires_grad_()
    return [output.detach().requires_grad_() for output in outputs]


def settings(paper, args):
    given = ["--dataset", "cub", "--weights", "random", "--device", args.device,
             "--precision", args.precision]
    return paper.parse_args(given + (["--batch", str(args.batch)] if args.batch else []))


# ---------------------------------------------------------------------------- the three steps
class Model:
    """A script's network, optimizer and state, and its objective of what the network gives."""

    def __init__(self, name, cfg, device):
        self.name, self.cfg, self.device = name, cfg, device
        paper = PAPERS[name][0]
        self.network = common.to_device(paper.Network(cfg, 100), cfg).train()
        parameters = [*self.network.parameters()]
        if name == "mdr":
            self.mdr = mdr.MDR(cfg.levels, cfg.momentum, not cfg.fixed_levels).to(device)
            self.generator = torch.Generator(device).manual_seed(0)
            self.shares = torch.zeros(2, len(cfg.levels), dtype=torch.long, device=device)
            parameters += self.mdr.parameters()
        elif name == "dml_da":
            self.targets = dml_da.TargetDensities(100).to(device)
        self.optimizer = torch.optim.Adam(parameters, lr=cfg.lr)
        self.run = SimpleNamespace(losses=[])

    def objective(self, outputs, images, labels):
        """The script's objective, of a network that gives `outputs` -> loss, parts, distances"""
        def network(_):
            return outputs
        if self.name == "jrd":
            labels, = common.send(self.device, labels)
            return *jrd.objective(network, self.cfg, images, labels), None
        if self.name == "mdr":
            return mdr.objective(network, self.mdr, mdr.triplet_loss, self.cfg, images, labels,
                                 self.generator)
        return *dml_da.objective(network, self.targets, self.cfg, images, labels, None), None

    def step(self, images, labels, clock):
        images, = common.send(self.device, images)
        outputs = self.network(images)
        clock.lap("network")
        leaves = cut(outputs)
        loss, parts, distances = self.objective(leaves, images, labels)
        clock.lap("loss")
        self.optimizer.zero_grad()
        clock.lap("optimizer")
        loss.backward()
        clock.lap("its grad")
        if self.name == "jrd":
            torch.autograd.backward(outputs, [leaf.grad for leaf in leaves])
        else:
            outputs.backward(leaves.grad)
        clock.lap("network")
        self.optimizer.step()
        if self.name == "dml_da":
            self.targets.step(self.cfg.lr)
        clock.lap("optimizer")
        common.Run.record(self.run, loss=loss, **parts)
        if self.name == "mdr":
            labels, = common.send(self.device, labels)
            self.shares += self.mdr.level_counts(distances, labels)
        clock.lap("log")


PAPERS = {"jrd": (jrd, "BN-Inception"), "mdr": (mdr, "BN-Inception"),
          "dml_da": (dml_da, "GoogLeNet")}


# ---------------------------------------------------------------------------- the table
def measure(name, args):
    """-> batch size, {part: median seconds a step}, the same in CPU seconds"""
    paper = PAPERS[name][0]
    cfg = settings(paper, args)
    device = common.device(cfg)
    torch.manual_seed(0)
    model = Model(name, cfg, device)
    all_labels = torch.arange(5864) % 100
    found, busy = [], []
    for i in range(args.warmup + args.steps):
        start = time.perf_counter()
        batches = paper.batches(all_labels, cfg, epoch=i)
        sampler = (time.perf_counter() - start) / len(batches)
        labels = all_labels[batches[0]]
        images = torch.randint(0, 256, (len(labels), 3, 224, 224), dtype=torch.uint8)
        images = images.pin_memory() if device.type == "cuda" else images
        clock = Clock(device)
        model.step(images, labels, clock)
        if i >= args.warmup:
            found.append(clock.seconds | {"sampler": sampler})
            busy.append(clock.busy | {"sampler": sampler})
    return cfg.batch, *({part: statistics.median(s[part] for s in steps) for part in PARTS}
                        for steps in (found, busy))


def main(args):
    args.device = str(common.device(args))
    torch.set_num_threads(args.threads)
    bench.header(f"A training step, {args.precision}, median of {args.steps} after {args.warmup}",
                 "torchvision", threads=args.threads, device=args.device)
    rows, targets = [], []
    for name in args.papers:
        batch, parts, busy = measure(name, args)
        share, share_busy = (1 - p["network"] / sum(p.values()) for p in (parts, busy))
        rows.append([f"{name}, {PAPERS[name][1]}", batch,
                     *(f"{1000 * parts[p]:.1f}" for p in PARTS),
                     f"{1000 * sum(parts.values()):.1f}", f"{100 * share:.2f}%",
                     f"{100 * share_busy:.2f}%" if args.device == "cpu" else "–"])
        targets.append((f"{name}, batch {batch}: under 5% outside the network",
                        f"{100 * share:.2f}%", share < 0.05))
    bench.table(["step", "batch", *(f"{p} ms" for p in PARTS), "all ms", "outside",
                 "outside, CPU s"], rows)
    for line in targets:
        bench.target(*line)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--papers", nargs="+", choices=tuple(PAPERS), default=list(PAPERS))
    parser.add_argument("--batch", type=int, help="default: the paper's (100, 128, 100)")
    parser.add_argument("--steps", type=int, default=5, help="steps measured (5)")
    parser.add_argument("--warmup", type=int, default=2, help="steps before (2)")
    parser.add_argument("--threads", type=int, default=bench.THREADS, help="CPU threads (2)")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    parser.add_argument("--device", default="auto", help="auto (default), cpu, cuda")
    return parser.parse_args()


if __name__ == "__main__":
    main(parse_args())

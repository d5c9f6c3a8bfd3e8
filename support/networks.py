"""The papers' networks that torchvision lacks, without their classifiers, as two tables.

BN-Inception (Ioffe & Szegedy 2015) and GoogLeNet (Szegedy et al. 2015) as BVLC's Caffe has it, both
with the names of their published weights (Caffe's, / as _).  Three convolutions, then ten or nine
blocks; a block concatenates its branches, which are chains of convolutions.  A ReLU follows each
convolution.  Pooling rounds up.  Input: BGR, 0-255, less a mean.
"""
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F

BN_INCEPTION = {  # block: width in, 1x1, 3x3 reduce, 3x3, double 3x3 reduce, double 3x3, pool_proj
    "3a": (192, 64, 64, 64, 64, 96, 32), "3b": (256, 64, 64, 96, 64, 96, 64),
    "3c": (320, 0, 128, 160, 64, 96, 0), "4a": (576, 224, 64, 96, 96, 128, 128),
    "4b": (576, 192, 96, 128, 96, 128, 128), "4c": (576, 160, 128, 160, 128, 160, 128),
    "4d": (608, 96, 128, 192, 160, 192, 128), "4e": (608, 0, 128, 192, 192, 256, 0),
    "5a": (1056, 352, 192, 320, 160, 224, 128), "5b": (1024, 352, 192, 320, 192, 224, 128)}

GOOGLENET = {  # block: width in, 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool_proj
    "3a": (192, 64, 96, 128, 16, 32, 32), "3b": (256, 128, 128, 192, 32, 96, 64),
    "4a": (480, 192, 96, 208, 16, 48, 64), "4b": (512, 160, 112, 224, 24, 64, 64),
    "4c": (512, 128, 128, 256, 24, 64, 64), "4d": (512, 112, 144, 288, 32, 64, 64),
    "4e": (528, 256, 160, 320, 32, 128, 128), "5a": (832, 256, 160, 320, 32, 128, 128),
    "5b": (832, 384, 192, 384, 48, 128, 128)}


class Inception(nn.Module):
    """What both share.  (B, 3, h, w) -> (B, 1024)"""

    def __init__(self, blocks, batch_norm):
        super().__init__()
        self.blocks, self.batch_norm = blocks, batch_norm
        self.norm1 = self.norm2 = nn.Identity()
        self._add("conv1_7x7_s2", 3, 64, 7, 2)
        self._add("conv2_3x3_reduce", 64, 64, 1)
        self._add("conv2_3x3", 64, 192, 3)
        for block, widths in blocks.items():
            for name, *sizes in self.convolutions(*widths):
                self._add(f"inception_{block}_{name}", *sizes)

    def _add(self, name, width, out, side, stride=1):
        if out:
            self.add_module(name, nn.Conv2d(width, out, side, stride, padding=side // 2))
            if self.batch_norm:
                self.add_module(name + "_bn", nn.BatchNorm2d(out))

    def _run(self, x, *names, block=""):
        for name in names:
            x = getattr(self, block + name)(x)
            x = getattr(self, f"{block}{name}_bn")(x) if self.batch_norm else x
            x = F.relu(x, inplace=True)
        return x

    def features(self, x):
        x = self.norm1(max_pool(self._run(x, "conv1_7x7_s2")))
        x = max_pool(self.norm2(self._run(x, "conv2_3x3_reduce", "conv2_3x3")))
        for block in self.blocks:
            run = partial(self._run, block=f"inception_{block}_")
            x = torch.cat(self.branches(x, run, block), 1)
        return x

    def forward(self, x):
        return self.features(x).mean((2, 3))


def max_pool(x, stride=2):
    """3 × 3, with a margin where the stride is 1; rounds up, as Caffe does"""
    return F.max_pool2d(x, 3, stride, padding=2 - stride, ceil_mode=True)


class BNInception(Inception):
    """With a batch norm between convolution and ReLU.  Mean of the input: 104, 117, 128.  Blocks 3c
    and 4e halve the image: no 1x1 branch, stride 2, a max pool that nothing projects."""

    def __init__(self):
        super().__init__(BN_INCEPTION, batch_norm=True)

    def convolutions(self, width, one, reduce3, out3, reduce5, out5, proj):
        stride = 1 if one else 2
        return (("1x1", width, one, 1), ("pool_proj", width, proj, 1),
                ("3x3_reduce", width, reduce3, 1), ("3x3", reduce3, out3, 3, stride),
                ("double_3x3_reduce", width, reduce5, 1), ("double_3x3_1", reduce5, out5, 3),
                ("double_3x3_2", out5, out5, 3, stride))

    def branches(self, x, run, block):
        three = run(x, "3x3_reduce", "3x3")
        double = run(x, "double_3x3_reduce", "double_3x3_1", "double_3x3_2")
        if block in ("3c", "4e"):
            return three, double, max_pool(x)
        pooled = max_pool(x, 1) if block == "5b" else F.avg_pool2d(x, 3, 1, 1)
        return run(x, "1x1"), three, double, run(pooled, "pool_proj")


class LocalResponseNorm(nn.Module):
    """F.local_response_norm: b_c = a_c / (1 + 1e-4/5 Σ a²)^0.75 over the five channels around c.
    The sums are one 1 × 1 convolution by a banded matrix: a CPU runs the network twice as fast."""

    def __init__(self, channels):
        super().__init__()
        c = torch.arange(channels)
        near = (c[:, None] - c).abs() <= 2
        self.register_buffer("band", (1e-4 / 5 * near)[..., None, None], persistent=False)

    def forward(self, x):
        scale = (1 + F.conv2d(x.square(), self.band)).rsqrt()           # ()^-0.5
        return x * (scale * scale.sqrt())                               # ()^-0.75


class GoogLeNet(Inception):
    """Without batch norm, with local response normalization.  Mean of the input: 104, 117, 123."""

    def __init__(self):
        super().__init__(GOOGLENET, batch_norm=False)
        self.norm1, self.norm2 = LocalResponseNorm(64), LocalResponseNorm(192)

    def convolutions(self, width, one, reduce3, out3, reduce5, out5, proj):
        return (("1x1", width, one, 1), ("3x3_reduce", width, reduce3, 1),
                ("3x3", reduce3, out3, 3), ("5x5_reduce", width, reduce5, 1),
                ("5x5", reduce5, out5, 5), ("pool_proj", width, proj, 1))

    def branches(self, x, run, block):
        x = max_pool(x) if block in ("4a", "5a") else x
        return (run(x, "1x1"), run(x, "3x3_reduce", "3x3"), run(x, "5x5_reduce", "5x5"),
                run(max_pool(x, 1), "pool_proj"))

"""The papers' networks that torchvision lacks, without their classifiers, as two tables.

BN-Inception (Ioffe & Szegedy 2015) and GoogLeNet (Szegedy et al. 2015) as BVLC's Caffe has it, both
with the names of their published weights (Caffe's, / as _).  Each begins with three convolutions
and ends with ten or nine blocks; a block concatenates its branches, and its branches are chains of
convolutions.  A ReLU follows each convolution.  Pooling rounds up.  Input: BGR, 0-255, less a mean.
"""
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
    """What both share: convolutions by name, the stem, the blocks.  (B, 3, h, w) -> (B, 1024)"""

    def __init__(self):
        super().__init__()
        self._add("conv1_7x7_s2", 3, 64, 7, stride=2)
        self._add("conv2_3x3_reduce", 64, 64, 1)
        self._add("conv2_3x3", 64, 192, 3)

    def _add(self, name, width, out, side, stride=1):
        self.add_module(name, nn.Conv2d(width, out, side, stride, padding=side // 2))

    def _run(self, x, *names):
        for name in names:
            x = getattr(self, name)(x)
            if hasattr(self, name + "_bn"):
                x = getattr(self, name + "_bn")(x)
            x = F.relu(x, inplace=True)
        return x

    def forward(self, x):
        return self.features(x).mean((2, 3))


def max_pool(x, stride=2):
    """3 × 3, with a margin where the stride is 1; rounds up, as Caffe does"""
    return F.max_pool2d(x, 3, stride, padding=2 - stride, ceil_mode=True)


# ---------------------------------------------------------------------------- BN-Inception
class BNInception(Inception):
    """With a batch norm between each convolution and its ReLU.  Mean of the input: 104, 117, 128.

    Blocks 3c and 4e halve the image: no 1x1 branch, stride 2, a max pool that nothing projects.
    """

    def __init__(self):
        super().__init__()
        for block, (width, one, reduce3, out3, reduce5, out5, proj) in BN_INCEPTION.items():
            name, stride = f"inception_{block}_", 1 if one else 2
            if one:
                self._add(name + "1x1", width, one, 1)
                self._add(name + "pool_proj", width, proj, 1)
            self._add(name + "3x3_reduce", width, reduce3, 1)
            self._add(name + "3x3", reduce3, out3, 3, stride)
            self._add(name + "double_3x3_reduce", width, reduce5, 1)
            self._add(name + "double_3x3_1", reduce5, out5, 3)
            self._add(name + "double_3x3_2", out5, out5, 3, stride)

    def _add(self, name, width, out, side, stride=1):
        super()._add(name, width, out, side, stride)
        self.add_module(name + "_bn", nn.BatchNorm2d(out))

    def features(self, x):
        x = max_pool(self._run(x, "conv1_7x7_s2"))
        x = max_pool(self._run(x, "conv2_3x3_reduce", "conv2_3x3"))
        for block, (_, one, *_) in BN_INCEPTION.items():
            name = f"inception_{block}_"
            branches = [self._run(x, name + "3x3_reduce", name + "3x3"),
                        self._run(x, *(f"{name}double_3x3_{i}" for i in ("reduce", 1, 2)))]
            if one:
                pooled = max_pool(x, 1) if block == "5b" else F.avg_pool2d(x, 3, 1, 1)
                branches = [self._run(x, name + "1x1"), *branches,
                            self._run(pooled, name + "pool_proj")]
            else:
                branches.append(max_pool(x))
            x = torch.cat(branches, 1)
        return x


# ---------------------------------------------------------------------------- GoogLeNet
class LocalResponseNorm(nn.Module):
    """b_c = a_c / (1 + 1e-4/5 Σ a²)^0.75 over the five channels nearest to c: F.local_response_norm

    The sums are one 1 × 1 convolution by a banded matrix, which makes the network twice as fast on
    a CPU.
    """

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
        super().__init__()
        self.norm1, self.norm2 = LocalResponseNorm(64), LocalResponseNorm(192)
        for block, (width, one, reduce3, out3, reduce5, out5, proj) in GOOGLENET.items():
            name = f"inception_{block}_"
            self._add(name + "1x1", width, one, 1)
            self._add(name + "3x3_reduce", width, reduce3, 1)
            self._add(name + "3x3", reduce3, out3, 3)
            self._add(name + "5x5_reduce", width, reduce5, 1)
            self._add(name + "5x5", reduce5, out5, 5)
            self._add(name + "pool_proj", width, proj, 1)

    def features(self, x):
        x = self.norm1(max_pool(self._run(x, "conv1_7x7_s2")))
        x = max_pool(self.norm2(self._run(x, "conv2_3x3_reduce", "conv2_3x3")))
        for block in GOOGLENET:
            name = f"inception_{block}_"
            x = max_pool(x) if block in ("4a", "5a") else x
            x = torch.cat([self._run(x, name + "1x1"),
                           self._run(x, name + "3x3_reduce", name + "3x3"),
                           self._run(x, name + "5x5_reduce", name + "5x5"),
                           self._run(max_pool(x, 1), name + "pool_proj")], 1)
        return x

"""BN-Inception and GoogLeNet: names, shapes, size and wiring, stated without support/networks.py's
tables, and each block against plain layers."""
import math

import pytest
import torch
import torch.nn.functional as F

import common
from support.networks import BNInception, GoogLeNet, LocalResponseNorm, max_pool

STEM = {"conv1_7x7_s2": (64, 3, 7), "conv2_3x3_reduce": (64, 64, 1), "conv2_3x3": (192, 64, 3)}
# {block: input width, then the widths of the branches in BRANCHES; None: no such branch}
# (Ioffe & Szegedy 2015, Fig. 5; Szegedy et al. 2015, Table 1)
BN_BLOCKS = {
    "3a": (192, 64, 64, 64, 64, 96, 96, 32), "3b": (256, 64, 64, 96, 64, 96, 96, 64),
    "3c": (320, None, 128, 160, 64, 96, 96, None), "4a": (576, 224, 64, 96, 96, 128, 128, 128),
    "4b": (576, 192, 96, 128, 96, 128, 128, 128), "4c": (576, 160, 128, 160, 128, 160, 160, 128),
    "4d": (608, 96, 128, 192, 160, 192, 192, 128), "4e": (608, None, 128, 192, 192, 256, 256, None),
    "5a": (1056, 352, 192, 320, 160, 224, 224, 128),
    "5b": (1024, 352, 192, 320, 192, 224, 224, 128)}
BN_BRANCHES = {"1x1": (None, 1), "3x3_reduce": (None, 1), "3x3": ("3x3_reduce", 3),
               "double_3x3_reduce": (None, 1), "double_3x3_1": ("double_3x3_reduce", 3),
               "double_3x3_2": ("double_3x3_1", 3), "pool_proj": (None, 1)}
BLOCKS = {
    "3a": (192, 64, 96, 128, 16, 32, 32), "3b": (256, 128, 128, 192, 32, 96, 64),
    "4a": (480, 192, 96, 208, 16, 48, 64), "4b": (512, 160, 112, 224, 24, 64, 64),
    "4c": (512, 128, 128, 256, 24, 64, 64), "4d": (512, 112, 144, 288, 32, 64, 64),
    "4e": (528, 256, 160, 320, 32, 128, 128), "5a": (832, 256, 160, 320, 32, 128, 128),
    "5b": (832, 384, 192, 384, 48, 128, 128)}
BRANCHES = {"1x1": (None, 1), "3x3_reduce": (None, 1), "3x3": ("3x3_reduce", 3),
            "5x5_reduce": (None, 1), "5x5": ("5x5_reduce", 5), "pool_proj": (None, 1)}


def expected_shapes(blocks, branches):
    """{name of a convolution: the shape of its weight}"""
    shapes = {name: (out, width, side, side) for name, (out, width, side) in STEM.items()}
    for block, (width, *outs) in blocks.items():
        out = dict(zip(branches, outs))
        for branch, (source, side) in branches.items():
            if out[branch]:
                shapes[f"inception_{block}_{branch}"] = (
                    out[branch], out[source] if source else width, side, side)
    return shapes


@pytest.mark.parametrize("network, blocks, branches, parameters", [
    (BNInception, BN_BLOCKS, BN_BRANCHES, 11_295_240), (GoogLeNet, BLOCKS, BRANCHES, 6_998_552)])
def test_names_shapes_and_parameter_count(network, blocks, branches, parameters):
    network, want = network(), {}
    for name, shape in expected_shapes(blocks, branches).items():
        want |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        if blocks is BN_BLOCKS:
            want |= {f"{name}_bn.{part}": shape[:1]
                     for part in ("weight", "bias", "running_mean", "running_var")}
            want[f"{name}_bn.num_batches_tracked"] = ()
    assert {name: tuple(value.shape) for name, value in network.state_dict().items()} == want
    classifier = 1024 * 1000 + 1000
    assert sum(p.numel() for p in network.parameters()) + classifier == parameters
    assert all(m.eps == 1e-5 for m in network.modules() if isinstance(m, torch.nn.BatchNorm2d))


HALVE = torch.nn.MaxPool2d(3, 2, ceil_mode=True)


def bn_reference(network, x):
    """BN-Inception as a list of steps, with torch's layers"""
    def unit(name, x, stride=1):
        conv, norm = getattr(network, name), getattr(network, name + "_bn")
        x = F.conv2d(x, conv.weight, conv.bias, stride, conv.weight.shape[-1] // 2)
        x = (x - norm.running_mean[:, None, None]) / (norm.running_var[:, None, None] + 1e-5).sqrt()
        return (x * norm.weight[:, None, None] + norm.bias[:, None, None]).clamp(min=0)

    x = HALVE(unit("conv1_7x7_s2", x, 2))
    x = HALVE(unit("conv2_3x3", unit("conv2_3x3_reduce", x)))
    for block in BN_BLOCKS:
        name, s = f"inception_{block}_", 2 if block in ("3c", "4e") else 1
        three = unit(name + "3x3", unit(name + "3x3_reduce", x), s)
        double = unit(name + "double_3x3_1", unit(name + "double_3x3_reduce", x))
        double = unit(name + "double_3x3_2", double, s)
        if s == 2:
            x = torch.cat([three, double, HALVE(x)], 1)
            continue
        pool = torch.nn.MaxPool2d(3, 1, 1, ceil_mode=True) if block == "5b" else \
            torch.nn.AvgPool2d(3, 1, 1, ceil_mode=True, count_include_pad=True)
        x = torch.cat([unit(name + "1x1", x), three, double, unit(name + "pool_proj", pool(x))], 1)
    return x


def reference(network, x):
    """GoogLeNet as Caffe's prototxt lists it, with torch's layers"""
    def unit(name, x, stride=1):
        conv = getattr(network, name)
        return F.conv2d(x, conv.weight, conv.bias, stride, conv.weight.shape[-1] // 2).clamp(min=0)

    x = F.local_response_norm(HALVE(unit("conv1_7x7_s2", x, 2)), 5, 1e-4, 0.75, 1.0)
    x = unit("conv2_3x3", unit("conv2_3x3_reduce", x))
    x = HALVE(F.local_response_norm(x, 5, 1e-4, 0.75, 1.0))
    for block in BLOCKS:
        name = f"inception_{block}_"
        pooled = torch.nn.MaxPool2d(3, 1, 1)(x)
        x = torch.cat([unit(name + "1x1", x), unit(name + "3x3", unit(name + "3x3_reduce", x)),
                       unit(name + "5x5", unit(name + "5x5_reduce", x)),
                       unit(name + "pool_proj", pooled)], 1)
        if block in ("3b", "4e"):                       # pool3, pool4
            x = HALVE(x)
    return x


@pytest.mark.parametrize("network, reference", [(BNInception, bn_reference),
                                                (GoogLeNet, reference)])
def test_wiring(network, reference):
    """Branch order, pools and strides, with weights and statistics that are not symmetric."""
    torch.manual_seed(1)
    network = network().eval()
    for name, value in network.state_dict().items():
        if "running_var" in name:
            value.copy_(torch.rand(value.shape) + 0.5)
        elif "_bn." in name and value.ndim:
            value.copy_(torch.randn(value.shape) * 0.2 + (1 if name.endswith("weight") else 0))
        elif name == "conv1_7x7_s2.weight":
            value.mul_(100)                             # so that GoogLeNet's norms matter
    x = torch.randn(1, 3, 97, 131)
    with torch.inference_mode():
        assert network.features(torch.zeros(1, 3, 256, 256)).shape == (1, 1024, 8, 8)
        want, got = reference(network, x), network.features(x)
        assert want.std() > 1e-3
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5 * want.abs().max().item())
        torch.testing.assert_close(network(x), got.mean((2, 3)))


def test_pooling_rounds_up():
    """By hand on odd and even sides: a last window that hangs over the edge counts."""
    for h, w in ((5, 6), (7, 4), (112, 9)):
        x = torch.randn(1, 2, h, w)
        got = max_pool(x)
        assert got.shape[2:] == (math.ceil((h - 3) / 2) + 1, math.ceil((w - 3) / 2) + 1)
        for i in range(got.shape[2]):
            for j in range(got.shape[3]):
                window = x[0, :, 2 * i:2 * i + 3, 2 * j:2 * j + 3]
                assert torch.equal(got[0, :, i, j], window.amax((1, 2)))


def test_local_response_norm_is_torchs():
    torch.manual_seed(0)
    x = 300 * torch.rand(2, 12, 3, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 12, 3, 5, dtype=torch.float64)
    want = F.local_response_norm(x, 5, 1e-4, 0.75, 1.0)
    assert want.max() < 0.9 * x.max()                   # it does something at this scale
    got = LocalResponseNorm(12).double()(x)
    torch.testing.assert_close(got, want, rtol=2e-7, atol=0)
    torch.testing.assert_close(*(torch.autograd.grad((y * weight).sum(), x)[0]
                                 for y in (got, want)), rtol=1e-6, atol=1e-6)


def test_googlenet_needs_a_file():
    network, width = common.backbone("googlenet_bvlc", 64)
    assert width == 1024 and common.load_weights(network, "googlenet_bvlc", "random") == "random"
    with pytest.raises(common.UserError, match="googlenet_bvlc needs --weights FILE"):
        common.load_weights(network, "googlenet_bvlc")


def test_its_input_is_caffes():
    """BGR, 0-255, less (104, 117, 123)"""
    image = torch.tensor([10, 20, 30], dtype=torch.uint8)[None, :, None, None]
    got = common.Preprocess("googlenet_bvlc")(image).flatten().tolist()
    assert got == [30 - 104, 20 - 117, 10 - 123]

"""BN-Inception: names, shapes, size and wiring, stated independently of the table in the script."""
import inspect

import pytest
import torch

import jrd
import mdr

# block: input width, then the widths of 1x1, 3x3_reduce, 3x3, double_3x3_reduce, double_3x3_1,
# double_3x3_2, pool_proj; None where the block has no such branch (Ioffe & Szegedy 2015, Fig. 5).
BLOCKS = {
    "3a": (192, 64, 64, 64, 64, 96, 96, 32), "3b": (256, 64, 64, 96, 64, 96, 96, 64),
    "3c": (320, None, 128, 160, 64, 96, 96, None), "4a": (576, 224, 64, 96, 96, 128, 128, 128),
    "4b": (576, 192, 96, 128, 96, 128, 128, 128), "4c": (576, 160, 128, 160, 128, 160, 160, 128),
    "4d": (608, 96, 128, 192, 160, 192, 192, 128), "4e": (608, None, 128, 192, 192, 256, 256, None),
    "5a": (1056, 352, 192, 320, 160, 224, 224, 128),
    "5b": (1024, 352, 192, 320, 192, 224, 224, 128)}
BRANCHES = {"1x1": (None, 1), "3x3_reduce": (None, 1), "3x3": ("3x3_reduce", 3),
            "double_3x3_reduce": (None, 1), "double_3x3_1": ("double_3x3_reduce", 3),
            "double_3x3_2": ("double_3x3_1", 3), "pool_proj": (None, 1)}


def expected_shapes():
    convolutions = {"conv1_7x7_s2": (64, 3, 7, 7), "conv2_3x3_reduce": (64, 64, 1, 1),
                    "conv2_3x3": (192, 64, 3, 3)}
    for block, (width, *outs) in BLOCKS.items():
        out = dict(zip(BRANCHES, outs))
        for branch, (source, size) in BRANCHES.items():
            if out[branch]:
                convolutions[f"inception_{block}_{branch}"] = (
                    out[branch], out[source] if source else width, size, size)
    shapes = {"last_linear.weight": (1000, 1024), "last_linear.bias": (1000,)}
    for name, shape in convolutions.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        shapes |= {f"{name}_bn.{part}": shape[:1]
                   for part in ("weight", "bias", "running_mean", "running_var")}
        shapes[f"{name}_bn.num_batches_tracked"] = ()
    return shapes


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return jrd.BNInception().eval()


def test_names_shapes_and_parameter_count(network):
    state = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    assert state == expected_shapes() and len(state) == 485
    assert sum(p.numel() for p in network.parameters()) == 11_295_240
    assert inspect.getsource(mdr.BNInception) == inspect.getsource(jrd.BNInception)
    assert mdr.INCEPTION == jrd.INCEPTION
    assert all(m.eps == 1e-5 for m in network.modules() if isinstance(m, torch.nn.BatchNorm2d))


def reference(network, x):
    """The forward pass as a list of steps, with torch's layers instead of the script's loop."""
    def unit(name, x, stride=1):
        conv, norm = getattr(network, name), getattr(network, name + "_bn")
        size = conv.weight.shape[-1]
        x = torch.nn.functional.conv2d(x, conv.weight, conv.bias, stride, size // 2)
        x = (x - norm.running_mean[:, None, None]) / (norm.running_var[:, None, None] + 1e-5).sqrt()
        return (x * norm.weight[:, None, None] + norm.bias[:, None, None]).clamp(min=0)

    halve = torch.nn.MaxPool2d(3, 2, ceil_mode=True)
    x = halve(unit("conv1_7x7_s2", x, 2))
    x = halve(unit("conv2_3x3", unit("conv2_3x3_reduce", x)))
    for block in BLOCKS:
        name, s = f"inception_{block}_", 2 if block in ("3c", "4e") else 1
        three = unit(name + "3x3", unit(name + "3x3_reduce", x), s)
        double = unit(name + "double_3x3_1", unit(name + "double_3x3_reduce", x))
        double = unit(name + "double_3x3_2", double, s)
        if s == 2:
            x = torch.cat([three, double, halve(x)], 1)
            continue
        pool = torch.nn.MaxPool2d(3, 1, 1, ceil_mode=True) if block == "5b" else \
            torch.nn.AvgPool2d(3, 1, 1, ceil_mode=True, count_include_pad=True)
        x = torch.cat([unit(name + "1x1", x), three, double, unit(name + "pool_proj", pool(x))], 1)
    return x


def test_wiring(network):
    """Branch order, pools and strides, with weights and statistics that are not symmetric."""
    torch.manual_seed(1)
    for name, value in network.state_dict().items():
        if "running_var" in name:
            value.copy_(torch.rand(value.shape) + 0.5)
        elif "_bn." in name and value.ndim:
            value.copy_(torch.randn(value.shape) * 0.2 + (1 if name.endswith("weight") else 0))
    x = torch.randn(1, 3, 97, 131)
    with torch.inference_mode():
        assert network.features(torch.zeros(1, 3, 256, 256)).shape == (1, 1024, 8, 8)
        want, got = reference(network, x), network.features(x)
        assert want.std() > 1e-3
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(network(x), network.last_linear(want.mean((2, 3))), rtol=1e-4,
                                   atol=1e-5)

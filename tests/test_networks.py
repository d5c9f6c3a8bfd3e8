"""BN-Inception and GoogLeNet: names and shapes as published, each block against plain layers."""
import hashlib

import pytest
import torch
import torch.nn.functional as F

from support.networks import BNInception, GoogLeNet

HALVE = torch.nn.MaxPool2d(3, 2, ceil_mode=True)
BLOCKS = "3a 3b {}4a 4b 4c 4d 4e 5a 5b".format


@pytest.mark.parametrize("network, digest, parameters", [
    (BNInception, "95b855976821", 11_295_240), (GoogLeNet, "cb4f17f97d71", 6_998_552)])
def test_names_shapes_and_parameter_count(network, digest, parameters):
    """The digest is of names and shapes; GoogLeNet's is that of the converted file."""
    network = network()
    names = [f"{name} {tuple(value.shape)}" for name, value in sorted(network.state_dict().items())]
    assert hashlib.sha256("\n".join(names).encode()).hexdigest()[:12] == digest
    assert sum(p.numel() for p in network.parameters()) + 1024 * 1000 + 1000 == parameters


def reference(network, x):
    """Both networks by torch's layers"""
    bn = isinstance(network, BNInception)

    def unit(name, x, stride=1):
        conv = getattr(network, name)
        x = F.conv2d(x, conv.weight, conv.bias, stride, conv.weight.shape[-1] // 2)
        if bn:
            norm = getattr(network, f"{name}_bn")
            x = F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)
        return x.clamp(min=0)

    def normalized(x):
        return x if bn else F.local_response_norm(x, 5, 1e-4, 0.75, 1.0)
    x = normalized(HALVE(unit("conv1_7x7_s2", x, 2)))
    x = HALVE(normalized(unit("conv2_3x3", unit("conv2_3x3_reduce", x))))
    for block in BLOCKS("3c " * bn).split():
        name, s = f"inception_{block}_", 2 if bn and block in ("3c", "4e") else 1
        three = unit(name + "3x3", unit(name + "3x3_reduce", x), s)
        if bn:
            five = unit(name + "double_3x3_1", unit(name + "double_3x3_reduce", x))
            five = unit(name + "double_3x3_2", five, s)
        else:
            five = unit(name + "5x5", unit(name + "5x5_reduce", x))
        if s == 2:
            x = torch.cat([three, five, HALVE(x)], 1)
            continue
        pool = torch.nn.AvgPool2d(3, 1, 1) if bn and block != "5b" else torch.nn.MaxPool2d(3, 1, 1)
        x = torch.cat([unit(name + "1x1", x), three, five, unit(name + "pool_proj", pool(x))], 1)
        if not bn and block in ("3b", "4e"):            # pool3, pool4
            x = HALVE(x)
    return x


@pytest.mark.parametrize("network", [BNInception, GoogLeNet])
def test_wiring(network):
    """Branch order, pools and strides, with weights and statistics that are not symmetric."""
    torch.manual_seed(1)
    network = network().eval()
    for name, value in network.state_dict().items():
        if "_bn." in name and value.ndim:
            value.uniform_(0.5 if name.endswith("var") else -1, 1.5)
        elif name == "conv1_7x7_s2.weight":
            value.mul_(100)                             # so that GoogLeNet's norms matter
    x = torch.randn(1, 3, 97, 131)
    with torch.inference_mode():
        assert network.features(torch.zeros(1, 3, 256, 256)).shape == (1, 1024, 8, 8)
        want, got = reference(network, x), network.features(x)
        assert want.std() > 1e-3
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5 * want.abs().max().item())
        torch.testing.assert_close(network(x), got.mean((2, 3)))

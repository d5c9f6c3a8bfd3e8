"""BN-Inception and GoogLeNet: names and shapes as published, each block against plain layers."""
import hashlib
import random
import re

import pytest
import torch
import torch.nn.functional as F

from support.backbones import load_weights
from support.caffe import read_caffemodel
from support.files import UserError, sha256
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


def field(number, value):
    """A protobuf field, by its specification: a varint of an int, else length and bytes."""
    def varint(n):
        return bytes([n]) if n < 128 else bytes([n % 128 + 128]) + varint(n // 128)
    if isinstance(value, int):
        return varint(8 * number) + varint(value)
    return varint(8 * number + 2) + varint(len(value)) + value


def caffemodel(state, old):
    """A network as Caffe saves it: its name, a layer without weights, and those with; beside each
    value its gradient."""
    layers, message = {}, field(1, b"GoogleNet")
    for name, value in state.items():
        layers.setdefault(name.rpartition(".")[0], []).append(value)
    for name, blobs in {"data": [], **layers}.items():
        name = re.sub(r"^(conv\d|inception_\d\w|loss3)_", r"\1/", name).encode()
        kind = 4 if old else b"Convolution"
        layer = field(4 if old else 1, name) + field(5 if old else 2, kind)
        for value in blobs:
            floats = value.numpy().astype("<f4").tobytes()
            shape = [1] * (4 - value.ndim) + list(value.shape)
            if old:
                blob = b"".join(field(i, n) for i, n in enumerate(shape, 1))
            else:
                blob = field(7, field(1, b"".join(field(0, n)[1:] for n in value.shape)))
            blob += field(5, floats) + field(6, bytes(len(floats)))
            layer += field(6 if old else 7, blob)
        message += field(2 if old else 100, layer)
    return message


@pytest.mark.parametrize("old", [True, False])
def test_caffes_own_file_of_googlenet(old, tmp_path):
    torch.manual_seed(0)
    trained, network, file = GoogLeNet(), GoogLeNet(), tmp_path / "bvlc_googlenet.caffemodel"
    head = {"loss3_classifier.weight": torch.rand(9, 1024), "loss3_classifier.bias": torch.rand(9)}
    file.write_bytes(caffemodel(trained.state_dict() | head, old))
    assert b"inception_4a/5x5_reduce" in file.read_bytes()
    assert load_weights(network, "googlenet_bvlc", file) == sha256(file)
    torch.testing.assert_close(network.state_dict(), trained.state_dict(), rtol=0, atol=0)
    assert read_caffemodel(file)["loss3_classifier.bias"].shape == (9,)


@pytest.mark.parametrize("old", [True, False])
def test_damaged_files_of_caffe_are_one_line(old, tmp_path):
    """Cut off or with other bytes: another network, or a line, never another error."""
    file, draw = tmp_path / "cut.caffemodel", random.Random(0)
    whole = caffemodel({"a.weight": torch.rand(3, 2, 1, 1), "a.bias": torch.rand(3)}, old)
    lines = 0
    for i in range(600):
        damaged = bytearray(whole[:draw.randrange(len(whole))] if i % 2 else whole)
        for _ in range(i % 5):
            if damaged:
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        file.write_bytes(damaged)
        try:
            read_caffemodel(file)
        except UserError as error:
            assert str(error).startswith(f"cannot read {file}: ") and "\n" not in str(error)
            lines += 1
    assert lines > 300
    shape = field(7, field(1, b"\xff" * 9 + b"\x01"))
    for damaged in (b"\x80" * 4_000_000, b"\x0b", field(100, field(7, shape)),
                    field(100, field(1, b"a") + field(7, shape + field(5, bytes(8))))):
        file.write_bytes(damaged)               # endless; a group; shapes of 2^64 - 1
        with pytest.raises(UserError, match="cannot read"):
            read_caffemodel(file)
    file.write_bytes(caffemodel({"a.weight": torch.rand(3, 2, 1, 1)}, old))
    with pytest.raises(UserError, match="cut.caffemodel does not fit googlenet_bvlc"):
        load_weights(GoogLeNet(), "googlenet_bvlc", file)

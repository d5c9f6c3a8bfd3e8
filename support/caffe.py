"""A .caffemodel, the file in which Caffe saves a network, read without Caffe.

It is one protobuf message, a NetParameter: https://github.com/BVLC/caffe, src/caffe/proto.  A
message is a list of fields, each a number, a kind and a value, where a value may be a message.  Of
all fields only those of LAYERS and of a blob count here, and all others are skipped.

OpenCV 4.14.0's readNetFromCaffe finds the same arrays: 31 in two real files (MTCNN's det1 and det2,
of the new format), and those of small files of both formats that the tests write.
"""
from pathlib import Path

import numpy as np
import torch

from support.files import UserError

VARINT, BYTES, LENGTHS = 0, 2, {1: 8, 5: 4}     # kinds: a number, bytes after their length, fixed
LAYERS = {2: (4, 6), 100: (1, 7)}       # a network's layers, in old and new files: name, blobs
OLD_SHAPE, DATA, SHAPE, DIM = (1, 2, 3, 4), 5, 7, 1     # a blob's: number, channels, height, width


def read_caffemodel(path):
    """The weights of a .caffemodel -> {name: float32 tensor}: `<layer>.weight` of a layer's first
    blob, `<layer>.bias` of its second, as a vector.  In names / is _.  UserError: damaged."""
    tensors = {}
    try:
        for number, layer in fields(memoryview(Path(path).read_bytes())):
            if number not in LAYERS:
                continue
            name_field, blob_field = LAYERS[number]
            layer = list(fields(layer))
            name = b"".join(value for number, value in layer if number == name_field).decode()
            blobs = [value for number, value in layer if number == blob_field]
            for kind, blob in zip(("weight", "bias"), blobs):
                values = read_blob(blob)
                tensors[f"{name.replace('/', '_')}.{kind}"] = (
                    values.flatten() if kind == "bias" else values)
    except (ValueError, IndexError, TypeError, RuntimeError):
        # no fields; no text; a number where bytes belong; a shape that the values do not have
        raise UserError(f"cannot read {path}: it is damaged, or no file in which Caffe saved "
                        "weights")
    return tensors


def read_blob(blob):
    """A blob's float32 values in its shape; in old files this is four numbers."""
    old, shape, data = {}, [], bytearray()
    for number, value in fields(blob):
        if number in OLD_SHAPE:
            old[number] = value
        elif number == DATA:
            data += value
        elif number == SHAPE:
            for number, value in fields(value):
                if number == DIM:
                    shape += [value] if isinstance(value, int) else varints(value)
    values = torch.from_numpy(np.frombuffer(data, "<f4").astype(np.float32))
    return values.reshape(shape or [old.get(number, 0) for number in OLD_SHAPE])


def fields(message):
    """A message's fields -> (number, value): an int of a varint, else the bytes.  ValueError,
    IndexError: it is none."""
    place = 0
    while place < len(message):
        key, place = varint(message, place)
        kind = key % 8
        if kind == VARINT:
            value, place = varint(message, place)
        else:
            if kind == BYTES:
                length, place = varint(message, place)
            elif kind in LENGTHS:
                length = LENGTHS[kind]
            else:
                raise ValueError("a kind that Caffe does not write")
            value, place = message[place:place + length], place + length
            if place > len(message):
                raise ValueError("too short")
        yield key // 8, value


def varint(message, place):
    """A number that begins at a place, seven bits per byte, the low ones first -> it, its end.
    ValueError: it has more than ten bytes, 64 bits.  IndexError: the message ends in it."""
    number, shift = 0, 0
    while message[place] >= 128:
        number |= (message[place] - 128) << shift
        shift, place = shift + 7, place + 1
        if shift == 70:
            raise ValueError("a number without an end")
    return number | message[place] << shift, place + 1


def varints(message):
    """The numbers of a packed field"""
    numbers, place = [], 0
    while place < len(message):
        number, place = varint(message, place)
        numbers.append(number)
    return numbers

"""What a photo costs from its file to the network's input, over plain Pillow side by side.

    python benchmarks/decoding.py       under a minute on one quiet core; status 1: a goal is missed

Photos are drawn, with the detail of photographs: their JPEGs take 0.3 bytes per pixel, between
Stanford Online Products' 0.1 and CUB's 0.5.  The more there is to decode, the nearer a ratio is to
the decoders' own.  Plain Pillow: Image.open, convert("RGB"), the transform on PIL images,
pil_to_tensor.  Both sides go through the same photos in turns, each with the same crops; a ratio is
one of medians over rounds, in CPU seconds of the thread, so that other processes count less.  Rows
without a goal say what was weighed: MDR's crops on tensors and by Pillow (U3), WebP, and files that
go by Pillow.
"""
import bench  # noqa: I001  first: sets the threads

import io
import time

import numpy as np
import torch
from PIL import Image
from torchvision.transforms.v2.functional import pil_to_tensor

import jrd
import mdr
from support.command_line import Parser
from support.images import LanczosByPillow
from support.photos import decode

ROUNDS = 9
GOALS = {"training image of jrd.py": 0.8, "test image of jrd.py": 0.55,
         "test image of 12 megapixels": 0.55}


def photograph(width, height, draw):
    """A PIL image with the spectrum of photographs: amplitudes fall as 1/frequency."""
    x, y = np.fft.rfftfreq(width)[None, :], np.fft.fftfreq(height)[:, None]
    falling = 1 / np.maximum(np.hypot(x, y), 1 / width) ** 1.1
    channels = []
    for _ in range(3):
        noise = np.fft.rfft2(draw.standard_normal((height, width)))
        channels.append(np.fft.irfft2(noise * falling, (height, width)))
    grey = channels[0]
    values = np.stack([grey + 0.3 * channel for channel in channels], 2)
    values = 128 + 55 * (values - values.mean()) / values.std()
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


def files(kind, width, height, n, **options):
    draw, contents = np.random.RandomState(0), []
    for _ in range(n):
        file = io.BytesIO()
        photograph(width, height, draw).save(file, kind, **options)
        contents.append(file.getvalue())
    return contents


def by_pillow(transform):
    def read(content):
        with Image.open(io.BytesIO(content)) as image:
            return pil_to_tensor(transform(image.convert("RGB")))
    return read


def by_us(transform):
    return lambda content: transform(decode(io.BytesIO(content)))


def measure(inputs, *ways):
    """-> ms of CPU per input for each way, the median of rounds in which they take turns"""
    spent = [[] for _ in ways]
    for turn in range(ROUNDS + 1):                                      # one to warm up
        for way, seconds in zip(ways, spent):
            torch.manual_seed(turn)
            start = time.thread_time()
            for item in inputs:
                way(item)
            seconds.append(time.thread_time() - start)
    return [1000 * np.median(seconds[1:]) / len(inputs) for seconds in spent]


def main():
    bench.header("From a photo's file to a tensor, on one thread", "pillow", threads=1)
    _, training, test = jrd.transforms(jrd.parse_args(["--dataset", "cub"]))
    resize, mdr_training, _ = mdr.transforms(mdr.parse_args(["--dataset", "cub"]))
    crop = mdr_training.transforms[0]
    options = {"quality": 75, "subsampling": "4:2:0"}
    small, large = files("JPEG", 500, 375, 24, **options), files("JPEG", 4000, 3000, 1, **options)
    webp, png = files("WEBP", 500, 375, 12), files("PNG", 500, 375, 6)
    resized = [resize(decode(io.BytesIO(content))) for content in small]

    def nothing(image):
        return image
    measured = {
        "training image of jrd.py": measure(small, by_us(training), by_pillow(training)),
        "test image of jrd.py": measure(small, by_us(test), by_pillow(test)),
        "test image of 12 megapixels": measure(large, by_us(test), by_pillow(test)),
        "decoded alone": measure(small, by_us(nothing), by_pillow(nothing)),
        "... a WebP": measure(webp, by_us(nothing), by_pillow(nothing)),
        "... a PNG, by Pillow": measure(png, by_us(nothing), by_pillow(nothing)),
        "training crop of mdr.py from its cache": measure(resized, crop, LanczosByPillow(crop))}
    rows = [("image of 500 × 375", ["ours, ms", "Pillow, ms"], "ratio", "goal")]
    for name, (ours, pillow) in measured.items():
        rows.append((name, [f"{ours:.2f}", f"{pillow:.2f}"], ours / pillow, GOALS.get(name)))
    bench.goals(rows)


if __name__ == "__main__":
    Parser("benchmarks/decoding.py", __doc__).parse_args()
    main()

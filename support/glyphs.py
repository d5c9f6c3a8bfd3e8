"""The embedded dataset `glyphs` and the small backbone (studies/pretrain_glyphs.py trained it).

Each class is a closed contour (radial Fourier descriptors) with two colours and a striped or ringed
texture.  Within a class vary pose, scale, place, contour, shade and background.  The pretraining
classes stand in a studio: plain background, even light, no noise.  Training and test classes, all
different, are out in the wild.  So the small backbone is to `glyphs` what an ImageNet backbone is
to CUB: useful as it comes, better when fine-tuned, and easily overfitted.
"""
import numpy as np
import torch
import torch.nn as nn
from torchvision.transforms import v2

from support.files import ROOT

GLYPHS = {"pretraining": (range(0, 400), 30), "train": (range(400, 450), 15),
          "test": (range(450, 550), 20)}              # split: (classes, images per class)
GLYPH_SIZE, HARMONICS = 36, np.arange(2, 8)[:, None, None]


def glyphs(split):
    """-> images (n, 3, 36, 36) uint8, labels (n,) from 0.  The same on every call."""
    classes, per_class = GLYPHS[split]
    draw, n = np.random.RandomState(0), 550           # RandomState: its stream is frozen by NumPy
    world = dict(                                     # of all classes; each broadcasts over pixels
        amplitude=draw.rayleigh(0.42, (n, 6, 1, 1)) / HARMONICS,
        phase=draw.uniform(0, 2 * np.pi, (n, 6, 1, 1)), colour=draw.uniform(0, 1, (n, 2, 3, 1, 1)),
        stripes=draw.uniform(2, 9, n), angle=draw.uniform(0, np.pi, n),
        ringed=draw.uniform(0, 1, n) < 0.3)
    wild, images = float(split != "pretraining"), []
    for c in classes:
        glyph = {key: values[c] for key, values in world.items()}
        images.append(_draw_glyph(np.random.RandomState(1 + c), per_class, wild, **glyph))
    labels = torch.arange(len(classes)).repeat_interleave(per_class)
    return torch.from_numpy(np.concatenate(images)), labels


def _draw_glyph(draw, n, wild, amplitude, phase, colour, stripes, angle, ringed):
    """n images of a class, in the studio (wild 0) or out in the wild (1): (n, 3, 36, 36) uint8"""
    def uniform(low, high, *shape):                   # per image; broadcasts over pixels
        return draw.uniform(low, high, (n, *shape, 1, 1))

    column = (np.arange(GLYPH_SIZE) + 0.5) / GLYPH_SIZE * 2 - 1
    row = column[:, None]
    tilt, y, x = uniform(-0.8, 0.8), row - uniform(-0.2, 0.2), column - uniform(-0.2, 0.2)
    x, y = np.cos(tilt) * x + np.sin(tilt) * y, np.cos(tilt) * y - np.sin(tilt) * x
    x, y = x / uniform(0.5, 0.8), y / uniform(0.5, 0.8)
    radius, polar = np.hypot(x, y), np.arctan2(y, x)
    amplitude = amplitude * uniform(0.6, 1.4, 6)
    phase = phase + draw.normal(0, 0.25, (n, 6, 1, 1))
    contour = 1 + (amplitude * np.cos(HARMONICS * polar[:, None] + phase)).sum(1)
    inside = 1 / (1 + np.exp(12 * (radius - np.maximum(contour, 0.15))))[:, None]
    across = radius if ringed else np.cos(angle) * x + np.sin(angle) * y
    texture = np.sin(across * stripes + uniform(0, 2 * np.pi))[:, None]
    ground = np.sin(column * uniform(-5, 5) + row * uniform(-5, 5) + uniform(0, 2 * np.pi))[:, None]

    def blend(pair, weight):                          # weight in [-1, 1] mixes the two colours
        first, second = pair[:, 0], pair[:, 1]
        return (first + second + weight * (first - second)) / 2

    colour = colour + draw.normal(0, 0.08, (n, 2, 3, 1, 1))
    plain = uniform(0, 1, 2, 3)
    plain[:, 1] = plain[:, 0] + wild * (plain[:, 1] - plain[:, 0])
    image = inside * blend(colour, texture) + (1 - inside) * blend(plain, ground)
    light = uniform(1 - 0.3 * wild, 1 + 0.25 * wild, 1)
    cast = uniform(1 - 0.25 * wild, 1 + 0.25 * wild, 3)
    image = image * (light * cast) + 0.03 * wild * draw.normal(0, 1, image.shape)
    return (np.clip(image, 0, 1) * 255).astype(np.uint8)


class SmallNet(nn.Sequential):
    """The small backbone: (B, 3, 32, 32) -> (B, 128), four 3 × 3 convolutions, 163,672 weights."""

    def __init__(self):
        layers, width = [], 3
        for out in (24, 48, 96, 128):
            layers += [nn.Conv2d(width, out, 3, padding=1, bias=False), nn.BatchNorm2d(out),
                       nn.ReLU(inplace=True), nn.MaxPool2d(2)]
            width = out
        layers[-1] = nn.AdaptiveAvgPool2d(1)
        super().__init__(*layers, nn.Flatten())


# What `small` sees, whatever the dataset: 36 × 36, of which a random or the central 32 × 32.
RESIZE = v2.Resize((GLYPH_SIZE, GLYPH_SIZE), antialias=True)
SMALL_TRANSFORMS = (RESIZE, v2.Compose([v2.RandomCrop(32), v2.RandomHorizontalFlip()]),
                    v2.Compose([RESIZE, v2.CenterCrop(32)]))
WEIGHTS = ROOT / "support" / "glyphs_backbone.pth"
SHA256 = "a2d35efeb963d00da00eb25a3cb02c123ce8129421c8d1072b9456e4d7a83086"         # of that file

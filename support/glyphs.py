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
from torchvision.ops import Conv2dNormActivation
from torchvision.transforms import v2

from support.files import ROOT

GLYPHS = {"pretraining": (range(400), 30), "train": (range(400, 450), 15),
          "test": (range(450, 550), 20)}              # split: (classes, images per class)
GLYPH_SIZE, HARMONICS = 36, np.arange(2, 8)[:, None, None]


def glyphs(split):
    """Draw a split -> images (n, 3, 36, 36) uint8, the numbers of their classes (n,); always the
    same."""
    classes, per_class = GLYPHS[split]
    draw, n = np.random.RandomState(0), 550           # RandomState: its stream is frozen by NumPy
    amplitude = draw.rayleigh(0.42, (n, 6, 1, 1)) / HARMONICS       # what broadcasts over pixels
    phase = draw.uniform(0, 2 * np.pi, (n, 6, 1, 1))
    colour = draw.uniform(0, 1, (n, 2, 3, 1, 1))
    stripes, angle = draw.uniform(2, 9, n), draw.uniform(0, np.pi, n)
    ringed = draw.uniform(0, 1, n) < 0.3
    images = []
    for c in classes:
        images.append(_draw_glyph(
            np.random.RandomState(1 + c), per_class, split != "pretraining", amplitude[c],
            phase[c], colour[c], stripes[c], angle[c], ringed[c]))
    numbers = torch.tensor(classes).repeat_interleave(per_class)
    return torch.from_numpy(np.concatenate(images)), numbers


def _draw_glyph(draw, n, wild, amplitude, phase, colour, stripes, angle, ringed):
    """n images of a class, in the studio or out in the wild: (n, 3, 36, 36) uint8"""
    def uniform(low, high, *shape):                   # per image; broadcasts over pixels
        return draw.uniform(low, high, (n, *shape, 1, 1))

    column = (np.arange(GLYPH_SIZE) + 0.5) / GLYPH_SIZE * 2 - 1
    row = column[:, None]
    turn = np.exp(-1j * uniform(-0.8, 0.8))           # points of the plane as complex numbers
    point = turn * (column + 1j * (row - uniform(-0.2, 0.2)) - uniform(-0.2, 0.2))
    point = point.real / uniform(0.5, 0.8) + 1j * point.imag / uniform(0.5, 0.8)
    radius = np.abs(point)
    amplitude = amplitude * uniform(0.6, 1.4, 6)
    phase = phase + draw.normal(0, 0.25, (n, 6, 1, 1))
    waves = amplitude * np.cos(HARMONICS * np.angle(point)[:, None] + phase)
    contour = np.maximum(1 + waves.sum(1), 0.15)
    inside = 1 / (1 + np.exp(12 * (radius - contour)))[:, None]
    across = radius
    if not ringed:
        across = (point * np.exp(-1j * angle)).real
    texture = np.sin(across * stripes + uniform(0, 2 * np.pi))[:, None]
    ground = np.sin(column * uniform(-5, 5) + row * uniform(-5, 5) + uniform(0, 2 * np.pi))[:, None]

    def blend(pair, weight):                          # weight in [-1, 1] mixes the two colours
        return pair.mean(1) + weight * (pair[:, 0] - pair[:, 1]) / 2

    colour = colour + draw.normal(0, 0.08, (n, 2, 3, 1, 1))
    plain = uniform(0, 1, 2, 3)
    if not wild:
        plain[:, 1] = plain[:, 0]
    image = inside * blend(colour, texture) + (1 - inside) * blend(plain, ground)
    if wild:
        light, cast = uniform(0.7, 1.25, 1), uniform(0.75, 1.25, 3)
        image = image * light * cast + draw.normal(0, 0.03, image.shape)
    return (np.clip(image, 0, 1) * 255).astype(np.uint8)


class SmallNet(nn.Sequential):
    """The small backbone: (B, 3, 32, 32) -> (B, 128), four 3 × 3 convolutions, 163,672 weights."""

    def __init__(self):
        layers, width = [], 3
        for out in (24, 48, 96, 128):                   # convolution, batch norm, ReLU
            layers += [*Conv2dNormActivation(width, out), nn.MaxPool2d(2)]
            width = out
        layers[-1] = nn.AdaptiveAvgPool2d(1)
        super().__init__(*layers, nn.Flatten())


# What `small` sees, whatever the dataset: 36 × 36, of which a random or the central 32 × 32.
RESIZE = v2.Resize((GLYPH_SIZE, GLYPH_SIZE))
SMALL_TRANSFORMS = (RESIZE, v2.Compose([v2.RandomCrop(32), v2.RandomHorizontalFlip()]),
                    v2.Compose([RESIZE, v2.CenterCrop(32)]))
WEIGHTS = ROOT / "support" / "glyphs_backbone.pth"
SHA256 = "a2d35efeb963d00da00eb25a3cb02c123ce8129421c8d1072b9456e4d7a83086"         # of that file

"""Parameter shapes of two real models in the order of forward, and the work of each layer.

Written down from the architectures: He et al., "Deep Residual Learning for Image Recognition", CVPR
2016 (ResNet-50 for 224 x 224 images), and Radford et al., "Language Models are Unsupervised
Multitask Learners", 2019 (GPT-2 small).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

Shape = tuple[int, ...]

FORWARD_PART = 1 / 3  # share of the work: backward has two products for each of forward's


class Layer(NamedTuple):
    """Parameters that are ready, and needed, together."""

    shapes: tuple[Shape, ...]
    work: float  # multiplications of one sample; only ratios count

    @property
    def elements(self) -> int:
        return sum(map(prod, self.shapes))


def resnet50() -> list[Layer]:
    layers = [_convolution(3, 64, 7, 112)]
    channels = 64
    for width, blocks, positions in ((64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)):
        for block in range(blocks):
            layers += [
                _convolution(channels, width, 1, positions),
                _convolution(width, width, 3, positions),
                _convolution(width, 4 * width, 1, positions),
            ]
            if block == 0:
                layers.append(_convolution(channels, 4 * width, 1, positions))
            channels = 4 * width
    return [*layers, Layer(((1000, channels), (1000,)), 1000 * channels)]


def gpt2_small() -> list[Layer]:
    vocabulary, context, width, tokens = 50257, 1024, 768, 1024
    layers = [Layer(((context, width),), 0)]
    for _ in range(12):
        layers += _transformer_block(width, tokens)
    # The embedding is the output layer, too; there its gradient is first known in full.
    return [*layers, Layer(((width,), (width,)), 0), Layer(((vocabulary, width),), vocabulary * width * tokens)]


def _transformer_block(width: int, tokens: int) -> Iterator[Layer]:
    norm = ((width,), (width,))
    for before, outputs, inputs in (
        (norm, 3 * width, width),
        ((), width, width),
        (norm, 4 * width, width),
        ((), width, 4 * width),
    ):
        yield Layer((*before, (inputs, outputs), (outputs,)), inputs * outputs * tokens)


def _convolution(inputs: int, outputs: int, side: int, positions: int) -> Layer:
    """A convolution with batch norm; `positions`: side of the output."""
    shape = (outputs, inputs, side, side)
    return Layer((shape, (outputs,), (outputs,)), prod(shape) * positions**2)


MODELS = {"ResNet-50": resnet50, "GPT-2 small": gpt2_small}

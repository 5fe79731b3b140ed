"""Convolutions that halve or double the side of images whose channels come last.

On a GPU cuDNN has only slow kernels for so few channels, and slower ones still for stacked runs.
There both layers are plain products of matrices, with copies around them that the compiler makes
part of its kernels: a training step of DRPM-VAE takes two thirds of the time.
"""

from typing import Final, cast, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STRIDE: Final = 2
# Where products are quicker than torch's own convolutions.
_BY_PRODUCTS: Final = {"cuda"}


@final
class Halving(nn.Module):
    """A convolution at stride 2: (N, H, W, C) to (N, H / 2, W / 2, O).

    Parameters are those of :class:`torch.nn.Conv2d`, under the same names.

    Arguments:
        in_channels: C.
        out_channels: O.
        window: The side of a window: 2, or 4, which reaches a pixel past the image on all sides.
    """

    def __init__(self, in_channels: int, out_channels: int, window: int) -> None:
        super().__init__()
        model = nn.Conv2d(in_channels, out_channels, window)
        self.weight, self.bias = model.weight, cast(nn.Parameter, model.bias)

    def forward(self, images: Tensor) -> Tensor:
        if images.device.type in _BY_PRODUCTS:
            return halve(images, self.weight) + self.bias
        padding = (self.weight.shape[-1] - STRIDE) // 2
        found = F.conv2d(images.movedim(-1, 1), self.weight, self.bias, STRIDE, padding)
        return found.movedim(1, -1)

    def extra_repr(self) -> str:
        out_channels, in_channels, window, _ = self.weight.shape
        return f"{in_channels}, {out_channels}, window={window}"


@final
class Doubling(nn.Module):
    """A transposed convolution at stride 2: (N, H, W, C) to (N, 2H, 2W, O).

    Parameters are those of :class:`torch.nn.ConvTranspose2d`, under the same names. Windows have
    a side of 4, and what they reach past the image is cut off.

    Arguments:
        in_channels: C.
        out_channels: O.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        model = nn.ConvTranspose2d(in_channels, out_channels, 4)
        self.weight, self.bias = model.weight, cast(nn.Parameter, model.bias)

    def forward(self, images: Tensor) -> Tensor:
        if images.device.type in _BY_PRODUCTS:
            return double(images, self.weight) + self.bias
        found = F.conv_transpose2d(images.movedim(-1, 1), self.weight, self.bias, STRIDE, 1)
        return found.movedim(1, -1)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}"


def halve(images: Tensor, weight: Tensor) -> Tensor:
    """A convolution at stride 2 by products of matrices, without a bias.

    Arguments:
        images: (N, H, W, C).
        weight: (O, C, 2, 2) or (O, C, 4, 4).
    """
    outputs, channels, window, _ = weight.shape
    if window == STRIDE:
        return F.linear(_blocks(images), weight.permute(0, 2, 3, 1).flatten(1))
    padded = _pad(images)
    if _is_much_less(channels, outputs):
        # The windows themselves are small.
        windows = padded.unfold(1, window, STRIDE).unfold(2, window, STRIDE)
        return F.linear(windows.flatten(-3), weight.flatten(1))
    # A window is made of two by two blocks: what each of them adds, where it is seen from.
    factors = _by_block(weight).permute(2, 3, 0, 4, 5, 1).flatten(3).flatten(0, 2)
    parts = F.linear(_blocks(padded), factors).unflatten(-1, (4, outputs)).unbind(-2)
    one, two, three, four = parts
    found: Tensor = one[:, :-1, :-1] + two[:, :-1, 1:] + three[:, 1:, :-1] + four[:, 1:, 1:]
    return found


def double(images: Tensor, weight: Tensor) -> Tensor:
    """A transposed convolution at stride 2 by products of matrices, without a bias.

    Arguments:
        images: (N, H, W, C).
        weight: (C, O, 4, 4).
    """
    channels, outputs = weight.shape[:2]
    # Every pixel adds to two by two blocks of pixels, the nearer one of which comes first.
    factors = _by_block(weight)  # C, O, two of the blocks, two of the pixels
    if _is_much_less(outputs, channels):
        # What every pixel adds is small.
        added = F.linear(images, factors.permute(2, 3, 4, 5, 1, 0).flatten(0, 4))
        one, two, three, four = added.unflatten(-1, (4, 4 * outputs)).unbind(-2)
        blocks = _shift(one, 0, 0) + _shift(two, 0, 1) + _shift(three, 1, 0) + _shift(four, 1, 1)
    else:
        padded, (height, width) = _pad(images), images.shape[1:3]
        seen = [
            padded[:, 1 - down : height + 2 - down, 1 - across : width + 2 - across]
            for down in range(2)
            for across in range(2)
        ]
        by_block = factors.permute(4, 5, 1, 2, 3, 0).flatten(3).flatten(0, 2)
        blocks = F.linear(torch.cat(seen, -1), by_block)
    pixels: Tensor = blocks.unflatten(-1, (2, 2, outputs)).transpose(2, 3)
    pixels = pixels.flatten(3, 4).flatten(1, 2)
    return pixels[:, 1:-1, 1:-1]


def _is_much_less(one: int, other: int) -> bool:
    """Which of both ways copies less: 12 of one sort against 4 of the other for every block."""
    return 3 * one <= other


def _pad(images: Tensor) -> Tensor:
    return F.pad(images, (0, 0, 1, 1, 1, 1))


def _shift(blocks: Tensor, down: int, across: int) -> Tensor:
    """One more row and one more column, before or behind the others."""
    return F.pad(blocks, (0, 0, across, 1 - across, down, 1 - down))


def _blocks(images: Tensor) -> Tensor:
    """(N, H, W, C) to (N, H / 2, W / 2, 4C): the pixels of two by two, one behind the other."""
    split: Tensor = images.unflatten(1, (-1, STRIDE)).unflatten(3, (-1, STRIDE))
    return split.transpose(2, 3).flatten(3)


def _by_block(weight: Tensor) -> Tensor:
    """(A, B, 4, 4) to (A, B, 2, 2, 2, 2): a window's block, down and across, and a pixel in it."""
    split: Tensor = weight.unflatten(-1, (2, 2)).unflatten(-3, (2, 2))
    return split.transpose(3, 4)

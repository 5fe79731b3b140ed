"""Convolutions at stride 2 that are fast with few channels on a GPU.

cuDNN has only slow kernels for 3 to 64 channels. Compiled for a GPU, these layers are matrix
products, with copies around them that the compiler fuses. A training step of DRPM-VAE takes 0.81
ms on an H200, and 1.16 ms with torch's own layers in channels-last memory format; both with TF32.
"""

from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drpm.relaxation.mapping import apply

STRIDE = 2


@final
class DownConv2d(nn.Conv2d):
    """A convolution that halves the side: (N, C, H, W) to (N, O, H / 2, W / 2).

    Args:
        in_channels: C.
        out_channels: O.
        kernel_size: 2, or 4 with a padding of one pixel.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        padding = (kernel_size - STRIDE) // 2
        super().__init__(in_channels, out_channels, kernel_size, STRIDE, padding)

    def forward(self, images: Tensor) -> Tensor:
        if _uses_products(images):
            return _add_bias(downsample(images, self.weight), self.bias)
        return super().forward(images)


@final
class UpConv2d(nn.ConvTranspose2d):
    """A transposed convolution that doubles the side: (N, C, H, W) to (N, O, 2 H, 2 W).

    Args:
        in_channels: C.
        out_channels: O.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, 4, STRIDE, padding=1)

    def forward(self, images: Tensor, output_size: list[int] | None = None) -> Tensor:
        if _uses_products(images):
            return _add_bias(upsample(images, self.weight), self.bias)
        return super().forward(images, output_size)


def _uses_products(images: Tensor) -> bool:
    return images.is_cuda and torch.compiler.is_compiling()


def _add_bias(images: Tensor, bias: Tensor | None) -> Tensor:
    return images if bias is None else images + bias.view(-1, 1, 1)


def downsample(images: Tensor, weight: Tensor) -> Tensor:
    """``F.conv2d`` at stride 2 by a matrix product.

    Args:
        images: (N, C, H, W).
        weight: (O, C, 2, 2), or (O, C, 4, 4) for a padding of one pixel.
    """
    outputs, channels, kernel, _ = weight.shape
    pixels = images.movedim(1, -1)
    if kernel == STRIDE:
        found = F.linear(_blocks(pixels), weight.permute(0, 2, 3, 1).flatten(1))
    elif 3 * channels <= outputs:
        windows = _pad(pixels).unfold(1, kernel, STRIDE).unfold(2, kernel, STRIDE)
        found = F.linear(windows.flatten(-3), weight.flatten(1))
    else:
        # A window consists of 2 x 2 blocks, and a block adds to the four windows that see it.
        # With as many channels as outputs, this copies less.
        factors = _split(weight).permute(2, 3, 0, 4, 5, 1).flip(0, 1).flatten(3).flatten(0, 2)
        found = _add_windows(F.linear(_blocks(_pad(pixels)), factors))[:, 1:-1, 1:-1]
    return found.movedim(-1, 1)


def upsample(images: Tensor, weight: Tensor) -> Tensor:
    """``F.conv_transpose2d`` at stride 2 with a padding of one pixel, by a matrix product.

    Args:
        images: (N, C, H, W).
        weight: (C, O, 4, 4).
    """
    channels, outputs = weight.shape[:2]
    pixels, factors = images.movedim(1, -1), _split(weight)
    # Each pixel adds to 2 x 2 blocks of 2 x 2 pixels.
    if 3 * outputs <= channels:
        factors = factors.permute(2, 3, 4, 5, 1, 0).flatten(0, 4)
        blocks = _add_windows(F.linear(pixels, factors))
    else:
        factors = factors.flip(2, 3).permute(4, 5, 1, 2, 3, 0).flatten(3).flatten(0, 2)
        blocks = F.linear(_windows(_pad(pixels)), factors)
    found: Tensor = (
        blocks.unflatten(-1, (2, 2, outputs)).transpose(2, 3).flatten(3, 4).flatten(1, 2)
    )
    return found[:, 1:-1, 1:-1].movedim(-1, 1)


def _pad(pixels: Tensor) -> Tensor:
    return F.pad(pixels, (0, 0, 1, 1, 1, 1))


def _blocks(pixels: Tensor) -> Tensor:
    """(N, H, W, C) to (N, H / 2, W / 2, 4 C): blocks of 2 x 2 pixels."""
    split: Tensor = pixels.unflatten(1, (-1, STRIDE)).unflatten(3, (-1, STRIDE))
    return split.transpose(2, 3).flatten(3)


def _split(weight: Tensor) -> Tensor:
    """(A, B, 4, 4) to (A, B, 2, 2, 2, 2): rows and columns of blocks, then of their pixels."""
    split: Tensor = weight.unflatten(-1, (2, 2)).unflatten(-3, (2, 2))
    return split.transpose(3, 4)


def _windows(pixels: Tensor) -> Tensor:
    """(N, H, W, C) to (N, H - 1, W - 1, 4 C): windows of 2 x 2 pixels."""
    windows: Tensor = apply(_Windows, pixels)
    return windows


def _add_windows(windows: Tensor) -> Tensor:
    """The transpose of :func:`_windows`: (N, H, W, 4 C) to (N, H + 1, W + 1, C)."""
    pixels: Tensor = apply(_AddWindows, windows)
    return pixels


# Each is the gradient of the other. Torch's own gradients compile to slower kernels.
class _Windows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pixels: Tensor) -> Tensor:
        return pixels.unfold(1, 2, 1).unfold(2, 2, 1).movedim(3, -1).flatten(3)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _add_windows(grad)


class _AddWindows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, windows: Tensor) -> Tensor:
        parts = windows.chunk(4, -1)
        corners = ((0, 0), (0, 1), (1, 0), (1, 1))
        one, two, three, four = (
            F.pad(part, (0, 0, column, 1 - column, row, 1 - row))
            for part, (row, column) in zip(parts, corners, strict=True)
        )
        return one + two + three + four

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _windows(grad)

"""Convolutions that halve or double the side of images whose channels come last.

On a GPU cuDNN has only slow kernels for so few channels, and slower ones still for stacked runs.
There both layers are plain products of matrices, with copies around them that the compiler makes
part of its kernels.
"""

import math
from typing import Any, Final, cast, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drpm.relaxation.mapping import apply

STRIDE: Final = 2
# Where products are quicker than torch's own convolutions.
_BY_PRODUCTS: Final = {"cuda"}
_ROWS: Final = 1024  # of a product at least, for which a sum of its own pays


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
        return _product(_blocks(images), weight.permute(0, 2, 3, 1).flatten(1))
    if _is_much_less(channels, outputs):
        # The windows themselves are small. Few channels are those of what is given, which needs
        # no gradient: torch's own, of `unfold`, is slow.
        windows = _pad(images).unfold(1, window, STRIDE).unfold(2, window, STRIDE)
        return _product(windows.flatten(-3), weight.flatten(1))
    # A window is made of two by two blocks: what each of them adds to those that see it.
    factors = _by_block(weight).flip(2, 3).permute(2, 3, 0, 4, 5, 1).flatten(3).flatten(0, 2)
    spread = _spread(_product(_blocks(_pad(images)), factors))
    return spread[:, 1:-1, 1:-1]


def double(images: Tensor, weight: Tensor) -> Tensor:
    """A transposed convolution at stride 2 by products of matrices, without a bias.

    Arguments:
        images: (N, H, W, C).
        weight: (C, O, 4, 4).
    """
    channels, outputs = weight.shape[:2]
    # Every pixel adds to two by two blocks of pixels.
    factors = _by_block(weight)
    if _is_much_less(outputs, channels):
        # What they add is small.
        factors = factors.permute(2, 3, 4, 5, 1, 0).flatten(0, 4)
        blocks = _spread(_product(images, factors))
    else:
        factors = factors.flip(2, 3).permute(4, 5, 1, 2, 3, 0).flatten(3).flatten(0, 2)
        blocks = _product(_windows(_pad(images)), factors)
    pixels: Tensor = blocks.unflatten(-1, (2, 2, outputs)).transpose(2, 3)
    pixels = pixels.flatten(3, 4).flatten(1, 2)
    return pixels[:, 1:-1, 1:-1]


def _is_much_less(one: int, other: int) -> bool:
    """Which of both ways copies less: 12 of one sort against 4 of the other for every block."""
    return 3 * one <= other


def _product(rows: Tensor, factors: Tensor) -> Tensor:
    """(N, H, W, C) and (O, C) to (N, H, W, O).

    The gradient of the factors is a sum over all rows. For stacked runs cuBLAS would leave each of
    these sums to a handful of processors; so some images at a time have a sum of their own.
    """
    count = len(rows)
    parts = math.gcd(count, 1 << max(0, (rows[..., 0].numel() // _ROWS).bit_length() - 1))
    if parts == 1:
        return F.linear(rows, factors)
    flat = rows.unflatten(0, (parts, -1)).flatten(1, -2)
    found = torch.bmm(flat, factors.t().expand(parts, *factors.t().shape))
    product: Tensor = found.unflatten(1, (-1, *rows.shape[1:-1])).flatten(0, 1)
    return product


def _windows(images: Tensor) -> Tensor:
    """Two by two neighbours side by side: (..., H, W, C) to (..., H - 1, W - 1, 4C)."""
    windows: Tensor = apply(_Neighbours, images, False)
    return windows


def _spread(windows: Tensor) -> Tensor:
    """The transpose of :func:`_windows`: (..., H, W, 4C) to (..., H + 1, W + 1, C)."""
    images: Tensor = apply(_Neighbours, windows, True)
    return images


# Torch's compiler cannot map these by itself; taken as they are, it traces what they do.
torch.compiler.allow_in_graph(_windows)
torch.compiler.allow_in_graph(_spread)


class _Neighbours(torch.autograd.Function):
    """Both of them: each is linear, and the gradient of the other.

    Torch's own gradient of windows adds numbers to memory one by one.
    """

    @staticmethod
    def forward(given: Tensor, spread: bool) -> Tensor:
        if not spread:
            views = given.unfold(-3, 2, 1).unfold(-3, 2, 1)
            return views.movedim(-3, -1).flatten(-3)
        one, two, three, four = given.unflatten(-1, (4, -1)).unbind(-2)
        return _shift(one, 0, 0) + _shift(two, 0, 1) + _shift(three, 1, 0) + _shift(four, 1, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, bool], output: Tensor) -> None:
        ctx.spread = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _windows(grad) if ctx.spread else _spread(grad), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return _spread(tangent) if ctx.spread else _windows(tangent)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int, None], given: Tensor, spread: bool
    ) -> tuple[Tensor, int]:
        return apply(_Neighbours, given.movedim(in_dims[0], 0), spread), 0


def _pad(images: Tensor) -> Tensor:
    return F.pad(images, (0, 0, 1, 1, 1, 1))


def _shift(images: Tensor, down: int, across: int) -> Tensor:
    """One more row and one more column, before the others or behind them."""
    return F.pad(images, (0, 0, across, 1 - across, down, 1 - down))


def _blocks(images: Tensor) -> Tensor:
    """(N, H, W, C) to (N, H / 2, W / 2, 4C): the pixels of two by two, one behind the other."""
    split: Tensor = images.unflatten(1, (-1, STRIDE)).unflatten(3, (-1, STRIDE))
    return split.transpose(2, 3).flatten(3)


def _by_block(weight: Tensor) -> Tensor:
    """(A, B, 4, 4) to (A, B, 2, 2, 2, 2): a window's block, down and across, and a pixel in it."""
    split: Tensor = weight.unflatten(-1, (2, 2)).unflatten(-3, (2, 2))
    return split.transpose(3, 4)

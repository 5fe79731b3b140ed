"""Convolutions as products with columns: the windows of the images, copied side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from drpm.relaxation.mapping import apply, to_leading

Pair = tuple[int, int]


@dataclass(frozen=True)
class Windows:
    """Where the windows of an image lie."""

    size: Pair
    stride: Pair
    padding: Pair

    def grid(self, shape: Sequence[int]) -> Pair:
        """How many windows an image has, down and across."""
        down, across = (
            (length + 2 * padding - size) // stride + 1
            for length, size, stride, padding in zip(
                shape[-2:], self.size, self.stride, self.padding, strict=True
            )
        )
        return down, across

    def columns(self, images: Tensor) -> Tensor:
        """(..., N, C, H, W) to (..., N, C * height * width, windows)."""
        (height, width), (down, across) = self.size, self.padding
        if self.padding != (0, 0):
            images = F.pad(images, (across, across, down, down))
        # Views until they are flattened: one copy in all. The operator made for this, `F.unfold`,
        # starts a kernel for each image on CUDA.
        views = images.unfold(-2, height, self.stride[0]).unfold(-2, width, self.stride[1])
        return views.movedim((-2, -1), (-4, -3)).flatten(-2).flatten(-4, -2)

    def images(self, columns: Tensor, size: Pair) -> Tensor:
        """The transpose of :meth:`columns`: what windows have in common is added up."""
        folded = F.fold(
            columns.flatten(0, -3), size, self.size, padding=self.padding, stride=self.stride
        )
        images: Tensor = folded.unflatten(0, columns.shape[:-2])
        return images


class ByColumns(torch.autograd.Function):
    """(..., N, C, H, W) and (..., O, C, height, width) to (..., N, O, windows) and columns."""

    @staticmethod
    def forward(images: Tensor, weight: Tensor, windows: Windows) -> tuple[Tensor, Tensor]:
        columns = windows.columns(images)
        return _products(weight.flatten(-3), columns), columns

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor, Windows], output: tuple[Tensor, Tensor]
    ) -> None:
        images, weight, windows = inputs
        ctx.save_for_backward(weight, output[1])
        ctx.windows, ctx.size = windows, tuple(images.shape[-2:])
        # The columns have a gradient only where a second derivative is taken.
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor | None, columns_grad: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None]:
        weight, columns = ctx.saved_tensors
        images_grad, weight_grad = None, None
        if columns_grad is not None:
            images_grad = ctx.windows.images(columns_grad, ctx.size)
        if grad is not None and ctx.needs_input_grad[0]:
            found = apply(_ImagesGradient, grad, weight, ctx.windows, ctx.size)
            images_grad = found if images_grad is None else images_grad + found
        if grad is not None and ctx.needs_input_grad[1]:
            weight_grad = _weight_gradient(grad, columns).reshape(weight.shape)
        return images_grad, weight_grad, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        images: Tensor,
        weight: Tensor,
        windows: Windows,
    ) -> tuple[tuple[Tensor, Tensor], Pair]:
        leading = to_leading(info, in_dims[:2], (images, weight))
        return apply(ByColumns, *leading, windows), (0, 0)


class _ImagesGradient(torch.autograd.Function):
    """(..., N, O, windows) and (..., O, C, height, width) to (..., N, C, H, W)."""

    @staticmethod
    def forward(grad: Tensor, weight: Tensor, windows: Windows, size: Pair) -> Tensor:
        if windows.stride != (1, 1):
            return windows.images(_products(weight.flatten(-3).mT, grad), size)
        return _correlate(grad.unflatten(-1, windows.grid(size)), weight, windows, size)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor, Windows, Pair], output: Tensor
    ) -> None:
        grad, weight, ctx.windows, _ = inputs
        ctx.save_for_backward(grad, weight)

    @staticmethod
    def backward(ctx: Any, images: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad, weight = ctx.saved_tensors
        products, columns = apply(ByColumns, images, weight, ctx.windows)
        return products, _weight_gradient(grad, columns).reshape(weight.shape), None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], grad: Tensor, weight: Tensor, *where: Any
    ) -> tuple[Tensor, int]:
        return apply(_ImagesGradient, *to_leading(info, in_dims[:2], (grad, weight)), *where), 0


def _products(matrix: Tensor, columns: Tensor) -> Tensor:
    """(..., A, B) and (..., N, B, L) to (..., N, A, L)."""
    # By hand, because `matmul` may choose to copy the columns instead of the smaller matrix.
    matrices = matrix.unsqueeze(-3).expand(*columns.shape[:-2], -1, -1)
    batch = matrices.flatten(0, -3).bmm(columns.flatten(0, -3))
    products: Tensor = batch.unflatten(0, columns.shape[:-2])
    return products


def _weight_gradient(grad: Tensor, columns: Tensor) -> Tensor:
    """(..., N, O, windows) and columns to (..., O, C * height * width)."""
    # A product for each image and then their sum. As one product it would be a long sum with a
    # small result, which keeps few of a GPU's processors busy.
    return (grad @ columns.mT).sum(-3)


def _correlate(grad: Tensor, weight: Tensor, windows: Windows, size: Pair) -> Tensor:
    """The gradient of images from that of their windows, (..., N, O, down, across), at stride 1.

    It could be a product that is folded up like `Windows.images`, but `F.fold` is slow on CUDA; or
    a product with columns of the gradient, but with its many channels they are large. This is half
    of each: columns of its rows, and what these have in common across is added up.
    """
    (height, width), (down, across) = windows.size, windows.padding
    margin = height - 1 - down
    rows = F.pad(grad, (0, width - 1, margin, margin)).unfold(-2, height, 1)
    # All images side by side, (..., O * height, N * pixels): one product for each set of weights.
    columns = rows.movedim((-4, -1), (-5, -4)).flatten(-3).flatten(-3, -2)
    # Of the windows that see a pixel, the first sees it in its last row.
    turned = weight.flip(-2).movedim((-3, -1), (-4, -3)).flatten(-2).flatten(-3, -2)
    terms = (turned @ columns).unflatten(-2, (-1, width))
    # A term for each column of the weights, to be moved across by its number. One behind the other
    # and read in steps one pixel too short, they are; what a row loses to the next are the zeros at
    # its end.
    length = terms.shape[-1]
    moved = terms.flatten(-2).unfold(-1, length, max(1, length - 1))[..., :width, :]
    images: Tensor = moved.sum(-2).unflatten(-1, (grad.shape[-4], size[0], -1)).movedim(-3, -4)
    return images[..., across : across + size[1]]

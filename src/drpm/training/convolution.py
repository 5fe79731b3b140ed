"""Convolutions that stay quick in stacked runs.

Mapped over its weights by ``torch.func.vmap``, torch's own convolution becomes a grouped one, for
which GPUs have slow kernels only: five stacked runs cost nearly as much as five runs. Here a
mapped convolution copies the windows of its images into columns; after that it is a batch of
matrix products, and so are its gradients.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drpm.relaxation.mapping import apply, is_transformed, to_leading

Pair: TypeAlias = tuple[int, int]

# Where torch's grouped convolutions are slow. On the CPU they are the quicker way: our copies
# take longer there than a convolution.
_SLOW_GROUPS: Final = {"cuda"}


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Pair = 1,
    padding: int | Pair = 0,
) -> Tensor:
    """:func:`torch.nn.functional.conv2d`, by matrix products where vmap maps it on a GPU.

    It then keeps its columns for the backward pass, which at stride 1 take as many times the
    memory of the images as a window has pixels. Its products in float32 are as precise as
    ``torch.set_float32_matmul_precision`` says, whatever cuDNN is told about convolutions.

    Arguments:
        input: Images (N, C, H, W), or one of them.
        weight: (O, C, height, width).
        bias: (O,), or None.
        stride: The steps between windows, down and across.
        padding: The zeros around an image, above and beside it.
    """
    mapped = _is_mapped(input) or _is_mapped(weight)
    if not mapped or input.device.type not in _SLOW_GROUPS:
        return F.conv2d(input, weight, bias, stride, padding)
    if input.dim() == 3:
        return conv2d(input.unsqueeze(0), weight, bias, stride, padding).squeeze(0)
    height, width = weight.shape[-2:]
    windows = _Windows((height, width), _pair(stride), _pair(padding))
    # The columns come along so that second derivatives can reach the images through them.
    products, _ = apply(_Convolution, _autocast(input), _autocast(weight), windows)
    images: Tensor = products.unflatten(-1, windows.grid(input.shape))
    return images if bias is None else images + _autocast(bias)[:, None, None]


# Torch's compiler cannot look through the transforms as we do above. It need not: what it is told
# to take as it is, it traces with the transforms in place.
torch.compiler.allow_in_graph(conv2d)


@final
class Conv2d(nn.Module):
    """:class:`torch.nn.Conv2d` that stays quick in stacked runs.

    The same parameters under the same names, from the same seed with the same values.

    Arguments:
        in_channels: C.
        out_channels: O.
        kernel_size: The height and width of a window.
        stride: The steps between windows, down and across.
        padding: The zeros around an image, above and beside it.
        bias: Whether there is one.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Pair,
        stride: int | Pair = 1,
        padding: int | Pair = 0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        model = nn.Conv2d(in_channels, out_channels, kernel_size, bias=bias)
        self.weight, self.bias = model.weight, model.bias
        self.stride, self.padding = _pair(stride), _pair(padding)

    def forward(self, input: Tensor) -> Tensor:
        return conv2d(input, self.weight, self.bias, self.stride, self.padding)

    def extra_repr(self) -> str:
        out_channels, in_channels, height, width = self.weight.shape
        return (
            f"{in_channels}, {out_channels}, kernel_size=({height}, {width}), "
            f"stride={self.stride}, padding={self.padding}, bias={self.bias is not None}"
        )


def _pair(value: int | Pair) -> Pair:
    return (value, value) if isinstance(value, int) else value


def _is_mapped(tensor: Tensor) -> bool:
    """Whether a tensor stands for several: there is a vmap among the transforms around it."""
    while is_transformed(tensor):
        if torch._C._functorch.is_batchedtensor(tensor):
            return True
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return False


def _autocast(tensor: Tensor) -> Tensor:
    """What autocast makes of a convolution's inputs: here before they become columns."""
    device = tensor.device.type
    if tensor.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))


@dataclass(frozen=True)
class _Windows:
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


class _Convolution(torch.autograd.Function):
    """(..., N, C, H, W) and (..., O, C, height, width) to (..., N, O, windows) and columns."""

    @staticmethod
    def forward(images: Tensor, weight: Tensor, windows: _Windows) -> tuple[Tensor, Tensor]:
        columns = windows.columns(images)
        return _products(weight.flatten(-3), columns), columns

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor, _Windows], output: tuple[Tensor, Tensor]
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
        windows: _Windows,
    ) -> tuple[tuple[Tensor, Tensor], Pair]:
        leading = to_leading(info, in_dims[:2], (images, weight))
        return apply(_Convolution, *leading, windows), (0, 0)


class _ImagesGradient(torch.autograd.Function):
    """(..., N, O, windows) and (..., O, C, height, width) to (..., N, C, H, W)."""

    @staticmethod
    def forward(grad: Tensor, weight: Tensor, windows: _Windows, size: Pair) -> Tensor:
        if windows.stride != (1, 1):
            return windows.images(_products(weight.flatten(-3).mT, grad), size)
        return _correlate(grad.unflatten(-1, windows.grid(size)), weight, windows, size)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor, _Windows, Pair], output: Tensor
    ) -> None:
        grad, weight, ctx.windows, _ = inputs
        ctx.save_for_backward(grad, weight)

    @staticmethod
    def backward(ctx: Any, images: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad, weight = ctx.saved_tensors
        products, columns = apply(_Convolution, images, weight, ctx.windows)
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


def _correlate(grad: Tensor, weight: Tensor, windows: _Windows, size: Pair) -> Tensor:
    """The gradient of images from that of their windows, (..., N, O, down, across), at stride 1.

    It could be a product that is folded up like `_Windows.images`, but `F.fold` is slow on CUDA; or
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

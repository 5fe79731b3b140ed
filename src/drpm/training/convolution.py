"""Convolutions that stay quick in stacked runs.

Mapped over its weights by ``torch.func.vmap``, torch's own convolution becomes a grouped one, for
which GPUs have slow kernels only: five stacked runs cost nearly as much as five runs. Here a
mapped convolution is a batch of matrix products, and so are its gradients. At stride 1 and in
TF32 they are the kernels behind :mod:`drpm.training.convolution_direct`, which gather windows as
they go; otherwise the windows of the images are first copied into columns, as in
:mod:`drpm.training.convolution_columns`.
"""

from collections.abc import Iterator
from typing import Final, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from drpm.relaxation.launching import has_triton
from drpm.relaxation.mapping import apply
from drpm.training import convolution_direct
from drpm.training.convolution_columns import ByColumns, Pair, Windows

# Where torch's grouped convolutions are slow. On the CPU they are the quicker way: our copies
# take longer there than a convolution.
_SLOW_GROUPS: Final = {"cuda"}

# Where there are kernels for it, which count the numbers of a run in 32 bits.
_DIRECT: Final = {"cuda"}
_LARGEST: Final = 2**30
# In full float32 products with columns are quicker: 1.13 against 1.37 ms for five LeNets' steps.
_DIRECT_PRECISIONS: Final = {convolution_direct.TF32}
_WIDEST: Final = 64  # a program works on whole windows, and keeps them in registers


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Pair = 1,
    padding: int | Pair = 0,
) -> Tensor:
    """:func:`torch.nn.functional.conv2d`, by matrix products where vmap maps it on a GPU.

    Its products in float32 are then as precise as ``torch.set_float32_matmul_precision`` says,
    whatever cuDNN is told about convolutions. Where there is no kernel for it, because it is not
    in TF32 or not at stride 1, or its window is large, it keeps its columns for the backward pass,
    which at stride 1 take as many times the memory of the images as a window has pixels.

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
    windows = Windows((height, width), _pair(stride), _pair(padding))
    input, weight = _autocast(input), _autocast(weight)
    bias = None if bias is None else _autocast(bias)
    images: Tensor
    if _is_direct(input, weight, bias, windows):
        images = apply(convolution_direct.Direct, input, weight, bias, windows)
        return images
    # The columns come along so that second derivatives can reach the images through them.
    products, _ = apply(ByColumns, input, weight, windows)
    images = products.unflatten(-1, windows.grid(input.shape))
    return images if bias is None else images + bias[:, None, None]


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
    return any(torch._C._functorch.is_batchedtensor(layer) for layer in _layers(tensor))


def _layers(tensor: Tensor) -> Iterator[Tensor]:
    """A tensor, and what the transforms around it stand for: also while a compiler traces them."""
    yield tensor
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
        yield tensor


def _is_direct(input: Tensor, weight: Tensor, bias: Tensor | None, windows: Windows) -> bool:
    """Whether there is a kernel for a convolution; what makes no sense is for others to refuse."""
    given = [input, weight] if bias is None else [input, weight, bias]
    outputs, channels = weight.shape[:2]
    down, across = windows.grid(input.shape)
    return (
        windows.stride == (1, 1)
        and all(t.device.type in _DIRECT and t.dtype == torch.float32 for t in given)
        and min(down, across, input.numel(), weight.numel()) > 0
        and windows.size[0] * windows.size[1] <= _WIDEST
        and input.dim() == 4
        and input.shape[1] == channels
        and (bias is None or bias.shape == (outputs,))
        and max(input.numel(), input.shape[0] * outputs * down * across) < _LARGEST
        and all(_is_plain(t) for t in given)
        and convolution_direct.precision() in _DIRECT_PRECISIONS
        and (input.device.type != "cuda" or has_triton())
    )


def _is_plain(tensor: Tensor) -> bool:
    """Whether what the transforms around a tensor stand for is torch's own, or its compiler's."""
    *_, inside = _layers(tensor)
    return type(inside) in {Tensor, nn.Parameter, FakeTensor, FunctionalTensor}


def _autocast(tensor: Tensor) -> Tensor:
    """What autocast makes of a convolution's inputs: here before they become columns."""
    device = tensor.device.type
    if tensor.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))

"""Convolutions of stacked runs at stride 1 by kernels that gather windows as they go.

The kernels stand behind operators of torch's, which its compiler takes as they are.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from drpm.relaxation.launching import launch, power_of_two
from drpm.relaxation.mapping import apply, to_leading
from drpm.training.convolution_columns import Pair, Windows

_PROGRAMS: Final = 1024  # some eight for each processor of a large GPU
TF32: Final = "tf32"
IEEE: Final = "ieee"


def _correlation_tile(outputs: int, channels: int, window: int) -> dict[str, int]:
    """How much of its product a program makes at once; a product needs 16 of everything."""
    group = min(channels, max(1, 32 // window))
    # The best of nine settings on an H200. One stage: loading ahead took twice as long.
    return {
        "OUTPUT_BLOCK": min(64, max(16, power_of_two(outputs))),
        "GROUP": group,  # whole channels
        "TAP_BLOCK": max(16, power_of_two(group * window)),
        "POSITION_BLOCK": 64,
        "num_warps": 2,
        "num_stages": 1,
    }


def _gradient_tile(outputs: int, taps: int, kind: str) -> dict[str, int]:
    """The same of the gradient of weights, where positions are what is summed over.

    The best of thirteen settings on an H200; one stage instead of two is a third of the time.
    """
    return {
        "OUTPUT_BLOCK": min(64, max(16, power_of_two(outputs))),
        "TAP_BLOCK": min(64, max(16, power_of_two(taps))),
        "POSITION_BLOCK": 64 if kind == TF32 else 32,
        "num_warps": 4,
        "num_stages": 1,
    }


def precision() -> str:
    """How torch multiplies matrices in float32, in Triton's words."""
    matmul: Any = torch.backends.cuda.matmul
    try:
        rounded = matmul.allow_tf32
    except RuntimeError:  # set through torch's newer interface, as in drpm.training.matmul
        rounded = matmul.fp32_precision == "tf32"
    return TF32 if rounded else IEEE


def _by_run(tensor: Tensor, dims: int) -> tuple[Tensor, int]:
    """A tensor's numbers in order, and how many there are from one run to the next."""
    runs = tensor.dim() - dims
    leading = zip(tensor.stride()[:runs], tensor.shape[:runs], strict=True)
    if all(step == 0 or size == 1 for step, size in leading):
        return tensor[(0,) * runs].contiguous(), 0  # all runs have the same
    return tensor.contiguous(), tensor.shape[runs:].numel()


@torch.library.custom_op("drpm::correlate", mutates_args=())
def correlate(
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    size: Sequence[int],
    padding: Sequence[int],
    turned: bool,
) -> Tensor:
    """(..., N, C, H, W) and (..., O, C, height, width) to (..., N, O, *size).

    Where they are turned, the weights are (..., C, O, height, width) and read backwards.
    """
    from drpm.training import convolution_kernels as kernels

    leading, (many, channels, *image) = images.shape[:-4], images.shape[-4:]
    outputs = weight.shape[-3 if turned else -4]
    runs, positions = leading.numel(), many * size[0] * size[1]
    images, images_step = _by_run(images, 4)
    weight, weight_step = _by_run(weight, 4)
    shift, shift_step = (weight, 0) if bias is None else _by_run(bias, 1)
    out = images.new_empty(*leading, many, outputs, *size)
    height, width = weight.shape[-2:]
    tile = _correlation_tile(outputs, channels, height * width)
    blocks = -(-positions // tile["POSITION_BLOCK"])
    launch(
        kernels.correlate_kernel,
        (runs * blocks, -(-outputs // tile["OUTPUT_BLOCK"])),
        out,
        images,
        weight,
        shift,
        out,
        images_step,
        weight_step,
        shift_step,
        positions,
        blocks,
        OUTPUTS=outputs,
        **_shapes(channels, image, size, (height, width), padding),
        TURNED=turned,
        BIASED=bias is not None,
        PRECISION=precision(),
        **tile,
    )
    return out


@correlate.register_fake
def _(
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    size: Sequence[int],
    padding: Sequence[int],
    turned: bool,
) -> Tensor:
    outputs = weight.shape[-3 if turned else -4]
    return images.new_empty(*images.shape[:-3], outputs, *size)


@torch.library.custom_op("drpm::weight_gradient", mutates_args=())
def weight_gradient(
    images: Tensor, grad: Tensor, window: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """(..., N, C, H, W) and (..., N, O, down, across) to the gradients of weights and biases.

    Weights of all runs, and behind them their biases, in one line.
    """
    from drpm.training import convolution_kernels as kernels

    leading, (many, channels, *image) = images.shape[:-4], images.shape[-4:]
    outputs, *size = grad.shape[-3:]
    runs, positions = leading.numel(), many * size[0] * size[1]
    images, images_step = _by_run(images, 4)
    grad, grad_step = _by_run(grad, 4)
    taps = channels * window[0] * window[1]
    tile = _gradient_tile(outputs, taps, precision())
    tiles = (-(-outputs // tile["OUTPUT_BLOCK"]), -(-taps // tile["TAP_BLOCK"]))
    blocks = -(-positions // tile["POSITION_BLOCK"])
    # As many parts as keep a GPU busy; their sum is the same every time, unlike that of atomics.
    splits = min(blocks, -(-_PROGRAMS // (runs * tiles[0] * tiles[1])))
    each = -(-blocks // splits)
    splits = -(-blocks // each)
    partial = images.new_empty(splits, runs * outputs * (taps + 1))
    launch(
        kernels.weight_gradient_kernel,
        (runs * splits, *tiles),
        partial,
        images,
        grad,
        partial,
        images_step,
        grad_step,
        positions,
        runs,
        splits,
        each * tile["POSITION_BLOCK"],
        OUTPUTS=outputs,
        **_shapes(channels, image, size, window, padding),
        PRECISION=precision(),
        **tile,
    )
    return partial.sum(0)


@weight_gradient.register_fake
def _(images: Tensor, grad: Tensor, window: Sequence[int], padding: Sequence[int]) -> Tensor:
    taps = images.shape[-3] * window[0] * window[1]
    return images.new_empty(images.shape[:-4].numel() * grad.shape[-3] * (taps + 1))


def _shapes(
    channels: int,
    image: Sequence[int],
    size: Sequence[int],
    window: Sequence[int],
    padding: Sequence[int],
) -> dict[str, int | bool]:
    """What the kernels are compiled for."""
    return {
        "CHANNELS": channels,
        "IMAGE_H": image[0],
        "IMAGE_W": image[1],
        "OUT_H": size[0],
        "OUT_W": size[1],
        "KERNEL_H": window[0],
        "KERNEL_W": window[1],
        "PAD_H": padding[0],
        "PAD_W": padding[1],
        # Whether a window can leave its image.
        "PADDED": max(padding) > 0,
    }


class Direct(torch.autograd.Function):
    """(..., N, C, H, W), (..., O, C, height, width) and (..., O) to (..., N, O, down, across).

    Times a tensor like its result, and without biases, a convolution is linear in three factors.
    It and the next two functions each give what belongs to the third, given two; so they are the
    gradients of each other, as often as one likes.
    """

    @staticmethod
    def forward(images: Tensor, weight: Tensor, bias: Tensor | None, windows: Windows) -> Tensor:
        size = windows.grid(images.shape)
        found: Tensor = correlate(images, weight, bias, size, windows.padding, False)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        images, weight, _, ctx.windows = inputs
        ctx.save_for_backward(images, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        images, weight = ctx.saved_tensors
        images_grad, weight_grad, bias_grad = None, None, None
        if ctx.needs_input_grad[0]:
            images_grad = apply(_DirectImages, grad, weight, ctx.windows, images.shape[-2:])
        if any(ctx.needs_input_grad[1:3]):
            weight_grad, bias_grad = apply(_DirectWeights, images, grad, ctx.windows)
        return images_grad, weight_grad, bias_grad if ctx.needs_input_grad[2] else None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        images: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        windows: Windows,
    ) -> tuple[Tensor, int]:
        images, weight = to_leading(info, in_dims[:2], (images, weight))
        if bias is not None:
            (bias,) = to_leading(info, in_dims[2:3], (bias,))
        return apply(Direct, images, weight, bias, windows), 0


class _DirectImages(torch.autograd.Function):
    """(..., N, O, down, across) and (..., O, C, height, width) to (..., N, C, H, W)."""

    @staticmethod
    def forward(grad: Tensor, weight: Tensor, windows: Windows, size: Pair) -> Tensor:
        # Of the windows that see a pixel, the first sees it at its end.
        (height, width), (down, across) = windows.size, windows.padding
        margins = (height - 1 - down, width - 1 - across)
        found: Tensor = correlate(grad, weight, None, size, margins, True)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        grad, weight, ctx.windows, _ = inputs
        ctx.save_for_backward(grad, weight)

    @staticmethod
    def backward(ctx: Any, images: Tensor) -> tuple[Tensor | None, ...]:
        grad, weight = ctx.saved_tensors
        grad_grad, weight_grad = None, None
        if ctx.needs_input_grad[0]:
            grad_grad = apply(Direct, images, weight, None, ctx.windows)
        if ctx.needs_input_grad[1]:
            weight_grad, _ = apply(_DirectWeights, images, grad, ctx.windows)
        return grad_grad, weight_grad, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], grad: Tensor, weight: Tensor, *where: Any
    ) -> tuple[Tensor, int]:
        return apply(_DirectImages, *to_leading(info, in_dims[:2], (grad, weight)), *where), 0


class _DirectWeights(torch.autograd.Function):
    """(..., N, C, H, W), (..., N, O, down, across) to (..., O, C, height, width) and (..., O)."""

    @staticmethod
    def forward(images: Tensor, grad: Tensor, windows: Windows) -> tuple[Tensor, Tensor]:
        found = weight_gradient(images, grad, windows.size, windows.padding)
        leading, channels, outputs = images.shape[:-4], images.shape[-3], grad.shape[-3]
        weights, biases = (*leading, outputs, channels, *windows.size), (*leading, outputs)
        parts = found.split([math.prod(weights), math.prod(biases)])
        return parts[0].view(weights), parts[1].view(biases)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        images, grad, ctx.windows = inputs
        ctx.save_for_backward(images, grad)

    @staticmethod
    def backward(ctx: Any, weight: Tensor, bias: Tensor) -> tuple[Tensor | None, ...]:
        images, grad = ctx.saved_tensors
        images_grad, grad_grad = None, None
        if ctx.needs_input_grad[0]:
            images_grad = apply(_DirectImages, grad, weight, ctx.windows, images.shape[-2:])
        if ctx.needs_input_grad[1]:
            grad_grad = apply(Direct, images, weight, bias, ctx.windows)
        return images_grad, grad_grad, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], images: Tensor, grad: Tensor, windows: Windows
    ) -> tuple[tuple[Tensor, Tensor], Pair]:
        leading = to_leading(info, in_dims[:2], (images, grad))
        return apply(_DirectWeights, *leading, windows), (0, 0)

"""Convolutions that stay quick in stacked runs.

Mapped over its weights by ``torch.func.vmap``, torch's own convolution becomes a grouped one, for
which GPUs have slow kernels only: five stacked runs cost nearly as much as five runs. Here a
mapped convolution is a batch of matrix products, and so are its gradients. At stride 1 and in
float32 they are the kernels of :mod:`drpm.training.convolution_kernels`, which gather windows as
they go; otherwise the windows of the images are first copied into columns.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drpm.relaxation.launching import has_triton, launch, power_of_two
from drpm.relaxation.mapping import apply, to_leading

Pair: TypeAlias = tuple[int, int]

# Where torch's grouped convolutions are slow. On the CPU they are the quicker way: our copies
# take longer there than a convolution.
_SLOW_GROUPS: Final = {"cuda"}

# Where there are kernels for it, which count the numbers of a run in 32 bits.
_DIRECT: Final = {"cuda"}
_LARGEST: Final = 2**30
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
    in float32, its stride is not 1, its window is large or it is compiled, it keeps its columns
    for the backward pass, which at stride 1 take as many times the memory of the images as a
    window has pixels.

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
    input, weight = _autocast(input), _autocast(weight)
    bias = None if bias is None else _autocast(bias)
    images: Tensor
    if _is_direct(input, weight, bias, windows):
        images = apply(_Direct, input, weight, bias, windows)
        return images
    # The columns come along so that second derivatives can reach the images through them.
    products, _ = apply(_Convolution, input, weight, windows)
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


def _is_direct(input: Tensor, weight: Tensor, bias: Tensor | None, windows: "_Windows") -> bool:
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
        # While a compiler traces, there are no numbers to start a kernel with.
        and not torch.compiler.is_compiling()
        and all(_is_plain(t) for t in given)
        and (input.device.type != "cuda" or has_triton())
    )


def _is_plain(tensor: Tensor) -> bool:
    """Whether what the transforms around a tensor stand for is of torch's own type."""
    *_, inside = _layers(tensor)
    return type(inside) in {Tensor, nn.Parameter}


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


def _gradient_tile(outputs: int, taps: int, precision: str) -> dict[str, int]:
    """The same of the gradient of weights, where positions are what is summed over.

    The best of thirteen settings on an H200; one stage instead of two is a third of the time.
    """
    return {
        "OUTPUT_BLOCK": min(64, max(16, power_of_two(outputs))),
        "TAP_BLOCK": min(64, max(16, power_of_two(taps))),
        "POSITION_BLOCK": 32 if precision == "ieee" else 64,
        "num_warps": 4,
        "num_stages": 1,
    }


_PROGRAMS: Final = 1024  # some eight for each processor of a large GPU
_PRECISE: Final = "ieee"  # what "highest" is in Triton's words


def _precision() -> str:
    """How torch multiplies matrices in float32, in Triton's words."""
    matmul: Any = torch.backends.cuda.matmul
    try:
        rounded = matmul.allow_tf32
    except RuntimeError:  # set through torch's newer interface, as in drpm.training.matmul
        rounded = matmul.fp32_precision == "tf32"
    return "tf32" if rounded else _PRECISE


def _by_run(tensor: Tensor, dims: int) -> tuple[Tensor, int]:
    """A tensor's numbers in order, and how many there are from one run to the next."""
    runs = tensor.dim() - dims
    leading = zip(tensor.stride()[:runs], tensor.shape[:runs], strict=True)
    if all(step == 0 or size == 1 for step, size in leading):
        return tensor[(0,) * runs].contiguous(), 0  # all runs have the same
    return tensor.contiguous(), tensor.shape[runs:].numel()


def _correlate_directly(
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    size: Pair,
    padding: Pair,
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
    precision = _precision()
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
        PRECISION=precision,
        **tile,
    )
    return out


def _weight_gradient_directly(
    images: Tensor, grad: Tensor, windows: _Windows
) -> tuple[Tensor, Tensor]:
    """(..., N, C, H, W) and (..., N, O, down, across) to (..., O, C, height, width), (..., O)."""
    from drpm.training import convolution_kernels as kernels

    leading, (many, channels, *image) = images.shape[:-4], images.shape[-4:]
    outputs, *size = grad.shape[-3:]
    runs, positions = leading.numel(), many * size[0] * size[1]
    images, images_step = _by_run(images, 4)
    grad, grad_step = _by_run(grad, 4)
    taps = channels * windows.size[0] * windows.size[1]
    precision = _precision()
    tile = _gradient_tile(outputs, taps, precision)
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
        **_shapes(channels, image, size, windows.size, windows.padding),
        PRECISION=precision,
        **tile,
    )
    total = partial.sum(0)
    weights = runs * outputs * taps
    return (
        total[:weights].view(*leading, outputs, channels, *windows.size),
        total[weights:].view(*leading, outputs),
    )


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


class _Direct(torch.autograd.Function):
    """(..., N, C, H, W), (..., O, C, height, width) and (..., O) to (..., N, O, down, across).

    Times a tensor like its result, and without biases, a convolution is linear in three factors.
    It and the next two functions each give what belongs to the third, given two; so they are the
    gradients of each other, as often as one likes.
    """

    @staticmethod
    def forward(images: Tensor, weight: Tensor, bias: Tensor | None, windows: _Windows) -> Tensor:
        size = windows.grid(images.shape)
        return _correlate_directly(images, weight, bias, size, windows.padding, False)

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
        windows: _Windows,
    ) -> tuple[Tensor, int]:
        images, weight = to_leading(info, in_dims[:2], (images, weight))
        if bias is not None:
            (bias,) = to_leading(info, in_dims[2:3], (bias,))
        return apply(_Direct, images, weight, bias, windows), 0


class _DirectImages(torch.autograd.Function):
    """(..., N, O, down, across) and (..., O, C, height, width) to (..., N, C, H, W)."""

    @staticmethod
    def forward(grad: Tensor, weight: Tensor, windows: _Windows, size: Pair) -> Tensor:
        # Of the windows that see a pixel, the first sees it at its end.
        (height, width), (down, across) = windows.size, windows.padding
        margins = (height - 1 - down, width - 1 - across)
        return _correlate_directly(grad, weight, None, size, margins, True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        grad, weight, ctx.windows, _ = inputs
        ctx.save_for_backward(grad, weight)

    @staticmethod
    def backward(ctx: Any, images: Tensor) -> tuple[Tensor | None, ...]:
        grad, weight = ctx.saved_tensors
        grad_grad, weight_grad = None, None
        if ctx.needs_input_grad[0]:
            grad_grad = apply(_Direct, images, weight, None, ctx.windows)
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
    def forward(images: Tensor, grad: Tensor, windows: _Windows) -> tuple[Tensor, Tensor]:
        return _weight_gradient_directly(images, grad, windows)

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
            grad_grad = apply(_Direct, images, weight, bias, ctx.windows)
        return images_grad, grad_grad, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], images: Tensor, grad: Tensor, windows: _Windows
    ) -> tuple[tuple[Tensor, Tensor], Pair]:
        leading = to_leading(info, in_dims[:2], (images, grad))
        return apply(_DirectWeights, *leading, windows), (0, 0)

"""Y = alpha P for a NeuralSort on a GPU: few launches, linear memory, recomputed backwards.

Canonical shapes: windows (A, K, n), scores and orders (S, A, n): S draws share a batch of windows.
:func:`drpm.relaxation.filling.can_fuse` says where this applies.
"""

from typing import Any

import torch
from torch import Tensor

from drpm.relaxation.filling import fill_softly
from drpm.relaxation.mapping import apply, needs_plain, plain_gradients

_PROGRAMS = 256  # keep every processor of a large GPU busy


def fill_fused(alpha: Tensor, scores: Tensor, order: Tensor, sizes: Tensor | None) -> Tensor:
    """Y (..., K, n) in float32, or a one-hot Y with the gradient of the soft one.

    Args:
        alpha: (..., K, n), the weight of every rank in every subset.
        scores: (..., n), scores divided by the temperature, in float64.
        order: (..., n), their descending order.
        sizes: (..., K), the whole sizes of a one-hot Y, with alpha's batch; None for a soft one.
    """
    batch = torch.broadcast_shapes(alpha.shape[:-2], scores.shape[:-1])
    groups, n = alpha.shape[-2:]
    shared = alpha.shape[:-2]
    if batch[len(batch) - len(shared) :] != shared:
        shared = batch
    windows = alpha.expand(*shared, groups, n).reshape(-1, groups, n)
    many = windows.shape[0]
    filled: Tensor = apply(
        _Fill,
        windows.float().contiguous(),
        scores.expand(*batch, n).reshape(-1, many, n).contiguous(),
        order.expand(*batch, n).reshape(-1, many, n).contiguous(),
        None if sizes is None else sizes.expand(*shared, groups).reshape(-1, groups).contiguous(),
    )
    return filled.reshape(*batch, groups, n)


def launch(kernel: Any, grid: tuple[int, ...], like: Tensor, *args: Any, **options: Any) -> None:
    """Run a kernel on the device of a tensor, whichever device is the current one."""
    if not grid[0]:
        return
    with torch.cuda.device_of(like):
        kernel[grid](*args, **options)


def power_of_two(count: int) -> int:
    """The smallest that is not less than a count."""
    return 1 << max(0, count - 1).bit_length()


def _tile(draws: int, n: int, groups: int) -> dict[str, int]:
    """How much of the order's matrix a program makes at once; a product needs 16 of everything.

    The best of 27 settings on an H200: thin tiles for one long order, square ones for many.
    """
    blocks = max(16, power_of_two(groups))
    if draws * -(-n // 32) < _PROGRAMS:
        return {"KB": blocks, "OWN": 16, "OTHER": 128, "num_warps": 4}
    return {"KB": blocks, "OWN": 32, "OTHER": 64, "num_warps": 2}


def _ranked(scores: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """Sorted scores and the sums of their distances to all others."""
    from drpm.relaxation import filling_kernels as kernels  # imports Triton

    n, rows = scores.shape[-1], (scores.shape[:-1].numel(),)
    ranked, distances = torch.empty_like(scores), torch.empty_like(scores)
    launch(kernels.rank_kernel, rows, scores, scores, order, ranked, distances, n, power_of_two(n))
    return ranked, distances


class _Fill(torch.autograd.Function):
    @staticmethod
    def forward(windows: Tensor, scores: Tensor, order: Tensor, sizes: Tensor | None) -> Tensor:
        from drpm.relaxation import filling_kernels as kernels  # imports Triton

        draws, many, n = scores.shape
        groups = windows.shape[-2]
        filled = windows.new_empty(draws, many, groups, n)
        tile, counts = _tile(draws * many, n, groups), (many, n, groups)
        grid = (draws * many, -(-n // tile["OWN"]))
        if sizes is not None:  # the soft values are needed backwards only
            hard = (sizes, order, filled, *counts, tile["KB"], tile["OWN"])
            launch(kernels.hard_fill_kernel, grid, scores, *hard)
            return filled
        ranked = _ranked(scores, order)
        normalizers = windows.new_empty(scores.shape)
        sums = (*ranked, normalizers, n, tile["OWN"], tile["OTHER"])
        launch(kernels.normalizer_kernel, grid, scores, *sums)
        soft = (windows, *ranked, normalizers, order, filled, *counts)
        launch(kernels.fill_kernel, grid, scores, *soft, **tile)
        return filled

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        windows, scores, order = ctx.saved_tensors
        if needs_plain(grad):

            def plain(windows: Tensor, scores: Tensor) -> Tensor:
                soft = fill_softly(windows, scores.clamp(-1e30, 1e30), "neuralsort")
                return soft.to(windows.dtype)

            return *plain_gradients(plain, (windows, scores), (grad,)), None, None
        return *_gradients(windows, scores, order, grad.contiguous()), None, None


def _gradients(
    windows: Tensor, scores: Tensor, order: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of the soft Y in windows and scores."""
    from drpm.relaxation import filling_kernels as kernels  # imports Triton

    draws, many, n = scores.shape
    counts = (many, n, windows.shape[-2])
    ranked = _ranked(scores, order)
    normalizers, pulls = grad.new_empty(scores.shape), grad.new_empty(scores.shape)
    windows_grad, scores_grad = torch.empty_like(grad), torch.empty_like(scores)
    ranked_grad, distances_grad = torch.empty_like(scores), torch.empty_like(scores)
    tile = _tile(draws * many, n, counts[-1])
    grid = (draws * many, -(-n // tile["OWN"]))
    rows = (windows, *ranked, normalizers, order, grad, windows_grad, pulls, *counts)
    launch(kernels.windows_gradient_kernel, grid, scores, *rows, **tile)
    columns = (windows, *ranked, normalizers, pulls, order, grad, ranked_grad, distances_grad)
    launch(kernels.scores_gradient_kernel, grid, scores, *columns, *counts, **tile)
    back = (order, ranked_grad, distances_grad, scores_grad, n, power_of_two(n))
    launch(kernels.rank_gradient_kernel, grid[:1], scores, *back)
    return windows_grad[0] if draws == 1 else windows_grad.sum(0), scores_grad

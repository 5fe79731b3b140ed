"""Y = alpha P for a NeuralSort on a GPU: few launches, linear memory, recomputed backwards.

Canonical shapes: windows (A, K, n), scores and orders (S, A, n): S draws share a batch of windows.
"""

from typing import Any

import torch
from torch import Tensor

from drpm.relaxation.filling import fill_softly
from drpm.relaxation.launching import has_triton, launch, power_of_two
from drpm.relaxation.mapping import apply, needs_plain, plain_gradients, to_leading

# The sums over ranks are one program's work, so there is a longest order it can hold.
_LONGEST = 8192
_MOST_GROUPS = 64


def available(alpha: Tensor, scores: Tensor, sort: str) -> bool:
    """Whether a filling can take this path, which gives float32."""
    return (
        scores.is_cuda
        and sort == "neuralsort"
        and alpha.shape[-2] <= _MOST_GROUPS
        and 2 <= scores.shape[-1] <= _LONGEST
        and alpha.numel() > 0
        and scores.numel() > 0
        and not torch.compiler.is_compiling()  # a compiler fuses the plain version by itself
        and has_triton()
    )


def fill(alpha: Tensor, scores: Tensor, order: Tensor, sizes: Tensor | None) -> Tensor:
    """Y (..., K, n), or a one-hot Y with the gradient of the soft one.

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
        windows.float(),
        scores.expand(*batch, n).reshape(-1, many, n),
        order.expand(*batch, n).reshape(-1, many, n),
        None if sizes is None else sizes.expand(*shared, groups).reshape(-1, groups),
    )
    return filled.reshape(*batch, groups, n)


def _ranked(scores: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    from drpm.relaxation import filling_kernels as kernels

    n = scores.shape[-1]
    ranked = torch.empty_like(scores)
    distances = torch.empty_like(ranked)
    launch(
        kernels.rank_kernel,
        (scores.shape[:-1].numel(),),
        scores,
        scores,
        order,
        ranked,
        distances,
        n,
        BLOCK=power_of_two(n),
    )
    return ranked, distances


_PROGRAMS = 256  # keep every processor of a large GPU busy


def _tile(draws: int, n: int, groups: int) -> dict[str, int]:
    """How much of the order's matrix a program makes at once; a product needs 16 of everything.

    The best of 27 settings on an H200: thin tiles for one long order, square ones for many.
    """
    blocks = max(16, power_of_two(groups))
    if draws * -(-n // 32) < _PROGRAMS:
        return {"KB": blocks, "OWN": 16, "OTHER": 128, "num_warps": 4}
    return {"KB": blocks, "OWN": 32, "OTHER": 64, "num_warps": 2}


class _Fill(torch.autograd.Function):
    @staticmethod
    def forward(windows: Tensor, scores: Tensor, order: Tensor, sizes: Tensor | None) -> Tensor:
        from drpm.relaxation import filling_kernels as kernels

        windows, scores, order = windows.contiguous(), scores.contiguous(), order.contiguous()
        draws, many, n = scores.shape
        groups = windows.shape[-2]
        filled = windows.new_empty(draws, many, groups, n)
        tile = _tile(draws * many, n, groups)
        blocks = -(-n // tile["OWN"])
        if sizes is not None:  # what is soft is needed backwards only
            launch(
                kernels.hard_fill_kernel,
                (draws * many, blocks),
                scores,
                sizes.contiguous(),
                order,
                filled,
                many,
                n,
                groups,
                tile["KB"],
                tile["OWN"],
            )
            return filled
        ranked, distances = _ranked(scores, order)
        normalisers = windows.new_empty(scores.shape)
        launch(
            kernels.normaliser_kernel,
            (draws * many, blocks),
            scores,
            ranked,
            distances,
            normalisers,
            n,
            OWN=tile["OWN"],
            OTHER=tile["OTHER"],
        )
        launch(
            kernels.fill_kernel,
            (draws * many, blocks),
            scores,
            windows,
            ranked,
            distances,
            normalisers,
            order,
            filled,
            many,
            n,
            groups,
            **tile,
        )
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
        return *apply(_FillGradient, windows, scores, order, grad), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        windows, scores, order = _merge(info, in_dims[:3], inputs[:3])
        sizes = None
        if inputs[3] is not None:
            (leading,) = to_leading(info, in_dims[3:], inputs[3:])
            sizes = leading.flatten(0, 1)
        filled = apply(_Fill, windows, scores, order, sizes)
        return filled.unflatten(1, (info.batch_size, -1)), 1


class _FillGradient(torch.autograd.Function):
    """The backward pass as a function of its own, so that it maps over batches as well."""

    @staticmethod
    def forward(
        windows: Tensor, scores: Tensor, order: Tensor, grad: Tensor
    ) -> tuple[Tensor, Tensor]:
        from drpm.relaxation import filling_kernels as kernels

        windows, scores, order = windows.contiguous(), scores.contiguous(), order.contiguous()
        grad = grad.contiguous()
        draws, many, n = scores.shape
        groups = windows.shape[-2]
        ranked, distances = _ranked(scores, order)
        normalisers, pulls = grad.new_empty(scores.shape), grad.new_empty(scores.shape)
        windows_grad, scores_grad = torch.empty_like(grad), torch.empty_like(scores)
        ranked_grad, distances_grad = torch.empty_like(ranked), torch.empty_like(ranked)
        tile = _tile(draws * many, n, groups)
        grid = (draws * many, -(-n // tile["OWN"]))
        launch(
            kernels.windows_gradient_kernel,
            grid,
            scores,
            windows,
            ranked,
            distances,
            normalisers,
            order,
            grad,
            windows_grad,
            pulls,
            many,
            n,
            groups,
            **tile,
        )
        launch(
            kernels.scores_gradient_kernel,
            grid,
            scores,
            windows,
            ranked,
            distances,
            normalisers,
            pulls,
            order,
            grad,
            ranked_grad,
            distances_grad,
            many,
            n,
            groups,
            **tile,
        )
        launch(
            kernels.rank_gradient_kernel,
            (draws * many,),
            scores,
            order,
            ranked_grad,
            distances_grad,
            scores_grad,
            n,
            BLOCK=power_of_two(n),
        )
        return windows_grad[0] if draws == 1 else windows_grad.sum(0), scores_grad

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError("partitions have no second derivatives inside torch.func.")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        windows, scores, order = _merge(info, in_dims[:3], inputs[:3])
        (grad,) = _merge_draws(info, in_dims[3:], inputs[3:])
        found = apply(_FillGradient, windows, scores, order, grad)
        return (
            found[0].unflatten(0, (info.batch_size, -1)),
            found[1].unflatten(1, (info.batch_size, -1)),
        ), (0, 1)


def _merge(info: Any, in_dims: tuple[Any, ...], inputs: tuple[Any, ...]) -> list[Tensor]:
    """The mapped dimension becomes part of the batch of windows."""
    (windows,) = to_leading(info, in_dims[:1], inputs[:1])
    return [windows.flatten(0, 1), *_merge_draws(info, in_dims[1:], inputs[1:])]


def _merge_draws(info: Any, in_dims: tuple[Any, ...], inputs: tuple[Any, ...]) -> list[Tensor]:
    leading = to_leading(info, in_dims, inputs)
    return [tensor.movedim(0, 1).flatten(1, 2) for tensor in leading]

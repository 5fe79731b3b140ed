r"""Y = alpha P for a NeuralSort on a GPU: Triton kernels that never store the order's matrix.

In rank order the log-weight of rank q in row r, relative to the row's largest, is

.. math:: (n - 1 - 2r) (s_q - s_r) - (D_q - D_r)

with s the sorted scores and D the sums of their distances to all others. Its large terms cancel in
float64; the rest is float32. Every kernel computes the entries it needs, also in the backward pass,
so memory is linear in n.

Shapes: windows (A, K, n), scores and orders (S, A, n): S draws share a batch of windows.
:func:`drpm.relaxation.filling.can_fuse` says where this applies.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from drpm.relaxation.filling import fill_softly
from drpm.relaxation.operators import apply, needs_double_backward, plain_gradients

_PROGRAMS = 256  # keep every processor of a large GPU busy
_COUNTS = ["fillings", "elements", "groups"]  # one program for all of their values


@triton.jit(do_not_specialize=_COUNTS)
def rank_kernel(scores, order, ranked, distances, elements, BLOCK: tl.constexpr):
    """Sorted scores and the sums of their distances to all others."""
    base = tl.program_id(0).to(tl.int64) * elements
    q = tl.arange(0, BLOCK)
    inside = q < elements
    element = tl.load(order + base + q, mask=inside, other=0)
    score = tl.load(scores + base + element, mask=inside, other=0.0)
    score = tl.minimum(tl.maximum(score, -1e30), 1e30)  # finite, even at the lowest temperatures
    running = tl.cumsum(score, 0)
    slope = (elements - 2 - 2 * q).to(tl.float64)
    distance = 2.0 * running + slope * score - tl.sum(score, 0)
    tl.store(ranked + base + q, score, mask=inside)
    tl.store(distances + base + q, distance, mask=inside)


@triton.jit
def _raised(ranked, distances, base, r, q, elements):
    """exp of the relative log-weights, (R, C); zero outside the matrix."""
    row_score = tl.load(ranked + base + r, mask=r < elements, other=0.0)
    row_distance = tl.load(distances + base + r, mask=r < elements, other=0.0)
    score = tl.load(ranked + base + q, mask=q < elements, other=0.0)
    distance = tl.load(distances + base + q, mask=q < elements, other=0.0)
    slope = (elements - 1 - 2 * r).to(tl.float64)
    fall = slope[:, None] * (score[None, :] - row_score[:, None])
    fall -= distance[None, :] - row_distance[:, None]
    # A row's own rank has the largest weight; for ties, rounding may differ.
    fall = tl.minimum(fall, 0.0)
    inside = (r < elements)[:, None] & (q < elements)[None, :]
    return tl.where(inside, tl.exp(fall.to(tl.float32)), 0.0)


@triton.jit(do_not_specialize=_COUNTS)
def normalizer_kernel(
    ranked, distances, normalizers, elements, OWN: tl.constexpr, OTHER: tl.constexpr
):
    """The sum of every row."""
    base = tl.program_id(0).to(tl.int64) * elements
    r = tl.program_id(1) * OWN + tl.arange(0, OWN)
    total = tl.zeros([OWN], tl.float32)
    for start in range(0, elements, OTHER):
        q = start + tl.arange(0, OTHER)
        total += tl.sum(_raised(ranked, distances, base, r, q, elements), 1)
    tl.store(normalizers + base + r, total, mask=r < elements)


@triton.jit(do_not_specialize=_COUNTS)
def fill_kernel(
    windows,
    ranked,
    distances,
    normalizers,
    order,
    filled,
    fillings,
    elements,
    groups,
    KB: tl.constexpr,
    OTHER: tl.constexpr,
    OWN: tl.constexpr,
):
    """Columns of Y for a block of ranks, written to the positions of their elements."""
    draw = tl.program_id(0).to(tl.int64)
    base = draw * elements
    q = tl.program_id(1) * OWN + tl.arange(0, OWN)
    k = tl.arange(0, KB)
    window = windows + (draw % fillings) * groups * elements
    total = tl.zeros([KB, OWN], tl.float32)
    for start in range(0, elements, OTHER):
        r = start + tl.arange(0, OTHER)
        normalizer = tl.load(normalizers + base + r, mask=r < elements, other=1.0)
        weights = _raised(ranked, distances, base, r, q, elements) / normalizer[:, None]
        here = (k < groups)[:, None] & (r < elements)[None, :]
        alpha = tl.load(window + k[:, None] * elements + r[None, :], mask=here, other=0.0)
        alpha = tl.maximum(alpha, 0.0)  # may be negative by rounding
        total += tl.dot(alpha, weights, input_precision="ieee")
    element = tl.load(order + base + q, mask=q < elements, other=0)
    target = filled + draw * groups * elements + k[:, None] * elements + element[None, :]
    tl.store(target, total, mask=(k < groups)[:, None] & (q < elements)[None, :])


@triton.jit(do_not_specialize=_COUNTS)
def hard_fill_kernel(
    sizes, order, filled, fillings, elements, groups, KB: tl.constexpr, OWN: tl.constexpr
):
    """One-hot columns of Y for a block of ranks, by integer sizes."""
    draw = tl.program_id(0).to(tl.int64)
    q = tl.program_id(1) * OWN + tl.arange(0, OWN)
    k = tl.arange(0, KB)
    size = tl.load(sizes + (draw % fillings) * groups + k, mask=k < groups - 1, other=0.0)
    stops = tl.cumsum(size, 0)
    passed = (q.to(tl.float64)[None, :] >= stops[:, None]) & (k < groups - 1)[:, None]
    subset = tl.sum(passed.to(tl.int32), 0)
    element = tl.load(order + draw * elements + q, mask=q < elements, other=0)
    target = filled + draw * groups * elements + k[:, None] * elements + element[None, :]
    here = (k[:, None] == subset[None, :]).to(tl.float32)
    tl.store(target, here, mask=(k < groups)[:, None] & (q < elements)[None, :])


@triton.jit(do_not_specialize=_COUNTS)
def windows_gradient_kernel(
    windows,
    ranked,
    distances,
    normalizers,
    order,
    filled_grad,
    windows_grad,
    pulls,
    fillings,
    elements,
    groups,
    KB: tl.constexpr,
    OWN: tl.constexpr,
    OTHER: tl.constexpr,
):
    """For a block of rows: their sums, the gradient of the windows, and the mean pull."""
    draw = tl.program_id(0).to(tl.int64)
    base = draw * elements
    r = tl.program_id(1) * OWN + tl.arange(0, OWN)
    k = tl.arange(0, KB)
    grads = filled_grad + draw * groups * elements
    normalizer = tl.zeros([OWN], tl.float32)
    total = tl.zeros([OWN, KB], tl.float32)
    for start in range(0, elements, OTHER):
        q = start + tl.arange(0, OTHER)
        raised = _raised(ranked, distances, base, r, q, elements)
        element = tl.load(order + base + q, mask=q < elements, other=0)
        there = (q < elements)[:, None] & (k < groups)[None, :]
        grad = tl.load(grads + k[None, :] * elements + element[:, None], mask=there, other=0.0)
        normalizer += tl.sum(raised, 1)
        total += tl.dot(raised, grad, input_precision="ieee")
    total = total / tl.maximum(normalizer, 1e-30)[:, None]
    here = (r < elements)[:, None] & (k < groups)[None, :]
    at = k[None, :] * elements + r[:, None]
    alpha = tl.load(windows + (draw % fillings) * groups * elements + at, mask=here, other=0.0)
    alpha = tl.maximum(alpha, 0.0)
    tl.store(normalizers + base + r, normalizer, mask=r < elements)
    tl.store(pulls + base + r, tl.sum(alpha * total, 1), mask=r < elements)
    tl.store(windows_grad + draw * groups * elements + at, total, mask=here)


@triton.jit(do_not_specialize=_COUNTS)
def scores_gradient_kernel(
    windows,
    ranked,
    distances,
    normalizers,
    pulls,
    order,
    filled_grad,
    ranked_grad,
    distances_grad,
    fillings,
    elements,
    groups,
    KB: tl.constexpr,
    OTHER: tl.constexpr,
    OWN: tl.constexpr,
):
    """For a block of ranks: the softmax's gradient in their scores and distances."""
    draw = tl.program_id(0).to(tl.int64)
    base = draw * elements
    q = tl.program_id(1) * OWN + tl.arange(0, OWN)
    k = tl.arange(0, KB)
    window = windows + (draw % fillings) * groups * elements
    element = tl.load(order + base + q, mask=q < elements, other=0)
    there = (k < groups)[:, None] & (q < elements)[None, :]
    grads = filled_grad + draw * groups * elements
    grad = tl.load(grads + k[:, None] * elements + element[None, :], mask=there, other=0.0)
    by_slope = tl.zeros([OWN], tl.float64)
    plain = tl.zeros([OWN], tl.float64)
    for start in range(0, elements, OTHER):
        r = start + tl.arange(0, OTHER)
        inside = r < elements
        normalizer = tl.load(normalizers + base + r, mask=inside, other=1.0)
        pull = tl.load(pulls + base + r, mask=inside, other=0.0)
        here = inside[:, None] & (k < groups)[None, :]
        alpha = tl.load(window + k[None, :] * elements + r[:, None], mask=here, other=0.0)
        alpha = tl.maximum(alpha, 0.0)
        weights = _raised(ranked, distances, base, r, q, elements) / normalizer[:, None]
        outer = tl.dot(alpha, grad, input_precision="ieee")
        inner = (weights * (outer - pull[:, None])).to(tl.float64)
        slope = (elements - 1 - 2 * r).to(tl.float64)
        by_slope += tl.sum(slope[:, None] * inner, 0)
        plain += tl.sum(inner, 0)
    tl.store(ranked_grad + base + q, by_slope, mask=q < elements)
    tl.store(distances_grad + base + q, -plain, mask=q < elements)


@triton.jit(do_not_specialize=_COUNTS)
def rank_gradient_kernel(
    order, ranked_grad, distances_grad, scores_grad, elements, BLOCK: tl.constexpr
):
    """Backward through the sums of distances, to the positions of the elements."""
    base = tl.program_id(0).to(tl.int64) * elements
    q = tl.arange(0, BLOCK)
    inside = q < elements
    direct = tl.load(ranked_grad + base + q, mask=inside, other=0.0)
    grad = tl.load(distances_grad + base + q, mask=inside, other=0.0)
    total = tl.sum(grad, 0)
    later = total - tl.cumsum(grad, 0) + grad
    slope = (elements - 2 - 2 * q).to(tl.float64)
    value = direct + slope * grad + 2.0 * later - total
    element = tl.load(order + base + q, mask=inside, other=0)
    tl.store(scores_grad + base + element, value, mask=inside)


def fill_fused(alpha: Tensor, scores: Tensor, order: Tensor, sizes: Tensor | None) -> Tensor:
    """As :func:`fill_softly`, in float32; whole sizes (..., K) with alpha's batch for a hard Y."""
    batch = torch.broadcast_shapes(alpha.shape[:-2], scores.shape[:-1])
    groups, n = alpha.shape[-2:]
    shared = alpha.shape[:-2]
    if batch[len(batch) - len(shared) :] != shared:
        shared = batch
    windows = alpha.expand(*shared, groups, n).reshape(-1, groups, n)
    many = windows.shape[0]
    if sizes is not None:
        sizes = sizes.expand(*shared, groups).reshape(-1, groups).contiguous()
    scores, order = (x.expand(*batch, n).reshape(-1, many, n).contiguous() for x in (scores, order))
    with torch.cuda.device_of(scores):
        filled: Tensor = apply(_FusedFill, windows.float().contiguous(), scores, order, sizes)
    return filled.reshape(*batch, groups, n)


def _tile(draws: int, n: int, groups: int) -> dict[str, int]:
    """The tile of the matrix per program; products need at least 16 of each dimension.

    The best of 27 settings on an H200: thin tiles for one long order, square ones for many.
    """
    blocks = max(16, triton.next_power_of_2(groups))
    if draws * -(-n // 32) < _PROGRAMS:
        return {"KB": blocks, "OWN": 16, "OTHER": 128, "num_warps": 4}
    return {"KB": blocks, "OWN": 32, "OTHER": 64, "num_warps": 2}


def _ranked(scores: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """Sorted scores and the sums of their distances to all others."""
    n, rows = scores.shape[-1], (scores.shape[:-1].numel(),)
    ranked, distances = torch.empty_like(scores), torch.empty_like(scores)
    rank_kernel[rows](scores, order, ranked, distances, n, triton.next_power_of_2(n))
    return ranked, distances


class _FusedFill(torch.autograd.Function):
    @staticmethod
    def forward(windows: Tensor, scores: Tensor, order: Tensor, sizes: Tensor | None) -> Tensor:
        draws, many, n = scores.shape
        groups = windows.shape[-2]
        filled = windows.new_empty(draws, many, groups, n)
        tile, counts = _tile(draws * many, n, groups), (many, n, groups)
        grid = (draws * many, -(-n // tile["OWN"]))
        if sizes is not None:  # soft values are only needed in the backward pass
            hard_fill_kernel[grid](sizes, order, filled, *counts, tile["KB"], tile["OWN"])
            return filled
        ranked = _ranked(scores, order)
        normalizers = windows.new_empty(scores.shape)
        normalizer_kernel[grid](*ranked, normalizers, n, tile["OWN"], tile["OTHER"])
        fill_kernel[grid](windows, *ranked, normalizers, order, filled, *counts, **tile)
        return filled

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        windows, scores, order = ctx.saved_tensors
        if needs_double_backward(grad):

            def plain(windows: Tensor, scores: Tensor) -> Tensor:
                soft = fill_softly(windows, scores.clamp(-1e30, 1e30), "neuralsort")
                return soft.to(windows.dtype)

            return *plain_gradients(plain, (windows, scores), grad), None, None
        with torch.cuda.device_of(grad):
            return *_gradients(windows, scores, order, grad.contiguous()), None, None


def _gradients(
    windows: Tensor, scores: Tensor, order: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of the soft Y in windows and scores."""
    draws, many, n = scores.shape
    counts = (many, n, windows.shape[-2])
    ranked = _ranked(scores, order)
    normalizers, pulls = grad.new_empty(scores.shape), grad.new_empty(scores.shape)
    windows_grad, scores_grad = torch.empty_like(grad), torch.empty_like(scores)
    ranked_grad, distances_grad = torch.empty_like(scores), torch.empty_like(scores)
    tile = _tile(draws * many, n, counts[-1])
    grid = (draws * many, -(-n // tile["OWN"]))
    rows = (windows, *ranked, normalizers, order, grad, windows_grad, pulls, *counts)
    windows_gradient_kernel[grid](*rows, **tile)
    columns = (windows, *ranked, normalizers, pulls, order, grad, ranked_grad, distances_grad)
    scores_gradient_kernel[grid](*columns, *counts, **tile)
    back = (order, ranked_grad, distances_grad, scores_grad, n, triton.next_power_of_2(n))
    rank_gradient_kernel[grid[:1]](*back)
    return windows_grad[0] if draws == 1 else windows_grad.sum(0), scores_grad

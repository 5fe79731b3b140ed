r"""Filling subsets softly, from a relaxed order or by separate scores of each subset.

:func:`fill_softly` is Y = alpha P, without storing P: alpha (..., K, n) assigns ranks to subsets, P
(..., n, n) elements to ranks. In sorted order, each row of P is concentrated around its own rank:

* NeuralSort: the log-weight of the element p ranks away falls by :math:`\Delta_q (2|q - r| + 1)`
  at each step, with :math:`\Delta` the gaps of the sorted scores;
* SoftSort: by the distance of the sorted scores.

Y is therefore computed in blocks of rows, over the columns with non-negligible weights, and the
blocks are recomputed in the backward pass: memory is linear in n.

:func:`fill_by_rows_softly` is a soft top-k. The shares of a subset of size m in elements with
weights w maximize :math:`\sum_i w_i (y_i x_i + H(y_i))`, with the binary entropy H, under
:math:`\sum_i w_i y_i = m`:

.. math:: y_i = \sigma(x_i - t)

with the unique threshold t at which they sum to m. It is found by interval search and two Newton
steps, which also provide first (one step) and second (two steps) derivatives of t.
"""

import functools
import math
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from drpm.relaxation.operators import (
    SORTS,
    Operation,
    apply,
    distance_sums,
    distance_sums_gradient,
    is_transformed,
    order_descending,
    straight_through,
)

# Up to this many entries (batch x n x n) a dense P is fastest; its static shapes can be compiled
# and captured.
_DENSE_LIMIT_CPU = 1 << 19
_DENSE_LIMIT_CUDA = 1 << 23
_ROWS = 128
_BLOCK_BUDGET_CPU = 1 << 20
_BLOCK_BUDGET_CUDA = 1 << 26

_LONGEST = 8192  # ranks that one program of a kernel can sum over
_MOST_GROUPS = 64


def can_fuse(alpha: Tensor, scores: Tensor, sort: str) -> bool:
    """Whether :mod:`drpm.relaxation.filling_kernels` can fill, in float32."""
    return (
        scores.is_cuda
        and sort == "neuralsort"
        and alpha.shape[-2] <= _MOST_GROUPS
        and 2 <= scores.shape[-1] <= _LONGEST
        and alpha.numel() > 0
        and scores.numel() > 0
        and not torch.compiler.is_compiling()  # the compiler fuses the plain version
        and not is_transformed(alpha)
        and not is_transformed(scores)
        and has_triton()
    )


@functools.cache
def has_triton() -> bool:
    """Whether kernels can be compiled here: Triton comes with torch, a C compiler may not."""
    try:
        from triton.runtime import driver

        driver.active.get_current_device()  # compiles the driver
    except ImportError:
        return False
    except Exception as error:
        warnings.warn(
            f"Triton cannot compile kernels here ({error}), so partitions on a GPU use slower, "
            "unfused operations.",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True


def fill_softly(
    alpha: Tensor,
    scores: Tensor,
    sort: str,
    *,
    order: Tensor | None = None,
    hard: Tensor | None = None,
) -> Tensor:
    """Y = alpha P for a relaxed sort of ``scores``, or ``hard`` with its gradient.

    alpha (..., K, n) has the weight of every rank in every subset. The scores (..., n) are divided
    by the temperature; their descending order is computed if not given. Sinkhorn's sort always
    builds the matrix.
    """
    n = scores.shape[-1]
    batch = scores.shape[:-1]
    if batch != alpha.shape[:-2]:
        batch = torch.broadcast_shapes(alpha.shape[:-2], batch)
    limit = _DENSE_LIMIT_CUDA if scores.is_cuda else _DENSE_LIMIT_CPU
    # At least float32, since half precision would lose the order; for the same reason no autocast.
    alpha = alpha.to(torch.promote_types(alpha.dtype, torch.float32))
    with torch.autocast(scores.device.type, enabled=False):
        if batch.numel() * n * n <= limit or sort == "sinkhorn":
            soft = alpha @ SORTS[sort](scores, alpha.dtype)
            return soft if hard is None else straight_through(hard, soft)
        alpha = alpha.expand(*batch, *alpha.shape[-2:])
        scores = scores.double().expand(*batch, n)
        order = order_descending(scores.detach()) if order is None else order
        filled: Tensor = apply(_Fill, alpha, scores, order.expand_as(scores), hard, sort)
        return filled


class _Fill(Operation):
    """Y by NeuralSort or SoftSort, in blocks."""

    @staticmethod
    def forward(
        alpha: Tensor, scores: Tensor, order: Tensor, hard: Tensor | None, sort: str
    ) -> Tensor:
        if hard is not None:
            return hard.to(alpha.dtype, copy=True)
        ranked = scores.gather(-1, order)
        return _to_elements(_fill_streamed(alpha, ranked, _distances(ranked, sort), sort), order)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, _, ctx.sort = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """With differentiable operations, for second derivatives."""
        alpha, scores, order = ctx.saved_tensors
        # Autocast may be enabled here and would mix types.
        with torch.autocast(grad.device.type, enabled=False):
            ranked = scores.gather(-1, order)
            distance = _distances(ranked, ctx.sort)
            grad = grad.to(alpha.dtype).gather(-1, order[..., None, :].expand_as(grad))
            inputs = (alpha, ranked, distance, grad, ctx.sort)
            if is_transformed(grad):
                windows, slopes, distances = apply(_StreamedGradients, *inputs)
            else:
                windows, slopes, distances = _streamed_gradients(*inputs)
            if ctx.sort == "neuralsort":
                slopes = slopes + distance_sums_gradient(distances)
            return windows, _to_elements(slopes, order), None, None, None


def _distances(ranked: Tensor, sort: str) -> Tensor:
    return distance_sums(ranked) if sort == "neuralsort" else torch.zeros_like(ranked)


def _to_elements(values: Tensor, order: Tensor) -> Tensor:
    """From ranks to elements, in the last dimension of (..., n) or (..., K, n)."""
    index = order if values.dim() == order.dim() else order[..., None, :].expand_as(values)
    return torch.zeros_like(values).scatter(-1, index, values)


class _Block(NamedTuple):
    """Several row blocks of P: their rows, and the columns with non-negligible weights."""

    batch: Tensor  # (m,) the batch entry of every block
    rows: Tensor  # (m, R) ranks; short final blocks repeat the last rank
    columns: Tensor  # (m, W)
    real: Tensor  # (m, R) whether a row exists

    @property
    def middle(self) -> Tensor:
        """The central row of every block, (m, 1)."""
        return self.rows[:, _ROWS // 2 : _ROWS // 2 + 1]


def _last_within(ranked: Tensor, distance: Tensor, rows: Tensor, sort: str, side: int) -> Tensor:
    """The furthest rank on one side of each row with non-negligible weight, by bisection."""
    n = ranked.shape[-1]
    # Negligible entries of a row sum to less than a rounding error.
    fall = math.log(n) + 42

    def negligible(columns: Tensor) -> Tensor:
        here, there = ranked.gather(-1, rows), ranked.gather(-1, columns)
        if sort == "softsort":
            return (here - there).abs() > fall
        drop = (n - 1 - 2 * rows) * (there - here) - (
            distance.gather(-1, columns) - distance.gather(-1, rows)
        )
        return drop < -fall

    near, far = rows.clone(), torch.full_like(rows, n - 1 if side > 0 else 0)
    for _ in range(max(1, (n - 1).bit_length()) + 1):
        middle = torch.div(near + far + (1 if side > 0 else 0), 2, rounding_mode="floor")
        out = negligible(middle)
        near = torch.where(out, near, middle)
        far = torch.where(out, middle - side, far)
    return near


def _blocks(ranked: Tensor, distance: Tensor, sort: str) -> Iterator[_Block]:
    """Blocks of rows with their columns, grouped up to a memory budget."""
    entries, n = ranked.shape
    starts = torch.arange(0, n, _ROWS, device=ranked.device)
    top = starts.expand(entries, -1)
    bottom = (top + _ROWS - 1).clamp_max(n - 1)
    # Column ranges are monotonic in the rank, so the first and last row bound a block's range.
    low = _last_within(ranked, distance, top, sort, side=-1).flatten()
    high = _last_within(ranked, distance, bottom, sort, side=1).flatten()
    widths = (high - low + 1).tolist()
    budget = _BLOCK_BUDGET_CUDA if ranked.is_cuda else _BLOCK_BUDGET_CPU
    batch = torch.arange(entries, device=ranked.device).repeat_interleave(len(starts))
    offsets = torch.arange(_ROWS, device=ranked.device)
    first = 0
    while first < len(widths):
        stop, width = first + 1, widths[first]
        while stop < len(widths):
            wider = max(width, widths[stop])
            if (stop + 1 - first) * wider * _ROWS > budget:
                break
            stop, width = stop + 1, wider
        left = low[first:stop].clamp_max(n - width)
        rows = top.flatten()[first:stop, None] + offsets
        columns = left[:, None] + torch.arange(width, device=ranked.device)
        yield _Block(batch[first:stop], rows.clamp_max(n - 1), columns, rows < n)
        first = stop


class _Weights(NamedTuple):
    probs: Tensor  # (m, R, W)
    # NeuralSort: (m, R, 1) rows counted from the block's center. SoftSort: (m, R, W) the sign of
    # a row's score minus a column's.
    shape_term: Tensor


def _weights(
    block: _Block, ranked: Tensor, distance: Tensor, sort: str, dtype: torch.dtype
) -> _Weights:
    """The softmax of the rows. Large terms cancel in float64; the rest is computed in ``dtype``."""
    entry = block.batch[:, None]
    column_scores = ranked[entry, block.columns]
    if sort == "softsort":
        gap = (ranked[entry, block.rows][..., None] - column_scores[:, None]).to(dtype)
        return _Weights(torch.softmax(-gap.abs(), -1), gap.sign())
    # log-weight(r, p) = base_p - 2 (r - c) (s_p - s_c) with c the block's central row.
    shifted = column_scores - ranked[entry, block.middle]
    slope = (ranked.shape[-1] - 1 - 2 * block.middle).to(ranked.dtype)
    base = slope * shifted - (distance[entry, block.columns] - distance[entry, block.middle])
    offset = (block.rows - block.middle).to(ranked.dtype)[..., None]
    logits = base[:, None] - 2 * offset * shifted[:, None]
    peak = logits.amax(-1, keepdim=True)
    return _Weights(torch.softmax((logits - peak).to(dtype), -1), offset.to(dtype))


def _fill_streamed(alpha: Tensor, ranked: Tensor, distance: Tensor, sort: str) -> Tensor:
    """Y in rank order, block by block."""
    groups, n = alpha.shape[-2:]
    a = alpha.reshape(-1, groups, n)
    s, d = ranked.reshape(-1, n), distance.reshape(-1, n)
    out = torch.zeros_like(a).movedim(1, 2).contiguous()  # (B, n, K): rows are added whole
    for block in _blocks(s, d, sort):
        probs = _weights(block, s, d, sort, a.dtype).probs
        _add(out, block, block.columns, probs.mT @ _pick(a, block))
    return out.movedim(2, 1).reshape(alpha.shape)


def _streamed_gradients(
    alpha: Tensor, ranked: Tensor, distance: Tensor, grad: Tensor, sort: str
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of Y's inputs, block by block, with recomputed weights."""
    groups, n = alpha.shape[-2:]
    a, g = alpha.reshape(-1, groups, n), grad.reshape(-1, groups, n)
    s, d = ranked.reshape(-1, n), distance.reshape(-1, n)
    grad_alpha = torch.zeros_like(a).movedim(1, 2).contiguous()
    grad_scores, grad_distance = torch.zeros_like(s), torch.zeros_like(d)
    for block in _blocks(s, d, sort):
        weights = _weights(block, s, d, sort, a.dtype)
        probs = weights.probs
        column_grad = g.movedim(1, 2)[block.batch[:, None], block.columns]  # (m, W, K)
        row_grad = (probs @ column_grad) * block.real[..., None]
        _add(grad_alpha, block, block.rows, row_grad)
        outer = _pick(a, block) @ column_grad.mT  # (m, R, W): gradient of every weight
        inner = probs * (outer - (probs * outer).sum(-1, keepdim=True))
        if sort == "softsort":
            pull = inner * weights.shape_term
            _add(grad_scores, block, block.rows, -pull.sum(-1) * block.real)
            _add(grad_scores, block, block.columns, pull.sum(-2))
            continue
        base = inner.sum(-2).to(s.dtype)
        tilted = (weights.shape_term * inner).sum(-2).to(s.dtype)
        slope = (n - 1 - 2 * block.middle).to(s.dtype)
        _add(grad_scores, block, block.columns, slope * base - 2 * tilted)
        _add(grad_distance, block, block.columns, -base)
    return (
        grad_alpha.movedim(2, 1).reshape(alpha.shape),
        grad_scores.reshape(ranked.shape),
        grad_distance.reshape(distance.shape),
    )


class _StreamedGradients(Operation):
    """The backward pass as a separate function, to support vmap."""

    forward = staticmethod(_streamed_gradients)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError(
            "streamed partitions have no second derivatives inside torch.func."
        )


def _pick(alpha: Tensor, block: _Block) -> Tensor:
    """alpha at a block's rows, (m, R, K); zero where a short block has none."""
    picked = alpha.movedim(1, 2)[block.batch[:, None], block.rows]
    return picked * block.real[..., None]


def _add(target: Tensor, block: _Block, positions: Tensor, values: Tensor) -> None:
    """Add values (m, P, ...) to a (B, n, ...) tensor at positions (m, P) of their batch entries."""
    index = (block.batch[:, None] * target.shape[1] + positions).flatten()
    flat = target.view(-1, *target.shape[2:])
    flat.index_add_(0, index, values.flatten(0, 1).to(target.dtype))


# --- by rows ---------------------------------------------------------------------------------

# The initial interval is the range of the scores, divided into 16^6 cells; each Newton step then
# doubles the digits. Wider ranges are scaled down to this one, where the shares are almost hard.
_CELLS = 16
_ROUNDS = 6
_STEPS = 2
_WIDEST = 1e7
_MARGIN = 1e-12  # keeps the share of a subset in (0, 1), so that a threshold exists
_FLATTEST = 1e-100  # smaller slopes give no gradient in the sizes


def fill_by_rows_softly(sizes: Tensor, scores: Tensor) -> Tensor:
    """Y (..., K, n) if subsets take soft shares of the remainder in sequence; columns sum to one.

    Sizes (..., K) sum to n. Scores are divided by the temperature, in float64.
    """
    *rows, last = scores.unbind(-2)
    # Logarithms keep the gradients of small shares. The zero connects the scores and the size of
    # the last subset, whose gradients may be requested.
    log_left = 0 * (last + sizes[..., -1:])
    log_shares = []
    for row, size in zip(rows, sizes.unbind(-1), strict=False):
        width = row.detach().amax(-1, keepdim=True) - row.detach().amin(-1, keepdim=True)
        row = row / (width / _WIDEST).clamp_min(1)
        gap = row - _threshold(row, log_left, size)[..., None]
        log_shares.append(log_left + _log_sigmoid(gap))
        log_left = log_left + _log_sigmoid(-gap)
    return torch.stack([*log_shares, log_left], -2).exp()


def _log_sigmoid(x: Tensor) -> Tensor:
    # Torch's logsigmoid starts all threads even for a few elements.
    return -F.softplus(-x, threshold=50.0)


def _threshold(scores: Tensor, log_left: Tensor, size: Tensor) -> Tensor:
    """The t at which the shares sum to the size, (...)."""
    x, left = scores.detach(), log_left.detach().exp()
    total = left.sum(-1)
    share = (size.detach() / total).clamp(_MARGIN, 1 - _MARGIN)
    size = straight_through(share * total, size)
    # Between the thresholds for equal scores at the smallest and at the largest score.
    lower, step = x.amin(-1) - torch.logit(share), x.amax(-1) - x.amin(-1)
    points = torch.arange(1, _CELLS, dtype=x.dtype, device=x.device)
    for _ in range(_ROUNDS):
        step = step / _CELLS
        grid = lower[..., None] + step[..., None] * points
        taken = (torch.sigmoid(x[..., None, :] - grid[..., None]) * left[..., None, :]).sum(-1)
        lower = lower + step * (taken > size.detach()[..., None]).sum(-1)
    threshold = lower + step / 2
    for _ in range(_STEPS):
        gap = scores - threshold[..., None]
        log_taken = log_left + _log_sigmoid(gap)
        slope = (log_taken + _log_sigmoid(-gap)).exp().sum(-1).clamp_min(_FLATTEST)
        excess = log_taken.exp().sum(-1) - size
        # If the slope is so small that a step is long, the excess is a rounding error.
        noise = torch.where(excess.abs() > slope, excess, 0.0).detach()
        threshold = threshold + (excess - noise) / slope
    return threshold

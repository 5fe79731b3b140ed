"""Convolutions of a mass with one step table after the other, and maxima in place of their sums.

A mass (..., W) lies on a window of W totals; a step table (..., 2 W - 1) holds the masses of all
steps that lead from one window to another.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from drpm.relaxation.mapping import apply, to_leading


def chain(steps: Tensor, start: Tensor) -> Tensor:
    """(..., j + 1, W): a mass and what convolution with j step tables in turn makes of it.

    T'[r] = sum over c of steps[r - c + W - 1] T[c].
    """
    batch = torch.broadcast_shapes(steps.shape[:-2], start.shape[:-1])
    start = start.expand(*batch, -1)
    if not steps.shape[-2]:  # two groups: every operation counts where a step is made of them
        return start[..., None, :]
    return _convolved(steps.expand(*batch, *steps.shape[-2:]), start)


def _convolved(steps: Tensor, start: Tensor) -> Tensor:
    tables: Tensor = apply(_Chain, steps, start)
    return tables


# Torch's compiler does not map functions of ours; what it takes as it is, torch.func does.
torch.compiler.allow_in_graph(_convolved)


class _Chain(torch.autograd.Function):
    """Convolutions in turn, with a backward pass that never forms a gradient of a matrix."""

    @staticmethod
    def forward(steps: Tensor, start: Tensor) -> Tensor:
        # A correlation needs one side reversed; the tables alternate between the two directions,
        # which saves reversing each of them in turn.
        forward, backward = steps.unbind(-2), steps.flip(-1).unbind(-2)
        tables = [start]
        for j in range(len(forward)):
            tables.append(_correlate(forward[j] if j % 2 else backward[j], tables[-1]))
        return torch.stack([t.flip(-1) if j % 2 else t for j, t in enumerate(tables)], -2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        steps, tables = ctx.saved_tensors
        width = tables.shape[-1]
        grads, masses = grad.unbind(-2), tables.unbind(-2)
        running, step_grads = grads[-1], []
        for j in range(steps.shape[-2] - 1, -1, -1):
            padded = F.pad(running, (width - 1, width - 1))
            step_grads.append((padded.unfold(-1, width, 1) @ masses[j][..., None]).squeeze(-1))
            running = grads[j] + _correlate(steps[..., j, :], running).flip(-1)
        return torch.stack(step_grads[::-1], -2), running

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Tensor, int]:
        return apply(_Chain, *to_leading(info, in_dims, inputs)), 0


def largest_sums(steps: Tensor, vector: Tensor) -> Tensor:
    """The largest over c of ``steps[r + c] + vector[c]``."""
    if torch.compiler.is_compiling():  # one kernel, backwards too
        return (_toeplitz(steps) + vector[..., None, :]).amax(-1)
    # Where it is, and then what it is: the gradient of a view of windows cannot be mapped.
    with torch.no_grad():
        best = (_toeplitz(steps) + vector[..., None, :]).argmax(-1)
    places = best + torch.arange(best.shape[-1], device=best.device)
    batch = best.shape[:-1]
    steps, vector = (x.expand(*batch, x.shape[-1]) for x in (steps, vector))
    return steps.gather(-1, places) + vector.gather(-1, best)


def _correlate(steps: Tensor, vector: Tensor) -> Tensor:
    """The sum over c of ``steps[r + c] vector[c]``.

    All terms are positive, so relative precision is kept far into the tails, unlike by FFT.
    """
    return (_toeplitz(steps) @ vector[..., None]).squeeze(-1)


def _toeplitz(steps: Tensor) -> Tensor:
    """Rows r, columns c: ``steps[r + c]``, as a view."""
    return steps.unfold(-1, (steps.shape[-1] + 1) // 2, 1)

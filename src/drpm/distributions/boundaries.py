"""From the laws of soft sizes to the soft positions of the boundaries between them."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from drpm.distributions import circle, urn_fused
from drpm.relaxation.mapping import apply, is_transformed, needs_plain, to_leading

_SUMS_AT_ONCE = 16

# Up to so many elements compiled code does without Fourier transforms, which it cannot fuse. Other
# code does not: it would be about twice as quick on a CPU with 39 boundaries between 100 elements,
# but autograd would keep 34 times the memory.
_ON_A_CIRCLE_UP_TO = 128


def boundary_survival(laws: Tensor, width: int) -> Tensor:
    """(..., j, n): the chance that a rank lies before the k-th boundary.

    Args:
        laws: (..., j, n + 1), the laws of independent sizes over 0..n.
        width: How many neighbouring entries of a law carry mass, at most.
    """
    if laws.numel() == 0:  # an empty batch, which FFT libraries refuse
        return laws[..., :-1]
    plain = torch.compiler.is_compiling()
    if plain and laws.shape[-2] == 1:  # nothing to add up
        return _clamped(1 - laws.cumsum(-1)[..., :-1])
    if plain and laws.shape[-1] <= _ON_A_CIRCLE_UP_TO + 1:
        return _clamped(circle.survival(laws))
    return _survival(laws, width, plain)


def _clamped(survival: Tensor) -> Tensor:
    """The clamp only undoes rounding, so it does not stop the gradient."""
    return survival + (survival.clamp(0, 1) - survival).detach()


def _survival(laws: Tensor, width: int, plain: bool) -> Tensor:
    survival: Tensor = apply(_Survival, laws, width, plain)
    return survival


# Torch's compiler does not map functions of ours; what it takes as it is, torch.func does. Inside,
# not every version of torch says that it is compiling, so that is said with `plain`.
torch.compiler.allow_in_graph(_survival)


class _Survival(torch.autograd.Function):
    """Laws of running sums by Fourier transform, then their upper tails.

    The product rule needs as many products as the sums themselves; left to autograd it takes
    several times as many operations.
    """

    @staticmethod
    def forward(laws: Tensor, width: int, plain: bool) -> Tensor:
        n = laws.shape[-1] - 1
        return (1 - _running_sums(laws, width, plain).cumsum(-1)[..., :n]).clamp(0, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, bool], output: Tensor) -> None:
        laws, ctx.width, ctx.plain = inputs
        ctx.save_for_backward(laws)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (laws,) = ctx.saved_tensors
        # The clamp only undoes rounding, so it does not stop the gradient.
        sums = grad.cumsum(-1)
        tails = sums - grad - sums[..., -1:]  # minus the sum of all from here on
        return _running_sums_gradient(laws, ctx.width, tails, ctx.plain), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        (laws,) = to_leading(info, in_dims[:1], inputs[:1])
        return apply(_Survival, laws, *inputs[1:]), 0


def _fused(laws: Tensor, plain: bool) -> bool:
    groups = laws.shape[-2] + 1
    fits = not plain and groups <= _SUMS_AT_ONCE + 1 and not is_transformed(laws)
    return fits and urn_fused.available(laws, groups, width=1)


def _period(laws: Tensor, width: int) -> int:
    """Of a Fourier transform that holds all that so many windows of sizes can add up to."""
    n, count = laws.shape[-1] - 1, laws.shape[-2]
    return 1 << min(2 * n + count * width, (count + 1) * n).bit_length()


def _products(spectra: Tensor, start: Tensor | None) -> Tensor:
    """Running products (..., j, p), of ``start`` too if there is one."""
    if start is not None:
        first = spectra[..., :1, :] * start[..., None, :]
        spectra = torch.cat([first, spectra[..., 1:, :]], -2)
    return spectra.cumprod(-2)


def _running_sums(laws: Tensor, width: int, plain: bool) -> Tensor:
    """The laws of the running sums (..., j, n + 1); mass beyond n is cut off.

    Up to 16 sums share one pass through Fourier space.
    """
    n = laws.shape[-1] - 1
    sums: list[Tensor] = []
    for chunk in laws.split(_SUMS_AT_ONCE, -2):
        period = _period(chunk, width)
        spectra = torch.fft.rfft(chunk, period)
        if _fused(laws, plain):
            products = urn_fused.running_products(spectra)
        else:
            start = torch.fft.rfft(sums[-1][..., -1, :], period) if sums else None
            products = _products(spectra, start)
        sums.append(torch.fft.irfft(products, period)[..., : n + 1])
    return sums[0] if len(sums) == 1 else torch.cat(sums, -2)


def _running_sums_gradient(laws: Tensor, width: int, grad: Tensor, plain: bool) -> Tensor:
    """What a gradient of the running sums is in the laws: correlations in place of convolutions.

    ``grad`` may lack the entry of n, which no boundary needs.
    """
    n = laws.shape[-1] - 1
    if _fused(laws, plain) and not needs_plain(grad) and not is_transformed(grad):
        period = _period(laws, width)
        spectra, pulls = (torch.fft.rfft(x, period) for x in (laws, grad))
        pulls = urn_fused.running_products_gradient(spectra, pulls)
        law_grad: Tensor = torch.fft.irfft(pulls, period)[..., : n + 1]
        return law_grad
    chunks, grads = laws.split(_SUMS_AT_ONCE, -2), list(grad.split(_SUMS_AT_ONCE, -2))
    # What all chunks before a later one add up to.
    sums = _running_sums(laws, width, plain) if len(chunks) > 1 else laws
    found: list[Tensor] = []
    for i in range(len(chunks) - 1, -1, -1):
        period = _period(chunks[i], width)
        spectra = torch.fft.rfft(chunks[i], period).conj().resolve_conj()
        if i:
            start = torch.fft.rfft(sums[..., i * _SUMS_AT_ONCE - 1, :], period).conj()
        else:
            start = torch.ones_like(spectra[..., 0, :])
        pulls = list(torch.fft.rfft(grads[i], period).unbind(-2))
        for j in range(len(pulls) - 1, 0, -1):
            pulls[j - 1] = torch.addcmul(pulls[j - 1], spectra[..., j, :], pulls[j])
        products = _products(spectra, start if i else None)
        others = torch.cat([start[..., None, :], products[..., :-1, :]], -2)
        law_pulls = others * torch.stack(pulls, -2)
        found.append(torch.fft.irfft(law_pulls, period)[..., : n + 1])
        if i:  # the last sum of the chunk before was this chunk's start
            last = torch.fft.irfft(spectra[..., 0, :] * pulls[0], period)[..., : n + 1]
            last = last[..., None, : grad.shape[-1]]
            grads[i - 1] = grads[i - 1] + F.pad(last, (0, 0, _SUMS_AT_ONCE - 1, 0))
    return found[0] if len(found) == 1 else torch.cat(found[::-1], -2)

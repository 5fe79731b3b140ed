r"""Tables of suffix sums, to sample sizes.

Fisher's noncentral hypergeometric distribution is the law of independent binomials
:math:`B_k \sim \mathrm{Bin}(m_k, \sigma(\log\omega_k + t))` given that they sum to n, for any tilt
t. If t makes n the mean of the sum, the suffix sums :math:`B_k + \dots + B_K` have probabilities of
moderate magnitude around their means. They are computed by positive convolutions in float64, which
keep their relative precision in the tails, unlike Fourier transforms.

With limits on the sizes the binomials are truncated. Multiplied by s!, their masses are still
log-concave, and so are those of their sums: given the total, a suffix sum has no heavier tails
around its mean than a binomial of n trials, and the same windows suffice.

All functions accept leading dimensions; groups are in the last dimension.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from drpm.distributions.size_urns import (
    IMPOSSIBLE,
    Mean,
    SoftSizes,
    Urn,
    invert,
    log_binomial,
    look_up,
    tilt,
    truncate,
    window_width,
)
from drpm.relaxation.operators import (
    Operation,
    apply,
    in_graph,
    is_transformed,
    needs_double_backward,
    plain_gradients,
    straight_through,
)

_TINY = 1e-300

_NEARLY_ZERO = 1e-30  # keeps values of generating functions from being zero
_ROUNDING = 37.0  # minus the logarithm of a rounding error


# --- two groups ------------------------------------------------------------------------------


def is_listed(total: int, groups: int) -> bool:
    """Whether to list all sizes: 9 times as fast as tables for 64 partitions of 10 elements."""
    return groups == 2 and window_width(total) == total + 1


def list_pair(total: int, log_weights: Tensor, urn: Urn | None = None) -> Tensor:
    """Unnormalized log-masses (..., n + 1) of two groups by the size of the first.

    Without an urn, both capacities are n.
    """
    first = torch.arange(total + 1, dtype=log_weights.dtype, device=log_weights.device)
    sizes = torch.stack([first, total - first])
    log_masses = (sizes * log_weights[..., None]).sum(-2)
    if urn is None:
        return log_masses + 2 * (math.lgamma(total + 1) - torch.lgamma(sizes + 1).sum(-2))
    with torch.no_grad():
        possible = (sizes <= urn.capacities[..., None]).all(-2)
        if urn.limits is not None:
            low, high = (x[..., None] for x in urn.limits)
            possible &= ((sizes >= low) & (sizes <= high)).all(-2)
        binomials = log_binomial(urn.capacities[..., None], sizes).sum(-2)
    return torch.where(possible, log_masses + binomials, IMPOSSIBLE)


def pair_mode(log_masses: Tensor) -> Tensor:
    """The most likely sizes; ties go to the larger first group."""
    second = log_masses.detach().flip(-1).argmax(-1, keepdim=True)
    return _pair_sizes(log_masses, log_masses.shape[-1] - 1 - second)


def relax_pair(log_masses: Tensor, noise: Tensor | None, temperature: Tensor) -> SoftSizes:
    """A draw with Gumbel noise (..., 1, n + 1), or the mode, as soft sizes."""
    logits = log_masses[..., None, :]
    if noise is None:
        hard = pair_mode(log_masses)
    else:
        logits = logits + noise.flip(-1)  # noise runs over the size of the second group
        hard = _pair_sizes(log_masses, logits.detach().argmax(-1))
    return SoftSizes(hard, torch.softmax(logits / temperature[..., None, None], -1))


def _pair_sizes(log_masses: Tensor, first: Tensor) -> Tensor:
    return torch.cat([first, log_masses.shape[-1] - 1 - first], -1).to(log_masses.dtype)


# --- tables ----------------------------------------------------------------------------------


class SuffixTables(NamedTuple):
    r"""Windowed tables of the suffix sums of K >= 2 groups.

    Dimension -2 is the boundary between groups k and k + 1 (k = 1..K-1), dimension -1 the window of
    totals of groups k + 1..K, ``first[k] + 0, 1, ..., W - 1``. Before the first group the window
    ends at the total.
    """

    first: Tensor  # (..., K - 1) the first total of each window
    shift: Tensor  # (..., K) from the window after every group to the one before it
    sizes: Tensor  # (..., K, 2 W - 1) the sizes of every group that lead from window to window
    log_steps: Tensor  # (..., K, 2 W - 1) their log-masses, without gradient
    log_weights: Tensor  # (..., K)
    log_suffix: Tensor  # (..., K - 1, W) log-mass of groups k + 1..K together
    log_scale: Tensor  # (...) the contribution of tilt and binomials to log P_0
    total: int

    @property
    def width(self) -> int:
        return self.log_suffix.shape[-1]

    @property
    def growth(self) -> Tensor:
        """Zeros (..., K) with the gradient of the log-weights."""
        return self.log_weights - self.log_weights.detach()

    def remaining(self) -> Tensor:
        """The totals of every boundary's window, (..., K - 1, W)."""
        count = torch.arange(self.width, dtype=self.first.dtype, device=self.first.device)
        return self.first[..., None] + count

    def draw(self, noise: Tensor) -> Tensor:
        """Sizes (..., K), by the Gumbel trick at every boundary in turn."""
        # Not a decorator, which torch's compiler does not support on named tuples.
        with torch.no_grad():
            before, after, _ = self._sample_path(noise)
            return before - F.pad(after, (0, 1))

    def _sample_path(self, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Remaining totals before and after each group, (..., K) and (..., K - 1), and logits."""
        reverse = torch.arange(self.width - 1, -1, -1, device=noise.device)
        position = torch.full((*noise.shape[:-2], 1), self.width - 1, device=noise.device)
        positions, found = [], []
        steps = self.log_steps[..., :-1, :].expand(*noise.shape[:-2], -1, -1).unbind(-2)
        for step, suffix in zip(steps, (self.log_suffix + noise).unbind(-2), strict=True):
            logits = step.gather(-1, position + reverse) + suffix
            position = logits.argmax(-1, keepdim=True)
            positions.append(position)
            found.append(logits)
        after = self.first + torch.cat(positions, -1)
        return F.pad(after, (1, 0), value=float(self.total)), after, torch.stack(found, -2)

    def relax(self, noise: Tensor, temperature: Tensor) -> SoftSizes:
        """Soft sizes with Gumbel noise (..., K - 1, W): a softmax at every boundary."""
        with torch.no_grad():
            before, after, logits = self._sample_path(noise)
            sizes = before[..., :-1, None] - self.remaining()
            index = sizes.long().clamp(0, self.total)
        growth = self.growth[..., :-1, None]
        slopes = sizes * growth + (self.log_suffix - self.log_suffix.detach())
        soft = torch.softmax((logits + slopes) / temperature[..., None, None], -1)
        probs = soft.new_zeros(*soft.shape[:-1], self.total + 1).scatter_add(-1, index, soft)
        return SoftSizes(before - F.pad(after, (0, 1)), probs)

    def log_normalizer(self) -> Tensor:
        """log P_0, summed over the sizes of the first group."""
        ahead = slice(self.width - 1, None)
        sizes, steps = self.sizes[..., 0, ahead], self.log_steps[..., 0, ahead]
        first = (steps + sizes * self.growth[..., :1]).flip(-1)
        return self.log_scale + torch.logsumexp(first + self.log_suffix[..., 0, :], -1)

    def _log_prefix(self) -> Tensor:
        """(..., K - 1, W): log-mass of groups 1..k with the totals outside of a window.

        These are suffix sums in reverse order of the groups.
        """
        steps, shift = self.log_steps.exp().flip(-2), self.shift.flip(-1)
        found: Tensor = _log_suffix(self.log_weights.flip(-1), steps, shift)[0]
        return found.flip(-2, -1)

    def boundary_probs(self) -> Tensor:
        """(..., K - 1, W): the probability of every total in every boundary's window."""
        return torch.softmax(self._log_prefix() + self.log_suffix, -1)

    def mean(self) -> Tensor:
        """(..., K): the difference of the mean remaining totals before and after each group."""
        after = (self.boundary_probs() * self.remaining()).sum(-1)
        return F.pad(after, (1, 0), value=float(self.total)) - F.pad(after, (0, 1))

    def marginals(self) -> list[tuple[Tensor, Tensor]]:
        """The sizes of each group, in its own window, and their probabilities."""
        prefix, suffix = self._log_prefix().exp().unbind(-2), self.log_suffix.exp().unbind(-2)
        ends, remaining = self.boundary_probs(), self.remaining()
        steps = (self.log_steps + self.sizes * self.growth[..., None]).exp()
        marginals = [(self.total - remaining[..., 0, :], ends[..., 0, :])]
        for k in range(1, len(suffix)):
            # Sum over pairs of totals before and after the group by their difference.
            padded = F.pad(suffix[k], (self.width - 1, self.width - 1))
            pairs = padded.unfold(-1, self.width, 1) @ prefix[k - 1][..., None]
            joint = steps[..., k, :] * pairs.squeeze(-1).flip(-1)
            marginals.append((self.sizes[..., k, :], joint / joint.sum(-1, keepdim=True)))
        marginals.append((remaining[..., -1, :], ends[..., -1, :]))
        return marginals


def suffix_tables(urn: Urn) -> SuffixTables:
    """Build the tables of K >= 2 groups from the last one backwards."""
    n, weights, capacities = urn.largest, urn.log_weights, urn.capacities
    width = window_width(n)
    with torch.no_grad():
        counts = torch.arange(n + 1, dtype=weights.dtype, device=weights.device)
        if urn.limits is not None:
            tilted, means, table = truncate(urn, urn.limits)
            logits = weights + tilted[..., None]
            normalizer = (table + counts * logits[..., None]).logsumexp(-1)
        else:
            tilted = tilt(urn)
            logits = weights + tilted[..., None]
            means = capacities * torch.sigmoid(logits)
            # softplus, without torch's threshold of 20
            normalizer = -capacities * F.logsigmoid(-logits)
        center = means.flip(-1).cumsum(-1).flip(-1)[..., 1:]
        first = (center.round() - (width - 1) // 2).clamp(0, n + 1 - width)
        # From the total, through the windows, to zero after the last group.
        start = (urn.total + 1 - width).expand(first.shape[:-1])[..., None]
        shift = torch.cat([start, first], -1) - F.pad(first, (0, 1))
        offsets = torch.arange(2 * width - 1, dtype=first.dtype, device=first.device) - (width - 1)
        sizes = shift[..., None] + offsets
        if urn.limits is not None:
            binomials = look_up(table, sizes)
        elif urn.unbounded:  # few distinct sizes
            factorials = torch.lgamma(counts + 1)
            binomials = look_up(factorials[-1] - factorials.flip(-1) - factorials, sizes)
        else:
            possible = (sizes >= 0) & (sizes <= capacities[..., None])
            binomials = log_binomial(capacities[..., None], sizes)
            binomials = torch.where(possible, binomials, IMPOSSIBLE)
        log_steps = sizes * logits[..., None] - normalizer[..., None] + binomials
        log_scale = normalizer.sum(-1) - urn.total * tilted
    # Conditional on the total, tilt and normalizers cancel, so they need no gradients.
    log_suffix, _ = _log_suffix(weights, log_steps.exp(), shift)
    return SuffixTables(first, shift, sizes, log_steps, weights, log_suffix, log_scale, n)


class _LogSuffix(Operation):
    """Log-masses (..., K - 1, W) of suffix sums from the masses (..., K, 2 W - 1) of all steps.

    The derivative of a step's log-mass in the group's log-weight is its size, a difference of
    totals. The backward pass therefore needs only the weights of the totals.
    """

    @staticmethod
    def forward(log_weights: Tensor, steps: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        masses = _suffix_masses(steps)
        return _safe_log(masses), masses

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        log_weights, steps, shift, masses = ctx.saved_tensors
        width = grad.shape[-1]
        if needs_double_backward(grad):

            def plain(log_weights: Tensor) -> Tensor:
                offsets = torch.arange(2 * width - 1, device=grad.device) - (width - 1)
                growth = (log_weights - log_weights.detach())[..., None]
                grown = steps * ((shift[..., None] + offsets) * growth).exp()
                return _safe_log(_suffix_masses(grown))

            return *plain_gradients(plain, (log_weights,), grad), None, None
        inputs = (steps, shift, masses, grad)
        transformed = is_transformed(grad)
        found = apply(_SuffixGradients, *inputs) if transformed else _suffix_gradients(*inputs)
        return found, None, None


class _SuffixGradients(Operation):
    """The backward pass as a separate function that raises if it is differentiated."""

    @staticmethod
    def forward(*inputs: Tensor) -> Tensor:
        return _suffix_gradients(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError(
            "Sizes have no second derivatives inside torch.func, such as torch.func.hessian; "
            "use torch.autograd.functional.hessian."
        )


def _suffix_gradients(steps: Tensor, shift: Tensor, masses: Tensor, grad: Tensor) -> Tensor:
    """The gradient of the log-masses in the log-weights."""
    grad = torch.where(masses > _TINY, grad, 0.0)
    pulls = (grad / masses.clamp_min(_TINY)).unbind(-2)
    running = [pulls[0]]
    for step, pull in zip(steps[..., 1:-1, :].unbind(-2), pulls[1:], strict=True):
        running.append(pull + _correlate(step, running[-1]).flip(-1))
    weights = torch.stack(running, -2) * masses  # of the totals, including later groups' pulls
    position = torch.arange(grad.shape[-1], dtype=grad.dtype, device=grad.device)
    ahead, after = weights, (weights - grad)[..., 1:, :]
    sums = shift[..., 1:] * ahead.sum(-1) + (ahead * position).sum(-1)
    return F.pad(sums - F.pad((after * position).sum(-1), (0, 1)), (1, 0))


_log_suffix = in_graph(_LogSuffix)


def _suffix_masses(steps: Tensor) -> Tensor:
    """(..., K - 1, W): the masses of groups k..K together, for k = 2..K.

    From the last group backwards, T'[r] = sum over c of step[r - c + W - 1] T[c].
    """
    masses = [steps[..., -1, (steps.shape[-1] - 1) // 2 :]]
    for step in reversed(steps[..., 1:-1, :].unbind(-2)):
        masses.append(_correlate(step, masses[-1].flip(-1)))
    return torch.stack(masses[::-1], -2)


def _correlate(steps: Tensor, vector: Tensor) -> Tensor:
    """The sum over c of ``steps[r + c] vector[c]``, for (..., 2 W - 1) and (..., W)."""
    width = vector.shape[-1]
    if steps.requires_grad:
        # vmap does not support the gradient of `unfold`.
        count = torch.arange(width, device=steps.device)
        windows = steps[..., count[:, None] + count]
    else:
        windows = steps.unfold(-1, width, 1)
    if vector.dim() == 1:
        return windows @ vector
    return (windows @ vector[..., None]).squeeze(-1)


def _safe_log(mass: Tensor) -> Tensor:
    return torch.where(mass > _TINY, mass.clamp_min(_TINY).log(), IMPOSSIBLE)


def mean(urn: Urn) -> Mean:
    """The exact mean of every group's size, and the normalizer, in O(K); with limits, O(K n)."""
    if not _has_tables(urn):
        return invert(urn)
    tables = suffix_tables(urn)
    return Mean(tables.log_normalizer(), tables.mean())


def log_normalizer(urn: Urn) -> Tensor:
    r""":math:`\log [x^n] \prod_k (1 + \omega_k x)^{m_k}`, with factors truncated by limits."""
    return suffix_tables(urn).log_normalizer() if _has_tables(urn) else invert(urn).log_normalizer


def _has_tables(urn: Urn) -> bool:
    """Whether there are limits and more than one group."""
    return urn.limits is not None and urn.log_weights.shape[-1] > 1


# --- boundaries ------------------------------------------------------------------------------


def boundary_survival(probs: Tensor) -> Tensor:
    r"""(..., j, n): the probability that the sum of the first k sizes exceeds a rank.

    Sizes are independent, with ``probs`` (..., j, n + 1). The generating function of a sum is the
    product of those of its terms, evaluated and inverted by Fourier transforms. With p nodes on a
    circle of radius r, masses beyond n alias with a factor r^p and rounding errors grow by r^-n:
    3 (n + 1) nodes keep both near 1e-12.
    """
    laws = probs
    if probs.shape[-2] > 1 and probs.numel() > 0:
        nodes, scale = _fft_nodes(probs)
        values = torch.fft.rfft(probs * scale, nodes) + _NEARLY_ZERO
        # A cumulative product whose gradient does not synchronize.
        products = values.log().cumsum(-2).exp()
        laws = torch.fft.irfft(products, nodes)[..., : probs.shape[-1]] / scale
    survival = 1 - laws[..., :-1].cumsum(-1)
    # The clamp removes rounding errors and must not stop the gradient.
    return straight_through(survival.detach().clamp(0, 1), survival)


def _fft_nodes(probs: Tensor) -> tuple[int, Tensor]:
    """The number of nodes and the powers of the radius."""
    count, n = probs.shape[-2], probs.shape[-1] - 1
    whole = count * n + 1
    nodes = min(whole, 3 * (n + 1))
    step = 1 << max(0, nodes.bit_length() - 4)
    nodes = -(-nodes // step) * step  # a power of two times 8 to 16, for fast transforms
    fall = 0.0 if nodes >= whole else _ROUNDING / (nodes + n)
    powers = torch.arange(n + 1, dtype=probs.dtype, device=probs.device)
    return nodes, torch.exp(-fall * powers)

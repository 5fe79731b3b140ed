"""Tables of the suffix sums of an urn: what sizes are drawn from, and their marginal laws."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from drpm.distributions import urn_fused
from drpm.distributions.chains import chain
from drpm.distributions.urn import SoftSizes, count
from drpm.distributions.urn_tilt import tilt
from drpm.distributions.urn_windows import sizes_between, soft_laws_at, tables_at, window_width


class SuffixTables(NamedTuple):
    r"""Windowed tables of the suffix sums of an urn with K >= 2 groups.

    Axis -2 runs over the K - 1 boundaries between groups k and k + 1 (k = 1..K-1); axis -1 over
    the window of totals that groups k + 1..K may hold, ``first[k] + 0, 1, ..., W - 1``. Before
    the first group the window ends at the total.
    """

    first: Tensor  # (..., K - 1) the first total of each window
    log_steps: Tensor  # (..., K - 1, 2 W - 1) the log-mass of group k's sizes between windows
    log_suffix: Tensor  # (..., K - 1, W) log-mass of groups k + 1..K together
    total: int

    @property
    def width(self) -> int:
        return self.log_suffix.shape[-1]

    @property
    def sizes(self) -> Tensor:
        """(..., K - 1, 2 W - 1): the sizes of group k that lead from window to window."""
        before = F.pad(self.first[..., :-1], (1, 0), value=float(self.total + 1 - self.width))
        return sizes_between(before - self.first, self.width)

    def remaining(self) -> Tensor:
        """The totals of every boundary's window, (..., K - 1, W)."""
        return self.first[..., None] + count(self.width, self.first)

    @property
    def _fused(self) -> bool:
        return urn_fused.available(self.log_suffix, self.log_suffix.shape[-2] + 1, self.width)

    def _canonical(self) -> tuple[Tensor, Tensor, Tensor]:
        """(B, ...): the leading dimensions as one."""
        first, steps, suffix = self.first, self.log_steps, self.log_suffix
        return (
            first.reshape(-1, *first.shape[-1:]),
            steps.reshape(-1, *steps.shape[-2:]),
            suffix.reshape(-1, *suffix.shape[-2:]),
        )

    def _as_draws(self, tensor: Tensor, event_dims: int) -> Tensor:
        """(S, B, ...): any number of draws, none included, for the batch of these tables."""
        batch, event = self.first.shape[:-1].numel(), tensor.shape[-event_dims:]
        return tensor.reshape(tensor.shape[:-event_dims].numel() // batch, batch, *event)

    def draw(self, noise: Tensor) -> Tensor:
        """Sizes (..., K): the largest choice at every boundary in turn, after adding noise."""
        # Not as a decorator: torch's compiler cannot follow one on a method of a named tuple.
        with torch.no_grad():
            if self._fused:
                draws = self._as_draws(noise, 2)
                sizes = urn_fused.best_choices(*self._canonical(), draws, self.total)
                return sizes.reshape(*noise.shape[:-2], noise.shape[-2] + 1)
            return sizes_left(self.first + self._choices(noise), self.total)

    def _choices(self, noise: Tensor) -> Tensor:
        """(..., K - 1): the position in its window that every boundary takes."""
        position = torch.full(noise.shape[:-2], self.width - 1, device=noise.device)
        positions = []
        reverse = self._reverse()
        steps = self.log_steps.expand(*noise.shape[:-2], -1, -1).unbind(-2)
        for step, suffix in zip(steps, (self.log_suffix + noise).unbind(-2), strict=True):
            logits = step.gather(-1, position[..., None] + reverse) + suffix
            position = logits.argmax(-1)
            positions.append(position)
        return torch.stack(positions, -1)

    def draw_softly(self, noise: Tensor, temperature: Tensor) -> SoftSizes:
        """Draw with noise (..., K - 1, W); the soft sizes keep it."""
        if self._fused:
            draws = self._as_draws(noise, 2)
            return self._fused_draw(draws, None, temperature, noise.shape[:-2])
        with torch.no_grad():
            chosen = self._choices(noise)
        return self._soft_sizes(chosen, self.first + chosen, noise, temperature)

    def follow_softly(self, sizes: Tensor, temperature: Tensor) -> SoftSizes:
        """The path of given sizes (..., K), without noise."""
        if self._fused:
            draws = self._as_draws(sizes, 1)
            return self._fused_draw(None, draws, temperature, sizes.shape[:-1])
        behind = self.total - sizes.cumsum(-1)[..., :-1]
        # Cast before clamping: not even a NaN may lead out of the table.
        chosen = (behind - self.first).long().clamp(0, self.width - 1)
        return self._soft_sizes(chosen, behind, None, temperature)

    def _fused_draw(
        self, noise: Tensor | None, sizes: Tensor | None, temperature: Tensor, shape: torch.Size
    ) -> SoftSizes:
        if temperature.numel() > 1:
            temperature = temperature.expand(self.first.shape[:-1])
        drawn = urn_fused.soft_draws(
            *self._canonical(), noise, sizes, temperature.flatten(), self.total
        )
        laws = drawn.laws.reshape(*shape, *drawn.laws.shape[-2:])
        return SoftSizes(drawn.sizes.reshape(*shape, drawn.sizes.shape[-1]), laws)

    def _soft_sizes(
        self, chosen: Tensor, behind: Tensor, noise: Tensor | None, temperature: Tensor
    ) -> SoftSizes:
        positions = F.pad(chosen[..., :-1], (1, 0), value=self.width - 1)
        sizes = sizes_left(behind, self.total)
        laws = soft_laws_at(*self[:3], noise, temperature, sizes, positions, self.total)
        return SoftSizes(sizes, laws)

    def _reverse(self) -> Tensor:
        return torch.arange(self.width - 1, -1, -1, device=self.first.device)


def sizes_left(behind: Tensor, total: int) -> Tensor:
    """Sizes (..., K) from what remains behind every group but the last."""
    return F.pad(behind, (1, 0), value=float(total)) - F.pad(behind, (0, 1))


def suffix_tables(
    total: int,
    log_weights: Tensor,
    capacities: Tensor,
    *,
    maximise: bool = False,
    large: bool = True,
) -> SuffixTables:
    """Build the tables of K >= 2 groups from the last one backwards.

    With ``maximise`` sums become maxima, which lead the noise-free draw to the law's mode instead
    of to the mode of one conditional after the other. ``large`` is for ``urn.log_binomial``;
    without it every group has n places.
    """
    width = window_width(total)
    groups = log_weights.shape[-1]
    if urn_fused.available(log_weights, groups, width):
        batch = torch.broadcast_shapes(log_weights.shape, capacities.shape)
        urns = (x.expand(batch).reshape(-1, groups) for x in (log_weights, capacities))
        found = urn_fused.tables(total, width, *urns, maximise=maximise, large=large)
        first, steps, suffix = (x.reshape(*batch[:-1], *x.shape[1:]) for x in found[:3])
        return SuffixTables(first, steps, suffix, total)
    n = torch.full((), float(total), dtype=log_weights.dtype, device=log_weights.device)
    if groups == 2 and not large and torch.compiler.is_compiling():
        # Two groups of n places hold n on average where the odds of one undo those of the other.
        shift = -log_weights.detach().mean(-1)
    else:
        shift = tilt(n, log_weights.detach(), capacities)
    with torch.no_grad():
        means = capacities * torch.sigmoid(log_weights + shift[..., None])
        centre = means.flip(-1).cumsum(-1).flip(-1)[..., 1:]
        first = (centre.round() - (width - 1) // 2).clamp(0, total + 1 - width)
    steps, suffix = tables_at(
        total, log_weights, capacities, shift, first, maximise=maximise, large=large
    )
    return SuffixTables(first, steps, suffix, total)


def _prefix_masses(tables: SuffixTables) -> Tensor:
    """(..., K - 1, W): mass of groups 1..k together taking what a boundary's window leaves."""
    steps = tables.log_steps.exp()
    # From the full total, the last position of the first window, all of group 1's sizes lead on.
    first = steps[..., 0, tables.width - 1 :].flip(-1)
    return chain(steps[..., 1:, :].flip(-1), first)


def boundary_law(tables: SuffixTables) -> Tensor:
    """(..., K - 1, W): the probability of every total in every boundary's window."""
    joint = _prefix_masses(tables) * tables.log_suffix.exp()
    return joint / joint.sum(-1, keepdim=True)


class SizeMarginal(NamedTuple):
    sizes: Tensor
    probs: Tensor


def size_marginals(tables: SuffixTables) -> list[SizeMarginal]:
    """The law of every group's size, one entry a group, each over its own window."""
    prefix, suffix = _prefix_masses(tables).unbind(-2), tables.log_suffix.exp().unbind(-2)
    ends, remaining = boundary_law(tables), tables.remaining()
    marginals = [SizeMarginal(tables.total - remaining[..., 0, :], ends[..., 0, :])]
    for k in range(1, len(suffix)):
        # All pairs of totals before and behind the group, added up by their difference.
        padded = F.pad(suffix[k], (tables.width - 1, tables.width - 1))
        pairs = padded.unfold(-1, tables.width, 1) @ prefix[k - 1][..., None]
        joint = tables.log_steps[..., k, :].exp() * pairs.squeeze(-1).flip(-1)
        probs = joint / joint.sum(-1, keepdim=True)
        marginals.append(SizeMarginal(tables.sizes[..., k, :], probs))
    marginals.append(SizeMarginal(remaining[..., -1, :], ends[..., -1, :]))
    return marginals

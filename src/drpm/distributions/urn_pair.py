"""An urn of two groups, whose sizes are few enough to look at all."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from drpm.distributions.urn import IMPOSSIBLE, SoftSizes, count, log_binomial

# Up to so many elements the sizes of two groups are few enough to look at all. Compiled code
# sums over them, too: that is one kernel, where the tilt and the nodes are dozens.
LISTED_UP_TO = 512


def listed(total: int, groups: int) -> bool:
    """Whether all sizes of an urn are summed over here."""
    return groups == 2 and total <= LISTED_UP_TO and torch.compiler.is_compiling()


class Pair(NamedTuple):
    """All sizes of an urn of two groups."""

    sizes: Tensor  # (2, n + 1)
    log_masses: Tensor  # (..., n + 1) before they are divided by their sum

    def log_normalizer(self) -> Tensor:
        return torch.logsumexp(self.log_masses, -1)

    def mean(self) -> Tensor:
        return (torch.softmax(self.log_masses, -1)[..., None, :] * self.sizes).sum(-1)

    # As those of ``urn_tables.SuffixTables``, whose one window would hold all sizes.

    @property
    def width(self) -> int:
        return self.sizes.shape[-1]

    def draw_softly(self, noise: Tensor, temperature: Tensor) -> SoftSizes:
        """Draw with noise (..., 1, n + 1), by what is left behind the first group."""
        logits = self.log_masses[..., None, :] + noise.flip(-1)
        first = logits.detach().argmax(-1)
        sizes = torch.cat([first, self.width - 1 - first], -1).to(logits.dtype)
        return SoftSizes(sizes, torch.softmax(logits / temperature[..., None, None], -1))

    def follow_softly(self, sizes: Tensor, temperature: Tensor) -> SoftSizes:
        """Given sizes (..., 2), without noise."""
        logits = self.log_masses.expand(*sizes.shape[:-1], -1)[..., None, :]
        return SoftSizes(sizes, torch.softmax(logits / temperature[..., None, None], -1))


def list_pair(total: int, log_weights: Tensor, capacities: Tensor | None = None) -> Pair:
    """List the sizes of two groups, which have n places each if ``capacities`` are omitted."""
    first = count(total + 1, log_weights)
    sizes = torch.stack([first, total - first])
    log_masses = (sizes * log_weights[..., None]).sum(-2)
    if capacities is None:
        binomials = 2 * (math.lgamma(total + 1) - torch.lgamma(sizes + 1).sum(-2))
        return Pair(sizes, log_masses + binomials)
    room = capacities[..., None]
    with torch.no_grad():
        possible = (sizes <= room).all(-2)
        binomials = log_binomial(room, sizes).sum(-2)
    return Pair(sizes, torch.where(possible, log_masses + binomials, IMPOSSIBLE))


def mode_of_pair(total: int, log_weights: Tensor, capacities: Tensor) -> Tensor:
    """Of two groups: one element more goes to the first for as long as the mass grows by it."""
    first = count(total, log_weights)
    second = total - first
    room, other_room = capacities[..., :1], capacities[..., 1:]
    gained = ((room - first).clamp_min(0) / (first + 1)).log() + log_weights[..., :1]
    lost = ((other_room - second + 1).clamp_min(0) / second).log() + log_weights[..., 1:]
    best = (gained >= lost).sum(-1, keepdim=True).to(log_weights.dtype)
    return torch.cat([best, total - best], -1)

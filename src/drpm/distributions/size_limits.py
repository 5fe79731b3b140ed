"""Checks of capacities, and of a minimum and a maximum of sizes."""

from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor

from drpm.distributions.validation import can_check_values, describe, require_broadcast


class Limits(NamedTuple):
    """The smallest and the largest size of every group that occur in the support."""

    total: int
    low: Tensor  # (..., K) float64
    high: Tensor  # (..., K) float64

    def expand(self, shape: torch.Size) -> "Limits":
        return Limits(self.total, self.low.expand(shape), self.high.expand(shape))

    def behind(self, group: int) -> "Limits":
        """The limits of a group and of all later ones."""
        return Limits(self.total, self.low[..., group:], self.high[..., group:])


def resolve_capacities(
    total: int, log_weights: Tensor, capacities: Any, *, check: bool
) -> tuple[torch.Size, Tensor]:
    """The batch shape and the (batch, K) float64 capacities of a size law, checked."""
    groups = log_weights.shape[-1]
    if capacities is None:
        kind: Any = {"dtype": torch.float64, "device": log_weights.device}
        return log_weights.shape[:-1], torch.full(log_weights.shape, float(total), **kind)
    if not isinstance(capacities, Tensor) or capacities.dtype == torch.bool:
        raise ValueError(
            f"capacities must be a tensor of integers, but got {describe(capacities)}."
        )
    if capacities.dim() == 0 or capacities.shape[-1] != groups:
        raise ValueError(
            f"capacities must have one entry per group ({groups}) in its last dimension, "
            f"but got {describe(capacities)}."
        )
    batch = require_broadcast(
        "log_weights and capacities", log_weights.shape[:-1], capacities.shape[:-1]
    )
    full = capacities.to(device=log_weights.device, dtype=torch.float64)
    if check and can_check_values(full):
        bad = full[~(torch.isfinite(full) & (full >= 0) & (full == full.round()))]
        if bad.numel():
            raise ValueError(f"capacities must be integers of at least 0, but got {bad[0].item()}.")
        if bool((full.sum(-1) < total).any()):
            raise ValueError(
                f"capacities must sum to at least total_count = {total}, "
                f"but got a sum of {int(full.sum(-1).min())}."
            )
    return batch, full.expand(*batch, groups)


def resolve_limits(
    total: int, capacities: Tensor, minimum: Any, maximum: Any, *, check: bool
) -> Limits | None:
    """The limits of sizes within capacities (batch, K), checked; None if there are none."""
    if minimum is None and maximum is None:
        return None
    least = _limit("minimum", 0 if minimum is None else minimum, capacities)
    most = _limit("maximum", total if maximum is None else maximum, capacities)
    batch = require_broadcast(
        "the parameters, minimum and maximum",
        capacities.shape[:-1],
        least.shape[:-1],
        most.shape[:-1],
    )
    low, room = torch.broadcast_tensors(least, torch.minimum(capacities, most))
    if check and can_check_values(room - low):
        _check_limits(total, least, most, low, room)
    return attained(total, low, room).expand(torch.Size([*batch, capacities.shape[-1]]))


def attained(total: int, low: Tensor, high: Tensor) -> Limits:
    """Limits (..., K) without the sizes that the limits of the other groups rule out."""
    most_left = total - (low.sum(-1, keepdim=True) - low)
    least_left = total - (high.sum(-1, keepdim=True) - high)
    return Limits(total, torch.maximum(low, least_left), torch.minimum(high, most_left))


def _limit(name: str, value: Any, like: Tensor) -> Tensor:
    groups = like.shape[-1]
    if isinstance(value, Integral | float) and type(value) is not bool:
        return like.new_full((groups,), float(value))
    if not isinstance(value, Tensor) or value.dtype == torch.bool:
        raise ValueError(
            f"{name} must be a whole number or a tensor of them, but got {describe(value)}."
        )
    if value.dim() and value.shape[-1] != groups:
        raise ValueError(
            f"{name} must have one entry per group ({groups}) in its last dimension, "
            f"but got {describe(value)}."
        )
    return value.to(like).expand(*value.shape[:-1], groups)


def _check_limits(total: int, least: Tensor, most: Tensor, low: Tensor, room: Tensor) -> None:
    def whole(limit: Tensor) -> Tensor:
        return torch.isfinite(limit) & (limit >= 0) & (limit == limit.round())

    possible = (low <= room).all(-1) & (low.sum(-1) <= total) & (room.sum(-1) >= total)
    # One number to wait for where all is well.
    if bool(possible.all() & whole(least).all() & whole(most).all()):
        return
    for name, limit in (("minimum", least), ("maximum", most)):
        if (bad := limit[~whole(limit)]).numel():
            raise ValueError(f"{name} must be integers of at least 0, but got {bad[0].item()}.")
    if bool((low > room).any()):
        group = (low > room).nonzero()[0].unbind()
        raise ValueError(
            "minimum must be at most the maximum and the capacity of every group, "
            f"but got {int(low[group])} and a group of at most {int(room[group])}."
        )
    if bool((low.sum(-1) > total).any()):
        raise ValueError(
            f"minimum must sum to at most total_count = {total} over the groups, "
            f"but got a sum of {int(low.sum(-1).max())}."
        )
    raise ValueError(
        f"maximum must leave room for total_count = {total} elements within the capacities, "
        f"but got room for {int(room.sum(-1).min())}."
    )

"""Relaxed partitions."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from drpm.distributions.base import RelaxedLaw, Size
from drpm.distributions.constraints import NonNegativeSum, finite_vector, positive
from drpm.distributions.orders import tempered
from drpm.distributions.partitions import (
    PartitionLaw,
    Parts,
    RandomPartition,
    fill,
    window_differences,
)
from drpm.distributions.relaxed_sizes import SizeDraw, draw_softly
from drpm.distributions.validation import require_choice, require_vector
from drpm.relaxation.filling import can_fuse, fill_softly
from drpm.relaxation.reparameterization import gumbel_like, straight_through
from drpm.relaxation.sorting import SORTS, order_descending


class RelaxedPartitionLaw(RelaxedLaw):
    """Base class of relaxed partitions: hard, soft, or soft with hard sizes."""

    discrete: PartitionLaw

    @abstractmethod
    def _fill(self, sizes: SizeDraw, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Y and the order that fills it, from sizes and noisy scores in float64."""

    @constraints.dependent_property(event_dim=2)
    def support(self) -> constraints.Constraint:
        soft = NonNegativeSum(self.event_shape[1], 2)
        return self.discrete.support if self.hard is True else soft

    @property
    def log_weights(self) -> Tensor:
        return self.discrete.log_weights

    @property
    def capacities(self) -> Tensor:
        return self.discrete.capacities

    def rsample_parts(
        self,
        sample_shape: Size = (),
        *,
        noise: str = "both",
        generator: torch.Generator | None = None,
    ) -> Parts:
        """Sample a partition together with its sizes and its order.

        Args:
            sample_shape: The shape of the sample, as in torch.
            noise: ``"both"``: sizes and order are random; ``"order"``: the sizes are the mode,
                computed once for all samples; ``"none"``: as for :attr:`mode`.
        """
        partition, sizes, order = self._draw_parts(torch.Size(sample_shape), noise, generator)
        value = straight_through(sizes.hard, sizes.soft) if self.hard else sizes.soft
        return Parts(partition, value.to(self.dtype).expand(*order.shape[:-1], -1), order)

    def _draw_parts(
        self, shape: torch.Size, noise: str, generator: torch.Generator | None
    ) -> tuple[Tensor, SizeDraw, Tensor]:
        require_choice("noise", noise, ("both", "order", "none"))
        law: Any = self.discrete.sizes
        sizes = draw_softly(law, self.temperature, shape, generator, noise=noise == "both")
        scores = self.discrete._scores.double().expand(shape + self.discrete._scores.shape)
        if noise != "none":
            scores = scores + gumbel_like(scores, generator)
        partition, order = self._fill(sizes, scores)
        return partition, sizes, order

    def rsample(
        self, sample_shape: Size = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Sample partitions with gradients in all parameters and the temperature."""
        return self._draw_parts(torch.Size(sample_shape), "both", generator)[0]

    @property
    def mode(self) -> Tensor:
        """The most likely sizes, filled without noise, with gradients.

        The subsets are filled in sorted order, which is the paper's deterministic partition; by
        affinities, each subset takes its best of the elements that are left. The most likely
        partition may be another one.
        """
        return self._draw_parts(torch.Size(), "none", None)[0]


class RelaxedRandomPartition(RelaxedPartitionLaw):
    r"""Partitions with reparameterized gradients in scores and weights.

    Relaxed sizes determine the ranks of every subset (:math:`\alpha`), a relaxed sort the element
    at every rank (P), and :math:`Y = \alpha P`. Hard samples have exactly the distribution of
    :class:`RandomPartition`, at any temperature. Memory is linear in n: P is computed in blocks
    around its diagonal, and recomputed in the backward pass.

    References:
        Sutter, Ryser, Liebeskind and Vogt, "Differentiable random partition models", 2023.

    Args:
        temperature: Positive; lower values make soft partitions closer to hard ones.
        log_scores, log_weights, capacities, minimum, maximum: As in :class:`RandomPartition`; hard
            samples and the mode meet the limits.
        hard: ``True``: one-hot columns with straight-through gradients; ``False``: soft;
            ``"sizes"``: integer sizes with straight-through gradients, soft order.
        sort: ``"neuralsort"``, ``"softsort"`` or ``"sinkhorn"`` (which needs n x n memory).

    Example:
        >>> scores = torch.tensor([0.0, 3.0, 1.0], requires_grad=True)
        >>> law = RelaxedRandomPartition(0.5, scores, torch.tensor([0.0, 1.0]))
        >>> Y = law.rsample(generator=torch.Generator().manual_seed(1))
        >>> Y.detach()
        tensor([[0., 1., 0.],
                [1., 0., 1.]])
        >>> (Y * torch.randn(2, 3)).sum().backward()
        >>> bool(scores.grad.abs().sum() > 0)
        True
        >>> RelaxedRandomPartition(0.5, scores, torch.tensor([0.0, 9.0]), minimum=1).mode.detach()
        tensor([[0., 1., 0.],
                [1., 0., 1.]])
    """

    arg_constraints = {  # noqa: RUF012
        "temperature": positive,
        "log_scores": finite_vector,
        "log_weights": finite_vector,
    }
    discrete: RandomPartition

    def __init__(
        self,
        temperature: float | Tensor,
        log_scores: Tensor,
        log_weights: Tensor,
        capacities: Tensor | None = None,
        hard: bool | str = True,
        sort: str = "neuralsort",
        *,
        minimum: int | Tensor | None = None,
        maximum: int | Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        require_choice("hard", hard, (True, False, "sizes"))
        require_choice("sort", sort, tuple(SORTS))
        require_vector("log_scores", log_scores, "element")
        discrete = RandomPartition(
            log_scores,
            log_weights,
            capacities,
            minimum=minimum,
            maximum=maximum,
            validate_args=validate_args,
        )
        self.sort = sort
        super().__init__(temperature, discrete, log_scores, hard)

    @property
    def log_scores(self) -> Tensor:
        return self.discrete.log_scores

    def _fill(self, sizes: SizeDraw, scores: Tensor) -> tuple[Tensor, Tensor]:
        order = order_descending(scores.detach())
        # alpha: how far every rank belongs to every subset; columns sum to one.
        windows = window_differences(sizes.survival)
        if self.hard == "sizes":
            ranks = torch.arange(self.event_shape[1], device=order.device)
            before = ranks < sizes.hard.cumsum(-1)[..., :-1, None]
            windows = straight_through(window_differences(before.to(windows.dtype)), windows)
        ratio = tempered(scores, self.temperature)
        if self.dtype != torch.float64 and can_fuse(windows, scores, self.sort):
            from drpm.relaxation.filling_kernels import fill_fused  # imports Triton

            whole = sizes.hard if self.hard is True else None
            return fill_fused(windows, ratio, order, whole).to(self.dtype), order
        # Differences of rounded numbers may fall below zero by a rounding error.
        windows = windows.clamp_min(0).to(self.dtype)
        hard = None
        if self.hard is True:
            hard = fill(sizes.hard, order, self.dtype).Y
        filled = fill_softly(windows, ratio, self.sort, order=order, hard=hard)
        return filled.to(self.dtype), order

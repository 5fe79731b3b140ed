"""Relaxed partitions."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from drpm.distributions.base import RelaxedLaw, Size, for_events
from drpm.distributions.constraints import NonNegativeSum, finite_vector, positive
from drpm.distributions.orders import LARGEST, noisy_scores
from drpm.distributions.partitions import (
    PartitionLaw,
    Parts,
    RandomPartition,
    assignment_matrix,
    fill,
    window_differences,
)
from drpm.distributions.relaxed_sizes import SizeDraw, draw_softly
from drpm.distributions.validation import require_choice, require_vector
from drpm.relaxation.filling import can_fuse, fill_softly
from drpm.relaxation.reparameterization import straight_through
from drpm.relaxation.sorting import SORTS, order_descending


class RelaxedPartitionLaw(RelaxedLaw):
    """Base class of relaxed partitions: hard, soft, or soft with hard sizes."""

    discrete: PartitionLaw
    hard: bool | str

    @property
    @abstractmethod
    def _scores(self) -> Tensor:
        """The log-scores of the elements, to which noise is added."""

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
                computed once for all samples; ``"none"``: the mode with the sorted order.
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
        if noise == "none":
            scores = self._scores.double().expand(shape + self._scores.shape)
        else:
            scores = noisy_scores(self._scores, shape, generator)
        partition, order = self._fill(sizes, scores)
        return partition, sizes, order

    def rsample(
        self, sample_shape: Size = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Sample partitions with gradients in all parameters and the temperature."""
        return self._draw_parts(torch.Size(sample_shape), "both", generator)[0]

    @property
    def mode(self) -> Tensor:
        """The most likely sizes filled in sorted order: noise-free, with gradients.

        This is the paper's deterministic partition. The most likely partition may have other sizes.
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
        log_scores: :math:`\log s`, shape (..., n).
        log_weights: :math:`\log\omega`, shape (..., K).
        capacities: The maximum sizes, shape (..., K); by default n.
        hard: ``True``: one-hot columns with straight-through gradients; ``False``: soft;
            ``"sizes"``: integer sizes with straight-through gradients, soft order.
        sort: ``"neuralsort"``, ``"softsort"`` or ``"sinkhorn"`` (which needs n x n memory).
        window: How soft sizes become soft ranks: ``"one-hot"`` from the distribution of every
            boundary, or ``"sigmoid"``, the paper's window
            :math:`\sigma((\nu - i + \tfrac12) / \tau)` around its mean.
        minimum: The smallest size of every subset, a whole number or a tensor (..., K); hard
            samples and the mode meet it.
        maximum: The largest, likewise.

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
        window: str = "one-hot",
        *,
        minimum: int | Tensor | None = None,
        maximum: int | Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        require_choice("hard", hard, (True, False, "sizes"))
        require_choice("sort", sort, tuple(SORTS))
        require_choice("window", window, ("one-hot", "sigmoid"))
        require_vector("log_scores", log_scores, "element")
        discrete = RandomPartition(
            log_scores,
            log_weights,
            capacities,
            minimum=minimum,
            maximum=maximum,
            validate_args=validate_args,
        )
        batch = self._set_discrete(temperature, discrete, log_scores, "the parameters")
        self.hard, self.sort, self.window = hard, sort, window
        super().__init__(batch, self.discrete.event_shape, validate_args)

    @property
    def log_scores(self) -> Tensor:
        return self.discrete.log_scores

    @property
    def _scores(self) -> Tensor:
        return self.log_scores

    def _fill(self, sizes: SizeDraw, scores: Tensor) -> tuple[Tensor, Tensor]:
        order = order_descending(scores.detach())
        return self._filled(sizes, scores, order), order

    def _filled(self, sizes: SizeDraw, scores: Tensor, order: Tensor) -> Tensor:
        """Y from sizes and noisy scores, in their descending order."""
        groups = self.event_shape[0]
        windows = self._windows(sizes)
        if self.hard == "sizes":
            ranks = torch.arange(self.event_shape[1], device=order.device)
            before = ranks < sizes.hard.cumsum(-1)[..., :-1, None]
            windows = straight_through(window_differences(before.to(windows.dtype)), windows)
        ratio = (scores / for_events(self.temperature, 1)).clamp(-LARGEST, LARGEST)
        if self.dtype != torch.float64 and can_fuse(windows, scores, self.sort):
            from drpm.relaxation.filling_kernels import fill_fused  # imports Triton

            whole = sizes.hard if self.hard is True else None
            return fill_fused(windows, ratio, order, whole).to(self.dtype)
        # Differences of rounded numbers may fall below zero by a rounding error.
        windows = windows.clamp_min(0).to(self.dtype)
        hard = None
        if self.hard is True:
            hard = assignment_matrix(fill(sizes.hard, order), groups, self.dtype)
        return fill_softly(windows, ratio, self.sort, order=order, hard=hard).to(self.dtype)

    def _windows(self, sizes: SizeDraw) -> Tensor:
        """alpha (..., K, n): how far every rank belongs to every subset; columns sum to one."""
        survival = sizes.survival
        if self.window == "sigmoid":
            ranks = torch.arange(
                1, self.event_shape[1] + 1, dtype=survival.dtype, device=survival.device
            )
            stops = survival.sum(-1, keepdim=True)
            temperature = for_events(self.temperature, 2)
            survival = torch.sigmoid((stops - ranks + 0.5) / temperature)
        return window_differences(survival)

"""Relaxed sizes, orders and partitions."""

from abc import abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import constraints

from drpm.distributions.base import RelaxedLaw, Size
from drpm.distributions.orders import PlackettLuce, noisy_scores
from drpm.distributions.partitions import (
    PartitionLaw,
    Parts,
    RandomPartition,
    fill,
    window_differences,
)
from drpm.distributions.size_tables import boundary_survival
from drpm.distributions.size_urns import window_width
from drpm.distributions.sizes import FisherHypergeometric
from drpm.distributions.validation import (
    Assignment,
    NonNegativeSum,
    WholeSizes,
    finite_vector,
    require_choice,
)
from drpm.relaxation.filling import can_fuse, fill_softly
from drpm.relaxation.operators import (
    SORTS,
    gumbel_like,
    order_descending,
    permutation_matrix,
    straight_through,
)

_LARGEST = 1e30  # sums over all elements do not overflow in float32


def tempered(scores: Tensor, temperature: Tensor, *, event_dims: int = 1) -> Tensor:
    """Scores over temperature, finite in any type, float64."""
    if temperature.dim():
        temperature = temperature.reshape(*temperature.shape, *(1,) * event_dims)
    return (scores / temperature.double()).clamp(-_LARGEST, _LARGEST)


# --- sizes -----------------------------------------------------------------------------------


class SizeDraw(NamedTuple):
    """Integer sizes, and soft boundaries between them."""

    hard: Tensor  # (..., K) float64
    survival: Tensor  # (..., K - 1, n) float64: the share of rank r in the first k subsets

    @property
    def soft(self) -> Tensor:
        """(..., K): non-negative sizes that sum to n."""
        n = self.survival.shape[-1]
        stops = self.survival.sum(-1)
        first = torch.zeros_like(self.hard[..., :1])
        return torch.cat([first, stops, first + n], -1).diff(dim=-1)


def draw_softly(
    law: FisherHypergeometric,
    temperature: Tensor,
    shape: torch.Size,
    generator: torch.Generator | None,
    *,
    noise: bool,
) -> SizeDraw:
    """Hard and soft sizes of a draw; without noise, of the mode, whatever the shape."""
    n, groups = law.total_count, law.event_shape[0]
    full = shape + law.batch_shape if noise else law.batch_shape
    if groups == 1:
        # Constant, but connected to the weight, whose gradient may be requested.
        nothing = (law.log_weights.double() * 0).expand(*full, 1)
        return SizeDraw(nothing.detach() + n, nothing[..., None].expand(*full, 1, n)[..., :0, :])
    temperature, gumbel = temperature.double(), None
    if noise:
        empty = temperature.new_empty(*full, groups - 1, window_width(n))
        gumbel = gumbel_like(empty, generator)
    drawn = law.relax(gumbel, temperature)
    return SizeDraw(drawn.hard, boundary_survival(drawn.probs))


class _WithSizes(RelaxedLaw):
    """Base class of relaxed sizes and of partitions with such sizes."""

    @property
    def log_weights(self) -> Tensor:
        """The log-weight of every group, (..., K)."""
        return self.discrete.log_weights  # type: ignore[no-any-return]

    @property
    def capacities(self) -> Tensor:
        """The number of places in every group, (..., K)."""
        return self.discrete.capacities  # type: ignore[no-any-return]


class RelaxedFisherHypergeometric(_WithSizes):
    r"""Sizes with reparameterized gradients: Gumbel-softmax on every exact conditional.

    For each group in turn, Gumbel noise is added to :math:`\log p(n_k \mid n_{<k})`, and the result
    is divided by the temperature. The argmax is an exact draw and the softmax its relaxation; the
    soft boundary after group k is the convolution of the soft sizes up to k. For n above about 100,
    soft sizes are restricted to a window with all but 1e-19 of the probability.

    References:
        Sutter et al., "Learning group importance using the differentiable hypergeometric
        distribution", 2023.

    Args:
        temperature: Positive; lower values make soft sizes closer to integers.
        total_count, log_weights, capacities, minimum, maximum: As in
            :class:`FisherHypergeometric`.
        hard: Whether sizes are integers with straight-through gradients, or soft.

    Example:
        >>> law = RelaxedFisherHypergeometric(0.5, 6, torch.zeros(3))
        >>> law.rsample(generator=torch.Generator().manual_seed(0))
        tensor([3., 2., 1.])
        >>> law.mode
        tensor([2., 2., 2.])
        >>> RelaxedFisherHypergeometric(0.5, 6, torch.tensor([0.0, 0.0, 9.0]), minimum=1).mode
        tensor([1., 1., 4.])
    """

    arg_constraints = {"temperature": constraints.positive, "log_weights": finite_vector}  # noqa: RUF012
    discrete: FisherHypergeometric

    def __init__(
        self,
        temperature: float | Tensor,
        total_count: int,
        log_weights: Tensor,
        capacities: Tensor | None = None,
        hard: bool = True,
        *,
        minimum: int | Tensor | None = None,
        maximum: int | Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        require_choice("hard", hard, (True, False))
        discrete = FisherHypergeometric(
            total_count,
            log_weights,
            capacities,
            minimum=minimum,
            maximum=maximum,
            validate_args=validate_args,
        )
        super().__init__(temperature, discrete, log_weights, hard)

    @constraints.dependent_property(event_dim=1)
    def support(self) -> constraints.Constraint:
        return self.discrete.support if self.hard else NonNegativeSum(self.total_count, 1)

    @property
    def total_count(self) -> int:
        """The number of elements."""
        return self.discrete.total_count

    def draw(
        self, shape: torch.Size, *, noise: bool, generator: torch.Generator | None = None
    ) -> SizeDraw:
        """Hard and soft sizes of a draw; without noise, of the mode, whatever the shape."""
        return draw_softly(self.discrete, self.temperature, shape, generator, noise=noise)

    def _relax(
        self, shape: torch.Size, generator: torch.Generator | None, *, noise: bool
    ) -> Tensor:
        draw = self.draw(shape, noise=noise, generator=generator)
        sizes = straight_through(draw.hard, draw.soft) if self.hard else draw.soft
        return sizes.to(self.dtype)


# --- orders ----------------------------------------------------------------------------------


class RelaxedPlackettLuce(RelaxedLaw):
    """Permutation matrices with reparameterized gradients: Gumbel noise and a relaxed sort.

    Row r of a sample marks the element at rank r. Samples are n x n matrices; for partitions use
    :class:`RelaxedRandomPartition`, which does not build them.

    References:
        Grover et al., "Stochastic optimization of sorting networks via continuous relaxations",
        2019 (NeuralSort). Prillo and Eisenschlos, "SoftSort", 2020. Mena et al., "Learning latent
        permutations with Gumbel-Sinkhorn networks", 2018.

    Args:
        temperature: Positive; lower values make soft matrices closer to permutations.
        log_scores: As in :class:`PlackettLuce`.
        hard: Whether samples are permutation matrices with straight-through gradients, or soft.
        sort: ``"neuralsort"``, ``"softsort"`` or ``"sinkhorn"``.

    Example:
        >>> law = RelaxedPlackettLuce(0.1, torch.tensor([0.0, 2.0, 1.0]))
        >>> law.mode
        tensor([[0., 1., 0.],
                [0., 0., 1.],
                [1., 0., 0.]])
    """

    arg_constraints = {"temperature": constraints.positive, "log_scores": finite_vector}  # noqa: RUF012
    discrete: PlackettLuce

    def __init__(
        self,
        temperature: float | Tensor,
        log_scores: Tensor,
        hard: bool = True,
        sort: str = "neuralsort",
        *,
        validate_args: bool | None = None,
    ) -> None:
        require_choice("hard", hard, (True, False))
        require_choice("sort", sort, tuple(SORTS))
        discrete = PlackettLuce(log_scores, validate_args=validate_args)
        self.sort = sort
        event_shape = torch.Size(discrete.event_shape * 2)
        super().__init__(temperature, discrete, log_scores, hard, event_shape)

    @constraints.dependent_property(event_dim=2)
    def support(self) -> constraints.Constraint:
        n = self.event_shape[0]
        # A permutation matrix assigns one element to every rank.
        return Assignment(WholeSizes(n, 1, 1)) if self.hard else NonNegativeSum(n, 2)

    @property
    def log_scores(self) -> Tensor:
        """The log-score of every element, (..., n)."""
        return self.discrete.log_scores

    def _relax(
        self, shape: torch.Size, generator: torch.Generator | None, *, noise: bool
    ) -> Tensor:
        scores = noisy_scores(self.log_scores, shape, generator, noise=noise)
        # Half precision would lose the order itself.
        dtype = torch.promote_types(self.dtype, torch.float32)
        ratio = tempered(scores, self.temperature)
        soft = SORTS[self.sort](ratio, dtype).to(self.dtype)
        if not self.hard:
            return soft
        return straight_through(
            permutation_matrix(order_descending(scores.detach()), self.dtype), soft
        )


# --- partitions ------------------------------------------------------------------------------


class RelaxedPartitionLaw(_WithSizes):
    """Base class of relaxed partitions: hard, soft, or soft with hard sizes."""

    discrete: PartitionLaw
    _scores: Any  # of the elements, (..., n) or (..., K, n)

    @abstractmethod
    def _fill(self, sizes: SizeDraw, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Y and the order that fills it, from sizes and noisy scores in float64."""

    @constraints.dependent_property(event_dim=2)
    def support(self) -> constraints.Constraint:
        soft = NonNegativeSum(self.event_shape[1], 2)
        return self.discrete.support if self.hard is True else soft

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
        scores = noisy_scores(self._scores, shape, generator, noise=noise != "none")
        partition, order = self._fill(sizes, scores)
        return partition, sizes, order

    def _relax(
        self, shape: torch.Size, generator: torch.Generator | None, *, noise: bool
    ) -> Tensor:
        return self._draw_parts(shape, "both" if noise else "none", generator)[0]


class RelaxedRandomPartition(RelaxedPartitionLaw):
    r"""Partitions with reparameterized gradients in scores and weights.

    :math:`Y = \alpha P`, where relaxed sizes give the ranks of every subset, :math:`\alpha`, and a
    relaxed sort the element at every rank, P. Hard samples have exactly the distribution of
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
        "temperature": constraints.positive,
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
        """The log-score of every element, (..., n)."""
        return self.discrete.log_scores

    _scores = log_scores

    def _fill(self, sizes: SizeDraw, scores: Tensor) -> tuple[Tensor, Tensor]:
        order = order_descending(scores.detach())
        # alpha: the share of every rank in every subset; columns sum to one.
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
        # Rounding may give small negative differences.
        windows = windows.clamp_min(0).to(self.dtype)
        hard = None
        if self.hard is True:
            hard = fill(sizes.hard, order, self.dtype).Y
        filled = fill_softly(windows, ratio, self.sort, order=order, hard=hard)
        return filled.to(self.dtype), order

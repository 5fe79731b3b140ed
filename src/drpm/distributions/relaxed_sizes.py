"""Sizes with gradients."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import constraints

from drpm.distributions.base import Size
from drpm.distributions.boundaries import boundary_survival
from drpm.distributions.constraints import RelaxedSizes, finite_vector, positive
from drpm.distributions.relaxed import RelaxedLaw, temperature_tensor
from drpm.distributions.sizes import FisherHypergeometric
from drpm.distributions.urn_windows import window_width
from drpm.distributions.validation import require_broadcast, require_choice
from drpm.relaxation.gumbel import gumbel_like
from drpm.relaxation.straight_through import straight_through


class SizeDraw(NamedTuple):
    """Sizes as whole numbers, and the soft positions of the boundaries between them."""

    hard: Tensor  # (..., K) float64
    survival: Tensor  # (..., K - 1, n) float64: how far rank r lies in the first k subsets

    @property
    def soft(self) -> Tensor:
        """(..., K): sizes that are not negative and sum to n."""
        n = self.survival.shape[-1]
        stops = self.survival.sum(-1)
        first = torch.zeros_like(self.hard[..., :1])
        return torch.cat([first, stops, first + n], -1).diff(dim=-1)


class RelaxedFisherHypergeometric(RelaxedLaw):
    r"""Sizes with reparameterised gradients: Gumbel-softmax on every exact conditional.

    Group after group, Gumbel noise is added to :math:`\log p(n_k \mid n_{<k})` and the result
    divided by the temperature. The largest entry is an exact draw; the softmax is its relaxation,
    and the soft boundary after group k is the sum of the soft sizes up to k, as a convolution of
    their distributions. For n beyond a hundred or so, soft sizes range over the window that holds
    all but 1e-19 of the law's mass: temperatures far above one flatten them only that far.

    References:
        Sutter et al., "Learning group importance using the differentiable hypergeometric
        distribution", 2023.

    Args:
        temperature: Positive; the lower, the closer soft sizes are to whole numbers.
        total_count: The number n of elements to place.
        log_weights: :math:`\log\omega`, shape (..., K).
        capacities: The number of places in every group, shape (..., K); n each if omitted.
        hard: Whole numbers with straight-through gradients, or soft sizes.

    Example:
        >>> law = RelaxedFisherHypergeometric(0.5, 6, torch.zeros(3))
        >>> law.rsample(generator=torch.Generator().manual_seed(0))
        tensor([3., 2., 1.])
        >>> law.mode
        tensor([2., 2., 2.])
    """

    arg_constraints = {"temperature": positive, "log_weights": finite_vector}  # noqa: RUF012

    def __init__(
        self,
        temperature: float | Tensor,
        total_count: int,
        log_weights: Tensor,
        capacities: Tensor | None = None,
        hard: bool = True,
        *,
        validate_args: bool | None = None,
    ) -> None:
        require_choice("hard", hard, (True, False))
        discrete = FisherHypergeometric(
            total_count, log_weights, capacities, validate_args=validate_args
        )
        check = self._validating(validate_args)
        self.temperature = temperature_tensor(temperature, log_weights, check=check)
        batch = require_broadcast(
            "temperature and log_weights", self.temperature.shape, discrete.batch_shape
        )
        self.discrete = discrete.expand(batch)
        self.hard = hard
        super().__init__(batch, self.discrete.event_shape, validate_args)

    @classmethod
    def of(
        cls, discrete: FisherHypergeometric, temperature: Tensor
    ) -> "RelaxedFisherHypergeometric":
        """The relaxation of a law that was checked already, whose batch the temperature fits."""
        law = cls.__new__(cls)
        law.discrete, law.temperature, law.hard = discrete, temperature, True
        RelaxedLaw.__init__(law, discrete.batch_shape, discrete.event_shape, validate_args=False)
        return law

    @constraints.dependent_property(event_dim=1)
    def support(self) -> constraints.Constraint:
        return self.discrete.support if self.hard else RelaxedSizes(self.discrete.total_count)

    @property
    def dtype(self) -> torch.dtype:
        return self.discrete.dtype

    @property
    def total_count(self) -> int:
        return self.discrete.total_count

    @property
    def log_weights(self) -> Tensor:
        return self.discrete.log_weights

    @property
    def capacities(self) -> Tensor:
        return self.discrete.capacities

    def expand(self, batch_shape: Size, _instance: Any = None) -> "RelaxedFisherHypergeometric":
        return self._expanded(
            batch_shape,
            _instance,
            discrete=self.discrete.expand(batch_shape),
            temperature=self.temperature,
            hard=self.hard,
        )

    def __repr__(self) -> str:
        return (
            f"RelaxedFisherHypergeometric(total_count={self.total_count}, "
            f"groups={self.event_shape[0]}, batch_shape={tuple(self.batch_shape)}, "
            f"hard={self.hard})"
        )

    def draw(
        self, shape: torch.Size, *, noise: bool, generator: torch.Generator | None = None
    ) -> SizeDraw:
        """Both faces of one draw; without noise, the mode, which is one whatever the shape."""
        n, groups = self.total_count, self.event_shape[0]
        full = shape + self.batch_shape if noise else self.batch_shape
        if groups == 1:
            # Nothing depends on the weight of the only group, but a gradient may be asked for.
            nothing = (self.log_weights.double() * 0).expand(*full, 1)
            return SizeDraw(
                nothing.detach() + n, nothing[..., None].expand(*full, 1, n)[..., :0, :]
            )
        temperature = self.temperature.double()
        if noise:
            tables = self.discrete.soft_tables()
            shape = torch.Size([*full, groups - 1, tables.width])
            gumbel = gumbel_like(temperature.new_empty(shape), generator)
            drawn = tables.draw_softly(gumbel, temperature)
        else:
            drawn = self.discrete.soft_mode(temperature)
        return SizeDraw(drawn.hard, boundary_survival(drawn.laws, window_width(n)))

    def _value(self, draw: SizeDraw) -> Tensor:
        sizes = straight_through(draw.hard, draw.soft) if self.hard else draw.soft
        return sizes.to(self.dtype)

    def rsample(
        self, sample_shape: Size = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Sizes with gradients in log-weights and temperature."""
        return self._value(self.draw(torch.Size(sample_shape), noise=True, generator=generator))

    @property
    def mode(self) -> Tensor:
        """The mode of the discrete law, reached without noise and with gradients."""
        return self._value(self.draw(torch.Size(), noise=False))

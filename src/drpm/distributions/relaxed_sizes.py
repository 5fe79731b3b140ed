"""Relaxed sizes."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import constraints

from drpm.distributions.base import RelaxedLaw, Size
from drpm.distributions.constraints import NonNegativeSum, finite_vector, positive
from drpm.distributions.size_tables import window_width
from drpm.distributions.sizes import FisherHypergeometric
from drpm.distributions.validation import require_choice
from drpm.relaxation.reparameterization import gumbel_like, straight_through


class SizeDraw(NamedTuple):
    """Sizes as integers, and the soft positions of the boundaries between them."""

    hard: Tensor  # (..., K) float64
    survival: Tensor  # (..., K - 1, n) float64: how far rank r lies in the first k subsets

    @property
    def soft(self) -> Tensor:
        """(..., K): sizes that are not negative and sum to n."""
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
        # Nothing depends on the weight of the only group, but a gradient may be requested.
        nothing = (law.log_weights.double() * 0).expand(*full, 1)
        return SizeDraw(nothing.detach() + n, nothing[..., None].expand(*full, 1, n)[..., :0, :])
    temperature = temperature.double()
    if noise:
        empty = temperature.new_empty(*full, groups - 1, window_width(n))
        drawn = law.relax(gumbel_like(empty, generator), temperature)
    else:
        drawn = law.relax_mode(temperature)
    return SizeDraw(drawn.hard, boundary_survival(drawn.probs))


# Added to values of generating functions, so that none of them is zero.
_NEARLY_ZERO = 1e-30
_ROUNDING = 37.0  # minus the logarithm of a rounding error


def boundary_survival(probs: Tensor) -> Tensor:
    r"""(..., j, n): the probability that the sum of the first k sizes exceeds a rank.

    The generating function of a sum is the product of those of its terms. Fourier transforms
    evaluate them on a circle, and invert the product. With p nodes on a radius r, masses beyond n
    are counted r^p times where they do not belong, and rounding errors up to r^-n times:
    3 (n + 1) nodes keep both near 1e-12.

    Args:
        probs: (..., j, n + 1), the distributions of independent sizes over 0..n.
    """
    laws = probs
    if probs.shape[-2] > 1 and probs.numel() > 0:
        nodes, scale = _circle(probs)
        values = torch.fft.rfft(probs * scale, nodes) + _NEARLY_ZERO
        # A running product, whose gradient torch takes without a look at the values.
        products = values.log().cumsum(-2).exp()
        laws = torch.fft.irfft(products, nodes)[..., : probs.shape[-1]] / scale
    survival = 1 - laws[..., :-1].cumsum(-1)
    # The clamp only undoes rounding, so it does not stop the gradient.
    return straight_through(survival.detach().clamp(0, 1), survival)


def _circle(probs: Tensor) -> tuple[int, Tensor]:
    """The number of nodes and the powers of the radius."""
    count, n = probs.shape[-2], probs.shape[-1] - 1
    whole = count * n + 1
    nodes = _round_up(min(whole, 3 * (n + 1)))
    fall = 0.0 if nodes >= whole else _ROUNDING / (nodes + n)
    powers = torch.arange(n + 1, dtype=probs.dtype, device=probs.device)
    return nodes, torch.exp(-fall * powers)


def _round_up(length: int) -> int:
    """The next length that a Fourier transform is fast at: a power of two times 8 to 16."""
    step = 1 << max(0, length.bit_length() - 4)
    return -(-length // step) * step


class RelaxedFisherHypergeometric(RelaxedLaw):
    r"""Sizes with reparameterized gradients: Gumbel-softmax on every exact conditional.

    Group after group, Gumbel noise is added to :math:`\log p(n_k \mid n_{<k})` and the result
    divided by the temperature. The largest entry is an exact draw; the softmax is its relaxation,
    and the soft boundary after group k is the sum of the soft sizes up to k, as a convolution of
    their distributions. For n beyond a hundred or so, soft sizes are restricted to a window that
    contains all but 1e-19 of the probability, also at temperatures far above one.

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

    arg_constraints = {"temperature": positive, "log_weights": finite_vector}  # noqa: RUF012
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
        return self.discrete.total_count

    @property
    def log_weights(self) -> Tensor:
        return self.discrete.log_weights

    @property
    def capacities(self) -> Tensor:
        return self.discrete.capacities

    def draw(
        self, shape: torch.Size, *, noise: bool, generator: torch.Generator | None = None
    ) -> SizeDraw:
        """Hard and soft sizes of a draw; without noise, of the mode, whatever the shape."""
        return draw_softly(self.discrete, self.temperature, shape, generator, noise=noise)

    def _value(self, draw: SizeDraw) -> Tensor:
        sizes = straight_through(draw.hard, draw.soft) if self.hard else draw.soft
        return sizes.to(self.dtype)

    def rsample(
        self, sample_shape: Size = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Sample sizes with gradients in log-weights and temperature."""
        return self._value(self.draw(torch.Size(sample_shape), noise=True, generator=generator))

    @property
    def mode(self) -> Tensor:
        """The mode of the discrete distribution, without noise and with gradients."""
        return self._value(self.draw(torch.Size(), noise=False))

"""Orders with gradients."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from drpm.distributions.base import Size
from drpm.distributions.constraints import (
    finite_vector,
    permutation_matrices,
    positive,
    unit_matrix,
)
from drpm.distributions.orders import PlackettLuce
from drpm.distributions.relaxed import RelaxedLaw, temperature_tensor
from drpm.distributions.validation import require_broadcast, require_choice
from drpm.relaxation.gumbel import gumbel_like
from drpm.relaxation.sorting import SORTS, order_descending, permutation_matrix
from drpm.relaxation.straight_through import straight_through

_LARGEST = 1e30  # far from overflow in float32 even when summed over all elements


class RelaxedPlackettLuce(RelaxedLaw):
    """Permutation matrices with reparameterised gradients: Gumbel noise and a relaxed sort.

    Row r of a draw is the element at rank r. A draw is a full n x n matrix; for partitions use
    :class:`RelaxedRandomPartition`, which never builds one.

    References:
        Grover et al., "Stochastic optimization of sorting networks via continuous relaxations",
        2019 (NeuralSort). Prillo and Eisenschlos, "SoftSort", 2020. Mena et al., "Learning latent
        permutations with Gumbel-Sinkhorn networks", 2018.

    Args:
        temperature: Positive; the lower, the closer soft matrices are to permutations.
        log_scores: The log-scores, shape (..., n).
        hard: Permutation matrices with straight-through gradients, or soft ones.
        sort: ``"neuralsort"``, ``"softsort"`` or ``"sinkhorn"``.

    Example:
        >>> law = RelaxedPlackettLuce(0.1, torch.tensor([0.0, 2.0, 1.0]))
        >>> law.mode
        tensor([[0., 1., 0.],
                [0., 0., 1.],
                [1., 0., 0.]])
    """

    arg_constraints = {"temperature": positive, "log_scores": finite_vector}  # noqa: RUF012

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
        check = self._validating(validate_args)
        self.temperature = temperature_tensor(temperature, log_scores, check=check)
        batch = require_broadcast(
            "temperature and log_scores", self.temperature.shape, discrete.batch_shape
        )
        self.discrete = discrete.expand(batch)
        self.hard, self.sort = hard, sort
        event = self.discrete.event_shape * 2
        super().__init__(batch, torch.Size(event), validate_args)

    @classmethod
    def of(cls, discrete: PlackettLuce, temperature: Tensor, sort: str) -> "RelaxedPlackettLuce":
        """The relaxation of a law that was checked already, whose batch the temperature fits."""
        require_choice("sort", sort, tuple(SORTS))
        law = cls.__new__(cls)
        law.discrete, law.temperature, law.hard, law.sort = discrete, temperature, True, sort
        event = torch.Size(discrete.event_shape * 2)
        RelaxedLaw.__init__(law, discrete.batch_shape, event, validate_args=False)
        return law

    @constraints.dependent_property(event_dim=2)
    def support(self) -> constraints.Constraint:
        return permutation_matrices if self.hard else unit_matrix

    @property
    def dtype(self) -> torch.dtype:
        return self.discrete.dtype

    @property
    def log_scores(self) -> Tensor:
        return self.discrete.log_scores

    def expand(self, batch_shape: Size, _instance: Any = None) -> "RelaxedPlackettLuce":
        return self._expanded(
            batch_shape,
            _instance,
            discrete=self.discrete.expand(batch_shape),
            temperature=self.temperature,
            hard=self.hard,
            sort=self.sort,
        )

    def __repr__(self) -> str:
        return (
            f"RelaxedPlackettLuce(elements={self.event_shape[0]}, "
            f"batch_shape={tuple(self.batch_shape)}, hard={self.hard}, sort={self.sort!r})"
        )

    def noisy_scores(
        self, shape: torch.Size, *, noise: bool, generator: torch.Generator | None = None
    ) -> Tensor:
        """Log-scores to sort, float64: ties are as rare as they should be."""
        scores = self.log_scores.double().expand(shape + self.log_scores.shape)
        return scores + gumbel_like(scores, generator) if noise else scores

    def tempered(self, scores: Tensor) -> Tensor:
        """Scores over temperature, what a relaxed sort takes: float32 at least, and finite."""
        wide = torch.promote_types(self.dtype, torch.float32)
        tempered = scores / self._batch_temperature(1).double()
        return tempered.clamp(-_LARGEST, _LARGEST).to(wide)

    def _matrix(self, scores: Tensor) -> Tensor:
        soft = SORTS[self.sort](self.tempered(scores)).to(self.dtype)
        if not self.hard:
            return soft
        return straight_through(permutation_matrix(descending(scores), self.dtype), soft)

    def rsample(
        self, sample_shape: Size = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Permutation matrices with gradients in log-scores and temperature."""
        shape = torch.Size(sample_shape)
        return self._matrix(self.noisy_scores(shape, noise=True, generator=generator))

    @property
    def mode(self) -> Tensor:
        """The sorted order, without noise and with gradients."""
        return self._matrix(self.noisy_scores(torch.Size(), noise=False))


def descending(scores: Tensor) -> Tensor:
    """The element at every rank."""
    return order_descending(scores.detach())

"""Relaxed partitions in which every subset has its own scores of the elements."""

import torch
from torch import Tensor

from drpm.distributions.affinities import AffinityPartition
from drpm.distributions.base import for_events
from drpm.distributions.constraints import finite_matrix, finite_vector, positive
from drpm.distributions.orders import LARGEST
from drpm.distributions.relaxed_partitions import RelaxedPartitionLaw
from drpm.distributions.relaxed_sizes import SizeDraw
from drpm.distributions.validation import require_choice
from drpm.relaxation.reparameterization import straight_through
from drpm.relaxation.top_k import fill_by_rows_softly


class RelaxedAffinityPartition(RelaxedPartitionLaw):
    r"""Partitions by affinities, with reparameterized gradients in affinities and weights.

    Add Gumbel noise :math:`g_{ki}` to the log-affinities. One after another, the subsets take
    shares of what the earlier ones left of every element:

    .. math:: Y_{ki} = w_{ki}\, \sigma\bigl((a_{ki} + g_{ki} - t_k) / \tau\bigr),
              \qquad w_{ki} = 1 - \sum_{j < k} Y_{ji}

    with the threshold :math:`t_k` at which the shares sum to the relaxed size, and the last subset
    takes the rest. So rows sum to the sizes, and columns to one. Hard samples have exactly the
    distribution of :class:`AffinityPartition`, at any temperature, and the gradients of the soft
    ones.

    Which elements a subset takes depends on a threshold alone, and not on their order: this soft
    top-k needs no relaxed sort, and takes time and memory linear in n. What a subset takes is
    missing from the later ones, so the gradient of an affinity reaches all subsets that compete
    for the element.

    Args:
        temperature: Positive; lower values make soft partitions closer to hard ones.
        log_affinities: a, one row for each subset, shape (..., K, n).
        log_weights: :math:`\log\omega`, shape (..., K).
        capacities: The maximum sizes m_k of the urn, shape (..., K); by default n.
        minimum: The least sizes, an integer or shape (K,); by default 0.
        maximum: The largest sizes, an integer or shape (K,); by default the capacities.
        hard: ``True``: one-hot columns with straight-through gradients; ``False``: soft;
            ``"sizes"``: integer sizes with straight-through gradients, soft otherwise.

    Example:
        >>> log_affinities = torch.tensor([[2.0, 0.0, 1.0], [0.0, 2.0, 0.0]], requires_grad=True)
        >>> law = RelaxedAffinityPartition(0.5, log_affinities, torch.zeros(2))
        >>> Y = law.rsample(generator=torch.Generator().manual_seed(1))
        >>> Y.detach()
        tensor([[1., 0., 0.],
                [0., 1., 1.]])
        >>> (Y * torch.randn(2, 3)).sum().backward()
        >>> bool(log_affinities.grad.abs().sum() > 0)
        True
    """

    arg_constraints = {  # noqa: RUF012
        "temperature": positive,
        "log_affinities": finite_matrix,
        "log_weights": finite_vector,
    }
    discrete: AffinityPartition

    def __init__(
        self,
        temperature: float | Tensor,
        log_affinities: Tensor,
        log_weights: Tensor,
        capacities: Tensor | None = None,
        *,
        minimum: int | Tensor | None = None,
        maximum: int | Tensor | None = None,
        hard: bool | str = True,
        validate_args: bool | None = None,
    ) -> None:
        require_choice("hard", hard, (True, False, "sizes"))
        discrete = AffinityPartition(
            log_affinities,
            log_weights,
            capacities,
            minimum=minimum,
            maximum=maximum,
            validate_args=validate_args,
        )
        batch = self._set_discrete(temperature, discrete, log_affinities, "the parameters")
        self.hard = hard
        super().__init__(batch, self.discrete.event_shape, validate_args)

    @property
    def log_affinities(self) -> Tensor:
        return self.discrete.log_affinities

    @property
    def _scores(self) -> Tensor:
        return self.log_affinities

    def _fill(self, sizes: SizeDraw, scores: Tensor) -> tuple[Tensor, Tensor]:
        parts = self.discrete.fill_parts(sizes.hard, scores)
        if self.hard is True and not torch.is_grad_enabled():
            return parts.Y, parts.order
        ratio = (scores / for_events(self.temperature, 2)).clamp(-LARGEST, LARGEST)
        value = straight_through(sizes.hard, sizes.soft) if self.hard == "sizes" else sizes.soft
        soft = fill_by_rows_softly(value, ratio).to(self.dtype)
        return straight_through(parts.Y, soft) if self.hard is True else soft, parts.order

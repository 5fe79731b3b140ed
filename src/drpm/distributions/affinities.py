"""The distribution over partitions in which every subset has its own scores of the elements."""

from typing import Any

import torch
from torch import Tensor

from drpm.distributions import plackett_luce_integral
from drpm.distributions.base import Size
from drpm.distributions.constraints import finite_matrix, finite_vector
from drpm.distributions.orders import noisy_scores
from drpm.distributions.partitions import PartitionLaw, Parts, assignment_matrix, fill
from drpm.distributions.sizes import FisherHypergeometric
from drpm.distributions.validation import (
    describe,
    require_broadcast,
    require_finite,
    require_floating,
    require_vector,
)
from drpm.relaxation.sorting import order_descending


class AffinityPartition(PartitionLaw):
    r"""Distribution over partitions in which subset k chooses by its own affinities.

    Sample the sizes. Then, one after another, subset k takes the first :math:`n_k` elements of a
    Plackett-Luce order of the elements that are left, with the scores :math:`e^{a_{ki}}`; the last
    subset takes the rest:

    .. math:: p(Y) = p(n_1, \dots, n_K) \prod_k \int_0^1 \prod_{i \in S_k}
              \bigl(1 - u^{\exp(a_{ki}) / \Lambda_k}\bigr)\, du,
              \qquad \Lambda_k = \sum_{i \in S_{k+1} \cup \dots \cup S_K} e^{a_{ki}}

    With equal rows it is :class:`RandomPartition`. The order of the subsets matters: the first
    chooses first, and the affinities of the last have no effect.

    Args:
        log_affinities: a, one row for each subset, shape (..., K, n).
        log_weights: :math:`\log\omega`, one per subset, shape (..., K).
        capacities: The maximum sizes m_k of the urn, shape (..., K); by default n.
        minimum: The least sizes, an integer or shape (K,); by default 0.
        maximum: The largest sizes, an integer or shape (K,); by default the capacities.

    Example:
        >>> log_affinities = torch.tensor([[2.0, 0.0, 0.0, 2.0], [0.0, 2.0, 0.0, 0.0]])
        >>> law = AffinityPartition(log_affinities, torch.zeros(2))
        >>> law.greedy
        tensor([[1., 0., 0., 1.],
                [0., 1., 1., 0.]])
        >>> law.log_prob(law.greedy).exp()
        tensor(0.3565)
    """

    arg_constraints = {  # noqa: RUF012
        "log_affinities": finite_matrix,
        "log_weights": finite_vector,
    }
    sizes: FisherHypergeometric

    def __init__(
        self,
        log_affinities: Tensor,
        log_weights: Tensor,
        capacities: Tensor | None = None,
        *,
        minimum: int | Tensor | None = None,
        maximum: int | Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        require_floating("log_affinities", log_affinities)
        require_vector("log_weights", log_weights, "group")
        groups = log_weights.shape[-1]
        rows = log_affinities.shape[-2:]
        if len(rows) < 2 or rows[0] != groups or not rows[1]:
            raise ValueError(
                f"log_affinities must have shape (..., {groups}, n), one row for each of the "
                f"{groups} groups of log_weights, but got {describe(log_affinities)}."
            )
        if self._validating(validate_args):
            require_finite("log_affinities", log_affinities)
        limits = {"minimum": minimum, "maximum": maximum}
        given: Any = {name: limit for name, limit in limits.items() if limit is not None}
        sizes = FisherHypergeometric(
            rows[1], log_weights, capacities, validate_args=validate_args, **given
        )
        names = "log_affinities and log_weights"
        batch = require_broadcast(names, log_affinities.shape[:-2], sizes.batch_shape)
        self.sizes = sizes if sizes.batch_shape == batch else sizes.expand(batch)
        self.log_affinities = log_affinities.expand(*batch, *rows)
        super().__init__(batch, rows, validate_args)

    @property
    def dtype(self) -> torch.dtype:
        return torch.promote_types(self.log_affinities.dtype, self.sizes.dtype)

    def expand(self, batch_shape: Size, _instance: Any = None) -> "AffinityPartition":
        return self._expanded(
            batch_shape,
            _instance,
            sizes=self.sizes.expand(torch.Size(batch_shape)),
            log_affinities=self.log_affinities.expand(*batch_shape, *self.event_shape),
        )

    def draw_parts(self, shape: torch.Size, *, generator: torch.Generator | None = None) -> Parts:
        sizes = self.sizes.draw_sizes(shape, generator)
        return self.fill_parts(sizes, noisy_scores(self.log_affinities, shape, generator))

    def fill_parts(self, sizes: Tensor, scores: Tensor) -> Parts:
        """The partition if each subset takes its best of what is left, by scores (..., K, n)."""
        order = order_by_rows(sizes, scores)
        subsets = fill(sizes, order)
        return Parts(assignment_matrix(subsets, self.event_shape[0], self.dtype), sizes, order)

    @property
    def greedy(self) -> Tensor:
        """The most likely sizes, filled subset by subset with the largest affinities of the rest.

        It need not be the most likely partition.
        """
        with torch.no_grad():
            return self.fill_parts(self.sizes.most_likely_sizes(), self.log_affinities).Y

    def fill_log_prob(self, value: Tensor) -> Tensor:
        rows = self.log_affinities.double()
        return plackett_luce_integral.block_log_probs(rows, value).sum(-1)

    def order_log_prob(self, value: Tensor, order: Tensor) -> Tensor:
        # At every rank, subset k chooses among all elements from there on, by its own row.
        batch = torch.broadcast_shapes(value.shape[:-2], order.shape[:-1], self.batch_shape)
        index = order[..., None, :].expand(*batch, *self.event_shape)
        rows = self.log_affinities.double().expand(*batch, *self.event_shape).gather(-1, index)
        chosen = value.expand(*batch, *self.event_shape).gather(-1, index) > 0
        log_probs = rows - rows.flip(-1).logcumsumexp(-1).flip(-1)
        return torch.where(chosen, log_probs, 0.0).sum((-2, -1))

    def most_likely_order(self, value: Tensor) -> Tensor:
        """Subset by subset, the elements of each by descending affinity."""
        own = torch.where(value > 0, self.log_affinities, 0.0).sum(-2)
        by_affinity = torch.argsort(own, dim=-1, descending=True, stable=True)
        subsets = value.argmax(-2).expand_as(by_affinity).gather(-1, by_affinity)
        order: Tensor = by_affinity.gather(-1, torch.argsort(subsets, dim=-1, stable=True))
        return order

    def best_order_log_prob(self, value: Tensor) -> Tensor:
        return self.order_log_prob(value, self.most_likely_order(value))

    def marginals(
        self, num_samples: int = 1000, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """An estimate from samples of the probability that an element is in a subset, (..., K, n).

        With 1,000 samples its standard error is at most 0.016. It has no gradients; use
        :func:`score_function_loss` for those of an expectation.
        """
        sums = [draw.Y.double().sum(0) for draw in self.draws(num_samples, generator)]
        return (torch.stack(sums).sum(0) / num_samples).to(self.dtype)


def order_by_rows(sizes: Tensor, scores: Tensor) -> Tensor:
    """The element at every rank if each subset takes its best of what is left, int64 (..., n).

    Args:
        sizes: (..., K), integers.
        scores: (..., K, n), the scores by which every subset chooses.
    """
    n = scores.shape[-1]
    *orders, last = order_descending(scores.detach()).unbind(-2)
    rank = torch.zeros_like(last)  # counted from 1, and 0 where an element is left
    for order, size in zip([*orders, last], sizes.unbind(-1), strict=True):
        left = (rank == 0).gather(-1, order)
        position = left.cumsum(-1)
        taken = left if order is last else left & (position <= size[..., None])
        ranks = torch.where(taken, n - position[..., -1:] + position, 0)
        rank = rank + torch.zeros_like(rank).scatter(-1, order, ranks)
    elements = torch.arange(n, device=rank.device).expand_as(rank)
    return torch.zeros_like(rank).scatter(-1, rank - 1, elements)

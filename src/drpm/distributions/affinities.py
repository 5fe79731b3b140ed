"""Partitions with separate scores of the elements for every subset, and their relaxation."""

import torch
from torch import Tensor
from torch.distributions import constraints

from drpm.distributions import plackett_luce_integral
from drpm.distributions.orders import noisy_scores, order_within
from drpm.distributions.partitions import PartitionLaw, Parts, fill
from drpm.distributions.relaxed import RelaxedPartitionLaw, SizeDraw, tempered
from drpm.distributions.sizes import FisherHypergeometric
from drpm.distributions.validation import (
    describe,
    finite_matrix,
    finite_vector,
    require_broadcast,
    require_choice,
    require_finite,
    require_floating,
    require_vector,
)
from drpm.relaxation.filling import fill_by_rows_softly
from drpm.relaxation.operators import order_descending, straight_through


class AffinityPartition(PartitionLaw):
    r"""Distribution over partitions in which each subset has its own affinities.

    Sample the sizes. Then, in sequence, subset k takes the first :math:`n_k` elements of a
    Plackett-Luce order of the remaining elements with scores :math:`e^{a_{ki}}`; the last subset
    takes the rest:

    .. math:: p(Y) = p(n_1, \dots, n_K) \prod_k \int_0^1 \prod_{i \in S_k}
              \bigl(1 - u^{\exp(a_{ki}) / \Lambda_k}\bigr)\, du

    .. math:: \Lambda_k = \sum_{i \in S_{k+1} \cup \dots \cup S_K} e^{a_{ki}}

    With equal rows this is :class:`RandomPartition`. The order of the subsets matters: the first
    one chooses first, and the affinities of the last one have no effect.

    Args:
        log_affinities: a, one row for each subset, shape (..., K, n).
        log_weights: :math:`\log\omega`, one per subset, shape (..., K).
        capacities, minimum, maximum: As in :class:`FisherHypergeometric`.

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
        minimum: int | Tensor | None = None,
        maximum: int | Tensor | None = None,
        *,
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
        if validate_args is not False:
            require_finite("log_affinities", log_affinities)
        sizes = FisherHypergeometric(
            rows[1],
            log_weights,
            capacities,
            minimum=minimum,
            maximum=maximum,
            validate_args=validate_args,
        )
        names = "log_affinities and log_weights"
        batch = require_broadcast(names, log_affinities.shape[:-2], sizes.batch_shape)
        self.sizes = sizes.broadcast(batch)
        self.log_affinities = log_affinities.expand(*batch, *rows)
        super().__init__(batch, rows, validate_args)

    @property
    def dtype(self) -> torch.dtype:
        return torch.promote_types(self.log_affinities.dtype, self.sizes.dtype)

    def draw_parts(self, shape: torch.Size, *, generator: torch.Generator | None = None) -> Parts:
        sizes = self.sizes.draw_sizes(shape, generator)
        return self.fill_parts(sizes, noisy_scores(self.log_affinities, shape, generator))

    def fill_parts(self, sizes: Tensor, scores: Tensor) -> Parts:
        """The partition if each subset in turn takes its best remaining elements, by scores."""
        return fill(sizes, order_by_rows(sizes, scores), self.dtype)

    @property
    def mean(self) -> Tensor:
        raise NotImplementedError(
            "AffinityPartition has no exact mean; use marginals(num_samples=...)."
        )

    @property
    def mode(self) -> Tensor:
        raise NotImplementedError(
            "AffinityPartition has no exact mode; greedy is the partition without noise."
        )

    @property
    def greedy(self) -> Tensor:
        """The most likely sizes, filled in sequence with the largest remaining affinities.

        This need not be the most likely partition.
        """
        with torch.no_grad():
            return self.fill_parts(self.sizes.most_likely_sizes(), self.log_affinities).Y

    def fill_log_prob(self, value: Tensor) -> Tensor:
        rows = self.log_affinities.double()
        return plackett_luce_integral.block_log_probs(rows, value).sum(-1)

    def order_log_prob(self, value: Tensor, order: Tensor) -> Tensor:
        # At every rank, subset k chooses among all later elements by its own row.
        batch = torch.broadcast_shapes(value.shape[:-2], order.shape[:-1], self.batch_shape)
        index = order[..., None, :].expand(*batch, *self.event_shape)
        rows = self.log_affinities.double().expand(*batch, *self.event_shape).gather(-1, index)
        chosen = value.expand(*batch, *self.event_shape).gather(-1, index) > 0
        log_probs = rows - rows.flip(-1).logcumsumexp(-1).flip(-1)
        return torch.where(chosen, log_probs, 0.0).sum((-2, -1))

    def most_likely_order(self, value: Tensor) -> Tensor:
        return order_within(value, torch.where(value > 0, self.log_affinities, 0.0).sum(-2))

    def best_order_log_prob(self, value: Tensor) -> Tensor:
        return self.order_log_prob(value, self.most_likely_order(value))

    def marginals(
        self, num_samples: int = 1000, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """A Monte Carlo estimate of the probability that an element is in a subset, (..., K, n).

        The standard error is at most 0.016 with 1,000 samples. For gradients of expectations, use
        :func:`score_function_loss`.
        """
        sums = [draw.Y.double().sum(0) for draw in self.draws(num_samples, generator)]
        return (torch.stack(sums).sum(0) / num_samples).to(self.dtype)


def order_by_rows(sizes: Tensor, scores: Tensor) -> Tensor:
    """The element at every rank, int64 (..., n); each subset takes its best remaining elements."""
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


class RelaxedAffinityPartition(RelaxedPartitionLaw):
    r"""Partitions by affinities, with reparameterized gradients in affinities and weights.

    Add Gumbel noise :math:`g_{ki}` to the log-affinities. In sequence, the subsets take shares of
    the remainder of every element:

    .. math:: Y_{ki} = w_{ki}\, \sigma\bigl((a_{ki} + g_{ki} - t_k) / \tau\bigr),
              \qquad w_{ki} = 1 - \sum_{j < k} Y_{ji}

    where the threshold :math:`t_k` makes the shares sum to the relaxed size; the last subset takes
    the rest. Rows sum to the sizes, and columns to one. Hard samples have exactly the distribution
    of :class:`AffinityPartition`, at any temperature, and the gradients of the soft samples.

    This soft top-k needs no relaxed sort: time and memory are linear in n. The gradient of an
    affinity reaches all subsets that compete for the element.

    Args:
        temperature: Positive; lower values make soft partitions closer to hard ones.
        log_affinities, log_weights, capacities, minimum, maximum: As in
            :class:`AffinityPartition`.
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
        "temperature": constraints.positive,
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
        minimum: int | Tensor | None = None,
        maximum: int | Tensor | None = None,
        hard: bool | str = True,
        *,
        validate_args: bool | None = None,
    ) -> None:
        require_choice("hard", hard, (True, False, "sizes"))
        discrete = AffinityPartition(
            log_affinities, log_weights, capacities, minimum, maximum, validate_args=validate_args
        )
        super().__init__(temperature, discrete, log_affinities, hard)

    @property
    def log_affinities(self) -> Tensor:
        """The log-affinity of every group to every element, (..., K, n)."""
        return self.discrete.log_affinities

    _scores = log_affinities

    def _fill(self, sizes: SizeDraw, scores: Tensor) -> tuple[Tensor, Tensor]:
        parts = self.discrete.fill_parts(sizes.hard, scores)
        if self.hard is True and not torch.is_grad_enabled():
            return parts.Y, parts.order
        ratio = tempered(scores, self.temperature, event_dims=2)
        value = straight_through(sizes.hard, sizes.soft) if self.hard == "sizes" else sizes.soft
        soft = fill_by_rows_softly(value, ratio).to(self.dtype)
        return straight_through(parts.Y, soft) if self.hard is True else soft, parts.order

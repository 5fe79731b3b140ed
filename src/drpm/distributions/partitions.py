"""The distribution over partitions, and unbiased gradients of expectations over samples."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import constraints, kl_divergence, register_kl

from drpm.distributions.base import Law, OrderLaw, SizeLaw
from drpm.distributions.orders import PlackettLuce
from drpm.distributions.sizes import FisherHypergeometric, sizes_kl
from drpm.distributions.validation import (
    Assignment,
    can_check_values,
    finite_vector,
    permutation,
    require_broadcast,
    require_choice,
    require_count,
    require_event,
    require_indices,
    require_vector,
)

MODE_LIMIT = 512
_DRAW_BUDGET = 1 << 22


class Bounds(NamedTuple):
    """A lower and an upper bound on a log-probability."""

    lower: Tensor
    upper: Tensor


class Parts(NamedTuple):
    """A partition, its sizes and the order that filled them."""

    Y: Tensor  # (..., K, n)
    sizes: Tensor  # (..., K)
    order: Tensor  # (..., n) int64


def leave_one_out_surrogate(costs: Tensor, log_probs: Tensor) -> Tensor:
    """The mean cost over the first dimension, with an unbiased score-function gradient.

    The log-probability of each sample is weighted by its cost minus the mean cost of the other
    samples, a baseline that is independent of the sample.
    """
    draws = costs.shape[0]
    others = (costs.sum(0) - costs) / (draws - 1) if draws > 1 else torch.zeros_like(costs)
    advantage = (costs - others).detach()
    return (costs + advantage * (log_probs - log_probs.detach())).mean(0)


def score_function_loss(
    law: Law,
    cost: Callable[[Tensor], Tensor],
    num_samples: int,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""The expected cost of a sample, with unbiased gradients in the parameters.

    .. math:: \nabla E_{y \sim p}[c(y)] = E_{y \sim p}[\nabla c(y) + c(y) \nabla \log p(y)]

    Use it if the cost is only defined for discrete samples.

    Args:
        law: Any distribution with ``sample`` and ``log_prob``.
        cost: Maps samples of shape ``(num_samples, *batch_shape, *event_shape)`` to costs of shape
            ``(num_samples, *batch_shape)``; may itself be differentiable in other parameters.
        num_samples: Number of samples; at least two for the leave-one-out baseline.

    Returns:
        The mean cost, shape ``batch_shape``: a loss to call ``backward`` on.

    Example:
        >>> from drpm import PlackettLuce
        >>> scores = torch.zeros(3, requires_grad=True)
        >>> generator = torch.Generator().manual_seed(0)
        >>> first_is_2 = lambda order: (order[..., 0] == 2).float()
        >>> loss = score_function_loss(PlackettLuce(scores), first_is_2, 5000, generator=generator)
        >>> loss.backward()
        >>> bool(scores.grad[2] > 0 > scores.grad[0])
        True
    """
    shape = (require_count("num_samples", num_samples),)
    # Torch's own distributions take no generator.
    draws = law.sample(shape) if generator is None else law.sample(shape, generator=generator)
    costs = cost(draws)
    expected = torch.Size([num_samples]) + law.batch_shape
    if costs.shape != expected:
        raise ValueError(
            f"cost must return one number per sample, shape {tuple(expected)}, "
            f"but got shape {tuple(costs.shape)}."
        )
    log_probs: Tensor = law.log_prob(draws)
    return leave_one_out_surrogate(costs, log_probs)


def fill(sizes: Tensor, order: Tensor, dtype: torch.dtype) -> Parts:
    """The partition that fills subsets of integer sizes (..., K) in a given order."""
    stops = sizes.double().cumsum(-1)[..., :-1, None]
    ranks = torch.arange(order.shape[-1], dtype=stops.dtype, device=order.device)
    at_rank = (ranks >= stops).sum(-2)
    if at_rank.shape != order.shape:
        at_rank, order = torch.broadcast_tensors(at_rank, order)
    subsets = torch.zeros_like(order).scatter(-1, order, at_rank)
    index = torch.arange(sizes.shape[-1], device=order.device)
    return Parts((subsets[..., None, :] == index[:, None]).to(dtype), sizes, order)


class PartitionLaw(Law):
    """Base class of distributions over partitions: sizes first, then an order that fills them."""

    sizes: SizeLaw

    @property
    def _expected(self) -> str:  # type: ignore[override]
        sizes = self.sizes._expected
        return f"an assignment matrix with one-hot columns, whose subsets have {sizes}"

    @abstractmethod
    def draw_parts(self, shape: torch.Size, *, generator: torch.Generator | None = None) -> Parts:
        """Sample a partition together with its sizes and its order."""

    @abstractmethod
    def fill_log_prob(self, value: Tensor) -> Tensor:
        """log p(Y | sizes): the sum over all orders that fill the subsets this way, float64."""

    @abstractmethod
    def order_log_prob(self, value: Tensor, order: Tensor) -> Tensor:
        """The log-probability of an order that fills the subsets of Y, given its sizes, float64."""

    @abstractmethod
    def most_likely_order(self, value: Tensor) -> Tensor:
        """The most likely order that fills the subsets of Y."""

    @abstractmethod
    def best_order_log_prob(self, value: Tensor) -> Tensor:
        """Upper bound on the log-probability of an order that fills the subsets of Y, float64."""

    @constraints.dependent_property(is_discrete=True, event_dim=2)
    def support(self) -> Assignment:
        return Assignment(self.sizes.support)  # type: ignore[arg-type]

    @property
    def log_weights(self) -> Tensor:
        """The log-weight of every group, where the size law has them."""
        return self.sizes.log_weights  # type: ignore[attr-defined, no-any-return]

    @property
    def capacities(self) -> Tensor:
        """The number of places in every group, where the size law has them."""
        return self.sizes.capacities  # type: ignore[attr-defined, no-any-return]

    def draws(self, num_samples: int, generator: torch.Generator | None) -> Iterator[Parts]:
        """``num_samples`` draws along a leading dimension, in chunks."""
        entries = max(1, self.batch_shape.numel() * self.event_shape.numel())
        size = max(1, _DRAW_BUDGET // entries)
        for start in range(0, require_count("num_samples", num_samples), size):
            shape = torch.Size([min(size, num_samples - start)])
            with torch.no_grad():
                draw = self.draw_parts(shape, generator=generator)
            yield draw

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        return self.draw_parts(shape, generator=generator).Y

    def log_prob(self, value: Tensor) -> Tensor:
        """The exact log-probability, with gradients, in time and memory linear in n."""
        value, inside = self._inside(value)
        return self._masked(self.size_log_prob(value) + self.fill_log_prob(value), inside)

    def size_log_prob(self, value: Tensor) -> Tensor:
        """log p(sizes of Y), float64."""
        return self.sizes.log_prob(value.double().sum(-1)).double()

    def log_prob_bounds(self, value: Tensor, order: Tensor | None = None) -> Bounds:
        r"""The paper's bounds on ``log_prob``.

        .. math:: p(n)\, p(\pi) \le p(Y) \le |\Pi_Y|\, p(n) \max_{\tilde\pi} p(\tilde\pi)

        The maximum is over all orders, as in the paper, or for :class:`AffinityPartition` over
        those in :math:`\Pi_Y`, which is tighter.

        Args:
            value: An assignment matrix (..., K, n).
            order: The order that led to it, (..., n); the most likely compatible one if omitted.
        """
        value, inside = self._inside(value)
        value = value.double()
        if order is None:
            order = self.most_likely_order(value)
        else:
            order, compatible = self._check_order(value, order)
            inside = compatible if inside is None else inside & compatible
        sizes = value.sum(-1)
        log_sizes = self.size_log_prob(value)
        lower = log_sizes + self.order_log_prob(value, order)
        best = self.best_order_log_prob(value)
        upper = log_sizes + torch.lgamma(sizes + 1).sum(-1) + best
        return Bounds(self._masked(lower, inside), self._masked(upper, inside))

    def _check_order(self, value: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        """Check an order; return it and a mask of compatible orders."""
        require_event("order", order, self.event_shape[1:], self.batch_shape)
        require_indices("order", order, self.event_shape[1])
        batch = require_broadcast("value and order", value.shape[:-2], order.shape[:-1])
        index = order.expand(*batch, -1)
        subsets = value.argmax(-2).expand(*batch, -1).gather(-1, index)
        compatible = permutation.check(order) & (subsets.diff(dim=-1) >= 0).all(-1)
        if self._validate_args and can_check_values(compatible) and not bool(compatible.all()):
            raise ValueError(
                "order must contain every element once and fill the subsets of value one after the "
                f"other, but got {index[~compatible][0].tolist() if batch else order.tolist()}."
            )
        return order, compatible

    def entropy(
        self, num_samples: int = 1000, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """The entropy: exact for the sizes, a Monte Carlo estimate for the order.

        Gradients are unbiased: they include the score-function term.
        """
        costs, log_probs = [], []
        for draw in self.draws(num_samples, generator):
            log_fill = self.fill_log_prob(draw.Y)
            costs.append(-log_fill)
            log_probs.append(self.size_log_prob(draw.Y) + log_fill)
        fills = leave_one_out_surrogate(torch.cat(costs), torch.cat(log_probs))
        return (self.sizes.entropy().double() + fills).to(self.dtype)


class RandomPartition(PartitionLaw):
    r"""Distribution over the partitions of n elements into at most K subsets.

    Sample the sizes, sample an order, and fill the subsets in sequence:

    .. math:: p(Y) = p(n_1, \dots, n_K) \sum_{\pi \in \Pi_Y} p(\pi)

    The sum over all orders that lead to Y is computed exactly, by a one-dimensional integral
    for each subset; see :mod:`drpm.distributions.plackett_luce_integral`.

    References:
        Sutter, Ryser, Liebeskind and Vogt, "Differentiable random partition models", 2023.

    Args:
        log_scores: :math:`\log s`, one per element, shape (..., n).
        log_weights: :math:`\log\omega`, one per subset, shape (..., K).
        capacities, minimum, maximum: As in :class:`FisherHypergeometric`.

    Example:
        >>> law = RandomPartition(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 0.5]))
        >>> law.mode
        tensor([[0., 0., 1.],
                [1., 1., 0.]])
        >>> law.log_prob(law.mode).exp()
        tensor(0.3634)
        >>> law.marginals()
        tensor([[0.1703, 0.4063, 0.6994],
                [0.8297, 0.5937, 0.3006]])
        >>> scores, weights = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 9.0])
        >>> RandomPartition(scores, weights, minimum=1).mode
        tensor([[0., 0., 1.],
                [1., 1., 0.]])
    """

    arg_constraints = {"log_scores": finite_vector, "log_weights": finite_vector}  # noqa: RUF012

    def __init__(
        self,
        log_scores: Tensor,
        log_weights: Tensor,
        capacities: Tensor | None = None,
        *,
        minimum: int | Tensor | None = None,
        maximum: int | Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        require_vector("log_scores", log_scores, "element")
        require_vector("log_weights", log_weights, "group")
        sizes = FisherHypergeometric(
            log_scores.shape[-1],
            log_weights,
            capacities,
            minimum=minimum,
            maximum=maximum,
            validate_args=validate_args,
        )
        order = PlackettLuce(log_scores, validate_args=validate_args)
        self._set_laws(sizes, order, validate_args, "log_scores and log_weights")

    @classmethod
    def from_laws(
        cls, sizes: SizeLaw, order: OrderLaw, *, validate_args: bool | None = None
    ) -> "RandomPartition":
        """Combine any distribution over sizes with any distribution over orders.

        ``partition_kl`` also needs the divergence of the size laws, by
        ``torch.distributions.register_kl``. There is no relaxed version.
        """
        law = cls.__new__(cls)
        if order.event_shape[0] != sizes.total_count:
            raise ValueError(
                f"sizes must be a distribution over {order.event_shape[0]} elements, as order is, "
                f"but got total_count = {sizes.total_count}."
            )
        law._set_laws(sizes, order, validate_args, "order and sizes")
        return law

    def _set_laws(
        self, sizes: SizeLaw, order: OrderLaw, validate_args: bool | None, names: str
    ) -> None:
        batch = require_broadcast(names, order.batch_shape, sizes.batch_shape)
        self.sizes, self.order = sizes.broadcast(batch), order.broadcast(batch)
        event = sizes.event_shape + order.event_shape
        super().__init__(batch, event, validate_args)

    @property
    def log_scores(self) -> Tensor:
        """The log-score of every element, where the order has them."""
        return self.order.log_scores  # type: ignore[attr-defined, no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        return torch.promote_types(self.order.dtype, self.sizes.dtype)

    def draw_parts(self, shape: torch.Size, *, generator: torch.Generator | None = None) -> Parts:
        sizes = self.sizes.draw_sizes(shape, generator)
        return fill(sizes, self.order.sample(shape, generator=generator), self.dtype)

    def fill_log_prob(self, value: Tensor) -> Tensor:
        return self.order.block_log_probs(value).sum(-1)

    def order_log_prob(self, value: Tensor, order: Tensor) -> Tensor:
        return self.order.log_prob(order).double()

    def most_likely_order(self, value: Tensor) -> Tensor:
        return self.order.most_likely_within(value)

    def best_order_log_prob(self, value: Tensor) -> Tensor:
        return self.order.log_prob(self.order.mode).double()

    def marginals(self) -> Tensor:
        r"""The exact probability that an element is in a subset, (..., K, n).

        It takes :math:`O(n^{1.5})` time: some seconds for n = 500.
        """
        windows = window_differences(self.sizes.boundary_survival())
        return self.order.rank_expectations(windows).to(self.dtype)

    @property
    def mean(self) -> Tensor:
        return self.marginals()

    @property
    def variance(self) -> Tensor:
        """The variance of every entry, which is 0 or 1."""
        marginals = self.marginals()
        return marginals * (1 - marginals)

    @property
    def mode(self) -> Tensor:
        """The most likely partition, for up to 512 elements (some seconds).

        Given the sizes, filling in sorted order is most likely; a dynamic program finds the sizes.
        """
        n = self.event_shape[1]
        if n > MODE_LIMIT:
            raise ValueError(
                f"mode is limited to {MODE_LIMIT} elements (its cost grows as n^2.5), "
                f"but got {n}; the noise-free mode of RelaxedRandomPartition has no such limit."
            )
        with torch.no_grad():
            sizes = self.sizes.best_sizes(self.order.sorted_block_log_probs())
            return fill(sizes, self.order.mode, self.dtype).Y


def window_differences(survival: Tensor) -> Tensor:
    """From P(rank in the first k subsets), (..., K - 1, n), to P(rank in subset k), (..., K, n)."""
    return F.pad(survival, (0, 0, 0, 1), value=1.0) - F.pad(survival, (0, 0, 1, 0))


def partition_kl(
    p: PartitionLaw,
    q: PartitionLaw,
    num_samples: int = 1000,
    generator: torch.Generator | None = None,
    estimate: str = "exact",
) -> Tensor:
    r"""KL divergence of two distributions over partitions, with unbiased gradients in both.

    The size term is exact. The order term is a Monte Carlo estimate from samples of p. With
    ``estimate="bounds"`` it estimates an upper bound on the divergence, from the paper's upper
    bound for p and its lower bound for q at the sampled order. Gradients include the score-function
    term.

    Args:
        p: The distribution to sample from.
        q: The other distribution, with the same number of elements and subsets.
        num_samples: Number of samples.
        generator: The random generator.
        estimate: ``"exact"`` or ``"bounds"``.

    Example:
        >>> p = RandomPartition(torch.tensor([0.0, 1.0, 2.0]), torch.zeros(2))
        >>> q = RandomPartition(torch.zeros(3), torch.zeros(2))
        >>> generator = torch.Generator().manual_seed(0)
        >>> bool(partition_kl(p, q, generator=generator) > 0)
        True
        >>> partition_kl(q, q)
        tensor(0.)
    """
    require_choice("estimate", estimate, ("exact", "bounds"))
    if p.event_shape != q.event_shape:
        raise ValueError(
            f"q must be a distribution over partitions of shape {tuple(p.event_shape)}, as p is, "
            f"but got {tuple(q.event_shape)}."
        )
    batch = require_broadcast("p and q", p.batch_shape, q.batch_shape)
    p, q = p.expand(batch), q.expand(batch)
    costs, log_probs = [], []
    for draw in p.draws(num_samples, generator):
        if estimate == "exact":
            log_fill = p.fill_log_prob(draw.Y)
            costs.append(log_fill - q.fill_log_prob(draw.Y))
        else:
            # The bound depends on the drawn order, so the score function must be that of the order.
            log_fill = p.order_log_prob(draw.Y, draw.order)
            counts = torch.lgamma(draw.sizes + 1).sum(-1)
            best = p.best_order_log_prob(draw.Y)
            costs.append(counts + best - q.order_log_prob(draw.Y, draw.order))
        log_probs.append(p.size_log_prob(draw.Y) + log_fill)
    orders = leave_one_out_surrogate(torch.cat(costs), torch.cat(log_probs))
    # Torch caches the lookup, and each change of its cache would recompile callers.
    known = all(isinstance(law.sizes, FisherHypergeometric) for law in (p, q))
    between: Callable[..., Tensor] = sizes_kl if known else kl_divergence
    sizes = between(p.sizes, q.sizes).double()
    return (sizes + orders).to(torch.promote_types(p.dtype, q.dtype))


register_kl(PartitionLaw, PartitionLaw)(lambda p, q: partition_kl(p, q))

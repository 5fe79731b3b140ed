"""Fisher's multivariate noncentral hypergeometric distribution over subset sizes."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import constraints, register_kl

from drpm.distributions import size_tables, size_urns
from drpm.distributions.base import SizeLaw, enumerate_sizes
from drpm.distributions.size_tables import SuffixTables
from drpm.distributions.size_urns import (
    IMPOSSIBLE,
    Limits,
    Mean,
    SoftSizes,
    Urn,
    attained,
    log_binomial,
    resolve_capacities,
    resolve_limits,
)
from drpm.distributions.validation import (
    WholeSizes,
    can_check_values,
    finite_vector,
    require_broadcast,
    require_choice,
    require_count,
    require_finite,
    require_vector,
)
from drpm.relaxation.operators import gumbel_like

_DRAW_BUDGET = 1 << 24


class FisherHypergeometric(SizeLaw):
    r"""Sizes of K groups when n elements are drawn from an urn without replacement.

    .. math:: p(n_1, \dots, n_K) = \frac{1}{P_0} \prod_k \binom{m_k}{n_k} \omega_k^{n_k},
              \qquad \sum_k n_k = n

    A minimum and a maximum truncate this distribution; weights and capacities keep their meaning.

    Normalizer, moments, entropy and divergence are exact, in O(K) or O(K n) time; see
    :mod:`drpm.distributions.size_urns` and :mod:`drpm.distributions.size_tables`.

    References:
        Fisher, "The logic of inductive inference", 1935.
        Sutter et al., "Learning group importance using the differentiable hypergeometric
        distribution", 2023 (``method="merged"``).

    Args:
        total_count: The number n of elements.
        log_weights: :math:`\log\omega`, shape (..., K).
        capacities: The maximum sizes m_k, shape (..., K); by default n.
        method: ``"exact"``, or ``"merged"`` for the paper's approximation: groups are sampled
            in the given order, each against all later groups merged into one with their mean
            weight. It is biased and depends on the order of the groups.
        minimum: The smallest size of every group, a whole number or a tensor (..., K); needs
            ``method="exact"``.
        maximum: The largest size, likewise. Unlike capacities, it only truncates and keeps the
            ratios of probabilities.

    Example:
        >>> law = FisherHypergeometric(4, torch.tensor([0.0, 1.0]))
        >>> law.mean
        tensor([1.4391, 2.5609])
        >>> law.log_prob(torch.tensor([1.0, 3.0])).exp()
        tensor(0.4681)
        >>> law.sample(generator=torch.Generator().manual_seed(1))
        tensor([1., 3.])
        >>> FisherHypergeometric(4, torch.tensor([0.0, 5.0]), minimum=1).mean
        tensor([1.0150, 2.9850])
    """

    arg_constraints = {  # noqa: RUF012
        "log_weights": finite_vector,
        "capacities": constraints.independent(constraints.nonnegative_integer, 1),
    }
    has_enumerate_support = True

    def __init__(
        self,
        total_count: int,
        log_weights: Tensor,
        capacities: Tensor | None = None,
        method: str = "exact",
        *,
        minimum: int | Tensor | None = None,
        maximum: int | Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.total_count = require_count("total_count", total_count)
        require_vector("log_weights", log_weights, "group")
        require_choice("method", method, ("exact", "merged"))
        check = validate_args is not False
        if check:
            require_finite("log_weights", log_weights)
        self.method = method
        self._capacities = resolve_capacities(total_count, log_weights, capacities, check=check)
        self._given = (capacities, minimum, maximum)
        limits = resolve_limits(total_count, self._capacities, minimum, maximum, check=check)
        self._limited = limits is not None
        if self._limited and method == "merged":
            raise ValueError("method must be 'exact' if sizes have limits, but got 'merged'.")
        if limits is None:
            limits = Limits(torch.zeros_like(self._capacities), self._capacities)
        self._low, self._high = limits
        batch = self._low.shape[:-1]
        self._capacities = self._capacities.expand_as(self._low)
        self.log_weights = log_weights.expand(*batch, log_weights.shape[-1])
        super().__init__(batch, log_weights.shape[-1:], validate_args)

    @property
    def dtype(self) -> torch.dtype:
        return self.log_weights.dtype

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> WholeSizes:
        return WholeSizes(self.total_count, self._high, self._low)

    @property
    def capacities(self) -> Tensor:
        """The number of places in every group, in the parameters' type."""
        return self._capacities.to(self.log_weights.dtype)

    @property
    def _urn(self) -> Urn:
        """In float64: the logarithm of a large factorial loses all decimals in float32."""
        weights, n = self.log_weights.double(), self.total_count
        total = weights.new_full((), float(n))
        limits = Limits(self._low, self._high) if self._limited else None
        return Urn(total, n, weights, self._capacities, limits, self._given[0] is None)

    def _refuse_merged(self, what: str) -> None:
        if self.method == "merged":
            raise NotImplementedError(
                f"{what} is not defined for method='merged', which only defines a product of "
                "conditionals; use method='exact'."
            )

    @property
    def _pair(self) -> Tensor | None:
        """The log-masses of all sizes of two groups, if there are few."""
        if not size_tables.is_listed(self.total_count, self.event_shape[0]):
            return None
        urn = self._urn
        plain = urn.unbounded and urn.limits is None
        return size_tables.list_pair(self.total_count, urn.log_weights, None if plain else urn)

    def relax(self, noise: Tensor | None, temperature: Tensor) -> SoftSizes:
        """Soft sizes with Gumbel noise (..., K - 1, W), or of the mode; for K >= 2."""
        if (pair := self._pair) is not None:
            return size_tables.relax_pair(pair, noise, temperature)
        if noise is None:
            return size_urns.soft_mode(self._urn, temperature)
        return size_tables.suffix_tables(self._urn).relax(noise, temperature)

    def exact_mean(self) -> Mean:
        """The mean and log P_0 in float64."""
        return size_tables.mean(self._urn)

    @property
    def log_normalizer(self) -> Tensor:
        """The exact log P_0; its gradient in the log-weights is the mean."""
        self._refuse_merged("log_normalizer")
        return size_tables.log_normalizer(self._urn).to(self.dtype)

    @property
    def mean(self) -> Tensor:
        self._refuse_merged("mean")
        return self.exact_mean().mean.to(self.dtype)

    @property
    def variance(self) -> Tensor:
        self._refuse_merged("variance")
        mean = self.exact_mean().mean
        variances = [
            (probs * (sizes - mean[..., k, None]).square()).sum(-1)
            for k, (sizes, probs) in enumerate(self._marginals())
        ]
        return torch.stack(variances, -1).to(self.dtype)

    @property
    def mode(self) -> Tensor:
        """The most likely sizes."""
        return self.most_likely_sizes().to(self.dtype)

    def most_likely_sizes(self) -> Tensor:
        """The mode in float64."""
        self._refuse_merged("mode")
        if (pair := self._pair) is not None:
            return size_tables.pair_mode(pair)
        return size_urns.mode(self._urn)

    def log_prob(self, value: Tensor) -> Tensor:
        value, inside = self._inside(value)
        sizes = value.double()
        if self.method == "merged":
            return self._masked(self._merged_conditionals(sizes).sum(-1), inside)
        urn = self._urn
        terms = log_binomial(urn.capacities, sizes) + sizes * urn.log_weights
        return self._masked(terms.sum(-1) - size_tables.log_normalizer(urn), inside)

    def conditional_log_probs(self, value: Tensor) -> Tensor:
        r"""(..., K): :math:`\log p(n_k \mid n_1, \dots, n_{k-1})`; they sum to ``log_prob``."""
        value, inside = self._inside(value)
        sizes, merged = value.double(), self.method == "merged"
        found = self._merged_conditionals(sizes) if merged else self._exact_conditionals(sizes)
        return self._masked(found, None if inside is None else inside[..., None])

    def _exact_conditionals(self, sizes: Tensor) -> Tensor:
        urn = self._urn
        remaining = urn.total - sizes.cumsum(-1) + sizes
        suffixes = [
            size_tables.log_normalizer(urn.from_group(k, remaining[..., k]))
            for k in range(sizes.shape[-1])
        ]
        suffix = torch.stack(suffixes, -1)
        after = F.pad(suffix[..., 1:], (0, 1))
        return log_binomial(urn.capacities, sizes) + sizes * urn.log_weights + after - suffix

    def _merged_urn(self) -> tuple[Tensor, Tensor]:
        """(..., K - 1, 2): log-weights and capacities of a group and of the merged later ones."""
        weights, capacities = self.log_weights.double(), self._capacities
        later = capacities.flip(-1).cumsum(-1).flip(-1)[..., 1:]
        counts = torch.where(capacities > 0, capacities.log(), IMPOSSIBLE)
        weighted = (weights + counts).flip(-1).logcumsumexp(-1).flip(-1)[..., 1:]
        # Merged groups without capacity have no mean weight.
        merged = torch.where(later > 0, weighted - later.log(), 0.0)
        return (
            torch.stack([weights[..., :-1], merged], -1),
            torch.stack([capacities[..., :-1], later], -1),
        )

    def _merged_conditionals(self, sizes: Tensor) -> Tensor:
        weights, capacities = self._merged_urn()
        remaining = (self.total_count - sizes.cumsum(-1) + sizes)[..., :-1]
        pair = torch.stack([sizes[..., :-1], remaining - sizes[..., :-1]], -1)
        terms = log_binomial(capacities, pair) + pair * weights
        urn = Urn(remaining, self.total_count, weights, capacities)
        conditionals = terms.sum(-1) - size_tables.log_normalizer(urn)
        return F.pad(conditionals, (0, 1))  # the last group takes what is left

    def draw_sizes(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        groups, elements = self.event_shape[0], self.total_count
        exact = self.method == "exact" and groups > 1
        tables = size_tables.suffix_tables(self._urn) if exact else None
        width = tables.width * groups if tables is not None else elements + 1
        count = shape.numel()
        chunk = max(1, _DRAW_BUDGET // (width * max(1, self.batch_shape.numel())))
        parts = [
            self._draw_flat(min(chunk, count - start), tables, generator)
            for start in range(0, max(count, 1), chunk)
        ]
        return torch.cat(parts).reshape(shape + self.batch_shape + self.event_shape)

    def _draw_flat(
        self, count: int, tables: SuffixTables | None, generator: torch.Generator | None
    ) -> Tensor:
        """Sample sequentially from the conditionals by the Gumbel trick."""
        full = torch.full(
            (count, *self.batch_shape),
            float(self.total_count),
            dtype=torch.float64,
            device=self.log_weights.device,
        )
        if tables is not None:
            shape = (*full.shape, *tables.log_suffix.shape[-2:])
            return tables.draw(gumbel_like(full.new_empty(shape), generator))
        sizes = []
        for boundary in range(self.event_shape[0] - 1):
            logits = self._merged_logits(boundary, full)
            behind = (logits + gumbel_like(logits, generator)).argmax(-1).double()
            sizes.append(full - behind)
            full = behind
        return torch.stack([*sizes, full], -1)

    def _merged_logits(self, boundary: int, before: Tensor) -> Tensor:
        weights, capacities = (x[..., boundary, :] for x in self._merged_urn())
        after = torch.arange(self.total_count + 1, dtype=before.dtype, device=before.device)
        pair = torch.stack(torch.broadcast_tensors(before[..., None] - after, after), -1)
        possible = ((pair >= 0) & (pair <= capacities[..., None, :])).all(-1)
        terms = log_binomial(capacities[..., None, :], pair) + pair * weights[..., None, :]
        return torch.where(possible, terms.sum(-1), IMPOSSIBLE)

    def entropy(self) -> Tensor:
        """The exact entropy in nats."""
        self._refuse_merged("entropy")
        binomials = self.expected_log_binomials(self._capacities)
        log_normalizer, mean = self.exact_mean()
        entropy = log_normalizer - (mean * self.log_weights.double()).sum(-1)
        return (entropy - binomials.sum(-1)).to(self.dtype)

    def expected_log_binomials(self, capacities: Tensor) -> Tensor:
        r"""(..., K): :math:`E \log\binom{m_k}{n_k}` under this law, for any capacities m, float64.

        Sizes above ``capacities`` count as 0; the caller checks their support.
        """
        means = [
            (probs * log_binomial(capacities[..., k, None], sizes)).sum(-1)
            for k, (sizes, probs) in enumerate(self._marginals())
        ]
        return torch.stack(means, -1)

    def _marginals(self) -> list[tuple[Tensor, Tensor]]:
        """Every group's sizes and their probabilities."""
        if self.event_shape[0] > 1:
            return size_tables.suffix_tables(self._urn).marginals()
        certain = torch.ones_like(self._capacities)
        return [(certain * self.total_count, certain)]

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All possible sizes, in lexicographic order, shape ``(S, *batch_shape, K)``."""
        values = enumerate_sizes(self.total_count, self._high, self._low, expand=expand)
        return values.to(self.dtype)

    def boundary_survival(self) -> Tensor:
        n = self.total_count
        ranks = torch.arange(n, dtype=torch.float64, device=self.log_weights.device)
        if self.event_shape[0] == 1:
            return ranks.new_zeros(*self.batch_shape, 0, n)
        self._refuse_merged("boundary_survival")
        tables = size_tables.suffix_tables(self._urn)
        # Rank r is before boundary k if fewer than n - r elements remain after it.
        after = tables.boundary_probs().cumsum(-1)
        position = (n - 1 - ranks - tables.first[..., None]).long()
        inside = after.gather(-1, position.clamp(0, tables.width - 1))
        return torch.where(position < 0, 0.0, torch.where(position >= tables.width, 1.0, inside))

    def best_sizes(self, block_log_probs: Tensor) -> Tensor:
        """A dynamic program over the boundaries: O(K n^2)."""
        self._refuse_merged("best_sizes")
        n, weights, capacities = self.total_count, self.log_weights.double(), self._capacities
        index = torch.arange(n + 1, dtype=torch.float64, device=weights.device)
        size = index[None, :] - index[:, None]
        best = torch.where(index == 0, 0.0, -torch.inf).expand(*self.batch_shape, n + 1)
        choices = []
        columns = (weights, capacities, self._low, self._high)
        for group in zip(*(x.unbind(-1) for x in columns), strict=True):
            weight, capacity, least, most = (x[..., None, None] for x in group)
            gain = log_binomial(capacity, size) + size * weight + block_log_probs
            gain = torch.where((size >= least) & (size <= most), gain, -torch.inf)
            best, choice = (best[..., :, None] + gain).max(-2)
            choices.append(choice)
        stop = torch.full((*self.batch_shape, 1), n, device=weights.device)
        sizes = []
        for choice in reversed(choices):
            start = choice.gather(-1, stop)
            sizes.append(stop - start)
            stop = start
        return torch.cat(sizes[::-1], -1).double()


def sizes_kl(p: FisherHypergeometric, q: FisherHypergeometric) -> Tensor:
    """The exact divergence of two size laws.

    With equal capacities and limits this needs only means (an exponential family); otherwise the
    binomial coefficients are averaged over the marginals. Infinite if q excludes sizes of p.
    """
    if p.event_shape != q.event_shape:
        raise ValueError(
            f"q must have {p.event_shape[0]} groups, like p, but got {q.event_shape[0]}."
        )
    for name, law in (("p", p), ("q", q)):
        if law.method == "merged":
            raise NotImplementedError(f"the divergence needs {name} to have method='exact'.")
    batch = require_broadcast("p and q", p.batch_shape, q.batch_shape)
    dtype = torch.promote_types(p.dtype, q.dtype)
    if p.total_count != q.total_count:
        return torch.full(batch, torch.inf, dtype=dtype, device=p.log_weights.device)
    p, q = p.expand(batch), q.expand(batch)
    log_normalizer, mean = p.exact_mean()
    gaps = p.log_weights.double() - q.log_weights.double()
    divergence = (mean * gaps).sum(-1) + size_tables.log_normalizer(q._urn) - log_normalizer
    if not _same_binomials(p, q):
        p_room, q_room = p._capacities, q._capacities
        binomials = p.expected_log_binomials(p_room) - p.expected_log_binomials(q_room)
        divergence = divergence + binomials.sum(-1)
        low, high = attained(p.total_count, p._low, p._high)
        allowed = (low >= q._low) & (high <= q._high)
        divergence = torch.where(allowed.all(-1), divergence, torch.inf)
    return divergence.to(dtype)


def _same_binomials(p: FisherHypergeometric, q: FisherHypergeometric) -> bool:
    if all(x is None for x in p._given + q._given):
        return True
    own, other = ((x._capacities, x._low, x._high) for x in (p, q))
    if all(can_check_values(x) for x in own + other):
        return all(bool((x == y).all()) for x, y in zip(own, other, strict=True))
    # If values cannot be read, the tensors must be the same objects.
    given = zip(p._given, q._given, strict=True)
    return all(x is y or (type(x) is type(y) is int and x == y) for x, y in given)


register_kl(FisherHypergeometric, FisherHypergeometric)(sizes_kl)

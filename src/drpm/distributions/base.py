"""Base classes of the distributions over sizes and orders, and of their relaxations."""

from abc import ABC, abstractmethod
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from drpm.distributions.validation import (
    WholeSizes,
    can_check_values,
    require_broadcast,
    require_event,
    require_floating,
    require_positive,
)

Size = torch.Size | list[int] | tuple[int, ...]

_SUPPORT_LIMIT = 10_000_000

LawType = TypeVar("LawType", bound="Law")


class Law(Distribution, ABC):
    """Base class of all distributions: validates arguments and samples from a generator.

    Subclasses validate their own arguments, with shorter messages than ``torch.distributions``.
    Only ``validate_args=False`` disables the checks. The global default is ignored, because
    ``torch.compile`` sets it to False for the rest of the process.
    """

    _expected: str  # what an event must be, in an error message

    def __init__(
        self, batch_shape: torch.Size, event_shape: torch.Size, validate_args: bool | None
    ) -> None:
        super().__init__(batch_shape, event_shape, validate_args=False)
        self._validate_args = validate_args is not False

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The floating-point type of the parameters."""

    @abstractmethod
    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        """Draw events of shape ``shape + batch_shape + event_shape``."""

    def __repr__(self) -> str:
        options = ("total_count", "method", "hard", "sort")
        shown = {name: vars(self)[name] for name in options if name in vars(self)}
        shown |= {"event_shape": tuple(self.event_shape), "batch_shape": tuple(self.batch_shape)}
        listed = ", ".join(f"{name}={value!r}" for name, value in shown.items())
        return f"{type(self).__name__}({listed})"

    def sample(
        self, sample_shape: Size = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Sample without gradients, from ``generator`` if given."""
        with torch.no_grad():
            return self._draw(torch.Size(sample_shape), generator)

    def expand(self: LawType, batch_shape: Size, _instance: Any = None) -> LawType:
        """Expand all components to a batch shape."""
        # Torch's `_get_checked_instance` is not supported by every version of the compiler.
        new: LawType = type(self).__new__(type(self)) if _instance is None else _instance
        shape, dims = torch.Size(batch_shape), len(self.batch_shape)
        for name, value in vars(self).items():
            if isinstance(value, Law):
                value = value.expand(shape)
            elif isinstance(value, Tensor) and value.shape[:dims] == self.batch_shape:
                value = value.expand(shape + value.shape[dims:])
            setattr(new, name, value)
        Distribution.__init__(new, shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def broadcast(self: LawType, batch_shape: torch.Size) -> LawType:
        """This law if it has the batch shape, else an expanded copy."""
        return self if self.batch_shape == batch_shape else self.expand(batch_shape)

    def _inside(self, value: Tensor) -> tuple[Tensor, Tensor | None]:
        """Check events. The second result is None if they were checked and are in the support.

        Otherwise it is the mask of those that are, and the first has zeros in place of the others,
        to keep NaN out of the gradients.
        """
        require_event("value", value, self.event_shape, self.batch_shape)
        inside: Tensor = self.support.check(value)  # type: ignore[union-attr]
        if self._validate_args and can_check_values(inside):
            if not bool(inside.all()):
                events = value.expand(*inside.shape, *self.event_shape)
                bad = events[~inside][0] if inside.dim() else value
                shown = str(bad.detach().cpu().tolist())
                shown = shown if len(shown) <= 80 else shown[:77] + "..."
                raise ValueError(f"value must be {self._expected}, but got {shown}.")
            return value, None
        mask = inside.reshape(*inside.shape, *(1 for _ in self.event_shape))
        return torch.where(mask, value, torch.zeros_like(value)), inside

    def _masked(self, log_prob: Tensor, inside: Tensor | None) -> Tensor:
        """Log-probabilities in the parameters' type, -inf outside the support."""
        if inside is not None:
            log_prob = torch.where(inside, log_prob, -torch.inf)
        return log_prob.to(self.dtype)


class SizeLaw(Law):
    """A distribution over the sizes of K subsets of ``total_count`` elements.

    To define a new one, subclass :class:`EnumeratedSizeLaw` or, if the support is too large to
    enumerate, this class with ``support``, ``entropy`` and the methods below. Pass it to
    :meth:`drpm.RandomPartition.from_laws`.
    """

    total_count: int

    @property
    def _expected(self) -> str:  # type: ignore[override]
        limited = getattr(self, "_limited", getattr(self, "minimum", 0))
        limits = ", the minimum and the maximum" if limited else ""
        return f"whole sizes that sum to {self.total_count} and fit the capacities{limits}"

    @abstractmethod
    def draw_sizes(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        """Sample sizes in float64; lower precisions cannot represent all large integers."""

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        return self.draw_sizes(shape, generator).to(self.dtype)

    @abstractmethod
    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of sizes of shape (..., K)."""

    @abstractmethod
    def boundary_survival(self) -> Tensor:
        """(..., K - 1, n): the probability that a rank is in the first k subsets, k = 1..K - 1."""

    @abstractmethod
    def best_sizes(self, block_log_probs: Tensor) -> Tensor:
        """The sizes of the most likely sorted partition, (..., K) in float64.

        They maximize their log-probability plus the sum over the subsets of
        ``block_log_probs[..., u, v]``, for a subset with the ranks u to v - 1 (from 0).
        """


class EnumeratedSizeLaw(SizeLaw):
    """A size distribution with an enumerated support: a subclass defines only its mass.

    The subclass sets ``total_count``, ``capacities`` (..., K) and, unless it is 0, ``minimum``,
    calls the constructor of the base class, and defines ``dtype`` and :meth:`log_mass`. Tensor
    attributes must start with the batch shape. Everything else is computed from the support, of at
    most 10,000,000 sizes. Capacities must be equal throughout the batch and independent of
    parameters. ``Multinomial`` in ``tests/conformance.py`` is an example.
    """

    has_enumerate_support = True
    capacities: Tensor
    minimum: int = 0  # of every size

    @abstractmethod
    def log_mass(self, sizes: Tensor) -> Tensor:
        """Unnormalized, finite log-probability of sizes (..., K) in the support, both float64.

        The additive constant may differ between the members of a batch.
        """

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> WholeSizes:
        return WholeSizes(self.total_count, self.capacities, self.minimum)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All possible sizes, in lexicographic order, shape ``(S, *batch_shape, K)``."""
        return self._enumerated(expand=expand).to(self.dtype)

    def _enumerated(self, *, expand: bool) -> Tensor:
        """The support in float64."""
        low = torch.full_like(self.capacities, self.minimum)
        return enumerate_sizes(self.total_count, self.capacities, low, expand=expand)

    def _listed(self) -> tuple[Tensor, Tensor]:
        """The support and its log-probabilities, (S, *batch_shape), in float64."""
        sizes = self._enumerated(expand=True)
        return sizes, self.log_mass(sizes).log_softmax(0)

    def log_prob(self, value: Tensor) -> Tensor:
        value, inside = self._inside(value)
        normalizer = self.log_mass(self._enumerated(expand=True)).logsumexp(0)
        return self._masked(self.log_mass(value.double()) - normalizer, inside)

    @property
    def mean(self) -> Tensor:
        sizes, log_probs = self._listed()
        return (log_probs.exp()[..., None] * sizes).sum(0).to(self.dtype)

    @property
    def variance(self) -> Tensor:
        sizes, log_probs = self._listed()
        probs = log_probs.exp()[..., None]
        return (probs * (sizes - (probs * sizes).sum(0)).square()).sum(0).to(self.dtype)

    @property
    def mode(self) -> Tensor:
        """The most likely sizes."""
        sizes, log_probs = self._listed()
        return _pick(sizes, log_probs.argmax(0)[None]).squeeze(0).to(self.dtype)

    def entropy(self) -> Tensor:
        """The exact entropy in nats."""
        _, log_probs = self._listed()
        return -(log_probs.exp() * log_probs).sum(0).to(self.dtype)

    def draw_sizes(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        sizes, log_probs = self._listed()
        below = log_probs.exp().cumsum(0).movedim(0, -1).contiguous()
        kind: Any = {"dtype": below.dtype, "device": below.device, "generator": generator}
        draws = torch.rand(*self.batch_shape, shape.numel(), **kind) * below[..., -1:]
        index = torch.searchsorted(below, draws, right=True).clamp(0, len(sizes) - 1)
        return _pick(sizes, index.movedim(-1, 0)).reshape(*shape, *sizes.shape[1:])

    def boundary_survival(self) -> Tensor:
        sizes, log_probs = self._listed()
        ranks = torch.arange(self.total_count, device=sizes.device)
        inside = ranks < sizes.cumsum(-1)[..., :-1, None]
        return (inside * log_probs.exp()[..., None, None]).sum(0)

    def best_sizes(self, block_log_probs: Tensor) -> Tensor:
        sizes, log_probs = self._listed()
        stops = sizes.cumsum(-1).long()
        starts = stops - sizes.long()
        blocks = block_log_probs.flatten(-2).expand(*sizes.shape[:-1], -1)
        cut = blocks.gather(-1, starts * block_log_probs.shape[-1] + stops)
        best = (log_probs + cut.sum(-1)).argmax(0)
        return _pick(sizes, best[None]).squeeze(0)


def _pick(listed: Tensor, index: Tensor) -> Tensor:
    """Members (R, ..., K) of a list (S, ..., K), by an index (R, ...)."""
    return listed.gather(0, index[..., None].expand(*index.shape, listed.shape[-1]))


def enumerate_sizes(total: int, capacities: Tensor, minimum: Tensor, *, expand: bool) -> Tensor:
    """All sizes (S, ..., K) within limits (..., K) that sum to a total, in float64."""
    groups = capacities.shape[-1]
    ends = torch.stack([minimum, capacities]).double().reshape(2, -1, groups)
    if ends.shape[1] == 0:  # an empty batch
        ends = ends.new_tensor([0.0, total])[:, None, None].expand(2, 1, groups)
    if bool((ends != ends[:, :1]).any()):
        raise NotImplementedError(
            "enumerate_support needs the same capacities and limits throughout the batch."
        )
    low, high = ends[:, 0]
    spare, room = total - int(low.sum()), high - low
    rows = room.new_zeros(1, 0)
    for capacity, later in zip(room, room.flip(-1).cumsum(-1).flip(-1) - room, strict=True):
        remaining = spare - rows.sum(-1)
        smallest = (remaining - later).clamp_min(0)
        count = (torch.minimum(capacity, remaining) - smallest + 1).clamp_min(0).long()
        if int(count.sum()) > _SUPPORT_LIMIT:
            raise ValueError(
                f"the support must have at most {_SUPPORT_LIMIT:,} members to be enumerated, but "
                f"total_count = {total} and {len(room)} groups give more."
            )
        start = (count.cumsum(0) - count).repeat_interleave(count)
        offset = torch.arange(len(start), device=start.device) - start
        size = smallest.repeat_interleave(count) + offset
        rows = torch.cat([rows.repeat_interleave(count, 0), size[:, None]], -1)
    values: Tensor = (rows + low).reshape(
        -1, *(1 for _ in capacities.shape[:-1]), capacities.shape[-1]
    )
    return values.expand(-1, *capacities.shape) if expand else values


class OrderLaw(Law):
    """A distribution over the orders of n elements."""

    @abstractmethod
    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of orders of shape (..., n)."""

    @property
    @abstractmethod
    def mode(self) -> Tensor:
        """The most likely order."""

    @abstractmethod
    def block_log_probs(self, members: Tensor) -> Tensor:
        """(..., K): log-probability of each block of (..., K, n) given the blocks before it."""

    @abstractmethod
    def rank_expectations(self, values: Tensor) -> Tensor:
        """(..., K, n): expectations of K functions (..., K, n) of every element's rank."""

    @abstractmethod
    def sorted_block_log_probs(self) -> Tensor:
        """(..., n + 1, n + 1): log-probability of ranks u..v - 1 of the most likely order."""

    @abstractmethod
    def most_likely_within(self, members: Tensor) -> Tensor:
        """The most likely order that fills the blocks of (..., K, n) in sequence."""


class RelaxedLaw(Law):
    """A reparameterized relaxation of a discrete distribution."""

    has_rsample = True
    discrete: Any

    def __init__(
        self,
        temperature: Any,
        discrete: Law,
        like: Tensor,
        hard: bool | str,
        event_shape: torch.Size | None = None,
    ) -> None:
        check = discrete._validate_args
        self.temperature = temperature_tensor(temperature, like, check=check)
        self.hard = hard
        shapes = (self.temperature.shape, discrete.batch_shape)
        batch = require_broadcast("temperature and the parameters", *shapes)
        self.discrete = discrete.broadcast(batch)
        super().__init__(batch, event_shape or discrete.event_shape, check)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.discrete.dtype
        return dtype

    @abstractmethod
    def _relax(
        self, shape: torch.Size, generator: torch.Generator | None, *, noise: bool
    ) -> Tensor:
        """Relaxed samples, or without noise the relaxed mode."""

    def rsample(
        self, sample_shape: Size = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Sample with gradients in all parameters and the temperature."""
        return self._relax(torch.Size(sample_shape), generator, noise=True)

    @property
    def mode(self) -> Tensor:
        """The most likely sizes and the sorted order, without noise and with gradients.

        Partitions are filled with these, as in the paper; by affinities, each subset takes its best
        remaining elements. This need not be the most likely partition.
        """
        return self._relax(torch.Size(), None, noise=False)

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        return self.rsample(shape, generator=generator)

    def log_prob(self, value: Tensor) -> Tensor:
        raise NotImplementedError(
            f"{type(self).__name__} has no log_prob: a relaxed value is not an event with a "
            "probability; for hard values use its `discrete` distribution."
        )


def temperature_tensor(temperature: Any, like: Tensor, *, check: bool) -> Tensor:
    """The temperature as a tensor, at least float32."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    if isinstance(temperature, Tensor):
        require_floating("temperature", temperature)
        if check and can_check_values(temperature):
            value = temperature.detach()
            bad = value[~((value > 0) & torch.isfinite(value))]
            if bad.numel():
                raise ValueError(
                    f"temperature must be positive and finite, but got {bad[0].item()}."
                )
        return temperature.to(dtype=dtype, device=like.device)
    require_positive("temperature", temperature)
    # Filled on the device, without a copy.
    return torch.full((), float(temperature), dtype=dtype, device=like.device)

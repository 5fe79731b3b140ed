"""The base classes of all laws: sizes, orders, and their relaxed siblings."""

from abc import ABC, abstractmethod
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from drpm.distributions.validation import can_check_values, require_event, require_temperature

Size = torch.Size | list[int] | tuple[int, ...]

LawType = TypeVar("LawType", bound="Law")


class Law(Distribution, ABC):
    """A distribution that refuses bad arguments in one sentence and draws from a generator.

    ``torch.distributions`` validates in the constructor of the base class, with a message of
    several lines; laws here check their own arguments first, and only keep the switch.

    ``validate_args=False`` alone switches the checks off. The default of all distributions does
    not count, because ``torch.compile`` sets it to False for the rest of the process.
    """

    def __init__(
        self, batch_shape: torch.Size, event_shape: torch.Size, validate_args: bool | None
    ) -> None:
        super().__init__(batch_shape, event_shape, validate_args=False)
        self._validate_args = self._validating(validate_args)

    @staticmethod
    def _validating(validate_args: bool | None) -> bool:
        return True if validate_args is None else validate_args

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The floating-point type of the parameters."""

    @abstractmethod
    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        """Draw events of shape ``shape + batch_shape + event_shape``."""

    def __repr__(self) -> str:
        options = ("total_count", "method", "hard", "sort", "window")
        shown = {name: vars(self)[name] for name in options if name in vars(self)}
        shown |= {"event_shape": tuple(self.event_shape), "batch_shape": tuple(self.batch_shape)}
        listed = ", ".join(f"{name}={value!r}" for name, value in shown.items())
        return f"{type(self).__name__}({listed})"

    def sample(
        self, sample_shape: Size = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw without gradient; ``generator`` makes the draw repeatable on its own."""
        with torch.no_grad():
            return self._draw(torch.Size(sample_shape), generator)

    def _expanded(self: LawType, batch_shape: Size, instance: Any, **fields: Any) -> LawType:
        """The shared half of ``expand``: a copy without running the constructor."""
        # Torch's own `_get_checked_instance` makes it in a way that not every compiler can follow.
        law = type(self)
        new: LawType = law.__new__(law) if instance is None else instance
        for name, value in fields.items():
            setattr(new, name, value)
        Distribution.__init__(new, torch.Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def _inside(self, value: Tensor, expected: str) -> tuple[Tensor, Tensor | None]:
        """Check events. The second result is None if all of them lie in the support.

        Otherwise it is the mask of those that do, and the first has zeros in place of the others,
        so that an event outside the support cannot spoil the gradients of the rest.
        """
        require_event("value", value, self.event_shape, self.batch_shape)
        inside: Tensor = self.support.check(value)  # type: ignore[union-attr]
        if self._validate_args and can_check_values(inside):
            if not bool(inside.all()):
                events = value.expand(*inside.shape, *self.event_shape)
                bad = events[~inside][0] if inside.dim() else value
                raise ValueError(f"value must be {expected}, but got {_short(bad)}.")
            return value, None
        mask = inside.reshape(*inside.shape, *(1 for _ in self.event_shape))
        return torch.where(mask, value, torch.zeros_like(value)), inside


def _short(event: Tensor) -> str:
    text = str(event.detach().cpu().tolist())
    return text if len(text) <= 80 else text[:77] + "..."


class SizeLaw(Law):
    """A law over the sizes of K subsets of ``total_count`` elements."""

    total_count: int

    @abstractmethod
    def draw_sizes(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        """Draw sizes in float64: a parameter's type may be too narrow for large whole numbers."""

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        return self.draw_sizes(shape, generator).to(self.dtype)

    @abstractmethod
    def log_prob(self, value: Tensor) -> Tensor:
        """Log-mass of sizes of shape (..., K)."""

    @abstractmethod
    def boundary_survival(self) -> Tensor:
        """(..., K - 1, n): the probability that rank r belongs to one of the first k subsets."""

    @abstractmethod
    def best_sizes(self, block_log_probs: Tensor) -> Tensor:
        """The sizes that maximise their own log-mass plus that of the blocks they cut, float64.

        ``block_log_probs`` (..., n + 1, n + 1) holds, at (u, v), the log-probability of ranks
        u..v - 1 as one block.
        """


class OrderLaw(Law):
    """A law over the orders of n elements."""

    @abstractmethod
    def log_prob(self, value: Tensor) -> Tensor:
        """Log-mass of orders of shape (..., n)."""

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
        """The most likely order that fills the blocks of (..., K, n) one after the other."""


class RelaxedLaw(Law):
    """A law with gradients through its draws, and the discrete law that it relaxes."""

    has_rsample = True
    temperature: Tensor
    discrete: Any

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.discrete.dtype
        return dtype

    def expand(self: LawType, batch_shape: Size, _instance: Any = None) -> LawType:
        fields = {**vars(self), "discrete": self.discrete.expand(batch_shape)}  # type: ignore[attr-defined]
        return self._expanded(batch_shape, _instance, **fields)

    @abstractmethod
    def rsample(
        self, sample_shape: Size = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw with gradients in all parameters."""

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        return self.rsample(shape, generator=generator)

    def log_prob(self, value: Tensor) -> Tensor:
        raise NotImplementedError(
            f"{type(self).__name__} has no log_prob: a relaxed value lies between the events that "
            "have a probability; ask the discrete law in its `discrete` attribute about a hard one."
        )


def for_events(temperature: Tensor, event_dims: int) -> Tensor:
    """A temperature in float64, ready to divide something with so many event dimensions."""
    if temperature.dim():
        temperature = temperature.reshape(*temperature.shape, *(1,) * event_dims)
    return temperature.double()


def temperature_tensor(temperature: Any, like: Tensor, *, check: bool) -> Tensor:
    """A temperature in the place of a parameter, in a type that does not round it to zero."""
    value = require_temperature(temperature, check=check)
    dtype = torch.promote_types(like.dtype, torch.float32)
    if isinstance(value, Tensor):
        return value.to(dtype=dtype, device=like.device)
    # Filled on the device: nothing to copy, nothing to wait for.
    return torch.full((), value, dtype=dtype, device=like.device)


def enumerated_boundary_survival(law: SizeLaw) -> Tensor:
    """:meth:`SizeLaw.boundary_survival` for any law that can list its support."""
    sizes = law.enumerate_support()
    probs = law.log_prob(sizes).exp()
    ranks = torch.arange(law.total_count, device=sizes.device)
    inside = ranks < sizes.cumsum(-1)[..., :-1, None]
    return (inside * probs[..., None, None]).sum(0)


def enumerated_best_sizes(law: SizeLaw, block_log_probs: Tensor) -> Tensor:
    """:meth:`SizeLaw.best_sizes` for any law that can list its support."""
    sizes = law.enumerate_support()
    stops = sizes.cumsum(-1).long()
    starts = stops - sizes.long()
    blocks = block_log_probs.flatten(-2).expand(*sizes.shape[:-1], -1)
    cut = blocks.gather(-1, starts * block_log_probs.shape[-1] + stops)
    best = (law.log_prob(sizes) + cut.sum(-1)).argmax(0)
    return sizes.gather(0, best[None, ..., None].expand(1, *sizes.shape[1:])).squeeze(0)

"""Two registries that drive the generic tests: laws with good parameters, and bad parameters.

A new law joins the whole suite with one :class:`Case` per variant, and one :class:`BadCase` for
each way its arguments can be wrong.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

import drpm
from drpm.distributions import EnumeratedSizeLaw
from drpm.distributions.validation import (
    finite_vector,
    require_count,
    require_finite,
    require_vector,
)
from tests.oracles import generator

N, K = 5, 3  # elements and subsets of most cases


class Multinomial(EnumeratedSizeLaw):
    """Sizes as counts of independent draws: what a user writes to add a size law."""

    arg_constraints: ClassVar = {"log_weights": finite_vector}

    def __init__(
        self, total_count: int, log_weights: Tensor, *, validate_args: bool | None = None
    ) -> None:
        self.total_count = require_count("total_count", total_count)
        require_vector("log_weights", log_weights, "group")
        if validate_args is not False:
            require_finite("log_weights", log_weights)
        self.log_weights = log_weights
        shape, device = log_weights.shape, log_weights.device
        self.capacities = torch.full(shape, total_count, dtype=torch.float64, device=device)
        super().__init__(shape[:-1], shape[-1:], validate_args)

    @property
    def dtype(self) -> torch.dtype:
        return self.log_weights.dtype

    def log_mass(self, sizes: Tensor) -> Tensor:
        return (sizes * self.log_weights - torch.lgamma(sizes + 1)).sum(-1)


@dataclass(frozen=True)
class Case:
    """A law with the event shapes of its tensor parameters and its remaining arguments.

    ``law`` takes the tensors and options by name, and ``validate_args``. Tensor parameters are
    called ``log_...``.
    """

    name: str
    law: Callable[..., Distribution]
    shapes: Mapping[str, tuple[int, ...]]
    event_shape: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    streamed: bool = False  # run as if every matrix were too large to build

    @property
    def relaxed(self) -> bool:
        return "temperature" in self.options

    def tensors(
        self,
        batch: tuple[int, ...] = (),
        dtype: torch.dtype = torch.float64,
        device: str = "cpu",
        seed: int = 0,
        scale: float = 1.0,
    ) -> dict[str, Tensor]:
        """Random parameters: the same numbers for each dtype and device."""
        source = generator(seed)
        return {
            name: (scale * torch.randn(*batch, *shape, generator=source, dtype=torch.float64)).to(
                device=device, dtype=dtype
            )
            for name, shape in self.shapes.items()
        }

    def make(
        self, tensors: Mapping[str, Tensor], validate_args: bool | None = None
    ) -> Distribution:
        return self.law(**tensors, **self.options, validate_args=validate_args)

    def build(
        self,
        batch: tuple[int, ...] = (),
        dtype: torch.dtype = torch.float64,
        device: str = "cpu",
        *,
        validate_args: bool | None = None,
        seed: int = 0,
    ) -> Distribution:
        return self.make(self.tensors(batch, dtype, device, seed), validate_args)


SIZES = {"log_weights": (K,)}
CAPACITIES = {"capacities": torch.tensor([2, 5, 1])}
GAP = {"capacities": torch.tensor([3, 0, 4])}
LIMITS = {"minimum": 1, "maximum": torch.tensor([2, 5, 2])}


def _fisher(name: str, shapes: Mapping = SIZES, event: tuple = (K,), **options: Any) -> Case:
    options = {"total_count": N, **options}
    law = (
        drpm.RelaxedFisherHypergeometric if "temperature" in options else drpm.FisherHypergeometric
    )
    return Case(name, law, shapes, event, options)


def _order(name: str, n: int = N, **options: Any) -> Case:
    relaxed = "temperature" in options
    law = drpm.RelaxedPlackettLuce if relaxed else drpm.PlackettLuce
    return Case(name, law, {"log_scores": (n,)}, (n, n) if relaxed else (n,), options)


def _partition(
    name: str, n: int = N, groups: int = K, *, streamed: bool = False, **options: Any
) -> Case:
    law = drpm.RelaxedRandomPartition if "temperature" in options else drpm.RandomPartition
    shapes = {"log_scores": (n,), "log_weights": (groups,)}
    return Case(name, law, shapes, (groups, n), options, streamed)


def _affinity(name: str, n: int = N, groups: int = K, **options: Any) -> Case:
    law = drpm.RelaxedAffinityPartition if "temperature" in options else drpm.AffinityPartition
    shapes = {"log_affinities": (groups, n), "log_weights": (groups,)}
    return Case(name, law, shapes, (groups, n), options)


DISCRETE = [
    _fisher("sizes"),
    _fisher("sizes-capacities", **CAPACITIES),
    _fisher("sizes-gap", **GAP),
    _fisher("sizes-full", capacities=torch.tensor([2.0, 2.0, 1.0])),
    _fisher("sizes-limits", **LIMITS),
    _fisher("sizes-limits-capacities", minimum=torch.tensor([0.0, 2.0, 1.0]), **CAPACITIES),
    _fisher("sizes-limits-forced", minimum=torch.tensor([2, 1, 2])),
    _fisher("sizes-limits-one-group", {"log_weights": (1,)}, (1,), minimum=5, maximum=5),
    _fisher("sizes-limits-two-groups", {"log_weights": (2,)}, (2,), minimum=1, maximum=3),
    _fisher("sizes-one-group", {"log_weights": (1,)}, (1,)),
    _fisher("sizes-merged", method="merged"),
    _fisher("sizes-merged-capacities", method="merged", **CAPACITIES),
    Case("sizes-multinomial", Multinomial, SIZES, (K,), {"total_count": N}),
    _order("order"),
    _order("order-one-element", n=1),
    _partition("partition"),
    _partition("partition-capacities", **CAPACITIES),
    _partition("partition-gap", **GAP),
    _partition("partition-limits", **LIMITS),
    _partition("partition-one-element", n=1),
    _partition("partition-one-group", groups=1),
    _partition("partition-few-elements", n=2, groups=4),
    _affinity("affinity"),
    _affinity("affinity-capacities", **CAPACITIES),
    _affinity("affinity-gap", **GAP),
    _affinity("affinity-limits", **LIMITS),
    _affinity("affinity-one-element", n=1),
    _affinity("affinity-one-group", groups=1),
    _affinity("affinity-few-elements", n=2, groups=4),
]
RELAXED = [
    _fisher("relaxed-sizes-hard", temperature=0.7),
    _fisher("relaxed-sizes-soft", temperature=0.7, hard=False, **CAPACITIES),
    _fisher("relaxed-sizes-limits-hard", temperature=0.7, **LIMITS),
    _fisher("relaxed-sizes-limits-soft", temperature=0.7, hard=False, minimum=1),
    _order("relaxed-order-hard", temperature=0.7),
    _order("relaxed-order-soft", temperature=0.7, hard=False),
    _order("relaxed-order-softsort", temperature=0.7, hard=False, sort="softsort"),
    _order("relaxed-order-sinkhorn", temperature=0.7, hard=False, sort="sinkhorn"),
    _partition("relaxed-partition-hard", temperature=0.7),
    _partition("relaxed-partition-soft", temperature=0.7, hard=False),
    _partition("relaxed-partition-sizes", temperature=0.7, hard="sizes", **CAPACITIES),
    _partition("relaxed-partition-gap", temperature=0.7, **GAP),
    _partition("relaxed-partition-limits", temperature=0.7, **LIMITS),
    _partition("relaxed-partition-limits-soft", temperature=0.7, hard=False, **LIMITS),
    _partition("relaxed-partition-softsort", temperature=0.7, sort="softsort"),
    _partition("relaxed-partition-sinkhorn", temperature=0.7, hard=False, sort="sinkhorn"),
    _partition("relaxed-partition-one-element", n=1, temperature=0.7, hard=False),
    _partition("relaxed-partition-one-group", groups=1, temperature=0.7, hard=False),
    _partition("relaxed-partition-streamed", streamed=True, temperature=0.7),
    _partition("relaxed-partition-streamed-soft", streamed=True, temperature=0.7, hard=False),
    _partition(
        "relaxed-partition-streamed-softsort", streamed=True, temperature=0.7, sort="softsort"
    ),
    _affinity("relaxed-affinity-hard", temperature=0.7),
    _affinity("relaxed-affinity-soft", temperature=0.7, hard=False),
    _affinity("relaxed-affinity-sizes", temperature=0.7, hard="sizes", **CAPACITIES),
    _affinity("relaxed-affinity-gap", temperature=0.7, **GAP),
    _affinity("relaxed-affinity-limits", temperature=0.7, **LIMITS),
    _affinity("relaxed-affinity-one-element", n=1, temperature=0.7, hard=False),
    _affinity("relaxed-affinity-one-group", groups=1, temperature=0.7, hard=False),
]
CASES = DISCRETE + RELAXED


@dataclass(frozen=True)
class BadCase:
    """A call that must raise ValueError with a sentence that matches ``message``."""

    name: str
    call: Callable[[], Any]
    message: str


S, W = torch.linspace(-1, 1, N), torch.linspace(0, 1, K)
A = torch.linspace(-1, 1, K * N).reshape(K, N)
ONE_HOT = torch.eye(K)[:, torch.tensor([0, 1, 2, 1, 0])]

# Laws with good arguments. Every wrong argument below goes to all laws that take it.
GOOD: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "sizes": (drpm.FisherHypergeometric, {"total_count": N, "log_weights": W}),
    "merged": (
        drpm.FisherHypergeometric,
        {"total_count": N, "log_weights": W, "method": "merged"},
    ),
    "order": (drpm.PlackettLuce, {"log_scores": S}),
    "partition": (drpm.RandomPartition, {"log_scores": S, "log_weights": W}),
    "affinity": (drpm.AffinityPartition, {"log_affinities": A, "log_weights": W}),
    "relaxed-sizes": (
        drpm.RelaxedFisherHypergeometric,
        {"temperature": 1.0, "total_count": N, "log_weights": W},
    ),
    "relaxed-order": (drpm.RelaxedPlackettLuce, {"temperature": 1.0, "log_scores": S}),
    "relaxed-partition": (
        drpm.RelaxedRandomPartition,
        {"temperature": 1.0, "log_scores": S, "log_weights": W},
    ),
    "relaxed-affinity": (
        drpm.RelaxedAffinityPartition,
        {"temperature": 1.0, "log_affinities": A, "log_weights": W},
    ),
}


def _with(values: Tensor, wrong: float) -> Tensor:
    values = values.clone()
    values[..., 1] = wrong
    return values


NOT_FINITE = {"nan": math.nan, "inf": math.inf, "minus-inf": -math.inf}
# A label, what the message says, and the wrong arguments.
WRONG: list[tuple[str, str, dict[str, Any]]] = [
    *[
        (f"{name}-{label}", name, {name: _with(good, wrong)})
        for name, good in {"log_weights": W, "log_scores": S, "log_affinities": A}.items()
        for label, wrong in NOT_FINITE.items()
    ],
    # no elements, no subsets, no dimension at all
    ("total-zero", "total_count", {"total_count": 0}),
    ("total-negative", "total_count.*-2", {"total_count": -2}),
    ("total-fraction", "total_count.*2.5", {"total_count": 2.5}),
    ("no-groups", "log_(weights|affinities)", {"log_weights": torch.zeros(0)}),
    ("no-groups-in-a-batch", "log_(weights|affinities)", {"log_weights": torch.zeros(2, 0)}),
    ("scalar-weights", "log_weights", {"log_weights": torch.zeros(())}),
    ("no-elements", "log_scores", {"log_scores": torch.zeros(3, 0)}),
    ("scalar-scores", "log_scores", {"log_scores": torch.zeros(())}),
    ("no-affinities", "log_affinities", {"log_affinities": torch.zeros(K, 0)}),
    ("a-vector", r"log_affinities.*\(\.\.\., 3, n\).*\(5,\)", {"log_affinities": S}),
    ("few-rows", r"log_affinities.*\(\.\.\., 3, n\).*\(2, 5\)", {"log_affinities": A[:2]}),
    # types
    ("integer-weights", "log_weights", {"log_weights": torch.arange(K)}),
    ("integer-scores", "log_scores", {"log_scores": torch.arange(N)}),
    ("integer-affinities", "log_affinities", {"log_affinities": A.long()}),
    ("list", "log_affinities", {"log_affinities": A.tolist()}),
    # capacities
    *[
        (f"capacities-{label}", "capacities", {"capacities": capacities})
        for label, capacities in {
            "small": torch.tensor([1, 2, 1]),
            "fraction": torch.tensor([2.5, 4.0, 4.0]),
            "negative": torch.tensor([-1, 5, 5]),
            "nan": torch.tensor([math.nan, 5.0, 5.0]),
            "shape": torch.tensor([5, 5]),
            "scalar": torch.tensor(5),
            "list": [5, 5, 5],
        }.items()
    ],
    # limits
    ("minimum-sum", "minimum.*5.*6", {"minimum": 2}),
    ("maximum-sum", "maximum.*5.*3", {"maximum": 1}),
    ("crossed", "minimum.*2.*1", {"minimum": torch.tensor([2, 0, 0]), "maximum": 1}),
    ("minimum-negative", "minimum.*-1", {"minimum": -1}),
    ("maximum-negative", "maximum.*-1", {"maximum": torch.tensor([5, -1, 5])}),
    ("minimum-fraction", "minimum.*0.5", {"minimum": 0.5}),
    ("maximum-fraction", "maximum.*2.5", {"maximum": torch.tensor([2.5, 5, 5])}),
    ("minimum-nan", "minimum.*nan", {"minimum": torch.tensor([math.nan, 1, 1])}),
    ("maximum-inf", "maximum.*inf", {"maximum": math.inf}),
    ("minimum-shape", r"minimum.*\(2,\)", {"minimum": torch.tensor([1, 1])}),
    ("maximum-text", "maximum.*two", {"maximum": "two"}),
    ("minimum-bool", "minimum.*True", {"minimum": True}),
    ("maximum-bool", "maximum.*bool", {"maximum": torch.tensor([True, True, True])}),
    ("minimum-capacity", "minimum.*2.*1", {"capacities": torch.tensor([1, 5, 5]), "minimum": 2}),
    ("maximum-room", "maximum.*5.*4", {"capacities": torch.tensor([1, 5, 1]), "maximum": 2}),
    ("limits-batch", "minimum", {"log_weights": W.expand(2, K), "minimum": torch.ones(3, K)}),
    ("limits-merged", "method.*merged", {"method": "merged", "minimum": 1}),
    # temperatures
    *[
        (f"temperature-{label}", "temperature", {"temperature": wrong})
        for label, wrong in {**NOT_FINITE, "zero": 0.0, "negative": -1.0}.items()
    ],
    ("temperature-tensor", "temperature.*-1", {"temperature": torch.tensor([1.0, -1.0])}),
    ("temperature-text", "temperature.*warm", {"temperature": "warm"}),
    # shapes that do not broadcast
    (
        "scores-batch",
        "log_(scores|weights)",
        {"log_scores": torch.zeros(2, N), "log_weights": torch.zeros(3, K)},
    ),
    (
        "affinities-batch",
        "log_affinities",
        {"log_affinities": torch.zeros(2, K, N), "log_weights": torch.zeros(4, K)},
    ),
    # names
    ("method", "method.*exakt", {"method": "exakt"}),
    ("hard", "hard.*sometimes", {"hard": "sometimes"}),
    ("sort", "sort.*bubble", {"sort": "bubble"}),
]


def _law(name: str, **changes: Any) -> Any:
    make, good = GOOD[name]
    return make(**{**good, **changes})


# Values outside the support, by law; they broadcast against a batch, all or one of them wrong.
SIZES_OF_A_BATCH = torch.tensor([[[5.0, 0.0, 0.0]], [[1.0, 1.0, 1.0]]])
VALUES: list[tuple[str, dict[str, Any], Tensor]] = [
    *[
        ("sizes", {}, torch.tensor(value))
        for value in ([1.0, 1, 1], [-1.0, 3, 3], [0.5, 2.5, 2], [math.nan, 2, 2], [2.0, 3])
    ],
    ("sizes", {"capacities": torch.tensor([2, 5, 5])}, torch.tensor([3.0, 1, 1])),
    ("sizes", {"minimum": 1}, torch.tensor([0.0, 2, 3])),
    ("sizes", {"maximum": 3}, torch.tensor([0.0, 1, 4])),
    ("sizes", {"log_weights": W.expand(3, K)}, torch.tensor([1.0, 1, 1])),
    ("sizes", {"log_weights": W.expand(3, K)}, SIZES_OF_A_BATCH),
    *[
        ("order", {"log_scores": scores}, torch.tensor(value))
        for scores in (S, S.expand(3, N))
        for value in ([0, 1, 2, 3, 3], [1, 2, 3, 4, 5], [0, 1, 2, 3])
    ],
    *[
        (name, changes, value)
        for name in ("partition", "affinity")
        for changes, value in (
            ({}, torch.zeros(K, N)),
            ({}, torch.ones(K, N)),
            ({}, torch.full((K, N), 1 / K)),
            ({}, ONE_HOT * math.nan),
            ({}, ONE_HOT.T),
            ({"minimum": 1}, torch.eye(K)[:, [0] * N]),
            ({"capacities": torch.tensor([1, 5, 5])}, ONE_HOT),
            ({"log_weights": W.expand(3, K)}, torch.zeros(K, N)),
            ({"log_weights": W.expand(3, K)}, torch.stack([ONE_HOT, 0 * ONE_HOT])[:, None]),
        )
    ],
]
_PARTITIONS = [_law("partition"), _law("affinity")]
_OTHER = drpm.RandomPartition(torch.zeros(N + 1), W)

BAD = [
    *[
        BadCase(f"{name}-{label}", functools.partial(_law, name, **wrong), message)
        for label, message, wrong in WRONG
        for name, (make, _) in GOOD.items()
        if wrong.keys() <= inspect.signature(make).parameters.keys()
    ],
    *[
        BadCase(f"{name}-value-{index}", lambda n=name, c=c, v=v: _law(n, **c).log_prob(v), "value")
        for index, (name, c, v) in enumerate(VALUES)
    ],
    *[
        BadCase(f"{type(law).__name__}-{label}", functools.partial(call, law), message)
        for law in _PARTITIONS
        for label, call, message in (
            ("entropy", lambda p: p.entropy(num_samples=0), "num_samples.*0"),
            ("kl-samples", lambda p: drpm.partition_kl(p, p, num_samples=0), "num_samples.*0"),
            ("kl-estimate", lambda p: drpm.partition_kl(p, p, estimate="guess"), "estimate.*guess"),
            ("kl-shapes", lambda p: drpm.partition_kl(p, _OTHER), r"q must.*\(3, 5\).*\(3, 6\)"),
            ("bounds-value", lambda p: p.log_prob_bounds(torch.zeros(K, N)), "value"),
            (
                "bounds-value-broadcast",
                lambda p: p.expand((3,)).log_prob_bounds(torch.zeros(K, N)),
                "value",
            ),
        )
    ],
    *[
        BadCase(f"{name}-noise", lambda n=name: _law(n).rsample_parts(noise="loud"), "noise.*loud")
        for name in ("relaxed-partition", "relaxed-affinity")
    ],
    BadCase("marginals", lambda: _PARTITIONS[1].marginals(num_samples=0), "num_samples.*0"),
]

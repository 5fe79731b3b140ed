"""Two registries that drive the generic tests: laws with good parameters, and bad parameters.

A new law joins the whole suite with one :class:`Case` per variant, and one :class:`BadCase` for
each way its arguments can be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

import drpm
from drpm.distributions import EnumeratedSizeLaw
from drpm.distributions.constraints import finite_vector
from drpm.distributions.validation import require_count, require_finite, require_vector
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
        if self._validating(validate_args):
            require_finite("log_weights", log_weights)
        self.log_weights = log_weights
        shape, device = log_weights.shape, log_weights.device
        self.capacities = torch.full(shape, total_count, dtype=torch.float64, device=device)
        super().__init__(shape[:-1], shape[-1:], validate_args)

    @property
    def dtype(self) -> torch.dtype:
        return self.log_weights.dtype

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> Multinomial:
        shape = (*batch_shape, self.event_shape[0])
        return self._expanded(
            batch_shape,
            _instance,
            total_count=self.total_count,
            log_weights=self.log_weights.expand(shape),
            capacities=self.capacities.expand(shape),
        )

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
    _partition("relaxed-partition-window", temperature=0.7, hard=False, window="sigmoid"),
    _partition("relaxed-partition-window-hard", temperature=0.7, window="sigmoid"),
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


def _bad(name: str, message: str, law: Callable[..., Any], *args: Any, **kwargs: Any) -> BadCase:
    return BadCase(name, lambda: law(*args, **kwargs), message)


def _bad_value(name: str, message: str, law: Distribution, value: Any) -> BadCase:
    return BadCase(name, lambda: law.log_prob(value), message)


def _with(values: Tensor, wrong: float) -> Tensor:
    values = values.clone()
    values[..., 1] = wrong
    return values


S, W = torch.linspace(-1, 1, N), torch.linspace(0, 1, K)
_FISHER, _LUCE, _RPM = drpm.FisherHypergeometric, drpm.PlackettLuce, drpm.RandomPartition
_RELAXED_FISHER, _RELAXED_LUCE = drpm.RelaxedFisherHypergeometric, drpm.RelaxedPlackettLuce
_RELAXED_RPM = drpm.RelaxedRandomPartition
_SIZES, _ORDERS, _PARTITIONS = _FISHER(N, W), _LUCE(S), _RPM(S, W)
A = torch.linspace(-1, 1, K * N).reshape(K, N)
_APM, _RELAXED_APM = drpm.AffinityPartition, drpm.RelaxedAffinityPartition
_AFFINITIES = _APM(A, W)
_ONE_HOT = torch.eye(K)[:, torch.tensor([0, 1, 2, 1, 0])]

BAD = [
    *[
        bad
        for label, wrong in (("nan", math.nan), ("inf", math.inf), ("minus-inf", -math.inf))
        for bad in (
            _bad(f"sizes-weights-{label}", "log_weights", _FISHER, N, _with(W, wrong)),
            _bad(
                f"merged-weights-{label}",
                "log_weights",
                _FISHER,
                N,
                _with(W, wrong),
                None,
                "merged",
            ),
            _bad(f"order-scores-{label}", "log_scores", _LUCE, _with(S, wrong)),
            _bad(f"partition-scores-{label}", "log_scores", _RPM, _with(S, wrong), W),
            _bad(f"partition-weights-{label}", "log_weights", _RPM, S, _with(W, wrong)),
            _bad(f"affinity-{label}", "log_affinities", _APM, _with(A, wrong), W),
            _bad(f"affinity-weights-{label}", "log_weights", _APM, A, _with(W, wrong)),
            _bad(f"relaxed-sizes-{label}", "log_weights", _RELAXED_FISHER, 1.0, N, _with(W, wrong)),
            _bad(f"relaxed-order-{label}", "log_scores", _RELAXED_LUCE, 1.0, _with(S, wrong)),
            _bad(f"relaxed-scores-{label}", "log_scores", _RELAXED_RPM, 1.0, _with(S, wrong), W),
            _bad(
                f"relaxed-affinity-{label}", "log_affinities", _RELAXED_APM, 1.0, _with(A, wrong), W
            ),
            _bad(f"relaxed-weights-{label}", "log_weights", _RELAXED_RPM, 1.0, S, _with(W, wrong)),
        )
    ],
    # no elements, no subsets, no dimension at all
    _bad("sizes-total-zero", "total_count", _FISHER, 0, W),
    _bad("sizes-total-negative", "total_count.*-2", _FISHER, -2, W),
    _bad("sizes-total-fraction", "total_count.*2.5", _FISHER, 2.5, W),
    _bad("relaxed-sizes-total-zero", "total_count", _RELAXED_FISHER, 1.0, 0, W),
    _bad("sizes-no-groups", "log_weights", _FISHER, N, torch.zeros(0)),
    _bad("sizes-scalar", "log_weights", _FISHER, N, torch.zeros(())),
    _bad("order-no-elements", "log_scores", _LUCE, torch.zeros(0)),
    _bad("order-scalar", "log_scores", _LUCE, torch.zeros(())),
    _bad("partition-no-elements", "log_scores", _RPM, torch.zeros(0), W),
    _bad("partition-no-groups", "log_weights", _RPM, S, torch.zeros(2, 0)),
    _bad("partition-scalar", "log_scores", _RPM, torch.zeros(()), W),
    _bad("affinity-no-elements", "log_affinities", _APM, torch.zeros(K, 0), W),
    _bad("affinity-no-groups", "log_weights", _APM, torch.zeros(0, N), torch.zeros(0)),
    _bad("affinity-vector", r"log_affinities.*\(\.\.\., 3, n\).*\(5,\)", _APM, S, W),
    _bad("affinity-rows", r"log_affinities.*\(\.\.\., 3, n\).*\(2, 5\)", _APM, A[:2], W),
    _bad("relaxed-affinity-vector", "log_affinities", _RELAXED_APM, 1.0, S, W),
    _bad("relaxed-no-elements", "log_scores", _RELAXED_RPM, 1.0, torch.zeros(0), W),
    _bad("relaxed-no-groups", "log_weights", _RELAXED_RPM, 1.0, S, torch.zeros(0)),
    _bad("relaxed-order-no-elements", "log_scores", _RELAXED_LUCE, 1.0, torch.zeros(3, 0)),
    # integer parameters
    _bad("sizes-integer", "log_weights", _FISHER, N, torch.ones(K, dtype=torch.int64)),
    _bad("order-integer", "log_scores", _LUCE, torch.arange(N)),
    _bad("partition-integer-scores", "log_scores", _RPM, torch.arange(N), W),
    _bad("partition-integer-weights", "log_weights", _RPM, S, torch.ones(K, dtype=torch.int32)),
    _bad("affinity-integer", "log_affinities", _APM, A.long(), W),
    _bad("affinity-list", "log_affinities", _APM, A.tolist(), W),
    _bad("affinity-integer-weights", "log_weights", _APM, A, torch.arange(K)),
    _bad("relaxed-affinity-integer", "log_affinities", _RELAXED_APM, 1.0, A.long(), W),
    _bad("relaxed-sizes-integer", "log_weights", _RELAXED_FISHER, 1.0, N, torch.arange(K)),
    _bad("relaxed-order-integer", "log_scores", _RELAXED_LUCE, 1.0, torch.arange(N)),
    _bad("relaxed-integer-scores", "log_scores", _RELAXED_RPM, 1.0, torch.arange(N), W),
    _bad("relaxed-integer-weights", "log_weights", _RELAXED_RPM, 1.0, S, torch.arange(K)),
    # capacities
    *[
        bad
        for label, capacities in (
            ("small", torch.tensor([1, 2, 1])),
            ("fraction", torch.tensor([2.5, 4.0, 4.0])),
            ("negative", torch.tensor([-1, 5, 5])),
            ("nan", torch.tensor([math.nan, 5.0, 5.0])),
            ("shape", torch.tensor([5, 5])),
        )
        for bad in (
            _bad(f"sizes-capacities-{label}", "capacities", _FISHER, N, W, capacities),
            _bad(f"merged-capacities-{label}", "capacities", _FISHER, N, W, capacities, "merged"),
            _bad(f"partition-capacities-{label}", "capacities", _RPM, S, W, capacities),
            _bad(f"affinity-capacities-{label}", "capacities", _APM, A, W, capacities),
            _bad(
                f"relaxed-sizes-capacities-{label}",
                "capacities",
                _RELAXED_FISHER,
                1.0,
                N,
                W,
                capacities,
            ),
            _bad(f"relaxed-capacities-{label}", "capacities", _RELAXED_RPM, 1.0, S, W, capacities),
        )
    ],
    # limits
    *[
        bad
        for label, message, limits in (
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
        )
        for bad in (
            _bad(f"sizes-limits-{label}", message, _FISHER, N, W, **limits),
            _bad(f"partition-limits-{label}", message, _RPM, S, W, **limits),
            _bad(f"relaxed-sizes-limits-{label}", message, _RELAXED_FISHER, 1.0, N, W, **limits),
            _bad(f"relaxed-limits-{label}", message, _RELAXED_RPM, 1.0, S, W, **limits),
        )
    ],
    _bad("limits-capacity", "minimum.*2.*1", _FISHER, N, W, torch.tensor([1, 5, 5]), minimum=2),
    _bad("limits-room", "maximum.*5.*4", _FISHER, N, W, torch.tensor([1, 5, 1]), maximum=2),
    _bad("limits-merged", "method.*merged", _FISHER, N, W, None, "merged", minimum=1),
    _bad("limits-batch", "minimum", _FISHER, N, W.expand(2, K), minimum=torch.ones(3, K)),
    # temperatures
    *[
        bad
        for label, tau in (("zero", 0.0), ("negative", -1.0), ("nan", math.nan), ("inf", math.inf))
        for bad in (
            _bad(f"relaxed-sizes-temperature-{label}", "temperature", _RELAXED_FISHER, tau, N, W),
            _bad(f"relaxed-order-temperature-{label}", "temperature", _RELAXED_LUCE, tau, S),
            _bad(f"relaxed-affinity-temperature-{label}", "temperature", _RELAXED_APM, tau, A, W),
            _bad(f"relaxed-temperature-{label}", "temperature", _RELAXED_RPM, tau, S, W),
            _bad(
                f"relaxed-temperature-tensor-{label}",
                "temperature",
                _RELAXED_RPM,
                torch.tensor(tau),
                S,
                W,
            ),
        )
    ],
    # mismatched shapes
    _bad("partition-batch", r"log_(scores|weights)", _RPM, torch.zeros(2, N), torch.zeros(3, K)),
    _bad(
        "relaxed-batch",
        r"log_(scores|weights)",
        _RELAXED_RPM,
        1.0,
        torch.zeros(2, N),
        torch.zeros(3, K),
    ),
    _bad("affinity-batch", r"log_affinities", _APM, torch.zeros(2, K, N), torch.zeros(4, K)),
    # names
    _bad("sizes-method", "method.*exakt", _FISHER, N, W, None, "exakt"),
    _bad("relaxed-sizes-hard", "hard.*sometimes", _RELAXED_FISHER, 1.0, N, W, None, "sometimes"),
    _bad("relaxed-order-hard", "hard.*sometimes", _RELAXED_LUCE, 1.0, S, hard="sometimes"),
    _bad("relaxed-affinity-hard", "hard.*sometimes", _RELAXED_APM, 1.0, A, W, hard="sometimes"),
    BadCase(
        "relaxed-affinity-noise",
        lambda: _RELAXED_APM(1.0, A, W).rsample_parts(noise="loud"),
        "noise.*loud",
    ),
    _bad("relaxed-hard", "hard.*sometimes", _RELAXED_RPM, 1.0, S, W, hard="sometimes"),
    _bad("relaxed-order-sort", "sort.*bubble", _RELAXED_LUCE, 1.0, S, sort="bubble"),
    _bad("relaxed-sort", "sort.*bubble", _RELAXED_RPM, 1.0, S, W, sort="bubble"),
    _bad("relaxed-window", "window.*round", _RELAXED_RPM, 1.0, S, W, window="round"),
    BadCase(
        "relaxed-noise",
        lambda: _RELAXED_RPM(1.0, S, W).rsample_parts(noise="loud"),
        "noise.*loud",
    ),
    BadCase(
        "kl-estimate",
        lambda: drpm.partition_kl(_PARTITIONS, _PARTITIONS, estimate="guess"),
        "estimate.*guess",
    ),
    BadCase(
        "kl-samples",
        lambda: drpm.partition_kl(_PARTITIONS, _PARTITIONS, num_samples=0),
        "num_samples.*0",
    ),
    BadCase("affinity-entropy", lambda: _AFFINITIES.entropy(num_samples=0), "num_samples.*0"),
    BadCase("affinity-marginals", lambda: _AFFINITIES.marginals(num_samples=0), "num_samples.*0"),
    BadCase(
        "affinity-kl-shapes",
        lambda: drpm.partition_kl(_AFFINITIES, _RPM(torch.zeros(N + 1), W)),
        r"q must.*\(3, 5\).*\(3, 6\)",
    ),
    BadCase("entropy-samples", lambda: _PARTITIONS.entropy(num_samples=0), "num_samples.*0"),
    BadCase(
        "kl-shapes",
        lambda: drpm.partition_kl(_PARTITIONS, _RPM(torch.zeros(N + 1), W)),
        r"q must.*\(3, 5\).*\(3, 6\)",
    ),
    # values outside the support
    _bad_value("sizes-value-sum", "value", _SIZES, torch.tensor([1.0, 1.0, 1.0])),
    _bad_value("sizes-value-negative", "value", _SIZES, torch.tensor([-1.0, 3.0, 3.0])),
    _bad_value("sizes-value-fraction", "value", _SIZES, torch.tensor([0.5, 2.5, 2.0])),
    _bad_value("sizes-value-nan", "value", _SIZES, torch.tensor([math.nan, 2.0, 2.0])),
    _bad_value("sizes-value-shape", "value", _SIZES, torch.tensor([2.0, 3.0])),
    _bad_value(
        "sizes-value-capacity",
        "value",
        _FISHER(N, W, torch.tensor([2, 5, 5])),
        torch.tensor([3.0, 1.0, 1.0]),
    ),
    _bad_value(
        "sizes-value-minimum", "value.*minimum", _FISHER(N, W, minimum=1), torch.tensor([0.0, 2, 3])
    ),
    _bad_value(
        "sizes-value-maximum", "value.*maximum", _FISHER(N, W, maximum=3), torch.tensor([0.0, 1, 4])
    ),
    _bad_value("partition-value-minimum", "value", _RPM(S, W, minimum=1), torch.eye(K)[:, [0] * N]),
    _bad_value("order-value-twice", "value", _ORDERS, torch.tensor([0, 1, 2, 3, 3])),
    _bad_value("order-value-range", "value", _ORDERS, torch.tensor([1, 2, 3, 4, 5])),
    _bad_value("order-value-shape", "value", _ORDERS, torch.tensor([0, 1, 2, 3])),
    _bad_value("partition-value-empty", "value", _PARTITIONS, torch.zeros(K, N)),
    _bad_value("partition-value-twice", "value", _PARTITIONS, torch.ones(K, N)),
    _bad_value("partition-value-soft", "value", _PARTITIONS, torch.full((K, N), 1 / K)),
    _bad_value("partition-value-nan", "value", _PARTITIONS, _ONE_HOT * math.nan),
    _bad_value("partition-value-shape", "value", _PARTITIONS, _ONE_HOT.T),
    _bad_value("affinity-value-empty", "value", _AFFINITIES, torch.zeros(K, N)),
    _bad_value("affinity-value-soft", "value", _AFFINITIES, torch.full((K, N), 1 / K)),
    _bad_value("affinity-value-shape", "value", _AFFINITIES, _ONE_HOT.T),
    # values that broadcast against the batch, all of them or one of them wrong
    _bad_value(
        "sizes-value-broadcast", "value", _FISHER(N, W.expand(3, K)), torch.tensor([1.0, 1.0, 1.0])
    ),
    _bad_value(
        "sizes-value-batch",
        "value",
        _FISHER(N, W.expand(3, K)),
        torch.tensor([[[5.0, 0.0, 0.0]], [[1.0, 1.0, 1.0]]]),
    ),
    _bad_value(
        "order-value-broadcast", "value", _LUCE(S.expand(3, N)), torch.tensor([0, 1, 2, 3, 3])
    ),
    _bad_value("partition-value-broadcast", "value", _RPM(S.expand(3, N), W), torch.zeros(K, N)),
    _bad_value(
        "partition-value-batch",
        "value",
        _RPM(S.expand(3, N), W),
        torch.stack([_ONE_HOT, torch.zeros(K, N)])[:, None],
    ),
    BadCase(
        "bounds-value-broadcast",
        lambda: _RPM(S.expand(3, N), W).log_prob_bounds(torch.zeros(K, N)),
        "value",
    ),
    _bad_value(
        "partition-value-capacity",
        "value",
        _RPM(S, W, torch.tensor([1, 5, 5])),
        _ONE_HOT,
    ),
    BadCase(
        "bounds-value",
        lambda: _PARTITIONS.log_prob_bounds(torch.zeros(K, N)),
        "value",
    ),
    BadCase(
        "bounds-order-incompatible",
        lambda: _PARTITIONS.log_prob_bounds(_ONE_HOT, torch.tensor([1, 0, 2, 3, 4])),
        "order",
    ),
    BadCase(
        "bounds-order-not-permutation",
        lambda: _PARTITIONS.log_prob_bounds(_ONE_HOT, torch.tensor([0, 0, 1, 3, 2])),
        "order",
    ),
    BadCase(
        "affinity-bounds-order",
        lambda: _AFFINITIES.log_prob_bounds(_ONE_HOT, torch.tensor([1, 0, 2, 3, 4])),
        "order",
    ),
]

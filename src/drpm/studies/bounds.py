r"""How tight are the bounds on the probability mass of a partition?

The mass of a partition sums over every order that leads to it, so the paper bounds it by

.. math:: \max_{\pi \in \Pi_Y} p(n; \omega) \, p(\pi; s) \;\le\; p(Y; \omega, s) \;\le\;
    |\Pi_Y| \, p(n; \omega) \, \max_{\tilde\pi} p(\tilde\pi; s)

and studies them on the partitions of five elements into five subsets, against an estimate that
counts draws. Here the exact mass is available too, so the looseness of each bound is a number
rather than an impression, and the counted draws become a test of the sampler.
"""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from drpm import RandomPartition

NUM_ELEMENTS = 5
NUM_SUBSETS = 5
NUM_SETTINGS = 4

# Draws are counted in chunks, so that memory does not grow with their number.
CHUNK = 50_000

# A count is judged in standard errors only where the normal approximation means something: one
# lucky draw of an assignment expected once in a thousand runs would read as thirty of them.
MIN_EXPECTED_COUNT = 10.0


@dataclass(frozen=True)
class Setting:
    r"""One choice of the parameters.

    Arguments:
        key: A short name, fit for a file name.
        label: The setting in plain text, where U is the uniform law on (0, 1).
        math_label: The setting in mathtext.
        log_weights: The group log-weights :math:`\log \omega`, shape (K,).
        log_scores: The element log-scores :math:`\log s`, shape (n,).
    """

    key: str
    label: str
    math_label: str
    log_weights: Tensor
    log_scores: Tensor

    @property
    def law(self) -> RandomPartition:
        return RandomPartition(self.log_scores, self.log_weights)


@dataclass(frozen=True)
class Masses:
    """The mass of every assignment under one setting; all tensors have shape (K ** n,).

    Arguments:
        setting: The parameters.
        log_exact: The exact log-mass.
        log_lower: The lower bound, with the most likely order that leads to the assignment.
        log_upper: The upper bound.
        counts: How many of the draws gave the assignment.
        num_draws: How many draws were made.
    """

    setting: Setting
    log_exact: Tensor
    log_lower: Tensor
    log_upper: Tensor
    counts: Tensor
    num_draws: int


@dataclass(frozen=True)
class Looseness:
    """The gap between a bound and the exact log-mass, in nats.

    Arguments:
        median: Over all assignments, each counted once.
        max: Over all assignments.
        expected: The mean gap of an assignment drawn from the law, which is the price of using
            the bound in place of the log-probability inside an expectation.
    """

    median: float
    max: float
    expected: float


@dataclass(frozen=True)
class Summary:
    """What the study says about one setting.

    Arguments:
        key: The setting's short name.
        weights: The group weights, not their logs.
        scores: The element scores, not their logs.
        lower: How far the lower bound lies below the exact log-mass.
        upper: How far the upper bound lies above it.
        total_mass: The exact masses summed over all assignments; 1 up to rounding.
        max_standard_errors: The largest distance between the counted and the exact mass, in
            standard errors, among assignments expected at least ``MIN_EXPECTED_COUNT`` times.
        num_compared: How many assignments that is.
        num_never_drawn: How many assignments no draw gave.
    """

    key: str
    weights: list[float]
    scores: list[float]
    lower: Looseness
    upper: Looseness
    total_mass: float
    max_standard_errors: float
    num_compared: int
    num_never_drawn: int


def paper_settings(generator: torch.Generator) -> list[Setting]:
    """The four settings of the study: weights and scores each equal, or uniform on (0, 1].

    The random weights and scores are drawn once and shared, so that the settings differ only in
    what their names say.
    """

    def log_uniform(size: int) -> Tensor:
        # 1 - U avoids log(0): torch draws U from [0, 1).
        return torch.log1p(-torch.rand(size, generator=generator, dtype=torch.float64))

    random_weights, random_scores = log_uniform(NUM_SUBSETS), log_uniform(NUM_ELEMENTS)
    equal_weights, equal_scores = torch.zeros_like(random_weights), torch.zeros_like(random_scores)
    text = {"equal": "= 1", "random": "~ U"}
    math_text = {"equal": r"= \mathbf{1}", "random": r"\sim U(0, 1)"}
    return [
        Setting(
            key=f"{weights}_weights_{scores}_scores",
            label=f"ω {text[weights]}, s {text[scores]}",
            math_label=rf"$\omega {math_text[weights]}$,  $s {math_text[scores]}$",
            log_weights=log_weights,
            log_scores=log_scores,
        )
        for scores, log_scores in (("equal", equal_scores), ("random", random_scores))
        for weights, log_weights in (("equal", equal_weights), ("random", random_weights))
    ]


def all_assignments(num_elements: int, num_subsets: int) -> Tensor:
    """Every assignment as a matrix of one-hot columns, shape (K ** n, K, n).

    Row ``a`` is the assignment whose subset indices are the base-K digits of ``a``.
    """
    codes = torch.arange(num_subsets**num_elements).unsqueeze(-1)
    labels = codes // _place_values(num_elements, num_subsets) % num_subsets
    return torch.nn.functional.one_hot(labels, num_subsets).mT.double()


def count_assignments(
    law: RandomPartition,
    num_draws: int,
    *,
    generator: torch.Generator,
    on_draws: Callable[[int], None] | None = None,
) -> Tensor:
    """How often each assignment comes up in ``num_draws`` draws, in ``all_assignments``' order.

    Arguments:
        law: An unbatched law.
        num_draws: The number of draws.
        generator: The source of randomness.
        on_draws: Called with the size of every finished chunk of draws.
    """
    num_subsets, num_elements = law.event_shape
    place_values = _place_values(num_elements, num_subsets)
    counts = torch.zeros(num_subsets**num_elements, dtype=torch.long)
    remaining = num_draws
    while remaining > 0:
        chunk = min(CHUNK, remaining)
        labels = law.sample(torch.Size([chunk]), generator=generator).argmax(-2)
        counts += torch.bincount((labels * place_values).sum(-1), minlength=len(counts))
        remaining -= chunk
        if on_draws is not None:
            on_draws(chunk)
    return counts


def measure(
    setting: Setting,
    num_draws: int,
    *,
    generator: torch.Generator,
    on_draws: Callable[[int], None] | None = None,
) -> Masses:
    """The exact, bounded and counted mass of every assignment under ``setting``."""
    law = setting.law
    num_subsets, num_elements = law.event_shape
    assignments = all_assignments(num_elements, num_subsets)
    bounds = law.log_prob_bounds(assignments)
    counts = count_assignments(law, num_draws, generator=generator, on_draws=on_draws)
    return Masses(
        setting=setting,
        log_exact=law.log_prob(assignments),
        log_lower=bounds.lower,
        log_upper=bounds.upper,
        counts=counts,
        num_draws=num_draws,
    )


def summarize(masses: Masses) -> Summary:
    """The looseness of both bounds, and two checks of the exact mass."""
    exact = masses.log_exact.exp()
    standard_errors = (exact * (1 - exact) / masses.num_draws).sqrt()
    distance = (masses.counts / masses.num_draws - exact).abs() / standard_errors
    comparable = exact * masses.num_draws >= MIN_EXPECTED_COUNT
    return Summary(
        key=masses.setting.key,
        weights=masses.setting.log_weights.exp().tolist(),
        scores=masses.setting.log_scores.exp().tolist(),
        lower=_looseness(masses.log_exact - masses.log_lower, exact),
        upper=_looseness(masses.log_upper - masses.log_exact, exact),
        total_mass=exact.sum().item(),
        max_standard_errors=distance[comparable].max().item() if comparable.any() else math.nan,
        num_compared=int(comparable.sum()),
        num_never_drawn=int((masses.counts == 0).sum()),
    )


def run(
    num_draws: int,
    seed: int,
    *,
    on_draws: Callable[[int], None] | None = None,
) -> list[Masses]:
    """The whole study: one ``Masses`` for each of the paper's settings.

    Arguments:
        num_draws: The number of draws counted per setting.
        seed: Settles the random parameters, and then the draws.
        on_draws: Called with the size of every finished chunk of draws.
    """
    generator = torch.Generator().manual_seed(seed)
    return [
        measure(setting, num_draws, generator=generator, on_draws=on_draws)
        for setting in paper_settings(generator)
    ]


def write_summary(summaries: Iterable[Summary], path: Path, *, num_draws: int, seed: int) -> None:
    """Write the summaries, and what is needed to compute them again, as JSON."""
    document = {
        "num_elements": NUM_ELEMENTS,
        "num_subsets": NUM_SUBSETS,
        "num_draws": num_draws,
        "seed": seed,
        "units": "nats",
        # JSON knows no NaN; a comparison that could not be made is null.
        "settings": [_without_nan(asdict(summary)) for summary in summaries],
    }
    path.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _place_values(num_elements: int, num_subsets: int) -> Tensor:
    return num_subsets ** torch.arange(num_elements - 1, -1, -1)


def _looseness(gap: Tensor, exact: Tensor) -> Looseness:
    return Looseness(
        median=gap.median().item(), max=gap.max().item(), expected=(exact * gap).sum().item()
    )


def _without_nan(fields: dict[str, object]) -> dict[str, object]:
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in fields.items()
    }

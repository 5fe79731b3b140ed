r"""How tight are the bounds on the probability of a partition?

The probability of a partition sums over every order that leads to it, so the paper bounds it by

.. math:: \max_{\pi \in \Pi_Y} p(n; \omega) \, p(\pi; s) \;\le\; p(Y; \omega, s) \;\le\;
    |\Pi_Y| \, p(n; \omega) \, \max_{\tilde\pi} p(\tilde\pi; s)

and studies them on the partitions of five elements into five subsets, against a Monte Carlo
estimate. Here the exact probability is available too, which measures the looseness of each bound
and tests the sampler.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from drpm import RandomPartition
from drpm.report.plots import png
from drpm.training import config as configs
from drpm.training.checkpoint import write_atomic
from drpm.training.runs import RunFolder

NUM_ELEMENTS = 5
NUM_SUBSETS = 5

# Draws are counted in chunks, so that memory does not grow with their number.
CHUNK = 50_000

# A count is compared in standard errors only where the normal approximation holds: one draw of an
# assignment expected once in a thousand runs would be thirty of them.
MIN_EXPECTED_COUNT = 10.0


@dataclass(frozen=True)
class Masses:
    """The mass of every assignment under one setting; all tensors have shape (K ** n,).

    Args:
        key: A short name of the setting.
        label: The setting in words, where U is the uniform distribution on (0, 1).
        law: The partition of the setting.
        log_exact: The exact log-mass.
        log_lower: The lower bound, with the most likely order that leads to the assignment.
        log_upper: The upper bound.
        counts: How many of the draws gave the assignment.
    """

    key: str
    label: str
    law: RandomPartition
    log_exact: Tensor
    log_lower: Tensor
    log_upper: Tensor
    counts: Tensor

    @property
    def num_draws(self) -> int:
        return int(self.counts.sum())


@dataclass(frozen=True)
class Looseness:
    """The gap between a bound and the exact log-mass, in nats.

    Args:
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
    """The results of one setting.

    Args:
        key: The setting's short name.
        weights: The group weights, not their logs.
        scores: The element scores, not their logs.
        lower: How far the lower bound is below the exact log-probability.
        upper: How far the upper bound is above it.
        total_mass: The exact masses summed over all assignments; 1 up to rounding.
        max_standard_errors: The largest distance between the counted and the exact mass, in
            standard errors, among assignments expected at least ``MIN_EXPECTED_COUNT`` times;
            None if there are none.
        num_compared: How many assignments that is.
        num_never_drawn: How many assignments no draw gave.
    """

    key: str
    weights: list[float]
    scores: list[float]
    lower: Looseness
    upper: Looseness
    total_mass: float
    max_standard_errors: float | None
    num_compared: int
    num_never_drawn: int


def paper_settings(generator: torch.Generator) -> list[tuple[str, str, RandomPartition]]:
    """Name, label and law of the four settings: weights and scores equal, or uniform on (0, 1].

    The random weights and scores are drawn once and shared, so that the settings differ only in
    what their names say.
    """
    # 1 - U avoids log(0): torch draws U from [0, 1).
    weights, scores = (
        torch.log1p(-torch.rand(size, generator=generator, dtype=torch.float64))
        for size in (NUM_SUBSETS, NUM_ELEMENTS)
    )
    names = {"equal": ("= 1", 0), "random": ("~ U", 1)}
    return [
        (
            f"{of_weights}_weights_{of_scores}_scores",
            f"weights {names[of_weights][0]}, scores {names[of_scores][0]}",
            RandomPartition(names[of_scores][1] * scores, names[of_weights][1] * weights),
        )
        for of_scores in names
        for of_weights in names
    ]


def all_assignments(num_elements: int, num_subsets: int) -> Tensor:
    """Every assignment as a matrix of one-hot columns, shape (K ** n, K, n).

    Row ``a`` is the assignment whose subset indices are the base-K digits of ``a``.
    """
    codes = torch.arange(num_subsets**num_elements).unsqueeze(-1)
    labels = codes // _place_values(num_elements, num_subsets) % num_subsets
    return torch.nn.functional.one_hot(labels, num_subsets).mT.double()


def count_assignments(
    law: RandomPartition, num_draws: int, *, generator: torch.Generator
) -> Tensor:
    """How often each assignment comes up in ``num_draws`` draws, in ``all_assignments``' order.

    Args:
        law: An unbatched law.
        num_draws: The number of draws.
        generator: The source of randomness.
    """
    num_subsets, num_elements = law.event_shape
    place_values = _place_values(num_elements, num_subsets)
    counts = torch.zeros(num_subsets**num_elements, dtype=torch.long)
    for start in range(0, num_draws, CHUNK):
        chunk = min(CHUNK, num_draws - start)
        labels = law.sample(torch.Size([chunk]), generator=generator).argmax(-2)
        counts += torch.bincount((labels * place_values).sum(-1), minlength=len(counts))
    return counts


def summarize(masses: Masses) -> Summary:
    """The looseness of both bounds, and two checks of the exact mass."""
    exact = masses.log_exact.exp()
    standard_errors = (exact * (1 - exact) / masses.num_draws).sqrt()
    distance = (masses.counts / masses.num_draws - exact).abs() / standard_errors
    comparable = exact * masses.num_draws >= MIN_EXPECTED_COUNT
    return Summary(
        key=masses.key,
        weights=masses.law.log_weights.exp().tolist(),
        scores=masses.law.log_scores.exp().tolist(),
        lower=_looseness(masses.log_exact - masses.log_lower, exact),
        upper=_looseness(masses.log_upper - masses.log_exact, exact),
        total_mass=exact.sum().item(),
        max_standard_errors=distance[comparable].max().item() if comparable.any() else None,
        num_compared=int(comparable.sum()),
        num_never_drawn=int((masses.counts == 0).sum()),
    )


def run(num_draws: int, seed: int) -> list[Masses]:
    """The whole study: one ``Masses`` for each of the paper's settings.

    Args:
        num_draws: The number of draws counted per setting.
        seed: The seed of the random parameters and of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    assignments = all_assignments(NUM_ELEMENTS, NUM_SUBSETS)
    results = []
    for key, label, law in paper_settings(generator):
        lower, upper = law.log_prob_bounds(assignments)
        counts = count_assignments(law, num_draws, generator=generator)
        exact = law.log_prob(assignments)
        results.append(Masses(key, label, law, exact, lower, upper, counts))
    return results


def write(results: Sequence[Masses], folder: Path, *, seed: int) -> list[Summary]:
    """Write ``bounds.json`` and the figure ``bounds.png``.

    Args:
        results: One ``Masses`` for each setting.
        folder: Where.
        seed: The seed of the study.

    Returns:
        The summary of each setting.
    """
    summaries = [summarize(masses) for masses in results]
    document = {
        "num_elements": NUM_ELEMENTS,
        "num_subsets": NUM_SUBSETS,
        "num_draws": results[0].num_draws,
        "seed": seed,
        "units": "nats",
        "settings": [asdict(summary) for summary in summaries],
    }
    write_atomic(folder / "bounds.json", json.dumps(document, indent=2).encode() + b"\n")
    write_atomic(folder / "bounds.png", png(draw_settings(results)))
    return summaries


def run_study(folder: Path, draws: int, seed: int) -> None:
    """The study as a run of a sweep; it takes seconds, so an interrupted one starts again.

    Args:
        folder: The run's folder.
        draws: Monte Carlo samples per setting.
        seed: The seed of the random parameters and of the draws.
    """
    settings = configs.dumps({"draws": draws, "seed": seed})
    study = RunFolder.create(folder, settings, overwrite=True)
    with study.lock():
        summaries = write(run(draws, seed), study.path, seed=seed)
        study.finish({summary.key: asdict(summary) for summary in summaries})


def draw_settings(results: Sequence[Masses]) -> Figure:
    """The exact probability of every assignment, its bounds and its Monte Carlo estimate."""
    figure = Figure(figsize=(12, 8), layout="constrained")
    grid = figure.subplots(2, 2, sharex=True, sharey=True)
    for axes, masses in zip(grid.flat, results, strict=True):
        _draw(axes, masses)
    figure.suptitle(f"All assignments of {NUM_ELEMENTS} elements to {NUM_SUBSETS} subsets")
    for axes in grid[-1]:
        axes.set_xlabel("Assignments, most likely first")
    for axes in grid[:, 0]:
        axes.set_ylabel("Probability")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), markerscale=3)
    return figure


def _draw(axes: Axes, masses: Masses) -> None:
    order = masses.log_exact.argsort(descending=True)
    ranks = np.arange(1, len(order) + 1)
    exact, lower, upper = (
        log_mass[order].exp().numpy()
        for log_mass in (masses.log_exact, masses.log_lower, masses.log_upper)
    )
    frequency = masses.counts[order].numpy() / masses.num_draws
    drawn = frequency > 0
    # From back to front: the counts scatter around the exact probability, and the points of a
    # tight bound must stay visible on both sides of the line. Okabe and Ito's palette.
    for name, shown, values, color in (
        (f"Monte Carlo ({masses.num_draws:,} draws)", drawn, frequency, "#009E73"),
        ("Upper bound", ..., upper, "#D55E00"),
        ("Lower bound", ..., lower, "#0072B2"),
    ):
        axes.scatter(ranks[shown], values[shown], s=3, color=color, linewidths=0, label=name)
    axes.plot(ranks, exact, color="black", linewidth=1.0, label="Exact")
    # A count of zero has no place on a log axis: such assignments are marked at its bottom.
    missing, bottom, name = ranks[~drawn], axes.get_xaxis_transform(), "Never sampled"
    axes.plot(missing, 0 * missing + 0.015, "|", color="#009E73", transform=bottom, label=name)
    axes.set_yscale("log")
    axes.set_title(masses.label)
    axes.spines[["top", "right"]].set_visible(False)


def _place_values(num_elements: int, num_subsets: int) -> Tensor:
    return num_subsets ** torch.arange(num_elements - 1, -1, -1)


def _looseness(gap: Tensor, exact: Tensor) -> Looseness:
    return Looseness(
        median=gap.median().item(), max=gap.max().item(), expected=(exact * gap).sum().item()
    )

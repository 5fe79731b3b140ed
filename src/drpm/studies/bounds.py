"""How tight are the bounds on the probability of a partition of five elements into five subsets?

The paper compares them with a Monte Carlo estimate. The exact probability measures the looseness of
each bound, and tests the sampler.
"""

import json
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from drpm import RandomPartition
from drpm.report.plots import NARROW, pack_arrays, png, read_arrays
from drpm.studies.results import Table
from drpm.training import config as configs
from drpm.training.checkpoint import write_atomic
from drpm.training.errors import ConfigError
from drpm.training.runs import ARRAYS, open_run

NUM_ELEMENTS = 5
NUM_SUBSETS = 5
COLUMNS = ("exact", "lower", "upper", "count")
CHECKS = ("total_mass", "max_standard_errors", "num_compared", "num_never_drawn")
SETTINGS = [f"weights {x}, scores {y}" for y, x in product(("= 1", "~ U"), repeat=2)]

# Fewer expected draws are not compared in standard errors, which assume a normal distribution.
MIN_EXPECTED_COUNT = 10.0


def paper_settings(generator: torch.Generator) -> dict[str, RandomPartition]:
    """The paper's four settings: weights and scores equal, or drawn once, uniform on (0, 1]."""
    # 1 - U avoids log(0): torch draws U from [0, 1).
    weights, scores = (
        torch.log1p(-torch.rand(size, generator=generator, dtype=torch.float64))
        for size in (NUM_SUBSETS, NUM_ELEMENTS)
    )
    laws = (RandomPartition(a * scores, b * weights) for a, b in product((0, 1), repeat=2))
    return dict(zip(SETTINGS, laws, strict=True))


def measure(law: RandomPartition, num_draws: int, generator: torch.Generator) -> pd.DataFrame:
    """The log-probability of every assignment, its bounds and its count among the draws.

    Row ``a`` is the assignment whose subset indices are the base-K digits of ``a``.
    """
    groups, n = law.event_shape
    places = groups ** torch.arange(n - 1, -1, -1)
    labels = torch.arange(groups**n)[:, None] // places % groups
    assignments = torch.nn.functional.one_hot(labels, groups).mT.to(law.dtype)
    count = torch.zeros(groups**n, dtype=torch.long)
    for draw in law.draws(num_draws, generator):
        count += torch.bincount((draw.Y.argmax(-2) * places).sum(-1), minlength=len(count))
    lower, upper = law.log_prob_bounds(assignments)
    columns = (law.log_prob(assignments), lower, upper, count)
    return pd.DataFrame(dict(zip(COLUMNS, map(Tensor.numpy, columns), strict=True)))


def summarize(table: pd.DataFrame) -> dict[str, Any]:
    """The looseness of both bounds in nats, and checks of the exact probability by its counts."""
    exact, draws = np.exp(table["exact"]), table["count"].sum()
    errors = (table["count"] / draws - exact).abs() / np.sqrt(exact * (1 - exact) / draws)
    compared = errors[exact * draws >= MIN_EXPECTED_COUNT]

    def looseness(gap: "pd.Series[float]") -> dict[str, float]:
        return {"median": gap.median(), "max": gap.max(), "expected": (exact * gap).sum()}

    return {
        "lower": looseness(table["exact"] - table["lower"]),
        "upper": looseness(table["upper"] - table["exact"]),
        "total_mass": exact.sum(),
        "max_standard_errors": compared.max() if len(compared) else None,
        "num_compared": len(compared),
        "num_never_drawn": int((table["count"] == 0).sum()),
    }


def run(folder: Path, num_draws: int, seed: int) -> dict[str, Any]:
    """Write the figure ``bounds.png``, its data and ``bounds.json``, which is returned."""
    generator = torch.Generator().manual_seed(seed)
    laws = paper_settings(generator)
    tables = {name: measure(law, num_draws, generator) for name, law in laws.items()}
    document = {
        "num_elements": NUM_ELEMENTS,
        "num_subsets": NUM_SUBSETS,
        "num_draws": num_draws,
        "seed": seed,
        "units": "nats",
        "settings": {
            name: {
                "weights": law.log_weights.exp().tolist(),
                "scores": law.log_scores.exp().tolist(),
                **summarize(tables[name]),
            }
            for name, law in laws.items()
        },
    }
    write_atomic(folder / ARRAYS, pack_arrays(tables))
    write_atomic(folder / "bounds.json", json.dumps(document, indent=2).encode() + b"\n")
    write_atomic(folder / "bounds.png", png(draw_settings(tables)))
    return document


def run_study(folder: Path, draws: int, seed: int, device: str = "cpu") -> None:
    """The study as a run of a sweep; it takes minutes, so an interrupted one starts again."""
    if device not in ("auto", "cpu"):
        raise ConfigError(f"device must be 'cpu' for this study, but got {device!r}.")
    study = open_run(folder, configs.dumps({"draws": draws, "seed": seed}), overwrite=True)
    with study.lock():
        metrics: dict[str, float] = {}
        for name, found in run(study.path, draws, seed)["settings"].items():
            for bound in ("lower", "upper"):
                metrics |= {f"{name}: {bound} {of}": gap for of, gap in found[bound].items()}
            metrics |= {f"{name}: {check}": found[check] for check in CHECKS}
        study.finish(metrics, seed=seed)


def draw_settings(tables: dict[str, pd.DataFrame]) -> Figure:
    """The exact probability of every assignment, its bounds and its Monte Carlo estimate."""
    figure = Figure(figsize=(NARROW, 10), layout="constrained")
    grid = figure.subplots(len(tables), sharex=True, sharey=True)
    for axes, (name, table) in zip(grid, tables.items(), strict=True):
        table, draws = table.sort_values("exact", ascending=False), table["count"].sum()
        frequency = np.log(table["count"].replace(0, np.nan) / draws)
        ranks = np.arange(1, len(table) + 1)
        # From back to front, so that a tight bound stays visible. Okabe and Ito's palette.
        for label, logs, color in (
            (f"Monte Carlo ({draws:,} draws)", frequency, "#009E73"),
            ("Upper bound", table["upper"], "#D55E00"),
            ("Lower bound", table["lower"], "#0072B2"),
        ):
            axes.scatter(ranks, np.exp(logs), s=3, color=color, linewidths=0, label=label)
        axes.plot(ranks, np.exp(table["exact"]), color="black", linewidth=1.0, label="Exact")
        # A count of zero has no place on a log axis: it is marked at its bottom.
        missing, bottom = ranks[table["count"] == 0], axes.get_xaxis_transform()
        marks = {"color": "#009E73", "transform": bottom, "label": "Never sampled"}
        axes.plot(missing, 0 * missing + 0.015, "|", **marks)
        axes.set_yscale("log")
        axes.spines[["top", "right"]].set_visible(False)
        axes.set(title=name, xlabel="Assignments, most likely first", ylabel="Probability")
        axes.label_outer()
    figure.suptitle(f"All assignments of {NUM_ELEMENTS} elements to {NUM_SUBSETS} subsets")
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, markerscale=3)
    return figure


def draw_results(results: Path) -> Figure:
    """The figure of the stored run."""
    arrays = read_arrays(results / "bounds" / "seed-0")
    return draw_settings({name: pd.DataFrame(arrays[name], columns=COLUMNS) for name in SETTINGS})


TABLES: Final = {
    "bounds": Table(
        ("setting",),
        {name: name for name in SETTINGS},
        {
            f"{bound}, {heading}": ("bounds", f"{{row}}: {bound} {of}")
            for bound, (heading, of) in product(
                ("lower", "upper"), {"mean": "expected", "max": "max"}.items()
            )
        },
        digits=2,
        is_bold=False,
        has_runs=False,
    )
}
FIGURES: Final = {"bounds": draw_results}

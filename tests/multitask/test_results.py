"""The page's part on several tasks, from results that were not run."""

from pathlib import Path

import numpy as np
import pytest

from drpm.multitask import sweeps
from drpm.multitask.results import METHODS, draw_noise, multitask_sections, noise_trend, tables
from drpm.report.result_tables import Metrics
from tests.training.results_folder import VERSIONS, write_json


def write(folder: Path, metrics: dict[str, list[float]]) -> None:
    """One run for each number of every metric."""
    for seed in range(len(next(iter(metrics.values())))):
        own = {name: values[seed] for name, values in metrics.items()}
        facts = {"wall_time": 60.0, "device": "cuda:0 (Some card)", "versions": VERSIONS}
        write_json(folder / f"seed-{seed}" / "result.json", {"metrics": own, "seed": seed, **facts})


def noise_metrics(left: float, right: float, sizes: tuple[float, float] | None = None) -> Metrics:
    found: dict[str, float | None] = {"accuracy_left": left, "accuracy_right": right}
    found["best_test_epoch_accuracy"] = (left + right) / 2
    if sizes is not None:
        found |= {"size_left": sizes[0], "size_right": sizes[1]}
    return found


def test_places_are_those_of_the_sweeps() -> None:
    runs = {
        f"{sweep.name}/{run.folder}"
        for sweep in (sweeps.noise(), sweeps.mosaic(), sweeps.celeba())
        for run in sweep.runs
    }
    places = [place for table in tables() for row in table.rows for place in row.places]
    found = {
        "/".join(place[:2] if place and place.sweep == "noise" else place or ()) for place in places
    }
    assert found == runs
    ratios = {place.variant for place in places if place and place.sweep == "noise"}
    assert ratios == {f"noise-{ratio}" for ratio in sweeps.NOISE}


def test_a_page_of_nothing(tmp_path: Path) -> None:
    sections = list(multitask_sections(tmp_path))
    assert all("Not run yet" in section.text for section in sections[1:])
    assert not any(section.figures for section in sections)
    # The paper's figures stand there all the same.
    assert "0.878 ± 0.003" in sections[-1].text


def test_tables_and_the_figure(tmp_path: Path) -> None:
    for ratio, right in ((0.0, 0.9), (0.3, 0.7)):
        for method in ("uls", "drpm"):
            seeds = [noise_metrics(0.9, right), noise_metrics(0.95, right)]
            own = {name: [float(x[name] or 0) for x in seeds] for name in seeds[0]}
            if method == "drpm":
                own |= {"size_left": [20.0, 22.0], "size_right": [30.0, 28.0]}
            write(tmp_path / "noise" / method / f"noise-{ratio}", own)
    write(
        tmp_path / "mosaic" / "tasks-10" / "drpm",
        {
            "accuracy": [0.6, 0.7],
            "best_test_epoch_accuracy": [0.8, 0.8],
            "size_noise_correlation": [0.5, 0.7],
        },
    )
    text = "\n".join(section.text for section in multitask_sections(tmp_path))
    assert "| 0.3 | here | 0.925 ± 0.035 | 0.700 ± 0.000 | 0.812 ± 0.018 | 2 |" in text
    assert f"| {METHODS['drpm']} | here | 0.650 ± 0.071 | 0.800 ± 0.000 | 2 |" in text
    assert "0.600 ± 0.141" in text
    figures = [figure for section in multitask_sections(tmp_path) for figure in section.figures]
    assert [figure.name for figure in figures] == ["noise.png"]
    assert figures[0].draw().startswith(b"\x89PNG")


def test_the_figure_draws_means() -> None:
    found = {
        "uls": {0.0: [noise_metrics(0.9, 0.8)], 0.5: [noise_metrics(0.9, 0.4)]},
        "drpm": {
            0.0: [noise_metrics(0.9, 0.6, (25, 25)), noise_metrics(0.9, 0.8, (21, 29))],
            0.5: [noise_metrics(0.8, 0.5, (10, 40))],
        },
    }
    upper, lower = draw_noise(found, "Both").axes
    lines = {line.get_label(): np.asarray(line.get_ydata()) for line in upper.lines}
    assert set(lines) == {f"{METHODS[x]}, {y}" for x in found for y in ("left", "right")}
    assert lines["DRPM-MTL, right"] == pytest.approx([0.7, 0.5])
    sizes = {line.get_label(): np.asarray(line.get_ydata()) for line in lower.lines}
    assert set(sizes) == {"DRPM-MTL, left", "DRPM-MTL, right"}
    assert sizes["DRPM-MTL, right"] == pytest.approx([27, 40])
    trend = noise_trend(found["drpm"], "size_left", "any")
    assert trend.deviations == pytest.approx([8**0.5, 0])

"""The page's part on several tasks, from results that were not run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drpm.data.mosaic import noise_ratios, task_names
from drpm.multitask import results, sweeps
from drpm.multitask.config import METHOD_NAMES
from drpm.multitask.published import CELEBA, CELEBA_TASKS
from drpm.multitask.results import multitask_sections, tables
from drpm.multitask.trends import _difference, draw_mosaic, draw_noise, noise_trend
from drpm.report.archive import pack_arrays
from drpm.report.result_tables import Metrics
from drpm.report.style import colours
from drpm.report.trends import Trend
from tests.training.results_folder import VERSIONS, write_json


def write(folder: Path, metrics: dict[str, list[float]]) -> None:
    """One run for each number of every metric."""
    for seed in range(len(next(iter(metrics.values())))):
        own = {name: values[seed] for name, values in metrics.items()}
        facts = {"wall_time": 60.0, "device": "cuda:0 (Some card)", "versions": VERSIONS}
        write_json(folder / f"seed-{seed}" / "result.json", {"metrics": own, "seed": seed, **facts})


def noise_metrics(left: float, right: float, sizes: tuple[float, float] | None = None) -> Metrics:
    found: dict[str, float | None] = {"accuracy_left": left, "accuracy_right": right}
    found["accuracy"] = (left + right) / 2
    found["best_test_epoch_accuracy"] = (left + right) / 2
    if sizes is not None:
        found |= {"size_left": sizes[0], "size_right": sizes[1]}
    return found


def test_places_are_those_of_the_sweeps() -> None:
    runs = {
        f"{sweep.name}/{run.folder}"
        for sweep in (
            sweeps.noise(),
            sweeps.noise_order(),
            sweeps.mosaic(),
            sweeps.mosaic_free(),
            sweeps.celeba(),
        )
        for run in sweep.runs
    }
    rows = [row for table in tables() for row in table.rows]
    places = [place for row in rows for place in row.places if place is not None]
    found = {"/".join(x[:2] if x.sweep.startswith("noise") else x) for x in places}
    assert found == runs
    for sweep, ratios in (("noise", sweeps.NOISE), ("noise-order", sweeps.ORDER_NOISE)):
        variants = {place.variant for place in places if place.sweep == sweep}
        assert variants == {f"noise-{ratio}" for ratio in ratios}


def test_a_page_of_nothing(tmp_path: Path) -> None:
    sections = list(multitask_sections(tmp_path))
    assert all("Not run yet" in section.text for section in sections[1:])
    assert not any(section.figures for section in sections)
    # The paper's figures stand there all the same.
    assert "0.878 ± 0.003" in sections[-1].text


def test_tables_and_the_figure(tmp_path: Path) -> None:
    for ratio, right in ((0.0, 0.9), (0.3, 0.7)):
        for method, minutes in (("uls", 3), ("drpm", 7)):
            facts = {"wall_time": 60.0 * minutes, "device": "cpu", "versions": VERSIONS}
            write_json(tmp_path / "noise" / method / "result.json", {"metrics": {}, **facts})
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
    cells = "0.812 ± 0.018 | 0.925 ± 0.035 | 0.700 ± 0.000 | 0.812 ± 0.018 | 2"
    assert f"| 0.3 | here | {cells} | {cells} |" in text
    assert "| 0.3 | here | 21.000 ± 1.414 | 29.000 ± 1.414 | 2 | - | - | - |" in text
    where = "all noise ratios together, on cpu, torch 2.9.0, no recorded revision"
    assert f"- ULS, {where}: 0:03:00.\n" in text
    assert f"- DRPM-MTL, {where}: 0:07:00." in text
    assert f"| {METHOD_NAMES['drpm']} | here | 0.650 ± 0.071 | 0.800 ± 0.000 | 2 |" in text
    assert "0.600 ± 0.141" in text
    figures = [figure for section in multitask_sections(tmp_path) for figure in section.figures]
    assert [figure.name for figure in figures] == ["noise.png"]
    assert figures[0].draw().startswith(b"\x89PNG")


def page(folder: Path) -> str:
    return "\n".join(section.text for section in multitask_sections(folder))


def test_the_page_says_who_is_ahead_with_noise(tmp_path: Path) -> None:
    def add(method: str, ratio: float, right: float) -> None:
        metrics = noise_metrics(0.95 if method == "drpm" else 0.9, right)
        scores = {name: [value or 0.0] for name, value in metrics.items()}
        sizes = {"size_left": [25.0], "size_right": [25.0]} if method == "drpm" else {}
        write(tmp_path / "noise" / method / f"noise-{ratio}", scores | sizes)

    add("drpm", 0.0, 0.8)
    assert "Highest means" not in page(tmp_path)
    add("uls", 0.0, 0.7)
    add("drpm", 0.1, 0.6)
    add("uls", 0.1, 0.7)
    ours = "DRPM-MTL: ACC (0.0), L (everywhere), R (0.0), best (0.0)"
    assert f"Highest means here. {ours}; ULS: ACC (0.1), R (0.1), best (0.1).\n" in page(tmp_path)
    # Of one seed nobody knows how far it strays.
    assert "neurons without noise" not in page(tmp_path)


def add_sizes(folder: Path, ratio: float, sizes: list[float], sweep: str = "noise") -> None:
    """Runs with so many neurons for the right digit."""
    scores = {name: [value or 0.0] * len(sizes) for name, value in noise_metrics(0.9, 0.8).items()}
    own = {"size_left": [50 - size for size in sizes], "size_right": sizes}
    write(folder / sweep / "drpm" / f"noise-{ratio}", scores | own)


def test_the_page_says_where_noise_moves_neurons(tmp_path: Path) -> None:
    add_sizes(tmp_path, 0.0, [23.0, 25.0, 27.0])
    assert "neurons without noise" not in page(tmp_path)
    add_sizes(tmp_path, 0.1, [16.0, 17.0, 18.0])
    add_sizes(tmp_path, 0.6, [27.0, 29.0, 31.0])
    add_sizes(tmp_path, 0.7, [15.0, 30.0, 45.0])
    text = page(tmp_path)
    # That of 0.6 by hand: t is 4 over the root of 8/3, with four degrees of freedom.
    assert (
        "- left first: 25.0 ± 2.0 neurons without noise, more at no ratio, "
        "fewer at 0.1 (-8.0, p < 0.01), undecided at 0.6 (+4.0, p = 0.07), "
        "0.7 (+5.0, p = 0.62).\n"
    ) in text
    # Not before all ratios of the claim were run.
    assert "The paper sees" not in text
    add_sizes(tmp_path, 0.8, [38.0, 39.0, 40.0])
    told = "The paper sees more neurons at 0.6 to 0.8, which here holds at 0.8 (+14.0) and "
    assert f"{told}is undecided at 0.6 (+4.0) and 0.7 (+5.0).\n" in page(tmp_path)
    add_sizes(tmp_path, 0.6, [10.0, 11.0, 12.0])
    add_sizes(tmp_path, 0.7, [40.0, 41.0, 42.0])
    told = "which here holds at 0.7 (+16.0) and 0.8 (+14.0) and does not hold at 0.6 (-14.0).\n"
    assert told in page(tmp_path)
    add_sizes(tmp_path, 0.9, [26.0, 27.0, 28.0])
    told = (
        "0.6 (-14.0). At 0.9 it sees the right digit neglected; here that has +2.0 neurons there.\n"
    )
    assert told in page(tmp_path)
    # The other order, if that was run.
    assert "- right first" not in page(tmp_path)
    for ratio, sizes in ((0.0, [20.0, 21.0, 22.0]), (0.9, [10.0, 10.5, 11.0])):
        add_sizes(tmp_path, ratio, sizes, "noise-order")
    told = "- right first: 21.0 ± 1.0 neurons without noise, more at no ratio, fewer at 0.9 (-10.5"
    assert told in page(tmp_path)


def test_sizes_that_never_stray_leave_no_doubt(tmp_path: Path) -> None:
    for ratio, size in ((0.0, 25.0), (0.8, 25.0), (0.9, 26.0)):
        add_sizes(tmp_path, ratio, [size, size])
    told = "more at 0.9 (+1.0, p < 0.01), fewer at no ratio, undecided at 0.8 (+0.0, p = 1.00).\n"
    assert told in page(tmp_path)
    # Less than is shown has no sign of its own.
    add_sizes(tmp_path, 0.8, [24.97, 24.99])
    assert "undecided at 0.8 (+0.0, p = " in page(tmp_path)


def test_the_page_says_where_accuracies_were_still_rising(tmp_path: Path) -> None:
    scores = {name: [0.5] * 4 for name in ("accuracy", "best_test_epoch_accuracy")}
    folder = tmp_path / "mosaic" / "tasks-10" / "uls"
    write(folder, scores | {"best_test_epoch": [100.0, 90.0, 5.0, 50.0]})
    assert "still have been rising" not in page(tmp_path)
    write(folder, scores | {"best_test_epoch": [100.0, 95.0, 90.0, 50.0]})
    assert "In 2 of 4 runs the mean accuracy was best at the last of 100 epochs" in page(tmp_path)


def test_the_page_has_every_digit_of_mosaics(tmp_path: Path) -> None:
    scores = {"accuracy": [0.5, 0.5], "best_test_epoch_accuracy": [0.5, 0.5]}
    tasks = dict(zip(task_names(10), noise_ratios(10), strict=True))
    known = {f"accuracy_{task}": [1 - ratio, 1 - ratio] for task, ratio in tasks.items()}
    sizes = {f"size_{task}": [9.0, 11.0] for task in tasks}
    write(tmp_path / "mosaic" / "tasks-10" / "uls", scores | known)
    ranks = {"size_noise_correlation": [0.0, 0.0]}
    write(tmp_path / "mosaic" / "tasks-10" / "drpm", scores | known | sizes | ranks)
    text = page(tmp_path)
    assert "| noise ratio | task | ULS ACC | DRPM-MTL ACC | DRPM-MTL neurons |\n" in text
    lines = [line for line in text.splitlines() if "10.000 ± 1.414" in line]
    assert [line.split(" | ")[0] for line in lines] == [f"| {x / 10:.2f}" for x in range(10)]
    # The place of the ratio 0.6 among those of ten.
    told = "| 0.60 | 01 | 0.400 ± 0.000 | 0.400 ± 0.000 | 10.000 ± 1.414 |"
    assert lines[6] == told
    assert "all have the same." in text


def add_accuracies(folder: Path, tasks: int, method: str, values: list[float]) -> None:
    """Runs on mosaics."""
    own = {"accuracy": values, "best_test_epoch_accuracy": values}
    if method == "drpm":
        own["size_noise_correlation"] = [0.0] * len(values)
    write(folder / "mosaic" / f"tasks-{tasks}" / method, own)


def test_the_page_says_where_we_stand_with_mosaics(tmp_path: Path) -> None:
    add_accuracies(tmp_path, 10, "uls", [0.75, 0.76, 0.77])
    assert "the highest is" not in page(tmp_path)
    add_accuracies(tmp_path, 10, "gradient", [0.70, 0.80, 0.90])
    ahead = "- 10 tasks: the highest is that of combined gradients, 0.800 ± 0.100, "
    assert f"{ahead}within one deviation of ULS. DRPM-MTL was not run yet.\n" in page(tmp_path)
    add_accuracies(tmp_path, 10, "drpm", [0.60, 0.61, 0.62])
    ahead += "within one deviation of ULS."
    assert f"{ahead} The lowest of 3 is DRPM-MTL, 0.610 ± 0.010.\n" in page(tmp_path)
    add_accuracies(tmp_path, 10, "drpm", [0.74, 0.755, 0.77])
    ahead = ahead.replace("of ULS.", "of ULS and DRPM-MTL.")
    near = "0.755 ± 0.015, within one deviation of ULS and combined gradients"
    assert f"{ahead} The lowest of 3 is DRPM-MTL, {near}.\n" in page(tmp_path)
    add_accuracies(tmp_path, 10, "uncertainty", [0.1, 0.1, 0.1])
    assert f"{ahead} Number 3 of 4 is DRPM-MTL, {near}.\n" in page(tmp_path)
    # One seed each: nobody knows how far they stray.
    for method, value in (("uls", 0.5), ("drpm", 0.6)):
        add_accuracies(tmp_path, 40, method, [value])
    assert "- 40 tasks: the highest is that of DRPM-MTL, 0.600.\n" in page(tmp_path)
    assert "- 20 tasks: the highest" not in page(tmp_path)


def ranked(values: Sequence[float]) -> list[int]:
    return [sorted(values).index(value) for value in values]


@pytest.mark.parametrize(
    ("places", "noise", "number", "verdict"),
    [
        # Noise settles all; but it goes with the numbers of the tasks, too.
        (
            [-place for place in ranked(noise_ratios(10))],
            "-1.00",
            "-0.39",
            "Noisier digits get fewer neurons{}.",
        ),
        (range(10), "0.39", "1.00", "So what noise has to do with it may be chance."),
        (
            [0, 2, 1, 5, 4, 3, 7, 6, 9, 8],
            "0.71",
            "0.92",
            "Noisier digits get more neurons{}, {} their places say as much.",
        ),
    ],
)
@pytest.mark.parametrize(
    ("sweep", "name"), [("mosaic", "DRPM-MTL"), ("mosaic-free", "DRPM-MTL, no penalty")]
)
def test_the_page_says_what_ranks_tell(
    tmp_path: Path,
    sweep: str,
    name: str,
    places: Sequence[int],
    noise: str,
    number: str,
    verdict: str,
) -> None:
    own = {name: [0.5] * 2 for name in ("accuracy", "best_test_epoch_accuracy")}
    own["size_noise_correlation"] = [0.0] * 2
    folder = tmp_path / sweep / "tasks-10" / "drpm"
    write(folder, own)
    assert "rank correlation with the noise" not in page(tmp_path)
    for step, words in ((0.1, (", but by less than one of them", "and")), (0.2, ("", "but"))):
        # Seeds differ by more than tasks, but in all of them by the same.
        sizes = {
            f"size_{task}": [20 + step * place - 3, 20 + step * place + 3]
            for place, task in zip(places, task_names(10), strict=True)
        }
        write(folder, own | sizes)
        low, high = (20 + step * end(places) for end in (min, max))
        assert (
            f"- {name}, 10 tasks: from {low:.1f} to {high:.1f} neurons. The rank correlation with "
            f"the noise ratio is {noise}, that with the number of the task {number}; by chance "
            f"alone they would stray around zero by about 0.33. {verdict.format(*words)}\n"
        ) in page(tmp_path)


def test_deviations_of_both_methods_are_in_that_of_the_lead() -> None:
    one, other = (
        Trend("x", np.array([0.5]), np.array([mean]), np.array([deviation]))
        for mean, deviation in ((0.9, 0.3), (0.8, 0.4))
    )
    lead = _difference(one, other)
    assert lead.means == pytest.approx([0.1])
    assert lead.deviations == pytest.approx([0.5])


def test_the_figure_draws_means() -> None:
    found = {
        "uls": {0.0: [noise_metrics(0.9, 0.8)], 0.5: [noise_metrics(0.9, 0.4)]},
        "drpm": {
            0.0: [noise_metrics(0.9, 0.6, (25, 25)), noise_metrics(0.9, 0.8, (21, 29))],
            0.5: [noise_metrics(0.8, 0.5, (10, 40))],
        },
    }
    figure = draw_noise(found, METHOD_NAMES, "Both")
    mean, each, lead, neurons = (drawn_lines(axes) for axes in figure.axes)
    assert set(mean) == {"ULS", "DRPM-MTL"}
    assert mean["DRPM-MTL"] == pytest.approx([0.8, 0.65])
    assert set(each) == {f"{METHOD_NAMES[x]}, {y}" for x in found for y in ("left", "right")}
    assert each["DRPM-MTL, right"] == pytest.approx([0.7, 0.5])
    assert lead["mean of both"] == pytest.approx([-0.05, 0])
    assert lead["right digit"] == pytest.approx([-0.1, 0.1])
    assert set(neurons) == {"DRPM-MTL, left", "DRPM-MTL, right"}
    assert neurons["DRPM-MTL, right"] == pytest.approx([27, 40])
    # A colour for each method and a style for each digit, and what bands are.
    styles = {line.get_label(): line for line in figure.axes[1].lines}
    assert np.allclose(*(styles[f"ULS, {x}"].get_color() for x in ("left", "right")))
    assert styles["ULS, left"].get_linestyle() != styles["ULS, right"].get_linestyle()
    assert "band: one deviation over seeds" in [x.get_text() for x in figure.legends[0].get_texts()]


def test_the_figure_of_one_method() -> None:
    found = {"uls": {0.0: [noise_metrics(0.9, 0.8)], 0.5: [noise_metrics(0.9, 0.4)]}, "drpm": {}}
    figure = draw_noise(found, METHOD_NAMES, "One")
    assert [axes.get_visible() for axes in figure.axes] == [True, True, False, False]
    assert "DRPM-MTL" not in [x.get_text() for x in figure.legends[0].get_texts()]


def drawn_lines(axes: Axes) -> dict[str, Any]:
    """The heights of what has a name."""
    return {
        str(line.get_label()): np.asarray(line.get_ydata())
        for line in axes.lines
        if not str(line.get_label()).startswith("_")
    }


def test_trends_are_in_the_order_of_the_noise() -> None:
    trend = noise_trend("any", {0.5: [3.0], 0.1: [1.0, None, 5.0], 0.7: [None]})
    assert trend.places.tolist() == [0.1, 0.5]
    assert trend.means.tolist() == [3, 3]
    assert trend.deviations == pytest.approx([8**0.5, 0])


def test_neurons_that_stray_are_drawn_whole() -> None:
    trend = noise_trend("DRPM-MTL", {0.0: [1.0, 1.0], 0.9: [1.0, 9.0]})
    (axes,) = draw_mosaic({"2 tasks": [trend]}, "size", "any").axes
    assert axes.get_ylim() == (0, pytest.approx(1.1 * (5 + 32**0.5)))


def test_the_tasks_of_mosaics_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The accuracy of a task is one less its noise ratio; noisier ones have more neurons."""
    means = {"accuracy": [0.5], "best_test_epoch_accuracy": [0.6], "size_noise_correlation": [1.0]}
    for tasks in (10, 40):
        ratios = dict(zip(task_names(tasks), noise_ratios(tasks), strict=True))
        for method in ("uls", "drpm"):
            own = {f"accuracy_{task}": [1 - ratio] for task, ratio in ratios.items()}
            if method == "drpm":
                own |= {f"size_{task}": [10 * ratio] for task, ratio in ratios.items()}
            write(tmp_path / "mosaic" / f"tasks-{tasks}" / method, {**means, **own})
    # Without the penalty it is the other way round.
    own = {f"size_task_{task:02}": [9 - 10 * ratio] for task, ratio in enumerate(noise_ratios(10))}
    write(tmp_path / "mosaic-free" / "tasks-10" / "drpm", {**means, **own})
    drawn = []

    def kept(*given: Any) -> Figure:
        drawn.append(draw_mosaic(*given))
        return drawn[-1]

    monkeypatch.setattr(results, "draw_mosaic", kept)
    figures = [figure for section in multitask_sections(tmp_path) for figure in section.figures]
    assert [figure.name for figure in figures] == ["mosaic-accuracy.png", "mosaic-neurons.png"]
    for figure in figures:
        assert figure.draw().startswith(b"\x89PNG")
    accuracy, neurons = (
        {
            axes.get_title(loc="left"): {
                line.get_label(): (np.asarray(line.get_xdata()), np.asarray(line.get_ydata()))
                for line in axes.lines
                if not str(line.get_label()).startswith("_")
            }
            for axes in figure.axes
        }
        for figure in drawn
    )
    assert set(accuracy) == set(neurons) == {"10 tasks", "40 tasks"}
    for name, tasks in (("10 tasks", 10), ("40 tasks", 40)):
        expected = np.linspace(0, 0.9, tasks)
        assert set(accuracy[name]) == {"ULS", "DRPM-MTL"}
        for places, values in accuracy[name].values():
            # Points of one task stand side by side.
            assert places == pytest.approx(expected, abs=0.45 / (tasks - 1))
            assert values == pytest.approx(1 - expected)
        counts = {"DRPM-MTL": 10 * expected}
        if tasks == 10:
            counts["DRPM-MTL, no penalty"] = 9 - 10 * expected
        assert set(neurons[name]) == set(counts)
        for method, (places, values) in neurons[name].items():
            assert places == pytest.approx(expected, abs=0.45 / (tasks - 1))
            assert values == pytest.approx(counts[str(method)])
    # Accuracies have one axis, neurons start at zero, and both have a level to compare with.
    for figure, end, level in zip(drawn, (1, 9.9), ("chance", "even share, 4.5"), strict=True):
        assert [axes.get_ylim() for axes in figure.axes] == [(0, pytest.approx(end))] * 2
        assert [[x.get_text() for x in axes.texts] for axes in figure.axes] == [[level]] * 2
        shades = {line.get_label(): line.get_color() for line in figure.axes[0].lines}
        assert np.allclose(shades["DRPM-MTL"], colours(4)[3])
    assert np.allclose(shades["DRPM-MTL, no penalty"], colours(5)[4])


def test_figures_of_kept_runs(tmp_path: Path) -> None:
    """Images and owners of neurons, from the first run that has kept them."""
    folders = [tmp_path / "noise-order" / "drpm" / "noise-0.6", tmp_path / "mosaic/tasks-20/drpm"]
    for folder in folders:
        scores = ("accuracy", "best_test_epoch_accuracy", "size_noise_correlation")
        write(folder, {key: [0.5] for key in (*scores, "size_left", "size_right")})
    first, second = (folder / "seed-0" / "arrays.npz" for folder in folders)
    names = np.array(["a", "b", "c"])
    owners = {"matrix_rows__neurons": names, "matrix_columns__neurons": names}
    second.write_bytes(pack_arrays({"matrix__neurons": np.eye(3), **owners}))

    def figures() -> list[str]:
        return [x.name for section in multitask_sections(tmp_path) for x in section.figures]

    assert figures() == ["mosaic-owners.png"]
    images = {"grid__images": np.zeros((1, 2, 4, 4)), "grid_columns__images": np.array(["0", "1"])}
    first.write_bytes(pack_arrays(images))
    assert figures() == ["noise-images.png", "mosaic-owners.png"]

    def owners_of() -> str:
        return [x.about for section in multitask_sections(tmp_path) for x in section.figures][-1]

    assert owners_of() == "One run, `mosaic/tasks-20/drpm/seed-0`"
    # Of as few tasks as possible, and rather without the penalty.
    for sweep in ("mosaic/tasks-10", "mosaic-free/tasks-10"):
        folder = tmp_path / sweep / "drpm"
        write(folder, {key: [0.5] for key in scores})
        (folder / "seed-0" / "arrays.npz").write_bytes(second.read_bytes())
        assert owners_of() == f"One run, `{sweep}/drpm/seed-0`"
    for section in multitask_sections(tmp_path):
        for figure in section.figures:
            assert figure.draw().startswith(b"\x89PNG")


def test_the_published_attributes_have_the_published_means() -> None:
    assert list(CELEBA_TASKS) == sorted(set(CELEBA_TASKS))
    for tasks in sweeps.TASKS:
        for method in sweeps.PAPER_METHODS:
            scores = dict(CELEBA[method][tasks])
            mean = scores.pop("best_test_epoch_accuracy").mean
            assert list(scores) == [f"best_test_epoch_accuracy_{x}" for x in CELEBA_TASKS[:tasks]]
            assert np.mean([x.mean for x in scores.values()]) == pytest.approx(mean, abs=0.0006)
    # Read off the paper's tables: one cell of each.
    name = "best_test_epoch_accuracy_Big_Lips"
    found = {
        tasks: [CELEBA[x][tasks][name].mean for x in ("uls", "drpm")] for tasks in (10, 20, 40)
    }
    assert found == {10: [0.8, 0.824], 20: [0.82, 0.844], 40: [0.816, 0.844]}


def test_attributes_beside_the_paper(tmp_path: Path) -> None:
    metrics = {"accuracy": [0.8, 0.9], "best_test_epoch_accuracy": [0.9, 0.9]}
    for place, task in enumerate(CELEBA_TASKS[:10]):
        metrics[f"accuracy_{task}"] = [0.5 + place / 100] * 2
        metrics[f"best_test_epoch_accuracy_{task}"] = [0.6 + place / 100, 0.7 + place / 100]
    write(tmp_path / "celeba" / "tasks-10" / "drpm", metrics)
    *_, mean, tasks = multitask_sections(tmp_path)
    assert "| here | - | - | - |" not in mean.text
    assert "| 0.850 ± 0.071 | 0.900 ± 0.000 | 2 |" in mean.text
    title, _, header, _, *rows = tasks.text.splitlines()
    assert title == "#### Each of 10 attributes"
    assert header == (
        "| attribute | ULS paper | ULS best | ULS ACC "
        "| DRPM-MTL paper | DRPM-MTL best | DRPM-MTL ACC |"
    )
    assert len(rows) == 10
    ours = "0.920 ± 0.005 | - | - | 0.924 ± 0.005 | 0.650 ± 0.071 | 0.500 ± 0.000"
    assert rows[0] == f"| 5 o Clock Shadow | {ours} |"

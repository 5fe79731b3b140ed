"""What the page of results says of several tasks: tables, and figures, one of them the paper's."""

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from drpm.data.mosaic import noise_ratios, task_names
from drpm.multitask import published, sweeps
from drpm.multitask.config import METHOD_NAMES, MultitaskConfig
from drpm.multitask.evaluation import BEST_ACCURACY
from drpm.multitask.faces import attribute_lines
from drpm.multitask.kept import draw_neurons, draw_noisy_images
from drpm.multitask.tiles import tile_lines
from drpm.multitask.trends import NO_PENALTY, draw_mosaic, draw_noise, noise_trend
from drpm.multitask.verdicts import moved_neurons, ranked_neurons, standings, unfinished
from drpm.report.result_leads import leading_groups
from drpm.report.result_page import ResultFigure, Section
from drpm.report.result_tables import (
    Metrics,
    Place,
    Row,
    Table,
    read_runs,
    seed_folders,
    table_text,
    trained_on,
)
from drpm.report.style import png
from drpm.report.trends import Trend
from drpm.training import presets
from drpm.training.runs import RunFolder

INTRODUCTION: Final = """\
## Several tasks

Accuracies are those on the test part (of CelebA on the validation part, as in the paper) after the
last epoch. The paper has those of the epoch that is best on the same part, which is why ours are
also shown that way.
"""


def tables() -> list[Table]:
    """The tables of the page, whatever there is to fill them with."""
    groups = [f"{tasks} tasks" for tasks in sweeps.TASKS]
    preset = presets.load(MultitaskConfig, sweeps.MOSAIC)
    mosaic, free, celeba = (
        {
            method: tuple(Place(sweep, f"tasks-{tasks}", method) for tasks in sweeps.TASKS)
            for method in METHOD_NAMES
        }
        for sweep in ("mosaic", "mosaic-free", "celeba")
    )
    return [
        noise_table(),
        size_table(),
        Table(
            "Mosaics of many digits",
            "The mean accuracy over all tasks (`mosaic`), at the last epoch (ACC) and at the one "
            "that is best on the test part (best); guessing has 0.1. The paper has no such images. "
            f"All tasks share a LeNet with {preset.network.width} neurons in its last layer; "
            f"{METHOD_NAMES['drpm']} has a second one beside it, and a penalty on sizes that "
            f"differ, weighed by {preset.size_penalty}; {METHOD_NAMES['gradient']} are those of "
            f"{preset.weighting} in TorchJD. Seeds of {METHOD_NAMES['gradient']} are trained one "
            "after the other, the others' together.",
            "method",
            groups,
            [Row(name, mosaic[method]) for method, name in METHOD_NAMES.items()],
            {"accuracy": "ACC", BEST_ACCURACY: "best"},
        ),
        Table(
            "Do noisier digits get more neurons?",
            "The rank correlation between the noise ratio of a task and the number of its neurons, "
            "with the penalty on sizes that differ (`mosaic`), and without it, where every seed "
            "has the tasks in another order in the partition (`mosaic-free`); and the mean "
            "accuracy over all tasks at the last epoch (ACC).",
            "method",
            groups,
            [
                Row(METHOD_NAMES["drpm"], mosaic["drpm"], is_guest=True),
                Row(NO_PENALTY, free["drpm"], is_guest=True),
            ],
            {"size_noise_correlation": "rank correlation", "accuracy": "ACC"},
        ),
        Table(
            "Attributes of faces",
            "A table of the paper's appendix (`celeba`): the mean accuracy over all tasks, at the "
            "last epoch (ACC) and at the one that is best on the validation part (best).",
            "method",
            groups,
            [
                Row(
                    METHOD_NAMES[method],
                    celeba[method],
                    tuple(published.CELEBA[method][tasks] for tasks in sweeps.TASKS),
                )
                for method in sweeps.PAPER_METHODS
            ],
            {"accuracy": "ACC", BEST_ACCURACY: "best"},
            paper_seeds=None,
            paper_digits=3,
        ),
    ]


def noise_table() -> Table:
    """Both digits of MultiMNIST at every noise ratio."""
    return Table(
        "Two digits, the right one with noise",
        "The mean accuracy of both digits (ACC), that on the left (L) and that on the right (R) "
        "digit, and the mean at the epoch that is best on the test part (best). The paper draws "
        "them and prints none (`noise`). Both methods have the same encoder and heads, but "
        "DRPM-MTL has, as in the paper, a second encoder, which predicts the partitions.",
        "noise ratio",
        [METHOD_NAMES[method] for method in sweeps.PAPER_METHODS],
        [
            # All noise ratios were trained together, so that no row has a time of its own.
            Row(
                str(ratio),
                tuple(Place("noise", x, f"noise-{ratio}") for x in sweeps.PAPER_METHODS),
                is_guest=True,
            )
            for ratio in sweeps.NOISE
        ],
        {"accuracy": "ACC", "accuracy_left": "L", "accuracy_right": "R", BEST_ACCURACY: "best"},
    )


def size_table() -> Table:
    """How many neurons both digits of MultiMNIST get; with ULS all have all."""
    return Table(
        "Neurons of the two digits",
        "How many of 50 neurons DRPM-MTL gives to the left (L) and the right (R) digit, on "
        "average over test images. The partition has the left digit first, as in `noise`, or the "
        "right one (`noise-order`), in case that matters.",
        "noise ratio",
        ["left first", "right first"],
        [
            Row(
                str(ratio),
                (
                    Place("noise", "drpm", f"noise-{ratio}"),
                    Place("noise-order", "drpm", f"noise-{ratio}")
                    if ratio in sweeps.ORDER_NOISE
                    else None,
                ),
                is_guest=True,
            )
            for ratio in sweeps.NOISE
        ],
        {"size_left": "L", "size_right": "R"},
    )


def multitask_sections(results: Path) -> Iterator[Section]:
    """The part of the page on several tasks.

    Arguments:
        results: The folder of finished studies.
    """
    yield Section(INTRODUCTION)
    noise, sizes, mosaic, correlation, faces = tables()
    text = "\n".join([table_text(noise, results), *_noise_times(results)])
    text += leading_groups(noise, results)
    figures = [*_kept_images(results), *_noise_figure(noise, results)]
    yield Section(text, tuple(figures))
    # Of the same runs as the table before it, which says what is missing.
    if any(read_runs(sizes, results, row.places[0]) for row in sizes.rows):
        yield Section(table_text(sizes, results) + moved_neurons(sizes, results))
    training = presets.load(MultitaskConfig, sweeps.MOSAIC)
    late = unfinished(mosaic, results, training.training.epochs, training.evaluate_every)
    text = table_text(mosaic, results) + standings(mosaic, results) + late
    yield Section(
        text,
        tuple(_mosaic_figure(mosaic, results, "accuracy", "accuracy", "mosaic-accuracy.png")),
    )
    yield from _tile_sections(mosaic, results)
    text = table_text(correlation, results) + ranked_neurons(correlation, results)
    figures = [
        *_mosaic_figure(correlation, results, "size", "number of neurons", "mosaic-neurons.png"),
        *_kept_neurons(results),
    ]
    yield Section(text, tuple(figures))
    yield Section(table_text(faces, results))
    yield from _attribute_sections(faces, results)


def _noise_times(results: Path) -> Iterator[str]:
    """What a method took for all noise ratios, which it was trained with together."""
    for method in sweeps.PAPER_METHODS:
        study = RunFolder(results / "noise" / method)
        if study.status == "finished":
            result = study.result()
            spent, where = timedelta(seconds=round(result["wall_time"])), trained_on(result)
            yield f"- {METHOD_NAMES[method]}, all noise ratios together, on {where}: {spent}."


def _noise_figure(table: Table, results: Path) -> Iterator[ResultFigure]:
    """The paper's figure, as soon as there are two noise ratios."""
    found: dict[str, dict[float, list[Metrics]]] = {}
    for index, method in enumerate(sweeps.PAPER_METHODS):
        runs = {
            ratio: read_runs(table, results, row.places[index])
            for ratio, row in zip(sweeps.NOISE, table.rows, strict=True)
        }
        found[method] = {ratio: each for ratio, each in runs.items() if each}
    if any(len(runs) > 1 for runs in found.values()):
        caption = "accuracy and neurons against the noise ratio of the right digit"
        draw = partial(_drawn, draw_noise, found, METHOD_NAMES, caption.capitalize())
        yield ResultFigure("noise.png", "The paper's figure", caption, draw)


def _mosaic_figure(
    table: Table, results: Path, metric: str, unit: str, name: str
) -> Iterator[ResultFigure]:
    """A metric of every task, for all rows of a table, as soon as there is any."""
    panels = {
        group: [
            _task_trend(row.name, metric, tasks, read_runs(table, results, row.places[index]))
            for row in table.rows
        ]
        for index, (group, tasks) in enumerate(zip(table.groups, sweeps.TASKS, strict=True))
    }
    found = {
        group: trends
        for group, trends in panels.items()
        if any(len(trend.places) for trend in trends)
    }
    if found:
        caption = f"{unit} of every task against its noise ratio"
        draw = partial(_drawn, draw_mosaic, found, metric, caption.capitalize())
        yield ResultFigure(name, "Mosaics", caption, draw)


def _kept_images(results: Path) -> Iterator[ResultFigure]:
    """Images at growing noise ratios, of the first run that has kept them."""
    for run in sorted(results.glob("noise*/*/noise-*/seed-*")):
        caption = "test images, one a row, at growing noise ratios of the right digit"
        figure = draw_noisy_images(run, caption.capitalize())
        if figure is not None:
            yield ResultFigure("noise-images.png", "Two digits", caption, partial(png, figure))
            return


def _kept_neurons(results: Path) -> Iterator[ResultFigure]:
    """Which task has which neuron, of one run with as few tasks as possible that has kept it.

    Where there is one without the penalty on sizes, which tell more there, it is that.
    """
    for tasks, sweep in product(sweeps.TASKS, ("mosaic-free", "mosaic")):
        for run in seed_folders(results / sweep / f"tasks-{tasks}" / "drpm"):
            caption = f"which of {tasks} tasks has which neuron, for how many of the test images"
            figure = draw_neurons(run, caption.capitalize())
            if figure is not None:
                name = run.relative_to(results).as_posix()
                yield ResultFigure(
                    "mosaic-owners.png", f"One run, `{name}`", caption, partial(png, figure)
                )
                return


def _drawn(draw: Callable[..., Figure], *given: Any) -> bytes:
    return png(draw(*given))


def _task_trend(name: str, metric: str, tasks: int, runs: Sequence[Metrics]) -> Trend:
    """A metric of every task of a mosaic."""
    named = zip(noise_ratios(tasks), task_names(tasks), strict=True)
    return noise_trend(
        name, {ratio: [run.get(f"{metric}_{task}") for run in runs] for ratio, task in named}
    )


def _tile_sections(table: Table, results: Path) -> Iterator[Section]:
    """A table of single tasks of mosaics for each number of them, as soon as it was run."""
    for index, tasks in enumerate(sweeps.TASKS):
        runs = {
            method: read_runs(table, results, row.places[index])
            for method, row in zip(METHOD_NAMES, table.rows, strict=True)
        }
        if any(runs.values()):
            lines = tile_lines(tasks, METHOD_NAMES, runs)
            # Folded away, because there are many.
            above = f"<details><summary>Each of {tasks} digits</summary>"
            yield Section("\n".join([above, "", *lines, "", "</details>"]))


def _attribute_sections(table: Table, results: Path) -> Iterator[Section]:
    """A table of single attributes for each number of them, as soon as it was run."""
    names = {method: METHOD_NAMES[method] for method in sweeps.PAPER_METHODS}
    for index, tasks in enumerate(sweeps.TASKS):
        runs = {
            method: read_runs(table, results, row.places[index])
            for method, row in zip(names, table.rows, strict=True)
        }
        if any(runs.values()):
            above = f"#### Each of {tasks} attributes"
            yield Section("\n".join([above, "", *attribute_lines(tasks, names, runs)]))

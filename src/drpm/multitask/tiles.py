"""What every digit of a mosaic is told with, as Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from drpm.data.mosaic import noise_ratios, task_names
from drpm.report.result_tables import Metrics, head_lines, line, mean_cell

_DIGITS: Final = 3


def tile_lines(
    tasks: int, names: Mapping[str, str], runs: Mapping[str, Sequence[Metrics]]
) -> Iterator[str]:
    """A table with a line for each task, in the order of their noise.

    Args:
        tasks: How many there are.
        names: From a method to what it is called; each has its column.
        runs: From a method to the metrics of every seed.
    """
    columns = {
        f"{names[method]} {unit}": (method, metric)
        for method, found in runs.items()
        for unit, metric in (("ACC", "accuracy"), ("neurons", "size"))
        if any(f"{metric}_{task_names(tasks)[0]}" in run for run in found)
    }
    yield from head_lines(["noise ratio", "task", *columns])
    for ratio, task in sorted(zip(noise_ratios(tasks), task_names(tasks), strict=True)):
        cells = [
            mean_cell(runs[method], f"{metric}_{task}", _DIGITS)
            for method, metric in columns.values()
        ]
        yield line([f"{ratio:.2f}", task.removeprefix("task_"), *cells])

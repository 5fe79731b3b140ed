"""What every attribute of faces is told with, beside the paper's figures, as Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from drpm.multitask.evaluation import BEST_ACCURACY
from drpm.multitask.published import CELEBA, CELEBA_TASKS
from drpm.report.result_tables import Metrics, head_lines, line, mean_cell, shown

_DIGITS: Final = 3
_LAST: Final = "accuracy"


def attribute_lines(
    tasks: int, names: Mapping[str, str], runs: Mapping[str, Sequence[Metrics]]
) -> Iterator[str]:
    """A table with a line for each task.

    Args:
        tasks: How many there are.
        names: From a method to what it is called; each has its columns.
        runs: From a method to the metrics of every seed.
    """
    columns = [f"{name} {what}" for name in names.values() for what in ("paper", "best", "ACC")]
    yield from head_lines(["attribute", *columns])
    for task in CELEBA_TASKS[:tasks]:
        cells = [task.replace("_", " ")]
        for method in names:
            cells.append(shown(CELEBA[method][tasks][f"{BEST_ACCURACY}_{task}"], _DIGITS))
            for metric in (BEST_ACCURACY, _LAST):
                cells.append(mean_cell(runs[method], f"{metric}_{task}", _DIGITS))
        yield line(cells)

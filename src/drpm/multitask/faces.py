"""What every attribute of faces is told with, beside the paper's figures, as Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from drpm.multitask.published import CELEBA, CELEBA_TASKS
from drpm.report.result_tables import Figure, Metrics
from drpm.training.summaries import Summary, summarize

_LAST: Final = "accuracy"
_BEST: Final = "best_test_epoch_accuracy"


def attribute_lines(
    tasks: int, names: Mapping[str, str], runs: Mapping[str, Sequence[Metrics]]
) -> Iterator[str]:
    """A table with a line for each task.

    Arguments:
        tasks: How many there are.
        names: From a method to what it is called; each has its columns.
        runs: From a method to the metrics of every seed.
    """
    columns = [f"{name} {what}" for name in names.values() for what in ("paper", "best", "ACC")]
    yield _line(["attribute", *columns])
    yield _line(["---"] * (len(columns) + 1))
    for task in CELEBA_TASKS[:tasks]:
        cells = [task.replace("_", " ")]
        for method in names:
            cells.append(_shown(CELEBA[method][tasks][f"{_BEST}_{task}"]))
            for metric in (_BEST, _LAST):
                values = [run.get(f"{metric}_{task}") for run in runs[method]]
                known = [value for value in values if value is not None]
                cells.append(_shown(summarize(known)) if known else "-")
        yield _line(cells)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _shown(figure: Figure | Summary) -> str:
    mean = f"{figure.mean:.3f}"
    return mean if figure.deviation is None else f"{mean} ± {figure.deviation:.3f}"

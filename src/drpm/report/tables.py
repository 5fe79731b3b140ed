"""Tables of the results document: means over seeds beside the published numbers.

The document is written by hand. Each table stands between two markers,

    <!-- table: NAME -->
    <!-- end -->

and :func:`fill_tables` writes it there. A folder of results holds the runs of a study as
``STUDY/seed-0``, ``STUDY/seed-1`` and so on.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drpm.training.errors import RunError
from drpm.training.runs import DIRTY, RESULT
from drpm.training.summaries import Summary, summarize

MISSING: Final = "-"
RUN_HEADING: Final = ("runs", "time", "revision")
_BLOCK: Final = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)

Published = Mapping[str, Mapping[str, str]]


class _Cell(NamedTuple):
    study: Path
    summary: Summary | None
    paper: str


@dataclass(frozen=True)
class Table:
    """A table of means and standard deviations over seeds.

    In templates, ``{group}`` and ``{row}`` stand for the keys of a group of rows and of a row.
    Rows with neither runs nor published numbers are left out.

    Args:
        head: Headings of the names: of the rows, or of groups and rows.
        rows: From the name of a row to its key.
        columns: From a heading to the templates of a study and of a metric.
        groups: From the name of a group of rows to its key.
        published: The paper's numbers, by study and metric.
        digits: The number of decimals.
        is_bold: Whether the highest mean of a column is bold, within each group.
        has_runs: Whether to add the number of runs, their time and their revision.
    """

    head: tuple[str, ...]
    rows: Mapping[str, str]
    columns: Mapping[str, tuple[str, str]]
    groups: Mapping[str, str] = field(default_factory=lambda: {"": ""})
    published: Published = field(default_factory=dict)
    digits: int = 3
    is_bold: bool = True
    has_runs: bool = True

    def __call__(self, results: Path) -> str:
        """The table as Markdown, from a folder of results."""
        heading = [*self.head, *(x for name in self.columns for x in (name, f"{name}, paper"))]
        heading += RUN_HEADING if self.has_runs else ()
        lines = []
        for label, group in self.groups.items():
            rows = {name: self._cells(results, group, row) for name, row in self.rows.items()}
            best = [self._highest(column) for column in zip(*rows.values(), strict=True)]
            for name, cells in rows.items():
                line = [label, name][-len(self.head) :]
                for cell, highest in zip(cells, best, strict=True):
                    line += [self._text(cell, highest), cell.paper]
                if {*line[len(self.head) :]} != {MISSING}:
                    runs = describe_runs(cells[0].study) if self.has_runs else ()
                    lines.append([*line, *runs])
                    label = ""  # once for all rows of the group
        columns = [x for x in zip(heading, *lines, strict=True) if {*x[1:]} != {MISSING}]
        return markdown_table(*zip(*columns, strict=True))

    def _cells(self, results: Path, group: str, row: str) -> list[_Cell]:
        cells = []
        for templates in self.columns.values():
            study, metric = (text.format(group=group, row=row) for text in templates)
            paper = self.published.get(study, {}).get(metric, MISSING)
            cells.append(_Cell(results / study, summarize_metric(results / study, metric), paper))
        return cells

    def _highest(self, column: Sequence[_Cell]) -> float | None:
        means = [round(cell.summary.mean, self.digits) for cell in column if cell.summary]
        return max(means) if self.is_bold and len(means) > 1 else None

    def _text(self, cell: _Cell, highest: float | None) -> str:
        if cell.summary is None:
            return MISSING
        text = format_summary(cell.summary, self.digits)
        return f"**{text}**" if round(cell.summary.mean, self.digits) == highest else text


def fill_tables(text: str, tables: Mapping[str, Callable[[Path], str]], results: Path) -> str:
    """Writes the tables of a document between their markers.

    Raises:
        RunError: If the document does not have exactly these tables.
    """
    found = [name for _, name, _ in _BLOCK.findall(text)]
    if sorted(found) != sorted(tables):
        odd = ", ".join(sorted({*found} ^ {*tables}) or found)
        raise RunError(f"The document must have each declared table once, but differs in {odd}.")
    return _BLOCK.sub(lambda block: f"{block[1]}{tables[block[2]](results)}{block[3]}", text)


def markdown_table(heading: Sequence[str], *lines: Sequence[str]) -> str:
    """A table as Markdown."""
    rows = [heading, ["---"] * len(heading), *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def metric_columns(study: str, metrics: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Columns of a :class:`Table` from the template of a study and the headings of metrics."""
    return {heading: (study, metric) for metric, heading in metrics.items()}


def parse_published(text: str, *metrics: str) -> Published:
    """Published numbers by study and metric.

    Args:
        text: Lines of a study, then a mean and a deviation for each metric, ``-`` for none.
        metrics: The metrics.

    Example:
        >>> parse_published("table-1/mnist/gmm  0.32 0.01  - -", "nmi", "ari")
        {'table-1/mnist/gmm': {'nmi': '0.32 ± 0.01'}}
    """
    published = {}
    for line in text.strip().splitlines():
        study, *numbers = line.split()
        pairs = zip(metrics, numbers[::2], numbers[1::2], strict=True)
        published[study] = {
            metric: f"{mean} ± {deviation}" for metric, mean, deviation in pairs if mean != MISSING
        }
    return published


def format_summary(summary: Summary, digits: int = 3) -> str:
    """A mean with its deviation, if there is one."""
    mean = f"{summary.mean:.{digits}f}"
    return mean if summary.deviation is None else f"{mean} ± {summary.deviation:.{digits}f}"


def summarize_metric(study: Path, metric: str) -> Summary | None:
    """Mean and deviation over the seeds of a study; None where there are no runs."""
    paths = [run / RESULT for run in sorted(study.glob("seed-*"))]
    values = [read_result(path)["metrics"].get(metric) for path in paths if path.exists()]
    return summarize(values) if values and None not in values else None


def summarize_metrics(results: Path, cells: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
    """Means and deviations (2, N) of pairs of study and metric, for figures."""
    found = [summarize_metric(results / study, metric) for study, metric in cells]
    pairs = [(np.nan, 0.0) if x is None else (x.mean, x.deviation or 0.0) for x in found]
    return np.array(pairs).T


def read_result(path: Path) -> dict[str, Any]:
    """The content of a ``result.json``.

    Raises:
        RunError: If it cannot be read.
    """
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"The file {path} is not a readable result.") from error


def describe_runs(study: Path) -> list[str]:
    """The number of runs of a study, the time of all together, and their revision."""
    paths = sorted(study.glob(f"seed-*/{RESULT}"))
    if not paths:
        return [MISSING] * 3
    # The time is that of the study, or of all studies that were trained together.
    recorded = [x / RESULT for x in (study, study.parent) if (x / RESULT).exists()]
    whole = recorded[:1] or paths
    results = [read_result(path) for path in whole]
    seconds = max(result["wall_time"] for result in results)
    revisions = sorted({short_revision(result.get("git_revision")) for result in results})
    return [str(len(paths)), str(timedelta(seconds=round(seconds))), ", ".join(revisions)]


def short_revision(revision: str | None) -> str:
    """The first digits of a revision, with ``+`` where there were uncommitted changes.

    Example:
        >>> short_revision("7992286cc4c0e7859e7b6a87268812dd695efb12-dirty")
        '7992286+'
    """
    commit, dirty, _ = (revision or "").partition(DIRTY)
    return f"{commit[:7]}{'+' if dirty else ''}" or "none"


def step_times(results: Path) -> str:
    """A table of training steps, as ``python -m benchmarks.loop`` measured them."""
    steps: dict[str, list[str]] = {}
    contents = [read_result(path) for path in results.glob("benchmarks/loop-h200*.json")]
    # Of two measurements of a model the later one counts.
    for content in sorted(contents, key=lambda content: str(content["environment"]["date"])):
        revision = short_revision(content["environment"].get("git_revision"))
        for step in content["steps"]:
            if (step["step"], step["matmul"]) == ("compile", "high"):
                alone, stacked = step["alone"], step["stacked"]
                cells = [step["model"], str(step["batch_size"]), f"{alone * 1e6:,.0f}"]
                has_stack = stacked is not None
                cells.append(f"{stacked * 1e6:,.0f}" if has_stack else MISSING)
                cells.append(f"{stacked / alone:.2f}" if has_stack else MISSING)
                steps[step["model"]] = [*cells, revision]
    heading = ["model", "batch", "one run, µs", "five stacked, µs", "ratio", "revision"]
    return markdown_table(heading, *steps.values())

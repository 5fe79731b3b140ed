"""Means and deviations over seeds, and tables of them beside the published numbers.

The document is written by hand. Each table stands between the markers ``<!-- table: NAME -->`` and
``<!-- end -->``, where :func:`fill_tables` writes it. A folder of results holds the runs of a study
as ``STUDY/seed-0``, ``STUDY/seed-1`` and so on.
"""

import re
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from drpm.training.errors import RunError
from drpm.training.runs import DIRTY, RESULT, RunFolder

MISSING: Final = "-"
DEVIATION: Final = "over seeds, with n - 1 in the denominator"
_BLOCK: Final = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)

Published = Mapping[str, Mapping[str, str]]


class Summary(NamedTuple):
    """The mean and the sample standard deviation of a metric over seeds; one seed has none."""

    mean: float
    deviation: float | None


def summarize(values: Sequence[float]) -> Summary:
    """Mean and standard deviation of a metric over seeds.

    Example:
        >>> summarize([0.5, 1.0, 1.5])
        Summary(mean=1.0, deviation=0.5)
    """
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Summary(statistics.fmean(values), deviation)


def summarize_results(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and deviation of every metric over seeds; None if a seed has no finite value."""
    summary: dict[str, Any] = {}
    for metric in results[0]["metrics"]:
        # Results of an earlier version may lack some.
        values = [result["metrics"].get(metric) for result in results]
        summary[metric] = None if None in values else summarize(values)._asdict()
    return summary


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
        is_bold: Whether the best mean of a column is bold, within each group.
        has_runs: Whether to add the number of runs, their time and their revision.
        lowest: Headings of the columns in which the lowest mean is the best.
        main: Headings of the columns of a narrow table, below which all columns are folded.
    """

    head: tuple[str, ...]
    rows: Mapping[str, str]
    columns: Mapping[str, tuple[str, str]]
    groups: Mapping[str, str] = field(default_factory=lambda: {"": ""})
    published: Published = field(default_factory=dict)
    digits: int = 3
    is_bold: bool = True
    has_runs: bool = True
    lowest: Collection[str] = ()
    main: Collection[str] = ()

    def __call__(self, results: Path) -> str:
        """The table as Markdown, from a folder of results."""
        cells = []
        for group, row, column in product(self.groups, self.rows, self.columns):
            keys = {"group": self.groups[group], "row": self.rows[row]}
            study, metric = (text.format(**keys) for text in self.columns[column])
            paper = self.published.get(study, {}).get(metric, MISSING)
            mean, text = None, MISSING
            if (found := summarize_metric(results / study, metric)) is not None:
                mean, text = round(found.mean, self.digits), format_summary(found, self.digits)
            cells.append((group, row, column, study, mean, text, paper))
        heads = ["group", "row", "column", "study", "mean", "text", "paper"]
        frame = pd.DataFrame(cells, columns=heads)
        if self.is_bold:
            signs = np.where(frame["column"].isin([*self.lowest]), -1, 1)
            scores = frame["mean"].astype(float) * signs
            among = scores.groupby([frame["group"], frame["column"]])
            is_best = (among.transform("count") > 1) & (scores == among.transform("max"))
            frame.loc[is_best, "text"] = "**" + frame["text"] + "**"
        heading = [*self.head, *(x for name in self.columns for x in (name, f"{name}, paper"))]
        heading += ["runs", "time", "revision"] if self.has_runs else []
        lines, labels = [], {*self.groups}
        for (group, row), found in frame.groupby(["group", "row"], sort=False):
            texts = found[["text", "paper"]].to_numpy().ravel().tolist()
            if {*texts} != {MISSING}:
                label = group if group in labels else ""  # once for all rows of the group
                labels.discard(group)
                runs = describe_runs(results / found["study"].iloc[0]) if self.has_runs else []
                lines.append([*[label, row][-len(self.head) :], *texts, *runs])
        columns = [x for x in zip(heading, *lines, strict=True) if {*x[1:]} != {MISSING}]
        whole = markdown_table(*zip(*columns, strict=True))
        if not self.main:
            return whole
        shown = {*self.head, *(x for name in self.main for x in (name, f"{name}, paper"))}
        narrow = [column for column in columns if column[0] in shown]
        fold = f"\n<details>\n<summary>All columns</summary>\n\n{whole}\n</details>\n"
        return markdown_table(*zip(*narrow, strict=True)) + fold


def fill_tables(text: str, tables: Mapping[str, Callable[[Path], str]], results: Path) -> str:
    """Writes the tables of a document, which must have exactly these, between their markers."""
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

    Each line has a study, then a mean and a deviation for each metric, ``-`` for none.
    """
    published = {}
    for line in text.strip().splitlines():
        study, *numbers = line.split()
        pairs = zip(metrics, numbers[::2], numbers[1::2], strict=True)
        published[study] = {x: f"{mean} ± {std}" for x, mean, std in pairs if mean != MISSING}
    return published


def format_summary(summary: Summary, digits: int = 3) -> str:
    """A mean with its deviation, if there is one."""
    mean = f"{summary.mean:.{digits}f}"
    return mean if summary.deviation is None else f"{mean} ± {summary.deviation:.{digits}f}"


def summarize_metric(study: Path, metric: str) -> Summary | None:
    """Mean and deviation over the seeds of a study; None where there are no runs."""
    values = [run.result()["metrics"].get(metric) for run in _finished(study.glob("seed-*"))]
    return summarize(values) if values and None not in values else None


def summarize_metrics(results: Path, cells: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
    """Means and deviations (2, N) of pairs of study and metric, for figures."""
    found = [summarize_metric(results / study, metric) for study, metric in cells]
    pairs = [(np.nan, 0.0) if x is None else (x.mean, x.deviation or 0.0) for x in found]
    return np.array(pairs).T


def _finished(folders: Iterable[Path]) -> list[RunFolder]:
    return [RunFolder(folder) for folder in folders if (folder / RESULT).exists()]


def describe_runs(study: Path) -> list[str]:
    """The number of runs of a study, the time of all together, and their revision."""
    runs = _finished(study.glob("seed-*"))
    if not runs:
        return [MISSING] * 3
    # The time is that of the study, or of all studies that were trained together.
    results = [run.result() for run in _finished((study, study.parent))[:1] or runs]
    seconds = max(result["wall_time"] for result in results)
    # The first digits, with a plus where there were uncommitted changes.
    parts = [(result.get("git_revision") or "none").partition(DIRTY) for result in results]
    revisions = sorted({f"{commit[:7]}{'+' if dirty else ''}" for commit, dirty, _ in parts})
    return [str(len(runs)), str(timedelta(seconds=round(seconds))), ", ".join(revisions)]

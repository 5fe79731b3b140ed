"""Tables of the results of studies, with means and deviations beside the published numbers.

The document is written by hand. Each table stands between the markers ``<!-- table: NAME -->`` and
``<!-- end -->``, where :func:`fill_tables` writes it. A folder of results holds the runs of a study
as ``STUDY/seed-0``, ``STUDY/seed-1`` and so on.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from drpm.experiments import MISSING, Summary, summarize
from drpm.training.errors import RunError
from drpm.training.runs import DIRTY, RESULT, RunFolder

_BLOCK: Final = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)

Published = Mapping[str, Mapping[str, str]]


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
            paper, found = self.published.get(study, {}), summarize_metric(results / study, metric)
            texts = found.text(self.digits), paper.get(metric, MISSING)
            cells.append((group, row, column, study, round(found.mean, self.digits), *texts))
        heads = ["group", "row", "column", "study", "mean", "text", "paper"]
        frame = pd.DataFrame(cells, columns=heads)
        if self.is_bold:
            scores = frame["mean"] * np.where(frame["column"].isin([*self.lowest]), -1, 1)
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
        few = {name: self.columns[name] for name in self.main}
        narrow = replace(self, columns=few, has_runs=False, main=())
        fold = f"\n<details>\n<summary>All columns</summary>\n\n{whole}\n</details>\n"
        return narrow(results) + fold


def fill_tables(text: str, tables: Mapping[str, Callable[[Path], str]], results: Path) -> str:
    """Writes the tables of a document, which must have exactly these, between their markers."""
    found = [name for _, name, _ in _BLOCK.findall(text)]
    if sorted(found) != sorted(tables):
        odd = ", ".join(sorted({*found} ^ {*tables}) or found)
        raise RunError(f"The document must have each declared table once, but differs in {odd}.")
    return _BLOCK.sub(lambda block: f"{block[1]}{tables[block[2]](results)}{block[3]}", text)


def markdown_table(heading: Sequence[str], *lines: Sequence[str]) -> str:
    """A table as Markdown, which keeps a mean and its deviation on one line."""
    rows = [heading, ["---"] * len(heading), *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows).replace(" ± ", "\xa0±\xa0")


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


def summarize_metric(study: Path, metric: str) -> Summary:
    """Mean and deviation over the seeds of a study."""
    runs = _finished(study.glob("seed-*"))
    return summarize([run.result()["metrics"].get(metric) for run in runs])


def summarize_metrics(results: Path, cells: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
    """Means and deviations (2, N) of pairs of study and metric, for figures."""
    found = [summarize_metric(results / study, metric) for study, metric in cells]
    return np.array([(mean, deviation or 0.0) for mean, deviation in found]).T


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


def _finished(folders: Iterable[Path]) -> list[RunFolder]:
    return [RunFolder(folder) for folder in folders if (folder / RESULT).exists()]

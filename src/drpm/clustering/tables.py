"""The clustering results of this project beside those of the paper, as one page.

    python -m drpm.clustering.tables results docs/results.md

The page is made of what the folder of results holds, and says what is missing there. Figures of
what clusters generate go into the folder ``figures`` beside it.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from drpm.clustering import published
from drpm.clustering.paper_tables import Place, Row, Table, tables
from drpm.clustering.published import Scores
from drpm.clustering.result_figures import result_figures, write_figure
from drpm.training.checkpoint import write_atomic
from drpm.training.errors import RunError, reason
from drpm.training.runs import RESULT
from drpm.training.summaries import Summary, summarize

METRICS: Final = {"nmi": "NMI", "ari": "ARI", "accuracy": "ACC"}

INTRODUCTION: Final = """\
# Results

<!-- Made by `make results` from the folder `results`; changed there, not here. -->

Clusterings are judged on the test part by normalised mutual information (NMI), adjusted Rand index
(ARI) and accuracy under the best matching of clusters with classes (ACC), after the last epoch.
Figures are means and standard deviations over seeds, the latter divided by the number of seeds
less one; "paper" is what the paper prints. The seeds of a method are trained together and share
one stream of noise, so a run with one of the seeds alone gives other numbers. Times are those of
all seeds together, pretraining included; some runs shared the card with others.
`drpm reproduce NAME` does the runs behind a table again.
"""


def page(results: Path) -> str:
    """The whole page.

    Arguments:
        results: The folder of finished studies.
    """
    parts = [INTRODUCTION]
    for table in tables():
        parts.append("\n".join([f"## {table.title}", "", table.about, "", *_lines(table, results)]))
        parts += [figure.markdown for figure in result_figures(table, results)]
    return "\n".join(f"{part.rstrip()}\n" for part in parts)


def _lines(table: Table, results: Path) -> Iterator[str]:
    found = {row: [_read(results, place) for place in row.places] for row in table.rows}
    rows = [line for row, each in found.items() for line in _row_lines(row, each)]
    if rows:
        columns = [table.head, ""]
        for group in table.groups:
            # Each group has its own number of seeds, because studies need not have the same.
            columns += [*(f"{group} {metric}" for metric in METRICS.values()), "seeds"]
        yield from (_line(columns), _line(["---"] * len(columns)), *rows, "")
    if not any(any(each) for each in found.values()):
        yield "Not run yet."
        return
    absent = {row.name: _absent(row, table.groups, each) for row, each in found.items()}
    missing = [name + where for name, where in absent.items() if where is not None]
    if missing:
        yield from (f"Not run yet: {'; '.join(missing)}.", "")
    yield from _times(table, results)


def _row_lines(row: Row, found: Sequence[Sequence[Mapping[str, float]]]) -> Iterator[str]:
    if row.paper:
        yield _line([row.name, "paper", *_paper_cells(row.paper)])
    if any(found):
        yield _line(["" if row.paper else row.name, "here", *_cells(found)])


def _absent(row: Row, groups: Sequence[str], found: Sequence[object]) -> str | None:
    """What of a row was not run, to follow its name; none where all of it was."""
    places = zip(groups, row.places, found, strict=True)
    missing = [group for group, place, each in places if place is not None and not each]
    if len(missing) == len(groups):
        return ""
    return f" ({', '.join(missing)})" if missing else None


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _paper_cells(paper: Sequence[Scores]) -> Iterator[str]:
    for scores in paper:
        for name in METRICS:
            figure = getattr(scores, name)
            yield f"{figure.mean:.2f} ± {figure.deviation:.2f}"
        yield str(published.SEEDS)


def _cells(found: Sequence[Sequence[Mapping[str, float]]]) -> Iterator[str]:
    for runs in found:
        if not runs:
            yield from ["-"] * (len(METRICS) + 1)
            continue
        for name in METRICS:
            yield _shown(summarize([metrics[name] for metrics in runs]))
        yield str(len(runs))


def _shown(summary: Summary) -> str:
    # A digit more than the paper's: its figures are rounded to what often is the deviation.
    if summary.deviation is None:
        return f"{summary.mean:.3f}"
    return f"{summary.mean:.3f} ± {summary.deviation:.3f}"


def _read(results: Path, place: Place | None) -> list[dict[str, float]]:
    """The metrics of every seed of a method; nothing where it was not run."""
    found = []
    for path in _results(results, place):
        metrics = _result(path).get("metrics")
        sound = isinstance(metrics, dict) and all(
            isinstance(metrics.get(name), int | float) for name in METRICS
        )
        if not isinstance(metrics, dict) or not sound:
            raise RunError(
                f"The file {path} must hold the metrics {', '.join(METRICS)}, but got {metrics!r}."
            )
        found.append(metrics)
    return found


def _results(results: Path, place: Place | None) -> list[Path]:
    if place is None:
        return []
    return sorted(results.joinpath(*place).glob(f"seed-*/{RESULT}"))


def _result(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(f"The file {path} is not a result that can be read.") from error
    if not isinstance(content, dict):
        raise RunError(f"The file {path} is not a result that can be read.")
    return content


def _times(table: Table, results: Path) -> Iterator[str]:
    """What the runs of a table took, and on what: a line for each group of columns."""
    for index, group in enumerate(table.groups):
        spent: dict[str, list[str]] = {}
        for row in table.rows:
            paths = [] if row.is_guest else _results(results, row.places[index])
            if paths:
                where, seconds = _cost(paths)
                spent.setdefault(where, []).append(f"{row.name} {timedelta(seconds=seconds)}")
        for where, each in spent.items():
            yield f"- {group} on {where}: {', '.join(each)}."


def _cost(paths: Sequence[Path]) -> tuple[str, int]:
    """Where all seeds of a method were trained, and in how many seconds."""
    found = []
    for path in paths:
        result = _result(path)
        try:
            where = f"{result['device']}, torch {result['versions']['torch']}"
            # Seeds that are trained together all have the time of the whole.
            found.append((where, round(result["wall_time"])))
        except (KeyError, TypeError) as error:
            raise RunError(f"The file {path} must hold wall_time, device and versions.") from error
    return found[0][0], max(seconds for _, seconds in found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; 1, after one sentence, where that cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m drpm.clustering.tables")
    parser.add_argument("results", type=Path, help="the folder of finished studies")
    parser.add_argument("page", type=Path, help="the file to write")
    chosen = parser.parse_args(arguments)
    try:
        text = page(chosen.results)
        for table in tables():
            for figure in result_figures(table, chosen.results):
                write_figure(figure, chosen.page.parent)
        write_atomic(chosen.page, text.encode())
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"error: The page {chosen.page} was not written, because {reason(error)}.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

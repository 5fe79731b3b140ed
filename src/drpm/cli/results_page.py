"""The results of this project beside those of the paper, as one page.

    python -m drpm.cli.results_page results docs/results.md

The page is made of what the folder of results holds, and says what is missing there. Its figures
go into the folder ``figures`` beside it.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from drpm.clustering.results import clustering_sections
from drpm.factors.results import factors_sections
from drpm.multitask.results import multitask_sections
from drpm.report.result_page import Section, page_text, write_page
from drpm.report.result_tables import told_revisions
from drpm.report.step_times import step_sections
from drpm.supervised.results import supervised_sections
from drpm.training.errors import RunError, reason

INTRODUCTION: Final = """\
# Results

<!-- Made by `make results` from the folder `results`; changed there, not here. -->

Figures are means and standard deviations over seeds, the latter divided by the number of seeds
less one; "paper" is what the paper prints. The seeds of a method are trained together and share
one stream of noise (but for mixtures of pixels), so a run with one of the seeds alone gives other
numbers. Times are those of all seeds together, with pretraining and without the reading or making
of data; some runs shared the card with others.
`drpm reproduce NAME` does the runs behind a table again.
"""


def sections(results: Path) -> list[Section]:
    """All of the page.

    Arguments:
        results: The folder of finished studies.
    """
    return [
        Section(f"{INTRODUCTION}\n{told_revisions(results)}"),
        *clustering_sections(results),
        *factors_sections(results),
        *multitask_sections(results),
        *supervised_sections(results),
        *step_sections(results),
    ]


def page(results: Path) -> str:
    """The page's text."""
    return page_text(sections(results))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; 1, after one sentence, where that cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m drpm.cli.results_page")
    parser.add_argument("results", type=Path, help="the folder of finished studies")
    parser.add_argument("page", type=Path, help="the file to write")
    chosen = parser.parse_args(arguments)
    try:
        if not chosen.results.is_dir():
            raise RunError(f"The folder of results {chosen.results} is not there.")
        write_page(sections(chosen.results), chosen.page)
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

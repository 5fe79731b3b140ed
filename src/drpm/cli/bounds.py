"""The command ``drpm bounds``."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from drpm.cli.options import Json, Seed, whole_number_option
from drpm.cli.tables import print_table

if TYPE_CHECKING:
    from rich.progress import TaskID
    from rich.table import Table

    from drpm.studies.bounds import Summary

_HEADER: Final = (
    "Setting",
    *(f"{bound} {of}" for bound in ("Lower", "Upper") for of in ("median", "max", "mean")),
    "Mass error",
    "Monte Carlo",
    "Never drawn",
)


def bounds(
    out: Annotated[
        Path, typer.Option(help="Folder for the pictures and the summary.", file_okay=False)
    ] = Path("out/bounds"),
    draws: Annotated[
        int, whole_number_option("Monte Carlo draws per setting.", least=1)
    ] = 1_000_000,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Compare the paper's bounds on the mass of a partition with the exact mass.

    Five elements, five subsets, the paper's four settings: the exact mass of all
    3,125 assignments, a Monte Carlo estimate, and the lower and upper bound.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    # Made first: a folder that cannot be written should be known before the work, not after it.
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(
            f"the folder {out} cannot be made ({error.strerror}).", param_hint="--out"
        ) from error

    errors = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=errors, disable=not errors.is_terminal) as progress:

        def begin(what: str) -> "TaskID":
            if not errors.is_terminal:
                typer.echo(what, err=True)
            return progress.add_task(what, total=None)

        # Shown before the imports below, which take long enough to be noticed.
        sampling = begin(f"Four times {draws:,} draws")
        from drpm.studies import bounds as study
        from drpm.studies import bounds_figures as figures

        total = draws * study.NUM_SETTINGS
        progress.update(sampling, total=total)

        def count(drawn: int) -> None:
            progress.advance(sampling, drawn)
            done = int(progress.tasks[sampling].completed)
            if not errors.is_terminal and done % draws == 0:
                typer.echo(f"{done:,} of {total:,} draws", err=True)

        results = study.run(draws, seed, on_draws=count)
        summaries = [study.summarize(masses) for masses in results]
        study.write_summary(summaries, out / "bounds.json", num_draws=draws, seed=seed)
        painting = begin("Pictures")
        pictures = figures.save_figures(results, out)
        progress.update(painting, total=1, completed=1)

    if as_json:
        facts = json.loads((out / "bounds.json").read_bytes())
        facts["pictures"] = [str(picture) for picture in pictures]
        typer.echo(json.dumps(facts, indent=2))
        return
    console = Console()
    rows = [
        [masses.setting.label, *_numbers(summary)]
        for masses, summary in zip(results, summaries, strict=True)
    ]
    if console.is_terminal:
        console.print(_bounds_table(rows, draws))
    else:
        # Whatever reads this may not know the letter.
        print_table(_HEADER, [[label.replace("ω", "omega"), *row] for label, *row in rows])
    typer.echo(f"Summary: {out / 'bounds.json'}")
    typer.echo("Pictures:")
    for picture in pictures:
        typer.echo(f"  {picture}")


def _numbers(summary: "Summary") -> list[str]:
    """What the table shows of a setting, in the order of its columns."""
    return [
        *(
            f"{value:.2f}"
            for bound in (summary.lower, summary.upper)
            for value in (bound.median, bound.max, bound.expected)
        ),
        f"{abs(summary.total_mass - 1):.0e}",
        f"{summary.max_standard_errors:.2f}",
        f"{summary.num_never_drawn:,}",
    ]


def _bounds_table(rows: list[list[str]], draws: int) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        title="How loose are the bounds? Nats between each bound and the exact log-mass",
        caption=(
            "ω: group weights, s: scores, U: uniform on (0, 1).\n"
            "Median and max over all 3,125 assignments, mean over draws from the law.\n"
            "Mass error: how far the exact masses are from summing to 1.\n"
            f"Monte Carlo: largest distance to the exact mass in {draws:,} draws,\n"
            "in standard errors (3 to 5 by chance alone)."
        ),
        caption_justify="left",
        # Ten columns fit a terminal of 80 characters only without lines between them.
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    name, *numbers = _HEADER
    table.add_column(name, no_wrap=True)
    for title in numbers:
        table.add_column(title.replace(" ", "\n"), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table

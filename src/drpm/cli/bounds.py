"""The command ``drpm bounds``."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drpm.cli.options import Json, Seed, whole_number_option

if TYPE_CHECKING:
    from rich.table import Table

    from drpm.studies.bounds import Summary


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

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        # Shown before the imports below, which take long enough to be noticed.
        sampling = progress.add_task(f"Four times {draws:,} draws", total=None)
        from drpm.studies import bounds as study
        from drpm.studies import bounds_figures as figures

        progress.update(sampling, total=draws * study.NUM_SETTINGS)
        results = study.run(draws, seed, on_draws=lambda done: progress.advance(sampling, done))
        summaries = [study.summarize(masses) for masses in results]
        study.write_summary(summaries, out / "bounds.json", num_draws=draws, seed=seed)
        painting = progress.add_task("Pictures", total=None)
        pictures = figures.save_figures(results, out)
        progress.update(painting, total=1, completed=1)

    if as_json:
        facts = json.loads((out / "bounds.json").read_bytes())
        facts["pictures"] = [str(picture) for picture in pictures]
        typer.echo(json.dumps(facts, indent=2))
        return
    console = Console()
    labels = [masses.setting.label for masses in results]
    console.print(_bounds_table(labels, summaries, draws))
    console.print(f"Summary: {out / 'bounds.json'}", highlight=False, soft_wrap=True)
    console.print("Pictures:", highlight=False)
    for picture in pictures:
        console.print(f"  {picture}", highlight=False, soft_wrap=True)


def _bounds_table(labels: list[str], summaries: "list[Summary]", draws: int) -> "Table":
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
    table.add_column("Setting", no_wrap=True)
    for bound in ("Lower", "Upper"):
        for statistic in ("median", "max", "mean"):
            table.add_column(f"{bound}\n{statistic}", justify="right", no_wrap=True)
    table.add_column("Mass\nerror", justify="right", no_wrap=True)
    table.add_column("Monte\nCarlo", justify="right", no_wrap=True)
    table.add_column("Never\ndrawn", justify="right", no_wrap=True)
    for label, summary in zip(labels, summaries, strict=True):
        table.add_row(
            label,
            *(
                f"{value:.2f}"
                for bound in (summary.lower, summary.upper)
                for value in (bound.median, bound.max, bound.expected)
            ),
            f"{abs(summary.total_mass - 1):.0e}",
            f"{summary.max_standard_errors:.2f}",
            f"{summary.num_never_drawn:,}",
        )
    return table

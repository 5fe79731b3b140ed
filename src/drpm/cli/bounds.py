"""The command ``drpm bounds``."""

import json
from pathlib import Path
from typing import Annotated, Final

import typer

from drpm.cli.options import Json, Seed
from drpm.cli.output import one_sentence, print_table

_HEADER: Final = (
    "Setting",
    *(f"{bound} {of}" for bound in ("Lower", "Upper") for of in ("median", "max", "mean")),
    "Sum error",
    "Monte Carlo",
    "Never sampled",
)


def bounds(
    out: Annotated[
        Path, typer.Option(help="Folder for the figure and the summary.", file_okay=False)
    ] = Path("out/bounds"),
    draws: Annotated[int, typer.Option(help="Monte Carlo samples per setting.", min=1)] = 1_000_000,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Compare the paper's bounds on the probability of a partition with the exact one.

    There are five elements and five subsets, as in the paper. The table shows
    the distance of each bound from the exact log-probability over all 3,125
    assignments, in nats; the error of the sum of all probabilities; the largest
    error of a Monte Carlo estimate, in standard errors; and the number of
    assignments that were never sampled.
    """
    with one_sentence():
        # Before the work: a folder that cannot be written is refused at once.
        out.mkdir(parents=True, exist_ok=True)
        typer.echo(f"Sampling {draws:,} partitions for each of four settings", err=True)
        from drpm.studies import bounds as study

        document = study.run(out, draws, seed)
    if as_json:
        typer.echo(json.dumps({**document, "figure": str(out / "bounds.png")}, indent=2))
        return
    rows = []
    for name, found in document["settings"].items():
        gaps = [f"{x:.2f}" for bound in ("lower", "upper") for x in found[bound].values()]
        error, distance = abs(found["total_mass"] - 1), found["max_standard_errors"]
        checks = [f"{error:.0e}", "-" if distance is None else f"{distance:.2f}"]
        rows.append([name, *gaps, *checks, f"{found['num_never_drawn']:,}"])
    print_table(_HEADER, rows)
    typer.echo(f"Summary: {out / 'bounds.json'}")
    typer.echo(f"Figure: {out / 'bounds.png'}")

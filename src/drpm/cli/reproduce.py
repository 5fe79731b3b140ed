"""The commands that reproduce the paper: ``drpm reproduce`` and ``drpm bounds``."""

import json
from collections import Counter
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drpm.cli.common import Json, Seed, complete_from, exit_on_error, print_table
from drpm.studies.sweeps import SWEEPS, find
from drpm.training.config import suggest
from drpm.training.errors import ConfigError

if TYPE_CHECKING:
    from drpm.training.sweeps import RunState, SweepRun

LIST = "list"


class Where(StrEnum):
    local = "local"
    ray = "ray"


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help=f"A sweep, or '{LIST}' to list all sweeps.",
            autocompletion=complete_from([*SWEEPS, LIST]),
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the studies.", show_default="out/reproduce/NAME"),
    ] = None,
    workers: Annotated[
        int, typer.Option(help="Number of studies at once; 0 for as many as fit.", min=0)
    ] = 1,
    backend: Annotated[Where, typer.Option(help="Local processes or a Ray cluster.")] = Where.local,
    address: Annotated[str | None, typer.Option(help="The Ray cluster, as host:port.")] = None,
    gpus: Annotated[
        float | None,
        typer.Option(
            help="GPUs per study on the cluster.", min=0, show_default="1 if there are any"
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Device of each study: auto, cpu, cuda or cuda:N.",
            show_default="that of the sweep",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STUDY",
            help="A study of the sweep, or a folder of studies; may be repeated.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Reproduce a table or a figure of the paper; finished studies are skipped.

    Run the same command again to resume an interrupted sweep.
    """
    if name == LIST:
        entries = [
            {"name": x, "runs": len(find(x)), "about": (make.__doc__ or "").partition("\n")[0]}
            for x, make in SWEEPS.items()
        ]
        if as_json:
            typer.echo(json.dumps(entries, indent=2))
        else:
            rows = [[str(value) for value in entry.values()] for entry in entries]
            print_table(["Name", "Runs", "Description"], rows)
        return
    with exit_on_error():
        runs = _choose(name, only)
        folder = out or Path("out/reproduce") / name
        from drpm.training import sweeps

        states = sweeps.run_sweep(
            runs,
            folder,
            backend=backend.value,
            workers=workers,
            address=address,
            gpus=gpus,
            device=device,
            progress=lambda run, settled: _show_change(run, f"{settled} of {len(runs)}"),
        )
    counts = Counter(run.state for run in states)
    failed = [run for run in states if run.state == "failed"]
    if as_json:
        document = {"name": name, "out": str(folder), "runs": [asdict(run) for run in states]}
        typer.echo(json.dumps(document, indent=2))
    else:
        typer.echo(
            f"{name}: {len(runs)} run{'' if len(runs) == 1 else 's'}, {counts['finished']} "
            f"finished, {counts['skipped']} skipped (finished before), {len(failed)} failed."
        )
        for run in failed:
            details = sweeps.error_file(folder, run.folder)
            typer.echo(f"{run.folder} failed {run.attempts} times: {run.reason} Details: {details}")
        typer.echo(f"Runs: {folder}")
    raise typer.Exit(1 if failed else 0)


def _choose(name: str, only: list[str] | None) -> "list[SweepRun]":
    """The runs of a sweep, or those named by study or folder."""
    runs = find(name)
    if not only:
        return runs
    folders = [run.folder for run in runs]
    wanted = tuple(f"{each.rstrip('/')}/" for each in only)  # shell completion appends a slash
    for each in wanted:
        if not any(f"{folder}/".startswith(each) for folder in folders):
            known = list(dict.fromkeys([*(x.partition("/")[0] for x in folders), *folders]))
            raise ConfigError(
                f"only must be a study of the sweep {name!r}, but got {each[:-1]!r}; "
                f"{suggest(each[:-1], known)}"
            )
    return [run for run in runs if f"{run.folder}/".startswith(wanted)]


def _show_change(run: "RunState", count: str) -> None:
    state = "not finished" if run.state == "waiting" else run.state
    again = f", attempt {run.attempts}" if run.attempts > 1 else ""
    why = f": {run.reason}" if run.reason else ""
    typer.echo(f"{count} runs: {run.folder} {state}{again}{why}", err=True)


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
    with exit_on_error():
        out.mkdir(parents=True, exist_ok=True)  # fails early if it cannot be written
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
    gaps = [f"{bound} {of}" for bound in ("Lower", "Upper") for of in ("median", "max", "mean")]
    print_table(["Setting", *gaps, "Sum error", "Monte Carlo", "Never sampled"], rows)
    typer.echo(f"Summary: {out / 'bounds.json'}")
    typer.echo(f"Figure: {out / 'bounds.png'}")

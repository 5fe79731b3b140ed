"""The command ``drpm reproduce``: the runs behind a table or a figure."""

import json
from dataclasses import asdict, replace
from enum import StrEnum
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drpm.cli.completion import DEVICES, SWEEPS, among
from drpm.cli.errors import one_sentence
from drpm.cli.options import Json, number
from drpm.cli.tables import print_table

if TYPE_CHECKING:
    from drpm.training.sweep_running import SweepReport
    from drpm.training.sweeps import Sweep

# The modules that register sweeps. An application is known here by this line alone.
SOURCES = (
    "drpm.studies.sweeps",
    "drpm.clustering.sweeps",
    "drpm.factors.sweeps",
    "drpm.multitask.sweeps",
    "drpm.supervised.sweeps",
)

LIST = "list"


class Where(StrEnum):
    local = "local"
    ray = "ray"


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help=f"A sweep, or '{LIST}' for those there are.",
            autocompletion=among(SWEEPS),
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the runs.", show_default="out/reproduce/NAME"),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            help="Runs in progress at once; 0 for as many as there is room for.",
            metavar="NUMBER",
            parser=number(int, 0),
        ),
    ] = 1,
    backend: Annotated[
        Where, typer.Option(help="Processes of this machine, or a Ray cluster.")
    ] = Where.local,
    address: Annotated[str | None, typer.Option(help="The Ray cluster, as host:port.")] = None,
    gpus: Annotated[
        float | None,
        typer.Option(
            help="GPUs of each run on the cluster.",
            metavar="NUMBER",
            parser=number(float, 0),
            show_default="1 where there are any",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Device of each run: auto, cpu, cuda, or cuda: with a number.",
            autocompletion=among(DEVICES),
            show_default="that of the sweep",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUN",
            help="A run of the sweep, or a folder of runs; may be given several times.",
        ),
    ] = None,
    collect: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER_OR_TAR_GZ",
            help="Run nothing; copy the settings and results of finished runs.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the experiments behind a table or a figure; finished runs are skipped.

    The same command resumes a sweep that was stopped or killed.
    """
    from drpm.training import sweeps

    for source in SOURCES:
        import_module(source)
    if name == LIST:
        _list(as_json)
        return
    from drpm.cli.sweep_progress import follow
    from drpm.training.sweep_running import run_sweep

    with one_sentence():
        sweep = _choose(sweeps.find(name), only)
        folder = out or Path("out/reproduce") / name
        if collect is not None:
            _collect(sweep, folder, collect, as_json)
            return
        with follow(sweep.name) as progress:
            report = run_sweep(
                sweep,
                folder,
                backend=backend.value,
                workers=workers or None,
                address=address,
                gpus=gpus,
                device=device,
                progress=progress,
            )
    typer.echo(json.dumps(_plain(report), indent=2) if as_json else report.summary())
    if not as_json:
        typer.echo(f"Runs: {folder}")
    raise typer.Exit(report.exit_status)


def _choose(sweep: "Sweep", only: list[str] | None) -> "Sweep":
    """The sweep with some of its runs alone."""
    from drpm.training.config import suggest
    from drpm.training.errors import ConfigError

    if not only:
        return sweep
    only = [name.rstrip("/") for name in only]  # as shells complete the names of folders
    # A folder of runs stands for all of them.
    places = {
        run.folder: [run.folder, *(str(x) for x in PurePosixPath(run.folder).parents if x.name)]
        for run in sweep.runs
    }
    known = list(dict.fromkeys(place for each in places.values() for place in reversed(each)))
    for name in only:
        if name not in known:
            raise ConfigError(
                f"only must be a run of the sweep {sweep.name!r}, but got {name!r}; "
                f"{suggest(name, known)}"
            )
    chosen = [run for run in sweep.runs if not set(only).isdisjoint(places[run.folder])]
    return replace(sweep, runs=tuple(chosen))


def _collect(sweep: "Sweep", folder: Path, target: Path, as_json: bool) -> None:
    from drpm.training.sweeps import collect

    files = collect(folder, sweep.name, [run.folder for run in sweep.runs], target)
    if as_json:
        typer.echo(json.dumps({"target": str(target), "files": files}, indent=2))
        return
    typer.echo(f"Collected: {len(files)} file{'' if len(files) == 1 else 's'} in {target}")


def _list(as_json: bool) -> None:
    from drpm.training.sweeps import SWEEPS, describe, find

    entries = [
        {"name": name, "runs": len(find(name).runs), "about": describe(name)} for name in SWEEPS
    ]
    if as_json:
        typer.echo(json.dumps(entries, indent=2))
        return
    print_table(
        ["Name", "Runs", "What it is"],
        [[str(entry[key]) for key in ("name", "runs", "about")] for entry in entries],
    )


def _plain(report: "SweepReport") -> dict[str, Any]:
    return {**asdict(report), "out": str(report.out), "exit_status": report.exit_status}

"""The command ``drpm multitask``."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from drpm.cli.completion import MULTITASK_DATA, MULTITASK_METHODS, among
from drpm.cli.data import Options
from drpm.cli.errors import one_sentence
from drpm.cli.options import (
    Device,
    Json,
    Out,
    Overwrite,
    Settings,
    number,
    parse_options,
    parse_seeds,
    preset_option,
    seed_folders,
    seeds_option,
    whole_number_option,
)
from drpm.cli.settings import read_settings
from drpm.cli.stages import finish_all, show_results, show_stage
from drpm.cli.tables import print_table, spread

DEFAULT_PRESET = "fast-multitask"

# At most so many tasks have columns; more have their own table.
_FEW = 4


def multitask(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="multimnist, mosaic, celeba, or your own images, whose label is one task.",
            autocompletion=among(MULTITASK_DATA),
        ),
    ] = "multimnist",
    method: Annotated[
        str | None,
        typer.Option(
            help="drpm, uls, uncertainty or gradient.", autocompletion=among(MULTITASK_METHODS)
        ),
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(
            help="Fraction of the right digit's pixels that is lost in multimnist, by default 0.",
            metavar="NUMBER",
            parser=number(float, 0, 1),
        ),
    ] = None,
    tasks: Annotated[
        int | None,
        whole_number_option("Number of tasks; by default 10 in mosaic and 40 in celeba.", least=1),
    ] = None,
    out: Out = Path("out/multitask"),
    preset: Annotated[str, preset_option("paper-multitask-multimnist")] = DEFAULT_PRESET,
    settings: Settings = None,
    seeds: Annotated[str | None, seeds_option("trained one after the other")] = None,
    option: Options = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Learn several tasks with one network, and how they share its neurons.

    Run the command again to resume an interrupted run. The folder holds the model,
    its figures and a page that shows them.
    """
    with one_sentence():
        from dataclasses import replace

        from drpm.multitask.config import MultitaskConfig, refuse_unused
        from drpm.multitask.job import Job, open_data, open_job, run_job
        from drpm.training.devices import connect_one

        config = read_settings(
            MultitaskConfig, "multitask", preset, settings or [], device, method=method
        )
        refuse_unused(config, settings or [])
        chosen = parse_seeds(seeds) or [config.training.seed]
        where = connect_one(config.training).device
        first = Job(data, noise, tasks, tuple(option or ()) or None, multitask=config)
        loaded, job = open_data(first, where, parse_options(option or []))
        if len(loaded.tasks) == 1:
            typer.echo(f"The data have one task, {loaded.tasks[0]!r}: nothing is shared.", err=True)
        jobs = [
            replace(job, multitask=replace(config, training=replace(config.training, seed=seed)))
            for seed in chosen
        ]
        folders = seed_folders(out, chosen)
        # All folders are opened before the first run starts.
        runs = [
            open_job(path, x, overwrite=overwrite) for path, x in zip(folders, jobs, strict=True)
        ]
        for own, run in zip(jobs, runs, strict=True):
            command = ["drpm", *sys.argv[1:]]
            run_job(own, loaded, run, device=where, command=command, progress=show_stage)
        results = finish_all(runs, f"{data}: several tasks, {config.method}", out)
    if not as_json:
        _show_tasks(results)
    show_results(results, _columns(results[0]), as_json=as_json)


def _columns(result: dict[str, Any]) -> dict[str, str]:
    """From the names of shown metrics to their column heads."""
    columns = {"accuracy": "Accuracy"}
    names = result["data"]["tasks"]
    if len(names) <= _FEW:
        columns |= {f"accuracy_{name}": f"Accuracy, {name}" for name in names}
        columns |= {f"size_{name}": f"Neurons, {name}" for name in names}
    columns["size_noise_correlation"] = "Rank correlation of noise and neurons"
    return {name: shown for name, shown in columns.items() if name in result["metrics"]}


def _show_tasks(results: list[dict[str, Any]]) -> None:
    """A table with a row for each task, if there are too many for columns."""
    from drpm.multitask.tasks import sort_by_noise

    tasks = results[0]["data"]["tasks"]
    if len(tasks) <= _FEW:
        return
    ratios = results[0]["data"].get("noise ratios", ())
    order = sort_by_noise(len(tasks), ratios)
    tasks = [tasks[task] for task in order]
    rows = [[task] for task in tasks]
    header = ["Task"]
    if ratios:
        header.append("Noise ratio")
        rows = [[*row, f"{ratios[task]:.2f}"] for row, task in zip(rows, order, strict=True)]
    for metric, name in (("accuracy", "Accuracy"), ("size", "Neurons")):
        if f"{metric}_{tasks[0]}" in results[0]["metrics"]:
            header.append(name)
            for row, task in zip(rows, tasks, strict=True):
                found = [result["metrics"][f"{metric}_{task}"] for result in results]
                row.append(spread(found) if len(found) > 1 else f"{found[0]:.3f}")
    print_table(header, rows)

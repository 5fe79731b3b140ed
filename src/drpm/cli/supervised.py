"""The command ``drpm supervised``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from drpm.cli.data import NameOrPath, Options
from drpm.cli.errors import one_sentence
from drpm.cli.options import (
    Device,
    Json,
    Out,
    Overwrite,
    Settings,
    parse_options,
    parse_seeds,
    preset_option,
    seed_folders,
    seeds_option,
)
from drpm.cli.settings import read_settings
from drpm.cli.stages import beside_page, finish_all, show_results, show_stage, train_runs

DEFAULT_PRESET = "fast-supervised"


def supervised(
    data: NameOrPath,
    out: Out = Path("out/supervised"),
    preset: Annotated[str, preset_option("paper-supervised-mnist")] = DEFAULT_PRESET,
    settings: Settings = None,
    seeds: Annotated[str | None, seeds_option("on a GPU they are trained together")] = None,
    option: Options = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="What is learnt, where the data has several targets.",
            metavar="NAME",
            show_default="label, or the first",
        ),
    ] = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Learn to partition batches of a labelled data set into its classes.

    Given again after it was cut off, it goes on where it was. The folder ends up
    with labels.csv, the model, the figures and a page that shows them.
    """
    with one_sentence():
        results = _run(
            data, out, preset, settings or [], seeds, option or [], target, device, overwrite
        )
    from drpm.supervised.job import SCORES

    show_results(results, SCORES, as_json=as_json, digits=4)
    if not as_json:
        _show_weights(results)
        for result in results:
            # A run that was finished by an earlier version has none.
            if (path := beside_page(result, "labels.csv")).exists():
                typer.echo(f"Labels: {path}")


def _show_weights(results: list[dict[str, Any]]) -> None:
    """Which weight of the size term was kept, where there was a choice."""
    selections = [result["selection"] for result in results]
    if not selections[0]["scores"]:
        return
    # On a CPU every seed chooses for itself.
    weights = [f"{selection['size_weight']:g}" for selection in selections]
    shown = ", ".join(weights if len(set(weights)) > 1 else weights[:1])
    held_out = selections[0]["held_out"]
    typer.echo(f"Weight of sizes, as chosen on {held_out:,} elements held out: {shown}")


def _run(
    name: str,
    out: Path,
    preset: str,
    settings: list[str],
    seeds: str | None,
    options: list[str],
    target: str | None,
    device: str,
    overwrite: bool,
) -> list[dict[str, Any]]:
    from dataclasses import replace
    from functools import partial

    from drpm.data import load
    from drpm.data.fingerprints import content_hash
    from drpm.supervised.config import SupervisedConfig
    from drpm.supervised.job import Job, cautions, check_job, do_jobs, find_classes, open_job
    from drpm.training.devices import connect_one

    config = read_settings(SupervisedConfig, "supervised", preset, settings, device)
    chosen = parse_seeds(seeds) or [config.training.seed]
    devices = connect_one(config.training)
    dataset = load(name, device=devices.device, **parse_options(options))
    labelled = find_classes(dataset, target)
    known = content_hash(name, dataset)
    jobs = [
        Job(name, tuple(options), known, replace(config, training=training), target)
        for training in (replace(config.training, seed=seed) for seed in chosen)
    ]
    check_job(jobs[0], labelled)
    if target is None and len(dataset.classes) > 1:
        targets = ", ".join(dataset.classes)
        typer.echo(
            f"Learning {labelled.target!r}; --target chooses another of the targets {targets}.",
            err=True,
        )
    for caution in cautions(jobs[0], labelled):
        typer.echo(f"warning: {caution}", err=True)
    runs = train_runs(
        jobs,
        seed_folders(out, chosen),
        devices,
        partial(open_job, overwrite=overwrite),
        lambda jobs, runs, commands: do_jobs(
            jobs,
            labelled,
            runs,
            commands=commands,
            progress=show_stage,
        ),
    )
    return finish_all(runs, f"{dataset.name}: supervised partitions", out)

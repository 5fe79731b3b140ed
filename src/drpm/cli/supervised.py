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
from drpm.cli.stages import finish, read_settings, show_results, show_stage, train_runs

DEFAULT_PRESET = "fast-supervised"
HEADINGS = {"f1": "F1", "accuracy": "ACC", "size_error": "Error of sizes"}


def supervised(
    data: NameOrPath,
    out: Out = Path("out/supervised"),
    preset: Annotated[str, preset_option("paper-supervised-mnist")] = DEFAULT_PRESET,
    settings: Settings = None,
    seeds: Annotated[str | None, seeds_option("on a GPU they are trained together")] = None,
    option: Options = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Learn to partition batches of a labelled data set into its classes.

    Given again after it was cut off, it goes on where it was. The folder ends up
    with the model, the figures and a page that shows them.
    """
    with one_sentence():
        results = _run(data, out, preset, settings or [], seeds, option or [], device, overwrite)
    show_results(results, HEADINGS, as_json=as_json, digits=4)
    if not as_json:
        weights = {f"{result['selection']['size_weight']:g}" for result in results}
        typer.echo(f"Weight of sizes, as chosen on a part held out: {', '.join(sorted(weights))}")


def _run(
    name: str,
    out: Path,
    preset: str,
    settings: list[str],
    seeds: str | None,
    options: list[str],
    device: str,
    overwrite: bool,
) -> list[dict[str, Any]]:
    from dataclasses import replace
    from functools import partial

    from drpm.data import load
    from drpm.data.fingerprints import known_by
    from drpm.supervised.config import SupervisedConfig
    from drpm.supervised.job import Job, check_job, do_jobs, find_classes, open_job
    from drpm.training.devices import connect_one

    config = read_settings(SupervisedConfig, "supervised", preset, settings, device)
    chosen = parse_seeds(seeds) or [config.training.seed]
    devices = connect_one(config.training)
    dataset = load(name, device=devices.device, **parse_options(options))
    labelled = find_classes(dataset)
    known = known_by(name, dataset)
    jobs = [
        Job(name, tuple(options), known, replace(config, training=training))
        for training in (replace(config.training, seed=seed) for seed in chosen)
    ]
    check_job(jobs[0], labelled)
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
    return [finish(run, f"{dataset.name}: supervised partitions") for run in runs]

"""The command ``drpm cluster``."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from drpm.cli.completion import CLUSTERING_METHODS, among
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
    whole_number_option,
)
from drpm.cli.settings import read_own, read_settings
from drpm.cli.stages import beside_page, finish_all, show_stage, train_runs
from drpm.cli.tables import print_table, spread

DEFAULT_PRESET = "fast-cluster"


def cluster(
    data: NameOrPath,
    out: Out = Path("out/cluster"),
    clusters: Annotated[
        int | None,
        whole_number_option(
            "How many clusters; by default as many as there are classes, or 10.", least=1
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="drpm-vc, vade, latent-gmm, gmm or contrastive-head.",
            autocompletion=among(CLUSTERING_METHODS),
        ),
    ] = None,
    preset: Annotated[str, preset_option("paper-cluster-mnist")] = DEFAULT_PRESET,
    settings: Settings = None,
    seeds: Annotated[str | None, seeds_option("on a GPU they are trained together")] = None,
    option: Options = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Run the other methods as well, from the same start.")
    ] = False,
    device: Device = "auto",
    devices: Annotated[
        int, whole_number_option("GPUs that share one run, each with batches of its own.", least=1)
    ] = 1,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Cluster a data set, or your own file, and generate from every cluster.

    Given again after it was cut off, it goes on where it was. The folder ends up
    with labels.csv, the model, the figures and a page that shows them.
    """
    with one_sentence():
        results = _run(
            data,
            out,
            method,
            clusters,
            preset,
            settings or [],
            device,
            devices,
            parse_seeds(seeds),
            option or [],
            compare,
            overwrite,
        )
    if not results:
        return  # one of several processes, of which the first speaks
    if as_json:
        typer.echo(json.dumps(results if len(results) > 1 else results[0], indent=2))
        return
    _show(results, compare)


def _run(
    name: str,
    out: Path,
    method: str | None,
    clusters: int | None,
    preset: str,
    settings: list[str],
    device: str,
    count: int,
    seeds: list[int] | None,
    options: list[str],
    compare: bool,
    overwrite: bool,
) -> list[dict[str, Any]]:
    from dataclasses import replace
    from functools import partial

    from drpm.clustering.config import ClusteringConfig
    from drpm.clustering.job import Job, check_job, do_jobs, open_job
    from drpm.data import load
    from drpm.data.fingerprints import content_hash
    from drpm.data.preprocessing import class_names
    from drpm.training.devices import connect
    from drpm.training.presets import is_own

    both = [
        f"{stage}.{setting}={value}"
        for stage in ("training", "pretraining.training")
        for setting, value in (("device", device), ("devices", count))
    ]
    config = read_settings(
        ClusteringConfig,
        "cluster",
        preset,
        [*both, *settings],
        device,
        method=method,
        clusters=clusters,
    )
    devices = connect(config.training)
    if devices.is_first and devices.count > 1 and devices.device.type == "cpu":
        typer.echo(
            f"warning: {devices.count} processes share the CPU for one run, which is slower than "
            "one alone; several devices are meant for GPUs.",
            err=True,
        )
    dataset = load(name, device=devices.device, **parse_options(options))
    are_set = any(setting.partition("=")[0].strip() == "clusters" for setting in settings)
    are_set = are_set or (is_own(preset) and "clusters" in read_own("cluster", preset).settings)
    if clusters is None and not are_set:
        config = replace(config, clusters=len(class_names(dataset)) or config.clusters)
    known = content_hash(name, dataset)
    seeds = seeds or [config.training.seed]
    jobs = [
        Job(name, tuple(options), known, compare, replace(config, training=training))
        for training in (replace(config.training, seed=seed) for seed in seeds)
    ]
    check_job(jobs[0], dataset)
    runs = train_runs(
        jobs,
        seed_folders(out, seeds),
        devices,
        partial(open_job, overwrite=overwrite, devices=devices),
        lambda jobs, runs, commands: do_jobs(
            jobs,
            dataset,
            runs,
            commands=commands,
            progress=show_stage if devices.is_first else lambda stage: None,
            devices=devices,
        ),
    )
    if not devices.is_first:
        return []
    return finish_all(runs, f"{dataset.name}: {config.clusters} clusters", out)


def _show(results: list[dict[str, Any]], compare: bool) -> None:
    from drpm.clustering.job import SCORES

    if compare and not results[0]["comparison"]:
        typer.echo("There are no labels, so there is nothing to compare the methods by.", err=True)
    for result in results:
        if result["comparison"]:
            print_table(
                ["Method", *SCORES.values()],
                [
                    [name, *(f"{scores[key]:.3f}" for key in SCORES)]
                    for name, scores in result["comparison"].items()
                ],
            )
        typer.echo(f"Labels: {beside_page(result, 'labels.csv')}")
        typer.echo(f"Page: {result['page']}")
    if len(results) > 1 and results[0]["comparison"]:
        typer.echo(f"Mean and deviation over {len(results)} seeds:")
        print_table(
            ["Method", *SCORES.values()],
            [
                [name, *(spread([x["comparison"][name][key] for x in results]) for key in SCORES)]
                for name in results[0]["comparison"]
            ],
        )

"""The command ``drpm factors``."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from drpm.cli.completion import FACTOR_DATA, FACTOR_METHODS, among
from drpm.cli.errors import one_sentence
from drpm.cli.options import (
    Device,
    Json,
    Out,
    Overwrite,
    Settings,
    parse_seeds,
    preset_option,
    seed_folders,
    seeds_option,
    whole_number_option,
)
from drpm.cli.settings import read_settings
from drpm.cli.stages import finish_all, show_results, show_stage

DEFAULT_PRESET = "fast-factors"

# Sides of images, in pixels.
SIDES = (8, 16, 32, 64)


def _side(value: Any) -> int:
    if str(value) not in map(str, SIDES):
        *others, largest = SIDES
        expected = f"{', '.join(map(str, others))} or {largest}"
        raise typer.BadParameter(f"expected {expected}, but got '{value}'.")
    return int(value)


def factors(
    data: Annotated[
        str | None,
        typer.Argument(
            help="arm, mpi3d, or your own pairs: a folder of images or an .npz file.",
            metavar="DATA",
            show_default="arm",
            autocompletion=among(FACTOR_DATA),
        ),
    ] = None,
    data_option: Annotated[
        str | None,
        typer.Option(
            "--data", help="The same, by name.", metavar="DATA", autocompletion=among(FACTOR_DATA)
        ),
    ] = None,
    shared: Annotated[
        str | None,
        typer.Option(
            help="How many of seven factors the images of a pair share, or mixed; not for yours.",
            show_default="3",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="drpm, hg, ada or label.", autocompletion=among(FACTOR_METHODS)),
    ] = None,
    out: Out = Path("out/factors"),
    preset: Annotated[str, preset_option("paper-factors")] = DEFAULT_PRESET,
    settings: Settings = None,
    seeds: Annotated[str | None, seeds_option("trained one after the other")] = None,
    angles: Annotated[
        int | None,
        whole_number_option(
            "Positions of each joint of the arm, from 2 to 40; not for pairs of yours.",
            least=2,
            most=40,
            show_default="40 on a GPU, else 2",
        ),
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option(
            help="Side of the arm's images, 16, 32 or 64 pixels, or the size that your images are "
            "resized to, from 8 on.",
            metavar="NUMBER",
            parser=_side,
            show_default="64 on a GPU, else 32; yours stay as they are",
        ),
    ] = None,
    test_pairs: Annotated[
        int | None,
        whole_number_option(
            "Number of test pairs; not for pairs of yours.",
            least=100,
            show_default="10000 on a GPU, else 2000",
        ),
    ] = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Learn which factors the two images of a pair share, and how many.

    Run the command again to resume an interrupted run. The folder holds the model,
    its figures and a page that shows them; for pairs of your own also pairs.csv,
    the shared dimensions of every pair.
    """
    with one_sentence():
        data = _choose_data(data, data_option)
        from dataclasses import replace

        from drpm.factors.config import FactorsConfig
        from drpm.factors.job import SCORES, WORLDS, Job, open_job, open_pairs, run_job
        from drpm.factors.pipeline import check_pairs
        from drpm.training.devices import connect_one

        config = read_settings(
            FactorsConfig, "factors", preset, settings or [], device, method=method
        )
        chosen = parse_seeds(seeds) or [config.training.seed]
        where = connect_one(config.training).device
        if where.type != "cuda" and data in WORLDS:
            test_pairs = test_pairs or 2_000
            if data == "arm":
                angles, image_size = angles or 2, image_size or 32
        pairs, job = open_pairs(
            Job(data, shared, angles, image_size, test_pairs, factors=config), where
        )
        check_pairs(pairs, config)
        jobs = [
            replace(job, factors=replace(config, training=replace(config.training, seed=seed)))
            for seed in chosen
        ]
        folders = seed_folders(out, chosen)
        # All folders are opened before the first run starts.
        runs = [
            open_job(path, x, overwrite=overwrite) for path, x in zip(folders, jobs, strict=True)
        ]
        for own, run in zip(jobs, runs, strict=True):
            command = ["drpm", *sys.argv[1:]]
            run_job(own, pairs, run, device=where, command=command, progress=show_stage)
        results = finish_all(runs, f"{data}: shared factors, {config.method}", out)
    names = {name: shown for name, shown in SCORES.items() if name in results[0]["metrics"]}
    show_results(results, names, as_json=as_json)


def _choose_data(argument: str | None, option: str | None) -> str:
    if argument is not None and option is not None and argument != option:
        raise ValueError(f"data must be given once, but got {argument!r} and {option!r}.")
    given = option if argument is None else argument
    return "arm" if given is None else given

"""The commands that train, made from the jobs that applications declare."""

import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from drpm.cli.completion import among
from drpm.cli.data import NameOrPath, Options
from drpm.cli.errors import one_sentence
from drpm.cli.help import PlainCommand
from drpm.cli.options import (
    Device,
    Json,
    Out,
    Overwrite,
    Settings,
    number,
    parse_seeds,
    preset_option,
    seed_folders,
    seeds_option,
    whole_number_option,
)
from drpm.cli.settings import read_own, read_settings
from drpm.cli.tables import print_table
from drpm.experiments.base import JOBS, Job, find_experiment, find_job
from drpm.training.summaries import spread

if TYPE_CHECKING:
    from drpm.training.loop import Progress


def add_commands(app: typer.Typer) -> None:
    """Add a command for every application."""
    for command in JOBS:
        kind = find_job(command)
        app.command(command, help=kind.help, cls=PlainCommand)(make_command(kind))


def make_command(kind: type[Job]) -> Any:
    """The function behind a command, whose parameters are the fields of the job."""

    def run(**values: Any) -> None:
        with one_sentence():
            results = _run(kind, values)
        if results:  # of several processes the first one speaks
            _show(kind, results, values["as_json"])

    parameters = _parameters(kind)
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
            for name, (annotation, default) in parameters.items()
        ]
    )
    run.__annotations__ = {name: annotation for name, (annotation, _) in parameters.items()}
    return run


def _parameters(kind: type[Job]) -> dict[str, tuple[Any, Any]]:
    """From the name of a parameter to its annotation and its default."""
    types = get_type_hints(kind)
    found: dict[str, tuple[Any, Any]] = {}
    for each in fields(kind):
        if each.name == "data":
            found["data"] = _argument(each, kind.data_option)
            if kind.data_option:
                help = typer.Option("--data", metavar="DATA", help="The same, by name.")
                found["data_option"] = (Annotated[str | None, help], None)
        elif each.name == "options":
            found["option"] = (Options, None)
        elif "help" in each.metadata:
            found[each.name] = (
                Annotated[types[each.name], _typer_option(types[each.name], each.metadata)],
                each.default,
            )
    config = get_type_hints(types[kind.section])
    for name, details in kind.shortcuts.items():
        of = str if "choices" in details else config[name]
        found[name] = (Annotated[of | None, _typer_option(of, details)], None)
    together = "on a GPU they are trained together" if kind.stacks else "one after the other"
    found |= {
        "out": (Out, Path("out") / kind.command),
        "settings": (Settings, None),
        "seeds": (Annotated[str | None, seeds_option(together)], None),
        "device": (Device, "auto"),
    }
    if kind.example_preset is not None:
        preset = Annotated[str, preset_option(kind.example_preset)]
        found["preset"] = (preset, f"fast-{kind.command}")
    if kind.several_devices:
        help = "GPUs that share one run, each with a part of every batch."
        found["devices"] = (Annotated[int, whole_number_option(help, least=1)], 1)
    return found | {"overwrite": (Overwrite, False), "as_json": (Json, False)}


def _argument(each: Field[Any], has_option: bool) -> tuple[Any, Any]:
    if "help" not in each.metadata:
        return NameOrPath, inspect.Parameter.empty
    argument = typer.Argument(
        metavar="DATA",
        help=each.metadata["help"],
        autocompletion=among(each.metadata["choices"]),
        show_default=str(each.default),
    )
    return (
        (Annotated[str | None, argument], None)
        if has_option
        else (
            Annotated[str, argument],
            each.default,
        )
    )


def _typer_option(kind: Any, details: Mapping[str, Any]) -> Any:
    extra: dict[str, Any] = {}
    if kind is bool:
        return typer.Option(f"--{details['flag']}", help=details["help"])
    if "least" in details:
        of = float if "float" in str(kind) else int
        extra |= {"parser": number(of, details["least"], details.get("most")), "metavar": "NUMBER"}
    if "among" in details:
        extra |= {"parser": _one_of(details["among"]), "metavar": "NUMBER"}
    if "choices" in details:
        extra["autocompletion"] = among(details["choices"])
    if "metavar" in details:
        extra["metavar"] = details["metavar"]
    if "shown" in details:
        extra["show_default"] = details["shown"]
    return typer.Option(help=details["help"], **extra)


def _one_of(numbers: Sequence[int]) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if str(value) not in map(str, numbers):
            *others, largest = numbers
            expected = f"{', '.join(map(str, others))} or {largest}"
            raise typer.BadParameter(f"expected {expected}, but got '{value}'.")
        return int(value)

    return parse


def _run(kind: type[Job], values: Mapping[str, Any]) -> list[dict[str, Any]]:
    from drpm.experiments.running import (
        connect_devices,
        open_runs,
        prepare,
        run_jobs,
        write_summary,
    )
    from drpm.training.presets import is_own

    types, settings = get_type_hints(kind), list(values["settings"] or ())
    shortcuts = {name: values[name] for name in kind.shortcuts}
    preset = values.get("preset")
    if "devices" in values:
        settings = [*_for_all_stages(types[kind.section], values), *settings]
    config = read_settings(
        types[kind.section], kind.command, preset, settings, values["device"], **shortcuts
    )
    own = read_own(kind.command, preset).settings if preset and is_own(preset) else {}
    given = dict.fromkeys(own, False)
    given |= {name: True for name, value in shortcuts.items() if value is not None}
    given |= {setting.partition("=")[0].strip(): True for setting in settings}
    names = [each.name for each in fields(kind) if each.name in values]
    chosen = {name: values[name] for name in names}
    if kind.data_option:
        chosen["data"] = _choose_data(kind, values["data"], values["data_option"])
    job = kind(**chosen, **{kind.section: config})
    if values.get("option"):
        job = job.with_fields(options=tuple(values["option"]))
    devices = connect_devices(job)
    experiment = find_experiment(kind)
    job, data, warnings = prepare(experiment, job, devices, given)
    if devices.is_first:
        for warning in warnings:
            typer.echo(f"warning: {warning}", err=True)
    seeds = parse_seeds(values["seeds"]) or [job.seed]
    jobs, folders = [job.with_seed(seed) for seed in seeds], seed_folders(values["out"], seeds)
    results = run_jobs(
        experiment,
        jobs,
        data,
        open_runs(experiment, jobs, folders, devices=devices, overwrite=values["overwrite"]),
        devices=devices,
        command=["drpm", *sys.argv[1:]],
        progress=show_stage if devices.is_first else lambda stage: None,
    )
    if len(results) > 1:
        write_summary(values["out"], results)
    return results


def _choose_data(kind: type[Job], argument: str | None, option: str | None) -> str:
    if argument is not None and option is not None and argument != option:
        raise ValueError(f"data must be given once, but got {argument!r} and {option!r}.")
    given = option if argument is None else argument
    return kind.data if given is None else given  # type: ignore[attr-defined]


def _for_all_stages(config: Any, values: Mapping[str, Any]) -> list[str]:
    """Settings that place every training of a run on the same devices."""
    stages = ["training"]
    if "pretraining" in get_type_hints(config):
        stages.append("pretraining.training")
    return [f"{stage}.{name}={values[name]}" for stage in stages for name in ("device", "devices")]


def show_stage(stage: str) -> "Progress":
    """Name the stage that begins on the error stream, and show its progress."""
    from drpm.training.progress import make_progress

    typer.echo(f"{stage[0].upper()}{stage[1:]}", err=True)
    return make_progress()


def _show(kind: type[Job], results: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print the results of all seeds, for people or for programs."""
    if as_json:
        typer.echo(json.dumps(list(results) if len(results) > 1 else results[0], indent=2))
        return
    experiment = find_experiment(kind)
    columns = experiment.columns(results[0])
    if columns:
        _print_scores(results, columns, experiment.digits)
    for each in experiment.describe(results):
        if isinstance(each, str):
            typer.echo(each)
        else:
            print_table(*each)
    for result in results:
        page = Path(result["page"])
        for name in experiment.outputs:
            if name.endswith(".csv") and page.with_name(name).exists():
                typer.echo(f"{name.removesuffix('.csv').capitalize()}: {page.with_name(name)}")
        typer.echo(f"Page: {page}")


def _print_scores(
    results: Sequence[Mapping[str, Any]], columns: Mapping[str, str], digits: int
) -> None:

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    rows = [
        [str(result["seed"]), *(number(result["metrics"].get(name)) for name in columns)]
        for result in results
    ]
    if len(results) > 1:
        found = [[result["metrics"].get(name) for result in results] for name in columns]
        rows.append(["mean", *("-" if None in x else spread(x, digits) for x in found)])
    print_table(["Seed", *columns.values()], rows)

"""The app and its training commands, generated from the job classes.

Commands import torch and matplotlib when they run, so that ``--help`` and usage errors are fast.
"""

import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from inspect import Parameter, Signature
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from drpm import __version__
from drpm.cli import data, pages, predict, reproduce
from drpm.cli.common import (
    Device,
    Json,
    NameOrPath,
    Options,
    Out,
    Overwrite,
    complete_from,
    exit_on_error,
    print_table,
)
from drpm.experiments import JOBS, Job, find_experiment, find_job
from drpm.training import config as configs
from drpm.training.config import TrainingConfig, load_preset
from drpm.training.errors import ConfigError

if TYPE_CHECKING:
    from drpm.training.loop import TrainingProgress

app = typer.Typer(
    name="drpm",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # bugs show a plain traceback
)


def main() -> None:
    """Run the command line."""
    # Make waiting OpenMP (libgomp) threads yield their cores early. Read when torch is imported.
    # On two cores with one other busy process, drpm cluster digits takes 1 step per second with
    # the default of 300,000 and 26 with 3,000.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    # A character that the terminal cannot encode must not raise.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    app(prog_name="drpm")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"drpm {__version__}")
        raise typer.Exit


@app.callback(
    epilog="Exit codes: 0 success; 1 error; 2 usage error; "
    "128 + n stopped by signal n, with a checkpoint saved."
)
def drpm(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Differentiable random partition models: train, evaluate and reproduce.

    The commands cluster data, learn the shared factors of image pairs, train
    multitask networks, learn partitions from labels, and reproduce the paper.
    Every run writes a folder with the model, figures and an HTML report.

    Examples:

      drpm cluster digits                   an included data set
      drpm cluster my.csv --clusters 5      your own table
    """


def make_command(kind: type[Job]) -> Any:
    """The function of a command; its parameters are the fields of the job."""

    def run(**values: Any) -> None:
        with exit_on_error():
            results = _run(kind, values)
        if results:  # of several processes the first one prints
            _show(kind, results, values["as_json"])

    parameters = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in _parameters(kind).items()
    ]
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _parameters(kind: type[Job]) -> dict[str, tuple[Any, Any]]:
    """Maps the name of each parameter to its annotation and default."""
    types = get_type_hints(kind)
    found: dict[str, tuple[Any, Any]] = {}
    if kind.data_option:
        option = typer.Option("--data", metavar="DATA", help="Same as the argument DATA.")
        found["data_option"] = (Annotated[str | None, option], None)
    for each in fields(kind):
        if each.name == "options":
            found["option"] = (Options, None)
        elif each.name == "data" and "help" not in each.metadata:
            found["data"] = (NameOrPath, Parameter.empty)
        elif each.name == "data":
            argument = typer.Argument(
                metavar="DATA",
                help=each.metadata["help"],
                autocompletion=complete_from(each.metadata["choices"]),
                show_default=str(each.default),
            )
            found["data"] = (Annotated[str | None, argument], None)
        elif "help" in each.metadata:
            found[each.name] = _option(types[each.name], each.metadata)
    config = types[kind.section]
    for name, details in kind.shortcuts.items():
        found[name] = _option(get_type_hints(config)[name], details)
    settings = typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A hyperparameter, such as training.epochs=50; may be repeated.",
        autocompletion=complete_from([f"{name}=" for name in configs.names(config())]),
    )
    seeds = typer.Option(
        help="One seed (by default 0), or several such as 0,1,2, each in its own folder."
    )
    found |= {
        "out": (Out, Path("out") / kind.command),
        "settings": (Annotated[list[str] | None, settings], None),
        "seeds": (Annotated[str | None, seeds], None),
        "device": (Device, "auto"),
    }
    if presets := configs.preset_names(kind.command):
        preset = typer.Option(
            help="A preset, or your own .toml file.",
            metavar="NAME_OR_FILE",
            autocompletion=complete_from(presets),
        )
        found["preset"] = (Annotated[str, preset], f"fast-{kind.command}")
    if kind.several_devices:
        about = "Number of GPUs, by default 1; each processes its own batches."
        found["devices"] = _option(int, {"help": about})
    return found | {"overwrite": (Overwrite, False), "as_json": (Json, False)}


def _option(kind: Any, details: Mapping[str, Any]) -> tuple[Any, Any]:
    """A flag, or a text option that the configuration validates."""
    if kind is bool:
        return Annotated[bool, typer.Option(f"--{details['flag']}", help=details["help"])], False
    extra = {"show_default": details["shown"]} if "shown" in details else {}
    if "choices" in details:
        extra["autocompletion"] = complete_from(details["choices"])
    names = [each.__name__ for each in (*get_args(kind), kind) if each in (int, float)]
    metavar = details.get("metavar") or (f"<{names[0]}>" if names else "<str>")
    return Annotated[str | None, typer.Option(help=details["help"], metavar=metavar, **extra)], None


def _run(kind: type[Job], values: Mapping[str, Any]) -> list[dict[str, Any]]:
    from drpm.experiments import prepare, run_jobs, write_summary

    values = kind.read(values)
    config, given = read_settings(kind, values)
    chosen: dict[str, Any] = {kind.section: config}
    if "data" in values:
        named = [x for x in (values["data"], values.get("data_option")) if x is not None]
        if len({*named}) > 1:
            raise ConfigError(f"data must be given once, but got {named[0]!r} and {named[1]!r}.")
        chosen["data"] = named[0] if named else kind.data  # type: ignore[attr-defined]
    if values.get("option"):
        chosen["options"] = tuple(values["option"])
    texts = {each.name: values.get(each.name) for each in fields(kind) if each.name not in chosen}
    given_texts = [f"{name}={text}" for name, text in texts.items() if text is not None]
    job = configs.override(kind(**chosen), given_texts)
    experiment = find_experiment(kind)
    job, data, devices, warnings = prepare(experiment, job, given)
    if devices.is_first:
        for warning in warnings:
            typer.echo(f"warning: {warning}", err=True)
    out: Path = values["out"]
    seeds = [job.seed] if values["seeds"] is None else _parse_seeds(values["seeds"])
    folders = [out] if len(seeds) == 1 else [out / f"seed-{seed}" for seed in seeds]
    results = run_jobs(
        experiment,
        [job.with_seed(seed) for seed in seeds],
        data,
        folders,
        devices=devices,
        command=["drpm", *sys.argv[1:]],
        overwrite=values["overwrite"],
        progress=_show_stage if devices.is_first else lambda stage: None,
    )
    if len(results) > 1:
        write_summary(out, results)
    return results


def read_settings(kind: type[Job], values: Mapping[str, Any]) -> tuple[Any, dict[str, bool]]:
    """The configuration of a command from its options, and the settings given by the user.

    Precedence, lowest first: preset or file, device options, other options, ``--set``. The settings
    map names to whether they were given on the command line (else in a file).
    """
    cls = get_type_hints(kind)[kind.section]
    places = {name: values[name] for name in ("device", "devices") if values.get(name) is not None}
    # Validate first, so that errors name the options.
    configs.override(TrainingConfig(), [f"{name}={value}" for name, value in places.items()])
    settings = list(values["settings"] or ())
    named = {name: values[name] for name in kind.shortcuts if values[name] is not None}
    names = [setting.partition("=")[0].strip() for setting in settings]
    for name, setting in zip(names, settings, strict=True):
        if name in named:
            raise ConfigError(
                f"{name} must be given once, but got --{name} {named[name]} and --set {setting}."
            )
    own: dict[str, Any] = {}
    preset = values.get("preset")
    if preset is None:
        start = cls()
    elif not preset.endswith(configs.SUFFIX):
        start = load_preset(cls, preset, command=kind.command)
    else:
        own, is_run = _read_file(kind.command, preset)
        try:
            # The configuration of a run is complete; other files override the fast preset.
            base = None if is_run else load_preset(cls, f"fast-{kind.command}")
            start = configs.build(cls, own, base)
        except ConfigError as error:
            raise ConfigError(f"In {preset}: {error}") from error
    stages = ["training"]
    if "pretraining" in get_type_hints(cls):
        stages.append("pretraining.training")
    placed = [f"{stage}.{name}={value}" for stage in stages for name, value in places.items()]
    options = [f"{name}={value}" for name, value in named.items()]
    config = configs.override(start, [*placed, *options, *settings])
    return config, {**dict.fromkeys(own, False), **dict.fromkeys([*named, *names], True)}


def _read_file(command: str, path: str) -> tuple[dict[str, Any], bool]:
    """The settings of a file, and whether it is the ``config.toml`` of a run."""
    from drpm.training.runs import FINGERPRINT

    mapping = configs.read_mapping(path)
    for known in JOBS:
        section = find_job(known).section
        if "data" in mapping and isinstance(mapping.get(section), dict):
            if known != command:
                raise ConfigError(f"{path} is from a run of drpm {known}, not of drpm {command}.")
            return mapping[section], True
    # Runs from Python also store the content hash of their data.
    mapping.pop(FINGERPRINT, None)
    return mapping, False


def _parse_seeds(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) < 2**63 for word in words):
        raise ConfigError(f"seeds must be integers such as 0,1,2, but got {text!r}.")
    numbers = [int(word) for word in words]
    if len(set(numbers)) != len(numbers):
        raise ConfigError(f"seeds must be distinct, but got {text!r}.")
    return numbers


def _show_stage(stage: str) -> "TrainingProgress":
    """Print the name of a stage to stderr and show its progress."""
    from drpm.training.loop import TrainingProgress

    typer.echo(f"{stage[0].upper()}{stage[1:]}", err=True)
    return TrainingProgress()


def _show(kind: type[Job], results: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(list(results) if len(results) > 1 else results[0], indent=2))
        return
    from drpm.experiments import summarize  # imports torch, which takes seconds

    experiment = find_experiment(kind)
    if columns := experiment.columns(results[0]):
        # One row per seed, then the mean.
        groups = [(str(result["seed"]), [result["metrics"]]) for result in results]
        groups += [("mean", [result["metrics"] for result in results])] if len(results) > 1 else []
        rows = [
            [name, *(summarize([x.get(metric) for x in some]).text() for metric in columns)]
            for name, some in groups
        ]
        print_table(["Seed", *columns.values()], rows)
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
        typer.echo(f"Report: {page}")


for command in JOBS:
    kind = find_job(command)
    app.command(command, help=kind.help)(make_command(kind))

app.command()(predict.predict)
app.command()(pages.report)
app.command()(pages.explore)
app.command()(reproduce.bounds)
app.add_typer(data.app, name="data")
app.command()(reproduce.reproduce)


# The program parses its own options, including --help.
@app.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
def bench(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="Options of the program, such as --quick.", metavar="[OPTIONS]"),
    ] = None,
) -> None:
    """Measure time and memory of the distributions on this device."""
    with exit_on_error():
        from drpm import __file__ as place

        root = Path(place).parents[2]
        if not (root / "benchmarks" / "__main__.py").is_file():
            raise ValueError(
                "The benchmark program is not part of the installed package: get the source, and "
                "run python -m benchmarks in its folder."
            )
    # First, since the current folder may have another package named benchmarks.
    sys.path.insert(0, str(root))
    resolve_name("benchmarks.__main__:main")(arguments or [])

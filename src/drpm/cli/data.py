"""The commands ``drpm data ...``: what there is, getting it, checking it, looking at it."""

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drpm.cli.completion import DATA_SETS, among
from drpm.cli.errors import one_sentence
from drpm.cli.help import PlainCommand, PlainGroup
from drpm.cli.options import Json, Seed
from drpm.cli.tables import print_table
from drpm.experiments.jobs import parse_options

if TYPE_CHECKING:
    from drpm.data.files import FileReport
    from drpm.data.types import Dataset, DatasetSpec

app = typer.Typer(
    cls=PlainGroup, no_args_is_help=True, help="List, fetch, check and show data sets."
)

Name = Annotated[
    str,
    typer.Argument(
        help="A data set; drpm data list names them.",
        metavar="NAME",
        autocompletion=among(DATA_SETS),
    ),
]
NameOrPath = Annotated[
    str,
    typer.Argument(
        help="A data set (drpm data list names them), or your own: a table or arrays in a .csv, "
        ".npy, .npz or .parquet file, or a folder of images.",
        metavar="DATA",
        autocompletion=among(DATA_SETS),
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-o", metavar="NAME=VALUE", help="An option of the data; may be repeated."
    ),
]


@app.command("list", cls=PlainCommand)
def list_sets(as_json: Json = False) -> None:
    """List the data sets, and whether they are at hand."""
    from drpm.data.registry import DATASETS

    entries = [_entry(spec) for spec in DATASETS.values()]
    if as_json:
        typer.echo(json.dumps(entries, indent=2))
        return
    print_table(
        ["Name", "At hand", "What it is", "Shapes"],
        [[entry[key] for key in ("name", "state", "title", "shapes")] for entry in entries],
    )


@app.command(cls=PlainCommand)
def fetch(name: Name, as_json: Json = False) -> None:
    """Find the files of a data set, compare them with their hashes, download what is missing.

    The exit code is 1 when a file is damaged, or cannot be had.
    """
    from drpm.data import files
    from drpm.data.registry import spec_of

    with one_sentence():
        spec = spec_of(name)
        # Before the download, which compares what it brings: large files are read only once.
        reports = [files.check(file) for file in spec.files]
        if damaged := [report for report in reports if report.state == "damaged"]:
            raise ValueError(files.damage_message(damaged, name, spec.instructions))
        paths = files.obtain(spec.files, instructions=spec.instructions)
    if as_json:
        typer.echo(json.dumps({file: str(path) for file, path in paths.items()}, indent=2))
        return
    for path in paths.values():
        typer.echo(path)
    if not spec.files:
        typer.echo(f"{name} needs no files.")


@app.command(cls=PlainCommand)
def check(name: Name, as_json: Json = False) -> None:
    """Compare the files of a data set with their hashes, and look at their structure.

    The exit code is 1 when a file is missing or damaged.
    """
    from drpm.data import files
    from drpm.data.registry import spec_of

    with one_sentence():
        spec = spec_of(name)
        reports = [files.check(file) for file in spec.files]
        damaged = [report for report in reports if report.state == "damaged"]
        missing = [report.file for report in reports if report.state == "missing"]
        if as_json:
            typer.echo(json.dumps([_report(report) for report in reports], indent=2))
        elif reports:
            print_table(
                ["File", "State", "What was found"],
                [[r.file.path, r.state, r.detail] for r in reports],
            )
        else:
            typer.echo(f"{name} needs no files.")
        if damaged or missing:
            faults = []
            if damaged:
                faults.append(files.damage_message(damaged, name, spec.instructions).rstrip("."))
            if missing:
                faults.append("files are missing")
            complaint = f"{name} cannot be used: {'; '.join(faults)}"
            if not missing:
                raise ValueError(f"{complaint}.")
            getting = spec.instructions or f"drpm data fetch {name} downloads them"
            raise ValueError(files.missing_message(missing, complaint, getting))
        if spec.inspect is not None:
            spec.inspect()


@app.command(cls=PlainCommand)
def show(
    name: NameOrPath,
    out: Annotated[
        Path | None, typer.Option(help="The picture to write.", show_default="out/data/NAME.png")
    ] = None,
    part: Annotated[str, typer.Option(help="The part to show: train or test.")] = "train",
    seed: Seed = 0,
    option: Options = None,
    as_json: Json = False,
) -> None:
    """Draw a contact sheet of a data set, and say what is in it."""
    with one_sentence():
        options = parse_options(option or [])
        from drpm.data.registry import DATASETS, load
        from drpm.data.sheets import contact_sheet, refuse_other_formats

        spec = DATASETS.get(name)
        # A folder named "." or ending in a slash still has a name of its own.
        stem = name if spec else Path(name).expanduser().resolve().stem
        path = out or Path("out/data") / f"{stem}.png"
        refuse_other_formats(path)  # before a large set is loaded in vain
        dataset = load(name, seed=seed, **{**(spec.sheet_options if spec else {}), **options})
        contact_sheet(dataset, path, part=part, title=stem)
    facts = {
        "name": dataset.name,
        "input_shape": list(dataset.input_shape),
        "train": _full_size(spec, options, "num_train", len(dataset.train)),
        "test": _full_size(spec, options, "num_test", len(dataset.test)),
        "split": dataset.test is not dataset.train,
        "targets": {t: len(dataset.classes.get(t, ())) or None for t in dataset.train.targets},
        "picture": str(path),
    }
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    typer.echo(f"{name}: {spec.shapes if spec else _sizes(dataset)}.")
    for target in dataset.train.targets:
        classes = dataset.classes.get(target, ())
        typer.echo(f"  {target}: {_few(classes)}" if classes else f"  {target}: numbers")
    typer.echo(f"Picture: {path}")


def _entry(spec: "DatasetSpec") -> dict[str, Any]:
    from drpm.data.files import find

    needed = [file for file in spec.files if not file.optional]
    found = [file for file in needed if find(file) is not None]
    if len(found) == len(needed):
        state = "yes"
    elif found:
        state = f"{len(found)} of {len(needed)} files"
    else:
        state = "no"
    return {
        "name": spec.name,
        "state": state,
        "title": spec.title,
        "shapes": spec.shapes,
        "licence": spec.licence,
        "source": spec.source,
        "options": list(spec.options),
        "files": [file.path for file in spec.files],
    }


def _full_size(
    spec: "DatasetSpec | None", given: Mapping[str, Any], option: str, loaded: int
) -> int:
    """How many examples a part has, where only a few of them were made for the sheet."""
    if spec is None or option in given or option not in spec.sheet_options:
        return loaded
    return int(inspect.signature(spec.load).parameters[option].default)


def _report(report: "FileReport") -> dict[str, str | None]:
    return {
        "file": report.file.path,
        "path": None if report.path is None else str(report.path),
        "state": report.state,
        "detail": report.detail,
    }


def _sizes(dataset: "Dataset") -> str:
    shape = "x".join(map(str, dataset.input_shape))
    split = "no split" if dataset.test is dataset.train else f"{len(dataset.test):,} to test on"
    return f"{len(dataset.train):,} inputs of {shape}, {split}"


def _few(names: Sequence[str], most: int = 10) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more

"""The commands ``drpm data ...``: list, fetch, check and show data sets."""

import json
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated

import typer

from drpm.cli.common import (
    Json,
    NameOrPath,
    Options,
    Seed,
    complete_from,
    exit_on_error,
    print_table,
)
from drpm.data.catalogue import DATASETS, load, loader_options, spec_of
from drpm.experiments import parse_options

if TYPE_CHECKING:
    from drpm.data.types import Dataset

app = typer.Typer(no_args_is_help=True, help="List, fetch, check and show data sets.")

Name = Annotated[
    str,
    typer.Argument(
        help="A data set; see drpm data list.",
        metavar="NAME",
        autocompletion=complete_from(DATASETS),
    ),
]


@app.command("list")
def list_sets(as_json: Json = False) -> None:
    """List the data sets and whether their files are available."""
    from drpm.data.files import find

    states = {}
    for name, spec in DATASETS.items():
        found = sum(find(file) is not None for file in spec.files)
        some = f"{found} of {len(spec.files)} files" if found else "no"
        states[name] = "yes" if found == len(spec.files) else some
    if as_json:
        # Imports the loaders, and with them torch, to list their options.
        facts = [
            {
                "name": name,
                "state": states[name],
                **{key: getattr(spec, key) for key in ("title", "shapes", "license", "source")},
                "options": list(loader_options(spec.load)),
                "files": [file.path for file in spec.files],
            }
            for name, spec in DATASETS.items()
        ]
        typer.echo(json.dumps(facts, indent=2))
        return
    rows = [[name, states[name], spec.title, spec.shapes] for name, spec in DATASETS.items()]
    print_table(["Name", "Available", "Description", "Size (training + test)"], rows)


@app.command()
def fetch(name: Name, as_json: Json = False) -> None:
    """Download the missing files of a data set, and check all of them.

    The exit code is 1 if a file is damaged or cannot be downloaded.
    """
    from drpm.data.files import obtain

    with exit_on_error():
        spec = spec_of(name)
        obtain(spec.files, instructions=spec.instructions)
    check(name, as_json)


@app.command()
def check(name: Name, as_json: Json = False) -> None:
    """Verify the hashes of the files of a data set and, without a hash, their structure.

    The exit code is 1 if a file is missing or damaged.
    """
    from drpm.data import files

    with exit_on_error():
        spec = spec_of(name)
        reports = [files.check(file) for file in spec.files]
        if as_json:
            facts = [{**report._asdict(), "file": report.file.path} for report in reports]
            typer.echo(json.dumps(facts, indent=2, default=str))
        elif reports:
            states = [f"{x.state} ({x.detail})" if x.detail else x.state for x in reports]
            places = [str(x.path or x.file.path) for x in reports]
            print_table(["File", "State"], [*zip(places, states, strict=True)])
        else:
            typer.echo(f"{name} needs no files.")
        remedy = spec.instructions or f"run drpm data fetch {name}"
        if damaged := [report for report in reports if report.state == "damaged"]:
            faults = ", ".join(f"{report.path} is damaged ({report.detail})" for report in damaged)
            raise ValueError(f"{faults}; remove or replace the damaged files, then {remedy}.")
        if missing := [report.file.path for report in reports if report.state == "missing"]:
            place = files.destination(missing)
            raise ValueError(
                f"{len(missing)} of {len(reports)} files of {name} are missing; {place}; {remedy}."
            )
        if spec.inspector:
            resolve_name(spec.inspector)()


@app.command()
def show(
    name: NameOrPath,
    out: Annotated[
        Path | None, typer.Option(help="The image file to write.", show_default="out/data/NAME.png")
    ] = None,
    part: Annotated[str, typer.Option(help="The split to show: train or test.")] = "train",
    seed: Seed = 0,
    option: Options = None,
    as_json: Json = False,
) -> None:
    """Describe a data set, and draw examples."""
    with exit_on_error():
        options = parse_options(option or [])
        spec = DATASETS.get(name)
        # Resolve paths such as "." and "folder/".
        stem = name if spec else Path(name).expanduser().resolve().stem
        path = out or Path("out/data") / f"{stem}.png"
        if path.suffix.lower() != ".png":
            raise ValueError(f"--out must end with .png, but got {path}.")
        dataset = load(name, seed=seed, **{**(spec.sheet_options if spec else {}), **options})
        content = _contact_sheet(dataset, part, f"{stem}, {part}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    facts = {
        "name": dataset.name,
        "input_shape": list(dataset.input_shape),
        "train": len(dataset.train),
        "test": len(dataset.test),
        "split": dataset.test is not dataset.train,
        "targets": {t: len(dataset.classes.get(t, ())) or None for t in dataset.train.targets},
        "picture": str(path),
    }
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    shape, count = "x".join(map(str, dataset.input_shape)), f"{len(dataset.train):,}"
    if facts["split"]:
        count += f" training and {len(dataset.test):,} test"
    typer.echo(f"{name}: {count} examples of shape {shape}.")
    for target in dataset.train.targets:
        classes = dataset.classes.get(target, ("numbers",))
        more = f" and {len(classes) - 10} more" if len(classes) > 10 else ""
        typer.echo(f"  {target}: {', '.join(classes[:10])}{more}")
    typer.echo(f"Image: {path}")


def _contact_sheet(dataset: "Dataset", part: str, title: str) -> bytes:
    """Some images of each class, or histograms of the columns of a table, as a PNG file."""
    from matplotlib.figure import Figure

    from drpm.data.types import class_labels, class_names
    from drpm.report.plots import FigureSpec, draw, png

    if part not in ("train", "test"):
        raise ValueError(f"part must be 'train' or 'test', but got {part!r}.")
    split = dataset.train if part == "train" else dataset.test
    inputs, labels = split.inputs, class_labels(dataset, split)
    if inputs.dim() == 4:
        names = class_names(dataset)[:20]
        groups = [inputs[labels == label][:10] for label in range(len(names))]
        scale, shift = dataset.preprocessing.get("std", 1), dataset.preprocessing.get("mean", 0)
        images = [(x * scale + shift).clamp(0, 1) for x in groups or inputs[:60].split(10)]
        rows = [x.numpy() for x in images]
        return png(draw(FigureSpec("grid", "sheet", rows, names, (), title)))
    figure = Figure(figsize=(10, 8), layout="constrained")
    figure.suptitle(title)
    for index, column in enumerate(inputs[:, :24].T.numpy()):
        name = dataset.columns[index] if dataset.columns else f"column {index + 1}"
        figure.add_subplot(6, 4, index + 1, title=name).hist(column, bins=30)
    return png(figure)

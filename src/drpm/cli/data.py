"""The commands ``drpm data ...``: list, fetch, check and show data sets."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drpm.cli.common import (
    DATA_SETS,
    Json,
    NameOrPath,
    Options,
    Seed,
    among,
    one_sentence,
    print_table,
)
from drpm.experiments.base import parse_options

if TYPE_CHECKING:
    from drpm.data.files import FileReport
    from drpm.data.types import Dataset, DatasetSpec

app = typer.Typer(no_args_is_help=True, help="List, fetch, check and show data sets.")

Name = Annotated[
    str,
    typer.Argument(
        help="A data set; see drpm data list.",
        metavar="NAME",
        autocompletion=among(DATA_SETS),
    ),
]


@app.command("list")
def list_sets(as_json: Json = False) -> None:
    """List the data sets and whether their files are available."""
    from drpm.data.registry import DATASETS

    entries = [_entry(spec) for spec in DATASETS.values()]
    if as_json:
        typer.echo(json.dumps(entries, indent=2))
        return
    print_table(
        ["Name", "Available", "Description", "Shapes"],
        [[entry[key] for key in ("name", "state", "title", "shapes")] for entry in entries],
    )


@app.command()
def fetch(name: Name, as_json: Json = False) -> None:
    """Download the missing files of a data set, and verify the hashes of the others.

    The exit code is 1 if a file is damaged or cannot be downloaded.
    """
    from drpm.data import files
    from drpm.data.registry import spec_of

    with one_sentence():
        spec = spec_of(name)
        # Before the download, which compares hashes itself: large files are read only once.
        _refuse_damaged(spec, [files.check(file) for file in spec.files])
        paths = files.obtain(spec.files, instructions=spec.instructions)
    if as_json:
        typer.echo(json.dumps({file: str(path) for file, path in paths.items()}, indent=2))
        return
    for path in paths.values():
        typer.echo(path)
    if not spec.files:
        typer.echo(f"{name} needs no files.")


@app.command()
def check(name: Name, as_json: Json = False) -> None:
    """Verify the hashes of the files of a data set and, without a hash, their structure.

    The exit code is 1 if a file is missing or damaged.
    """
    from drpm.data import files
    from drpm.data.registry import spec_of

    with one_sentence():
        spec = spec_of(name)
        reports = [files.check(file) for file in spec.files]
        if as_json:
            facts = [
                {"file": r.file.path, "path": r.path, "state": r.state, "detail": r.detail}
                for r in reports
            ]
            typer.echo(json.dumps(facts, indent=2, default=str))
        elif reports:
            print_table(
                ["File", "State", "Result"], [[r.file.path, r.state, r.detail] for r in reports]
            )
        else:
            typer.echo(f"{name} needs no files.")
        _refuse_damaged(spec, reports)
        missing = [report.file for report in reports if report.state == "missing"]
        if missing:
            remedy = spec.instructions or f"drpm data fetch {name} downloads them"
            failure = f"Files of {name} are missing"
            raise ValueError(files.missing_message(missing, failure, remedy))
        if spec.inspect is not None:
            spec.inspect()


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
    with one_sentence():
        options = parse_options(option or [])
        from drpm.data.registry import DATASETS, load

        spec = DATASETS.get(name)
        # A folder named "." or ending in a slash still has a name of its own.
        stem = name if spec else Path(name).expanduser().resolve().stem
        path = out or Path("out/data") / f"{stem}.png"
        if path.suffix.lower() != ".png":
            raise ValueError(f"The image is a PNG file, so {path} must end in .png.")
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
    shape = "x".join(map(str, dataset.input_shape))
    split = f"{len(dataset.test):,} test inputs" if facts["split"] else "no split"
    typer.echo(f"{name}: {len(dataset.train):,} inputs of {shape}, {split}.")
    for target in dataset.train.targets:
        classes = dataset.classes.get(target, ("numbers",))
        more = f" and {len(classes) - 10} more" if len(classes) > 10 else ""
        typer.echo(f"  {target}: {', '.join(classes[:10])}{more}")
    typer.echo(f"Image: {path}")


def _contact_sheet(dataset: "Dataset", part: str, title: str) -> bytes:
    """Some images of each class, or histograms of the columns of a table, as a PNG file."""
    from matplotlib.figure import Figure

    from drpm.data.types import class_labels, class_names
    from drpm.report.plots import grid, png

    if part not in ("train", "test"):
        raise ValueError(f"part must be 'train' or 'test', but got {part!r}.")
    split = dataset.train if part == "train" else dataset.test
    inputs, labels = split.inputs, class_labels(dataset, split)
    if inputs.dim() == 4 and inputs.shape[1] in (1, 3):
        names = class_names(dataset)[:20]
        groups = [inputs[labels == label][:10] for label in range(len(names))] if names else []
        images = groups or list(inputs[:60].split(10))
        scale, shift = (dataset.preprocessing.get(name) for name in ("std", "mean"))
        images = [x * (1 if scale is None else scale) for x in images]
        images = [x + (0 if shift is None else shift) for x in images]
        return png(grid([x.clamp(0, 1).numpy() for x in images], names, (), title))
    if inputs.dim() != 2:
        raise ValueError(
            f"{dataset.name} has inputs of shape {tuple(inputs.shape[1:])}, which are neither "
            "images of 1 or 3 channels nor rows of a table."
        )
    figure = Figure(figsize=(10, 8), layout="constrained")
    figure.suptitle(title)
    for index, column in enumerate(inputs[:, :24].T.numpy()):
        name = dataset.columns[index] if dataset.columns else f"column {index + 1}"
        figure.add_subplot(6, 4, index + 1, title=name).hist(column, bins=30)
    return png(figure)


def _entry(spec: "DatasetSpec") -> dict[str, Any]:
    from drpm.data.files import find

    found = sum(find(file) is not None for file in spec.files)
    state = f"{found} of {len(spec.files)} files" if found else "no"
    return {
        "name": spec.name,
        "state": "yes" if found == len(spec.files) else state,
        "title": spec.title,
        "shapes": spec.shapes,
        "licence": spec.licence,
        "source": spec.source,
        "options": list(spec.options),
        "files": [file.path for file in spec.files],
    }


def _refuse_damaged(spec: "DatasetSpec", reports: list["FileReport"]) -> None:
    damaged = [report for report in reports if report.state == "damaged"]
    if damaged:
        faults = ", ".join(f"{report.path} is damaged ({report.detail})" for report in damaged)
        remedy = spec.instructions or f"then run drpm data fetch {spec.name}"
        raise ValueError(f"{faults}; remove or replace the damaged files: {remedy}.")

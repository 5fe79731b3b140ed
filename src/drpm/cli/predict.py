"""The command ``drpm predict``: the clusters of new data."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drpm.cli.common import Json, NameOrPath, Options, exit_on_error, print_table
from drpm.data.catalogue import DATASETS, file_names, load
from drpm.experiments import parse_options

if TYPE_CHECKING:
    from torch import Tensor

    from drpm.clustering.fitted import FittedClustering
    from drpm.data.types import Dataset


def predict(
    run: Annotated[
        Path, typer.Argument(help="The folder of a finished run of drpm cluster.", metavar="RUN")
    ],
    data: NameOrPath,
    out: Annotated[
        Path | None, typer.Option(help="The CSV file to write.", show_default="NAME-labels.csv")
    ] = None,
    option: Options = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file, if there is one.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Assign new data to the clusters of a run.

    Writes the cluster of every example and its probability. The model scales
    the data as in training, so tables must be in the same units.
    """
    with exit_on_error():
        options = parse_options(option or [])
        import torch

        from drpm.clustering.experiment import label_table
        from drpm.clustering.fitted import load_clustering
        from drpm.training.checkpoint import write_atomic

        stem = data if data in DATASETS else Path(data).expanduser().resolve().stem
        path = out or Path(f"{stem}-labels.csv")
        if path.exists() and not overwrite:
            raise ValueError(f"{path} already exists: choose another file or add --overwrite.")
        folder = _model_folder(run)
        model = load_clustering(folder)
        log_probs = _predict(model, load(data, True, **options), data)
        labels = {name: part.argmax(-1) for name, part in log_probs.items()}
        files = file_names(data, sum(map(len, labels.values())))
        content = label_table(log_probs, labels, files)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content.encode())
        confidence = torch.cat([*log_probs.values()]).exp()
    clusters, rows = [], []
    for cluster in range(model.clusters):
        own = confidence[confidence.argmax(-1) == cluster, cluster]
        mean = own.mean().item() if len(own) else None
        clusters.append({"cluster": cluster, "examples": len(own), "mean_confidence": mean})
        rows.append([f"{cluster}", f"{len(own):,}", "-" if mean is None else f"{mean:.3f}"])
    if as_json:
        facts = {"model": str(folder), "data": data, "clusters": clusters, "labels": str(path)}
        typer.echo(json.dumps(facts, indent=2))
        return
    print_table(["Cluster", "Examples", "Mean confidence"], rows)
    if "limits" in model.facts:
        typer.echo("Size limits apply only to the rows that the run was fitted to.")
    typer.echo(f"Labels: {path}")


def _model_folder(run: Path) -> Path:
    from drpm.training.runs import CONFIG, RunFolder

    seeds = sorted(path.parent for path in run.glob(f"seed-*/{CONFIG}"))
    if seeds and not (run / CONFIG).exists():
        raise ValueError(f"{run} has several runs: choose one of {', '.join(map(str, seeds))}.")
    return RunFolder.open_finished(run).model_dir


def _predict(model: "FittedClustering", data: "Dataset", name: str) -> "dict[str, Tensor]":
    """Log-probabilities by split; the key is empty if there is only one split."""
    from drpm.clustering.experiment import column_names, predict_splits
    from drpm.data.own import listed
    from drpm.data.types import Split, scale_of

    names, found = list(model.facts.get("names", ())), column_names(data)
    order: Any = slice(None)
    if names and found:
        faults = {
            "lacks": [column for column in names if column not in found],
            "also has": [column for column in found if column not in names],
        }
        if texts := [f"{verb} {listed(which)}" for verb, which in faults.items() if which]:
            raise ValueError(f"{name} must have the columns of the run, but {' and '.join(texts)}.")
        order = [found.index(column) for column in names]
    shape, given = model.shape, data.input_shape
    # Gray images are loaded with one channel, even if the run had three.
    if given != shape and not (len(shape) == 3 and given == (1, *shape[1:])):
        raise ValueError(
            f"{name} must have inputs of shape {tuple(shape)}, like the run, but got "
            f"{tuple(given)}."
        )
    # Undo the scaling of data sets; tables are loaded unscaled.
    shift, scale = scale_of(data)
    units = replace(model, shape=given, shift=shift, scale=scale)
    train, test = (
        Split(model.to_rows(units.from_rows(inputs.flatten(1))[:, order].expand(-1, *shape)))
        for inputs in (data.train.inputs, data.test.inputs)
    )
    if data.test is data.train:
        return {"": predict_splits(model, replace(data, train=train, test=train))["train"]}
    return predict_splits(model, replace(data, train=train, test=test))

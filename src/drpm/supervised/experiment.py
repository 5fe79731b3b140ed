"""Supervised partitions as an experiment."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import confusion_matrix
from torch import Tensor

from drpm.data import load
from drpm.data.registry import content_hash, file_names
from drpm.data.types import Dataset, Split, class_target, scale_of, split_rows, with_test_part
from drpm.experiments.base import Evaluation, Experiment, parse_options
from drpm.report.plots import FigureSpec, pack_figures
from drpm.supervised.config import SupervisedJob
from drpm.supervised.models import (
    EvaluatedBatches,
    Partitioner,
    TrainedPartitioner,
    batch_sizes,
    check_labels,
    fit_partitioner,
    split,
)
from drpm.training.config import require_classes
from drpm.training.devices import Devices
from drpm.training.errors import ConfigError
from drpm.training.loop import ProgressFactory
from drpm.training.runs import RunFolder

LABELS: Final = "labels.csv"

MAX_CLASSES: Final = 40  # in a figure
MAX_IMAGES: Final = 16  # of a subset in a figure
MAX_BATCHES: Final = 8  # in a figure


class LabelledData(NamedTuple):
    """A data set and the classes to learn.

    Args:
        dataset: The data set, with a test part.
        target: The target that is the class.
        names: Names of the classes.
        is_split: Whether the test part was split off here.
    """

    dataset: Dataset
    target: str
    names: tuple[str, ...]
    is_split: bool = False

    def labels(self, part: Split) -> Tensor:
        return part.targets[self.target]

    def rows(self) -> tuple[Tensor, Tensor]:
        """Row numbers of the training part and of the test part in the data as it was read."""
        taught, tested = len(self.dataset.train), len(self.dataset.test)
        if self.is_split:
            return split_rows(taught + tested)
        return torch.arange(taught), torch.arange(tested)


def find_classes(dataset: Dataset, target: str | None = None) -> LabelledData:
    """The classes of a data set; a fifth of it becomes the test part if it has none.

    Args:
        dataset: The data set.
        target: The target that is the class; by default ``label``, or else the first.
    """
    parts = (dataset.train, dataset.test)
    known = [name for name in dataset.classes if all(name in part.targets for part in parts)]
    chosen = class_target(dataset) if target is None else target
    if chosen not in known:
        if target is not None and known:
            raise ConfigError(
                f"target must be one of {', '.join(map(repr, known))}, but got {target!r}."
            )
        raise ConfigError(
            f"data must have a class for every element, but {dataset.name!r} has none."
        )
    if len(dataset.classes[chosen]) < 2:
        raise ConfigError(f"data must have two classes or more, but {dataset.name!r} has one.")
    is_split = dataset.train is dataset.test
    return LabelledData(with_test_part(dataset), chosen, tuple(dataset.classes[chosen]), is_split)


class Supervised(Experiment[SupervisedJob, LabelledData, TrainedPartitioner]):
    """Batches of labelled elements, partitioned into their classes."""

    scores: ClassVar[Mapping[str, str]] = {
        "f1": "F1",
        "accuracy": "ACC",
        "size_error": "Size error",
    }
    digits: ClassVar[int] = 4
    outputs: ClassVar[tuple[str, ...]] = ("training", LABELS)

    def load(self, job: SupervisedJob, device: torch.device) -> LabelledData:
        return find_classes(load(job.data, device=device, **parse_options(job.options)), job.target)

    def fingerprint(self, job: SupervisedJob, data: LabelledData) -> str:
        return content_hash(job.data, data.dataset)

    def check(self, job: SupervisedJob, data: LabelledData) -> list[str]:
        train, test, classes = data.dataset.train, data.dataset.test, len(data.names)
        check_labels(train.inputs, data.labels(train), classes)
        require_classes("labels of the test split", data.labels(test), len(test), classes)
        rows, _ = split(len(train), job.supervised)
        found = []
        if job.target is None and len(data.dataset.classes) > 1:
            targets = ", ".join(data.dataset.classes)
            found.append(f"The target is {data.target!r}; --target chooses among {targets}.")
        taught = torch.bincount(data.labels(train).cpu()[rows], minlength=classes)
        if missing := int((taught == 0).sum()):
            found.append(f"{missing} of the {classes} classes have no elements to train on.")
        return found

    def train(
        self,
        jobs: Sequence[SupervisedJob],
        data: LabelledData,
        folders: Sequence[Path],
        devices: Devices,
        progress: ProgressFactory,
    ) -> list[TrainedPartitioner]:
        train = data.dataset.train
        return [
            fit_partitioner(
                train.inputs,
                data.labels(train),
                len(data.names),
                job.supervised,
                folder,
                device=devices.device,
                progress=progress,
            )
            for job, folder in zip(jobs, folders, strict=True)
        ]

    def evaluate(
        self,
        job: SupervisedJob,
        model: TrainedPartitioner,
        data: LabelledData,
        run: RunFolder,
        progress: ProgressFactory,
    ) -> Evaluation:
        train, test = data.dataset.train, data.dataset.test
        fitted = model.model
        evaluated = fitted.evaluate(test.inputs, data.labels(test))
        labels = label_table(fitted, data, file_names(job.data, len(train) + len(test)))
        if len(fitted.shape) == 1:
            # The saved model takes rows of a table as they are in its file.
            fitted.shift, fitted.scale = scale_of(data.dataset)
        fitted.save(run.model_dir)
        about = ["Scores on the test split after the last epoch."]
        if model.f1:
            about.append(
                f"The weight of the size term, {model.size_weight:g}, is the candidate with the "
                f"best F1 score on {model.held_out:,} held-out training elements."
            )
        described = {
            "name": data.dataset.name,
            "target": data.target,
            "examples": len(train),
            "test examples": len(test),
            "batch size": min(job.supervised.training.batch_size, len(train) - model.held_out),
        }
        selection = {
            "size_weight": model.size_weight,
            "held_out": model.held_out,
            "scores": [
                {"size_weight": weight, "seed": job.seed, "f1": f1}
                for weight, f1 in model.f1.items()
            ],
        }
        return Evaluation(
            evaluated.scores._asdict(),
            figure_data(evaluated, test.inputs, data.labels(test), data.names),
            [model.folder],
            {LABELS: labels},
            {
                "about": " ".join([*about, *self.check(job, data)]),
                "data": described,
                "names": self.scores,
                "selection": selection,
            },
        )

    def title(self, job: SupervisedJob, data: LabelledData) -> str:
        return f"{data.dataset.name}: supervised partitioning"

    def describe(self, results: Sequence[Mapping[str, Any]]) -> Sequence[str]:
        selections = [result["selection"] for result in results]
        if not selections[0]["scores"]:
            return ()
        weights = ", ".join(f"{selection['size_weight']:g}" for selection in selections)
        return (f"Weight of the size term, chosen on held-out elements: {weights}",)


def label_table(model: Partitioner, data: LabelledData, files: Sequence[str]) -> str:
    """The class and the predicted subset of every element, as a CSV file.

    Args:
        model: The model.
        data: The data.
        files: The file of every row, where rows are images of a folder.
    """
    names, tables = np.array(data.names), []
    parts = {"train": data.dataset.train, "test": data.dataset.test}
    for (name, part), rows in zip(parts.items(), data.rows(), strict=True):
        evaluated = model.evaluate(part.inputs, data.labels(part))
        columns = {
            "split": name,
            "index": rows[evaluated.order],
            "class": names[data.labels(part).cpu()[evaluated.order]],
            "subset": names[evaluated.subsets],
            "batch": evaluated.batch,
        }
        tables.append(pd.DataFrame(columns).sort_values("index"))
    table = pd.concat(tables)
    if data.is_split:  # parts of one file come in the order of the file
        table = table.sort_values("index")
        if files:
            table["file"] = files
    text: str = table.to_csv(index=False, lineterminator="\n")
    return text


def figure_data(
    evaluated: EvaluatedBatches, elements: Tensor, labels: Tensor, names: Sequence[str]
) -> bytes:
    """The arrays of the figures, as a packed archive.

    Args:
        evaluated: The predictions for the test set.
        elements: (N, *shape), the test set.
        labels: (N,), its classes.
        names: The names of the classes.
    """
    classes = len(names)
    if classes > MAX_CLASSES:
        return pack_figures([])
    labels = labels.cpu()[evaluated.order]
    shares = confusion_matrix(labels, evaluated.subsets, labels=range(classes), normalize="true")
    sizes = [
        batch_sizes(evaluated.batch, x, classes)[:MAX_BATCHES] for x in (evaluated.subsets, labels)
    ]
    specs = [
        FigureSpec(
            "matrix",
            "classes",
            shares,
            names,
            names,
            "Predicted subsets of every class",
            "The fraction of every class (rows) in every subset, over all test batches: "
            f"{evaluated.scores.accuracy:.1%} of the elements are in the right one.",
        ),
        FigureSpec(
            "matrix",
            "sizes-error",
            (sizes[0] - sizes[1]).double().numpy(),
            [f"batch {b}" for b in range(len(sizes[0]))],
            names,
            "Predicted minus true sizes",
            "The error of the predicted size of every subset, in some test batches; over all of "
            f"them the mean absolute error is {evaluated.scores.size_error:.2f}.",
        ),
    ]
    if elements.dim() == 4:
        specs.insert(0, _subsets_of_a_batch(evaluated, elements, names))
    return pack_figures(specs)


def _subsets_of_a_batch(
    evaluated: EvaluatedBatches, images: Tensor, names: Sequence[str]
) -> FigureSpec:
    """The images of the first batch, one row for each subset."""
    first = evaluated.batch == 0
    order, subsets = evaluated.order[first], evaluated.subsets[first]
    members = [order[subsets == subset] for subset in range(len(names))]
    most = min(MAX_IMAGES, max(map(len, members)))
    rows = torch.ones(len(names), most, *images.shape[1:])  # white, as the page
    for row, own in zip(rows, members, strict=True):
        shown = images[own[:most].to(images.device)]
        row[: len(shown)] = shown.cpu()
    pixels = (255 * rows.clamp(0, 1)).round().to(torch.uint8)
    return FigureSpec(
        "grid",
        "subsets",
        (pixels.squeeze(2) if pixels.shape[2] == 1 else pixels).numpy(),
        [f"{name}: {len(own)}" for name, own in zip(names, members, strict=True)],
        (),
        "The partition of a test batch",
        f"One test batch of {len(order)} images: a row for each subset with its predicted size, "
        f"of which up to {MAX_IMAGES} images are shown.",
    )

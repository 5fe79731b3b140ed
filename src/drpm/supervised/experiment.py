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
from drpm.data.catalogue import content_hash, file_names
from drpm.data.types import Dataset, class_target, scale_of, split_rows, with_test_part
from drpm.experiments import Evaluation, Experiment, parse_options
from drpm.report.plots import FigureSpec, image_bytes, pack_figures
from drpm.supervised import models
from drpm.supervised.config import SupervisedJob
from drpm.supervised.models import EvaluatedBatches, TrainedPartitioner
from drpm.training.errors import ConfigError
from drpm.training.loop import ProgressFactory
from drpm.training.runs import LABELS, RunFolder

SCORES: Final = {"f1": "F1", "accuracy": "ACC", "size_error": "Size error"}
_ABOUT: Final = (
    "Scores on the test split after the last epoch. With several weights of the size term, the one "
    "with the best F1 score on a held-out part of the training set is kept."
)
MAX_IMAGES: Final = 16  # of a subset in a figure
MAX_BATCHES: Final = 8  # in a figure


class LabeledData(NamedTuple):
    """A data set with a test part, and the target to learn."""

    dataset: Dataset
    target: str
    is_split: bool = False  # whether the test part was split off here

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.dataset.classes[self.target]

    @property
    def parts(self) -> dict[str, tuple[Tensor, Tensor]]:
        """The elements and classes of both parts."""
        parts = {"train": self.dataset.train, "test": self.dataset.test}
        return {name: (part.inputs, part.targets[self.target]) for name, part in parts.items()}


def find_classes(dataset: Dataset, target: str | None = None) -> LabeledData:
    """Choose the target, by default ``label`` or else the first target with classes.

    Holds out a fifth of the data if there is no test split.
    """
    parts = (dataset.train, dataset.test)
    known = [name for name in dataset.classes if all(name in part.targets for part in parts)]
    chosen = class_target(dataset) if target is None else target
    if chosen not in known:
        raise ConfigError(
            f"target must be one with a class for every element of {dataset.name!r} "
            f"({', '.join(known) or 'it has none'}), but got {chosen!r}."
        )
    if len(dataset.classes[chosen]) < 2:
        raise ConfigError(f"data must have two classes or more, but {dataset.name!r} has one.")
    return LabeledData(with_test_part(dataset), chosen, dataset.train is dataset.test)


class Supervised(Experiment[SupervisedJob, LabeledData, TrainedPartitioner]):
    """Batches of labeled elements, partitioned into their classes."""

    scores: ClassVar[Mapping[str, str]] = SCORES
    outputs: ClassVar[tuple[str, ...]] = ("training", LABELS)

    def load(self, job: SupervisedJob, device: torch.device) -> LabeledData:
        return find_classes(load(job.data, device=device, **parse_options(job.options)), job.target)

    def fingerprint(self, job: SupervisedJob, data: LabeledData) -> str:
        return content_hash(job.data, data.dataset)

    def check(self, job: SupervisedJob, data: LabeledData) -> list[str]:
        (elements, labels), classes, found = data.parts["train"], len(data.names), []
        models.check_labels(elements, labels, classes)
        if job.target is None and len(data.dataset.classes) > 1:
            targets = ", ".join(data.dataset.classes)
            found.append(f"The target is {data.target!r}; --target chooses among {targets}.")
        rows, _ = models.split(len(labels), job.supervised)
        if missing := classes - len(labels.cpu()[rows].unique()):
            found.append(f"{missing} of the {classes} classes have no elements to train on.")
        return found

    def fit(
        self, job: SupervisedJob, data: LabeledData, folder: Path, **options: Any
    ) -> TrainedPartitioner:
        examples, classes = data.parts["train"], len(data.names)
        return models.fit_partitioner(*examples, classes, job.supervised, folder, **options)

    def evaluate(
        self,
        job: SupervisedJob,
        model: TrainedPartitioner,
        data: LabeledData,
        run: RunFolder,
        progress: ProgressFactory,
    ) -> Evaluation:
        fitted, trained_on = model.model, len(data.dataset.train)
        found = {name: fitted.evaluate(*part) for name, part in data.parts.items()}
        labels = label_table(found, data, file_names(job.data, trained_on + len(data.dataset.test)))
        if len(fitted.shape) == 1:
            # The saved model takes unscaled rows of a table.
            fitted.shift, fitted.scale = scale_of(data.dataset)
        fitted.save(run.model_dir)
        run.write_atomic(LABELS, labels)
        run.copy_stage_metrics([model.folder])
        scores = [{"size_weight": x, "seed": job.seed, "f1": f1} for x, f1 in model.f1.items()]
        selection = {"size_weight": model.size_weight, "held_out": model.held_out}
        facts = {
            "about": " ".join([_ABOUT, *self.check(job, data)]),
            "data": {
                "name": data.dataset.name,
                "target": data.target,
                "examples": trained_on,
                "test examples": len(data.dataset.test),
                "batch size": min(job.supervised.training.batch_size, trained_on - model.held_out),
            },
            "names": self.scores,
            "selection": {**selection, "scores": scores},
        }
        metrics, figures = found["test"].scores._asdict(), figure_data(found["test"], data)
        return Evaluation(metrics, figures, facts)

    def title(self, job: SupervisedJob, data: LabeledData) -> str:
        return f"{data.dataset.name}: supervised partitioning"


def label_table(
    found: Mapping[str, EvaluatedBatches], data: LabeledData, files: Sequence[str]
) -> str:
    """The class and the predicted subset of every element as CSV, with the file names of images."""
    names, tables = np.array(data.names), []
    counts = [len(part.order) for part in found.values()]
    rows = split_rows(sum(counts)) if data.is_split else map(torch.arange, counts)
    for (name, part), numbers in zip(found.items(), rows, strict=True):
        columns = {
            "split": name,
            "index": numbers[part.order],
            "class": names[data.parts[name][1].cpu()[part.order]],
            "subset": names[part.subsets],
            "batch": part.batch,
        }
        tables.append(pd.DataFrame(columns).sort_values("index"))
    table = pd.concat(tables)
    if data.is_split:  # restore the order of the file
        table = table.sort_values("index")
        if files:
            table["file"] = files
    text: str = table.to_csv(index=False, lineterminator="\n")
    return text


def figure_data(found: EvaluatedBatches, data: LabeledData) -> bytes:
    """All figures of the predictions for the test set, as an npz archive."""
    (elements, labels), names = data.parts["test"], data.names
    classes, specs, labels = len(names), [], labels.cpu()[found.order]
    if elements.dim() == 4:
        specs.append(_draw_batch(found, elements, names))
    shares = confusion_matrix(labels, found.subsets, labels=range(classes), normalize="true")
    title = "Predicted subsets of every class"
    about = (
        "The fraction of every class (rows) in every subset, over all test batches: "
        f"{found.scores.accuracy:.1%} of the elements are in the right one."
    )
    specs.append(FigureSpec("matrix", "classes", shares, names, names, title, about))
    sizes = (models.batch_sizes(found.batch, x, classes) for x in (found.subsets, labels))
    errors = torch.sub(*sizes)[:MAX_BATCHES].double().numpy()
    batches = [f"batch {index}" for index in range(len(errors))]
    title = "Predicted minus true sizes"
    about = (
        "The error of the predicted size of every subset, in some test batches; over all of "
        f"them the mean absolute error is {found.scores.size_error:.2f}."
    )
    specs.append(FigureSpec("matrix", "sizes-error", errors, batches, names, title, about))
    return pack_figures(specs)


def _draw_batch(found: EvaluatedBatches, images: Tensor, names: Sequence[str]) -> FigureSpec:
    """The images of the first batch, one row for each subset."""
    order, subsets = (x[found.batch == 0] for x in (found.order, found.subsets))
    members = [order[subsets == subset] for subset in range(len(names))]
    most = min(MAX_IMAGES, max(map(len, members)))
    rows = torch.ones(len(names), most, *images.shape[1:])  # white, as the page
    for row, own in zip(rows, members, strict=True):
        shown = images[own[:most].to(images.device)]
        row[: len(shown)] = shown.cpu()
    titles = [f"{name}: {len(own)}" for name, own in zip(names, members, strict=True)]
    about = (
        f"One test batch of {len(order)} images: a row for each subset with its predicted size, "
        f"of which up to {MAX_IMAGES} images are shown."
    )
    title = "The partition of a test batch"
    return FigureSpec("grid", "subsets", image_bytes(rows), titles, (), title, about)

"""One model of supervised partitions, with everything a person wants to see of it, in a folder."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from drpm.data.preprocessing import class_target, scale_of, split_rows, with_test_part
from drpm.data.registry import file_names
from drpm.data.types import Dataset, Split
from drpm.supervised.choosing import describe_choice
from drpm.supervised.config import SupervisedConfig
from drpm.supervised.drawn import draw_arrays
from drpm.supervised.fitted import FittedPartitioner
from drpm.supervised.labels import LABELS, JudgedPart, label_table
from drpm.supervised.pipeline import STAGE, Selection, check_labels, fit_partitioners, split
from drpm.training import config as configs
from drpm.training.checks import require_classes
from drpm.training.errors import ConfigError
from drpm.training.runs import ARRAYS, RunFolder
from drpm.training.stages import ProgressFactory, hold_runs, open_run

# What people call the scores.
SCORES: Final = {"f1": "F1", "accuracy": "ACC", "size_error": "Error of sizes"}

_ABOUT: Final = "Scores are those of the test part, after the last epoch."


@dataclass(frozen=True)
class Job:
    """What is needed to do it again.

    Arguments:
        data: The name of a data set, or a file.
        options: Further options of the data, as ``name=value``.
        fingerprint: What the data is known by, where its name says too little.
        supervised: The settings.
        target: Which of the data's targets is the class, where that was chosen.
    """

    data: str = "digits"
    options: tuple[str, ...] = ()
    fingerprint: str = ""
    supervised: SupervisedConfig = field(default_factory=SupervisedConfig)
    target: str | None = None


class LabelledData(NamedTuple):
    """What is learnt from, and judged on.

    Arguments:
        dataset: The data set.
        target: Which of its targets is the class.
        names: Those of the classes.
        parted: Whether its test part was taken from it here, because it has none of its own.
    """

    dataset: Dataset
    target: str
    names: tuple[str, ...]
    parted: bool = False

    def labels(self, part: Split) -> Tensor:
        return part.targets[self.target]

    def places(self) -> tuple[Tensor, Tensor]:
        """Where the elements of the training part and of the test part lie in what was read."""
        taught, tested = len(self.dataset.train), len(self.dataset.test)
        if self.parted:
            return split_rows(taught + tested)
        return torch.arange(taught), torch.arange(tested)


def find_classes(dataset: Dataset, target: str | None = None) -> LabelledData:
    """The classes of a data set, which is refused where it has none.

    Where there is no test part, a fifth is taken for one.

    Arguments:
        dataset: The data set.
        target: Which of its targets is the class; where it is None, ``label``, or else the first.
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
    parted = dataset.train is dataset.test
    names = tuple(dataset.classes[chosen])
    return LabelledData(with_test_part(dataset), chosen, names, parted)


def check_job(job: Job, data: LabelledData) -> None:
    """Refuse what cannot be done, before anything is written."""
    train, test = data.dataset.train, data.dataset.test
    check_labels(train.inputs, data.labels(train), len(data.names))
    require_classes("labels of the test part", data.labels(test), len(test), len(data.names))
    split(len(train), job.supervised)


def cautions(job: Job, data: LabelledData) -> list[str]:
    """What a person should know of data that is learnt from all the same, in a sentence each."""
    found = []
    classes, train, test = len(data.names), data.dataset.train, data.dataset.test
    asked, used = job.supervised.training.batch_size, _batch_size(job, data)
    if used < asked:
        found.append(
            f"training.batch_size is {asked:,}, but there are {used:,} elements to learn from, so "
            "that every batch has all of them."
        )
    rows, _ = split(len(train), job.supervised)
    taught, tested = (
        torch.bincount(labels, minlength=classes)
        for labels in (data.labels(train).cpu()[rows], data.labels(test))
    )
    if unknown := int((taught == 0).sum()):
        found.append(f"There is nothing to learn from of {unknown} of the {classes} classes.")
    if few := int((tested < 2).sum()):
        found.append(
            "The scores say little, because the test part has fewer than two elements of "
            f"{few} of the {classes} classes."
        )
    return found


def open_job(folder: Path, job: Job, *, overwrite: bool = False) -> RunFolder:
    """The folder of a job, new if there is none; one with other settings is refused."""
    return open_run(folder, configs.dumps(job), overwrite=overwrite, made=(STAGE, LABELS))


def do_jobs(
    jobs: Sequence[Job],
    data: LabelledData,
    runs: Sequence[RunFolder],
    *,
    commands: Sequence[Sequence[str]],
    progress: ProgressFactory = lambda stage: None,
) -> list[dict[str, Any]]:
    """Do jobs that differ in their seeds alone, trained together where there are several.

    Arguments:
        jobs: One for each seed.
        data: What is learnt from; it lies where it is to be learnt.
        runs: The folder of every job. One that is finished stays as it is.
        commands: What does each of them again.
        progress: From the name of a stage to whoever shows how far it is.

    Returns:
        The results as the folders' ``result.json`` have them.
    """
    seeds = [job.supervised.training.seed for job in jobs]
    train = data.dataset.train
    for job in jobs:
        check_job(job, data)
    files = _file_names(jobs[0], data)
    with hold_runs(runs):
        fitted = fit_partitioners(
            train.inputs,
            data.labels(train),
            len(data.names),
            jobs[0].supervised,
            [run.path for run in runs],
            seeds=seeds,
            device=train.inputs.device,
            progress=progress,
        )
        selection = _describe(fitted.selection, fitted.chosen_by)
        choice = [told] if (told := describe_choice(selection)) else []
        for place, (job, run, command) in enumerate(zip(jobs, runs, commands, strict=True)):
            if run.status == "finished":
                continue
            model = fitted.models[place]
            model.model.config = job.supervised
            run.take_metrics(fitted.folders[place])
            facts = {
                "command": list(command),
                "stacked": seeds,
                "selection": selection,
                "about": " ".join([_ABOUT, *choice, *cautions(job, data)]),
                "names": SCORES,
            }
            _conclude(job, model, data, run, files, facts)
    return [run.result() for run in runs]


def _describe(selection: Selection, seeds: Sequence[int]) -> dict[str, Any]:
    """How the weight was chosen, as a table."""
    table = [
        {"size_weight": weight, "seed": seed, "f1": score}
        for weight, scores in selection.f1.items()
        for seed, score in zip(seeds, scores, strict=True)
    ]
    return {
        "size_weight": selection.size_weight,
        "held_out": selection.held_out,
        "scores": table,
    }


def _file_names(job: Job, data: LabelledData) -> list[str]:
    """The file of every element of a folder of images, which is read as one whole."""
    train, test = data.dataset.train, data.dataset.test
    return file_names(job.data, len(train) + len(test)) if data.parted else []


def _batch_size(job: Job, data: LabelledData) -> int:
    """How many elements a batch of the training has."""
    taught, _ = split(len(data.dataset.train), job.supervised)
    return min(job.supervised.training.batch_size, len(taught))


def _conclude(
    job: Job,
    fitted: FittedPartitioner,
    data: LabelledData,
    run: RunFolder,
    files: Sequence[str],
    facts: dict[str, Any],
) -> None:
    """Judge a model on the test part, and leave it in the folder."""
    train, test = data.dataset.train, data.dataset.test
    kept = fitted
    if len(fitted.shape) == 1:
        # New rows of a table come as its file has them, images as they were loaded here.
        shift, scale = scale_of(data.dataset)
        kept = replace(fitted, shift=shift, scale=scale)
    kept.save(run.model_dir)
    judged = fitted.judge(test.inputs, data.labels(test))
    taught, tested = data.places()
    parts = [
        JudgedPart(
            "train", fitted.judge(train.inputs, data.labels(train)), data.labels(train), taught
        ),
        JudgedPart("test", judged, data.labels(test), tested),
    ]
    run.write_atomic(LABELS, label_table(parts, data.names, files, whole=data.parted))
    run.write_atomic(ARRAYS, draw_arrays(judged, test.inputs, data.labels(test), data.names))
    sizes = torch.bincount(judged.batch)
    described = {
        "name": data.dataset.name,
        "target": data.target,
        "examples": len(train),
        "test examples": len(test),
        "batch size": _batch_size(job, data),
        "test batches": len(sizes),
        "test batch size": " to ".join(f"{size:,}" for size in sorted(set(sizes.tolist()))),
    }
    run.finish(
        dict(judged.scores._asdict()),
        seed=job.supervised.training.seed,
        device=fitted.device,
        facts={**facts, "data": described},
    )

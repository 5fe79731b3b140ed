"""One model of supervised partitions, with everything a person wants to see of it, in a folder."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from drpm.data.classes import class_target
from drpm.data.splitting import with_test_part
from drpm.data.types import Dataset, Split
from drpm.supervised.config import SupervisedConfig
from drpm.supervised.drawn import draw_arrays
from drpm.supervised.fitted import FittedPartitioner
from drpm.supervised.pipeline import STAGE, Selection, check_labels, fit_partitioners, split
from drpm.training import config as configs
from drpm.training.errors import ConfigError
from drpm.training.runs import ARRAYS, RunFolder
from drpm.training.stages import ProgressFactory, hold_runs, open_run


@dataclass(frozen=True)
class Job:
    """What is needed to do it again.

    Arguments:
        data: The name of a data set, or a file.
        options: Further options of the data, as ``name=value``.
        fingerprint: What the data is known by, where its name says too little.
        supervised: The settings.
    """

    data: str = "digits"
    options: tuple[str, ...] = ()
    fingerprint: str = ""
    supervised: SupervisedConfig = field(default_factory=SupervisedConfig)


class LabelledData(NamedTuple):
    """What is learnt from, and judged on.

    Arguments:
        dataset: The data set.
        target: Which of its targets is the class.
        names: Those of the classes.
    """

    dataset: Dataset
    target: str
    names: tuple[str, ...]

    def labels(self, part: Split) -> Tensor:
        return part.targets[self.target]


def find_classes(dataset: Dataset) -> LabelledData:
    """The classes of a data set: those called ``label``, or else the first; none are refused.

    Where there is no test part, a fifth is taken for one.
    """
    target = class_target(dataset)
    if target is None or any(target not in x.targets for x in (dataset.train, dataset.test)):
        raise ConfigError(
            f"data must have a class for every element, but {dataset.name!r} has none."
        )
    if len(dataset.classes[target]) < 2:
        raise ConfigError(f"data must have two classes or more, but {dataset.name!r} has one.")
    dataset = with_test_part(dataset)
    return LabelledData(dataset, target, tuple(dataset.classes[target]))


def check_job(job: Job, data: LabelledData) -> None:
    """Refuse what cannot be done, before anything is written."""
    train = data.dataset.train
    check_labels(train.inputs, data.labels(train), len(data.names))
    split(len(train), job.supervised)


def open_job(folder: Path, job: Job, *, overwrite: bool = False) -> RunFolder:
    """The folder of a job, new if there is none; one with other settings is refused."""
    return open_run(folder, configs.dumps(job), overwrite=overwrite, made=(STAGE,))


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
        commands: What does each of them alone.
        progress: From the name of a stage to whoever shows how far it is.

    Returns:
        The results as the folders' ``result.json`` have them.
    """
    seeds = [job.supervised.training.seed for job in jobs]
    train = data.dataset.train
    for job in jobs:
        check_job(job, data)
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
        for place, (job, run, command) in enumerate(zip(jobs, runs, commands, strict=True)):
            if run.status == "finished":
                continue
            model = fitted.models[place]
            model.model.config = job.supervised
            run.take_metrics(fitted.folders[place])
            facts = {
                "command": list(command),
                "stacked": seeds,
                "selection": _describe(fitted.selection, seeds),
            }
            _conclude(job, model, data, run, facts)
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


def _conclude(
    job: Job, fitted: FittedPartitioner, data: LabelledData, run: RunFolder, facts: dict[str, Any]
) -> None:
    """Judge a model on the test part, and leave it in the folder."""
    test = data.dataset.test
    fitted.save(run.model_dir)
    judged = fitted.judge(test.inputs, data.labels(test))
    run.write_atomic(ARRAYS, draw_arrays(judged, test.inputs, data.labels(test), data.names))
    described = {
        "name": data.dataset.name,
        "target": data.target,
        "examples": len(data.dataset.train),
        "test examples": len(test),
        "test batches": int(judged.batch.max()) + 1,
        "batch size": job.supervised.training.batch_size,
    }
    run.finish(
        dict(judged.scores._asdict()),
        seed=job.supervised.training.seed,
        device=fitted.device,
        facts={**facts, "data": described},
    )

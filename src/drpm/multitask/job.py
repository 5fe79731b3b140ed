"""One network with several tasks, with everything a person wants to see of it, in a folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from drpm.data import load
from drpm.data.fingerprints import content_hash
from drpm.data.own import looks_like_path
from drpm.data.preprocessing import with_test_part
from drpm.data.registry import DATASETS
from drpm.multitask.config import METHOD_NAMES, MultitaskConfig
from drpm.multitask.drawn import draw_arrays
from drpm.multitask.evaluation import (
    ACCURACIES,
    ACCURACY,
    BEST_ACCURACY,
    SIZES,
    TaskScores,
    best_test_epoch,
    rank_correlation,
    score_tasks,
)
from drpm.multitask.fitted import FittedMultitask
from drpm.multitask.methods import NeuronPartition
from drpm.multitask.pipeline import STAGE, check_multitask, fit_multitask
from drpm.multitask.tasks import TaskData, read_tasks, shown_tasks
from drpm.training import config as configs
from drpm.training.errors import ConfigError
from drpm.training.matmul import matmul_precision
from drpm.training.runs import ARRAYS, RunFolder
from drpm.training.stages import ProgressFactory, hold_runs, open_run

# What is of all tasks, as the page calls it.
NAMES: Final = {
    "accuracy": "accuracy, mean over tasks",
    "size_noise_correlation": "rank correlation of noise and neurons",
    "best_test_epoch": "best test epoch",
    BEST_ACCURACY: "accuracy, mean over tasks, at the best test epoch (flattering)",
}


@dataclass(frozen=True)
class Job:
    """What is needed to do it again.

    Arguments:
        data: A data set of images with classes, or a file of one's own.
        noise: Of ``multimnist``: the part of the right digit's pixels that is lost.
        tasks: Of ``mosaic`` and ``celeba``: how many.
        options: Further options of the data, as ``name=value``; none where there are none.
        fingerprint: What data of one's own is known by.
        multitask: The settings.
    """

    data: str = "multimnist"
    noise: float | None = None
    tasks: int | None = None
    options: tuple[str, ...] | None = None
    fingerprint: str = ""
    multitask: MultitaskConfig = field(default_factory=MultitaskConfig)


def open_data(
    job: Job, device: torch.device | str, further: Mapping[str, Any] | None = None
) -> tuple[TaskData, str]:
    """The data of a job, and what it is known by where it is one's own.

    Arguments:
        job: What is done with it.
        device: Where it goes.
        further: The values of the job's further options.
    """
    dataset = load(job.data, device=device, **_options(job, further or {}))
    known = content_hash(job.data, dataset)
    config = job.multitask
    data = read_tasks(
        with_test_part(dataset),
        train_examples=config.train_examples,
        test_examples=config.test_examples,
    )
    check_multitask([data], config)
    return data, known


def _options(job: Job, further: Mapping[str, Any]) -> dict[str, Any]:
    """What a job says of its data, by the names that data sets have for it."""
    if job.data not in DATASETS and not looks_like_path(job.data):
        return {}  # a name that is none, and refused for that
    known = DATASETS[job.data].options if job.data in DATASETS else ()
    options = dict(further)
    for ours, theirs in (("noise", "noise"), ("tasks", "num_tasks")):
        value = getattr(job, ours)
        if value is not None and theirs not in known:
            raise ConfigError(
                f"{ours} must be left out for the data {job.data!r}, which has no such option, "
                f"but got {value}."
            )
        if value is not None and theirs in further:
            raise ConfigError(
                f"{ours} must be given once, but got {value} and, as the option {theirs} of the "
                f"data, {further[theirs]}."
            )
        options |= {} if value is None else {theirs: value}
    return options


def open_job(folder: Path, job: Job, *, overwrite: bool = False) -> RunFolder:
    """The folder of a job, new if there is none; one with other settings is refused."""
    return open_run(folder, configs.dumps(job), overwrite=overwrite, made=(STAGE,))


def do_jobs(
    jobs: Sequence[Job],
    data: Sequence[TaskData],
    runs: Sequence[RunFolder],
    *,
    device: torch.device | str,
    commands: Sequence[Sequence[str]],
    at_once: int | None = None,
    progress: ProgressFactory = lambda stage: None,
) -> list[dict[str, Any]]:
    """Do jobs that differ in their seeds and noise alone, trained together where that is possible.

    Arguments:
        jobs: One for each run.
        data: As :func:`open_data` has them, one for each run.
        runs: The folder of every job. One that is finished stays as it is.
        device: Where.
        commands: What does each of them again.
        at_once: How many are trained together at most; none for all. With the method ``gradient``
            each is trained by itself.
        progress: From the name of a stage to whoever shows how far it is.

    Returns:
        The results as the folders' ``result.json`` have them.
    """
    for part in stacks(jobs, at_once):
        if not all(run.status == "finished" for run in runs[part]):
            _do_together(jobs[part], data[part], runs[part], device, commands[part], progress)
    return [run.result() for run in runs]


def stacks(jobs: Sequence[Job], at_once: int | None) -> list[slice]:
    """Which jobs are trained together.

    Arguments:
        jobs: As in :func:`do_jobs`.
        at_once: Likewise.
    """
    step = 1 if jobs[0].multitask.method == "gradient" else at_once or len(jobs)
    return [slice(start, start + step) for start in range(0, len(jobs), step)]


def _do_together(
    jobs: Sequence[Job],
    data: Sequence[TaskData],
    runs: Sequence[RunFolder],
    device: torch.device | str,
    commands: Sequence[Sequence[str]],
    progress: ProgressFactory,
) -> None:
    seeds = [job.multitask.training.seed for job in jobs]
    with hold_runs(runs):
        fitted = fit_multitask(
            data,
            jobs[0].multitask,
            [run.path for run in runs],
            seeds=seeds,
            device=device,
            progress=progress,
        )
        for job, network, each, run, command in zip(
            jobs, fitted, data, runs, commands, strict=True
        ):
            if run.status != "finished":
                facts: dict[str, Any] = {"command": list(command), "stacked": seeds}
                if len({other.noise for other in jobs}) > 1:
                    facts["stacked noise"] = [other.noise for other in jobs]
                _conclude(job, network, each, run, facts)


def _conclude(
    job: Job, fitted: FittedMultitask, data: TaskData, run: RunFolder, facts: dict[str, Any]
) -> None:
    """Judge a network, and leave it in the folder."""
    fitted.network.config = job.multitask
    fitted.save(run.model_dir)
    # The stage's own numbers are the run's, and a last look at the test part.
    stage = RunFolder.open(run.path / STAGE)
    run.take_metrics([stage.path])
    # As precise as the looks on the way.
    with matmul_precision(job.multitask.training.matmul):
        scores = score_tasks(fitted.network, data.test_images, data.test_targets)
    steps = [record["step"] for record in stage.metrics()]
    epochs = job.multitask.training.epochs
    run.log({"step": max(steps, default=0), "epoch": epochs, **scores.record()})
    width, records = fitted.config.network.width, run.metrics()
    run.write_atomic(ARRAYS, draw_arrays(data, scores, width, records))
    described = {
        "name": job.data,
        "options": list(job.options or ()),
        "noise": job.noise,
        "tasks": list(data.tasks),
        "examples": len(data.images),
        "test examples": len(data.test_images),
        "noise ratios": list(data.noise_ratios),
    }
    metrics = judge(scores, data, records)
    method = fitted.network.method
    # The one in force, which settings may leave to the number of tasks.
    penalty = method.size_penalty if isinstance(method, NeuronPartition) else None
    run.finish(
        metrics,
        seed=job.multitask.training.seed,
        device=fitted.device,
        facts={
            **facts,
            **({} if penalty is None else {"size penalty": penalty}),
            "method": METHOD_NAMES[job.multitask.method],
            "about": _about(data, penalty, facts.get("stacked noise", ())),
            "names": {name: shown for name, shown in NAMES.items() if name in metrics},
            "tables": {"Tasks": task_table(data, metrics)},
            "data": {name: x for name, x in described.items() if x not in (None, [])},
        },
    )


def judge(
    scores: TaskScores, data: TaskData, records: Sequence[dict[str, Any]]
) -> dict[str, float | None]:
    """What a network is worth, in all numbers that are reported.

    Arguments:
        scores: Those after the last epoch.
        data: Whose they are.
        records: The metrics of the run, with all looks at the test part.
    """
    best = best_test_epoch(records)
    # What is of all tasks comes first: there may be many of them.
    found: dict[str, float | None] = {"accuracy": scores.accuracies.mean().item()}
    sizes = None if scores.sizes is None else scores.sizes.tolist()
    if sizes is not None and data.noise_ratios:
        found["size_noise_correlation"] = rank_correlation(sizes, data.noise_ratios)
    # Chosen on the test part, as the paper does it.
    found |= {"best_test_epoch": best["epoch"], BEST_ACCURACY: best[ACCURACY]}
    found |= _named("accuracy", data.tasks, scores.accuracies.tolist())
    if sizes is not None:
        found |= _named("size", data.tasks, sizes)
    found |= _named(BEST_ACCURACY, data.tasks, best[ACCURACIES])
    if SIZES in best:
        found |= _named("best_test_epoch_size", data.tasks, best[SIZES])
    return found


def task_table(data: TaskData, metrics: Mapping[str, float | None]) -> dict[str, dict[str, str]]:
    """A row for each task: from what stands above a column to the metric that stands there.

    Rows are in the order of their noise ratios, where these are known, as figures have them.

    Arguments:
        data: Whose tasks they are.
        metrics: What :func:`judge` reports.
    """
    columns = {
        "accuracy": "accuracy",
        "neurons": "size",
        "accuracy (best test epoch, flattering)": BEST_ACCURACY,
        "neurons (best test epoch)": "best_test_epoch_size",
    }
    return {
        row: {
            shown: f"{metric}_{task}"
            for shown, metric in columns.items()
            if f"{metric}_{task}" in metrics
        }
        for task, row in shown_tasks(data.tasks, data.noise_ratios).items()
    }


def _about(data: TaskData, penalty: float | None, stacked_noise: Sequence[float]) -> str:
    """What the numbers are of.

    Arguments:
        data: Whose they are.
        penalty: The weight of the penalty on sizes, where there are sizes.
        stacked_noise: The noise ratios of all runs that were trained together, where they differ.
    """
    sentences = [
        "Numbers are those of the test part after the last epoch.",
        "The best test epoch is the one with the best mean accuracy on that same part, so its "
        "numbers are better than new images would have; they are for comparison with the paper.",
    ]
    if data.noise_ratios:
        sentences.append("In brackets are the noise ratios of tasks.")
    if penalty is not None:
        sentences.append(f"The penalty on sizes that differ had the weight {penalty:g}.")
    if len(data.tasks) == 1:
        sentences.append(single_task(data.tasks[0]))
    if stacked_noise:
        ratios = ", ".join(map(str, dict.fromkeys(stacked_noise)))
        sentences.append(
            f"Runs with the noise ratios {ratios} were trained together, as drpm reproduce does; "
            "the command below trains those of one ratio, and gives other numbers."
        )
    return " ".join(sentences)


def single_task(task: str) -> str:
    """What is to be said where there is but one task."""
    return f"There is one task, {task!r}, which has all neurons: nothing is shared here."


def _named(what: str, tasks: Sequence[str], values: Sequence[float]) -> dict[str, float]:
    return {f"{what}_{task}": value for task, value in zip(tasks, values, strict=True)}

"""A run of ``drpm multitask``: a network, its scores and its figures in a folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from drpm.multitask.tasks import TaskData, display_names, read_tasks
from drpm.training import config as configs
from drpm.training import presets, toml
from drpm.training.devices import connect_one
from drpm.training.errors import ConfigError
from drpm.training.matmul import matmul_precision
from drpm.training.runs import ARRAYS, RunFolder
from drpm.training.stages import ProgressFactory, hold_runs, open_run
from drpm.training.studies import check_seeds, check_settings, run_seeds
from drpm.training.summaries import DEVIATION

NAMES: Final = {
    "accuracy": "accuracy, mean over tasks",
    "size_noise_correlation": "rank correlation of noise and neurons",
    "best_test_epoch": "best test epoch",
    BEST_ACCURACY: "accuracy, mean over tasks, at the best test epoch (optimistic)",
}
"""Display names of metrics over all tasks."""

_COLUMNS: Final = {
    "accuracy": "accuracy",
    "neurons": "size",
    "accuracy (best test epoch, optimistic)": BEST_ACCURACY,
    "neurons (best test epoch)": "best_test_epoch_size",
}

_ABOUT: Final = (
    "Scores are those of the test part after the last epoch. The best test epoch is chosen on the "
    "test part, so that its scores are optimistic; they are for comparison with the paper."
)


@dataclass(frozen=True)
class Job:
    """The settings of a run.

    Args:
        data: A data set of images with classes, or an own file.
        noise: Of ``multimnist``: the fraction of the right digit's pixels that is lost.
        tasks: Of ``mosaic`` and ``celeba``: the number of tasks.
        options: Further options of the data, as ``name=value``.
        fingerprint: Content hash of own data.
        multitask: Settings of the network.
    """

    data: str = "multimnist"
    noise: float | None = None
    tasks: int | None = None
    options: tuple[str, ...] | None = None
    fingerprint: str = ""
    multitask: MultitaskConfig = field(default_factory=MultitaskConfig)


def open_data(
    job: Job, device: torch.device | str, further: Mapping[str, Any] | None = None
) -> tuple[TaskData, Job]:
    """The data of a job, and the job with the hash of own data.

    Args:
        job: The settings.
        device: Where the data go.
        further: The values of the job's further options.
    """
    dataset = load(job.data, device=device, **_options(job, further or {}))
    config = job.multitask
    data = read_tasks(
        with_test_part(dataset),
        train_examples=config.train_examples,
        test_examples=config.test_examples,
    )
    check_multitask(data, config)
    return data, replace(job, fingerprint=known_by(job.data, dataset))


def _options(job: Job, further: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the data set of a job."""
    if job.data not in DATASETS and not looks_like_path(job.data):
        return {}  # refused as an unknown name
    known = DATASETS[job.data].options if job.data in DATASETS else ()
    options = dict(further)
    for ours, theirs in (("noise", "noise"), ("tasks", "num_tasks")):
        value = getattr(job, ours)
        if value is None:
            continue
        if theirs not in known:
            raise ConfigError(
                f"{ours} must be left out for the data {job.data!r}, which has no such option, "
                f"but got {value}."
            )
        if theirs in further:
            raise ConfigError(
                f"{ours} must be given once, but got {value} and, as the option {theirs} of the "
                f"data, {further[theirs]}."
            )
        options[theirs] = value
    return options


def open_job(folder: Path, job: Job, *, overwrite: bool = False) -> RunFolder:
    """The folder of a job, created if it does not exist; other settings are refused."""
    return open_run(folder, configs.dumps(job), overwrite=overwrite, made=(STAGE,))


def run_job(
    job: Job,
    data: TaskData,
    run: RunFolder,
    *,
    device: torch.device | str,
    command: Sequence[str],
    progress: ProgressFactory = lambda stage: None,
) -> None:
    """Train a network, evaluate it and save its figures; a finished run stays as it is.

    Args:
        job: The settings, as :func:`open_data` returns them.
        data: Likewise.
        run: The folder.
        device: Where to train.
        command: The command that repeats the run.
        progress: From the name of a stage to its progress display.
    """
    if run.status == "finished":
        return
    with hold_runs([run]):
        fitted = fit_multitask(data, job.multitask, run.path, device=device, progress=progress)
        _conclude(job, fitted, data, run, command)


def _conclude(
    job: Job, fitted: FittedMultitask, data: TaskData, run: RunFolder, command: Sequence[str]
) -> None:
    """Save and evaluate a trained network."""
    fitted.save(run.model_dir)
    stage = RunFolder.open(run.path / STAGE)
    run.take_metrics(stage.path)
    # With the precision of training.
    with matmul_precision(job.multitask.training.matmul):
        scores = score_tasks(fitted.network, data.test_images, data.test_targets)
    steps = [record["step"] for record in stage.metrics()]
    epochs = job.multitask.training.epochs
    run.log({"step": max(steps, default=0), "epoch": epochs, **scores.record()})
    records = run.metrics()
    run.write_atomic(ARRAYS, draw_arrays(data, scores, fitted.config.network.width, records))
    described = {
        "name": job.data,
        "options": list(job.options or ()),
        "noise": job.noise,
        "tasks": list(data.tasks),
        "examples": len(data.images),
        "test examples": len(data.test_images),
        "noise ratios": list(data.noise_ratios),
    }
    metrics = collect_metrics(scores, data, records)
    facts: dict[str, Any] = {
        "command": list(command),
        "method": METHOD_NAMES[job.multitask.method],
        "about": _ABOUT,
        "names": {name: shown for name, shown in NAMES.items() if name in metrics},
        "tables": {"Tasks": task_table(data, metrics)},
        "data": {name: x for name, x in described.items() if x not in (None, [])},
    }
    if isinstance(fitted.network.method, NeuronPartition):
        facts["size penalty"] = fitted.network.method.size_penalty
    run.finish(metrics, seed=job.multitask.training.seed, device=fitted.device, facts=facts)


def collect_metrics(
    scores: TaskScores, data: TaskData, records: Sequence[dict[str, Any]]
) -> dict[str, float | None]:
    """All metrics of a run.

    Args:
        scores: Those after the last epoch.
        data: The data.
        records: The logged metrics, with the scores of earlier epochs.
    """
    best = best_test_epoch(records)
    found: dict[str, float | None] = {"accuracy": scores.accuracies.mean().item()}
    sizes = None if scores.sizes is None else scores.sizes.tolist()
    if sizes is not None and data.noise_ratios:
        found["size_noise_correlation"] = rank_correlation(sizes, data.noise_ratios)
    found |= {"best_test_epoch": best["epoch"], BEST_ACCURACY: best[ACCURACY]}
    for name, values in (
        ("accuracy", scores.accuracies.tolist()),
        ("size", sizes),
        (BEST_ACCURACY, best[ACCURACIES]),
        ("best_test_epoch_size", best.get(SIZES)),
    ):
        if values is not None:
            found |= {f"{name}_{task}": x for task, x in zip(data.tasks, values, strict=True)}
    return found


def task_table(data: TaskData, metrics: Mapping[str, float | None]) -> dict[str, dict[str, str]]:
    """A row for each task, by noise ratio: from the head of a column to the name of its metric."""
    return {
        row: {
            shown: f"{metric}_{task}"
            for shown, metric in _COLUMNS.items()
            if f"{metric}_{task}" in metrics
        }
        for task, row in display_names(data.tasks, data.noise_ratios).items()
    }


def run_study(
    folder: Path,
    data: str,
    method: str,
    preset: str,
    seeds: Sequence[int],
    noise: Sequence[float] = (),
    tasks: int | None = None,
    settings: Sequence[str] = (),
    config: str | None = None,
    device: str = "auto",
) -> None:
    """Train one method on one data set, for several seeds one after the other.

    The folder holds the runs ``seed-<seed>``, each as ``drpm multitask`` leaves one, and the mean
    and standard deviation of every metric in its ``result.json``. With noise ratios it has such a
    folder ``noise-<ratio>`` for each of them. An interrupted study is resumed.

    Args:
        folder: The study's folder.
        data: The data set.
        method: As in :class:`MultitaskConfig`.
        preset: All other settings.
        seeds: One for each run.
        noise: Noise ratios of ``multimnist``, each with all seeds.
        tasks: Number of tasks, if the data have such an option.
        settings: Changes to the preset, as ``name=value``.
        config: Expected hash of the settings, if any.
        device: Where to train.
    """
    check_seeds(seeds)
    multitask = configs.override(
        presets.load(MultitaskConfig, preset), [*settings, f"method={method}"]
    )
    digest = check_settings(multitask, config)
    where = connect_one(replace(multitask.training, device=device)).device
    described: dict[str, Any] = {
        "data": data,
        "method": method,
        "preset": preset,
        "settings": list(settings),
        "config": digest,
        **({} if tasks is None else {"tasks": tasks}),
    }

    def run_all(place: Path, ratio: float | None) -> None:
        command = ["drpm", "multitask", data, "--method", method, "--preset", preset]
        command += [] if tasks is None else ["--tasks", str(tasks)]
        command += [word for setting in settings for word in ("--set", setting)]
        command += [] if ratio is None else ["--noise", str(ratio)]

        def train(folders: Sequence[Path]) -> None:
            loaded, job = open_data(Job(data, ratio, tasks, multitask=multitask), where)
            for seed, path in zip(seeds, folders, strict=True):
                training = replace(multitask.training, seed=seed)
                own = replace(job, multitask=replace(multitask, training=training))
                run = open_job(path, own)
                run_job(own, loaded, run, device=where, command=[*command, "--seeds", str(seed)])

        given = described if ratio is None else {**described, "noise": ratio}
        run_seeds(place, given, seeds, train, device=where, together=False)

    if not noise:
        run_all(folder, None)
        return
    whole = {**described, "noise": list(noise), "seeds": list(seeds)}
    study = open_run(folder, toml.dumps(whole))
    with study.lock():
        results = {}
        for ratio in noise:
            place = folder / f"noise-{ratio}"
            run_all(place, ratio)
            results[place.name] = RunFolder(place).result()
        study.finish(
            {name: result["metrics"] for name, result in results.items()},
            device=where,
            facts={**whole, "deviation": DEVIATION},
            wall_time=sum(result["wall_time"] for result in results.values()),
        )

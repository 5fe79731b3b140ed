"""Several tasks on one network as an experiment."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final

import torch

from drpm.data import load
from drpm.data.fingerprints import content_hash
from drpm.data.own import looks_like_path
from drpm.data.preprocessing import with_test_part
from drpm.data.registry import DATASETS
from drpm.experiments.base import Evaluation, Experiment, Table, parse_options
from drpm.multitask.config import METHOD_NAMES, MultitaskJob, refuse_unused
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
from drpm.multitask.figures import figure_data
from drpm.multitask.fitted import FittedMultitask
from drpm.multitask.methods import NeuronPartition
from drpm.multitask.tasks import TaskData, display_names, read_tasks, sort_by_noise
from drpm.multitask.training import STAGE, check_multitask, fit_multitask
from drpm.training.devices import Devices
from drpm.training.errors import ConfigError
from drpm.training.loop import ProgressFactory
from drpm.training.runs import RunFolder
from drpm.training.summaries import spread
from drpm.training.torch_state import matmul_precision

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

_FEW: Final = 4  # tasks that have columns of their own on the terminal


class Multitask(Experiment[MultitaskJob, TaskData, FittedMultitask]):
    """DRPM-MTL and its baselines."""

    scores: ClassVar[Mapping[str, str]] = {"accuracy": "Accuracy"}
    outputs: ClassVar[tuple[str, ...]] = (STAGE,)

    def load(self, job: MultitaskJob, device: torch.device) -> TaskData:
        dataset = load(job.data, device=device, **_options(job))
        config = job.multitask
        tasks = read_tasks(
            with_test_part(dataset),
            train_examples=config.train_examples,
            test_examples=config.test_examples,
        )
        return replace(tasks, content_hash=content_hash(job.data, dataset))

    def fingerprint(self, job: MultitaskJob, data: TaskData) -> str:
        return data.content_hash

    def complete(
        self, job: MultitaskJob, data: TaskData, given: Mapping[str, bool]
    ) -> MultitaskJob:
        refuse_unused(job.multitask, [name for name, is_typed in given.items() if is_typed])
        return job

    def check(self, job: MultitaskJob, data: TaskData) -> list[str]:
        check_multitask(data, job.multitask)
        if len(data.tasks) == 1:
            return [f"The data have one task, {data.tasks[0]!r}: nothing is shared."]
        return []

    def train(
        self,
        jobs: Sequence[MultitaskJob],
        data: TaskData,
        folders: Sequence[Path],
        devices: Devices,
        progress: ProgressFactory,
    ) -> list[FittedMultitask]:
        return [
            fit_multitask(data, job.multitask, folder, device=devices.device, progress=progress)
            for job, folder in zip(jobs, folders, strict=True)
        ]

    def evaluate(
        self,
        job: MultitaskJob,
        model: FittedMultitask,
        data: TaskData,
        run: RunFolder,
        progress: ProgressFactory,
    ) -> Evaluation:
        model.save(run.model_dir)
        run.take_metrics([run.path / STAGE])
        # With the precision of training.
        with matmul_precision(job.multitask.training.matmul):
            scores = score_tasks(model.network, data.test_images, data.test_targets)
        steps = [record["step"] for record in run.metrics()]
        epochs = job.multitask.training.epochs
        run.log({"step": max(steps, default=0), "epoch": epochs, **scores.record()})
        records = run.metrics()
        metrics = collect_metrics(scores, data, records)
        described = {
            "name": job.data,
            "options": list(job.options or ()),
            "noise": job.noise,
            "tasks": list(data.tasks),
            "examples": len(data.images),
            "test examples": len(data.test_images),
            "noise ratios": list(data.noise_ratios),
        }
        facts: dict[str, Any] = {
            "method": METHOD_NAMES[job.multitask.method],
            "about": _ABOUT,
            "names": {name: shown for name, shown in NAMES.items() if name in metrics},
            "tables": {"Tasks": task_table(data, metrics)},
            "data": {name: x for name, x in described.items() if x not in (None, [])},
        }
        if isinstance(model.network.method, NeuronPartition):
            facts["size penalty"] = model.network.method.size_penalty
        figures = figure_data(data, scores, model.config.network.width, records)
        return Evaluation(metrics, figures, [], {}, facts)

    def title(self, job: MultitaskJob, data: TaskData) -> str:
        return f"{job.data}: several tasks, {job.multitask.method}"

    def columns(self, result: Mapping[str, Any]) -> Mapping[str, str]:
        columns = dict(self.scores)
        tasks = result["data"]["tasks"]
        if len(tasks) <= _FEW:
            columns |= {f"accuracy_{name}": f"Accuracy, {name}" for name in tasks}
            columns |= {f"size_{name}": f"Neurons, {name}" for name in tasks}
        columns["size_noise_correlation"] = "Rank correlation of noise and neurons"
        return {name: shown for name, shown in columns.items() if name in result["metrics"]}

    def describe(self, results: Sequence[Mapping[str, Any]]) -> Sequence[Table]:
        """A row for each task, if there are too many for columns."""
        names = results[0]["data"]["tasks"]
        if len(names) <= _FEW:
            return ()
        ratios = results[0]["data"].get("noise ratios", ())
        order = sort_by_noise(len(names), ratios)
        header, rows = ["Task"], [[names[task]] for task in order]
        if ratios:
            header.append("Noise ratio")
            rows = [[*row, f"{ratios[task]:.2f}"] for row, task in zip(rows, order, strict=True)]
        for metric, shown in (("accuracy", "Accuracy"), ("size", "Neurons")):
            if f"{metric}_{names[0]}" in results[0]["metrics"]:
                header.append(shown)
                for row, task in zip(rows, order, strict=True):
                    found = [result["metrics"][f"{metric}_{names[task]}"] for result in results]
                    row.append(spread(found) if len(found) > 1 else f"{found[0]:.3f}")
        return (Table(header, rows),)


def _options(job: MultitaskJob) -> dict[str, Any]:
    """The options of the data set of a job."""
    if job.data not in DATASETS and not looks_like_path(job.data):
        return {}  # refused as an unknown name
    known = DATASETS[job.data].options if job.data in DATASETS else ()
    options = parse_options(job.options or ())
    for ours, theirs in (("noise", "noise"), ("tasks", "num_tasks")):
        value = getattr(job, ours)
        if value is None:
            continue
        if theirs not in known:
            raise ConfigError(
                f"{ours} must be left out for the data {job.data!r}, which has no such option, "
                f"but got {value}."
            )
        if theirs in options:
            raise ConfigError(
                f"{ours} must be given once, but got {value} and, as the option {theirs} of the "
                f"data, {options[theirs]}."
            )
        options[theirs] = value
    return options


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

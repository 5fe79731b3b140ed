"""Multitask learning as an experiment: training and evaluation."""

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drpm.data import load
from drpm.data.catalogue import content_hash
from drpm.data.types import fingerprint_tensors, with_test_part
from drpm.experiments import Evaluation, Experiment, parse_options
from drpm.multitask.config import METHOD_NAMES, MultitaskConfig, MultitaskJob
from drpm.multitask.models import (
    COMMON,
    MultitaskNetwork,
    TaskData,
    TaskScores,
    multitask_objective,
    read_tasks,
)
from drpm.multitask.networks import find_weighting
from drpm.report.plots import FigureSpec, pack_figures
from drpm.studies.sweeps import NOISE
from drpm.training.config import check_setting
from drpm.training.devices import matmul_precision, seeded
from drpm.training.errors import ConfigError
from drpm.training.loop import BeforeEpoch, ProgressFactory, fit_model
from drpm.training.program import Program
from drpm.training.runs import RunFolder

NAMES: Final = {
    "accuracy": "accuracy, mean over tasks",
    "size_noise_correlation": "rank correlation of noise and neurons",
    "best_test_epoch": "best test epoch",
    "best_test_epoch_accuracy": "accuracy, mean over tasks, at the best test epoch (optimistic)",
}
"""Display names of metrics over all tasks."""

_COLUMNS: Final = {
    "accuracy": "accuracy",
    "neurons": "size",
    "accuracy (best test epoch, optimistic)": "best_test_epoch_accuracy",
    "neurons (best test epoch)": "best_test_epoch_size",
}

_ABOUT: Final = (
    "Scores on the test split after the last epoch. The best test epoch is selected on the test "
    "split, so its scores are optimistic; they are for comparison with the paper."
)

_SHOWN: Final = 6  # images in a figure
_MAX_NEURONS: Final = 100  # in a figure


def fit_multitask(
    data: TaskData,
    config: MultitaskConfig,
    folder: Path | str,
    *,
    device: torch.device | str = "cpu",
    progress: ProgressFactory = lambda stage: None,
) -> MultitaskNetwork:
    """Train a network, or resume its training.

    Args:
        data: The images and their tasks.
        config: The settings; ``config.training.seed`` determines all random numbers.
        folder: Folder for checkpoints and metrics; it must not belong to other data or settings.
        device: Where to train.
        progress: Maps the name of a stage to its progress bar.
    """
    check_multitask(data, config)
    network = make_network(data, config)
    # Without the mean and standard deviation of pixels, whose rounding depends on the device.
    names = ("images", "targets", "test_images", "test_targets")
    fit_model(
        network,
        multitask_objective,
        config,
        folder,
        {"images": data.images, "targets": data.targets},
        fingerprint=lambda: fingerprint_tensors((name, getattr(data, name)) for name in names),
        device=device,
        is_eager=config.method == "gradient",
        before_epoch=_evaluate_before_epoch(network, data),
        progress=progress,
    )
    return network.eval()


def make_network(data: TaskData, config: MultitaskConfig) -> MultitaskNetwork:
    """An untrained network."""
    with seeded(config.training.seed):
        network = MultitaskNetwork(tuple(data.images.shape[1:]), data.classes, config)
    network.mean.copy_(data.mean)
    network.std.copy_(data.std)
    return network


def check_multitask(data: TaskData, config: MultitaskConfig) -> None:
    """Raise if settings do not fit the data, before anything is written."""
    if config.method == "gradient":
        find_weighting(config.weighting)
    width, tasks = config.network.width, len(data.tasks)
    if config.method == "drpm" and width < tasks:
        raise ConfigError(
            f"network.width must be at least the number of tasks, {tasks}, for the method 'drpm', "
            f"which gives every task its own neurons, but got {width}."
        )
    with torch.device("meta"):
        MultitaskNetwork(tuple(data.images.shape[1:]), data.classes, config)


def _evaluate_before_epoch(network: MultitaskNetwork, data: TaskData) -> BeforeEpoch:
    """Log the test scores of the network every ``evaluate_every`` epochs."""
    spare = copy.deepcopy(network).eval()

    def before_epoch(program: Program, runs: Sequence[RunFolder], epoch: int) -> None:
        (run,) = runs
        if epoch == 0 or epoch % network.config.evaluate_every:
            return
        # An interrupted run may have logged this epoch already.
        if any("test_accuracy" in record and record["epoch"] == epoch for record in run.metrics()):
            return
        spare.load_state_dict(program.model_state())
        scores = spare.score(data.test_images, data.test_targets)
        step = epoch * program.steps_per_epoch
        run.log({"step": step, "epoch": epoch, **scores.record()})

    return before_epoch


class Multitask(Experiment[MultitaskJob, TaskData, MultitaskNetwork]):
    """DRPM-MTL and its baselines."""

    scores: ClassVar[Mapping[str, str]] = {"accuracy": "Accuracy"}
    outputs: ClassVar[tuple[str, ...]] = ("training",)

    def load(self, job: MultitaskJob, device: torch.device) -> TaskData:
        named = {"noise": job.noise, "num_tasks": job.tasks}
        further = [f"{name}={x}" for name, x in named.items() if x is not None]
        options = parse_options([*(job.options or ()), *further])
        dataset, config = load(job.data, device=device, **options), job.multitask
        counts = {"train_examples": config.train_examples, "test_examples": config.test_examples}
        tasks = read_tasks(with_test_part(dataset), **counts)
        return replace(tasks, content_hash=content_hash(job.data, dataset))

    def fingerprint(self, job: MultitaskJob, data: TaskData) -> str:
        return data.content_hash

    def complete(
        self, job: MultitaskJob, data: TaskData, given: Mapping[str, bool]
    ) -> MultitaskJob:
        if given.get("weighting"):
            expected = "'gradient' where a weighting is given"
            check_setting(job.multitask, "method", expected, lambda method: method == "gradient")
        return job

    def check(self, job: MultitaskJob, data: TaskData) -> list[str]:
        check_multitask(data, job.multitask)
        alone = f"The data have a single task, {data.tasks[0]!r}, so nothing is shared."
        return [alone] if len(data.tasks) == 1 else []

    def fit(
        self, job: MultitaskJob, data: TaskData, folder: Path, **options: Any
    ) -> MultitaskNetwork:
        return fit_multitask(data, job.multitask, folder, **options)

    def evaluate(
        self,
        job: MultitaskJob,
        model: MultitaskNetwork,
        data: TaskData,
        run: RunFolder,
        progress: ProgressFactory,
    ) -> Evaluation:
        model.save(run.model_dir)
        run.copy_stage_metrics([run.path / "training"])
        # With the precision of training.
        with matmul_precision(job.multitask.training.matmul):
            scores = model.score(data.test_images, data.test_targets)
        steps = [record["step"] for record in run.metrics()]
        epochs = job.multitask.training.epochs
        run.log({"step": max(steps, default=0), "epoch": epochs, **scores.record()})
        records = [record for record in run.metrics() if "test_accuracy" in record]
        metrics = collect_metrics(data, records)
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
        if job.multitask.method == "drpm":
            facts["size penalty"] = model.method.size_penalty
        figures = figure_data(data, scores, records)
        return Evaluation(metrics, figures, facts)

    def title(self, job: MultitaskJob, data: TaskData) -> str:
        return f"{job.data}: multitask learning, {job.multitask.method}"

    def columns(self, result: Mapping[str, Any]) -> Mapping[str, str]:
        columns = dict(self.scores)
        tasks = result["data"]["tasks"]
        if len(tasks) <= 4:  # more do not fit on the terminal
            columns |= {f"accuracy_{name}": f"Accuracy, {name}" for name in tasks}
            columns |= {f"size_{name}": f"Neurons, {name}" for name in (*tasks, COMMON)}
        columns["size_noise_correlation"] = "Rank correlation of noise and neurons"
        return {name: shown for name, shown in columns.items() if name in result["metrics"]}


def collect_metrics(data: TaskData, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The metrics of a run: of its last record and of the first with the best mean accuracy."""
    from scipy.stats import ConstantInputWarning, spearmanr

    best, last = max(records, key=lambda record: record["test_accuracy"]), records[-1]
    found = {"accuracy": last["test_accuracy"]}
    if "test_sizes" in last and data.noise_ratios:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConstantInputWarning)  # NaN if all sizes are equal
            ranks = spearmanr(last["test_sizes"][: len(data.tasks)], data.noise_ratios)
        found["size_noise_correlation"] = float(ranks.statistic)
    found |= {"best_test_epoch": best["epoch"], "best_test_epoch_accuracy": best["test_accuracy"]}
    for prefix, record in (("", last), ("best_test_epoch_", best)):
        for name, key in (("accuracy", "test_accuracies"), ("size", "test_sizes")):
            values = zip((*data.tasks, COMMON), record.get(key, ()), strict=False)
            found |= {f"{prefix}{name}_{subset}": value for subset, value in values}
    return found


def task_table(data: TaskData, metrics: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """A row for each task and the common subset, which maps column headings to metrics."""
    names = (*data.tasks, COMMON)
    shown = {x: metric for x, metric in _COLUMNS.items() if f"{metric}_{names[0]}" in metrics}
    return {
        row: {column: f"{metric}_{names[index]}" for column, metric in shown.items()}
        for index, row in data.labels(common=f"size_{COMMON}" in metrics).items()
    }


def figure_data(
    data: TaskData, scores: TaskScores, records: Sequence[Mapping[str, Any]] = ()
) -> bytes:
    """All figures of the final scores and of the scores during training."""
    tasks = data.labels()
    title = "Accuracy of each task"
    specs = [_images(data), _bars("accuracy", "accuracy", scores.accuracies, tasks, title)]
    curves = [("accuracy", "test_accuracies", tasks)]
    if scores.sizes is not None and scores.shares is not None:
        subsets = data.labels(common=len(scores.sizes) > len(tasks))
        name = "sizes-by-noise" if data.noise_ratios else "sizes-by-task"
        title = f"Neurons of each task, out of {scores.shares.shape[-1]}"
        specs.append(_bars(name, "neurons", scores.sizes, subsets, title))
        shown, rows = scores.shares[[*subsets], :_MAX_NEURONS].numpy(), [*subsets.values()]
        # Sort neurons by their most frequent task.
        order = np.lexsort((-shown.max(0), shown.argmax(0)))
        title, names = "Assignment of neurons to tasks", [*map(str, order)]
        about = (
            "The fraction of test images for which a neuron (column) is assigned to a task "
            f"(row). At most {_MAX_NEURONS} neurons are shown."
        )
        specs.append(FigureSpec("matrix", "neurons", shown[:, order], rows, names, title, about))
        curves.append(("neurons", "test_sizes", subsets))
    for name, key, labels in curves:
        by_epoch = {str(record["epoch"]): record[key] for record in records if key in record}
        if len(by_epoch) > 1:
            values, rows = np.array([*by_epoch.values()]).T[[*labels]], [*labels.values()]
            title = f"{name.capitalize()} of each task during training"
            place = f"{name}-over-training"
            specs.append(FigureSpec("lines", place, values, rows, [*by_epoch], title))
    return pack_figures(specs)


def _bars(
    name: str, unit: str, values: Tensor, labels: Mapping[int, str], title: str
) -> FigureSpec:
    shown = values.double()[[*labels], None].numpy()
    return FigureSpec("bars", name, shown, [*labels.values()], [unit], title)


def _images(data: TaskData) -> FigureSpec:
    if data.name != "multimnist":
        images = data.test_images[None, :_SHOWN].cpu().numpy()
        return FigureSpec("grid", "images", images, (), (), "Some test images")
    title = "Test images with increasing noise ratio of the right digit"
    return FigureSpec("grid", "images", _noisy_images(), (), [str(x) for x in NOISE], title)


@cache  # the same for every run
def _noisy_images() -> NDArray[np.uint8]:
    loaded = (load("multimnist", noise=ratio, num_train=1, num_test=_SHOWN) for ratio in NOISE)
    return torch.stack([read_tasks(data).test_images for data in loaded], 1).numpy()

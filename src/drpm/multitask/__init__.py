"""Multitask learning: models, training and evaluation."""

from typing import TYPE_CHECKING

from drpm.lazy import fetch_from

if TYPE_CHECKING:
    from drpm.multitask.config import MultitaskConfig
    from drpm.multitask.experiment import fit_multitask
    from drpm.multitask.models import MultitaskNetwork, TaskScores, load_multitask
    from drpm.multitask.tasks import TaskData, read_tasks

_PLACES = {
    "config": ("MultitaskConfig",),
    "experiment": ("fit_multitask",),
    "models": ("MultitaskNetwork", "TaskScores", "load_multitask"),
    "tasks": ("TaskData", "read_tasks"),
}

__all__ = [
    "MultitaskConfig",
    "MultitaskNetwork",
    "TaskData",
    "TaskScores",
    "fit_multitask",
    "load_multitask",
    "read_tasks",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = fetch_from(__name__, _PLACES)

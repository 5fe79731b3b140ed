"""Several tasks on one network: how they share its neurons, and what becomes of it."""

from typing import TYPE_CHECKING

from drpm.lazy import fetch_from

if TYPE_CHECKING:
    from drpm.multitask.config import MultitaskConfig
    from drpm.multitask.evaluation import TaskScores, score_tasks
    from drpm.multitask.fitted import FittedMultitask, load_multitask
    from drpm.multitask.tasks import TaskData, read_tasks
    from drpm.multitask.training import fit_multitask

_PLACES = {
    "config": ("MultitaskConfig",),
    "evaluation": ("TaskScores", "score_tasks"),
    "fitted": ("FittedMultitask", "load_multitask"),
    "training": ("fit_multitask",),
    "tasks": ("TaskData", "read_tasks"),
}

__all__ = [
    "FittedMultitask",
    "MultitaskConfig",
    "TaskData",
    "TaskScores",
    "fit_multitask",
    "load_multitask",
    "read_tasks",
    "score_tasks",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = fetch_from(__name__, _PLACES)

"""Several tasks on one network: how they share its neurons, and what becomes of it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drpm.multitask.config import MultitaskConfig
    from drpm.multitask.evaluation import TaskScores, score_tasks
    from drpm.multitask.fitted import FittedMultitask, load_multitask
    from drpm.multitask.pipeline import fit_multitask
    from drpm.multitask.tasks import TaskData, read_tasks

_PLACES = {
    "config": ("MultitaskConfig",),
    "evaluation": ("TaskScores", "score_tasks"),
    "fitted": ("FittedMultitask", "load_multitask"),
    "pipeline": ("fit_multitask",),
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
    # Whoever only wants the settings should not wait for torch.

    def __getattr__(name: str) -> Any:
        for place, names in _PLACES.items():
            if name in names:
                return getattr(import_module(f"drpm.multitask.{place}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

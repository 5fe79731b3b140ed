"""Multitask learning: models, training and evaluation."""

from typing import TYPE_CHECKING

from drpm.lazy import fetch_from

if TYPE_CHECKING:
    from drpm.multitask.config import MultitaskConfig as MultitaskConfig
    from drpm.multitask.experiment import fit_multitask as fit_multitask
    from drpm.multitask.models import MultitaskNetwork as MultitaskNetwork
    from drpm.multitask.models import TaskData as TaskData
    from drpm.multitask.models import TaskScores as TaskScores
    from drpm.multitask.models import load_multitask as load_multitask
    from drpm.multitask.models import read_tasks as read_tasks

_PLACES = {
    "config": ("MultitaskConfig",),
    "experiment": ("fit_multitask",),
    "models": ("MultitaskNetwork", "TaskData", "TaskScores", "load_multitask", "read_tasks"),
}
__all__ = [name for names in _PLACES.values() for name in names]

if not TYPE_CHECKING:
    __getattr__, __dir__ = fetch_from(__name__, _PLACES)

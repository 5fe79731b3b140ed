"""The classes that clusters are compared with, where the data has any."""

from torch import Tensor

from drpm.data.types import Dataset, Split


def class_labels(data: Dataset, split: Split) -> Tensor | None:
    """The classes of a split, if it has any: those called ``label``, or else the first."""
    name = _target(data)
    return None if name is None else split.targets.get(name)


def class_names(data: Dataset) -> tuple[str, ...]:
    """What the classes of :func:`class_labels` are called; nothing where there are none."""
    name = _target(data)
    return () if name is None else data.classes[name]


def _target(data: Dataset) -> str | None:
    # A label that is a number, not a class, has no names and is nothing to compare clusters with.
    return "label" if "label" in data.classes else next(iter(data.classes), None)

"""The classes of a data set, where it has any."""

from torch import Tensor

from drpm.data.types import Dataset, Split


def class_target(data: Dataset) -> str | None:
    """Which of its targets says the class of an example: ``label``, or else the first.

    A target that is a number, not a class, has no names of classes and is none.
    """
    return "label" if "label" in data.classes else next(iter(data.classes), None)


def class_labels(data: Dataset, split: Split) -> Tensor | None:
    """The classes of a split, if it has any."""
    name = class_target(data)
    return None if name is None else split.targets.get(name)


def class_names(data: Dataset) -> tuple[str, ...]:
    """What the classes of :func:`class_labels` are called; nothing where there are none."""
    name = class_target(data)
    return () if name is None else data.classes[name]

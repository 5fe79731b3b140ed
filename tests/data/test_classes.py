"""Which labels are classes."""

import torch

from drpm.data.classes import class_labels, class_names
from drpm.data.types import Dataset, Split


def targets(classes: dict[str, tuple[str, ...]], **of: list[float]) -> Dataset:
    values = {name: torch.tensor(value) for name, value in of.items()}
    split = Split(torch.zeros(len(next(iter(of.values()), [])), 1), values)
    return Dataset("some", split, split, classes)


def test_the_label_comes_before_others() -> None:
    data = targets({"kind": ("a", "b"), "label": ("c", "d")}, kind=[0, 1], label=[1, 0])
    labels = class_labels(data, data.test)
    assert labels is not None
    assert labels.tolist() == [1, 0]
    assert class_names(data) == ("c", "d")


def test_else_the_first_that_has_classes() -> None:
    data = targets({"kind": ("a", "b"), "sort": ("c",)}, price=[0.5, 2], kind=[0, 1], sort=[0, 0])
    labels = class_labels(data, data.train)
    assert labels is not None
    assert labels.tolist() == [0, 1]
    assert class_names(data) == ("a", "b")


def test_a_label_that_is_a_number_is_no_class() -> None:
    data = targets({}, label=[0.5, 1.5])
    assert class_labels(data, data.test) is None
    assert class_names(data) == ()


def test_nothing() -> None:
    data = targets({})
    assert class_labels(data, data.test) is None
    assert class_names(data) == ()

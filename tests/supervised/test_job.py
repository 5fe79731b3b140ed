"""Which classes are learnt, what a person is warned of, and the table of what was predicted."""

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
import torch

from drpm.data.types import Dataset, Split
from drpm.supervised.fitted import FittedPartitioner
from drpm.supervised.job import Job, LabelledData, cautions, check_job, find_classes, open_job
from drpm.supervised.labels import LABELS, JudgedPart, label_table
from drpm.supervised.models import Partitioner
from drpm.training.config import TrainingConfig
from drpm.training.errors import ConfigError
from tests.supervised.toys import CLASSES, CONFIG, blobs

NAMES = ("a", "b", "c")


def several(count: int = 10) -> Dataset:
    """Two classes each, and a number."""
    targets = {
        "height": torch.rand(count),
        "left": torch.arange(count) % 2,
        "right": torch.arange(count) % 3,
    }
    part = Split(torch.zeros(count, 2), targets)
    return Dataset("some", part, part, {"left": ("x", "y"), "right": NAMES})


def labelled(train: list[int], test: list[int]) -> LabelledData:
    parts = [Split(torch.zeros(len(x), 2), {"label": torch.tensor(x)}) for x in (train, test)]
    return LabelledData(Dataset("some", *parts, {"label": NAMES}), "label", NAMES)


def job(**training: int) -> Job:
    return Job(supervised=replace(CONFIG, training=TrainingConfig(**{"batch_size": 2, **training})))


def test_the_target_is_the_first_or_the_chosen() -> None:
    first, chosen = find_classes(several()), find_classes(several(), "right")
    assert (first.target, first.names) == ("left", ("x", "y"))
    assert (chosen.target, chosen.names) == ("right", NAMES)
    test = chosen.dataset.test
    assert torch.equal(chosen.labels(test), test.targets["right"])
    data = several()
    named = replace(data, classes=MappingProxyType({**data.classes, "label": NAMES}))
    with pytest.raises(ConfigError, match="must have a class for every element"):
        find_classes(named)


@pytest.mark.parametrize("target", ["up", "height", ""])
def test_a_target_that_is_none(target: str) -> None:
    with pytest.raises(
        ConfigError, match=f"target must be one of 'left', 'right', but got '{target}'"
    ):
        find_classes(several(), target)


def test_places_in_what_was_read() -> None:
    """The rows of a part are those of the whole at their places."""
    whole = several(20)
    marked = Split(torch.arange(20.0)[:, None], whole.train.targets)
    data = find_classes(replace(whole, train=marked, test=marked))
    for part, places in zip((data.dataset.train, data.dataset.test), data.places(), strict=True):
        assert torch.equal(part.inputs.flatten(), places.float())
    apart = find_classes(replace(whole, test=several(5).test))
    assert [places.tolist() for places in apart.places()] == [[*range(20)], [*range(5)]]


@pytest.mark.parametrize(
    ("train", "test", "complaint"),
    [
        ([0, 1, 3], [0, 1], "^labels must be from 0 to 2, but got some from 0 to 3"),
        ([0, 1, 2], [0, 3], "^labels of the test part must be from 0 to 2, but got some from 0"),
        ([0, 1, 2], [0, -1], "^labels of the test part must be from 0 to 2, but got some from -1"),
    ],
)
def test_classes_without_a_name(train: list[int], test: list[int], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        check_job(job(), labelled(train, test))


def test_nothing_to_be_warned_of() -> None:
    assert cautions(job(), labelled([0, 1, 2], [0, 0, 1, 1, 2, 2])) == []


@pytest.mark.parametrize(
    ("test", "few"),
    [([0, 1], 3), ([0, 0, 1, 1, 2], 1), ([0, 0, 0, 0, 0], 2)],
)
def test_scores_that_say_little(test: list[int], few: int) -> None:
    (found,) = cautions(job(), labelled([0, 1, 2], test))
    assert found == (
        "The scores say little, because the test part has fewer than two elements of "
        f"{few} of the 3 classes."
    )


def test_classes_that_cannot_be_learnt() -> None:
    (found,) = cautions(job(), labelled([0, 0, 1], [0, 0, 1, 1, 2, 2]))
    assert found == "There is nothing to learn from of 1 of the 3 classes."
    # Nothing is learnt from what is held out: here all elements but one.
    chosen = replace(job(batch_size=1).supervised, size_weights=(0.1, 1.0), held_out=0.9)
    held = replace(job(), supervised=chosen)
    (found,) = cautions(held, labelled([0, 1, 2] * 3, [0, 0, 1, 1, 2, 2]))
    assert found == "There is nothing to learn from of 2 of the 3 classes."


def test_a_batch_larger_than_what_is_learnt_from() -> None:
    """What is held out is not learnt from."""
    data = labelled([0, 1, 2] * 10, [0, 0, 1, 1, 2, 2])
    assert cautions(job(batch_size=30), data) == []
    (found,) = cautions(job(batch_size=1_000), data)
    assert found.startswith("training.batch_size is 1,000, but there are 30 elements to learn from")
    chosen = replace(CONFIG, size_weights=(0.1, 1.0), held_out=0.2)
    held = replace(job(), supervised=replace(chosen, training=TrainingConfig(batch_size=30)))
    (found,) = cautions(held, data)
    assert found.startswith("training.batch_size is 30, but there are 24 elements to learn from")


def test_labels_of_another_run_do_not_stay(tmp_path: Path) -> None:
    open_job(tmp_path, job())
    (tmp_path / LABELS).touch()
    open_job(tmp_path, job())
    assert (tmp_path / LABELS).exists()
    open_job(tmp_path, job(batch_size=3), overwrite=True)
    assert not (tmp_path / LABELS).exists()


def test_the_table_of_labels() -> None:
    """Whatever batches came in whatever order, a line says what is true of its element."""
    model = FittedPartitioner(Partitioner(2, CLASSES, CONFIG), (2,))
    names = ["p", "q", "r", "s"]
    parts, places = [], (torch.tensor([2, 0, 3]), torch.tensor([4, 1]))
    for name, where in zip(("train", "test"), places, strict=True):
        elements, labels = blobs(len(where), seed=len(where))
        parts.append(JudgedPart(name, model.judge(elements, labels), labels, where))
    files = [f"image {place}.png" for place in range(5)]
    header, *lines = label_table(parts, names, files, whole=True).splitlines()
    assert header == "split,index,class,subset,batch,file"
    cells = [line.split(",") for line in lines]
    assert [int(line[1]) for line in cells] == [0, 1, 2, 3, 4]
    assert [line[0] for line in cells] == ["train", "test", "train", "train", "test"]
    assert [line[5] for line in cells] == files
    for part in parts:
        of_element = dict(zip(part.judged.order.tolist(), part.judged.subsets, strict=True))
        for element, place in enumerate(part.places.tolist()):
            assert cells[place][2] == names[part.labels[element]]
            assert cells[place][3] == names[of_element[element]]
    apart = label_table(parts, names, [], whole=False).splitlines()
    assert apart[0] == "split,index,class,subset,batch"
    assert [line.split(",")[:2] for line in apart[1:]] == [
        *(["train", str(place)] for place in (0, 2, 3)),
        *(["test", str(place)] for place in (1, 4)),
    ]

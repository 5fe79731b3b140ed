"""Scores of partitions, against scikit-learn and by hand."""

import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score

from drpm.supervised.evaluation import confusion, partition_scores, shuffled_batches


def test_scores_against_scikit_learn() -> None:
    labels, found = torch.randint(5, (2, 300))
    found[:150] = labels[:150]
    batch = torch.arange(300) // 100
    scores = partition_scores(labels, found, 5, batch)
    assert scores.f1 == pytest.approx(f1_score(labels, found, average="macro"))
    assert scores.accuracy == pytest.approx(accuracy_score(labels, found))
    errors = [
        abs(int((labels[batch == b] == k).sum()) - int((found[batch == b] == k).sum()))
        for b in range(3)
        for k in range(5)
    ]
    assert scores.size_error == pytest.approx(sum(errors) / len(errors))


def test_a_class_that_is_always_missed_counts() -> None:
    labels = torch.tensor([0, 0, 0, 1])
    scores = partition_scores(labels, torch.zeros(4).long(), 2, torch.zeros(4).long())
    assert scores.f1 == pytest.approx((6 / 7 + 0) / 2)
    # More batches than classes.
    scores = partition_scores(labels, labels, 2, torch.arange(4))
    assert scores == (1.0, 1.0, 0.0)


def test_confusion() -> None:
    table = confusion(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), 2)
    assert table.tolist() == [[1, 1], [0, 1]]


@pytest.mark.parametrize(("count", "size", "number"), [(10, 3, 3), (7, 100, 1), (256, 64, 4)])
def test_batches_hold_everything_once(count: int, size: int, number: int) -> None:
    batches = shuffled_batches(count, size, seed=3)
    assert len(batches) == number
    assert sorted(torch.cat(batches).tolist()) == list(range(count))
    lengths = [len(batch) for batch in batches]
    assert max(lengths) - min(lengths) <= 1
    orders = [torch.cat(shuffled_batches(count, size, seed)).tolist() for seed in (3, 4)]
    assert torch.cat(batches).tolist() == orders[0]
    assert len({*map(tuple, orders), tuple(range(count))}) == 3


@pytest.mark.parametrize("name", ["labels", "found", "batch"])
def test_what_does_not_fit_is_refused(name: str) -> None:
    given = {"labels": torch.zeros(4).long(), "found": torch.zeros(4).long()}
    given["batch"] = torch.zeros(4).long()
    given[name] = torch.zeros(4)
    with pytest.raises(ValueError, match=rf"{name} must be whole numbers of the shape \(4,\)"):
        partition_scores(given["labels"], given["found"], 2, given["batch"])


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("labels", 2, "labels must be from 0 to 1, but got some from 0 to 2"),
        ("labels", -1, "labels must be from 0 to 1, but got some from -1 to 0"),
        # Row after row, such a pair is the place of another.
        ("found", 3, "found must be from 0 to 1, but got some from 0 to 3"),
        ("found", -1, "found must be from 0 to 1, but got some from -1 to 0"),
        ("batch", 4, "batch must be from 0 to 3, but got some from 0 to 4"),
        ("batch", -1, "batch must be from 0 to 3, but got some from -1 to 0"),
    ],
)
def test_numbers_out_of_range_are_refused(name: str, value: int, complaint: str) -> None:
    given = {each: torch.zeros(4).long() for each in ("labels", "found", "batch")}
    given[name][1] = value
    with pytest.raises(ValueError, match=complaint):
        partition_scores(given["labels"], given["found"], 2, given["batch"])


def test_nothing_is_refused() -> None:
    nothing = torch.zeros(0).long()
    with pytest.raises(ValueError, match="labels must be one or more, but got none"):
        partition_scores(nothing, nothing, 2, nothing)
    with pytest.raises(ValueError, match=r"labels must be whole numbers of the shape \(1,\)"):
        partition_scores(torch.tensor(1), nothing, 2, nothing)

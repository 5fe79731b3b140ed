"""The distribution of a batch's partition, its objective and its scores."""

import math
from dataclasses import replace

import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from torch import Tensor, nn

from drpm import RelaxedRandomPartition
from drpm.supervised.config import SupervisedConfig
from drpm.supervised.models import (
    Partitioner,
    SupervisedObjective,
    partition_scores,
)
from drpm.training.errors import ConfigError
from tests.supervised.toys import CLASSES, CONFIG, blobs

OBJECTIVE = SupervisedObjective(1.0)
SCHEDULE = {"temperature": torch.tensor(1.0)}


def knowing(classes: int = CLASSES) -> Partitioner:
    model = Partitioner((classes,), classes, CONFIG)
    model.network = nn.Identity()  # rows are logits already
    return model


def sure(labels: Tensor, classes: int = CLASSES) -> Tensor:
    return 50.0 * nn.functional.one_hot(labels, classes).float()


@pytest.mark.parametrize(
    "labels", [[0, 1, 2, 3], [3, 1, 1, 0, 2, 1, 3, 3, 3], [2, 2, 2], [0], [3, 0]]
)
def test_who_knows_every_class_partitions_rightly(labels: list[int]) -> None:
    """Whatever the classes' sizes are, be it none at all."""
    truth = torch.tensor(labels)
    parts = knowing().law(sure(truth), 0.05).rsample_parts(noise="none")
    assert parts.Y.argmax(0).tolist() == labels
    assert parts.sizes.tolist() == torch.bincount(truth, minlength=CLASSES).tolist()


def test_scores_and_weights_in_closed_form() -> None:
    chances = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.2, 0.7]])
    law = knowing(3).law((chances + 1e-9).log(), 1.0)
    expected = [CONFIG.scale * (3 - 0.5), CONFIG.scale * (3 - 0.2 - 1.4)]
    assert law.log_scores.tolist() == pytest.approx(expected)
    shares = [0.3, 0.35, 0.35]
    assert law.log_weights.tolist() == pytest.approx([math.log(p / (1 - p)) for p in shares])


def test_unequal_sizes_are_those_expected() -> None:
    """Odds as weights: the likeliest sizes are the sums of chances, also where they are uneven."""
    labels = torch.arange(CLASSES).repeat_interleave(torch.tensor([60, 5, 25, 10]))
    # Nobody is sure, but on the whole the numbers are right.
    shares = torch.tensor([0.6, 0.05, 0.25, 0.1]).log().expand(len(labels), -1)
    parts = knowing().law(shares, 1.0).rsample_parts(noise="none")
    assert (parts.sizes - torch.bincount(labels)).abs().max() <= 1


def test_the_loss_of_whoever_is_right_and_of_whoever_is_wrong() -> None:
    labels = torch.tensor([0, 0, 1, 2, 3, 3])
    config = replace(CONFIG, scale=10.0)
    model = knowing()
    model.config = config
    objective, schedule = SupervisedObjective(2.0), {"temperature": torch.tensor(0.1)}

    def terms(taken_for: Tensor) -> dict[str, float]:
        batch = {"rows": sure(taken_for), "labels": labels}
        found = objective(model, batch, schedule, None)
        return {name: float(value) for name, value in found.items()}

    right = terms(labels)
    even = config.smoothing / CLASSES
    assert right["assignment"] == pytest.approx(-math.log(1 - config.smoothing + even), abs=1e-5)
    assert right["sizes"] == pytest.approx(0, abs=1e-8)
    wrong = terms((labels + 1) % CLASSES)
    assert wrong["assignment"] == pytest.approx(-math.log(even), abs=1e-4)
    # Sizes are 2, 2, 1, 1 instead of 2, 1, 1, 2.
    assert wrong["sizes"] == pytest.approx(2.0 * (0 + 1 + 0 + 1) / 4)
    assert wrong["loss"] == pytest.approx(wrong["assignment"] + wrong["sizes"])


@pytest.mark.parametrize("term", ["assignment", "sizes"])
def test_terms_and_their_gradients_in_scores_and_weights(term: str) -> None:
    """Both terms reach the weights, and that of the assignment the scores as well."""
    elements, labels = blobs(24, seed=0)
    model = Partitioner((2,), CLASSES, CONFIG)
    law = model.law(elements, 1.0)
    held = [x.detach().requires_grad_() for x in (law.log_scores, law.log_weights)]
    law = RelaxedRandomPartition(1.0, *held, hard="sizes")
    model.law = lambda *given: law  # type: ignore[method-assign,assignment]
    terms = OBJECTIVE(model, {"rows": elements, "labels": labels}, SCHEDULE, None)
    soft = law.rsample_parts(noise="none").Y
    probs = (1 - CONFIG.smoothing) * soft / soft.sum(0) + CONFIG.smoothing / CLASSES
    torch.testing.assert_close(terms["assignment"], nn.functional.nll_loss(probs.T.log(), labels))
    scores, weights = torch.autograd.grad(terms[term], held, allow_unused=True)
    assert weights.abs().max() > 1e-3
    if term == "assignment":
        # Elements of the last class should fall behind, those of the first come forward.
        assert scores[labels == CLASSES - 1].mean() > 0 > scores[labels == 0].mean()
    else:
        # Downhill, the weights of subsets that are too large fall.
        sizes = law.rsample_parts(noise="none").sizes
        excess = sizes.detach() - torch.bincount(labels, minlength=CLASSES)
        assert float((weights * excess).sum()) > 0


def test_scores() -> None:
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
    # A class that is never predicted counts.
    labels = torch.tensor([0, 0, 0, 1])
    scores = partition_scores(labels, torch.zeros(4).long(), 2, torch.zeros(4).long())
    assert scores.f1 == pytest.approx((6 / 7 + 0) / 2)
    # More batches than classes.
    assert partition_scores(labels, labels, 2, torch.arange(4)) == (1.0, 1.0, 0.0)


def test_candidates_must_differ() -> None:
    with pytest.raises(ConfigError, match="size_weights must be numbers that differ"):
        SupervisedConfig(size_weights=(0.1, 0.1))

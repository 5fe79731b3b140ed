"""The partition of a batch, its objective and scores; what is learnt, chosen, saved and refused."""

import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from torch import Tensor, nn

from drpm import RelaxedRandomPartition
from drpm.supervised import models
from drpm.supervised.config import SupervisedConfig
from drpm.supervised.models import (
    Partitioner,
    SupervisedObjective,
    TrainedPartitioner,
    fit_partitioner,
    load_partitioner,
    partition_scores,
    split,
)
from drpm.training.config import TrainingConfig
from drpm.training.errors import ConfigError, RunError

CLASSES = 4

CONFIG = SupervisedConfig(
    hidden=(32,),
    scale=0.1,
    size_weights=(0.01,),
    training=TrainingConfig(epochs=8, batch_size=32, learning_rate=1e-2, device="cpu"),
)


def blobs(count: int, seed: int, shares: Any = (1, 1, 1, 1)) -> tuple[Tensor, Tensor]:
    """Points (count, 2) and their classes, whose order is not that of the plane."""
    noise = torch.Generator().manual_seed(seed)
    labels = torch.tensor(shares, dtype=torch.float64).multinomial(count, True, generator=noise)
    centers = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
    return centers[labels] + 0.4 * torch.randn(count, 2, generator=noise), labels


def fit(folder: Path, config: SupervisedConfig = CONFIG, **options: Any) -> TrainedPartitioner:
    return fit_partitioner(*blobs(640, seed=1), CLASSES, config, folder, **options)


def knowing(classes: int = CLASSES) -> Partitioner:
    model = Partitioner((classes,), classes, CONFIG)
    model.network = nn.Identity()  # rows are logits already
    return model


def sure(labels: Tensor, classes: int = CLASSES) -> Tensor:
    return 50.0 * nn.functional.one_hot(labels, classes).float()


@pytest.mark.parametrize("labels", [[3, 1, 1, 0, 2, 1, 3, 3, 3], [2, 2, 2], [3, 0]])
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


@pytest.mark.parametrize("term", ["assignment", "sizes"])
def test_terms_and_their_gradients_in_scores_and_weights(term: str) -> None:
    """Both terms reach the weights, and that of the assignment the scores as well."""
    elements, labels = blobs(24, seed=0)
    model = Partitioner((2,), CLASSES, CONFIG)
    law = model.law(elements, 1.0)
    held = [x.detach().requires_grad_() for x in (law.log_scores, law.log_weights)]
    law = RelaxedRandomPartition(1.0, *held, hard="sizes")
    model.law = lambda *given: law  # type: ignore[method-assign,assignment]
    batch, schedule = {"rows": elements, "labels": labels}, {"temperature": torch.tensor(1.0)}
    terms = SupervisedObjective(2.0)(model, batch, schedule, None)
    soft, sizes = law.rsample_parts(noise="none")[:2]
    excess = sizes.detach() - torch.bincount(labels, minlength=CLASSES)
    torch.testing.assert_close(terms["sizes"], 2 * excess.square().mean())
    torch.testing.assert_close(terms["loss"], terms["assignment"] + terms["sizes"])
    probs = (1 - CONFIG.smoothing) * soft / soft.sum(0) + CONFIG.smoothing / CLASSES
    torch.testing.assert_close(terms["assignment"], nn.functional.nll_loss(probs.T.log(), labels))
    scores, weights = torch.autograd.grad(terms[term], held, allow_unused=True)
    assert weights.abs().max() > 1e-3
    if term == "assignment":
        # Elements of the last class should fall behind, those of the first come forward.
        assert scores[labels == CLASSES - 1].mean() > 0 > scores[labels == 0].mean()
    else:
        # Downhill, the weights of subsets that are too large fall.
        assert float((weights * excess).sum()) > 0


def test_scores() -> None:
    labels, found = torch.randint(5, (2, 300))
    found[:150] = labels[:150]
    batch = torch.arange(300) // 100
    scores = partition_scores(labels, found, 5, batch)
    assert scores.f1 == pytest.approx(f1_score(labels, found, average="macro"))
    assert scores.accuracy == pytest.approx(accuracy_score(labels, found))
    taken, true = (torch.nn.functional.one_hot(x).unflatten(0, (3, 100)) for x in (found, labels))
    errors = (taken.sum(1) - true.sum(1)).abs().double()
    assert scores.size_error == pytest.approx(float(errors.mean()))
    # A class that is never predicted counts.
    labels = torch.tensor([0, 0, 0, 1])
    scores = partition_scores(labels, torch.zeros(4).long(), 2, torch.zeros(4).long())
    assert scores.f1 == pytest.approx((6 / 7 + 0) / 2)
    # More batches than classes.
    assert partition_scores(labels, labels, 2, torch.arange(4)) == (1.0, 1.0, 0.0)


QUICK = replace(CONFIG, training=replace(CONFIG.training, epochs=1))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Partitioner:
    torch.manual_seed(0)
    return fit(tmp_path_factory.mktemp("blobs")).model


def test_blobs_are_learnt(fitted: Partitioner) -> None:
    """With each of 16 seeds F1 was 1 and the size error 0, here and in batches of other sizes."""
    scores = fitted.evaluate(*blobs(400, seed=2)).scores
    assert scores.f1 > 0.97
    assert scores.size_error < 0.3


def test_batches_of_other_sizes_and_shares(fitted: Partitioner) -> None:
    """Sizes are those of the batch, not those of the training set."""
    elements, labels = blobs(60, seed=3, shares=(10, 1, 3, 0))
    found = fitted.partition(elements)
    assert (found.subsets == labels).double().mean() > 0.9
    assert torch.equal(found.sizes, torch.bincount(found.subsets, minlength=CLASSES))
    truth = torch.bincount(labels, minlength=CLASSES)
    assert (found.sizes - truth).abs().max() <= 2


def test_the_best_candidate_on_held_out_examples_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(QUICK, size_weights=(0.0, 0.01, 1.0), held_out=0.25)
    elements, labels = blobs(640, seed=1)
    taught, held = split(640, config)
    assert sorted([*taught.tolist(), *held.tolist()]) == list(range(640))
    assert len(split(640, QUICK)[1]) == 0
    with pytest.raises(ConfigError, match="held_out must leave examples"):
        split(1, config)
    with pytest.raises(ConfigError, match="size_weights must be numbers that differ"):
        SupervisedConfig(size_weights=(0.1, 0.1))
    seen: list[Any] = []
    train = models.fit_model

    def note_rows(*given: Any, **options: Any) -> Any:
        seen.append(given[4])
        return train(*given, **options)

    monkeypatch.setattr(models, "fit_model", note_rows)
    found = fit(tmp_path, config)
    assert (found.held_out, set(found.f1)) == (160, {0.0, 0.01, 1.0})
    assert found.size_weight == max(found.f1, key=lambda weight: found.f1[weight])
    assert found.folder == tmp_path / "training" / f"weight-{found.size_weight}"
    scores = found.model.evaluate(elements[held], labels[held]).scores
    assert scores.f1 == found.f1[found.size_weight]
    for data in seen:
        assert torch.equal(data["rows"], elements[taught])
        assert torch.equal(data["labels"], labels[taught])
    # Finished trainings are read and not repeated.
    again = fit(tmp_path, config)
    assert again.f1 == found.f1
    one, other = (x.model.state_dict() for x in (found, again))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_tensors_and_arrays_are_the_same_data(tmp_path: Path) -> None:
    elements, labels = blobs(64, seed=1)

    def train(elements: Any, labels: Any) -> dict[str, torch.Tensor]:
        found = fit_partitioner(elements, labels, CLASSES, QUICK, tmp_path)
        return found.model.state_dict()

    first = train(elements, labels)
    same = train(elements.double().numpy(), labels.int())
    torch.testing.assert_close(same, first, rtol=0, atol=0)
    for other in ((elements, CLASSES - 1 - labels), (-elements, labels)):
        with pytest.raises(RunError, match="data"):
            train(*other)
    with pytest.raises(ConfigError, match="elements must be floating-point numbers"):
        train(elements.byte(), labels)
    with pytest.raises(ConfigError, match="labels must be integers of shape"):
        train(elements, labels.float())


def test_saved_and_loaded(tmp_path: Path, fitted: Partitioner) -> None:
    """With a scale, the loaded model takes rows in the units of the file."""
    elements, labels = blobs(50, seed=8)
    expected = fitted.partition(elements)
    shift, scale = torch.tensor([1e9, -3.0]).double(), torch.tensor([2.0, 1e-3]).double()
    scaled = deepcopy(fitted)
    scaled.shift, scaled.scale = shift, scale
    for model, rows in ((fitted, elements), (scaled, elements.double() * scale + shift)):
        model.save(tmp_path / "model")
        again = load_partitioner(tmp_path / "model")
        assert again.config == fitted.config
        for given in (rows, rows.numpy()):
            assert all(map(torch.equal, again.partition(given), expected))
        assert again.evaluate(rows, labels).scores == fitted.evaluate(elements, labels).scores


def test_images_of_whole_numbers_are_refused() -> None:
    model = Partitioner((1, 2, 2), CLASSES, CONFIG)
    images = torch.randint(0, 256, (5, 1, 2, 2), dtype=torch.uint8)
    for given in (images, images.tolist()):
        with pytest.raises(ValueError, match="but got integers"):
            model.partition(given)
    rows = images.float().div(255)
    assert torch.equal(model.partition(rows).subsets, model.partition(rows.flatten(1)).subsets)


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        (torch.zeros(3, 3), r"must have shape \(n, 2\), or rows of as many .* \(3, 3\)"),
        (torch.zeros(0, 2), "must not be empty"),
        (torch.tensor([[0.0, math.nan], [1.0, 2.0]]), "must be finite numbers"),
        (np.array([[1 + 2j, 0]]), "must be real numbers, but got complex ones"),
        (np.array([["1", "setosa"]]), "must be numbers, but got .*'setosa'"),
    ],
)
def test_bad_elements(fitted: Partitioner, elements: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^elements {message}"):
        fitted.partition(elements)

"""Training and predictions: what is learnt, chosen, saved and refused."""

import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drpm.cli.train import read_settings
from drpm.supervised import models
from drpm.supervised.config import SupervisedJob
from drpm.supervised.models import Partitioner, fit_partitioner, load_partitioner, split
from drpm.training.checkpoint import save_model
from drpm.training.errors import ConfigError, RunError
from tests.supervised.toys import CLASSES, CONFIG, blobs, fit

QUICK = replace(CONFIG, training=replace(CONFIG.training, epochs=1))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Partitioner:
    torch.manual_seed(0)
    return fit(tmp_path_factory.mktemp("blobs")).model


def test_blobs_are_learnt(fitted: Partitioner) -> None:
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


def test_every_element_is_judged_once(fitted: Partitioner) -> None:
    elements, labels = blobs(100, seed=5)
    evaluated = fitted.evaluate(elements, labels)
    assert sorted(evaluated.order.tolist()) == list(range(100))
    assert torch.bincount(evaluated.batch).tolist() == [34, 33, 33]
    again = fitted.partition(elements[evaluated.order[evaluated.batch == 1]]).subsets
    assert torch.equal(evaluated.subsets[evaluated.batch == 1], again)


def test_the_settings_of_a_training_are_a_preset(tmp_path: Path) -> None:
    fit(tmp_path, QUICK)
    path = tmp_path / "training" / "weight-0.01" / "config.toml"
    assert "fingerprint" in path.read_text()
    options = {"preset": str(path), "settings": [], "device": "cpu"}
    assert read_settings(SupervisedJob, options)[0] == QUICK


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
    save_model(tmp_path / "other", fitted.state_dict(), {"kind": "factors"})
    with pytest.raises(RunError, match="kind 'supervised', but got 'factors'"):
        load_partitioner(tmp_path / "other")


def test_images_of_whole_numbers_are_refused() -> None:
    model = Partitioner((1, 2, 2), CLASSES, CONFIG)
    images = torch.randint(0, 256, (5, 1, 2, 2), dtype=torch.uint8)
    for given in (images, images.numpy(), images.tolist()):
        with pytest.raises(ValueError, match="but got integers"):
            model.partition(given)
    rows = images.float().div(255)
    assert torch.equal(model.partition(rows).subsets, model.partition(rows.flatten(1)).subsets)


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        (torch.zeros(3, 3), r"must have shape \(n, 2\), or rows of as many .* \(3, 3\)"),
        (torch.zeros(2), r"must have shape \(n, 2\), or rows of as many .* \(2,\)"),
        (torch.zeros(0, 2), "must not be empty"),
        (torch.tensor([[0.0, math.nan], [1.0, 2.0]]), "must be finite numbers"),
        (np.array([[1 + 2j, 0]]), "must be real numbers, but got complex ones"),
        (torch.tensor([[1 + 2j, 0]]), "must be real numbers, but got complex ones"),
        (np.array([["1", "setosa"]]), "must be numbers, but got .*'setosa'"),
        ([[1.0, 2.0], [3.0]], "must be numbers, but got"),
    ],
)
def test_bad_elements(fitted: Partitioner, elements: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^elements {message}"):
        fitted.partition(elements)

"""Training: what is learnt, what is chosen, and what is left in folders."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drpm.cli.train import read_settings
from drpm.supervised import training
from drpm.supervised.config import SupervisedConfig, SupervisedJob
from drpm.supervised.fitted import FittedPartitioner, load_partitioner
from drpm.supervised.models import Partitioner
from drpm.supervised.training import fit_partitioner, split
from drpm.training.checkpoint import save_model
from drpm.training.errors import ConfigError, RunError
from tests.supervised.toys import CLASSES, CONFIG, blobs, fit
from tests.training.toys import note_temperatures

QUICK = replace(CONFIG, training=replace(CONFIG.training, epochs=1))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> FittedPartitioner:
    torch.manual_seed(0)
    return fit(tmp_path_factory.mktemp("blobs")).model


def test_blobs_are_learnt(fitted: FittedPartitioner) -> None:
    scores = fitted.judge(*blobs(400, seed=2)).scores
    assert scores.f1 > 0.97
    assert scores.size_error < 0.3


def test_batches_of_other_sizes_and_shares(fitted: FittedPartitioner) -> None:
    """Sizes are those of the batch, not those of the training set."""
    elements, labels = blobs(60, seed=3, shares=(10, 1, 3, 0))
    found = fitted.partition(elements)
    assert (found.subsets == labels).double().mean() > 0.9
    assert torch.equal(found.sizes, torch.bincount(found.subsets, minlength=CLASSES))
    truth = torch.bincount(labels, minlength=CLASSES)
    assert (found.sizes - truth).abs().max() <= 2


def test_in_the_reverse_order_it_is_wrong(
    fitted: FittedPartitioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order is what tells: with all scores negated, the sizes alone are right."""
    parameters_of = Partitioner.parameters_of

    def reversed_scores(self: Partitioner, *given: object) -> tuple[torch.Tensor, torch.Tensor]:
        log_scores, log_weights = parameters_of(self, *given)  # type: ignore[arg-type]
        return -log_scores, log_weights

    monkeypatch.setattr(Partitioner, "parameters_of", reversed_scores)
    scores = fitted.judge(*blobs(400, seed=2)).scores
    assert scores.f1 < 0.2
    assert scores.size_error < 0.3


def test_elements_keep_their_subsets_in_any_order(fitted: FittedPartitioner) -> None:
    elements, _ = blobs(50, seed=4)
    order = torch.randperm(50)
    found = fitted.partition(elements).subsets
    assert torch.equal(fitted.partition(elements[order]).subsets, found[order])


def test_every_element_is_judged_once(fitted: FittedPartitioner) -> None:
    elements, labels = blobs(100, seed=5)
    judged = fitted.judge(elements, labels)
    assert sorted(judged.order.tolist()) == list(range(100))
    assert torch.bincount(judged.batch).tolist() == [34, 33, 33]
    again = fitted.partition(elements[judged.order[judged.batch == 1]]).subsets
    assert torch.equal(judged.subsets[judged.batch == 1], again)


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
    seen: list[Any] = []
    train = training.train_stage

    def note_rows(*given: Any, **options: Any) -> Any:
        seen.append(given[5])
        return train(*given, **options)

    monkeypatch.setattr(training, "train_stage", note_rows)
    found = fit(tmp_path, config)
    assert (found.held_out, set(found.f1)) == (160, {0.0, 0.01, 1.0})
    assert found.size_weight == max(found.f1, key=lambda weight: found.f1[weight])
    assert found.folder == tmp_path / "training" / f"weight-{found.size_weight}"
    assert found.model.judge(elements[held], labels[held]).scores.f1 == found.f1[found.size_weight]
    for data in seen:
        assert torch.equal(data["rows"], elements[taught])
        assert torch.equal(data["labels"], labels[taught])
    # Finished trainings are read and not repeated.
    again = fit(tmp_path, config)
    assert again.f1 == found.f1
    one, other = (x.model.model.state_dict() for x in (found, again))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_candidates_start_alike_and_seeds_differently(tmp_path: Path) -> None:
    def start(weight: float, seed: int) -> dict[str, torch.Tensor]:
        config = replace(
            CONFIG,
            size_weights=(weight,),
            training=replace(CONFIG.training, epochs=0, seed=seed),
        )
        network = fit(tmp_path / f"{weight} {seed}", config).model.model.network
        return dict(network.named_parameters())

    torch.testing.assert_close(start(0.0, 3), start(0.01, 3), rtol=0, atol=0)
    other = start(0.0, 4)
    assert not any(torch.equal(value, other[name]) for name, value in start(0.0, 3).items())


def test_tensors_and_arrays_are_the_same_data(tmp_path: Path) -> None:
    elements, labels = blobs(64, seed=1)

    def train(elements: Any, labels: Any) -> dict[str, torch.Tensor]:
        found = fit_partitioner(elements, labels, CLASSES, QUICK, tmp_path)
        return found.model.model.state_dict()

    first = train(elements, labels)
    same = train(elements.double().numpy(), labels.int())
    torch.testing.assert_close(same, first, rtol=0, atol=0)
    for other in ((elements, CLASSES - 1 - labels), (-elements, labels)):
        with pytest.raises(RunError, match="data"):
            train(*other)
    with pytest.raises(ConfigError, match="elements must be floating-point numbers"):
        train(elements.byte(), labels)


@pytest.mark.parametrize(("weights", "steps"), [((0.01,), 40)])
def test_the_temperature_falls_over_the_whole_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: tuple[float, ...], steps: int
) -> None:
    """Over two epochs of what is left to learn from."""
    seen = note_temperatures(monkeypatch)
    training = replace(CONFIG.training, epochs=2)
    config = replace(CONFIG, size_weights=weights, held_out=0.2, temperature=(0.8, 0.2))
    fit(tmp_path, replace(config, training=training))
    assert seen == pytest.approx([0.8 * 0.25 ** (step / steps) for step in range(steps)])


def test_what_is_held_out() -> None:
    several = SupervisedConfig(held_out=0.2)
    taught, held = split(50, several)
    assert len(held) == 10
    assert sorted([*taught.tolist(), *held.tolist()]) == list(range(50))
    assert torch.equal(split(50, several)[1], held)
    assert len(split(50, replace(several, size_weights=(0.1,)))[1]) == 0
    with pytest.raises(ConfigError, match="held_out must leave examples"):
        split(1, several)


def test_saved_and_loaded(tmp_path: Path, fitted: FittedPartitioner) -> None:
    fitted.save(tmp_path / "model")
    again = load_partitioner(tmp_path / "model")
    assert again.config == fitted.config
    elements, _ = blobs(50, seed=7)
    for one, other in zip(again.partition(elements), fitted.partition(elements), strict=True):
        assert torch.equal(one, other)
    save_model(tmp_path / "other", fitted.model.state_dict(), {"kind": "factors"})
    with pytest.raises(RunError, match="another kind of model"):
        load_partitioner(tmp_path / "other")


def test_a_scale_is_kept(tmp_path: Path, fitted: FittedPartitioner) -> None:
    """Rows with it are those without it, in other units and as their owner has them."""
    elements, labels = blobs(50, seed=8)
    shift, scale = torch.tensor([1e9, -3.0]).double(), torch.tensor([2.0, 1e-3]).double()
    replace(fitted, shift=shift, scale=scale).save(tmp_path / "model")
    again = load_partitioner(tmp_path / "model").to("cpu")
    raw = elements.double() * scale + shift
    assert torch.equal(again.partition(raw).subsets, fitted.partition(elements).subsets)
    assert torch.equal(again.partition(raw.numpy()).sizes, fitted.partition(elements).sizes)
    assert again.judge(raw, labels).scores == fitted.judge(elements, labels).scores
    # One that has none takes rows as they come.
    fitted.save(tmp_path / "plain")
    plain = load_partitioner(tmp_path / "plain")
    assert plain.shift is None
    assert torch.equal(plain.partition(elements).subsets, fitted.partition(elements).subsets)


def test_images_of_whole_numbers_are_refused() -> None:
    model = FittedPartitioner(Partitioner(4, CLASSES, CONFIG), (1, 2, 2))
    images = torch.randint(0, 256, (5, 1, 2, 2), dtype=torch.uint8)
    for given in (images, images.numpy(), images.long(), images.tolist()):
        with pytest.raises(ValueError, match="gives them, but got whole numbers"):
            model.partition(given)
    rows = images.float().div(255)
    assert torch.equal(model.partition(rows).subsets, model.partition(rows.flatten(1)).subsets)


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        (torch.zeros(3, 3), r"must have the shape \(n, 2\), or rows of as many .* \(3, 3\)"),
        (torch.zeros(2), r"must have the shape \(n, 2\), or rows of as many .* \(2,\)"),
        (torch.zeros(0, 2), "must be one or more, but got none"),
        (torch.tensor([[0.0, math.nan], [1.0, 2.0]]), "must be finite numbers"),
        (np.array([[1 + 2j, 0]]), "must be real numbers, but got complex ones"),
        (torch.tensor([[1 + 2j, 0]]), "must be real numbers, but got complex ones"),
        (np.array([["1", "setosa"]]), "must be numbers, but got .*'setosa'"),
        ([[1.0, 2.0], [3.0]], "must be numbers, but got"),
    ],
)
def test_bad_elements(fitted: FittedPartitioner, elements: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^elements {message}"):
        fitted.partition(elements)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.zeros(3).long(), r"labels must be whole numbers of the shape \(4,\)"),
        (torch.zeros(4), r"labels must be whole numbers of the shape \(4,\)"),
        (torch.tensor([0, 1, 2, 4]), "labels must be from 0 to 3, but got some from 0 to 4"),
        (torch.tensor([0, 1, 2, -1]), "labels must be from 0 to 3, but got some from -1 to 2"),
    ],
)
def test_bad_labels(tmp_path: Path, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fit_partitioner(torch.zeros(4, 2), labels, 4, QUICK, tmp_path / "run")
    assert not (tmp_path / "run").exists()

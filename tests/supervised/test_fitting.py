"""Training: what is learnt, what is chosen, and what is left in folders."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drpm.cli.settings import read_settings
from drpm.supervised import pipeline
from drpm.supervised.config import SupervisedConfig
from drpm.supervised.fitted import FittedPartitioner, load_partitioner
from drpm.supervised.models import Partitioner
from drpm.supervised.pipeline import Selection, fit_partitioners, select, split
from drpm.training.checkpoint import save_model
from drpm.training.errors import ConfigError, RunError
from tests.supervised.toys import CLASSES, CONFIG, blobs, fit
from tests.training.toys import note_temperatures

QUICK = replace(CONFIG, training=replace(CONFIG.training, epochs=1))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> FittedPartitioner:
    torch.manual_seed(0)
    return fit(tmp_path_factory.mktemp("blobs")).models[0]


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


def test_weights_and_seeds_are_trained_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(QUICK, size_weights=(0.0, 0.01), held_out=0.25)
    found = fit(tmp_path, config, seeds=(3, 4))
    weight, held_out, scores = found.selection
    assert held_out == 160
    assert {w: len(f1) for w, f1 in scores.items()} == {0.0: 2, 0.01: 2}
    assert weight == max(scores, key=lambda w: sum(scores[w]))
    # Finished, it is read and not trained again.
    again = fit(tmp_path, config, seeds=(3, 4))
    assert again.selection == found.selection
    for one, other in zip(again.models, found.models, strict=True):
        torch.testing.assert_close(one.model.state_dict(), other.model.state_dict(), rtol=0, atol=0)
    # One of them alone knows what both have chosen.
    alone = fit(tmp_path, config, seeds=(4,))
    assert (alone.selection, alone.chosen_by) == (found.selection, [3, 4])
    start, end = (x.models[-1].model.state_dict() for x in (found, alone))
    torch.testing.assert_close(start, end, rtol=0, atol=0)
    choices = [tmp_path / str(seed) / "training" / "choice.json" for seed in (3, 4)]
    for kept in config.size_weights:
        # With one of them gone they choose anew.
        choices[0].unlink(missing_ok=True)
        monkeypatch.setattr(pipeline, "select", lambda *_, kept=kept: Selection(kept, 0, {}))
        chosen = fit(tmp_path, config, seeds=(3, 4))
        for seed, model, folder in zip((3, 4), chosen.models, chosen.folders, strict=True):
            assert float(model.model.size_weight) == pytest.approx(kept)
            assert folder == tmp_path / str(seed) / "training" / f"weight-{kept}"
    choices[1].write_text('{"seeds": [4]}')
    with pytest.raises(RunError, match=r"choice\.json is not what a run writes"):
        fit(tmp_path, config, seeds=(4,))


def test_what_is_held_out_is_judged_and_not_learnt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(QUICK, size_weights=(0.0, 0.01), held_out=0.25)
    learnt, judged = [], []
    train, choose = pipeline.train_stage, pipeline.select

    def note_rows(*given: Any, **options: Any) -> Any:
        learnt.append(given[5])
        return train(*given, **options)

    def note_judged(candidates: Any, *given: Any) -> Selection:
        judged.append(given)
        return choose(candidates, *given)

    monkeypatch.setattr(pipeline, "train_stage", note_rows)
    monkeypatch.setattr(pipeline, "select", note_judged)
    fit(tmp_path, config)
    elements, labels = blobs(640, seed=1)
    taught, held = split(640, config)
    assert sorted([*taught.tolist(), *held.tolist()]) == list(range(640))
    assert len(learnt) == len(judged) == 1
    assert torch.equal(learnt[0]["rows"], elements[taught])
    assert torch.equal(learnt[0]["labels"], labels[taught])
    assert torch.equal(judged[0][0], elements[held])
    assert torch.equal(judged[0][1], labels[held])


def test_candidates_of_a_seed_start_alike_and_seeds_differently(tmp_path: Path) -> None:
    config = replace(CONFIG, training=replace(CONFIG.training, epochs=0))
    starts = []
    for weight in (0.0, 0.01):
        found = fit(tmp_path / str(weight), replace(config, size_weights=(weight,)), seeds=(3, 4))
        starts.append([dict(model.model.network.named_parameters()) for model in found.models])
    torch.testing.assert_close(starts[0], starts[1], rtol=0, atol=0)
    for name, value in starts[0][0].items():
        assert not torch.equal(value, starts[0][1][name])


def test_another_seed_does_not_get_the_model_of_one(tmp_path: Path) -> None:
    fit(tmp_path, QUICK, seeds=(3, 4))
    with pytest.raises(RunError, match="was begun together with"):
        fit(tmp_path, QUICK, seeds=(3, 5))


def test_other_data_do_not_get_the_model_of_some(tmp_path: Path) -> None:
    elements, labels = blobs(64, seed=1)

    def fit_again(elements: Any, labels: Any) -> FittedPartitioner:
        return fit_partitioners(elements, labels, CLASSES, QUICK, [tmp_path], seeds=[0]).models[0]

    first = fit_again(elements, labels).model.state_dict()
    # The same numbers, whatever holds them.
    same = fit_again(elements.double().numpy(), labels.int()).model.state_dict()
    torch.testing.assert_close(same, first, rtol=0, atol=0)
    for other in ((elements, CLASSES - 1 - labels), (-elements, labels)):
        with pytest.raises(RunError, match="the data are others than those it was begun with"):
            fit_again(*other)


def test_the_settings_of_a_training_are_a_preset(tmp_path: Path) -> None:
    fit(tmp_path, QUICK)
    path = tmp_path / "0" / "training" / "weight-0.01" / "config.toml"
    assert "fingerprint" in path.read_text()
    assert read_settings(SupervisedConfig, "supervised", str(path), [], "cpu") == QUICK


def test_the_best_on_held_out_examples_is_kept(fitted: FittedPartitioner) -> None:
    elements, labels = blobs(100, seed=6)
    untrained = FittedPartitioner(Partitioner(2, CLASSES, CONFIG), (2,))
    for candidates in ({0.1: [untrained], 0.2: [fitted]}, {0.2: [fitted], 0.1: [untrained]}):
        selection = select(candidates, elements, labels)
        assert selection.size_weight == 0.2
        assert selection.f1[0.2][0] == fitted.judge(elements, labels).scores.f1
    alone = select({0.1: [untrained]}, elements[:0], labels[:0])
    assert alone == (0.1, 0, {})


def test_seeds_choose_together(fitted: FittedPartitioner) -> None:
    """Not the first of them: the weight that is best on average."""
    elements, labels = blobs(100, seed=6)
    bad = FittedPartitioner(Partitioner(2, CLASSES, CONFIG), (2,))
    candidates = {0.1: [fitted, bad, bad], 0.2: [bad, fitted, fitted]}
    assert select(candidates, elements, labels).size_weight == 0.2


@pytest.mark.parametrize(("weights", "steps"), [((0.01,), 40), ((0.01, 0.1), 32)])
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
    with pytest.raises(ConfigError, match="held_out must leave examples to learn from"):
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


def test_elements_of_other_kinds(fitted: FittedPartitioner) -> None:
    elements, labels = blobs(50, seed=9)
    elements = elements.half().float()
    expected = fitted.partition(elements).subsets
    locked = elements.double().numpy()
    locked.setflags(write=False)
    for same in (elements.double(), elements.half(), locked, elements.tolist()):
        assert torch.equal(fitted.partition(same).subsets, expected)
    scores = fitted.judge(elements, labels).scores
    assert fitted.judge(locked, labels.numpy()).scores == scores
    whole = torch.tensor([[2, 0], [-2, 0], [0, 2]])
    found = fitted.partition(whole).subsets
    assert torch.equal(found, fitted.partition(whole.float()).subsets)


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


def test_what_is_learnt_from_arrays(tmp_path: Path) -> None:
    elements, labels = blobs(64, seed=1)
    found = [
        fit_partitioners(*given, CLASSES, QUICK, [tmp_path / str(number)], seeds=[0]).models[0]
        for number, given in enumerate(
            [(elements, labels), (elements.double().numpy(), labels.numpy())]
        )
    ]
    one, other = (model.model.state_dict() for model in found)
    torch.testing.assert_close(one, other, rtol=0, atol=0)
    with pytest.raises(ConfigError, match="elements must be fractional numbers"):
        fit_partitioners(elements.byte(), labels, CLASSES, QUICK, [tmp_path / "no"], seeds=[0])


@pytest.mark.parametrize(("folders", "seeds"), [(1, 2), (2, 1), (0, 0)])
def test_folders_and_seeds_are_one_each(tmp_path: Path, folders: int, seeds: int) -> None:
    given = [tmp_path / "run"] * folders
    complaint = f"folders and seeds must have equal length .* but got {folders} and {seeds}"
    with pytest.raises(ValueError, match=complaint):
        fit_partitioners(*blobs(64, seed=1), CLASSES, QUICK, given, seeds=range(seeds))
    assert not (tmp_path / "run").exists()


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
        fit_partitioners(torch.zeros(4, 2), labels, 4, QUICK, [tmp_path / "run"], seeds=[0])
    assert not (tmp_path / "run").exists()

"""From data sets to tasks, from settings to networks, and from there to a folder and back."""

import math
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drpm.data import load
from drpm.data.types import Dataset, Split
from drpm.multitask.config import MultitaskConfig, NetworkConfig, refuse_unused
from drpm.multitask.evaluation import (
    TaskScores,
    best_test_epoch,
    chance_correlation,
    evaluate_in_batches,
    rank_correlation,
    score_tasks,
)
from drpm.multitask.experiment import NAMES, collect_metrics, task_table
from drpm.multitask.figures import figure_data
from drpm.multitask.fitted import FittedMultitask, load_multitask
from drpm.multitask.tasks import read_tasks
from drpm.multitask.training import make_network
from drpm.report.figure_data import figure_specs, read_arrays
from drpm.training import presets
from drpm.training.checkpoint import save_model
from drpm.training.config import TrainingConfig
from drpm.training.errors import ConfigError, RunError
from tests.data import formats
from tests.multitask.toys import bars, settings, some_bytes, toy, two_bars
from tests.oracles import generator


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRPM_DATA", str(tmp_path))
    formats.write_mnist(tmp_path / "mnist", train=40, test=20)
    return tmp_path


def test_pixels_come_back_as_bytes(folder: Path) -> None:
    for name, mean, std in (("multimnist", 0.1307, 0.3081), ("mosaic", None, None)):
        options = {} if name == "multimnist" else {"num_train": 30, "num_test": 5}
        dataset = load(name, **options)
        data = read_tasks(dataset)
        assert data.images.dtype == torch.uint8
        pixels = data.images.double() / 255
        if mean is None:
            mean, std = pixels.mean().item(), pixels.std(correction=0).item()
            torch.testing.assert_close(data.images.float() / 255, dataset.train.inputs)
        else:
            found = (data.test_images.float() / 255 - data.mean) / data.std
            # Half a byte, in units of the deviation.
            torch.testing.assert_close(found, dataset.test.inputs, atol=0.51 / 255 / 0.3081, rtol=0)
        torch.testing.assert_close(data.mean.flatten().tolist(), [mean], atol=1e-6, rtol=0)
        torch.testing.assert_close(data.std.flatten().tolist(), [std], atol=1e-6, rtol=0)


def test_targets_in_the_order_of_the_tasks(folder: Path) -> None:
    dataset = load("mosaic", num_tasks=4, num_train=30, num_test=5)
    data = read_tasks(dataset, train_examples=20, test_examples=3)
    assert data.tasks == ("task_00", "task_01", "task_02", "task_03")
    assert data.classes == (10,) * 4
    assert data.noise_ratios == pytest.approx((0.0, 0.6, 0.3, 0.9))
    assert (data.images.shape, data.test_images.shape) == ((20, 1, 28, 28), (3, 1, 28, 28))
    assert torch.equal(data.targets[:, 2], dataset.train.targets["task_02"][:20])
    assert torch.equal(data.test_targets[:, 3], dataset.test.targets["task_03"][:3])


def test_data_without_tasks() -> None:
    split = Split(torch.zeros(3, 4), {"a": torch.zeros(3, dtype=torch.int64)})
    with pytest.raises(ConfigError, match=r"data must hold images .* of the shape \(4,\)"):
        read_tasks(Dataset("table", split, split, classes={"a": ("x",)}))
    with pytest.raises(ConfigError, match="data must have targets with classes, but none has"):
        read_tasks(Dataset("none", bars(3, 0), bars(3, 0)))


def given(part: str = "train", targets: dict[str, Any] | None = None, **further: Any) -> Dataset:
    """Two bars with a part that has other inputs or targets."""
    data = two_bars(train=6, test=4)
    split: Split = getattr(data, part)
    preprocessing = further.pop("preprocessing", {})
    inputs = further.pop("inputs", lambda images: images)(split.inputs)
    changed = Split(inputs, {**split.targets, **(targets or {})})
    return replace(data, **{part: changed}, preprocessing=preprocessing)


def test_bytes_are_taken_as_they_are() -> None:
    data = two_bars(train=6, test=4)
    expected = read_tasks(data)
    parts = {
        name: Split(getattr(expected, images), getattr(data, name).targets)
        for name, images in (("train", "images"), ("test", "test_images"))
    }
    mean = torch.tensor([0.25])
    for constants, wanted in (({}, expected.mean.flatten()), ({"mean": mean}, mean)):
        found = read_tasks(replace(data, **parts, preprocessing=constants))
        assert torch.equal(found.images, expected.images)
        assert torch.equal(found.test_images, expected.test_images)
        torch.testing.assert_close(found.mean.flatten(), wanted)
        assert found.mean.dtype == found.std.dtype == torch.float32


@pytest.mark.parametrize("part", ["train", "test"])
def test_images_that_are_no_pixels_are_refused(part: str) -> None:
    def broken(images: torch.Tensor) -> torch.Tensor:
        return images.index_fill(0, torch.tensor([1]), math.nan)

    cases: list[tuple[Any, str]] = [
        (lambda images: 255 * images, r"before normalization must lie in \[0, 1\], .* to 25"),
        (broken, r"before normalization must lie in \[0, 1\], but got values from nan to"),
        (lambda images: (255 * images).long(), "must be bytes, or floats .* but got torch.int64"),
    ]
    for inputs, complaint in cases:
        with pytest.raises(ConfigError, match=rf"^{part}\.inputs {complaint}"):
            read_tasks(given(part, inputs=inputs))
    # Rounding is no fault; constants that were not applied are one.
    read_tasks(given(part, inputs=lambda images: images + 5e-6))
    with pytest.raises(ConfigError, match=r"\.inputs before normalization must lie"):
        read_tasks(given(part, preprocessing={"std": torch.tensor(2.0)}))
    other = {"train": (20, 16), "test": (16, 20)}[part]
    with pytest.raises(ConfigError, match=rf"test\.inputs must .*{other[0]}, 16\), but got"):
        read_tasks(given(part, inputs=lambda images: torch.zeros(len(images), 1, 20, 16)))


@pytest.mark.parametrize(
    ("targets", "complaint"),
    [
        (lambda count: torch.full((count,), 0.5), "must be whole numbers"),
        (lambda count: torch.zeros(count, 1).long(), "must be whole numbers"),
        (lambda count: torch.arange(count), "must be from 0 to 2, but got some from 0 to"),
        (lambda count: torch.arange(count) - 100, "must be from 0 to 2, but got some from -100"),
    ],
)
@pytest.mark.parametrize(("part", "count"), [("train", 6), ("test", 4)])
def test_targets_that_are_no_classes_are_refused(
    part: str, count: int, targets: Any, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^{part}\.targets\['right'\] {complaint}"):
        read_tasks(given(part, targets={"right": targets(count)}))


def test_a_task_without_its_target_is_refused() -> None:
    data = two_bars(train=6, test=4)
    test = Split(data.test.inputs, {"left": data.test.targets["left"]})
    sentence = r"^test\.targets\['right'\] must be there, .* but got 'left'\."
    with pytest.raises(ConfigError, match=sentence):
        read_tasks(replace(data, test=test))


def test_forty_attributes_of_faces(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One step on small files in the true format."""
    from drpm.multitask.models import MultitaskObjective
    from drpm.training.program import Program
    from drpm.training.schedules import ExponentialSchedule

    names = tuple(f"Attribute_{place:02d}" for place in range(40))
    monkeypatch.setattr(formats, "CELEBA_ATTRIBUTES", names[::-1])
    formats.write_celeba(folder / "celeba")
    dataset = load("celeba")
    data = read_tasks(dataset)
    assert data.tasks == names
    assert data.classes == (2,) * 40
    assert data.std.flatten().tolist() == [1.0] * 3
    torch.testing.assert_close(data.images / 255 - data.mean, dataset.train.inputs)
    assert len(data.test_images) == 2  # the validation part
    network = NetworkConfig(encoder="residual", channels=(4, 6), width=64, head=0)
    config = settings(network=network, size_penalty=0.015)
    program = Program(
        make_network(data, config),
        MultitaskObjective(data.tasks),
        {"images": data.images, "targets": data.targets},
        TrainingConfig(batch_size=3, learning_rate=1e-3),
        schedules={"temperature": ExponentialSchedule(1.0, 1.0, 1)},
    )
    program.shuffle()
    program.step()
    program.shuffle()
    # So many losses are not told apart.
    assert program.readings().names == ["loss", "penalty"]
    state = program.model_state()
    assert all(bool(x.isfinite().all()) for x in state.values())
    moved = make_network(data, config).state_dict()
    for name in ("encoder.stem.weight", "method.layer.law.log_scores.weight", "heads.weight"):
        assert not torch.equal(state[name], moved[name])


# Fitted networks.


def fitted(method: Any = "drpm") -> FittedMultitask:
    data = toy()
    network = make_network(data, settings(method=method)).eval()
    return FittedMultitask(network, data.shape, data.tasks, data.classes)


@pytest.mark.parametrize("method", ["drpm", "uls", "uncertainty", "gradient"])
def test_saved_and_loaded(tmp_path: Path, method: Any) -> None:
    one = fitted(method)
    one.save(tmp_path)
    other = load_multitask(tmp_path)
    assert other.config == one.config
    assert (other.shape, other.tasks, other.classes) == (one.shape, one.tasks, one.classes)
    images = some_bytes(7, 1, 16, 16)
    probs, again = one.predict_proba(images), other.predict_proba(images)
    for task, each in probs.items():
        assert torch.equal(each, again[task])
        torch.testing.assert_close(each.sum(-1), torch.ones(7))
    predicted = torch.stack([each.argmax(-1) for each in probs.values()], -1)
    assert torch.equal(other.predict(images), predicted)
    assert other.to("cpu").predict(images).shape == (7, 2)


def test_sizes() -> None:
    sizes = fitted().sizes(some_bytes(7, 1, 16, 16))
    assert sizes.shape == (7, 2)
    assert sizes.sum(-1).tolist() == [10.0] * 7
    with pytest.raises(ValueError, match="whose method is 'drpm', but got 'uls'"):
        fitted("uls").sizes(some_bytes(2, 1, 16, 16))


def test_many_images_are_taken_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from drpm.multitask import evaluation

    one, images = fitted(), some_bytes(7, 1, 16, 16)
    # Wrong in one of them.
    targets = one.predict(images)
    targets[5, 1] = (targets[5, 1] + 1) % 3
    whole = one.predict(images), evaluation.score_tasks(one.network, images, targets)
    monkeypatch.setattr(evaluation, "_PIXELS_AT_ONCE", 3 * 256)
    batches = list(evaluation.evaluate_in_batches(one.network, images))
    assert [x.logits.shape[1] for x in batches] == [3, 3, 1]
    assert not batches[0].logits.requires_grad
    assert torch.equal(one.predict(images), whole[0])
    for found, expected in zip(
        evaluation.score_tasks(one.network, images, targets), whole[1], strict=True
    ):
        torch.testing.assert_close(found, expected)
    assert whole[1].accuracies.tolist() == pytest.approx([1, 6 / 7])


def test_networks_are_used_at_the_last_temperature() -> None:
    data = toy()
    network = make_network(data, settings(temperature=(2.0, 0.2))).eval()
    (found,) = evaluate_in_batches(network, data.test_images)
    expected, hot = (network(data.test_images, torch.tensor(x)) for x in (0.2, 2.0))
    torch.testing.assert_close(found.logits, expected.logits)
    assert not torch.allclose(found.logits, hot.logits)


def test_whose_neurons_are_whose() -> None:
    """Counted one by one."""
    one, data = fitted(), toy()
    (outputs,) = evaluate_in_batches(one.network, data.test_images)
    masks, shares = outputs.shared.masks, torch.zeros(2, 10).double()
    assert masks is not None
    for image in range(20):
        for neuron in range(10):
            owner = 0 if masks[0, image, neuron] > masks[1, image, neuron] else 1
            shares[owner, neuron] += 1 / 20
    found = score_tasks(one.network, data.test_images, data.test_targets).shares
    assert found is not None
    torch.testing.assert_close(found, shares)


SHAPED = r"images must be bytes, or floats in \[0, 1\], of the shape \(N, 1, 16, 16\), but got "


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (some_bytes(2, 1, 16, 15), SHAPED),
        (some_bytes(1, 16, 16), SHAPED),
        (some_bytes(0, 1, 16, 16), SHAPED),
        (some_bytes(2, 1, 16, 16).long(), SHAPED + "torch.int64"),
        (np.zeros((2, 1, 16, 16), np.uint8), "images must be a tensor, but got ndarray"),
        (
            2 * torch.ones(2, 1, 16, 16),
            r"must lie in \[0, 1\], but got values from 2 to 2",
        ),
        (
            torch.full((2, 1, 16, 16), -0.1),
            r"must lie in \[0, 1\], but got values from -0.1 to -0.1",
        ),
        (
            torch.full((2, 1, 16, 16), math.nan),
            r"must lie in \[0, 1\], but got values from nan to nan",
        ),
    ],
)
def test_other_images_are_refused(images: Any, sentence: str) -> None:
    one = fitted()
    for ask in (one.predict, one.predict_proba, one.sizes):
        with pytest.raises(ValueError, match=sentence):
            ask(images)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floats_are_taken_as_their_bytes(dtype: torch.dtype) -> None:
    one, images = fitted(), some_bytes(7, 1, 16, 16)
    floats = images.to(dtype) / 255
    floats[0, 0, 0, 0], images[0, 0, 0, 0] = 1 + 1e-6, 255
    assert torch.equal(one.predict(floats), one.predict(images))
    assert torch.equal(one.sizes(floats), one.sizes(images))
    expected = one.predict_proba(images)
    for task, probs in one.predict_proba(floats).items():
        assert torch.equal(probs, expected[task])
    # Which a float that is nearer to another byte would not be.
    other = one.predict_proba((floats + 0.1).clamp(0, 1))
    assert not torch.equal(other["left"], expected["left"])


def test_another_kind_of_model(tmp_path: Path) -> None:
    save_model(tmp_path, {"x": torch.zeros(1)}, {"kind": "factors"})
    with pytest.raises(RunError, match="another kind of model than one of several tasks"):
        load_multitask(tmp_path)


# Scores.


def test_the_best_epoch_is_the_first_of_the_best() -> None:
    values = [0.2, 0.9, 0.9, 0.5]
    records: list[dict[str, Any]] = [{"epoch": n, "test_accuracy": x} for n, x in enumerate(values)]
    assert best_test_epoch([{"loss": 1.0}, *records])["epoch"] == 1


def test_what_is_reported() -> None:
    data = replace(toy(), noise_ratios=(0.0, 0.9))
    scores = TaskScores(torch.tensor([0.8, 0.4]), torch.tensor([3.0, 7.0]), torch.zeros(2, 10))
    best = TaskScores(torch.tensor([0.7, 0.9]), torch.tensor([4.0, 6.0]), torch.zeros(2, 10))
    found = collect_metrics(
        scores,
        data,
        [{"epoch": 3, **best.record()}, {"loss": 1.0}, {"epoch": 9, **scores.record()}],
    )
    expected = {
        "accuracy": 0.6,
        "accuracy_left": 0.8,
        "accuracy_right": 0.4,
        "size_left": 3.0,
        "size_right": 7.0,
        "size_noise_correlation": 1.0,
        "best_test_epoch": 3,
        "best_test_epoch_accuracy": 0.8,
        "best_test_epoch_accuracy_left": 0.7,
        "best_test_epoch_accuracy_right": 0.9,
        "best_test_epoch_size_left": 4.0,
        "best_test_epoch_size_right": 6.0,
    }
    assert found == pytest.approx(expected)
    # What is of all tasks comes before what is of one.
    assert list(found)[:4] == [
        "accuracy",
        "size_noise_correlation",
        "best_test_epoch",
        "best_test_epoch_accuracy",
    ]
    # Every number has a name, or its place in the table of tasks.
    plain_data = replace(data, noise_ratios=())
    table = task_table(plain_data, found)
    cells = [name for row in table.values() for name in row.values()]
    assert sorted([*NAMES, *cells]) == sorted(expected)
    assert table["right"]["neurons"] == "size_right"
    assert list(table) == ["left", "right"]
    # Where noise is known, its order is that of the rows, as it is that of bars.
    noisy = task_table(replace(data, noise_ratios=(0.5, 0.25)), found)
    assert noisy == {"right (0.25)": table["right"], "left (0.50)": table["left"]}
    assert list(noisy) == ["right (0.25)", "left (0.50)"]
    # The last epoch may be the best one.
    last = collect_metrics(
        best, data, [{"epoch": 3, **scores.record()}, {"epoch": 9, **best.record()}]
    )
    assert (last["best_test_epoch"], last["best_test_epoch_accuracy"]) == (9, pytest.approx(0.8))
    plain = TaskScores(torch.tensor([0.7, 0.9]))
    found = collect_metrics(plain, data, [{"epoch": 3, **plain.record()}])
    assert set(found) == {name for name in expected if "size" not in name}


def test_what_is_drawn(tmp_path: Path) -> None:
    data = replace(toy(), tasks=("a", "b", "c"), noise_ratios=(0.9, 0.0, 0.4))
    sizes = torch.tensor([7.0, 1.0, 2.0])
    shares = torch.rand(3, 120)
    scores = TaskScores(torch.tensor([0.1, 0.2, 0.3]), sizes, shares)
    (tmp_path / "arrays.npz").write_bytes(figure_data(data, scores, 120))
    specs = {spec.name: spec for spec in figure_specs(read_arrays(tmp_path))}
    # The same bars are not drawn twice.
    assert list(specs) == ["images", "accuracy", "sizes-by-noise", "neurons"]
    # The noisiest task comes last, everywhere.
    assert specs["accuracy"].values[:, 0].tolist() == pytest.approx([0.2, 0.3, 0.1])
    for name in ("accuracy", "neurons"):
        assert specs[name].rows == ("b (0.00)", "c (0.40)", "a (0.90)")
    assert specs["sizes-by-noise"].values[:, 0].tolist() == [1, 2, 7]
    assert specs["sizes-by-noise"].rows == ("b (0.00)", "c (0.40)", "a (0.90)")
    # As many neurons as fit.
    neurons = specs["neurons"]
    assert neurons.values.shape == (3, 100)
    # In the order of their owners, each under its own number.
    owners = neurons.values.argmax(0)
    assert (np.diff(owners) >= 0).all()
    assert (np.diff(neurons.values.max(0))[np.diff(owners) == 0] <= 0).all()
    numbers = [int(name) for name in neurons.columns]
    np.testing.assert_allclose(neurons.values, shares[[1, 2, 0]][:, numbers])
    assert sorted(numbers) == list(range(100))


def test_the_course_of_tasks_is_drawn(tmp_path: Path) -> None:
    data = replace(toy(), tasks=("a", "b", "c"), noise_ratios=(0.9, 0.0, 0.4))
    scores = TaskScores(torch.rand(3), torch.rand(3), torch.rand(3, 10))
    looks = [
        {"epoch": epoch, "step": 9, "test_accuracies": [0.1, 0.2, epoch / 10]} for epoch in (3, 7)
    ]
    records: list[dict[str, Any]] = [{"epoch": 1.0, "step": 1, "loss": 2.0}, *looks]
    (tmp_path / "arrays.npz").write_bytes(figure_data(data, scores, 10, records))
    course = figure_specs(read_arrays(tmp_path))[-1]
    assert (course.kind, course.name) == ("lines", "accuracy-over-training")
    assert course.values.tolist() == [[0.2, 0.2], [0.3, 0.7], [0.1, 0.1]]
    assert course.rows == ("b (0.00)", "c (0.40)", "a (0.90)")
    assert [float(epoch) for epoch in course.columns] == [3, 7]
    # Of one look there is no course.
    (tmp_path / "arrays.npz").write_bytes(figure_data(data, scores, 10, records[:2]))
    assert figure_specs(read_arrays(tmp_path))[-1].name == "neurons"


def test_more_tasks_than_bars(tmp_path: Path) -> None:
    """Evenly spaced ones are shown, with both ends."""
    count = 117
    ratios = torch.randperm(count, generator=generator(0)).double() / 1000
    data = replace(
        toy(), tasks=tuple(f"t{n}" for n in range(count)), noise_ratios=tuple(ratios.tolist())
    )
    scores = TaskScores(5 * ratios, 10 * ratios, torch.rand(count, 5))
    (tmp_path / "arrays.npz").write_bytes(figure_data(data, scores, 5))
    specs = {spec.name: spec for spec in figure_specs(read_arrays(tmp_path))}
    for name, scale in (("accuracy", 200), ("sizes-by-noise", 100)):
        spec = specs[name]
        values = spec.values[:, 0] * scale
        assert (values[0], values[-1]) == pytest.approx((0, count - 1))
        assert set(np.diff(values).round()) == {2, 3}
        assert len(spec.rows) == 40
        assert spec.title.endswith("(40 of 117 tasks)")
    assert specs["sizes-by-noise"].rows[-1].endswith("(0.12)")


def test_correlations_by_chance() -> None:
    """Over all orders of five."""
    found = [rank_correlation(order, range(5)) for order in permutations(range(5))]
    assert np.std(found) == pytest.approx(chance_correlation(5))


def test_rank_correlation() -> None:
    # Ranks 1, 2, 3, 4 against 1, 3, 2, 4: 1 - 6 * 2 / (4 * 15).
    assert rank_correlation([1, 5, 6, 90], [0.1, 0.3, 0.2, 0.4]) == pytest.approx(0.8)
    assert math.isnan(rank_correlation([1, 1, 1], [0.1, 0.2, 0.3]))


# Settings.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluate_every": 0}, "evaluate_every must be greater than 0, but got 0"),
        ({"train_examples": 0}, "train_examples must be greater than 0, but got 0"),
        ({"size_penalty": -1.0}, "size_penalty must be at least 0, but got -1.0"),
        ({"task_weights": (1.0, 0.0)}, r"task_weights\[1\] must be greater than 0"),
        ({"temperature": (1.0, 0.0)}, r"temperature\[1\] must be greater than 0"),
        (
            {"training": TrainingConfig(devices=2)},
            "devices must be 1 for this model, but got 2",
        ),
        (
            {"method": "gradient", "training": TrainingConfig(step="graph")},
            "training.step must be 'auto' or 'eager' for the method 'gradient', but got 'graph'",
        ),
    ],
)
def test_bad_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MultitaskConfig(**changes)


@pytest.mark.parametrize(
    ("method", "name", "other"),
    [
        ("uls", "partition", "drpm"),
        ("gradient", "size_penalty", "drpm"),
        ("uncertainty", "temperature", "drpm"),
        ("drpm", "weighting", "gradient"),
    ],
)
def test_settings_of_another_method(method: Any, name: str, other: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be left out for .* {method!r}.*{other!r}"):
        refuse_unused(settings(method=method), ["evaluate_every", name])
    refuse_unused(settings(method=other), [name, "task_weights"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 0}, "width must be greater than 0, but got 0"),
        ({"head": -1}, "head must be at least 0, but got -1"),
        ({"dropout": 1.5}, "dropout must be at most 1, but got 1.5"),
        ({"channels": ()}, "channels must have at least 1 item"),
        ({"channels": (4,)}, "channels must be two numbers for 'lenet'"),
    ],
)
def test_bad_networks(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NetworkConfig(**changes)


def test_every_preset_loads() -> None:
    names = [name for name in presets.names() if "-multitask" in name]
    assert names == [
        "fast-multitask",
        *(f"paper-multitask-{data}" for data in ("celeba", "mosaic", "multimnist")),
    ]
    for name in names:
        presets.load(MultitaskConfig, name)
    paper = presets.load(MultitaskConfig, "paper-multitask-multimnist")
    assert (paper.network, paper.training.betas) == (NetworkConfig(), (0.95, 0.999))
    assert (paper.training.epochs, paper.training.learning_rate) == (200, 5e-4)

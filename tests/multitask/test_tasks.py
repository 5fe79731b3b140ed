"""From data sets to tasks, from settings to networks, and from there to a folder and back."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drpm.data import load
from drpm.data.types import Dataset, Split
from drpm.multitask import models
from drpm.multitask.config import MultitaskConfig, NetworkConfig
from drpm.multitask.experiment import (
    NAMES,
    collect_metrics,
    figure_data,
    make_network,
    task_table,
)
from drpm.multitask.models import MultitaskNetwork, TaskData, TaskScores, load_multitask, read_tasks
from drpm.report.plots import FigureSpec, figure_specs, read_arrays
from drpm.training.config import TrainingConfig
from drpm.training.errors import ConfigError
from tests.data import formats
from tests.multitask.toys import bars, settings, some_bytes, toy, two_bars


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRPM_DATA", str(tmp_path))
    formats.write_mnist(tmp_path / "mnist", train=40, test=20)
    return tmp_path


def test_pixels_come_back_as_bytes(folder: Path) -> None:
    normalized = load("multimnist")
    data = read_tasks(normalized)
    found = (data.test_images.float() / 255 - data.mean) / data.std
    # Half a byte, in units of the deviation.
    torch.testing.assert_close(found, normalized.test.inputs, atol=0.51 / 255 / 0.3081, rtol=0)


@pytest.mark.parametrize("channels", [1, 3])
def test_moments_of_pixels(channels: int) -> None:
    inputs = some_bytes(20, channels, 5, 6)
    inputs[:, 0] = 0  # a constant channel is not scaled
    split = Split(inputs, {"a": torch.zeros(20).long()})
    data = read_tasks(Dataset("bytes", split, split, classes={"a": ("x",)}))
    assert torch.equal(data.images, inputs)
    std, mean = torch.std_mean(inputs.double() / 255, (0, 2, 3), correction=0)
    std[0] = 1
    torch.testing.assert_close(data.mean.flatten(), mean.float())
    torch.testing.assert_close(data.std.flatten(), std.float())
    known = Dataset("bytes", split, split, {"a": ("x",)}, (), {"mean": torch.tensor([0.25])})
    assert read_tasks(known).mean.flatten().tolist() == [0.25] * channels


def test_targets_in_the_order_of_the_tasks(folder: Path) -> None:
    dataset = load("mosaic", num_tasks=4, num_train=30, num_test=5)
    data = read_tasks(dataset, train_examples=20, test_examples=3)
    assert data.classes == {f"task_0{task}": 10 for task in range(4)}
    assert data.noise_ratios == pytest.approx((0.0, 0.6, 0.3, 0.9))
    assert (data.images.dtype, len(data.test_images)) == (torch.uint8, 3)
    torch.testing.assert_close(data.images.float() / 255, dataset.train.inputs[:20])
    assert torch.equal(data.targets[:, 2], dataset.train.targets["task_02"][:20])
    assert torch.equal(data.test_targets[:, 3], dataset.test.targets["task_03"][:3])


def test_data_without_tasks() -> None:
    split = Split(torch.zeros(3, 4), {"a": torch.zeros(3, dtype=torch.int64)})
    with pytest.raises(ConfigError, match=r"data must contain images .* of shape \(4,\)"):
        read_tasks(Dataset("table", split, split, classes={"a": ("x",)}))
    with pytest.raises(ConfigError, match="data must have targets with classes, but none has"):
        read_tasks(Dataset("none", bars(3, 0), bars(3, 0)))


@pytest.mark.parametrize(
    ("inputs", "targets", "complaint"),
    [
        (lambda x: 255 * x, None, r"inputs before normalization must lie in \[0, 1\], .* to 25"),
        (lambda x: x * math.nan, None, r"inputs .* must lie in \[0, 1\], but got values from nan"),
        (lambda x: x.long(), None, "inputs .* must be bytes, or floats .* type torch.int64"),
        (None, lambda x: x + 0.5, r"targets\['right'\] must be integers"),
        (None, lambda x: x - 9, r"targets\['right'\] must be from 0 to 2, but got values from -"),
    ],
)
@pytest.mark.parametrize("part", ["train", "test"])
def test_other_data_is_refused(part: str, inputs: Any, targets: Any, complaint: str) -> None:
    data = two_bars(train=6, test=4)
    split: Split = getattr(data, part)
    right = split.targets["right"]
    changed = Split(
        inputs(split.inputs) if inputs else split.inputs,
        {**split.targets, "right": targets(right) if targets else right},
    )
    with pytest.raises(ConfigError, match=rf"^{part}\.{complaint}"):
        read_tasks(replace(data, **{part: changed}))


def make(method: Any = "drpm") -> MultitaskNetwork:
    return make_network(toy(), settings(method=method)).eval()


@pytest.mark.parametrize("method", ["drpm", "uls", "uncertainty", "gradient"])
def test_saved_and_loaded(tmp_path: Path, method: Any) -> None:
    one = make(method)
    one.save(tmp_path)
    other = load_multitask(tmp_path)
    assert (other.config, other.shape, other.classes) == (one.config, one.shape, one.classes)
    images = some_bytes(7, 1, 16, 16)
    probs, again = one.predict_proba(images), other.predict_proba(images)
    for task, each in probs.items():
        assert torch.equal(each, again[task])
        torch.testing.assert_close(each.sum(-1), torch.ones(7))
    predicted = torch.stack([each.argmax(-1) for each in probs.values()], -1)
    assert torch.equal(other.predict(images), predicted)


def test_scores_counted_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one batch, and in three."""
    network, images = make(), some_bytes(7, 1, 16, 16)
    targets = network.predict(images)
    targets[5, 1] = (targets[5, 1] + 1) % 3  # wrong
    ((logits, shared),) = network.evaluate(images)
    masks, shares = shared.masks, torch.zeros(2, 10).double()
    for image in range(7):
        for neuron in range(10):
            owner = 0 if masks[0, image, neuron] > masks[1, image, neuron] else 1
            shares[owner, neuron] += 1 / 7
    sizes = network.sizes(images)
    assert sizes.sum(-1).tolist() == [10.0] * 7
    for size in (500, 3):
        monkeypatch.setattr(models, "_BATCH_SIZE", size)
        found = network.score(images, targets)
        assert found.accuracies.tolist() == pytest.approx([1, 6 / 7])
        torch.testing.assert_close(found.sizes, sizes.double().mean(0))
        torch.testing.assert_close(found.shares, shares)
    assert [x.shape[1] for x, _ in network.evaluate(images)] == [3, 3, 1]
    assert not logits.requires_grad
    with pytest.raises(ValueError, match="with the method 'drpm', but got 'uls'"):
        make("uls").sizes(images)


def test_networks_are_used_at_the_last_temperature() -> None:
    data = toy()
    network = make_network(data, settings(temperature=(2.0, 0.2))).eval()
    ((found, _),) = network.evaluate(data.test_images)
    expected, hot = (network(data.test_images, torch.tensor(x))[0] for x in (0.2, 2.0))
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, hot)


def test_images_of_another_shape_are_refused() -> None:
    """By the function that refuses data sets, whose other sentences are tested above."""
    for ask in (make().predict, make().predict_proba, make().sizes):
        with pytest.raises(ValueError, match=r"images must be bytes, .* \(N, 1, 16, 16\), but got"):
            ask(some_bytes(2, 1, 16, 15))


def test_floats_are_taken_as_their_bytes() -> None:
    network, images = make(), some_bytes(7, 1, 16, 16)
    floats = images.double() / 255
    floats[0, 0, 0, 0], images[0, 0, 0, 0] = 1 + 1e-6, 255
    expected = network.predict_proba(images)["left"]
    assert torch.equal(network.predict_proba(floats)["left"], expected)


def record(epoch: int, accuracies: list[float], sizes: list[float] | None = None) -> dict[str, Any]:
    found = None if sizes is None else torch.tensor(sizes)
    return {"epoch": epoch, **TaskScores(torch.tensor(accuracies), found).record()}


def test_what_is_reported() -> None:
    data = replace(toy(), noise_ratios=(0.0, 0.9))
    best, last = record(3, [0.7, 0.9], [4.0, 6.0]), record(9, [0.8, 0.4], [3.0, 7.0])
    found = collect_metrics(data, [best, last])
    expected = {
        "accuracy": 0.6,
        "size_noise_correlation": 1.0,
        "best_test_epoch": 3,
        "best_test_epoch_accuracy": 0.8,
        "accuracy_left": 0.8,
        "accuracy_right": 0.4,
        "size_left": 3.0,
        "size_right": 7.0,
        "best_test_epoch_accuracy_left": 0.7,
        "best_test_epoch_accuracy_right": 0.9,
        "best_test_epoch_size_left": 4.0,
        "best_test_epoch_size_right": 6.0,
    }
    assert found == pytest.approx(expected)
    # Every number has a name, or its place in the table of tasks, where noisier ones come later.
    table = task_table(replace(data, noise_ratios=(0.5, 0.25)), found)
    assert list(table) == ["right (0.25)", "left (0.50)"]
    assert table["right (0.25)"]["neurons"] == "size_right"
    cells = [name for row in table.values() for name in row.values()]
    assert sorted([*NAMES, *cells]) == sorted(expected)
    # With common neurons, of which no task is the owner.
    shared = collect_metrics(data, [record(3, [0.7, 0.9], [2.0, 5.0, 3.0])])
    assert set(shared) - set(expected) == {"size_common", "best_test_epoch_size_common"}
    assert (shared["size_common"], shared["size_noise_correlation"]) == (3, pytest.approx(1))
    (name, row), *tasks = task_table(data, shared).items()
    assert (name, row["neurons"], list(row)) == ("common", "size_common", list(tasks[0][1]))
    assert dict(tasks) == task_table(data, dict.fromkeys(expected, 0.0))
    # Without a partition.
    found = collect_metrics(data, [record(3, [0.7, 0.9])])
    assert set(found) == {name for name in expected if "size" not in name}
    # Equal sizes have no ranks.
    found = collect_metrics(data, [record(3, [0.7, 0.9], [5.0, 5.0])])
    assert math.isnan(found["size_noise_correlation"] or 0)


def drawn(
    folder: Path, data: TaskData, scores: TaskScores, records: Any = ()
) -> dict[str, FigureSpec]:
    (folder / "arrays.npz").write_bytes(figure_data(data, scores, records))
    return {spec.name: spec for spec in figure_specs(read_arrays(folder))}


def test_what_is_drawn(tmp_path: Path) -> None:
    data = replace(toy(), classes=dict.fromkeys("abc", 3), noise_ratios=(0.9, 0.0, 0.4))
    shares = torch.rand(3, 120)
    scores = TaskScores(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([7.0, 1.0, 2.0]), shares)
    records = [
        {"epoch": epoch, "test_accuracies": [0.1, 0.2, epoch / 10], "test_accuracy": 0.0}
        for epoch in (3, 7)
    ]
    specs = drawn(tmp_path, data, scores, records)
    names = ["images", "accuracy", "sizes-by-noise", "neurons", "accuracy-over-training"]
    assert list(specs) == names
    # The noisiest task comes last, everywhere.
    for name in names[1:]:
        assert specs[name].rows == ("b (0.00)", "c (0.40)", "a (0.90)")
    assert specs["accuracy"].values[:, 0].tolist() == pytest.approx([0.2, 0.3, 0.1])
    assert specs["sizes-by-noise"].values[:, 0].tolist() == [1, 2, 7]
    curves = specs["accuracy-over-training"]
    assert curves.values.tolist() == [[0.2, 0.2], [0.3, 0.7], [0.1, 0.1]]
    # As many neurons as fit, in the order of their owners, each under its own number.
    neurons, numbers = specs["neurons"].values, [int(name) for name in specs["neurons"].columns]
    assert (np.diff(neurons.argmax(0)) >= 0).all()
    np.testing.assert_allclose(neurons, shares[[1, 2, 0]][:, numbers])
    assert sorted(numbers) == list(range(100))
    # One record makes no curve.
    assert list(drawn(tmp_path, data, scores, records[:1])) == names[:-1]
    # The common subset has a bar and a row.
    scores = scores._replace(sizes=torch.tensor([3.0, 1.0, 2.0, 4.0]), shares=torch.rand(4, 10))
    specs = drawn(tmp_path, data, scores)
    assert specs["sizes-by-noise"].values[:, 0].tolist() == [4, 1, 2, 3]
    assert specs["neurons"].rows[0] == specs["sizes-by-noise"].rows[0] == "common"
    assert specs["accuracy"].rows == specs["sizes-by-noise"].rows[1:]


def test_bad_settings() -> None:
    with pytest.raises(ConfigError, match=r"step must be 'auto' or 'eager' .* but got 'graph'"):
        MultitaskConfig(method="gradient", training=TrainingConfig(step="graph"))
    with pytest.raises(ConfigError, match="channels must be two numbers for 'lenet'"):
        NetworkConfig(channels=(4,))

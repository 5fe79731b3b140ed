"""Networks in training: alone and stacked, compiled, and what is seen of them on the way."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.utils

from drpm.multitask.config import MultitaskConfig, NetworkConfig
from drpm.multitask.evaluation import score_tasks
from drpm.multitask.models import MultitaskObjective
from drpm.multitask.pipeline import STAGE, fit_multitask, make_network
from drpm.training.compiling import compile_step
from drpm.training.config import TrainingConfig
from drpm.training.errors import ConfigError
from drpm.training.program import Program
from drpm.training.schedules import ExponentialSchedule
from drpm.training.stacking import StackedProgram
from tests.multitask.toys import NETWORK, settings, toy

METHODS = ["drpm", "uls", "uncertainty"]
SCHEDULES = {"temperature": ExponentialSchedule(1.0, 0.5, 6)}
# Not Adam, which makes full steps of rounding errors.
PLAIN = TrainingConfig(epochs=1, batch_size=8, optimizer="sgd", precision="64-true")
RESIDUAL = NetworkConfig(encoder="residual", channels=(2, 3), width=6, head=4, dropout=0.0)


def stack(config: MultitaskConfig) -> StackedProgram:
    """Two runs of different seeds and noise ratios."""
    data = [toy(0.0), toy(0.5)]
    return StackedProgram(
        [make_network(each, config, seed) for seed, each in enumerate(data)],
        MultitaskObjective(data[0].tasks),
        {},
        config.training,
        run_data={
            "images": torch.stack([each.images for each in data]),
            "targets": torch.stack([each.targets for each in data]),
        },
        schedules=SCHEDULES,
    )


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        *((method, {}) for method in METHODS),
        ("drpm", {"partition": "network", "size_penalty": 0.02}),
        ("uls", {"network": RESIDUAL}),
    ],
)
def test_a_stack_equals_its_runs(method: Any, changes: dict[str, Any]) -> None:
    config = settings(method=method, training=PLAIN, **changes)
    stacked, data = stack(config), toy(0.5)
    alone = Program(
        make_network(data, config, 1),
        MultitaskObjective(data.tasks),
        {"images": data.images, "targets": data.targets},
        config.training,
        schedules=SCHEDULES,
    )
    stacked.shuffle()
    alone.order.copy_(stacked.order[:, 1])
    before = {name: x.clone() for name, x in alone.model_state().items()}
    for _ in range(3):
        stacked.step()
        alone.step()
    torch.testing.assert_close(stacked.model_state(1), alone.model_state())
    torch.testing.assert_close(stacked.readings().values[:, :, 1], alone.readings().values[:, :, 0])
    moved = alone.model_state()["encoder.dense.weight"]
    assert not torch.equal(moved, before["encoder.dense.weight"])


def test_runs_drop_different_channels() -> None:
    config = settings(method="uls", network=replace(NETWORK, dropout=0.5, channels=(3, 40)))
    data = toy()
    twins = [make_network(data, config, 0) for _ in range(2)]
    program = StackedProgram(
        twins,
        MultitaskObjective(data.tasks),
        {"images": data.images, "targets": data.targets},
        config.training,
        schedules=SCHEDULES,
    )
    program.shuffle()
    program.order[:, 1] = program.order[:, 0]
    program.step()
    one, other = (program.model_state(run)["encoder.second.bias"] for run in range(2))
    assert not torch.equal(one, other)


def test_a_compiled_stack_equals_an_eager_one() -> None:
    """With the method that has more in it than all others."""
    dropping = replace(NETWORK, dropout=0.5)
    config = settings(training=PLAIN, network=dropping, size_penalty=0.02)
    eager, compiled = stack(config), stack(config)
    # Traces as inductor does, but calls torch's own operations.
    assert compile_step(compiled, "aot_eager")
    assert torch._dynamo.utils.counters["stats"]["calls_captured"] > 0
    for program in (eager, compiled):
        # Compiled, it draws from the device's own noise; so shall the other.
        program._evaluated.generator = None
        program.shuffle()
        torch.manual_seed(5)
        program.step()
    torch.testing.assert_close(compiled.readings().values, eager.readings().values)
    torch.testing.assert_close(compiled.model_state(1), eager.model_state(1))


def fit(config: MultitaskConfig, folder: Path, runs: int = 1, **sizes: int) -> Any:
    data = toy(**sizes)
    folders = [folder / str(run) for run in range(runs)]
    return fit_multitask([data] * runs, config, folders, seeds=range(runs)), data


@pytest.mark.parametrize("method", ["drpm", "uls", "uncertainty", "gradient"])
def test_every_method_learns(tmp_path: Path, method: Any) -> None:
    training = TrainingConfig(epochs=12, batch_size=16, learning_rate=5e-3)
    network = replace(NETWORK, channels=(6, 16), width=20, head=16)
    config = settings(method=method, training=training, network=network, evaluate_every=4)
    (fitted,), data = fit(config, tmp_path, train=160, test=60)
    scores = score_tasks(fitted.network, data.test_images, data.test_targets)
    assert not fitted.network.training
    assert float(scores.accuracies.min()) > 0.9
    assert torch.equal(
        scores.accuracies,
        (fitted.predict(data.test_images) == data.test_targets).double().mean(0),
    )
    lines = (tmp_path / "0" / STAGE / "metrics.jsonl").read_text().splitlines()
    looks = [x for x in map(json.loads, lines) if "test_accuracy" in x]
    assert [(x["epoch"], x["step"]) for x in looks] == [(4, 40), (8, 80)]
    if method != "drpm":
        assert scores.sizes is scores.shares is None
        return
    assert scores.sizes is not None
    assert scores.shares is not None
    torch.testing.assert_close(scores.sizes, fitted.sizes(data.test_images).double().mean(0))
    assert float(scores.sizes.sum()) == pytest.approx(20)
    assert scores.shares.shape == (2, 20)
    torch.testing.assert_close(scores.shares.sum(0), torch.ones(20).double())
    assert sum(looks[-1]["test_sizes"]) == pytest.approx(20)


def test_a_look_shows_the_network_as_it_was(tmp_path: Path) -> None:
    """What is logged before the third epoch is what a training of two epochs ends with."""
    network = replace(NETWORK, dropout=0.5)
    short = settings(evaluate_every=1, network=network, temperature=(0.5, 0.5))
    long = replace(short, training=replace(short.training, epochs=3))
    (fitted,), data = fit(short, tmp_path / "short")
    fit(long, tmp_path / "long")
    lines = (tmp_path / "long" / "0" / STAGE / "metrics.jsonl").read_text().splitlines()
    looks = [x for x in map(json.loads, lines) if "test_accuracy" in x]
    scores = score_tasks(fitted.network, data.test_images, data.test_targets)
    assert looks[1]["epoch"] == 2
    assert looks[1]["test_accuracies"] == scores.accuracies.tolist()
    assert scores.sizes is not None
    assert looks[1]["test_sizes"] == scores.sizes.tolist()


@pytest.mark.parametrize("runs", [1, 2])
def test_cut_off_it_goes_on_and_looks_no_epoch_over_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: int
) -> None:
    from drpm.multitask import pipeline

    config = settings(evaluate_every=1, network=replace(NETWORK, dropout=0.5))
    config = replace(config, training=replace(config.training, epochs=4))
    whole, _ = fit(config, tmp_path / "whole", runs)
    calls = 0

    def dying(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        # In the third look: of two runs, one has looked and the other has not.
        if calls == 3 * runs:
            raise KeyboardInterrupt
        return score_tasks(*given)

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "score_tasks", dying)
        with pytest.raises(KeyboardInterrupt):
            fit(config, tmp_path / "cut", runs)
    again, _ = fit(config, tmp_path / "cut", runs)
    for run in range(runs):
        for name, tensor in whole[run].network.state_dict().items():
            assert torch.equal(tensor, again[run].network.state_dict()[name])
        looks = [
            [
                (x["step"], x["test_accuracies"])
                for x in map(json.loads, path.read_text().splitlines())
                if "test_accuracy" in x
            ]
            for path in (
                tmp_path / name / str(run) / STAGE / "metrics.jsonl" for name in ("whole", "cut")
            )
        ]
        assert [step for step, _ in looks[0]] == [3, 6, 9]
        assert looks[0] == looks[1]


def test_a_network_begins_with_its_seed_and_its_pixels() -> None:
    data, config = toy(), settings()
    one, same, other = (make_network(data, config, seed) for seed in (3, 3, 4))
    assert torch.equal(one.mean, data.mean)
    assert torch.equal(one.std, data.std)
    assert torch.equal(one.heads.weight, same.heads.weight)
    assert not torch.equal(one.heads.weight, other.heads.weight)


def test_what_cannot_be_trained(tmp_path: Path) -> None:
    data = toy()
    cases = [
        ([data, data], settings(method="gradient"), "data must be that of one run for the method"),
        ([data, toy(train=40)], settings(), "must have one shape and the same tasks"),
        ([data], settings(task_weights=(1.0,)), "task_weights must be 2"),
    ]
    for given, config, sentence in cases:
        with pytest.raises(ConfigError, match=sentence):
            fit_multitask(given, config, [tmp_path / "x"] * len(given), seeds=range(len(given)))
        assert not (tmp_path / "x").exists()

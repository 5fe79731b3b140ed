"""Networks in training: compiled, evaluated on the way, resumed, and in studies."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.utils
from typer.testing import CliRunner

from drpm.cli import app
from drpm.experiments import run_study
from drpm.multitask.config import MultitaskConfig
from drpm.multitask.experiment import check_multitask, fit_multitask, make_network
from drpm.multitask.models import MultitaskNetwork, TaskData, multitask_objective
from drpm.training.compiling import compile_step
from drpm.training.config import TrainingConfig
from drpm.training.errors import ConfigError, RunError
from drpm.training.program import ExponentialSchedule, Program
from drpm.training.runs import RunFolder
from tests.multitask.toys import NETWORK, settings, toy, write_few_digits

# Not Adam, which makes full steps of rounding errors.
PLAIN = TrainingConfig(epochs=1, batch_size=8, optimizer="sgd", precision="64-true")


def make_program(config: MultitaskConfig) -> Program:
    data = toy(0.5)
    return Program(
        make_network(data, config),
        multitask_objective,
        {"images": data.images, "targets": data.targets},
        config.training,
        schedules={"temperature": ExponentialSchedule(1.0, 0.5, 6)},
    )


@pytest.mark.parametrize(
    "changes",
    [{"task_order": "shuffled"}, {"partition": "network", "affinities": True, "common": True}],
)
def test_a_compiled_step_equals_an_eager_one(changes: dict[str, Any]) -> None:
    dropping = replace(NETWORK, dropout=0.5)
    config = settings(training=PLAIN, network=dropping, size_penalty=0.02, **changes)
    eager, compiled = make_program(config), make_program(config)
    # Traces as inductor does, but calls torch's own operations.
    assert compile_step(compiled, "aot_eager")
    assert torch._dynamo.utils.counters["stats"]["calls_captured"] > 0
    # A compiled step draws from the default generator.
    eager._evaluate.generator = None  # type: ignore[attr-defined]
    for program in (eager, compiled):
        program.shuffle()
        torch.manual_seed(5)
        program.step()
    torch.testing.assert_close(compiled.readings().values, eager.readings().values)
    torch.testing.assert_close(compiled.model_state(), eager.model_state())


def fit(
    config: MultitaskConfig, folder: Path, device: str = "cpu", **sizes: int
) -> tuple[MultitaskNetwork, TaskData]:
    data = toy(**sizes)
    return fit_multitask(data, config, folder, device=device), data


def evaluations(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "training" / "metrics.jsonl").read_text().splitlines()
    return [x for x in map(json.loads, lines) if "test_accuracy" in x]


LEARNERS: list[dict[str, Any]] = [
    *({"method": method} for method in ("drpm", "uls", "uncertainty", "gradient")),
    {"method": "drpm", "partition": "network", "affinities": True, "common": True},
]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("changes", LEARNERS)
def test_every_method_learns(tmp_path: Path, device: str, changes: dict[str, Any]) -> None:
    """Accuracies were 1 on both tasks with each of eight seeds; 24 other streams passed."""
    training = TrainingConfig(epochs=12, batch_size=16, learning_rate=5e-3)
    layers = replace(NETWORK, channels=(6, 16), width=20, head=16)
    config = settings(training=training, network=layers, evaluate_every=4, **changes)
    network, data = fit(config, tmp_path, device, train=160, test=60)
    scores = network.score(data.test_images, data.test_targets)
    assert not network.training
    assert float(scores.accuracies.min()) > 0.9
    right = network.predict(data.test_images).cpu() == data.test_targets
    assert torch.equal(scores.accuracies, right.double().mean(0))
    logged = evaluations(tmp_path)
    assert [(x["epoch"], x["step"]) for x in logged] == [(4, 40), (8, 80)]
    if changes["method"] == "drpm":
        assert len(scores.sizes) == len(scores.shares) == 2 + ("common" in changes)
        assert sum(logged[-1]["test_sizes"]) == pytest.approx(20)


def test_an_evaluation_is_of_the_network_at_that_epoch(tmp_path: Path) -> None:
    """The scores before the third epoch are those that a training of two epochs ends with."""
    network = replace(NETWORK, dropout=0.5)
    short = settings(evaluate_every=1, network=network, temperature=(0.5, 0.5))
    long = replace(short, training=replace(short.training, epochs=3))
    trained, data = fit(short, tmp_path / "short")
    fit(long, tmp_path / "long")
    scores = trained.score(data.test_images, data.test_targets).record()
    logged = evaluations(tmp_path / "long")[1]
    assert logged["epoch"] == 2
    assert {name: logged[name] for name in scores} == scores


@pytest.mark.parametrize("encoder", ["lenet", "residual"])
def test_resumed_without_repeating_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoder: Any
) -> None:
    network = replace(NETWORK, encoder=encoder, dropout=0.5)
    config = settings(evaluate_every=1, network=network)
    config = replace(config, training=replace(config.training, epochs=4))
    whole, _ = fit(config, tmp_path / "whole")
    log = RunFolder.log

    def interrupted(run: RunFolder, record: Any) -> None:
        log(run, record)
        if record.get("epoch") == 2 and "test_accuracy" in record:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "log", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit(config, tmp_path / "cut")
    run = RunFolder(tmp_path / "cut" / "training")
    slow = [json.dumps({**record, "wall_time": 1e3}) + "\n" for record in run.metrics()]
    run.write_atomic("metrics.jsonl", "".join(slow))
    again, _ = fit(config, tmp_path / "cut")
    assert min(x["wall_time"] for x in run.metrics()) >= 1e3  # time goes on where it was
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
    logged = [
        [(x["step"], x["test_accuracies"]) for x in evaluations(tmp_path / name)]
        for name in ("whole", "cut")
    ]
    assert [step for step, _ in logged[0]] == [3, 6, 9]
    assert logged[0] == logged[1]


def test_settings_that_do_not_fit_the_data(tmp_path: Path) -> None:
    data, narrow = toy(), replace(NETWORK, width=1)
    with pytest.raises(ConfigError, match="task_weights must be 2 numbers"):
        fit_multitask(data, settings(task_weights=(1.0,)), tmp_path / "x")
    assert not (tmp_path / "x").exists()
    # One neuron is enough if all tasks have all neurons.
    check_multitask(data, settings(method="uls", network=narrow))


def test_a_folder_of_other_data_is_refused(tmp_path: Path) -> None:
    data, config = toy(), settings(method="uls")
    first = fit_multitask(data, config, tmp_path)
    again = fit_multitask(toy(), config, tmp_path)
    torch.testing.assert_close(again.state_dict(), first.state_dict())
    for name in ("images", "targets", "test_images", "test_targets"):
        turned = replace(data, **{name: getattr(data, name).flip(0)})
        with pytest.raises(RunError, match="the data have changed"):
            fit_multitask(turned, config, tmp_path)


SETTINGS = [
    *("training.epochs=2", "training.batch_size=20", "training.device=cpu", "evaluate_every=1"),
    *("network.channels=2,3", "network.width=6", "network.head=4"),
]


@pytest.mark.usefixtures("blank_pictures")
def test_the_command_does_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_few_digits(tmp_path / "data", monkeypatch)
    which, study = {"data": "mosaic", "tasks": 4}, tmp_path / "study"
    run_study(study, "multitask", "fast-multitask", [1], SETTINGS, which, device="cpu")
    run = RunFolder.open(study / "seed-1")
    command = [*run.result()["command"][1:], "--out", str(tmp_path / "again")]
    assert CliRunner().invoke(app, command).exit_code == 0
    again = RunFolder.open(tmp_path / "again")
    assert again.config_text() == run.config_text()
    assert again.result()["metrics"] == run.result()["metrics"]

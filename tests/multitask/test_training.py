"""Networks in training: alone and stacked, compiled, and what is seen of them on the way."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.utils
from torch.func import stack_module_state

from drpm.multitask import pipeline
from drpm.multitask.config import MultitaskConfig, NetworkConfig
from drpm.multitask.evaluation import TaskScores, score_tasks
from drpm.multitask.models import MultitaskObjective
from drpm.multitask.pipeline import STAGE, check_multitask, fit_multitask, make_network
from drpm.training.compiling import compile_step
from drpm.training.config import TrainingConfig
from drpm.training.errors import ConfigError, RunError
from drpm.training.program import Program
from drpm.training.schedules import ExponentialSchedule
from drpm.training.stacking import StackedProgram
from tests.multitask.toys import HEIGHTS, NETWORK, settings, toy
from tests.training.toys import note_temperatures

METHODS = ["drpm", "uls", "uncertainty"]
SCHEDULES = {"temperature": ExponentialSchedule(1.0, 0.5, 6)}
# Not Adam, which makes full steps of rounding errors.
PLAIN = TrainingConfig(epochs=1, batch_size=8, optimizer="sgd", precision="64-true")
RESIDUAL = NetworkConfig(encoder="residual", channels=(2, 3), width=6, head=0, dropout=0.0)


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
        ("drpm", {"task_order": "shuffled"}),
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
    config = settings(training=PLAIN, network=dropping, size_penalty=0.02, task_order="shuffled")
    eager, compiled = stack(config), stack(config)
    # Traces as inductor does, but calls torch's own operations.
    assert compile_step(compiled, "aot_eager")
    assert torch._dynamo.utils.counters["stats"]["calls_captured"] > 0
    for program in (eager, compiled):
        # Compiled, it draws from the device's own noise; so shall the other.
        program._loss_module.generator = None
        program.shuffle()
        torch.manual_seed(5)
        program.step()
    torch.testing.assert_close(compiled.readings().values, eager.readings().values)
    torch.testing.assert_close(compiled.model_state(1), eager.model_state(1))


def fit(
    config: MultitaskConfig, folder: Path, runs: int = 1, device: str = "cpu", **sizes: int
) -> Any:
    data = toy(**sizes)
    folders = [folder / str(run) for run in range(runs)]
    return fit_multitask([data] * runs, config, folders, seeds=range(runs), device=device), data


def looks_of(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / STAGE / "metrics.jsonl").read_text().splitlines()
    return [x for x in map(json.loads, lines) if "test_accuracy" in x]


def settings_to_learn(method: Any) -> MultitaskConfig:
    training = TrainingConfig(epochs=12, batch_size=16, learning_rate=5e-3)
    network = replace(NETWORK, channels=(6, 16), width=20, head=16)
    return settings(method=method, training=training, network=network, evaluate_every=4)


@pytest.mark.cuda
@pytest.mark.parametrize("method", [*METHODS, "gradient"])
def test_every_method_learns_on_a_gpu(tmp_path: Path, method: str) -> None:
    runs = 1 if method == "gradient" else 2
    found, data = fit(settings_to_learn(method), tmp_path, runs, "cuda", train=160, test=60)
    for fitted in found:
        assert (fitted.predict(data.test_images).cpu() == data.test_targets).double().mean() > 0.9


@pytest.mark.parametrize("method", [*METHODS, "gradient"])
def test_every_method_learns(tmp_path: Path, method: str) -> None:
    (fitted,), data = fit(settings_to_learn(method), tmp_path, train=160, test=60)
    scores = score_tasks(fitted.network, data.test_images, data.test_targets)
    assert not fitted.network.training
    assert float(scores.accuracies.min()) > 0.9
    assert torch.equal(
        scores.accuracies,
        (fitted.predict(data.test_images) == data.test_targets).double().mean(0),
    )
    looks = looks_of(tmp_path / "0")
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
    looks = looks_of(tmp_path / "long" / "0")
    scores = score_tasks(fitted.network, data.test_images, data.test_targets)
    assert looks[1]["epoch"] == 2
    assert looks[1]["test_accuracies"] == scores.accuracies.tolist()
    assert scores.sizes is not None
    assert looks[1]["test_sizes"] == scores.sizes.tolist()


def test_runs_of_a_stack_have_data_of_their_own(tmp_path: Path) -> None:
    """One learns both tasks; the other sees nothing of the right bar, and counts from the top."""
    data = [toy(noise, train=160, test=60) for noise in (0.0, 1.0)]
    last = torch.tensor([HEIGHTS - 1, 0])
    turned = {name: (last - getattr(data[1], name)).abs() for name in ("targets", "test_targets")}
    data[1] = replace(data[1], **turned)
    training = TrainingConfig(epochs=10, batch_size=16, learning_rate=5e-3)
    network = replace(NETWORK, channels=(6, 16), width=20, head=16)
    config = settings(method="uls", training=training, network=network, evaluate_every=10)
    long = replace(config, training=replace(training, epochs=11))
    short, _ = (
        fit_multitask(data, each, [tmp_path / f"{name}-{run}" for run in range(2)], seeds=(0, 1))
        for name, each in (("short", config), ("long", long))
    )
    for run, other in ((0, 1), (1, 0)):
        (look,) = looks_of(tmp_path / f"long-{run}")
        own, swapped = (
            score_tasks(short[run].network, x.test_images, x.test_targets).record()
            for x in (data[run], data[other])
        )
        assert {name: look[name] for name in own} == own
        assert look["test_accuracies"] != swapped["test_accuracies"]
        left, right = look["test_accuracies"]
        assert left > 0.9
        assert (right > 0.9) == (run == 0)


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        *((method, {}) for method in METHODS),
        ("drpm", {"partition": "network"}),
        ("drpm", {"network": RESIDUAL}),
    ],
)
def test_a_stack_is_judged_as_its_runs_are(
    monkeypatch: pytest.MonkeyPatch, method: Any, changes: dict[str, Any]
) -> None:
    from drpm.multitask import evaluation

    data = [toy(0.0), toy(0.7)]
    networks = [
        make_network(each, settings(method=method, **changes), seed).double().eval()
        for seed, each in enumerate(data)
    ]
    images, targets = ([getattr(x, name) for x in data] for name in ("test_images", "test_targets"))
    # The second run is always right, so that the two differ.
    outputs = evaluation.evaluate_in_chunks(networks[1], images[1])
    targets[1] = torch.cat([each.logits.argmax(-1) for each in outputs], 1).T
    parameters, buffers = stack_module_state(list[torch.nn.Module](networks))
    expected = [score_tasks(*each) for each in zip(networks, images, targets, strict=True)]
    # Seven images of both runs at once.
    monkeypatch.setattr(evaluation, "_PIXELS_AT_ONCE", 2 * 7 * 256)
    found = evaluation.score_stack(networks[0], parameters | buffers, images, targets)
    for one, other in zip(found, expected, strict=True):
        for mine, its in zip(one, other, strict=True):
            torch.testing.assert_close(mine, its)
    assert (found[0].sizes is None) == (method != "drpm")
    assert found[0].record() != found[1].record()


@pytest.mark.parametrize("runs", [1, 2])
def test_cut_off_it_goes_on_and_looks_no_epoch_over_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: int
) -> None:
    config = settings(evaluate_every=1, network=replace(NETWORK, dropout=0.5))
    config = replace(config, training=replace(config.training, epochs=4))
    whole, _ = fit(config, tmp_path / "whole", runs)
    record, calls = TaskScores.record, 0

    def dying(scores: TaskScores) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        # In the third look: of two runs, one has logged it and the other has not.
        if calls == 3 * runs:
            raise KeyboardInterrupt
        return record(scores)

    with monkeypatch.context() as patched:
        patched.setattr(TaskScores, "record", dying)
        with pytest.raises(KeyboardInterrupt):
            fit(config, tmp_path / "cut", runs)
    again, _ = fit(config, tmp_path / "cut", runs)
    for run in range(runs):
        for name, tensor in whole[run].network.state_dict().items():
            assert torch.equal(tensor, again[run].network.state_dict()[name])
        looks = [
            [(x["step"], x["test_accuracies"]) for x in looks_of(tmp_path / name / str(run))]
            for name in ("whole", "cut")
        ]
        assert [step for step, _ in looks[0]] == [3, 6, 9]
        assert looks[0] == looks[1]


def test_the_temperature_falls_over_the_whole_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = note_temperatures(monkeypatch)
    fit(settings(temperature=(0.8, 0.2)), tmp_path)
    # Two epochs of three batches: after the sixth step it would be 0.2.
    assert seen == pytest.approx([0.8 * 0.25 ** (step / 6) for step in range(6)])


def test_the_seed_settles_more_than_the_first_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of the batches too."""
    monkeypatch.setattr(pipeline, "make_network", lambda *given: make_network(*given[:2], 0))
    data, config = toy(), settings(method="uls")
    one, same, other = (
        fit_multitask([data], config, [tmp_path / name], seeds=[seed])[0].network.heads.weight
        for name, seed in (("one", 3), ("same", 3), ("other", 4))
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


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
        ([data, toy(train=40)], settings(), "^images of runs .* must have one shape and the same"),
        ([data, toy(test=10)], settings(), r"test_images of runs .* \(20, 1, 16, 16\) and \(10, "),
        ([data], settings(task_weights=(1.0,)), "task_weights must be 2"),
        (
            [data],
            settings(network=replace(NETWORK, width=1)),
            "network.width must be at least the number of tasks, 2, .* but got 1",
        ),
    ]
    for given, config, sentence in cases:
        with pytest.raises(ConfigError, match=sentence):
            fit_multitask(given, config, [tmp_path / "x"] * len(given), seeds=range(len(given)))
        assert not (tmp_path / "x").exists()
    # Where all tasks have all neurons, one will do.
    check_multitask([data], settings(method="uls", network=replace(NETWORK, width=1)))


def test_other_data_do_not_get_the_network_of_some(tmp_path: Path) -> None:
    data, config = toy(), settings(method="uls")
    (first,) = fit_multitask([data], config, [tmp_path], seeds=[0])
    (again,) = fit_multitask([toy()], config, [tmp_path], seeds=[0])
    torch.testing.assert_close(again.network.state_dict(), first.network.state_dict())
    for name in ("images", "targets", "test_images", "test_targets"):
        turned = replace(data, **{name: getattr(data, name).flip(0)})
        with pytest.raises(RunError, match="the data are others than those it was begun with"):
            fit_multitask([turned], config, [tmp_path], seeds=[0])


def test_runs_of_a_stack_are_known_by_data_of_their_own(tmp_path: Path) -> None:
    folders, config = [tmp_path / "0", tmp_path / "1"], settings(method="uls")
    data = [toy(0.0), toy(0.5)]
    fit_multitask(data, config, folders, seeds=[0, 1])
    fit_multitask(data, config, folders, seeds=[0, 1])
    with pytest.raises(RunError, match=r"1.training has .* \(the data are others"):
        fit_multitask([data[0], data[0]], config, folders, seeds=[0, 1])


@pytest.mark.parametrize(
    ("runs", "folders", "seeds", "complaint"),
    [
        (1, 1, 2, "data, folders and seeds must be as many .* but got 1, 1 and 2"),
        (2, 1, 2, "data, folders and seeds must be as many .* but got 2, 1 and 2"),
        (0, 0, 0, "data, folders and seeds must be as many .* but got 0, 0 and 0"),
    ],
)
def test_data_folders_and_seeds_are_one_each(
    tmp_path: Path, runs: int, folders: int, seeds: int, complaint: str
) -> None:
    places = [tmp_path / "x"] * folders
    with pytest.raises(ValueError, match=complaint):
        fit_multitask([toy()] * runs, settings(), places, seeds=range(seeds))
    assert not (tmp_path / "x").exists()


def test_data_alone_is_no_list(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^data must be a list .* but got a TaskData"):
        fit_multitask(toy(), settings(), [tmp_path], seeds=[0])  # type: ignore[arg-type]

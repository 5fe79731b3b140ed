"""The law of a batch's partition: its limits, its gradients, and what is minimised."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drpm.supervised.config import SupervisedConfig
from drpm.supervised.models import Partitioner, SupervisedObjective, cross_entropy
from drpm.training import presets
from drpm.training.config import TrainingConfig
from drpm.training.errors import ConfigError
from drpm.training.program import Program
from drpm.training.schedules import ConstantSchedule
from drpm.training.stacking import StackedProgram
from tests.supervised.toys import CLASSES, CONFIG, blobs


class Known(nn.Module):
    """In place of a network: rows are logits already."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows


def knowing(classes: int = CLASSES) -> Partitioner:
    model = Partitioner(classes, classes, CONFIG)
    model.network = Known()  # type: ignore[assignment]
    return model


def sure(labels: Tensor, classes: int = CLASSES) -> Tensor:
    return 50.0 * nn.functional.one_hot(labels, classes).float()


@pytest.mark.parametrize(
    "labels", [[0, 1, 2, 3], [3, 1, 1, 0, 2, 1, 3, 3, 3], [2, 2, 2], [0], [3, 0]]
)
def test_who_knows_every_class_partitions_rightly(labels: list[int]) -> None:
    """Whatever the classes' sizes are, be it none at all."""
    truth = torch.tensor(labels)
    parts = knowing().law(sure(truth)).rsample_parts(noise="none")
    assert parts.Y.argmax(0).tolist() == labels
    assert parts.sizes.tolist() == torch.bincount(truth, minlength=CLASSES).tolist()


def test_scores_and_weights_in_closed_form() -> None:
    chances = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.2, 0.7]])
    log_scores, log_weights = knowing(3).parameters_of((chances + 1e-9).log(), 1.0)
    expected = [CONFIG.scale * (3 - 0.5), CONFIG.scale * (3 - 0.2 - 1.4)]
    assert log_scores.tolist() == pytest.approx(expected)
    shares = [0.3, 0.35, 0.35]
    assert log_weights.tolist() == pytest.approx([math.log(p / (1 - p)) for p in shares])


def test_unequal_sizes_are_those_expected() -> None:
    """Odds as weights: the likeliest sizes are the sums of chances, also where they are uneven."""
    labels = torch.arange(CLASSES).repeat_interleave(torch.tensor([60, 5, 25, 10]))
    # Nobody is sure, but on the whole the numbers are right.
    shares = torch.tensor([0.6, 0.05, 0.25, 0.1]).log().expand(len(labels), -1)
    model = knowing()
    model.config = replace(CONFIG, prediction_temperature=1.0)
    parts = model.law(shares).rsample_parts(noise="none")
    assert (parts.sizes - torch.bincount(labels)).abs().max() <= 1


def test_the_loss_of_whoever_is_right_and_of_whoever_is_wrong() -> None:
    labels = torch.tensor([0, 0, 1, 2, 3, 3])
    config = replace(CONFIG, scale=10.0)
    model = knowing()
    model.config = config
    model.size_weight.fill_(2.0)
    objective, schedule = SupervisedObjective(config), {"temperature": torch.tensor(0.1)}

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


def test_cross_entropy_against_torch() -> None:
    soft = torch.rand(CLASSES, 9, dtype=torch.float64)
    labels = torch.randint(CLASSES, (9,))
    truth = nn.functional.one_hot(labels, CLASSES).T.double()
    chances = 0.9 * soft / soft.sum(0) + 0.1 / CLASSES
    expected = nn.functional.nll_loss(chances.T.log(), labels)
    torch.testing.assert_close(cross_entropy(soft, truth, 0.1), expected)


@pytest.mark.parametrize("term", ["assignment", "sizes"])
def test_gradients_reach_scores_and_weights(term: str) -> None:
    """Both terms reach the weights, and that of the assignment the scores as well."""
    elements, labels = blobs(24, seed=0)
    model = Partitioner(2, CLASSES, CONFIG, 1.0)
    held = [x.detach().requires_grad_() for x in model.parameters_of(elements, 1.0)]
    model.parameters_of = lambda *given: held  # type: ignore[method-assign,assignment]
    batch = {"rows": elements, "labels": labels}
    terms = SupervisedObjective(CONFIG)(model, batch, {"temperature": torch.tensor(1.0)}, None)
    scores, weights = torch.autograd.grad(terms[term], held, allow_unused=True)
    assert weights.abs().max() > 1e-3
    if term == "assignment":
        # Elements of the last class should fall behind, those of the first come forward.
        assert scores[labels == CLASSES - 1].mean() > 0 > scores[labels == 0].mean()
    else:
        # Downhill, the weights of subsets that are too large fall.
        sizes = model.relaxed_law(elements, torch.tensor(1.0)).rsample_parts(noise="none").sizes
        excess = sizes.detach() - torch.bincount(labels, minlength=CLASSES)
        assert float((weights * excess).sum()) > 0


def test_gradients_reach_the_network() -> None:
    elements, labels = blobs(24, seed=0)
    model = Partitioner(2, CLASSES, CONFIG, 1.0)
    batch = {"rows": elements, "labels": labels}
    terms = SupervisedObjective(CONFIG)(model, batch, {"temperature": torch.tensor(1.0)}, None)
    terms["loss"].backward()
    assert all(float(x.grad.abs().max()) > 0 for x in model.parameters() if x.grad is not None)
    assert all(x.grad is not None for x in model.parameters())


def test_a_stack_takes_the_steps_of_its_runs() -> None:
    """Also where the weights of their size terms differ."""
    elements, labels = blobs(32, seed=0)
    data = {"rows": elements.double(), "labels": labels}
    training = TrainingConfig(
        epochs=1, batch_size=32, learning_rate=1e-2, precision="64-true", device="cpu"
    )
    schedules = {"temperature": ConstantSchedule(0.7)}

    def models() -> list[Partitioner]:
        made = []
        for seed, weight in ((0, 0.0), (1, 0.5)):
            torch.manual_seed(seed)
            made.append(Partitioner(2, CLASSES, CONFIG, weight))
        return made

    objective = SupervisedObjective(CONFIG)
    stacked = StackedProgram(models(), objective, data, training, schedules=schedules)
    alone = [Program(model, objective, data, training, schedules=schedules) for model in models()]
    for program in (stacked, *alone):
        # One batch has all the data: only its order is random, of which nothing depends.
        for _ in range(3):
            program.shuffle()
            program.step()
    for run, program in enumerate(alone):
        torch.testing.assert_close(
            stacked.model_state(run), program.model_state(), rtol=1e-7, atol=1e-9
        )
    assert not torch.equal(
        stacked.model_state(0)["size_weight"], stacked.model_state(1)["size_weight"]
    )


def test_a_stack_compiles_whole() -> None:
    model = Partitioner(2, CLASSES, CONFIG, 0.1)
    elements, labels = blobs(16, seed=0)
    batch = {
        name: torch.stack([x, x.flip(0)]) for name, x in (("rows", elements), ("labels", labels))
    }

    def loss(batch: dict[str, Tensor]) -> Tensor:
        schedule = {"temperature": torch.tensor(0.5)}
        return SupervisedObjective(CONFIG)(model, batch, schedule, None)["loss"]

    plain = torch.func.vmap(loss)
    compiled = torch.compile(plain, backend="aot_eager", fullgraph=True, dynamic=False)
    with torch.no_grad():
        torch.testing.assert_close(compiled(batch), plain(batch))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": ()}, "hidden must have at least 1 item"),
        ({"scale": 0.0}, "scale must be greater than 0, but got 0.0"),
        ({"prediction_temperature": 0.0}, "prediction_temperature must be greater than 0"),
        ({"smoothing": 0.0}, "smoothing must be greater than 0, but got 0.0"),
        ({"size_weights": ()}, "size_weights must have at least 1 item"),
        ({"size_weights": (0.1, 0.1)}, "size_weights must be numbers that differ"),
        ({"size_weights": (-0.1,)}, r"size_weights\[0\] must be at least 0"),
        ({"held_out": 1.0}, "held_out must be less than 1, but got 1.0"),
        ({"temperature": (1.0, 0.0)}, r"temperature\[1\] must be greater than 0"),
    ],
)
def test_bad_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SupervisedConfig(**changes)


def test_every_preset_loads() -> None:
    names = [name for name in presets.names() if "-supervised" in name]
    assert names == [
        "fast-supervised",
        "paper-supervised-fashion-mnist",
        "paper-supervised-mnist",
    ]
    for name in names:
        presets.load(SupervisedConfig, name)

"""Models of pairs whose step is compiled learn what others do."""

import math
from typing import Any

import pytest
import torch
import torch._dynamo.utils

from drpm.factors.config import FactorsConfig
from drpm.factors.models import FactorVAE, factor_objective
from drpm.factors.pairs import PairSampler, arm_world
from drpm.training.compiling import BACKEND, compile_step
from drpm.training.config import TrainingConfig
from drpm.training.devices import Devices
from drpm.training.program import ExponentialSchedule, Program
from tests.factors.test_pairs import assert_proper
from tests.factors.toys import draw

# Traces as inductor does, but calls torch's own operations: quick, and it needs no compiler.
TRACED = "aot_eager"


def make(method: Any, objective: Any, device: str = "cpu") -> Program:
    """In float64, so that no rounding decides which dimensions are shared.

    By plain steps down: Adam makes whole steps even of gradients that are nothing but rounding.
    """
    steps: Any = {"optimizer": "sgd", "learning_rate": 1e-3, "precision": "64-true"}
    training = TrainingConfig(epochs=1, batch_size=8, device=device, **steps)
    config = FactorsConfig(method=method, objective=objective, draws=2, training=training)
    pairs = draw(16, seed=1)
    torch.manual_seed(0)
    program = Program(
        FactorVAE((1, 8, 8), config),
        factor_objective,
        {name: pairs[name] for name in ("first", "second", "label")},
        training,
        schedules={"temperature": ExponentialSchedule(1.0, 0.5, 2)},
        devices=Devices(device),
    )
    # Compiled, it draws from the device's own noise; so shall the other.
    program._evaluate.generator = None  # type: ignore[attr-defined]
    program.shuffle()
    return program


def take_step(program: Program, seed: int) -> tuple[Any, Any]:
    """The terms of a step, and the gradients that it followed."""
    torch.manual_seed(seed)
    program.step()
    return program.readings(), {name: x.grad for name, x in program.model.named_parameters()}


def graphs_called() -> int:
    return int(torch._dynamo.utils.counters["stats"]["calls_captured"])


def same_steps(method: str, objective: str, backend: str, device: str, **near: float) -> None:
    eager, compiled = (make(method, objective, device) for _ in range(2))
    expected = [take_step(eager, seed) for seed in range(2)]
    assert compile_step(compiled, backend)
    calls = graphs_called()
    assert calls > 0
    found = [take_step(compiled, seed) for seed in range(2)]
    assert graphs_called() == calls
    for one, other in zip(found, expected, strict=True):
        assert one[0].names == other[0].names
        torch.testing.assert_close(one[0].values, other[0].values, **near)
        torch.testing.assert_close(one[1], other[1], **near)
    if method in ("drpm", "hg"):  # the number of shared dimensions has a gradient
        assert found[0][1]["aggregation.weights.weight"].abs().max() > 1e-6


@pytest.mark.parametrize("method", ["drpm", "hg", "ada", "label"])
def test_a_compiled_step_equals_an_eager_one(method: str) -> None:
    same_steps(method, "bounds", TRACED, "cpu", rtol=1e-9, atol=1e-10)


def still_noise(*shape: Any, dtype: Any = torch.float32, device: Any, **_: Any) -> torch.Tensor:
    """Numbers from 0 to 1 that look random and are the same whoever asks, and when."""
    count = torch.arange(
        math.prod(shape if isinstance(shape[0], int) else shape[0]), dtype=dtype, device=device
    )
    return (torch.sin(count + 1) * 43758.5453).frac().abs().reshape(*shape)


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("method", "objective"), [("drpm", "bounds"), ("drpm", "exact"), ("hg", "bounds")]
)
def test_a_compiled_step_on_a_gpu(
    method: str, objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Compilers draw noise in an order of their own.
    monkeypatch.setattr(torch, "rand", still_noise)
    monkeypatch.setattr(torch, "randn", still_noise)
    same_steps(method, objective, BACKEND, "cuda", rtol=1e-6, atol=1e-8)


@pytest.mark.cuda
@pytest.mark.parametrize("shared", [0, 3, 7, "mixed"])
def test_compiled_pairs_share_as_many_as_they_are_told(shared: Any) -> None:
    """All that is made of one draw is made of the same: compilers may draw noise again."""
    sampler = PairSampler(arm_world("cuda", angles=2, image_size=16), shared)
    rows = {"row": torch.zeros(4096, device="cuda")}
    compiled = torch.compile(
        lambda: sampler(rows, None), backend=BACKEND, fullgraph=True, dynamic=False
    )
    torch.manual_seed(0)
    batch, again = ({name: x.cpu() for name, x in compiled().items()} for _ in range(2))
    assert_proper(batch, sampler.world.sizes)
    assert set(batch["is_shared"].sum(-1).tolist()) == set(sampler.counts)
    assert not torch.equal(batch["factors"], again["factors"])

"""Small models, objectives and run folders that the tests of training share."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drpm.training.config import TrainingConfig, dumps
from drpm.training.program import Batch, Program
from drpm.training.runs import RunFolder, open_run

EXAMPLES = 40


def points(count: int = EXAMPLES, seed: int = 0) -> dict[str, Tensor]:
    """Points of a noisy plane."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=generator)
    noise = 0.1 * torch.randn(count, 1, generator=generator)
    return {"x": x, "y": x.sum(1, keepdim=True) + noise, "index": torch.arange(count)}


def make_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def squares(
    model: nn.Module, batch: Batch, schedule: Mapping[str, Tensor], generator: torch.Generator
) -> dict[str, Tensor]:
    """The mean squared error; no noise."""
    return {"loss": (model(batch["x"]) - batch["y"]).square().mean()}


def noisy_squares(
    model: nn.Module, batch: Batch, schedule: Mapping[str, Tensor], generator: torch.Generator
) -> dict[str, Tensor]:
    """The mean squared error at noisy points, and the size of the parameters."""
    x = batch["x"]
    noise = 0.1 * torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)
    error = (model(x + noise) - batch["y"]).square().mean()
    size = torch.stack([p.square().sum() for p in model.parameters()]).sum()
    return {"loss": error + 1e-3 * size, "error": error, "size": size}


def settings(**changes: Any) -> TrainingConfig:
    chosen: dict[str, Any] = {"epochs": 3, "batch_size": 8, "learning_rate": 0.05, **changes}
    return TrainingConfig(**chosen)


def make_program(objective: Any = noisy_squares, width: int = 1, **changes: Any) -> Program:
    """The training of one model, or of several that are stacked."""
    models = [make_model(seed) for seed in range(width)]
    return Program(models, objective, points(), settings(**changes))


def at_step(number: int, act: Callable[[], Any]) -> Callable[..., dict[str, Tensor]]:
    """The usual objective, with something happening at the n-th step of this process."""
    calls = []

    def objective(*arguments: Any) -> dict[str, Tensor]:
        calls.append(1)
        if len(calls) == number:
            act()
        return noisy_squares(*arguments)

    return objective


def make_run(folder: Path, config: TrainingConfig) -> RunFolder:
    return open_run(folder, dumps(config))


def begin(
    folder: Path, objective: Any = noisy_squares, **changes: Any
) -> tuple[Program, list[RunFolder]]:
    """What ``train`` takes: a new program, and its folder, which may hold an interrupted run."""
    program = make_program(objective, **changes)
    return program, [make_run(folder, program.config)]


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """Whether all tensors are equal, bit for bit."""
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def steps_of(run: RunFolder) -> list[int]:
    return [record["step"] for record in run.metrics()]


def take_steps(program: Program, count: int, step: Callable[[], None] | None = None) -> Tensor:
    """Steps without the loop around them; the terms of each, (steps, terms, S)."""
    values = []
    for number in range(count):
        if number % program.steps_per_epoch == 0:
            program.shuffle()
        (step or program.step)()
        values.append(program.readings().values)
    return torch.cat(values)

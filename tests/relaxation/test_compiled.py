"""What is done otherwise in compiled code has the same values and gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from drpm import RelaxedRandomPartition
from drpm.relaxation import sorting
from drpm.relaxation.storing import stored
from drpm.relaxation.straight_through import straight_through
from tests.oracles import normal

# Traces as inductor does, but calls torch's own operations.
TRACED = "aot_eager"


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch.compiler.reset()
    return torch.compile(function, backend=TRACED, fullgraph=True, dynamic=False)


def cubes(x: Tensor) -> Tensor:
    return stored(x).pow(3).sum()


def rounded(x: Tensor) -> Tensor:
    return straight_through(x.round(), x.sin()).square().sum()


@pytest.mark.parametrize("function", [cubes, rounded])
def test_gradients_in_and_out_of_maps(function: Callable[[Tensor], Tensor]) -> None:
    x = 3 * normal(4, 5, seed=1)
    expected = vmap(grad(function))(x)
    torch.testing.assert_close(compiled(vmap(grad(function)))(x), expected)
    torch.testing.assert_close(compiled(grad(function))(x[0]), expected[0])
    torch.testing.assert_close(compiled(function)(x), function(x))
    if function is rounded:
        torch.testing.assert_close(expected, 2 * x.round() * x.cos())


def test_compiled_hard_values_are_hard_to_the_last_bit() -> None:
    hard, soft = torch.tensor([0.0, 1.0]), torch.tensor([[0.1, 1 / 3], [0.7, 1e-9]])
    assert torch.equal(compiled(straight_through)(hard, soft), hard.expand(2, 2))


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("hard", [True, False, "sizes"])
def test_partitions_that_are_counted(
    hard: Any, mapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where compiled sorts count."""
    log_scores, log_weights = normal(3, 12, seed=2).float(), normal(3, 4, seed=3).float()
    factors = normal(5, 4, 12, seed=4).float()

    def loss(log_scores: Tensor, log_weights: Tensor) -> Tensor:
        law = RelaxedRandomPartition(0.7, log_scores, log_weights, hard=hard, validate_args=False)
        return (factors * law.rsample((5,))).sum()

    # Torch's compiler cannot yet map the gradient of the weights.
    step = grad(loss, argnums=(0,) if mapped else (0, 1))
    inputs = [log_scores, log_weights] if mapped else [log_scores[0], log_weights[0]]
    step = vmap(step, randomness="different") if mapped else step
    torch.manual_seed(0)
    expected = step(*inputs)
    monkeypatch.setattr(sorting, "counted", lambda scores: torch.compiler.is_compiling())
    torch.manual_seed(0)
    found = compiled(step)(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert bool(found[0].abs().sum() > 0)

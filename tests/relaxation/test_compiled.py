"""What is done otherwise in compiled code has the same values and gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.func import grad, vmap

from drpm import RelaxedRandomPartition
from drpm.relaxation import operators
from drpm.relaxation.operators import materialize, straight_through
from tests.oracles import normal

# Traces as inductor does, but calls torch's own operations.
TRACED = "aot_eager"


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch.compiler.reset()
    return torch.compile(function, backend=TRACED, fullgraph=True, dynamic=False)


def cubes(x: Tensor) -> Tensor:
    return materialize(x).pow(3).sum()


def rounded(x: Tensor) -> Tensor:
    return straight_through(x.round(), x.sin()).square().sum()


def ranked(x: Tensor) -> Tensor:
    scores, order, ranks = operators.sort_descending(x)
    again = operators.permuted(scores.cumsum(-1), ranks, order)
    return (again * x).sum() + (scores.pow(3) * torch.arange(x.shape[-1])).sum()


def sorted_softly(x: Tensor) -> Tensor:
    weights = torch.arange(x.shape[-1] ** 2).reshape(x.shape[-1], -1)
    return sum((weights * sort(x)).square().sum() for sort in operators.SORTS.values())


@pytest.mark.parametrize("function", [cubes, rounded, ranked, sorted_softly])
def test_gradients_in_and_out_of_maps(function: Callable[[Tensor], Tensor]) -> None:
    x = 3 * normal(4, 5, seed=1)
    expected = vmap(grad(function))(x)
    torch.testing.assert_close(compiled(vmap(grad(function)))(x), expected)
    torch.testing.assert_close(compiled(grad(function))(x[0]), expected[0])
    torch.testing.assert_close(compiled(function)(x), function(x))
    twice = grad(lambda x: grad(function)(x).sin().sum())
    torch.testing.assert_close(compiled(twice)(x), twice(x))
    if function is rounded:
        torch.testing.assert_close(expected, 2 * x.round() * x.cos())


@pytest.mark.parametrize(
    ("hard", "mapped"), [(True, False), (True, True), (False, True), ("sizes", True)]
)
def test_partitions_that_are_counted(
    hard: Any, mapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where compiled sorts count."""
    log_scores, log_weights = normal(3, 12, seed=2).float(), normal(3, 4, seed=3).float()
    factors = normal(5, 4, 12, seed=4).float()

    def loss(log_scores: Tensor, log_weights: Tensor) -> Tensor:
        law = RelaxedRandomPartition(0.7, log_scores, log_weights, hard=hard, validate_args=False)
        return (factors * law.rsample((5,))).sum()

    step = grad(loss, argnums=(0, 1))
    inputs = [log_scores, log_weights] if mapped else [log_scores[0], log_weights[0]]
    step = vmap(step, randomness="different") if mapped else step
    torch.manual_seed(0)
    expected = step(*inputs)
    monkeypatch.setattr(operators, "counted", lambda scores: torch.compiler.is_compiling())
    torch.manual_seed(0)
    found = compiled(step)(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert all(bool(slopes.abs().sum() > 0) for slopes in found)


@pytest.mark.parametrize("sort", operators.SORTS)
def test_gradients_of_sorts_are_not_written_into_zeros(sort: str) -> None:
    """What reads them could come first in what torch compiles for a CPU."""
    operations: list[str] = []

    def look(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        operations.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    step = vmap(grad(lambda x: operators.SORTS[sort](x).square().sum()))
    torch.compiler.reset()
    torch.compile(step, backend=aot_autograd(fw_compiler=look), fullgraph=True)(normal(2, 3, 5))
    assert any("gather" in name for name in operations)
    assert not [name for name in operations if "scatter" in name]

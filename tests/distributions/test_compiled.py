"""Compiled and captured sizes are those of eager code."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from drpm import (
    FisherHypergeometric,
    RelaxedAffinityPartition,
    RelaxedFisherHypergeometric,
    RelaxedRandomPartition,
)
from drpm.distributions.sizes import sizes_kl
from tests.oracles import normal


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize(
    ("n", "given"),
    [*((1, "nothing"), (8, "capacities"), (300, "nothing")), *((8, "limits"), (300, "limits"))],
)
def test_drawn_sizes(n: int, given: str, groups: int) -> None:
    """A draw from the same noise and the mode, soft and hard, and the divergence."""
    bounds: dict[str, Any] = {
        "nothing": {},
        "capacities": {"capacities": torch.tensor([1, n, 0, n][-groups:])},
        "limits": {
            "minimum": n // groups - 1,
            "maximum": torch.tensor([n // groups, n, n, n][:groups]),
        },
    }
    options: Any = {**bounds[given], "validate_args": False}
    weights, slopes = 2 * normal(6, groups, seed=3), normal(n, seed=4)

    def loss(weights: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        law = RelaxedFisherHypergeometric(0.5, n, weights, **options)
        draw, mode = (law.draw(torch.Size([3]), noise=noise) for noise in (True, False))
        soft = (draw.survival * slopes).sum() + (mode.survival * slopes).sin().sum()
        soft = soft + (draw.soft + mode.soft).square().sum()
        prior = FisherHypergeometric(n, torch.zeros_like(weights), **options)
        return soft + sizes_kl(law.discrete, prior), (draw.hard, mode.hard)

    step = vmap(grad(loss, has_aux=True), randomness="different")
    torch.manual_seed(0)
    expected = step(weights)
    torch.manual_seed(0)
    torch.compiler.reset()
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=False)
    torch.testing.assert_close(compiled(weights), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.cuda
@pytest.mark.parametrize("limits", [{}, {"minimum": 5, "maximum": 60}], ids=["free", "limits"])
@pytest.mark.parametrize("noise", ["both", "none"])
@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("law", [RelaxedRandomPartition, RelaxedAffinityPartition])
def test_a_draw_is_captured_in_a_graph(
    law: Any, hard: bool, noise: str, limits: dict[str, int]
) -> None:
    """Nothing waits for the device."""
    shape = (256,) if law is RelaxedRandomPartition else (10, 256)
    scores = normal(*shape).float().cuda().requires_grad_()
    weights = normal(10, seed=1).float().cuda().requires_grad_()

    def step() -> tuple[Tensor, ...]:
        relaxed = law(0.5, scores, weights, hard=hard, **limits, validate_args=False)
        value = relaxed.rsample_parts((2,), noise=noise).Y.square().sum()
        sizes = relaxed.discrete.sizes
        value = value + sizes.entropy() + sizes.mean.square().sum()
        return (value, *torch.autograd.grad(value, (scores, weights)))

    # Without its graph, which would tie the leaves to the stream of this call.
    expected = tuple(tensor.detach() for tensor in step())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    graph.replay()
    assert all(bool(torch.isfinite(tensor).all()) for tensor in found)
    if noise == "none":
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)

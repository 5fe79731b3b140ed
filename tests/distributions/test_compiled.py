"""Two groups, whose sizes compiled code sums over, are the law that they are elsewhere."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from drpm import RelaxedFisherHypergeometric
from tests.oracles import normal

TRACED = "aot_eager"


def compiled(function: Any) -> Any:
    torch.compiler.reset()
    return torch.compile(function, backend=TRACED, fullgraph=True, dynamic=False)


@pytest.mark.parametrize("n", [1, 8, 300])
@pytest.mark.parametrize("capacities", [None, (1, 400)])
def test_drawn_sizes(n: int, capacities: tuple[int, int] | None) -> None:
    """The same noise leads to the same sizes, and to the same soft ones."""
    room = None if capacities is None else torch.tensor(capacities)
    weights = 2 * normal(6, 2, seed=3)
    slopes = normal(n, seed=4)

    def loss(weights: Tensor) -> tuple[Tensor, Tensor]:
        law = RelaxedFisherHypergeometric(0.5, n, weights, room, validate_args=False)
        draw = law.draw(torch.Size([3]), noise=True)
        return (draw.survival * slopes).sum(), draw.hard

    step = vmap(grad(loss, has_aux=True), randomness="different")
    torch.manual_seed(0)
    expected = step(weights)
    torch.manual_seed(0)
    torch.testing.assert_close(compiled(step)(weights), expected, rtol=1e-9, atol=1e-9)

"""Two groups, whose sizes compiled code sums over, are the law that they are elsewhere."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from drpm import FisherHypergeometric, RelaxedFisherHypergeometric
from drpm.distributions import urn_pair
from drpm.distributions.divergences import sizes_kl
from tests.oracles import normal

TRACED = "aot_eager"


def compiled(function: Any) -> Any:
    torch.compiler.reset()
    return torch.compile(function, backend=TRACED, fullgraph=True, dynamic=False)


@pytest.mark.parametrize("capacities", [None, (7, 9), (40, 3), (1000, 1000)])
def test_listed_sizes(capacities: tuple[int, int] | None) -> None:
    """Weights far apart too, where the mass of most sizes is no number of float64."""
    room = None if capacities is None else torch.tensor(capacities)
    value = torch.tensor([5.0, 3.0]).double()

    def law_of(weights: Tensor) -> FisherHypergeometric:
        return FisherHypergeometric(8, weights, room, validate_args=False)

    numbers: dict[str, Callable[[FisherHypergeometric], Tensor]] = {
        "log_normalizer": lambda law: law.log_normalizer,
        "mean": lambda law: law.mean,
        "log_prob": lambda law: law.log_prob(value),
    }
    if room is None:
        other = law_of(normal(2, seed=2))
        numbers["divergence"] = lambda law: sizes_kl(law, other)

    def slopes(weights: Tensor) -> dict[str, Tensor]:
        return {
            name: grad(lambda w, number=number: number(law_of(w)).square().sum())(weights)
            for name, number in numbers.items()
        }

    def both(weights: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        law = law_of(weights)
        return {name: number(law) for name, number in numbers.items()}, vmap(slopes)(weights)

    # Compiled once, which takes longer than all else.
    fast = compiled(both)
    for scale in (1.0, 200.0):
        weights = scale * normal(5, 2, seed=1)
        torch.testing.assert_close(fast(weights), both(weights), rtol=1e-9, atol=1e-9)


def test_what_is_listed() -> None:
    """Only what is compiled, two groups, and not too many elements."""
    assert not urn_pair.listed(8, 2)
    listed = [(8, 2), (512, 2), (513, 2), (8, 3)]

    def switches(x: Tensor) -> Tensor:
        return torch.stack([x + float(urn_pair.listed(*urns)) for urns in listed])

    assert compiled(switches)(torch.zeros(())).tolist() == [1, 1, 0, 0]


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

"""The mode and its soft sizes from increments, against enumeration and against the tables."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from drpm import FisherHypergeometric, RelaxedFisherHypergeometric
from drpm.distributions import increments
from tests import oracles
from tests.oracles import normal

TEMPERATURE = 0.7
ROOMS = [None, [3, 0, 7, 2], [2, 1, 2, 1], [50, 1, 4, 6]]


def found(total: int, log_weights: Tensor, room: list[int] | None = None) -> Any:
    full = [total] * log_weights.shape[-1] if room is None else room
    capacities = torch.tensor(full).double().expand_as(log_weights)
    heat = torch.tensor(TEMPERATURE, dtype=torch.float64)
    return increments.soft_mode(total, log_weights, capacities, heat)


def through_tables(total: int, log_weights: Tensor, room: list[int] | None = None) -> Any:
    capacities = None if room is None else torch.tensor(room)
    law = FisherHypergeometric(total, log_weights, capacities, validate_args=False)
    return law.soft_mode(torch.tensor(TEMPERATURE, dtype=torch.float64))


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("scale", [0.3, 3.0, 30.0])
def test_laws_are_the_best_that_may_follow(room: list[int] | None, scale: float) -> None:
    """Along the mode, a size is as likely as the likeliest sizes that begin with it."""
    n, weights = 6, scale * normal(4, seed=1)
    law = oracles.fisher(n, weights, room)
    sizes, laws = found(n, weights, room)
    assert sizes.tolist() == law.values[law.log_mass.argmax()].tolist()
    for k in range(3):
        so_far = (law.values[:, :k] == sizes[:k]).all(-1)
        best = torch.full((n + 1,), -torch.inf, dtype=torch.float64)
        for size in range(n + 1):
            rows = so_far & (law.values[:, k] == size)
            if bool(rows.any()):
                best[size] = law.log_mass[rows].max()
        torch.testing.assert_close(
            laws[k], (best / TEMPERATURE).softmax(-1), rtol=1e-10, atol=1e-12
        )


@pytest.mark.parametrize(("n", "groups"), [(1, 2), (1, 5), (7, 2), (64, 40), (150, 3)])
@pytest.mark.parametrize("scale", [0.5, 5.0, 100.0])
def test_values_and_gradients_are_those_of_the_tables(n: int, groups: int, scale: float) -> None:
    weights = scale * normal(2, groups, seed=n)
    slopes = normal(2, groups - 1, n + 1, seed=3)
    near = {"rtol": 1e-9, "atol": 1e-11}
    torch.testing.assert_close(found(n, weights), through_tables(n, weights), **near)
    gradients = [
        grad(lambda w, way=way: (way(n, w).laws * slopes).sum())(weights)
        for way in (found, through_tables)
    ]
    torch.testing.assert_close(*gradients, **near)


@pytest.mark.parametrize("room", ROOMS[1:])
def test_gradients_where_groups_are_full(room: list[int]) -> None:
    weights, slopes = 2 * normal(4, seed=5), normal(3, 7, seed=6)
    gradients = [
        grad(lambda w, way=way: (way(6, w, room).laws * slopes).sum())(weights)
        for way in (found, through_tables)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-11)


def test_equal_increments_are_taken_from_earlier_groups() -> None:
    sizes, laws = found(6, torch.zeros(4, dtype=torch.float64))
    assert sizes.tolist() == [2, 2, 1, 1]
    assert sizes.tolist() == FisherHypergeometric(6, torch.zeros(4)).mode.tolist()
    torch.testing.assert_close(laws, through_tables(6, torch.zeros(4).double()).laws)


def test_what_weights_have_in_common_changes_nothing() -> None:
    weights = torch.tensor([0.0, 0.5, -1.25, 2.0], dtype=torch.float64)
    torch.testing.assert_close(found(9, weights + 2.0**40), found(9, weights), rtol=0, atol=0)


def test_weights_so_far_apart_that_increments_round_to_one() -> None:
    sizes, laws = found(5, torch.tensor([0.0, 2.0**60], dtype=torch.float64))
    assert sizes.tolist() == [0, 5]
    assert laws.tolist() == [[1, 0, 0, 0, 0, 0]]


def test_it_maps() -> None:
    weights = normal(5, 4, seed=2)
    mapped = vmap(grad(lambda w: found(6, w).laws.square().sum()))(weights)
    alone = grad(lambda w: found(6, w).laws.square().sum())(weights)
    torch.testing.assert_close(mapped, alone)


def compiled(function: Any) -> Any:
    torch.compiler.reset()
    return torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=False)


@pytest.mark.parametrize("mapped", [False, True])
def test_compiled_modes(mapped: bool) -> None:
    weights, slopes = normal(3, 5, seed=7), normal(5, seed=8)

    def loss(weights: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        law = RelaxedFisherHypergeometric(temperature, 12, weights, validate_args=False)
        mode = law.mode
        return (mode * slopes).sum(), mode

    step = grad(loss, argnums=(0, 1), has_aux=True)
    step = vmap(step) if mapped else step
    heat = torch.tensor([0.5, 0.7, 1.0], dtype=torch.float64)
    expected = step(weights, heat)
    torch.testing.assert_close(compiled(step)(weights, heat), expected, rtol=1e-9, atol=1e-11)
    assert all(bool(slopes.abs().sum() > 0) for slopes in expected[0])


def test_where_it_is_used() -> None:
    """Only in compiled code, where a table would hold all totals, and for few urns."""
    few, many = torch.zeros(40), torch.zeros(256, 40)
    assert not increments.available(64, few)
    urns = [(64, few), (64, many), (256, few)]

    def switches(x: Tensor) -> Tensor:
        return torch.stack([x + float(increments.available(*urn)) for urn in urns])

    assert compiled(switches)(torch.zeros(())).tolist() == [1, 0, 0]


@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("weight", [-1e8, -1e17, float(torch.finfo(torch.float32).min)])
def test_a_group_that_is_left_out_costs_the_others_no_digits(place: int, weight: float) -> None:
    weights = torch.tensor([0.5, 0.3, -0.2], dtype=torch.float64)
    parts = (weights[:place], torch.tensor([weight], dtype=torch.float64), weights[place:])
    sizes, laws = found(10, torch.cat(parts))
    expected = through_tables(10, torch.cat(parts))
    assert sizes.tolist() == expected[0].tolist()
    torch.testing.assert_close(laws, expected[1], rtol=0, atol=1e-12)

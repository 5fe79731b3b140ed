"""The reparameterised laws: exact when hard, in their limits when soft, dense when small."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import drpm
from tests import oracles
from tests.oracles import FALSE_ALARM, generator, normal, parameters

DRAWS = 20_000
SORTS = ["neuralsort", "softsort", "sinkhorn"]
any_temperature = pytest.mark.parametrize("temperature", [0.1, 1.0, 5.0])
any_sort = pytest.mark.parametrize("sort", SORTS)
LAWS: dict[str, Any] = {
    "scores": (drpm.RelaxedRandomPartition, oracles.random_partition),
    "affinities": (drpm.RelaxedAffinityPartition, oracles.affinity_partition),
}
any_law = pytest.mark.parametrize("kind", LAWS)


def tensors(kind: str, n: int, groups: int, scale: float = 1.0, seed: int = 0) -> list[Tensor]:
    """Scores, one for an element or for a subset and an element, and log-weights."""
    scores, weights = parameters(n, groups, scale, seed)
    return [scores if kind == "scores" else scale * normal(groups, n, seed=seed), weights]


def fill(order: Tensor, sizes: Tensor) -> Tensor:
    """The matrix whose subsets take the ordered elements one after the other."""
    *batch, n = order.shape
    groups = sizes.shape[-1]
    out = torch.zeros(*batch, groups, n, dtype=sizes.dtype)
    ends = sizes.cumsum(-1)
    rank = torch.arange(n, dtype=sizes.dtype)
    subset = (rank.unsqueeze(-1) >= ends.unsqueeze(-2)).sum(-1)
    labels = torch.zeros_like(order).scatter(-1, order, subset.expand_as(order))
    return out.scatter(-2, labels.unsqueeze(-2), 1.0)


# --- hard samples follow the discrete law ----------------------------------------------------


@any_law
@any_temperature
@pytest.mark.parametrize("with_gradients", [True, False])
def test_hard_partitions_follow_the_discrete_law(
    kind: str, temperature: float, with_gradients: bool
) -> None:
    make, oracle = LAWS[kind]
    given = tensors(kind, 4, 3, 1.0, 3)
    exact = oracle(*given, [4, 3, 4])
    law = make(temperature, *given, torch.tensor([4, 3, 4]))
    draw = law.rsample if with_gradients else law.sample
    counts = oracles.count_values(draw((DRAWS,), generator=generator(1)), exact.values)
    assert oracles.chi_square_p_value(counts, exact.mass.numpy()) > FALSE_ALARM


@any_temperature
@any_sort
def test_hard_orders_follow_the_discrete_law(temperature: float, sort: str) -> None:
    scores = parameters(4, 1, 1.0, 3)[0]
    exact = oracles.plackett_luce(scores)
    law = drpm.RelaxedPlackettLuce(temperature, scores, sort=sort)
    samples = law.rsample((DRAWS,), generator=generator(1))
    counts = oracles.count_values(samples.argmax(-1), exact.values)
    assert oracles.chi_square_p_value(counts, exact.mass.numpy()) > FALSE_ALARM


# --- parts ----------------------------------------------------------------------------------


@any_law
@pytest.mark.parametrize("noise", ["both", "order", "none"])
@pytest.mark.parametrize("hard", [True, False, "sizes"])
def test_parts_belong_together(kind: str, noise: str, hard: bool | str) -> None:
    given = tensors(kind, 8, 3)
    law = LAWS[kind][0](0.3, *given, hard=hard)
    parts = law.rsample_parts((40,), noise=noise, generator=generator())
    assert parts._fields == ("Y", "sizes", "order")
    assert parts.Y.shape == (40, 3, 8)
    assert parts.sizes.shape == (40, 3)
    assert parts.order.dtype == torch.int64
    assert (parts.order.sort(-1).values == torch.arange(8)).all()
    torch.testing.assert_close(parts.Y.sum(-1), parts.sizes, rtol=0, atol=1e-9)
    torch.testing.assert_close(parts.sizes.sum(-1), torch.full((40,), 8.0).double())
    if kind == "affinities":
        torch.testing.assert_close(parts.Y.sum(-2), torch.ones(40, 8).double(), rtol=0, atol=1e-12)
    if hard:
        assert law.discrete.sizes.support.check(parts.sizes).all()
    if hard is True:  # the order fills the subsets of Y
        assert torch.equal(parts.Y, fill(parts.order, parts.sizes))
        assert torch.isfinite(law.discrete.log_prob_bounds(parts.Y, parts.order).lower).all()
    if noise == "none" and kind == "scores":
        assert (parts.order == given[0].argsort(descending=True)).all()
    assert (parts.order.unique(dim=0).shape[0] > 1) == (noise != "none")
    if noise != "both" and hard:
        assert (parts.sizes == law.discrete.sizes.mode).all()
    if noise == "both" and hard:
        assert parts.sizes.unique(dim=0).shape[0] > 1


# --- the noise-free mode ----------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.3, 3.0, 50.0])
@any_temperature
def test_hard_mode_combines_the_two_modes(scale: float, temperature: float) -> None:
    """Many groups too: the mode of one conditional after the other is not the law's mode."""
    for seed, groups in enumerate((2, 3, 5, 12)):
        scores, weights = parameters(30, groups, scale, seed)
        law = drpm.RelaxedRandomPartition(temperature, scores, weights)
        sizes = drpm.FisherHypergeometric(30, weights)
        relaxed = drpm.RelaxedFisherHypergeometric(temperature, 30, weights)
        best = sizes.log_prob(sizes.mode)
        for value in (law.mode.sum(-1), relaxed.mode):
            assert sizes.log_prob(value).item() == pytest.approx(best.item(), abs=1e-9)
        order = scores.argsort(descending=True)
        assert torch.equal(law.mode, fill(order, law.mode.sum(-1)))
        permutation = drpm.RelaxedPlackettLuce(temperature, scores).mode
        assert torch.equal(permutation.argmax(-1), order)


# --- soft samples ---------------------------------------------------------------------------


# Both laws, and every sort of the one that has them.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *(("scores", {"sort": sort}) for sort in SORTS),
    ("affinities", {}),
]
variant = pytest.mark.parametrize(("kind", "options"), VARIANTS)


@variant
@pytest.mark.parametrize("groups", [2, 3])
def test_soft_partitions_approach_the_hard_ones(
    kind: str, options: dict[str, Any], groups: int
) -> None:
    given = tensors(kind, 6, groups, 1.0, 4)

    def draw(temperature: float, hard: bool | str) -> Tensor:
        law = LAWS[kind][0](temperature, *given, hard=hard, **options)
        return law.rsample((100,), generator=generator(6))

    hard = draw(1.0, True)
    for soft_kind in (False, "sizes"):
        gaps = [
            (draw(temperature, soft_kind) - hard).abs().mean().item()
            for temperature in (3.0, 0.3, 0.03, 1e-3, 1e-5)
        ]
        assert gaps == sorted(gaps, reverse=True)
        assert gaps[0] > 0.1
        assert gaps[-1] < 1e-3


@pytest.mark.parametrize(("n", "groups"), [(300, 40), (20, 100)])
def test_soft_sizes_of_many_groups(n: int, groups: int) -> None:
    weights = parameters(1, groups)[1]
    draws = []
    for temperature, hard in ((1.0, True), (1.0, False), (1e-4, False)):
        law = drpm.RelaxedFisherHypergeometric(temperature, n, weights, hard=hard)
        draws.append(law.rsample((50,), generator=generator(4)))
        assert (draws[-1] >= -1e-9).all()
        torch.testing.assert_close(draws[-1].sum(-1), torch.full((50,), float(n)).double())
    assert draws[0].unique(dim=0).shape[0] == 50
    assert (draws[1] - draws[0]).abs().mean() > 0.1
    assert (draws[2] - draws[0]).abs().mean() < 0.01


@any_sort
@any_temperature
def test_soft_values_are_stochastic(sort: str, temperature: float) -> None:
    """Rows of a relaxed order sum to 1; those of Y to the sizes; everything is non-negative."""
    scores, weights = parameters(9, 4, 2.0)
    order = drpm.RelaxedPlackettLuce(temperature, scores, hard=False, sort=sort).rsample((20,))
    ones = torch.ones(20, 9, dtype=torch.float64)
    assert (order >= 0).all()
    balanced = 1e-2 if sort == "sinkhorn" else 1e-6  # Sinkhorn's columns are exact, rows nearly
    torch.testing.assert_close(order.sum(-1), ones, rtol=0, atol=balanced)
    if sort == "sinkhorn":
        torch.testing.assert_close(order.sum(-2), ones, rtol=0, atol=1e-6)
    for hard in (False, "sizes"):
        law = drpm.RelaxedRandomPartition(temperature, scores, weights, hard=hard, sort=sort)
        parts = law.rsample_parts((20,))
        assert (parts.Y >= -1e-12).all()
        torch.testing.assert_close(parts.Y.sum(-1), parts.sizes, rtol=0, atol=10 * balanced)
        if sort == "sinkhorn":
            torch.testing.assert_close(parts.Y.sum(-2), ones, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_soft_partitions_are_never_negative(dtype: torch.dtype) -> None:
    """Not even by the rounding errors of a Fourier transform, dense and streamed."""
    for n in (300, 1_500):
        scores, weights = (t.to(dtype) for t in parameters(n, 6))
        for temperature in (0.05, 1.0):
            for hard in (False, "sizes"):
                law = drpm.RelaxedRandomPartition(temperature, scores, weights, hard=hard)
                assert (law.rsample((3,), generator=generator()) >= 0).all()
                assert (law.mode >= 0).all()


# --- the noise-free path against the textbook -------------------------------------------------


def soft_boundaries(law: oracles.Enumeration, temperature: float) -> Tensor:
    """P(rank r lies in the first k subsets): independent soft sizes, each a tempered conditional.

    The conditional of a size given those before it, along the mode, carries the best mass that
    any completion reaches; the soft boundaries are the sums of the soft sizes.
    """
    n, groups = int(law.values[0].sum()), law.values.shape[1]
    mode = law.values[law.log_mass.argmax()]
    position, rows = torch.eye(n + 1, dtype=torch.float64)[0], []
    for k in range(groups - 1):
        history = (law.values[:, :k] == mode[:k]).all(-1)
        best = [
            law.log_mass[history & (law.values[:, k] == size)].max()
            if (history & (law.values[:, k] == size)).any()
            else torch.tensor(-torch.inf, dtype=torch.float64)
            for size in range(n + 1)
        ]
        size = (torch.stack(best) / temperature).softmax(0)
        sums = [(position[: t + 1] * size[: t + 1].flip(0)).sum() for t in range(n + 1)]
        position = torch.stack(sums)
        rows.append(1 - position.cumsum(0)[:n])
    return torch.stack(rows)


@pytest.mark.parametrize(("n", "capacities"), [(6, None), (5, [3, 0, 4, 2]), (7, [7, 7, 2])])
@any_temperature
def test_soft_mode_equals_the_enumerated_boundaries(
    n: int, capacities: list[int] | None, temperature: float
) -> None:
    groups = 3 if capacities is None else len(capacities)
    scores, weights = parameters(n, groups, 1.0, 8)
    tensor = None if capacities is None else torch.tensor(capacities)
    leaves, copies = (
        tuple(t.clone().requires_grad_() for t in (scores, weights)) for _ in range(2)
    )
    law = drpm.RelaxedRandomPartition(temperature, *leaves, tensor, hard=False)
    found = law.mode
    survival = soft_boundaries(oracles.fisher(n, copies[1], capacities), temperature)
    ends = torch.zeros(1, n, dtype=torch.float64)
    alpha = torch.cat([ends, survival, ends + 1]).diff(dim=0)
    expected = alpha @ oracles.neuralsort(copies[0], temperature)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    sizes = drpm.RelaxedFisherHypergeometric(temperature, n, weights, tensor, hard=False).mode
    torch.testing.assert_close(sizes, alpha.sum(-1).detach(), rtol=0, atol=1e-10)
    cotangent = normal(groups, n)
    ours = torch.autograd.grad((found * cotangent).sum(), leaves)
    theirs = torch.autograd.grad((expected * cotangent).sum(), copies)
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)


# --- gradients ------------------------------------------------------------------------------


@variant
@pytest.mark.parametrize("hard", [False, "sizes"])
def test_gradcheck_of_soft_partitions(kind: str, options: dict[str, Any], hard: bool | str) -> None:
    leaves = [t.requires_grad_() for t in tensors(kind, 5, 3, 1.0, 2)]

    def law(*given: Tensor) -> Any:
        return LAWS[kind][0](0.9, *given, hard=hard, **options)

    functions = (
        lambda *given: law(*given).rsample((2,), generator=generator(3)),
        lambda *given: law(*given).mode,
    )
    for function in functions:
        if hard == "sizes":  # the sizes are straight-through: only the scores have a true slope
            weights = leaves[1].detach()
            assert gradcheck(lambda s, f=function, w=weights: f(s, w), leaves[:1])
        else:
            assert gradcheck(function, leaves)


@pytest.mark.parametrize("scale", [1.0, 300.0])
@variant
def test_gradients_stay_finite(scale: float, kind: str, options: dict[str, Any]) -> None:
    """Scores and weights over hundreds of units, cold and warm, in both precisions."""
    for dtype, temperature, hard in itertools.product(
        (torch.float32, torch.float64), (1e-3, 1.0, 100.0), (True, False, "sizes")
    ):
        leaves = [t.to(dtype).requires_grad_() for t in tensors(kind, 20, 4, scale)]
        law = LAWS[kind][0](temperature, *leaves, hard=hard, **options)
        value = law.rsample((5,), generator=generator())
        cotangent = torch.randn(value.shape, dtype=dtype, generator=generator(1))
        assert torch.isfinite(value).all()
        for grad in torch.autograd.grad((value * cotangent).sum(), leaves):
            assert torch.isfinite(grad).all()


def test_temperatures_of_a_batch() -> None:
    """One temperature per law, with a gradient of its own."""
    scores, weights = parameters(5, 3)
    temperatures = torch.tensor([0.2, 1.0, 4.0], dtype=torch.float64)

    def laws(tau: Tensor, s: Tensor, w: Tensor) -> list:
        rows = torch.stack([s, -s, s], -2)
        return [
            drpm.RelaxedFisherHypergeometric(tau, 5, w, hard=False),
            drpm.RelaxedAffinityPartition(tau, rows, w, hard=False),
            drpm.RelaxedPlackettLuce(tau, s, hard=False),
            drpm.RelaxedRandomPartition(tau, s, w, hard=False),
        ]

    for index, law in enumerate(laws(temperatures, scores.expand(3, 5), weights.expand(3, 3))):
        for b in range(3):
            single = laws(temperatures[b], scores, weights)[index]
            torch.testing.assert_close(law.mode[b], single.mode)
        wide = law.expand((2, 3))
        assert wide.rsample((4,)).shape == (4, 2, 3, *law.event_shape)
        torch.testing.assert_close(wide.mode[1], law.mode)
    tau = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    for index in range(4):
        assert gradcheck(lambda t, i=index: laws(t, scores, weights)[i].mode, (tau,))
        assert gradcheck(
            lambda t, i=index: laws(t, scores, weights)[i].rsample(generator=generator(2)), (tau,)
        )

"""The random partition against the sum over all permutations, and against closed forms."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import drpm
from tests import oracles
from tests.conformance import Multinomial
from tests.oracles import (
    FALSE_ALARM,
    GRADIENT_DRAWS,
    GRADIENT_GRID,
    SMALL,
    assert_expectation,
    assert_score_function_gradient,
    generator,
    normal,
    parameters,
    slopes,
    without_last,
)

DRAWS = 20_000
small = pytest.mark.parametrize(("n", "groups"), SMALL)
LAWS: dict[str, Any] = {
    "scores": (drpm.RandomPartition, oracles.random_partition),
    "affinities": (drpm.AffinityPartition, oracles.affinity_partition),
}


def cases(kind: str, n: int, groups: int) -> list[tuple[Tensor, Tensor, list[int] | None]]:
    """Scores and weights of like scales and unlike ones, ties, a full urn, a group without room."""
    found: list[tuple[Tensor, Tensor, list[int] | None]] = []

    def draw(scale: float, seed: int) -> tuple[Tensor, Tensor]:
        scores, weights = parameters(n, groups, scale, seed)
        return scores if kind == "scores" else scale * normal(groups, n, seed=seed), weights

    for index, scale in enumerate((0.0, 1.0, 10.0, 50.0)):
        found.append((*draw(scale, 100 * n + 10 * groups + index), None))
    scores, weights = draw(2.0, n)
    return [
        *found,
        (50 * scores, 0.1 * weights, None),
        (scores.round(), 10 * weights, None),
        (scores, weights, oracles.full_urn(n, groups)),
        (10 * scores, weights, oracles.closed_group(n, groups)),
    ]


def build(
    kind: str, scores: Tensor, weights: Tensor, capacities: list[int] | None, **options: Any
) -> Any:
    room = None if capacities is None else torch.tensor(capacities)
    return LAWS[kind][0](scores, weights, room, **options)


# --- brute force ----------------------------------------------------------------------------


@small
@pytest.mark.parametrize("kind", LAWS)
def test_masses_bounds_marginals_and_mode_equal_enumeration(kind: str, n: int, groups: int) -> None:
    for case in cases(kind, n, groups):
        law, exact = build(kind, *case), LAWS[kind][1](*case)
        possible = exact.log_mass > -math.inf
        values, log_mass = exact.values[possible], exact.log_mass[possible]
        log_prob = law.log_prob(values)
        assert abs(log_prob.exp().sum() - 1) < 1e-10
        torch.testing.assert_close(log_prob, log_mass, rtol=1e-12, atol=1e-9)
        if not possible.all():
            quiet = build(kind, *case, validate_args=False)
            assert (quiet.log_prob(exact.values[~possible]) == -math.inf).all()
            assert not law.support.check(exact.values[~possible]).any()
        lower, upper = law.log_prob_bounds(values)
        slack = 1e-9 + 1e-12 * log_mass.abs()
        assert (lower <= log_mass + slack).all()
        assert (upper >= log_mass - slack).all()
        if kind == "affinities":
            counts = torch.lgamma(values.sum(-1) + 1).sum(-1)
            torch.testing.assert_close(upper - lower, counts, rtol=1e-9, atol=1e-9)
            continue
        # The bounds are the paper's: one compatible order below, n_k! times the likeliest above.
        for index in range(0, len(values), max(1, len(values) // 10)):
            sizes = law.sizes.log_prob(values[index].sum(-1))
            expected = oracles.bounds(case[0], values[index].argmax(0), sizes)
            found = (lower[index], upper[index])
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
        marginals, mode = law.marginals(), law.mode
        torch.testing.assert_close(marginals, exact.mean(), rtol=0, atol=1e-9)
        assert torch.equal(law.mean, marginals)
        assert law.support.check(mode)
        torch.testing.assert_close(law.log_prob(mode), exact.log_mass.max(), rtol=0, atol=1e-9)


COMPATIBLE, LABELS = [0, 2, 4, 1, 3], [0, 2, 0, 2, 1]


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(torch.tensor(COMPATIBLE).double(), id="float"),
        pytest.param(torch.tensor(COMPATIBLE).bool(), id="bool"),
        pytest.param(COMPATIBLE, id="list"),
        pytest.param(torch.tensor([0, 2, 4, 1, 5]), id="too-large"),
        pytest.param(torch.tensor([0, 2, 4, 1, -2]), id="negative"),
        pytest.param(torch.tensor([0, 2, 4, 1, 1]), id="repeated"),
        pytest.param(torch.tensor([0, 4, 2, 1, 3]), id="incompatible"),
        pytest.param(torch.tensor([0, 2, 4, 1]), id="short"),
        pytest.param(torch.tensor([COMPATIBLE, [4, 0, 2, 1, 3]]), id="one-of-two"),
        pytest.param(torch.tensor([COMPATIBLE] * 3), id="batch"),
    ],
)
def test_bounds_refuse_a_bad_order(order: Any) -> None:
    law = drpm.RandomPartition(*(t.expand(2, -1) for t in parameters(5, 3)))
    value = oracles.to_matrix(torch.tensor(LABELS), 3)
    law.log_prob_bounds(value, torch.tensor(COMPATIBLE))
    with pytest.raises(ValueError, match="order") as error:
        law.log_prob_bounds(value, order)
    assert "\n" not in str(error.value)


# --- larger, against set recursion and fine quadrature --------------------------------------


@pytest.mark.parametrize("scale", [0.5, 5.0, 50.0, 200.0, 400.0])
@pytest.mark.parametrize("order", ["random", "sorted", "reversed", "affinities"])
def test_spread_scores_equal_the_recursion_over_sets(scale: float, order: str) -> None:
    """Subsets of up to 12 elements, log-scores spread over hundreds of units."""
    sizes = [12, 0, 9, 11, 1, 12]
    groups, n, by_rows = len(sizes), sum(sizes), order == "affinities"
    shape = (groups, n) if by_rows else (n,)
    scores = scale * np.random.default_rng(int(scale)).standard_normal(shape)
    if order in ("sorted", "reversed"):
        scores = np.sort(scores) if order == "reversed" else -np.sort(-scores)
    labels = np.repeat(np.arange(groups), sizes)
    exact = oracles.fill_log_prob_by_subsets(scores, labels)
    leaf = torch.tensor(scores, requires_grad=True)
    make = drpm.AffinityPartition if by_rows else drpm.RandomPartition
    law = make(leaf, torch.zeros(groups, dtype=torch.float64))
    value = oracles.to_matrix(torch.tensor(labels), groups)
    log_prob = law.log_prob(value)
    assert abs((log_prob - law.sizes.log_prob(value.sum(-1))).item() - exact) < 1e-8
    (grad,) = torch.autograd.grad(log_prob, leaf)
    assert torch.isfinite(grad).all()
    assert (grad.sum(-1).abs() < 1e-8).all()  # a common factor of all scores changes nothing
    if by_rows:
        assert (grad[-1] == 0).all()  # the last subset has no choice
        taken = torch.tensor(labels) < torch.arange(groups)[:, None]
        assert (grad[taken] == 0).all()  # nor does any subset, among what is taken


def test_equal_scores_closed_form() -> None:
    """Without preferences, all partitions of given sizes are equally likely."""
    n, sizes = 5_000, torch.tensor([1_700, 0, 1_250, 1, 2_049])
    places = torch.randperm(n, generator=generator())
    value = oracles.to_matrix(torch.repeat_interleave(torch.arange(5), sizes)[places], 5)
    weights = torch.linspace(-1, 1, 5, dtype=torch.float64)
    law = drpm.RandomPartition(torch.zeros(n, dtype=torch.float64), weights)
    counts = sum(math.lgamma(int(k) + 1) for k in sizes) - math.lgamma(n + 1)
    closed = law.sizes.log_prob(sizes.double()).item() + counts
    levels = torch.tensor([3.0, -20.0, 0.0, 100.0, 7.0], dtype=torch.float64)
    for double in (
        law,
        drpm.RandomPartition(law.log_scores + 25, weights),
        drpm.AffinityPartition(levels[:, None].expand(5, n), weights),
    ):
        assert double.log_prob(value).item() == pytest.approx(closed, rel=1e-9)
    single = drpm.RandomPartition(law.log_scores.float() + 25, weights.float())
    assert single.log_prob(value.float()).item() == pytest.approx(closed, rel=1e-5)


@pytest.mark.parametrize(("n", "scale"), [(150, 0.0), (150, 1.0), (60, 100.0)])
def test_marginals_at_moderate_n(n: int, scale: float) -> None:
    """Sums over subsets and elements, and three elements against a fine quadrature."""
    scores, weights = parameters(n, 3, scale, 4)
    law = drpm.RandomPartition(scores, weights)
    marginals = law.marginals()
    assert (marginals >= -1e-12).all()
    torch.testing.assert_close(marginals.sum(0), torch.ones(n).double(), rtol=0, atol=1e-9)
    torch.testing.assert_close(marginals.sum(1), law.sizes.mean, rtol=0, atol=1e-8)
    sizes = oracles.fisher(n, weights)
    at_rank = oracles.subset_at_rank(sizes)
    for element in (0, n // 2, int(scores.argmax())):
        ranks = oracles.rank_probabilities_by_quadrature(scores.numpy(), element)
        np.testing.assert_allclose(
            marginals[:, element].numpy(), at_rank @ ranks, rtol=0, atol=1e-9
        )
    order = scores.argsort(descending=True)
    assert (marginals[0, order].diff() <= 1e-9).all()  # higher scores come earlier


# --- samples --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "groups", "scale", "capacities"),
    [(4, 3, 0.5, None), (5, 2, 2.0, None), (4, 3, 1.0, [2, 0, 3]), (3, 4, 1.0, None)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", LAWS)
def test_samples_follow_the_law(
    n: int, groups: int, scale: float, capacities: list[int] | None, dtype: torch.dtype, kind: str
) -> None:
    law, enumerate_all = LAWS[kind]
    scores, weights = (t.to(dtype) for t in parameters(n, groups, scale, 6))
    if kind == "affinities":
        scores = scale * normal(groups, n, seed=6).to(dtype)
    exact = enumerate_all(scores.double(), weights.double(), capacities)
    room = None if capacities is None else torch.tensor(capacities)
    samples = law(scores, weights, room).sample((DRAWS,), generator=generator(1))
    counts = oracles.count_values(samples, exact.values)
    assert oracles.chi_square_p_value(counts, exact.mass.numpy()) > FALSE_ALARM


# --- gradients ------------------------------------------------------------------------------


@pytest.mark.parametrize("capacities", [None, [3, 0, 2], [2, 1, 1]], ids=str)
@pytest.mark.parametrize("kind", LAWS)
def test_gradcheck(capacities: list[int] | None, kind: str) -> None:
    """Second derivatives too, which the contract does not promise, but must not be wrong."""
    make, enumerate_all = LAWS[kind]
    scores, weights = parameters(4, 3, 1.0, 8)
    scores = scores if kind == "scores" else normal(3, 4, seed=8)
    room = None if capacities is None else torch.tensor(capacities)
    exact = enumerate_all(scores, weights, capacities)
    inside = exact.values[exact.log_mass > -math.inf][::5]
    leaves = (scores.requires_grad_(), weights.requires_grad_())
    assert gradcheck(lambda *given: make(*given, room).log_prob(inside), leaves)
    assert gradcheck(lambda *given: tuple(make(*given, room).log_prob_bounds(inside)), leaves)
    assert gradgradcheck(lambda *given: make(*given, room).log_prob(inside[1]), leaves)
    if kind == "scores":
        assert gradcheck(lambda *given: make(*given, room).marginals(), leaves)


def test_function_transforms_of_marginals() -> None:
    """grad alone, mapped over a batch, and jacobians, against plain autograd."""
    scores, weights = normal(3, 4), normal(3, seed=1)
    cotangent = normal(3, 4, seed=2)

    def value(s: Tensor, w: Tensor) -> Tensor:
        return (drpm.RandomPartition(s, w).marginals() * cotangent).sum()

    leaves = [scores.clone().requires_grad_(), weights.expand(3, 3).clone().requires_grad_()]
    marginals = drpm.RandomPartition(*leaves).marginals()
    expected = torch.autograd.grad((marginals * cotangent).sum(), leaves)
    both = torch.func.grad(value, argnums=(0, 1))
    for b in range(3):
        found = both(scores[b], weights)
        torch.testing.assert_close(found, (expected[0][b], expected[1][b]), rtol=0, atol=1e-10)
    mapped = torch.func.vmap(both, in_dims=(0, None))(scores, weights)
    torch.testing.assert_close(mapped, tuple(expected), rtol=0, atol=1e-10)
    jacobian = torch.func.jacrev(lambda s: drpm.RandomPartition(s, weights).marginals())(scores[0])
    contracted = (jacobian * cotangent[..., None]).sum((0, 1))
    torch.testing.assert_close(contracted, expected[0][0], rtol=0, atol=1e-10)


def test_second_derivatives_of_marginals_are_refused() -> None:
    """Better an error than a derivative that silently lacks a part."""
    scores, weights = (t.requires_grad_() for t in parameters(4, 3))
    value = (drpm.RandomPartition(scores, weights).marginals() * normal(3, 4)).sum()
    (grad,) = torch.autograd.grad(value, scores, create_graph=True)
    with pytest.raises(NotImplementedError, match="marginals"):
        torch.autograd.grad(grad.sum(), scores)


# --- entropy --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "n", "groups", "scale", "weight_scale", "room"),
    [
        (kind, *case)
        for kind in LAWS
        for case in GRADIENT_GRID
        if kind == "scores" or case[0] * (case[1] - 1) <= 8  # slopes to compare
    ],
)
def test_entropy_and_its_gradient_within_five_standard_errors(
    kind: str, n: int, groups: int, scale: float, weight_scale: float, room: oracles.Room | None
) -> None:
    scores, weights = parameters(n, groups, scale, 3, weight_scale)
    if kind == "affinities":
        scores = scale * normal(groups, n, seed=3)
    check_gradient_of_the_entropy(kind, (scores, weights), room)


def test_a_gradient_without_its_score_function_part_would_be_further_off() -> None:
    """What would be missing, and what is allowed, are both exact: 4.2 is the largest ratio."""
    scores = torch.tensor([1.0, -0.5, 0.2, -1.2, 0.5], dtype=torch.float64)
    weights = torch.tensor([0.3, -0.4, 0.1], dtype=torch.float64)
    missing, limit = check_gradient_of_the_entropy("scores", (scores, weights), None)
    assert (missing > 2 * limit).any()


def check_gradient_of_the_entropy(
    kind: str, tensors: Iterable[Tensor], room: oracles.Room | None
) -> tuple[Tensor, Tensor]:
    """The part of the gradient that score functions give, and what it may be off by, (C,) each."""
    leaves = [t.requires_grad_() for t in tensors]
    n, groups = leaves[0].shape[-1], len(leaves[1])
    capacities = room and room(n, groups)
    law, enumerate_all = build(kind, *leaves, capacities), LAWS[kind][1]
    entropy = law.entropy(GRADIENT_DRAWS, generator=generator())
    sizes = oracles.fisher(n, leaves[1], capacities)
    found = torch.autograd.grad(entropy - sizes.entropy(), leaves)
    for grad in found:
        assert (grad.sum(-1).abs() < 1e-8).all()
    s, w = (leaf.detach() for leaf in leaves)
    fills = oracles.affinity_fills
    if kind == "scores":
        fills = functools.partial(oracles.fills, groups=groups)
    exact, of_scores = enumerate_all(s, w, capacities), slopes(fills, s)
    of_weights = slopes(lambda w: enumerate_all(s, w, capacities).log_mass, w)

    def compared(of_scores: Tensor, of_weights: Tensor) -> Tensor:
        # The last subset has no choice, whatever its affinities.
        rows = [of_scores] if kind == "scores" else of_scores.unbind(-2)[:-1]
        return without_last([*rows, of_weights])

    cost, scores = -fills(s), compared(of_scores, of_weights)
    # One comparison, and at most eight slopes below: together they stay within the rate.
    spread = (entropy - sizes.entropy()).detach()
    assert_expectation(spread, exact, cost, GRADIENT_DRAWS, rate=FALSE_ALARM / 9)
    whole = sizes.entropy() + exact.expectation(cost)
    torch.testing.assert_close(whole, exact.entropy(), rtol=1e-9, atol=1e-9)
    drawn = torch.cat([draw.Y for draw in law.draws(GRADIENT_DRAWS, generator())])
    limit = assert_score_function_gradient(
        compared(*found),
        oracles.count_values(drawn, exact.values),
        exact,
        cost,
        compared(-of_scores, torch.zeros_like(of_weights)),
        scores,
    )
    return exact.expectation(cost[:, None] * scores).abs(), limit


# --- other laws through the same interface --------------------------------------------------


def test_an_enumerated_size_law_in_a_narrow_type() -> None:
    law = Multinomial(301, torch.zeros(2, dtype=torch.bfloat16))
    assert (law.draw_sizes(torch.Size([50]), generator()).sum(-1) == 301).all()
    small = Multinomial(30, torch.tensor([0.0, 1.0], dtype=torch.bfloat16))
    exact = Multinomial(30, torch.tensor([0.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(small.mean.double(), exact.mean, rtol=0.01, atol=0)
    torch.testing.assert_close(small.boundary_survival(), exact.boundary_survival())


@pytest.mark.parametrize(("n", "groups", "scale"), [(4, 3, 1.0), (5, 2, 5.0), (1, 3, 1.0)])
def test_a_multinomial_size_law_plugs_in(n: int, groups: int, scale: float) -> None:
    scores, logits = parameters(n, groups, scale, 7)
    leaves = (scores.requires_grad_(), logits.requires_grad_())
    law = drpm.RandomPartition.from_laws(Multinomial(n, logits), drpm.PlackettLuce(scores))
    exact = oracles.partition(scores, oracles.multinomial(n, logits))
    assert law.batch_shape == ()
    assert law.event_shape == (groups, n)
    torch.testing.assert_close(law.log_prob(exact.values), exact.log_mass, rtol=0, atol=1e-9)
    torch.testing.assert_close(law.marginals(), exact.mean(), rtol=0, atol=1e-9)
    torch.testing.assert_close(law.log_prob(law.mode), exact.log_mass.max(), rtol=0, atol=1e-9)
    found = torch.autograd.grad(law.log_prob(exact.values[-2]), leaves)
    expected = torch.autograd.grad(exact.log_mass[-2], leaves)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-8)
    samples = law.sample((DRAWS,), generator=generator(4))
    counts = oracles.count_values(samples, exact.values)
    assert oracles.chi_square_p_value(counts, exact.mass.detach().numpy()) > FALSE_ALARM / 2
    bounds = law.log_prob_bounds(exact.values)
    assert (bounds.lower <= exact.log_mass + 1e-9).all()
    assert (bounds.upper >= exact.log_mass - 1e-9).all()
    found = law.entropy(num_samples=2_000, generator=generator(5)) - law.sizes.entropy()
    cost = -oracles.fills(scores.detach(), groups)
    assert_expectation(found.detach(), exact, cost, 2_000, rate=FALSE_ALARM / 2)


def test_batches_of_an_enumerated_law() -> None:
    logits = normal(2, 3, seed=1)
    law = Multinomial(3, logits)
    draws = law.sample((DRAWS,), generator=generator())
    assert draws.shape == (DRAWS, 2, 3)
    for b in range(2):
        exact = oracles.multinomial(3, logits[b])
        counts = oracles.count_values(draws[:, b], exact.values)
        assert oracles.chi_square_p_value(counts, exact.mass.numpy()) > FALSE_ALARM / 2


def test_laws_over_different_numbers_of_elements_are_refused() -> None:
    sizes, order = Multinomial(4, torch.zeros(3)), drpm.PlackettLuce(torch.zeros(5))
    with pytest.raises(ValueError, match=r"sizes.*5.*4"):
        drpm.RandomPartition.from_laws(sizes, order)

"""Relaxed partitions by affinities: exact when hard, in their limits when soft."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import drpm
from drpm.relaxation.top_k import fill_by_rows_softly
from tests import oracles
from tests.oracles import FALSE_ALARM, generator, normal

DRAWS = 20_000
TEMPERATURES = [0.1, 1.0, 5.0]
any_temperature = pytest.mark.parametrize("temperature", TEMPERATURES)


def parameters(n: int, groups: int, scale: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    return scale * normal(groups, n, seed=seed), normal(groups, seed=seed + 1)


# --- the soft top-k -------------------------------------------------------------------------


def shares_by_bisection(scores: Tensor, left: Tensor, size: float) -> Tensor:
    """What a subset takes: left times sigma(score - t), with t found by halving an interval."""
    lower, upper = scores.min() - 100, scores.max() + 100
    for _ in range(200):
        middle = (lower + upper) / 2
        too_many = (left * torch.sigmoid(scores - middle)).sum() > size
        lower, upper = (middle, upper) if too_many else (lower, middle)
    return left * torch.sigmoid(scores - (lower + upper) / 2)


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1e4])
def test_shares_equal_the_definition(scale: float) -> None:
    scores = scale * normal(4, 12)
    sizes = torch.tensor([3.25, 0.5, 2.0, 6.25], dtype=torch.float64)
    found = fill_by_rows_softly(sizes, scores)
    left = torch.ones(12, dtype=torch.float64)
    for k in range(3):
        taken = shares_by_bisection(scores[k], left, float(sizes[k]))
        torch.testing.assert_close(found[k], taken, rtol=0, atol=1e-6 if scale > 100 else 1e-10)
        left = left - found[k]
    torch.testing.assert_close(found[3], left, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.sum(-1), sizes, rtol=0, atol=1e-6 if scale > 100 else 1e-10)


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_derivatives_of_the_shares(spread: float) -> None:
    """The first and second ones, through the threshold; ties are smooth."""
    scores = (spread * normal(3, 5)).requires_grad_()
    sizes = torch.tensor([1.3, 0.6, 3.1], dtype=torch.float64, requires_grad=True)
    assert gradcheck(fill_by_rows_softly, (sizes, scores))
    assert gradgradcheck(fill_by_rows_softly, (sizes, scores))


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e3, 1e9, 1e30])
def test_subsets_that_take_nothing_or_everything(scale: float) -> None:
    """Sizes of zero are no special case, and keep finite gradients; nor are far scores."""
    scores = (scale * normal(5, 20)).requires_grad_()
    sizes = torch.tensor([0.0, 7.0, 0.0, 13.0, 0.0], dtype=torch.float64, requires_grad=True)
    found = fill_by_rows_softly(sizes, scores)
    torch.testing.assert_close(found.sum(-1), sizes, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.sum(-2), torch.ones(20).double())
    grads = torch.autograd.grad((found * normal(5, 20, seed=1)).sum(), (sizes, scores))
    assert all(bool(torch.isfinite(grad).all()) for grad in grads)
    assert grads[0].abs().max() > 0  # an empty subset can grow


# --- hard samples follow the discrete law ----------------------------------------------------


@any_temperature
@pytest.mark.parametrize("with_gradients", [True, False])
def test_hard_samples_follow_the_discrete_law(temperature: float, with_gradients: bool) -> None:
    affinities, weights = parameters(4, 3, 1.0, 3)
    exact = oracles.affinity_partition(affinities, weights, [4, 3, 4])
    room = torch.tensor([4, 3, 4])
    law = drpm.RelaxedAffinityPartition(temperature, affinities, weights, room)
    draw = law.rsample if with_gradients else law.sample
    counts = oracles.count_values(draw((DRAWS,), generator=generator(1)), exact.values)
    assert oracles.chi_square_p_value(counts, exact.mass.numpy()) > FALSE_ALARM


def test_equal_rows_follow_the_random_partition() -> None:
    scores, weights = normal(4), normal(3, seed=1)
    exact = oracles.random_partition(scores, weights)
    law = drpm.RelaxedAffinityPartition(0.5, scores.expand(3, 4), weights)
    counts = oracles.count_values(law.sample((DRAWS,), generator=generator(1)), exact.values)
    assert oracles.chi_square_p_value(counts, exact.mass.numpy()) > FALSE_ALARM


@any_temperature
def test_hard_mode_is_the_greedy_partition(temperature: float) -> None:
    for seed, (scale, groups) in enumerate(itertools.product((0.0, 3.0, 1e3), (1, 2, 7))):
        affinities, weights = parameters(30, groups, scale, seed)
        law = drpm.RelaxedAffinityPartition(temperature, affinities, weights)
        sizes, size_law = law.mode.sum(-1), law.discrete.sizes
        torch.testing.assert_close(size_law.log_prob(sizes), size_law.log_prob(size_law.mode))
        if torch.equal(sizes, size_law.mode):  # unless two sizes are equally likely
            assert torch.equal(law.mode, law.discrete.greedy)


# --- parts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["both", "order", "none"])
@pytest.mark.parametrize("hard", [True, False, "sizes"])
def test_parts_belong_together(noise: str, hard: bool | str) -> None:
    affinities, weights = parameters(8, 3)
    law = drpm.RelaxedAffinityPartition(0.3, affinities, weights, hard=hard)
    parts = law.rsample_parts((40,), noise=noise, generator=generator())
    assert parts._fields == ("Y", "sizes", "order")
    assert parts.Y.shape == (40, 3, 8)
    assert parts.sizes.shape == (40, 3)
    assert (parts.order.sort(-1).values == torch.arange(8)).all()
    torch.testing.assert_close(parts.Y.sum(-1), parts.sizes, rtol=0, atol=1e-9)
    torch.testing.assert_close(parts.Y.sum(-2), torch.ones(40, 8).double(), rtol=0, atol=1e-12)
    assert (parts.Y >= 0).all()
    if hard:
        assert law.discrete.sizes.support.check(parts.sizes).all()
    if hard is True:  # the order fills the subsets of Y, so that the bounds take it
        assert torch.isfinite(law.discrete.log_prob_bounds(parts.Y, parts.order).lower).all()
    assert (parts.Y.unique(dim=0).shape[0] > 1) == (noise != "none")
    if noise != "both" and hard:
        assert (parts.sizes == law.discrete.sizes.mode).all()
    if noise == "both" and hard:
        assert parts.sizes.unique(dim=0).shape[0] > 1


# --- soft samples ---------------------------------------------------------------------------


def test_soft_samples_approach_the_hard_ones() -> None:
    affinities, weights = parameters(6, 3, 1.0, 4)

    def draw(temperature: float, hard: bool | str) -> Tensor:
        law = drpm.RelaxedAffinityPartition(temperature, affinities, weights, hard=hard)
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


@any_temperature
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_soft_samples_are_stochastic(temperature: float, dtype: torch.dtype) -> None:
    affinities, weights = (t.to(dtype) for t in parameters(300, 6, 2.0))
    law = drpm.RelaxedAffinityPartition(temperature, affinities, weights, hard=False)
    for value in (law.rsample((5,), generator=generator()), law.mode):
        assert (value >= 0).all()
        torch.testing.assert_close(value.sum(-2), torch.ones_like(value[..., 0, :]))


def test_memory_is_linear() -> None:
    """A sort's matrix of 30,000 elements alone takes 3.6 GB; a share of that is kept."""
    n, groups = 30_000, 3
    affinities, weights = normal(groups, n).float().requires_grad_(), torch.zeros(groups)
    kept: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        value = drpm.RelaxedAffinityPartition(0.5, affinities, weights).rsample()
    assert sum(kept) < 200 * groups * n * 8
    (value[0] * torch.linspace(0, 1, n)).sum().backward()
    assert torch.isfinite(affinities.grad).all()
    assert affinities.grad.abs().max() > 0


# --- gradients ------------------------------------------------------------------------------


@pytest.mark.parametrize("hard", [False, "sizes"])
def test_gradcheck(hard: bool | str) -> None:
    affinities, weights = parameters(5, 3, 1.0, 2)
    leaves = (affinities.requires_grad_(), weights.requires_grad_())

    def draw(a: Tensor, w: Tensor) -> Tensor:
        law = drpm.RelaxedAffinityPartition(0.9, a, w, hard=hard)
        return law.rsample((2,), generator=generator(3))

    def mode(a: Tensor, w: Tensor) -> Tensor:
        return drpm.RelaxedAffinityPartition(0.9, a, w, hard=hard).mode

    for function in (draw, mode):
        if hard == "sizes":  # the sizes are straight-through: only the affinities have true slopes
            assert gradcheck(lambda a, f=function: f(a, weights.detach()), leaves[:1])
        else:
            assert gradcheck(function, leaves)


def test_hard_samples_have_the_gradients_of_soft_ones() -> None:
    cotangent, grads = normal(20, 4, 9, seed=5), []
    for hard in (True, False):
        leaves = [t.requires_grad_() for t in parameters(9, 4)]
        law = drpm.RelaxedAffinityPartition(0.6, *leaves, hard=hard)
        value = law.rsample((20,), generator=generator())
        grads.append(torch.autograd.grad((value * cotangent).sum(), leaves))
    torch.testing.assert_close(*grads)
    assert (grads[0][0][-1] == 0).all()  # the last subset has no choice
    assert (grads[0][0][:-1].abs().sum(-1) > 0).all()


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_gradients_stay_finite(scale: float) -> None:
    for dtype, temperature, hard in itertools.product(
        (torch.float32, torch.float64), (1e-3, 1.0, 100.0), (True, False, "sizes")
    ):
        leaves = [t.to(dtype).requires_grad_() for t in parameters(20, 4, scale)]
        law = drpm.RelaxedAffinityPartition(temperature, *leaves, hard=hard)
        value = law.rsample((5,), generator=generator())
        assert torch.isfinite(value).all()
        cotangent = torch.randn(value.shape, dtype=dtype, generator=generator(1))
        for grad in torch.autograd.grad((value * cotangent).sum(), leaves):
            assert torch.isfinite(grad).all()


def test_temperatures_of_a_batch() -> None:
    affinities, weights = parameters(5, 3)
    temperatures = torch.tensor([0.2, 1.0, 4.0], dtype=torch.float64)

    def law(tau: Tensor) -> drpm.RelaxedAffinityPartition:
        return drpm.RelaxedAffinityPartition(tau, affinities, weights, hard=False)

    for b in range(3):
        torch.testing.assert_close(law(temperatures).mode[b], law(temperatures[b]).mode)
    tau = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda t: law(t).rsample(generator=generator(2)), (tau,))


def test_gradients_lead_to_a_partition() -> None:
    """Every element belongs to a random subset, so the rows have no order in common.

    With other random numbers, 30 of 30 trainings had reached the target after 20 steps.
    """
    target = oracles.to_matrix(torch.randint(4, (24,), generator=generator(1)), 4)
    affinities = torch.zeros(4, 24, dtype=torch.float64, requires_grad=True)
    weights, room = torch.zeros(4, dtype=torch.float64), target.sum(-1)
    optimizer = torch.optim.Adam([affinities], 0.2)
    for _ in range(60):
        law = drpm.RelaxedAffinityPartition(0.5, affinities, weights, room)
        loss = (law.rsample((4,)) - target).square().sum((-2, -1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    law = drpm.RelaxedAffinityPartition(0.5, affinities, weights, room)
    assert torch.equal(law.mode, target)


# --- compiled and captured ------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize("noise", ["both", "none"])
@pytest.mark.parametrize("hard", [True, False])
def test_a_draw_is_captured_in_a_graph(noise: str, hard: bool) -> None:
    """Nothing waits for the device."""
    affinities = normal(10, 256).float().cuda().requires_grad_()
    weights = normal(10, seed=1).float().cuda().requires_grad_()

    def step() -> tuple[Tensor, ...]:
        law = drpm.RelaxedAffinityPartition(
            0.5, affinities, weights, hard=hard, validate_args=False
        )
        value = law.rsample_parts((2,), noise=noise).Y.square().sum()
        return (value, *torch.autograd.grad(value, (affinities, weights)))

    # Without its graph, which would tie the leaves to the stream of this call.
    expected = tuple(tensor.detach() for tensor in step())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    graph.replay()
    assert all(bool(torch.isfinite(tensor).all()) for tensor in found)
    if noise == "none":
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)

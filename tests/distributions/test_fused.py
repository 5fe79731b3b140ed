"""The GPU's kernels against the plain version, which all other tests hold to brute force."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from drpm import FisherHypergeometric, RandomPartition, RelaxedRandomPartition
from drpm.distributions import urn, urn_fused, urn_tables, urn_windows
from drpm.distributions.boundaries import boundary_survival
from drpm.relaxation import filling_fused
from drpm.relaxation.gumbel import gumbel_like
from tests import oracles

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

URNS = [(1, 2, 1), (5, 2, 2), (7, 4, 3), (40, 3, 1), (256, 10, 5), (2048, 10, 1), (100, 64, 3)]


@contextmanager
def plain() -> Iterator[None]:
    """No kernels."""
    with (
        patch.object(urn_fused, "available", return_value=False),
        patch.object(filling_fused, "available", return_value=False),
    ):
        yield


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, device="cuda", generator=generator)


def urns(total: int, groups: int, batch: int, scale: float, bounded: bool) -> tuple[Tensor, Tensor]:
    log_weights = scale * normal(batch, groups)
    capacities = torch.full_like(log_weights, total)
    if bounded:
        capacities = (capacities * torch.rand_like(capacities)).round()
        capacities[:, 0] = total
    return log_weights, capacities


def tables_of(
    total: int, log_weights: Tensor, capacities: Tensor, *, maximise: bool
) -> tuple[urn_tables.SuffixTables, urn_tables.SuffixTables]:
    """By kernels, and plainly at the same windows."""
    width = urn_windows.window_width(total)
    large = bool((capacities != total).any())
    raw = urn_fused.tables(total, width, log_weights, capacities, maximise=maximise, large=large)
    fused = urn_tables.SuffixTables(raw.first, raw.log_steps, raw.log_suffix, total)
    args = (total, log_weights, capacities, raw.tilt.detach(), raw.first)
    steps, suffix = urn_windows.tables_at(*args, maximise=maximise, large=large)
    return fused, urn_tables.SuffixTables(raw.first, steps, suffix, total)


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("maximise", [False, True])
@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize(("total", "groups", "batch"), URNS)
def test_tables(
    total: int, groups: int, batch: int, scale: float, maximise: bool, bounded: bool
) -> None:
    log_weights, capacities = urns(total, groups, batch, scale, bounded)
    log_weights.requires_grad_()
    fused, reference = tables_of(total, log_weights, capacities, maximise=maximise)
    torch.testing.assert_close(fused.log_steps, reference.log_steps, rtol=1e-12, atol=1e-10)
    visible = reference.log_suffix > -600  # beyond, masses underflow
    torch.testing.assert_close(
        fused.log_suffix[visible], reference.log_suffix[visible], rtol=1e-11, atol=1e-9
    )
    near = reference.log_suffix > -100
    steps = torch.randn_like(reference.log_steps) * (reference.log_steps > -100)
    suffix = torch.randn_like(reference.log_suffix) * near
    found, expected = (
        torch.autograd.grad((t.log_steps, t.log_suffix), log_weights, (steps, suffix))[0]
        for t in (fused, reference)
    )
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7 * total)


def test_windows_are_those_of_the_plain_version() -> None:
    log_weights, capacities = urns(3000, 10, 20, 2.0, bounded=True)
    fused = urn_tables.suffix_tables(3000, log_weights, capacities)
    with plain():
        reference = urn_tables.suffix_tables(3000, log_weights, capacities)
    torch.testing.assert_close(fused.first, reference.first)


@pytest.mark.parametrize(("total", "groups", "batch"), URNS)
@pytest.mark.parametrize("scale", [0.0, 1.0, 50.0])
def test_mode(total: int, groups: int, batch: int, scale: float) -> None:
    log_weights, capacities = urns(total, groups, batch, scale, bounded=batch > 1)
    law = FisherHypergeometric(total, log_weights, capacities)
    found = law.mode
    with plain():
        torch.testing.assert_close(found, law.mode)


@pytest.mark.parametrize("warm", ["shared", "per urn"])
@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize(("total", "groups", "batch"), URNS)
def test_soft_draws(total: int, groups: int, batch: int, free: bool, warm: str) -> None:
    log_weights, capacities = urns(total, groups, batch, 1.0, bounded=False)
    log_weights.requires_grad_()
    fused, reference = tables_of(total, log_weights, capacities, maximise=not free)
    temperature = torch.rand(batch if warm == "per urn" else 1, device="cuda").double() + 0.3
    temperature = (temperature if warm == "per urn" else temperature[0]).requires_grad_()
    noise = gumbel_like(normal(3, batch, groups - 1, fused.width))
    sizes = FisherHypergeometric(total, log_weights.detach()).sample((3,))

    def draw(tables: urn_tables.SuffixTables) -> urn.SoftSizes:
        if free:
            return tables.draw_softly(noise, temperature)
        return tables.follow_softly(sizes, temperature)

    found = draw(fused)
    with plain():
        expected = draw(reference)
    torch.testing.assert_close(found.hard, expected.hard)
    torch.testing.assert_close(found.laws, expected.laws, rtol=1e-9, atol=1e-10)
    if free:
        torch.testing.assert_close(fused.draw(noise), expected.hard)
    pull = torch.randn_like(found.laws)
    leaves = (log_weights, temperature)
    for a, b in zip(
        torch.autograd.grad(found.laws, leaves, pull),
        torch.autograd.grad(expected.laws, leaves, pull),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8 * total)


@pytest.mark.parametrize("count", [1, 9, 16, 17])
def test_boundaries(count: int) -> None:
    laws = torch.softmax(3 * normal(2, count, 31), -1).requires_grad_()
    found = boundary_survival(laws, 31)
    pull = torch.randn_like(found)
    (slope,) = torch.autograd.grad(found, laws, pull)
    with plain():
        expected = boundary_survival(laws, 31)
        (expected_slope,) = torch.autograd.grad(expected, laws, pull)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(slope, expected_slope)


PARTITIONS = [
    (2, 2, (), ()),
    (9, 3, (), (2,)),
    (20, 4, (2,), (3,)),
    (33, 2, (3, 1), ()),
    (256, 10, (), (100,)),
    (256, 10, (5,), (20,)),
    (50, 2, (64,), ()),
    (2048, 10, (), ()),
    (8192, 20, (), ()),
]


@pytest.mark.parametrize("noise", ["both", "order", "none"])
@pytest.mark.parametrize("hard", [True, False, "sizes"])
@pytest.mark.parametrize(("elements", "groups", "batch", "shape"), PARTITIONS)
def test_partitions(
    elements: int,
    groups: int,
    batch: tuple[int, ...],
    shape: tuple[int, ...],
    hard: bool | str,
    noise: str,
) -> None:
    log_scores, log_weights = normal(*batch, elements), normal(*batch, groups, seed=1)
    temperature, pull = torch.tensor(0.7, device="cuda").double(), normal(groups, elements, seed=2)

    def draw(dtype: torch.dtype) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        # What is exact in float32, so that both types see the same numbers.
        rounded = (x.float().to(dtype) for x in (log_scores, log_weights, temperature))
        leaves = scores, weights, heat = [x.requires_grad_() for x in rounded]
        law = RelaxedRandomPartition(heat, scores, weights, hard=hard)
        generator = torch.Generator("cuda").manual_seed(3)
        parts = law.rsample_parts(shape, noise=noise, generator=generator)
        loss = (parts.Y * pull).sum() + (parts.sizes * pull[:, 0]).sum()
        return parts.Y.double(), parts.sizes.double(), torch.autograd.grad(loss, leaves)

    found = draw(torch.float32)
    with plain():
        expected = draw(torch.float64)
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=1e-3)
    for a, b in zip(found[2][:2], expected[2][:2], strict=True):
        assert (a - b).norm() <= 1e-4 * b.norm() + 1e-5 * elements**0.5
    # All scores pull on the temperature, most of them against each other.
    tension = (expected[2][0] * log_scores).abs().sum() + log_scores.numel() ** 0.5
    assert (found[2][2] - expected[2][2]).abs() <= 1e-4 * tension


def test_hard_draws_follow_the_law() -> None:
    log_scores, log_weights = normal(4).float(), normal(3, seed=1).float()
    support = oracles.to_matrix(oracles.assignments(4, 3), 3)
    law = RandomPartition(log_scores.double().cpu(), log_weights.double().cpu())
    generator = torch.Generator("cuda").manual_seed(0)
    draws = RelaxedRandomPartition(0.5, log_scores, log_weights).rsample(
        (40_000,), generator=generator
    )
    counts = oracles.count_values(draws.double().cpu(), support)
    probabilities = law.log_prob(support).exp().numpy()
    assert oracles.chi_square_p_value(counts, probabilities) > 1e-4


def test_maps_like_a_loop() -> None:
    log_scores, log_weights = normal(3, 20).float(), normal(3, 4, seed=1).float()
    pull = normal(3, 4, 20, seed=2).float()

    def loss(log_scores: Tensor, log_weights: Tensor, pull: Tensor) -> Tensor:
        law = RelaxedRandomPartition(0.5, log_scores, log_weights, validate_args=False)
        return (law.mode * pull).sum()

    slope = torch.func.grad(loss, (0, 1))
    mapped = torch.func.vmap(slope)(log_scores, log_weights, pull)
    singles = [slope(*row) for row in zip(log_scores, log_weights, pull, strict=True)]
    for a, b in zip(mapped, zip(*singles, strict=True), strict=True):
        torch.testing.assert_close(a, torch.stack(b))


def test_second_derivatives_are_those_of_the_plain_version() -> None:
    log_scores = normal(12).float().requires_grad_()
    log_weights = normal(3, seed=1).float().requires_grad_()
    pull = normal(3, 12, seed=2).float()

    def twice() -> tuple[Tensor, ...]:
        law = RelaxedRandomPartition(0.5, log_scores, log_weights, hard=False)
        loss = (law.mode * pull).sum()
        slopes = torch.autograd.grad(loss, (log_scores, log_weights), create_graph=True)
        total = sum(slope.square().sum() for slope in slopes)
        assert isinstance(total, Tensor)
        return torch.autograd.grad(total, (log_scores, log_weights))

    found = twice()
    with plain():
        expected = twice()
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def relaxed(log_weights: Tensor, **options: object) -> RelaxedRandomPartition:
    log_scores = normal(6, seed=4).float()
    return RelaxedRandomPartition(0.7, log_scores, log_weights, validate_args=False, **options)  # type: ignore[arg-type]


def test_jacobians_are_those_of_the_plain_version() -> None:
    log_weights = normal(3).float()

    def value(log_weights: Tensor) -> Tensor:
        return relaxed(log_weights, hard=False).mode

    found = torch.func.jacrev(value)(log_weights)
    with plain():
        torch.testing.assert_close(found, torch.func.jacrev(value)(log_weights))


def test_batched_gradients_are_those_of_the_plain_version() -> None:
    log_weights = normal(3).float().requires_grad_()
    pulls = normal(4, 3, 6, seed=5).float()

    def slopes() -> Tensor:
        value = relaxed(log_weights, hard=False).mode
        return torch.autograd.grad(value, log_weights, pulls, is_grads_batched=True)[0]

    found = slopes()
    with plain():
        torch.testing.assert_close(found, slopes())


def test_no_draws() -> None:
    law = relaxed(normal(3).float())
    assert law.rsample((0,)).shape == (0, 3, 6)
    assert law.discrete.sample((0, 2)).shape == (0, 2, 3, 6)
    assert law.discrete.sizes.sample((0,)).shape == (0, 3)


@pytest.mark.parametrize("temperature", [1e-20, 1e-30, 1.0])
def test_ties_stay_finite(temperature: float) -> None:
    log_scores = torch.full((7,), 3.3, device="cuda", requires_grad=True)
    law = RelaxedRandomPartition(temperature, log_scores, torch.zeros(3, device="cuda"), hard=False)
    value = law.mode
    (slope,) = torch.autograd.grad(value[0].sum(), log_scores)
    assert torch.isfinite(value).all()
    assert torch.isfinite(slope).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_unchecked_weights_lead_nowhere(bad: float) -> None:
    log_weights = torch.full((3,), bad, device="cuda", requires_grad=True)
    value = relaxed(log_weights).rsample((5,))
    torch.autograd.grad(value.sum(), log_weights)
    torch.cuda.synchronize()


@pytest.mark.parametrize("window", ["one-hot", "sigmoid"])
def test_many_groups_and_batched_temperatures(window: str) -> None:
    log_scores, log_weights = normal(2, 60).float(), normal(2, 40, seed=1).float()
    temperature = torch.tensor([0.3, 2.0], device="cuda")
    leaves = [x.requires_grad_() for x in (log_scores, log_weights, temperature)]

    def draw() -> tuple[Tensor, ...]:
        law = RelaxedRandomPartition(
            temperature, log_scores, log_weights, hard=False, window=window
        )
        value = law.rsample((3,), generator=torch.Generator("cuda").manual_seed(0))
        return value, *torch.autograd.grad(value.square().sum(), leaves)

    found = draw()
    with plain():
        for a, b in zip(found, draw(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def test_capture_replays_what_was_drawn() -> None:
    log_weights, log_scores = normal(4).float(), normal(30, seed=1).float()

    def draw() -> Tensor:
        law = RelaxedRandomPartition(0.5, log_scores, log_weights, validate_args=False)
        return law.rsample_parts((4,), noise="none").Y

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        expected = draw()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        captured = draw()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, expected)

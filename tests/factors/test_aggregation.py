"""Which dimensions are shared, method by method."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from drpm.factors.aggregation import AGGREGATIONS, AggregationInput, PartitionAggregation
from drpm.factors.config import FactorsConfig
from drpm.factors.models import average
from drpm.nn.encoders import Posterior, standard_divergence, symmetric_divergence
from tests import oracles
from tests.oracles import generator, normal

COLD = torch.tensor(0.1)


def share(
    method: str, divergence: Tensor, weights: Any = None, *, noise: bool = False, **batch: Tensor
) -> Any:
    aggregation = AGGREGATIONS[method](FactorsConfig(method=method, latent=divergence.shape[-1]))
    if weights is not None:
        layer = aggregation.weights
        torch.nn.init.zeros_(layer.weight)
        layer.bias.data.copy_(torch.tensor(weights))
    aggregation.to(divergence.dtype)
    return aggregation(AggregationInput(divergence, batch, COLD, generator(0), noise))


def test_label() -> None:
    found = share("label", torch.rand(2, 4), label=torch.tensor([2, 0]))
    assert found.mask.tolist() == [[1, 1, 0, 1], [0, 1, 1, 1]]
    assert found.terms == {}


def test_adaptive() -> None:
    divergence = torch.tensor([[0.0, 4.0, 1.9, 2.1], [5.0, 5.1, 9.0, 6.9]])
    assert share("ada", divergence).mask.tolist() == [[1, 0, 1, 0], [1, 1, 0, 1]]
    # Not at all, by rounding alone, and by little.
    divergence = torch.tensor([[0.0, 0.0, 0.0], [4e-14, 0.0, 1e-14], [4e-6, 0.0, 3e-6]])
    assert share("ada", divergence).mask.tolist() == [[1, 1, 1], [1, 1, 1], [0, 1, 0]]
    # One dimension alone is not less than itself.
    assert share("ada", torch.tensor([[0.5], [0.0]])).mask.tolist() == [[0], [1]]


@pytest.mark.parametrize("method", ["hg", "drpm"])
@pytest.mark.parametrize(
    ("weights", "shared"), [((0.0, 0.0), 2), ((-9.0, 9.0), 4), ((9.0, 0.0), 0)]
)
def test_what_differs_least_is_shared(
    method: str, weights: tuple[float, float], shared: int
) -> None:
    """The first log-weight is that of independent dimensions, the second of shared ones."""
    divergence = torch.tensor([[0.1, 50.0, 1e-4, 9.0], [3.0, 1e-3, 800.0, 0.2]]).double()
    found = share(method, divergence, weights)
    order = divergence.argsort(-1)
    expected = torch.zeros_like(divergence).scatter(-1, order[:, :shared], 1.0)
    torch.testing.assert_close(found.mask, expected)


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("method", ["hg", "drpm"])
def test_masks_are_whole_and_have_gradients(method: str, noise: bool) -> None:
    divergence = normal(6, 5, seed=1).exp().requires_grad_()
    aggregation = AGGREGATIONS[method](FactorsConfig(method=method, latent=5)).double()
    torch.nn.init.zeros_(aggregation.weights.weight)
    given = AggregationInput(divergence, {}, torch.tensor(1.0), generator(0), noise)
    mask = aggregation(given).mask
    assert set(mask.flatten().tolist()) <= {0.0, 1.0}
    wanted = (divergence, aggregation.weights.bias)
    which = torch.autograd.grad(mask[:, 0].sum(), wanted, retain_graph=True, allow_unused=True)[0]
    # Only a partition learns which dimensions are shared; sizes depend on weights alone here.
    assert (which is not None and bool(which.abs().sum() > 0)) == (method == "drpm")
    independent, shared = torch.autograd.grad(mask.sum(), wanted[1])[0].tolist()
    assert shared > 0.1
    assert independent < -0.1


def terms(objective: Any, log_scores: Tensor, log_weights: Tensor, **changes: Any) -> Any:
    n = log_scores.shape[-1]
    config = FactorsConfig(latent=n, objective=objective, gamma=1.0, delta=1.0, **changes)
    aggregation = PartitionAggregation(config).double()
    return aggregation.divergences(log_scores, log_weights, generator(1))


def test_bounds_against_all_sizes_and_orders() -> None:
    log_scores, log_weights = normal(3, 4, seed=2), normal(3, 2, seed=3)
    prior = torch.tensor([0.5, -0.25])
    sizes, order = terms("bounds", log_scores, log_weights, prior_log_weights=tuple(prior.tolist()))
    for row in range(3):
        law = oracles.fisher(4, log_weights[row], [4, 4])
        other = oracles.fisher(4, prior.double(), [4, 4])
        chances = law.log_mass.exp()
        ways = torch.lgamma(law.values.double() + 1).sum(-1)
        expected = (chances * (ways + law.log_mass - other.log_mass)).sum()
        torch.testing.assert_close(sizes[row], expected)
        best = oracles.plackett_luce(log_scores[row]).log_mass.max()
        torch.testing.assert_close(order[row], best + math.log(math.factorial(4)))


def test_sizes_count_with_their_weight() -> None:
    """Of the hypergeometric law, which has no bound: their divergence as it is."""
    # A prior that prefers few shared dimensions, which the weights of no fresh model do.
    divergence, prior = normal(3, 4, seed=1).exp(), (3.0, -3.0)
    config = FactorsConfig(method="hg", latent=4, gamma=0.7, prior_log_weights=prior)
    aggregation = AGGREGATIONS["hg"](config).double()
    found = aggregation(AggregationInput(divergence, {}, COLD, generator(0), True))
    other = oracles.fisher(4, torch.tensor(prior))
    laws = [oracles.fisher(4, row.detach()) for row in aggregation.weights(divergence)]
    expected = 0.7 * torch.stack([law.kl(other) for law in laws])
    assert expected.min() > 0.1
    torch.testing.assert_close(found.terms, {"sizes": expected})


def test_exact_terms_against_all_partitions() -> None:
    log_scores, log_weights = normal(3, seed=2)[None], normal(2, seed=3)[None]
    law = oracles.random_partition(log_scores[0], log_weights[0])
    prior = oracles.random_partition(torch.zeros(3).double(), torch.zeros(2).double())
    expected = (law.log_mass.exp() * (law.log_mass - prior.log_mass)).sum()
    found = sum(terms("exact", log_scores, log_weights, draws=20_000))
    torch.testing.assert_close(found[0], expected, rtol=0.02, atol=0.01)


def test_views_that_hardly_differ_have_hardly_an_order() -> None:
    n, smallest = 4, FactorsConfig().smallest_divergence
    shape = torch.tensor([[0.9, 0.1, 0.5, 0.3]], dtype=torch.float64)
    found = {}
    for size in (1e-6, 1e3):
        divergence = (size * shape).requires_grad_()
        shared = share("drpm", divergence, (0.0, 0.0))
        order = shared.terms["order"]
        best = oracles.plackett_luce((divergence.detach()[0] + smallest).log()).log_mass.max()
        expected = FactorsConfig().delta * (best + math.log(math.factorial(n)))
        torch.testing.assert_close(order[0], expected)
        slope = torch.autograd.grad(order.sum(), divergence)[0]
        found[size] = order.item(), (slope * divergence).abs().sum().item()
        # Which dimensions are shared goes by the least of differences.
        assert shared.mask.tolist() == [[0.0, 1.0, 0.0, 1.0]]
    # Were scores the divergences as they are, both sizes would have the same.
    for little, much in zip(found[1e-6], found[1e3], strict=True):
        assert little < 1e-4 * much


def test_averages() -> None:
    one = Posterior(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 4.0]).log())
    other = Posterior(torch.tensor([4.0, 2.0]), torch.tensor([3.0, 4.0]).log())
    group = average(one, other, "group")
    torch.testing.assert_close(group.mean, torch.tensor([2.0, 2.0]))
    torch.testing.assert_close(group.log_variance.exp(), torch.tensor([2.0, 4.0]))
    levels = average(one, other, "multi-level")
    # Weighted by precision: 1 and 1/3.
    torch.testing.assert_close(levels.mean, torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(levels.log_variance.exp(), torch.tensor([1.5, 4.0]))


def test_divergences_against_torch() -> None:
    one, other = (Posterior(normal(200, seed=s), normal(200, seed=s + 9)) for s in (1, 2))
    p, q = (torch.distributions.Normal(x.mean, (x.log_variance / 2).exp()) for x in (one, other))
    kl = torch.distributions.kl_divergence
    torch.testing.assert_close(symmetric_divergence(one, other), (kl(p, q) + kl(q, p)) / 2)
    standard = torch.distributions.Normal(torch.zeros(1).double(), torch.ones(1).double())
    torch.testing.assert_close(standard_divergence(one), kl(p, standard))
    # Small ones keep their digits: the gradients of their logarithms are one over them. What
    # rounding the inputs costs is some 1e-7 of a thousandth.
    near = Posterior(one.mean + 1e-3 * other.mean, one.log_variance + 1e-3)
    narrow = [Posterior(*(x.float() for x in each)) for each in (one, near)]
    exact = symmetric_divergence(one, near)
    torch.testing.assert_close(symmetric_divergence(*narrow).double(), exact, rtol=2e-3, atol=0)

"""The autoencoder: its shape, its likelihoods against torch's distributions, its noise."""

import math
from dataclasses import replace

import pytest
import scipy.stats
import torch
from torch.distributions import Bernoulli, Normal

from drpm.clustering.config import NetworkConfig
from drpm.clustering.networks import Autoencoder
from drpm.nn.gaussians import Posterior
from tests.oracles import FALSE_ALARM, generator, normal

SMALL = NetworkConfig(latent=2, encoder=(6, 5), decoder=(7,))


def make(likelihood: str = "bernoulli", columns: int = 4, deviation: float = 1.0) -> Autoencoder:
    torch.manual_seed(3)
    return Autoencoder(columns, replace(SMALL, deviation=deviation), likelihood).double()


def test_the_papers_network() -> None:
    network = Autoencoder(784, NetworkConfig(), "bernoulli")

    def shapes(module: torch.nn.Module) -> list[tuple[int, ...]]:
        return [tuple(p.shape) for p in module.parameters() if p.dim() == 2]

    assert shapes(network.encoder) == [(500, 784), (500, 500), (2000, 500)]
    assert shapes(network.mean) == shapes(network.log_variance) == [(10, 2000)]
    assert shapes(network.decoder) == [(2000, 10), (500, 2000), (500, 500), (784, 500)]


def test_the_decoder_ends_without_a_relu() -> None:
    network = make("gaussian")
    decoded = network.decode(3 * normal(50, 2))
    assert (decoded < 0).any()
    assert (decoded > 0).any()


def test_bernoulli_likelihood() -> None:
    network, codes = make(), normal(3, 6, 2)
    rows = (normal(6, 4, seed=1) > 0).double()
    expected = Bernoulli(probs=network.decode(codes)).log_prob(rows).sum(-1)
    torch.testing.assert_close(network.log_likelihood(rows, codes), expected)


def test_bernoulli_likelihood_of_grey_values() -> None:
    """Linear in the row: as far from 0 to 1 as the row is."""
    network, codes = make(), normal(6, 2)
    grey = torch.rand(6, 4, generator=generator(1), dtype=torch.float64)
    law = Bernoulli(probs=network.decode(codes))
    ones, zeros = torch.ones_like(grey), torch.zeros_like(grey)
    expected = grey * law.log_prob(ones) + (1 - grey) * law.log_prob(zeros)
    torch.testing.assert_close(network.log_likelihood(grey, codes), expected.sum(-1))


@pytest.mark.parametrize("deviation", [1.0, 0.25])
def test_gaussian_likelihood(deviation: float) -> None:
    network, codes, rows = make("gaussian", deviation=deviation), normal(3, 6, 2), normal(6, 4)
    full = Normal(network.decode(codes), deviation).log_prob(rows).sum(-1)
    constant = 4 * math.log(math.sqrt(2 * math.pi) * deviation)
    torch.testing.assert_close(network.log_likelihood(rows, codes) - constant, full)


def test_a_certain_posterior_is_its_mean() -> None:
    posterior = Posterior(normal(5, 2), torch.full((5, 2), -200.0, dtype=torch.float64))
    torch.testing.assert_close(posterior.sample((3,), None), posterior.mean.expand(3, 5, 2))


def test_codes_have_the_posteriors_mean_and_variance() -> None:
    mean = torch.tensor([-3.0, 0.0, 5.0], dtype=torch.float64)
    variance = torch.tensor([0.25, 1.0, 9.0], dtype=torch.float64)
    draws = 4_000
    codes = Posterior(mean, variance.log()).sample((draws,), generator())
    # Under the posterior these are exactly chi-square and normal; six two-sided tests.
    squares = ((codes - mean) ** 2 / variance).sum(0).numpy()
    errors = ((codes.mean(0) - mean) / (variance / draws).sqrt()).numpy()
    tails = [
        min(scipy.stats.chi2.cdf(squares, draws).min(), scipy.stats.chi2.sf(squares, draws).min()),
        scipy.stats.norm.sf(abs(errors)).min(),
    ]
    assert min(tails) > FALSE_ALARM / 12


def test_codes_come_from_the_generator() -> None:
    posterior = Posterior(normal(5, 2), normal(5, 2, seed=1))
    first = posterior.sample((4,), generator(2))
    assert torch.equal(first, posterior.sample((4,), generator(2)))
    assert not torch.equal(first, posterior.sample((4,), generator(3)))
    assert first.unique().numel() == first.numel()


@pytest.mark.parametrize("value", [-2.0, 0.5])
def test_the_variance_forgets_what_it_learned(value: float) -> None:
    network = make()
    features = network.encoder(normal(9, 4))
    mean = network.posterior(features).mean
    network.reset_variance(value)
    posterior = network.posterior(features)
    assert torch.equal(posterior.log_variance, torch.full_like(mean, value))
    assert torch.equal(posterior.mean, mean)

"""The autoencoder and the mixture prior against torch's distributions."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Independent, Normal, kl_divergence

from drpm.clustering.config import NetworkConfig
from drpm.clustering.mixtures import Mixture
from drpm.clustering.models import Autoencoder, MixturePrior, divergences
from drpm.nn.gaussians import Posterior
from tests.oracles import generator, normal

SMALL = NetworkConfig(latent=2, encoder=(6, 5), decoder=(7,))


def make(likelihood: str = "bernoulli", deviation: float = 1.0) -> Autoencoder:
    torch.manual_seed(3)
    return Autoencoder(4, replace(SMALL, deviation=deviation), likelihood).double()


def random_mixture(*leading: int, seed: int = 0) -> Mixture:
    return Mixture(
        normal(*leading, 4, seed=seed).log_softmax(-1),
        2 * normal(*leading, 4, 3, seed=seed + 1),
        normal(*leading, 4, 3, seed=seed + 2).exp(),
    )


def test_the_papers_network() -> None:
    network = Autoencoder(784, NetworkConfig(), "bernoulli")

    def shapes(module: torch.nn.Module) -> list[tuple[int, ...]]:
        return [tuple(p.shape) for p in module.parameters() if p.dim() == 2]

    assert shapes(network.encoder) == [(500, 784), (500, 500), (2000, 500)]
    assert shapes(network.mean) == shapes(network.log_variance) == [(10, 2000)]
    assert shapes(network.decoder) == [(2000, 10), (500, 2000), (500, 500), (784, 500)]


def test_bernoulli_likelihood() -> None:
    network, codes = make(), normal(3, 6, 2)
    gray = torch.rand(6, 4, generator=generator(1), dtype=torch.float64)
    law = Bernoulli(probs=network.decode(codes))
    # Linear in the row, also between zero and one.
    ones, zeros = torch.ones_like(gray), torch.zeros_like(gray)
    expected = gray * law.log_prob(ones) + (1 - gray) * law.log_prob(zeros)
    torch.testing.assert_close(network.log_likelihood(gray, codes), expected.sum(-1))


@pytest.mark.parametrize("deviation", [1.0, 0.25])
def test_gaussian_likelihood(deviation: float) -> None:
    network, codes, rows = make("gaussian", deviation), normal(3, 6, 2), normal(6, 4)
    full = Normal(network.decode(codes), deviation).log_prob(rows).sum(-1)
    constant = 4 * math.log(math.sqrt(2 * math.pi) * deviation)
    torch.testing.assert_close(network.log_likelihood(rows, codes) - constant, full)


def test_a_reset_variance_is_the_same_for_every_row() -> None:
    network = make()
    features = network.encoder(normal(9, 4))
    mean = network.posterior(features).mean
    network.reset_variance(0.5)
    posterior = network.posterior(features)
    assert torch.equal(posterior.log_variance, torch.full_like(mean, 0.5))
    assert torch.equal(posterior.mean, mean)


@pytest.mark.parametrize("leading", [(), (3, 2)])
def test_divergences_are_those_of_torch(leading: tuple[int, ...]) -> None:
    mixture = random_mixture(*leading)
    posterior = Posterior(2 * normal(*leading, 5, 3, seed=10), normal(*leading, 5, 3, seed=11))

    def gaussian(mean: Tensor, variance: Tensor) -> Independent:
        return Independent(Normal(mean, variance.sqrt()), 1)

    found = divergences(posterior, mixture)
    for i in range(5):
        first = gaussian(posterior.mean[..., i, :], posterior.log_variance[..., i, :].exp())
        for k in range(4):
            second = gaussian(mixture.means[..., k, :], mixture.variances[..., k, :])
            torch.testing.assert_close(found[..., i, k], kl_divergence(first, second))


@pytest.mark.parametrize("detached", [False, True])
def test_the_mixture_of_a_prior_is_the_last_one_set(detached: bool) -> None:
    prior = MixturePrior(4, 3)
    for seed, way in ((0, False), (5, True), (9, not detached), (3, detached)):
        prior.set_mixture(random_mixture(seed=seed), detached=way)
    other = MixturePrior(4, 3)
    other.load_state_dict(prior.state_dict())
    for found in (prior.mixture(), other.mixture()):
        for part, expected in zip(found, random_mixture(seed=3), strict=True):
            torch.testing.assert_close(part, expected.float(), rtol=1e-5, atol=1e-6)


def test_weights_are_normalized() -> None:
    prior, mixture = MixturePrior(4, 3).double(), random_mixture()
    prior.set_mixture(mixture)
    with torch.no_grad():
        prior.log_weights.add_(7.0)
    torch.testing.assert_close(prior.mixture().log_weights, mixture.log_weights)


def test_a_detached_prior_has_no_gradient() -> None:
    prior = MixturePrior(4, 3)
    for seed, detached in ((0, False), (4, True), (8, False)):
        prior.zero_grad()
        prior.set_mixture(random_mixture(seed=seed), detached=detached)
        mixture = prior.mixture()
        weights = (mixture.log_weights * normal(4).float()).sum()
        (weights + mixture.means.sum() + mixture.variances.sum()).backward()
        for parameter in prior.parameters():
            assert (parameter.grad is None or not parameter.grad.any()) == detached

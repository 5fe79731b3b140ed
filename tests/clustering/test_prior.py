"""The prior: densities and divergences against torch's distributions; what a refit does."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence

from drpm.clustering.mixtures import Mixture
from drpm.clustering.prior import MixturePrior, divergences, log_densities
from drpm.nn.gaussians import Posterior
from tests.oracles import normal

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def random_mixture(*leading: int, clusters: int = 4, latent: int = 3, seed: int = 0) -> Mixture:
    return Mixture(
        normal(*leading, clusters, seed=seed).log_softmax(-1),
        2 * normal(*leading, clusters, latent, seed=seed + 1),
        normal(*leading, clusters, latent, seed=seed + 2).exp(),
    )


def random_posterior(*shape: int, seed: int = 10) -> Posterior:
    return Posterior(2 * normal(*shape, seed=seed), normal(*shape, seed=seed + 1))


def gaussian(mean: Tensor, variance: Tensor) -> Independent:
    return Independent(Normal(mean, variance.sqrt()), 1)


@pytest.mark.parametrize("leading", [(), (2,), (3, 2)])
def test_densities_are_those_of_torch(leading: tuple[int, ...]) -> None:
    mixture, points = random_mixture(*leading), normal(*leading, 5, 3, seed=7)
    law = MultivariateNormal(mixture.means, torch.diag_embed(mixture.variances))
    expected = torch.stack(
        [law.log_prob(points[..., i : i + 1, :].expand_as(mixture.means)) for i in range(5)], -2
    )
    torch.testing.assert_close(log_densities(points, mixture), expected, **CLOSE)


@pytest.mark.parametrize("leading", [(), (2,), (3, 2)])
def test_divergences_are_those_of_torch(leading: tuple[int, ...]) -> None:
    mixture, posterior = random_mixture(*leading), random_posterior(*leading, 5, 3)
    found = divergences(posterior, mixture)
    assert found.shape == (*leading, 5, 4)
    for i in range(5):
        for k in range(4):
            first = gaussian(posterior.mean[..., i, :], posterior.log_variance[..., i, :].exp())
            second = gaussian(mixture.means[..., k, :], mixture.variances[..., k, :])
            torch.testing.assert_close(found[..., i, k], kl_divergence(first, second), **CLOSE)


def test_a_gaussian_does_not_diverge_from_itself() -> None:
    mixture = random_mixture()
    own = divergences(Posterior(mixture.means, mixture.variances.log()), mixture)
    torch.testing.assert_close(own.diagonal(), torch.zeros(4, dtype=own.dtype), **CLOSE)
    assert (own + torch.eye(4) > 1e-3).all()


def test_a_new_prior_is_standard() -> None:
    mixture = MixturePrior(5, 2).mixture()
    assert torch.equal(mixture.means, torch.zeros(5, 2))
    assert torch.equal(mixture.variances, torch.ones(5, 2))
    torch.testing.assert_close(mixture.log_weights, torch.full((5,), -math.log(5)))


@pytest.mark.parametrize("detached", [False, True])
def test_what_is_placed_is_in_place(detached: bool) -> None:
    """Also after other things were, and from float64."""
    prior = MixturePrior(4, 3)
    for seed, way in ((0, False), (5, True), (9, not detached), (3, detached)):
        prior.place(random_mixture(seed=seed), detached=way)
    for found, expected in zip(prior.mixture(), random_mixture(seed=3), strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-6)


def test_weights_are_normalised_wherever_training_takes_them() -> None:
    prior = MixturePrior(4, 3).double()
    mixture = random_mixture()
    prior.place(mixture)
    with torch.no_grad():
        prior.log_weights.add_(7.0)  # a common factor of all weights
    torch.testing.assert_close(prior.mixture().log_weights, mixture.log_weights, **CLOSE)
    with torch.no_grad():
        prior.log_weights[2] += math.log(3)
    weights = mixture.log_weights.exp()
    weights[2] *= 3
    torch.testing.assert_close(prior.mixture().log_weights.exp(), weights / weights.sum(), **CLOSE)


def reached(prior: MixturePrior) -> dict[str, bool]:
    """The parameters that a loss of all parts of the mixture moves."""
    prior.zero_grad()
    weights = normal(4).float()
    mixture = prior.mixture()
    loss = (mixture.log_weights * weights).sum() + mixture.means.sum() + mixture.variances.sum()
    loss.backward()
    return {
        name: parameter.grad is not None and bool(parameter.grad.any())
        for name, parameter in prior.named_parameters()
    }


def test_gradients_reach_the_parameters_unless_they_are_detached() -> None:
    prior = MixturePrior(4, 3)
    names = {"means", "log_variances", "log_weights"}
    prior.place(random_mixture())
    assert reached(prior) == dict.fromkeys(names, True)
    prior.place(random_mixture(seed=4), detached=True)
    assert reached(prior) == dict.fromkeys(names, False)
    prior.place(random_mixture(seed=8))
    assert reached(prior) == dict.fromkeys(names, True)


def test_a_detached_prior_stays_where_it_is() -> None:
    prior = MixturePrior(4, 3)
    prior.place(random_mixture(), detached=True)
    before = [part.clone() for part in prior.mixture()]
    with torch.no_grad():
        for parameter in prior.parameters():
            parameter.add_(1.0)
    for part, old in zip(prior.mixture(), before, strict=True):
        assert torch.equal(part, old)


def test_the_state_says_all() -> None:
    prior, other = MixturePrior(4, 3), MixturePrior(4, 3)
    prior.place(random_mixture(), detached=True)
    other.load_state_dict(prior.state_dict())
    for part, expected in zip(other.mixture(), prior.mixture(), strict=True):
        assert torch.equal(part, expected)

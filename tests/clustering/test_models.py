"""Networks against torch's distributions; the loss of VaDE against a sum over clusters."""

import math

import pytest
import torch
from torch.distributions import Bernoulli, Normal

from drpm.clustering.config import AutoencoderConfig
from drpm.clustering.mixtures import Mixture
from drpm.clustering.models import (
    Autoencoder,
    MixturePrior,
    choose_likelihood,
    divergences,
    standardization,
    vade_objective,
)
from drpm.nn.encoders import Posterior
from tests.clustering.toys import (
    CLOSE,
    divergence_table,
    make_batch,
    make_model,
    posterior_of,
    settings,
)
from tests.oracles import generator, normal


def make_network(likelihood: str = "bernoulli", deviation: float = 1.0) -> Autoencoder:
    torch.manual_seed(3)
    return Autoencoder(4, AutoencoderConfig(2, (6, 5), (7,), deviation), likelihood).double()


def test_bernoulli_likelihood_of_gray_rows() -> None:
    network, codes = make_network(), normal(3, 6, 2)
    gray = torch.rand(6, 4, generator=generator(1), dtype=torch.float64)
    means = network.decode(codes)
    expected = (gray * means.log() + (1 - gray) * (1 - means).log()).sum(-1)
    torch.testing.assert_close(network.log_likelihood(gray, codes), expected)


@pytest.mark.parametrize("deviation", [1.0, 0.25])
def test_gaussian_likelihood(deviation: float) -> None:
    network, codes, rows = make_network("gaussian", deviation), normal(3, 6, 2), normal(6, 4)
    full = Normal(network.decode(codes), deviation).log_prob(rows).sum(-1)
    constant = 4 * math.log(math.sqrt(2 * math.pi) * deviation)
    torch.testing.assert_close(network.log_likelihood(rows, codes) - constant, full)


@pytest.mark.parametrize("leading", [(), (3, 2)])
def test_divergences_are_those_of_torch(leading: tuple[int, ...]) -> None:
    mixture = random_mixture(*leading)
    posterior = Posterior(2 * normal(*leading, 5, 3, seed=10), normal(*leading, 5, 3, seed=11))
    expected = divergence_table(posterior, mixture)
    torch.testing.assert_close(divergences(posterior, mixture), expected)


def random_mixture(*leading: int, seed: int = 0) -> Mixture:
    return Mixture(
        normal(*leading, 4, seed=seed).log_softmax(-1),
        2 * normal(*leading, 4, 3, seed=seed + 1),
        normal(*leading, 4, 3, seed=seed + 2).exp(),
    )


@pytest.mark.parametrize("detached", [False, True])
def test_the_prior_has_the_last_mixture_set(detached: bool) -> None:
    """Only one that is not detached has gradients."""
    prior = MixturePrior(4, 3)
    for seed, way in ((0, False), (5, True), (9, not detached), (3, detached)):
        prior.set_mixture(random_mixture(seed=seed), detached=way)
    other = MixturePrior(4, 3)
    other.load_state_dict(prior.state_dict())
    for found in (prior.mixture(), other.mixture()):
        for part, expected in zip(found, random_mixture(seed=3), strict=True):
            torch.testing.assert_close(part, expected.float(), rtol=1e-5, atol=1e-6)
    mixture = prior.mixture()
    weights = (mixture.log_weights * normal(4).float()).sum()
    (weights + mixture.means.sum() + mixture.variances.sum()).backward()
    for parameter in prior.parameters():
        assert (parameter.grad is None or not parameter.grad.any()) == detached
    if not detached:
        with torch.no_grad():
            prior.log_weights.add_(7.0)  # weights are normalized
        torch.testing.assert_close(prior.mixture().log_weights, mixture.log_weights)


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
@torch.no_grad()
def test_vade_against_a_sum_over_clusters(likelihood: str) -> None:
    """In the form of its authors: densities and entropies instead of divergences."""
    config = settings(method="vade")
    model, batch = make_model(config, likelihood), make_batch()
    found = vade_objective(model, batch, {}, generator(7))

    posterior, mixture = posterior_of(model, batch), model.prior.mixture()
    codes = posterior.sample((), generator(7))
    decoded = model.autoencoder.decode(codes)
    if likelihood == "bernoulli":
        fit = Bernoulli(decoded).log_prob(batch["rows"]).sum(-1)
    else:
        fit = -(decoded - batch["rows"]).square().sum(-1) / 2
    clusters = Normal(mixture.means, mixture.variances.sqrt())
    joint = clusters.log_prob(codes[:, None]).sum(-1) + mixture.log_weights
    probs = joint.softmax(-1)
    spread = posterior.log_variance.exp()[:, None] / mixture.variances
    expected = (clusters.log_prob(posterior.mean[:, None]) - spread / 2).sum(-1)
    entropy = Normal(posterior.mean, (posterior.log_variance / 2).exp()).entropy().sum(-1)
    prior = (probs * (expected + mixture.log_weights - probs.log())).sum(-1)
    torch.testing.assert_close(found["loss"], -(fit + entropy + prior).mean(), **CLOSE)
    parts = found["reconstruction"] + found["latent"] + found["clusters"]
    torch.testing.assert_close(found["loss"], parts)


@pytest.mark.parametrize(
    ("rows", "asked", "chosen"),
    [
        ([[0.0, 1.0]], "auto", "bernoulli"),
        ([[0.0, 1.01]], "auto", "gaussian"),
        ([[-0.01, 1.0]], "auto", "gaussian"),
        ([[math.nan, 1.0]], "auto", "gaussian"),
        ([[0.0, 1.0]], "gaussian", "gaussian"),
    ],
)
def test_likelihood(rows: list[list[float]], asked: str, chosen: str) -> None:
    assert choose_likelihood(torch.tensor(rows), asked) == chosen


def test_clusters_share_their_variances() -> None:
    prior = MixturePrior(3, 2, shared_variances=True)
    with torch.no_grad():
        prior.log_variances.copy_(torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 4.0]]))
    variances = prior.mixture().variances
    torch.testing.assert_close(variances, torch.tensor([2.0, 2.0]).exp().expand(3, 2))
    variances[0].sum().backward()
    assert prior.log_variances.grad is not None
    assert bool((prior.log_variances.grad > 0).all())


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e9])
def test_columns_of_a_table_are_scaled_by_their_fourth_moments(unit: float) -> None:
    rare = torch.zeros(100, dtype=torch.float64).index_fill(0, torch.tensor([0]), 1.0)
    two = torch.tensor([-1.0, 1.0], dtype=torch.float64).repeat(50)
    rows = unit * torch.stack([rare, two, torch.full_like(rare, 0.1)], 1)
    _, shift, scale = standardization(rows, (3,), "gaussian")
    assert shift is not None
    assert scale is not None
    # A share p of ones has the fourth central moment p (1 - p) (1 - 3 p (1 - p)).
    expected = [(0.0099 * (1 - 3 * 0.0099) / 3) ** 0.25 * unit, (1 / 3) ** 0.25 * unit, 1.0]
    assert scale.tolist() == pytest.approx(expected, rel=1e-12)
    assert shift.tolist() == pytest.approx([0.01 * unit, 0.0, 0.1 * unit])
    # Pixels share one scale, their standard deviation.
    _, _, common = standardization(rows, (1, 3), "gaussian")
    assert common is not None
    assert common.tolist() == pytest.approx([rows.std(correction=0).item()] * 3)

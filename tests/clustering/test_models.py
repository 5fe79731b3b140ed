"""Networks against torch's distributions; the loss of VaDE against a sum over clusters."""

import math

import pytest
import torch
from torch.distributions import Bernoulli, Normal

from drpm.clustering.config import AutoencoderConfig
from drpm.clustering.mixtures import Mixture
from drpm.clustering.models import (
    OBJECTIVES,
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
    schedule,
    settings,
)
from tests.oracles import generator, normal

# Networks.


def make_network(likelihood: str = "bernoulli", deviation: float = 1.0) -> Autoencoder:
    torch.manual_seed(3)
    return Autoencoder(4, AutoencoderConfig(2, (6, 5), (7,), deviation), likelihood).double()


def test_bernoulli_likelihood() -> None:
    network, codes = make_network(), normal(3, 6, 2)
    gray = torch.rand(6, 4, generator=generator(1), dtype=torch.float64)
    law = Bernoulli(probs=network.decode(codes))
    # Linear in the row, also between zero and one.
    ones, zeros = torch.ones_like(gray), torch.zeros_like(gray)
    expected = gray * law.log_prob(ones) + (1 - gray) * law.log_prob(zeros)
    torch.testing.assert_close(network.log_likelihood(gray, codes), expected.sum(-1))


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
    found = divergences(posterior, mixture).reshape(-1, 5, 4)
    flat = [x.reshape(-1, *x.shape[len(leading) :]) for x in (*posterior, *mixture)]
    for run, (mean, log_variance, *parts) in enumerate(zip(*flat, strict=True)):
        expected = divergence_table(Posterior(mean, log_variance), Mixture(*parts))
        torch.testing.assert_close(found[run], expected)


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


# VaDE.


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
@torch.no_grad()
def test_vade_against_a_sum_over_clusters(likelihood: str) -> None:
    """In the form of its authors: densities and entropies instead of divergences."""
    config = settings(method="vade")
    model, batch = make_model(config, likelihood), make_batch()
    found = vade_objective(model, batch, {}, generator(7))

    posterior, mixture = posterior_of(model, batch), model.prior.mixture()
    codes = posterior.sample((), generator(7))
    bound = []
    for row, z, mean, log_variance in zip(batch["rows"], codes, *posterior, strict=True):
        decoded = model.autoencoder.decode(z)
        if likelihood == "bernoulli":
            fit = Bernoulli(decoded).log_prob(row).sum()
        else:
            fit = -((decoded - row) ** 2).sum() / 2
        clusters = [
            Normal(m, v.sqrt()) for m, v in zip(mixture.means, mixture.variances, strict=True)
        ]
        weights = mixture.log_weights.exp().tolist()
        joint = [
            weight * math.exp(float(cluster.log_prob(z).sum()))
            for weight, cluster in zip(weights, clusters, strict=True)
        ]
        total = fit + Normal(mean, (log_variance / 2).exp()).entropy().sum()
        for k in range(3):
            prob = joint[k] / sum(joint)
            expected = clusters[k].log_prob(mean).sum()
            expected -= (log_variance.exp() / mixture.variances[k]).sum() / 2
            total = total + prob * (expected + mixture.log_weights[k] - math.log(prob))
        bound.append(total)
    torch.testing.assert_close(found["loss"], -torch.stack(bound).mean(), **CLOSE)
    parts = found["reconstruction"] + found["latent"] + found["clusters"]
    torch.testing.assert_close(found["loss"], parts)


@pytest.mark.parametrize("method", ["drpm-vc", "vade"])
def test_a_frozen_encoder_is_not_even_asked(method: str) -> None:
    config = settings(clusters=2, method=method)
    model, batch = make_model(config), make_batch(6)
    objective = OBJECTIVES[method]
    expected = objective(model, batch, schedule(), generator())
    features = model.autoencoder.encoder(batch["rows"]).detach()
    model.autoencoder.encoder = torch.nn.Sequential(torch.nn.Identity())
    found = objective(model, {**batch, "features": features}, schedule(), generator())
    torch.testing.assert_close(found, expected)
    found["loss"].backward()
    assert model.autoencoder.mean.weight.grad is not None


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

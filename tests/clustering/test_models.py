"""Networks against torch's distributions; losses against all clusters, orders and partitions."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Independent, Normal, kl_divergence

from drpm.clustering.config import AutoencoderConfig, ClusteringConfig
from drpm.clustering.mixtures import Mixture
from drpm.clustering.models import (
    OBJECTIVES,
    Autoencoder,
    MixturePrior,
    MixtureVAE,
    bound_terms,
    choose_likelihood,
    divergences,
    exact_terms,
    partition_objective,
    partition_parameters,
    vade_objective,
)
from drpm.distributions import FisherHypergeometric
from drpm.nn.encoders import Posterior
from drpm.training.config import TrainingConfig
from drpm.training.program import Batch, Program
from tests import oracles
from tests.oracles import Enumeration, assert_expectation, assert_mean, generator, normal

COLUMNS = 5
CLOSE = {"rtol": 1e-8, "atol": 1e-8}
TERMS = ("reconstruction", "latent", "sizes", "order")


def settings(clusters: int = 3, **changes: Any) -> ClusteringConfig:
    chosen = {"partitions": 4, "network": AutoencoderConfig(2, (6,), (7,)), **changes}
    return ClusteringConfig(clusters=clusters, **chosen)


def make_model(
    config: ClusteringConfig, likelihood: str = "bernoulli", seed: int = 1
) -> MixtureVAE:
    """A small model whose clusters are neither alike nor far apart."""
    torch.manual_seed(seed)
    model = MixtureVAE(COLUMNS, config, likelihood).double()
    k, latent = config.clusters, config.network.latent
    model.prior.set_mixture(
        Mixture(
            normal(k, seed=seed).log_softmax(-1),
            normal(k, latent, seed=seed + 1),
            normal(k, latent, seed=seed + 2).exp(),
        )
    )
    with torch.no_grad():
        model.log10_scale.fill_(-0.3)  # random orders
        model.autoencoder.mean.weight.mul_(6)
    return model


def make_batch(n: int = 4, seed: int = 0) -> Batch:
    """Different rows of zeros and ones."""
    numbers = torch.randperm(2**COLUMNS, generator=generator(seed))[:n]
    return {"rows": (numbers[:, None] >> torch.arange(COLUMNS) & 1).double()}


def place_on_rows(model: MixtureVAE, batch: Batch, log_weights: Tensor | None = None) -> None:
    """Put cluster k on the code of row k, so that each is the nearest one of some row."""
    means = posterior_of(model, batch).mean[: len(model.prior.mixture().means)]
    gap = torch.pdist(means).min() if len(means) > 1 else torch.ones((), dtype=means.dtype)
    # Clusters are four deviations apart or more, and codes as uncertain as clusters are wide.
    variance = (gap / 4).square()
    model.autoencoder.reset_variance(float(variance.log()))
    weights = model.prior.mixture().log_weights.detach() if log_weights is None else log_weights
    model.prior.set_mixture(Mixture(weights, means, variance.expand_as(means).clone()))


def schedule(temperature: float = 1.0, beta: float = 0.7) -> dict[str, Tensor]:
    values = {"temperature": temperature, "beta": beta}
    return {name: torch.tensor(x, dtype=torch.float64) for name, x in values.items()}


def full_posterior(model: MixtureVAE, batch: Batch) -> Posterior:
    return model.autoencoder.posterior(model.autoencoder.encoder(batch["rows"]))


def posterior_of(model: MixtureVAE, batch: Batch) -> Posterior:
    return Posterior(*(x.detach() for x in full_posterior(model, batch)))


def divergence_table(posterior: Posterior, mixture: Mixture) -> Tensor:
    """KL of every row's posterior from every cluster, one pair at a time."""

    def gaussian(mean: Tensor, variance: Tensor) -> Independent:
        return Independent(Normal(mean, variance.sqrt()), 1)

    rows = [
        torch.stack(
            [
                kl_divergence(gaussian(m, v.exp()), gaussian(*cluster))
                for cluster in zip(mixture.means, mixture.variances, strict=True)
            ]
        )
        for m, v in zip(*posterior, strict=True)
    ]
    return torch.stack(rows).detach()


def naive_parameters(model: MixtureVAE, batch: Batch) -> tuple[Tensor, Tensor]:
    """Log-scores and log-weights of a batch by the settings, one row at a time."""
    posterior, mixture = posterior_of(model, batch), model.prior.mixture()
    table, clusters = divergence_table(posterior, mixture), len(mixture.means)
    u = 10 ** float(model.log10_scale.detach())
    scores = [u * (clusters - min(range(clusters), key=lambda k: float(row[k]))) for row in table]
    shares = []
    for mean in posterior.mean:
        logs = [
            float(Normal(m, v.sqrt()).log_prob(mean).sum().detach())
            for m, v in zip(mixture.means, mixture.variances, strict=True)
        ]
        # In units of the largest: a row may be too far from all clusters for any other.
        densities = [math.exp(log - max(logs)) for log in logs]
        shares.append([density / sum(densities) for density in densities])
    weights = torch.tensor(shares, dtype=torch.float64).mean(0) + 1e-6
    return torch.tensor(scores, dtype=torch.float64), weights.log()


def mode_sizes(n: int, log_weights: Tensor) -> Tensor:
    return torch.tensor(oracles.fisher_mode(n, log_weights.tolist(), [n] * len(log_weights)))


def size_log_prob(sizes: Tensor, log_weights: Tensor) -> Tensor:
    law = oracles.fisher(int(sizes.sum()), log_weights)
    return law.log_mass[(law.values == sizes.long()).all(1)][0]


def fills_of_size(log_scores: Tensor, sizes: Tensor) -> Enumeration:
    """All partitions of these sizes, with their masses given the sizes."""
    n, groups = len(log_scores), len(sizes)
    values = oracles.to_matrix(oracles.assignments(n, groups), groups)
    fits = (values.sum(-1) == sizes).all(-1)
    return Enumeration(values[fits], oracles.fills(log_scores, groups)[fits])


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


# The two parts of the partition's divergence.

CASES = [(4, 3, 0), (5, 2, 1), (5, 1, 4)]


def law_and_prior(n: int, groups: int, seed: int) -> tuple[Tensor, Tensor, Mixture]:
    log_scores, log_weights = oracles.parameters(n, groups, seed=seed)
    weights = normal(groups, seed=seed + 50).log_softmax(-1)
    return log_scores, log_weights, Mixture(weights, torch.zeros(groups, 1), torch.ones(groups, 1))


@pytest.mark.parametrize(("n", "groups", "seed"), CASES)
def test_bound_terms_against_all_orders(n: int, groups: int, seed: int) -> None:
    log_scores, log_weights, mixture = law_and_prior(n, groups, seed)
    for sizes in oracles.size_vectors(n, [n] * groups):
        size_term, order_term = bound_terms(sizes.double(), log_scores, log_weights, mixture)
        count = math.prod(math.factorial(size) for size in sizes.tolist())
        expected = math.log(count) + size_log_prob(sizes, log_weights)
        expected = expected - size_log_prob(sizes, mixture.log_weights)
        torch.testing.assert_close(size_term, expected, **CLOSE)
        best = oracles.plackett_luce(log_scores).log_mass.max()
        torch.testing.assert_close(order_term, best + math.log(math.factorial(n)), **CLOSE)


@pytest.mark.parametrize(("n", "groups", "seed"), CASES)
def test_exact_terms_against_all_partitions(n: int, groups: int, seed: int) -> None:
    log_scores, log_weights, mixture = law_and_prior(n, groups, seed)
    law = oracles.random_partition(log_scores, log_weights)
    prior = oracles.random_partition(torch.zeros_like(log_scores), mixture.log_weights)
    for sizes in oracles.size_vectors(n, [n] * groups):
        fits = (law.values.sum(-1) == sizes).all(-1)
        gaps = (law.log_mass - prior.log_mass)[fits]
        found = exact_terms(law.values[fits], sizes.double(), log_scores, log_weights, mixture)
        torch.testing.assert_close(sum(found), gaps.mean(), **CLOSE)
        expected = size_log_prob(sizes, log_weights) - size_log_prob(sizes, mixture.log_weights)
        torch.testing.assert_close(found[0], expected, **CLOSE)
        # The bound holds for each of them, and so for any mean.
        bound = sum(bound_terms(sizes.double(), log_scores, log_weights, mixture))
        assert bound >= gaps.max() - 1e-9


def test_the_gradient_of_the_exact_term_is_that_of_the_divergence() -> None:
    """The draws depend on the scores too: their own mass alone has a gradient of mean zero."""
    _, log_weights, mixture = law_and_prior(4, 3, 0)
    base, sizes = torch.tensor([1.5, -1.0, 0.5, -0.5]).double(), torch.tensor([2, 1, 1])

    def divergence(scale: Tensor) -> Tensor:
        law = fills_of_size(scale * base, sizes)
        return (law.mass * law.log_mass).sum()

    scale = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(divergence(scale), scale)
    law = fills_of_size((scale * base).detach(), sizes)
    repeats, draws = 60, 40
    chosen = torch.multinomial(law.mass, repeats * draws, replacement=True, generator=generator())
    estimates = []
    for index in chosen.split(draws):
        term = exact_terms(law.values[index], sizes.double(), scale * base, log_weights, mixture)[1]
        estimates.append(torch.autograd.grad(term, scale)[0])
    # Student's t with 59 degrees of freedom: 5.5e-6.
    error = assert_mean(torch.stack(estimates), expected)
    assert expected > 10 * error  # zero is far off


# The whole loss.


@pytest.mark.parametrize("objective", ["bounds", "exact"])
@pytest.mark.parametrize(("n", "clusters", "seed"), [(4, 3, 0), (5, 2, 1), (5, 3, 2), (4, 1, 3)])
@torch.no_grad()
def test_the_loss_against_all_partitions(n: int, clusters: int, seed: int, objective: str) -> None:
    draws, gamma, delta, beta = 2_000, 1.7, 0.3, 0.7
    config = settings(
        clusters,
        partitions=draws,
        exact_partitions=draws,
        objective=objective,
        gamma=gamma,
        delta=delta,
        codes=3,
    )
    model, batch = make_model(config, seed=seed), make_batch(n, seed)
    place_on_rows(model, batch)
    found = partition_objective(model, batch, schedule(beta=beta), generator(9))
    assert set(found) == {"loss", *TERMS}
    torch.testing.assert_close(found["loss"], sum(found[name] for name in TERMS))

    # Reconstruction: the first numbers drawn are those of the codes.
    posterior, mixture = posterior_of(model, batch), model.prior.mixture()
    decoded = model.autoencoder.decode(posterior.sample((3,), generator(9)))
    fits = Bernoulli(decoded).log_prob(batch["rows"].expand_as(decoded)).sum(-1)
    torch.testing.assert_close(found["reconstruction"], -fits.mean(), **CLOSE)

    # Sizes: without noise.
    log_scores, log_weights = naive_parameters(model, batch)
    sizes = mode_sizes(n, log_weights)
    # Every cluster is the nearest of some row, and none stays empty.
    assert len(log_scores.unique()) == clusters
    assert (sizes > 0).all()
    size_gap = size_log_prob(sizes, log_weights) - size_log_prob(sizes, mixture.log_weights)
    count = math.prod(math.factorial(size) for size in sizes.tolist())
    size_term = size_gap + (math.log(count) if objective == "bounds" else 0.0)
    torch.testing.assert_close(found["sizes"], gamma * size_term.clamp_min(0) / n, **CLOSE)

    # Partitions: draws of all that have these sizes. Two means, each at 7.5e-6.
    law = fills_of_size(log_scores, sizes)
    table = divergence_table(posterior, mixture)
    assert_expectation(found["latent"] * n / beta, law, (law.values * table.T).sum((-2, -1)), draws)
    if objective == "bounds":
        best = oracles.plackett_luce(log_scores).log_mass.max()
        expected = best + math.log(math.factorial(n))
        torch.testing.assert_close(found["order"], delta * expected / n**2, **CLOSE)
    else:
        orders = math.log(math.factorial(n) / count)
        assert_expectation(found["order"] * n**2 / delta, law, law.log_mass + orders, draws)


@torch.no_grad()
def test_a_negative_term_of_the_sizes_counts_as_none() -> None:
    """Three rows in three clusters of their own: one order leads there, the prior prefers it."""
    config = settings(clusters=3, network=AutoencoderConfig(2, (2,), (7,)))
    model = make_model(config)
    means = torch.tensor([[0.0, 0], [1, 0], [0, 1]], dtype=torch.float64)
    batch = make_batch(3) | {"features": means}
    equal = torch.zeros(3, dtype=torch.float64).log_softmax(-1)
    model.prior.set_mixture(Mixture(equal, means, torch.ones_like(means)))
    with torch.no_grad():
        model.autoencoder.mean.weight.copy_(torch.eye(2))
        model.autoencoder.mean.bias.zero_()
    densities = (-torch.cdist(means, means).square() / 2).exp()
    log_weights = (densities / densities.sum(-1, keepdim=True)).mean(0).log()
    log_scores = 10**-0.3 * torch.tensor([3.0, 2, 1], dtype=torch.float64)
    sizes = mode_sizes(3, log_weights)
    assert sizes.tolist() == [1, 1, 1]
    term = bound_terms(sizes.double(), log_scores, log_weights, model.prior.mixture())[0]
    assert term < -1e-3
    found = partition_objective(model, batch, schedule(), generator())
    assert found["sizes"] == 0


# Gradients.


def gradients(objective: str, term: str, **changes: Any) -> dict[str, Tensor]:
    """The parameters that a term moves, with their gradients."""
    config = settings(clusters=2, objective=objective, partitions=99, **changes)
    model, batch = make_model(config), make_batch(6)
    # A prior that hardly knows the second cluster, so that no term of the sizes is negative.
    rare = torch.tensor([0.0, -9.0], dtype=torch.float64).log_softmax(-1)
    place_on_rows(model, batch, rare)
    with torch.no_grad():
        # Where codes are as uncertain as clusters are wide, the divergence has no slope in that.
        model.autoencoder.log_variance.bias += 0.5
    partition_objective(model, batch, schedule(), generator())[term].backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def moved(found: dict[str, Tensor]) -> set[str]:
    return {name for name, gradient in found.items() if gradient.any()}


@pytest.mark.parametrize("objective", ["bounds", "exact"])
def test_what_each_term_trains(objective: str) -> None:
    """The partition's parameters carry no gradient but that of the scale."""
    prior = {"prior.means", "prior.log_variances"}
    assert moved(gradients(objective, "order")) == {"log10_scale"}
    assert moved(gradients(objective, "sizes")) == {"prior.log_weights"}
    layers = ("mean", "log_variance")
    heads = {f"autoencoder.{head}.{x}" for head in layers for x in ("weight", "bias")}
    encoder = {"autoencoder.encoder.0.weight", "autoencoder.encoder.0.bias"}
    assert moved(gradients(objective, "latent")) == prior | heads | encoder | {"log10_scale"}
    fit = moved(gradients(objective, "reconstruction"))
    assert fit >= heads | encoder
    assert all(name.startswith("autoencoder.") for name in fit)


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


# Stacked runs.


@pytest.mark.parametrize("method", ["drpm-vc", "vade"])
@pytest.mark.parametrize("objective", ["bounds", "exact"])
def test_stacked_runs_have_the_terms_of_their_own_models(method: str, objective: str) -> None:
    """Where nothing is random: certain codes, clusters far apart, and scores likewise."""
    network = AutoencoderConfig(2, (2,), (7,))
    config = settings(clusters=2, method=method, objective=objective, network=network)
    models, features = [make_model(config, seed=seed) for seed in (1, 2)], []
    rows = make_batch(6)["rows"]
    for model, labels in zip(models, ([0, 1, 0, 0, 1, 0], [1, 1, 0, 1, 1, 0]), strict=True):
        means = torch.tensor([[0.0, 9.0], [9.0, 0.0]], dtype=torch.float64)
        weights = model.prior.mixture().log_weights.detach()
        model.prior.set_mixture(Mixture(weights, means, torch.ones_like(means)))
        model.autoencoder.reset_variance(-60.0)
        with torch.no_grad():
            model.log10_scale.fill_(2.5)
            model.autoencoder.mean.weight.copy_(torch.eye(2))
            model.autoencoder.mean.bias.zero_()
        features.append(means[torch.tensor(labels)])
    training = TrainingConfig(epochs=1, batch_size=6, precision="64-true")

    def one(step: Tensor) -> Tensor:
        return torch.ones((), dtype=torch.float64)

    program = Program(
        models,
        OBJECTIVES[method],
        {"rows": rows},
        training,
        run_data={"features": torch.stack(features)},
        schedules={"temperature": one, "beta": one},
    )
    expected = [
        OBJECTIVES[method](model, {"rows": rows, "features": own}, schedule(1.0, 1.0), generator())
        for model, own in zip(models, features, strict=True)
    ]
    assert expected[0]["loss"] != expected[1]["loss"]
    program.shuffle()
    program.step()
    names, values = program.readings()
    for run, terms in enumerate(expected):
        for name, value in zip(names, values[0, :, run], strict=True):
            torch.testing.assert_close(value, terms[name].detach(), rtol=1e-6, atol=1e-6)


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


def test_most_likely_sizes_are_proportional_to_the_odds_of_responsibilities() -> None:
    """With the responsibilities as weights they are less unequal."""
    shares, n = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64), 1000
    means = torch.tensor([[0.0], [50.0], [100.0]], dtype=torch.float64)
    mixture = Mixture(torch.zeros(3).log_softmax(-1), means, torch.ones_like(means))
    members = torch.arange(3).repeat_interleave((n * shares).long())
    posterior = Posterior(means[members], torch.zeros(n, 1, dtype=torch.float64))
    found = {}
    for weights in ("odds", "responsibilities"):
        model = MixtureVAE(4, ClusteringConfig(clusters=3, weights=weights), "gaussian")
        distance = divergences(posterior, mixture)
        _, log_weights = partition_parameters(model, posterior, mixture, distance)
        found[weights] = FisherHypergeometric(n, log_weights).mode
    torch.testing.assert_close(found["odds"].double(), n * shares, atol=2, rtol=0)
    assert found["responsibilities"][0] < 570
    assert found["responsibilities"][2] > 120

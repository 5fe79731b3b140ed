"""The loss of DRPM-VC against all partitions and all orders."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Normal

from drpm.clustering import models
from drpm.clustering.config import AutoencoderConfig, ClusteringConfig
from drpm.clustering.mixtures import Mixture
from drpm.clustering.models import (
    OBJECTIVES,
    MixtureVAE,
    bound_terms,
    divergences,
    exact_terms,
    partition_objective,
    partition_parameters,
)
from drpm.distributions import AffinityPartition, FisherHypergeometric, RandomPartition
from drpm.distributions.partitions import Parts, fill
from drpm.nn.encoders import Posterior
from drpm.training.config import TrainingConfig
from drpm.training.program import Batch, Program
from tests import oracles
from tests.clustering.toys import (
    CLOSE,
    divergence_table,
    make_batch,
    make_model,
    place_on_rows,
    posterior_of,
    schedule,
    settings,
)
from tests.oracles import Enumeration, assert_expectation, assert_mean, generator, normal

TERMS = ("reconstruction", "latent", "sizes", "order")


def naive_parameters(model: MixtureVAE, batch: Batch) -> tuple[Tensor, Tensor]:
    """Log-scores and log-weights of a batch by the settings, one row at a time."""
    posterior, mixture = posterior_of(model, batch), model.prior.mixture()
    table, clusters = divergence_table(posterior, mixture), len(mixture.means)
    u = 10 ** float(model.log10_scale.detach())
    scores: Any = [
        u * (clusters - min(range(clusters), key=lambda k: float(row[k]))) for row in table
    ]
    if model.config.partition == "affinity":
        log_odds = [
            [float(-row[k] - torch.logsumexp(-row[k + 1 :], 0)) for row in table]
            for k in range(clusters - 1)
        ]
        scores = [[u * x for x in row] for row in log_odds] + [[0.0] * len(table)]
    clusters_of = Normal(mixture.means, mixture.variances.sqrt())
    shares = clusters_of.log_prob(posterior.mean[:, None]).sum(-1).detach().softmax(-1)
    return torch.tensor(scores, dtype=torch.float64), (shares.mean(0) + 1e-6).log()


def size_log_prob(sizes: Tensor, log_weights: Tensor) -> Tensor:
    law = oracles.fisher(int(sizes.sum()), log_weights)
    return law.log_mass[(law.values == sizes.long()).all(1)][0]


def fills_of_size(log_scores: Tensor, sizes: Tensor) -> Enumeration:
    """All partitions of these sizes, with their masses given the sizes.

    The scores are (n,), or (K, n) if every subset has its own.
    """
    n, groups = log_scores.shape[-1], len(sizes)
    values = oracles.to_matrix(oracles.assignments(n, groups), groups)
    fits = (values.sum(-1) == sizes).all(-1)
    by_row = log_scores.dim() == 2
    log_mass = oracles.affinity_fills(log_scores) if by_row else oracles.fills(log_scores, groups)
    return Enumeration(values[fits], log_mass[fits])


def best_orders(log_scores: Tensor, values: Tensor) -> Tensor:
    """The log-mass of the best order of each partition; with scores (n,), of the best of all."""
    if log_scores.dim() == 1:
        return oracles.plackett_luce(log_scores).log_mass.max().expand(len(values))
    found = []
    for labels in values.argmax(-2):
        orders = oracles.permutations(log_scores.shape[-1])
        fitting = orders[(labels[orders].diff(dim=-1) >= 0).all(-1)]
        masses = [oracles.affinity_order_log_prob(log_scores, labels, order) for order in fitting]
        found.append(torch.stack(masses).max())
    return torch.stack(found)


CASES = [(4, 3, 0), (5, 2, 1), (5, 1, 4)]
PARTITIONS = {"order": RandomPartition, "affinity": AffinityPartition}


def law_and_prior(kind: str, n: int, groups: int, seed: int) -> tuple[Any, Mixture]:
    log_scores, log_weights = oracles.parameters(n, groups, seed=seed)
    if kind == "affinity":
        log_scores = 2 * normal(groups, n, seed=seed + 20)
    weights = normal(groups, seed=seed + 50).log_softmax(-1)
    mixture = Mixture(weights, torch.zeros(groups, 1), torch.ones(groups, 1))
    return PARTITIONS[kind](log_scores, log_weights), mixture


@pytest.mark.parametrize("kind", PARTITIONS)
@pytest.mark.parametrize(("n", "groups", "seed"), CASES)
def test_terms_against_all_partitions(n: int, groups: int, seed: int, kind: str) -> None:
    """For the partitions of every vector of sizes, and all orders of each."""
    law, mixture = law_and_prior(kind, n, groups, seed)
    scores = law.log_scores if kind == "order" else law.log_affinities
    for sizes in oracles.size_vectors(n, [n] * groups):
        fits = fills_of_size(scores, sizes)
        parts = Parts(fits.values, fits.values.sum(-1), law.most_likely_order(fits.values))
        gap = size_log_prob(sizes, law.log_weights) - size_log_prob(sizes, mixture.log_weights)
        count = math.prod(math.factorial(size) for size in sizes.tolist())
        # The prior has the same mass for all partitions of these sizes, and for all orders.
        exact, bound = exact_terms(parts, law, mixture), bound_terms(parts, law, mixture)
        ratios = fits.log_mass + math.log(math.factorial(n) / count)
        torch.testing.assert_close(exact[0], gap, **CLOSE)
        torch.testing.assert_close(exact[1], ratios.mean(), **CLOSE)
        torch.testing.assert_close(bound[0], gap + math.log(count), **CLOSE)
        best = best_orders(scores, fits.values)
        expected = best.mean() + math.log(math.factorial(n))
        torch.testing.assert_close(bound[1], expected, **CLOSE)
        assert (math.log(count) + best + math.log(math.factorial(n)) >= ratios - 1e-9).all()


@pytest.mark.parametrize("kind", PARTITIONS)
@pytest.mark.parametrize("objective", ["bounds", "exact"])
def test_the_gradient_of_a_term_is_that_of_its_expectation(kind: str, objective: str) -> None:
    """The samples depend on the scores too: their own mass alone has a gradient of mean zero."""
    mixture = law_and_prior(kind, 4, 3, 0)[1]
    base, sizes = torch.tensor([1.5, -1.0, 0.5, -0.5]).double(), torch.tensor([2, 1, 1])
    if kind == "affinity":
        base = torch.stack([base, base.roll(1), base.roll(2)])
    scale = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    fits = fills_of_size(scale * base, sizes)
    costs = fits.log_mass if objective == "exact" else best_orders(scale * base, fits.values)
    (expected,) = torch.autograd.grad((fits.mass * costs).sum(), scale)
    repeats, draws = 60, 40
    law = PARTITIONS[kind](scale * base, torch.zeros(3, dtype=torch.float64))
    noise = torch.rand(repeats * draws, *base.shape, dtype=base.dtype, generator=generator())
    noisy = (scale * base).detach() - (-noise.log()).log()
    if kind == "affinity":
        samples = law.fill_parts(sizes, noisy)
    else:
        order = noisy.argsort(-1, descending=True)
        samples = fill(sizes, order, base.dtype)
    estimates = []
    for first in range(0, repeats * draws, draws):
        some = slice(first, first + draws)
        parts = Parts(samples.Y[some], sizes.double().expand(draws, -1), samples.order[some])
        term = (exact_terms if objective == "exact" else bound_terms)(parts, law, mixture)[1]
        estimates.append(torch.autograd.grad(term, scale, retain_graph=True)[0])
    if kind == "order" and objective == "bounds":  # the best of all orders is not random
        torch.testing.assert_close(estimates[0], expected)
        return
    # Student's t with 59 degrees of freedom: 5.5e-6.
    error = assert_mean(torch.stack(estimates), expected)
    assert abs(expected) > 5 * error  # zero is far off


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("objective", ["bounds", "exact"])
@pytest.mark.parametrize(("n", "clusters", "seed"), [(4, 3, 0), (5, 2, 1), (5, 3, 2), (4, 1, 3)])
@torch.no_grad()
def test_the_loss_against_all_partitions(
    n: int, clusters: int, seed: int, objective: str, partition: str
) -> None:
    draws, gamma, delta, beta = 2_000, 1.7, 0.3, 0.7
    config = settings(
        clusters,
        partitions=draws,
        exact_partitions=draws,
        objective=objective,
        partition=partition,
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
    sizes = torch.tensor(oracles.fisher_mode(n, log_weights.tolist(), [n] * clusters))
    # Every cluster is the nearest of some row, and none stays empty.
    assert partition == "affinity" or len(log_scores.unique()) == clusters
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
        costs = best_orders(log_scores, law.values) + math.log(math.factorial(n))
    else:
        costs = law.log_mass + math.log(math.factorial(n) / count)
    assert_expectation(found["order"] * n**2 / delta, law, costs, draws)


def test_a_negative_term_of_the_sizes_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds allow it: an order that the prior prefers, in clusters of one row each."""
    below, zero = torch.tensor(-1.0).double(), torch.zeros(()).double()
    monkeypatch.setattr(models, "bound_terms", lambda *given: (below, zero))
    found = partition_objective(make_model(settings()), make_batch(), schedule(), generator())
    assert found["sizes"] == 0


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
        # Nor has the scale where large affinities leave the partition no choice.
        model.log10_scale.fill_(-3.0 if config.partition == "affinity" else -0.3)
    partition_objective(model, batch, schedule(), generator())[term].backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def moved(found: dict[str, Tensor]) -> set[str]:
    return {name for name, gradient in found.items() if gradient.any()}


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("objective", ["bounds", "exact"])
def test_what_each_term_trains(objective: str, partition: str) -> None:
    """The partition's parameters carry no gradient but that of the scale."""
    prior = {"prior.means", "prior.log_variances"}
    assert moved(gradients(objective, "order", partition=partition)) == {"log10_scale"}
    assert moved(gradients(objective, "sizes", partition=partition)) == {"prior.log_weights"}
    layers = ("mean", "log_variance")
    heads = {f"autoencoder.{head}.{x}" for head in layers for x in ("weight", "bias")}
    encoder = {"autoencoder.encoder.0.weight", "autoencoder.encoder.0.bias"}
    trained = moved(gradients(objective, "latent", partition=partition))
    assert trained == prior | heads | encoder | {"log10_scale"}
    fit = moved(gradients(objective, "reconstruction", partition=partition))
    assert fit >= heads | encoder
    assert all(name.startswith("autoencoder.") for name in fit)


@pytest.mark.parametrize(
    ("method", "objective", "partition"),
    [("vade", "bounds", "order"), *itertools.product(["drpm-vc"], ["bounds", "exact"], PARTITIONS)],
)
def test_stacked_runs_have_the_terms_of_their_own_models(
    method: str, objective: str, partition: str
) -> None:
    """Where nothing is random: certain codes, clusters far apart, and scores likewise."""
    network = AutoencoderConfig(2, (2,), (7,))
    config = settings(
        clusters=2, method=method, objective=objective, partition=partition, network=network
    )
    both, features = [make_model(config, seed=seed) for seed in (1, 2)], []
    rows = make_batch(6)["rows"]
    for model, labels in zip(both, ([0, 1, 0, 0, 1, 0], [1, 1, 0, 1, 1, 0]), strict=True):
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
    program = Program(
        both,
        OBJECTIVES[method],
        {"rows": rows},
        training,
        run_data={"features": torch.stack(features)},
        schedules={"temperature": torch.ones_like, "beta": torch.ones_like},
    )
    expected = [
        OBJECTIVES[method](model, {"rows": rows, "features": own}, schedule(1.0, 1.0), generator())
        for model, own in zip(both, features, strict=True)
    ]
    assert expected[0]["loss"] != expected[1]["loss"]
    program.shuffle()
    program.step()
    names, values = program.readings()
    for run, terms in enumerate(expected):
        for name, value in zip(names, values[0, :, run], strict=True):
            torch.testing.assert_close(value, terms[name].detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("objective", ["bounds", "exact"])
def test_the_loss_by_affinity_is_one_graph(objective: str) -> None:
    """A compiled step has no breaks, where it would read numbers back."""
    model = make_model(settings(partition="affinity", objective=objective))
    batch, given = make_batch(), schedule()

    def loss() -> Tensor:
        return partition_objective(model, batch, given, None)["loss"]

    torch.manual_seed(0)
    expected = loss()
    torch.manual_seed(0)
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(), expected)


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

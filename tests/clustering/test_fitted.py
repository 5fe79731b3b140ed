"""Fitted clusterings: predictions, samples, saving and scores."""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

from drpm.clustering.config import AutoencoderConfig, ClusteringConfig
from drpm.clustering.fitted import FittedClustering, assign, clustering_scores, load_clustering
from drpm.clustering.mixtures import Mixture
from drpm.clustering.models import Autoencoder
from drpm.clustering.pretraining import projector
from tests import oracles
from tests.oracles import FALSE_ALARM, chi_square_p_value, count_values, generator, normal

COLUMNS, CLUSTERS, LATENT = 6, 3, 2
NETWORK = AutoencoderConfig(LATENT, (8, 5), (7,))


def make(method: str, likelihood: str = "bernoulli") -> FittedClustering:
    config = ClusteringConfig(method=method, clusters=CLUSTERS, network=NETWORK)  # type: ignore[arg-type]
    columns = COLUMNS if method == "gmm" else LATENT
    torch.manual_seed(1)
    mixture = Mixture(
        torch.tensor([0.7, 0.25, 0.05]).log(),
        normal(CLUSTERS, columns).float(),
        normal(CLUSTERS, columns, seed=1).exp().float(),
    )
    parts: dict[str, Any] = {}
    if method != "gmm":
        parts["autoencoder"] = Autoencoder(COLUMNS, NETWORK, likelihood)
        with torch.no_grad():
            parts["autoencoder"].mean.weight.mul_(8)
    if method == "contrastive-head":
        parts["head"] = projector(NETWORK.encoder[-1], CLUSTERS)
    return FittedClustering(config, torch.Size([1, 2, 3]), mixture, **parts)


def some_rows(count: int = 20) -> Tensor:
    return torch.rand(count, COLUMNS, generator=generator(3))


def densities(points: Tensor, mixture: Mixture) -> Tensor:
    """(n, K), without weights."""
    law = MultivariateNormal(mixture.means, torch.diag_embed(mixture.variances))
    return law.log_prob(points[:, None]).exp()


@pytest.mark.parametrize("method", ["drpm-vc", "latent-gmm", "gmm"])
@torch.no_grad()
def test_probabilities_by_densities(method: str) -> None:
    """The partition model knows no weights of single rows."""
    fitted, rows = make(method), some_rows()
    points = rows
    if fitted.autoencoder is not None:
        points = fitted.autoencoder.mean(fitted.autoencoder.encoder(rows))
    joint = densities(points, fitted.mixture)
    if method != "drpm-vc":
        joint = joint * torch.tensor([0.7, 0.25, 0.05])
    expected = joint / joint.sum(-1, keepdim=True)
    torch.testing.assert_close(fitted.predict_proba(rows), expected, rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_vade_judges_by_a_drawn_code() -> None:
    fitted, rows = make("vade"), some_rows(2_000)
    assert fitted.autoencoder is not None
    # Certain codes are drawn as they are.
    fitted.autoencoder.reset_variance(-60.0)
    joint = densities(fitted.embed(rows), fitted.mixture) * fitted.mixture.log_weights.exp()
    expected = joint / joint.sum(-1, keepdim=True)
    found = fitted.predict_log_proba(rows, sampled=True).exp()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    # Uncertain ones are not, and their means are.
    fitted.autoencoder.reset_variance(1.0)
    found = fitted.predict_log_proba(rows, sampled=True).exp()
    assert not torch.allclose(found, expected, atol=0.1)
    torch.testing.assert_close(fitted.predict_proba(rows), expected, rtol=1e-4, atol=1e-6)


def test_among_rows_the_bound_is_the_density() -> None:
    fitted, rows = make("gmm"), some_rows()
    law = MixtureSameFamily(
        Categorical(logits=fitted.mixture.log_weights),
        MultivariateNormal(fitted.mixture.means, torch.diag_embed(fitted.mixture.variances)),
    )
    torch.testing.assert_close(fitted.lower_bounds(rows), law.log_prob(rows), rtol=1e-4, atol=1e-4)


def test_samples_follow_their_gaussians() -> None:
    fitted, draws = make("gmm"), 3_000
    clusters = torch.arange(CLUSTERS).repeat_interleave(draws)
    rows = fitted.sample(clusters, generator()).double().reshape(CLUSTERS, draws, COLUMNS)
    means, variances = fitted.mixture.means.double(), fitted.mixture.variances.double()
    errors = (rows.mean(1) - means) / (variances / draws).sqrt()
    squares = (((rows - means[:, None]) ** 2).sum(1) / variances).numpy()
    law = scipy.stats.chi2(draws)
    # 18 means and 18 variances, two-sided.
    rate = FALSE_ALARM / 72
    assert scipy.stats.norm.sf(errors.abs().numpy()).min() > rate
    assert min(law.cdf(squares).min(), law.sf(squares).min()) > rate


def test_a_partition_of_rows_without_preference() -> None:
    """Sizes by Fisher's law; given them, all partitions are alike. Two tests at half the rate."""
    fitted, count, draws = make("drpm-vc"), 3, 800
    source = generator()
    drawn = torch.stack([fitted.draw_partition(count, source) for _ in range(draws)])
    assert drawn.shape == (draws, count)
    sizes = torch.nn.functional.one_hot(drawn, CLUSTERS).sum(1)
    law = oracles.fisher(count, fitted.mixture.log_weights)
    counts = count_values(sizes, law.values)
    assert chi_square_p_value(counts, law.mass.numpy()) > FALSE_ALARM / 2
    whole = oracles.random_partition(torch.zeros(count), fitted.mixture.log_weights.double())
    labels = whole.values.argmax(-2)
    assert chi_square_p_value(count_values(drawn, labels), whole.mass.numpy()) > FALSE_ALARM / 2


@pytest.mark.parametrize("method", ["drpm-vc", "vade", "latent-gmm", "gmm", "contrastive-head"])
def test_round_trip(tmp_path: Path, method: str) -> None:
    fitted, rows = make(method, "gaussian" if method == "vade" else "bernoulli"), some_rows()
    fitted.save(tmp_path / "model")
    again = load_clustering(tmp_path / "model")
    assert again.config == fitted.config
    assert again.shape == fitted.shape == torch.Size([1, 2, 3])
    probs = fitted.predict_proba(rows)
    torch.testing.assert_close(probs.sum(-1), torch.ones(20))
    assert torch.equal(fitted.predict(rows), probs.argmax(-1))
    assert torch.equal(again.predict_proba(rows), probs)
    assert torch.equal(again.lower_bounds(rows), fitted.lower_bounds(rows))
    clusters = torch.tensor([0, 1, 2])
    assert torch.equal(again.sample(clusters, generator()), fitted.sample(clusters, generator()))


def test_rows_of_raw_data(tmp_path: Path) -> None:
    """Large values that differ by little: single precision would not tell them apart."""
    scaled = replace(
        make("gmm"), shift=torch.full((6,), 1e9).double(), scale=torch.full((6,), 0.5).double()
    )
    scaled.save(str(tmp_path / "model"))
    raw = torch.arange(12.0).double().reshape(2, 1, 2, 3) + 1e9
    for model in (scaled, load_clustering(str(tmp_path / "model"))):
        rows = model.to_rows(raw)
        assert rows.dtype == torch.float32
        assert rows.tolist() == (2 * torch.arange(12.0)).reshape(2, 6).tolist()
    assert make("gmm").to_rows(raw - 1e9).tolist() == torch.arange(12.0).reshape(2, 6).tolist()


def best_total(log_probs: Tensor, low: int, high: int) -> float:
    """Row by row, the best labels for every vector of sizes; of these the best within limits."""
    clusters, best = log_probs.shape[1], {(0,) * log_probs.shape[1]: 0.0}
    for row in log_probs.tolist():
        found: dict[tuple[int, ...], float] = {}
        for (sizes, total), k in itertools.product(best.items(), range(clusters)):
            more = (*sizes[:k], sizes[k] + 1, *sizes[k + 1 :])
            found[more] = max(found.get(more, -math.inf), total + row[k])
        best = found
    return max(total for sizes, total in best.items() if low <= min(sizes) and max(sizes) <= high)


def test_the_assignment_is_the_best_of_all() -> None:
    """In 500 random cases; in a quarter of them the limits force all sizes."""
    rng = np.random.default_rng(0)
    for case in range(500):
        rows, clusters, forced = int(rng.integers(1, 13)), int(rng.integers(1, 5)), case % 4 == 0
        rows = clusters * max(1, rows // clusters) if forced else rows
        low, high = rows // clusters, -(-rows // clusters)
        if not forced:
            low, high = int(rng.integers(low + 1)), int(rng.integers(high, rows + 1))
        limits = [(low, high), (low, None), (None, high), (None, None)]
        low, high = limits[rng.integers(3 if forced else 4)]
        logits = rng.choice([1.0, 300.0]) * rng.normal(size=(rows, clusters))
        log_probs = torch.from_numpy(logits).log_softmax(-1)
        labels = assign(log_probs, low, high)
        assert labels.shape == (rows,)
        sizes = np.bincount(labels, minlength=clusters)
        assert len(sizes) == clusters
        assert sizes.min() >= (low or 0)
        assert sizes.max() <= (high or rows)
        found = float(log_probs[range(rows), labels].sum())
        assert found == pytest.approx(best_total(log_probs, low or 0, high or rows), rel=1e-9)


@pytest.mark.parametrize("sizes", [(1, 4), (4, 1), (3, 5), (5, 3)])
def test_no_matching_has_more_hits(sizes: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(40) % sizes[0])
    noisy = np.where(rng.random(40) < 0.6, labels, rng.integers(sizes[1], size=40))
    clusters = noisy % sizes[1]
    clusters[: sizes[1]] = np.arange(sizes[1])  # every value occurs
    found = clustering_scores(labels.tolist(), torch.from_numpy(clusters))
    names = [*range(sizes[0]), *[-1] * sizes[1]]  # some clusters may have no label
    best = max(
        sum(renamed[c] == label for label, c in zip(labels, clusters, strict=True))
        for renamed in set(itertools.permutations(names, sizes[1]))
    )
    assert found["accuracy"] == best / len(labels)
    assert found["nmi"] == normalized_mutual_info_score(labels, clusters)
    assert found["ari"] == adjusted_rand_score(labels, clusters)

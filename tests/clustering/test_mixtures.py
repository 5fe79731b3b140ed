"""Mixtures against torch's densities and scikit-learn's fits from the same start."""

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.mixture import GaussianMixture
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from drpm.clustering import mixtures
from drpm.clustering.mixtures import Mixture, estimate_mixture, fit_mixture
from tests.oracles import FALSE_ALARM, chi_square_p_value, generator, normal


def blobs(n: int, d: int, components: int, spread: float, seed: int = 0) -> Tensor:
    """Points around some centers: far apart for a large spread, overlapping for a small one."""
    centers = spread * normal(components, d, seed=seed)
    scales = normal(components, d, seed=seed + 1).exp().clamp(0.3, 3.0)
    chosen = torch.arange(n) % components
    return centers[chosen] + scales[chosen] * normal(n, d, seed=seed + 2)


def digits() -> Tensor:
    """Pixels from 0 to 16; some columns are constant."""
    return torch.from_numpy(load_digits().data[:600])


DATA = {
    "apart": (lambda: blobs(600, 5, 4, 6.0), 4),
    "overlapping": (lambda: blobs(800, 3, 6, 0.7), 6),
    "far away": (lambda: blobs(600, 5, 4, 6.0) + 1_000.0, 4),
    "digits": (digits, 10),
    "one component": (lambda: blobs(50, 2, 3, 1.0), 1),
}


def some_points(x: Tensor, count: int) -> Tensor:
    return x[torch.randperm(len(x), generator=generator(0))[:count]]


def fit_from(seeds: Tensor, x: Tensor, monkeypatch: pytest.MonkeyPatch, **kwargs: Any) -> Mixture:
    """A fit whose restarts (R, K, d) start from given seeds."""
    monkeypatch.setattr(mixtures, "_kmeans_plusplus", lambda *args: seeds - x.mean(0))
    return fit_mixture(x, seeds.shape[1], restarts=len(seeds), **kwargs)


def fitted_by_sklearn(x: Tensor, seeds: Tensor, reg_covar: float) -> GaussianMixture:
    """From the same seeds (K, d), with the smallest variances and equal weights."""
    return GaussianMixture(
        len(seeds),
        covariance_type="diag",
        reg_covar=reg_covar,
        weights_init=np.full(len(seeds), 1 / len(seeds)),
        means_init=seeds.numpy(),
        precisions_init=np.full(seeds.shape, 1 / reg_covar),
    ).fit(x.numpy())


def assert_same(found: Mixture, other: GaussianMixture, tolerance: float = 1e-6) -> None:
    close = {"rtol": tolerance, "atol": tolerance}
    np.testing.assert_allclose(found.log_weights.exp(), other.weights_, **close)
    np.testing.assert_allclose(found.means, other.means_, **close)
    np.testing.assert_allclose(found.variances, other.covariances_, **close)


def assert_close(found: Mixture, other: Mixture, tolerance: float = 1e-9) -> None:
    for one, two in zip(found, other, strict=True):
        torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("leading", [(), (3, 2)])
def test_densities_are_those_of_torch(leading: tuple[int, ...]) -> None:
    mixture = Mixture(
        normal(*leading, 4).log_softmax(-1),
        2 * normal(*leading, 4, 3, seed=1),
        normal(*leading, 4, 3, seed=2).exp(),
    )
    points = normal(*leading, 5, 3, seed=7)
    law = Independent(Normal(mixture.means, mixture.variances.sqrt()), 1)
    expected = torch.stack([law.log_prob(points[..., i : i + 1, :]) for i in range(5)], -2)
    torch.testing.assert_close(mixture.log_densities(points), expected)
    whole = MixtureSameFamily(Categorical(logits=mixture.log_weights), law)
    expected = torch.stack([whole.log_prob(points[..., i, :]) for i in range(5)], -1)
    torch.testing.assert_close(mixture.log_prob(points), expected)


@pytest.mark.parametrize("name", DATA)
def test_a_fit_is_that_of_sklearn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, components = DATA[name]
    x = make()
    seeds = some_points(x, components)
    found = fit_from(seeds[None], x, monkeypatch, reg_covar=1e-3)
    assert_same(found, fitted_by_sklearn(x, seeds, 1e-3))
    narrow = fit_mixture(x.float(), components, restarts=1, reg_covar=1e-3)
    assert {part.dtype for part in narrow} == {torch.float32}


def test_a_component_without_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weight is log(10 eps / 300) = -39.5, whatever the points; streams 0 to 20 were tried."""
    x = torch.tensor([[-5.0, 0.0], [5.0, 0.0]]).repeat(150, 1) + 0.3 * normal(300, 2)
    x -= x.mean(0)  # scikit-learn sends such a component to the origin, we to the mean
    seeds = torch.stack([x[0], torch.full((2,), 1e6), x[1]])
    found = fit_from(seeds[None], x, monkeypatch, reg_covar=1e-3)
    assert_same(found, fitted_by_sklearn(x, seeds, 1e-3))
    assert found.log_weights[1] < -30
    moved = fit_from(seeds[None] + 64, x + 64, monkeypatch, reg_covar=1e-3)
    assert_close(moved, found._replace(means=found.means + 64))


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    x = blobs(300, 3, 4, 2.0)
    whole = fit_mixture(x, 4, restarts=1, generator=generator())
    responsibilities = normal(300, 4).softmax(-1)
    estimate = estimate_mixture(x, responsibilities)
    monkeypatch.setattr(mixtures, "_BLOCK_CPU", 1)
    monkeypatch.setattr(mixtures, "_SMALLEST_BLOCK", 37)
    assert_close(fit_mixture(x, 4, restarts=1, generator=generator()), whole)
    assert_close(estimate_mixture(x, responsibilities), estimate)


def test_an_estimate_is_weighted_moments() -> None:
    x, r = normal(30, 3), normal(30, 4, seed=1).softmax(-1)
    found = estimate_mixture(x, r, reg_covar=0.5)
    sizes = r.sum(0)
    means = torch.einsum("nk,nd->kd", r, x) / sizes[:, None]
    squares = (x[:, None] - means).square()
    variances = torch.einsum("nk,nkd->kd", r, squares) / sizes[:, None] + 0.5
    assert_close(found, Mixture((sizes / 30).log(), means, variances), 1e-7)


def test_seeds_follow_the_law_of_greedy_kmeans_plus_plus() -> None:
    x = torch.tensor([0.0, 0.3, 1.0, 2.5, 2.7, 6.0], dtype=torch.float64)
    squares = (x[:, None] - x).square()
    # The sum of the distances that is left with a first and a second seed. Between second seeds
    # that leave the same, rounding decides: what is left is compared, not the seed.
    left = torch.minimum(squares[:, None], squares).sum(-1).round(decimals=9)
    law: Counter[tuple[int, float]] = Counter()
    for first, one, two in itertools.product(range(6), repeat=3):  # the better of two candidates
        probs = squares[first] / squares[first].sum()
        better = min(left[first, one].item(), left[first, two].item())
        law[first, better] += float(probs[one] * probs[two]) / 6

    seeds = mixtures._kmeans_plusplus(x[:, None], 2, 20_000, generator())[..., 0]
    index = (seeds[..., None] - x).abs().argmin(-1)
    found = Counter((first, left[first, second].item()) for first, second in index.tolist())
    assert found.keys() <= law.keys()
    counts, masses = (np.array([table[key] for key in law]) for table in (found, law))
    # The p-value is the false-alarm rate, nearly.
    assert chi_square_p_value(counts, masses) > FALSE_ALARM


def test_the_best_restart_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """All starts but one have two points of one group, and none of another that is far from it."""
    centers = torch.tensor([0.0, 20.0, 100.0, 120.0, 200.0]).double()[:, None]
    x = centers[torch.arange(300) % 5] + normal(300, 3)
    index = torch.arange(5) + 7 * torch.eye(5, dtype=torch.long)
    index[3, 3] = 3
    alone = [fit_from(x[chosen][None], x, monkeypatch) for chosen in index]
    bounds = torch.stack([mixture.log_prob(x).mean() for mixture in alone])
    assert bounds[3] - bounds[[0, 1, 2, 4]].max() > 0.1
    assert_close(fit_from(x[index], x, monkeypatch), alone[3])


def test_few_or_equal_points() -> None:
    x = torch.tensor([[2.0, -1.0]])
    found = fit_mixture(x, 1, reg_covar=1e-3)
    assert_close(found, Mixture(torch.zeros(1), x, torch.full((1, 2), 1e-3)), 1e-6)
    found = fit_mixture(10 * normal(6, 2), 6, generator=generator())
    assert found.log_densities(10 * normal(6, 2)).argmax(-1).unique().numel() == 6
    same = torch.full((20, 2), 7.0)
    found = fit_mixture(same, 3, reg_covar=1e-3, generator=generator())
    torch.testing.assert_close(found.variances, torch.full((3, 2), 1e-3))
    torch.testing.assert_close(found.means, torch.full((3, 2), 7.0))


@pytest.mark.parametrize("x", [torch.tensor([[0.0], [math.nan]]), 1e200 * normal(4, 2)])
def test_points_without_finite_densities(x: Tensor) -> None:
    with pytest.raises(ValueError, match="x must have finite log-densities"):
        fit_mixture(x, 2)


@pytest.mark.cuda
def test_a_gpu_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x = blobs(3_000, 4, 5, 6.0, seed=1)
    seeds = some_points(x, 5)[None]
    found = fit_from(seeds.cuda(), x.cuda(), monkeypatch)
    assert found.means.is_cuda
    assert_close(Mixture(*(part.cpu() for part in found)), fit_from(seeds, x, monkeypatch))
    monkeypatch.undo()
    on_gpu = fit_mixture(x.cuda(), 5, generator=generator(device="cuda"))
    other = fit_mixture(x, 5, generator=generator()).log_prob(x).mean()
    found_bound = Mixture(*(part.cpu() for part in on_gpu)).log_prob(x).mean()
    torch.testing.assert_close(found_bound, other, rtol=0, atol=2e-3)

"""Mixtures against torch's densities and scikit-learn's fits from the same start."""

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.mixture import GaussianMixture
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from drpm.clustering import mixtures
from drpm.clustering.metrics import accuracy
from drpm.clustering.mixtures import (
    FittedMixture,
    Mixture,
    estimate_mixture,
    fit_mixture,
    refine_mixture,
)
from tests.oracles import FALSE_ALARM, chi_square_p_value, generator, normal


def blobs(n: int, d: int, components: int, spread: float, seed: int = 0) -> Tensor:
    """Points around some centres: far apart for a large spread, overlapping for a small one."""
    centres = spread * normal(components, d, seed=seed)
    scales = normal(components, d, seed=seed + 1).exp().clamp(0.3, 3.0)
    chosen = torch.arange(n) % components
    return centres[chosen] + scales[chosen] * normal(n, d, seed=seed + 2)


def digits() -> Tensor:
    """Pixels from 0 to 16; some columns are constant."""
    return torch.from_numpy(load_digits().data)


DATA = {
    "apart": (lambda: blobs(600, 5, 4, 6.0), 4),
    "overlapping": (lambda: blobs(800, 3, 6, 0.7), 6),
    "far away": (lambda: blobs(600, 5, 4, 6.0) + 1_000.0, 4),
    "digits": (digits, 10),
    "one component": (lambda: blobs(50, 2, 3, 1.0), 1),
}


def random_mixture(*leading: int, components: int = 3, d: int = 2, seed: int = 0) -> Mixture:
    return Mixture(
        normal(*leading, components, seed=seed).log_softmax(-1),
        3 * normal(*leading, components, d, seed=seed + 1),
        normal(*leading, components, d, seed=seed + 2).exp(),
    )


def random_start(x: Tensor, components: int, seed: int = 0) -> Mixture:
    """Some of the points, with the variances of all."""
    means = x[torch.randperm(len(x), generator=generator(seed))[:components]]
    variances = (x.var(0) + 1e-3).expand_as(means)
    weights = torch.full((components,), 1 / components, dtype=x.dtype)
    return Mixture(weights.log(), means, variances)


def fitted_by_sklearn(x: Tensor, start: Mixture, **settings: Any) -> GaussianMixture:
    weights, means, variances = start.log_weights.exp(), start.means, start.variances
    return GaussianMixture(
        len(weights),
        covariance_type="diag",
        weights_init=weights.numpy(),
        means_init=means.numpy(),
        precisions_init=variances.reciprocal().numpy(),
        **settings,
    ).fit(x.numpy())


def assert_same(fit: FittedMixture, other: GaussianMixture, tolerance: float = 1e-6) -> None:
    close = {"rtol": tolerance, "atol": tolerance}
    np.testing.assert_allclose(fit.mixture.log_weights.exp(), other.weights_, **close)
    np.testing.assert_allclose(fit.mixture.means, other.means_, **close)
    np.testing.assert_allclose(fit.mixture.variances, other.covariances_, **close)
    np.testing.assert_allclose(fit.lower_bound, other.lower_bound_, **close)
    assert fit.iterations == other.n_iter_
    assert fit.converged == other.converged_


def assert_close(fit: FittedMixture, other: FittedMixture, tolerance: float = 1e-9) -> None:
    pairs = zip((*fit.mixture, fit.lower_bound), (*other.mixture, other.lower_bound), strict=True)
    for one, two in pairs:
        torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance)
    assert torch.equal(fit.iterations, other.iterations)
    assert torch.equal(fit.converged, other.converged)


def part(fit: FittedMixture, *index: int) -> FittedMixture:
    """The fit of one data set of several."""
    return FittedMixture(
        Mixture(*(tensor[index] for tensor in fit.mixture)),
        fit.lower_bound[index],
        fit.iterations[index],
        fit.converged[index],
    )


# ---------------------------------------------------------------------------------------------
# densities


@pytest.mark.parametrize(
    ("own", "points"), [((), (7,)), ((2,), (2, 7)), ((2,), (7,)), ((), (4, 2, 7)), ((3, 1), (2, 7))]
)
def test_densities_are_those_of_torch(own: tuple[int, ...], points: tuple[int, ...]) -> None:
    mixture = random_mixture(*own)
    x = 3 * normal(*points, 2, seed=9)
    # For torch the points are the last dimension of the batch.
    log_weights = mixture.log_weights.unsqueeze(-2)
    means, variances = mixture.means.unsqueeze(-3), mixture.variances.unsqueeze(-3)
    components = Independent(Normal(means, variances.sqrt()), 1)
    law = MixtureSameFamily(Categorical(logits=log_weights), components)
    log_prob = law.log_prob(x)
    joint = components.log_prob(x.unsqueeze(-2)) + log_weights
    torch.testing.assert_close(mixture.log_joint(x), joint)
    torch.testing.assert_close(mixture.log_prob(x), log_prob)
    torch.testing.assert_close(mixture.responsibilities(x), (joint - log_prob[..., None]).exp())
    assert torch.equal(mixture.predict(x), joint.argmax(-1))


def test_densities_far_from_the_origin() -> None:
    mixture = random_mixture()
    x = normal(20, 2)
    far = mixture._replace(means=mixture.means + 2.0**20)
    torch.testing.assert_close(far.log_joint(x + 2.0**20), mixture.log_joint(x))


def test_densities_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    mixture, x = random_mixture(2), normal(2, 50, 2)
    whole = mixture.log_joint(x)
    monkeypatch.setattr(mixtures, "_block_size", lambda numbers, device: 7)
    torch.testing.assert_close(mixture.log_joint(x), whole)


def test_densities_have_gradients() -> None:
    inputs = [t.requires_grad_() for t in (*random_mixture(), normal(4, 2, seed=5))]
    assert torch.autograd.gradcheck(lambda *all_: Mixture(*all_[:3]).log_joint(all_[3]), inputs)


def test_densities_keep_the_type() -> None:
    mixture = Mixture(*(t.float() for t in random_mixture()))
    assert mixture.log_joint(torch.zeros(3, 2)).dtype == torch.float32
    assert mixture.log_prob(torch.zeros(3, 2, dtype=torch.float64)).dtype == torch.float64


def test_densities_refuse_points_of_other_dimensions() -> None:
    with pytest.raises(ValueError, match=r"x must have the shape \(..., n, 2\), but got a tensor"):
        random_mixture().log_joint(torch.zeros(4, 3))
    with pytest.raises(ValueError, match="leading shapes that broadcast"):
        random_mixture(2).predict(torch.zeros(3, 4, 2))


# ---------------------------------------------------------------------------------------------
# fits from a given start


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("reg_covar", [1e-6, 1e-2])
def test_a_fit_is_that_of_sklearn(name: str, reg_covar: float) -> None:
    make, components = DATA[name]
    x = make()
    start = random_start(x, components)
    fit = refine_mixture(x, start, reg_covar=reg_covar)
    expected = fitted_by_sklearn(x, start, reg_covar=reg_covar)
    assert_same(fit, expected)
    assert np.array_equal(fit.mixture.predict(x), expected.predict(x.numpy()))
    # Terms of some hundreds may add up to next to nothing.
    np.testing.assert_allclose(
        fit.mixture.log_prob(x), expected.score_samples(x.numpy()), rtol=1e-6, atol=1e-4
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("steps_per_look", [1, 4])
@pytest.mark.parametrize("max_iter", [1, 2, 5])
def test_a_fit_that_is_cut_short(
    max_iter: int, steps_per_look: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixtures, "_steps_per_look", lambda device: steps_per_look)
    x = DATA["overlapping"][0]()
    start = random_start(x, 6)
    fit = refine_mixture(x, start, max_iter=max_iter)
    assert_same(fit, fitted_by_sklearn(x, start, max_iter=max_iter))
    assert not fit.converged


def test_a_component_without_points() -> None:
    x = blobs(300, 2, 2, 3.0)
    x -= x.mean(0)  # scikit-learn sends such a component to the origin, we to the mean
    start = random_start(x, 3)
    start.means[1] = 1e6
    fit = refine_mixture(x, start)
    assert_same(fit, fitted_by_sklearn(x, start))
    assert fit.mixture.log_weights[1] < -30
    assert fit.mixture.means[1].abs().max() < 1e-6


def test_a_moved_data_set_has_a_moved_fit() -> None:
    x = blobs(300, 2, 3, 2.0)
    start = random_start(x, 3)
    start.means[1] = 1e6
    fit = refine_mixture(x, start)
    moved = refine_mixture(x + 64, start._replace(means=start.means + 64))
    expected = fit._replace(mixture=fit.mixture._replace(means=fit.mixture.means + 64))
    assert_close(moved, expected)


@pytest.mark.parametrize("steps_per_look", [1, 4])
def test_stacked_data_sets_are_fitted_as_if_alone(
    steps_per_look: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spreads = [8.0, 0.5, 2.0, 1.0, 6.0, 0.7]
    x = torch.stack([blobs(300, 3, 4, s, seed=i) for i, s in enumerate(spreads)])
    starts = [random_start(points, 4) for points in x]
    alone = [refine_mixture(*pair) for pair in zip(x, starts, strict=True)]
    assert len({int(fit.iterations) for fit in alone}) > 3

    monkeypatch.setattr(mixtures, "_steps_per_look", lambda device: steps_per_look)
    together = Mixture(*(torch.stack(p).unflatten(0, (2, 3)) for p in zip(*starts, strict=True)))
    stacked = refine_mixture(x.unflatten(0, (2, 3)), together)
    for i, fit in enumerate(alone):
        assert_close(part(stacked, *divmod(i, 3)), fit)


def test_one_start_serves_several_data_sets() -> None:
    x = torch.stack([blobs(200, 3, 4, 2.0, seed=seed) for seed in range(3)])
    start = random_start(x[0], 4)
    stacked = refine_mixture(x, start)
    assert stacked.mixture.means.shape == (3, 4, 3)
    assert stacked.lower_bound.shape == (3,)
    for i in range(3):
        assert_close(part(stacked, i), refine_mixture(x[i], start))


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    x = blobs(300, 3, 4, 2.0)
    # From one start: of several that end at the same place, rounding chooses.
    whole = fit_mixture(x, 4, restarts=1, init="kmeans", generator=generator())
    estimate = estimate_mixture(x, whole.mixture.responsibilities(x))
    monkeypatch.setattr(mixtures, "_block_size", lambda numbers, device: 37)
    assert_close(fit_mixture(x, 4, restarts=1, init="kmeans", generator=generator()), whole)
    again = estimate_mixture(x, whole.mixture.responsibilities(x))
    for one, two in zip(again, estimate, strict=True):
        torch.testing.assert_close(one, two)


def test_memory_is_bounded_by_blocks() -> None:
    device = torch.device("cpu")
    assert mixtures._block_size(100, device) * 100 <= mixtures._BLOCK_CPU
    assert mixtures._block_size(10**9, device) == mixtures._SMALLEST_BLOCK
    points = mixtures._Points(torch.zeros(10_000, 2))
    assert max(len(f[0]) for _, f in points.blocks(200)) == mixtures._BLOCK_CPU // 200
    assert sum(len(f[0]) for _, f in points.blocks(200)) == 10_000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_narrow_types(dtype: torch.dtype) -> None:
    x = blobs(300, 3, 4, 2.0).to(dtype)
    wide = fit_mixture(x.double(), 4, restarts=2, generator=generator())
    fit = fit_mixture(x, 4, restarts=2, generator=generator())
    assert {t.dtype for t in (*fit.mixture, fit.lower_bound)} == {torch.float32}
    expected = Mixture(*(t.float() for t in wide.mixture))
    assert_close(fit, wide._replace(mixture=expected, lower_bound=wide.lower_bound.float()), 1e-6)


def test_narrow_points_far_from_the_origin() -> None:
    x = (blobs(600, 3, 4, 6.0) + 1_000.0).float()
    fit = refine_mixture(x, random_start(x, 4))
    assert_same(fit, fitted_by_sklearn(x.double(), random_start(x.double(), 4)), 1e-5)


# ---------------------------------------------------------------------------------------------
# starts


def test_an_estimate_is_weighted_moments() -> None:
    x, r = normal(2, 30, 3), normal(2, 30, 4, seed=1).softmax(-1)
    found = estimate_mixture(x, r, reg_covar=0.5)
    sizes = r.sum(-2)
    means = torch.einsum("snk,snd->skd", r, x) / sizes[..., None]
    squares = (x[:, :, None] - means[:, None]).square()
    variances = torch.einsum("snk,snkd->skd", r, squares) / sizes[..., None] + 0.5
    torch.testing.assert_close(found.log_weights.exp(), sizes / 30)
    torch.testing.assert_close(found.means, means)
    torch.testing.assert_close(found.variances, variances)


def test_seeds_follow_the_law_of_greedy_kmeans_plus_plus() -> None:
    x = torch.tensor([0.0, 0.3, 1.0, 2.5, 2.7, 6.0], dtype=torch.float64)
    squares = (x[:, None] - x).square()
    # The sum of the distances that is left with a first and a second seed. Between second seeds
    # that leave the same, rounding decides: what is left is compared, not the seed.
    left = torch.minimum(squares[:, None], squares).sum(-1).round(decimals=9)
    law: Counter[tuple[int, float]] = Counter()
    for first, one, two in itertools.product(range(6), repeat=3):  # the better of two candidates
        chances = squares[first] / squares[first].sum()
        better = min(left[first, one].item(), left[first, two].item())
        law[first, better] += float(chances[one] * chances[two]) / 6

    points = mixtures._Points(x[:, None])
    seeds = mixtures._seeds(points, 2, 20_000, generator())[0, ..., 0] + points.centre.squeeze()
    index = (seeds[..., None] - x).abs().argmin(-1)
    found = Counter((first, left[first, second].item()) for first, second in index.tolist())
    assert found.keys() <= law.keys()
    counts, masses = (np.array([table[key] for key in law]) for table in (found, law))
    # The p-value is the false-alarm rate, nearly.
    assert chi_square_p_value(counts, masses) > FALSE_ALARM


def test_seeds_are_distinct_points_of_their_data_set() -> None:
    x = torch.stack([blobs(40, 2, 3, 1.0, seed=seed) for seed in range(3)])
    points = mixtures._Points(x)
    seeds = mixtures._seeds(points, 12, 5, generator()) + points.centre[:, None]
    distances = torch.cdist(seeds, x[:, None].expand(-1, 5, -1, -1))
    assert distances.min(-1).values.max() < 1e-6
    index = distances.argmin(-1).sort(-1).values
    assert (index.diff(dim=-1) > 0).all()


def fit_from(seeds: Tensor, x: Tensor, monkeypatch: pytest.MonkeyPatch, **kwargs: Any) -> Any:
    """A fit whose restarts (R, K, d) start from given seeds."""
    centre = x.mean(0)
    monkeypatch.setattr(mixtures, "_seeds", lambda *args: seeds[None] - centre)
    return fit_mixture(x, seeds.shape[1], restarts=len(seeds), **kwargs)


def sklearn_start(x: Tensor, seeds: Tensor, init: str, reg_covar: float) -> Mixture:
    """The parameters from which scikit-learn starts, given the seeds of k-means++."""
    if init == "k-means++":
        equal = torch.full((len(seeds),), 1 / len(seeds), dtype=x.dtype).log()
        return Mixture(equal, seeds, torch.full_like(seeds, reg_covar))
    means = KMeans(len(seeds), init=seeds.numpy(), n_init=1).fit(x.numpy())
    one_hot = torch.from_numpy(np.eye(len(seeds))[means.labels_])
    return estimate_mixture(x, one_hot, reg_covar=reg_covar)


@pytest.mark.parametrize("init", ["k-means++", "kmeans"])
@pytest.mark.parametrize("name", ["apart", "overlapping", "digits"])
def test_both_starts_are_those_of_sklearn(
    name: str, init: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, components = DATA[name]
    x = make()
    if name == "digits":  # whole numbers have equal distances, and every program its own choice
        x = x / 16 + 1e-3 * normal(*x.shape)
    seeds = x[torch.randperm(len(x), generator=generator())[:components]]
    fit = fit_from(seeds[None], x, monkeypatch, init=init, reg_covar=1e-4)
    expected = fitted_by_sklearn(x, sklearn_start(x, seeds, init, 1e-4), reg_covar=1e-4)
    assert_same(fit, expected)


def test_kmeans_plus_plus_first_assigns_points_to_the_nearest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = blobs(200, 3, 4, 3.0)
    fit = fit_from(x[None, :4], x, monkeypatch, max_iter=1)
    nearest = torch.cdist(x, x[:4]).argmin(1)
    expected = estimate_mixture(x, torch.eye(4).double()[nearest])
    for one, two in zip(fit.mixture, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)


def test_kmeans_leaves_a_centre_without_points_where_it_is() -> None:
    x = torch.tensor([[-1.0], [1.0], [-6.0], [6.0]], dtype=torch.float64)  # their mean is zero
    centres = torch.tensor([[[[-5.0], [100.0], [5.0]]]], dtype=torch.float64)
    found = mixtures._kmeans(mixtures._Points(x), centres)
    torch.testing.assert_close(found.flatten(), torch.tensor([-3.5, 100.0, 3.5]).double())


@pytest.mark.parametrize("init", ["k-means++", "kmeans"])
def test_the_best_restart_is_returned(init: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All starts but one have two points of one group, and none of another that is far from it."""
    centres = torch.tensor([0.0, 20.0, 100.0, 120.0, 200.0]).double()[:, None]
    x = centres[torch.arange(300) % 5] + normal(300, 3)
    index = torch.arange(5) + 7 * torch.eye(5, dtype=torch.long)
    index[3, 3] = 3
    alone = [fit_from(x[chosen][None], x, monkeypatch, init=init) for chosen in index]
    bounds = torch.stack([fit.lower_bound for fit in alone])
    assert bounds[3] - bounds[[0, 1, 2, 4]].max() > 0.1
    assert_close(fit_from(x[index], x, monkeypatch, init=init), alone[3])


@pytest.mark.parametrize("init", ["k-means++", "kmeans"])
def test_stacked_data_sets_with_restarts(init: str) -> None:
    centres = 10 * torch.tensor([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])
    truth = torch.arange(300) % 4
    x = centres[truth] + normal(2, 3, 300, 2).float()
    fit = fit_mixture(x, 4, init=init, generator=generator())
    assert [tuple(t.shape) for t in fit.mixture] == [(2, 3, 4), (2, 3, 4, 2), (2, 3, 4, 2)]
    assert fit.lower_bound.shape == fit.iterations.shape == fit.converged.shape == (2, 3)
    torch.testing.assert_close(fit.mixture.log_weights.exp().sum(-1), torch.ones(2, 3))
    for clusters in fit.mixture.predict(x).flatten(0, 1):
        assert accuracy(truth, clusters) == 1


def test_the_same_generator_gives_the_same_fit() -> None:
    x = blobs(200, 2, 4, 1.0)
    state = torch.get_rng_state()
    one, two = (fit_mixture(x, 4, restarts=2, generator=generator(3)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.mixture, two.mixture, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


def test_fits_leave_no_graph() -> None:
    x = blobs(100, 2, 2, 1.0).requires_grad_()
    fit = fit_mixture(x, 2, restarts=1, generator=generator())
    assert not any(tensor.requires_grad for tensor in fit.mixture)


# ---------------------------------------------------------------------------------------------
# degenerate data


@pytest.mark.parametrize("init", ["k-means++", "kmeans"])
def test_a_single_point(init: str) -> None:
    x = torch.tensor([[2.0, -1.0]])
    fit = fit_mixture(x, 1, init=init, reg_covar=1e-3)
    assert torch.equal(fit.mixture.log_weights, torch.zeros(1))
    torch.testing.assert_close(fit.mixture.means, x)
    torch.testing.assert_close(fit.mixture.variances, torch.full((1, 2), 1e-3))
    assert float(fit.lower_bound) == pytest.approx(-math.log(2 * math.pi * 1e-3), rel=1e-6)


@pytest.mark.parametrize("init", ["k-means++", "kmeans"])
def test_as_many_components_as_points(init: str) -> None:
    x = 10 * normal(6, 2)
    fit = fit_mixture(x, 6, init=init, generator=generator())
    assert fit.mixture.predict(x).unique().numel() == 6
    assert fit.converged


@pytest.mark.parametrize("init", ["k-means++", "kmeans"])
def test_fewer_distinct_points_than_components(init: str) -> None:
    x = torch.tensor([[0.0], [5.0]]).repeat(10, 1)
    fit = fit_mixture(x, 4, init=init, generator=generator())
    assert all(bool(tensor.isfinite().all()) for tensor in fit.mixture)
    torch.testing.assert_close(fit.mixture.log_prob(x).mean(), fit.lower_bound)
    same = torch.full((20, 2), 7.0)
    fit = fit_mixture(same, 3, init=init, reg_covar=1e-3, generator=generator())
    torch.testing.assert_close(fit.mixture.variances, torch.full((3, 2), 1e-3))
    torch.testing.assert_close(fit.mixture.means, torch.full((3, 2), 7.0))


X = torch.zeros(4, 2)
NAN = torch.tensor([[0.0, math.nan]])


@pytest.mark.parametrize(
    ("x", "components", "settings", "message"),
    [
        (X, 5, {}, "n_components must be at most 4, the number of points, but got 5"),
        (X, 0, {}, "n_components must be a whole number of at least 1, but got 0"),
        (X[0], 1, {}, r"x must have the shape \(..., n, d\) and hold a point, but got a tensor of"),
        (X[:0], 1, {}, r"x must have the shape \(..., n, d\) and hold a point"),
        (X.long(), 1, {}, "x must be a floating-point tensor"),
        (X.numpy(), 1, {}, "x must be a floating-point tensor, but got a ndarray"),
        (NAN, 1, {}, "x must be finite everywhere, but got nan"),
        (X, 1, {"restarts": 0}, "restarts must be a whole number of at least 1, but got 0"),
        (X, 1, {"init": "random"}, "init must be one of 'k-means\\+\\+', 'kmeans', but got 'rand"),
        (X, 1, {"reg_covar": 0.0}, "reg_covar must be positive and finite, but got 0.0"),
        (X, 1, {"tol": -1.0}, "tol must be at least 0 and finite, but got -1.0"),
        (X, 1, {"max_iter": 0}, "max_iter must be a whole number of at least 1, but got 0"),
        (1e200 * normal(4, 2), 2, {}, "x must have finite log-densities, but they overflow"),
    ],
)
def test_refusals(x: Any, components: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_mixture(x, components, **settings)


START = Mixture(torch.zeros(3), torch.zeros(3, 2), torch.ones(3, 2))


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (X, "start must be a Mixture, but got a tensor of shape"),
        (
            START._replace(log_weights=torch.tensor(0.0)),
            r"log_weights must have the shape \(..., K",
        ),
        (START._replace(means=torch.zeros(4, 2)), r"start.means must have the shape \(..., K, 2\)"),
        (START._replace(variances=torch.ones(3)), "start.variances must have the shape"),
        (START._replace(means=torch.zeros(5, 3, 2)), "start.means must have leading dimensions"),
        (START._replace(means=NAN.expand(3, 2)), "start.means must be finite everywhere"),
        (
            START._replace(variances=torch.zeros(3, 2)),
            "start.variances must be positive, but got 0",
        ),
        (START._replace(means=None), "start.means must be a floating-point tensor"),
    ],
)
def test_refused_starts(start: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        refine_mixture(X, start)


@pytest.mark.parametrize(
    ("responsibilities", "message"),
    [
        (torch.ones(3, 2), r"responsibilities must have the shape \(4, K\), but got a tensor"),
        (torch.ones(4, 0), r"responsibilities must have the shape \(4, K\)"),
        (torch.ones(4, 2).long(), "responsibilities must be a floating-point tensor"),
        (-torch.ones(4, 2), "responsibilities must be at least 0, but got -1.0"),
        (NAN.expand(4, 2), "responsibilities must be finite everywhere"),
    ],
)
def test_refused_responsibilities(responsibilities: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        estimate_mixture(X, responsibilities)


@pytest.mark.cuda
@pytest.mark.parametrize("init", ["k-means++", "kmeans"])
def test_a_gpu_finds_the_same(init: str) -> None:
    x = torch.stack([blobs(3_000, 4, 5, spread, seed=1) for spread in (6.0, 0.7)])
    start = Mixture(*map(torch.stack, zip(*(random_start(p, 5) for p in x), strict=True)))
    expected = refine_mixture(x, start)
    found = refine_mixture(x.cuda(), Mixture(*(t.cuda() for t in start)))
    assert found.mixture.means.is_cuda
    on_cpu = [t.cpu() for t in (*found.mixture, *found[1:])]
    assert_close(FittedMixture(Mixture(*on_cpu[:3]), *on_cpu[3:]), expected)

    fit = fit_mixture(x.cuda(), 5, init=init, generator=generator(device="cuda"))
    other = fit_mixture(x, 5, init=init, generator=generator())
    torch.testing.assert_close(fit.lower_bound[0].cpu(), other.lower_bound[0], rtol=0, atol=2e-3)

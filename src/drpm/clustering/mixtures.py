r"""Gaussian mixtures with diagonal covariances, many of them fitted at once.

The log-density of a diagonal Gaussian is a quadratic form without mixed terms. Such a form is
linear in the features :math:`(x^2, x, 1)` of a point, and an M step needs nothing but weighted sums
of these features. So a step of expectation maximisation is two matrix products around a softmax,
for all components, restarts and data sets together. Squared distances are such forms too, and
with an argmax in place of the softmax the same step is one of k-means.

Far from the origin forms lose digits: points are centred, and everything is float64. That happens
block by block, so that neither features nor responsibilities of all points are ever in memory.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from drpm.distributions.validation import (
    describe,
    require_broadcast,
    require_choice,
    require_count,
    require_finite,
    require_floating,
)

# How many numbers a block may hold: what the cache of a CPU takes, and half a gigabyte on a GPU.
_BLOCK_CPU = 1 << 18
_BLOCK_GPU = 1 << 26
_SMALLEST_BLOCK = 64

# On a GPU, a look at which members have settled waits for all the work in the queue.
_STEPS_PER_LOOK_GPU = 4

# k-means stops once its centres move less than this, relative to the variance of the points.
_KMEANS_TOLERANCE = 1e-4
_KMEANS_STEPS = 300


class Mixture(NamedTuple):
    r"""A mixture of K Gaussians with diagonal covariances.

    .. math:: p(x) = \sum_{k=1}^K \pi_k \prod_{j=1}^d \mathcal{N}(x_j; \mu_{kj}, \sigma_{kj}^2)

    Leading dimensions hold separate mixtures and broadcast with those of the points. Densities are
    computed in float64, and differentiable in the parameters and the points.

    Arguments:
        log_weights: :math:`\log \pi`, (..., K).
        means: :math:`\mu`, (..., K, d).
        variances: :math:`\sigma^2`, (..., K, d).

    Example:
        >>> mixture = Mixture(
        ...     log_weights=torch.tensor([0.25, 0.75]).log(),
        ...     means=torch.tensor([[0.0], [4.0]]),
        ...     variances=torch.ones(2, 1),
        ... )
        >>> mixture.predict(torch.tensor([[-1.0], [0.5], [3.0]]))
        tensor([0, 0, 1])
    """

    log_weights: Tensor
    means: Tensor
    variances: Tensor

    def log_joint(self, x: Tensor) -> Tensor:
        r""":math:`\log \pi_k + \log \mathcal{N}(x; \mu_k, \sigma_k^2)` for points (..., n, d).

        Returns:
            A tensor (..., n, K).
        """
        dims = self.means.shape[-1]
        if require_floating("x", x).dim() < 2 or x.shape[-1] != dims:
            raise ValueError(f"x must have the shape (..., n, {dims}), but got {describe(x)}.")
        batch = require_broadcast("x and the mixture", x.shape[:-2], self.means.shape[:-2])
        centre = self.means.detach().double().mean(-2, keepdim=True)
        forms = _log_joint_forms(self._replace(means=self.means.double() - centre)).mT
        size = _block_size(batch.numel() * max(forms.shape[-2:]), x.device)
        dtype = torch.promote_types(x.dtype, self.means.dtype)
        blocks = [
            (_features(block.double() - centre) @ forms).to(dtype) for block in x.split(size, -2)
        ]
        return torch.cat(blocks, -2)

    def log_prob(self, x: Tensor) -> Tensor:
        """The log-density of points (..., n, d), of shape (..., n)."""
        return self.log_joint(x).logsumexp(-1)

    def responsibilities(self, x: Tensor) -> Tensor:
        """The probability of each component given a point, (..., n, K)."""
        return self.log_joint(x).softmax(-1)

    def predict(self, x: Tensor) -> Tensor:
        """The most probable component given a point, (..., n)."""
        return self.log_joint(x).argmax(-1)


class FittedMixture(NamedTuple):
    """A mixture, and how its fit ended.

    Arguments:
        mixture: The mixture.
        lower_bound: The mean log-density of the points before the last step, (...).
        iterations: How many steps were taken, (...).
        converged: Whether the last step changed the bound by less than the tolerance, (...).
    """

    mixture: Mixture
    lower_bound: Tensor
    iterations: Tensor
    converged: Tensor


@torch.no_grad()
def fit_mixture(
    x: Tensor,
    n_components: int,
    *,
    restarts: int = 10,
    init: str = "k-means++",
    reg_covar: float = 1e-6,
    tol: float = 1e-3,
    max_iter: int = 100,
    generator: torch.Generator | None = None,
) -> FittedMixture:
    """The best of several fits by expectation maximisation.

    Its settings have the names and meanings of those of scikit-learn's ``GaussianMixture``.

    References:
        Dempster, Laird and Rubin, *Maximum likelihood from incomplete data via the EM algorithm*,
        1977. Arthur and Vassilvitskii, *k-means++: the advantages of careful seeding*, 2007.

    Arguments:
        x: Points (..., n, d). Leading dimensions hold separate data sets, each with its own fit.
        n_components: K, at most n.
        restarts: How many fits are made. The one with the highest lower bound is returned.
        init: ``"k-means++"`` starts every component at a single point with the least possible
            variance, so that the first step assigns each point to the nearest of them.
            ``"kmeans"`` moves those points by k-means and starts from its clusters.
        reg_covar: Added to every variance.
        tol: A fit has converged when its lower bound changes by less.
        max_iter: How many steps a fit may take.
        generator: Where the random numbers come from, on the device of x.

    Example:
        >>> noise = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
        >>> x = noise + torch.tensor([[-5.0, 0.0], [0.0, 5.0], [5.0, 0.0]]).repeat(100, 1)
        >>> fit = fit_mixture(x, 3, generator=torch.Generator().manual_seed(0))
        >>> fit.converged
        tensor(True)
        >>> fit.mixture.predict(x[:3]).unique().numel()
        3
    """
    points = _Points(x)
    settings = _Settings(reg_covar, tol, max_iter)
    require_count("restarts", restarts)
    require_choice("init", init, ("k-means++", "kmeans"))
    if require_count("n_components", n_components) > points.count:
        raise ValueError(
            f"n_components must be at most {points.count}, the number of points, "
            f"but got {n_components}."
        )
    centres = _seeds(points, n_components, restarts, generator)
    if init == "kmeans":
        clusters = _nearest(points, _kmeans(points, centres))
        start = _maximize(clusters, reg_covar)
    else:
        equal = centres.new_full(centres.shape[:-1], -math.log(n_components))
        start = Mixture(equal, centres, torch.full_like(centres, reg_covar))
    return _best_fit(points, start, settings)


@torch.no_grad()
def refine_mixture(
    x: Tensor,
    start: Mixture,
    *,
    reg_covar: float = 1e-6,
    tol: float = 1e-3,
    max_iter: int = 100,
) -> FittedMixture:
    """One fit by expectation maximisation, from a given start.

    Arguments:
        x: Points (..., n, d). Leading dimensions hold separate data sets, each with its own fit.
        start: The mixture to start from. Its leading dimensions broadcast to those of x.
        reg_covar: Added to every variance.
        tol: The fit has converged when its lower bound changes by less.
        max_iter: How many steps the fit may take.

    Example:
        >>> x = torch.tensor([[-1.0], [1.0], [9.0], [11.0]])
        >>> start = Mixture(torch.zeros(2), torch.tensor([[0.0], [5.0]]), torch.ones(2, 1))
        >>> refine_mixture(x, start).mixture.means.round(decimals=3)
        tensor([[ 0.],
                [10.]])
    """
    points = _Points(x)
    settings = _Settings(reg_covar, tol, max_iter)
    return _best_fit(points, _require_start(start, points), settings)


@torch.no_grad()
def estimate_mixture(x: Tensor, responsibilities: Tensor, *, reg_covar: float = 1e-6) -> Mixture:
    r"""The mixture that given responsibilities imply: one M step.

    .. math:: \pi_k \propto \sum_i r_{ik}, \quad \mu_k = \frac{\sum_i r_{ik} x_i}{\sum_i r_{ik}},
        \quad \sigma_k^2 = \frac{\sum_i r_{ik} (x_i - \mu_k)^2}{\sum_i r_{ik}} + \epsilon

    Arguments:
        x: Points (..., n, d).
        responsibilities: :math:`r`, (..., n, K) with the leading dimensions of x; one-hot rows
            stand for a clustering. A component without any points goes to the mean of them all.
        reg_covar: :math:`\epsilon`.

    Example:
        >>> x = torch.tensor([[-1.0], [1.0], [9.0], [11.0]])
        >>> clusters = torch.tensor([0, 0, 1, 1])
        >>> one_hot = torch.nn.functional.one_hot(clusters).float()
        >>> estimate_mixture(x, one_hot).variances
        tensor([[1.0000],
                [1.0000]])
    """
    points = _Points(x)
    _require_positive("reg_covar", reg_covar)
    r = require_floating("responsibilities", responsibilities)
    if r.shape[:-1] != x.shape[:-1] or r.shape[-1] == 0:
        shape = ", ".join(str(size) for size in x.shape[:-1])
        raise ValueError(
            f"responsibilities must have the shape ({shape}, K), but got {describe(r)}."
        )
    require_finite("responsibilities", r)
    if bool((r < 0).any()):
        raise ValueError(f"responsibilities must be at least 0, but got {r.min().item()}.")
    r = r.reshape(-1, *r.shape[-2:])
    sums = points.zeros(1, r.shape[-1])
    for rows, features in points.blocks(r.shape[-1]):
        sums += (r[:, rows].double().mT @ features)[:, None]
    mixture = _maximize(sums, reg_covar)
    return points.restored(Mixture(*(part[:, 0] for part in mixture)))


@dataclass(frozen=True)
class _Settings:
    """When expectation maximisation stops, and how small a variance may be."""

    reg_covar: float
    tol: float
    max_iter: int

    def __post_init__(self) -> None:
        # Without a floor, a component on a single point has an infinite density.
        _require_positive("reg_covar", self.reg_covar)
        if not 0 <= self.tol < math.inf:
            raise ValueError(f"tol must be at least 0 and finite, but got {self.tol!r}.")
        require_count("max_iter", self.max_iter)


def _require_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, but got {value!r}.")


def _block_size(numbers: int, device: torch.device) -> int:
    """How many points make a block when each comes with so many numbers."""
    budget = _BLOCK_CPU if device.type == "cpu" else _BLOCK_GPU
    return max(_SMALLEST_BLOCK, budget // max(1, numbers))


def _steps_per_look(device: torch.device) -> int:
    return 1 if device.type == "cpu" else _STEPS_PER_LOOK_GPU


def _features(centred: Tensor) -> Tensor:
    """What forms are linear in: the squares, the points and a one, (..., 2 d + 1)."""
    return torch.cat([centred.square(), centred, torch.ones_like(centred[..., :1])], -1)


def _log_joint_forms(mixture: Mixture) -> Tensor:
    """The log-densities of the components as forms, (..., K, 2 d + 1)."""
    log_weights, means, variances = (part.double() for part in mixture)
    exponents = means.square() / variances + variances.log() + math.log(2 * math.pi)
    constants = log_weights - exponents.sum(-1) / 2
    return torch.cat([-0.5 / variances, means / variances, constants[..., None]], -1)


def _distance_forms(centres: Tensor) -> Tensor:
    """The squared distances from centres as forms, (..., 2 d + 1)."""
    squares = centres.square().sum(-1, keepdim=True)
    return torch.cat([torch.ones_like(centres), -2 * centres, squares], -1)


class _Points:
    """S data sets of n points each, centred and widened when they are looked at."""

    def __init__(self, x: Any) -> None:
        if require_floating("x", x).dim() < 2 or x.numel() == 0:
            raise ValueError(
                f"x must have the shape (..., n, d) and hold a point, but got {describe(x)}."
            )
        require_finite("x", x)
        self.leading = x.shape[:-2]
        self.dtype = torch.promote_types(x.dtype, torch.float32)
        self.x: Tensor = x.detach().reshape(-1, *x.shape[-2:])
        self.sets, self.count, self.dims = self.x.shape
        self.centre: Tensor = self.x.mean(-2, keepdim=True, dtype=torch.float64)  # (S, 1, d)

    def zeros(self, *shape: int) -> Tensor:
        """Room for sums of features, (S, ..., 2 d + 1)."""
        return self.centre.new_zeros(self.sets, *shape, 2 * self.dims + 1)

    def blocks(self, columns: int) -> Iterator[tuple[slice, Tensor]]:
        """The features of some points at a time, (S, B, 2 d + 1), for results of some columns."""
        numbers = self.sets * max(columns, 2 * self.dims + 1)
        size = _block_size(numbers, self.x.device)
        for first in range(0, self.count, size):
            rows = slice(first, first + size)
            yield rows, _features(self.x[:, rows].double() - self.centre)

    def at(self, index: Tensor) -> Tensor:
        """The centred points (S, ..., d) at positions (S, ...)."""
        flat = index.flatten(1)
        chosen = self.x.gather(1, flat[..., None].expand(-1, -1, self.dims))
        return (chosen.double() - self.centre).reshape(*index.shape, self.dims)

    def distances(self, centres: Tensor) -> Tensor:
        """The squared distances (S, ..., n) from centres (S, ..., d)."""
        forms = _distance_forms(centres).flatten(1, -2)
        blocks = [forms @ features.mT for _, features in self.blocks(forms.shape[1])]
        # Rounding leaves a point at a small distance from itself, above or below zero.
        flat = torch.cat(blocks, -1).clamp_min_(0)
        return flat.reshape(*centres.shape[:-1], self.count)

    def restored(self, mixture: Mixture) -> Mixture:
        """One centred mixture for each data set, in the place, type and shape of the points."""
        moved = mixture._replace(means=mixture.means + self.centre)
        return Mixture(*(self.shaped(part) for part in moved))

    def shaped(self, values: Tensor) -> Tensor:
        """Values (S, ...) with the leading dimensions of the points, and their type."""
        dtype = self.dtype if values.is_floating_point() else values.dtype
        return values.reshape(self.leading + values.shape[1:]).to(dtype)


def _require_start(start: Any, points: _Points) -> Mixture:
    """The start (S, 1, K, ...) of one fit for each data set, centred."""
    if not isinstance(start, Mixture):
        raise ValueError(f"start must be a Mixture, but got {describe(start)}.")
    components = require_floating("start.log_weights", start.log_weights).shape[-1:]
    parts = []
    for name, part in zip(Mixture._fields, start, strict=True):
        own = components if name == "log_weights" else (*components, points.dims)
        require_floating(f"start.{name}", part)
        if not components or part.shape[part.dim() - len(own) :] != own:
            shape = "(..., K)" if name == "log_weights" else f"(..., K, {points.dims})"
            raise ValueError(
                f"start.{name} must have the shape {shape}, with the same K in all parts of "
                f"start, but got {describe(part)}."
            )
        require_finite(f"start.{name}", part)
        try:
            full = part.detach().double().expand(*points.leading, *own)
        except RuntimeError:
            raise ValueError(
                f"start.{name} must have leading dimensions that broadcast to those of x, "
                f"{tuple(points.leading)}, but got {describe(part)}."
            ) from None
        parts.append(full.reshape(points.sets, 1, *own))
    log_weights, means, variances = parts
    if bool((variances <= 0).any()):
        raise ValueError(f"start.variances must be positive, but got {variances.min().item()}.")
    return Mixture(log_weights, means - points.centre[:, None], variances)


def _seeds(points: _Points, count: int, restarts: int, generator: torch.Generator | None) -> Tensor:
    """Centres (S, R, K, d) by greedy k-means++.

    A point becomes a candidate with a probability proportional to its squared distance from the
    centres so far. Of a few candidates, the one that leaves the smallest distances is taken.
    In memory are the distances of all points from the candidates of all restarts.
    """
    batch, device = (points.sets, restarts), points.x.device
    trials = 2 + int(math.log(count))
    first = torch.randint(points.count, (*batch, 1), generator=generator, device=device)
    centres = [points.at(first)]
    closest = points.distances(centres[0])[:, :, 0]  # (S, R, n)
    for _ in range(1, count):
        mass = closest.cumsum(-1)
        uniform = torch.rand((*batch, trials), dtype=mass.dtype, generator=generator, device=device)
        index = torch.searchsorted(mass, uniform * mass[..., -1:], right=True)
        candidates = points.at(index.clamp_max(points.count - 1))
        shorter = torch.minimum(closest[:, :, None], points.distances(candidates))
        best = shorter.sum(-1).argmin(-1)[..., None, None]
        closest = shorter.take_along_dim(best, 2).squeeze(2)
        centres.append(candidates.take_along_dim(best, 2))
    return torch.cat(centres, 2)


def _nearest(points: _Points, centres: Tensor) -> Tensor:
    """The sums of the features of the points nearest to each centre, (S, R, K, 2 d + 1)."""
    sums = points.zeros(*centres.shape[1:3])
    # Which centre is the nearest does not depend on the square of the point.
    forms = _distance_forms(centres)[..., points.dims :]
    for _, features in points.blocks(forms[0, ..., 0].numel()):
        distances = forms.flatten(1, 2) @ features[..., points.dims :].mT
        distances = distances.unflatten(1, forms.shape[1:3])
        # On a CPU several times as fast as `argmin`.
        nearest = distances.min(2, keepdim=True).indices
        assigned = distances.zero_().scatter_(2, nearest, 1.0)
        sums += (assigned.flatten(1, 2) @ features).view_as(sums)
    return sums


def _kmeans(points: _Points, centres: Tensor) -> Tensor:
    """The centres (S, R, K, d) after Lloyd's iterations."""
    everything = _nearest(points, torch.zeros_like(centres[:, :1, :1]))
    variance = everything[..., : points.dims].mean((2, 3)) / points.count  # (S, 1)

    def step(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        old, _ = state
        sums = _nearest(points, old)
        sizes = sums[..., -1:]
        # A centre without points stays.
        new = torch.where(sizes > 0, sums[..., points.dims : -1] / sizes, old)
        moved = (new - old).square().sum((2, 3))
        return new, moved <= _KMEANS_TOLERANCE * variance

    running = torch.zeros(centres.shape[:2], dtype=torch.bool, device=centres.device)
    return _iterate(step, (centres, running), _KMEANS_STEPS)[0]


class _Expectation(NamedTuple):
    sums: Tensor  # (S, R, K, 2 d + 1) of the features, weighted by the responsibilities
    lower_bound: Tensor  # (S, R) the mean log-density


def _expect(points: _Points, mixture: Mixture) -> _Expectation:
    """The E step, for mixtures (S, R, K, ...)."""
    forms = _log_joint_forms(mixture)
    sums = points.zeros(*forms.shape[1:3])
    bound = sums.new_zeros(sums.shape[:2])
    for _, features in points.blocks(forms[0, ..., 0].numel()):
        # Components before points: sums over few components of many points, not the reverse.
        # In place, because a fresh block costs more than what is done to it.
        joint = (forms.flatten(1, 2) @ features.mT).unflatten(1, forms.shape[1:3])
        peak = joint.amax(2, keepdim=True)
        joint.sub_(peak).exp_()
        total = joint.sum(2, keepdim=True)
        bound += (total.log() + peak).sum((2, 3))
        joint.mul_(total.reciprocal())
        sums += (joint.flatten(1, 2) @ features).view_as(sums)
    return _Expectation(sums, bound / points.count)


def _maximize(sums: Tensor, reg_covar: float) -> Mixture:
    """The M step, from sums (..., K, 2 d + 1) of features."""
    dims = sums.shape[-1] // 2
    # A component that has lost all points keeps a finite mean and a finite log-weight.
    sizes = sums[..., -1] + 10 * torch.finfo(sums.dtype).eps
    averages = sums / sizes[..., None]
    means = averages[..., dims:-1]
    variances = (averages[..., :dims] - means.square()).clamp_min(0) + reg_covar
    return Mixture(sizes.log() - sizes.sum(-1, keepdim=True).log(), means, variances)


def _best_fit(points: _Points, start: Mixture, settings: _Settings) -> FittedMixture:
    """The best of the fits that start from centred mixtures (S, R, K, ...)."""

    def step(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        *mixture, before, iterations, _ = state
        sums, bound = _expect(points, Mixture(*mixture))
        converged = (bound - before).abs() < settings.tol
        return *_maximize(sums, settings.reg_covar), bound, iterations + 1, converged

    nothing = torch.full_like(start.log_weights[..., 0], -math.inf)
    state = (*start, nothing, torch.zeros_like(nothing).long(), torch.zeros_like(nothing).bool())
    *mixture, bound, iterations, converged = _iterate(step, state, settings.max_iter)

    best = bound.nan_to_num(nan=-math.inf).argmax(1)
    rows = torch.arange(points.sets, device=best.device)
    if not bool(bound[rows, best].isfinite().all()):
        raise ValueError(
            "x must have finite log-densities, but they overflow: "
            f"scale x down, or raise reg_covar from {settings.reg_covar!r}."
        )
    return FittedMixture(
        points.restored(Mixture(*(part[rows, best] for part in mixture))),
        *(points.shaped(part[rows, best]) for part in (bound, iterations, converged)),
    )


def _iterate(
    step: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]],
    state: tuple[Tensor, ...],
    limit: int,
) -> tuple[Tensor, ...]:
    """Repeat a step until all members (S, R) have settled, which the last tensor of a state says.

    A member that has settled keeps its state, whatever the others do. At the next look the batch
    shrinks to what the data set with the most running members needs.
    """
    device = state[-1].device
    per_look = _steps_per_look(device)
    rows = torch.arange(len(state[-1]), device=device)[:, None]
    for taken in range(0, limit, per_look):
        running = int((~state[-1]).sum(1).max())
        if running == 0:
            break
        # Running members first; behind them, in some data sets, settled ones to fill the batch.
        chosen = state[-1].byte().argsort(dim=1, stable=True)[:, :running]
        part = tuple(whole[rows, chosen] for whole in state)
        for _ in range(min(per_look, limit - taken)):
            settled, stepped = part[-1], step(part)
            part = tuple(
                torch.where(settled[(..., *(None,) * (new.dim() - 2))], old, new)
                for old, new in zip(part, stepped, strict=True)
            )
        state = tuple(
            whole.index_put((rows, chosen), new) for whole, new in zip(state, part, strict=True)
        )
    return state

"""Gaussian mixtures with diagonal covariances.

The log-density of a diagonal Gaussian is linear in the features :math:`(x^2, x, 1)` of a point, so
an EM step is two matrix products and a softmax for all components and restarts. Points are centered
and in float64, because these linear forms lose precision far from the origin.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

# Numbers in a block of points: the cache of a CPU, half a gigabyte on a GPU.
_BLOCK_CPU = 1 << 18
_BLOCK_GPU = 1 << 26
_SMALLEST_BLOCK = 64

# A fit ends when its lower bound changes by less than the tolerance.
_TOLERANCE = 1e-3
_MAX_ITERATIONS = 100


class Mixture(NamedTuple):
    """K Gaussians: normalized log-weights (..., K), means and variances (..., K, d)."""

    log_weights: Tensor
    means: Tensor
    variances: Tensor

    def log_densities(self, x: Tensor) -> Tensor:
        """The log-density of points (..., n, d) under every Gaussian, (..., n, K)."""
        gaps = x[..., :, None, :] - self.means[..., None, :, :]
        squares = (gaps.square() / self.variances[..., None, :, :]).sum(-1)
        constant = self.variances.log().sum(-1) + x.shape[-1] * math.log(2 * math.pi)
        return -0.5 * (squares + constant[..., None, :])

    def log_prob(self, x: Tensor) -> Tensor:
        """The log-density of points (..., n, d), (..., n)."""
        return (self.log_densities(x) + self.log_weights[..., None, :]).logsumexp(-1)


@torch.no_grad()
def fit_mixture(
    x: Tensor,
    n_components: int,
    *,
    restarts: int = 10,
    reg_covar: float = 1e-6,
    generator: torch.Generator | None = None,
) -> Mixture:
    """Fit points (n, d) by expectation maximization (EM); the most likely of several restarts.

    Components start at points chosen by k-means++ with the smallest variance, so the first step
    assigns each point to the nearest. The stopping criterion is that of scikit-learn's
    ``GaussianMixture``; ``reg_covar`` is added to every variance.

    References:
        Dempster, Laird and Rubin, *Maximum likelihood from incomplete data via the EM algorithm*,
        1977. Arthur and Vassilvitskii, *k-means++: the advantages of careful seeding*, 2007.
    """
    center = x.mean(0, keepdim=True, dtype=torch.float64)
    points = x.double() - center
    means = _kmeans_plusplus(points, n_components, restarts, generator)
    log_weights = means.new_full(means.shape[:-1], -math.log(n_components))
    mixture = Mixture(log_weights, means, torch.full_like(means, reg_covar))
    bound = torch.full_like(log_weights[:, 0], -math.inf)
    running = torch.arange(len(bound), device=bound.device)  # fits that have not converged
    for _ in range(_MAX_ITERATIONS):
        sums, new_bound = _expect(points, Mixture(*(part[running] for part in mixture)))
        for whole, part in zip(mixture, _maximize(sums, reg_covar), strict=True):
            whole[running] = part
        changed = (new_bound - bound[running]).abs() >= _TOLERANCE
        bound[running] = new_bound
        running = running[changed | new_bound.isnan()]
        if len(running) == 0:
            break
    best = int(bound.nan_to_num(nan=-math.inf).argmax())
    if not bool(bound[best].isfinite()):
        raise ValueError(
            "x must have finite log-densities, but they overflow: "
            f"scale x down, or raise reg_covar from {reg_covar!r}."
        )
    return _uncentered(Mixture(*(part[best] for part in mixture)), center, x.dtype)


@torch.no_grad()
def estimate_mixture(x: Tensor, responsibilities: Tensor, *, reg_covar: float = 1e-6) -> Mixture:
    """The moments of points (n, d) weighted by responsibilities (n, K): one M step."""
    center = x.mean(0, keepdim=True, dtype=torch.float64)
    points = x.double() - center
    size = _block_size(points, responsibilities.shape[-1])
    blocks = zip(points.split(size), responsibilities.split(size), strict=True)
    sums = [weights.double().mT @ _features(part) for part, weights in blocks]
    return _uncentered(_maximize(torch.stack(sums).sum(0), reg_covar), center, x.dtype)


def _uncentered(mixture: Mixture, center: Tensor, dtype: torch.dtype) -> Mixture:
    moved = mixture._replace(means=mixture.means + center)
    return Mixture(*(part.to(dtype) for part in moved))


def _features(points: Tensor) -> Tensor:
    """(n, 2 d + 1)."""
    return torch.cat([points.square(), points, torch.ones_like(points[:, :1])], -1)


def _block_size(points: Tensor, columns: int) -> int:
    """The number of points per block, for results with ``columns`` columns."""
    budget = _BLOCK_CPU if points.device.type == "cpu" else _BLOCK_GPU
    return max(_SMALLEST_BLOCK, budget // max(columns, 2 * points.shape[-1] + 1))


def _distances(points: Tensor, centers: Tensor) -> Tensor:
    """The squared distances (..., n) from centers (..., d)."""
    squares = centers.square().sum(-1, keepdim=True)
    forms = torch.cat([torch.ones_like(centers), -2 * centers, squares], -1).flatten(0, -2)
    parts = points.split(_block_size(points, len(forms)))
    found = torch.cat([forms @ _features(part).mT for part in parts], -1)
    # Rounding may give small negative distances.
    return found.clamp_min_(0).reshape(*centers.shape[:-1], len(points))


def _kmeans_plusplus(
    points: Tensor, count: int, restarts: int, generator: torch.Generator | None
) -> Tensor:
    """Centers (R, K, d) by greedy k-means++: each is the best of a few candidates."""
    trials, device = 2 + int(math.log(count)), points.device
    first = torch.randint(len(points), (restarts, 1), generator=generator, device=device)
    centers = [points[first]]
    closest = _distances(points, centers[0])[:, 0]  # (R, n)
    for _ in range(1, count):
        mass = closest.cumsum(-1)
        uniform = torch.rand(
            (restarts, trials), dtype=mass.dtype, generator=generator, device=device
        )
        index = torch.searchsorted(mass, uniform * mass[:, -1:], right=True)
        candidates = points[index.clamp_max(len(points) - 1)]
        shorter = torch.minimum(closest[:, None], _distances(points, candidates))
        best = shorter.sum(-1).argmin(-1)[:, None, None]
        closest = shorter.take_along_dim(best, 1).squeeze(1)
        centers.append(candidates.take_along_dim(best, 1))
    return torch.cat(centers, 1)


def _expect(points: Tensor, mixture: Mixture) -> tuple[Tensor, Tensor]:
    """Sums of features by responsibilities, (R, K, 2 d + 1), and mean log-densities, (R,)."""
    log_weights, means, variances = mixture
    exponents = means.square() / variances + variances.log() + math.log(2 * math.pi)
    constants = log_weights - exponents.sum(-1) / 2
    forms = torch.cat([-0.5 / variances, means / variances, constants[..., None]], -1)
    sums = torch.zeros_like(forms)
    bound = forms.new_zeros(len(forms))
    for part in points.split(_block_size(points, forms[..., 0].numel())):
        features = _features(part)
        # In place: allocating a block costs more than the operations on it.
        joint = (forms.flatten(0, 1) @ features.mT).unflatten(0, forms.shape[:2])
        peak = joint.amax(1, keepdim=True)
        joint.sub_(peak).exp_()
        total = joint.sum(1, keepdim=True)
        bound += (total.log() + peak).sum((1, 2))
        joint.mul_(total.reciprocal())
        sums += (joint.flatten(0, 1) @ features).view_as(sums)
    return sums, bound / len(points)


def _maximize(sums: Tensor, reg_covar: float) -> Mixture:
    """The M step."""
    dims = sums.shape[-1] // 2
    # Keeps the mean and log-weight of a component without points finite.
    sizes = sums[..., -1] + 10 * torch.finfo(sums.dtype).eps
    averages = sums / sizes[..., None]
    means = averages[..., dims:-1]
    variances = (averages[..., :dims] - means.square()).clamp_min(0) + reg_covar
    return Mixture(sizes.log() - sizes.sum(-1, keepdim=True).log(), means, variances)

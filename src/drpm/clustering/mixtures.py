r"""Gaussian mixtures with diagonal covariances.

The log-density of a diagonal Gaussian is linear in the features :math:`(x^2, x, 1)` of a point, and
an M step needs only weighted sums of these features. An EM step is therefore two matrix products
around a softmax, for all components and restarts together. Squared distances are linear in the
same features.

Points are centered and processed in float64, because such linear forms lose digits far from the
origin. This happens in blocks: the features and responsibilities of all points are never in memory
at once.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

# Numbers in a block: the cache of a CPU, half a gigabyte on a GPU.
_BLOCK_CPU = 1 << 18
_BLOCK_GPU = 1 << 26
_SMALLEST_BLOCK = 64

# A fit ends when its lower bound changes by less than the tolerance.
_TOLERANCE = 1e-3
_MAX_ITERATIONS = 100


class Mixture(NamedTuple):
    r"""A mixture of K Gaussians with diagonal covariances.

    .. math:: p(x) = \sum_{k=1}^K \pi_k \prod_{j=1}^d \mathcal{N}(x_j; \mu_{kj}, \sigma_{kj}^2)

    Args:
        log_weights: :math:`\log \pi`, (..., K).
        means: :math:`\mu`, (..., K, d).
        variances: :math:`\sigma^2`, (..., K, d).

    Example:
        >>> mixture = Mixture(
        ...     log_weights=torch.tensor([0.25, 0.75]).log(),
        ...     means=torch.tensor([[0.0], [4.0]]),
        ...     variances=torch.ones(2, 1),
        ... )
        >>> mixture.log_densities(torch.tensor([[-1.0], [0.5], [3.0]])).argmax(-1)
        tensor([0, 0, 1])
    """

    log_weights: Tensor
    means: Tensor
    variances: Tensor

    def log_densities(self, x: Tensor) -> Tensor:
        r""":math:`\log \mathcal{N}(x; \mu_k, \sigma_k^2)` of points (..., n, d): (..., n, K)."""
        gaps = x[..., :, None, :] - self.means[..., None, :, :]
        squares = (gaps.square() / self.variances[..., None, :, :]).sum(-1)
        constant = self.variances.log().sum(-1) + x.shape[-1] * math.log(2 * math.pi)
        return -0.5 * (squares + constant[..., None, :])


@torch.no_grad()
def fit_mixture(
    x: Tensor,
    n_components: int,
    *,
    restarts: int = 10,
    reg_covar: float = 1e-6,
    generator: torch.Generator | None = None,
) -> Mixture:
    """Fit a mixture by expectation maximization (EM).

    Every component starts at a single point chosen by k-means++, with the smallest variance, so
    that the first step assigns each point to the nearest of them. Convergence is that of
    scikit-learn's ``GaussianMixture``.

    References:
        Dempster, Laird and Rubin, *Maximum likelihood from incomplete data via the EM algorithm*,
        1977. Arthur and Vassilvitskii, *k-means++: the advantages of careful seeding*, 2007.

    Args:
        x: Points (n, d).
        n_components: The number of components, at most n.
        restarts: The number of fits; the one with the highest lower bound is returned.
        reg_covar: Added to every variance.
        generator: The random number generator, on the device of x.

    Example:
        >>> noise = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
        >>> x = noise + torch.tensor([[-5.0, 0.0], [0.0, 5.0], [5.0, 0.0]]).repeat(100, 1)
        >>> mixture = fit_mixture(x, 3, generator=torch.Generator().manual_seed(0))
        >>> mixture.log_densities(x[:3]).argmax(-1).unique().numel()
        3
    """
    points = _Points(x)
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
    return points.uncentered(Mixture(*(part[best] for part in mixture)))


@torch.no_grad()
def estimate_mixture(x: Tensor, responsibilities: Tensor, *, reg_covar: float = 1e-6) -> Mixture:
    r"""Estimate a mixture from given responsibilities: one M step.

    .. math:: \pi_k \propto \sum_i r_{ik}, \quad \mu_k = \frac{\sum_i r_{ik} x_i}{\sum_i r_{ik}},
        \quad \sigma_k^2 = \frac{\sum_i r_{ik} (x_i - \mu_k)^2}{\sum_i r_{ik}} + \epsilon

    Args:
        x: Points (n, d).
        responsibilities: :math:`r`, (n, K). The mean of a component without points is that of all.
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
    blocks = points.blocks(responsibilities.shape[-1])
    sums = [responsibilities[rows].double().mT @ features for rows, features in blocks]
    return points.uncentered(_maximize(torch.stack(sums).sum(0), reg_covar))


class _Points:
    """Points (n, d), centered and expanded to features block by block."""

    def __init__(self, x: Tensor) -> None:
        self.x = x.detach()
        self.count, self.dims = x.shape
        self.center = self.x.mean(0, keepdim=True, dtype=torch.float64)

    def blocks(self, columns: int) -> Iterator[tuple[slice, Tensor]]:
        """Yield the features (B, 2 d + 1) of B points, for results with so many columns."""
        budget = _BLOCK_CPU if self.x.device.type == "cpu" else _BLOCK_GPU
        size = max(_SMALLEST_BLOCK, budget // max(columns, 2 * self.dims + 1))
        for first in range(0, self.count, size):
            rows = slice(first, first + size)
            centered = self.x[rows].double() - self.center
            ones = torch.ones_like(centered[:, :1])
            yield rows, torch.cat([centered.square(), centered, ones], -1)

    def at(self, index: Tensor) -> Tensor:
        """The centered points (..., d) at positions (...)."""
        return self.x[index].double() - self.center

    def distances(self, centers: Tensor) -> Tensor:
        """The squared distances (..., n) from centers (..., d)."""
        squares = centers.square().sum(-1, keepdim=True)
        forms = torch.cat([torch.ones_like(centers), -2 * centers, squares], -1).flatten(0, -2)
        blocks = [forms @ features.mT for _, features in self.blocks(len(forms))]
        # Rounding leaves a small distance between a point and itself, on either side of zero.
        return torch.cat(blocks, -1).clamp_min_(0).reshape(*centers.shape[:-1], self.count)

    def uncentered(self, mixture: Mixture) -> Mixture:
        """A mixture of the centered points as one of the points, in their type."""
        dtype = torch.promote_types(self.x.dtype, torch.float32)
        moved = mixture._replace(means=mixture.means + self.center)
        return Mixture(*(part.to(dtype) for part in moved))


def _kmeans_plusplus(
    points: _Points, count: int, restarts: int, generator: torch.Generator | None
) -> Tensor:
    """Centers (R, K, d) by greedy k-means++.

    A point becomes a candidate with a probability proportional to its squared distance from the
    nearest center so far. Of a few candidates, the one that leaves the smallest distances is taken.
    """
    device = points.x.device
    trials = 2 + int(math.log(count))
    first = torch.randint(points.count, (restarts, 1), generator=generator, device=device)
    centers = [points.at(first)]
    closest = points.distances(centers[0])[:, 0]  # (R, n)
    for _ in range(1, count):
        mass = closest.cumsum(-1)
        uniform = torch.rand(
            (restarts, trials), dtype=mass.dtype, generator=generator, device=device
        )
        index = torch.searchsorted(mass, uniform * mass[:, -1:], right=True)
        candidates = points.at(index.clamp_max(points.count - 1))
        shorter = torch.minimum(closest[:, None], points.distances(candidates))
        best = shorter.sum(-1).argmin(-1)[:, None, None]
        closest = shorter.take_along_dim(best, 1).squeeze(1)
        centers.append(candidates.take_along_dim(best, 1))
    return torch.cat(centers, 1)


def _expect(points: _Points, mixture: Mixture) -> tuple[Tensor, Tensor]:
    """The E step for mixtures (R, K, ...).

    Returns:
        Sums of features weighted by the responsibilities, (R, K, 2 d + 1), and the mean
        log-density of the points, (R,).
    """
    log_weights, means, variances = mixture
    exponents = means.square() / variances + variances.log() + math.log(2 * math.pi)
    constants = log_weights - exponents.sum(-1) / 2
    forms = torch.cat([-0.5 / variances, means / variances, constants[..., None]], -1)
    sums = torch.zeros_like(forms)
    bound = forms.new_zeros(len(forms))
    for _, features in points.blocks(forms[..., 0].numel()):
        # In place, because a fresh block costs more than the operations on it.
        joint = (forms.flatten(0, 1) @ features.mT).unflatten(0, forms.shape[:2])
        peak = joint.amax(1, keepdim=True)
        joint.sub_(peak).exp_()
        total = joint.sum(1, keepdim=True)
        bound += (total.log() + peak).sum((1, 2))
        joint.mul_(total.reciprocal())
        sums += (joint.flatten(0, 1) @ features).view_as(sums)
    return sums, bound / points.count


def _maximize(sums: Tensor, reg_covar: float) -> Mixture:
    """The M step, from sums (..., K, 2 d + 1) of features."""
    dims = sums.shape[-1] // 2
    # A component that has lost all points keeps a finite mean and a finite log-weight.
    sizes = sums[..., -1] + 10 * torch.finfo(sums.dtype).eps
    averages = sums / sizes[..., None]
    means = averages[..., dims:-1]
    variances = (averages[..., :dims] - means.square()).clamp_min(0) + reg_covar
    return Mixture(sizes.log() - sizes.sum(-1, keepdim=True).log(), means, variances)

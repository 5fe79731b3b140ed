"""The Gaussians that latent codes come from, one a cluster."""

import math

import torch
from torch import Tensor, nn

from drpm.clustering.mixtures import Mixture
from drpm.nn.gaussians import Posterior


class MixturePrior(nn.Module):
    """K diagonal Gaussians with log-weights.

    A refit may put new Gaussians in place, either as values that training goes on from, or
    detached: then they stay until the next one, and training moves them no more.

    Arguments:
        clusters: K.
        latent: Their dimensions.
    """

    detached: Tensor
    fixed_means: Tensor
    fixed_log_variances: Tensor
    fixed_log_weights: Tensor

    def __init__(self, clusters: int, latent: int) -> None:
        super().__init__()
        self.means = nn.Parameter(torch.zeros(clusters, latent))
        self.log_variances = nn.Parameter(torch.zeros(clusters, latent))
        self.log_weights = nn.Parameter(torch.full((clusters,), -math.log(clusters)))
        self.register_buffer("detached", torch.zeros(()))
        self.register_buffer("fixed_means", torch.zeros(clusters, latent))
        self.register_buffer("fixed_log_variances", torch.zeros(clusters, latent))
        self.register_buffer("fixed_log_weights", torch.zeros(clusters))

    def mixture(self) -> Mixture:
        """The Gaussians now in place."""
        # A choice between tensors, not between branches: a captured step makes it anew each time.
        fixed = self.detached > 0.5
        log_variances = torch.where(fixed, self.fixed_log_variances, self.log_variances)
        return Mixture(
            torch.where(fixed, self.fixed_log_weights, self.log_weights).log_softmax(-1),
            torch.where(fixed, self.fixed_means, self.means),
            log_variances.exp(),
        )

    @torch.no_grad()
    def place(self, mixture: Mixture, *, detached: bool = False) -> None:
        """Put a fitted mixture in place."""
        values = (mixture.means, mixture.variances.log(), mixture.log_weights)
        for name, value in zip(("means", "log_variances", "log_weights"), values, strict=True):
            getattr(self, f"fixed_{name}" if detached else name).copy_(value)
        self.detached.fill_(float(detached))


def log_densities(points: Tensor, mixture: Mixture) -> Tensor:
    """(..., n, K): log N(point; mean_k, variance_k), without weights."""
    gaps = points[..., :, None, :] - mixture.means[..., None, :, :]
    log_variances = mixture.variances.log()
    squares = (gaps.square() / mixture.variances[..., None, :, :]).sum(-1)
    constant = log_variances.sum(-1) + points.shape[-1] * math.log(2 * math.pi)
    return -0.5 * (squares + constant[..., None, :])


def divergences(posterior: Posterior, mixture: Mixture) -> Tensor:
    """(..., n, K): KL of every posterior from every Gaussian of the prior."""
    gaps = posterior.mean[..., :, None, :] - mixture.means[..., None, :, :]
    spread = posterior.log_variance.exp()[..., :, None, :] + gaps.square()
    ratio = (spread / mixture.variances[..., None, :, :]).sum(-1)
    logs = mixture.variances.log().sum(-1)[..., None, :] - posterior.log_variance.sum(-1)[..., None]
    return 0.5 * (ratio + logs - posterior.mean.shape[-1])

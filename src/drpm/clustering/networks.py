"""The autoencoder that all clusterings share."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drpm.clustering.config import NetworkConfig
from drpm.nn.dense import dense_layers
from drpm.nn.gaussians import Posterior


class Autoencoder(nn.Module):
    """From rows (..., d) to latent Gaussians, and from latent codes back.

    Arguments:
        columns: The length d of a row.
        config: The widths.
        likelihood: ``"bernoulli"`` or ``"gaussian"``, what a decoded row is the parameter of.
    """

    def __init__(self, columns: int, config: NetworkConfig, likelihood: str) -> None:
        super().__init__()
        self.likelihood, self.deviation = likelihood, config.deviation
        self.encoder = dense_layers([columns, *config.encoder])
        self.mean = nn.Linear(config.encoder[-1], config.latent)
        self.log_variance = nn.Linear(config.encoder[-1], config.latent)
        self.decoder = nn.Sequential(
            dense_layers([config.latent, *config.decoder]), nn.Linear(config.decoder[-1], columns)
        )

    def posterior(self, features: Tensor) -> Posterior:
        """Of rows that went through the encoder's layers."""
        # Both heads in one product: narrow ones take as long as twice as wide ones.
        heads = (self.mean, self.log_variance)
        weight, bias = torch.cat([x.weight for x in heads]), torch.cat([x.bias for x in heads])
        return Posterior(*F.linear(features, weight, bias).chunk(2, -1))

    def decode(self, codes: Tensor) -> Tensor:
        """The mean row of every code."""
        raw: Tensor = self.decoder(codes)
        return torch.sigmoid(raw) if self.likelihood == "bernoulli" else raw

    def log_likelihood(self, rows: Tensor, codes: Tensor) -> Tensor:
        """log p(row | code), summed over the columns; up to a constant if Gaussian."""
        raw: Tensor = self.decoder(codes)
        rows = rows.expand_as(raw)
        if self.likelihood == "bernoulli":
            return -F.binary_cross_entropy_with_logits(raw, rows, reduction="none").sum(-1)
        return -0.5 * ((raw - rows) / self.deviation).square().sum(-1)

    def reset_variance(self, log_variance: float = -2.0) -> None:
        """The same variance for every row, where pretraining taught none."""
        nn.init.zeros_(self.log_variance.weight)
        nn.init.constant_(self.log_variance.bias, log_variance)

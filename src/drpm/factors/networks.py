"""The convolutional autoencoder that all methods share."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from drpm.factors.layers import Doubling, Halving
from drpm.nn.gaussians import Posterior
from drpm.training.errors import ConfigError

# For images of 64 x 64; smaller ones take the first of them, every layer halving the side.
CHANNELS = (32, 32, 64, 64)
WINDOWS = (4, 4, 2, 2)
HIDDEN = 256
_SMALLEST = 4  # what is left of an image's side
SIDES = tuple(_SMALLEST << depth for depth in range(1, len(CHANNELS) + 1))


def require_sides(height: int, width: int) -> None:
    """Refuse images of sizes that the layers are not made for."""
    if height != width or height not in SIDES:
        *others, largest = SIDES
        raise ConfigError(
            f"images must be squares with a side of {', '.join(map(str, others))} or {largest} "
            f"pixels, but got {height} x {width}; load_pairs resizes them to its image_size, and "
            "drpm factors to --image-size."
        )


class ConvolutionalAutoencoder(nn.Module):
    """From images (..., C, H, W) with values in [0, 1] to latent Gaussians, and back.

    References:
        Locatello et al., "Weakly-supervised disentanglement without compromises", 2020.

    Arguments:
        shape: C, H and W; both sides are 8, 16, 32 or 64.
        latent: Dimensions of the latent space.
    """

    def __init__(self, shape: tuple[int, int, int], latent: int) -> None:
        super().__init__()
        colours, height, width = shape
        require_sides(height, width)
        depth = SIDES.index(height) + 1
        widths = (colours, *CHANNELS[:depth])
        layers: list[nn.Module] = []
        for (given, made), window in zip(pairwise(widths), WINDOWS[:depth], strict=True):
            layers += [Halving(given, made, window), nn.ReLU()]
        deepest = widths[-1] * _SMALLEST**2
        self.encoder = nn.Sequential(*layers, nn.Flatten(-3), nn.Linear(deepest, HIDDEN), nn.ReLU())
        # Means and log-variances.
        self.heads = nn.Linear(HIDDEN, 2 * latent)
        self.dense = nn.Sequential(
            nn.Linear(latent, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, deepest),
            nn.ReLU(),
            nn.Unflatten(-1, (_SMALLEST, _SMALLEST, widths[-1])),
        )
        back: list[nn.Module] = []
        for given, made in pairwise((*widths[:0:-1], colours)):
            back += [Doubling(given, made), nn.ReLU()]
        self.decoder = nn.Sequential(*back[:-1])
        # As in the study whose layers these are; torch's own start is some times smaller, and with
        # it codes stay empty for long.
        for module in self.modules():
            if isinstance(module, nn.Linear | Halving | Doubling):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def posterior(self, images: Tensor) -> Posterior:
        # Pairs are drawn in float32, whatever the precision of the model.
        flat = images.flatten(0, -4).to(self.heads.weight.dtype)
        mean, log_variance = self.heads(self.encoder(flat.movedim(1, -1))).chunk(2, -1)
        leading = images.shape[:-3]
        return Posterior(mean.unflatten(0, leading), log_variance.unflatten(0, leading))

    def logits(self, codes: Tensor) -> Tensor:
        """What the pixels' probabilities are the sigmoid of, (..., C, H, W)."""
        flat: Tensor = self.decoder(self.dense(codes.flatten(0, -2)))
        images: Tensor = flat.movedim(-1, 1).unflatten(0, codes.shape[:-1])
        return images

    def decode(self, codes: Tensor) -> Tensor:
        """The mean image of every code."""
        return torch.sigmoid(self.logits(codes))

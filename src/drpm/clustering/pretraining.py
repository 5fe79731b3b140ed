"""Pretraining by twin-contrastive learning and reconstruction.

References:
    Li et al., "Twin contrastive learning for online clustering", 2022.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drpm.clustering.config import PretrainingConfig
from drpm.clustering.models import Autoencoder
from drpm.training.errors import ConfigError
from drpm.training.program import Batch, Terms

View = Callable[[Tensor, torch.Generator | None], Tensor]
Uniform = Callable[[float, float], Tensor]  # one random number in a range per image


def projector(width: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, out))


class ContrastiveModel(nn.Module):
    """An autoencoder with the instance head and the cluster head of contrastive learning."""

    def __init__(
        self, autoencoder: Autoencoder, clusters: int, config: PretrainingConfig, shape: torch.Size
    ) -> None:
        super().__init__()
        self.autoencoder, self.config, self.shape = autoencoder, config, shape
        width = autoencoder.mean.in_features
        self.instances = projector(width, autoencoder.mean.out_features)
        self.clusters = projector(width, clusters)


def contrastive_loss(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """The cross-entropy of identifying the other view of each row."""
    both = F.normalize(torch.cat([first, second]), dim=-1)
    count = len(first)
    similarity = both @ both.mT / temperature
    itself = torch.eye(2 * count, dtype=torch.bool, device=both.device)
    partner = torch.arange(2 * count, device=both.device).roll(count)
    return F.cross_entropy(similarity.masked_fill(itself, -torch.inf), partner)


def imbalance(probs: Tensor) -> Tensor:
    """The KL divergence of a batch's mean assignment (n, K) from the uniform distribution."""
    mean = probs.mean(0)
    return math.log(probs.shape[-1]) + (mean * mean.clamp_min(1e-12).log()).sum()


def reconstruction_error(autoencoder: Autoencoder, features: Tensor, rows: Tensor) -> Tensor:
    """The mean squared error of every row."""
    return (autoencoder.decode(autoencoder.mean(features)) - rows).square().mean(-1)


def contrastive_objective(
    model: ContrastiveModel,
    batch: Batch,
    schedule: Mapping[str, Tensor],
    generator: torch.Generator | None,
) -> Terms:
    """Contrastive losses between instances and between clusters, with reconstruction."""
    config, first = model.config, batch["rows"]
    view = choose_view(config.views, model.shape)
    second = view(first.unflatten(-1, model.shape), generator).flatten(1)
    # Both views in one pass.
    rows = torch.cat([first, second])
    features = model.autoencoder.encoder(rows)
    one, other = model.instances(features).chunk(2)
    left, right = model.clusters(features).softmax(-1).chunk(2)
    # For tables, both views decode to the row, since their noise is not a pattern to learn.
    targets = torch.cat([first, first]) if len(model.shape) == 1 else rows
    terms = {
        "instances": contrastive_loss(one, other, config.instance_temperature),
        "clusters": contrastive_loss(left.mT, right.mT, config.cluster_temperature),
        "imbalance": imbalance(left) + imbalance(right),
        "reconstruction": reconstruction_error(model.autoencoder, features, targets).sum() / 2,
    }
    return {"loss": torch.stack(list(terms.values())).sum(), **terms}


def reconstruction_objective(
    model: ContrastiveModel,
    batch: Batch,
    schedule: Mapping[str, Tensor],
    generator: torch.Generator | None,
) -> Terms:
    """The mean squared error alone, as an ablation."""
    features = model.autoencoder.encoder(batch["rows"])
    return {"loss": reconstruction_error(model.autoencoder, features, batch["rows"]).mean()}


def affine(
    uniform: Uniform, degrees: float, translation: float, scale: tuple[float, float], shear: float
) -> tuple[Tensor, Tensor]:
    """A random rotation, translation (a share of the image), scale and shear for :func:`warp`."""
    turn = uniform(-degrees, degrees) * math.pi / 180
    zoom = 1 / uniform(*scale)
    lean = [(uniform(-shear, shear) * math.pi / 180).tan() for _ in range(2)]
    cosine, sine, one = turn.cos() * zoom, turn.sin() * zoom, torch.ones_like(turn)
    rotation = _matrix([[cosine, -sine], [sine, cosine]])
    matrix = rotation @ _matrix([[one, lean[0]], [lean[1], one]])
    reach = 2 * translation
    return matrix, torch.stack([uniform(-reach, reach) for _ in range(2)], -1)


def resized_crop(
    uniform: Uniform, area: tuple[float, float], aspect: tuple[float, float] = (3 / 4, 4 / 3)
) -> tuple[Tensor, Tensor]:
    """A random crop, resized to the image, for :func:`warp`; ``aspect`` is width over height."""
    part = uniform(*area)
    ratio = uniform(math.log(aspect[0]), math.log(aspect[1])).exp()
    width, height = ((part * x).sqrt().clamp_max(1) for x in (ratio, 1 / ratio))
    zero = torch.zeros_like(width)
    shift = torch.stack([uniform(-1, 1) * (1 - size) for size in (width, height)], -1)
    return _matrix([[width, zero], [zero, height]]), shift


def warp(images: Tensor, matrix: Tensor, shift: Tensor) -> Tensor:
    """Sample images (N, C, H, W) at ``matrix p + shift`` for every point p in [-1, 1]^2."""
    height, width = images.shape[-2:]
    y = (torch.arange(height, dtype=images.dtype, device=images.device) + 0.5) * 2 / height - 1
    x = (torch.arange(width, dtype=images.dtype, device=images.device) + 0.5) * 2 / width - 1
    points = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)  # (H, W, 2)
    grid = torch.einsum("hwj,nij->nhwi", points, matrix) + shift[:, None, None, :]
    return F.grid_sample(images, grid, align_corners=False)


def blur(images: Tensor, sigma: Tensor) -> Tensor:
    """A Gaussian blur of images (N, C, H, W) by sigma (N,), with three taps per direction."""
    side = (-0.5 / sigma.square()).exp()[:, None, None, None]
    for dim in (-1, -2):
        padding = (1, 1, 0, 0) if dim == -1 else (0, 0, 1, 1)
        wide, size = F.pad(images, padding, mode="reflect"), images.shape[dim]
        near = wide.narrow(dim, 0, size) + wide.narrow(dim, 2, size)
        images = (images + side * near) / (1 + 2 * side)
    return images


def _matrix(rows: list[list[Tensor]]) -> Tensor:
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def _uniform(images: Tensor, generator: torch.Generator | None, low: float, high: float) -> Tensor:
    numbers = torch.rand(len(images), dtype=images.dtype, device=images.device, generator=generator)
    return low + (high - low) * numbers


def _view_digits(images: Tensor, generator: torch.Generator | None) -> Tensor:
    uniform = partial(_uniform, images, generator)
    return warp(images, *affine(uniform, 20, 0.12, (0.8, 1.2), 10))


def _view_mnist(images: Tensor, generator: torch.Generator | None) -> Tensor:
    """An affine transformation or a crop, each with probability 1/2."""
    uniform = partial(_uniform, images, generator)
    coin = uniform(0, 1) < 0.5
    one = affine(uniform, 30, 0.2, (0.75, 1.25), 10)
    other = resized_crop(uniform, (0.5, 1.2), (0.8, 1.2))
    matrix = torch.where(coin[:, None, None], one[0], other[0])
    return warp(images, matrix, torch.where(coin[:, None], one[1], other[1]))


def _view_fashion(images: Tensor, generator: torch.Generator | None) -> Tensor:
    """A crop, a horizontal flip with probability 1/2, and a blur."""
    uniform = partial(_uniform, images, generator)
    matrix, shift = resized_crop(uniform, (0.2, 1.0))
    mirrored = torch.where(uniform(0, 1) < 0.5, -1.0, 1.0)
    matrix = torch.stack([matrix[..., 0] * mirrored[:, None], matrix[..., 1]], -1)
    return blur(warp(images, matrix, shift), uniform(0.1, 2.0))


def _view_rows(rows: Tensor, generator: torch.Generator | None) -> Tensor:
    """Gaussian noise and dropout of columns, for tables."""
    like: dict[str, Any] = {"dtype": rows.dtype, "device": rows.device, "generator": generator}
    noise, uniform = torch.randn(rows.shape, **like), torch.rand(rows.shape, **like)
    return (rows + 0.5 * noise) * (uniform > 0.2)


VIEWS: dict[str, View] = {
    "digits": _view_digits,
    "mnist": _view_mnist,
    "fashion-mnist": _view_fashion,
    "noise": _view_rows,
}


def choose_view(name: str, shape: torch.Size) -> View:
    """The augmentation for an input shape; ``"auto"`` is weaker for small images."""
    if name == "auto":
        small = len(shape) == 3 and min(shape[-2:]) < 16
        name = "noise" if len(shape) != 3 else "digits" if small else "mnist"
    if len(shape) != 3 and name != "noise":
        raise ConfigError(f"pretraining.views must be 'noise' for tables, but got {name!r}.")
    return VIEWS[name]

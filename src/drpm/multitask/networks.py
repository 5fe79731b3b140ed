"""The shared encoders, and the heads of all tasks."""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drpm.multitask.config import NetworkConfig
from drpm.training.errors import ConfigError


def drop(
    values: Tensor, rate: float, shape: Sequence[int], generator: torch.Generator | None
) -> Tensor:
    """Dropout without rescaling, by a mask of some shape that is broadcast."""
    uniform = torch.rand(shape, dtype=values.dtype, device=values.device, generator=generator)
    return values * (uniform >= rate)


class LeNetEncoder(nn.Module):
    """Two convolutions and a dense layer: images (B, C, H, W) to features (B, n).

    References:
        LeCun et al., "Gradient-based learning applied to document recognition", 1998. Sener and
        Koltun, "Multi-task learning as multi-objective optimization", 2018.
    """

    def __init__(self, shape: tuple[int, ...], network: NetworkConfig) -> None:
        super().__init__()
        colours, *sides = shape
        # A convolution takes a border of two pixels away, and pooling halves what is left.
        left = [((side - 4) // 2 - 4) // 2 for side in sides]
        if min(left) < 1:
            raise ConfigError(
                f"images must have sides of at least 16 pixels for the encoder 'lenet', "
                f"but got {sides[0]} x {sides[1]}; use network.encoder=residual for smaller ones "
                "and, say, network.channels=16,32."
            )
        one, two = network.channels
        self.dropout = network.dropout
        self.first = nn.Conv2d(colours, one, 5)
        self.second = nn.Conv2d(one, two, 5)
        self.dense = nn.Linear(two * left[0] * left[1], network.width)

    def forward(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        hidden = F.relu(F.max_pool2d(self.first(images), 2))
        hidden = self.second(hidden)
        if self.training:
            # The same channels for all images of a batch.
            hidden = drop(hidden, self.dropout, (hidden.shape[-3], 1, 1), generator)
        hidden = F.relu(F.max_pool2d(hidden, 2))
        return F.relu(self.dense(hidden.flatten(1)))


class ResidualEncoder(nn.Module):
    """Stages of residual blocks, the mean of each quarter of the image, and a dense layer.

    References:
        He et al., "Deep residual learning for image recognition", 2016. Sener and Koltun,
        "Multi-task learning as multi-objective optimization", 2018.
    """

    def __init__(self, shape: tuple[int, ...], network: NetworkConfig) -> None:
        super().__init__()
        channels = network.channels
        self.stem = nn.Conv2d(shape[0], channels[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels[0])
        blocks = []
        for stage, (given, made) in enumerate(pairwise((channels[0], *channels))):
            for block in range(2):
                halves = stage > 0 and block == 0
                inputs, stride = made if block else given, 2 if halves else 1
                blocks.append(_Block(inputs, made, stride, network.dropout))
        self.blocks = nn.Sequential(*blocks)
        self.dense = nn.Linear(4 * channels[-1], network.width)

    def forward(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        hidden = self.blocks(F.relu(self.norm(self.stem(images))))
        features: Tensor = self.dense(F.adaptive_avg_pool2d(hidden, 2).flatten(1))
        return features


class _Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, given: int, made: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout2d(dropout)
        self.first = nn.Conv2d(given, made, 3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(made)
        self.second = nn.Conv2d(made, made, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(made)
        self.around: nn.Module = nn.Identity()
        if stride != 1 or given != made:
            self.around = nn.Sequential(
                nn.Conv2d(given, made, 1, stride=stride, bias=False), nn.BatchNorm2d(made)
            )

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.dropout(F.relu(self.first_norm(self.first(images))))
        hidden = self.second_norm(self.second(hidden))
        return F.relu(hidden + self.around(images))


def build_encoder(shape: tuple[int, ...], network: NetworkConfig) -> nn.Module:
    """The encoder of the settings."""
    encoder = LeNetEncoder if network.encoder == "lenet" else ResidualEncoder
    return encoder(shape, network)


class TaskHeads(nn.Module):
    """A hidden layer, if any, and an output layer for each task, batched over tasks.

    Tasks may have different numbers of classes: logits of absent classes are minus infinity.
    """

    absent: Tensor

    def __init__(self, classes: Sequence[int], network: NetworkConfig) -> None:
        super().__init__()
        self.dropout = network.dropout
        most = max(classes)
        self.has_hidden = network.head > 0
        # Initialized as torch's own layers.
        if self.has_hidden:
            hidden = [nn.Linear(network.width, network.head) for _ in classes]
            self.hidden_weight, self.hidden_bias = _stacked(hidden)
        outputs = [nn.Linear(network.head or network.width, most) for _ in classes]
        self.weight, self.bias = _stacked(outputs)
        absent = torch.tensor([[[c >= count for c in range(most)]] for count in classes])
        self.register_buffer("absent", absent, persistent=False)

    def forward(self, features: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Logits (T, B, classes) from the features of each task, (T, B, n)."""
        if self.has_hidden:
            features = F.relu(features @ self.hidden_weight.mT + self.hidden_bias)
            if self.training:
                features = drop(features, self.dropout, features.shape, generator)
        logits = features @ self.weight.mT + self.bias
        return logits.masked_fill(self.absent, -torch.inf)


def _stacked(layers: Sequence[nn.Linear]) -> tuple[nn.Parameter, nn.Parameter]:
    weights = torch.stack([layer.weight.detach() for layer in layers])
    biases = torch.stack([layer.bias.detach() for layer in layers])
    return nn.Parameter(weights), nn.Parameter(biases.unsqueeze(1))

"""The shared encoders, the heads of all tasks, and the methods to share a network."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from drpm.multitask.config import MultitaskConfig, NetworkConfig, Weighting
from drpm.nn import TaskPartition, TaskSplit
from drpm.relaxation.operators import apply
from drpm.training.config import check_setting
from drpm.training.errors import ConfigError


def drop(values: Tensor, rate: float, shape: Sequence[int], generator: Generator | None) -> Tensor:
    """Dropout without rescaling, by a broadcast mask of a given shape."""
    uniform = torch.rand(shape, dtype=values.dtype, device=values.device, generator=generator)
    return values * (uniform >= rate)


class LeNetEncoder(nn.Module):
    """Two convolutions and a dense layer: images (B, C, H, W) to features (B, n).

    References:
        LeCun et al., 1998; Sener and Koltun, 2018.
    """

    def __init__(self, shape: tuple[int, ...], network: NetworkConfig) -> None:
        super().__init__()
        colors, *sides = shape
        # A convolution removes a border of two pixels, and pooling halves the sides.
        left = [((side - 4) // 2 - 4) // 2 for side in sides]
        if min(left) < 1:
            raise ConfigError(
                f"images must have sides of at least 16 pixels for the encoder 'lenet', "
                f"but got {sides[0]} x {sides[1]}; use network.encoder=residual for smaller ones "
                "and, say, network.channels=16,32."
            )
        one, two = network.channels
        self.dropout = network.dropout
        self.first = nn.Conv2d(colors, one, 5)
        self.second = nn.Conv2d(one, two, 5)
        self.dense = nn.Linear(two * left[0] * left[1], network.width)

    def forward(self, images: Tensor, generator: Generator | None = None) -> Tensor:
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
        He et al., 2016; Sener and Koltun, 2018.
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
                blocks.append(_ResidualBlock(inputs, made, stride, network.dropout))
        self.blocks = nn.Sequential(*blocks)
        self.dense = nn.Linear(4 * channels[-1], network.width)

    def forward(self, images: Tensor, generator: Generator | None = None) -> Tensor:
        hidden = self.blocks(F.relu(self.norm(self.stem(images))))
        features: Tensor = self.dense(F.adaptive_avg_pool2d(hidden, 2).flatten(1))
        return features


class _ResidualBlock(nn.Module):
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
        if self.has_hidden:
            self.hidden_weight, self.hidden_bias = _linear(network.width, network.head, classes)
        self.weight, self.bias = _linear(network.head or network.width, most, classes)
        absent = torch.tensor([[[c >= count for c in range(most)]] for count in classes])
        self.register_buffer("absent", absent, persistent=False)

    def forward(self, features: Tensor, generator: Generator | None = None) -> Tensor:
        """Logits (T, B, classes) from the features of each task, (T, B, n)."""
        if self.has_hidden:
            features = F.relu(features @ self.hidden_weight.mT + self.hidden_bias)
            if self.training:
                features = drop(features, self.dropout, features.shape, generator)
        logits = features @ self.weight.mT + self.bias
        return logits.masked_fill(self.absent, -torch.inf)


def _linear(inputs: int, outputs: int, tasks: Sequence[int]) -> tuple[nn.Parameter, nn.Parameter]:
    """Weights (T, outputs, inputs) and biases (T, 1, outputs), initialized like ``nn.Linear``."""
    layers = [nn.Linear(inputs, outputs) for _ in tasks]
    weights = torch.stack([layer.weight.detach() for layer in layers])
    biases = torch.stack([layer.bias.detach() for layer in layers])
    return nn.Parameter(weights), nn.Parameter(biases.unsqueeze(1))


# A method overrides the features of each task, or the weights of their losses.


class UniformScaling(nn.Module):
    """All tasks use all neurons; the loss is the weighted mean of the task losses.

    References:
        Kurin et al., 2022.
    """

    task_weights: Tensor
    size_penalty = 0.0  # the weight of the penalty on unequal sizes

    def __init__(self, shape: tuple[int, ...], num_tasks: int, config: MultitaskConfig) -> None:
        super().__init__()
        self.config, self.num_tasks = config, num_tasks
        self.encoder: nn.Module | None = None  # a second encoder, only for the method
        expected = f"{num_tasks} numbers, one for each task, or none"
        check_setting(config, "task_weights", expected, lambda x: len(x) in (0, num_tasks))
        weights = torch.tensor(config.task_weights or (1.0,) * num_tasks)
        self.register_buffer("task_weights", weights / weights.sum(), persistent=False)

    def share(self, features: Tensor, context: Tensor | None, temperature: Tensor) -> TaskSplit:
        """The features of each task, from features (B, n) and those of its own encoder, if any."""
        copies = features.expand(self.num_tasks, *features.shape)
        sizes = copies.new_full((len(features), self.num_tasks), features.shape[-1])
        return TaskSplit(copies, copies.new_ones(()).expand_as(copies), sizes)

    def weigh(self, losses: Tensor) -> Tensor:
        """The weighted losses of the tasks, (T,)."""
        return self.task_weights * losses


class UncertaintyWeighting(UniformScaling):
    r"""Losses weighted by learned variances: :math:`L_t / \sigma_t^2 + \log \sigma_t`.

    References:
        Kendall, Gal and Cipolla, 2018.
    """

    def __init__(self, shape: tuple[int, ...], num_tasks: int, config: MultitaskConfig) -> None:
        super().__init__(shape, num_tasks, config)
        self.log_variances = nn.Parameter(torch.zeros(num_tasks))

    def weigh(self, losses: Tensor) -> Tensor:
        weighted = (-self.log_variances).exp() * losses + 0.5 * self.log_variances
        return self.task_weights * weighted


class GradientCombination(UniformScaling):
    """All tasks use all neurons; gradients are combined at the shared features."""

    def share(self, features: Tensor, context: Tensor | None, temperature: Tensor) -> TaskSplit:
        split = super().share(features, context, temperature)
        if not self.training:
            return split
        weighting = find_weighting(self.config.weighting)
        return split._replace(features=apply(CombineGradients, features, self.num_tasks, weighting))


class NeuronPartition(UniformScaling):
    """DRPM-MTL: a noise-free partition with a relaxed order gives each task its own neurons."""

    subsets: Tensor | None

    def __init__(self, shape: tuple[int, ...], num_tasks: int, config: MultitaskConfig) -> None:
        super().__init__(shape, num_tasks, config)
        width = config.network.width
        if config.partition == "sample":
            self.encoder = build_encoder(shape, config.network)
        default = 1 / width if num_tasks > 2 else 0.0
        self.size_penalty = default if config.size_penalty is None else config.size_penalty
        self.layer = TaskPartition(
            width,
            num_tasks,
            in_features=None if self.encoder is None else width,
            affinities=bool(config.affinities),
            common=bool(config.common),
            clip=bool(config.clip),
        )
        # The subset of every task, saved with the model.
        order = None if config.task_order == "given" else torch.arange(num_tasks).flip(0)
        if config.task_order == "shuffled":
            order = torch.randperm(num_tasks)
        self.register_buffer("subsets", order)

    def share(self, features: Tensor, context: Tensor | None, temperature: Tensor) -> TaskSplit:
        split = self.layer.split(features, context, temperature=temperature)
        sizes = split.sizes.expand(len(features), -1)
        if self.subsets is None:
            return split._replace(sizes=sizes)
        order = self.subsets
        sizes = torch.cat([sizes[:, order], sizes[:, self.num_tasks :]], -1)
        return TaskSplit(split.features[order], split.masks[order], sizes, split.common)


_WEIGHTINGS: Final[dict[Weighting, str]] = {
    "aligned-mtl": "AlignedMTLWeighting",
    "mgda": "MGDAWeighting",
    "imtl-g": "IMTLGWeighting",
}


@cache
def find_weighting(name: Weighting) -> nn.Module:
    """TorchJD's function from the Gramian of the tasks' gradients (T, T) to weights (T,).

    References:
        Quinton and Rey, 2024 (TorchJD); Senushkin et al., 2023 (``aligned-mtl``); Sener and Koltun,
        2018 (``mgda``); Liu et al., 2021 (``imtl-g``).
    """
    try:
        from torchjd import aggregation
    except ImportError as error:
        raise ConfigError(
            "The method 'gradient' needs the package torchjd, which is not installed; "
            "install it with: pip install 'drpm[torchjd]'."
        ) from error
    weighting: nn.Module = getattr(aggregation, _WEIGHTINGS[name])()
    return weighting


class CombineGradients(torch.autograd.Function):
    """A copy of the features for each task, (T, ...), with combined gradients.

    Losses and TorchJD's weights are both averages, so gradients are multiplied by T, to be as large
    as those of ULS.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, num_tasks: int, weighting: nn.Module) -> Tensor:
        ctx.weighting = weighting
        return features.expand(num_tasks, *features.shape).clone()

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None, None]:
        # In float64, because weightings test for linear dependence.
        rows = gradients.flatten(1).double()
        weights = len(gradients) * ctx.weighting(rows @ rows.T).to(gradients.dtype)
        return torch.tensordot(weights, gradients, 1), None, None


METHODS: dict[str, type[UniformScaling]] = {
    "drpm": NeuronPartition,
    "uls": UniformScaling,
    "uncertainty": UncertaintyWeighting,
    "gradient": GradientCombination,
}

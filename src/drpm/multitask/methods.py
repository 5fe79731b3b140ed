"""How tasks share a network: the only difference between the methods.

A new method is one class: what every task sees of the features, and how their losses are weighted.
"""

from abc import ABC, abstractmethod
from functools import cache
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from drpm.multitask.config import MultitaskConfig, Weighting
from drpm.multitask.networks import build_encoder
from drpm.nn import TaskPartition, TaskSplit, size_penalty
from drpm.relaxation.mapping import apply
from drpm.training.errors import ConfigError


class SharingInput(NamedTuple):
    """The input of a method.

    Args:
        images: (B, C, H, W).
        features: (B, n), of the shared encoder.
        temperature: Of the partition.
        generator: Source of the noise of dropout.
    """

    images: Tensor
    features: Tensor
    temperature: Tensor
    generator: torch.Generator | None


class SharingMethod(nn.Module, ABC):
    """A method of sharing features among tasks.

    Args:
        shape: Of an image: C, H and W.
        num_tasks: T.
        config: The settings.
    """

    task_weights: Tensor

    def __init__(self, shape: tuple[int, ...], num_tasks: int, config: MultitaskConfig) -> None:
        super().__init__()
        self.config, self.num_tasks = config, num_tasks
        given = config.task_weights or (1.0,) * num_tasks
        if len(given) != num_tasks:
            raise ConfigError(
                f"task_weights must be {num_tasks}, one for each task, or none, "
                f"but got {len(given)}."
            )
        weights = torch.tensor(given)
        self.register_buffer("task_weights", weights / weights.sum(), persistent=False)

    @abstractmethod
    def share(self, given: SharingInput) -> TaskSplit:
        """The features that each task sees."""

    def weigh(self, losses: Tensor) -> Tensor:
        """The weighted losses of the tasks, (T,)."""
        return self.task_weights * losses

    def penalty(self, sizes: Tensor) -> Tensor | None:
        """A further loss term, if any, from the number of neurons of each task, (B, T)."""
        return None


class UniformScaling(SharingMethod):
    """All tasks use all neurons; the loss is the weighted mean of the task losses.

    References:
        Kurin et al., "In defense of the unitary scalarization for deep multi-task learning", 2022.
    """

    def share(self, given: SharingInput) -> TaskSplit:
        copies = self.copies(given.features)
        sizes = copies.new_full((copies.shape[1], self.num_tasks), copies.shape[-1])
        return TaskSplit(copies, copies.new_ones(()).expand_as(copies), sizes)

    def copies(self, features: Tensor) -> Tensor:
        """A copy of the features for each task, (T, B, n)."""
        return features.expand(self.num_tasks, *features.shape)


class UncertaintyWeighting(UniformScaling):
    r"""Losses weighted by learned variances: :math:`L_t / \sigma_t^2 + \log \sigma_t`.

    References:
        Kendall, Gal and Cipolla, "Multi-task learning using uncertainty to weigh losses for scene
        geometry and semantics", 2018.
    """

    def __init__(self, shape: tuple[int, ...], num_tasks: int, config: MultitaskConfig) -> None:
        super().__init__(shape, num_tasks, config)
        self.log_variances = nn.Parameter(torch.zeros(num_tasks))

    def weigh(self, losses: Tensor) -> Tensor:
        weighted = (-self.log_variances).exp() * losses + 0.5 * self.log_variances
        return self.task_weights * weighted


class GradientCombination(UniformScaling):
    """All tasks have all neurons; their gradients are combined at the shared features."""

    def copies(self, features: Tensor) -> Tensor:
        if not self.training:
            return super().copies(features)
        weighting = find_weighting(self.config.weighting)
        forked: Tensor = apply(Fork, features, self.num_tasks, weighting)
        return forked


class NeuronPartition(SharingMethod):
    """DRPM-MTL: a partition without noise gives each task its own neurons.

    Sizes are integers, but the order is relaxed: at a positive temperature a neuron may be split
    between neighbouring tasks.
    """

    subsets: Tensor | None

    def __init__(self, shape: tuple[int, ...], num_tasks: int, config: MultitaskConfig) -> None:
        super().__init__(shape, num_tasks, config)
        width = config.network.width
        self.encoder: nn.Module | None = None
        if config.partition == "sample":
            self.encoder = build_encoder(shape, config.network)
        predicted = None if self.encoder is None else width
        default = 1 / width if num_tasks > 2 else 0.0
        self.size_penalty = default if config.size_penalty is None else config.size_penalty
        self.layer = TaskPartition(width, num_tasks, in_features=predicted, hard="sizes")
        # The subset of every task, saved with the model.
        self.register_buffer("subsets", _order(num_tasks, config.task_order))

    def share(self, given: SharingInput) -> TaskSplit:
        context = None
        if self.encoder is not None:
            context = self.encoder(given.images, given.generator)
        split = self.layer.split(given.features, context, temperature=given.temperature)
        sizes = split.sizes.expand(len(given.features), -1)
        if self.subsets is None:
            return split._replace(sizes=sizes)
        order = self.subsets
        return TaskSplit(split.features[order], split.masks[order], sizes[:, order])

    def penalty(self, sizes: Tensor) -> Tensor | None:
        return None if self.size_penalty == 0 else self.size_penalty * size_penalty(sizes).mean()


def _order(num_tasks: int, order: str) -> Tensor | None:
    """The subset of each task; None for the given order."""
    if order == "given":
        return None
    return torch.randperm(num_tasks) if order == "shuffled" else torch.arange(num_tasks).flip(0)


_WEIGHTINGS: Final[dict[Weighting, str]] = {
    "aligned-mtl": "AlignedMTLWeighting",
    "mgda": "MGDAWeighting",
    "imtl-g": "IMTLGWeighting",
}


@cache
def find_weighting(name: Weighting) -> nn.Module:
    """TorchJD's function from the Gramian of the tasks' gradients (T, T) to weights (T,).

    References:
        Quinton and Rey, "Jacobian descent for multi-objective optimization", 2024 (TorchJD).
        Senushkin et al., "Independent component alignment for multi-task learning", 2023
        (``aligned-mtl``). Sener and Koltun, "Multi-task learning as multi-objective optimization",
        2018 (``mgda``). Liu et al., "Towards impartial multi-task learning", 2021 (``imtl-g``).
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


class Fork(torch.autograd.Function):
    """A copy of the features for each task, (T, ...), whose gradients are combined to one.

    TorchJD's weights average, for losses that are averaged already: combined gradients are
    multiplied by T, so that they are as large as those of ULS.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, num_tasks: int, weighting: nn.Module) -> Tensor:
        ctx.weighting = weighting
        return features.expand(num_tasks, *features.shape).clone()

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None, None]:
        # In float64, since weightings test linear dependence.
        rows = gradients.flatten(1).double()
        weights = len(gradients) * ctx.weighting(rows @ rows.T).to(gradients.dtype)
        return torch.tensordot(weights, gradients, 1), None, None


METHODS: dict[str, type[SharingMethod]] = {
    "drpm": NeuronPartition,
    "uls": UniformScaling,
    "uncertainty": UncertaintyWeighting,
    "gradient": GradientCombination,
}

"""How tasks share a network: the one thing in which the methods differ.

A new method is one class: it says what every task sees of the features, and what their losses are
worth.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from drpm.multitask.config import MultitaskConfig
from drpm.multitask.gradients import find_weighting, fork
from drpm.multitask.networks import build_encoder
from drpm.nn.tasks import TaskPartition, size_penalty
from drpm.training.errors import ConfigError


class SharedFeatures(NamedTuple):
    """What tasks see.

    Arguments:
        features: (T, B, n).
        masks: (T, B, n), how much of each neuron every task has; none where all have all.
        sizes: (B, T), how many neurons that are.
    """

    features: Tensor
    masks: Tensor | None = None
    sizes: Tensor | None = None


class SharingInput(NamedTuple):
    """What a method may go by.

    Arguments:
        images: (B, C, H, W).
        features: (B, n), of the shared encoder.
        temperature: Of the partition.
        generator: Where the noise of dropout comes from.
    """

    images: Tensor
    features: Tensor
    temperature: Tensor
    generator: torch.Generator | None


class SharingMethod(nn.Module, ABC):
    """How a method lets tasks share features.

    Arguments:
        shape: Of an image: C, H and W.
        num_tasks: T.
        config: The settings.
    """

    task_weights: Tensor

    def __init__(
        self, shape: tuple[int, int, int], num_tasks: int, config: MultitaskConfig
    ) -> None:
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
    def share(self, given: SharingInput) -> SharedFeatures:
        """What every task sees of the features."""

    def weigh(self, losses: Tensor) -> Tensor:
        """What the tasks' losses (T,) add to the loss, (T,)."""
        return self.task_weights * losses

    def penalty(self, shared: SharedFeatures) -> Tensor | None:
        """What is added besides."""
        return None


class UniformScaling(SharingMethod):
    """All neurons to all tasks, and the weighted mean of the losses.

    References:
        Kurin et al., "In defense of the unitary scalarization for deep multi-task learning", 2022.
    """

    def share(self, given: SharingInput) -> SharedFeatures:
        features = given.features
        return SharedFeatures(features.expand(self.num_tasks, *features.shape))


class UncertaintyWeighting(UniformScaling):
    r"""Losses weighed by learned variances: :math:`L_t / \sigma_t^2 + \log \sigma_t`.

    References:
        Kendall, Gal and Cipolla, "Multi-task learning using uncertainty to weigh losses for scene
        geometry and semantics", 2018.
    """

    def __init__(
        self, shape: tuple[int, int, int], num_tasks: int, config: MultitaskConfig
    ) -> None:
        super().__init__(shape, num_tasks, config)
        self.log_variances = nn.Parameter(torch.zeros(num_tasks))

    def weigh(self, losses: Tensor) -> Tensor:
        weighed = (-self.log_variances).exp() * losses + 0.5 * self.log_variances
        return self.task_weights * weighed


class GradientCombination(UniformScaling):
    """All neurons to all tasks, and the tasks' gradients combined where the tasks part."""

    def share(self, given: SharingInput) -> SharedFeatures:
        if not self.training:
            return super().share(given)
        weighting = find_weighting(self.config.weighting)
        # TorchJD's weights average what is not yet averaged, but losses here are: without this
        # the encoder's gradient would be smaller by the number of tasks than that of ULS.
        copies = fork(given.features, self.num_tasks, weighting, scale=self.num_tasks)
        return SharedFeatures(copies)


class NeuronPartition(SharingMethod):
    """Neurons shared out among the tasks by a partition without noise: DRPM-MTL.

    Sizes are whole numbers, but the order is relaxed: at a temperature above zero a neuron may fade
    from one task into the next.
    """

    subsets: Tensor | None

    def __init__(
        self, shape: tuple[int, int, int], num_tasks: int, config: MultitaskConfig
    ) -> None:
        super().__init__(shape, num_tasks, config)
        width = config.network.width
        self.encoder: nn.Module | None = None
        if config.partition == "sample":
            self.encoder = build_encoder(shape, config.network)
        predicted = None if self.encoder is None else width
        usual = 1 / width if num_tasks > 2 else 0.0
        self.size_penalty = usual if config.size_penalty is None else config.size_penalty
        self.layer = TaskPartition(width, num_tasks, in_features=predicted, hard="sizes")
        # The subset of every task; a part of the model, since a shuffle cannot be guessed.
        self.register_buffer("subsets", _order(num_tasks, config.task_order))

    def share(self, given: SharingInput) -> SharedFeatures:
        context = None
        if self.encoder is not None:
            context = self.encoder(given.images, given.generator)
        split = self.layer.split(given.features, context, temperature=given.temperature)
        sizes = split.sizes.expand(*given.features.shape[:-1], -1)
        if self.subsets is None:
            return SharedFeatures(split.features, split.masks, sizes)
        return SharedFeatures(
            split.features[self.subsets], split.masks[self.subsets], sizes[..., self.subsets]
        )

    def penalty(self, shared: SharedFeatures) -> Tensor | None:
        if self.size_penalty == 0 or shared.sizes is None:
            return None
        return self.size_penalty * size_penalty(shared.sizes).mean()


def _order(num_tasks: int, order: str) -> Tensor | None:
    """Which subset every task has; none where each has its own number."""
    if order == "given":
        return None
    return torch.randperm(num_tasks) if order == "shuffled" else torch.arange(num_tasks).flip(0)


METHODS: dict[str, type[SharingMethod]] = {
    "drpm": NeuronPartition,
    "uls": UniformScaling,
    "uncertainty": UncertaintyWeighting,
    "gradient": GradientCombination,
}

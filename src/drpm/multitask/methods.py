"""How tasks share a network: the only difference between the methods.

A new method is one class, which overrides what every task sees of the features or how their losses
are weighted.
"""

from functools import cache
from typing import Any, Final

import torch
from torch import Tensor, nn

from drpm.multitask.config import MultitaskConfig, Weighting
from drpm.multitask.networks import build_encoder
from drpm.nn import TaskPartition, TaskSplit
from drpm.relaxation.operators import apply
from drpm.training.errors import ConfigError


class UniformScaling(nn.Module):
    """All tasks use all neurons; the loss is the weighted mean of the task losses.

    References:
        Kurin et al., "In defense of the unitary scalarization for deep multi-task learning", 2022.
    """

    task_weights: Tensor
    size_penalty = 0.0  # the weight of the penalty on unequal sizes

    def __init__(self, shape: tuple[int, ...], num_tasks: int, config: MultitaskConfig) -> None:
        super().__init__()
        self.config, self.num_tasks = config, num_tasks
        self.encoder: nn.Module | None = None  # a second one, for the method alone
        given = config.task_weights or (1.0,) * num_tasks
        if len(given) != num_tasks:
            raise ConfigError(
                f"task_weights must be {num_tasks}, one for each task, or none, "
                f"but got {len(given)}."
            )
        weights = torch.tensor(given)
        self.register_buffer("task_weights", weights / weights.sum(), persistent=False)

    def share(self, features: Tensor, context: Tensor | None, temperature: Tensor) -> TaskSplit:
        """What each task sees of the features (B, n) of the shared encoder.

        The context (B, n) comes from the method's own encoder, if it has one.
        """
        copies = features.expand(self.num_tasks, *features.shape)
        sizes = copies.new_full((len(features), self.num_tasks), features.shape[-1])
        return TaskSplit(copies, copies.new_ones(()).expand_as(copies), sizes)

    def weigh(self, losses: Tensor) -> Tensor:
        """The weighted losses of the tasks, (T,)."""
        return self.task_weights * losses


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
    """All tasks use all neurons; their gradients are combined at the shared features."""

    def share(self, features: Tensor, context: Tensor | None, temperature: Tensor) -> TaskSplit:
        split = super().share(features, context, temperature)
        if not self.training:
            return split
        weighting = find_weighting(self.config.weighting)
        return split._replace(features=apply(Fork, features, self.num_tasks, weighting))


class NeuronPartition(UniformScaling):
    """DRPM-MTL: a partition without noise gives each task its own neurons.

    Sizes are integers, but the order is relaxed: at a positive temperature a neuron may be split
    between neighbouring tasks.
    """

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


METHODS: dict[str, type[UniformScaling]] = {
    "drpm": NeuronPartition,
    "uls": UniformScaling,
    "uncertainty": UncertaintyWeighting,
    "gradient": GradientCombination,
}

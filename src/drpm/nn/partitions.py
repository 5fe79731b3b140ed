"""A head that predicts a distribution over partitions, and a layer that partitions neurons."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from drpm.distributions import RelaxedRandomPartition
from drpm.distributions.validation import (
    describe,
    require_choice,
    require_count,
    require_number,
)


class _PartitionModule(nn.Module):
    """What modules that return a law share: its hardness and its temperature."""

    temperature: Tensor

    def __init__(self, hard: bool | str, temperature: float | Tensor) -> None:
        super().__init__()
        require_choice("hard", hard, (True, False, "sizes"))
        self.hard = hard
        number = _positive_number("temperature", temperature)
        self.register_buffer("temperature", torch.tensor(number))

    def build_law(
        self, log_scores: Tensor, log_weights: Tensor, temperature: float | Tensor | None
    ) -> RelaxedRandomPartition:
        """The distribution, at least in single precision: bfloat16 represents only every other
        integer above 256, and float16 above 2,048."""
        dtype = torch.promote_types(log_scores.dtype, torch.float32)
        temperature = self.temperature if temperature is None else temperature
        return RelaxedRandomPartition(
            temperature, log_scores.to(dtype), log_weights.to(dtype), hard=self.hard
        )

    def extra_repr(self) -> str:
        # On the device "meta" there are no values.
        temperature = self.temperature
        shown = "unknown" if temperature.is_meta else f"{temperature.item():g}"
        return f"hard={self.hard!r}, temperature={shown}"


class PartitionHead(_PartitionModule):
    """Maps features to a distribution over partitions, with two linear layers.

    Args:
        in_features: The number of features, in the last dimension.
        num_elements: n, the number of elements of the partition.
        num_subsets: K, the number of subsets.
        hard: ``True``: one-hot columns with straight-through gradients; ``False``: soft;
            ``"sizes"``: integer sizes, soft order.
        temperature: Default temperature of the relaxation. It is a buffer: change it with
            ``head.temperature.fill_(0.5)``.

    Example:
        >>> head = PartitionHead(in_features=3, num_elements=5, num_subsets=2)
        >>> law = head(torch.randn(7, 3))
        >>> law.rsample().shape  # one partition for each of seven rows
        torch.Size([7, 2, 5])
    """

    def __init__(
        self,
        in_features: int,
        num_elements: int,
        num_subsets: int,
        *,
        hard: bool | str = True,
        temperature: float | Tensor = 1.0,
    ) -> None:
        super().__init__(hard, temperature)
        self.in_features = require_count("in_features", in_features)
        self.log_scores = nn.Linear(in_features, require_count("num_elements", num_elements))
        self.log_weights = nn.Linear(in_features, require_count("num_subsets", num_subsets))

    def forward(
        self, features: Tensor, temperature: float | Tensor | None = None
    ) -> RelaxedRandomPartition:
        """The distribution of the partition of every row, at least in single precision.

        Args:
            features: (..., in_features).
            temperature: By default the layer's own.
        """
        _require_features("features", features, self.in_features)
        return self.build_law(self.log_scores(features), self.log_weights(features), temperature)


class _LearnedPartition(_PartitionModule):
    """Scores and weights that depend on nothing."""

    def __init__(
        self, num_elements: int, num_subsets: int, hard: bool | str, temperature: float | Tensor
    ) -> None:
        super().__init__(hard, temperature)
        # About the spread of the scores of an untrained linear layer.
        self.log_scores = nn.Parameter(0.3 * torch.randn(num_elements))
        self.log_weights = nn.Parameter(torch.zeros(num_subsets))

    def forward(self, temperature: float | Tensor | None) -> RelaxedRandomPartition:
        return self.build_law(self.log_scores, self.log_weights, temperature)


class TaskSplit(NamedTuple):
    """The features that each task sees.

    features: (T, ..., n), the masked features.
    masks: (T, ..., n), the share of each neuron: 0 or 1 for a hard partition. Soft masks sum to
        the size of a task, but over the tasks they may sum to more or less than 1.
    sizes: (..., T), the number of neurons of each task, at least in single precision.
    """

    features: Tensor
    masks: Tensor
    sizes: Tensor


class TaskPartition(nn.Module):
    """Learns a partition of the neurons of a layer among tasks.

    Every task sees a copy of the features in which other tasks' neurons are attenuated (with
    ``hard=True``: zero). Which neurons a task has, and how many, is learned by the tasks' losses.

    The order of three or more tasks matters: NeuralSort, which relaxes the order of the neurons, is
    sharper at the ends of the order than in the middle, so the first and the last task have sharper
    masks. See ``docs/multitask.md``.

    Args:
        num_features: n, the number of neurons; at least one for each task.
        num_tasks: T, the number of tasks.
        in_features: If given, the partition is predicted for every sample from a context of this
            size; else one partition is learned for all samples.
        sampled: Whether to sample partitions in training mode. By default, as in the paper, and
            always in evaluation mode, the mode is used. With ``in_features`` a partition is
            sampled for every sample, without it one for each call.
        hard: ``"sizes"``: integer sizes and a soft order, as in the paper; ``True``: every neuron
            belongs to one task; ``False``: soft.
        temperature: Default temperature of the relaxation. It can be changed at any time; the
            paper lowers it from 1 to 0.5.

    Example:
        >>> layer = TaskPartition(num_features=50, num_tasks=2)
        >>> left, right = layer(torch.randn(8, 50))
        >>> left.shape
        torch.Size([8, 50])
        >>> layer.sizes().sum()
        tensor(50.)

        Predicted from the input of the layer, for every sample:

        >>> layer = TaskPartition(50, 2, in_features=320)
        >>> left, right = layer(torch.randn(8, 50), torch.randn(8, 320))
    """

    def __init__(
        self,
        num_features: int,
        num_tasks: int,
        *,
        in_features: int | None = None,
        sampled: bool = False,
        hard: bool | str = "sizes",
        temperature: float | Tensor = 1.0,
    ) -> None:
        super().__init__()
        require_count("num_features", num_features)
        require_count("num_tasks", num_tasks)
        if num_features < num_tasks:
            raise ValueError(
                f"num_features must be at least num_tasks, {num_tasks}, one neuron for each task, "
                f"but got {num_features}."
            )
        require_choice("sampled", sampled, (True, False))
        self.num_features, self.num_tasks, self.sampled = num_features, num_tasks, sampled
        self.law: PartitionHead | _LearnedPartition
        if in_features is None:
            self.law = _LearnedPartition(num_features, num_tasks, hard, temperature)
        else:
            self.law = PartitionHead(
                in_features, num_features, num_tasks, hard=hard, temperature=temperature
            )

    @property
    def temperature(self) -> Tensor:
        return self.law.temperature

    @temperature.setter
    def temperature(self, value: float | Tensor) -> None:
        self.law.temperature.fill_(_positive_number("temperature", value))

    def forward(
        self,
        features: Tensor,
        context: Tensor | None = None,
        *,
        temperature: float | Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """A copy of the features for every task, (T, ..., n).

        Args:
            features: (..., n).
            context: (..., in_features), from which partitions are predicted.
            temperature: By default the layer's own.
            generator: Source of noise, if partitions are sampled.
        """
        return self.split(features, context, temperature=temperature, generator=generator).features

    def split(
        self,
        features: Tensor,
        context: Tensor | None = None,
        *,
        temperature: float | Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> TaskSplit:
        """Like :meth:`forward`, but also returns the masks and the sizes."""
        _require_features("features", features, self.num_features)
        law = self._law(context, temperature)
        if context is not None and context.shape[:-1] != features.shape[:-1]:
            raise ValueError(
                f"context must have the batch shape of features, {tuple(features.shape[:-1])}, "
                f"but got {describe(context)}."
            )
        noise = "both" if self.sampled and self.training else "none"
        parts = law.rsample_parts(noise=noise, generator=generator)
        masks = parts.Y.movedim(-2, 0).to(features.dtype)
        if context is None:
            ones = [1] * (features.dim() - 1)
            masks = masks.reshape(self.num_tasks, *ones, -1).expand(-1, *features.shape)
        return TaskSplit(features * masks, masks, parts.sizes)

    @torch.no_grad()
    def sizes(self, context: Tensor | None = None) -> Tensor:
        """The number of neurons of each task, without noise: (..., T)."""
        return self._law(context, None).rsample_parts(noise="none").sizes

    def extra_repr(self) -> str:
        return f"{self.num_features}, {self.num_tasks}, sampled={self.sampled}"

    def _law(
        self, context: Tensor | None, temperature: float | Tensor | None
    ) -> RelaxedRandomPartition:
        if isinstance(self.law, _LearnedPartition):
            if context is not None:
                raise ValueError(
                    "context must be omitted without in_features, because one partition is "
                    f"learned for all samples, but got {describe(context)}."
                )
            learned: RelaxedRandomPartition = self.law(temperature)
            return learned
        _require_features("context", context, self.law.in_features)
        law: RelaxedRandomPartition = self.law(context, temperature)
        return law


def size_penalty(sizes: Tensor) -> Tensor:
    """log of the product of all sizes' factorials, (...): smallest for equal sizes.

    This is the paper's regularizer for many tasks; its weight there is one over the number of
    neurons.

    Args:
        sizes: (..., T), as returned by :meth:`TaskPartition.split`.

    Example:
        >>> size_penalty(torch.tensor([[2.0, 2.0], [4.0, 0.0]]))  # log 2! 2! and log 4! 0!
        tensor([1.3863, 3.1781])
    """
    return torch.lgamma(sizes + 1).sum(-1)


def _require_features(name: str, value: Any, count: int) -> None:
    """A floating tensor with so many entries in its last dimension."""
    floating = isinstance(value, Tensor) and value.is_floating_point()
    if not floating or value.shape[-1:] != (count,):
        raise ValueError(
            f"{name} must be a floating-point tensor with {count} entries in its last dimension, "
            f"but got {describe(value)}."
        )


def _positive_number(name: str, value: Any) -> float:
    """A number above zero, which may come as a tensor of one entry."""
    single = isinstance(value, np.generic) or (isinstance(value, Tensor) and value.numel() == 1)
    given = value.item() if single else value
    require_number(name, given, positive=True)
    return float(given)

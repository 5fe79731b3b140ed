"""A head that returns a distribution over partitions, and a layer that partitions neurons."""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from drpm.distributions import RelaxedAffinityPartition, RelaxedRandomPartition
from drpm.distributions.validation import (
    describe,
    require_choice,
    require_count,
    require_positive,
)


class PartitionHead(nn.Module):
    """A distribution over partitions, predicted from features by two linear layers.

    Args:
        in_features: The number of features, in the last dimension; None to learn one distribution
            without features.
        num_elements: n, the number of elements of the partition.
        num_subsets: K, the number of subsets.
        affinities: Whether every subset has its own scores of the elements, in a
            :class:`drpm.RelaxedAffinityPartition`; else :class:`drpm.RelaxedRandomPartition`.
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

    temperature: Tensor

    def __init__(
        self,
        in_features: int | None,
        num_elements: int,
        num_subsets: int,
        *,
        affinities: bool = False,
        hard: bool | str = True,
        temperature: float | Tensor = 1.0,
    ) -> None:
        super().__init__()
        require_count("num_elements", num_elements)
        require_count("num_subsets", num_subsets)
        require_choice("affinities", affinities, (True, False))
        require_choice("hard", hard, (True, False, "sizes"))
        self.in_features, self.affinities, self.hard = in_features, affinities, hard
        self.register_buffer("temperature", torch.tensor(_positive(temperature)))
        self.shape = (num_subsets, num_elements) if affinities else (num_elements,)
        self.log_scores: Any
        self.log_weights: Any
        if in_features is None:
            # Similar to the scores of an untrained linear layer.
            self.log_scores = nn.Parameter(0.3 * torch.randn(self.shape))
            self.log_weights = nn.Parameter(torch.zeros(num_subsets))
        else:
            require_count("in_features", in_features)
            self.log_scores = nn.Linear(in_features, math.prod(self.shape))
            self.log_weights = nn.Linear(in_features, num_subsets)

    def forward(
        self, features: Tensor | None = None, temperature: float | Tensor | None = None
    ) -> RelaxedRandomPartition | RelaxedAffinityPartition:
        """The distribution of the partition of every row, at least in single precision.

        Args:
            features: (..., in_features).
            temperature: By default the layer's own.
        """
        _require_features("features", features, self.in_features)
        log_scores, log_weights = self.log_scores, self.log_weights
        if self.in_features is not None:
            log_scores = log_scores(features).unflatten(-1, self.shape)
            log_weights = log_weights(features)
        # bfloat16 represents only every other integer above 256, and float16 above 2,048.
        dtype = torch.promote_types(log_scores.dtype, torch.float32)
        temperature = self.temperature if temperature is None else temperature
        law = RelaxedAffinityPartition if self.affinities else RelaxedRandomPartition
        return law(temperature, log_scores.to(dtype), log_weights.to(dtype), hard=self.hard)

    def extra_repr(self) -> str:
        # On the device "meta" there are no values.
        temperature = self.temperature
        shown = "unknown" if temperature.is_meta else f"{temperature.item():g}"
        return f"affinities={self.affinities}, hard={self.hard!r}, temperature={shown}"


class TaskSplit(NamedTuple):
    """The features of each task.

    Args:
        features: (T, ..., n), the masked features.
        masks: (T, ..., n), the share of each neuron for a task, including common neurons: 0 or 1
            for a hard partition. Without affinities, soft masks sum to the size of a task, but over
            the tasks they may not sum to 1.
        sizes: (..., T), the number of neurons of each task alone, at least in single precision;
            with common neurons (..., T + 1), their number last.
        common: (..., n), the share of each neuron in the common subset, if any.
    """

    features: Tensor
    masks: Tensor
    sizes: Tensor
    common: Tensor | None = None


class TaskPartition(nn.Module):
    """Learns a partition of the neurons of a layer among tasks.

    Each task gets a copy of the features in which other tasks' neurons are attenuated (with
    ``hard=True``: zero). The neurons of each task and their number are learned from the losses.

    The order of three or more tasks matters: NeuralSort is sharper at the ends of the order than in
    the middle, so the first and the last task have sharper masks. With ``affinities`` and without a
    common subset the effect is small: see ``docs/multitask.md``.

    Args:
        num_features: n, the number of neurons; at least one for each task.
        num_tasks: T, the number of tasks.
        in_features: If given, the partition is predicted for every sample from a context of this
            size; else one partition is learned for all samples.
        affinities: Whether each task has its own scores of the neurons. By default, as in the
            paper, each neuron has one score, and tasks take neurons by descending score.
        common: Whether to add a last subset of neurons that all tasks use.
        sampled: Whether to sample partitions in training mode (one per sample with ``in_features``,
            else one per call). By default, as in the paper, and in evaluation mode, the mode is
            used.
        hard: ``"sizes"``: integer sizes and a soft order, as in the paper; ``True``: every neuron
            belongs to one task or to all; ``False``: soft.
        clip: Whether to clip soft masks to [0, 1], as in the authors' code.
        temperature: Default temperature of the relaxation; settable. The paper lowers it from 1 to
            0.5.

    Example:
        >>> layer = TaskPartition(num_features=50, num_tasks=2)
        >>> left, right = layer(torch.randn(8, 50))
        >>> left.shape
        torch.Size([8, 50])
        >>> layer.sizes().sum()
        tensor(50.)

        Predicted from the input of the layer, for every sample, with some neurons in common:

        >>> layer = TaskPartition(50, 2, in_features=320, common=True)
        >>> left, right = layer(torch.randn(8, 50), torch.randn(8, 320))
        >>> layer.sizes(torch.randn(8, 320)).shape  # of left, right and both
        torch.Size([8, 3])
    """

    def __init__(
        self,
        num_features: int,
        num_tasks: int,
        *,
        in_features: int | None = None,
        affinities: bool = False,
        common: bool = False,
        sampled: bool = False,
        hard: bool | str = "sizes",
        clip: bool = False,
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
        for name, value in (("common", common), ("sampled", sampled), ("clip", clip)):
            require_choice(name, value, (True, False))
        self.num_features, self.num_tasks = num_features, num_tasks
        self.common, self.sampled, self.clip = common, sampled, clip
        self.law = PartitionHead(
            in_features,
            num_features,
            num_tasks + common,
            affinities=affinities,
            hard=hard,
            temperature=temperature,
        )

    @property
    def temperature(self) -> Tensor:
        return self.law.temperature

    @temperature.setter
    def temperature(self, value: float | Tensor) -> None:
        self.law.temperature.fill_(_positive(value))

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
        _require_features("context", context, self.law.in_features)
        if context is not None and context.shape[:-1] != features.shape[:-1]:
            raise ValueError(
                f"context must have the batch shape of features, {tuple(features.shape[:-1])}, "
                f"but got {describe(context)}."
            )
        noise = "both" if self.sampled and self.training else "none"
        parts = self.law(context, temperature).rsample_parts(noise=noise, generator=generator)
        masks = parts.Y.movedim(-2, 0).to(features.dtype)
        if context is None:
            ones = [1] * (features.dim() - 1)
            masks = masks.reshape(len(masks), *ones, -1).expand(-1, *features.shape)
        common = masks[-1] if self.common else None
        masks = masks if common is None else masks[:-1] + common
        masks = masks.clamp(0, 1) if self.clip else masks
        return TaskSplit(features * masks, masks, parts.sizes, common)

    @torch.no_grad()
    def sizes(self, context: Tensor | None = None) -> Tensor:
        """The number of neurons of each task without noise, (..., T); common ones last, if any."""
        _require_features("context", context, self.law.in_features)
        sizes: Tensor = self.law(context).rsample_parts(noise="none").sizes
        return sizes

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, {self.num_tasks}, common={self.common}, sampled={self.sampled}"
        )


def size_penalty(sizes: Tensor) -> Tensor:
    """log of the product of all sizes' factorials, (...): smallest for equal sizes.

    The paper's regularizer for many tasks, weighted by one over the number of neurons.

    Args:
        sizes: (..., T), as returned by :meth:`TaskPartition.split`.

    Example:
        >>> size_penalty(torch.tensor([[2.0, 2.0], [4.0, 0.0]]))  # log 2! 2! and log 4! 0!
        tensor([1.3863, 3.1781])
    """
    return torch.lgamma(sizes + 1).sum(-1)


def _require_features(name: str, value: Any, count: int | None) -> None:
    """Raise unless a floating tensor has ``count`` entries in its last dimension; None for None."""
    if count is None:
        if value is not None:
            raise ValueError(
                f"{name} must be omitted without in_features, because one partition is learned for "
                f"all samples, but got {describe(value)}."
            )
        return
    floating = isinstance(value, Tensor) and value.is_floating_point()
    if not floating or value.shape[-1:] != (count,):
        raise ValueError(
            f"{name} must be a floating-point tensor with {count} entries in its last dimension, "
            f"but got {describe(value)}."
        )


def _positive(temperature: Any) -> float:
    """Validate a temperature, a number or a tensor with one entry."""
    is_single = isinstance(temperature, Tensor) and temperature.numel() == 1
    single = is_single or isinstance(temperature, np.generic)
    given = temperature.item() if single else temperature
    require_positive("temperature", given)
    return float(given)

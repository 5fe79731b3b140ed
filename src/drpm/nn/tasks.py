"""A layer that gives each task its own share of the neurons."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from drpm.distributions import RelaxedRandomPartition
from drpm.distributions.validation import describe, require_choice, require_count
from drpm.nn.heads import PartitionHead, build_law, describe_law
from drpm.nn.validation import positive_number, require_features


class TaskSplit(NamedTuple):
    """The features that each task sees.

    features: (T, ..., n), the masked features.
    masks: (T, ..., n), the share of each neuron: 0 or 1 for a hard partition. Soft masks sum to
        the size of a task, but over the tasks they may sum to more or less than 1.
    sizes: (..., T), the number of neurons of each task, in single precision at least.
    """

    features: Tensor
    masks: Tensor
    sizes: Tensor


class TaskPartition(nn.Module):
    """Splits the neurons of a layer among tasks, and learns how.

    Every task sees a copy of the features in which other tasks' neurons are attenuated (with
    ``hard=True``: zero). Which neurons a task has, and how many, is learned by the tasks' losses.

    The order of three or more tasks matters: NeuralSort, which relaxes the order of the neurons,
    is sharper at its ends than in its middle, so the first and the last task have sharper masks.
    See ``docs/multitask.md``.

    Args:
        num_features: n, the number of neurons; at least one for each task.
        num_tasks: T, the number of tasks.
        in_features: If given, the partition is predicted for every sample from a context of this
            size; else one partition is learned for all samples.
        sampled: Whether to sample partitions in training mode. By default, as in the paper, and
            always in evaluation mode, the mode is taken. With ``in_features`` every sample has
            its own draw; without it, one draw serves all samples of a call.
        hard: ``"sizes"``: integer sizes and a soft order, as in the paper; ``True``: every neuron
            belongs to one task; ``False``: soft.
        temperature: Default temperature of the relaxation. It may be changed at any time; the
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
        self.law.temperature.fill_(positive_number("temperature", value))

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
        """As :meth:`forward`, with the masks and the sizes."""
        require_features("features", features, self.num_features)
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
                    "context must be left out where in_features was, because one partition is "
                    f"learned for all samples, but got {describe(context)}."
                )
            learned: RelaxedRandomPartition = self.law(temperature)
            return learned
        if context is None:
            raise ValueError(
                f"context must be a tensor with {self.law.in_features} entries in its last "
                "dimension, from which partitions are predicted, but got none."
            )
        require_features("context", context, self.law.in_features)
        law: RelaxedRandomPartition = self.law(context, temperature)
        return law


class _LearnedPartition(nn.Module):
    """Scores and weights that depend on nothing."""

    temperature: Tensor

    def __init__(
        self, num_elements: int, num_subsets: int, hard: bool | str, temperature: float | Tensor
    ) -> None:
        super().__init__()
        require_choice("hard", hard, (True, False, "sizes"))
        self.hard = hard
        # About the spread of the scores of an untrained linear layer.
        self.log_scores = nn.Parameter(0.3 * torch.randn(num_elements))
        self.log_weights = nn.Parameter(torch.zeros(num_subsets))
        number = positive_number("temperature", temperature)
        self.register_buffer("temperature", torch.tensor(number))

    def forward(self, temperature: float | Tensor | None) -> RelaxedRandomPartition:
        return build_law(
            self.temperature if temperature is None else temperature,
            self.log_scores,
            self.log_weights,
            self.hard,
        )

    def extra_repr(self) -> str:
        return describe_law(self.hard, self.temperature)


def size_penalty(sizes: Tensor) -> Tensor:
    """log of the product of all sizes' factorials, (...): smallest for equal sizes.

    The paper's regularizer for many tasks, with a weight of one over the number of neurons.

    Args:
        sizes: (..., T), as :meth:`TaskPartition.split` returns them.

    Example:
        >>> size_penalty(torch.tensor([[2.0, 2.0], [4.0, 0.0]]))  # log 2! 2! and log 4! 0!
        tensor([1.3863, 3.1781])
    """
    return torch.lgamma(sizes + 1).sum(-1)

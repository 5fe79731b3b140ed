"""A layer that gives each task its own share of the neurons."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from drpm.distributions import RelaxedRandomPartition
from drpm.distributions.validation import describe, require_choice, require_count
from drpm.nn.heads import PartitionHead, build_law, describe_law
from drpm.nn.validation import positive_number, require_features


class TaskSplit(NamedTuple):
    """Features as every task sees them.

    features: (T, ..., n), what is left to each task.
    masks: (T, ..., n), how much of each neuron that is: all or nothing where the partition is
        hard. A soft one gives a task its whole size, but neurons may add up to more or less than
        one over the tasks.
    sizes: (..., T), how many neurons each task has, in single precision at least.
    """

    features: Tensor
    masks: Tensor
    sizes: Tensor


class TaskPartition(nn.Module):
    """Splits the neurons of a layer among tasks, and learns how.

    Every task sees a copy of the features in which its own neurons stay and those of others fade
    (with ``hard=True``: are zero). Which neurons a task has, and how many, is learned by whatever
    loss the tasks have.

    The order of three or more tasks matters: NeuralSort, which relaxes the order of the neurons,
    is sharper at its ends than in its middle, so the first and the last task have neurons that are
    more clearly theirs. ``docs/multitask.md`` says how much, and what to do about it.

    Arguments:
        num_features: n, how many neurons there are, in the last dimension; at least one for each
            task.
        num_tasks: T, how many tasks.
        in_features: Where given, the partition is predicted for every sample, from so many
            further features; where not, one partition is learned for all samples.
        sampled: Whether partitions are drawn while the layer is in training mode. By default, as
            in the paper, the partition is that without noise, and in evaluation it always is.
            With ``in_features`` every sample has a draw of its own; without it, one draw serves
            all samples of a call.
        hard: ``"sizes"``: whole sizes, soft order, as in the paper; ``True``: every neuron belongs
            to one task; ``False``: soft.
        temperature: Of the relaxation, where a call names no other. It may be set anew at any
            time; the paper lowers it from 1 to 0.5.

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
                f"num_features must be at least num_tasks, {num_tasks}, so that each of them can "
                f"have a neuron of its own, but got {num_features}."
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

        Arguments:
            features: (..., n).
            context: (..., in_features), what partitions are predicted from, where they are.
            temperature: In place of the layer's own.
            generator: Where noise comes from, where partitions are drawn.
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
        """As :meth:`forward`, together with the masks and the sizes that a loss may need."""
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
            # One partition for all samples stands for each of them.
            ones = [1] * (features.dim() - 1)
            masks = masks.reshape(self.num_tasks, *ones, -1).expand(-1, *features.shape)
        return TaskSplit(features * masks, masks, parts.sizes)

    @torch.no_grad()
    def sizes(self, context: Tensor | None = None) -> Tensor:
        """How many neurons each task has, without noise: (..., T)."""
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
        # About as different as those that a linear layer would begin with.
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
    """log of the product of all sizes' factorials, (...): smallest where sizes are alike.

    The regulariser of the paper for many tasks, which it weighs by one over the number of neurons.

    Arguments:
        sizes: (..., T), as :meth:`TaskPartition.split` has them.

    Example:
        >>> size_penalty(torch.tensor([[2.0, 2.0], [4.0, 0.0]]))  # log 2! 2! and log 4! 0!
        tensor([1.3863, 3.1781])
    """
    return torch.lgamma(sizes + 1).sum(-1)

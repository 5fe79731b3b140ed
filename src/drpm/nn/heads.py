"""From features to a law over partitions."""

import torch
from torch import Tensor, nn

from drpm.distributions import RelaxedRandomPartition
from drpm.distributions.validation import require_choice, require_count
from drpm.nn.validation import positive_number, require_features


class PartitionHead(nn.Module):
    """Two linear layers, one to the log-scores and one to the log-weights of a partition.

    Args:
        in_features: How many features there are, in the last dimension.
        num_elements: n, how many elements the partition splits.
        num_subsets: K, into how many subsets.
        hard: ``True``: one-hot columns with straight-through gradients; ``False``: soft;
            ``"sizes"``: whole sizes, soft order.
        temperature: Of the relaxation, where a call names no other. It is a buffer, which
            ``head.temperature.fill_(0.5)`` sets anew.

    Example:
        >>> head = PartitionHead(in_features=3, num_elements=5, num_subsets=2)
        >>> law = head(torch.randn(7, 3))
        >>> law.rsample().shape  # one partition for each of seven rows
        torch.Size([7, 2, 5])
    """

    temperature: Tensor

    def __init__(
        self,
        in_features: int,
        num_elements: int,
        num_subsets: int,
        *,
        hard: bool | str = True,
        temperature: float | Tensor = 1.0,
    ) -> None:
        super().__init__()
        for name, value in (
            ("in_features", in_features),
            ("num_elements", num_elements),
            ("num_subsets", num_subsets),
        ):
            require_count(name, value)
        require_choice("hard", hard, (True, False, "sizes"))
        self.in_features, self.hard = in_features, hard
        self.log_scores = nn.Linear(in_features, num_elements)
        self.log_weights = nn.Linear(in_features, num_subsets)
        number = positive_number("temperature", temperature)
        self.register_buffer("temperature", torch.tensor(number))

    def forward(
        self, features: Tensor, temperature: float | Tensor | None = None
    ) -> RelaxedRandomPartition:
        """The law of the partition of every row, in single precision at least.

        Args:
            features: (..., in_features).
            temperature: In place of the layer's own.
        """
        require_features("features", features, self.in_features)
        return build_law(
            self.temperature if temperature is None else temperature,
            self.log_scores(features),
            self.log_weights(features),
            self.hard,
        )

    def extra_repr(self) -> str:
        return describe_law(self.hard, self.temperature)


def build_law(
    temperature: float | Tensor, log_scores: Tensor, log_weights: Tensor, hard: bool | str
) -> RelaxedRandomPartition:
    """The law of a partition, in single precision at least: in a lower one sizes are no whole
    numbers, because bfloat16 has only every other one beyond 256, and float16 beyond 2,048."""
    dtype = torch.promote_types(log_scores.dtype, torch.float32)
    return RelaxedRandomPartition(
        temperature, log_scores.to(dtype), log_weights.to(dtype), hard=hard
    )


def describe_law(hard: bool | str, temperature: Tensor) -> str:
    """What a module's text says of the law that it leads to."""
    # On the device "meta" there are no values.
    shown = "unknown" if temperature.is_meta else f"{temperature.item():g}"
    return f"hard={hard!r}, temperature={shown}"

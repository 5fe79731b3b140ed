"""Constraints on the parameters and events of the distributions."""

import torch
from torch import Tensor
from torch.distributions import constraints


class _Finite(constraints.Constraint):
    """Real numbers without infinities, which torch's ``real`` accepts."""

    def check(self, value: Tensor) -> Tensor:
        return torch.isfinite(value)


finite = _Finite()
finite_vector = constraints.independent(finite, 1)
finite_matrix = constraints.independent(finite, 2)


class _Positive(constraints.Constraint):
    """Positive, finite numbers."""

    def check(self, value: Tensor) -> Tensor:
        return torch.isfinite(value) & (value > 0)


positive = _Positive()


class WholeSizes(constraints.Constraint):
    """Integer sizes of at least a minimum that sum to a total and fit their capacities."""

    is_discrete = True
    event_dim = 1

    def __init__(self, total: int, capacities: Tensor, minimum: int | Tensor = 0) -> None:
        self.total, self.capacities, self.minimum = total, capacities, minimum
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        whole = (value == value.round()) & (value >= self.minimum) & (value <= self.capacities)
        return whole.all(-1) & (value.double().sum(-1) == self.total)


class NonNegativeSum(constraints.Constraint):
    """Non-negative entries that sum to a total, up to rounding: relaxed sizes and matrices.

    The columns of a soft partition sum to one only if the order is relaxed by Sinkhorn.
    """

    def __init__(self, total: int, event_dim: int) -> None:
        self.total, self.event_dim = total, event_dim
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        slack = self.total * 8 * torch.finfo(value.dtype).eps
        entries = value.flatten(-self.event_dim)
        close = (entries.sum(-1) - self.total).abs() <= slack * self.total
        return close & (entries >= -slack).all(-1)


class _Permutation(constraints.Constraint):
    """Orders: every element from 0 to n - 1 once."""

    is_discrete = True
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        ranks = torch.arange(value.shape[-1], device=value.device)
        return (value.sort(-1).values == ranks).all(-1)


permutation = _Permutation()


class _OneHotColumns(constraints.Constraint):
    """Assignment matrices: one 1 in every column, zeros elsewhere."""

    is_discrete = True
    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        binary = ((value == 0) | (value == 1)).all(-2)
        return (binary & (value.sum(-2) == 1)).all(-1)


one_hot_columns = _OneHotColumns()


class _PermutationMatrices(constraints.Constraint):
    """Square matrices with one 1 in every row and column, zeros elsewhere."""

    is_discrete = True
    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        return one_hot_columns.check(value) & one_hot_columns.check(value.mT)


permutation_matrices = _PermutationMatrices()


class Assignment(constraints.Constraint):
    """Assignment matrices whose row sums are possible sizes."""

    is_discrete = True
    event_dim = 2

    def __init__(self, sizes: constraints.Constraint) -> None:
        self.sizes = sizes
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        possible: Tensor = self.sizes.check(value.double().sum(-1))
        return one_hot_columns.check(value) & possible

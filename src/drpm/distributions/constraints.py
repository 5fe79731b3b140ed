"""The sets that parameters and events of the laws live in."""

import torch
from torch import Tensor
from torch.distributions import constraints


class _Finite(constraints.Constraint):
    """Real numbers without infinities, which torch's ``real`` lets through."""

    def check(self, value: Tensor) -> Tensor:
        return torch.isfinite(value)


finite = _Finite()
finite_vector = constraints.independent(finite, 1)


class _Positive(constraints.Constraint):
    """Positive, finite numbers."""

    def check(self, value: Tensor) -> Tensor:
        return torch.isfinite(value) & (value > 0)


positive = _Positive()


class WholeSizes(constraints.Constraint):
    """Whole, non-negative sizes that add up to a total and fit their capacities."""

    is_discrete = True
    event_dim = 1

    def __init__(self, total: int, capacities: Tensor) -> None:
        self.total, self.capacities = total, capacities
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        whole = (value == value.round()) & (value >= 0) & (value <= self.capacities)
        return whole.all(-1) & (value.double().sum(-1) == self.total)


class RelaxedSizes(constraints.Constraint):
    """Non-negative sizes that add up to a total, up to rounding."""

    event_dim = 1

    def __init__(self, total: int) -> None:
        self.total = total
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        slack = self.total * 8 * torch.finfo(value.dtype).eps
        close = (value.sum(-1) - self.total).abs() <= slack * value.shape[-1]
        return close & (value >= -slack).all(-1)


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


class RelaxedAssignment(constraints.Constraint):
    """Non-negative matrices whose entries sum to the number of elements, up to rounding.

    The columns of a soft partition need not sum to one: only Sinkhorn's order makes them.
    """

    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        n = value.shape[-1]
        slack = n * 8 * torch.finfo(value.dtype).eps
        total = value.sum((-2, -1))
        return ((total - n).abs() <= slack * n) & (value >= -slack).flatten(-2).all(-1)


class _UnitMatrix(constraints.Constraint):
    """Matrices with entries between 0 and 1, up to rounding."""

    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        slack = value.shape[-1] * 8 * torch.finfo(value.dtype).eps
        return ((value >= -slack) & (value <= 1 + slack)).flatten(-2).all(-1)


unit_matrix = _UnitMatrix()

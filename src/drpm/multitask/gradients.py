"""Combining the gradients of several tasks where the tasks part."""

from functools import cache
from typing import Any, Final

import torch
from torch import Tensor, nn

from drpm.multitask.config import Weighting
from drpm.relaxation.mapping import apply
from drpm.training.errors import ConfigError

# Plain torch, all of them: no further package, and no noise of their own.
_NAMES: Final[dict[Weighting, str]] = {
    "aligned-mtl": "AlignedMTLWeighting",
    "mgda": "MGDAWeighting",
    "imtl-g": "IMTLGWeighting",
}


@cache
def find_weighting(name: Weighting) -> nn.Module:
    """What turns the products of the tasks' gradients (T, T) into weights (T,).

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
    weighting: nn.Module = getattr(aggregation, _NAMES[name])()
    return weighting


def fork(features: Tensor, num_tasks: int, weighting: nn.Module, scale: float = 1.0) -> Tensor:
    """A copy of the features for every task, (T, ...), whose gradients come back as one.

    What the tasks do with their copies has its own gradient; what made the features has the
    weighted sum of all.

    Arguments:
        features: Any shape.
        num_tasks: T.
        weighting: As :func:`find_weighting` has them.
        scale: What the weighted sum is multiplied by.
    """
    copies: Tensor = apply(_Fork, features, num_tasks, weighting, scale)
    return copies


class _Fork(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, num_tasks: int, weighting: nn.Module, scale: float
    ) -> Tensor:
        ctx.weighting, ctx.scale = weighting, scale
        return features.expand(num_tasks, *features.shape).clone()

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None, None, None]:
        # In float64, because weightings ask which gradients depend on others.
        rows = gradients.flatten(1).double()
        weights = ctx.scale * ctx.weighting(rows @ rows.T).to(gradients.dtype)
        return torch.tensordot(weights, gradients, 1), None, None, None

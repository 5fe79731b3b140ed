"""Unbiased gradients of expectations over discrete samples."""

from collections.abc import Callable

import torch
from torch import Tensor

from drpm.distributions.base import Law
from drpm.distributions.validation import require_count


def leave_one_out_surrogate(costs: Tensor, log_probs: Tensor) -> Tensor:
    """The mean cost over the first dimension, with an unbiased gradient attached.

    The log-probability of each sample is weighted by the difference between its cost and the mean
    cost of the other samples; this baseline is independent of the sample, so the gradient remains
    unbiased.
    """
    draws = costs.shape[0]
    others = (costs.sum(0) - costs) / (draws - 1) if draws > 1 else torch.zeros_like(costs)
    advantage = (costs - others).detach()
    return (costs + advantage * (log_probs - log_probs.detach())).mean(0)


def score_function_loss(
    law: Law,
    cost: Callable[[Tensor], Tensor],
    num_samples: int,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""The expected cost of a sample, with unbiased gradients in the parameters.

    .. math:: \nabla E_{y \sim p}[c(y)] = E_{y \sim p}[\nabla c(y) + c(y) \nabla \log p(y)]

    Use it if the cost is only defined for discrete samples.

    Args:
        law: Any distribution with ``sample`` and ``log_prob``.
        cost: Maps samples of shape ``(num_samples, *batch_shape, *event_shape)`` to costs of shape
            ``(num_samples, *batch_shape)``; may itself be differentiable in other parameters.
        num_samples: Number of samples; at least two for the leave-one-out baseline.

    Returns:
        The mean cost, shape ``batch_shape``: a loss to call ``backward`` on.

    Example:
        >>> from drpm import PlackettLuce
        >>> scores = torch.zeros(3, requires_grad=True)
        >>> generator = torch.Generator().manual_seed(0)
        >>> first_is_2 = lambda order: (order[..., 0] == 2).float()
        >>> loss = score_function_loss(PlackettLuce(scores), first_is_2, 5000, generator=generator)
        >>> loss.backward()
        >>> bool(scores.grad[2] > 0 > scores.grad[0])
        True
    """
    shape = (require_count("num_samples", num_samples),)
    # Laws of torch itself take no generator.
    draws = law.sample(shape) if generator is None else law.sample(shape, generator=generator)
    costs = cost(draws)
    expected = torch.Size([num_samples]) + law.batch_shape
    if costs.shape != expected:
        raise ValueError(
            f"cost must return one number per draw, shape {tuple(expected)}, "
            f"but got shape {tuple(costs.shape)}."
        )
    log_probs: Tensor = law.log_prob(draws)
    return leave_one_out_surrogate(costs, log_probs)

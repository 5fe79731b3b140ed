"""Divergences between laws."""

import torch
from torch import Tensor
from torch.distributions import kl_divergence, register_kl

from drpm.distributions.base import SizeLaw
from drpm.distributions.estimators import leave_one_out_surrogate
from drpm.distributions.partitions import RandomPartition
from drpm.distributions.sizes import FisherHypergeometric
from drpm.distributions.validation import can_check_values, require_broadcast, require_choice


def sizes_kl(p: FisherHypergeometric, q: FisherHypergeometric) -> Tensor:
    """The exact divergence of two size laws.

    With equal capacities the family is exponential and means suffice; with others the binomial
    coefficients are averaged over the marginals. Infinite where p allows what q does not.
    """
    if p.event_shape != q.event_shape:
        raise ValueError(
            f"q must be a law over {p.event_shape[0]} groups, as p is, but got {q.event_shape[0]}."
        )
    for name, law in (("p", p), ("q", q)):
        if law.method == "merged":
            raise NotImplementedError(f"the divergence needs {name} to have method='exact'.")
    batch = require_broadcast("p and q", p.batch_shape, q.batch_shape)
    dtype = torch.promote_types(p.dtype, q.dtype)
    if p.total_count != q.total_count:
        return torch.full(batch, torch.inf, dtype=dtype, device=p.log_weights.device)
    p, q = p.expand(batch), q.expand(batch)
    log_normalizer, mean = p.exact_mean()
    gaps = p.log_weights.double() - q.log_weights.double()
    divergence = (mean * gaps).sum(-1) + q.exact_log_normalizer() - log_normalizer
    if not _same_capacities(p, q):
        p_room, q_room = p._capacities, q._capacities
        binomials = p.expected_log_binomials(p_room) - p.expected_log_binomials(q_room)
        divergence = divergence + binomials.sum(-1)
        allowed = (p_room.clamp_max(p.total_count) <= q_room).all(-1)
        divergence = torch.where(allowed, divergence, torch.inf)
    return divergence.to(dtype)


def _same_capacities(p: FisherHypergeometric, q: FisherHypergeometric) -> bool:
    if p._unbounded and q._unbounded:
        return True
    if not (can_check_values(p._capacities) and can_check_values(q._capacities)):
        return False
    return bool((p._capacities == q._capacities).all())


def partition_kl(
    p: RandomPartition,
    q: RandomPartition,
    num_samples: int = 1000,
    generator: torch.Generator | None = None,
    estimate: str = "exact",
) -> Tensor:
    r"""KL(p || q) of two laws over partitions, with an unbiased gradient in both.

    The divergence of the sizes is exact. The rest is an average over draws from p: of the exact
    log-probabilities of the fill given the sizes, or, with ``estimate="bounds"``, of the paper's
    upper bound of p against its lower bound of q at the order that was drawn, which is an upper
    bound of the divergence. Draws do not carry gradients by themselves, so the score-function part
    is included.

    Args:
        p: The law to draw from.
        q: The law to compare with, over as many elements and groups.
        num_samples: How many draws.
        generator: A source of randomness of its own.
        estimate: ``"exact"`` or ``"bounds"``.

    Example:
        >>> p = RandomPartition(torch.tensor([0.0, 1.0, 2.0]), torch.zeros(2))
        >>> q = RandomPartition(torch.zeros(3), torch.zeros(2))
        >>> generator = torch.Generator().manual_seed(0)
        >>> bool(partition_kl(p, q, generator=generator) > 0)
        True
        >>> partition_kl(q, q)
        tensor(0.)
    """
    require_choice("estimate", estimate, ("exact", "bounds"))
    if p.event_shape != q.event_shape:
        raise ValueError(
            f"q must be a law over partitions of shape {tuple(p.event_shape)}, as p is, "
            f"but got {tuple(q.event_shape)}."
        )
    batch = require_broadcast("p and q", p.batch_shape, q.batch_shape)
    p, q = p.expand(batch), q.expand(batch)
    costs, log_probs = [], []
    for draw in p.draws(num_samples, generator):
        if estimate == "exact":
            log_fill = p.fill_log_prob(draw.Y)
            costs.append(log_fill - q.fill_log_prob(draw.Y))
        else:
            # The bound depends on the very order that was drawn, so the score function must too.
            log_fill = p.order.log_prob(draw.order).double()
            counts = torch.lgamma(draw.sizes + 1).sum(-1)
            best = p.order.log_prob(p.order.mode).double()
            costs.append(counts + best - q.order.log_prob(draw.order).double())
        log_probs.append(p.size_log_prob(draw.Y) + log_fill)
    orders = leave_one_out_surrogate(torch.cat(costs), torch.cat(log_probs))
    sizes = _between_sizes(p.sizes, q.sizes).double()
    return (sizes + orders).to(torch.promote_types(p.dtype, q.dtype))


def _between_sizes(p: SizeLaw, q: SizeLaw) -> Tensor:
    if isinstance(p, FisherHypergeometric) and isinstance(q, FisherHypergeometric):
        # Torch remembers which function it found; whatever was compiled before that, or before it
        # finds another, would be compiled again.
        return sizes_kl(p, q)
    return kl_divergence(p, q)


register_kl(FisherHypergeometric, FisherHypergeometric)(sizes_kl)
register_kl(RandomPartition, RandomPartition)(lambda p, q: partition_kl(p, q))

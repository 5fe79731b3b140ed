"""The Plackett-Luce distribution over orders."""

import torch
from torch import Tensor

from drpm.distributions import plackett_luce_integral
from drpm.distributions.base import OrderLaw
from drpm.distributions.validation import (
    can_check_values,
    finite_vector,
    permutation,
    require_broadcast,
    require_event,
    require_finite,
    require_indices,
    require_vector,
)
from drpm.relaxation.operators import gumbel_like, materialize, sort_descending


class PlackettLuce(OrderLaw):
    r"""Distribution over orders: elements are drawn one by one, in proportion to their scores.

    .. math:: p(\pi) = \prod_{r=1}^n \frac{s_{\pi_r}}{\sum_{q \ge r} s_{\pi_q}}

    To sample, sort log-scores with Gumbel noise in descending order.

    References:
        Luce, "Individual choice behavior", 1959. Plackett, "The analysis of permutations", 1975.
        Yellott, "The relationship between Luce's choice axiom, Thurstone's theory of comparative
        judgment, and the double exponential distribution", 1977.

    Args:
        log_scores: :math:`\log s`, shape (..., n).

    Example:
        >>> law = PlackettLuce(torch.tensor([0.0, 2.0, 1.0]))
        >>> law.mode
        tensor([1, 2, 0])
        >>> law.log_prob(law.mode).exp()
        tensor(0.4863)
        >>> law.sample(generator=torch.Generator().manual_seed(0))
        tensor([0, 1, 2])
    """

    arg_constraints = {"log_scores": finite_vector}  # noqa: RUF012
    support = permutation
    _expected = "an order of all elements"

    def __init__(self, log_scores: Tensor, *, validate_args: bool | None = None) -> None:
        require_vector("log_scores", log_scores, "element")
        if validate_args is not False:
            require_finite("log_scores", log_scores)
        self.log_scores = log_scores
        super().__init__(log_scores.shape[:-1], log_scores.shape[-1:], validate_args)

    @property
    def dtype(self) -> torch.dtype:
        return self.log_scores.dtype

    @property
    def mode(self) -> Tensor:
        """The elements by descending score, which is the most likely order."""
        return torch.argsort(self.log_scores, dim=-1, descending=True, stable=True)

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        return noisy_scores(self.log_scores, shape, generator).argsort(-1, descending=True)

    def log_prob(self, value: Tensor) -> Tensor:
        value, inside = self._inside(value)
        shape = torch.broadcast_shapes(self.log_scores.shape, value.shape)
        index = value.long().clamp(0, shape[-1] - 1).expand(shape)
        drawn = self.log_scores.double().expand(shape).gather(-1, index)
        log_prob = (drawn - drawn.flip(-1).logcumsumexp(-1).flip(-1)).sum(-1)
        return self._masked(log_prob, inside)

    def block_log_probs(self, members: Tensor) -> Tensor:
        scores = self.log_scores.double()[..., None, :]
        return plackett_luce_integral.block_log_probs(scores, members)

    def rank_expectations(self, values: Tensor) -> Tensor:
        return plackett_luce_integral.rank_expectations(self.log_scores.double(), values)

    def sorted_block_log_probs(self) -> Tensor:
        scores = self.log_scores.double().sort(-1, descending=True).values
        return plackett_luce_integral.sorted_block_log_probs(scores)

    def most_likely_within(self, members: Tensor) -> Tensor:
        return order_within(members, self.log_scores)


def order_within(members: Tensor, scores: Tensor) -> Tensor:
    """The elements of blocks (..., K, n) in sequence, within each by descending score."""
    by_score = torch.argsort(scores, dim=-1, descending=True, stable=True)
    block, by_score = torch.broadcast_tensors(members.argmax(-2), by_score)
    by_block = torch.argsort(block.gather(-1, by_score), dim=-1, stable=True)
    order: Tensor = by_score.gather(-1, by_block)
    return order


def noisy_scores(
    log_scores: Tensor,
    shape: torch.Size,
    generator: torch.Generator | None,
    *,
    noise: bool = True,
) -> Tensor:
    """Log-scores with Gumbel noise, in float64 to avoid ties."""
    scores = log_scores.double().expand(shape + log_scores.shape)
    return scores + gumbel_like(scores, generator) if noise else scores


def subset_permutation_log_prob(
    log_scores: Tensor, subset_order: Tensor, taken: Tensor | None = None
) -> Tensor:
    r"""The log-probability of drawing the elements of a subset in a given order.

    .. math:: \log p(\bar\pi \mid n_k, y_{<k}; s)
              = \sum_{i=1}^{n_k} \log \frac{(\bar\pi s)_i}{Z_k - \sum_{j<i} (\bar\pi s)_j}

    where Z_k is the sum of the scores of all elements that are not in earlier subsets.

    Args:
        log_scores: (..., n).
        subset_order: (..., n_k), the elements of the subset in the order they are drawn.
        taken: (..., n), true for the elements of earlier subsets; by default there are none.

    Example:
        >>> scores = torch.tensor([1.0, 2.0, 1.0]).log()
        >>> subset_permutation_log_prob(scores, torch.tensor([1, 0])).exp()
        tensor(0.2500)
    """
    require_vector("log_scores", log_scores, "element")
    require_finite("log_scores", log_scores)
    n = log_scores.shape[-1]
    require_indices("subset_order", subset_order, n)
    taken = torch.zeros_like(log_scores, dtype=torch.bool) if taken is None else taken
    require_event("taken", taken, log_scores.shape[-1:], log_scores.shape[:-1])
    batch = require_broadcast(
        "log_scores, subset_order and taken",
        log_scores.shape[:-1],
        subset_order.shape[:-1],
        taken.shape[:-1],
    )
    scores = log_scores.double().expand(*batch, n)
    index = subset_order.long().expand(*batch, subset_order.shape[-1])
    drawn = scores.gather(-1, index)
    taken = taken.bool().expand(*batch, n)
    used = taken.scatter(-1, index, True)
    if can_check_values(used) and bool((used.sum(-1) < taken.sum(-1) + index.shape[-1]).any()):
        raise ValueError(
            "subset_order must contain distinct elements that no earlier subset has taken, "
            f"but got {index.flatten(0, -2)[0].tolist() if index.dim() > 1 else index.tolist()}."
        )
    # The remaining elements: those of the subset and of later subsets. If there are no later ones,
    # a placeholder keeps the gradient of the unused branch finite.
    remaining = drawn.flip(-1).logcumsumexp(-1).flip(-1)
    nothing_left = used.all(-1, keepdim=True)
    rest = torch.where(used & ~nothing_left, -torch.inf, scores).logsumexp(-1, keepdim=True)
    remaining = torch.where(nothing_left, remaining, torch.logaddexp(remaining, rest))
    return (drawn - remaining).sum(-1).to(log_scores.dtype)


def best_order_log_prob(log_scores: Tensor) -> Tensor:
    r"""The log-probability of the most likely order of (..., n) scores, with first derivatives.

    This is the sum of :math:`s_r - c_r` over ranks, with :math:`c_r` the log-sum of the scores from
    rank r. Its derivative in :math:`s_r` is :math:`1 - \sum_{q \le r} e^{s_r - c_q}`.
    """
    scores = log_scores.double()
    if scores.shape[-1] > _PAIRED_UP_TO:
        ranked = sort_descending(scores).scores
        rest = ranked.flip(-1).logcumsumexp(-1).flip(-1)
        return (ranked - rest).sum(-1).to(log_scores.dtype)
    with torch.no_grad():
        value, slope = _best_order_by_pairs(scores)
    pull = (slope * log_scores).sum(-1)
    best: Tensor = value + (pull - pull.detach())
    return best.to(log_scores.dtype)


# Up to here, all pairs are faster than cumulative sums in compiled code.
_PAIRED_UP_TO = 512


def _best_order_by_pairs(scores: Tensor) -> tuple[Tensor, Tensor]:
    if torch.compiler.is_compiling():
        scores = materialize(scores)
    element = torch.arange(scores.shape[-1], device=scores.device)
    own, other = scores[..., :, None], scores[..., None, :]
    behind = (other < own) | ((other == own) & (element[None, :] >= element[:, None]))
    rest = torch.where(behind, other, -torch.inf).logsumexp(-1)
    before = torch.where(behind.mT, own - rest[..., None, :], -torch.inf)
    return (scores - rest).sum(-1), 1 - before.exp().sum(-1)

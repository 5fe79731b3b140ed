r"""Exact sums over the sizes of an urn, without ever enumerating them.

Fisher's noncentral hypergeometric law is what remains of independent binomials
:math:`B_k \sim \mathrm{Bin}(m_k, \sigma(\log\omega_k + t))` once their sum is known to be n,
whatever the tilt t. Choose t so that n is the mean of the sum and every quantity of the law is a
ratio of numbers of ordinary size:

* the normaliser and the moments come from the characteristic function of the sum. A periodic
  trapezoid rule inverts it; its error is the mass of the sum one period away, so some thirty nodes
  reach float64 precision for any n;
* the conditionals come from tables of the suffix sums :math:`B_k + \dots + B_K`, built by positive
  convolutions over the window of totals that carries mass.

Everything here works in float64 on tensors with the groups in the last dimension, takes any
leading dimensions, is differentiable in the log-weights and branches on no value, so that it
compiles, maps and captures.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from drpm.distributions import urn_fused
from drpm.relaxation.mapping import apply, to_leading

# The sum's mass beyond 9 deviations + 20 is below 1e-17 of its mass at the mean (Bennett's
# inequality for sums of indicators); 32 nodes reach the point where the characteristic function
# has fallen by e^-40, or the end of the period, whichever comes first.
_NODES = 32
_DEVIATIONS = 9.0
_MARGIN = 20.0

# Half-width of a window of totals, in units of the largest possible deviation sqrt(n)/2, plus a
# margin for small n where tails are heavier than Gaussian. The mass outside is below 1e-19.
_WINDOW_DEVIATIONS = 9.5
_WINDOW_MARGIN = 24

# Up to so many elements the sizes of two groups are few enough to look at all. Compiled code
# sums over them, too: that is one kernel, where the tilt and the nodes are dozens.
_LISTED_UP_TO = 512

# A log-probability of zero that survives subtraction and division, the same in every float type.
IMPOSSIBLE = -(2.0**100)
_TINY = 1e-300
_STIRLING_FROM = 32.0


def _refine(
    lower: Tensor, upper: Tensor, below: "_Predicate", digits: int
) -> tuple[Tensor, Tensor]:
    """Shrink [lower, upper] by 2^digits around the point where a monotone predicate turns false."""
    # Many points at once: few large operations instead of many small ones, unless K is large.
    bits = 8 if below.log_weights.shape[-1] <= 64 else 4
    fractions = torch.linspace(0, 1, 2**bits + 1, dtype=lower.dtype, device=lower.device)
    for _ in range(math.ceil(digits / bits)):
        grid = lower[..., None] + (upper - lower)[..., None] * fractions
        cell = (below(grid).sum(-1, keepdim=True) - 1).clamp(0, 2**bits - 1)
        # The very points that were tested, so that the predicate holds at `lower` to the last bit.
        lower, upper = grid.gather(-1, torch.cat([cell, cell + 1], -1)).unbind(-1)
    return lower, upper


class _Predicate:
    """Whether a count that grows with the tilt is still at most ``total``, on a grid of tilts."""

    def __init__(self, total: Tensor, log_weights: Tensor, capacities: Tensor, whole: bool) -> None:
        self.total, self.log_weights = total[..., None], log_weights[..., None, :]
        self.capacities, self.whole = capacities[..., None, :], whole

    def __call__(self, grid: Tensor) -> Tensor:
        chance = torch.sigmoid(self.log_weights + grid[..., None])
        if self.whole:  # the modes of the binomials, whole numbers
            count = torch.minimum(((self.capacities + 1) * chance).floor(), self.capacities)
        else:  # their means
            count = self.capacities * chance
        return count.sum(-1) <= self.total


_WIDEST_BRACKET = 2048.0  # twice 45 and the logarithm of any number


def _bracket(total: Tensor, log_weights: Tensor, capacities: Tensor) -> tuple[Tensor, Tensor]:
    """Tilts that give out too little and too much, however far apart the weights are.

    Filled in descending order of their weights, some group is the one in which the total is
    reached. Far below its own threshold all groups before it are too few; far above, enough.
    """
    margin = torch.log1p(capacities.sum(-1)) + 45
    shape = torch.broadcast_shapes(total.shape, margin.shape)
    ranked, order = log_weights.sort(dim=-1, descending=True)
    order, room = torch.broadcast_tensors(order, capacities)
    filled = room.gather(-1, order).cumsum(-1).expand(*shape, -1)
    last = (filled < total[..., None]).sum(-1, keepdim=True).clamp_max(order.shape[-1] - 1)
    threshold = -ranked.expand(*shape, -1).gather(-1, last).squeeze(-1)
    return threshold - margin, threshold + margin


@torch.no_grad()
def tilt(total: Tensor, log_weights: Tensor, capacities: Tensor) -> Tensor:
    r"""The t at which :math:`\sum_k m_k \sigma(\log\omega_k + t)` equals ``total``, nearly.

    Any t gives exact results; one within a deviation of the mean gives well-conditioned ones.
    """
    lower, upper = _bracket(total, log_weights, capacities)
    below = _Predicate(total, log_weights, capacities, whole=False)
    lower, upper = _refine(lower, upper, below, digits=16)
    return (lower + upper) / 2


class _Inversion(NamedTuple):
    """The characteristic function of the sum, ready to be integrated."""

    chance: Tensor  # (..., K) success probabilities of the tilted binomials
    miss: Tensor  # (..., K) one minus those, without cancellation
    cosine: Tensor  # (..., Q) of the nodes
    sine: Tensor  # (..., Q)
    modulus: Tensor  # (..., K, Q) |phi_k|^2
    real: Tensor  # (..., Q) quadrature weight times the function's real part
    imag: Tensor  # (..., Q)
    log_scale: Tensor  # (...) what the tilt and the binomials' normalisers contribute to log P_0

    def mass(self) -> Tensor:
        """The probability that the sum equals the total."""
        return self.real.sum(-1)

    def log_normalizer(self) -> Tensor:
        return self.log_scale + self.mass().log()

    def average(self, real: Tensor, imag: Tensor) -> Tensor:
        """Conditional expectation of a (..., K, Q) complex quantity."""
        weighted = self.real[..., None, :] * real - self.imag[..., None, :] * imag
        return weighted.sum(-1) / self.mass()[..., None]


def _invert(total: Tensor, log_weights: Tensor, capacities: Tensor) -> _Inversion:
    shift = tilt(total, log_weights.detach(), capacities)
    logit = log_weights + shift[..., None]
    # Work with whichever of success and failure is the rarer, so that nothing rounds to one.
    mostly_in = logit.detach() > 0
    rare = torch.sigmoid(torch.where(mostly_in, -logit, logit))
    chance = torch.where(mostly_in, 1 - rare, rare)
    miss = torch.where(mostly_in, rare, 1 - rare)
    spread = rare * (1 - rare)

    with torch.no_grad():
        deviation = (capacities * spread).sum(-1).sqrt()
        half_period = torch.ceil((_DEVIATIONS * deviation + _MARGIN) / 2)
        index = torch.arange(_NODES, dtype=logit.dtype, device=logit.device)
        inside = index <= half_period[..., None]
        period = 2 * half_period[..., None] + 1  # odd: no node at pi, where a fair coin vanishes
        angle = torch.where(inside, 2 * math.pi * index / period, 0.0)
        weight = torch.where(index == 0, 1.0, 2.0) / period * inside
        cosine, sine = torch.cos(angle), torch.sin(angle)
        lens = torch.sin(angle / 2).square() * 4

    modulus = 1 - spread[..., None] * lens[..., None, :]
    log_modulus = 0.5 * torch.log1p(-spread[..., None] * lens[..., None, :])
    rare_, cos_, sin_ = rare[..., None], cosine[..., None, :], sine[..., None, :]
    turn = torch.atan2(rare_ * sin_, 1 - rare_ + rare_ * cos_)
    turn = torch.where(mostly_in[..., None], -turn, turn)
    surplus = (capacities * mostly_in).sum(-1) - total  # whole, so the large phases cancel exactly
    phase = (capacities[..., None] * turn).sum(-2) + surplus[..., None] * angle
    magnitude = weight * torch.exp((capacities[..., None] * log_modulus).sum(-2))
    log_scale = (
        (capacities * torch.where(mostly_in, log_weights, 0.0)).sum(-1)
        + surplus * shift
        - (capacities * torch.log1p(-rare)).sum(-1)
    )
    return _Inversion(
        chance,
        miss,
        cosine,
        sine,
        modulus,
        magnitude * torch.cos(phase),
        magnitude * torch.sin(phase),
        log_scale,
    )


def log_normalizer(total: Tensor, log_weights: Tensor, capacities: Tensor) -> Tensor:
    r""":math:`\log [x^n] \prod_k (1 + \omega_k x)^{m_k}`, in O(K) whatever n."""
    return _invert(total, log_weights, capacities).log_normalizer()


def listed(total: int, groups: int) -> bool:
    """Whether all sizes of an urn are summed over here."""
    return groups == 2 and total <= _LISTED_UP_TO and torch.compiler.is_compiling()


class Pair(NamedTuple):
    """All sizes of an urn of two groups."""

    sizes: Tensor  # (2, n + 1)
    log_masses: Tensor  # (..., n + 1) before they are divided by their sum

    def log_normalizer(self) -> Tensor:
        return torch.logsumexp(self.log_masses, -1)

    def mean(self) -> Tensor:
        return (torch.softmax(self.log_masses, -1)[..., None, :] * self.sizes).sum(-1)

    # As those of :class:`SuffixTables`, whose one window would hold all sizes.

    @property
    def width(self) -> int:
        return self.sizes.shape[-1]

    def draw_softly(self, noise: Tensor, temperature: Tensor) -> "SoftSizes":
        """Draw with noise (..., 1, n + 1), by what is left behind the first group."""
        logits = self.log_masses[..., None, :] + noise.flip(-1)
        first = logits.detach().argmax(-1)
        sizes = torch.cat([first, self.width - 1 - first], -1).to(logits.dtype)
        return SoftSizes(sizes, torch.softmax(logits / temperature[..., None, None], -1))

    def follow_softly(self, sizes: Tensor, temperature: Tensor) -> "SoftSizes":
        """Given sizes (..., 2), without noise."""
        logits = self.log_masses.expand(*sizes.shape[:-1], -1)[..., None, :]
        return SoftSizes(sizes, torch.softmax(logits / temperature[..., None, None], -1))


def list_pair(total: int, log_weights: Tensor, capacities: Tensor | None = None) -> Pair:
    """List the sizes of two groups, which have n places each if ``capacities`` are omitted."""
    first = _count(total + 1, log_weights)
    sizes = torch.stack([first, total - first])
    log_masses = (sizes * log_weights[..., None]).sum(-2)
    if capacities is None:
        binomials = 2 * (math.lgamma(total + 1) - torch.lgamma(sizes + 1).sum(-2))
        return Pair(sizes, log_masses + binomials)
    room = capacities[..., None]
    with torch.no_grad():
        possible = (sizes <= room).all(-2)
        binomials = log_binomial(room, sizes).sum(-2)
    return Pair(sizes, torch.where(possible, log_masses + binomials, IMPOSSIBLE))


class Mean(NamedTuple):
    log_normalizer: Tensor
    mean: Tensor


def mean(total: Tensor, log_weights: Tensor, capacities: Tensor) -> Mean:
    """The exact mean of every group's size, and the normaliser, which comes with it."""
    inversion = _invert(total, log_weights, capacities)
    deviation = _deviation(inversion)
    mean = capacities * (inversion.chance + inversion.average(*deviation))
    return Mean(inversion.log_normalizer(), mean)


def _deviation(inversion: _Inversion) -> tuple[Tensor, Tensor]:
    """d = z - p, real and imaginary, with z = p e^{i theta} / phi the complex success probability.

    It is small where p is near 0 or 1, which keeps the variance free of cancellation.
    """
    chance, miss = inversion.chance[..., None], inversion.miss[..., None]
    scale = chance * miss / inversion.modulus
    real = -scale * (1 - inversion.cosine[..., None, :]) * (miss - chance)
    return real, scale * inversion.sine[..., None, :]


def variance(total: Tensor, log_weights: Tensor, capacities: Tensor) -> Tensor:
    """The exact variance of every group's size."""
    inversion = _invert(total, log_weights, capacities)
    chance, miss = inversion.chance[..., None], inversion.miss[..., None]
    cosine, sine = inversion.cosine[..., None, :], inversion.sine[..., None, :]
    d_real, d_imag = _deviation(inversion)
    mean_d = inversion.average(d_real, d_imag)
    mean_d2 = inversion.average(d_real.square() - d_imag.square(), 2 * d_real * d_imag)
    # z (1 - z) = p q (p + q c + i q s) (q + p c - i p s) / |phi|^4
    a_real, a_imag = chance + miss * cosine, miss * sine
    b_real, b_imag = miss + chance * cosine, -chance * sine
    scale = chance * miss / inversion.modulus.square()
    mean_z1z = inversion.average(
        scale * (a_real * b_real - a_imag * b_imag),
        scale * (a_real * b_imag + a_imag * b_real),
    )
    found = capacities.square() * (mean_d2 - mean_d.square()) + capacities * mean_z1z
    # Where it is nearly nothing, rounding may leave less; the gradient does not mind.
    return found + (found.clamp_min(0) - found).detach()


@torch.no_grad()
def mode(total: int, log_weights: Tensor, capacities: Tensor) -> Tensor:
    """The most likely sizes.

    The log-mass is a sum of concave functions of one size each, so the best sizes take the n
    largest of all increments; a common threshold on the increments is a tilt of the binomials.
    """
    if log_weights.shape[-1] == 2 and total <= _LISTED_UP_TO:
        return _mode_of_pair(total, log_weights, capacities)
    n = torch.full((), float(total), dtype=log_weights.dtype, device=log_weights.device)
    # One group's increments, from size s on, lie at least log((s + 2) / (s + 1)) apart. In a
    # shorter interval of tilts there is at most one of each group.
    digits = math.ceil(math.log2(_WIDEST_BRACKET * (total + 2)))
    below = _Predicate(n, log_weights, capacities, whole=True)
    lower, _ = _refine(*_bracket(n, log_weights, capacities), below, digits)
    chance = torch.sigmoid(log_weights + lower[..., None])
    sizes = torch.minimum(((capacities + 1) * chance).floor(), capacities)
    # What is missing goes, one each, to the groups whose next increment is the largest; what is
    # too much (a group on the threshold, by rounding) leaves those whose last was the smallest.
    missing = (n - sizes.sum(-1))[..., None]
    gained = torch.log((capacities - sizes) / (sizes + 1)) + log_weights
    lost = torch.log((capacities - sizes + 1) / sizes) + log_weights
    return sizes + (_rank(-gained) < missing).double() - (_rank(lost) < -missing).double()


def _mode_of_pair(total: int, log_weights: Tensor, capacities: Tensor) -> Tensor:
    """Of two groups: one element more goes to the first for as long as the mass grows by it."""
    first = _count(total, log_weights)
    second = total - first
    room, other_room = capacities[..., :1], capacities[..., 1:]
    gained = ((room - first).clamp_min(0) / (first + 1)).log() + log_weights[..., :1]
    lost = ((other_room - second + 1).clamp_min(0) / second).log() + log_weights[..., 1:]
    best = (gained >= lost).sum(-1, keepdim=True).to(log_weights.dtype)
    return torch.cat([best, total - best], -1)


def _rank(values: Tensor) -> Tensor:
    return torch.argsort(values, dim=-1, stable=True).argsort(-1)


def log_binomial(capacities: Tensor, sizes: Tensor, *, large: bool = True) -> Tensor:
    """log C(m, n); 0 outside 0 <= n <= m, where the caller masks it.

    ``large`` says that m may be much larger than n, which takes more operations.
    """
    inside = (sizes >= 0) & (sizes <= capacities)
    n = torch.where(inside, sizes, 0.0)
    rest = capacities - n + 1
    # log (m! / (m - n)!) as a difference of two log-factorials loses all digits when m is much
    # larger than n; as a difference of Stirling's series none.
    few = torch.lgamma(capacities + 1) - torch.lgamma(rest)
    if not large:
        return few - torch.lgamma(n + 1)
    wide = rest.clamp_min(_STIRLING_FROM)
    many = n * torch.log(wide + n) + (wide - 0.5) * torch.log1p(n / wide) - n
    many = many + _stirling_tail(wide + n) - _stirling_tail(wide)
    return torch.where(rest < _STIRLING_FROM, few, many) - torch.lgamma(n + 1)


def _stirling_tail(x: Tensor) -> Tensor:
    """What Stirling's formula leaves out of log Gamma(x), to 1e-16 from x = 32 on."""
    inverse = 1 / x
    square = inverse * inverse
    return inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680)))


class SoftSizes(NamedTuple):
    """One way to give the total out, as whole numbers and as laws over 0..n."""

    hard: Tensor  # (..., K)
    laws: Tensor  # (..., K - 1, n + 1) every size but the last


def window_width(total: int) -> int:
    """How many totals a table holds: all of them for small n, about 10 sqrt(n) for large."""
    half = math.ceil(_WINDOW_DEVIATIONS * math.sqrt(total) / 2) + _WINDOW_MARGIN
    return min(total + 1, 2 * half + 1)


class SuffixTables(NamedTuple):
    r"""Windowed tables of the suffix sums of an urn with K >= 2 groups.

    Axis -2 runs over the K - 1 boundaries between groups k and k + 1 (k = 1..K-1); axis -1 over
    the window of totals that groups k + 1..K may hold, ``first[k] + 0, 1, ..., W - 1``. Before
    the first group the window ends at the total.
    """

    first: Tensor  # (..., K - 1) the first total of each window
    log_steps: Tensor  # (..., K - 1, 2 W - 1) the log-mass of group k's sizes between windows
    log_suffix: Tensor  # (..., K - 1, W) log-mass of groups k + 1..K together
    total: int

    @property
    def width(self) -> int:
        return self.log_suffix.shape[-1]

    @property
    def sizes(self) -> Tensor:
        """(..., K - 1, 2 W - 1): the sizes of group k that lead from window to window."""
        before = F.pad(self.first[..., :-1], (1, 0), value=float(self.total + 1 - self.width))
        return _sizes_between(before - self.first, self.width)

    def remaining(self) -> Tensor:
        """The totals of every boundary's window, (..., K - 1, W)."""
        return self.first[..., None] + _count(self.width, self.first)

    @property
    def _fused(self) -> bool:
        return urn_fused.available(self.log_suffix, self.log_suffix.shape[-2] + 1, self.width)

    def _canonical(self) -> tuple[Tensor, Tensor, Tensor]:
        """(B, ...): the leading dimensions as one."""
        first, steps, suffix = self.first, self.log_steps, self.log_suffix
        return (
            first.reshape(-1, *first.shape[-1:]),
            steps.reshape(-1, *steps.shape[-2:]),
            suffix.reshape(-1, *suffix.shape[-2:]),
        )

    def _as_draws(self, tensor: Tensor, event_dims: int) -> Tensor:
        """(S, B, ...): any number of draws, none included, for the batch of these tables."""
        batch, event = self.first.shape[:-1].numel(), tensor.shape[-event_dims:]
        return tensor.reshape(tensor.shape[:-event_dims].numel() // batch, batch, *event)

    def draw(self, noise: Tensor) -> Tensor:
        """Sizes (..., K): the largest choice at every boundary in turn, after adding noise."""
        # Not as a decorator: torch's compiler cannot follow one on a method of a named tuple.
        with torch.no_grad():
            if self._fused:
                draws = self._as_draws(noise, 2)
                sizes = urn_fused.best_choices(*self._canonical(), draws, self.total)
                return sizes.reshape(*noise.shape[:-2], noise.shape[-2] + 1)
            return sizes_left(self.first + self._choices(noise), self.total)

    def _choices(self, noise: Tensor) -> Tensor:
        """(..., K - 1): the position in its window that every boundary takes."""
        position = torch.full(noise.shape[:-2], self.width - 1, device=noise.device)
        positions = []
        reverse = self._reverse()
        steps = self.log_steps.expand(*noise.shape[:-2], -1, -1).unbind(-2)
        for step, suffix in zip(steps, (self.log_suffix + noise).unbind(-2), strict=True):
            logits = step.gather(-1, position[..., None] + reverse) + suffix
            position = logits.argmax(-1)
            positions.append(position)
        return torch.stack(positions, -1)

    def draw_softly(self, noise: Tensor, temperature: Tensor) -> SoftSizes:
        """Draw with noise (..., K - 1, W); the soft sizes keep it."""
        if self._fused:
            draws = self._as_draws(noise, 2)
            return self._fused_draw(draws, None, temperature, noise.shape[:-2])
        with torch.no_grad():
            chosen = self._choices(noise)
        return self._soft_sizes(chosen, self.first + chosen, noise, temperature)

    def follow_softly(self, sizes: Tensor, temperature: Tensor) -> SoftSizes:
        """The path of given sizes (..., K), without noise."""
        if self._fused:
            draws = self._as_draws(sizes, 1)
            return self._fused_draw(None, draws, temperature, sizes.shape[:-1])
        behind = self.total - sizes.cumsum(-1)[..., :-1]
        # Cast before clamping: not even a NaN may lead out of the table.
        chosen = (behind - self.first).long().clamp(0, self.width - 1)
        return self._soft_sizes(chosen, behind, None, temperature)

    def _fused_draw(
        self, noise: Tensor | None, sizes: Tensor | None, temperature: Tensor, shape: torch.Size
    ) -> SoftSizes:
        if temperature.numel() > 1:
            temperature = temperature.expand(self.first.shape[:-1])
        drawn = urn_fused.soft_draws(
            *self._canonical(), noise, sizes, temperature.flatten(), self.total
        )
        laws = drawn.laws.reshape(*shape, *drawn.laws.shape[-2:])
        return SoftSizes(drawn.sizes.reshape(*shape, drawn.sizes.shape[-1]), laws)

    def _soft_sizes(
        self, chosen: Tensor, behind: Tensor, noise: Tensor | None, temperature: Tensor
    ) -> SoftSizes:
        positions = F.pad(chosen[..., :-1], (1, 0), value=self.width - 1)
        sizes = sizes_left(behind, self.total)
        laws = soft_laws_at(*self[:3], noise, temperature, sizes, positions, self.total)
        return SoftSizes(sizes, laws)

    def _reverse(self) -> Tensor:
        return torch.arange(self.width - 1, -1, -1, device=self.first.device)


def sizes_left(behind: Tensor, total: int) -> Tensor:
    """Sizes (..., K) from what remains behind every group but the last."""
    return F.pad(behind, (1, 0), value=float(total)) - F.pad(behind, (0, 1))


def soft_laws_at(
    first: Tensor,
    log_steps: Tensor,
    log_suffix: Tensor,
    noise: Tensor | None,
    temperature: Tensor,
    sizes: Tensor,
    positions: Tensor,
    total: int,
) -> Tensor:
    """(..., K - 1, n + 1): the law of every soft size, along a path that is already known.

    All boundaries at once, which keeps the graph of the backward pass small.
    """
    width = log_suffix.shape[-1]
    reverse = torch.arange(width - 1, -1, -1, device=first.device)
    index = positions[..., None].long() + reverse
    logits = log_steps.expand(*index.shape[:-1], -1).gather(-1, index) + log_suffix
    if noise is not None:
        logits = logits + noise
    soft = torch.softmax(logits / temperature[..., None, None], -1)
    before = total - F.pad(sizes[..., :-2].cumsum(-1), (1, 0))
    remaining = first[..., None] + _count(width, first)
    taken = (before[..., None] - remaining).long().clamp(0, total)
    return soft.new_zeros(*soft.shape[:-1], total + 1).scatter_add(-1, taken, soft)


def _count(length: int, like: Tensor) -> Tensor:
    return torch.arange(length, dtype=like.dtype, device=like.device)


def _toeplitz(steps: Tensor) -> Tensor:
    """Rows r, columns c: ``steps[r + c]``, as a view."""
    return steps.unfold(-1, (steps.shape[-1] + 1) // 2, 1)


def _correlate(steps: Tensor, vector: Tensor) -> Tensor:
    """The sum over c of ``steps[r + c] vector[c]``.

    All terms are positive, so relative precision is kept far into the tails, unlike by FFT.
    """
    return (_toeplitz(steps) @ vector[..., None]).squeeze(-1)


def _largest_sums(steps: Tensor, vector: Tensor) -> Tensor:
    """The largest over c of ``steps[r + c] + vector[c]``."""
    if torch.compiler.is_compiling():  # one kernel, backwards too
        return (_toeplitz(steps) + vector[..., None, :]).amax(-1)
    # Where it is, and then what it is: the gradient of a view of windows cannot be mapped.
    with torch.no_grad():
        best = (_toeplitz(steps) + vector[..., None, :]).argmax(-1)
    places = best + torch.arange(best.shape[-1], device=best.device)
    batch = best.shape[:-1]
    steps, vector = (x.expand(*batch, x.shape[-1]) for x in (steps, vector))
    return steps.gather(-1, places) + vector.gather(-1, best)


def _log_mass(sizes: Tensor, logit: Tensor, capacities: Tensor, large: bool) -> Tensor:
    """Log-mass of binomials (..., K) at sizes (..., K, W), IMPOSSIBLE outside their support."""
    possible = (sizes >= 0) & (sizes <= capacities[..., None])
    with torch.no_grad():
        binomial = log_binomial(capacities[..., None], sizes, large=large)
    # softplus, which torch itself cuts short beyond 20
    normaliser = -capacities * F.logsigmoid(-logit)
    log_mass = sizes * logit[..., None] - normaliser[..., None] + binomial
    return torch.where(possible, log_mass, IMPOSSIBLE)


def suffix_tables(
    total: int,
    log_weights: Tensor,
    capacities: Tensor,
    *,
    maximise: bool = False,
    large: bool = True,
) -> SuffixTables:
    """Build the tables of K >= 2 groups from the last one backwards.

    With ``maximise`` sums become maxima, which lead the noise-free draw to the law's mode instead
    of to the mode of one conditional after the other. ``large`` is for :func:`log_binomial`;
    without it every group has n places.
    """
    width = window_width(total)
    groups = log_weights.shape[-1]
    if urn_fused.available(log_weights, groups, width):
        batch = torch.broadcast_shapes(log_weights.shape, capacities.shape)
        urns = (x.expand(batch).reshape(-1, groups) for x in (log_weights, capacities))
        found = urn_fused.tables(total, width, *urns, maximise=maximise, large=large)
        first, steps, suffix = (x.reshape(*batch[:-1], *x.shape[1:]) for x in found[:3])
        return SuffixTables(first, steps, suffix, total)
    n = torch.full((), float(total), dtype=log_weights.dtype, device=log_weights.device)
    if groups == 2 and not large and torch.compiler.is_compiling():
        # Two groups of n places hold n on average where the odds of one undo those of the other.
        shift = -log_weights.detach().mean(-1)
    else:
        shift = tilt(n, log_weights.detach(), capacities)
    with torch.no_grad():
        means = capacities * torch.sigmoid(log_weights + shift[..., None])
        centre = means.flip(-1).cumsum(-1).flip(-1)[..., 1:]
        first = (centre.round() - (width - 1) // 2).clamp(0, total + 1 - width)
    return tables_at(total, log_weights, capacities, shift, first, maximise=maximise, large=large)


def tables_at(
    total: int,
    log_weights: Tensor,
    capacities: Tensor,
    shift: Tensor,
    first: Tensor,
    *,
    maximise: bool,
    large: bool,
) -> SuffixTables:
    """The tables for a tilt and windows that are already known."""
    width = window_width(total)
    # From the full total, through the windows, to nothing behind the last group.
    before = F.pad(first, (1, 0), value=float(total + 1 - width))
    sizes = _sizes_between(before - F.pad(first, (0, 1)), width)
    log_mass = _log_mass(sizes, log_weights + shift[..., None], capacities, large)
    log_steps, last = log_mass[..., :-1, :], log_mass[..., -1, width - 1 :]
    if maximise:
        suffix = [last]
        for steps in log_steps.unbind(-2)[:0:-1]:
            best = _largest_sums(steps.flip(-1), suffix[-1])
            suffix.append(best.flip(-1).clamp_min(IMPOSSIBLE))
        log_suffix = torch.stack(suffix[::-1], -2)
    else:
        masses = _chain(log_steps.exp()[..., 1:, :].flip(-2), last.exp())
        log_suffix = _safe_log(masses.flip(-2))
    return SuffixTables(first, log_steps, log_suffix, total)


def _sizes_between(shifts: Tensor, width: int) -> Tensor:
    """(..., 2 W - 1): the sizes that lead from one window to another, so many totals further."""
    return shifts[..., None] + (_count(2 * width - 1, shifts) - (width - 1))


def _chain(steps: Tensor, start: Tensor) -> Tensor:
    """(..., j + 1, W): a mass and what convolution with j step tables in turn makes of it.

    T'[r] = sum over c of steps[r - c + W - 1] T[c].
    """
    batch = torch.broadcast_shapes(steps.shape[:-2], start.shape[:-1])
    start = start.expand(*batch, -1)
    if not steps.shape[-2]:  # two groups: every operation counts where a step is made of them
        return start[..., None, :]
    return _convolved(steps.expand(*batch, *steps.shape[-2:]), start)


def _convolved(steps: Tensor, start: Tensor) -> Tensor:
    tables: Tensor = apply(_Chain, steps, start)
    return tables


# Torch's compiler does not map functions of ours; what it takes as it is, torch.func does.
torch.compiler.allow_in_graph(_convolved)


class _Chain(torch.autograd.Function):
    """Convolutions in turn, with a backward pass that never forms a gradient of a matrix."""

    @staticmethod
    def forward(steps: Tensor, start: Tensor) -> Tensor:
        # A correlation needs one side reversed; the tables alternate between the two directions,
        # which saves reversing each of them in turn.
        forward, backward = steps.unbind(-2), steps.flip(-1).unbind(-2)
        tables = [start]
        for j in range(len(forward)):
            tables.append(_correlate(forward[j] if j % 2 else backward[j], tables[-1]))
        return torch.stack([t.flip(-1) if j % 2 else t for j, t in enumerate(tables)], -2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        steps, tables = ctx.saved_tensors
        width = tables.shape[-1]
        grads, masses = grad.unbind(-2), tables.unbind(-2)
        running, step_grads = grads[-1], []
        for j in range(steps.shape[-2] - 1, -1, -1):
            padded = F.pad(running, (width - 1, width - 1))
            step_grads.append((padded.unfold(-1, width, 1) @ masses[j][..., None]).squeeze(-1))
            running = grads[j] + _correlate(steps[..., j, :], running).flip(-1)
        return torch.stack(step_grads[::-1], -2), running

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Tensor, int]:
        return apply(_Chain, *to_leading(info, in_dims, inputs)), 0


def _safe_log(mass: Tensor) -> Tensor:
    return torch.where(mass > _TINY, mass.clamp_min(_TINY).log(), IMPOSSIBLE)


def _prefix_masses(tables: SuffixTables) -> Tensor:
    """(..., K - 1, W): mass of groups 1..k together taking what a boundary's window leaves."""
    steps = tables.log_steps.exp()
    # From the full total, the last position of the first window, all of group 1's sizes lead on.
    first = steps[..., 0, tables.width - 1 :].flip(-1)
    return _chain(steps[..., 1:, :].flip(-1), first)


def boundary_law(tables: SuffixTables) -> Tensor:
    """(..., K - 1, W): the probability of every total in every boundary's window."""
    joint = _prefix_masses(tables) * tables.log_suffix.exp()
    return joint / joint.sum(-1, keepdim=True)


class SizeMarginal(NamedTuple):
    sizes: Tensor
    probs: Tensor


def size_marginals(tables: SuffixTables) -> list[SizeMarginal]:
    """The law of every group's size, one entry a group, each over its own window."""
    prefix, suffix = _prefix_masses(tables).unbind(-2), tables.log_suffix.exp().unbind(-2)
    ends, remaining = boundary_law(tables), tables.remaining()
    marginals = [SizeMarginal(tables.total - remaining[..., 0, :], ends[..., 0, :])]
    for k in range(1, len(suffix)):
        # All pairs of totals before and behind the group, added up by their difference.
        padded = F.pad(suffix[k], (tables.width - 1, tables.width - 1))
        pairs = padded.unfold(-1, tables.width, 1) @ prefix[k - 1][..., None]
        joint = tables.log_steps[..., k, :].exp() * pairs.squeeze(-1).flip(-1)
        probs = joint / joint.sum(-1, keepdim=True)
        marginals.append(SizeMarginal(tables.sizes[..., k, :], probs))
    marginals.append(SizeMarginal(remaining[..., -1, :], ends[..., -1, :]))
    return marginals

r"""The tables and draws of :mod:`drpm.distributions.urn_tables` as a handful of Triton kernels.

On a GPU an urn of ordinary size is so little work that the plain version, some two hundred small
operations, takes no longer than it takes to launch them. Here one program handles one urn from
end to end. The formulas are those of the plain version, which stays the reference and serves
every other device, larger urns, compilation and second derivatives.
"""

import triton
import triton.language as tl

_NEVER = tl.constexpr(-(2.0**100))  # urn.IMPOSSIBLE
_TINY = tl.constexpr(1e-300)
_GRID = tl.constexpr(256)  # tilts tried at once: 8 binary digits a round
_COUNTS = ["batch", "total", "groups", "width"]  # one program for all of their values


@triton.jit
def _sigmoid(x):
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, small) / (1.0 + small)


@triton.jit
def _softplus(x):
    small = tl.exp(-tl.abs(x))
    shifted = 1.0 + small
    # log(1 + small) with the rounding of the sum taken back out.
    return tl.maximum(x, 0.0) + tl.log(shifted) - ((shifted - 1.0) - small) / shifted


@triton.jit
def _stirling_tail(x):
    """What Stirling's formula leaves out of log Gamma(x), to 1e-16 from x = 9 on."""
    inverse = 1.0 / x
    square = inverse * inverse
    tail = 1.0 / 156 - square * (3617.0 / 122400)
    tail = 691.0 / 360360 - square * tail
    tail = 1.0 / 1188 - square * tail
    tail = 1.0 / 1680 - square * tail
    tail = 1.0 / 1260 - square * tail
    tail = 1.0 / 360 - square * tail
    tail = 1.0 / 12 - square * tail
    return inverse * tail


@triton.jit
def _log_gamma(x):
    """log Gamma(x) for x >= 1, as Stirling's series eight steps further up."""
    steps = x * (x + 1) * (x + 2) * (x + 3)
    more = (x + 4) * (x + 5) * (x + 6) * (x + 7)
    high = x + 8
    # Constants stand in expressions only: a name for a plain number would make it a float32.
    series = (high - 0.5) * tl.log(high) - high + 0.9189385332046727 + _stirling_tail(high)
    return series - tl.log(steps) - tl.log(more)


@triton.jit
def _log_binomial(capacity, size, LARGE: tl.constexpr):
    """log C(m, n) inside 0 <= n <= m; see ``urn.log_binomial`` for ``LARGE``."""
    rest = capacity - size + 1
    falling = _log_gamma(capacity + 1) - _log_gamma(rest)
    if LARGE:
        wide = tl.maximum(rest, 32.0)
        ratio = size / wide
        raised = 1.0 + ratio
        log_ratio = tl.log(raised) - ((raised - 1.0) - ratio) / raised
        many = size * tl.log(wide + size) + (wide - 0.5) * log_ratio - size
        many = many + _stirling_tail(wide + size) - _stirling_tail(wide)
        falling = tl.where(rest < 32.0, falling, many)
    return falling - _log_gamma(size + 1)


@triton.jit
def _threshold(log_weights, capacities, live, total, KB: tl.constexpr):
    """Minus the weight of the group in which the total is reached, filling heavy groups first."""
    k = tl.arange(0, KB)
    # Row i, column j: whether group j is filled no later than group i.
    heavier = log_weights[None, :] > log_weights[:, None]
    same = (log_weights[None, :] == log_weights[:, None]) & (k[None, :] <= k[:, None])
    filled = tl.sum(tl.where((heavier | same) & live[None, :], capacities[None, :], 0.0), 1)
    enough = live & (filled >= total)
    reached = tl.max(tl.where(enough, log_weights, -float("inf")), 0)
    lightest = tl.min(tl.where(live, log_weights, float("inf")), 0)
    return -tl.where(reached == -float("inf"), lightest, reached)


@triton.jit
def _search_tilt(
    log_weights,
    capacities,
    live,
    total,
    ROUNDS: tl.constexpr,
    WHOLE: tl.constexpr,
    KB: tl.constexpr,
):
    """The last two tilts between which the count given out passes the total."""
    margin = tl.log(1.0 + tl.sum(capacities, 0)) + 45.0
    middle = _threshold(log_weights, capacities, live, total, KB)
    lower, upper = middle - margin, middle + margin
    point = tl.arange(0, _GRID)
    for _ in range(ROUNDS):
        grid = lower + (upper - lower) * (point.to(tl.float64) / _GRID)
        chance = _sigmoid(log_weights[None, :] + grid[:, None])
        if WHOLE:
            count = tl.minimum(tl.floor((capacities + 1)[None, :] * chance), capacities[None, :])
        else:
            count = capacities[None, :] * chance
        below = tl.sum(tl.where(live[None, :], count, 0.0), 1) <= total
        cell = tl.maximum(tl.sum(below.to(tl.int32), 0) - 1, 0)
        start, step = lower, upper - lower
        lower = start + step * (cell.to(tl.float64) / _GRID)
        upper = start + step * ((cell + 1).to(tl.float64) / _GRID)
    return lower, upper


@triton.jit
def _round(x):
    """To the nearest whole number, halves to the even one."""
    up = tl.floor(x + 0.5)
    odd = up - 2.0 * tl.floor(up / 2.0) > 0.5
    return tl.where((up - x == 0.5) & odd, up - 1.0, up)


@triton.jit
def _window_start(means, after, total, width, KB: tl.constexpr):
    """The first total in the window of what the groups behind ``after`` may hold."""
    centre = tl.sum(tl.where(tl.arange(0, KB) > after, means, 0.0), 0)
    start = _round(centre) - ((width - 1) // 2).to(tl.float64)
    return tl.minimum(tl.maximum(start, 0.0), (total + 1 - width).to(tl.float64))


@triton.jit(do_not_specialize=_COUNTS)
def steps_kernel(
    log_weights,
    capacities,
    first,
    log_steps,
    steps,
    log_last,
    slopes,
    total,
    groups,
    width,
    LARGE: tl.constexpr,
    KB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One group of one urn: its window and the log-mass, and mass, of its sizes.

    ``log_last`` is the last group's part. ``slopes`` keeps what the backward pass needs: the shift
    of the sizes and the group's mean; and the tilt.
    """
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    k = tl.arange(0, KB)
    live = k < groups
    weights = tl.load(log_weights + row * groups + k, mask=live, other=0.0)
    room = tl.load(capacities + row * groups + k, mask=live, other=0.0)
    lower, upper = _search_tilt(weights, room, live, total.to(tl.float64), 2, False, KB)
    tilt = (lower + upper) / 2
    logits = weights + tilt
    means = tl.where(live, room * _sigmoid(logits), 0.0)

    behind = _window_start(means, group, total, width, KB)
    before = _window_start(means, group - 1, total, width, KB)
    before = tl.where(group == 0, (total + 1 - width).to(tl.float64), before)
    last = group == groups - 1
    tl.store(first + row * (groups - 1) + group, behind, mask=group < groups - 1)
    shift = before - tl.where(last, 0.0, behind)

    here = k == group
    logit = tl.sum(tl.where(here, logits, 0.0), 0)
    capacity = tl.sum(tl.where(here, room, 0.0), 0)
    slope = slopes + (row * groups + group) * 3
    tl.store(slope, shift)
    tl.store(slope + 1, tl.sum(tl.where(here, means, 0.0), 0))
    tl.store(slope + 2, tilt)
    normaliser = capacity * _softplus(logit)
    length = 2 * width - 1
    base = (row * (groups - 1) + group) * length
    for start in range(0, length, BLOCK):
        j = start + tl.arange(0, BLOCK)
        size = shift + (j - (width - 1)).to(tl.float64)
        possible = (size >= 0) & (size <= capacity)
        inside = tl.where(possible, size, 0.0)
        log_mass = inside * logit - normaliser + _log_binomial(capacity, inside, LARGE)
        log_mass = tl.where(possible, log_mass, _NEVER)
        if last:  # nothing remains behind it: only totals from its window, at 0, 1, ..., W - 1
            c = j - (width - 1)
            tl.store(log_last + row * width + c, log_mass, mask=(c >= 0) & (j < length))
        else:
            tl.store(log_steps + base + j, log_mass, mask=j < length)
            tl.store(steps + base + j, tl.exp(log_mass), mask=j < length)


@triton.jit(do_not_specialize=_COUNTS)
def chain_kernel(
    log_steps,
    steps,
    log_last,
    log_suffix,
    masses,
    groups,
    width,
    MAXIMISE: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """The suffix tables of one urn, from the last group backwards.

    With MAXIMISE sums become maxima of logarithms, and ``masses`` holds those.
    """
    row = tl.program_id(0).to(tl.int64)
    length = 2 * width - 1
    tables = row * (groups - 1) * width
    for r0 in range(0, width, ROWS):
        r = r0 + tl.arange(0, ROWS)
        inside = r < width
        value = tl.load(log_last + row * width + r, mask=inside, other=_NEVER)
        tl.store(log_suffix + tables + (groups - 2) * width + r, value, mask=inside)
        kept = value if MAXIMISE else tl.exp(value)
        tl.store(masses + tables + (groups - 2) * width + r, kept, mask=inside)
    for i in range(2, groups):
        k = groups - i
        tl.debug_barrier()  # the next table reads what all threads wrote of this one
        base = (row * (groups - 1) + k) * length + width - 1
        for r0 in range(0, width, ROWS):
            r = r0 + tl.arange(0, ROWS)
            # Entry by entry, and added up once at the end: a sum over threads is the dear part.
            if MAXIMISE:
                parts = tl.full([ROWS, COLS], -2e30, tl.float64)
            else:
                parts = tl.zeros([ROWS, COLS], tl.float64)
            for c0 in range(0, width, COLS):
                c = c0 + tl.arange(0, COLS)
                inside = (r < width)[:, None] & (c < width)[None, :]
                index = base + r[:, None] - c[None, :]
                if MAXIMISE:
                    table = tl.load(masses + tables + k * width + c, mask=c < width, other=_NEVER)
                    step = tl.load(log_steps + index, mask=inside, other=_NEVER)
                    parts = tl.maximum(parts, step + table[None, :])
                else:
                    table = tl.load(masses + tables + k * width + c, mask=c < width, other=0.0)
                    step = tl.load(steps + index, mask=inside, other=0.0)
                    parts += step * table[None, :]
            target = tables + (k - 1) * width + r
            if MAXIMISE:
                value = tl.maximum(tl.max(parts, 1), _NEVER)
                tl.store(masses + target, value, mask=r < width)
            else:
                total = tl.sum(parts, 1)
                tl.store(masses + target, total, mask=r < width)
                value = tl.where(total > _TINY, tl.log(tl.maximum(total, _TINY)), _NEVER)
            tl.store(log_suffix + target, value, mask=r < width)


@triton.jit(do_not_specialize=_COUNTS)
def chain_gradient_kernel(
    log_steps,
    steps,
    masses,
    suffix_grad,
    running,
    groups,
    width,
    MAXIMISE: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """The gradient that reaches every table, from those in front of it.

    With MAXIMISE a gradient goes to the entries that reached the maximum, in equal shares;
    ``running`` holds the shares.
    """
    row = tl.program_id(0).to(tl.int64)
    length = 2 * width - 1
    tables = row * (groups - 1) * width
    for k in range(groups - 1):
        if k > 0:
            tl.debug_barrier()
        base = (row * (groups - 1) + k) * length + width - 1
        here = tables + k * width
        for c0 in range(0, width, ROWS):
            c = c0 + tl.arange(0, ROWS)
            grad = tl.load(suffix_grad + here + c, mask=c < width, other=0.0)
            mass = tl.load(masses + here + c, mask=c < width, other=0.0)
            if not MAXIMISE:
                grad = tl.where(mass > _TINY, grad / tl.maximum(mass, _TINY), 0.0)
            if k > 0:
                parts = tl.zeros([ROWS, COLS], tl.float64)
                for r0 in range(0, width, COLS):
                    r = r0 + tl.arange(0, COLS)
                    inside = (c < width)[:, None] & (r < width)[None, :]
                    index = base + r[None, :] - c[:, None]
                    front = tl.load(running + here - width + r, mask=r < width, other=0.0)
                    if MAXIMISE:
                        best = tl.load(masses + here - width + r, mask=r < width, other=0.0)
                        step = tl.load(log_steps + index, mask=inside, other=_NEVER)
                        taken = inside & (step + mass[:, None] == best[None, :])
                        parts += tl.where(taken, front[None, :], 0.0)
                    else:
                        step = tl.load(steps + index, mask=inside, other=0.0)
                        parts += step * front[None, :]
                grad += tl.sum(parts, 1)
            if MAXIMISE:  # known when compiled, unlike the next condition  # noqa: SIM102
                if k < groups - 2:  # in equal shares to all that led to this entry
                    ties = tl.zeros([ROWS, COLS], tl.float64)
                    behind = base + length  # the next group's steps
                    for d0 in range(0, width, COLS):
                        d = d0 + tl.arange(0, COLS)
                        inside = (c < width)[:, None] & (d < width)[None, :]
                        next_index = behind + c[:, None] - d[None, :]
                        table = tl.load(masses + here + width + d, mask=d < width, other=_NEVER)
                        step = tl.load(log_steps + next_index, mask=inside, other=_NEVER)
                        taken = inside & (step + table[None, :] == mass[:, None])
                        ties += taken.to(tl.float64)
                    grad = grad / tl.maximum(tl.sum(ties, 1), 1.0)
            tl.store(running + here + c, grad, mask=c < width)


@triton.jit(do_not_specialize=_COUNTS)
def steps_gradient_kernel(
    log_steps,
    steps,
    log_last,
    masses,
    running,
    steps_grad,
    slopes,
    weights_grad,
    groups,
    width,
    MAXIMISE: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """The gradient of one group's log-weight: every size's log-mass changes by size - mean."""
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    length = 2 * width - 1
    tables = row * (groups - 1) * width
    shift = tl.load(slopes + (row * groups + group) * 3)
    mean = tl.load(slopes + (row * groups + group) * 3 + 1)
    base = (row * (groups - 1) + group) * length
    total = tl.zeros([ROWS], tl.float64)
    # What the choices themselves sent back; the last group has no choice.
    if group < groups - 1:
        for j0 in range(0, length, ROWS):
            j = j0 + tl.arange(0, ROWS)
            grad = tl.load(steps_grad + base + j, mask=j < length, other=0.0)
            log_mass = tl.load(log_steps + base + j, mask=j < length, other=_NEVER)
            slope = shift + (j - (width - 1)).to(tl.float64) - mean
            total += tl.where(log_mass > _NEVER, grad * slope, 0.0)
    if group == groups - 1:  # the last table is this group's mass
        for c0 in range(0, width, ROWS):
            c = c0 + tl.arange(0, ROWS)
            grad = tl.load(running + tables + (groups - 2) * width + c, mask=c < width, other=0.0)
            log_mass = tl.load(log_last + row * width + c, mask=c < width, other=_NEVER)
            slope = shift + c.to(tl.float64) - mean
            mass = 1.0 if MAXIMISE else tl.exp(log_mass)
            total += tl.where(log_mass > _NEVER, grad * slope * mass, 0.0)
    if (group > 0) & (group < groups - 1):  # the table in front is a convolution with this group
        front = tables + (group - 1) * width
        for r0 in range(0, width, ROWS):
            r = r0 + tl.arange(0, ROWS)
            grad = tl.load(running + front + r, mask=r < width, other=0.0)
            best = tl.load(masses + front + r, mask=r < width, other=0.0)
            parts = tl.zeros([ROWS, COLS], tl.float64)
            for c0 in range(0, width, COLS):
                c = c0 + tl.arange(0, COLS)
                inside = (r < width)[:, None] & (c < width)[None, :]
                offset = r[:, None] - c[None, :]
                slope = shift + offset.to(tl.float64) - mean
                table = tl.load(masses + front + width + c, mask=c < width, other=0.0)
                index = base + width - 1 + offset
                if MAXIMISE:
                    step = tl.load(log_steps + index, mask=inside, other=_NEVER)
                    taken = inside & (step + table[None, :] == best[:, None]) & (step > _NEVER)
                    parts += tl.where(taken, slope, 0.0)
                else:
                    step = tl.load(steps + index, mask=inside, other=0.0)
                    parts += step * table[None, :] * slope
            total += grad * tl.sum(parts, 1)
    tl.store(weights_grad + row * groups + group, tl.sum(total, 0))


@triton.jit(do_not_specialize=_COUNTS)
def draw_kernel(
    first,
    log_steps,
    log_suffix,
    noise,
    given,
    temperature,
    sizes,
    positions,
    laws,
    batch,
    total,
    groups,
    width,
    FREE: tl.constexpr,
    NOISY: tl.constexpr,
    SOFT: tl.constexpr,
    WARM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One draw: group after group the best choice (FREE) or the one given.

    With SOFT, also the law of every soft size over 0..n, at a temperature (per urn if WARM).
    """
    draw = tl.program_id(0).to(tl.int64)
    row = draw % batch
    c = tl.arange(0, BLOCK)
    inside = c < width
    position = width - 1
    before = total.to(tl.float64)
    heat = tl.load(temperature + (row if WARM else 0)) if SOFT else 1.0
    for k in range(groups - 1):
        base = (row * (groups - 1) + k) * (2 * width - 1)
        step = tl.load(
            log_steps + base + position + width - 1 - c, mask=inside, other=-float("inf")
        )
        logits = step + tl.load(
            log_suffix + (row * (groups - 1) + k) * width + c, mask=inside, other=_NEVER
        )
        if NOISY:
            logits += tl.load(noise + (draw * (groups - 1) + k) * width + c, mask=inside, other=0.0)
        start = tl.load(first + row * (groups - 1) + k)
        tl.store(positions + draw * (groups - 1) + k, position)
        if SOFT:
            warmed = logits / heat
            raised = tl.exp(warmed - tl.max(warmed, 0))
            soft = raised / tl.sum(raised, 0)
            taken = (before - start).to(tl.int32) - c
            target = laws + (draw * (groups - 1) + k) * (total + 1)
            tl.store(target + taken, soft, mask=inside & (taken >= 0) & (taken <= total))
        full = before
        if FREE:
            # Not even a NaN may lead out of the table.
            position = tl.minimum(tl.argmax(logits, 0), width - 1)
            before = start + position.to(tl.float64)
        else:
            before = full - tl.load(given + draw * groups + k)
            position = tl.minimum(tl.maximum((before - start).to(tl.int32), 0), width - 1)
        tl.store(sizes + draw * groups + k, full - before)
    tl.store(sizes + draw * groups + groups - 1, before)


@triton.jit(do_not_specialize=_COUNTS)
def draw_gradient_kernel(
    first,
    log_steps,
    log_suffix,
    noise,
    temperature,
    sizes,
    positions,
    laws,
    laws_grad,
    steps_grad,
    suffix_grad,
    heat_grad,
    batch,
    total,
    groups,
    width,
    NOISY: tl.constexpr,
    WARM: tl.constexpr,
    HEAT_GRAD: tl.constexpr,
    KB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One boundary of one draw: the softmax's gradient in both tables and in the temperature."""
    draw, k = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = draw % batch
    c = tl.arange(0, BLOCK)
    inside = c < width
    heat = tl.load(temperature + (row if WARM else 0))
    here = draw * (groups - 1) + k
    position = tl.load(positions + here)
    group = tl.arange(0, KB)
    earlier = tl.load(sizes + draw * groups + group, mask=group < k, other=0.0)
    before = total.to(tl.float64) - tl.sum(earlier, 0)
    start = tl.load(first + row * (groups - 1) + k)
    taken = (before - start).to(tl.int32) - c
    visible = inside & (taken >= 0) & (taken <= total)
    soft = tl.load(laws + here * (total + 1) + taken, mask=visible, other=0.0)
    grad = tl.load(laws_grad + here * (total + 1) + taken, mask=visible, other=0.0)
    inner = soft * (grad - tl.sum(soft * grad, 0))
    tl.store(suffix_grad + here * width + c, inner / heat, mask=inside)
    tl.store(
        steps_grad + here * (2 * width - 1) + position + width - 1 - c, inner / heat, mask=inside
    )
    if HEAT_GRAD:
        base = (row * (groups - 1) + k) * (2 * width - 1) + position + width - 1 - c
        logits = tl.load(log_steps + base, mask=inside, other=0.0)
        logits += tl.load(log_suffix + (row * (groups - 1) + k) * width + c, mask=inside, other=0.0)
        if NOISY:
            logits += tl.load(noise + here * width + c, mask=inside, other=0.0)
        tl.store(heat_grad + here, -tl.sum(inner * logits, 0) / (heat * heat))


@triton.jit(do_not_specialize=_COUNTS)
def mode_kernel(
    log_weights,
    capacities,
    modes,
    total,
    groups,
    KB: tl.constexpr,
):
    """The most likely sizes of one urn; see ``urn_tilt.mode``."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, KB)
    live = k < groups
    weights = tl.load(log_weights + row * groups + k, mask=live, other=0.0)
    room = tl.load(capacities + row * groups + k, mask=live, other=0.0)
    n = total.to(tl.float64)
    lower, _ = _search_tilt(weights, room, live, n, 8, True, KB)
    sizes = tl.minimum(tl.floor((room + 1) * _sigmoid(weights + lower)), room)
    sizes = tl.where(live, sizes, 0.0)
    missing = n - tl.sum(sizes, 0)
    # The logarithm is monotone, but a full group's next increment must come last, an empty
    # group's last one last as well.
    gained = tl.log((room - sizes) / (sizes + 1)) + weights
    lost = tl.log((room - sizes + 1) / sizes) + weights
    gained = tl.where(live & (sizes < room), gained, -float("inf"))
    lost = tl.where(live & (sizes > 0), lost, float("inf"))
    earlier = k[None, :] < k[:, None]
    more = (gained[None, :] > gained[:, None]) | ((gained[None, :] == gained[:, None]) & earlier)
    less = (lost[None, :] < lost[:, None]) | ((lost[None, :] == lost[:, None]) & earlier)
    rank_up = tl.sum((more & live[None, :]).to(tl.float64), 1)
    rank_down = tl.sum((less & live[None, :]).to(tl.float64), 1)
    sizes += (rank_up < missing).to(tl.float64) - (rank_down < -missing).to(tl.float64)
    tl.store(modes + row * groups + k, sizes, mask=live)


@triton.jit
def _times(a_real, a_imag, b_real, b_imag):
    return a_real * b_real - a_imag * b_imag, a_real * b_imag + a_imag * b_real


@triton.jit(do_not_specialize=["count", "bins"])
def products_kernel(spectra, products, count, bins, BLOCK: tl.constexpr):
    """The running products of complex spectra (B, count, bins), real parts first."""
    row = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = f < bins
    real = tl.full([BLOCK], 1.0, tl.float64)
    imag = tl.zeros([BLOCK], tl.float64)
    for j in range(count):
        at = ((row * count + j) * bins + f) * 2
        s_real = tl.load(spectra + at, mask=inside, other=0.0)
        s_imag = tl.load(spectra + at + 1, mask=inside, other=0.0)
        real, imag = _times(real, imag, s_real, s_imag)
        tl.store(products + at, real, mask=inside)
        tl.store(products + at + 1, imag, mask=inside)


@triton.jit(do_not_specialize=["count", "bins"])
def products_gradient_kernel(spectra, pulls, grads, count, bins, BLOCK: tl.constexpr):
    """What pulls on the running products are in the spectra: all with conjugates."""
    row = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = f < bins
    real = tl.full([BLOCK], 1.0, tl.float64)
    imag = tl.zeros([BLOCK], tl.float64)
    for j in range(count):  # first, what stands before every factor
        at = ((row * count + j) * bins + f) * 2
        tl.store(grads + at, real, mask=inside)
        tl.store(grads + at + 1, imag, mask=inside)
        s_real = tl.load(spectra + at, mask=inside, other=0.0)
        s_imag = -tl.load(spectra + at + 1, mask=inside, other=0.0)
        real, imag = _times(real, imag, s_real, s_imag)
    tl.debug_barrier()
    pull_real = tl.zeros([BLOCK], tl.float64)
    pull_imag = tl.zeros([BLOCK], tl.float64)
    for i in range(count):  # then, from the last back, what pulls on it and all behind it
        at = ((row * count + count - 1 - i) * bins + f) * 2
        pull_real += tl.load(pulls + at, mask=inside, other=0.0)
        pull_imag += tl.load(pulls + at + 1, mask=inside, other=0.0)
        before_real = tl.load(grads + at, mask=inside, other=0.0)
        before_imag = tl.load(grads + at + 1, mask=inside, other=0.0)
        real, imag = _times(before_real, before_imag, pull_real, pull_imag)
        tl.store(grads + at, real, mask=inside)
        tl.store(grads + at + 1, imag, mask=inside)
        s_real = tl.load(spectra + at, mask=inside, other=0.0)
        s_imag = -tl.load(spectra + at + 1, mask=inside, other=0.0)
        pull_real, pull_imag = _times(s_real, s_imag, pull_real, pull_imag)

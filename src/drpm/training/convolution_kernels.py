r"""Convolutions of stacked runs at stride 1 as Triton kernels, without columns in memory.

Each is a product of matrices in which one factor, the windows of the images, is gathered tile by
tile: a column for each output pixel ("position", counted through all images of a run), a row for
each number in a window ("tap", counted through channels, rows and columns). All shapes but the
number of images are compiled in: they are divided by.
"""

import triton
import triton.language as tl

# Other numbers stay open to Triton's look at their divisors, which tells it what lies in line.
_COUNTS = ["blocks", "splits", "span", "runs"]


@triton.jit
def _windows(
    position,
    positions,
    tap,
    TAPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    IMAGE_H: tl.constexpr,
    IMAGE_W: tl.constexpr,
    OUT_H: tl.constexpr,
    OUT_W: tl.constexpr,
    KERNEL_H: tl.constexpr,
    KERNEL_W: tl.constexpr,
    PAD_H: tl.constexpr,
    PAD_W: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Where what windows hold is, (taps, positions), and whether it is there at all."""
    pixel = position % (OUT_H * OUT_W)
    top = pixel // OUT_W - PAD_H
    left = pixel % OUT_W - PAD_W
    channel = tap // (KERNEL_H * KERNEL_W)
    down = tap % (KERNEL_H * KERNEL_W) // KERNEL_W
    across = tap % (KERNEL_H * KERNEL_W) % KERNEL_W
    corner = position // (OUT_H * OUT_W) * (CHANNELS * IMAGE_H * IMAGE_W) + top * IMAGE_W + left
    step = channel * (IMAGE_H * IMAGE_W) + down * IMAGE_W + across
    there = (tap < TAPS)[:, None] & (position < positions)[None, :]
    if PADDED:
        y = down[:, None] + top[None, :]
        x = across[:, None] + left[None, :]
        there = there & (y >= 0) & (y < IMAGE_H) & (x >= 0) & (x < IMAGE_W)
    return step[:, None] + corner[None, :], there


@triton.jit(do_not_specialize=_COUNTS)
def correlate_kernel(
    images,
    weight,
    bias,
    out,
    images_step,
    weight_step,
    bias_step,
    positions,
    blocks,
    OUTPUTS: tl.constexpr,
    CHANNELS: tl.constexpr,
    IMAGE_H: tl.constexpr,
    IMAGE_W: tl.constexpr,
    OUT_H: tl.constexpr,
    OUT_W: tl.constexpr,
    KERNEL_H: tl.constexpr,
    KERNEL_W: tl.constexpr,
    PAD_H: tl.constexpr,
    PAD_W: tl.constexpr,
    PADDED: tl.constexpr,
    TURNED: tl.constexpr,
    BIASED: tl.constexpr,
    PRECISION: tl.constexpr,
    GROUP: tl.constexpr,
    OUTPUT_BLOCK: tl.constexpr,
    TAP_BLOCK: tl.constexpr,
    POSITION_BLOCK: tl.constexpr,
):
    """Some positions of one run, in some output channels.

    ``weight`` is (OUTPUTS, CHANNELS, ...); where it is TURNED, it is (CHANNELS, OUTPUTS, ...) and
    read backwards, as the gradient of the images wants it. A ``step`` leads from run to run.
    """
    WINDOW: tl.constexpr = KERNEL_H * KERNEL_W
    PIXELS: tl.constexpr = OUT_H * OUT_W
    run = (tl.program_id(0) // blocks).to(tl.int64)
    position = tl.program_id(0) % blocks * POSITION_BLOCK + tl.arange(0, POSITION_BLOCK)
    output = tl.program_id(1) * OUTPUT_BLOCK + tl.arange(0, OUTPUT_BLOCK)
    images += run * images_step
    weight += run * weight_step
    # Some whole channels at once: then all that is ever divided is divided before the loop.
    tap = tl.arange(0, TAP_BLOCK)
    place, there = _windows(
        position,
        positions,
        tap,
        GROUP * WINDOW,
        CHANNELS,
        IMAGE_H,
        IMAGE_W,
        OUT_H,
        OUT_W,
        KERNEL_H,
        KERNEL_W,
        PAD_H,
        PAD_W,
        PADDED,
    )
    if TURNED:
        CHANNEL_STEP: tl.constexpr = OUTPUTS * WINDOW
        back = tap // WINDOW * CHANNEL_STEP + (WINDOW - 1) - tap % WINDOW
        factor_place = output[:, None] * WINDOW + back[None, :]
    else:
        CHANNEL_STEP: tl.constexpr = WINDOW
        factor_place = output[:, None] * (CHANNELS * WINDOW) + tap[None, :]
    factor_there = (output < OUTPUTS)[:, None] & (tap < GROUP * WINDOW)[None, :]
    total = tl.zeros([OUTPUT_BLOCK, POSITION_BLOCK], tl.float32)
    for channel in range(0, CHANNELS, GROUP):
        if CHANNELS % GROUP == 0:
            factor_seen, seen = factor_there, there
        else:
            left = tap < (CHANNELS - channel) * WINDOW
            factor_seen, seen = factor_there & left[None, :], there & left[:, None]
        factors = tl.load(
            weight + channel * CHANNEL_STEP + factor_place, mask=factor_seen, other=0.0
        )
        windows = tl.load(images + channel * (IMAGE_H * IMAGE_W) + place, mask=seen, other=0.0)
        total = tl.dot(factors, windows, total, input_precision=PRECISION)
    if BIASED:
        shift = tl.load(bias + run * bias_step + output, mask=output < OUTPUTS, other=0.0)
        total += shift[:, None]
    pixel = position // PIXELS * (OUTPUTS * PIXELS) + position % PIXELS
    place = output[:, None] * PIXELS + pixel[None, :]
    there = (output < OUTPUTS)[:, None] & (position < positions)[None, :]
    out += run * (positions // PIXELS) * (OUTPUTS * PIXELS)
    tl.store(out + place, total, mask=there)


@triton.jit(do_not_specialize=_COUNTS)
def weight_gradient_kernel(
    images,
    grads,
    partial,
    images_step,
    grads_step,
    positions,
    runs,
    splits,
    span,
    OUTPUTS: tl.constexpr,
    CHANNELS: tl.constexpr,
    IMAGE_H: tl.constexpr,
    IMAGE_W: tl.constexpr,
    OUT_H: tl.constexpr,
    OUT_W: tl.constexpr,
    KERNEL_H: tl.constexpr,
    KERNEL_W: tl.constexpr,
    PAD_H: tl.constexpr,
    PAD_W: tl.constexpr,
    PADDED: tl.constexpr,
    PRECISION: tl.constexpr,
    OUTPUT_BLOCK: tl.constexpr,
    TAP_BLOCK: tl.constexpr,
    POSITION_BLOCK: tl.constexpr,
):
    """What ``span`` positions of one run add to the gradients of some weights, and of biases.

    ``partial`` is (splits, ...), and behind that the weights of all runs and then their biases.
    """
    TAPS: tl.constexpr = CHANNELS * KERNEL_H * KERNEL_W
    PIXELS: tl.constexpr = OUT_H * OUT_W
    run = (tl.program_id(0) // splits).to(tl.int64)
    split = tl.program_id(0) % splits
    output = tl.program_id(1) * OUTPUT_BLOCK + tl.arange(0, OUTPUT_BLOCK)
    tap = tl.program_id(2) * TAP_BLOCK + tl.arange(0, TAP_BLOCK)
    images += run * images_step
    grads += run * grads_step
    total = tl.zeros([OUTPUT_BLOCK, TAP_BLOCK], tl.float32)
    shifts = tl.zeros([OUTPUT_BLOCK, POSITION_BLOCK], tl.float32)
    first = split * span
    for start in range(first, tl.minimum(first + span, positions), POSITION_BLOCK):
        position = start + tl.arange(0, POSITION_BLOCK)
        corner = position // PIXELS * (OUTPUTS * PIXELS) + position % PIXELS
        there = (output < OUTPUTS)[:, None] & (position < positions)[None, :]
        grad = tl.load(grads + (output[:, None] * PIXELS + corner[None, :]), mask=there, other=0.0)
        place, seen = _windows(
            position,
            positions,
            tap,
            TAPS,
            CHANNELS,
            IMAGE_H,
            IMAGE_W,
            OUT_H,
            OUT_W,
            KERNEL_H,
            KERNEL_W,
            PAD_H,
            PAD_W,
            PADDED,
        )
        windows = tl.load(images + place, mask=seen, other=0.0)
        total = tl.dot(grad, tl.trans(windows), total, input_precision=PRECISION)
        shifts += grad
    partial += split.to(tl.int64) * runs * (OUTPUTS * (TAPS + 1))
    place = output[:, None] * TAPS + tap[None, :]
    there = (output < OUTPUTS)[:, None] & (tap < TAPS)[None, :]
    tl.store(partial + run * (OUTPUTS * TAPS) + place, total, mask=there)
    if tl.program_id(2) == 0:
        biases = partial + (runs.to(tl.int64) * (OUTPUTS * TAPS) + run * OUTPUTS)
        tl.store(biases + output, tl.sum(shifts, 1), mask=output < OUTPUTS)

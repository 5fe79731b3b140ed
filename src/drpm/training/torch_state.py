"""Torch state that belongs to the whole process: the default generator and the matmul precision.

So one thread trains at a time. Processes train side by side.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal

import torch

# Held by the thread that trains. A CUDA graph cannot be captured while another thread uses the
# device.
TRAINING_LOCK: Final = threading.RLock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's default generator, to initialize a model; other threads wait."""
    with TRAINING_LOCK:
        torch.manual_seed(seed)
        yield


@contextmanager
def unseeded() -> Iterator[None]:
    """Restore torch's default generator after the block, for models whose parameters are loaded."""
    with TRAINING_LOCK, torch.random.fork_rng([]):
        yield


@contextmanager
def matmul_precision(precision: Literal["highest", "high"]) -> Iterator[None]:
    """Set the precision of float32 products and convolutions on a GPU within the block.

    Args:
        precision: ``highest`` for float32, ``high`` to allow TF32.
    """
    backends: Any = torch.backends
    separate: list[tuple[Any, str]] = []
    try:
        before = (torch.get_float32_matmul_precision(), backends.cudnn.allow_tf32)
    except RuntimeError:  # set through torch's newer interface, for single operations
        cudnn = backends.cudnn
        parts = (backends.cuda.matmul, backends.mkldnn.matmul, cudnn.conv, cudnn.rnn)
        separate = [(part, part.fp32_precision) for part in parts]
    # The older interface, which all versions have and the compiler reads.
    torch.set_float32_matmul_precision(precision)
    backends.cudnn.allow_tf32 = precision == "high"
    try:
        yield
    finally:
        if not separate:
            torch.set_float32_matmul_precision(before[0])
            backends.cudnn.allow_tf32 = before[1]
        for part, value in separate:
            part.fp32_precision = value

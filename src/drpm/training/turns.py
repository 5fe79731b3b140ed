"""One thread trains at a time.

The default generator and the matmul precision of torch belong to the whole process, and a CUDA
graph cannot be captured while another thread uses the device. Processes train side by side.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

TURN: Final = threading.RLock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's default generator and keep other threads from it, to initialize a model."""
    with TURN:
        torch.manual_seed(seed)
        yield

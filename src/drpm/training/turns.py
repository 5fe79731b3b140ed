"""Training in several threads of one process: they take turns.

Torch has one generator and one precision of products for all threads, and a CUDA graph is recorded
undisturbed or not at all. So one thread trains at a time, and a run in a thread is the run that it
is elsewhere. Processes train side by side.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

# A thread that has its turn may ask for it again, within.
TURN: Final = threading.RLock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's own generator, and keep it from other threads while models are initialised."""
    with TURN:
        torch.manual_seed(seed)
        yield

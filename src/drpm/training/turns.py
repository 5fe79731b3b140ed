"""One thread trains at a time.

The default generator and the matmul precision of torch belong to the whole process, and a CUDA
graph cannot be captured while another thread uses the device. Processes train side by side.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch


class _Turn:
    """A lock that a thread may take again within; a forked process does not wait for others'."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        # Only the thread that forked lives on. Where another one has the lock, nobody returns it.
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()


TURN: Final = _Turn()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's default generator and keep other threads from it, to initialize a model."""
    with TURN:
        torch.manual_seed(seed)
        yield


@contextmanager
def unseeded() -> Iterator[None]:
    """Initialise models whose parameters are replaced at once; torch's own generator stays."""
    with TURN, torch.random.fork_rng([]):
        yield

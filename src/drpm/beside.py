"""Where work on a GPU may go on beside other work; :mod:`drpm.nn.side_streams` does it.

Whoever trains says so, and whoever builds models asks; so that this is apart from both.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Backend = str | Callable[..., Any]


class _State(threading.local):
    """What holds in one thread."""

    def __init__(self) -> None:
        self.allowed = False
        self.backend: Backend | None = None


state = _State()


@contextmanager
def allowed(backend: Backend | None = None) -> Iterator[None]:
    """Where work may go on beside other work; elsewhere it is done when it is begun.

    That has to be said, because it divides what is compiled: neither ``fullgraph=True`` nor the
    transforms of ``torch.func`` can do with that.

    Arguments:
        backend: Where what is begun is to be compiled, the compiler, as ``torch.compile`` takes it.
    """
    before = state.allowed, state.backend
    state.allowed, state.backend = True, backend
    try:
        yield
    finally:
        state.allowed, state.backend = before

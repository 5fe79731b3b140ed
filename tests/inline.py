"""Sweeps without processes."""

from concurrent.futures import Future
from typing import Any

from drpm.training.sweep_workers import Attempt, execute


class Inline:
    """Makes each call at once, in this process."""

    def submit(self, *args: Any) -> Future[Attempt]:
        future: Future[Attempt] = Future()
        future.set_result(execute(*args))
        return future

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        pass

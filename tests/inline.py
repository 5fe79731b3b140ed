"""Sweeps without processes."""

from concurrent.futures import Future
from typing import Any

from drpm.training.sweeps import execute


class Inline:
    """Makes each call at once, in this process."""

    size = 1

    def submit(self, *args: Any) -> Future[str]:
        future: Future[str] = Future()
        future.set_result(execute(*args))
        return future

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        pass

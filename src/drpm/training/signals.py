"""Stopping a run by a signal."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self, final


@final
class StopRequest:
    """A context in which SIGINT and SIGTERM are recorded, so that a step can finish.

    A second signal of the same kind has its default effect.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # Only the main thread can have handlers.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                # None is a handler that Python did not set and cannot restore.
                if signal.getsignal(number) is not None:
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        signal.signal(number, self._previous[number])

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

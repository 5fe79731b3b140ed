"""Asking a run to stop."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self, final


@final
class StopRequest:
    """While entered, SIGINT and SIGTERM are noted instead of raised, so that a step can finish.

    A second signal of the same kind acts as it would have without us.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # Handlers belong to the main thread; elsewhere a run is stopped by whoever started it.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                # None stands for a handler that Python did not set and cannot set again.
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

"""Sweeps without processes."""

from collections import deque
from typing import Any

from drpm.training.backends import Call, Outcome


class Inline:
    """Makes each call at once, in this process."""

    shares_memory = True

    def __init__(self) -> None:
        self.ended: deque[tuple[str, Outcome]] = deque()

    def has_room(self) -> bool:
        return not self.ended

    def start(self, key: str, call: Call, *arguments: Any) -> None:
        self.ended.append((key, call(*arguments)))

    def collect(self, timeout: float) -> list[tuple[str, Outcome]]:
        ended, self.ended = list(self.ended), deque()
        return ended

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        pass

"""Which modules of drpm execute: python -m benchmarks.modules [COMMAND ...].

Without a command it draws a relaxed partition and takes its gradient. With one, such as
``cluster digits --set training.epochs=1``, it runs the command line in this process.
"""

import sys
import threading
from collections.abc import Callable
from typing import Any


def executed(action: Callable[[], Any]) -> list[str]:
    """The modules of drpm whose functions run during a call, imports aside."""
    found: set[str] = set()

    def look(frame: Any, event: str, argument: Any) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name not in found and name.split(".")[0] == "drpm":
            while frame is not None and frame.f_code.co_name != "<module>":
                frame = frame.f_back
            if frame is None or frame.f_globals["__name__"] == "__main__":
                found.add(name)

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return sorted(found)


def draw_with_gradient() -> None:
    import torch

    from drpm.distributions import RelaxedRandomPartition

    scores = torch.zeros(256, requires_grad=True)
    weights = torch.zeros(10, requires_grad=True)
    sample = RelaxedRandomPartition(1.0, scores, weights).rsample()
    (sample * torch.randn(10, 256)).sum().backward()


def run_command() -> None:
    from drpm.cli import app

    app(sys.argv[1:], standalone_mode=False)


if __name__ == "__main__":
    modules = executed(run_command if sys.argv[1:] else draw_with_gradient)
    print(*modules, f"{len(modules)} modules", sep="\n")

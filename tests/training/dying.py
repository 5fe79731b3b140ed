"""Run a program that kills itself, at a moment that no other process has to hit.

    python -m tests.training.dying TEXT PROGRAM ARGUMENT...

It dies right before it first does something to a file whose path holds TEXT. PROGRAM is a file or
a module.
"""

import os
import runpy
import signal
import sys
from typing import Any


def die_at(number: int, text: str) -> None:
    """Be killed right before the n-th operation on a file whose path holds a text."""
    seen = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        on_files = event == "open" or event.startswith(("os.", "shutil."))
        if on_files and any(text in str(argument) for argument in arguments):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


if __name__ == "__main__":
    _, text, program, *arguments = sys.argv
    sys.argv = [program, *arguments]
    die_at(1, text)
    if program.endswith(".py"):
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)

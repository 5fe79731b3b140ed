"""Run the digits example again and again, killing it; torch is imported once and then forked.

    python -m tests.training.killing HOW FOLDER KILLS SEED STEPS ARGUMENT...

HOW is `moments`: each process kills itself at a random line of Python after a random one of its
STEPS; or `operations`: at a random one of its first file operations in the folder, most of which
belong to a save. So how fast the machine is does not matter. Prints how many died so.
"""

import json
import os
import random
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from drpm.data import load
from drpm.training.program import Program
from examples import digits
from tests.training.dying import die_at

LINES = 10_000  # three steps, one of which is saved; after STEPS - 5 there are 30,000 left


def fork(arguments: list[str], deadly: Callable[[], None] | None = None) -> int:
    """The example's command line in a child process, which first arranges for its death."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        if deadly is not None:
            deadly()
        code = digits.main(arguments)
    finally:
        os._exit(code)


def die_after(step: int, lines: int) -> None:
    """Be killed so many lines of Python after a step."""
    take = Program.step

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines -= event == "line"
        if lines < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return count

    def taken(program: Program) -> None:
        take(program)
        if int(program.step_count) >= step:
            sys.settrace(count)

    Program.step = taken


def was_killed(status: int) -> bool:
    return os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def main() -> None:
    torch.set_num_threads(1)
    how, folder, (kills, seed, total) = sys.argv[1], Path(sys.argv[2]), map(int, sys.argv[3:6])
    arguments = ["--out", str(folder), *sys.argv[6:]]
    # What takes time at first use is used before the forks, which then have it.
    load("digits")
    torch.optim.Adam([torch.zeros(1, requires_grad=True)]).step()
    chance = random.Random(seed)
    if how == "moments":
        steps = sorted(chance.sample(range(total - 5), kills))
        deaths = [partial(die_after, step, chance.randrange(LINES)) for step in steps]
    else:
        deaths = [partial(die_at, chance.randrange(1, 30), str(folder)) for _ in range(kills)]
    landed = sum(was_killed(os.waitpid(fork(arguments, deadly), 0)[1]) for deadly in deaths)
    _, status = os.waitpid(fork(arguments), 0)
    print(json.dumps({"kills": landed, "exit": os.waitstatus_to_exitcode(status)}))


if __name__ == "__main__":
    main()

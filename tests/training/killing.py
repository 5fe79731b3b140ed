"""Run the digits example again and again, killing it; torch is imported once and then forked.

    python -m tests.training.killing HOW FOLDER KILLS SEED STEPS ARGUMENT...

HOW is `moments`: each kill comes a random moment after the run has passed a random step of its
STEPS, so that how fast the machine is does not matter; or `operations`: each process kills itself
at a random one of its first file operations in the folder, most of which belong to a save.
Prints how many of the kills found the process alive.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from drpm.data import load
from examples import digits


def fork(arguments: list[str], deadly_operation: int | None = None) -> int:
    """The example's command line in a child process."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        if deadly_operation is not None:
            die_at(deadly_operation, arguments[1])
        code = digits.main(arguments)
    finally:
        os._exit(code)


def die_at(number: int, folder: str) -> None:
    """Be killed right before the n-th operation on a file of the folder."""
    seen = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        on_files = event == "open" or event.startswith(("os.", "shutil."))
        if on_files and any(folder in str(argument) for argument in arguments):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def last_step(folder: Path) -> int:
    try:
        lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return 0
    whole = [line for line in lines if line.endswith(b"\n")]
    return int(json.loads(whole[-1])["step"]) if whole else 0


def killed_at_a_moment(arguments: list[str], folder: Path, step: int, delay: float) -> bool:
    child = fork(arguments)
    while last_step(folder) < step and os.waitpid(child, os.WNOHANG) == (0, 0):
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    return was_killed(os.waitpid(child, 0)[1])


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
    landed = 0
    if how == "moments":
        for step in sorted(chance.sample(range(total - 5), kills)):
            landed += killed_at_a_moment(arguments, folder, step, chance.uniform(0.0, 0.02))
    else:
        for _ in range(kills):
            child = fork(arguments, deadly_operation=chance.randrange(1, 30))
            landed += was_killed(os.waitpid(child, 0)[1])
    _, status = os.waitpid(fork(arguments), 0)
    print(json.dumps({"kills": landed, "exit": os.waitstatus_to_exitcode(status)}))


if __name__ == "__main__":
    main()

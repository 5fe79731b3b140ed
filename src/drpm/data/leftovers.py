"""How work on the disk that is stopped midway leaves nothing behind.

A process that is told to end removes what it has half written itself. One that is killed cannot:
its leftovers are removed by the next process that works in the same folder.
"""

import fcntl
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

_SIGNAL_EXIT = 128  # the exit code of a process that ended on a signal, less its number


@contextmanager
def at_work_in(folder: Path, leftovers: str) -> Iterator[None]:
    """Work in a folder, once what dead processes left in it is swept away.

    Whoever works in a folder holds a shared lock on it, so that whoever gets it alone knows that
    every leftover is nobody's. The system frees the lock of a process however that ends: there is
    no number of a process that another could have been given since, no age to wait for, and no
    lock file to be left over in its turn.

    Args:
        folder: where the work is done.
        leftovers: a pattern of the names that half-done work has there.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # What fails here is a lock that others share, or a file system without locks: either way
        # nothing is touched.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _sweep(folder, leftovers)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        with _ending_orderly():
            yield
    finally:
        os.close(descriptor)  # and with it the lock


def _sweep(folder: Path, leftovers: str) -> None:
    for path in folder.glob(leftovers):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def _ending_orderly() -> Iterator[None]:
    """While entered, SIGTERM ends the process through its `finally` clauses, not at once.

    Only where nobody has other plans for that signal, and only in the main thread, which alone
    may make plans.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(_SIGNAL_EXIT + number)

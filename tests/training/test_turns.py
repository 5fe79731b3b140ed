"""Threads that train take turns."""

import os
import signal
import threading
import warnings
from collections.abc import Callable

import pytest

from drpm.training.turns import TURN

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")


def exit_code(task: Callable[[], None]) -> int:
    """That of a forked process that does the task; it is negative where it never ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads
        child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        signal.alarm(600)
        task()
    except BaseException:
        os._exit(1)
    os._exit(0)


def take() -> None:
    with TURN, TURN:
        pass


@forks
def test_a_forked_process_does_not_wait_for_a_thread_it_has_not() -> None:
    taken, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with TURN:
            taken.set()
            forked.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    code = exit_code(take)
    forked.set()
    holder.join()
    assert code == 0


@forks
def test_a_forked_process_still_has_the_turn_of_its_thread() -> None:
    def leave() -> None:
        take()
        TURN.__exit__()
        # Nothing is left of it: another thread has its turn now.
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()

    with TURN:
        assert exit_code(leave) == 0

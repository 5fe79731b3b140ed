"""Preparing several measurements beside each other, and taking them one at a time.

Compiling a training step keeps one core busy for a minute; a measurement of it takes a second, but
wants a machine that does nothing else.
"""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from threading import BrokenBarrierError
from typing import Any, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


_shared: dict[str, Any] = {}


def measure_in_turn(
    prepare: Callable[[Task], Callable[[], Result]], tasks: Sequence[Task], workers: int
) -> Iterator[Result]:
    """Prepare some tasks at a time in processes of their own, and measure one after the other.

    Arguments:
        prepare: From a task to what measures it; a function of a module, as processes want it.
        tasks: What is measured.
        workers: How many are prepared at a time; with 1 all is done in this process.
    """
    if workers == 1:
        for task in tasks:
            yield prepare(task)()
        return
    context = multiprocessing.get_context("spawn")
    for start in range(0, len(tasks), workers):
        some = tasks[start : start + workers]
        with ProcessPoolExecutor(
            len(some),
            mp_context=context,
            initializer=_share,
            initargs=(context.Barrier(len(some)), context.Lock()),
        ) as pool:
            running = [pool.submit(_work, prepare, task) for task in some]
            errors = [error for one in running if (error := one.exception()) is not None]
            if errors:
                # One that failed breaks off the others.
                raise next((e for e in errors if not isinstance(e, BrokenBarrierError)), errors[0])
            yield from (one.result() for one in running)


def _share(barrier: Any, lock: Any) -> None:
    _shared.update(barrier=barrier, lock=lock)


def _work(prepare: Callable[[Task], Callable[[], Result]], task: Task) -> Result:
    try:
        measure = prepare(task)
    except BaseException:
        # The others would wait for this one.
        _shared["barrier"].abort()
        raise
    _shared["barrier"].wait()
    with _shared["lock"]:
        return measure()

"""Time and peak memory of one case.

On a CUDA device both come from the device's own clock and allocator. On the CPU each case runs in
a fresh process: there the only honest figure is the growth of the process's resident memory, and
what an earlier case left behind would hide it. So does the recording of a CUDA graph, because one
that fails breaks what comes after it in the same process.
"""

import contextlib
import gc
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks.cases import GRAPH, Case, prepare

WARM_UPS = 2
MIN_REPEATS = 3
MAX_REPEATS = 50
# A case is repeated for about this long; one that takes longer is timed once, warmed up.
SECONDS_PER_CASE = 1.5

# Run before the memory of a case is measured, so that what libraries load on first use is not
# counted as the case's.
TINY = 16


@dataclass(frozen=True)
class Measurement:
    """What one case cost, or why it was not measured.

    Arguments:
        case: What was measured.
        seconds: The median over the repeats.
        fastest_seconds: The least over the repeats; far below the median on a busy machine.
        peak_bytes: The most memory held at once beyond the inputs; None where it is not known.
        repeats: How many repeats there were.
        needed_bytes: Roughly what the case would need, where it was skipped for that.
        failure: Why there are no figures, where the case failed.
    """

    case: Case
    seconds: float | None = None
    fastest_seconds: float | None = None
    peak_bytes: int | None = None
    repeats: int = 0
    needed_bytes: float | None = None
    failure: str | None = None


def measure(case: Case, *, isolate: bool = True) -> Measurement:
    """Measure one case; one that runs out of memory is reported as a failure, not raised.

    Arguments:
        case: What to measure.
        isolate: Whether a case that should have a process of its own gets one.
    """
    is_cuda = torch.device(case.device).type == "cuda"
    measure_here = _measure_cuda if is_cuda else _measure_cpu
    if not isolate or (is_cuda and case.implementation != GRAPH):
        return measure_here(case)
    try:
        with ProcessPoolExecutor(max_workers=1, mp_context=_process_context()) as executor:
            return executor.submit(measure_here, case).result()
    except BrokenProcessPool:
        return Measurement(case, failure="the process was killed, most likely out of memory")


def _measure_cpu(case: Case) -> Measurement:
    prepare(replace(case, num_elements=min(TINY, case.num_elements)))()
    run = prepare(case)
    gc.collect()
    before = _restart_peak_memory()
    run()
    peak_bytes = max(0, _peak_memory() - before)
    times = _repeat(run, _time_cpu)
    return Measurement(case, statistics.median(times), min(times), peak_bytes, len(times))


def _measure_cuda(case: Case) -> Measurement:
    try:
        run = prepare(case)
        # What libraries allocate once, such as a matrix product's workspace, is not the case's.
        run()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        # A graph keeps its memory from the recording on; the allocator sees nothing of a replay.
        peak_bytes = None if case.implementation == GRAPH else torch.cuda.max_memory_allocated()
        times = _repeat(run, _time_cuda)
    except torch.cuda.OutOfMemoryError:
        return Measurement(case, failure="out of memory")
    except (RuntimeError, NotImplementedError) as error:
        # Recording a graph is an attempt; every other operation must work.
        if case.implementation != GRAPH:
            raise
        reason = str(error).strip().splitlines()[0]
        return Measurement(case, failure=f"it cannot be recorded ({reason})")
    finally:
        gc.collect()
        torch.cuda.empty_cache()
    if peak_bytes is not None:
        peak_bytes -= before
    return Measurement(case, statistics.median(times), min(times), peak_bytes, len(times))


def _repeat(
    run: Callable[[], object], clock: Callable[[Callable[[], object]], float]
) -> list[float]:
    """Times of the repeats; the run that measured the memory was the first warm-up."""
    seconds = clock(run)
    if seconds >= SECONDS_PER_CASE:
        return [seconds]
    for _ in range(WARM_UPS):
        seconds = clock(run)
    repeats = max(MIN_REPEATS, min(MAX_REPEATS, int(SECONDS_PER_CASE / seconds)))
    return [clock(run) for _ in range(repeats)]


def _time_cpu(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _time_cuda(run: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    run()
    end.record()
    end.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return milliseconds / 1e3


def _process_context() -> multiprocessing.context.BaseContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # The server imports torch once and runs nothing, so its forks start at once and clean.
    context.set_forkserver_preload(["benchmarks.measure"])
    return context


def _restart_peak_memory() -> int:
    """Forget the peak so far where the system allows it; return the peak to count from."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _peak_memory()


def _peak_memory() -> int:
    return _process_status("VmHWM") or _lifetime_peak_memory()


def _process_status(field: str) -> int | None:
    """A field of Linux's account of this process in bytes; None on other systems."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return None


def _lifetime_peak_memory() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts in bytes, other systems in kilobytes.
    return peak if sys.platform == "darwin" else peak * 1024

"""Time and peak memory of the distributions, against a dense textbook implementation.

Every operation includes the construction of the distribution, since its parameters change at every
training step. On the CPU each case runs in a fresh process, and memory is the growth of its
resident memory.
"""

import contextlib
import gc
import json
import multiprocessing
import os
import platform
import statistics
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from torch import Tensor
from torch.utils.benchmark import Timer

import drpm
from benchmarks import textbook
from drpm.training.runs import git_revision

TEMPERATURE = 1.0  # the highest of the usual schedules, which is the most expensive one

OPERATIONS = {
    "sample": "sample",
    "log_prob": "exact log_prob",
    "log_prob_grad": "exact log_prob with gradients",
    "rsample_grad": "hard rsample with gradients",
    "sort_grad": "soft sort (n x n) with gradients",
    "affinity_log_prob_grad": "exact log_prob by affinities with gradients",
    "affinity_rsample_grad": "hard rsample by affinities with gradients",
}
DRPM, TEXTBOOK, CAPTURED = "drpm", "textbook", "captured"

SIZES = {
    "cpu": (64, 256, 512, 1024, 4096, 20_000),
    "cuda": (64, 256, 512, 1024, 2048, 10_000, 100_000),
}
# Operations whose cost is linear in n are measured at a larger n as well.
LARGE_SIZES = {"cpu": 100_000, "cuda": 1_000_000}
LARGE_OPERATIONS = ("sample", "log_prob", "log_prob_grad")
QUICK_SIZES = (16, 64)
GROUPS = (10, 2, 100)
# Group counts other than the first are measured at the largest size up to this one.
GROUPS_SIZE = 1024
# Dense implementations, with several n x n matrices, are skipped at larger sizes.
DENSE_SIZES = {"cpu": 4096, "cuda": 10_000}

SECONDS_PER_CASE = 1.5


@dataclass(frozen=True)
class Case:
    """An operation of one implementation at one size."""

    operation: str
    implementation: str
    num_elements: int
    num_groups: int
    device: str


@dataclass(frozen=True)
class Measurement:
    """Median time, peak memory beyond the inputs and number of repeats; or why there is none."""

    case: Case
    seconds: float | None = None
    peak_bytes: int | None = None
    repeats: int = 0
    failure: str | None = None


def run(options: Namespace, path: Path) -> Iterator[Table]:
    """Measure all cases, write them to a file after each, and return a table per operation."""
    document: dict[str, Any] = {"device": options.device}
    document["environment"] = describe_environment(options.device)
    measurements: list[Measurement] = []
    for case in plan(options):
        reason = reason_to_skip(case)
        measurements.append(Measurement(case, failure=reason) if reason else measure(case))
        document["measurements"] = [asdict(measurement) for measurement in measurements]
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return (make_table(operation, measurements) for operation in options.operations)


def plan(options: Namespace) -> Iterator[Case]:
    """All cases, in order."""
    groups = options.groups or ((3,) if options.quick else GROUPS)
    kind = torch.device(options.device).type
    for operation in options.operations:
        large = (LARGE_SIZES[kind],) if operation in LARGE_OPERATIONS else ()
        usual = QUICK_SIZES if options.quick else (*SIZES[kind], *large)
        chosen = sorted(options.sizes or usual)
        middle = max((size for size in chosen if size <= GROUPS_SIZE), default=chosen[0])
        shapes = [(size, groups[0]) for size in chosen]
        if operation != "sort_grad":
            shapes += [(middle, number) for number in sorted(groups[1:])]
        for implementation in (DRPM, rival(operation)):
            for num_elements, num_groups in shapes:
                yield Case(operation, implementation, num_elements, num_groups, options.device)


def rival(operation: str) -> str:
    """What drpm is compared with: the same in a CUDA graph where there is no textbook."""
    return CAPTURED if operation.startswith("affinity") else TEXTBOOK


def reason_to_skip(case: Case) -> str | None:
    """Why a case is not measured: it needs a GPU, or it is dense and needs too much memory."""
    kind = torch.device(case.device).type
    if case.implementation == CAPTURED:
        return None if kind == "cuda" else "needs a GPU"
    is_dense = case.implementation == TEXTBOOK or case.operation == "sort_grad"
    return "too large" if is_dense and case.num_elements > DENSE_SIZES[kind] else None


def prepare(case: Case) -> Callable[[], object]:
    """The operation as a function without arguments."""
    generator = torch.Generator().manual_seed(0)
    needs_grad = case.operation.endswith("_grad")
    is_affinity = case.operation.startswith("affinity_")
    name = case.operation.removeprefix("affinity_").removesuffix("_grad")
    shape = (case.num_groups, case.num_elements)
    log_scores = torch.randn(shape if is_affinity else shape[1:], generator=generator)
    log_weights = 0.5 * torch.randn(case.num_groups, generator=generator)
    rows = case.num_elements if name == "sort" else case.num_groups
    functional = torch.randn(rows, case.num_elements, generator=generator).to(case.device)
    # Its sizes follow the weights, so that no group is far from its expected size.
    labels = torch.multinomial(
        log_weights.softmax(0), case.num_elements, replacement=True, generator=generator
    )
    partition = torch.nn.functional.one_hot(labels, case.num_groups).mT.float().to(case.device)
    log_scores = log_scores.to(case.device).requires_grad_(needs_grad)
    log_weights = log_weights.to(case.device).requires_grad_(needs_grad)
    given, relaxed = (log_scores, log_weights), (TEMPERATURE, log_scores, log_weights)
    law = drpm.AffinityPartition if is_affinity else drpm.RandomPartition
    relaxed_law = drpm.RelaxedAffinityPartition if is_affinity else drpm.RelaxedRandomPartition
    ours: dict[str, Callable[[], Tensor]] = {
        "sample": lambda: law(*given).sample(),
        "log_prob": lambda: law(*given).log_prob(partition),
        "rsample": lambda: relaxed_law(*relaxed).rsample(),
        "sort": lambda: drpm.RelaxedPlackettLuce(*relaxed[:2], hard=False).rsample(),
    }
    theirs: dict[str, Callable[[], Tensor]] = {
        "sample": lambda: textbook.sample(*given),
        "log_prob": lambda: textbook.log_prob(*given, partition),
        "rsample": lambda: textbook.rsample(*relaxed),
        "sort": lambda: textbook.neural_sort(*relaxed[:2]).soft,
    }
    is_textbook = case.implementation == TEXTBOOK and not is_affinity
    value = (theirs if is_textbook else ours)[name]
    if not needs_grad:
        return value
    factor = 1.0 if name == "log_prob" else functional
    # With a single group nothing depends on the scores.
    return lambda: torch.autograd.grad(
        (value() * factor).sum(), given, materialize_grads=True, allow_unused=True
    )


def measure(case: Case, *, isolate: bool = True) -> Measurement:
    """Measure a case; running out of memory is reported as a failure."""
    if torch.device(case.device).type == "cuda":
        return _measure_cuda(case)
    if not isolate:
        return _measure_cpu(case)
    available = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in available else "spawn")
    # The server imports torch once, so that its forks start at once and clean.
    context.set_forkserver_preload(["benchmarks.laws"])
    try:
        with ProcessPoolExecutor(1, mp_context=context) as executor:
            return executor.submit(_measure_cpu, case).result()
    except BrokenProcessPool:
        return Measurement(case, failure="the process was killed, most likely out of memory")


def _measure_cpu(case: Case) -> Measurement:
    # Libraries load on first use.
    prepare(replace(case, num_elements=min(16, case.num_elements)))()
    run = prepare(case)
    gc.collect()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _peak_memory()
    run()
    return _timed(case, run, max(0, _peak_memory() - before))


def _measure_cuda(case: Case) -> Measurement:
    try:
        run = prepare(case)
        run()
        torch.cuda.synchronize()
        if case.implementation == CAPTURED:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                kept = run()  # noqa: F841
            run = graph.replay
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return _timed(case, run, torch.cuda.max_memory_allocated() - before)
    except torch.cuda.OutOfMemoryError:
        return Measurement(case, failure="out of memory")
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def _timed(case: Case, run: Callable[[], object], peak_bytes: int) -> Measurement:
    timer = Timer("run()", globals={"run": run}, num_threads=torch.get_num_threads())
    times = timer.blocked_autorange(min_run_time=SECONDS_PER_CASE).times
    return Measurement(case, statistics.median(times), peak_bytes, len(times))


def _peak_memory() -> int:
    return int(_field("/proc/self/status", "VmHWM", "0").split()[0]) * 1024


def make_table(operation: str, measurements: Sequence[Measurement]) -> Table:
    """Both implementations side by side."""
    found = {measurement.case: measurement for measurement in measurements}
    other = rival(operation)
    table = Table(title=OPERATIONS[operation], box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for header in ("n", "K", DRPM, "memory", other, "memory", "ratio"):
        table.add_column(header, justify="right", no_wrap=True)
    for case, ours in found.items():
        if case.operation != operation or case.implementation != DRPM:
            continue
        theirs = found[replace(case, implementation=other)]
        ratio = theirs.seconds / ours.seconds if theirs.seconds and ours.seconds else None
        table.add_row(
            f"{case.num_elements:,}",
            f"{case.num_groups:,}",
            *_cells(ours),
            *_cells(theirs),
            "" if ratio is None else f"{ratio:.1f}x",
        )
    return table


def _cells(measurement: Measurement) -> tuple[str, str]:
    if measurement.seconds is None or measurement.peak_bytes is None:
        return "-", measurement.failure or ""
    return format_seconds(measurement.seconds), f"{measurement.peak_bytes / 1e6:,.1f} MB"


def describe_environment(device: str) -> dict[str, Any]:
    is_cuda = torch.device(device).type == "cuda"
    processor = _field("/proc/cpuinfo", "model name", platform.processor())
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device_name": torch.cuda.get_device_name(device) if is_cuda else processor,
        "system": f"{platform.system()} {platform.machine()}",
        "cpu_count": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "torch_threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if is_cuda else None,
        "drpm": drpm.__version__,
        "git_revision": git_revision(),
    }


def _field(path: str, name: str, default: str) -> str:
    with contextlib.suppress(OSError):
        for line in Path(path).read_text().splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return default  # on other systems than Linux


def format_seconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.3f} ms"

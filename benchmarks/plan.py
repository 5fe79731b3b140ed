"""Which cases to measure, and which are left out because they would not fit."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from benchmarks.cases import DRPM, GRAPH, OPERATIONS, TEXTBOOK, Case

CPU_SIZES = (64, 256, 512, 1024, 4096, 20_000)
CPU_LARGE_SIZES = (100_000,)
CUDA_SIZES = (64, 256, 512, 1024, 2048, 10_000, 100_000)
CUDA_LARGE_SIZES = (1_000_000,)
# The relaxed sample is measured to a smaller n than the discrete law's operations: its cost
# grows faster than linearly.
LARGE_OPERATIONS = ("sample", "log_prob", "log_prob_grad")
QUICK_SIZES = (16, 64)

GROUPS = (10, 2, 100)
QUICK_GROUPS = (3,)
# Group counts other than the first are measured at the largest size up to this one.
GROUPS_SIZE = 1024

# Graphs save the overhead of launching kernels, which is what small sizes cost.
GRAPH_SIZE = 2048

# The textbook version is left out where it would need more memory than this.
TEXTBOOK_LIMIT_BYTES = {"cpu": 8e9, "cuda": 40e9}


class PlannedCase(NamedTuple):
    """A case, and the bytes it would need where it is left out for them."""

    case: Case
    needed_bytes: float | None = None


def plan(
    device: str,
    *,
    operations: Iterable[str] = tuple(OPERATIONS),
    sizes: Sequence[int] | None = None,
    groups: Sequence[int] | None = None,
    quick: bool = False,
    graph: bool = False,
) -> list[PlannedCase]:
    """All cases in the order in which they are measured.

    Arguments:
        device: Where to measure.
        operations: Which operations.
        sizes: The numbers of elements, for all operations; the default depends on the device and
            the operation.
        groups: The numbers of groups. The first is measured at every size, the others at one.
        quick: Whether the defaults are small ones, to see that everything runs.
        graph: Whether to measure small relaxed samples replayed from a CUDA graph too.
    """
    groups = groups or (QUICK_GROUPS if quick else GROUPS)
    device_type = torch.device(device).type
    planned = []
    for operation in operations:
        operation_sizes = sorted(sizes or _default_sizes(operation, device_type, quick))
        small = [size for size in operation_sizes if size <= GROUPS_SIZE] or operation_sizes[:1]
        shapes = [(size, groups[0]) for size in operation_sizes]
        shapes += [(small[-1], number) for number in sorted(groups[1:])]
        for implementation in (DRPM, TEXTBOOK):
            for num_elements, num_groups in shapes:
                case = Case(operation, implementation, num_elements, num_groups, device)
                planned.append(PlannedCase(case, _excess(case)))
        if graph and operation == "rsample_grad" and device_type == "cuda":
            planned += [
                PlannedCase(Case(operation, GRAPH, size, groups[0], device))
                for size in operation_sizes
                if size <= GRAPH_SIZE
            ]
    return planned


def _default_sizes(operation: str, device_type: str, quick: bool) -> tuple[int, ...]:
    if quick:
        return QUICK_SIZES
    sizes, large = (
        (CUDA_SIZES, CUDA_LARGE_SIZES) if device_type == "cuda" else (CPU_SIZES, CPU_LARGE_SIZES)
    )
    return sizes + large if operation in LARGE_OPERATIONS else sizes


def _excess(case: Case) -> float | None:
    if case.implementation != TEXTBOOK:
        return None
    needed = textbook_bytes(case.operation, case.num_elements, case.num_groups)
    limit = TEXTBOOK_LIMIT_BYTES.get(torch.device(case.device).type, TEXTBOOK_LIMIT_BYTES["cpu"])
    return needed if needed > limit else None


def textbook_bytes(operation: str, num_elements: int, num_groups: int) -> float:
    """Roughly the peak memory of the textbook version, in bytes.

    Counted in n x n matrices of float64, of which gradients keep some for every group.
    """
    matrices = {
        "sample": 4.0,
        "log_prob": 4.0,
        "log_prob_grad": 3.0 + num_groups,
        "rsample_grad": 2.0 + 2.0 * num_groups,
    }[operation]
    return 8.0 * matrices * num_elements**2

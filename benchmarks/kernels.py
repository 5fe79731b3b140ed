"""Which kernels a training step on a GPU is made of: python -m benchmarks.kernels MODEL."""

import argparse
from collections import Counter
from collections.abc import Sequence

import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from benchmarks.loop import STACKED, SUBJECTS, Measurement, prepare_step, seconds_per_step
from benchmarks.units import format_seconds

STEPS = 20
SHOWN = 40


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    parser.add_argument("model", choices=SUBJECTS, help="whose step")
    parser.add_argument("--stacked", action="store_true", help=f"{STACKED} stacked runs of it")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("kernels are those of a GPU, and torch finds none.")
    torch.set_float32_matmul_precision("high")
    wanted = Measurement("high", "compile", options.model, "cuda", 100)
    program, step = prepare_step(wanted, STACKED if options.stacked else None)
    whole = seconds_per_step(program, step)
    program.shuffle()
    # Without `acc_events` torch warns that those of earlier cycles are dropped; there are none.
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    times: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times[event.name] += event.device_time_total
            counts[event.name] += 1
    count, busy = sum(counts.values()) / STEPS, sum(times.values()) / STEPS
    table = Table(
        title=f"{options.model}: {format_seconds(whole)} a step, "
        f"{count:.0f} kernels that take {format_seconds(busy / 1e6)}"
    )
    for heading in ("microseconds", "times", "kernel"):
        table.add_column(heading, justify="left" if heading == "kernel" else "right")
    for name, time in times.most_common(SHOWN):
        table.add_row(f"{time / STEPS:.1f}", f"{counts[name] / STEPS:.0f}", name[:120])
    Console(width=150).print(table)


if __name__ == "__main__":
    main()

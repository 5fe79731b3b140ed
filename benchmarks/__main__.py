"""The benchmark program: ``python -m benchmarks``."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.cases import OPERATIONS, Case
from benchmarks.measure import Measurement, measure
from benchmarks.plan import GROUPS_SIZE, PlannedCase, plan
from benchmarks.results import Results, describe_environment
from benchmarks.table import cost_tables, growth_table, notes


def main(arguments: Sequence[str] | None = None, prog: str = "python -m benchmarks") -> None:
    """Measure, or read what was measured; then write the plot and print the tables.

    Arguments:
        arguments: Those of the command line, unless others are given.
        prog: The command, as messages call it.
    """
    options = _parse(arguments, prog)
    console = Console(stderr=options.json)
    if options.redraw is not None:
        results = options.redraw
    else:
        planned = plan(
            options.device,
            operations=options.operations,
            sizes=options.sizes,
            groups=options.groups,
            quick=options.quick,
            graph=options.graph,
        )
        results = Results(options.device, describe_environment(options.device), [])
        _measure_all(planned, results, options.out / "results.json", console)
    for table in (*cost_tables(results), growth_table(results)):
        console.print(table)
    for sentence in notes(results):
        console.print(sentence, highlight=False)

    from benchmarks.plot import save_plot

    save_plot(results, options.out / "cost.png")
    for name in ("results.json", "cost.png"):
        if (options.out / name).exists():
            console.print(str(options.out / name), highlight=False, soft_wrap=True)
    if options.json:
        print(results.dumps(), end="")


def _measure_all(
    planned: Sequence[PlannedCase], results: Results, path: Path, console: Console
) -> None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(planned))
        for case, needed_bytes in planned:
            progress.update(task, description=_describe(case))
            results.measurements.append(
                measure(case)
                if needed_bytes is None
                else Measurement(case, needed_bytes=needed_bytes)
            )
            # After every case: a run that is interrupted keeps what it has measured.
            results.write(path)
            progress.advance(task)


def _describe(case: Case) -> str:
    return (
        f"{case.implementation}: {OPERATIONS[case.operation]}, "
        f"n = {case.num_elements:,}, K = {case.num_groups}"
    )


def _parse(arguments: Sequence[str] | None, prog: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Measure time and peak memory of the laws, next to a dense textbook version.",
    )
    parser.add_argument(
        "--device",
        type=_device,
        default=_device("cuda" if torch.cuda.is_available() else "cpu"),
        help="where to measure (default: cuda where there is one, else cpu)",
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that all runs")
    parser.add_argument("--sizes", type=_whole_numbers, help="numbers of elements: 64,256,1024")
    parser.add_argument(
        "--groups",
        type=_whole_numbers,
        help="numbers of groups: the first at every size, the others at one size only, the "
        f"largest up to {GROUPS_SIZE} (default: 10,2,100)",
    )
    parser.add_argument(
        "--operations",
        type=_operations,
        default=list(OPERATIONS),
        help=f"which of {','.join(OPERATIONS)} (default: all)",
    )
    parser.add_argument(
        "--graph",
        action="store_true",
        help="on CUDA, also measure relaxed samples replayed from a CUDA graph",
    )
    parser.add_argument(
        "--out", type=_folder, default="out/bench", help="folder for results.json, cost.png"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the results as JSON, and tables beside them"
    )
    parser.add_argument(
        "--redraw",
        type=_results,
        metavar="RESULTS",
        help="measure nothing: table and plot of an earlier results.json",
    )
    return parser.parse_args(arguments)


def _device(text: str) -> str:
    try:
        torch.zeros((), device=text)
    except (RuntimeError, AssertionError) as error:
        raise argparse.ArgumentTypeError(f"torch has no device {text!r} here") from error
    return text


def _whole_numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise argparse.ArgumentTypeError(
            f"expected positive whole numbers separated by commas, got {text!r}"
        )
    return numbers


def _operations(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in OPERATIONS:
            raise argparse.ArgumentTypeError(
                f"{name!r} is not an operation; there are {', '.join(OPERATIONS)}"
            )
    return names


def _folder(text: str) -> Path:
    folder = Path(text)
    if folder.exists() and not folder.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} exists and is not a folder")
    # Made first: a folder that cannot be written should be known before the work, not after it.
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f"the folder {text!r} cannot be made ({error.strerror})"
        ) from error
    return folder


def _results(text: str) -> Results:
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text!r}")
    try:
        return Results.read(Path(text))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise argparse.ArgumentTypeError(
            f"expected what this program wrote, got the file {text!r}, which is something else"
        ) from error


if __name__ == "__main__":
    main()

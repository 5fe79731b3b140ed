"""The results as tables for a terminal, one per operation so that they fit its width."""

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks import public_code
from benchmarks.cases import DRPM, GRAPH, OPERATIONS, TEXTBOOK, Case
from benchmarks.measure import Measurement
from benchmarks.results import Results
from benchmarks.units import format_bytes, format_ratio, format_seconds

# A load average above this before the first measurement means that the cores are shared.
BUSY_LOAD = 0.75


def cost_tables(results: Results) -> Iterator[Table]:
    """Time and memory, the implementations side by side; one table per operation."""
    measurements = {measurement.case: measurement for measurement in results.measurements}
    for operation in dict.fromkeys(case.operation for case in measurements):
        chosen = {case: each for case, each in measurements.items() if case.operation == operation}
        yield _cost_table(operation, chosen, results.device_type)


def _cost_table(operation: str, measurements: dict[Case, Measurement], device_type: str) -> Table:
    has_graph = any(case.implementation == GRAPH for case in measurements)
    has_public = operation == public_code.OPERATION and device_type in public_code.FIGURES
    table = Table(
        title=OPERATIONS[operation],
        # Without lines between the columns, and close together, they fit 80 characters.
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for header in ("n", "K", "drpm\ntime", "drpm\nmemory"):
        table.add_column(header, justify="right", no_wrap=True)
    if has_graph:
        table.add_column("CUDA\ngraph", justify="right", no_wrap=True)
    for header in ("textbook\ntime", "textbook\nmemory", "ratio"):
        table.add_column(header, justify="right", no_wrap=True)
    if has_public:
        table.add_column("authors' *", justify="right")
        table.caption = (
            "* the authors' public code, measured separately, "
            f"on {public_code.HARDWARE[device_type]}"
        )

    for case in measurements:
        if case.implementation != DRPM:
            continue
        drpm, graph, textbook = (
            measurements.get(_by(case, implementation))
            for implementation in (DRPM, GRAPH, TEXTBOOK)
        )
        row = [f"{case.num_elements:,}", f"{case.num_groups:,}", _time(drpm), _memory(drpm)]
        if has_graph:
            row.append(_time(graph))
        row += [_time(textbook), _memory(textbook), _ratio(textbook, drpm)]
        if has_public:
            row.append(_public(case, device_type))
        table.add_row(*row)
    return table


def growth_table(results: Results) -> Table:
    """The fitted exponents of time against n."""
    table = Table(title="Growth of time with n: time ~ n^e", box=SIMPLE_HEAD)
    table.add_column("operation")
    table.add_column("by")
    table.add_column("K", justify="right")
    table.add_column("e", justify="right")
    table.add_column("fitted to n =")
    for growth in results.growth:
        table.add_row(
            OPERATIONS[growth.operation],
            growth.implementation,
            f"{growth.num_groups:,}",
            f"{growth.exponent:.2f}",
            ", ".join(f"{size:,}" for size in growth.sizes),
        )
    return table


def notes(results: Results) -> list[str]:
    """One sentence for what the tables leave open: the setting, and what was not measured."""
    environment = results.environment
    sentences = [
        f"Measured on {environment['device_name']} ({results.device}, "
        f"{environment['torch_threads']} CPU threads) with torch {environment['torch']}: "
        "median time, and peak memory beyond the inputs; ratio: textbook over drpm."
    ]
    if results.device_type == "cpu" and environment["load_average"] > BUSY_LOAD:
        sentences.append(
            f"Other programs were running (load {environment['load_average']:.1f} at the start): "
            "the times are too long."
        )
    if any(measurement.needed_bytes is not None for measurement in results.measurements):
        sentences.append(
            "The textbook version is skipped where it would need more memory than is sensible; "
            "~ marks what it would need."
        )
    sentences += [
        f"{OPERATIONS[measurement.case.operation]} by {measurement.case.implementation} "
        f"at n = {measurement.case.num_elements:,}, K = {measurement.case.num_groups:,} "
        f"failed: {measurement.failure}."
        for measurement in results.measurements
        if measurement.failure is not None
    ]
    return sentences


def _by(case: Case, implementation: str) -> Case:
    return Case(case.operation, implementation, case.num_elements, case.num_groups, case.device)


def _time(measurement: Measurement | None) -> str:
    if measurement is None:
        return ""
    if measurement.seconds is not None:
        return format_seconds(measurement.seconds)
    return "failed" if measurement.failure is not None else "skipped"


def _memory(measurement: Measurement | None) -> str:
    if measurement is None:
        return ""
    if measurement.needed_bytes is not None:
        return f"~ {format_bytes(measurement.needed_bytes)}"
    return "" if measurement.peak_bytes is None else format_bytes(measurement.peak_bytes)


def _ratio(slow: Measurement | None, fast: Measurement | None) -> str:
    if slow is None or fast is None or slow.seconds is None or not fast.seconds:
        return ""
    return format_ratio(slow.seconds / fast.seconds)


def _public(case: Case, device_type: str) -> str:
    if case.num_groups != public_code.NUM_GROUPS:
        return ""
    for figure in public_code.FIGURES[device_type]:
        if figure.num_elements == case.num_elements:
            quantities = [format_seconds(figure.seconds)]
            if figure.peak_bytes is not None:
                quantities.append(format_bytes(figure.peak_bytes))
            # A narrow column may break between the two, not between a number and its unit.
            return ", ".join(each.replace(" ", "") for each in quantities)
    return ""

"""The benchmark program: ``python -m benchmarks``, or ``drpm bench``."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from benchmarks import laws


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, and write the figures as JSON."""
    options = _parse(arguments)
    path = options.out / ("steps.json" if options.training else "results.json")
    if options.training:
        # All applications are imported only for this.
        from benchmarks import steps

        tables = steps.run(options, path)
    else:
        tables = laws.run(options, path)
    console = Console()
    for table in tables:
        console.print(table)
    console.print(str(path), highlight=False, soft_wrap=True)


def _parse(arguments: Sequence[str] | None) -> Namespace:
    text = "Measure time and memory of the distributions, or the time of training steps."
    parser = ArgumentParser("python -m benchmarks", description=text)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    text = "device (default: cuda if available, else cpu)"
    parser.add_argument("--device", type=_device, default=device, help=text)
    parser.add_argument("--training", action="store_true", help="measure training steps instead")
    parser.add_argument("--quick", action="store_true", help="small sizes, to test the program")
    parser.add_argument("--sizes", type=_whole_numbers, help="element counts such as 64,256")
    text = "group counts: the first at every size, the others at one size (default: 10,2,100)"
    parser.add_argument("--groups", type=_whole_numbers, help=text)
    names = list(laws.OPERATIONS)
    text = "operations to measure (default: all)"
    parser.add_argument("--operations", nargs="+", choices=names, default=names, help=text)
    parser.add_argument("--models", nargs="+", help="models to measure (default: all)")
    parser.add_argument("--out", type=_folder, default="out/bench", help="folder for the JSON file")
    return parser.parse_args(arguments)


def _device(text: str) -> str:
    try:
        torch.zeros((), device=text)
    except (RuntimeError, AssertionError) as error:
        raise ArgumentTypeError(f"torch has no device {text!r} here") from error
    return text


def _whole_numbers(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ArgumentTypeError(f"expected positive integers separated by commas, got {text!r}")
    return [int(part) for part in parts]


def _folder(text: str) -> Path:
    folder = Path(text)
    # Created first, to fail before the work.
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        complaint = f"the folder {text!r} cannot be created ({error.strerror})"
        raise ArgumentTypeError(complaint) from error
    return folder


if __name__ == "__main__":
    main()

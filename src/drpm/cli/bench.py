"""The command ``drpm bench``: the benchmark program of the source checkout."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

import drpm
from drpm.cli.errors import one_sentence

PROGRAM = Path("benchmarks", "__main__.py")


def bench(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="Options of the program, such as --quick.", metavar="[OPTIONS]"),
    ] = None,
) -> None:
    """Measure time and memory of the laws on the device at hand."""
    with one_sentence():
        root = checkout()
        if root is None:
            raise ValueError(
                "The benchmark program comes with the source checkout and not with the installed "
                "package: get the source, and run drpm bench in its folder."
            )
    with _first_on_the_path(root):
        import_module("benchmarks.__main__").main(arguments or [], prog="drpm bench")


def checkout() -> Path | None:
    """The root of the checkout that the package is used from, or that the command is given in."""
    package = Path(drpm.__file__).parent
    for root in (package.parents[1], Path.cwd()):
        # Both, because other projects have a program of that name.
        if (root / PROGRAM).is_file() and (root / "src" / package.name).is_dir():
            return root
    return None


@contextmanager
def _first_on_the_path(folder: Path) -> Iterator[None]:
    """Import from a folder before all others, here and in the processes that are started.

    These would look in the folder where the command is given first, which may have a program of
    the same name.
    """
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    wanted = {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value

"""Sweeps: the grid of runs behind a table or a figure.

A sweep is a name and a list of runs, each with a folder of its own. Running it again skips what
is finished and continues what was cut off, so that a sweep that was stopped, wherever and
however, is brought to its end by the same command (:mod:`drpm.training.sweep_running`).
"""

import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeAlias

from drpm.training.config import suggest
from drpm.training.errors import ConfigError

Job: TypeAlias = Callable[..., object]

# What is kept of runs beside them and not in them: a job makes its own run folder and takes that
# folder's lock.
CLAIMS: Final = ".sweep"


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    The job is called as ``job(folder, **arguments)`` in a process of its own. It begins the run in
    that folder, or continues the one it finds there, and ends with :meth:`RunFolder.finish`.
    A job that can choose where it computes has another argument, ``device``, with a default.

    Arguments:
        folder: The run's folder, from the sweep's folder on.
        job: The function, or where to import it from: ``package.module:function``.
        arguments: What JSON can hold, and dataclasses and paths of it.
    """

    folder: str
    job: str | Job
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = PurePosixPath(self.folder).parts
        if not parts or "/" in parts or ".." in parts or parts[0] == CLAIMS:
            raise ValueError(
                f"folder must be a path that leads to a place inside the sweep's folder, "
                f"but got {self.folder!r}."
            )
        if isinstance(self.job, str) and not re.fullmatch(r"[\w.]+:\w+", self.job):
            raise ValueError(
                f"job must be a function or have the form 'package.module:function', "
                f"but got {self.job!r}."
            )
        self.plain_arguments()

    def plain_arguments(self) -> Any:
        """The arguments as JSON holds them."""
        try:
            return json.loads(json.dumps(dict(self.arguments), allow_nan=False, default=_plain))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"arguments of the run {self.folder!r} must be what JSON can hold: {error}."
            ) from error


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{value!r} is not")


@dataclass(frozen=True)
class Sweep:
    """A name and a list of runs.

    Arguments:
        name: What the sweep is called, as in ``drpm reproduce NAME``.
        runs: The runs, in the order in which they are begun.
    """

    name: str
    runs: tuple[SweepRun, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", tuple(self.runs))
        seen: set[PurePosixPath] = set()
        for run in self.runs:
            path = PurePosixPath(run.folder)
            if path in seen:
                raise ValueError(f"The sweep {self.name!r} has two runs in {run.folder!r}.")
            seen.add(path)
        for path in seen:
            for parent in path.parents:
                if parent in seen:
                    raise ValueError(
                        f"The sweep {self.name!r} has the run {str(path)!r} inside the run "
                        f"{str(parent)!r}."
                    )


# The sweeps there are. Applications fill it, so that this module need not know them.
SWEEPS: dict[str, Callable[[], Sweep]] = {}


def register(name: str) -> Callable[[Callable[[], Sweep]], Callable[[], Sweep]]:
    """Make a sweep known under a name; for use above a function that returns it.

    The first line of the function's docstring is what lists of sweeps say about it.

    Example:
        >>> @register("an-example")
        ... def example() -> Sweep:
        ...     "A run that is not there."
        ...     return Sweep("an-example", [SweepRun("seed-0", "package.module:train")])
        >>> find("an-example").runs[0].folder
        'seed-0'
        >>> del SWEEPS["an-example"]
    """

    def add(make: Callable[[], Sweep]) -> Callable[[], Sweep]:
        if name in SWEEPS:
            raise ValueError(f"There is a sweep {name!r} already.")
        SWEEPS[name] = make
        return make

    return add


def describe(name: str) -> str:
    """What a registered sweep says about itself, in one line."""
    return (inspect.getdoc(SWEEPS[name]) or "").partition("\n")[0]


def find(name: str) -> Sweep:
    """The sweep that is registered under a name."""
    if name in SWEEPS:
        return SWEEPS[name]()
    raise ConfigError(f"{name!r} is not a sweep; {suggest(name, sorted(SWEEPS))}")

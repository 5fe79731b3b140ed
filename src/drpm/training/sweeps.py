"""Sweeps: the runs behind a table or a figure, the registry of all sweeps, and their results.

A sweep is a name and a list of runs, each with a folder of its own.
:mod:`drpm.training.sweep_running` runs them.
"""

import inspect
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias

from drpm.training.checkpoint import write_atomic
from drpm.training.config import suggest
from drpm.training.errors import ConfigError, RunError, reason
from drpm.training.runs import ARRAYS, CONFIG, RESULT, RunFolder

Job: TypeAlias = Callable[..., object]

ARCHIVE: Final = ".tar.gz"
# The arrays of figures are collected for the first seed of our own models, if they are small.
_ARRAYS_SEED: Final = "seed-0"
_ARRAYS_OF: Final = "drpm"
_ARRAYS_BYTES: Final = 1_000_000


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    The job is called as ``job(folder, **arguments)`` in a process of its own. It starts or resumes
    the run in that folder and ends with :meth:`RunFolder.finish`. A job that can choose its device
    has another argument, ``device``, with a default.

    Args:
        folder: The run's folder, relative to that of the sweep.
        job: The function, or where to import it from: ``package.module:function``.
        arguments: What JSON can hold.
    """

    folder: str
    job: str | Job
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sweep:
    """A name and a list of runs.

    Args:
        name: The name, as in ``drpm reproduce NAME``.
        runs: The runs, in the order in which they are started; none lies inside another.
    """

    name: str
    runs: tuple[SweepRun, ...]


# Applications fill it, so that this module need not know them.
SWEEPS: dict[str, Callable[[], Sweep]] = {}


def register(name: str) -> Callable[[Callable[[], Sweep]], Callable[[], Sweep]]:
    """Register the sweep that the decorated function returns.

    The first line of the function's docstring describes the sweep in lists.

    Example:
        >>> @register("an-example")
        ... def example() -> Sweep:
        ...     "An example."
        ...     return Sweep("an-example", (SweepRun("seed-0", "package.module:train"),))
        >>> find("an-example").runs[0].folder
        'seed-0'
        >>> del SWEEPS["an-example"]
    """

    def add(make: Callable[[], Sweep]) -> Callable[[], Sweep]:
        SWEEPS[name] = make
        return make

    return add


def describe(name: str) -> str:
    """The description of a registered sweep, in one line."""
    return (inspect.getdoc(SWEEPS[name]) or "").partition("\n")[0]


def find(name: str) -> Sweep:
    """The sweep that is registered under a name."""
    if name in SWEEPS:
        return SWEEPS[name]()
    raise ConfigError(f"{name!r} is not a sweep; {suggest(name, sorted(SWEEPS))}")


def collect(source: Path, name: str, studies: Sequence[str], target: Path) -> list[str]:
    """Copy the settings and results of finished runs, without models and checkpoints.

    Args:
        source: The folder of a sweep.
        name: The sweep's name, which becomes a folder in the target.
        studies: The folders of its runs or studies.
        target: A folder, to which the files are added, or an archive that ends in ``.tar.gz``.

    Returns:
        The copied files, by their path in the target.
    """
    found = {
        str(Path(name) / path.relative_to(source)): path
        for study in studies
        for path in _files(source / study)
    }
    if not found:
        raise RunError(f"The folder {source} holds no finished run of {name!r} to collect.")
    try:
        if not target.name.endswith(ARCHIVE):
            _copy(found, target)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory() as folder, TemporaryDirectory() as elsewhere:
                _copy(found, Path(folder))
                archive = shutil.make_archive(f"{elsewhere}/archive", "gztar", folder)
                write_atomic(target, Path(archive).read_bytes())
    except OSError as error:
        raise RunError(f"{target} was not written, because {reason(error)}.") from error
    return list(found)


def _copy(files: Mapping[str, Path], target: Path) -> None:
    for relative, path in files.items():
        (target / relative).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target / relative, path.read_bytes())


def _files(study: Path) -> Iterator[Path]:
    if RunFolder(study).status == "finished":
        yield study / RESULT
    runs = sorted(study.rglob("seed-*"))
    if not runs and RunFolder(study).status == "finished":
        yield study / CONFIG  # it is the run itself
    for run in runs:
        if RunFolder(run).status == "finished":
            yield run / CONFIG
            yield run / RESULT
            arrays = run / ARRAYS
            ours = any(
                part.startswith(_ARRAYS_OF) for part in (study.name, *run.relative_to(study).parts)
            )
            small = arrays.exists() and arrays.stat().st_size < _ARRAYS_BYTES
            if ours and small and run.name == _ARRAYS_SEED:
                yield arrays

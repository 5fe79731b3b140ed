"""What a worker does with a run of a sweep.

A run is claimed before it is touched, through a lock file that belongs to it, so that sweeps in
several processes (or on several machines that share the folder) divide the runs among them.
"""

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from drpm.training.backends import Outcome, sentence
from drpm.training.errors import InUse, memory_refusal
from drpm.training.runs import RunFolder
from drpm.training.sweeps import CLAIMS, Job, SweepRun

ERROR: Final = "error.txt"


@contextmanager
def claim(out: Path, run: SweepRun) -> Iterator[None]:
    """Be the only sweep that touches a run, from here to the end of the block."""
    place = out / CLAIMS / run.folder
    place.mkdir(parents=True, exist_ok=True)
    with RunFolder(place).lock():
        if (out / run.folder).is_dir():
            # Somebody may be at the run by hand, without a sweep. This lock is given back at
            # once, for the job to take it.
            with RunFolder(out / run.folder).lock():
                pass
        yield


def execute(out: Path, run: SweepRun, placed: Mapping[str, Any] | None = None) -> Outcome:
    """Do one run: in the worker, under its claim, whatever the job may raise.

    Arguments:
        out: The sweep's folder.
        run: The run.
        placed: Further arguments, which say where it is done and not what.
    """
    folder = out / run.folder
    try:
        with claim(out, run):
            # Looked at again under the claim: another process may just have finished it.
            if RunFolder(folder).status == "finished":
                return Outcome("skipped")
            # Whatever lies there tells of an earlier attempt.
            (out / CLAIMS / run.folder / ERROR).unlink(missing_ok=True)
            try:
                resolve(run.job)(folder, **{**run.arguments, **(placed or {})})
            except BaseException:
                _write_traceback(out, run)
                raise
            if RunFolder(folder).status != "finished":
                return Outcome("failed", "Its job returned without finishing the run.")
            return Outcome("finished")
    except InUse as error:
        return Outcome("busy", str(error))
    except BaseException as error:
        if (why := memory_refusal(error)) is not None:
            return Outcome("starved", f"There is not enough memory for it ({why}).")
        # Interrupts too: a process that had to be told to stop has told all there is to tell.
        return Outcome("failed", sentence(error))


def resolve(job: str | Job) -> Job:
    if not isinstance(job, str):
        return job
    module, _, name = job.partition(":")
    function: Job = getattr(import_module(module), name)
    return function


def _write_traceback(out: Path, run: SweepRun) -> None:
    with suppress(OSError):
        (out / CLAIMS / run.folder / ERROR).write_text(traceback.format_exc(), encoding="utf-8")

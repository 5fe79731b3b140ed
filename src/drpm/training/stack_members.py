"""Which runs are stacked, so that they are resumed together or not at all.

The checkpoint of a stack lies in the folder of its first run and does not say whose models it
holds. So every run of a stack keeps a list of all of them.
"""

import json
import os
from collections.abc import Sequence

from drpm.training.errors import RunError
from drpm.training.runs import STACK_MEMBERS, RunFolder


def check_stack_members(runs: Sequence[RunFolder]) -> None:
    """Refuse runs from a different stack, and record the members of a new one.

    Args:
        runs: Those of a program, in its order; the first one has the checkpoint.
    """
    for run in runs:
        now = [os.path.relpath(other.path, run.path) for other in runs]
        before = _read_members(run)
        if before is not None and before != now:
            raise RunError(
                f"The run in {run.path} was started {_describe(before)} and cannot be resumed "
                f"{_describe(now)}: give the same seeds in the same order, or another folder."
            )
    for run in runs:
        if len(runs) > 1:
            now = [os.path.relpath(other.path, run.path) for other in runs]
            run.write_atomic(STACK_MEMBERS, json.dumps(now))
        else:
            # Left by a stack that was killed before its first step.
            (run.path / STACK_MEMBERS).unlink(missing_ok=True)


def _read_members(run: RunFolder) -> list[str] | None:
    """The stack that a run was started in, itself included; None for a new run."""
    if run.status == "new":
        return None
    path = run.path / STACK_MEMBERS
    if not path.exists():
        return ["."]
    try:
        found: list[str] = json.loads(path.read_bytes())
    except ValueError as error:
        raise RunError(f"The file {path} is not a valid list of stacked runs.") from error
    return found


def _describe(members: Sequence[str]) -> str:
    others = [path for path in members if path != "."]
    return f"in a stack with {', '.join(others)}" if others else "alone"

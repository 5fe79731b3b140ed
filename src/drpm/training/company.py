"""Which runs are trained together, so that they go on together or not at all.

The checkpoint of a stack lies with its first run and says nothing of whose the models are. So every
run of a stack keeps a list of all of them.
"""

import json
import os
from collections.abc import Sequence

from drpm.training.errors import RunError
from drpm.training.runs import COMPANY, RunFolder


def keep_company(runs: Sequence[RunFolder]) -> None:
    """Refuse runs that were begun in other company, and note this one where they are new.

    Arguments:
        runs: Those of a program, in its order; the first one has the checkpoint.
    """
    for run in runs:
        now = [os.path.relpath(other.path, run.path) for other in runs]
        before = _company(run)
        if before is None or before == now:
            continue
        raise RunError(
            f"The run in {run.path} was begun {_described(before)} and cannot go on "
            f"{_described(now)}: give the same seeds in the same order, or another folder."
        )
    for run in runs:
        if len(runs) > 1:
            now = [os.path.relpath(other.path, run.path) for other in runs]
            run.write_atomic(COMPANY, json.dumps(now))
        else:
            # Left by a stack that was killed before it had begun.
            (run.path / COMPANY).unlink(missing_ok=True)


def _company(run: RunFolder) -> list[str] | None:
    """With whom a run was begun, itself included; none where it is new."""
    if run.status == "new":
        return None
    path = run.path / COMPANY
    if not path.exists():
        return ["."]  # begun alone
    try:
        found: list[str] = json.loads(path.read_bytes())
    except ValueError as error:
        raise RunError(f"The file {path} is not what a run writes.") from error
    return found


def _described(company: Sequence[str]) -> str:
    others = [path for path in company if path != "."]
    return f"together with {', '.join(others)}" if others else "alone"

"""Studies that are cut off once their models are trained, before all of them are judged."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def cut_off(
    monkeypatch: pytest.MonkeyPatch, job: ModuleType, run: Path, do: Callable[[], object]
) -> None:
    """Do a study that ends where a run's model would be judged.

    Arguments:
        monkeypatch: Pytest's.
        job: The application's module of that name.
        run: The run's folder.
        do: The study.
    """
    conclude = job._conclude

    def dying(*given: Any) -> None:
        if given[3].path == run:
            raise KeyboardInterrupt
        conclude(*given)

    with monkeypatch.context() as patched:
        patched.setattr(job, "_conclude", dying)
        with pytest.raises(KeyboardInterrupt):
            do()

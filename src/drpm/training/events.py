"""Metrics for TensorBoard."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, final


@final
class Events:
    """Event files of some runs; nothing at all where ``tensorboard`` is not installed.

    The metrics of a run are in its own files. These are a view of them, so that a disk which is
    too full for them stops nobody.

    Arguments:
        folders: One for each run.
        step: Where the runs start; what an earlier process wrote beyond it is hidden.
    """

    def __init__(self, folders: Sequence[Path], step: int) -> None:
        self._writers: list[Any] = []
        with suppress(ImportError, OSError):
            from torch.utils.tensorboard import SummaryWriter

            for folder in folders:
                self._writers.append(SummaryWriter(folder, purge_step=step + 1))

    def write(self, step: int, records: Sequence[Mapping[str, float]]) -> None:
        """Add a point to the curves of every run."""
        for writer, record in zip(self._writers, records, strict=False):
            with suppress(OSError):
                for name, value in record.items():
                    writer.add_scalar(name, value, step)

    def close(self) -> None:
        for writer in self._writers:
            with suppress(OSError):
                writer.close()

"""Metrics for TensorBoard."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, final


@final
class Events:
    """Event files of runs; none if ``tensorboard`` is not installed.

    They repeat the metrics in the run folders, so a full disk is ignored here.

    Args:
        folders: One for each run.
        step: The step at which the runs start; events beyond it from an earlier process are hidden.
    """

    def __init__(self, folders: Sequence[Path], step: int) -> None:
        self._writers: list[Any] = []
        with suppress(ImportError, OSError):
            from torch.utils.tensorboard import SummaryWriter

            for folder in folders:
                self._writers.append(SummaryWriter(folder, purge_step=step + 1))

    def write(self, step: int, records: Sequence[Mapping[str, float]]) -> None:
        """Add the metrics of a step, for every run."""
        for writer, record in zip(self._writers, records, strict=False):
            with suppress(OSError):
                for name, value in record.items():
                    writer.add_scalar(name, value, step)

    def close(self) -> None:
        for writer in self._writers:
            with suppress(OSError):
                writer.close()

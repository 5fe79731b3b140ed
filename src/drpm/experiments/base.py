"""What an application implements: loading data, training models, evaluating them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch

from drpm.experiments.jobs import Job
from drpm.training.devices import Devices
from drpm.training.runs import RunFolder
from drpm.training.stages import ProgressFactory

J = TypeVar("J", bound=Job)
D = TypeVar("D")
M = TypeVar("M")


class Evaluation(NamedTuple):
    """The outcome of a run.

    Args:
        metrics: Final metrics by name.
        figures: Figure data, the content of ``arrays.npz``.
        stages: Folders of the trainings whose metrics are those of the run; empty where it has
            its metrics already.
        files: Further files of the run by name, such as ``labels.csv``.
        facts: Further entries of ``result.json``: ``about`` (a paragraph for the page), ``data``
            (a table), ``names`` (headings of metrics), ``method``, ``comparison``, ``tables``.
    """

    metrics: Mapping[str, Any]
    figures: bytes
    stages: Sequence[Path]
    files: Mapping[str, str]
    facts: Mapping[str, Any]


class Table(NamedTuple):
    """A table for the terminal."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


class Experiment(ABC, Generic[J, D, M]):
    """An application: it loads data for a job, trains a model and evaluates it.

    Type variables: the job, the data and the trained model.
    """

    scores: ClassVar[Mapping[str, str]]
    """Metrics that the terminal shows, with their headings."""
    digits: ClassVar[int] = 3
    """Decimals of these metrics."""
    outputs: ClassVar[tuple[str, ...]]
    """Files and folders that a run writes besides those of every run."""

    def resolve(self, job: J, device: torch.device) -> J:
        """Fill in the defaults of the job's fields."""
        return job

    @abstractmethod
    def load(self, job: J, device: torch.device) -> D:
        """Load the data of a job; refuse data that does not suit it."""

    @abstractmethod
    def fingerprint(self, job: J, data: D) -> str:
        """The content hash of the user's own data; empty where the name is enough."""

    def complete(self, job: J, data: D, given: Mapping[str, bool]) -> J:
        """Fill in what depends on the data.

        Args:
            job: The job.
            data: Its data.
            given: The hyperparameters that the user has set, by name, and whether on the command
                line (else in a file).
        """
        return job

    @abstractmethod
    def check(self, job: J, data: D) -> list[str]:
        """Refuse settings that do not fit the data; return warnings, a sentence each."""

    def share(self, jobs: Sequence[J], data: D, folders: Sequence[Path], place: Path) -> None:
        """Take over stages that other studies in ``place`` have finished, or leave them there."""

    @abstractmethod
    def train(
        self,
        jobs: Sequence[J],
        data: D,
        folders: Sequence[Path],
        devices: Devices,
        progress: ProgressFactory,
    ) -> list[M]:
        """Train a model for each job, or resume.

        Args:
            jobs: One, or several that differ in their seeds where the job's ``stacks`` is true.
            data: The data.
            folders: One for each job, for checkpoints and models of the stages.
            devices: Where to train.
            progress: Makes the progress bar of a stage.
        """

    @abstractmethod
    def evaluate(
        self, job: J, model: M, data: D, run: RunFolder, progress: ProgressFactory
    ) -> Evaluation:
        """Evaluate a trained model and save it in ``run.model_dir``."""

    @abstractmethod
    def title(self, job: J, data: D) -> str:
        """The title of the run's page."""

    def columns(self, result: Mapping[str, Any]) -> Mapping[str, str]:
        """The metrics of a result that the terminal shows, with their headings."""
        return {name: shown for name, shown in self.scores.items() if name in result["metrics"]}

    def describe(self, results: Sequence[Mapping[str, Any]]) -> Sequence[Table | str]:
        """What the terminal shows besides the table of scores."""
        return ()

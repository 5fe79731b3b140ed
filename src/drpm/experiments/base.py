"""What an application declares: the settings of a run, and how to load, train and evaluate.

Nothing here imports torch, so that ``--help`` answers at once.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, Self, TypeVar

if TYPE_CHECKING:
    import torch

    from drpm.training.devices import Devices
    from drpm.training.loop import ProgressFactory
    from drpm.training.runs import RunFolder

# The commands that train, and the class that declares each. A new application is one line.
JOBS: Final[dict[str, str]] = {
    "cluster": "drpm.clustering.config:ClusteringJob",
    "factors": "drpm.factors.config:FactorsJob",
    "multitask": "drpm.multitask.config:MultitaskJob",
    "supervised": "drpm.supervised.config:SupervisedJob",
}


def option(default: Any, help: str, **details: Any) -> Any:
    """A field of a job that the command line offers as an option.

    The details are ``choices`` (words that a shell completes), ``shown`` (what the help shows as
    the default), ``metavar`` and ``flag`` (the name of a switch).
    """
    return field(default=default, metadata={"help": help, **details})


@dataclass(frozen=True)
class Job:
    """The settings of one run: data, options and the configuration of the model.

    Subclasses are frozen dataclasses. Fields made by :func:`option` become options of the
    command, ``data`` its argument and ``options`` its ``--option``. A field ``fingerprint`` keeps
    the content hash of the user's own data.
    """

    command: ClassVar[str]
    """The name of the command; its presets are called ``fast-<command>`` and so on."""
    section: ClassVar[str]
    """The field with the configuration, which has ``training``."""
    experiment: ClassVar[str]
    """The experiment as ``package.module:Class``."""
    help: ClassVar[str]
    """What the command does."""
    data_option: ClassVar[bool] = False
    """Whether ``--data`` names the data as well."""
    several_devices: ClassVar[bool] = False
    """Whether several devices can share a run."""
    shortcuts: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})
    """Hyperparameters that have an option of their own, with the details of :func:`option`."""

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """The values of a command line, by name, in the form of fields and settings."""
        return values

    @property
    def is_stacked(self) -> bool:
        """Whether one GPU trains several seeds of this job together."""
        return False

    @property
    def config(self) -> Any:
        return getattr(self, self.section)

    @property
    def seed(self) -> int:
        return int(self.config.training.seed)

    def with_config(self, **changes: Any) -> Self:
        """The same job with other hyperparameters."""
        return replace(self, **{self.section: replace(self.config, **changes)})

    def with_seed(self, seed: int) -> Self:
        return self.with_config(training=replace(self.config.training, seed=seed))


def parse_options(options: Sequence[str]) -> dict[str, Any]:
    """Options of the data, given as name=value; a value is JSON where it can be read as such."""
    parsed: dict[str, Any] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not name or not equals:
            raise ValueError(f"An option must have the form name=value, but got {option!r}.")
        if name in parsed:
            raise ValueError(f"The option {name} must be given once, but was given twice.")
        if name == "device":
            raise ValueError("device is not an option of the data; use --device to train.")
        try:
            parsed[name] = json.loads(value)
        except json.JSONDecodeError:
            parsed[name] = value
    return parsed


TextTable = tuple[Sequence[str], Sequence[Sequence[str]]]
J = TypeVar("J", bound=Job)
D = TypeVar("D")
M = TypeVar("M")


class Evaluation(NamedTuple):
    """The outcome of a run: metrics by name, the content of ``arrays.npz``, and facts.

    The facts are further entries of ``result.json``: ``title``, ``about`` (a paragraph), ``data``
    (a table), ``names`` (headings of metrics), ``method``, ``comparison``, ``tables``.
    """

    metrics: Mapping[str, Any]
    figures: bytes
    facts: Mapping[str, Any]


class Experiment(ABC, Generic[J, D, M]):
    """An application: it loads data for a job, trains a model and evaluates it.

    Type variables: the job, the data and the trained model.
    """

    scores: ClassVar[Mapping[str, str]]
    """Metrics that the terminal shows, with their headings."""
    outputs: ClassVar[tuple[str, ...]]
    """Files and folders that a run writes besides those of every run."""

    def resolve(self, job: J, device: "torch.device") -> J:
        """Fill in the defaults of the job's fields."""
        return job

    @abstractmethod
    def load(self, job: J, device: "torch.device") -> D:
        """Load the data of a job; refuse data that does not suit it."""

    def fingerprint(self, job: J, data: D) -> str:
        """The content hash of the user's own data; empty where the name is enough."""
        return ""

    def complete(self, job: J, data: D, given: Mapping[str, bool]) -> J:
        """Fill in what depends on the data.

        ``given`` has the hyperparameters that the user has set, by name, and whether on the command
        line (else in a file).
        """
        return job

    def check(self, job: J, data: D) -> list[str]:
        """Refuse settings that do not fit the data; return warnings, a sentence each."""
        return []

    def share(self, jobs: Sequence[J], data: D, folders: Sequence[Path], place: Path) -> None:
        """Take over stages that other studies in ``place`` have finished, or leave them there."""

    def train(
        self,
        jobs: Sequence[J],
        data: D,
        folders: Sequence[Path],
        devices: "Devices",
        progress: "ProgressFactory",
    ) -> list[M]:
        """Train a model for each job, or resume; by default the only one by :meth:`fit`.

        There are several jobs, which differ in their seeds, only where they are stacked. The
        folders, one for each job, are for checkpoints and models of the stages.
        """
        (job,), (folder,) = jobs, folders
        return [self.fit(job, data, folder, device=devices.device, progress=progress)]

    def fit(self, job: J, data: D, folder: Path, **options: Any) -> M:
        """Train the model of one job, or resume; the options are ``device`` and ``progress``."""
        raise NotImplementedError(f"{type(self).__name__} must define fit, or train.")

    @abstractmethod
    def evaluate(
        self, job: J, model: M, data: D, run: "RunFolder", progress: "ProgressFactory"
    ) -> Evaluation:
        """Evaluate a trained model; write it, its metrics and other files of the run."""

    @abstractmethod
    def title(self, job: J, data: D) -> str:
        """The title of the run's page, if its facts have none."""

    def columns(self, result: Mapping[str, Any]) -> Mapping[str, str]:
        """The metrics of a result that the terminal shows, with their headings."""
        return {name: shown for name, shown in self.scores.items() if name in result["metrics"]}

    def describe(self, results: Sequence[Mapping[str, Any]]) -> Sequence[TextTable | str]:
        """What the terminal shows besides the table of scores: headings with rows, and texts."""
        return ()


def find_job(command: str) -> type[Job]:
    """The job class of a command."""
    return resolve_name(JOBS[command])  # type: ignore[no-any-return]


def find_experiment(job: Job | type[Job]) -> Experiment[Any, Any, Any]:
    """The experiment that runs a job."""
    return resolve_name(job.experiment)()  # type: ignore[no-any-return]

"""The settings of a run, from which it can be repeated. Nothing here imports torch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

if TYPE_CHECKING:
    from drpm.experiments.base import Experiment

# The commands that train, and the class that declares each. A new application is one line.
JOBS: Final[dict[str, str]] = {
    "cluster": "drpm.clustering.config:ClusteringJob",
    "factors": "drpm.factors.config:FactorsJob",
    "multitask": "drpm.multitask.config:MultitaskJob",
    "supervised": "drpm.supervised.config:SupervisedJob",
}


def option(default: Any, help: str, **details: Any) -> Any:
    """A field of a job that the command line offers as an option.

    Args:
        default: The default value.
        help: The help text.
        details: ``choices`` (words that a shell completes), ``least`` and ``most`` (the range of
            a number), ``among`` (the numbers there are), ``shown`` (what the help shows as the
            default), ``metavar``, ``flag`` (the name of a switch).
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
    example_preset: ClassVar[str | None] = None
    """A preset that the help names; None where there are no presets."""
    help: ClassVar[str]
    """What the command does."""
    data_option: ClassVar[bool] = False
    """Whether ``--data`` names the data as well."""
    stacks: ClassVar[bool] = False
    """Whether one GPU trains several seeds together."""
    several_devices: ClassVar[bool] = False
    """Whether several devices can share a run."""
    shortcuts: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})
    """Hyperparameters that have an option of their own, with the details of :func:`option`."""

    @property
    def is_stacked(self) -> bool:
        """Whether several seeds of this job are trained together where that is possible."""
        return self.stacks

    @property
    def config(self) -> Any:
        return getattr(self, self.section)

    @property
    def seed(self) -> int:
        seed: int = self.config.training.seed
        return seed

    def with_fields(self, **changes: Any) -> Self:
        """The same job with other fields."""
        return replace(self, **changes)

    def with_config(self, **changes: Any) -> Self:
        """The same job with other hyperparameters."""
        return self.with_fields(**{self.section: replace(self.config, **changes)})

    def with_seed(self, seed: int) -> Self:
        return self.with_config(training=replace(self.config.training, seed=seed))


def parse_options(options: Sequence[str]) -> dict[str, Any]:
    """Options of the data, given as name=value; a value is JSON where it can be read as such."""
    parsed: dict[str, Any] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not name or not equals:
            raise ValueError(f"An option should read name=value, not '{option}'.")
        if name in parsed:
            raise ValueError(f"The option {name} must be given once, but was given twice.")
        if name == "device":
            raise ValueError("device is no option of the data; commands that train have --device.")
        try:
            parsed[name] = json.loads(value)
        except json.JSONDecodeError:
            parsed[name] = value
    return parsed


def import_symbol(path: str) -> Any:
    """The object at ``package.module:name``."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def find_job(command: str) -> type[Job]:
    """The job class of a command."""
    found: type[Job] = import_symbol(JOBS[command])
    return found


def find_experiment(job: Job | type[Job]) -> "Experiment[Any, Any, Any]":
    """The experiment that runs a job."""
    found: Experiment[Any, Any, Any] = import_symbol(job.experiment)()
    return found

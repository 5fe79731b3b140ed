"""Jobs and experiments of applications, and the functions that run them.

A :class:`Job` holds the settings of a run; an :class:`Experiment` loads, trains and evaluates it.
Torch is imported only when a run starts, so that ``--help`` is fast.
"""

import hashlib
import json
import math
import os
import statistics
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, Self, TypeVar

from drpm.training import config as configs
from drpm.training.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from drpm.training.devices import Devices
    from drpm.training.loop import ProgressFactory
    from drpm.training.runs import RunFolder

SUMMARY: Final = "summary.json"
DEVIATION: Final = "over seeds, with n - 1 in the denominator"
MISSING: Final = "-"

# The commands that train, and the class that declares each. A new application is one line.
JOBS: Final[dict[str, str]] = {
    "cluster": "drpm.clustering.config:ClusteringJob",
    "factors": "drpm.factors.config:FactorsJob",
    "multitask": "drpm.multitask.config:MultitaskJob",
    "supervised": "drpm.supervised.config:SupervisedJob",
}


def option(default: Any, help: str, **details: Any) -> Any:
    """A field of a job that the command line offers as an option.

    ``details``: ``choices`` (for shell completion), ``shown`` (the default in the help),
    ``metavar`` and ``flag`` (the name of a switch).
    """
    return field(default=default, metadata={"help": help, **details})


@dataclass(frozen=True)
class Job:
    """The settings of one run: data, options and the configuration of the model.

    Subclasses are frozen dataclasses. Fields made by :func:`option` become options of the
    command, ``data`` its argument and ``options`` its ``--option``. ``fingerprint`` is the content
    hash of the user's own data.
    """

    command: ClassVar[str]
    """The name of the command, and part of the names of its presets: ``fast-<command>``."""
    section: ClassVar[str]
    """The field with the configuration; the configuration has ``training``."""
    experiment: ClassVar[str]
    """The experiment as ``package.module:Class``."""
    help: ClassVar[str]
    """What the command does."""
    data_option: ClassVar[bool] = False
    """Whether ``--data`` is an alternative to the argument."""
    several_devices: ClassVar[bool] = False
    """Whether several devices can share a run."""
    shortcuts: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})
    """Hyperparameters with their own option, and its details as in :func:`option`."""

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Convert the values of a command line to fields and settings."""
        return values

    @property
    def is_stacked(self) -> bool:
        """Whether several seeds of this job are trained together on one GPU."""
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
    """Parse data options of the form name=value; values are parsed as JSON if possible."""
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

    ``facts``: additional entries of ``result.json``: ``title``, ``about`` (a paragraph), ``data``
    (a table), ``names`` (headings of metrics), ``method``, ``comparison``, ``tables``.
    """

    metrics: Mapping[str, Any]
    figures: bytes
    facts: Mapping[str, Any]


class Experiment(ABC, Generic[J, D, M]):
    """Loads data for a job, trains a model and evaluates it: types of job, data and model."""

    scores: ClassVar[Mapping[str, str]]
    """Metrics in the terminal output, with their headings."""
    outputs: ClassVar[tuple[str, ...]]
    """Additional output files and folders."""

    def resolve(self, job: J, device: "torch.device") -> J:
        """Fill in the defaults of the job's fields."""
        return job

    @abstractmethod
    def load(self, job: J, device: "torch.device") -> D:
        """Load the data of a job; raise if the data does not suit the job."""

    def fingerprint(self, job: J, data: D) -> str:
        """The content hash of the user's own data; empty for named data sets."""
        return ""

    def complete(self, job: J, data: D, given: Mapping[str, bool]) -> J:
        """Fill in settings that depend on the data.

        ``given``: the names of the hyperparameters set by the user, and whether each was set on the
        command line (else in a file).
        """
        return job

    def check(self, job: J, data: D) -> list[str]:
        """Raise if the settings do not fit the data; return warnings."""
        return []

    def share(self, jobs: Sequence[J], data: D, folders: Sequence[Path], root: Path) -> None:
        """Reuse finished stages of other studies in ``root``."""

    def train(
        self,
        jobs: Sequence[J],
        data: D,
        folders: Sequence[Path],
        devices: "Devices",
        progress: "ProgressFactory",
    ) -> list[M]:
        """Train or resume one model per job; by default calls :meth:`fit` for a single job.

        Stacked jobs differ only in their seeds. Each has a folder for checkpoints and models.
        """
        (job,), (folder,) = jobs, folders
        return [self.fit(job, data, folder, device=devices.device, progress=progress)]

    def fit(self, job: J, data: D, folder: Path, **options: Any) -> M:
        """Train or resume the model of one job; the options are ``device`` and ``progress``."""
        raise NotImplementedError(f"{type(self).__name__} must define fit, or train.")

    @abstractmethod
    def evaluate(
        self, job: J, model: M, data: D, run: "RunFolder", progress: "ProgressFactory"
    ) -> Evaluation:
        """Evaluate a trained model; save it and other files of the run."""

    @abstractmethod
    def title(self, job: J, data: D) -> str:
        """The title of the run's page, unless the facts have one."""

    def columns(self, result: Mapping[str, Any]) -> Mapping[str, str]:
        """The metrics of a result in the terminal output, with their headings."""
        return {name: shown for name, shown in self.scores.items() if name in result["metrics"]}

    def describe(self, results: Sequence[Mapping[str, Any]]) -> Sequence[TextTable | str]:
        """Additional terminal output: tables (headings and rows) and texts."""
        return ()


def find_job(command: str) -> type[Job]:
    """The job class of a command."""
    return resolve_name(JOBS[command])  # type: ignore[no-any-return]


def find_experiment(job: Job | type[Job]) -> Experiment[Any, Any, Any]:
    """The experiment that runs a job."""
    return resolve_name(job.experiment)()  # type: ignore[no-any-return]


def prepare(
    experiment: Experiment[J, D, M], job: J, given: Mapping[str, bool], device: str | None = None
) -> tuple[J, D, "Devices", list[str]]:
    """Load the data of a job and check the settings, before anything is written.

    ``given`` is as in ``Experiment.complete``; ``device`` overrides the device of the job.
    """
    from drpm.training.devices import connect

    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1 and not job.several_devices:
        raise ConfigError(f"devices must be 1 for this model, but torchrun started {processes}.")
    training = job.config.training
    devices = connect(training if device is None else replace(training, device=device))
    job = experiment.resolve(job, devices.device)
    data = experiment.load(job, devices.device)
    if any(each.name == "fingerprint" for each in fields(job)):
        job = replace(job, fingerprint=experiment.fingerprint(job, data))  # type: ignore[call-arg]
    job = experiment.complete(job, data, given)
    return job, data, devices, experiment.check(job, data)


def run_jobs(
    experiment: Experiment[J, D, M],
    jobs: Sequence[J],
    data: D,
    folders: Sequence[Path],
    *,
    devices: "Devices",
    command: Sequence[str],
    overwrite: bool = False,
    share: Path | None = None,
    progress: "ProgressFactory" = lambda stage: None,
) -> list[dict[str, Any]]:
    """Run or resume jobs that differ in their seeds; finished jobs are skipped.

    Raises if a folder has a different job, unless ``overwrite`` is set. ``command`` repeats all
    jobs; ``share`` is the root for :meth:`Experiment.share`. With several devices all processes
    call this, and the first one writes.

    Returns:
        The content of every ``result.json``, with the folder and the page.
    """
    from drpm.training.runs import ARRAYS, PAGE, open_run

    options: dict[str, Any] = {"overwrite": overwrite, "outputs": experiment.outputs}
    runs = [
        open_run(folder, configs.dumps(job), devices=devices, **options)
        for folder, job in zip(folders, jobs, strict=True)
    ]
    done = [run.result() for run in runs if run.status == "finished"]
    pairs = zip(jobs, runs, strict=True)
    unfinished = [(job, run) for job, run in pairs if run.status != "finished"]
    if share is not None and unfinished:
        experiment.share(jobs, data, folders, share)
    on_one_card = devices.device.type == "cuda" and devices.count == 1
    stacked = jobs[0].is_stacked and on_one_card and not done
    for group in [unfinished] if stacked else [[each] for each in unfinished]:
        some = [job for job, _ in group]
        # After an interruption, finished runs record which seeds were stacked with them.
        known = [result.get("stacked", []) for result in done]
        together = [seeds for seeds in known if some[0].seed in seeds] or [[x.seed for x in some]]
        with ExitStack() as held:
            for _, run in group if devices.is_first else ():
                held.enter_context(run.lock())
            paths = [run.path for _, run in group]
            models = experiment.train(some, data, paths, devices, progress)
            for (job, run), model in zip(group, models, strict=True):
                if not devices.is_first or run.status == "finished":
                    continue
                found = experiment.evaluate(job, model, data, run, progress)
                run.write_atomic(ARRAYS, found.figures)
                facts = {"command": list(command), "stacked": together[0], **found.facts}
                run.finish(found.metrics, seed=job.seed, device=devices.device, facts=facts)
        devices.barrier()
    if not devices.is_first:
        return []
    from drpm.report.page import write_page  # imports Matplotlib, which takes seconds

    results = []
    for run in runs:
        page = (run.path / PAGE).resolve()
        if not page.exists():
            page = write_page(run.path, title=experiment.title(jobs[0], data))
        results.append({**run.result(), "folder": str(run.path), "page": str(page)})
    return results


class Summary(NamedTuple):
    """Mean and sample standard deviation of a metric over seeds; None for a single seed."""

    mean: float
    deviation: float | None

    def text(self, digits: int = 3) -> str:
        """The mean with its deviation, or a dash."""
        if math.isnan(self.mean):
            return MISSING
        mean = f"{self.mean:.{digits}f}"
        return mean if self.deviation is None else f"{mean} ± {self.deviation:.{digits}f}"


def summarize(values: Sequence[float | None]) -> Summary:
    """Mean and standard deviation of a metric over seeds; NaN if a seed has none.

    Example:
        >>> summarize([0.5, 1.0, 1.5])
        Summary(mean=1.0, deviation=0.5)
    """
    known = [value for value in values if value is not None]
    if not values or len(known) < len(values):
        return Summary(math.nan, None)
    return Summary(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None)


def summarize_results(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and deviation of every metric over seeds; None if a seed has no finite value."""
    summary: dict[str, Any] = {}
    for metric in results[0]["metrics"]:
        # Results of an earlier version may lack some.
        found = summarize([result["metrics"].get(metric) for result in results])
        summary[metric] = None if math.isnan(found.mean) else found._asdict()
    return summary


def write_summary(folder: Path, results: Sequence[dict[str, Any]]) -> None:
    """Write the mean and the deviation of every metric over seeds."""
    from drpm.training.runs import RunFolder

    summary = {
        "seeds": [result["seed"] for result in results],
        "deviation": DEVIATION,
        "metrics": summarize_results(results),
    }
    RunFolder(folder).write_atomic(SUMMARY, json.dumps(summary, indent=2) + "\n")


def run_study(
    folder: Path,
    command: str,
    preset: str,
    seeds: Sequence[int],
    settings: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    config: str | None = None,
    share: bool = False,
    device: str = "auto",
) -> None:
    """Run or resume a study: one run ``seed-<seed>`` per seed, as written by the command.

    The study's ``result.json`` has the mean and the deviation of every metric. ``settings``
    override the preset, ``options`` are fields of the job, ``config`` is the expected digest of the
    configuration, and ``share`` reuses stages of other studies in the same parent folder. The
    device does not identify a study.
    """
    from drpm.training.runs import open_run

    kind, (chosen, digest) = find_job(command), configure(command, preset, settings)
    if config not in (None, digest):
        raise ConfigError(
            f"config must be {digest!r}, the digest of the configuration, but got {config!r}; "
            "the configuration has changed since."
        )
    options = dict(options or {})
    given = {name: tuple(x) if isinstance(x, list) else x for name, x in options.items()}
    job = kind(**given, **{kind.section: chosen})
    experiment = find_experiment(kind)
    job, data, devices, _ = prepare(experiment, job, {"clusters": False}, device)
    described = {"command": command, **options, "preset": preset, "settings": list(settings)}
    described["config"] = digest
    if content := getattr(job, "fingerprint", ""):
        described["content"] = content
    described["seeds"] = list(seeds)
    study = open_run(folder, configs.dumps(described))
    with study.lock():
        results = run_jobs(
            experiment,
            [job.with_seed(seed) for seed in seeds],
            data,
            [folder / f"seed-{seed}" for seed in seeds],
            devices=devices,
            command=_command_line(described, options, device),
            share=folder.parent if share else None,
        )
        stacked = len(results[0].get("stacked", ())) > 1
        study.finish(
            summarize_results(results),
            device=devices.device,
            facts={**described, "deviation": DEVIATION},
            wall_time=(max if stacked else sum)(result["wall_time"] for result in results),
        )


def configure(command: str, preset: str, settings: Sequence[str]) -> tuple[Any, str]:
    """The configuration of a command from a preset and overrides, and its digest."""
    start = configs.load_preset(type(find_job(command)().config), preset)
    config = configs.override(start, settings)
    return config, hashlib.sha256(configs.dumps(config).encode()).hexdigest()[:16]


def _command_line(study: Mapping[str, Any], options: Mapping[str, Any], device: str) -> list[str]:
    words = ["drpm", study["command"]]
    for name, value in options.items():
        if name == "data":
            words.insert(2, str(value))
        elif name == "options":
            words += [word for each in value for word in ("--option", each)]
        else:
            words += [f"--{name.replace('_', '-')}", str(value)]
    words += ["--preset", study["preset"]]
    words += [word for setting in study["settings"] for word in ("--set", setting)]
    words += ["--seeds", ",".join(map(str, study["seeds"]))]
    return words if device == "auto" else [*words, "--device", device]

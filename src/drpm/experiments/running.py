"""From jobs to finished run folders, and studies: one job for several seeds."""

import hashlib
import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from drpm.experiments.base import D, Experiment, J, M, find_experiment, find_job
from drpm.training import config as configs
from drpm.training.devices import Devices, connect
from drpm.training.errors import ConfigError
from drpm.training.loop import ProgressFactory
from drpm.training.runs import ARRAYS, PAGE, RunFolder, open_run

SUMMARY: Final = "summary.json"
DEVIATION: Final = "over seeds, with n - 1 in the denominator"
MISSING: Final = "-"


def prepare(
    experiment: Experiment[J, D, M], job: J, given: Mapping[str, bool], device: str | None = None
) -> tuple[J, D, Devices, list[str]]:
    """Load the data of a job and check that both fit, before anything is written.

    ``given`` is as in ``Experiment.complete``; the device is by default that of the job.
    """
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
    devices: Devices,
    command: Sequence[str],
    overwrite: bool = False,
    share: Path | None = None,
    progress: ProgressFactory = lambda stage: None,
) -> list[dict[str, Any]]:
    """Run jobs that differ in their seeds, or resume them; finished ones are skipped.

    A folder of a different job is refused unless it is to be overwritten. ``command`` repeats all
    jobs; ``share`` is the ``place`` of :meth:`~drpm.experiments.base.Experiment.share`. With
    several devices all processes call this, and the first one writes.

    Returns:
        The content of every ``result.json``, with the folder and the page.
    """
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
    """The mean and the sample standard deviation of a metric over seeds; one seed has none."""

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
    """Run a study, or resume it: the runs ``seed-<seed>``, as the command writes them.

    The study's ``result.json`` has the mean and the deviation of every metric. The settings are
    changes to the preset, the options fields of the job by name, and ``config`` the digest that the
    configuration must have. Studies in the same folder may share the stages that they have in
    common. The device is not part of what identifies a study.
    """
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
            command=_command_line(described, options),
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
    """The configuration of a command from a preset and changes to it, and a digest of all of it."""
    start = configs.load_preset(type(find_job(command)().config), preset)
    config = configs.override(start, settings)
    return config, hashlib.sha256(configs.dumps(config).encode()).hexdigest()[:16]


def _command_line(study: Mapping[str, Any], options: Mapping[str, Any]) -> list[str]:
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
    return [*words, "--seeds", ",".join(map(str, study["seeds"]))]

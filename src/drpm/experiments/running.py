"""From jobs to finished run folders."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from drpm.experiments.base import D, Evaluation, Experiment, J, Job, M
from drpm.training import config as configs
from drpm.training.devices import Devices, connect
from drpm.training.errors import ConfigError
from drpm.training.loop import ProgressFactory
from drpm.training.runs import ARRAYS, PAGE, RunFolder, open_run
from drpm.training.summaries import DEVIATION, summarize_results

SUMMARY: Final = "summary.json"


def connect_devices(job: Job) -> Devices:
    """The devices that a job asks for."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1 and not job.several_devices:
        raise ConfigError(f"devices must be 1 for this model, but torchrun started {processes}.")
    return connect(job.config.training)


def prepare(
    experiment: Experiment[J, D, M], job: J, devices: Devices, given: Mapping[str, bool]
) -> tuple[J, D, list[str]]:
    """Load the data of a job and check that both fit, before anything is written.

    Args:
        experiment: The application.
        job: The job.
        devices: Where it will run.
        given: As in :meth:`~drpm.experiments.base.Experiment.complete`.

    Returns:
        The job with what follows from the data, the data and warnings.
    """
    job = experiment.resolve(job, devices.device)
    data = experiment.load(job, devices.device)
    if any(each.name == "fingerprint" for each in fields(job)):
        job = replace(job, fingerprint=experiment.fingerprint(job, data))  # type: ignore[call-arg]
    job = experiment.complete(job, data, given)
    return job, data, experiment.check(job, data)


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

    With several devices all processes call this, and the first one writes.

    Args:
        experiment: The application.
        jobs: One for each seed.
        data: Their data.
        folders: The run folder of each; that of a different job is refused.
        devices: Where to train.
        command: The command that repeats all of them.
        overwrite: Whether to start again if a folder holds a run.
        share: As ``place`` in :meth:`~drpm.experiments.base.Experiment.share`.
        progress: Maps the name of a stage to its progress bar.

    Returns:
        The content of every ``result.json``, with the folder and the page.
    """
    options: dict[str, Any] = {"overwrite": overwrite, "outputs": experiment.outputs}
    runs = [
        open_run(folder, configs.dumps(job), devices=devices, **options)
        for folder, job in zip(folders, jobs, strict=True)
    ]
    unfinished = [(job, run) for job, run in zip(jobs, runs, strict=True) if not _done(run)]
    if share is not None and unfinished:
        experiment.share(jobs, data, folders, share)
    on_one_card = devices.device.type == "cuda" and devices.count == 1
    stacked = jobs[0].is_stacked and on_one_card and len(unfinished) == len(jobs)
    for group in [unfinished] if stacked else [[each] for each in unfinished]:
        some = [job for job, _ in group]
        facts = {"command": list(command), "stacked": [job.seed for job in some]}
        with ExitStack() as held:
            for _, run in group if devices.is_first else ():
                held.enter_context(run.lock())
            paths = [run.path for _, run in group]
            models = experiment.train(some, data, paths, devices, progress)
            for (job, run), model in zip(group, models, strict=True):
                if devices.is_first and not _done(run):
                    found = experiment.evaluate(job, model, data, run, progress)
                    _finish(run, found, job.seed, devices, facts)
        devices.barrier()
    if not devices.is_first:
        return []
    title = experiment.title(jobs[0], data)
    return [_with_page(run, title) for run in runs]


def _done(run: RunFolder) -> bool:
    return run.status == "finished"


def _finish(
    run: RunFolder, found: Evaluation, seed: int, devices: Devices, facts: dict[str, Any]
) -> None:
    for name, content in found.files.items():
        run.write_atomic(name, content)
    run.write_atomic(ARRAYS, found.figures)
    if found.stages:
        run.take_metrics(found.stages)
    run.finish(found.metrics, seed=seed, device=devices.device, facts={**facts, **found.facts})


def _with_page(run: RunFolder, title: str) -> dict[str, Any]:
    """The result of a run; its page, which is written last, is written if it is missing."""
    from drpm.report import write_page

    page = (run.path / PAGE).resolve()
    if not page.exists():
        page = write_page(run.path, title=title)
    return {**run.result(), "folder": str(run.path), "page": str(page)}


def write_summary(folder: Path, results: Sequence[dict[str, Any]]) -> None:
    """Write the mean and the deviation of every metric over seeds."""
    summary = {
        "seeds": [result["seed"] for result in results],
        "deviation": DEVIATION,
        "metrics": summarize_results(results),
    }
    RunFolder(folder).write_atomic(SUMMARY, json.dumps(summary, indent=2) + "\n")

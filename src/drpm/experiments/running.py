"""From jobs to finished run folders."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from drpm.experiments.base import D, Evaluation, Experiment, J, Job, M
from drpm.training import config as configs
from drpm.training.devices import Devices, connect, connect_one
from drpm.training.loop import ProgressFactory
from drpm.training.runs import ARRAYS, PAGE, RunFolder, open_run
from drpm.training.summaries import DEVIATION, summarize_results

SUMMARY: Final = "summary.json"


def connect_devices(job: Job) -> Devices:
    """The devices that a job asks for."""
    return (connect if job.several_devices else connect_one)(job.config.training)


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
        job = job.with_fields(fingerprint=experiment.fingerprint(job, data))
    job = experiment.complete(job, data, given)
    return job, data, experiment.check(job, data)


def open_runs(
    experiment: Experiment[J, D, M],
    jobs: Sequence[J],
    folders: Sequence[Path],
    *,
    devices: Devices,
    overwrite: bool = False,
) -> list[RunFolder]:
    """The run folders of jobs, new or interrupted; those of other jobs are refused.

    Args:
        experiment: The application.
        jobs: The jobs.
        folders: One for each.
        devices: Where they run.
        overwrite: Whether to start anew where a folder holds a run.
    """
    return [
        open_run(
            folder,
            configs.dumps(job),
            overwrite=overwrite,
            outputs=experiment.outputs,
            devices=devices,
        )
        for folder, job in zip(folders, jobs, strict=True)
    ]


def run_jobs(
    experiment: Experiment[J, D, M],
    jobs: Sequence[J],
    data: D,
    runs: Sequence[RunFolder],
    *,
    devices: Devices,
    command: Sequence[str],
    progress: ProgressFactory = lambda stage: None,
) -> list[dict[str, Any]]:
    """Run jobs that differ in their seeds, or resume them; finished ones are left alone.

    With several devices all processes call this, and the first one writes.

    Args:
        experiment: The application.
        jobs: One for each seed.
        data: Their data.
        runs: The folder of each.
        devices: Where to train.
        command: The command that repeats all of them.
        progress: Makes the progress bar of a stage.

    Returns:
        The content of every ``result.json``, with the folder and the page.
    """
    for group in _groups(runs, devices, jobs[0].is_stacked):
        some, theirs = [jobs[i] for i in group], [runs[i] for i in group]
        with ExitStack() as held:
            for run in theirs if devices.is_first else ():
                held.enter_context(run.lock())
            models = experiment.train(some, data, [run.path for run in theirs], devices, progress)
            for job, model, run in zip(some, models, theirs, strict=True):
                if devices.is_first and run.status != "finished":
                    facts = {"command": list(command), "stacked": [each.seed for each in some]}
                    found = experiment.evaluate(job, model, data, run, progress)
                    _finish(run, found, job.seed, devices, facts)
        devices.barrier()
    if not devices.is_first:
        return []
    title = experiment.title(jobs[0], data)
    return [_with_page(run, title) for run in runs]


def _groups(runs: Sequence[RunFolder], devices: Devices, stacks: bool) -> list[range]:
    """Which runs are trained together: all of them on one GPU where the application stacks."""
    unfinished = [run.status != "finished" for run in runs]
    on_one_card = devices.device.type == "cuda" and devices.count == 1
    if stacks and on_one_card and all(unfinished):
        return [range(len(runs))]
    return [range(i, i + 1) for i, is_open in enumerate(unfinished) if is_open]


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
    """The result of a run; its page is written where it is missing."""
    from drpm.report import write_page

    # The page is written last: where there is one, everything is there.
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

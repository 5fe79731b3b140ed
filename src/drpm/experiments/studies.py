"""A study: one job for several seeds, with means and deviations."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from drpm.experiments.base import Job, find_experiment, find_job
from drpm.experiments.running import connect_devices, prepare, run_jobs
from drpm.training import config as configs
from drpm.training.config import load_preset
from drpm.training.errors import ConfigError
from drpm.training.runs import open_run
from drpm.training.summaries import DEVIATION, summarize_results
from drpm.training.sweeps import SweepRun


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
    """Run a study, or resume it.

    The folder ends up with the runs ``seed-<seed>``, each as the command writes it, and with the
    mean and the deviation of every metric in its own ``result.json``.

    Args:
        folder: The study's folder.
        command: The command whose runs these are.
        preset: The configuration.
        seeds: One for each run.
        settings: Changes to the preset, as ``name=value``.
        options: Fields of the job, by name.
        config: The digest of the configuration; refused where the configuration has changed.
        share: Whether studies in the same folder share the stages that they have in common.
        device: Where to run; not part of what identifies the study.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds must be one or more that differ, but got {list(seeds)}.")
    kind = find_job(command)
    chosen = _configure(kind, preset, settings)
    digest = digest_settings(chosen)
    if config not in (None, digest):
        raise ConfigError(
            f"config must be {digest!r}, the digest of the configuration, but got {config!r}; "
            "the configuration has changed since."
        )
    options = dict(options or {})
    given = {name: tuple(x) if isinstance(x, list) else x for name, x in options.items()}
    job = kind(**given, **{kind.section: chosen})
    experiment = find_experiment(kind)
    local = job.with_config(training=replace(chosen.training, device=device))
    devices = connect_devices(local)
    job, data, _ = prepare(experiment, job, devices, {"clusters": False})
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
            command=_command_line(kind, preset, settings, options, seeds),
            share=folder.parent if share else None,
        )
        stacked = len(results[0].get("stacked", ())) > 1
        study.finish(
            summarize_results(results),
            device=devices.device,
            facts={**described, "deviation": DEVIATION},
            wall_time=(max if stacked else sum)(result["wall_time"] for result in results),
        )


def study_run(
    folder: str,
    command: str,
    preset: str,
    seeds: Sequence[int],
    settings: Sequence[str] = (),
    *,
    options: Mapping[str, Any],
    share: bool = False,
) -> SweepRun:
    """A study as a run of a sweep, with the digest of its configuration.

    Args:
        folder: The study's folder, relative to that of the sweep.
        command: As in :func:`run_study`, as are the others.
        preset: The configuration.
        seeds: One for each run.
        settings: Changes to the preset, as ``name=value``.
        options: Fields of the job.
        share: Whether studies in the same folder share their stages.
    """
    arguments = {
        "command": command,
        "preset": preset,
        "seeds": list(seeds),
        "settings": list(settings),
        "options": dict(options),
        "share": share,
        # Runs of an earlier meaning of the preset are not taken for runs of this one.
        "config": digest_settings(_configure(find_job(command), preset, settings)),
    }
    return SweepRun(folder, "drpm.experiments.studies:run_study", arguments)


def _configure(kind: type[Job], preset: str, settings: Sequence[str]) -> Any:
    return configs.override(load_preset(type(kind().config), preset), settings)


def _command_line(
    kind: type[Job],
    preset: str,
    settings: Sequence[str],
    options: Mapping[str, Any],
    seeds: Sequence[int],
) -> list[str]:
    """The command that repeats a study's runs."""
    words = ["drpm", kind.command]
    for name, value in options.items():
        if name == "data":
            words.insert(2, str(value))
        elif name == "options":
            words += [word for each in value for word in ("--option", each)]
        else:
            words += [f"--{name.replace('_', '-')}", str(value)]
    words += ["--preset", preset]
    words += [word for setting in settings for word in ("--set", setting)]
    return [*words, "--seeds", ",".join(map(str, seeds))]


def digest_settings(config: Any) -> str:
    """A digest of all hyperparameters: the meaning of a preset's name may change."""
    return hashlib.sha256(configs.dumps(config).encode()).hexdigest()[:16]

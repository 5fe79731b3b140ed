"""A study: one method on one data set, for several seeds, and noise ratios, at once."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from drpm.multitask.config import MultitaskConfig
from drpm.multitask.job import Job, do_jobs, open_data, open_job, stacks
from drpm.training import config as configs
from drpm.training import presets, toml
from drpm.training.devices import connect_one
from drpm.training.runs import RunFolder
from drpm.training.stages import open_run
from drpm.training.studies import check_seeds, check_settings, run_seeds
from drpm.training.summaries import DEVIATION


def run_study(
    folder: Path,
    data: str,
    method: str,
    preset: str,
    seeds: Sequence[int],
    noise: Sequence[float] = (),
    tasks: int | None = None,
    settings: Sequence[str] = (),
    at_once: int | None = None,
    config: str | None = None,
    device: str = "auto",
) -> None:
    """Do a study, or go on with one that was cut off.

    The folder ends up with the runs ``seed-<seed>``, each as ``drpm multitask`` leaves one, and
    with the mean and the deviation of every metric in its own ``result.json``. With noise ratios
    it has a folder ``noise-<ratio>`` like that for each of them.

    Arguments:
        folder: The study's folder.
        data: The data set.
        method: How tasks share the network.
        preset: All other settings.
        seeds: One for each run.
        noise: Noise ratios of ``multimnist``, each with all seeds.
        tasks: How many, where the data leaves that open.
        settings: Changes to the preset, as ``name=value``.
        at_once: How many runs are trained together at most; none for all.
        config: What all settings are known by; refused where they have become others.
        device: Where; no part of what the study is.
    """
    check_seeds(seeds)
    multitask = configs.override(
        presets.load(MultitaskConfig, preset), [*settings, f"method={method}"]
    )
    known = check_settings(multitask, config)
    where = connect_one(replace(multitask.training, device=device)).device
    described: dict[str, Any] = {
        "data": data,
        "method": method,
        "preset": preset,
        "settings": list(settings),
        "config": known,
    }
    described |= {} if tasks is None else {"tasks": tasks}
    described |= {} if at_once is None else {"at_once": at_once}
    command = ["drpm", "multitask", data, "--method", method, "--preset", preset]
    command += [] if tasks is None else ["--tasks", str(tasks)]
    command += [word for setting in settings for word in ("--set", setting)]

    def train(places: Sequence[tuple[Path, float | None]]) -> None:
        """The runs of all seeds for every noise ratio, each with its place."""
        jobs, datas, runs, commands = [], [], [], []
        for place, ratio in places:
            first = Job(data, ratio, tasks, multitask=multitask)
            loaded, content = open_data(first, where)
            first = replace(first, fingerprint=content)
            for seed in seeds:
                training = replace(multitask.training, seed=seed)
                jobs.append(replace(first, multitask=replace(multitask, training=training)))
                datas.append(loaded)
                runs.append(open_job(place / f"seed-{seed}", jobs[-1]))
        for part in stacks(jobs, at_once):
            # Stacked seeds share one stream of noise, so that only all of them repeat one.
            together = dict.fromkeys(job.multitask.training.seed for job in jobs[part])
            for job in jobs[part]:
                noisy = [] if job.noise is None else ["--noise", str(job.noise)]
                commands.append([*command, *noisy, "--seeds", ",".join(map(str, together))])
        do_jobs(jobs, datas, runs, device=where, commands=commands, at_once=at_once)

    if not noise:
        together = method != "gradient" and at_once is None
        run_seeds(
            folder,
            described,
            seeds,
            lambda folders: train([(folder, None)]),
            device=where,
            together=together,
        )
        return
    whole = {**described, "noise": list(noise), "seeds": list(seeds)}
    study = open_run(folder, toml.dumps(whole))
    places = [(folder / f"noise-{ratio}", ratio) for ratio in noise]
    with study.lock():
        for place, ratio in places:
            # Begun before its runs: a study is begun in an empty folder.
            open_run(place, _text(described, ratio, seeds))
        finished = [
            RunFolder(place / f"seed-{seed}").status == "finished"
            for place, _ in places
            for seed in seeds
        ]
        if not all(finished):
            train(places)
        summaries = {}
        for place, ratio in places:
            run_seeds(place, {**described, "noise": ratio}, seeds, lambda _: None, device=where)
            summaries[place.name] = RunFolder(place).result()
        study.finish(
            {name: result["metrics"] for name, result in summaries.items()},
            device=where,
            facts={**whole, "deviation": DEVIATION},
            wall_time=max(result["wall_time"] for result in summaries.values()),
        )


def _text(described: dict[str, Any], ratio: float, seeds: Sequence[int]) -> str:
    """What the study of one noise ratio is, as :func:`run_seeds` writes it."""
    return toml.dumps({**described, "noise": ratio, "seeds": list(seeds)})

"""A study: supervised partitions of one data set, for several seeds at once."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from drpm.data import load
from drpm.data.fingerprints import content_hash
from drpm.supervised.config import SupervisedConfig
from drpm.supervised.job import Job, check_job, do_jobs, find_classes, open_job
from drpm.training import config as configs
from drpm.training import presets
from drpm.training.devices import connect_one
from drpm.training.studies import check_seeds, check_settings, run_seeds


def run_study(
    folder: Path,
    data: str,
    preset: str,
    seeds: Sequence[int],
    settings: Sequence[str] = (),
    config: str | None = None,
    device: str = "auto",
) -> None:
    """Do a study, or go on with one that was cut off.

    The folder ends up with the runs ``seed-<seed>``, each as ``drpm supervised`` leaves one, and
    with the mean and the deviation of every metric in its own ``result.json``.

    Arguments:
        folder: The study's folder.
        data: The data set.
        preset: The settings.
        seeds: They are trained together, and choose the weight of the size term together.
        settings: Changes to the preset, as ``name=value``.
        config: What all settings are known by; refused where they have become others.
        device: Where; no part of what the study is.
    """
    check_seeds(seeds)
    supervised = configs.override(presets.load(SupervisedConfig, preset), settings)
    known = check_settings(supervised, config)
    where = connect_one(replace(supervised.training, device=device)).device
    dataset = load(data, device=where)
    content = content_hash(data, dataset)
    labelled = find_classes(dataset)
    jobs = [
        Job(data, (), content, replace(supervised, training=training))
        for training in (replace(supervised.training, seed=seed) for seed in seeds)
    ]
    check_job(jobs[0], labelled)
    command = ["drpm", "supervised", data, "--preset", preset]
    command += [word for setting in settings for word in ("--set", setting)]

    # Seeds are trained, and choose a weight, together: only all of them repeat one.
    command += ["--seeds", ",".join(map(str, seeds))]

    def train(folders: Sequence[Path]) -> None:
        runs = [open_job(path, job) for path, job in zip(folders, jobs, strict=True)]
        do_jobs(jobs, labelled, runs, commands=[command for _ in seeds])

    described = {
        "data": data,
        "preset": preset,
        "settings": list(settings),
        "config": known,
        **({"content": content} if content else {}),
    }
    run_seeds(folder, described, seeds, train, device=where)

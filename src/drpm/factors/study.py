"""A study: one method on pairs of one kind, for several seeds at once."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from drpm.factors.config import FactorsConfig
from drpm.factors.job import Job, do_jobs, open_job, open_pairs
from drpm.training import config as configs
from drpm.training import presets
from drpm.training.devices import connect_one
from drpm.training.studies import check_seeds, check_settings, run_seeds


def run_study(
    folder: Path,
    data: str,
    shared: str,
    method: str,
    preset: str,
    seeds: Sequence[int],
    settings: Sequence[str] = (),
    angles: int = 40,
    test_pairs: int = 10_000,
    config: str | None = None,
    device: str = "auto",
) -> None:
    """Do a study, or go on with one that was cut off.

    The folder ends up with the runs ``seed-<seed>``, each as ``drpm factors`` leaves one, and with
    the mean and the deviation of every metric in its own ``result.json``.

    Arguments:
        folder: The study's folder.
        data: ``arm`` or ``mpi3d``.
        shared: How many factors pairs share, or ``mixed``.
        method: How the views are brought together.
        preset: All other settings.
        seeds: They are trained together.
        settings: Changes to the preset, as ``name=value``.
        angles: Positions of each joint.
        test_pairs: How many pairs models are judged on.
        config: What all settings are known by; refused where they have become others.
        device: Where; no part of what the study is.
    """
    check_seeds(seeds)
    factors = configs.override(presets.load(FactorsConfig, preset), [*settings, f"method={method}"])
    jobs = [
        Job(
            data,
            shared,
            angles=angles,
            image_size=64,
            test_pairs=test_pairs,
            factors=replace(factors, training=replace(factors.training, seed=seed)),
        )
        for seed in seeds
    ]
    known = check_settings(factors, config)
    where = connect_one(replace(factors.training, device=device)).device
    command = ["drpm", "factors", "--data", data, "--shared", shared, "--method", method]
    command += ["--preset", preset, "--angles", str(angles), "--image-size", "64"]
    command += ["--test-pairs", str(test_pairs)]
    command += [word for setting in settings for word in ("--set", setting)]

    def train(folders: Sequence[Path]) -> None:
        runs = [open_job(path, job) for path, job in zip(folders, jobs, strict=True)]
        # Stacked seeds share one stream of noise, so that only all of them repeat one.
        commands = [[*command, "--seeds", ",".join(map(str, seeds))] for _ in seeds]
        do_jobs(jobs, open_pairs(jobs[0], where), runs, device=where, commands=commands)

    described = {
        "data": data,
        "shared": shared,
        "method": method,
        "preset": preset,
        "settings": list(settings),
        "config": known,
        "angles": angles,
        "test_pairs": test_pairs,
    }
    run_seeds(folder, described, seeds, train, device=where)

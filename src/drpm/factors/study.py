"""A study: several methods on pairs of one kind, for several seeds at once."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from drpm.factors.config import FactorsConfig
from drpm.factors.job import Job, do_jobs, open_job, open_pairs
from drpm.training import config as configs
from drpm.training import presets, toml
from drpm.training.devices import connect
from drpm.training.errors import ConfigError
from drpm.training.runs import RunFolder
from drpm.training.stages import open_stage
from drpm.training.summaries import DEVIATION, summarize


def run_study(
    folder: Path,
    data: str,
    shared: str,
    methods: Sequence[str],
    preset: str,
    seeds: Sequence[int],
    settings: Sequence[str] = (),
    angles: int = 40,
    test_pairs: int = 10_000,
    device: str = "auto",
) -> None:
    """Do a study, or go on with one that was cut off.

    The folder ends up with the runs ``<method>/seed-<seed>``, each as ``drpm factors`` leaves one,
    and with the mean and the deviation of every metric in its own ``result.json``.

    Arguments:
        folder: The study's folder.
        data: ``arm`` or ``mpi3d``.
        shared: How many factors pairs share, or ``mixed``.
        methods: Done in this order.
        preset: The settings of all methods.
        seeds: Those of every method; they are trained together.
        settings: Changes to the preset, as ``name=value``.
        angles: Positions of each joint.
        test_pairs: How many pairs models are judged on.
        device: Where; no part of what the study is.
    """
    if not methods or not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(
            "methods and seeds must be one or more that differ, "
            f"but got {list(methods)} and {list(seeds)}."
        )
    base = configs.override(presets.load(FactorsConfig, preset), settings)
    jobs = {
        method: [
            Job(
                data,
                shared,
                angles=angles,
                test_pairs=test_pairs,
                factors=replace(
                    configs.override(base, [f"method={method}"]),
                    training=replace(base.training, seed=seed),
                ),
            )
            for seed in seeds
        ]
        for method in methods
    }
    where = connect(replace(base.training, device=device)).device
    described = {
        "data": data,
        "shared": shared,
        "methods": list(methods),
        "preset": preset,
        "seeds": list(seeds),
        "settings": list(settings),
        "angles": angles,
        "test_pairs": test_pairs,
    }
    study = open_stage(folder, toml.dumps(described))
    with study.lock():
        pairs = None
        for method, each in jobs.items():
            folders = [folder / method / f"seed-{seed}" for seed in seeds]
            if all(RunFolder(path).status == "finished" for path in folders):
                continue
            # The world is drawn once, and only if somebody looks at it.
            pairs = pairs or open_pairs(each[0], where)
            words = ["drpm", "factors", "--data", data, "--shared", shared, "--method", method]
            words += ["--preset", preset]
            runs = [open_job(path, job) for path, job in zip(folders, each, strict=True)]
            commands = [[*words, "--seeds", str(seed)] for seed in seeds]
            do_jobs(each, pairs, runs, device=where, commands=commands)
        results = {
            method: [RunFolder(folder / method / f"seed-{seed}").result() for seed in seeds]
            for method in methods
        }
        facts = {
            "data": data,
            "shared": shared,
            "seeds": list(seeds),
            "deviation": DEVIATION,
            "seconds": {name: max(x["wall_time"] for x in runs) for name, runs in results.items()},
        }
        summary = {name: _summary(runs) for name, runs in results.items()}
        study.finish(summary, device=where, facts=facts)


def _summary(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and deviation of every metric; none where a seed has no number."""
    summary: dict[str, Any] = {}
    for metric in results[0]["metrics"]:
        values = [result["metrics"][metric] for result in results]
        summary[metric] = None if None in values else summarize(values)._asdict()
    return summary

"""A study: several methods on one data set, for several seeds at once.

All seeds of a method are trained together, which on a GPU costs less than one after the other, and
methods that start from the same pretraining share it: the first one makes it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from drpm.clustering.config import ClusteringConfig
from drpm.clustering.job import PRETRAINING, STAGES, Job, check_job, copy_whole, do_jobs, open_job
from drpm.data import load
from drpm.data.types import Dataset
from drpm.training import config as configs
from drpm.training import presets as shipped
from drpm.training import toml
from drpm.training.devices import connect
from drpm.training.errors import ConfigError, RunError
from drpm.training.runs import CONFIG, METRICS, RunFolder
from drpm.training.summaries import DEVIATION, summarize


def run_study(
    folder: Path,
    data: str,
    presets: Mapping[str, str],
    seeds: Sequence[int],
    settings: Sequence[str] = (),
    device: str = "auto",
    options: Mapping[str, Any] | None = None,
) -> None:
    """Do a study, or go on with one that was cut off.

    The folder ends up with the runs ``<variant>/seed-<seed>``, each as ``drpm cluster`` leaves one,
    and with the mean and the deviation of every metric in its own ``result.json``.

    Arguments:
        folder: The study's folder.
        data: The data set.
        presets: From the name of a variant to its settings; done in this order.
        seeds: Those of every variant; they are trained together.
        settings: Changes to all presets, as ``name=value``.
        device: Where; no part of what the study is.
        options: Those of the data.
    """
    if not presets:
        raise ConfigError("presets must name one variant or more, but got none.")
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds must be one or more that differ, but got {list(seeds)}.")
    found = {
        name: configs.override(shipped.load(ClusteringConfig, preset), settings)
        for name, preset in presets.items()
    }
    where = connect(replace(next(iter(found.values())).training, device=device)).device
    options = dict(options or {})
    dataset = load(data, device=where, **options)
    for config in found.values():
        check_job(Job(data, clustering=config), dataset)
    told: dict[str, Any] = {"data": data, "seeds": list(seeds), "settings": list(settings)}
    told |= {"presets": dict(presets)} | ({"options": options} if options else {})
    study = _open(folder, toml.dumps(told))
    with study.lock():
        words = _words(options)
        variants = _Variants(study.path, data, words, found, seeds)
        variants.gather_times(study)
        _ = study.wall_time
        for name, preset in presets.items():
            if not variants.is_finished(name):
                command = ["drpm", "cluster", data, "--preset", preset]
                command += [word for option in words for word in ("--option", option)]
                command += [word for setting in settings for word in ("--set", setting)]
                _do_variant(variants, name, dataset, command)
                variants.gather_times(study)
        facts = {
            "data": data,
            "seeds": list(seeds),
            "deviation": DEVIATION,
            "seconds": {name: variants.seconds(name) for name in found},
            "pretraining_by": {name: variants.pretrained_by(name) for name in found},
        }
        study.finish({name: variants.summary(name) for name in found}, device=where, facts=facts)


def _words(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Options of the data as the command line has them."""
    return tuple(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in options.items()
    )


def _open(folder: Path, text: str) -> RunFolder:
    if not (folder / CONFIG).exists():
        return RunFolder.create(folder, text)
    study = RunFolder.open(folder)
    if study.config_text() != text:
        raise RunError(f"The study in {folder} has other settings; choose another folder.")
    return study


def _do_variant(variants: "_Variants", name: str, dataset: Dataset, command: Sequence[str]) -> None:
    """All seeds of a variant, from the pretraining of an earlier one where there is such."""
    jobs, folders = variants.jobs(name), variants.folders(name)
    # Begun before anything is copied to them: a run is begun in an empty folder.
    runs = [open_job(folders[seed], job) for seed, job in jobs.items()]
    maker = variants.pretrained_by(name)
    if maker is not None:
        for seed, folder in variants.folders(maker).items():
            copy_whole(folder / PRETRAINING, folders[seed] / PRETRAINING)
    commands = [[*command, "--seeds", str(seed)] for seed in jobs]
    do_jobs(list(jobs.values()), dataset, runs, commands=commands)


class _Variants:
    """What the folder of a study holds of its variants.

    Arguments:
        folder: The study's folder.
        data: The data set.
        options: Those of the data, as ``name=value``.
        found: The settings of every variant.
        seeds: Those of every variant.
    """

    def __init__(
        self,
        folder: Path,
        data: str,
        options: tuple[str, ...],
        found: Mapping[str, ClusteringConfig],
        seeds: Sequence[int],
    ) -> None:
        self.folder, self.data, self.options = folder, data, options
        self.configs, self.seeds = found, seeds

    def jobs(self, name: str) -> dict[int, Job]:
        """From a seed to what is done for it."""
        config = self.configs[name]
        return {
            seed: Job(
                self.data,
                self.options,
                clustering=replace(config, training=replace(config.training, seed=seed)),
            )
            for seed in self.seeds
        }

    def folders(self, name: str) -> dict[int, Path]:
        """From a seed to the folder of its run."""
        return {seed: self.folder / name / f"seed-{seed}" for seed in self.seeds}

    def runs(self, name: str) -> list[RunFolder]:
        return [RunFolder(path) for path in self.folders(name).values()]

    def is_finished(self, name: str) -> bool:
        return all(run.status == "finished" for run in self.runs(name))

    def pretrained_by(self, name: str) -> str | None:
        """The variant whose pretraining a variant starts from: the first with the same one."""
        start = _start(self.configs[name])
        if start is None:
            return None
        return next(other for other, config in self.configs.items() if _start(config) == start)

    def summary(self, name: str) -> dict[str, Any]:
        """Mean and deviation of every metric; none where a seed has no finite number."""
        results = [run.result()["metrics"] for run in self.runs(name)]
        summary: dict[str, Any] = {}
        for metric in results[0]:
            values = [result[metric] for result in results]
            summary[metric] = None if None in values else summarize(values)._asdict()
        return summary

    def seconds(self, name: str) -> dict[str, float]:
        """What a variant took, pretraining included even where it was another's."""
        stages = {stage: self._stage_seconds(name, stage) for stage in STAGES}
        whole = max(run.result()["wall_time"] for run in self.runs(name))
        return {**{stage: x for stage, x in stages.items() if x}, "wall_time": whole}

    def _stage_seconds(self, name: str, stage: str) -> float:
        times = [
            record["wall_time"]
            for run in self.runs(name)
            for record in RunFolder(run.path / stage).metrics()
        ]
        return max(times, default=0.0)

    def gather_times(self, study: RunFolder) -> None:
        """What was done so far as the study's own metrics, so that its time goes on from there."""
        lines, total = [], 0.0
        for name in self.configs:
            if self.is_finished(name):
                spent = self.seconds(name)["wall_time"]
            else:
                spent = sum(self._stage_seconds(name, stage) for stage in STAGES)
            if self.pretrained_by(name) != name:
                spent -= self._stage_seconds(name, PRETRAINING)
            total += spent
            if spent:
                lines.append({"variant": name, "wall_time": round(total, 3)})
        if lines:
            study.write_atomic(METRICS, "".join(json.dumps(line) + "\n" for line in lines))


def _start(config: ClusteringConfig) -> Any:
    """What the pretraining of a variant depends on, besides the seed; none without pretraining."""
    if config.method == "gmm":
        return None
    return config.clusters, config.network, config.pretraining

"""A study: one way to cluster a data set, for several seeds at once.

Studies that start from the same pretraining may share it: the first one that needs it makes it,
the others wait for it and take it over.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from drpm.clustering.config import ClusteringConfig
from drpm.clustering.job import (
    PRETRAINING,
    Job,
    as_asked,
    check_job,
    copy_whole,
    do_jobs,
    open_job,
)
from drpm.clustering.models import choose_likelihood
from drpm.clustering.pipeline import describe_pretraining, pretrain
from drpm.data import load
from drpm.data.fingerprints import content_hash
from drpm.data.types import Dataset
from drpm.training import config as configs
from drpm.training import presets
from drpm.training.devices import connect
from drpm.training.errors import InUse
from drpm.training.runs import RunFolder
from drpm.training.studies import check_seeds, check_settings, run_seeds

# Seconds from one look at a pretraining that another study is making to the next.
_POLL: Final = 0.5


def run_study(
    folder: Path,
    data: str,
    preset: str,
    seeds: Sequence[int],
    settings: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    share_pretraining: bool = False,
    config: str | None = None,
    device: str = "auto",
) -> None:
    """Do a study, or go on with one that was cut off.

    The folder ends up with the runs ``seed-<seed>``, each as ``drpm cluster`` leaves one, and with
    the mean and the deviation of every metric in its own ``result.json``.

    Arguments:
        folder: The study's folder.
        data: The data set.
        preset: The settings.
        seeds: They are trained together.
        settings: Changes to the preset, as ``name=value``.
        options: Those of the data.
        share_pretraining: Whether pretraining is looked for, and left, in the folder that holds
            the study's, for other studies there; no part of what the study is.
        config: What all settings are known by; refused where they have become others.
        device: Where; no part of what the study is.
    """
    check_seeds(seeds)
    clustering = configs.override(presets.load(ClusteringConfig, preset), settings)
    known = check_settings(clustering, config)
    where = connect(replace(clustering.training, device=device)).device
    options = dict(options or {})
    dataset = load(data, device=where, **options)
    check_job(Job(data, clustering=clustering), dataset)
    content = content_hash(data, dataset)
    words = _words(options)
    command = ["drpm", "cluster", data, "--preset", preset]
    command += [word for option in words for word in ("--option", option)]
    command += [word for setting in settings for word in ("--set", setting)]
    jobs = [
        Job(data, words, content, clustering=replace(clustering, training=training))
        for training in (replace(clustering.training, seed=seed) for seed in seeds)
    ]

    def train(folders: Sequence[Path]) -> None:
        # Begun before anything is copied to them: a run is begun in an empty folder.
        runs = [open_job(path, job) for path, job in zip(folders, jobs, strict=True)]
        if share_pretraining and clustering.method != "gmm":
            _take_pretraining(folder.parent, jobs, as_asked(jobs[0], dataset), folders)
        # Stacked seeds share one stream of noise, so that only all of them repeat one.
        stacks = [[seed] if clustering.method == "gmm" else seeds for seed in seeds]
        commands = [[*command, "--seeds", ",".join(map(str, stack))] for stack in stacks]
        do_jobs(jobs, dataset, runs, commands=commands)

    described: dict[str, Any] = {"data": data, "preset": preset, "settings": list(settings)}
    described |= {"config": known} | ({"content": content} if content else {})
    described |= {"options": options} if options else {}
    run_seeds(folder, described, seeds, train, device=where)


def _words(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Options of the data as the command line has them."""
    return tuple(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in options.items()
    )


def _take_pretraining(
    place: Path, jobs: Sequence[Job], data: Dataset, folders: Sequence[Path]
) -> None:
    """Copy a shared pretraining to runs; it is made if there is none."""
    if all((folder / PRETRAINING).exists() for folder in folders):
        return
    config, seeds = jobs[0].clustering, [job.clustering.training.seed for job in jobs]
    rows = data.train.inputs.flatten(1)
    likelihood = choose_likelihood(rows, config.likelihood)
    # Known by all it depends on: of studies in one folder not all need have the same.
    text = json.dumps([jobs[0].data, jobs[0].options, jobs[0].fingerprint])
    text += "".join(describe_pretraining(config, seed, likelihood) for seed in seeds)
    shared = place / f"{PRETRAINING}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    shared.mkdir(exist_ok=True)
    makers = [shared / f"seed-{seed}" for seed in seeds]
    with _turn(RunFolder(shared)):
        pretrain(rows, data.input_shape, config, makers, seeds=seeds)
    for maker, folder in zip(makers, folders, strict=True):
        copy_whole(maker / PRETRAINING, folder / PRETRAINING)


@contextmanager
def _turn(folder: RunFolder) -> Iterator[None]:
    """A folder's lock, waited for."""
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(folder.lock())
                break
            except InUse:
                time.sleep(_POLL)
        yield

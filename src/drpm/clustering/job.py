"""One clustering of a data set, with everything a person wants to see of it, in a folder."""

import csv
import io
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from drpm.clustering.config import ClusteringConfig, Method
from drpm.clustering.drawn import draw_arrays, unstandardiser
from drpm.clustering.estimators import estimator_of
from drpm.clustering.examples import images_behind
from drpm.clustering.fitted import FittedClustering
from drpm.clustering.metrics import clustering_scores
from drpm.clustering.models import require_chances
from drpm.clustering.pipeline import fit_clusterings
from drpm.clustering.views import choose_view
from drpm.data.preprocessing import class_labels, scale_of
from drpm.data.registry import file_names
from drpm.data.types import Dataset, Split
from drpm.training import config as configs
from drpm.training.devices import Devices
from drpm.training.errors import ConfigError, RunError
from drpm.training.loop import Progress
from drpm.training.runs import ARRAYS, CHECKPOINTS, METRICS, RunFolder
from drpm.training.stages import ProgressFactory, open_run

LABELS = "labels.csv"

PRETRAINING = "pretraining"
STAGES = (PRETRAINING, "training")
_OTHERS = "others"

NAMES = {
    "drpm-vc": "DRPM-VC",
    "vade": "VaDE",
    "latent-gmm": "Latent GMM",
    "gmm": "GMM",
    "contrastive-head": "Contrastive head",
    "k-means": "k-means",
}


@dataclass(frozen=True)
class Job:
    """What is needed to do it again.

    Arguments:
        data: The name of a data set, or a file.
        options: Further options of the data, as ``name=value``.
        fingerprint: What the data is known by, where its name says too little.
        compare: Whether the other methods are run as well, from the same start.
        clustering: The settings.
    """

    data: str = "digits"
    options: tuple[str, ...] = ()
    fingerprint: str = ""
    compare: bool = False
    clustering: ClusteringConfig = field(default_factory=ClusteringConfig)


SCORES = {"accuracy": "ACC", "nmi": "NMI", "ari": "ARI"}

# Further outside [0, 1] than this is no rounding of standardised numbers.
_ROUNDING = 1e-5

_AT_ONCE = 8192  # rows in double precision


def check_job(job: Job, data: Dataset) -> None:
    """Refuse settings that cannot be met with the data, before anything is written."""
    config = job.clustering
    if config.clusters > len(data.train):
        raise ConfigError(
            f"clusters must be at most the number of examples, {len(data.train)}, "
            f"but got {config.clusters}."
        )
    if config.pretraining.kind == "contrastive" and (config.method != "gmm" or job.compare):
        choose_view(config.pretraining.views, data.input_shape)
    as_asked(job, data)


def as_asked(job: Job, data: Dataset) -> Dataset:
    """The data as the likelihood wants them: a Bernoulli's are not standardised.

    Arguments:
        job: What is done with them.
        data: As they were loaded.
    """
    models = job.clustering.method != "gmm" or job.compare
    if job.clustering.likelihood != "bernoulli" or not models:
        return data
    undo = unstandardiser(data)

    def restored(split: Split) -> Split:
        inputs = undo(split.inputs).to(split.inputs)
        if data.preprocessing:
            near = inputs.clamp(0, 1)
            inputs = torch.where((inputs - near).abs() < _ROUNDING, near, inputs)
        require_chances(data.name, inputs)
        return replace(split, inputs=inputs)

    train = restored(data.train)
    test = train if data.test is data.train else restored(data.test)
    return replace(data, train=train, test=test, preprocessing={})


def open_job(
    folder: Path, job: Job, *, overwrite: bool = False, devices: Devices | None = None
) -> RunFolder:
    """The folder of a job, new if there is none; one with other settings is refused.

    With several devices all processes call this, and the first one makes the folder.
    """
    made = (*STAGES, _OTHERS, LABELS)
    return open_run(folder, configs.dumps(job), overwrite=overwrite, made=made, devices=devices)


def do_job(
    job: Job,
    data: Dataset,
    run: RunFolder,
    *,
    command: Sequence[str] = (),
    progress: ProgressFactory = lambda stage: None,
) -> dict[str, Any]:
    """Cluster, judge on the test part where there are labels, and leave all of it in the folder.

    Returns:
        The result as the folder's ``result.json`` has it.
    """
    (result,) = do_jobs([job], data, [run], commands=[command], progress=progress)
    return result


def do_jobs(
    jobs: Sequence[Job],
    data: Dataset,
    runs: Sequence[RunFolder],
    *,
    commands: Sequence[Sequence[str]],
    progress: ProgressFactory = lambda stage: None,
    devices: Devices | None = None,
) -> list[dict[str, Any]]:
    """Do jobs that differ in their seeds alone, trained together where there are several.

    Stacked seeds share one stream of noise, so their numbers are not those of single runs; the
    results say under ``stacked`` which seeds were trained together. The time that each of them
    has is that of the whole stack.

    Arguments:
        jobs: One for each seed.
        data: What is clustered.
        runs: The folder of every job. One that is finished stays as it is.
        commands: What does each of them again.
        progress: From the name of a stage to whoever shows how far it is.
        devices: With several, all processes call this, and the first one writes.

    Returns:
        The results as the folders' ``result.json`` have them.
    """
    devices = devices or Devices(data.train.inputs.device)
    # They differ in nothing but their seeds.
    check_job(jobs[0], data)
    data = as_asked(jobs[0], data)
    files = file_names(jobs[0].data, len(data.train))
    seeds = [job.clustering.training.seed for job in jobs]
    rows = data.train.inputs.flatten(1)
    # Held from the start, so that nobody overwrites what is being made, and the time is all of it.
    with ExitStack() as held:
        for run in runs if devices.is_first else ():
            held.enter_context(run.lock())
            _gather_metrics(run)  # which the clock goes by
            _ = run.wall_time
        found = fit_clusterings(
            rows,
            data.input_shape,
            jobs[0].clustering,
            [run.path for run in runs],
            seeds=seeds,
            progress=progress,
            devices=devices,
        )
        for fitted, run in zip(found, runs, strict=True):
            _require_finite(fitted, run)
        for job, fitted, run, command in zip(jobs, found, runs, commands, strict=True):
            if devices.is_first and run.status != "finished":
                # Mixtures of the rows are fitted one after the other, each with its own noise.
                alone = job.clustering.method == "gmm"
                bound = "log-density" if alone else "ELBO, Gaussian mixture"
                facts = {
                    "command": list(command),
                    "method": NAMES[job.clustering.method],
                    "about": _about(job, data),
                    "names": {**SCORES, "lower_bound": bound},
                    "data": _describe(data),
                    "stacked": [job.clustering.training.seed] if alone else seeds,
                }
                shift, scale = scale_of(data)
                fitted = replace(fitted, config=job.clustering, shift=shift, scale=scale)
                _conclude(job, data, run, fitted, files, facts, progress)
    devices.barrier()
    return [run.result() for run in runs]


def _conclude(
    job: Job,
    data: Dataset,
    run: RunFolder,
    fitted: FittedClustering,
    files: Sequence[str],
    facts: dict[str, Any],
    progress: ProgressFactory,
) -> None:
    """Judge a clustering, and leave it in the folder."""
    seed, method = job.clustering.training.seed, job.clustering.method
    judge = _Judge(data)
    metrics = judge(fitted.predict)
    comparison = {NAMES[method]: metrics} if metrics else {}
    if job.compare and metrics:
        comparison |= _others(job, data, run, judge, progress)
    _save(fitted, data, run, files)
    images = images_behind(job.data, data)
    run.write_atomic(ARRAYS, draw_arrays(fitted, data, seed, images))
    _gather_metrics(run)
    # Without labels there is nothing to compare with, but the likelihood's bound.
    bound = fitted.lower_bounds(data.test.inputs.flatten(1)).mean().item()
    run.finish(
        {**metrics, "lower_bound": bound},
        seed=seed,
        device=data.train.inputs.device,
        facts={"comparison": comparison, **facts},
    )


def _require_finite(fitted: FittedClustering, run: RunFolder) -> None:
    """Refuse what a last step, after which there was no loss any more, may have ruined."""
    tensors = [*fitted.mixture]
    for module in (fitted.autoencoder, fitted.head):
        tensors += [] if module is None else module.state_dict().values()
    if not all(x.isfinite().all() for x in tensors):
        raise RunError(
            f"The model of the run {run.path} has numbers that are not finite; overwrite it with "
            "a smaller learning rate."
        )


class _Judge:
    """Scores on the test part; nothing where there are no labels."""

    def __init__(self, data: Dataset) -> None:
        self.rows = data.test.inputs.flatten(1)
        self.labels = class_labels(data, data.test)

    def __call__(self, predict: Callable[[Tensor], Any]) -> dict[str, float]:
        if self.labels is None:
            return {}
        return dict(clustering_scores(self.labels, predict(self.rows))._asdict())


def _others(
    job: Job, data: Dataset, run: RunFolder, judge: _Judge, progress: ProgressFactory
) -> dict[str, dict[str, float]]:
    """All other methods from the same pretraining, and k-means on the rows."""
    from sklearn.cluster import KMeans

    config, rows = job.clustering, data.train.inputs.flatten(1)
    found = {}
    pretrained = run.path / PRETRAINING
    for method in get_args(Method):
        if method == config.method or (
            method == "contrastive-head" and config.pretraining.kind != "contrastive"
        ):
            continue
        folder = run.path / _OTHERS / method
        if method != "gmm":
            if pretrained.exists():
                copy_whole(pretrained, folder / PRETRAINING)
            # A mixture of the rows has none; then the first of the others is where it begins.
            else:
                pretrained = folder / PRETRAINING
        other = replace(config, method=method)
        if method == "vade":
            # A short training does not recover from variances that start as large as the means.
            other = replace(other, freeze_encoder=False, copy_mean_head=False)
        (fitted,) = fit_clusterings(
            rows,
            data.input_shape,
            other,
            [folder],
            seeds=[config.training.seed],
            progress=partial(_of_method, progress, NAMES[method]),
        )
        found[NAMES[method]] = judge(fitted.predict)
    means = KMeans(config.clusters, n_init=10, random_state=config.training.seed % 2**32)
    means.fit(rows.double().cpu().numpy())
    found[NAMES["k-means"]] = judge(lambda rows: means.predict(rows.double().cpu().numpy()))
    return found


def copy_whole(source: Path, target: Path) -> None:
    """Copy a finished stage unless it is there; it appears as a whole, even if this is killed.

    Its checkpoints, which are large and of no more use, stay behind.
    """
    if target.exists() or target == source:
        return
    half = target.with_name(f".{target.name}.tmp")
    if half.exists():
        shutil.rmtree(half)
    shutil.copytree(source, half, ignore=shutil.ignore_patterns(CHECKPOINTS))
    half.rename(target)


def _of_method(progress: ProgressFactory, method: str, stage: str) -> Progress | None:
    return progress(f"{method}, {stage}")


def _save(fitted: FittedClustering, data: Dataset, run: RunFolder, files: Sequence[str]) -> None:
    """Write the model, and what it says of every example."""
    splits = {"train": data.train}
    if data.test is not data.train:
        splits["test"] = data.test
    rows = {name: split.inputs.flatten(1) for name, split in splits.items()}
    # Names that a table did not have are not asked of those who bring new rows.
    given = tuple(f"column {number + 1}" for number in range(len(data.columns)))
    estimator = estimator_of(fitted, () if data.columns == given else data.columns)
    if estimator is None:
        chances = {name: fitted.chances(part) for name, part in rows.items()}
        fitted.save(run.model_dir)
    else:
        # By what is saved, so that it says the same when it is read again.
        place = data.train.inputs.device
        model = estimator.model_.to(place)

        def judge(some: Tensor) -> Tensor:
            return model.chances(some.to(place).double(), sampled=False).cpu()

        chances = {
            name: torch.cat([judge(some) for some in part.split(_AT_ONCE)])
            for name, part in rows.items()
        }
        estimator.labels_ = chances["train"].argmax(-1).numpy()
        estimator.save(run.model_dir)
    run.write_atomic(LABELS, _labels(chances, files))


def _labels(chances: Mapping[str, Tensor], files: Sequence[str]) -> str:
    """Every example's cluster and how sure that is, as a csv file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    header = ["split", "index", "cluster", "confidence"]
    writer.writerow([*header, "file"] if files else header)
    for name, part in chances.items():
        confidence, cluster = part.max(-1)
        for i, (k, c) in enumerate(zip(cluster.tolist(), confidence.tolist(), strict=True)):
            writer.writerow([name, i, k, f"{c:.6g}", *files[i : i + 1]])
    return text.getvalue()


def _about(job: Job, data: Dataset) -> str:
    """What the scores are of."""
    part = "all examples, none of which is kept apart for a test"
    if data.test is not data.train:
        part = "the test part"
    sentences = [f"Scores are those of {part}, after the last epoch."]
    if job.clustering.method == "vade":
        sentences.append(
            "VaDE is judged by a draw of every code, as in the paper; labels.csv goes by its mean."
        )
    return " ".join(sentences)


def _gather_metrics(run: RunFolder) -> None:
    """The stages' metrics as the run's own: each line with its stage, the time going on."""
    lines, before = [], 0.0
    for stage in STAGES:
        folder = run.path / stage
        if not (folder / "config.toml").exists():
            continue
        after = before
        for record in RunFolder.open(folder).metrics():
            after = before + record.get("wall_time", 0.0)
            lines.append({**record, "stage": stage, "wall_time": round(after, 3)})
        before = after
    if lines:
        run.write_atomic(METRICS, "".join(json.dumps(line) + "\n" for line in lines))


def _describe(data: Dataset) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": data.name, "examples": len(data.train)}
    if len(data.input_shape) == 1:
        facts["columns"] = data.input_shape[0]
    else:
        facts["shape"] = " x ".join(map(str, data.input_shape))
    if data.test is not data.train:
        facts["test examples"] = len(data.test)
    return facts

"""One clustering of a data set, with everything a person wants to see of it, in a folder."""

import csv
import io
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from drpm.clustering.config import ClusteringConfig, Method
from drpm.clustering.fitted import FittedClustering
from drpm.clustering.metrics import clustering_scores
from drpm.clustering.pipeline import ProgressFactory, fit_clusterings
from drpm.data.types import Dataset, Split
from drpm.training import config as configs
from drpm.training.errors import RunError
from drpm.training.runs import ARRAYS, RunFolder

LABELS = "labels.csv"

# How much of everything a page shows.
_SAMPLES = 10
_PARTITION = 128
_POINTS = 4000

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
        compare: Whether the other methods are run as well, from the same start.
        clustering: The settings.
    """

    data: str = "digits"
    options: tuple[str, ...] = ()
    compare: bool = False
    clustering: ClusteringConfig = field(default_factory=ClusteringConfig)


def open_job(folder: Path, job: Job, *, overwrite: bool = False) -> RunFolder:
    """The folder of a job, new if there is none; one with other settings is refused."""
    text = configs.dumps(job)
    if overwrite or not (folder / "config.toml").exists():
        run = RunFolder.create(folder, text, overwrite=overwrite)
        for stage in ("pretraining", "training", "others"):
            shutil.rmtree(folder / stage, ignore_errors=True)
        return run
    run = RunFolder.open(folder)
    if run.config_text() != text:
        raise RunError(
            f"The run in {folder} has other settings; choose another folder, or overwrite it."
        )
    return run


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
    config = job.clustering
    seed, device = config.training.seed, data.train.inputs.device
    rows = data.train.inputs.flatten(1)
    (fitted,) = fit_clusterings(
        rows, data.input_shape, config, [run.path], seeds=[seed], progress=progress
    )
    judge = _Judge(data)
    metrics = judge(fitted.predict)
    comparison = {NAMES[config.method]: metrics} if metrics else {}
    if job.compare and metrics:
        comparison |= _others(job, data, run, judge, progress)
    with run.lock():
        fitted.save(run.model_dir)
        run.write_atomic(LABELS, _labels(fitted, data))
        run.write_atomic(ARRAYS, _arrays(fitted, data, seed))
        _gather_metrics(run)
        facts = {"comparison": comparison, "command": list(command), "data": _describe(data)}
        # Without labels there is nothing to compare with, but the likelihood's bound.
        bound = fitted.lower_bounds(data.test.inputs.flatten(1)).mean().item()
        run.finish({**metrics, "lower_bound": bound}, seed=seed, device=device, facts=facts)
    return run.result()


class _Judge:
    """Scores on the test part; nothing where there are no labels."""

    def __init__(self, data: Dataset) -> None:
        self.rows = data.test.inputs.flatten(1)
        self.labels = class_labels(data, data.test)

    def __call__(self, predict: Callable[[Tensor], Any]) -> dict[str, float]:
        if self.labels is None:
            return {}
        return dict(clustering_scores(self.labels, predict(self.rows))._asdict())


def class_labels(data: Dataset, split: Split) -> Tensor | None:
    """The classes of a split, if it has any: those called ``label``, or else the first."""
    found = {name: x for name, x in split.targets.items() if name in data.classes}
    if "label" in split.targets:
        return split.targets["label"]
    return next(iter(found.values()), None)


def _others(
    job: Job, data: Dataset, run: RunFolder, judge: _Judge, progress: ProgressFactory
) -> dict[str, dict[str, float]]:
    """All other methods from the same pretraining, and k-means on the rows."""
    from sklearn.cluster import KMeans

    config, rows = job.clustering, data.train.inputs.flatten(1)
    found = {}
    for method in get_args(Method):
        if method == config.method or (
            method == "contrastive-head" and config.pretraining.kind != "contrastive"
        ):
            continue
        folder = run.path / "others" / method
        pretrained = run.path / "pretraining"
        if pretrained.exists() and not (folder / "pretraining").exists():
            shutil.copytree(pretrained, folder / "pretraining")
        other = replace(config, method=method)
        if method == "vade":
            other = replace(other, freeze_encoder=False)
        (fitted,) = fit_clusterings(
            rows,
            data.input_shape,
            other,
            [folder],
            seeds=[config.training.seed],
            progress=progress,
        )
        found[NAMES[method]] = judge(fitted.predict)
    means = KMeans(config.clusters, n_init=10, random_state=config.training.seed % 2**32)
    means.fit(rows.double().cpu().numpy())
    found[NAMES["k-means"]] = judge(lambda rows: means.predict(rows.double().cpu().numpy()))
    return found


def _labels(fitted: FittedClustering, data: Dataset) -> str:
    """Every example's cluster and how sure that is, as a csv file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["split", "index", "cluster", "confidence"])
    splits = [("train", data.train)]
    if data.test is not data.train:
        splits.append(("test", data.test))
    for name, split in splits:
        confidence, cluster = fitted.chances(split.inputs.flatten(1)).max(-1)
        pairs = zip(cluster.tolist(), confidence.tolist(), strict=True)
        writer.writerows([name, i, k, f"{c:.6g}"] for i, (k, c) in enumerate(pairs))
    return text.getvalue()


def _arrays(fitted: FittedClustering, data: Dataset, seed: int) -> bytes:
    """What the figures are drawn from."""
    device, clusters = fitted.device, fitted.clusters
    generator = torch.Generator(device).manual_seed(seed)
    undo = _unstandardise(data)
    each = torch.arange(clusters, device=device).repeat_interleave(_SAMPLES)
    samples = undo(fitted.sample(each, generator)).reshape(clusters, _SAMPLES, *data.input_shape)
    members = fitted.draw_partition(_PARTITION, generator)
    order = members.argsort()
    points = undo(fitted.sample(members, generator)).reshape(-1, *data.input_shape)
    rows = data.test.inputs.flatten(1)[:_POINTS]
    codes = fitted.embed(rows).double()
    chosen = fitted.predict(rows)
    arrays = {
        "samples": _squeeze(samples),
        "partition_points": _squeeze(points[order]),
        "partition_clusters": members[order],
        "latent": _flatten_map(codes),
        "latent_clusters": chosen,
        "sizes": torch.bincount(fitted.predict(data.train.inputs.flatten(1)), minlength=clusters),
    }
    labels = class_labels(data, data.test)
    if labels is not None:
        everyone = fitted.predict(data.test.inputs.flatten(1))
        arrays["latent_labels"] = labels[:_POINTS]
        classes = int(labels.max()) + 1
        confusion = torch.zeros(classes, clusters, dtype=torch.int64)
        confusion.index_put_(
            (labels.cpu(), everyone.cpu()), torch.ones(len(labels), dtype=torch.int64), True
        )
        arrays["confusion"] = confusion
    plain = {name: x.detach().cpu().numpy() for name, x in arrays.items()}
    names = data.classes.get("label") or next(iter(data.classes.values()), ())
    if "confusion" in plain and len(names) == len(plain["confusion"]):
        plain["label_names"] = np.array(names)
    if data.columns:
        plain["column_names"] = np.array(data.columns)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **plain)  # type: ignore[arg-type]
    return buffer.getvalue()


def _unstandardise(data: Dataset) -> Callable[[Tensor], Tensor]:
    mean, std = data.preprocessing.get("mean"), data.preprocessing.get("std")
    if mean is None or std is None:
        return lambda rows: rows
    return lambda rows: rows * std.to(rows) + mean.to(rows)


def _squeeze(images: Tensor) -> Tensor:
    """Grey images without their one channel."""
    return images.squeeze(-3) if images.dim() >= 4 and images.shape[-3] == 1 else images


def _flatten_map(codes: Tensor) -> Tensor:
    """Codes in the plane: their two main directions."""
    centred = codes - codes.mean(0)
    if centred.shape[-1] < 2:
        return torch.cat([centred, torch.zeros_like(centred)], -1)[:, :2]
    directions: Tensor = torch.linalg.svd(centred, full_matrices=False).Vh
    return centred @ directions[:2].mT


def _gather_metrics(run: RunFolder) -> None:
    """The stages' metrics as the run's own, each line with its stage."""
    if run.metrics_path.exists():
        run.metrics_path.unlink()
    for stage in ("pretraining", "training"):
        folder = run.path / stage
        if (folder / "config.toml").exists():
            for record in RunFolder.open(folder).metrics():
                run.log({**record, "stage": stage})


def _describe(data: Dataset) -> dict[str, Any]:
    shape = " x ".join(map(str, data.input_shape))
    facts: dict[str, Any] = {"name": data.name, "examples": len(data.train), "shape": shape}
    if data.test is not data.train:
        facts["test examples"] = len(data.test)
    return facts

"""Clustering as an experiment: training, scores, labels and the data of the figures."""

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Final, get_args

import pandas as pd
import torch
from sklearn.cluster import KMeans
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, pad

from drpm.clustering import pipeline
from drpm.clustering.config import ClusteringJob, Method
from drpm.clustering.fitted import FittedClustering, assign, check_limits, clustering_scores
from drpm.clustering.models import BERNOULLI, choose_likelihood
from drpm.clustering.pretraining import choose_view
from drpm.data import DATASETS, load
from drpm.data.catalogue import content_hash, file_names
from drpm.data.types import Dataset, class_labels, class_names, scale_of
from drpm.distributions.validation import require_count
from drpm.experiments import Evaluation, Experiment, TextTable, parse_options, summarize
from drpm.report.plots import pack_arrays
from drpm.training import config as configs
from drpm.training.config import require_unit_interval
from drpm.training.devices import Devices
from drpm.training.errors import ConfigError
from drpm.training.loop import ProgressFactory
from drpm.training.runs import CHECKPOINTS, LABELS, RunFolder

PRETRAINING: Final = "pretraining"
STAGES: Final = (PRETRAINING, "training")
OTHERS: Final = "others"
NAMES: Final = {
    "drpm-vc": "DRPM-VC",
    "vade": "VaDE",
    "latent-gmm": "Latent GMM",
    "gmm": "GMM",
    "contrastive-head": "Contrastive head",
    "k-means": "k-means",
}
SCORES: Final = {"accuracy": "ACC", "nmi": "NMI", "ari": "ARI"}

# In the figures.
SAMPLES: Final = 32  # per cluster
ROW_SAMPLES: Final = 100  # per cluster of a table, for quantiles
COLUMNS: Final = 40  # of wide tables
PARTITION: Final = 128  # rows
POINTS: Final = 4000
THUMBNAIL: Final = 32  # pixels
THUMBNAILS: Final = 3_000_000  # bytes


class Clustering(Experiment[ClusteringJob, Dataset, FittedClustering]):
    """DRPM-VC and its baselines."""

    scores: ClassVar[Mapping[str, str]] = SCORES
    outputs: ClassVar[tuple[str, ...]] = (
        *STAGES,
        pipeline.STARTS,
        OTHERS,
        pipeline.CANDIDATES,
        LABELS,
    )

    def load(self, job: ClusteringJob, device: torch.device) -> Dataset:
        options = parse_options(job.options)
        if job.needs_raw_values and job.data not in DATASETS:
            options["standardize"] = False
        return load(job.data, device=device, **options)

    def fingerprint(self, job: ClusteringJob, data: Dataset) -> str:
        return content_hash(job.data, data)

    def complete(
        self, job: ClusteringJob, data: Dataset, given: Mapping[str, bool]
    ) -> ClusteringJob:
        classes = len(class_names(data))
        return job if "clusters" in given or not classes else job.with_config(clusters=classes)

    def check(self, job: ClusteringJob, data: Dataset) -> list[str]:
        config, examples = job.clustering, len(data.train)
        most, which = examples, "the number of examples"
        if job.candidates is not None:
            most, which = examples // 2, "half of the examples"
        if config.clusters > most:
            raise ConfigError(
                f"clusters must be at most {which}, {most}, but got {config.clusters}."
            )
        require_count("starts", job.starts)
        for clusters in job.candidate_range or [config.clusters]:
            check_limits(examples, clusters, min_size=job.min_size, max_size=job.max_size)
        if job.needs_raw_values:
            for part in (data.train, data.test):
                require_unit_interval(data.name, part.inputs, BERNOULLI)
        if config.pretraining.kind == "contrastive" and (config.method != "gmm" or job.compare):
            choose_view(config.pretraining.views, data.input_shape)
        count = config.training.devices
        if count > 1 and data.train.inputs.device.type == "cpu":
            return [f"{count} processes share the CPU, which is slower than one alone."]
        return []

    def share(
        self, jobs: Sequence[ClusteringJob], data: Dataset, folders: Sequence[Path], root: Path
    ) -> None:
        """Copy the pretraining of runs in ``root`` with the same data and settings."""
        if jobs[0].clustering.method == "gmm" or jobs[0].starts > 1:
            return
        likelihood = choose_likelihood(data.train.inputs, jobs[0].clustering.likelihood)
        for job, folder in zip(jobs, folders, strict=True):
            text = pipeline.describe_pretraining(job.clustering, job.seed, likelihood)
            for other in map(RunFolder, root.glob(f"*/{folder.name}/{PRETRAINING}")):
                other_run = RunFolder.open(other.path.parent)
                others = configs.loads(ClusteringJob, other_run.config_text())
                same_data = replace(others, compare=job.compare, clustering=job.clustering) == job
                if same_data and other.status == "finished" and other.config_text() == text:
                    copy_stage(other.path, folder / PRETRAINING)
                    break

    def train(
        self,
        jobs: Sequence[ClusteringJob],
        data: Dataset,
        folders: Sequence[Path],
        devices: Devices,
        progress: ProgressFactory,
    ) -> list[FittedClustering]:
        rows, shape, config = data.train.inputs.flatten(1), data.input_shape, jobs[0].clustering
        options: dict[str, Any] = {"progress": progress, "devices": devices}
        choice: dict[str, Any] = {}
        if jobs[0].candidates is not None:  # never stacked
            choice["choice"] = pipeline.choose_clusters(rows, shape, jobs[0], folders[0], **options)
            config = replace(config, clusters=choice["choice"]["taken"])
        runs = [
            pipeline.list_starts(folder, job.seed, job.starts)
            for job, folder in zip(jobs, folders, strict=True)
        ]
        models = iter(pipeline.fit_clusterings(rows, shape, config, list(chain(*runs)), **options))
        best = [pipeline.best_start([next(models) for _ in starts], rows) for starts in runs]
        return [replace(model, facts={**model.facts, **choice}) for model in best]

    def evaluate(
        self,
        job: ClusteringJob,
        model: FittedClustering,
        data: Dataset,
        run: RunFolder,
        progress: ProgressFactory,
    ) -> Evaluation:
        method, job = job.clustering.method, job.with_config(clusters=model.clusters)
        shift, scale = scale_of(data)
        model = replace(model, config=job.clustering, shift=shift, scale=scale)
        best = model.facts.get("starts", {}).get("kept", 0)
        start = pipeline.list_starts(run.path, job.seed, job.starts)[best]
        log_probs = predict_splits(model, data)
        labels = {name: part.argmax(-1) for name, part in log_probs.items()}
        rows = data.test.inputs.flatten(1)
        predicted = model.predict(rows, sampled=True)
        limits = job.min_size, job.max_size
        if limits != (None, None):
            likely, labels["train"] = labels["train"], assign(log_probs["train"], *limits)
            limit_report = describe_limits(labels["train"] != likely, *limits)
            model = replace(model, facts={**model.facts, "limits": limit_report})
            if data.test is data.train:
                predicted = labels["train"].to(predicted)
        metrics = _score(data, predicted)
        comparison = {NAMES[method]: metrics} if metrics else {}
        if job.compare and metrics:
            comparison |= _compare(job, data, run, start, progress)
        saved = {"labels": labels["train"].tolist(), "names": column_names(data)}
        replace(model, facts={**model.facts, **saved}).save(run.model_dir)
        files = file_names(job.data, len(data.train))
        run.write_atomic(LABELS, label_table(log_probs, labels, files))
        stages = (start.folder / stage for stage in STAGES)
        run.copy_stage_metrics([stage for stage in stages if stage.exists()])
        about = f"Scores on {'all examples' if data.test is data.train else 'the test split'}."
        bound = model.lower_bounds(rows).mean().item()
        agreement = pipeline.neighbor_agreement(data.train.inputs.flatten(1), labels["train"])
        return Evaluation(
            {**metrics, "lower_bound": bound, "neighbor_agreement": agreement},
            figure_data(model, data, job.seed, labels["train"], predicted),
            {
                **model.facts,
                "title": self.title(job, data),
                "comparison": comparison,
                "method": NAMES[method],
                "about": about,
                "names": {
                    **SCORES,
                    "lower_bound": "log-density" if method == "gmm" else "ELBO, Gaussian mixture",
                    "neighbor_agreement": "neighbor agreement",
                },
                "data": {
                    "name": data.name,
                    "examples": len(data.train),
                    "shape": " x ".join(map(str, data.input_shape)),
                    "test examples": 0 if data.test is data.train else len(data.test),
                },
            },
        )

    def title(self, job: ClusteringJob, data: Dataset) -> str:
        chosen = f", chosen from {job.candidates.replace('-', ' to ')}" if job.candidates else ""
        return f"{data.name}: {job.clustering.clusters} clusters{chosen}"

    def describe(self, results: Sequence[Mapping[str, Any]]) -> Sequence[TextTable | str]:
        """The choice of the number of clusters, effects of limits, and scores of all methods."""
        shown: list[TextTable | str] = []
        for choice in (result["choice"] for result in results if "choice" in result):
            columns = (choice[name] for name in ("clusters", *pipeline.CRITERIA))
            rows = [[str(x), *(f"{y:.3f}" for y in ys)] for x, *ys in zip(*columns, strict=True)]
            shown += [(["Clusters", *pipeline.CRITERIA.values()], rows), choice["sentence"]]
        shown += [result["limits"]["sentence"] for result in results if "limits" in result]
        comparisons = [result["comparison"] for result in results]
        if len(comparisons[0]) < 2:
            return shown

        def text(method: str, score: str) -> str:
            return summarize([methods[method][score] for methods in comparisons]).text()

        rows = [[name, *(text(name, score) for score in SCORES)] for name in comparisons[0]]
        return [*shown, (["Method", *SCORES.values()], rows)]


def describe_limits(is_moved: Tensor, low: int | None, high: int | None) -> dict[str, Any]:
    """The number of rows reassigned to meet size limits, and a sentence about it."""
    moved, count = int(is_moved.sum()), len(is_moved)
    limits = f"limits {low} to {high}"
    if low is None or high is None:
        limits = f"limit of at {'most' if low is None else 'least'} {low or high}"
    verb = "was" if moved == 1 else "were"
    text = f"{moved:,} of {count:,} rows {verb} reassigned to meet the size {limits}."
    return {"moved": moved, "sentence": text}


def _score(data: Dataset, predicted: Any) -> dict[str, float]:
    """Scores on the test split; empty without labels."""
    labels = class_labels(data, data.test)
    return {} if labels is None else clustering_scores(labels, predicted)


def _compare(
    job: ClusteringJob,
    data: Dataset,
    run: RunFolder,
    start: pipeline.Start,
    progress: ProgressFactory,
) -> dict[str, dict[str, float]]:
    """Scores of the other methods, with the pretraining of a start, and of k-means on the rows."""
    config, pretrained = job.clustering, start.folder / PRETRAINING
    rows, test_rows = data.train.inputs.flatten(1), data.test.inputs.flatten(1)
    found = {}
    for method in get_args(Method):
        lacks_head = method == "contrastive-head" and config.pretraining.kind != "contrastive"
        if method == config.method or lacks_head:
            continue
        folder, name = run.path / OTHERS / method, NAMES[method]
        if method != "gmm":
            if pretrained.exists():
                copy_stage(pretrained, folder / PRETRAINING)
            else:  # a mixture of the rows has no pretraining
                pretrained = folder / PRETRAINING
        other = replace(config, method=method)
        if method == "vade":
            other = replace(other, freeze_encoder=False, copy_mean_head=False)  # as in `VaDE`
        (fitted,) = pipeline.fit_clusterings(
            rows,
            data.input_shape,
            other,
            [pipeline.Start(folder, start.seed)],
            progress=lambda stage, name=name: progress(f"{name}, {stage}"),  # type: ignore[misc]
        )
        found[name] = _score(data, fitted.predict(test_rows, sampled=True))
    means = KMeans(config.clusters, n_init=10, random_state=job.seed % 2**32)
    means.fit(rows.double().cpu().numpy())
    found[NAMES["k-means"]] = _score(data, means.predict(test_rows.double().cpu().numpy()))
    return found


def copy_stage(source: Path, target: Path) -> None:
    """Copy a finished stage without checkpoints, atomically, unless the target exists."""
    if target.exists() or target == source:
        return
    half = target.with_name(f".{target.name}.tmp")
    if half.exists():
        shutil.rmtree(half)
    shutil.copytree(source, half, ignore=shutil.ignore_patterns(CHECKPOINTS))
    half.rename(target)


def column_names(data: Dataset) -> list[str]:
    """The column names of a table; empty if its file has none."""
    numbered = tuple(f"column {number + 1}" for number in range(len(data.columns)))
    return [] if data.columns == numbered else list(data.columns)


def predict_splits(model: FittedClustering, data: Dataset) -> dict[str, Tensor]:
    """Log-probabilities of the clusters for each split, in float64 as for a loaded estimator."""
    splits = {"train": data.train} | ({} if data.test is data.train else {"test": data.test})
    double = model.to(torch.float64)
    return {
        name: double.predict_log_proba(split.inputs.flatten(1).double()).cpu()
        for name, split in splits.items()
    }


def label_table(
    log_probs: Mapping[str, Tensor], labels: Mapping[str, Tensor], files: Sequence[str]
) -> str:
    """The cluster of every example and its probability as CSV, with the split if it has a name."""
    tables = []
    for name, cluster in labels.items():
        confidence = log_probs[name].gather(-1, cluster[:, None]).squeeze(-1).exp()
        columns = {"index": range(len(cluster)), "cluster": cluster, "confidence": confidence}
        tables.append(pd.DataFrame({"split": name, **columns} if name else columns))
    table = pd.concat(tables)
    if files:
        table["file"] = files
    text: str = table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    return text


def figure_data(
    fitted: FittedClustering, data: Dataset, seed: int, labels: Tensor, predicted: Tensor
) -> bytes:
    """The arrays of all figures; ``labels`` of training and ``predicted`` of test examples."""
    arrays = {**_samples(fitted, data, seed), **_predictions(fitted, data, labels, predicted)}
    arrays |= _examples(fitted, data, labels, arrays.pop("columns", slice(None)))
    if choice := fitted.facts.get("choice"):
        arrays["choice"] = [choice[name] for name in ("clusters", *pipeline.CRITERIA)]
        arrays |= {"choice_names": [*pipeline.CRITERIA.values()], "choice_taken": choice["taken"]}
    return pack_arrays(
        {name: x.cpu().numpy() if isinstance(x, Tensor) else x for name, x in arrays.items()}
    )


def _samples(fitted: FittedClustering, data: Dataset, seed: int) -> dict[str, Any]:
    """Samples of every cluster and of a partition."""
    device, clusters = fitted.device, fitted.clusters
    generator = torch.Generator(device).manual_seed(seed)
    count = ROW_SAMPLES if len(data.input_shape) == 1 else SAMPLES
    each = torch.arange(clusters, device=device).repeat_interleave(count)
    samples = fitted.from_rows(fitted.sample(each, generator)).unflatten(0, (clusters, count))
    members = fitted.draw_partition(PARTITION, generator).sort().values
    points = fitted.from_rows(fitted.sample(members, generator))
    arrays: dict[str, Any] = {"partition_clusters": members}
    if len(data.input_shape) > 1:
        return {**arrays, "samples": _pixels(samples), "partition_points": _pixels(points)}
    names = data.columns
    if (width := data.input_shape[0]) > COLUMNS:
        # The columns whose cluster means differ most, in standard deviations.
        deviations = fitted.from_rows(data.test.inputs).std(0, correction=0)
        spread = samples.mean(1).std(0, correction=0).to(deviations) / deviations
        chosen = spread.nan_to_num(0, posinf=0).topk(COLUMNS).indices.sort().values
        samples, points = (x[..., chosen.to(x.device)] for x in (samples, points))
        names = tuple(names[i] if names else f"column {i + 1}" for i in chosen.tolist())
        arrays |= {"num_columns": width, "columns": chosen.cpu()}
    if names:
        arrays["column_names"] = names
    return {**arrays, "samples": samples, "partition_points": points}


def _predictions(
    fitted: FittedClustering, data: Dataset, members: Tensor, predicted: Tensor
) -> dict[str, Any]:
    """Clusters and codes of the data."""
    rows = data.test.inputs.flatten(1)
    arrays: dict[str, Any] = {
        "latent": _principal_plane(fitted.embed(rows[:POINTS]).double()).float(),
        "latent_clusters": predicted[:POINTS],
        "sizes": torch.bincount(members, minlength=fitted.clusters),
    }
    labels, names = class_labels(data, data.test), class_names(data)
    if labels is not None:
        places, shape = labels * fitted.clusters + predicted, (len(names), fitted.clusters)
        confusion = places.bincount(minlength=math.prod(shape)).reshape(shape)
        arrays |= {"latent_labels": labels[:POINTS], "confusion": confusion, "label_names": names}
    return arrays


def _examples(
    fitted: FittedClustering, data: Dataset, members: Tensor, columns: Any
) -> dict[str, Any]:
    """Examples for the map of the codes; for tables also the column means of each cluster."""
    rows = fitted.from_rows(data.test.inputs[:POINTS].flatten(1))
    if len(data.input_shape) > 1:
        *channels, height, width = (min(THUMBNAIL, side) for side in data.input_shape)
        count = THUMBNAILS // math.prod((*channels, height, width))
        return {"examples": _pixels(adaptive_avg_pool2d(rows[:count], (height, width)))}
    whole, members = data.train.inputs, members.to(data.train.inputs.device)
    means = torch.stack([whole[members == index].mean(0) for index in range(fitted.clusters)])
    zeros, deviations = whole.new_zeros(1, whole.shape[1]), whole.std(0, correction=0)
    scale = fitted.from_rows(deviations) - fitted.from_rows(zeros)
    return {
        "examples": rows.cpu()[:, columns],
        "column_means": fitted.from_rows(means.nan_to_num()).cpu()[:, columns],
        "column_deviations": scale.cpu()[0, columns],
    }


def _pixels(images: Tensor) -> Tensor:
    """Drop a single channel; convert to bytes if all values lie in [0, 1]."""
    if images.dim() >= 4 and images.shape[-3] == 1:
        images = images.squeeze(-3)
    in_range = bool(((images >= 0) & (images <= 1)).all())
    return (images * 255).round().to(torch.uint8) if in_range else images


def _principal_plane(codes: Tensor) -> Tensor:
    """Codes projected to their first two principal components."""
    centered = codes - codes.mean(0)
    directions = torch.linalg.svd(centered, full_matrices=False).Vh
    plane: Tensor = centered @ directions[:2].mT
    # A single code, or one-dimensional codes, have only one component.
    return pad(plane, (0, 2 - plane.shape[-1]))

"""Clustering as an experiment."""

import csv
import hashlib
import io
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final, get_args

import torch
from torch import Tensor

from drpm.clustering.config import ClusteringJob, Method
from drpm.clustering.estimators import as_estimator
from drpm.clustering.figures import figure_data, source_images
from drpm.clustering.fitted import FittedClustering
from drpm.clustering.metrics import clustering_scores
from drpm.clustering.models import choose_likelihood, in_batches, require_unit_interval
from drpm.clustering.pipeline import describe_pretraining, fit_clusterings, pretrain
from drpm.clustering.views import choose_view
from drpm.data import load
from drpm.data.fingerprints import content_hash
from drpm.data.preprocessing import class_labels, class_names, scale_of
from drpm.data.registry import file_names
from drpm.data.types import Dataset, Split
from drpm.experiments.base import Evaluation, Experiment, Table, parse_options
from drpm.training.devices import Devices
from drpm.training.errors import ConfigError, RunError
from drpm.training.loop import ProgressFactory
from drpm.training.runs import CHECKPOINTS, RunFolder
from drpm.training.summaries import spread

LABELS: Final = "labels.csv"
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

# Values this close to [0, 1] are rounding errors of standardisation.
_ROUNDING: Final = 1e-5


class Clustering(Experiment[ClusteringJob, Dataset, FittedClustering]):
    """DRPM-VC and its baselines."""

    scores: ClassVar[Mapping[str, str]] = SCORES
    outputs: ClassVar[tuple[str, ...]] = (*STAGES, OTHERS, LABELS)

    def load(self, job: ClusteringJob, device: torch.device) -> Dataset:
        return undo_scaling(job, load(job.data, device=device, **parse_options(job.options)))

    def fingerprint(self, job: ClusteringJob, data: Dataset) -> str:
        return content_hash(job.data, data)

    def complete(
        self, job: ClusteringJob, data: Dataset, given: Mapping[str, bool]
    ) -> ClusteringJob:
        classes = len(class_names(data))
        return job if "clusters" in given or not classes else job.with_config(clusters=classes)

    def check(self, job: ClusteringJob, data: Dataset) -> list[str]:
        config, examples = job.clustering, len(data.train)
        if config.clusters > examples:
            raise ConfigError(
                f"clusters must be at most the number of examples, {examples}, "
                f"but got {config.clusters}."
            )
        if config.pretraining.kind == "contrastive" and (config.method != "gmm" or job.compare):
            choose_view(config.pretraining.views, data.input_shape)
        count = config.training.devices
        if count > 1 and data.train.inputs.device.type == "cpu":
            return [f"{count} processes share the CPU, which is slower than one alone."]
        return []

    def share(
        self,
        jobs: Sequence[ClusteringJob],
        data: Dataset,
        folders: Sequence[Path],
        place: Path,
    ) -> None:
        """Copy a shared pretraining to the runs; it is made first if there is none."""
        config, job = jobs[0].clustering, jobs[0]
        if config.method == "gmm" or all((folder / PRETRAINING).exists() for folder in folders):
            return
        rows = data.train.inputs.flatten(1)
        likelihood = choose_likelihood(rows, config.likelihood)
        seeds = [each.seed for each in jobs]
        # Named by a hash of its settings, in which studies in one folder may differ.
        text = json.dumps([job.data, job.options, job.fingerprint])
        text += "".join(describe_pretraining(config, seed, likelihood) for seed in seeds)
        shared = place / f"{PRETRAINING}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        shared.mkdir(exist_ok=True)
        sources = [shared / f"seed-{seed}" for seed in seeds]
        # One GPU trains all seeds together, as it does afterwards.
        size = len(seeds) if rows.device.type == "cuda" else 1
        with RunFolder(shared).lock(wait=True):
            for start in range(0, len(seeds), size):
                some = slice(start, start + size)
                pretrain(rows, data.input_shape, config, sources[some], seeds=seeds[some])
        for source, folder in zip(sources, folders, strict=True):
            copy_stage(source / PRETRAINING, folder / PRETRAINING)

    def train(
        self,
        jobs: Sequence[ClusteringJob],
        data: Dataset,
        folders: Sequence[Path],
        devices: Devices,
        progress: ProgressFactory,
    ) -> list[FittedClustering]:
        found = fit_clusterings(
            data.train.inputs.flatten(1),
            data.input_shape,
            jobs[0].clustering,
            folders,
            seeds=[job.seed for job in jobs],
            progress=progress,
            devices=devices,
        )
        for fitted, folder in zip(found, folders, strict=True):
            _require_finite(fitted, folder)
        return found

    def evaluate(
        self,
        job: ClusteringJob,
        model: FittedClustering,
        data: Dataset,
        run: RunFolder,
        progress: ProgressFactory,
    ) -> Evaluation:
        method = job.clustering.method
        shift, scale = scale_of(data)
        model = replace(model, config=job.clustering, shift=shift, scale=scale)
        metrics = _score(data, model.predict)
        comparison = {NAMES[method]: metrics} if metrics else {}
        if job.compare and metrics:
            comparison |= _compare(job, data, run, progress)
        images = source_images(job.data, data)
        bound = model.lower_bounds(data.test.inputs.flatten(1)).mean().item()
        return Evaluation(
            {**metrics, "lower_bound": bound},
            figure_data(model, data, job.seed, images),
            [run.path / stage for stage in STAGES if (run.path / stage).exists()],
            {LABELS: _save(model, data, run, file_names(job.data, len(data.train)))},
            {
                "comparison": comparison,
                "method": NAMES[method],
                "about": _about(job, data),
                "names": {
                    **SCORES,
                    "lower_bound": "log-density" if method == "gmm" else "ELBO, Gaussian mixture",
                },
                "data": _describe(data),
            },
        )

    def title(self, job: ClusteringJob, data: Dataset) -> str:
        return f"{data.name}: {job.clustering.clusters} clusters"

    def describe(self, results: Sequence[Mapping[str, Any]]) -> Sequence[Table | str]:
        """The scores of all methods, as mean and deviation over seeds."""
        comparisons = [result["comparison"] for result in results]
        if len(comparisons[0]) < 2:
            return []

        def text(method: str, score: str) -> str:
            values = [methods[method][score] for methods in comparisons]
            return spread(values) if len(values) > 1 else f"{values[0]:.3f}"

        rows = [[name, *(text(name, score) for score in SCORES)] for name in comparisons[0]]
        return [Table(["Method", *SCORES.values()], rows)]


def undo_scaling(job: ClusteringJob, data: Dataset) -> Dataset:
    """Undo the standardization of the data if the likelihood is Bernoulli."""
    has_likelihood = job.clustering.method != "gmm" or job.compare
    if job.clustering.likelihood != "bernoulli" or not has_likelihood:
        return data
    shift, scale = scale_of(data)

    def restored(split: Split) -> Split:
        inputs = split.inputs
        if shift is not None and scale is not None:
            raw = (inputs.flatten(1).cpu().double() * scale + shift).reshape(inputs.shape)
            inputs = raw.to(inputs)
            near = inputs.clamp(0, 1)
            inputs = torch.where((inputs - near).abs() < _ROUNDING, near, inputs)
        require_unit_interval(data.name, inputs)
        return replace(split, inputs=inputs)

    train = restored(data.train)
    test = train if data.test is data.train else restored(data.test)
    return replace(data, train=train, test=test, preprocessing={})


def _require_finite(model: FittedClustering, folder: Path) -> None:
    """Check the parameters after the last step, whose loss is not computed."""
    tensors = [*model.mixture]
    for module in (model.autoencoder, model.head):
        tensors += [] if module is None else module.state_dict().values()
    if not all(x.isfinite().all() for x in tensors):
        raise RunError(
            f"The model of the run {folder} has parameters that are not finite; overwrite it with "
            "a smaller learning rate."
        )


def _score(data: Dataset, predict: Callable[[Tensor], Any]) -> dict[str, float]:
    """Scores on the test part; none without labels."""
    labels = class_labels(data, data.test)
    if labels is None:
        return {}
    return clustering_scores(labels, predict(data.test.inputs.flatten(1)))


def _compare(
    job: ClusteringJob, data: Dataset, run: RunFolder, progress: ProgressFactory
) -> dict[str, dict[str, float]]:
    """Scores of all other methods from the same pretraining, and of k-means on the rows."""
    from sklearn.cluster import KMeans

    config, rows = job.clustering, data.train.inputs.flatten(1)
    found = {}
    pretrained = run.path / PRETRAINING
    for method in get_args(Method):
        if method == config.method or (
            method == "contrastive-head" and config.pretraining.kind != "contrastive"
        ):
            continue
        folder, name = run.path / OTHERS / method, NAMES[method]
        if method != "gmm":
            if pretrained.exists():
                copy_stage(pretrained, folder / PRETRAINING)
            else:  # the run is a mixture of the rows, which has no pretraining
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
            seeds=[job.seed],
            progress=lambda stage, name=name: progress(f"{name}, {stage}"),  # type: ignore[misc]
        )
        found[name] = _score(data, fitted.predict)
    means = KMeans(config.clusters, n_init=10, random_state=job.seed % 2**32)
    means.fit(rows.double().cpu().numpy())
    found[NAMES["k-means"]] = _score(data, lambda x: means.predict(x.double().cpu().numpy()))
    return found


def copy_stage(source: Path, target: Path) -> None:
    """Copy a finished stage without its checkpoints, atomically, unless it is there."""
    if target.exists() or target == source:
        return
    half = target.with_name(f".{target.name}.tmp")
    if half.exists():
        shutil.rmtree(half)
    shutil.copytree(source, half, ignore=shutil.ignore_patterns(CHECKPOINTS))
    half.rename(target)


def _save(model: FittedClustering, data: Dataset, run: RunFolder, files: Sequence[str]) -> str:
    """Save the model and return the content of ``labels.csv``."""
    splits = {"train": data.train}
    if data.test is not data.train:
        splits["test"] = data.test
    rows = {name: split.inputs.flatten(1) for name, split in splits.items()}
    # Column names that are not in the file are not required of new rows.
    numbered = tuple(f"column {number + 1}" for number in range(len(data.columns)))
    estimator = as_estimator(model, () if data.columns == numbered else data.columns)
    if estimator is None:
        probs = {name: model.predict_proba(part) for name, part in rows.items()}
        model.save(run.model_dir)
    else:
        # Predicted by the saved estimator, so that it agrees with the table.
        saved = estimator.model_.to(data.train.inputs.device)
        probs = {
            name: in_batches(lambda x: saved.predict_proba(x.double(), sampled=False), part).cpu()
            for name, part in rows.items()
        }
        estimator.labels_ = probs["train"].argmax(-1).numpy()
        estimator.save(run.model_dir)
    return _label_table(probs, files)


def _label_table(probs: Mapping[str, Tensor], files: Sequence[str]) -> str:
    """The cluster of every example and its probability, as a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    header = ["split", "index", "cluster", "confidence"]
    writer.writerow([*header, "file"] if files else header)
    for name, part in probs.items():
        confidence, cluster = part.max(-1)
        for i, (k, c) in enumerate(zip(cluster.tolist(), confidence.tolist(), strict=True)):
            writer.writerow([name, i, k, f"{c:.6g}", *files[i : i + 1]])
    return text.getvalue()


def _about(job: ClusteringJob, data: Dataset) -> str:
    """A sentence about the scores."""
    part = "the test part" if data.test is not data.train else "all examples; there is no test part"
    sentences = [f"Scores are those of {part}, after the last epoch."]
    if job.clustering.method == "vade":
        sentences.append(
            "VaDE is scored with a sample of every code, as in the paper; labels.csv uses its mean."
        )
    return " ".join(sentences)


def _describe(data: Dataset) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": data.name, "examples": len(data.train)}
    if len(data.input_shape) == 1:
        facts["columns"] = data.input_shape[0]
    else:
        facts["shape"] = " x ".join(map(str, data.input_shape))
    if data.test is not data.train:
        facts["test examples"] = len(data.test)
    return facts

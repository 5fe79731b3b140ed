"""Fit a clustering: pretraining, initial clusters, training; and choose among several."""

import copy
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score, silhouette_score
from torch import Tensor

from drpm.clustering.config import TRAINED, ClusteringConfig, ClusteringJob
from drpm.clustering.fitted import FittedClustering
from drpm.clustering.mixtures import Mixture, estimate_mixture, fit_mixture
from drpm.clustering.models import OBJECTIVES, MixtureVAE, choose_likelihood, in_batches
from drpm.clustering.pretraining import (
    ContrastiveModel,
    contrastive_objective,
    reconstruction_objective,
)
from drpm.training import config as configs
from drpm.training.devices import Devices, seeded
from drpm.training.errors import RunError
from drpm.training.loop import ProgressFactory, train_stage
from drpm.training.program import ExponentialSchedule, Program, Schedule
from drpm.training.runs import RunFolder, open_run

STARTS: Final = "starts"
CANDIDATES: Final = "candidates"
CRITERIA: Final = {
    "elbo": "held-out ELBO (Gaussian mixture)",
    "stability": "stability",
    "silhouette": "silhouette",
}

# In the choice of a start.
_SAMPLE: Final = 5000  # rows whose neighbors are compared
_NEIGHBORS: Final = 10

# In the choice of the number of clusters.
_HELD_OUT: Final = 0.2  # of the rows
_LEAST: Final = 2  # starts of every candidate
_POINTS: Final = 2000  # whose silhouette is computed, in quadratic time
_EQUAL: Final = 0.05  # adjusted Rand indices that differ by less are equally stable


class Start(NamedTuple):
    """The folder and the seed of a fit."""

    folder: Path
    seed: int


def fit_clusterings(
    rows: Tensor,
    shape: torch.Size,
    config: ClusteringConfig,
    starts: Sequence[Start],
    *,
    progress: ProgressFactory = lambda stage: None,
    devices: Devices | None = None,
) -> list[FittedClustering]:
    """Cluster rows (n, d), flattened inputs; all starts are trained together or resumed."""
    rows, seeds = rows.float(), [start.seed for start in starts]
    if config.method == "gmm":
        return [FittedClustering(config, shape, _fit(rows, config, seed)) for seed in seeds]
    devices = devices or Devices(rows.device)
    options: dict[str, Any] = {"progress": progress, "devices": devices}
    likelihood = choose_likelihood(rows, config.likelihood)
    origin = config.initial_clusters(shape)
    # With separate variances, a wide and a narrow cluster may replace two clusters.
    shared = origin == "best"
    models, pretrained = [], []
    for seed in seeds:
        with seeded(seed):
            model = MixtureVAE(rows.shape[1], config, likelihood, shared_variances=shared)
            contrastive = ContrastiveModel(
                model.autoencoder, config.clusters, config.pretraining, shape
            )
        models.append(model.to(rows.device))
        pretrained.append(contrastive.to(rows.device))
    texts = [describe_pretraining(config, seed, likelihood) for seed in seeds]
    runs = [
        open_run(start.folder / "pretraining", text, devices=devices)
        for start, text in zip(starts, texts, strict=True)
    ]
    _pretrain(pretrained, rows, config, seeds[0], runs, **options)
    for model, contrastive, seed in zip(models, pretrained, seeds, strict=True):
        model.prior.set_mixture(initial_clusters(rows, contrastive, config, origin, seed))
    if config.method in TRAINED:
        trainings = [replace(config.training, seed=seed) for seed in seeds]
        texts = [configs.dumps(replace(config, training=each)) for each in trainings]
        runs = [
            open_run(start.folder / "training", text, devices=devices)
            for start, text in zip(starts, texts, strict=True)
        ]
        _train(models, rows, config, seeds, runs, **options)
    found = []
    for model, contrastive, seed in zip(models, pretrained, seeds, strict=True):
        mixture = Mixture(*(x.detach() for x in model.prior.mixture()))
        # The loop checks only the logarithms of the variances.
        if not all(x.isfinite().all() for x in mixture):
            raise RunError(
                f"The clusters of seed {seed} were not finite after training: start again "
                "with a smaller learning rate."
            )
        head = contrastive.clusters if config.method == "contrastive-head" else None
        found.append(FittedClustering(config, shape, mixture, model.autoencoder, head))
    return found


def list_starts(folder: Path, seed: int, count: int) -> list[Start]:
    """The starts of a run; the first has the run's seed, a single one also its folder."""
    if count == 1:
        return [Start(folder, seed)]
    seeds = [seed, *map(int, np.random.SeedSequence(seed).generate_state(count - 1))]
    return [Start(folder / STARTS / str(i), each) for i, each in enumerate(seeds)]


def best_start(models: Sequence[FittedClustering], rows: Tensor) -> FittedClustering:
    """The clustering with the highest :func:`neighbor_agreement`; its facts list all values."""
    if len(models) == 1:
        return models[0]
    values = [neighbor_agreement(rows, model.predict(rows)) for model in models]
    best = max(range(len(models)), key=values.__getitem__)
    starts = {"criterion": "neighbor agreement", "figures": values, "kept": best}
    return replace(models[best], facts={"starts": starts})


def neighbor_agreement(rows: Tensor, labels: Tensor) -> float:
    r"""How often the nearest neighbors of a row are in its cluster, corrected for chance.

    .. math:: \frac{a - c}{1 - c}

    with a the share of neighbors in the same cluster and c the share of all pairs: 1 if no
    neighbors are separated, 0 for random clusters or only one. Uses the ten nearest neighbors among
    5,000 random rows.
    """
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:_SAMPLE]
    rows, labels = rows[chosen.to(rows.device)].double(), labels.to(rows.device)[chosen]
    rows = rows - rows.mean(0)  # for precision
    distances = torch.cdist(rows, rows).fill_diagonal_(torch.inf)
    nearest = distances.topk(min(_NEIGHBORS, len(rows) - 1), largest=False).indices
    agreement = (labels[nearest] == labels[:, None]).double().mean()
    chance = (labels.bincount().double() / len(labels)).square().sum()
    return float((agreement - chance) / (1 - chance)) if chance < 1 else 0.0


def describe_pretraining(config: ClusteringConfig, seed: int, likelihood: str) -> str:
    """The settings of pretraining, which are the same for every method and objective."""
    training = replace(config.pretraining.training, seed=seed)
    settings = {
        "seed": seed,
        "clusters": config.clusters,
        "likelihood": likelihood,
        "network": asdict(config.network),
        "pretraining": asdict(replace(config.pretraining, training=training)),
    }
    return configs.dumps(settings)


def _fit(points: Tensor, config: ClusteringConfig, seed: int) -> Mixture:
    return fit_mixture(
        points,
        config.clusters,
        restarts=config.mixture.restarts,
        reg_covar=config.mixture.floor,
        generator=torch.Generator(points.device).manual_seed(seed),
    )


def more_likely_clusters(
    rows: Tensor, codes: Tensor, head: Tensor, config: ClusteringConfig, seed: int
) -> Mixture:
    """The more likely moments of the codes: by clusters (n,) of the head, or of k-means on rows.

    The head prefers clusters of equal size. All clusters get the same variances.
    """
    means = KMeans(config.clusters, n_init=10, random_state=seed % 2**32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than clusters
        labels = torch.from_numpy(means.fit_predict(rows.cpu().numpy())).to(head)
    one_hot = [F.one_hot(x, config.clusters).to(codes) for x in (labels, head)]
    mixtures = [estimate_mixture(codes, x, reg_covar=config.mixture.floor) for x in one_hot]
    best = max(mixtures, key=lambda mixture: in_batches(mixture.log_prob, codes).mean().item())
    shared = (best.log_weights.exp()[:, None] * best.variances).sum(0)
    return best._replace(variances=shared.expand_as(best.variances))


def _pretrain(
    models: Sequence[ContrastiveModel],
    rows: Tensor,
    config: ClusteringConfig,
    seed: int,
    runs: Sequence[RunFolder],
    **options: Any,
) -> None:
    is_contrastive = config.pretraining.kind == "contrastive"
    for model in models:
        # DistributedDataParallel expects gradients of all trained modules.
        model.autoencoder.log_variance.requires_grad_(False)
        model.instances.requires_grad_(is_contrastive)
        model.clusters.requires_grad_(is_contrastive)
    train_stage(
        "pretraining",
        models,
        contrastive_objective if is_contrastive else reconstruction_objective,
        replace(config.pretraining.training, seed=seed),
        runs,
        {"rows": rows},
        **options,
    )
    for network in (model.autoencoder for model in models):
        network.log_variance.requires_grad_()
        if config.method == "vade" and config.copy_mean_head:
            network.log_variance.load_state_dict(network.mean.state_dict())
        elif is_contrastive:
            network.reset_variance()


@torch.no_grad()
def initial_clusters(
    rows: Tensor, model: ContrastiveModel, config: ClusteringConfig, origin: str, seed: int
) -> Mixture:
    """The clusters at the start of training; ``origin`` as in the configuration."""
    features = in_batches(model.autoencoder.encoder, rows)
    codes = model.autoencoder.mean(features)
    if origin == "head":
        probs = in_batches(model.clusters, features).softmax(-1)
        # Without EM steps, which would undo what the head learned.
        found = estimate_mixture(codes, probs, reg_covar=config.mixture.floor)
    elif origin == "best":
        head = in_batches(model.clusters, features).argmax(-1)
        found = more_likely_clusters(rows, codes, head, config, seed)
    else:
        found = _fit(codes, config, seed)
    if config.mixture.code_variance and config.method in TRAINED:
        own = model.autoencoder.log_variance(features).exp().mean(0)
        found = found._replace(variances=found.variances + own)
    return found


def _train(
    models: Sequence[MixtureVAE],
    rows: Tensor,
    config: ClusteringConfig,
    seeds: Sequence[int],
    runs: Sequence[RunFolder],
    **options: Any,
) -> None:
    data, run_data = {"rows": rows}, {}
    if config.freeze_encoder:
        # Precompute the features of a frozen encoder.
        encoders = [model.autoencoder.encoder.requires_grad_(False) for model in models]
        features = [in_batches(encoder, rows) for encoder in encoders]
        if len(models) == 1:
            data["features"] = features[0]
        else:
            run_data["features"] = torch.stack(features)

    @torch.no_grad()
    def refit(program: Program, _: Sequence[RunFolder], epoch: int) -> None:
        """Refit the mixture to the current codes during annealing."""
        falls = epoch * program.steps_per_epoch < config.annealing_steps
        if epoch == 0 or epoch % (config.refit_every or 1) or not falls:
            return
        scratch = copy.deepcopy(models[0])
        for run, seed in enumerate(seeds):
            generator = torch.Generator(rows.device).manual_seed(seed + epoch)
            state = program.model_state(run)
            scratch.load_state_dict(state)
            features = in_batches(scratch.autoencoder.encoder, rows)
            posterior = scratch.autoencoder.posterior(features)
            sampled = config.refit_to == "samples"
            codes = posterior.sample((), generator) if sampled else posterior.mean
            found = _fit(codes, config, seed + epoch)
            scratch.prior.set_mixture(found, detached=config.refit_detaches_prior)
            for name, value in scratch.prior.state_dict().items():
                state[f"prior.{name}"].copy_(value)

    train_stage(
        "training",
        models,
        OBJECTIVES[config.method],
        replace(config.training, seed=seeds[0]),
        runs,
        data,
        run_data=run_data,
        schedules=build_schedules(config),
        before_epoch=None if config.refit_every is None else refit,
        **options,
    )


def build_schedules(config: ClusteringConfig) -> dict[str, Schedule]:
    """The schedules of temperature and beta."""
    steps = config.annealing_steps
    beta: Schedule = torch.zeros_like
    if config.beta > 0:
        beta = ExponentialSchedule(0.1 * config.beta, config.beta, steps)
    return {"temperature": ExponentialSchedule(*config.temperature, steps), "beta": beta}


def choose_clusters(
    rows: Tensor,
    shape: torch.Size,
    job: ClusteringJob,
    folder: Path,
    *,
    progress: ProgressFactory,
    devices: Devices,
) -> dict[str, Any]:
    """Fit all candidates of a job to four fifths of the rows, and choose one by :func:`decide`.

    Each has at least two starts; interrupted fits are resumed.
    """
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(job.seed))
    held_out, fitted = rows[order].tensor_split([max(1, int(_HELD_OUT * len(rows)))])
    clusters, bounds, scores = [*job.candidate_range], [], []
    for count in clusters:
        models = fit_clusterings(
            fitted,
            shape,
            replace(job.clustering, clusters=count),
            list_starts(folder / CANDIDATES / str(count), job.seed, max(_LEAST, job.starts)),
            progress=lambda stage, count=count: progress(f"{count} clusters, {stage}"),  # type: ignore[misc]
            devices=devices,
        )
        elbos = torch.stack([model.lower_bounds(held_out) for model in models])
        bounds.append(elbos.double().mean(0).cpu().numpy())
        labels = [model.predict(rows).cpu() for model in models]
        # Starts with empty clusters would agree on fewer clusters.
        is_full = all(len(each.unique()) == count for each in labels)
        pairs = [is_full * adjusted_rand_score(*pair) for pair in combinations(labels, 2)]
        widths = [_silhouette(model, rows, x) for model, x in zip(models, labels, strict=True)]
        scores.append((np.mean(pairs), np.mean(widths)))
    stability, silhouette = np.array(scores).T
    return decide(clusters, np.stack(bounds), stability, silhouette)


def _silhouette(model: FittedClustering, rows: Tensor, labels: Tensor) -> float:
    """The mean silhouette of the codes; -1 for a single cluster."""
    codes, labels = model.embed(rows[:_POINTS]).cpu(), labels[:_POINTS]
    if not 1 < len(labels.unique()) < len(labels):
        return -1.0
    return float(silhouette_score(codes.numpy(), labels.numpy()))


def decide(
    clusters: Sequence[int], bounds: NDArray[Any], stability: NDArray[Any], silhouette: NDArray[Any]
) -> dict[str, Any]:
    """Choose the median vote of three criteria for C candidates in ascending order.

    By the ELBO of held-out rows (C, n), the fewest clusters whose mean is within a standard error
    of the best (paired by rows); by the stability between starts (C,), the most clusters as stable
    as the best; by the silhouette (C,), the maximum.
    """
    elbo = bounds.mean(1)
    gaps = bounds[elbo.argmax()] - bounds
    errors = gaps.std(1) / np.sqrt(bounds.shape[1])
    best = {
        "elbo": np.flatnonzero(gaps.mean(1) <= errors)[0],
        "stability": np.flatnonzero(stability >= stability.max() - _EQUAL)[-1],
        "silhouette": silhouette.argmax(),
    }
    votes = {name: clusters[place] for name, place in best.items()}
    taken = sorted(votes.values())[1]
    agree = sum(vote == taken for vote in votes.values())
    each = ", ".join(f"{CRITERIA[name]} {vote}" for name, vote in votes.items())
    return {
        "clusters": list(clusters),
        "elbo": elbo.tolist(),
        "stability": stability.tolist(),
        "silhouette": silhouette.tolist(),
        "votes": votes,
        "taken": taken,
        "sentence": f"{agree} of 3 criteria choose {taken} clusters: {each}.",
    }

"""Fitting a clustering: pretraining, initial clusters, training.

Several starts are trained together. Each has its own folder; interrupted stages are resumed.
"""

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from drpm.clustering.config import TRAINED, ClusteringConfig
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


class Start(NamedTuple):
    """The folder of a fit, in which interrupted stages are resumed, and its seed."""

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
    """Cluster rows from every start; all are trained together.

    Args:
        rows: (n, d), the training data on the device of the training.
        shape: The shape of an input; a row is a flattened input.
        config: The hyperparameters.
        starts: The folders and seeds.
        progress: Maps the name of a stage to its progress bar.
        devices: Connects the processes of a training on several devices.
    """
    rows = rows.float()
    if config.method == "gmm":
        return [FittedClustering(config, shape, _fit(rows, config, seed)) for _, seed in starts]
    stages = _Stages(rows, shape, config, starts, progress, devices or Devices(rows.device))
    stages.pretrain()
    stages.initialize_clusters()
    if config.method in TRAINED:
        stages.train()
    found = []
    for model, pretrained, start in zip(stages.models, stages.pretrained, starts, strict=True):
        mixture = Mixture(*(x.detach() for x in model.prior.mixture()))
        # Variances can overflow although their logarithms, which the loop checks, do not.
        if not all(x.isfinite().all() for x in mixture):
            raise RunError(
                f"The clusters of seed {start.seed} were not finite after training: start again "
                "with a smaller learning rate."
            )
        head = pretrained.clusters if config.method == "contrastive-head" else None
        found.append(FittedClustering(config, shape, mixture, model.autoencoder, head))
    return found


def list_starts(folder: Path, seed: int, count: int) -> list[Start]:
    """Several starts of a run; the first has the seed of the run, a single one also its folder."""
    if count == 1:
        return [Start(folder, seed)]
    seeds = [seed, *map(int, np.random.SeedSequence(seed).generate_state(count - 1))]
    return [Start(folder / STARTS / str(i), each) for i, each in enumerate(seeds)]


def best_start(models: Sequence[FittedClustering], rows: Tensor) -> FittedClustering:
    """The clustering of largest mutual information of rows and clusters, which needs no labels.

    Its ``facts["starts"]`` has the figures of all starts and which one was kept.
    """
    if len(models) == 1:
        return models[0]
    figures = [mutual_information(model.predict_proba(rows)) for model in models]
    kept = max(range(len(models)), key=figures.__getitem__)
    return replace(models[kept], facts={"starts": {"figures": figures, "kept": kept}})


def mutual_information(probs: Tensor) -> float:
    """The mutual information of rows and clusters, in nats, from the predictions (n, K).

    It is the entropy of the mean prediction minus the mean entropy of predictions: large if every
    prediction is certain and no cluster is lost.
    """
    probs = probs.double()
    entropies = torch.special.entr(torch.cat([probs.mean(0, keepdim=True), probs])).sum(-1)
    return float(entropies[0] - entropies[1:].mean())


def describe_pretraining(config: ClusteringConfig, seed: int, likelihood: str) -> str:
    """All settings that pretraining depends on, the same for every method and objective."""
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


def likelier_clusters(
    rows: Tensor, codes: Tensor, head: Tensor, config: ClusteringConfig, seed: int
) -> Mixture:
    """The moments of the codes in the clusters (n,) of the head or of k-means on the rows.

    Codes of a table need not separate clusters better than its rows, and the head prefers clusters
    of equal size. All clusters get the same variances.
    """
    means = KMeans(config.clusters, n_init=10, random_state=seed % 2**32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than clusters
        labels = torch.from_numpy(means.fit_predict(rows.cpu().numpy())).to(head)

    def log_likelihood(mixture: Mixture) -> float:
        log_probs = in_batches(lambda x: mixture.log_densities(x) + mixture.log_weights, codes)
        return log_probs.logsumexp(-1).mean().item()

    one_hot = [F.one_hot(x, config.clusters).to(codes) for x in (labels, head)]
    mixtures = [estimate_mixture(codes, x, reg_covar=config.mixture.floor) for x in one_hot]
    best = max(mixtures, key=log_likelihood)
    shared = (best.log_weights.exp()[:, None] * best.variances).sum(0)
    return best._replace(variances=shared.expand_as(best.variances))


@dataclass
class _Stages:
    """The stages of a fit, for one or more starts."""

    rows: Tensor
    shape: torch.Size
    config: ClusteringConfig
    starts: Sequence[Start]
    progress: ProgressFactory
    devices: Devices
    models: list[MixtureVAE] = field(default_factory=list)
    pretrained: list[ContrastiveModel] = field(default_factory=list)

    def __post_init__(self) -> None:
        config, columns = self.config, self.rows.shape[-1]
        self.likelihood = choose_likelihood(self.rows, config.likelihood)
        # With variances of their own, a wide and a narrow cluster may replace two clusters of a
        # table that are apart.
        shared = config.initial_clusters(self.shape) == "likelier"
        for _, seed in self.starts:
            with seeded(seed):
                model = MixtureVAE(columns, config, self.likelihood, shared_variances=shared)
                model = model.to(self.rows.device)
                contrastive = ContrastiveModel(
                    model.autoencoder, config.clusters, config.pretraining, self.shape
                )
            self.models.append(model)
            self.pretrained.append(contrastive.to(self.rows.device))

    def pretrain(self) -> None:
        config = self.config.pretraining
        is_contrastive = config.kind == "contrastive"
        for contrastive in self.pretrained:
            # Several devices would wait for the gradients of modules that the loss does not use.
            contrastive.autoencoder.log_variance.requires_grad_(False)
            contrastive.instances.requires_grad_(is_contrastive)
            contrastive.clusters.requires_grad_(is_contrastive)
        train_stage(
            "pretraining",
            self.pretrained,
            contrastive_objective if is_contrastive else reconstruction_objective,
            replace(config.training, seed=self.starts[0].seed),
            self._open(
                "pretraining",
                lambda seed: describe_pretraining(self.config, seed, self.likelihood),
            ),
            {"rows": self.rows},
            devices=self.devices,
            progress=self.progress,
        )
        for model in self.models:
            model.autoencoder.log_variance.requires_grad_()
            if self.config.method == "vade" and self.config.copy_mean_head:
                model.autoencoder.log_variance.load_state_dict(model.autoencoder.mean.state_dict())
            elif is_contrastive:
                model.autoencoder.reset_variance()

    @torch.no_grad()
    def initialize_clusters(self) -> None:
        config = self.config
        origin = config.initial_clusters(self.shape)
        for model, pretrained, start in zip(self.models, self.pretrained, self.starts, strict=True):
            features = in_batches(model.autoencoder.encoder, self.rows)
            codes = model.autoencoder.mean(features)
            if origin == "head":
                probs = in_batches(pretrained.clusters, features).softmax(-1)
                # Without EM steps, which would only see the codes and undo what the head learned.
                found = estimate_mixture(codes, probs, reg_covar=config.mixture.floor)
            elif origin == "likelier":
                head = in_batches(pretrained.clusters, features).argmax(-1)
                found = likelier_clusters(self.rows, codes, head, config, start.seed)
            else:
                found = _fit(codes, config, start.seed)
            if config.mixture.code_variance and config.method in TRAINED:
                own = model.autoencoder.log_variance(features).exp().mean(0)
                found = found._replace(variances=found.variances + own)
            model.prior.set_mixture(found)

    def train(self) -> None:
        config = self.config
        data, run_data = {"rows": self.rows}, {}
        if config.freeze_encoder:
            # The features of a frozen encoder are computed once.
            with torch.no_grad():
                encoders = [model.autoencoder.encoder for model in self.models]
                features = [in_batches(encoder, self.rows) for encoder in encoders]
            if len(self.models) == 1:
                data["features"] = features[0]
            else:
                run_data["features"] = torch.stack(features)
            for encoder in encoders:
                encoder.requires_grad_(False)
        train_stage(
            "training",
            self.models,
            OBJECTIVES[config.method],
            replace(config.training, seed=self.starts[0].seed),
            self._open(
                "training",
                lambda seed: configs.dumps(
                    replace(config, training=replace(config.training, seed=seed))
                ),
            ),
            data,
            devices=self.devices,
            run_data=run_data,
            schedules=build_schedules(config),
            before_epoch=None if config.refit_every is None else self._refit,
            progress=self.progress,
        )

    def _open(self, stage: str, describe: Callable[[int], str]) -> list[RunFolder]:
        """The folders of a stage, which hold the settings of every seed."""
        return [
            open_run(folder / stage, describe(seed), devices=self.devices)
            for folder, seed in self.starts
        ]

    @torch.no_grad()
    def _refit(self, program: Program, runs: Sequence[RunFolder], epoch: int) -> None:
        """Refit the mixture to the current codes every few epochs while the temperature falls."""
        config, every = self.config, self.config.refit_every or 1
        falls = epoch * program.steps_per_epoch < config.annealing_steps
        if epoch == 0 or epoch % every or not falls:
            return
        tensors, scratch = program.tensors(), copy.deepcopy(self.models[0])
        for run, (_, seed) in enumerate(self.starts):
            generator = torch.Generator(self.rows.device).manual_seed(seed + epoch)
            scratch.load_state_dict(program.model_state(run))
            features = in_batches(scratch.autoencoder.encoder, self.rows)
            posterior = scratch.autoencoder.posterior(features)
            sampled = config.refit_to == "samples"
            codes = posterior.sample((), generator) if sampled else posterior.mean
            found = _fit(codes, config, seed + epoch)
            scratch.prior.set_mixture(found, detached=config.refit_detaches_prior)
            for name, value in scratch.prior.state_dict().items():
                target = tensors[f"prior.{name}"]
                (target[run] if program.is_stacked else target).copy_(value)


def build_schedules(config: ClusteringConfig) -> dict[str, Schedule]:
    """The schedules of temperature and beta."""
    steps = config.annealing_steps
    beta: Schedule = torch.zeros_like
    if config.beta > 0:
        beta = ExponentialSchedule(0.1 * config.beta, config.beta, steps)
    return {"temperature": ExponentialSchedule(*config.temperature, steps), "beta": beta}

"""Fitting a clustering: pretraining, initial clusters, training.

Several seeds are trained together. Each has its own folder; interrupted stages are resumed.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from drpm.clustering.config import TRAINED, ClusteringConfig, NetworkConfig, PretrainingConfig
from drpm.clustering.fitted import FittedClustering
from drpm.clustering.mixtures import Mixture, estimate_mixture, fit_mixture
from drpm.clustering.models import MixtureVAE, build_objective, choose_likelihood, in_batches
from drpm.clustering.pretraining import (
    ContrastiveModel,
    ContrastiveObjective,
    choose_view,
    reconstruction_objective,
)
from drpm.training import config as configs
from drpm.training.config import TrainingConfig
from drpm.training.devices import Devices, seeded, unseeded
from drpm.training.errors import RunError
from drpm.training.loop import ProgressFactory, train_stage
from drpm.training.program import ExponentialSchedule, Program, Schedule
from drpm.training.runs import open_run


def fit_clusterings(
    rows: Tensor,
    shape: torch.Size,
    config: ClusteringConfig,
    folders: Sequence[Path],
    *,
    seeds: Sequence[int],
    progress: ProgressFactory = lambda stage: None,
    start: FittedClustering | None = None,
    devices: Devices | None = None,
) -> list[FittedClustering]:
    """Cluster rows once per seed.

    Concurrent calls from several threads run one after another.

    Args:
        rows: (n, d), the training data on the device of the training.
        shape: The shape of an input; a row is a flattened input.
        config: The hyperparameters.
        folders: The folder of each seed; interrupted stages are resumed.
        seeds: The random seeds.
        progress: Maps the name of a stage to its progress bar.
        start: A clustering with the same networks to continue from: trained models continue with
            its networks and clusters, a latent mixture with its networks.
        devices: Connects the processes of a training on several devices.
    """
    rows = rows.float()
    if config.method == "gmm":
        return [FittedClustering(config, shape, _fit(rows, config, seed)) for seed in seeds]
    stages = _Stages(rows, shape, config, folders, seeds, progress, devices or Devices(rows.device))
    for model in stages.models:
        if start is not None and start.autoencoder is not None:
            model.autoencoder.load_state_dict(start.autoencoder.state_dict())
    if start is None or config.method == "latent-gmm":
        stages.pretrain()
    stages.initialize_clusters(start)
    if config.method in TRAINED:
        stages.train()
    found = []
    for model, pretrained, seed in zip(stages.models, stages.pretrained, seeds, strict=True):
        mixture = Mixture(*(x.detach() for x in model.prior.mixture()))
        # Variances can overflow although their logarithms, which the loop checks, do not.
        if not all(x.isfinite().all() for x in mixture):
            raise RunError(
                f"The clusters of seed {seed} were not finite after training: start again with a "
                "smaller learning rate."
            )
        head = pretrained.clusters if config.method == "contrastive-head" else None
        found.append(FittedClustering(config, shape, mixture, model.autoencoder, head))
    return found


@dataclass(frozen=True)
class _Pretraining:
    """The settings of a pretraining."""

    seed: int
    clusters: int
    likelihood: str
    network: NetworkConfig
    pretraining: PretrainingConfig


def describe_pretraining(config: ClusteringConfig, seed: int, likelihood: str) -> str:
    """All settings that pretraining depends on, the same for every method and objective."""
    training = replace(config.pretraining.training, seed=seed)
    pretraining = replace(config.pretraining, training=training)
    return configs.dumps(
        _Pretraining(seed, config.clusters, likelihood, config.network, pretraining)
    )


def _fit(
    points: Tensor, config: ClusteringConfig, seed: int, start: Mixture | None = None
) -> Mixture:
    return fit_mixture(
        points,
        config.clusters,
        start=start,
        restarts=config.mixture.restarts,
        reg_covar=config.mixture.floor,
        generator=torch.Generator(points.device).manual_seed(seed),
    )


def _log_likelihood(mixture: Mixture, points: Tensor) -> float:
    log_probs = in_batches(lambda x: mixture.log_densities(x) + mixture.log_weights, points)
    return log_probs.logsumexp(-1).mean().item()


@dataclass
class _Stages:
    """The stages of a fit, for one or more seeds."""

    rows: Tensor
    shape: torch.Size
    config: ClusteringConfig
    folders: Sequence[Path]
    seeds: Sequence[int]
    progress: ProgressFactory
    devices: Devices
    models: list[MixtureVAE] = field(default_factory=list)
    pretrained: list[ContrastiveModel] = field(default_factory=list)

    def __post_init__(self) -> None:
        config, columns = self.config, self.rows.shape[-1]
        self.likelihood = choose_likelihood(self.rows, config.likelihood)
        for seed in self.seeds:
            with seeded(seed):
                model = MixtureVAE(columns, config, self.likelihood).to(self.rows.device)
                contrastive = ContrastiveModel(model.autoencoder, config.clusters)
            self.models.append(model)
            self.pretrained.append(contrastive.to(self.rows.device))

    def pretrain(self) -> None:
        config = self.config.pretraining
        objective: Any = reconstruction_objective
        if config.kind == "contrastive":
            view = choose_view(config.views, self.shape)
            objective = ContrastiveObjective(config, view, self.shape)
        # Several devices would wait for the gradients of modules that the loss does not use.
        untrained = [
            part for model in self.pretrained for part in model.untrained_modules(config.kind)
        ]
        for part in untrained:
            part.requires_grad_(False)
        self._run("pretraining", self.pretrained, objective, config.training, {"rows": self.rows})
        for part in untrained:
            part.requires_grad_()
        for model in self.models:
            if self.config.method == "vade" and self.config.copy_mean_head:
                model.autoencoder.log_variance.load_state_dict(model.autoencoder.mean.state_dict())
            elif config.kind == "contrastive":
                model.autoencoder.reset_variance()

    @torch.no_grad()
    def initialize_clusters(self, start: FittedClustering | None) -> None:
        config = self.config
        for model, pretrained, seed in zip(self.models, self.pretrained, self.seeds, strict=True):
            if start is not None and config.method != "latent-gmm":
                model.prior.set_mixture(start.mixture)
                continue
            features = in_batches(model.autoencoder.encoder, self.rows)
            codes = model.autoencoder.mean(features)
            if start is not None:
                found = _fit(codes, config, seed, start.mixture)
            elif config.starts_at_head(self.shape):
                probs = in_batches(pretrained.predict_proba, self.rows)
                # Without EM steps, which would only see the codes and undo what the head learned.
                found = estimate_mixture(codes, probs, reg_covar=config.mixture.floor)
            elif config.compares_starts(self.shape):
                probs = in_batches(pretrained.predict_proba, self.rows)
                found = self._likelier_start(codes, probs.argmax(-1), seed)
            else:
                found = _fit(codes, config, seed)
            if config.mixture.code_variance and config.method in TRAINED:
                own = model.autoencoder.log_variance(features).exp().mean(0)
                found = found._replace(variances=found.variances + own)
            model.prior.set_mixture(found)

    def _likelier_start(self, codes: Tensor, head: Tensor, seed: int) -> Mixture:
        """The moments of the clusters of the head or of k-means on the rows.

        Codes of a table need not separate clusters better than its rows, and the head prefers
        clusters of equal size.
        """
        clusters = self.config.clusters
        means = KMeans(clusters, n_init=10, random_state=seed % 2**32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than clusters
            labels = torch.from_numpy(means.fit_predict(self.rows.cpu().numpy())).to(head)
        starts = [
            estimate_mixture(
                codes, F.one_hot(x, clusters).to(codes), reg_covar=self.config.mixture.floor
            )
            for x in (labels, head)
        ]
        best = max(starts, key=lambda x: _log_likelihood(x, codes))
        # With variances of their own, a wide cluster and a narrow one replace two that are apart.
        shared = (best.log_weights.exp()[:, None] * best.variances).sum(0)
        return best._replace(variances=shared.expand_as(best.variances))

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
        self._run(
            "training",
            self.models,
            build_objective(config),
            config.training,
            data,
            run_data=run_data,
            schedules=build_schedules(config),
            before_epoch=None if config.refit_every is None else self._refitter,
        )

    def _run(
        self,
        stage: str,
        models: Sequence[nn.Module],
        objective: Any,
        config: TrainingConfig,
        data: Mapping[str, Tensor],
        **options: Any,
    ) -> None:
        """Train the models of a stage, unless their folders hold finished ones."""
        runs = []
        for folder, seed in zip(self.folders, self.seeds, strict=True):
            text = describe_pretraining(self.config, seed, self.likelihood)
            if stage == "training":
                text = configs.dumps(replace(self.config, training=replace(config, seed=seed)))
            runs.append(open_run(folder / stage, text, devices=self.devices))
        train_stage(
            stage,
            models,
            objective,
            config,
            runs,
            data,
            seed=self.seeds[0],
            devices=self.devices,
            progress=self.progress,
            **options,
        )

    def _refitter(self, program: Program) -> Callable[[int], None]:
        """Refits the mixture to the current codes every few epochs while the temperature falls."""
        config, every = self.config, self.config.refit_every or 1
        # The likelihood does not matter: only the encoder is used.
        with unseeded():
            scratch = MixtureVAE(self.rows.shape[-1], config, "gaussian").to(self.rows.device)

        @torch.no_grad()
        def refit(epoch: int) -> None:
            falls = epoch * program.steps_per_epoch < config.annealing_steps
            if epoch == 0 or epoch % every or not falls:
                return
            tensors = program.tensors()
            for run, seed in enumerate(self.seeds):
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

        return refit


def build_schedules(config: ClusteringConfig) -> dict[str, Schedule]:
    """The schedules of temperature and beta."""
    steps = config.annealing_steps
    beta: Schedule = torch.zeros_like
    if config.beta > 0:
        beta = ExponentialSchedule(0.1 * config.beta, config.beta, steps)
    return {"temperature": ExponentialSchedule(*config.temperature, steps), "beta": beta}

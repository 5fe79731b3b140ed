"""From rows to clusters: pretraining, a mixture to start from, and the model itself.

All of it for one seed or for several at once; each has its own folder, and a folder that was cut
off is gone on with.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drpm.clustering.config import (
    TRAINED,
    ClusteringConfig,
    MixtureConfig,
    NetworkConfig,
    PretrainingConfig,
)
from drpm.clustering.fitted import FittedClustering
from drpm.clustering.mixtures import Mixture, estimate_mixture, fit_mixture, refine_mixture
from drpm.clustering.models import MixtureVAE, build_objective, choose_likelihood
from drpm.clustering.networks import Autoencoder
from drpm.clustering.pretraining import (
    ContrastiveObjective,
    Pretrained,
    reconstruction_objective,
)
from drpm.clustering.views import choose_view
from drpm.training import config as configs
from drpm.training.checks import require_one_each
from drpm.training.config import TrainingConfig
from drpm.training.devices import Devices
from drpm.training.errors import ConfigError
from drpm.training.program import BaseProgram, Program
from drpm.training.runs import RunFolder
from drpm.training.schedules import ConstantSchedule, ExponentialSchedule, Schedule, WarmUp
from drpm.training.stages import ProgressFactory, open_run, train_stage
from drpm.training.turns import seeded, unseeded

_ROWS_AT_ONCE = 8192


def fit_clusterings(
    rows: Tensor,
    shape: torch.Size,
    config: ClusteringConfig,
    folders: Sequence[Path],
    *,
    seeds: Sequence[int],
    progress: ProgressFactory = lambda stage: None,
    starts: Sequence[FittedClustering] | None = None,
    devices: Devices | None = None,
) -> list[FittedClustering]:
    """Cluster rows, once for every seed.

    Trainings in several threads take turns.

    Arguments:
        rows: (n, d), the training data on the device to work on.
        shape: The shape of an input, which a row is the flattened form of.
        config: The settings.
        folders: One for each seed, for what the stages write; continued if they were cut off.
        seeds: They settle everything that is random.
        progress: From the name of a stage to whoever shows how far it is.
        starts: For each seed a clustering of the same networks to go on from: a model takes it
            over, clusters and all; a latent mixture goes on with its autoencoder.
        devices: What connects this process with others that work on the same clustering.
    """
    require_one_each(folders=folders, seeds=seeds)
    if len(rows) < config.clusters:
        raise ConfigError(
            f"clusters must be at most the number of examples, {len(rows)}, "
            f"but got {config.clusters}."
        )
    rows = rows.float()
    if config.method == "gmm":
        return _cluster_rows(rows, shape, config, seeds)
    likelihood = choose_likelihood(rows, config.likelihood)
    if starts is not None:
        likelihood = _autoencoder(starts[0]).likelihood
    devices = devices or Devices(rows.device)
    stages = _Stages(rows, config, likelihood, folders, seeds, progress, devices)
    pretrained = _begin(rows, config, likelihood, seeds)
    models = [model for model, _ in pretrained]
    for model, start in zip(models, starts or (), strict=bool(starts)):
        model.autoencoder.load_state_dict(_autoencoder(start).state_dict())
    if starts is None or config.method == "latent-gmm":
        stages.pretrain([wrapped for _, wrapped in pretrained], shape)
    _place_priors(pretrained, rows, shape, config, seeds, starts)
    if config.method in TRAINED:
        stages.train(models)
    heads = [
        wrapped.clusters if config.method == "contrastive-head" else None
        for _, wrapped in pretrained
    ]
    return [
        FittedClustering(
            config,
            shape,
            Mixture(*(x.detach() for x in model.prior.mixture())),
            model.autoencoder,
            head,
        )
        for model, head in zip(models, heads, strict=True)
    ]


def pretrain(
    rows: Tensor,
    shape: torch.Size,
    config: ClusteringConfig,
    folders: Sequence[Path],
    *,
    seeds: Sequence[int],
) -> None:
    """Do the pretraining of :func:`fit_clusterings` and nothing else, for others to take over.

    Arguments:
        rows: (n, d), the training data on the device to work on.
        shape: The shape of an input, which a row is the flattened form of.
        config: The settings; the method does not matter.
        folders: One for each seed; continued if they were cut off.
        seeds: They settle everything that is random.
    """
    rows = rows.float()
    likelihood = choose_likelihood(rows, config.likelihood)
    models, devices = _begin(rows, config, likelihood, seeds), Devices(rows.device)
    stages = _Stages(rows, config, likelihood, folders, seeds, lambda stage: None, devices)
    stages.pretrain([wrapped for _, wrapped in models], shape)


def describe_pretraining(config: ClusteringConfig, seed: int, likelihood: str) -> str:
    """All settings that pretraining depends on: the same for every method and objective."""
    training = replace(config.pretraining.training, seed=seed)
    pretraining = replace(config.pretraining, training=training)
    own = _Pretraining(seed, config.clusters, likelihood, config.network, pretraining)
    return configs.dumps(own)


def _begin(
    rows: Tensor, config: ClusteringConfig, likelihood: str, seeds: Sequence[int]
) -> list[tuple[MixtureVAE, Pretrained]]:
    """Untrained models, and what of each of them is pretrained."""
    found = []
    for seed in seeds:
        with seeded(seed):
            model = MixtureVAE(rows.shape[-1], config, likelihood).to(rows.device)
            found.append((model, Pretrained(model.autoencoder, config.clusters).to(rows.device)))
    return found


def _autoencoder(start: FittedClustering) -> Autoencoder:
    if start.autoencoder is None:
        raise ConfigError("starts must have autoencoders, but got a mixture of rows.")
    return start.autoencoder


def _cluster_rows(
    rows: Tensor, shape: torch.Size, config: ClusteringConfig, seeds: Sequence[int]
) -> list[FittedClustering]:
    return [
        FittedClustering(config, shape, _fit(rows, config.clusters, config.mixture, seed))
        for seed in seeds
    ]


def _fit(points: Tensor, clusters: int, config: MixtureConfig, seed: int) -> Mixture:
    generator = torch.Generator(points.device).manual_seed(seed)
    # A cluster head is no start for iterations.
    init = "kmeans" if config.init == "kmeans" else "k-means++"
    fitted = fit_mixture(
        points,
        clusters,
        restarts=config.restarts,
        init=init,
        reg_covar=config.floor,
        generator=generator,
    )
    return Mixture(*(x.to(points.dtype) for x in fitted.mixture))


@torch.no_grad()
def _features(model: MixtureVAE, rows: Tensor) -> Tensor:
    encoder = model.autoencoder.encoder
    return torch.cat([encoder(part) for part in rows.split(_ROWS_AT_ONCE)])


def _place_priors(
    pretrained: Sequence[tuple[MixtureVAE, Pretrained]],
    rows: Tensor,
    shape: torch.Size,
    config: ClusteringConfig,
    seeds: Sequence[int],
    starts: Sequence[FittedClustering] | None,
) -> None:
    for index, ((model, wrapped), seed) in enumerate(zip(pretrained, seeds, strict=True)):
        if starts is not None and config.method != "latent-gmm":
            model.prior.place(starts[index].mixture)
            continue
        features = _features(model, rows)
        with torch.no_grad():
            codes = model.autoencoder.mean(features)
        if starts is not None:
            found = _refine(codes, starts[index].mixture, config.mixture)
        elif config.starts_at_head(shape):
            chances = torch.cat([wrapped.chances(part) for part in rows.split(_ROWS_AT_ONCE)])
            # Not refined: iterations on the codes alone would forget what the head knows.
            found = estimate_mixture(codes, chances.detach(), reg_covar=config.mixture.floor)
        else:
            found = _fit(codes, config.clusters, config.mixture, seed)
        if config.mixture.code_variance and config.method in TRAINED:
            with torch.no_grad():
                own = model.autoencoder.log_variance(features).exp().mean(0)
            found = found._replace(variances=found.variances + own)
        model.prior.place(found)


def _refine(codes: Tensor, start: Mixture, config: MixtureConfig) -> Mixture:
    return refine_mixture(codes, start, reg_covar=config.floor).mixture


@dataclass(frozen=True)
class _Pretraining:
    """What pretraining depends on."""

    seed: int
    clusters: int
    likelihood: str
    network: NetworkConfig
    pretraining: PretrainingConfig


class _Stages:
    """The trainings of one call."""

    def __init__(
        self,
        rows: Tensor,
        config: ClusteringConfig,
        likelihood: str,
        folders: Sequence[Path],
        seeds: Sequence[int],
        progress: ProgressFactory,
        devices: Devices,
    ) -> None:
        self.rows, self.config, self.likelihood, self.seeds = rows, config, likelihood, seeds
        self.folders, self.progress, self.devices = folders, progress, devices

    def pretrain(self, models: Sequence[Pretrained], shape: torch.Size) -> None:
        config = self.config.pretraining
        objective: Any = reconstruction_objective
        if config.kind == "contrastive":
            objective = ContrastiveObjective(config, choose_view(config.views, shape), shape)
        # What the objective leaves out is not trained: several devices would wait for its gradient.
        idle = [part for model in models for part in model.idle_parts(config.kind)]
        for part in idle:
            part.requires_grad_(False)
        self._run("pretraining", models, objective, config.training, {"rows": self.rows})
        for part in idle:
            part.requires_grad_()
        for model in models:
            if self.config.method == "vade" and self.config.copy_mean_head:
                model.autoencoder.log_variance.load_state_dict(model.autoencoder.mean.state_dict())
            elif config.kind == "contrastive":
                model.autoencoder.reset_variance()

    def train(self, models: Sequence[MixtureVAE]) -> None:
        config = self.config
        data, run_data = {"rows": self.rows}, {}
        if config.freeze_encoder:
            # What a frozen encoder makes of the data is known once and for all.
            features = [_features(model, self.rows) for model in models]
            if len(models) == 1:
                data["features"] = features[0]
            else:
                run_data["features"] = torch.stack(features)
            for model in models:
                model.autoencoder.encoder.requires_grad_(False)
        self._run(
            "training",
            models,
            build_objective(config),
            config.training,
            data,
            run_data=run_data,
            schedules=build_schedules(config),
            refits=config.refit_every is not None,
        )

    def _run(
        self,
        stage: str,
        models: Sequence[nn.Module],
        objective: Any,
        config: TrainingConfig,
        data: Mapping[str, Tensor],
        *,
        run_data: Mapping[str, Tensor] | None = None,
        schedules: Mapping[str, Schedule] | None = None,
        refits: bool = False,
    ) -> None:
        """Train models of one stage, unless their folders hold them finished already."""
        train_stage(
            stage,
            models,
            objective,
            config,
            [
                self._open(folder / stage, stage, config, seed)
                for folder, seed in zip(self.folders, self.seeds, strict=True)
            ],
            data,
            seed=self.seeds[0],
            devices=self.devices,
            run_data=run_data,
            schedules=schedules,
            before_epoch=self._refitter if refits else None,
            progress=self.progress,
        )

    def _open(self, path: Path, stage: str, config: TrainingConfig, seed: int) -> RunFolder:
        """The folder of a stage: what it depends on has to be what it was begun with."""
        if stage == "pretraining":
            text = describe_pretraining(self.config, seed, self.likelihood)
        else:
            text = configs.dumps(replace(self.config, training=replace(config, seed=seed)))
        return open_run(path, text, devices=self.devices)

    def _refitter(self, program: BaseProgram) -> Callable[[int], None]:
        """Fits the mixture to the codes of now, every few epochs while the temperature falls."""
        config = self.config
        assert config.refit_every is not None
        every = config.refit_every
        # The likelihood is the decoder's, which finds no codes.
        with unseeded():
            scratch = MixtureVAE(self.rows.shape[-1], config, "gaussian").to(self.rows.device)

        def refit(epoch: int) -> None:
            falls = epoch * program.steps_per_epoch < config.annealing_steps
            if epoch == 0 or epoch % every or not falls:
                return
            tensors = program.tensors()
            seed = self.seeds[0] + epoch
            generator = torch.Generator(self.rows.device).manual_seed(seed)
            codes = []
            for run in range(len(self.seeds)):
                scratch.load_state_dict(program.model_state(run))
                with torch.no_grad():
                    posterior = scratch.autoencoder.posterior(_features(scratch, self.rows))
                    sampled = config.refit_to == "samples"
                    codes.append(posterior.sample((), generator) if sampled else posterior.mean)
            # All runs' mixtures at once.
            fitted = _fit(torch.stack(codes), config.clusters, config.mixture, seed)
            for run in range(len(self.seeds)):
                scratch.load_state_dict(program.model_state(run))
                found = Mixture(*(part[run] for part in fitted))
                scratch.prior.place(found, detached=config.refit_detaches_prior)
                for name, value in scratch.prior.state_dict().items():
                    held = tensors[f"prior.{name}"]
                    target = held if isinstance(program, Program) else held[run]
                    with torch.no_grad():
                        target.copy_(value)

        return refit


def build_schedules(config: ClusteringConfig) -> dict[str, Schedule]:
    """How temperature and beta go."""
    steps = config.annealing_steps
    beta: Schedule = WarmUp(config.beta, steps) if config.beta > 0 else ConstantSchedule(0.0)
    return {"temperature": ExponentialSchedule(*config.temperature, steps), "beta": beta}
